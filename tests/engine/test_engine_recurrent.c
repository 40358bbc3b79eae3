/* test_engine_recurrent.c - models with recurrent layers behind the engine: answers are those of a
 * plain loop, also of many requests side by side, and what has no states is refused.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "tier_kit.h"

#include "engine/overflow.h"

#include <string.h>

static engine_bench bench_of(uint32_t n_seqs)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, n_seqs);

    engine.precache.is_off = true;
    return bench_recurrent(&engine, &runtime);
}

/* Requests of different lengths side by side, more of them than sequences, each twice. */
static void test_many_requests(void **state)
{
    enum {
        N = 6,
        N_LONG = 300
    };
    engine_bench b = bench_of(3);
    int32_t texts[N][N_LONG], got[N_TOKENS], expected[N_TOKENS];
    quire_request *requests[2 * N];

    (void)state;
    for (uint32_t i = 0; i < 2 * N; i++) {
        quire_request_params params = params_greedy(texts[i % N], 50 + 40 * (i % N), N_TOKENS);

        tokens_make(texts[i % N], N_LONG, 70 + i % N);
        requests[i] = submit(&b, &params);
    }
    for (uint32_t i = 0; i < 2 * N; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        quire_request_release(requests[i]);
        if (reference(&b, texts[i % N], 50 + 40 * (i % N), expected, N_TOKENS) >
            REFERENCE_GAP_MIN) {
            assert_memory_equal(got, expected, sizeof expected);
        }
    }
    validate(b.engine);
    bench_close(&b);
}

static void test_what_is_refused(void **state)
{
    engine_bench b = bench_of(2);
    quire_store *store = tier_store_new();
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine *engine;

    (void)state;
    assert_int_equal(quire_overflow_check(quire_model_desc_get(b.model), &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "lfm2 has recurrent layers: pages of such models cannot be "
                                        "offloaded (--kv-overflow refuse)"));
    opts.model = b.model;
    opts.runtime = b.runtime;
    opts.tier.store = store;
    quire_engine_destroy(b.engine);
    assert_int_equal(quire_engine_create(&engine, &opts, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "lfm2 has recurrent layers, whose states are not stored: "
                                        "serve it without cache_dir and store"));
    assert_null(engine);
    b.engine = NULL;
    bench_close(&b);
    quire_memory_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_requests),
        cmocka_unit_test(test_what_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
