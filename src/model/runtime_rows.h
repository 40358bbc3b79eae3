/* runtime_rows.h - rows of K and V by lane: keys to score tokens by, and copies of chosen rows into
 * another sequence. Condensing a text is made of these (engine/condensing.h).
 *
 * A sequence whose tokens were chosen lane by lane has in each slot of a page a token of its own
 * for each lane. Its K keeps the turn of the token's position in the text. Attention needs no list
 * of positions: all chosen tokens lie before all later ones, and quire_slice.n_gone gives later
 * tokens their positions in the text.
 *
 * Rows of a device pass the host's memory, a piece at a time (core/pool/tile_window.h), and keep
 * their bytes.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_ROWS_H
#define QUIRE_MODEL_RUNTIME_ROWS_H

#include "model/runtime_tiles.h"

/* A KV head of a layer that stores K and V. */
typedef struct quire_runtime_lane {
    uint32_t layer; /* of the model */
    uint32_t head;
} quire_runtime_lane;

/* Two sequences, until either grows or is cut. It stays where it is while it is in use. */
typedef struct quire_runtime_rows {
    const quire_runtime *runtime;
    quire_seq_table from;
    quire_seq_table to;
    quire_runtime_tiles read;
    quire_runtime_tiles write;
    int status; /* of copies of a device */
} quire_runtime_rows;

/* Why kept rows of a text cannot move to the slots of others, byte for byte, as a phrase; NULL:
 * they can. Latent rows can: they are K alone. Of a runtime with these options, with formats by
 * layer (kv_pairs). Memory: static. Thread: any. */
const char *quire_opts_rows_fixed(const quire_model_desc *desc, const quire_runtime_opts *opts);
/* The same for reasons that follow from the model alone. */
const char *quire_desc_rows_fixed(const quire_model_desc *desc);
/* Whether a side of a runtime with these options is sealed: its rows cannot move byte for byte, but
 * are sealed again from their hot pages. */
bool quire_opts_is_sealed(const quire_model_desc *desc, const quire_runtime_opts *opts);
/* The same for tokens that are kept in packed pages, where sealed formats and layers with windows
 * are no reason. */
const char *quire_opts_rows_kept(const quire_model_desc *desc, const quire_runtime_opts *opts);
const char *quire_desc_rows_kept(const quire_model_desc *desc);

/* Layers without a window. */
uint32_t quire_desc_n_unwindowed(const quire_model_desc *desc);
/* Whether attention has values of each head beside the rows: learned sinks, gates of V. */
bool quire_desc_has_own(const quire_model_desc *desc);

/* QUIRE_OK, or QUIRE_UNSUPP: a reason that quire_opts_rows_fixed() names, or latent attention. */
int quire_runtime_rows_check(const quire_runtime *runtime);
/* The same of a runtime that would have these options, with formats by layer. Thread: any. */
int quire_opts_rows_check(const quire_model_desc *desc, const quire_runtime_opts *opts);
/* The part of that check that the model decides: quire_desc_rows_fixed(), and latent attention.
 * Errors: QUIRE_UNSUPP. Thread: any. */
int quire_desc_rows_check(const quire_model_desc *desc);

uint32_t quire_runtime_n_lanes(const quire_runtime *runtime);
/* Lane i < n_lanes, by layer and then by head. */
quire_runtime_lane quire_runtime_lane_at(const quire_runtime *runtime, uint32_t i);

/* Errors: QUIRE_NOTFOUND (a sequence), QUIRE_NOMEM. Memory: quire_runtime_rows_end(), on errors
 * too. */
int quire_runtime_rows_begin(const quire_runtime *runtime, quire_seq_id from, quire_seq_id to,
                             quire_runtime_rows *out);
/* The rows are in their pages. Errors: QUIRE_NOMEM, QUIRE_LOST (a copy of a device failed: keys
 * were zeros from then on, and pages of `to` hold anything). */
int quire_runtime_rows_end(quire_runtime_rows *rows);

/* keys, [n][d_k]: K of the first n tokens of `from` as it is stored, turned and rounded. */
void quire_runtime_rows_keys(quire_runtime_rows *rows, quire_runtime_lane lane, uint32_t n,
                             float *keys);

/* Copy the kept ones of the first n tokens of `from` to the slots of `to` from its first on, byte
 * for byte. `to` has at least as many tokens as are kept. */
void quire_runtime_rows_copy(quire_runtime_rows *rows, quire_runtime_lane lane, const bool *is_kept,
                             uint32_t n);

#endif /* QUIRE_MODEL_RUNTIME_ROWS_H */
