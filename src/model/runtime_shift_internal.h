/* runtime_shift_internal.h - the parts of a move of tokens; for src/model/runtime_shift*.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_SHIFT_INTERNAL_H
#define QUIRE_MODEL_RUNTIME_SHIFT_INTERNAL_H

#include "model/rope_frequencies.h"
#include "model/runtime_shift.h"
#include "model/runtime_tiles.h"

typedef struct quire_shift {
    const quire_runtime *rt;
    quire_seq_table from;
    quire_seq_table to; /* the same sequence, or another */
    uint32_t begin;
    uint32_t delta; /* tokens that leave, from `begin` on */
    bool has_rope;  /* the layer at hand turns K */
    quire_rotation rotation;
    float frequencies[QUIRE_HEAD_DIM_MAX / 2];
    float turns[QUIRE_HEAD_DIM_MAX];
    float *rows; /* [TILE][d_k or d_v] */
    quire_runtime_tiles read;
    quire_runtime_tiles write;
    int status; /* of copies of a device */
    /* Of sealed formats: */
    quire_seq_table from_hot;
    quire_seq_table to_hot;
    quire_runtime_tiles read_hot;
    quire_runtime_tiles write_hot;
} quire_shift;

/* layer il, with tiles of its own, is the one at hand. */
void quire_shift_enter(quire_shift *s, uint32_t il, quire_attn_layer *layer);
/* Turn a row of K as it is stored. turns: quire_rotation_turns(). */
void quire_shift_turn(const quire_shift *s, const quire_attn_source *k, uint32_t d,
                      const float *turns, float *row);
/* K of n tokens in a tile, turned and coded again. */
void quire_shift_k(const quire_shift *s, const quire_attn_layer *layer, const unsigned char *from,
                   unsigned char *to, uint32_t n);

/* ---- runtime_shift_sealed.c: a format is sealed; hot pages that no row reads are gone ---- */

/* The move in place. *has_cut: the sequence was cut. Errors: those of copies, QUIRE_NOMEM. */
int quire_shift_sealed(quire_shift *s, quire_seq_id seq, bool *has_cut);
/* The move into pages of `to`, a fork of `from`: quire_runtime_shift_away(). */
int quire_shift_sealed_away(quire_shift *s, quire_seq_id from, quire_seq_id to, bool *is_torn);

#endif /* QUIRE_MODEL_RUNTIME_SHIFT_INTERNAL_H */
