/* kernels_avx512_softmax.h - what the two softmaxes of AVX-512 have in common: everything but the
 * weights themselves, which are floats (kernels_avx512.c) or bf16 (kernels_avx512_bf16.c).
 *
 * Up to 32 rows go through each step together, so that one does not wait for the maximum of its
 * own. Within a step they are taken 4 at a time, which share registers for what concerns a row as a
 * whole: row r has lanes 4r .. 4r + 3; what follows from a maximum is worked out for 16.
 *
 * Include only from files compiled for AVX-512.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX512_SOFTMAX_H
#define QUIRE_ATTN_KERNELS_AVX512_SOFTMAX_H

#include "attn/kernels_avx512.h"

#define QUIRE_AVX512_SOFTMAX_ROWS 32u /* that go through each step together */

typedef struct quire_avx512_rows {
    bool is_whole; /* all slots of all rows are visible */
    uint32_t slot_begin;
    const uint32_t *slot_end; /* by row, as the others */
    float *s;
    float *m;
    float *l;
    float *rescale;
    _Alignas(64) float shift[QUIRE_AVX512_SOFTMAX_ROWS]; /* what to subtract from the logits */
} quire_avx512_rows;

/* e^x for x <= QUIRE_ATTN_RISE in the chosen lanes, within 2 ulp, 0 in the others. 0 also where the
 * result would be denormal (they are slow on some CPUs and weigh nothing), so for -Inf; NaN stays.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r (1 + r Q(r)), Q the minimax polynomial of degree
 * 3 for the relative error of e^r (Remez exchange, 1.05e-7). ln 2 in one float is off by 1.9e-9,
 * so a weight of 2^-n by n times that: next to nothing where it counts. Multiplications are few,
 * because they are what the dot products before and after wait for. */
QUIRE_AVX512_INLINE __m512 quire_avx512_exp(__mmask16 lanes, __m512 x)
{
    const __m512 log2_e = _mm512_set1_ps(0x1.715476p+0f);
    const __m512 ln2 = _mm512_set1_ps(0x1.62e43p-1f);
    const __m512 to_integer =
        _mm512_set1_ps(0x1.8p+23f); /* added, it leaves no room for a fraction */
    __mmask16 is_normal = _mm512_mask_cmp_ps_mask(lanes, x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, log2_e, to_integer), to_integer);
    __m512 r = _mm512_fnmadd_ps(n, ln2, x);
    __m512 q = _mm512_set1_ps(0x1.10627p-7f);

    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.572a1ep-5f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.5557aep-3f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.fffdfcp-2f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(is_normal, q, n);
}

/* The first n of 4 numbers, each in 4 lanes. */
QUIRE_AVX512_INLINE __m512 quire_avx512_spread(uint32_t n, const float *x)
{
    const __m512i rows = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    __m128 few = n == 4 ? _mm_loadu_ps(x) : _mm_maskz_loadu_ps((__mmask8)((1u << n) - 1), x);

    return _mm512_permutexvar_ps(rows, _mm512_castps128_ps512(few));
}

/* The reverse. 16 bytes only: a wider store with a mask would make the next block's loads wait. */
QUIRE_AVX512_INLINE void quire_avx512_store_rows(uint32_t n, float *to, __m512 x)
{
    const __m512i lanes = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    __m128 few = _mm512_castps512_ps128(_mm512_permutexvar_ps(lanes, x));

    if (n == 4) {
        _mm_storeu_ps(to, few);
    } else {
        _mm_mask_storeu_ps(to, (__mmask8)((1u << n) - 1), few);
    }
}

/* The slots that a row sees, as bits. */
QUIRE_AVX512_INLINE uint64_t quire_avx512_visible(bool is_whole, const quire_avx512_rows *rows,
                                                  uint32_t row)
{
    return is_whole ? ~(uint64_t)0 : quire_avx512_slot_mask(rows->slot_begin, rows->slot_end[row]);
}

/* The largest visible logit of each of n <= 4 rows from `row` on; NaN does not count (vmaxps gives
 * its second operand then). */
QUIRE_AVX512_INLINE __m512 quire_avx512_four_max(uint32_t n, bool is_whole,
                                                 const quire_avx512_rows *rows, uint32_t row)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 top[4];

    for (uint32_t r = 0; r < n; r++) {
        uint64_t visible = quire_avx512_visible(is_whole, rows, row + r);
        __m512 half[2] = { none, none };

        for (uint32_t i = 0; i < QUIRE_AVX512_REGS; i++) {
            __m512 x = _mm512_load_ps(rows->s + (row + r) * (size_t)QUIRE_TILE_TOKENS + 16 * i);

            half[i % 2] =
                _mm512_mask_max_ps(half[i % 2], (__mmask16)(visible >> (16 * i)), x, half[i % 2]);
        }
        top[r] = _mm512_max_ps(half[0], half[1]);
    }
    for (uint32_t r = n; r < 4; r++) {
        top[r] = top[0];
    }
    return quire_avx512_max_4_ps(top);
}

