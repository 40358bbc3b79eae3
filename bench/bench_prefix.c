/* bench_prefix.c - the cost of calls to a large prefix tree.
 *
 *   bench_prefix [-r REPEATS] [-n NODES]
 *
 * The tree holds NODES (default 1,000,000) pages of 64 tokens, metadata only: prompts of 32,768
 * tokens, half of which begin with one of 16 shared texts of 4,096. Each line is the median of the
 * repeats, per call. Prompts are looked up in random order, so that nodes come from memory, not
 * from the processor's caches.
 *
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/rng.h"
#include "quire/cache.h"
#include "quire/prefix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_TOKENS 32768u
#define PROMPT_PAGES  (PROMPT_TOKENS / 64u)
#define SHARED_TOKENS 4096u
#define N_SHARED      16u
#define REPEATS_MAX   99u

typedef struct bench {
    quire_cache *cache;
    quire_prefix *tree;
    uint32_t n_prompts;
    uint32_t n_repeats;
    int32_t *tokens; /* [PROMPT_TOKENS], the prompt at hand */
    quire_rng rng;
} bench;

static const quire_prefix_key key = { .identity = { 1, 2 }, .salt = "t", .salt_bytes = 1 };

/* Bugs of the benchmark itself. */
static void must(int rc)
{
    if (rc != QUIRE_OK) {
        (void)fprintf(stderr, "bench_prefix: %s\n", quire_status_text(rc));
        exit(1);
    }
}

static void make_prompt(bench *b, uint32_t number)
{
    quire_rng rng = { number + 1000 };
    quire_rng shared = { number % N_SHARED + 1 };

    for (uint32_t i = 0; i < PROMPT_TOKENS; i++) {
        const bool is_shared = number % 2 == 0 && i < SHARED_TOKENS;

        b->tokens[i] = (int32_t)quire_rng_below(is_shared ? &shared : &rng, 32000);
    }
}

static quire_prefix_match lookup(bench *b)
{
    quire_prefix_match match;

    quire_prefix_lookup(b->tree, &key, b->tokens, PROMPT_TOKENS, &match);
    return match;
}

/* Acquire, compute the rest, publish, release. */
static void fill(bench *b)
{
    for (uint32_t i = 0; i < b->n_prompts; i++) {
        quire_prefix_acquire_opts opts = { .tokens_max = PROMPT_TOKENS, .now_us = i };
        quire_prefix_match match;
        quire_prefix_ref ref;
        quire_seq_id seq;

        make_prompt(b, i);
        must(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &seq));
        must(quire_prefix_acquire(b->tree, &key, seq, b->tokens, PROMPT_TOKENS, &opts, &match,
                                  &ref));
        must(quire_seq_append(b->cache, seq, PROMPT_TOKENS - match.n_tokens));
        must(quire_prefix_publish(b->tree, ref, b->tokens, PROMPT_TOKENS, i));
        must(quire_prefix_release(b->tree, ref, i));
        must(quire_seq_close(b->cache, seq));
    }
}

static double lookup_whole(bench *b)
{
    uint64_t start;
    double elapsed;

    make_prompt(b, quire_rng_below(&b->rng, b->n_prompts));
    start = quire_clock_ns();
    must(lookup(b).n_tokens == PROMPT_TOKENS ? QUIRE_OK : QUIRE_CORRUPT);
    elapsed = (double)(quire_clock_ns() - start);
    return elapsed;
}

/* The same prompt again: nodes are in the processor's caches. */
static double lookup_again(bench *b)
{
    uint64_t start;

    (void)lookup_whole(b);
    start = quire_clock_ns();
    (void)lookup(b);
    return (double)(quire_clock_ns() - start);
}

/* Ends in the middle of a page, where siblings have to be searched. */
static double lookup_diverging(bench *b)
{
    const uint32_t at = SHARED_TOKENS + 30;
    quire_prefix_match match;
    uint64_t start;

    make_prompt(b, 2 * quire_rng_below(&b->rng, b->n_prompts / 2));
    b->tokens[at] = 32001;
    start = quire_clock_ns();
    match = lookup(b);
    start = quire_clock_ns() - start;
    must(match.n_tokens == at && match.end == QUIRE_PREFIX_END_DIVERGED ? QUIRE_OK : QUIRE_CORRUPT);
    return (double)start;
}

static double acquire_release(bench *b)
{
    quire_prefix_acquire_opts opts = { .tokens_max = PROMPT_TOKENS - 1, .now_us = 1u << 30 };
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;
    uint64_t start;

    make_prompt(b, quire_rng_below(&b->rng, b->n_prompts));
    start = quire_clock_ns();
    must(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &seq));
    must(quire_prefix_acquire(b->tree, &key, seq, b->tokens, PROMPT_TOKENS, &opts, &match, &ref));
    must(quire_prefix_release(b->tree, ref, 1u << 30));
    must(quire_seq_close(b->cache, seq));
    start = quire_clock_ns() - start;
    must(match.n_tokens == PROMPT_TOKENS - 1 ? QUIRE_OK : QUIRE_CORRUPT);
    return (double)start;
}

