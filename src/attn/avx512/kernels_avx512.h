/* kernels_avx512.h - shared by the AVX-512 kernel files: their parts, and the blocking of rows.
 *
 * Row blocking. Rows are taken 6, 4, 3, 2 or 1 at a time against 4 registers of the tile, so that
 * at most 24 accumulators and their operands fit the 32 registers; q8, where it spreads each
 * register of codes to two, stops at 4, and at 3 where a weight is two bytes. A body is written
 * once and inlined with a constant number of rows for each of these sizes; it adds in the same
 * order in all of them, so a row's bits do not depend on the block it came in.
 *
 * Include only from files compiled for AVX-512 (quire_isa_sources in cmake/flags.cmake).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX512_H
#define QUIRE_ATTN_KERNELS_AVX512_H

#include "attn/kernels.h"

#include <immintrin.h>
#include <math.h>

#define QUIRE_AVX512_REGS                                                                          \
    4u /* registers of a tile that a block works on: 64 tokens, or 64 dims                         \
        */

/* Bodies rely on being inlined with constant arguments. */
#define QUIRE_AVX512_INLINE static inline __attribute__((always_inline))

/* A packed q8 query row: a header, then for each 4 dimensions the pairs (0, 2), (1, 3) as int16,
 * then the same numbers in order as int8. */
typedef struct quire_avx512_q8_header {
    float scale;
    int32_t start; /* -128 * sum of the row: takes back the offset of the stored K codes */
    char unused[56];
} quire_avx512_q8_header;

/* Bytes of a packed row of a sealed format: a header, int8 n[d], padded to 64 bytes, then float
 * x[d], padded with 0. */
typedef struct quire_avx512_sealed_header {
    float scale;
    int32_t start; /* as in q8 */
    char unused[56];
} quire_avx512_sealed_header;

void quire_avx512_qk_float(const quire_attn_qk *args);
void quire_avx512_pv_float(const quire_attn_pv *args);

void quire_avx512_bf16_pack(uint32_t d, float scale, const float *q, void *packed);
quire_attn_softmax quire_avx512_bf16_softmax;
void quire_avx512_qk_bf16(const quire_attn_qk *args);
void quire_avx512_pv_bf16(const quire_attn_pv *args);

void quire_amx_enter(quire_attn_cpu_state *before);
void quire_amx_leave(const quire_attn_cpu_state *before);
void quire_avx512_qk_bf16_amx(const quire_attn_qk *args);
void quire_avx512_pv_bf16_amx(const quire_attn_pv *args);

void quire_avx512_q8_pack(uint32_t d, float scale, const float *q, void *packed);
void quire_avx512_qk_q8(const quire_attn_qk *args);
void quire_avx512_pv_q8(const quire_attn_pv *args);
void quire_avx512_qk_q8_vnni(const quire_attn_qk *args);
void quire_avx512_pv_q8_vnni(const quire_attn_pv *args);

void quire_avx512_qk_q8_amx(const quire_attn_qk *args);
void quire_avx512_pv_q8_amx(const quire_attn_pv *args);

void quire_avx512_sealed_pack(uint32_t d, float scale, const float *q, void *packed);
void quire_avx512_qk_sealed(const quire_attn_qk *args);
void quire_avx512_pv_sealed(const quire_attn_pv *args);
void quire_avx512_qk_sealed_vnni(const quire_attn_qk *args);
void quire_avx512_pv_sealed_vnni(const quire_attn_pv *args);
void quire_avx512_qk_sealed_vbmi(const quire_attn_qk *args);
void quire_avx512_pv_sealed_vbmi(const quire_attn_pv *args);
void quire_avx512_qk_sealed_amx(const quire_attn_qk *args);
void quire_avx512_pv_sealed_amx(const quire_attn_pv *args);
void quire_avx512_weigh(const quire_attn_weigh *args);

QUIRE_AVX512_INLINE size_t quire_avx512_sealed_x_offset(uint32_t d)
{
    return sizeof(quire_avx512_sealed_header) + ((d + 63u) & ~(size_t)63u);
}

QUIRE_AVX512_INLINE size_t quire_avx512_q8_bytes_offset(uint32_t d)
{
    return sizeof(quire_avx512_q8_header) + ((d + 31u) & ~(size_t)31u) * sizeof(int16_t);
}

/* Bytes between packed query rows. */
QUIRE_AVX512_INLINE size_t quire_avx512_q_bytes(quire_format format, uint32_t d)
{
    size_t bytes = d * sizeof(float);

    if (format == QUIRE_FORMAT_Q8) {
        bytes = quire_avx512_q8_bytes_offset(d) + d;
    } else if (format > QUIRE_FORMAT_Q8) {
        bytes += quire_avx512_sealed_x_offset(d);
    }
    return (bytes + 63u) & ~(size_t)63u;
}

