/* q8_rounding_body.h - codes of K rows and of queries in 8 bit, each rounded with the other in
 * view; compiled once per ISA (codec_ref.c: the definition; codec_avx2.c). As in sealed_body.h, no
 * compiler option changes the result. An including file may set the number of elements in a
 * register of the ISA (Q8_AT_ONCE: 4 or 8; gcc splits comparisons of more elements into single
 * ones), and the way to take the lesser of two numbers (Q8_MIN). The result is the same.
 *
 * Each code has the error e = code - x / scale. A row w that the coded row is multiplied with gets
 * the error scale * (e . w). Rounding each element by itself makes |e| smallest, but w is not
 * arbitrary: the queries of later tokens resemble the token's own queries, and the K of earlier
 * tokens resembles the token's own K. Only the part of e in the direction of w changes logits. So a
 * row is rounded to nearest. Then, up to Q8_MOVES_MAX times, one code moves to the other
 * neighbouring integer of its value: the code whose move lowers
 *
 *     |e|^2 + (e . u)^2
 *
 * most, as long as a move lowers it. For a row of K, u is the sum of the token's queries of that kv
 * head; for a query, u is the token's K. u is scaled to a mean square of 1. docs/format-study.md
 * has the effect on divergence. Weights are rounded in a similar way by AdaRound (Nagel et al.
 * 2020, arXiv 2004.10568) and GPTQ (Frantar et al. 2022, arXiv 2210.17323).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_Q8_ROUNDING_H
#define QUIRE_CODEC_Q8_ROUNDING_H

#include "codec/half.h"
#include "codec/lanes.h"
#include "quire/codec.h"

#include <math.h>

#define Q8_MOVES_MAX 4u

/* Queries whose largest magnitude is outside of these bounds are left unchanged. */
#define Q8_QUERY_MIN 0x1p-60f
#define Q8_QUERY_MAX 0x1p60f

#ifndef Q8_AT_ONCE
#define Q8_AT_ONCE 4u
#endif
typedef float q8_floats __attribute__((vector_size(Q8_AT_ONCE * sizeof(float))));
typedef int32_t q8_ints __attribute__((vector_size(Q8_AT_ONCE * sizeof(int32_t))));

#define Q8_SIGN INT32_MIN

/* A move at i changes the sum by own[i] + 2 * e_u * along[i]. The lowest bits of this number are
 * replaced by i, so the least number names its place, and equal changes have an order. */
_Static_assert((QUIRE_HEAD_DIM_MAX & (QUIRE_HEAD_DIM_MAX - 1)) == 0, "places are some low bits");
#define Q8_AT_MASK  ((int32_t)QUIRE_HEAD_DIM_MAX - 1)
#define Q8_GAIN_MIN (-0x1p-20f) /* a smaller gain is no gain */
#define Q8_STAYS    0x1p60f     /* own[] of codes that may not move */

/* A row at work. */
typedef struct q8_row {
    uint32_t d;
    float e_u; /* e . u */
    _Alignas(32) float u[QUIRE_HEAD_DIM_MAX];
    _Alignas(32) float n[QUIRE_HEAD_DIM_MAX]; /* codes */
    _Alignas(32) float e[QUIRE_HEAD_DIM_MAX];
    _Alignas(32) float own[QUIRE_HEAD_DIM_MAX];   /* change of |e|^2 by a move, + u^2 */
    _Alignas(32) float along[QUIRE_HEAD_DIM_MAX]; /* u . move */
} q8_row;

static inline q8_floats q8_load(const float *x)
{
    q8_floats v;

    memcpy(&v, x, sizeof(v));
    return v;
}

static inline void q8_store(float *x, q8_floats v)
{
    memcpy(x, &v, sizeof(v));
}

/* is ? a : b */
static inline q8_floats q8_select(q8_ints is, q8_floats a, q8_floats b)
{
    return (q8_floats)(((q8_ints)a & is) | ((q8_ints)b & ~is));
}

/* The lesser of each two numbers. */
static inline q8_floats q8_min(q8_floats a, q8_floats b)
{
#ifdef Q8_MIN
    return Q8_MIN(a, b);
#else
    return q8_select(a < b, a, b);
#endif
}

static inline q8_floats q8_magnitude(q8_floats x)
{
    return (q8_floats)((q8_ints)x & ~((q8_ints){ 0 } + Q8_SIGN));
}

/* Round |y| < 2^22 to nearest, ties to even, as CPUs do by default. */
static inline q8_floats q8_nearest(q8_floats y)
{
    return (y + 0x1.8p23f) - 0x1.8p23f;
}

/* Nearest codes of x * inverse, within +-127, and the effects of their moves. A move takes e
 * towards 0 and past it, so the sign of e gives the direction. Exact codes do not move: both their
 * neighbours are equally far, and one of them may be -128. With keeps_largest, codes of +-127 do
 * not move either. */
static inline void q8_row_start(q8_row *row, const float *x, float inverse, bool keeps_largest)
{
    const q8_ints sign = (q8_ints){ 0 } + Q8_SIGN;
    const q8_floats most = (q8_floats){ 0 } + 127.0f;
    const q8_floats stays = (q8_floats){ 0 } + Q8_STAYS;
    const q8_ints is_kept = (q8_ints){ 0 } - (keeps_largest ? 1 : 0);

    for (uint32_t i = 0; i < row->d; i += Q8_AT_ONCE) {
        const q8_floats u = q8_load(row->u + i);
        q8_floats y = q8_load(x + i) * inverse;
        q8_floats n;
        q8_floats e;
        q8_ints is_still;

        y = -q8_min(-q8_min(y, most), most);
        n = q8_nearest(y);
        e = n - y;
        is_still = (e == 0.0f) | (is_kept & (q8_magnitude(n) == most));
        q8_store(row->n + i, n);
        q8_store(row->e + i, e);
        q8_store(row->own + i, q8_select(is_still, stays, (1.0f - 2.0f * q8_magnitude(e)) + u * u));
        q8_store(row->along + i, (q8_floats)((q8_ints)u ^ ((q8_ints)e & sign) ^ sign));
    }
    row->e_u = dot(row->e, row->u, row->d);
}

