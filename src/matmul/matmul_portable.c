/* matmul_portable.c - the matrix products in plain C. The other sets must give the same bits.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_grids.h"

#include "codec/half.h"

#include <math.h>
#include <string.h>

enum {
    PANEL = QUIRE_MATMUL_PANEL,
    BLOCK = QUIRE_MATMUL_BLOCK,
    HALF = BLOCK / 2,
    LINE = 4 * PANEL /* bytes of four inputs' codes */
};

/* ---- x ---- */

/* The largest |x| of a block as f32 bits, so that NaN and Inf come out on top. */
static uint32_t max_bits_of(const float *x)
{
    uint32_t max_bits = 0;

    for (uint32_t i = 0; i < BLOCK; i++) {
        uint32_t magnitude = quire_f32_bits(x[i]) & 0x7fffffffu;

        max_bits = magnitude > max_bits ? magnitude : max_bits;
    }
    return max_bits;
}

/* NaN becomes 0, the low byte of the CPU's own conversion. */
static int8_t round_to_int8(float x)
{
    return x == x ? (int8_t)rintf(x) : (int8_t)0;
}

static void block_pack(const float *x, uint32_t n_rows, char *at)
{
    const uint32_t max_bits = max_bits_of(x);
    const float max = quire_f32_from_bits(max_bits);
    const int is_some = max_bits >= quire_f32_bits(QUIRE_MATMUL_TINY);
    const float d = is_some ? max / 127.0f : 0.0f;
    const float inverse = is_some ? 127.0f / max : 0.0f;
    const size_t step = (size_t)4 * n_rows;
    int32_t sums[2] = { 0, 0 };
    int32_t sum, half;
    float dsum;

    for (uint32_t i = 0; i < BLOCK; i++) {
        int8_t n = round_to_int8(x[i] * inverse);

        memcpy(at + i / 4 * step + i % 4, &n, 1);
        sums[i / HALF] += n;
    }
    sum = -128 * (sums[0] + sums[1]);
    half = -32 * sums[0];
    dsum = d * (float)(sums[0] + sums[1]);
    memcpy(at + QUIRE_MATMUL_X_SUM * step, &sum, sizeof sum);
    memcpy(at + QUIRE_MATMUL_X_HALF * step, &half, sizeof half);
    memcpy(at + QUIRE_MATMUL_X_D * step, &d, sizeof d);
    memcpy(at + QUIRE_MATMUL_X_DSUM * step, &dsum, sizeof dsum);
}

static void tile_pack(const quire_matmul_tile *tile)
{
    const size_t block_bytes = (size_t)tile->n_rows * QUIRE_MATMUL_BLOCK_BYTES;

    for (uint32_t b = tile->begin; b < tile->end; b++) {
        for (uint32_t row = 0; row < tile->n_rows; row++) {
            block_pack(tile->rows + row * tile->stride + (size_t)b * BLOCK, tile->n_rows,
                       (char *)tile->at + b * block_bytes + (size_t)4 * row);
        }
    }
}

/* One row's block out of a tile. */
typedef struct x_block {
    int8_t n[BLOCK];
    int32_t sum, half;
    float d, dsum;
} x_block;

static x_block x_read(const char *x, uint32_t n_rows)
{
    const size_t step = (size_t)4 * n_rows;
    x_block b;

    for (uint32_t k = 0; k < BLOCK / 4; k++) {
        memcpy(b.n + (size_t)4 * k, x + k * step, 4);
    }
    memcpy(&b.sum, x + QUIRE_MATMUL_X_SUM * step, sizeof b.sum);
    memcpy(&b.half, x + QUIRE_MATMUL_X_HALF * step, sizeof b.half);
    memcpy(&b.d, x + QUIRE_MATMUL_X_D * step, sizeof b.d);
    memcpy(&b.dsum, x + QUIRE_MATMUL_X_DSUM * step, sizeof b.dsum);
    return b;
}

/* ---- weights ---- */

/* One output's weights of a block. */
typedef struct w_block {
    uint8_t c[BLOCK];
    float scale[2]; /* of the halves; most types have one */
    float min[2];
} w_block;

static float f16_at(const unsigned char *halves, uint32_t lane)
{
    uint16_t half;

    memcpy(&half, halves + (size_t)lane * sizeof half, sizeof half);
    return quire_f16_to_f32(half);
}

