/* test_recent.c - the ring keeps the latest requests, within its bytes and its window.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/recent.h"

#include "quire/status.h"
#include "seed.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static quire_recent *make(size_t ring_bytes, uint64_t window_us)
{
    quire_recent_opts opts = QUIRE_RECENT_OPTS_INIT;
    quire_recent *recent = NULL;

    opts.ring_bytes = ring_bytes;
    opts.window_us = window_us;
    opts.seed = 99;
    assert_int_equal(quire_recent_create(&recent, &opts), QUIRE_OK);
    return recent;
}

static void add(quire_recent *recent, uint64_t time_us, const int32_t *tokens, uint32_t n_tokens)
{
    quire_recent_add(recent, &(quire_recent_request){ .time_us = time_us,
                                                      .tokens = tokens,
                                                      .n_input_tokens = n_tokens,
                                                      .n_output_tokens = 7 });
}

static void test_as_a_trace(void **state)
{
    quire_recent *recent = make(1u << 16, 1000);
    int32_t tokens[200];
    quire_trace trace;

    (void)state;
    for (int32_t i = 0; i < 200; i++) {
        tokens[i] = i;
    }
    add(recent, 500, tokens, 200);
    add(recent, 400, tokens, 130); /* ended later, came earlier */
    tokens[70] = -1;               /* differs in the second block */
    add(recent, 600, tokens, 200);
    quire_recent_add(recent, &(quire_recent_request){ .time_us = 700,
                                                      .tokens = tokens,
                                                      .n_input_tokens = 64,
                                                      .tenant = 2,
                                                      .session = UINT32_MAX,
                                                      .class_index = 3 });
    quire_recent_add(recent, &(quire_recent_request){ .time_us = 800, .n_input_tokens = 50 });
    assert_int_equal(quire_recent_trace(recent, 900, &trace), QUIRE_OK);
    assert_int_equal(trace.n_requests, 5);
    assert_int_equal(trace.block_tokens, 64);
    assert_true(trace.has_contents);
    assert_int_equal(trace.requests[0].time_us, 0);
    assert_int_equal(trace.requests[0].n_input_tokens, 130);
    assert_int_equal(trace.requests[0].n_blocks, 3);
    assert_int_equal(trace.requests[1].time_us, 100);
    assert_int_equal(trace.requests[1].n_blocks, 4);
    assert_int_equal(trace.requests[1].n_output_tokens, 7);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t *first = quire_trace_blocks(&trace, &trace.requests[0]);
        const uint32_t *second = quire_trace_blocks(&trace, &trace.requests[1]);
        const uint32_t *third = quire_trace_blocks(&trace, &trace.requests[2]);

        assert_int_equal(second[i] == third[i], i == 0);
        assert_true(i > 2 || (second[i] == first[i]) == (i < 2)); /* the third has 2 tokens */
    }
    assert_int_equal(trace.requests[3].session, 1); /* numbered anew */
    assert_int_equal(trace.n_sessions, 1);
    assert_int_equal(trace.requests[3].class_index, 3);
    assert_int_equal(trace.n_classes, 4);
    assert_int_equal(trace.n_tenants, 3);
    /* Another tenant's text is another. */
    assert_true(*quire_trace_blocks(&trace, &trace.requests[3]) !=
                *quire_trace_blocks(&trace, &trace.requests[0]));
    assert_int_equal(trace.requests[4].n_blocks, 0);
    assert_int_equal(trace.requests[4].n_input_tokens, 50);
    quire_trace_fini(&trace);
    /* Requests that are too old are left out. */
    assert_int_equal(quire_recent_trace(recent, 1550, &trace), QUIRE_OK);
    assert_int_equal(trace.n_requests, 3);
    quire_trace_fini(&trace);
    quire_recent_destroy(recent);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Random sizes through a small ring: the ring holds the newest requests added. A prompt takes an
 * eighth of the ring at most. */
