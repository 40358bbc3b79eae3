/* test_calibration.c - choices from measured costs, and the file that keeps them: round trip and
 * every way to damage it.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/calibration.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "seed.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define LAYERS       3u

static const quire_format formats[] = { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q5,
                                        QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q3 };
#define FORMATS COUNT(formats)

static quire_model_desc desc;

static int describe(void **state)
{
    (void)state;
    desc = (quire_model_desc){
        .n_layer = LAYERS,
        .n_stored = LAYERS,
        .n_head = 4,
        .n_kv_head = 2,
        .d_k = 64,
        .d_v = 64,
        .fingerprint = 0x0123456789abcdef,
    };
    return 0;
}

/* Costs that fall with every bit, each side with a weight of its own. */
static void measured(quire_calibration *c, uint64_t seed)
{
    quire_rng rng = { seed };
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(quire_calibration_init(c, &desc, &err), QUIRE_OK);
    (void)snprintf(c->model, sizeof(c->model), "tiny");
    (void)snprintf(c->text, sizeof(c->text), "wiki \"test\": #1");
    c->n_ctx = 512;
    c->n_chunks = 2;
    c->n_scored = 510;
    c->kv_recent = 64;
    c->kv_sinks = 128;
    c->measured = 1u << QUIRE_FORMAT_Q8 | 1u << QUIRE_FORMAT_Q3;
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t side = 0; side < 2; side++) {
            double cost = 0;

            for (size_t i = 0; i < FORMATS; i++) {
                cost += exp(1.5 * (double)i) * 1e-6 * (0.01 + quire_rng_unit(&rng));
                c->costs[l].of[side][formats[i]] = cost;
            }
        }
    }
    assert_int_equal(quire_calibration_choose(c, &desc, 4.6, c->pairs, &err), QUIRE_OK);
}

static char *text_of(const quire_calibration *c, size_t *n)
{
    quire_error err = QUIRE_ERROR_INIT;
    char *text;

    assert_int_equal(quire_calibration_format(c, &desc, &text, n, &err), QUIRE_OK);
    assert_int_equal(strlen(text), *n);
    return text;
}

static bool is_near(double a, double b, double share)
{
    return fabs(a - b) <= share * fabs(b);
}

/* ---- choices ---- */

static void starts_without_costs(void **state)
{
    quire_calibration c;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_calibration_init(&c, &desc, &err), QUIRE_OK);
    assert_true(quire_calibration_sum(&c, c.pairs) == 0.0);
    assert_true(isinf(c.costs[0].of[QUIRE_SIDE_V][QUIRE_FORMAT_Q8]));
    assert_true(isinf(c.costs[2].of[QUIRE_SIDE_K][QUIRE_FORMAT_BF16]));
    /* Only f16 can be had, and that is 16 bits. */
    assert_int_equal(quire_calibration_choose(&c, &desc, 15.9, c.pairs, &err), QUIRE_RANGE);
    assert_int_equal(quire_calibration_choose(&c, &desc, 16.0, c.pairs, &err), QUIRE_OK);
    quire_calibration_fini(&c);
    quire_calibration_fini(&c);
}

/* K and V cannot be measured apart where V is a part of K. */
static void refuses_latent_rows(void **state)
{
    quire_model_desc latent = { .n_stored = 1, .arch_name = "deepseek2" };
    quire_error err = QUIRE_ERROR_INIT;
    quire_calibration c;

    (void)state;
    latent.latent.is_there = true;
    assert_int_equal(quire_calibration_init(&c, &latent, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "architecture deepseek2 V is a part of K"));
    quire_calibration_fini(&c);
}

/* All 5^6 choices of three layers, one digit per side. */
static double least_cost(const quire_calibration *c, double bits)
{
    double least = INFINITY;
    quire_kv_pair pairs[LAYERS];

    for (uint32_t n = 0; n < 15625; n++) {
        uint32_t rest = n;

        for (uint32_t l = 0; l < LAYERS; l++) {
            pairs[l].k = formats[rest % FORMATS];
            pairs[l].v = formats[rest / FORMATS % FORMATS];
            rest /= FORMATS * FORMATS;
        }
        if (quire_kv_bits(&desc, pairs) <= bits + 1e-9) {
            least = fmin(least, quire_calibration_sum(c, pairs));
        }
    }
    return least;
}

