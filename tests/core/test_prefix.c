/* test_prefix.c - the prefix tree: lookups, shared pages, keys.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include <string.h>

#define PT PAGE_TOKENS

/* A request finds all tokens of the same text that an earlier request has computed. */
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

    /* The next turn: the partly filled page grows in place. */
    match = test_run_whole(&p, text, 4 * PT);
    assert_int_equal(match.n_tokens, 2 * PT + 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_ENDED);
    assert_int_equal(test_stats(p.cache).page_copies_total, 0);
    assert_int_equal(test_prefix_stats(&p).nodes, 4);
    assert_int_equal(test_prefix_stats(&p).tokens, 4 * PT);

    /* A shorter text ends inside a page. */
    match = test_run_whole(&p, text, PT + 1);
    assert_int_equal(match.n_tokens, PT + 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_WHOLE);
    test_prefix_destroy(&p);
}

/* Two texts that diverge inside a page, and at a page's end. */
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

/* The same tokens are not found under another identity or salt. */
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
    key.salt_bytes--; /* a prefix of the salt */
    quire_prefix_lookup(p.tree, &key, text, 2 * PT, &match);
    assert_int_equal(match.n_tokens, 0);
    test_prefix_destroy(&p);
}

/* Readers use the pages of a running sequence; no sequence disturbs another. */
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

/* Two sequences compute the same text at the same time. The tree keeps one copy; each sequence
 * keeps its own pages; the other copy is freed with its sequence. */
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

/* ---- options of acquire ---- */

static void test_tokens_max(void **state)
{
    quire_prefix_key key = test_key();
    int32_t text[2 * PT];
    quire_prefix_match match;
    quire_prefix_ref ref;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 2 * PT, 0);
    (void)test_run_whole(&p, text, 2 * PT);
    for (uint32_t max = 0; max <= 2 * PT + 1; max++) {
        quire_prefix_acquire_opts opts = { .tokens_max = max };
        quire_seq_id seq = test_open(p.cache);

        assert_int_equal(quire_prefix_acquire(p.tree, &key, seq, text, 2 * PT, &opts, &match, &ref),
                         QUIRE_OK);
        assert_int_equal(match.n_tokens, max < 2 * PT ? max : 2 * PT);
        assert_int_equal(match.n_same_tokens, 2 * PT);
        assert_int_equal(match.end, QUIRE_PREFIX_END_WHOLE);
        assert_int_equal(quire_seq_tokens(p.cache, seq), match.n_tokens);
        test_check_text(&p, seq, text);
        assert_int_equal(quire_prefix_release(p.tree, ref, 0), QUIRE_OK);
        assert_int_equal(quire_seq_close(p.cache, seq), QUIRE_OK);
    }
    test_prefix_destroy(&p);
}

static void test_private_and_miss(void **state)
{
    int32_t text[2 * PT];
    quire_prefix_match match;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 2 * PT, 0);
    p.is_private = true;
    match = test_run_whole(&p, text, 2 * PT);
    assert_int_equal(test_prefix_stats(&p).nodes, 0);
    assert_int_equal(test_prefix_stats(&p).roots, 0);
    p.is_private = false;
    (void)test_run_whole(&p, text, PT);
    p.is_private = true;
    match = test_run_whole(&p, text, 2 * PT);
    assert_int_equal(match.n_tokens, PT);
    assert_int_equal(test_prefix_stats(&p).nodes, 1);
    p.is_private = false;
    p.is_miss = true;
    match = test_run_whole(&p, text, 2 * PT);
    assert_int_equal(match.n_tokens, 0);
    assert_int_equal(match.n_same_tokens, PT);
    assert_int_equal(test_prefix_stats(&p).nodes, 2);
    test_prefix_destroy(&p);
}

