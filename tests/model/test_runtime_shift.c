/* test_runtime_shift.c - in a model of one layer K and V depend on the token and its position
 * alone: after a shift the next token's logits are those of the shorter text, computed anew. After
 * a thinning each lane is that of a text of its own. All of that in the host's memory and in that
 * of a mock device.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/mock_device.h"
#include "model/runtime_hidden.h"
#include "model/runtime_rows.h"
#include "model/runtime_shift.h"
#include "model_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_VOCAB 320u
#define N_TEXT  300u

static int32_t text[N_TEXT];
static bool is_on_mock; /* KV of the test's runtimes */
static bool is_torn;
static quire_device *mock; /* opened last */
static uint64_t mock_seed; /* of the next one */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts slow = { .seed = mock_seed, .delay_ticks = 2 };
    const int rc = quire_mock_device_open(out, opts, &slow, err);

    assert_string_equal(name, "mock");
    mock = *out;
    return rc;
}

static quire_runtime *open_runtime(const quire_model *model, quire_format k, quire_format v,
                                   uint32_t page_tokens)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 512;
    opts.n_threads = 2;
    opts.n_seqs_max = 4;
    opts.page_tokens = page_tokens;
    opts.k_format = k;
    opts.v_format = v;
    opts.kv_budget_bytes = (uint64_t)16 << 20;
    if (is_on_mock) {
        opts.device = "mock";
        opts.device_open = open_mock;
    }
    return fixture_runtime(model, &opts);
}

static void check_shift(const gguf_gen_opts *o, quire_format k, quire_format v, double within)
{
    static const uint32_t cuts[][2] = { { 64, 128 }, { 0, 192 }, { 128, 256 }, { 64, 64 } };
    quire_model *model = fixture_open(fixture_generate(o));

    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        const uint32_t begin = cuts[i][0], end = cuts[i][1];
        quire_runtime *runtime = open_runtime(model, k, v, i % 2 == 0 ? 64 : 128);
        const quire_seq_id seq = fixture_seq(runtime), fresh = fixture_seq(runtime);
        const int32_t next = 65;
        float *want = malloc(N_VOCAB * sizeof *want);
        const float *got;

        assert_non_null(want);
        if (begin > 0) {
            (void)fixture_step(runtime, fresh, text, begin, QUIRE_LOGITS_NONE);
        }
        (void)fixture_step(runtime, fresh, text + end, N_TEXT - end, QUIRE_LOGITS_NONE);
        memcpy(want, fixture_step(runtime, fresh, &next, 1, QUIRE_LOGITS_LAST),
               N_VOCAB * sizeof *want);
        (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
        assert_int_equal(quire_runtime_shift(runtime, seq, begin, end, &is_torn), QUIRE_OK);
        assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq),
                         N_TEXT - (end - begin));
        got = fixture_step(runtime, seq, &next, 1, QUIRE_LOGITS_LAST);
        if (fixture_diff_max(got, want, N_VOCAB) > within) {
            fail_msg("%s %s, %u to %u: off by %g", o->arch, o->rope_scaling, begin, end,
                     fixture_diff_max(got, want, N_VOCAB));
        }
        free(want);
        quire_runtime_destroy(runtime);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

static void shifted_is_shorter(void **state)
{
    gguf_gen_opts o = fixture_llama("shifted", 1, N_VOCAB, 512, 3);

    (void)state;
    check_shift(&o, QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 1e-3);
    check_shift(&o, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 2e-2);
    check_shift(&o, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8, 0.2);
    (void)snprintf(o.arch, sizeof o.arch, "qwen2");
    o.vocab = GGUF_GEN_VOCAB_BPE;
    (void)snprintf(o.rope_scaling, sizeof o.rope_scaling, "yarn");
    o.rope_factor = 4.0f;
    o.rope_ctx_orig = 64;
    check_shift(&o, QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 1e-3);
}

