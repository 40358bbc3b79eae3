/* test_context.c - requests whose texts are longer than the context: the bits of a plain loop that
 * shifts at the same places, after a miss, a hit, a preemption and for every chunk; what is
 * refused.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "directory.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"
#include "engine_fixture.h"
#include "model/runtime_shift.h"

#include <stdlib.h>
#include <string.h>

#define N_CTX    512u
#define N_PROMPT 300u
#define N_TOKENS 500u
#define N_LONG   1300u
#define N_OTHERS 3u

typedef struct setting {
    quire_format format;
    quire_context_overflow overflow;
    uint32_t keep;
    uint32_t page_tokens; /* 0 = 64 */
    uint32_t chunk_tokens;
    uint32_t n_seqs;     /* 0 = 8 */
    uint32_t n_contexts; /* that memory has room for; 0 = 1 */
    bool no_prefix_cache;
} setting;

static engine_bench bench_of(const setting *s)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, s->n_seqs != 0 ? s->n_seqs : 8);
    engine_bench b;

    engine.chunk_tokens = s->chunk_tokens;
    engine.no_prefix_cache = s->no_prefix_cache;
    runtime.k_format = runtime.v_format = s->format;
    runtime.page_tokens = s->page_tokens != 0 ? s->page_tokens : 64;
    if (s->n_contexts > 1) {
        const quire_runtime_opts one = runtime;

        b = bench_panels(32, &engine, &one);
        runtime.kv_budget_bytes =
            s->n_contexts * quire_runtime_opts_get(b.runtime)->kv_budget_bytes;
        bench_close(&b);
    }
    return bench_panels(32, &engine, &runtime);
}

/* Tokens with the log-probabilities of each: any changed bit of KV shows. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    uint32_t n;
} answer;

/* What a sequence alone generates that drops tokens whenever it is full. */
static void expect(const engine_bench *b, const setting *s, const int32_t *prompt,
                   uint32_t n_prompt, uint32_t n, answer *out)
{
    const uint32_t n_keep = quire_context_overflow_keep(s->keep);
    quire_runtime_opts opts = *quire_runtime_opts_get(b->runtime);
    quire_runtime *runtime;
    quire_seq_id seq;

    opts.n_seqs_max = 1;
    opts.kv_budget_bytes = 0;
    runtime = fixture_runtime(b->model, &opts);
    seq = fixture_seq(runtime);
    *out = (answer){ 0 };
    for (uint32_t i = 0; out->n < n; i++) {
        const int32_t token = i < n_prompt ? prompt[i] : out->tokens[i - n_prompt];
        const uint32_t n_held = quire_seq_tokens(quire_runtime_cache(runtime), seq);
        const float *logits;

        if (n_held == N_CTX) {
            const uint32_t n_drop = quire_context_overflow_drop(s->overflow, n_keep, n_held);

            assert_int_equal(quire_runtime_shift(runtime, seq, n_keep, n_keep + n_drop), QUIRE_OK);
        }
        logits = fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
        if (i + 1 >= n_prompt) {
            out->tokens[out->n] = fixture_argmax(logits, b->n_vocab);
            out->logprobs[out->n] =
                quire_logits_logprob(logits, b->n_vocab, out->tokens[out->n], NULL, 0);
            out->n++;
        }
    }
    quire_runtime_destroy(runtime);
}

static quire_request *ask(const engine_bench *b, const setting *s, const int32_t *prompt,
                          uint32_t n_prompt, uint32_t n)
{
    quire_request_params params = params_greedy(prompt, n_prompt, n);

    params.has_logprobs = true;
    params.context_overflow = s->overflow;
    params.context_keep = s->keep;
    return submit(b, &params);
}

static void answer_take(quire_request *request, answer *out)
{
    quire_request_token event;
    int rc;

    *out = (answer){ 0 };
    while ((rc = quire_request_wait(request, out->n, FIXTURE_WAIT_MS, &event)) == 1) {
        assert_true(out->n < N_TOKENS);
        out->tokens[out->n] = event.token;
        out->logprobs[out->n] = event.logprob;
        out->n++;
    }
    assert_int_equal(rc, 0);
}

