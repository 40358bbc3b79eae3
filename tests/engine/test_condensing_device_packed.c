/* test_condensing_device_packed.c - texts that keep a share of their tokens in q6 to q3 and in
 * models with windows, with KV on a mock device, whose kernels are the CPU's and whose pages the
 * host reads by copies alone: the bits of the CPU after a miss and a hit, beside other requests and
 * after a restart; a share of pages that is read in q6 to q3; a lost device; refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"
#include "mem_disk.h"

#include "device/mock_device.h"

#include <stdio.h>
#include <string.h>

#define WIDE  256u /* tokens between two condensings */
#define SHARE 0.4

static const int32_t windows[4] = { 100, 0, 100, 0 };

static const char *const policies[] = {
    "keydiff:0.5,recent=60",        "entropy:0.5,recent=60,full_layers=none",
    "snap:0.5,recent=60,floor=0.1", "reconstruct:0.5,recent=60,repeat=100",
    "predict:0.5,recent=60",        "expected:0.5,recent=60",
    "heavy:0.5,recent=60"
};
#define N_POLICIES (sizeof policies / sizeof policies[0])

static engine_bench bench_on(const setting *s, const char *device)
{
    setting on = *s;

    on.device = device;
    return condense_bench(&on);
}

/* The answer of the CPU for a text that nothing was cached of. */
static void cpu_answer(const setting *s, const int32_t *text, uint32_t n_prompt, answer *want)
{
    setting cpu = *s;

    cpu.device = NULL;
    condense_miss(&cpu, text, n_prompt, want);
}

static void same_bits(const setting *s)
{
    static answer want, want_short;
    engine_bench b;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    cpu_answer(s, text, N_PROMPT, &want);
    cpu_answer(s, text, 2 * WIDE + 1, &want_short);
    b = bench_on(s, "mock");
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), 0);
    assert_int_equal(stats_now(b.engine).condensings_total, 2);
    assert_true(check(&b, s->policy, text, N_PROMPT, &want) >= 2 * WIDE);
    assert_int_equal(check(&b, s->policy, text, 2 * WIDE + 1, &want_short), 2 * WIDE);
    assert_int_equal(stats_now(b.engine).condensings_total, 2);
    validate(b.engine);
    bench_close(&b);
}

/* Hits in the middle of a chunk have the bits of a miss without recent tokens in 8 bits. */
static setting setting_of(const char *policy, quire_format format)
{
    return (setting){
        .policy = policy, .format = format, .chunk = WIDE, .maps = 1, .has_kv_recent = true
    };
}

static void test_sealed(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q3, QUIRE_FORMAT_Q5,
                                            QUIRE_FORMAT_Q6 };

    (void)state;
    for (size_t i = 0; i < N_POLICIES; i++) {
        setting s = setting_of(policies[i], formats[i % 4]);

        s.chunk_tokens = i % 2 == 0 ? 70 : 0;
        s.n_threads = (uint32_t)(i % 3); /* of which one has the device */
        same_bits(&s);
    }
}

/* One side sealed, and tiles of K and V of different sizes. */
static void test_pairs_of_formats(void **state)
{
    static const struct {
        quire_format k, v;
    } pairs[] = { { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 },
                  { QUIRE_FORMAT_Q4, QUIRE_FORMAT_F16 },
                  { QUIRE_FORMAT_Q5, QUIRE_FORMAT_Q3 } };

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        setting s =
            setting_of(i == 0 ? "heavy:0.5,recent=60" : "snap:0.5,recent=60,floor=0.1", pairs[i].k);

        s.has_v_format = true;
        s.v_format = pairs[i].v;
        same_bits(&s);
    }
}

/* Tokens behind the last place are read in 8 bits. */
static void test_recent(void **state)
{
    const setting s = { .policy = "keydiff:0.5,recent=60",
                        .format = QUIRE_FORMAT_Q4,
                        .chunk = WIDE,
                        .has_kv_recent = true,
                        .kv_recent = 128 };
    static answer want;
    engine_bench b;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    cpu_answer(&s, text, N_PROMPT, &want);
    b = bench_on(&s, "mock");
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
    validate(b.engine);
    bench_close(&b);
}

