/* test_prefix_window.c - groups with windows: where hits end, which pages go first, pins, copies.
 *
 * Group 1 has a window of WINDOW tokens, two pages and one token. A runner releases the pages
 * behind its window before each append, as the runtime does before a step.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"
#include "quire/pin.h"

#include <string.h>

#define P        PAGE_TOKENS
#define WINDOW   (2 * P + 1)
#define GROUP    1u
#define PAGES    10u /* of a text */
#define TEXT     (PAGES * P)
#define TEXT_MAX (2 * TEXT)

static void begin_as(test_prefix *p, uint32_t n_pages, const quire_prefix_opts *opts)
{
    quire_cache_opts cache = test_opts(n_pages);

    cache.n_groups = 2;
    cache.page_bytes[GROUP] = PAGE_BYTES;
    cache.needs_last_tokens[GROUP] = WINDOW;
    test_prefix_create_in(p, &cache, opts);
}

static void begin(test_prefix *p, uint32_t n_pages)
{
    begin_as(p, n_pages, NULL);
}

static uint32_t window_begin(uint32_t n_tokens)
{
    return n_tokens >= WINDOW ? n_tokens - WINDOW + 1 : 0;
}

static void release(test_prefix *p, quire_seq_id seq)
{
    const uint32_t n = quire_seq_tokens(p->cache, seq);

    assert_int_equal(quire_seq_release(p->cache, seq, GROUP, 0, window_begin(n), NULL), QUIRE_OK);
}

/* Compute a text to its end, a page at a time. */
static void compute(test_prefix *p, const test_run *run, const int32_t *tokens, uint32_t n_tokens)
{
    uint32_t n = quire_seq_tokens(p->cache, run->seq);

    while (n < n_tokens) {
        n = n - n % P + P < n_tokens ? n - n % P + P : n_tokens;
        release(p, run->seq);
        test_run_extend(p, run, tokens, n);
    }
}

static quire_prefix_match whole(test_prefix *p, const int32_t *tokens, uint32_t n_tokens)
{
    const test_run run = test_run_start(p, tokens, n_tokens);

    compute(p, &run, tokens, n_tokens);
    test_run_end(p, &run);
    return run.match;
}

static uint64_t evict_pages(test_prefix *p, uint32_t n)
{
    const uint64_t freed = quire_prefix_evict(p->tree, QUIRE_REGION_DYNAMIC, n * PAGE_BYTES);

    quire_prefix_validate(p->tree);
    return freed;
}

/* Nodes with a page in a group. */
typedef struct count {
    uint32_t n[2];
    uint32_t n_nodes;
} count;

static int count_node(void *ctx, const quire_prefix_node_info *node)
{
    count *c = ctx;

    c->n_nodes++;
    c->n[0] += node->pages[0] != QUIRE_PAGE_NULL;
    c->n[1] += node->pages[1] != QUIRE_PAGE_NULL;
    return 0;
}

static count counts(const test_prefix *p)
{
    count c = { 0 };

    (void)quire_prefix_visit(p->tree, count_node, &c);
    return c;
}

static void test_hit_everywhere(void **state)
{
    int32_t text[TEXT_MAX];
    test_prefix p;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    (void)whole(&p, text, TEXT);
    for (uint32_t n = 1; n <= TEXT; n += P > 8 ? 31 : 1) {
        const test_run run = test_run_start(&p, text, n);

        assert_int_equal(run.match.n_tokens, n);
        test_check_window(&p, run.seq);
        compute(&p, &run, text, TEXT); /* goes on in the tree's own pages, or in copies */
        test_run_end(&p, &run);
    }
    test_prefix_destroy(&p);
}

/* Pages that a running sequence holds, and pages that the tree keeps behind its window. */
static void test_bounded(void **state)
{
    const uint32_t n_window = 4; /* pages that a window and a step of a page can touch */
    int32_t text[TEXT_MAX];
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, PAGES + n_window); /* not enough to keep all pages behind the window */
    test_text(text, TEXT, 1);
    run = test_run_start(&p, text, TEXT);
    compute(&p, &run, text, TEXT);
    assert_int_equal(counts(&p).n[0], PAGES);
    assert_true(counts(&p).n[1] <= n_window);
    test_run_end(&p, &run);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, TEXT); /* the end was kept */
    test_prefix_destroy(&p);
}

