/* test_weights.c - which tensors are used in place, which are repacked, and that it makes no
 * difference to the results.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/backend.h"
#include "model/model_internal.h"
#include "model_fixture.h"
#include "seed.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const gguf_gen_opts base_opts = {
    .arch = "llama",
    .name = "weights",
    .n_layer = 2,
    .n_embd = 64,
    .n_ff = 128,
    .n_head = 4,
    .n_kv_head = 2,
    .d_head = 16,
    .n_vocab = 320,
    .n_ctx = 128,
    .rope_base = 10000.0f,
    .vocab = GGUF_GEN_VOCAB_SPM,
    .type = GGML_TYPE_F32,
    .seed = 5,
};

static void test_f32_is_used_in_place(void **state)
{
    quire_model *model = fixture_open(fixture_generate(&base_opts));
    const quire_weights *w = model->weights;

    (void)state;
    assert_int_equal(w->mapped_bytes + w->repacked_bytes, model->desc.weight_bytes);
    assert_non_null(w->output);
    assert_ptr_not_equal(w->output, w->tok_embd);
    assert_null(w->rope_freqs);
    assert_null(w->output_b);
    assert_int_equal(w->n_layer, 2);
    for (uint32_t il = 0; il < w->n_layer; il++) {
        assert_non_null(w->layers[il].wq);
        assert_null(w->layers[il].bq);
        assert_null(w->layers[il].q_norm);
        assert_string_equal(ggml_get_name(w->layers[il].down),
                            il == 0 ? "blk.0.ffn_down.weight" : "blk.1.ffn_down.weight");
        assert_int_equal((uintptr_t)w->layers[il].wq->data % 32, 0);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

static void logits_of(const char *path, bool no_repack, float *out)
{
    static const int32_t tokens[] = { 5, 80, 300, 7, 9, 11, 200 };
    quire_model_opts opts = { .no_repack = no_repack };
    quire_runtime_opts run = QUIRE_RUNTIME_OPTS_INIT;
    quire_runtime *runtime;
    quire_model *model = NULL;

    assert_int_equal(quire_model_open(&model, path, &opts, NULL), QUIRE_OK);
    if (no_repack) {
        assert_int_equal(model->weights->repacked_bytes, 0);
    }
    run.n_threads = 1;
    runtime = fixture_runtime(model, &run);
    memcpy(out, fixture_step(runtime, fixture_seq(runtime), tokens, 7, QUIRE_LOGITS_LAST),
           sizeof *out * 320);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* Repacking changes the order of bytes, not the numbers; results agree within the rounding of
 * activations to 8 bits, which our products do with an f32 scale for each 32 and ggml's with an f16
 * for each 32 or, of K-quants, one scale for each 256. Tied: the embedding is looked up in place
 * and multiplied repacked. */
static void test_repacked_equals_mapped(void **state)
{
    static const enum ggml_type types[] = {
        GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,   GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
        GGML_TYPE_Q4_K, GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
    };

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        gguf_gen_opts gen = base_opts;
        float repacked[320], mapped[320];
        const char *path;

        gen.n_embd = gen.n_ff = (uint32_t)ggml_blck_size(types[i]) * 2;
        gen.d_head = gen.n_embd / gen.n_head;
        gen.type = types[i];
        gen.is_tied = true;
        path = fixture_generate(&gen);
        logits_of(path, false, repacked);
        logits_of(path, true, mapped);
        assert_true(fixture_diff_max(repacked, mapped, 320) < 0.2);
        assert_true(fixture_diff_max(repacked, (float[320]){ 0 }, 320) > 1.0);
        fixture_generated_remove();
    }
}

/* Every matrix is in the buffer that the CPU device calls fastest. The buffer depends on the
 * machine, so the test checks only facts that hold on all machines. */
static void test_extra_buffers(void **state)
{
    gguf_gen_opts gen = base_opts;
    quire_model *model;

    (void)state;
    gen.type = GGML_TYPE_Q4_0;
    gen.is_tied = true;
    model = fixture_open(fixture_generate(&gen));
    (void)printf("q4_0: %llu bytes mapped, %llu repacked\n",
                 (unsigned long long)model->weights->mapped_bytes,
                 (unsigned long long)model->weights->repacked_bytes);
    /* Looked-up rows and vectors are never repacked. */
    assert_true(model->weights->mapped_bytes >= ggml_nbytes(model->weights->tok_embd));
    assert_true(ggml_backend_buffer_is_host(model->weights->tok_embd->buffer));
    assert_true(ggml_backend_buffer_is_host(model->weights->output_norm->buffer));
    if (quire_matmul_kernels_find(NULL) != NULL) {
        assert_non_null(quire_weights_panels(model->weights->output));
        assert_non_null(quire_weights_panels(model->weights->layers[1].down));
        assert_null(quire_weights_panels(model->weights->tok_embd));
    } else if (quire_backend_extra_bufts() == NULL) {
        assert_int_equal(model->weights->repacked_bytes, 0);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

static void progress_note(void *ctx, float done)
{
    float *last = ctx;

    assert_true(done >= *last && done <= 1.0f);
    *last = done;
}

static void test_progress(void **state)
{
    float last = 0.0f;
    quire_model_opts opts = { .progress = progress_note, .progress_ctx = &last };
    quire_model *model = NULL;

    (void)state;
    assert_int_equal(quire_model_open(&model, fixture_generate(&base_opts), &opts, NULL), QUIRE_OK);
    assert_true(last > 0.99f);
    quire_model_close(model);
    fixture_generated_remove();
}

static void test_open_refuses(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = (quire_model *)&err;

    (void)state;
    assert_int_equal(quire_model_open(&model, "/nonexistent/model.gguf", NULL, &err), QUIRE_IO);
    assert_null(model);
    assert_non_null(strstr(err.message, "/nonexistent/model.gguf"));
    assert_int_equal(quire_model_open(&model, "/nonexistent/model.gguf", NULL, NULL), QUIRE_IO);
}

/* The file shrinks between the check of its header and the mapping of its data. */
static void test_file_that_shrinks(void **state)
{
    const char *path = fixture_generate(&base_opts);
    const quire_model_opts opts = { 0 };
    quire_error err = QUIRE_ERROR_INIT;
    quire_weights *sets[QUIRE_MODEL_SETS_MAX];
    quire_model_desc *desc = test_calloc(1, sizeof *desc);
    quire_gguf *file = NULL;

    (void)state;
    assert_int_equal(quire_backend_init(&err), QUIRE_OK);
    assert_int_equal(quire_gguf_open(&file, path, &err), QUIRE_OK);
    assert_int_equal(quire_gguf_describe(file, desc, &err), QUIRE_OK);
    assert_int_equal(truncate(path, (off_t)quire_gguf_file_bytes(file) - 1), 0);
    assert_int_equal(quire_weights_load(sets, file, desc, &opts, NULL, &err), QUIRE_IO);
    assert_null(sets[0]);
    assert_non_null(strstr(err.message, path));
    fixture_generated_remove();
    err = (quire_error)QUIRE_ERROR_INIT;
    assert_int_equal(quire_weights_load(sets, file, desc, &opts, NULL, &err), QUIRE_IO);
    quire_gguf_close(file);
    test_free(desc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_is_used_in_place), cmocka_unit_test(test_repacked_equals_mapped),
        cmocka_unit_test(test_extra_buffers),        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_open_refuses),         cmocka_unit_test(test_file_that_shrinks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
