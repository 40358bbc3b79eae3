/* gguf_gen_plan.c - the tensors: see gguf_gen_plan.h. Their order is part of a file's bytes.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_gen_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gguf_gen_codes.h"
#include "gguf_gen_recurrent.h"
#include "gguf_gen_scheme.h"

#define NEXTN_TENSORS 5u

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);

    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static gguf_gen_fill fill_of(const quire_tensor_row *r)
{
    if (r->part == QUIRE_PART_ROPE_FREQS) {
        return GGUF_GEN_FILL_ROPE_FREQS;
    }
    if (r->part == QUIRE_PART_ROPE_FACTORS) {
        return GGUF_GEN_FILL_RAMP;
    }
    if (r->part == QUIRE_PART_KV_MAP) {
        return GGUF_GEN_FILL_GATE;
    }
    if (r->rows != QUIRE_DIM_ONE || r->part == QUIRE_PART_EXPERTS_SHARED_GATE) {
        return GGUF_GEN_FILL_MATRIX;
    }
    if (strcmp(r->name, "ssm_a") == 0) {
        return GGUF_GEN_FILL_DECAY;
    }
    return has_suffix(r->name, ".bias") ? GGUF_GEN_FILL_BIAS : GGUF_GEN_FILL_NORM;
}

/* Two branches per layer are added to the residual stream: keep its variance near one. */
static float gain_of(const gguf_gen_plan *p, const quire_tensor_row *r)
{
    if (r->part == QUIRE_PART_ROPE_FACTORS) {
        return strstr(r->name, "long") != NULL ? 0.2f : 0.02f;
    }
    /* Where logits of attention are not scaled, a norm does it. */
    if (strcmp(r->name, "attn_q_norm.weight") == 0 &&
        quire_arch_row_get(p->sizes.arch)->attn_scale != 0.0f) {
        return 1.0f / sqrtf((float)p->opts->d_head);
    }
    /* The router of streams reads rows that are divided by their width, and the factors of many
     * layers multiply. */
    if (strcmp(r->name, "altup_router.weight") == 0) {
        return (float)p->opts->n_embd;
    }
    if (r->columns == QUIRE_DIM_STREAMS) {
        return 0.2f;
    }
    if (strcmp(r->name, "attn_output.weight") == 0 ||
        strcmp(r->name, "shortconv.out_proj.weight") == 0 ||
        strcmp(r->name, "ssm_out.weight") == 0 || strstr(r->name, "ffn_down") != NULL) {
        return 1.0f / sqrtf(2.0f * (float)p->opts->n_layer);
    }
    return 1.0f;
}

/* Whether a matrix has the type for matrices that need more bits. */
static bool needs_more(const char *name)
{
    unsigned layer = 0;

    if (sscanf(name, "blk.%u.", &layer) != 1) {
        return strcmp(name, "output.weight") == 0;
    }
    return layer % 2 == 0 &&
           (has_suffix(name, "attn_v.weight") || has_suffix(name, "ffn_down.weight"));
}

/* The type of a matrix: the model's, unless the matrix needs more bits. Files keep the maps of
 * streams in 16 bits. */
static enum ggml_type type_of(const gguf_gen_plan *p, const char *name)
{
    const bool is_of_streams = strstr(name, "altup_") != NULL || strstr(name, "laurel_") != NULL ||
                               strcmp(name, "per_layer_model_proj.weight") == 0;

    if (p->opts->has_shared_type && strstr(name, "_shexp") != NULL) {
        return p->opts->expert_type;
    }
    return is_of_streams && ggml_is_quantized(p->opts->type) &&
                   quire_arch_row_get(p->sizes.arch)->has_streams
               ? GGML_TYPE_F16
               : p->opts->type;
}

/* A type with blocks that fit into rows of this many columns: `type`, or the replacement that
 * llama-quantize takes. */
static enum ggml_type fitting(enum ggml_type type, int64_t columns)
{
    enum ggml_type other = gguf_gen_codes_has(type) ? GGML_TYPE_IQ4_NL : type;

    if (columns % ggml_blck_size(type) == 0) {
        return type;
    }
    switch (type) {
    case GGML_TYPE_IQ4_XS:
        other = GGML_TYPE_IQ4_NL;
        break;
    case GGML_TYPE_Q2_K:
    case GGML_TYPE_Q3_K:
        other = GGML_TYPE_Q4_0;
        break;
    case GGML_TYPE_Q4_K:
        other = GGML_TYPE_Q5_0;
        break;
    case GGML_TYPE_Q5_K:
        other = GGML_TYPE_Q5_1;
        break;
    case GGML_TYPE_Q6_K:
        other = GGML_TYPE_Q8_0;
        break;
    default:
        break;
    }
    return columns % ggml_blck_size(other) == 0 ? other : GGML_TYPE_F16;
}

