/* test_overflow_device.c - requests that are larger than the memory of a device: their pages lie in
 * the host's memory and come to the device layer by layer, and answers are those of a run with all
 * pages on the device, bit by bit. A mock that is slow, small, fails to copy or is lost; and the
 * first Vulkan device.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "rounds.h"

#include "device/mock_device.h"
#include "engine/pins.h"

#include <stdio.h>
#include <string.h>

#define N_CTX    1024u
#define N_PROMPT 620u
#define N_FEW    260u /* tokens that memory has room for */
#define N_TOKENS 8u
#define N_LAYER  8u

/* A device with room for two extents, the pinned memory and the buffer. */
#define SMALL_HOST_BYTES ((uint64_t)1 << 21)
#define SMALL_BYTES      (2 * ((uint64_t)2 << 20) + SMALL_HOST_BYTES + ((uint64_t)1 << 17))

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static quire_mock_device_opts faults; /* of mocks that are opened */
static uint64_t mock_bytes;           /* that they have; 0: no bound */
static quire_device *mock;            /* opened last */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    quire_device_opts own = *opts;
    int rc;

    assert_string_equal(name, "mock");
    own.memory_bytes_max = mock_bytes;
    rc = quire_mock_device_open(out, &own, &faults, err);
    mock = *out;
    return rc;
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

static quire_overflow_attend attend; /* of engines that are opened */

/* budget_tokens: tokens whose KV the budget holds; 0: all. host_bytes: for the others. */
static engine_bench bench_of(const char *device, quire_format format, uint32_t budget_tokens,
                             uint64_t host_bytes)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    engine_bench b;

    runtime.n_batch = 128;
    runtime.k_format = runtime.v_format = format;
    runtime.kv_recent = runtime.kv_sinks = 64;
    runtime.device = device;
    runtime.device_open = strcmp(device, "mock") == 0 ? open_mock : NULL;
    if (budget_tokens != 0) {
        quire_runtime_opts plain = runtime;
        quire_kv_price price;

        plain.device = NULL;
        b = bench_deep(N_LAYER, &engine, &plain);
        price =
            quire_kv_price_make(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime));
        bench_close(&b);
        runtime.kv_budget_bytes = quire_kv_price_bytes(&price, budget_tokens);
        runtime.kv_overflows = true;
        engine.overflow.host_bytes = host_bytes;
        engine.overflow.attend = attend;
        runtime.attends_host = attend != QUIRE_OVERFLOW_ATTEND_DEVICE;
    }
    return bench_deep(N_LAYER, &engine, &runtime);
}

/* A request's tokens with their log-probabilities: any changed bit of KV shows. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
} answer;

static quire_request *ask(const engine_bench *b, uint64_t seed, uint32_t n_prompt)
{
    int32_t text[N_PROMPT];
    quire_request_params params;

    tokens_make(text, n_prompt, seed);
    params = params_greedy(text, n_prompt, N_TOKENS);
    params.has_logprobs = true;
    return submit(b, &params);
}

static void take(quire_request *request, answer *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        quire_request_token token;

        if (quire_request_wait(request, i, FIXTURE_WAIT_MS, &token) != 1) {
            fail_msg("%s", finish(request)->message);
        }
        out->tokens[i] = token.token;
        out->logprobs[i] = token.logprob;
    }
    assert_int_equal(finish(request)->finish, QUIRE_FINISH_LENGTH);
    quire_request_release(request);
}

/* A text of more than twice the memory is computed, and then found as a hit, with pages partly in
 * the host's memory. */
static void check_answers(const char *device, quire_format format, uint32_t n_prompt,
                          uint32_t n_few)
{
    engine_bench b = bench_of(device, format, 0, 0);
    const bool is_slow = strcmp(device, "vulkan0") == 0; /* lavapipe */
    quire_engine_stats stats;
    answer whole, again, got;

    take(ask(&b, 1, n_prompt), &whole);
    if (!is_slow) {
        take(ask(&b, 1, n_prompt), &again);
    }
    bench_close(&b);

    b = bench_of(device, format, n_few, (uint64_t)1 << 28);
    take(ask(&b, 1, n_prompt), &got);
    assert_memory_equal(&whole, &got, sizeof whole);
    stats = stats_now(b.engine);
    assert_true(stats.overflow.is_on);
    assert_int_equal(stats.overflow.requests_total, 1);
    assert_true(stats.overflow.offload.pages_out_total >= 4);
    assert_true(stats.overflow.offload.file.read_bytes_total > 0);
    assert_int_equal(stats.overflow.offload.file.failures_total, 0);
    validate(b.engine);
    if (!is_slow) {
        take(ask(&b, 1, n_prompt), &got);
        assert_memory_equal(&again, &got, sizeof again);
        validate(b.engine);
    }
    bench_close(&b);
}