/* Code of input i; codes begin with the output's. */
static uint8_t code_at(quire_matmul_type type, const unsigned char *codes, uint32_t i)
{
    const uint32_t k = i / 4;
    const unsigned char *quad = codes + i % 4;
    const unsigned char *high = quad + 4 * LINE;
    uint32_t four;

    if (type == QUIRE_MATMUL_Q2_K || type == QUIRE_MATMUL_Q3_K) {
        const uint32_t third = type == QUIRE_MATMUL_Q3_K ? (uint32_t)quad[2 * LINE] >> k & 1 : 0;

        return (uint8_t)(((uint32_t)quad[k / 4 * LINE] >> (2 * (k % 4)) & 3) | third << 2);
    }
    four = (uint32_t)quad[k % 4 * LINE] >> (4 * (k / 4)) & 15;
    switch (type) {
    case QUIRE_MATMUL_Q8_0:
        return quad[k * LINE];
    case QUIRE_MATMUL_IQ4_NL:
    case QUIRE_MATMUL_IQ4_XS:
        return quire_matmul_iq4_nl[four];
    case QUIRE_MATMUL_MXFP4:
        return quire_matmul_mxfp4[four];
    case QUIRE_MATMUL_Q5_0:
    case QUIRE_MATMUL_Q5_1:
    case QUIRE_MATMUL_Q5_K:
        return (uint8_t)(four | ((uint32_t)high[0] >> k & 1) << 4);
    case QUIRE_MATMUL_Q6_K:
        return (uint8_t)(four | ((uint32_t)high[k / 4 * LINE] >> (2 * (k % 4)) & 3) << 4);
    default:
        return (uint8_t)four;
    }
}

/* The 6-bit integers of block b. The first four of each are whole bytes; of the last four the upper
 * two bits lie above those. */
static void k_scales_read(const unsigned char *head, uint32_t lane, uint32_t b, w_block *w)
{
    const unsigned char *words = head + LINE + (size_t)4 * lane + b % 4;
    const uint32_t s = words[0], m = words[LINE], both = words[2 * LINE];

    w->scale[0] *= (float)(b < 4 ? s & 63 : (both & 15) | s >> 6 << 4);
    w->min[0] *= -(float)(b < 4 ? m & 63 : both >> 4 | m >> 6 << 4);
}

/* The scales and mins of the halves of block b, of 4 bits each. */
static void q2_k_scales_read(const unsigned char *head, uint32_t lane, uint32_t b, w_block *w)
{
    const float scale = w->scale[0], min = f16_at(head + LINE / 2, lane);

    for (uint32_t i = 2 * b; i < 2 * b + 2; i++) {
        const uint32_t both = head[(1 + i / 4) * LINE + 4 * lane + i % 4];

        w->scale[i % 2] = scale * (float)(both & 15);
        w->min[i % 2] = min * (float)(both >> 4);
    }
}

/* The scales of the halves of block b: nibbles in 8 bytes, their upper two bits in the next 4. */
static void q3_k_scales_read(const unsigned char *head, uint32_t lane, uint32_t b, w_block *w)
{
    const unsigned char *words = head + LINE / 2 + (size_t)4 * lane;
    const float scale = w->scale[0];

    for (uint32_t i = 2 * b; i < 2 * b + 2; i++) {
        const uint32_t low = (uint32_t)words[i / 4 % 2 * LINE + i % 4] >> (i < 8 ? 0 : 4) & 15;
        const uint32_t high = (uint32_t)words[2 * LINE + i % 4] >> (2 * (i / 4)) & 3;

        w->scale[i % 2] = scale * (float)((int32_t)(low | high << 4) - 32);
    }
}

static void iq4_xs_scale_read(const unsigned char *head, uint32_t lane, uint32_t b, w_block *w)
{
    const unsigned char *high = head + LINE / 2 + (size_t)2 * lane + b / 4;
    const unsigned char *low = head + LINE + (size_t)4 * lane + b / 2;
    const uint32_t scale =
        ((uint32_t)*low >> (4 * (b % 2)) & 15) | ((uint32_t)*high >> (2 * (b % 4)) & 3) << 4;

    w->scale[0] *= (float)((int32_t)scale - 32);
}

/* ---- weights of types with grids ---- */

static uint32_t word_at(const unsigned char *at)
{
    uint32_t word;

    memcpy(&word, at, sizeof word);
    return word;
}

