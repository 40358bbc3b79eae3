/* test_condensing_device.c - requests whose lanes keep different numbers of tokens, with KV on a
 * mock device, whose kernels are the CPU's and whose pages the host reads by copies alone: the bits
 * of `quire run --retain` on the CPU, also beside plain requests, after an eviction and a restart;
 * a lost device; refusals.
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

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDE    256u /* tokens between two condensings */
#define N_SIDES 8u   /* requests side by side */
#define ENTROPY "entropy:0.4,recent=60,full_layers=none,granule=64"
#define SNAP    "snap:0.4,recent=60,floor=0.1,granule=64"
#define REPEAT  "reconstruct:0.4,recent=60,repeat=100,granule=64"
#define PREDICT "predict:0.4,recent=60,granule=64"
#define EXPECT  "expected:0.4,recent=60,granule=64"
#define HEAVY   "heavy:0.4,recent=60,granule=64"

static void same_bits(const setting *s)
{
    const setting plain = { .format = s->format,
                            .v_format = s->v_format,
                            .has_v_format = s->has_v_format };
    static answer want, want_short, want_plain;
    engine_bench b = condense_bench(s);
    int32_t text[N_PROMPT];
    uint64_t n_condensed;

    tokens_make(text, N_PROMPT, 1);
    expect(&b, s, text, N_PROMPT, &want);
    expect(&b, s, text, 2 * WIDE + 1, &want_short);
    expect(&b, &plain, text, N_PROMPT, &want_plain);
    assert_memory_not_equal(want.logprobs, want_plain.logprobs, sizeof want.logprobs);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), 0);
    n_condensed = stats_now(b.engine).condensings_total;
    assert_int_equal(n_condensed, (N_PROMPT + N_TOKENS - 2) / WIDE);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), N_PROMPT - 1);
    assert_int_equal(check(&b, s->policy, text, 2 * WIDE + 1, &want_short), 2 * WIDE);
    assert_int_equal(check(&b, NULL, text, N_PROMPT, &want_plain), WIDE);
    assert_int_equal(stats_now(b.engine).condensings_total, n_condensed);
    validate(b.engine);
    bench_close(&b);
}

static void test_answers(void **state)
{
    static const setting settings[] = {
        { .policy = ENTROPY, .format = QUIRE_FORMAT_F16 },
        { .policy = SNAP, .format = QUIRE_FORMAT_Q8, .chunk_tokens = 70 },
        { .policy = REPEAT, .format = QUIRE_FORMAT_F32, .chunk_tokens = 50 },
        { .policy = PREDICT, .format = QUIRE_FORMAT_BF16, .maps = 1 },
        { .policy = EXPECT, .format = QUIRE_FORMAT_F16 },
        { .policy = HEAVY, .format = QUIRE_FORMAT_F16, .chunk_tokens = 70 },
        { .policy = "keydiff:0.6,recent=60,full_layers=0,granule=64",
          .format = QUIRE_FORMAT_F16,
          .v_format = QUIRE_FORMAT_Q8,
          .has_v_format = true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        setting s = settings[i];

        s.chunk = WIDE;
        s.device = "mock";
        same_bits(&s);
    }
}

/* Policies by lane, an even one and plain requests take turns in the device's plan, in memory for
 * little more than one context. */
static void test_side_by_side(void **state)
{
    static const char *const policies[N_SIDES] = {
        ENTROPY, PREDICT, NULL, "keydiff:0.5,recent=32", SNAP, REPEAT, EXPECT, HEAVY
    };
    const setting s = {
        .format = QUIRE_FORMAT_F16, .chunk = WIDE, .n_pages = 24, .maps = 1, .device = "mock"
    };
    static answer want[N_SIDES];
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    for (uint32_t i = 0; i < N_SIDES; i++) {
        const setting one = {
            .policy = policies[i], .format = s.format, .chunk = WIDE, .maps = s.maps
        };

        expect(&b, &one, text, N_PROMPT, &want[i]);
    }
    check_side_by_side(&b, &(sides){ policies, want, N_SIDES, text, N_PROMPT }, 2);
    validate(b.engine);
    bench_close(&b);
}

/* The pages have all that another process needs, and the device gets them back as they were. */
static void test_restart(void **state)
{
    static const char *const policies[] = { ENTROPY, REPEAT };

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        setting s = {
            .policy = policies[i], .format = QUIRE_FORMAT_F16, .chunk = WIDE, .device = "mock"
        };
        mem_disk *disk = mem_disk_new();
        static answer want;
        engine_bench b;
        int32_t text[N_PROMPT];

        tokens_make(text, N_PROMPT, 1);
        s.store = mem_disk_store(disk);
        b = condense_bench(&s);
        expect(&b, &s, text, N_PROMPT, &want);
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
        bench_close(&b);
        s.store = mem_disk_store(disk);
        b = condense_bench(&s);
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_PROMPT / 64 * 64);
        assert_int_equal(stats_now(b.engine).condensings_total, 0);
        validate(b.engine);
        bench_close(&b);
        mem_disk_free(disk);
    }
}

