/* attn_state.c - running states of rows: where they lie, and two made one.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_block.h"
#include "attn/attn_math.h"

#include <string.h>

quire_attn_state quire_attn_state_at(float *floats, uint32_t n_rows)
{
    size_t padded = quire_attn_round_up(n_rows, 16);

    return (quire_attn_state){ n_rows, floats, floats + padded, floats + 2 * padded };
}

void quire_attn_state_merge(const quire_attn_ctx *ctx, const quire_attn_state *dst,
                            uint32_t first_row, const quire_attn_state *src)
{
    size_t stride = ctx->shape.o_stride;

    for (uint32_t r = 0; r < src->n_rows; r++) {
        uint32_t to = first_row + r;
        float above = src->m[r] - dst->m[to]; /* NaN: both -Inf, or damage, which l has */
        float less = above == above ? quire_attn_exp(-fabsf(above)) : 0.0f;
        float a = above > 0.0f ? less : 1.0f;
        float b = above > 0.0f ? 1.0f : less;

        if (src->m[r] == -INFINITY && src->l[r] == 0.0f) {
            continue;
        }
        dst->m[to] = above > 0.0f ? src->m[r] : dst->m[to];
        dst->l[to] = dst->l[to] * a + src->l[r] * b;
        for (uint32_t v = 0; v < ctx->shape.n_v; v++) {
            ctx->ws->kernels->fold(stride, a, b, dst->o + ((size_t)v * dst->n_rows + to) * stride,
                                   src->o + ((size_t)v * src->n_rows + r) * stride);
        }
    }
}

void quire_attn_state_take(const quire_attn_ctx *ctx, const quire_attn_state *dst,
                           uint32_t first_row, const quire_attn_state *src)
{
    size_t stride = ctx->shape.o_stride;

    memcpy(dst->m, src->m + first_row, dst->n_rows * sizeof(float));
    memcpy(dst->l, src->l + first_row, dst->n_rows * sizeof(float));
    for (uint32_t v = 0; v < ctx->shape.n_v; v++) {
        memcpy(dst->o + (size_t)v * dst->n_rows * stride,
               src->o + ((size_t)v * src->n_rows + first_row) * stride,
               dst->n_rows * stride * sizeof(float));
    }
}
