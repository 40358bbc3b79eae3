/* test_q8_rounding.c - K in 8 bit and queries, rounded with each other in view.
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

#include "codec/codec_support.h"
#include "codec/half.h"
#include "seed.h"

#define TILE      QUIRE_TILE_TOKENS
#define MOVES_MAX 4u /* the bound of q8_rounding_body.h */

static quire_rng rng;

/* A tile's worth of rows, dense, and of queries. */
typedef struct rows_fixture {
    quire_tile_rows at;
    size_t bytes;
    float *x;
    float *queries;
    unsigned char *tile;
    unsigned char *other;
} rows_fixture;

static void rows_init(rows_fixture *f, uint32_t d, uint32_t kind)
{
    f->bytes = quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, d);
    f->x = codec_take((size_t)TILE * d * sizeof(float));
    f->queries = codec_take((size_t)TILE * d * sizeof(float));
    f->tile = codec_take(f->bytes);
    f->other = codec_take(f->bytes);
    memset(f->tile, 0x5a, f->bytes);
    memset(f->other, 0x5a, f->bytes);
    f->at = (quire_tile_rows){
        .d = d, .n_tokens = TILE, .stride = d, .queries = f->queries, .queries_stride = d
    };
    for (size_t i = 0; i < (size_t)TILE * d; i++) {
        f->x[i] = codec_random_value(&rng, kind);
        f->queries[i] = codec_random_value(&rng, quire_rng_below(&rng, 2));
    }
}

static void rows_free(rows_fixture *f)
{
    free(f->x);
    free(f->queries);
    free(f->tile);
    free(f->other);
}

/* Code of dimension i, slot t; the layout is that of codec.h. */
static int code_of(const unsigned char *tile, uint32_t i, uint32_t t)
{
    return tile[TILE * 2 + ((size_t)(i / 4) * TILE + t) * 4 + i % 4] - 128;
}

static double scale_of(const unsigned char *tile, uint32_t t)
{
    return (double)quire_f16_to_f32(((const uint16_t *)(const void *)tile)[t]);
}

/* ---- the definition, step by step ---- */

typedef struct row_errors {
    uint32_t d;
    double e[QUIRE_HEAD_DIM_MAX];
    double u[QUIRE_HEAD_DIM_MAX];
    int codes[QUIRE_HEAD_DIM_MAX];
} row_errors;

static double dot_of(const double *a, const double *b, uint32_t d)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < d; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static double cost_of(const row_errors *r)
{
    double along = dot_of(r->e, r->u, r->d);

    return dot_of(r->e, r->e, r->d) + along * along;
}

/* The errors of the codes that a tile holds in slot t. */
static void errors_of(const rows_fixture *f, const unsigned char *tile, uint32_t t, row_errors *r)
{
    const float *x = f->x + (size_t)t * f->at.d;
    const float *queries = f->queries + (size_t)t * f->at.d;
    double squares = 0.0;

    r->d = f->at.d;
    for (uint32_t i = 0; i < r->d; i++) {
        squares += (double)queries[i] * (double)queries[i];
    }
    for (uint32_t i = 0; i < r->d; i++) {
        r->codes[i] = code_of(tile, i, t);
        r->e[i] = r->codes[i] - (double)x[i] / scale_of(tile, t);
        r->u[i] = (double)queries[i] / sqrt(squares / r->d);
    }
}

/* The move that lowers the cost most, made; false when there is none. Tries all of them. */
static bool move_best(row_errors *r)
{
    double best = cost_of(r);
    uint32_t at = r->d;

    for (uint32_t i = 0; i < r->d; i++) {
        double before = r->e[i];
        double cost;

        if (fabs(before) < 1e-9) {
            continue;
        }
        r->e[i] += before < 0.0 ? 1.0 : -1.0;
        cost = cost_of(r);
        r->e[i] = before;
        if (cost < best) {
            best = cost;
            at = i;
        }
    }
    if (at == r->d) {
        return false;
    }
    r->codes[at] += r->e[at] < 0.0 ? 1 : -1;
    r->e[at] += r->e[at] < 0.0 ? 1.0 : -1.0;
    return true;
}

/* The stored codes are the result of trying every move, beginning with the nearest codes. The
 * program counts in f32, so it may take the other one of two nearly equal moves: hence costs are
 * compared, and codes may differ in few rows. */
