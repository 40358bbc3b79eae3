/* test_overflow_chain.c - pages of running requests go from a device to the host's memory and from
 * there to a file, and come back: answers are those of a run with all pages on the device, bit by
 * bit. A slow mock, the first Vulkan device, and disks that fail.
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

#include "device/mock_device.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/overflow_loop.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define N_CTX      2048u
#define N_LAYER    16u
#define N_TOKENS   12u
#define N_PROMPT   1500u /* 24 pages of 64 tokens */
#define N_FEW      420u  /* tokens that the device has room for */
#define N_STRIPES  3u    /* of the host's memory, with the stage of the file */
#define FILE_BYTES ((uint64_t)1 << 30)
#define PINNED     2u /* class of the lowest rank, which is pinned */

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static quire_mock_device_opts mock_faults; /* of mocks that are opened */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    assert_string_equal(name, "mock");
    return quire_mock_device_open(out, opts, &mock_faults, err);
}

static bool has_vulkan(void)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_device *device;

    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_layers_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = 64;
    opts.attn.n_entries_max = 16;
    if (quire_device_open(&device, "vulkan0", &opts, &err) < 0) {
        (void)printf("skipped: %s\n", err.message);
        return false;
    }
    quire_device_close(device);
    return true;
}

/* ---- engines ---- */

typedef struct setting {
    const char *device;
    quire_format format;
    uint32_t n_few;     /* tokens that the device has room for; 0: all */
    uint32_t n_pinned;  /* of these, of the pinned region */
    bool has_classes;   /* the default ones, PINNED pinned */
    uint32_t n_stripes; /* of the host's memory; 0: N_STRIPES */
    bool has_no_file;
    quire_overflow_attend attend;
    bad_disk *disk; /* NULL: the operating system's */
} setting;

static quire_runtime_opts runtime_of(const setting *s)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    runtime.n_batch = 128;
    runtime.k_format = runtime.v_format = s->format;
    runtime.kv_recent = runtime.kv_sinks = 64;
    return runtime;
}

static engine_bench bench_of(const setting *s)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = runtime_of(s);

    if (s->n_few != 0) {
        engine_bench b = bench_deep(N_LAYER, &engine, &runtime);
        const quire_model_desc *desc = quire_model_desc_get(b.model);
        const quire_runtime_opts *o = quire_runtime_opts_get(b.runtime);
        const quire_kv_price price = quire_kv_price_make(desc, o);
        const uint32_t n_stripes = s->n_stripes != 0 ? s->n_stripes : N_STRIPES;

        runtime.kv_budget_bytes = quire_kv_price_bytes(&price, s->n_few);
        runtime.kv_overflows = true;
        if (s->has_classes) {
            quire_classes_default(&engine.classes);
            engine.classes.items[PINNED].is_pinned = true;
        }
        engine.pinned_bytes = s->n_pinned > 0 ? quire_kv_price_bytes(&price, s->n_pinned) : 0;
        runtime.attends_host = s->attend != QUIRE_OVERFLOW_ATTEND_DEVICE;
        engine.overflow = (quire_overflow_opts){
            .dir = s->has_no_file ? NULL : test_dir,
            .capacity_bytes = FILE_BYTES,
            .host_bytes = n_stripes * quire_overflow_bytes_min(desc, o),
            .wait_ms = s->disk != NULL && s->disk->is_stuck ? 200 : 0,
            .attend = s->attend,
            .ops = s->disk != NULL ? &s->disk->ops : NULL,
        };
        bench_close(&b);
    }
    runtime.device = s->device;
    runtime.device_open = strcmp(s->device, "mock") == 0 ? open_mock : NULL;
    return bench_deep(N_LAYER, &engine, &runtime);
}

