/* kernels_avx512.c - the AVX-512 kernel set: dispatch by format, query packing, softmax.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels_avx512.h"
#include "base/cpu.h"

#define REGS QUIRE_AVX512_REGS

/* e^x for x <= 0 in the chosen lanes, within 0.89 ulp, 0 in the others. 0 also where the result
 * would be denormal (they are slow on some CPUs and weigh nothing), so for -Inf; NaN stays.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r (1 + r Q(r)), Q the minimax polynomial of degree
 * 4 for the relative error of e^r (Remez exchange, 3.1e-9 before its coefficients were rounded). */
static inline __m512 exp_of_nonpositive(__mmask16 lanes, __m512 x)
{
    const __m512 log2_e = _mm512_set1_ps(0x1.715476p+0f);
    const __m512 ln2_high = _mm512_set1_ps(0x1.62e43p-1f);
    const __m512 ln2_low = _mm512_set1_ps(-0x1.05c61p-29f);
    __mmask16 is_normal = _mm512_mask_cmp_ps_mask(lanes, x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2_e),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, ln2_low, _mm512_fnmadd_ps(n, ln2_high, x));
    __m512 q = _mm512_set1_ps(0x1.6a23ep-10f);

    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.123a20p-7f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.5558f2p-5f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.555492p-3f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.fffffcp-2f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(is_normal, q, n);
}

/* Up to 4 rows of a call, which share registers for what concerns a row as a whole: row r has lanes
 * 4r .. 4r + 3. */
typedef struct softmax_rows {
    float *s;
    float *m;
    float *l;
    float *rescale;
    uint64_t visible[4]; /* slots, as bits */
} softmax_rows;

/* The first n of 4 numbers, each in 4 lanes. */
QUIRE_AVX512_INLINE __m512 spread(uint32_t n, const float *x)
{
    const __m512i rows = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    __m128 few = n == 4 ? _mm_loadu_ps(x) : _mm_maskz_loadu_ps((__mmask8)((1u << n) - 1), x);

    return _mm512_permutexvar_ps(rows, _mm512_castps128_ps512(few));
}

/* The reverse. 16 bytes only: a wider store with a mask would make the next block's loads wait. */
QUIRE_AVX512_INLINE void store_rows(uint32_t n, float *to, __m512 x)
{
    const __m512i lanes = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    __m128 few = _mm512_castps512_ps128(_mm512_permutexvar_ps(lanes, x));

    if (n == 4) {
        _mm_storeu_ps(to, few);
    } else {
        _mm_mask_storeu_ps(to, (__mmask8)((1u << n) - 1), few);
    }
}

/* The largest visible logit of each row; NaN does not count (vmaxps gives its second operand then).
 */
QUIRE_AVX512_INLINE __m512 rows_max(uint32_t n, bool is_whole, const softmax_rows *rows)
{
    __m512 top[4];

    for (uint32_t r = 0; r < n; r++) {
        top[r] = _mm512_set1_ps(-INFINITY);
        for (uint32_t i = 0; i < REGS; i++) {
            __mmask16 slots = (__mmask16)(is_whole ? 0xffff : rows->visible[r] >> (16 * i));
            __m512 x = _mm512_load_ps(rows->s + r * QUIRE_TILE_TOKENS + 16 * i);

            top[r] = _mm512_mask_max_ps(top[r], slots, x, top[r]);
        }
    }
    for (uint32_t r = n; r < 4; r++) {
        top[r] = top[0];
    }
    return quire_avx512_max_4_ps(top);
}

/* Logits to weights; returns the rows' sums. */
QUIRE_AVX512_INLINE __m512 rows_weights(uint32_t n, bool is_whole, const softmax_rows *rows,
                                        __m512 max)
{
    __m512 sum[4];

    for (uint32_t r = 0; r < n; r++) {
        __m512 row_max = quire_avx512_row_of_4(max, r);
        __m512 p[REGS];

        for (uint32_t i = 0; i < REGS; i++) {
            __mmask16 slots = (__mmask16)(is_whole ? 0xffff : rows->visible[r] >> (16 * i));
            float *s = rows->s + r * QUIRE_TILE_TOKENS + 16 * i;

            p[i] = exp_of_nonpositive(slots, _mm512_sub_ps(_mm512_load_ps(s), row_max));
            _mm512_store_ps(s, p[i]);
        }
        sum[r] = _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3]));
    }
    for (uint32_t r = n; r < 4; r++) {
        sum[r] = sum[0];
    }
    return quire_avx512_sum_4(sum);
}

