/* test_train_export.c - models that quire train writes: in f16 and q8_0 they are near those in f32,
 * and libllama computes the same perplexity for plain ones.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_fixture.h"
#include "program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNKS 24u

/* Files of the one run of these tests. */
static char checkpoint[256], model[256];

static const char *read_text(const char *path)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "rb");
    size_t n;

    assert_non_null(file);
    n = fread(text, 1, sizeof(text) - 1, file);
    assert_int_equal(fclose(file), 0);
    text[n] = '\0';
    return text;
}

/* Train a model of 4 heads of 32, or, when the checkpoint is there, write it again. more: options,
 * or NULL. */
static void train_heads(const char *scheme, const char *n_kv_head, const char *const more[2],
                        const char *type)
{
    program_result result = program_expect(
        0, PROGRAM("train", "--data", program_data("fables.txt"), "--scheme", scheme,
                   "--checkpoint", checkpoint, "-o", model, "--n-layer", "2", "--d-model", "48",
                   "--n-kv-head", n_kv_head, "--d-ff", "96", "-c", "64", "--rows", "4", "--steps",
                   "40", "--warmup", "5", "--rate", "0.005", "--type", type, more[0], more[1]));

    program_free(&result);
}

static void train(const char *scheme, const char *type)
{
    train_heads(scheme, "4", (const char *const[2]){ NULL, NULL }, type);
}

static double perplexity(void)
{
    json_t *said = program_json(PROGRAM("perplexity", "-m", model, "-f", program_data("fables.txt"),
                                        "-c", "64", "--chunks", "24", "--kv", "f32", "--json"));
    double ppl = json_number_value(json_object_get(said, "ppl"));

    json_decref(said);
    return ppl;
}

static long file_bytes(void)
{
    FILE *file = fopen(model, "rb");
    long n;

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    n = ftell(file);
    assert_int_equal(fclose(file), 0);
    return n;
}

static int remove_files(void **state)
{
    (void)state;
    (void)unlink(checkpoint);
    (void)unlink(model);
    return 0;
}

/* Rows of 48 are no whole number of q8_0's blocks and stay f16; rows of 128 and 96 are. Gates of
 * fusedkv and mixes of yoco++ stay f32. */
static void test_types(void **state)
{
    static const char *const schemes[] = { "mha", "fusedkv", "yoco++" };

    for (size_t i = 0; i < 3; i++) {
        double f32, f16, q8;
        long f32_bytes, f16_bytes;

        train(schemes[i], "f32");
        f32 = perplexity();
        f32_bytes = file_bytes();
        train(schemes[i], "f16");
        f16 = perplexity();
        f16_bytes = file_bytes();
        train(schemes[i], "q8_0");
        q8 = perplexity();
        assert_true(f32 < 60); /* of 260 */
        assert_true(fabs(f16 / f32 - 1) < 0.002);
        assert_true(fabs(q8 / f32 - 1) < 0.02);
        assert_true(f16_bytes < f32_bytes * 6 / 10);
        assert_true(file_bytes() < f16_bytes);
        (void)remove_files(state);
    }
}

/* Plain schemes: with norms of heads as qwen3, without as llama, with output weights of their own
 * or those of the embedding, with biases of Q, K and V or without. Both programs round activations
 * to f16 or q8_0, where the weights have these types, each in its own way. */
static void test_libllama(void **state)
{
    static const struct {
        const char *scheme, *n_kv_head, *more[2], *arch;
    } models[] = { { "mha", "4", { NULL, NULL }, "qwen3" },
                   { "gqa", "2", { "--no-qk-norm", NULL }, "llama" },
                   { "mqa", "1", { "--untied", NULL }, "qwen3" },
                   { "mha", "4", { "--no-qk-norm", NULL }, "llama" },
                   { "gqa", "2", { "--qkv-bias", NULL }, "qwen3" },
                   { "mha", "4", { "--no-qk-norm", "--qkv-bias" }, "llama" } };
    static const struct {
        const char *type;
        double apart;
    } types[] = { { "f32", 1e-4 }, { "f16", 1e-3 }, { "q8_0", 0.01 } };

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
            program_result info;
            double ours, theirs;

            train_heads(models[i].scheme, models[i].n_kv_head, models[i].more, types[k].type);
            info = program_expect(0, PROGRAM("info", "-m", model, "--json"));
            assert_says(info.out, models[i].arch);
            program_free(&info);
            ours = perplexity();
            theirs =
                fixture_peer_perplexity(model, read_text(program_data("fables.txt")), 64, CHUNKS);
            if (fabs(ours / theirs - 1) > types[k].apart) {
                fail_msg("%s %s %s: perplexity %.5f, libllama's %.5f", models[i].arch,
                         models[i].scheme, types[k].type, ours, theirs);
            }
        }
        (void)remove_files(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_types, remove_files),
        cmocka_unit_test_teardown(test_libllama, remove_files),
    };

    (void)snprintf(checkpoint, sizeof(checkpoint), "%s", program_path("export.checkpoint"));
    (void)snprintf(model, sizeof(model), "%s", program_path("export.gguf"));
    return cmocka_run_group_tests(tests, NULL, program_clean);
}
