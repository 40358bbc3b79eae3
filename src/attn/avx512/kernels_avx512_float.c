/* kernels_avx512_float.c - f32, f16 and bf16 tiles: widened to f32 in registers, then FMA.
 *
 * bf16 takes this road where the CPU has no products of bf16, or QUIRE_ISA says avx512: the same
 * bits on every CPU with AVX-512. Widening costs a shift or an AND, which run beside the FMAs.
 *
 * Order of additions: a logit adds its dimensions upwards in one accumulator; an output adds its
 * tokens upwards in one accumulator, starting from o * rescale.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512.h"

#define ROWS 6
#define REGS QUIRE_AVX512_REGS
#define WIDE (2 * REGS) /* registers of V for up to 2 rows */

/* bf16 pairs: the even half moves up, the odd half stays. */
QUIRE_AVX512_INLINE __m512 widen_bf16(__m512i pairs, uint32_t parity)
{
    return _mm512_castsi512_ps(parity == 0
                                   ? _mm512_slli_epi32(pairs, 16)
                                   : _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

/* Bytes of one element: a value, or a pair of bf16. */
QUIRE_AVX512_INLINE size_t element_bytes(quire_format format)
{
    return format == QUIRE_FORMAT_F16 ? 2 : 4;
}

/* The 16 values at `at`, one half of the pairs for bf16; half: only the first 8, the rest 0. */
QUIRE_AVX512_INLINE __m512 load(quire_format format, const char *at, uint32_t parity, bool half)
{
    switch (format) {
    case QUIRE_FORMAT_F32:
        return half ? _mm512_maskz_loadu_ps(0xff, at) : _mm512_loadu_ps(at);
    case QUIRE_FORMAT_F16:
        return _mm512_cvtph_ps(half ? _mm256_zextsi128_si256(_mm_loadu_si128((const void *)at))
                                    : _mm256_loadu_si256((const void *)at));
    default:
        return widen_bf16(half ? _mm512_maskz_loadu_epi32(0xff, at) : _mm512_loadu_si512(at),
                          parity);
    }
}

/* ---- q . K ---- */

QUIRE_AVX512_INLINE void qk_rows(uint32_t n, quire_format format, const quire_attn_qk *args,
                                 uint32_t row, quire_avx512_ahead *ahead)
{
    const size_t q_stride = quire_avx512_q_bytes(format, args->d) / sizeof(float);
    const size_t line_bytes = QUIRE_TILE_TOKENS * element_bytes(format);
    const float *q = (const float *)args->packed + row * q_stride;
    const char *line = args->k_tile; /* of dimension c, or of the pair c, c + 1 */
    __m512 acc[ROWS][REGS];

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < REGS; i++) {
            acc[r][i] = _mm512_setzero_ps();
        }
    }
    for (uint32_t c = 0; c < args->d; c += 2) {
        for (uint32_t odd = 0; odd < 2; odd++) {
            bool is_pair = format == QUIRE_FORMAT_BF16;
            __m512 k[REGS];

            if (odd == 0) {
                quire_avx512_prefetch(ahead, is_pair ? line_bytes : 2 * line_bytes);
            }
            for (uint32_t i = 0; i < REGS; i++) {
                k[i] = load(format, line + 16 * i * element_bytes(format), odd, false);
            }
            for (uint32_t r = 0; r < n; r++) {
                __m512 x = _mm512_set1_ps(q[r * q_stride + c + odd]);

                for (uint32_t i = 0; i < REGS; i++) {
                    acc[r][i] = _mm512_fmadd_ps(k[i], x, acc[r][i]);
                }
            }
            line += is_pair && odd == 0 ? 0 : line_bytes;
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < REGS; i++) {
            float *s = args->s + (row + r) * QUIRE_TILE_TOKENS + 16 * i;

            _mm512_store_ps(s, args->accumulate ? _mm512_add_ps(_mm512_load_ps(s), acc[r][i])
                                                : acc[r][i]);
        }
    }
}

QUIRE_AVX512_INLINE void qk_format(quire_format format, const quire_attn_qk *args)
{
    quire_avx512_ahead ahead = quire_avx512_ahead_of_qk(args, (args->n_rows + 5) / 6);

    for (uint32_t row = 0; row < args->n_rows;) {
        uint32_t n = quire_avx512_next_6(args->n_rows - row);

        QUIRE_AVX512_UP_TO_6(n, qk_rows, format, args, row, &ahead);
        row += n;
        quire_avx512_ahead_advance(&ahead, args->k_tile);
    }
}

void quire_avx512_qk_float(const quire_attn_qk *args)
{
    switch (args->format) {
    case QUIRE_FORMAT_F32:
        qk_format(QUIRE_FORMAT_F32, args);
        break;
    case QUIRE_FORMAT_F16:
        qk_format(QUIRE_FORMAT_F16, args);
        break;
    default:
        qk_format(QUIRE_FORMAT_BF16, args);
        break;
    }
}

/* ---- P . V ---- */

