/* kernels_neon_sealed_body.h - the kernels of sealed formats, once with and once without sdot.
 *
 * The including file defines SEALED_SUFFIX (of the function names) and SEALED_DOTPROD (0 or 1). All
 * sums are exact, so both give the same bits. The path from codes to levels, and the terms group
 * and unit: kernels_neon_sealed_planes_body.h.
 *
 * Both multiply signed bytes. P is unsigned: its weights are packed as n - 128, and 128 times the
 * sum of the levels, the same for all rows, is added at the end. Without sdot two products of int16
 * are added before they are widened, which |level| <= 127 allows: 2 * 128 * 127 < 2^15. A pair of
 * accumulators has two neighbouring lanes per token or dimension then, added when all is summed.
 *
 * Which rows meet which lanes: vector/kernels_vector_sealed_body.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/neon/kernels_neon.h"
#include "attn/neon/kernels_neon_sealed_planes_body.h"
#include "attn/pack/sealed_pack.h"
#include "attn/vector/kernels_vector_sealed.h"

#define ROWS     QUIRE_NEON_ROWS_MAX
#define REGS_MAX 8u

/* Registers of the tile in a block of 4 rows, and of 3. */
#define STRIP_REGS (SEALED_DOTPROD ? 4u : 2u)

/* ---- sums ---- */

/* Levels of lanes as all rows use them, units [begin, end), and their sums by register. */
typedef struct strip {
    int32x4_t sums[STRIP_REGS];
    _Alignas(64) int8_t levels[QUIRE_HEAD_DIM_MAX * STRIP_REGS * 4];
} strip;

/* Levels to multiply: looked up from planes, or from a strip. */
typedef struct source {
    quire_neon_planes planes;
    const strip *strip;
} source;

/* Weights of the rows of a block, row_bytes apart: int8, one for each term. */
typedef struct weights {
    const int8_t *rows;
    size_t row_bytes;
} weights;

/* The sums of 4 lanes; without sdot in two halves, see above. */
typedef struct sums {
    int32x4_t low;
    int32x4_t high;
} sums;

/* Sums of a block, and of the levels alone (V). */
typedef struct block_sums {
    sums row[ROWS][REGS_MAX];
    int32x4_t levels[REGS_MAX];
} block_sums;

/* acc += 8 terms of 4 lanes; weight: of both groups. */
QUIRE_NEON_INLINE sums add_products(sums acc, int8x16_t first, int8x16_t second, int8x8_t weight)
{
#if SEALED_DOTPROD
    acc.low = vdotq_lane_s32(vdotq_lane_s32(acc.low, first, weight, 0), second, weight, 1);
#else
    int32x2_t pair = vreinterpret_s32_s8(weight);
    int8x16_t a = vreinterpretq_s8_s32(vdupq_lane_s32(pair, 0));
    int8x16_t b = vreinterpretq_s8_s32(vdupq_lane_s32(pair, 1));
    int16x8_t low = vmull_s8(vget_low_s8(first), vget_low_s8(a));
    int16x8_t high = vmull_high_s8(first, a);

    acc.low = vpadalq_s16(acc.low, vmlal_s8(low, vget_low_s8(second), vget_low_s8(b)));
    acc.high = vpadalq_s16(acc.high, vmlal_high_s8(high, second, b));
#endif
    return acc;
}

QUIRE_NEON_INLINE int32x4_t add_levels(int32x4_t acc, int8x16_t levels)
{
#if SEALED_DOTPROD
    return vdotq_s32(acc, levels, vdupq_n_s8(1));
#else
    return vpadalq_s16(acc, vpaddlq_s8(levels));
#endif
}

QUIRE_NEON_INLINE int32x4_t total_of(sums acc)
{
    return SEALED_DOTPROD ? acc.low : vpaddq_s32(acc.low, acc.high);
}

QUIRE_NEON_INLINE int8x16_t levels_of(block b, const source *x, uint32_t u, uint32_t m,
                                      uint32_t half, uint32_t i)
{
    return b.has_strip ? vld1q_s8(x->strip->levels + ((size_t)(u * STRIP_REGS + i) * 2 + half) * 16)
                       : quire_neon_look_up(b.format, &x->planes, u, m, half, i);
}

