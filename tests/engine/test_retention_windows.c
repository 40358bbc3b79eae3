/* test_retention_windows.c - texts in lanes of models with windows: the bits of the full cache when
 * all tokens are kept, layers with windows that no policy touches, memory, states, devices.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "retention_kit.h"

#include "arch_cases.h"
#include "base/hash128.h"
#include "gguf_gen_scheme.h"
#include "model/memory.h"
#include "model/model_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_LAYERS 4u
#define BYTES    ((size_t)N_TOKENS * N_VOCAB * sizeof(float))

static const int32_t some_windows[N_LAYERS] = { 40, 100, 0, 0 };
/* Below the one full layer nothing depends on the tokens that it keeps. */
static const int32_t below[N_LAYERS] = { 40, 100, 70, 0 };

static quire_model *model_of(const int32_t *windows)
{
    gguf_gen_opts gen = fixture_llama("retention", N_LAYERS, N_VOCAB, 512, 7);
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model;

    gen.type = GGML_TYPE_Q8_0; /* weights in panels: results do not depend on the batch */
    if (gguf_gen_scheme_apply(&gen, "gqa", &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    memcpy(gen.windows, windows, N_LAYERS * sizeof *windows);
    model = fixture_open(fixture_generate(&gen));
    fixture_generated_remove();
    return model;
}

static quire_model *family_of(const char *name, uint32_t window)
{
    arch_family family;
    quire_model *model;

    assert_true(arch_family_find(name, &family));
    family.options.n_ctx = 512;
    family.options.n_vocab = N_VOCAB;
    family.options.sliding_window = window;
    model = fixture_open(fixture_generate(&family.options));
    fixture_generated_remove();
    return model;
}

/* Llama 4's chunks in three of four layers, which libllama and the description make longer than any
 * text here. */
static quire_model *chunked_model(void)
{
    gguf_gen_opts gen;
    quire_model *model;

    assert_true(gguf_gen_shape("tiny-llama", &gen));
    (void)snprintf(gen.arch, sizeof gen.arch, "llama4");
    gen.n_layer = N_LAYERS;
    gen.n_vocab = N_VOCAB;
    gen.n_experts = 4;
    gen.n_experts_used = 1;
    gen.n_ff_expert = 64;
    gen.type = GGML_TYPE_Q8_0;
    model = fixture_open(fixture_generate(&gen));
    fixture_generated_remove();
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        model->desc.window[l] = l == 3 ? 0 : 100;
    }
    assert_true(model->desc.has_chunks);
    return model;
}

static quire_model *chosen_model(uint32_t i)
{
    static const char *const families[] = { "gemma3", "gpt-oss", "cohere2", "gemma2" };

    return i == 0   ? model_of(some_windows)
           : i == 1 ? model_of(below)
           : i == 2 ? chunked_model()
                    : family_of(families[i - 3], 60);
}
#define N_MODELS 7u

static float *text_with(world *w, const quire_runtime_opts *opts, const char *policy, uint32_t n)
{
    float *logits;

    world_open(w, opts, policy);
    logits = read_text(w, n);
    world_close(w);
    return logits;
}

/* ---- bits ---- */

/* All tokens kept: the bits of full pages, in formats by tokens with a policy, in all without. */
static void test_all_kept(void **state)
{
    static const struct {
        quire_format format;
        const char *policy;
    } cases[] = {
        { QUIRE_FORMAT_F16, "snap:1" },  { QUIRE_FORMAT_Q8, "keydiff:1" },
        { QUIRE_FORMAT_BF16, "all" },    { QUIRE_FORMAT_Q4, "all" },
        { QUIRE_FORMAT_F32, "heavy:1" }, { QUIRE_FORMAT_F16, "reconstruct:1,repeat=40" }
    };

    (void)state;
    for (uint32_t i = 0; i < N_MODELS; i++) {
        world w = { .model = chosen_model(i) };

        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            const quire_runtime_opts one = opts_of(cases[c].format, 1);
            const quire_runtime_opts three = opts_of(cases[c].format, 3);
            float *want = text_with(&w, &one, NULL, 100);
            float *got = text_with(&w, &three, cases[c].policy, 100);

            if (memcmp(want, got, BYTES) != 0) {
                fail_msg("model %u, %s in %s: other bits", i, cases[c].policy,
                         quire_format_name(cases[c].format));
            }
            free(got);
            free(want);
        }
        quire_model_close(w.model);
    }
}