static void test_bounds(void **state)
{
    quire_rng rng = test_rng(31);
    static int32_t tokens[6000];
    uint32_t sizes[3000];

    (void)state;
    for (uint32_t i = 0; i < 6000; i++) {
        tokens[i] = (int32_t)i;
    }
    for (uint32_t round = 0; round < 4; round++) {
        const size_t ring_bytes = QUIRE_RECENT_BYTES_MIN + quire_rng_below(&rng, 4000);
        const uint32_t blocks_max = ((uint32_t)ring_bytes / 8 - 32) / 8; /* an eighth of it */
        quire_recent *recent = make(ring_bytes, 1u << 30);

        for (uint32_t i = 0; i < 3000; i++) {
            quire_trace trace;

            sizes[i] = quire_rng_below(&rng, quire_rng_below(&rng, 10) == 0 ? 6000 : 640);
            add(recent, i, tokens, sizes[i]);
            assert_int_equal(quire_recent_trace(recent, i, &trace), QUIRE_OK);
            assert_true(trace.n_requests * 32 + trace.n_blocks * 8 <= ring_bytes);
            /* No more is dropped than must be: half of the ring is always in use. */
            assert_true(trace.n_requests == i + 1 ||
                        trace.n_requests * 32 + trace.n_blocks * 8 > ring_bytes / 2);
            for (uint32_t r = 0; r < trace.n_requests; r++) {
                const uint32_t size = sizes[i + 1 - trace.n_requests + r];

                assert_int_equal(trace.requests[r].n_input_tokens, size);
                assert_int_equal(trace.requests[r].n_blocks, min_u32((size + 63) / 64, blocks_max));
                assert_int_equal(trace.requests[r].time_us, r);
            }
            quire_trace_fini(&trace);
        }
        quire_recent_destroy(recent);
    }
}

static void test_window(void **state)
{
    quire_recent *recent = make(1u << 16, 100);
    int32_t token = 1;
    quire_trace trace;

    (void)state;
    for (uint64_t t = 0; t < 1000; t += 10) {
        add(recent, t, &token, 1);
    }
    assert_int_equal(quire_recent_trace(recent, 990, &trace), QUIRE_OK);
    assert_int_equal(trace.n_requests, 11);
    assert_int_equal(trace.requests[10].time_us, 100);
    quire_trace_fini(&trace);
    quire_recent_destroy(recent);
}

static void test_refused(void **state)
{
    quire_recent_opts opts = QUIRE_RECENT_OPTS_INIT;
    quire_recent *recent;

    (void)state;
    opts.window_us = 0;
    assert_int_equal(quire_recent_create(&recent, &opts), QUIRE_INVAL);
    opts = (quire_recent_opts)QUIRE_RECENT_OPTS_INIT;
    opts.ring_bytes = QUIRE_RECENT_BYTES_MIN - 1;
    assert_int_equal(quire_recent_create(&recent, &opts), QUIRE_INVAL);
    opts = (quire_recent_opts)QUIRE_RECENT_OPTS_INIT;
    opts.block_tokens = 0;
    assert_int_equal(quire_recent_create(&recent, &opts), QUIRE_INVAL);
    quire_recent_destroy(NULL);
}

static void *add_many(void *recent)
{
    int32_t tokens[300] = { 0 };

    for (uint32_t i = 0; i < 2000; i++) {
        tokens[0] = (int32_t)i;
        add(recent, i, tokens, 1 + i % 300);
    }
    return NULL;
}

static void test_threads(void **state)
{
    quire_recent *recent = make(1u << 15, 1u << 30);
    quire_trace all;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, add_many, recent), 0);
    for (uint32_t i = 0; i < 50; i++) {
        quire_trace trace;

        assert_int_equal(quire_recent_trace(recent, 2000, &trace), QUIRE_OK);
        for (uint32_t r = 1; r < trace.n_requests; r++) {
            assert_int_equal(trace.requests[r].time_us, trace.requests[r - 1].time_us + 1);
        }
        quire_trace_fini(&trace);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(quire_recent_trace(recent, 2000, &all), QUIRE_OK);
    assert_true(all.n_requests > 0);
    assert_int_equal(all.requests[all.n_requests - 1].n_input_tokens,
                     1 + 1999 % 300); /* the last */
    quire_trace_fini(&all);
    quire_recent_destroy(recent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_a_trace), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_window),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
