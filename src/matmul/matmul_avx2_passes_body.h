/* matmul_avx2_passes_body.h - rows of a tile over a step of a panel with AVX2. Included by a file
 * for each set, which defines PASSES_NAME and PASSES_VNNI (0 or 1).
 *
 * A quad of codes, 4 inputs of a side's 16 outputs, is two registers, which are multiplied with a
 * row's 4 inputs, broadcast. With VNNI that is one instruction, and 4 rows have their integers in 8
 * registers.
 *
 * Without it vpmaddubsw adds two products of u8 and s8 in int16, where 8-bit codes would saturate:
 * |w| takes the place of the code then and x gets the sign of w (128 * 127 * 2 fits), so that there
 * is no offset. Sums of narrower codes stay in int16 for some quads: 8 of 4 bits, 4 of 5, 2 of 6, 1
 * of 7 (types with a grid, whose sizes are at most 62; IQ1's weights are at most 9, in codes of 5).
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_avx2.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
/* Accumulators stay in registers only where the loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 32")

enum {
    ROWS = QUIRE_MATMUL_PASS_ROWS,
    QUADS = QUIRE_MATMUL_BLOCK / 4,
    QUAD_BYTES = 4 * QUIRE_MATMUL_PANEL, /* of a panel */
    REG = 32,                            /* bytes of a register */
    LINE = 64,                           /* of a cache */
    MXFP4_OFFSET = 12                    /* of codes; the values are from -12 to 12 */
};

/* Integers or codes of 16 outputs. */
typedef struct pair {
    __m256i half[2];
} pair;

/* ---- codes ---- */

INLINE __m256i load(const unsigned char *at, uint32_t half)
{
    return _mm256_load_si256((const void *)(at + (size_t)half * REG));
}

/* Fields of `bits` above the nibbles; field i lies i times as far up. */
INLINE __m256i with_high(__m256i nibbles, __m256i high, uint32_t i, uint32_t bits)
{
    const __m256i mask = _mm256_set1_epi8((char)(((1u << bits) - 1) << 4));
    const int up = 4 - (int)(i * bits);
    const __m256i there = up < 0 ? _mm256_srli_epi16(high, -up) : _mm256_slli_epi16(high, up);

    return _mm256_or_si256(_mm256_and_si256(there, mask), nibbles);
}

/* Whether codes are 8 bits wide. */
INLINE bool is_wide(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_Q8_0 || type == QUIRE_MATMUL_IQ4_NL || type == QUIRE_MATMUL_IQ4_XS;
}

/* Half of quad k of codes of two bits. */
INLINE __m256i twos_at(const unsigned char *codes, uint32_t k, uint32_t half)
{
    const __m256i four = load(codes + (size_t)k / 4 * QUAD_BYTES, half);

    return _mm256_and_si256(_mm256_srli_epi16(four, (int)(2 * (k % 4))), _mm256_set1_epi8(3));
}

/* The third bits of quad k above them. */
INLINE __m256i with_third(__m256i twos, __m256i bits, uint32_t k)
{
    const __m256i there =
        k > 2 ? _mm256_srli_epi16(bits, (int)k - 2) : _mm256_slli_epi16(bits, 2 - (int)k);

    return _mm256_or_si256(_mm256_and_si256(there, _mm256_set1_epi8(4)), twos);
}

/* Values of nibbles. */
INLINE __m256i values(const uint8_t table[16])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
}

/* Half of quad k of a block. */
INLINE __m256i half_quad_at(quire_matmul_type type, const unsigned char *codes, uint32_t k,
                            uint32_t half)
{
    const unsigned char *high = codes + (size_t)4 * QUAD_BYTES;
    __m256i four;

    if (type == QUIRE_MATMUL_Q8_0 || quire_matmul_has_grid(type)) {
        return load(codes + (size_t)k * QUAD_BYTES, half);
    }
    if (type == QUIRE_MATMUL_Q2_K) {
        return twos_at(codes, k, half);
    }
    if (type == QUIRE_MATMUL_Q3_K) {
        return with_third(twos_at(codes, k, half), load(codes + (size_t)2 * QUAD_BYTES, half), k);
    }
    four = load(codes + (size_t)k % 4 * QUAD_BYTES, half);
    four = _mm256_and_si256(k < 4 ? four : _mm256_srli_epi16(four, 4), _mm256_set1_epi8(15));
    switch (type) {
    case QUIRE_MATMUL_IQ4_NL:
    case QUIRE_MATMUL_IQ4_XS:
        return _mm256_shuffle_epi8(values(quire_matmul_iq4_nl), four);
    case QUIRE_MATMUL_MXFP4:
        return _mm256_shuffle_epi8(_mm256_sub_epi8(values(quire_matmul_mxfp4),
                                                   _mm256_set1_epi8((char)(128 - MXFP4_OFFSET))),
                                   four);
    case QUIRE_MATMUL_Q5_0:
    case QUIRE_MATMUL_Q5_1:
    case QUIRE_MATMUL_Q5_K:
        return with_high(four, load(high, half), k, 1);
    case QUIRE_MATMUL_Q6_K:
        return with_high(four, load(high + (size_t)k / 4 * QUAD_BYTES, half), k % 4, 2);
    default:
        return four;
    }
}

