/* test_overflow.c - requests that are larger than the KV budget: their pages move to a file, and
 * answers are those of a run with everything in memory, bit by bit.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "bad_disk.h"
#include "directory.h"
#include "engine_fixture.h"
#include "rounds.h"

#include "engine/loop/loop_object.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_CTX    4096u
#define N_PROMPT 2000u
#define N_TOKENS 40u
#define PAGE     64u
#define N_LAYER  16u
#define N_TOPS   4u

typedef struct setting {
    quire_format format;
    uint64_t budget_bytes; /* 0 = all */
    uint64_t file_bytes;   /* 0 = large */
    bool is_off;           /* no file */
    uint32_t n_layer;      /* 0 = N_LAYER */
} setting;

static engine_bench bench_of(const setting *s)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    runtime.k_format = runtime.v_format = s->format;
    runtime.kv_budget_bytes = s->budget_bytes;
    runtime.kv_overflows = !s->is_off;
    engine.overflow.dir = s->is_off ? NULL : test_dir;
    engine.overflow.capacity_bytes = s->file_bytes != 0 ? s->file_bytes : (uint64_t)1 << 30;
    return bench_deep(s->n_layer != 0 ? s->n_layer : N_LAYER, &engine, &runtime);
}

/* A request's tokens with the log-probabilities of the best: any changed bit of KV shows. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS][N_TOPS];
    uint32_t n;
} answer;

static void answer_take(quire_request *request, answer *out)
{
    quire_request_token event;
    int rc;

    *out = (answer){ 0 };
    while ((rc = quire_request_wait(request, out->n, FIXTURE_WAIT_MS, &event)) == 1) {
        assert_true(out->n < N_TOKENS);
        out->tokens[out->n] = event.token;
        for (uint32_t i = 0; i < event.n_tops && i < N_TOPS; i++) {
            out->logprobs[out->n][i] = event.tops[i].logprob;
        }
        out->n++;
    }
    assert_int_equal(rc, 0);
}

static quire_request *ask(const engine_bench *b, const int32_t *text, uint32_t n)
{
    quire_request_params params = params_greedy(text, n, N_TOKENS);

    params.has_logprobs = true;
    params.n_top_logprobs = N_TOPS;
    return submit(b, &params);
}

static void run(const engine_bench *b, const int32_t *text, uint32_t n, answer *out)
{
    quire_request *request = ask(b, text, n);

    answer_take(request, out);
    assert_int_equal(quire_request_result_get(request)->finish, QUIRE_FINISH_LENGTH);
    quire_request_release(request);
}

/* Bytes of KV of n tokens in this format. */
static uint64_t bytes_of(quire_format format, uint32_t n_tokens)
{
    const setting all = { .format = format, .is_off = true };
    engine_bench b = bench_of(&all);
    const quire_kv_price price =
        quire_kv_price_make(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime));
    const uint64_t bytes = quire_kv_price_bytes(&price, n_tokens);

    bench_close(&b);
    return bytes;
}

/* A prompt of four times the memory, and its continuation: in memory and streamed. */
static void same_answers(quire_format format)
{
    const setting all = { .format = format, .is_off = true };
    const setting some = { .format = format, .budget_bytes = bytes_of(format, 700) };
    int32_t text[N_CTX];
    answer whole, again, streamed;
    quire_engine_stats stats;
    engine_bench b = bench_of(&all);

    tokens_make(text, N_PROMPT, 1);
    run(&b, text, N_PROMPT, &whole);
    run(&b, text, N_PROMPT, &again); /* steps of other shapes, so other last bits */
    assert_int_equal(whole.n, N_TOKENS);
    bench_close(&b);

    b = bench_of(&some);
    run(&b, text, N_PROMPT, &streamed);
    assert_memory_equal(&whole, &streamed, sizeof whole);
    stats = stats_now(b.engine);
    assert_true(stats.overflow.is_on);
    assert_true(stats.overflow.offload.pages_out_total >= 8);
    assert_true(stats.overflow.offload.file.read_bytes_total > 0);
    assert_int_equal(stats.overflow.offload.file.failures_total, 0);
    validate(b.engine);

    /* The prompt again uses the cached pages, in the file and in memory. */
    run(&b, text, N_PROMPT, &streamed);
    assert_memory_equal(&again, &streamed, sizeof again);
    validate(b.engine);
    bench_close(&b);
}

