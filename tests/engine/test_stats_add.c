/* test_stats_add.c - the figures of several devices together: offloaded pages, stores.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/stats.h"

#include <stdio.h>

/* Statistics in which each figure is another number, times n. */
static quire_offload_stats figures(uint64_t n)
{
    return (quire_offload_stats){ .file = { .capacity_bytes = 1000 * n,
                                            .used_bytes = 200 * n,
                                            .stripes_used = 3 * (uint32_t)n,
                                            .stripes_max = 40 * (uint32_t)n,
                                            .read_bytes_total = 5 * n,
                                            .written_bytes_total = 6 * n,
                                            .attended_bytes_total = 7 * n,
                                            .read_us_total = 8 * n,
                                            .wait_us_total = 9 * n,
                                            .failures_total = 10 * n,
                                            .chosen_total = 15 * n,
                                            .left_total = 16 * n },
                                  .below = { .is_on = n > 0,
                                             .file = { .capacity_bytes = 17 * n,
                                                       .used_bytes = 18 * n,
                                                       .read_bytes_total = 19 * n },
                                             .pages = 20 * n,
                                             .pages_down_total = 21 * n,
                                             .pages_up_total = 22 * n },
                                  .pages = 11 * n,
                                  .pages_out_total = 12 * n,
                                  .pages_back_total = 13 * n,
                                  .buffer_bytes = 14 * n };
}

static void expect(const quire_offload_stats *s, uint64_t n_gauges, uint64_t n)
{
    const quire_offload_file_stats *file = &s->file;

    assert_int_equal(file->capacity_bytes, 1000 * n_gauges);
    assert_int_equal(file->used_bytes, 200 * n_gauges);
    assert_int_equal(file->stripes_used, 3 * n_gauges);
    assert_int_equal(file->stripes_max, 40 * n_gauges);
    assert_int_equal(file->read_bytes_total, 5 * n);
    assert_int_equal(file->written_bytes_total, 6 * n);
    assert_int_equal(file->attended_bytes_total, 7 * n);
    assert_int_equal(file->read_us_total, 8 * n);
    assert_int_equal(file->wait_us_total, 9 * n);
    assert_int_equal(file->failures_total, 10 * n);
    assert_int_equal(file->chosen_total, 15 * n);
    assert_int_equal(file->left_total, 16 * n);
    assert_int_equal(s->below.file.capacity_bytes, 17 * n_gauges);
    assert_int_equal(s->below.file.used_bytes, 18 * n_gauges);
    assert_int_equal(s->below.file.read_bytes_total, 19 * n);
    assert_int_equal(s->below.pages, 20 * n_gauges);
    assert_int_equal(s->below.pages_down_total, 21 * n);
    assert_int_equal(s->below.pages_up_total, 22 * n);
    assert_int_equal(s->pages, 11 * n_gauges);
    assert_int_equal(s->pages_out_total, 12 * n);
    assert_int_equal(s->pages_back_total, 13 * n);
    assert_int_equal(s->buffer_bytes, 14 * n_gauges);
}

/* The text of the first device's failure is kept. */
static void test_offload(void **state)
{
    static quire_engine_stats sum, more;

    (void)state;
    sum.overflow.offload = figures(1);
    more.overflow.offload = figures(2);
    (void)snprintf(more.overflow.offload.trouble, sizeof more.overflow.offload.trouble, "second");
    more.overflow.offload.file.is_broken = true;
    quire_engine_stats_add(&sum, &more);
    expect(&sum.overflow.offload, 3, 3);
    assert_true(sum.overflow.offload.file.is_broken);
    assert_string_equal(sum.overflow.offload.trouble, "second");
    (void)snprintf(more.overflow.offload.trouble, sizeof more.overflow.offload.trouble, "third");
    quire_engine_stats_add(&sum, &more);
    expect(&sum.overflow.offload, 5, 5);
    assert_string_equal(sum.overflow.offload.trouble, "second");
    quire_engine_stats_gauges_clear(&sum); /* of a lost device */
    expect(&sum.overflow.offload, 0, 5);
}

/* Figures of a device's stores, times n; is_common: the other device has given those of the
 * records. */
