/* test_sealed.c - sealed formats: where codes lie, what they mean, how well rows come back, and
 * what damaged or enormous rows do.
 *
 * Codes are read here by the formula of quire/codec.h, one by one, so that encoder and decoder
 * cannot agree on a wrong layout.
 *
 * SPDX-License-Identifier: MIT */
#include <float.h>
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
#include "codec/sealed.h"
#include "seed.h"

#define TILE QUIRE_TILE_TOKENS

static quire_rng rng;

/* A tile of d dimensions, what it was made of, and what came back. */
typedef struct fixture {
    quire_format format;
    quire_side side;
    quire_tile_rows rows;
    float *x;
    float *y;
    unsigned char *tile;
    size_t tile_bytes;
} fixture;

static fixture fixture_take(quire_format format, quire_side side, uint32_t d, uint32_t stride)
{
    fixture f = { .format = format, .side = side, .rows = { d, 0, TILE, stride } };

    f.x = codec_take((size_t)TILE * stride * sizeof(float));
    f.y = codec_take((size_t)TILE * stride * sizeof(float));
    f.tile_bytes = quire_tile_bytes(format, side, d);
    f.tile = codec_take(f.tile_bytes);
    return f;
}

static void fixture_release(fixture *f)
{
    free(f->tile);
    free(f->y);
    free(f->x);
}

static void fixture_fill(fixture *f, uint32_t kind)
{
    for (size_t i = 0; i < (size_t)TILE * f->rows.stride; i++) {
        f->x[i] = codec_random_value(&rng, kind);
    }
}

static float *row_of(const fixture *f, uint32_t t)
{
    return f->x + t * f->rows.stride;
}

static float *decoded_row(const fixture *f, uint32_t t)
{
    return f->y + t * f->rows.stride;
}

static void encode(const quire_codec *codec, fixture *f)
{
    memset(f->tile, 0xa5, f->tile_bytes);
    (f->side == QUIRE_SIDE_K ? codec->encode_k : codec->encode_v)(f->format, &f->rows, f->x,
                                                                  f->tile);
}

static void decode(const quire_codec *codec, fixture *f)
{
    (f->side == QUIRE_SIDE_K ? codec->decode_k : codec->decode_v)(f->format, &f->rows, f->tile,
                                                                  f->y);
}

static void round_trip(fixture *f)
{
    const quire_codec *codec = quire_codec_get();

    encode(codec, f);
    decode(codec, f);
}

static uint16_t scale_bits(const fixture *f, uint32_t t)
{
    return ((const uint16_t *)(const void *)f->tile)[t];
}

static double scale_of(const fixture *f, uint32_t t)
{
    return (double)quire_f16_to_f32(scale_bits(f, t));
}

static double mean_of(const fixture *f, uint32_t i)
{
    const unsigned char *mean = f->tile + QUIRE_SEALED_SCALES_BYTES;

    return quire_sealed_is_centred(f->format, f->side)
               ? (double)quire_f16_to_f32(((const uint16_t *)(const void *)mean)[i])
               : 0.0;
}

/* The b bits of dimension i, slot t in the plane at `plane`, as quire/codec.h draws it. */
static uint32_t plane_bits(const fixture *f, const unsigned char *plane, uint32_t b, uint32_t i,
                           uint32_t t)
{
    uint32_t n = f->side == QUIRE_SIDE_K ? i : t;
    uint32_t g = n / (32 / b);
    uint32_t m = n % (32 / b) / 4;
    uint32_t j = n % 4;
    size_t byte = f->side == QUIRE_SIDE_K ? ((size_t)g * TILE + t) * 4 + j
                                          : ((size_t)g * f->rows.d + i) * 4 + j;

    return (uint32_t)plane[byte] >> (b * m) & ((1u << b) - 1);
}

static uint32_t code_of(const fixture *f, uint32_t i, uint32_t t)
{
    static const uint32_t bits[][2] = { { 4, 2 }, { 4, 1 }, { 4, 0 }, { 2, 1 } };
    const uint32_t *b = bits[f->format - QUIRE_FORMAT_Q6];
    uint32_t d = f->rows.d;
    size_t mean_bytes =
        quire_sealed_is_centred(f->format, f->side) ? ((size_t)d * 2 + 63) / 64 * 64 : 0;
    size_t low_bytes = f->side == QUIRE_SIDE_K ? (size_t)(d * b[0] + 31) / 32 * TILE * 4
                                               : (size_t)2 * b[0] * d * 4;
    const unsigned char *low = f->tile + TILE * 2 + mean_bytes;
    uint32_t code = plane_bits(f, low, b[0], i, t);

    return b[1] == 0 ? code : code | plane_bits(f, low + low_bytes, b[1], i, t) << b[0];
}