static void assert_same(const answer *got, const answer *want)
{
    assert_int_equal(got->n, want->n);
    assert_memory_equal(got->tokens, want->tokens, want->n * sizeof *want->tokens);
    assert_memory_equal(got->logprobs, want->logprobs, want->n * sizeof *want->logprobs);
}

/* Ask, compare, and return how many tokens the cache had. */
static uint32_t check(const engine_bench *b, const setting *s, const int32_t *prompt,
                      uint32_t n_prompt, const answer *want)
{
    quire_request *request = ask(b, s, prompt, n_prompt, want->n);
    const quire_request_result *result;
    uint32_t n_cached;
    answer got;

    answer_take(request, &got);
    result = quire_request_result_get(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    assert_same(&got, want);
    assert_true(result->n_dropped_tokens >= n_prompt + want->n - 1 - N_CTX);
    assert_int_equal(result->n_dropped_tokens % 64, 0);
    n_cached = result->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

/* A miss, a hit, and requests without overflow that share the beginning. */
static void same_bits(const setting *s, uint32_t n_prompt, uint32_t n)
{
    static answer want, plain, got;
    const setting refuse = { .format = s->format };
    engine_bench b = bench_of(s);
    quire_engine_stats stats;
    quire_request *request;
    int32_t text[N_LONG];

    tokens_make(text, N_LONG, 1);
    expect(&b, s, text, n_prompt, n, &want);
    expect(&b, &refuse, text, N_PROMPT - 7, 20, &plain);
    assert_int_equal(check(&b, s, text, n_prompt, &want), 0);
    stats = stats_now(b.engine);
    assert_true(stats.context_shifts_total > 0);
    assert_true(stats.context_dropped_tokens_total >= n_prompt + n - 1 - N_CTX);
    if (s->n_contexts > 1) { /* with less, the pages are evicted for those of the answer */
        request = ask(&b, &refuse, text, N_PROMPT - 7, 20);
        answer_take(request, &got);
        assert_true(s->no_prefix_cache ||
                    quire_request_result_get(request)->n_cached_tokens == N_PROMPT - 8);
        assert_same(&got, &plain);
        quire_request_release(request);
        assert_true(s->no_prefix_cache || check(&b, s, text, n_prompt, &want) > N_PROMPT / 2);
    }
    /* No token was computed twice. */
    stats = stats_now(b.engine);
    assert_true(s->n_contexts < 2 || stats.recomputed_tokens_total == 0);
    validate(b.engine);
    bench_close(&b);
}

static void test_answers_beyond_the_context(void **state)
{
    static const setting settings[] = {
        { .format = QUIRE_FORMAT_F16,
          .overflow = QUIRE_CONTEXT_SHIFT,
          .keep = 10,
          .n_contexts = 3 },
        { .format = QUIRE_FORMAT_Q8,
          .overflow = QUIRE_CONTEXT_SHIFT,
          .keep = 64,
          .n_contexts = 3,
          .page_tokens = 128,
          .chunk_tokens = 64 },
        { .format = QUIRE_FORMAT_F32, .overflow = QUIRE_CONTEXT_SINKS, .n_contexts = 3 },
        { .format = QUIRE_FORMAT_F16,
          .overflow = QUIRE_CONTEXT_SHIFT,
          .keep = 200,
          .n_contexts = 3,
          .no_prefix_cache = true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        same_bits(&settings[i], N_PROMPT, N_TOKENS);
    }
}

/* Tokens leave while the prompt is read, at the same places. */
static void test_prompts_beyond_the_context(void **state)
{
    static const setting settings[] = {
        { .format = QUIRE_FORMAT_F16,
          .overflow = QUIRE_CONTEXT_SHIFT,
          .keep = 64,
          .n_contexts = 3,
          .chunk_tokens = 100 },
        { .format = QUIRE_FORMAT_F16,
          .overflow = QUIRE_CONTEXT_SINKS,
          .keep = 64,
          .n_contexts = 2,
          .page_tokens = 128 },
    };

    (void)state;
    same_bits(&settings[0], N_LONG, 20);
    same_bits(&settings[1], N_CTX, 20); /* the prompt fills the context */
}

/* Memory for exactly one context, or one sequence: the request ends with pages of its own. */
static void test_memory_for_one_context(void **state)
{
    const setting shift = { .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SHIFT };
    const setting sinks = { .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SINKS };
    const setting single = {
        .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SHIFT, .n_seqs = 1, .n_contexts = 1
    };

    (void)state;
    same_bits(&shift, N_PROMPT, 300);
    same_bits(&sinks, N_LONG, 10);
    same_bits(&single, N_LONG, 10);
}

/* Several at once in memory for two: preempted ones are computed again, with the same bits. */
static void test_several(void **state)
{
    static answer want[N_OTHERS], got;
    const setting s = { .format = QUIRE_FORMAT_F16,
                        .overflow = QUIRE_CONTEXT_SHIFT,
                        .n_contexts = 2 };
    engine_bench b = bench_of(&s);
    quire_request *requests[N_OTHERS];
    int32_t text[N_OTHERS][N_LONG];
    uint32_t n_preemptions = 0;
    gate *g = gate_close(b.engine);

    (void)state;
    for (uint32_t i = 0; i < N_OTHERS; i++) {
        tokens_make(text[i], N_LONG, 10 + i);
        memcpy(text[i], text[0], 200 * sizeof text[0][0]);
        expect(&b, &s, text[i], N_PROMPT, 300, &want[i]);
        requests[i] = ask(&b, &s, text[i], N_PROMPT, 300);
    }
    gate_open(g);
    for (uint32_t i = 0; i < N_OTHERS; i++) {
        answer_take(requests[i], &got);
        assert_int_equal(quire_request_result_get(requests[i])->finish, QUIRE_FINISH_LENGTH);
        assert_same(&got, &want[i]);
        n_preemptions += quire_request_result_get(requests[i])->n_preemptions;
        quire_request_release(requests[i]);
    }
    assert_true(n_preemptions > 0);
    validate(b.engine);
    bench_close(&b);
}

typedef struct preemption {
    quire_loop *loop;
    bool is_done;
} preemption;

/* On the engine's thread: preempt the request when tokens have left its sequence. */
static void preempt(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    preemption *p = ctx;
    quire_request *r = p->loop->set.n_running > 0 ? p->loop->set.running[0] : NULL;

    (void)cache;
    (void)tree;
    if (r != NULL && r->kv.n_dropped > 0) {
        quire_loop_preempt(p->loop, r);
        r->wait.blocked_at = 0; /* as if pages had been released since */
        p->is_done = true;
    }
}

/* A request that loses its pages after tokens have left begins again, with its whole text. Its
 * answer is longer than the compared part, so that the preemption finds the request running. */
static void test_preempted_after_a_shift(void **state)
{
    static answer want;
    const setting s = {
        .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SHIFT, .keep = 64, .n_contexts = 2
    };
    engine_bench b = bench_of(&s);
    quire_request_token event = { 0 };
    int32_t text[N_PROMPT];
    quire_request *request;
    preemption p = { b.engine->loop, false };

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, N_TOKENS, &want);
    request = ask(&b, &s, text, N_PROMPT, 10 * N_CTX);
    while (!p.is_done) {
        assert_int_equal(engine_call(b.engine, preempt, &p), QUIRE_OK);
        assert_int_not_equal(quire_request_wait(request, UINT32_MAX, 0, &event), 0);
    }
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        assert_int_equal(quire_request_wait(request, i, FIXTURE_WAIT_MS, &event), 1);
        assert_int_equal(event.token, want.tokens[i]);
        assert_memory_equal(&event.logprob, &want.logprobs[i], sizeof event.logprob);
    }
    quire_request_cancel(request);
    assert_int_equal(finish(request)->n_preemptions, 1);
    quire_request_release(request);
    validate(b.engine);
    bench_close(&b);
}

/* The tokens for the next turn are those that the tree has; limits of the text's length. */
static void test_lengths(void **state)
{
    const setting s = { .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SHIFT };
    engine_bench b = bench_of(&s);
    int32_t *text = malloc(QUIRE_CONTEXTS_MAX * N_CTX * sizeof *text);
    quire_request_params params;
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;
    int32_t *taken;
    uint32_t n;

    (void)state;
    assert_non_null(text);
    tokens_make(text, QUIRE_CONTEXTS_MAX * N_CTX, 4);
    params = params_greedy(text, N_CTX + 100, 1);
    params.context_overflow = QUIRE_CONTEXT_SHIFT;
    request = submit(&b, &params);
    (void)finish(request);
    taken = quire_request_tokens_take(request, &n);
    assert_int_equal(n, N_CTX);
    assert_memory_equal(taken, text, N_CTX * sizeof *text);
    free(taken);
    quire_request_release(request);

    params.n_tokens = N_CTX; /* without max_tokens: as many as the context has room for */
    params.max_tokens = 0;
    request = submit(&b, &params);
    assert_int_equal(finish(request)->n_generated_tokens, N_CTX);
    quire_request_release(request);

    params.n_tokens = QUIRE_CONTEXTS_MAX * N_CTX;
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "8192 tokens and one to generate are more than 8192, 16 "
                                        "times the context"));
    params.context_overflow = QUIRE_CONTEXT_REFUSE;
    params.n_tokens = N_CTX;
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "do not fit the context of 512"));
    free(text);
    bench_close(&b);
}