static void chooses_the_least_cost(void **state)
{
    static const double sizes[] = { 3.6, 3.9, 4.25, 4.5, 5.0, 5.5, 6.25, 7.0, 8.25 };
    uint64_t seed = test_rng(17).state;

    (void)state;
    for (uint64_t round = 0; round < 4; round++) {
        quire_calibration c;
        quire_kv_pair pairs[LAYERS];
        double before = INFINITY;

        measured(&c, seed + round);
        for (size_t i = 0; i < COUNT(sizes); i++) {
            quire_error err = QUIRE_ERROR_INIT;
            double cost;

            assert_int_equal(quire_calibration_choose(&c, &desc, sizes[i], pairs, &err), QUIRE_OK);
            cost = quire_calibration_sum(&c, pairs);
            assert_true(quire_kv_bits(&desc, pairs) <= sizes[i] + 1e-9);
            assert_true(is_near(cost, least_cost(&c, sizes[i]), 1e-9));
            assert_true(cost <= before);
            before = cost;
        }
        quire_calibration_fini(&c);
    }
}

static void bits_for_a_divergence(void **state)
{
    static const double limits[] = { 1e-3, 1e-4, 2e-5, 5e-6, 1e-9 };
    quire_calibration c;
    quire_kv_pair pairs[LAYERS];
    quire_error err = QUIRE_ERROR_INIT;
    double before = 0;
    double bits;

    (void)state;
    measured(&c, 7);
    for (size_t i = 0; i < COUNT(limits); i++) {
        err = (quire_error)QUIRE_ERROR_INIT;
        assert_int_equal(quire_calibration_bits_for(&c, &desc, limits[i], &bits, &err), QUIRE_OK);
        assert_int_equal(err.status, QUIRE_OK); /* sizes out of reach are no news */
        assert_string_equal(err.message, "");
        assert_true(bits >= before);
        before = bits;
        assert_int_equal(quire_calibration_choose(&c, &desc, bits, pairs, &err), QUIRE_OK);
        assert_true(quire_calibration_sum(&c, pairs) <= limits[i]);
        /* A step less is too little. */
        if (quire_calibration_choose(&c, &desc, bits - 1.0 / 64, pairs, &err) == QUIRE_OK) {
            assert_true(quire_calibration_sum(&c, pairs) > limits[i]);
        }
    }
    /* Nothing at all: f16 throughout. */
    assert_int_equal(quire_calibration_bits_for(&c, &desc, 0, &bits, &err), QUIRE_OK);
    assert_true(bits == 16.0);
    quire_calibration_fini(&c);
}

/* Where one pair for all layers was measured ahead, sizes like that get it and others do not. */
static void uniform_may_win(void **state)
{
    quire_calibration c;
    quire_kv_pair pairs[LAYERS];
    quire_kv_pair by_cost[LAYERS];
    quire_kv_pair uniform;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    measured(&c, 8);
    assert_false(quire_calibration_uniform(&c, &desc, 3.0, &uniform));
    assert_true(quire_calibration_uniform(&c, &desc, 4.6, &uniform));
    quire_kv_uniform(&desc, uniform, pairs);
    assert_true(quire_kv_bits(&desc, pairs) <= 4.6);
    memcpy(by_cost, c.pairs, sizeof(by_cost));
    assert_memory_not_equal(pairs, by_cost, sizeof(pairs));
    assert_true(quire_calibration_sum(&c, by_cost) <= quire_calibration_sum(&c, pairs));

    memcpy(c.pairs, pairs, sizeof(pairs));
    assert_int_equal(quire_calibration_choose(&c, &desc, 4.6, pairs, &err), QUIRE_OK);
    assert_memory_equal(pairs, by_cost, sizeof(pairs));
    c.uniform_wins = true;
    assert_int_equal(quire_calibration_choose(&c, &desc, 4.6, pairs, &err), QUIRE_OK);
    assert_memory_equal(pairs, c.pairs, sizeof(pairs));
    assert_int_equal(quire_calibration_choose(&c, &desc, 8.0, pairs, &err), QUIRE_OK);
    assert_true(quire_calibration_sum(&c, pairs) <= least_cost(&c, 8.0) * (1 + 1e-9));
    quire_calibration_fini(&c);
}

