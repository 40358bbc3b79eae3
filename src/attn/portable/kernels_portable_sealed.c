/* kernels_portable_sealed.c - sealed formats in plain C.
 *
 * K and V tiles differ only in the values side by side: 64 tokens, with sums over dimensions, or d
 * dimensions, with sums over tokens. Here both are lines of lanes: a group is 4 neighbouring terms
 * of all sums, and its codes are a line of 4 bytes per lane in the low and in the high plane. A
 * group's codes become levels once for a block of rows, for up to LANES lanes at a time.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/portable/kernels_portable_sealed.h"
#include "attn/pack/sealed_pack.h"
#include "codec/sealed.h"

#include <math.h>
#include <string.h>

#define TILE  QUIRE_TILE_TOKENS
#define LANES 64u
#define GROUP 4u
#define ROWS  16u /* of a block at most */

/* A packed row: s in a cache line of its own, then f32 x[d], then int8 n[d]. */
#define HEADER_BYTES 64u

static size_t round_up_64(size_t n)
{
    return (n + 63u) & ~(size_t)63u;
}

static size_t n_offset(uint32_t d)
{
    return HEADER_BYTES + round_up_64(d * sizeof(float));
}

size_t quire_portable_q_bytes_sealed(uint32_t d)
{
    return n_offset(d) + round_up_64(d);
}

void quire_portable_q_pack_sealed(uint32_t d, float scale, const float *q, void *packed)
{
    unsigned char *row = packed;
    float *x = (float *)(void *)(row + HEADER_BYTES);

    for (uint32_t i = 0; i < d; i++) {
        x[i] = scale * q[i];
    }
    *(float *)packed = quire_sealed_pack_q(d, scale, q, (int8_t *)row + n_offset(d));
}

/* The lanes of a tile that are worked on. */
typedef struct lanes {
    quire_format format;
    const int8_t *levels;
    const uint8_t *low; /* planes, from the first of these lanes on */
    const uint8_t *high;
    size_t line_bytes;
    uint32_t n;
} lanes;

static lanes lanes_of(quire_format format, quire_side side, uint32_t d, const void *tile)
{
    const uint8_t *bytes = tile;
    size_t low_offset = quire_sealed_low_offset(format, side, d);
    bool has_high = quire_sealed_high_bits(format) != 0;
    bool is_k = side == QUIRE_SIDE_K;

    return (lanes){ .format = format,
                    .levels = quire_sealed_levels(format, side),
                    .low = bytes + low_offset,
                    .high =
                        bytes + (has_high ? quire_sealed_high_offset(format, side, d) : low_offset),
                    .line_bytes = (size_t)GROUP * (is_k ? TILE : d),
                    .n = is_k || d > LANES ? LANES : d };
}

/* Where a group lies in a plane of b bits, and in which bits. */
static const uint8_t *plane_line(const uint8_t *plane, const lanes *x, uint32_t b, uint32_t group,
                                 uint32_t *shift)
{
    uint32_t groups = 8 / b;

    *shift = group % groups * b;
    return plane + group / groups * x->line_bytes;
}

/* level[j][lane] of a group. */
static void expand(const lanes *x, uint32_t group, int16_t level[GROUP][LANES])
{
    uint32_t low_bits = quire_sealed_low_bits(x->format);
    uint32_t high_bits = quire_sealed_high_bits(x->format);
    uint32_t low_mask = (1u << low_bits) - 1;
    uint32_t high_mask = (1u << high_bits) - 1;
    uint32_t low_shift;
    uint32_t high_shift;
    const uint8_t *low = plane_line(x->low, x, low_bits, group, &low_shift);
    const uint8_t *high =
        plane_line(x->high, x, high_bits != 0 ? high_bits : low_bits, group, &high_shift);

    for (uint32_t i = 0; i < x->n; i++) {
        for (uint32_t j = 0; j < GROUP; j++) {
            uint32_t code = (uint32_t)low[GROUP * i + j] >> low_shift & low_mask;

            code |= ((uint32_t)high[GROUP * i + j] >> high_shift & high_mask) << low_bits;
            level[j][i] = x->levels[code];
        }
    }
}

/* acc[lane] += the products of a group. */
static void add_group(uint32_t n_lanes, int16_t level[GROUP][LANES], const int16_t weight[GROUP],
                      int32_t *acc)
{
    for (uint32_t i = 0; i < n_lanes; i++) {
        acc[i] += level[0][i] * weight[0] + level[1][i] * weight[1] + level[2][i] * weight[2] +
                  level[3][i] * weight[3];
    }
}

/* ---- q . K ---- */