/* Upper bit p of the index that is byte k of an output. high: the block's. */
static uint32_t high_at(quire_matmul_type type, const unsigned char *high, uint32_t lane,
                        uint32_t k, uint32_t p)
{
    const uint32_t bit = 4 * (lane % 16) + k;

    return (uint32_t)high[8 * (lane / 16 * quire_matmul_high_words(type) + p) + bit / 8] >>
               (bit % 8) &
           1;
}

/* Eight signs of seven: an even number of weights is negative. */
static uint32_t signs_of(uint32_t seven)
{
    const uint32_t four = seven ^ seven >> 4;
    const uint32_t two = four ^ four >> 2;

    return seven | ((two ^ two >> 1) & 1) << 7;
}

/* Code of input i of block b of IQ1; codes begin with the output's. */
static uint8_t iq1_code_at(quire_matmul_type type, const unsigned char *head,
                           const unsigned char *codes, uint32_t lane, uint32_t b, uint32_t i)
{
    const unsigned char *high = head + quire_matmul_high_at(type, b);
    const uint32_t k = i / 8;
    uint32_t index = codes[k], is_less;

    for (uint32_t p = 0; p < 3; p++) {
        index |= high_at(type, high, lane, k, p) << (8 + p);
    }
    is_less = type == QUIRE_MATMUL_IQ1_M
                  ? high_at(type, high, lane, k, 3)
                  : word_at(head + QUIRE_MATMUL_GRID_SCALES + (size_t)4 * lane) >> (4 * b + 3) & 1;
    return (uint8_t)(121 +
                     8 * ((uint32_t)quire_matmul_iq1_grid[i / 4 % 2][index] >> 2 * (i % 4) & 3) -
                     2 * is_less);
}

/* Code of input i of block b; codes begin with the output's. */
static uint8_t grid_code_at(quire_matmul_type type, const unsigned char *head,
                            const unsigned char *codes, uint32_t lane, uint32_t b, uint32_t i)
{
    const uint32_t k = i / 8, q = i / 4 % 2, shift = 2 * (i % 4);
    const unsigned char *high = head + quire_matmul_high_at(type, b);
    const uint8_t *sizes = quire_matmul_iq2_sizes;
    const unsigned char *signs = codes + LINE;
    uint32_t index = codes[k], eight, size;

    if (quire_matmul_is_iq1(type)) {
        return iq1_code_at(type, head, codes, lane, b, i);
    }
    if (type == QUIRE_MATMUL_IQ3_XXS || type == QUIRE_MATMUL_IQ3_S) {
        index = codes[q * LINE + k];
        signs += LINE;
    }
    switch (type) {
    case QUIRE_MATMUL_IQ2_XS:
        eight = signs_of(signs[k] & 127u);
        index |= (uint32_t)signs[k] >> 7 << 8;
        size = (uint32_t)quire_matmul_iq2_xs_grid[q][index] >> shift & 3;
        break;
    case QUIRE_MATMUL_IQ2_S:
        eight = signs[k];
        index |= high_at(type, high, lane, k, 0) << 8 | high_at(type, high, lane, k, 1) << 9;
        size = (uint32_t)quire_matmul_iq2_s_grid[q][index] >> shift & 3;
        break;
    case QUIRE_MATMUL_IQ3_XXS:
        eight = signs_of(word_at(signs) >> (7 * k) & 127);
        sizes = quire_matmul_iq3_xxs_sizes;
        size = ((uint32_t)quire_matmul_iq3_xxs_grid[0][index] >> shift & 3) |
               ((uint32_t)quire_matmul_iq3_xxs_grid[1][index] >> (i % 4) & 1) << 2;
        break;
    case QUIRE_MATMUL_IQ3_S:
        eight = signs[k];
        index |= high_at(type, high, lane, k, q) << 8;
        sizes = quire_matmul_iq3_s_sizes;
        size = ((uint32_t)quire_matmul_iq3_s_grid[0][index] >> shift & 3) |
               ((uint32_t)quire_matmul_iq3_s_grid[1][index] >> (i % 4) & 1) << 2;
        break;
    default:
        eight = signs_of(word_at(signs) >> (7 * k) & 127);
        size = (uint32_t)quire_matmul_iq2_xxs_grid[q][index] >> shift & 3;
        break;
    }
    return (uint8_t)(eight >> (i % 8) & 1 ? 128 - sizes[size] : 128 + sizes[size]);
}

