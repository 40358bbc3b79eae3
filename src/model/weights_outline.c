/* weights_outline.c - see weights_outline.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/weights_outline.h"

#include "base/check.h"
#include "model/backend.h"
#include "model/weights_latent.h"
#include "model/weights_store.h"

#include <stdlib.h>

#define PANELS_AT 64u /* no address: nobody reads there */

/* The bytes of loaded weights. A tied output matrix that is used in place is the embedding's own
 * bytes. */
static quire_weights_bytes bytes_of(const quire_weight_load *load)
{
    const struct quire_weights_store *store = load->weights->store;
    quire_weights_bytes bytes = { .host = quire_weights_latent_bytes(load->file, load->desc) };
    quire_gguf_place embd = { UINT32_MAX, 0 };

    for (uint32_t i = 0; i < store->n_slots; i++) {
        const quire_weight_slot *slot = &store->slots[i];

        if (slot->kind != QUIRE_KIND_MAPPED || slot->place.part != embd.part ||
            slot->place.offset != embd.offset) {
            *(quire_kind_is_device(slot->kind) ? &bytes.device[slot->kind - QUIRE_KIND_DEVICE]
                                               : &bytes.host) += ggml_nbytes(slot->meta);
        }
        embd = i == 0 && slot->kind == QUIRE_KIND_MAPPED ? slot->place : embd;
    }
    return bytes;
}

/* Buffers of no bytes, whose kinds are those of the loaded weights. */
static int buffers_create(quire_weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;

    for (uint32_t i = 0; i < store->n_kinds; i++) {
        quire_weight_kind *kind = &store->kinds[i];

        if (kind->ctx == NULL || i == QUIRE_KIND_PANELS) {
            continue;
        }
        kind->buffer = ggml_backend_buft_alloc_buffer(
            i == QUIRE_KIND_MAPPED ? store->kinds[QUIRE_KIND_PLAIN].buft : kind->buft, 0);
        QUIRE_FAIL_IF(kind->buffer == NULL, QUIRE_NOMEM);
        quire_weights_stand_in(kind->ctx, kind->buffer);
    }
    return quire_weights_panels_place(load, PANELS_AT);
}

void quire_weights_stand_in(struct ggml_context *ctx, ggml_backend_buffer_t buffer)
{
    struct ggml_tensor *t;

    for (t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        t->buffer = buffer;
        t->data = t; /* not NULL: an allocator of graphs gives it no place */
    }
}

int quire_weights_outline(quire_weights **out, quire_weights_bytes *bytes, const quire_gguf *file,
                          const quire_model_desc *desc, const quire_model_opts *opts, uint32_t set,
                          const quire_model_split *split, quire_error *err)
{
    quire_weight_load load = {
        .file = file, .desc = desc, .opts = opts, .set = set, .split = split, .err = err
    };
    int rc = QUIRE_NOMEM;

    *out = NULL;
    *bytes = (quire_weights_bytes){ 0 };
    load.weights = calloc(1, sizeof *load.weights);
    if (load.weights == NULL || (rc = quire_weights_place(&load)) < 0 ||
        (rc = quire_weights_tensors_create(&load)) < 0 || (rc = buffers_create(&load)) < 0 ||
        (rc = quire_weights_latent_outline(load.weights, desc)) < 0) {
        quire_weights_destroy(load.weights);
        return quire_weights_load_fail(&load, rc);
    }
    *bytes = bytes_of(&load);
    *out = load.weights;
    return QUIRE_OK;
}