static int level_of(const fixture *f, uint32_t i, uint32_t t)
{
    return quire_sealed_levels(f->format, f->side)[code_of(f, i, t)];
}

typedef void (*check)(quire_format format, quire_side side);

static void for_each_kind(check run)
{
    for (unsigned format = QUIRE_FORMATS_DIRECT; format < QUIRE_FORMAT_COUNT; format++) {
        run((quire_format)format, QUIRE_SIDE_K);
        run((quire_format)format, QUIRE_SIDE_V);
    }
}

/* ---- sizes and levels ---- */

static void test_bits_per_value(void **state)
{
    /* K and V of q6 q5 q4 q3. Beside the codes: 16 bits per row, and 16 per dimension and 64 tokens
     * of K (at d = 48 the mean is padded to 64 dimensions, and so is a K plane of one bit). */
    static const struct {
        uint32_t d;
        double bits[4][2];
    } expected[] = {
        { 48,
          { { 20.0 / 3, 19.0 / 3 }, { 6.0, 16.0 / 3 }, { 14.0 / 3, 13.0 / 3 }, { 4, 10.0 / 3 } } },
        { 64, { { 6.5, 6.25 }, { 5.5, 5.25 }, { 4.5, 4.25 }, { 3.5, 3.25 } } },
        { 128, { { 6.375, 6.125 }, { 5.375, 5.125 }, { 4.375, 4.125 }, { 3.375, 3.125 } } },
    };

    (void)state;
    for (size_t n = 0; n < sizeof(expected) / sizeof(expected[0]); n++) {
        for (unsigned f = 0; f < 4; f++) {
            for (unsigned side = 0; side < 2; side++) {
                double bits = quire_format_bits((quire_format)(QUIRE_FORMAT_Q6 + f),
                                                (quire_side)side, expected[n].d);

                assert_true(fabs(bits - expected[n].bits[f][side]) < 1e-9);
            }
        }
    }
}

static void check_levels(quire_format format, quire_side side)
{
    const int8_t *levels = quire_sealed_levels(format, side);
    uint32_t n = quire_sealed_n_levels(format);

    assert_int_equal((uintptr_t)levels % 64, 0);
    for (uint32_t i = 0; i < QUIRE_SEALED_LEVELS_MAX; i++) {
        assert_int_equal(levels[i], levels[i % n]);
        assert_true(i % n == 0 || levels[i] > levels[i - 1]);
        assert_int_equal(levels[i], -levels[n - 1 - i % n]);
    }
    assert_int_equal(levels[n - 1], 127);
}

static void test_levels(void **state)
{
    (void)state;
    for_each_kind(check_levels);
}

/* ---- layout ---- */

static void check_layout(quire_format format, quire_side side)
{
    static const uint32_t dims[] = { 8, 40, 48, 64, 72, 128, 1024 };

    for (size_t n = 0; n < sizeof(dims) / sizeof(dims[0]); n++) {
        fixture f = fixture_take(format, side, dims[n], dims[n]);

        fixture_fill(&f, 0);
        round_trip(&f);
        for (uint32_t t = 0; t < TILE; t++) {
            for (uint32_t i = 0; i < dims[n]; i++) {
                float expected = (float)scale_of(&f, t) * (float)level_of(&f, i, t);

                expected += (float)mean_of(&f, i);
                assert_true(decoded_row(&f, t)[i] == expected);
            }
        }
        fixture_release(&f);
    }
}

static void test_layout(void **state)
{
    (void)state;
    for_each_kind(check_layout);
}