/* rows == 0: a vector. */
static void plan_add(gguf_gen_plan *p, const gguf_gen_entry *like, const char *name,
                     uint32_t columns, uint32_t rows)
{
    gguf_gen_entry *entry = &p->entries[p->n++];
    const bool is_more = p->opts->type_more != GGML_TYPE_F32 && needs_more(name);
    const enum ggml_type type = fitting(is_more ? p->opts->type_more : type_of(p, name), columns);

    *entry = *like;
    entry->tensor = rows == 0 ? ggml_new_tensor_1d(p->ggml, GGML_TYPE_F32, columns)
                              : ggml_new_tensor_2d(p->ggml, type, columns, rows);
    ggml_set_name(entry->tensor, name);
    gguf_add_tensor(p->gguf, entry->tensor);
}

/* Whether the matrix is of the type that some of the experts' matrices have. */
static bool is_more_of_experts(const gguf_gen_opts *o, const char *name, uint32_t layer)
{
    return o->expert_type_more != GGML_TYPE_F32 &&
           has_suffix(name, layer % 2 == 0 ? "ffn_up_exps.weight" : "ffn_down_exps.weight");
}

/* Matrices of experts, or vectors, one behind the other. */
static void plan_deep(gguf_gen_plan *p, const gguf_gen_entry *like, const char *name,
                      const quire_tensor_row *r, uint32_t layer)
{
    const gguf_gen_opts *o = p->opts;
    const bool is_expert_type = o->has_expert_type && r->depth == QUIRE_DIM_EXPERTS;
    const int64_t columns = quire_dim_size(&p->sizes, r->columns, layer);
    const enum ggml_type type =
        is_more_of_experts(o, name, layer)
            ? o->expert_type_more
            : fitting(is_expert_type ? o->expert_type : type_of(p, name), columns);
    const int64_t depth = quire_dim_size(&p->sizes, r->depth, layer);
    gguf_gen_entry *entry = &p->entries[p->n++];

    *entry = *like;
    entry->tensor = r->rows == QUIRE_DIM_ONE
                        ? ggml_new_tensor_2d(p->ggml, GGML_TYPE_F32, columns, depth)
                        : ggml_new_tensor_3d(p->ggml, type, columns,
                                             quire_dim_size(&p->sizes, r->rows, layer), depth);
    ggml_set_name(entry->tensor, name);
    gguf_add_tensor(p->gguf, entry->tensor);
}

/* Matrices that choose experts or streams, and the factors of convolutions, are f32, as in files of
 * all kinds. */
static bool is_plain_f32(const gguf_gen_opts *o, const quire_tensor_row *r)
{
    return (r->rows == QUIRE_DIM_EXPERTS && !o->has_router_type) || r->columns == QUIRE_DIM_TAPS ||
           r->rows == QUIRE_DIM_STREAMS || r->columns == QUIRE_DIM_STREAMS;
}

static void plan_f32(gguf_gen_plan *p, const gguf_gen_entry *like, const char *name,
                     const quire_tensor_row *r, uint32_t layer)
{
    gguf_gen_entry *entry = &p->entries[p->n++];

    *entry = *like;
    entry->tensor =
        ggml_new_tensor_2d(p->ggml, GGML_TYPE_F32, quire_dim_size(&p->sizes, r->columns, layer),
                           quire_dim_size(&p->sizes, r->rows, layer));
    ggml_set_name(entry->tensor, name);
    gguf_add_tensor(p->gguf, entry->tensor);
}

/* A gate is f32, also where it has a row per head. */
static void plan_gate(gguf_gen_plan *p, const gguf_gen_entry *like, const char *name)
{
    const gguf_gen_opts *o = p->opts;
    const uint32_t columns = o->gates == GGUF_GEN_GATES_HALF ? o->d_head / 2 : o->d_head;
    gguf_gen_entry *entry = &p->entries[p->n++];

    *entry = *like;
    entry->tensor = o->gates == GGUF_GEN_GATES_HEADS && o->n_kv_head > 1
                        ? ggml_new_tensor_2d(p->ggml, GGML_TYPE_F32, columns, o->n_kv_head)
                        : ggml_new_tensor_1d(p->ggml, GGML_TYPE_F32, columns);
    ggml_set_name(entry->tensor, name);
    gguf_add_tensor(p->gguf, entry->tensor);
}

