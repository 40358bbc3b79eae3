/* test_train_tokens.c - quire train with tokens that are not bytes: a learned vocabulary and that
 * of a file, in training, in written models, in libllama, and over a stop.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/text.h"
#include "model_fixture.h"
#include "program.h"
#include "train_calls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNKS 20u

static program_args args_of(const char *run, const char *tokenizer, const char *steps)
{
    return PROGRAM("train", "--data", program_data("fables.txt"), "--scheme", "mha", "--tokenizer",
                   tokenizer, "--checkpoint", train_file(run, ".checkpoint"), "-o",
                   train_file(run, ".gguf"), "--n-layer", "2", "--d-model", "32", "--n-head", "2",
                   "--d-head", "16", "--d-ff", "48", "-c", "64", "--rows", "4", "--warmup", "5",
                   "--steps", steps);
}

static void check_same_files(const char *a, const char *b)
{
    size_t n_a, n_b;
    char *bytes_a = train_read(a, &n_a), *bytes_b = train_read(b, &n_b);

    assert_int_equal(n_a, n_b);
    assert_memory_equal(bytes_a, bytes_b, n_a);
    free(bytes_a);
    free(bytes_b);
}

/* The model's own perplexity is libllama's, and both take the text apart into the same tokens. */
static void check_libllama(const char *path)
{
    size_t n;
    char *text = train_read(program_data("fables.txt"), &n);
    double theirs = fixture_peer_perplexity(path, text, 64, CHUNKS);
    json_t *said = program_json(PROGRAM("perplexity", "-m", path, "-f", program_data("fables.txt"),
                                        "-c", "64", "--chunks", "20", "--kv", "f32", "--json"));
    double ours = json_number_value(json_object_get(said, "ppl"));

    if (fabs(ours / theirs - 1) > 1e-4) {
        fail_msg("perplexity %.5f, libllama's %.5f", ours, theirs);
    }
    json_decref(said);
    free(text);
}

/* Tokens of a text and back; SPM puts a blank before it. */
static void check_text(const char *path, uint32_t n_vocab, const char *text, size_t n_most)
{
    quire_model *model = fixture_open(path);
    char back[256] = "";
    int32_t tokens[256];
    int64_t n = quire_model_tokenize(model, text, strlen(text), false, false, tokens, 256);
    size_t at = 0;

    assert_int_equal(quire_model_desc_get(model)->n_vocab, n_vocab);
    assert_in_range(n, 1, n_most);
    for (int64_t i = 0; i < n; i++) {
        int64_t length =
            quire_model_token_text(model, tokens[i], false, back + at, sizeof(back) - at - 1);

        assert_true(length >= 0 && at + (size_t)length < sizeof(back));
        at += (size_t)length;
    }
    back[at] = '\0';
    assert_says(back, text);
    quire_model_close(model);
}

/* A stopped run goes on with the same vocabulary and the same bits, also when its tokenizer file is
 * gone and is learned again. */
static void test_learned(void **state)
{
    program_result result = program_expect(0, args_of("whole", "bpe:400", "30"));

    (void)state;
    assert_says(result.err, "learning a vocabulary of 400 tokens");
    program_free(&result);
    check_libllama(train_file("whole", ".gguf"));
    check_text(train_file("whole", ".gguf"), 400,
               "The fox said, \xe2\x80\x9cna\xc3\xafve\xe2\x80\x9d!\n\x7f", 30);
    result = program_expect(0, args_of("parts", "bpe:400", "10"));
    program_free(&result);
    assert_int_equal(unlink(train_file("parts", ".checkpoint.tokenizer.gguf")), 0);
    result = program_expect(0, args_of("parts", "bpe:400", "20"));
    assert_says(result.err, "going on from step 10");
    program_free(&result);
    result = program_expect(0, args_of("parts", "bpe:400", "30"));
    assert_null(strstr(result.err, "learning a vocabulary"));
    program_free(&result);
    check_same_files(train_file("whole", ".checkpoint.tokenizer.gguf"),
                     train_file("parts", ".checkpoint.tokenizer.gguf"));
    train_remove("whole");
    train_remove("parts");
}

/* stories260K's 512 tokens of SPM, whose first piece of a text begins with a blank. */
static void test_of_file(void **state)
{
    const char *tokenizer = program_data("stories260K-f32.gguf");
    program_result result = program_expect(0, args_of("file", tokenizer, "20"));

    (void)state;
    program_free(&result);
    check_libllama(train_file("file", ".gguf"));
    check_text(train_file("file", ".gguf"), 512, "Once upon a time", 12);
    train_remove("file");
}

static void refuse(const char *tokenizer, const char *text)
{
    program_result result = program_expect(1, args_of("refused", tokenizer, "4"));

    assert_says(result.err, text);
    program_free(&result);
}

static void test_refused(void **state)
{
    program_result result = program_expect(0, args_of("refused", "bpe:300", "4"));

    (void)state;
    program_free(&result);
    refuse("bytes", "belongs to a run with another tokenizer");
    refuse(program_data("stories260K-f32.gguf"), "belongs to a run with another tokenizer");
    refuse("bpe:301", "has 300 tokens, not 301");
    refuse("bpe:256", "257 to 65536 tokens are possible");
    refuse("bpe:65537", "257 to 65536 tokens are possible");
    refuse("bpe:many", "257 to 65536 tokens are possible");
    refuse("nothing.gguf", "nothing.gguf");
    refuse(program_data("fables.txt"), "fables.txt");
    assert_int_equal(unlink(train_file("refused", ".checkpoint.tokenizer.gguf")), 0);
    refuse("bpe:65536", "the text has repeated pairs for a BPE vocabulary of");
    assert_int_equal(access(train_file("refused", ".checkpoint.tokenizer.gguf"), F_OK), -1);
    train_remove("refused");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learned),
        cmocka_unit_test(test_of_file),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