/* ---- products ---- */

INLINE __m256i int_at(const char *x)
{
    return _mm256_set1_epi32(*(const int32_t *)(const void *)x);
}

INLINE __m256 float_at(const char *x)
{
    return _mm256_set1_ps(*(const float *)(const void *)x);
}

/* Half of line i of a side of floats. */
INLINE __m256 floats_at(const float *side, uint32_t i, uint32_t half)
{
    return _mm256_load_ps(side + (size_t)i * QUIRE_MATMUL_PANEL + (size_t)8 * half);
}

/* The first value of a row's sum of quads from `quad` on: the offset of codes. */
INLINE __m256i start_of(quire_matmul_type type, const char *x, size_t stride, uint32_t quad)
{
    const __m256i half = int_at(x + QUIRE_MATMUL_X_HALF * stride);
    const __m256i sum = int_at(x + QUIRE_MATMUL_X_SUM * stride);

    switch (type) {
    case QUIRE_MATMUL_Q8_0:
    case QUIRE_MATMUL_IQ4_NL:
    case QUIRE_MATMUL_IQ4_XS:
        return PASSES_VNNI ? sum : _mm256_setzero_si256();
    case QUIRE_MATMUL_MXFP4:
        return _mm256_mullo_epi32(_mm256_srai_epi32(sum, 7), _mm256_set1_epi32(MXFP4_OFFSET));
    case QUIRE_MATMUL_IQ2_XXS:
        return _mm256_srai_epi32(sum, 1);
    case QUIRE_MATMUL_IQ2_XS:
        return quad == 0 ? _mm256_slli_epi32(half, 1)
                         : _mm256_sub_epi32(_mm256_srai_epi32(sum, 1), _mm256_slli_epi32(half, 1));
    case QUIRE_MATMUL_Q4_0:
        return _mm256_srai_epi32(sum, 4);
    case QUIRE_MATMUL_Q5_0:
    case QUIRE_MATMUL_IQ1_S:
        return _mm256_srai_epi32(sum, 3);
    case QUIRE_MATMUL_IQ1_M:
        return quad == 0 ? _mm256_srai_epi32(half, 1)
                         : _mm256_sub_epi32(_mm256_srai_epi32(sum, 3), _mm256_srai_epi32(half, 1));
    case QUIRE_MATMUL_Q6_K:
        return quad == 0 ? half : _mm256_sub_epi32(_mm256_srai_epi32(sum, 2), half);
    case QUIRE_MATMUL_Q3_K:
        return quad == 0 ? _mm256_srai_epi32(half, 3)
                         : _mm256_sub_epi32(_mm256_srai_epi32(sum, 5), _mm256_srai_epi32(half, 3));
    default:
        return _mm256_setzero_si256();
    }
}

#if PASSES_VNNI

/* acc plus codes times a row's quad. As assembly because gcc 12 copies and spills accumulators
 * around the intrinsic. */
INLINE __m256i dot(__m256i acc, __m256i codes, __m256i quad)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(codes), "x"(quad));
    return acc;
}

/* Add n rows' sums over quads [begin, end) of a block. */
INLINE void quads_add(quire_matmul_type type, uint32_t n, const quire_matmul_pass *p,
                      uint32_t begin, uint32_t end, pair acc[ROWS])
{
    const char *x = p->x + begin * p->x_stride;

    UNROLL
    for (uint32_t k = begin; k < end; k++, x += p->x_stride) {
        const __m256i low = half_quad_at(type, p->codes, k, 0);
        const __m256i high = half_quad_at(type, p->codes, k, 1);

        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            const __m256i quad = int_at(x + (size_t)4 * r);

            acc[r].half[0] = dot(acc[r].half[0], low, quad);
            acc[r].half[1] = dot(acc[r].half[1], high, quad);
        }
    }
}

