/* kernels_avx512_softmax_body.h - the common part of the two softmaxes of AVX-512: everything but
 * the weights themselves, which are floats (kernels_avx512.c) or bf16 (kernels_avx512_bf16.c).
 *
 * Rows are taken 4 at a time. Values with one number per row share registers: row r has lanes 4r ..
 * 4r + 3. In nearly all tiles but the first no m rises: weights are computed with the old m, and
 * the same pass tests whether an m must rise. If the m of one of the 4 rows must rise, these 4
 * rows begin anew; where a row has no m yet, up to 32 rows have theirs raised side by side
 * before.
 *
 * Include only from files compiled for AVX-512.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX512_SOFTMAX_H
#define QUIRE_ATTN_KERNELS_AVX512_SOFTMAX_H

#include "attn/avx512/kernels_avx512.h"

#define QUIRE_AVX512_SOFTMAX_ROWS 32u /* whose m rise together; a multiple of 4 */

typedef struct quire_avx512_rows {
    uint32_t slot_begin;
    const uint32_t *slot_end; /* by row, as the others */
    float *s;
    float *m;
    float *l;
    float *rescale;
} quire_avx512_rows;

/* The bits of 2^(j / 32), minus j << 18, which is added later. */
static const _Alignas(64) uint32_t quire_avx512_powers[32] = {
    0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0,
    0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6,
    0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be, 0x3f76248c, 0x3f76a81e,
    0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3,
};

/* e^x for x <= QUIRE_ATTN_RISE in the chosen lanes, within 3 ulp down to -8 and 7 at -87, 0 in the
 * others. 0 also where the result would be denormal (they are slow on some CPUs and weigh nothing),
 * so for -Inf; NaN stays.
 *
 * x = n ln 2 / 32 + r with |r| <= ln 2 / 64: e^x is a power of 2^(1 / 32), the fraction of its
 * exponent looked up and the rest added, times e^r = 1 + r Q(r), Q of degree 1 for the least error
 * (5.3e-8). ln 2 / 32 in one float is off by 2.7e-9 of itself, so a weight of 2^-k by k times
 * 1.9e-9: next to nothing where it counts. Multiplications are few, because the dot products
 * before and after wait for them. */
QUIRE_AVX512_INLINE __m512 quire_avx512_exp(__mmask16 lanes, __m512 x)
{
    const __m512 by_x = _mm512_set1_ps(0x1.715476p+5f); /* 32 / ln 2 */
    const __m512 step = _mm512_set1_ps(0x1.62e43p-6f);
    const __m512 to_integer =
        _mm512_set1_ps(0x1.8p+23f); /* added, it leaves no room for a fraction */
    const __mmask16 is_normal =
        _mm512_mask_cmp_ps_mask(lanes, x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    const __m512 sum = _mm512_fmadd_ps(x, by_x, to_integer); /* n in its lowest bits */
    const __m512 r = _mm512_fnmadd_ps(_mm512_sub_ps(sum, to_integer), step, x);
    const __m512i n = _mm512_castps_si512(sum);
    const __m512i power = _mm512_permutex2var_epi32(_mm512_load_si512(quire_avx512_powers), n,
                                                    _mm512_load_si512(quire_avx512_powers + 16));
    __m512 q = _mm512_fmadd_ps(r, _mm512_set1_ps(0.5f), _mm512_set1_ps(0x1.0000f6p+0f));

    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_mul_ps(
        is_normal, q, _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_slli_epi32(n, 18))));
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

/* The slots that a row sees, as bits; is_whole: all. */
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

/* Raise the m of n <= 4 rows from `row` on where it must rise, and set their rescale: 1 where m
 * stays. shift gets the number to subtract from logits: m, or 0 where m is -Inf (no token seen so
 * far), so that logits of -Inf give 0 and not NaN. */
QUIRE_AVX512_INLINE void quire_avx512_raise(uint32_t n, bool is_whole,
                                            const quire_avx512_rows *rows, uint32_t row,
                                            float shift[4])
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    const __m512 old = quire_avx512_spread(n, rows->m + row);
    const __m512 top = quire_avx512_four_max(n, is_whole, rows, row);
    const __mmask16 is_risen =
        _mm512_cmp_ps_mask(_mm512_sub_ps(top, old), _mm512_set1_ps(QUIRE_ATTN_RISE), _CMP_GT_OQ);
    const __m512 m = _mm512_mask_mov_ps(old, is_risen, top);
    const __m512 factor = quire_avx512_exp(0xffff, _mm512_sub_ps(old, m));

    quire_avx512_store_rows(4, shift,
                            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(m, none, _CMP_NEQ_UQ), m));
    quire_avx512_store_rows(n, rows->m + row, m);
    quire_avx512_store_rows(n, rows->rescale + row,
                            _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), is_risen, factor));
}

/* The same for n <= QUIRE_AVX512_SOFTMAX_ROWS rows, of which none waits for another's maximum. */
static void quire_avx512_raise_all(uint32_t n, bool is_whole, const quire_avx512_rows *rows,
                                   uint32_t row, float *shift)
{
    for (uint32_t r = 0; r < n; r += 4) {
        if (is_whole) {
            QUIRE_AVX512_UP_TO_4(n - r, quire_avx512_raise, true, rows, row + r, shift + r);
        } else {
            QUIRE_AVX512_UP_TO_4(n - r, quire_avx512_raise, false, rows, row + r, shift + r);
        }
    }
}

