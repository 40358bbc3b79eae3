/* gguf_gen_keys.c - the keys: see gguf_gen_plan.h. Their order is part of a file's bytes.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_gen_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gguf_gen_recurrent.h"
#include "gguf_gen_scheme.h"
#include "gguf_gen_vocab.h"

#define KEY_BYTES 96u

static const char *arch_key(char *buffer, const gguf_gen_opts *opts, const char *suffix)
{
    (void)snprintf(buffer, KEY_BYTES, "%s.%s", opts->arch, suffix);
    return buffer;
}

static void set_f32(const gguf_gen_plan *p, const char *suffix, float value)
{
    char key[KEY_BYTES];

    gguf_set_val_f32(p->gguf, arch_key(key, p->opts, suffix), value);
}

static void set_u32(const gguf_gen_plan *p, const char *suffix, uint32_t value)
{
    char key[KEY_BYTES];

    gguf_set_val_u32(p->gguf, arch_key(key, p->opts, suffix), value);
}

static void window_keys(const gguf_gen_plan *p)
{
    const gguf_gen_opts *o = p->opts;
    bool pattern[GGUF_GEN_LAYERS_MAX];
    char key[KEY_BYTES];

    if (o->sliding_window != 0) {
        set_u32(p, "attention.sliding_window", o->sliding_window);
    }
    if (o->window_pattern != 0) {
        set_u32(p, "attention.sliding_window_pattern", o->window_pattern);
    }
    if (o->has_window_array) {
        /* The published files of cohere2moe leave out layers that predict further tokens. */
        const uint32_t n = o->n_layer + (strcmp(o->arch, "cohere2moe") == 0 ? 0 : o->n_nextn);

        for (uint32_t l = 0; l < n; l++) {
            pattern[l] = gguf_gen_is_windowed(o, l);
        }
        gguf_set_arr_data(p->gguf, arch_key(key, o, "attention.sliding_window_pattern"),
                          GGUF_TYPE_BOOL, pattern, n);
    }
    if ((quire_arch_row_get(quire_arch_find(o->arch))->reads & QUIRE_READS_ROPE_PATTERN) != 0) {
        for (uint32_t l = 0; l < o->n_layer; l++) {
            pattern[l] = l % 3 != 2;
        }
        gguf_set_arr_data(p->gguf, arch_key(key, o, "attention.rope_pattern"), GGUF_TYPE_BOOL,
                          pattern, o->n_layer);
    }
    if (o->window_rope_base != 0.0f) {
        set_f32(p, "rope.freq_base_swa", o->window_rope_base);
    }
}

/* xIELU's numbers, another set for each layer. */
static void xielu_keys(const gguf_gen_plan *p)
{
    static const struct {
        const char *key;
        float value, step;
    } keys[] = { { "xielu.alpha_n", 0.3f, 0.1f },
                 { "xielu.alpha_p", 0.4f, -0.1f },
                 { "xielu.beta", 0.5f, 0.05f },
                 { "xielu.eps", -1e-6f, 0.0f } };
    float values[GGUF_GEN_LAYERS_MAX];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        for (uint32_t l = 0; l < p->opts->n_layer; l++) {
            values[l] = keys[i].value + keys[i].step * (float)l;
        }
        gguf_set_arr_data(p->gguf, keys[i].key, GGUF_TYPE_FLOAT32, values, p->opts->n_layer);
    }
}

/* Keys that libllama does not read. They state constants that libllama has built in. */
static void stream_keys(const gguf_gen_plan *p)
{
    const quire_arch_row *arch = quire_arch_row_get(quire_arch_find(p->opts->arch));
    float scales[GGUF_GEN_LAYERS_MAX];
    char key[KEY_BYTES];

    for (uint32_t l = 0; l < p->opts->n_layer; l++) {
        scales[l] = l < arch->sparse_layers ? 1.6448534f : -INFINITY;
    }
    set_u32(p, "altup.num_inputs", QUIRE_STREAMS);
    set_u32(p, "altup.active_idx", 0);
    set_u32(p, "embedding_length_per_layer_input", p->opts->n_embd_layer);
    set_u32(p, "attention.shared_kv_layers", p->opts->n_shared_kv);
    set_f32(p, "final_logit_softcapping", arch->logit_softcap);
    gguf_set_arr_data(p->gguf, arch_key(key, p->opts, "activation_sparsity_scale"),
                      GGUF_TYPE_FLOAT32, scales, p->opts->n_layer);
}

