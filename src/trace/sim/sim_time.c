/* sim_time.c - TIME mode: an engine's steps in virtual time.
 *
 * As in the engine, requests wait in order of rank, then of arrival. The first request that does
 * not fit holds up later ones. A step has a row for each request that writes, and prompt tokens up
 * to chunk_tokens in all, oldest request first. Computed pages are published after the step. When a
 * page is missing for an answer, the youngest running request of the lowest rank is preempted and
 * returns later.
 *
 * Not simulated: a request held back while another computes the same prefix.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "trace/sim/sim_internal.h"
#include "trace/sim/sim_job.h"

#include <stdlib.h>
#include <string.h>

typedef struct sim_clock {
    const quire_trace *trace;
    const quire_sim_opts *opts;
    quire_sim_result *out;
    quire_sim_tree tree;
    quire_sim_timeline line;
    double now_us;
    uint32_t n_arrived;      /* requests */
    quire_sim_job **waiting; /* [n_requests]: a heap, the first to be admitted on top */
    uint32_t n_waiting;
    quire_sim_job **running; /* [n_running_max], in order of admission */
    uint32_t n_running;
    uint32_t n_own_ids;
    bool may_admit;    /* something has changed since the first in the queue did not fit */
    double *ttft_us;   /* [n_requests] */
    double *queued_us; /* [n_requests] */
    uint32_t n_ttft;
    uint32_t n_queued;
} sim_clock;

/* ---- the queue ---- */

static bool comes_before(const quire_sim_job *a, const quire_sim_job *b)
{
    return a->rank != b->rank ? a->rank > b->rank : a->index < b->index;
}

static void queue_push(sim_clock *c, quire_sim_job *job)
{
    uint32_t at = c->n_waiting++;

    while (at > 0 && comes_before(job, c->waiting[(at - 1) / 2])) {
        c->waiting[at] = c->waiting[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    c->waiting[at] = job;
}

static void queue_pop(sim_clock *c)
{
    quire_sim_job *last = c->waiting[--c->n_waiting];
    uint32_t at = 0;

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < c->n_waiting && comes_before(c->waiting[child + 1], c->waiting[child])) {
            child++;
        }
        if (child >= c->n_waiting || !comes_before(c->waiting[child], last)) {
            break;
        }
        c->waiting[at] = c->waiting[child];
        at = child;
    }
    c->waiting[at] = last;
}

/* Queue the requests that have arrived. A request that could never fit is refused. */
static int arrivals_take(sim_clock *c)
{
    while (c->n_arrived < c->trace->n_requests &&
           (double)c->trace->requests[c->n_arrived].time_us <= c->now_us) {
        const quire_trace_request *request = &c->trace->requests[c->n_arrived];
        uint32_t index = c->n_arrived++;
        quire_sim_job *job;

        if (request->n_blocks == 0 ||
            quire_sim_job_charge(&c->tree, quire_sim_job_blocks(c->trace, request),
                                 c->opts->cost.chunk_tokens) >
                quire_sim_tree_reach(&c->tree, quire_sim_capacity(c->opts), request->class_index)) {
            c->out->refused++;
            continue;
        }
        QUIRE_FAIL_IF(c->n_own_ids > (uint32_t)INT32_MAX / 2, QUIRE_LIMIT);
        job = calloc(1, sizeof(*job));
        QUIRE_FAIL_IF(job == NULL, QUIRE_NOMEM);
        job->request = request;
        job->index = index;
        job->rank = quire_sim_rank(c->opts, request);
        job->arrived_us = (double)request->time_us;
        job->own_id = c->n_own_ids;
        c->n_own_ids += quire_sim_job_blocks(c->trace, request) - request->n_blocks;
        c->may_admit = c->may_admit || c->n_waiting == 0 || comes_before(job, c->waiting[0]);
        queue_push(c, job);
    }
    return QUIRE_OK;
}

static quire_sim_place place_of(sim_clock *c)
{
    return (quire_sim_place){ &c->tree, c->trace, (uint64_t)c->now_us, c->opts->cost.chunk_tokens };
}

static void admitted(sim_clock *c, quire_sim_job *job)
{
    if (!job->has_been) {
        job->has_been = true;
        c->queued_us[c->n_queued++] = c->now_us - job->arrived_us;
        c->out->regret_blocks += job->text.gone_blocks;
        quire_sim_count_hits(c->out, c->trace, job->request, job->hit_blocks);
        const quire_sim_tree *tree = &c->tree;

        quire_sim_timeline_add(&c->line, &tree, 1, (uint64_t)c->now_us);
    }
    c->running[c->n_running++] = job;
}

