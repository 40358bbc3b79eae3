/* test_runtime.c - the runtime's results: against libllama, and against itself when the same tokens
 * come in other chunks, other batches, other threads, or through a fork.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL        FIXTURE_STORIES
#define N_CTX        512u
#define PROMPT       "Once upon a time, there was"
#define N_GENERATED  40u
#define N_LONG       200u
#define N_TOKENS_MAX 512u

/* f32 weights: ggml's products differ in the order of additions between batch sizes, attention
 * between two implementations. Logits here are of order 10. */
#define TOLERANCE 1e-3

typedef struct bench {
    quire_model *model;
    quire_runtime *runtime;
    uint32_t n_vocab;
} bench;

static bench bench_open(quire_format format, uint64_t budget_bytes)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    bench b;

    opts.n_ctx = N_CTX;
    opts.n_batch = 256;
    opts.n_seqs_max = 8;
    opts.n_threads = 1; /* spinning threads suffer when machines are shared */
    opts.k_format = opts.v_format = format;
    opts.kv_budget_bytes = budget_bytes;
    b.model = fixture_open(fixture_model_path(MODEL));
    b.runtime = fixture_runtime(b.model, &opts);
    b.n_vocab = quire_model_desc_get(b.model)->n_vocab;
    return b;
}

static void bench_close(bench *b)
{
    quire_cache_validate(quire_runtime_cache(b->runtime));
    quire_runtime_destroy(b->runtime);
    quire_model_close(b->model);
}

static void tokens_random(quire_rng *rng, int32_t *tokens, uint32_t n, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)quire_rng_below(rng, n_vocab);
    }
}

/* Logits of all tokens of a fresh sequence, computed in chunks of `chunk`. */
static float *logits_chunked(const bench *b, const int32_t *tokens, uint32_t n, uint32_t chunk)
{
    float *all = calloc((size_t)n * b->n_vocab, sizeof *all);
    const quire_seq_id seq = fixture_seq(b->runtime);

    assert_non_null(all);
    for (uint32_t i = 0; i < n; i += chunk) {
        const uint32_t n_now = n - i < chunk ? n - i : chunk;
        const float *logits = fixture_step(b->runtime, seq, tokens + i, n_now, QUIRE_LOGITS_ALL);

        memcpy(all + (size_t)i * b->n_vocab, logits, sizeof *all * n_now * b->n_vocab);
    }
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(b->runtime), seq), n);
    assert_int_equal(quire_seq_close(quire_runtime_cache(b->runtime), seq), QUIRE_OK);
    return all;
}

/* ---- against libllama ---- */

/* Greedy text of both, each fed its own choice; logits compared at every position. */
static void greedy_equals_peer(quire_format format, double tolerance)
{
    bench b = bench_open(format, 0);
    fixture_peer *peer = fixture_peer_open(fixture_model_path(MODEL), N_CTX);
    const quire_seq_id seq = fixture_seq(b.runtime);
    int32_t tokens[64], ours, theirs;
    int64_t n = quire_model_tokenize(b.model, PROMPT, strlen(PROMPT), true, false, tokens, 64);
    const float *l = fixture_step(b.runtime, seq, tokens, (uint32_t)n, QUIRE_LOGITS_ALL);
    const float *p = fixture_peer_decode(peer, tokens, (uint32_t)n);
    char text[512];
    size_t n_text = 0;

    assert_true(n > 1);
    assert_true(fixture_diff_max(l, p, (size_t)n * b.n_vocab) < tolerance);
    l += (size_t)(n - 1) * b.n_vocab;
    p += (size_t)(n - 1) * b.n_vocab;
    for (uint32_t i = 0; i < N_GENERATED; i++) {
        ours = fixture_argmax(l, b.n_vocab);
        theirs = fixture_argmax(p, b.n_vocab);
        assert_int_equal(ours, theirs);
        n_text += (size_t)quire_model_token_text(b.model, ours, false, text + n_text, 8);
        l = fixture_step(b.runtime, seq, &ours, 1, QUIRE_LOGITS_LAST);
        p = fixture_peer_decode(peer, &theirs, 1);
        assert_true(fixture_diff_max(l, p, b.n_vocab) < tolerance);
    }
    text[n_text] = '\0';
    assert_non_null(strstr(text, " a little girl named"));
    fixture_peer_close(peer);
    bench_close(&b);
}