/* How many of the rows that are left make the next block of at most 4, or of at most 6. None is
 * left over alone, because a single row is bound by the latency of its additions. */
QUIRE_AVX512_INLINE uint32_t quire_avx512_next_4(uint32_t n_left)
{
    return n_left <= 4 ? n_left : n_left <= 6 ? 3 : 4;
}

QUIRE_AVX512_INLINE uint32_t quire_avx512_next_6(uint32_t n_left)
{
    return n_left == 6 || n_left > 8 ? 6 : quire_avx512_next_4(n_left);
}

/* Call body(n, ...) with n = 1 .. 4 as a constant. */
#define QUIRE_AVX512_UP_TO_4(n, body, ...)                                                         \
    do {                                                                                           \
        switch (n) {                                                                               \
        case 1:                                                                                    \
            body(1, __VA_ARGS__);                                                                  \
            break;                                                                                 \
        case 2:                                                                                    \
            body(2, __VA_ARGS__);                                                                  \
            break;                                                                                 \
        case 3:                                                                                    \
            body(3, __VA_ARGS__);                                                                  \
            break;                                                                                 \
        default:                                                                                   \
            body(4, __VA_ARGS__);                                                                  \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

#define QUIRE_AVX512_UP_TO_6(n, body, ...)                                                         \
    do {                                                                                           \
        if ((n) == 6) {                                                                            \
            body(6, __VA_ARGS__);                                                                  \
        } else {                                                                                   \
            QUIRE_AVX512_UP_TO_4(n, body, __VA_ARGS__);                                            \
        }                                                                                          \
    } while (0)

/* The place of the next prefetch: the lines of the next tile in the order of memory, spread over
 * the first blocks of rows: memory takes longer to deliver a tile than one block takes to use one,
 * and a prefetch that finds no free buffer waits. Later blocks, and a kernel without a hint, touch
 * some of their own tile again. An integer, because it may run past the end of a next tile that is
 * shorter: prefetching never faults. */
typedef struct quire_avx512_ahead {
    uintptr_t at;
    uint32_t n_shares; /* blocks that share the next tile: 1, 2 or 4 */
    uint32_t n_left;   /* of them, with the one in work */
    quire_prefetch to;
} quire_avx512_ahead;

QUIRE_AVX512_INLINE quire_avx512_ahead quire_avx512_ahead_of(const void *tile, const void *next,
                                                             quire_prefetch to, uint32_t n_blocks)
{
    uint32_t n = n_blocks >= 4 || next == NULL ? 4 : n_blocks >= 2 ? 2 : 1;

    return (quire_avx512_ahead){ (uintptr_t)(next != NULL ? next : tile), n, n, to };
}

QUIRE_AVX512_INLINE quire_avx512_ahead quire_avx512_ahead_of_qk(const quire_attn_qk *args,
                                                                uint32_t n_blocks)
{
    return quire_avx512_ahead_of(args->k_tile, args->next, args->next_to, n_blocks);
}

QUIRE_AVX512_INLINE quire_avx512_ahead quire_avx512_ahead_of_pv(const quire_attn_pv *args,
                                                                uint32_t n_blocks)
{
    return quire_avx512_ahead_of(args->v_tile, args->next, args->next_to, n_blocks);
}

/* After a block of rows of a tile. */
QUIRE_AVX512_INLINE void quire_avx512_ahead_advance(quire_avx512_ahead *ahead, const void *tile)
{
    if (--ahead->n_left == 0) {
        *ahead = quire_avx512_ahead_of(tile, NULL, ahead->to, 1);
    }
}

QUIRE_AVX512_INLINE void quire_avx512_prefetch_lines(quire_avx512_ahead *ahead, size_t n)
{
    quire_prefetch_lines((const void *)ahead->at, n, ahead->to);
    ahead->at += QUIRE_PREFETCH_LINE * n;
}

/* Prefetch this block's share of the next tile while it reads `bytes`, a constant, of its own. */
QUIRE_AVX512_INLINE void quire_avx512_prefetch(quire_avx512_ahead *ahead, size_t bytes)
{
    if (ahead->n_shares == 1) {
        quire_avx512_prefetch_lines(ahead, (bytes + 63) / 64);
    } else if (ahead->n_shares == 2) {
        quire_avx512_prefetch_lines(ahead, (bytes + 127) / 128);
    } else {
        quire_avx512_prefetch_lines(ahead, (bytes + 255) / 256);
    }
}

/* The slots [begin, end) of a tile as bits. */
QUIRE_AVX512_INLINE uint64_t quire_avx512_slot_mask(uint32_t begin, uint32_t end)
{
    uint64_t below_end = end >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << end) - 1;

    return end <= begin ? 0 : below_end & (~(uint64_t)0 << begin);
}

/* Sums of 4 rows: row r in lanes 4r .. 4r + 3. The order of additions is fixed: no compiler may
 * change it. */
QUIRE_AVX512_INLINE __m512 quire_avx512_sum_4(const __m512 x[4])
{
    __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x44),
                             _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(x[2], x[3], 0x44),
                             _mm512_shuffle_f32x4(x[2], x[3], 0xee));

    a = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    a = _mm512_add_ps(a, _mm512_permute_ps(a, 0x4e));
    return _mm512_add_ps(a, _mm512_permute_ps(a, 0xb1));
}

