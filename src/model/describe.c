/* describe.c - a GGUF file's keys as a model description.
 *
 * The meaning of every key and the default of every absent one are libllama's (its llama-model.cpp
 * and llama-context.cpp at ggml 0.25.1), because the perplexity must be the same. The architecture
 * quire is Quire's own; the keys that it shares with qwen3 mean the same.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"
#include "model/gguf_scan.h"

/* Far above today's models, low enough that the product of two sizes fits 64 bits and one size fits
 * a tensor. */
#define EMBD_MAX    (1u << 17)
#define HEADS_MAX   1024u
#define CTX_MAX     (1u << 27)
#define POOLING_MAX 4u

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
    const char *near;
    char text[64], hint[80] = "";

    QUIRE_TRY(quire_gguf_get_str(file, "general.architecture", true, &raw, err));
    desc->arch = quire_arch_find(raw);
    if (desc->arch != QUIRE_ARCH_COUNT) {
        (void)snprintf(desc->arch_name, sizeof(desc->arch_name), "%s", raw);
        return QUIRE_OK;
    }
    near = quire_arch_nearest(raw);
    if (near != NULL) {
        (void)snprintf(hint, sizeof(hint), "the nearest that is: %s; ", near);
    }
    return quire_error_set(
        err, QUIRE_UNSUPP,
        "%s: general.architecture '%s' is not supported (%sall: docs/architectures.md or "
        "quire info --architectures)",
        quire_gguf_path(file), quire_gguf_printable(text, sizeof(text), raw, strlen(raw)), hint);
}

/* Refuse a file that is not one whole model. */
static int kind_check(const quire_gguf *file, quire_error *err)
{
    char type[32];

    QUIRE_TRY(text_get(file, "general.type", type, sizeof(type), err));
    if (type[0] != '\0' && strcmp(type, "model") != 0) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: general.type is '%s'; expected a model",
                               quire_gguf_path(file), type);
    }
    return QUIRE_OK;
}

static int causal_check(const quire_gguf *file, const quire_model_desc *desc, quire_error *err)
{
    bool is_causal = true;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "attention.causal");
    QUIRE_TRY(quire_gguf_get_bool(file, key, &is_causal, err));
    if (!is_causal) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: %s is false; models that do not generate are not supported",
                               quire_gguf_path(file), key);
    }
    return QUIRE_OK;
}

/* The layers of the file, and those of them that make the next token's logits. */
static int layers_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_arch_row *arch = quire_arch_row_get(desc->arch);
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    uint32_t n_nextn = 0;

    QUIRE_TRY(quire_gguf_get_u32(file, quire_gguf_key(key, desc->arch_name, "block_count"),
                                 (quire_gguf_range){ 1, QUIRE_LAYERS_MAX, true },
                                 &desc->n_layer_file, err));
    (void)quire_gguf_key(key, desc->arch_name, "nextn_predict_layers");
    QUIRE_TRY(
        quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, UINT32_MAX, false }, &n_nextn, err));
    if (n_nextn != 0 && (arch->reads & QUIRE_READS_NEXTN) == 0) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: %s is %u; not supported (supported: 0)",
                               quire_gguf_path(file), key, n_nextn);
    }
    if (n_nextn >= desc->n_layer_file) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %u; expected less than the %u layers (damaged file?)",
                               quire_gguf_path(file), key, n_nextn, desc->n_layer_file);
    }
    desc->n_layer = desc->n_layer_file - n_nextn;
    return QUIRE_OK;
}

static int eps_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_arch_row *row = quire_arch_row_get(desc->arch);
    const bool is_twice = (row->reads & QUIRE_READS_EPS_TWICE) != 0;
    const bool is_rms = row->norm == QUIRE_NORM_RMS;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    if (!is_rms || is_twice) {
        (void)quire_gguf_key(key, desc->arch_name, "attention.layer_norm_epsilon");
        QUIRE_TRY(quire_gguf_get_f32(file, key, (quire_gguf_range_f32){ 0.0f, 1.0f, true },
                                     &desc->rms_eps, err));
    }
    (void)quire_gguf_key(key, desc->arch_name, "attention.layer_norm_rms_epsilon");
    if (!is_rms && is_twice) {
        float rms = 0.0f;

        QUIRE_TRY(
            quire_gguf_get_f32(file, key, (quire_gguf_range_f32){ 0.0f, 1.0f, false }, &rms, err));
        return rms == 0.0f
                   ? QUIRE_OK
                   : quire_error_set(err, QUIRE_UNSUPP,
                                     "%s: %s is %g: RMS norms in %s are not supported",
                                     quire_gguf_path(file), key, (double)rms, desc->arch_name);
    }
    return is_rms ? quire_gguf_get_f32(file, key, (quire_gguf_range_f32){ 0.0f, 1.0f, !is_twice },
                                       &desc->rms_eps, err)
                  : QUIRE_OK;
}