/* A copy fails, of keys that rows look at or of a condensing: all requests fail. */
static void test_a_device_is_lost(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        const setting s = { .format = QUIRE_FORMAT_F16, .chunk = WIDE, .device = "mock" };
        const quire_mock_device_opts faults = { .seed = i, .copy_failure = 0.05 };
        engine_bench b = condense_bench(&s);
        quire_request *requests[2];
        int32_t text[N_PROMPT];
        gate *g = gate_close(b.engine);

        tokens_make(text, N_PROMPT, 1);
        requests[0] = ask(&b, i % 2 == 0 ? REPEAT : HEAVY, text, N_PROMPT);
        requests[1] = ask(&b, SNAP, text, N_PROMPT);
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

/* Another rounding: log-probabilities near the CPU's as long as the tokens are the same, of a
 * policy whose choice no rounding changes, and of others for the first tokens at least. (Products
 * with weights in 8 bits round the rows, so a small difference may become a step of that rounding.)
 * A hit gives the bits of a miss. */
static void test_on_vulkan(void **state)
{
    static const struct {
        const char *policy;
        uint32_t n_least; /* tokens that are compared */
    } cases[] = { { "stride:0.6,recent=60,full_layers=0,granule=64", 20 },
                  { SNAP, 1 },
                  { REPEAT, 1 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && condense_has_vulkan(); i++) {
        const setting s = { .policy = cases[i].policy,
                            .format = QUIRE_FORMAT_F16,
                            .chunk = WIDE,
                            .device = "vulkan0" };
        static answer want, got;
        engine_bench b = condense_bench(&s);
        int32_t text[N_PROMPT];
        uint32_t n = 0;

        tokens_make(text, N_PROMPT, 1);
        expect(&b, &s, text, N_PROMPT, &want);
        assert_int_equal(answer_take(&b, s.policy, text, N_PROMPT, &got), 0);
        while (n < N_TOKENS && got.tokens[n] == want.tokens[n]) {
            assert_true(fabsf(got.logprobs[n] - want.logprobs[n]) < 5e-2f);
            n++;
        }
        assert_true(n >= cases[i].n_least);
        assert_memory_not_equal(got.logprobs, want.logprobs, sizeof got.logprobs);
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &got), N_PROMPT - 1);
        assert_true(stats_now(b.engine).condensings_total > 0);
        validate(b.engine);
        bench_close(&b);
    }
}

static void refused_as(const setting *s, const char *policy, int status, const char *says)
{
    engine_bench b = condense_bench(s);
    quire_request_params params = params_greedy((const int32_t[]){ 1, 2 }, 2, 1);
    const quire_retain_spec spec = spec_of(policy);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request = NULL;

    params.retain = &spec;
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), status);
    if (strstr(err.message, says) == NULL) {
        fail_msg("%s", err.message);
    }
    bench_close(&b);
}

static void refused(const setting *s, const char *policy, const char *says)
{
    refused_as(s, policy, QUIRE_UNSUPP, says);
}

/* A lane that keeps all tokens has no room for a part behind them in its table, where the CPU has
 * room: there tables are longer, and the kept pages are few. */
static void test_room(void **state)
{
    static const char policy[] = "reconstruct:0.3,recent=60,repeat=250,granule=64";
    setting s = { .policy = policy, .format = QUIRE_FORMAT_F16, .chunk = WIDE };
    static answer got;
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(answer_take(&b, policy, text, N_PROMPT, &got), 0);
    bench_close(&b);
    s.device = "mock";
    refused_as(&s, policy, QUIRE_INVAL,
               "needs room for 306 tokens behind the text, which a context");
    refused_as(&s, policy, QUIRE_INVAL, ": a smaller repeat or another --retain-chunk is needed");
}

static void test_refusals(void **state)
{
    const setting wide = {
        .format = QUIRE_FORMAT_F16, .chunk = WIDE, .page_tokens = 128, .device = "mock"
    };

    (void)state;
    refused(&wide, "snap:0.5,recent=32",
            "retain: snap keeps another number of tokens in each lane (so do floor below 1 and "
            "full_layers), and on device mock such tokens cannot be kept in pages of more than 64 "
            "tokens: there keydiff, window, last, stride and random work");
    refused(&wide, "keydiff:0.5,floor=0.5", "retain: keydiff keeps another number of tokens in");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),          cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_restart),          cmocka_unit_test(test_on_vulkan),
        cmocka_unit_test(test_a_device_is_lost), cmocka_unit_test(test_room),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