static void test_same_answers(void **state)
{
    (void)state;
    faults = (quire_mock_device_opts){ .delay_ticks = 2 };
    check_answers("mock", QUIRE_FORMAT_F16, N_PROMPT, N_FEW);
    check_answers("mock", QUIRE_FORMAT_Q4, N_PROMPT, N_FEW);
    faults = (quire_mock_device_opts){ 0 };
    if (has_vulkan()) {
        check_answers("vulkan0", QUIRE_FORMAT_Q8, 400, 200);
    }
}

/* The device has no more memory than the pages' extents, the pinned memory and the buffer take
 * together (it counts pinned memory as its own). Requests beside run as ever. */
static void test_small_device(void **state)
{
    engine_bench b = bench_of("mock", QUIRE_FORMAT_F16, 0, 0);
    quire_request *requests[2];
    answer whole, other, got;

    (void)state;
    take(ask(&b, 1, N_PROMPT), &whole);
    take(ask(&b, 2, 70), &other);
    bench_close(&b);

    mock_bytes = SMALL_BYTES;
    b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW, SMALL_HOST_BYTES);
    requests[0] = ask(&b, 1, N_PROMPT);
    requests[1] = ask(&b, 2, 70);
    take(requests[0], &got);
    assert_memory_equal(&whole, &got, sizeof whole);
    take(requests[1], &got);
    assert_memory_equal(&other, &got, sizeof other);
    validate(b.engine);
    bench_close(&b);
    mock_bytes = 0;
}

/* Pages that a pin holds, and pages with the host. */
static uint32_t pages_count(const quire_cache *cache, uint32_t *n_pinned)
{
    uint32_t n_away = 0;

    *n_pinned = 0;
    for (quire_page_id page = 1; page < quire_cache_page_id_end(cache); page++) {
        quire_page_info info;

        if (quire_cache_page_info_get(cache, page, &info) == QUIRE_OK) {
            assert_false(info.is_pinned && info.is_offloaded);
            *n_pinned += info.is_pinned;
            n_away += info.is_offloaded;
        }
    }
    return n_away;
}

/* The pages of a pin stay on the device while a large request gives up its own. */
static void test_pins_stay(void **state)
{
    engine_bench b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW + 128, (uint64_t)1 << 28);
    const quire_cache *cache = quire_runtime_cache(b.runtime);
    int32_t text[128];
    const quire_engine_pin_params params = { .name = "manual", .tokens = text, .n_tokens = 128 };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;
    quire_request *request;
    uint32_t n_away = 0;
    answer whole, got;

    (void)state;
    tokens_make(text, 128, 7);
    assert_int_equal(quire_engine_pin_create(b.engine, &params, &pin, NULL, &err), QUIRE_OK);
    request = ask(&b, 1, N_PROMPT);
    for (uint32_t i = 0; i < 8; i++) {
        gate *g = gate_close(b.engine);
        uint32_t n_pinned;
        uint32_t n;

        gate_step(g);
        n = pages_count(cache, &n_pinned);
        n_away = n > n_away ? n : n_away;
        assert_int_equal(n_pinned, 2);
        gate_open(g);
    }
    take(request, &got);
    assert_true(n_away > 0);
    validate(b.engine);
    bench_close(&b);

    b = bench_of("mock", QUIRE_FORMAT_F16, 0, 0);
    take(ask(&b, 1, N_PROMPT), &whole);
    assert_memory_equal(&whole, &got, sizeof whole);
    bench_close(&b);
}

/* The host's memory is bounded, too: larger requests are refused with both figures. */
static void test_host_is_full(void **state)
{
    engine_bench b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW, (uint64_t)1 << 20);
    int32_t text[N_CTX - N_TOKENS];
    const quire_request_params params = params_greedy(text, N_CTX - N_TOKENS, N_TOKENS);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;

    (void)state;
    tokens_make(text, N_CTX - N_TOKENS, 1);
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "bytes of KV"));
    bench_close(&b);
}

/* A copy that fails on its way to a step: the request is computed again, and right. */
static void test_failed_copies(void **state)
{
    engine_bench b = bench_of("mock", QUIRE_FORMAT_F16, 0, 0);
    uint64_t n_lost = 0;
    answer whole;

    (void)state;
    take(ask(&b, 1, N_PROMPT), &whole);
    bench_close(&b);
    for (uint64_t seed = 1; seed <= TEST_ROUNDS(20u, 6u); seed++) {
        const quire_request_result *result;
        quire_request *request;

        faults = (quire_mock_device_opts){ .seed = seed, .copy_failure = 1.0 / 2000 };
        b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW, (uint64_t)1 << 28);
        request = ask(&b, 1, N_PROMPT);
        result = finish(request);
        if (result->finish == QUIRE_FINISH_LENGTH) {
            for (uint32_t i = 0; i < N_TOKENS; i++) {
                quire_request_token token;

                assert_int_equal(quire_request_wait(request, i, FIXTURE_WAIT_MS, &token), 1);
                assert_int_equal(token.token, whole.tokens[i]);
                /* Computed again in steps of another shape, so with other last bits. */
                assert_float_equal(token.logprob, whole.logprobs[i], 1e-4);
            }
            n_lost += stats_now(b.engine).overflow.lost_total;
        } else { /* a page on its way down: no step could tell which holds garbage */
            assert_int_equal(result->finish, QUIRE_FINISH_ERROR);
        }
        quire_request_release(request);
        bench_close(&b);
    }
    faults = (quire_mock_device_opts){ 0 };
    assert_true(n_lost > 0);
}