static int queue_admit(sim_clock *c)
{
    while (c->may_admit && c->n_waiting > 0 && c->n_running < c->opts->cost.n_running_max) {
        quire_sim_job *job = c->waiting[0];
        const quire_sim_place place = place_of(c);
        int rc = quire_sim_job_admit(job, &place);

        if (rc == QUIRE_NOPAGES && c->n_running > 0) {
            c->may_admit = false;
            return QUIRE_OK;
        }
        queue_pop(c);
        if (rc == QUIRE_NOPAGES) { /* alone, and still: other regions have the memory */
            c->out->refused += !job->has_been;
            free(job);
            continue;
        }
        if (rc < 0) {
            free(job);
            return rc;
        }
        admitted(c, job);
    }
    return QUIRE_OK;
}

/* ---- a step ---- */

static void running_remove(sim_clock *c, uint32_t i)
{
    memmove(&c->running[i], &c->running[i + 1], (c->n_running - i - 1) * sizeof(*c->running));
    c->n_running--;
    c->may_admit = true;
}

/* The job that releases its pages: the last one of the lowest rank. */
static uint32_t victim_of(const sim_clock *c)
{
    uint32_t victim = c->n_running - 1;

    for (uint32_t i = c->n_running; i-- > 0;) {
        if (c->running[i]->rank < c->running[victim]->rank) {
            victim = i;
        }
    }
    return victim;
}

static void preempt(sim_clock *c, uint32_t i)
{
    quire_sim_job *job = c->running[i];
    const quire_sim_place place = place_of(c);

    quire_sim_job_leave(job, &place);
    c->out->preemptions++;
    running_remove(c, i);
    queue_push(c, job);
}

/* Tokens that a job computes in this step, given the rest of the chunk. */
static uint32_t rows_of(const quire_sim_tree *tree, const quire_sim_job *job, uint32_t *n_chunk)
{
    uint32_t n = quire_sim_job_wants(job) - job->n_computed;

    if (n == 1 && job->n_written > 0) {
        return 1; /* writes */
    }
    n = quire_sim_job_until(job, tree, n < *n_chunk ? n : *n_chunk);
    *n_chunk -= n;
    return n;
}

static double rows_us(const quire_sim_cost *cost, const quire_sim_job *job, uint32_t n)
{
    double depth = job->n_computed;

    if (n == 1 && job->n_written > 0) {
        return cost->decode_row_us + depth * cost->decode_row_depth_us;
    }
    return n * (cost->prefill_token_us + (depth + 0.5 * (n - 1)) * cost->prefill_token_depth_us);
}

/* How long a step takes; each job's rows are set. */
static double step_plan(const sim_clock *c)
{
    const quire_sim_cost *cost = &c->opts->cost;
    uint32_t n_chunk = cost->chunk_tokens;
    double us = cost->decode_step_us;

    for (uint32_t i = 0; i < c->n_running; i++) {
        quire_sim_job *job = c->running[i];

        job->n_rows = rows_of(&c->tree, job, &n_chunk);
        us += rows_us(cost, job, job->n_rows);
    }
    return us;
}

/* A job has all that it wanted computed: a token comes out. Returns whether it was the last. */
static bool token_out(sim_clock *c, quire_sim_job *job)
{
    if (!job->has_begun) {
        job->has_begun = true;
        c->ttft_us[c->n_ttft++] = c->now_us - job->arrived_us;
    }
    job->n_written++;
    return job->n_written >= job->request->n_output_tokens;
}

/* running[*i] has computed its rows. If pages for them are missing, the least important job
 * releases its pages. That may be this job: its rows are then lost, as in a failed step, and *i is
 * the place of the next job. A job that is alone and still lacks pages ends with its output so far,
 * as in the engine. */
static int job_advance(sim_clock *c, uint32_t *i, bool *is_there)
{
    quire_sim_job *job = c->running[*i];
    const quire_sim_place place = place_of(c);
    int rc;

    *is_there = true;
    while ((rc = quire_sim_job_advance(job, &place, job->n_rows)) == QUIRE_NOPAGES && *is_there) {
        uint32_t victim = victim_of(c);

        *is_there = victim != *i;
        if (c->n_running == 1) {
            quire_sim_job_leave(job, &place);
            running_remove(c, 0);
            free(job);
            return QUIRE_OK;
        }
        preempt(c, victim);
        *i -= victim < *i;
        if (!*is_there) {
            return QUIRE_OK;
        }
    }
    return rc;
}