/* Whether each of n rows from `row` on has seen something. */
QUIRE_AVX512_INLINE bool quire_avx512_all_begun(uint32_t n, const quire_avx512_rows *rows,
                                                uint32_t row)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __mmask16 is_none = 0;

    for (uint32_t r = 0; r < n; r += 16) {
        const __mmask16 lanes = (__mmask16)(n - r >= 16 ? 0xffff : (1u << (n - r)) - 1);

        is_none |= _mm512_mask_cmp_ps_mask(lanes, _mm512_maskz_loadu_ps(lanes, rows->m + row + r),
                                           none, _CMP_EQ_OQ);
    }
    return is_none == 0;
}

/* l = l * rescale + the sums of the lanes of each of n <= 4 rows from `row` on; rescale is 1 unless
 * has_risen. */
QUIRE_AVX512_INLINE void quire_avx512_four_sums(uint32_t n, bool has_risen,
                                                const quire_avx512_rows *rows, uint32_t row,
                                                __m512 sum[4])
{
    __m512 l = quire_avx512_spread(n, rows->l + row);
    __m512 more;

    for (uint32_t r = n; r < 4; r++) {
        sum[r] = sum[0];
    }
    more = quire_avx512_sum_4(sum);
    l = has_risen ? _mm512_fmadd_ps(l, quire_avx512_spread(n, rows->rescale + row), more)
                  : _mm512_add_ps(l, more);
    quire_avx512_store_rows(n, rows->l + row, l);
}

/* The function `name`: softmax that makes weights of n <= 4 rows by weights(n, is_whole, is_sure,
 * rows, row, shift). With is_sure no m must rise. Otherwise weights() returns false, and leaves the
 * rows alone, if some m must rise. It compares the same difference, rounded to a float, as raise:
 * a row's bits must not depend on its neighbours'. */
#define QUIRE_AVX512_SOFTMAX(name, weights)                                                        \
    QUIRE_AVX512_INLINE bool name##_by_rows(uint32_t n, bool is_whole, bool is_sure,               \
                                            const quire_avx512_rows *rows, uint32_t row,           \
                                            const float *shift)                                    \
    {                                                                                              \
        switch (n) {                                                                               \
        case 1:                                                                                    \
            return weights(1, is_whole, is_sure, rows, row, shift);                                \
        case 2:                                                                                    \
            return weights(2, is_whole, is_sure, rows, row, shift);                                \
        case 3:                                                                                    \
            return weights(3, is_whole, is_sure, rows, row, shift);                                \
        default:                                                                                   \
            return weights(4, is_whole, is_sure, rows, row, shift);                                \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    QUIRE_AVX512_INLINE bool name##_weights(uint32_t n, bool is_whole, bool is_sure,               \
                                            const quire_avx512_rows *rows, uint32_t row,           \
                                            const float *shift)                                    \
    {                                                                                              \
        return is_whole ? name##_by_rows(n, true, is_sure, rows, row, shift)                       \
                        : name##_by_rows(n, false, is_sure, rows, row, shift);                     \
    }                                                                                              \
                                                                                                   \
    /* m rises first. */                                                                           \
    static __attribute__((noinline)) void name##_rises(                                            \
        uint32_t n, bool is_whole, const quire_avx512_rows *rows, uint32_t row)                    \
    {                                                                                              \
        float shift[QUIRE_AVX512_SOFTMAX_ROWS];                                                    \
                                                                                                   \
        quire_avx512_raise_all(n, is_whole, rows, row, shift);                                     \
        for (uint32_t r = 0; r < n; r += 4) {                                                      \
            (void)name##_weights(n - r, is_whole, true, rows, row + r, shift + r);                 \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* Of a block's first tile all m rise, of the others few. */                                   \
    static void name##_of_some(uint32_t n, bool is_whole, const quire_avx512_rows *rows,           \
                               uint32_t row)                                                       \
    {                                                                                              \
        if (!quire_avx512_all_begun(n, rows, row)) {                                               \
            name##_rises(n, is_whole, rows, row);                                                  \
            return;                                                                                \
        }                                                                                          \
        for (uint32_t r = row; r < row + n; r += 4) {                                              \
            const uint32_t n_left = row + n - r;                                                   \
            const uint32_t n_four = n_left < 4 ? n_left : 4;                                       \
                                                                                                   \
            if (n_four == 4) { /* values stored with a mask are slow to load */                    \
                _mm_storeu_ps(rows->rescale + r, _mm_set1_ps(1.0f));                               \
            } else {                                                                               \
                _mm_mask_storeu_ps(rows->rescale + r, (__mmask8)((1u << n_four) - 1),              \
                                   _mm_set1_ps(1.0f));                                             \
            }                                                                                      \
            if (!name##_weights(n_four, is_whole, false, rows, r, rows->m + r)) {                  \
                name##_rises(n_four, is_whole, rows, r);                                           \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    void name(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end, float *s, float *m,  \
              float *l, float *rescale)                                                            \
    {                                                                                              \
        const bool is_whole = slot_begin == 0 && quire_avx512_all_end(n_rows, slot_end);           \
        const quire_avx512_rows rows = { slot_begin, slot_end, s, m, l, rescale };                 \
        uint32_t n;                                                                                \
                                                                                                   \
        for (uint32_t row = 0; row < n_rows; row += n) {                                           \
            n = n_rows - row;                                                                      \
            n = n < QUIRE_AVX512_SOFTMAX_ROWS ? n : QUIRE_AVX512_SOFTMAX_ROWS;                     \
            name##_of_some(n, is_whole, &rows, row);                                               \
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
