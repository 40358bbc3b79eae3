/* kernels_neon_sealed_body.h - the kernels of sealed formats, once with and once without sdot.
 *
 * The including file defines SEALED_SUFFIX (of the function names) and SEALED_DOTPROD (0 or 1). All
 * sums are exact, so both give the same bits. How codes become levels, and what groups and units
 * are: kernels_neon_sealed_planes_body.h.
 *
 * Both multiply signed bytes. P is unsigned: its weights are packed as n - 128, and 128 times the
 * sum of the levels, the same for all rows, is added at the end. Without sdot two products of int16
 * are added before they are widened, which |level| <= 127 allows: 2 * 128 * 127 < 2^15. A pair of
 * accumulators has two neighbouring lanes per token or dimension then, added when all is summed.
 *
 * Up to QUIRE_NEON_ROWS_MAX rows look codes up in registers, once for all of them. For more, lanes
 * are looked up once into a strip that stays in the L1 cache and that all rows are multiplied with.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/neon/kernels_neon.h"
#include "attn/neon/kernels_neon_sealed_planes_body.h"
#include "attn/sealed_pack.h"

#define TILE       QUIRE_TILE_TOKENS
#define ROWS       QUIRE_NEON_ROWS_MAX
#define STRIP_ROWS 48u /* that meet a strip before it is looked up again */
#define UNIT       8u  /* terms: two groups of 4 */
#define REGS_MAX   8u

/* Registers of the tile in a block of 4 rows, and of 3. */
#define STRIP_REGS (SEALED_DOTPROD ? 4u : 2u)

#define SEALED_JOIN_(a, b) a##b
#define SEALED_JOIN(a, b)  SEALED_JOIN_(a, b)
#define SEALED_NAME(name)  SEALED_JOIN(name, SEALED_SUFFIX)

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

/* How a block is multiplied: constants where it is inlined. */
typedef struct block {
    quire_format format; /* of no meaning with a strip */
    quire_side side;
    uint32_t n; /* rows */
    uint32_t regs;
    bool has_strip;
} block;

#define STRIP_BLOCK(side, n) ((block){ QUIRE_FORMAT_COUNT, (side), (n), STRIP_REGS, true })

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

/* Sums over units [begin, end), begin a multiple of 4. */
QUIRE_NEON_INLINE void add_units(block b, const source *x, const weights *w, uint32_t begin,
                                 uint32_t end, block_sums *acc)
{
    const uint32_t period = b.has_strip ? 1 : quire_neon_period(b.format);
    uint32_t u = begin;

    for (uint32_t i = 0; i < b.regs; i++) {
        for (uint32_t r = 0; r < b.n; r++) {
            acc->row[r][i] = (sums){ vdupq_n_s32(0), vdupq_n_s32(0) };
        }
        acc->levels[i] = b.side == QUIRE_SIDE_V && b.has_strip ? x->strip->sums[i] : vdupq_n_s32(0);
    }
    for (; u + period <= end; u += period) {
        add_unit(b, x, w, u, 0, acc);
        if (period > 1) {
            add_unit(b, x, w, u + 1, 1, acc);
        }
        if (period > 2) {
            add_unit(b, x, w, u + 2, 2, acc);
            add_unit(b, x, w, u + 3, 3, acc);
        }
    }
    if (period > 1 && b.side == QUIRE_SIDE_K) { /* V has whole periods */
#pragma GCC unroll 1
        for (uint32_t m = 0; u < end; u++, m++) {
            add_unit(b, x, w, u, m, acc);
        }
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

/* The first `regs` registers of a strip. */
static void fill_strip(quire_format format, uint32_t regs, const quire_neon_planes *x,
                       uint32_t begin, uint32_t end, strip *to)
{
    switch (format) {
    case QUIRE_FORMAT_Q6:
        fill_strip_format(QUIRE_FORMAT_Q6, regs, x, begin, end, to);
        break;
    case QUIRE_FORMAT_Q5:
        fill_strip_format(QUIRE_FORMAT_Q5, regs, x, begin, end, to);
        break;
    case QUIRE_FORMAT_Q4:
        fill_strip_format(QUIRE_FORMAT_Q4, regs, x, begin, end, to);
        break;
    default:
        fill_strip_format(QUIRE_FORMAT_Q3, regs, x, begin, end, to);
        break;
    }
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

/* Rows row .. row + b.n - 1 and the tokens of b.regs registers. */
QUIRE_NEON_INLINE void qk_block(block b, const quire_attn_qk *args, const source *x, uint32_t row,
                                uint32_t token, const float *mean)
{
    const size_t stride = quire_neon_sealed_q_bytes(args->d);
    const char *q = (const char *)args->packed + row * stride;
    const weights w = { (const int8_t *)q + quire_neon_sealed_weights_offset(args->d), stride };
    const uint16_t *scales = (const uint16_t *)args->k_tile + token;
    block_sums acc;

    add_units(b, x, &w, 0, args->d / UNIT, &acc);
    for (uint32_t r = 0; r < b.n; r++) {
        const quire_neon_sealed_header *header = (const void *)(q + r * stride);

        for (uint32_t i = 0; i < b.regs; i++) {
            float *s = args->s + (size_t)(row + r) * TILE + token + 4 * i;
            float32x4_t y = vcvtq_f32_s32(total_of(acc.row[r][i]));

            y = vmulq_f32(vmulq_n_f32(y, header->scale), quire_neon_load_f16(scales + 4 * i));
            y = vaddq_f32(y, vdupq_n_f32(mean[r]));
            vst1q_f32(s, args->accumulate ? vaddq_f32(vld1q_f32(s), y) : y);
        }
    }
}

/* All rows, looked up in registers. */
QUIRE_NEON_INLINE void qk_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_qk *args, quire_neon_planes planes)
{
    const block b = { format, QUIRE_SIDE_K, n, regs, false };
    source x = { .planes = planes };
    float mean[ROWS];

    mean_logits(args, 0, n, mean);
    for (uint32_t token = 0; token < TILE; token += 4 * regs) {
        qk_block(b, args, &x, 0, token, mean);
        quire_neon_planes_move(&x.planes, regs);
    }
}

/* Rows row .. end - 1 against a strip; the format makes no difference here. */
static void qk_strip(const quire_attn_qk *args, const strip *levels, uint32_t row, uint32_t end,
                     uint32_t token, const float *mean)
{
    const source x = { .strip = levels };
    uint32_t n;

    for (; row < end; row += n, mean += n) {
        n = quire_neon_block_rows(end - row);
        switch (n) {
        case 1:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 1), args, &x, row, token, mean);
            break;
        case 2:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 2), args, &x, row, token, mean);
            break;
        case 3:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 3), args, &x, row, token, mean);
            break;
        default:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 4), args, &x, row, token, mean);
            break;
        }
    }
}

