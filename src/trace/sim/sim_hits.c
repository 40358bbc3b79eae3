/* sim_hits.c - HITS mode: requests one after the other, prompt blocks only.
 *
 * The cache's budget is the capacity and one longest request; after each request the tree evicts
 * down to the capacity, and may evict the blocks that have just been put in.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/num.h"
#include "trace/sim/sim_choice.h"
#include "trace/sim/sim_disk.h"
#include "trace/sim/sim_internal.h"
#include "trace/sim/sim_text.h"

#include <math.h>

/* A device. */
typedef struct hits_run {
    const quire_trace *trace;
    const quire_sim_opts *opts;
    quire_sim_result *out;
    quire_sim_disk *disk; /* below all devices; NULL = none */
    quire_sim_tree tree;
    quire_sim_above above;
    uint64_t n_computed; /* blocks */
} hits_run;

/* Computed blocks are published, and leave states behind them. */
static int text_compute(hits_run *run, quire_sim_text *text, const quire_sim_text_ask *ask)
{
    quire_sim_tree *t = &run->tree;
    uint32_t n = text->hit_blocks;

    QUIRE_TRY(quire_sim_text_grow(t, text, ask->n_blocks));
    QUIRE_TRY(quire_sim_text_publish(t, text, ask->tokens, ask->n_blocks, ask->now_us));
    while ((n = quire_sim_text_next(t, text, n)) < ask->n_blocks) {
        quire_sim_text_state(t, text, n, false);
    }
    quire_sim_text_state(t, text, ask->n_blocks, true);
    return QUIRE_OK;
}

/* Copy a block of the text at hand by the rule, with the parts that its node has. */
static void node_copy(void *ctx, const quire_prefix_copy *c)
{
    hits_run *run = ctx;
    const uint8_t parts = (uint8_t)((c->has_windows ? QUIRE_SIM_PART_WINDOWS : 0) |
                                    (c->has_state ? QUIRE_SIM_PART_STATE : 0));

    if (c->mark == QUIRE_COPY_NONE && c->parent_mark != QUIRE_COPY_NONE &&
        (run->opts->disk.copy == QUIRE_SIM_COPY_ALL || c->hits > 0 || c->owner != 0)) {
        /* A record may lack the windows or the state, and is written anew for them. */
        if (parts != 0 || !quire_sim_disk_has(run->disk, (uint32_t)c->tokens[0])) {
            quire_sim_disk_write(run->disk, (uint32_t)c->tokens[0], parts);
        }
        (void)quire_prefix_copy_mark_set(run->tree.tree, c->node, c->key, QUIRE_COPY_KEPT);
    }
}

/* Open a sequence with the part of the text that the tree has, append the rest and publish. */
static int text_run(hits_run *run, const quire_trace_request *request, uint32_t n_blocks,
                    bool is_fetch, quire_sim_text *text)
{
    quire_sim_tree *t = &run->tree;
    const quire_sim_text_ask ask = {
        .request = request,
        .tokens = quire_sim_tree_text(t, quire_trace_blocks(run->trace, request), n_blocks),
        .n_blocks = n_blocks,
        .n_tokens = request->n_input_tokens,
        .now_us = request->time_us,
        .rank = quire_sim_rank(run->opts, request),
        .is_uncounted = is_fetch,
    };
    int rc;

    QUIRE_TRY(quire_sim_text_begin(t, &ask, text));
    rc = text_compute(run, text, &ask);
    if (rc == QUIRE_OK && run->disk != NULL && quire_sim_has_kv(run->opts)) {
        rc = quire_prefix_copies_visit_path(t->tree, text->ref, node_copy, run);
    }
    quire_sim_text_end(t, text, request->time_us);
    return rc;
}

/* The time of computing n blocks behind others. */
static double compute_us(const hits_run *run, uint32_t n_before, uint32_t n)
{
    const quire_sim_cost *cost = &run->opts->cost;
    const double n_tokens = (double)n * run->trace->block_tokens;
    const double depth = (double)n_before * run->trace->block_tokens + 0.5 * (n_tokens - 1.0);

    return n_tokens * (cost->prefill_token_us + depth * cost->prefill_token_depth_us);
}

