/* test_runtime_shift.c - in a model of one layer K and V depend on the token and its position
 * alone: after a shift the next token's logits are those of the shorter text, computed anew.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/runtime_shift.h"
#include "model_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_VOCAB 320u
#define N_TEXT  300u

static int32_t text[N_TEXT];

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
        assert_int_equal(quire_runtime_shift(runtime, seq, begin, end), QUIRE_OK);
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
        bool is_torn;

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
        assert_int_equal(quire_runtime_shift(runtime, holder, begin, end), QUIRE_OK);
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
        bool is_torn = true;

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
    assert_int_equal(quire_runtime_shift(runtime, seq, 10, 64), QUIRE_INVAL);
    assert_int_equal(quire_runtime_shift(runtime, seq, 64, 100), QUIRE_INVAL);
    assert_int_equal(quire_runtime_shift(runtime, seq, 128, 64), QUIRE_INVAL);
    assert_int_equal(quire_runtime_shift(runtime, seq, 64, 256), QUIRE_INVAL);
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), 200);
    quire_runtime_destroy(runtime);
    runtime = open_runtime(model, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4, 64);
    seq = fixture_seq(runtime);
    (void)fixture_step(runtime, seq, text, 200, QUIRE_LOGITS_NONE);
    assert_int_equal(quire_runtime_shift_check(runtime), QUIRE_UNSUPP);
    assert_int_equal(quire_runtime_shift(runtime, seq, 0, 64), QUIRE_UNSUPP);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
}

/* Half of each head is not turned: a turn of the whole head would damage K. */
static void a_part_of_a_head_is_refused(void **state)
{
    gguf_gen_opts o = fixture_llama("shifted", 1, N_VOCAB, 512, 3);
    quire_model *model;
    quire_runtime *runtime;

    (void)state;
    (void)snprintf(o.arch, sizeof o.arch, "glm4");
    o.vocab = GGUF_GEN_VOCAB_BPE;
    o.n_rot = 16;
    model = fixture_open(fixture_generate(&o));
    runtime = open_runtime(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 64);
    assert_int_equal(quire_runtime_shift_check(runtime), QUIRE_UNSUPP);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shifted_is_shorter),
        cmocka_unit_test(shared_pages_stay),
        cmocka_unit_test(short_memory),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_part_of_a_head_is_refused),
    };

    for (uint32_t i = 0; i < N_TEXT; i++) {
        text[i] = (int32_t)(3 + i * 7 % 250);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