static void qk_sums(const lanes *x, uint32_t d, uint32_t n_rows, const unsigned char *packed,
                    int32_t acc[ROWS][LANES])
{
    size_t stride = quire_portable_q_bytes_sealed(d);
    int16_t level[GROUP][LANES];

    memset(acc, 0, (size_t)n_rows * LANES * sizeof(int32_t));
    for (uint32_t i = 0; i < d; i += GROUP) {
        expand(x, i / GROUP, level);
        for (uint32_t r = 0; r < n_rows; r++) {
            const int8_t *n = (const int8_t *)packed + r * stride + n_offset(d) + i;
            const int16_t weight[GROUP] = { n[0], n[1], n[2], n[3] };

            add_group(LANES, level, weight, acc[r]);
        }
    }
}

/* The logit that centring took away from every token of the tile. */
static float mean_logit(quire_format format, uint32_t d, const void *tile, const float *x)
{
    const uint16_t *mean =
        (const uint16_t *)(const void *)((const char *)tile + QUIRE_SEALED_SCALES_BYTES);
    float sum = 0.0f;

    for (uint32_t i = 0; i < d && quire_sealed_is_centred(format, QUIRE_SIDE_K); i++) {
        sum += x[i] * quire_f16_to_f32(mean[i]);
    }
    return sum;
}

void quire_portable_qk_sealed(const quire_attn_qk *args)
{
    const lanes x = lanes_of(args->format, QUIRE_SIDE_K, args->d, args->k_tile);
    const uint16_t *scales = args->k_tile;
    size_t stride = quire_portable_q_bytes_sealed(args->d);
    int32_t acc[ROWS][LANES];

    for (uint32_t row = 0; row < args->n_rows; row += ROWS) {
        uint32_t n = args->n_rows - row < ROWS ? args->n_rows - row : ROWS;
        const unsigned char *packed = (const unsigned char *)args->packed + row * stride;

        qk_sums(&x, args->d, n, packed, acc);
        for (uint32_t r = 0; r < n; r++, packed += stride) {
            float q_scale = *(const float *)(const void *)packed;
            float mean = mean_logit(args->format, args->d, args->k_tile,
                                    (const float *)(const void *)(packed + HEADER_BYTES));
            float *s = args->s + (size_t)(row + r) * TILE;

            for (uint32_t t = 0; t < TILE; t++) {
                s[t] += (float)acc[r][t] * q_scale * quire_f16_to_f32(scales[t]) + mean;
            }
        }
    }
}

/* ---- P . V ---- */

static void pv_sums(const lanes *x, uint32_t n_rows, uint8_t n[ROWS][TILE], uint32_t slot_begin,
                    uint32_t slot_end, int32_t acc[ROWS][LANES])
{
    int16_t level[GROUP][LANES];

    memset(acc, 0, (size_t)n_rows * LANES * sizeof(int32_t));
    for (uint32_t g = slot_begin / GROUP; g < (slot_end + GROUP - 1) / GROUP; g++) {
        expand(x, g, level);
        for (uint32_t r = 0; r < n_rows; r++) {
            const uint8_t *p = n[r] + (size_t)GROUP * g;
            const int16_t weight[GROUP] = { p[0], p[1], p[2], p[3] };

            add_group(x->n, level, weight, acc[r]);
        }
    }
}

/* Rows row .. row + n - 1. */
static void pv_rows(const quire_attn_pv *args, uint32_t row, uint32_t n_rows)
{
    lanes x = lanes_of(args->format, QUIRE_SIDE_V, args->d, args->v_tile);
    uint8_t n[ROWS][TILE];
    float unit[ROWS];
    int32_t acc[ROWS][LANES];

    for (uint32_t r = 0; r < n_rows; r++) {
        unit[r] = quire_sealed_pack_p(args->p + (size_t)(row + r) * TILE, args->v_tile,
                                      args->slot_begin, args->slot_end, n[r]);
    }
    for (uint32_t dim = 0; dim < args->d; dim += LANES) {
        x.n = args->d - dim < LANES ? args->d - dim : LANES;
        pv_sums(&x, n_rows, n, args->slot_begin, args->slot_end, acc);
        for (uint32_t r = 0; r < n_rows; r++) {
            float *o = args->o + (row + r) * args->o_stride + dim;

            for (uint32_t i = 0; i < x.n; i++) {
                o[i] += (float)acc[r][i] * unit[r];
            }
        }
        x.low += (size_t)GROUP * LANES;
        x.high += (size_t)GROUP * LANES;
    }
}

void quire_portable_pv_sealed(const quire_attn_pv *args)
{
    for (uint32_t row = 0; row < args->n_rows; row += ROWS) {
        pv_rows(args, row, args->n_rows - row < ROWS ? args->n_rows - row : ROWS);
    }
}
