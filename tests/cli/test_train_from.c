/* test_train_from.c - quire train --from: weights are copied unchanged, also those with llama's
 * order of rotated pairs; a cut model learns from the whole one; stops, and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_fixture.h"
#include "program.h"
#include "train_calls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *stories_path(void)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s", program_data("stories260K-f32.gguf"));
    return path;
}

/* A run from a file; scheme NULL: the file's. distill NULL: the default. Returns its output. */
static program_result train(const char *run, const char *from, const char *scheme,
                            const char *distill, const char *rate, const char *steps)
{
    program_args args = PROGRAM(
        "train", "--from", from, "--data", program_data("fables.txt"), "--checkpoint",
        train_file(run, ".checkpoint"), "-o", train_file(run, ".gguf"), "-c", "64", "--rows", "4",
        "--warmup", "0", "--rate", rate, "--rate-end", rate, "--log-every", "1", "--steps", steps,
        scheme != NULL ? "--scheme" : NULL, scheme, distill != NULL ? "--distill" : NULL, distill);

    return program_expect(0, args);
}

/* A configuration of some steps: a model whose output is not its embedding, and a scheme with its
 * options. */
static const char *write_config(const char *scheme)
{
    char text[1024];
    int n = snprintf(text, sizeof(text),
                     "data: %s\ncheckpoint: %s\noutput: %s\nn_layer: 4\n"
                     "d_model: 32\nn_head: 2\nd_head: 16\nd_ff: 48\nctx: 64\nrows: 2\nsteps: 8\n"
                     "warmup: 0\nrate: 0.01\nuntied: true\nscheme: %s\n",
                     program_data("fables.txt"), train_file("gates", ".checkpoint"),
                     train_file("gates", ".gguf"), scheme);

    return program_file("gates.yaml", text, (size_t)n);
}

static const char *fables(void)
{
    static char text[1 << 16];
    FILE *f = fopen(program_data("fables.txt"), "rb");

    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    assert_int_equal(fclose(f), 0);
    return text;
}

/* A rate of 0 writes the model that was read: llama's with neighbours as pairs, also for libllama,
 * and one of Quire's with gates of each form, or with mixes and windows. */
static void test_same(void **state)
{
    const char *stories = stories_path();
    static const char *const schemes[] = { "fusedkv\ngates: half", "fusedkv\ngates: full",
                                           "fusedkv\ngates: heads", "yoco++\nwindow: 9",
                                           "mha" /* a file of qwen3 */ };
    program_result result = train("same", stories, NULL, NULL, "0", "1");
    double ours;

    (void)state;
    program_free(&result);
    ours = train_perplexity(train_file("same", ".gguf"));
    assert_true(fabs(ours / train_perplexity(stories) - 1) < 1e-4);
    assert_true(fabs(ours / fixture_peer_perplexity(train_file("same", ".gguf"), fables(), 64, 12) -
                     1) < 1e-4);
    train_remove("same");
    for (size_t i = 0; i < 5; i++) {
        result = program_expect(0, PROGRAM("train", write_config(schemes[i])));
        program_free(&result);
        result = train("same", train_file("gates", ".gguf"), NULL, NULL, "0", "1");
        program_free(&result);
        assert_true(fabs(train_perplexity(train_file("same", ".gguf")) /
                             train_perplexity(train_file("gates", ".gguf")) -
                         1) < 1e-4);
        train_remove("same");
        train_remove("gates");
    }
}

/* The number behind a word of the last line that has it. */
static double last_number(const char *text, const char *word)
{
    const char *found = NULL;

    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        found = at;
    }
    assert_non_null(found);
    return strtod(found + strlen(word), NULL);
}

static double first_number(const char *text, const char *word)
{
    const char *found = strstr(text, word);

    assert_non_null(found);
    return strtod(found + strlen(word), NULL);
}

/* Cut to half the cache, the model is far off. Some steps with the divergence alone bring it nearer
 * to the whole model; with the loss, nearer to the text. The last steps of both runs have one
 * batch. */