static void test_same_answers(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_BF16,
                                            QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i += TEST_STRIDE(3u)) {
        same_answers(formats[i]);
    }
}

/* Memory of pages and buffers stays within the budget. */
static void test_memory_is_bounded(void **state)
{
    const setting some = { .format = QUIRE_FORMAT_Q8,
                           .budget_bytes = bytes_of(QUIRE_FORMAT_Q8, 700) };
    engine_bench b = bench_of(&some);
    int32_t text[N_CTX];
    quire_request *request;
    answer got;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    request = ask(&b, text, N_PROMPT);
    for (uint32_t i = 0; i < 50; i++) {
        gate *g = gate_close(b.engine);
        quire_cache_stats cache;
        quire_engine_stats stats;

        gate_step(g);
        quire_engine_stats_get(b.engine, &stats);
        quire_cache_stats_get(quire_runtime_cache(b.runtime), &cache);
        assert_true(cache.live_bytes + cache.cached_bytes + stats.overflow.offload.buffer_bytes <=
                    some.budget_bytes);
        gate_open(g);
    }
    answer_take(request, &got);
    assert_int_equal(got.n, N_TOKENS);
    quire_request_release(request);
    bench_close(&b);
}

/* Without a file such requests are refused, with both figures. */
static void test_refused_without_a_file(void **state)
{
    setting none = { .format = QUIRE_FORMAT_F16, .is_off = true };
    const setting full = { .format = QUIRE_FORMAT_F16,
                           .budget_bytes = bytes_of(QUIRE_FORMAT_F16, 700),
                           .file_bytes = bytes_of(QUIRE_FORMAT_F16, 512) };
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    int32_t text[N_CTX];
    const quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_request *request;
    engine_bench b = bench_of(&none);
    quire_runtime *rt;

    (void)state;
    runtime.kv_budget_bytes = full.budget_bytes;
    assert_int_equal(quire_runtime_create(&rt, b.model, &runtime, &err), QUIRE_NOPAGES);
    assert_non_null(strstr(err.message, "--kv-budget"));
    bench_close(&b);

    b = bench_of(&full);
    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "bytes of KV"));
    bench_close(&b);
}

/* ---- faults ---- */

static engine_bench bench_faulty(bad_disk *f, uint64_t budget_bytes)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    bad_disk_begin(f);
    runtime.k_format = runtime.v_format = QUIRE_FORMAT_F16;
    runtime.kv_budget_bytes = budget_bytes;
    runtime.kv_overflows = true;
    /* A busy machine may take long over a disk that is not stuck. */
    engine.overflow =
        (quire_overflow_opts){ .dir = test_dir,
                               .capacity_bytes = (uint64_t)1 << 30,
                               .wait_ms = f->is_stuck || f->has_stuck_writes ? 200 : 0,
                               .ops = &f->ops };
    return bench_deep(N_LAYER, &engine, &runtime);
}

/* Damage is detected, and the damaged pages are computed again: the answer is right. */
static void test_damage_is_computed_again(void **state)
{
    const setting all = { .format = QUIRE_FORMAT_F16, .is_off = true };
    bad_disk f = { .n_writes_good = 21 };
    int32_t text[N_CTX];
    answer whole, got;
    quire_engine_stats stats;
    engine_bench b = bench_of(&all);

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    run(&b, text, N_PROMPT, &whole);
    bench_close(&b);
    b = bench_faulty(&f, bytes_of(QUIRE_FORMAT_F16, 700));
    run(&b, text, N_PROMPT, &got);
    assert_memory_equal(&whole, &got, sizeof whole);
    stats = stats_now(b.engine);
    assert_int_equal(stats.overflow.lost_total, 1);
    assert_true(stats.overflow.offload.file.failures_total > 0);
    assert_non_null(strstr(stats.overflow.offload.trouble, "checksum"));
    bench_close(&b);
}