/* A request's tokens with their log-probabilities: any changed bit of KV shows. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
} answer;

static quire_request *ask_as(const engine_bench *b, uint32_t class_index, uint64_t seed,
                             uint32_t n_prompt, uint32_t n_tokens)
{
    int32_t text[N_CTX];
    quire_request_params params;

    tokens_make(text, n_prompt, seed);
    params = params_greedy(text, n_prompt, n_tokens);
    params.class_index = class_index;
    params.has_logprobs = true;
    params.is_uncached = seed >= 100; /* then its pages end with it */
    return submit(b, &params);
}

static quire_request *ask_for(const engine_bench *b, uint64_t seed, uint32_t n_prompt,
                              uint32_t n_tokens)
{
    return ask_as(b, 0, seed, n_prompt, n_tokens);
}

static quire_request *ask(const engine_bench *b, uint64_t seed, uint32_t n_prompt)
{
    return ask_for(b, seed, n_prompt, N_TOKENS);
}

/* The first N_TOKENS tokens. Lavapipe takes long on a busy machine. */
static void take(quire_request *request, answer *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        quire_request_token token;

        if (quire_request_wait(request, i, 4 * FIXTURE_WAIT_MS, &token) != 1) {
            fail_msg("%s", finish(request)->message);
        }
        out->tokens[i] = token.token;
        out->logprobs[i] = token.logprob;
    }
    assert_int_equal(finish(request)->finish, QUIRE_FINISH_LENGTH);
    quire_request_release(request);
}

/* The answer in the device's memory. */
static void answer_whole(const setting *s, uint64_t seed, uint32_t n_prompt, answer *out)
{
    const setting all = { .device = s->device, .format = s->format };
    engine_bench b = bench_of(&all);

    take(ask(&b, seed, n_prompt), out);
    bench_close(&b);
}

static void tokens_assert(const answer *a, const answer *b)
{
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        assert_int_equal(a->tokens[i], b->tokens[i]);
        /* Steps of another shape give other last bits. */
        assert_float_equal(a->logprobs[i], b->logprobs[i], 1e-3);
    }
}

/* ---- answers ---- */

static void check_answers(const setting *s, uint32_t n_prompt)
{
    quire_engine_stats stats;
    const quire_offload_below_stats *below = &stats.overflow.offload.below;
    answer whole, got;
    engine_bench b;

    answer_whole(s, 1, n_prompt, &whole);
    b = bench_of(s);
    take(ask(&b, 1, n_prompt), &got);
    assert_memory_equal(&whole, &got, sizeof whole);
    stats = stats_now(b.engine);
    assert_true(below->is_on);
    assert_true(below->pages_down_total > 0 && below->pages > 0);
    assert_true(below->file.read_bytes_total > 0);
    assert_true(below->file.used_bytes <= below->file.capacity_bytes);
    assert_int_equal(below->file.failures_total, 0);
    assert_int_equal(stats.overflow.offload.file.failures_total, 0);
    assert_int_equal(stats.overflow.lost_total, 0);
    validate(b.engine);
    bench_close(&b);
}

static void test_same_answers(void **state)
{
    setting s = { .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = N_FEW, .n_stripes = 2 };

    (void)state;
    mock_faults = (quire_mock_device_opts){ .delay_ticks = 2 };
    check_answers(&s, N_PROMPT);
    s.format = QUIRE_FORMAT_Q4;
    check_answers(&s, N_PROMPT);
    mock_faults = (quire_mock_device_opts){ 0 };
    if (has_vulkan()) {
        check_answers(
            &(setting){
                .device = "vulkan0", .format = QUIRE_FORMAT_Q8, .n_few = 200, .n_stripes = 2 },
            470); /* more than the device and one stripe of pages in the host hold */
    }
}