/* Positions over a factor, and frequencies with factors of their own from a tensor of the file. */
static void shifted_by_scaled_angles(void **state)
{
    static const char *const scalings[] = { "linear", "llama3" };

    (void)state;
    for (size_t i = 0; i < sizeof scalings / sizeof scalings[0]; i++) {
        gguf_gen_opts o = fixture_llama("shifted", 1, N_VOCAB, 512, 3);

        (void)snprintf(o.rope_scaling, sizeof o.rope_scaling, "%s", scalings[i]);
        o.rope_factor = 4.0f;
        check_shift(&o, QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 1e-3);
        check_shift(&o, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 2e-2);
    }
}

/* Pages that another sequence holds stay as they are; the new ones have the bits of a shift in
 * place. */
static void shared_pages_stay(void **state)
{
    static const struct {
        uint32_t page_tokens, begin, end;
        quire_format format;
    } cases[] = { { 64, 64, 192, QUIRE_FORMAT_F16 },
                  { 128, 64, 192, QUIRE_FORMAT_Q8 },
                  { 64, 0, 64, QUIRE_FORMAT_F32 },
                  { 256, 128, 128, QUIRE_FORMAT_F32 } };
    const gguf_gen_opts o = fixture_llama("shifted", 2, N_VOCAB, 512, 3);
    quire_model *model = fixture_open(fixture_generate(&o));
    const int32_t next = 65;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint32_t begin = cases[i].begin, end = cases[i].end;
        quire_runtime *runtime =
            open_runtime(model, cases[i].format, cases[i].format, cases[i].page_tokens);
        quire_cache *cache = quire_runtime_cache(runtime);
        const quire_seq_id seq = fixture_seq(runtime);
        quire_seq_id holder, out;
        float want[2][N_VOCAB];

        (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
        assert_int_equal(quire_seq_fork(cache, seq, &holder), QUIRE_OK);
        memcpy(want[1], fixture_step(runtime, holder, &next, 1, QUIRE_LOGITS_LAST), sizeof want[1]);
        assert_int_equal(quire_seq_truncate(cache, holder, N_TEXT), QUIRE_OK);
        assert_int_equal(quire_runtime_shift_away(runtime, seq, begin, end, &out, &is_torn),
                         QUIRE_OK);
        assert_int_equal(quire_seq_close(cache, seq), QUIRE_OK);
        assert_int_equal(quire_seq_tokens(cache, out), N_TEXT - (end - begin));
        memcpy(want[0], fixture_step(runtime, out, &next, 1, QUIRE_LOGITS_LAST), sizeof want[0]);
        assert_int_equal(quire_seq_close(cache, out), QUIRE_OK);
        assert_memory_equal(fixture_step(runtime, holder, &next, 1, QUIRE_LOGITS_LAST), want[1],
                            sizeof want[1]);
        assert_int_equal(quire_seq_truncate(cache, holder, N_TEXT), QUIRE_OK);
        assert_int_equal(quire_runtime_shift(runtime, holder, begin, end, &is_torn), QUIRE_OK);
        assert_memory_equal(fixture_step(runtime, holder, &next, 1, QUIRE_LOGITS_LAST), want[0],
                            sizeof want[0]);
        quire_cache_validate(cache);
        quire_runtime_destroy(runtime);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* Without memory nothing is left behind, and the caller learns whether seq is whole. */
static void short_memory(void **state)
{
    const gguf_gen_opts o = fixture_llama("shifted", 1, N_VOCAB, 512, 3);
    quire_model *model = fixture_open(fixture_generate(&o));

    (void)state;
    for (uint32_t n_free = 0; n_free <= 3; n_free++) {
        quire_runtime *runtime = open_runtime(model, QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 64);
        quire_cache *cache = quire_runtime_cache(runtime);
        const quire_seq_id seq = fixture_seq(runtime);
        quire_seq_id holder, out;
        quire_cache_stats stats;
        uint64_t page_bytes;

        is_torn = true;
        (void)fixture_step(runtime, seq, text, 256, QUIRE_LOGITS_NONE);
        quire_cache_stats_get(cache, &stats);
        page_bytes = stats.charged_bytes / 4;
        assert_int_equal(quire_seq_fork(cache, seq, &holder), QUIRE_OK);
        assert_int_equal(quire_region_budget_set(cache, QUIRE_REGION_DYNAMIC,
                                                 stats.charged_bytes + n_free * page_bytes),
                         QUIRE_OK);
        assert_int_equal(quire_runtime_shift_away(runtime, seq, 0, 64, &out, &is_torn),
                         n_free == 3 ? QUIRE_OK : QUIRE_NOPAGES);
        assert_true((out == QUIRE_SEQ_NULL) == (n_free < 3));
        assert_true(n_free > 0 || !is_torn);
        assert_int_equal(quire_seq_tokens(cache, holder), 256);
        quire_cache_validate(cache);
        quire_runtime_destroy(runtime);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

static void refusals(void **state)
{
    const gguf_gen_opts o = fixture_llama("shifted", 1, N_VOCAB, 512, 3);
    quire_model *model = fixture_open(fixture_generate(&o));
    quire_runtime *runtime = open_runtime(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 64);
    quire_seq_id seq = fixture_seq(runtime);

    (void)state;
    (void)fixture_step(runtime, seq, text, 200, QUIRE_LOGITS_NONE);
    assert_int_equal(quire_runtime_shift_check(runtime), QUIRE_OK);
    assert_int_equal(quire_runtime_shift(runtime, seq, 10, 64, &is_torn), QUIRE_INVAL);
    assert_int_equal(quire_runtime_shift(runtime, seq, 64, 100, &is_torn), QUIRE_INVAL);
    assert_int_equal(quire_runtime_shift(runtime, seq, 128, 64, &is_torn), QUIRE_INVAL);
    assert_int_equal(quire_runtime_shift(runtime, seq, 64, 256, &is_torn), QUIRE_INVAL);
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), 200);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
}

/* Half of each head is not turned, and stays, in both orders of pairs. */
static void a_part_of_a_head_turns(void **state)
{
    static const char *const archs[] = { "glm4", "gemma" };
    gguf_gen_opts o = fixture_llama("shifted", 1, N_VOCAB, 512, 3);

    (void)state;
    o.vocab = GGUF_GEN_VOCAB_BPE;
    o.n_rot = 16;
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        (void)snprintf(o.arch, sizeof o.arch, "%s", archs[i]);
        o.is_tied = i == 1;
        check_shift(&o, QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 1e-3);
        check_shift(&o, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 2e-2);
    }
}

static void keys_of_layer(quire_runtime *runtime, quire_seq_id seq, uint32_t layer, uint32_t n,
                          float *keys)
{
    const quire_runtime_lane lane = { layer, 1 };
    quire_runtime_rows rows;

    assert_int_equal(quire_runtime_rows_begin(runtime, seq, seq, &rows), QUIRE_OK);
    quire_runtime_rows_keys(&rows, lane, n, keys);
    assert_int_equal(quire_runtime_rows_end(&rows), QUIRE_OK);
}

/* smollm3: layer 3 has no rope, so its rows of K keep their bits. Those of layer 0 turn. */
static void layers_without_a_rope_do_not_turn(void **state)
{
    enum {
        N_KEYS = N_TEXT * 32
    };
    static float before[2][N_KEYS], after[2][N_KEYS];
    gguf_gen_opts o = fixture_llama("shifted", 4, N_VOCAB, 512, 3);
    quire_model *model;
    quire_runtime *runtime;
    quire_seq_id seq;

    (void)state;
    (void)snprintf(o.arch, sizeof o.arch, "smollm3");
    o.vocab = GGUF_GEN_VOCAB_BPE;
    model = fixture_open(fixture_generate(&o));
    runtime = open_runtime(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 64);
    seq = fixture_seq(runtime);
    (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
    keys_of_layer(runtime, seq, 0, N_TEXT, before[0]);
    keys_of_layer(runtime, seq, 3, N_TEXT, before[1]);
    assert_int_equal(quire_runtime_shift(runtime, seq, 64, 192, &is_torn), QUIRE_OK);
    keys_of_layer(runtime, seq, 0, N_TEXT - 128, after[0]);
    keys_of_layer(runtime, seq, 3, N_TEXT - 128, after[1]);
    assert_memory_equal(after[1] + 64 * 32, before[1] + 192 * 32, (N_TEXT - 192) * 32 * 4);
    assert_memory_not_equal(after[0] + 64 * 32, before[0] + 192 * 32, (N_TEXT - 192) * 32 * 4);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
    o = fixture_llama("shifted", 1, N_VOCAB, 512, 3);
    (void)snprintf(o.arch, sizeof o.arch, "granite");
    o.vocab = GGUF_GEN_VOCAB_BPE;
    o.has_no_rope = true;
    check_shift(&o, QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 1e-3);
    check_shift(&o, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 2e-2);
}

/* A row has turned numbers behind those that V is made of: a turn of its first ones would damage
 * both. */
static void latent_rows_are_refused(void **state)
{
    gguf_gen_opts o;
    quire_model *model;
    quire_runtime *runtime;

    (void)state;
    assert_true(gguf_gen_shape("tiny-deepseek2", &o));
    model = fixture_open(fixture_generate(&o));
    runtime = open_runtime(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 64);
    assert_int_equal(quire_runtime_shift_check(runtime), QUIRE_UNSUPP);
    assert_int_equal(quire_runtime_shift(runtime, fixture_seq(runtime), 0, 0, &is_torn),
                     QUIRE_UNSUPP);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
}

/* ---- thinning ---- */

#define N_LANES 2u /* of fixture_llama() with one layer */

/* Choose n_kept of n tokens, others in each lane. */
static void choose(bool *is_kept, uint32_t n, uint32_t n_kept, uint32_t lane)
{
    memset(is_kept, 0, n * sizeof *is_kept);
    for (uint32_t i = 0, at = lane * 5; i < n_kept; i++) {
        at = (at + 3 + i % 5 + lane * 2) % n;
        while (is_kept[at]) {
            at = (at + 1) % n;
        }
        is_kept[at] = true;
    }
}

/* The text of a lane's tokens. Returns its length. */
static uint32_t kept_text(const quire_thinning *t, uint32_t lane, int32_t *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_TEXT; i++) {
        const bool is_old = i >= t->begin && i < t->end;

        if (!is_old || t->is_kept[lane * (t->end - t->begin) + i - t->begin]) {
            out[n++] = text[i];
        }
    }
    return n;
}

/* A sequence in which each lane holds the rows of a text of its own, computed as a whole text. */
static quire_seq_id expected_lanes(quire_runtime *runtime, const quire_thinning *t)
{
    const quire_seq_id out = fixture_seq(runtime);
    static bool all[N_TEXT];
    int32_t kept[N_TEXT];
    uint32_t n = kept_text(t, 0, kept);

    memset(all, true, sizeof all);
    (void)fixture_step(runtime, out, kept, n, QUIRE_LOGITS_NONE);
    for (uint32_t lane = 1; lane < N_LANES; lane++) {
        const quire_seq_id other = fixture_seq(runtime);
        quire_runtime_rows rows;

        assert_int_equal(kept_text(t, lane, kept), n);
        (void)fixture_step(runtime, other, kept, n, QUIRE_LOGITS_NONE);
        assert_int_equal(quire_runtime_rows_begin(runtime, other, out, &rows), QUIRE_OK);
        quire_runtime_rows_copy(&rows, quire_runtime_lane_at(runtime, lane), all, n);
        assert_int_equal(quire_runtime_rows_end(&rows), QUIRE_OK);
        assert_int_equal(quire_seq_close(quire_runtime_cache(runtime), other), QUIRE_OK);
    }
    return out;
}

static void check_keys(quire_runtime *runtime, quire_seq_id seq, quire_seq_id expected,
                       double within)
{
    const uint32_t n = quire_seq_tokens(quire_runtime_cache(runtime), expected);
    const uint32_t d = quire_model_desc_get(quire_runtime_model(runtime))->d_k;
    float *keys = malloc(2 * (size_t)n * d * sizeof *keys);
    quire_runtime_rows rows;

    assert_non_null(keys);
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), n);
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        assert_int_equal(quire_runtime_rows_begin(runtime, seq, seq, &rows), QUIRE_OK);
        quire_runtime_rows_keys(&rows, quire_runtime_lane_at(runtime, lane), n, keys);
        assert_int_equal(quire_runtime_rows_end(&rows), QUIRE_OK);
        assert_int_equal(quire_runtime_rows_begin(runtime, expected, expected, &rows), QUIRE_OK);
        quire_runtime_rows_keys(&rows, quire_runtime_lane_at(runtime, lane), n,
                                keys + (size_t)n * d);
        assert_int_equal(quire_runtime_rows_end(&rows), QUIRE_OK);
        for (uint32_t i = 0; i < n; i++) {
            const double diff =
                fixture_diff_max(keys + (size_t)i * d, keys + (size_t)(n + i) * d, d);

            if (diff > within) {
                fail_msg("lane %u, row %u: off by %g", lane, i, diff);
            }
        }
    }
    free(keys);
}

