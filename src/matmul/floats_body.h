/* floats_body.h - tiles of products with floats, for each kernel set. Before it come
 *
 *   ROWS, OUTS                       of a whole tile
 *   PARTS                            1, or 2: a vector has half of the lanes
 *   vec                              16 / PARTS lanes of f32
 *   vec_zero(), vec_fma(sum, a, b)   lane by lane, rounded once
 *   vec_f32(at), vec_f16(at), vec_bf16(at)   as many numbers, widened
 *   vec_sum(first, last)             the sum of the lanes of a sum's parts, by halves
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/floats_kernels.h"

#include "codec/half.h"

#include <string.h>

enum {
    LANES = QUIRE_FLOATS_LANES,
    STEP = LANES / PARTS,
    PASS_INPUTS = 512
};

#define UNROLLED _Pragma("GCC unroll 4")

/* The constants that a tile's code is compiled for. */
typedef struct tile_shape {
    quire_floats_type type;
    uint32_t n_rows, n_outs;
    uint32_t part, n_parts; /* of the lanes */
} tile_shape;

static inline __attribute__((always_inline)) vec weights_at(quire_floats_type type, const char *row,
                                                            uint32_t i)
{
    if (type == QUIRE_FLOATS_F32) {
        return vec_f32(row + (size_t)i * sizeof(float));
    }
    row += (size_t)i * sizeof(uint16_t);
    return type == QUIRE_FLOATS_F16 ? vec_f16(row) : vec_bf16(row);
}

/* A part of the last n < 16 numbers of a row of weights, with zeros behind them. */
static inline vec weights_tail(quire_floats_type type, const char *row, uint32_t i, uint32_t n,
                               uint32_t part)
{
    char some[LANES * sizeof(float)] = { 0 };
    const size_t size = type == QUIRE_FLOATS_F32 ? sizeof(float) : sizeof(uint16_t);

    memcpy(some, row + i * size, n * size);
    return weights_at(type, some, part * STEP);
}

static inline vec x_tail(const float *x, uint32_t n, uint32_t part)
{
    float some[LANES] = { 0 };

    memcpy(some, x, n * sizeof *some);
    return vec_f32((const char *)(some + part * STEP));
}

/* Add inputs [begin, end), whole lanes, to n_parts parts of a tile's sums. n_rows, n_outs, n_parts
 * and type are constants where this is called: all loops over them are unrolled, and the sums stay
 * in registers. */
static inline __attribute__((always_inline)) void parts_add(const quire_floats_tile *t,
                                                            const tile_shape s,
                                                            vec out[PARTS][ROWS][OUTS],
                                                            uint32_t begin, uint32_t end)
{
    vec sums[PARTS][ROWS][OUTS], x[ROWS];

    UNROLLED for (uint32_t p = 0; p < s.n_parts; p++)
    {
        UNROLLED for (uint32_t r = 0; r < s.n_rows; r++)
        {
            UNROLLED for (uint32_t o = 0; o < s.n_outs; o++)
            {
                sums[p][r][o] = out[s.part + p][r][o];
            }
        }
    }
    for (uint32_t i = begin + s.part * STEP; i < end; i += LANES) {
        UNROLLED for (uint32_t p = 0; p < s.n_parts; p++)
        {
            UNROLLED for (uint32_t r = 0; r < s.n_rows; r++)
            {
                x[r] = vec_f32((const char *)(t->x[r] + i + p * STEP));
            }
            UNROLLED for (uint32_t o = 0; o < s.n_outs; o++)
            {
                const vec w = weights_at(s.type, t->w + o * t->w_stride, i + p * STEP);

                UNROLLED for (uint32_t r = 0; r < s.n_rows; r++)
                {
                    sums[p][r][o] = vec_fma(sums[p][r][o], w, x[r]);
                }
            }
        }
    }
    UNROLLED for (uint32_t p = 0; p < s.n_parts; p++)
    {
        UNROLLED for (uint32_t r = 0; r < s.n_rows; r++)
        {
            UNROLLED for (uint32_t o = 0; o < s.n_outs; o++)
            {
                out[s.part + p][r][o] = sums[p][r][o];
            }
        }
    }
}

