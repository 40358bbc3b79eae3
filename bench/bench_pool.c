/* bench_pool.c - the cost of the cache's bookkeeping: nanoseconds per page, token and fork.
 *
 *   bench_pool [-r REPEATS]
 *
 * Metadata only: pages have no payload, so nothing but bookkeeping is timed; the history ring is
 * on, as by default. Each line is the best of the repeats. Pages:
 *
 *   hot     take and free one page again and again
 *   lifo    take 4,096 pages, free them in reverse
 *   random  take 4,096 pages, free them in random order (other extents, other cache lines)
 *
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/rng.h"
#include "core/cache/cache_internal.h"
#include "quire/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PAGES 4096u
#define ROUNDS  64u

typedef struct bench {
    quire_cache *cache;
    quire_page_id *ids;
    uint32_t *order; /* a permutation of 0 .. N_PAGES - 1 */
} bench;

static double now_ns(void)
{
    return (double)quire_clock_ns();
}

/* Bugs of the benchmark itself. */
static void must(int rc)
{
    if (rc != QUIRE_OK) {
        (void)fprintf(stderr, "bench_pool: %s\n", quire_status_text(rc));
        exit(1);
    }
}

static void plan(bench *b, uint32_t n)
{
    must(quire_pool_plan(&b->cache->pool, QUIRE_REGION_DYNAMIC, &n));
}

static double pages_hot(bench *b)
{
    quire_pool *pool = &b->cache->pool;
    double start = now_ns();

    for (uint32_t i = 0; i < N_PAGES * ROUNDS; i++) {
        plan(b, 1);
        quire_pool_unref(pool, quire_pool_take(pool, 0, QUIRE_REGION_DYNAMIC, 1), 1);
    }
    return (now_ns() - start) / (N_PAGES * ROUNDS);
}

static double pages_many(bench *b, const uint32_t *order)
{
    quire_pool *pool = &b->cache->pool;
    double start = now_ns();

    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < N_PAGES; i++) {
            plan(b, 1);
            b->ids[i] = quire_pool_take(pool, 0, QUIRE_REGION_DYNAMIC, 1);
        }
        for (uint32_t i = N_PAGES; i-- > 0;) {
            quire_pool_unref(pool, b->ids[order != NULL ? order[i] : i], 1);
        }
    }
    return (now_ns() - start) / (N_PAGES * ROUNDS);
}

static double pages_lifo(bench *b)
{
    return pages_many(b, NULL);
}

static double pages_random(bench *b)
{
    return pages_many(b, b->order);
}

static double append_one(bench *b)
{
    const uint32_t n_tokens = 1u << 19;
    quire_seq_id seq;
    double elapsed;

    must(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &seq));
    elapsed = now_ns();
    for (uint32_t i = 0; i < n_tokens; i++) {
        must(quire_seq_append(b->cache, seq, 1));
    }
    elapsed = now_ns() - elapsed;
    must(quire_seq_close(b->cache, seq));
    return elapsed / n_tokens;
}

/* The same with a window: pages more than 256 tokens back are released after each token, as the
 * owner of a group of recent pages does. Should cost the same wherever the sequence is. */
static double append_release(bench *b)
{
    const uint32_t n_tokens = 1u << 19;
    quire_seq_id seq;
    double elapsed;

    must(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &seq));
    elapsed = now_ns();
    for (uint32_t i = 0; i < n_tokens; i++) {
        must(quire_seq_append(b->cache, seq, 1));
        must(quire_seq_release(b->cache, seq, 0, 64, i < 320 ? 64 : i - 256, NULL));
    }
    elapsed = now_ns() - elapsed;
    must(quire_seq_close(b->cache, seq));
    return elapsed / n_tokens;
}

/* Per page: one append of a long prompt, then close. */
static double append_prompt(bench *b)
{
    quire_seq_id seq;
    double start = now_ns();

    for (uint32_t round = 0; round < ROUNDS; round++) {
        must(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &seq));
        must(quire_seq_append(b->cache, seq, N_PAGES * 64));
        must(quire_seq_close(b->cache, seq));
    }
    return (now_ns() - start) / (N_PAGES * ROUNDS);
}

/* Fork a sequence of 32,768 tokens (512 pages, 8 leaves) and close the fork. */
static double fork_long(bench *b)
{
    const uint32_t n_forks = 20000;
    quire_seq_id seq;
    quire_seq_id fork;
    double elapsed;

    must(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &seq));
    must(quire_seq_append(b->cache, seq, 32768));
    elapsed = now_ns();
    for (uint32_t i = 0; i < n_forks; i++) {
        must(quire_seq_fork(b->cache, seq, &fork));
        must(quire_seq_close(b->cache, fork));
    }
    elapsed = now_ns() - elapsed;
    must(quire_seq_close(b->cache, seq));
    return elapsed / n_forks;
}

static void bench_init(bench *b)
{
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;
    quire_rng rng = { 1 };

    opts.budget_bytes = 1u << 20;
    must(quire_cache_create(&b->cache, &opts));
    b->ids = calloc(N_PAGES, sizeof(*b->ids));
    b->order = calloc(N_PAGES, sizeof(*b->order));
    must(b->ids != NULL && b->order != NULL ? QUIRE_OK : QUIRE_NOMEM);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        uint32_t j = quire_rng_below(&rng, i + 1);

        b->order[i] = b->order[j];
        b->order[j] = i;
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        const char *unit;
        double (*run)(bench *b);
    } rows[] = {
        { "page take + free, hot", "page", pages_hot },
        { "page take + free, lifo", "page", pages_lifo },
        { "page take + free, random", "page", pages_random },
        { "append one token", "token", append_one },
        { "append one token + release", "token", append_release },
        { "append a prompt + close", "page", append_prompt },
        { "fork 32768 tokens + close", "fork", fork_long },
    };
    int repeats = 5;
    bench b;

    if (argc == 3 && strcmp(argv[1], "-r") == 0) {
        repeats = (int)strtol(argv[2], NULL, 10);
    }
    if ((argc != 1 && argc != 3) || repeats < 1) {
        (void)fprintf(stderr, "usage: bench_pool [-r REPEATS]\n");
        return 2;
    }
    bench_init(&b);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double best = 0;

        for (int r = 0; r < repeats; r++) {
            double ns = rows[i].run(&b);

            best = r == 0 || ns < best ? ns : best;
        }
        printf("%-28s %8.1f ns / %s\n", rows[i].name, best, rows[i].unit);
    }
    quire_cache_destroy(b.cache);
    free(b.order);
    free(b.ids);
    return 0;
}
