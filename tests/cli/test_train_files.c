/* test_train_files.c - files that quire train reads with biases of Q, K and V, and with factors of
 * the frequencies of RoPE: the trainer computes what libllama and Quire compute from them, a model
 * that is written unchanged has the same perplexity, and a cut one is what the trainer had.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "cli/training/train_from.h"
#include "model_fixture.h"
#include "program.h"
#include "seed.h"
#include "train/model_pass.h"
#include "train_calls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 96u
#define N_VOCAB  300u

static int32_t tokens[N_TOKENS];

/* A kind of file: its architecture and tensors, and the architecture of its uncut export. */
typedef struct file_kind {
    const char *arch;
    bool has_bias, has_norm, has_factors;
    uint32_t d_head;
    const char *uncut;
} file_kind;

static const file_kind kinds[] = {
    { "qwen2", true, false, false, 32, "qwen2" },
    { "llama", false, false, true, 32, "llama" },
    { "llama", true, false, true, 32, "llama" },
    { "llama", true, false, false, 32, "qwen2" }, /* NEOX pairs, as the trainer has them */
    { "llama", true, false, false, 16, "llama" }, /* heads that are not as wide as the model */
    { "qwen3", true, true, false, 32, "qwen3" },
    { "quire", true, true, true, 32, "quire" }, /* qwen3 has no factors */
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const char *generate(const file_kind *kind)
{
    gguf_gen_opts gen = fixture_llama("train-files", 4, N_VOCAB, 128, 5);

    (void)snprintf(gen.arch, sizeof(gen.arch), "%s", kind->arch);
    gen.d_head = kind->d_head;
    gen.has_qkv_bias = kind->has_bias;
    gen.has_qk_norm = kind->has_norm;
    if (kind->has_factors) {
        (void)snprintf(gen.rope_scaling, sizeof(gen.rope_scaling), "llama3");
        gen.rope_factor = 8;
        gen.rope_ctx_orig = 64; /* so that the tokens' angles change */
    }
    return fixture_generate(&gen);
}

/* Losses of all tokens but the last by the trainer. change: to the shape that was read. */
static void trainer_losses(const char *path, void (*change)(quire_train_shape *s), double *losses)
{
    int32_t targets[N_TOKENS], first[N_TOKENS] = { 0 };
    const quire_train_batch batch = { tokens, targets, first };
    quire_f64_pass_options options = {
        .shape = NULL, .n_rows = 1, .n_tokens = N_TOKENS, .n_threads = 1
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_f64_pass *pass = NULL;
    quire_train_from from;
    double *parameters;

    if (quire_train_from_open(&from, path, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        targets[i] = i + 1 < N_TOKENS ? tokens[i + 1] : QUIRE_TRAIN_NO_TARGET;
    }
    parameters = calloc(from.layout.n_parameters, sizeof(*parameters));
    assert_non_null(parameters);
    for (size_t i = 0; i < from.layout.n_parameters; i++) {
        parameters[i] = (double)from.parameters[i];
    }
    if (change != NULL) {
        change(&from.shape);
    }
    options.shape = &from.shape;
    assert_int_equal(quire_f64_pass_create(&pass, &options, &err), QUIRE_OK);
    (void)quire_f64_pass_run(pass, parameters, &batch, 0, NULL);
    memcpy(losses, quire_f64_pass_losses(pass), N_TOKENS * sizeof(*losses));
    quire_f64_pass_destroy(pass);
    free(parameters);
    quire_train_from_close(&from);
}

/* The largest distance of losses from those by logits [N_TOKENS][n_vocab]. */
static double worst(const double *losses, const float *logits)
{
    double most = 0;

    for (uint32_t t = 0; t + 1 < N_TOKENS; t++) {
        const float *row = logits + (size_t)t * N_VOCAB;
        double sum = 0;

        for (uint32_t v = 0; v < N_VOCAB; v++) {
            sum += exp((double)row[v] - (double)row[tokens[t + 1]]);
        }
        most = fmax(most, fabs(losses[t] - log(sum)));
    }
    return most;
}

/* The same for Quire's own computation of a file. */
static double worst_of_quire(const char *path, const double *losses)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_model *model = fixture_open(path);
    quire_runtime *runtime;
    double most;

    opts.n_ctx = 128;
    opts.kv_budget_bytes = 64u << 20;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    runtime = fixture_runtime(model, &opts);
    most = worst(losses,
                 fixture_step(runtime, fixture_seq(runtime), tokens, N_TOKENS, QUIRE_LOGITS_ALL));
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    return most;
}

static double worst_of_libllama(const char *path, const double *losses)
{
    fixture_peer *peer = fixture_peer_open(path, 128);
    double most = worst(losses, fixture_peer_decode(peer, tokens, N_TOKENS));

    fixture_peer_close(peer);
    return most;
}

static void drop_factors(quire_train_shape *s)
{
    s->has_rope_factors = false;
}

/* In double precision, by the file's numbers. */
static void test_losses(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        const char *path = generate(&kinds[i]);
        double losses[N_TOKENS], without[N_TOKENS];

        trainer_losses(path, NULL, losses);
        assert_true(worst_of_quire(path, losses) < 1e-4);
        if (strcmp(kinds[i].arch, "quire") != 0) {
            assert_true(worst_of_libllama(path, losses) < 1e-4);
        }
        if (kinds[i].has_factors) {
            trainer_losses(path, drop_factors, without);
            assert_true(worst_of_quire(path, without) > 1e-2);
        }
        fixture_generated_remove();
    }
}

static program_result train(const char *run, const char *from, const char *scheme, const char *rate)
{
    return program_expect(0, PROGRAM("train", "--from", from, "--data", program_data("fables.txt"),
                                     "--checkpoint", train_file(run, ".checkpoint"), "-o",
                                     train_file(run, ".gguf"), "-c", "64", "--rows", "2",
                                     "--warmup", "0", "--rate", rate, "--rate-end", rate, "--steps",
                                     "3", scheme != NULL ? "--scheme" : NULL, scheme));
}

static void assert_info(const char *path, const char *text)
{
    program_result info = program_expect(0, PROGRAM("info", path));

    assert_says(info.out, text);
    program_free(&info);
}

/* Steps at a rate of 0 write the file's model. */
static void test_uncut(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        const char *path = generate(&kinds[i]);
        double before[N_TOKENS], after[N_TOKENS];
        program_result result = train("uncut", path, NULL, "0");
        const char *written = train_file("uncut", ".gguf");

        program_free(&result);
        assert_info(written, kinds[i].uncut);
        trainer_losses(path, NULL, before);
        trainer_losses(written, NULL, after);
        assert_memory_equal(before, after, sizeof(before));
        assert_true(fabs(train_perplexity(written) / train_perplexity(path) - 1) < 1e-5);
        if (strcmp(kinds[i].uncut, "quire") != 0) {
            assert_true(worst_of_libllama(written, before) < 1e-4);
        }
        train_remove("uncut");
        fixture_generated_remove();
    }
}