/* Bits of a K tile that belong to no dimension are zero, so that equal rows are equal bytes. */
static void check_padding(quire_format format, quire_side side)
{
    fixture f = fixture_take(format, side, 40, 40);
    const unsigned char *mean = f.tile + QUIRE_SEALED_SCALES_BYTES;
    uint32_t high = quire_sealed_high_bits(format);
    size_t high_offset = quire_sealed_high_offset(format, side, 40);

    fixture_fill(&f, 0);
    encode(quire_codec_get(), &f);
    for (size_t i = 80; i < quire_sealed_mean_bytes(format, side, 40); i++) {
        assert_int_equal(mean[i], 0);
    }
    for (uint32_t i = 40;
         side == QUIRE_SIDE_K && high != 0 && i < (40 * high + 31) / 32 * 32 / high; i++) {
        for (uint32_t t = 0; t < TILE; t++) {
            assert_int_equal(plane_bits(&f, f.tile + high_offset, high, i, t), 0);
        }
    }
    fixture_release(&f);
}

static void test_padding(void **state)
{
    (void)state;
    for_each_kind(check_padding);
}

/* Whole tiles by hash: bytes go to disk and must not change silently. */
static void test_golden_tiles(void **state)
{
    static const uint64_t expected[][2] = {
        { 0x04e672fd4c04cb64u, 0x6d8b1396765d6bc9u }, /* q6: K, V */
        { 0x505eff1ff31f7944u, 0x6a4a8e96defc3ffbu },
        { 0x3abb951417fad91cu, 0x2326d5bb11f78e2cu },
        { 0xaf6750b23a354c4du, 0x809d3b7515d892e7u },
    };
    bool is_same = true;

    (void)state;
    for (unsigned n = 0; n < 8; n++) {
        fixture f =
            fixture_take((quire_format)(QUIRE_FORMAT_Q6 + n / 2), (quire_side)(n % 2), 72, 80);
        uint64_t hash;

        for (uint32_t t = 0; t < TILE; t++) {
            for (uint32_t i = 0; i < 72; i++) {
                row_of(&f, t)[i] = (float)((int)((t * 37u + i * 101u + t * i) % 2003u) - 901) *
                                   0x1.8p-9f * (1.0f + (float)t * 0.25f);
            }
        }
        encode(quire_codec_get(), &f);
        hash = codec_hash(f.tile, f.tile_bytes);
        if (hash != expected[n / 2][n % 2]) {
            print_message("%s %c: 0x%016llx\n", quire_format_name(f.format), "KV"[n % 2],
                          (unsigned long long)hash);
            is_same = false;
        }
        fixture_release(&f);
    }
    assert_true(is_same);
}

/* ---- how well rows come back ---- */

/* Level units from v to the nearest level. */
static double distance(const fixture *f, double v)
{
    const int8_t *levels = quire_sealed_levels(f->format, f->side);
    double best = INFINITY;

    for (uint32_t k = 0; k < quire_sealed_n_levels(f->format); k++) {
        best = fmin(best, fabs(v - levels[k]));
    }
    return best;
}

/* Mean squared error of the levels on a standard normal distribution, at the best scale. */
static double normal_error(const fixture *f)
{
    double best = INFINITY;

    for (double scale = 0.006; scale < 0.06; scale *= 1.01) {
        double sum = 0.0;
        double weight = 0.0;

        for (double x = -6.0; x <= 6.0; x += 0.01) {
            double density = exp(-0.5 * x * x);
            double error = scale * distance(f, x / scale);

            sum += density * error * error;
            weight += density;
        }
        best = fmin(best, sum / weight);
    }
    return best;
}

static void check_error(quire_format format, quire_side side)
{
    /* The least possible with 64, 32, 16, 8 levels of any precision. Max, "Quantizing for minimum
     * distortion" (1960); 64 levels by the same iteration. */
    static const double lloyd_max[] = { 0.00065, 0.002499, 0.009497, 0.03454 };
    fixture f = fixture_take(format, side, 256, 256);
    double squares = 0.0;
    double errors = 0.0;
    double normal = normal_error(&f);

    for (uint32_t n = 0; n < 4; n++) {
        fixture_fill(&f, 0);
        round_trip(&f);
        for (size_t i = 0; i < (size_t)TILE * 256; i++) {
            double error = (double)f.x[i] - (double)f.y[i];

            squares += (double)f.x[i] * (double)f.x[i];
            errors += error * error;
        }
    }
    print_message("%s %c: error %.6f of the power, normal %.6f\n", quire_format_name(format),
                  "KV"[side], errors / squares, normal);
    assert_true(normal < lloyd_max[format - QUIRE_FORMAT_Q6] * 1.07);
    assert_true(errors / squares < normal * 1.03 && errors / squares > normal * 0.9);
    fixture_release(&f);
}

