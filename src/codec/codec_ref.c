/* codec_ref.c - the tile formats in plain C: the definition of their bytes.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "codec/codec_internal.h"
#include "codec/half.h"
#include "codec/q8_rounding_body.h"
#include "codec/sealed.h"
#include "codec/v_of_k_body.h"

#include <math.h>

static void check_rows(const quire_tile_rows *rows)
{
    QUIRE_CHECK(rows->first_slot <= QUIRE_TILE_TOKENS &&
                rows->n_tokens <= QUIRE_TILE_TOKENS - rows->first_slot);
    QUIRE_ASSERT(quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, rows->d) != 0 &&
                 rows->stride >= rows->d);
}

/* A row whose inverse is 0 (zeros, NaN or Inf in it) gets zero codes. */
static int q8_code(float x, float inverse)
{
    float scaled = inverse != 0.0f ? x * inverse : 0.0f;

    scaled = scaled > 127.0f ? 127.0f : scaled;
    scaled = scaled < -127.0f ? -127.0f : scaled;
    return (int)lrintf(scaled);
}

/* Codes of one row, of K with an eye on the token's queries if there are any; returns the scale's
 * bits. */
static uint16_t q8_row_encode(uint32_t d, const float *x, const float *queries, int8_t *codes)
{
    quire_q8_scale scale = quire_q8_scale_of(max_bits(x, d));

    for (uint32_t i = 0; i < d; i++) {
        codes[i] = (int8_t)q8_code(x[i], scale.inverse);
    }
    if (queries != NULL) {
        q8_k_row_round(d, x, scale.inverse, queries, codes);
    }
    return scale.bits;
}

static void encode_k_q8_row(uint32_t d, const float *x, const float *queries, void *tile,
                            uint32_t s)
{
    uint8_t *to = (uint8_t *)tile + QUIRE_Q8_CODES_OFFSET;
    int8_t codes[QUIRE_HEAD_DIM_MAX];

    ((uint16_t *)tile)[s] = q8_row_encode(d, x, queries, codes);
    for (uint32_t i = 0; i < d; i++) {
        to[quire_k_index(4, i, s)] = (uint8_t)(codes[i] + 128);
    }
}

static void encode_v_q8_row(uint32_t d, const float *x, void *tile, uint32_t s)
{
    int8_t *to = (int8_t *)tile + QUIRE_Q8_CODES_OFFSET;
    int8_t codes[QUIRE_HEAD_DIM_MAX];

    ((uint16_t *)tile)[s] = q8_row_encode(d, x, NULL, codes);
    for (uint32_t i = 0; i < d; i++) {
        to[quire_v_index(4, d, i, s)] = codes[i];
    }
}

/* queries: NULL for none; of the token, as in quire_tile_rows. */
static void encode_k_row(quire_format format, uint32_t d, const float *x, const float *queries,
                         void *tile, uint32_t s)
{
    switch (format) {
    case QUIRE_FORMAT_F32:
        for (uint32_t i = 0; i < d; i++) {
            ((float *)tile)[quire_k_index(1, i, s)] = x[i];
        }
        break;
    case QUIRE_FORMAT_F16:
        for (uint32_t i = 0; i < d; i++) {
            ((uint16_t *)tile)[quire_k_index(1, i, s)] = quire_f32_to_f16(x[i]);
        }
        break;
    case QUIRE_FORMAT_BF16:
        for (uint32_t i = 0; i < d; i++) {
            ((uint16_t *)tile)[quire_k_index(2, i, s)] = quire_f32_to_bf16(x[i]);
        }
        break;
    case QUIRE_FORMAT_Q8:
        encode_k_q8_row(d, x, queries, tile, s);
        break;
    default: /* sealed formats go by tiles */
        break;
    }
}

static void encode_v_row(quire_format format, uint32_t d, const float *x, void *tile, uint32_t s)
{
    switch (format) {
    case QUIRE_FORMAT_F32:
        for (uint32_t i = 0; i < d; i++) {
            ((float *)tile)[quire_v_index(1, d, i, s)] = x[i];
        }
        break;
    case QUIRE_FORMAT_F16:
        for (uint32_t i = 0; i < d; i++) {
            ((uint16_t *)tile)[quire_v_index(1, d, i, s)] = quire_f32_to_f16(x[i]);
        }
        break;
    case QUIRE_FORMAT_BF16:
        for (uint32_t i = 0; i < d; i++) {
            ((uint16_t *)tile)[quire_v_index(2, d, i, s)] = quire_f32_to_bf16(x[i]);
        }
        break;
    case QUIRE_FORMAT_Q8:
        encode_v_q8_row(d, x, tile, s);
        break;
    default: /* sealed formats go by tiles */
        break;
    }
}

