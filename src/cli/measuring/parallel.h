/* parallel.h - one piece of work on several threads, then on with one.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_PARALLEL_H
#define QUIRE_CLI_PARALLEL_H

#include <stdint.h>

typedef void quire_parallel_fn(void *ctx, uint32_t thread, uint32_t n_threads);

/* Call fn for every thread 0 .. n_threads - 1 and return when all are done. A thread that cannot
 * be started has its share done by the caller. Cost: starts threads; for work of a millisecond and
 * more. */
void quire_parallel(uint32_t n_threads, quire_parallel_fn *fn, void *ctx);

#endif /* QUIRE_CLI_PARALLEL_H */
