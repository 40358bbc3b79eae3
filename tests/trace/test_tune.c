/* test_tune.c - settings move by a step, within bounds, and only when that is wanted for a while.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/tune.h"

#include "quire/status.h"
#include "seed.h"
#include "trace/duration.h"
#include "trace/workload.h"

#include "base/parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MINUTE 60000000u
#define GB     1000000000u

/* Nothing wants to move. */
static quire_tune_facts calm(void)
{
    return (quire_tune_facts){ .requests = 1000,
                               .span_us = 3600ull * 1000000u,
                               .hit_rate = 0.5,
                               .hit_rate_half = 0.4,
                               .hit_rate_double = 0.51,
                               .hit_rate_infinite = 0.52,
                               .one_time_share = 0.4,
                               .gap_p50_us = MINUTE,
                               .gap_p90_us = 5 * MINUTE,
                               .gap_p99_us = 10 * MINUTE,
                               .pinned_need_p99_bytes = 2.0 * GB,
                               .distinct_bytes = 20ull * GB,
                               .best_policy = QUIRE_EVICT_LRU,
                               .best_policy_hit_rate = 0.5,
                               .current_policy_hit_rate = 0.5 };
}

static quire_tune_settings usual(void)
{
    return (quire_tune_settings){ .pinned_share = 0.22,
                                  .ttl_us = 20 * MINUTE,
                                  .low_traffic_after_us = 5 * MINUTE,
                                  .memory_bytes = 10ull * GB,
                                  .policy = QUIRE_EVICT_LRU };
}

typedef struct bench {
    quire_tune_facts facts;
    quire_tune_settings settings;
    quire_tune_bounds bounds;
    quire_tune_state state;
    quire_tune_change changes[QUIRE_TUNE_KNOB_COUNT];
} bench;

static bench begin(void)
{
    return (bench){ .facts = calm(), .settings = usual(), .bounds = QUIRE_TUNE_BOUNDS_INIT };
}

static uint32_t suggest(bench *b)
{
    return quire_tune_suggest(&b->facts, &b->settings, &b->bounds, &b->state, b->changes);
}

static void test_calm(void **state)
{
    bench b = begin();

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(suggest(&b), 0);
    }
    /* Too little to go by. */
    b.facts.gap_p99_us = 1;
    b.facts.requests = QUIRE_TUNE_REQUESTS_MIN - 1;
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(suggest(&b), 0);
    }
}

static void test_share_moves_by_steps(void **state)
{
    bench b = begin();
    double last = b.settings.pinned_share;
    uint32_t n_moves = 0;

    (void)state;
    b.facts.pinned_need_p99_bytes = 9.0 * GB;
    for (uint32_t i = 0; i < 60; i++) {
        const uint32_t n = suggest(&b);

        assert_true(i % 2 == 1 || n == 0); /* patience */
        for (uint32_t c = 0; c < n; c++) {
            assert_int_equal(b.changes[c].knob, QUIRE_TUNE_PINNED_SHARE);
            assert_true(b.changes[c].is_applicable);
            assert_true(b.changes[c].to > last && b.changes[c].to <= last + 0.0501);
            assert_true(strstr(b.changes[c].reason, "9.00 GB") != NULL);
            last = b.settings.pinned_share = b.changes[c].to;
            n_moves++;
        }
    }
    assert_in_range(n_moves, 9, 14);
    assert_true(last <= b.bounds.pinned_share_max);
    assert_true(last > b.bounds.pinned_share_max - 0.06);
}

static void test_swinging_moves_nothing(void **state)
{
    bench b = begin();

    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        b.facts.pinned_need_p99_bytes = i % 2 != 0 ? 6.0 * GB : 0.1 * GB;
        b.facts.gap_p99_us = i % 2 != 0 ? 2 * MINUTE : 14 * MINUTE;
        b.facts.hit_rate_double = i % 2 != 0 ? 0.6 : 0.5;
        assert_int_equal(suggest(&b), 0);
    }
}

static void test_ttl(void **state)
{
    bench b = begin();

    (void)state;
    b.facts.gap_p99_us = 2 * MINUTE;
    assert_int_equal(suggest(&b), 0);
    assert_int_equal(suggest(&b), 1);
    assert_int_equal(b.changes[0].knob, QUIRE_TUNE_TTL);
    assert_true(b.changes[0].to > 13.2e6 * 60 && b.changes[0].to < 13.4e6 * 60);
    assert_non_null(strstr(b.changes[0].reason, "within 120s"));
    /* Gaps as long as the watched time prove nothing about a shorter time to live. */
    b = begin();
    b.settings.ttl_us = 600 * (uint64_t)MINUTE;
    b.facts.gap_p99_us = 40 * MINUTE;
    assert_int_equal(suggest(&b) + suggest(&b) + suggest(&b), 0);
    /* No time to live stays none. */
    b = begin();
    b.settings.ttl_us = 0;
    assert_int_equal(suggest(&b) + suggest(&b) + suggest(&b), 0);
    /* Within its bounds. */
    b = begin();
    b.bounds.ttl_max_us = 25 * MINUTE;
    b.settings.ttl_us = 24 * MINUTE;
    b.facts.span_us *= 100;
    b.facts.gap_p99_us = 600 * (uint64_t)MINUTE;
    assert_int_equal(suggest(&b) + suggest(&b) + suggest(&b), 0);
    b.bounds.ttl_min_us = b.bounds.ttl_max_us; /* not to be touched */
    b.settings.ttl_us = MINUTE;
    assert_int_equal(suggest(&b) + suggest(&b) + suggest(&b), 0);
}