static void check_thin(const quire_model *model, quire_format format, uint32_t page_tokens,
                       double within)
{
    static const struct {
        uint32_t begin, end, n_kept;
    } cases[] = { { 64, 256, 64 }, { 0, 192, 128 }, { 128, 256, 0 }, { 64, 256, 192 } };
    static bool is_kept[N_LANES * N_TEXT];
    const int32_t next = 65;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint32_t n = cases[i].end - cases[i].begin;
        const quire_thinning t = { cases[i].begin, cases[i].end, cases[i].n_kept, is_kept };
        quire_runtime *runtime = open_runtime(model, format, format, page_tokens);
        const quire_seq_id seq = fixture_seq(runtime);
        float want[N_VOCAB];
        quire_seq_id expected;

        assert_int_equal(quire_runtime_n_lanes(runtime), N_LANES);
        for (uint32_t lane = 0; lane < N_LANES; lane++) {
            choose(is_kept + lane * n, n, t.n_kept, lane);
        }
        assert_true(t.n_kept == 0 || t.n_kept == n || memcmp(is_kept, is_kept + n, n) != 0);
        expected = expected_lanes(runtime, &t);
        (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
        assert_int_equal(quire_runtime_thin(runtime, seq, &t, &is_torn), QUIRE_OK);
        check_keys(runtime, seq, expected, within);
        memcpy(want, fixture_step(runtime, expected, &next, 1, QUIRE_LOGITS_LAST), sizeof want);
        if (fixture_diff_max(fixture_step(runtime, seq, &next, 1, QUIRE_LOGITS_LAST), want,
                             N_VOCAB) > within) {
            fail_msg("case %zu: V or the places of tokens differ", i);
        }
        quire_cache_validate(quire_runtime_cache(runtime));
        quire_runtime_destroy(runtime);
    }
}

