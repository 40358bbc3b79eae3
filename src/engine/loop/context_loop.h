/* context_loop.h - requests whose text is longer than the context: tokens leave their sequence.
 *
 * A request that may overflow (quire_request_params.context_overflow) keeps all of its tokens in
 * quire_request.tokens; its sequence holds fewer. Tokens leave when the sequence has n_ctx of them
 * and the text goes on, and at no other time. So the places depend on the text alone: an answer has
 * the same bits after a hit, after a miss, after a preemption and for every chunk of prefill.
 *
 * The tree keeps the first n_ctx tokens of such a text, published before the first ones leave. From
 * then on the request publishes nothing, because its values depend on tokens that are gone.
 *
 * With QUIRE_CONTEXT_CONDENSE all tokens behind the kept ones get pages of their own first, and
 * then a part of them leaves in place (engine/context_condense.h).
 *
 *   tokens    0 ........ keep ........................ n_ctx ............. n_tokens
 *   sequence  [ kept ] [ leave | move into pages of its own ]
 *             shared with the tree     '--> behind the kept ones
 *
 * Thread: the engine's, unless a function says otherwise.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CONTEXT_LOOP_H
#define QUIRE_ENGINE_CONTEXT_LOOP_H

#include "engine/loop/request.h"

/* The most tokens of a text that overflows so. Thread: any. */
uint32_t quire_loop_text_max(const quire_loop *loop, quire_context_overflow overflow);

/* Before a step: make room in the sequences that fill the context. Returns false when there was no
 * memory for it; a request has then left the running ones, and there is no step in this round. */
bool quire_loop_contexts_clear(quire_loop *loop);

#endif /* QUIRE_ENGINE_CONTEXT_LOOP_H */