static void test_moves_are_the_best_ones(void **state)
{
    static const uint32_t dims[] = { 8, 40, 48, 64, 80, 128, 256 };
    const quire_codec *ref = quire_codec_find("ref");
    uint32_t n_rows = 0;
    uint32_t n_same = 0;
    uint32_t n_moved = 0;

    (void)state;
    for (size_t n = 0; n < sizeof(dims) / sizeof(dims[0]); n++) {
        row_errors stored;
        row_errors expected;
        rows_fixture f;

        rows_init(&f, dims[n], n % 2 == 0 ? 0 : 1);
        ref->encode_k(QUIRE_FORMAT_Q8, &f.at, f.x, f.tile);
        f.at.queries = NULL;
        ref->encode_k(QUIRE_FORMAT_Q8, &f.at, f.x, f.other);
        assert_memory_equal(f.tile, f.other, TILE * 2); /* scales stay */
        for (uint32_t t = 0; t < TILE; t++, n_rows++) {
            uint32_t n_differ = 0;

            errors_of(&f, f.tile, t, &stored);
            errors_of(&f, f.other, t, &expected);
            for (uint32_t i = 0; i < dims[n]; i++) {
                assert_in_range(stored.codes[i] + 127, 0, 254);
                assert_true(fabs(stored.e[i]) < 1.0);
                n_differ += stored.codes[i] != expected.codes[i];
            }
            assert_in_range(n_differ, 0, MOVES_MAX);
            n_moved += n_differ > 0;
            for (uint32_t m = 0; m < MOVES_MAX && move_best(&expected); m++) {
            }
            n_same += memcmp(stored.codes, expected.codes, dims[n] * sizeof(int)) == 0;
            assert_true(fabs(cost_of(&stored) - cost_of(&expected)) <
                        1e-3 * cost_of(&expected) + 1e-3);
        }
        rows_free(&f);
    }
    assert_true(n_same > n_rows * 98 / 100);
    assert_true(n_moved > n_rows / 2);
}

/* The purpose of the rounding: queries that resemble the token's own see less of the errors. */
static void test_errors_hide_from_such_queries(void **state)
{
    const quire_codec *codec = quire_codec_get();
    double seen[2] = { 0.0, 0.0 };
    double squares[2] = { 0.0, 0.0 };
    const uint32_t d = 64;

    (void)state;
    for (uint32_t n = 0; n < 20; n++) {
        rows_fixture f;

        rows_init(&f, d, 0);
        for (size_t i = 0; i < (size_t)TILE * d; i++) {
            f.queries[i] = codec_random_value(&rng, 0);
        }
        codec->encode_k(QUIRE_FORMAT_Q8, &f.at, f.x, f.tile);
        f.at.queries = NULL;
        codec->encode_k(QUIRE_FORMAT_Q8, &f.at, f.x, f.other);
        for (uint32_t t = 0; t < TILE; t++) {
            row_errors r;
            double q[QUIRE_HEAD_DIM_MAX];

            errors_of(&f, f.tile, t, &r);
            for (uint32_t i = 0; i < d; i++) { /* 80 % of its energy along the token's */
                q[i] = 0.894 * r.u[i] + 0.447 * quire_rng_normal(&rng);
            }
            for (uint32_t k = 0; k < 2; k++) {
                errors_of(&f, k == 0 ? f.tile : f.other, t, &r);
                seen[k] += dot_of(r.e, q, d) * dot_of(r.e, q, d);
                squares[k] += dot_of(r.e, r.e, d);
            }
        }
        rows_free(&f);
    }
    assert_true(seen[0] < 0.35 * seen[1]);
    assert_true(squares[0] < 1.05 * squares[1]);
}

/* ---- queries ---- */

/* The codes of a rounded query. Fails unless each rounded value is a whole multiple of the unit. */
static void query_errors_of(const float *q, const float *rounded, const float *key, uint32_t d,
                            row_errors *r)
{
    double squares = 0.0;
    double largest = 0.0;

    r->d = d;
    for (uint32_t i = 0; i < d; i++) {
        squares += (double)key[i] * (double)key[i];
        largest = fmax(largest, fabs((double)q[i]));
    }
    for (uint32_t i = 0; i < d; i++) {
        double code = (double)rounded[i] / (largest / 127.0);

        r->codes[i] = (int)lrint(code);
        assert_true(fabs(code - r->codes[i]) < 1e-4);
        r->e[i] = r->codes[i] - (double)q[i] / (largest / 127.0);
        r->u[i] = (double)key[i] / sqrt(squares / d);
    }
}

