/* test_runtime_shift_sealed.c - tokens leave the middle of a sequence in formats that are coded by
 * 64 tokens: the keys of tiles against those of the shorter text in f32, the next tokens' logits,
 * forms of tiles, moves into other pages and on a mock device.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
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
#include "quire/attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_VOCAB 320u
#define N_TEXT  700u
#define N_LANES 2u /* of a layer of fixture_llama() */
#define N_NEXT  20u

static int32_t text[N_TEXT + N_NEXT];
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

/* A text of which [begin, end) leaves. */
typedef struct cut {
    quire_format k;
    quire_format v;
    uint32_t page_tokens;
    uint32_t recent;
    uint32_t sinks;
    uint32_t n_text;
    uint32_t begin;
    uint32_t end;
    bool is_on_mock;
} cut;

static quire_runtime *open_runtime(const quire_model *model, const cut *c)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 1024;
    opts.n_threads = 2;
    opts.n_seqs_max = 4;
    opts.page_tokens = c->page_tokens;
    opts.k_format = c->k;
    opts.v_format = c->v;
    opts.kv_recent = c->recent;
    opts.kv_sinks = c->sinks;
    opts.kv_budget_bytes = (uint64_t)16 << 20;
    if (c->is_on_mock) {
        opts.device = "mock";
        opts.device_open = open_mock;
    }
    return fixture_runtime(model, &opts);
}

/* Add tokens in steps of n. */
static void read_tokens(quire_runtime *runtime, quire_seq_id seq, const int32_t *tokens,
                        uint32_t n_tokens, uint32_t n)
{
    for (uint32_t at = 0; at < n_tokens; at += n) {
        (void)fixture_step(runtime, seq, tokens + at, n < n_tokens - at ? n : n_tokens - at,
                           QUIRE_LOGITS_NONE);
    }
}

/* The logits of N_NEXT tokens behind a sequence, [N_NEXT][N_VOCAB]. */
static void next_logits(quire_runtime *runtime, quire_seq_id seq, float *out)
{
    for (uint32_t i = 0; i < N_NEXT; i++) {
        memcpy(out + (size_t)i * N_VOCAB,
               fixture_step(runtime, seq, text + N_TEXT + i, 1, QUIRE_LOGITS_LAST),
               N_VOCAB * sizeof *out);
    }
}

static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0.0;

    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(sum);
}

/* ---- in a model of one layer K and V depend on the token and its position alone ---- */

/* A text without its middle. */
typedef struct shorter {
    float keys[N_LANES][N_TEXT * 32]; /* of whole tiles */
    float logits[N_NEXT * N_VOCAB];
    uint64_t bytes; /* of pages, at the end */
} shorter;

static void keys_read(quire_runtime *runtime, quire_seq_id seq, shorter *out)
{
    const uint32_t n = quire_seq_tokens(quire_runtime_cache(runtime), seq) / 64 * 64;
    const quire_format k = quire_runtime_opts_get(runtime)->k_format;
    quire_runtime_rows rows;

    assert_int_equal(quire_runtime_rows_begin(runtime, seq, seq, &rows), QUIRE_OK);
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        quire_runtime_rows_keys(&rows, quire_runtime_lane_at(runtime, lane), n, out->keys[lane]);
        if (k == QUIRE_FORMAT_Q8 || quire_format_is_sealed(k)) {
            quire_hadamard(out->keys[lane], (size_t)n * 32, 32);
        }
    }
    assert_int_equal(quire_runtime_rows_end(&rows), QUIRE_OK);
}

static void shorter_read(quire_runtime *runtime, quire_seq_id seq, shorter *out)
{
    quire_cache_stats stats;

    keys_read(runtime, seq, out);
    next_logits(runtime, seq, out->logits);
    quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
    out->bytes = stats.charged_bytes;
}

