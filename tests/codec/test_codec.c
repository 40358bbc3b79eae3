/* test_codec.c - tile formats: their bytes, the decoded values, and the same bytes on every ISA.
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
#include "quire/codec.h"

#define TILE          QUIRE_TILE_TOKENS
#define DOC_BYTES_MAX (1u << 20)

static quire_rng rng;

/* ---- names and sizes ---- */

static void test_formats(void **state)
{
    quire_format format = QUIRE_FORMAT_BF16;

    (void)state;
    for (unsigned i = 0; i < QUIRE_FORMAT_COUNT; i++) {
        assert_int_equal(quire_format_parse(quire_format_name((quire_format)i), &format), QUIRE_OK);
        assert_int_equal(format, i);
    }
    format = QUIRE_FORMAT_F16;
    assert_int_equal(quire_format_parse("q7", &format), QUIRE_INVAL);
    assert_int_equal(quire_format_parse("", &format), QUIRE_INVAL);
    assert_int_equal(format, QUIRE_FORMAT_F16);
    assert_string_equal(quire_format_name(QUIRE_FORMAT_COUNT), "unknown");

    assert_int_equal(quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, 128), 64 * 128 * 4);
    assert_int_equal(quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_K, 48), 64 * 48 * 2);
    assert_int_equal(quire_tile_bytes(QUIRE_FORMAT_BF16, QUIRE_SIDE_K, 8), 64 * 8 * 2);
    assert_int_equal(quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, 128), 64 * 128 + 128);
    assert_int_equal(quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, 0), 0);
    assert_int_equal(quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, 12), 0);
    assert_int_equal(quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, QUIRE_HEAD_DIM_MAX + 8), 0);
    assert_int_equal(quire_tile_bytes(QUIRE_FORMAT_COUNT, QUIRE_SIDE_K, 64), 0);
    for (unsigned i = 0; i < QUIRE_FORMAT_COUNT; i++) {
        for (uint32_t d = 8; d <= QUIRE_HEAD_DIM_MAX; d += 8) {
            assert_int_equal(quire_tile_bytes((quire_format)i, QUIRE_SIDE_K, d) % 64, 0);
        }
    }
    assert_true(fabs(quire_format_bits(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, 128) - 8.125) < 1e-9);
    assert_true(fabs(quire_format_bits(QUIRE_FORMAT_F16, QUIRE_SIDE_K, 8) - 16.0) < 1e-9);
    assert_true(fabs(quire_format_bits(QUIRE_FORMAT_F16, QUIRE_SIDE_K, 0)) < 1e-9);
}

/* The sizes that docs/formats.md states are those that the library computes. */
static void test_documented_sizes(void **state)
{
    static const uint32_t dims[] = { 64, 80, 96, 128 };
    FILE *file = fopen(QUIRE_SOURCE_DIR "/docs/formats.md", "rb");
    char *text = codec_take(DOC_BYTES_MAX);
    size_t n;

    (void)state;
    assert_non_null(file);
    n = fread(text, 1, DOC_BYTES_MAX - 1, file);
    assert_int_equal(fclose(file), 0);
    assert_true(n > 0 && n < DOC_BYTES_MAX - 1);
    text[n] = '\0';
    for (unsigned f = 0; f < 2 * QUIRE_FORMAT_COUNT; f++) {
        quire_format format = (quire_format)(f / 2);
        char line[80];
        int used =
            snprintf(line, sizeof(line), "\n| %s | %c |", quire_format_name(format), "KV"[f % 2]);

        for (uint32_t i = 0; i < 4; i++) {
            used += snprintf(line + used, sizeof(line) - (size_t)used, " %.3f |",
                             quire_format_bits(format, (quire_side)(f % 2), dims[i]));
        }
        if (strstr(text, line) == NULL) {
            fail_msg("docs/formats.md lacks: %s", line + 1);
        }
    }
    free(text);
}

/* ---- scalar conversions ---- */

static void test_f16_every_value(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000u; h++) {
        float x = quire_f16_to_f32((uint16_t)h);
        uint32_t magnitude = h & 0x7fffu;

        if (magnitude > 0x7c00u) {
            assert_true(isnan(x));
            assert_int_equal(quire_f32_to_f16(x), h | 0x200u);
        } else {
            double expected = magnitude == 0x7c00u ? INFINITY
                              : magnitude < 0x400u
                                  ? ldexp(magnitude, -24)
                                  : ldexp(1024 + (magnitude & 0x3ffu), (int)(magnitude >> 10) - 25);

            assert_true((double)x == (h & 0x8000u ? -expected : expected));
            assert_int_equal(quire_f32_to_f16(x), h);
        }
    }
}

