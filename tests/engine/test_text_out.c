/* test_text_out.c - text as it can be shown: characters cut by tokens, stop texts across them.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/text_out.h"
#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"

#include <stdlib.h>
#include <string.h>

static quire_model *model;
static int32_t token_of_byte[256]; /* a token whose text is that byte */
static uint32_t n_vocab;

static int setup(void **state)
{
    gguf_gen_opts opts;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_vocab = 400;
    opts.vocab = GGUF_GEN_VOCAB_BPE;
    model = fixture_open(fixture_generate(&opts));
    fixture_generated_remove();
    n_vocab = quire_model_desc_get(model)->n_vocab;
    memset(token_of_byte, 0xff, sizeof(token_of_byte));
    for (uint32_t t = 0; t < n_vocab; t++) {
        unsigned char byte;

        if (quire_model_token_text(model, (int32_t)t, false, (char *)&byte, 1) == 1) {
            token_of_byte[byte] = (int32_t)t;
        }
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    quire_model_close(model);
    return 0;
}

typedef struct outcome {
    quire_bytes shown;
    int32_t stop_index;
    size_t n_fed; /* bytes of the text when it ended */
} outcome;

/* Feed a text byte by byte; after[i] (if given) is how much was shown after i + 1 bytes. */
static outcome feed(const char *text, size_t n, const char *const *stops, uint32_t n_stops,
                    size_t *after)
{
    outcome o = { .stop_index = -1 };
    quire_text_out *out;

    assert_int_equal(quire_text_out_create(&out, model, stops, n_stops, false), QUIRE_OK);
    while (o.n_fed < n && o.stop_index < 0) {
        const int32_t token = token_of_byte[(unsigned char)text[o.n_fed++]];

        assert_true(token >= 0);
        assert_int_equal(quire_text_out_feed(out, token, &o.shown, &o.stop_index), QUIRE_OK);
        if (after != NULL) {
            after[o.n_fed - 1] = o.shown.n;
        }
    }
    assert_int_equal(quire_text_out_finish(out, &o.shown), QUIRE_OK);
    quire_text_out_destroy(out);
    return o;
}

static void assert_outcome(outcome *o, const char *shown, int32_t stop_index, size_t n_fed)
{
    assert_int_equal(o->shown.n, strlen(shown));
    assert_memory_equal(o->shown.n > 0 ? o->shown.data : "", shown, o->shown.n);
    assert_int_equal(o->stop_index, stop_index);
    assert_int_equal(o->n_fed, n_fed);
    quire_bytes_fini(&o->shown);
}

static void test_characters_come_whole(void **state)
{
    static const char text[] = "a\xc3\xa9\xf0\x9f\x98\x80\xff!\xe4\xb8";
    static const size_t expected[] = { 1, 1, 3, 3, 3, 3, 7, 10, 11, 11, 11 };
    size_t after[sizeof(text)];
    outcome o = feed(text, sizeof(text) - 1, NULL, 0, after);

    (void)state;
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        assert_int_equal(after[i], expected[i]);
    }
    assert_outcome(&o, "a\xc3\xa9\xf0\x9f\x98\x80\xef\xbf\xbd!\xef\xbf\xbd", -1, sizeof(text) - 1);
}

static void test_stops(void **state)
{
    static const char *const user[] = { "\nUser:", "###" };
    static const char *const nested[] = { "bc", "abcd", "b" };
    static const char *const accent[] = { "\xc3\xa9t\xc3\xa9" };
    static const char *const aab[] = { "aab" };
    size_t after[64];
    outcome o;

    (void)state;
    o = feed("Hi\nUs\nUser: x", 13, user, 2, after);
    assert_int_equal(after[4], 2); /* "\nUs" is held back */
    assert_int_equal(after[5], 5); /* it was nothing; "\n" is held back */
    assert_int_equal(after[9], 5); /* "\nUser" */
    assert_outcome(&o, "Hi\nUs", 0, 11);
    o = feed("##x####", 7, user, 2, NULL);
    assert_outcome(&o, "##x", 1, 6);
    o = feed("##", 2, user, 2, NULL); /* the end: held-back text is part of the answer */
    assert_outcome(&o, "##", -1, 2);
    o = feed("xab", 3, nested, 3, NULL); /* complete first, though "abcd" began before */
    assert_outcome(&o, "xa", 2, 3);
    o = feed("l'\xc3\xa9t\xc3\xa8 \xc3\xa9t\xc3\xa9.", 15, accent, 1, NULL);
    assert_outcome(&o, "l'\xc3\xa9t\xc3\xa8 ", 0, 13);
    o = feed("aaaab", 5, aab, 1, after); /* "aa" stays held back as it moves on */
    assert_int_equal(after[3], 2);
    assert_outcome(&o, "aa", 0, 5);
}