/* Values of the tokens of a prompt, and its vector. */
static void scores_get(const setting *s, float *logprobs, float *vector, uint32_t *n_vector)
{
    engine_bench b = bench_of(s);
    quire_request_params params;
    quire_request *request;
    int32_t text[N_CTX];

    tokens_make(text, N_PROMPT, 1);
    params = params_greedy(text, N_PROMPT, 1);
    params.is_prompt_only = params.has_prompt_logprobs = true;
    request = submit(&b, &params);
    assert_int_equal(finish(request)->finish, QUIRE_FINISH_LENGTH);
    for (uint32_t i = 1; i < N_PROMPT; i++) {
        quire_prompt_logprob value;

        assert_true(quire_request_prompt_logprob(request, i, &value));
        logprobs[i] = value.logprob;
    }
    quire_request_release(request);
    params = params_greedy(text, N_PROMPT, 1);
    params.pooling = QUIRE_POOLING_MEAN;
    request = submit(&b, &params);
    assert_int_equal(finish(request)->finish, QUIRE_FINISH_LENGTH);
    *n_vector = quire_request_result_get(request)->n_vector;
    assert_true(*n_vector > 0 && *n_vector <= N_CTX);
    memcpy(vector, quire_request_result_get(request)->vector, *n_vector * sizeof *vector);
    quire_request_release(request);
    assert_int_equal(stats_now(b.engine).overflow.offload.below.pages_down_total > 0,
                     s->n_few != 0);
    bench_close(&b);
}

static void test_scores(void **state)
{
    const setting all = { .device = "mock", .format = QUIRE_FORMAT_F16 };
    const setting few = {
        .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = N_FEW, .n_stripes = 2
    };
    static float logprobs[2][N_PROMPT], vectors[2][N_CTX];
    uint32_t n[2];

    (void)state;
    scores_get(&all, logprobs[0], vectors[0], &n[0]);
    scores_get(&few, logprobs[1], vectors[1], &n[1]);
    assert_int_equal(n[0], n[1]);
    for (uint32_t i = 1; i < N_PROMPT; i++) { /* steps of another shape give other last bits */
        assert_float_equal(logprobs[0][i], logprobs[1][i], 1e-3);
    }
    for (uint32_t i = 0; i < n[0]; i++) {
        assert_float_equal(vectors[0][i], vectors[1][i], 1e-3);
    }
}

/* A text that has room nowhere without the file. */
static void test_without_a_file(void **state)
{
    setting s = { .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = N_FEW, .n_stripes = 2 };
    int32_t text[N_CTX];
    quire_request_params params;
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;
    engine_bench b;

    (void)state;
    s.has_no_file = true;
    tokens_make(text, N_PROMPT, 1);
    params = params_greedy(text, N_PROMPT, N_TOKENS);
    b = bench_of(&s);
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "bytes of KV"));
    assert_false(stats_now(b.engine).overflow.offload.below.is_on);
    bench_close(&b);
}

/* Generated tokens attend pages of the file in the stage, by the CPU's kernels. */
static void test_attended(void **state)
{
    setting s = { .device = "mock",
                  .format = QUIRE_FORMAT_F16,
                  .n_few = N_FEW,
                  .attend = QUIRE_OVERFLOW_ATTEND_HOST };
    quire_engine_stats stats;
    answer whole, got;
    engine_bench b;

    (void)state;
    answer_whole(&s, 1, N_PROMPT, &whole);
    b = bench_of(&s);
    take(ask(&b, 1, N_PROMPT), &got);
    tokens_assert(&whole, &got);
    assert_true(got.logprobs[0] == whole.logprobs[0]); /* the device's */
    stats = stats_now(b.engine);
    assert_true(stats.overflow.offload.below.pages > 0);
    assert_true(stats.overflow.offload.file.attended_bytes_total > 0);
    validate(b.engine);
    bench_close(&b);
}

/* Two large requests, one after the other or side by side. Behind their ends both places are empty.
 */