/* Whether computing n blocks behind others takes less time than reading them. */
static bool is_computing_faster(const hits_run *run, uint32_t n_before, uint32_t n)
{
    return compute_us(run, n_before, n) < n * run->opts->disk.block_us;
}

/* Bring the blocks of a request that the disk has into memory, as the engine does: publish them
 * first, then the request finds them. */
static int request_fetch(hits_run *run, const quire_trace_request *request)
{
    const uint32_t *ids = quire_trace_blocks(run->trace, request);
    const uint32_t n_memory =
        quire_sim_cached_blocks(&run->tree, run->trace, request, request->time_us);
    quire_sim_text text;
    uint32_t n_fetched;

    n_fetched = quire_sim_disk_run(run->disk, ids + n_memory, request->n_blocks - n_memory);
    if (is_computing_faster(run, n_memory, n_fetched)) {
        run->out->disk_skipped_blocks += n_fetched;
        n_fetched = 0;
    }
    if (n_fetched > 0) {
        QUIRE_TRY(text_run(run, request, n_memory + n_fetched, true, &text));
    }
    quire_sim_disk_request(run->disk, &run->above,
                           &(quire_sim_disk_use){ .ids = ids,
                                                  .n = request->n_blocks,
                                                  .n_memory = n_memory,
                                                  .n_fetched = n_fetched,
                                                  .has_session = request->session != 0 });
    run->out->disk_hit_blocks += n_fetched;
    return QUIRE_OK;
}

/* Blocks of a text from the disk into memory, as the engine has them: each one with the windows and
 * the state that its record has, and no others. */
static int blocks_read(hits_run *run, const quire_sim_text_ask *ask, quire_sim_text *text)
{
    quire_sim_tree *t = &run->tree;

    for (uint32_t n = text->hit_blocks + 1; n <= ask->n_blocks; n++) {
        const uint8_t parts =
            run->disk->entries[ask->tokens[(n - 1) * QUIRE_PAGE_TOKENS_MIN]].parts;

        QUIRE_TRY(quire_sim_text_grow(t, text, n));
        if ((parts & QUIRE_SIM_PART_WINDOWS) == 0) {
            QUIRE_TRY(quire_sim_text_window_leave(t, text, n - 1));
        }
        QUIRE_TRY(quire_sim_text_publish(t, text, ask->tokens, n, ask->now_us));
        if ((parts & QUIRE_SIM_PART_STATE) != 0) {
            (void)quire_prefix_state_put(t->tree, text->ref, n * QUIRE_PAGE_TOKENS_MIN);
        }
        QUIRE_TRY(quire_prefix_copy_mark_ref(t->tree, text->ref, QUIRE_COPY_KEPT));
    }
    return QUIRE_OK;
}

/* The same with windows or states. *n_memory: the blocks that memory alone would have hit. */
static int request_fetch_parts(hits_run *run, const quire_trace_request *request,
                               uint32_t *n_memory)
{
    quire_sim_tree *t = &run->tree;
    const uint32_t *ids = quire_trace_blocks(run->trace, request);
    quire_sim_text_ask ask = { .request = request,
                               .tokens = quire_sim_tree_text(t, ids, request->n_blocks),
                               .n_blocks = request->n_blocks,
                               .n_tokens = request->n_input_tokens,
                               .now_us = request->time_us,
                               .rank = quire_sim_rank(run->opts, request),
                               .is_uncounted = true };
    uint32_t n_fetched;
    quire_sim_text text;
    int rc;

    QUIRE_TRY(quire_sim_text_begin(t, &ask, &text));
    *n_memory = text.hit_blocks;
    n_fetched = quire_sim_text_hits_max(t, &ask) - text.hit_blocks;
    n_fetched = quire_sim_disk_run(run->disk, ids + text.hit_blocks, n_fetched);
    if (is_computing_faster(run, text.hit_blocks, n_fetched)) {
        run->out->disk_skipped_blocks += n_fetched;
        n_fetched = 0;
    }
    ask.n_blocks = text.hit_blocks + n_fetched;
    rc = blocks_read(run, &ask, &text);
    quire_sim_text_end(t, &text, request->time_us);
    quire_sim_disk_uses(run->disk, ids, *n_memory, n_fetched);
    return rc;
}

