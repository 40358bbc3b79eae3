/* test_runtime_limits.c - refusals of the runtime, its state after a refusal, and the graphs that
 * it builds.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/model_internal.h"
#include "model_fixture.h"
#include "seed.h"

#include <stdlib.h>
#include <string.h>

#define MODEL FIXTURE_STORIES
/* layers, kv heads, K and V, tokens, dims, f32 */
#define PAGE_BYTES (5u * 4u * 2u * 64u * 8u * 4u)

static quire_runtime_opts opts_small(void)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 256;
    opts.n_batch = 128;
    opts.n_seqs_max = 4;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    return opts;
}

/* ---- create ---- */

static void create_fails(const quire_model *model, const quire_runtime_opts *opts, int status,
                         const char *word)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime = (quire_runtime *)&err;

    assert_int_equal(quire_runtime_create(&runtime, model, opts, &err), status);
    assert_null(runtime);
    assert_int_equal(err.status, status);
    assert_non_null(strstr(err.message, word));
}

static void test_create_refuses(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_model_opts describe_only = { .describe_only = true };
    quire_model *described = NULL;
    quire_runtime_opts opts = opts_small();

    (void)state;
    opts.kv_budget_bytes = 4 * PAGE_BYTES - 1;
    create_fails(model, &opts, QUIRE_NOPAGES, "327680"); /* needed bytes */
    create_fails(model, &opts, QUIRE_NOPAGES, "327679"); /* budget */
    opts = opts_small();
    opts.page_tokens = 65;
    create_fails(model, &opts, QUIRE_INVAL, "65");
    opts.page_tokens = 2048;
    create_fails(model, &opts, QUIRE_INVAL, "2048");
    opts = opts_small();
    opts.n_threads = 100000;
    create_fails(model, &opts, QUIRE_INVAL, "100000");
    opts = opts_small();
    opts.n_ctx = UINT32_MAX;
    create_fails(model, &opts, QUIRE_INVAL, "4294967295");
    opts = opts_small();
    opts.k_format = QUIRE_FORMAT_COUNT;
    create_fails(model, &opts, QUIRE_INVAL, "format");

    assert_int_equal(quire_model_open(&described, fixture_model_path(MODEL), &describe_only, NULL),
                     QUIRE_OK);
    opts = opts_small();
    create_fails(described, &opts, QUIRE_INVAL, "weights");
    quire_model_close(described);
    quire_model_close(model);
    quire_model_close(NULL);
    quire_runtime_destroy(NULL);
}

/* V that is a part of K has no format of its own. */
static void test_latent_takes_one_format(void **state)
{
    quire_runtime_opts opts = opts_small();
    gguf_gen_opts gen;
    quire_model *model;

    (void)state;
    assert_true(gguf_gen_shape("tiny-deepseek2", &gen));
    model = fixture_open(fixture_generate(&gen));
    opts.k_format = QUIRE_FORMAT_Q8;
    opts.v_format = QUIRE_FORMAT_Q4;
    create_fails(model, &opts, QUIRE_INVAL,
                 "q8:q4 of layer 0: in models of the architecture "
                 "deepseek2 V is a part of K");
    quire_model_close(model);
    fixture_generated_remove();
}