/* Cut models after some steps: the trainer reads its own file, and Quire computes the same. Layers
 * that store nothing have no biases of K and V. */
static void test_cut(void **state)
{
    static const char *const schemes[] = { "fusedkv-lite", "fusedkv", "yoco++" };

    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        const char *path = generate(&kinds[i]);
        double losses[N_TOKENS];
        program_result result = train("cut", path, schemes[i % 3], "0.001");
        const char *written = train_file("cut", ".gguf");

        assert_says(result.out, "divergence ");
        program_free(&result);
        assert_info(written, "4 layers (2 store KV");
        trainer_losses(written, NULL, losses);
        assert_true(worst_of_quire(written, losses) < 1e-4);
        train_remove("cut");
        fixture_generated_remove();
    }
}

/* A run of its own learns biases. */
static void test_fresh(void **state)
{
    const char *written = train_file("fresh", ".gguf");
    program_result result = program_expect(
        0, PROGRAM("train", "--data", program_data("fables.txt"), "--qkv-bias", "--scheme",
                   "fusedkv-lite", "--checkpoint", train_file("fresh", ".checkpoint"), "-o",
                   written, "--n-layer", "2", "--d-model", "32", "--n-head", "2", "--d-head", "16",
                   "--d-ff", "48", "-c", "64", "--rows", "2", "--steps", "5", "--warmup", "0"));
    quire_train_from from;
    float most = 0;

    (void)state;
    program_free(&result);
    assert_int_equal(quire_train_from_open(&from, written, NULL), QUIRE_OK);
    assert_true(from.layout.blocks[0].k_bias != QUIRE_TRAIN_ABSENT);
    assert_true(from.layout.blocks[1].q_bias != QUIRE_TRAIN_ABSENT);
    assert_true(from.layout.blocks[1].k_bias == QUIRE_TRAIN_ABSENT);
    for (uint32_t i = 0; i < from.shape.n_kv_head * from.shape.d_head; i++) {
        most = fmaxf(most, fabsf(from.parameters[from.layout.blocks[0].v_bias + i]));
    }
    assert_true(most > 1e-4f && most < 0.1f);
    quire_train_from_close(&from);
    train_remove("fresh");
}

static int setup(void **state)
{
    quire_rng rng = test_rng(23);

    (void)state;
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, N_VOCAB);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_uncut),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_fresh),
    };

    return cmocka_run_group_tests(tests, setup, program_clean);
}