/* Row by row, K within the roundings of a turn, and the logits that V shows in. */
static void each_lane_keeps_its_own(void **state)
{
    gguf_gen_opts o = fixture_llama("thinned", 1, N_VOCAB, 512, 3);
    quire_model *model = fixture_open(fixture_generate(&o));

    (void)state;
    check_thin(model, QUIRE_FORMAT_F32, 64, 1e-3);
    check_thin(model, QUIRE_FORMAT_F16, 128, 2e-2);
    check_thin(model, QUIRE_FORMAT_BF16, 256, 0.1);
    quire_model_close(model);
    fixture_generated_remove();
    (void)snprintf(o.arch, sizeof o.arch, "qwen2");
    o.vocab = GGUF_GEN_VOCAB_BPE;
    (void)snprintf(o.rope_scaling, sizeof o.rope_scaling, "yarn");
    o.rope_factor = 4.0f;
    o.rope_ctx_orig = 64;
    model = fixture_open(fixture_generate(&o));
    check_thin(model, QUIRE_FORMAT_F32, 64, 1e-3);
    quire_model_close(model);
    fixture_generated_remove();
}

/* Tokens that stay at their places keep their bytes. */
static void the_first_tokens_keep_their_bits(void **state)
{
    const gguf_gen_opts o = fixture_llama("thinned", 1, N_VOCAB, 512, 3);
    quire_model *model = fixture_open(fixture_generate(&o));
    quire_runtime *runtime = open_runtime(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 64);
    const quire_seq_id seq = fixture_seq(runtime), whole = fixture_seq(runtime);
    static bool is_kept[N_LANES * 128];
    const quire_thinning t = { 64, 192, 64, is_kept };

    (void)state;
    (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
    (void)fixture_step(runtime, whole, text, 64, QUIRE_LOGITS_NONE);
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        choose(is_kept + lane * 128, 128, 64, lane);
    }
    assert_int_equal(quire_runtime_thin(runtime, seq, &t, &is_torn), QUIRE_OK);
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(runtime), seq, 64), QUIRE_OK);
    check_keys(runtime, seq, whole, 0);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
}

