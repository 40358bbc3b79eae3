/* describe_tensors.c - every tensor of the file has a place in the model, and every place its
 * tensor.
 *
 * One pass over the file's tensors looks each name up in the architecture's table, checks shape and
 * type, and counts the tensors found for each row of the table. Then every row must have been found
 * once per layer, or once per layer that stores K and V. A tensor without a row is an error, as it
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

#define VOCAB_MAX (1u << 22)
#define ALL_ARCHS ((1u << QUIRE_ARCH_COUNT) - 1u)
#define LLAMA     (1u << QUIRE_ARCH_LLAMA)
#define QWEN2     (1u << QUIRE_ARCH_QWEN2)
#define QWEN3     (1u << QUIRE_ARCH_QWEN3)
#define QUIRE     (1u << QUIRE_ARCH_QUIRE)
#define BIASED    (LLAMA | QWEN2 | QWEN3)

/* The sizes of which shapes consist. */
typedef enum dim {
    DIM_ONE,
    DIM_EMBD,
    DIM_FF,
    DIM_Q,
    DIM_K,
    DIM_V,
    DIM_HEAD,
    DIM_VOCAB,
    DIM_ROPE,
    DIM_MIX, /* factors of layer 0 and of the own layer */
    DIM_GATE /* a gate's tensor is checked by describe_kv_map.c */
} dim;

/* How many tensors of a name a model has. */
typedef enum scope {
    MODEL,
    LAYER,
    STORED_LAYER /* one in each layer that stores K and V */
} scope;

typedef enum presence {
    REQUIRED,
    OPTIONAL,
    BIAS, /* in every layer or in none, together with the other rows of this kind */
    NORM  /* likewise */
} presence;

/* Vectors have rows == DIM_ONE and are f32; the others are matrices. */
typedef struct row {
    const char *name; /* after "blk.N.", except of MODEL */
    uint8_t archs;
    scope where;
    presence need;
    dim columns;
    dim rows;
} row;

static const row table[] = {
    { "token_embd.weight", ALL_ARCHS, MODEL, REQUIRED, DIM_EMBD, DIM_VOCAB },
    { "output_norm.weight", ALL_ARCHS, MODEL, REQUIRED, DIM_EMBD, DIM_ONE },
    { "output.weight", ALL_ARCHS, MODEL, OPTIONAL, DIM_EMBD, DIM_VOCAB },
    { "output.bias", QWEN2, MODEL, OPTIONAL, DIM_VOCAB, DIM_ONE },
    { "rope_freqs.weight", LLAMA | QUIRE, MODEL, OPTIONAL, DIM_ROPE, DIM_ONE },
    { "attn_norm.weight", ALL_ARCHS, LAYER, REQUIRED, DIM_EMBD, DIM_ONE },
    { "attn_q.weight", ALL_ARCHS, LAYER, REQUIRED, DIM_EMBD, DIM_Q },
    { "attn_k.weight", ALL_ARCHS, STORED_LAYER, REQUIRED, DIM_EMBD, DIM_K },
    { "attn_v.weight", ALL_ARCHS, STORED_LAYER, REQUIRED, DIM_EMBD, DIM_V },
    { "attn_q.bias", BIASED, LAYER, BIAS, DIM_Q, DIM_ONE },
    { "attn_k.bias", BIASED, STORED_LAYER, BIAS, DIM_K, DIM_ONE },
    { "attn_v.bias", BIASED, STORED_LAYER, BIAS, DIM_V, DIM_ONE },
    { "attn_q_norm.weight", QWEN3, LAYER, REQUIRED, DIM_HEAD, DIM_ONE },
    { "attn_k_norm.weight", QWEN3, STORED_LAYER, REQUIRED, DIM_HEAD, DIM_ONE },
    { "attn_q_norm.weight", QUIRE, LAYER, NORM, DIM_HEAD, DIM_ONE },
    { "attn_k_norm.weight", QUIRE, STORED_LAYER, NORM, DIM_HEAD, DIM_ONE },
    { "attn_k_mix", QUIRE, STORED_LAYER, OPTIONAL, DIM_MIX, DIM_ONE },
    { "attn_v_mix", QUIRE, STORED_LAYER, OPTIONAL, DIM_MIX, DIM_ONE },
    { "attn_k_gate.0", QUIRE, LAYER, OPTIONAL, DIM_GATE, DIM_ONE },
    { "attn_k_gate.1", QUIRE, LAYER, OPTIONAL, DIM_GATE, DIM_ONE },
    { "attn_v_gate.0", QUIRE, LAYER, OPTIONAL, DIM_GATE, DIM_ONE },
    { "attn_v_gate.1", QUIRE, LAYER, OPTIONAL, DIM_GATE, DIM_ONE },
    { "attn_output.weight", ALL_ARCHS, LAYER, REQUIRED, DIM_Q, DIM_EMBD },
    { "attn_output.bias", LLAMA, LAYER, OPTIONAL, DIM_EMBD, DIM_ONE },
    { "ffn_norm.weight", ALL_ARCHS, LAYER, REQUIRED, DIM_EMBD, DIM_ONE },
    { "ffn_gate.weight", ALL_ARCHS, LAYER, REQUIRED, DIM_EMBD, DIM_FF },
    { "ffn_up.weight", ALL_ARCHS, LAYER, REQUIRED, DIM_EMBD, DIM_FF },
    { "ffn_down.weight", ALL_ARCHS, LAYER, REQUIRED, DIM_FF, DIM_EMBD },
    { "ffn_gate.bias", LLAMA, LAYER, OPTIONAL, DIM_FF, DIM_ONE },
    { "ffn_up.bias", LLAMA, LAYER, OPTIONAL, DIM_FF, DIM_ONE },
    { "ffn_down.bias", LLAMA, LAYER, OPTIONAL, DIM_EMBD, DIM_ONE },
};
#define N_ROWS (sizeof(table) / sizeof(table[0]))