static void test_page_exact(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    int32_t text[3 * PT];
    quire_prefix_match match;
    test_prefix p;

    (void)state;
    opts.is_page_exact = true;
    test_prefix_create(&p, 64, &opts);
    test_text(text, 3 * PT, 0);
    (void)test_run_whole(&p, text, 2 * PT + 1);
    assert_int_equal(test_prefix_stats(&p).tokens, 2 * PT); /* open pages are not published */
    match = test_lookup(&p, text, 2 * PT - 1);
    assert_int_equal(match.n_tokens, PT);
    assert_int_equal(match.n_same_tokens, 2 * PT - 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_ROUNDED);
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_PAGE);
    match = test_lookup(&p, text, 2 * PT);
    assert_int_equal(match.n_tokens, 2 * PT);
    assert_int_equal(match.end, QUIRE_PREFIX_END_WHOLE);
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_NONE);
    match = test_lookup(&p, text, 3 * PT);
    assert_int_equal(match.n_tokens, 2 * PT);
    assert_int_equal(match.end, QUIRE_PREFIX_END_ENDED);
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_NONE);
    text[2 * PT - 1] = -7; /* parts inside of a page */
    match = test_lookup(&p, text, 3 * PT);
    assert_int_equal(match.n_tokens, PT);
    assert_int_equal(match.n_same_tokens, 2 * PT - 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_PAGE);
    test_prefix_destroy(&p);
}

static void test_acquire_errors(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    quire_prefix_acquire_opts acquire = { .tokens_max = 1 };
    unsigned char salt[QUIRE_PREFIX_SALT_MAX + 1] = { 0 };
    quire_prefix_key key = test_key();
    int32_t text[1] = { 0 };
    quire_prefix_match match;
    quire_prefix_ref refs[2];
    quire_prefix_ref ref;
    quire_seq_id seqs[4];
    test_prefix p;

    (void)state;
    opts.refs_max = 2;
    opts.roots_max = 1;
    test_prefix_create(&p, 64, &opts);
    for (uint32_t i = 0; i < 4; i++) {
        seqs[i] = test_open(p.cache);
    }
#define ACQUIRE(seq) quire_prefix_acquire(p.tree, &key, seq, text, 1, &acquire, &match, &ref)
    assert_int_equal(ACQUIRE(QUIRE_SEQ_NULL), QUIRE_NOTFOUND);
    test_append(p.cache, seqs[3], 1);
    assert_int_equal(ACQUIRE(seqs[3]), QUIRE_INVAL);
    assert_int_equal(quire_seq_truncate(p.cache, seqs[3], 0), QUIRE_OK);
    assert_int_equal(quire_seq_reserve(p.cache, seqs[3], 1), QUIRE_OK);
    assert_int_equal(ACQUIRE(seqs[3]), QUIRE_INVAL);
    key.salt = salt;
    key.salt_bytes = sizeof(salt);
    assert_int_equal(ACQUIRE(seqs[0]), QUIRE_INVAL);
    key.salt_bytes--;
    assert_int_equal(ACQUIRE(seqs[0]), QUIRE_OK);
    refs[0] = ref;
    assert_int_equal(ACQUIRE(seqs[0]), QUIRE_INVAL); /* tied already */
    assert_int_equal(ref, QUIRE_PREFIX_REF_NULL);
    key.salt_bytes--;
    assert_int_equal(ACQUIRE(seqs[1]), QUIRE_LIMIT); /* another root */
    key.salt_bytes++;
    assert_int_equal(ACQUIRE(seqs[1]), QUIRE_OK);
    refs[1] = ref;
    assert_int_equal(ACQUIRE(seqs[2]), QUIRE_LIMIT);
    assert_int_equal(test_prefix_stats(&p).refs, 2);

    test_append(p.cache, seqs[0], 1);
    assert_int_equal(quire_prefix_publish(p.tree, refs[0], text, 2, 0), QUIRE_INVAL);
    assert_int_equal(quire_prefix_release(p.tree, refs[0], 0), QUIRE_OK);
    assert_int_equal(quire_prefix_release(p.tree, refs[0], 0), QUIRE_NOTFOUND);
    assert_int_equal(quire_prefix_publish(p.tree, refs[0], text, 1, 0), QUIRE_NOTFOUND);
    assert_int_equal(quire_prefix_publish(p.tree, QUIRE_PREFIX_REF_NULL, text, 1, 0),
                     QUIRE_NOTFOUND);
    assert_int_equal(ACQUIRE(seqs[2]), QUIRE_OK); /* uses the first ref's entry, with another id */
    assert_int_equal(quire_prefix_release(p.tree, refs[0], 0), QUIRE_NOTFOUND);
#undef ACQUIRE
    test_prefix_destroy(&p);
}

