/* v_of_k_body.h - the V tile of the first dimensions of a K tile, compiled once per ISA
 * (codec_ref.c and codec_avx2.c): for models whose V is a part of K, stored once.
 *
 * The numbers are the same; they move. K keeps 64 tokens of a dimension side by side, V the
 * dimensions of a token (quire/codec.h draws both). q8 moves four tokens of four dimensions, 16
 * bytes, at a time. Sealed codes become levels on the way: V is then a q8 tile that has levels as
 * codes, without the mean of K.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_V_OF_K_BODY_H
#define QUIRE_CODEC_V_OF_K_BODY_H

#include "codec/codec_internal.h"
#include "codec/sealed.h"

#include <string.h>

#if defined(__SSSE3__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define QUAD      4u  /* tokens and dimensions that q8 keeps together */
#define UNIT      16u /* bytes of four tokens of four dimensions */
#define LANE_ROWS 8u  /* of a block of 16-bit numbers that is turned in registers */

typedef uint8_t unit_bytes __attribute__((vector_size(UNIT)));
typedef uint16_t lane_row __attribute__((vector_size(2 * LANE_ROWS)));

static inline unit_bytes unit_load(const uint8_t *from)
{
    unit_bytes x;

    memcpy(&x, from, sizeof(x));
    return x;
}

/* Four tokens of four dimensions as four dimensions of four tokens. */
static inline unit_bytes unit_turn(unit_bytes x)
{
    return __builtin_shufflevector(x, x, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

static inline void v_of_k_q8(uint32_t d_v, const void *k_tile, void *v_tile)
{
    const uint8_t *from = (const uint8_t *)k_tile + QUIRE_Q8_CODES_OFFSET;
    uint8_t *to = (uint8_t *)v_tile + QUIRE_Q8_CODES_OFFSET;

    memcpy(v_tile, k_tile, QUIRE_Q8_CODES_OFFSET);
    for (uint32_t i = 0; i < d_v; i += QUAD) {
        for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t += QUAD, from += UNIT) {
            const unit_bytes x = unit_turn(unit_load(from)) ^ 0x80; /* K codes are 128 larger */

            memcpy(to + quire_v_index(QUAD, d_v, i, t), &x, sizeof(x));
        }
    }
}

/* A plane of codes, at the dimensions in work: bits of dimensions 4m .. 4m + 3 of a group of 32 /
 * bits dimensions. */
typedef struct v_of_k_plane {
    const uint8_t *group;
    uint8_t shift;
    uint8_t mask;
} v_of_k_plane;

static inline v_of_k_plane plane_at(const uint8_t *plane, uint32_t bits, uint32_t i)
{
    const uint32_t n = 32 / bits;

    return (v_of_k_plane){ plane + (size_t)(i / n) * QUIRE_TILE_TOKENS * QUAD,
                           (uint8_t)(bits * (i % n / QUAD)), (uint8_t)((1u << bits) - 1) };
}

/* The plane's part of the codes of four tokens from t on. */
static inline unit_bytes plane_codes(const v_of_k_plane *plane, uint32_t t)
{
    return (unit_load(plane->group + (size_t)t * QUAD) >> plane->shift) & plane->mask;
}

/* table[index % 16], byte by byte; indices are below 128. */
static inline unit_bytes unit_look_up(unit_bytes table, unit_bytes index)
{
#if defined(__SSSE3__)
    return (unit_bytes)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
#elif defined(__aarch64__)
    return (unit_bytes)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)(index & 15));
#else
    unit_bytes found;

    for (uint32_t i = 0; i < UNIT; i++) {
        found[i] = table[index[i] % UNIT];
    }
    return found;
#endif
}

/* The levels of codes. A look-up reaches 16 levels: of more, each 16 are looked up in turn. */
static inline unit_bytes codes_look_up(const int8_t *levels, uint32_t n_levels, unit_bytes codes)
{
    unit_bytes found = { 0 };

    for (uint32_t first = 0; first < n_levels; first += UNIT) {
        const unit_bytes is_here = (unit_bytes)((codes >> 4) == (uint8_t)(first / UNIT));

        found |= unit_look_up(unit_load((const uint8_t *)levels + first), codes) &
                 (n_levels > UNIT ? is_here : (unit_bytes){ 0 } - 1);
    }
    return found;
}