/* Between each pair of neighbours: below, at and above the midpoint; ties go to the even one. */
static void test_f16_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bffu; h++) {
        float low = quire_f16_to_f32((uint16_t)h);
        float high = quire_f16_to_f32((uint16_t)(h + 1));
        float middle = 0.5f * (low + high);

        assert_int_equal(quire_f32_to_f16(nextafterf(middle, 0.0f)), h);
        assert_int_equal(quire_f32_to_f16(middle), h + (h & 1u));
        assert_int_equal(quire_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(quire_f32_to_f16(-middle), 0x8000u | (h + (h & 1u)));
        assert_int_equal(quire_f32_to_f16_up(low), h);
        assert_int_equal(quire_f32_to_f16_up(nextafterf(low, INFINITY)), h + 1);
        assert_int_equal(quire_f32_to_f16_up(high), h + 1);
    }
}

static void test_f16_ends(void **state)
{
    (void)state;
    assert_int_equal(quire_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(quire_f32_to_f16(65519.9f), 0x7bff);
    assert_int_equal(quire_f32_to_f16(65520.0f), 0x7bff);
    assert_int_equal(quire_f32_to_f16(-3e38f), 0xfbff);
    assert_int_equal(quire_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(quire_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(quire_f32_to_f16(0x1p-25f), 0); /* tie with zero */
    assert_int_equal(quire_f32_to_f16(0x1.8p-25f), 1);
    assert_int_equal(quire_f32_to_f16(1e-40f), 0);
    assert_int_equal(quire_f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(quire_f32_to_f16_up(0.0f), 0);
    assert_int_equal(quire_f32_to_f16_up(1e-45f), 1);
    assert_int_equal(quire_f32_to_f16_up(65504.0f), 0x7bff);
    assert_int_equal(quire_f32_to_f16_up(65505.0f), 0x7bff);
    assert_int_equal(quire_f32_to_f16_up(1e30f), 0x7bff);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x10000u; b++) {
        float x = quire_bf16_to_f32((uint16_t)b);

        assert_int_equal(quire_f32_to_bf16(x), isnan(x) ? b | 0x40u : b);
    }
    assert_int_equal(quire_f32_to_bf16(1.00390625f), 0x3f80); /* 1 + 2^-8: tie to even */
    assert_int_equal(quire_f32_to_bf16(1.01171875f), 0x3f82);
    assert_int_equal(quire_f32_to_bf16(nextafterf(1.00390625f, 2.0f)), 0x3f81);
    assert_int_equal(quire_f32_to_bf16(3.4e38f), 0x7f7f);
    assert_int_equal(quire_f32_to_bf16(-3.4e38f), 0xff7f);
    assert_int_equal(quire_f32_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(quire_f32_to_bf16(-INFINITY), 0xff80);
}

/* ---- golden tiles ---- */

/* x[token][dimension] with few significant bits, so that every format shows its rounding. */
static float golden_value(uint32_t t, uint32_t i)
{
    return (float)((int)((t * 37u + i * 101u) % 2003u) - 1001) * 0x1.8p-9f *
           (1.0f + (float)t * 0.25f);
}

/* Literal bytes at the head of a small tile of each format, in the layout that codec.h draws. */
static void test_golden_bytes(void **state)
{
    static const float rows[2][8] = { { 1, -2, 3, -4, 5, -6, 7, -8 },
                                      { 0.5f, 0, 0.25f, 0, -0.5f, 0, 0.125f, 127 } };
    static const uint8_t f16_k[2][4] = { { 0x00, 0x3c, 0x00, 0x38 }, { 0x00, 0xc0, 0x00, 0x00 } };
    static const uint8_t bf16_k[8] = { 0x80, 0x3f, 0x00, 0xc0, 0x00, 0x3f, 0x00, 0x00 };
    static const uint8_t bf16_v[8] = { 0x80, 0x3f, 0x00, 0x3f, 0x00, 0xc0, 0x00, 0x00 };
    /* 8/127 rounded up to f16 is 0x2c09 (0.06304932); 127/127 = 1 is 0x3c00. */
    static const uint8_t q8_scale[4] = { 0x09, 0x2c, 0x00, 0x3c };
    static const uint8_t q8_k[8] = { 144, 96, 176, 65, 128, 128, 128, 128 };
    static const uint8_t q8_k_last[8] = { 207, 33, 239, 1, 128, 128, 128, 255 };
    static const int8_t q8_v[8] = { 16, 0, 0, 0, -32, 0, 0, 0 };
    const quire_codec *codec = quire_codec_find("ref");
    quire_tile_rows at = { .d = 8, .n_tokens = 2, .stride = 8 };
    unsigned char *tile = codec_take(quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, 8));

    (void)state;
    memset(tile, 0, quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, 8));
    codec->encode_k(QUIRE_FORMAT_F16, &at, rows[0], tile);
    assert_memory_equal(tile, f16_k[0], 4);
    assert_memory_equal(tile + (size_t)TILE * 2, f16_k[1], 4);
    codec->encode_k(QUIRE_FORMAT_BF16, &at, rows[0], tile);
    assert_memory_equal(tile, bf16_k, 8);
    codec->encode_v(QUIRE_FORMAT_BF16, &at, rows[0], tile);
    assert_memory_equal(tile, bf16_v, 8);
    codec->encode_k(QUIRE_FORMAT_Q8, &at, rows[0], tile);
    assert_memory_equal(tile, q8_scale, 4);
    assert_memory_equal(tile + 128, q8_k, 8);
    assert_memory_equal(tile + 128 + (size_t)TILE * 4, q8_k_last, 8);
    memset(tile, 0, quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, 8));
    codec->encode_v(QUIRE_FORMAT_Q8, &at, rows[0], tile);
    assert_memory_equal(tile, q8_scale, 4);
    assert_memory_equal(tile + 128, q8_v, 8);
    free(tile);
}

/* Whole tiles by hash: a change of any byte of any format shows. */
static void test_golden_tiles(void **state)
{
    static const uint64_t expected[QUIRE_FORMATS_DIRECT][2] = {
        [QUIRE_FORMAT_F32] = { 0x027435cb5ba0a050u, 0xd93ec6f55d7b4768u },
        [QUIRE_FORMAT_F16] = { 0x62b49004da4dc75eu, 0xc3ebe356cbb54f0au },
        [QUIRE_FORMAT_BF16] = { 0x7a0b5210b53e653bu, 0xcbcb11d5ef5b7e6fu },
        [QUIRE_FORMAT_Q8] = { 0x163a6e0c24cabb11u, 0x6d516dd7ed0fbde3u },
    };
    const quire_codec *codec = quire_codec_get();
    const uint32_t d = 48;
    quire_tile_rows at = { .d = d, .n_tokens = TILE, .stride = d };
    float *x = codec_take((size_t)TILE * d * sizeof(float));
    bool is_same = true;

    (void)state;
    for (uint32_t t = 0; t < TILE; t++) {
        for (uint32_t i = 0; i < d; i++) {
            x[t * d + i] = golden_value(t, i);
        }
    }
    for (unsigned f = 0; f < QUIRE_FORMATS_DIRECT; f++) {
        size_t bytes = quire_tile_bytes((quire_format)f, QUIRE_SIDE_K, d);
        unsigned char *tile = codec_take(bytes);
        uint64_t k;
        uint64_t v;

        codec->encode_k((quire_format)f, &at, x, tile);
        k = codec_hash(tile, bytes);
        codec->encode_v((quire_format)f, &at, x, tile);
        v = codec_hash(tile, bytes);
        if (k != expected[f][0] || v != expected[f][1]) {
            print_message("%s: 0x%016llx, 0x%016llx\n", quire_format_name((quire_format)f),
                          (unsigned long long)k, (unsigned long long)v);
            is_same = false;
        }
        free(tile);
    }
    assert_true(is_same);
    free(x);
}

/* ---- round trips ---- */

static double max_error(quire_format format, const float *row, uint32_t i, uint32_t d)
{
    double x = fabs((double)row[i]);
    double max = 0.0;

    for (uint32_t k = 0; k < d; k++) {
        max = fabs((double)row[k]) > max ? fabs((double)row[k]) : max;
    }
    switch (format) {
    case QUIRE_FORMAT_F16:
        return x > 65504.0 ? x - 65504.0 : fmax(x * 0x1p-11, 0x1p-25);
    case QUIRE_FORMAT_BF16:
        return fmax(x * 0x1p-8, 0x1p-134);
    case QUIRE_FORMAT_Q8: /* half a step, the scale being up to 2^-10 (or 2^-24) too large */
        return max > 127.0 * 65504.0 ? max - 127.0 * 65504.0 + 32752.0
                                     : 0.501 * fmax(max / 127.0 * (1.0 + 0x1p-10), 0x1p-24) +
                                           (max < 127 * 0x1p-24 ? 0x1p-24 : 0.0);
    default:
        return 0.0;
    }
}

static void test_round_trip(void **state)
{
    static const uint32_t dims[] = { 8, 48, 64, 80, 128 };
    const quire_codec *codec = quire_codec_find("ref");

    (void)state;
    for (uint32_t n = 0; n < 300; n++) {
        quire_format format = (quire_format)(n % QUIRE_FORMATS_DIRECT);
        uint32_t d = dims[quire_rng_below(&rng, 5)];
        uint32_t kind = quire_rng_below(&rng, 3);
        quire_tile_rows at = { .d = d, .n_tokens = TILE, .stride = d + 3 };
        unsigned char *tile = codec_take(quire_tile_bytes(format, QUIRE_SIDE_K, d));
        float *x = codec_take(TILE * at.stride * sizeof(float));
        float *y = codec_take(TILE * at.stride * sizeof(float));
        bool is_k = n % 2 == 0;

        for (size_t i = 0; i < TILE * at.stride; i++) {
            x[i] = codec_random_value(&rng, kind);
        }
        (is_k ? codec->encode_k : codec->encode_v)(format, &at, x, tile);
        (is_k ? codec->decode_k : codec->decode_v)(format, &at, tile, y);
        for (uint32_t t = 0; t < TILE; t++) {
            for (uint32_t i = 0; i < d; i++) {
                double error = fabs((double)x[t * at.stride + i] - (double)y[t * at.stride + i]);

                assert_true(error <= max_error(format, x + t * at.stride, i, d));
            }
        }
        free(y);
        free(x);
        free(tile);
    }
}

/* Encoding decoded values again loses nothing: forks and re-encoding do not drift. */
static void test_second_trip_is_exact(void **state)
{
    const quire_codec *codec = quire_codec_find("ref");
    const uint32_t d = 64;
    quire_tile_rows at = { .d = d, .n_tokens = TILE, .stride = d };
    unsigned char *first = codec_take(quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, d));
    unsigned char *second = codec_take(quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, d));
    float *x = codec_take((size_t)TILE * d * sizeof(float));

    (void)state;
    for (unsigned f = 0; f < QUIRE_FORMATS_DIRECT; f++) {
        if (f == QUIRE_FORMAT_Q8) {
            continue; /* the scale is rounded up, so the largest code may be 126 */
        }
        for (size_t i = 0; i < (size_t)TILE * d; i++) {
            x[i] = codec_random_value(&rng, 0);
        }
        codec->encode_v((quire_format)f, &at, x, first);
        codec->decode_v((quire_format)f, &at, first, x);
        codec->encode_v((quire_format)f, &at, x, second);
        assert_memory_equal(first, second, quire_tile_bytes((quire_format)f, QUIRE_SIDE_K, d));
    }
    free(x);
    free(second);
    free(first);
}