/* Some kept: the same bits with any number of threads, and others than with all. */
static void test_some_kept(void **state)
{
    const quire_runtime_opts one = opts_of(QUIRE_FORMAT_F16, 1);
    const quire_runtime_opts three = opts_of(QUIRE_FORMAT_F16, 3);

    (void)state;
    for (uint32_t i = 0; i < N_MODELS; i++) {
        world w = { .model = chosen_model(i) };
        float *full = text_with(&w, &one, NULL, 64);
        float *some = text_with(&w, &one, "entropy:0.4,full_layers=none,recent=16", 64);
        float *again = text_with(&w, &three, "entropy:0.4,full_layers=none,recent=16", 64);

        assert_memory_equal(some, again, BYTES);
        assert_memory_equal(some, full, CHUNK * N_VOCAB * sizeof *some); /* before anything goes */
        assert_memory_not_equal(some, full, BYTES);
        free(again);
        free(some);
        free(full);
        quire_model_close(w.model);
    }
}

/* A hash of the attention of each layer, of all rows of a text. */
static struct {
    quire_attn_device device;
    uint32_t n_layers;
    uint32_t n_rows; /* of the step at hand */
    uint32_t layer;  /* that comes next */
    unsigned char of[N_LAYERS][QUIRE_HASH128_BYTES];
} seen;

static void run_seen(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                     uint32_t n_threads)
{
    const size_t n = (size_t)seen.n_rows * layer->out_stride;
    unsigned char *hash = seen.of[seen.layer];
    unsigned char *bytes = malloc(n * sizeof(float) + QUIRE_HASH128_BYTES);

    assert_non_null(bytes);
    seen.device.run(ctx, layer, call, thread, n_threads);
    memcpy(bytes, hash, QUIRE_HASH128_BYTES);
    memcpy(bytes + QUIRE_HASH128_BYTES, layer->out, n * sizeof(float));
    quire_hash128(bytes, n * sizeof(float) + QUIRE_HASH128_BYTES, hash);
    seen.layer = (seen.layer + 1) % N_LAYERS;
    free(bytes);
}

/* Read the text on one thread, in steps of 50. */
static void see(world *w, const quire_runtime_opts *opts, const char *policy)
{
    memset(&seen, 0, sizeof seen);
    world_open(w, opts, policy);
    if (w->retention != NULL) {
        quire_retention_attend_from(w->retention, 100);
    }
    seen.device = *quire_runtime_device(w->runtime);
    quire_runtime_device(w->runtime)->run = run_seen;
    for (uint32_t at = 0; at < N_TOKENS; at += 50) {
        seen.n_rows = 50;
        (void)step(w, at, 50, QUIRE_LOGITS_ALL);
    }
    world_close(w);
}

