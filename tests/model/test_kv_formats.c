/* test_kv_formats.c - formats by layer: grammar, sizes, and the choice of --kv auto.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/kv_allocate.h"
#include "model/kv_formats.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define LAYERS       80u

/* TinyLlama's shape but for the number of layers. */
static quire_model_desc *desc_of(uint32_t n_stored, uint32_t d)
{
    static quire_model_desc desc;

    desc = (quire_model_desc){
        .n_layer = n_stored,
        .n_stored = n_stored,
        .n_head = 32,
        .n_kv_head = 8,
        .d_k = d,
        .d_v = d,
        .n_params = 7000000000,
    };
    return &desc;
}

/* ---- text ---- */

static void test_pairs(void **state)
{
    static const struct {
        const char *text;
        quire_kv_pair pair;
        const char *name;
    } cases[] = {
        { "f16", { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 }, "f16" },
        { "q8:q4", { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 }, "q8:q4" },
        { "q3:q3", { QUIRE_FORMAT_Q3, QUIRE_FORMAT_Q3 }, "q3" },
        { "bf16:f32", { QUIRE_FORMAT_BF16, QUIRE_FORMAT_F32 }, "bf16:f32" },
    };
    static const char *const wrong[] = {
        "",     ":",        "q8:",
        ":q8",  "q8:q8:q8", "q9",
        "q8_0", "Q8",       "q88888888888888888888888888888888888888",
        "q8 "
    };
    quire_kv_pair pair;
    char name[24];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(quire_kv_pair_parse(cases[i].text, &pair), QUIRE_OK);
        assert_true(quire_kv_pair_equals(pair, cases[i].pair));
        assert_string_equal(quire_kv_pair_name(pair, name, sizeof(name)), cases[i].name);
    }
    for (size_t i = 0; i < COUNT(wrong); i++) {
        pair = cases[1].pair;
        assert_int_equal(quire_kv_pair_parse(wrong[i], &pair), QUIRE_INVAL);
        assert_true(quire_kv_pair_equals(pair, cases[1].pair));
    }
}

static void test_suggestions(void **state)
{
    static const char *const cases[][2] = {
        { "q8_0", "q8" },   { "q5_0", "q5" },     { "q5_1", "q5" },  { "q4_0", "q4" },
        { "q4_1", "q4" },   { "q6_K", "q6" },     { "fp16", "f16" }, { "q8_0:q4_0", "q8:q4" },
        { "iq4_nl", "q4" }, { "q8:q4", "q8:q4" },
    };
    quire_kv_pair pair;
    char name[24];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_true(quire_kv_pair_suggest(cases[i][0], &pair));
        assert_string_equal(quire_kv_pair_name(pair, name, sizeof(name)), cases[i][1]);
    }
    assert_false(quire_kv_pair_suggest("nonsense", &pair));
    assert_false(quire_kv_pair_suggest("q8:nonsense", &pair));
}

static void test_choices(void **state)
{
    static const struct {
        const char *text;
        int status;
    } wrong[] = {
        { "auto:", QUIRE_INVAL },     { "auto:x", QUIRE_INVAL },    { "auto4", QUIRE_INVAL },
        { "auto:2.9", QUIRE_RANGE },  { "auto:32.5", QUIRE_RANGE }, { "automatic", QUIRE_INVAL },
        { "auto:4.5b", QUIRE_INVAL }, { "auto:-4", QUIRE_RANGE },   { "auto:nan", QUIRE_INVAL },
    };
    quire_kv_choice choice;

    (void)state;
    assert_int_equal(quire_kv_choice_parse("q6:q4", &choice), QUIRE_OK);
    assert_false(choice.is_auto);
    assert_int_equal(choice.pair.k, QUIRE_FORMAT_Q6);
    assert_int_equal(choice.pair.v, QUIRE_FORMAT_Q4);
    assert_int_equal(quire_kv_choice_parse("auto", &choice), QUIRE_OK);
    assert_true(choice.is_auto);
    assert_true(choice.bits == QUIRE_KV_AUTO_BITS);
    assert_int_equal(quire_kv_choice_parse("auto:5.25", &choice), QUIRE_OK);
    assert_true(choice.is_auto && choice.bits == 5.25);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(quire_kv_choice_parse(wrong[i].text, &choice), wrong[i].status);
        assert_true(choice.is_auto && choice.bits == 5.25);
    }
}

