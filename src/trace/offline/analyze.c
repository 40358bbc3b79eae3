/* analyze.c - one pass over the blocks, one over the sessions.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/analyze.h"

#include "base/check.h"
#include "trace/array.h"
#include "trace/offline/turns.h"

#include <string.h>

/* The last use of a block. */
typedef struct use {
    uint64_t time_us;
    uint32_t request;
    uint32_t n; /* uses so far */
} use;

/* The last turn of a session. */
typedef struct turn {
    uint64_t time_us;
    uint64_t tokens;
    uint32_t n; /* turns so far */
} turn;

/* ---- repetition ---- */

/* One request's blocks; returns how many of them were there before. They are the first ones: an id
 * stands for all before it. */
static uint32_t use_blocks(quire_analysis *a, const quire_trace *trace, uint32_t r, use *uses)
{
    const quire_trace_request *request = &trace->requests[r];
    const uint32_t *ids = quire_trace_blocks(trace, request);
    uint32_t n_seen = 0;

    for (uint32_t i = 0; i < request->n_blocks; i++) {
        use *u = &uses[ids[i]];

        if (u->n > 0) {
            quire_dist_add(&a->gap_us, request->time_us - u->time_us);
            quire_dist_add(&a->gap_requests, r - u->request);
            n_seen++;
        }
        *u = (use){ request->time_us, r, u->n + 1 };
    }
    return n_seen;
}

/* The first blocks of a prompt as tokens. */
static uint32_t tokens_of(const quire_trace *trace, const quire_trace_request *request, uint32_t n)
{
    const uint64_t tokens = (uint64_t)n * trace->block_tokens;

    return tokens < request->n_input_tokens ? (uint32_t)tokens : request->n_input_tokens;
}

/* Tokens lost by rounding hits to pages, summed over the requests. */
typedef struct rounding {
    double hit_tokens; /* that could be hit: the part of the next block that is equal is guessed */
    double lost_tokens[QUIRE_ANALYZE_PAGES];
} rounding;

static void round_hit(const quire_analysis *a, uint32_t hit_tokens, rounding *sums)
{
    if (hit_tokens == 0) {
        return;
    }
    sums->hit_tokens += hit_tokens + 0.5 * a->block_tokens;
    for (uint32_t p = 0; p < QUIRE_ANALYZE_PAGES; p++) {
        const uint32_t page = a->pages[p].page_tokens;

        sums->lost_tokens[p] +=
            page <= a->block_tokens ? 0.5 * page : hit_tokens % page + 0.5 * a->block_tokens;
    }
}

static void use_requests(quire_analysis *a, const quire_trace *trace, use *uses,
                         uint32_t *new_tokens)
{
    rounding sums = { 0 };
    double held_tokens = 0.0;

    for (uint32_t r = 0; r < trace->n_requests; r++) {
        const quire_trace_request *request = &trace->requests[r];
        const uint32_t n_seen = trace->has_contents ? use_blocks(a, trace, r, uses) : 0;
        const uint32_t hit_tokens = tokens_of(trace, request, n_seen);

        a->input_tokens += request->n_input_tokens;
        a->output_tokens += request->n_output_tokens;
        a->repeated_blocks += n_seen;
        a->repeated_tokens += hit_tokens;
        new_tokens[r] = request->n_input_tokens - hit_tokens;
        quire_dist_add(&a->input, request->n_input_tokens);
        quire_dist_add(&a->output, request->n_output_tokens);
        quire_dist_add(&a->fresh, new_tokens[r]);
        round_hit(a, hit_tokens, &sums);
        held_tokens += (double)new_tokens[r] + request->n_output_tokens;
    }
    for (uint32_t p = 0; p < QUIRE_ANALYZE_PAGES; p++) {
        const double unused = 0.5 * a->pages[p].page_tokens * trace->n_requests;

        a->pages[p].lost_share = sums.hit_tokens > 0 ? sums.lost_tokens[p] / sums.hit_tokens : 0.0;
        a->pages[p].unused_share = held_tokens > 0 ? unused / (unused + held_tokens) : 0.0;
    }
}