#else

/* Quads of narrow codes whose products fit an int16 together. */
INLINE uint32_t n_run_quads(quire_matmul_type type)
{
    switch (type) {
    case QUIRE_MATMUL_IQ2_XXS:
    case QUIRE_MATMUL_IQ2_XS:
        return 1;
    case QUIRE_MATMUL_Q6_K:
        return 2;
    case QUIRE_MATMUL_MXFP4:
    case QUIRE_MATMUL_Q2_K: /* a half has no more */
    case QUIRE_MATMUL_Q3_K:
    case QUIRE_MATMUL_Q5_0:
    case QUIRE_MATMUL_Q5_1:
    case QUIRE_MATMUL_Q5_K:
    case QUIRE_MATMUL_IQ1_S:
    case QUIRE_MATMUL_IQ1_M:
        return 4;
    default:
        return 8;
    }
}

/* Add codes times a row's quad to two registers of sums, or begin them. As assembly because gcc 12
 * adds in an order of its own, which spills. */
INLINE void dot_two(pair *sum, pair codes, const char *quad, bool is_start)
{
    const int32_t *x = (const int32_t *)(const void *)quad;
    __m256i both, one;

    if (is_start) {
        __asm__("vpbroadcastd %4, %1\n\t"
                "vpmaddubsw %1, %2, %0\n\t"
                "vpmaddubsw %1, %3, %1"
                : "=&x"(sum->half[0]), "=&x"(sum->half[1])
                : "x"(codes.half[0]), "x"(codes.half[1]), "m"(*x));
        return;
    }
    __asm__("vpbroadcastd %6, %2\n\t"
            "vpmaddubsw %2, %4, %3\n\t"
            "vpmaddubsw %2, %5, %2\n\t"
            "vpaddw %3, %0, %0\n\t"
            "vpaddw %2, %1, %1"
            : "+x"(sum->half[0]), "+x"(sum->half[1]), "=&x"(both), "=&x"(one)
            : "x"(codes.half[0]), "x"(codes.half[1]), "m"(*x));
}

INLINE __m256i widen_add(__m256i acc, __m256i sum)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

/* Add n rows' sums over a run of quads of narrow codes. */
INLINE void narrow_add(quire_matmul_type type, uint32_t n, const quire_matmul_pass *p,
                       uint32_t begin, pair acc[ROWS])
{
    const char *x = p->x + begin * p->x_stride;
    pair sum[ROWS];

    UNROLL
    for (uint32_t k = begin; k < begin + n_run_quads(type); k++, x += p->x_stride) {
        const pair codes = { { half_quad_at(type, p->codes, k, 0),
                               half_quad_at(type, p->codes, k, 1) } };

        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            dot_two(&sum[r], codes, x + (size_t)4 * r, k == begin);
        }
    }
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        acc[r].half[0] = widen_add(acc[r].half[0], sum[r].half[0]);
        acc[r].half[1] = widen_add(acc[r].half[1], sum[r].half[1]);
    }
}

/* Add w times a row's quad to a row's integers: |w| as u8 times x with the sign of w. */
INLINE void dot_wide(pair *acc, pair w, pair size, const char *quad)
{
    const int32_t *x = (const int32_t *)(const void *)quad;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i both, one;

    __asm__(
        "vpbroadcastd %[x], %[both]\n\t"
        "vpsignb %[w0], %[both], %[one]\n\t"
        "vpsignb %[w1], %[both], %[both]\n\t"
        "vpmaddubsw %[one], %[size0], %[one]\n\t"
        "vpmaddubsw %[both], %[size1], %[both]\n\t"
        "vpmaddwd %[ones], %[one], %[one]\n\t"
        "vpmaddwd %[ones], %[both], %[both]\n\t"
        "vpaddd %[one], %[acc0], %[acc0]\n\t"
        "vpaddd %[both], %[acc1], %[acc1]"
        : [acc0] "+x"(acc->half[0]), [acc1] "+x"(acc->half[1]), [both] "=&x"(both), [one] "=&x"(one)
        : [w0] "x"(w.half[0]), [w1] "x"(w.half[1]), [size0] "x"(size.half[0]),
          [size1] "x"(size.half[1]), [ones] "x"(ones), [x] "m"(*x));
}

