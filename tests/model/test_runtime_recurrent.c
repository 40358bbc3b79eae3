/* test_runtime_recurrent.c - the states of recurrent layers: the same bits for every split of a
 * text and in any company, steps that fail, forks, cuts, states that are kept in f16, and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_fixture.h"
#include "seed.h"

#include "model/memory.h"
#include "model/recurrent.h"
#include "model/runtime_shift.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LFM2     ((void *)(uintptr_t) "lfm2")
#define QWEN35   ((void *)(uintptr_t) "qwen35")
#define GRANITE  ((void *)(uintptr_t) "granitehybrid")
#define NEMOTRON ((void *)(uintptr_t) "nemotron_h")
#define FALCON   ((void *)(uintptr_t) "falcon-h1")
#define N_VOCAB  320u
#define N_TOKENS 140u
#define N_SEQS   4u
#define MANY     100000u /* questions: more than a step asks */

typedef struct bench {
    quire_model *model;
    quire_runtime *runtime;
    int32_t tokens[N_TOKENS];
    float *whole; /* [N_TOKENS][N_VOCAB]: the logits of the text in one step */
} bench;

static gguf_gen_opts options(const char *arch)
{
    gguf_gen_opts o = fixture_llama("recurrent", 5, N_VOCAB, 512, 31);

    (void)snprintf(o.arch, sizeof o.arch, "%s", arch);
    o.vocab = GGUF_GEN_VOCAB_BPE;
    o.is_tied = true;
    o.attention_every = 2; /* the last layer is recurrent */
    o.conv_taps = 4;
    if (strcmp(arch, "lfm2") != 0) {
        o.n_delta_k_heads = 2;
        o.n_delta_v_heads = 4;
        o.d_delta_head = 32;
        o.d_mamba_state = strcmp(arch, "qwen35") != 0 ? 16 : 0;
    }
    o.type = GGML_TYPE_Q8_0; /* panels: the same bits for every step */
    return o;
}

static quire_runtime_opts runtime_options(void)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 256;
    opts.n_batch = 256;
    opts.n_seqs_max = N_SEQS;
    opts.n_threads = 2;
    opts.kv_budget_bytes = UINT64_C(16) << 20;
    return opts;
}

/* state: of a test, the architecture. */
static void bench_open(bench *b, void **state)
{
    const gguf_gen_opts gen = options(*state);
    const quire_runtime_opts opts = runtime_options();
    quire_rng rng = test_rng(61);
    const size_t bytes = (size_t)N_TOKENS * N_VOCAB * sizeof *b->whole;
    quire_seq_id seq;

    b->model = fixture_open(fixture_generate(&gen));
    b->runtime = fixture_runtime(b->model, &opts);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        b->tokens[i] = (int32_t)quire_rng_below(&rng, N_VOCAB);
    }
    b->whole = malloc(bytes);
    assert_non_null(b->whole);
    seq = fixture_seq(b->runtime);
    memcpy(b->whole, fixture_step(b->runtime, seq, b->tokens, N_TOKENS, QUIRE_LOGITS_ALL), bytes);
    quire_seq_close(quire_runtime_cache(b->runtime), seq);
}

static void bench_close(bench *b)
{
    free(b->whole);
    quire_cache_validate(quire_runtime_cache(b->runtime));
    quire_runtime_destroy(b->runtime);
    quire_model_close(b->model);
    fixture_generated_remove();
}

static void rows_expect(const bench *b, const float *ours, uint32_t first, uint32_t n)
{
    assert_memory_equal(ours, b->whole + (size_t)first * N_VOCAB,
                        (size_t)n * N_VOCAB * sizeof *ours);
}

/* The text from token `first` on, in chunks; a chunk of 2 is shorter than the convolution. */
static void rest_expect(const bench *b, quire_seq_id seq, uint32_t first)
{
    static const uint32_t chunks[] = { 1, 2, 40, 1, 3 };

    for (uint32_t i = 0, n; first < N_TOKENS; i++, first += n) {
        n = chunks[i % 5] < N_TOKENS - first ? chunks[i % 5] : N_TOKENS - first;
        rows_expect(b, fixture_step(b->runtime, seq, b->tokens + first, n, QUIRE_LOGITS_ALL), first,
                    n);
    }
}

