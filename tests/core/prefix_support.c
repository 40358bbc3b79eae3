/* prefix_support.c - see the header.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include "base/hash.h"

#include <string.h>

void test_prefix_create_in(test_prefix *p, const quire_cache_opts *cache_opts,
                           const quire_prefix_opts *opts)
{
    quire_prefix_opts own = QUIRE_PREFIX_OPTS_INIT;

    memset(p, 0, sizeof(*p));
    if (opts != NULL) {
        own = *opts;
    }
    test_cache_create(&p->t, cache_opts, 0, 0);
    p->cache = p->t.cache;
    p->now_us = 1000;
    own.cache = p->cache;
    own.allocator = &p->t.memory.allocator;
    assert_int_equal(quire_prefix_create(&p->tree, &own), QUIRE_OK);
    quire_prefix_validate(p->tree);
}

void test_prefix_create(test_prefix *p, uint32_t n_pages, const quire_prefix_opts *opts)
{
    quire_cache_opts cache_opts = test_opts(n_pages);

    test_prefix_create_in(p, &cache_opts, opts);
}

void test_prefix_destroy(test_prefix *p)
{
    quire_prefix_validate(p->tree);
    quire_prefix_destroy(p->tree);
    assert_int_equal(test_stats(p->cache).pages_cached, 0);
    test_cache_destroy(&p->t);
}

quire_pins *test_pins_create(const test_prefix *p, uint32_t pins_max)
{
    quire_pins_opts opts = QUIRE_PINS_OPTS_INIT;
    quire_pins *pins;

    opts.tree = p->tree;
    opts.allocator = &p->t.memory.allocator;
    if (pins_max > 0) {
        opts.pins_max = pins_max;
    }
    assert_int_equal(quire_pins_create(&pins, &opts), QUIRE_OK);
    return pins;
}

quire_prefix_key test_key(void)
{
    return (quire_prefix_key){ .identity = { 1, 2 }, .salt = "tenant", .salt_bytes = 6 };
}

quire_prefix_key test_key_of(uint32_t number)
{
    return (quire_prefix_key){ .identity = { 1 + (number & 1), 7 },
                               .salt = "ab",
                               .salt_bytes = 1 + (number >> 1) };
}

void test_text(int32_t *tokens, uint32_t n, int32_t base)
{
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = base + (int32_t)i;
    }
}

void test_texts(quire_rng *rng, int32_t *tokens, uint32_t n_texts, uint32_t n)
{
    for (uint32_t i = 0; i < n_texts; i++) {
        const uint32_t n_same = i == 0 ? 0 : quire_rng_below(rng, n);

        for (uint32_t j = 0; j < n; j++) {
            tokens[i * n + j] =
                j < n_same ? tokens[i / 2 * n + j] : (int32_t)quire_rng_below(rng, 2);
        }
    }
}

static uint64_t stamp_begin(uint32_t key)
{
    return quire_hash_add(QUIRE_HASH_INIT, &key, sizeof key);
}

static uint32_t stamp_of(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

void test_stamp_text_of(const test_prefix *p, uint32_t key, quire_seq_id seq, const int32_t *tokens,
                        uint32_t begin)
{
    uint64_t hash = stamp_begin(key);

    for (uint32_t i = 0; i < quire_seq_tokens(p->cache, seq); i++) {
        hash = quire_hash_add(hash, &tokens[i], sizeof(tokens[i]));
        if (i >= begin) {
            test_slot_write(p->cache, seq, i, stamp_of(hash));
        }
    }
}

void test_check_text_of(const test_prefix *p, uint32_t key, quire_seq_id seq, const int32_t *tokens)
{
    uint64_t hash = stamp_begin(key);

    for (uint32_t i = 0; i < quire_seq_tokens(p->cache, seq); i++) {
        hash = quire_hash_add(hash, &tokens[i], sizeof(tokens[i]));
        for (uint32_t g = 0; g < p->cache->opts.n_groups; g++) {
            if (test_page_of(p->cache, seq, (quire_group_id)g, i) != QUIRE_PAGE_NULL) {
                test_slot_check_in(p->cache, seq, (quire_group_id)g, i, stamp_of(hash));
            } else {
                assert_int_not_equal(g, 0);
            }
        }
    }
}

void test_stamp_text(const test_prefix *p, quire_seq_id seq, const int32_t *tokens, uint32_t begin)
{
    test_stamp_text_of(p, 0, seq, tokens, begin);
}

void test_check_text(const test_prefix *p, quire_seq_id seq, const int32_t *tokens)
{
    test_check_text_of(p, 0, seq, tokens);
}

test_run test_run_start(test_prefix *p, const int32_t *tokens, uint32_t n_tokens)
{
    quire_prefix_key key = test_key();
    quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX,
                                       .owner = p->owner,
                                       .now_us = p->now_us,
                                       .is_private = p->is_private,
                                       .is_miss = p->is_miss,
                                       .is_apart = true }; /* validate() checks the sum */
    test_run run = { .seq = test_open(p->cache) };

    assert_int_equal(
        quire_prefix_acquire(p->tree, &key, run.seq, tokens, n_tokens, &opts, &run.match, &run.ref),
        QUIRE_OK);
    assert_int_equal(quire_seq_tokens(p->cache, run.seq), run.match.n_tokens);
    test_check_text(p, run.seq, tokens);
    return run;
}

