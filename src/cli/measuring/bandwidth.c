/* bandwidth.c - reads a large buffer over and over.
 *
 * Rounds take a few milliseconds, and the median counts, as for the tokens per second compared with
 * it: both exclude bandwidth taken by other users of a shared machine. A round's time is from the
 * first thread's start to the last one's end, so that threads that did not run at the same time do
 * not add up.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/bandwidth.h"

#include "cli/commands/talk.h"
#include "cli/measuring/parallel.h"
#include "cli/settings/args.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUFFER_BYTES ((size_t)512 << 20) /* last-level caches of servers reach some 300 MiB */
#define HUGE_BYTES   ((size_t)2 << 20)
#define PARTS        4 /* of a thread's share, one by round */
#define ROUNDS       60
#define LINE_WORDS   8 /* of 8 bytes in a cache line */

typedef struct reader {
    unsigned char *buffer;
    size_t part_bytes; /* a multiple of HUGE_BYTES */
    uint32_t part;     /* 0 .. PARTS - 1 */
    double begin_s[QUIRE_THREADS_MAX];
    double end_s[QUIRE_THREADS_MAX];
    uint64_t sums[QUIRE_THREADS_MAX]; /* keeps the reads from being optimised away */
} reader;

static void touch(void *ctx, uint32_t thread, uint32_t n_threads)
{
    reader *r = ctx;

    (void)n_threads;
    memset(r->buffer + thread * PARTS * r->part_bytes, 1, PARTS * r->part_bytes);
}

static void read_part(void *ctx, uint32_t thread, uint32_t n_threads)
{
    reader *r = ctx;
    const uint64_t *words =
        (const void *)(r->buffer + ((size_t)thread * PARTS + r->part) * r->part_bytes);
    uint64_t sums[4] = { 0 };

    (void)n_threads;
    r->begin_s[thread] = quire_now_s();
    /* Read one word of each cache line: the whole line is loaded, and every instruction set can
     * request lines fast enough. */
    for (size_t i = 0; i < r->part_bytes / sizeof(*words); i += 4 * LINE_WORDS) {
        for (size_t j = 0; j < 4; j++) {
            sums[j] += words[i + j * LINE_WORDS];
        }
    }
    r->sums[thread] = sums[0] + sums[1] + sums[2] + sums[3];
    r->end_s[thread] = quire_now_s();
}

/* Bytes per second of one round. */
static double round_rate(reader *r, uint32_t n_threads)
{
    double begin_s;
    double end_s;

    quire_parallel(n_threads, read_part, r);
    r->part = (r->part + 1) % PARTS;
    begin_s = r->begin_s[0];
    end_s = r->end_s[0];
    for (uint32_t i = 1; i < n_threads; i++) {
        begin_s = r->begin_s[i] < begin_s ? r->begin_s[i] : begin_s;
        end_s = r->end_s[i] > end_s ? r->end_s[i] : end_s;
    }
    return end_s > begin_s ? (double)(r->part_bytes * n_threads) / (end_s - begin_s) : 0;
}

static int compare_rates(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

double quire_read_bandwidth(uint32_t n_threads)
{
    long n_pages = sysconf(_SC_PHYS_PAGES);
    size_t machine_bytes = n_pages > 0 ? (size_t)n_pages * (size_t)sysconf(_SC_PAGE_SIZE) : 0;
    size_t bytes = machine_bytes / 8 < BUFFER_BYTES ? machine_bytes / 8 : BUFFER_BYTES;
    reader *r = calloc(1, sizeof(*r));
    double rates[ROUNDS];
    double median = 0;

    if (r == NULL) {
        return 0;
    }
    n_threads = n_threads < QUIRE_THREADS_MAX ? n_threads : QUIRE_THREADS_MAX;
    r->part_bytes = bytes / n_threads / PARTS / HUGE_BYTES * HUGE_BYTES;
    bytes = r->part_bytes * PARTS * n_threads;
    r->buffer = bytes > 0 ? aligned_alloc(HUGE_BYTES, bytes) : NULL;
    if (r->buffer != NULL) {
        /* As for the KV cache: with small pages the measurement would include address
         * translation. */
        (void)madvise(r->buffer, bytes, MADV_HUGEPAGE);
        quire_parallel(n_threads, touch, r);
        for (int round = 0; round < ROUNDS; round++) {
            rates[round] = round_rate(r, n_threads);
        }
        qsort(rates, ROUNDS, sizeof(rates[0]), compare_rates);
        median = rates[ROUNDS / 2];
    }
    free(r->buffer);
    free(r);
    return median;
}