/* The first n of 16 numbers; in pieces of 16 bytes, from which loads soon after are served without
 * waiting: not so from a wider store with a mask. */
QUIRE_AVX512_INLINE void quire_avx512_store_some(uint32_t n, float *to, __m512 x)
{
    const __m128 pieces[4] = { _mm512_castps512_ps128(x), _mm512_extractf32x4_ps(x, 1),
                               _mm512_extractf32x4_ps(x, 2), _mm512_extractf32x4_ps(x, 3) };

    if (n >= 16) {
        _mm512_storeu_ps(to, x);
        return;
    }
    for (uint32_t k = 0; 4 * k < n; k++) {
        if (n - 4 * k >= 4) {
            _mm_storeu_ps(to + 4 * k, pieces[k]);
        } else {
            _mm_mask_storeu_ps(to + 4 * k, (__mmask8)((1u << (n - 4 * k)) - 1), pieces[k]);
        }
    }
}

/* What weights are made with: m, or 0 where it is -Inf, nothing seen so far, so that logits of -Inf
 * give 0 and not NaN. */
QUIRE_AVX512_INLINE void quire_avx512_store_shift(__m512 m, float *shift)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);

    _mm512_store_ps(shift, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(m, none, _CMP_NEQ_UQ), m));
}

/* From the old m of the rows from `row` on that are in `lanes`, and their largest visible logits,
 * their new m, where that rises, and what follows from it for the row as a whole. A row whose m
 * stays keeps its sums. */
QUIRE_AVX512_INLINE void quire_avx512_new_maxima(uint32_t n, __mmask16 lanes, __m512 old,
                                                 __m512 top, quire_avx512_rows *rows, uint32_t row)
{
    __mmask16 is_risen =
        _mm512_cmp_ps_mask(top, _mm512_add_ps(old, _mm512_set1_ps(QUIRE_ATTN_RISE)), _CMP_GT_OQ);
    __m512 m = _mm512_mask_mov_ps(old, is_risen, top);
    __m512 factor = quire_avx512_exp(0xffff, _mm512_sub_ps(old, m));

    quire_avx512_store_shift(m, rows->shift + row);
    _mm512_mask_storeu_ps(rows->m + row, lanes, m);
    quire_avx512_store_some(n, rows->rescale + row,
                            _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), is_risen, factor));
}

/* l = l * rescale + the sums of the lanes of each of n <= 4 rows from `row` on. */
QUIRE_AVX512_INLINE void quire_avx512_four_sums(uint32_t n, const quire_avx512_rows *rows,
                                                uint32_t row, __m512 sum[4])
{
    for (uint32_t r = n; r < 4; r++) {
        sum[r] = sum[0];
    }
    quire_avx512_store_rows(n, rows->l + row,
                            _mm512_fmadd_ps(quire_avx512_spread(n, rows->l + row),
                                            quire_avx512_spread(n, rows->rescale + row),
                                            quire_avx512_sum_4(sum)));
}

/* Whether no visible logit of n <= 16 rows from `row` on is so far above its row's m that m must
 * rise. NaN is above nothing; beside one a larger number may go unnoticed, but that row is lost
 * anyway. */
QUIRE_AVX512_INLINE bool quire_avx512_all_stay(uint32_t n, bool is_whole,
                                               const quire_avx512_rows *rows, uint32_t row,
                                               __m512 m)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    _Alignas(64) float limit[16];
    __mmask16 is_above = 0;

    _mm512_store_ps(limit, _mm512_add_ps(m, _mm512_set1_ps(QUIRE_ATTN_RISE)));
    for (uint32_t r = 0; r < n; r++) {
        uint64_t visible = quire_avx512_visible(is_whole, rows, row + r);
        __m512 x[QUIRE_AVX512_REGS];

        for (uint32_t i = 0; i < QUIRE_AVX512_REGS; i++) {
            x[i] = _mm512_mask_load_ps(none, (__mmask16)(visible >> (16 * i)),
                                       rows->s + (row + r) * (size_t)QUIRE_TILE_TOKENS + 16 * i);
        }
        x[0] = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
        is_above |= _mm512_cmp_ps_mask(x[0], _mm512_set1_ps(limit[r]), _CMP_GT_OQ);
    }
    return is_above == 0;
}

