/* test_attn_damage.c - NaN and Inf show where they are seen, and nowhere else.
 *
 * Slots outside the tables are NaN in all tests (attn_fixture.h); here visible values are damaged.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"
#include "attn/tolerance.h"
#include "rounds.h"

#define ISAS_MAX 6u

static quire_rng rng;

/* Entries of a split. With one tile in a split, a row enters the tile without a maximum m of
 * earlier tiles; with several tiles, a row has such a maximum from the second tile on. */
static uint32_t split_entries;
static uint32_t window; /* 0: rows see all before them */

/* One sequence whose rows cover several tiles, with splits. */
static fixture_opts damage_case(quire_format format)
{
    fixture_opts opts = fixture_defaults();

    opts.k_format = format;
    opts.v_format = format;
    opts.d_v = 48;
    opts.window = window;
    opts.split_entries = split_entries;
    opts.n_tokens[0] = 200;
    opts.n_rows[0] = 150;
    return opts;
}

static float *run(fixture *f, const char *isa)
{
    fixture_run_opts opts = { .isa = isa, .n_threads = 2 };
    float *out = calloc(fixture_out_floats(f), sizeof(float));

    assert_non_null(out);
    fixture_run(f, NULL, &opts, out);
    return out;
}

/* Whether output i of (row, head) is expected to be NaN. All other outputs must keep their bits. */
typedef bool is_hit(const fixture *f, uint32_t row, uint32_t h, uint32_t i);

static uint32_t hit_token;
static uint32_t hit_head; /* kv head, or query head for q */
static uint32_t hit_dim;

static bool is_hit_by_k(const fixture *f, uint32_t row, uint32_t h, uint32_t i)
{
    (void)i;
    return h / (f->opts.n_head / f->opts.n_kv_head) == hit_head &&
           f->opts.n_tokens[0] - f->opts.n_rows[0] + row >= hit_token &&
           (window == 0 || f->opts.n_tokens[0] - f->opts.n_rows[0] + row - hit_token < window);
}

static bool is_hit_by_v(const fixture *f, uint32_t row, uint32_t h, uint32_t i)
{
    return is_hit_by_k(f, row, h, i) && (i == hit_dim || f->opts.v_format >= QUIRE_FORMAT_Q8);
}

static bool is_hit_by_q(const fixture *f, uint32_t row, uint32_t h, uint32_t i)
{
    (void)f;
    (void)i;
    return row == hit_token && h == hit_head;
}

static void expect_damage(const fixture *f, const float *out, const float *clean, is_hit *hit)
{
    size_t at = 0;

    for (uint32_t row = 0; row < f->n_rows; row++) {
        for (uint32_t h = 0; h < f->opts.n_head; h++) {
            for (uint32_t i = 0; i < f->opts.d_v; i++, at++) {
                if (hit(f, row, h, i)) {
                    assert_true(isnan(out[at]));
                } else {
                    assert_memory_equal(&out[at], &clean[at], sizeof(float));
                }
            }
        }
    }
}

static void spoil_k(fixture *f)
{
    hit_token = quire_rng_below(&rng, f->opts.n_tokens[0]);
    hit_head = quire_rng_below(&rng, f->opts.n_kv_head);
    hit_dim = quire_rng_below(&rng, f->opts.d_k);
    f->k[0][((size_t)hit_token * f->opts.n_kv_head + hit_head) * f->opts.d_k + hit_dim] = NAN;
    fixture_store(f, 0, hit_token, hit_token + 1);
}

/* For every format and ISA: run, let `damage` spoil something, run again, compare. */
static void for_all(void (*damage)(fixture *f), is_hit *hit)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    /* A damaged K stays out of its sealed tile's mean, which moves the codes of its neighbours:
     * rows that see these and not the damaged one have other bits. */
    const unsigned n_formats =
        window != 0 && damage == spoil_k ? QUIRE_FORMATS_DIRECT : QUIRE_FORMAT_COUNT;

    for (unsigned n = 0; n < n_formats; n++) {
        quire_format format = (quire_format)n;

        for (uint32_t i = 0; i < n_isas; i++) {
            fixture_opts opts = damage_case(format);
            float *clean;
            float *out;
            fixture f;

            if (!test_takes_case()) {
                continue;
            }
            fixture_init(&f, &opts, &rng);
            clean = run(&f, isas[i]);
            damage(&f);
            out = run(&f, isas[i]);
            expect_damage(&f, out, clean, hit);
            free(out);
            free(clean);
            fixture_free(&f);
        }
    }
}

static void spoil_v(fixture *f)
{
    hit_token = quire_rng_below(&rng, f->opts.n_tokens[0]);
    hit_head = quire_rng_below(&rng, f->opts.n_kv_head);
    hit_dim = quire_rng_below(&rng, f->opts.d_v);
    f->v[0][((size_t)hit_token * f->opts.n_kv_head + hit_head) * f->opts.d_v + hit_dim] = NAN;
    fixture_store(f, 0, hit_token, hit_token + 1);
}

static void spoil_q(fixture *f)
{
    hit_token = quire_rng_below(&rng, f->n_rows);
    hit_head = quire_rng_below(&rng, f->opts.n_head);
    f->q[0][hit_token * f->layer.q_stride + (size_t)hit_head * f->opts.d_k] = NAN;
}

static void spoil_q_with_infinity(fixture *f)
{
    spoil_q(f);
    f->q[0][hit_token * f->layer.q_stride + (size_t)hit_head * f->opts.d_k] = INFINITY;
}

static void test_nan_in_k(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        for_all(spoil_k, is_hit_by_k);
    }
}

static void test_nan_in_v(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        for_all(spoil_v, is_hit_by_v);
    }
}

