/* parallel.c - fork and join.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/parallel.h"

#include "cli/settings/args.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct share {
    quire_parallel_fn *fn;
    void *ctx;
    uint32_t thread;
    uint32_t n_threads;
    pthread_t id;
    bool is_started;
} share;

static void *work(void *opaque)
{
    share *s = opaque;

    s->fn(s->ctx, s->thread, s->n_threads);
    return NULL;
}

void quire_parallel(uint32_t n_threads, quire_parallel_fn *fn, void *ctx)
{
    share shares[QUIRE_THREADS_MAX];

    n_threads = n_threads < QUIRE_THREADS_MAX ? n_threads : QUIRE_THREADS_MAX;
    for (uint32_t i = 0; i < n_threads; i++) {
        shares[i] = (share){ .fn = fn, .ctx = ctx, .thread = i, .n_threads = n_threads };
        shares[i].is_started = i > 0 && pthread_create(&shares[i].id, NULL, work, &shares[i]) == 0;
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        if (!shares[i].is_started) {
            (void)work(&shares[i]);
        }
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        if (shares[i].is_started) {
            (void)pthread_join(shares[i].id, NULL);
        }
    }
}