static void test_windows_go_first(void **state)
{
    int32_t a[TEXT_MAX];
    int32_t b[TEXT_MAX];
    int32_t part[TEXT_MAX];
    quire_prefix_match match;
    test_prefix p;
    count before;

    (void)state;
    begin(&p, 100);
    test_text(a, TEXT, 1);
    test_text(b, TEXT, 1000);
    (void)whole(&p, a, TEXT);
    (void)whole(&p, b, TEXT);
    before = counts(&p);
    assert_int_equal(before.n_nodes, 2 * PAGES);
    assert_int_equal(before.n[1], 2 * PAGES);
    /* An end keeps its own page, the two before it, and one more. */
    assert_int_equal(evict_pages(&p, 2 * (PAGES - 4)), 2 * (PAGES - 4) * PAGE_BYTES);
    assert_int_equal(counts(&p).n[0], 2 * PAGES);
    assert_int_equal(counts(&p).n[1], 8);
    assert_int_equal(test_lookup(&p, a, TEXT).n_tokens, TEXT);
    assert_int_equal(test_lookup(&p, b, TEXT).n_tokens, TEXT);
    assert_int_equal(test_lookup(&p, b, TEXT - P - 1).n_tokens, TEXT - P - 1);
    /* A hit inside of a text ends where a window is whole: nowhere. */
    assert_int_equal(test_lookup(&p, a, TEXT / 2).n_tokens, 0);
    assert_int_equal(test_lookup(&p, a, TEXT / 2).n_same_tokens, TEXT / 2);
    assert_int_equal(test_lookup(&p, a, TEXT / 2).end, QUIRE_PREFIX_END_ROUNDED);
    assert_int_equal(test_lookup(&p, a, TEXT / 2).cut, QUIRE_PREFIX_CUT_WINDOW);
    assert_int_equal(test_lookup(&p, a, TEXT).cut, QUIRE_PREFIX_CUT_NONE);
    /* Nor where another text parts from it. */
    memcpy(part, a, sizeof part);
    part[TEXT / 2 + 1] = -7;
    match = test_lookup(&p, part, TEXT);
    assert_int_equal(match.n_tokens, 0);
    assert_int_equal(match.n_same_tokens, TEXT / 2 + 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_WINDOW);
    /* Then nodes go, as always. The windows before the last pages are whole; behind the page before
     * these no hit can end, so the rest of the text goes along. */
    assert_int_equal(evict_pages(&p, 5), (PAGES + 4) * PAGE_BYTES);
    assert_int_equal(counts(&p).n[0], PAGES);
    assert_int_equal(test_lookup(&p, a, TEXT).n_tokens + test_lookup(&p, b, TEXT).n_tokens, TEXT);
    test_prefix_destroy(&p);
}

/* The end of a prompt is an end, beside the end of the text. */
static void test_prompt_end(void **state)
{
    const uint32_t n_prompt = TEXT / 2 + 1;
    int32_t text[TEXT_MAX];
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    run = test_run_start(&p, text, n_prompt);
    compute(&p, &run, text, TEXT);
    test_run_end(&p, &run);
    (void)evict_pages(&p, 2); /* pages 0 and 1 are of no use to an end */
    assert_int_equal(test_lookup(&p, text, n_prompt).n_tokens, n_prompt);
    assert_int_equal(test_lookup(&p, text, n_prompt - 1).n_tokens, n_prompt - 1);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, TEXT);
    test_prefix_destroy(&p);
}

/* Where two texts part, a third is likely to part, too. */
static void test_branch(void **state)
{
    const uint32_t n_common = 5 * P;
    int32_t text[3][TEXT_MAX];
    test_prefix p;

    (void)state;
    begin(&p, 200);
    for (uint32_t i = 0; i < 3; i++) {
        test_text(text[i], TEXT, 1);
        test_text(text[i] + n_common, TEXT - n_common, (int32_t)(1000 * (i + 1)));
    }
    (void)whole(&p, text[0], TEXT);
    (void)whole(&p, text[1], TEXT);
    assert_int_equal(evict_pages(&p, 3), 3 * PAGE_BYTES); /* no end needs them */
    assert_int_equal(test_lookup(&p, text[2], TEXT).n_tokens, n_common);
    test_prefix_destroy(&p);
}

/* A path keeps its newest ends and its first. */
static void test_old_ends(void **state)
{
    int32_t text[TEXT_MAX];
    test_prefix p;
    uint32_t n_ends = 0;

    (void)state;
    begin(&p, 200);
    test_text(text, TEXT_MAX, 1);
    for (uint32_t n = P; n <= 10 * P; n += P) {
        (void)whole(&p, text, n);
    }
    for (uint32_t id = 1; id < p.tree->nodes.id_end; id++) {
        const quire_prefix_node *node = quire_prefix_at(p.tree, id);

        n_ends += node->kind == QUIRE_NODE_PAGE && node->ends != 0;
    }
    assert_int_equal(n_ends, 5);
    test_prefix_destroy(&p);
}

