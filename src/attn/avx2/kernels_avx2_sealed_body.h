/* kernels_avx2_sealed_body.h - the kernels of sealed formats, once with and once without AVX-VNNI.
 *
 * The including file defines SEALED_SUFFIX (of the function names) and SEALED_VNNI (0 or 1). Sums
 * are exact modulo 2^32 either way, so both give the same bits.
 *
 * The path from codes to levels, and the terms group and unit: kernels_avx2_sealed_planes_body.h.
 *
 * VNNI multiplies unsigned with signed bytes: levels + 128 with q in K, P with levels in V. Without
 * it levels + 128 are spread to int16, even and odd bytes, so the other operand comes as the pairs
 * (0, 2) and (1, 3) of each group and nothing saturates as vpmaddubsw would. Accumulators start at
 * -128 * sum(n) where levels have that offset.
 *
 * Which rows meet which lanes: vector/kernels_vector_sealed_body.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx2/kernels_avx2.h"
#include "attn/avx2/kernels_avx2_sealed_sums_body.h"
#include "attn/pack/sealed_pack.h"
#include "attn/vector/kernels_vector_sealed.h"

#define K_LEVELS_BIAS 0x80
#define V_LEVELS_BIAS (SEALED_VNNI ? 0 : 0x80)

QUIRE_AVX2_INLINE quire_avx2_planes tile_planes(quire_format format, quire_side side, uint32_t d,
                                                const void *tile)
{
    return quire_avx2_planes_of(format, side, d, tile,
                                side == QUIRE_SIDE_K ? K_LEVELS_BIAS : V_LEVELS_BIAS);
}

/* ---- q . K ---- */

QUIRE_AVX2_INLINE float sum_of(__m256 x)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* The logits that centring took away from every token of the tile, for some rows. */
static void mean_logits(const quire_attn_qk *args, uint32_t row, uint32_t n_rows, float *logits)
{
    const size_t stride = quire_avx2_sealed_q_bytes(args->d);
    const char *x = (const char *)args->packed + row * stride + sizeof(quire_avx2_sealed_header);
    const char *mean = (const char *)args->k_tile + QUIRE_SEALED_SCALES_BYTES;

    if (!quire_sealed_is_centred(args->format, QUIRE_SIDE_K)) {
        memset(logits, 0, n_rows * sizeof(*logits));
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++, x += stride) {
        __m256 even = _mm256_setzero_ps();
        __m256 odd = _mm256_setzero_ps();

        for (uint32_t i = 0; i < args->d; i += 8) {
            __m256 y = _mm256_cvtph_ps(_mm_load_si128((const void *)(mean + 2 * (size_t)i)));
            __m256 z = _mm256_loadu_ps((const void *)(x + 4 * (size_t)i));

            even = i % 16 == 0 ? _mm256_fmadd_ps(y, z, even) : even;
            odd = i % 16 == 0 ? odd : _mm256_fmadd_ps(y, z, odd);
        }
        logits[r] = sum_of(_mm256_add_ps(even, odd));
    }
}

QUIRE_AVX2_INLINE weights weights_of_q(const quire_attn_qk *args, uint32_t row)
{
    const size_t stride = quire_avx2_sealed_q_bytes(args->d);

    return (weights){ (const char *)args->packed + row * stride +
                          quire_avx2_sealed_weights_offset(args->d),
                      stride };
}

QUIRE_AVX2_INLINE void start_logits(block b, const quire_attn_qk *args, const source *x,
                                    uint32_t row, block_sums *acc)
{
    const size_t stride = quire_avx2_sealed_q_bytes(args->d);
    const char *q = (const char *)args->packed + row * stride;

    (void)x;
    for (uint32_t r = 0; r < b.n; r++) {
        const quire_avx2_sealed_header *header = (const void *)(q + r * stride);

        for (uint32_t i = 0; i < b.regs; i++) {
            acc->row[r][i] = _mm256_set1_epi32(header->start);
        }
    }
}

QUIRE_AVX2_INLINE void store_logits(block b, const quire_attn_qk *args, uint32_t row,
                                    uint32_t token, const float *mean, const block_sums *acc)
{
    const size_t stride = quire_avx2_sealed_q_bytes(args->d);
    const char *q = (const char *)args->packed + row * stride;
    const uint16_t *scales = (const uint16_t *)args->k_tile + token;

    for (uint32_t r = 0; r < b.n; r++) {
        const quire_avx2_sealed_header *header = (const void *)(q + r * stride);

        for (uint32_t i = 0; i < b.regs; i++) {
            float *s = args->s + (size_t)(row + r) * TILE + token + 8 * i;
            __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(scales + 8 * i));
            __m256 y =
                _mm256_mul_ps(_mm256_cvtepi32_ps(acc->row[r][i]), _mm256_set1_ps(header->scale));

            y = _mm256_mul_ps(y, _mm256_cvtph_ps(halves));
            y = _mm256_add_ps(y, _mm256_set1_ps(mean[r]));
            _mm256_store_ps(s, args->accumulate ? _mm256_add_ps(_mm256_load_ps(s), y) : y);
        }
    }
}

