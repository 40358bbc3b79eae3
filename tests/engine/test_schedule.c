/* test_schedule.c - the queue's order, and the rows of a step within a class. No model.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/loop/queue.h"
#include "engine/loop/schedule.h"
#include "seed.h"

#include <string.h>

#define COUNT(a)  ((uint32_t)(sizeof(a) / sizeof(a)[0]))
#define CHUNK     256u
#define ITEMS_MAX 64u

/* The rows of a step with one class and no earlier steps. */
static uint32_t rows(quire_schedule_item *items, uint32_t n, const quire_schedule_limits *limits)
{
    quire_schedule schedule;

    quire_schedule_init(&schedule);
    return quire_schedule_rows(&schedule, items, n, limits);
}

static const quire_schedule_limits roomy = { .chunk_tokens = CHUNK, .rows_max = 512 };

static quire_schedule_item decode(uint64_t arrival)
{
    return (quire_schedule_item){ .arrival = arrival, .n_left = 1, .is_decode = true };
}

static quire_schedule_item prefill(uint64_t arrival, uint32_t n_left)
{
    return (quire_schedule_item){ .arrival = arrival, .n_left = n_left, .n_until = n_left };
}

static uint32_t rows_of(const quire_schedule_item *items, uint32_t n, uint64_t arrival)
{
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].arrival == arrival) {
            return items[i].n_rows;
        }
    }
    fail_msg("no item %llu", (unsigned long long)arrival);
    return 0;
}

/* ---- rows ---- */

static void test_nothing(void **state)
{
    (void)state;
    assert_int_equal(rows(NULL, 0, &roomy), 0);
}

static void test_decode_gets_a_row_each(void **state)
{
    quire_schedule_item items[] = { decode(3), decode(1), decode(2) };

    (void)state;
    assert_int_equal(rows(items, 3, &roomy), 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(items[i].n_rows, 1);
        assert_int_equal(items[i].arrival, i + 1);
    }
}

static void test_one_prompt_fills_the_chunk(void **state)
{
    quire_schedule_item items[] = { decode(1), decode(2), prefill(3, 1000) };

    (void)state;
    assert_int_equal(rows(items, 3, &roomy), CHUNK);
    assert_int_equal(items[2].n_rows, CHUNK - 2);
}

static void test_prompt_shorter_than_the_chunk(void **state)
{
    quire_schedule_item items[] = { prefill(1, 40) };

    (void)state;
    assert_int_equal(rows(items, 1, &roomy), 40);
}

/* Short prompts do not wait behind a long one, which goes on all the same. */
static void test_short_ones_pass_a_long_one(void **state)
{
    quire_schedule_item items[] = { prefill(1, 8000), prefill(2, 60), prefill(3, 30) };

    (void)state;
    assert_int_equal(rows(items, 3, &roomy), CHUNK);
    assert_int_equal(rows_of(items, 3, 2), 60);
    assert_int_equal(rows_of(items, 3, 3), 30);
    assert_int_equal(rows_of(items, 3, 1), CHUNK - 90);
}

/* However many short ones come, the first keeps a quarter. */
static void test_the_first_keeps_a_quarter(void **state)
{
    quire_schedule_item items[8];

    (void)state;
    items[0] = prefill(1, 8000);
    for (uint32_t i = 1; i < COUNT(items); i++) {
        items[i] = prefill(1 + i, 200);
    }
    assert_int_equal(rows(items, COUNT(items), &roomy), CHUNK);
    assert_int_equal(rows_of(items, COUNT(items), 1), CHUNK / 4);
    assert_int_equal(rows_of(items, COUNT(items), 2), CHUNK * 3 / 4);
}

static void test_priority_before_size(void **state)
{
    quire_schedule_item items[] = { prefill(1, 100), prefill(2, 100), prefill(3, 1000) };

    (void)state;
    items[2].priority = 1;
    assert_int_equal(rows(items, 3, &roomy), CHUNK);
    assert_int_equal(rows_of(items, 3, 1), CHUNK / 4); /* the first */
    assert_int_equal(rows_of(items, 3, 2), 0);
    assert_int_equal(rows_of(items, 3, 3), CHUNK * 3 / 4);
}

