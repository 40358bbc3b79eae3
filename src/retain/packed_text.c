/* packed_text.c - memory of the texts of packed_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device.h"

#include "base/check.h"

#include <stdlib.h>

static size_t queries_bytes(const quire_packed_text_opts *o)
{
    const quire_attn_layer *layer = &o->packing->layers[0];

    return (size_t)o->packing->n_layers * layer->n_head * o->probe * layer->d_k * sizeof(float);
}

static size_t worth_bytes(const quire_packed_text_opts *o)
{
    return (size_t)quire_packing_n_lanes(o->packing) * o->n_worth * sizeof(float);
}

uint64_t quire_packed_text_bytes(const quire_packed_text_opts *opts)
{
    const uint64_t list_bytes =
        ((uint64_t)quire_packing_n_lanes(opts->packing) + 1) * sizeof(uint32_t);

    return sizeof(quire_packed_text) + list_bytes + queries_bytes(opts) + worth_bytes(opts) +
           quire_packed_sums_bytes(opts) + quire_packed_mirror_bytes(opts);
}

int quire_packed_text_create(quire_packed_text **out, const quire_packed_text_opts *o)
{
    quire_packed_text *text = calloc(1, sizeof *text);
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(text == NULL, QUIRE_NOMEM);
    text->probe = o->probe;
    text->n_worth = o->n_worth;
    text->predictor = o->predictor;
    text->attend_share = o->attend_share;
    text->attend_from = o->attend_from;
    text->queries = o->probe > 0 ? malloc(queries_bytes(o)) : NULL;
    text->worth = o->n_worth > 0 ? calloc(1, worth_bytes(o)) : NULL;
    rc = quire_packed_lanes_init(&text->lanes, o->packing);
    rc = rc == QUIRE_OK ? quire_packed_sums_init(&text->sums, o) : rc;
    rc = rc == QUIRE_OK ? quire_packed_mirror_init(&text->mirror, o) : rc;
    if (rc < 0 || (o->probe > 0 && text->queries == NULL) ||
        (o->n_worth > 0 && text->worth == NULL)) {
        quire_packed_text_destroy(text);
        return QUIRE_NOMEM;
    }
    *out = text;
    return QUIRE_OK;
}

void quire_packed_text_destroy(quire_packed_text *text)
{
    if (text != NULL) {
        quire_packed_mirror_fini(&text->mirror);
        quire_packed_sums_fini(&text->sums);
        quire_packed_lanes_fini(&text->lanes);
        free(text->worth);
        free(text->queries);
        free(text);
    }
}