static void test_create_errors(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    quire_prefix_opts bad;
    quire_prefix *other;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 4, NULL);
    opts.cache = p.cache;
    assert_int_equal(quire_prefix_create(&other, &opts), QUIRE_INVAL); /* one tree per cache */
    assert_null(other);
    quire_prefix_destroy(p.tree);
    bad = opts;
    bad.struct_bytes--;
    assert_int_equal(quire_prefix_create(&other, &bad), QUIRE_INVAL);
    bad = opts;
    bad.cache = NULL;
    assert_int_equal(quire_prefix_create(&other, &bad), QUIRE_INVAL);
    bad = opts;
    bad.roots_max = 0;
    assert_int_equal(quire_prefix_create(&other, &bad), QUIRE_INVAL);
    bad = opts;
    bad.refs_max = 0;
    assert_int_equal(quire_prefix_create(&other, &bad), QUIRE_INVAL);
    bad = opts;
    bad.ghosts_max = QUIRE_PREFIX_GHOSTS_MAX + 1;
    assert_int_equal(quire_prefix_create(&other, &bad), QUIRE_INVAL);
    bad = opts;
    bad.low_traffic_hits_per_hour = -1.0;
    assert_int_equal(quire_prefix_create(&other, &bad), QUIRE_INVAL);
    assert_int_equal(quire_prefix_create(&p.tree, &opts), QUIRE_OK);
    test_prefix_destroy(&p);
}

/* ---- changes of sequences ---- */

/* Truncated and continued with other tokens: both texts are cached. */
static void test_truncated(void **state)
{
    static const uint32_t cuts[] = { 0, 1, PT, PT + 1, 2 * PT };
    int32_t a[3 * PT];
    int32_t b[3 * PT];
    test_prefix p;
    test_run run;

    (void)state;
    for (uint32_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        test_prefix_create(&p, 64, NULL);
        test_text(a, 3 * PT, 0);
        test_text(b, 3 * PT, 0);
        for (uint32_t k = cuts[i]; k < 3 * PT; k++) {
            b[k] += 100000;
        }
        run = test_run_start(&p, a, 2 * PT + 1);
        test_run_extend(&p, &run, a, 2 * PT + 1);
        assert_int_equal(quire_seq_truncate(p.cache, run.seq, cuts[i]), QUIRE_OK);
        test_run_extend(&p, &run, b, 3 * PT);
        assert_int_equal(test_lookup(&p, a, 3 * PT).n_tokens, 2 * PT + 1);
        assert_int_equal(test_lookup(&p, b, 3 * PT).n_tokens, 3 * PT);
        test_run_end(&p, &run);
        assert_int_equal(test_run_whole(&p, a, 3 * PT).n_tokens, 2 * PT + 1);
        assert_int_equal(test_run_whole(&p, b, 3 * PT).n_tokens, 3 * PT);
        test_prefix_destroy(&p);
    }
}

/* Publishing less than before, or the same again, changes nothing. */
static void test_publish_again(void **state)
{
    int32_t text[2 * PT];
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 2 * PT, 0);
    run = test_run_start(&p, text, 2 * PT);
    test_run_extend(&p, &run, text, PT + 1);
    assert_int_equal(quire_prefix_publish(p.tree, run.ref, text, 0, 5), QUIRE_OK);
    assert_int_equal(quire_prefix_publish(p.tree, run.ref, text, PT, 5), QUIRE_OK);
    assert_int_equal(quire_prefix_publish(p.tree, run.ref, text, PT + 1, 5), QUIRE_OK);
    assert_int_equal(test_prefix_stats(&p).published_tokens_total, PT + 1);
    test_run_extend(&p, &run, text, 2 * PT);
    assert_int_equal(test_prefix_stats(&p).published_tokens_total, 2 * PT);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* Forks have no ref; their tokens stay intact when any sequence appends. */
static void test_forks(void **state)
{
    int32_t a[2 * PT];
    int32_t b[2 * PT];
    quire_seq_id fork;
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(a, 2 * PT, 0);
    test_text(b, 2 * PT, 0);
    for (uint32_t k = PT + 1; k < 2 * PT; k++) {
        b[k] += 5000;
    }
    run = test_run_start(&p, a, PT + 1);
    test_run_extend(&p, &run, a, PT + 1);
    fork = test_fork(p.cache, run.seq);
    test_append(p.cache, fork, PT - 1);
    test_stamp_text(&p, fork, b, PT + 1);
    test_run_extend(&p, &run, a, 2 * PT);
    test_check_text(&p, fork, b);
    test_run_end(&p, &run);
    test_check_text(&p, fork, b);
    assert_int_equal(test_lookup(&p, b, 2 * PT).n_tokens, PT + 1);
    assert_int_equal(quire_seq_close(p.cache, fork), QUIRE_OK);
    test_prefix_destroy(&p);
}

