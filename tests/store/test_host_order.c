/* test_host_order.c - the store in the host's memory keeps the pages that a prefix tree of its size
 * keeps: the same requests go to both.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include "base/rng.h"
#include "core/prefix/prefix_learned.h"
#include "quire/cache.h"
#include "store/chain_store.h"
#include "store/host_records.h"

#include <string.h>

#define PT          TEST_PAGE_TOKENS
#define SALT        "a"
#define N_TEXTS     40u
#define PAGES_MAX   6u
#define N_COMMON    2u /* pages that every text of a group begins with */
#define GROUP       4u /* texts */
#define CAPACITY    32u
#define N_RESERVED  8u  /* pages of pinned classes */
#define N_PINNED    12u /* the first texts are a pinned class's */
#define RANK_PINNED 2u

/* A tree and a store, each for CAPACITY pages. */
typedef struct both {
    quire_cache *cache;
    quire_prefix *tree;
    quire_region_id pinned; /* QUIRE_REGION_DYNAMIC = no such region */
    quire_store *host;
    uint64_t now_us;
    uint64_t n_requests;
    quire_prefix_standing standing;
} both;

static test_text texts[N_TEXTS];
static uint32_t pages_of[N_TEXTS];

static const quire_prefix_key key = { .identity = { 7, 8 }, .salt = SALT, .salt_bytes = 1 };

/* Texts of 1 to n_max pages. With more than N_COMMON the texts of a group begin alike. */
static void texts_make(uint32_t n_max, uint64_t seed)
{
    quire_rng rng = { seed };

    for (uint32_t i = 0; i < N_TEXTS; i++) {
        const test_text *first = &texts[i - i % GROUP];
        test_text *t = &texts[i];

        pages_of[i] = n_max > N_COMMON ? N_COMMON + 1 + i % (n_max - N_COMMON) : n_max;
        test_text_make(t, PAGES_MAX, (uint32_t)quire_rng_next(&rng), SALT);
        for (uint32_t k = 0; k < PAGES_MAX && n_max > N_COMMON; k++) {
            quire_page_text *page = &t->pages[k];

            if (k < N_COMMON) {
                memcpy(t->tokens + k * PT, first->tokens + k * PT, PT * sizeof t->tokens[0]);
            }
            page->parent = k > 0 ? t->pages[k - 1].key : page->root;
            quire_prefix_key_add(&page->parent, page->tokens, PT, &page->key);
        }
    }
}

static uint64_t record_bytes(void)
{
    quire_transfer *t = test_put_new(&texts[0].pages[0], 0);
    const uint64_t n = quire_page_record_peek(t->record, t->capacity);

    quire_transfer_free(t);
    return n;
}

static both both_new(quire_evict_policy policy, bool has_pinned)
{
    const quire_host_store_opts host = { .capacity_bytes = CAPACITY * record_bytes(),
                                         .policy = policy };
    quire_store_hints hints = { .token_us = 1.0 };
    quire_cache_opts cache = QUIRE_CACHE_OPTS_INIT;
    quire_prefix_opts tree = QUIRE_PREFIX_OPTS_INIT;
    quire_region_opts region = QUIRE_REGION_OPTS_INIT;
    both b = { .now_us = 1000 };

    cache.page_tokens = PT;
    cache.charge_bytes[0] = host.capacity_bytes / CAPACITY;
    cache.budget_bytes = host.capacity_bytes;
    assert_int_equal(quire_cache_create(&b.cache, &cache), QUIRE_OK);
    tree.cache = b.cache;
    tree.policy = policy;
    tree.seed = 1;
    assert_int_equal(quire_prefix_create(&b.tree, &tree), QUIRE_OK);
    assert_int_equal(quire_host_store_create(&b.host, &host), QUIRE_OK);
    if (has_pinned) {
        region.budget_bytes = N_RESERVED * cache.charge_bytes[0];
        assert_int_equal(quire_region_open(b.cache, &region, &b.pinned), QUIRE_OK);
        hints.pinned_share = (double)N_RESERVED / CAPACITY;
    }
    quire_store_hint(b.host, &hints);
    return b;
}

