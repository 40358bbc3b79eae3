/* sealed.h - the inside of a tile of a sealed format: the places of its parts, and the meaning of
 * codes.
 *
 *   offset 0     f16 scale[64]
 *   if centred   f16 mean[d], padded to 64 bytes (quire_sealed_is_centred)
 *   then         the plane of the low bits, then the plane of the high bits (if any)
 *
 * A plane of b bits is drawn in quire/codec.h. code = low | high << low_bits.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_SEALED_H
#define QUIRE_CODEC_SEALED_H

#include "quire/codec.h"

#define QUIRE_SEALED_SCALES_BYTES (QUIRE_TILE_TOKENS * 2u)
#define QUIRE_SEALED_LEVELS_MAX   64u

static inline uint32_t quire_sealed_low_bits(quire_format format)
{
    return format == QUIRE_FORMAT_Q3 ? 2 : 4;
}

/* 0 = no second plane. */
static inline uint32_t quire_sealed_high_bits(quire_format format)
{
    return format == QUIRE_FORMAT_Q6 ? 2 : format == QUIRE_FORMAT_Q4 ? 0 : 1;
}

/* 16 for q4. */
static inline uint32_t quire_sealed_n_levels(quire_format format)
{
    return 1u << (quire_sealed_low_bits(format) + quire_sealed_high_bits(format));
}

/* Whether a tile has a mean, which is subtracted from every row before the row is coded. */
static inline bool quire_sealed_is_centred(quire_format format, quire_side side)
{
    (void)format;
    return side == QUIRE_SIDE_K;
}

/* 0 where the tile has none. */
static inline size_t quire_sealed_mean_bytes(quire_format format, quire_side side, uint32_t d)
{
    return quire_sealed_is_centred(format, side) ? ((size_t)d * 2 + 63) / 64 * 64 : 0;
}

static inline size_t quire_sealed_plane_bytes(quire_side side, uint32_t bits, uint32_t d)
{
    return side == QUIRE_SIDE_K ? (size_t)((d * bits + 31) / 32) * QUIRE_TILE_TOKENS * 4
                                : (size_t)2 * bits * d * 4;
}

static inline size_t quire_sealed_low_offset(quire_format format, quire_side side, uint32_t d)
{
    return QUIRE_SEALED_SCALES_BYTES + quire_sealed_mean_bytes(format, side, d);
}

static inline size_t quire_sealed_high_offset(quire_format format, quire_side side, uint32_t d)
{
    return quire_sealed_low_offset(format, side, d) +
           quire_sealed_plane_bytes(side, quire_sealed_low_bits(format), d);
}

static inline size_t quire_sealed_tile_bytes(quire_format format, quire_side side, uint32_t d)
{
    return quire_sealed_high_offset(format, side, d) +
           quire_sealed_plane_bytes(side, quire_sealed_high_bits(format), d);
}

/* The levels of a format and side in ascending order, QUIRE_SEALED_LEVELS_MAX values: its 2^bits
 * levels repeated, so that a look-up by any part of a register finds them. 64-byte aligned.
 * Memory: static. */
const int8_t *quire_sealed_levels(quire_format format, quire_side side);

/* The starts of the fit of a row's scale: factors by which the row's largest value overshoots the
 * largest level. Memory: static. */
const float *quire_sealed_starts(quire_format format, uint32_t *n);

/* Encode a whole tile, rows->n_tokens = QUIRE_TILE_TOKENS. sealed.c is the definition. */
void quire_sealed_encode(quire_format format, quire_side side, const quire_tile_rows *rows,
                         const float *x, void *tile);

/* Decode some rows. */
void quire_sealed_decode(quire_format format, quire_side side, const quire_tile_rows *rows,
                         const void *tile, float *x);

#if defined(__x86_64__)
/* The same bytes and floats, on a CPU that has AVX2. */
void quire_sealed_encode_avx2(quire_format format, quire_side side, const quire_tile_rows *rows,
                              const float *x, void *tile);
void quire_sealed_decode_avx2(quire_format format, quire_side side, const quire_tile_rows *rows,
                              const void *tile, float *x);
#endif

#endif /* QUIRE_CODEC_SEALED_H */
