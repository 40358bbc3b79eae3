/* test_kept_tokens.c - kept tokens and the rest of a prompt: the text comes out exactly, and the
 * tokenizer's own tokens stay what they were.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/kept_tokens.h"
#include "model/backend.h"
#include "model/model_internal.h"
#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"
#include "vocab_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX   2048
#define TOKENS_MAX 4096
#define PIECE_MAX  128

/* The texts and tokens of a test. */
typedef struct bench {
    quire_model *model;
    quire_rng rng;
    bool adds_blank;
    int32_t specials[8]; /* that prompts write */
    uint32_t n_specials;
    char text[TEXT_MAX];
    size_t n_text;
    int32_t whole[TOKENS_MAX]; /* the tokenizer's tokens of text */
    uint32_t n_whole;
    int32_t kept[TOKENS_MAX];
    uint32_t n_kept;
} bench;

static bench b;
static uint32_t n_ends; /* texts whose end was tokenized alone */
static quire_rng end_rng = { 5 };

static uint32_t piece_of(int32_t token, char *piece)
{
    const int64_t n = quire_model_token_text(b.model, token, true, piece, PIECE_MAX);

    return n >= 0 && n <= PIECE_MAX ? (uint32_t)n : 0;
}

static void bench_begin(quire_model *model, uint64_t seed)
{
    static const char *const known[] = { "<|im_start|>", "<|im_end|>", "</s>", "<|end|>",
                                         "<|user|>",     "<|eot_id|>", "<s>" };
    int32_t token[4];
    char piece[PIECE_MAX] = { 0 };

    memset(&b, 0, sizeof(b));
    b.model = model;
    b.rng = test_rng(seed);
    assert_true(quire_model_tokenize(model, "a", 1, false, false, token, 4) > 0);
    b.adds_blank = piece_of(token[0], piece) > 0 && piece[0] == ' ';
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (quire_model_tokenize(model, known[i], strlen(known[i]), false, true, token, 4) == 1 &&
            quire_model_is_special(model, token[0])) {
            b.specials[b.n_specials++] = token[0];
        }
    }
}

static uint32_t tokenize(const char *text, size_t n, int32_t *tokens)
{
    const int64_t n_tokens = quire_model_tokenize(b.model, text, n, true, true, tokens, TOKENS_MAX);

    assert_in_range(n_tokens, 0, TOKENS_MAX);
    return (uint32_t)n_tokens;
}

/* Words, blanks, lines, signs, characters of several bytes, special tokens. */
static void text_random(uint32_t n_parts)
{
    static const char *const parts[] = { "hello",
                                         " world",
                                         "  ",
                                         "\n",
                                         ".",
                                         " the",
                                         "re",
                                         "'s",
                                         " ",
                                         "\n\n",
                                         "123",
                                         "\xc3\xa9",
                                         " \xe4\xb8\xad",
                                         "\xf0\x9f\x98\x80",
                                         "Once upon",
                                         " a",
                                         "time",
                                         "\t",
                                         "!?",
                                         "xx" };

    b.n_text = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        char piece[PIECE_MAX];
        uint32_t n;

        if (b.n_specials > 0 && quire_rng_below(&b.rng, 8) == 0) {
            n = piece_of(b.specials[quire_rng_below(&b.rng, b.n_specials)], piece);
        } else {
            const char *part = parts[quire_rng_below(&b.rng, sizeof(parts) / sizeof(parts[0]))];

            n = (uint32_t)strlen(part);
            memcpy(piece, part, n);
        }
        assert_true(b.n_text + n < TEXT_MAX);
        memcpy(b.text + b.n_text, piece, n);
        b.n_text += n;
    }
    b.n_whole = tokenize(b.text, b.n_text, b.whole);
}

static quire_joined_tokens join(void)
{
    const quire_kept_tokens kept = { b.kept, b.n_kept };
    const quire_tokenize_opts opts = { 0 };
    quire_joined_tokens joined;

    assert_int_equal(quire_kept_tokens_join(b.model, &kept, b.text, b.n_text, &opts, &joined, NULL),
                     QUIRE_OK);
    assert_true(joined.n_kept <= b.n_kept && joined.n_kept <= joined.n);
    assert_memory_equal(joined.tokens, b.kept, joined.n_kept * sizeof(*b.kept));
    return joined;
}

/* The tokens of a joined prompt that pass the text from `at` on. A blank after a special token is
 * the text's, or one that the tokenizer added: both are tried. */
