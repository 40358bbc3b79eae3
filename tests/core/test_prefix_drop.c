/* test_prefix_drop.c - invalidation: takes effect at once for lookups, and leaves running sequences
 * their pages.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"
#include "rounds.h"

#include <string.h>

#define PT PAGE_TOKENS

static quire_prefix_key key_of(uint32_t identity, const char *salt)
{
    return (quire_prefix_key){ .identity = { identity, 0 },
                               .salt = salt,
                               .salt_bytes = (uint32_t)strlen(salt) };
}

/* Publish a text under a key and release it. */
static void put(test_prefix *p, const quire_prefix_key *key, const int32_t *text, uint32_t n)
{
    quire_prefix_acquire_opts opts = { .tokens_max = n };
    quire_seq_id seq = test_open(p->cache);
    quire_prefix_match match;
    quire_prefix_ref ref;

    assert_int_equal(quire_prefix_acquire(p->tree, key, seq, text, n, &opts, &match, &ref),
                     QUIRE_OK);
    test_append(p->cache, seq, n - match.n_tokens);
    assert_int_equal(quire_prefix_publish(p->tree, ref, text, n, 0), QUIRE_OK);
    assert_int_equal(quire_prefix_release(p->tree, ref, 0), QUIRE_OK);
    assert_int_equal(quire_seq_close(p->cache, seq), QUIRE_OK);
}

static uint32_t found(const test_prefix *p, const quire_prefix_key *key, const int32_t *text,
                      uint32_t n)
{
    quire_prefix_match match;

    quire_prefix_lookup(p->tree, key, text, n, &match);
    return match.n_tokens;
}

static void check_dropped(quire_prefix_dropped dropped, uint32_t nodes, uint32_t tokens,
                          uint32_t freed_pages)
{
    assert_int_equal(dropped.nodes, nodes);
    assert_int_equal(dropped.tokens, tokens);
    assert_int_equal(dropped.freed_bytes, freed_pages * PAGE_BYTES);
}

static void test_salt_and_all(void **state)
{
    const quire_prefix_key keys[] = { key_of(1, "a"), key_of(2, "a"), key_of(1, "b"),
                                      key_of(1, "ab"), key_of(1, "") };
    int32_t text[2 * PT];
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 2 * PT, 0);
    for (uint32_t i = 0; i < 5; i++) {
        put(&p, &keys[i], text, PT + 1);
    }
    check_dropped(quire_prefix_drop_salt(p.tree, "a", 1, 0), 4, 2 * (PT + 1), 4);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(found(&p, &keys[i], text, 2 * PT), i < 2 ? 0 : PT + 1);
    }
    check_dropped(quire_prefix_drop_salt(p.tree, NULL, 0, 0), 2, PT + 1, 2);
    check_dropped(quire_prefix_drop_salt(p.tree, "x", 1, 0), 0, 0, 0);
    assert_int_equal(test_prefix_stats(&p).roots, 2);
    check_dropped(quire_prefix_drop_salts(p.tree, "a", 1, 0), 2, PT + 1, 2); /* "ab" */
    assert_int_equal(found(&p, &keys[2], text, 2 * PT), PT + 1);
    assert_int_equal(test_prefix_stats(&p).roots, 1);
    check_dropped(quire_prefix_drop_all(p.tree, 0), 2, PT + 1, 2);
    assert_int_equal(test_prefix_stats(&p).roots, 0);
    assert_int_equal(test_prefix_stats(&p).nodes, 0);
    assert_int_equal(test_stats(p.cache).pages_cached, 0);
    assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_INVALIDATED], 10);
    assert_int_equal(test_prefix_stats(&p).regret_tokens_total, 0);
    put(&p, &keys[0], text, PT); /* and it goes on */
    assert_int_equal(found(&p, &keys[0], text, 2 * PT), PT);
    assert_int_equal(test_prefix_stats(&p).regret_tokens_total, 0);
    test_prefix_destroy(&p);
}

/* From the node that contains the last named token, all branches that agree up to this token go. */
static void test_prefix_of_texts(void **state)
{
    quire_prefix_key key = test_key();
    int32_t texts[4][3 * PT];
    uint32_t n_left;
    test_prefix p;

    (void)state;
    for (uint32_t n = 0; n <= 3 * PT; n++) {
        quire_prefix_dropped dropped;

        test_prefix_create(&p, 64, NULL);
        for (uint32_t i = 0; i < 4; i++) {
            test_text(texts[i], 3 * PT, 0);
        }
        texts[1][PT] = -1;     /* another second page */
        texts[2][2 * PT] = -2; /* another third page */
        texts[3][0] = -3;      /* another text */
        for (uint32_t i = 0; i < 4; i++) {
            put(&p, &key, texts[i], 3 * PT);
        }
        assert_int_equal(test_prefix_stats(&p).nodes, 9);
        dropped = quire_prefix_drop_prefix(p.tree, &key, texts[0], n, 0);
        assert_int_equal(dropped.nodes, n == 0 ? 9 : n <= PT ? 6 : n <= 2 * PT ? 3 : 1);
        n_left = n > 0 ? (n - 1) / PT * PT : 0;
        assert_int_equal(found(&p, &key, texts[0], 3 * PT), n_left);
        assert_int_equal(found(&p, &key, texts[1], 3 * PT), n > PT ? 3 * PT : 0);
        assert_int_equal(found(&p, &key, texts[2], 3 * PT), n > 2 * PT ? 3 * PT : n_left);
        assert_int_equal(found(&p, &key, texts[3], 3 * PT), n > 0 ? 3 * PT : 0);
        test_prefix_destroy(&p);
    }
}