static inline float q8_least(q8_floats v)
{
#if Q8_AT_ONCE == 8u
    v = q8_min(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
    v = q8_min(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 2, 3, 0, 1));
#else
    v = q8_min(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
#endif
    return v[1] < v[0] ? v[1] : v[0];
}

/* The gains of moves at i .. i + Q8_AT_ONCE - 1, with their places. */
static inline q8_floats q8_gains(const q8_row *row, float twice_e_u, uint32_t i, q8_ints at)
{
    const q8_ints mask = (q8_ints){ 0 } + Q8_AT_MASK;
    q8_floats gain = q8_load(row->own + i) + twice_e_u * q8_load(row->along + i);

    return (q8_floats)(((q8_ints)gain & ~mask) | at);
}

/* The best move's gain and place, as above; Q8_GAIN_MIN or more when there is none. */
static inline float q8_move_find(const q8_row *row)
{
    const float twice = 2.0f * row->e_u;
    q8_floats even = (q8_floats){ 0 } + Q8_GAIN_MIN;
    q8_floats odd = even;
    q8_ints at = { 0 };

    for (uint32_t l = 0; l < Q8_AT_ONCE; l++) {
        at[l] = (int32_t)l;
    }
    for (uint32_t i = 0; i < row->d; i += 2 * Q8_AT_ONCE, at += 2 * (int32_t)Q8_AT_ONCE) {
        even = q8_min(even, q8_gains(row, twice, i, at));
        if (i + Q8_AT_ONCE < row->d) {
            odd = q8_min(odd, q8_gains(row, twice, i + Q8_AT_ONCE, at + (int32_t)Q8_AT_ONCE));
        }
    }
    return q8_least(q8_min(even, odd));
}

/* Make the best move and set *i to its place; false when no move lowers the sum. */
static inline bool q8_move(q8_row *row, uint32_t *i)
{
    float gain = q8_move_find(row);
    float by;
    float e;

    if (!(gain < Q8_GAIN_MIN)) {
        return false;
    }
    *i = quire_f32_bits(gain) & Q8_AT_MASK;
    by = row->e[*i] < 0.0f ? 1.0f : -1.0f;
    e = row->e[*i] + by;
    row->n[*i] += by;
    row->e[*i] = e;
    row->e_u += by * row->u[*i];
    row->own[*i] = (1.0f - 2.0f * fabsf(e)) + row->u[*i] * row->u[*i];
    row->along[*i] = e < 0.0f ? row->u[*i] : -row->u[*i];
    return true;
}

/* Set row->u from a row that later or earlier rows resemble; false when that row gives no
 * direction: it has NaN or Inf, is next to zero, or is too large to square. */
static inline bool q8_other_set(q8_row *row, const float *other)
{
    float mean_square = dot(other, other, row->d) / (float)row->d;
    float factor;

    if (!(mean_square >= 0x1p-100f && mean_square <= 0x1p100f)) {
        return false;
    }
    factor = 1.0f / sqrtf(mean_square);
    for (uint32_t i = 0; i < row->d; i += Q8_AT_ONCE) {
        q8_store(row->u + i, q8_load(other + i) * factor);
    }
    return true;
}

/* The queries of row r; NULL for none. */
static inline const float *q8_queries_of(const quire_tile_rows *rows, uint32_t r)
{
    return rows->queries != NULL ? rows->queries + r * rows->queries_stride : NULL;
}

/* A row of K: codes[i] = round(x[i] * inverse) within +-127, of finite x; moved by 1 at most, and
 * not beyond +-127. queries: [d], the sum. */
static inline void q8_k_row_round(uint32_t d, const float *x, float inverse, const float *queries,
                                  int8_t *codes)
{
    q8_row row;
    uint32_t i;

    row.d = d;
    if (inverse == 0.0f || !q8_other_set(&row, queries)) {
        return;
    }
    q8_row_start(&row, x, inverse, false);
    for (uint32_t n = 0; n < Q8_MOVES_MAX && q8_move(&row, &i); n++) {
        codes[i] = (int8_t)row.n[i];
    }
}

/* Round one query; row->u is set. Codes of +-127, including that of the largest magnitude, stay:
 * dividing the result by its largest magnitude and rounding to nearest gives the same codes. */
static inline void q8_query_round(q8_row *row, float *q)
{
    const float largest = quire_f32_from_bits(max_bits(q, row->d));
    const float unit = largest / 127.0f;
    uint32_t i;

    if (!(largest >= Q8_QUERY_MIN && largest <= Q8_QUERY_MAX)) {
        return;
    }
    q8_row_start(row, q, 127.0f / largest, true);
    for (uint32_t n = 0; n < Q8_MOVES_MAX && q8_move(row, &i); n++) {
    }
    for (i = 0; i < row->d; i += Q8_AT_ONCE) {
        q8_store(q + i, q8_load(row->n + i) * unit);
    }
}

/* quire_codec.round_queries() of an ISA. */
static inline void q8_queries_round(uint32_t d, uint32_t n, const float *key, float *q)
{
    q8_row row;

    row.d = d;
    if (!q8_other_set(&row, key)) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        q8_query_round(&row, q + (size_t)i * d);
    }
}

#endif /* QUIRE_CODEC_Q8_ROUNDING_H */
