/* test_runtime_windows.c - layers with windows in a group of their own: the same bits as when all
 * tokens are kept, in memory for a window and a step.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "gguf_gen_scheme.h"
#include "model/model_internal.h"
#include "model_fixture.h"
#include "quire/prefix.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_LAYER  6u
#define N_VOCAB  320u
#define N_TOKENS 600u
#define N_CTX    768u
#define PAGE     64u
#define WIDEST   130u
#define CHUNK    100u
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int32_t tokens[N_CTX];

/* Some layers see everything, the others tokens within less than a tile, a tile, and more. */
static const int32_t some_windows[N_LAYER] = { 77, 64, 0, 5, WIDEST, 0 };
static const int32_t all_windows[N_LAYER] = { 77, 64, 77, 1, WIDEST, 77 };

static quire_model *model_of(const char *scheme, const int32_t *windows)
{
    gguf_gen_opts gen;
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model;

    assert_true(gguf_gen_shape("tiny-quire", &gen));
    gen.n_layer = N_LAYER;
    gen.n_vocab = N_VOCAB;
    gen.type = GGML_TYPE_Q8_0; /* products of our own: a row's bits do not depend on its step */
    gen.seed = 43;
    assert_int_equal(gguf_gen_scheme_apply(&gen, scheme, &err), QUIRE_OK);
    memcpy(gen.windows, windows, N_LAYER * sizeof *windows);
    model = fixture_open(fixture_generate(&gen));
    fixture_generated_remove();
    return model;
}

/* Gemma 4's: windows in every other layer, heads of two sizes, last layers that read the KV of
 * earlier ones. */
static quire_model *sized_model(void)
{
    gguf_gen_opts gen;
    quire_model *model;

    assert_true(gguf_gen_shape("tiny-gemma4", &gen));
    model = fixture_open(fixture_generate(&gen));
    fixture_generated_remove();
    return model;
}

/* Llama 4's: chunks in three of four layers, a temperature in the others. libllama fixes the chunk,
 * and so does the description: here both have a length that the texts exceed. */
static quire_model *chunked_model(void)
{
    gguf_gen_opts gen;
    quire_model *model;

    assert_true(gguf_gen_shape("tiny-llama", &gen));
    (void)snprintf(gen.arch, sizeof gen.arch, "llama4");
    gen.n_layer = 4;
    gen.n_vocab = N_VOCAB;
    gen.n_experts = 4;
    gen.n_experts_used = 1;
    gen.n_ff_expert = 64;
    gen.type = GGML_TYPE_Q8_0;
    gen.seed = 43;
    model = fixture_open(fixture_generate(&gen));
    fixture_generated_remove();
    for (uint32_t l = 0; l < gen.n_layer; l++) {
        assert_int_equal(model->desc.window[l], l == 3 ? 0 : 8192);
        model->desc.window[l] = l == 3 ? 0 : CHUNK;
    }
    assert_true(model->desc.has_chunks);
    model->desc.attn_temperature_tokens = CHUNK;
    return model;
}

static quire_runtime *runtime_of(const quire_model *model, quire_format format, bool keeps_past)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = N_CTX;
    opts.n_seqs_max = 4;
    opts.n_batch = 128;
    opts.kv_budget_bytes = 64u << 20;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = format;
    opts.keeps_past = keeps_past;
    return fixture_runtime(model, &opts);
}

static uint64_t live_bytes(quire_runtime *runtime)
{
    quire_cache_stats stats;

    quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
    return stats.live_bytes;
}

/* Logits of tokens [begin, end), in steps that end at multiples of n; into out + begin rows. */
static void run(quire_runtime *runtime, quire_seq_id seq, uint32_t begin, uint32_t end, uint32_t n,
                float *out)
{
    while (begin < end) {
        const uint32_t stop = begin - begin % n + n < end ? begin - begin % n + n : end;

        memcpy(out + (size_t)begin * N_VOCAB,
               fixture_step(runtime, seq, tokens + begin, stop - begin, QUIRE_LOGITS_ALL),
               (size_t)(stop - begin) * N_VOCAB * sizeof *out);
        begin = stop;
    }
}