static void count_uses(quire_analysis *a, const use *uses)
{
    for (uint32_t i = 0; a->has_contents && i < a->n_ids; i++) {
        quire_dist_add(&a->uses, uses[i].n);
        a->one_time_ids += uses[i].n == 1;
    }
}

/* ---- sessions ---- */

static int measure_sessions(quire_analysis *a, const quire_trace *trace)
{
    quire_turns turns;
    turn *last;

    QUIRE_TRY(quire_turns_init(&turns, trace, &a->allocator));
    last = quire_array_alloc(&a->allocator, (size_t)turns.n_sessions + 1, sizeof(*last));
    if (last == NULL) {
        quire_turns_fini(&turns);
        return QUIRE_NOMEM;
    }
    memset(last, 0, ((size_t)turns.n_sessions + 1) * sizeof(*last));
    a->is_inferred = turns.is_inferred;
    for (uint32_t r = 0; r < trace->n_requests; r++) {
        const quire_trace_request *request = &trace->requests[r];
        turn *t = &last[turns.sessions[r]];

        if (turns.sessions[r] == 0) {
            continue;
        }
        if (t->n > 0) {
            quire_dist_add(&a->turn_gap_us, request->time_us - t->time_us);
        }
        *t = (turn){ request->time_us, (uint64_t)request->n_input_tokens + request->n_output_tokens,
                     t->n + 1 };
    }
    for (uint32_t s = 1; s <= turns.n_sessions; s++) {
        if (last[s].n > 0) {
            a->n_sessions++;
            quire_dist_add(&a->turns, last[s].n);
            quire_dist_add(&a->session_tokens, last[s].tokens);
        }
    }
    quire_array_free(&a->allocator, last);
    quire_turns_fini(&turns);
    return QUIRE_OK;
}

/* ---- all ---- */

static quire_analysis *analysis_new(const quire_trace *trace, const quire_allocator *allocator)
{
    quire_analysis *a = allocator->alloc(allocator->ctx, sizeof(*a));

    if (a == NULL) {
        return NULL;
    }
    memset(a, 0, sizeof(*a));
    a->allocator = *allocator;
    a->block_tokens = trace->block_tokens;
    a->has_contents = trace->has_contents;
    a->n_requests = trace->n_requests;
    a->n_ids = trace->n_ids;
    a->n_classes = trace->n_classes > 0 ? trace->n_classes : 1;
    a->n_blocks = trace->n_blocks;
    a->span_us = trace->n_requests > 0 ? trace->requests[trace->n_requests - 1].time_us : 0;
    for (uint32_t p = 0; p < QUIRE_ANALYZE_PAGES; p++) {
        a->pages[p].page_tokens = 64u << p;
    }
    return a;
}

int quire_analysis_create(quire_analysis **out, const quire_trace *trace,
                          const quire_load_cost *cost, const quire_allocator *allocator)
{
    static const quire_load_cost usual = { QUIRE_ANALYZE_PREFILL_TOKEN_US,
                                           QUIRE_ANALYZE_DECODE_TOKEN_US };
    const quire_allocator *heap = allocator != NULL ? allocator : quire_allocator_default();
    quire_analysis *a = analysis_new(trace, heap);
    use *uses = quire_array_alloc(heap, trace->n_ids, sizeof(*uses));
    uint32_t *new_tokens = quire_array_alloc(heap, trace->n_requests, sizeof(*new_tokens));
    int rc = QUIRE_NOMEM;

    if (a != NULL && uses != NULL && new_tokens != NULL) {
        memset(uses, 0, trace->n_ids * sizeof(*uses));
        use_requests(a, trace, uses, new_tokens);
        count_uses(a, uses);
        rc = measure_sessions(a, trace);
    }
    if (rc == QUIRE_OK) {
        rc = quire_load_measure(&a->load, trace, new_tokens, cost != NULL ? cost : &usual, heap);
    }
    quire_array_free(heap, uses);
    quire_array_free(heap, new_tokens);
    if (rc != QUIRE_OK) {
        quire_analysis_destroy(a);
        return rc;
    }
    *out = a;
    return QUIRE_OK;
}

void quire_analysis_destroy(quire_analysis *analysis)
{
    if (analysis != NULL) {
        const quire_allocator allocator = analysis->allocator;

        allocator.free(allocator.ctx, analysis);
    }
}