static void test_low_traffic(void **state)
{
    bench b = begin();

    (void)state;
    b.facts.gap_p90_us = 9 * MINUTE;
    assert_int_equal(suggest(&b), 0);
    assert_int_equal(suggest(&b), 1);
    assert_int_equal(b.changes[0].knob, QUIRE_TUNE_LOW_TRAFFIC);
    assert_true(b.changes[0].to == 7.5 * MINUTE);
    b = begin();
    b.settings.low_traffic_after_us = 0;
    b.facts.gap_p90_us = 9 * MINUTE;
    assert_int_equal(suggest(&b) + suggest(&b) + suggest(&b), 0);
}

static void test_words_are_said_once(void **state)
{
    bench b = begin();
    uint32_t n = 0;

    (void)state;
    b.facts.hit_rate_double = 0.6;
    b.facts.best_policy = QUIRE_EVICT_GDSF;
    b.facts.best_policy_hit_rate = 0.6;
    for (uint32_t i = 0; i < 10; i++) {
        const uint32_t now = suggest(&b);

        for (uint32_t c = 0; c < now; c++) {
            assert_false(b.changes[c].is_applicable);
        }
        n += now;
    }
    assert_int_equal(n, 2);
    /* The change is no longer wanted, and then wanted again. */
    b.facts.hit_rate_double = 0.51;
    assert_int_equal(suggest(&b), 0);
    b.facts.hit_rate_double = 0.6;
    assert_int_equal(suggest(&b), 0);
    assert_int_equal(suggest(&b), 1);
    assert_int_equal(b.changes[0].knob, QUIRE_TUNE_MEMORY);
    assert_true(b.changes[0].to == 12.5 * GB);
    /* Another policy is another word. */
    b.facts.best_policy = QUIRE_EVICT_ARC;
    assert_int_equal(suggest(&b), 0);
    assert_int_equal(suggest(&b), 1);
    assert_true(b.changes[0].to == (double)QUIRE_EVICT_ARC);
    assert_non_null(strstr(b.changes[0].reason, "arc would have served 60.0 %"));
    /* Memory that brings nothing. */
    b = begin();
    b.facts.hit_rate_half = 0.499;
    b.facts.hit_rate_double = 0.5;
    assert_int_equal(suggest(&b), 0);
    assert_int_equal(suggest(&b), 1);
    assert_true(b.changes[0].to == 8.0 * GB);
}

static void test_measure(void **state)
{
    const workload_opts opts = { .n_requests = 400,
                                 .n_conversations = 30,
                                 .shared_blocks = 2,
                                 .turn_blocks_max = 5,
                                 .p_end = 0.1 };
    quire_tune_ask ask = { .settings = usual(),
                           .token_bytes = 1000.0,
                           .prefill_token_us = 100.0,
                           .decode_token_us = 10000.0,
                           .pinned_class_mask = 1u };
    quire_rng rng = test_rng(41);
    quire_tune_facts facts;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 64);
    workload_conversations(&trace, &opts, &rng);
    ask.settings.memory_bytes = 200 * 64 * 1000;
    assert_int_equal(quire_tune_measure(&trace, &ask, &facts), QUIRE_OK);
    assert_int_equal(facts.requests, 400);
    assert_true(facts.hit_rate_half > 0.0);
    assert_true(facts.hit_rate_half < facts.hit_rate);
    assert_true(facts.hit_rate < facts.hit_rate_double);
    assert_true(facts.hit_rate_double < facts.hit_rate_infinite);
    assert_int_equal(facts.distinct_bytes, trace.n_ids * 64000ull);
    assert_true(facts.gap_p50_us < facts.gap_p90_us && facts.gap_p90_us < facts.gap_p99_us);
    assert_true(facts.pinned_need_p99_bytes > 0.0);
    assert_true(facts.best_policy_hit_rate == 0.0);
    /* The simulator's LRU is the curve's. */
    ask.compares_policies = true;
    assert_int_equal(quire_tune_measure(&trace, &ask, &facts), QUIRE_OK);
    assert_true(facts.current_policy_hit_rate == facts.hit_rate);
    assert_true(facts.best_policy_hit_rate >= facts.hit_rate);
    ask.pinned_class_mask = 0;
    ask.token_bytes = 0.0;
    assert_int_equal(quire_tune_measure(&trace, &ask, &facts), QUIRE_OK);
    assert_true(facts.pinned_need_p99_bytes == 0.0 && facts.hit_rate == 0.0);
    quire_trace_fini(&trace);
}

