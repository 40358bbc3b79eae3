/* codec_avx2.c - tile formats with AVX2 and F16C; the same bytes and floats as codec_ref.c.
 *
 * Rows are first converted in token order, then moved to the tile's layout. K is transposed in
 * blocks of 8 tokens. The moved unit is the bits that a tile keeps together for one token: 32 bits
 * in f32 (one dimension), bf16 (two) and q8 (four), 16 bits in f16. V interleaves 2 or 4 whole
 * tokens. Rows that do not fill a block, such as single tokens of decode, are stored unit by unit.
 * No code reads a tile back, because other sequences may write neighbouring slots.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "codec/codec_internal.h"
#include "codec/half.h"
#include "codec/sealed.h"
#include "codec/v_of_k_body.h"

#include <immintrin.h>
#include <string.h>

#define Q8_AT_ONCE   8u
#define Q8_MIN(a, b) ((q8_floats)_mm256_min_ps((__m256)(a), (__m256)(b)))
#include "codec/q8_rounding_body.h"

#define TILE  QUIRE_TILE_TOKENS
#define BLOCK 8u /* tokens that are converted and transposed at once */

typedef struct rows_buffer {
    _Alignas(64) unsigned char bytes[BLOCK * QUIRE_HEAD_DIM_MAX * 2];
} rows_buffer;

/* ---- one row ---- */

static void convert_f16(const float *x, uint32_t d, uint16_t *y)
{
    const __m256 most = _mm256_set1_ps(65504.0f);
    const __m256 infinity = _mm256_castsi256_ps(_mm256_set1_epi32((int)QUIRE_F32_INF_BITS));
    const __m256 sign = _mm256_set1_ps(-0.0f);

    for (uint32_t i = 0; i < d; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m256 is_infinite = _mm256_cmp_ps(_mm256_andnot_ps(sign, v), infinity, _CMP_EQ_OQ);
        /* NaN comes through min and max as their second operand. */
        __m256 finite = _mm256_max_ps(_mm256_xor_ps(sign, most), _mm256_min_ps(most, v));

        v = _mm256_blendv_ps(finite, v, is_infinite);
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
}

static void convert_bf16(const float *x, uint32_t d, uint16_t *y)
{
    const __m256i magnitude_mask = _mm256_set1_epi32(0x7fffffff);

    for (uint32_t i = 0; i < d; i += 8) {
        __m256i u = _mm256_castps_si256(_mm256_loadu_ps(x + i));
        __m256i magnitude = _mm256_and_si256(u, magnitude_mask);
        __m256i upper = _mm256_srli_epi32(u, 16);
        __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        __m256i rounded = _mm256_srli_epi32(
            _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
        /* Too large to round up, infinite or NaN: cut, and keep NaN quiet. */
        __m256i is_top = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f7f0000));
        __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)QUIRE_F32_INF_BITS));
        __m256i cut = _mm256_or_si256(upper, _mm256_and_si256(is_nan, _mm256_set1_epi32(0x40)));
        __m256i z = _mm256_blendv_epi8(rounded, cut, is_top);
        __m128i packed =
            _mm_packus_epi32(_mm256_castsi256_si128(z), _mm256_extracti128_si256(z, 1));

        _mm_storeu_si128((__m128i *)(void *)(y + i), packed);
    }
}

static uint32_t max_bits_of(const float *x, uint32_t d)
{
    const __m256i magnitude_mask = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_setzero_si256();
    __m128i m;

    for (uint32_t i = 0; i < d; i += 8) {
        __m256i u = _mm256_castps_si256(_mm256_loadu_ps(x + i));

        max = _mm256_max_epu32(max, _mm256_and_si256(u, magnitude_mask));
    }
    m = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* Codes of one row; returns its scale. */
static quire_q8_scale convert_q8(const float *x, uint32_t d, int8_t *y)
{
    quire_q8_scale scale = quire_q8_scale_of(max_bits_of(x, d));

    if (scale.inverse == 0.0f) {
        memset(y, 0, d);
        return scale;
    }
    for (uint32_t i = 0; i < d; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale.inverse));
        __m256i n;
        __m128i words;

        v = _mm256_max_ps(_mm256_min_ps(v, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-127.0f));
        n = _mm256_cvtps_epi32(v);
        words = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
        _mm_storel_epi64((__m128i *)(void *)(y + i), _mm_packs_epi16(words, words));
    }
    return scale;
}