/* ---- the file ---- */

static void round_trip(void **state)
{
    quire_calibration c;
    quire_calibration back;
    quire_error err = QUIRE_ERROR_INIT;
    size_t n;
    char *text;

    (void)state;
    measured(&c, test_rng(23).state);
    c.costs[1].of[QUIRE_SIDE_V][QUIRE_FORMAT_Q8] = 0;
    text = text_of(&c, &n);
    if (quire_calibration_parse(&back, text, n, &desc, &err) != QUIRE_OK) {
        fail_msg("%s in:\n%s", err.message, text);
    }
    assert_string_equal(back.model, "tiny");
    assert_string_equal(back.text, "wiki \"test\": #1");
    assert_int_equal(back.n_ctx, 512);
    assert_int_equal(back.n_chunks, 2);
    assert_int_equal(back.n_scored, 510);
    assert_int_equal(back.kv_recent, 64);
    assert_int_equal(back.kv_sinks, 128);
    assert_int_equal(back.measured, c.measured);
    assert_int_equal(back.n_stored, LAYERS);
    assert_memory_equal(back.pairs, c.pairs, LAYERS * sizeof(*c.pairs));
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t side = 0; side < 2; side++) {
            const double *was = c.costs[l].of[side];
            const double *is = back.costs[l].of[side];

            for (size_t i = 0; i < FORMATS; i++) {
                assert_true(fabs(is[formats[i]] - was[formats[i]]) <= 0.501e-9);
            }
            assert_true(is[QUIRE_FORMAT_F16] == 0 && is[QUIRE_FORMAT_F32] == 0);
            assert_true(isinf(is[QUIRE_FORMAT_BF16]));
        }
    }
    quire_calibration_fini(&back);
    free(text);
    quire_calibration_fini(&c);
}

/* Names from outside may be any bytes and of any length. */
static void strange_names(void **state)
{
    quire_calibration c;
    quire_calibration back;
    quire_error err = QUIRE_ERROR_INIT;
    size_t n;
    char *text;

    (void)state;
    measured(&c, 1);
    memset(c.model, 'x', sizeof(c.model) - 1);
    c.model[sizeof(c.model) - 1] = '\0';
    (void)snprintf(c.text, sizeof(c.text), "- a\n\xff{: \x01\t*& 'it''s'");
    text = text_of(&c, &n);
    if (quire_calibration_parse(&back, text, n, &desc, &err) != QUIRE_OK) {
        fail_msg("%s in:\n%s", err.message, text);
    }
    assert_string_equal(back.model, c.model);
    assert_string_equal(back.text, "- a??{: ??*& 'it''s'");
    quire_calibration_fini(&back);
    free(text);
    quire_calibration_fini(&c);
}

static void costs_out_of_range_are_told(void **state)
{
    static const double values[] = { 1.5e3, 1e300, -1e-9, INFINITY, NAN };
    quire_calibration c;
    char *text;
    size_t n;

    (void)state;
    measured(&c, 9);
    for (size_t i = 0; i < COUNT(values); i++) {
        quire_error err = QUIRE_ERROR_INIT;

        c.costs[1].of[QUIRE_SIDE_V][QUIRE_FORMAT_Q4] = values[i];
        assert_int_equal(quire_calibration_format(&c, &desc, &text, &n, &err), QUIRE_RANGE);
        assert_non_null(strstr(err.message, "layer 1, V: q4 costs "));
        assert_null(text);
    }
    c.costs[1].of[QUIRE_SIDE_V][QUIRE_FORMAT_Q4] = QUIRE_CALIBRATION_COST_MAX;
    text = text_of(&c, &n);
    free(text);
    quire_calibration_fini(&c);
}

