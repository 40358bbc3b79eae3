/* attn_rows_body.h - one tile for the rows of a block that read it alike: logits, weights, outputs.
 *
 * Code of attn_block.c alone, so that the compiler can inline the functions that run for each tile.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_ROWS_BODY_H
#define QUIRE_ATTN_ROWS_BODY_H

#include "attn/step/attn_rows.h"
#include "base/num.h"
#include "codec/half.h"
#include "codec/sealed.h"

#include <math.h>
#include <string.h>

/* Blocks that share the prefetches of bf16 tiles, and rows between them. More rows take longer than
 * memory does: prefill of 96 rows by block lost 4 %, a cascade of 24 gained 5. */
#define SHARED_AHEAD_ROWS_MIN 16u
#define SHARED_AHEAD_ROWS_MAX 48u
#define SHARED_AHEAD_STEP     4u

static const quire_attn_hot_pages no_hot;

/* The format in which a run reads K's only source, in a layer with v_prefix_of_k. */
static quire_format prefix_format(const quire_attn_ctx *c, const quire_attn_tile_run *run)
{
    return run->hot->at[c->shape.k[0].hot] != NULL ? QUIRE_FORMAT_HOT : c->layer->k[0].format;
}

/* The V tile of a K tile, in a layer with v_prefix_of_k. */
static const void *v_of_k(const quire_attn_ctx *c, const quire_attn_tile_run *run,
                          const void *k_tile)
{
    c->ws->codec->v_of_k(prefix_format(c, run), c->layer->d_k, c->layer->d_v, k_tile, c->decoded);
    return c->decoded;
}

/* c->row = the mean of a sealed K tile, which the V tile lacks, as long as a row of o. */
static void mean_take(const quire_attn_ctx *c, const void *k_tile)
{
    const uint16_t *mean =
        (const uint16_t *)(const void *)((const char *)k_tile + QUIRE_SEALED_SCALES_BYTES);

    for (uint32_t i = 0; i < c->shape.o_stride; i++) {
        c->row[i] = i < c->layer->d_v ? quire_f16_to_f32(mean[i]) : 0.0f;
    }
}

/* Add the mean to rows of o, times the sum of the row's weights. */
static void mean_add(const quire_attn_ctx *c, const quire_attn_pv *args)
{
    for (uint32_t r = 0; r < args->n_rows; r++) {
        const float *p = args->p + (size_t)r * QUIRE_TILE_TOKENS;
        float sum = 0.0f;

        for (uint32_t t = args->slot_begin; t < args->slot_end; t++) {
            sum += p[t];
        }
        c->ws->kernels->fold(c->shape.o_stride, 1.0f, sum, args->o + r * args->o_stride, c->row);
    }
}

/* Whether a run reads V source v hot. */
static bool is_v_hot(const quire_attn_ctx *c, const quire_attn_tile_run *run, uint32_t v)
{
    return run->hot->at[c->shape.v[v].hot] != NULL;
}

/* The format of V that a run multiplies its weights with. */
static quire_format v_format(const quire_attn_ctx *c, const quire_attn_tile_run *run, uint32_t v)
{
    if (c->layer->v_prefix_of_k) {
        const quire_format format = prefix_format(c, run);

        return quire_format_is_sealed(format) ? QUIRE_FORMAT_Q8 : format;
    }
    return is_v_hot(c, run, v) ? QUIRE_FORMAT_HOT : c->layer->v[v].format;
}

/* Where at[] has source v of V of the block's kv head `head`. */
static uint32_t v_place(const quire_attn_ctx *c, const quire_attn_block *b, uint32_t head,
                        uint32_t v)
{
    return b->n_heads * (c->layer->n_k + v) + head;
}

/* Whether weights against V source v are made before pv, of all kv heads. */
static bool is_weighed(const quire_attn_ctx *c, const quire_attn_tile_run *run, uint32_t v)
{
    return c->shape.weights_bytes > 0 && quire_format_is_sealed(v_format(c, run, v));
}

static void run_weigh(const quire_attn_ctx *c, const quire_attn_block *b,
                      const quire_attn_tile_pair *tiles, const quire_attn_tile_run *run,
                      uint32_t head, uint32_t v)
{
    const uint32_t first = head * b->head_rows + run->first_row;
    const uint32_t end = head * b->head_rows + run->end_row;
    const quire_attn_weigh args = { .n_rows = end - first,
                                    .slot_begin = run->slot_begin,
                                    .slot_end = c->slot_end[end - 1],
                                    .p = c->logits + (size_t)first * QUIRE_TILE_TOKENS,
                                    .v_tile = tiles->at[v_place(c, b, head, v)],
                                    .weights = c->weights + first };

    c->ws->kernels->weigh(&args);
}