static void test_nan_in_q(void **state)
{
    (void)state;
    for_all(spoil_q, is_hit_by_q);
}

static void test_infinity_in_q(void **state)
{
    (void)state;
    for_all(spoil_q_with_infinity, is_hit_by_q);
}

/* One K of -Inf against positive queries: that token weighs nothing, also as the first of a row. */
static void test_logit_of_minus_infinity(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_BF16 };
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (size_t k = 0; k < sizeof(formats) / sizeof(formats[0]); k++) {
        fixture_opts opts = damage_case(formats[k]);
        double *ref;
        fixture f;

        fixture_init(&f, &opts, &rng);
        for (size_t i = 0; i < f.n_rows * f.layer.q_stride; i++) {
            f.q[0][i] = fabsf(f.q[0][i]) + 0.01f;
        }
        for (uint32_t token = 0; token < 130; token++) { /* whole tiles of the first split too */
            f.k[0][(size_t)token * opts.n_kv_head * opts.d_k + 3] = -INFINITY;
        }
        fixture_store(&f, 0, 0, 130);
        ref = fixture_ref(&f);
        for (uint32_t i = 0; i < n_isas; i++) {
            bool is_rounded = attn_multiplies_bf16(isas[i], opts.k_format);
            double limit = is_rounded ? attn_tolerance_bf16_output : 1e-4;
            float *out = run(&f, isas[i]);
            size_t row_floats = (size_t)opts.n_head * opts.d_v;

            for (size_t at = 0; at < fixture_out_floats(&f); at++) {
                uint32_t row = (uint32_t)(at / row_floats);
                bool is_blind = row + 50 < 130 && at % row_floats < row_floats / 2;

                assert_int_equal(isnan(out[at]) != 0, is_blind);
                assert_int_equal(isnan(ref[at]) != 0, is_blind);
                assert_true(is_blind || fabs((double)out[at] - ref[at]) < limit);
            }
            free(out);
        }
        free(ref);
        fixture_free(&f);
    }
}

/* Inf in a visible V: rows that see it are infinite or NaN in that dimension. */
static void test_infinity_in_v(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_BF16 };
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (size_t k = 0; k < sizeof(formats) / sizeof(formats[0]); k++) {

        for (uint32_t i = 0; i < n_isas; i++) {
            fixture_opts opts = damage_case(formats[k]);
            float *clean;
            float *out;
            size_t at = 0;
            fixture f;

            if (!test_takes_case()) {
                continue;
            }
            fixture_init(&f, &opts, &rng);
            clean = run(&f, isas[i]);
            spoil_v(&f);
            f.v[0][((size_t)hit_token * opts.n_kv_head + hit_head) * opts.d_v + hit_dim] =
                -INFINITY;
            fixture_store(&f, 0, hit_token, hit_token + 1);
            out = run(&f, isas[i]);
            for (uint32_t row = 0; row < f.n_rows; row++) {
                for (uint32_t h = 0; h < opts.n_head; h++) {
                    for (uint32_t dim = 0; dim < opts.d_v; dim++, at++) {
                        if (is_hit_by_v(&f, row, h, dim)) {
                            assert_false(isfinite(out[at]));
                        } else {
                            assert_memory_equal(&out[at], &clean[at], sizeof(float));
                        }
                    }
                }
            }
            free(out);
            free(clean);
            fixture_free(&f);
        }
    }
}

/* Rows of zeros in K (equal weights) and in V (scale 0 in q8). */
static void test_zeros(void **state)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (unsigned n = 0; n < QUIRE_FORMAT_COUNT; n++) {
        quire_format format = (quire_format)n;
        fixture_opts opts = damage_case(format);
        double *ref;
        fixture f;

        fixture_init(&f, &opts, &rng);
        memset(f.k[0], 0, (size_t)f.n_tokens * opts.n_kv_head * opts.d_k * sizeof(float));
        memset(f.v[0], 0, (size_t)100 * opts.n_kv_head * opts.d_v * sizeof(float));
        fixture_store(&f, 0, 0, opts.n_tokens[0]);
        ref = fixture_ref(&f);
        for (uint32_t i = 0; i < n_isas; i++) {
            attn_tolerance limit = attn_tolerance_of(isas[i], opts.k_format, opts.v_format);
            float *out = run(&f, isas[i]);

            assert_true(out[0] == 0.0f); /* row 0 sees zeros only */
            assert_true(fixture_error_of(&f, out, ref).total <= limit.total);
            free(out);
        }
        free(ref);
        fixture_free(&f);
    }
}

static int splits_of_one_tile(void **state)
{
    (void)state;
    split_entries = 1;
    return 0;
}

static int splits_of_three_tiles(void **state)
{
    (void)state;
    split_entries = 3;
    return 0;
}

static int windows_of_70(void **state)
{
    (void)state;
    split_entries = 2;
    window = 70;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nan_in_k),      cmocka_unit_test(test_nan_in_v),
        cmocka_unit_test(test_nan_in_q),      cmocka_unit_test(test_infinity_in_q),
        cmocka_unit_test(test_infinity_in_v), cmocka_unit_test(test_logit_of_minus_infinity),
        cmocka_unit_test(test_zeros),
    };
    int n_failed;

    rng.state = fixture_seed();
    n_failed = cmocka_run_group_tests_name("splits of one tile", tests, splits_of_one_tile, NULL);
    n_failed +=
        cmocka_run_group_tests_name("splits of three tiles", tests, splits_of_three_tiles, NULL);
    return n_failed +
           cmocka_run_group_tests_name("windows of 70 tokens", tests, windows_of_70, NULL);
}
