/* pretrained.c - see pretrained.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/pretrained.h"

#include "base/check.h"
#include "model/gguf_file.h"

#include <errno.h>
#include <ggml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct quire_pretrained {
    quire_gguf *file;
    quire_model_desc desc;
};

/* The trainer's block is llama's, with norms of Q and K or without. */
static int arch_check(const quire_pretrained *p, quire_error *err)
{
    switch (p->desc.arch) {
    case QUIRE_ARCH_LLAMA:
    case QUIRE_ARCH_QWEN2:
    case QUIRE_ARCH_QWEN3:
    case QUIRE_ARCH_QUIRE:
        return QUIRE_OK;
    default:
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: models of the architecture %s cannot be trained; llama, qwen2, "
                               "qwen3 and quire can",
                               quire_gguf_path(p->file), p->desc.arch_name);
    }
}

static int rope_check(const quire_pretrained *p, quire_error *err)
{
    const quire_rope *rope = &p->desc.rope;

    if (rope->scaling != QUIRE_ROPE_SCALING_NONE || rope->attn_factor != 1.0f) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: training has no scaling of the rotary embedding "
                               "(rope.scaling.*)",
                               quire_gguf_path(p->file));
    }
    return QUIRE_OK;
}

int quire_pretrained_open(quire_pretrained **out, const char *path, quire_error *err)
{
    quire_pretrained *p = calloc(1, sizeof(*p));
    int rc;

    if (p == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    rc = quire_gguf_open(&p->file, path, err);
    if (rc == QUIRE_OK) {
        rc = quire_gguf_describe(p->file, &p->desc, err);
    }
    if (rc == QUIRE_OK && (rc = arch_check(p, err)) == QUIRE_OK) {
        rc = rope_check(p, err);
    }
    if (rc < 0) {
        quire_pretrained_close(p);
        return rc;
    }
    *out = p;
    return QUIRE_OK;
}

void quire_pretrained_close(quire_pretrained *p)
{
    if (p != NULL) {
        quire_gguf_close(p->file);
        free(p);
    }
}

const quire_model_desc *quire_pretrained_desc(const quire_pretrained *p)
{
    return &p->desc;
}

const char *quire_pretrained_name(const quire_pretrained *p, uint32_t index)
{
    struct ggml_context *meta = quire_gguf_meta(p->file);
    struct ggml_tensor *t = ggml_get_first_tensor(meta);

    for (uint32_t i = 0; t != NULL && i < index; i++) {
        t = ggml_get_next_tensor(meta, t);
    }
    return t != NULL ? t->name : NULL;
}

uint64_t quire_pretrained_size(const quire_pretrained *p, const char *name)
{
    const struct ggml_tensor *t = ggml_get_tensor(quire_gguf_meta(p->file), name);

    return t != NULL ? (uint64_t)ggml_nelements(t) : 0;
}

/* Read the bytes of a tensor and turn them into f32. bytes: room for them. */
static int read_rows(const quire_pretrained *p, const struct ggml_tensor *t, void *bytes,
                     float *out, quire_error *err)
{
    const struct ggml_type_traits *traits = ggml_get_type_traits(t->type);
    const quire_gguf_place place = quire_gguf_tensor_place(p->file, t->name);
    const char *path = quire_gguf_part_path(p->file, place.part);
    size_t n_bytes = ggml_nbytes(t);
    FILE *f = fopen(path, "rb");
    bool is_read;

    errno = 0;
    is_read = f != NULL && fseeko(f, (off_t)place.offset, SEEK_SET) == 0 &&
              fread(bytes, 1, n_bytes, f) == n_bytes;
    if (f != NULL) {
        (void)fclose(f);
    }
    if (!is_read) {
        return quire_error_set_errno(err, errno != 0 ? errno : EIO, "cannot read %s of %s", t->name,
                                     path);
    }
    if (t->type == GGML_TYPE_F32) {
        memcpy(out, bytes, n_bytes);
    } else {
        traits->to_float(bytes, out, ggml_nelements(t));
    }
    return QUIRE_OK;
}

/* Rows 2 i and 2 i + 1 of each head become rows i and i + d/2. A bias has rows of one number. */
static int unpair_rows(const quire_pretrained *p, const struct ggml_tensor *t, float *rows,
                       quire_error *err)
{
    bool is_bias = t->ne[1] == 1;
    size_t width = is_bias ? 1 : (size_t)t->ne[0], d = p->desc.d_k;
    size_t n_heads = (size_t)(is_bias ? t->ne[0] : t->ne[1]) / d;
    float *head = malloc(d * width * sizeof(*head));

    if (head == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (size_t h = 0; h < n_heads; h++) {
        float *at = rows + h * d * width;

        memcpy(head, at, d * width * sizeof(*head));
        for (size_t i = 0; i < d; i++) {
            size_t to = i / 2 + (i % 2) * d / 2;

            memcpy(at + to * width, head + i * width, width * sizeof(*head));
        }
    }
    free(head);
    return QUIRE_OK;
}

/* Whether a tensor's rows are numbers of the heads of Q or K before RoPE. */
static bool is_rotated(const char *name)
{
    static const char *const endings[] = { "attn_q.weight", "attn_k.weight", "attn_q.bias",
                                           "attn_k.bias" };
    const char *ending = strstr(name, "attn_");
    bool is_rotated = false;

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        is_rotated = is_rotated || (ending != NULL && strcmp(ending, endings[i]) == 0);
    }
    return is_rotated;
}

int quire_pretrained_read(const quire_pretrained *p, const char *name, uint64_t n, float *out,
                          quire_error *err)
{
    const struct ggml_tensor *t = ggml_get_tensor(quire_gguf_meta(p->file), name);
    void *bytes;
    int rc;

    if (t == NULL || quire_pretrained_size(p, name) != n) {
        return quire_error_set(err, QUIRE_INVAL, "%s: no tensor %s of %llu numbers",
                               quire_gguf_path(p->file), name, (unsigned long long)n);
    }
    if (t->type != GGML_TYPE_F32 && ggml_get_type_traits(t->type)->to_float == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: %s has the type %s, which has no f32",
                               quire_gguf_path(p->file), name, ggml_type_name(t->type));
    }
    bytes = malloc(ggml_nbytes(t));
    if (bytes == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", name);
    }
    rc = read_rows(p, t, bytes, out, err);
    free(bytes);
    if (rc == QUIRE_OK && p->desc.rope.type == QUIRE_ROPE_NORMAL && is_rotated(name)) {
        rc = unpair_rows(p, t, out, err);
    }
    return rc;
}