/* ---- lists by layers ---- */

static void test_layer_lists(void **state)
{
    static const struct {
        const char *given;
        const char *same; /* as quire_kv_layers_text() writes it */
        const char *summary;
    } cases[] = {
        { "*=q8:q4", "*=q8:q4", "q8:q4" },
        { "0-1,-2--1=q8;*=q4:q4", "0-1,8-9=q8;2-7=q4", "q8 in 4 layers, q4 in 6" },
        { "3=f16;*=q5;3=q3", "0-2,4-9=q5;3=f16", "q5 in 9 layers, f16 in 1" },
        { "-1=q6:q3;0-8=q4", "0-8=q4;9=q6:q3", "q4 in 9 layers, q6:q3 in 1" },
        { "5,0--1=bf16", "*=bf16", "bf16" },
        { "-10-4=q4;5-9=q8", "0-4=q4;5-9=q8", "q4 in 5 layers, q8 in 5" },
        { "0=q8;*=q4;*=f32", "0=q8;1-9=q4", "q8 in 1 layer, q4 in 9" },
    };
    const quire_model_desc *desc = desc_of(10, 64);
    static char text[QUIRE_KV_LAYERS_TEXT_MAX];
    quire_kv_pair pairs[10];
    quire_kv_pair again[10];
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(quire_kv_layers_parse(cases[i].given, desc, pairs, &err), QUIRE_OK);
        assert_string_equal(quire_kv_layers_text(desc, pairs, text, sizeof(text)), cases[i].same);
        assert_int_equal(quire_kv_layers_parse(text, desc, again, &err), QUIRE_OK);
        assert_memory_equal(pairs, again, sizeof(pairs));
        assert_string_equal(quire_kv_summary(desc, pairs, text, sizeof(text)), cases[i].summary);
    }
    quire_kv_summary(desc, pairs, text, 8); /* cut, not overrun */
    assert_string_equal(text, "q8 in 1");
}

static void test_layer_lists_refused(void **state)
{
    static const struct {
        const char *text;
        int status;
        const char *word; /* of the message */
    } cases[] = {
        { "", QUIRE_INVAL, "'='" },
        { "q8", QUIRE_INVAL, "'='" },
        { "*=q8;", QUIRE_INVAL, "'='" },
        { "=q8", QUIRE_INVAL, "no list" },
        { "0,=q8", QUIRE_INVAL, "no list" },
        { "0 =q8", QUIRE_INVAL, "no list" },
        { "x=q8", QUIRE_INVAL, "'x=q8'" },
        { "0-=q8", QUIRE_INVAL, "no list" },
        { "5-3=q8;*=q4", QUIRE_INVAL, "ends before" },
        { "10=q8;*=q4", QUIRE_RANGE, "layer 10" },
        { "-11=q8;*=q4", QUIRE_RANGE, "layer -11" },
        { "99999999999999999999=q8;*=q4", QUIRE_RANGE, "0 to 9" },
        { "*=q9x9x9", QUIRE_INVAL, "q9x9x9" },
        { "*=q8_0", QUIRE_INVAL, "did you mean q8?" },
        { "*=auto", QUIRE_INVAL, "auto" },
        { "0-8=q8", QUIRE_INVAL, "layer 9" },
    };
    const quire_model_desc *desc = desc_of(10, 64);
    quire_kv_pair pairs[10];
    quire_kv_pair before[10];

    (void)state;
    quire_kv_uniform(desc, (quire_kv_pair){ QUIRE_FORMAT_F32, QUIRE_FORMAT_F32 }, pairs);
    memcpy(before, pairs, sizeof(before));
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_error err = QUIRE_ERROR_INIT;

        assert_int_equal(quire_kv_layers_parse(cases[i].text, desc, pairs, &err), cases[i].status);
        if (strstr(err.message, cases[i].word) == NULL) {
            fail_msg("%s: '%s' does not say '%s'", cases[i].text, err.message, cases[i].word);
        }
        assert_memory_equal(pairs, before, sizeof(before));
    }
}

/* ---- sizes ---- */