static void winners_are_kept(void **state)
{
    static const char line[] = "uniform_wins: true\n";
    quire_calibration c;
    quire_calibration back;
    quire_error err = QUIRE_ERROR_INIT;
    char *text;
    char *at;
    size_t n;

    (void)state;
    measured(&c, 10);
    quire_kv_uniform(&desc, (quire_kv_pair){ QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q3 }, c.pairs);
    c.uniform_wins = true;
    text = text_of(&c, &n);
    assert_int_equal(quire_calibration_parse(&back, text, n, &desc, &err), QUIRE_OK);
    assert_true(back.uniform_wins);
    quire_calibration_fini(&back);
    /* A file may say nothing of it. */
    at = strstr(text, line);
    assert_non_null(at);
    memmove(at, at + strlen(line), strlen(at + strlen(line)) + 1);
    assert_int_equal(quire_calibration_parse(&back, text, strlen(text), &desc, &err), QUIRE_OK);
    assert_false(back.uniform_wins);
    quire_calibration_fini(&back);
    free(text);
    quire_calibration_fini(&c);
}

/* Put `to` in place of the first `from` and expect a refusal that says why. */
typedef struct damage {
    const char *from;
    const char *to;
    int status;
    const char *says;
} damage;

static void expect_refused(const char *text, size_t n, int status, const char *says)
{
    quire_calibration c;
    quire_error err = QUIRE_ERROR_INIT;
    int rc = quire_calibration_parse(&c, text, n, &desc, &err);

    if (rc != status || strstr(err.message, says) == NULL || strchr(err.message, '\n') != NULL) {
        fail_msg("status %d, '%s'; expected %d and '%s' of:\n%s", rc, err.message, status, says,
                 text);
    }
    if (strstr(err.message, "in mapping") != NULL || strstr(err.message, "in sequence") != NULL) {
        fail_msg("words of libcyaml: %s", err.message);
    }
    for (const char *at = err.message; *at != '\0'; at++) {
        assert_in_range(*at, ' ', '~');
    }
    assert_int_equal(err.status, status);
    assert_null(c.costs);
    assert_null(c.pairs);
}