static int64_t dim_size(const quire_model_desc *desc, dim which)
{
    switch (which) {
    case DIM_EMBD:
        return desc->n_embd;
    case DIM_FF:
        return desc->n_ff;
    case DIM_Q:
        return (int64_t)desc->n_head * desc->d_k;
    case DIM_K:
        return (int64_t)desc->n_kv_head * desc->d_k;
    case DIM_V:
        return (int64_t)desc->n_kv_head * desc->d_v;
    case DIM_HEAD:
        return desc->d_k;
    case DIM_VOCAB:
        return desc->n_vocab;
    case DIM_ROPE:
        return desc->rope.n_dims / 2;
    case DIM_MIX:
        return 2;
    case DIM_GATE:
    case DIM_ONE:
        break;
    }
    return 1;
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

/* The table's row for a tensor name, N_ROWS if it has none in this model. */
static size_t row_find(const quire_model_desc *desc, const char *name)
{
    const char *rest = name;
    int32_t layer = layer_of(name, &rest);

    if (layer >= (int32_t)desc->n_layer) {
        return N_ROWS;
    }
    for (size_t i = 0; i < N_ROWS; i++) {
        if ((table[i].archs & (1u << desc->arch)) != 0 &&
            (table[i].where != MODEL) == (layer >= 0) && strcmp(table[i].name, rest) == 0) {
            return i;
        }
    }
    return N_ROWS;
}

/* Types that ggml's CPU backend accepts for the left side of a product and for rows to look up.
 * Both lists have all block types except two that hold intermediate results. */
static bool is_matrix_type(enum ggml_type type)
{
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           (ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K);
}

static int gate_check(const quire_gguf *file, quire_model_desc *desc, const row *r,
                      const struct ggml_tensor *t, quire_error *err)
{
    const char *rest = t->name;
    const quire_gate_place place = { .layer = (uint32_t)layer_of(t->name, &rest),
                                     .source = (uint32_t)(r->name[strlen(r->name) - 1] - '0'),
                                     .is_k = r->name[strlen("attn_")] == 'k' };

    return quire_describe_gate(file, desc, place, t, err);
}

static int tensor_check(const quire_gguf *file, const quire_model_desc *desc, const row *r,
                        const struct ggml_tensor *t, quire_error *err)
{
    int64_t columns = dim_size(desc, r->columns);
    int64_t rows = dim_size(desc, r->rows);
    bool is_vector = r->rows == DIM_ONE;

    if (t->ne[0] != columns || t->ne[1] != rows || t->ne[2] != 1 || t->ne[3] != 1) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s has shape %" PRId64 " x %" PRId64 " x %" PRId64
                               " x %" PRId64 "; expected %" PRId64 " x %" PRId64 " (damaged file?)",
                               quire_gguf_path(file), t->name, t->ne[0], t->ne[1], t->ne[2],
                               t->ne[3], columns, rows);
    }
    if (is_vector ? t->type != GGML_TYPE_F32 : !is_matrix_type(t->type)) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: tensor %s is of type %s; supported here: %s",
                               quire_gguf_path(file), t->name, ggml_type_name(t->type),
                               is_vector ? "f32" : "f32, f16, bf16 and quantised types");
    }
    return QUIRE_OK;
}