/* For whom another waits goes before shorter ones, with all it can use of the step. */
static void test_who_is_waited_for(void **state)
{
    quire_schedule_item items[] = { prefill(1, 500), prefill(2, 400), prefill(3, 1000) };

    (void)state;
    items[2].n_until = 64;
    assert_int_equal(rows(items, 3, &roomy), CHUNK);
    assert_int_equal(rows_of(items, 3, 1), CHUNK / 4); /* the first */
    assert_int_equal(rows_of(items, 3, 2), 0);
    assert_int_equal(rows_of(items, 3, 3), CHUNK * 3 / 4);
}

/* More decode than the chunk has rows: prefill still gets a quarter, within rows_max. */
static void test_much_decode(void **state)
{
    const quire_schedule_limits narrow = { .chunk_tokens = 8, .rows_max = 32 };
    quire_schedule_item items[31];

    (void)state;
    for (uint32_t i = 0; i < 30; i++) {
        items[i] = decode(i + 1);
    }
    items[30] = prefill(40, 100);
    assert_int_equal(rows(items, 31, &narrow), 32);
    assert_int_equal(rows_of(items, 31, 40), 2);
}

/* Random mixes: each request in decode has a row, chunk and step are not exceeded, no row is
 * wasted, and the first request in prefill progresses. */
static void test_invariants(void **state)
{
    quire_rng rng = test_rng(41);

    (void)state;
    for (int round = 0; round < 20000; round++) {
        const uint32_t n = 1 + quire_rng_below(&rng, ITEMS_MAX);
        const quire_schedule_limits limits = {
            .chunk_tokens = 1 + quire_rng_below(&rng, 300),
            .rows_max = n + quire_rng_below(&rng, 600),
        };
        quire_schedule_item items[ITEMS_MAX];
        uint32_t n_decode = 0, n_prefill = 0, left = 0, total;
        uint64_t first = UINT64_MAX;

        for (uint32_t i = 0; i < n; i++) {
            const bool is_decode = quire_rng_below(&rng, 2) == 0;

            items[i] = is_decode ? decode(i + 1) : prefill(i + 1, 1 + quire_rng_below(&rng, 400));
            items[i].priority = (int32_t)quire_rng_below(&rng, 3);
            items[i].n_rows = 77;
        }
        total = rows(items, n, &limits);
        assert_true(total > 0 && total <= limits.rows_max);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(items[i].n_rows <= items[i].n_left);
            if (items[i].is_decode) {
                assert_int_equal(items[i].n_rows, 1);
                assert_int_equal(i, n_decode); /* in front */
                n_decode++;
            } else {
                n_prefill += items[i].n_rows;
                left += items[i].n_left;
                first = items[i].arrival < first ? items[i].arrival : first;
            }
        }
        assert_int_equal(total, n_decode + n_prefill);
        if (first != UINT64_MAX) {
            const uint32_t least = limits.chunk_tokens > 4 ? limits.chunk_tokens / 4 : 1;

            assert_true(rows_of(items, n, first) > 0);
            assert_true(n_decode + n_prefill <= limits.chunk_tokens || n_prefill <= least);
            assert_true(n_prefill == left || total >= limits.chunk_tokens ||
                        total == limits.rows_max);
        }
    }
}

/* ---- many steps ---- */

#define LONG_TOKENS  30000u
#define SHORT_TOKENS 200u

/* A prompt of 30,000 tokens beside short ones of 200 that come `often` times in a hundred steps,
 * and n_decode requests in decode. Returns the steps until the long one is computed; *wait is the
 * longest that a short one took. */