/* A session of 64 pages ends. */
static double drop_owner(bench *b)
{
    const uint32_t n_tokens = 64 * 64;
    quire_prefix_acquire_opts opts = { .owner = 7, .now_us = 1u << 30 };
    quire_prefix_dropped dropped;
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;
    uint64_t start;

    make_prompt(b, b->n_prompts + 1 - b->n_prompts % 2); /* nobody else's */
    must(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &seq));
    must(quire_prefix_acquire(b->tree, &key, seq, b->tokens, n_tokens, &opts, &match, &ref));
    must(quire_seq_append(b->cache, seq, n_tokens));
    must(quire_prefix_publish(b->tree, ref, b->tokens, n_tokens, 1u << 30));
    must(quire_prefix_release(b->tree, ref, 1u << 30));
    must(quire_seq_close(b->cache, seq));
    start = quire_clock_ns();
    dropped = quire_prefix_drop_owner(b->tree, 7, 1u << 30);
    start = quire_clock_ns() - start;
    must(dropped.nodes == 64 ? QUIRE_OK : QUIRE_CORRUPT);
    return (double)start;
}

/* Per page: 1,000 evictions. */
static double evict(bench *b)
{
    const uint64_t start = quire_clock_ns();

    for (uint32_t i = 0; i < 1000; i++) {
        must(quire_prefix_evict(b->tree, QUIRE_REGION_DYNAMIC, 1) > 0 ? QUIRE_OK : QUIRE_CORRUPT);
    }
    return (double)(quire_clock_ns() - start) / 1000;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void row(bench *b, const char *name, const char *unit, double (*run)(bench *b))
{
    double ns[REPEATS_MAX];

    for (uint32_t i = 0; i < b->n_repeats; i++) {
        ns[i] = run(b);
    }
    qsort(ns, b->n_repeats, sizeof ns[0], by_value);
    (void)printf("%-44s %10.2f us/%s   (%.2f .. %.2f)\n", name, ns[b->n_repeats / 2] / 1e3, unit,
                 ns[0] / 1e3, ns[b->n_repeats - 1] / 1e3);
}

static uint32_t option(int argc, char **argv, const char *name, uint32_t value)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], name) == 0) {
            value = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        }
    }
    return value;
}

int main(int argc, char **argv)
{
    const uint32_t n_nodes = option(argc, argv, "-n", 1000000);
    bench b = { .n_repeats = option(argc, argv, "-r", 31), .rng = { 1 } };
    quire_cache_opts cache_opts = QUIRE_CACHE_OPTS_INIT;
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    quire_prefix_stats stats;
    uint64_t start;

    if (b.n_repeats < 1 || b.n_repeats > REPEATS_MAX || n_nodes < 8 * PROMPT_PAGES) {
        (void)fprintf(stderr, "usage: bench_prefix [-r REPEATS] [-n NODES]\n");
        return 2;
    }
    b.n_prompts = n_nodes / (PROMPT_PAGES - SHARED_TOKENS / 64 / 2) + 1;
    b.tokens = calloc(PROMPT_TOKENS, sizeof *b.tokens);
    must(b.tokens != NULL ? QUIRE_OK : QUIRE_NOMEM);
    cache_opts.budget_bytes = 1u << 30;
    must(quire_cache_create(&b.cache, &cache_opts));
    opts.cache = b.cache;
    must(quire_prefix_create(&b.tree, &opts));
    start = quire_clock_ns();
    fill(&b);
    quire_prefix_stats_get(b.tree, &stats);
    (void)printf("%llu pages of 64 tokens, made at %.2f us each (prompts of their own included)\n",
                 (unsigned long long)stats.nodes,
                 (double)(quire_clock_ns() - start) / 1e3 / (double)stats.nodes);
    row(&b, "lookup of 32,768 tokens", "lookup", lookup_whole);
    row(&b, "lookup of 32,768 tokens, just looked up", "lookup", lookup_again);
    row(&b, "lookup that diverges after 4,126 tokens", "lookup", lookup_diverging);
    row(&b, "open + acquire + release + close, 32,767", "sequence", acquire_release);
    row(&b, "drop an owner of 64 pages", "owner", drop_owner);
    row(&b, "evict", "page", evict);
    quire_prefix_destroy(b.tree);
    quire_cache_destroy(b.cache);
    free(b.tokens);
    return 0;
}
