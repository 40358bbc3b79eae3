/* lanes_loop.c - see lanes_loop.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/lanes_loop.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"
#include "model/rope_frequencies.h"
#include "model/runtime_hidden.h"
#include "model/runtime_rows.h"
#include "retain/packed_copy.h"

#include <stdlib.h>
#include <string.h>

static int device_open(quire_loop *loop)
{
    quire_attn_device *device = quire_runtime_device(loop->runtime);
    const quire_attn_workspace_opts all = quire_runtime_attn_opts(loop->desc, loop->runtime_opts);
    const quire_condensing_on on = { loop->desc, loop->runtime_opts, &loop->lanes.parts };
    quire_packed_device_opts opts = quire_condensing_device_opts(&on, &all);

    opts.base = *device;
    opts.memory = quire_runtime_page_memory(loop->runtime);
    if (loop->lanes.device == NULL) {
        QUIRE_TRY(quire_packed_device_create(&loop->lanes.device, &opts));
        loop->lanes.is_outer = loop->overflow.offload != NULL;
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

/* How K is turned, if all layers turn it alike. */
static int rotation_open(quire_loop *loop)
{
    quire_loop_lanes *lanes = &loop->lanes;

    if (!quire_condensing_turns(loop->desc)) {
        return QUIRE_OK;
    }
    lanes->frequencies = calloc(QUIRE_HEAD_DIM_MAX / 2, sizeof *lanes->frequencies);
    QUIRE_FAIL_IF(lanes->frequencies == NULL, QUIRE_NOMEM);
    quire_model_rope_frequencies(loop->model, lanes->frequencies);
    lanes->rotation = quire_model_rotation(loop->desc, lanes->frequencies);
    lanes->parts.rotation = &lanes->rotation;
    return QUIRE_OK;
}

