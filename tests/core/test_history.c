/* test_history.c - the ring of allocation events.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

typedef struct seen {
    uint32_t n;
    uint64_t first;
    uint64_t last;
    uint64_t last_time_us;
    uint32_t stop_after; /* 0 = never */
} seen;

static int look(void *ctx, const quire_history_event *event)
{
    seen *s = ctx;

    if (s->n == 0) {
        s->first = event->number;
    } else {
        assert_int_equal(event->number, s->last + 1);
    }
    assert_int_equal(event->page, event->number + 7); /* as added below */
    s->last = event->number;
    s->last_time_us = event->time_us;
    s->n++;
    return s->stop_after > 0 && s->n == s->stop_after ? 42 : 0;
}

static void add(quire_history *history)
{
    uint64_t number = history->next_number;
    quire_history_event *event = quire_history_next(history);

    assert_true((event == NULL) == (history->capacity == 0));
    if (event != NULL) {
        assert_int_equal(event->number, number);
        event->page = (quire_page_id)(number + 7);
    }
    quire_history_validate(history);
}

static void test_wrap(void **state)
{
    quire_history history;
    test_memory memory;
    const uint32_t capacity = 5;

    (void)state;
    test_memory_init(&memory);
    assert_int_equal(quire_history_init(&history, &memory.allocator, capacity, NULL, NULL), 0);
    for (uint32_t n = 0; n <= 23; n++) {
        seen s = { 0 };

        assert_int_equal(quire_history_visit(&history, look, &s), 0);
        assert_int_equal(s.n, n < capacity ? n : capacity);
        if (n > 0) {
            assert_int_equal(s.last, n - 1);
            assert_int_equal(s.first, n < capacity ? 0 : n - capacity);
            assert_int_equal(s.last_time_us, n - 1); /* no clock: event numbers */
        }
        add(&history);
    }
    quire_history_fini(&history);
    assert_int_equal(memory.n_live, 0);
    assert_int_equal(memory.n_calls, 1); /* adding allocates nothing */
}

static void test_visit_stops(void **state)
{
    quire_history history;
    seen s = { .stop_after = 2 };

    (void)state;
    assert_int_equal(quire_history_init(&history, quire_allocator_default(), 4, NULL, NULL), 0);
    for (int i = 0; i < 3; i++) {
        add(&history);
    }
    assert_int_equal(quire_history_visit(&history, look, &s), 42);
    assert_int_equal(s.n, 2);
    quire_history_fini(&history);
}

static void test_off(void **state)
{
    quire_history history;
    test_memory memory;
    seen s = { 0 };

    (void)state;
    test_memory_init(&memory);
    assert_int_equal(quire_history_init(&history, &memory.allocator, 0, NULL, NULL), 0);
    assert_int_equal(memory.n_calls, 0);
    add(&history);
    assert_int_equal(quire_history_visit(&history, look, &s), 0);
    assert_int_equal(s.n, 0);
    quire_history_fini(&history);
}

static uint64_t clock_us(void *ctx)
{
    uint64_t *now = ctx;

    *now += 1000;
    return *now;
}

static void test_clock(void **state)
{
    quire_history history;
    uint64_t now = 0;
    seen s = { 0 };

    (void)state;
    assert_int_equal(quire_history_init(&history, quire_allocator_default(), 4, clock_us, &now), 0);
    add(&history);
    add(&history);
    assert_int_equal(quire_history_visit(&history, look, &s), 0);
    assert_int_equal(s.last_time_us, 2000);
    quire_history_fini(&history);
}

static void test_no_memory(void **state)
{
    quire_history history;
    test_memory memory;

    (void)state;
    test_memory_init(&memory);
    memory.fail_at = 0;
    assert_int_equal(quire_history_init(&history, &memory.allocator, 4, NULL, NULL), QUIRE_NOMEM);
    quire_history_fini(&history);
    assert_int_equal(memory.n_live, 0);
}

/* The names are an interface: programs read them in the file of --kv-history. */
static void test_kind_names(void **state)
{
    static const char *const names[] = { "unknown", "alloc",  "ref",     "unref",  "free",
                                         "copy",    "move",   "map",     "unmap",  "keep",
                                         "evict",   "charge", "offload", "onload", "unknown" };

    (void)state;
    for (int i = 0; i < 15; i++) {
        assert_string_equal(quire_history_kind_name((quire_history_kind)i), names[i]);
    }
    assert_string_equal(quire_history_kind_name((quire_history_kind)-1), "unknown");
    assert_string_equal(quire_history_kind_name(QUIRE_HISTORY_UNMAP), "unmap");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrap),      cmocka_unit_test(test_visit_stops),
        cmocka_unit_test(test_off),       cmocka_unit_test(test_clock),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_kind_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