static void test_splits_give_equal_bits(void **state)
{
    bench b;
    quire_seq_id seq;

    bench_open(&b, state);
    seq = fixture_seq(b.runtime);
    rest_expect(&b, seq, 0);
    quire_seq_close(quire_runtime_cache(b.runtime), seq);
    bench_close(&b);
}

/* The sequences, opened one after the other, are more than the states' places. Several sequences
 * share a step, and one sequence of a step has no logits. */
static void test_company_changes_no_bit(void **state)
{
    bench b;
    quire_seq_id seqs[N_SEQS];
    const float *logits;

    bench_open(&b, state);
    for (uint32_t round = 0; round < 3; round++) {
        quire_slice slices[N_SEQS];

        for (uint32_t i = 0; i < N_SEQS; i++) {
            seqs[i] = fixture_seq(b.runtime);
            slices[i] = (quire_slice){ .seq = seqs[i],
                                       .tokens = b.tokens,
                                       .n_tokens = 3 + 20 * i + round,
                                       .logits = i == 1 ? QUIRE_LOGITS_NONE : QUIRE_LOGITS_LAST };
        }
        assert_int_equal(quire_runtime_step(b.runtime, slices, N_SEQS, &logits), QUIRE_OK);
        for (uint32_t i = 0; i < N_SEQS; i++) {
            rest_expect(&b, seqs[i], slices[i].n_tokens);
            quire_seq_close(quire_runtime_cache(b.runtime), seqs[i]);
        }
    }
    bench_close(&b);
}

static void test_fork_has_the_state(void **state)
{
    bench b;
    quire_seq_id seq, fork;

    bench_open(&b, state);
    seq = fixture_seq(b.runtime);
    (void)fixture_step(b.runtime, seq, b.tokens, 70, QUIRE_LOGITS_NONE);
    assert_int_equal(quire_runtime_fork(b.runtime, seq, &fork), QUIRE_OK);
    rest_expect(&b, seq, 70);
    rest_expect(&b, fork, 70);
    assert_int_equal(quire_runtime_fork(b.runtime, 12345, &fork), QUIRE_NOTFOUND);
    bench_close(&b);
}

typedef struct canceler {
    uint32_t left;
    uint32_t n_asked;
} canceler;

static bool gives_up(void *ctx)
{
    canceler *c = ctx;

    c->n_asked++;
    return c->left == 0 || --c->left == 0;
}

/* A step that is given up anywhere leaves the state as it was. */
static void test_failed_steps_change_nothing(void **state)
{
    bench b;
    canceler c = { .left = MANY };
    quire_seq_id seq;
    quire_slice slice;
    const float *logits;
    uint32_t n_asked;

    bench_open(&b, state);
    if (!quire_runtime_canceler_set(b.runtime, gives_up, &c)) {
        bench_close(&b);
        print_message("steps of this ggml cannot be cancelled\n");
        skip();
    }
    seq = fixture_seq(b.runtime);
    (void)fixture_step(b.runtime, seq, b.tokens, 50, QUIRE_LOGITS_NONE);
    n_asked = c.n_asked;
    slice = (quire_slice){
        .seq = seq, .tokens = b.tokens + 50, .n_tokens = 30, .logits = QUIRE_LOGITS_LAST
    };
    for (uint32_t i = 1; i < n_asked; i += 1 + n_asked / 7) {
        c.left = i;
        assert_int_equal(quire_runtime_step(b.runtime, &slice, 1, &logits), QUIRE_CANCELED);
    }
    c.left = MANY;
    slice.n_tokens = 1000;
    assert_int_equal(quire_runtime_step(b.runtime, &slice, 1, &logits), QUIRE_LIMIT);
    rest_expect(&b, seq, 50);
    bench_close(&b);
}

