/* test_prefix_watch.c - a watcher of the prefix tree: the events that it gets add up to the tree's
 * full pages.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include <string.h>

#include "rounds.h"
#include "seed.h"

#define P        PAGE_TOKENS
#define N_PAGES  24u
#define N_TEXTS  12u
#define TOKENS   (5u * P + 3u)
#define TOLD_MAX 256u

/* The pages in the tree according to a watcher's events. */
typedef struct told {
    quire_page_key keys[TOLD_MAX];
    quire_page_key parents[TOLD_MAX];
    uint32_t n;
    uint32_t n_cleared;
    uint32_t n_stored;
    uint32_t n_removed;
    uint32_t room; /* news that are still taken */
    bool wants_again;
} told;

static bool take(told *t)
{
    if (t->room == 0) {
        return false;
    }
    t->room--;
    return true;
}

static uint32_t find(const told *t, const quire_page_key *key)
{
    uint32_t i = 0;

    while (i < t->n && memcmp(&t->keys[i], key, sizeof *key) != 0) {
        i++;
    }
    return i;
}

static bool cleared(void *ctx)
{
    told *t = ctx;

    if (!take(t)) {
        return false;
    }
    t->n = 0;
    t->n_cleared++;
    return true;
}

/* A page comes once, behind the page before it, under the key of its text. */
static bool stored(void *ctx, const quire_prefix_page *page)
{
    told *t = ctx;
    quire_page_key key;

    if (!take(t)) {
        return false;
    }
    assert_int_equal(page->n_tokens, P);
    quire_prefix_key_add(page->parent, page->tokens, P, &key);
    assert_memory_equal(&key, page->key, sizeof key);
    assert_int_equal(find(t, page->key), t->n);
    if (page->first_token == 0) {
        const quire_prefix_key root = { .identity = { test_key().identity[0],
                                                      test_key().identity[1] },
                                        .salt = page->salt,
                                        .salt_bytes = page->salt_bytes };

        quire_prefix_key_root(&root, &key);
        assert_memory_equal(&key, page->parent, sizeof key);
    } else {
        assert_true(find(t, page->parent) < t->n);
    }
    assert_true(t->n < TOLD_MAX);
    t->keys[t->n] = *page->key;
    t->parents[t->n++] = *page->parent;
    t->n_stored++;
    return true;
}

/* A page goes before the page before it. */
static bool removed(void *ctx, const quire_page_key *key)
{
    told *t = ctx;
    const uint32_t at = find(t, key);

    if (!take(t)) {
        return false;
    }
    assert_true(at < t->n);
    t->keys[at] = t->keys[--t->n];
    t->parents[at] = t->parents[t->n];
    for (uint32_t i = 0; i < t->n; i++) {
        assert_memory_not_equal(&t->parents[i], key, sizeof *key);
    }
    t->n_removed++;
    return true;
}

static bool again(void *ctx)
{
    told *t = ctx;
    const bool wants = t->wants_again;

    t->wants_again = false;
    return wants;
}

static quire_prefix_watcher watcher_of(told *t)
{
    return (quire_prefix_watcher){ cleared, stored, removed, again, t };
}

static void watch(const test_prefix *p, told *t)
{
    const quire_prefix_watcher watcher = watcher_of(t);

    *t = (told){ .room = UINT32_MAX };
    quire_prefix_watch(p->tree, &watcher);
}

typedef struct count {
    const told *told;
    uint32_t n_full;
    uint32_t n_known;
} count;

static int count_node(void *ctx, const quire_prefix_node_info *node)
{
    count *c = ctx;

    if (node->n_tokens == P) {
        c->n_full++;
        c->n_known += find(c->told, &node->key) < c->told->n;
    }
    return 0;
}

/* All pages told to the watcher are in the tree. With is_all it was also told all full pages of the
 * tree. */
static void assert_told(const test_prefix *p, const told *t, bool is_all)
{
    count c = { .told = t };

    (void)quire_prefix_visit(p->tree, count_node, &c);
    assert_int_equal(c.n_known, t->n);
    if (is_all) {
        assert_int_equal(c.n_full, t->n);
    }
}

static void tell_rest(const test_prefix *p)
{
    while (quire_prefix_watch_some(p->tree, 3)) {
    }
}

/* ---- tests ---- */

/* Pages come when they are full, and go with an invalidation. */
static void test_comes_and_goes(void **state)
{
    test_prefix p;
    int32_t tokens[3 * P];
    told t;
    test_run run;

    (void)state;
    test_prefix_create(&p, N_PAGES, NULL);
    watch(&p, &t);
    test_text(tokens, 3 * P, 100);
    tell_rest(&p);
    assert_int_equal(t.n_cleared, 1);
    run = test_run_start(&p, tokens, 3 * P);
    test_run_extend(&p, &run, tokens, P - 1);
    assert_int_equal(t.n, 0);
    test_run_extend(&p, &run, tokens, P); /* the open page grows */
    assert_int_equal(t.n, 1);
    test_run_extend(&p, &run, tokens, 2 * P + 1);
    assert_int_equal(t.n, 2);
    test_run_end(&p, &run);
    assert_false(quire_prefix_watch_some(p.tree, 1));
    assert_told(&p, &t, true);
    (void)quire_prefix_drop_all(p.tree, 1);
    assert_int_equal(t.n, 0);
    assert_int_equal(t.n_removed, 2);
    assert_int_equal(t.n_cleared, 1);
    test_prefix_destroy(&p);
}