static void refused(const engine_bench *b, quire_context_overflow overflow, uint32_t keep,
                    int status, const char *message)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, 4);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;

    tokens_make(text, N_PROMPT, 1);
    params.context_overflow = overflow;
    params.context_keep = keep;
    assert_int_equal(quire_engine_submit(b->engine, &params, &request, &err), status);
    if (strstr(err.message, message) != err.message) {
        fail_msg("%s", err.message);
    }
}

static void test_refusals(void **state)
{
    static const struct {
        quire_format format;
        quire_context_overflow overflow;
        uint32_t keep;
        int status;
        const char *message;
    } cases[] = {
        { QUIRE_FORMAT_Q4, QUIRE_CONTEXT_SHIFT, 0, QUIRE_UNSUPP,
          "context_overflow: shift works with KV in f32, f16, bf16 and q8, and with models whose "
          "layers see the whole text" },
        { QUIRE_FORMAT_Q8, QUIRE_CONTEXT_SINKS, 0, QUIRE_UNSUPP,
          "context_overflow: sinks turns K every 64 tokens: in q8 each time adds an error. " },
        { QUIRE_FORMAT_F16, QUIRE_CONTEXT_SHIFT, 257, QUIRE_INVAL,
          "context_overflow: shift with 320 tokens kept needs a context of at least 576 tokens" },
        { QUIRE_FORMAT_F16, QUIRE_CONTEXT_SHIFT, UINT32_MAX, QUIRE_INVAL,
          "context_overflow: shift with 512 tokens kept needs a context of at least 768 tokens" },
    };
    const int32_t windows[4] = { 128, 128, 0, 0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    quire_error err = QUIRE_ERROR_INIT;
    engine_bench b;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const setting s = { .format = cases[i].format };

        b = bench_of(&s);
        refused(&b, cases[i].overflow, cases[i].keep, cases[i].status, cases[i].message);
        assert_int_equal(
            quire_engine_context_check(b.engine, QUIRE_CONTEXT_REFUSE, UINT32_MAX, "", &err),
            QUIRE_OK);
        bench_close(&b);
    }
    b = bench_windows(windows, &engine, &runtime);
    refused(&b, QUIRE_CONTEXT_SHIFT, 0, QUIRE_UNSUPP,
            "context_overflow: shift works with KV in f32");
    bench_close(&b);
    runtime.is_contiguous = true;
    b = bench_tiny(&engine, &runtime);
    refused(&b, QUIRE_CONTEXT_SHIFT, 0, QUIRE_UNSUPP,
            "context_overflow: shift and a contiguous cache");
    bench_close(&b);
    runtime.is_contiguous = false;
    runtime.kv_overflows = true;
    engine.overflow.dir = test_dir;
    engine.overflow.capacity_bytes = (uint64_t)1 << 24;
    b = bench_deep(4, &engine, &runtime);
    refused(&b, QUIRE_CONTEXT_SINKS, 0, QUIRE_UNSUPP,
            "context_overflow: sinks and --kv-overflow: K of offloaded pages cannot be turned");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_beyond_the_context),
        cmocka_unit_test(test_prompts_beyond_the_context),
        cmocka_unit_test(test_memory_for_one_context),
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_preempted_after_a_shift),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, test_dir_make, test_dir_remove);
}