static float *whole_run(const quire_model *model, quire_format format, bool keeps_past, uint32_t n)
{
    quire_runtime *runtime = runtime_of(model, format, keeps_past);
    float *out = calloc((size_t)N_TOKENS * N_VOCAB, sizeof *out);

    assert_non_null(out);
    run(runtime, fixture_seq(runtime), 0, N_TOKENS, n, out);
    quire_runtime_destroy(runtime);
    return out;
}

/* ---- the same bits ---- */

static void check_same_bits(const quire_model *model, quire_format format)
{
    static const uint32_t steps[] = { 128, 37 };
    float *want = whole_run(model, format, true, 128);

    for (size_t i = 0; i < COUNT(steps); i++) {
        float *got = whole_run(model, format, false, steps[i]);

        assert_memory_equal(got, want, (size_t)N_TOKENS * N_VOCAB * sizeof *got);
        free(got);
    }
    free(want);
}

static void test_same_bits(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_BF16,
                                            QUIRE_FORMAT_Q8,  QUIRE_FORMAT_Q6,  QUIRE_FORMAT_Q3 };
    quire_model *some = model_of("gqa", some_windows);
    quire_model *all = model_of("gqa", all_windows);
    quire_model *shared = model_of("fusedkv", some_windows);
    quire_model *sized = sized_model();
    quire_model *chunked = chunked_model();

    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        check_same_bits(some, formats[i]);
    }
    check_same_bits(all, QUIRE_FORMAT_F16);
    check_same_bits(all, QUIRE_FORMAT_Q4);
    check_same_bits(shared, QUIRE_FORMAT_F16);
    check_same_bits(shared, QUIRE_FORMAT_Q4);
    check_same_bits(sized, QUIRE_FORMAT_F16);
    check_same_bits(sized, QUIRE_FORMAT_Q4);
    check_same_bits(chunked, QUIRE_FORMAT_F16);
    check_same_bits(chunked, QUIRE_FORMAT_Q4);
    quire_model_close(chunked);
    quire_model_close(sized);
    quire_model_close(some);
    quire_model_close(all);
    quire_model_close(shared);
}

/* ---- groups ---- */

static quire_kv_groups groups_of(quire_runtime *runtime, const quire_model *model)
{
    return quire_kv_groups_of(quire_model_desc_get(model), quire_runtime_opts_get(runtime));
}

