/* test_condensing_cascade.c - requests on one condensed text whose lanes keep different numbers of
 * tokens, side by side: they read its packed pages together, with the bits of a request by itself.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"

#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"

#include <stdio.h>
#include <string.h>

#define N_LONG  2640u /* tokens of a prompt */
#define CONTEXT 4096u
#define WIDE    512u /* tokens between two condensings */
#define TAIL    20u  /* last tokens, in which prompts differ */
#define N_SIDES 4u
#define DIFF    "keydiff:0.8,recent=60,floor=0.1,granule=64"
#define PREDICT "predict:0.8,recent=60,granule=64"

/* Prompt i of a text: prompts 0 and 3 are the same, and all have the first tokens in common. */
static void prompt_make(int32_t *prompt, uint64_t text, uint32_t i)
{
    tokens_make(prompt, N_LONG, text);
    tokens_make(prompt + N_LONG - TAIL, TAIL, 10 + i % 3);
}

static uint64_t n_saved(const engine_bench *b)
{
    return quire_packed_device_reads(b->engine->loop->lanes.device).n_saved;
}

/* Requests that run at once. */
typedef struct asked {
    const char *policy; /* NULL: none */
    uint64_t text;
} asked;

/* Each request by itself, then all at once, when n_readers of them need not read a split again. */
static void same_bits_of(const setting *s, const asked *all, uint32_t n_readers)
{
    static answer want[N_SIDES];
    static int32_t prompts[N_SIDES][N_LONG];
    engine_bench b = condense_bench(s);
    quire_request *requests[N_SIDES];
    gate *g;

    for (uint32_t i = 0; i < N_SIDES; i++) {
        prompt_make(prompts[i], all[i].text, i);
        (void)answer_take(&b, all[i].policy, prompts[i], N_LONG, &want[i]);
    }
    assert_memory_not_equal(want[0].logprobs, want[1].logprobs, sizeof want[0].logprobs);
    assert_int_equal(n_saved(&b), 0);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < N_SIDES; i++) {
        requests[i] = ask(&b, all[i].policy, prompts[i], N_LONG);
    }
    gate_open(g);
    for (uint32_t i = 0; i < N_SIDES; i++) {
        assert_true(answer_check(requests[i], &want[i]) >= N_LONG - TAIL - 64);
    }
    (void)printf("%s: %llu splits saved\n", s->policy, (unsigned long long)n_saved(&b));
    /* Each of 4 lanes has a whole split. */
    assert_true(n_saved(&b) >= (uint64_t)n_readers * 4 * (N_TOKENS - 1));
    assert_true(n_readers > 0 || n_saved(&b) == 0);
    validate(b.engine);
    bench_close(&b);
}

static void same_bits(const setting *s, uint32_t n_readers)
{
    const asked all[N_SIDES] = {
        { s->policy, 1 }, { s->policy, 1 }, { s->policy, 1 }, { s->policy, 1 }
    };

    same_bits_of(s, all, n_readers);
}

static void test_formats(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const setting s = { .policy = DIFF, .format = formats[i], .n_ctx = CONTEXT, .chunk = WIDE };

        same_bits(&s, N_SIDES - 1);
    }
}

/* A layer has two KV heads: cascades are cut for more than two threads. */
static void test_threads(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 5; n++) {
        const setting s = { .policy = PREDICT,
                            .format = QUIRE_FORMAT_F16,
                            .n_ctx = CONTEXT,
                            .chunk = WIDE,
                            .maps = 7,
                            .n_threads = n };

        same_bits(&s, n == 2 ? N_SIDES - 1 : 1);
    }
}

/* Two texts that take turns, and a request that keeps all tokens. */
static void test_two_texts(void **state)
{
    static const asked all[][N_SIDES] = {
        { { DIFF, 1 }, { DIFF, 2 }, { DIFF, 1 }, { DIFF, 2 } },
        { { DIFF, 1 }, { NULL, 1 }, { DIFF, 2 }, { DIFF, 1 } },
    };
    const setting s = {
        .policy = DIFF, .format = QUIRE_FORMAT_F16, .n_ctx = CONTEXT, .chunk = WIDE
    };

    (void)state;
    same_bits_of(&s, all[0], 2);
    same_bits_of(&s, all[1], 1);
}

/* Sequences have several rows in a step: the last tokens of their prompts. */
static void test_rows(void **state)
{
    const setting s = { .policy = DIFF,
                        .format = QUIRE_FORMAT_Q8,
                        .n_ctx = CONTEXT,
                        .chunk = WIDE,
                        .chunk_tokens = 12 };

    (void)state;
    same_bits(&s, N_SIDES - 1);
}

/* On a device with a queue the sequences share pages of the device's tables. */
static void test_on_a_device(void **state)
{
    const setting s = { .policy = DIFF,
                        .format = QUIRE_FORMAT_F16,
                        .n_ctx = CONTEXT,
                        .chunk = WIDE,
                        .device = "mock" };

    (void)state;
    same_bits(&s, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),     cmocka_unit_test(test_threads),
        cmocka_unit_test(test_two_texts),   cmocka_unit_test(test_rows),
        cmocka_unit_test(test_on_a_device),
    };

    return cmocka_run_group_tests_name("condensing_cascade", tests, NULL, NULL);
}
