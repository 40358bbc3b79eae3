/* test_attending_device.c - requests whose generated tokens read a share of the pages, with KV on a
 * mock device, whose kernels are the CPU's and whose pages the host reads by copies alone: the bits
 * of `quire run --attend` on the CPU after a miss, a hit, a preemption and a restart, also beside
 * plain requests; a lost device; refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "attend_kit.h"
#include "mem_disk.h"

#include "device/mock_device.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"

#include <string.h>

#define N_SIDES 6u /* requests side by side */

static void test_answers(void **state)
{
    static const setting settings[] = {
        { .format = QUIRE_FORMAT_F32, .attend_share = SHARE },
        { .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .chunk_tokens = 50 },
        { .format = QUIRE_FORMAT_BF16, .attend_share = SHARE, .chunk_tokens = 600 },
        { .format = QUIRE_FORMAT_Q8, .attend_share = SHARE, .chunk_tokens = 70 },
        { .format = QUIRE_FORMAT_F16,
          .v_format = QUIRE_FORMAT_Q8,
          .has_v_format = true,
          .attend_share = SHARE },
        /* Threads make bounds while one has the device. */
        { .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .chunk_tokens = 600, .n_threads = 3 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        setting s = settings[i];

        s.device = "mock";
        attend_same_bits(&s);
    }
}

/* The engine stands still. */
static void preempt(quire_loop *loop)
{
    quire_request *r = loop->set.running[0];

    quire_loop_preempt(loop, r);
    r->wait.blocked_at = 0; /* as if pages had been released since */
}

/* Tokens that are computed again come in steps of several rows, each of which chooses by itself. */
static void test_preempted(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_Q8, .attend_share = SHARE, .device = "mock" };
    static attended t;
    engine_bench b = condense_bench(&s);
    quire_request *request;
    gate *g;

    (void)state;
    attended_make(&b, &s, 3, &t);
    g = gate_close(b.engine);
    request = ask_attending(&b, SHARE, t.tokens, N_PROMPT);
    while (b.engine->loop->set.n_running == 0 ||
           b.engine->loop->set.running[0]->n_tokens < N_PROMPT + 45) {
        gate_step(g);
    }
    preempt(b.engine->loop);
    gate_open(g);
    assert_int_equal(answer_check(request, &t.some), 0);
    assert_int_equal(stats_now(b.engine).preemptions_total, 1);
    assert_true(stats_now(b.engine).recomputed_tokens_total >= 44);
    validate(b.engine);
    bench_close(&b);
}

/* Requests of both kinds in the same steps, with memory for two texts. */
static void test_side_by_side(void **state)
{
    static const setting s = {
        .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .n_pages = 26, .device = "mock"
    };
    static attended texts[2];
    quire_request *requests[N_SIDES];
    engine_bench b = condense_bench(&s);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        attended_make(&b, &s, 4 + i, &texts[i]);
    }
    for (uint32_t i = 0; i < N_SIDES; i++) {
        requests[i] = ask_attending(&b, i % 3 == 0 ? 0 : SHARE, texts[i % 2].tokens, N_PROMPT);
    }
    for (uint32_t i = 0; i < N_SIDES; i++) {
        (void)answer_check(requests[i], i % 3 == 0 ? &texts[i % 2].all : &texts[i % 2].some);
    }
    validate(b.engine);
    bench_close(&b);
}

/* Condensed texts lie in pages with bounds, which they do not use. */
static void test_beside_retain(void **state)
{
    static const char *const policies[] = { KEYDIFF, "snap:0.4,recent=60,floor=0.1,granule=64" };
    static const setting s = {
        .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .chunk = 256, .device = "mock"
    };
    setting kept = { .format = QUIRE_FORMAT_F16, .chunk = 256 };
    static answer want[2];
    static attended t;
    engine_bench b = condense_bench(&s);

    (void)state;
    attended_make(&b, &s, 8, &t);
    for (uint32_t i = 0; i < 2; i++) {
        kept.policy = policies[i];
        expect(&b, &kept, t.tokens, N_PROMPT, &want[i]);
    }
    for (uint32_t round = 0; round < 2; round++) {
        gate *g = gate_close(b.engine);
        quire_request *requests[3];

        for (uint32_t i = 0; i < 2; i++) {
            requests[i] = ask(&b, policies[i], t.tokens, N_PROMPT);
        }
        requests[2] = ask_attending(&b, SHARE, t.tokens, N_PROMPT);
        gate_open(g);
        for (uint32_t i = 0; i < 2; i++) {
            (void)answer_check(requests[i], &want[i]);
        }
        (void)answer_check(requests[2], &t.some);
    }
    validate(b.engine);
    bench_close(&b);
}

