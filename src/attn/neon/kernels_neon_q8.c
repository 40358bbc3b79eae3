/* kernels_neon_q8.c - q8 with smlal and smlal2: int16 times int16, exact sums in int32.
 *
 * 16 bytes of codes are 4 tokens of 4 dimensions (K) or 4 dimensions of 4 tokens (V). Their even
 * and odd bytes are spread to int16 in place, which is two instructions and no shuffle, so the
 * other operand comes as the pairs (0, 2) and (1, 3) of each group. A pair of accumulators holds
 * two neighbouring lanes per token or dimension, added when all is summed. K codes stay unsigned:
 * accumulators start at -64 * sum(n) in both lanes; no sum leaves 32 bits (see kernels.h).
 *
 * SPDX-License-Identifier: MIT */
#include "attn/neon/kernels_neon.h"
#include "attn/pack/q8_pack.h"
#include "codec/codec_internal.h"

#define TILE QUIRE_TILE_TOKENS

/* Two accumulators for the four sums of 16 bytes of codes. */
typedef struct sums {
    int32x4_t low;
    int32x4_t high;
} sums;

QUIRE_NEON_INLINE int16x8_t broadcast_pair(const int16_t *at)
{
    return vreinterpretq_s16_s32(vld1q_dup_s32((const int32_t *)(const void *)at));
}

QUIRE_NEON_INLINE sums multiply_add(sums acc, int16x8_t codes, int16x8_t pair)
{
    acc.low = vmlal_s16(acc.low, vget_low_s16(codes), vget_low_s16(pair));
    acc.high = vmlal_high_s16(acc.high, codes, pair);
    return acc;
}

QUIRE_NEON_INLINE float32x4_t total_of(sums acc)
{
    return vcvtq_f32_s32(vpaddq_s32(acc.low, acc.high));
}

/* ---- q . K ---- */

