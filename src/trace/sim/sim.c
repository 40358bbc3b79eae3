/* sim.c - HITS mode: requests one after the other, prompt blocks only.
 *
 * The cache's budget is the capacity and one longest request; after each request the tree evicts
 * down to the capacity, and may evict the blocks that have just been put in.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim.h"

#include "base/check.h"
#include "base/clock.h"
#include "trace/sim/sim_disk.h"
#include "trace/sim/sim_internal.h"
#include "trace/sim/sim_text.h"

#include <string.h>

/* ---- the timeline ---- */

int quire_sim_timeline_begin(quire_sim_timeline *line, const quire_trace *trace,
                             const quire_sim_opts *opts, quire_sim_result *out)
{
    uint32_t n =
        opts->timeline_points < trace->n_requests ? opts->timeline_points : trace->n_requests;

    *line = (quire_sim_timeline){ .result = out, .points_max = n };
    if (n == 0) {
        return QUIRE_OK;
    }
    line->every = (trace->n_requests + n - 1) / n;
    out->timeline = quire_allocator_default()->alloc(NULL, n * sizeof(*out->timeline));
    return out->timeline != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

void quire_sim_timeline_add(quire_sim_timeline *line, const quire_sim_tree *const *trees,
                            uint32_t n, uint64_t time_us)
{
    quire_sim_result *out = line->result;
    uint64_t blocks = out->blocks - line->blocks;
    quire_sim_point point = { .time_us = time_us };

    if (line->points_max == 0 || ++line->n_requests % line->every != 0 ||
        out->n_points == line->points_max) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        quire_sim_tree_held(trees[i], &point);
    }
    point.hit_rate =
        blocks > 0 ? (double)(out->hit_blocks - line->hit_blocks) / (double)blocks : 0.0;
    out->timeline[out->n_points++] = point;
    line->blocks = out->blocks;
    line->hit_blocks = out->hit_blocks;
}

/* ---- counting ---- */

void quire_sim_count_hits(quire_sim_result *out, const quire_trace *trace,
                          const quire_trace_request *request, uint32_t hit_blocks)
{
    uint64_t hit_tokens = (uint64_t)hit_blocks * trace->block_tokens;

    out->requests++;
    out->blocks += request->n_blocks;
    out->hit_blocks += hit_blocks;
    out->tokens += request->n_input_tokens;
    out->hit_tokens += hit_tokens < request->n_input_tokens ? hit_tokens : request->n_input_tokens;
    out->pages_touched += request->n_blocks;
}

void quire_sim_count_tree(quire_sim_result *out, const quire_sim_tree *tree)
{
    quire_prefix_stats stats;

    quire_prefix_stats_get(tree->tree, &stats);
    out->evictions += stats.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] +
                      stats.gone_nodes_total[QUIRE_PREFIX_GONE_LOW_TRAFFIC] +
                      stats.gone_nodes_total[QUIRE_PREFIX_GONE_TTL];
    out->states_left += tree->states_left;
}

uint8_t quire_sim_rank(const quire_sim_opts *opts, const quire_trace_request *request)
{
    return request->class_index < opts->n_classes ? opts->classes[request->class_index].rank : 0;
}

/* ---- hits ---- */

typedef struct hits_run {
    const quire_trace *trace;
    const quire_sim_opts *opts;
    quire_sim_result *out;
    quire_sim_tree tree;
    quire_sim_disk disk;
    bool has_disk;
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
        quire_sim_disk_write(&run->disk, (uint32_t)c->tokens[0], parts);
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
    if (rc == QUIRE_OK && run->has_disk && quire_sim_has_kv(run->opts)) {
        rc = quire_prefix_copies_visit_path(t->tree, text->ref, node_copy, run);
    }
    quire_sim_text_end(t, text, request->time_us);
    return rc;
}

