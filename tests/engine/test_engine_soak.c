/* test_engine_soak.c - thousands of small requests from several clients: shared beginnings,
 * tenants, random cancels, a tight budget. Nothing leaks, nothing is stuck, every answer is the
 * one a request alone would get.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "rounds.h"
#include "seed.h"
#include "soak_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define N_CLIENTS  8u
#define N_REQUESTS TEST_ROUNDS(1200u, 400u)
#define N_TEXTS    12u
#define TOKENS_MAX 60u
#define IN_FLIGHT  6u

typedef struct soak {
    const engine_bench *bench;
    soak_texts texts;
    bool compares_cold_only;
    atomic_uint n_failed;
    atomic_uint n_whole;
    atomic_uint n_compared;
    atomic_uint n_cancelled;
} soak;

typedef struct client {
    soak *soak;
    quire_rng rng;
    pthread_t thread;
} client;

/* Whether the plain loop's answer must be this request's too. With sealed formats, recent tokens
 * are read in 8 bits if computed, but sealed if found in the cache. So with a window of recent
 * tokens only a request without a hit gives the loop's answer. One with values of its prompt has no
 * hit, and takes cached pages for its own, which may follow from a hit. */
static bool is_compared(const soak *s, const soak_flight *flight)
{
    const quire_request_result *result = quire_request_result_get(flight->request);

    return !s->compares_cold_only ||
           (result->n_cached_tokens == 0 && result->n_preemptions == 0 && !flight->has_values);
}

/* Ends a request in one of the ways clients do. cmocka's assertions belong to the main thread. */
static void land(client *c, const soak_flight *f)
{
    soak *s = c->soak;
    quire_request_token token;
    int n_other;
    int rc;

    switch (quire_rng_below(&c->rng, 8)) {
    case 0: /* gone without a word */
        quire_request_release(f->request);
        atomic_fetch_add(&s->n_cancelled, 1);
        break;
    case 1: /* cancelled, and waited for */
        quire_request_cancel(f->request);
        rc = quire_request_wait(f->request, UINT32_MAX, FIXTURE_WAIT_MS, &token);
        atomic_fetch_add(&s->n_failed, rc != 0);
        atomic_fetch_add(&s->n_cancelled, 1);
        quire_request_release(f->request);
        break;
    default:
        n_other = soak_flight_finish(&s->texts, f);
        atomic_fetch_add(&s->n_failed, n_other < 0);
        if (n_other >= 0 && is_compared(s, f)) {
            atomic_fetch_add(&s->n_failed, n_other > 0);
            atomic_fetch_add(&s->n_compared, 1);
        }
        atomic_fetch_add(&s->n_whole, 1);
        quire_request_release(f->request);
        break;
    }
}

static void *client_main(void *arg)
{
    client *c = arg;
    soak *s = c->soak;
    soak_flight flights[IN_FLIGHT];
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_REQUESTS / N_CLIENTS; i++) {
        soak_flight f;
        quire_request_params params = soak_params(&s->texts, &c->rng, &f);
        quire_error err = QUIRE_ERROR_INIT;

        params.priority = (int32_t)quire_rng_below(&c->rng, 2);
        if (quire_engine_submit(s->bench->engine, &params, &f.request, &err) != QUIRE_OK) {
            atomic_fetch_add(&s->n_failed, 1);
            continue;
        }
        flights[n++] = f;
        if (n == IN_FLIGHT || quire_rng_below(&c->rng, 3) == 0) {
            const uint32_t k = quire_rng_below(&c->rng, n);

            land(c, &flights[k]);
            flights[k] = flights[--n];
        }
    }
    while (n > 0) {
        land(c, &flights[--n]);
    }
    return NULL;
}

/* kv_window: recent tokens and first ones that sealed formats read in 8 bits. windows: of the
 * layers of a model of 4, NULL = the model without any. */
static void soak_run(quire_admit admit, quire_format format, uint32_t kv_window,
                     const int32_t *windows)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(SOAK_N_CTX, 16);
    quire_rng rng = test_rng(2026);
    client clients[N_CLIENTS];
    engine_bench b;
    static soak s;
    quire_engine_stats stats;

    engine.chunk_tokens = 96;
    engine.admit = admit;
    runtime.k_format = runtime.v_format = format;
    runtime.kv_recent = runtime.kv_sinks = kv_window;
    /* Sealing turns a last bit into another code, so its results need products whose bits do not
     * depend on the batch: weights in panels. */
    b = windows != NULL                  ? bench_windows(windows, &engine, &runtime)
        : quire_format_is_sealed(format) ? bench_panels(32, &engine, &runtime)
                                         : bench_tiny(&engine, &runtime);
    memset(&s, 0, sizeof s);
    s.bench = &b;
    s.compares_cold_only = quire_format_is_sealed(format) && kv_window > 0;
    s.texts.n = N_TEXTS;
    s.texts.answer_tokens = TOKENS_MAX;
    soak_texts_make(&s.texts, &b, 70, &rng);
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        clients[i].soak = &s;
        clients[i].rng = (quire_rng){ quire_rng_below(&rng, 1u << 30) };
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]), 0);
    }
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        (void)pthread_join(clients[i].thread, NULL);
    }
    assert_int_equal(s.n_failed, 0);
    assert_int_equal(s.n_whole + s.n_cancelled, N_REQUESTS);
    assert_true(s.compares_cold_only ? s.n_compared > 0 : s.n_compared == s.n_whole);
    validate(b.engine);
    while (!quire_engine_is_idle(b.engine)) { /* those that were let go of */
        (void)stats_now(b.engine);
    }
    stats = stats_now(b.engine);
    assert_int_equal(stats.requests_total, N_REQUESTS);
    assert_int_equal(stats.finished_error_total, 0);
    assert_int_equal(stats.requests_waiting + stats.requests_prefilling + stats.requests_decoding,
                     0);
    assert_int_equal(stats.cache.seqs_open, 0);
    assert_int_equal(stats.cache.pages_live, 0);
    assert_true(stats.prefix.hit_tokens_total > 0);
    validate(b.engine);
    bench_close(&b);
}

static void test_soak(void **state)
{
    (void)state;
    soak_run(QUIRE_ADMIT_GROW, QUIRE_FORMAT_F32, 0, NULL);
}

static void test_soak_reserve(void **state)
{
    (void)state;
    soak_run(QUIRE_ADMIT_RESERVE, QUIRE_FORMAT_F32, 0, NULL);
}

static void test_soak_sealed(void **state)
{
    (void)state;
    soak_run(QUIRE_ADMIT_GROW, QUIRE_FORMAT_Q4, 0, NULL);
}

static void test_soak_sealed_with_a_window(void **state)
{
    (void)state;
    soak_run(QUIRE_ADMIT_GROW, QUIRE_FORMAT_Q4, 64, NULL);
}

/* Layers with windows, in a budget for one of the longest texts. */
static void test_soak_layers_with_windows(void **state)
{
    static const int32_t windows[4] = { 65, 0, 30, 65 };

    (void)state;
    soak_run(QUIRE_ADMIT_GROW, QUIRE_FORMAT_F32, 0, windows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_soak),
        cmocka_unit_test(test_soak_reserve),
        cmocka_unit_test(test_soak_sealed),
        cmocka_unit_test(test_soak_sealed_with_a_window),
        cmocka_unit_test(test_soak_layers_with_windows),
    };

    return cmocka_run_group_tests_name("engine_soak", tests, NULL, NULL);
}
