/* kernels_avx2_q8_body.h - the q8 kernels, once with and once without AVX-VNNI.
 *
 * The including file defines Q8_SUFFIX (of the function names) and Q8_DOT(acc, a, b): acc plus the
 * sums of neighbouring int16 products. Both are exact modulo 2^32, so both give the same bits.
 *
 * 32 bytes of codes are 8 tokens of 4 dimensions (K) or 8 dimensions of 4 tokens (V). Their even
 * and odd bytes are spread to int16 in place, so the int16 operands come as the pairs (0, 2) and
 * (1, 3) of each group, and nothing saturates as vpmaddubsw would. K codes stay unsigned:
 * accumulators start at -128 * sum(n); no sum leaves 32 bits (see kernels.h).
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx2/kernels_avx2.h"
#include "attn/pack/q8_pack.h"
#include "codec/codec_internal.h"

#define TILE    QUIRE_TILE_TOKENS
#define ROWS    4u          /* rows of a block at most */
#define P_PAIRS (TILE / 2u) /* int16 pairs of one row's weights */

#define Q8_JOIN_(a, b) a##b
#define Q8_JOIN(a, b)  Q8_JOIN_(a, b)
#define Q8_NAME(name)  Q8_JOIN(name, Q8_SUFFIX)

QUIRE_AVX2_INLINE __m256i load_codes(const char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

QUIRE_AVX2_INLINE __m256i broadcast_pair(const void *at)
{
    return _mm256_castps_si256(_mm256_broadcast_ss(at));
}

/* ---- q . K ---- */

QUIRE_AVX2_INLINE void qk_block(uint32_t n, uint32_t regs, const quire_attn_qk *args, uint32_t row,
                                uint32_t token, ptrdiff_t ahead)
{
    const size_t q_bytes = quire_avx2_q_bytes(QUIRE_FORMAT_Q8, args->d);
    const char *q = (const char *)args->packed + row * q_bytes;
    const char *codes = (const char *)args->k_tile + QUIRE_Q8_CODES_OFFSET + (size_t)token * 4;
    const uint16_t *scales = (const uint16_t *)args->k_tile + token;
    __m256i acc[ROWS][8];

    for (uint32_t r = 0; r < n; r++) {
        const quire_avx2_q8_header *header = (const void *)(q + r * q_bytes);

        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = _mm256_set1_epi32(header->start);
        }
    }
    for (uint32_t c = 0; c < args->d; c += 4, codes += (size_t)4 * TILE) {
        const char *pairs = q + sizeof(quire_avx2_q8_header) + c * sizeof(int16_t);

        for (uint32_t at = 0; at < 32 * regs; at += 64) {
            quire_avx2_prefetch(codes + at, ahead);
        }
        for (uint32_t odd = 0; odd < 2; odd++) {
            __m256i k[8];

            for (uint32_t i = 0; i < regs; i++) {
                __m256i x = load_codes(codes + (size_t)32 * i);

                k[i] = odd ? _mm256_srli_epi16(x, 8) : _mm256_and_si256(x, _mm256_set1_epi16(0xff));
            }
            for (uint32_t r = 0; r < n; r++) {
                __m256i x = broadcast_pair(pairs + r * q_bytes + 4 * odd);

                for (uint32_t i = 0; i < regs; i++) {
                    acc[r][i] = Q8_DOT(acc[r][i], k[i], x);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        const quire_avx2_q8_header *header = (const void *)(q + r * q_bytes);

        for (uint32_t i = 0; i < regs; i++) {
            float *s = args->s + (size_t)(row + r) * TILE + token + 8 * i;
            __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(scales + 8 * i));
            __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][i]), _mm256_set1_ps(header->scale));

            x = _mm256_mul_ps(x, _mm256_cvtph_ps(halves));
            _mm256_store_ps(s, args->accumulate ? _mm256_add_ps(_mm256_load_ps(s), x) : x);
        }
    }
}

QUIRE_AVX2_INLINE void qk_rows(uint32_t n, uint32_t regs, const quire_attn_qk *args, uint32_t row,
                               ptrdiff_t ahead)
{
    for (uint32_t token = 0; token < TILE; token += 8 * regs) {
        qk_block(n, regs, args, row, token, ahead);
    }
}

void Q8_NAME(quire_avx2_qk_q8)(const quire_attn_qk *args)
{
    ptrdiff_t ahead = quire_avx2_ahead(args->k_tile, args->next);
    uint32_t row = 0;

    quire_avx2_prefetch(args->k_tile, ahead);
    quire_avx2_prefetch((const char *)args->k_tile + 64, ahead);
    for (uint32_t left; (left = args->n_rows - row) > 0; ahead = 0) {
        if (left == 1) {
            qk_rows(1, 8, args, row, ahead);
            row += 1;
        } else if (left == 2 || left == 5) {
            qk_rows(2, 4, args, row, ahead);
            row += 2;
        } else if (left == 3 || left == 6) {
            qk_rows(3, 2, args, row, ahead);
            row += 3;
        } else {
            qk_rows(4, 2, args, row, ahead);
            row += 4;
        }
    }
}

/* ---- P . V ---- */

/* The weights of a block of rows as integers, and the value of one unit. */
typedef struct weights {
    float unit[ROWS];
    int16_t pairs[ROWS][TILE]; /* of each 4 tokens: 0, 2, 1, 3 */
} weights;