static void test_defaults(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = { .k_format = QUIRE_FORMAT_F32, .v_format = QUIRE_FORMAT_F32 };
    quire_runtime *runtime = fixture_runtime(model, &opts);
    quire_cache_stats stats;
    quire_seq_id seq = fixture_seq(runtime);

    (void)state;
    quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
    assert_int_equal(stats.budget_bytes, 512 / 64 * PAGE_BYTES); /* n_ctx_train of one sequence */
    assert_true(quire_runtime_n_threads(runtime) >= 1);
    assert_int_equal(quire_runtime_fill(runtime, seq, 512, 1), QUIRE_OK);
    assert_int_equal(quire_runtime_fill(runtime, seq, 1, 1), QUIRE_LIMIT);
    assert_int_equal(quire_runtime_fill(runtime, seq, 0, 1), QUIRE_INVAL);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* ---- steps that fail ---- */

static void step_fails(quire_runtime *runtime, const quire_slice *slices, uint32_t n, int status)
{
    const float *logits = (const float *)slices;

    assert_int_equal(quire_runtime_step(runtime, slices, n, &logits), status);
    assert_null(logits);
}

static void test_steps_refused(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = opts_small();
    quire_runtime *runtime;
    quire_cache *cache;
    static int32_t tokens[300];
    quire_slice s[5] = { { 0 } };

    (void)state;
    opts.kv_budget_bytes = 64 * PAGE_BYTES;
    runtime = fixture_runtime(model, &opts);
    cache = quire_runtime_cache(runtime);
    for (uint32_t i = 0; i < 4; i++) {
        s[i] = (quire_slice){ .seq = fixture_seq(runtime),
                              .tokens = tokens,
                              .n_tokens = 10,
                              .logits = QUIRE_LOGITS_LAST };
    }
    s[4] = s[0];
    step_fails(runtime, s, 0, QUIRE_INVAL);
    step_fails(runtime, s, 5, QUIRE_LIMIT);
    s[1].seq = s[0].seq;
    step_fails(runtime, s, 2, QUIRE_INVAL); /* the same sequence twice */
    s[1].seq = 12345;
    step_fails(runtime, s, 2, QUIRE_NOTFOUND);
    s[1].n_tokens = 0;
    step_fails(runtime, s, 1 + 1, QUIRE_INVAL);
    s[0].n_tokens = 129;
    step_fails(runtime, s, 1, QUIRE_LIMIT); /* n_batch */
    s[0].n_tokens = 10;
    tokens[9] = 512;
    step_fails(runtime, s, 1, QUIRE_INVAL);
    tokens[9] = -1;
    step_fails(runtime, s, 1, QUIRE_INVAL);
    tokens[9] = 0;

    assert_int_equal(quire_runtime_fill(runtime, s[2].seq, 250, 1), QUIRE_OK);
    s[0].n_tokens = 10;
    s[1] = s[2];
    step_fails(runtime, s, 2, QUIRE_LIMIT); /* n_ctx, by the second */
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(quire_seq_tokens(cache, s[0].seq), 0);
        assert_int_equal(quire_seq_tokens(cache, s[2].seq), 250);
    }
    s[1].n_tokens = 6;
    (void)fixture_step(runtime, s[1].seq, tokens, 6, QUIRE_LOGITS_NONE); /* exactly full */
    quire_cache_validate(cache);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* The budget runs out at the second of three slices: nobody has changed, and the pages are back. */
static void test_no_pages_changes_nothing(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = opts_small();
    const size_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_runtime *runtime;
    quire_cache *cache;
    static int32_t tokens[128];
    quire_cache_stats before, after;
    quire_slice s[3];
    float *expected = calloc(n_vocab, sizeof *expected);

    (void)state;
    assert_non_null(expected);
    opts.kv_budget_bytes = 5 * PAGE_BYTES;
    runtime = fixture_runtime(model, &opts);
    cache = quire_runtime_cache(runtime);
    for (uint32_t i = 0; i < 3; i++) {
        s[i] = (quire_slice){ .seq = fixture_seq(runtime),
                              .tokens = tokens,
                              .n_tokens = 40,
                              .logits = QUIRE_LOGITS_LAST };
        for (uint32_t t = 0; t < 40; t++) {
            tokens[t] = (int32_t)(7 * t + i);
        }
        memcpy(expected, fixture_step(runtime, s[i].seq, tokens, 40, QUIRE_LOGITS_LAST),
               sizeof *expected * n_vocab);
    }
    quire_cache_stats_get(cache, &before);
    assert_int_equal(before.pages_live, 3);
    step_fails(runtime, s, 3, QUIRE_NOPAGES); /* needs 3 more pages, 2 are left */
    quire_cache_stats_get(cache, &after);
    quire_cache_validate(cache);
    assert_int_equal(after.pages_live, 3);
    assert_int_equal(after.charged_bytes, before.charged_bytes);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(quire_seq_tokens(cache, s[i].seq), 40);
    }
    /* The last sequence still gives the same logits: its pages are unchanged. */
    assert_int_equal(quire_seq_truncate(cache, s[2].seq, 39), QUIRE_OK);
    assert_true(fixture_diff_max(expected,
                                 fixture_step(runtime, s[2].seq, tokens + 39, 1, QUIRE_LOGITS_LAST),
                                 n_vocab) < 1e-3);
    /* Two of them fit. */
    {
        const float *logits;

        assert_int_equal(quire_runtime_step(runtime, s, 2, &logits), QUIRE_OK);
    }
    step_fails(runtime, s + 2, 1, QUIRE_NOPAGES);
    assert_int_equal(quire_seq_close(cache, s[0].seq), QUIRE_OK);
    (void)fixture_step(runtime, s[2].seq, tokens, 40, QUIRE_LOGITS_LAST);
    free(expected);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void test_contiguous_takes_it_all(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = opts_small();
    static const int32_t tokens[3] = { 1, 2, 3 };
    quire_runtime *paged, *contiguous;
    quire_cache_stats stats;
    quire_slice other;
    const float *a, *b;

    (void)state;
    opts.kv_budget_bytes = 7 * PAGE_BYTES;
    paged = fixture_runtime(model, &opts);
    opts.is_contiguous = true;
    contiguous = fixture_runtime(model, &opts);
    a = fixture_step(paged, fixture_seq(paged), tokens, 3, QUIRE_LOGITS_LAST);
    b = fixture_step(contiguous, fixture_seq(contiguous), tokens, 3, QUIRE_LOGITS_LAST);
    assert_memory_equal(a, b, sizeof *a * quire_model_desc_get(model)->n_vocab);
    quire_cache_stats_get(quire_runtime_cache(paged), &stats);
    assert_int_equal(stats.charged_bytes, PAGE_BYTES);
    quire_cache_stats_get(quire_runtime_cache(contiguous), &stats);
    assert_int_equal(stats.charged_bytes, 4 * PAGE_BYTES);
    /* A second sequence of 3 tokens does not fit beside it. */
    other = (quire_slice){
        .seq = fixture_seq(contiguous), .tokens = tokens, .n_tokens = 3, .logits = QUIRE_LOGITS_NONE
    };
    step_fails(contiguous, &other, 1, QUIRE_NOPAGES);
    quire_runtime_destroy(contiguous);
    quire_runtime_destroy(paged);
    quire_model_close(model);
}

/* ---- graphs ---- */

static void test_graphs_are_reused(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_runtime_opts opts = opts_small();
    quire_runtime *runtime = fixture_runtime(model, &opts);
    quire_seq_id seq = fixture_seq(runtime);
    static int32_t tokens[256];
    quire_runtime_stats stats;
    uint64_t buffer_bytes;

    (void)state;
    quire_runtime_stats_get(runtime, &stats);
    buffer_bytes = stats.compute_buffer_bytes;
    assert_true(buffer_bytes > 0);
    for (uint32_t i = 0; i < 5; i++) {
        (void)fixture_step(runtime, seq, tokens, 32, QUIRE_LOGITS_LAST);
    }
    for (uint32_t i = 0; i < 20; i++) {
        (void)fixture_step(runtime, seq, tokens, 1, QUIRE_LOGITS_LAST);
    }
    quire_runtime_stats_get(runtime, &stats);
    assert_int_equal(stats.graphs_built_total, 2);
    assert_int_equal(stats.graph_reuses_total, 23);
    assert_int_equal(stats.steps_total, 25);
    assert_true(stats.attn_us_total + stats.append_us_total <= stats.step_us_total);

    /* More shapes than are kept, twice over: none grows the buffer. */
    for (uint32_t i = 0; i < 60; i++) {
        assert_int_equal(quire_seq_truncate(quire_runtime_cache(runtime), seq, 10), QUIRE_OK);
        (void)fixture_step(runtime, seq, tokens, 1 + 4 * (i % 30), i % 3);
    }
    quire_runtime_stats_get(runtime, &stats);
    assert_int_equal(stats.compute_buffer_bytes, buffer_bytes);
    assert_true(stats.graphs_built_total > 30);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_latent_takes_one_format),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_steps_refused),
        cmocka_unit_test(test_no_pages_changes_nothing),
        cmocka_unit_test(test_contiguous_takes_it_all),
        cmocka_unit_test(test_graphs_are_reused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
