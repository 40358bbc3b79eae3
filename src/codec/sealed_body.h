/* sealed_body.h - encoding and decoding of sealed tiles, compiled once per ISA (sealed.c, plain C:
 * the definition; sealed_avx2.c). The loops suit the vectoriser, and its choices do not change
 * results: sums run in LANES interleaved parts that are added in one order, products are not fused
 * (-ffp-contract=off), all other work is element by element.
 *
 * A row x (centred, clamped to the reach of a scale) is coded like this:
 *   1. y = x * (127 / max|x|)
 *   2. For each start f of the format: codes of the levels nearest to y * f. The start whose codes
 *      lie closest to the direction of y wins: (y . level)^2 / (level . level) is largest.
 *   3. f = level . level / y . level, the least-squares fit of the winner; codes nearest to y * f.
 *   4. scale = |x| / |level|: the decoded row is as long as the row.
 * Nearest (ties: the larger magnitude) is found by a table over half level units: levels are
 * integers, so that no boundary between two of them lies inside a cell.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_SEALED_BODY_H
#define QUIRE_CODEC_SEALED_BODY_H

#include "codec/half.h"
#include "codec/lanes.h"
#include "codec/sealed.h"

#include <math.h>
#include <string.h>

#define TILE       QUIRE_TILE_TOKENS
#define CELLS      256u /* of half a level unit */
#define WORD_CODES 4u   /* neighbouring dimensions (K) or tokens (V) that stay together */
#define WORDS_MAX  (QUIRE_HEAD_DIM_MAX / WORD_CODES)
#define MEAN_UNIT  32u /* values that fill 64 bytes */

#define F16_MAX 65504.0f
/* The largest magnitude that a row stores: half of the largest scale's reach, because the largest
 * value need not take the largest level. */
#define ROW_MAX 0x1p22f

/* ---- one row ---- */

/* The tables for encoding rows. Levels are symmetric, so a table of magnitudes is enough: the n-th
 * cell holds the code (of the upper half) nearest to n / 2 level units, and its level in the upper
 * bits. */
typedef struct row_coder {
    const float *starts;
    uint32_t n_starts;
    uint32_t n_levels;
    int32_t cells[CELLS];
} row_coder;

static inline void row_coder_init(row_coder *coder, quire_format format, quire_side side)
{
    const int8_t *levels = quire_sealed_levels(format, side);
    uint32_t code = quire_sealed_n_levels(format) / 2;

    coder->starts = quire_sealed_starts(format, &coder->n_starts);
    coder->n_levels = quire_sealed_n_levels(format);
    for (uint32_t c = 0; c < CELLS; c++) {
        while (code + 1 < coder->n_levels && levels[code] + levels[code + 1] <= (int)c) {
            code++;
        }
        coder->cells[c] = (int32_t)code | levels[code] << 8;
    }
}

static inline bool row_is_finite(const float *x, uint32_t d)
{
    return max_bits(x, d) < QUIRE_F32_INF_BITS;
}

static inline float clamp(float x, float most)
{
    x = x < most ? x : most;
    return x > -most ? x : -most;
}

/* A row being coded: y as above, and the levels nearest to y * factor. */
typedef struct row_work {
    uint32_t d;
    float y[QUIRE_HEAD_DIM_MAX];
    int32_t at[QUIRE_HEAD_DIM_MAX];    /* cells */
    int32_t found[QUIRE_HEAD_DIM_MAX]; /* contents of the cells */
    float levels[QUIRE_HEAD_DIM_MAX];
} row_work;

static inline void levels_find(const row_coder *coder, row_work *row, float factor)
{
    for (uint32_t i = 0; i < row->d; i++) {
        float cell = fabsf(row->y[i] * (2.0f * factor));

        row->at[i] = (int32_t)(cell < (float)(CELLS - 1) ? cell : (float)(CELLS - 1));
    }
    for (uint32_t i = 0; i < row->d; i++) {
        row->found[i] = coder->cells[row->at[i]];
    }
    for (uint32_t i = 0; i < row->d; i++) {
        row->levels[i] = copysignf((float)(row->found[i] >> 8), row->y[i]);
    }
}

