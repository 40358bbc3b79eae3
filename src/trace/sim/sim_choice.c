/* sim_choice.c - see sim_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim_choice.h"

bool quire_sim_offer_is_better(const quire_sim_offer *a, const quire_sim_offer *b)
{
    if (a->work != b->work) {
        return a->work < b->work;
    }
    if (a->n_cached != b->n_cached) {
        return a->n_cached > b->n_cached;
    }
    return a->n_requests != b->n_requests ? a->n_requests < b->n_requests
                                          : a->n_blocks < b->n_blocks;
}

uint32_t quire_sim_tokens_behind(const quire_trace *trace, const quire_trace_request *request,
                                 uint64_t n_blocks)
{
    const uint64_t n = n_blocks * trace->block_tokens;

    return n < request->n_input_tokens ? request->n_input_tokens - (uint32_t)n : 0;
}

uint32_t quire_sim_cached_blocks(quire_sim_tree *t, const quire_trace *trace,
                                 const quire_trace_request *request, uint64_t now_us)
{
    quire_prefix_match match;

    quire_sim_tree_tick(t, now_us);
    quire_prefix_lookup(
        t->tree, &quire_sim_key,
        quire_sim_tree_text(t, quire_trace_blocks(trace, request), request->n_blocks),
        request->n_blocks * QUIRE_PAGE_TOKENS_MIN, &match);
    return match.n_tokens / QUIRE_PAGE_TOKENS_MIN;
}
