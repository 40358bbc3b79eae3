/* floats_portable.c - products with floats in plain C, one row and one output at a time.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/half.h"

#include <math.h>
#include <string.h>

#define ROWS  1
#define OUTS  1
#define PARTS 1
#define N     16u

typedef struct vec {
    float lane[N];
} vec;

static inline vec vec_zero(void)
{
    return (vec){ { 0 } };
}

static inline vec vec_fma(vec sum, vec a, vec b)
{
    for (uint32_t i = 0; i < N; i++) {
        sum.lane[i] = fmaf(a.lane[i], b.lane[i], sum.lane[i]);
    }
    return sum;
}

static inline vec vec_f32(const char *at)
{
    vec v;

    memcpy(v.lane, at, sizeof v.lane);
    return v;
}

static inline vec vec_f16(const char *at)
{
    uint16_t half[N];
    vec v;

    memcpy(half, at, sizeof half);
    for (uint32_t i = 0; i < N; i++) {
        v.lane[i] = quire_f16_to_f32(half[i]);
    }
    return v;
}

static inline vec vec_bf16(const char *at)
{
    uint16_t half[N];
    vec v;

    memcpy(half, at, sizeof half);
    for (uint32_t i = 0; i < N; i++) {
        v.lane[i] = quire_f32_from_bits((uint32_t)half[i] << 16);
    }
    return v;
}

static inline float vec_sum(vec v, vec last)
{
    (void)last; /* v itself */
    for (uint32_t n = N / 2; n > 0; n /= 2) {
        for (uint32_t i = 0; i < n; i++) {
            v.lane[i] += v.lane[i + n];
        }
    }
    return v.lane[0];
}

#include "matmul/floats_body.h"

const quire_floats_kernels *quire_floats_kernels_portable(void)
{
    static const quire_floats_kernels kernels = { "portable", ROWS, OUTS, tile_run };

    return &kernels;
}