QUIRE_NEON_INLINE void add_unit(block b, const source *x, const weights *w, uint32_t u, uint32_t m,
                                block_sums *acc)
{
    int8x8_t weight[ROWS];

    if (!b.has_strip) {
        quire_neon_prefetch_unit(b.format, b.regs, &x->planes, u, m);
    }
    for (uint32_t r = 0; r < b.n; r++) {
        weight[r] = vld1_s8(w->rows + r * w->row_bytes + (size_t)UNIT * u);
    }
    for (uint32_t i = 0; i < b.regs; i++) {
        int8x16_t first = levels_of(b, x, u, m, 0, i);
        int8x16_t second = levels_of(b, x, u, m, 1, i);

        for (uint32_t r = 0; r < b.n; r++) {
            acc->row[r][i] = add_products(acc->row[r][i], first, second, weight[r]);
        }
        if (b.side == QUIRE_SIDE_V && !b.has_strip) {
            acc->levels[i] = add_levels(add_levels(acc->levels[i], first), second);
        }
    }
}

/* The sums before the first unit. */
QUIRE_NEON_INLINE void start_sums(block b, const source *x, block_sums *acc)
{
    for (uint32_t i = 0; i < b.regs; i++) {
        for (uint32_t r = 0; r < b.n; r++) {
            acc->row[r][i] = (sums){ vdupq_n_s32(0), vdupq_n_s32(0) };
        }
        acc->levels[i] = b.side == QUIRE_SIDE_V && b.has_strip ? x->strip->sums[i] : vdupq_n_s32(0);
    }
}

QUIRE_NEON_INLINE void fill_strip_format(quire_format format, uint32_t regs,
                                         const quire_neon_planes *x, uint32_t begin, uint32_t end,
                                         strip *to)
{
    for (uint32_t i = 0; i < STRIP_REGS; i++) {
        to->sums[i] = vdupq_n_s32(0);
    }
    for (uint32_t u = begin; u < end; u++) {
        uint32_t m = u % quire_neon_period(format);

        quire_neon_prefetch_unit(format, regs, x, u, m);
        for (uint32_t i = 0; i < regs; i++) {
            for (uint32_t half = 0; half < 2; half++) {
                int8x16_t levels = quire_neon_look_up(format, x, u, m, half, i);

                to->sums[i] = add_levels(to->sums[i], levels);
                vst1q_s8(to->levels + ((size_t)(u * STRIP_REGS + i) * 2 + half) * 16, levels);
            }
        }
    }
}

static inline void strip_clear(strip *to)
{
    memset(to->levels, 0, (size_t)TILE * STRIP_REGS * 4);
}

static inline uint32_t strip_rows(uint32_t left)
{
    return quire_neon_block_rows(left);
}

QUIRE_NEON_INLINE quire_neon_planes tile_planes(quire_format format, quire_side side, uint32_t d,
                                                const void *tile)
{
    return quire_neon_planes_of(format, side, d, tile);
}

/* ---- q . K ---- */

/* The logits that centring took away from every token of the tile, for some rows. */
static void mean_logits(const quire_attn_qk *args, uint32_t row, uint32_t n_rows, float *logits)
{
    const size_t stride = quire_neon_sealed_q_bytes(args->d);
    const char *packed = (const char *)args->packed + row * stride;
    const uint16_t *mean =
        (const uint16_t *)(const void *)((const char *)args->k_tile + QUIRE_SEALED_SCALES_BYTES);

    if (!quire_sealed_is_centred(args->format, QUIRE_SIDE_K)) {
        memset(logits, 0, n_rows * sizeof(*logits));
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++, packed += stride) {
        const float *x = (const float *)(const void *)(packed + sizeof(quire_neon_sealed_header));
        float32x4_t even = vdupq_n_f32(0.0f);
        float32x4_t odd = vdupq_n_f32(0.0f);

        for (uint32_t i = 0; i < args->d; i += 8) {
            even = vfmaq_f32(even, vld1q_f32(x + i), quire_neon_load_f16(mean + i));
            odd = vfmaq_f32(odd, vld1q_f32(x + i + 4), quire_neon_load_f16(mean + i + 4));
        }
        logits[r] = vaddvq_f32(vaddq_f32(even, odd));
    }
}

QUIRE_NEON_INLINE weights weights_of_q(const quire_attn_qk *args, uint32_t row)
{
    const size_t stride = quire_neon_sealed_q_bytes(args->d);

    return (weights){ (const int8_t *)args->packed + row * stride +
                          quire_neon_sealed_weights_offset(args->d),
                      stride };
}

QUIRE_NEON_INLINE void start_logits(block b, const quire_attn_qk *args, const source *x,
                                    uint32_t row, block_sums *acc)
{
    (void)args;
    (void)row;
    start_sums(b, x, acc);
}

