/* layout.c - where each weight lies, and its first value; see shape.h.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/rng.h"
#include "train/shape.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_OF_ALL   3u  /* embedding, last norm, output */
#define TENSORS_OF_BLOCK 21u /* at most */

/* Add a tensor to the list; returns its place. */
__attribute__((format(printf, 4, 5))) static size_t add(quire_train_layout *l,
                                                        quire_weight_kind kind,
                                                        const uint32_t rows_cols[2],
                                                        const char *format, ...)
{
    quire_train_tensor *t = &l->tensors[l->n_tensors++];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(t->name, sizeof(t->name), format, args);
    va_end(args);
    t->kind = kind;
    t->n_rows = rows_cols[0];
    t->n_cols = rows_cols[1];
    t->n_sources = 1;
    t->at = l->n_parameters;
    l->n_parameters += (size_t)t->n_rows * t->n_cols;
    return t->at;
}

#define VECTOR(n)          ((const uint32_t[2]){ 1, (n) })
#define MATRIX(rows, cols) ((const uint32_t[2]){ (rows), (cols) })

static void add_gates(quire_train_layout *l, const quire_train_shape *s, uint32_t layer, char side,
                      size_t at[2])
{
    const int32_t *sources = side == 'k' ? s->source_k[layer] : s->source_v[layer];
    bool is_gated = side == 'k' ? s->is_gated_k[layer] : s->is_gated_v[layer];
    uint32_t n_sources = sources[1] >= 0 ? 2 : 1;
    uint32_t size = quire_train_gate_size(s);

    for (uint32_t i = 0; i < 2; i++) {
        at[i] = QUIRE_TRAIN_ABSENT;
        if (is_gated && i < n_sources) {
            at[i] = add(l, QUIRE_WEIGHT_GATE,
                        s->gate_form == QUIRE_GATE_HEADS ? MATRIX(s->n_kv_head, s->d_head)
                                                         : VECTOR(size),
                        "blk.%u.attn_%c_gate.%u", layer, side, i);
            l->tensors[l->n_tensors - 1].n_sources = n_sources;
        }
    }
}

static size_t add_bias(quire_train_layout *l, const quire_train_shape *s, uint32_t layer, char side)
{
    uint32_t n_heads = side == 'q' ? s->n_head : s->n_kv_head;

    return s->has_qkv_bias ? add(l, QUIRE_WEIGHT_BIAS, VECTOR(n_heads * s->d_head),
                                 "blk.%u.attn_%c.bias", layer, side)
                           : QUIRE_TRAIN_ABSENT;
}

static void add_attention(quire_train_layout *l, const quire_train_shape *s, uint32_t layer)
{
    quire_train_block *b = &l->blocks[layer];
    uint32_t q_size = s->n_head * s->d_head, kv_size = s->n_kv_head * s->d_head;

    b->k = b->v = b->q_norm = b->k_norm = b->k_mix = b->v_mix = QUIRE_TRAIN_ABSENT;
    b->k_bias = b->v_bias = QUIRE_TRAIN_ABSENT;
    b->attn_norm = add(l, QUIRE_WEIGHT_NORM, VECTOR(s->d_model), "blk.%u.attn_norm.weight", layer);
    b->q = add(l, QUIRE_WEIGHT_MATRIX, MATRIX(q_size, s->d_model), "blk.%u.attn_q.weight", layer);
    b->q_bias = add_bias(l, s, layer, 'q');
    if (quire_train_stores_k(s, layer)) {
        b->k =
            add(l, QUIRE_WEIGHT_MATRIX, MATRIX(kv_size, s->d_model), "blk.%u.attn_k.weight", layer);
        b->k_bias = add_bias(l, s, layer, 'k');
    }
    if (quire_train_stores_v(s, layer)) {
        b->v =
            add(l, QUIRE_WEIGHT_MATRIX, MATRIX(kv_size, s->d_model), "blk.%u.attn_v.weight", layer);
        b->v_bias = add_bias(l, s, layer, 'v');
    }
    if (s->has_qk_norm) {
        b->q_norm =
            add(l, QUIRE_WEIGHT_NORM, VECTOR(s->d_head), "blk.%u.attn_q_norm.weight", layer);
        if (quire_train_stores_k(s, layer)) {
            b->k_norm =
                add(l, QUIRE_WEIGHT_NORM, VECTOR(s->d_head), "blk.%u.attn_k_norm.weight", layer);
        }
    }
    add_gates(l, s, layer, 'k', b->k_gate);
    add_gates(l, s, layer, 'v', b->v_gate);
    if (s->is_mixed_k[layer]) {
        b->k_mix = add(l, QUIRE_WEIGHT_MIX, VECTOR(2), "blk.%u.attn_k_mix", layer);
    }
    if (s->is_mixed_v[layer]) {
        b->v_mix = add(l, QUIRE_WEIGHT_MIX, VECTOR(2), "blk.%u.attn_v_mix", layer);
    }
    b->out = add(l, QUIRE_WEIGHT_RESIDUAL, MATRIX(s->d_model, q_size), "blk.%u.attn_output.weight",
                 layer);
}

