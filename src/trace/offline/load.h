/* load.h - arrivals of requests, and how many are served at once.
 *
 * The number of requests at once depends on the duration of each request, and no trace records
 * durations. The duration is computed here: prompt tokens that no earlier request had, times the
 * cost of a prompt token, plus answer tokens times the cost of an answer token, without waiting.
 * The result is the load of a machine that is fast enough, and the memory that this machine needs.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_LOAD_H
#define QUIRE_TRACE_LOAD_H

#include "trace/dist.h"
#include "trace/trace.h"

#define QUIRE_LOAD_BINS_MAX 120u

typedef struct quire_load_cost {
    double prefill_token_us;
    double decode_token_us;
} quire_load_cost;

typedef struct quire_load_bin {
    uint64_t requests; /* that came in it */
    uint64_t input_tokens;
    uint64_t output_tokens;
    uint64_t running_max;
    uint64_t held_tokens_max;
} quire_load_bin;

typedef struct quire_load {
    uint64_t bin_us;
    uint32_t n_bins;
    quire_load_bin bins[QUIRE_LOAD_BINS_MAX];
    quire_dist running;     /* requests at once, by microseconds */
    quire_dist held_tokens; /* prompts and answers of those, by microseconds */
    quire_dist held_class_tokens[QUIRE_TRACE_CLASSES_MAX];
} quire_load;

/* new_tokens: [n_requests], tokens of each prompt that no earlier request had. Errors:
 * QUIRE_NOMEM. */
int quire_load_measure(quire_load *load, const quire_trace *trace, const uint32_t *new_tokens,
                       const quire_load_cost *cost, const quire_allocator *allocator);

#endif /* QUIRE_TRACE_LOAD_H */
