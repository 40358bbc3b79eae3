/* test_stats_add.c - the figures of several devices together: those of offloaded pages.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/stats.h"

#include <stdio.h>

/* Each figure another number, times n. */
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
    assert_int_equal(s->pages, 11 * n_gauges);
    assert_int_equal(s->pages_out_total, 12 * n);
    assert_int_equal(s->pages_back_total, 13 * n);
    assert_int_equal(s->buffer_bytes, 14 * n_gauges);
}

/* Of the failures in words the first device's is kept. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