static uint32_t steps_of_a_long_one(uint32_t often, uint32_t n_decode, uint32_t *wait)
{
    quire_schedule_item items[ITEMS_MAX] = { prefill(1, LONG_TOKENS) };
    uint32_t n = 1;

    *wait = 0;
    for (uint32_t i = 0; i < n_decode; i++) {
        items[n++] = decode(2 + i);
    }
    for (uint32_t step = 0;; step++) {
        uint32_t n_left = 0;

        assert_true(step < 10000);
        if ((step + 1) * often / 100 > step * often / 100 && n < ITEMS_MAX) {
            items[n++] = prefill(100 + step, SHORT_TOKENS);
        }
        (void)rows(items, n, &roomy);
        for (uint32_t i = 0; i < n; i++) {
            quire_schedule_item item = items[i];

            if (!item.is_decode) {
                item.n_left -= item.n_rows;
                item.n_until = item.n_left;
            }
            if (item.n_left > 0) {
                items[n_left++] = item;
            } else if (item.arrival == 1) {
                return step + 1;
            } else if (step - (uint32_t)(item.arrival - 100) + 1 > *wait) {
                *wait = step - (uint32_t)(item.arrival - 100) + 1;
            }
        }
        n = n_left;
    }
}

/* Neither kind waits for the other. Short prompts take two steps however long the long prompt is.
 * The long prompt keeps a quarter of the rows when too many short ones come. */
static void test_a_long_one_and_a_stream_of_short_ones(void **state)
{
    uint32_t wait;

    (void)state;
    assert_int_equal(steps_of_a_long_one(0, 0, &wait), (LONG_TOKENS + CHUNK - 1) / CHUNK);
    assert_in_range(steps_of_a_long_one(50, 0, &wait), 1, LONG_TOKENS / (CHUNK - 100) + 2);
    assert_in_range(wait, 1, 2);
    assert_in_range(steps_of_a_long_one(60, 32, &wait), 1, LONG_TOKENS / (CHUNK - 32 - 120) + 2);
    assert_in_range(wait, 1, 2);
    assert_in_range(steps_of_a_long_one(100, 0, &wait), 1, LONG_TOKENS / (CHUNK / 4) + 1);
}

/* ---- the queue ---- */

static void queue_check(const quire_queue *queue, const uint64_t *arrivals, uint32_t n)
{
    const quire_queue_link *link = queue->first;
    const quire_queue_link *prev = NULL;

    assert_int_equal(queue->n, n);
    for (uint32_t i = 0; i < n; i++, prev = link, link = link->next) {
        assert_non_null(link);
        assert_int_equal(link->arrival, arrivals[i]);
        assert_ptr_equal(link->prev, prev);
    }
    assert_null(link);
    assert_ptr_equal(queue->last, prev);
}

static void test_queue_order(void **state)
{
    quire_queue queue = { 0 };
    quire_queue_link a = { .arrival = 1 }, b = { .arrival = 2, .priority = 5 };
    quire_queue_link c = { .arrival = 3 }, d = { .arrival = 4, .priority = -1 };

    (void)state;
    quire_queue_insert(&queue, &d);
    quire_queue_insert(&queue, &c);
    quire_queue_insert(&queue, &b);
    quire_queue_insert(&queue, &a); /* preempted: before those that came later */
    queue_check(&queue, (uint64_t[]){ 2, 1, 3, 4 }, 4);
    quire_queue_remove(&queue, &b);
    quire_queue_remove(&queue, &d);
    queue_check(&queue, (uint64_t[]){ 1, 3 }, 2);
    quire_queue_remove(&queue, &a);
    quire_queue_remove(&queue, &c);
    queue_check(&queue, NULL, 0);
    quire_queue_insert(&queue, &c);
    queue_check(&queue, (uint64_t[]){ 3 }, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_decode_gets_a_row_each),
        cmocka_unit_test(test_one_prompt_fills_the_chunk),
        cmocka_unit_test(test_prompt_shorter_than_the_chunk),
        cmocka_unit_test(test_short_ones_pass_a_long_one),
        cmocka_unit_test(test_the_first_keeps_a_quarter),
        cmocka_unit_test(test_priority_before_size),
        cmocka_unit_test(test_who_is_waited_for),
        cmocka_unit_test(test_much_decode),
        cmocka_unit_test(test_invariants),
        cmocka_unit_test(test_a_long_one_and_a_stream_of_short_ones),
        cmocka_unit_test(test_queue_order),
    };

    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
