/* lanes_loop.c - see lanes_loop.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/lanes_loop.h"

#include "base/check.h"
#include "engine/loop/loop_object.h"
#include "model/runtime_hidden.h"
#include "model/runtime_rows.h"

#include <stdlib.h>

static int device_open(quire_loop *loop)
{
    quire_attn_device *device = quire_runtime_device(loop->runtime);
    const quire_packed_device_opts opts = {
        .base = *device,
        .packing = &loop->lanes.parts.packing,
        .n_text_max = loop->runtime_opts->n_ctx,
        .n_rows_max = loop->runtime_opts->n_batch,
        .n_seqs_max = loop->runtime_opts->n_seqs_max,
        .n_threads = quire_runtime_n_threads(loop->runtime),
    };

    if (loop->lanes.device == NULL) {
        QUIRE_TRY(quire_packed_device_create(&loop->lanes.device, &opts));
        *device = quire_packed_device_get(loop->lanes.device);
    }
    return QUIRE_OK;
}

/* Steps give their hidden states to the device from the first one on. */
static int predictor_open(quire_loop *loop)
{
    quire_condensing_parts *parts = &loop->lanes.parts;

    QUIRE_TRY(device_open(loop));
    parts->predictor = loop->opts.predictor;
    quire_predictor_hash(parts->predictor, parts->maps);
    quire_runtime_hidden_set(loop->runtime, quire_packed_device_hidden_put, loop->lanes.device);
    return QUIRE_OK;
}

int quire_loop_lanes_create(quire_loop *loop)
{
    const quire_model_desc *desc = loop->desc;
    quire_loop_lanes *lanes = &loop->lanes;

    if (loop->opts.retain_chunk == 0 || quire_runtime_rows_check(loop->runtime) < 0 ||
        quire_runtime_device(loop->runtime)->memory != QUIRE_MEMORY_HOST) {
        return QUIRE_OK;
    }
    lanes->layers = calloc(desc->n_layer, sizeof *lanes->layers);
    QUIRE_FAIL_IF(lanes->layers == NULL, QUIRE_NOMEM);
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        quire_runtime_layer_get(loop->runtime, l, &lanes->layers[l]);
    }
    if (quire_packing_init(&lanes->parts.packing, lanes->layers, desc->n_layer,
                           loop->runtime_opts->page_tokens) < 0) {
        lanes->parts.packing.n_layers = 0;
        return QUIRE_OK;
    }
    return loop->opts.predictor != NULL ? predictor_open(loop) : QUIRE_OK;
}

void quire_loop_lanes_destroy(quire_loop *loop)
{
    if (loop->lanes.parts.predictor != NULL) {
        quire_runtime_hidden_set(loop->runtime, NULL, NULL);
    }
    if (loop->lanes.device != NULL) {
        *quire_runtime_device(loop->runtime) = quire_packed_device_base(loop->lanes.device);
    }
    quire_packed_device_destroy(loop->lanes.device);
    free(loop->lanes.layers);
}

int quire_loop_lanes_begin(quire_loop *loop, quire_request *r)
{
    const quire_condensing *c = &r->condensing;
    const quire_packed_text_opts opts = { .packing = &c->packing,
                                          .probe = quire_condensing_probe(c),
                                          .n_worth = c->packing.has_worth ? c->chunk : 0,
                                          .predictor = c->predictor };

    if (c->packing.n_layers == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(device_open(loop));
    QUIRE_TRY(quire_packed_text_create(&r->kv.lanes, &opts));
    return quire_loop_lanes_follow(loop, r);
}

int quire_loop_lanes_follow(quire_loop *loop, quire_request *r)
{
    const uint32_t n_kept = quire_condensing_kept(&r->condensing, r->kv.n_condensings);
    quire_packed_pages pages = { .addrs = quire_cache_page_addrs(loop->cache),
                                 .n = n_kept / loop->runtime_opts->page_tokens };
    quire_seq_table table;

    if (r->kv.lanes == NULL) {
        return QUIRE_OK;
    }
    r->kv.lanes->n_gone = r->kv.n_dropped;
    if (pages.n == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_seq_table_get(loop->cache, r->kv.seq, 0, &table));
    QUIRE_CHECK(pages.n <= table.n_entries);
    pages.leaves = table.leaves;
    return quire_packed_read(&r->condensing.packing, &pages, &r->kv.lanes->lanes);
}

void quire_loop_lanes_end(quire_request *r)
{
    quire_packed_text_destroy(r->kv.lanes);
    r->kv.lanes = NULL;
}

bool quire_request_lanes_want(const quire_request *r, uint32_t n_rows)
{
    const uint32_t n_probe = quire_condensing_probe(&r->condensing);
    const uint32_t place = (r->kv.n_condensings + 1) * r->condensing.chunk;

    return n_probe > 0 && r->kv.n_computed + n_rows + n_probe > place;
}
