/* test_retention.c - a model whose text keeps a share of its tokens: the bits of the full cache
 * when all are kept, memory that is bounded by share and chunk, steps that begin again; the same
 * bits with the lanes on a mock device.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "retention_kit.h"

#include "base/hash128.h"
#include "model/memory.h"

#include <stdlib.h>
#include <string.h>

static quire_model *open_model(void)
{
    gguf_gen_opts gen = fixture_llama("retention", 4, N_VOCAB, 512, 7);

    gen.type = GGML_TYPE_Q8_0; /* weights in panels: results do not depend on the batch */
    return fixture_open(fixture_generate(&gen));
}

/* Keep all: the bits of full pages. Keep some: the same bits with any number of threads. */
static void test_bits(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_BF16,
                                            QUIRE_FORMAT_Q8 };
    const size_t bytes = (size_t)N_TOKENS * N_VOCAB * sizeof(float);
    world w = { .model = open_model() };

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const quire_runtime_opts one = opts_of(formats[i], 1);
        const quire_runtime_opts three = opts_of(formats[i], 3);
        float *full, *kept, *some, *again;

        world_open(&w, &one, NULL);
        full = read_text(&w, 100);
        world_close(&w);
        world_open(&w, &three, "snap:1");
        kept = read_text(&w, 100);
        world_close(&w);
        assert_memory_equal(full, kept, bytes);
        world_open(&w, &one, "entropy:0.4,full_layers=none,recent=16");
        some = read_text(&w, 64);
        world_close(&w);
        world_open(&w, &three, "entropy:0.4,full_layers=none,recent=16");
        again = read_text(&w, 64);
        world_close(&w);
        assert_memory_equal(some, again, bytes);
        assert_memory_equal(some, full, CHUNK * N_VOCAB * sizeof *some); /* before anything goes */
        assert_memory_not_equal(some, full, bytes);
        free(again);
        free(some);
        free(kept);
        free(full);
    }
    quire_model_close(w.model);
}

static void test_memory(void **state)
{
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 2);
    world w = { .model = open_model() };
    const uint64_t full_bytes = quire_runtime_kv_bytes(quire_model_desc_get(w.model), &opts);
    quire_cache_stats cache;
    quire_lanes_stats lanes;

    (void)state;
    world_open(&w, &opts, "snap:0.25,recent=16");
    for (uint32_t at = 0; at < 448; at += 64) {
        (void)step(&w, at, 64, QUIRE_LOGITS_NONE);
    }
    for (uint32_t at = 448; at < N_TOKENS; at++) {
        (void)step(&w, at, 1, QUIRE_LOGITS_LAST);
    }
    quire_lanes_stats_get(quire_retention_lanes(w.retention), &lanes);
    quire_cache_stats_get(quire_runtime_cache(w.runtime), &cache);
    assert_int_equal(lanes.n_text, N_TOKENS);
    assert_true(quire_lanes_n_full(quire_retention_lanes(w.retention)) <= CHUNK);
    assert_true(lanes.generations >= 3);
    assert_int_equal(cache.extent_bytes, 0); /* the runtime's own pages have no payload */
    /* A quarter of 512 tokens, a chunk of 128 and a page: 5 of 8 pages. */
    assert_true(lanes.peak_bytes <= full_bytes / 8 * 5);
    assert_true(lanes.peak_bytes <= lanes.budget_bytes && lanes.budget_bytes <= w.planned_bytes);
    world_close(&w);
    quire_model_close(w.model);
}

/* Sealed formats keep the recent tokens in full. Where these are a chunk and more, a text is
 * repeated when whole tiles can be condensed, and not before each token. */
