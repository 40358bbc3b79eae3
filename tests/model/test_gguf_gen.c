/* test_gguf_gen.c - generated models are reproducible, scaled as promised, and refused when their
 * options make no model.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "gguf_edit.h"
#include "gguf_gen_codes.h"

#include "model/archs.h"

#include <gguf.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static unsigned char *generate(const gguf_gen_opts *opts, size_t *n)
{
    quire_error err = QUIRE_ERROR_INIT;
    unsigned char *data;
    FILE *file;

    if (gguf_gen_write(opts, gguf_edit_path(), &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    file = fopen(gguf_edit_path(), "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *n = (size_t)ftell(file);
    rewind(file);
    data = malloc(*n);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *n, file), *n);
    (void)fclose(file);
    return data;
}

static void seeds_decide(void **state)
{
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");
    unsigned char *first;
    unsigned char *again;
    unsigned char *other;
    size_t n_first;
    size_t n_again;
    size_t n_other;

    (void)state;
    first = generate(&opts, &n_first);
    again = generate(&opts, &n_again);
    opts.seed++;
    other = generate(&opts, &n_other);
    assert_int_equal(n_first, n_again);
    assert_memory_equal(first, again, n_first);
    assert_int_equal(n_first, n_other);
    assert_memory_not_equal(first, other, n_first);
    free(other);
    free(again);
    free(first);
}

/* Mean and standard deviation of an f32 tensor of the file at gguf_edit_path(). */
static void moments(const char *name, double *mean, double *deviation)
{
    struct ggml_context *meta = NULL;
    struct gguf_init_params params = { .ctx = &meta };
    struct gguf_context *gguf = gguf_init_from_file(gguf_edit_path(), params);
    const struct ggml_tensor *tensor = ggml_get_tensor(meta, name);
    const float *x = ggml_get_data_f32(tensor);
    int64_t n = ggml_nelements(tensor);
    double sum = 0.0;
    double squares = 0.0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    *mean = sum / (double)n;
    *deviation = sqrt(squares / (double)n - *mean * *mean);
    gguf_free(gguf);
    ggml_free(meta);
}

/* Whether an f32 matrix of 2^18 values and as many again has the second half of the first. */
static bool repeats(const char *name)
{
    const size_t half = (size_t)1 << 18;
    struct ggml_context *meta = NULL;
    struct gguf_init_params params = { .ctx = &meta };
    struct gguf_context *gguf = gguf_init_from_file(gguf_edit_path(), params);
    const struct ggml_tensor *tensor = ggml_get_tensor(meta, name);
    const float *x = ggml_get_data_f32(tensor);
    bool is_equal;

    assert_int_equal(ggml_nelements(tensor), 2 * half);
    is_equal = memcmp(x, x + half, half * sizeof(float)) == 0;
    gguf_free(gguf);
    ggml_free(meta);
    return is_equal;
}

/* Matrices of large models may repeat, so that they are made fast. */
static void values_repeat(void **state)
{
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    opts.n_ff = 1u << 15; /* by 16 */
    assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_OK);
    assert_false(repeats("blk.0.ffn_gate.weight"));
    opts.n_distinct = 1;
    assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_OK);
    assert_true(repeats("blk.0.ffn_gate.weight"));
}

static void weights_are_scaled(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    gguf_gen_opts opts;
    double deviation;
    double mean;

    (void)state;
    assert_true(gguf_gen_shape("tiny-qwen2", &opts));
    opts.type = GGML_TYPE_F32;
    assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_OK);
    moments("blk.1.attn_q.weight", &mean, &deviation);
    assert_float_equal((float)mean, 0.0f, 0.002f);
    assert_float_equal((float)deviation, 1.0f / sqrtf(128.0f), 0.002f);
    /* Two branches in each of 3 layers. */
    moments("blk.1.ffn_down.weight", &mean, &deviation);
    assert_float_equal((float)deviation, 1.0f / sqrtf(256.0f * 6.0f), 0.001f);
    moments("blk.1.ffn_norm.weight", &mean, &deviation);
    assert_float_equal((float)mean, 1.0f, 0.05f);
    moments("blk.1.attn_q.bias", &mean, &deviation);
    assert_float_equal((float)mean, 0.0f, 0.05f);
}

