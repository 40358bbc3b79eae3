/* train_export.c - see train_export.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_export.h"

#include "base/check.h"
#include "cli/commands/new_file.h"

#include <stdlib.h>
#include <string.h>

/* Plain maps are architectures that other programs know too. They read factors of RoPE for llama
 * alone, and qwen2 with heads as wide as the model alone. */
static const char *arch_of(const quire_train_shape *s)
{
    if (!quire_train_is_plain(s) || (s->has_qk_norm && s->has_rope_factors)) {
        return "quire";
    }
    if (s->has_qk_norm) {
        return "qwen3";
    }
    return s->has_qkv_bias && !s->has_rope_factors && s->n_head * s->d_head == s->d_model ? "qwen2"
                                                                                          : "llama";
}

/* Whether a tensor's rows are numbers of the heads of Q or K before RoPE. */
static bool is_rotated(const quire_train_tensor *t)
{
    const char *ending = strstr(t->name, "attn_");

    return ending != NULL &&
           (strcmp(ending, "attn_q.weight") == 0 || strcmp(ending, "attn_k.weight") == 0 ||
            strcmp(ending, "attn_q.bias") == 0 || strcmp(ending, "attn_k.bias") == 0);
}

/* llama rotates pairs of neighbours: rows i and i + d/2 of each head become 2 i and 2 i + 1. A bias
 * has rows of one number. */
static void pair_rows(const quire_train_tensor *t, size_t d, const float *from, float *to)
{
    bool is_bias = t->kind == QUIRE_WEIGHT_BIAS;
    size_t n_rows = is_bias ? t->n_cols : t->n_rows, width = is_bias ? 1 : t->n_cols;

    for (size_t row = 0; row < n_rows; row++) {
        size_t head = row / d, i = row % d;
        size_t paired = head * d + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);

        memcpy(to + paired * width, from + row * width, width * sizeof(*to));
    }
}

/* The parameters as the architecture has them. Memory: free(). */
static float *paired_parameters(const quire_train_export *e)
{
    float *all = malloc(e->layout->n_parameters * sizeof(*all));

    if (all != NULL) {
        memcpy(all, e->parameters, e->layout->n_parameters * sizeof(*all));
        for (uint32_t i = 0; i < e->layout->n_tensors; i++) {
            const quire_train_tensor *t = &e->layout->tensors[i];

            if (is_rotated(t)) {
                pair_rows(t, e->shape->d_head, e->parameters + t->at, all + t->at);
            }
        }
    }
    return all;
}

static int write_tensors(const quire_train_export *e, const float *parameters, quire_gguf_out *out,
                         const char *path, quire_error *err)
{
    quire_gguf_out_tensor *tensors = calloc(out->n_tensors, sizeof(*tensors));
    int rc;

    if (tensors == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < e->layout->n_tensors; i++) {
        const quire_train_tensor *t = &e->layout->tensors[i];

        tensors[i] = (quire_gguf_out_tensor){ t->name, t->n_cols, t->n_rows, parameters + t->at,
                                              t->kind == QUIRE_WEIGHT_GATE };
    }
    if (e->shape->has_rope_factors) {
        tensors[e->layout->n_tensors] =
            (quire_gguf_out_tensor){ QUIRE_TRAIN_ROPE_FACTORS, e->shape->d_head / 2, 1,
                                     e->shape->rope_factors, true };
    }
    out->tensors = tensors;
    rc = quire_gguf_write(path, out, err);
    free(tensors);
    return rc;
}

static int write_to(const quire_train_export *e, const char *path, quire_error *err)
{
    const quire_train_shape *s = e->shape;
    bool has_map = !quire_train_is_plain(s);
    quire_gguf_out out = { .arch = arch_of(s),
                           .name = s->scheme,
                           .type = e->type,
                           .vocab = e->vocab,
                           .n_layer = s->n_layer,
                           .n_ctx = e->n_ctx,
                           .d_model = s->d_model,
                           .d_ff = s->d_ff,
                           .n_head = s->n_head,
                           .n_kv_head = s->n_kv_head,
                           .d_head = s->d_head,
                           .rope_base = (float)s->rope_base,
                           .norm_epsilon = (float)s->norm_epsilon,
                           .kv_scheme = has_map ? s->scheme : NULL,
                           .kv_source_k = has_map ? &s->source_k[0][0] : NULL,
                           .kv_source_v = has_map ? &s->source_v[0][0] : NULL,
                           .windows = has_map ? s->window : NULL,
                           .n_tensors = e->layout->n_tensors + s->has_rope_factors };
    float *paired = NULL;
    int rc;

    if (strcmp(out.arch, "llama") == 0) {
        paired = paired_parameters(e);
        if (paired == NULL) {
            return quire_error_set(err, QUIRE_NOMEM, "out of memory");
        }
    }
    rc = write_tensors(e, paired != NULL ? paired : e->parameters, &out, path, err);
    free(paired);
    return rc;
}

int quire_train_export_write(const quire_train_export *e, const char *path, quire_error *err)
{
    quire_new_file file;
    int rc;

    QUIRE_TRY(quire_new_file_open(&file, path, err));
    rc = write_to(e, file.work_path, err);
    if (rc == QUIRE_OK) {
        return quire_new_file_finish(&file, err);
    }
    quire_new_file_discard(&file);
    return rc;
}
