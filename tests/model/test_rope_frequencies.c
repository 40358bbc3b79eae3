/* test_rope_frequencies.c - K of layer 0 depends on the token and its position alone: a row that is
 * turned by a difference of positions is the row at the other position, with every scaling. And the
 * hidden states that an append gets.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/rope_frequencies.h"
#include "model/runtime_hidden.h"
#include "model_fixture.h"

#include <stdio.h>
#include <string.h>

#define N_ROWS 80u
#define D      32u
#define N_EMBD 128u

/* A device that notes the rows of layer 0. */
typedef struct notes {
    float k[N_ROWS][D];
    float hidden[N_ROWS][N_EMBD];
    bool has_hidden;
} notes;

static int accept_layer(void *ctx, const quire_attn_layer *layer)
{
    (void)ctx;
    (void)layer;
    return QUIRE_OK;
}

static int plan(void *ctx, const quire_attn_batch *batch)
{
    (void)ctx;
    (void)batch;
    return QUIRE_OK;
}

static void append(void *ctx, const quire_attn_layer *layer, uint32_t thread, uint32_t n_threads)
{
    notes *n = ctx;

    (void)n_threads;
    for (uint32_t i = 0; thread == 0 && i < N_ROWS; i++) {
        memcpy(n->k[i], layer->k_new + i * layer->k_new_stride, sizeof n->k[i]);
    }
}

static void note_hidden(void *ctx, uint32_t layer, const float *hidden, size_t stride)
{
    notes *n = ctx;

    assert_int_equal(layer, 0);
    n->has_hidden = true;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        memcpy(n->hidden[i], hidden + i * stride, sizeof n->hidden[i]);
    }
}

static void run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                uint32_t n_threads)
{
    (void)ctx;
    (void)call;
    (void)n_threads;
    for (uint32_t i = 0; thread == 0 && i < N_ROWS; i++) {
        memset(layer->out + i * layer->out_stride, 0,
               layer->n_head * layer->d_v * sizeof *layer->out);
    }
}

static int sync_step(void *ctx)
{
    (void)ctx;
    return QUIRE_OK;
}

/* Rows of one token at all positions. */
static void note_rows(quire_model *model, bool gives_hidden, quire_format format, notes *out)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    int32_t tokens[N_ROWS];
    quire_runtime *runtime;

    opts.n_ctx = 256;
    opts.n_threads = 1;
    opts.n_seqs_max = 1;
    opts.k_format = opts.v_format = format;
    runtime = fixture_runtime(model, &opts);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        tokens[i] = 70;
    }
    *quire_runtime_device(runtime) = (quire_attn_device){ .name = "notes",
                                                          .memory = QUIRE_MEMORY_HOST,
                                                          .ctx = out,
                                                          .check = accept_layer,
                                                          .plan = plan,
                                                          .append = append,
                                                          .run = run,
                                                          .sync = sync_step };
    if (gives_hidden) {
        quire_runtime_hidden_set(runtime, note_hidden, out);
    }
    memset(out, 0, sizeof *out);
    (void)fixture_step(runtime, fixture_seq(runtime), tokens, N_ROWS, QUIRE_LOGITS_LAST);
    quire_runtime_destroy(runtime);
}

static quire_model *open_variant(const char *arch, const char *scaling)
{
    gguf_gen_opts o = fixture_llama("turned", 1, 320, 512, 3);

    (void)snprintf(o.arch, sizeof o.arch, "%s", arch);
    (void)snprintf(o.rope_scaling, sizeof o.rope_scaling, "%s", scaling);
    o.rope_factor = 4.0f;
    o.rope_ctx_orig = 64;
    o.has_qk_norm = strcmp(arch, "qwen3") == 0;
    o.vocab = strcmp(arch, "llama") == 0 ? GGUF_GEN_VOCAB_SPM : GGUF_GEN_VOCAB_BPE;
    return fixture_open(fixture_generate(&o));
}

static void check_turns(const char *arch, const char *scaling)
{
    quire_model *model = open_variant(arch, scaling);
    const quire_model_desc *desc = quire_model_desc_get(model);
    float frequencies[D / 2], turns[D];
    const quire_rotation rotation = quire_model_rotation(desc, frequencies);
    static const uint32_t pairs[][2] = { { 0, 79 }, { 3, 43 }, { 70, 1 }, { 12, 12 } };
    static notes n;

    assert_int_equal(desc->d_k, D);
    quire_model_rope_frequencies(model, frequencies);
    note_rows(model, false, QUIRE_FORMAT_F32, &n);
    assert_false(n.has_hidden);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        float row[D];

        memcpy(row, n.k[pairs[i][0]], sizeof row);
        quire_rotation_turns(&rotation, (double)pairs[i][1] - (double)pairs[i][0], turns);
        quire_rotation_apply(&rotation, turns, row);
        if (fixture_diff_max(row, n.k[pairs[i][1]], D) > 2e-4) {
            fail_msg("%s %s: from %u to %u off by %g", arch, scaling, pairs[i][0], pairs[i][1],
                     fixture_diff_max(row, n.k[pairs[i][1]], D));
        }
    }
    quire_model_close(model);
    fixture_generated_remove();
}

static void rows_turn(void **state)
{
    (void)state;
    check_turns("llama", "");
    check_turns("llama", "linear");
    check_turns("llama", "yarn");
    check_turns("llama", "llama3");
    check_turns("qwen2", "");
    check_turns("qwen2", "yarn");
    check_turns("qwen3", "");
}

/* With queries among the append's inputs (q8) and without. */
static void appends_get_hidden_states(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8 };
    quire_model *model = open_variant("llama", "");
    static notes n;

    (void)state;
    for (int i = 0; i < 2; i++) {
        double sum = 0.0;

        note_rows(model, true, formats[i], &n);
        assert_true(n.has_hidden);
        for (uint32_t x = 0; x < N_EMBD; x++) {
            sum += (double)n.hidden[0][x] * (double)n.hidden[0][x];
        }
        assert_true(sum > 0.1 * N_EMBD && sum < 10.0 * N_EMBD); /* after the norm */
        assert_memory_equal(n.hidden[N_ROWS - 1], n.hidden[0], sizeof n.hidden[0]);
        assert_true(fixture_diff_max(n.hidden[0], n.k[0], D) > 1e-3);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_turn),
        cmocka_unit_test(appends_get_hidden_states),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
