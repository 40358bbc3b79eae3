/* describe_tensors.c - every tensor of the file has a place in the model, and every place its
 * tensor.
 *
 * One pass over the file's tensors looks each name up in the table of tensors, among the parts of
 * the architecture, checks shape and type, and counts the tensors found for each row of the table.
 * Then every row of a part that the model needs must have been found once per layer, or once per
 * layer that stores K and V. A tensor without a row is an error, as it
 * is in libllama: a model computed without one of its tensors gives wrong text, not an error.
 *
 * SPDX-License-Identifier: MIT */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "model/describe_internal.h"
#include "model/gguf_scan.h"
#include "model/tensor_table.h"

#define VOCAB_MAX (1u << 22)
#define ROWS_MAX  QUIRE_TENSOR_ROWS_MAX

/* The parts that a file of this description may have. Frequency factors come by the length of the
 * context or as one tensor: which of the two depends on the scaling that the file names. */
static quire_part parts_allowed(const quire_model_desc *desc)
{
    const quire_arch_row *arch = quire_arch_row_get(desc->arch);
    quire_part parts = arch->needs | arch->may;

    if ((parts & QUIRE_PART_ROPE_FREQS) != 0 && desc->rope.scaling == QUIRE_ROPE_SCALING_LONGROPE) {
        parts = (parts & ~QUIRE_PART_ROPE_FREQS) | QUIRE_PART_ROPE_FACTORS;
    }
    return parts;
}

static bool is_vector(const quire_tensor_row *r)
{
    return r->rows == QUIRE_DIM_ONE;
}

/* The N of "blk.N." in canonical decimal, with *rest after the second dot; -1 if name is not of
 * that form. */
static int32_t layer_of(const char *name, const char **rest)
{
    const char *digits = name + 4;
    int32_t layer = 0;
    size_t n = 0;

    if (strncmp(name, "blk.", 4) != 0) {
        return -1;
    }
    while (n < 4 && isdigit((unsigned char)digits[n])) {
        layer = layer * 10 + (digits[n] - '0');
        n++;
    }
    if (n == 0 || digits[n] != '.' || (digits[0] == '0' && n > 1)) {
        return -1;
    }
    *rest = digits + n + 1;
    return layer;
}

/* The table's row for a tensor name, ROWS_MAX if it has none in this model. */
static size_t row_find(const quire_model_desc *desc, const char *name)
{
    const quire_part parts = parts_allowed(desc);
    const char *rest = name;
    const int32_t layer = layer_of(name, &rest);
    const quire_tensor_row *r;

    if (layer >= (int32_t)desc->n_layer) {
        return ROWS_MAX;
    }
    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        if ((parts & r->part) != 0 && (r->where != QUIRE_TENSOR_OF_MODEL) == (layer >= 0) &&
            strcmp(r->name, rest) == 0) {
            return i;
        }
    }
    return ROWS_MAX;
}

/* A tensor of a layer that predicts further tokens, or K and V of a layer that reads another one's:
 * libllama does not use these either. r: the row of the name, NULL if it has none. */
static bool is_left_out(const quire_model_desc *desc, const quire_tensor_row *r, const char *name)
{
    const char *rest = name;
    const int32_t layer = layer_of(name, &rest);

    if (layer >= (int32_t)desc->n_layer) {
        return layer < (int32_t)desc->n_layer_file;
    }
    return r != NULL && r->where == QUIRE_TENSOR_OF_STORED_LAYER &&
           quire_arch_row_get(desc->arch)->has_shared_kv &&
           !quire_tensor_is_in_layer(desc, r, (uint32_t)layer);
}

/* Types that ggml's CPU backend accepts for the left side of a product and for rows to look up.
 * Both lists have all block types except two that hold intermediate results. */
static bool is_matrix_type(enum ggml_type type)
{
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           (ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K);
}

static int gate_check(const quire_gguf *file, quire_model_desc *desc, const quire_tensor_row *r,
                      const struct ggml_tensor *t, quire_error *err)
{
    const char *rest = t->name;
    const quire_gate_place place = { .layer = (uint32_t)layer_of(t->name, &rest),
                                     .source = (uint32_t)(r->name[strlen(r->name) - 1] - '0'),
                                     .is_k = r->name[strlen("attn_")] == 'k' };

    return quire_describe_gate(file, desc, place, t, err);
}