/* Codes of one row of K as they are stored, + 128; returns its scale's bits. */
static uint16_t convert_k_q8(const float *x, const float *queries, uint32_t d, int8_t *y)
{
    quire_q8_scale scale = convert_q8(x, d, y);

    if (queries != NULL) {
        q8_k_row_round(d, x, scale.inverse, queries, y);
    }
    for (uint32_t i = 0; i < d; i++) {
        y[i] ^= INT8_MIN;
    }
    return scale.bits;
}

/* ---- K: transposed ---- */

/* 8 rows (stride_bytes apart) of n units of 32 bits to columns of a tile whose rows are 64 units.
 */
static void transpose_32(const void *rows, size_t stride_bytes, uint32_t n, void *to)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 r[8];
        __m256 a[8];

        for (uint32_t k = 0; k < 8; k++) {
            const char *row = (const char *)rows + k * stride_bytes;

            r[k] = _mm256_loadu_ps((const float *)(const void *)row + i);
        }
        for (uint32_t k = 0; k < 8; k += 2) {
            a[k] = _mm256_unpacklo_ps(r[k], r[k + 1]);
            a[k + 1] = _mm256_unpackhi_ps(r[k], r[k + 1]);
        }
        for (uint32_t k = 0; k < 8; k += 4) {
            r[k] = _mm256_shuffle_ps(a[k], a[k + 2], 0x44);
            r[k + 1] = _mm256_shuffle_ps(a[k], a[k + 2], 0xee);
            r[k + 2] = _mm256_shuffle_ps(a[k + 1], a[k + 3], 0x44);
            r[k + 3] = _mm256_shuffle_ps(a[k + 1], a[k + 3], 0xee);
        }
        for (uint32_t k = 0; k < 4; k++) {
            float *column = (float *)to + (size_t)(i + k) * TILE;

            if (i + k < n) {
                _mm256_storeu_ps(column, _mm256_permute2f128_ps(r[k], r[k + 4], 0x20));
            }
            if (i + k + 4 < n) {
                _mm256_storeu_ps(column + 4 * TILE, _mm256_permute2f128_ps(r[k], r[k + 4], 0x31));
            }
        }
    }
}

/* The same for units of 16 bits; n is a multiple of 8. */
static void transpose_16(const uint16_t *rows, uint32_t n, uint16_t *to)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m128i r[8];
        __m128i a[8];

        for (uint32_t k = 0; k < 8; k++) {
            r[k] = _mm_loadu_si128((const __m128i *)(const void *)(rows + (size_t)k * n + i));
        }
        for (uint32_t k = 0; k < 8; k += 2) {
            a[k] = _mm_unpacklo_epi16(r[k], r[k + 1]);
            a[k + 1] = _mm_unpackhi_epi16(r[k], r[k + 1]);
        }
        for (uint32_t k = 0; k < 8; k += 4) {
            r[k] = _mm_unpacklo_epi32(a[k], a[k + 2]);
            r[k + 1] = _mm_unpackhi_epi32(a[k], a[k + 2]);
            r[k + 2] = _mm_unpacklo_epi32(a[k + 1], a[k + 3]);
            r[k + 3] = _mm_unpackhi_epi32(a[k + 1], a[k + 3]);
        }
        for (uint32_t k = 0; k < 4; k++) {
            uint16_t *column = to + (size_t)(i + 2 * k) * TILE;

            _mm_storeu_si128((__m128i *)(void *)column, _mm_unpacklo_epi64(r[k], r[k + 4]));
            _mm_storeu_si128((__m128i *)(void *)(column + TILE),
                             _mm_unpackhi_epi64(r[k], r[k + 4]));
        }
    }
}

