/* test_trace.c - requests and the numbering of their blocks.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/trace.h"

#include "quire/status.h"
#include "seed.h"
#include "trace/id_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Fails call number fail_at, counted from 0. */
typedef struct failing {
    uint64_t n_calls;
    uint64_t fail_at;
} failing;

static void *failing_alloc(void *ctx, size_t size_bytes)
{
    failing *f = ctx;

    return f->n_calls++ == f->fail_at ? NULL : quire_allocator_default()->alloc(NULL, size_bytes);
}

static void failing_free(void *ctx, void *ptr)
{
    (void)ctx;
    quire_allocator_default()->free(NULL, ptr);
}

static int add(quire_trace *trace, uint64_t time_us, uint32_t n, const uint64_t *keys)
{
    const quire_trace_request request = { .time_us = time_us, .n_blocks = n, .n_input_tokens = n };

    return quire_trace_add_keys(trace, &request, keys);
}

static void test_chains(void **state)
{
    static const uint64_t abc[] = { 1000, UINT64_MAX, 7 };
    static const uint64_t abd[] = { 1000, UINT64_MAX, 8 };
    static const uint64_t bc[] = { UINT64_MAX, 7 };
    const uint32_t *ids;
    quire_trace trace;

    (void)state;
    quire_trace_init(&trace, NULL);
    assert_int_equal(add(&trace, 30, 3, abc), QUIRE_OK);
    assert_int_equal(add(&trace, 20, 3, abd), QUIRE_OK);
    assert_int_equal(add(&trace, 20, 2, bc), QUIRE_OK);
    assert_int_equal(add(&trace, 40, 0, NULL), QUIRE_OK);
    assert_int_equal(trace.n_ids, 6);
    ids = trace.block_ids;
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[2], 2);
    assert_int_equal(ids[3], 0);
    assert_int_equal(ids[4], 1);
    assert_int_equal(ids[5], 3);
    assert_int_equal(ids[6], 4); /* behind nothing */
    assert_int_equal(ids[7], 5); /* behind that */
    assert_int_equal(quire_trace_longest_blocks(&trace), 3);
    quire_trace_finish(&trace);
    assert_int_equal(trace.requests[0].first_block, 3);
    assert_int_equal(trace.requests[0].time_us, 0);
    assert_int_equal(trace.requests[1].first_block, 6);
    assert_int_equal(trace.requests[2].time_us, 10);
    assert_int_equal(trace.requests[3].time_us, 20);
    quire_trace_fini(&trace);
}

/* Whichever allocation fails, nothing was added and the trace goes on. */
static void test_no_memory(void **state)
{
    static uint64_t keys[5000];
    failing f = { 0, 0 };
    const quire_allocator allocator = { failing_alloc, failing_free, &f };
    bool has_failed = true;

    (void)state;
    for (uint64_t i = 0; i < 5000; i++) {
        keys[i] = i;
    }
    for (f.fail_at = 0; has_failed; f.fail_at++) {
        quire_trace trace;
        uint32_t n_added = 0;

        f.n_calls = 0;
        has_failed = false;
        quire_trace_init(&trace, &allocator);
        for (uint32_t i = 0; i < 20; i++) {
            int rc = add(&trace, i, 250 * i, keys);

            assert_true(rc == QUIRE_OK || rc == QUIRE_NOMEM);
            has_failed = has_failed || rc < 0;
            n_added += rc == QUIRE_OK;
            assert_int_equal(trace.n_requests, n_added);
        }
        assert_int_equal(trace.n_ids, quire_trace_longest_blocks(&trace));
        quire_trace_fini(&trace);
    }
    assert_true(f.fail_at > 4);
}

static void test_id_map(void **state)
{
    quire_rng rng = test_rng(3);
    quire_id_map map;
    uint64_t *keys = test_calloc(5000, sizeof(*keys));

    (void)state;
    quire_id_map_init(&map, NULL);
    assert_int_equal(quire_id_map_find(&map, 1), QUIRE_ID_NONE);
    for (uint32_t i = 0; i < 5000; i++) {
        keys[i] = i < 4 ? (uint64_t)i - 2 : quire_rng_next(&rng);
        assert_int_equal(quire_id_map_plan(&map, 1), QUIRE_OK);
        assert_int_equal(quire_id_map_put(&map, keys[i]), i);
        assert_int_equal(quire_id_map_put(&map, keys[i / 2]), i / 2);
    }
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(quire_id_map_find(&map, keys[i]), i);
    }
    assert_int_equal(quire_id_map_find(&map, 12345), QUIRE_ID_NONE);
    assert_int_equal(quire_id_map_plan(&map, UINT32_MAX), QUIRE_LIMIT);
    assert_true(quire_id_pair(1, 2) != quire_id_pair(2, 1));
    quire_id_map_fini(&map);
    test_free(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_id_map),
    };

    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