/* A watcher that comes late is told everything, in pieces; so is one that asks again. */
static void test_late_and_again(void **state)
{
    test_prefix p;
    int32_t tokens[4 * P];
    told t;

    (void)state;
    test_prefix_create(&p, N_PAGES, NULL);
    test_text(tokens, 4 * P, 100);
    (void)test_run_whole(&p, tokens, 4 * P);
    watch(&p, &t);
    assert_int_equal(t.n, 0);
    assert_true(quire_prefix_watch_some(p.tree, 2));
    assert_told(&p, &t, false);
    tell_rest(&p);
    assert_int_equal(t.n, 4);
    t.wants_again = true;
    tell_rest(&p);
    assert_int_equal(t.n_cleared, 2);
    assert_int_equal(t.n_stored, 8);
    assert_told(&p, &t, true);
    quire_prefix_watch(p.tree, NULL);
    assert_false(quire_prefix_watch_some(p.tree, 100));
    (void)quire_prefix_drop_all(p.tree, 1);
    assert_int_equal(t.n, 4); /* nobody tells it any more */
    test_prefix_destroy(&p);
}

/* A refused page comes later. After a refused removal nothing comes until the watcher was cleared;
 * then all of it. */
static void test_refusal(void **state)
{
    test_prefix p;
    int32_t tokens[4 * P];
    told t;

    (void)state;
    test_prefix_create(&p, N_PAGES, NULL);
    watch(&p, &t);
    tell_rest(&p);
    t.room = 1;
    test_text(tokens, 4 * P, 100);
    (void)test_run_whole(&p, tokens, 4 * P);
    assert_int_equal(t.n_stored, 1);
    assert_true(quire_prefix_watch_some(p.tree, 100)); /* no room yet */
    t.room = UINT32_MAX;
    tell_rest(&p);
    assert_int_equal(t.n_cleared, 1);
    assert_int_equal(t.n_stored, 4);
    assert_told(&p, &t, true);
    (void)test_run_whole(&p, tokens + 1, 3 * P);
    t.room = 1;
    (void)quire_prefix_drop_all(p.tree, 1);
    assert_int_equal(t.n_removed, 1);
    assert_true(quire_prefix_watch_some(p.tree, 100)); /* no room to clear it */
    t.room = UINT32_MAX;
    (void)test_run_whole(&p, tokens, 2 * P);
    assert_int_equal(t.n_stored, 7); /* a clearing is pending, so nothing new is told */
    tell_rest(&p);
    assert_int_equal(t.n_cleared, 2);
    assert_told(&p, &t, true);
    test_prefix_destroy(&p);
}

/* Random requests in few pages, so that pages are evicted, with random refusals. */
static void test_random(void **state)
{
    quire_rng rng = test_rng(7);
    int32_t texts[N_TEXTS * TOKENS];
    test_prefix p;
    told t;

    (void)state;
    test_prefix_create(&p, N_PAGES, NULL);
    test_texts(&rng, texts, N_TEXTS, TOKENS);
    watch(&p, &t);
    for (uint32_t i = 0; i < TEST_ROUNDS(4000u, 1000u); i++) {
        const int32_t *text = texts + (size_t)quire_rng_below(&rng, N_TEXTS) * TOKENS;
        const uint32_t n = 1 + quire_rng_below(&rng, TOKENS);
        bool is_behind = true;

        t.room = quire_rng_below(&rng, 8) == 0 ? quire_rng_below(&rng, 6) : UINT32_MAX;
        t.wants_again = quire_rng_below(&rng, 50) == 0;
        if (quire_rng_below(&rng, 20) == 0) {
            const quire_prefix_key key = test_key();

            (void)quire_prefix_drop_prefix(p.tree, &key, text, n, i);
        } else {
            (void)test_run_whole(&p, text, n);
        }
        for (uint32_t j = quire_rng_below(&rng, 4); j > 0 && is_behind; j--) {
            is_behind = quire_prefix_watch_some(p.tree, 1 + quire_rng_below(&rng, 8));
        }
        quire_prefix_validate(p.tree);
        if (!is_behind) {
            assert_told(&p, &t, true);
        }
    }
    t.room = UINT32_MAX;
    tell_rest(&p);
    assert_told(&p, &t, true);
    assert_true(t.n_removed > 0 && t.n_cleared > 10);
    test_prefix_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comes_and_goes),
        cmocka_unit_test(test_late_and_again),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