/* Llama 3.1's factors: ones for short waves, the factor for long ones, rising between. */
static void llama3_factors(void **state)
{
    struct ggml_context *meta = NULL;
    struct gguf_init_params params = { .ctx = &meta };
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");
    struct gguf_context *gguf;
    const float *x;
    unsigned char *data;
    size_t n;

    (void)state;
    opts.d_head = 64;
    opts.n_embd = 128;
    (void)snprintf(opts.rope_scaling, sizeof(opts.rope_scaling), "llama3");
    opts.rope_base = 5e5f;
    opts.rope_factor = 8.0f;
    opts.rope_ctx_orig = 8192;
    data = generate(&opts, &n);
    free(data);
    gguf = gguf_init_from_file(gguf_edit_path(), params);
    assert_non_null(gguf);
    x = ggml_get_data_f32(ggml_get_tensor(meta, "rope_freqs.weight"));
    assert_float_equal(x[0], 1.0f, 0.0f);
    assert_float_equal(x[31], 8.0f, 0.0f);
    for (int i = 1; i < 32; i++) {
        assert_true(x[i] >= x[i - 1]);
    }
    /* Dimension 16: wave 2 pi sqrt(5e5) = 4443, smooth (8192/4443 - 1) / 3 = 0.2813. */
    assert_float_equal(x[16], 1.0f / ((1.0f - 0.2813f) / 8.0f + 0.2813f), 0.002f);
    gguf_free(gguf);
    ggml_free(meta);
}

static void expect_invalid(const gguf_gen_opts *opts, const char *needle)
{
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(gguf_gen_write(opts, gguf_edit_path(), &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, needle));
}

static void impossible_options(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    gguf_gen_opts opts;

    (void)state;
    assert_false(gguf_gen_shape("nothing", &opts));
    opts = gguf_edit_small("tiny-llama");
    opts.n_kv_head = 3;
    expect_invalid(&opts, "heads a multiple of kv-heads");
    opts = gguf_edit_small("tiny-llama");
    opts.n_layer = 0;
    expect_invalid(&opts, "sizes must be positive");
    opts = gguf_edit_small("tiny-llama");
    opts.n_vocab = 261;
    expect_invalid(&opts, "vocab is 261; expected at least 262");
    opts = gguf_edit_small("tiny-llama");
    opts.type = GGML_TYPE_Q8_0;
    expect_invalid(&opts, "must be multiples of 32 for type q8_0");
    opts = gguf_edit_small("tiny-llama");
    opts.type = GGML_TYPE_Q8_K;
    expect_invalid(&opts, "no weights are of the type q8_K");
    opts = gguf_edit_small("tiny-llama");
    opts.type_more = GGML_TYPE_I8;
    expect_invalid(&opts, "no weights are of the type i8");
    opts = gguf_edit_small("tiny-llama");
    opts.n_latent = 16; /* an architecture without */
    expect_invalid(&opts, "architecture llama: latent attention is 16 wide");
    opts = gguf_edit_small("tiny-deepseek2");
    opts.n_latent = 16;
    opts.n_rot = opts.d_head;
    expect_invalid(&opts, "turned numbers and results of");
    opts = gguf_edit_small("tiny-llama");
    assert_int_equal(gguf_gen_write(&opts, "/nowhere/x.gguf", &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "/nowhere/x.gguf: cannot write"));
}

static enum ggml_type type_of(const struct gguf_context *gguf, const char *name)
{
    const int64_t i = gguf_find_tensor(gguf, name);

    assert_true(i >= 0);
    return gguf_get_tensor_type(gguf, i);
}

/* Weights that are made as codes have the deviation of weights that are rounded to codes. */
static void codes_are_scaled(void **state)
{
    static const enum ggml_type types[] = { GGML_TYPE_IQ1_S,  GGML_TYPE_IQ1_M, GGML_TYPE_IQ2_XXS,
                                            GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S, GGML_TYPE_IQ3_XXS,
                                            GGML_TYPE_IQ3_S };
    enum {
        N = 1 << 16
    };
    static unsigned char packed[N];
    static float weights[N];
    quire_rng rng = { 7 };

    (void)state;
    assert_false(gguf_gen_codes_has(GGML_TYPE_IQ4_XS));
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        double sum = 0.0, squares = 0.0;

        assert_true(gguf_gen_codes_has(types[t]));
        gguf_gen_codes_fill(types[t], &rng, 0.0625f, packed, N);
        ggml_get_type_traits(types[t])->to_float(packed, weights, N);
        for (size_t i = 0; i < N; i++) {
            sum += (double)weights[i];
            squares += (double)weights[i] * (double)weights[i];
        }
        assert_float_equal((float)(sum / N), 0.0f, 0.003f);
        assert_float_equal((float)sqrt(squares / N), 0.0625f, 0.01f);
    }
}

