/* bench_evict.c - the cost of a decision of each eviction policy in a large tree.
 *
 *   bench_evict [-r REPEATS] [-n NODES] [-p POLICY]
 *
 * The tree holds NODES (default 1,000,000) pages of 64 tokens, metadata only, in prompts of 4 pages
 * without anything in common, so that a quarter of the nodes are candidates: many more than chats
 * leave. Prompts are used again at random, popular ones more often. Each figure is the median of
 * the repeats, of 1,000 calls each, in processor time of the thread:
 *
 *   victim  name the node that goes (the decision); the median call, by the clock
 *   evict   that, and let it go: the node's end, its ghost, its parent becoming a candidate
 *   use     a hit of a prompt of 4 pages: open, acquire, release, close; per page
 *   fill    while the tree was made: acquire, publish, release; per page
 *
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/rng.h"
#include "core/prefix/prefix_internal.h"
#include "quire/cache.h"
#include "quire/prefix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE_TOKENS   64u
#define PROMPT_PAGES  4u
#define PROMPT_TOKENS (PROMPT_PAGES * PAGE_TOKENS)
#define REPEATS_MAX   99u
#define CALLS         1000u

typedef struct bench {
    quire_cache *cache;
    quire_prefix *tree;
    uint32_t n_prompts;
    uint64_t now_us;
    quire_rng rng;
} bench;

static const quire_prefix_key key = { .identity = { 1, 2 }, .salt = "t", .salt_bytes = 1 };

/* Bugs of the benchmark itself. */
static void must(int rc)
{
    if (rc != QUIRE_OK) {
        (void)fprintf(stderr, "bench_evict: %s\n", quire_status_text(rc));
        exit(1);
    }
}

static uint64_t cpu_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *ns, uint32_t n)
{
    qsort(ns, n, sizeof ns[0], by_value);
    return ns[n / 2];
}

/* A request for a prompt, computed as far as it is not cached. */
static void request(bench *b, uint32_t number)
{
    quire_prefix_acquire_opts opts = { .tokens_max = PROMPT_TOKENS, .now_us = ++b->now_us };
    int32_t tokens[PROMPT_TOKENS];
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;

    for (uint32_t i = 0; i < PROMPT_TOKENS; i++) {
        tokens[i] = (int32_t)(number * 7 + i % PAGE_TOKENS);
    }
    tokens[0] = (int32_t)number;
    must(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &seq));
    must(quire_prefix_acquire(b->tree, &key, seq, tokens, PROMPT_TOKENS, &opts, &match, &ref));
    if (match.n_tokens < PROMPT_TOKENS) {
        must(quire_seq_append(b->cache, seq, PROMPT_TOKENS - match.n_tokens));
        must(quire_prefix_publish(b->tree, ref, tokens, PROMPT_TOKENS, ++b->now_us));
    }
    must(quire_prefix_release(b->tree, ref, ++b->now_us));
    must(quire_seq_close(b->cache, seq));
}

/* Popular ones more often. */
static uint32_t draw(bench *b)
{
    uint32_t below = quire_rng_below(&b->rng, b->n_prompts) + 1;

    return quire_rng_below(&b->rng, below);
}

/* Nanoseconds per page of CALLS uses. Pages evicted in between are recomputed. */
static double use(bench *b)
{
    const uint64_t start = cpu_ns();

    for (uint32_t i = 0; i < CALLS; i++) {
        request(b, draw(b));
    }
    return (double)(cpu_ns() - start) / CALLS / PROMPT_PAGES;
}

static double victim(bench *b)
{
    const quire_evict_ask ask = { QUIRE_REGION_DYNAMIC, QUIRE_EVICT_ANY };
    double ns[CALLS];

    for (uint32_t i = 0; i < CALLS; i++) {
        quire_prefix_gone why;
        uint64_t start = quire_clock_ns();

        must(quire_evict_victim(&b->tree->evict, ask, &why) != 0 ? QUIRE_OK : QUIRE_CORRUPT);
        ns[i] = (double)(quire_clock_ns() - start);
        must(quire_prefix_evict(b->tree, QUIRE_REGION_DYNAMIC, 1) > 0 ? QUIRE_OK : QUIRE_CORRUPT);
    }
    return median(ns, CALLS);
}

static double evict(bench *b)
{
    const uint64_t start = cpu_ns();

    for (uint32_t i = 0; i < CALLS; i++) {
        must(quire_prefix_evict(b->tree, QUIRE_REGION_DYNAMIC, 1) > 0 ? QUIRE_OK : QUIRE_CORRUPT);
    }
    return (double)(cpu_ns() - start) / CALLS;
}

static void run_policy(quire_evict_policy policy, uint32_t n_nodes, uint32_t n_repeats)
{
    bench b = { .n_prompts = n_nodes / PROMPT_PAGES, .rng = { 1 } };
    quire_cache_opts cache_opts = QUIRE_CACHE_OPTS_INIT;
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    double ns[4][REPEATS_MAX];
    uint64_t start;

    cache_opts.budget_bytes = n_nodes + 2 * PROMPT_PAGES * CALLS;
    must(quire_cache_create(&b.cache, &cache_opts));
    opts.cache = b.cache;
    opts.policy = policy;
    opts.seed = 1;
    must(quire_prefix_create(&b.tree, &opts));
    start = cpu_ns();
    for (uint32_t i = 0; i < b.n_prompts; i++) {
        request(&b, i);
    }
    ns[3][0] = (double)(cpu_ns() - start) / n_nodes;
    for (uint32_t i = 0; i < b.n_prompts / 10 / CALLS; i++) {
        (void)use(&b);
    }
    for (uint32_t i = 0; i < n_repeats; i++) {
        ns[0][i] = victim(&b);
        ns[1][i] = evict(&b);
        ns[2][i] = use(&b);
    }
    (void)printf("%-8s victim %5.0f ns  evict %5.0f ns  use %5.0f ns/page  fill %5.0f ns/page\n",
                 quire_evict_policy_name(policy), median(ns[0], n_repeats),
                 median(ns[1], n_repeats), median(ns[2], n_repeats), ns[3][0]);
    quire_prefix_destroy(b.tree);
    quire_cache_destroy(b.cache);
}

int main(int argc, char **argv)
{
    uint32_t n_nodes = 1000000;
    uint32_t n_repeats = 15;
    quire_evict_policy only = QUIRE_EVICT_POLICY_COUNT;
    bool is_bad = argc % 2 == 0;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "-n") == 0) {
            n_nodes = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "-r") == 0) {
            n_repeats = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else {
            is_bad |= strcmp(argv[i], "-p") != 0 ||
                      quire_evict_policy_find(argv[i + 1], &only) != QUIRE_OK;
        }
    }
    if (is_bad || n_repeats < 1 || n_repeats > REPEATS_MAX || n_nodes < 100 * CALLS) {
        (void)fprintf(stderr, "usage: bench_evict [-r REPEATS] [-n NODES] [-p POLICY]\n");
        return 2;
    }
    (void)printf("%u pages of 64 tokens; of a node's bytes %zu are its head\n", n_nodes,
                 sizeof(quire_prefix_node));
    for (uint32_t i = 0; i < QUIRE_EVICT_POLICY_COUNT; i++) {
        if (only == QUIRE_EVICT_POLICY_COUNT || (uint32_t)only == i) {
            run_policy((quire_evict_policy)i, n_nodes, n_repeats);
        }
    }
    return 0;
}
