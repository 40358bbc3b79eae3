/* test_prefix_copy.c - marks of nodes with copies below memory.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include <string.h>

#define P       PAGE_TOKENS
#define N_PAGES 64u

typedef struct seen {
    quire_prefix_copy copies[N_PAGES];
    int32_t tokens[N_PAGES][P];
    uint32_t n;
} seen;

static void see(void *ctx, const quire_prefix_copy *copy)
{
    seen *s = ctx;

    assert_true(s->n < N_PAGES);
    memcpy(s->tokens[s->n], copy->tokens, copy->n_tokens * sizeof copy->tokens[0]);
    s->copies[s->n++] = *copy;
}

static seen visit(const test_prefix *p)
{
    seen s = { .n = 0 };
    uint32_t next = 1;

    while ((next = quire_prefix_copies_visit(p->tree, next, 2, see, &s)) != 0) {
    }
    return s;
}

static const quire_prefix_copy *at(const seen *s, uint32_t first_token)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->copies[i].first_token == first_token) {
            return &s->copies[i];
        }
    }
    fail_msg("no node at %u", first_token);
    return NULL;
}

/* Every node is visited once, with its text and with keys that chain from the root. */
static void test_visit(void **state)
{
    test_prefix p;
    int32_t tokens[2 * P + 1];
    quire_page_key key;
    quire_prefix_key root;
    seen s;

    (void)state;
    test_prefix_create(&p, N_PAGES, NULL);
    test_text(tokens, 2 * P + 1, 100);
    (void)test_run_whole(&p, tokens, 2 * P + 1);
    s = visit(&p);
    assert_int_equal(s.n, 3);
    root = test_key();
    quire_prefix_key_root(&root, &key);
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t n = i < 2 ? P : 1;
        const quire_prefix_copy *copy = at(&s, i * P);
        quire_prefix_key found;

        assert_memory_equal(copy->parent_key->bytes, key.bytes, sizeof key.bytes);
        quire_prefix_key_add(&key, tokens + (size_t)i * P, n, &key);
        assert_memory_equal(copy->key->bytes, key.bytes, sizeof key.bytes);
        assert_int_equal(copy->n_tokens, n);
        assert_int_equal(copy->is_full, i < 2);
        assert_int_equal(copy->mark, QUIRE_COPY_NONE);
        assert_int_equal(copy->parent_mark, i == 0 ? QUIRE_COPY_KEPT : QUIRE_COPY_NONE);
        assert_int_equal(copy->n_refs, 0);
        quire_prefix_copy_root(p.tree, copy->node, &found);
        assert_int_equal(found.identity[0], root.identity[0]);
        assert_int_equal(found.salt_bytes, root.salt_bytes);
        assert_memory_equal(found.salt, root.salt, root.salt_bytes);
    }
    test_prefix_destroy(&p);
}

/* The path of a ref is visited from its begin. */
static void test_path(void **state)
{
    test_prefix p;
    int32_t tokens[3 * P + 1];
    test_run run;
    seen s = { .n = 0 };

    (void)state;
    test_prefix_create(&p, N_PAGES, NULL);
    test_text(tokens, 3 * P + 1, 100);
    run = test_run_start(&p, tokens, 3 * P + 1);
    assert_int_equal(quire_prefix_copies_visit_path(p.tree, run.ref, see, &s), QUIRE_OK);
    assert_int_equal(s.n, 0);
    test_run_extend(&p, &run, tokens, 3 * P + 1);
    assert_int_equal(quire_prefix_copies_visit_path(p.tree, run.ref, see, &s), QUIRE_OK);
    assert_int_equal(s.n, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(s.copies[i].first_token, i * P);
        assert_memory_equal(s.tokens[i], tokens + (size_t)i * P,
                            (i < 3 ? P : 1) * sizeof tokens[0]);
    }
    test_run_end(&p, &run);
    assert_int_equal(quire_prefix_copies_visit_path(p.tree, run.ref, see, &s), QUIRE_NOTFOUND);
    test_prefix_destroy(&p);
}

/* A mark stays with its node, ends with the node, and is not set on another text in its place. */
static void test_marks(void **state)
{
    test_prefix p;
    int32_t tokens[2 * P];
    quire_page_key key;
    uint32_t node;
    seen s;

    (void)state;
    test_prefix_create(&p, N_PAGES, NULL);
    test_text(tokens, 2 * P, 100);
    (void)test_run_whole(&p, tokens, 2 * P);
    s = visit(&p);
    node = at(&s, 0)->node;
    key = *at(&s, 0)->key;
    assert_int_equal(quire_prefix_copy_mark_set(p.tree, node, &key, QUIRE_COPY_ASKED), QUIRE_OK);
    (void)test_run_whole(&p, tokens, 2 * P);
    s = visit(&p);
    assert_int_equal(at(&s, 0)->mark, QUIRE_COPY_ASKED);
    assert_int_equal(at(&s, 0)->hits, 1);
    assert_int_equal(at(&s, P)->parent_mark, QUIRE_COPY_ASKED);

    (void)quire_prefix_drop_all(p.tree, 1);
    assert_int_equal(quire_prefix_copy_mark_set(p.tree, node, &key, QUIRE_COPY_KEPT),
                     QUIRE_NOTFOUND);
    assert_int_equal(quire_prefix_copy_mark_set(p.tree, 0, &key, QUIRE_COPY_KEPT), QUIRE_NOTFOUND);
    assert_int_equal(quire_prefix_copy_mark_set(p.tree, 1u << 20, &key, QUIRE_COPY_KEPT),
                     QUIRE_NOTFOUND);
    test_text(tokens, 2 * P, 500);
    (void)test_run_whole(&p, tokens, 2 * P);
    s = visit(&p);
    assert_int_equal(s.n, 2);
    assert_int_equal(at(&s, 0)->mark, QUIRE_COPY_NONE);
    assert_int_equal(at(&s, P)->mark, QUIRE_COPY_NONE);
    assert_int_equal(quire_prefix_copy_mark_set(p.tree, at(&s, 0)->node, &key, QUIRE_COPY_KEPT),
                     QUIRE_NOTFOUND);
    test_prefix_destroy(&p);
}