/* Whether a run, whose rows are set, shares its prefetches out. */
static bool is_ahead_shared(const quire_attn_ctx *c, const quire_attn_block *b,
                            const quire_attn_tile_run *run)
{
    const quire_attn_layer *layer = c->layer;

    return c->ws->kernels->shares_ahead && b->n_heads == 1 && run->first_row == 0 &&
           run->end_row == b->n_rows && b->n_rows >= SHARED_AHEAD_ROWS_MIN &&
           b->n_rows <= SHARED_AHEAD_ROWS_MAX && layer->k[0].format == QUIRE_FORMAT_BF16 &&
           layer->v[0].format == QUIRE_FORMAT_BF16 && layer->d_k == layer->d_v && layer->n_k == 1 &&
           layer->n_v == 1 && !layer->v_prefix_of_k && layer->softcap == 0.0f;
}

/* The slots of V that some rows of a run see and others do not: of no concern to the others, unless
 * they hold NaN or an infinity. */
static bool is_v_safe(const quire_attn_ctx *c, const quire_attn_tile_run *run,
                      const quire_attn_pv *args, uint32_t end_min, uint32_t end_max)
{
    return (end_min == end_max || quire_attn_tile_v_is_finite(args->format, c->layer->d_v,
                                                              args->v_tile, end_min, end_max)) &&
           (run->slot_begin == run->slot_begin_max ||
            quire_attn_tile_v_is_finite(args->format, c->layer->d_v, args->v_tile, run->slot_begin,
                                        run->slot_begin_max));
}

/* o += P V of source v for the rows of a run of kv head `head`. When they see different slots and V
 * is damaged where they differ, rows go by query, so that a NaN of a token that others see stays
 * out of them. */
static void run_pv(const quire_attn_ctx *c, const quire_attn_block *b,
                   const quire_attn_tile_pair *tiles, const quire_attn_tile_run *run, uint32_t head,
                   uint32_t v, const quire_attn_state *st)
{
    const quire_attn_layer *layer = c->layer;
    const uint32_t first = head * b->head_rows + run->first_row;
    const uint32_t end = head * b->head_rows + run->end_row;
    quire_attn_pv args = { .format = v_format(c, run, v),
                           .d = layer->d_v,
                           .o_stride = c->shape.o_stride,
                           .next_to = c->ahead_to,
                           .next_in_part = run->shares_ahead,
                           .slot_begin = run->slot_begin };
    const bool has_mean = layer->v_prefix_of_k && quire_format_is_sealed(prefix_format(c, run));
    bool is_safe;

    if (layer->v_prefix_of_k) {
        args.v_tile = v_of_k(c, run, tiles->at[head]);
    } else {
        args.v_tile = tiles->at[v_place(c, b, head, v)];
        args.next = tiles->at[v_place(c, b, head, v) + tiles->ahead];
    }
    if (has_mean) {
        mean_take(c, tiles->at[head]);
    }
    is_safe = is_v_safe(c, run, &args, c->slot_end[first], c->slot_end[end - 1]);
    args.n_rows = is_safe ? end - first : c->shape.group;
    for (uint32_t r = first; r < end; r += args.n_rows) {
        if (!is_safe) {
            args.slot_begin = quire_attn_slot_begin(c, &tiles->pos,
                                                    &b->queries[r % b->head_rows / c->shape.group]);
        }
        args.p = c->logits + (size_t)r * QUIRE_TILE_TOKENS;
        args.weights = c->weights + r;
        args.rescale = c->rescale + r;
        args.slot_end = c->slot_end[r + args.n_rows - 1];
        args.o = st->o + ((size_t)v * b->n_rows + r) * c->shape.o_stride;
        c->ws->kernels->pv(&args);
        if (has_mean) {
            mean_add(c, &args);
        }
    }
}

