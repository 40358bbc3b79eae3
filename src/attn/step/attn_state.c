/* attn_state.c - running states of rows: their place, the merge of two, and the result written.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_math.h"
#include "attn/step/attn_block.h"
#include "base/num.h"

#include <string.h>

quire_attn_state quire_attn_state_at(float *floats, uint32_t n_rows)
{
    size_t padded = quire_attn_round_up(n_rows, 16);

    return (quire_attn_state){ n_rows, floats, floats + padded, floats + 2 * padded };
}

void quire_attn_state_reset(const quire_attn_ctx *ctx, const quire_attn_state *st)
{
    for (uint32_t r = 0; r < st->n_rows; r++) {
        st->m[r] = -INFINITY;
        st->l[r] = 0.0f;
    }
    memset(st->o, 0, (size_t)ctx->shape.n_v * st->n_rows * ctx->shape.o_stride * sizeof(float));
}

#define MERGED_TOGETHER 16u /* rows whose factors are worked out side by side */

/* The factors of the sums of dst and of src when they are added up, by row. */
typedef struct merge_factors {
    float of_dst[MERGED_TOGETHER];
    float of_src[MERGED_TOGETHER];
} merge_factors;

/* m and l of n <= MERGED_TOGETHER rows, and the factors. A row of src that saw nothing changes
 * nothing. Without branches the loop is vectorised; one exponential at a time took most of a
 * merge. */
static void merge_heads(uint32_t n, float *restrict m, float *restrict l,
                        const float *restrict src_m, const float *restrict src_l,
                        merge_factors *restrict factors)
{
    for (uint32_t r = 0; r < n; r++) {
        float above = src_m[r] - m[r]; /* NaN: both -Inf, or damage, which l has */
        float power = quire_attn_exp(-fabsf(above));
        float less = above == above ? power : 0.0f;
        float a = above > 0.0f ? less : 1.0f;
        float b = above > 0.0f ? 1.0f : less;
        float sum = l[r] * a + src_l[r] * b;
        float kept = src_l[r] == 0.0f ? l[r] : sum;

        l[r] = src_m[r] == -INFINITY ? kept : sum;
        m[r] = above > 0.0f ? src_m[r] : m[r];
        factors->of_dst[r] = a;
        factors->of_src[r] = b;
    }
}

static void merge_rows(const quire_attn_ctx *ctx, uint32_t n, const quire_attn_state *dst,
                       uint32_t to, const quire_attn_state *src, uint32_t from)
{
    const size_t stride = ctx->shape.o_stride;
    merge_factors factors;

    merge_heads(n, dst->m + to, dst->l + to, src->m + from, src->l + from, &factors);
    for (uint32_t r = 0; r < n; r++) {
        if (src->m[from + r] == -INFINITY && src->l[from + r] == 0.0f) {
            continue;
        }
        for (uint32_t v = 0; v < ctx->shape.n_v; v++) {
            ctx->ws->kernels->fold(stride, factors.of_dst[r], factors.of_src[r],
                                   dst->o + ((size_t)v * dst->n_rows + to + r) * stride,
                                   src->o + ((size_t)v * src->n_rows + from + r) * stride);
        }
    }
}

void quire_attn_state_merge(const quire_attn_ctx *ctx, const quire_attn_state *dst,
                            uint32_t first_row, const quire_attn_state *src)
{
    for (uint32_t r = 0; r < src->n_rows; r += MERGED_TOGETHER) {
        merge_rows(ctx, quire_min_u32(src->n_rows - r, MERGED_TOGETHER), dst, first_row + r, src,
                   r);
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

/* The factor of a row's sums: 1 over the sum of its weights, that of query head h's sink included.
 */
static float inverse_of(const quire_attn_layer *layer, uint32_t h, float m, float l)
{
    float sink, top;

    if (layer->sinks == NULL) {
        return 1.0f / l;
    }
    sink = layer->sinks[h];
    if (sink == -INFINITY) {
        return 1.0f / l;
    }
    top = sink > m ? sink : m; /* a NaN in m is in l as well */
    return quire_attn_exp(m - top) / (l * quire_attn_exp(m - top) + quire_attn_exp(sink - top));
}

/* m and l of a row and head h, with the head's sink among the weights. */
static void write_sums(const quire_attn_layer *layer, uint32_t h, float m, float l, float *sums)
{
    const float sink = layer->sinks != NULL ? layer->sinks[h] : -INFINITY;
    const float top = sink > m ? sink : m;

    sums[0] = top;
    sums[1] = sink == -INFINITY ? l : l * quire_attn_exp(m - top) + quire_attn_exp(sink - top);
}

static void write_row(const quire_attn_ctx *c, const quire_attn_block *b,
                      const quire_attn_state *st, uint32_t r)
{
    const quire_attn_layer *layer = c->layer;
    uint32_t group = c->shape.group;
    uint32_t g = b->g + r / b->head_rows;
    const uint32_t h = g * group + r % group;
    const size_t row = b->queries[r % b->head_rows / group].row;
    float *out = layer->out + row * layer->out_stride + (size_t)h * layer->d_v;
    float inverse = inverse_of(layer, h, st->m[r], st->l[r]);

    if (layer->sums != NULL) {
        write_sums(layer, h, st->m[r], st->l[r], layer->sums + 2 * (row * layer->n_head + h));
    }
    memset(out, 0, layer->d_v * sizeof(float));
    for (uint32_t v = 0; v < c->shape.n_v; v++) {
        const float *o = st->o + ((size_t)v * b->n_rows + r) * c->shape.o_stride;
        const float *gate = layer->v_gate[v];
        const uint32_t rotate = layer->v_prefix_of_k ? layer->k[0].rotate : layer->v[v].rotate;

        for (uint32_t i = 0; i < layer->d_v; i++) {
            c->row[i] = o[i] * inverse;
        }
        if (rotate != 0) {
            quire_hadamard(c->row, layer->d_v, rotate);
        }
        for (uint32_t i = 0; i < layer->d_v; i++) {
            out[i] += gate != NULL ? gate[(size_t)g * layer->d_v + i] * c->row[i] : c->row[i];
        }
    }
}

void quire_attn_block_write(const quire_attn_ctx *ctx, const quire_attn_block *block,
                            const quire_attn_state *st)
{
    for (uint32_t r = 0; r < block->n_rows; r++) {
        write_row(ctx, block, st, r);
    }
}