/* Write the codes of the row; codes of negative numbers mirror those of positive ones. */
static inline void codes_take(const row_coder *coder, row_work *row, uint8_t *codes)
{
    uint32_t mirror = coder->n_levels - 1;
    uint32_t d = row->d;

    for (uint32_t i = 0; i < d; i++) {
        row->found[i] ^= (int32_t)(mirror & (0u - (quire_f32_bits(row->y[i]) >> 31)));
    }
    for (uint32_t i = 0; i < d; i++) {
        codes[i] = (uint8_t)row->found[i];
    }
}

/* The factor for the last codes of a row. Sums of squares of levels are exact. */
static inline float factor_find(const row_coder *coder, row_work *row)
{
    float best = -1.0f;
    float factor = 1.0f;

    for (uint32_t n = 0; n < coder->n_starts; n++) {
        float products;
        float squares;

        levels_find(coder, row, coder->starts[n]);
        products = dot(row->y, row->levels, row->d);
        squares = dot(row->levels, row->levels, row->d);
        if (products * products / squares > best) {
            best = products * products / squares;
            factor = squares / products;
        }
    }
    return factor;
}

/* Codes of the row of finite numbers in row->y; returns its scale as f16. */
static inline uint16_t row_fit(const row_coder *coder, row_work *row, uint8_t *codes)
{
    float max = quire_f32_from_bits(max_bits(row->y, row->d));

    if (!(max >= 0x1p-100f)) {
        return 0;
    }
    for (uint32_t i = 0; i < row->d; i++) {
        row->y[i] = row->y[i] * (127.0f / max) + 0.0f; /* zeros have no sign */
    }
    levels_find(coder, row, factor_find(coder, row));
    codes_take(coder, row, codes);
    return quire_f32_to_f16(
        sqrtf(dot(row->y, row->y, row->d) / dot(row->levels, row->levels, row->d)) *
        (max / 127.0f));
}

/* Rows of scale 0 or NaN get the smallest positive level throughout. */
static inline uint16_t row_encode(const row_coder *coder, uint32_t d, const float *x,
                                  const float *mean, uint8_t *codes)
{
    row_work row;
    uint16_t scale = QUIRE_F16_NAN_BITS;

    row.d = d;
    if (row_is_finite(x, d)) {
        for (uint32_t i = 0; i < d; i++) {
            row.y[i] = clamp(x[i] - mean[i], ROW_MAX);
        }
        scale = row_fit(coder, &row, codes);
    }
    if (scale == 0 || scale == QUIRE_F16_NAN_BITS) {
        memset(codes, (int)(coder->n_levels / 2), d);
    }
    return scale;
}

/* ---- a tile ---- */

/* The average of the finite rows: as it is stored (padded with zeros), and as floats for centring
 * the rows. Values are clamped to the range of f16 first. */
static inline void mean_encode(const quire_tile_rows *rows, const float *x, void *tile, float *mean)
{
    uint16_t *stored = (uint16_t *)(void *)((char *)tile + QUIRE_SEALED_SCALES_BYTES);
    uint32_t padded = (rows->d + MEAN_UNIT - 1) / MEAN_UNIT * MEAN_UNIT;
    uint32_t n = 0;

    memset(mean, 0, padded * sizeof(float));
    for (uint32_t t = 0; t < TILE; t++) {
        const float *row = x + t * rows->stride;

        if (row_is_finite(row, rows->d)) {
            n++;
            for (uint32_t i = 0; i < rows->d; i++) {
                mean[i] += clamp(row[i], F16_MAX);
            }
        }
    }
    for (uint32_t i = 0; i < padded; i++) {
        stored[i] = quire_f32_to_f16(n != 0 ? mean[i] / (float)n : 0.0f);
        mean[i] = quire_f16_to_f32(stored[i]);
    }
}