static void add_ffn(quire_train_layout *l, const quire_train_shape *s, uint32_t layer)
{
    quire_train_block *b = &l->blocks[layer];

    b->ffn_norm = add(l, QUIRE_WEIGHT_NORM, VECTOR(s->d_model), "blk.%u.ffn_norm.weight", layer);
    b->gate =
        add(l, QUIRE_WEIGHT_MATRIX, MATRIX(s->d_ff, s->d_model), "blk.%u.ffn_gate.weight", layer);
    b->up = add(l, QUIRE_WEIGHT_MATRIX, MATRIX(s->d_ff, s->d_model), "blk.%u.ffn_up.weight", layer);
    b->down =
        add(l, QUIRE_WEIGHT_RESIDUAL, MATRIX(s->d_model, s->d_ff), "blk.%u.ffn_down.weight", layer);
}

int quire_train_layout_init(quire_train_layout *l, const quire_train_shape *s)
{
    memset(l, 0, sizeof(*l));
    l->tensors =
        calloc(TENSORS_OF_ALL + (size_t)s->n_layer * TENSORS_OF_BLOCK, sizeof(*l->tensors));
    l->blocks = calloc(s->n_layer, sizeof(*l->blocks));
    if (l->tensors == NULL || l->blocks == NULL) {
        quire_train_layout_fini(l);
        return QUIRE_NOMEM;
    }
    l->embedding = add(l, QUIRE_WEIGHT_MATRIX, MATRIX(s->n_vocab, s->d_model), "token_embd.weight");
    for (uint32_t layer = 0; layer < s->n_layer; layer++) {
        add_attention(l, s, layer);
        add_ffn(l, s, layer);
    }
    l->out_norm = add(l, QUIRE_WEIGHT_NORM, VECTOR(s->d_model), "output_norm.weight");
    l->output = l->embedding;
    if (!s->is_tied) {
        l->output = add(l, QUIRE_WEIGHT_MATRIX, MATRIX(s->n_vocab, s->d_model), "output.weight");
    }
    return QUIRE_OK;
}

void quire_train_layout_fini(quire_train_layout *l)
{
    free(l->tensors);
    free(l->blocks);
    memset(l, 0, sizeof(*l));
}

/* The first value of element j of a tensor that does not begin with random numbers. */
static double plain_value(const quire_train_tensor *t, size_t j)
{
    switch (t->kind) {
    case QUIRE_WEIGHT_MIX:
        return (double)j;
    case QUIRE_WEIGHT_BIAS:
        return 0;
    default:
        return 1.0 / t->n_sources;
    }
}

void quire_train_weights_init(const quire_train_layout *l, const quire_train_shape *s,
                              uint64_t seed, float *parameters)
{
    quire_rng rng = { seed };

    for (uint32_t i = 0; i < l->n_tensors; i++) {
        const quire_train_tensor *t = &l->tensors[i];
        double deviation = 0.02;

        if (t->kind == QUIRE_WEIGHT_RESIDUAL) {
            deviation /= sqrt(2.0 * s->n_layer);
        }
        for (size_t j = 0; j < (size_t)t->n_rows * t->n_cols; j++) {
            bool is_random = t->kind == QUIRE_WEIGHT_MATRIX || t->kind == QUIRE_WEIGHT_RESIDUAL;

            parameters[t->at + j] =
                (float)(is_random ? deviation * quire_rng_normal(&rng) : plain_value(t, j));
        }
    }
}