static void run_qk(const quire_attn_ctx *c, const quire_attn_block *b,
                   const quire_attn_tile_pair *tiles, const quire_attn_tile_run *run, uint32_t head)
{
    const quire_attn_layer *layer = c->layer;
    const uint32_t first = head * b->head_rows + run->first_row;
    quire_attn_qk args = { .d = layer->d_k,
                           .n_rows = run->end_row - run->first_row,
                           .next_to = c->ahead_to,
                           .next_in_part = run->shares_ahead,
                           .s = c->logits + (size_t)first * QUIRE_TILE_TOKENS };

    for (uint32_t k = 0; k < layer->n_k; k++) {
        const quire_attn_source_shape *shape = &c->shape.k[k];
        const bool is_hot = run->hot->at[shape->hot] != NULL;
        const uint32_t form = is_hot ? QUIRE_ATTN_PACKED_HOT : QUIRE_ATTN_PACKED_MAIN;

        args.format = is_hot ? QUIRE_FORMAT_HOT : layer->k[k].format;
        args.accumulate = k > 0;
        args.packed = c->packed[form][k] + first * (is_hot ? shape->q_hot_bytes : shape->q_bytes);
        args.k_tile = tiles->at[head * layer->n_k + k];
        args.next = tiles->at[head * layer->n_k + k + tiles->ahead];
        c->ws->kernels->qk(&args);
    }
}

/* In which form V wants its weights. */
static quire_attn_softmax *softmax_of(const quire_attn_ctx *c, const quire_attn_tile_run *run)
{
    const quire_attn_kernels *kernels = c->ws->kernels;
    bool is_bf16 = kernels->softmax_bf16 != NULL && !c->shape.has_mixed_v &&
                   v_format(c, run, 0) == QUIRE_FORMAT_BF16;

    return is_bf16 ? kernels->softmax_bf16 : kernels->softmax;
}

/* The softmax of rows [first, end). */
static void run_softmax(const quire_attn_ctx *c, const quire_attn_tile_run *run, uint32_t first,
                        uint32_t end, const quire_attn_state *st)
{
    softmax_of(c, run)(end - first, run->slot_begin, c->slot_end + first,
                       c->logits + (size_t)first * QUIRE_TILE_TOKENS, st->m + first, st->l + first,
                       c->rescale + first);
}

/* One of n_steps parts of the last quarter of a tile. */
static void prefetch_part(const quire_attn_ctx *c, const void *tile, size_t tile_bytes,
                          uint32_t step, uint32_t n_steps)
{
    const uint32_t n_lines = (uint32_t)(tile_bytes / 4 / 64);
    const uint32_t first = n_lines * step / n_steps;
    const uint32_t end = n_lines * (step + 1) / n_steps;

    if (tile != NULL) {
        quire_prefetch_lines((const char *)tile + tile_bytes -
                                 QUIRE_PREFETCH_LINE * (n_lines - first),
                             end - first, c->ahead_to);
    }
}

/* The same of a run that shares the next tiles' prefetches: lines of them before every few rows. */
static void run_softmax_ahead(const quire_attn_ctx *c, const quire_attn_tile_pair *tiles,
                              const quire_attn_tile_run *run, const quire_attn_state *st)
{
    const uint32_t n_steps = quire_attn_ceil_div(run->end_row, SHARED_AHEAD_STEP);

    for (uint32_t step = 0; step < n_steps; step++) {
        const uint32_t first = step * SHARED_AHEAD_STEP;

        prefetch_part(c, tiles->at[tiles->ahead], c->tile_bytes, step, n_steps);
        prefetch_part(c, tiles->at[1 + tiles->ahead], c->tile_bytes, step, n_steps);
        run_softmax(c, run, first, quire_min_u32(first + SHARED_AHEAD_STEP, run->end_row), st);
    }
}

/* Cap the logits of rows [first, end), and hide the tokens behind the rows' windows. */
static void bound_logits(const quire_attn_ctx *c, const quire_attn_block *b,
                         const quire_attn_tile_pair *tiles, const quire_attn_tile_run *run,
                         uint32_t first, uint32_t end)
{
    float *logits = c->logits + (size_t)first * QUIRE_TILE_TOKENS;

    if (c->layer->softcap != 0.0f) {
        c->ws->kernels->cap((size_t)(end - first) * QUIRE_TILE_TOKENS, c->layer->softcap, logits);
    }
    if (run->slot_begin == run->slot_begin_max) {
        return;
    }
    for (uint32_t r = first; r < end; r++, logits += QUIRE_TILE_TOKENS) {
        const quire_attn_query *query = &b->queries[r % b->head_rows / c->shape.group];
        const uint32_t begin = quire_attn_slot_begin(c, &tiles->pos, query);

        for (uint32_t slot = run->slot_begin; slot < begin; slot++) {
            logits[slot] = -INFINITY;
        }
    }
}

