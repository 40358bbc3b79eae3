/* loop_states.c - see loop_states.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_states.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/loop/loop_object.h"
#include "model/runtime_states.h"

static uint32_t page_floor(const quire_loop *loop, uint32_t n_tokens)
{
    return n_tokens - n_tokens % loop->runtime_opts->page_tokens;
}

static bool is_off(const quire_loop *loop, const quire_request *r)
{
    return !quire_runtime_is_recurrent(loop->runtime) || loop->opts.no_prefix_cache ||
           r->kv.ref == QUIRE_PREFIX_REF_NULL;
}

/* A sequence that was filled with n tokens gets the state there. The hit ended at n
 * because of this state. No sequence holds the state, so room for the sequence's own states may
 * have evicted it. Errors: QUIRE_NOPAGES (the state was evicted). */
static int state_load(quire_loop *loop, quire_seq_id seq, quire_prefix_ref ref, uint32_t n)
{
    const quire_page_id page = quire_prefix_state_get(loop->tree, ref, n);

    QUIRE_FAIL_IF(page == QUIRE_PAGE_NULL, QUIRE_NOPAGES);
    QUIRE_TRY(quire_runtime_state_load(loop->runtime, seq, quire_cache_state(loop->cache, page)));
    loop->figures.now.states_used_total++;
    return QUIRE_OK;
}

static void state_save(quire_loop *loop, quire_seq_id seq, quire_prefix_ref ref, uint32_t n)
{
    const quire_page_id page = quire_prefix_state_put(loop->tree, ref, n);

    if (page != QUIRE_PAGE_NULL) {
        quire_runtime_state_save(loop->runtime, seq, quire_cache_state(loop->cache, page));
        loop->figures.now.states_left_total++;
    }
}

int quire_loop_state_begin(quire_loop *loop, quire_request *r, const quire_prefix_match *match)
{
    const int rc = quire_runtime_state_reserve(loop->runtime, r->kv.seq);

    if (is_off(loop, r)) {
        return QUIRE_OK;
    }
    r->kv.state_ends[0] = page_floor(loop, r->n_tokens - 1);
    r->kv.state_ends[1] = page_floor(loop, match->n_same_tokens);
    r->kv.state_ends[2] = 0;
    if (match->n_tokens == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(rc);
    return state_load(loop, r->kv.seq, r->kv.ref, match->n_tokens);
}

void quire_loop_state_lead(const quire_loop *loop, quire_request *leader, uint32_t n_tokens)
{
    leader->kv.state_ends[2] = page_floor(loop, n_tokens);
}

uint32_t quire_loop_state_until(const quire_loop *loop, const quire_request *r, uint32_t n_left)
{
    const uint32_t n = r->kv.n_computed;
    const uint32_t every = loop->opts.state_every_tokens;
    uint32_t end = n + n_left;

    if (is_off(loop, r) || r->is_uncached) {
        return n_left;
    }
    for (uint32_t i = 0; i < QUIRE_STATE_ENDS; i++) {
        end = r->kv.state_ends[i] > n ? quire_min_u32(end, r->kv.state_ends[i]) : end;
    }
    return quire_min_u32(end - n, every - n % every);
}

static bool is_place(const quire_loop *loop, const quire_request *r)
{
    bool is_it = r->kv.n_computed % loop->opts.state_every_tokens == 0 ||
                 (r->pin != 0 && r->kv.n_computed == r->n_prompt);

    for (uint32_t i = 0; i < QUIRE_STATE_ENDS; i++) {
        is_it = is_it || r->kv.n_computed == r->kv.state_ends[i];
    }
    return is_it;
}

void quire_loop_state_leave(quire_loop *loop, quire_request *r, bool is_end)
{
    if (is_off(loop, r) || r->is_uncached || r->kv.n_computed == 0 ||
        r->kv.n_published != r->kv.n_computed || (!is_end && !is_place(loop, r))) {
        return;
    }
    if (is_end) { /* where memory is full, this page alone has room for the state */
        quire_runtime_state_end(loop->runtime, r->kv.seq);
    }
    state_save(loop, r->kv.seq, r->kv.ref, r->kv.n_computed);
}

/* ---- texts without a request ---- */

uint64_t quire_loop_text_states_bytes(const quire_loop *loop, uint32_t n_begin, uint32_t n_tokens)
{
    /* Two of the sequence are in states_bytes; two stay at the text's last pages, one where the
     * computation is given up. */
    const uint32_t n = 3 + (n_tokens - n_begin) / loop->opts.state_every_tokens + 1;

    return loop->room.states_bytes + n * quire_runtime_state_bytes(loop->runtime);
}

int quire_loop_text_states_begin(quire_loop *loop, const quire_loop_text_at *at,
                                 uint32_t n_computed)
{
    if (!quire_runtime_is_recurrent(loop->runtime)) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_runtime_state_reserve(loop->runtime, at->seq));
    return n_computed > 0 ? state_load(loop, at->seq, at->ref, n_computed) : QUIRE_OK;
}

/* The last end of a page before the last token of a text. */
static uint32_t last_page_end(const quire_loop *loop, const quire_loop_text_at *at)
{
    return page_floor(loop, at->n_tokens - 1);
}

uint32_t quire_loop_text_states_until(const quire_loop *loop, const quire_loop_text_at *at,
                                      uint32_t n_computed, uint32_t n_left)
{
    const uint32_t every = loop->opts.state_every_tokens;
    const uint32_t last = last_page_end(loop, at);

    if (!quire_runtime_is_recurrent(loop->runtime)) {
        return n_left;
    }
    n_left = last > n_computed ? quire_min_u32(n_left, last - n_computed) : n_left;
    return quire_min_u32(n_left, every - n_computed % every);
}

void quire_loop_text_states_leave(quire_loop *loop, const quire_loop_text_at *at,
                                  uint32_t n_computed, bool is_end)
{
    if (quire_runtime_is_recurrent(loop->runtime) && n_computed > 0 &&
        (is_end || n_computed == last_page_end(loop, at) ||
         n_computed % loop->opts.state_every_tokens == 0)) {
        state_save(loop, at->seq, at->ref, n_computed);
    }
}