/* Whether computing n blocks behind others takes less time than reading them. */
static bool is_computing_faster(const hits_run *run, uint32_t n_before, uint32_t n)
{
    const quire_sim_cost *cost = &run->opts->cost;
    const double n_tokens = (double)n * run->trace->block_tokens;
    const double depth = (double)n_before * run->trace->block_tokens + 0.5 * (n_tokens - 1.0);

    return n_tokens * (cost->prefill_token_us + depth * cost->prefill_token_depth_us) <
           n * run->opts->disk.block_us;
}

/* Bring the blocks of a request that the disk has into memory, as the engine does: publish them
 * first, then the request finds them. */
static int request_fetch(hits_run *run, const quire_trace_request *request)
{
    quire_sim_tree *t = &run->tree;
    const uint32_t *ids = quire_trace_blocks(run->trace, request);
    quire_prefix_match match;
    quire_sim_text text;
    uint32_t n_memory;
    uint32_t n_fetched;

    quire_prefix_lookup(t->tree, &quire_sim_key, quire_sim_tree_text(t, ids, request->n_blocks),
                        request->n_blocks * QUIRE_PAGE_TOKENS_MIN, &match);
    n_memory = match.n_tokens / QUIRE_PAGE_TOKENS_MIN;
    n_fetched = quire_sim_disk_run(&run->disk, ids + n_memory, request->n_blocks - n_memory);
    if (is_computing_faster(run, n_memory, n_fetched)) {
        run->out->disk_skipped_blocks += n_fetched;
        n_fetched = 0;
    }
    if (n_fetched > 0) {
        QUIRE_TRY(text_run(run, request, n_memory + n_fetched, true, &text));
    }
    quire_sim_disk_request(&run->disk, ids, request->n_blocks, n_memory, n_fetched,
                           request->session != 0);
    run->out->disk_hit_blocks += n_fetched;
    return QUIRE_OK;
}

/* Blocks of a text from the disk into memory, as the engine has them: each one with the windows and
 * the state that its record has, and no others. */