/* A sequence goes on at its end or from nothing. */
static void test_cuts(void **state)
{
    bench b;
    quire_seq_id seq;
    quire_slice slice;
    const float *logits;

    bench_open(&b, state);
    seq = fixture_seq(b.runtime);
    (void)fixture_step(b.runtime, seq, b.tokens, 50, QUIRE_LOGITS_NONE);
    assert_int_equal(quire_runtime_keepable(b.runtime, seq, 50), 50);
    assert_int_equal(quire_runtime_keepable(b.runtime, seq, 49), 0);
    assert_int_equal(quire_runtime_keepable(b.runtime, seq, 0), 0);
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(b.runtime), seq, 40), QUIRE_OK);
    slice = (quire_slice){
        .seq = seq, .tokens = b.tokens + 40, .n_tokens = 5, .logits = QUIRE_LOGITS_LAST
    };
    assert_int_equal(quire_runtime_step(b.runtime, &slice, 1, &logits), QUIRE_INVAL);
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(b.runtime), seq), 40);
    assert_int_equal(quire_runtime_fork(b.runtime, seq, &slice.seq), QUIRE_OK); /* nor its fork */
    assert_int_equal(quire_runtime_step(b.runtime, &slice, 1, &logits), QUIRE_INVAL);
    assert_int_equal(quire_seq_close(quire_runtime_cache(b.runtime), slice.seq), QUIRE_OK);
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(b.runtime), seq, 0), QUIRE_OK);
    rest_expect(&b, seq, 0);
    slice.seq = 12345;
    assert_int_equal(quire_runtime_step(b.runtime, &slice, 1, &logits), QUIRE_NOTFOUND);
    /* Texts that were not computed count as texts with a state of zeros. */
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(b.runtime), seq, 0), QUIRE_OK);
    assert_int_equal(quire_runtime_fill(b.runtime, seq, 100, 1), QUIRE_OK);
    (void)fixture_step(b.runtime, seq, b.tokens, 5, QUIRE_LOGITS_LAST);
    bench_close(&b);
}

static void test_what_is_refused(void **state)
{
    bench b;
    quire_runtime_opts opts = runtime_options();
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;

    bench_open(&b, state);
    assert_true(quire_runtime_is_recurrent(b.runtime));
    assert_int_equal(quire_runtime_shift_check(b.runtime), QUIRE_UNSUPP);
    opts.kv_elsewhere_bytes = 1u << 20;
    assert_int_equal(quire_runtime_create(&runtime, b.model, &opts, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "lfm2 has recurrent layers: texts that keep a share of "
                                        "their tokens (--retain)"));
    bench_close(&b);
}

static uint64_t charged_bytes(quire_runtime *runtime)
{
    quire_cache_stats stats;

    quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
    return stats.charged_bytes;
}

/* States are charged to the KV budget, two for each sequence that was begun. A context needs them;
 * sequences that may be opened do not. */
static void test_memory(void **state)
{
    bench b;
    quire_runtime_opts opts = runtime_options();
    const quire_model_desc *desc;
    quire_memory_need few, many;
    quire_kv_price price;
    quire_seq_id seqs[N_SEQS];
    uint64_t seq_bytes, page_bytes;

    bench_open(&b, state);
    desc = quire_model_desc_get(b.model);
    seq_bytes = quire_state_seq_bytes(desc);
    price = quire_kv_price_make(desc, quire_runtime_opts_get(b.runtime));
    page_bytes = quire_kv_price_bytes(&price, 1);
    assert_int_equal(desc->recurrent.n_layers, 3);
    assert_int_equal(desc->n_stored, 2);
    assert_int_equal(quire_state_page_bytes(desc, QUIRE_FORMAT_F32),
                     quire_runtime_state_bytes(b.runtime));
    assert_int_equal(seq_bytes, 2 * quire_state_floats(desc) * sizeof(float));
    assert_int_equal(quire_runtime_kv_bytes(desc, quire_runtime_opts_get(b.runtime)),
                     quire_kv_price_bytes(&price, opts.n_ctx) + seq_bytes);

    for (uint32_t i = 0; i < N_SEQS; i++) {
        seqs[i] = fixture_seq(b.runtime);
    }
    assert_int_equal(charged_bytes(b.runtime), 0);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        (void)fixture_step(b.runtime, seqs[i], b.tokens, 1, QUIRE_LOGITS_NONE);
        assert_int_equal(charged_bytes(b.runtime), (i + 1) * (seq_bytes + page_bytes));
    }
    for (uint32_t i = 0; i < N_SEQS; i++) {
        assert_int_equal(quire_seq_close(quire_runtime_cache(b.runtime), seqs[i]), QUIRE_OK);
    }
    assert_int_equal(charged_bytes(b.runtime), 0);

    opts.kv_budget_bytes = 0;
    opts.n_batch = opts.n_seqs_max = 64;
    quire_memory_need_get(desc, &opts, &few);
    opts.n_seqs_max = 80;
    quire_memory_need_get(desc, &opts, &many);
    assert_int_equal(few.kv_bytes, many.kv_bytes);
    assert_true(many.buffers_bytes - few.buffers_bytes < 16 * seq_bytes);
    bench_close(&b);
}

