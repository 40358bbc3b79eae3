/* sim_text.c - see sim_text.h.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim_text.h"

#include "base/check.h"
#include "base/num.h"

#define PAGE_TOKENS QUIRE_PAGE_TOKENS_MIN
#define WINDOWS     1u /* as in sim_tree.c */

static bool has_states(const quire_sim_tree *t)
{
    return t->kv.state_bytes != 0;
}

/* Whole blocks before the last token. */
static uint32_t blocks_before_last(const quire_sim_tree *t, const quire_sim_text_ask *ask)
{
    const uint64_t n = ask->n_tokens > 0 ? (ask->n_tokens - 1) / t->block_tokens : 0;

    return n < ask->n_blocks ? (uint32_t)n : ask->n_blocks;
}

uint32_t quire_sim_text_hits_max(const quire_sim_tree *t, const quire_sim_text_ask *ask)
{
    return has_states(t) ? blocks_before_last(t, ask) : ask->n_blocks;
}

int quire_sim_text_begin(quire_sim_tree *t, const quire_sim_text_ask *ask, quire_sim_text *text)
{
    const uint32_t n_tokens = ask->n_blocks * PAGE_TOKENS;
    quire_prefix_acquire_opts opts = { .tokens_max = n_tokens,
                                       .owner = ask->request->session,
                                       .now_us = ask->now_us,
                                       .rank = ask->rank,
                                       .is_uncounted = ask->is_uncounted };
    quire_prefix_match match;
    int rc;

    *text = (quire_sim_text){ .seq = QUIRE_SEQ_NULL };
    if (has_states(t)) {
        text->ends[0] = blocks_before_last(t, ask);
        opts.tokens_max = text->ends[0] * PAGE_TOKENS;
    }
    QUIRE_TRY(
        quire_seq_open(t->cache, quire_sim_tree_region(t, ask->request->class_index), &text->seq));
    rc = quire_prefix_acquire(t->tree, &quire_sim_key, text->seq, ask->tokens, n_tokens, &opts,
                              &match, &text->ref);
    if (rc < 0) {
        (void)quire_seq_close(t->cache, text->seq);
        text->seq = QUIRE_SEQ_NULL;
        return rc;
    }
    text->hit_blocks = match.n_tokens / PAGE_TOKENS;
    text->gone_blocks = match.n_gone_tokens / PAGE_TOKENS;
    text->n_published = text->hit_blocks;
    text->ends[1] = has_states(t) ? match.n_same_tokens / PAGE_TOKENS : 0;
    return QUIRE_OK;
}

int quire_sim_text_grow(quire_sim_tree *t, quire_sim_text *text, uint32_t n_blocks)
{
    const uint32_t n_held = quire_seq_tokens(t->cache, text->seq) / PAGE_TOKENS;

    if (n_blocks <= n_held) {
        return QUIRE_OK;
    }
    if (t->kv.window_bytes != 0 && text->n_published > t->window_blocks) {
        QUIRE_TRY(quire_seq_release(t->cache, text->seq, WINDOWS, 0,
                                    (text->n_published - t->window_blocks) * PAGE_TOKENS, NULL));
    }
    return quire_seq_append(t->cache, text->seq, (n_blocks - n_held) * PAGE_TOKENS);
}

int quire_sim_text_window_leave(quire_sim_tree *t, quire_sim_text *text, uint32_t block)
{
    return t->kv.window_bytes != 0
               ? quire_seq_release(t->cache, text->seq, WINDOWS, block * PAGE_TOKENS,
                                   (block + 1) * PAGE_TOKENS, NULL)
               : QUIRE_OK;
}

int quire_sim_text_publish(quire_sim_tree *t, quire_sim_text *text, const int32_t *tokens,
                           uint32_t n_blocks, uint64_t now_us)
{
    if (n_blocks <= text->n_published) {
        return QUIRE_OK;
    }
    text->n_published = n_blocks;
    return quire_prefix_publish(t->tree, text->ref, tokens, n_blocks * PAGE_TOKENS, now_us);
}

uint32_t quire_sim_text_next(const quire_sim_tree *t, const quire_sim_text *text, uint32_t n_blocks)
{
    uint32_t next = UINT32_MAX;

    if (!has_states(t)) {
        return next;
    }
    next = (n_blocks / t->every_blocks + 1) * t->every_blocks;
    for (uint32_t i = 0; i < 2; i++) {
        next = text->ends[i] > n_blocks ? quire_min_u32(next, text->ends[i]) : next;
    }
    return next;
}

void quire_sim_text_state(quire_sim_tree *t, const quire_sim_text *text, uint32_t n_blocks,
                          bool is_end)
{
    if (has_states(t) && n_blocks > text->hit_blocks &&
        (is_end || quire_sim_text_next(t, text, n_blocks - 1) == n_blocks) &&
        quire_prefix_state_put(t->tree, text->ref, n_blocks * PAGE_TOKENS) != QUIRE_PAGE_NULL) {
        t->states_left++;
    }
}

void quire_sim_text_end(quire_sim_tree *t, quire_sim_text *text, uint64_t now_us)
{
    (void)quire_prefix_release(t->tree, text->ref, now_us);
    (void)quire_seq_close(t->cache, text->seq);
    text->seq = QUIRE_SEQ_NULL;
    text->ref = QUIRE_PREFIX_REF_NULL;
}
