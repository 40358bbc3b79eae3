/* test_context.c - requests whose texts are longer than the context: the bits of a plain loop that
 * shifts or condenses at the same places, after a miss, a hit, a preemption and for every chunk,
 * and of the CPU with KV on a mock device; a device lost on the way; refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "context_kit.h"
#include "directory.h"
#include "engine/context_condense.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"
#include "model/runtime_hidden.h"
#include "model/runtime_rows.h"

#include <stdlib.h>
#include <string.h>

/* A miss, a hit, and requests without overflow that share the beginning. */
static void same_bits(const setting *s, uint32_t n_prompt, uint32_t n)
{
    static answer want, plain, got;
    const setting refuse = { .format = s->format };
    engine_bench b = context_bench(s);
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

static const setting answers_beyond[] = {
    { .format = QUIRE_FORMAT_F16,
      .overflow = QUIRE_CONTEXT_SHIFT,
      .keep = 10,
      .n_contexts = 3,
      .has_below = true },
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
    { .format = QUIRE_FORMAT_F16,
      .overflow = QUIRE_CONTEXT_CONDENSE,
      .keep = 100,
      .n_contexts = 3,
      .has_below = true },
    { .format = QUIRE_FORMAT_BF16,
      .overflow = QUIRE_CONTEXT_CONDENSE,
      .retain = "random:0.9,sinks=70,recent=10",
      .n_contexts = 3,
      .page_tokens = 128,
      .chunk_tokens = 64 },
    { .format = QUIRE_FORMAT_F32,
      .overflow = QUIRE_CONTEXT_CONDENSE,
      .retain = "stride:0.01,recent=1",
      .keep = 64,
      .n_contexts = 3,
      .no_prefix_cache = true },
};

#define N_ANSWERS (sizeof answers_beyond / sizeof answers_beyond[0])

static void test_answers_beyond_the_context(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ANSWERS; i++) {
        same_bits(&answers_beyond[i], N_PROMPT, N_TOKENS);
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
        { .format = QUIRE_FORMAT_F16,
          .overflow = QUIRE_CONTEXT_CONDENSE,
          .keep = 64,
          .n_contexts = 3,
          .chunk_tokens = 100 },
    };

    (void)state;
    same_bits(&settings[0], N_LONG, 20);
    same_bits(&settings[1], N_CTX, 20); /* the prompt fills the context */
    same_bits(&settings[2], N_LONG, 20);
}

/* KV on a mock device, whose kernels are the CPU's: texts that share pages, and texts with pages of
 * their own. */
static void test_on_a_device(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ANSWERS; i++) {
        setting s = answers_beyond[i];

        s.device = "mock";
        same_bits(&s, N_PROMPT, N_TOKENS);
        same_bits(&s, N_LONG, 20);
    }
}

/* The device is lost while tokens move: all requests fail by name, and no other way. */
static void test_a_device_is_lost(void **state)
{
    static answer all;

    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        const setting s = { .format = QUIRE_FORMAT_F16,
                            .overflow = i % 2 == 0 ? QUIRE_CONTEXT_SHIFT : QUIRE_CONTEXT_CONDENSE,
                            .n_contexts = 2,
                            .no_prefix_cache = i % 4 < 2,
                            .device = "mock" };
        const quire_mock_device_opts faults = { .seed = i, .copy_failure = 0.05 };
        engine_bench b = context_bench(&s);
        quire_request *requests[2];
        int32_t text[N_PROMPT];
        gate *g = gate_close(b.engine);

        tokens_make(text, N_PROMPT, 1);
        for (uint32_t r = 0; r < 2; r++) {
            requests[r] = ask(&b, &s, text, N_PROMPT, N_TOKENS);
        }
        quire_mock_device_set(context_mock, &faults); /* its thread waits at the gate */
        gate_open(g);
        for (uint32_t r = 0; r < 2; r++) {
            const quire_request_result *result;

            answer_take(requests[r], &all);
            result = quire_request_result_get(requests[r]);
            assert_int_equal(result->finish, QUIRE_FINISH_ERROR);
            assert_int_equal(result->status, QUIRE_LOST);
            assert_string_equal(result->message, "device mock was lost, and the KV on it");
            quire_request_release(requests[r]);
        }
        assert_true(quire_engine_is_lost(b.engine));
        validate(b.engine);
        bench_close(&b);
    }
}