/* A caller that breaks the rules gets statuses, and the tree stays whole. */
static void test_rules_broken(void **state)
{
    int32_t a[2 * PT];
    int32_t b[2 * PT];
    test_prefix p;
    const quire_prefix_key key = test_key();
    const quire_prefix_acquire_opts opts = { .tokens_max = 0 };
    test_run run;
    test_run again;
    test_run other;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(a, 2 * PT, 0);
    test_text(b, 2 * PT, 9000);

    /* The sequence is closed before its ref is released; its slot is reused. */
    run = test_run_start(&p, a, PT + 1);
    test_run_extend(&p, &run, a, PT + 1);
    assert_int_equal(quire_seq_close(p.cache, run.seq), QUIRE_OK);
    quire_prefix_validate(p.tree);
    other = test_run_start(&p, b, 2 * PT);
    assert_int_equal(quire_prefix_publish(p.tree, run.ref, a, 2 * PT, 0), QUIRE_INVAL);
    assert_int_equal(quire_prefix_release(p.tree, run.ref, 0), QUIRE_OK);
    test_run_extend(&p, &other, b, 2 * PT);

    /* Close and open sequences until an id recurs: the old ref does not act on the new sequence. */
    run = test_run_start(&p, a, PT + 1);
    for (quire_seq_id id = QUIRE_SEQ_NULL; id != run.seq; id = test_open(p.cache)) {
        assert_int_equal(quire_seq_close(p.cache, id != QUIRE_SEQ_NULL ? id : run.seq), QUIRE_OK);
    }
    again.seq = run.seq;
    assert_int_equal(
        quire_prefix_acquire(p.tree, &key, again.seq, b, PT, &opts, &again.match, &again.ref),
        QUIRE_OK);
    test_append(p.cache, again.seq, PT);
    test_stamp_text(&p, again.seq, b, 0);
    assert_int_equal(quire_prefix_publish(p.tree, run.ref, a, PT, 0), QUIRE_INVAL);
    assert_int_equal(quire_prefix_release(p.tree, run.ref, 0), QUIRE_OK);
    assert_int_equal(quire_prefix_publish(p.tree, again.ref, b, PT, 0), QUIRE_OK);
    test_run_end(&p, &again);

    /* Other tokens for the same pages: ignored. */
    a[0] = -1;
    assert_int_equal(quire_seq_truncate(p.cache, other.seq, 0), QUIRE_OK);
    test_append(p.cache, other.seq, PT);
    assert_int_equal(quire_prefix_publish(p.tree, other.ref, a, 1, 0), QUIRE_OK);
    a[0] = -2;
    assert_int_equal(quire_seq_truncate(p.cache, other.seq, 1), QUIRE_OK);
    assert_int_equal(quire_seq_truncate(p.cache, other.seq, 0), QUIRE_OK);
    test_append(p.cache, other.seq, PT);
    quire_prefix_validate(p.tree);
    assert_int_equal(quire_prefix_publish(p.tree, other.ref, a, PT, 0), QUIRE_OK);
    quire_prefix_validate(p.tree);
    test_prefix_destroy(&p); /* with a ref held */
}

/* ---- groups ---- */

#define HOT 1u

static quire_cache_opts two_groups(uint32_t n_pages)
{
    quire_cache_opts opts = test_opts(n_pages);

    opts.n_groups = 2;
    opts.page_bytes[HOT] = PAGE_BYTES;
    return opts;
}

/* The tree drops pages that a running sequence releases. A sequence that begins there finds holes,
 * and no hit ends inside a hole. */
