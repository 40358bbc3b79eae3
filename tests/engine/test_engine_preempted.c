/* test_engine_preempted.c - requests that are preempted go on from what the tree has of them: with
 * recurrent layers from their last state, with windows from their last window. They compute again
 * no more than the distance to it, with the same answers.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "tier_kit.h"

#include <string.h>

enum {
    LOW = 2, /* classes */
    HIGH = 0
};

#define N_TEXT 200u /* tokens of a prompt */
#define N_MORE 200u /* of an answer: a request grows by three pages */

/* arch: NULL = a model with windows. */
static engine_bench bench_of(const char *arch, uint64_t budget_bytes, uint32_t n_seqs,
                             uint32_t n_running_max)
{
    static const int32_t windows[4] = { 70, 0, 0, 0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(7 * PAGE, n_seqs);

    engine.precache.is_off = true;
    engine.state_every_tokens = PAGE;
    engine.n_running_max = n_running_max;
    quire_classes_default(&engine.classes);
    runtime.kv_budget_bytes = budget_bytes;
    return arch != NULL ? bench_recurrent(arch, &engine, &runtime)
                        : bench_windows(windows, &engine, &runtime);
}

static void check_answer(const engine_bench *b, const int32_t *text, uint32_t n, const int32_t *got,
                         uint32_t n_got)
{
    int32_t expected[N_MORE];

    if (reference(b, text, n, expected, n_got) > REFERENCE_GAP_MIN) {
        assert_memory_equal(got, expected, n_got * sizeof *got);
    }
}

/* A request of a higher class takes the only sequence of one that writes its answer. Memory is not
 * short, so the request goes on where it was. */
static void test_for_a_higher_class(void **state)
{
    engine_bench b = bench_of(*state, UINT64_C(64) << 20, 1, 1);
    int32_t texts[2][100], got[N_TOKENS];
    quire_request *requests[2];
    gate *g = gate_close(b.engine);

    for (uint32_t i = 0; i < 2; i++) {
        quire_request_params params = params_greedy(texts[i], 100, N_TOKENS);

        params.class_index = i == 0 ? LOW : HIGH;
        tokens_make(texts[i], 100, 95 + i);
        requests[i] = submit(&b, &params);
        for (uint32_t k = 0; i == 0 && k < 6; k++) { /* it has a token or two */
            gate_step(g);
        }
    }
    gate_open(g);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        assert_int_equal(finish(requests[i])->n_preemptions, i == 0 ? 1 : 0);
        assert_int_equal(finish(requests[i])->n_parkings, 0);
        assert_int_equal(finish(requests[i])->n_recomputed_tokens, 0);
        quire_request_release(requests[i]);
        check_answer(&b, texts[i], 100, got, N_TOKENS);
    }
    assert_int_equal(stats_now(b.engine).preemptions_total, 1);
    validate(b.engine);
    bench_close(&b);
}

typedef struct outcome {
    uint32_t n_preemptions;
    uint32_t n_recomputed;
} outcome;

/* Two requests side by side, whose answers are those of a plain loop. */
static outcome run_two(const char *arch, uint64_t budget_bytes)
{
    engine_bench b = bench_of(arch, budget_bytes, 2, 0);
    int32_t texts[2][N_TEXT], got[N_MORE];
    quire_request *requests[2];
    outcome out = { 0 };
    gate *g = gate_close(b.engine);

    for (uint32_t i = 0; i < 2; i++) {
        quire_request_params params = params_greedy(texts[i], N_TEXT, N_MORE);

        tokens_make(texts[i], N_TEXT, 40 + i);
        requests[i] = submit(&b, &params);
    }
    gate_open(g);
    for (uint32_t i = 0; i < 2; i++) {
        const quire_request_result *result = finish(requests[i]);

        assert_int_equal(collect(requests[i], got, N_MORE), N_MORE);
        out.n_preemptions += result->n_preemptions;
        out.n_recomputed += result->n_recomputed_tokens;
        quire_request_release(requests[i]);
        check_answer(&b, texts[i], N_TEXT, got, N_MORE);
    }
    assert_int_equal(stats_now(b.engine).preemptions_total, out.n_preemptions);
    assert_int_equal(stats_now(b.engine).recomputed_tokens_total, out.n_recomputed);
    validate(b.engine);
    bench_close(&b);
    return out;
}

/* Less and less memory, from enough for both requests on. Where little is missing, one of them is
 * preempted when all memory is full, and the other one ends before it has to take much: what was
 * preempted computes again at most the distance between two states. With less memory pages go, too.
 */
static void test_for_want_of_memory(void **state)
{
    engine_bench b = bench_of(*state, 0, 1, 0);
    const quire_kv_price price =
        quire_kv_price_make(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime));
    const uint64_t page_bytes = price.main_page_bytes + price.window_page_bytes;
    const uint64_t one_bytes =
        quire_runtime_kv_bytes(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime));
    uint32_t n_preempted = 0; /* budgets */

    bench_close(&b);
    for (uint64_t bytes = 2 * one_bytes + 2 * page_bytes;
         bytes >= one_bytes + 4 * page_bytes && n_preempted < 3; bytes -= page_bytes) {
        const outcome got = run_two(*state, bytes);

        assert_true(n_preempted > 0 || got.n_recomputed <= PAGE);
        n_preempted += got.n_preemptions > 0;
    }
    assert_true(n_preempted > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_for_a_higher_class, (void *)(uintptr_t) "lfm2"),
        cmocka_unit_test_prestate(test_for_a_higher_class, (void *)(uintptr_t) "qwen35"),
        cmocka_unit_test_prestate(test_for_a_higher_class, NULL),
        cmocka_unit_test_prestate(test_for_want_of_memory, (void *)(uintptr_t) "lfm2"),
        cmocka_unit_test_prestate(test_for_want_of_memory, (void *)(uintptr_t) "qwen35"),
        cmocka_unit_test_prestate(test_for_want_of_memory, NULL),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