static bool passes(const quire_joined_tokens *joined, uint32_t i, size_t at, bool is_fresh)
{
    for (; i < joined->n; i++) {
        const int32_t token = joined->tokens[i];
        const bool is_special = quire_model_is_special(b.model, token);
        char piece[PIECE_MAX];
        const uint32_t n = piece_of(token, piece);

        if (i == 0 && quire_model_adds_bos(b.model) && token == quire_model_bos(b.model)) {
            continue;
        }
        if (b.adds_blank && is_fresh && !is_special && n > 0 && piece[0] == ' ' &&
            n - 1 <= b.n_text - at && memcmp(b.text + at, piece + 1, n - 1) == 0 &&
            passes(joined, i + 1, at + n - 1, false)) {
            return true;
        }
        if (n > b.n_text - at || memcmp(b.text + at, piece, n) != 0) {
            return false;
        }
        at += n;
        is_fresh = is_special;
    }
    return at == b.n_text;
}

static void assert_text(const quire_joined_tokens *joined)
{
    assert_true(passes(joined, 0, 0, true));
}

/* A token of exactly that text; -1 if there is none. */
static int32_t token_with(const char *text, uint32_t n)
{
    for (uint32_t t = 0; t < quire_model_desc_get(b.model)->n_vocab; t++) {
        char piece[PIECE_MAX];

        if (!quire_model_is_special(b.model, (int32_t)t) && piece_of((int32_t)t, piece) == n &&
            memcmp(piece, text, n) == 0) {
            return (int32_t)t;
        }
    }
    return -1;
}

/* The tokens of whole up to n, some cut in two, as a model might have generated them. */
static void keep_split(uint32_t n)
{
    b.n_kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        char piece[PIECE_MAX];
        const uint32_t n_piece = piece_of(b.whole[i], piece);
        int32_t first = -1, second = -1;

        if (n_piece >= 2 && !quire_model_is_special(b.model, b.whole[i]) &&
            quire_rng_below(&b.rng, 4) == 0) {
            const uint32_t cut = 1 + quire_rng_below(&b.rng, n_piece - 1);

            first = token_with(piece, cut);
            second = token_with(piece + cut, n_piece - cut);
        }
        if (first >= 0 && second >= 0) {
            b.kept[b.n_kept++] = first;
            b.kept[b.n_kept++] = second;
        } else {
            b.kept[b.n_kept++] = b.whole[i];
        }
    }
}

/* The tokens of the end of a text are the last ones of the whole. */
static void check_end(void)
{
    const quire_tokenize_opts opts = { .add_special = true, .parse_special = true };
    const quire_text_from text = { b.text, b.n_text, quire_rng_below(&end_rng, TEXT_MAX) };
    quire_tokenized end;

    assert_int_equal(quire_model_tokenize_end(b.model, &text, &opts, &end, NULL), QUIRE_OK);
    assert_true(end.begin <= text.from && end.n <= b.n_whole);
    assert_memory_equal(end.tokens, b.whole + b.n_whole - end.n, end.n * sizeof(*b.whole));
    assert_true(end.begin > 0 || end.n == b.n_whole);
    assert_true(end.begin == 0 || quire_model_is_special(b.model, end.tokens[0]));
    n_ends += end.begin > 0;
    free(end.tokens);
}

static void check_model(quire_model *model, uint64_t seed, bool can_split)
{
    uint32_t n_split = 0, n_cut_back = 0;

    bench_begin(model, seed);
    for (int round = 0; round < 300; round++) {
        quire_joined_tokens joined;
        uint32_t n;
        size_t cut;

        text_random(1 + quire_rng_below(&b.rng, 40));
        check_end();

        /* The tokenizer's own, cut anywhere. */
        b.n_kept = quire_rng_below(&b.rng, b.n_whole + 1);
        memcpy(b.kept, b.whole, b.n_kept * sizeof(*b.kept));
        joined = join();
        assert_int_equal(joined.n, b.n_whole);
        assert_memory_equal(joined.tokens, b.whole, b.n_whole * sizeof(*b.whole));
        assert_int_equal(joined.n_kept, b.n_kept);
        free(joined.tokens);

        /* Kept tokens of a text that ended earlier, maybe within a word or a character. */
        cut = quire_rng_below(&b.rng, (uint32_t)b.n_text + 1);
        b.n_kept = tokenize(b.text, cut, b.kept);
        joined = join();
        assert_text(&joined);
        n_cut_back += joined.n_kept < b.n_kept;
        free(joined.tokens);

        if (!can_split) {
            continue;
        }
        /* Other pieces of the same text: all are kept; and with more behind, that the text lacks.
         */
        n = quire_rng_below(&b.rng, b.n_whole + 1);
        keep_split(n);
        n_split += b.n_kept > n;
        joined = join();
        assert_int_equal(joined.n_kept, b.n_kept);
        assert_int_equal(joined.n, b.n_kept + b.n_whole - n);
        assert_text(&joined);
        free(joined.tokens);
        for (uint32_t i = quire_rng_below(&b.rng, 5); i > 0; i--) {
            b.kept[b.n_kept++] =
                (int32_t)quire_rng_below(&b.rng, quire_model_desc_get(model)->n_vocab);
        }
        joined = join();
        assert_text(&joined);
        free(joined.tokens);
    }
    assert_true(!can_split || n_split > 50);
    assert_true(n_cut_back > 10);
    assert_true(n_ends > 50);
}

