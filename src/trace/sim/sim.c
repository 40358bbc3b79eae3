/* sim.c - common parts of the modes: options, counts, the timeline.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim.h"

#include "base/check.h"
#include "base/clock.h"
#include "trace/sim/sim_internal.h"

#include <stdlib.h>
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
    const uint32_t n_points = out->n_points;
    const bool is_more = n_points > 0 && out->timeline[n_points - 1].time_us == time_us;
    quire_sim_point point = { .time_us = time_us };
    uint64_t blocks;

    if (line->points_max == 0 || ++line->n_requests % line->every != 0 ||
        (n_points == line->points_max && !is_more)) {
        return;
    }
    if (!is_more) { /* the point of this time begins; else it grows */
        line->blocks = line->blocks_now;
        line->hit_blocks = line->hit_blocks_now;
    }
    blocks = out->blocks - line->blocks;
    for (uint32_t i = 0; i < n; i++) {
        quire_sim_tree_held(trees[i], &point);
    }
    point.hit_rate =
        blocks > 0 ? (double)(out->hit_blocks - line->hit_blocks) / (double)blocks : 0.0;
    out->timeline[is_more ? n_points - 1 : n_points] = point;
    out->n_points += !is_more;
    line->blocks_now = out->blocks;
    line->hit_blocks_now = out->hit_blocks;
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

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;

    return a < b ? -1 : a > b;
}

/* The smallest value that a share q of them does not exceed. */
static double quantile(const double *sorted, uint32_t n, double q)
{
    uint32_t at = (uint32_t)(q * n);

    return sorted[at < n ? at : n - 1];
}

quire_sim_latency quire_sim_latency_of(double *values, uint32_t n)
{
    quire_sim_latency latency = { 0 };

    if (n == 0) {
        return latency;
    }
    qsort(values, n, sizeof(*values), by_value);
    for (uint32_t i = 0; i < n; i++) {
        latency.mean_us += values[i] / n;
    }
    latency.p50_us = quantile(values, n, 0.50);
    latency.p95_us = quantile(values, n, 0.95);
    latency.p99_us = quantile(values, n, 0.99);
    return latency;
}

int quire_sim_failed(int status, quire_error *err)
{
    return status == QUIRE_CANCELED ? quire_error_set(err, status, "interrupted")
                                    : quire_error_set(err, status, "the simulation failed: %s",
                                                      quire_status_text(status));
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
    out->n_devices = quire_sim_devices(opts);
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
