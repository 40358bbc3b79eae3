/* bandwidth.c - sums a large buffer over and over.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/bandwidth.h"

#include "cli/args.h"
#include "cli/parallel.h"
#include "cli/talk.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_BYTES ((size_t)512 << 20) /* last-level caches of servers reach some 300 MiB */
#define BLOCK_BYTES  ((size_t)1 << 20)   /* between two looks at the clock */
#define WINDOW_S     0.1
#define WINDOWS      3

typedef struct reader {
    unsigned char *buffer;
    size_t share_bytes; /* per thread, a multiple of BLOCK_BYTES */
    double rates[QUIRE_THREADS_MAX];
    uint64_t sums[QUIRE_THREADS_MAX]; /* keeps the reads from being optimised away */
} reader;

static void touch(void *ctx, uint32_t thread, uint32_t n_threads)
{
    reader *r = ctx;

    (void)n_threads;
    memset(r->buffer + thread * r->share_bytes, 1, r->share_bytes);
}

static uint64_t sum_block(const unsigned char *block)
{
    const uint64_t *words = (const void *)block;
    uint64_t sums[8] = { 0 };

    for (size_t i = 0; i < BLOCK_BYTES / sizeof(*words); i += 8) {
        for (size_t j = 0; j < 8; j++) {
            sums[j] += words[i + j];
        }
    }
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static void read_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    reader *r = ctx;
    const unsigned char *share = r->buffer + thread * r->share_bytes;
    double start_s = quire_now_s();
    double now_s = start_s;
    uint64_t sum = 0;
    size_t n_bytes = 0;

    (void)n_threads;
    while (now_s - start_s < WINDOW_S) {
        sum += sum_block(share + n_bytes % r->share_bytes);
        n_bytes += BLOCK_BYTES;
        now_s = quire_now_s();
    }
    r->rates[thread] = (double)n_bytes / (now_s - start_s);
    r->sums[thread] = sum;
}

double quire_read_bandwidth(uint32_t n_threads)
{
    long n_pages = sysconf(_SC_PHYS_PAGES);
    size_t machine_bytes = n_pages > 0 ? (size_t)n_pages * (size_t)sysconf(_SC_PAGE_SIZE) : 0;
    size_t bytes = machine_bytes / 8 < BUFFER_BYTES ? machine_bytes / 8 : BUFFER_BYTES;
    reader *r = calloc(1, sizeof(*r));
    double best = 0;

    if (r == NULL) {
        return 0;
    }
    n_threads = n_threads < QUIRE_THREADS_MAX ? n_threads : QUIRE_THREADS_MAX;
    r->share_bytes = bytes / n_threads / BLOCK_BYTES * BLOCK_BYTES;
    r->buffer = r->share_bytes > 0 ? aligned_alloc(64, r->share_bytes * n_threads) : NULL;
    if (r->buffer != NULL) {
        quire_parallel(n_threads, touch, r);
        for (int window = 0; window < WINDOWS; window++) {
            double rate = 0;

            quire_parallel(n_threads, read_share, r);
            for (uint32_t i = 0; i < n_threads; i++) {
                rate += r->rates[i];
            }
            best = rate > best ? rate : best;
        }
    }
    free(r->buffer);
    free(r);
    return best;
}