static int request_run(hits_run *run, const quire_trace_request *request, quire_sim_text *text)
{
    const bool has_parts = run->disk != NULL && quire_sim_has_kv(run->opts);
    uint32_t n_memory = 0;

    quire_sim_tree_tick(&run->tree, request->time_us);
    if (run->disk != NULL) {
        QUIRE_TRY(has_parts ? request_fetch_parts(run, request, &n_memory)
                            : request_fetch(run, request));
    }
    QUIRE_TRY(text_run(run, request, request->n_blocks, false, text));
    if (has_parts && text->hit_blocks > n_memory) {
        run->out->disk_hit_blocks += text->hit_blocks - n_memory;
    }
    quire_sim_tree_evict(&run->tree, quire_sim_capacity(run->opts));
    if (run->disk != NULL && run->opts->disk.copy == QUIRE_SIM_COPY_EVICTED) {
        quire_sim_disk_evicted(run->disk, &run->above, run->tree.tree);
    }
    return QUIRE_OK;
}

/* The charge of the longest text, and of the states that it leaves. */
static uint64_t text_charge(const hits_run *run, uint32_t n_blocks)
{
    const quire_sim_kv *kv = &run->opts->kv;
    uint64_t charge = quire_sim_charge(run->opts, n_blocks) + n_blocks * kv->window_bytes;

    if (kv->state_bytes != 0) {
        charge += kv->state_bytes *
                  (4 + (uint64_t)n_blocks * run->trace->block_tokens / kv->state_every_tokens);
    }
    return charge;
}