/* The shorter text, computed anew. */
static void read_anew(const quire_model *model, const cut *c, shorter *out)
{
    quire_runtime *runtime = open_runtime(model, c);
    const quire_seq_id seq = fixture_seq(runtime);

    if (c->begin > 0) {
        read_tokens(runtime, seq, text, c->begin, 50);
    }
    read_tokens(runtime, seq, text + c->end, c->n_text - c->end, 50);
    shorter_read(runtime, seq, out);
    quire_runtime_destroy(runtime);
}

static void check_shift(const quire_model *model, const cut *c)
{
    static shorter exact, anew, got;
    static const float none[N_NEXT * N_VOCAB];
    const char *format = quire_format_name(c->k);
    const uint32_t n_left = c->n_text - (c->end - c->begin), n_keys = n_left / 64 * 64 * 32;
    cut f32 = *c;
    quire_runtime *runtime = open_runtime(model, c);
    const quire_seq_id seq = fixture_seq(runtime);
    double off, off_anew;

    f32.k = f32.v = QUIRE_FORMAT_F32;
    f32.is_on_mock = false;
    read_anew(model, &f32, &exact);
    read_anew(model, c, &anew);
    read_tokens(runtime, seq, text, c->n_text, 50);
    assert_int_equal(quire_runtime_shift(runtime, seq, c->begin, c->end, &is_torn), QUIRE_OK);
    quire_cache_validate(quire_runtime_cache(runtime));
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), n_left);
    shorter_read(runtime, seq, &got);
    quire_runtime_destroy(runtime);
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        off = distance(got.keys[lane], exact.keys[lane], n_keys);
        off_anew = distance(anew.keys[lane], exact.keys[lane], n_keys);
        /* Two roundings that know nothing of each other. */
        if (!(off <= 1.02 * sqrt(2.0) * off_anew)) {
            fail_msg("%s, lane %u: keys are off by %g, computed anew by %g", format, lane, off,
                     off_anew);
        }
    }
    off = distance(got.logits, exact.logits, N_NEXT * N_VOCAB);
    off_anew = distance(anew.logits, exact.logits, N_NEXT * N_VOCAB);
    if (!(off <= 1.6 * off_anew && off < 0.12 * distance(exact.logits, none, N_NEXT * N_VOCAB))) {
        fail_msg("%s: logits are off by %g, computed anew by %g", format, off, off_anew);
    }
    /* Sinks that left or moved have no 8-bit form any more. */
    assert_true(c->sinks <= (c->begin + c->page_tokens - 1) / c->page_tokens * c->page_tokens
                    ? got.bytes == anew.bytes
                    : got.bytes < anew.bytes);
}

static const cut cuts[] = {
    { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4, 64, 64, 64, 700, 64, 384, false },
    { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4, 64, 0, 64, 704, 64, 384, false },
    { QUIRE_FORMAT_Q3, QUIRE_FORMAT_Q5, 128, 128, 64, 700, 64, 384, false },
    { QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q3, 128, 64, 128, 650, 64, 320, false },
    { QUIRE_FORMAT_Q5, QUIRE_FORMAT_Q5, 64, 128, 192, 640, 64, 128, false },
    { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4, 128, 0, 0, 704, 192, 256, false },
    { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4, 256, 512, 64, 700, 64, 192, false },
    { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4, 64, 64, 64, 700, 128, 512, false },
    { QUIRE_FORMAT_Q4, QUIRE_FORMAT_F16, 128, 64, 0, 700, 0, 640, false },
    { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q4, 64, 64, 64, 700, 64, 64, false },
};

#define N_CUTS (sizeof cuts / sizeof cuts[0])

