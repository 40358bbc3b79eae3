/* test_runtime_cancel.c - steps that are given up on their way, at any point of the graph: rows
 * written by then leave no trace, in float formats or sealed ones, in logits or in open sequences.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_fixture.h"
#include "seed.h"

#include <stdio.h>
#include <string.h>

#define N_LAYER  3u
#define N_VOCAB  320u
#define N_CTX    (64u * QUIRE_LEAF_ENTRIES + 512u) /* more than a leaf of a page table */
#define N_BATCH  128u
#define N_SEQS   2u
#define MANY     100000u /* questions: more than a step asks */
#define N_ROUNDS 4u      /* steps of a test */
#define N_TRIES  3u      /* a step is given up so often before it is let through */

/* When the next step is given up, counted in questions. */
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

typedef struct lane {
    quire_runtime *runtime;
    quire_seq_id seqs[N_SEQS];
} lane;

static lane lane_open(const quire_model *model, const char *formats)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_kv_pair pairs[N_LAYER];
    quire_error err = QUIRE_ERROR_INIT;
    lane l;

    assert_int_equal(quire_kv_layers_parse(formats, quire_model_desc_get(model), pairs, &err),
                     QUIRE_OK);
    opts.n_ctx = N_CTX;
    opts.n_batch = N_BATCH;
    opts.n_seqs_max = N_SEQS;
    opts.n_threads = 1;
    opts.kv_budget_bytes = 64u << 20;
    opts.kv_recent = 64; /* so that pages are sealed, and let go of, on the way */
    opts.kv_sinks = 64;
    opts.kv_pairs = pairs;
    l.runtime = fixture_runtime(model, &opts);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        l.seqs[i] = fixture_seq(l.runtime);
    }
    return l;
}

static void lane_close(lane *l)
{
    quire_cache_validate(quire_runtime_cache(l->runtime));
    quire_runtime_destroy(l->runtime);
}

/* Rows of one sequence beside a row of the other. */
static int step(const lane *l, const int32_t *tokens, uint32_t n_rows, const float **logits)
{
    const quire_slice slices[N_SEQS] = {
        { .seq = l->seqs[0], .tokens = tokens, .n_tokens = n_rows, .logits = QUIRE_LOGITS_LAST },
        { .seq = l->seqs[1], .tokens = tokens, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST }
    };

    return quire_runtime_step(l->runtime, slices, N_SEQS, logits);
}

/* One step of both, which one of them gives up several times before. */
static void round_run(const lane *calm, const lane *torn, canceler *c, quire_rng *rng)
{
    quire_cache *cache = quire_runtime_cache(torn->runtime);
    const uint32_t n_rows = 1 + quire_rng_below(rng, N_BATCH - 1);
    const uint32_t n_before = quire_seq_tokens(cache, torn->seqs[0]);
    const float *expected, *logits;
    int32_t tokens[N_BATCH];
    uint32_t n_asked;

    for (uint32_t i = 0; i < n_rows; i++) {
        tokens[i] = (int32_t)(3 + quire_rng_below(rng, N_VOCAB - 3));
    }
    *c = (canceler){ .left = MANY };
    assert_int_equal(step(calm, tokens, n_rows, &expected), QUIRE_OK);
    n_asked = c->n_asked;
    assert_true(n_asked > N_LAYER);
    for (uint32_t i = 0; i < N_TRIES; i++) {
        c->left = 1 + quire_rng_below(rng, n_asked);
        assert_int_equal(step(torn, tokens, n_rows, &logits), QUIRE_CANCELED);
        assert_null(logits);
        assert_int_equal(quire_seq_tokens(cache, torn->seqs[0]), n_before);
        quire_cache_validate(cache);
    }
    c->left = MANY;
    assert_int_equal(step(torn, tokens, n_rows, &logits), QUIRE_OK);
    assert_memory_equal(logits, expected, N_SEQS * N_VOCAB * sizeof *logits);
}

/* The second sequence becomes a fork of the first: they share leaves and the last page. */
static void fork_again(lane *l)
{
    assert_int_equal(quire_seq_close(quire_runtime_cache(l->runtime), l->seqs[1]), QUIRE_OK);
    assert_int_equal(quire_runtime_fork(l->runtime, l->seqs[0], &l->seqs[1]), QUIRE_OK);
}

/* Steps of texts that fork before each, from a length shortly before the end of a leaf on. */
static void run_forks(const quire_model *model, const char *formats, quire_rng *rng)
{
    const uint32_t n_filled = 64u * QUIRE_LEAF_ENTRIES - 1 - quire_rng_below(rng, 100);
    lane lanes[2] = { lane_open(model, formats), lane_open(model, formats) };
    canceler c = { .left = MANY };

    for (uint32_t i = 0; i < 2; i++) {
        assert_true(quire_runtime_canceler_set(lanes[i].runtime, gives_up, &c));
        assert_int_equal(quire_runtime_fill(lanes[i].runtime, lanes[i].seqs[0], n_filled, 3),
                         QUIRE_OK);
    }
    for (uint32_t i = 0; i < N_ROUNDS - 1; i++) {
        fork_again(&lanes[0]);
        fork_again(&lanes[1]);
        round_run(&lanes[0], &lanes[1], &c, rng);
    }
    lane_close(&lanes[1]);
    lane_close(&lanes[0]);
}

static void run(const quire_model *model, const char *formats, quire_rng *rng)
{
    lane calm = lane_open(model, formats);
    lane torn = lane_open(model, formats);
    canceler c = { .left = MANY };

    assert_true(quire_runtime_canceler_set(calm.runtime, gives_up, &c));
    assert_true(quire_runtime_canceler_set(torn.runtime, gives_up, &c));
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        round_run(&calm, &torn, &c, rng);
    }
    lane_close(&torn);
    lane_close(&calm);
}

static void test_given_up_anywhere(void **state)
{
    static const char *const formats[] = { "*=f32", "*=f16", "*=q8", "*=q4", "*=q3", "*=q6:f16" };
    const gguf_gen_opts gen = fixture_llama("cancel", N_LAYER, N_VOCAB, N_CTX, 6);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_rng rng = test_rng(2027);

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        for (int k = 0; k < 6; k++) {
            run(model, formats[i], &rng);
        }
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* Layers with windows, whose pages behind are released before a step; and forks. */
static void test_given_up_behind_windows(void **state)
{
    static const char *const formats[] = { "*=f16", "*=q4", "*=q8:q3" };
    gguf_gen_opts gen = fixture_llama("cancel", N_LAYER, N_VOCAB, N_CTX, 6);
    quire_rng rng = test_rng(2029);
    quire_model *model;

    (void)state;
    (void)snprintf(gen.arch, sizeof gen.arch, "gemma3");
    gen.sliding_window = 70;
    gen.window_pattern = 2;
    gen.has_qk_norm = true;
    gen.is_tied = true;
    model = fixture_open(fixture_generate(&gen));
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        run(model, formats[i], &rng);
        run_forks(model, formats[i], &rng);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_given_up_anywhere),
        cmocka_unit_test(test_given_up_behind_windows),
    };

    return cmocka_run_group_tests_name("runtime_cancel", tests, NULL, NULL);
}