/* Memory for exactly one context, or one sequence: the request ends with pages of its own. */
static void test_memory_for_one_context(void **state)
{
    const setting shift = { .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SHIFT };
    const setting sinks = { .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SINKS };
    const setting single = {
        .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SHIFT, .n_seqs = 1, .n_contexts = 1
    };
    const setting condense = { .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_CONDENSE };

    (void)state;
    same_bits(&condense, N_PROMPT, 300);
    same_bits(&condense, N_LONG, 10);
    same_bits(&shift, N_PROMPT, 300);
    same_bits(&sinks, N_LONG, 10);
    same_bits(&single, N_LONG, 10);
}

static void test_several(void **state)
{
    static const quire_context_overflow overflows[] = { QUIRE_CONTEXT_SHIFT,
                                                        QUIRE_CONTEXT_CONDENSE };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const setting s = { .format = QUIRE_FORMAT_F16, .overflow = overflows[i], .n_contexts = 2 };

        context_several(&s, 3);
    }
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
static void preempted(quire_context_overflow overflow)
{
    static answer want;
    const setting s = {
        .format = QUIRE_FORMAT_F16, .overflow = overflow, .keep = 64, .n_contexts = 2
    };
    engine_bench b = context_bench(&s);
    quire_request_token event = { 0 };
    int32_t text[N_PROMPT];
    quire_request *request;
    preemption p = { b.engine->loop, false };

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

static void test_preempted_after_a_shift(void **state)
{
    (void)state;
    preempted(QUIRE_CONTEXT_SHIFT);
    preempted(QUIRE_CONTEXT_CONDENSE);
}

/* ---- first tokens ---- */

#define N_INSTRUCTIONS 150u /* tokens, as a system prompt has */
#define N_GENERATIONS  3u

/* K of the first tokens of a sequence, of all lanes. */
typedef struct first_keys {
    quire_loop *loop;
    quire_runtime *runtime;
    uint32_t n_condensings; /* of the request they were read from */
    float *keys;            /* [lane][N_INSTRUCTIONS][d_k] */
    size_t bytes;
} first_keys;

static void first_keys_init(first_keys *f, const engine_bench *b)
{
    *f = (first_keys){ .loop = b->engine->loop, .runtime = b->runtime };
    f->bytes = (size_t)quire_runtime_n_lanes(b->runtime) * N_INSTRUCTIONS *
               quire_model_desc_get(b->model)->d_k * sizeof *f->keys;
    f->keys = calloc(1, f->bytes);
    assert_non_null(f->keys);
}

static void read_keys(first_keys *f, quire_runtime *runtime, quire_seq_id seq)
{
    const size_t d = quire_model_desc_get(quire_runtime_model(runtime))->d_k;
    quire_runtime_rows rows;

    assert_int_equal(quire_runtime_rows_begin(runtime, seq, seq, &rows), QUIRE_OK);
    for (uint32_t i = 0; i < quire_runtime_n_lanes(runtime); i++) {
        quire_runtime_rows_keys(&rows, quire_runtime_lane_at(runtime, i), N_INSTRUCTIONS,
                                f->keys + i * N_INSTRUCTIONS * d);
    }
    assert_int_equal(quire_runtime_rows_end(&rows), QUIRE_OK);
}

/* On the engine's thread. */
static void read_running(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    first_keys *f = ctx;
    const quire_request *r = f->loop->set.n_running > 0 ? f->loop->set.running[0] : NULL;

    (void)cache;
    (void)tree;
    if (r != NULL && r->kv.n_condensings >= N_GENERATIONS) {
        f->n_condensings = r->kv.n_condensings;
        read_keys(f, f->runtime, r->kv.seq);
    }
}

/* After several condensings the instructions are all there, bit for bit. */
static void test_first_tokens_stay(void **state)
{
    const setting s = { .format = QUIRE_FORMAT_F16,
                        .overflow = QUIRE_CONTEXT_CONDENSE,
                        .keep = N_INSTRUCTIONS,
                        .n_contexts = 3 };
    engine_bench b = context_bench(&s);
    quire_runtime_opts opts = *quire_runtime_opts_get(b.runtime);
    quire_request_token event = { 0 };
    int32_t text[N_PROMPT];
    quire_engine_stats stats;
    quire_request *request;
    quire_runtime *alone;
    first_keys got, want;
    quire_seq_id seq;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    first_keys_init(&got, &b);
    first_keys_init(&want, &b);
    opts.n_seqs_max = 1;
    opts.kv_budget_bytes = 0;
    alone = fixture_runtime(b.model, &opts);
    seq = fixture_seq(alone);
    (void)fixture_step(alone, seq, text, N_PROMPT, QUIRE_LOGITS_NONE);
    read_keys(&want, alone, seq);
    quire_runtime_destroy(alone);
    request = ask(&b, &s, text, N_PROMPT, 10 * N_CTX);
    while (got.n_condensings == 0) {
        assert_int_equal(engine_call(b.engine, read_running, &got), QUIRE_OK);
        assert_int_not_equal(quire_request_wait(request, UINT32_MAX, 0, &event), 0);
    }
    assert_memory_equal(got.keys, want.keys, want.bytes);
    quire_request_cancel(request);
    assert_true(finish(request)->n_condensings >= N_GENERATIONS);
    quire_request_release(request);
    stats = stats_now(b.engine);
    assert_int_equal(stats.context_condensings_whole_total, 1);
    assert_true(stats.context_condensings_again_total >= N_GENERATIONS - 1);
    assert_int_equal(stats.context_condensings_whole_total + stats.context_condensings_again_total,
                     stats.context_shifts_total);
    free(want.keys);
    free(got.keys);
    bench_close(&b);
}

/* How many tokens are read, and how many stay. */
static void test_sizes(void **state)
{
    static const struct {
        const char *retain;
        uint32_t n_keep, n_held, n_old, n_kept;
    } cases[] = {
        { "keydiff:0.5,recent=64", 64, 512, 256, 128 },
        { "keydiff:0.5,recent=400", 0, 576, 128, 64 }, /* the last tokens leave no more */
        { "stride:0.3,recent=1", 0, 512, 256, 128 },   /* 76.8, in whole tiles */
        { "stride:1,recent=1", 0, 512, 256, 192 },     /* at least 64 leave */
        { "stride:0.001,recent=1", 64, 512, 256, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_retain_spec spec;
        quire_context_sizes sizes;

        assert_int_equal(quire_retain_parse(cases[i].retain, &spec, NULL), QUIRE_OK);
        sizes = quire_context_condense_sizes(&spec, cases[i].n_keep, cases[i].n_held);
        assert_int_equal(sizes.n_old, cases[i].n_old);
        assert_int_equal(sizes.n_kept, cases[i].n_kept);
    }
    assert_int_equal(quire_context_condense_keep(&(quire_retain_spec){ .sinks = 65 }, 0), 128);
    assert_int_equal(quire_context_condense_keep(&(quire_retain_spec){ .sinks = 4 }, 130), 192);
}

/* The tokens for the next turn are those that the tree has; limits of the text's length. */
static void test_lengths(void **state)
{
    const setting s = { .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_SHIFT };
    engine_bench b = context_bench(&s);
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

static void refused_by(const engine_bench *b, quire_context_overflow overflow, uint32_t keep,
                       const quire_retain_spec *retain, int status, const char *message)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, 4);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;

    tokens_make(text, N_PROMPT, 1);
    params.context_overflow = overflow;
    params.context_keep = keep;
    params.retain = retain;
    assert_int_equal(quire_engine_submit(b->engine, &params, &request, &err), status);
    if (strstr(err.message, message) != err.message) {
        fail_msg("%s", err.message);
    }
}

static void refused(const engine_bench *b, quire_context_overflow overflow, uint32_t keep,
                    int status, const char *message)
{
    refused_by(b, overflow, keep, NULL, status, message);
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
        { QUIRE_FORMAT_Q4, QUIRE_CONTEXT_SINKS, 0, QUIRE_UNSUPP,
          "context_overflow: sinks turns K every 64 tokens: in q4 each time adds an error. " },
        { QUIRE_FORMAT_Q8, QUIRE_CONTEXT_SINKS, 0, QUIRE_UNSUPP,
          "context_overflow: sinks turns K every 64 tokens: in q8 each time adds an error. " },
        { QUIRE_FORMAT_F16, QUIRE_CONTEXT_SHIFT, 257, QUIRE_INVAL,
          "context_overflow: shift with 320 tokens kept needs a context of at least 576 tokens" },
        { QUIRE_FORMAT_F16, QUIRE_CONTEXT_SHIFT, UINT32_MAX, QUIRE_INVAL,
          "context_overflow: shift with 512 tokens kept needs a context of at least 768 tokens" },
        { QUIRE_FORMAT_Q4, QUIRE_CONTEXT_CONDENSE, 0, QUIRE_UNSUPP,
          "context_overflow: condense turns K again and again: in q4 each time adds an error. " },
        { QUIRE_FORMAT_Q8, QUIRE_CONTEXT_CONDENSE, 0, QUIRE_UNSUPP,
          "context_overflow: condense turns K again and again: in q8 each time adds an error. " },
        { QUIRE_FORMAT_F16, QUIRE_CONTEXT_CONDENSE, UINT32_MAX, QUIRE_INVAL,
          "context_overflow: condense with 512 tokens kept needs a context of at least 768" },
    };
    const int32_t windows[4] = { 128, 128, 0, 0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    quire_error err = QUIRE_ERROR_INIT;
    engine_bench b;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const setting s = { .format = cases[i].format };

        b = context_bench(&s);
        refused(&b, cases[i].overflow, cases[i].keep, cases[i].status, cases[i].message);
        assert_int_equal(
            quire_engine_context_check(b.engine, QUIRE_CONTEXT_REFUSE, UINT32_MAX, "", &err),
            QUIRE_OK);
        bench_close(&b);
    }
    b = bench_windows(windows, &engine, &runtime);
    refused(&b, QUIRE_CONTEXT_SHIFT, 0, QUIRE_UNSUPP,
            "context_overflow: shift works with models whose layers see the whole text and turn K "
            "alike");
    bench_close(&b);
    runtime.is_contiguous = true;
    b = bench_tiny(&engine, &runtime);
    refused(&b, QUIRE_CONTEXT_SHIFT, 0, QUIRE_UNSUPP,
            "context_overflow: shift and a contiguous cache");
    bench_close(&b);
}

