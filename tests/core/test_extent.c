/* test_extent.c - extent sizes against a search from below, and the OS as their source.
 *
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "core_support.h"

#include <string.h>

#define UNIT QUIRE_EXTENT_UNIT_BYTES

/* The rule: under 1 % of the extent is unusable, slot numbers fit, and with several parts each part
 * takes a run on average. */
static bool is_good(size_t size_bytes, size_t page_bytes, uint32_t n_parts)
{
    size_t n_slots = size_bytes / page_bytes;

    return n_slots >= 1 && n_slots <= QUIRE_EXTENT_SLOTS_MAX &&
           (double)(size_bytes - n_slots * page_bytes) < 0.01 * (double)size_bytes &&
           (n_parts < 2 || n_slots >= QUIRE_EXTENT_SLOTS_ENOUGH ||
            n_slots * page_bytes / n_parts >= QUIRE_EXTENT_RUN_BYTES);
}

static void check_parts(size_t page_bytes, uint32_t n_parts)
{
    quire_extent_shape shape = quire_extent_shape_for(page_bytes, n_parts);

    assert_true(shape.size_bytes > 0 && shape.size_bytes % UNIT == 0);
    assert_int_equal(shape.n_slots, shape.size_bytes / page_bytes);
    assert_true(is_good(shape.size_bytes, page_bytes, n_parts));
    for (size_t smaller = page_bytes / UNIT * UNIT + UNIT; smaller < shape.size_bytes;
         smaller += UNIT) {
        assert_false(is_good(smaller, page_bytes, n_parts));
    }
    assert_true(shape.size_bytes <=
                100 * UNIT + page_bytes + (n_parts > 1 ? n_parts * QUIRE_EXTENT_RUN_BYTES : 0));
    assert_int_equal(shape.n_slots, quire_cache_extent_pages(page_bytes, n_parts));
}

static void check_shape(size_t page_bytes)
{
    check_parts(page_bytes, 0);
    check_parts(page_bytes, 1);
    check_parts(page_bytes, 2);
    check_parts(page_bytes, 30);
    check_parts(page_bytes, QUIRE_PARTS_MAX);
}

static void test_shapes(void **state)
{
    quire_rng rng = { 5 };

    (void)state;
    check_shape(64);
    check_shape(UNIT / 2);
    check_shape(UNIT - 64);
    check_shape(UNIT);
    check_shape(UNIT + 64);
    check_shape(UNIT * 16 + 64);
    check_shape(UNIT * 300 + 64);
    check_shape(QUIRE_PAGE_BYTES_MAX);
    check_shape(QUIRE_PAGE_BYTES_MAX - 64);
    for (int i = 0; i < 2000; i++) {
        check_shape(64 + (size_t)quire_rng_below(&rng, (uint32_t)(UNIT / 64 * 20)) * 64);
    }
    assert_int_equal(quire_extent_shape_for(UNIT, 1).size_bytes, UNIT);
    assert_int_equal(quire_extent_shape_for(UNIT / 2 * 3, 1).size_bytes, UNIT * 3);
    assert_int_equal(quire_extent_shape_for(UNIT / 2 * 3, 1).n_slots, 2);
    /* In parts: so large that the average part takes a run. */
    assert_int_equal(quire_extent_shape_for(UNIT / 4, 2).size_bytes, UNIT);
    assert_int_equal(quire_extent_shape_for(UNIT / 8, 30).size_bytes,
                     (30 * QUIRE_EXTENT_RUN_BYTES + UNIT - 1) / UNIT * UNIT);
    assert_int_equal(quire_extent_shape_for(64, QUIRE_PARTS_MAX).size_bytes,
                     (QUIRE_EXTENT_SLOTS_ENOUGH * 64 + UNIT - 1) / UNIT * UNIT);
}

static void test_metadata_only(void **state)
{
    (void)state;
    assert_int_equal(quire_extent_shape_for(0, 1).size_bytes, 0);
    assert_int_equal(quire_extent_shape_for(0, 1).n_slots, QUIRE_EXTENT_META_SLOTS);
}

/* Memory of another class is usable when the rule holds for the new page size. */
static void test_slots_of_given_memory(void **state)
{
    (void)state;
    assert_int_equal(quire_extent_slots(UNIT, UNIT / 4), 4);
    assert_int_equal(quire_extent_slots(UNIT, UNIT + 64), 0);     /* does not fit */
    assert_int_equal(quire_extent_slots(UNIT, UNIT / 2 + 64), 0); /* half of it would be lost */
    assert_int_equal(quire_extent_slots(UNIT * 3, UNIT / 2 * 3), 2);
    /* More slots than can be numbered. */
    assert_int_equal(quire_extent_slots((size_t)64 * QUIRE_EXTENT_SLOTS_MAX, 64),
                     QUIRE_EXTENT_SLOTS_MAX);
    assert_int_equal(quire_extent_slots((size_t)64 * (QUIRE_EXTENT_SLOTS_MAX + 1), 64), 0);
}

static void test_os(void **state)
{
    const quire_extent_source *os = quire_extent_source_os();

    (void)state;
    for (size_t units = 1; units <= 3; units++) {
        size_t size_bytes = units * UNIT;
        unsigned char *base = os->map(os->ctx, size_bytes);

        assert_non_null(base);
        assert_int_equal((uintptr_t)base % UNIT, 0);
        for (size_t at = 0; at < size_bytes; at += 4096) {
            assert_int_equal(base[at], 0);
        }
        base[0] = 1;
        base[size_bytes - 1] = 1;
        (void)os->lock(os->ctx, base, UNIT); /* whether it is allowed depends on the machine */
        os->unmap(os->ctx, base, size_bytes);
    }
}

static void test_os_refuses(void **state)
{
    const quire_extent_source *os = quire_extent_source_os();

    (void)state;
    assert_null(os->map(os->ctx, (size_t)1 << 50)); /* more than the address space */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_metadata_only),
        cmocka_unit_test(test_slots_of_given_memory),
        cmocka_unit_test(test_os),
        cmocka_unit_test(test_os_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
