/* measure.h - speed and memory of one model at one depth of context.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_MEASURE_H
#define QUIRE_CLI_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/commands/opened.h"

#define QUIRE_REPEATS_MAX 100u

/* How the KV of earlier tokens is kept. */
typedef enum quire_caching {
    QUIRE_CACHING_PAGED,
    QUIRE_CACHING_CONTIGUOUS, /* a buffer of the whole context per sequence */
    QUIRE_CACHING_NONE        /* not at all: every step computes everything again */
} quire_caching;

typedef enum quire_bench_test {
    QUIRE_BENCH_PREFILL, /* n tokens of prompt after depth tokens */
    QUIRE_BENCH_DECODE   /* n tokens of every sequence, one step at a time, after depth tokens */
} quire_bench_test;

typedef struct quire_measure_opts {
    quire_bench_test test;
    quire_caching caching;
    bool is_filled_fast;   /* the depth holds synthetic KV instead of computed */
    uint32_t n_seqs;       /* decode: sequences in one step, at least 1; prefill: 1 */
    uint32_t shared_depth; /* tokens that all sequences share, before ... */
    uint32_t depth;        /* ... those of each one */
    uint32_t n_tokens;
    uint32_t n_repeats; /* 1 .. QUIRE_REPEATS_MAX */
} quire_measure_opts;

typedef struct quire_measurement {
    uint32_t n_repeats;
    double rates[QUIRE_REPEATS_MAX]; /* tokens per second, of all sequences together */
    double median;
    double mean;
    double stddev;
    double attn_share; /* of the steps' time, 0..1 */
    double append_share;
    uint64_t kv_bytes;          /* pages kept from one token to the next, at the end */
    uint64_t kv_computed_bytes; /* bytes of those tokens without pages */
    uint64_t kv_peak_bytes;     /* most pages held: at the end, or during recomputation */
    uint64_t kv_extent_bytes;   /* taken from the OS */
    /* Of an average decode step; 0 for prefill. */
    double step_read_bytes;   /* KV that must be read, shared KV once */
    uint64_t step_file_bytes; /* of it read from the file for KV larger than the budget */
    double step_s;
    double step_attn_s;           /* of it in the attention op */
    uint64_t resident_peak_bytes; /* of the process until now */
} quire_measurement;

/* Run one test. The runtime's context must hold shared_depth + depth + n_tokens, its limits n_seqs
 * sequences and a batch of as many rows.
 * Errors: as quire_runtime_step(), QUIRE_CANCELED after Ctrl-C. */
int quire_measure(quire_opened *session, const quire_measure_opts *opts, quire_measurement *out);

#endif /* QUIRE_CLI_MEASURE_H */
