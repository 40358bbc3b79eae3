/* test_analyze.c - distributions, sessions and load of traces with known results.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/analyze.h"

#include "quire/status.h"
#include "trace/offline/turns.h"
#include "trace/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static quire_analysis *analyze(const quire_trace *trace, const quire_load_cost *cost)
{
    quire_analysis *analysis = NULL;

    assert_int_equal(quire_analysis_create(&analysis, trace, cost, NULL), QUIRE_OK);
    return analysis;
}

static void test_repetition(void **state)
{
    quire_trace trace;
    quire_analysis *a;

    (void)state;
    workload_begin(&trace, 100);
    workload_add(&trace, 0, "sab");
    workload_add(&trace, 10, "scd");
    workload_add_as(&trace, (quire_trace_request){ .time_us = 30, .n_input_tokens = 350 }, "sabx");
    workload_add(&trace, 60, "sab");
    quire_trace_finish(&trace);
    a = analyze(&trace, NULL);
    assert_int_equal(a->n_requests, 4);
    assert_int_equal(a->n_blocks, 13);
    assert_int_equal(a->n_ids, 6);
    assert_int_equal(a->span_us, 60);
    assert_int_equal(a->input_tokens, 300 + 300 + 350 + 300);
    assert_int_equal(a->repeated_blocks, 1 + 3 + 3);
    assert_int_equal(a->repeated_tokens, 700);
    assert_int_equal(a->one_time_ids, 3); /* c d x */
    assert_int_equal(a->uses.max, 4);
    assert_int_equal(a->uses.counts[3], 2); /* a b */
    /* s: 10 20 30; a: 30 30; b: 30 30 */
    assert_int_equal(a->gap_us.n, 7);
    assert_int_equal(a->gap_us.counts[30], 5);
    assert_int_equal(a->gap_requests.counts[1], 2 + 1 + 2); /* s s s a b */
    assert_int_equal(a->gap_requests.counts[2], 2);         /* a b */
    assert_int_equal(a->fresh.min, 0);
    assert_int_equal(a->fresh.max, 300);
    assert_int_equal(a->fresh.counts[50], 1);
    quire_analysis_destroy(a);
    quire_trace_fini(&trace);
}

static void test_sessions_inferred(void **state)
{
    quire_trace trace;
    quire_turns turns;
    quire_analysis *a;

    (void)state;
    workload_begin(&trace, 100);
    /* All requests begin with "s". The first one is only "s". */
    workload_add(&trace, 0, "s");   /* 1 */
    workload_add(&trace, 1, "sab"); /* 1 goes on */
    workload_add_as(&trace,
                    (quire_trace_request){ .time_us = 2, /* 2; q is half */
                                           .n_input_tokens = 250 },
                    "spq");
    workload_add(&trace, 3, "sabc"); /* 1 goes on */
    workload_add(&trace, 4, "sprt"); /* 2 goes on */
    workload_add(&trace, 5, "sabd"); /* 3: from an older turn */
    workload_add(&trace, 6, "sprt"); /* 2 again */
    workload_add(&trace, 7, "s");    /* 4 */
    workload_add(&trace, 8, "s");    /* 5: 4 is everybody's */
    quire_trace_finish(&trace);
    assert_int_equal(quire_turns_init(&turns, &trace, NULL), QUIRE_OK);
    assert_true(turns.is_inferred);
    {
        static const uint32_t want[] = { 1, 1, 2, 1, 2, 3, 2, 4, 5 };

        for (uint32_t r = 0; r < 9; r++) {
            assert_int_equal(turns.sessions[r], want[r]);
        }
    }
    quire_turns_fini(&turns);
    a = analyze(&trace, NULL);
    assert_int_equal(a->n_sessions, 5);
    assert_true(a->is_inferred);
    assert_int_equal(a->turns.counts[3], 2);
    assert_int_equal(a->turns.counts[1], 3);
    assert_int_equal(a->turn_gap_us.n, 4);
    assert_int_equal(a->turn_gap_us.counts[2], 3); /* 1 to 3, 2 to 4, 4 to 6 */
    assert_int_equal(a->session_tokens.max, 400);
    quire_analysis_destroy(a);
    quire_trace_fini(&trace);
}

static void test_sessions_named(void **state)
{
    quire_trace trace;
    quire_analysis *a;

    (void)state;
    workload_begin(&trace, 100);
    workload_add_as(&trace, (quire_trace_request){ .time_us = 0, .session = 2 }, "a");
    workload_add_as(&trace, (quire_trace_request){ .time_us = 5, .session = 2 }, "b");
    workload_add_as(&trace, (quire_trace_request){ .time_us = 6, .session = 7 }, "ab");
    workload_add_as(&trace, (quire_trace_request){ .time_us = 7 }, "a");
    quire_trace_finish(&trace);
    a = analyze(&trace, NULL);
    assert_false(a->is_inferred);
    assert_int_equal(a->n_sessions, 2);
    assert_int_equal(a->turns.counts[2], 1);
    assert_int_equal(a->turn_gap_us.max, 5);
    quire_analysis_destroy(a);
    quire_trace_fini(&trace);
}