static void test_error_on_normal_rows(void **state)
{
    (void)state;
    for_each_kind(check_error);
}

/* Each scale is the best one for its row's codes, as exactly as f16 can hold it; and the codes are
 * those of the nearest levels, but for what the last step of the fit still moved the scale. */
static void check_rows_of(const fixture *f)
{
    double lost = 0.0;
    double least = 0.0;

    for (uint32_t t = 0; t < TILE; t++) {
        double scale = scale_of(f, t);
        double products = 0.0;
        double squares = 0.0;

        if (scale_bits(f, t) == QUIRE_F16_NAN_BITS) {
            continue;
        }
        for (uint32_t i = 0; i < f->rows.d; i++) {
            double y = (double)row_of(f, t)[i] - mean_of(f, i);
            double level = level_of(f, i, t);

            lost += (y - scale * level) * (y - scale * level);
            least += pow(scale * distance(f, y / scale), 2.0);
            products += y * level;
            squares += level * level;
        }
        assert_true(fabs(scale - products / squares) <= scale * 0x1.01p-11);
    }
    assert_true(lost <= least * 1.05);
}

static void check_fit(quire_format format, quire_side side)
{
    static const uint32_t dims[] = { 32, 48, 64, 80, 128 };

    for (uint32_t n = 0; n < 20; n++) {
        uint32_t d = dims[n % 5];
        fixture f = fixture_take(format, side, d, d + n);

        fixture_fill(&f, 0);
        round_trip(&f);
        check_rows_of(&f);
        fixture_release(&f);
    }
}

static void test_nearest_levels_and_best_scale(void **state)
{
    (void)state;
    for_each_kind(check_fit);
}

/* An offset common to all tokens costs nothing where the tile is centred: the same scales and
 * codes, and only the mean tells. Values are multiples of 2^-6, so that sums are exact. */
static void check_offset(quire_format format, quire_side side)
{
    fixture f = fixture_take(format, side, 64, 64);
    fixture g = fixture_take(format, side, 64, 64);
    size_t rest = quire_sealed_low_offset(format, side, 64);

    for (uint32_t t = 0; t < TILE / 2; t++) {
        for (uint32_t i = 0; i < 64; i++) {
            float x = (float)lrint(64.0 * quire_rng_normal(&rng)) * 0x1p-6f;

            row_of(&f, t)[i] = x;
            row_of(&f, t + TILE / 2)[i] = -x;
        }
    }
    for (size_t i = 0; i < (size_t)TILE * 64; i++) {
        g.x[i] = f.x[i] + 3.25f * (float)(i % 64 % 7);
    }
    encode(quire_codec_get(), &f);
    encode(quire_codec_get(), &g);
    if (quire_sealed_is_centred(format, side)) {
        assert_memory_equal(f.tile, g.tile, QUIRE_SEALED_SCALES_BYTES);
        assert_memory_equal(f.tile + rest, g.tile + rest, f.tile_bytes - rest);
        for (uint32_t i = 0; i < 64; i++) {
            assert_true(mean_of(&f, i) == 0.0);
            assert_true(mean_of(&g, i) == 3.25 * (i % 7));
        }
    } else {
        assert_int_equal(rest, QUIRE_SEALED_SCALES_BYTES);
        assert_memory_not_equal(f.tile, g.tile, QUIRE_SEALED_SCALES_BYTES);
    }
    fixture_release(&g);
    fixture_release(&f);
}

static void test_centring_is_exact(void **state)
{
    (void)state;
    for_each_kind(check_offset);
}

/* ---- rows out of the ordinary ---- */