QUIRE_NEON_INLINE void qk_block(uint32_t n, uint32_t regs, const quire_attn_qk *args, uint32_t row,
                                uint32_t token, ptrdiff_t ahead)
{
    const size_t q_bytes = quire_neon_q_bytes(QUIRE_FORMAT_Q8, args->d);
    const char *q = (const char *)args->packed + row * q_bytes;
    const uint8_t *codes =
        (const uint8_t *)args->k_tile + QUIRE_Q8_CODES_OFFSET + (size_t)token * 4;
    const uint16_t *scales = (const uint16_t *)args->k_tile + token;
    sums acc[QUIRE_NEON_ROWS_MAX][8];

    for (uint32_t r = 0; r < n; r++) {
        const quire_neon_q8_header *header = (const void *)(q + r * q_bytes);
        int32x4_t start = vdupq_n_s32(header->start);

        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = (sums){ start, start };
        }
    }
    for (uint32_t c = 0; c < args->d; c += 4, codes += (size_t)4 * TILE) {
        const char *pairs = q + sizeof(quire_neon_q8_header) + c * sizeof(int16_t);
        int16x8_t even[QUIRE_NEON_ROWS_MAX];
        int16x8_t odd[QUIRE_NEON_ROWS_MAX];

        for (uint32_t at = 0; at < 16 * regs; at += QUIRE_NEON_LINE) {
            quire_neon_prefetch(codes + at, ahead);
        }
        for (uint32_t r = 0; r < n; r++) {
            const int16_t *pair = (const int16_t *)(const void *)(pairs + r * q_bytes);

            even[r] = broadcast_pair(pair);
            odd[r] = broadcast_pair(pair + 2);
        }
        for (uint32_t i = 0; i < regs; i++) {
            uint16x8_t x = vreinterpretq_u16_u8(vld1q_u8(codes + (size_t)16 * i));
            int16x8_t k_even = vreinterpretq_s16_u16(vandq_u16(x, vdupq_n_u16(0xff)));
            int16x8_t k_odd = vreinterpretq_s16_u16(vshrq_n_u16(x, 8));

            for (uint32_t r = 0; r < n; r++) {
                acc[r][i] = multiply_add(acc[r][i], k_even, even[r]);
                acc[r][i] = multiply_add(acc[r][i], k_odd, odd[r]);
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        const quire_neon_q8_header *header = (const void *)(q + r * q_bytes);

        for (uint32_t i = 0; i < regs; i++) {
            float *s = args->s + (size_t)(row + r) * TILE + token + 4 * i;
            float32x4_t x = vmulq_n_f32(total_of(acc[r][i]), header->scale);

            x = vmulq_f32(x, quire_neon_load_f16(scales + 4 * i));
            vst1q_f32(s, args->accumulate ? vaddq_f32(vld1q_f32(s), x) : x);
        }
    }
}

QUIRE_NEON_INLINE void qk_rows(uint32_t n, uint32_t regs, const quire_attn_qk *args, uint32_t row,
                               ptrdiff_t ahead)
{
    for (uint32_t token = 0; token < TILE; token += 4 * regs) {
        qk_block(n, regs, args, row, token, ahead);
    }
}

void quire_neon_qk_q8(const quire_attn_qk *args)
{
    ptrdiff_t ahead = quire_neon_ahead(args->k_tile, args->next);
    uint32_t n;

    quire_neon_prefetch(args->k_tile, ahead);
    quire_neon_prefetch((const char *)args->k_tile + QUIRE_NEON_LINE, ahead);
    for (uint32_t row = 0; row < args->n_rows; row += n, ahead = 0) {
        n = quire_neon_block_rows(args->n_rows - row);
        switch (n) {
        case 1:
            qk_rows(1, 8, args, row, ahead);
            break;
        case 2:
            qk_rows(2, 4, args, row, ahead);
            break;
        case 3:
            qk_rows(3, 2, args, row, ahead);
            break;
        default:
            qk_rows(4, 2, args, row, ahead);
            break;
        }
    }
}

/* ---- P . V ---- */

/* The weights of a block of rows as integers, and the value of one unit. */
typedef struct weights {
    float unit[QUIRE_NEON_ROWS_MAX];
    int16_t pairs[QUIRE_NEON_ROWS_MAX][TILE]; /* of each 4 tokens: 0, 2, 1, 3 */
} weights;

/* As quire_q8_pack_p() (q8_pack.h) does it, with the pairs in order. */
QUIRE_NEON_INLINE float pack_weights(const float *p, const void *v_tile, int16_t *pairs)
{
    const uint16_t *scales = v_tile;
    uint32x4_t top = vdupq_n_u32(0);
    float32x4_t w[TILE / 4];
    uint32_t max_bits;
    float max;
    float inverse;

    for (uint32_t i = 0; i < TILE / 4; i++) {
        float32x4_t x = vld1q_f32(p + 4 * i);
        uint32x4_t is_zero = vceqzq_f32(x); /* no NaN is */
        uint32x4_t bits = vreinterpretq_u32_f32(vmulq_f32(x, quire_neon_load_f16(scales + 4 * i)));

        bits = vbicq_u32(bits, is_zero);
        w[i] = vreinterpretq_f32_u32(bits);
        top = vmaxq_u32(top, vandq_u32(bits, vdupq_n_u32(0x7fffffffu)));
    }
    max_bits = vmaxvq_u32(top);
    max = quire_f32_from_bits(max_bits);
    if (max_bits >= QUIRE_F32_INF_BITS || max < QUIRE_ATTN_Q8_TINY) {
        memset(pairs, 0, TILE * sizeof(*pairs));
        return max_bits >= QUIRE_F32_INF_BITS ? NAN : 0.0f;
    }
    inverse = QUIRE_ATTN_Q8_P_MAX / max;
    for (uint32_t i = 0; i < TILE / 8; i++) {
        int16x4_t a = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(w[2 * i], inverse)));
        int16x8_t b = vqmovn_high_s32(a, vcvtnq_s32_f32(vmulq_n_f32(w[2 * i + 1], inverse)));
        int32x4_t even = vreinterpretq_s32_s16(vuzp1q_s16(b, b));
        int32x4_t odd = vreinterpretq_s32_s16(vuzp2q_s16(b, b));

        vst1q_s16(pairs + 8 * i, vreinterpretq_s16_s32(vzip1q_s32(even, odd)));
    }
    return max / QUIRE_ATTN_Q8_P_MAX;
}