QUIRE_NEON_INLINE void store_logits(block b, const quire_attn_qk *args, uint32_t row,
                                    uint32_t token, const float *mean, const block_sums *acc)
{
    const size_t stride = quire_neon_sealed_q_bytes(args->d);
    const char *q = (const char *)args->packed + row * stride;
    const uint16_t *scales = (const uint16_t *)args->k_tile + token;

    for (uint32_t r = 0; r < b.n; r++) {
        const quire_neon_sealed_header *header = (const void *)(q + r * stride);

        for (uint32_t i = 0; i < b.regs; i++) {
            float *s = args->s + (size_t)(row + r) * TILE + token + 4 * i;
            float32x4_t y = vcvtq_f32_s32(total_of(acc->row[r][i]));

            y = vmulq_f32(vmulq_n_f32(y, header->scale), quire_neon_load_f16(scales + 4 * i));
            y = vaddq_f32(y, vdupq_n_f32(mean[r]));
            vst1q_f32(s, args->accumulate ? vaddq_f32(vld1q_f32(s), y) : y);
        }
    }
}

/* ---- P . V ---- */

/* Weights of some rows as integers less 128, and the value of one unit. */
typedef struct packed_rows {
    float unit[STRIP_ROWS];
    int8_t weights[STRIP_ROWS][TILE];
} packed_rows;

/* As quire_sealed_pack_p() (sealed_pack.h) does it. Returns the unit. */
static float pack_row(const float *p, const void *v_tile, int8_t *to)
{
    const uint16_t *scales = v_tile;
    uint32x4_t top = vdupq_n_u32(0);
    float32x4_t w[TILE / 4];
    uint32_t max_bits;
    float max;

    for (uint32_t i = 0; i < TILE / 4; i++) {
        float32x4_t x = vld1q_f32(p + 4 * i);
        uint32x4_t is_zero = vceqzq_f32(x); /* no NaN is */
        uint32x4_t bits = vreinterpretq_u32_f32(vmulq_f32(x, quire_neon_load_f16(scales + 4 * i)));

        bits = vbicq_u32(bits, is_zero);
        w[i] = vreinterpretq_f32_u32(bits);
        top = vmaxq_u32(top, bits);
    }
    max_bits = vmaxvq_u32(top);
    max = quire_f32_from_bits(max_bits);
    if (max_bits >= QUIRE_F32_INF_BITS || max < QUIRE_ATTN_Q8_TINY) {
        memset(to, -128, TILE);
        return max_bits >= QUIRE_F32_INF_BITS ? NAN : 0.0f;
    }
    for (uint32_t i = 0; i < TILE / 8; i++) {
        const float inverse = QUIRE_ATTN_SEALED_P_MAX / max;
        uint16x4_t a = vqmovn_u32(vcvtnq_u32_f32(vmulq_n_f32(w[2 * i], inverse)));
        uint16x8_t b = vqmovn_high_u32(a, vcvtnq_u32_f32(vmulq_n_f32(w[2 * i + 1], inverse)));

        vst1_s8(to + 8 * i, vreinterpret_s8_u8(veor_u8(vqmovn_u16(b), vdup_n_u8(0x80))));
    }
    return max / QUIRE_ATTN_SEALED_P_MAX;
}

static void pack_rows(const quire_attn_pv *args, uint32_t row, uint32_t n, packed_rows *to)
{
    for (uint32_t r = 0; r < n; r++) {
        to->unit[r] = pack_row(args->p + (size_t)(row + r) * TILE, args->v_tile, to->weights[r]);
    }
}

QUIRE_NEON_INLINE weights weights_of_p(const packed_rows *packed, uint32_t first)
{
    return (weights){ packed->weights[first], sizeof(packed->weights[0]) };
}

QUIRE_NEON_INLINE void start_outputs(block b, const source *x, const packed_rows *packed,
                                     uint32_t first, block_sums *acc)
{
    (void)packed;
    (void)first;
    start_sums(b, x, acc);
}

/* Sums to row `row` of the call and those after it. */
QUIRE_NEON_INLINE void store_outputs(block b, const quire_attn_pv *args, const packed_rows *packed,
                                     uint32_t first, uint32_t row, uint32_t dim,
                                     const block_sums *acc)
{
    float *o = args->o + row * args->o_stride + dim;

    for (uint32_t r = 0; r < b.n; r++) {
        for (uint32_t i = 0; i < b.regs; i++) {
            float *to = o + r * args->o_stride + 4 * i;
            float32x4_t old = vmulq_n_f32(vld1q_f32(to), args->rescale[row + r]);
            int32x4_t sum = vaddq_s32(total_of(acc->row[r][i]), vshlq_n_s32(acc->levels[i], 7));

            vst1q_f32(to, vfmaq_n_f32(old, vcvtq_f32_s32(sum), packed->unit[first + r]));
        }
    }
}

#define VECTOR(name)    quire_neon_##name
#define VECTOR_INLINE   QUIRE_NEON_INLINE
#define VECTOR_LANES    4u
#define VECTOR_ROWS_MAX QUIRE_NEON_ROWS_MAX
#include "attn/vector/kernels_vector_sealed_body.h"
