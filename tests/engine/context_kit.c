/* context_kit.c - see context_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include "context_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "directory.h"
#include "engine/context_condense.h"
#include "model/runtime_shift.h"

#include <string.h>

quire_device *context_mock;

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts slow = { .delay_ticks = 2 };
    const int rc = quire_mock_device_open(out, opts, &slow, err);

    assert_string_equal(name, "mock");
    context_mock = *out;
    return rc;
}

engine_bench context_bench(const setting *s)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, s->n_seqs != 0 ? s->n_seqs : 8);
    engine_bench b;

    engine.chunk_tokens = s->chunk_tokens;
    engine.no_prefix_cache = s->no_prefix_cache;
    runtime.k_format = runtime.v_format = s->format;
    runtime.kv_recent = s->has_recent ? s->recent : runtime.kv_recent;
    runtime.page_tokens = s->page_tokens != 0 ? s->page_tokens : 64;
    runtime.device = s->device;
    runtime.device_open = s->device != NULL && strcmp(s->device, "mock") == 0 ? open_mock : NULL;
    if (s->has_below) {
        runtime.kv_overflows = true;
        engine.overflow.dir = test_dir;
        engine.overflow.capacity_bytes = engine.overflow.host_bytes = (uint64_t)1 << 26;
    }
    if (s->n_contexts > 1) {
        const quire_runtime_opts one = runtime;

        b = bench_panels(32, &engine, &one);
        runtime.kv_budget_bytes =
            s->n_contexts * quire_runtime_opts_get(b.runtime)->kv_budget_bytes;
        bench_close(&b);
    }
    return bench_panels(32, &engine, &runtime);
}

static void spec_of(const setting *s, quire_retain_spec *out)
{
    assert_int_equal(
        quire_retain_parse(s->retain != NULL ? s->retain : QUIRE_CONTEXT_RETAIN, out, NULL),
        QUIRE_OK);
}

/* Make room in a full sequence. */
static void clear(const setting *s, quire_runtime *runtime, quire_seq_id seq)
{
    const uint32_t n_keep = quire_context_overflow_keep(s->keep);
    quire_retain_spec spec;
    bool is_torn;

    if (s->overflow == QUIRE_CONTEXT_CONDENSE) {
        spec_of(s, &spec);
        assert_int_equal(quire_context_condense(&spec, runtime, seq,
                                                quire_context_condense_keep(&spec, s->keep),
                                                &is_torn),
                         QUIRE_OK);
    } else {
        const uint32_t n_drop = quire_context_overflow_drop(s->overflow, n_keep, N_CTX);

        assert_int_equal(quire_runtime_shift(runtime, seq, n_keep, n_keep + n_drop, &is_torn),
                         QUIRE_OK);
    }
}

void expect(const engine_bench *b, const setting *s, const int32_t *prompt, uint32_t n_prompt,
            uint32_t n, answer *out)
{
    quire_runtime_opts opts = *quire_runtime_opts_get(b->runtime);
    quire_runtime *runtime;
    quire_seq_id seq;

    opts.n_seqs_max = 1;
    opts.kv_budget_bytes = 0;
    opts.device = NULL;
    opts.device_open = NULL;
    runtime = fixture_runtime(b->model, &opts);
    seq = fixture_seq(runtime);
    *out = (answer){ 0 };
    for (uint32_t i = 0; out->n < n; i++) {
        const int32_t token = i < n_prompt ? prompt[i] : out->tokens[i - n_prompt];
        const float *logits;

        if (quire_seq_tokens(quire_runtime_cache(runtime), seq) == N_CTX) {
            clear(s, runtime, seq);
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

quire_request *ask(const engine_bench *b, const setting *s, const int32_t *prompt,
                   uint32_t n_prompt, uint32_t n)
{
    quire_request_params params = params_greedy(prompt, n_prompt, n);
    quire_retain_spec spec;

    params.has_logprobs = true;
    params.context_overflow = s->overflow;
    params.context_keep = s->keep;
    if (s->retain != NULL) {
        spec_of(s, &spec);
        params.retain = &spec; /* read by submit */
    }
    return submit(b, &params);
}

void answer_take(quire_request *request, answer *out)
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

void assert_same(const answer *got, const answer *want)
{
    assert_int_equal(got->n, want->n);
    assert_memory_equal(got->tokens, want->tokens, want->n * sizeof *want->tokens);
    assert_memory_equal(got->logprobs, want->logprobs, want->n * sizeof *want->logprobs);
}

uint32_t check(const engine_bench *b, const setting *s, const int32_t *prompt, uint32_t n_prompt,
               const answer *want)
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
    assert_true((result->n_condensings > 0) == (s->overflow == QUIRE_CONTEXT_CONDENSE));
    n_cached = result->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

void context_several(const setting *s, uint32_t n)
{
    static answer want[CONTEXT_SIDES_MAX], got;
    static int32_t text[CONTEXT_SIDES_MAX][N_PROMPT];
    quire_request *requests[CONTEXT_SIDES_MAX];
    uint32_t n_preemptions = 0;
    engine_bench b = context_bench(s);
    gate *g = gate_close(b.engine);

    assert_in_range(n, 1, CONTEXT_SIDES_MAX);
    for (uint32_t i = 0; i < n; i++) {
        tokens_make(text[i], N_PROMPT, 10 + i);
        memcpy(text[i], text[0], 200 * sizeof text[0][0]);
        expect(&b, s, text[i], N_PROMPT, 300, &want[i]);
        requests[i] = ask(&b, s, text[i], N_PROMPT, 300);
    }
    gate_open(g);
    for (uint32_t i = 0; i < n; i++) {
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