static void shifted_is_shorter(void **state)
{
    const gguf_gen_opts o = fixture_llama("shifted", 1, N_VOCAB, 1024, 3);
    quire_model *model = fixture_open(fixture_generate(&o));

    (void)state;
    for (size_t i = 0; i < N_CUTS; i++) {
        check_shift(model, &cuts[i]);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* Half of a head is not turned, or no head is. */
static void other_ropes_are_shorter(void **state)
{
    gguf_gen_opts partial = fixture_llama("shifted", 1, N_VOCAB, 1024, 3), none = partial;

    (void)state;
    (void)snprintf(partial.arch, sizeof partial.arch, "glm4");
    partial.n_rot = 16;
    (void)snprintf(none.arch, sizeof none.arch, "granite");
    none.has_no_rope = true;
    for (uint32_t i = 0; i < 2; i++) {
        gguf_gen_opts *o = i == 0 ? &partial : &none;
        quire_model *model;

        o->vocab = GGUF_GEN_VOCAB_BPE;
        model = fixture_open(fixture_generate(o));
        check_shift(model, &cuts[0]);
        check_shift(model, &cuts[3]);
        quire_model_close(model);
        fixture_generated_remove();
    }
}

/* ---- bits ---- */

typedef enum move {
    IN_PLACE,
    AWAY
} move;

/* The logits behind a text whose middle has left. n: tokens of a step. */
static void moved_logits(const quire_model *model, const cut *c, move how, uint32_t n, float *out)
{
    quire_runtime *runtime = open_runtime(model, c);
    quire_cache *cache = quire_runtime_cache(runtime);
    quire_seq_id seq = fixture_seq(runtime), to;

    read_tokens(runtime, seq, text, c->n_text, n);
    if (how == IN_PLACE) {
        assert_int_equal(quire_runtime_shift(runtime, seq, c->begin, c->end, &is_torn), QUIRE_OK);
    } else {
        assert_int_equal(quire_runtime_shift_away(runtime, seq, c->begin, c->end, &to, &is_torn),
                         QUIRE_OK);
        assert_int_equal(quire_seq_close(cache, seq), QUIRE_OK);
        seq = to;
    }
    quire_cache_validate(cache);
    next_logits(runtime, seq, out);
    quire_runtime_destroy(runtime);
}

/* In place and into other pages, for all steps before, in the host's memory and in a device's. */
static void moves_have_the_same_bits(void **state)
{
    static float want[N_NEXT * N_VOCAB], got[N_NEXT * N_VOCAB];
    const gguf_gen_opts o = fixture_llama("shifted", 2, N_VOCAB, 1024, 3);
    quire_model *model = fixture_open(fixture_generate(&o));

    (void)state;
    for (size_t i = 0; i < N_CUTS; i++) {
        cut on_mock = cuts[i];

        on_mock.is_on_mock = true;
        moved_logits(model, &cuts[i], IN_PLACE, 50, want);
        for (uint32_t k = 0; k < 4; k++) {
            moved_logits(model, k < 2 ? &cuts[i] : &on_mock, k % 2 == 0 ? AWAY : IN_PLACE,
                         k == 1 ? 300 : 50, got);
            if (memcmp(got, want, sizeof want) != 0) {
                fail_msg("cut %zu, way %u: other bits", i, k);
            }
        }
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* Pages that another sequence holds stay as they are. */
static void shared_pages_stay(void **state)
{
    static float want[N_NEXT * N_VOCAB], got[N_NEXT * N_VOCAB];
    const gguf_gen_opts o = fixture_llama("shifted", 2, N_VOCAB, 1024, 3);
    quire_model *model = fixture_open(fixture_generate(&o));

    (void)state;
    for (size_t i = 0; i < N_CUTS; i++) {
        const cut *c = &cuts[i];
        quire_runtime *runtime = open_runtime(model, c);
        quire_cache *cache = quire_runtime_cache(runtime);
        const quire_seq_id seq = fixture_seq(runtime);
        quire_seq_id holder, to;

        read_tokens(runtime, seq, text, c->n_text, 50);
        quire_runtime_cool(runtime, seq);
        assert_int_equal(quire_seq_fork(cache, seq, &holder), QUIRE_OK);
        assert_int_equal(quire_runtime_shift_away(runtime, seq, c->begin, c->end, &to, &is_torn),
                         QUIRE_OK);
        assert_int_equal(quire_seq_close(cache, seq), QUIRE_OK);
        next_logits(runtime, to, got);
        moved_logits(model, c, IN_PLACE, 50, want);
        assert_memory_equal(got, want, sizeof want);
        next_logits(runtime, holder, got);
        quire_cache_validate(cache);
        quire_runtime_destroy(runtime);
        runtime = open_runtime(model, c);
        to = fixture_seq(runtime);
        read_tokens(runtime, to, text, c->n_text, 50);
        next_logits(runtime, to, want);
        assert_memory_equal(got, want, sizeof want);
        quire_runtime_destroy(runtime);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* ---- failures ---- */

/* A budget of one context is enough for a move in place, again and again. */
static void one_context_is_enough(void **state)
{
    const gguf_gen_opts o = fixture_llama("shifted", 2, N_VOCAB, 1024, 3);
    quire_model *model = fixture_open(fixture_generate(&o));

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t n_ctx = i < 3 ? 512 : 640, end = i < 3 ? 320 : 384;
        quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
        quire_runtime *runtime;
        quire_seq_id seq;

        opts.n_ctx = n_ctx;
        opts.n_batch = 64;
        opts.n_seqs_max = 1;
        opts.page_tokens = i < 2 ? 64 : 128;
        opts.k_format = opts.v_format = QUIRE_FORMAT_Q4;
        opts.kv_recent = i == 1 ? 256 : 64;
        runtime = fixture_runtime(model, &opts);
        seq = fixture_seq(runtime);
        for (uint32_t turn = 0; turn < 4; turn++) {
            read_tokens(runtime, seq, text,
                        n_ctx - quire_seq_tokens(quire_runtime_cache(runtime), seq), 64);
            assert_int_equal(quire_runtime_shift(runtime, seq, 64, end, &is_torn), QUIRE_OK);
            quire_cache_validate(quire_runtime_cache(runtime));
        }
        quire_runtime_destroy(runtime);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* A copy that fails, or a loss in the middle, loses the device. The caller learns whether tokens
 * were changed before. */
static void failed_copies_lose_the_device(void **state)
{
    const gguf_gen_opts o = fixture_llama("moved", 1, N_VOCAB, 1024, 3);
    quire_model *model = fixture_open(fixture_generate(&o));
    uint32_t n_done = 0, n_torn = 0, n_whole = 0;
    cut c = cuts[0];

    (void)state;
    c.is_on_mock = true;
    for (uint32_t i = 0; i < 120; i++) {
        const quire_mock_device_opts bad = { .copy_failure = i % 4 < 2 ? 0.02 : 0,
                                             .loss = i % 4 < 2 ? 0 : 0.02 };
        quire_runtime *runtime;
        quire_seq_id seq, to;
        int rc;

        mock_seed = i;
        runtime = open_runtime(model, &c);
        seq = fixture_seq(runtime);
        read_tokens(runtime, seq, text, c.n_text, 350);
        quire_mock_device_set(mock, &bad);
        rc = i % 2 == 0 ? quire_runtime_shift(runtime, seq, c.begin, c.end, &is_torn)
                        : quire_runtime_shift_away(runtime, seq, c.begin, c.end, &to, &is_torn);
        assert_true(rc == QUIRE_OK || rc == QUIRE_LOST);
        n_done += rc == QUIRE_OK;
        n_torn += rc < 0 && is_torn;
        n_whole += rc < 0 && !is_torn;
        quire_cache_validate(quire_runtime_cache(runtime));
        quire_runtime_destroy(runtime);
    }
    mock_seed = 0;
    assert_true(n_done > 0 && n_torn > 0 && n_whole > 0);
    quire_model_close(model);
    fixture_generated_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shifted_is_shorter),       cmocka_unit_test(other_ropes_are_shorter),
        cmocka_unit_test(moves_have_the_same_bits), cmocka_unit_test(shared_pages_stay),
        cmocka_unit_test(one_context_is_enough),    cmocka_unit_test(failed_copies_lose_the_device),
    };

    for (uint32_t i = 0; i < N_TEXT + N_NEXT; i++) {
        text[i] = (int32_t)(3 + i * 7 % 250);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
