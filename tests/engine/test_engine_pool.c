/* test_engine_pool.c - texts as vectors: the hidden states of libllama, pooled; with chunks, beside
 * generations, and with a cached prefix.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include <math.h>
#include <string.h>

#define MODEL    "stories260K-f32.gguf"
#define N_CTX    256u
#define N_TOKENS N_CTX /* nothing is generated, so a text may fill the context */
#define N_EMBD   64u

static engine_bench b;
static float peer[N_TOKENS][N_EMBD];
static int32_t tokens[N_TOKENS];

static int setup(void **state)
{
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    fixture_peer *of = fixture_peer_open(fixture_model_path(MODEL), N_CTX);
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    tokens_make(tokens, N_TOKENS, 7);
    b = (engine_bench){ .model = fixture_open(fixture_model_path(MODEL)) };
    assert_int_equal(quire_model_desc_get(b.model)->n_embd, N_EMBD);
    memcpy(peer, fixture_peer_hidden(of, tokens, N_TOKENS), sizeof peer);
    fixture_peer_close(of);
    b.runtime = fixture_runtime(b.model, &runtime);
    b.n_vocab = quire_model_desc_get(b.model)->n_vocab;
    opts.model = b.model;
    opts.runtime = b.runtime;
    opts.chunk_tokens = 32; /* the text takes several steps */
    assert_int_equal(quire_engine_create(&b.engine, &opts, &err), QUIRE_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bench_close(&b);
    return 0;
}

static quire_request_params params_of(quire_pooling pooling, uint32_t n)
{
    quire_request_params params = params_greedy(tokens, n, 1);

    params.pooling = pooling;
    return params;
}

/* The mean of rows first .. last of the peer must be the vector. */
static void expect_rows(const quire_request_result *result, uint32_t first, uint32_t last)
{
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    assert_int_equal(result->n_generated_tokens, 0);
    assert_int_equal(result->n_vector, N_EMBD);
    assert_non_null(result->vector);
    for (uint32_t i = 0; i < N_EMBD; i++) {
        double sum = 0.0;

        for (uint32_t row = first; row <= last; row++) {
            sum += (double)peer[row][i];
        }
        sum /= last - first + 1;
        if (fabs(sum - (double)result->vector[i]) > 2e-3 * (1.0 + fabs(sum))) {
            fail_msg("number %u is %g, not %g", i, (double)result->vector[i], sum);
        }
    }
}

static void test_poolings(void **state)
{
    static const quire_pooling poolings[] = { QUIRE_POOLING_MEAN, QUIRE_POOLING_CLS,
                                              QUIRE_POOLING_LAST };
    static const uint32_t lengths[] = { 1, 32, 33, N_TOKENS };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 4; k++) {
            const uint32_t n = lengths[k];
            const quire_request_params params = params_of(poolings[i], n);
            quire_request *request = submit(&b, &params);

            expect_rows(finish(request), poolings[i] == QUIRE_POOLING_LAST ? n - 1 : 0,
                        poolings[i] == QUIRE_POOLING_CLS ? 0 : n - 1);
            quire_request_release(request);
        }
    }
}

/* The last token's state needs no other token computed; the mean needs all of them. */
static void test_cached_prefix(void **state)
{
    quire_request_params params = params_of(QUIRE_POOLING_LAST, N_TOKENS);
    quire_request *request;

    (void)state;
    for (int i = 0; i < 2; i++) {
        request = submit(&b, &params);
        expect_rows(finish(request), N_TOKENS - 1, N_TOKENS - 1);
        if (i == 1) {
            assert_int_equal(quire_request_result_get(request)->n_cached_tokens, N_TOKENS - 1);
        }
        quire_request_release(request);
    }
    params.pooling = QUIRE_POOLING_MEAN;
    request = submit(&b, &params);
    expect_rows(finish(request), 0, N_TOKENS - 1);
    assert_int_equal(quire_request_result_get(request)->n_cached_tokens, 0);
    quire_request_release(request);
}

/* Steps whose rows belong to generations and vectors at once. */
static void test_beside_generations(void **state)
{
    const quire_request_params generation = params_greedy(tokens, 40, 20);
    gate *g = gate_close(b.engine);
    quire_request *requests[6];
    int32_t expected[20], got[20];

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        quire_request_params params = params_of(i % 3 == 1   ? QUIRE_POOLING_MEAN
                                                : i % 3 == 2 ? QUIRE_POOLING_LAST
                                                             : QUIRE_POOLING_NONE,
                                                40 + i);

        params.is_uncached = true;
        requests[i] = submit(&b, i % 3 == 0 ? &generation : &params);
    }
    gate_open(g);
    for (uint32_t i = 0; i < 6; i++) {
        if (i % 3 == 0) {
            assert_int_equal(collect(requests[i], i == 0 ? expected : got, 20), 20);
            assert_null(quire_request_result_get(requests[i])->vector);
        } else {
            expect_rows(finish(requests[i]), i % 3 == 1 ? 0 : 39 + i, 39 + i);
        }
        quire_request_release(requests[i]);
    }
    assert_memory_equal(expected, got, sizeof got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poolings),
        cmocka_unit_test(test_cached_prefix),
        cmocka_unit_test(test_beside_generations),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