/* Four words of 16 bits in two of 32: in the upper four bits of each are four of the f16, and below
 * them 3 bits for each 16 inputs. */
static void iq1_m_scales_read(const unsigned char *words, uint32_t b, w_block *w)
{
    const uint32_t low = word_at(words), high = word_at(words + LINE);
    const uint32_t half =
        (low >> 12 & 15) | (low >> 24 & 0xf0) | (high >> 4 & 0xf00) | (high >> 16 & 0xf000);
    const float scale =
        quire_f16_to_f32((uint16_t)half) * quire_matmul_grid_factor(QUIRE_MATMUL_IQ1_M);
    const uint32_t both = (b < 4 ? low : high) >> (16 * (b / 2 % 2) + 6 * (b % 2));

    w->scale[0] = scale * (float)(2 * (both & 7) + 1);
    w->scale[1] = scale * (float)(2 * (both >> 3 & 7) + 1);
}

/* The scales of block b or its halves: odd integers of 5 bits times the f16 and a factor. */
static void grid_scales_read(quire_matmul_type type, const unsigned char *head,
                             const unsigned char *codes, uint32_t lane, uint32_t b, w_block *w)
{
    const unsigned char *scales = head + QUIRE_MATMUL_GRID_SCALES + (size_t)4 * lane;
    const float scale = w->scale[0] * quire_matmul_grid_factor(type);

    if (type == QUIRE_MATMUL_IQ1_M) {
        iq1_m_scales_read(head + (size_t)4 * lane, b, w);
    } else if (type == QUIRE_MATMUL_IQ1_S) {
        w->scale[0] = scale * (float)(2 * (word_at(scales) >> (4 * b) & 7) + 1);
    } else if (type == QUIRE_MATMUL_IQ2_XXS) {
        w->scale[0] = scale * (float)(word_at(codes + LINE) >> 27 | 1);
    } else if (type == QUIRE_MATMUL_IQ3_XXS) {
        w->scale[0] = scale * (float)(word_at(codes + 2 * LINE) >> 27 | 1);
    } else if (type == QUIRE_MATMUL_IQ3_S) {
        w->scale[0] = scale * (float)(2 * (word_at(scales) >> (4 * b) & 15) + 1);
    } else {
        const uint32_t both = word_at(scales + b / 4 * LINE) >> (8 * (b % 4));

        w->scale[0] = scale * (float)(2 * (both & 15) + 1);
        w->scale[1] = scale * (float)(2 * (both >> 4 & 15) + 1);
    }
}

/* Block b of a group. */
static w_block w_read(quire_matmul_type type, const unsigned char *head, const unsigned char *codes,
                      uint32_t lane, uint32_t b)
{
    w_block w = {
        .scale = { type == QUIRE_MATMUL_MXFP4
                       ? quire_f32_from_bits(quire_matmul_mxfp4_scale_bits(head[b * PANEL + lane]))
                       : f16_at(head, lane) },
    };

    for (uint32_t i = 0; i < BLOCK; i++) {
        w.c[i] = quire_matmul_has_grid(type)
                     ? grid_code_at(type, head, codes + (size_t)4 * lane, lane, b, i)
                     : code_at(type, codes + (size_t)4 * lane, i);
    }
    if (type == QUIRE_MATMUL_Q6_K) {
        const int8_t *scales = (const int8_t *)head + LINE / 2 + (size_t)2 * b * PANEL + lane;

        w.scale[1] = w.scale[0] * (float)scales[PANEL];
        w.scale[0] *= (float)scales[0];
    } else if (type == QUIRE_MATMUL_Q2_K) {
        q2_k_scales_read(head, lane, b, &w);
    } else if (type == QUIRE_MATMUL_Q3_K) {
        q3_k_scales_read(head, lane, b, &w);
    } else if (type == QUIRE_MATMUL_IQ4_XS) {
        iq4_xs_scale_read(head, lane, b, &w);
    } else if (quire_matmul_has_grid(type)) {
        grid_scales_read(type, head, codes + (size_t)4 * lane, lane, b, &w);
    } else if (quire_matmul_layouts[type].head_bytes >= LINE) {
        w.min[0] = f16_at(head + LINE / 2, lane);
    }
    if (type == QUIRE_MATMUL_Q4_K || type == QUIRE_MATMUL_Q5_K) {
        k_scales_read(head, lane, b, &w);
    }
    return w;
}

/* ---- products ---- */

