/* loop_states.h - states of recurrent layers in the prefix tree: where requests leave them, and how
 * a request begins with one.
 *
 * A hit ends where a state is (quire/prefix.h, "States"), so a request leaves its state where later
 * hits are likely to end:
 *
 *   - at the end of its prompt: the last end of a page before the last token, which the same prompt
 *     computes anyway
 *   - where its prompt parts from a cached text, or from the prompt of a request that waits for it:
 *     at the end of the last page in common
 *   - every state_every_tokens tokens
 *   - at the end of the text of a pin, which the pin then holds
 *   - at the end of its text, when it ends or is preempted, so that the next turn computes its new
 *     tokens only
 *
 * A chunk of prefill ends at such a place, because the runtime has the state of the last token
 * alone. The results do not depend on it. Without recurrent layers these functions do nothing.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_LOOP_STATES_H
#define QUIRE_ENGINE_LOOP_STATES_H

#include "engine/loop/request.h"

/* The request's sequence was filled by a hit: it gets the state there, and the memory for states.
 * Errors: there was no room for the state of a hit. Without a hit the first step asks again. */
int quire_loop_state_begin(quire_loop *loop, quire_request *request,
                           const quire_prefix_match *match);

/* Another request waits until this one has published n_tokens tokens. */
void quire_loop_state_lead(const quire_loop *loop, quire_request *leader, uint32_t n_tokens);

/* How many of the n_left tokens to compute lie in front of the request's next place for a
 * state. */
uint32_t quire_loop_state_until(const quire_loop *loop, const quire_request *request,
                                uint32_t n_left);

/* The request has published its tokens. The request leaves its state if its last token is at one of
 * the places above, or if the text ends here (is_end). */
void quire_loop_state_leave(quire_loop *loop, quire_request *request, bool is_end);

#endif /* QUIRE_ENGINE_LOOP_STATES_H */