static int tensor_check(const quire_gguf *file, const quire_model_desc *desc,
                        const quire_tensor_row *r, const struct ggml_tensor *t, quire_error *err)
{
    const char *rest = t->name;
    const uint32_t layer =
        r->where == QUIRE_TENSOR_OF_MODEL ? 0 : (uint32_t)layer_of(t->name, &rest);
    const int64_t columns = quire_dim_size(desc, r->columns, layer);
    const int64_t deep = quire_dim_size(desc, r->depth, layer);
    /* Vectors one behind the other are rows of a matrix. */
    const int64_t rows = is_vector(r) ? deep : quire_dim_size(desc, r->rows, layer);
    const int64_t depth = is_vector(r) ? 1 : deep;

    if (t->ne[0] != columns || t->ne[1] != rows || t->ne[2] != depth || t->ne[3] != 1) {
        char deep_text[32] = "";

        if (depth > 1) {
            (void)snprintf(deep_text, sizeof(deep_text), " x %" PRId64, depth);
        }
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s has shape %" PRId64 " x %" PRId64 " x %" PRId64
                               " x %" PRId64 "; expected %" PRId64 " x %" PRId64
                               "%s (damaged file?)",
                               quire_gguf_path(file), t->name, t->ne[0], t->ne[1], t->ne[2],
                               t->ne[3], columns, rows, deep_text);
    }
    if (is_vector(r) ? t->type != GGML_TYPE_F32 : !is_matrix_type(t->type)) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: tensor %s is of type %s; supported here: %s",
                               quire_gguf_path(file), t->name, ggml_type_name(t->type),
                               is_vector(r) ? "f32" : "f32, f16, bf16 and quantised types");
    }
    return QUIRE_OK;
}

/* Layer 0 has no layer below to mix with. */
static int mix_check(const quire_gguf *file, const quire_tensor_row *r, const struct ggml_tensor *t,
                     quire_error *err)
{
    const char *rest = t->name;

    if (r->columns == QUIRE_DIM_MIX && layer_of(t->name, &rest) == 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s mixes layer 0 with itself; layers above it may have "
                               "such a tensor",
                               quire_gguf_path(file), t->name);
    }
    return QUIRE_OK;
}

/* A layer that stores nothing has no use for tensors that make K or V. A layer has attention or a
 * convolution, and a network or experts. */
static int layer_check(const quire_gguf *file, const quire_model_desc *desc,
                       const quire_tensor_row *r, const struct ggml_tensor *t, quire_error *err)
{
    const char *rest = t->name;
    const int32_t layer = layer_of(t->name, &rest);
    const bool is_recurrent = r->where == QUIRE_TENSOR_OF_CONV_LAYER ||
                              r->where == QUIRE_TENSOR_OF_DELTA_LAYER ||
                              r->where == QUIRE_TENSOR_OF_MAMBA_LAYER;

    if (layer < 0 || quire_tensor_is_in_layer(desc, r, (uint32_t)layer)) {
        return QUIRE_OK;
    }
    if (quire_arch_row_get(desc->arch)->is_single) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s belongs to a layer of another kind "
                               "(%s.attention.head_count_kv and feed_forward_length)",
                               quire_gguf_path(file), t->name, desc->arch_name);
    }
    if (r->where == QUIRE_TENSOR_OF_ATTENTION_LAYER || is_recurrent ||
        (r->where == QUIRE_TENSOR_OF_STORED_LAYER && desc->recurrent.n_layers > 0)) {
        return quire_error_set(
            err, QUIRE_CORRUPT, "%s: tensor %s belongs to a layer %s attention (%s.%s)",
            quire_gguf_path(file), t->name, is_recurrent ? "with" : "without", desc->arch_name,
            quire_arch_row_get(desc->arch)->recurrent == QUIRE_MIXER_DELTA_NET
                ? "full_attention_interval"
                : "attention.head_count_kv");
    }
    if (r->where == QUIRE_TENSOR_OF_STORED_LAYER) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s belongs to a layer that stores no K and V "
                               "(%s.attention.kv_source_k)",
                               quire_gguf_path(file), t->name, desc->arch_name);
    }
    if ((r->part & QUIRE_PART_LATENT) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s does not fit the other tensors, or the keys "
                               "%s.attention.q_lora_rank and key_length_mla (damaged file?)",
                               quire_gguf_path(file), t->name, desc->arch_name);
    }
    return quire_error_set(err, QUIRE_CORRUPT,
                           "%s: tensor %s belongs to a layer %s experts (%u experts, the first %u "
                           "layers have none)",
                           quire_gguf_path(file), t->name,
                           r->where == QUIRE_TENSOR_OF_DENSE_LAYER ? "with" : "without such",
                           desc->experts.router.n_experts, desc->experts.n_dense);
}