/* Add biases to the logits of rows [first, end). */
static void add_biases(const quire_attn_ctx *c, const quire_attn_tile_pos *pos, uint32_t first,
                       uint32_t end)
{
    for (uint32_t r = first; r < end; r++) {
        float *logits = c->logits + (size_t)r * QUIRE_TILE_TOKENS + pos->slot_begin;

        for (uint32_t i = 0; i < pos->n_slots; i++) {
            logits[i] += pos->biases[i];
        }
    }
}

/* Logits of a run to weights, of rows [first, end). */
static void run_weights(const quire_attn_ctx *c, const quire_attn_block *b,
                        const quire_attn_tile_pair *tiles, const quire_attn_tile_run *run,
                        uint32_t first, uint32_t end, const quire_attn_state *st)
{
    if (c->layer->softcap != 0.0f || run->slot_begin != run->slot_begin_max) {
        bound_logits(c, b, tiles, run, first, end);
    }
    if (tiles->pos.biases != NULL) {
        add_biases(c, &tiles->pos, first, end);
    }
    run_softmax(c, run, first, end, st);
}

/* Weights of V in bf16, as softmax_bf16 leaves them, in the place of floats. */
static void round_weights(const quire_attn_ctx *c, const quire_attn_block *b,
                          const quire_attn_tile_run *run)
{
    for (uint32_t head = 0; head < b->n_heads; head++) {
        for (uint32_t r = run->first_row; r < run->end_row; r++) {
            float *p = c->logits + (size_t)(head * b->head_rows + r) * QUIRE_TILE_TOKENS;
            uint16_t rounded[QUIRE_TILE_TOKENS];

            for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t++) {
                rounded[t] = quire_f32_to_bf16(p[t]);
            }
            memcpy(p, rounded, sizeof(rounded));
        }
    }
}

/* The weights times one source of V. */
static void run_v(const quire_attn_ctx *c, const quire_attn_block *b,
                  const quire_attn_tile_pair *tiles, const quire_attn_tile_run *run, uint32_t v,
                  const quire_attn_state *st)
{
    for (uint32_t head = 0; is_weighed(c, run, v) && head < b->n_heads; head++) {
        run_weigh(c, b, tiles, run, head, v);
    }
    for (uint32_t head = 0; head < b->n_heads; head++) {
        run_pv(c, b, tiles, run, head, v, st);
    }
}

/* Two sources of V, one of them in bf16, which comes last: it wants the weights in another form. */
static void run_mixed_v(const quire_attn_ctx *c, const quire_attn_block *b,
                        const quire_attn_tile_pair *tiles, const quire_attn_tile_run *run,
                        const quire_attn_state *st)
{
    const uint32_t last = v_format(c, run, 0) == QUIRE_FORMAT_BF16 ? 0 : 1;

    run_v(c, b, tiles, run, 1 - last, st);
    round_weights(c, b, run);
    run_v(c, b, tiles, run, last, st);
}

/* Attention of the run's rows over the tile, into *st. slot_end of the rows is set, and tiles->at
 * lists the tile in the forms of run->hot. */
static void rows_run(const quire_attn_ctx *c, const quire_attn_block *b,
                     const quire_attn_tile_pair *tiles, quire_attn_tile_run *run,
                     const quire_attn_state *st)
{
    const uint32_t n = run->end_row - run->first_row;

    run->shares_ahead = is_ahead_shared(c, b, run);
    for (uint32_t k = 0; k < c->layer->n_k; k++) {
        const bool is_hot = run->hot->at[c->shape.k[k].hot] != NULL;

        quire_attn_pack_queries(c, b, is_hot ? QUIRE_ATTN_PACKED_HOT : QUIRE_ATTN_PACKED_MAIN, k);
    }
    for (uint32_t head = 0; head < b->n_heads; head++) {
        run_qk(c, b, tiles, run, head);
    }
    if (run->shares_ahead && run->slot_begin == run->slot_begin_max && tiles->pos.biases == NULL) {
        run_softmax_ahead(c, tiles, run, st);
    } else if (n == b->head_rows) {
        run_weights(c, b, tiles, run, 0, b->n_rows, st);
    } else {
        for (uint32_t head = 0; head < b->n_heads; head++) {
            run_weights(c, b, tiles, run, head * b->head_rows + run->first_row,
                        head * b->head_rows + run->end_row, st);
        }
    }
    if (c->shape.has_mixed_v) {
        run_mixed_v(c, b, tiles, run, st);
        return;
    }
    for (uint32_t v = 0; v < c->shape.n_v; v++) {
        run_v(c, b, tiles, run, v, st);
    }
}

#endif /* QUIRE_ATTN_ROWS_BODY_H */