int quire_loop_lanes_create(quire_loop *loop)
{
    const quire_model_desc *desc = loop->desc;
    quire_loop_lanes *lanes = &loop->lanes;

    if (loop->opts.retain_chunk == 0 && !loop->runtime_opts->has_bounds) {
        return QUIRE_OK;
    }
    lanes->layers = calloc(desc->n_layer, sizeof *lanes->layers);
    QUIRE_FAIL_IF(lanes->layers == NULL, QUIRE_NOMEM);
    quire_condensing_packing_init(&lanes->parts, lanes->layers, desc, loop->runtime_opts);
    if (lanes->parts.packing.n_layers == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(rotation_open(loop));
    QUIRE_TRY(quire_repeating_init(&lanes->repeating, loop->model));
    if (lanes->parts.packing.bounds_bytes > 0) {
        QUIRE_TRY(device_open(loop));
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
    loop->lanes.device = NULL;
    free(loop->lanes.frequencies);
    free(loop->lanes.layers);
}

int quire_loop_attend_check(const quire_loop *loop, const char *setting, quire_error *err)
{
    const quire_condensing_on on = { loop->desc, loop->runtime_opts, &loop->lanes.parts };

    return quire_attending_check(&on, setting, err);
}

void quire_loop_lanes_stats_fill(quire_loop *loop)
{
    if (loop->lanes.device != NULL) {
        const quire_packed_reads reads = quire_packed_device_reads(loop->lanes.device);

        loop->figures.now.attend_read_pages_total = reads.n_read;
        loop->figures.now.attend_left_pages_total = reads.n_held - reads.n_read;
    }
}

/* The request's generated tokens read a share of the pages. */
static int attending_begin(quire_loop *loop, quire_request *r)
{
    const quire_packing *packing = &loop->lanes.parts.packing;
    const quire_packed_text_opts opts = { .packing = packing,
                                          .attend_share = r->attend_share,
                                          .attend_from = r->n_prompt,
                                          .n_mirrored = packing->is_on_device
                                                            ? r->n_prompt + r->max_tokens
                                                            : 0 };

    return quire_packed_text_create(&r->kv.lanes, &opts);
}

int quire_loop_lanes_begin(quire_loop *loop, quire_request *r)
{
    const quire_condensing *c = &r->condensing;
    quire_packed_text_opts opts;

    if (quire_request_attends(r)) {
        return attending_begin(loop, r);
    }
    if (c->packing.n_layers == 0) {
        return QUIRE_OK;
    }
    opts = quire_condensing_text_opts(c);
    QUIRE_TRY(device_open(loop));
    QUIRE_TRY(quire_packed_device_watch(loop->lanes.device,
                                        quire_condensing_n_watched(c, loop->runtime_opts->n_ctx)));
    QUIRE_TRY(quire_packed_text_create(&r->kv.lanes, &opts));
    r->kv.lanes->n_sinks = c->spec.sinks;
    return quire_loop_lanes_follow(loop, r);
}

/* What the packed pages say of the request's text. */
static int text_read(quire_loop *loop, quire_request *r, quire_packed_pages *pages)
{
    const quire_packing *packing = &r->condensing.packing;

    if (pages->n > 0) {
        QUIRE_TRY(
            quire_packed_list_fetch(packing, pages, quire_runtime_page_memory(loop->runtime)));
        QUIRE_TRY(quire_packed_read(packing, pages, &r->kv.lanes->lanes));
    }
    return quire_packed_sums_begin(r->kv.lanes, packing, pages,
                                   r->kv.n_condensings * r->condensing.chunk);
}

/* A list that cannot be read helps no other request either: the tree forgets the condensed text. */
static void text_drop(quire_loop *loop, const quire_request *r)
{
    if (r->kv.condensed != QUIRE_CONDENSED_NULL) {
        const quire_prefix_key key =
            quire_loop_condensed_key(loop, r->tenant, r->tenant_bytes, r->kv.condensed);

        (void)quire_prefix_drop_prefix(loop->tree, &key, NULL, 0, quire_loop_now_us(loop));
    }
}

int quire_loop_lanes_follow(quire_loop *loop, quire_request *r)
{
    const uint32_t n_kept = quire_condensing_kept(&r->condensing, r->kv.n_condensings);
    quire_packed_pages pages = { .addrs = quire_cache_page_addrs(loop->cache),
                                 .n = n_kept / loop->runtime_opts->page_tokens };
    quire_seq_table table;
    int rc;

    if (r->kv.lanes == NULL) {
        return QUIRE_OK;
    }
    r->kv.lanes->n_gone = r->kv.n_dropped;
    if (pages.n > 0) {
        QUIRE_TRY(quire_seq_table_get(loop->cache, r->kv.seq, 0, &table));
        QUIRE_CHECK(pages.n <= table.n_entries);
        pages.leaves = table.leaves;
    }
    rc = text_read(loop, r, &pages);
    quire_packed_list_free(&pages);
    if (rc == QUIRE_CORRUPT) {
        text_drop(loop, r);
    }
    return rc;
}

/* ---- repeating ---- */

/* Compute rows behind the request's text. */
static int rows_compute(quire_loop *loop, const quire_request *r, const int32_t *rows, uint32_t n)
{
    const uint32_t n_batch = loop->runtime_opts->n_batch;
    const float *logits;

    loop->step.rank = QUIRE_RANKS_MAX; /* nothing interrupts it: the part would begin again */
    for (uint32_t first = 0; first < n; first += n_batch) {
        const quire_slice slice = { .seq = r->kv.seq,
                                    .tokens = rows + first,
                                    .n_tokens = quire_min_u32(n_batch, n - first),
                                    .logits = QUIRE_LOGITS_LAST,
                                    .n_gone = r->kv.n_dropped,
                                    .lanes = r->kv.lanes,
                                    .keeps_hot = true,
                                    .keeps_window = true };

        QUIRE_TRY(quire_runtime_step(loop->runtime, &slice, 1, &logits));
    }
    return QUIRE_OK;
}

/* No token of the part has a worth yet. */
static void worth_clear(const quire_request *r, uint32_t begin, uint32_t end)
{
    const quire_packed_text *text = r->kv.lanes;

    for (uint32_t lane = 0; lane < quire_packing_n_lanes(&r->condensing.packing); lane++) {
        memset(text->worth + (size_t)lane * text->n_worth + begin % text->n_worth, 0,
               (end - begin) * sizeof *text->worth);
    }
}

int quire_loop_lanes_repeat(quire_loop *loop, quire_request *r, uint32_t k)
{
    const quire_condensing *c = &r->condensing;
    quire_packed_text *text = r->kv.lanes;
    const uint32_t place = k * c->chunk, n_held = quire_request_held(r);
    const uint32_t begin = quire_max_u32(text->n_repeated, place - c->chunk);
    const uint32_t end = quire_min_u32(begin + c->spec.repeat, place);
    int32_t *rows = malloc(quire_repeating_room(&c->spec) * sizeof *rows);
    uint32_t n_rows;
    int rc;

    QUIRE_FAIL_IF(rows == NULL, QUIRE_NOMEM);
    n_rows = quire_repeating_rows(&loop->lanes.repeating, r->tokens, begin, end, rows);
    worth_clear(r, begin, end);
    text->repeat_begin = begin;
    text->repeat_end = end;
    text->repeat_at = place;
    rc = rows_compute(loop, r, rows, n_rows);
    text->repeat_begin = text->repeat_end = 0;
    text->n_repeated = rc == QUIRE_OK ? end : text->n_repeated;
    loop->figures.now.repeated_tokens_total += rc == QUIRE_OK ? n_rows : 0;
    /* The pages behind the place are the request's own. */
    (void)quire_seq_truncate(loop->cache, r->kv.seq, n_held);
    free(rows);
    return rc;
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

    if (quire_condensing_is_summed(&r->condensing)) {
        return true;
    }
    return n_probe > 0 && r->kv.n_computed + n_rows + n_probe > place;
}
