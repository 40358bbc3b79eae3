/* kernels_avx2_sealed_planes_body.h - from the code planes of a sealed tile to levels in registers.
 *
 * K and V tiles differ only in the values side by side: 64 tokens, with sums over dimensions, or d
 * dimensions, with sums over tokens. Both are lines of lanes here: a register of codes has 8 lanes
 * with 4 neighbouring terms each (a group), and two groups (a unit) share the bytes of a plane of
 * 4 bits. Levels come out as bytes in q8's layout, plus `bias`.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX2_SEALED_PLANES_H
#define QUIRE_ATTN_KERNELS_AVX2_SEALED_PLANES_H

#include "attn/avx2/kernels_avx2.h"
#include "codec/sealed.h"

/* The planes of a tile from some lane on. */
typedef struct quire_avx2_planes {
    const char *low;
    const char *high;
    size_t line_bytes;
    ptrdiff_t ahead; /* distance of the line to prefetch, see quire_avx2_ahead() */
    __m256i tables[4];
} quire_avx2_planes;

QUIRE_AVX2_INLINE __m256i quire_avx2_load_bytes(const char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* bias: a byte that levels are XORed with, 0 or 0x80. */
QUIRE_AVX2_INLINE quire_avx2_planes quire_avx2_planes_of(quire_format format, quire_side side,
                                                         uint32_t d, const void *tile, int bias)
{
    const char *bytes = tile;
    const int8_t *levels = quire_sealed_levels(format, side);
    quire_avx2_planes x = { .low = bytes + quire_sealed_low_offset(format, side, d),
                            .high = bytes + quire_sealed_high_offset(format, side, d),
                            .line_bytes =
                                (size_t)4 * (side == QUIRE_SIDE_K ? QUIRE_TILE_TOKENS : d) };

    for (uint32_t i = 0; i < 4; i++) {
        __m128i part = _mm_load_si128((const __m128i *)(const void *)(levels + (size_t)16 * i));

        part = _mm_xor_si128(part, _mm_set1_epi8((char)bias));
        x.tables[i] = _mm256_broadcastsi128_si256(part);
    }
    return x;
}

/* Go on by some registers of lanes. */
QUIRE_AVX2_INLINE void quire_avx2_planes_move(quire_avx2_planes *x, uint32_t regs)
{
    x->low += (size_t)32 * regs;
    x->high += (size_t)32 * regs;
}

/* Each byte's bit `from` at bit `to`; the other bits are anything. */
QUIRE_AVX2_INLINE __m256i quire_avx2_move_bit(__m256i x, uint32_t from, uint32_t to)
{
    return to >= from ? _mm256_slli_epi16(x, (int)(to - from))
                      : _mm256_srli_epi16(x, (int)(from - to));
}

/* Units after which the planes' bits are all used. */
QUIRE_AVX2_INLINE uint32_t quire_avx2_period(quire_format format)
{
    return format == QUIRE_FORMAT_Q4 ? 1 : format == QUIRE_FORMAT_Q6 ? 2 : 4;
}

/* 8 lanes of group `half` of a unit, u = m modulo the period. */
QUIRE_AVX2_INLINE __m256i quire_avx2_look_up(quire_format format, const quire_avx2_planes *x,
                                             uint32_t u, uint32_t m, uint32_t half, uint32_t i)
{
    const __m256i mask = _mm256_set1_epi8(format == QUIRE_FORMAT_Q3 ? 0x03 : 0x0f);
    const char *low_at = x->low + (size_t)32 * i;
    const char *high_at = x->high + (size_t)32 * i;
    __m256i low;
    __m256i high;
    __m256i a;
    __m256i b;

    if (format == QUIRE_FORMAT_Q3) {
        low = _mm256_srli_epi16(quire_avx2_load_bytes(low_at + u / 2 * x->line_bytes),
                                (int)(m % 2 * 4 + 2 * half));
    } else {
        low = _mm256_srli_epi16(quire_avx2_load_bytes(low_at + u * x->line_bytes), (int)(4 * half));
    }
    low = _mm256_and_si256(low, mask);
    switch (format) {
    case QUIRE_FORMAT_Q3:
        high = quire_avx2_move_bit(quire_avx2_load_bytes(high_at + u / 4 * x->line_bytes),
                                   2 * m + half, 2);
        low = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(4)));
        return _mm256_shuffle_epi8(x->tables[0], low);
    case QUIRE_FORMAT_Q5:
        high = quire_avx2_move_bit(quire_avx2_load_bytes(high_at + u / 4 * x->line_bytes),
                                   2 * m + half, 7);
        return _mm256_blendv_epi8(_mm256_shuffle_epi8(x->tables[0], low),
                                  _mm256_shuffle_epi8(x->tables[1], low), high);
    case QUIRE_FORMAT_Q6:
        high = quire_avx2_load_bytes(high_at + u / 2 * x->line_bytes);
        a = quire_avx2_move_bit(high, m * 4 + 2 * half, 7);
        b = _mm256_blendv_epi8(_mm256_shuffle_epi8(x->tables[2], low),
                               _mm256_shuffle_epi8(x->tables[3], low), a);
        a = _mm256_blendv_epi8(_mm256_shuffle_epi8(x->tables[0], low),
                               _mm256_shuffle_epi8(x->tables[1], low), a);
        return _mm256_blendv_epi8(a, b, quire_avx2_move_bit(high, m * 4 + 2 * half + 1, 7));
    default:
        return _mm256_shuffle_epi8(x->tables[0], low);
    }
}

/* The lines that a unit is the first to touch. */
QUIRE_AVX2_INLINE void quire_avx2_prefetch_unit(quire_format format, uint32_t regs,
                                                const quire_avx2_planes *x, uint32_t u, uint32_t m)
{
    uint32_t low_units = format == QUIRE_FORMAT_Q3 ? 2 : 1;
    uint32_t high_units = quire_avx2_period(format);

    for (uint32_t at = 0; at < 32 * regs; at += 64) {
        if (m % low_units == 0) {
            quire_avx2_prefetch(x->low + u / low_units * x->line_bytes + at, x->ahead);
        }
        if (format != QUIRE_FORMAT_Q4 && m == 0) {
            quire_avx2_prefetch(x->high + u / high_units * x->line_bytes + at, x->ahead);
        }
    }
}

#endif /* QUIRE_ATTN_KERNELS_AVX2_SEALED_PLANES_H */
