/* kernels_avx512_bf16.c - bf16 tiles on CPUs that multiply bf16: q and P rounded to bf16, pairs of
 * products added to float sums by vdpbf16ps (kernels.h has the scheme).
 *
 * That is half the multiplications of widening K and V to f32 (kernels_avx512_float.c), and none of
 * the widening; on Zen 5 both instructions issue twice per cycle.
 *
 * The instruction flushes denormals and rounds to nearest whatever the thread's settings.
 *
 * Order of additions: a logit adds its pairs of dimensions upwards in one accumulator; an output
 * adds its pairs of tokens upwards in one accumulator, starting from o * rescale.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels_avx512.h"

#define ROWS 6u
#define REGS QUIRE_AVX512_REGS
#define WIDE (2 * REGS) /* registers of V for up to 2 rows */

#define PAIRS       (QUIRE_TILE_TOKENS / 2) /* of tokens */
#define PAIR_BYTES  4u
#define EVEN_OF_ALL 0x0000ffff
#define ODD_OF_ALL  ((int32_t)0xffff0000u)

/* Accumulators stay in registers only where the loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 32")

/* acc plus the sums of neighbouring products. As assembly for the reason that
 * kernels_avx512_dot.h gives. */
QUIRE_AVX512_INLINE __m512 dot_pairs(__m512 acc, __m512i a, __m512i b)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

QUIRE_AVX512_INLINE __m512i broadcast_pair(const void *at)
{
    return _mm512_set1_epi32(*(const int32_t *)at);
}

/* A block that prefetches a whole tile asks for lines faster than memory delivers them. The CPU's
 * own prefetchers stop at the end of a page of 4 KB, so a tile of two pages comes from both at once
 * (3 rows of head 64 out of memory: 8.8 -> 7.9 ns by token and kv head). Larger tiles lose by it
 * (4 rows of head 128: 16.7 -> 19.1), and without any prefetch it is 12.1 and 26.0.
 * regs: lines of the own tile that are worked on; half: bytes of half a tile. */
QUIRE_AVX512_INLINE void prefetch(quire_avx512_ahead *ahead, uint32_t regs, size_t half)
{
    if (ahead->n_shares > 1 || regs < 2 || half > 4096) {
        quire_avx512_prefetch(ahead, 64 * (size_t)regs);
        return;
    }
    for (uint32_t i = 0; i < regs / 2; i++) {
        _mm_prefetch((const char *)ahead->at, _MM_HINT_T0);
        _mm_prefetch((const char *)(ahead->at + half), _MM_HINT_T0);
        ahead->at += 64;
    }
}

/* 32 floats, of which the first n_some are there and the others 0, as bf16 in their order. */
QUIRE_AVX512_INLINE __m512i round_32(const float *x, uint32_t n_some, float scale)
{
    const uint32_t lanes = n_some >= 32 ? ~0u : (1u << n_some) - 1;
    __m512 low = _mm512_maskz_loadu_ps((__mmask16)lanes, x);
    __m512 high = _mm512_setzero_ps();

    if (n_some > 16) {
        high = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), x + 16);
    }
    low = _mm512_mul_ps(low, _mm512_set1_ps(scale));
    high = _mm512_mul_ps(high, _mm512_set1_ps(scale));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

void quire_avx512_bf16_pack(uint32_t d, float scale, const float *q, void *packed)
{
    for (uint32_t c = 0; c < d; c += 32) {
        _mm512_store_si512((char *)packed + 2 * (size_t)c, round_32(q + c, d - c, scale));
    }
}

/* ---- q . K ---- */

QUIRE_AVX512_INLINE void qk_rows(uint32_t n, const quire_attn_qk *args, uint32_t row,
                                 quire_avx512_ahead *ahead)
{
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_BF16, args->d);
    const size_t line_bytes = QUIRE_TILE_TOKENS * PAIR_BYTES;
    const size_t half_bytes = args->d / 4 * line_bytes;
    const char *q = (const char *)args->packed + row * q_bytes;
    const char *line = args->k_tile; /* of dimensions 2c, 2c + 1 */
    float *s = args->s + row * (size_t)QUIRE_TILE_TOKENS;
    __m512 acc[ROWS][REGS];

    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        acc[k / REGS][k % REGS] = _mm512_setzero_ps();
    }
    for (uint32_t c = 0; c < args->d / 2; c++, line += line_bytes) {
        __m512i pair[REGS];

        prefetch(ahead, REGS, half_bytes);
        UNROLL
        for (uint32_t i = 0; i < REGS; i++) {
            pair[i] = _mm512_load_si512(line + 64 * i);
        }
        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            __m512i x = broadcast_pair(q + r * q_bytes + PAIR_BYTES * c);

            UNROLL
            for (uint32_t i = 0; i < REGS; i++) {
                acc[r][i] = dot_pairs(acc[r][i], pair[i], x);
            }
        }
    }
    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        __m512 x = acc[k / REGS][k % REGS];

        _mm512_store_ps(s + 16 * k,
                        args->accumulate ? _mm512_add_ps(_mm512_load_ps(s + 16 * k), x) : x);
    }
}

