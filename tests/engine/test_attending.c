/* test_attending.c - requests whose generated tokens read a share of the pages: the bits of `quire
 * run --attend` after a miss, a hit, a preemption and a restart, with plain requests beside them
 * that share pages and their bounds; published pages, and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "attend_kit.h"
#include "mem_disk.h"

#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"

#include <string.h>

#define N_SIDES 6u /* requests side by side */

static void test_answers(void **state)
{
    static const setting settings[] = {
        { .format = QUIRE_FORMAT_F32, .attend_share = SHARE },
        { .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .chunk_tokens = 50 },
        { .format = QUIRE_FORMAT_BF16, .attend_share = SHARE, .page_tokens = 128 },
        { .format = QUIRE_FORMAT_Q8, .attend_share = SHARE, .chunk_tokens = 70 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        attend_same_bits(&settings[i]);
    }
}

/* The last token of a prompt reads all pages, also where it is alone in a step: of the prompt, or
 * behind cached tokens. */
static void test_last_tokens(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_F16, .attend_share = SHARE };
    static answer want, longer;
    const uint32_t n = 4 * CHUNK + 1; /* quire run computes it in steps of CHUNK */
    int32_t tokens[N_PROMPT];
    engine_bench b = condense_bench(&s);

    (void)state;
    tokens_make(tokens, N_PROMPT, 9);
    expect(&b, &s, tokens, n, &want);
    expect(&b, &s, tokens, n + 1, &longer);
    assert_int_equal(answer_check(ask_attending(&b, SHARE, tokens, n), &want), 0);
    assert_int_equal(answer_check(ask_attending(&b, SHARE, tokens, n), &want), n - 1);
    assert_int_equal(answer_check(ask_attending(&b, SHARE, tokens, n + 1), &longer), n);
    validate(b.engine);
    bench_close(&b);
}

/* Tokens that were generated with a share are in no other request's text: the next turn computes
 * them, as a server would that never saw the first one. */
static void test_private(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_F16, .attend_share = SHARE };
    const uint32_t n_next = N_PROMPT + N_TOKENS;
    static attended t;
    static answer next;
    engine_bench b = condense_bench(&s);

    (void)state;
    attended_make(&b, &s, 2, &t);
    memcpy(t.tokens + N_PROMPT, t.some.tokens, sizeof t.some.tokens);
    expect(&b, &s, t.tokens, n_next, &next);
    assert_int_equal(check_some(&b, &t), 0);
    assert_int_equal(answer_check(ask_attending(&b, SHARE, t.tokens, n_next), &next), N_PROMPT);
    /* Now the first answer is cached as a part of a prompt. Tokens of a prompt read all pages. */
    assert_int_equal(check_some(&b, &t), N_PROMPT - 1);
    validate(b.engine);
    bench_close(&b);
}

/* The engine stands still. */
static void preempt(quire_loop *loop)
{
    quire_request *r = loop->set.running[0];

    quire_loop_preempt(loop, r);
    r->wait.blocked_at = 0; /* as if pages had been released since */
}

/* A request that was preempted computes the tokens of its answer again in steps of several rows,
 * each of which chooses pages by itself. */
static void test_preempted(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_Q8, .attend_share = SHARE };
    static attended t;
    static answer next;
    engine_bench b = condense_bench(&s);

    (void)state;
    attended_make(&b, &s, 3, &t);
    for (uint32_t i = 0; i < 2; i++) {
        gate *g = gate_close(b.engine);
        quire_request *request = ask_attending(&b, SHARE, t.tokens, N_PROMPT);

        while (b.engine->loop->set.n_running == 0 ||
               b.engine->loop->set.running[0]->n_tokens < N_PROMPT + 40) {
            gate_step(g);
        }
        preempt(b.engine->loop);
        gate_open(g);
        assert_int_equal(answer_check(request, &t.some), i == 0 ? 0 : N_PROMPT - 1);
        assert_int_equal(stats_now(b.engine).preemptions_total, 1 + i);
        assert_true(stats_now(b.engine).recomputed_tokens_total >= 39 * (1 + i));
        /* The second time a plain request has the same text as a prompt. */
        memcpy(t.tokens + N_PROMPT, t.some.tokens, sizeof t.some.tokens);
        if (i == 0) {
            expect(&b, &(setting){ .format = s.format }, t.tokens, N_PROMPT + 50, &next);
            (void)check(&b, NULL, t.tokens, N_PROMPT + 50, &next);
        }
    }
    validate(b.engine);
    bench_close(&b);
}

/* Formats that are coded by 64 tokens: tiles near the end and near the beginning are read in 8
 * bits, as those of plain requests. A share that leaves no page out has the bits of plain requests.
 */