/* Policies that cannot choose here, and models. */
static void test_condense_refusals(void **state)
{
    static const struct {
        const char *retain;
        int status;
        const char *message;
    } cases[] = {
        { "snap:0.5", QUIRE_UNSUPP,
          "context_overflow: condense by snap needs more than keys and positions: use keydiff" },
        { "heavy:0.5", QUIRE_UNSUPP, "context_overflow: condense by heavy needs more" },
        { "keydiff:0.5,floor=0.5", QUIRE_UNSUPP,
          "context_overflow: condense by keydiff: all heads keep the same number of tokens, so "
          "floor cannot be given" },
        { "keydiff:0.5,full_layers=0", QUIRE_UNSUPP,
          "context_overflow: condense by keydiff: all heads keep the same number of tokens, so "
          "full_layers cannot be given" },
        { "keydiff:0.5,recent=400", QUIRE_INVAL,
          "context_overflow: condense with 64 first tokens kept and the last 400 (recent of "
          "keydiff) needs a context of at least 640 tokens: raise -c" },
    };
    const int32_t windows[4] = { 128, 128, 0, 0 };
    const setting s = { .format = QUIRE_FORMAT_F16 };
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    engine_bench b = context_bench(&s);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_retain_spec spec;

        assert_int_equal(quire_retain_parse(cases[i].retain, &spec, NULL), QUIRE_OK);
        refused_by(&b, QUIRE_CONTEXT_CONDENSE, 0, &spec, cases[i].status, cases[i].message);
    }
    bench_close(&b);
    b = bench_windows(windows, &engine, &runtime);
    refused(&b, QUIRE_CONTEXT_CONDENSE, 0, QUIRE_UNSUPP,
            "context_overflow: condense works with models whose layers see the whole text");
    bench_close(&b);
    b = bench_recurrent("lfm2", &engine, &runtime);
    refused(&b, QUIRE_CONTEXT_CONDENSE, 0, QUIRE_UNSUPP, "context_overflow: condense works with");
    bench_close(&b);
    b = bench_latent(&engine, &runtime);
    refused(&b, QUIRE_CONTEXT_CONDENSE, 0, QUIRE_UNSUPP, "context_overflow: condense works with");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_beyond_the_context),
        cmocka_unit_test(test_prompts_beyond_the_context),
        cmocka_unit_test(test_on_a_device),
        cmocka_unit_test(test_a_device_is_lost),
        cmocka_unit_test(test_memory_for_one_context),
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_preempted_after_a_shift),
        cmocka_unit_test(test_first_tokens_stay),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_condense_refusals),
    };

    return cmocka_run_group_tests(tests, test_dir_make, test_dir_remove);
}