/* A request that can go nowhere ends with a message that names the cause; others run. */
static void fails_and_goes_on(bad_disk *f, uint32_t n_prompt, const char *cause)
{
    int32_t text[N_CTX], small[N_CTX];
    const quire_request_result *result;
    quire_request *request;
    answer got;
    engine_bench b = bench_faulty(f, bytes_of(QUIRE_FORMAT_F16, 700));

    tokens_make(text, n_prompt, 1);
    tokens_make(small, 200, 2);
    request = ask(&b, text, n_prompt);
    result = finish(request);
    assert_int_equal(result->finish, QUIRE_FINISH_ERROR);
    assert_non_null(strstr(result->message, "; overflow file in --cache-dir: "));
    assert_non_null(strstr(result->message, cause));
    quire_request_release(request);
    run(&b, small, 200, &got);
    assert_int_equal(got.n, N_TOKENS);
    atomic_store(&f->is_over, true);
    bench_close(&b);
}

static void test_a_full_disk(void **state)
{
    bad_disk f = { .fails = true, .n_writes_good = 0 };

    (void)state;
    fails_and_goes_on(&f, N_PROMPT, "No space left");
    f = (bad_disk){ .fails = true, .n_writes_good = 40 }; /* in the middle of the third stripe */
    fails_and_goes_on(&f, N_PROMPT, "No space left");
    f = (bad_disk){ .fails = true }; /* memory holds the prompt and some of the answer */
    fails_and_goes_on(&f, 690, "No space left");
}

/* A disk that never answers costs wait_ms, once. */
static void test_a_stuck_disk(void **state)
{
    bad_disk f = { .n_writes_good = UINT32_MAX, .is_stuck = true };

    (void)state;
    fails_and_goes_on(&f, N_PROMPT, "timed out");
    f = (bad_disk){ .n_writes_good = UINT32_MAX, .has_stuck_writes = true };
    fails_and_goes_on(&f, N_PROMPT, "timed out");
    f = (bad_disk){ .n_writes_good = UINT32_MAX, .has_stuck_writes = true };
    fails_and_goes_on(&f, 690, "timed out");
}

/* ---- beside others ---- */

/* A small request beside a large one gets its room, and both get their answers. */
static void test_others_run_beside(void **state)
{
    const setting all = { .format = QUIRE_FORMAT_F16, .is_off = true };
    const setting some = { .format = QUIRE_FORMAT_F16,
                           .budget_bytes = bytes_of(QUIRE_FORMAT_F16, 900) };
    int32_t large[N_CTX], small[N_CTX];
    answer whole[2], got[2];
    quire_request *requests[2];
    engine_bench b = bench_of(&all);

    (void)state;
    tokens_make(large, N_PROMPT, 1);
    tokens_make(small, 200, 2);
    run(&b, large, N_PROMPT, &whole[0]);
    run(&b, small, 200, &whole[1]);
    bench_close(&b);

    b = bench_of(&some);
    requests[0] = ask(&b, large, N_PROMPT);
    for (uint32_t i = 0; i < 20; i++) { /* the large one has taken all memory by then */
        gate *g = gate_close(b.engine);

        gate_step(g);
        gate_open(g);
    }
    requests[1] = ask(&b, small, 200);
    answer_take(requests[1], &got[1]);
    assert_int_equal(quire_request_result_get(requests[1])->n_preemptions, 0);
    answer_take(requests[0], &got[0]);
    assert_int_equal(quire_request_result_get(requests[0])->n_preemptions, 0);
    assert_int_equal(got[0].n, N_TOKENS);
    assert_int_equal(got[1].n, N_TOKENS);
    assert_memory_equal(whole[0].tokens, got[0].tokens, sizeof whole[0].tokens);
    assert_memory_equal(whole[1].tokens, got[1].tokens, sizeof whole[1].tokens);
    quire_request_release(requests[0]);
    quire_request_release(requests[1]);
    validate(b.engine);
    bench_close(&b);
}

/* For a model with one layer the buffers are larger than the pages: nothing is offloaded, and only
 * requests that fit into memory run. */
