/* test_tier_down.c - pages that wait for their copies: their order, and the limit.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/loop/tier_down.h"

#include <string.h>

static void add(quire_tier_down *down, uint32_t i)
{
    quire_page_key key = { { 0 } };

    memcpy(key.bytes, &i, sizeof i);
    quire_tier_down_add(down, i + 1, &key);
}

static void expect_first(const quire_tier_down *down, uint32_t i)
{
    const quire_tier_down_page *page = &down->pages[down->first];

    assert_int_equal(page->node, i + 1);
    assert_memory_equal(page->key.bytes, &i, sizeof i);
}

/* Pages come while others leave. */
static void test_order(void **state)
{
    quire_tier_down down = { 0 };
    uint32_t n_in = 0, n_out = 0;

    (void)state;
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < 37; i++) {
            add(&down, n_in++);
        }
        for (uint32_t i = 0; i < (round < 25 ? 30 : 44) && n_out < n_in; i++) {
            expect_first(&down, n_out++);
            quire_tier_down_pop(&down);
        }
        assert_int_equal(down.n, n_in - n_out);
    }
    assert_int_equal(down.n, 0);
    assert_true(down.capacity < 1000);
    quire_tier_down_fini(&down);
}

static void test_limit(void **state)
{
    quire_tier_down down = { 0 };

    (void)state;
    for (uint32_t i = 0; i < QUIRE_TIER_DOWN_MAX + 5; i++) {
        add(&down, i);
    }
    assert_int_equal(down.n, QUIRE_TIER_DOWN_MAX);
    expect_first(&down, 0);
    quire_tier_down_pop(&down);
    add(&down, 7);
    assert_int_equal(down.n, QUIRE_TIER_DOWN_MAX);
    assert_int_equal(down.pages[down.first + down.n - 1].node, 8);
    quire_tier_down_fini(&down);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