static void test_repeated_by_tiles(void **state)
{
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_Q4, 1);
    world w = { .model = open_model() };
    quire_lanes_stats lanes;

    (void)state;
    world_open(&w, &opts, "reconstruct:0.5,recent=128,repeat=64");
    (void)step(&w, 0, CHUNK / 2, QUIRE_LOGITS_LAST);
    for (uint32_t at = CHUNK / 2; at < N_TOKENS; at++) {
        (void)step(&w, at, 1, QUIRE_LOGITS_LAST);
    }
    quire_lanes_stats_get(quire_retention_lanes(w.retention), &lanes);
    assert_int_equal(lanes.generations, (N_TOKENS - 1 - 128) / 64);
    /* A part of 64 tokens has up to 56 other rows. */
    assert_in_range(quire_retention_rows_get(w.retention).repeated, N_TOKENS - 64, 2 * N_TOKENS);
    world_close(&w);
    quire_model_close(w.model);
}

static void test_plan(void **state)
{
    static quire_model_desc latent;
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 2);
    quire_retention_opts retention = { .chunk = 64 };
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = open_model();
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_memory_need need;
    quire_runtime *runtime;

    (void)state;
    assert_int_equal(quire_retain_parse("window:0.5", &retention.spec, &err), QUIRE_OK);
    assert_int_equal(quire_retention_plan(desc, &retention, &opts, &err), QUIRE_OK);
    assert_int_equal(opts.n_batch, 64); /* no step is larger than a chunk */
    quire_memory_need_get(desc, &opts, &need);
    assert_int_equal(need.kv_bytes, opts.kv_elsewhere_bytes);
    runtime = fixture_runtime(model, &opts);
    assert_int_equal(quire_runtime_fill(runtime, fixture_seq(runtime), 64, 1), QUIRE_UNSUPP);
    quire_runtime_destroy(runtime);
    opts = opts_of(QUIRE_FORMAT_Q4, 2);
    assert_int_equal(quire_retention_plan(desc, &retention, &opts, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "tokens in q4 stay in their tile"));
    latent = *desc;
    latent.latent.is_there = true;
    assert_int_equal(quire_retention_plan(&latent, &retention, &opts, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "architecture llama V is a part of K"));
    quire_model_close(model);
}

/* A cut to nothing begins another text; a step of two slices, or longer than a chunk, is refused.
 */
static void test_again(void **state)
{
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 2);
    world w = { .model = open_model() };
    const quire_slice two[2] = {
        { .seq = 1, .tokens = tokens, .n_tokens = 1, .logits = QUIRE_LOGITS_NONE },
        { .seq = 2, .tokens = tokens, .n_tokens = 1, .logits = QUIRE_LOGITS_NONE }
    };
    quire_slice large = {
        .seq = 0, .tokens = tokens, .n_tokens = CHUNK + 1, .logits = QUIRE_LOGITS_NONE
    };
    const float *logits;
    float *first, *second;

    (void)state;
    world_open(&w, &opts, "entropy:0.5,full_layers=0,recent=16");
    first = read_text(&w, 50);
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(w.runtime), w.seq, 0), QUIRE_OK);
    second = read_text(&w, 50);
    assert_memory_equal(first, second, (size_t)N_TOKENS * N_VOCAB * sizeof *first);
    assert_int_equal(quire_retention_step(w.retention, w.runtime, two, 2, &logits), QUIRE_INVAL);
    large.seq = w.seq;
    assert_int_equal(quire_retention_step(w.retention, w.runtime, &large, 1, &logits), QUIRE_LIMIT);
    free(second);
    free(first);
    world_close(&w);
    quire_model_close(w.model);
}

/* Tokens [from, to), and the logits of the last one: [N_VOCAB]. */
static const float *read_on(world *w, uint32_t from, uint32_t to)
{
    const float *logits = NULL;

    for (uint32_t at = from; at < to; at += 50) {
        logits = step(w, at, to - at < 50 ? to - at : 50, QUIRE_LOGITS_LAST);
    }
    return logits;
}

/* A text goes on behind a cut with the bits of one that never had the cut tokens, if it was not
 * condensed by them. */
