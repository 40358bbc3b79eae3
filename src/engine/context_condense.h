/* context_condense.h - a full context is condensed: the oldest tokens keep a share, chosen by a
 * policy for each lane, and the others move to lower positions.
 *
 *   before   [ keep | old, half of the rest      | recent, the other half ]   the context is full
 *   after    [ keep | kept ones of old | recent            ]
 *
 * The first tokens are kept exactly, byte for byte. All lanes keep the same number of old tokens,
 * so each token's position is its place in the sequence, as after `shift`. The K of a token that
 * moves is turned by the difference of its positions. The places and the choices depend on the text
 * alone.
 *
 * The next condensing reads the kept ones and the oldest of the recent ones: a token may stay
 * through many of them (generations), with a rounding of its K each time it moves.
 *
 * The policies are those that score by keys or positions: keydiff, window, last, stride, random.
 * The mean of keydiff is that of the old tokens.
 *
 * Thread: any; quire_context_condense(): the owner of the runtime.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CONTEXT_CONDENSE_H
#define QUIRE_ENGINE_CONTEXT_CONDENSE_H

#include "model/context_overflow.h"
#include "model/runtime.h"
#include "quire/error.h"
#include "retain/policy.h"

#define QUIRE_CONTEXT_RETAIN "keydiff:0.5" /* the policy where none is given */

/* QUIRE_CONTEXT_RETAIN, parsed. */
void quire_context_condense_default(quire_retain_spec *out);

/* Whether full contexts can be condensed by a policy. `setting` begins the message:
 * "--context-overflow", or "context_overflow:". Errors: QUIRE_UNSUPP; err names the policy or the
 * parameter. */
int quire_context_condense_policy_check(const quire_retain_spec *spec, const char *setting,
                                        quire_error *err);

/* Whether those of a runtime can, with `keep` first tokens kept. spec: NULL = the default. Errors:
 * also those of quire_context_overflow_check(), QUIRE_UNSUPP (the model), QUIRE_INVAL (no room for
 * the kept and the recent tokens). */
int quire_context_condense_check(const quire_context_on *on, const quire_retain_spec *spec,
                                 uint32_t keep, quire_error *err);

/* `keep` first tokens, and the policy's sinks, in whole tiles. */
uint32_t quire_context_condense_keep(const quire_retain_spec *spec, uint32_t keep);

/* Tokens behind the first n_keep ones of a sequence of n_held: multiples of QUIRE_TILE_TOKENS. */
typedef struct quire_context_sizes {
    uint32_t n_old;
    uint32_t n_kept; /* of n_old, in each lane: the policy's share, and at least 64 fewer */
} quire_context_sizes;
quire_context_sizes quire_context_condense_sizes(const quire_retain_spec *spec, uint32_t n_keep,
                                                 uint32_t n_held);

/* Condense a sequence, whose pages from n_keep on no other holder has or relies on. n_keep as by
 * quire_context_condense_keep(). Errors: QUIRE_NOMEM, QUIRE_LOST; then nothing has changed, unless
 * *is_torn (quire_runtime_thin()). */
int quire_context_condense(const quire_retain_spec *spec, quire_runtime *runtime, quire_seq_id seq,
                           uint32_t n_keep, bool *is_torn);

#endif /* QUIRE_ENGINE_CONTEXT_CONDENSE_H */