/* In one token: the stop that begins first, and of those the longest. */
static void test_stops_within_a_token(void **state)
{
    char pair[3] = { 0 };
    char first[2] = { 0 }, second[2] = { 0 };
    const char *stops[3] = { second, first, pair };
    int32_t token = -1, stop_index = 0;
    quire_bytes shown = { 0 };
    quire_text_out *out;

    (void)state;
    for (uint32_t t = 0; t < n_vocab && token < 0; t++) {
        if (quire_model_token_text(model, (int32_t)t, false, pair, 2) == 2 && pair[0] != pair[1] &&
            (pair[0] & 0x80) == 0) {
            token = (int32_t)t;
        }
    }
    assert_true(token >= 0);
    first[0] = pair[0];
    second[0] = pair[1];
    for (uint32_t n_stops = 1; n_stops <= 3; n_stops++) {
        assert_int_equal(quire_text_out_create(&out, model, stops, n_stops, false), QUIRE_OK);
        assert_int_equal(quire_text_out_feed(out, token, &shown, &stop_index), QUIRE_OK);
        assert_int_equal(stop_index, n_stops - 1);
        assert_int_equal(quire_text_out_finish(out, &shown), QUIRE_OK);
        assert_int_equal(shown.n, n_stops == 1 ? 1 : 0);
        quire_bytes_clear(&shown);
        quire_text_out_destroy(out);
    }
    quire_bytes_fini(&shown);
}

static void test_special_tokens(void **state)
{
    int32_t special = -1, stop_index;
    quire_bytes shown = { 0 };
    quire_text_out *out;
    char text[64];
    int64_t n = 0;

    (void)state;
    for (uint32_t t = 0; t < n_vocab && special < 0; t++) {
        n = quire_model_token_text(model, (int32_t)t, true, text, sizeof(text));
        if (n > 0 && quire_model_token_text(model, (int32_t)t, false, text, 0) == 0) {
            special = (int32_t)t;
        }
    }
    assert_true(special >= 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(quire_text_out_create(&out, model, NULL, 0, i == 1), QUIRE_OK);
        assert_int_equal(quire_text_out_feed(out, special, &shown, &stop_index), QUIRE_OK);
        assert_int_equal(shown.n, i == 1 ? n : 0);
        quire_text_out_destroy(out);
    }
    assert_memory_equal(shown.data, text, (size_t)n);
    quire_bytes_fini(&shown);
    assert_int_equal(quire_text_out_create(&out, model, NULL, 0, false), QUIRE_OK);
    assert_int_equal(quire_text_out_feed(out, -1, &shown, &stop_index), QUIRE_INVAL);
    quire_text_out_destroy(out);
    quire_text_out_destroy(NULL);
}

/* Against a search in the whole text: letters few enough that stops overlap all the time. */
static void test_random(void **state)
{
    quire_rng rng = test_rng(21);
    uint32_t n_stopped = 0;

    (void)state;
    for (int round = 0; round < 5000; round++) {
        char stop_text[3][6] = { { 0 } }, text[41] = { 0 };
        const char *stops[3] = { stop_text[0], stop_text[1], stop_text[2] };
        const uint32_t n_stops = quire_rng_below(&rng, 4);
        size_t end = SIZE_MAX, begin = 0, after[40];
        int32_t index = -1;
        outcome o;

        for (uint32_t i = 0; i < n_stops; i++) {
            for (uint32_t j = 0; j <= quire_rng_below(&rng, 5); j++) {
                stop_text[i][j] = (char)('a' + quire_rng_below(&rng, 2));
            }
        }
        for (uint32_t i = 0; i < 40; i++) {
            text[i] = (char)('a' + quire_rng_below(&rng, 40) / 19);
        }
        /* Byte by byte, the stop text that ends first wins; of several, the one that began
         * first. */
        for (uint32_t i = 0; i < n_stops; i++) {
            const char *at = strstr(text, stops[i]);
            const size_t stop_end = at != NULL ? (size_t)(at - text) + strlen(stops[i]) : SIZE_MAX;

            if (at != NULL &&
                (stop_end < end || (stop_end == end && (size_t)(at - text) < begin))) {
                end = stop_end;
                begin = (size_t)(at - text);
                index = (int32_t)i;
            }
        }
        o = feed(text, 40, stops, n_stops, after);
        for (size_t i = 0; i + 1 < o.n_fed; i++) {
            assert_in_range(i + 1 - after[i], 0, 4); /* a stop has 5 bytes at most */
        }
        n_stopped += index >= 0;
        text[index >= 0 ? begin : 40] = '\0';
        assert_outcome(&o, text, index, index >= 0 ? end : 40);
    }
    assert_true(n_stopped > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters_come_whole),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_stops_within_a_token),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