/* The keys that the architecture reads beside those of all: values that show in the result. */
static void feature_keys(const gguf_gen_plan *p)
{
    static const struct {
        quire_arch_reads reads;
        const char *suffix;
        float value;
    } keys[] = {
        { QUIRE_READS_RESIDUAL_SCALE, "residual_scale", 0.7f },
        { QUIRE_READS_ATTN_SCALE, "attention.scale", 0.1f },
        { QUIRE_READS_ATTN_SOFTCAP, "attn_logit_softcapping", 1.5f },
        { QUIRE_READS_LOGIT_SOFTCAP, "final_logit_softcapping", 3.0f },
        { QUIRE_READS_ROPE_ALPHA, "rope.scaling.alpha", 50.0f },
    };
    const gguf_gen_opts *o = p->opts;
    const quire_arch_row *arch = quire_arch_row_get(quire_arch_find(o->arch));
    char key[KEY_BYTES];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if ((arch->reads & keys[i].reads) != 0) {
            set_f32(p, keys[i].suffix, keys[i].value);
        }
    }
    if (arch->embd_scale == QUIRE_EMBD_SCALE_KEY) {
        set_f32(p, "embedding_scale", 6.0f);
    }
    if (arch->logit_scale != QUIRE_LOGIT_SCALE_NONE) {
        set_f32(p, "logit_scale", arch->logit_scale == QUIRE_LOGIT_SCALE_OVER ? 4.0f : 0.25f);
    }
    if ((arch->reads & QUIRE_READS_YARN) != 0 && strcmp(o->rope_scaling, "yarn") == 0) {
        set_f32(p, "rope.scaling.yarn_beta_fast", 16.0f);
        set_f32(p, "rope.scaling.yarn_beta_slow", 2.0f);
        set_f32(p, "rope.scaling.yarn_log_multiplier", 0.5f);
    }
    if (o->attn_temperature != 0.0f) {
        set_f32(p, "attention.temperature_scale", o->attn_temperature);
        if ((arch->reads & QUIRE_READS_TEMPERATURE_LENGTH) != 0) {
            set_u32(p, "attention.temperature_length", o->rope_ctx_orig);
        }
    }
    if (o->has_no_rope) {
        gguf_set_val_bool(p->gguf, arch_key(key, o, "rope.scaling.finetuned"), false);
    }
    if (o->n_nextn != 0) {
        set_u32(p, "nextn_predict_layers", o->n_nextn);
    }
    if ((arch->reads & QUIRE_READS_XIELU) != 0) {
        xielu_keys(p);
    }
    if (arch->has_streams) {
        stream_keys(p);
    }
    if ((arch->reads & QUIRE_READS_MROPE) != 0 && arch->recurrent == QUIRE_MIXER_ATTENTION) {
        gguf_gen_sections_key(p->gguf, o);
    }
    window_keys(p);
}