static void test_two_large(void **state)
{
    const setting s = {
        .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = 900, .n_stripes = 4
    };
    quire_request *long_one, *later;
    quire_request_token token;
    quire_engine_stats stats;
    const quire_offload_below_stats *below = &stats.overflow.offload.below;
    answer whole[2], got[2];
    engine_bench b;

    (void)state;
    answer_whole(&s, 101, 1700, &whole[0]);
    answer_whole(&s, 102, 1000, &whole[1]);
    b = bench_of(&s);
    long_one = ask_for(&b, 101, 1700, 100);
    assert_int_equal(quire_request_wait(long_one, 0, FIXTURE_WAIT_MS, &token), 1);
    later = ask(&b, 102, 1000);
    take(later, &got[1]);
    take(long_one, &got[0]);
    tokens_assert(&whole[0], &got[0]);
    tokens_assert(&whole[1], &got[1]);
    stats = stats_now(b.engine);
    assert_int_equal(stats.overflow.requests_total, 2);
    assert_true(below->pages_down_total > 0);
    assert_int_equal(below->pages, 0); /* behind the end of both */
    assert_int_equal(below->file.stripes_used, 0);
    assert_int_equal(stats.overflow.offload.file.stripes_used, 0);
    assert_int_equal(stats.overflow.lost_total, 0);
    validate(b.engine);
    bench_close(&b);
}

/* Two large requests side by side. When one has ended, pages of the other come up from the file to
 * the host's memory. */
static void test_up(void **state)
{
    const setting s = {
        .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = 700, .n_stripes = 5
    };
    quire_request *long_one;
    quire_request_token token;
    quire_engine_stats stats;
    const quire_offload_below_stats *below = &stats.overflow.offload.below;
    answer whole[2], got[2];
    engine_bench b;

    (void)state;
    answer_whole(&s, 101, N_PROMPT, &whole[0]);
    answer_whole(&s, 102, 1000, &whole[1]);
    b = bench_of(&s);
    long_one = ask_for(&b, 101, N_PROMPT, 200);
    assert_int_equal(quire_request_wait(long_one, 0, FIXTURE_WAIT_MS, &token), 1);
    take(ask(&b, 102, 1000), &got[1]);
    assert_true(stats_now(b.engine).overflow.offload.below.pages_down_total > 0);
    take(long_one, &got[0]);
    tokens_assert(&whole[0], &got[0]);
    tokens_assert(&whole[1], &got[1]);
    stats = stats_now(b.engine);
    assert_true(below->pages_up_total > 0);
    assert_int_equal(below->file.failures_total, 0);
    validate(b.engine);
    bench_close(&b);
}

/* From the host's memory pages of a pinned class go on to the file after those of other classes of
 * higher rank, and by rank without a pinned region. */
static void test_order(void **state)
{
    setting s = { .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = 900, .has_classes = true };

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        quire_request *pinned, *other;
        const quire_loop *loop;
        engine_bench b;
        gate *g;

        s.n_pinned = i * 128;
        b = bench_of(&s);
        loop = b.engine->loop;
        g = gate_close(b.engine);
        pinned = ask_as(&b, PINNED, 101, 100, N_TOKENS);
        other = ask_as(&b, 0, 102, 100, N_TOKENS);
        assert_true(pinned->rank < other->rank);
        assert_int_equal(quire_overflow_order(loop, pinned) > quire_overflow_order(loop, other), i);
        gate_open(g);
        assert_int_equal(finish(pinned)->finish, QUIRE_FINISH_LENGTH);
        assert_int_equal(finish(other)->finish, QUIRE_FINISH_LENGTH);
        quire_request_release(pinned);
        quire_request_release(other);
        bench_close(&b);
    }
}

/* ---- disks that fail ---- */

/* A damaged page is found, and the request is computed again: the answer is right. */
static void test_damage(void **state)
{
    bad_disk d = { .n_writes_good = 21 };
    const setting s = { .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = N_FEW, .disk = &d };
    quire_engine_stats stats;
    answer whole, got;
    engine_bench b;

    (void)state;
    bad_disk_begin(&d);
    answer_whole(&s, 1, N_PROMPT, &whole);
    b = bench_of(&s);
    take(ask(&b, 1, N_PROMPT), &got);
    tokens_assert(&whole, &got);
    stats = stats_now(b.engine);
    assert_int_equal(stats.overflow.lost_total, 1);
    assert_true(stats.overflow.offload.below.file.failures_total > 0);
    assert_non_null(strstr(stats.overflow.offload.trouble, "checksum"));
    validate(b.engine);
    bench_close(&b);
}