/* A copy of a partly filled node is out of date when the node grows. */
static void test_growth(void **state)
{
    test_prefix p;
    int32_t tokens[P];
    test_run run;
    seen s;

    (void)state;
    test_prefix_create(&p, N_PAGES, NULL);
    test_text(tokens, P, 100);
    run = test_run_start(&p, tokens, P);
    assert_int_equal(quire_prefix_copy_mark_ref(p.tree, run.ref, QUIRE_COPY_KEPT), QUIRE_NOTFOUND);
    test_run_extend(&p, &run, tokens, 1);
    assert_int_equal(quire_prefix_copy_mark_ref(p.tree, run.ref, QUIRE_COPY_KEPT), QUIRE_OK);
    s = visit(&p);
    assert_int_equal(at(&s, 0)->mark, QUIRE_COPY_KEPT);
    assert_int_equal(at(&s, 0)->n_refs, 1);
    test_run_extend(&p, &run, tokens, P);
    s = visit(&p);
    assert_int_equal(s.n, 1);
    assert_true(at(&s, 0)->is_full);
    assert_int_equal(at(&s, 0)->mark, QUIRE_COPY_NONE);
    test_run_end(&p, &run);
    assert_int_equal(quire_prefix_copy_mark_ref(p.tree, run.ref, QUIRE_COPY_KEPT), QUIRE_NOTFOUND);
    test_prefix_destroy(&p);
}

/* Evict all cached pages by a text that needs all pages. */
static void push_out(test_prefix *p, uint32_t n_pages, int32_t base)
{
    int32_t tokens[N_PAGES * P];

    test_text(tokens, n_pages * P, base);
    (void)test_run_whole(p, tokens, n_pages * P);
}

/* The node of a text at a position, beside those of other texts. */
static const quire_prefix_copy *of(const seen *s, const int32_t *tokens, uint32_t first_token)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->copies[i].first_token == first_token && s->tokens[i][0] == tokens[first_token]) {
            return &s->copies[i];
        }
    }
    fail_msg("no node at %u", first_token);
    return NULL;
}

/* A node that was evicted with a copy has the copy when the node comes back, and lookups tell.
 * Nodes without a copy, dropped nodes, and nodes evicted before copies were dropped have none. */
static void test_ghosts(void **state)
{
    enum {
        SMALL = 6
    };
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    test_prefix p;
    int32_t tokens[2 * P];
    quire_prefix_match match;
    seen s;

    (void)state;
    test_prefix_create(&p, SMALL, &opts);
    test_text(tokens, 2 * P, 100);
    for (uint32_t round = 0; round < 600; round++) { /* more than there are epochs */
        (void)test_run_whole(&p, tokens, 2 * P);
        s = visit(&p);
        assert_int_equal(of(&s, tokens, 0)->mark, QUIRE_COPY_NONE);
        assert_int_equal(quire_prefix_copy_mark_set(p.tree, of(&s, tokens, 0)->node,
                                                    of(&s, tokens, 0)->key, QUIRE_COPY_KEPT),
                         QUIRE_OK);
        push_out(&p, SMALL, 1000 + (int32_t)round);
        match = test_lookup(&p, tokens, 2 * P);
        assert_int_equal(match.end, QUIRE_PREFIX_END_EVICTED);
        assert_true(match.is_gone_stored);
        (void)test_run_whole(&p, tokens, 2 * P);
        s = visit(&p);
        assert_int_equal(of(&s, tokens, 0)->mark, QUIRE_COPY_KEPT);
        assert_int_equal(of(&s, tokens, P)->mark,
                         QUIRE_COPY_NONE); /* the second page had no copy */

        push_out(&p, SMALL, 5000 + (int32_t)round);
        assert_true(test_lookup(&p, tokens, 2 * P).is_gone_stored);
        quire_prefix_copies_forget(p.tree);
        assert_false(test_lookup(&p, tokens, 2 * P).is_gone_stored);
    }
    (void)test_run_whole(&p, tokens, 2 * P);
    s = visit(&p);
    (void)quire_prefix_copy_mark_set(p.tree, of(&s, tokens, 0)->node, of(&s, tokens, 0)->key,
                                     QUIRE_COPY_KEPT);
    (void)quire_prefix_drop_all(p.tree, 1);
    assert_false(test_lookup(&p, tokens, 2 * P).is_gone_stored);
    (void)test_run_whole(&p, tokens, 2 * P);
    s = visit(&p);
    assert_int_equal(of(&s, tokens, 0)->mark, QUIRE_COPY_NONE);
    test_prefix_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visit),  cmocka_unit_test(test_path),   cmocka_unit_test(test_marks),
        cmocka_unit_test(test_growth), cmocka_unit_test(test_ghosts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