/* NaN and Inf show in their row, and the others are stored as if that row were not there. */
static void check_damage(quire_format format, quire_side side)
{
    static const float damage[] = { NAN, INFINITY, -INFINITY };
    fixture f = fixture_take(format, side, 48, 48);

    fixture_fill(&f, 0);
    for (uint32_t n = 0; n < 3; n++) {
        row_of(&f, 5 + 20 * n)[7 + 10 * n] = damage[n];
    }
    round_trip(&f);
    for (uint32_t i = 0; i < 48 && quire_sealed_is_centred(format, side); i++) {
        double sum = 0.0;

        for (uint32_t t = 0; t < TILE; t++) {
            sum += t % 20 == 5 && t < 60 ? 0.0 : (double)row_of(&f, t)[i];
        }
        assert_true(fabs(mean_of(&f, i) - sum / (TILE - 3)) <= 0x1p-11 * fabs(sum / 61) + 1e-6);
    }
    for (uint32_t t = 0; t < TILE; t++) {
        bool is_damaged = t % 20 == 5 && t < 60;

        assert_int_equal(scale_bits(&f, t) == QUIRE_F16_NAN_BITS, is_damaged);
        for (uint32_t i = 0; i < 48; i++) {
            assert_int_equal(isnan(decoded_row(&f, t)[i]) != 0, is_damaged);
        }
    }
    check_rows_of(&f);
    for (size_t i = 0; i < (size_t)TILE * 48; i++) {
        f.x[i] = NAN;
    }
    round_trip(&f);
    for (uint32_t t = 0; t < TILE; t++) {
        assert_int_equal(scale_bits(&f, t), QUIRE_F16_NAN_BITS);
        assert_true(mean_of(&f, t % 48) == 0.0);
    }
    fixture_release(&f);
}

static void test_damaged_rows(void **state)
{
    (void)state;
    for_each_kind(check_damage);
}

/* Rows of zeros, rows equal to the mean, and rows below the smallest scale come back as nothing. */
static void check_zeros(quire_format format, quire_side side)
{
    static const float values[] = { 0.0f, 0x1.8p-140f, -1e-30f, 0.5f };
    fixture f = fixture_take(format, side, 40, 48);

    for (uint32_t n = 0; n < 4; n++) {
        bool is_constant = values[n] == 0.5f;

        for (size_t i = 0; i < (size_t)TILE * 48; i++) {
            f.x[i] = values[n];
        }
        round_trip(&f);
        for (uint32_t t = 0; t < TILE; t++) {
            if (!is_constant || quire_sealed_is_centred(format, side)) {
                assert_int_equal(scale_bits(&f, t), 0);
                assert_true(decoded_row(&f, t)[t % 40] == (is_constant ? 0.5f : 0.0f));
            } else {
                assert_true(fabsf(decoded_row(&f, t)[t % 40] - 0.5f) < 0.0003f);
            }
        }
    }
    fixture_release(&f);
}

static void test_zero_rows(void **state)
{
    (void)state;
    for_each_kind(check_zeros);
}

/* Where the scale is a subnormal f16, rows lose what its steps of 2^-24 lose. */
static void check_small(quire_format format, quire_side side)
{
    fixture f = fixture_take(format, side, 64, 64);

    for (uint32_t n = 0; n < 20; n++) {
        fixture_fill(&f, 0);
        for (size_t i = 0; i < (size_t)TILE * 64; i++) {
            f.x[i] *= ldexpf(1.0f, -8 - (int)n);
        }
        round_trip(&f);
        for (size_t i = 0; i < (size_t)TILE * 64; i++) {
            assert_true(fabsf(f.x[i] - f.y[i]) <=
                        127.0f * 0x1p-24f + 0.5f * fabsf(f.x[i]) + ldexpf(0.5f, -8 - (int)n));
        }
    }
    fixture_release(&f);
}

static void test_small_rows(void **state)
{
    (void)state;
    for_each_kind(check_small);
}

/* Values beyond what scale and mean can hold saturate and stay finite; other rows keep their
 * place. */
static void check_huge(quire_format format, quire_side side)
{
    const float most = 127.0f * 65504.0f;
    fixture f = fixture_take(format, side, 64, 64);

    for (size_t i = 0; i < (size_t)TILE * 64; i++) {
        f.x[i] = i % 3 == 0 ? -FLT_MAX : FLT_MAX;
    }
    round_trip(&f);
    for (size_t i = 0; i < (size_t)TILE * 64; i++) {
        assert_true(fabsf(f.y[i]) >= most - 2 * 65504.0f && fabsf(f.y[i]) <= most + 2 * 65504.0f);
        assert_int_equal(f.y[i] < 0.0f, i % 3 == 0);
    }
    fixture_fill(&f, 0);
    for (uint32_t i = 0; i < 64; i++) {
        row_of(&f, 11)[i] *= 5e37f;
    }
    round_trip(&f);
    for (uint32_t i = 0; i < 64; i++) {
        assert_true(isfinite(decoded_row(&f, 11)[i]));
        assert_true(fabs(mean_of(&f, i)) <= 65504.0 / TILE + 1.0);
    }
    fixture_release(&f);
}

