/* test_bpe.c - learned vocabularies: the cut into words, merges in their order, a text as its
 * tokens' bytes, few words, and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"
#include "train/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words between bars. */
static const char *cut(const char *text)
{
    static char out[512];
    size_t n = strlen(text), m = 0;

    for (size_t at = 0; at < n;) {
        size_t length = quire_bpe_word_next(text + at, n - at);

        assert_in_range(length, 1, n - at);
        memcpy(out + m, text + at, length);
        m += length;
        out[m++] = '|';
        at += length;
    }
    out[m] = '\0';
    return out;
}

static void test_cut(void **state)
{
    char longer[200];

    (void)state;
    assert_string_equal(cut("Hello world, it's 42!"), "Hello| world|,| it|'s| 42|!|");
    assert_string_equal(cut("we'll  go\n\n\n  on \n"), "we|'ll| | go|\n\n\n | on| \n|");
    assert_string_equal(cut(" x"), " x|");
    assert_string_equal(cut("a\nb"), "a|\n|b|");
    assert_string_equal(cut("caf\xc3\xa9 \xe2\x80\x9cso\xe2\x80\x9d"),
                        "caf\xc3\xa9| \xe2\x80\x9c|so|\xe2\x80\x9d|");
    assert_string_equal(cut("\xff\xfe x\xe2"), "\xff\xfe| x|\xe2|");
    memset(longer, 'a', sizeof(longer));
    assert_int_equal(quire_bpe_word_next(longer, sizeof(longer)), QUIRE_BPE_WORD_BYTES_MAX);
}

static quire_bpe_words *words_of(const char *text, uint32_t words_max)
{
    quire_bpe_words *words;

    assert_int_equal(quire_bpe_words_create(&words, words_max, NULL), QUIRE_OK);
    assert_int_equal(quire_bpe_words_add(words, text, strlen(text), NULL), QUIRE_OK);
    return words;
}

/* The text of a token. Memory: static, until the second next call. */
static const char *token_text(const quire_bpe_table *t, uint32_t i)
{
    static char texts[2][128];
    static unsigned next;
    char *text = texts[next++ % 2];
    uint32_t at = i > 0 ? t->ends[i - 1] : 0;

    (void)snprintf(text, sizeof(texts[0]), "%.*s", (int)(t->ends[i] - at), t->bytes + at);
    return text;
}

/* low x 5, lower x 2, newest x 6, widest x 3: the example of the paper, without its end of words.
 * Pairs with equal counts go by their ids. */
static void test_merges(void **state)
{
    static const char *const want[] = { "es", "est", "lo", "low", "ew", "new", "newest" };
    quire_bpe_words *words = words_of("low\nlow\nlow\nlow\nlow\nlower\nlower\nnewest\nnewest\n"
                                      "newest\nnewest\nnewest\nnewest\nwidest\nwidest\nwidest\n",
                                      100);
    quire_bpe_table t;

    (void)state;
    assert_int_equal(quire_bpe_learn(words, QUIRE_BPE_BYTES + 7, &t, NULL), QUIRE_OK);
    assert_int_equal(t.n_tokens, QUIRE_BPE_BYTES + 7);
    assert_int_equal(t.n_merges, 7);
    for (uint32_t i = 0; i < 7; i++) {
        char joined[128];

        assert_string_equal(token_text(&t, QUIRE_BPE_BYTES + i), want[i]);
        (void)snprintf(joined, sizeof(joined), "%s%s", token_text(&t, t.merges[i][0]),
                       token_text(&t, t.merges[i][1]));
        assert_string_equal(joined, want[i]);
    }
    quire_bpe_table_fini(&t);
    quire_bpe_words_destroy(words);
}

/* Merges applied one after another to a word, as programs that read the vocabulary do. */
static uint32_t apply(const quire_bpe_table *t, const char *word, uint32_t *tokens)
{
    uint32_t n = (uint32_t)strlen(word);

    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (unsigned char)word[i];
    }
    for (uint32_t m = 0; m < t->n_merges; m++) {
        char joined[160];
        uint32_t to = 0, token = 0, k = 0;

        (void)snprintf(joined, sizeof(joined), "%s%s", token_text(t, t->merges[m][0]),
                       token_text(t, t->merges[m][1]));
        while (strcmp(token_text(t, token), joined) != 0) {
            assert_true(++token < t->n_tokens);
        }
        for (; k < n; k++) {
            bool is_pair =
                k + 1 < n && tokens[k] == t->merges[m][0] && tokens[k + 1] == t->merges[m][1];

            tokens[to++] = is_pair ? token : tokens[k];
            k += is_pair;
        }
        n = to;
    }
    return n;
}