static void both_free(both *b)
{
    quire_prefix_validate(b->tree);
    quire_prefix_destroy(b->tree);
    quire_cache_destroy(b->cache);
    (void)test_store_close(b->host);
}

/* ---- requests ---- */

static quire_region_id region_of(const both *b, uint32_t i)
{
    return i < N_PINNED ? b->pinned : QUIRE_REGION_DYNAMIC;
}

static uint8_t rank_of(const both *b, uint32_t i)
{
    return region_of(b, i) != QUIRE_REGION_DYNAMIC ? RANK_PINNED : 0;
}

static void ask_tree(both *b, uint32_t i)
{
    const quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX,
                                             .now_us = b->now_us,
                                             .rank = rank_of(b, i) };
    const uint32_t n = pages_of[i] * PT;
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;

    assert_int_equal(quire_seq_open(b->cache, region_of(b, i), &seq), QUIRE_OK);
    assert_int_equal(
        quire_prefix_acquire(b->tree, &key, seq, texts[i].tokens, n, &opts, &match, &ref),
        QUIRE_OK);
    for (uint32_t at = match.n_tokens; at < n; at += PT) { /* in chunks of a page */
        assert_int_equal(quire_seq_reserve(b->cache, seq, PT), QUIRE_OK);
        assert_int_equal(quire_seq_append(b->cache, seq, PT), QUIRE_OK);
        assert_int_equal(quire_prefix_publish(b->tree, ref, texts[i].tokens, at + PT, b->now_us),
                         QUIRE_OK);
    }
    assert_int_equal(quire_prefix_release(b->tree, ref, b->now_us), QUIRE_OK);
    assert_int_equal(quire_seq_close(b->cache, seq), QUIRE_OK);
}

static quire_page_use use_of(const both *b, uint32_t i)
{
    return (quire_page_use){ .request = b->n_requests,
                             .standing = { .region = region_of(b, i), .rank = rank_of(b, i) } };
}

static quire_store_result give(quire_store *store, quire_transfer *t, bool is_put)
{
    quire_store_result result;

    (is_put ? store->ops->put : store->ops->get)(store, &t, 1);
    assert_int_equal(store->ops->poll(store, &t, 1), 1);
    result = t->result;
    quire_transfer_free(t);
    return result;
}

/* Pages that are there are used; others come. */
static void ask_host(const both *b, uint32_t i)
{
    for (uint32_t k = 0; k < pages_of[i]; k++) {
        quire_transfer *t = test_get_new(&texts[i].pages[k]);

        t->is_query = true;
        t->use = use_of(b, i);
        if (give(b->host, t, false) != QUIRE_STORE_OK) {
            t = test_put_new(&texts[i].pages[k], 0);
            t->use = use_of(b, i);
            assert_int_equal(give(b->host, t, true), QUIRE_STORE_OK);
        }
    }
}

static void ask(both *b, uint32_t i)
{
    b->n_requests++;
    b->now_us += 1000;
    ask_tree(b, i);
    ask_host(b, i);
}

static uint32_t host_pages(const both *b, uint32_t i)
{
    quire_page_key keys[PAGES_MAX];

    for (uint32_t k = 0; k < pages_of[i]; k++) {
        keys[k] = texts[i].pages[k].key;
    }
    return quire_store_has(b->host, keys, pages_of[i]);
}

static uint32_t tree_pages(const both *b, uint32_t i)
{
    quire_prefix_match match;

    quire_prefix_lookup(b->tree, &key, texts[i].tokens, pages_of[i] * PT, &match);
    return match.n_tokens / PT;
}

static void compare(const both *b, uint32_t step)
{
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        if (host_pages(b, i) != tree_pages(b, i)) {
            fail_msg("step %u, text %u: %u pages in the host's memory, %u in the tree", step, i,
                     host_pages(b, i), tree_pages(b, i));
        }
    }
}