/* Whatever the policy drops, attention of layers with windows has the bits of the full cache. */
static void test_windows_are_whole(void **state)
{
    static const struct {
        const char *policy;
        quire_format format;
        double attend_share;
    } cases[] = { { "keydiff:0.3,recent=16", QUIRE_FORMAT_F16, 0 },
                  { "window:0.1,recent=4", QUIRE_FORMAT_Q8, 0 },
                  { "snap:0.3,recent=16", QUIRE_FORMAT_Q4, 0 },
                  { "heavy:0.3,recent=16", QUIRE_FORMAT_F32, 0 },
                  { "predict:0.3,recent=16", QUIRE_FORMAT_F16, 0 },
                  { "snap:0.5,recent=16", QUIRE_FORMAT_F16, 0.3 },
                  { "all", QUIRE_FORMAT_F16, 0.3 },
                  { "all", QUIRE_FORMAT_Q4, 0.3 } };
    world w = { .model = model_of(below) };
    quire_predictor *maps = maps_make(w.model, 1);

    (void)state;
    predictor = maps;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char want[N_LAYERS][QUIRE_HASH128_BYTES];
        quire_runtime_opts opts = opts_of(cases[i].format, 1);

        opts.kv_recent = 64;
        see(&w, &opts, NULL);
        memcpy(want, seen.of, sizeof want);
        w.attend_share = cases[i].attend_share;
        see(&w, &opts, cases[i].policy);
        w.attend_share = 0;
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            const bool is_same = memcmp(want[l], seen.of[l], sizeof want[l]) == 0;

            if (is_same != (below[l] != 0)) {
                fail_msg("%s in %s: layer %u has %s bits", cases[i].policy,
                         quire_format_name(cases[i].format), l, is_same ? "the same" : "other");
            }
        }
    }
    predictor = NULL;
    quire_predictor_free(maps);
    quire_model_close(w.model);
}

/* Tokens that choose pages do so by themselves, in steps of one and of many. */
static void test_attend(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q4 };

    (void)state;
    for (uint32_t i = 0; i < 2 * N_MODELS; i++) {
        const quire_runtime_opts opts = opts_of(formats[i % 2], 2);
        world w = { .model = chosen_model(i / 2), .attend_share = 0.3 };
        quire_lanes_stats stats;
        float *some, *more;

        world_open(&w, &opts, "all");
        quire_retention_attend_from(w.retention, 300);
        some = read_text(&w, 77);
        quire_lanes_stats_get(quire_retention_lanes(w.retention), &stats);
        world_close(&w);
        world_open(&w, &opts, "all");
        quire_retention_attend_from(w.retention, 300);
        more = read_text(&w, 20);
        world_close(&w);
        assert_memory_equal(some, more, BYTES);
        assert_true(stats.pages_held_total == 0 || stats.pages_read_total < stats.pages_held_total);
        free(more);
        free(some);
        quire_model_close(w.model);
    }
}

/* ---- memory ---- */

static void test_memory(void **state)
{
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 2);
    world w = { .model = model_of(some_windows) };
    const quire_model_desc *desc = quire_model_desc_get(w.model);
    const uint64_t full_bytes = quire_runtime_kv_bytes(desc, &opts);
    const size_t page_bytes = quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_K, desc->d_k) +
                              quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_V, desc->d_v);
    quire_lanes_stats lanes;
    uint64_t bytes = 0;

    (void)state;
    world_open(&w, &opts, "snap:0.5,recent=16");
    for (uint32_t at = 0; at < 448; at += 64) {
        (void)step(&w, at, 64, QUIRE_LOGITS_NONE);
    }
    for (uint32_t at = 448; at < N_TOKENS; at++) {
        (void)step(&w, at, 1, QUIRE_LOGITS_LAST);
    }
    quire_lanes_stats_get(quire_retention_lanes(w.retention), &lanes);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t g = 0; g < desc->n_kv_head; g++) {
            uint32_t n;

            (void)quire_lanes_positions(quire_retention_lanes(w.retention), l, g, &n);
            bytes += (n + 63) / 64 * page_bytes;
            /* The last token is at 499: windows begin at 460 and 400, pages at 448 and 384. */
            assert_true(some_windows[l] == 0 || n == N_TOKENS - (l == 0 ? 448 : 384));
        }
    }
    assert_int_equal(lanes.live_bytes, bytes);
    assert_int_equal(lanes.n_lanes, 2 * desc->n_kv_head);
    assert_int_equal(lanes.n_windowed, 2 * desc->n_kv_head);
    /* Half of the tokens between two condensings, and those since. */
    assert_true(quire_lanes_share(&lanes) > 0.5 && quire_lanes_share(&lanes) < 0.8);
    assert_true(lanes.peak_bytes <= lanes.budget_bytes && lanes.budget_bytes <= w.planned_bytes);
    /* Less than without a policy: half of the full layers' tokens, and the same windows. */
    assert_true(lanes.budget_bytes < full_bytes);
    world_close(&w);
    quire_model_close(w.model);
}