/* Store n_rows converted rows of n units from slot s on. */
static void scatter_32(const void *rows, size_t stride_bytes, uint32_t n_rows, uint32_t n, void *to)
{
    if (n_rows == BLOCK) {
        transpose_32(rows, stride_bytes, n, to);
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const char *row = (const char *)rows + r * stride_bytes;

        for (uint32_t i = 0; i < n; i++) {
            memcpy((uint32_t *)to + (size_t)i * TILE + r, row + i * 4u, 4);
        }
    }
}

static void scatter_16(const uint16_t *rows, uint32_t n_rows, uint32_t n, uint16_t *to)
{
    if (n_rows == BLOCK) {
        transpose_16(rows, n, to);
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            to[(size_t)i * TILE + r] = rows[(size_t)r * n + i];
        }
    }
}

/* Up to 8 rows of K from row `first` on. */
static void encode_k_block(quire_format format, const quire_tile_rows *rows, uint32_t first,
                           uint32_t n_rows, const float *x, void *tile)
{
    rows_buffer buffer;
    uint32_t d = rows->d;
    uint32_t s = rows->first_slot + first;
    uint16_t *halves = (uint16_t *)(void *)buffer.bytes;

    switch (format) {
    case QUIRE_FORMAT_F32:
        scatter_32(x, rows->stride * sizeof(float), n_rows, d, (float *)tile + s);
        break;
    case QUIRE_FORMAT_F16:
        for (uint32_t r = 0; r < n_rows; r++) {
            convert_f16(x + r * rows->stride, d, halves + (size_t)r * d);
        }
        scatter_16(halves, n_rows, d, (uint16_t *)tile + s);
        break;
    case QUIRE_FORMAT_BF16:
        for (uint32_t r = 0; r < n_rows; r++) {
            convert_bf16(x + r * rows->stride, d, halves + (size_t)r * d);
        }
        scatter_32(halves, (size_t)d * 2, n_rows, d / 2, (uint32_t *)tile + s);
        break;
    case QUIRE_FORMAT_Q8:
        for (uint32_t r = 0; r < n_rows; r++) {
            ((uint16_t *)tile)[s + r] =
                convert_k_q8(x + r * rows->stride, q8_queries_of(rows, first + r), d,
                             (int8_t *)buffer.bytes + (size_t)r * d);
        }
        scatter_32(buffer.bytes, d, n_rows, d / 4,
                   (uint32_t *)(void *)((char *)tile + QUIRE_Q8_CODES_OFFSET) + s);
        break;
    default: /* sealed formats go by tiles */
        break;
    }
}

/* ---- V: tokens interleaved ---- */

/* Two rows of 16-bit units, element by element. */
static void interleave_2(const uint16_t *rows, uint32_t d, uint16_t *to)
{
    for (uint32_t i = 0; i < d; i += 8) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(rows + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(rows + d + i));

        _mm_storeu_si128((__m128i *)(void *)(to + 2u * i), _mm_unpacklo_epi16(a, b));
        _mm_storeu_si128((__m128i *)(void *)(to + 2u * i + 8), _mm_unpackhi_epi16(a, b));
    }
}

/* Four rows of bytes, element by element. */
static void interleave_4(const uint8_t *rows, uint32_t d, uint8_t *to)
{
    for (uint32_t i = 0; i < d; i += 8) {
        __m128i r[4];
        __m128i a;
        __m128i b;

        for (uint32_t k = 0; k < 4; k++) {
            r[k] = _mm_loadl_epi64((const __m128i *)(const void *)(rows + (size_t)k * d + i));
        }
        a = _mm_unpacklo_epi8(r[0], r[1]);
        b = _mm_unpacklo_epi8(r[2], r[3]);
        _mm_storeu_si128((__m128i *)(void *)(to + 4u * i), _mm_unpacklo_epi16(a, b));
        _mm_storeu_si128((__m128i *)(void *)(to + 4u * i + 16), _mm_unpackhi_epi16(a, b));
    }
}