QUIRE_NEON_INLINE void pv_block(uint32_t n, uint32_t regs, const quire_attn_pv *args,
                                const weights *w, uint32_t row, uint32_t dim, ptrdiff_t ahead)
{
    const size_t line_bytes = (size_t)4 * args->d;
    const int8_t *codes = (const int8_t *)args->v_tile + QUIRE_Q8_CODES_OFFSET + (size_t)4 * dim;
    float *o = args->o + row * args->o_stride + dim;
    uint32_t group_end = (args->slot_end + 3) / 4;
    sums acc[QUIRE_NEON_ROWS_MAX][8];

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = (sums){ vdupq_n_s32(0), vdupq_n_s32(0) };
        }
    }
    for (uint32_t g = args->slot_begin / 4; g < group_end; g++) {
        const int8_t *at = codes + g * line_bytes;
        int16x8_t even[QUIRE_NEON_ROWS_MAX];
        int16x8_t odd[QUIRE_NEON_ROWS_MAX];

        for (uint32_t byte = 0; byte < 16 * regs; byte += QUIRE_NEON_LINE) {
            quire_neon_prefetch(at + byte, ahead);
        }
        for (uint32_t r = 0; r < n; r++) {
            even[r] = broadcast_pair(&w->pairs[r][4 * g]);
            odd[r] = broadcast_pair(&w->pairs[r][4 * g + 2]);
        }
        for (uint32_t i = 0; i < regs; i++) {
            int16x8_t x = vreinterpretq_s16_s8(vld1q_s8(at + (size_t)16 * i));
            int16x8_t v_even = vshrq_n_s16(vshlq_n_s16(x, 8), 8);
            int16x8_t v_odd = vshrq_n_s16(x, 8);

            for (uint32_t r = 0; r < n; r++) {
                acc[r][i] = multiply_add(acc[r][i], v_even, even[r]);
                acc[r][i] = multiply_add(acc[r][i], v_odd, odd[r]);
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            float *to = o + r * args->o_stride + 4 * i;
            float32x4_t old = vmulq_n_f32(vld1q_f32(to), args->rescale[row + r]);

            vst1q_f32(to, vfmaq_n_f32(old, total_of(acc[r][i]), w->unit[r]));
        }
    }
}

/* All dimensions, `regs` registers at a time, then the rest by halves. */
QUIRE_NEON_INLINE void pv_rows(uint32_t n, uint32_t regs, const quire_attn_pv *args, uint32_t row,
                               ptrdiff_t ahead)
{
    uint32_t dim = 0;
    weights w;

    for (uint32_t r = 0; r < n; r++) {
        w.unit[r] = pack_weights(args->p + (size_t)(row + r) * TILE, args->v_tile, w.pairs[r]);
    }
    for (; dim + 4 * regs <= args->d; dim += 4 * regs) {
        pv_block(n, regs, args, &w, row, dim, ahead);
    }
    if (regs > 4 && dim + 16 <= args->d) {
        pv_block(n, 4, args, &w, row, dim, ahead);
        dim += 16;
    }
    if (dim < args->d) {
        pv_block(n, 2, args, &w, row, dim, ahead);
    }
}

void quire_neon_pv_q8(const quire_attn_pv *args)
{
    ptrdiff_t ahead = quire_neon_ahead(args->v_tile, args->next);
    uint32_t n;

    quire_neon_prefetch(args->v_tile, ahead);
    quire_neon_prefetch((const char *)args->v_tile + QUIRE_NEON_LINE, ahead);
    for (uint32_t row = 0; row < args->n_rows; row += n, ahead = 0) {
        n = quire_neon_block_rows(args->n_rows - row);
        switch (n) {
        case 1:
            pv_rows(1, 8, args, row, ahead);
            break;
        case 2:
            pv_rows(2, 4, args, row, ahead);
            break;
        case 3:
            pv_rows(3, 2, args, row, ahead);
            break;
        default:
            pv_rows(4, 2, args, row, ahead);
            break;
        }
    }
}
