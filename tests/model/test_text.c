/* test_text.c - the bridge between tokens and text: UTF-8 stream, tokenizer, templates, sampler.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "gguf_edit.h"
#include "model/backend.h"
#include "model/model_internal.h"
#include "model/sampler.h"
#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"
#include "vocab_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS_MAX 4096

/* ---- UTF-8 stream ---- */

/* Feed text in pieces of `piece` bytes and flush; the result goes to out as a string. */
static size_t stream(const char *text, size_t n, size_t piece, char *out)
{
    quire_utf8_stream s = { 0 };
    size_t written = 0;

    for (size_t i = 0; i < n; i += piece) {
        written +=
            quire_utf8_stream_feed(&s, text + i, n - i < piece ? n - i : piece, out + written);
    }
    written += quire_utf8_stream_flush(&s, out + written);
    out[written] = '\0';
    return written;
}

static void test_utf8_split_characters_come_whole(void **state)
{
    static const char text[] = "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80z"; /* 1, 2, 3, 4, 1 bytes */
    char out[128];
    quire_utf8_stream s = { 0 };

    (void)state;
    for (size_t piece = 1; piece <= sizeof text; piece++) {
        assert_int_equal(stream(text, sizeof text - 1, piece, out), sizeof text - 1);
        assert_string_equal(out, text);
    }
    assert_int_equal(quire_utf8_stream_feed(&s, "\xf0\x9f\x98", 3, out), 0);
    assert_int_equal(quire_utf8_stream_feed(&s, "\x80", 1, out), 4);
    assert_memory_equal(out, "\xf0\x9f\x98\x80", 4);
    assert_int_equal(quire_utf8_stream_flush(&s, out), 0);
}

static void test_utf8_invalid_becomes_replacement(void **state)
{
#define R "\xef\xbf\xbd"
    /* The examples of the Unicode Standard, tables 3-8 to 3-11, and the ends of text. */
    static const struct {
        const char *in, *out;
    } cases[] = {
        { "\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A" },
        { "\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A" },
        { "\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B" },
        { "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A" },
        { "\xf0\x9f\x98", R },
        { "\xc3", R },
        { "a\x80z", "a" R "z" },
        { "\xe4\xb8\xc3\xa9", R "\xc3\xa9" },
        { "", "" },
    };
#undef R
    char out[128];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t piece = 1; piece <= 9; piece++) {
            (void)stream(cases[i].in, strlen(cases[i].in), piece, out);
            assert_string_equal(out, cases[i].out);
        }
    }
}

/* The output is valid UTF-8 for any input, and valid input passes unchanged. */
static void test_utf8_random_bytes(void **state)
{
    quire_rng rng = test_rng(7);
    char in[64], once[3 * (sizeof in + 3) + 1], twice[sizeof once * 3 + 16];

    (void)state;
    for (int round = 0; round < 5000; round++) {
        const size_t n = quire_rng_below(&rng, sizeof in + 1);
        const size_t piece = 1 + quire_rng_below(&rng, 9);
        size_t n_once;

        for (size_t i = 0; i < n; i++) {
            /* Mostly bytes that matter: leads and continuations. */
            in[i] = (char)(quire_rng_below(&rng, 4) == 0 ? quire_rng_below(&rng, 128)
                                                         : 128 + quire_rng_below(&rng, 128));
        }
        n_once = stream(in, n, piece, once);
        assert_true(n_once <= 3 * (n + 3));
        assert_int_equal(stream(once, n_once, 1, twice), n_once);
        assert_memory_equal(once, twice, n_once);
    }
}

/* ---- tokenizer ---- */

static void round_trip(const quire_model *model, const char *text, size_t n)
{
    static int32_t tokens[TOKENS_MAX], again[TOKENS_MAX];
    static char out[TOKENS_MAX * 4];
    const int64_t n_tokens = quire_model_tokenize(model, text, n, false, false, tokens, TOKENS_MAX);
    size_t n_out = 0, n_skip;

    assert_in_range(n_tokens, n == 0 ? 0 : 1, TOKENS_MAX);
    for (int64_t i = 0; i < n_tokens; i++) {
        int64_t piece =
            quire_model_token_text(model, tokens[i], false, out + n_out, sizeof out - n_out);

        assert_in_range(piece, 0, sizeof out - n_out);
        n_out += (size_t)piece;
    }
    /* SentencePiece vocabularies put a space in front. */
    n_skip = n_out == n + 1 && out[0] == ' ' ? 1 : 0;
    assert_int_equal(n_out - n_skip, n);
    assert_memory_equal(out + n_skip, text, n);

    /* A buffer that is too small: the count, and no write beyond it. */
    if (n_tokens > 1) {
        again[1] = -7;
        assert_int_equal(quire_model_tokenize(model, text, n, false, false, again, 1), n_tokens);
        assert_int_equal(again[1], -7);
    }
}