static void test_sizes(void **state)
{
    quire_model_desc *desc = desc_of(32, 128);
    quire_kv_pair pairs[32];

    (void)state;
    /* A 7B of Llama 2's shape: 32 layers x 32 heads x 128 x 2 x 2 bytes. */
    desc->n_kv_head = 32;
    quire_kv_uniform(desc, (quire_kv_pair){ QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 }, pairs);
    assert_int_equal(quire_kv_bytes_per_token(desc, pairs), 524288);
    assert_int_equal(quire_kv_hot_bytes_per_token(desc, pairs), 0);
    assert_false(quire_kv_is_sealed(desc, pairs));
    assert_true(quire_kv_bits(desc, pairs) == 16.0);
    pairs[3].v = QUIRE_FORMAT_F32;
    assert_int_equal(quire_kv_bytes_per_token(desc, pairs), 524288 + 32 * 128 * 2);
    pairs[3].v = QUIRE_FORMAT_Q4; /* 128 / 2 bytes of codes and a scale instead of 256 */
    assert_int_equal(quire_kv_bytes_per_token(desc, pairs), 524288 - 32 * (256 - 66));
    assert_int_equal(quire_kv_hot_bytes_per_token(desc, pairs), 32 * (128 + 2));
    assert_true(quire_kv_is_sealed(desc, pairs));
    for (uint32_t k = 0; k < QUIRE_FORMAT_COUNT; k++) {
        for (uint32_t v = 0; v < QUIRE_FORMAT_COUNT; v++) {
            const quire_kv_pair pair = { (quire_format)k, (quire_format)v };
            const double bits = 0.5 * (quire_format_bits(pair.k, QUIRE_SIDE_K, 128) +
                                       quire_format_bits(pair.v, QUIRE_SIDE_V, 128));

            quire_kv_uniform(desc, pair, pairs);
            assert_true(fabs(quire_kv_bits(desc, pairs) - bits) < 1e-9);
            assert_int_equal(quire_kv_bytes_per_token(desc, pairs),
                             quire_kv_uniform_bytes_per_token(desc, pair));
        }
    }
    desc->d_v = 8; /* q8 has one f16 scale per token and lane */
    assert_int_equal(quire_kv_uniform_bytes_per_token(
                         desc, (quire_kv_pair){ QUIRE_FORMAT_Q8, QUIRE_FORMAT_BF16 }),
                     32 * 32 * (130 + 16));
}

/* ---- allocation ---- */

/* Against trying everything. */
static void test_allocation_is_best(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_Q3, QUIRE_FORMAT_Q5, QUIRE_FORMAT_Q8,
                                            QUIRE_FORMAT_F16 };
    const quire_model_desc *desc = desc_of(3, 64);
    quire_rng rng = test_rng(31);

    (void)state;
    for (int round = 0; round < 20; round++) {
        const double bits = 3.4 + 12.0 * quire_rng_unit(&rng);
        quire_kv_cost costs[3];
        quire_kv_pair pairs[3];
        double least = INFINITY;
        double got = 0;

        for (uint32_t i = 0; i < 3 * 2 * QUIRE_FORMAT_COUNT; i++) {
            costs[i / 16].of[i / 8 % 2][i % 8] = INFINITY;
        }
        for (uint32_t i = 0; i < 3 * 2 * 4; i++) { /* not falling with bits, as if measured badly */
            costs[i / 8].of[i / 4 % 2][formats[i % 4]] = quire_rng_unit(&rng);
        }
        for (uint32_t i = 0; i < 4 * 4 * 4 * 4 * 4 * 4; i++) {
            double cost = 0;

            for (uint32_t l = 0; l < 3; l++) {
                pairs[l].k = formats[i >> (4 * l) & 3];
                pairs[l].v = formats[i >> (4 * l + 2) & 3];
                cost += costs[l].of[0][pairs[l].k] + costs[l].of[1][pairs[l].v];
            }
            if (quire_kv_bits(desc, pairs) <= bits && cost < least) {
                least = cost;
            }
        }
        assert_int_equal(quire_kv_allocate(desc, costs, bits, pairs, NULL),
                         isfinite(least) ? QUIRE_OK : QUIRE_RANGE);
        if (isfinite(least)) {
            for (uint32_t l = 0; l < 3; l++) {
                got += costs[l].of[0][pairs[l].k] + costs[l].of[1][pairs[l].v];
            }
            assert_true(fabs(got - least) < 1e-12);
            assert_true(quire_kv_bits(desc, pairs) <= bits);
        }
    }
}

static double bits_of(const quire_model_desc *desc, quire_side side, quire_kv_pair pair)
{
    return side == QUIRE_SIDE_K ? quire_format_bits(pair.k, side, desc->d_k)
                                : quire_format_bits(pair.v, side, desc->d_v);
}

