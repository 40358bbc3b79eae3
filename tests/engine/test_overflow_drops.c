/* test_overflow_drops.c - requests whose texts drop tokens beside texts that are larger than
 * memory: their pages stay in memory, and answers are those of an engine without a place for
 * others.
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

#include <string.h>

#define N_CTX    2048u
#define N_LARGE  1500u
#define N_PROMPT 600u
#define N_TOKENS 20u
#define N_MEMORY 900u /* tokens that memory has room for */
#define N_LAYER  16u
#define CHUNK    256u
#define KEYDIFF  "keydiff:0.5,recent=32"
#define SNAP     "snap:0.5,recent=32"

static engine_bench bench_of(bool is_small)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    engine_bench b;

    engine.retain_chunk = CHUNK;
    engine.n_running_max = 4;
    runtime.k_format = runtime.v_format = QUIRE_FORMAT_F16;
    b = bench_deep_panels(N_LAYER, &engine, &runtime);
    if (!is_small) {
        return b;
    }
    runtime.kv_budget_bytes = quire_loop_need_bytes(b.engine->loop, N_MEMORY);
    runtime.kv_overflows = true;
    engine.overflow.dir = test_dir;
    engine.overflow.capacity_bytes = (uint64_t)1 << 30;
    bench_close(&b);
    return bench_deep_panels(N_LAYER, &engine, &runtime);
}

typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    uint32_t n;
} answer;

/* policy: NULL = the text keeps its tokens. */
static quire_request_params params_of(const char *policy, quire_retain_spec *spec,
                                      const int32_t *text, uint32_t n)
{
    quire_request_params params = params_greedy(text, n, N_TOKENS);

    params.has_logprobs = true;
    if (policy != NULL) {
        assert_int_equal(quire_retain_parse(policy, spec, NULL), QUIRE_OK);
        params.retain = spec;
    }
    return params;
}

static quire_request *ask(const engine_bench *b, const char *policy, const int32_t *text,
                          uint32_t n)
{
    quire_retain_spec spec;
    const quire_request_params params = params_of(policy, &spec, text, n);

    return submit(b, &params);
}

/* Returns the number of cached tokens. */
static uint32_t answer_take(quire_request *request, answer *out)
{
    quire_request_token event;
    uint32_t n_cached;

    *out = (answer){ 0 };
    while (quire_request_wait(request, out->n, FIXTURE_WAIT_MS, &event) == 1) {
        assert_true(out->n < N_TOKENS);
        out->tokens[out->n] = event.token;
        out->logprobs[out->n++] = event.logprob;
    }
    assert_int_equal(quire_request_result_get(request)->finish, QUIRE_FINISH_LENGTH);
    n_cached = quire_request_result_get(request)->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

static uint32_t run(const engine_bench *b, const char *policy, const int32_t *text, uint32_t n,
                    answer *out)
{
    return answer_take(ask(b, policy, text, n), out);
}

typedef struct wants {
    answer large;
    answer condensed;
} wants;

static void wants_take(const int32_t *text, wants *out)
{
    engine_bench b = bench_of(false);

    (void)run(&b, KEYDIFF, text, N_PROMPT, &out->condensed);
    bench_close(&b);
    b = bench_of(false);
    (void)run(&b, NULL, text, N_LARGE, &out->large);
    bench_close(&b);
}

/* The text's first pages are in the file when the request that drops tokens comes: it computes them
 * again, and keeps its own. */
static void test_after_a_large_text(void **state)
{
    static wants want;
    int32_t text[N_LARGE];
    quire_engine_stats stats;
    engine_bench b;
    answer got;

    (void)state;
    tokens_make(text, N_LARGE, 1);
    wants_take(text, &want);
    b = bench_of(true);
    (void)run(&b, NULL, text, N_LARGE, &got);
    assert_memory_equal(&got, &want.large, sizeof got);
    stats = stats_now(b.engine);
    assert_true(stats.overflow.offload.pages > 0);
    assert_int_equal(run(&b, KEYDIFF, text, N_PROMPT, &got), 0);
    assert_memory_equal(&got, &want.condensed, sizeof got);
    stats = stats_now(b.engine);
    assert_true(stats.condensings_total > 0);
    assert_int_equal(stats.overflow.requests_total, 1);
    validate(b.engine);
    /* Its own pages are in memory. */
    assert_true(run(&b, KEYDIFF, text, N_PROMPT, &got) > N_PROMPT / 2);
    assert_memory_equal(&got, &want.condensed, sizeof got);
    validate(b.engine);
    bench_close(&b);
}

/* Both at once, in either order. */
static void test_beside_a_large_text(void **state)
{
    static wants want;
    int32_t text[N_LARGE];
    answer got[2];

    (void)state;
    tokens_make(text, N_LARGE, 1);
    wants_take(text, &want);
    for (uint32_t i = 0; i < 2; i++) {
        engine_bench b = bench_of(true);
        gate *g = gate_close(b.engine);
        quire_request *requests[2];

        requests[i] = ask(&b, i == 0 ? NULL : KEYDIFF, text, i == 0 ? N_LARGE : N_PROMPT);
        for (uint32_t n = 0; n < 6; n++) {
            gate_step(g);
        }
        requests[1 - i] = ask(&b, i == 0 ? KEYDIFF : NULL, text, i == 0 ? N_PROMPT : N_LARGE);
        gate_open(g);
        (void)answer_take(requests[0], &got[0]);
        (void)answer_take(requests[1], &got[1]);
        assert_memory_equal(&got[0], &want.large, sizeof want.large);
        assert_memory_equal(&got[1], &want.condensed, sizeof want.condensed);
        assert_true(stats_now(b.engine).overflow.offload.pages_out_total > 0);
        validate(b.engine);
        bench_close(&b);
    }
}

/* A text whose kept tokens are more than memory holds is refused, although a text that keeps all of
 * them runs. */
static void test_too_large(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_request *request;
    int32_t text[N_LARGE];
    engine_bench b = bench_of(true);
    const quire_request_params params = params_of("keydiff:0.9,recent=32", &spec, text, N_LARGE);
    answer got;

    (void)state;
    tokens_make(text, N_LARGE, 1);
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "bytes of KV in memory"));
    (void)run(&b, NULL, text, N_LARGE, &got);
    bench_close(&b);
}

/* The device of policies by lane is made with the first such request, in front of the file's. At
 * the end the runtime has its own device again. */
static void test_devices_at_the_end(void **state)
{
    int32_t text[N_LARGE];
    engine_bench b = bench_of(true);
    const quire_attn_device own = quire_offload_inner(b.engine->loop->overflow.offload);
    answer got;

    (void)state;
    tokens_make(text, N_LARGE, 1);
    (void)run(&b, SNAP, text, N_PROMPT, &got);
    assert_non_null(b.engine->loop->lanes.device);
    quire_engine_destroy(b.engine);
    b.engine = NULL;
    assert_ptr_equal(quire_runtime_device(b.runtime)->ctx, own.ctx);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_after_a_large_text),
        cmocka_unit_test(test_beside_a_large_text),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_devices_at_the_end),
    };

    return cmocka_run_group_tests_name("overflow drops", tests, test_dir_make, test_dir_remove);
}