static void round_trips(const quire_model *model)
{
    static const char *const texts[] = {
        "",
        "Once upon a time, there was a little girl named Lily.",
        "  two  spaces\n\nand lines\t",
        "caf\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80",
        "int main(void) { return 0; } /* 1234567890 */",
    };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        round_trip(model, texts[i], strlen(texts[i]));
    }
}

static quire_model *generated_bpe(void)
{
    gguf_gen_opts opts = fixture_llama("bpe", 1, 2000, 64, 6);
    quire_model *model;

    opts.vocab = GGUF_GEN_VOCAB_BPE;
    model = fixture_open(fixture_generate(&opts));
    fixture_generated_remove();
    return model;
}

/* Closes the model. */
static void tokenizer_checks(quire_model *model)
{
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_rng rng = test_rng(11);
    int32_t tokens[256];
    char noise[64], piece[8];
    int64_t n;

    round_trips(model);
    n = quire_model_tokenize(model, "Hi", 2, true, false, tokens, 256);
    assert_true(n >= 1);
    assert_int_equal(tokens[0] == quire_model_bos(model), quire_model_adds_bos(model));

    assert_int_equal(quire_model_token_text(model, -1, true, piece, sizeof piece), QUIRE_INVAL);
    assert_int_equal(
        quire_model_token_text(model, (int32_t)desc->n_vocab, true, piece, sizeof piece),
        QUIRE_INVAL);
    assert_false(quire_model_is_eog(model, -1));
    assert_false(quire_model_is_eog(model, (int32_t)desc->n_vocab));

    /* Any bytes at all give tokens of the vocabulary. */
    for (int round = 0; round < 200; round++) {
        const size_t n_bytes = 1 + quire_rng_below(&rng, sizeof noise);

        for (size_t i = 0; i < n_bytes; i++) {
            noise[i] = (char)quire_rng_below(&rng, 256);
        }
        n = quire_model_tokenize(model, noise, n_bytes, true, true, tokens, 256);
        assert_in_range(n, 1, 256);
        for (int64_t i = 0; i < n; i++) {
            assert_in_range(tokens[i], 0, desc->n_vocab - 1);
        }
    }
    quire_model_close(model);
}

/* Four bytes in the form of a character beyond U+10FFFF. */
static void test_text_beyond_unicode(void **state)
{
    static const char text[] = "one \xf4\x90\x80\x80 two \xf7\xbf\xbf\xbf\xf5\x80\x80\x80";
    static const char broken[] = "one \xff\x90\x80\x80 two \xff\xbf\xbf\xbf\xff\x80\x80\x80";
    int32_t tokens[64], expected[64];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        quire_model *model =
            i == 0 ? fixture_open(fixture_model_path(FIXTURE_STORIES)) : generated_bpe();
        const int64_t n =
            quire_model_tokenize(model, text, sizeof text - 1, true, true, tokens, 64);

        assert_in_range(n, 1, 64);
        if (i == 0) {
            round_trip(model, text, sizeof text - 1); /* bytes are tokens here */
        } else {
            /* The tokens are those of other bytes that are no UTF-8. */
            assert_int_equal(
                quire_model_tokenize(model, broken, sizeof broken - 1, true, true, expected, 64),
                n);
            assert_memory_equal(tokens, expected, (size_t)n * sizeof *tokens);
        }
        quire_model_close(model);
    }
}

static void test_tokenizer_spm(void **state)
{
    (void)state;
    tokenizer_checks(fixture_open(fixture_model_path(FIXTURE_STORIES)));
}

static void test_tokenizer_bpe(void **state)
{
    (void)state;
    tokenizer_checks(generated_bpe());
}

/* libllama's own fixtures: texts separated by a marker line, and the tokens expected for each. */
static void fixture_compare(const quire_model *model, char *inputs, char *outputs)
{
    static const char marker[] = "\n__ggml_vocab_test__\n";
    char *line = outputs;
    int n_texts = 0;

    for (char *text = inputs; text != NULL && line != NULL && *line != '\0'; n_texts++) {
        static int32_t tokens[TOKENS_MAX];
        char *end = strstr(text, marker);
        char *line_end = strchr(line, '\n');
        const size_t n_bytes = end != NULL ? (size_t)(end - text) : strlen(text);
        const int64_t n =
            quire_model_tokenize(model, text, n_bytes, false, true, tokens, TOKENS_MAX);

        if (line_end != NULL) {
            *line_end = '\0';
        }
        assert_in_range(n, 0, TOKENS_MAX);
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(tokens[i], strtol(line, &line, 10));
        }
        assert_int_equal(strspn(line, " "), strlen(line));
        text = end != NULL ? end + sizeof marker - 1 : NULL;
        line = line_end != NULL ? line_end + 1 : NULL;
    }
    assert_true(n_texts > 10);
}