/* Add n rows' sums over a block of wide codes. */
INLINE void wide_add(quire_matmul_type type, uint32_t n, const quire_matmul_pass *p, pair acc[ROWS])
{
    const __m256i flip = _mm256_set1_epi8(-128);
    const char *x = p->x;

    UNROLL
    for (uint32_t k = 0; k < QUADS; k++, x += p->x_stride) {
        const pair w = { { _mm256_xor_si256(half_quad_at(type, p->codes, k, 0), flip),
                           _mm256_xor_si256(half_quad_at(type, p->codes, k, 1), flip) } };
        const pair size = { { _mm256_abs_epi8(w.half[0]), _mm256_abs_epi8(w.half[1]) } };

        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            dot_wide(&acc[r], w, size, x + (size_t)4 * r);
        }
    }
}

/* Add n rows' sums over quads [begin, end) of a block. */
INLINE void quads_add(quire_matmul_type type, uint32_t n, const quire_matmul_pass *p,
                      uint32_t begin, uint32_t end, pair acc[ROWS])
{
    if (is_wide(type)) {
        wide_add(type, n, p, acc);
        return;
    }
    UNROLL
    for (uint32_t k = begin; k < end; k += n_run_quads(type)) {
        narrow_add(type, n, p, k, acc);
    }
}

#endif

INLINE void sums(quire_matmul_type type, uint32_t n, const quire_matmul_pass *p, uint32_t begin,
                 uint32_t end, pair acc[ROWS])
{
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const __m256i start = start_of(type, p->x + (size_t)4 * r, p->x_stride, begin);

        acc[r].half[0] = start;
        acc[r].half[1] = start;
    }
    quads_add(type, n, p, begin, end, acc);
}

INLINE bool has_min(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_Q4_1 || type == QUIRE_MATMUL_Q5_1 || type == QUIRE_MATMUL_Q4_K ||
           type == QUIRE_MATMUL_Q5_K;
}

/* Add block b, where codes and x are. */
INLINE void block_add(quire_matmul_type type, uint32_t n, const quire_matmul_pass *p, uint32_t b,
                      __m256 y[ROWS][2])
{
    pair acc[ROWS];

    sums(type, n, p, 0, QUADS, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const char *x = p->x + (size_t)4 * r;
        const __m256 d = float_at(x + QUIRE_MATMUL_X_D * p->x_stride);
        const __m256 dsum = float_at(x + QUIRE_MATMUL_X_DSUM * p->x_stride);

        UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            const __m256 scale = floats_at(p->scale, b, h);

            y[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r].half[h]), _mm256_mul_ps(scale, d),
                                      y[r][h]);
            if (has_min(type)) {
                y[r][h] = _mm256_fmadd_ps(floats_at(p->min, b, h), dsum, y[r][h]);
            }
        }
    }
}

/* The mins of a block's halves times the sums of a row's inputs, negated: half h of the row's side.
 */
INLINE __m256 mins_of(const quire_matmul_pass *p, const char *x, uint32_t b, uint32_t h)
{
    const __m256i n0 = _mm256_srai_epi32(int_at(x + QUIRE_MATMUL_X_HALF * p->x_stride), 5);
    const __m256i n1 =
        _mm256_sub_epi32(_mm256_srai_epi32(int_at(x + QUIRE_MATMUL_X_SUM * p->x_stride), 7), n0);

    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(n1), floats_at(p->min, 2 * b + 1, h),
                           _mm256_mul_ps(_mm256_cvtepi32_ps(n0), floats_at(p->min, 2 * b, h)));
}

/* Add block b, whose halves have scales. */
INLINE void halves_add(quire_matmul_type type, uint32_t n, const quire_matmul_pass *p, uint32_t b,
                       __m256 y[ROWS][2])
{
    __m256 first[ROWS][2];
    pair acc[ROWS];

    sums(type, n, p, 0, QUADS / 2, acc);
    UNROLL
    for (uint32_t i = 0; i < 2 * n; i++) {
        first[i / 2][i % 2] = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[i / 2].half[i % 2]),
                                            floats_at(p->scale, 2 * b, i % 2));
    }
    sums(type, n, p, QUADS / 2, QUADS, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const __m256 d = float_at(p->x + (size_t)4 * r + QUIRE_MATMUL_X_D * p->x_stride);

        UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            const __m256 both = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r].half[h]),
                                                floats_at(p->scale, 2 * b + 1, h), first[r][h]);

            y[r][h] = _mm256_fmadd_ps(both, d, y[r][h]);
            if (type == QUIRE_MATMUL_Q2_K) {
                y[r][h] = _mm256_fmadd_ps(mins_of(p, p->x + (size_t)4 * r, b, h), d, y[r][h]);
            }
        }
    }
}

