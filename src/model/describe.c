/* describe.c - a GGUF file's keys as a model description.
 *
 * The meaning of every key and the default of every absent one are libllama's (its llama-model.cpp
 * and llama-context.cpp at ggml 0.25.1), because the perplexity must be the same. The architecture
 * quire is Quire's own; the keys that it shares with qwen3 mean the same.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"
#include "model/gguf_scan.h"

/* Far above today's models, low enough that the product of two sizes fits 64 bits and one size fits
 * a tensor. */
#define EMBD_MAX    (1u << 17)
#define FF_MAX      (1u << 20)
#define HEADS_MAX   1024u
#define CTX_MAX     (1u << 27)
#define POOLING_MAX 4u

typedef struct arch_entry {
    const char *name;
    quire_arch arch;
    quire_rope_type rope_type;
    bool has_qk_norm;
} arch_entry;

static const arch_entry archs[QUIRE_ARCH_COUNT] = {
    { "llama", QUIRE_ARCH_LLAMA, QUIRE_ROPE_NORMAL, false },
    { "qwen2", QUIRE_ARCH_QWEN2, QUIRE_ROPE_NEOX, false },
    { "qwen3", QUIRE_ARCH_QWEN3, QUIRE_ROPE_NEOX, true },
    { "quire", QUIRE_ARCH_QUIRE, QUIRE_ROPE_NEOX, false }, /* qk-norm: if its tensors are there */
};

/* A string of the file, or "" when it is absent, as printable text. */
static int text_get(const quire_gguf *file, const char *key, char *buffer, size_t cap,
                    quire_error *err)
{
    const char *raw = "";

    QUIRE_TRY(quire_gguf_get_str(file, key, false, &raw, err));
    (void)quire_gguf_printable(buffer, cap, raw, strlen(raw));
    return QUIRE_OK;
}

static int arch_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const char *raw = NULL;
    char text[64];

    QUIRE_TRY(quire_gguf_get_str(file, "general.architecture", true, &raw, err));
    for (size_t i = 0; i < QUIRE_ARCH_COUNT; i++) {
        if (strcmp(raw, archs[i].name) == 0) {
            desc->arch = archs[i].arch;
            desc->rope.type = archs[i].rope_type;
            desc->has_qk_norm = archs[i].has_qk_norm;
            (void)snprintf(desc->arch_name, sizeof(desc->arch_name), "%s", archs[i].name);
            return QUIRE_OK;
        }
    }
    return quire_error_set(
        err, QUIRE_UNSUPP,
        "%s: architecture '%s' is not supported (supported: llama, qwen2, qwen3, quire); choose a "
        "model of one of those",
        quire_gguf_path(file), quire_gguf_printable(text, sizeof(text), raw, strlen(raw)));
}

/* Refuse a file that is not one whole model. */
static int kind_check(const quire_gguf *file, quire_error *err)
{
    uint32_t n_split = 1;
    char type[32];

    QUIRE_TRY(quire_gguf_get_u32(file, "split.count", (quire_gguf_range){ 0, UINT16_MAX, false },
                                 &n_split, err));
    if (n_split > 1) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: one of %u parts of a split model; join them first "
                               "(llama-gguf-split --merge)",
                               quire_gguf_path(file), n_split);
    }
    QUIRE_TRY(text_get(file, "general.type", type, sizeof(type), err));
    if (type[0] != '\0' && strcmp(type, "model") != 0) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: general.type is '%s'; expected a model",
                               quire_gguf_path(file), type);
    }
    return QUIRE_OK;
}

/* Refuse features of these architectures that change the result and that Quire does not have. */
static int features_check(const quire_gguf *file, const quire_model_desc *desc, quire_error *err)
{
    static const char *const counts[] = { "expert_count", "nextn_predict_layers" };
    bool is_causal = true;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        uint32_t n = 0;

        (void)quire_gguf_key(key, desc->arch_name, counts[i]);
        QUIRE_TRY(
            quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, UINT32_MAX, false }, &n, err));
        if (n != 0) {
            return quire_error_set(err, QUIRE_UNSUPP, "%s: %s is %u; not supported (supported: 0)",
                                   quire_gguf_path(file), key, n);
        }
    }
    (void)quire_gguf_key(key, desc->arch_name, "attention.causal");
    QUIRE_TRY(quire_gguf_get_bool(file, key, &is_causal, err));
    if (!is_causal) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: %s is false; models that do not generate are not supported",
                               quire_gguf_path(file), key);
    }
    return QUIRE_OK;
}