static int stray_error(const quire_gguf *file, const quire_model_desc *desc, const char *raw,
                       quire_error *err)
{
    char name[GGML_MAX_NAME];

    return quire_error_set(err, QUIRE_UNSUPP,
                           "%s: tensor %s has no place in a %s model of %u layers; a variant that "
                           "is not supported, or a damaged file",
                           quire_gguf_path(file),
                           quire_gguf_printable(name, sizeof(name), raw, strlen(raw)),
                           desc->arch_name, desc->n_layer);
}

/* Name the first layer that lacks the row's tensor. */
static int missing_error(const quire_gguf *file, const quire_model_desc *desc,
                         const quire_tensor_row *r, quire_error *err)
{
    char name[GGML_MAX_NAME];

    (void)snprintf(name, sizeof(name), "%s", r->name);
    for (uint32_t l = 0; r->where != QUIRE_TENSOR_OF_MODEL && l < desc->n_layer; l++) {
        if (!quire_tensor_is_in_layer(desc, r, l)) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "blk.%u.%s", l, r->name);
        if (ggml_get_tensor(quire_gguf_meta(file), name) == NULL) {
            break;
        }
    }
    return quire_error_set(err, QUIRE_CORRUPT,
                           "%s: tensor %s is missing (%s with %u layers; damaged file?)",
                           quire_gguf_path(file), name, desc->arch_name, desc->n_layer);
}

static uint32_t count_expected(const quire_model_desc *desc, const quire_tensor_row *r)
{
    uint32_t n = r->where == QUIRE_TENSOR_OF_MODEL;

    for (uint32_t l = 0; r->where != QUIRE_TENSOR_OF_MODEL && l < desc->n_layer; l++) {
        n += quire_tensor_is_in_layer(desc, r, l);
    }
    return n;
}

/* The parts of the file's layers: the required parts, and each optional part with a tensor in the
 * file. A fused tensor stands for the three parts inside. */
static void parts_fill(quire_model_desc *desc, const uint32_t *counts)
{
    const quire_arch_row *arch = quire_arch_row_get(desc->arch);
    const quire_tensor_row *r;

    desc->parts = arch->needs;
    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        desc->parts |= counts[i] > 0 ? r->part : 0;
    }
    desc->parts |= desc->n_embd_layer != 0 ? QUIRE_PART_LAYER_EMBD : 0;
    desc->parts |= desc->experts.n_embd != 0 ? QUIRE_PART_EXPERTS_NARROW : 0;
    if ((desc->parts & QUIRE_PART_QKV_FUSED) != 0) {
        desc->parts &= ~QUIRE_PART_QKV;
    }
    if ((desc->parts & QUIRE_PART_EXPERTS_FUSED) != 0) {
        desc->parts &= ~QUIRE_PART_EXPERTS_APART;
    }
    desc->has_qkv_bias = (desc->parts & (QUIRE_PART_QKV_BIAS | QUIRE_PART_QKV_BIAS_FUSED)) != 0;
    desc->has_qk_norm = (desc->parts & (QUIRE_PART_QK_NORM | QUIRE_PART_QK_NORM_ROW)) != 0;
    desc->has_tied_output = (desc->parts & QUIRE_PART_OUTPUT) == 0;
}

/* Q, K and V, or their biases, come in one tensor or in three, gates and ups of experts in one or
 * in two. */
static int twice_check(const quire_gguf *file, const quire_model_desc *desc, const uint32_t *counts,
                       quire_error *err)
{
    const quire_tensor_row *r;

    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        const bool is_twice =
            (r->part == QUIRE_PART_QKV && (desc->parts & QUIRE_PART_QKV_FUSED) != 0) ||
            (r->part == QUIRE_PART_QKV_BIAS && (desc->parts & QUIRE_PART_QKV_BIAS_FUSED) != 0);

        if (is_twice && counts[i] > 0) {
            return quire_error_set(err, QUIRE_CORRUPT,
                                   "%s: tensors %s and attn_qkv.%s are both there; a layer has "
                                   "one of them (damaged file?)",
                                   quire_gguf_path(file), r->name, strchr(r->name, '.') + 1);
        }
        if (r->part == QUIRE_PART_EXPERTS_APART && counts[i] > 0 &&
            (desc->parts & QUIRE_PART_EXPERTS_FUSED) != 0) {
            return quire_error_set(err, QUIRE_CORRUPT,
                                   "%s: tensors %s and ffn_gate_up_exps.weight are both there; a "
                                   "layer has one of them (damaged file?)",
                                   quire_gguf_path(file), r->name);
        }
    }
    return QUIRE_OK;
}