static void damage_is_told(void **state)
{
    static const damage cases[] = {
        { "version: 1", "version: 2", QUIRE_UNSUPP, "version 2; this build reads version 1" },
        { "version: 1", "version: 2\nwhat: [{a: b}]", QUIRE_UNSUPP, "version 2" },
        { "version: 1", "version: one", QUIRE_CORRUPT,
          "version: no number, or too large a one: 'one'" },
        { "version: 1", "version: -1", QUIRE_CORRUPT, "-1" },
        { "version: 1", "", QUIRE_CORRUPT, "version" },
        { "0123456789abcdef", "0123456789abcdee", QUIRE_INVAL, "another model" },
        { "0123456789abcdef", "0123456789abcdef0", QUIRE_CORRUPT, "" },
        { "0123456789abcdef", "0123", QUIRE_CORRUPT, "" },
        { "fingerprint: ", "fingerprint: \"\\e[31m456789abcde\" # ", QUIRE_CORRUPT, "hexadecimal" },
        { "0123456789abcdef", "0123456789abcdeg", QUIRE_CORRUPT, "hexadecimal" },
        { "n_ctx: 512", "n_ctx: 0", QUIRE_CORRUPT, "n_ctx 0" },
        { "n_ctx: 512", "n_ctx: -5", QUIRE_CORRUPT, "-5" },
        { "n_ctx: 512", "n_ctx: 99999999999", QUIRE_CORRUPT, "99999999999" },
        { "n_ctx: 512", "n_ctx: [512]", QUIRE_CORRUPT, "n_ctx: another kind of value" },
        { "kv_recent: 64", "kv_recent: 4000000000", QUIRE_CORRUPT, "kv_recent 4000000000" },
        { "kv_recent: 64", "kv_resent: 64", QUIRE_CORRUPT, ": unknown key: kv_resent" },
        { "kv_recent: 64", "", QUIRE_CORRUPT, "a key is missing: kv_recent" },
        { "- q3", "- q2", QUIRE_CORRUPT, "measured: no format: q2" },
        { "- q8\n- q3", "  q8", QUIRE_CORRUPT, "" },
        { "{q8: ", "{q9: ", QUIRE_CORRUPT, "q9" },
        { "{q8: ", "{q8: -", QUIRE_CORRUPT, "" },
        { "{q8: ", "{q8: x", QUIRE_CORRUPT, "x" },
        { "{q8: ", "{q8: 2000000000000, q7: ", QUIRE_CORRUPT, "q7" },
        { "q6: ", "q6: 2000000000", QUIRE_CORRUPT, "layer 0, k, q6: a cost of" },
        { "{q8: ", "{q8: 99999999999999999999", QUIRE_CORRUPT, "9999" },
        { "{q8: ", "{q8: {}, q6: ", QUIRE_CORRUPT, "" },
        { "choice: ", "choice: '*=q9' # ", QUIRE_CORRUPT, "q9" },
        { "choice: ", "choice: '0-7=q4;*=q8' # ", QUIRE_CORRUPT, "no layer 7" },
        { "choice: ", "choice: '' # ", QUIRE_CORRUPT, "" },
        { "choice: ", "choice: 'none' # ", QUIRE_CORRUPT, "none" },
        { "choice: ", "choice: \"*=\\e[31mq4\" # ", QUIRE_CORRUPT, "'*=?[31mq4'" },
        { "choice: ", "choice: \"\\e[31m=q4\" # ", QUIRE_CORRUPT, "?[31m" },
        { "uniform_wins: false", "uniform_wins: true", QUIRE_CORRUPT, "differs by layer" },
        { "uniform_wins: false", "uniform_wins: []", QUIRE_CORRUPT, "" },
        { "layers:", "layers: []\nmore:", QUIRE_CORRUPT, "" },
        { "layers:", "layers: *a\nmore:", QUIRE_CORRUPT, "an alias (*), which" },
        { "layers:", "layers:\n- k: {", QUIRE_CORRUPT, "not YAML: " },
        { "model: ", "model: \"", QUIRE_CORRUPT, "" },
        { "model: ", "model: \xff", QUIRE_CORRUPT, "" },
    };
    quire_calibration c;
    size_t n;
    char *text;
    char *damaged;

    (void)state;
    measured(&c, 3);
    text = text_of(&c, &n);
    damaged = malloc(n + 256);
    assert_non_null(damaged);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *at = strstr(text, cases[i].from);
        int n_damaged;

        if (at == NULL) {
            fail_msg("no '%s' in:\n%s", cases[i].from, text);
        }
        n_damaged = snprintf(damaged, n + 256, "%.*s%s%s", (int)(at - text), text, cases[i].to,
                             at + strlen(cases[i].from));
        assert_true(n_damaged > 0);
        expect_refused(damaged, (size_t)n_damaged, cases[i].status, cases[i].says);
    }
    free(damaged);
    free(text);
    quire_calibration_fini(&c);
}

/* Cut anywhere: never a crash, and never taken for whole before the last line has begun. */
static void truncation_is_told(void **state)
{
    quire_calibration c;
    quire_error err = QUIRE_ERROR_INIT;
    size_t n;
    char *text;
    char *copy;

    (void)state;
    measured(&c, 4);
    text = text_of(&c, &n);
    for (size_t i = 0; i < n; i++) {
        quire_calibration back;
        int rc;

        copy = malloc(i + 1); /* so that a sanitizer sees a read beyond the end */
        assert_non_null(copy);
        memcpy(copy, text, i);
        copy[i] = '\0';
        rc = quire_calibration_parse(&back, copy, i, &desc, &err);
        assert_true(rc == QUIRE_OK || rc == QUIRE_CORRUPT);
        assert_true(rc != QUIRE_OK || i + 12 > n);
        quire_calibration_fini(&back);
        free(copy);
    }
    free(text);
    quire_calibration_fini(&c);
}