static void test_holes(void **state)
{
    enum {
        N = 6
    };
    quire_cache_opts cache_opts = two_groups(64);
    int32_t text[N * PT];
    quire_prefix_match match;
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create_in(&p, &cache_opts, NULL);
    test_text(text, N * PT, 0);
    run = test_run_start(&p, text, N * PT);
    for (uint32_t i = 1; i <= N; i++) {
        test_run_extend(&p, &run, text, i * PT);
        if (i > 2) { /* the first page and the last one stay */
            assert_int_equal(quire_seq_release(p.cache, run.seq, HOT, PT, (i - 1) * PT, NULL),
                             QUIRE_OK);
        }
    }
    assert_int_equal(quire_prefix_publish(p.tree, run.ref, text, N * PT, 0), QUIRE_OK);
    quire_prefix_validate(p.tree);
    test_run_end(&p, &run);
    assert_int_equal(test_stats(p.cache).pages_cached, N + 2);

    match = test_lookup(&p, text, 2 * PT - 1);
    assert_int_equal(match.n_tokens, PT);
    assert_int_equal(match.n_same_tokens, 2 * PT - 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_ROUNDED);
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_PAGE);
    assert_int_equal(test_lookup(&p, text, PT - 1).n_tokens, PT - 1);
    assert_int_equal(test_lookup(&p, text, N * PT - 1).n_tokens, N * PT - 1);
    run = test_run_start(&p, text, 2 * PT);
    assert_int_equal(run.match.n_tokens, 2 * PT);
    assert_int_equal(test_page_of(p.cache, run.seq, HOT, PT), QUIRE_PAGE_NULL);
    assert_int_not_equal(test_page_of(p.cache, run.seq, HOT, 0), QUIRE_PAGE_NULL);
    test_run_extend(&p, &run, text, 3 * PT);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* A page that another sequence still holds stays in the tree. */
static void test_holes_of_shared_pages(void **state)
{
    quire_cache_opts cache_opts = two_groups(64);
    int32_t text[4 * PT];
    quire_page_id page;
    test_prefix p;
    test_run a;
    test_run b;

    (void)state;
    test_prefix_create_in(&p, &cache_opts, NULL);
    test_text(text, 4 * PT, 0);
    a = test_run_start(&p, text, 4 * PT);
    test_run_extend(&p, &a, text, 2 * PT);
    b = test_run_start(&p, text, 2 * PT);
    page = test_page_of(p.cache, b.seq, HOT, PT);
    test_run_extend(&p, &a, text, 4 * PT);
    assert_int_equal(quire_seq_release(p.cache, a.seq, HOT, 0, 3 * PT, NULL), QUIRE_OK);
    assert_int_equal(quire_prefix_publish(p.tree, a.ref, text, 4 * PT, 0), QUIRE_OK);
    test_run_end(&p, &a);
    assert_int_equal(test_page_of(p.cache, b.seq, HOT, PT), page);
    test_check_text(&p, b.seq, text);
    test_run_end(&p, &b);
    assert_int_equal(test_lookup(&p, text, 2 * PT - 1).n_tokens, 2 * PT - 1);
    assert_int_equal(test_lookup(&p, text, 3 * PT - 1).n_tokens, 2 * PT);
    test_prefix_destroy(&p);
}

static void test_many_groups_without_payload(void **state)
{
    quire_cache_opts cache_opts = test_opts(64);
    int32_t text[3 * PT];
    test_prefix p;

    (void)state;
    cache_opts.n_groups = QUIRE_GROUPS_MAX;
    cache_opts.page_bytes[0] = 0;
    cache_opts.budget_bytes = 1000;
    test_prefix_create_in(&p, &cache_opts, NULL);
    test_text(text, 3 * PT, 0);
    (void)test_run_whole(&p, text, 2 * PT + 1);
    assert_int_equal(test_run_whole(&p, text, 3 * PT).n_tokens, 2 * PT + 1);
    assert_int_equal(test_stats(p.cache).pages_cached, 3 * QUIRE_GROUPS_MAX);
    assert_int_equal(test_prefix_stats(&p).evictable_bytes, 3 * QUIRE_GROUPS_MAX);
    test_prefix_destroy(&p);
}

/* ---- observation ---- */

