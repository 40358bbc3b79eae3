/* train_export.c - see train_export.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_export.h"

#include "base/check.h"
#include "cli/commands/new_file.h"

#include <stdlib.h>

/* Plain maps with norms of heads are Qwen 3's, which other programs know too. */
static bool is_qwen3(const quire_train_shape *s)
{
    bool is_plain = s->has_qk_norm;

    for (uint32_t i = 0; i < s->n_layer; i++) {
        is_plain = is_plain && quire_train_stores_k(s, i) && quire_train_stores_v(s, i);
    }
    return is_plain;
}

static int write_to(const quire_train_export *e, const char *path, quire_error *err)
{
    const quire_train_shape *s = e->shape;
    bool is_plain = is_qwen3(s);
    quire_gguf_out out = { .arch = is_plain ? "qwen3" : "quire",
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
                           .kv_scheme = is_plain ? NULL : s->scheme,
                           .kv_source_k = is_plain ? NULL : &s->source_k[0][0],
                           .kv_source_v = is_plain ? NULL : &s->source_v[0][0],
                           .n_tensors = e->layout->n_tensors };
    quire_gguf_out_tensor *tensors = calloc(out.n_tensors, sizeof(*tensors));
    int rc;

    if (tensors == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < out.n_tensors; i++) {
        const quire_train_tensor *t = &e->layout->tensors[i];

        tensors[i] = (quire_gguf_out_tensor){ t->name, t->n_cols, t->n_rows, e->parameters + t->at,
                                              t->kind == QUIRE_WEIGHT_GATE };
    }
    out.tensors = tensors;
    rc = quire_gguf_write(path, &out, err);
    free(tensors);
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