static int hits_begin(hits_run *run, quire_error *err)
{
    const uint32_t longest = quire_trace_longest_blocks(run->trace);
    const quire_sim_tree_opts tree_opts = { .sim = run->opts,
                                            .budget = quire_sim_capacity(run->opts) +
                                                      text_charge(run, longest),
                                            .blocks_max = longest,
                                            .seqs_max = 1,
                                            .block_tokens = run->trace->block_tokens };

    QUIRE_TRY(quire_sim_tree_init(&run->tree, &tree_opts, err));
    if (run->disk != NULL && quire_sim_above_init(&run->above, run->trace->n_ids) < 0) {
        quire_sim_above_fini(&run->above);
        quire_sim_tree_fini(&run->tree);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    return QUIRE_OK;
}

static void hits_end(hits_run *run)
{
    quire_sim_count_tree(run->out, &run->tree);
    run->out->busiest_blocks = quire_max_u64(run->out->busiest_blocks, run->n_computed);
    quire_sim_tree_fini(&run->tree);
    quire_sim_above_fini(&run->above);
}

/* ---- devices ---- */

typedef struct devices {
    hits_run runs[QUIRE_SIM_DEVICES_MAX];
    const quire_sim_tree *trees[QUIRE_SIM_DEVICES_MAX];
    uint32_t n;
    quire_sim_disk disk;
} devices;

static int disk_begin(devices *d, const hits_run *run, quire_error *err)
{
    const int rc =
        quire_sim_disk_init(&d->disk, &run->opts->disk, &run->opts->kv, run->trace->n_ids);

    return rc == QUIRE_OK ? rc
                          : quire_error_set(
                                err, rc,
                                "a disk of %llu blocks cannot be simulated: %s (it holds at least "
                                "%u segments, each as large as a block with its windows and state)",
                                (unsigned long long)run->opts->disk.capacity_blocks,
                                quire_status_text(rc), QUIRE_SIM_DISK_SEGMENTS_MIN);
}

static int devices_begin(devices *d, const hits_run *run, quire_error *err)
{
    const uint32_t n = quire_sim_devices(run->opts);
    const bool has_disk = run->opts->disk.capacity_blocks > 0;

    *d = (devices){ .n = 0 };
    if (has_disk) {
        QUIRE_TRY(disk_begin(d, run, err));
    }
    while (d->n < n) {
        d->runs[d->n] = *run;
        d->runs[d->n].disk = has_disk ? &d->disk : NULL;
        QUIRE_TRY(hits_begin(&d->runs[d->n], err));
        d->trees[d->n] = &d->runs[d->n].tree;
        d->n++;
    }
    return QUIRE_OK;
}

static void devices_end(devices *d, quire_sim_result *out)
{
    for (uint32_t i = 0; i < d->n; i++) {
        hits_end(&d->runs[i]);
    }
    out->disk_written_blocks = d->disk.written_blocks;
    out->disk_carried_blocks = d->disk.carried_blocks;
    quire_sim_disk_fini(&d->disk);
}

/* Tokens of the prompt that blocks of the disk save, less the cost of reading them in tokens. */
static uint32_t saved_by_disk(const hits_run *run, const quire_trace_request *request,
                              uint32_t n_memory)
{
    const uint32_t n =
        quire_sim_disk_run(run->disk, quire_trace_blocks(run->trace, request) + n_memory,
                           request->n_blocks - n_memory);
    const uint32_t n_tokens = quire_sim_tokens_behind(run->trace, request, n_memory) -
                              quire_sim_tokens_behind(run->trace, request, n_memory + n);
    const double computing_us = compute_us(run, n_memory, n);
    double share = QUIRE_SIM_FETCH_SHARE;

    if (run->opts->disk.block_us > 0.0 && computing_us > 0.0) {
        share = fmin(n * run->opts->disk.block_us / computing_us, 1.0);
    }
    return n_tokens - (uint32_t)ceil(share * n_tokens);
}

static quire_sim_offer offer_of(hits_run *run, const quire_trace_request *request)
{
    const uint32_t n_memory =
        quire_sim_cached_blocks(&run->tree, run->trace, request, request->time_us);
    const uint32_t n_saved = run->disk != NULL ? saved_by_disk(run, request, n_memory) : 0;

    return (quire_sim_offer){ .work =
                                  quire_sim_tokens_behind(run->trace, request, n_memory) - n_saved,
                              .n_cached = n_memory,
                              .n_blocks = run->n_computed };
}

static hits_run *device_of(devices *d, const quire_trace_request *request)
{
    hits_run *best = &d->runs[0];
    quire_sim_offer best_offer;

    if (d->n == 1) {
        return best;
    }
    best_offer = offer_of(best, request);
    for (uint32_t i = 1; i < d->n; i++) {
        const quire_sim_offer offer = offer_of(&d->runs[i], request);

        if (quire_sim_offer_is_better(&offer, &best_offer)) {
            best = &d->runs[i];
            best_offer = offer;
        }
    }
    return best;
}

int quire_sim_hits(const quire_trace *trace, const quire_sim_opts *opts, quire_sim_result *out,
                   quire_error *err)
{
    const hits_run run = { .trace = trace, .opts = opts, .out = out };
    quire_sim_timeline line;
    devices d;
    int rc = devices_begin(&d, &run, err);

    if (rc < 0) {
        devices_end(&d, out);
        return rc;
    }
    rc = quire_sim_timeline_begin(&line, trace, opts, out);
    for (uint32_t i = 0; i < trace->n_requests && rc == QUIRE_OK; i++) {
        const quire_trace_request *request = &trace->requests[i];
        quire_sim_text text = { 0 };

        if (request->n_blocks > 0) {
            hits_run *device = device_of(&d, request);

            rc = request_run(device, request, &text);
            device->n_computed += request->n_blocks - text.hit_blocks;
        }
        quire_sim_count_hits(out, trace, request, text.hit_blocks);
        out->regret_blocks += text.gone_blocks;
        quire_sim_timeline_add(&line, d.trees, d.n, request->time_us);
        rc = rc == QUIRE_OK ? quire_sim_ask(&opts->cancel) : rc;
    }
    devices_end(&d, out);
    return rc < 0 ? quire_sim_failed(rc, err) : QUIRE_OK;
}
