/* test_events.c - the ring of events: numbers, wrapping, cut texts, readers beside a writer.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/adapt/event_log.h"
#include "quire/status.h"

#include <pthread.h>
#include <string.h>

static quire_events *events_open(uint32_t capacity)
{
    quire_events *events;

    assert_int_equal(quire_events_create(&events, capacity), QUIRE_OK);
    return events;
}

static void test_a_reader_gets_what_is_new(void **state)
{
    quire_events *events = events_open(8);
    uint64_t totals[QUIRE_EVENT_KIND_COUNT];
    quire_event got[8];

    (void)state;
    assert_int_equal(quire_events_list(events, 0, got, 8), 0);
    assert_int_equal(quire_events_add(events, 5, QUIRE_EVENT_SPILLED, "%u pages", 3u), 1);
    assert_int_equal(quire_events_add(events, 7, QUIRE_EVENT_PIN_CREATED, "manual"), 2);
    assert_int_equal(quire_events_list(events, 0, got, 8), 2);
    assert_int_equal(got[0].number, 1);
    assert_int_equal(got[0].time_us, 5);
    assert_int_equal(got[0].kind, QUIRE_EVENT_SPILLED);
    assert_string_equal(got[0].text, "3 pages");
    assert_string_equal(got[1].text, "manual");
    assert_int_equal(quire_events_list(events, 1, got, 8), 1);
    assert_int_equal(got[0].number, 2);
    assert_int_equal(quire_events_list(events, 2, got, 8), 0);
    assert_int_equal(quire_events_list(events, 0, got, 1), 1);
    assert_int_equal(got[0].number, 1);
    assert_int_equal(quire_events_list(events, UINT64_MAX, got, 8), 0);
    quire_events_totals(events, totals);
    assert_int_equal(totals[QUIRE_EVENT_SPILLED], 1);
    assert_int_equal(totals[QUIRE_EVENT_PIN_CREATED], 1);
    assert_int_equal(totals[QUIRE_EVENT_PIN_DROPPED], 0);
    quire_events_destroy(events);
}

static void test_the_oldest_make_room(void **state)
{
    quire_events *events = events_open(4);
    quire_event got[8];

    (void)state;
    for (uint32_t i = 1; i <= 10; i++) {
        assert_int_equal(quire_events_add(events, i, QUIRE_EVENT_SPILLED, "%u", i), i);
    }
    assert_int_equal(quire_events_list(events, 0, got, 8), 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(got[i].number, 7 + i);
        assert_int_equal(got[i].time_us, 7 + i);
    }
    assert_int_equal(quire_events_list(events, 8, got, 8), 2);
    assert_int_equal(got[0].number, 9);
    quire_events_destroy(events);
}

static void test_a_long_text_is_cut(void **state)
{
    quire_events *events = events_open(1);
    char text[2 * QUIRE_EVENT_TEXT_MAX];
    quire_event got;

    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)quire_events_add(events, 0, QUIRE_EVENT_DEGRADED, "%s", text);
    assert_int_equal(quire_events_list(events, 0, &got, 1), 1);
    assert_int_equal(strlen(got.text), QUIRE_EVENT_TEXT_MAX - 1);
    quire_events_destroy(events);
}

static void test_capacities_and_names(void **state)
{
    quire_events *events;

    (void)state;
    assert_int_equal(quire_events_create(&events, 0), QUIRE_INVAL);
    assert_null(events);
    assert_int_equal(quire_events_create(&events, QUIRE_EVENTS_MAX + 1), QUIRE_INVAL);
    quire_events_destroy(NULL);
    assert_string_equal(quire_event_kind_name(QUIRE_EVENT_PRECACHE_OFF), "precache_off");
    assert_string_equal(quire_event_kind_name(QUIRE_EVENT_KIND_COUNT), "unknown");
}

#define N_ADDED 20000u

static void *add_many(void *arg)
{
    for (uint32_t i = 1; i <= N_ADDED; i++) {
        (void)quire_events_add(arg, i, QUIRE_EVENT_SPILLED, "%u", i);
    }
    return NULL;
}

static void test_a_reader_beside_a_writer_sees_whole_events_in_order(void **state)
{
    quire_events *events = events_open(64);
    quire_event got[64];
    pthread_t writer;
    uint64_t last = 0;

    (void)state;
    assert_int_equal(pthread_create(&writer, NULL, add_many, events), 0);
    while (last < N_ADDED) {
        const uint32_t n = quire_events_list(events, last, got, 64);

        for (uint32_t i = 0; i < n; i++) {
            assert_true(got[i].number > last);
            assert_true(i == 0 || got[i].number == last + 1);
            assert_int_equal(got[i].time_us, got[i].number);
            last = got[i].number;
        }
    }
    assert_int_equal(pthread_join(writer, NULL), 0);
    quire_events_destroy(events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_reader_gets_what_is_new),
        cmocka_unit_test(test_the_oldest_make_room),
        cmocka_unit_test(test_a_long_text_is_cut),
        cmocka_unit_test(test_capacities_and_names),
        cmocka_unit_test(test_a_reader_beside_a_writer_sees_whole_events_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