static quire_tier_stats tier_of(uint64_t n, bool is_common)
{
    const quire_store_stats part = { .records = n,
                                     .reads_total = 10 * n,
                                     .passed_total = 100 * n,
                                     .results_total = { [QUIRE_STORE_ABSENT] = 1000 * n },
                                     .refused_total = 2 * n,
                                     .is_common = is_common };
    quire_tier_stats out = { .n_parts = 2, .parts = { { .stats = part }, { .stats = part } } };

    out.store = (quire_store_stats){ .records = 2 * n,
                                     .reads_total = 20 * n,
                                     .passed_total = 200 * n,
                                     .results_total = { [QUIRE_STORE_ABSENT] = 7 * n },
                                     .refused_total = 3 * n };
    return out;
}

/* Records that devices have in common count once; their own questions and passes all count. */
static void test_stores(void **state)
{
    static quire_engine_stats sum, more;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const bool is_common = i == 1;
        const uint64_t n = is_common ? 1 : 3; /* of the figures of records */

        sum.tier = tier_of(1, false);
        more.tier = tier_of(2, is_common);
        quire_engine_stats_add(&sum, &more);
        assert_int_equal(sum.tier.store.records, 2 * n);
        assert_int_equal(sum.tier.store.reads_total, 20 * n);
        assert_int_equal(sum.tier.store.passed_total, 200 * 3);
        assert_int_equal(sum.tier.store.results_total[QUIRE_STORE_ABSENT], 7 * 3);
        assert_int_equal(sum.tier.store.refused_total, 3 * 3);
        for (uint32_t k = 0; k < 2; k++) {
            assert_int_equal(sum.tier.parts[k].stats.records, n);
            assert_int_equal(sum.tier.parts[k].stats.reads_total, 10 * n);
            assert_int_equal(sum.tier.parts[k].stats.passed_total, 100 * 3);
            assert_int_equal(sum.tier.parts[k].stats.results_total[QUIRE_STORE_ABSENT], 1000 * n);
            assert_int_equal(sum.tier.parts[k].stats.refused_total, 2 * n);
        }
    }
}

/* A store of one part: the sum has the counts of questions of its part, and counts the records of a
 * store that devices have in common once. */
static void test_one_store(void **state)
{
    static quire_engine_stats sum, more;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const bool is_common = i == 1;

        sum.tier = tier_of(1, false);
        more.tier = tier_of(2, is_common);
        sum.tier.n_parts = more.tier.n_parts = 1;
        sum.tier.store = sum.tier.parts[0].stats;
        more.tier.store = more.tier.parts[0].stats;
        quire_engine_stats_add(&sum, &more);
        assert_memory_equal(&sum.tier.store.results_total, &sum.tier.parts[0].stats.results_total,
                            sizeof sum.tier.store.results_total);
        assert_int_equal(sum.tier.store.records, is_common ? 1 : 3);
        assert_int_equal(sum.tier.store.refused_total, is_common ? 2 : 6);
    }
}

/* A store of the second device alone fails, as its connection to a shared store may. */
static void test_trouble(void **state)
{
    static quire_engine_stats sum, more;
    quire_store_stats *far = &more.tier.parts[1].stats;

    (void)state;
    sum.tier = tier_of(1, false);
    more.tier = tier_of(2, false);
    far->state = QUIRE_STORE_DEGRADED;
    (void)snprintf(far->trouble, sizeof far->trouble, "second");
    (void)snprintf(more.tier.store.trouble, sizeof more.tier.store.trouble, "far: second");
    quire_engine_stats_add(&sum, &more);
    assert_int_equal(sum.tier.parts[0].stats.state, QUIRE_STORE_READY);
    assert_string_equal(sum.tier.parts[0].stats.trouble, "");
    assert_int_equal(sum.tier.parts[1].stats.state, QUIRE_STORE_DEGRADED);
    assert_string_equal(sum.tier.parts[1].stats.trouble, "second");
    assert_int_equal(sum.tier.store.state, QUIRE_STORE_READY); /* the near store takes puts */
    assert_string_equal(sum.tier.store.trouble, "far: second");
    (void)snprintf(far->trouble, sizeof far->trouble, "third");
    more.tier.store.state = QUIRE_STORE_DEGRADED;
    (void)snprintf(more.tier.store.trouble, sizeof more.tier.store.trouble, "both: third");
    quire_engine_stats_add(&sum, &more);
    assert_string_equal(sum.tier.parts[1].stats.trouble, "second");
    assert_int_equal(sum.tier.store.state, QUIRE_STORE_DEGRADED);
    assert_string_equal(sum.tier.store.trouble, "both: third");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stores),
        cmocka_unit_test(test_one_store),
        cmocka_unit_test(test_trouble),
        cmocka_unit_test(test_offload),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