/* Random words of few letters: tokens are distinct, and counts agree with a plain recount. */
static void test_random(void **state)
{
    quire_rng rng = { 4 };
    char text[4001];
    quire_bpe_words *words;
    quire_bpe_table t;

    (void)state;
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        uint32_t letter = quire_rng_below(&rng, 5);

        text[i] = letter == 0 ? '\n' : (char)('a' + letter);
    }
    text[sizeof(text) - 1] = '\0';
    words = words_of(text, 5000);
    assert_int_equal(quire_bpe_learn(words, QUIRE_BPE_BYTES + 100, &t, NULL), QUIRE_OK);
    assert_int_equal(t.n_tokens, QUIRE_BPE_BYTES + 100);
    assert_true(t.n_merges >= 100);
    for (uint32_t i = QUIRE_BPE_BYTES; i < t.n_tokens; i++) {
        for (uint32_t j = QUIRE_BPE_BYTES; j < i; j++) {
            assert_string_not_equal(token_text(&t, i), token_text(&t, j));
        }
    }
    /* The first merge is the most frequent pair. */
    {
        char best[3];
        uint64_t counts[128][128] = { { 0 } }, most = 0;

        for (size_t i = 0; i + 2 < sizeof(text); i++) {
            if (text[i] != '\n' && text[i + 1] != '\n') {
                counts[(int)text[i]][(int)text[i + 1]]++;
            }
        }
        (void)snprintf(best, sizeof(best), "%s", token_text(&t, QUIRE_BPE_BYTES));
        for (size_t i = 0; i < 128; i++) {
            for (size_t j = 0; j < 128; j++) {
                most = counts[i][j] > most ? counts[i][j] : most;
            }
        }
        assert_int_equal(counts[(int)best[0]][(int)best[1]], most);
    }
    quire_bpe_table_fini(&t);
    quire_bpe_words_destroy(words);
}

/* Two ways to one token: it is there once, with a merge for each. */
static void test_one_token(void **state)
{
    quire_bpe_words *words;
    quire_bpe_table t;
    uint32_t tokens[16];

    (void)state;
    /* "ab" and "bc" are frequent; "abc" is reached from both when other letters stand around. */
    words = words_of("", 100);
    for (uint32_t i = 0; i < 20; i++) {
        static const char text[] = "ab\nbc\nabc\nzabc\nabcz\nbcq\nqab\n";

        assert_int_equal(quire_bpe_words_add(words, text, sizeof(text) - 1, NULL), QUIRE_OK);
    }
    assert_int_equal(quire_bpe_learn(words, QUIRE_BPE_BYTES + 5, &t, NULL), QUIRE_OK);
    assert_int_equal(apply(&t, "abc", tokens), 1);
    assert_string_equal(token_text(&t, tokens[0]), "abc");
    quire_bpe_table_fini(&t);
    quire_bpe_words_destroy(words);
}

/* The rarest words make room; frequent ones stay. */
static void test_few_words(void **state)
{
    quire_bpe_words *words = words_of("the\nthe\nthe\nthe\nthe\nthe\n", 8);
    quire_bpe_table t;

    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        char word[16];

        (void)snprintf(word, sizeof(word), "%c%c\nthe\n", (char)('a' + i % 26),
                       (char)('a' + i / 26));
        assert_int_equal(quire_bpe_words_add(words, word, strlen(word), NULL), QUIRE_OK);
    }
    assert_int_equal(quire_bpe_learn(words, QUIRE_BPE_BYTES + 2, &t, NULL), QUIRE_OK);
    assert_string_equal(token_text(&t, QUIRE_BPE_BYTES + 1), "the");
    quire_bpe_table_fini(&t);
    quire_bpe_words_destroy(words);
}

static void test_refused(void **state)
{
    quire_bpe_words *words = words_of("aa aa aa", 10);
    quire_error err = QUIRE_ERROR_INIT;
    quire_bpe_table t;

    (void)state;
    assert_int_equal(quire_bpe_learn(words, QUIRE_BPE_BYTES - 1, &t, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "256 to 65536"));
    assert_int_equal(quire_bpe_learn(words, QUIRE_BPE_TOKENS_MAX + 1, &t, &err), QUIRE_INVAL);
    assert_int_equal(quire_bpe_learn(words, QUIRE_BPE_BYTES + 50, &t, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "of 258 tokens, not 306"));
    quire_bpe_words_destroy(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),       cmocka_unit_test(test_merges),
        cmocka_unit_test(test_random),    cmocka_unit_test(test_one_token),
        cmocka_unit_test(test_few_words), cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
