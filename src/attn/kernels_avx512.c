/* kernels_avx512.c - the AVX-512 kernel set: dispatch by format, query packing, softmax.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels_avx512.h"
#include "base/cpu.h"

#define REGS QUIRE_AVX512_REGS

/* e^x for x <= 0 in the chosen lanes, within 1.01 ulp, 0 in the others. 0 also where the result
 * would be denormal (they are slow on some CPUs and weigh nothing), so for -Inf; NaN stays.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 Q(r), Q the minimax polynomial of degree
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
    q = _mm512_fmadd_ps(_mm512_mul_ps(r, r), q, r);
    q = _mm512_add_ps(q, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(is_normal, q, n);
}

/* The bits of slots 16 * i .. 16 * i + 15. */
static inline __mmask16 slots(uint64_t visible, uint32_t i)
{
    return (__mmask16)(visible >> (16 * i));
}

/* The largest visible logit; NaN does not count (vmaxps gives its second operand then). */
static inline float row_max(const float *s, uint64_t visible)
{
    __m512 top = _mm512_set1_ps(-INFINITY);

    for (uint32_t i = 0; i < REGS; i++) {
        top = _mm512_mask_max_ps(top, slots(visible, i), _mm512_load_ps(s + 16 * i), top);
    }
    return _mm512_reduce_max_ps(top);
}

/* Logits to weights; returns their sum. */
static inline float row_weights(float *s, uint64_t visible, float max)
{
    __m512 p[REGS];

    for (uint32_t i = 0; i < REGS; i++) {
        __m512 x = _mm512_sub_ps(_mm512_load_ps(s + 16 * i), _mm512_set1_ps(max));

        p[i] = exp_of_nonpositive(slots(visible, i), x);
        _mm512_store_ps(s + 16 * i, p[i]);
    }
    return quire_avx512_sum(_mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3])));
}

/* Up to 16 rows: one lane each for what concerns a row as a whole. */
static void softmax_16(uint32_t n, uint32_t slot_begin, const uint32_t *slot_end, float *s,
                       float *m, float *l, float *rescale)
{
    const __mmask16 rows = (__mmask16)((1u << n) - 1);
    _Alignas(64) float top[16];
    _Alignas(64) float sum[16];
    __m512 old = _mm512_maskz_loadu_ps(rows, m);
    __m512 max;
    __m512 factor;

    for (uint32_t r = 0; r < n; r++) {
        top[r] =
            row_max(s + r * QUIRE_TILE_TOKENS, quire_avx512_slot_mask(slot_begin, slot_end[r]));
    }
    max = _mm512_max_ps(old, _mm512_maskz_load_ps(rows, top));
    _mm512_mask_storeu_ps(m, rows, max);

    /* A row whose maximum stays keeps its sums, also when it is -Inf: nothing seen so far. There
     * 0 stands in for the maximum, so that -Inf logits give 0 and not NaN. */
    factor = exp_of_nonpositive(rows, _mm512_sub_ps(old, max));
    factor =
        _mm512_mask_mov_ps(factor, _mm512_cmp_ps_mask(old, max, _CMP_EQ_OQ), _mm512_set1_ps(1.0f));
    max = _mm512_mask_mov_ps(max, _mm512_cmp_ps_mask(max, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ),
                             _mm512_setzero_ps());
    _mm512_mask_storeu_ps(rescale, rows, factor);
    _mm512_store_ps(top, max);
    for (uint32_t r = 0; r < n; r++) {
        sum[r] = row_weights(s + r * QUIRE_TILE_TOKENS,
                             quire_avx512_slot_mask(slot_begin, slot_end[r]), top[r]);
    }
    _mm512_mask_storeu_ps(
        l, rows,
        _mm512_fmadd_ps(_mm512_maskz_loadu_ps(rows, l), factor, _mm512_maskz_load_ps(rows, sum)));
}

static void softmax(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end, float *s,
                    float *m, float *l, float *rescale)
{
    for (uint32_t row = 0; row < n_rows; row += 16) {
        uint32_t n = n_rows - row < 16 ? n_rows - row : 16;

        softmax_16(n, slot_begin, slot_end + row, s + row * (size_t)QUIRE_TILE_TOKENS, m + row,
                   l + row, rescale + row);
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
        quire_format_is_sealed(args->format) ? quire_avx512_qk_sealed##sealed_suffix(args)         \
        : args->format == QUIRE_FORMAT_Q8    ? quire_avx512_qk_q8##q8_suffix(args)                 \
                                             : quire_avx512_qk_float(args);                           \
    }                                                                                              \
    static void pv##suffix(const quire_attn_pv *args)                                              \
    {                                                                                              \
        quire_format_is_sealed(args->format) ? quire_avx512_pv_sealed##sealed_suffix(args)         \
        : args->format == QUIRE_FORMAT_Q8    ? quire_avx512_pv_q8##q8_suffix(args)                 \
                                             : quire_avx512_pv_float(args);                           \
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