static quire_model *generated(gguf_gen_vocab vocab, uint32_t n_vocab)
{
    gguf_gen_opts opts;
    quire_model *model;

    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_vocab = n_vocab;
    opts.vocab = vocab;
    model = fixture_open(fixture_generate(&opts));
    fixture_generated_remove();
    return model;
}

static void check_generated(gguf_gen_vocab vocab, uint32_t n_vocab)
{
    quire_model *model = generated(vocab, n_vocab);

    check_model(model, 31, true);
    quire_model_close(model);
}

static void test_generated_spm(void **state)
{
    (void)state;
    check_generated(GGUF_GEN_VOCAB_SPM, 400);
}

static void test_generated_bpe(void **state)
{
    (void)state;
    check_generated(GGUF_GEN_VOCAB_BPE, 400);
}

static void test_stories260k(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));

    (void)state;
    check_model(model, 32, true);
    quire_model_close(model);
}

/* All pairs of letters are tokens. */
static void test_generated_bpe_pairs(void **state)
{
    (void)state;
    check_generated(GGUF_GEN_VOCAB_BPE, 2000);
}

/* Vocabularies of libllama's tests, without weights. */
static void check_vocab(const char *name, bool swallows_white)
{
    const char *path = fixture_vocab_path(name);
    quire_model model;

    if (path == NULL) {
        print_message("skipped: no %s in a source tree of llama.cpp\n", name);
        skip();
    }
    vocab_open(&model, path, "");
    if (!swallows_white) {
        check_model(&model, 34, false);
    } else {
        static const char turn[] = "<|user|>\nHello there<|end|>\n<|assistant|>\nHi<|end|>\n";
        quire_joined_tokens joined;

        bench_begin(&model, 34);
        b.n_text = sizeof(turn) - 1;
        memcpy(b.text, turn, b.n_text);
        b.n_whole = tokenize(b.text, b.n_text, b.whole);
        for (uint32_t n = 0; n <= b.n_whole; n++) { /* kept tokens in two pieces: all are used */
            keep_split(n);
            joined = join();
            assert_int_equal(joined.n_kept, b.n_kept);
            assert_int_equal(joined.n, b.n_kept + b.n_whole - n);
            assert_memory_equal(joined.tokens + b.n_kept, b.whole + n,
                                (b.n_whole - n) * sizeof(*b.whole));
            free(joined.tokens);
        }
    }
    vocab_close(&model);
}

static void test_llama_bpe(void **state)
{
    (void)state;
    check_vocab("ggml-vocab-llama-bpe.gguf", false);
}

static void test_llama_spm(void **state)
{
    (void)state;
    check_vocab("ggml-vocab-llama-spm.gguf", false);
}

static void test_phi3_swallows_white_space(void **state)
{
    (void)state;
    check_vocab("ggml-vocab-phi-3.gguf", true);
}

/* A turn that ended by length: the template's end marker follows; a trimmed one: as far as it goes.
 */
static void test_turns(void **state)
{
    static const char turn[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOnce upon a";
    static const char more[] = "<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n";
    quire_model *model = generated(GGUF_GEN_VOCAB_BPE, 2000);
    quire_joined_tokens joined;
    const uint32_t n_turn = sizeof(turn) - 1;

    (void)state;
    bench_begin(model, 35);
    b.n_kept = tokenize(turn, n_turn, b.kept);
    memcpy(b.text, turn, n_turn);
    memcpy(b.text + n_turn, more, sizeof(more) - 1);
    b.n_text = n_turn + sizeof(more) - 1;
    joined = join();
    assert_int_equal(joined.n_kept, b.n_kept);
    assert_text(&joined);
    free(joined.tokens);

    b.n_text = n_turn - 4; /* the text has "Once up" of the answer: only whole kept tokens count */
    memcpy(b.text + b.n_text, more, sizeof(more) - 1);
    b.n_text += sizeof(more) - 1;
    joined = join();
    assert_true(joined.n_kept < b.n_kept && joined.n_kept > 8);
    assert_text(&joined);
    free(joined.tokens);

    b.n_kept = 0;
    joined = join();
    assert_int_equal(joined.n_kept, 0);
    assert_text(&joined);
    free(joined.tokens);
    b.n_text = 0;
    joined = join();
    assert_text(&joined);
    free(joined.tokens);
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated_spm), cmocka_unit_test(test_generated_bpe),
        cmocka_unit_test(test_stories260k),   cmocka_unit_test(test_generated_bpe_pairs),
        cmocka_unit_test(test_llama_bpe),     cmocka_unit_test(test_llama_spm),
        cmocka_unit_test(test_turns),         cmocka_unit_test(test_phi3_swallows_white_space),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