/* Popular texts, a scan, and all others: a mixture that policies handle differently. */
static uint32_t draw(quire_rng *rng, uint32_t step)
{
    const uint32_t kind = quire_rng_below(rng, 10);

    return kind < 5 ? quire_rng_below(rng, 5) * 7
                    : (kind < 7 ? step / 3 % N_TEXTS : quire_rng_below(rng, N_TEXTS));
}

/* ---- tests ---- */

/* In texts of one page, and in trees of texts with common beginnings. */
static void test_policies(void **state)
{
    static const struct {
        quire_evict_policy policy;
        uint32_t pages_max;
    } cases[] = {
        { QUIRE_EVICT_LRU, PAGES_MAX },  { QUIRE_EVICT_LFU, PAGES_MAX },
        { QUIRE_EVICT_GDSF, PAGES_MAX }, { QUIRE_EVICT_FIFO, PAGES_MAX },
        { QUIRE_EVICT_SIEVE, 1 },        { QUIRE_EVICT_SLRU, 1 },
        { QUIRE_EVICT_S3FIFO, 1 },       { QUIRE_EVICT_ARC, 1 },
    };

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        quire_store_stats stats;
        quire_rng rng = { 5 + c };
        both b;

        texts_make(cases[c].pages_max, c);
        b = both_new(cases[c].policy, false);
        for (uint32_t step = 0; step < 400; step++) {
            ask(&b, draw(&rng, step));
            compare(&b, step);
        }
        b.host->ops->stats(b.host, &stats);
        assert_true(stats.evicted_total > 10);
        assert_int_equal(stats.records, CAPACITY);
        both_free(&b);
    }
}

/* Pages of a pinned class keep their part of the memory, whatever else comes, and make room for one
 * another there, as in the region of a tree. */
static void test_pinned(void **state)
{
    static const quire_evict_policy policies[] = { QUIRE_EVICT_LRU, QUIRE_EVICT_LFU };

    (void)state;
    for (size_t c = 0; c < 2; c++) {
        quire_rng rng = { 9 };
        both b;

        texts_make(1, 3);
        b = both_new(policies[c], true);
        for (uint32_t i = 0; i < N_RESERVED; i++) {
            ask(&b, i);
        }
        for (uint32_t i = 0; i < 200; i++) {
            ask(&b, N_PINNED + i % (N_TEXTS - N_PINNED));
        }
        for (uint32_t i = 0; i < N_RESERVED; i++) {
            assert_int_equal(host_pages(&b, i), 1);
        }
        compare(&b, 0);
        for (uint32_t step = 0; step < 300; step++) {
            ask(&b, draw(&rng, step));
            compare(&b, step);
        }
        both_free(&b);
    }
}

/* A tenant with many pages makes room for itself, by its weight, before it pushes out others. */
static void test_accounts(void **state)
{
    uint32_t n_left = 0;
    both b;

    (void)state;
    texts_make(1, 7);
    b = both_new(QUIRE_EVICT_LRU, false);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        quire_transfer *t = test_put_new(&texts[i].pages[0], 0);

        t->use.standing.account = i < N_PINNED ? 1 : 2;
        t->use.standing.weight = i < N_PINNED ? 1 : 3;
        assert_int_equal(give(b.host, t, true), QUIRE_STORE_OK);
    }
    for (uint32_t i = 0; i < N_PINNED; i++) {
        n_left += host_pages(&b, i);
    }
    assert_true(n_left == CAPACITY / 4 || n_left + 1 == CAPACITY / 4);
    both_free(&b);
}

/* A page from behind comes into the host's memory for the one who asked: of a pinned class, it
 * keeps its place. */