static char *file_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);

    assert_non_null(f);
    assert_non_null(text);
    (void)fread(text, 1, (1 << 16) - 1, f);
    (void)fclose(f);
    return text;
}

static void test_tokenizer_fixtures(void **state)
{
    static const char *const names[] = { "llama-spm", "llama-bpe", "gpt-2", "qwen2" };
    bool is_any = false;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        quire_model model;
        char name[64], *inputs, *outputs;
        const char *path;

        (void)snprintf(name, sizeof name, "ggml-vocab-%s.gguf", names[i]);
        path = fixture_vocab_path(name);
        if (path == NULL) {
            continue;
        }
        is_any = true;
        vocab_open(&model, path, "");
        (void)snprintf(name, sizeof name, "ggml-vocab-%s.gguf.inp", names[i]);
        inputs = file_text(fixture_vocab_path(name));
        (void)snprintf(name, sizeof name, "ggml-vocab-%s.gguf.out", names[i]);
        outputs = file_text(fixture_vocab_path(name));
        fixture_compare(&model, inputs, outputs);
        round_trips(&model);
        free(outputs);
        free(inputs);
        vocab_close(&model);
    }
    if (!is_any) {
        skip();
    }
}

/* ---- chat template ---- */

static void test_chat_render(void **state)
{
    static const quire_chat_message messages[] = {
        { "system", "Be brief.", NULL },
        { "user", "Hello", NULL },
        { "assistant", "Hi.", NULL },
        { "user", "Again", NULL },
    };
    static const char expected[] = "<|im_start|>system\nBe brief.<|im_end|>\n"
                                   "<|im_start|>user\nHello<|im_end|>\n"
                                   "<|im_start|>assistant\nHi.<|im_end|>\n"
                                   "<|im_start|>user\nAgain<|im_end|>\n";
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    char out[512], small[8];
    int64_t n;

    (void)state;
    assert_null(quire_model_chat_template(model));
    assert_int_equal(quire_model_chat_render(model, NULL, messages, 4, true, out, sizeof out),
                     QUIRE_UNSUPP);
    assert_int_equal(
        quire_model_chat_render(model, "no such template", messages, 4, true, out, sizeof out),
        QUIRE_UNSUPP);

    n = quire_model_chat_render(model, "chatml", messages, 4, false, out, sizeof out);
    assert_int_equal(n, sizeof expected - 1);
    assert_memory_equal(out, expected, (size_t)n);
    n = quire_model_chat_render(model, "chatml", messages, 4, true, out, sizeof out);
    assert_memory_equal(out + sizeof expected - 1, "<|im_start|>assistant\n", 22);
    assert_int_equal(n, sizeof expected - 1 + 22);
    memset(small, '#', sizeof small);
    assert_int_equal(quire_model_chat_render(model, "chatml", messages, 4, true, small, 4), n);
    assert_memory_equal(small + 4, "####", 4);
    quire_model_close(model);
}

static void test_chat_template_of_the_file(void **state)
{
    static const char template[] =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    static const char expected[] = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
    static const quire_chat_message message = { "user", "Hello", NULL };
    const gguf_gen_opts opts = fixture_llama("template", 1, 320, 64, 9);
    const gguf_edit_key change = { .key = "tokenizer.chat_template",
                                   .op = EDIT_STR,
                                   .text = template };
    quire_model *model;
    gguf_edit edit;
    char out[512];
    int64_t n;

    (void)state;
    gguf_edit_open(&edit, &opts);
    gguf_edit_apply(&edit, &change);
    gguf_edit_save(&edit, gguf_edit_path());
    gguf_edit_close(&edit);
    model = fixture_open(gguf_edit_path());
    assert_string_equal(quire_model_chat_template(model), template);
    n = quire_model_chat_render(model, NULL, &message, 1, true, out, sizeof out);
    assert_int_equal(n, sizeof expected - 1);
    assert_memory_equal(out, expected, (size_t)n);
    quire_model_close(model);
    (void)unlink(gguf_edit_path());
}

