/* weights_latent.c - see weights_latent.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/weights_latent.h"

#include "base/check.h"
#include "model/backend.h"
#include "model/weights_outline.h"

#include <stdio.h>
#include <stdlib.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>

struct quire_weights_latent {
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
};

/* The type of a copy. */
static enum ggml_type copy_type(enum ggml_type type)
{
    return type == GGML_TYPE_F32 || type == GGML_TYPE_BF16 ? GGML_TYPE_F32 : GGML_TYPE_F16;
}

/* One number of a copy. */
static void put(struct ggml_tensor *to, size_t index, float x)
{
    if (to->type == GGML_TYPE_F32) {
        ((float *)to->data)[index] = x;
    } else {
        ((ggml_fp16_t *)to->data)[index] = ggml_fp32_to_fp16(x);
    }
}

/* The matrices of K of all heads, turned. row: room for a row of wkv_b. */
static void turn(const quire_model_desc *desc, const struct ggml_tensor *wkv_b, float *row,
                 struct ggml_tensor *wk_b)
{
    const ggml_to_float_t to_float = ggml_get_type_traits(wkv_b->type)->to_float;
    const size_t d_plain = desc->latent.d_plain, n_kv = desc->d_v;

    for (size_t h = 0; h < desc->n_head; h++) {
        for (size_t j = 0; j < d_plain; j++) {
            const size_t at = h * (d_plain + desc->latent.d_out) + j;
            const char *from = (const char *)wkv_b->data + at * wkv_b->nb[1];
            const float *x = wkv_b->type == GGML_TYPE_F32 ? (const float *)(const void *)from : row;

            if (x == row) {
                to_float(from, row, (int64_t)n_kv);
            }
            for (size_t i = 0; i < n_kv; i++) {
                put(wk_b, (h * n_kv + i) * d_plain + j, x[i]);
            }
        }
    }
}

/* The tensors of the copies, without memory. */
static int tensors_create(quire_weights *weights, const quire_model_desc *desc)
{
    const struct ggml_init_params params = {
        .mem_size = desc->n_layer * ggml_tensor_overhead(),
        .no_alloc = true,
    };

    weights->latent = calloc(1, sizeof *weights->latent);
    QUIRE_FAIL_IF(weights->latent == NULL, QUIRE_NOMEM);
    weights->latent->ctx = ggml_init(params);
    QUIRE_FAIL_IF(weights->latent->ctx == NULL, QUIRE_NOMEM);
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        quire_layer_weights *l = &weights->layers[il];

        l->wk_b = ggml_new_tensor_3d(weights->latent->ctx, copy_type(l->wkv_b->type),
                                     desc->latent.d_plain, desc->d_v, desc->n_head);
        (void)ggml_format_name(l->wk_b, "blk.%u.attn_kv_b/turned", il);
    }
    return QUIRE_OK;
}

static bool has_copies(const quire_model_desc *desc)
{
    return desc->latent.is_there && !desc->latent.is_split;
}

static ggml_backend_buffer_type_t buffer_type(void)
{
    return ggml_backend_dev_buffer_type(quire_backend_cpu());
}

int quire_weights_latent_make(quire_weights *weights, const quire_model_desc *desc)
{
    quire_weights_latent *latent;
    float *row;

    if (!has_copies(desc)) {
        return QUIRE_OK;
    }
    QUIRE_TRY(tensors_create(weights, desc));
    latent = weights->latent;
    latent->buffer = ggml_backend_alloc_ctx_tensors_from_buft(latent->ctx, buffer_type());
    QUIRE_FAIL_IF(latent->buffer == NULL, QUIRE_NOMEM);
    ggml_backend_buffer_set_usage(latent->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    row = malloc(desc->d_v * sizeof *row);
    QUIRE_FAIL_IF(row == NULL, QUIRE_NOMEM);
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        turn(desc, weights->layers[il].wkv_b, row, weights->layers[il].wk_b);
    }
    free(row);
    return QUIRE_OK;
}

int quire_weights_latent_outline(quire_weights *weights, const quire_model_desc *desc)
{
    if (!has_copies(desc)) {
        return QUIRE_OK;
    }
    QUIRE_TRY(tensors_create(weights, desc));
    weights->latent->buffer = ggml_backend_buft_alloc_buffer(buffer_type(), 0);
    QUIRE_FAIL_IF(weights->latent->buffer == NULL, QUIRE_NOMEM);
    quire_weights_stand_in(weights->latent->ctx, weights->latent->buffer);
    return QUIRE_OK;
}

void quire_weights_latent_share(quire_weights *weights, const quire_weights *from)
{
    for (uint32_t il = 0; from->latent != NULL && il < weights->n_layer; il++) {
        weights->layers[il].wk_b = from->layers[il].wk_b;
    }
}

void quire_weights_latent_free(quire_weights_latent *latent)
{
    if (latent != NULL) {
        ggml_backend_buffer_free(latent->buffer);
        ggml_free(latent->ctx);
        free(latent);
    }
}

uint64_t quire_weights_latent_bytes(const quire_gguf *file, const quire_model_desc *desc)
{
    const uint64_t n = (uint64_t)desc->latent.d_plain * desc->d_v * desc->n_head;
    uint64_t bytes = 0;

    if (!has_copies(desc)) {
        return 0;
    }
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        const struct ggml_tensor *t;
        char name[GGML_MAX_NAME];

        (void)snprintf(name, sizeof name, "blk.%u.attn_kv_b.weight", il);
        t = ggml_get_tensor(quire_gguf_meta(file), name);
        bytes += t != NULL ? n * ggml_type_size(copy_type(t->type)) : 0;
    }
    return bytes;
}
