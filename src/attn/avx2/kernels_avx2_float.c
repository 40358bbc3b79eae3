/* kernels_avx2_float.c - f32, f16 and bf16 tiles, widened to f32 in registers.
 *
 * A tile is a sequence of lines: in K one per dimension with 64 tokens, in V one per token with d
 * dimensions. bf16 has two values of neighbouring lines in each 32 bits ("planes"): a shift and a
 * mask widen them.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx2/kernels_avx2.h"

#define TILE QUIRE_TILE_TOKENS

QUIRE_AVX2_INLINE uint32_t planes_of(quire_format format)
{
    return format == QUIRE_FORMAT_BF16 ? 2 : 1;
}

/* Bytes of one element of a line, all its planes together. */
QUIRE_AVX2_INLINE size_t unit_of(quire_format format)
{
    return format == QUIRE_FORMAT_F16 ? 2 : 4;
}

/* 8 elements of one plane. */
QUIRE_AVX2_INLINE __m256 widen(quire_format format, const char *at, uint32_t plane)
{
    __m256i x;

    if (format == QUIRE_FORMAT_F32) {
        return _mm256_loadu_ps((const float *)(const void *)at);
    }
    if (format == QUIRE_FORMAT_F16) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
    }
    x = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm256_castsi256_ps(plane == 0
                                   ? _mm256_slli_epi32(x, 16)
                                   : _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u)));
}

/* ---- q . K ---- */

QUIRE_AVX2_INLINE void qk_block(quire_format format, uint32_t n, uint32_t regs,
                                const quire_attn_qk *args, uint32_t row, uint32_t token,
                                ptrdiff_t ahead)
{
    const uint32_t planes = planes_of(format);
    const size_t unit = unit_of(format);
    const size_t stride = quire_avx2_q_bytes(format, args->d) / sizeof(float);
    const float *q = (const float *)args->packed + row * stride;
    const char *k = (const char *)args->k_tile + token * unit;
    float *s = args->s + (size_t)row * TILE + token;
    __m256 acc[QUIRE_AVX2_ROWS_MAX][8];

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] =
                args->accumulate ? _mm256_load_ps(s + r * TILE + 8 * i) : _mm256_setzero_ps();
        }
    }
    for (uint32_t c = 0; c < args->d; c += planes, k += TILE * unit) {
        for (uint32_t at = 0; at < regs * 8 * unit; at += 64) {
            quire_avx2_prefetch(k + at, ahead);
        }
        for (uint32_t plane = 0; plane < planes; plane++) {
            __m256 x[8];

            for (uint32_t i = 0; i < regs; i++) {
                x[i] = widen(format, k + 8 * unit * i, plane);
            }
            for (uint32_t r = 0; r < n; r++) {
                __m256 weight = _mm256_broadcast_ss(q + r * stride + c + plane);

                for (uint32_t i = 0; i < regs; i++) {
                    acc[r][i] = _mm256_fmadd_ps(x[i], weight, acc[r][i]);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            _mm256_store_ps(s + r * TILE + 8 * i, acc[r][i]);
        }
    }
}

QUIRE_AVX2_INLINE void qk_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_qk *args, uint32_t row, ptrdiff_t ahead)
{
    for (uint32_t token = 0; token < TILE; token += 8 * regs) {
        qk_block(format, n, regs, args, row, token, ahead);
    }
}

QUIRE_AVX2_INLINE void qk_format(quire_format format, const quire_attn_qk *args)
{
    ptrdiff_t ahead = quire_avx2_ahead(args->k_tile, args->next);
    uint32_t row = 0;

    for (uint32_t left; (left = args->n_rows - row) > 0; ahead = 0) {
        if (left == 1) {
            qk_rows(format, 1, 8, args, row, ahead);
            row += 1;
        } else if (left == 2 || left == 5) {
            qk_rows(format, 2, 4, args, row, ahead);
            row += 2;
        } else if (left == 3) {
            qk_rows(format, 3, 4, args, row, ahead);
            row += 3;
        } else if (left == 4 || left == 7 || left == 8) {
            qk_rows(format, 4, 2, args, row, ahead);
            row += 4;
        } else {
            qk_rows(format, 6, 2, args, row, ahead);
            row += 6;
        }
    }
}