/* The request that needs the file ends with a message that names the cause. A request beside it
 * whose pages fit the host's memory gets its answer, and so do later requests. */
static void check_failure(bad_disk *d, const char *cause)
{
    const setting s = { .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = N_FEW, .disk = d };
    const quire_request_result *result;
    quire_request *request, *beside;
    answer small, other, got;
    engine_bench b;

    bad_disk_begin(d);
    answer_whole(&s, 2, 130, &small);
    answer_whole(&s, 3, 700, &other);
    b = bench_of(&s);
    request = ask(&b, 101, N_PROMPT);
    beside = ask(&b, 2, 130);
    result = finish(request);
    assert_int_equal(result->finish, QUIRE_FINISH_ERROR);
    assert_non_null(strstr(result->message, "; overflow file in --cache-dir: "));
    assert_non_null(strstr(result->message, cause));
    quire_request_release(request);
    take(beside, &got);
    tokens_assert(&small, &got);
    take(ask(&b, 3, 700), &got); /* larger than the device's memory */
    tokens_assert(&other, &got);
    validate(b.engine);
    atomic_store(&d->is_over, true);
    bench_close(&b);
}

static void test_a_full_disk(void **state)
{
    bad_disk d = { .fails = true };

    (void)state;
    check_failure(&d, "No space left");
    d = (bad_disk){ .fails = true, .n_writes_good = 20 }; /* in the middle of the second stripe */
    check_failure(&d, "No space left");
}

/* The host's memory is full of pages that no request uses any more, and they cannot go on to the
 * file: then they make room, and the request that needs it goes on at once. */
static void test_a_full_disk_and_unused_pages(void **state)
{
    bad_disk d = { .fails = true };
    const setting s = { .device = "mock", .format = QUIRE_FORMAT_F16, .n_few = N_FEW, .disk = &d };
    const quire_request_result *result;
    quire_engine_stats stats;
    quire_request *request;
    engine_bench b;

    (void)state;
    bad_disk_begin(&d);
    b = bench_of(&s);
    request = ask(&b, 2, 1000);
    assert_int_equal(finish(request)->finish, QUIRE_FINISH_LENGTH);
    quire_request_release(request);
    stats = stats_now(b.engine);
    assert_int_equal(stats.overflow.offload.file.stripes_used,
                     stats.overflow.offload.file.stripes_max);
    assert_int_equal(stats.overflow.offload.below.file.failures_total, 0);
    request = ask(&b, 3, 1000);
    result = finish(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    assert_int_equal(result->n_preemptions, 0);
    quire_request_release(request);
    assert_true(stats_now(b.engine).overflow.offload.below.file.failures_total > 0);
    validate(b.engine);
    bench_close(&b);
}

/* A disk that never answers costs wait_ms, once. */
static void test_a_stuck_disk(void **state)
{
    bad_disk d = { .n_writes_good = UINT32_MAX, .is_stuck = true };

    (void)state;
    check_failure(&d, "timed out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),   cmocka_unit_test(test_scores),
        cmocka_unit_test(test_without_a_file), cmocka_unit_test(test_attended),
        cmocka_unit_test(test_two_large),      cmocka_unit_test(test_up),
        cmocka_unit_test(test_order),          cmocka_unit_test(test_damage),
        cmocka_unit_test(test_a_full_disk),    cmocka_unit_test(test_a_full_disk_and_unused_pages),
        cmocka_unit_test(test_a_stuck_disk),
    };

    return cmocka_run_group_tests_name("overflow_chain", tests, test_dir_make, test_dir_remove);
}