static void test_behind(void **state)
{
    const quire_memory_store_opts plain = { 0 };
    quire_chain_store_opts chain = { .is_near_volatile = true };
    quire_store *store;
    both b;

    (void)state;
    texts_make(1, 3);
    b = both_new(QUIRE_EVICT_LRU, true);
    chain.near = b.host;
    chain.far = test_store_new(&plain);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        assert_int_equal(test_put(chain.far, &texts[i].pages[0], 0, false), QUIRE_STORE_OK);
    }
    assert_int_equal(quire_chain_store_create(&store, &chain), QUIRE_OK);
    quire_store_hint(store, &(quire_store_hints){ .pinned_share = (double)N_RESERVED / CAPACITY });
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        quire_transfer *t = test_get_new(&texts[i].pages[0]);

        t->use = use_of(&b, i);
        assert_int_equal(give(store, t, false), QUIRE_STORE_OK);
    }
    for (uint32_t i = N_PINNED - N_RESERVED; i < N_PINNED; i++) {
        assert_int_equal(host_pages(&b, i), 1);
    }
    b.host = store;
    both_free(&b);
}

/* ---- what the tree above knows ---- */

static void last_standing(void *ctx, const quire_prefix_copy *c)
{
    both *b = ctx;

    if (quire_page_key_is(c->key, &texts[0].pages[pages_of[0] - 1].key)) {
        quire_prefix_standing_get(b->tree, c->node, &b->standing);
    }
}

/* The default policy goes on with the history that a page has in the tree: turns, uses, pauses. */
static void test_told(void **state)
{
    quire_host_user user = { .use = { .is_told = true } };
    uint64_t words[QUIRE_NODE_WORDS];
    quire_host_order order;
    quire_host_entry *e;
    quire_transfer *t;
    both b;

    (void)state;
    texts_make(PAGES_MAX, 1);
    b = both_new(QUIRE_EVICT_DEFAULT, false);
    for (uint32_t i = 0; i < 4; i++) {
        b.now_us += (i + 1) * 700000;
        ask_tree(&b, 0);
    }
    assert_int_equal(quire_prefix_copies_visit(b.tree, 1, UINT32_MAX, last_standing, &b), 0);
    assert_true(b.standing.has_words);
    assert_int_equal(b.standing.policy, QUIRE_EVICT_DEFAULT);
    assert_int_equal(b.standing.hits, 3);
    assert_int_equal(b.standing.tip, 0);

    t = test_put_new(&texts[0].pages[pages_of[0] - 1], 0);
    quire_page_record_seal(t->record, 1);
    e = quire_host_entry_new(t->record, quire_page_record_peek(t->record, t->capacity));
    assert_non_null(e);
    assert_int_equal(quire_host_order_init(&order, QUIRE_EVICT_DEFAULT), QUIRE_OK);
    assert_int_equal(quire_host_order_plan(&order), QUIRE_OK);
    user.use.standing = b.standing;
    quire_host_order_ask(&order, &user.asker);
    quire_host_order_enter(&order, e, &user, QUIRE_REGION_DYNAMIC, 1);
    order.evict.ops->tell(&order.evict, e->node, words);
    assert_true(words[0] == b.standing.words[0] && words[2] == b.standing.words[2]);
    assert_true(words[1] >> 32 == b.standing.words[1] >> 32); /* without the age */
    assert_true(words[1] >> 32 != 0 && words[2] != 0);
    assert_ptr_equal(quire_host_order_victim(&order, QUIRE_REGION_DYNAMIC), e);
    assert_null(quire_host_order_victim(&order, QUIRE_HOST_PINNED));
    quire_evict_validate(&order.evict);
    quire_host_order_leave(&order, e, QUIRE_PREFIX_GONE_MEMORY);
    assert_null(quire_host_order_victim(&order, QUIRE_REGION_DYNAMIC));
    quire_host_order_fini(&order);
    quire_host_entry_free(e);
    quire_transfer_free(t);
    both_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policies), cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_accounts), cmocka_unit_test(test_behind),
        cmocka_unit_test(test_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