void SEALED_NAME(quire_avx2_q_pack_sealed)(uint32_t d, float scale, const float *q, void *packed)
{
    quire_avx2_sealed_header *header = packed;
    float *x = (float *)(void *)((char *)packed + sizeof(*header));
    void *w = (char *)packed + quire_avx2_sealed_weights_offset(d);
    int8_t n[QUIRE_HEAD_DIM_MAX];
    int32_t sum = 0;

    header->scale = quire_sealed_pack_q(d, scale, q, n);
    for (uint32_t i = 0; i < d; i++) {
        x[i] = scale * q[i];
        sum += n[i];
#if SEALED_VNNI
        ((int8_t *)w)[i] = n[i];
#else
        ((int16_t *)w)[i] = n[(i & ~3u) | (i & 1) << 1 | (i & 2) >> 1];
#endif
    }
    header->start = -128 * sum;
}

/* ---- P . V ---- */

/* Weights of some rows as integers, and the value of one unit. */
typedef struct packed_rows {
    float unit[STRIP_ROWS];
    int32_t start[STRIP_ROWS];
    _Alignas(64) char weights[STRIP_ROWS][TILE / 4 * WEIGHT_BYTES];
} packed_rows;

/* 16 weights w * inverse as integers, in the order in which they are multiplied. */
QUIRE_AVX2_INLINE __m128i store_weights(const __m256 w[2], float inverse, char *to)
{
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(w[0], _mm256_set1_ps(inverse)));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(w[1], _mm256_set1_ps(inverse)));
    __m256i n = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);

#if SEALED_VNNI
    n = _mm256_permute4x64_epi64(_mm256_packus_epi16(n, n), 0xd8);
    _mm_store_si128((__m128i *)(void *)to, _mm256_castsi256_si128(n));
    return _mm_setzero_si128();
#else
    _mm256_store_si256((__m256i *)(void *)to,
                       _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(n, 0xd8), 0xd8));
    n = _mm256_madd_epi16(n, _mm256_set1_epi16(1));
    return _mm_add_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
#endif
}

/* As quire_sealed_pack_p() (sealed_pack.h) does it. */
static void pack_row(const float *p, const void *v_tile, packed_rows *to, uint32_t row)
{
    const uint16_t *scales = v_tile;
    __m256i top = _mm256_setzero_si256();
    __m128i sum = _mm_setzero_si128();
    __m128i m;
    __m256 w[8];
    uint32_t max_bits;
    float max;

    for (uint32_t i = 0; i < 8; i++) {
        __m128i halves = _mm_load_si128((const __m128i *)(const void *)(scales + 8 * i));
        __m256 x = _mm256_load_ps(p + 8 * i);
        __m256 used = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ);

        w[i] = _mm256_and_ps(used, _mm256_mul_ps(x, _mm256_cvtph_ps(halves)));
        top = _mm256_max_epu32(top, _mm256_castps_si256(w[i]));
    }
    m = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    max_bits = (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1)));
    max = quire_f32_from_bits(max_bits);
    if (max_bits >= QUIRE_F32_INF_BITS || max < QUIRE_ATTN_Q8_TINY) {
        memset(to->weights[row], 0, sizeof(to->weights[row]));
        to->unit[row] = max_bits >= QUIRE_F32_INF_BITS ? NAN : 0.0f;
        to->start[row] = 0;
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        sum = _mm_add_epi32(sum, store_weights(w + 2 * i, QUIRE_ATTN_SEALED_P_MAX / max,
                                               to->weights[row] + (size_t)4 * i * WEIGHT_BYTES));
    }
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    to->unit[row] = max / QUIRE_ATTN_SEALED_P_MAX;
    to->start[row] = -V_LEVELS_BIAS * _mm_cvtsi128_si32(sum);
}

static void pack_rows(const quire_attn_pv *args, uint32_t row, uint32_t n, packed_rows *to)
{
    for (uint32_t r = 0; r < n; r++) {
        pack_row(args->p + (size_t)(row + r) * TILE, args->v_tile, to, r);
    }
}

QUIRE_AVX2_INLINE weights weights_of_p(const packed_rows *packed, uint32_t first)
{
    return (weights){ packed->weights[first], sizeof(packed->weights[0]) };
}

QUIRE_AVX2_INLINE void start_outputs(block b, const source *x, const packed_rows *packed,
                                     uint32_t first, block_sums *acc)
{
    (void)x;
    for (uint32_t r = 0; r < b.n; r++) {
        for (uint32_t i = 0; i < b.regs; i++) {
            acc->row[r][i] = _mm256_set1_epi32(packed->start[first + r]);
        }
    }
}

/* Sums to row `row` of the call and those after it. */
QUIRE_AVX2_INLINE void store_outputs(block b, const quire_attn_pv *args, const packed_rows *packed,
                                     uint32_t first, uint32_t row, uint32_t dim,
                                     const block_sums *acc)
{
    float *o = args->o + row * args->o_stride + dim;

    for (uint32_t r = 0; r < b.n; r++) {
        __m256 rescale = _mm256_set1_ps(args->rescale[row + r]);
        __m256 unit = _mm256_set1_ps(packed->unit[first + r]);

        for (uint32_t i = 0; i < b.regs; i++) {
            float *to = o + r * args->o_stride + 8 * i;
            __m256 old = _mm256_mul_ps(_mm256_load_ps(to), rescale);

            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc->row[r][i]), unit, old));
        }
    }
}

#define VECTOR(name)    quire_avx2_##name
#define VECTOR_INLINE   QUIRE_AVX2_INLINE
#define VECTOR_LANES    8u
#define VECTOR_ROWS_MAX QUIRE_AVX2_ROWS_MAX
#include "attn/vector/kernels_vector_sealed_body.h"