/* The inputs behind the last whole lanes. */
static inline void tail_add(const quire_floats_tile *t, vec out[PARTS][ROWS][OUTS])
{
    const uint32_t n_whole = t->n_in / LANES * LANES, n = t->n_in - n_whole;

    for (uint32_t p = 0; n > 0 && p < PARTS; p++) {
        for (uint32_t o = 0; o < t->n_outs; o++) {
            const vec w = weights_tail(t->type, t->w + o * t->w_stride, n_whole, n, p);

            for (uint32_t r = 0; r < t->n_rows; r++) {
                out[p][r][o] = vec_fma(out[p][r][o], w, x_tail(t->x[r] + n_whole, n, p));
            }
        }
    }
}

/* The parts of one row fit into registers together. Those of several rows go one after the other,
 * over so many inputs that the second one finds them in the L1 cache. */
static inline __attribute__((always_inline)) void
tile_multiply(const quire_floats_tile *t, uint32_t n_rows, uint32_t n_outs, quire_floats_type type)
{
    const bool is_together = n_rows == 1 || PARTS == 1;
    const uint32_t n_whole = t->n_in / LANES * LANES, step = is_together ? n_whole : PASS_INPUTS;
    vec sums[PARTS][ROWS][OUTS];

    UNROLLED for (uint32_t p = 0; p < PARTS; p++)
    {
        UNROLLED for (uint32_t r = 0; r < n_rows; r++)
        {
            UNROLLED for (uint32_t o = 0; o < n_outs; o++)
            {
                sums[p][r][o] = vec_zero();
            }
        }
    }
    for (uint32_t i = 0; i < n_whole; i += step) {
        const uint32_t end = n_whole - i < step ? n_whole : i + step;

        if (is_together) {
            parts_add(t, (tile_shape){ type, n_rows, n_outs, 0, PARTS }, sums, i, end);
        } else {
            parts_add(t, (tile_shape){ type, n_rows, n_outs, 0, 1 }, sums, i, end);
            parts_add(t, (tile_shape){ type, n_rows, n_outs, PARTS - 1, 1 }, sums, i, end);
        }
    }
    tail_add(t, sums);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t o = 0; o < n_outs; o++) {
            t->y[r][o] = vec_sum(sums[0][r][o], sums[PARTS - 1][r][o]);
        }
    }
}

static inline __attribute__((always_inline)) void
tile_of_outs(const quire_floats_tile *t, uint32_t n_outs, quire_floats_type type)
{
    switch (t->n_rows) {
    case 1:
        tile_multiply(t, 1, n_outs, type);
        break;
    case 2:
        tile_multiply(t, ROWS < 2 ? ROWS : 2, n_outs, type);
        break;
    case 3:
        tile_multiply(t, ROWS < 3 ? ROWS : 3, n_outs, type);
        break;
    default:
        tile_multiply(t, ROWS, n_outs, type);
        break;
    }
}

static inline __attribute__((always_inline)) void tile_of_type(const quire_floats_tile *t,
                                                               quire_floats_type type)
{
    if (t->n_outs == 1) {
        tile_of_outs(t, 1, type);
    } else {
        tile_of_outs(t, OUTS, type);
    }
}

static void tile_run(const quire_floats_tile *t)
{
    switch (t->type) {
    case QUIRE_FLOATS_F32:
        tile_of_type(t, QUIRE_FLOATS_F32);
        break;
    case QUIRE_FLOATS_F16:
        tile_of_type(t, QUIRE_FLOATS_F16);
        break;
    case QUIRE_FLOATS_BF16:
        tile_of_type(t, QUIRE_FLOATS_BF16);
        break;
    }
}