static void test_q8_rows(void **state)
{
    const quire_codec *codec = quire_codec_find("ref");
    quire_tile_rows at = { .d = 8, .first_slot = 5, .n_tokens = 1, .stride = 8 };
    float x[8] = { 0 };
    float y[8];
    unsigned char *tile = codec_take(quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, 8));
    const uint16_t *scale = (const uint16_t *)(const void *)tile;

    (void)state;
    codec->encode_k(QUIRE_FORMAT_Q8, &at, x, tile);
    assert_int_equal(scale[5], 0);
    codec->decode_k(QUIRE_FORMAT_Q8, &at, tile, y);
    assert_true(y[0] == 0.0f && y[7] == 0.0f);

    x[3] = NAN;
    codec->encode_v(QUIRE_FORMAT_Q8, &at, x, tile);
    codec->decode_v(QUIRE_FORMAT_Q8, &at, tile, y);
    assert_true(isnan(y[0]) && isnan(y[3]));
    x[3] = -INFINITY;
    codec->encode_k(QUIRE_FORMAT_Q8, &at, x, tile);
    codec->decode_k(QUIRE_FORMAT_Q8, &at, tile, y);
    assert_true(isnan(y[0]) && isnan(y[3]));

    x[3] = -1e30f; /* saturates */
    x[4] = 1e30f;
    codec->encode_k(QUIRE_FORMAT_Q8, &at, x, tile);
    codec->decode_k(QUIRE_FORMAT_Q8, &at, tile, y);
    assert_int_equal(scale[5], 0x7bff);
    assert_true(y[3] == -127.0f * 65504.0f && y[4] == 127.0f * 65504.0f && y[0] == 0.0f);

    x[3] = 1e-44f; /* a scale below the smallest f16 */
    x[4] = 0.0f;
    codec->encode_k(QUIRE_FORMAT_Q8, &at, x, tile);
    codec->decode_k(QUIRE_FORMAT_Q8, &at, tile, y);
    assert_true(y[3] == 0.0f);
    free(tile);
}