static void check_truncate(const char *policy, quire_format format, bool forgets)
{
    const quire_runtime_opts opts = opts_of(format, 2);
    world w = { .model = open_model() };
    float want[N_VOCAB];
    uint32_t n_left;

    world_open(&w, &opts, policy);
    (void)read_on(&w, 0, 200);
    memcpy(want, read_on(&w, 200, 400), sizeof want);
    /* Cuts inside of the condensed part, and to nothing. */
    assert_int_equal(quire_retention_truncate(w.retention, w.runtime, w.seq, 64, &n_left),
                     QUIRE_OK);
    assert_int_equal(n_left, 0);
    (void)read_on(&w, 0, 200);
    (void)step(&w, 300, 20, QUIRE_LOGITS_LAST); /* another text */
    assert_int_equal(quire_retention_truncate(w.retention, w.runtime, w.seq, 200, &n_left),
                     QUIRE_OK);
    assert_int_equal(n_left, forgets ? 200 : 0);
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(w.runtime), w.seq), n_left);
    if (n_left == 0) {
        (void)read_on(&w, 0, 200);
    }
    assert_memory_equal(read_on(&w, 200, 400), want, sizeof want);
    world_close(&w);
    quire_model_close(w.model);
}

static void test_truncate(void **state)
{
    (void)state;
    check_truncate("keydiff:0.5,recent=16", QUIRE_FORMAT_F16, true);
    check_truncate("keydiff:0.5,recent=16,granule=64", QUIRE_FORMAT_Q4, true);
    check_truncate("reconstruct:0.5,recent=16,repeat=40", QUIRE_FORMAT_F16, true);
    check_truncate("snap:0.5,recent=16", QUIRE_FORMAT_F16, false);
    check_truncate("expected:0.5,recent=16", QUIRE_FORMAT_F16, false);
}

static int teardown(void **state)
{
    (void)state;
    fixture_generated_remove();
    return 0;
}

/* ---- states ---- */

static void test_states(void **state)
{
    static const struct {
        const char *policy;
        quire_format format;
    } cases[] = {
        { "keydiff:0.5,recent=16", QUIRE_FORMAT_F16 },
        { "entropy:0.4,full_layers=none,recent=16", QUIRE_FORMAT_Q8 },
        { "heavy:0.5,recent=16", QUIRE_FORMAT_F32 },
        { "expected:0.5,recent=16", QUIRE_FORMAT_F16 },
        { "reconstruct:0.5,recent=16,repeat=40", QUIRE_FORMAT_BF16 },
        { "snap:0.5,recent=16", QUIRE_FORMAT_Q4 },
        { "predict:0.4,recent=16", QUIRE_FORMAT_F16 },
    };
    world w = { .model = open_model() };
    quire_predictor *maps = maps_make(w.model, 1);

    (void)state;
    predictor = maps;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_runtime_opts opts = opts_of(cases[i].format, 2);

        opts.kv_recent = 64;
        go_on(&w, &opts, cases[i].policy);
    }
    predictor = NULL;
    quire_predictor_free(maps);
    quire_model_close(w.model);
}

static void not_loaded(world *w, const quire_runtime_opts *opts, const char *policy,
                       const quire_block_state *state, const char *message)
{
    quire_error err = QUIRE_ERROR_INIT;

    world_open(w, opts, policy);
    assert_true(quire_retention_load(w->retention, w->runtime, w->seq, state, &err) < 0);
    assert_non_null(strstr(err.message, message));
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(w->runtime), w->seq), 0);
    (void)step(w, 0, 64, QUIRE_LOGITS_LAST); /* as if nothing had been tried */
    world_close(w);
}