static void test_greedy_equals_libllama_f32(void **state)
{
    (void)state;
    greedy_equals_peer(QUIRE_FORMAT_F32, TOLERANCE);
}

/* K and V rounded to 11 bits move logits of order 10 by a few thousandths. */
static void test_greedy_equals_libllama_f16(void **state)
{
    (void)state;
    greedy_equals_peer(QUIRE_FORMAT_F16, 2e-2);
}

static void test_long_prompt_equals_libllama(void **state)
{
    bench b = bench_open(QUIRE_FORMAT_F32, 0);
    fixture_peer *peer = fixture_peer_open(fixture_model_path(MODEL), N_CTX);
    quire_rng rng = test_rng(1);
    int32_t tokens[N_LONG];
    float *ours;

    (void)state;
    tokens_random(&rng, tokens, N_LONG, b.n_vocab);
    ours = logits_chunked(&b, tokens, N_LONG, N_LONG);
    assert_true(fixture_diff_max(ours, fixture_peer_decode(peer, tokens, N_LONG),
                                 (size_t)N_LONG * b.n_vocab) < TOLERANCE);
    free(ours);
    fixture_peer_close(peer);
    bench_close(&b);
}

static double diff_rms(const float *a, const float *b, size_t n)
{
    double sum = 0.0;

    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(sum / (double)n);
}

/* The narrow formats stay near f32: root mean square over all logits of random tokens, which are
 * harder than text (heads of 8 dimensions give q8 one scale per 8 values, and outliers count). */
static void test_formats_stay_near_f32(void **state)
{
    static const struct {
        quire_format format;
        double rms_max;
    } cases[] = {
        { QUIRE_FORMAT_F16, 1e-2 },
        { QUIRE_FORMAT_BF16, 5e-2 },
        { QUIRE_FORMAT_Q8, 0.2 },
    };
    quire_rng rng = test_rng(2);
    int32_t tokens[N_LONG];
    float *exact = NULL;

    (void)state;
    for (size_t i = 0; i <= sizeof cases / sizeof cases[0]; i++) {
        bench b = bench_open(i == 0 ? QUIRE_FORMAT_F32 : cases[i - 1].format, 0);
        const size_t n_all = (size_t)N_LONG * b.n_vocab;
        float *logits;

        if (i == 0) {
            tokens_random(&rng, tokens, N_LONG, b.n_vocab);
            exact = logits_chunked(&b, tokens, N_LONG, 64);
        } else {
            double rms;

            logits = logits_chunked(&b, tokens, N_LONG, 64);
            rms = diff_rms(exact, logits, n_all);

            (void)printf("%s: difference to f32 %g\n", quire_format_name(cases[i - 1].format), rms);
            assert_true(rms < cases[i - 1].rms_max);
            free(logits);
        }
        bench_close(&b);
    }
    free(exact);
}

/* ---- against itself ---- */

static void test_chunks_do_not_matter(void **state)
{
    static const uint32_t chunks[] = { 1, 7, 64, 65 };
    bench b = bench_open(QUIRE_FORMAT_F32, 0);
    const size_t n_all = (size_t)N_LONG * b.n_vocab;
    quire_rng rng = test_rng(3);
    int32_t tokens[N_LONG];
    float *whole;

    (void)state;
    tokens_random(&rng, tokens, N_LONG, b.n_vocab);
    whole = logits_chunked(&b, tokens, N_LONG, N_LONG);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        float *pieces = logits_chunked(&b, tokens, N_LONG, chunks[i]);

        assert_true(fixture_diff_max(whole, pieces, n_all) < TOLERANCE);
        free(pieces);
    }
    free(whole);
    bench_close(&b);
}