static void sealed(const setting *s)
{
    setting plain = *s;
    static answer all, some;
    int32_t tokens[N_PROMPT];
    quire_engine_stats stats;
    engine_bench b;

    plain.attend_share = 0;
    plain.windows = (const int32_t[4]){ 0 };
    tokens_make(tokens, N_PROMPT, 12);
    b = condense_bench(&plain);
    (void)answer_take(&b, NULL, tokens, N_PROMPT, &all);
    bench_close(&b);
    b = condense_bench(s);
    assert_int_equal(answer_check(ask_attending(&b, 0.99, tokens, N_PROMPT), &all), 0);
    stats = stats_now(b.engine);
    assert_true(stats.attend_read_pages_total > 0);
    assert_int_equal(stats.attend_left_pages_total, 0);
    bench_close(&b);
    b = condense_bench(s);
    expect(&b, s, tokens, N_PROMPT, &some);
    (void)answer_check(ask_attending(&b, SHARE, tokens, N_PROMPT), &some);
    assert_memory_not_equal(some.logprobs, all.logprobs, sizeof some.logprobs);
    stats = stats_now(b.engine);
    assert_true(stats.attend_left_pages_total > stats.attend_read_pages_total);
    if (s->has_kv_recent) { /* a hit has no tokens in 8 bits */
        assert_int_equal(answer_check(ask_attending(&b, SHARE, tokens, N_PROMPT), &some),
                         N_PROMPT / 64 * 64);
        assert_int_equal(check(&b, NULL, tokens, N_PROMPT, &all), N_PROMPT / 64 * 64);
    }
    validate(b.engine);
    bench_close(&b);
}

static void test_sealed(void **state)
{
    static const setting settings[] = {
        { .format = QUIRE_FORMAT_Q4, .attend_share = SHARE, .has_kv_recent = true },
        { .format = QUIRE_FORMAT_Q3, .attend_share = SHARE, .chunk_tokens = 70 },
        { .format = QUIRE_FORMAT_Q6,
          .attend_share = SHARE,
          .page_tokens = 128,
          .chunk_tokens = 100 },
        { .format = QUIRE_FORMAT_Q4,
          .v_format = QUIRE_FORMAT_F16,
          .has_v_format = true,
          .attend_share = SHARE,
          .has_kv_recent = true },
        { .format = QUIRE_FORMAT_Q8,
          .v_format = QUIRE_FORMAT_Q5,
          .has_v_format = true,
          .attend_share = SHARE },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        sealed(&settings[i]);
    }
}

/* A request of a sealed format that was preempted gives the same answer. */
static void test_sealed_preempted(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_Q4,
                               .attend_share = SHARE,
                               .has_kv_recent = true };
    static answer want;
    engine_bench b = condense_bench(&s);
    int32_t tokens[N_PROMPT];
    quire_request *request;
    gate *g;

    (void)state;
    tokens_make(tokens, N_PROMPT, 13);
    (void)answer_read(ask_attending(&b, SHARE, tokens, N_PROMPT), &want);
    g = gate_close(b.engine);
    request = ask_attending(&b, SHARE, tokens, N_PROMPT);
    while (b.engine->loop->set.n_running == 0 ||
           b.engine->loop->set.running[0]->n_tokens < N_PROMPT + 50) {
        gate_step(g);
    }
    preempt(b.engine->loop);
    gate_open(g);
    (void)answer_check(request, &want);
    assert_int_equal(stats_now(b.engine).preemptions_total, 1);
    validate(b.engine);
    bench_close(&b);
}

/* Requests of both kinds in the same steps, with memory for two texts. */
static void test_side_by_side(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .n_pages = 26 };
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
    static const setting s = { .format = QUIRE_FORMAT_F16, .attend_share = SHARE, .chunk = 256 };
    setting kept = { .format = QUIRE_FORMAT_F16, .chunk = 256 };
    static answer want;
    static attended t;
    engine_bench b = condense_bench(&s);

    (void)state;
    attended_make(&b, &s, 8, &t);
    for (uint32_t i = 0; i < 2; i++) {
        kept.policy = policies[i];
        expect(&b, &kept, t.tokens, N_PROMPT, &want);
        (void)check(&b, policies[i], t.tokens, N_PROMPT, &want);
        assert_int_equal(check(&b, policies[i], t.tokens, N_PROMPT, &want), N_PROMPT - 1);
        (void)check_some(&b, &t);
    }
    validate(b.engine);
    bench_close(&b);
}

/* Bounds go to the store with their pages, and come back with them. */
static void test_restart(void **state)
{
    setting s = { .format = QUIRE_FORMAT_F16, .attend_share = SHARE };
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

static void refuse(const engine_bench *b, const quire_request_params *params, const char *message)
{
    quire_request *request;
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(quire_engine_submit(b->engine, params, &request, &err), QUIRE_UNSUPP);
    if (strstr(err.message, message) == NULL) {
        fail_msg("%s", err.message);
    }
}

static void test_refused(void **state)
{
    static const setting s = { .format = QUIRE_FORMAT_F16, .attend_share = SHARE };
    static const setting plain = { .format = QUIRE_FORMAT_F16 };
    const quire_retain_spec spec = spec_of(KEYDIFF);
    quire_request_params params;
    int32_t prompt[8];
    engine_bench b = condense_bench(&s);

    (void)state;
    tokens_make(prompt, 8, 7);
    params = params_greedy(prompt, 8, 1);
    params.attend_share = SHARE;
    params.retain = &spec;
    refuse(&b, &params, "attend: top:0.4 and retain cannot go together");
    params.retain = NULL;
    params.context_overflow = QUIRE_CONTEXT_SHIFT;
    refuse(&b, &params, "attend: top:0.4 and context_overflow cannot go together");
    bench_close(&b);
    b = condense_bench(&plain);
    params.context_overflow = QUIRE_CONTEXT_REFUSE;
    refuse(&b, &params, "attend: cannot go with a server whose pages have no bounds");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),       cmocka_unit_test(test_private),
        cmocka_unit_test(test_preempted),     cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_restart),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_beside_retain), cmocka_unit_test(test_last_tokens),
        cmocka_unit_test(test_sealed),        cmocka_unit_test(test_sealed_preempted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
