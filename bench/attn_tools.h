/* attn_tools.h - timing on several threads, memory, and this machine's limits, for bench_attn.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_ATTN_TOOLS_H
#define QUIRE_BENCH_ATTN_TOOLS_H

#include <stddef.h>
#include <stdint.h>

#include "attn_machine.h"

#define ATTN_THREADS_MAX 256u

/* Something to run on n_threads at once. prepare (may be NULL) is called by one thread before each
 * run, outside the time. */
typedef struct attn_job {
    void (*prepare)(void *ctx);
    void (*run)(void *ctx, uint32_t thread, uint32_t n_threads);
    void *ctx;
    uint32_t n_threads; /* 1 .. ATTN_THREADS_MAX */
    uint32_t repeats;   /* at least, and until 0.3 s have gone by */
} attn_job;

/* The best time of a run, in seconds; infinite when nothing could be measured. */
double attn_job_measure(const attn_job *job);

/* Zeroed memory on huge pages where the system gives them; NULL without. Release with attn_unmap(),
 * which takes NULL too. */
void *attn_map(size_t size_bytes);
void attn_unmap(void *p, size_t size_bytes);

/* Bytes per second that n_threads read together from a buffer no cache holds; 0 without memory. */
double attn_read_bandwidth(const attn_machine *machine, uint32_t n_threads);

/* Multiply-adds per second of n_threads together, counted as two operations each. */
double attn_fma_peak(const attn_machine *machine, uint32_t n_threads);

#endif /* QUIRE_BENCH_ATTN_TOOLS_H */