/* Inlined by format, so that the numbers of bits and levels are constants. */
static inline __attribute__((always_inline)) void
v_of_k_sealed(quire_format format, uint32_t d_k, uint32_t d_v, const void *k_tile, void *v_tile)
{
    const int8_t *levels = quire_sealed_levels(format, QUIRE_SIDE_K);
    const uint32_t n_levels = quire_sealed_n_levels(format);
    const uint32_t low_bits = quire_sealed_low_bits(format);
    const uint32_t high_bits = quire_sealed_high_bits(format);
    const uint8_t *low =
        (const uint8_t *)k_tile + quire_sealed_low_offset(format, QUIRE_SIDE_K, d_k);
    const uint8_t *high =
        (const uint8_t *)k_tile + quire_sealed_high_offset(format, QUIRE_SIDE_K, d_k);
    uint8_t *to = (uint8_t *)v_tile + QUIRE_Q8_CODES_OFFSET;

    memcpy(v_tile, k_tile, QUIRE_SEALED_SCALES_BYTES);
    for (uint32_t i = 0; i < d_v; i += QUAD) {
        const v_of_k_plane below = plane_at(low, low_bits, i);
        const v_of_k_plane above = high_bits != 0 ? plane_at(high, high_bits, i) : below;

        for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t += QUAD) {
            unit_bytes codes = plane_codes(&below, t);

            if (high_bits != 0) {
                codes |= plane_codes(&above, t) << (uint8_t)low_bits;
            }
            codes = unit_turn(codes_look_up(levels, n_levels, codes));
            memcpy(to + quire_v_index(QUAD, d_v, i, t), &codes, sizeof(codes));
        }
    }
}

/* Turn a block: rows that hold 8 tokens of a dimension become rows of 8 dimensions of a token. */
static inline void block_turn(lane_row *rows)
{
    for (uint32_t step = 0; step < 3; step++) {
        lane_row next[LANE_ROWS];

        for (uint32_t r = 0; r < LANE_ROWS / 2; r++) {
            const lane_row a = rows[r], b = rows[r + LANE_ROWS / 2];

            next[2 * r] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            next[2 * r + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(rows, next, sizeof(next));
    }
}

static inline void v_of_k_f16(uint32_t d_v, const uint16_t *k_tile, uint16_t *v_tile)
{
    for (uint32_t t = 0; t < QUIRE_TILE_TOKENS;
         t += LANE_ROWS) { /* so that V is written in order */
        for (uint32_t i = 0; i < d_v; i += LANE_ROWS) {
            lane_row rows[LANE_ROWS];

            for (uint32_t r = 0; r < LANE_ROWS; r++) {
                memcpy(&rows[r], k_tile + quire_k_index(1, i + r, t), sizeof(rows[r]));
            }
            block_turn(rows);
            for (uint32_t r = 0; r < LANE_ROWS; r++) {
                memcpy(v_tile + quire_v_index(1, d_v, i, t + r), &rows[r], sizeof(rows[r]));
            }
        }
    }
}

/* Two tokens of two dimensions lie together in both tiles; four of four are moved at a time. */
static inline void v_of_k_bf16(uint32_t d_v, const uint16_t *k_tile, uint16_t *v_tile)
{
    for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t += 4) {
        for (uint32_t i = 0; i < d_v; i += 4) {
            lane_row a, b, first, second;

            memcpy(&a, k_tile + quire_k_index(2, i, t), sizeof(a));
            memcpy(&b, k_tile + quire_k_index(2, i + 2, t), sizeof(b));
            first = __builtin_shufflevector(a, b, 0, 2, 1, 3, 8, 10, 9, 11);
            second = __builtin_shufflevector(a, b, 4, 6, 5, 7, 12, 14, 13, 15);
            memcpy(v_tile + quire_v_index(2, d_v, i, t), &first, sizeof(first));
            memcpy(v_tile + quire_v_index(2, d_v, i, t + 2), &second, sizeof(second));
        }
    }
}

static inline void v_of_k_f32(uint32_t d_v, const float *k_tile, float *v_tile)
{
    for (uint32_t i = 0; i < d_v; i += LANE_ROWS) {
        for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t++) {
            for (uint32_t r = 0; r < LANE_ROWS; r++) {
                v_tile[quire_v_index(1, d_v, i + r, t)] = k_tile[quire_k_index(1, i + r, t)];
            }
        }
    }
}

/* quire_codec.v_of_k of an ISA. */
static inline void tile_v_of_k(quire_format format, uint32_t d_k, uint32_t d_v, const void *k_tile,
                               void *v_tile)
{
    switch (format) {
    case QUIRE_FORMAT_F32:
        v_of_k_f32(d_v, k_tile, v_tile);
        break;
    case QUIRE_FORMAT_F16:
        v_of_k_f16(d_v, k_tile, v_tile);
        break;
    case QUIRE_FORMAT_BF16:
        v_of_k_bf16(d_v, k_tile, v_tile);
        break;
    case QUIRE_FORMAT_Q8:
        v_of_k_q8(d_v, k_tile, v_tile);
        break;
    case QUIRE_FORMAT_Q6:
        v_of_k_sealed(QUIRE_FORMAT_Q6, d_k, d_v, k_tile, v_tile);
        break;
    case QUIRE_FORMAT_Q5:
        v_of_k_sealed(QUIRE_FORMAT_Q5, d_k, d_v, k_tile, v_tile);
        break;
    case QUIRE_FORMAT_Q4:
        v_of_k_sealed(QUIRE_FORMAT_Q4, d_k, d_v, k_tile, v_tile);
        break;
    case QUIRE_FORMAT_Q3:
        v_of_k_sealed(QUIRE_FORMAT_Q3, d_k, d_v, k_tile, v_tile);
        break;
    case QUIRE_FORMAT_COUNT:
        break;
    }
}

#endif /* QUIRE_CODEC_V_OF_K_BODY_H */
