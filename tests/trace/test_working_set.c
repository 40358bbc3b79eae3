/* test_working_set.c - blocks used lately: shared beginnings count once, old ones not at all, and
 * samples come near.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "quire/status.h"
#include "seed.h"
#include "trace/online/working_set.h"

#include <math.h>

#define BLOCK  QUIRE_WORKING_SET_BLOCK_TOKENS
#define RECENT 1000u

static quire_working_set *set_open(uint32_t n_slots)
{
    const quire_working_set_opts opts = { .n_slots = n_slots, .recent_us = RECENT, .seed = 1 };
    quire_working_set *set;

    assert_int_equal(quire_working_set_create(&set, &opts), QUIRE_OK);
    return set;
}

/* A text of n blocks: the first n_shared are everybody's, the others this one's own. */
static void touch(quire_working_set *set, uint32_t own, uint32_t n_shared, uint32_t n,
                  uint64_t now_us)
{
    static int32_t tokens[64 * BLOCK];
    const quire_working_set_text text = {
        .salt = "s", .salt_bytes = 1, .tokens = tokens, .n_tokens = n * BLOCK + BLOCK / 2
    };

    for (uint32_t i = 0; i < (n + 1) * BLOCK; i++) {
        tokens[i] = (int32_t)(i < n_shared * BLOCK ? i : i + own * 100000u);
    }
    quire_working_set_touch(set, &text, now_us);
}

static void test_shared_blocks_count_once_and_old_ones_not(void **state)
{
    quire_working_set *set = set_open(1024);

    (void)state;
    assert_int_equal(quire_working_set_blocks(set, 0), 0);
    touch(set, 1, 4, 10, 5);
    touch(set, 2, 4, 10, 6);
    assert_int_equal(quire_working_set_blocks(set, 6), 16);
    touch(set, 2, 4, 10, 500);
    assert_int_equal(quire_working_set_blocks(set, 500), 16);
    assert_int_equal(quire_working_set_blocks(set, 5 + RECENT), 16);
    assert_int_equal(quire_working_set_blocks(set, 6 + RECENT), 10);
    assert_int_equal(quire_working_set_blocks(set, 501 + RECENT), 0);
    quire_working_set_destroy(set);
}

static void test_tenants_share_nothing(void **state)
{
    static const int32_t tokens[2 * BLOCK];
    quire_working_set_text text = {
        .salt = "a", .salt_bytes = 1, .tokens = tokens, .n_tokens = 2 * BLOCK
    };
    quire_working_set *set = set_open(0);

    (void)state;
    quire_working_set_touch(set, &text, 1);
    text.salt = "b";
    quire_working_set_touch(set, &text, 1);
    assert_int_equal(quire_working_set_blocks(set, 1), 4);
    quire_working_set_destroy(set);
}

static void test_samples_come_near_and_come_back(void **state)
{
    quire_working_set *set = set_open(4096);
    const uint32_t base = (uint32_t)test_rng(1).state % 1000u * 10000u;
    uint64_t now_us = 1;

    (void)state;
    for (uint32_t i = 0; i < 2000; i++) { /* 40,000 blocks in a table of 4,096 */
        touch(set, base + i, 0, 20, now_us);
    }
    assert_true(fabs((double)quire_working_set_blocks(set, now_us) - 40000.0) < 4000.0);
    for (uint32_t round = 0; round < 40; round++) { /* it notices that less is used */
        now_us += RECENT + 1;
        for (uint32_t i = 0; i < 150; i++) {
            touch(set, base + 5000 + i + round * 150, 0, 20, now_us);
        }
    }
    assert_true(fabs((double)quire_working_set_blocks(set, now_us) - 3000.0) < 300.0);
    quire_working_set_destroy(set);
}

static void test_options(void **state)
{
    quire_working_set_opts opts = { .n_slots = 100, .recent_us = 1 };
    quire_working_set *set;

    (void)state;
    assert_int_equal(quire_working_set_create(&set, &opts), QUIRE_INVAL);
    assert_null(set);
    opts.n_slots = 64;
    opts.recent_us = 0;
    assert_int_equal(quire_working_set_create(&set, &opts), QUIRE_INVAL);
    quire_working_set_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_blocks_count_once_and_old_ones_not),
        cmocka_unit_test(test_tenants_share_nothing),
        cmocka_unit_test(test_samples_come_near_and_come_back),
        cmocka_unit_test(test_options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