static int blocks_read(hits_run *run, const quire_sim_text_ask *ask, quire_sim_text *text)
{
    quire_sim_tree *t = &run->tree;

    for (uint32_t n = text->hit_blocks + 1; n <= ask->n_blocks; n++) {
        const uint8_t parts = run->disk.entries[ask->tokens[(n - 1) * QUIRE_PAGE_TOKENS_MIN]].parts;

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
    n_fetched = quire_sim_disk_run(&run->disk, ids + text.hit_blocks, n_fetched);
    if (is_computing_faster(run, text.hit_blocks, n_fetched)) {
        run->out->disk_skipped_blocks += n_fetched;
        n_fetched = 0;
    }
    ask.n_blocks = text.hit_blocks + n_fetched;
    rc = blocks_read(run, &ask, &text);
    quire_sim_text_end(t, &text, request->time_us);
    quire_sim_disk_uses(&run->disk, ids, *n_memory, n_fetched);
    return rc;
}

static int request_run(hits_run *run, const quire_trace_request *request, quire_sim_text *text)
{
    const bool has_parts = run->has_disk && quire_sim_has_kv(run->opts);
    uint32_t n_memory = 0;

    quire_sim_tree_tick(&run->tree, request->time_us);
    if (run->has_disk) {
        QUIRE_TRY(has_parts ? request_fetch_parts(run, request, &n_memory)
                            : request_fetch(run, request));
    }
    QUIRE_TRY(text_run(run, request, request->n_blocks, false, text));
    if (has_parts && text->hit_blocks > n_memory) {
        run->out->disk_hit_blocks += text->hit_blocks - n_memory;
    }
    quire_sim_tree_evict(&run->tree, quire_sim_capacity(run->opts));
    if (run->has_disk && run->opts->disk.copy == QUIRE_SIM_COPY_EVICTED) {
        quire_sim_disk_evicted(&run->disk, run->tree.tree);
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
    int rc = QUIRE_OK;

    QUIRE_TRY(quire_sim_tree_init(&run->tree, &tree_opts, err));
    run->has_disk = run->opts->disk.capacity_blocks > 0;
    if (run->has_disk) {
        rc = quire_sim_disk_init(&run->disk, &run->opts->disk, &run->opts->kv, run->trace->n_ids);
    }
    if (rc < 0) {
        quire_sim_tree_fini(&run->tree);
        quire_sim_disk_fini(&run->disk);
        return quire_error_set(err, rc,
                               "a disk of %llu blocks cannot be simulated: %s (it holds at least "
                               "%u segments, each as large as a block with its windows and state)",
                               (unsigned long long)run->opts->disk.capacity_blocks,
                               quire_status_text(rc), QUIRE_SIM_DISK_SEGMENTS_MIN);
    }
    return QUIRE_OK;
}

static void hits_end(hits_run *run)
{
    quire_sim_count_tree(run->out, &run->tree);
    run->out->disk_written_blocks = run->disk.written_blocks;
    run->out->disk_carried_blocks = run->disk.carried_blocks;
    quire_sim_tree_fini(&run->tree);
    quire_sim_disk_fini(&run->disk);
}

/* ---- devices ---- */

typedef struct devices {
    hits_run runs[QUIRE_SIM_DEVICES_MAX];
    const quire_sim_tree *trees[QUIRE_SIM_DEVICES_MAX];
    uint64_t computed[QUIRE_SIM_DEVICES_MAX]; /* blocks */
    uint32_t n;
} devices;

static int devices_begin(devices *d, const hits_run *run, quire_error *err)
{
    const uint32_t n = run->opts->n_devices != 0 ? run->opts->n_devices : 1;

    *d = (devices){ .n = 0 };
    while (d->n < n) {
        d->runs[d->n] = *run;
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
        out->busiest_blocks =
            d->computed[i] > out->busiest_blocks ? d->computed[i] : out->busiest_blocks;
    }
}

/* Blocks of a prompt that a device has cached. */
static uint32_t cached_on(hits_run *run, const quire_trace_request *request)
{
    quire_sim_tree *t = &run->tree;
    quire_prefix_match match;

    quire_prefix_lookup(
        t->tree, &quire_sim_key,
        quire_sim_tree_text(t, quire_trace_blocks(run->trace, request), request->n_blocks),
        request->n_blocks * QUIRE_PAGE_TOKENS_MIN, &match);
    return match.n_tokens / QUIRE_PAGE_TOKENS_MIN;
}

static uint32_t device_of(devices *d, const quire_trace_request *request)
{
    uint32_t best = 0;
    uint32_t n_best = 0;

    for (uint32_t i = 0; d->n > 1 && i < d->n; i++) {
        uint32_t n;

        quire_sim_tree_tick(&d->runs[i].tree, request->time_us); /* expired blocks are none */
        n = cached_on(&d->runs[i], request);

        if (n > n_best || (n == n_best && d->computed[i] < d->computed[best])) {
            best = i;
            n_best = n;
        }
    }
    return best;
}

int quire_sim_failed(int status, quire_error *err)
{
    return status == QUIRE_CANCELED ? quire_error_set(err, status, "interrupted")
                                    : quire_error_set(err, status, "the simulation failed: %s",
                                                      quire_status_text(status));
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
            const uint32_t device = device_of(&d, request);

            rc = request_run(&d.runs[device], request, &text);
            d.computed[device] += request->n_blocks - text.hit_blocks;
        }
        quire_sim_count_hits(out, trace, request, text.hit_blocks);
        out->regret_blocks += text.gone_blocks;
        quire_sim_timeline_add(&line, d.trees, d.n, request->time_us);
        rc = rc == QUIRE_OK ? quire_sim_ask(&opts->cancel) : rc;
    }
    devices_end(&d, out);
    return rc < 0 ? quire_sim_failed(rc, err) : QUIRE_OK;
}

/* ---- both modes ---- */