static void thinning_is_refused(void **state)
{
    static const struct {
        uint32_t begin, end, n_kept;
    } ranges[] = { { 10, 128, 64 },  { 64, 100, 0 }, { 64, 192, 10 },
                   { 64, 128, 128 }, { 128, 64, 0 }, { 64, 320, 64 } };
    static const bool is_kept[N_LANES * 512] = { false };
    const gguf_gen_opts o = fixture_llama("thinned", 1, N_VOCAB, 512, 3);
    quire_model *model = fixture_open(fixture_generate(&o));
    quire_runtime *runtime = open_runtime(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 64);
    quire_seq_id seq = fixture_seq(runtime);
    quire_thinning t;

    (void)state;
    (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        t = (quire_thinning){ ranges[i].begin, ranges[i].end, ranges[i].n_kept, is_kept };
        assert_int_equal(quire_runtime_thin(runtime, seq, &t, &is_torn), QUIRE_INVAL);
    }
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), N_TEXT);
    quire_runtime_destroy(runtime);
    runtime = open_runtime(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_Q4, 64);
    seq = fixture_seq(runtime);
    (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
    t = (quire_thinning){ 64, 128, 0, is_kept };
    assert_int_equal(quire_runtime_thin(runtime, seq, &t, &is_torn), QUIRE_UNSUPP);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
}