/* Layer 0 has no layer below to mix with. */
static int mix_check(const quire_gguf *file, const row *r, const struct ggml_tensor *t,
                     quire_error *err)
{
    const char *rest = t->name;

    if (r->columns == DIM_MIX && layer_of(t->name, &rest) == 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s mixes layer 0 with itself; layers above it may have "
                               "such a tensor",
                               quire_gguf_path(file), t->name);
    }
    return QUIRE_OK;
}

/* A layer that stores nothing has no use for tensors that make K or V. */
static int unstored_check(const quire_gguf *file, const quire_model_desc *desc, const row *r,
                          const struct ggml_tensor *t, quire_error *err)
{
    const char *rest = t->name;

    if (r->where == STORED_LAYER && desc->kv_map[layer_of(t->name, &rest)].stored < 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: tensor %s belongs to a layer that stores no K and V "
                               "(%s.attention.kv_source_k)",
                               quire_gguf_path(file), t->name, desc->arch_name);
    }
    return QUIRE_OK;
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
static int missing_error(const quire_gguf *file, const quire_model_desc *desc, const row *r,
                         quire_error *err)
{
    char name[GGML_MAX_NAME];

    (void)snprintf(name, sizeof(name), "%s", r->name);
    for (uint32_t l = 0; r->where != MODEL && l < desc->n_layer; l++) {
        if (r->where == STORED_LAYER && desc->kv_map[l].stored < 0) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "blk.%u.%s", l, r->name);
        if (gguf_find_tensor(quire_gguf_context(file), name) < 0) {
            break;
        }
    }
    return quire_error_set(err, QUIRE_CORRUPT,
                           "%s: tensor %s is missing (%s with %u layers; damaged file?)",
                           quire_gguf_path(file), name, desc->arch_name, desc->n_layer);
}

static uint32_t count_expected(const quire_model_desc *desc, const row *r)
{
    switch (r->where) {
    case LAYER:
        return desc->n_layer;
    case STORED_LAYER:
        return desc->n_stored;
    case MODEL:
        break;
    }
    return 1;
}

static bool is_needed(const quire_model_desc *desc, const row *r)
{
    return (r->archs & (1u << desc->arch)) != 0 &&
           (r->need == REQUIRED || (r->need == BIAS && desc->has_qkv_bias) ||
            (r->need == NORM && desc->has_qk_norm));
}

static int counts_check(const quire_gguf *file, quire_model_desc *desc, const uint32_t *counts,
                        quire_error *err)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        desc->has_qkv_bias = desc->has_qkv_bias || (table[i].need == BIAS && counts[i] > 0);
        desc->has_qk_norm = desc->has_qk_norm || (table[i].need == NORM && counts[i] > 0);
    }
    for (size_t i = 0; i < N_ROWS; i++) {
        const row *r = &table[i];

        if (is_needed(desc, r) && counts[i] != count_expected(desc, r)) {
            return missing_error(file, desc, r, err);
        }
        if (strcmp(r->name, "output.weight") == 0) {
            desc->has_tied_output = counts[i] == 0;
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
        return missing_error(file, desc, &table[0], err);
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
    uint32_t counts[N_ROWS] = { 0 };
    uint32_t type_counts[GGML_TYPE_COUNT] = { 0 };

    QUIRE_TRY(vocab_size_get(file, desc, err));
    for (struct ggml_tensor *t = ggml_get_first_tensor(meta); t != NULL;
         t = ggml_get_next_tensor(meta, t)) {
        size_t i = row_find(desc, t->name);

        if (i == N_ROWS) {
            return stray_error(file, desc, t->name, err);
        }
        QUIRE_TRY(unstored_check(file, desc, &table[i], t, err));
        QUIRE_TRY(mix_check(file, &table[i], t, err));
        if (table[i].columns == DIM_GATE) {
            QUIRE_TRY(gate_check(file, desc, &table[i], t, err));
        } else {
            QUIRE_TRY(tensor_check(file, desc, &table[i], t, err));
        }
        counts[i]++;
        type_counts[t->type] += table[i].rows != DIM_ONE;
        desc->n_params += (uint64_t)ggml_nelements(t);
        desc->weight_bytes += ggml_nbytes(t);
    }
    QUIRE_TRY(counts_check(file, desc, counts, err));
    file_type_fill(desc, type_counts);
    return QUIRE_OK;
}