void quire_avx512_qk_bf16(const quire_attn_qk *args)
{
    quire_avx512_ahead ahead =
        quire_avx512_ahead_of(args->k_tile, args->next, (args->n_rows + 5) / 6);

    for (uint32_t row = 0; row < args->n_rows;) {
        uint32_t n = quire_avx512_next_6(args->n_rows - row);

        QUIRE_AVX512_UP_TO_6(n, qk_rows, args, row, &ahead);
        row += n;
        quire_avx512_ahead_advance(&ahead, args->k_tile);
    }
}

/* ---- P . V ---- */

/* A block of rows, its weights as bf16, and the dimensions it is working on. */
typedef struct pv_block {
    const quire_attn_pv *args;
    uint32_t row;
    uint32_t dim;
    quire_avx512_ahead ahead;
    _Alignas(64) int32_t pairs[ROWS][PAIRS];
} pv_block;

/* What a body is compiled for. */
typedef struct pv_shape {
    uint32_t n;    /* rows */
    uint32_t regs; /* of 16 dimensions */
    bool half;     /* regs is 1, and there are 8 dimensions only */
} pv_shape;

/* One pair of tokens against the rows of a block; of V only the bits in mask count. */
QUIRE_AVX512_INLINE void pv_pair(pv_shape shape, pv_block *block, uint32_t pair, int32_t mask,
                                 __m512 acc[ROWS][WIDE])
{
    const quire_attn_pv *args = block->args;
    const char *at =
        (const char *)args->v_tile + ((size_t)pair * args->d + block->dim) * PAIR_BYTES;
    __m512i v[WIDE];

    prefetch(&block->ahead, shape.regs, (size_t)args->d * PAIRS / 2 * PAIR_BYTES);
    UNROLL
    for (uint32_t i = 0; i < shape.regs; i++) {
        v[i] = shape.half ? _mm512_maskz_loadu_epi32(0xff, at) : _mm512_loadu_si512(at + 64 * i);
        v[i] = mask == -1 ? v[i] : _mm512_and_si512(v[i], _mm512_set1_epi32(mask));
    }
    UNROLL
    for (uint32_t r = 0; r < shape.n; r++) {
        __m512i x = broadcast_pair(&block->pairs[r][pair]);

        UNROLL
        for (uint32_t i = 0; i < shape.regs; i++) {
            acc[r][i] = dot_pairs(acc[r][i], v[i], x);
        }
    }
}

QUIRE_AVX512_INLINE void pv_cols(pv_shape shape, pv_block *block)
{
    const quire_attn_pv *args = block->args;
    const size_t o_stride = args->o_stride;
    const uint32_t end = args->slot_end / 2;
    float *o = args->o + block->row * o_stride + block->dim;
    uint32_t pair = args->slot_begin / 2;
    __m512 acc[ROWS][WIDE];

    UNROLL
    for (uint32_t k = 0; k < shape.n * shape.regs; k++) {
        const uint32_t r = k / shape.regs;
        const uint32_t i = k % shape.regs;

        acc[r][i] = _mm512_mul_ps(_mm512_load_ps(o + r * o_stride + 16 * i),
                                  _mm512_set1_ps(args->rescale[block->row + r]));
    }
    if ((args->slot_begin & 1) != 0 && args->slot_begin < args->slot_end) {
        pv_pair(shape, block, pair++, ODD_OF_ALL, acc);
    }
    for (; pair < end; pair++) {
        pv_pair(shape, block, pair, -1, acc);
    }
    if ((args->slot_end & 1) != 0 && pair == end) {
        pv_pair(shape, block, pair, EVEN_OF_ALL, acc);
    }
    UNROLL
    for (uint32_t k = 0; k < shape.n * shape.regs; k++) {
        const uint32_t r = k / shape.regs;
        const uint32_t i = k % shape.regs;

        _mm512_store_ps(o + r * o_stride + 16 * i, acc[r][i]);
    }
}

QUIRE_AVX512_INLINE void pv_rows(uint32_t n, pv_block *block)
{
    const float *p = block->args->p + block->row * (size_t)QUIRE_TILE_TOKENS;
    uint32_t d = block->args->d;

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t += 32) {
            _mm512_store_si512(&block->pairs[r][t / 2],
                               round_32(p + r * QUIRE_TILE_TOKENS + t, 32, 1.0f));
        }
    }
    block->dim = 0;
    if (n <= 2) {
        for (; block->dim + 128 <= d; block->dim += 128) {
            pv_cols((pv_shape){ n, WIDE, false }, block);
        }
    }
    for (; block->dim + 64 <= d; block->dim += 64) {
        pv_cols((pv_shape){ n, 4, false }, block);
    }
    if ((d & 32) != 0) {
        pv_cols((pv_shape){ n, 2, false }, block);
        block->dim += 32;
    }
    if ((d & 16) != 0) {
        pv_cols((pv_shape){ n, 1, false }, block);
        block->dim += 16;
    }
    if ((d & 8) != 0) {
        pv_cols((pv_shape){ n, 1, true }, block);
    }
}

void quire_avx512_pv_bf16(const quire_attn_pv *args)
{
    pv_block block;

    block.args = args;
    block.ahead = quire_avx512_ahead_of(args->v_tile, args->next, (args->n_rows + 5) / 6);
    for (block.row = 0; block.row < args->n_rows;) {
        uint32_t n = quire_avx512_next_6(args->n_rows - block.row);

        QUIRE_AVX512_UP_TO_6(n, pv_rows, &block);
        block.row += n;
        quire_avx512_ahead_advance(&block.ahead, args->v_tile);
    }
}