static void qk_strips(const quire_attn_qk *args, quire_neon_planes planes)
{
    strip levels;
    float mean[STRIP_ROWS];
    uint32_t end;

    for (uint32_t row = 0; row < args->n_rows; row = end, planes.ahead = 0) {
        quire_neon_planes x = planes;

        end = args->n_rows - row < STRIP_ROWS ? args->n_rows : row + STRIP_ROWS;
        mean_logits(args, row, end - row, mean);
        for (uint32_t token = 0; token < TILE; token += 4 * STRIP_REGS) {
            fill_strip(args->format, STRIP_REGS, &x, 0, args->d / UNIT, &levels);
            qk_strip(args, &levels, row, end, token, mean);
            quire_neon_planes_move(&x, STRIP_REGS);
        }
    }
}

QUIRE_NEON_INLINE void qk_format(quire_format format, const quire_attn_qk *args)
{
    ptrdiff_t ahead = quire_neon_ahead(args->k_tile, args->next);
    size_t head_bytes = quire_sealed_low_offset(format, QUIRE_SIDE_K, args->d);
    quire_neon_planes x = quire_neon_planes_of(format, QUIRE_SIDE_K, args->d, args->k_tile);

    x.ahead = ahead;
    for (size_t at = 0; at < head_bytes; at += QUIRE_NEON_LINE) {
        quire_neon_prefetch((const char *)args->k_tile + at, ahead);
    }
    switch (args->n_rows) {
    case 1:
        qk_rows(format, 1, 8, args, x);
        break;
    case 2:
        qk_rows(format, 2, 4, args, x);
        break;
    case 3:
        qk_rows(format, 3, STRIP_REGS, args, x);
        break;
    case 4:
        qk_rows(format, 4, STRIP_REGS, args, x);
        break;
    default:
        qk_strips(args, x);
        break;
    }
}

void SEALED_NAME(quire_neon_qk_sealed)(const quire_attn_qk *args)
{
    switch (args->format) {
    case QUIRE_FORMAT_Q6:
        qk_format(QUIRE_FORMAT_Q6, args);
        break;
    case QUIRE_FORMAT_Q5:
        qk_format(QUIRE_FORMAT_Q5, args);
        break;
    case QUIRE_FORMAT_Q4:
        qk_format(QUIRE_FORMAT_Q4, args);
        break;
    default:
        qk_format(QUIRE_FORMAT_Q3, args);
        break;
    }
}

/* ---- P . V ---- */

/* Weights of some rows as integers less 128, and what one unit of them is worth. */
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

/* A tile's units with seen tokens, in whole periods: sealed tiles are hardly ever seen in part. */
static inline uint32_t first_unit(const quire_attn_pv *args)
{
    return args->slot_begin / (4 * UNIT) * 4;
}

static inline uint32_t end_unit(const quire_attn_pv *args)
{
    return (args->slot_end + 4 * UNIT - 1) / (4 * UNIT) * 4;
}

/* b.n packed rows from `first` on, and the dimensions of b.regs registers. Packed row 0 is row
 * first_row of the call. */
