/* kernels_avx2.h - shared by the AVX2 kernel files: their parts, and the blocking of rows.
 *
 * A block is n rows against `regs` registers of the tile (8 tokens in qk, 8 dimensions in pv each),
 * so that n * regs accumulators, the tile's registers and a broadcast fit the 16 registers: few
 * rows take many registers of the tile, so that there are always enough sums in flight to hide the
 * latency of an FMA. A body is written once and inlined with constants for each size. The additions
 * of a row come in the same order in all of them, so its bits do not depend on the block it came
 * in.
 *
 * Include only from files compiled for AVX2 (quire_isa_sources in cmake/flags.cmake).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX2_H
#define QUIRE_ATTN_KERNELS_AVX2_H

#include "attn/kernels.h"

#include <immintrin.h>

#define QUIRE_AVX2_ROWS_MAX 6u

/* Bodies rely on being inlined with constant arguments. */
#define QUIRE_AVX2_INLINE static inline __attribute__((always_inline))

/* Bytes of a packed q8 query row: a header, then for each 4 dimensions the pairs (0, 2), (1, 3). */
typedef struct quire_avx2_q8_header {
    float scale;
    int32_t start; /* -128 * sum of the row: takes back the offset of the stored K codes */
    char unused[56];
} quire_avx2_q8_header;

/* Start of a packed query row of a sealed format, before f32 x[d] and then the integers: bytes for
 * VNNI, else for each 4 dimensions the int16 pairs (0, 2), (1, 3). */
typedef struct quire_avx2_sealed_header {
    float scale;
    int32_t start; /* -128 * sum of the integers: takes back the offset of the looked up levels */
    char unused[56];
} quire_avx2_sealed_header;

void quire_avx2_qk_float(const quire_attn_qk *args);
void quire_avx2_pv_float(const quire_attn_pv *args);
void quire_avx2_qk_q8(const quire_attn_qk *args);
void quire_avx2_pv_q8(const quire_attn_pv *args);
void quire_avx2_qk_q8_vnni(const quire_attn_qk *args);
void quire_avx2_pv_q8_vnni(const quire_attn_pv *args);
void quire_avx2_q_pack_sealed(uint32_t d, float scale, const float *q, void *packed);
void quire_avx2_qk_sealed(const quire_attn_qk *args);
void quire_avx2_pv_sealed(const quire_attn_pv *args);
void quire_avx2_q_pack_sealed_vnni(uint32_t d, float scale, const float *q, void *packed);
void quire_avx2_qk_sealed_vnni(const quire_attn_qk *args);
void quire_avx2_pv_sealed_vnni(const quire_attn_pv *args);

/* Bytes before the integers of a packed query row of a sealed format. */
QUIRE_AVX2_INLINE size_t quire_avx2_sealed_weights_offset(uint32_t d)
{
    return sizeof(quire_avx2_sealed_header) + d * sizeof(float);
}

/* Bytes between packed query rows of a sealed format, with VNNI or without. */
QUIRE_AVX2_INLINE size_t quire_avx2_sealed_q_bytes(uint32_t d)
{
    return (quire_avx2_sealed_weights_offset(d) + d * sizeof(int16_t) + 63u) & ~(size_t)63u;
}

/* Bytes between packed query rows of f32, f16, bf16 and q8. */
QUIRE_AVX2_INLINE size_t quire_avx2_q_bytes(quire_format format, uint32_t d)
{
    size_t bytes = format == QUIRE_FORMAT_Q8 ? sizeof(quire_avx2_q8_header) + d * sizeof(int16_t)
                                             : d * sizeof(float);

    return (bytes + 63u) & ~(size_t)63u;
}

/* The distance from an address in this tile to the same place of the next one; 0 without a hint. */
QUIRE_AVX2_INLINE ptrdiff_t quire_avx2_ahead(const void *tile, const void *next)
{
    return next == NULL ? 0 : (ptrdiff_t)((uintptr_t)next - (uintptr_t)tile);
}

QUIRE_AVX2_INLINE void quire_avx2_prefetch(const void *at, ptrdiff_t ahead)
{
    _mm_prefetch((const char *)((uintptr_t)at + (uintptr_t)ahead), _MM_HINT_T0);
}

#endif /* QUIRE_ATTN_KERNELS_AVX2_H */
