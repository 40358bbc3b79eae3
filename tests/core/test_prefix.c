/* test_prefix.c - the prefix tree: what is found, how pages are shared, who may use what.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include <string.h>

#define PT PAGE_TOKENS

/* What one request has computed, the next one with the same text finds, to the token. */
static void test_hit(void **state)
{
    int32_t text[4 * PT];
    quire_prefix_match match;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 4 * PT, 0);
    match = test_run_whole(&p, text, 2 * PT + 1);
    assert_int_equal(match.n_tokens, 0);
    assert_int_equal(match.end, QUIRE_PREFIX_END_NEW);
    assert_int_equal(test_stats(p.cache).pages_cached, 3);
    assert_int_equal(test_prefix_stats(&p).nodes, 3);

    match = test_run_whole(&p, text, 2 * PT + 1);
    assert_int_equal(match.n_tokens, 2 * PT + 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_WHOLE);
    assert_int_equal(test_stats(p.cache).pages_cached, 3);

    /* A turn later: the partly filled page grows, in place. */
    match = test_run_whole(&p, text, 4 * PT);
    assert_int_equal(match.n_tokens, 2 * PT + 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_ENDED);
    assert_int_equal(test_stats(p.cache).page_copies_total, 0);
    assert_int_equal(test_prefix_stats(&p).nodes, 4);
    assert_int_equal(test_prefix_stats(&p).tokens, 4 * PT);

    /* A shorter one ends inside a page. */
    match = test_run_whole(&p, text, PT + 1);
    assert_int_equal(match.n_tokens, PT + 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_WHOLE);
    test_prefix_destroy(&p);
}

/* Two texts that part inside a page, and at a page's end. */
static void test_diverged(void **state)
{
    int32_t text[3 * PT];
    quire_prefix_match match;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 3 * PT, 0);
    (void)test_run_whole(&p, text, 3 * PT);
    text[PT + 1] = -7;
    match = test_run_whole(&p, text, 3 * PT);
    assert_int_equal(match.n_tokens, PT + 1);
    assert_int_equal(match.n_same_tokens, PT + 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(match.cached_token, PT + 1);
    assert_int_equal(test_stats(p.cache).page_copies_total, 1);
    text[2 * PT] = -8;
    match = test_lookup(&p, text, 3 * PT);
    assert_int_equal(match.n_tokens, 2 * PT);
    assert_int_equal(match.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(match.cached_token, 2 * PT);
    text[0] = -9;
    match = test_lookup(&p, text, 3 * PT);
    assert_int_equal(match.n_tokens, 0);
    assert_int_equal(match.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(match.cached_token, 0);
    test_prefix_destroy(&p);
}

/* Nothing is found under another identity or salt, whatever the tokens. */
static void test_keys(void **state)
{
    static const unsigned char salts[3][7] = { "tenant", "tenanu", "" };
    int32_t text[2 * PT];
    quire_prefix_match match;
    quire_prefix_key key;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 2 * PT, 0);
    (void)test_run_whole(&p, text, 2 * PT);
    for (uint32_t i = 0; i < 3; i++) {
        key = test_key();
        key.salt = salts[i];
        key.salt_bytes = i < 2 ? 6 : 0;
        quire_prefix_lookup(p.tree, &key, text, 2 * PT, &match);
        assert_int_equal(match.n_tokens, i == 0 ? 2 * PT : 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        key = test_key();
        key.identity[i]++;
        quire_prefix_lookup(p.tree, &key, text, 2 * PT, &match);
        assert_int_equal(match.n_tokens, 0);
        assert_int_equal(match.end, QUIRE_PREFIX_END_NEW);
    }
    key = test_key();
    key.salt_bytes--; /* a salt that begins like it */
    quire_prefix_lookup(p.tree, &key, text, 2 * PT, &match);
    assert_int_equal(match.n_tokens, 0);
    test_prefix_destroy(&p);
}

/* A running sequence is read while it goes on; nobody disturbs anybody. */
static void test_running(void **state)
{
    int32_t a[3 * PT];
    int32_t b[3 * PT];
    test_prefix p;
    test_run writer;
    test_run reader;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(a, 3 * PT, 0);
    test_text(b, 3 * PT, 0);
    b[PT + 1] = -1;
    writer = test_run_start(&p, a, PT + 1);
    test_run_extend(&p, &writer, a, PT + 1);
    reader = test_run_start(&p, b, 3 * PT);
    assert_int_equal(reader.match.n_tokens, PT + 1);
    assert_int_equal(test_page_of(p.cache, reader.seq, 0, PT),
                     test_page_of(p.cache, writer.seq, 0, PT));
    test_run_extend(&p, &writer, a, PT + 2);
    assert_int_equal(test_stats(p.cache).page_copies_total, 0);
    test_run_extend(&p, &reader, b, PT + 2);
    assert_int_equal(test_stats(p.cache).page_copies_total, 1);
    test_run_extend(&p, &writer, a, 3 * PT);
    test_run_extend(&p, &reader, b, 3 * PT);
    test_check_text(&p, writer.seq, a);
    test_check_text(&p, reader.seq, b);
    test_run_end(&p, &writer);
    test_run_end(&p, &reader);
    assert_int_equal(test_lookup(&p, a, 3 * PT).n_tokens, 3 * PT);
    assert_int_equal(test_lookup(&p, b, 3 * PT).n_tokens, 3 * PT);
    test_prefix_destroy(&p);
}

/* Two that compute the same text at once: one copy is known, each keeps its own, and what is not
 * known goes when its sequence does. */
static void test_same_at_once(void **state)
{
    int32_t text[3 * PT];
    test_run runs[2];
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 3 * PT, 0);
    runs[0] = test_run_start(&p, text, 3 * PT);
    runs[1] = test_run_start(&p, text, 3 * PT);
    for (uint32_t n = 1; n <= 3 * PT; n += PT / 2) {
        test_run_extend(&p, &runs[n / 2 % 2], text, n);
        test_run_extend(&p, &runs[1 - n / 2 % 2], text, n);
    }
    test_run_extend(&p, &runs[0], text, 3 * PT);
    test_run_extend(&p, &runs[1], text, 3 * PT);
    assert_int_equal(test_prefix_stats(&p).nodes, 3);
    assert_int_equal(test_prefix_stats(&p).tokens, 3 * PT);
    test_run_end(&p, &runs[0]);
    test_run_end(&p, &runs[1]);
    assert_int_equal(test_stats(p.cache).pages_cached, 3);
    assert_int_equal(test_stats(p.cache).pages_live, 0);
    test_prefix_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hit),          cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_keys),         cmocka_unit_test(test_running),
        cmocka_unit_test(test_same_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
