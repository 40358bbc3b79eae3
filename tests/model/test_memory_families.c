/* test_memory_families.c - the memory computed before a model is loaded, of families whose layers
 * differ: KV by arithmetic of its own, and of every family the sum as a runtime takes it.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "model/linear.h"
#include "model/memory.h"
#include "model/model_internal.h"
#include "model/runtime_internal.h"
#include "model/step_sizes.h"
#include "model_fixture.h"
#include "rounds.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#define N_CTX    1025u /* the last step begins where a page has one token */
#define N_BATCH  128u
#define PAGE     64u
#define N_PAGES  ((N_CTX + PAGE - 1) / PAGE)
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* A family of bench/arch_cases_*.c: the layers that store K and V, without a window and with one,
 * the numbers that a token has in each, and those of the state of a recurrent layer. */
typedef struct family_kv {
    const char *name;
    uint32_t n_full, full_numbers;
    uint32_t n_windowed, windowed_numbers, window;
    uint32_t n_recurrent, state_numbers;
} family_kv;

#define PLAIN  (2 * (64 + 64)) /* K and V of two heads of 64 */
#define LATENT (256 + 32)      /* V is a part of K */

/* Taps without the last one, times the convolution's width, and the heads' states. */
#define CONV(taps, width)          (((taps)-1) * (width))
#define DELTA(taps, groups)        (CONV(taps, 2 * (groups)*64 + 8 * 64) + 8 * 64 * 64)
#define MAMBA(taps, groups, state) (CONV(taps, 2 * (groups) * (state) + 8 * 64) + 8 * 64 * (state))

static const family_kv families[] = {
    { "gemma3", 1, PLAIN, 6, PLAIN, 24, 0, 0 },
    { "gpt-oss", 2, PLAIN, 2, PLAIN, 24, 0, 0 },
    { "llama4", 1, PLAIN, 4, PLAIN, 8192, 0, 0 },
    { "gemma4", 2, 2 * PLAIN, 2, PLAIN, 24, 0, 0 }, /* two more layers store nothing */
    { "gemma3n", 4, PLAIN, 16, PLAIN, 24, 0, 0 },   /* three more */
    { "deepseek2", 4, LATENT, 0, 0, 0, 0, 0 },
    { "mistral4", 3, LATENT, 0, 0, 0, 0, 0 },
    { "minicpm3", 3, LATENT, 0, 0, 0, 0, 0 },
    { "lfm2", 2, PLAIN, 0, 0, 0, 4, CONV(3, 256) },
    { "lfm2moe", 1, PLAIN, 0, 0, 0, 4, CONV(3, 256) },
    { "qwen3next", 1, PLAIN, 0, 0, 0, 4, DELTA(4, 2) },
    { "qwen35", 1, PLAIN, 0, 0, 0, 3, DELTA(4, 2) },
    { "qwen35moe", 1, PLAIN, 0, 0, 0, 3, DELTA(4, 2) },
    { "granitehybrid", 2, PLAIN, 0, 0, 0, 4, MAMBA(4, 1, 16) },
    { "nemotron_h", 2, PLAIN, 0, 0, 0, 2, MAMBA(4, 2, 32) },
    { "nemotron_h_moe", 2, PLAIN, 0, 0, 0, 2, MAMBA(4, 2, 16) },
    { "falcon-h1", 3, PLAIN, 0, 0, 0, 3, MAMBA(4, 2, 64) },
};

static quire_model *model_of(const char *name)
{
    arch_family family;
    quire_model *model;

    assert_true(arch_family_find(name, &family));
    model = fixture_open(fixture_generate(&family.options));
    fixture_generated_remove();
    return model;
}

static quire_runtime_opts opts_of(void)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = N_CTX;
    opts.n_batch = N_BATCH;
    opts.n_seqs_max = 1;
    opts.n_threads = 1;
    return opts;
}

/* KV in f16: the tokens of layers without a window, those of a window and a step, wherever they
 * begin in a page, and two states in f32, at work and before the step. */
static uint64_t kv_bytes_of(const family_kv *f)
{
    const uint32_t touched = (f->window - 1 + N_BATCH + PAGE - 2) / PAGE + 1;
    const uint32_t n_windowed = touched < N_PAGES ? touched : N_PAGES;
    const uint64_t state = ((uint64_t)f->n_recurrent * f->state_numbers * 4 + 63) / 64 * 64;

    return (uint64_t)2 * PAGE * f->full_numbers * f->n_full * N_PAGES +
           (uint64_t)2 * PAGE * f->windowed_numbers * f->n_windowed *
               (f->n_windowed != 0 ? n_windowed : 0) +
           2 * state;
}

static void kv_check(const family_kv *f)
{
    quire_model *model = model_of(f->name);
    const quire_runtime_opts opts = opts_of();
    quire_runtime *runtime = fixture_runtime(model, &opts);
    quire_cache_stats stats;
    quire_memory_need need;

    quire_memory_need_get(&model->desc, &opts, &need);
    if (need.kv_bytes != kv_bytes_of(f)) {
        fail_msg("%s: KV of %llu bytes, expected %llu", f->name, (unsigned long long)need.kv_bytes,
                 (unsigned long long)kv_bytes_of(f));
    }
    /* A text of that length takes as much, but where its window begins at a page. */
    assert_int_equal(quire_runtime_fill(runtime, fixture_seq(runtime), N_CTX, 1), QUIRE_OK);
    quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
    assert_true(stats.charged_peak_bytes <= need.kv_bytes);
    if (f->n_windowed == 0) {
        assert_int_equal(stats.charged_bytes, need.kv_bytes);
    }
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void kv_is_exact(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(families); i += TEST_STRIDE(3u)) {
        kv_check(&families[i]);
    }
}

