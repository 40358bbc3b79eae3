/* test_offload_stops.c - the parts of pages that layers read, in the order of a step: of models
 * whose layers store their own K and V, and of schemes in which layers share them.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "offload/offload_stops.h"
#include "quire/status.h"

#define NONE QUIRE_OFFLOAD_STOP_NONE

static quire_offload_stop stop_of(uint32_t part)
{
    return (quire_offload_stop){ .n = 1, .parts = { part } };
}

static quire_offload_stop stop_of_two(uint32_t a, uint32_t b)
{
    return (quire_offload_stop){ .n = 2, .parts = { a, b } };
}

static void test_a_stop(void **state)
{
    quire_offload_stop stop = { .n = 0 };

    (void)state;
    assert_int_equal(quire_offload_stop_add(&stop, 7), QUIRE_OK);
    assert_int_equal(quire_offload_stop_add(&stop, 3), QUIRE_OK);
    assert_int_equal(quire_offload_stop_add(&stop, 7), QUIRE_OK);
    assert_int_equal(stop.n, 2);
    assert_int_equal(stop.parts[0], 3);
    assert_int_equal(stop.parts[1], 7);
    assert_int_equal(quire_offload_stop_add(&stop, 5), QUIRE_UNSUPP);
    assert_true(quire_offload_stop_has(&stop, 3) && quire_offload_stop_has(&stop, 7));
    assert_false(quire_offload_stop_has(&stop, 5));
}

/* Each layer reads its own part: two buffers. */
static void test_plain(void **state)
{
    const quire_offload_stop third = stop_of(2), none = stop_of(9);
    quire_offload_stops stops = { 0 };

    (void)state;
    assert_int_equal(quire_offload_stops_init(&stops, NULL, 0, 4), QUIRE_OK);
    assert_int_equal(stops.n, 4);
    assert_int_equal(quire_offload_stops_find(&stops, NONE, &third), 2);
    assert_int_equal(quire_offload_stops_find(&stops, 1, &third), 2);
    assert_int_equal(quire_offload_stops_find(&stops, 2, &third), 2); /* a step later */
    assert_int_equal(quire_offload_stops_find(&stops, 1, &none), NONE);
    assert_int_equal(quire_offload_stops_next(&stops, 1), 2);
    assert_int_equal(quire_offload_stops_next(&stops, 3), 0);
    assert_int_equal(quire_offload_stops_until(&stops, 1, 1), 0);
    assert_int_equal(quire_offload_stops_until(&stops, 1, 0), 3);
    assert_int_equal(quire_offload_stops_until(&stops, 1, 9), 4);
    assert_int_equal(quire_offload_stops_reads_max(&stops), 1);
    assert_int_equal(quire_offload_stops_span_max(&stops), 2);
    quire_offload_stops_fini(&stops);

    assert_int_equal(quire_offload_stops_init(&stops, NULL, 0, 1), QUIRE_OK);
    assert_int_equal(quire_offload_stops_next(&stops, 0), 0);
    assert_int_equal(quire_offload_stops_span_max(&stops), 1);
    quire_offload_stops_fini(&stops);
}

/* Two layers read each part, as in cla2: a part is brought once for both. */
static void test_pairs(void **state)
{
    const quire_offload_stop list[] = { stop_of(0), stop_of(0), stop_of(1), stop_of(1) };
    quire_offload_stops stops = { 0 };

    (void)state;
    assert_int_equal(quire_offload_stops_init(&stops, list, 4, 2), QUIRE_OK);
    assert_int_equal(quire_offload_stops_find(&stops, NONE, &list[0]), 0);
    assert_int_equal(quire_offload_stops_find(&stops, 0, &list[0]), 1);
    assert_int_equal(quire_offload_stops_find(&stops, 1, &list[2]), 2);
    assert_int_equal(quire_offload_stops_next(&stops, 0), 2);
    assert_int_equal(quire_offload_stops_next(&stops, 2), 0);
    assert_int_equal(quire_offload_stops_span_max(&stops), 2);
    quire_offload_stops_fini(&stops);
}

/* The upper layers read the bottom and the middle layer, as in fusedkv; and two others. */
static void test_two_sources(void **state)
{
    quire_offload_stop list[] = { stop_of(0),        stop_of(1),        stop_of(2),
                                  stop_of_two(0, 2), stop_of_two(0, 2), stop_of_two(0, 2) };
    quire_offload_stops stops = { 0 };

    (void)state;
    assert_int_equal(quire_offload_stops_init(&stops, list, 6, 3), QUIRE_OK);
    assert_int_equal(quire_offload_stops_find(&stops, 2, &list[3]), 3);
    assert_int_equal(quire_offload_stops_find(&stops, 3, &list[3]), 4);
    assert_int_equal(quire_offload_stops_next(&stops, 2), 3);
    assert_int_equal(quire_offload_stops_next(&stops, 3), 0);
    assert_int_equal(quire_offload_stops_reads_max(&stops), 2);
    assert_int_equal(quire_offload_stops_span_max(&stops), 2); /* all of one are of the next */
    quire_offload_stops_fini(&stops);

    list[3] = stop_of_two(1, 2);
    list[4] = stop_of_two(0, 1);
    assert_int_equal(quire_offload_stops_init(&stops, list, 5, 3), QUIRE_OK);
    assert_int_equal(quire_offload_stops_span_max(&stops), 3);
    quire_offload_stops_fini(&stops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stop),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_two_sources),
    };

    return cmocka_run_group_tests_name("offload_stops", tests, NULL, NULL);
}