/* ---- a device ---- */

typedef enum move {
    MOVE_SHIFT,
    MOVE_AWAY,
    MOVE_THIN,
    N_MOVES
} move;

/* Move the tokens of a text, in a new sequence *seq. */
static int move_text(quire_runtime *runtime, move how, quire_seq_id *seq)
{
    static bool is_kept[N_LANES * 192];
    const quire_thinning t = { 64, 256, 128, is_kept };
    quire_seq_id out;
    int rc;

    if (how == MOVE_SHIFT) {
        return quire_runtime_shift(runtime, *seq, 64, 192, &is_torn);
    }
    if (how == MOVE_THIN) {
        for (uint32_t lane = 0; lane < N_LANES; lane++) {
            choose(is_kept + lane * 192, 192, 128, lane);
        }
        return quire_runtime_thin(runtime, *seq, &t, &is_torn);
    }
    rc = quire_runtime_shift_away(runtime, *seq, 64, 192, &out, &is_torn);
    if (rc == QUIRE_OK) {
        assert_int_equal(quire_seq_close(quire_runtime_cache(runtime), *seq), QUIRE_OK);
        *seq = out;
    }
    return rc;
}

#define KEYS_MAX (N_LANES * N_TEXT * 64u)

/* All that shows of a text's bits. */
typedef struct shown {
    float keys[KEYS_MAX];
    float logits[N_VOCAB]; /* of the next token */
} shown;

static void show(quire_runtime *runtime, quire_seq_id seq, shown *out)
{
    const uint32_t n = quire_seq_tokens(quire_runtime_cache(runtime), seq);
    const uint32_t d = quire_model_desc_get(quire_runtime_model(runtime))->d_k;
    const int32_t next = 65;
    quire_runtime_rows rows;

    memset(out, 0, sizeof *out);
    assert_true(N_LANES * n * d <= KEYS_MAX);
    assert_int_equal(quire_runtime_rows_begin(runtime, seq, seq, &rows), QUIRE_OK);
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        quire_runtime_rows_keys(&rows, quire_runtime_lane_at(runtime, lane), n,
                                out->keys + (size_t)lane * n * d);
    }
    assert_int_equal(quire_runtime_rows_end(&rows), QUIRE_OK);
    memcpy(out->logits, fixture_step(runtime, seq, &next, 1, QUIRE_LOGITS_LAST),
           sizeof out->logits);
}