/* The device is lost while pages are on their way. */
static void test_loss(void **state)
{
    (void)state;
    for (uint64_t at = 100; at <= 300; at += 100) {
        const quire_request_result *result;
        quire_request *request;
        engine_bench b;

        faults = (quire_mock_device_opts){ .lose_at = at };
        b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW, (uint64_t)1 << 28);
        request = ask(&b, 1, N_PROMPT);
        result = finish(request);
        assert_int_equal(result->finish, QUIRE_FINISH_ERROR);
        assert_int_equal(result->status, QUIRE_LOST);
        quire_request_release(request);
        bench_close(&b);
    }
    faults = (quire_mock_device_opts){ 0 };
}

/* ---- attention where pages lie ---- */

/* The answer to a prompt, and how many of the tokens were cached when it was asked with its answer
 * again, as the next turn of a conversation does. */
static uint32_t turn_take(const engine_bench *b, uint32_t n_prompt, answer *out)
{
    int32_t text[N_PROMPT + N_TOKENS + 1];
    quire_request_params params;
    quire_request *request;
    uint32_t n_cached;

    take(ask(b, 1, n_prompt), out);
    tokens_make(text, n_prompt, 1);
    memcpy(text + n_prompt, out->tokens, sizeof out->tokens);
    text[n_prompt + N_TOKENS] = 5;
    params = params_greedy(text, n_prompt + N_TOKENS + 1, 1);
    request = submit(b, &params);
    n_cached = finish(request)->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

/* Generated tokens attend pages in the host's memory without moving them: the answer is that of the
 * device up to rounding. The prompt has the device's bits, computed and as a hit, and is shared.
 * The generated tokens are not shared. */
static void check_attended(const char *device, quire_format format, uint32_t n_prompt,
                           uint32_t n_few, float limit)
{
    engine_bench b = bench_of(device, format, n_few, (uint64_t)1 << 28);
    quire_engine_stats stats;
    answer whole, hit, got;
    uint32_t n_cached;

    n_cached = turn_take(&b, n_prompt, &whole);
    assert_true(n_cached >= (format < QUIRE_FORMATS_DIRECT ? n_prompt + N_TOKENS - 1 : 64));
    assert_int_equal(stats_now(b.engine).overflow.offload.file.attended_bytes_total, 0);
    take(ask(&b, 1, n_prompt), &hit);
    bench_close(&b);

    attend = QUIRE_OVERFLOW_ATTEND_HOST;
    b = bench_of(device, format, n_few, (uint64_t)1 << 28);
    n_cached = turn_take(&b, n_prompt, &got);
    assert_true(got.logprobs[0] == whole.logprobs[0]);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        assert_int_equal(got.tokens[i], whole.tokens[i]);
        assert_float_equal(got.logprobs[i], whole.logprobs[i], limit);
    }
    assert_memory_not_equal(&got, &whole, sizeof got); /* two kernels, so other last bits */
    assert_true(n_cached >= n_prompt - 64 && n_cached <= n_prompt);
    stats = stats_now(b.engine);
    assert_true(stats.overflow.offload.pages_out_total >= 4);
    assert_true(stats.overflow.offload.file.attended_bytes_total > 0);
    validate(b.engine);
    take(ask(&b, 1, n_prompt), &got);
    assert_int_equal(got.tokens[0], hit.tokens[0]);
    assert_true(got.logprobs[0] == hit.logprobs[0]);
    bench_close(&b);
    attend = QUIRE_OVERFLOW_ATTEND_DEVICE;
}

static void test_attended(void **state)
{
    (void)state;
    faults = (quire_mock_device_opts){ .delay_ticks = 2 };
    check_attended("mock", QUIRE_FORMAT_F16, N_PROMPT, N_FEW, 1e-3f);
    check_attended("mock", QUIRE_FORMAT_Q8, N_PROMPT, N_FEW, 5e-2f);
    faults = (quire_mock_device_opts){ 0 };
    if (has_vulkan()) {
        check_attended("vulkan0", QUIRE_FORMAT_F16, 400, 200, 1e-2f);
    }
}

