/* test_region.c - byte budgets.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

static void test_find(void **state)
{
    quire_regions regions;

    (void)state;
    quire_regions_init(&regions, 1000);
    assert_ptr_equal(quire_region_find(&regions, QUIRE_REGION_DYNAMIC), &regions.items[0]);
    assert_null(quire_region_find(&regions, 1));
    assert_null(quire_region_find(&regions, QUIRE_REGIONS_MAX));
    assert_null(quire_region_find(&regions, UINT16_MAX));
}

static void test_charge(void **state)
{
    quire_regions regions;
    quire_region *region = &regions.items[QUIRE_REGION_DYNAMIC];

    (void)state;
    quire_regions_init(&regions, 1000);
    assert_int_equal(quire_region_headroom_bytes(region), 1000);
    quire_region_charge(region, 400, false);
    quire_region_charge(region, 600, false);
    assert_int_equal(quire_region_headroom_bytes(region), 0);
    assert_int_equal(quire_counter_get(&region->pages), 2);
    quire_region_uncharge(region, 600, false);
    assert_int_equal(quire_counter_get(&region->charged_bytes), 400);
    assert_int_equal(quire_counter_get(&region->charged_peak_bytes), 1000);
    assert_int_equal(quire_counter_get(&region->pages), 1);
}

static void test_resize(void **state)
{
    quire_regions regions;
    quire_region *region = &regions.items[QUIRE_REGION_DYNAMIC];

    (void)state;
    quire_regions_init(&regions, 1000);
    quire_region_charge(region, 400, false);
    assert_int_equal(quire_region_resize(&regions, QUIRE_REGION_DYNAMIC, 399), QUIRE_INVAL);
    assert_int_equal(quire_region_headroom_bytes(region), 600);
    assert_int_equal(quire_region_resize(&regions, QUIRE_REGION_DYNAMIC, 400), QUIRE_OK);
    assert_int_equal(quire_region_headroom_bytes(region), 0);
}

static void test_sum_saturates(void **state)
{
    quire_regions regions;

    (void)state;
    quire_regions_init(&regions, UINT64_MAX - 5);
    assert_int_equal(quire_regions_budget_bytes(&regions), UINT64_MAX - 5);
    quire_counter_set(&regions.items[3].budget_bytes, 7);
    assert_int_equal(quire_regions_budget_bytes(&regions), UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_charge),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_sum_saturates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