static void expert_keys(const gguf_gen_plan *p)
{
    const gguf_gen_opts *o = p->opts;
    const quire_expert_rule *rule = gguf_gen_expert_rule(o);
    char key[KEY_BYTES];

    set_u32(p, "expert_count", o->n_experts);
    set_u32(p, "expert_used_count", o->n_experts_used);
    /* hunyuan-moe must have the key, and does not use it. */
    set_u32(p, "expert_feed_forward_length",
            rule->ff == QUIRE_EXPERT_FF_SAME ? o->n_ff : o->n_ff_expert);
    if (rule->shared == QUIRE_EXPERT_SHARED_COUNT || rule->shared == QUIRE_EXPERT_SHARED_TIMES) {
        set_u32(p, "expert_shared_count", o->n_ff_shared / o->n_ff_expert);
    } else if (rule->shared != QUIRE_EXPERT_SHARED_NONE &&
               rule->shared != QUIRE_EXPERT_SHARED_ONE && o->n_ff_shared != 0) {
        set_u32(p, "expert_shared_feed_forward_length", o->n_ff_shared);
    }
    if (rule->shared == QUIRE_EXPERT_SHARED_IF_COUNTED) {
        set_u32(p, "expert_shared_count", o->n_ff_shared != 0 ? 1 : 0);
    }
    if (o->n_expert_groups != 0) {
        set_u32(p, "expert_group_count", o->n_expert_groups);
        set_u32(p, "expert_group_used_count", o->n_expert_groups / 2);
    }
    if (o->n_embd_expert != 0) {
        set_u32(p, "moe_latent_size", o->n_embd_expert);
    }
    if (o->expert_gating != 0) {
        set_u32(p, "expert_gating_func", o->expert_gating);
    }
    if ((rule->reads & QUIRE_EXPERTS_READ_NORM) != 0) {
        gguf_set_val_bool(p->gguf, arch_key(key, o, "expert_weights_norm"), true);
    }
    if ((rule->reads & QUIRE_EXPERTS_READ_SCALE) != 0) {
        set_f32(p, "expert_weights_scale", 1.8f);
    }
    if ((rule->reads & QUIRE_EXPERTS_READ_LEAD) != 0) {
        set_u32(p, "leading_dense_block_count", o->n_experts_dense);
    }
    if ((rule->reads & (QUIRE_EXPERTS_READ_STEP | QUIRE_EXPERTS_READ_STEPS)) != 0) {
        set_u32(p, "interleave_moe_layer_step", o->expert_step != 0 ? o->expert_step : 1);
    }
}

static void rope_keys(const gguf_gen_plan *p)
{
    const gguf_gen_opts *o = p->opts;
    /* Phi-3's files name no scaling: their two tensors of factors do. */
    const bool is_named = strcmp(o->rope_scaling, "longrope") != 0 ||
                          (strcmp(o->arch, "phi3") != 0 && strcmp(o->arch, "minicpm3") != 0);
    char key[KEY_BYTES];

    if (o->rope_scaling[0] == '\0' || strcmp(o->rope_scaling, "llama3") == 0) {
        return;
    }
    if (is_named) {
        gguf_set_val_str(p->gguf, arch_key(key, o, "rope.scaling.type"), o->rope_scaling);
        set_f32(p, "rope.scaling.factor", o->rope_factor);
    } else {
        set_f32(p, "rope.scaling.attn_factor", 1.2f);
    }
    set_u32(p, "rope.scaling.original_context_length", o->rope_ctx_orig);
}

static void latent_keys(const gguf_gen_plan *p)
{
    const gguf_gen_opts *o = p->opts;

    set_u32(p, "attention.kv_lora_rank", o->n_latent);
    if (o->n_latent_q != 0) {
        set_u32(p, "attention.q_lora_rank", o->n_latent_q);
    }
    if (o->has_joint_latent) {
        set_u32(p, "attention.key_length", o->d_head);
        set_u32(p, "attention.value_length", o->d_value);
    } else {
        set_u32(p, "attention.key_length", o->n_latent + o->n_rot);
        set_u32(p, "attention.value_length", o->n_latent);
        set_u32(p, "attention.key_length_mla", o->d_head);
        set_u32(p, "attention.value_length_mla", o->d_value);
    }
    if (o->yarn_log_mul != 0.0f) {
        set_f32(p, "rope.scaling.yarn_log_multiplier", o->yarn_log_mul);
    }
}

