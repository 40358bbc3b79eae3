/* tier_ahead.c - pages of a text that no request has asked for yet; see engine/tier.h.
 *
 * A fetch belongs to a request. The one for a text has a request of its own, which is in no queue
 * and is never computed: it has the fields that a fetch reads, and no others.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"
#include "engine/loop/tier_object.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static int request_fill(quire_tier *tier, const quire_loop_text *text)
{
    quire_request *r = tier->ahead;

    if (r == NULL) {
        r = tier->ahead = calloc(1, sizeof *r);
    }
    QUIRE_FAIL_IF(r == NULL, QUIRE_NOMEM);
    if (r->tokens_capacity < text->n_tokens) {
        int32_t *tokens = realloc(r->tokens, text->n_tokens * sizeof *tokens);

        QUIRE_FAIL_IF(tokens == NULL, QUIRE_NOMEM);
        r->tokens = tokens;
        r->tokens_capacity = text->n_tokens;
    }
    memcpy(r->tokens, text->tokens, text->n_tokens * sizeof *r->tokens);
    r->n_tokens = text->n_tokens;
    r->owner = text->owner;
    r->tenant_bytes = text->tenant_bytes;
    if (text->tenant_bytes > 0) {
        memcpy(r->tenant, text->tenant, text->tenant_bytes);
    }
    return QUIRE_OK;
}

void quire_tier_ahead_free(quire_tier *tier)
{
    if (tier->ahead != NULL) {
        free(tier->ahead->tokens);
        free(tier->ahead);
        tier->ahead = NULL;
    }
}

bool quire_loop_can_fetch(const quire_loop *loop)
{
    return loop->tier != NULL && loop->tier->n_holds == 0 && loop->figures.now.tier.fetching == 0;
}

bool quire_loop_fetch_ahead(quire_loop *loop, const quire_loop_text *text)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const quire_prefix_key key = quire_loop_key(loop, text->tenant, text->tenant_bytes);
    quire_tier_stats *stats = &loop->figures.now.tier;
    const uint64_t n_begun = stats->fetches_total;
    quire_prefix_match match;
    bool is_fetching;

    if (!quire_loop_can_fetch(loop) || text->n_tokens == 0) {
        return false;
    }
    quire_prefix_lookup(loop->tree, &key, text->tokens, text->n_tokens, &match);
    if (match.n_tokens / page_tokens >= text->n_tokens / page_tokens ||
        request_fill(loop->tier, text) < 0) {
        return false;
    }
    is_fetching = quire_fetch_start(loop, loop->tier->ahead, match.n_tokens, text->n_tokens);
    stats->ahead_total += stats->fetches_total - n_begun;
    return is_fetching;
}

void quire_loop_fetch_ahead_end(quire_loop *loop)
{
    if (loop->tier != NULL && loop->tier->ahead != NULL) {
        quire_tier_leave(loop, loop->tier->ahead);
    }
}