static void test_windows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_POLICIES; i++) {
        setting s = setting_of(policies[i], QUIRE_FORMAT_F16);

        s.windows = windows;
        s.chunk_tokens = i % 2 == 0 ? 70 : 0;
        same_bits(&s);
        s.format = i % 2 == 0 ? QUIRE_FORMAT_Q4 : QUIRE_FORMAT_Q8;
        same_bits(&s);
    }
}

/* All policies and a plain text take turns in the device's plan, in memory for few contexts. */
static void side_by_side(const setting *s)
{
    static answer want[N_POLICIES + 1];
    const char *asked[N_POLICIES + 1] = { NULL };
    engine_bench b;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    for (uint32_t i = 0; i <= N_POLICIES; i++) {
        setting one = *s;

        one.policy = asked[i] = i < N_POLICIES ? policies[i] : NULL;
        cpu_answer(&one, text, N_PROMPT, &want[i]);
    }
    b = bench_on(s, "mock");
    check_side_by_side(&b, &(sides){ asked, want, N_POLICIES + 1, text, N_PROMPT }, 2);
    validate(b.engine);
    bench_close(&b);
}

static void test_side_by_side(void **state)
{
    setting s = setting_of(NULL, QUIRE_FORMAT_Q4);

    (void)state;
    s.n_pages = 60;
    side_by_side(&s);
    s.windows = windows;
    side_by_side(&s);
    s.format = QUIRE_FORMAT_F16;
    s.n_pages = 30;
    side_by_side(&s);
}

static void test_restart(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        setting s = setting_of(policies[i], QUIRE_FORMAT_Q4);
        mem_disk *disk = mem_disk_new();
        static answer want;
        engine_bench b;
        int32_t text[N_PROMPT];

        s.windows = i % 2 == 0 ? windows : NULL;
        tokens_make(text, N_PROMPT, 1);
        cpu_answer(&s, text, N_PROMPT, &want);
        s.store = mem_disk_store(disk);
        b = bench_on(&s, "mock");
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
        bench_close(&b);
        s.store = mem_disk_store(disk);
        b = bench_on(&s, "mock");
        assert_true(check(&b, s.policy, text, N_PROMPT, &want) >= 2 * WIDE);
        assert_int_equal(stats_now(b.engine).condensings_total, 0);
        validate(b.engine);
        bench_close(&b);
        mem_disk_free(disk);
    }
}

/* Generated tokens read a share of the pages, beside a text that keeps a share of its tokens. */
static void test_attending(void **state)
{
    static const struct {
        quire_format k, v;
    } pairs[] = { { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4 },
                  { QUIRE_FORMAT_Q3, QUIRE_FORMAT_F16 },
                  { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q5 } };
    static const int32_t none[4] = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const setting s = { .format = pairs[i].k,
                            .v_format = pairs[i].v,
                            .has_v_format = true,
                            .attend_share = SHARE,
                            .chunk = WIDE,
                            .windows = none,
                            .has_kv_recent = i > 0 };
        static answer want, kept;
        quire_request *requests[2];
        int32_t text[N_PROMPT];
        engine_bench b;
        gate *g;

        tokens_make(text, N_PROMPT, 12);
        b = condense_bench(&s);
        (void)answer_read(ask_attending(&b, SHARE, text, N_PROMPT), &want);
        bench_close(&b);
        b = condense_bench(&s);
        (void)answer_take(&b, policies[0], text, N_PROMPT, &kept);
        bench_close(&b);
        b = bench_on(&s, "mock");
        g = gate_close(b.engine);
        requests[0] = ask_attending(&b, SHARE, text, N_PROMPT);
        requests[1] = ask(&b, policies[0], text, N_PROMPT);
        gate_open(g);
        assert_int_equal(answer_check(requests[0], &want), 0);
        (void)answer_check(requests[1], &kept);
        if (s.has_kv_recent) {
            assert_int_equal(answer_check(ask_attending(&b, SHARE, text, N_PROMPT), &want),
                             N_PROMPT / 64 * 64);
        }
        assert_true(stats_now(b.engine).attend_left_pages_total > 0);
        validate(b.engine);
        bench_close(&b);
    }
}