static void test_nothing_to_gain(void **state)
{
    const setting some = { .format = QUIRE_FORMAT_F16,
                           .n_layer = 1,
                           .budget_bytes = bytes_of(QUIRE_FORMAT_F16, 800) / N_LAYER };
    const uint32_t n_most = 800 - N_TOKENS;
    quire_error err = QUIRE_ERROR_INIT;
    int32_t text[N_CTX];
    quire_request *request;
    quire_request_params params;
    answer got;
    engine_bench b = bench_of(&some);

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    run(&b, text, n_most, &got);
    assert_int_equal(got.n, N_TOKENS);
    params = params_greedy(text, N_PROMPT, N_TOKENS);
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    assert_int_equal(stats_now(b.engine).overflow.offload.pages_out_total, 0);
    bench_close(&b);
}

static void drop_all(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_drop_all(tree, 0);
}

/* Two large requests at once: the second is not refused, and both get their answers. After the last
 * cached page is dropped, the budget is the original one. */
static void test_two_large_ones(void **state)
{
    const setting all = { .format = QUIRE_FORMAT_F16, .is_off = true };
    const setting some = { .format = QUIRE_FORMAT_F16,
                           .budget_bytes = bytes_of(QUIRE_FORMAT_F16, 700) };
    int32_t texts[2][N_CTX];
    answer whole[2], got[2];
    quire_request *requests[2];
    quire_engine_stats stats;
    engine_bench b = bench_of(&all);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        tokens_make(texts[i], N_PROMPT, 1 + i);
        run(&b, texts[i], N_PROMPT, &whole[i]);
    }
    bench_close(&b);
    b = bench_of(&some);
    for (uint32_t i = 0; i < 2; i++) {
        requests[i] = ask(&b, texts[i], N_PROMPT);
        for (uint32_t k = 0; k < 20; k++) { /* its buffers have a part of the budget by then */
            gate *g = gate_close(b.engine);

            gate_step(g);
            gate_open(g);
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        answer_take(requests[i], &got[i]);
        assert_string_equal(quire_request_result_get(requests[i])->message, "");
        assert_int_equal(got[i].n, N_TOKENS);
        assert_memory_equal(whole[i].tokens, got[i].tokens, sizeof whole[i].tokens);
        quire_request_release(requests[i]);
    }
    assert_true(stats_now(b.engine).overflow.offload.buffer_bytes > 0); /* of cached pages */
    (void)engine_call(b.engine, drop_all, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        stats = stats_now(b.engine); /* a round */
    }
    assert_int_equal(stats.overflow.offload.file.stripes_used, 0);
    assert_int_equal(stats.overflow.offload.buffer_bytes, 0);
    assert_int_equal(stats.cache.budget_bytes, some.budget_bytes);
    validate(b.engine);
    bench_close(&b);
}

/* Requests that wait get room in pieces: few large pages, or some small ones, between two steps. */
static void test_round(void **state)
{
    (void)state;
    assert_int_equal(quire_overflow_stripes(1), QUIRE_OVERFLOW_STRIPES_MAX);
    for (uint64_t page_bytes = 4096; page_bytes <= (uint64_t)1 << 30; page_bytes *= 2) {
        const uint64_t bytes = QUIRE_OFFLOAD_STRIPE * page_bytes;
        const uint32_t n = quire_overflow_stripes(page_bytes);

        assert_in_range(n, 1, QUIRE_OVERFLOW_STRIPES_MAX);
        assert_true(n == 1 || n * bytes <= QUIRE_OVERFLOW_ROUND_BYTES);
        assert_true(n == QUIRE_OVERFLOW_STRIPES_MAX ||
                    (n + 1) * bytes > QUIRE_OVERFLOW_ROUND_BYTES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_refused_without_a_file),
        cmocka_unit_test(test_damage_is_computed_again),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_a_stuck_disk),
        cmocka_unit_test(test_others_run_beside),
        cmocka_unit_test(test_nothing_to_gain),
        cmocka_unit_test(test_two_large_ones),
        cmocka_unit_test(test_round),
    };

    return cmocka_run_group_tests_name("overflow", tests, test_dir_make, test_dir_remove);
}
