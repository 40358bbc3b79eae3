/* sim_choice.h - the device of a request, by the rule of the server (engine/dispatch/dispatcher.h):
 * the device with the least work before the request's first token.
 *
 * Thread: owner of the trees.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SIM_CHOICE_H
#define QUIRE_TRACE_SIM_CHOICE_H

#include <stdbool.h>

#include "trace/sim/sim_tree.h"

/* As in the server: QUIRE_DISPATCH_REQUEST_TOKENS and QUIRE_TIER_FETCH_SHARE. */
#define QUIRE_SIM_REQUEST_TOKENS 64u
#define QUIRE_SIM_FETCH_SHARE    0.5

/* A device, as far as it matters to a request. */
typedef struct quire_sim_offer {
    uint64_t work;       /* tokens */
    uint32_t n_cached;   /* blocks of the prompt in the device's memory */
    uint32_t n_requests; /* that wait or run there */
    uint64_t n_blocks;   /* HITS: that it has computed; TIME: that are cached there */
} quire_sim_offer;

bool quire_sim_offer_is_better(const quire_sim_offer *a, const quire_sim_offer *b);

/* Tokens of the request's prompt behind its first n_blocks blocks. */
uint32_t quire_sim_tokens_behind(const quire_trace *trace, const quire_trace_request *request,
                                 uint64_t n_blocks);

/* Blocks of the request's prompt that a device has cached. Time is set first: expired blocks are
 * none. The prompt is not longer than the tree's texts. */
uint32_t quire_sim_cached_blocks(quire_sim_tree *tree, const quire_trace *trace,
                                 const quire_trace_request *request, uint64_t now_us);

#endif /* QUIRE_TRACE_SIM_CHOICE_H */