/* Moves on a device give the bytes that the host's memory gets. */
static void device_has_the_hosts_bits(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8 };
    static shown of[2];
    const gguf_gen_opts o = fixture_llama("moved", 1, N_VOCAB, 512, 3);
    quire_model *model = fixture_open(fixture_generate(&o));

    (void)state;
    for (uint32_t i = 0; i < N_MOVES * 3 * 2; i++) {
        const quire_format format = formats[i / N_MOVES % 3];

        for (int d = 0; d < 2; d++) {
            quire_runtime *runtime;
            quire_seq_id seq;

            is_on_mock = d == 1;
            runtime = open_runtime(model, format, format, i / N_MOVES / 3 == 0 ? 64 : 128);
            seq = fixture_seq(runtime);
            (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
            assert_int_equal(move_text(runtime, (move)(i % N_MOVES), &seq), QUIRE_OK);
            show(runtime, seq, &of[d]);
            quire_cache_validate(quire_runtime_cache(runtime));
            quire_runtime_destroy(runtime);
        }
        assert_memory_equal(&of[0], &of[1], sizeof of[0]);
    }
    is_on_mock = false;
    quire_model_close(model);
    fixture_generated_remove();
}

/* A copy that fails, or a loss in the middle, loses the device. The caller learns whether tokens
 * were changed before. */
static void failed_copies_lose_the_device(void **state)
{
    const gguf_gen_opts o = fixture_llama("moved", 1, N_VOCAB, 512, 3);
    quire_model *model = fixture_open(fixture_generate(&o));
    uint32_t n_done[N_MOVES] = { 0 }, n_torn[N_MOVES] = { 0 }, n_whole[N_MOVES] = { 0 };

    (void)state;
    is_on_mock = true;
    for (uint32_t i = 0; i < N_MOVES * 60; i++) {
        const quire_mock_device_opts bad = { .copy_failure = i / N_MOVES % 2 == 0 ? 0.03 : 0,
                                             .loss = i / N_MOVES % 2 == 0 ? 0 : 0.03 };
        const move how = (move)(i % N_MOVES);
        quire_runtime *runtime;
        quire_seq_id seq;
        int rc;

        mock_seed = i;
        runtime = open_runtime(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 64);
        seq = fixture_seq(runtime);
        (void)fixture_step(runtime, seq, text, N_TEXT, QUIRE_LOGITS_NONE);
        quire_mock_device_set(mock, &bad);
        rc = move_text(runtime, how, &seq);
        assert_int_equal(quire_runtime_is_lost(runtime), rc == QUIRE_LOST);
        assert_true(rc == QUIRE_OK || rc == QUIRE_LOST);
        n_done[how] += rc == QUIRE_OK;
        n_torn[how] += rc < 0 && is_torn;
        n_whole[how] += rc < 0 && !is_torn;
        quire_runtime_destroy(runtime);
    }
    is_on_mock = false;
    for (uint32_t i = 0; i < N_MOVES; i++) {
        assert_true(n_done[i] > 0 && n_torn[i] > 0 && n_whole[i] > 0);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

static int begin_on_mock(void **state)
{
    (void)state;
    is_on_mock = true;
    return 0;
}

static int end_on_mock(void **state)
{
    (void)state;
    is_on_mock = false;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shifted_is_shorter),
        cmocka_unit_test(shifted_by_scaled_angles),
        cmocka_unit_test(shared_pages_stay),
        cmocka_unit_test(short_memory),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_part_of_a_head_turns),
        cmocka_unit_test(layers_without_a_rope_do_not_turn),
        cmocka_unit_test(latent_rows_are_refused),
        cmocka_unit_test(each_lane_keeps_its_own),
        cmocka_unit_test(the_first_tokens_keep_their_bits),
        cmocka_unit_test(thinning_is_refused),
    };
    const struct CMUnitTest of_devices[] = {
        cmocka_unit_test(device_has_the_hosts_bits),
        cmocka_unit_test(failed_copies_lose_the_device),
    };

    for (uint32_t i = 0; i < N_TEXT; i++) {
        text[i] = (int32_t)(3 + i * 7 % 250);
    }
    return cmocka_run_group_tests_name("host", tests, NULL, NULL) +
           cmocka_run_group_tests_name("mock", tests, begin_on_mock, end_on_mock) +
           cmocka_run_group_tests_name("devices", of_devices, NULL, NULL);
}