QUIRE_NEON_INLINE void pv_block(block b, const quire_attn_pv *args, const source *x,
                                const packed_rows *packed, uint32_t first, uint32_t first_row,
                                uint32_t dim)
{
    const weights w = { packed->weights[first], sizeof(packed->weights[0]) };
    uint32_t row = first_row + first;
    float *o = args->o + row * args->o_stride + dim;
    block_sums acc;

    add_units(b, x, &w, first_unit(args), end_unit(args), &acc);
    for (uint32_t r = 0; r < b.n; r++) {
        for (uint32_t i = 0; i < b.regs; i++) {
            float *to = o + r * args->o_stride + 4 * i;
            float32x4_t old = vmulq_n_f32(vld1q_f32(to), args->rescale[row + r]);
            int32x4_t sum = vaddq_s32(total_of(acc.row[r][i]), vshlq_n_s32(acc.levels[i], 7));

            vst1q_f32(to, vfmaq_n_f32(old, vcvtq_f32_s32(sum), packed->unit[first + r]));
        }
    }
}

/* n_rows packed rows, the first one row `row` of the call, against a strip. */
static void pv_strip(const quire_attn_pv *args, const source *x, const packed_rows *packed,
                     uint32_t row, uint32_t n_rows, uint32_t dim)
{
    uint32_t n;

    for (uint32_t first = 0; first < n_rows; first += n) {
        n = quire_neon_block_rows(n_rows - first);
        switch (n) {
        case 1:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 1), args, x, packed, first, row, dim);
            break;
        case 2:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 2), args, x, packed, first, row, dim);
            break;
        case 3:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 3), args, x, packed, first, row, dim);
            break;
        default:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 4), args, x, packed, first, row, dim);
            break;
        }
    }
}

/* Dimensions `dim` and up, where x is, of n_rows packed rows. The last strip may be half full; then
 * its other half is anything, and so is what it adds to o beyond d. */
static void pv_strips(const quire_attn_pv *args, quire_neon_planes x, const packed_rows *packed,
                      uint32_t row, uint32_t n_rows, uint32_t dim)
{
    strip levels;
    const source y = { .strip = &levels };

    memset(levels.levels, 0, (size_t)TILE * STRIP_REGS * 4);
    for (; dim < args->d; dim += 4 * STRIP_REGS) {
        uint32_t regs = dim + 4 * STRIP_REGS <= args->d ? STRIP_REGS : 2;

        fill_strip(args->format, regs, &x, first_unit(args), end_unit(args), &levels);
        pv_strip(args, &y, packed, row, n_rows, dim);
        quire_neon_planes_move(&x, STRIP_REGS);
    }
}

/* All rows, looked up in registers as far as `regs` of them are full. */
QUIRE_NEON_INLINE void pv_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_pv *args, quire_neon_planes planes)
{
    source x = { .planes = planes };
    packed_rows packed;
    uint32_t dim = 0;

    pack_rows(args, 0, n, &packed);
    for (; dim + 4 * regs <= args->d; dim += 4 * regs) {
        pv_block((block){ format, QUIRE_SIDE_V, n, regs, false }, args, &x, &packed, 0, 0, dim);
        quire_neon_planes_move(&x.planes, regs);
    }
    if (dim < args->d) {
        pv_strips(args, x.planes, &packed, 0, n, dim);
    }
}

static void pv_many(const quire_attn_pv *args, quire_neon_planes planes)
{
    packed_rows packed;
    uint32_t n;

    for (uint32_t row = 0; row < args->n_rows; row += n, planes.ahead = 0) {
        n = args->n_rows - row < STRIP_ROWS ? args->n_rows - row : STRIP_ROWS;
        pack_rows(args, row, n, &packed);
        pv_strips(args, planes, &packed, row, n, 0);
    }
}

QUIRE_NEON_INLINE void pv_format(quire_format format, const quire_attn_pv *args)
{
    ptrdiff_t ahead = quire_neon_ahead(args->v_tile, args->next);
    quire_neon_planes x = quire_neon_planes_of(format, QUIRE_SIDE_V, args->d, args->v_tile);

    x.ahead = ahead;
    for (size_t at = 0; at < QUIRE_SEALED_SCALES_BYTES; at += QUIRE_NEON_LINE) {
        quire_neon_prefetch((const char *)args->v_tile + at, ahead);
    }
    switch (args->n_rows) {
    case 1:
        pv_rows(format, 1, 8, args, x);
        break;
    case 2:
        pv_rows(format, 2, 4, args, x);
        break;
    case 3:
        pv_rows(format, 3, STRIP_REGS, args, x);
        break;
    case 4:
        pv_rows(format, 4, STRIP_REGS, args, x);
        break;
    default:
        pv_many(args, x);
        break;
    }
}

void SEALED_NAME(quire_neon_pv_sealed)(const quire_attn_pv *args)
{
    switch (args->format) {
    case QUIRE_FORMAT_Q6:
        pv_format(QUIRE_FORMAT_Q6, args);
        break;
    case QUIRE_FORMAT_Q5:
        pv_format(QUIRE_FORMAT_Q5, args);
        break;
    case QUIRE_FORMAT_Q4:
        pv_format(QUIRE_FORMAT_Q4, args);
        break;
    default:
        pv_format(QUIRE_FORMAT_Q3, args);
        break;
    }
}