static void test_pages_come_back(void **state)
{
    int32_t text[TEXT_MAX];
    test_prefix p;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    (void)whole(&p, text, TEXT);
    (void)evict_pages(&p, PAGES - 4);
    assert_int_equal(counts(&p).n[1], 4);
    /* The first half of the prompt is computed again: its nodes get their pages back. */
    assert_int_equal(whole(&p, text, TEXT / 2).n_tokens, 0);
    assert_int_equal(counts(&p).n_nodes, PAGES);
    assert_int_equal(counts(&p).n[1], 4 + PAGES / 2);
    assert_int_equal(test_lookup(&p, text, TEXT / 2).n_tokens, TEXT / 2);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, TEXT);
    test_prefix_destroy(&p);
}

static void test_running_is_evictable(void **state)
{
    int32_t text[TEXT_MAX];
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    (void)whole(&p, text, TEXT / 2);
    run = test_run_start(&p, text, TEXT);
    compute(&p, &run, text, TEXT);
    release(&p, run.seq);
    /* Everything that the sequence does not hold can go, the kept end too. */
    (void)evict_pages(&p, 1000);
    assert_int_equal(counts(&p).n_nodes, PAGES);
    assert_int_equal(test_stats(p.cache).cached_bytes, 0);
    assert_int_equal(counts(&p).n[1], 2);
    test_check_text(&p, run.seq, text);
    test_run_end(&p, &run);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, TEXT);
    test_prefix_destroy(&p);
}

static void test_claim(void **state)
{
    const quire_prefix_key key = test_key();
    int32_t text[TEXT_MAX];
    quire_prefix_claim claim;
    test_prefix p;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    (void)whole(&p, text, TEXT);
    quire_prefix_claim_get(p.tree, &key, text, TEXT, TEXT, &claim);
    assert_int_equal(claim.n_tokens, TEXT);
    assert_int_equal(claim.cached_bytes[0], (PAGES + 2) * PAGE_BYTES); /* the last 2 P tokens */
    quire_prefix_claim_get(p.tree, &key, text, TEXT, TEXT - 1, &claim);
    assert_int_equal(claim.n_tokens, TEXT - 1);
    assert_int_equal(claim.cached_bytes[0], (PAGES + 3) * PAGE_BYTES);
    test_prefix_destroy(&p);
}

static void test_pins(void **state)
{
    int32_t a[TEXT_MAX];
    int32_t b[TEXT_MAX];
    quire_pin_spec spec = { .name = "a", .key = test_key(), .tokens = a, .n_tokens = TEXT };
    quire_pin_info info;
    quire_pin_id id;
    test_prefix p;
    quire_pins *pins;
    uint64_t missing;

    (void)state;
    begin(&p, 100);
    pins = test_pins_create(&p, 4);
    test_text(a, TEXT, 1);
    test_text(b, TEXT, 1000);
    assert_int_equal(quire_pins_reserve(pins, &spec, 0, &id, &missing), QUIRE_OK);
    assert_int_equal(quire_pins_get(pins, id, &info), QUIRE_OK);
    assert_int_equal(info.bytes, (PAGES + 4) * PAGE_BYTES);
    (void)whole(&p, a, TEXT);
    assert_int_equal(quire_pins_hold(pins, id, 0, &missing), QUIRE_OK);
    assert_int_equal(quire_pins_get(pins, id, &info), QUIRE_OK);
    assert_int_equal(info.bytes, (PAGES + 4) * PAGE_BYTES);
    assert_int_equal(test_region_stats(p.cache, 0).pinned_bytes, info.bytes);
    (void)whole(&p, b, TEXT);
    (void)evict_pages(&p, 1000);
    assert_int_equal(counts(&p).n_nodes, PAGES);
    assert_int_equal(counts(&p).n[1], 4);
    assert_int_equal(test_lookup(&p, a, TEXT).n_tokens, TEXT);
    quire_pins_validate(pins);
    /* A pin of a part: its window is not there, so the part is to be computed again. */
    spec.name = "part";
    spec.n_tokens = TEXT / 2;
    {
        quire_pin_id part;

        assert_int_equal(quire_pins_reserve(pins, &spec, 0, &part, &missing), QUIRE_OK);
        assert_int_equal(quire_pins_hold(pins, part, 0, &missing), QUIRE_AGAIN);
        (void)whole(&p, a, TEXT / 2);
        assert_int_equal(quire_pins_hold(pins, part, 0, &missing), QUIRE_OK);
        quire_prefix_validate(p.tree);
        quire_pins_validate(pins);
        assert_int_equal(quire_pins_drop(pins, id, 0), QUIRE_OK);
        (void)evict_pages(&p, 1000);
        assert_int_equal(counts(&p).n_nodes, PAGES / 2);
        assert_int_equal(test_lookup(&p, a, TEXT).n_tokens, TEXT / 2);
    }
    quire_pins_destroy(pins);
    test_prefix_destroy(&p);
}

