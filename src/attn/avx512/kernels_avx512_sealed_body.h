/* kernels_avx512_sealed_body.h - the kernels of sealed formats (q6 q5 q4 q3), for each of the CPUs
 * that a set is compiled for.
 *
 * The including file defines
 *   SEALED_SUFFIX                                 of the function names
 *   SEALED_DOT(acc, a, b)                         acc plus the sums of 4 products u8 * s8, exact
 *   SEALED_LOOK_UP(format, quad, table, index)    see kernels_avx512_levels_body.h
 *   SEALED_DIRECT_ROWS                            up to so many rows expand as they go
 *   SEALED_WEIGHS                                 1: the set has weigh, pv is given weights
 *   SEALED_AMX                                    1: more rows are multiplied by AMX
 *
 * A block of few rows (decode) expands codes to levels in registers on the way to the dot products.
 * With more rows (prefill) a tile is expanded once, into a buffer in q8's code layout that stays in
 * the L1 or L2 cache, and the blocks of rows read that. Both have the same integers.
 *
 * K levels are unsigned (+128), so accumulators start at -128 * sum(n), as q8's do.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_levels_body.h"
#include "attn/avx512/kernels_avx512_weights.h"
#if SEALED_AMX
#include "attn/amx/kernels_amx.h"
#include "base/num.h"
#endif

#define ROWS        6u /* of a block at most */
#define REGS        QUIRE_AVX512_REGS
#define EXPANDED    QUIRE_FORMAT_COUNT /* stands for a format: levels lie in a buffer */
#define LEVEL_BYTES (QUIRE_HEAD_DIM_MAX * QUIRE_TILE_TOKENS)

/* Accumulators stay in registers only where the loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 32")

#define SEALED_JOIN_(a, b) a##b
#define SEALED_JOIN(a, b)  SEALED_JOIN_(a, b)
#define SEALED_NAME(name)  SEALED_JOIN(name, SEALED_SUFFIX)

/* Call body(n, format, ...) with format as a constant. */
#define BY_FORMAT(format, body, ...)                                                               \
    do {                                                                                           \
        switch (format) {                                                                          \
        case QUIRE_FORMAT_Q6:                                                                      \
            body(QUIRE_FORMAT_Q6, __VA_ARGS__);                                                    \
            break;                                                                                 \
        case QUIRE_FORMAT_Q5:                                                                      \
            body(QUIRE_FORMAT_Q5, __VA_ARGS__);                                                    \
            break;                                                                                 \
        case QUIRE_FORMAT_Q4:                                                                      \
            body(QUIRE_FORMAT_Q4, __VA_ARGS__);                                                    \
            break;                                                                                 \
        default:                                                                                   \
            body(QUIRE_FORMAT_Q3, __VA_ARGS__);                                                    \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

/* Bytes of a format's planes that one step of a register takes, on average. */
QUIRE_AVX512_INLINE size_t step_bytes(quire_format format)
{
    return 16u * (quire_sealed_low_bits(format) + quire_sealed_high_bits(format));
}

#include "attn/avx512/kernels_avx512_sealed_pv_body.h"
#include "attn/avx512/kernels_avx512_sealed_qk_body.h"