/* ---- all ISAs, all slots ---- */

/* Encode rows [first_slot, first_slot + n) into a tile of 0xa5 bytes: the same bytes as ref, none
 * outside the rows; then decode: the same floats. */
static void check_same(const quire_codec *codec, quire_format format, const quire_tile_rows *at,
                       const float *x)
{
    const quire_codec *ref = quire_codec_find("ref");
    size_t bytes = quire_tile_bytes(format, QUIRE_SIDE_K, at->d);
    size_t floats = at->n_tokens * at->stride;
    unsigned char *expected = codec_take(bytes);
    unsigned char *tile = codec_take(bytes);
    float *y = codec_take(floats * sizeof(float) + 64);
    float *z = codec_take(floats * sizeof(float) + 64);

    for (int is_k = 0; is_k < 2; is_k++) {
        memset(expected, 0xa5, bytes);
        memset(tile, 0xa5, bytes);
        (is_k ? ref->encode_k : ref->encode_v)(format, at, x, expected);
        (is_k ? codec->encode_k : codec->encode_v)(format, at, x, tile);
        assert_memory_equal(tile, expected, bytes);
        memset(y, 0x5a, floats * sizeof(float));
        memset(z, 0x5a, floats * sizeof(float));
        (is_k ? ref->decode_k : ref->decode_v)(format, at, tile, y);
        (is_k ? codec->decode_k : codec->decode_v)(format, at, tile, z);
        assert_memory_equal(z, y, floats * sizeof(float));
    }
    free(z);
    free(y);
    free(tile);
    free(expected);
}