QUIRE_AVX512_INLINE void softmax_block(uint32_t n, bool is_whole, const softmax_rows *rows)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 old = spread(n, rows->m);
    __m512 max = _mm512_max_ps(old, rows_max(n, is_whole, rows));
    __m512 factor;
    __m512 sum;

    store_rows(n, rows->m, max);

    /* A row whose maximum stays keeps its sums, also when it is -Inf: nothing seen so far. There
     * 0 stands in for the maximum, so that -Inf logits give 0 and not NaN. */
    sum = rows_weights(n, is_whole, rows,
                       _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(max, none, _CMP_NEQ_UQ), max));
    factor = exp_of_nonpositive(0xffff, _mm512_sub_ps(old, max));
    factor =
        _mm512_mask_mov_ps(factor, _mm512_cmp_ps_mask(old, max, _CMP_EQ_OQ), _mm512_set1_ps(1.0f));
    store_rows(n, rows->rescale, factor);
    store_rows(n, rows->l, _mm512_fmadd_ps(spread(n, rows->l), factor, sum));
}

static void softmax(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end, float *s,
                    float *m, float *l, float *rescale)
{
    for (uint32_t row = 0; row < n_rows; row += 4) {
        uint32_t n = n_rows - row < 4 ? n_rows - row : 4;
        softmax_rows rows = { .s = s + row * (size_t)QUIRE_TILE_TOKENS,
                              .m = m + row,
                              .l = l + row,
                              .rescale = rescale + row };
        uint64_t all = ~(uint64_t)0;

        for (uint32_t r = 0; r < n; r++) {
            rows.visible[r] = quire_avx512_slot_mask(slot_begin, slot_end[row + r]);
            all &= rows.visible[r];
        }
        if (all == ~(uint64_t)0) {
            QUIRE_AVX512_UP_TO_4(n, softmax_block, true, &rows);
        } else {
            QUIRE_AVX512_UP_TO_4(n, softmax_block, false, &rows);
        }
    }
}

static size_t q_bytes(quire_format format, uint32_t d)
{
    return quire_avx512_q_bytes(format, d);
}

static void q_pack(quire_format format, uint32_t d, float scale, const float *q, void *packed)
{
    float *to = packed;

    if (quire_format_is_sealed(format)) {
        quire_avx512_sealed_pack(d, scale, q, packed);
        return;
    }
    if (format == QUIRE_FORMAT_Q8) {
        quire_avx512_q8_pack(d, scale, q, packed);
        return;
    }
    for (uint32_t c = 0; c < d; c++) {
        to[c] = scale * q[c];
    }
}

/* qk and pv of a set, by format. */
#define KERNELS_BY_FORMAT(suffix, q8_suffix, sealed_suffix)                                        \
    static void qk##suffix(const quire_attn_qk *args)                                              \
    {                                                                                              \
        if (quire_format_is_sealed(args->format)) {                                                \
            quire_avx512_qk_sealed##sealed_suffix(args);                                           \
        } else if (args->format == QUIRE_FORMAT_Q8) {                                              \
            quire_avx512_qk_q8##q8_suffix(args);                                                   \
        } else {                                                                                   \
            quire_avx512_qk_float(args);                                                           \
        }                                                                                          \
    }                                                                                              \
    static void pv##suffix(const quire_attn_pv *args)                                              \
    {                                                                                              \
        if (quire_format_is_sealed(args->format)) {                                                \
            quire_avx512_pv_sealed##sealed_suffix(args);                                           \
        } else if (args->format == QUIRE_FORMAT_Q8) {                                              \
            quire_avx512_pv_q8##q8_suffix(args);                                                   \
        } else {                                                                                   \
            quire_avx512_pv_float(args);                                                           \
        }                                                                                          \
    }

KERNELS_BY_FORMAT(_plain, , )
KERNELS_BY_FORMAT(_vnni, _vnni, _vnni)
KERNELS_BY_FORMAT(_vbmi, _vnni, _vbmi)

static const quire_attn_kernels kernels_plain = { "avx512", q_bytes, q_pack,
                                                  qk_plain, softmax, pv_plain };
static const quire_attn_kernels kernels_vnni = { "avx512", q_bytes, q_pack,
                                                 qk_vnni,  softmax, pv_vnni };
static const quire_attn_kernels kernels_vbmi = { "avx512", q_bytes, q_pack,
                                                 qk_vbmi,  softmax, pv_vbmi };

const quire_attn_kernels *quire_attn_kernels_avx512_plain(void)
{
    return &kernels_plain;
}

const quire_attn_kernels *quire_attn_kernels_avx512_vnni(void)
{
    return quire_cpu_get()->has_avx512_vnni ? &kernels_vnni : &kernels_plain;
}

const quire_attn_kernels *quire_attn_kernels_avx512(void)
{
    return quire_cpu_get()->has_avx512_vbmi ? &kernels_vbmi : quire_attn_kernels_avx512_vnni();
}