QUIRE_AVX512_INLINE __m512 quire_avx512_max_4_ps(const __m512 x[4])
{
    __m512 a = _mm512_max_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x44),
                             _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    __m512 b = _mm512_max_ps(_mm512_shuffle_f32x4(x[2], x[3], 0x44),
                             _mm512_shuffle_f32x4(x[2], x[3], 0xee));

    a = _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    a = _mm512_max_ps(a, _mm512_permute_ps(a, 0x4e));
    return _mm512_max_ps(a, _mm512_permute_ps(a, 0xb1));
}

/* The same for unsigned integers. */
QUIRE_AVX512_INLINE __m512i quire_avx512_max_4(const __m512i x[4])
{
    __m512i a = _mm512_max_epu32(_mm512_shuffle_i32x4(x[0], x[1], 0x44),
                                 _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    __m512i b = _mm512_max_epu32(_mm512_shuffle_i32x4(x[2], x[3], 0x44),
                                 _mm512_shuffle_i32x4(x[2], x[3], 0xee));

    a = _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    a = _mm512_max_epu32(a, _mm512_shuffle_epi32(a, _MM_PERM_BADC));
    return _mm512_max_epu32(a, _mm512_shuffle_epi32(a, _MM_PERM_CDAB));
}

/* Row r of those 4, in all lanes; r is a constant. */
QUIRE_AVX512_INLINE __m512 quire_avx512_row_of_4(__m512 rows, uint32_t r)
{
    switch (r) {
    case 0:
        return _mm512_shuffle_f32x4(rows, rows, 0x00);
    case 1:
        return _mm512_shuffle_f32x4(rows, rows, 0x55);
    case 2:
        return _mm512_shuffle_f32x4(rows, rows, 0xaa);
    default:
        return _mm512_shuffle_f32x4(rows, rows, 0xff);
    }
}

/* The largest of 16 absolute values given as bits, compared as integers: so NaN and Inf come out
 * on top, both as NaN. */
QUIRE_AVX512_INLINE float quire_avx512_max_abs(__m512i bits)
{
    int32_t max = _mm512_reduce_max_epi32(bits);

    return max >= 0x7f800000 ? NAN : _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(max)));
}

/* 32 integers as int16, each group of 4 in the order 0, 2, 1, 3. The pack instruction works by
 * 128 bits, so the permutation puts the groups back into place as well. */
QUIRE_AVX512_INLINE __m512i quire_avx512_pairs(__m512i low, __m512i high)
{
    const __m512i order =
        _mm512_set_epi16(31, 29, 30, 28, 23, 21, 22, 20, 15, 13, 14, 12, 7, 5, 6, 4, /* high */
                         27, 25, 26, 24, 19, 17, 18, 16, 11, 9, 10, 8, 3, 1, 2, 0);  /* low */

    return _mm512_permutexvar_epi16(order, _mm512_packs_epi32(low, high));
}

/* The scales of all tokens of a tile of q8 or a sealed format. */
QUIRE_AVX512_INLINE void quire_avx512_load_scales(const void *tile, __m512 scale[QUIRE_AVX512_REGS])
{
    for (uint32_t i = 0; i < QUIRE_AVX512_REGS; i++) {
        scale[i] = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)tile + i));
    }
}

/* The scales of the slots in `visible`; 0 for all other slots. */
QUIRE_AVX512_INLINE void quire_avx512_load_visible(const void *v_tile, uint64_t visible,
                                                   __m512 scale[QUIRE_AVX512_REGS])
{
    quire_avx512_load_scales(v_tile, scale);
    for (uint32_t i = 0; i < QUIRE_AVX512_REGS; i++) {
        scale[i] = _mm512_maskz_mov_ps((__mmask16)(visible >> (16 * i)), scale[i]);
    }
}

#endif /* QUIRE_ATTN_KERNELS_AVX512_H */
