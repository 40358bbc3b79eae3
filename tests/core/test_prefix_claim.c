/* test_prefix_claim.c - a claim predicts the pages that acquire uses; results hold while the
 * generation is unchanged; pages and nodes are visited in pieces.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "prefix_support.h"

#include <string.h>

#define PT         PAGE_TOKENS
#define PAGE_CLAIM ((uint64_t)PAGE_BYTES)

static quire_prefix_claim claim_of(const test_prefix *p, const int32_t *tokens, uint32_t n_tokens,
                                   uint32_t tokens_max)
{
    const quire_prefix_key key = test_key();
    quire_prefix_claim claim;

    quire_prefix_claim_get(p->tree, &key, tokens, n_tokens, tokens_max, &claim);
    return claim;
}

/* Region 0 only. */
static uint64_t cached_of(const test_prefix *p)
{
    return test_stats(p->cache).cached_bytes;
}

static void test_claim_is_what_acquire_takes(void **state)
{
    int32_t text[4 * PT];
    uint64_t before;
    quire_prefix_claim claim;
    test_prefix p;
    test_run run;
    test_run other;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 4 * PT, 0);
    claim = claim_of(&p, text, 4 * PT, UINT32_MAX);
    assert_int_equal(claim.n_tokens, 0);
    assert_int_equal(claim.cached_bytes[0] + claim.live_bytes[0], 0);
    (void)test_run_whole(&p, text, 3 * PT + 1);

    claim = claim_of(&p, text, 4 * PT, UINT32_MAX);
    assert_int_equal(claim.match.n_tokens, 3 * PT + 1);
    assert_int_equal(claim.n_tokens, 3 * PT + 1);
    assert_int_equal(claim.cached_bytes[0], 4 * PAGE_CLAIM);
    assert_int_equal(claim.live_bytes[0], 0);
    claim = claim_of(&p, text, 4 * PT, 2 * PT);
    assert_int_equal(claim.match.n_tokens, 3 * PT + 1);
    assert_int_equal(claim.n_tokens, 2 * PT);
    assert_int_equal(claim.cached_bytes[0], 2 * PAGE_CLAIM);

    /* A sequence holds the first page: it is no longer cached. */
    other = test_run_start(&p, text, PT);
    claim = claim_of(&p, text, 4 * PT, UINT32_MAX);
    assert_int_equal(claim.cached_bytes[0], 3 * PAGE_CLAIM);
    assert_int_equal(claim.live_bytes[0], PAGE_CLAIM);
    before = cached_of(&p);
    run = test_run_start(&p, text, 4 * PT);
    assert_int_equal(run.match.n_tokens, claim.n_tokens);
    assert_int_equal(before - cached_of(&p), claim.cached_bytes[0]);
    claim = claim_of(&p, text, 4 * PT, UINT32_MAX);
    assert_int_equal(claim.cached_bytes[0], 0);
    assert_int_equal(claim.live_bytes[0], 4 * PAGE_CLAIM);
    test_run_end(&p, &run);
    test_run_end(&p, &other);
    test_prefix_destroy(&p);
}

static void test_claim_counts_nothing(void **state)
{
    int32_t text[2 * PT];
    quire_prefix_stats before;
    quire_prefix_stats after;
    uint64_t generation;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 2 * PT, 0);
    (void)test_run_whole(&p, text, 2 * PT);
    before = test_prefix_stats(&p);
    generation = quire_prefix_generation(p.tree);
    for (int i = 0; i < 3; i++) {
        (void)claim_of(&p, text, 2 * PT, UINT32_MAX);
        (void)test_lookup(&p, text, 2 * PT);
    }
    after = test_prefix_stats(&p);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(quire_prefix_generation(p.tree), generation);
    test_prefix_destroy(&p);
}

/* Whether the generation differs from *generation, which is updated. */
static bool has_changed(const test_prefix *p, uint64_t *generation)
{
    const uint64_t before = *generation;

    *generation = quire_prefix_generation(p->tree);
    return *generation != before;
}

static void test_generation(void **state)
{
    int32_t text[3 * PT];
    uint64_t generation = 0;
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    assert_true(has_changed(&p, &generation)); /* never 0 */
    test_text(text, 3 * PT, 0);
    run = test_run_start(&p, text, 3 * PT);
    (void)has_changed(&p, &generation);
    test_run_extend(&p, &run, text, PT);
    assert_true(has_changed(&p, &generation)); /* a node */
    test_run_extend(&p, &run, text, PT + 1);
    assert_true(has_changed(&p, &generation)); /* an open one */
    test_run_extend(&p, &run, text, PT + 2);
    assert_true(has_changed(&p, &generation)); /* that grew */
    test_run_end(&p, &run);
    assert_true(has_changed(&p, &generation)); /* a ref that went */
    run = test_run_start(&p, text, PT);
    assert_true(has_changed(&p, &generation)); /* and one that came */
    test_run_end(&p, &run);
    (void)has_changed(&p, &generation);
    assert_true(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1) > 0);
    assert_true(has_changed(&p, &generation));
    (void)quire_prefix_drop_all(p.tree, 0);
    assert_true(has_changed(&p, &generation));
    assert_false(has_changed(&p, &generation));
    test_prefix_destroy(&p);
}

/* ---- in pieces ---- */

typedef struct census {
    uint32_t n_pages;
    uint32_t n_uses;
    quire_page_id seen[64];
} census;

static void page_add(void *ctx, const quire_page_info *info)
{
    census *c = ctx;

    c->seen[c->n_pages++] = info->page;
}

static void use_add(void *ctx, const quire_prefix_page_use *use)
{
    census *c = ctx;

    assert_int_not_equal(use->pages[0], QUIRE_PAGE_NULL);
    assert_int_equal(use->owner, 7);
    c->n_uses++;
}

static void test_visit_in_pieces(void **state)
{
    int32_t text[5 * PT];
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    p.owner = 7;
    test_text(text, 5 * PT, 0);
    (void)test_run_whole(&p, text, 5 * PT);
    for (uint32_t piece = 1; piece < 9; piece++) {
        census c = { 0 };
        uint32_t at = 1;

        while (at != 0) {
            at = quire_cache_pages_visit_some(p.cache, at, piece, page_add, &c);
        }
        assert_int_equal(c.n_pages, 5);
        for (uint32_t i = 1; i < c.n_pages; i++) {
            assert_true(c.seen[i] > c.seen[i - 1]);
        }
        for (at = 1; at != 0;) {
            at = quire_prefix_visit_some(p.tree, at, piece, use_add, &c);
        }
        assert_int_equal(c.n_uses, 5);
    }
    test_prefix_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claim_is_what_acquire_takes),
        cmocka_unit_test(test_claim_counts_nothing),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_visit_in_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
