/* retention.h - a runtime whose text keeps a share of its tokens, chosen by lane
 * (retain/kept_lanes.h).
 *
 * The text is computed in chunks. Before the tokens held in full become more than a chunk, all
 * tokens so far are condensed to the policy's share. So the KV of a text of N tokens takes the kept
 * share of N and one chunk at most, while it is read and while it is continued. Layers with windows
 * keep their windows instead, and the rows of a step: no policy drops tokens there.
 *
 *   plan       the options of the runtime: kv_elsewhere_bytes, room for rows
 *   open       lanes, as the runtime's device
 *   step       condenses first when the chunk is full, then computes
 *
 * One sequence. No token is computed twice, except with a policy whose worth is repeated: before a
 * condensing the model repeats all tokens held in full, in parts. A part is computed behind the
 * text, after a request to repeat and the tokens before the part, and dropped again. So each token
 * is computed twice, and the runtime has room for a part more than its caller may use.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_RETENTION_H
#define QUIRE_ENGINE_RETENTION_H

#include "model/runtime.h"
#include "retain/kept_lanes.h"

typedef struct quire_retention quire_retention;

typedef struct quire_retention_opts {
    quire_retain_spec spec;
    const quire_predictor *predictor; /* of `predict`; borrowed as long as the retention */
    double attend_share;              /* quire_lanes_opts: quire_retention_attend_from(); 0 = all */
    bool keeps_hidden;                /* for training: quire_lanes_hidden() */
    bool keeps_all;                   /* nothing is condensed: quire_lanes_opts */
    uint32_t chunk;                   /* tokens held in full, at most; at least a step */
    quire_lanes_parallel *parallel;   /* NULL = condense on one thread */
} quire_retention_opts;

/* Positions behind the caller's longest text, for parts that are repeated. */
uint32_t quire_retention_room(const quire_retain_spec *spec);

/* Set kv_elsewhere_bytes of a runtime's options, whose other fields are set (with a device
 * elsewhere_limits, and the buffers in beside_bytes), limit n_batch to the chunk, and add the room
 * to n_ctx, which must not be 0 then. Errors: quire_lanes_check(), QUIRE_UNSUPP (a model whose
 * heads have values of their own, on a device). */
int quire_retention_plan(const quire_model_desc *desc, const quire_retention_opts *opts,
                         quire_runtime_opts *runtime, quire_error *err);

/* Put lanes before a runtime that was created with such options. Errors: quire_lanes_create().
 * Memory: quire_retention_close(), between the last step and the destruction of the runtime. */
int quire_retention_open(quire_retention **out, quire_runtime *runtime,
                         const quire_model_desc *desc, const quire_retention_opts *opts,
                         quire_error *err);
void quire_retention_close(quire_retention *retention);

/* quire_runtime_step() for one slice, of at most a chunk. A step that begins at position 0 begins
 * the text anew. Errors: also quire_lanes_condense(), QUIRE_INVAL (more slices), QUIRE_UNSUPP (the
 * sequence was cut inside its condensed part). */
int quire_retention_step(quire_retention *retention, quire_runtime *runtime,
                         const quire_slice *slices, uint32_t n_slices, const float **logits);

/* Cut the sequence's text before a step: *n_left tokens stay, n_tokens or fewer, behind which
 * another text goes on as if the cut tokens had never been there. They are 0 where the lanes cannot
 * forget the cut ones (quire_lanes_keepable()). Errors: quire_seq_truncate(). */
int quire_retention_truncate(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq,
                             uint32_t n_tokens, uint32_t *n_left);

/* Tokens from this position of the text on choose pages: those behind a prompt of as many tokens,
 * as of requests with attend (engine/condensing.h). Nothing without attend_share. */
void quire_retention_attend_from(quire_retention *retention, uint32_t position);

/* Repeat all tokens held in full, as step() does before a condensing. For training. Errors:
 * quire_runtime_step(). */
int quire_retention_repeat(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq);

/* Between two steps: the state of a sequence's text, `tokens`, sealed. Errors: QUIRE_NOMEM,
 * QUIRE_LIMIT. Memory: quire_block_state_free(), on errors too. */
int quire_retention_save(const quire_retention *retention, const quire_runtime *runtime,
                         const int32_t *tokens, quire_block_state *out);

/* Whether texts of this retention can go on from a state: the same identity of KV, policy, maps and
 * chunk. Errors: QUIRE_INVAL; err says which is another one. */
int quire_retention_state_check(const quire_retention *retention, const quire_runtime *runtime,
                                const quire_block_state *state, quire_error *err);

/* Give an empty sequence the text of a state. The steps that follow give the bits of a text that
 * was computed without a break, if they begin and end at the same tokens. Errors: those of
 * quire_retention_state_check() and quire_seq_reserve(), QUIRE_CORRUPT, QUIRE_LIMIT (longer than
 * the context); then the sequence is empty. */
int quire_retention_load(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq,
                         const quire_block_state *state, quire_error *err);

/* Rows that were computed, of all texts: each token of a text once, unless it begins anew; and
 * those by which the text was repeated. */
typedef struct quire_retention_rows {
    uint64_t of_text;
    uint64_t repeated;
} quire_retention_rows;
quire_retention_rows quire_retention_rows_get(const quire_retention *retention);

/* Whether the policy may drop a token; false with a share of 1, as for texts that only read a share
 * of their pages. */
bool quire_retention_drops(const quire_retention *retention);
const quire_retain_spec *quire_retention_spec(const quire_retention *retention);
quire_lanes *quire_retention_lanes(const quire_retention *retention);

#endif /* QUIRE_ENGINE_RETENTION_H */