/* Bounds go to the store with their pages, and come back with them. */
static void test_restart(void **state)
{
    setting s = { .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .device = "mock" };
    mem_disk *disk = mem_disk_new();
    static attended t;
    engine_bench b;

    (void)state;
    s.store = mem_disk_store(disk);
    b = condense_bench(&s);
    attended_make(&b, &s, 6, &t);
    assert_int_equal(check_all(&b, &t), 0);
    bench_close(&b);
    s.store = mem_disk_store(disk);
    b = condense_bench(&s);
    assert_int_equal(check_some(&b, &t), N_PROMPT / 64 * 64);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

/* A copy of keys or of bounds fails, of a prompt or of an answer: all requests fail. */
static void test_a_device_is_lost(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_F16,
                               .attend_share = SHARE,
                               .device = "mock" };

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const quire_mock_device_opts faults = { .seed = i, .copy_failure = 0.02 };
        engine_bench b = condense_bench(&s);
        quire_request *requests[2];
        int32_t tokens[N_PROMPT];
        gate *g = gate_close(b.engine);

        tokens_make(tokens, N_PROMPT, 1);
        requests[0] = ask_attending(&b, SHARE, tokens, N_PROMPT);
        requests[1] = ask_attending(&b, 0, tokens, N_PROMPT);
        while (i >= 2 && (b.engine->loop->set.n_running == 0 ||
                          b.engine->loop->set.running[0]->n_tokens == N_PROMPT)) {
            gate_step(g); /* up to the answer */
        }
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

/* Another rounding: a share that leaves no page out has the bits of a plain request there, and a
 * hit has those of a miss. */
static void test_on_vulkan(void **state)
{
    const setting s = { .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .device = "vulkan0" };
    static answer all, some;
    int32_t tokens[N_PROMPT];
    engine_bench b;

    (void)state;
    if (!condense_has_vulkan()) {
        return;
    }
    b = condense_bench(&s);
    tokens_make(tokens, N_PROMPT, 1);
    assert_int_equal(answer_read(ask_attending(&b, SHARE, tokens, N_PROMPT), &some), 0);
    assert_int_equal(answer_take(&b, NULL, tokens, N_PROMPT, &all), N_PROMPT - 1);
    assert_memory_not_equal(some.logprobs, all.logprobs, sizeof some.logprobs);
    assert_int_equal(answer_check(ask_attending(&b, SHARE, tokens, N_PROMPT), &some), N_PROMPT - 1);
    assert_int_equal(answer_check(ask_attending(&b, 0.99, tokens, N_PROMPT), &all), N_PROMPT - 1);
    validate(b.engine);
    bench_close(&b);
}

static void refuse(const setting *s, const char *says)
{
    engine_bench b = condense_bench(s);
    quire_request_params params = params_greedy((const int32_t[]){ 1, 2 }, 2, 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;

    params.attend_share = SHARE;
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_UNSUPP);
    if (strstr(err.message, says) == NULL) {
        fail_msg("%s", err.message);
    }
    bench_close(&b);
}

static void test_refused(void **state)
{
    const setting wide = {
        .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .page_tokens = 128, .device = "mock"
    };

    (void)state;
    refuse(&wide, "attend: cannot go with KV on device mock in pages of more than 64 tokens: there "
                  "tokens cannot choose pages");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),          cmocka_unit_test(test_preempted),
        cmocka_unit_test(test_side_by_side),     cmocka_unit_test(test_beside_retain),
        cmocka_unit_test(test_restart),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_a_device_is_lost), cmocka_unit_test(test_on_vulkan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