/* A file writes the line break as such or as \\n; both mean the same. */
static void test_chat_zephyr(void **state)
{
    static const char *const templates[] = {
        "{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}"
        "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n' + message['content']",
        "{% if message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + eos_token }}"
        "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\\n' + message['content']",
    };
    static const quire_chat_message messages[] = {
        { "system", "Be brief.", NULL },
        { "user", "Hello", NULL },
        { "assistant", "Hi.", NULL },
        { "user", "Again", NULL },
    };
    static const char expected[] = "<|system|>\nBe brief.</s>\n<|user|>\nHello</s>\n"
                                   "<|assistant|>\nHi.</s>\n<|user|>\nAgain</s>\n<|assistant|>\n";
    const size_t n_end = strlen("<|assistant|>\n");
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char out[512], small[8];
        int64_t n =
            quire_model_chat_render(model, templates[i], messages, 4, true, out, sizeof out);

        assert_int_equal(n, sizeof expected - 1);
        assert_memory_equal(out, expected, (size_t)n);
        n = quire_model_chat_render(model, templates[i], messages, 4, false, out, sizeof out);
        assert_int_equal(n, sizeof expected - 1 - n_end);
        memset(small, '#', sizeof small);
        assert_int_equal(quire_model_chat_render(model, templates[i], messages, 4, false, small, 4),
                         n);
        assert_memory_equal(small, "<|sy####", 8);
    }
    quire_model_close(model);
}

/* ---- sampler ---- */

static void logits_random(quire_rng *rng, float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        logits[i] = 3.0f * (float)quire_rng_normal(rng);
    }
}

static void test_sampler(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    const uint32_t n = quire_model_desc_get(model)->n_vocab;
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_sampler *greedy, *a, *b, *top1;
    quire_rng rng = test_rng(3);
    float *logits = calloc(n, sizeof *logits);
    bool is_random = false;
    int32_t first[20];

    (void)state;
    assert_non_null(logits);
    opts.seed = 42;
    opts.top_k = 20;
    assert_int_equal(quire_sampler_create(&a, model, &opts, NULL), QUIRE_OK);
    assert_int_equal(quire_sampler_create(&b, model, &opts, NULL), QUIRE_OK);
    opts.top_k = 1;
    assert_int_equal(quire_sampler_create(&top1, model, &opts, NULL), QUIRE_OK);
    opts.temperature = 0.0f;
    assert_int_equal(quire_sampler_create(&greedy, model, &opts, NULL), QUIRE_OK);

    logits_random(&rng, logits, n);
    for (int i = 0; i < 20; i++) {
        const int32_t best = fixture_argmax(logits, n);
        uint32_t n_better = 0;

        first[i] = quire_sampler_pick(a, logits);
        assert_int_equal(quire_sampler_pick(b, logits), first[i]); /* same seed, same choice */
        assert_int_equal(quire_sampler_pick(greedy, logits), best);
        assert_int_equal(quire_sampler_pick(top1, logits), best);
        for (uint32_t t = 0; t < n; t++) {
            n_better += logits[t] > logits[first[i]];
        }
        assert_true(n_better < 20); /* top_k */
        is_random = is_random || first[i] != best;
    }
    assert_true(is_random);
    quire_sampler_reset(a);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(quire_sampler_pick(a, logits), first[i]);
    }
    /* A broken model's logits: still a token of the vocabulary. */
    for (uint32_t t = 0; t < n; t++) {
        logits[t] = NAN;
    }
    assert_in_range(quire_sampler_pick(a, logits), 0, n - 1);
    assert_in_range(quire_sampler_pick(greedy, logits), 0, n - 1);
    assert_in_range(quire_sampler_pick(top1, logits), 0, n - 1);
    quire_sampler_destroy(greedy);
    quire_sampler_destroy(top1);
    quire_sampler_destroy(b);
    quire_sampler_destroy(a);
    quire_sampler_destroy(NULL);
    free(logits);
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_split_characters_come_whole),
        cmocka_unit_test(test_utf8_invalid_becomes_replacement),
        cmocka_unit_test(test_utf8_random_bytes),
        cmocka_unit_test(test_text_beyond_unicode),
        cmocka_unit_test(test_tokenizer_spm),
        cmocka_unit_test(test_tokenizer_bpe),
        cmocka_unit_test(test_tokenizer_fixtures),
        cmocka_unit_test(test_chat_render),
        cmocka_unit_test(test_chat_template_of_the_file),
        cmocka_unit_test(test_chat_zephyr),
        cmocka_unit_test(test_sampler),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
