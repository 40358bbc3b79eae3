/* recurrent.h - the states of recurrent layers.
 *
 * A recurrent layer passes a state from token to token, in place of looking back at K and V. The
 * state of a sequence is that of all recurrent layers behind the sequence's last token, in f32. One
 * state has the same size at every length, and the state of a shorter text cannot be computed from
 * that of a longer one. So a sequence with a state can be continued at its end only.
 *
 *   state = { of each recurrent layer, in order:
 *             the last inputs of its convolution, [conv_taps - 1][conv_width],
 *             of a delta net and of Mamba-2 the matrices of the heads,
 *             [n_v_heads][d_state][d_head] }
 *
 * Ownership. A sequence of the cache owns two pages for states, which it takes when it first needs
 * a state (quire_seq_states()), and which go when it closes. One has the state that counts. A step
 * computes the new state into the other one, which counts when the whole step has succeeded: a step
 * that fails or is given up changes nothing. A fork gets a copy. A sequence that was cut or filled
 * in another way than by steps has no state, unless it is empty; the next step refuses it.
 *
 * Results. A row depends on the state before its slice and on the rows of its slice alone, and each
 * number is computed in one fixed order. So the results are the same bits for every split of a text
 * into steps, for every batch and every number of threads.
 *
 * Thread: owner; quire_states_run() results are read by all threads of a step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RECURRENT_H
#define QUIRE_MODEL_RECURRENT_H

#include "model/model.h"
#include "quire/cache.h"
#include "quire/codec.h"

/* The rows of one sequence in a step. */
typedef struct quire_state_run {
    const float *from; /* the state before the first row */
    float *to;         /* gets the state behind the last one; another place than from */
    uint32_t first_row;
    uint32_t n_rows;
} quire_state_run;

typedef struct quire_states quire_states;

/* Floats of the state of one recurrent layer, and of all of them. */
size_t quire_state_layer_floats(const quire_model_desc *desc);
size_t quire_state_floats(const quire_model_desc *desc);

/* Formats of the states that are kept for later texts: QUIRE_FORMAT_F32 and QUIRE_FORMAT_F16. The
 * state of a running sequence is in f32 in either case. */
bool quire_state_format_known(quire_format format);

/* The bytes of a state's numbers in one of these formats. */
size_t quire_state_numbers_bytes(const quire_model_desc *desc, quire_format format);

/* The bytes of a page with a state in one of these formats, a multiple of 64, and of the two pages
 * of a sequence; 0 without recurrent layers. */
size_t quire_state_page_bytes(const quire_model_desc *desc, quire_format format);
uint64_t quire_state_seq_bytes(const quire_model_desc *desc);

/* Between a running state and a kept one, of n numbers. Numbers beyond f16's largest, 65,504, are
 * kept as that. */
void quire_state_encode(quire_format format, const float *from, size_t n, void *to);
void quire_state_decode(quire_format format, const void *from, size_t n, float *to);

/* Create the states of a model with recurrent layers. The cache has pages for states and is
 * borrowed; at most n_seqs_max sequences are open at once. Errors: QUIRE_NOMEM. Memory:
 * quire_states_destroy(). */
int quire_states_create(quire_states **out, const quire_model_desc *desc, quire_cache *cache,
                        uint32_t n_seqs_max);
void quire_states_destroy(quire_states *states);

/* Whether a sequence of n_tokens tokens can be continued. */
bool quire_states_has(const quire_states *states, quire_seq_id seq, uint32_t n_tokens);

/* Make sure that a sequence has its pages. Errors: quire_seq_states(). */
int quire_states_reserve(quire_states *states, quire_seq_id seq);

/* Begin a step: the runs of a sequence that has n_tokens tokens before it. Errors: QUIRE_INVAL (the
 * state of the sequence is not that of its last token), those of quire_seq_states(). */
void quire_states_begin(quire_states *states);
int quire_states_add(quire_states *states, quire_seq_id seq, uint32_t n_tokens, uint32_t n_rows);

/* The runs of the step at hand. */
uint32_t quire_states_n_runs(const quire_states *states);
const quire_state_run *quire_states_run(const quire_states *states, uint32_t i);

/* The step has succeeded: its states count. */
void quire_states_commit(quire_states *states);

/* The state of a sequence, quire_state_floats() floats; NULL when it has none. Memory: borrowed,
 * until the next step or until pages move. */
const float *quire_states_get(const quire_states *states, quire_seq_id seq);

/* Give a sequence of n_tokens tokens a state in one of the formats above, or zeros where `state` is
 * NULL (texts that were not computed). Errors: those of quire_seq_states(). */
int quire_states_set(quire_states *states, quire_seq_id seq, uint32_t n_tokens, quire_format format,
                     const void *state);

#endif /* QUIRE_MODEL_RECURRENT_H */
