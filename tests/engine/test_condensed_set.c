/* test_condensed_set.c - names of condensed texts: the tokens that they cover, and the choice of
 * the entry that leaves.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/loop/condensed_set.h"
#include "quire/status.h"

#include <string.h>

typedef struct left {
    uint32_t n;
    quire_condensed last;
} left;

static void leaves(void *ctx, quire_condensed entry)
{
    left *l = ctx;

    l->n++;
    l->last = entry;
}

static bool is_same(const quire_condensed_name *a, const quire_condensed_name *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* A name says where one piece of a text ends and the next begins. */
static void test_names(void **state)
{
    const quire_condensed_set_opts opts = { .n_max = 8, .base = { "base" } };
    quire_condensed_name name = opts.base, other = opts.base;
    quire_condensed_set *set;
    quire_condensed first, second;

    (void)state;
    assert_int_equal(quire_condensed_set_create(&set, &opts), QUIRE_OK);
    first = quire_condensed_hold(set, QUIRE_CONDENSED_NULL, "ab", 2);
    second = quire_condensed_hold(set, first, "c", 1);
    quire_condensed_name_add(&name, "ab", 2, &name);
    assert_true(is_same(&name, quire_condensed_name_of(set, first)));
    quire_condensed_name_add(&name, "c", 1, &name);
    assert_true(is_same(&name, quire_condensed_name_of(set, second)));
    quire_condensed_name_add(&other, "a", 1, &other);
    quire_condensed_name_add(&other, "bc", 2, &other);
    assert_false(is_same(&name, &other));
    quire_condensed_name_add(&opts.base, "abc", 3, &other);
    assert_false(is_same(&name, &other));
    quire_condensed_release(set, second);
    quire_condensed_release(set, first);
    quire_condensed_set_destroy(set);
}

/* The oldest entry without holders and without entries behind it leaves, and its owner is told. */
static void test_full(void **state)
{
    left l = { 0 };
    const quire_condensed_set_opts opts = { .n_max = 3, .leaves = leaves, .ctx = &l };
    quire_condensed_set *set;
    quire_condensed a, b, c;

    (void)state;
    assert_int_equal(quire_condensed_set_create(&set, &opts), QUIRE_OK);
    a = quire_condensed_hold(set, QUIRE_CONDENSED_NULL, "a", 1);
    b = quire_condensed_hold(set, a, "b", 1);
    c = quire_condensed_hold(set, a, "c", 1);
    assert_int_equal(quire_condensed_hold(set, c, "d", 1), QUIRE_CONDENSED_NULL);
    assert_int_equal(l.n, 0);
    quire_condensed_release(set, a);
    quire_condensed_release(set, b);
    assert_int_not_equal(quire_condensed_hold(set, c, "d", 1), QUIRE_CONDENSED_NULL);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.last, b);
    assert_int_equal(quire_condensed_find(set, a, "b", 1), QUIRE_CONDENSED_NULL);
    assert_int_equal(quire_condensed_find(set, a, "c", 1), c);
    quire_condensed_set_destroy(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_names), cmocka_unit_test(test_full) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
