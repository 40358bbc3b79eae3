/* kernels_neon.h - shared by the NEON kernel files: their parts, and the blocking of rows.
 *
 * A block is n rows against `regs` registers of the tile (4 tokens in qk, 4 dimensions in pv each),
 * with n * regs = 16 accumulators (12 for 3 rows), so that there are always enough sums in flight
 * to hide the latency of an FMA and all of it fits the 32 registers. A body is written once and
 * inlined with constants for each size. The additions of a row come in the same order in all of
 * them, so its bits do not depend on the block it came in.
 *
 * Include only from files compiled for AArch64 (quire_isa_sources in cmake/flags.cmake).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_NEON_H
#define QUIRE_ATTN_KERNELS_NEON_H

#include "attn/kernels.h"

#include <arm_neon.h>

#define QUIRE_NEON_ROWS_MAX 4u
#define QUIRE_NEON_LINE     64u /* bytes that one prefetch brings */

/* Bodies rely on being inlined with constant arguments. */
#define QUIRE_NEON_INLINE static inline __attribute__((always_inline))

/* Bytes of a packed q8 query row: a header, then for each 4 dimensions the pairs (0, 2), (1, 3). */
typedef struct quire_neon_q8_header {
    float scale;
    int32_t start; /* -64 * sum of the row: two lanes of it take back the offset of the K codes */
    char unused[56];
} quire_neon_q8_header;

/* Start of a packed query row of a sealed format, before f32 x[d] and int8 n[d]. */
typedef struct quire_neon_sealed_header {
    float scale;
    char unused[60];
} quire_neon_sealed_header;

void quire_neon_qk_float(const quire_attn_qk *args);
void quire_neon_pv_float(const quire_attn_pv *args);
void quire_neon_qk_q8(const quire_attn_qk *args);
void quire_neon_pv_q8(const quire_attn_pv *args);
void quire_neon_qk_sealed(const quire_attn_qk *args);
void quire_neon_pv_sealed(const quire_attn_pv *args);
void quire_neon_qk_sealed_dotprod(const quire_attn_qk *args);
void quire_neon_pv_sealed_dotprod(const quire_attn_pv *args);

/* Bytes before the integers of a packed query row of a sealed format. */
QUIRE_NEON_INLINE size_t quire_neon_sealed_weights_offset(uint32_t d)
{
    return sizeof(quire_neon_sealed_header) + d * sizeof(float);
}

/* Bytes between packed query rows of a sealed format. */
QUIRE_NEON_INLINE size_t quire_neon_sealed_q_bytes(uint32_t d)
{
    return (quire_neon_sealed_weights_offset(d) + d + 63u) & ~(size_t)63u;
}

/* Bytes between packed query rows of f32, f16, bf16 and q8. */
QUIRE_NEON_INLINE size_t quire_neon_q_bytes(quire_format format, uint32_t d)
{
    size_t bytes = format == QUIRE_FORMAT_Q8 ? sizeof(quire_neon_q8_header) + d * sizeof(int16_t)
                                             : d * sizeof(float);

    return (bytes + 63u) & ~(size_t)63u;
}

/* Rows of the next block when `left` are to do: no block of one row where it can be avoided. */
QUIRE_NEON_INLINE uint32_t quire_neon_block_rows(uint32_t left)
{
    if (left == 5 || left == 6) {
        return 3;
    }
    return left < QUIRE_NEON_ROWS_MAX ? left : QUIRE_NEON_ROWS_MAX;
}

/* The distance from an address in this tile to the same place of the next one; 0 without a hint. */
QUIRE_NEON_INLINE ptrdiff_t quire_neon_ahead(const void *tile, const void *next)
{
    return next == NULL ? 0 : (ptrdiff_t)((uintptr_t)next - (uintptr_t)tile);
}

QUIRE_NEON_INLINE void quire_neon_prefetch(const void *at, ptrdiff_t ahead)
{
    __builtin_prefetch((const char *)((uintptr_t)at + (uintptr_t)ahead));
}

QUIRE_NEON_INLINE float32x4_t quire_neon_load_f16(const uint16_t *at)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at)));
}

#endif /* QUIRE_ATTN_KERNELS_NEON_H */