static void test_same_bytes_on_every_isa(void **state)
{
    static const uint32_t dims[] = { 8, 16, 24, 40, 48, 64, 72, 80, 128, 256, 1024 };
    const quire_codec *codecs[CODEC_LIST_MAX];
    uint32_t n_codecs = codec_list(codecs);

    (void)state;
    for (uint32_t n = 0; n < 2000; n++) {
        uint32_t d = dims[quire_rng_below(&rng, n % 50 == 0 ? 11 : 9)];
        quire_format format = (quire_format)quire_rng_below(&rng, QUIRE_FORMATS_DIRECT);
        uint32_t first = n % 3 == 0 ? 0 : quire_rng_below(&rng, TILE);
        uint32_t most = TILE - first;
        quire_tile_rows at = { .d = d,
                               .first_slot = first,
                               .n_tokens = n % 3 == 1 ? 1 : most,
                               .stride = d + quire_rng_below(&rng, 20) };
        uint32_t kind = quire_rng_below(&rng, 4);
        float *x;

        at.n_tokens = n % 3 == 2 ? quire_rng_below(&rng, most + 1) : at.n_tokens;
        x = codec_take(TILE * at.stride * sizeof(float));
        for (size_t i = 0; i < at.n_tokens * at.stride; i++) {
            x[i] = codec_random_value(&rng, kind);
        }
        for (uint32_t c = 1; c < n_codecs; c++) {
            check_same(codecs[c], format, &at, x);
        }
        check_same(quire_codec_get(), format, &at, x);
        free(x);
    }
}