static void test_refusals(void **state)
{
    static const int32_t all[N_LAYERS] = { 40, 40, 40, 40 };
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 1);
    quire_retention_opts retention = { .chunk = CHUNK };
    quire_model *model = model_of(all);
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_retain_parse("keydiff:0.5", &retention.spec, &err), QUIRE_OK);
    assert_int_equal(quire_retention_plan(quire_model_desc_get(model), &retention, &opts, &err),
                     QUIRE_UNSUPP);
    assert_string_equal(err.message, "--retain cannot go with a model whose layers all have "
                                     "windows: these drop tokens already");
    err = (quire_error)QUIRE_ERROR_INIT;
    retention.keeps_all = true;
    retention.attend_share = 0.5;
    assert_int_equal(quire_retention_plan(quire_model_desc_get(model), &retention, &opts, &err),
                     QUIRE_UNSUPP);
    assert_string_equal(err.message, "--attend cannot go with a model whose layers all have "
                                     "windows: these read nothing else");
    quire_model_close(model);
}

/* ---- states, cuts, devices ---- */

static const struct {
    const char *policy;
    quire_format format;
} kept[] = {
    { "keydiff:0.5,recent=16", QUIRE_FORMAT_F16 },
    { "entropy:0.4,full_layers=none,recent=16", QUIRE_FORMAT_Q8 },
    { "heavy:0.5,recent=16", QUIRE_FORMAT_F32 },
    { "expected:0.5,recent=16", QUIRE_FORMAT_F16 },
    { "reconstruct:0.5,recent=16,repeat=40", QUIRE_FORMAT_BF16 },
    { "snap:0.5,recent=16", QUIRE_FORMAT_Q4 },
    { "reconstruct:0.5,recent=16,repeat=40", QUIRE_FORMAT_Q6 },
    { "predict:0.4,recent=16", QUIRE_FORMAT_F16 },
    { "reconstruct:0.5,recent=16,repeat=40,merge=fit", QUIRE_FORMAT_F16 },
};
#define N_KEPT (sizeof kept / sizeof kept[0])

static void test_states(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < 3; m++) {
        world w = { .model = chosen_model(m) };
        const bool is_turned = m < 2; /* some layers of llama4 do not turn K */
        quire_predictor *maps = maps_make(w.model, 1);

        predictor = maps;
        for (size_t i = 0; i < N_KEPT; i++) {
            quire_runtime_opts opts = opts_of(kept[i].format, 2);

            opts.kv_recent = 64;
            if (strstr(kept[i].policy, "merge") == NULL &&
                (is_turned || strstr(kept[i].policy, "expected") == NULL)) {
                go_on(&w, &opts, kept[i].policy);
            }
        }
        predictor = NULL;
        quire_predictor_free(maps);
        quire_model_close(w.model);
    }
}

