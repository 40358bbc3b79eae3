/* kernels_avx512.c - the AVX-512 kernel set: dispatch by format, query packing, softmax.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels_avx512.h"
#include "base/cpu.h"

#define REGS QUIRE_AVX512_REGS

/* e^x for x <= 0 in the chosen lanes, within 2 ulp, 0 in the others. 0 also where the result would
 * be denormal (they are slow on some CPUs and weigh nothing), so for -Inf; NaN stays.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r (1 + r Q(r)), Q the minimax polynomial of degree
 * 3 for the relative error of e^r (Remez exchange, 1.05e-7). ln 2 in one float is off by 1.9e-9,
 * so a weight of 2^-n by n times that: next to nothing where it counts. Multiplications are few,
 * because they are what the dot products before and after wait for. */
static inline __m512 exp_of_nonpositive(__mmask16 lanes, __m512 x)
{
    const __m512 log2_e = _mm512_set1_ps(0x1.715476p+0f);
    const __m512 ln2 = _mm512_set1_ps(0x1.62e43p-1f);
    __mmask16 is_normal = _mm512_mask_cmp_ps_mask(lanes, x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2_e),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, ln2, x);
    __m512 q = _mm512_set1_ps(0x1.10627p-7f);

    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.572a1ep-5f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.5557aep-3f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.fffdfcp-2f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(is_normal, q, n);
}

/* Rows are taken 4 at a time, which share registers for what concerns a row as a whole: row r has
 * lanes 4r .. 4r + 3. Fours of rows go through each step together, so that one does not wait for
 * the maxima of its own. */
#define SOFTMAX_FOURS 6u

/* Up to 4 rows, and between the steps what each has to subtract from its logits. */
typedef struct softmax_four {
    float *s;
    float *m;
    float *l;
    float *rescale;
    bool is_whole;       /* all slots of all rows are visible */
    uint64_t visible[4]; /* slots, as bits */
    _Alignas(16) float shift[4];
} softmax_four;

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

QUIRE_AVX512_INLINE __mmask16 visible_lanes(bool is_whole, const softmax_four *four, uint32_t r,
                                            uint32_t i)
{
    return (__mmask16)(is_whole ? 0xffff : four->visible[r] >> (16 * i));
}

/* The largest visible logit of each row; NaN does not count (vmaxps gives its second operand then).
 */
QUIRE_AVX512_INLINE __m512 rows_max(uint32_t n, bool is_whole, const softmax_four *four)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 top[4];

    for (uint32_t r = 0; r < n; r++) {
        __m512 half[2] = { none, none };

        for (uint32_t i = 0; i < REGS; i++) {
            __m512 x = _mm512_load_ps(four->s + r * QUIRE_TILE_TOKENS + 16 * i);

            half[i % 2] = _mm512_mask_max_ps(half[i % 2], visible_lanes(is_whole, four, r, i), x,
                                             half[i % 2]);
        }
        top[r] = _mm512_max_ps(half[0], half[1]);
    }
    for (uint32_t r = n; r < 4; r++) {
        top[r] = top[0];
    }
    return quire_avx512_max_4_ps(top);
}

/* New maxima, and what follows from them for the row as a whole. A row whose maximum stays keeps
 * its sums, also when it is -Inf: nothing seen so far. There 0 stands in for the maximum, so that
 * -Inf logits give 0 and not NaN. */
QUIRE_AVX512_INLINE void four_maxima(uint32_t n, bool is_whole, softmax_four *four)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 old = spread(n, four->m);
    __m512 max = _mm512_max_ps(old, rows_max(n, is_whole, four));
    __m512 factor = exp_of_nonpositive(0xffff, _mm512_sub_ps(old, max));

    store_rows(n, four->m, max);
    store_rows(4, four->shift,
               _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(max, none, _CMP_NEQ_UQ), max));
    store_rows(
        n, four->rescale,
        _mm512_mask_mov_ps(factor, _mm512_cmp_ps_mask(old, max, _CMP_EQ_OQ), _mm512_set1_ps(1.0f)));
}

/* Logits to weights, and their sums into l. */
QUIRE_AVX512_INLINE void four_weights(uint32_t n, bool is_whole, const softmax_four *four)
{
    __m512 sum[4];
    __m512 l;

    for (uint32_t r = 0; r < n; r++) {
        __m512 shift = _mm512_set1_ps(four->shift[r]);
        __m512 p[REGS];

        for (uint32_t i = 0; i < REGS; i++) {
            float *s = four->s + r * QUIRE_TILE_TOKENS + 16 * i;

            p[i] = exp_of_nonpositive(visible_lanes(is_whole, four, r, i),
                                      _mm512_sub_ps(_mm512_load_ps(s), shift));
            _mm512_store_ps(s, p[i]);
        }
        sum[r] = _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3]));
    }
    for (uint32_t r = n; r < 4; r++) {
        sum[r] = sum[0];
    }
    l = _mm512_fmadd_ps(spread(n, four->l), spread(n, four->rescale), quire_avx512_sum_4(sum));
    store_rows(n, four->l, l);
}

