/* sim_time.c - TIME mode: the engines' steps in virtual time.
 *
 *   arrivals --> the device with the least work --> its queue --> its steps
 *
 * As in the engine, requests wait in order of rank, then of arrival. The first request that does
 * not fit holds up later ones. A step has a row for each request that writes, and prompt tokens up
 * to chunk_tokens in all, oldest request first. Computed pages are published after the step. When a
 * page is missing for an answer, the youngest running request of the lowest rank is preempted and
 * returns later.
 *
 * Devices compute at the same time, each its own steps. A request goes to a device when it arrives,
 * and stays there.
 *
 * Not simulated: a request held back while another computes the same prefix.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/num.h"
#include "trace/sim/sim_choice.h"
#include "trace/sim/sim_internal.h"
#include "trace/sim/sim_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct device {
    quire_sim_tree tree;
    quire_sim_job **waiting; /* [n_requests]: a heap, the first to be admitted on top */
    uint32_t n_waiting;
    quire_sim_job **running; /* [n_running_max], in order of admission */
    uint32_t n_running;
    bool may_admit;        /* something has changed since the first in the queue did not fit */
    bool has_step;         /* it computes one */
    double step_ends_us;   /* virtual time */
    double busy_us;        /* of all its steps */
    uint64_t n_to_compute; /* of its jobs */
    uint64_t n_computed;   /* blocks of prompts */
} device;