/* A text that is not cached: nothing goes. */
static void test_prefix_not_there(void **state)
{
    quire_prefix_key key = test_key();
    int32_t text[3 * PT];
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 3 * PT, 0);
    put(&p, &key, text, PT + 1);
    check_dropped(quire_prefix_drop_prefix(p.tree, &key, text, PT + 2, 0), 0, 0, 0);
    check_dropped(quire_prefix_drop_prefix(p.tree, &key, text, 3 * PT, 0), 0, 0, 0);
    text[PT] = -1;
    check_dropped(quire_prefix_drop_prefix(p.tree, &key, text, PT + 1, 0), 0, 0, 0);
    key.identity[1]++;
    check_dropped(quire_prefix_drop_prefix(p.tree, &key, text, 0, 0), 0, 0, 0);
    assert_int_equal(test_prefix_stats(&p).nodes, 2);
    test_prefix_destroy(&p);
}

/* A running sequence keeps its pages, and publishes nothing from then on. */
static void test_running(void **state)
{
    quire_prefix_key key = test_key();
    int32_t text[4 * PT];
    test_prefix p;
    test_run run;

    (void)state;
    for (uint32_t way = 0; way < 4; way++) {
        quire_prefix_dropped dropped;

        test_prefix_create(&p, 64, NULL);
        test_text(text, 4 * PT, 0);
        p.owner = 3;
        run = test_run_start(&p, text, 4 * PT);
        test_run_extend(&p, &run, text, 2 * PT + 1);
        dropped = way == 0   ? quire_prefix_drop_all(p.tree, 0)
                  : way == 1 ? quire_prefix_drop_salt(p.tree, "tenant", 6, 0)
                  : way == 2 ? quire_prefix_drop_prefix(p.tree, &key, text, 1, 0)
                             : quire_prefix_drop_owner(p.tree, 3, 0);
        check_dropped(dropped, 3, 2 * PT + 1, 0);
        assert_int_equal(test_lookup(&p, text, 4 * PT).n_tokens, 0);
        test_run_extend(&p, &run, text, 4 * PT);
        assert_int_equal(test_prefix_stats(&p).nodes, 0);
        test_run_end(&p, &run);
        assert_int_equal(test_stats(p.cache).pages_live, 0);
        test_prefix_destroy(&p);
    }
}