static void test_threads_do_not_matter(void **state)
{
    bench b = bench_open(QUIRE_FORMAT_F16, 0);
    quire_rng rng = test_rng(4);
    int32_t tokens[100];
    float *with_one;

    (void)state;
    tokens_random(&rng, tokens, 100, b.n_vocab);
    with_one = logits_chunked(&b, tokens, 100, 30);
    for (uint32_t n_threads = 2; n_threads <= 5; n_threads += 3) {
        quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
        bench other = b;
        float *logits;

        opts.n_ctx = N_CTX;
        opts.n_threads = n_threads;
        other.runtime = fixture_runtime(b.model, &opts);
        assert_int_equal(quire_runtime_n_threads(other.runtime), n_threads);
        logits = logits_chunked(&other, tokens, 100, 30);
        assert_true(fixture_diff_max(with_one, logits, (size_t)100 * b.n_vocab) < TOLERANCE);
        free(logits);
        quire_runtime_destroy(other.runtime);
    }
    free(with_one);
    bench_close(&b);
}

/* Three sequences of different lengths advance in one step: one decodes, two prefill. */
static void test_batch_equals_alone(void **state)
{
    static const uint32_t before[3] = { 70, 0, 3 }, now[3] = { 1, 90, 66 };
    static const quire_logits wants[3] = { QUIRE_LOGITS_LAST, QUIRE_LOGITS_ALL, QUIRE_LOGITS_LAST };
    bench b = bench_open(QUIRE_FORMAT_F32, 64u << 20);
    quire_rng rng = test_rng(5);
    int32_t tokens[3][100];
    quire_slice slices[3];
    const float *logits = NULL;
    float *alone[3];
    uint32_t row = 0;

    (void)state;
    for (uint32_t s = 0; s < 3; s++) {
        tokens_random(&rng, tokens[s], 100, b.n_vocab);
        alone[s] = logits_chunked(&b, tokens[s], before[s] + now[s], 100);
        slices[s] = (quire_slice){ .seq = fixture_seq(b.runtime),
                                   .tokens = tokens[s] + before[s],
                                   .n_tokens = now[s],
                                   .logits = wants[s] };
        if (before[s] > 0) {
            assert_null(
                fixture_step(b.runtime, slices[s].seq, tokens[s], before[s], QUIRE_LOGITS_NONE));
        }
    }
    assert_int_equal(quire_runtime_step(b.runtime, slices, 3, &logits), QUIRE_OK);
    for (uint32_t s = 0; s < 3; s++) {
        const uint32_t first = wants[s] == QUIRE_LOGITS_ALL ? 0 : now[s] - 1;

        for (uint32_t t = first; t < now[s]; t++, row++) {
            assert_true(fixture_diff_max(logits + (size_t)row * b.n_vocab,
                                         alone[s] + (size_t)(before[s] + t) * b.n_vocab,
                                         b.n_vocab) < TOLERANCE);
        }
        free(alone[s]);
    }
    bench_close(&b);
}

/* A fork in the middle of a page goes its own way and disturbs nobody. */
static void test_fork_then_diverge(void **state)
{
    bench b = bench_open(QUIRE_FORMAT_F32, 64u << 20);
    quire_cache *cache = quire_runtime_cache(b.runtime);
    quire_rng rng = test_rng(6);
    int32_t left[140], right[140];
    quire_seq_id seq = fixture_seq(b.runtime), fork = 0;
    const quire_slice slices[2] = {
        { .seq = seq, .tokens = left + 100, .n_tokens = 40, .logits = QUIRE_LOGITS_ALL },
        { .seq = 0, .tokens = right + 100, .n_tokens = 40, .logits = QUIRE_LOGITS_ALL }
    };
    quire_slice both[2];
    const size_t n_part = (size_t)40 * b.n_vocab, n_shared = (size_t)100 * b.n_vocab;
    const float *logits = NULL;
    float *l, *r;

    (void)state;
    tokens_random(&rng, left, 140, b.n_vocab);
    tokens_random(&rng, right, 140, b.n_vocab);
    memcpy(right, left, 100 * sizeof *left);
    l = logits_chunked(&b, left, 140, 140);
    r = logits_chunked(&b, right, 140, 140);
    (void)fixture_step(b.runtime, seq, left, 100, QUIRE_LOGITS_NONE);
    assert_int_equal(quire_seq_fork(cache, seq, &fork), QUIRE_OK);
    memcpy(both, slices, sizeof both);
    both[1].seq = fork;
    assert_int_equal(quire_runtime_step(b.runtime, both, 2, &logits), QUIRE_OK);
    assert_true(fixture_diff_max(logits, l + n_shared, n_part) < TOLERANCE);
    assert_true(fixture_diff_max(logits + n_part, r + n_shared, n_part) < TOLERANCE);

    /* Cut back and continue differently: the cut tokens leave no trace. */
    assert_int_equal(quire_seq_truncate(cache, fork, 90), QUIRE_OK);
    logits = fixture_step(b.runtime, fork, left + 90, 50, QUIRE_LOGITS_ALL);
    assert_true(fixture_diff_max(logits, l + (size_t)90 * b.n_vocab, n_part) < TOLERANCE);
    free(r);
    free(l);
    bench_close(&b);
}

