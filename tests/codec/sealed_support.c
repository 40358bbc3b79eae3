/* sealed_support.c - a sealed tile under test.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/sealed_support.h"

#include <stdlib.h>
#include <string.h>

#include "codec/half.h"

#define TILE QUIRE_TILE_TOKENS

sealed_fixture sealed_take(quire_format format, quire_side side, uint32_t d, uint32_t stride)
{
    sealed_fixture f = { .format = format, .side = side, .rows = { d, 0, TILE, stride } };

    f.x = codec_take((size_t)TILE * stride * sizeof(float));
    f.y = codec_take((size_t)TILE * stride * sizeof(float));
    f.tile_bytes = quire_tile_bytes(format, side, d);
    f.tile = codec_take(f.tile_bytes);
    return f;
}

void sealed_release(sealed_fixture *f)
{
    free(f->tile);
    free(f->y);
    free(f->x);
}

void sealed_fill(sealed_fixture *f, quire_rng *rng, uint32_t kind)
{
    for (size_t i = 0; i < (size_t)TILE * f->rows.stride; i++) {
        f->x[i] = codec_random_value(rng, kind);
    }
}

float *sealed_row(const sealed_fixture *f, uint32_t t)
{
    return f->x + t * f->rows.stride;
}

float *sealed_decoded(const sealed_fixture *f, uint32_t t)
{
    return f->y + t * f->rows.stride;
}

void sealed_tile_encode(const quire_codec *codec, sealed_fixture *f)
{
    memset(f->tile, 0xa5, f->tile_bytes);
    (f->side == QUIRE_SIDE_K ? codec->encode_k : codec->encode_v)(f->format, &f->rows, f->x,
                                                                  f->tile);
}

void sealed_tile_decode(const quire_codec *codec, sealed_fixture *f)
{
    (f->side == QUIRE_SIDE_K ? codec->decode_k : codec->decode_v)(f->format, &f->rows, f->tile,
                                                                  f->y);
}

void sealed_round_trip(sealed_fixture *f)
{
    const quire_codec *codec = quire_codec_get();

    sealed_tile_encode(codec, f);
    sealed_tile_decode(codec, f);
}

uint16_t sealed_scale_bits(const sealed_fixture *f, uint32_t t)
{
    return ((const uint16_t *)(const void *)f->tile)[t];
}

double sealed_scale(const sealed_fixture *f, uint32_t t)
{
    return (double)quire_f16_to_f32(sealed_scale_bits(f, t));
}

double sealed_mean(const sealed_fixture *f, uint32_t i)
{
    const unsigned char *mean = f->tile + QUIRE_SEALED_SCALES_BYTES;

    return quire_sealed_is_centred(f->format, f->side)
               ? (double)quire_f16_to_f32(((const uint16_t *)(const void *)mean)[i])
               : 0.0;
}

uint32_t sealed_plane_bits(const sealed_fixture *f, const unsigned char *plane, uint32_t b,
                           const uint32_t at[2])
{
    uint32_t i = at[0];
    uint32_t t = at[1];
    uint32_t n = f->side == QUIRE_SIDE_K ? i : t;
    uint32_t g = n / (32 / b);
    uint32_t m = n % (32 / b) / 4;
    uint32_t j = n % 4;
    size_t byte = f->side == QUIRE_SIDE_K ? ((size_t)g * TILE + t) * 4 + j
                                          : ((size_t)g * f->rows.d + i) * 4 + j;

    return (uint32_t)plane[byte] >> (b * m) & ((1u << b) - 1);
}

uint32_t sealed_code(const sealed_fixture *f, uint32_t i, uint32_t t)
{
    static const uint32_t bits[][2] = { { 4, 2 }, { 4, 1 }, { 4, 0 }, { 2, 1 } };
    const uint32_t *b = bits[f->format - QUIRE_FORMAT_Q6];
    uint32_t d = f->rows.d;
    size_t mean_bytes =
        quire_sealed_is_centred(f->format, f->side) ? ((size_t)d * 2 + 63) / 64 * 64 : 0;
    size_t low_bytes = f->side == QUIRE_SIDE_K ? (size_t)(d * b[0] + 31) / 32 * TILE * 4
                                               : (size_t)2 * b[0] * d * 4;
    const unsigned char *low = f->tile + TILE * 2 + mean_bytes;
    uint32_t code = sealed_plane_bits(f, low, b[0], (const uint32_t[]){ i, t });

    return b[1] == 0
               ? code
               : code | sealed_plane_bits(f, low + low_bytes, b[1], (const uint32_t[]){ i, t })
                            << b[0];
}

int sealed_level(const sealed_fixture *f, uint32_t i, uint32_t t)
{
    return quire_sealed_levels(f->format, f->side)[sealed_code(f, i, t)];
}

void sealed_for_each(sealed_check run)
{
    for (unsigned format = QUIRE_FORMATS_DIRECT; format < QUIRE_FORMAT_COUNT; format++) {
        run((quire_format)format, QUIRE_SIDE_K);
        run((quire_format)format, QUIRE_SIDE_V);
    }
}