/* After a step: tokens come out, answers end. */
static int step_end(sim_clock *c)
{
    for (uint32_t i = 0; i < c->n_running;) {
        quire_sim_job *job = c->running[i];
        bool is_there;

        QUIRE_TRY(job_advance(c, &i, &is_there));
        if (!is_there) {
            continue;
        }
        if (job->n_computed == quire_sim_job_wants(job) && token_out(c, job)) {
            const quire_sim_place place = place_of(c);

            quire_sim_job_leave(job, &place);
            running_remove(c, i);
            free(job);
            continue;
        }
        i++;
    }
    return QUIRE_OK;
}

static int clock_run(sim_clock *c)
{
    for (;;) {
        QUIRE_TRY(quire_sim_ask(&c->opts->cancel));
        QUIRE_TRY(arrivals_take(c));
        quire_sim_tree_tick(&c->tree, (uint64_t)c->now_us);
        QUIRE_TRY(queue_admit(c));
        if (c->n_running > 0) {
            c->now_us += step_plan(c);
            QUIRE_TRY(step_end(c));
        } else if (c->n_arrived < c->trace->n_requests) {
            c->now_us = (double)c->trace->requests[c->n_arrived].time_us;
        } else {
            return QUIRE_OK;
        }
    }
}

/* ---- the whole ---- */

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

static quire_sim_latency latency_of(double *values, uint32_t n)
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

static int clock_init(sim_clock *c, quire_error *err)
{
    const quire_trace *trace = c->trace;
    const uint32_t n_running_max = c->opts->cost.n_running_max;
    quire_sim_tree_opts opts = { .sim = c->opts,
                                 .budget = quire_sim_capacity(c->opts),
                                 .seqs_max = n_running_max,
                                 .block_tokens = trace->block_tokens };

    for (uint32_t i = 0; i < trace->n_requests; i++) {
        uint32_t n = quire_sim_job_blocks(trace, &trace->requests[i]);

        if (n > opts.blocks_max && quire_sim_charge(c->opts, n) <= quire_sim_capacity(c->opts)) {
            opts.blocks_max = n;
        }
    }
    opts.blocks_max = opts.blocks_max > 0 ? opts.blocks_max : 1;
    QUIRE_TRY(quire_sim_tree_init(&c->tree, &opts, err));
    c->waiting = calloc(trace->n_requests, sizeof(*c->waiting));
    c->running = calloc(n_running_max, sizeof(*c->running));
    c->ttft_us = calloc(trace->n_requests, sizeof(*c->ttft_us));
    c->queued_us = calloc(trace->n_requests, sizeof(*c->queued_us));
    if (c->waiting == NULL || c->running == NULL || c->ttft_us == NULL || c->queued_us == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    return quire_sim_timeline_begin(&c->line, trace, c->opts, c->out);
}

static void clock_fini(sim_clock *c)
{
    for (uint32_t i = 0; i < c->n_waiting; i++) {
        free(c->waiting[i]);
    }
    for (uint32_t i = 0; i < c->n_running; i++) {
        free(c->running[i]);
    }
    free(c->waiting);
    free(c->running);
    free(c->ttft_us);
    free(c->queued_us);
    quire_sim_tree_fini(&c->tree);
}

static int opts_check(const quire_sim_cost *cost, quire_error *err)
{
    if (cost->n_running_max == 0 || cost->n_running_max > QUIRE_SEQS_MAX ||
        cost->chunk_tokens == 0 || !(cost->prefill_token_us + cost->decode_step_us > 0.0)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "the cost model has a step that takes no time, or "
                               "room for no request");
    }
    return QUIRE_OK;
}

int quire_sim_time(const quire_trace *trace, const quire_sim_opts *opts, quire_sim_result *out,
                   quire_error *err)
{
    sim_clock c = { .trace = trace, .opts = opts, .out = out, .may_admit = true };
    int rc;

    QUIRE_TRY(opts_check(&opts->cost, err));
    rc = clock_init(&c, err);
    if (rc == QUIRE_OK) {
        rc = clock_run(&c);
        if (rc < 0) {
            (void)quire_sim_failed(rc, err);
        }
        quire_sim_count_tree(out, &c.tree);
        out->makespan_us = c.now_us;
        out->ttft = latency_of(c.ttft_us, c.n_ttft);
        out->queued = latency_of(c.queued_us, c.n_queued);
    }
    clock_fini(&c);
    return rc;
}