static void test_stats_and_bytes(void **state)
{
    quire_prefix_key key = test_key();
    int32_t text[3 * PT];
    quire_prefix_stats stats;
    uint64_t bytes;
    uint64_t own_bytes;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 3 * PT, 0);
    p.owner = 7;
    (void)test_run_whole(&p, text, PT);
    (void)test_run_whole(&p, text, 2 * PT + 1);
    quire_prefix_path_bytes(p.tree, &key, text, 3 * PT, 7, &bytes, &own_bytes);
    assert_int_equal(bytes, 3 * PAGE_BYTES);
    assert_int_equal(own_bytes, 3 * PAGE_BYTES);
    p.owner = 8;
    (void)test_run_whole(&p, text, PT);
    quire_prefix_path_bytes(p.tree, &key, text, 3 * PT, 7, &bytes, &own_bytes);
    assert_int_equal(bytes, 3 * PAGE_BYTES);
    assert_int_equal(own_bytes, 2 * PAGE_BYTES);
    quire_prefix_path_bytes(p.tree, &key, text, PT, 8, NULL, &own_bytes);
    assert_int_equal(own_bytes, 0);
    key.identity[0]++;
    quire_prefix_path_bytes(p.tree, &key, text, PT, 8, &bytes, NULL);
    assert_int_equal(bytes, 0);

    stats = test_prefix_stats(&p);
    assert_int_equal(stats.lookups_total, 3);
    assert_int_equal(stats.hits_total, 2);
    assert_int_equal(stats.query_tokens_total, PT + 2 * PT + 1 + PT);
    assert_int_equal(stats.hit_tokens_total, 2 * PT);
    assert_int_equal(stats.published_tokens_total, 2 * PT + 1);
    assert_int_equal(stats.nodes, 3);
    assert_int_equal(stats.tokens, 2 * PT + 1);
    assert_int_equal(stats.evictable_bytes, 3 * PAGE_BYTES);
    assert_int_equal(stats.roots, 1);
    assert_int_equal(stats.refs, 0);
    test_prefix_destroy(&p);
}

typedef struct visit_log {
    uint32_t n;
    uint32_t n_children;
    uint32_t n_refs;
    uint32_t n_hits;
    uint32_t n_tokens;
    uint32_t stop_at;
} visit_log;

static int visit_node(void *ctx, const quire_prefix_node_info *node)
{
    visit_log *log = ctx;

    log->n++;
    log->n_children += node->n_children;
    log->n_refs += node->n_refs;
    log->n_hits += node->hits;
    log->n_tokens += node->n_tokens;
    assert_int_not_equal(node->pages[0], QUIRE_PAGE_NULL);
    assert_int_equal(node->tokens[0] % 10000, node->first_token);
    assert_int_equal(node->salt_bytes, 6);
    assert_memory_equal(node->salt, "tenant", 6);
    assert_int_equal(node->created_us, 1000);
    return log->n == log->stop_at ? 9 : 0;
}

static void test_visit(void **state)
{
    int32_t text[2 * PT];
    visit_log log = { 0 };
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 256, NULL);
    assert_int_equal(quire_prefix_visit(p.tree, visit_node, &log), 0);
    assert_int_equal(log.n, 0);
    for (int32_t i = 0; i < 8; i++) {
        test_text(text, 2 * PT, i * 10000);
        (void)test_run_whole(&p, text, 2 * PT);
    }
    run = test_run_start(&p, text, 2 * PT);
    assert_int_equal(quire_prefix_visit(p.tree, visit_node, &log), 0);
    assert_int_equal(log.n, 16);
    assert_int_equal(log.n_children, 8);
    assert_int_equal(log.n_refs, 1);
    assert_int_equal(log.n_hits, 2);
    assert_int_equal(log.n_tokens, 16 * PT);
    log = (visit_log){ .stop_at = 3 };
    assert_int_equal(quire_prefix_visit(p.tree, visit_node, &log), 9);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(quire_prefix_end_name(QUIRE_PREFIX_END_DIVERGED), "diverged");
    assert_string_equal(quire_prefix_end_name((quire_prefix_end)99), "unknown");
    assert_string_equal(quire_prefix_cut_name(QUIRE_PREFIX_CUT_WINDOW), "window");
    assert_string_equal(quire_prefix_cut_name((quire_prefix_cut)99), "unknown");
    assert_string_equal(quire_prefix_gone_name(QUIRE_PREFIX_GONE_LOW_TRAFFIC), "low_traffic");
    assert_string_equal(quire_prefix_gone_name(QUIRE_PREFIX_GONE_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hit),
        cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_running),
        cmocka_unit_test(test_same_at_once),
        cmocka_unit_test(test_tokens_max),
        cmocka_unit_test(test_private_and_miss),
        cmocka_unit_test(test_page_exact),
        cmocka_unit_test(test_acquire_errors),
        cmocka_unit_test(test_create_errors),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_publish_again),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_rules_broken),
        cmocka_unit_test(test_holes),
        cmocka_unit_test(test_holes_of_shared_pages),
        cmocka_unit_test(test_many_groups_without_payload),
        cmocka_unit_test(test_stats_and_bytes),
        cmocka_unit_test(test_visit),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