/* One of the planes of a tile: bits shift .. shift + bits - 1 of the codes, in units of 32 bits
 * that hold per_unit words. A word is four neighbours' codes, a byte each. */
typedef struct sealed_plane {
    size_t offset;
    uint32_t bits;
    uint32_t shift;
    uint32_t per_unit;
    uint32_t mask; /* of a word's part, moved down */
} sealed_plane;

static inline sealed_plane plane_of(size_t offset, uint32_t bits, uint32_t shift)
{
    return (sealed_plane){ offset, bits, shift, 8 / bits, 0x01010101u * ((1u << bits) - 1) };
}

/* Returns their number. */
static inline uint32_t planes_of(quire_format format, quire_side side, uint32_t d,
                                 sealed_plane *planes)
{
    uint32_t low = quire_sealed_low_bits(format);
    uint32_t high = quire_sealed_high_bits(format);

    planes[0] = plane_of(quire_sealed_low_offset(format, side, d), low, 0);
    if (high == 0) {
        return 1;
    }
    planes[1] = plane_of(quire_sealed_high_offset(format, side, d), high, low);
    return 2;
}

/* The inputs for encoding the rows of a tile. */
typedef struct sealed_tile {
    uint32_t d;
    row_coder coder;
    float mean[QUIRE_HEAD_DIM_MAX]; /* zeros where not centred */
    sealed_plane planes[2];
    uint32_t n_planes;
} sealed_tile;

/* Write slot t of a K plane from the row's words of 4 dimensions; words behind d are zero. */
static inline void k_plane_store(const sealed_plane *plane, uint32_t d, uint32_t t,
                                 const uint32_t *words, void *tile)
{
    uint32_t *unit = (uint32_t *)(void *)((char *)tile + plane->offset) + t;

    for (uint32_t w = 0; w < d / WORD_CODES; w += plane->per_unit, unit += TILE) {
        uint32_t gathered = 0;

        for (uint32_t m = 0; m < plane->per_unit; m++) {
            gathered |= (words[w + m] >> plane->shift & plane->mask) << (plane->bits * m);
        }
        *unit = gathered;
    }
}

/* Add the bits of slot t of a K plane to the row's words. */
static inline void k_plane_load(const sealed_plane *plane, uint32_t d, uint32_t t, const void *tile,
                                uint32_t *words)
{
    const uint32_t *unit = (const uint32_t *)(const void *)((const char *)tile + plane->offset) + t;

    for (uint32_t w = 0; w < d / WORD_CODES; w += plane->per_unit, unit += TILE) {
        for (uint32_t m = 0; m < plane->per_unit; m++) {
            words[w + m] |= (*unit >> (plane->bits * m) & plane->mask) << plane->shift;
        }
    }
}

/* Write slots t .. t + 3 of a V plane from the words of the d dimensions. */
static inline void v_plane_store(const sealed_plane *plane, uint32_t d, uint32_t t,
                                 const uint32_t *words, void *tile)
{
    uint32_t at = t / WORD_CODES;
    uint32_t *units =
        (uint32_t *)(void *)((char *)tile + plane->offset) + (size_t)(at / plane->per_unit) * d;
    uint32_t up = plane->bits * (at % plane->per_unit);
    uint32_t kept = up == 0 ? 0 : ~0u; /* earlier slots */

    for (uint32_t i = 0; i < d; i++) {
        units[i] = (units[i] & kept) | (words[i] >> plane->shift & plane->mask) << up;
    }
}

/* Add the bits of slot t of a V plane to the row's codes. */
static inline void v_plane_load(const sealed_plane *plane, uint32_t d, uint32_t t, const void *tile,
                                uint8_t *codes)
{
    uint32_t at = t / WORD_CODES;
    const uint32_t *units = (const uint32_t *)(const void *)((const char *)tile + plane->offset) +
                            (size_t)(at / plane->per_unit) * d;
    uint32_t down = plane->bits * (at % plane->per_unit) + 8 * (t % WORD_CODES);

    for (uint32_t i = 0; i < d; i++) {
        codes[i] |= (uint8_t)((units[i] >> down & plane->mask & 0xff) << plane->shift);
    }
}

