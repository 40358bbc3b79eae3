/* attn_pack.c - the queries of a block, as kernels want them.
 *
 * Where they meet K in 8 bit, and the layer has the K of the queries' own tokens, queries are
 * rounded with that in view (codec/q8_rounding_body.h) before the kernels pack them: to numbers
 * that all kernel sets turn into the same integers.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_block.h"
#include "base/num.h"

#include <string.h>

#define HEADS_AT_ONCE QUIRE_TILE_TOKENS /* rows of ctx.decoded */

/* Whether packed[form][source] holds the block's queries already. A block's first query and their
 * number tell it from the others of its call: that of a cascade has more than any other that begins
 * with the same. */
static bool hold_queries(const quire_attn_ctx *c, const quire_attn_block *b, uint32_t form,
                         uint32_t source)
{
    quire_attn_packed *held = c->held;

    if (held->row != b->queries[0].row || held->n_queries != b->n_queries || held->g != b->g ||
        held->n_heads != b->n_heads) {
        *held = (quire_attn_packed){
            .row = b->queries[0].row, .n_queries = b->n_queries, .g = b->g, .n_heads = b->n_heads
        };
    }
    return held->is_made[form][source];
}

/* The K of kv head g of a row's own token, rotated; NULL when queries are rounded without. */
static const float *own_key(const quire_attn_ctx *c, uint32_t source, quire_format format,
                            uint32_t row, uint32_t g)
{
    const quire_attn_layer *layer = c->layer;

    if (format != QUIRE_FORMAT_Q8 || source != 0 || layer->k_new == NULL) {
        return NULL;
    }
    memcpy(c->row, layer->k_new + row * layer->k_new_stride + (size_t)g * layer->d_k,
           layer->d_k * sizeof(float));
    if (layer->k[0].rotate != 0) {
        quire_hadamard(c->row, layer->d_k, layer->k[0].rotate);
    }
    return c->row;
}

/* A row's queries of kv head g. */
static void pack_group(const quire_attn_ctx *c, uint32_t source, uint32_t form, uint32_t row,
                       uint32_t g, unsigned char *packed)
{
    const quire_attn_layer *layer = c->layer;
    const uint32_t d = layer->d_k;
    const uint32_t group = c->shape.group;
    const bool is_hot = form == QUIRE_ATTN_PACKED_HOT;
    const quire_format format = is_hot ? QUIRE_FORMAT_HOT : layer->k[source].format;
    const uint32_t rotate = layer->k[source].rotate;
    const size_t q_bytes = is_hot ? c->shape.k[source].q_hot_bytes : c->shape.k[source].q_bytes;
    const float *key = own_key(c, source, format, row, g);
    const float *q = layer->q[source] + row * layer->q_stride + (size_t)g * group * d;

    for (uint32_t first = 0; first < group; first += HEADS_AT_ONCE) {
        uint32_t n = quire_min_u32(HEADS_AT_ONCE, group - first);
        float *x = c->decoded;

        memcpy(x, q + (size_t)first * d, (size_t)n * d * sizeof(float));
        if (rotate != 0) {
            quire_hadamard(x, (size_t)n * d, rotate);
        }
        if (key != NULL) {
            c->ws->codec->round_queries(d, n, key, x);
        }
        for (uint32_t h = 0; h < n; h++) {
            c->ws->kernels->q_pack(format, d, layer->scale, x + (size_t)h * d,
                                   packed + (first + h) * q_bytes);
        }
    }
}

void quire_attn_pack_queries(const quire_attn_ctx *c, const quire_attn_block *b, uint32_t form,
                             uint32_t source)
{
    const quire_attn_source_shape *shape = &c->shape.k[source];
    const size_t q_bytes = form == QUIRE_ATTN_PACKED_HOT ? shape->q_hot_bytes : shape->q_bytes;
    unsigned char *packed = c->packed[form][source];

    if (hold_queries(c, b, form, source)) {
        return;
    }
    c->held->is_made[form][source] = true;
    for (uint32_t h = 0; h < b->n_heads; h++) {
        for (uint32_t i = 0; i < b->n_queries; i++) {
            pack_group(c, source, form, b->queries[i].row, b->g + h, packed);
            packed += c->shape.group * q_bytes;
        }
    }
}