/* m, shift and rescale of n <= 16 rows from `row` on. In nearly all tiles but the first m stays, so
 * that weights need not wait for horizontal maxima: the branch is predicted. */
static inline void quire_avx512_maxima(uint32_t n, quire_avx512_rows *rows, uint32_t row)
{
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __mmask16 lanes = (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);
    const __m512 m = _mm512_maskz_loadu_ps(lanes, rows->m + row);
    __m512 top = _mm512_set1_ps(-INFINITY);

    if (rows->is_whole ? quire_avx512_all_stay(n, true, rows, row, m)
                       : quire_avx512_all_stay(n, false, rows, row, m)) {
        quire_avx512_store_shift(m, rows->shift + row);
        quire_avx512_store_some(n, rows->rescale + row, _mm512_set1_ps(1.0f));
        return;
    }
    for (uint32_t k = 0; 4 * k < n; k++) {
        uint32_t n_left = n - 4 * k;
        __m512 four;

#define QUIRE_AVX512_FOUR_MAX(n_rows, is_whole)                                                    \
    four = quire_avx512_four_max(n_rows, is_whole, rows, row + 4 * k)
        if (rows->is_whole) {
            QUIRE_AVX512_UP_TO_4(n_left, QUIRE_AVX512_FOUR_MAX, true);
        } else {
            QUIRE_AVX512_UP_TO_4(n_left, QUIRE_AVX512_FOUR_MAX, false);
        }
#undef QUIRE_AVX512_FOUR_MAX
        top = _mm512_mask_mov_ps(top, (__mmask16)(0x1111 << k), four);
    }
    quire_avx512_new_maxima(n, lanes, m, _mm512_permutexvar_ps(order, top), rows, row);
}

/* The function `name`: softmax that makes weights of 4 rows by weights(n, is_whole, rows, row). */
#define QUIRE_AVX512_SOFTMAX(name, weights)                                                        \
    static void name##_of_some(uint32_t n, quire_avx512_rows *rows)                                \
    {                                                                                              \
        for (uint32_t row = 0; row < n; row += 16) {                                               \
            quire_avx512_maxima(n - row < 16 ? n - row : 16, rows, row);                           \
        }                                                                                          \
        for (uint32_t row = 0; row < n; row += 4) {                                                \
            if (rows->is_whole) {                                                                  \
                QUIRE_AVX512_UP_TO_4(n - row, weights, true, rows, row);                           \
            } else {                                                                               \
                QUIRE_AVX512_UP_TO_4(n - row, weights, false, rows, row);                          \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    void name(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end, float *s, float *m,  \
              float *l, float *rescale)                                                            \
    {                                                                                              \
        quire_avx512_rows rows;                                                                    \
        uint32_t n;                                                                                \
                                                                                                   \
        for (uint32_t row = 0; row < n_rows; row += n) {                                           \
            n = n_rows - row;                                                                      \
            n = n < QUIRE_AVX512_SOFTMAX_ROWS ? n : QUIRE_AVX512_SOFTMAX_ROWS;                     \
            rows.is_whole = slot_begin == 0 && quire_avx512_all_end(n, slot_end + row);            \
            rows.slot_begin = slot_begin;                                                          \
            rows.slot_end = slot_end + row;                                                        \
            rows.s = s + row * (size_t)QUIRE_TILE_TOKENS;                                          \
            rows.m = m + row;                                                                      \
            rows.l = l + row;                                                                      \
            rows.rescale = rescale + row;                                                          \
            name##_of_some(n, &rows);                                                              \
        }                                                                                          \
    }

/* Whether n rows see a tile to its end. */
QUIRE_AVX512_INLINE bool quire_avx512_all_end(uint32_t n, const uint32_t *slot_end)
{
    const __m512i end = _mm512_set1_epi32(QUIRE_TILE_TOKENS);
    __mmask16 sooner = 0;

    for (uint32_t row = 0; row < n; row += 16) {
        __mmask16 lanes = (__mmask16)(n - row >= 16 ? 0xffff : (1u << (n - row)) - 1);

        sooner |= _mm512_mask_cmplt_epu32_mask(
            lanes, _mm512_maskz_loadu_epi32(lanes, slot_end + row), end);
    }
    return sooner == 0;
}

#endif /* QUIRE_ATTN_KERNELS_AVX512_SOFTMAX_H */