static void encode_v_f16(const quire_tile_rows *rows, const float *x, uint16_t *tile)
{
    for (uint32_t r = 0; r < rows->n_tokens; r++) {
        convert_f16(x + r * rows->stride, rows->d, tile + (size_t)(rows->first_slot + r) * rows->d);
    }
}

static void encode_v_bf16(const quire_tile_rows *rows, const float *x, uint16_t *tile)
{
    rows_buffer buffer;
    uint16_t *halves = (uint16_t *)(void *)buffer.bytes;
    uint32_t d = rows->d;
    uint32_t n;

    for (uint32_t r = 0; r < rows->n_tokens; r += n) {
        uint32_t s = rows->first_slot + r;

        n = s % 2 == 0 && rows->n_tokens - r >= 2 ? 2 : 1;
        for (uint32_t k = 0; k < n; k++) {
            convert_bf16(x + (r + k) * rows->stride, d, halves + (size_t)k * d);
        }
        if (n == 2) {
            interleave_2(halves, d, tile + quire_v_index(2, d, 0, s));
            continue;
        }
        for (uint32_t i = 0; i < d; i++) {
            tile[quire_v_index(2, d, i, s)] = halves[i];
        }
    }
}

static void encode_v_q8(const quire_tile_rows *rows, const float *x, void *tile)
{
    rows_buffer buffer;
    uint8_t *codes = (uint8_t *)tile + QUIRE_Q8_CODES_OFFSET;
    uint32_t d = rows->d;
    uint32_t n;

    for (uint32_t r = 0; r < rows->n_tokens; r += n) {
        uint32_t s = rows->first_slot + r;

        n = s % 4 == 0 && rows->n_tokens - r >= 4 ? 4 : 1;
        for (uint32_t k = 0; k < n; k++) {
            ((uint16_t *)tile)[s + k] =
                convert_q8(x + (r + k) * rows->stride, d, (int8_t *)buffer.bytes + (size_t)k * d)
                    .bits;
        }
        if (n == 4) {
            interleave_4(buffer.bytes, d, codes + quire_v_index(4, d, 0, s));
            continue;
        }
        for (uint32_t i = 0; i < d; i++) {
            codes[quire_v_index(4, d, i, s)] = buffer.bytes[i];
        }
    }
}

/* ---- decoding ---- */

static void decode_k_q8(const quire_tile_rows *rows, const void *tile, float *x)
{
    const uint8_t *codes = (const uint8_t *)tile + QUIRE_Q8_CODES_OFFSET;

    for (uint32_t r = 0; r < rows->n_tokens; r++) {
        uint32_t s = rows->first_slot + r;
        __m128 scale = _mm_set1_ps(quire_f16_to_f32(((const uint16_t *)tile)[s]));
        const uint8_t *unit = codes + quire_k_index(4, 0, s);

        for (uint32_t i = 0; i < rows->d; i += 4, unit += (size_t)4 * TILE) {
            int32_t word;
            __m128i n;

            memcpy(&word, unit, sizeof(word));
            n = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(word));
            n = _mm_sub_epi32(n, _mm_set1_epi32(128));
            _mm_storeu_ps(x + r * rows->stride + i, _mm_mul_ps(_mm_cvtepi32_ps(n), scale));
        }
    }
}

static void decode_v_q8(const quire_tile_rows *rows, const void *tile, float *x)
{
    const uint8_t *codes = (const uint8_t *)tile + QUIRE_Q8_CODES_OFFSET;

    for (uint32_t r = 0; r < rows->n_tokens; r++) {
        uint32_t s = rows->first_slot + r;
        __m256 scale = _mm256_set1_ps(quire_f16_to_f32(((const uint16_t *)tile)[s]));
        __m128i up = _mm_cvtsi32_si128(24 - 8 * (int)(s % 4));
        const uint8_t *units = codes + quire_v_index(4, rows->d, 0, s - s % 4);

        for (uint32_t i = 0; i < rows->d; i += 8) {
            __m256i n = _mm256_loadu_si256((const __m256i *)(const void *)(units + 4u * i));

            n = _mm256_srai_epi32(_mm256_sll_epi32(n, up), 24);
            _mm256_storeu_ps(x + r * rows->stride + i, _mm256_mul_ps(_mm256_cvtepi32_ps(n), scale));
        }
    }
}