bool gguf_gen_is_windowed(const gguf_gen_opts *o, uint32_t layer)
{
    return o->has_window_array && layer % 2 == 0;
}

/* Whether layer `layer` has the tensor of a part of which not every layer has one. */
static bool is_in_layer(const gguf_gen_opts *o, const quire_model_desc *sizes,
                        const quire_tensor_row *r, uint32_t layer)
{
    const bool is_stored = gguf_gen_is_stored(o, layer) && quire_mixer_attends(sizes->mixer[layer]);

    if (r->columns == QUIRE_DIM_GATE) {
        const uint32_t source = (uint32_t)(r->name[strlen(r->name) - 1] - '0');

        return source < gguf_gen_n_gates(o, layer, r->name[strlen("attn_")] == 'k');
    }
    if (r->columns == QUIRE_DIM_MIX) {
        return is_stored && layer > 0 && o->has_mixes;
    }
    if (r->part == QUIRE_PART_V && o->has_no_full_v && !gguf_gen_is_windowed(o, layer)) {
        return false;
    }
    if (o->n_shared_kv != 0 && layer + o->n_shared_kv >= o->n_layer &&
        r->where == QUIRE_TENSOR_OF_STORED_LAYER) {
        return o->has_spare_kv;
    }
    return r->where == QUIRE_TENSOR_OF_STORED_LAYER ? is_stored
                                                    : quire_tensor_is_in_layer(sizes, r, layer);
}

/* layer: 0 of a tensor of the model. */
static void plan_row(gguf_gen_plan *p, const quire_tensor_row *r, const char *name, uint32_t layer)
{
    const gguf_gen_entry like = { NULL, fill_of(r), gain_of(p, r) };

    if (r->columns == QUIRE_DIM_GATE) {
        plan_gate(p, &like, name);
        return;
    }
    if (r->depth != QUIRE_DIM_ONE) {
        plan_deep(p, &like, name, r, layer);
        return;
    }
    if (is_plain_f32(p->opts, r)) {
        plan_f32(p, &like, name, r, layer);
        return;
    }
    plan_add(p, &like, name, (uint32_t)quire_dim_size(&p->sizes, r->columns, layer),
             r->rows == QUIRE_DIM_ONE ? 0 : (uint32_t)quire_dim_size(&p->sizes, r->rows, layer));
}

static bool is_single(const gguf_gen_plan *p)
{
    return quire_arch_row_get(p->sizes.arch)->is_single;
}

/* Layers that predict further tokens are like the last ones, but for two architectures: where other
 * layers are one block each, they have attention and experts, and those of exaone-moe have no
 * experts. */
static bool has_row(gguf_gen_plan *p, const quire_tensor_row *r, uint32_t layer)
{
    const bool is_nextn = layer >= p->opts->n_layer;
    const uint32_t n_dense = p->sizes.experts.n_dense;
    bool has;

    if (is_nextn && p->sizes.arch == QUIRE_ARCH_EXAONE_MOE) {
        p->sizes.experts.n_dense = layer + 1;
    }
    has = is_in_layer(p->opts, &p->sizes, r, layer);
    p->sizes.experts.n_dense = n_dense;
    if (!has && is_nextn && is_single(p)) {
        p->sizes.mixer[layer] = QUIRE_MIXER_NONE;
        has = is_in_layer(p->opts, &p->sizes, r, layer);
        p->sizes.mixer[layer] = QUIRE_MIXER_ATTENTION;
    }
    return has;
}

static void plan_layer_row(gguf_gen_plan *p, const quire_tensor_row *r, uint32_t layer)
{
    char name[GGML_MAX_NAME];

    if ((p->parts & r->part) == 0 || r->where == QUIRE_TENSOR_OF_MODEL || !has_row(p, r, layer)) {
        return;
    }
    (void)snprintf(name, sizeof(name), "blk.%u.%s", layer, r->name);
    plan_row(p, r, name, layer);
}

/* The tensors that come first in a layer, in their order; all others follow in that of the table.
 */
static const char *const first_names[] = {
    "attn_norm.weight", "attn_q.weight",      "attn_k.weight",      "attn_v.weight",
    "attn_k_mix",       "attn_v_mix",         "attn_k_gate.0",      "attn_k_gate.1",
    "attn_v_gate.0",    "attn_v_gate.1",      "attn_q.bias",        "attn_k.bias",
    "attn_v.bias",      "attn_q_norm.weight", "attn_k_norm.weight", "attn_output.weight",
    "ffn_norm.weight",  "ffn_gate.weight",    "ffn_up.weight",      "ffn_down.weight",
};
#define N_FIRST (sizeof(first_names) / sizeof(first_names[0]))