/* sum(c n) of inputs [begin, end). */
static int32_t sum_of(const w_block *w, const x_block *x, uint32_t begin, uint32_t end)
{
    int32_t sum = 0;

    for (uint32_t i = begin; i < end; i++) {
        sum += w->c[i] * x->n[i];
    }
    return sum;
}

/* y with a block added. */
static float block_add(quire_matmul_type type, const w_block *w, const x_block *x, float y)
{
    const int32_t sum = sum_of(w, x, 0, BLOCK);
    int32_t first, second;

    switch (type) {
    case QUIRE_MATMUL_Q8_0:
    case QUIRE_MATMUL_IQ4_NL:
    case QUIRE_MATMUL_IQ4_XS:
    case QUIRE_MATMUL_MXFP4:
    case QUIRE_MATMUL_IQ2_XXS:
    case QUIRE_MATMUL_IQ3_XXS:
    case QUIRE_MATMUL_IQ3_S:
    case QUIRE_MATMUL_IQ1_S:
        return fmaf((float)(sum + x->sum), w->scale[0] * x->d, y);
    case QUIRE_MATMUL_Q4_0:
        return fmaf((float)(sum + x->sum / 16), w->scale[0] * x->d, y);
    case QUIRE_MATMUL_Q5_0:
        return fmaf((float)(sum + x->sum / 8), w->scale[0] * x->d, y);
    case QUIRE_MATMUL_Q6_K:
        first = sum_of(w, x, 0, HALF) + x->half;
        second = sum_of(w, x, HALF, BLOCK) + x->sum / 4 - x->half;
        return fmaf(fmaf((float)second, w->scale[1], (float)first * w->scale[0]), x->d, y);
    case QUIRE_MATMUL_Q3_K:
        first = sum_of(w, x, 0, HALF) + x->half / 8;
        second = sum_of(w, x, HALF, BLOCK) + x->sum / 32 - x->half / 8;
        return fmaf(fmaf((float)second, w->scale[1], (float)first * w->scale[0]), x->d, y);
    case QUIRE_MATMUL_IQ2_XS:
    case QUIRE_MATMUL_IQ2_S:
    case QUIRE_MATMUL_IQ1_M:
        first = sum_of(w, x, 0, HALF) + x->half * 4;
        second = sum_of(w, x, HALF, BLOCK) + x->sum - x->half * 4;
        return fmaf(fmaf((float)second, w->scale[1], (float)first * w->scale[0]), x->d, y);
    case QUIRE_MATMUL_Q2_K:
        first = sum_of(w, x, 0, HALF);
        y = fmaf(fmaf((float)(sum - first), w->scale[1], (float)first * w->scale[0]), x->d, y);
        first = x->half / 32;
        second = x->sum / 128 - first;
        return fmaf(fmaf((float)second, w->min[1], (float)first * w->min[0]), x->d, y);
    default:
        return fmaf(w->min[0], x->dsum, fmaf((float)sum, w->scale[0] * x->d, y));
    }
}

/* One output of one row. */
static float dot(const quire_matmul_panel *p, uint32_t row, uint32_t lane)
{
    const quire_matmul_type type = p->weight->type;
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const uint32_t in_group = l->group / BLOCK;
    const char *x = (const char *)p->tile + (size_t)4 * row;
    float y = 0.0f;

    for (uint32_t i = 0; i < p->weight->n_in / BLOCK; i++) {
        const unsigned char *head = p->at + (size_t)i / in_group * PANEL * l->gguf_bytes;
        const unsigned char *codes = head + l->head_bytes;
        const uint32_t b = i % in_group;
        const w_block w = w_read(type, head, codes + (size_t)b * l->code_bytes, lane, b);
        const x_block in = x_read(x, p->n_rows);

        y = block_add(type, &w, &in, y);
        x += (size_t)p->n_rows * QUIRE_MATMUL_BLOCK_BYTES;
    }
    return y;
}

static void panel_run(const quire_matmul_panel *p)
{
    for (uint32_t row = 0; row < p->n_rows; row++) {
        for (uint32_t lane = 0; lane < PANEL; lane++) {
            p->y[row * p->y_stride + lane] = dot(p, row, lane);
        }
    }
}

const quire_matmul_kernels *quire_matmul_kernels_portable(void)
{
    static const quire_matmul_kernels kernels = { "portable", tile_pack, panel_run, NULL };

    return &kernels;
}