/* No layer at the ends has less than an inner one, on either side. */
static bool ends_come_first(const quire_model_desc *desc, const quire_kv_pair *pairs)
{
    for (uint32_t l = 2; l + 2 < desc->n_stored; l++) {
        const uint32_t ends[] = { 0, 1, desc->n_stored - 2, desc->n_stored - 1 };

        for (size_t e = 0; e < COUNT(ends); e++) {
            if (bits_of(desc, QUIRE_SIDE_K, pairs[ends[e]]) <
                    bits_of(desc, QUIRE_SIDE_K, pairs[l]) ||
                bits_of(desc, QUIRE_SIDE_V, pairs[ends[e]]) <
                    bits_of(desc, QUIRE_SIDE_V, pairs[l])) {
                return false;
            }
        }
    }
    return true;
}

/* The least that any layer has is itself a pair for all layers of at most that size, and no pair of
 * at most that size has as much on one side and more on the other. */
static bool is_ahead_of_uniform(const quire_model_desc *desc, const quire_kv_pair *pairs,
                                double bits)
{
    quire_kv_pair least = pairs[0];
    quire_kv_pair uniform[LAYERS];

    for (uint32_t l = 1; l < desc->n_stored; l++) {
        least.k = bits_of(desc, QUIRE_SIDE_K, pairs[l]) < bits_of(desc, QUIRE_SIDE_K, least)
                      ? pairs[l].k
                      : least.k;
        least.v = bits_of(desc, QUIRE_SIDE_V, pairs[l]) < bits_of(desc, QUIRE_SIDE_V, least)
                      ? pairs[l].v
                      : least.v;
    }
    for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        const quire_kv_pair more[] = { { (quire_format)f, least.v }, { least.k, (quire_format)f } };

        for (uint32_t side = 0; side < 2; side++) {
            quire_kv_uniform(desc, more[side], uniform);
            if (quire_kv_bits(desc, uniform) <= bits &&
                bits_of(desc, (quire_side)side, more[side]) >
                    bits_of(desc, (quire_side)side, least)) {
                return false;
            }
        }
    }
    return true;
}

/* The chosen formats never exceed the size and come near it. A larger size never gives fewer bits.
 * They are never worse than the best pair for all layers. Remaining bits go to the first and last
 * layers first. */
static void auto_at_all_sizes(quire_model_desc *desc)
{
    const uint32_t n = desc->n_stored;
    const double grain = 2.0 / n; /* two bits of one side of one layer */
    quire_kv_pair pairs[LAYERS];
    double last = 0;

    for (double bits = 3.6; bits < 33; bits += bits < 9 ? 0.11 : 1.0) {
        quire_error err = QUIRE_ERROR_INIT;
        double got;

        assert_int_equal(quire_kv_auto(desc, bits, pairs, &err), QUIRE_OK);
        got = quire_kv_bits(desc, pairs);
        assert_true(got <= bits + 1e-9);
        assert_true(got >= last);
        if (bits < 8) {
            assert_true(got > bits - grain);
        }
        if (bits < 8) {
            assert_true(ends_come_first(desc, pairs));
            assert_true(is_ahead_of_uniform(desc, pairs, bits));
        }
        last = got;
    }
}

static void test_auto_at_all_sizes(void **state)
{
    static const uint32_t layers[] = { 1, 4, 5, 22, 32, LAYERS };
    static const uint32_t dims[] = { 64, 80, 128 };

    (void)state;
    for (size_t i = 0; i < COUNT(layers); i++) {
        for (size_t j = 0; j < COUNT(dims); j++) {
            quire_model_desc *desc = desc_of(layers[i], dims[j]);

            auto_at_all_sizes(desc);
            desc->n_params = 1100000000;
            auto_at_all_sizes(desc);
        }
    }
}

static double mean_bits(const quire_model_desc *desc, const quire_kv_pair *pairs, quire_side side)
{
    double bits = 0;

    for (uint32_t l = 0; l < desc->n_stored; l++) {
        bits += quire_format_bits(side == QUIRE_SIDE_K ? pairs[l].k : pairs[l].v, side, 64) /
                desc->n_stored;
    }
    return bits;
}