/* Rows that are no whole blocks have the type that llama-quantize would take. */
static void types_fit_rows(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    struct gguf_init_params params = { .no_alloc = true };
    struct gguf_context *gguf;
    arch_family family;

    (void)state;
    assert_true(arch_family_find("deepseek2", &family));
    family.options.type = GGML_TYPE_IQ2_XXS;
    family.options.type_more = GGML_TYPE_Q4_K;
    family.options.has_expert_type = true;
    family.options.expert_type = GGML_TYPE_MXFP4;
    assert_int_equal(gguf_gen_write(&family.options, gguf_edit_path(), &err), QUIRE_OK);
    gguf = gguf_init_from_file(gguf_edit_path(), params);
    assert_non_null(gguf);
    assert_int_equal(type_of(gguf, "blk.0.attn_output.weight"), GGML_TYPE_IQ2_XXS);
    assert_int_equal(type_of(gguf, "blk.0.attn_k_b.weight"), GGML_TYPE_IQ4_NL); /* rows of 32 */
    assert_int_equal(type_of(gguf, "blk.0.ffn_down.weight"), GGML_TYPE_Q4_K);
    assert_int_equal(type_of(gguf, "blk.1.ffn_down_exps.weight"), GGML_TYPE_MXFP4);
    assert_int_equal(type_of(gguf, "output.weight"), GGML_TYPE_Q4_K);
    gguf_free(gguf);
}

/* Names are of one family each, and every architecture has one. */
static void families_are_of_all_architectures(void **state)
{
    arch_family family, found;

    (void)state;
    for (int a = 0; a < (int)QUIRE_ARCH_COUNT; a++) {
        if (a != QUIRE_ARCH_QUIRE &&
            !arch_family_find(quire_arch_row_get((quire_arch)a)->name, &found)) {
            fail_msg("no family %s", quire_arch_row_get((quire_arch)a)->name);
        }
    }
    for (size_t i = 0; arch_family_get(i, &family); i++) {
        assert_true(arch_family_find(family.name, &found));
        assert_string_equal(family.options.arch, found.options.arch);
        assert_int_equal(family.options.n_experts, found.options.n_experts);
        assert_int_equal(family.options.n_embd % 256, 0);
        assert_true(family.has_experts == (family.options.n_experts != 0));
    }
    assert_true(arch_family_find("llama+experts", &found));
    assert_true(found.has_experts);
    assert_false(arch_family_find("nothing", &found));
}

/* A matrix of 4 PB is refused before a byte is written. */
static void no_room_on_disk(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    gguf_gen_opts opts;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_embd = 1u << 20;
    opts.n_ff = 1u << 30;
    (void)unlink(gguf_edit_path());
    assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "the disk has "));
    assert_int_equal(access(gguf_edit_path(), F_OK), -1);
}

/* A file is removed when writing it fails half-way. A device that cannot be written stays. */
static void failed_writes(void **state)
{
    const struct rlimit small = { 4096, RLIM_INFINITY };
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");
    quire_error err = QUIRE_ERROR_INIT;
    struct rlimit before;

    (void)state;
    (void)unlink(gguf_edit_path());
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(strstr(err.message, "cannot write"));
    assert_int_equal(access(gguf_edit_path(), F_OK), -1);
    assert_int_equal(gguf_gen_write(&opts, "/dev/full", &err), QUIRE_IO);
    assert_int_equal(access("/dev/full", F_OK), 0);
}

/* Shapes of the models that benchmarks name, as their cards give them. */
static void shapes_are_those_of_the_models(void **state)
{
    static const struct {
        const char *name;
        uint32_t n_layer, n_embd, n_ff, n_head, n_kv_head, d_head, n_vocab;
    } known[] = {
        { "smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152 },
        { "llama-1b", 16, 2048, 8192, 32, 8, 64, 128256 },
        { "llama-8b", 32, 4096, 14336, 32, 8, 128, 128256 },
        { "llama2-7b", 32, 4096, 11008, 32, 32, 128, 32000 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        gguf_gen_opts o;

        assert_true(gguf_gen_shape(known[i].name, &o));
        assert_int_equal(o.n_layer, known[i].n_layer);
        assert_int_equal(o.n_embd, known[i].n_embd);
        assert_int_equal(o.n_ff, known[i].n_ff);
        assert_int_equal(o.n_head, known[i].n_head);
        assert_int_equal(o.n_kv_head, known[i].n_kv_head);
        assert_int_equal(o.d_head, known[i].d_head);
        assert_int_equal(o.n_vocab, known[i].n_vocab);
    }
}

static int remove_file(void **state)
{
    (void)state;
    (void)unlink(gguf_edit_path());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_decide),
        cmocka_unit_test(values_repeat),
        cmocka_unit_test(weights_are_scaled),
        cmocka_unit_test(llama3_factors),
        cmocka_unit_test(impossible_options),
        cmocka_unit_test(codes_are_scaled),
        cmocka_unit_test(types_fit_rows),
        cmocka_unit_test(families_are_of_all_architectures),
        cmocka_unit_test(no_room_on_disk),
        cmocka_unit_test(failed_writes),
        cmocka_unit_test(shapes_are_those_of_the_models),
    };

    return cmocka_run_group_tests(tests, NULL, remove_file);
}
