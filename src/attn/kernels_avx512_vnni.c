/* kernels_avx512_vnni.c - q8 with VNNI: multiply and add in one instruction.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels_avx512_dot.h"

#define Q8_SUFFIX         _vnni
#define Q8_DOT(acc, a, b) quire_avx512_dot_words((acc), (a), (b))
#include "attn/kernels_avx512_q8.h"

/* ---- q . K of many rows ---- */

#define UNROLL     _Pragma("GCC unroll 24")
#define BYTES_ROWS 6 /* K's codes need no spreading, so more rows find room */

QUIRE_AVX512_INLINE void bytes_group(uint32_t n, const qk_block *block, const char *q, uint32_t c,
                                     __m512i acc[BYTES_ROWS][REGS])
{
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_Q8, block->args->d);
    const char *codes =
        (const char *)block->args->k_tile + SCALES_BYTES + (size_t)c * QUIRE_TILE_TOKENS;
    __m512i k[REGS];

    UNROLL
    for (uint32_t i = 0; i < REGS; i++) {
        k[i] = _mm512_load_si512(codes + 64 * i);
    }
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const void *from = q + r * q_bytes + c;
        __m512i x = _mm512_set1_epi32(*(const int32_t *)from);

        UNROLL
        for (uint32_t i = 0; i < REGS; i++) {
            acc[r][i] = quire_avx512_dot_bytes(acc[r][i], k[i], x);
        }
    }
}

QUIRE_AVX512_INLINE void bytes_rows(uint32_t n, qk_block *block)
{
    const quire_attn_qk *args = block->args;
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_Q8, args->d);
    const char *packed = (const char *)args->packed + block->row * q_bytes;
    const char *q = packed + quire_avx512_q8_bytes_offset(args->d);
    __m512i acc[BYTES_ROWS][REGS];

    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const void *header = packed + k / REGS * q_bytes;

        acc[k / REGS][k % REGS] =
            _mm512_set1_epi32(((const quire_avx512_q8_header *)header)->start);
    }
    for (uint32_t c = 0; c < args->d; c += GROUP) {
        quire_avx512_prefetch(&block->ahead, 64 * REGS);
        bytes_group(n, block, q, c, acc);
    }
    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const void *header = packed + k / REGS * q_bytes;
        const __m512 scale = _mm512_set1_ps(((const quire_avx512_q8_header *)header)->scale);
        float *s = args->s + block->row * (size_t)QUIRE_TILE_TOKENS + (size_t)16 * k;
        __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[k / REGS][k % REGS]), scale);

        x = _mm512_mul_ps(x, block->k_scale[k % REGS]);
        _mm512_store_ps(s, args->accumulate ? _mm512_add_ps(_mm512_load_ps(s), x) : x);
    }
}

static void qk_bytes(const quire_attn_qk *args)
{
    qk_block block = { .args = args,
                       .ahead = quire_avx512_ahead_of(args->k_tile, args->next,
                                                      (args->n_rows + 5) / 6) };

    load_scales(args->k_tile, block.k_scale);
    quire_avx512_prefetch(&block.ahead, SCALES_BYTES);
    while (block.row < args->n_rows) {
        uint32_t n = quire_avx512_next_6(args->n_rows - block.row);

        QUIRE_AVX512_UP_TO_6(n, bytes_rows, &block);
        block.row += n;
        quire_avx512_ahead_advance(&block.ahead, args->k_tile);
    }
}

/* Both give the same bits. Of few rows memory is the limit, and beside products of bytes prefetches
 * come too fast for it: 3 rows of head 64 take a third longer than with words. */
void quire_avx512_qk_q8_vnni(const quire_attn_qk *args)
{
    if (args->n_rows > 4) {
        qk_bytes(args);
    } else {
        qk_words(args);
    }
}