static void test_load(void **state)
{
    const quire_load_cost cost = { .prefill_token_us = 10.0, .decode_token_us = 1000.0 };
    quire_trace trace;
    quire_analysis *a;

    (void)state;
    workload_begin(&trace, 100);
    trace.n_classes = 2;
    /* 0 .. 2 s: 1000 us of prompt, 1999 of answer tokens at 1 ms */
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1999 }, "a");
    /* 1 .. 2 s; its prompt is known */
    workload_add_as(
        &trace,
        (quire_trace_request){ .time_us = 1000000, .n_output_tokens = 1000, .class_index = 1 },
        "a");
    workload_add_as(&trace, (quire_trace_request){ .time_us = 4000000 }, "a");
    quire_trace_finish(&trace);
    a = analyze(&trace, &cost);
    assert_int_equal(a->load.n_bins, 5);
    assert_int_equal(a->load.bin_us, 1000000);
    assert_int_equal(a->load.bins[0].requests, 1);
    assert_int_equal(a->load.bins[1].running_max, 2);
    assert_int_equal(a->load.bins[1].held_tokens_max, 100 + 1999 + 100 + 1000);
    assert_int_equal(a->load.bins[2].requests, 0);
    assert_int_equal(a->load.bins[4].input_tokens, 100);
    /* One request runs for 1 s, two run for 1 s, none for 2 s. The last one takes no time. */
    assert_int_equal(a->load.running.counts[0], 2000001);
    assert_int_equal(a->load.running.counts[1], 1000000);
    assert_int_equal(a->load.running.counts[2], 1000000);
    assert_int_equal(a->load.held_class_tokens[1].max, 1100);
    assert_int_equal(quire_dist_quantile(&a->load.held_class_tokens[1], 0.5), 0);
    quire_analysis_destroy(a);
    quire_trace_fini(&trace);
}

static void test_pages(void **state)
{
    quire_trace trace;
    quire_analysis *a;

    (void)state;
    workload_begin(&trace, 128);
    workload_add(&trace, 0, "abc");
    workload_add(&trace, 1, "abd"); /* hits 256 tokens and, it is taken, 64 of d */
    quire_trace_finish(&trace);
    a = analyze(&trace, NULL);
    assert_int_equal(a->pages[0].page_tokens, 64);
    assert_true(a->pages[0].lost_share == 32.0 / 320.0);
    assert_true(a->pages[1].lost_share == 64.0 / 320.0);
    assert_true(a->pages[2].lost_share == 64.0 / 320.0); /* 256: a and b are one page */
    assert_true(a->pages[3].lost_share == 1.0);
    assert_true(a->pages[4].unused_share > a->pages[0].unused_share);
    quire_analysis_destroy(a);
    quire_trace_fini(&trace);
}

static void test_lengths_alone(void **state)
{
    quire_trace trace;
    quire_analysis *a;

    (void)state;
    workload_begin(&trace, 100);
    trace.has_contents = false;
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 5 }, "ab");
    workload_add_as(&trace, (quire_trace_request){ .time_us = 9, .n_output_tokens = 7 }, "ab");
    quire_trace_finish(&trace);
    a = analyze(&trace, NULL);
    assert_int_equal(a->output.max, 7);
    assert_int_equal(a->repeated_blocks, 0);
    assert_int_equal(a->uses.n, 0);
    assert_int_equal(a->gap_us.n, 0);
    assert_int_equal(a->n_sessions, 0);
    assert_int_equal(a->fresh.min, 200);
    quire_analysis_destroy(a);
    quire_trace_fini(&trace);
}

static void test_nothing(void **state)
{
    quire_trace trace;
    quire_analysis *a;

    (void)state;
    workload_begin(&trace, 64);
    a = analyze(&trace, NULL);
    assert_int_equal(a->n_requests, 0);
    assert_int_equal(a->load.running.n, 0);
    assert_int_equal(a->n_sessions, 0);
    quire_analysis_destroy(a);
    quire_analysis_destroy(NULL);
    quire_trace_fini(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repetition),     cmocka_unit_test(test_sessions_inferred),
        cmocka_unit_test(test_sessions_named), cmocka_unit_test(test_load),
        cmocka_unit_test(test_pages),          cmocka_unit_test(test_lengths_alone),
        cmocka_unit_test(test_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