/* A budget for two sequences: the third has no state, until another one is closed. */
static void test_lack_of_room(void **state)
{
    bench b;
    quire_runtime_opts opts = runtime_options();
    quire_runtime *runtime;
    quire_seq_id seqs[3], fork;
    quire_slice slice;
    const float *logits;

    bench_open(&b, state);
    opts.n_ctx = opts.n_batch = 128;
    opts.kv_budget_bytes = 2 * quire_runtime_kv_bytes(quire_model_desc_get(b.model), &opts);
    runtime = fixture_runtime(b.model, &opts);
    for (uint32_t i = 0; i < 2; i++) {
        seqs[i] = fixture_seq(runtime);
        (void)fixture_step(runtime, seqs[i], b.tokens, opts.n_ctx, QUIRE_LOGITS_NONE);
    }
    seqs[2] = fixture_seq(runtime);
    slice = (quire_slice){
        .seq = seqs[2], .tokens = b.tokens, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST
    };
    assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_NOPAGES);
    assert_int_equal(quire_runtime_state_reserve(runtime, seqs[2]), QUIRE_NOPAGES);
    assert_int_equal(quire_runtime_fill(runtime, seqs[2], 1, 1), QUIRE_NOPAGES);
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seqs[2]), 0);
    assert_int_equal(quire_runtime_fork(runtime, seqs[0], &fork), QUIRE_NOPAGES);
    assert_int_equal(fork, QUIRE_SEQ_NULL);
    quire_seq_close(quire_runtime_cache(runtime), seqs[0]);
    assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_OK);
    assert_memory_equal(logits, b.whole, N_VOCAB * sizeof *logits);
    quire_cache_validate(quire_runtime_cache(runtime));
    quire_runtime_destroy(runtime);
    bench_close(&b);
}

/* The Kullback-Leibler divergence of ours from theirs, in nats. */
static double divergence(const float *theirs, const float *ours)
{
    double sums[2] = { 0.0, 0.0 };
    double kl = 0.0;

    for (uint32_t i = 0; i < N_VOCAB; i++) {
        sums[0] += exp((double)theirs[i]);
        sums[1] += exp((double)ours[i]);
    }
    for (uint32_t i = 0; i < N_VOCAB; i++) {
        const double log_p = (double)theirs[i] - log(sums[0]);

        kl += exp(log_p) * (log_p - ((double)ours[i] - log(sums[1])));
    }
    return kl;
}

/* States that are kept in f16 take half the memory. A text that goes on from one is continued
 * nearly as from its own state; the sequence's own pages stay in f32. */
static void test_halves(void **state)
{
    enum {
        N_CUT = 70
    };
    gguf_gen_opts gen = options(*state);
    quire_runtime_opts opts = runtime_options();
    double worst = 0.0;
    quire_seq_id seq, fork;
    float *theirs = malloc((N_TOKENS - N_CUT) * N_VOCAB * sizeof *theirs);
    const float *ours;
    size_t n_floats;
    unsigned char *kept;
    bench b;

    assert_non_null(theirs);
    bench_open(&b, state);
    quire_runtime_destroy(b.runtime);
    quire_model_close(b.model);
    gen.type = GGML_TYPE_F32; /* no rounding of activations */
    b.model = fixture_open(fixture_generate(&gen));
    opts.state_format = QUIRE_FORMAT_F16;
    b.runtime = fixture_runtime(b.model, &opts);
    n_floats = quire_state_floats(quire_model_desc_get(b.model));
    assert_int_equal(quire_runtime_state_bytes(b.runtime), (2 * n_floats + 63) / 64 * 64);
    seq = fixture_seq(b.runtime);
    (void)fixture_step(b.runtime, seq, b.tokens, N_CUT, QUIRE_LOGITS_NONE);
    kept = malloc(quire_runtime_state_bytes(b.runtime));
    assert_non_null(kept);
    memset(kept, 0xff, quire_runtime_state_bytes(b.runtime));
    quire_runtime_state_save(b.runtime, seq, kept);
    for (size_t i = 2 * n_floats; i < quire_runtime_state_bytes(b.runtime); i++) {
        assert_int_equal(kept[i], 0); /* nothing of other memory reaches a store */
    }
    assert_int_equal(quire_runtime_fork(b.runtime, seq, &fork), QUIRE_OK);
    assert_int_equal(quire_runtime_state_load(b.runtime, fork, kept), QUIRE_OK);
    memcpy(theirs,
           fixture_step(b.runtime, seq, b.tokens + N_CUT, N_TOKENS - N_CUT, QUIRE_LOGITS_ALL),
           (N_TOKENS - N_CUT) * N_VOCAB * sizeof *theirs);
    ours = fixture_step(b.runtime, fork, b.tokens + N_CUT, N_TOKENS - N_CUT, QUIRE_LOGITS_ALL);
    for (uint32_t i = 0; i < N_TOKENS - N_CUT; i++) {
        worst = fmax(worst, divergence(theirs + i * N_VOCAB, ours + i * N_VOCAB));
    }
    (void)printf("%s: states in f16, divergence of the worst row %.2g\n", (const char *)*state,
                 worst);
    assert_true(worst <= 1e-5);
    assert_true(memcmp(theirs, ours, N_VOCAB * sizeof *ours) != 0);
    free(kept);
    free(theirs);
    bench_close(&b);
}

