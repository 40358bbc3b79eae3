/* parallel.h - run one function on several threads and wait for all.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_PARALLEL_H
#define QUIRE_CLI_PARALLEL_H

#include <stdint.h>

typedef void quire_parallel_fn(void *ctx, uint32_t thread, uint32_t n_threads);

/* Call fn for every thread 0 .. n_threads - 1 and return when all are done. The caller does the
 * share of a thread that cannot be started. Cost: starts threads; meant for work of a millisecond
 * or more. */
void quire_parallel(uint32_t n_threads, quire_parallel_fn *fn, void *ctx);

#endif /* QUIRE_CLI_PARALLEL_H */