static bool comes_first(const char *name)
{
    for (size_t i = 0; i < N_FIRST; i++) {
        if (strcmp(first_names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void plan_layer(gguf_gen_plan *p, uint32_t layer)
{
    const quire_tensor_row *r;

    for (size_t f = 0; f < N_FIRST; f++) {
        for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
            if (strcmp(r->name, first_names[f]) == 0) {
                plan_layer_row(p, r, layer);
            }
        }
    }
    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        if (!comes_first(r->name)) {
            plan_layer_row(p, r, layer);
        }
    }
}

/* The tensors that a layer for predicting further tokens has beside a layer's usual ones. */
static void plan_nextn(gguf_gen_plan *p, uint32_t layer)
{
    const char *const norms[] = { "nextn.enorm", "nextn.hnorm",
                                  is_single(p) ? "post_attention_norm" : "layer_output_norm",
                                  "nextn.shared_head_norm" };
    const size_t n_norms = is_single(p) ? 4 : p->sizes.arch == QUIRE_ARCH_BAILINGMOE2 ? 3 : 2;
    const uint32_t n = p->opts->n_embd;
    char name[GGML_MAX_NAME];

    (void)snprintf(name, sizeof(name), "blk.%u.nextn.eh_proj.weight", layer);
    plan_add(p, &(gguf_gen_entry){ NULL, GGUF_GEN_FILL_MATRIX, 1.0f }, name, 2 * n, n);
    for (size_t i = 0; i < n_norms; i++) {
        (void)snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, norms[i]);
        plan_add(p, &(gguf_gen_entry){ NULL, GGUF_GEN_FILL_NORM, 1.0f }, name, n, 0);
    }
}

/* The model's own tensors: those before its layers, or those behind them. */
static void plan_globals(gguf_gen_plan *p, bool is_before)
{
    const quire_part before = QUIRE_PART_ROPE_FREQS | QUIRE_PART_ROPE_FACTORS;
    const quire_tensor_row *r;

    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        if (r->where == QUIRE_TENSOR_OF_MODEL && (p->parts & r->part) != 0 &&
            ((r->part & before) != 0 || r->is_looked_up) == is_before) {
            plan_row(p, r, r->name, 0);
        }
    }
}

const quire_expert_rule *gguf_gen_expert_rule(const gguf_gen_opts *o)
{
    return &quire_arch_row_get(quire_arch_find(o->arch))->experts;
}

/* The parts of the architecture that the options ask for. */
static quire_part parts_of(const gguf_gen_opts *o)
{
    const quire_arch_row *arch = quire_arch_row_get(quire_arch_find(o->arch));
    const bool is_longrope = strcmp(o->rope_scaling, "longrope") == 0;
    quire_part may = arch->may | (is_longrope ? QUIRE_PART_ROPE_FACTORS : 0);
    quire_part parts = QUIRE_PART_KV_MAP;

    parts |= o->is_tied ? 0 : QUIRE_PART_OUTPUT;
    parts |= strcmp(o->rope_scaling, "llama3") == 0 ? QUIRE_PART_ROPE_FREQS : 0;
    parts |= is_longrope ? QUIRE_PART_ROPE_FACTORS : 0;
    parts |= o->has_qk_norm ? QUIRE_PART_QK_NORM : 0;
    parts |= o->is_fused ? QUIRE_PART_QKV_FUSED : 0;
    if (o->has_qkv_bias) {
        parts |= o->is_fused ? QUIRE_PART_QKV_BIAS_FUSED : QUIRE_PART_QKV_BIAS;
    }
    parts |= o->n_embd_layer != 0 ? QUIRE_PART_LAYER_EMBD : 0;
    parts |= QUIRE_PART_V | QUIRE_PART_OUT_SCALE;
    parts |= o->has_fused_experts ? QUIRE_PART_EXPERTS_FUSED : 0;
    parts |= QUIRE_PART_EXPERTS_SCALE;
    parts |= o->n_embd_expert != 0 ? QUIRE_PART_EXPERTS_NARROW : 0;
    parts |= o->has_choice_bias ? QUIRE_PART_EXPERTS_CHOICE_BIAS : 0;
    parts |= o->has_no_mamba_norm ? 0 : QUIRE_PART_MAMBA_NORM;
    if (o->has_biases) {
        parts |= QUIRE_PART_O_BIAS | QUIRE_PART_FFN_BIAS | QUIRE_PART_FFN_GATE_BIAS |
                 QUIRE_PART_OUTPUT_BIAS;
    }
    parts = arch->needs | (may & parts);
    if ((parts & QUIRE_PART_EXPERTS_FUSED) != 0) {
        parts &= ~QUIRE_PART_EXPERTS_APART;
    }
    return (parts & QUIRE_PART_QKV_FUSED) != 0 ? parts & ~QUIRE_PART_QKV : parts;
}

