/* train_export.c - see train_export.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_export.h"

#include "base/check.h"
#include "cli/commands/new_file.h"

#include <stdlib.h>
#include <string.h>

/* Plain maps are architectures that other programs know too. */
static const char *arch_of(const quire_train_shape *s)
{
    return !quire_train_is_plain(s) ? "quire" : s->has_qk_norm ? "qwen3" : "llama";
}

static bool is_rotated(const quire_train_tensor *t)
{
    const char *ending = strrchr(t->name, '.') - strlen("attn_q");

    return ending > t->name &&
           (strcmp(ending, "attn_q.weight") == 0 || strcmp(ending, "attn_k.weight") == 0);
}

/* llama rotates pairs of neighbours: rows i and i + d/2 of each head become 2 i and 2 i + 1. */
static void pair_rows(const quire_train_tensor *t, size_t d, const float *from, float *to)
{
    for (size_t row = 0; row < t->n_rows; row++) {
        size_t head = row / d, i = row % d;
        size_t paired = head * d + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);

        memcpy(to + paired * t->n_cols, from + row * t->n_cols, t->n_cols * sizeof(*to));
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
    for (uint32_t i = 0; i < out->n_tensors; i++) {
        const quire_train_tensor *t = &e->layout->tensors[i];

        tensors[i] = (quire_gguf_out_tensor){ t->name, t->n_cols, t->n_rows, parameters + t->at,
                                              t->kind == QUIRE_WEIGHT_GATE };
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
                           .n_tensors = e->layout->n_tensors };
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