static void test_find(void **state)
{
    (void)state;
    assert_string_equal(quire_codec_find("ref")->isa, "ref");
    assert_string_equal(quire_codec_find("portable")->isa, "ref");
    assert_null(quire_codec_find("z80"));
#if defined(__aarch64__)
    assert_string_equal(quire_codec_find("neon")->isa, "ref");
#else
    assert_null(quire_codec_find("neon"));
#endif
}

static void test_get_follows_the_environment(void **state)
{
    const char *before = getenv("QUIRE_ISA");
    char *saved = before != NULL ? strdup(before) : NULL;

    (void)state;
    assert_int_equal(setenv("QUIRE_ISA", "ref", 1), 0);
    assert_string_equal(quire_codec_get()->isa, "ref");
    assert_int_equal(setenv("QUIRE_ISA", "z80", 1), 0);
    assert_non_null(quire_codec_get());
    assert_int_equal(unsetenv("QUIRE_ISA"), 0);
    assert_non_null(quire_codec_get());
    if (saved != NULL) {
        assert_int_equal(setenv("QUIRE_ISA", saved, 1), 0);
        free(saved);
    }
}

/* The V tile of a part of K holds K's numbers, of a sealed format but for the mean, on every ISA.
 */
static void check_v_of_k(const quire_codec *codec, quire_format format, uint32_t d_k, uint32_t d_v)
{
    const bool is_sealed = quire_format_is_sealed(format);
    const quire_format v_format = is_sealed ? QUIRE_FORMAT_Q8 : format;
    const quire_tile_rows k_rows = { .d = d_k, .n_tokens = TILE, .stride = d_k };
    const quire_tile_rows v_rows = { .d = d_v, .n_tokens = TILE, .stride = d_v };
    const size_t v_bytes = quire_tile_bytes(v_format, QUIRE_SIDE_V, d_v);
    float *x = codec_take((size_t)TILE * d_k * sizeof(float));
    float *v = codec_take((size_t)TILE * d_v * sizeof(float));
    unsigned char *k_tile = codec_take(quire_tile_bytes(format, QUIRE_SIDE_K, d_k));
    unsigned char *v_tile = codec_take(v_bytes + 64);

    for (size_t i = 0; i < (size_t)TILE * d_k; i++) {
        x[i] = codec_random_value(&rng, 0);
    }
    codec->encode_k(format, &k_rows, x, k_tile);
    codec->decode_k(format, &k_rows, k_tile, x);
    memset(v_tile, 0x5a, v_bytes + 64);
    codec->v_of_k(format, d_k, d_v, k_tile, v_tile);
    assert_int_equal(v_tile[v_bytes], 0x5a);
    codec->decode_v(v_format, &v_rows, v_tile, v);
    for (uint32_t i = 0; i < d_v; i++) {
        uint16_t mean = 0;

        if (is_sealed) {
            memcpy(&mean, k_tile + QUIRE_TILE_TOKENS * 2 + i * sizeof(mean), sizeof(mean));
        }
        for (uint32_t t = 0; t < TILE; t++) {
            const float value = v[t * d_v + i] + quire_f16_to_f32(mean);

            assert_memory_equal(&value, &x[t * d_k + i], sizeof(value));
        }
    }
    free(v_tile);
    free(k_tile);
    free(v);
    free(x);
}

static void test_v_of_k(void **state)
{
    static const uint32_t dims[][2] = { { 576, 512 }, { 288, 256 }, { 40, 24 }, { 8, 8 } };
    const quire_codec *codecs[CODEC_LIST_MAX];
    const uint32_t n = codec_list(codecs);

    (void)state;
    for (uint32_t c = 0; c < n; c++) {
        for (unsigned f = 0; f < QUIRE_FORMAT_COUNT; f++) {
            for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
                check_v_of_k(codecs[c], (quire_format)f, dims[i][0], dims[i][1]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_documented_sizes),
        cmocka_unit_test(test_f16_every_value),
        cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_f16_ends),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_golden_bytes),
        cmocka_unit_test(test_golden_tiles),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_second_trip_is_exact),
        cmocka_unit_test(test_q8_rows),
        cmocka_unit_test(test_v_of_k),
        cmocka_unit_test(test_same_bytes_on_every_isa),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_get_follows_the_environment),
    };
    const char *text = getenv("QUIRE_SEED");

    rng.state = text != NULL ? strtoull(text, NULL, 0) : 20260101u;
    print_message("QUIRE_SEED=%llu\n", (unsigned long long)rng.state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
