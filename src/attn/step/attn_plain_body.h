/* attn_plain_body.h - the short way through a tile that all rows of a block see whole.
 *
 * Most tiles of most layers are such: one K, one V, no softcap, no window that ends in the tile,
 * and stored in main pages. All that kernels are told is then the same from tile to tile, but for
 * the tiles' addresses, and is worked out once for a split. The general way (attn_rows_body.h)
 * makes the same calls in the same order.
 *
 * Code of attn_block.c, which alone includes it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_PLAIN_BODY_H
#define QUIRE_ATTN_PLAIN_BODY_H

#include "attn/step/attn_rows_body.h"

/* Arguments of the kernels for a block's plain tiles; addresses are set by tile and kv head. */
typedef struct plain_calls {
    bool is_made;
    bool is_weighed;
    uint32_t slot_end; /* that ctx.slot_end is filled with; 0: with others */
    size_t q_step;     /* bytes of a kv head's packed queries */
    quire_attn_softmax *softmax;
    quire_attn_qk qk;
    quire_attn_weigh weigh;
    quire_attn_pv pv;
} plain_calls;

/* Make the calls for the rows of a block in a layer for which is_plain() holds. */
static void make_calls(const quire_attn_ctx *c, const quire_attn_block *b, plain_calls *calls)
{
    const quire_attn_layer *layer = c->layer;
    const quire_attn_tile_run run = { .hot = &no_hot };

    quire_attn_pack_queries(c, b, QUIRE_ATTN_PACKED_MAIN, 0);
    calls->is_made = true;
    calls->is_weighed = is_weighed(c, &run, 0);
    calls->slot_end = 0;
    calls->q_step = b->head_rows * c->shape.k[0].q_bytes;
    calls->softmax = softmax_of(c, &run);
    calls->qk = (quire_attn_qk){ .format = layer->k[0].format,
                                 .d = layer->d_k,
                                 .n_rows = b->head_rows,
                                 .next_to = c->ahead_to };
    calls->weigh = (quire_attn_weigh){ .n_rows = b->head_rows };
    calls->pv = (quire_attn_pv){ .format = layer->v[0].format,
                                 .d = layer->d_v,
                                 .n_rows = b->head_rows,
                                 .o_stride = c->shape.o_stride,
                                 .next_to = c->ahead_to };
}

/* Whether the block's tiles in main pages, seen whole, can go the short way. */
static bool is_plain(const quire_attn_ctx *c, const quire_attn_block *b)
{
    const quire_attn_layer *layer = c->layer;
    const quire_attn_tile_run run = { .hot = &no_hot, .end_row = b->head_rows };

    return layer->n_k == 1 && layer->n_v == 1 && !c->shape.has_tables && layer->softcap == 0.0f &&
           !is_ahead_shared(c, b, &run);
}

static void fill_slot_end(const quire_attn_ctx *c, const quire_attn_block *b, uint32_t end,
                          plain_calls *calls)
{
    for (uint32_t r = 0; r < b->n_rows; r++) {
        c->slot_end[r] = end;
    }
    calls->slot_end = end;
}

static void plain_qk(const quire_attn_ctx *c, const quire_attn_block *b,
                     const quire_attn_tile_pair *tiles, plain_calls *calls)
{
    quire_attn_qk *qk = &calls->qk;

    qk->packed = c->packed[QUIRE_ATTN_PACKED_MAIN][0];
    qk->s = c->logits;
    for (uint32_t head = 0; head < b->n_heads; head++) {
        qk->k_tile = tiles->at[head];
        qk->next = tiles->at[head + tiles->ahead];
        c->ws->kernels->qk(qk);
        qk->packed = (const unsigned char *)qk->packed + calls->q_step;
        qk->s += (size_t)b->head_rows * QUIRE_TILE_TOKENS;
    }
}

static void plain_weigh(const quire_attn_ctx *c, const quire_attn_block *b,
                        const quire_attn_tile_pair *tiles, plain_calls *calls)
{
    quire_attn_weigh *weigh = &calls->weigh;

    weigh->slot_begin = tiles->pos.slot_begin;
    weigh->slot_end = calls->slot_end;
    weigh->p = c->logits;
    weigh->weights = c->weights;
    for (uint32_t head = 0; head < b->n_heads; head++) {
        weigh->v_tile = tiles->at[b->n_heads + head];
        c->ws->kernels->weigh(weigh);
        weigh->p += (size_t)b->head_rows * QUIRE_TILE_TOKENS;
        weigh->weights += b->head_rows;
    }
}

static void plain_pv(const quire_attn_ctx *c, const quire_attn_block *b,
                     const quire_attn_tile_pair *tiles, plain_calls *calls,
                     const quire_attn_state *st)
{
    quire_attn_pv *pv = &calls->pv;

    pv->slot_begin = tiles->pos.slot_begin;
    pv->slot_end = calls->slot_end;
    pv->p = c->logits;
    pv->weights = c->weights;
    pv->rescale = c->rescale;
    pv->o = st->o;
    for (uint32_t head = 0; head < b->n_heads; head++) {
        pv->v_tile = tiles->at[b->n_heads + head];
        pv->next = tiles->at[b->n_heads + head + tiles->ahead];
        c->ws->kernels->pv(pv);
        pv->p += (size_t)b->head_rows * QUIRE_TILE_TOKENS;
        pv->weights += b->head_rows;
        pv->rescale += b->head_rows;
        pv->o += b->head_rows * c->shape.o_stride;
    }
}

static void run_plain_tile(const quire_attn_ctx *c, const quire_attn_block *b,
                           const quire_attn_tile_pair *tiles, plain_calls *calls,
                           const quire_attn_state *st)
{
    const uint32_t end = tiles->pos.slot_begin + tiles->pos.n_slots;

    if (!calls->is_made) {
        make_calls(c, b, calls);
    }
    if (calls->slot_end != end) {
        fill_slot_end(c, b, end, calls);
    }
    plain_qk(c, b, tiles, calls);
    if (tiles->pos.biases != NULL) {
        add_biases(c, &tiles->pos, 0, b->n_rows);
    }
    calls->softmax(b->n_rows, tiles->pos.slot_begin, c->slot_end, c->logits, st->m, st->l,
                   c->rescale);
    if (calls->is_weighed) {
        plain_weigh(c, b, tiles, calls);
    }
    plain_pv(c, b, tiles, calls, st);
}

#endif /* QUIRE_ATTN_PLAIN_BODY_H */