static void test_states_of_others(void **state)
{
    const char *const policy = "keydiff:0.5,recent=16";
    const quire_runtime_opts f16 = opts_of(QUIRE_FORMAT_F16, 1);
    const quire_runtime_opts q8 = opts_of(QUIRE_FORMAT_Q8, 1);
    quire_runtime_opts small = f16;
    world w = { .model = open_model() };
    quire_block_state saved, read;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    world_open(&w, &f16, policy);
    for (uint32_t at = 0; at < 320; at += 64) {
        (void)step(&w, at, 64, QUIRE_LOGITS_LAST);
    }
    assert_int_equal(quire_retention_save(w.retention, w.runtime, tokens, &saved), QUIRE_OK);
    world_close(&w);
    not_loaded(&w, &q8, policy, &saved, "of another model, other KV formats");
    not_loaded(&w, &f16, "keydiff:0.6,recent=16", &saved, "condensed by keydiff:0.5,");
    saved.chunk = 64;
    not_loaded(&w, &f16, policy, &saved, "condensed every 64 tokens");
    saved.chunk = CHUNK;
    small.n_ctx = 256;
    not_loaded(&w, &small, policy, &saved, "longer than the context");
    /* Any changed byte, and any other length, is one line. */
    for (size_t at = 0; at < saved.n_bytes; at += at < 512 ? 1 : 4099) {
        unsigned char *bytes = copy_of(&saved);

        bytes[at] ^= 1;
        assert_true(quire_block_state_parse(&read, bytes, saved.n_bytes, &err) < 0);
        assert_null(strchr(err.message, '\n'));
        quire_block_state_free(&read);
    }
    for (size_t n = 0; n < saved.n_bytes; n += n < 512 ? 1 : 4099) {
        assert_true(quire_block_state_parse(&read, copy_of(&saved), n, &err) < 0);
        quire_block_state_free(&read);
    }
    quire_block_state_free(&saved);
    quire_model_close(w.model);
}

/* Scores of other maps are of another scale: a state knows its own. */
static void test_states_of_other_maps(void **state)
{
    const char *const policy = "predict:0.4,recent=16";
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 1);
    world w = { .model = open_model() };
    quire_predictor *maps[2] = { maps_make(w.model, 1), maps_make(w.model, 2) };
    quire_block_state saved, read;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    predictor = maps[0];
    world_open(&w, &opts, policy);
    for (uint32_t at = 0; at < 320; at += 64) {
        (void)step(&w, at, 64, QUIRE_LOGITS_LAST);
    }
    assert_int_equal(quire_retention_save(w.retention, w.runtime, tokens, &saved), QUIRE_OK);
    world_close(&w);
    assert_int_equal(quire_block_state_parse(&read, copy_of(&saved), saved.n_bytes, &err),
                     QUIRE_OK);
    assert_true(read.maps[0] != 0 && read.maps[0] == saved.maps[0]);
    assert_true(read.maps[1] != 0 && read.maps[1] == saved.maps[1]);
    predictor = maps[1];
    not_loaded(&w, &opts, policy, &read, "condensed by predict with other maps than those");
    predictor = maps[0];
    world_open(&w, &opts, policy);
    assert_int_equal(quire_retention_load(w.retention, w.runtime, w.seq, &read, &err), QUIRE_OK);
    world_close(&w);
    /* Policies without maps have no hash, whatever maps are there. */
    world_open(&w, &opts, "keydiff:0.5,recent=16");
    (void)step(&w, 0, 64, QUIRE_LOGITS_LAST);
    quire_block_state_free(&saved);
    assert_int_equal(quire_retention_save(w.retention, w.runtime, tokens, &saved), QUIRE_OK);
    assert_true(saved.maps[0] == 0 && saved.maps[1] == 0);
    world_close(&w);
    predictor = NULL;
    quire_block_state_free(&read);
    quire_block_state_free(&saved);
    quire_predictor_free(maps[0]);
    quire_predictor_free(maps[1]);
    quire_model_close(w.model);
}