/* Pack the rounded query as kernels do. Fails unless the packed codes are the same. */
static void check_packed(const row_errors *r, const float *rounded, float scale)
{
    float max = 0.0f;

    for (uint32_t i = 0; i < r->d; i++) {
        max = fmaxf(max, fabsf(scale * rounded[i]));
    }
    for (uint32_t i = 0; i < r->d; i++) {
        assert_int_equal(lrintf(scale * rounded[i] * (127.0f / max)), r->codes[i]);
    }
}

static void test_queries_take_the_best_moves(void **state)
{
    static const uint32_t dims[] = { 8, 24, 64, 80, 128, 1024 };
    static float q[8 * QUIRE_HEAD_DIM_MAX], rounded[8 * QUIRE_HEAD_DIM_MAX];
    static float key[QUIRE_HEAD_DIM_MAX];
    static row_errors r;
    static row_errors expected;
    uint32_t n_rows = 0;
    uint32_t n_same = 0;
    uint32_t n_moved = 0;

    (void)state;
    for (uint32_t n = 0; n < 150; n++) {
        const uint32_t d = dims[n % (n % 10 == 0 ? 6 : 5)];
        const uint32_t n_queries = 1 + n % 8;

        for (uint32_t i = 0; i < n_queries * d; i++) {
            rounded[i] = q[i] = codec_random_value(&rng, n % 2);
            key[i % d] = codec_random_value(&rng, n / 2 % 2);
        }
        quire_codec_get()->round_queries(d, n_queries, key, rounded);
        for (uint32_t k = 0; k < n_queries; k++, n_rows++) {
            uint32_t n_differ = 0;

            query_errors_of(q + (size_t)k * d, rounded + (size_t)k * d, key, d, &r);
            check_packed(&r, rounded + (size_t)k * d, 0.125f);
            check_packed(&r, rounded + (size_t)k * d, 0.088388346f);
            expected = r;
            for (uint32_t i = 0; i < d; i++) { /* to nearest; the largest is no candidate */
                expected.codes[i] = (int)lrint(r.codes[i] - r.e[i]);
                expected.e[i] += expected.codes[i] - r.codes[i];
                n_differ += expected.codes[i] != r.codes[i];
                assert_true(fabs(r.e[i]) < 1.0 && abs(r.codes[i]) <= 127);
            }
            assert_in_range(n_differ, 0, MOVES_MAX);
            n_moved += n_differ > 0;
            for (uint32_t m = 0; m < MOVES_MAX && move_best(&expected); m++) {
            }
            n_same += memcmp(r.codes, expected.codes, d * sizeof(int)) == 0;
        }
    }
    assert_true(n_same > n_rows * 95 / 100);
    assert_true(n_moved > n_rows / 2);
}

/* Any queries, any keys: the same floats from all codecs, no other touched. */
static void test_same_queries_on_every_isa(void **state)
{
    static const uint32_t dims[] = { 8, 16, 24, 40, 48, 64, 72, 80, 128, 256, 1024 };
    static float q[9 * QUIRE_HEAD_DIM_MAX], ref[9 * QUIRE_HEAD_DIM_MAX];
    static float other[9 * QUIRE_HEAD_DIM_MAX];
    static float key[QUIRE_HEAD_DIM_MAX];
    const quire_codec *codecs[CODEC_LIST_MAX];
    uint32_t n_codecs = codec_list(codecs);

    (void)state;
    for (uint32_t n = 0; n < 2000; n++) {
        const uint32_t d = dims[quire_rng_below(&rng, n % 50 == 0 ? 11 : 9)];
        const uint32_t n_queries = quire_rng_below(&rng, 9);

        for (uint32_t i = 0; i < 9 * d; i++) {
            q[i] = codec_random_value(&rng, n % 4);
            key[i % d] = codec_random_value(&rng, n / 4 % 3);
        }
        memcpy(ref, q, (size_t)9 * d * sizeof(float));
        codecs[0]->round_queries(d, n_queries, key, ref);
        assert_memory_equal(ref + (size_t)n_queries * d, q + (size_t)n_queries * d,
                            (9 - n_queries) * d * sizeof(float));
        for (uint32_t c = 1; c < n_codecs; c++) {
            memcpy(other, q, (size_t)9 * d * sizeof(float));
            codecs[c]->round_queries(d, n_queries, key, other);
            assert_memory_equal(other, ref, (size_t)9 * d * sizeof(float));
        }
    }
}