static int counts_check(const quire_gguf *file, quire_model_desc *desc, const uint32_t *counts,
                        quire_error *err)
{
    const quire_arch_row *arch = quire_arch_row_get(desc->arch);
    const quire_tensor_row *r;

    parts_fill(desc, counts);
    QUIRE_TRY(twice_check(file, desc, counts, err));
    for (size_t i = 0; (r = quire_tensor_row_get(i)) != NULL; i++) {
        const bool is_needed = (desc->parts & r->part & (arch->needs | QUIRE_PARTS_GROUPED)) != 0;

        if (is_needed && counts[i] != count_expected(desc, r)) {
            return missing_error(file, desc, r, err);
        }
    }
    return quire_describe_gates_check(file, desc, err);
}

/* The number of tokens, twice in the file: rows of the embedding and strings of the vocabulary. */
static int vocab_size_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    const struct ggml_tensor *t = ggml_get_tensor(quire_gguf_meta(file), "token_embd.weight");
    int64_t key = gguf_find_key(gguf, "tokenizer.ggml.tokens");

    if (t == NULL) {
        return missing_error(file, desc, quire_tensor_row_get(0), err);
    }
    if (t->ne[1] > VOCAB_MAX) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s has %" PRId64 " rows; expected 1..%u (damaged file?)",
                               quire_gguf_path(file), t->name, t->ne[1], VOCAB_MAX);
    }
    desc->n_vocab = (uint32_t)t->ne[1];
    desc->embd_bytes = ggml_nbytes(t);
    if (key >= 0 && gguf_get_kv_type(gguf, key) == GGUF_TYPE_ARRAY &&
        gguf_get_arr_n(gguf, key) != desc->n_vocab) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tokenizer.ggml.tokens has %zu elements; expected %u, the rows "
                               "of %s (damaged file?)",
                               quire_gguf_path(file), gguf_get_arr_n(gguf, key), desc->n_vocab,
                               t->name);
    }
    return QUIRE_OK;
}

/* "Q8_0": the type that most matrices have. */
static void file_type_fill(quire_model_desc *desc, const uint32_t *type_counts)
{
    enum ggml_type best = GGML_TYPE_F32;
    const char *name;
    size_t i;

    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        best = type_counts[type] > type_counts[best] ? (enum ggml_type)type : best;
    }
    name = ggml_type_name(best);
    for (i = 0; name[i] != '\0' && i < sizeof(desc->file_type) - 1; i++) {
        desc->file_type[i] = (char)toupper((unsigned char)name[i]);
    }
    desc->file_type[i] = '\0';
}

int quire_describe_tensors(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    struct ggml_context *meta = quire_gguf_meta(file);
    uint32_t counts[ROWS_MAX] = { 0 };
    uint32_t type_counts[GGML_TYPE_COUNT] = { 0 };

    QUIRE_TRY(vocab_size_get(file, desc, err));
    for (struct ggml_tensor *t = ggml_get_first_tensor(meta); t != NULL;
         t = ggml_get_next_tensor(meta, t)) {
        const size_t i = row_find(desc, t->name);
        const quire_tensor_row *r = quire_tensor_row_get(i);

        if (is_left_out(desc, r, t->name)) {
            continue;
        }
        if (r == NULL) {
            return stray_error(file, desc, t->name, err);
        }
        QUIRE_TRY(layer_check(file, desc, r, t, err));
        QUIRE_TRY(mix_check(file, r, t, err));
        if (r->columns == QUIRE_DIM_GATE) {
            QUIRE_TRY(gate_check(file, desc, r, t, err));
        } else {
            QUIRE_TRY(tensor_check(file, desc, r, t, err));
        }
        counts[i]++;
        type_counts[t->type] += !is_vector(r);
        desc->n_params += (uint64_t)ggml_nelements(t);
        desc->weight_bytes += ggml_nbytes(t);
    }
    QUIRE_TRY(counts_check(file, desc, counts, err));
    file_type_fill(desc, type_counts);
    return QUIRE_OK;
}