/* A sequence that shares fewer tokens than named continues to publish. */
static void test_running_beside(void **state)
{
    quire_prefix_key key = test_key();
    int32_t a[2 * PT];
    int32_t b[2 * PT];
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(a, 2 * PT, 0);
    test_text(b, 2 * PT, 0);
    b[PT + 1] = -5;
    (void)test_run_whole(&p, a, 2 * PT);
    run = test_run_start(&p, b, 2 * PT);
    check_dropped(quire_prefix_drop_prefix(p.tree, &key, a, PT + 2, 0), 1, PT, 0);
    quire_prefix_validate(p.tree);
    assert_int_equal(found(&p, &key, a, 2 * PT), PT);
    test_append(p.cache, run.seq, PT - 1);
    assert_int_equal(quire_prefix_publish(p.tree, run.ref, b, 2 * PT, 0), QUIRE_OK);
    assert_int_equal(found(&p, &key, b, 2 * PT), 2 * PT);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* A ref under a dropped root is dead too, even if it has published nothing. */
static void test_running_at_the_root(void **state)
{
    int32_t text[PT];
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, PT, 0);
    run = test_run_start(&p, text, PT);
    assert_int_equal(test_prefix_stats(&p).roots, 1);
    check_dropped(quire_prefix_drop_salt(p.tree, "tenant", 6, 0), 0, 0, 0);
    assert_int_equal(test_prefix_stats(&p).roots, 0);
    test_run_extend(&p, &run, text, PT);
    assert_int_equal(test_prefix_stats(&p).nodes, 0);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* Nodes that others have used stay when a session closes. */
static void test_owner(void **state)
{
    int32_t a[3 * PT];
    int32_t b[3 * PT];
    quire_prefix_match match;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(a, 3 * PT, 0);
    test_text(b, 3 * PT, 0);
    b[PT] = -5;
    p.owner = 1;
    (void)test_run_whole(&p, a, 3 * PT);
    p.owner = 2;
    (void)test_run_whole(&p, b, 3 * PT);
    p.owner = 0;
    check_dropped(quire_prefix_drop_owner(p.tree, 0, 0), 0, 0, 0);
    check_dropped(quire_prefix_drop_owner(p.tree, 3, 0), 0, 0, 0);
    check_dropped(quire_prefix_drop_owner(p.tree, 1, 7777), 2, 2 * PT, 2);
    match = test_lookup(&p, a, 3 * PT);
    assert_int_equal(match.n_tokens, PT);
    assert_int_equal(match.end, QUIRE_PREFIX_END_EVICTED);
    assert_int_equal(match.gone, QUIRE_PREFIX_GONE_CLOSED);
    assert_int_equal(match.gone_us, 7777);
    assert_int_equal(test_lookup(&p, b, 3 * PT).n_tokens, 3 * PT);
    check_dropped(quire_prefix_drop_owner(p.tree, 2, 0), 2, 2 * PT, 2);
    assert_int_equal(test_lookup(&p, b, 3 * PT).n_tokens, PT);
    test_prefix_destroy(&p);
}

/* A sequence whose prefix is dropped does not publish tokens computed before the drop. Tokens
 * computed later, without the prefix, could be published. */
static void test_dropped_before_published(void **state)
{
    quire_prefix_key key = test_key();
    int32_t text[4 * PT];
    int32_t other[4 * PT];
    test_prefix p;
    test_run run;

    (void)state;
    test_text(text, 4 * PT, 0);
    test_text(other, 4 * PT, 0);
    other[1] = -5;
    for (uint32_t n_known = 0; n_known < 3 * PT; n_known += TEST_STRIDE(7u)) {
        /* Steps of 5: all distances to an end of a page occur, over all n_known. */
        for (uint32_t n = n_known + 1; n <= 3 * PT; n += TEST_ROUNDS(5u, 9u)) {
            test_prefix_create(&p, 64, NULL);
            run = test_run_start(&p, text, 4 * PT);
            test_run_extend(&p, &run, text, n_known);
            test_append(p.cache, run.seq, 3 * PT - n_known);
            test_stamp_text(&p, run.seq, text, n_known);
            (void)quire_prefix_drop_prefix(p.tree, &key, text, n, 0);
            (void)quire_prefix_drop_prefix(p.tree, &key, text, n, 0); /* once more: the same */
            assert_int_equal(quire_prefix_publish(p.tree, run.ref, text, 3 * PT, 0), QUIRE_OK);
            assert_true(test_lookup(&p, text, 4 * PT).n_tokens < n);
            test_run_end(&p, &run);
            test_prefix_destroy(&p);
        }
    }
    /* The sequence's text turns out to differ from the named text. */
    test_prefix_create(&p, 64, NULL);
    run = test_run_start(&p, text, 4 * PT);
    (void)quire_prefix_drop_prefix(p.tree, &key, other, 2, 0);
    test_run_extend(&p, &run, text, 3 * PT);
    assert_int_equal(test_lookup(&p, text, 4 * PT).n_tokens, 3 * PT);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* The first drop moves a ref up, because fewer tokens were published than named. A second drop of
 * exactly the ref's tokens still finds the ref. */
static void test_dropped_twice(void **state)
{
    quire_prefix_key key = test_key();
    int32_t text[4 * PT];
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 4 * PT, 0);
    (void)test_run_whole(&p, text, 3 * PT);
    run = test_run_start(&p, text, PT + 1);
    (void)quire_prefix_drop_prefix(p.tree, &key, text, PT + 2, 0);
    (void)quire_prefix_drop_prefix(p.tree, &key, text, PT + 1, 0);
    assert_int_equal(quire_prefix_publish(p.tree, run.ref, text, PT + 1, 0), QUIRE_OK);
    assert_int_equal(test_lookup(&p, text, 4 * PT).n_tokens, PT);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* A closed session leaves no nodes behind, regardless of the hits and unpublished tokens of its
 * requests. */
static void test_owner_runs_on(void **state)
{
    int32_t text[4 * PT];
    test_prefix p;
    test_run run;

    (void)state;
    test_text(text, 4 * PT, 0);
    for (uint32_t way = 0; way < 3; way++) {
        uint32_t n_shared = way == 0 ? 0 : PT;

        test_prefix_create(&p, 64, NULL);
        p.owner = 5;
        (void)test_run_whole(&p, text, n_shared);
        p.owner = 3;
        run = test_run_start(&p, text, 4 * PT);
        if (way == 2) {
            test_append(p.cache, run.seq, PT);
            test_stamp_text(&p, run.seq, text, PT);
        }
        check_dropped(quire_prefix_drop_owner(p.tree, 3, 0), 0, 0, 0);
        test_run_extend(&p, &run, text, 4 * PT);
        test_run_end(&p, &run);
        assert_int_equal(test_lookup(&p, text, 4 * PT).n_tokens, n_shared);
        test_prefix_destroy(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_salt_and_all),
        cmocka_unit_test(test_prefix_of_texts),
        cmocka_unit_test(test_prefix_not_there),
        cmocka_unit_test(test_running),
        cmocka_unit_test(test_running_beside),
        cmocka_unit_test(test_running_at_the_root),
        cmocka_unit_test(test_owner),
        cmocka_unit_test(test_dropped_before_published),
        cmocka_unit_test(test_dropped_twice),
        cmocka_unit_test(test_owner_runs_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