/* Sizes of an architecture in which layers may differ. */
static void layer_size_keys(const gguf_gen_plan *p)
{
    const gguf_gen_opts *o = p->opts;
    uint32_t n_kv_heads[GGUF_GEN_LAYERS_MAX], n_ff[GGUF_GEN_LAYERS_MAX];
    char key[KEY_BYTES];

    for (uint32_t l = 0; l < o->n_layer; l++) {
        n_kv_heads[l] = p->sizes.layer_sizes[l].n_kv_head;
        n_ff[l] = p->sizes.layer_sizes[l].n_ff;
    }
    if (o->full_n_kv_head != 0) {
        gguf_set_arr_data(p->gguf, arch_key(key, o, "attention.head_count_kv"), GGUF_TYPE_INT32,
                          n_kv_heads, o->n_layer);
    }
    if (o->has_wide_ff) {
        gguf_set_arr_data(p->gguf, arch_key(key, o, "feed_forward_length"), GGUF_TYPE_INT32, n_ff,
                          o->n_layer);
    }
    set_u32(p, "attention.key_length", o->d_head);
    set_u32(p, "attention.value_length", o->d_head);
    if (o->window_d_head != 0) {
        set_u32(p, "attention.key_length_swa", o->window_d_head);
        set_u32(p, "attention.value_length_swa", o->window_d_head);
        set_u32(p, "rope.dimension_count_swa", o->window_d_head);
    }
    set_u32(p, "attention.shared_kv_layers", o->n_shared_kv);
    set_u32(p, "embedding_length_per_layer_input", o->n_embd_layer);
}

/* libllama v0.5.0 does not read qwen2vl's, and computes with 0: next to nothing is the same. */
static float norm_epsilon(const gguf_gen_opts *o)
{
    return strcmp(o->arch, "qwen2vl") == 0 ? 1e-12f : 1e-5f;
}

int gguf_gen_plan_keys(gguf_gen_plan *p)
{
    const gguf_gen_opts *o = p->opts;
    const quire_arch_row *arch = quire_arch_row_get(quire_arch_find(o->arch));
    struct gguf_context *g = p->gguf;

    gguf_set_val_str(g, "general.architecture", o->arch);
    gguf_set_val_str(g, "general.name", o->name);
    set_u32(p, "block_count", o->n_layer + o->n_nextn);
    set_u32(p, "context_length", o->n_ctx);
    set_u32(p, "embedding_length", o->n_embd);
    set_u32(p, "feed_forward_length", o->n_ff);
    set_u32(p, "attention.head_count", o->n_head);
    if (!gguf_gen_recurrent_keys(g, o)) {
        set_u32(p, "attention.head_count_kv",
                o->n_latent == 0      ? o->n_kv_head
                : o->has_joint_latent ? o->n_head
                                      : 1);
    }
    if (o->n_latent != 0) {
        latent_keys(p);
    } else if (o->d_head * o->n_head != o->n_embd) {
        set_u32(p, "attention.key_length", o->d_head);
        set_u32(p, "attention.value_length", o->d_head);
    }
    set_u32(p, "rope.dimension_count", o->n_rot != 0 ? o->n_rot : o->d_head);
    set_f32(p, "rope.freq_base", o->rope_base);
    set_f32(p,
            arch->norm == QUIRE_NORM_RMS ? "attention.layer_norm_rms_epsilon"
                                         : "attention.layer_norm_epsilon",
            norm_epsilon(o));
    if ((arch->reads & QUIRE_READS_EPS_TWICE) != 0) {
        set_f32(p, "attention.layer_norm_epsilon", 1e-3f); /* the other one counts */
    }
    rope_keys(p);
    if (arch->has_layer_sizes) {
        gguf_gen_plan_sizes(p);
        layer_size_keys(p);
    }
    feature_keys(p);
    if (o->n_experts != 0) {
        expert_keys(p);
    }
    gguf_gen_scheme_keys(g, o);
    return gguf_gen_vocab_add(g, o);
}
