/* runtime_step.c - one step: check, take room in the cache, compute, hand out logits.
 *
 * All work that can fail for lack of memory comes first and changes no sequence: the graph, then
 * room for all slices. Appending then cannot fail. If the computation itself fails, the sequences
 * are cut back to their former lengths.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "model/model_internal.h"

#include <math.h>
#include <stdatomic.h>

/* A step's shape, summed over its slices. */
typedef struct step_shape {
    uint32_t n_rows;
    uint32_t n_logits;
} step_shape;

static uint32_t slice_logits(const quire_slice *slice)
{
    switch (slice->logits) {
    case QUIRE_LOGITS_ALL:
        return slice->n_tokens;
    case QUIRE_LOGITS_LAST:
        return 1;
    case QUIRE_LOGITS_NONE:
        break;
    }
    return 0;
}

static int step_check(const quire_runtime *rt, const quire_slice *slices, uint32_t n_slices,
                      step_shape *shape)
{
    const int32_t n_vocab = (int32_t)rt->model->desc.n_vocab;

    *shape = (step_shape){ 0 };
    QUIRE_FAIL_IF(n_slices == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(n_slices > rt->opts.n_seqs_max, QUIRE_LIMIT);
    for (uint32_t i = 0; i < n_slices; i++) {
        const quire_slice *s = &slices[i];

        QUIRE_FAIL_IF(s->n_tokens == 0, QUIRE_INVAL);
        QUIRE_FAIL_IF(s->n_tokens > rt->opts.n_batch - shape->n_rows, QUIRE_LIMIT);
        shape->n_rows += s->n_tokens;
        shape->n_logits += slice_logits(s);
        for (uint32_t j = 0; j < s->n_tokens; j++) {
            QUIRE_FAIL_IF(s->tokens[j] < 0 || s->tokens[j] >= n_vocab, QUIRE_INVAL);
        }
        for (uint32_t j = 0; j < i; j++) {
            QUIRE_FAIL_IF(slices[j].seq == s->seq, QUIRE_INVAL);
        }
    }
    return QUIRE_OK;
}

/* Cut the sequences back to the lengths before the step; also give back room that was only
 * reserved. Cutting new tokens needs no memory, since their leaves belong to the sequence alone by
 * then, and cuts into no hole: a step releases pages before the window of its first row alone, and
 * no page moves to a store meanwhile. A sequence that kept tokens without K and V would spoil all
 * later texts. */
static void step_undo(quire_runtime *rt, const quire_slice *slices, uint32_t n_slices)
{
    for (uint32_t i = 0; i < n_slices; i++) {
        QUIRE_CHECK(quire_seq_truncate(rt->cache, slices[i].seq, rt->before_tokens[i]) == QUIRE_OK);
    }
}

int quire_runtime_reserve(quire_runtime *rt, quire_seq_id seq, uint32_t n_tokens)
{
    const uint32_t have = quire_seq_tokens(rt->cache, seq);

    if (rt->opts.is_contiguous && have < rt->opts.n_ctx && n_tokens <= rt->opts.n_ctx - have) {
        n_tokens = rt->opts.n_ctx - have;
    }
    return quire_seq_reserve(rt->cache, seq, n_tokens);
}

void quire_runtime_release_hot(quire_runtime *rt, quire_seq_id seq, uint32_t from_token)
{
    /* The next token, and every later one, lies in this tile or behind it. */
    const uint32_t tile = quire_seq_tokens(rt->cache, seq) / QUIRE_TILE_TOKENS;
    const uint32_t recent_tiles = rt->opts.kv_recent / QUIRE_TILE_TOKENS;
    const uint32_t end_token = tile > recent_tiles ? (tile - recent_tiles) * QUIRE_TILE_TOKENS : 0;
    const uint32_t begin_token = from_token > rt->opts.kv_sinks ? from_token : rt->opts.kv_sinks;

    if (rt->groups.hot != 0 && rt->opts.kv_elsewhere_bytes == 0 && begin_token < end_token) {
        int rc = quire_seq_release(rt->cache, seq, rt->groups.hot, begin_token, end_token, NULL);

        QUIRE_ASSERT(rc == QUIRE_OK);
        (void)rc;
    }
}

void quire_runtime_release_window(quire_runtime *rt, quire_seq_id seq, uint32_t from_token)
{
    const uint32_t n_tokens = quire_seq_tokens(rt->cache, seq);
    const uint32_t w = rt->groups.window_tokens;

    /* The next token, at n_tokens, sees the w - 1 tokens before it. */
    if (rt->groups.window != 0 && n_tokens >= w && from_token < n_tokens - w + 1) {
        int rc = quire_seq_release(rt->cache, seq, rt->groups.window, from_token, n_tokens - w + 1,
                                   NULL);

        QUIRE_ASSERT(rc == QUIRE_OK);
        (void)rc;
    }
}

void quire_runtime_release(quire_runtime *rt, quire_seq_id seq)
{
    quire_runtime_release_window(rt, seq, 0);
}

void quire_runtime_cool(quire_runtime *rt, quire_seq_id seq)
{
    quire_runtime_release_hot(rt, seq, 0);
}

/* Take room for every slice, then append to every slice. Pages behind the windows are
 * released first: the slices may need their room. */
static int step_append(quire_runtime *rt, const quire_slice *slices, uint32_t n_slices)
{
    for (uint32_t i = 0; i < n_slices; i++) {
        if (!slices[i].keeps_window) {
            quire_runtime_release(rt, slices[i].seq);
        }
    }
    for (uint32_t i = 0; i < n_slices; i++) {
        int rc;

        rt->before_tokens[i] = quire_seq_tokens(rt->cache, slices[i].seq);
        rc = quire_runtime_reserve(rt, slices[i].seq, slices[i].n_tokens);
        if (rc < 0) {
            step_undo(rt, slices, i);
            return rc;
        }
    }
    for (uint32_t i = 0; i < n_slices; i++) {
        int rc = quire_seq_append(rt->cache, slices[i].seq, slices[i].n_tokens);

        if (rc < 0) {
            step_undo(rt, slices, n_slices);
            return rc;
        }
    }
    return QUIRE_OK;
}

static int step_begin_attention(quire_runtime *rt, const quire_slice *slices, uint32_t n_slices,
                                quire_attn_batch *batch)
{
    uint32_t first_row = 0;

    for (uint32_t i = 0; i < n_slices; i++) {
        quire_attn_seq *seq = &rt->attn_seqs[i];

        *seq = (quire_attn_seq){ .n_tokens = quire_seq_tokens(rt->cache, slices[i].seq),
                                 .first_row = first_row,
                                 .n_rows = slices[i].n_tokens,
                                 .lanes = slices[i].lanes };
        for (quire_group_id g = 0; g < rt->groups.n; g++) {
            quire_seq_table table;

            QUIRE_TRY(quire_seq_table_get(rt->cache, slices[i].seq, g, &table));
            seq->tables[g] = (quire_attn_table){ table.leaves, table.n_entries };
        }
        first_row += slices[i].n_tokens;
    }
    *batch = (quire_attn_batch){
        .seqs = rt->attn_seqs,
        .n_seqs = n_slices,
        .page_tokens = rt->opts.page_tokens,
        .page_addr = quire_cache_page_addrs(rt->cache),
    };
    return rt->device.plan(rt->device.ctx, batch);
}

/* The same batch with the rows alone whose logits are wanted, the last ones of their slices. */
static quire_attn_batch exit_batch(const quire_runtime *rt, const quire_slice *slices,
                                   uint32_t n_slices, const quire_attn_batch *batch)
{
    quire_attn_batch wanted = *batch;
    uint32_t first_row = 0;

    wanted.seqs = rt->exit_seqs;
    wanted.n_seqs = 0;
    wanted.is_rest = true;
    for (uint32_t i = 0; i < n_slices; i++) {
        const uint32_t n_rows = slice_logits(&slices[i]);

        if (n_rows > 0) {
            quire_attn_seq *seq = &rt->exit_seqs[wanted.n_seqs++];

            *seq = rt->attn_seqs[i];
            seq->first_row = first_row;
            seq->n_rows = n_rows;
            first_row += n_rows;
        }
    }
    return wanted;
}

/* By how much Q grows at a position, as libllama computes it. */
static float q_scale(const quire_model_desc *desc, int32_t position)
{
    const float n = floorf((float)(position + (int32_t)desc->attn_temperature_first) /
                           (float)desc->attn_temperature_tokens);

    return (float)(log((double)n + 1.0) * (double)desc->attn_temperature + 1.0);
}

static void step_inputs(const quire_runtime *rt, const quire_slice *slices, uint32_t n_slices,
                        const quire_graph *graph)
{
    int32_t *tokens = graph->tokens->data;
    int32_t *positions = graph->positions->data; /* NULL where no layer has a rope */
    float *q_scales = graph->q_scales != NULL ? graph->q_scales->data : NULL;
    int32_t *out_rows = graph->out_rows != NULL ? graph->out_rows->data : NULL;
    int32_t *out_positions = graph->out_positions != NULL ? graph->out_positions->data : NULL;
    uint32_t row = 0;

    for (uint32_t i = 0; i < n_slices; i++) {
        const quire_slice *s = &slices[i];
        const uint32_t n_skipped = s->n_tokens - slice_logits(s);

        for (uint32_t j = 0; j < s->n_tokens; j++, row++) {
            const int32_t position = (int32_t)(rt->before_tokens[i] + s->n_gone + j);

            tokens[row] = s->tokens[j];
            if (positions != NULL) {
                positions[row] = position;
            }
            if (q_scales != NULL) {
                q_scales[row] = q_scale(&rt->model->desc, position);
            }
            if (out_rows != NULL && j >= n_skipped) {
                *out_rows++ = (int32_t)row;
                if (out_positions != NULL) {
                    *out_positions++ = position;
                }
            }
        }
    }
}

static int status_of(enum ggml_status status)
{
    return status == GGML_STATUS_SUCCESS   ? QUIRE_OK
           : status == GGML_STATUS_ABORTED ? QUIRE_CANCELED
                                           : QUIRE_NOMEM;
}

const float *quire_runtime_hidden(const quire_runtime *rt)
{
    return rt->hidden;
}

typedef struct parts_run {
    void (*fn)(void *ctx, uint32_t i);
    void *ctx;
    uint32_t n;
    atomic_uint next;
} parts_run;

static void take_parts(void *ctx)
{
    parts_run *run = ctx;
    uint32_t i;

    while ((i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < run->n) {
        run->fn(run->ctx, i);
    }
}

void quire_runtime_parts_run(const quire_runtime *rt, uint32_t n, void (*fn)(void *ctx, uint32_t i),
                             void *ctx)
{
    parts_run run = { .fn = fn, .ctx = ctx, .n = n };

    if (rt->backend.team != NULL && n > 1) {
        quire_team_run(rt->backend.team, n, take_parts, &run);
    } else {
        take_parts(&run);
    }
}

bool quire_runtime_canceler_set(quire_runtime *rt, bool (*gives_up)(void *ctx), void *ctx)
{
    return quire_backend_abort_set(&rt->backend, gives_up, ctx);
}

static int graph_get(quire_runtime *rt, const step_shape *shape, quire_graph **graph)
{
    int rc = quire_graphs_get(&rt->graphs, shape->n_rows, shape->n_logits, rt->queues, graph);

    if (rc == QUIRE_UNSUPP) {
        rt->never_queues = true;
        rt->queues = false;
        rc = quire_graphs_get(&rt->graphs, shape->n_rows, shape->n_logits, false, graph);
    }
    return rc;
}

/* The plan is made: the graph of the step, if it is not that of the last one's kind. */
static int graph_choose(quire_runtime *rt, const step_shape *shape, quire_graph **graph)
{
    const bool queues = rt->device.queue != NULL && !rt->never_queues &&
                        rt->weights->n_devices == 1 && rt->device.queues(rt->device.ctx);

    if (queues == rt->queues) {
        return QUIRE_OK;
    }
    rt->queues = queues;
    return graph_get(rt, shape, graph);
}

int quire_runtime_step(quire_runtime *rt, const quire_slice *slices, uint32_t n_slices,
                       const float **logits)
{
    const uint64_t begin_ns = quire_clock_ns();
    quire_attn_batch batch, wanted;
    quire_graph *graph;
    step_shape shape;
    int rc;

    *logits = NULL;
    rt->hidden = NULL;
    QUIRE_FAIL_IF(quire_runtime_layers_lost(rt) != NULL, QUIRE_LOST);
    QUIRE_TRY(step_check(rt, slices, n_slices, &shape));
    QUIRE_TRY(graph_get(rt, &shape, &graph));
    QUIRE_TRY(quire_runtime_recurrent_begin(rt, slices, n_slices));
    QUIRE_TRY(step_append(rt, slices, n_slices));
    rc = step_begin_attention(rt, slices, n_slices, &batch);
    rc = rc == QUIRE_OK ? graph_choose(rt, &shape, &graph) : rc;
    if (rc == QUIRE_OK) {
        step_inputs(rt, slices, n_slices, graph);
        wanted = exit_batch(rt, slices, n_slices, &batch);
        rt->exit.batch = &wanted;
        rt->exit.status = QUIRE_OK;
        rc = status_of(
            quire_graph_compute(graph, &rt->backend, rt->layers_backends, rt->weights->n_devices));
        rc = quire_runtime_layers_lost(rt) != NULL ? QUIRE_LOST : rc;
        rc = rc == QUIRE_OK ? rt->exit.status : rc;
    }
    if (rc == QUIRE_OK ||
        quire_runtime_is_on_device(rt)) { /* whose queue may hold a failed step's work */
        const int synced = rt->device.sync(rt->device.ctx);

        rc = rc == QUIRE_OK || synced == QUIRE_LOST ? synced : rc;
    }
    if (rc < 0) {
        step_undo(rt, slices, n_slices);
        return rc;
    }
    if (rt->states != NULL) {
        quire_states_commit(rt->states);
    }
    for (uint32_t i = 0; i < n_slices; i++) {
        if (!slices[i].keeps_hot) {
            quire_runtime_release_hot(rt, slices[i].seq, 0);
        }
    }
    quire_cache_maintain(rt->cache);
    *logits = graph->logits != NULL ? graph->logits->data : NULL;
    rt->hidden = graph->hidden != NULL ? graph->hidden->data : NULL;
    rt->steps_total++;
    rt->step_ns += quire_clock_ns() - begin_ns;
    return QUIRE_OK;
}