/* The rows of a block and the dimensions they are working on. */
typedef struct pv_block {
    const quire_attn_pv *args;
    uint32_t row;
    uint32_t dim;
    quire_avx512_ahead ahead;
} pv_block;

/* The constants that a body is compiled for. */
typedef struct pv_shape {
    quire_format format;
    uint32_t n;    /* rows */
    uint32_t regs; /* of 16 dimensions */
    bool half;     /* regs is 1, and there are 8 dimensions only */
} pv_shape;

/* One token, the odd one of its pair or not, against the rows of a block. */
QUIRE_AVX512_INLINE void pv_token(pv_shape shape, pv_block *block, uint32_t t, uint32_t odd,
                                  __m512 acc[ROWS][WIDE])
{
    const quire_attn_pv *args = block->args;
    const float *p = args->p + (size_t)block->row * QUIRE_TILE_TOKENS + t;
    bool is_pair = shape.format == QUIRE_FORMAT_BF16;
    size_t line = (size_t)(is_pair ? t / 2 : t) * args->d + block->dim;
    const char *at = (const char *)args->v_tile + line * element_bytes(shape.format);
    size_t reg_bytes = 16 * element_bytes(shape.format);
    __m512 v[WIDE];

    if (odd == 0) {
        quire_avx512_prefetch(&block->ahead, shape.regs * reg_bytes * (is_pair ? 1 : 2));
    }
    for (uint32_t i = 0; i < shape.regs; i++) {
        v[i] = load(shape.format, at + i * reg_bytes, odd, shape.half);
    }
    for (uint32_t r = 0; r < shape.n; r++) {
        __m512 x = _mm512_set1_ps(p[r * QUIRE_TILE_TOKENS]);

        for (uint32_t i = 0; i < shape.regs; i++) {
            acc[r][i] = _mm512_fmadd_ps(v[i], x, acc[r][i]);
        }
    }
}

QUIRE_AVX512_INLINE void pv_cols(pv_shape shape, pv_block *block)
{
    const quire_attn_pv *args = block->args;
    float *o = args->o + block->row * args->o_stride + block->dim;
    uint32_t end = args->slot_end;
    uint32_t t = args->slot_begin;
    __m512 acc[ROWS][WIDE];

    for (uint32_t r = 0; r < shape.n; r++) {
        __m512 rescale = _mm512_set1_ps(args->rescale[block->row + r]);

        for (uint32_t i = 0; i < shape.regs; i++) {
            acc[r][i] = _mm512_mul_ps(_mm512_load_ps(o + r * args->o_stride + 16 * i), rescale);
        }
    }
    if ((t & 1) != 0 && t < end) {
        pv_token(shape, block, t++, 1, acc);
    }
    for (; t + 2 <= end; t += 2) {
        pv_token(shape, block, t, 0, acc);
        pv_token(shape, block, t + 1, 1, acc);
    }
    if (t < end) {
        pv_token(shape, block, t, 0, acc);
    }
    for (uint32_t r = 0; r < shape.n; r++) {
        for (uint32_t i = 0; i < shape.regs; i++) {
            _mm512_store_ps(o + r * args->o_stride + 16 * i, acc[r][i]);
        }
    }
}

QUIRE_AVX512_INLINE void pv_rows(uint32_t n, quire_format format, pv_block *block)
{
    uint32_t d = block->args->d;

    block->dim = 0;
    if (n <= 2) {
        for (; block->dim + 128 <= d; block->dim += 128) {
            pv_cols((pv_shape){ format, n, WIDE, false }, block);
        }
    }
    for (; block->dim + 64 <= d; block->dim += 64) {
        pv_cols((pv_shape){ format, n, 4, false }, block);
    }
    if ((d & 32) != 0) {
        pv_cols((pv_shape){ format, n, 2, false }, block);
        block->dim += 32;
    }
    if ((d & 16) != 0) {
        pv_cols((pv_shape){ format, n, 1, false }, block);
        block->dim += 16;
    }
    if ((d & 8) != 0) {
        pv_cols((pv_shape){ format, n, 1, true }, block);
    }
}

QUIRE_AVX512_INLINE void pv_format(quire_format format, const quire_attn_pv *args)
{
    pv_block block = { .args = args,
                       .ahead = quire_avx512_ahead_of_pv(args, (args->n_rows + 5) / 6) };

    while (block.row < args->n_rows) {
        uint32_t n = quire_avx512_next_6(args->n_rows - block.row);

        QUIRE_AVX512_UP_TO_6(n, pv_rows, format, &block);
        block.row += n;
        quire_avx512_ahead_advance(&block.ahead, args->v_tile);
    }
}

void quire_avx512_pv_float(const quire_attn_pv *args)
{
    switch (args->format) {
    case QUIRE_FORMAT_F32:
        pv_format(QUIRE_FORMAT_F32, args);
        break;
    case QUIRE_FORMAT_F16:
        pv_format(QUIRE_FORMAT_F16, args);
        break;
    default:
        pv_format(QUIRE_FORMAT_BF16, args);
        break;
    }
}