/* The hit rate that the simulator has with that much memory. */
static double simulated(const quire_trace *trace, const quire_tune_ask *ask, double bytes)
{
    const quire_sim_opts opts = { .policy = QUIRE_EVICT_LRU,
                                  .kv = ask->kv,
                                  .capacity_bytes = (uint64_t)bytes,
                                  .seed = ask->seed };
    quire_sim_result result;
    double rate;

    assert_int_equal(quire_sim_run(trace, &opts, &result, NULL), QUIRE_OK);
    rate = (double)result.hit_blocks / (double)result.blocks;
    quire_sim_result_fini(&result);
    return rate;
}

/* With windows or states, rates are the simulator's. Windows and states take memory, which lowers
 * the hit rate. */
static void test_measure_windows_and_states(void **state)
{
    const workload_opts opts = { .n_requests = 300,
                                 .n_conversations = 30,
                                 .shared_blocks = 2,
                                 .turn_blocks_max = 5,
                                 .p_end = 0.1 };
    const quire_sim_kv kinds[] = {
        { .block_bytes = 64000, .window_bytes = 192000, .window_tokens = 128 },
        { .block_bytes = 64000, .state_bytes = 400000, .state_every_tokens = 256 },
    };
    const double memory = 100.0 * 64000.0;
    quire_rng rng = test_rng(42);
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 64);
    workload_conversations(&trace, &opts, &rng);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        quire_tune_ask ask = { .settings = usual(), .token_bytes = 1000.0, .seed = 3 };
        quire_tune_facts plain, facts;

        ask.settings.memory_bytes = (uint64_t)memory;
        assert_int_equal(quire_tune_measure(&trace, &ask, &plain), QUIRE_OK);
        ask.kv = kinds[i];
        ask.compares_policies = true;
        assert_int_equal(quire_tune_measure(&trace, &ask, &facts), QUIRE_OK);
        assert_true(facts.hit_rate == simulated(&trace, &ask, memory));
        assert_true(facts.hit_rate_half == simulated(&trace, &ask, memory / 2.0));
        assert_true(facts.hit_rate_double == simulated(&trace, &ask, 2.0 * memory));
        assert_true(facts.hit_rate_infinite == simulated(&trace, &ask, 1e12 / 4.0));
        assert_true(facts.current_policy_hit_rate == facts.hit_rate);
        assert_true(facts.hit_rate < plain.hit_rate);
        assert_true(facts.hit_rate < facts.hit_rate_double);
        /* As much memory as anyone could use, and less than a block. */
        ask.settings.memory_bytes = UINT64_C(250000000000);
        ask.compares_policies = false;
        assert_int_equal(quire_tune_measure(&trace, &ask, &facts), QUIRE_OK);
        assert_true(facts.hit_rate == facts.hit_rate_infinite);
        ask.settings.memory_bytes = 1000;
        assert_int_equal(quire_tune_measure(&trace, &ask, &facts), QUIRE_OK);
        assert_true(facts.hit_rate == 0.0 && facts.hit_rate_infinite > 0.0);
    }
    quire_trace_fini(&trace);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(quire_tune_knob_name(QUIRE_TUNE_TTL), "cache_ttl");
    assert_string_equal(quire_tune_knob_name(QUIRE_TUNE_KNOB_COUNT), "unknown");
}

static void test_durations(void **state)
{
    static const struct {
        uint64_t us;
        const char *text;
    } rows[] = { { 0, "0" },
                 { 1500, "1.5ms" },
                 { 1000000, "1s" },
                 { 179000000, "179s" },
                 { 720000000, "12m" },
                 { 86400000000, "24h" },
                 { 3 * 86400000000, "3d" },
                 { 2000 * 86400000000, "2000d" } };
    char text[QUIRE_DURATION_TEXT_MAX];
    uint64_t us;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_string_equal(quire_duration_text(rows[i].us, text), rows[i].text);
        assert_int_equal(quire_parse_duration(text, &us), QUIRE_OK);
        assert_int_equal(us, rows[i].us);
    }
    assert_int_equal(quire_duration_round_up(0), 0);
    assert_int_equal(quire_duration_round_up(1), 1000000);
    assert_int_equal(quire_duration_round_up(61 * 1000000), 2 * MINUTE);
    assert_int_equal(quire_duration_round_up(25 * 3600ull * 1000000), 48 * 3600ull * 1000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calm),
        cmocka_unit_test(test_share_moves_by_steps),
        cmocka_unit_test(test_swinging_moves_nothing),
        cmocka_unit_test(test_ttl),
        cmocka_unit_test(test_low_traffic),
        cmocka_unit_test(test_words_are_said_once),
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_measure_windows_and_states),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_durations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