void test_run_extend(test_prefix *p, const test_run *run, const int32_t *tokens, uint32_t n_tokens)
{
    uint32_t at = quire_seq_tokens(p->cache, run->seq);

    if (n_tokens > at) {
        test_append(p->cache, run->seq, n_tokens - at);
        test_stamp_text(p, run->seq, tokens, at);
    }
    assert_int_equal(quire_prefix_publish(p->tree, run->ref, tokens, n_tokens, p->now_us),
                     QUIRE_OK);
    test_check_text(p, run->seq, tokens);
    quire_prefix_validate(p->tree);
}

void test_run_end(test_prefix *p, const test_run *run)
{
    assert_int_equal(quire_prefix_release(p->tree, run->ref, p->now_us), QUIRE_OK);
    assert_int_equal(quire_seq_close(p->cache, run->seq), QUIRE_OK);
    quire_prefix_validate(p->tree);
}

quire_prefix_match test_run_whole(test_prefix *p, const int32_t *tokens, uint32_t n_tokens)
{
    test_run run = test_run_start(p, tokens, n_tokens);

    test_run_extend(p, &run, tokens, n_tokens);
    test_run_end(p, &run);
    return run.match;
}

quire_prefix_match test_lookup(const test_prefix *p, const int32_t *tokens, uint32_t n_tokens)
{
    quire_prefix_key key = test_key();
    quire_prefix_match match;

    quire_prefix_lookup(p->tree, &key, tokens, n_tokens, &match);
    return match;
}

quire_prefix_stats test_prefix_stats(const test_prefix *p)
{
    quire_prefix_stats stats;

    quire_prefix_stats_get(p->tree, &stats);
    return stats;
}

/* ---- windows ---- */

#define FOUND_MAX 64u

/* The full nodes of a text, by page. */
typedef struct found {
    quire_page_key keys[FOUND_MAX];
    bool has_node[FOUND_MAX];
    bool has_window[FOUND_MAX];
    uint32_t n_pages;
} found;

static int found_add(void *ctx, const quire_prefix_node_info *node)
{
    found *f = ctx;
    const uint32_t i = node->first_token / PAGE_TOKENS;

    if (node->n_tokens == PAGE_TOKENS && i < f->n_pages &&
        memcmp(&node->key, &f->keys[i], sizeof f->keys[i]) == 0) {
        f->has_node[i] = true;
        f->has_window[i] = node->pages[1] != QUIRE_PAGE_NULL;
    }
    return 0;
}

/* The first token that a sequence of n tokens needs in group 1. */
static uint32_t needed_from(const test_prefix *p, uint32_t n)
{
    const uint32_t w = p->cache->opts.needs_last_tokens[1];

    return n + 1 > w ? n + 1 - w : 0;
}

uint32_t test_naive_tokens(const test_prefix *p, uint32_t key, const int32_t *tokens,
                           uint32_t n_tokens)
{
    const quire_prefix_key root = test_key_of(key);
    found f = { .n_pages = n_tokens / PAGE_TOKENS };
    quire_page_key at;
    uint32_t best = 0;

    assert_true(f.n_pages <= FOUND_MAX);
    quire_prefix_key_root(&root, &at);
    for (uint32_t i = 0; i < f.n_pages; i++) {
        quire_prefix_key_add(&at, tokens + (size_t)i * PAGE_TOKENS, PAGE_TOKENS, &at);
        f.keys[i] = at;
    }
    (void)quire_prefix_visit(p->tree, found_add, &f);
    for (uint32_t n = 1; n <= f.n_pages && f.has_node[n - 1]; n++) {
        bool is_whole = true;

        for (uint32_t i = needed_from(p, n * PAGE_TOKENS) / PAGE_TOKENS; i < n; i++) {
            is_whole = is_whole && f.has_window[i];
        }
        best = is_whole ? n * PAGE_TOKENS : best;
    }
    return best;
}

void test_check_window(const test_prefix *p, quire_seq_id seq)
{
    const uint32_t n = quire_seq_tokens(p->cache, seq);

    for (uint32_t t = 0; t < n; t += PAGE_TOKENS) {
        const bool is_used = t + PAGE_TOKENS > needed_from(p, n) || t + PAGE_TOKENS > n;

        assert_int_equal(test_page_of(p->cache, seq, 1, t) != QUIRE_PAGE_NULL, is_used);
        assert_int_not_equal(test_page_of(p->cache, seq, 0, t), QUIRE_PAGE_NULL);
    }
}