/* Numbers that f16 cannot hold become its largest. */
static void test_large_numbers(void **state)
{
    const float numbers[] = { 1e6f, -1e30f, 65504.0f, 0.5f, INFINITY, NAN };
    const float expected[] = { 65504.0f, -65504.0f, 65504.0f, 0.5f, 65504.0f };
    uint16_t halves[6];
    float got[6];

    (void)state;
    quire_state_encode(QUIRE_FORMAT_F16, numbers, 6, halves);
    quire_state_decode(QUIRE_FORMAT_F16, halves, 6, got);
    assert_memory_equal(got, expected, sizeof expected);
    assert_true(isnan(got[5])); /* a damaged state stays visible */
}

static void test_formats(void **state)
{
    quire_runtime_opts opts = runtime_options();
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;
    bench b;

    bench_open(&b, state);
    opts.state_format = QUIRE_FORMAT_Q8;
    assert_int_equal(quire_runtime_create(&runtime, b.model, &opts, &err), QUIRE_INVAL);
    assert_string_equal(err.message, "states are kept in f32 or f16, not in q8");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_splits_give_equal_bits, LFM2),
        cmocka_unit_test_prestate(test_company_changes_no_bit, LFM2),
        cmocka_unit_test_prestate(test_fork_has_the_state, LFM2),
        cmocka_unit_test_prestate(test_failed_steps_change_nothing, LFM2),
        cmocka_unit_test_prestate(test_cuts, LFM2),
        cmocka_unit_test_prestate(test_what_is_refused, LFM2),
        cmocka_unit_test_prestate(test_memory, QWEN35),
        cmocka_unit_test_prestate(test_lack_of_room, QWEN35),
        cmocka_unit_test_prestate(test_splits_give_equal_bits, QWEN35),
        cmocka_unit_test_prestate(test_company_changes_no_bit, QWEN35),
        cmocka_unit_test_prestate(test_fork_has_the_state, QWEN35),
        cmocka_unit_test_prestate(test_failed_steps_change_nothing, QWEN35),
        cmocka_unit_test_prestate(test_cuts, QWEN35),
        cmocka_unit_test_prestate(test_splits_give_equal_bits, GRANITE),
        cmocka_unit_test_prestate(test_company_changes_no_bit, GRANITE),
        cmocka_unit_test_prestate(test_fork_has_the_state, GRANITE),
        cmocka_unit_test_prestate(test_failed_steps_change_nothing, GRANITE),
        cmocka_unit_test_prestate(test_cuts, GRANITE),
        cmocka_unit_test_prestate(test_splits_give_equal_bits, NEMOTRON),
        cmocka_unit_test_prestate(test_company_changes_no_bit, NEMOTRON),
        cmocka_unit_test_prestate(test_splits_give_equal_bits, FALCON),
        cmocka_unit_test_prestate(test_company_changes_no_bit, FALCON),
        cmocka_unit_test_prestate(test_failed_steps_change_nothing, FALCON),
        cmocka_unit_test_prestate(test_halves, LFM2),
        cmocka_unit_test_prestate(test_halves, QWEN35),
        cmocka_unit_test_prestate(test_halves, GRANITE),
        cmocka_unit_test_prestate(test_halves, NEMOTRON),
        cmocka_unit_test_prestate(test_halves, FALCON),
        cmocka_unit_test(test_large_numbers),
        cmocka_unit_test_prestate(test_formats, LFM2),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