/* A copy fails, of a condensing, of keys that rows look at or of a window's pages. */
static void test_a_device_is_lost(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        const quire_mock_device_opts faults = { .seed = i, .copy_failure = 0.05 };
        setting s = setting_of(NULL, i % 3 == 0 ? QUIRE_FORMAT_F16 : QUIRE_FORMAT_Q4);
        quire_request *requests[2];
        int32_t text[N_PROMPT];
        engine_bench b;
        gate *g;

        s.windows = i % 3 < 2 ? windows : NULL;
        b = bench_on(&s, "mock");
        g = gate_close(b.engine);
        tokens_make(text, N_PROMPT, 1);
        requests[0] = ask(&b, policies[i % 2 == 0 ? 3 : 6], text, N_PROMPT);
        requests[1] = ask(&b, policies[0], text, N_PROMPT);
        quire_mock_device_set(condense_mock, &faults); /* its thread waits at the gate */
        gate_open(g);
        for (uint32_t r = 0; r < 2; r++) {
            finish_as(requests[r], QUIRE_FINISH_ERROR);
        }
        assert_true(quire_engine_is_lost(b.engine));
        validate(b.engine);
        bench_close(&b);
    }
}

/* Another rounding: a hit gives the bits of a miss, also beside other requests. */
static void test_on_vulkan(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2 && condense_has_vulkan(); i++) {
        setting s = setting_of(policies[2 * i], i == 0 ? QUIRE_FORMAT_Q4 : QUIRE_FORMAT_F16);
        static answer want;
        quire_request *requests[2];
        int32_t text[N_PROMPT];
        engine_bench b;
        gate *g;

        s.windows = i == 1 ? windows : NULL;
        tokens_make(text, N_PROMPT, 1);
        b = bench_on(&s, "vulkan0");
        assert_int_equal(answer_take(&b, s.policy, text, N_PROMPT, &want), 0);
        assert_int_equal(stats_now(b.engine).condensings_total, 2);
        g = gate_close(b.engine);
        requests[0] = ask(&b, s.policy, text, N_PROMPT);
        requests[1] = ask(&b, NULL, text, N_PROMPT);
        gate_open(g);
        assert_true(answer_check(requests[0], &want) >= 2 * WIDE);
        finish_as(requests[1], QUIRE_FINISH_LENGTH);
        validate(b.engine);
        bench_close(&b);
    }
}

static void test_refusals(void **state)
{
    const setting cases[] = {
        { .format = QUIRE_FORMAT_Q4, .page_tokens = 128, .chunk = WIDE, .device = "mock" },
        { .format = QUIRE_FORMAT_F16,
          .page_tokens = 128,
          .chunk = WIDE,
          .windows = windows,
          .device = "mock" },
    };
    static const char *const says[] = {
        "retain: keydiff keeps tokens in q6 to q3 in tiles that are packed, and on device mock "
        "these cannot be kept in pages of more than 64 tokens",
        "retain: keydiff keeps tokens beside layers with windows in tiles that are packed, and on"
    };
    const quire_retain_spec spec = spec_of(KEYDIFF);

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        engine_bench b = condense_bench(&cases[i]);
        quire_request_params params = params_greedy((const int32_t[]){ 1, 2 }, 2, 1);
        quire_error err = QUIRE_ERROR_INIT;
        quire_request *request;

        params.retain = &spec;
        assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_UNSUPP);
        if (strstr(err.message, says[i]) == NULL) {
            fail_msg("%s", err.message);
        }
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sealed),           cmocka_unit_test(test_pairs_of_formats),
        cmocka_unit_test(test_recent),           cmocka_unit_test(test_windows),
        cmocka_unit_test(test_side_by_side),     cmocka_unit_test(test_restart),
        cmocka_unit_test(test_attending),        cmocka_unit_test(test_on_vulkan),
        cmocka_unit_test(test_a_device_is_lost), cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