static void test_heals(void **state)
{
    const char *stories = stories_path();
    program_result result = train("cut", stories, "fusedkv-lite", NULL, "0", "40");
    double cut = train_perplexity(train_file("cut", ".gguf")), divergence, healed;

    (void)state;
    divergence = last_number(result.out, "divergence ");
    assert_true(divergence > 0.5);
    program_free(&result);
    train_remove("cut");
    result = train("cut", stories, "fusedkv-lite", "1", "0.001", "40");
    if (!(last_number(result.out, "divergence ") < 0.75 * divergence)) {
        fail_msg("divergence %.4f after the cut; healed: %s", divergence, result.out);
    }
    program_free(&result);
    train_remove("cut");
    result = train("cut", stories, "fusedkv-lite", NULL, "0.001", "40");
    healed = train_perplexity(train_file("cut", ".gguf"));
    if (!(healed < 0.5 * cut)) {
        fail_msg("perplexity %.3f after the cut, %.3f healed", cut, healed);
    }
    program_free(&result);
    result = program_expect(0, PROGRAM("info", train_file("cut", ".gguf")));
    assert_says(result.out, "3 store KV: fusedkv-lite");
    program_free(&result);
    train_remove("cut");
}

static program_result train_hidden(const char *share, const char *steps, const char *more)
{
    return program_expect(
        0, PROGRAM("train", "--from", stories_path(), "--data", program_data("fables.txt"),
                   "--checkpoint", train_file("cut", ".checkpoint"), "-c", "64", "--rows", "4",
                   "--warmup", "0", "--rate", "0.001", "--rate-end", "0.001", "--log-every", "1",
                   "--steps", steps, "--scheme", "fusedkv-lite", "--distill", share,
                   "--distill-hidden", "10", more));
}

/* Hidden states come nearer to the teacher's, and so do the predictions. Both are reported, also
 * without a share of the divergence. */
static void test_hidden(void **state)
{
    program_result result = train_hidden("1", "20", NULL);

    (void)state;
    assert_true(last_number(result.out, "hidden ") < 0.75 * first_number(result.out, "hidden "));
    assert_true(last_number(result.out, "divergence ") <
                0.75 * first_number(result.out, "divergence "));
    program_free(&result);
    train_remove("cut");
    result = train_hidden("0", "1", "--json");
    assert_true(first_number(result.out, "\"hidden\":") > 0.1);
    assert_true(first_number(result.out, "\"divergence\":") > 0.5);
    program_free(&result);
    train_remove("cut");
}

/* Attention comes nearer to the teacher's without any other lesson. */
static void test_attention(void **state)
{
    program_result result = program_expect(
        0, PROGRAM("train", "--from", stories_path(), "--data", program_data("fables.txt"),
                   "--checkpoint", train_file("cut", ".checkpoint"), "-c", "64", "--rows", "4",
                   "--warmup", "0", "--rate", "0.001", "--rate-end", "0.001", "--log-every", "1",
                   "--steps", "20", "--scheme", "fusedkv-lite", "--distill", "0",
                   "--distill-attention", "100", "--json"));

    (void)state;
    assert_true(first_number(result.out, "\"attention\":") > 0.1);
    assert_true(last_number(result.out, "\"attention\":") <
                0.75 * first_number(result.out, "\"attention\":"));
    assert_true(strstr(result.out, "\"hidden\"") == NULL);
    program_free(&result);
    train_remove("cut");
}

static double healed_among(const char *tokens)
{
    program_result result = program_expect(
        0, PROGRAM("train", "--from", stories_path(), "--data", program_data("fables.txt"),
                   "--checkpoint", train_file("cut", ".checkpoint"), "-o",
                   train_file("cut", ".gguf"), "-c", "64", "--rows", "4", "--warmup", "0", "--rate",
                   "0.001", "--rate-end", "0.001", "--log-every", "1", "--steps", "40", "--scheme",
                   "fusedkv-lite", "--predict", tokens));

    assert_true((strstr(result.err, "of 512 tokens") != NULL) == (strcmp(tokens, "seen") == 0));
    assert_true(last_number(result.out, "divergence ") <
                0.75 * first_number(result.out, "divergence "));
    program_free(&result);
    return train_perplexity(train_file("cut", ".gguf"));
}