/* Zeros, values too small or too large, NaN and Inf are left to the kernels: such queries stay
 * unchanged. */
static void test_queries_that_stay(void **state)
{
    static const float values[] = { 0.0f, 0x1p-149f, 0x1p-61f, 3e38f, INFINITY, -INFINITY, NAN };
    const uint32_t d = 64;
    float q[64];
    float key[64];
    float before[64];

    (void)state;
    for (size_t n = 0; n < 2 * sizeof(values) / sizeof(values[0]); n++) {
        const float value = values[n / 2];
        float *spoilt = n % 2 == 0 ? q : key;

        for (uint32_t i = 0; i < d; i++) {
            q[i] = codec_random_value(&rng, 0);
            key[i] = codec_random_value(&rng, 0);
        }
        for (uint32_t i = 0; i < d; i++) { /* one large value does, of small ones all have to be */
            spoilt[i] = fabsf(value) < 1.0f || i == 17 + n ? value * 0x1p-1f : spoilt[i];
        }
        memcpy(before, q, sizeof(q));
        quire_codec_get()->round_queries(d, 1, key, q);
        assert_memory_equal(q, before, sizeof(q));
        quire_codec_find("ref")->round_queries(d, 1, key, q);
        assert_memory_equal(q, before, sizeof(q));
    }
}

/* ---- bytes ---- */

/* Tiles with queries by hash: a change of any byte shows. */
static void test_golden_tile(void **state)
{
    const uint64_t expected = 0x0dde18f731279af5u;
    rows_fixture f;
    const uint32_t d = 48;

    (void)state;
    rows_init(&f, d, 0);
    for (uint32_t t = 0; t < TILE; t++) {
        for (uint32_t i = 0; i < d; i++) {
            f.x[t * d + i] = (float)((int)((t * 37u + i * 101u) % 2003u) - 1001) * 0x1.8p-9f;
            f.queries[t * d + i] = (float)((int)((t * 53u + i * 89u) % 1009u) - 504) * 0x1p-5f;
        }
    }
    quire_codec_get()->encode_k(QUIRE_FORMAT_Q8, &f.at, f.x, f.tile);
    if (codec_hash(f.tile, f.bytes) != expected) {
        fail_msg("0x%016llx", (unsigned long long)codec_hash(f.tile, f.bytes));
    }
    rows_free(&f);
}

static void test_golden_queries(void **state)
{
    const uint64_t expected = 0xc8ffebadb9c336c9u;
    float q[16 * 48];
    float key[48];

    (void)state;
    for (uint32_t i = 0; i < 16 * 48; i++) {
        q[i] = (float)((int)((i / 48 * 41u + i % 48 * 97u) % 1999u) - 999) * 0x1p-8f;
        key[i % 48] = (float)((int)(i % 48 * 71u % 1013u) - 506) * 0x1p-6f;
    }
    quire_codec_get()->round_queries(48, 16, key, q);
    if (codec_hash(q, sizeof(q)) != expected) {
        fail_msg("0x%016llx", (unsigned long long)codec_hash(q, sizeof(q)));
    }
}

/* Any rows, any queries, in any slots: the same bytes from all codecs, and none in other slots. */
static void test_same_bytes_on_every_isa(void **state)
{
    static const uint32_t dims[] = { 8, 16, 24, 40, 48, 64, 72, 80, 128, 256, 1024 };
    const quire_codec *codecs[CODEC_LIST_MAX];
    uint32_t n_codecs = codec_list(codecs);

    (void)state;
    for (uint32_t n = 0; n < 600; n++) {
        uint32_t d = dims[quire_rng_below(&rng, n % 50 == 0 ? 11 : 9)];
        uint32_t stride = d + quire_rng_below(&rng, 20);
        rows_fixture f;

        rows_init(&f, d, quire_rng_below(&rng, 4));
        f.at.first_slot = quire_rng_below(&rng, TILE);
        f.at.n_tokens = 1 + quire_rng_below(&rng, TILE - f.at.first_slot);
        f.at.queries_stride = stride;
        free(f.queries);
        f.queries = codec_take(TILE * stride * sizeof(float));
        for (size_t i = 0; i < (size_t)TILE * stride; i++) {
            f.queries[i] = codec_random_value(&rng, n % 4);
        }
        f.at.queries = f.queries;
        codecs[0]->encode_k(QUIRE_FORMAT_Q8, &f.at, f.x, f.other);
        for (uint32_t t = 0; t < TILE; t++) {
            if (t < f.at.first_slot || t >= f.at.first_slot + f.at.n_tokens) {
                assert_int_equal(code_of(f.other, d - 1, t), 0x5a - 128);
            }
        }
        for (uint32_t c = 1; c < n_codecs; c++) {
            memset(f.tile, 0x5a, f.bytes);
            codecs[c]->encode_k(QUIRE_FORMAT_Q8, &f.at, f.x, f.tile);
            assert_memory_equal(f.tile, f.other, f.bytes);
        }
        rows_free(&f);
    }
}