static void test_huge_rows(void **state)
{
    (void)state;
    for_each_kind(check_huge);
}

/* ---- all ISAs ---- */

static void check_same(const quire_codec *codec, fixture *f)
{
    const quire_codec *ref = quire_codec_find("ref");
    size_t floats = TILE * f->rows.stride;
    unsigned char *expected = codec_take(f->tile_bytes);
    float *z = codec_take(floats * sizeof(float));
    quire_tile_rows whole = f->rows;

    encode(ref, f);
    memcpy(expected, f->tile, f->tile_bytes);
    encode(codec, f);
    assert_memory_equal(f->tile, expected, f->tile_bytes);

    f->rows.first_slot = quire_rng_below(&rng, TILE);
    f->rows.n_tokens = quire_rng_below(&rng, TILE - f->rows.first_slot + 1);
    memset(f->y, 0x5a, floats * sizeof(float));
    decode(ref, f);
    memcpy(z, f->y, floats * sizeof(float));
    memset(f->y, 0x5a, floats * sizeof(float));
    decode(codec, f);
    assert_memory_equal(f->y, z, floats * sizeof(float));
    f->rows = whole;
    free(z);
    free(expected);
}

static void test_same_bytes_on_every_isa(void **state)
{
    const quire_codec *codecs[CODEC_LIST_MAX];
    uint32_t n_codecs = codec_list(codecs);

    (void)state;
    for (uint32_t n = 0; n < 400; n++) {
        uint32_t d = 8 * (1 + quire_rng_below(&rng, n % 40 == 0 ? 128 : 20));
        fixture f = fixture_take((quire_format)(QUIRE_FORMAT_Q6 + n % 4), (quire_side)(n / 4 % 2),
                                 d, d + quire_rng_below(&rng, 20));

        fixture_fill(&f, quire_rng_below(&rng, 4));
        if (n % 5 == 0) { /* most rows, but not all, whole in a tile of any bits */
            for (uint32_t t = 0; t < TILE - 8; t++) {
                for (uint32_t i = 0; i < d; i++) {
                    row_of(&f, t)[i] = codec_random_value(&rng, n % 3);
                }
            }
        }
        for (uint32_t c = 0; c < n_codecs; c++) {
            check_same(codecs[c], &f);
        }
        fixture_release(&f);
    }
}

/* The rows of a tile are coded apart: where there is no mean, a row's codes do not depend on the
 * others. */
static void test_rows_are_independent(void **state)
{
    fixture f = fixture_take(QUIRE_FORMAT_Q5, QUIRE_SIDE_V, 64, 64);
    fixture g = fixture_take(QUIRE_FORMAT_Q5, QUIRE_SIDE_V, 64, 64);

    (void)state;
    fixture_fill(&f, 1);
    memcpy(g.x, f.x, (size_t)TILE * 64 * sizeof(float));
    for (uint32_t i = 0; i < 64; i++) {
        row_of(&g, 30)[i] = 1e30f;
    }
    encode(quire_codec_get(), &f);
    encode(quire_codec_get(), &g);
    for (uint32_t t = 0; t < TILE; t++) {
        for (uint32_t i = 0; i < 64 && t != 30; i++) {
            assert_int_equal(code_of(&f, i, t), code_of(&g, i, t));
        }
        assert_true(t == 30 || scale_bits(&f, t) == scale_bits(&g, t));
    }
    fixture_release(&g);
    fixture_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_per_value),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_golden_tiles),
        cmocka_unit_test(test_error_on_normal_rows),
        cmocka_unit_test(test_nearest_levels_and_best_scale),
        cmocka_unit_test(test_centring_is_exact),
        cmocka_unit_test(test_damaged_rows),
        cmocka_unit_test(test_zero_rows),
        cmocka_unit_test(test_small_rows),
        cmocka_unit_test(test_huge_rows),
        cmocka_unit_test(test_same_bytes_on_every_isa),
        cmocka_unit_test(test_rows_are_independent),
    };

    rng = test_rng(20260301u);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