/* ---- the memory of every family ---- */

static uint64_t weights_held(const quire_model *model)
{
    const quire_weights *w = model->weights;
    const quire_model_desc *desc = &model->desc;
    const bool is_shared = w->output->data == w->tok_embd->data;
    /* Matrices of K that are turned, in f16. */
    const uint64_t turned =
        !desc->latent.is_there || desc->latent.is_split
            ? 0
            : (uint64_t)2 * desc->n_layer * desc->n_head * desc->latent.d_plain * desc->d_v;

    return w->mapped_bytes + w->repacked_bytes + turned - (is_shared ? desc->embd_bytes : 0);
}

/* Bytes of allocated memory, mapped pieces included; 0 where the allocator does not say, as those
 * of sanitizers. Pages of KV and weights are not among them. */
static uint64_t allocated(void)
{
#if defined(__GLIBC__) && !QUIRE_SANITIZED
    const struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

/* Graphs lie in memory for the most tensors that there could be. The rest is never touched. */
static uint64_t untouched(const quire_runtime *runtime)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < QUIRE_GRAPHS_MAX; i++) {
        const struct ggml_context *ctx = runtime->graphs.entries[i].ctx;

        bytes += ctx != NULL ? ggml_get_mem_size(ctx) - ggml_used_mem(ctx) : 0;
    }
    return bytes;
}

/* As many shapes of steps as the runtime keeps graphs of: the one with most rows, and others with
 * so few that graphs have most operations (linear.h). Then a text as long as the context, whose
 * last step touches as many pages behind windows as a step can. */
static void work(quire_runtime *runtime)
{
    int32_t tokens[N_BATCH];
    quire_seq_id seq;

    for (uint32_t i = 0; i < N_BATCH; i++) {
        tokens[i] = (int32_t)(i % 200);
    }
    for (uint32_t i = 0; i < QUIRE_GRAPHS_MAX; i++) {
        const uint32_t n_rows = i == 0 ? N_BATCH : QUIRE_LINEAR_CUT_ROWS_MAX + 1 - i;

        seq = fixture_seq(runtime);
        (void)fixture_step(runtime, seq, tokens, n_rows, QUIRE_LOGITS_ALL);
        assert_int_equal(quire_seq_close(quire_runtime_cache(runtime), seq), QUIRE_OK);
    }
    seq = fixture_seq(runtime);
    assert_int_equal(quire_runtime_fill(runtime, seq, N_CTX - N_BATCH, 1), QUIRE_OK);
    (void)fixture_step(runtime, seq, tokens, N_BATCH, QUIRE_LOGITS_ALL);
}

/* Tables of a runtime that are the same for each model: a part of the program's bytes. */
#define TABLES_BYTES (QUIRE_HISTORY_EVENTS_DEFAULT * sizeof(quire_history_event))

/* What a runtime with its model holds, beside the program. */
typedef struct held {
    uint64_t weights;
    uint64_t kv;
    uint64_t buffers; /* 0 where the allocator does not say */
    uint64_t compute; /* of these, ggml's compute buffer */
} held;

static held held_by(const quire_model *model, const quire_runtime_opts *opts)
{
    const uint64_t before = allocated();
    quire_runtime *runtime = fixture_runtime(model, opts);
    held h = { .weights = weights_held(model) };
    quire_runtime_stats steps;
    quire_cache_stats cache;

    quire_runtime_stats_get(runtime, &steps);
    h.compute = steps.compute_buffer_bytes;
    work(runtime);
    quire_cache_stats_get(quire_runtime_cache(runtime), &cache);
    h.kv = cache.charged_peak_bytes;
    h.buffers = before != 0 ? allocated() - before - untouched(runtime) - TABLES_BYTES : 0;
    quire_runtime_destroy(runtime);
    return h;
}

static bool is_near(uint64_t computed, uint64_t real, double share)
{
    return (double)computed <= (1.0 + share) * (double)real &&
           (double)computed >= (1.0 - share) * (double)real;
}

/* Weights and the compute buffer are exact. All parts together are what is held, within 2 %. */
static uint32_t family_check(const arch_family *family)
{
    quire_model *model = fixture_open(fixture_generate(&family->options));
    const quire_runtime_opts opts = opts_of();
    const held h = held_by(model, &opts);
    quire_memory_need need;
    uint64_t computed, sum;
    bool is_right;

    fixture_generated_remove();
    quire_memory_need_get(&model->desc, &opts, &need);
    computed = need.total_bytes - need.program_bytes;
    sum = h.weights + h.kv + h.buffers;
    is_right = need.weights_bytes == h.weights &&
               quire_step_sizes_get(model->desc.step_sizes, &opts).buffer_bytes == h.compute &&
               (h.buffers == 0 || is_near(computed, sum, 0.02));
    if (!is_right) {
        (void)printf("%s: held %llu: weights %llu, KV %llu, buffers %llu; computed %llu: %llu, "
                     "%llu, %llu\n",
                     family->name, (unsigned long long)sum, (unsigned long long)h.weights,
                     (unsigned long long)h.kv, (unsigned long long)h.buffers,
                     (unsigned long long)computed, (unsigned long long)need.weights_bytes,
                     (unsigned long long)need.kv_bytes, (unsigned long long)need.buffers_bytes);
    }
    quire_model_close(model);
    return is_right ? 0 : 1;
}

static void every_family_is_computed(void **state)
{
    arch_family family;
    uint32_t n_wrong = 0;

    (void)state;
    for (size_t i = 0; arch_family_get(i, &family); i += TEST_STRIDE(6u)) {
        n_wrong += family_check(&family);
    }
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_is_exact),
        cmocka_unit_test(every_family_is_computed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
