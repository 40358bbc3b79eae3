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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visit),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_growth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