/* A capacity in blocks; with kv the blocks of layers that keep all tokens that it has room for. */
static int capacity_check(const quire_sim_opts *opts, quire_error *err)
{
    const uint64_t n_blocks = quire_sim_capacity(opts) / quire_sim_charge(opts, 1);

    if (n_blocks == 0 || n_blocks > QUIRE_PAGES_MAX / 2) {
        return quire_error_set(err, QUIRE_INVAL, "a capacity of %llu blocks: 1 to %u can be had",
                               (unsigned long long)n_blocks, QUIRE_PAGES_MAX / 2);
    }
    return QUIRE_OK;
}

static int kv_check(const quire_sim_opts *opts, quire_error *err)
{
    const quire_sim_kv *kv = &opts->kv;

    if ((kv->block_bytes == 0 && (kv->window_bytes != 0 || kv->state_bytes != 0)) ||
        kv->block_bytes > QUIRE_PAGE_BYTES_MAX || kv->window_bytes > QUIRE_PAGE_BYTES_MAX ||
        kv->state_bytes > QUIRE_PAGE_BYTES_MAX || kv->seq_state_bytes > QUIRE_PAGE_BYTES_MAX ||
        (kv->window_bytes != 0 && kv->window_tokens == 0) ||
        (kv->state_bytes != 0 && kv->state_every_tokens == 0)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "the memory of a block: %llu bytes, %llu behind a window of %u "
                               "tokens, a state of %llu bytes every %u tokens",
                               (unsigned long long)kv->block_bytes,
                               (unsigned long long)kv->window_bytes, kv->window_tokens,
                               (unsigned long long)kv->state_bytes, kv->state_every_tokens);
    }
    if (opts->disk.capacity_blocks > 0 && opts->disk.copy == QUIRE_SIM_COPY_EVICTED &&
        quire_sim_has_kv(opts)) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "copies of what memory evicts are not simulated with layers that "
                               "have windows or states");
    }
    return QUIRE_OK;
}

static int opts_check(const quire_sim_opts *opts, quire_error *err)
{
    QUIRE_TRY(kv_check(opts, err));
    QUIRE_TRY(capacity_check(opts, err));
    if (opts->disk.capacity_blocks > 0 && opts->mode == QUIRE_SIM_TIME) {
        return quire_error_set(err, QUIRE_UNSUPP, "a disk can only be simulated in mode hits");
    }
    if (opts->n_devices > QUIRE_SIM_DEVICES_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u devices: at most %u can be had",
                               opts->n_devices, QUIRE_SIM_DEVICES_MAX);
    }
    if (opts->n_devices > 1 && (opts->mode == QUIRE_SIM_TIME || opts->disk.capacity_blocks > 0)) {
        return quire_error_set(
            err, QUIRE_UNSUPP,
            "several devices can only be simulated in mode hits, without a disk");
    }
    if (opts->n_classes > QUIRE_TRACE_CLASSES_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u classes: at most %u can be had",
                               opts->n_classes, QUIRE_TRACE_CLASSES_MAX);
    }
    return QUIRE_OK;
}

int quire_sim_run(const quire_trace *trace, const quire_sim_opts *opts, quire_sim_result *out,
                  quire_error *err)
{
    uint64_t begin_ns = quire_clock_ns();
    uint64_t begin_cpu_ns = quire_clock_thread_ns();
    int rc;

    memset(out, 0, sizeof(*out));
    QUIRE_TRY(opts_check(opts, err));
    if (quire_trace_longest_blocks(trace) == 0) {
        return quire_error_set(err, QUIRE_INVAL, "a trace without blocks");
    }
    rc = opts->mode == QUIRE_SIM_TIME ? quire_sim_time(trace, opts, out, err)
                                      : quire_sim_hits(trace, opts, out, err);
    out->wall_s = (double)(quire_clock_ns() - begin_ns) * 1e-9;
    out->cpu_s = (double)(quire_clock_thread_ns() - begin_cpu_ns) * 1e-9;
    if (rc < 0) {
        quire_sim_result_fini(out);
    }
    return rc;
}

void quire_sim_result_fini(quire_sim_result *result)
{
    quire_allocator_default()->free(NULL, result->timeline);
    memset(result, 0, sizeof(*result));
}