/* ---- table ---- */

static void check_rows(const quire_tile_rows *rows)
{
    QUIRE_CHECK(rows->first_slot <= TILE && rows->n_tokens <= TILE - rows->first_slot);
    QUIRE_CHECK(rows->d <= QUIRE_HEAD_DIM_MAX && rows->d % QUIRE_HEAD_DIM_MULTIPLE == 0);
}

static void encode_k(quire_format format, const quire_tile_rows *rows, const float *x, void *tile)
{
    uint32_t n;

    check_rows(rows);
    if (quire_format_is_sealed(format)) {
        QUIRE_CHECK(rows->n_tokens == TILE);
        quire_sealed_encode_avx2(format, QUIRE_SIDE_K, rows, x, tile);
        return;
    }
    for (uint32_t r = 0; r < rows->n_tokens; r += n) {
        n = rows->n_tokens - r < BLOCK ? rows->n_tokens - r : BLOCK;
        encode_k_block(format, rows, r, n, x + r * rows->stride, tile);
    }
}

static void encode_v(quire_format format, const quire_tile_rows *rows, const float *x, void *tile)
{
    check_rows(rows);
    if (quire_format_is_sealed(format)) {
        QUIRE_CHECK(rows->n_tokens == TILE);
        quire_sealed_encode_avx2(format, QUIRE_SIDE_V, rows, x, tile);
        return;
    }
    switch (format) {
    case QUIRE_FORMAT_F32:
        for (uint32_t r = 0; r < rows->n_tokens; r++) {
            memcpy((float *)tile + (size_t)(rows->first_slot + r) * rows->d, x + r * rows->stride,
                   rows->d * sizeof(float));
        }
        break;
    case QUIRE_FORMAT_F16:
        encode_v_f16(rows, x, tile);
        break;
    case QUIRE_FORMAT_BF16:
        encode_v_bf16(rows, x, tile);
        break;
    case QUIRE_FORMAT_Q8:
        encode_v_q8(rows, x, tile);
        break;
    default: /* sealed formats go by tiles */
        break;
    }
}

/* The kernels read tiles as they are: only hot tiles about to be sealed are decoded often. */
static void decode_k(quire_format format, const quire_tile_rows *rows, const void *tile, float *x)
{
    check_rows(rows);
    if (quire_format_is_sealed(format)) {
        quire_sealed_decode_avx2(format, QUIRE_SIDE_K, rows, tile, x);
    } else if (format == QUIRE_FORMAT_Q8) {
        decode_k_q8(rows, tile, x);
    } else {
        quire_codec_ref_decode_k(format, rows, tile, x);
    }
}

static void decode_v(quire_format format, const quire_tile_rows *rows, const void *tile, float *x)
{
    check_rows(rows);
    if (quire_format_is_sealed(format)) {
        quire_sealed_decode_avx2(format, QUIRE_SIDE_V, rows, tile, x);
    } else if (format == QUIRE_FORMAT_Q8) {
        decode_v_q8(rows, tile, x);
    } else {
        quire_codec_ref_decode_v(format, rows, tile, x);
    }
}

static void v_of_k(quire_format format, uint32_t d_k, uint32_t d_v, const void *k_tile,
                   void *v_tile)
{
    QUIRE_ASSERT(d_v <= d_k);
    tile_v_of_k(format, d_k, d_v, k_tile, v_tile);
}

const quire_codec *quire_codec_avx2(void)
{
    static const quire_codec codec = { "avx2",   encode_k,         encode_v, decode_k,
                                       decode_v, q8_queries_round, v_of_k };

    return &codec;
}