static int sizes_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    const char *arch = desc->arch_name;
    uint32_t n;

    QUIRE_TRY(quire_gguf_get_u32(file, quire_gguf_key(key, arch, "block_count"),
                                 (quire_gguf_range){ 1, QUIRE_LAYERS_MAX, true }, &desc->n_layer,
                                 err));
    n = desc->n_layer;
    QUIRE_TRY(quire_gguf_get_u32(file, quire_gguf_key(key, arch, "context_length"),
                                 (quire_gguf_range){ 1, CTX_MAX, true }, &desc->n_ctx_train, err));
    QUIRE_TRY(quire_gguf_get_u32(file, quire_gguf_key(key, arch, "pooling_type"),
                                 (quire_gguf_range){ 0, POOLING_MAX, false }, &desc->pooling, err));
    QUIRE_TRY(quire_gguf_get_u32(file, quire_gguf_key(key, arch, "embedding_length"),
                                 (quire_gguf_range){ 1, EMBD_MAX, true }, &desc->n_embd, err));
    QUIRE_TRY(quire_gguf_get_u32_or_array(file, quire_gguf_key(key, arch, "feed_forward_length"), n,
                                          (quire_gguf_range){ 1, FF_MAX, true }, &desc->n_ff, err));
    QUIRE_TRY(quire_gguf_get_u32_or_array(file, quire_gguf_key(key, arch, "attention.head_count"),
                                          n, (quire_gguf_range){ 1, HEADS_MAX, true },
                                          &desc->n_head, err));
    desc->n_kv_head = desc->n_head;
    QUIRE_TRY(quire_gguf_get_u32_or_array(
        file, quire_gguf_key(key, arch, "attention.head_count_kv"), n,
        (quire_gguf_range){ 1, desc->n_head, false }, &desc->n_kv_head, err));
    if (desc->n_head % desc->n_kv_head != 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %u; expected a divisor of the %u query heads (damaged "
                               "file?)",
                               quire_gguf_path(file), key, desc->n_kv_head, desc->n_head);
    }
    return quire_gguf_get_f32(file, quire_gguf_key(key, arch, "attention.layer_norm_rms_epsilon"),
                              (quire_gguf_range_f32){ 0.0f, 1.0f, true }, &desc->rms_eps, err);
}

static int head_dims_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_gguf_range range = { 1, UINT32_MAX, false };
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    desc->d_k = desc->d_v = desc->n_embd / desc->n_head;
    (void)quire_gguf_key(key, desc->arch_name, "attention.value_length");
    QUIRE_TRY(quire_gguf_get_u32(file, key, range, &desc->d_v, err));
    (void)quire_gguf_key(key, desc->arch_name, "attention.key_length");
    QUIRE_TRY(quire_gguf_get_u32(file, key, range, &desc->d_k, err));
    if (desc->d_k % QUIRE_HEAD_DIM_MULTIPLE != 0 || desc->d_k == 0 ||
        desc->d_k > QUIRE_HEAD_DIM_MAX) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: %s is %u (embedding_length %u, %u heads); supported: multiples "
                               "of %u up to %u",
                               quire_gguf_path(file), key, desc->d_k, desc->n_embd, desc->n_head,
                               QUIRE_HEAD_DIM_MULTIPLE, QUIRE_HEAD_DIM_MAX);
    }
    /* libllama's graphs of these architectures assert the same. */
    if (desc->d_v != desc->d_k) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: %s is %u but value_length is %u; supported: equal ones",
                               quire_gguf_path(file), key, desc->d_k, desc->d_v);
    }
    desc->attn_scale = 1.0f / sqrtf((float)desc->d_k);
    return QUIRE_OK;
}

int quire_gguf_describe(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    memset(desc, 0, sizeof(*desc));
    QUIRE_TRY(kind_check(file, err));
    QUIRE_TRY(arch_get(file, desc, err));
    QUIRE_TRY(text_get(file, "general.name", desc->name, sizeof(desc->name), err));
    QUIRE_TRY(features_check(file, desc, err));
    QUIRE_TRY(sizes_get(file, desc, err));
    QUIRE_TRY(head_dims_get(file, desc, err));
    QUIRE_TRY(quire_describe_rope(file, desc, err));
    if (desc->arch == QUIRE_ARCH_QUIRE) {
        QUIRE_TRY(quire_describe_kv_map(file, desc, err));
    } else {
        quire_kv_map_plain(desc);
    }
    QUIRE_TRY(quire_describe_tensors(file, desc, err));
    desc->fingerprint = quire_fingerprint(file, desc);
    return QUIRE_OK;
}