static void decode_k_row(quire_format format, uint32_t d, const void *tile, uint32_t s, float *x)
{
    switch (format) {
    case QUIRE_FORMAT_F32:
        for (uint32_t i = 0; i < d; i++) {
            x[i] = ((const float *)tile)[quire_k_index(1, i, s)];
        }
        break;
    case QUIRE_FORMAT_F16:
        for (uint32_t i = 0; i < d; i++) {
            x[i] = quire_f16_to_f32(((const uint16_t *)tile)[quire_k_index(1, i, s)]);
        }
        break;
    case QUIRE_FORMAT_BF16:
        for (uint32_t i = 0; i < d; i++) {
            x[i] = quire_bf16_to_f32(((const uint16_t *)tile)[quire_k_index(2, i, s)]);
        }
        break;
    case QUIRE_FORMAT_Q8: {
        float scale = quire_f16_to_f32(((const uint16_t *)tile)[s]);
        const uint8_t *codes = (const uint8_t *)tile + QUIRE_Q8_CODES_OFFSET;

        for (uint32_t i = 0; i < d; i++) {
            x[i] = (float)((int)codes[quire_k_index(4, i, s)] - 128) * scale;
        }
        break;
    }
    default: /* sealed formats go by tiles */
        break;
    }
}

static void decode_v_row(quire_format format, uint32_t d, const void *tile, uint32_t s, float *x)
{
    switch (format) {
    case QUIRE_FORMAT_F32:
        for (uint32_t i = 0; i < d; i++) {
            x[i] = ((const float *)tile)[quire_v_index(1, d, i, s)];
        }
        break;
    case QUIRE_FORMAT_F16:
        for (uint32_t i = 0; i < d; i++) {
            x[i] = quire_f16_to_f32(((const uint16_t *)tile)[quire_v_index(1, d, i, s)]);
        }
        break;
    case QUIRE_FORMAT_BF16:
        for (uint32_t i = 0; i < d; i++) {
            x[i] = quire_bf16_to_f32(((const uint16_t *)tile)[quire_v_index(2, d, i, s)]);
        }
        break;
    case QUIRE_FORMAT_Q8: {
        float scale = quire_f16_to_f32(((const uint16_t *)tile)[s]);
        const int8_t *codes = (const int8_t *)tile + QUIRE_Q8_CODES_OFFSET;

        for (uint32_t i = 0; i < d; i++) {
            x[i] = (float)codes[quire_v_index(4, d, i, s)] * scale;
        }
        break;
    }
    default: /* sealed formats go by tiles */
        break;
    }
}

static void encode_k(quire_format format, const quire_tile_rows *rows, const float *x, void *tile)
{
    check_rows(rows);
    if (quire_format_is_sealed(format)) {
        QUIRE_CHECK(rows->n_tokens == QUIRE_TILE_TOKENS);
        quire_sealed_encode(format, QUIRE_SIDE_K, rows, x, tile);
        return;
    }
    for (uint32_t r = 0; r < rows->n_tokens; r++) {
        encode_k_row(format, rows->d, x + r * rows->stride, q8_queries_of(rows, r), tile,
                     rows->first_slot + r);
    }
}

static void encode_v(quire_format format, const quire_tile_rows *rows, const float *x, void *tile)
{
    check_rows(rows);
    if (quire_format_is_sealed(format)) {
        QUIRE_CHECK(rows->n_tokens == QUIRE_TILE_TOKENS);
        quire_sealed_encode(format, QUIRE_SIDE_V, rows, x, tile);
        return;
    }
    for (uint32_t r = 0; r < rows->n_tokens; r++) {
        encode_v_row(format, rows->d, x + r * rows->stride, tile, rows->first_slot + r);
    }
}

void quire_codec_ref_decode_k(quire_format format, const quire_tile_rows *rows, const void *tile,
                              float *x)
{
    check_rows(rows);
    if (quire_format_is_sealed(format)) {
        quire_sealed_decode(format, QUIRE_SIDE_K, rows, tile, x);
        return;
    }
    for (uint32_t r = 0; r < rows->n_tokens; r++) {
        decode_k_row(format, rows->d, tile, rows->first_slot + r, x + r * rows->stride);
    }
}

void quire_codec_ref_decode_v(quire_format format, const quire_tile_rows *rows, const void *tile,
                              float *x)
{
    check_rows(rows);
    if (quire_format_is_sealed(format)) {
        quire_sealed_decode(format, QUIRE_SIDE_V, rows, tile, x);
        return;
    }
    for (uint32_t r = 0; r < rows->n_tokens; r++) {
        decode_v_row(format, rows->d, tile, rows->first_slot + r, x + r * rows->stride);
    }
}

static void v_of_k(quire_format format, uint32_t d_k, uint32_t d_v, const void *k_tile,
                   void *v_tile)
{
    QUIRE_ASSERT(d_v <= d_k);
    tile_v_of_k(format, d_k, d_v, k_tile, v_tile);
}

const quire_codec *quire_codec_ref(void)
{
    static const quire_codec codec = { "ref",
                                       encode_k,
                                       encode_v,
                                       quire_codec_ref_decode_k,
                                       quire_codec_ref_decode_v,
                                       q8_queries_round,
                                       v_of_k };

    return &codec;
}