/* Sealed formats: pages with tiles in 8 bit are copied in the same steps. */
static void test_attended_sealed(void **state)
{
    quire_engine_stats stats;
    engine_bench b;
    answer got;

    (void)state;
    attend = QUIRE_OVERFLOW_ATTEND_HOST;
    b = bench_of("mock", QUIRE_FORMAT_Q4, N_FEW, (uint64_t)1 << 28);
    take(ask(&b, 1, N_PROMPT), &got);
    take(ask(&b, 1, N_PROMPT), &got);
    stats = stats_now(b.engine);
    assert_true(stats.overflow.offload.file.attended_bytes_total > 0);
    assert_true(stats.overflow.offload.file.read_bytes_total > 0);
    assert_int_equal(stats.overflow.offload.file.failures_total, 0);
    validate(b.engine);
    bench_close(&b);
    attend = QUIRE_OVERFLOW_ATTEND_DEVICE;
}

/* Both places of attention are measured before one is chosen. */
static void test_attended_auto(void **state)
{
    quire_engine_stats stats;
    uint64_t attended_bytes;
    engine_bench b;
    answer got;

    (void)state;
    attend = QUIRE_OVERFLOW_ATTEND_AUTO;
    b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW, (uint64_t)1 << 28);
    take(ask(&b, 1, N_PROMPT), &got);
    stats = stats_now(b.engine);
    attended_bytes = stats.overflow.offload.file.attended_bytes_total;
    assert_true(attended_bytes > 0);
    bench_close(&b);

    attend = QUIRE_OVERFLOW_ATTEND_HOST; /* attends in all of these steps */
    b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW, (uint64_t)1 << 28);
    take(ask(&b, 1, N_PROMPT), &got);
    stats = stats_now(b.engine);
    assert_true(stats.overflow.offload.file.attended_bytes_total > attended_bytes);
    bench_close(&b);
    attend = QUIRE_OVERFLOW_ATTEND_DEVICE;
}

/* A device that fails copies or is lost while the host attends: the answer is right, or the request
 * fails by name. */
static void test_attended_faults(void **state)
{
    engine_bench b = bench_of("mock", QUIRE_FORMAT_F16, 0, 0);
    uint32_t n_right = 0;
    uint32_t n_lost = 0;
    answer whole;

    (void)state;
    take(ask(&b, 1, N_PROMPT), &whole);
    bench_close(&b);
    attend = QUIRE_OVERFLOW_ATTEND_HOST;
    for (uint64_t seed = 1; seed <= TEST_ROUNDS(20u, 6u); seed++) {
        const quire_request_result *result;
        quire_request *request;

        faults = (quire_mock_device_opts){ .seed = seed,
                                           .copy_failure = 1.0 / 4000,
                                           .loss = 1.0 / 4000 };
        b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW, (uint64_t)1 << 28);
        request = ask(&b, 1, N_PROMPT);
        result = finish(request);
        for (uint32_t i = 0; result->finish == QUIRE_FINISH_LENGTH && i < N_TOKENS; i++) {
            quire_request_token token;

            assert_int_equal(quire_request_wait(request, i, FIXTURE_WAIT_MS, &token), 1);
            assert_int_equal(token.token, whole.tokens[i]);
        }
        n_right += result->finish == QUIRE_FINISH_LENGTH;
        n_lost += result->finish == QUIRE_FINISH_ERROR && result->status == QUIRE_LOST;
        assert_true(result->finish == QUIRE_FINISH_LENGTH || result->finish == QUIRE_FINISH_ERROR);
        quire_request_release(request);
        bench_close(&b);
    }
    faults = (quire_mock_device_opts){ 0 };
    attend = QUIRE_OVERFLOW_ATTEND_DEVICE;
    assert_true(n_right > 0);
    assert_true(n_lost > 0);
}

/* The capacity is a figure from the start on, before the engine's thread has had a round. */
static void test_capacity_at_start(void **state)
{
    quire_engine_stats stats;
    engine_bench b;

    (void)state;
    b = bench_of("mock", QUIRE_FORMAT_F16, N_FEW, (uint64_t)1 << 28);
    quire_engine_stats_get(b.engine, &stats);
    assert_true(stats.overflow.is_on);
    assert_true(stats.overflow.offload.file.capacity_bytes > 0);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),      cmocka_unit_test(test_small_device),
        cmocka_unit_test(test_pins_stay),         cmocka_unit_test(test_host_is_full),
        cmocka_unit_test(test_failed_copies),     cmocka_unit_test(test_loss),
        cmocka_unit_test(test_attended),          cmocka_unit_test(test_attended_sealed),
        cmocka_unit_test(test_attended_auto),     cmocka_unit_test(test_attended_faults),
        cmocka_unit_test(test_capacity_at_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
