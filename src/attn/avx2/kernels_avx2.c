/* kernels_avx2.c - the AVX2 kernel set: dispatch by format, query packing, softmax.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx2/kernels_avx2.h"
#include "attn/attn_math.h"
#include "attn/pack/q8_pack.h"
#include "base/cpu.h"

#define TILE            QUIRE_TILE_TOKENS
#define REGS            (TILE / 8u)
#define VECTOR(name)    quire_avx2_##name
#define VECTOR_Q8_START (-128)
#include "attn/vector/kernels_vector_set_body.h"

/* quire_attn_exp() (attn_math.h) for 8 values, with fused multiply-adds. */
static inline __m256 exp_of_nonpositive(__m256 x)
{
    const __m256 lowest = _mm256_set1_ps(QUIRE_EXP_MIN);
    __m256 is_low = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ); /* not NaN */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));

    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    return _mm256_andnot_ps(is_low, p);
}

/* Sums and maxima over 8 lanes in one fixed order. */
static inline float sum_of(__m256 x)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

static inline float max_of(__m256 x)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

/* All ones in the lanes of slots 8 * i .. 8 * i + 7 that lie in [begin, end). */
static inline __m256 visible(uint32_t i, uint32_t begin, uint32_t end)
{
    __m256i slot = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                    _mm256_set1_epi32((int)(8 * i)));
    __m256i is_before = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)begin), slot);

    return _mm256_castsi256_ps(
        _mm256_andnot_si256(is_before, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)end), slot)));
}

/* The largest visible logit; is_whole: all are. */
QUIRE_AVX2_INLINE float row_max(bool is_whole, uint32_t begin, uint32_t end, const float *s)
{
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    __m256 max = lowest;

    for (uint32_t i = 0; i < REGS; i++) {
        __m256 x = _mm256_load_ps(s + 8 * i);

        x = is_whole ? x : _mm256_blendv_ps(lowest, x, visible(i, begin, end));
        max = _mm256_max_ps(x, max); /* of a NaN and a number, the second: NaN shows in P instead */
    }
    return max_of(max);
}

/* Logits to weights; returns their sum. */
QUIRE_AVX2_INLINE float row_weights(bool is_whole, uint32_t begin, uint32_t end, float shift,
                                    float *s)
{
    __m256 sum = _mm256_setzero_ps();

    for (uint32_t i = 0; i < REGS; i++) {
        __m256 p =
            exp_of_nonpositive(_mm256_sub_ps(_mm256_load_ps(s + 8 * i), _mm256_set1_ps(shift)));

        p = is_whole ? p : _mm256_and_ps(p, visible(i, begin, end));
        sum = _mm256_add_ps(sum, p);
        _mm256_store_ps(s + 8 * i, p);
    }
    return sum_of(sum);
}

/* Up to 8 rows, in passes that do not wait for each other. */
static void softmax_8(uint32_t n, uint32_t begin, const uint32_t *end, float *s, float *m, float *l,
                      float *rescale)
{
    _Alignas(32) float change[8] = { 0 };
    float shift[8];

    for (uint32_t r = 0; r < n; r++) {
        bool is_whole = begin == 0 && end[r] >= TILE;
        float top = is_whole ? row_max(true, 0, TILE, s + r * TILE)
                             : row_max(false, begin, end[r], s + r * TILE);

        top = top > m[r] ? top : m[r];
        shift[r] = top == -INFINITY ? 0.0f : top; /* -Inf - -Inf would be NaN where 0 is meant */
        change[r] = m[r] - shift[r];
        m[r] = top;
    }
    _mm256_store_ps(change, exp_of_nonpositive(_mm256_load_ps(change)));
    for (uint32_t r = 0; r < n; r++, s += TILE) {
        if (begin == 0 && end[r] >= TILE) {
            rescale[r] = change[r];
            l[r] = l[r] * change[r] + row_weights(true, 0, TILE, shift[r], s);
        } else if (end[r] > begin) {
            rescale[r] = change[r];
            l[r] = l[r] * change[r] + row_weights(false, begin, end[r], shift[r], s);
        } else {
            rescale[r] = 1.0f;
            memset(s, 0, TILE * sizeof(*s));
        }
    }
}

static void softmax(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end, float *s,
                    float *m, float *l, float *rescale)
{
    for (uint32_t row = 0; row < n_rows; row += 8) {
        softmax_8(n_rows - row < 8 ? n_rows - row : 8, slot_begin, slot_end + row,
                  s + (size_t)row * TILE, m + row, l + row, rescale + row);
    }
}

static void q_pack(quire_format format, uint32_t d, float scale, const float *q, void *packed)
{
    if (format == QUIRE_FORMAT_Q8) {
        q_pack_q8(d, scale, q, packed);
        return;
    }
    if (quire_format_is_sealed(format)) {
        quire_avx2_q_pack_sealed(d, scale, q, packed);
        return;
    }
    for (uint32_t i = 0; i < d; i += 8) {
        _mm256_store_ps((float *)packed + i,
                        _mm256_mul_ps(_mm256_loadu_ps(q + i), _mm256_set1_ps(scale)));
    }
}

static void q_pack_vnni(quire_format format, uint32_t d, float scale, const float *q, void *packed)
{
    if (quire_format_is_sealed(format)) {
        quire_avx2_q_pack_sealed_vnni(d, scale, q, packed);
    } else {
        q_pack(format, d, scale, q, packed);
    }
}

static void qk_vnni(const quire_attn_qk *args)
{
    if (args->format == QUIRE_FORMAT_Q8) {
        quire_avx2_qk_q8_vnni(args);
    } else if (quire_format_is_sealed(args->format)) {
        quire_avx2_qk_sealed_vnni(args);
    } else {
        quire_avx2_qk_float(args);
    }
}

static void pv_vnni(const quire_attn_pv *args)
{
    if (args->format == QUIRE_FORMAT_Q8) {
        quire_avx2_pv_q8_vnni(args);
    } else if (quire_format_is_sealed(args->format)) {
        quire_avx2_pv_sealed_vnni(args);
    } else {
        quire_avx2_pv_float(args);
    }
}

const quire_attn_kernels *quire_attn_kernels_avx2_plain(void)
{
    static const quire_attn_kernels kernels = { .isa = "avx2",
                                                .q_bytes = q_bytes,
                                                .q_pack = q_pack,
                                                .qk = qk,
                                                .softmax = softmax,
                                                .pv = pv,
                                                .fold = quire_attn_fold_floats,
                                                .cap = quire_attn_cap_floats };

    return &kernels;
}

const quire_attn_kernels *quire_attn_kernels_avx2(void)
{
    static const quire_attn_kernels kernels = { .isa = "avx2",
                                                .q_bytes = q_bytes,
                                                .q_pack = q_pack_vnni,
                                                .qk = qk_vnni,
                                                .softmax = softmax,
                                                .pv = pv_vnni,
                                                .fold = quire_attn_fold_floats,
                                                .cap = quire_attn_cap_floats };

    return quire_cpu_get()->has_avx_vnni ? &kernels : quire_attn_kernels_avx2_plain();
}