/* A step of softmax over `n` rows in fours. */
#define FOURS(step)                                                                                \
    static void step##_of(uint32_t n, softmax_four *fours)                                         \
    {                                                                                              \
        for (; n > 0; fours++) {                                                                   \
            uint32_t k = n < 4 ? n : 4;                                                            \
                                                                                                   \
            if (fours->is_whole) {                                                                 \
                QUIRE_AVX512_UP_TO_4(k, step, true, fours);                                        \
            } else {                                                                               \
                QUIRE_AVX512_UP_TO_4(k, step, false, fours);                                       \
            }                                                                                      \
            n -= k;                                                                                \
        }                                                                                          \
    }

FOURS(four_maxima)
FOURS(four_weights)

/* What n <= 4 rows see. */
static void four_begin(softmax_four *four, uint32_t n, uint32_t slot_begin,
                       const uint32_t *slot_end)
{
    uint32_t end_min = slot_end[0];

    for (uint32_t r = 1; r < n; r++) {
        end_min = slot_end[r] < end_min ? slot_end[r] : end_min;
    }
    four->is_whole = slot_begin == 0 && end_min >= QUIRE_TILE_TOKENS;
    for (uint32_t r = 0; r < n && !four->is_whole; r++) {
        four->visible[r] = quire_avx512_slot_mask(slot_begin, slot_end[r]);
    }
}

static void softmax(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end, float *s,
                    float *m, float *l, float *rescale)
{
    softmax_four fours[SOFTMAX_FOURS];
    uint32_t n;

    for (uint32_t first = 0; first < n_rows; first += n) {
        n = n_rows - first < 4 * SOFTMAX_FOURS ? n_rows - first : 4 * SOFTMAX_FOURS;
        for (uint32_t row = 0; row < n; row += 4) {
            softmax_four *four = &fours[row / 4];
            uint32_t at = first + row;

            four->s = s + at * (size_t)QUIRE_TILE_TOKENS;
            four->m = m + at;
            four->l = l + at;
            four->rescale = rescale + at;
            four_begin(four, n - row < 4 ? n - row : 4, slot_begin, slot_end + at);
        }
        four_maxima_of(n, fours);
        four_weights_of(n, fours);
    }
}

static size_t q_bytes(quire_format format, uint32_t d)
{
    return quire_avx512_q_bytes(format, d);
}

static void pack_float(uint32_t d, float scale, const float *q, void *packed)
{
    float *to = packed;

    for (uint32_t c = 0; c < d; c++) {
        to[c] = scale * q[c];
    }
}

/* q_pack, qk and pv of a set, by format. */
#define KERNELS_BY_FORMAT(isa, suffix, q8_suffix, sealed_suffix, bf16_pack, bf16_suffix)           \
    static void q_pack##suffix(quire_format format, uint32_t d, float scale, const float *q,       \
                               void *packed)                                                       \
    {                                                                                              \
        if (quire_format_is_sealed(format)) {                                                      \
            quire_avx512_sealed_pack(d, scale, q, packed);                                         \
        } else if (format == QUIRE_FORMAT_Q8) {                                                    \
            quire_avx512_q8_pack(d, scale, q, packed);                                             \
        } else if (format == QUIRE_FORMAT_BF16) {                                                  \
            bf16_pack(d, scale, q, packed);                                                        \
        } else {                                                                                   \
            pack_float(d, scale, q, packed);                                                       \
        }                                                                                          \
    }                                                                                              \
    static void qk##suffix(const quire_attn_qk *args)                                              \
    {                                                                                              \
        if (quire_format_is_sealed(args->format)) {                                                \
            quire_avx512_qk_sealed##sealed_suffix(args);                                           \
        } else if (args->format == QUIRE_FORMAT_Q8) {                                              \
            quire_avx512_qk_q8##q8_suffix(args);                                                   \
        } else if (args->format == QUIRE_FORMAT_BF16) {                                            \
            quire_avx512_qk##bf16_suffix(args);                                                    \
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
        } else if (args->format == QUIRE_FORMAT_BF16) {                                            \
            quire_avx512_pv##bf16_suffix(args);                                                    \
        } else {                                                                                   \
            quire_avx512_pv_float(args);                                                           \
        }                                                                                          \
    }                                                                                              \
    static const quire_attn_kernels kernels##suffix = { isa,        q_bytes, q_pack##suffix,       \
                                                        qk##suffix, softmax, pv##suffix };

KERNELS_BY_FORMAT("avx512", _plain, , , pack_float, _float)
KERNELS_BY_FORMAT("avx512", _vnni, _vnni, _vnni, pack_float, _float)
KERNELS_BY_FORMAT("avx512", _vbmi, _vnni, _vbmi, pack_float, _float)
KERNELS_BY_FORMAT("avx512+bf16", _bf16, _vnni, _vbmi, quire_avx512_bf16_pack, _bf16)

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

const quire_attn_kernels *quire_attn_kernels_avx512_bf16(void)
{
    return quire_cpu_get()->has_avx512_bf16 ? &kernels_bf16 : NULL;
}