/* One byte changed at a time, at random. */
static void any_byte_may_change(void **state)
{
    quire_rng rng = test_rng(29);
    quire_calibration c;
    quire_error err = QUIRE_ERROR_INIT;
    uint32_t n_refused = 0;
    size_t n;
    char *text;

    (void)state;
    measured(&c, 5);
    text = text_of(&c, &n);
    for (uint32_t i = 0; i < 2000; i++) {
        size_t at = quire_rng_below(&rng, (uint32_t)n);
        char was = text[at];
        quire_calibration back;

        text[at] = (char)quire_rng_below(&rng, 256);
        if (quire_calibration_parse(&back, text, n, &desc, &err) == QUIRE_OK) {
            assert_true(quire_calibration_sum(&back, back.pairs) >= 0);
        } else {
            assert_null(back.costs);
            n_refused++;
        }
        quire_calibration_fini(&back);
        text[at] = was;
    }
    assert_true(n_refused > 500);
    free(text);
    quire_calibration_fini(&c);
}

static void sizes_are_bounded(void **state)
{
    quire_calibration c;
    size_t n;
    char *text;
    char *many;
    const char *layer;
    size_t head;
    size_t n_layer;

    (void)state;
    expect_refused("", 0, QUIRE_CORRUPT, "empty");
    expect_refused("\n", 1, QUIRE_CORRUPT, "");
    expect_refused("# nothing\n", 10, QUIRE_CORRUPT, "");
    expect_refused("- 1\n- 2\n", 8, QUIRE_CORRUPT, "");
    expect_refused("version", 7, QUIRE_CORRUPT, "");
    many = malloc(QUIRE_CALIBRATION_BYTES_MAX + 2);
    assert_non_null(many);
    memset(many, '\n', QUIRE_CALIBRATION_BYTES_MAX + 1);
    many[QUIRE_CALIBRATION_BYTES_MAX + 1] = '\0';
    expect_refused(many, QUIRE_CALIBRATION_BYTES_MAX + 1, QUIRE_CORRUPT, "longer than");
    memset(many, '[', QUIRE_CALIBRATION_BYTES_MAX);
    memcpy(many, "version: ", 9);
    expect_refused(many, 100000, QUIRE_CORRUPT, "");
    free(many);

    /* Layers more than the model has, and more than any. */
    measured(&c, 6);
    text = text_of(&c, &n);
    layer = strstr(text, "- k:");
    assert_non_null(layer);
    head = (size_t)(layer - text);
    n_layer = (size_t)(strstr(layer + 1, "- k:") - layer);
    many = malloc(head + 600 * n_layer + 1);
    assert_non_null(many);
    memcpy(many, text, head);
    for (size_t i = 0; i < 600; i++) {
        memcpy(many + head + i * n_layer, layer, n_layer);
    }
    many[head + 4 * n_layer] = '\0';
    expect_refused(many, head + 4 * n_layer, QUIRE_CORRUPT, "4 layers; the model stores 3");
    many[head + 4 * n_layer] = '-';
    many[head + 600 * n_layer] = '\0';
    expect_refused(many, head + 600 * n_layer, QUIRE_CORRUPT, "");
    /* All layers twice is no way around that. */
    free(many);
    many = malloc(2 * n + 1);
    assert_non_null(many);
    memcpy(many, text, n);
    memcpy(many + n, strstr(text, "layers:"), strlen(strstr(text, "layers:")) + 1);
    {
        quire_calibration back;
        quire_error err = QUIRE_ERROR_INIT;
        int rc = quire_calibration_parse(&back, many, strlen(many), &desc, &err);

        assert_true(rc == QUIRE_OK || rc == QUIRE_CORRUPT);
        assert_true(rc != QUIRE_OK || back.n_stored == LAYERS);
        quire_calibration_fini(&back);
    }
    free(many);
    free(text);
    quire_calibration_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_without_costs),
        cmocka_unit_test(refuses_latent_rows),
        cmocka_unit_test(chooses_the_least_cost),
        cmocka_unit_test(bits_for_a_divergence),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(strange_names),
        cmocka_unit_test(damage_is_told),
        cmocka_unit_test(truncation_is_told),
        cmocka_unit_test(any_byte_may_change),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(uniform_may_win),
        cmocka_unit_test(costs_out_of_range_are_told),
        cmocka_unit_test(winners_are_kept),
    };

    return cmocka_run_group_tests(tests, describe, NULL);
}