/* A stored layer is in the window group if all of its readers have windows. */
static void test_groups(void **state)
{
    static const int32_t reader_sees_all[N_LAYER] = { 64, 64, 64, 64, 64, 0 };
    const struct {
        const char *scheme;
        const int32_t *windows;
        quire_format format;
        quire_kv_groups want;
        uint32_t n_windowed; /* stored layers in the window group */
    } cases[] = {
        { "gqa", some_windows, QUIRE_FORMAT_F16, { 2, 0, 1, WIDEST }, 4 },
        { "gqa", some_windows, QUIRE_FORMAT_Q4, { 3, 1, 2, WIDEST }, 4 },
        { "gqa", all_windows, QUIRE_FORMAT_F16, { 2, 0, 1, WIDEST }, 6 },
        { "cla2", reader_sees_all, QUIRE_FORMAT_F16, { 2, 0, 1, 64 }, 2 },
        { "gqa", (const int32_t[N_LAYER]){ 0 }, QUIRE_FORMAT_F16, { 1, 0, 0, 0 }, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_model *model = model_of(cases[i].scheme, cases[i].windows);
        const quire_model_desc *desc = quire_model_desc_get(model);
        quire_runtime *runtime = runtime_of(model, cases[i].format, false);
        const quire_kv_form form = quire_kv_form_of(desc, quire_runtime_opts_get(runtime));
        const quire_kv_groups got = groups_of(runtime, model);
        quire_attn_layer layer;
        const quire_kv_page_bytes bytes = quire_kv_layout(&form, 0, &layer);
        const uint64_t stored_bytes =
            PAGE * quire_kv_layer_bytes_per_token(desc, 0, form.pairs[0]); /* all are alike */

        assert_int_equal(got.n, cases[i].want.n);
        assert_int_equal(got.hot, cases[i].want.hot);
        assert_int_equal(got.window, cases[i].want.window);
        assert_int_equal(got.window_tokens, cases[i].want.window_tokens);
        assert_int_equal(quire_cache_groups(quire_runtime_cache(runtime)), got.n);
        assert_int_equal(bytes.window, cases[i].n_windowed * stored_bytes);
        assert_int_equal(bytes.main, cases[i].n_windowed == desc->n_stored
                                         ? 64
                                         : (desc->n_stored - cases[i].n_windowed) * stored_bytes);
        quire_runtime_destroy(runtime);
        runtime = runtime_of(model, cases[i].format, true);
        assert_int_equal(groups_of(runtime, model).window, 0);
        quire_runtime_destroy(runtime);
        quire_model_close(model);
    }
}

/* ---- memory ---- */

/* The computed need is a budget that is enough for the whole context, and it is never exceeded.
 * Between two steps a sequence holds the window and its last step. */
static void check_bound(const char *scheme, const int32_t *windows, quire_format format)
{
    quire_model *model = model_of(scheme, windows);
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_runtime *runtime;
    quire_kv_form form;
    quire_kv_page_bytes bytes;
    quire_attn_layer layer;
    quire_cache_stats stats;
    quire_seq_id seq;
    uint32_t window;

    opts.n_ctx = N_CTX;
    opts.n_seqs_max = 1;
    opts.n_batch = 96;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = format;
    runtime = fixture_runtime(model, &opts);
    form = quire_kv_form_of(desc, quire_runtime_opts_get(runtime));
    bytes = quire_kv_layout(&form, 0, &layer);
    window = groups_of(runtime, model).window_tokens;
    seq = fixture_seq(runtime);
    for (uint32_t at = 0, n; at < N_CTX; at += n) {
        const uint32_t begin = at >= window ? at - window + 1 : 0; /* first seen token */
        uint64_t want_bytes;

        n = at % 3 == 0 ? 1 : 96;
        n = n < N_CTX - at ? n : N_CTX - at;
        (void)fixture_step(runtime, seq, tokens + at, n, QUIRE_LOGITS_NONE);
        want_bytes = (at + n + PAGE - 1) / PAGE * bytes.main +
                     ((at + n + PAGE - 1) / PAGE - begin / PAGE) * bytes.window;
        if (bytes.hot == 0) {
            assert_int_equal(live_bytes(runtime), want_bytes);
        }
    }
    quire_runtime_release(runtime, seq);
    quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
    assert_true(stats.charged_peak_bytes <= stats.budget_bytes);
    assert_int_equal(stats.budget_bytes,
                     quire_runtime_kv_bytes(desc, quire_runtime_opts_get(runtime)));
    if (bytes.hot == 0) { /* the arithmetic allows for the worst place of a window in its pages */
        assert_true(stats.charged_peak_bytes + 2 * bytes.window >= stats.budget_bytes);
        assert_true(live_bytes(runtime) <=
                    N_CTX / PAGE * bytes.main + (window / PAGE + 2) * bytes.window);
    }
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void test_bound(void **state)
{
    (void)state;
    check_bound("gqa", some_windows, QUIRE_FORMAT_F16);
    check_bound("gqa", all_windows, QUIRE_FORMAT_Q8);
    check_bound("gqa", some_windows, QUIRE_FORMAT_Q4);
    check_bound("fusedkv", some_windows, QUIRE_FORMAT_F32);
}

/* The shape of gemma3-4b: of 34 layers every sixth sees everything, the others 1,024 tokens. At
 * 32,768 tokens: the full layers' tokens, a window and a step of the others', and page rounding. */
static void test_gemma_shape(void **state)
{
    const uint32_t n_ctx = 32768, window = 1024, n_batch = 512;
    quire_model_desc *desc = calloc(1, sizeof *desc);
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    uint64_t layer_bytes, want_bytes, got_bytes, n_full = 0;

    (void)state;
    assert_non_null(desc);
    desc->n_layer = desc->n_stored = 34;
    desc->n_kv_head = 4;
    desc->d_k = desc->d_v = 256;
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        desc->kv_map[l] = (quire_kv_map_entry){ .stored = (int32_t)l,
                                                .n_k = 1,
                                                .n_v = 1,
                                                .k_src = { (uint16_t)l },
                                                .v_src = { (uint16_t)l } };
        desc->window[l] = (l + 1) % 6 != 0 ? window : 0;
        n_full += desc->window[l] == 0;
    }
    opts.n_ctx = n_ctx;
    opts.n_batch = n_batch;
    layer_bytes = 2u * 4u * 256u * sizeof(uint16_t);
    got_bytes = quire_runtime_kv_bytes(desc, &opts);
    want_bytes =
        layer_bytes * (n_full * n_ctx + (desc->n_layer - n_full) * (uint64_t)(window + n_batch));
    assert_int_equal(n_full, 5);
    assert_in_range(got_bytes, want_bytes,
                    want_bytes + layer_bytes * (desc->n_layer - n_full) * 2 * PAGE);
    opts.keeps_past = true;
    assert_int_equal(quire_runtime_kv_bytes(desc, &opts), layer_bytes * desc->n_layer * n_ctx);
    free(desc);
}

/* ---- cuts and filling ---- */

static void test_cut(void **state)
{
    quire_model *model = model_of("gqa", some_windows);
    quire_runtime *runtime = runtime_of(model, QUIRE_FORMAT_F16, false);
    quire_cache *cache = quire_runtime_cache(runtime);
    quire_seq_id seq = fixture_seq(runtime);
    float *want = whole_run(model, QUIRE_FORMAT_F16, true, 128);
    float *got = calloc((size_t)N_TOKENS * N_VOCAB, sizeof *got);

    (void)state;
    assert_non_null(got);
    run(runtime, seq, 0, N_TOKENS, 128, got);
    /* The last step can be undone, and no more: its window is still there. */
    assert_int_equal(quire_seq_truncatable(cache, seq, 512), 512);
    assert_int_equal(quire_seq_truncatable(cache, seq, 300), 0);
    assert_int_equal(quire_seq_truncate(cache, seq, 520), QUIRE_OK);
    memset(got, 0, (size_t)N_TOKENS * N_VOCAB * sizeof *got);
    run(runtime, seq, 520, N_TOKENS, 128, got);
    assert_memory_equal(got + (size_t)520 * N_VOCAB, want + (size_t)520 * N_VOCAB,
                        (size_t)(N_TOKENS - 520) * N_VOCAB * sizeof *got);
    free(got);
    free(want);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* The model is closed. */
static void check_fill(quire_model *model, quire_format format)
{
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_runtime *kept = runtime_of(model, format, true);
    quire_runtime *runtime = runtime_of(model, format, false);
    const quire_kv_price price = quire_kv_price_make(desc, quire_runtime_opts_get(runtime));
    quire_seq_id a = fixture_seq(kept), b = fixture_seq(runtime);
    float want[N_VOCAB];

    assert_int_equal(quire_runtime_fill(kept, a, 500, 9), QUIRE_OK);
    assert_int_equal(quire_runtime_fill(runtime, b, 500, 9), QUIRE_OK);
    assert_true(live_bytes(runtime) <= quire_kv_price_bytes(&price, 500));
    memcpy(want, fixture_step(kept, a, tokens, 1, QUIRE_LOGITS_LAST), sizeof want);
    assert_memory_equal(fixture_step(runtime, b, tokens, 1, QUIRE_LOGITS_LAST), want, sizeof want);
    quire_runtime_destroy(kept);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void test_fill(void **state)
{
    (void)state;
    check_fill(model_of("gqa", some_windows), QUIRE_FORMAT_Q8);
    check_fill(model_of("gqa", some_windows), QUIRE_FORMAT_Q4);
    check_fill(sized_model(), QUIRE_FORMAT_Q4);
}

/* ---- hits ---- */

typedef struct hits {
    quire_runtime *runtime;
    quire_prefix *tree;
    const float *want; /* of a sequence that computed everything */
    float *got;
    bool is_sealed;
} hits;

static void check_hit(hits *h, uint32_t cut)
{
    static const quire_prefix_key key = { .identity = { 1, 1 } };
    const quire_prefix_acquire_opts opts = { .tokens_max = cut };
    quire_seq_id seq = fixture_seq(h->runtime);
    quire_prefix_match match;
    quire_prefix_ref ref;
    uint32_t n;

    assert_int_equal(
        quire_prefix_acquire(h->tree, &key, seq, tokens, N_TOKENS, &opts, &match, &ref), QUIRE_OK);
    assert_int_equal(match.n_tokens, h->is_sealed ? cut - cut % PAGE : cut);
    n = match.n_tokens + 70 < N_TOKENS ? match.n_tokens + 70 : N_TOKENS;
    memset(h->got, 0, (size_t)N_TOKENS * N_VOCAB * sizeof *h->got);
    run(h->runtime, seq, match.n_tokens, n, 33, h->got);
    assert_memory_equal(h->got + (size_t)match.n_tokens * N_VOCAB,
                        h->want + (size_t)match.n_tokens * N_VOCAB,
                        (size_t)(n - match.n_tokens) * N_VOCAB * sizeof *h->got);
    assert_int_equal(quire_prefix_release(h->tree, ref, 0), QUIRE_OK);
    assert_int_equal(quire_seq_close(quire_runtime_cache(h->runtime), seq), QUIRE_OK);
}

/* A hit gives the bits of a miss, wherever it ends: at the begin and the end of a page, of a tile
 * and of a chunk, inside, a token before and after, within the first window and far behind it. The
 * model is closed. */
static void check_hits(quire_model *model, quire_format format)
{
    static const uint32_t cuts[] = { 1,   63,  64,  65,  99,  100, 101, 128,
                                     130, 131, 192, 255, 320, 401, 599 };
    static const quire_prefix_key key = { .identity = { 1, 1 } };
    quire_prefix_opts tree_opts = QUIRE_PREFIX_OPTS_INIT;
    hits h = { .runtime = runtime_of(model, format, false),
               .is_sealed = quire_format_is_sealed(format) };
    const quire_prefix_acquire_opts opts = { .tokens_max = 0 };
    float *want = whole_run(model, format, true, 128);
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;

    h.want = want;
    h.got = calloc((size_t)N_TOKENS * N_VOCAB, sizeof *h.got);
    assert_non_null(h.got);
    tree_opts.cache = quire_runtime_cache(h.runtime);
    tree_opts.is_page_exact = h.is_sealed;
    assert_int_equal(quire_prefix_create(&h.tree, &tree_opts), QUIRE_OK);
    seq = fixture_seq(h.runtime);
    assert_int_equal(quire_prefix_acquire(h.tree, &key, seq, tokens, N_TOKENS, &opts, &match, &ref),
                     QUIRE_OK);
    for (uint32_t n = 0; n < N_TOKENS;) {
        const uint32_t stop = n + 128 < N_TOKENS ? n + 128 : N_TOKENS;

        run(h.runtime, seq, n, stop, 128, h.got);
        n = stop;
        assert_int_equal(quire_prefix_publish(h.tree, ref, tokens, n, 0), QUIRE_OK);
    }
    assert_int_equal(quire_prefix_release(h.tree, ref, 0), QUIRE_OK);
    assert_int_equal(quire_seq_close(quire_runtime_cache(h.runtime), seq), QUIRE_OK);
    for (size_t i = 0; i < COUNT(cuts); i++) {
        check_hit(&h, cuts[i]);
    }
    quire_prefix_validate(h.tree);
    quire_prefix_destroy(h.tree);
    free(h.got);
    free(want);
    quire_runtime_destroy(h.runtime);
    quire_model_close(model);
}

static void test_hits(void **state)
{
    (void)state;
    check_hits(model_of("gqa", some_windows), QUIRE_FORMAT_F32);
    check_hits(model_of("gqa", some_windows), QUIRE_FORMAT_F16);
    check_hits(model_of("gqa", some_windows), QUIRE_FORMAT_Q8);
    check_hits(sized_model(), QUIRE_FORMAT_F16);
    check_hits(sized_model(), QUIRE_FORMAT_Q8);
    check_hits(chunked_model(), QUIRE_FORMAT_F16);
    check_hits(chunked_model(), QUIRE_FORMAT_Q8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_groups),
        cmocka_unit_test(test_bound),     cmocka_unit_test(test_gemma_shape),
        cmocka_unit_test(test_cut),       cmocka_unit_test(test_fill),
        cmocka_unit_test(test_hits),
    };
    quire_rng rng = test_rng(20261124);

    for (uint32_t i = 0; i < N_CTX; i++) {
        tokens[i] = (int32_t)(3 + quire_rng_below(&rng, N_VOCAB - 3));
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