/* A file with a valid hash and impossible numbers. */
static void test_states_that_lie(void **state)
{
    static const size_t numbers[] = { 24, 32, 40, 48, 56, 64, 72, 88, 96, 104, 112, 120, 128, 136 };
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 1);
    world w = { .model = open_model() };
    quire_block_state saved, read;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    world_open(&w, &opts, "heavy:0.5,recent=16");
    (void)step(&w, 0, 64, QUIRE_LOGITS_LAST);
    assert_int_equal(quire_retention_save(w.retention, w.runtime, tokens, &saved), QUIRE_OK);
    world_close(&w);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        for (int byte = 0; byte < 8; byte++) {
            unsigned char *bytes = copy_of(&saved);
            const size_t n = saved.n_bytes - QUIRE_HASH128_BYTES;
            int rc;

            bytes[numbers[i] + (size_t)byte] ^= 0x80;
            quire_hash128(bytes, n, bytes + n);
            rc = quire_block_state_parse(&read, bytes, saved.n_bytes, &err);
            if (rc == QUIRE_OK) { /* an identity, a chunk: those of another text */
                not_loaded(&w, &opts, "heavy:0.5,recent=16", &read, "");
            }
            quire_block_state_free(&read);
        }
    }
    quire_block_state_free(&saved);
    quire_model_close(w.model);
}

/* ---- a device ---- */

/* The mock's kernels are the CPU's. */
static void test_on_a_device(void **state)
{
    static const struct {
        const char *policy;
        quire_format format;
    } cases[] = {
        { "entropy:0.4,full_layers=0,recent=16", QUIRE_FORMAT_F16 },
        { "snap:0.5,recent=16", QUIRE_FORMAT_Q8 },
        { "expected:0.5,recent=16", QUIRE_FORMAT_F32 },
        { "keydiff:0.5,recent=16", QUIRE_FORMAT_BF16 },
        { "window:0.3", QUIRE_FORMAT_F16 },
        { "stride:0.5,recent=16,floor=0.5", QUIRE_FORMAT_F16 },
        { "random:0.5,recent=16,granule=64", QUIRE_FORMAT_Q8 },
        { "last:0.5", QUIRE_FORMAT_F32 },
        { "snap:0.5,recent=16", QUIRE_FORMAT_Q4 },
        { "keydiff:0.5,recent=70", QUIRE_FORMAT_Q6 },
        { "reconstruct:0.4,recent=16,repeat=40", QUIRE_FORMAT_F16 },
        { "reconstruct:0.5,recent=16,repeat=100,sinks=70", QUIRE_FORMAT_Q4 },
        { "reconstruct:0.5,recent=16,repeat=40,merge=fit", QUIRE_FORMAT_F16 },
        { "reconstruct:0.4,recent=16,repeat=40,merge=fit", QUIRE_FORMAT_Q8 },
        { "heavy:0.4,recent=16", QUIRE_FORMAT_F32 },
        { "heavy:0.5,recent=16", QUIRE_FORMAT_Q5 },
    };
    const size_t bytes = (size_t)N_TOKENS * N_VOCAB * sizeof(float);
    world w = { .model = open_model() };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const quire_runtime_opts opts = on_mock(cases[i].format);
        quire_runtime_opts cpu = opts;
        quire_lanes_stats lanes;
        float *want, *got;

        cpu.device = NULL;
        cpu.device_open = NULL;
        world_open(&w, &cpu, cases[i].policy);
        want = read_text(&w, 64);
        world_close(&w);
        world_open(&w, &opts, cases[i].policy);
        got = read_text(&w, 64);
        quire_lanes_stats_get(quire_retention_lanes(w.retention), &lanes);
        assert_true(lanes.generations >= 3 && lanes.peak_bytes <= w.planned_bytes);
        world_close(&w);
        if (memcmp(want, got, bytes) != 0) {
            fail_msg("%s in %s: other bits", cases[i].policy, quire_format_name(cases[i].format));
        }
        if (strstr(cases[i].policy, "merge") == NULL) { /* a state has no biases */
            go_on(&w, &opts, cases[i].policy);
        }
        free(got);
        free(want);
    }
    quire_model_close(w.model);
}