/* Synthetic KV: finite results, the older tokens untouched, the same seed the same answer. */
static void test_fill(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_BF16,
                                            QUIRE_FORMAT_Q8 };

    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        bench b = bench_open(formats[f], 64u << 20);
        quire_cache *cache = quire_runtime_cache(b.runtime);
        quire_rng rng = test_rng(8);
        int32_t tokens[71];
        quire_seq_id seqs[3];
        float *expected = calloc(b.n_vocab, sizeof *expected);
        const float *logits;

        assert_non_null(expected);
        tokens_random(&rng, tokens, 71, b.n_vocab);
        for (uint32_t i = 0; i < 3; i++) {
            seqs[i] = fixture_seq(b.runtime);
            (void)fixture_step(b.runtime, seqs[i], tokens, 70, QUIRE_LOGITS_NONE);
            assert_int_equal(quire_runtime_fill(b.runtime, seqs[i], 201, i == 2 ? 99 : 5),
                             QUIRE_OK);
            assert_int_equal(quire_seq_tokens(cache, seqs[i]), 271);
        }
        logits = fixture_step(b.runtime, seqs[0], tokens, 1, QUIRE_LOGITS_LAST);
        for (uint32_t i = 0; i < b.n_vocab; i++) {
            assert_true(isfinite(logits[i]));
        }
        memcpy(expected, logits, sizeof *expected * b.n_vocab);
        logits = fixture_step(b.runtime, seqs[1], tokens, 1, QUIRE_LOGITS_LAST);
        assert_memory_equal(logits, expected, sizeof *expected * b.n_vocab);
        logits = fixture_step(b.runtime, seqs[2], tokens, 1, QUIRE_LOGITS_LAST);
        assert_true(fixture_diff_max(logits, expected, b.n_vocab) > 1e-3);

        /* Back before the synthetic part: as if it had never been. */
        assert_int_equal(quire_seq_truncate(cache, seqs[0], 0), QUIRE_OK);
        assert_int_equal(quire_seq_truncate(cache, seqs[1], 70), QUIRE_OK);
        (void)fixture_step(b.runtime, seqs[0], tokens, 70, QUIRE_LOGITS_NONE);
        memcpy(expected, fixture_step(b.runtime, seqs[0], tokens + 70, 1, QUIRE_LOGITS_LAST),
               sizeof *expected * b.n_vocab);
        logits = fixture_step(b.runtime, seqs[1], tokens + 70, 1, QUIRE_LOGITS_LAST);
        assert_memory_equal(logits, expected, sizeof *expected * b.n_vocab);
        free(expected);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_equals_libllama_f32),
        cmocka_unit_test(test_greedy_equals_libllama_f16),
        cmocka_unit_test(test_long_prompt_equals_libllama),
        cmocka_unit_test(test_formats_stay_near_f32),
        cmocka_unit_test(test_chunks_do_not_matter),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_batch_equals_alone),
        cmocka_unit_test(test_fork_then_diverge),
        cmocka_unit_test(test_fill),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
