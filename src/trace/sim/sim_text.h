/* sim_text.h - a text on the tree: the sequence, the held and the published blocks, and the states
 * that the text leaves.
 *
 * States are left where the engine leaves them (engine/loop/loop_states.h), in whole blocks: at the
 * last end of a block before the last token of the prompt, where the text parts from a cached one,
 * every quire_sim_kv.state_every_tokens tokens, and where the text ends.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SIM_TEXT_H
#define QUIRE_TRACE_SIM_TEXT_H

#include "trace/sim/sim_tree.h"

typedef struct quire_sim_text {
    quire_seq_id seq;
    quire_prefix_ref ref;
    uint32_t hit_blocks;
    uint32_t gone_blocks; /* behind the hit, that had been there */
    uint32_t n_published; /* blocks */
    uint32_t ends[2];     /* blocks: with states, the places of one text alone */
} quire_sim_text;

typedef struct quire_sim_text_ask {
    const quire_trace_request *request;
    const int32_t *tokens; /* [n_blocks] pages */
    uint32_t n_blocks;
    uint64_t n_tokens; /* of the trace; with states the last one is computed in any case */
    uint64_t now_us;
    uint8_t rank;
    bool is_uncounted; /* not in the tree's statistics */
} quire_sim_text_ask;

/* Open a sequence with the part of the text that the tree has. Errors: as the core's; then there is
 * no sequence. */
int quire_sim_text_begin(quire_sim_tree *tree, const quire_sim_text_ask *ask, quire_sim_text *text);

/* Hold n_blocks blocks. Pages behind the window are let go first. Errors: as quire_seq_append(). */
int quire_sim_text_grow(quire_sim_tree *tree, quire_sim_text *text, uint32_t n_blocks);

/* Let go of the page of a block in layers with windows, where there are such. Errors: as
 * quire_seq_release(). */
int quire_sim_text_window_leave(quire_sim_tree *tree, quire_sim_text *text, uint32_t block);

/* The most blocks that a text may hit: with states those before its last token. */
uint32_t quire_sim_text_hits_max(const quire_sim_tree *tree, const quire_sim_text_ask *ask);

/* Make the first n_blocks blocks known, which the text holds. */
int quire_sim_text_publish(quire_sim_tree *tree, quire_sim_text *text, const int32_t *tokens,
                           uint32_t n_blocks, uint64_t now_us);

/* The next place behind n_blocks blocks at which the text leaves a state; UINT32_MAX without
 * states. */
uint32_t quire_sim_text_next(const quire_sim_tree *tree, const quire_sim_text *text,
                             uint32_t n_blocks);

/* Leave a state behind the published blocks, if that is one of the places, or the text ends. */
void quire_sim_text_state(quire_sim_tree *tree, const quire_sim_text *text, uint32_t n_blocks,
                          bool is_end);

/* Release the sequence and the nodes that the text holds. */
void quire_sim_text_end(quire_sim_tree *tree, quire_sim_text *text, uint64_t now_us);

#endif /* QUIRE_TRACE_SIM_TEXT_H */