/* A copy of a condensing fails, or of keys that rows look at: the step says so, and none goes on.
 */
static void test_a_device_is_lost(void **state)
{
    const quire_runtime_opts opts = on_mock(QUIRE_FORMAT_F16);
    world w = { .model = open_model() };

    (void)state;
    for (uint32_t i = 0; i < 16; i++) {
        const quire_mock_device_opts faults = { .copy_failure = i % 2 == 0 ? 0.02 : 1 };
        int rc = QUIRE_OK;

        world_open(&w, &opts,
                   i < 8    ? "keydiff:0.5,recent=16"
                   : i < 12 ? "reconstruct:0.5,recent=16,repeat=40"
                            : "heavy:0.5,recent=16");
        (void)step(&w, 0, 64, QUIRE_LOGITS_LAST);
        quire_mock_device_set(retention_mock, &faults);
        for (uint32_t at = 64; at < N_TOKENS && rc == QUIRE_OK; at += 50 + i) {
            const quire_slice slice = {
                .seq = w.seq, .tokens = tokens + at, .n_tokens = 50 + i, .logits = QUIRE_LOGITS_LAST
            };
            const float *logits;

            if (at + slice.n_tokens <= N_TOKENS) {
                rc = quire_retention_step(w.retention, w.runtime, &slice, 1, &logits);
            }
        }
        assert_int_equal(rc, QUIRE_LOST);
        assert_true(quire_runtime_is_lost(w.runtime));
        world_close(&w);
    }
    quire_model_close(w.model);
}

/* ---- layers ---- */

/* run() of the device at hand, and its calls: one for each layer of a step on one thread. */
static struct {
    quire_attn_device device;
    uint32_t n;
} runs;

static void run_counted(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                        uint32_t n_threads)
{
    runs.n++;
    runs.device.run(ctx, layer, call, thread, n_threads);
}

/* Layers whose attention two steps without logits compute. */
static uint32_t n_attended(world *w, const char *policy)
{
    const quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, 1);

    world_open(w, &opts, policy);
    runs.device = *quire_runtime_device(w->runtime);
    runs.n = 0;
    quire_runtime_device(w->runtime)->run = run_counted;
    (void)step(w, 0, 64, QUIRE_LOGITS_NONE);
    (void)step(w, 64, 64, QUIRE_LOGITS_NONE);
    world_close(w);
    return runs.n;
}

/* Steps without logits compute the attention of the last layer for policies alone that read its
 * queries. */
static void test_last_layer(void **state)
{
    static const char *const without[] = { "predict:0.5", "window:1", "keydiff:0.5",
                                           "reconstruct:0.5" };
    static const char *const with[] = { "snap:0.5", "entropy:0.5,full_layers=none", "heavy:0.5",
                                        "expected:0.5", "reconstruct:0.5,merge=fit" };
    world w = { .model = open_model() };
    const uint32_t n_layers = quire_model_desc_get(w.model)->n_layer;
    quire_predictor *maps = maps_make(w.model, 5);

    (void)state;
    predictor = maps;
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        assert_int_equal(n_attended(&w, without[i]), 2 * (n_layers - 1));
    }
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        assert_int_equal(n_attended(&w, with[i]), 2 * n_layers);
    }
    predictor = NULL;
    quire_predictor_free(maps);
    quire_model_close(w.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_last_layer),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_repeated_by_tiles),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_states_of_others),
        cmocka_unit_test(test_states_of_other_maps),
        cmocka_unit_test(test_states_that_lie),
        cmocka_unit_test(test_on_a_device),
        cmocka_unit_test(test_a_device_is_lost),
    };

    text_make(3);
    return cmocka_run_group_tests(tests, NULL, teardown);
}