typedef struct sim_clock {
    const quire_trace *trace;
    const quire_sim_opts *opts;
    quire_sim_result *out;
    device devices[QUIRE_SIM_DEVICES_MAX];
    const quire_sim_tree *trees[QUIRE_SIM_DEVICES_MAX];
    uint32_t n_devices;
    quire_sim_timeline line;
    double now_us;
    uint32_t n_arrived; /* requests */
    uint32_t n_own_ids;
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

static void queue_push(device *d, quire_sim_job *job)
{
    uint32_t at = d->n_waiting++;

    while (at > 0 && comes_before(job, d->waiting[(at - 1) / 2])) {
        d->waiting[at] = d->waiting[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    d->waiting[at] = job;
}

static void queue_pop(device *d)
{
    quire_sim_job *last = d->waiting[--d->n_waiting];
    uint32_t at = 0;

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < d->n_waiting && comes_before(d->waiting[child + 1], d->waiting[child])) {
            child++;
        }
        if (child >= d->n_waiting || !comes_before(d->waiting[child], last)) {
            break;
        }
        d->waiting[at] = d->waiting[child];
        at = child;
    }
    d->waiting[at] = last;
}

static void to_compute_set(device *d, quire_sim_job *job, uint32_t n_tokens)
{
    d->n_to_compute += n_tokens;
    d->n_to_compute -= job->n_to_compute;
    job->n_to_compute = n_tokens;
}

static void job_free(device *d, quire_sim_job *job)
{
    to_compute_set(d, job, 0);
    free(job);
}

/* ---- arrivals ---- */

static quire_sim_offer offer_of(sim_clock *c, device *d, const quire_trace_request *request)
{
    const uint32_t n_cached =
        quire_sim_cached_blocks(&d->tree, c->trace, request, (uint64_t)c->now_us);
    const uint32_t n_requests = d->n_waiting + d->n_running;
    quire_prefix_stats stats;

    quire_prefix_stats_get(d->tree.tree, &stats);
    return (quire_sim_offer){ .work = quire_sim_tokens_behind(c->trace, request, n_cached) +
                                      d->n_to_compute +
                                      (uint64_t)QUIRE_SIM_REQUEST_TOKENS * n_requests,
                              .n_cached = n_cached,
                              .n_requests = n_requests,
                              .n_blocks = stats.nodes };
}

/* The device of a request, and the tokens of its prompt that are not cached there. */
static device *device_of(sim_clock *c, const quire_trace_request *request, uint32_t *n_to_compute)
{
    device *best = &c->devices[0];
    quire_sim_offer best_offer = { 0 };

    *n_to_compute = request->n_input_tokens;
    for (uint32_t i = 0; c->n_devices > 1 && i < c->n_devices; i++) {
        const quire_sim_offer offer = offer_of(c, &c->devices[i], request);

        if (i == 0 || quire_sim_offer_is_better(&offer, &best_offer)) {
            best = &c->devices[i];
            best_offer = offer;
            *n_to_compute = quire_sim_tokens_behind(c->trace, request, offer.n_cached);
        }
    }
    return best;
}

/* Whether a device has room for the request when it is alone; all devices are alike. */
static bool can_fit(const sim_clock *c, const quire_trace_request *request)
{
    const quire_sim_tree *tree = &c->devices[0].tree;

    return request->n_blocks > 0 &&
           quire_sim_job_charge(tree, quire_sim_job_blocks(c->trace, request),
                                c->opts->cost.chunk_tokens) <=
               quire_sim_tree_reach(tree, quire_sim_capacity(c->opts), request->class_index);
}

static int request_queue(sim_clock *c, const quire_trace_request *request, uint32_t index)
{
    uint32_t n_to_compute;
    device *d = device_of(c, request, &n_to_compute);
    quire_sim_job *job = calloc(1, sizeof(*job));

    QUIRE_FAIL_IF(job == NULL, QUIRE_NOMEM);
    job->request = request;
    job->index = index;
    job->rank = quire_sim_rank(c->opts, request);
    job->arrived_us = (double)request->time_us;
    job->own_id = c->n_own_ids;
    c->n_own_ids += quire_sim_job_blocks(c->trace, request) - request->n_blocks;
    d->may_admit = d->may_admit || d->n_waiting == 0 || comes_before(job, d->waiting[0]);
    to_compute_set(d, job, n_to_compute);
    queue_push(d, job);
    return QUIRE_OK;
}

/* Queue the requests that have arrived. A request that could never fit is refused. */
static int arrivals_take(sim_clock *c)
{
    while (c->n_arrived < c->trace->n_requests &&
           (double)c->trace->requests[c->n_arrived].time_us <= c->now_us) {
        const uint32_t index = c->n_arrived++;

        if (!can_fit(c, &c->trace->requests[index])) {
            c->out->refused++;
            continue;
        }
        QUIRE_FAIL_IF(c->n_own_ids > (uint32_t)INT32_MAX / 2, QUIRE_LIMIT);
        QUIRE_TRY(request_queue(c, &c->trace->requests[index], index));
    }
    return QUIRE_OK;
}

/* ---- admission ---- */

static quire_sim_place place_of(const sim_clock *c, device *d)
{
    return (quire_sim_place){ &d->tree, c->trace, (uint64_t)c->now_us, c->opts->cost.chunk_tokens };
}

static void admitted(sim_clock *c, device *d, quire_sim_job *job)
{
    if (!job->has_been) {
        job->has_been = true;
        c->queued_us[c->n_queued++] = c->now_us - job->arrived_us;
        c->out->regret_blocks += job->text.gone_blocks;
        d->n_computed += job->request->n_blocks - job->hit_blocks;
        quire_sim_count_hits(c->out, c->trace, job->request, job->hit_blocks);
        quire_sim_timeline_add(&c->line, c->trees, c->n_devices, (uint64_t)c->now_us);
    }
    d->running[d->n_running++] = job;
}

static int queue_admit(sim_clock *c, device *d)
{
    while (d->may_admit && d->n_waiting > 0 && d->n_running < c->opts->cost.n_running_max) {
        quire_sim_job *job = d->waiting[0];
        const quire_sim_place place = place_of(c, d);
        int rc = quire_sim_job_admit(job, &place);

        if (rc == QUIRE_NOPAGES && d->n_running > 0) {
            d->may_admit = false;
            return QUIRE_OK;
        }
        queue_pop(d);
        if (rc == QUIRE_NOPAGES) { /* alone, and still: other regions have the memory */
            c->out->refused += !job->has_been;
            job_free(d, job);
            continue;
        }
        if (rc < 0) {
            job_free(d, job);
            return rc;
        }
        admitted(c, d, job);
    }
    return QUIRE_OK;
}

/* ---- a step ---- */

static void running_remove(device *d, uint32_t i)
{
    memmove(&d->running[i], &d->running[i + 1], (d->n_running - i - 1) * sizeof(*d->running));
    d->n_running--;
    d->may_admit = true;
}

/* The job that releases its pages: the last one of the lowest rank. */
static uint32_t victim_of(const device *d)
{
    uint32_t victim = d->n_running - 1;

    for (uint32_t i = d->n_running; i-- > 0;) {
        if (d->running[i]->rank < d->running[victim]->rank) {
            victim = i;
        }
    }
    return victim;
}

static void preempt(sim_clock *c, device *d, uint32_t i)
{
    quire_sim_job *job = d->running[i];
    const quire_sim_place place = place_of(c, d);

    quire_sim_job_leave(job, &place);
    c->out->preemptions++;
    running_remove(d, i);
    queue_push(d, job);
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
static double step_plan(const sim_clock *c, device *d)
{
    const quire_sim_cost *cost = &c->opts->cost;
    uint32_t n_chunk = cost->chunk_tokens;
    double us = cost->decode_step_us;

    for (uint32_t i = 0; i < d->n_running; i++) {
        quire_sim_job *job = d->running[i];

        job->n_rows = rows_of(&d->tree, job, &n_chunk);
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
static int job_advance(sim_clock *c, device *d, uint32_t *i, bool *is_there)
{
    quire_sim_job *job = d->running[*i];
    const quire_sim_place place = place_of(c, d);
    int rc;

    *is_there = true;
    while ((rc = quire_sim_job_advance(job, &place, job->n_rows)) == QUIRE_NOPAGES && *is_there) {
        uint32_t victim = victim_of(d);

        *is_there = victim != *i;
        if (d->n_running == 1) {
            quire_sim_job_leave(job, &place);
            running_remove(d, 0);
            job_free(d, job);
            return QUIRE_OK;
        }
        preempt(c, d, victim);
        *i -= victim < *i;
        if (!*is_there) {
            return QUIRE_OK;
        }
    }
    return rc;
}

/* After a step: tokens come out, answers end. */
static int step_end(sim_clock *c, device *d)
{
    for (uint32_t i = 0; i < d->n_running;) {
        quire_sim_job *job = d->running[i];
        bool is_there;

        QUIRE_TRY(job_advance(c, d, &i, &is_there));
        if (!is_there) {
            continue;
        }
        to_compute_set(d, job,
                       job->request->n_input_tokens > job->n_computed
                           ? job->request->n_input_tokens - job->n_computed
                           : 0);
        if (job->n_computed == quire_sim_job_wants(job) && token_out(c, job)) {
            const quire_sim_place place = place_of(c, d);

            quire_sim_job_leave(job, &place);
            running_remove(d, i);
            job_free(d, job);
            continue;
        }
        i++;
    }
    return QUIRE_OK;
}

/* ---- time ---- */

/* Steps that end now. */
static int steps_end(sim_clock *c)
{
    for (uint32_t i = 0; i < c->n_devices; i++) {
        device *d = &c->devices[i];

        if (d->has_step && d->step_ends_us <= c->now_us) {
            d->has_step = false;
            QUIRE_TRY(step_end(c, d));
        }
    }
    return QUIRE_OK;
}

/* Devices without a step begin one if they have requests. */
static int steps_begin(sim_clock *c)
{
    for (uint32_t i = 0; i < c->n_devices; i++) {
        device *d = &c->devices[i];

        if (d->has_step) {
            continue;
        }
        quire_sim_tree_tick(&d->tree, (uint64_t)c->now_us);
        QUIRE_TRY(queue_admit(c, d));
        if (d->n_running > 0) {
            const double us = step_plan(c, d);

            d->has_step = true;
            d->step_ends_us = c->now_us + us;
            d->busy_us += us;
        }
    }
    return QUIRE_OK;
}

/* Go on to the next arrival, or the next end of a step. False: neither will come. */
static bool time_pass(sim_clock *c)
{
    double next_us = INFINITY;

    if (c->n_arrived < c->trace->n_requests) {
        next_us = (double)c->trace->requests[c->n_arrived].time_us;
    }
    for (uint32_t i = 0; i < c->n_devices; i++) {
        if (c->devices[i].has_step && c->devices[i].step_ends_us < next_us) {
            next_us = c->devices[i].step_ends_us;
        }
    }
    if (isinf(next_us)) {
        return false;
    }
    c->now_us = next_us;
    return true;
}

static int clock_run(sim_clock *c)
{
    do {
        QUIRE_TRY(quire_sim_ask(&c->opts->cancel));
        QUIRE_TRY(steps_end(c));
        QUIRE_TRY(arrivals_take(c));
        QUIRE_TRY(steps_begin(c));
    } while (time_pass(c));
    return QUIRE_OK;
}

/* ---- the whole ---- */

static int device_init(device *d, const sim_clock *c, uint32_t blocks_max, quire_error *err)
{
    const uint32_t n_running_max = c->opts->cost.n_running_max;
    const quire_sim_tree_opts opts = { .sim = c->opts,
                                       .budget = quire_sim_capacity(c->opts),
                                       .blocks_max = blocks_max,
                                       .seqs_max = n_running_max,
                                       .block_tokens = c->trace->block_tokens };

    *d = (device){ .may_admit = true };
    QUIRE_TRY(quire_sim_tree_init(&d->tree, &opts, err));
    d->waiting = calloc(c->trace->n_requests, sizeof(*d->waiting));
    d->running = calloc(n_running_max, sizeof(*d->running));
    return QUIRE_OK;
}

static void device_fini(device *d)
{
    for (uint32_t i = 0; i < d->n_waiting; i++) {
        free(d->waiting[i]);
    }
    for (uint32_t i = 0; i < d->n_running; i++) {
        free(d->running[i]);
    }
    free(d->waiting);
    free(d->running);
    quire_sim_tree_fini(&d->tree);
}

/* The blocks of the longest text that fits. */
static uint32_t longest_of(const sim_clock *c)
{
    uint32_t longest = 1;

    for (uint32_t i = 0; i < c->trace->n_requests; i++) {
        uint32_t n = quire_sim_job_blocks(c->trace, &c->trace->requests[i]);

        if (n > longest && quire_sim_charge(c->opts, n) <= quire_sim_capacity(c->opts)) {
            longest = n;
        }
    }
    return longest;
}

static int clock_init(sim_clock *c, quire_error *err)
{
    const uint32_t n_requests = c->trace->n_requests;
    const uint32_t longest = longest_of(c);
    bool has_memory;

    c->ttft_us = calloc(n_requests, sizeof(*c->ttft_us));
    c->queued_us = calloc(n_requests, sizeof(*c->queued_us));
    has_memory = c->ttft_us != NULL && c->queued_us != NULL;
    for (uint32_t n = quire_sim_devices(c->opts); c->n_devices < n;) {
        device *d = &c->devices[c->n_devices];

        QUIRE_TRY(device_init(d, c, longest, err));
        c->trees[c->n_devices++] = &d->tree;
        has_memory = has_memory && d->waiting != NULL && d->running != NULL;
    }
    if (!has_memory) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    return quire_sim_timeline_begin(&c->line, c->trace, c->opts, c->out);
}

static void clock_fini(sim_clock *c)
{
    for (uint32_t i = 0; i < c->n_devices; i++) {
        device_fini(&c->devices[i]);
    }
    free(c->ttft_us);
    free(c->queued_us);
}

static void clock_count(sim_clock *c)
{
    quire_sim_result *out = c->out;

    for (uint32_t i = 0; i < c->n_devices; i++) {
        const device *d = &c->devices[i];

        quire_sim_count_tree(out, &d->tree);
        out->busy_us += d->busy_us;
        out->busiest_us = fmax(out->busiest_us, d->busy_us);
        out->busiest_blocks = quire_max_u64(out->busiest_blocks, d->n_computed);
    }
    out->makespan_us = c->now_us;
    out->ttft = quire_sim_latency_of(c->ttft_us, c->n_ttft);
    out->queued = quire_sim_latency_of(c->queued_us, c->n_queued);
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
    sim_clock c = { .trace = trace, .opts = opts, .out = out };
    int rc;

    QUIRE_TRY(opts_check(&opts->cost, err));
    rc = clock_init(&c, err);
    if (rc == QUIRE_OK) {
        rc = clock_run(&c);
        if (rc < 0) {
            (void)quire_sim_failed(rc, err);
        }
        clock_count(&c);
    }
    clock_fini(&c);
    return rc;
}