size_t gguf_gen_plan_tensors_max(const gguf_gen_opts *opts)
{
    return ((size_t)opts->n_layer + opts->n_nextn + 1) * (QUIRE_TENSOR_ROWS_MAX + NEXTN_TENSORS);
}

void gguf_gen_plan_sizes(gguf_gen_plan *p)
{
    const gguf_gen_opts *o = p->opts;

    p->sizes.n_layer = o->n_layer;
    p->sizes.n_embd_layer = o->n_embd_layer;
    p->sizes.arch = quire_arch_find(o->arch);
    p->sizes.has_layer_sizes = quire_arch_row_get(p->sizes.arch)->has_layer_sizes;
    for (uint32_t l = 0; l < o->n_layer; l++) {
        const uint32_t d =
            gguf_gen_is_windowed(o, l) && o->window_d_head != 0 ? o->window_d_head : o->d_head;
        const bool is_full = !gguf_gen_is_windowed(o, l) && o->full_n_kv_head != 0;
        const bool is_wide = o->has_wide_ff && l + o->n_shared_kv >= o->n_layer;

        p->sizes.layer_sizes[l] = (quire_layer_sizes){ is_full ? o->full_n_kv_head : o->n_kv_head,
                                                       d, d, is_wide ? 2 * o->n_ff : o->n_ff };
    }
}

void gguf_gen_plan_tensors(gguf_gen_plan *p)
{
    const gguf_gen_opts *o = p->opts;

    p->parts = parts_of(o);
    p->sizes.n_embd = o->n_embd;
    p->sizes.n_ff = o->n_ff;
    p->sizes.n_head = o->n_head;
    p->sizes.n_kv_head = o->n_kv_head;
    p->sizes.d_k = p->sizes.d_v = o->d_head;
    p->sizes.n_vocab = o->n_vocab;
    p->sizes.rope.n_dims = o->n_rot != 0 ? o->n_rot : o->d_head;
    p->sizes.recurrent = (quire_recurrent_desc){
        .conv_taps = o->conv_taps,
        .n_k_heads = o->n_delta_k_heads,
        .n_v_heads = o->n_delta_v_heads,
        .d_head = o->d_delta_head,
        .d_state = o->d_mamba_state != 0 ? o->d_mamba_state : o->d_delta_head,
    };
    p->sizes.recurrent.conv_width =
        2 * o->n_delta_k_heads * p->sizes.recurrent.d_state + o->n_delta_v_heads * o->d_delta_head;
    for (uint32_t l = 0; l < o->n_layer; l++) {
        p->sizes.mixer[l] = (uint8_t)gguf_gen_mixer(o, l);
    }
    if (o->n_latent != 0) {
        p->sizes.d_k = o->n_latent + o->n_rot;
        p->sizes.d_v = o->n_latent;
        p->sizes.latent = (quire_latent_desc){ .is_there = true,
                                               .is_split = !o->has_joint_latent,
                                               .n_q = o->n_latent_q,
                                               .d_plain = o->d_head - o->n_rot,
                                               .d_out = o->d_value };
    }
    p->sizes.experts = (quire_expert_desc){
        .router = { .n_experts = o->n_experts, .n_used = o->n_experts_used },
        .n_dense = o->n_experts == 0 ? o->n_layer + o->n_nextn : o->n_experts_dense,
        .is_beside = o->n_experts != 0 && gguf_gen_expert_rule(o)->is_beside,
        .n_embd = o->n_embd_expert,
        .n_ff = gguf_gen_expert_rule(o)->ff == QUIRE_EXPERT_FF_SAME ? o->n_ff : o->n_ff_expert,
        .n_ff_shared = gguf_gen_expert_rule(o)->shared == QUIRE_EXPERT_SHARED_ONE ? o->n_ff_expert
                                                                                  : o->n_ff_shared,
        .step = o->expert_step,
    };
    gguf_gen_plan_sizes(p);
    plan_globals(p, true);
    for (uint32_t l = 0; l < o->n_layer + o->n_nextn; l++) {
        plan_layer(p, l);
        if (l >= o->n_layer) {
            plan_nextn(p, l);
        }
    }
    plan_globals(p, false);
}