/* As quire_q8_pack_p() (q8_pack.h) does it, with the pairs in order. */
QUIRE_AVX2_INLINE float pack_weights(const float *p, const void *v_tile, int16_t *pairs)
{
    const __m256i magnitude_mask = _mm256_set1_epi32(0x7fffffff);
    const uint16_t *scales = v_tile;
    __m256i top = _mm256_setzero_si256();
    __m128i m;
    __m256 w[8];
    uint32_t max_bits;
    float max;

    for (uint32_t i = 0; i < 8; i++) {
        __m128i halves = _mm_load_si128((const __m128i *)(const void *)(scales + 8 * i));
        __m256 x = _mm256_load_ps(p + 8 * i);
        __m256 used = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ);

        w[i] = _mm256_and_ps(used, _mm256_mul_ps(x, _mm256_cvtph_ps(halves)));
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(w[i]), magnitude_mask));
    }
    m = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    max_bits = (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1)));
    max = quire_f32_from_bits(max_bits);
    if (max_bits >= QUIRE_F32_INF_BITS || max < QUIRE_ATTN_Q8_TINY) {
        memset(pairs, 0, TILE * sizeof(*pairs));
        return max_bits >= QUIRE_F32_INF_BITS ? NAN : 0.0f;
    }
    for (uint32_t i = 0; i < 8; i++) {
        __m256i x =
            _mm256_cvtps_epi32(_mm256_mul_ps(w[i], _mm256_set1_ps(QUIRE_ATTN_Q8_P_MAX / max)));
        __m128i y = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

        y = _mm_shufflehi_epi16(_mm_shufflelo_epi16(y, 0xd8), 0xd8);
        _mm_storeu_si128((__m128i *)(void *)(pairs + 8 * i), y);
    }
    return max / QUIRE_ATTN_Q8_P_MAX;
}

QUIRE_AVX2_INLINE void pv_block(uint32_t n, uint32_t regs, const quire_attn_pv *args,
                                const weights *w, uint32_t row, uint32_t dim, ptrdiff_t ahead)
{
    const size_t line_bytes = (size_t)4 * args->d;
    const char *codes = (const char *)args->v_tile + QUIRE_Q8_CODES_OFFSET + (size_t)4 * dim;
    float *o = args->o + row * args->o_stride + dim;
    uint32_t group_end = (args->slot_end + 3) / 4;
    __m256i acc[ROWS][8];

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = _mm256_setzero_si256();
        }
    }
    for (uint32_t g = args->slot_begin / 4; g < group_end; g++) {
        const char *at = codes + g * line_bytes;

        for (uint32_t byte = 0; byte < 32 * regs; byte += 64) {
            quire_avx2_prefetch(at + byte, ahead);
        }
        for (uint32_t odd = 0; odd < 2; odd++) {
            __m256i v[8];

            for (uint32_t i = 0; i < regs; i++) {
                __m256i x = load_codes(at + (size_t)32 * i);

                v[i] = _mm256_srai_epi16(odd ? x : _mm256_slli_epi16(x, 8), 8);
            }
            for (uint32_t r = 0; r < n; r++) {
                __m256i x = broadcast_pair(&w->pairs[r][4 * g + 2 * odd]);

                for (uint32_t i = 0; i < regs; i++) {
                    acc[r][i] = Q8_DOT(acc[r][i], v[i], x);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        __m256 rescale = _mm256_set1_ps(args->rescale[row + r]);
        __m256 unit = _mm256_set1_ps(w->unit[r]);

        for (uint32_t i = 0; i < regs; i++) {
            float *to = o + r * args->o_stride + 8 * i;
            __m256 old = _mm256_mul_ps(_mm256_load_ps(to), rescale);

            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r][i]), unit, old));
        }
    }
}

/* All dimensions, `regs` registers at a time, then the rest by halves. */
QUIRE_AVX2_INLINE void pv_rows(uint32_t n, uint32_t regs, const quire_attn_pv *args, uint32_t row,
                               ptrdiff_t ahead)
{
    uint32_t dim = 0;
    weights w;

    for (uint32_t r = 0; r < n; r++) {
        w.unit[r] = pack_weights(args->p + (size_t)(row + r) * TILE, args->v_tile, w.pairs[r]);
    }
    for (; dim + 8 * regs <= args->d; dim += 8 * regs) {
        pv_block(n, regs, args, &w, row, dim, ahead);
    }
    if (regs > 4 && dim + 32 <= args->d) {
        pv_block(n, 4, args, &w, row, dim, ahead);
        dim += 32;
    }
    if (regs > 2 && dim + 16 <= args->d) {
        pv_block(n, 2, args, &w, row, dim, ahead);
        dim += 16;
    }
    if (dim < args->d) {
        pv_block(n, 1, args, &w, row, dim, ahead);
    }
}

void Q8_NAME(quire_avx2_pv_q8)(const quire_attn_pv *args)
{
    ptrdiff_t ahead = quire_avx2_ahead(args->v_tile, args->next);
    uint32_t row = 0;

    quire_avx2_prefetch(args->v_tile, ahead);
    quire_avx2_prefetch((const char *)args->v_tile + 64, ahead);
    for (uint32_t left; (left = args->n_rows - row) > 0; ahead = 0) {
        if (left == 1) {
            pv_rows(1, 8, args, row, ahead);
            row += 1;
        } else if (left == 2 || left == 5) {
            pv_rows(2, 4, args, row, ahead);
            row += 2;
        } else if (left == 3 || left == 6) {
            pv_rows(3, 2, args, row, ahead);
            row += 3;
        } else {
            pv_rows(4, 2, args, row, ahead);
            row += 4;
        }
    }
}