/* Healed among the text's tokens, a model predicts among all tokens as one that was healed among
 * all. The run may go on among all tokens. */
static void test_seen(void **state)
{
    double all = healed_among("all"), seen;
    program_result result;

    (void)state;
    train_remove("cut");
    seen = healed_among("seen");
    if (!(fabs(seen / all - 1) < 0.03)) {
        fail_msg("perplexity %.4f healed among all tokens, %.4f among the text's", all, seen);
    }
    result = program_expect(
        0, PROGRAM("train", "--from", stories_path(), "--data", program_data("fables.txt"),
                   "--checkpoint", train_file("cut", ".checkpoint"), "-c", "64", "--rows", "4",
                   "--scheme", "fusedkv-lite", "--steps", "41", "--predict", "all"));
    assert_says(result.err, "going on from step 40");
    assert_true(strstr(result.err, "of 512 tokens") == NULL);
    program_free(&result);
    train_remove("cut");
}

/* A file of qwen3 in q8_0: its numbers are read as they are, and it can be cut like llama's. The
 * model in f32 does not round activations, the one in q8_0 does. */
static void test_qwen3(void **state)
{
    program_result result =
        program_expect(0, PROGRAM("train", write_config("gqa\nn_kv_head: 1\ntype: q8_0")));

    (void)state;
    program_free(&result);
    result = program_expect(0, PROGRAM("info", train_file("gates", ".gguf")));
    assert_says(result.out, "qwen3");
    program_free(&result);
    result = train("same", train_file("gates", ".gguf"), NULL, NULL, "0", "1");
    program_free(&result);
    assert_true(fabs(train_perplexity(train_file("same", ".gguf")) /
                         train_perplexity(train_file("gates", ".gguf")) -
                     1) < 0.01);
    train_remove("same");
    result = train("cut", train_file("gates", ".gguf"), "fusedkv", NULL, "0.001", "2");
    assert_says(result.out, "divergence ");
    program_free(&result);
    result = program_expect(0, PROGRAM("info", train_file("cut", ".gguf")));
    assert_says(result.out, "4 layers (2 store KV: fusedkv)");
    program_free(&result);
    train_remove("cut");
    train_remove("gates");
}

static void test_resumed(void **state)
{
    const char *stories = stories_path();
    program_result result = train("whole", stories, "fusedkv", NULL, "0.001", "6");
    size_t n_whole, n_parts;
    char *whole, *parts;

    (void)state;
    program_free(&result);
    result = train("parts", stories, "fusedkv", NULL, "0.001", "2");
    program_free(&result);
    result = train("parts", stories, "fusedkv", NULL, "0.001", "6");
    assert_says(result.err, "going on from step 2");
    program_free(&result);
    whole = train_read(train_file("whole", ".gguf"), &n_whole);
    parts = train_read(train_file("parts", ".gguf"), &n_parts);
    assert_int_equal(n_whole, n_parts);
    assert_memory_equal(whole, parts, n_whole);
    free(whole);
    free(parts);
    result = program_expect(1, PROGRAM("train", "--from", stories, "--scheme", "fusedkv", "--data",
                                       program_data("fables.txt"), "--checkpoint",
                                       train_file("parts", ".checkpoint"), "-c", "64", "--rows",
                                       "4", "--distill", "0.25"));
    assert_says(result.err, "another teacher, distill, distill_hidden");
    program_free(&result);
    result = program_expect(1, PROGRAM("train", "--from", stories, "--scheme", "fusedkv", "--data",
                                       program_data("fables.txt"), "--checkpoint",
                                       train_file("parts", ".checkpoint"), "-c", "64", "--rows",
                                       "4", "--distill-hidden", "0.25"));
    assert_says(result.err, "distill_hidden, distill_attention or shift heads");
    program_free(&result);
    result = program_expect(1, PROGRAM("train", "--from", stories, "--scheme", "fusedkv", "--data",
                                       program_data("fables.txt"), "--checkpoint",
                                       train_file("parts", ".checkpoint"), "-c", "64", "--rows",
                                       "4", "--distill-attention", "0.25"));
    assert_says(result.err, "distill_hidden, distill_attention or shift heads");
    program_free(&result);
    train_remove("whole");
    train_remove("parts");
}