/* K before V, and more so where a model is small, shares widely or has a bias. */
static void test_auto_prefers_k(void **state)
{
    quire_kv_pair pairs[32];
    double plain;

    (void)state;
    for (double bits = 4.2; bits < 7; bits += 0.4) {
        assert_int_equal(quire_kv_auto(desc_of(32, 64), bits, pairs, NULL), QUIRE_OK);
        plain = mean_bits(desc_of(32, 64), pairs, QUIRE_SIDE_K);
        assert_true(plain > mean_bits(desc_of(32, 64), pairs, QUIRE_SIDE_V));
        for (int reason = 0; reason < 3; reason++) {
            quire_model_desc *desc = desc_of(32, 64);

            desc->n_params = reason == 0 ? 135000000 : desc->n_params;
            desc->n_kv_head = reason == 1 ? 4 : desc->n_kv_head;
            desc->has_qkv_bias = reason == 2;
            assert_int_equal(quire_kv_auto(desc, bits, pairs, NULL), QUIRE_OK);
            assert_true(mean_bits(desc, pairs, QUIRE_SIDE_K) >= plain);
        }
    }
}

/* V that is a part of K takes no bytes, and has K's format. */
static void test_latent_rows(void **state)
{
    quire_model_desc *desc = desc_of(27, 512);
    const quire_kv_pair q8 = { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8 };
    const quire_kv_pair q4 = { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4 };
    quire_kv_pair pairs[27];

    (void)state;
    desc->n_kv_head = 1;
    desc->d_k = 576;
    desc->latent.is_there = true;
    assert_int_equal(quire_kv_uniform_bytes_per_token(desc, q8), 27 * (576 + 2));
    assert_int_equal(quire_kv_uniform_hot_bytes_per_token(desc, q8), 0);
    assert_int_equal(quire_kv_uniform_hot_bytes_per_token(desc, q4), 27 * (576 + 2));
    for (double bits = 3.5; bits <= 16.0; bits += 0.5) {
        assert_int_equal(quire_kv_auto(desc, bits, pairs, NULL), QUIRE_OK);
        assert_true(quire_kv_bits(desc, pairs) <= bits);
        for (uint32_t l = 0; l < 27; l++) {
            assert_int_equal(pairs[l].k, pairs[l].v);
        }
    }
    assert_int_equal(pairs[13].k, QUIRE_FORMAT_F16);
    desc->latent.is_there = false; /* the description is static */
}

static void test_auto_refuses(void **state)
{
    quire_kv_pair pairs[10];
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    quire_kv_uniform(desc_of(10, 64), (quire_kv_pair){ QUIRE_FORMAT_Q3, QUIRE_FORMAT_Q3 }, pairs);
    assert_true(quire_kv_bits(desc_of(10, 64), pairs) == 3.375);
    assert_int_equal(quire_kv_auto(desc_of(10, 64), 3.375, pairs, &err), QUIRE_OK);
    assert_true(quire_kv_bits(desc_of(10, 64), pairs) == 3.375);
    assert_int_equal(quire_kv_auto(desc_of(10, 64), 3.37, pairs, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "choose 3.38 or more"));
}

/* Counted pair by pair, straight from the rule. */
static void test_hot_share(void **state)
{
    static const uint32_t cases[][4] = { { 0, 64, 128, 64 },    { 0, 300, 0, 0 },
                                         { 100, 700, 128, 64 }, { 63, 65, 0, 64 },
                                         { 512, 640, 64, 128 }, { 5, 5, 128, 64 } };

    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        uint64_t n_hot = 0;
        uint64_t n_all = 0;
        double expected;

        for (uint32_t q = cases[c][0]; q < cases[c][1]; q++) {
            for (uint32_t t = 0; t <= q; t++) {
                n_all++;
                n_hot += q / 64 - t / 64 <= cases[c][2] / 64 || t / 64 < cases[c][3] / 64;
            }
        }
        expected = n_all != 0 ? (double)n_hot / (double)n_all : 0.0;
        assert_true(fabs(quire_kv_hot_share(cases[c][0], cases[c][1], cases[c][2], cases[c][3]) -
                         expected) < 1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_layer_lists),
        cmocka_unit_test(test_layer_lists_refused),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_allocation_is_best),
        cmocka_unit_test(test_auto_at_all_sizes),
        cmocka_unit_test(test_auto_prefers_k),
        cmocka_unit_test(test_auto_refuses),
        cmocka_unit_test(test_latent_rows),
        cmocka_unit_test(test_hot_share),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