INLINE void rows_pass(quire_matmul_type type, uint32_t n, const quire_matmul_pass *pass)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const uint32_t step =
        quire_matmul_has_grid(type)
            ? QUADS * QUAD_BYTES
            : l->code_bytes + (l->group == QUIRE_MATMUL_BLOCK ? l->head_bytes : 0);
    quire_matmul_pass p = *pass;
    __m256 y[ROWS][2];

    UNROLL
    for (uint32_t i = 0; i < 2 * n; i++) {
        y[i / 2][i % 2] = floats_at(pass->y, i / 2, i % 2);
    }
    for (uint32_t b = 0; b < pass->n_blocks; b++) {
        for (uint32_t i = 0; i < p.ahead_bytes; i += LINE) {
            _mm_prefetch((const char *)p.ahead + i, _MM_HINT_T0);
        }
        if (quire_matmul_has_halves(type)) {
            halves_add(type, n, &p, b, y);
        } else {
            block_add(type, n, &p, b, y);
        }
        p.codes += step;
        if (type == QUIRE_MATMUL_MXFP4 && b % 2 == 1) { /* the next pair's head */
            p.codes += l->head_bytes;
        }
        p.ahead += p.ahead_bytes;
        p.x += QUIRE_MATMUL_BLOCK_BYTES / 4 * p.x_stride;
    }
    UNROLL
    for (uint32_t i = 0; i < 2 * n; i++) {
        _mm256_store_ps(pass->y + (size_t)i / 2 * QUIRE_MATMUL_PANEL + (size_t)8 * (i % 2),
                        y[i / 2][i % 2]);
    }
}

/* One function for each type and number of rows. */
#define PASS_FN(type, n)                                                                           \
    static void pass_##type##_##n(const quire_matmul_pass *p)                                      \
    {                                                                                              \
        rows_pass(QUIRE_MATMUL_##type, n, p);                                                      \
    }
#define PASS_FNS(type)                                                                             \
    PASS_FN(type, 1)                                                                               \
    PASS_FN(type, 2)                                                                               \
    PASS_FN(type, 3)                                                                               \
    PASS_FN(type, 4)
#define PASS_LIST_AS(type, as)                                                                     \
    [QUIRE_MATMUL_##type] = { pass_##as##_1, pass_##as##_2, pass_##as##_3, pass_##as##_4 }
#define PASS_LIST(type) PASS_LIST_AS(type, type)

PASS_FNS(Q8_0)
PASS_FNS(Q4_0)
PASS_FNS(Q4_1)
PASS_FNS(Q5_0)
PASS_FNS(Q5_1)
PASS_FNS(IQ4_NL)
PASS_FNS(Q4_K)
PASS_FNS(Q5_K)
PASS_FNS(Q6_K)
PASS_FNS(MXFP4)
PASS_FNS(Q2_K)
PASS_FNS(Q3_K)
PASS_FNS(IQ4_XS)
PASS_FNS(IQ2_XXS) /* and IQ3, of one scale for a block */
PASS_FNS(IQ2_XS)  /* and IQ2_S, of a scale for each half */
PASS_FNS(IQ1_S)
PASS_FNS(IQ1_M)

const quire_matmul_passes PASSES_NAME = { {
    PASS_LIST(Q8_0),
    PASS_LIST(Q4_0),
    PASS_LIST(Q4_1),
    PASS_LIST(Q5_0),
    PASS_LIST(Q5_1),
    PASS_LIST(IQ4_NL),
    PASS_LIST(Q4_K),
    PASS_LIST(Q5_K),
    PASS_LIST(Q6_K),
    PASS_LIST(MXFP4),
    PASS_LIST(Q2_K),
    PASS_LIST(Q3_K),
    PASS_LIST(IQ4_XS),
    PASS_LIST(IQ2_XXS),
    PASS_LIST(IQ2_XS),
    PASS_LIST_AS(IQ2_S, IQ2_XS),
    PASS_LIST_AS(IQ3_XXS, IQ2_XXS),
    PASS_LIST_AS(IQ3_S, IQ2_XXS),
    PASS_LIST(IQ1_S),
    PASS_LIST(IQ1_M),
} };