static void test_truncatable(void **state)
{
    int32_t text[TEXT_MAX];
    test_prefix p;
    quire_seq_id seq;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    seq = test_open(p.cache);
    test_append(p.cache, seq, TEXT);
    test_stamp_text(&p, seq, text, 0);
    assert_int_equal(quire_seq_release(p.cache, seq, GROUP, 4 * P, 6 * P, NULL), QUIRE_OK);
    /* Pages 4 and 5 are gone: a cut behind them needs its whole window in page 6 and later ones. */
    assert_int_equal(quire_seq_truncatable(p.cache, seq, TEXT), TEXT);
    assert_int_equal(quire_seq_truncatable(p.cache, seq, 8 * P), 8 * P);
    assert_int_equal(quire_seq_truncatable(p.cache, seq, 8 * P - 1), 4 * P);
    assert_int_equal(quire_seq_truncatable(p.cache, seq, 5 * P), 4 * P);
    assert_int_equal(quire_seq_truncatable(p.cache, seq, 4 * P - 1), 4 * P - 1);
    assert_int_equal(quire_seq_truncate(p.cache, seq, 8 * P - 1), QUIRE_RANGE);
    assert_int_equal(quire_seq_truncate(p.cache, seq, 8 * P), QUIRE_OK);
    assert_int_equal(quire_seq_truncate(p.cache, seq, 4 * P), QUIRE_OK);
    test_check_text(&p, seq, text);
    assert_int_equal(quire_seq_release(p.cache, seq, GROUP, 0, 4 * P, NULL), QUIRE_OK);
    assert_int_equal(quire_seq_truncatable(p.cache, seq, 4 * P), 0);
    assert_int_equal(quire_seq_close(p.cache, seq), QUIRE_OK);
    test_prefix_destroy(&p);
}

/* The counts of a visit of copies. */
typedef struct copies {
    test_prefix *p;
    uint32_t n;         /* without a mark */
    uint32_t n_windows; /* of these, with pages of group 1 */
} copies;

static void see(void *ctx, const quire_prefix_copy *c)
{
    copies *x = ctx;

    assert_int_equal(c->has_windows, c->pages[GROUP] != QUIRE_PAGE_NULL);
    if (c->mark == QUIRE_COPY_NONE) {
        x->n++;
        x->n_windows += c->has_windows;
        assert_int_equal(quire_prefix_copy_mark_set(x->p->tree, c->node, c->key, QUIRE_COPY_ASKED),
                         QUIRE_OK);
        assert_int_equal(quire_prefix_copy_mark_set(x->p->tree, c->node, c->key, QUIRE_COPY_KEPT),
                         QUIRE_OK);
    }
}

static copies visit_copies(test_prefix *p)
{
    copies x = { .p = p };

    (void)quire_prefix_copies_visit(p->tree, 1, UINT32_MAX, see, &x);
    return x;
}

static void test_copies(void **state)
{
    int32_t text[TEXT_MAX];
    test_prefix p;
    copies x;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    (void)whole(&p, text, TEXT);
    x = visit_copies(&p);
    assert_int_equal(x.n, PAGES);
    assert_int_equal(x.n_windows, 4);
    assert_int_equal(visit_copies(&p).n, 0);
    /* A text that ends in the middle needs other windows. */
    (void)whole(&p, text, TEXT / 2);
    x = visit_copies(&p);
    assert_int_equal(x.n, 4);
    assert_int_equal(x.n_windows, 4);
    test_prefix_destroy(&p);
}

static void test_opts_refused(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_cache *cache;

    (void)state;
    opts.needs_last_tokens[0] = WINDOW;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hit_everywhere),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_windows_go_first),
        cmocka_unit_test(test_prompt_end),
        cmocka_unit_test(test_branch),
        cmocka_unit_test(test_old_ends),
        cmocka_unit_test(test_pages_come_back),
        cmocka_unit_test(test_running_is_evictable),
        cmocka_unit_test(test_claim),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_truncatable),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_opts_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