static void refuse(int exit_status, program_args args, const char *text)
{
    program_result result = program_expect(exit_status, args);

    assert_says(result.err, text);
    program_free(&result);
}

/* A model with more biases than those of Q, K and V, or with scaled positions. */
static const char *generated(const char *arch, bool has_biases)
{
    gguf_gen_opts gen = fixture_llama("refused", 4, 300, 128, 3);

    (void)snprintf(gen.arch, sizeof(gen.arch), "%s", arch);
    gen.has_biases = has_biases;
    if (!has_biases) {
        (void)snprintf(gen.rope_scaling, sizeof(gen.rope_scaling), "linear");
        gen.rope_factor = 4;
    }
    return fixture_generate(&gen);
}

static void test_refused(void **state)
{
    const char *stories = stories_path(), *shared = program_model_shared();
    const char *path = train_file("refused", ".checkpoint");

    (void)state;
    refuse(2, PROGRAM("train", "--checkpoint", path, "--from", stories, "--d-head", "8"),
           "leave out --n-layer to --untied");
    refuse(2, PROGRAM("train", "--checkpoint", path, "--from", stories, "--tokenizer", "bpe:300"),
           "leave out --tokenizer");
    refuse(2, PROGRAM("train", "--checkpoint", path, "--distill", "0.5"), "--distill needs --from");
    refuse(2, PROGRAM("train", "--checkpoint", path, "--from", stories, "--distill", "1.5"), "1");
    refuse(2, PROGRAM("train", "--checkpoint", path, "--distill-hidden", "1"),
           "--distill-hidden needs --from");
    refuse(2, PROGRAM("train", "--checkpoint", path, "--from", stories, "--distill-hidden", "1001"),
           "1000");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", stories, "--distill-hidden", "1"),
           "layers read K or V of others, not one of gqa");
    refuse(2, PROGRAM("train", "--checkpoint", path, "--distill-attention", "1"),
           "--distill-attention needs --from");
    refuse(2,
           PROGRAM("train", "--checkpoint", path, "--from", stories, "--distill-attention", "1001"),
           "1000");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", stories, "--distill-attention", "1"),
           "distillation of attention needs a model in which layers read K or V");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", stories, "--scheme", "mha"),
           "scheme mha needs as many KV heads");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", shared, "--scheme", "yoco"),
           "has the scheme fusedkv-lite already");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", "/nowhere.gguf"), "/nowhere.gguf");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", generated("qwen2", true)),
           "output.bias, which the trainer's models do not have");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", generated("llama", true)),
           ".bias, which the trainer's models do not have");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", generated("gemma", false)),
           "gemma cannot be trained; llama, qwen2, qwen3 and quire can");
    refuse(2, PROGRAM("train", "--checkpoint", path, "--from", stories, "--qkv-bias"),
           "leave out --n-layer to --untied");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--from", generated("llama", false)),
           "training has no scaling of the rotary embedding");
    refuse(2, PROGRAM("train", "--checkpoint", path, "--from", stories, "--window", "8"),
           "--window with --from needs --scheme yoco");
    refuse(1, PROGRAM("train", "--checkpoint", path, "--scheme", "mha", "--window", "8"),
           "yoco and yoco++, not to mha");
    fixture_generated_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),    cmocka_unit_test(test_heals),
        cmocka_unit_test(test_hidden),  cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_resumed), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_seen),    cmocka_unit_test(test_attention),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