/* ---- queries without effect ---- */

static void check_without_effect(rows_fixture *f, quire_format format)
{
    const size_t bytes = quire_tile_bytes(format, QUIRE_SIDE_K, f->at.d);
    unsigned char *tile = codec_take(bytes);
    unsigned char *plain = codec_take(bytes);
    const quire_codec *codecs[CODEC_LIST_MAX];
    uint32_t n_codecs = codec_list(codecs);
    quire_tile_rows at = f->at;

    for (uint32_t c = 0; c < n_codecs; c++) {
        at.queries = f->queries;
        codecs[c]->encode_k(format, &at, f->x, tile);
        at.queries = NULL;
        codecs[c]->encode_k(format, &at, f->x, plain);
        assert_memory_equal(tile, plain, bytes);
        if (format == QUIRE_FORMAT_Q8) { /* V's tiles are as large */
            codecs[c]->encode_v(format, &at, f->x, plain);
            at.queries = f->queries;
            codecs[c]->encode_v(format, &at, f->x, tile);
            assert_memory_equal(tile, plain, bytes);
        }
    }
    free(tile);
    free(plain);
}

static void test_queries_without_a_direction(void **state)
{
    static const float values[] = { 0.0f, -0.0f, 1e-30f, 0x1p-149f, 3e38f, INFINITY, NAN };
    const uint32_t d = 64;

    (void)state;
    for (size_t n = 0; n < sizeof(values) / sizeof(values[0]); n++) {
        rows_fixture f;

        rows_init(&f, d, 0);
        for (uint32_t t = 0; t < TILE; t++) {
            bool is_one = fabsf(values[n]) > 1.0f || isnan(values[n]); /* one spoils the row */

            for (uint32_t i = 0; i < d; i++) {
                f.queries[t * d + i] = is_one && i != t ? f.queries[t * d + i] : values[n];
            }
        }
        check_without_effect(&f, QUIRE_FORMAT_Q8);
        rows_free(&f);
    }
}

/* Rows of whole numbers times the scale have no errors to hide, nor have rows of zeros. Rows with
 * NaN or Inf are stored as without queries. */
static void test_rows_without_errors(void **state)
{
    const uint32_t d = 40;
    rows_fixture f;

    (void)state;
    rows_init(&f, d, 0);
    for (uint32_t t = 0; t < TILE; t++) {
        for (uint32_t i = 0; i < d; i++) {
            f.x[t * d + i] = (float)((int)quire_rng_below(&rng, 255) - 127);
        }
        f.x[t * d + t % d] = t % 2 == 0 ? 127.0f : -127.0f;
    }
    memset(f.x + d, 0, d * sizeof(float));
    f.x[2 * d + 5] = NAN;
    f.x[3 * d + 39] = -INFINITY;
    check_without_effect(&f, QUIRE_FORMAT_Q8);
    rows_free(&f);
}

static void test_other_formats(void **state)
{
    (void)state;
    for (unsigned format = 0; format < QUIRE_FORMAT_COUNT; format++) {
        rows_fixture f;

        if (format != QUIRE_FORMAT_Q8) {
            rows_init(&f, 48, 0);
            check_without_effect(&f, (quire_format)format);
            rows_free(&f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves_are_the_best_ones),
        cmocka_unit_test(test_errors_hide_from_such_queries),
        cmocka_unit_test(test_queries_take_the_best_moves),
        cmocka_unit_test(test_same_queries_on_every_isa),
        cmocka_unit_test(test_queries_that_stay),
        cmocka_unit_test(test_golden_tile),
        cmocka_unit_test(test_golden_queries),
        cmocka_unit_test(test_same_bytes_on_every_isa),
        cmocka_unit_test(test_queries_without_a_direction),
        cmocka_unit_test(test_rows_without_errors),
        cmocka_unit_test(test_other_formats),
    };

    rng = test_rng(20261123u);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
