/* workload.h - traces for tests: by hand, or conversations at random.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_TRACE_WORKLOAD_H
#define QUIRE_TESTS_TRACE_WORKLOAD_H

#include "base/rng.h"
#include "trace/trace.h"

/* An empty trace with contents, blocks of so many tokens, one class. */
void workload_begin(quire_trace *trace, uint32_t block_tokens);

/* Add a request: its blocks as one letter each, all full; no answer. */
void workload_add(quire_trace *trace, uint64_t time_us, const char *blocks);
/* Add a request with further fields. The function sets n_blocks and n_input_tokens. */
void workload_add_as(quire_trace *trace, quire_trace_request request, const char *blocks);

typedef struct workload_opts {
    uint32_t n_requests;
    uint32_t n_conversations; /* open at once; a new one takes the place of one that ends */
    uint32_t shared_blocks;   /* at the beginning of all */
    uint32_t turn_blocks_max; /* that a turn adds */
    double p_end;             /* that a turn is the last */
} workload_opts;

/* Conversations with turns in random order. */
void workload_conversations(quire_trace *trace, const workload_opts *opts, quire_rng *rng);

#endif /* QUIRE_TESTS_TRACE_WORKLOAD_H */