void quire_avx2_qk_float(const quire_attn_qk *args)
{
    if (args->format == QUIRE_FORMAT_F32) {
        qk_format(QUIRE_FORMAT_F32, args);
    } else if (args->format == QUIRE_FORMAT_F16) {
        qk_format(QUIRE_FORMAT_F16, args);
    } else {
        qk_format(QUIRE_FORMAT_BF16, args);
    }
}

/* ---- P . V ---- */

QUIRE_AVX2_INLINE void pv_block(quire_format format, uint32_t n, uint32_t regs,
                                const quire_attn_pv *args, uint32_t row, uint32_t dim,
                                ptrdiff_t ahead)
{
    const uint32_t planes = planes_of(format);
    const size_t unit = unit_of(format);
    const float *p = args->p + (size_t)row * TILE;
    float *o = args->o + row * args->o_stride + dim;
    uint32_t line = args->slot_begin / planes;
    const char *v = (const char *)args->v_tile + (line * (size_t)args->d + dim) * unit;
    __m256 acc[QUIRE_AVX2_ROWS_MAX][8];

    for (uint32_t r = 0; r < n; r++) {
        __m256 rescale = _mm256_broadcast_ss(args->rescale + row + r);

        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = _mm256_mul_ps(_mm256_load_ps(o + r * args->o_stride + 8 * i), rescale);
        }
    }
    for (; line * planes < args->slot_end; line++, v += args->d * unit) {
        for (uint32_t at = 0; at < regs * 8 * unit; at += 64) {
            quire_avx2_prefetch(v + at, ahead);
        }
        for (uint32_t plane = 0; plane < planes; plane++) {
            uint32_t t = line * planes + plane;
            __m256 x[8];

            if (planes > 1 && (t < args->slot_begin || t >= args->slot_end)) {
                continue; /* the neighbour in a pair may be anything, NaN too */
            }
            for (uint32_t i = 0; i < regs; i++) {
                x[i] = widen(format, v + 8 * unit * i, plane);
            }
            for (uint32_t r = 0; r < n; r++) {
                __m256 weight = _mm256_broadcast_ss(p + r * TILE + t);

                for (uint32_t i = 0; i < regs; i++) {
                    acc[r][i] = _mm256_fmadd_ps(x[i], weight, acc[r][i]);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            _mm256_store_ps(o + r * args->o_stride + 8 * i, acc[r][i]);
        }
    }
}

/* All dimensions, `regs` registers at a time, then what is left by halves. */
QUIRE_AVX2_INLINE void pv_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_pv *args, uint32_t row, ptrdiff_t ahead)
{
    uint32_t dim = 0;

    for (; dim + 8 * regs <= args->d; dim += 8 * regs) {
        pv_block(format, n, regs, args, row, dim, ahead);
    }
    if (regs > 4 && dim + 32 <= args->d) {
        pv_block(format, n, 4, args, row, dim, ahead);
        dim += 32;
    }
    if (regs > 2 && dim + 16 <= args->d) {
        pv_block(format, n, 2, args, row, dim, ahead);
        dim += 16;
    }
    if (dim < args->d) {
        pv_block(format, n, 1, args, row, dim, ahead);
    }
}

QUIRE_AVX2_INLINE void pv_format(quire_format format, const quire_attn_pv *args)
{
    ptrdiff_t ahead = quire_avx2_ahead(args->v_tile, args->next);
    uint32_t row = 0;

    for (uint32_t left; (left = args->n_rows - row) > 0; ahead = 0) {
        if (left == 1) {
            pv_rows(format, 1, 8, args, row, ahead);
            row += 1;
        } else if (left == 2 || left == 5) {
            pv_rows(format, 2, 4, args, row, ahead);
            row += 2;
        } else if (left == 3) {
            pv_rows(format, 3, 4, args, row, ahead);
            row += 3;
        } else if (left == 4 || left == 7 || left == 8) {
            pv_rows(format, 4, 2, args, row, ahead);
            row += 4;
        } else {
            pv_rows(format, 6, 2, args, row, ahead);
            row += 6;
        }
    }
}

void quire_avx2_pv_float(const quire_attn_pv *args)
{
    if (args->format == QUIRE_FORMAT_F32) {
        pv_format(QUIRE_FORMAT_F32, args);
    } else if (args->format == QUIRE_FORMAT_F16) {
        pv_format(QUIRE_FORMAT_F16, args);
    } else {
        pv_format(QUIRE_FORMAT_BF16, args);
    }
}