/* A state whose window lacks a token is refused. */
static void test_states_that_lie(void **state)
{
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 1);
    world w = { .model = model_of(some_windows) };
    quire_error err = QUIRE_ERROR_INIT;
    quire_block_state saved;
    uint32_t n;

    (void)state;
    world_open(&w, &opts, "keydiff:0.5,recent=16");
    for (uint32_t at = 0; at < 320; at += 64) {
        (void)step(&w, at, 64, QUIRE_LOGITS_LAST);
    }
    assert_int_equal(quire_retention_save(w.retention, w.runtime, tokens, &saved), QUIRE_OK);
    world_close(&w);
    n = saved.lanes[0].n_tokens;
    assert_int_equal(n, 320 - 256);                       /* the window begins at 281 */
    assert_int_equal(saved.lanes[2].n_tokens, 320 - 192); /* and this one at 221 */
    for (int i = 0; i < 2; i++) {
        saved.lanes[0].n_tokens = i == 0 ? n - 1 : n;
        world_open(&w, &opts, "keydiff:0.5,recent=16");
        assert_int_equal(quire_retention_load(w.retention, w.runtime, w.seq, &saved, &err),
                         i == 0 ? QUIRE_CORRUPT : QUIRE_OK);
        (void)step(&w, i == 0 ? 0 : 320, 64, QUIRE_LOGITS_LAST);
        world_close(&w);
    }
    quire_block_state_free(&saved);
    quire_model_close(w.model);
}

/* A text goes on behind a cut with the bits of one that never had the cut tokens. */
static void test_truncate(void **state)
{
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 2);
    world w = { .model = model_of(some_windows) };
    const float *logits = NULL;
    float want[N_VOCAB];
    uint32_t n_left;

    (void)state;
    world_open(&w, &opts, "keydiff:0.5,recent=16");
    for (uint32_t at = 0; at < 400; at += 50) {
        memcpy(want, step(&w, at, 50, QUIRE_LOGITS_LAST), sizeof want);
    }
    assert_int_equal(quire_retention_truncate(w.retention, w.runtime, w.seq, 200, &n_left),
                     QUIRE_OK);
    assert_int_equal(n_left, 0); /* condensed, and no window */
    for (uint32_t at = 0; at < 400; at += 50) {
        if (at == 200 || at == 350) { /* another text */
            (void)step(&w, 300, at == 200 ? 20 : 1, QUIRE_LOGITS_LAST);
            assert_int_equal(quire_retention_truncate(w.retention, w.runtime, w.seq, at, &n_left),
                             QUIRE_OK);
            assert_int_equal(n_left, at);
        }
        logits = step(&w, at, 50, QUIRE_LOGITS_LAST);
    }
    assert_memory_equal(logits, want, sizeof want);
    world_close(&w);
    quire_model_close(w.model);
}

/* The mock's kernels are the CPU's. */
static void test_on_a_device(void **state)
{
    world w = { .model = model_of(some_windows) };
    quire_predictor *maps = maps_make(w.model, 1);

    (void)state;
    predictor = maps;
    for (size_t i = 0; i < N_KEPT; i++) {
        const quire_runtime_opts opts = on_mock(kept[i].format);
        quire_runtime_opts cpu = opts;
        quire_lanes_stats lanes;
        float *want, *got;

        cpu.device = NULL;
        cpu.device_open = NULL;
        want = text_with(&w, &cpu, kept[i].policy, 64);
        world_open(&w, &opts, kept[i].policy);
        got = read_text(&w, 64);
        quire_lanes_stats_get(quire_retention_lanes(w.retention), &lanes);
        assert_true(lanes.generations >= 3 && lanes.peak_bytes <= w.planned_bytes);
        world_close(&w);
        if (memcmp(want, got, BYTES) != 0) {
            fail_msg("%s in %s: other bits", kept[i].policy, quire_format_name(kept[i].format));
        }
        if (strstr(kept[i].policy, "merge") == NULL) {
            go_on(&w, &opts, kept[i].policy);
        }
        free(got);
        free(want);
    }
    predictor = NULL;
    quire_predictor_free(maps);
    quire_model_close(w.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kept),
        cmocka_unit_test(test_some_kept),
        cmocka_unit_test(test_windows_are_whole),
        cmocka_unit_test(test_attend),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_states_that_lie),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_on_a_device),
    };

    text_make(3);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