/* The width of the networks. */
static int ff_get(const quire_gguf *file, quire_model_desc *desc, quire_gguf_range range,
                  quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    if (quire_arch_row_get(desc->arch)->has_layer_sizes) {
        return quire_describe_ff_by_layer(file, desc, range, err);
    }
    (void)quire_gguf_key(key, desc->arch_name, "feed_forward_length");
    return quire_gguf_get_u32_or_array(file, key, desc->n_layer_file, range, &desc->n_ff, err);
}

/* The width of a token's row of the second embedding, in each layer. */
static int layer_embd_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    if ((quire_arch_row_get(desc->arch)->may & QUIRE_PART_LAYER_EMBD) == 0) {
        return QUIRE_OK;
    }
    (void)quire_gguf_key(key, desc->arch_name, "embedding_length_per_layer_input");
    return quire_gguf_get_u32(file, key, (quire_gguf_range){ 0, QUIRE_FF_MAX, true },
                              &desc->n_embd_layer, err);
}

static int sizes_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    const char *arch = desc->arch_name;
    const uint32_t n = desc->n_layer_file;
    const quire_arch_row *row = quire_arch_row_get(desc->arch);
    /* Where experts have a key of their own, and there are no other networks. */
    const bool has_ff =
        row->experts.ff != QUIRE_EXPERT_FF_KEY || (row->needs & QUIRE_PART_FFN_DOWN) != 0;

    QUIRE_TRY(quire_gguf_get_u32(file, quire_gguf_key(key, arch, "context_length"),
                                 (quire_gguf_range){ 1, CTX_MAX, true }, &desc->n_ctx_train, err));
    QUIRE_TRY(quire_gguf_get_u32(file, quire_gguf_key(key, arch, "pooling_type"),
                                 (quire_gguf_range){ 0, POOLING_MAX, false }, &desc->pooling, err));
    QUIRE_TRY(quire_gguf_get_u32(file, quire_gguf_key(key, arch, "embedding_length"),
                                 (quire_gguf_range){ 1, EMBD_MAX, true }, &desc->n_embd, err));
    if (!row->is_single) {
        QUIRE_TRY(ff_get(file, desc, (quire_gguf_range){ 1, QUIRE_FF_MAX, has_ff }, err));
    }
    QUIRE_TRY(quire_gguf_get_u32_or_array(file, quire_gguf_key(key, arch, "attention.head_count"),
                                          n, (quire_gguf_range){ 1, HEADS_MAX, true },
                                          &desc->n_head, err));
    QUIRE_TRY(quire_describe_kv_heads(file, desc, err));
    (void)quire_gguf_key(key, arch, "attention.head_count_kv");
    if (desc->n_head % desc->n_kv_head != 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %u; expected a divisor of the %u query heads (damaged "
                               "file?)",
                               quire_gguf_path(file), key, desc->n_kv_head, desc->n_head);
    }
    return eps_get(file, desc, err);
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
    /* libllama's graphs of nearly all these architectures assert the same. */
    if (desc->d_v != desc->d_k) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: %s is %u but value_length is %u; supported: equal ones",
                               quire_gguf_path(file), key, desc->d_k, desc->d_v);
    }
    return QUIRE_OK;
}

int quire_gguf_describe(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    memset(desc, 0, sizeof(*desc));
    QUIRE_TRY(kind_check(file, err));
    QUIRE_TRY(arch_get(file, desc, err));
    QUIRE_TRY(text_get(file, "general.name", desc->name, sizeof(desc->name), err));
    QUIRE_TRY(layers_get(file, desc, err));
    QUIRE_TRY(causal_check(file, desc, err));
    QUIRE_TRY(sizes_get(file, desc, err));
    QUIRE_TRY(quire_describe_experts(file, desc, err));
    if (quire_arch_row_get(desc->arch)->latent != QUIRE_LATENT_NONE) {
        QUIRE_TRY(quire_describe_latent(file, desc, err));
    } else {
        QUIRE_TRY(head_dims_get(file, desc, err));
    }
    QUIRE_TRY(quire_describe_recurrent(file, desc, err));
    QUIRE_TRY(layer_embd_get(file, desc, err));
    if (quire_arch_row_get(desc->arch)->has_streams) {
        QUIRE_TRY(quire_describe_streams(file, desc, err));
    }
    QUIRE_TRY(quire_describe_windows(file, desc, err));
    if (quire_arch_row_get(desc->arch)->has_layer_sizes) {
        QUIRE_TRY(quire_describe_layer_heads(file, desc, err));
    }
    QUIRE_TRY(quire_describe_rope(file, desc, err));
    QUIRE_TRY(quire_describe_scales(file, desc, err));
    if ((quire_arch_row_get(desc->arch)->may & QUIRE_PART_KV_MAP) != 0) {
        QUIRE_TRY(quire_describe_kv_map(file, desc, err));
    } else if (quire_arch_row_get(desc->arch)->has_shared_kv) {
        QUIRE_TRY(quire_describe_shared_kv(file, desc, err));
    } else {
        quire_kv_map_plain(desc);
    }
    quire_layer_sizes_join(desc);
    QUIRE_TRY(quire_describe_tensors(file, desc, err));
    desc->fingerprint = quire_fingerprint(file, desc);
    return QUIRE_OK;
}