static inline void tile_encode_k(const sealed_tile *to, const quire_tile_rows *rows, const float *x,
                                 void *tile)
{
    uint32_t words[WORDS_MAX] = { 0 };

    for (uint32_t t = 0; t < TILE; t++) {
        ((uint16_t *)tile)[t] =
            row_encode(&to->coder, to->d, x + t * rows->stride, to->mean, (uint8_t *)words);
        for (uint32_t p = 0; p < to->n_planes; p++) {
            k_plane_store(&to->planes[p], to->d, t, words, tile);
        }
    }
}

static inline void tile_encode_v(const sealed_tile *to, const quire_tile_rows *rows, const float *x,
                                 void *tile)
{
    uint8_t codes[WORD_CODES][QUIRE_HEAD_DIM_MAX];
    uint32_t words[QUIRE_HEAD_DIM_MAX];

    for (uint32_t t = 0; t < TILE; t += WORD_CODES) {
        for (uint32_t j = 0; j < WORD_CODES; j++) {
            ((uint16_t *)tile)[t + j] =
                row_encode(&to->coder, to->d, x + (t + j) * rows->stride, to->mean, codes[j]);
        }
        for (uint32_t i = 0; i < to->d; i++) {
            words[i] = codes[0][i] | (uint32_t)codes[1][i] << 8 | (uint32_t)codes[2][i] << 16 |
                       (uint32_t)codes[3][i] << 24;
        }
        for (uint32_t p = 0; p < to->n_planes; p++) {
            v_plane_store(&to->planes[p], to->d, t, words, tile);
        }
    }
}

/* quire_sealed_encode() of an ISA. */
static inline void tile_encode(quire_format format, quire_side side, const quire_tile_rows *rows,
                               const float *x, void *tile)
{
    sealed_tile to;

    to.d = rows->d;
    row_coder_init(&to.coder, format, side);
    if (quire_sealed_is_centred(format, side)) {
        mean_encode(rows, x, tile, to.mean);
    } else {
        memset(to.mean, 0, sizeof(to.mean));
    }
    to.n_planes = planes_of(format, side, rows->d, to.planes);
    (side == QUIRE_SIDE_K ? tile_encode_k : tile_encode_v)(&to, rows, x, tile);
}

/* quire_sealed_decode() of an ISA. */
static inline void tile_decode(quire_format format, quire_side side, const quire_tile_rows *rows,
                               const void *tile, float *x)
{
    const int8_t *levels = quire_sealed_levels(format, side);
    const uint16_t *stored_mean =
        (const uint16_t *)(const void *)((const char *)tile + QUIRE_SEALED_SCALES_BYTES);
    uint32_t d = rows->d;
    float mean[QUIRE_HEAD_DIM_MAX] = { 0 };
    sealed_plane planes[2];
    uint32_t n_planes = planes_of(format, side, d, planes);

    for (uint32_t i = 0; i < d && quire_sealed_is_centred(format, side); i++) {
        mean[i] = quire_f16_to_f32(stored_mean[i]);
    }
    for (uint32_t r = 0; r < rows->n_tokens; r++) {
        uint32_t t = rows->first_slot + r;
        float scale = quire_f16_to_f32(((const uint16_t *)tile)[t]);
        uint32_t words[WORDS_MAX] = { 0 };
        const uint8_t *codes = (const uint8_t *)words;

        for (uint32_t p = 0; p < n_planes; p++) {
            if (side == QUIRE_SIDE_K) {
                k_plane_load(&planes[p], d, t, tile, words);
            } else {
                v_plane_load(&planes[p], d, t, tile, (uint8_t *)words);
            }
        }
        for (uint32_t i = 0; i < d; i++) {
            x[r * rows->stride + i] = scale * (float)levels[codes[i]] + mean[i];
        }
    }
}
#endif
