/* tier_states.c - states of recurrent layers from below into the tree; see engine/tier.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/tier_object.h"

#include "engine/loop/loop_object.h"

#include <string.h>

bool quire_fetch_is_useful(const quire_loop *loop, const quire_transfer *t, uint32_t n_tokens)
{
    const quire_page_parts *parts = &loop->tier->parts;

    return n_tokens > 0 && (n_tokens == parts->page_tokens || parts->state == 0 ||
                            quire_page_state(parts, &t->found, n_tokens) != NULL);
}

void quire_fetch_state(quire_loop *loop, const quire_fetch *f, const quire_transfer *t,
                       uint32_t n_tokens)
{
    const quire_page_parts *parts = &loop->tier->parts;
    const void *state = quire_page_state(parts, &t->found, n_tokens);
    quire_page_id page = QUIRE_PAGE_NULL;

    if (state != NULL) {
        page = quire_prefix_state_put(loop->tree, f->ref, t->found.text.first_token + n_tokens);
    }
    if (page != QUIRE_PAGE_NULL) {
        memcpy(quire_cache_state(loop->cache, page), state, parts->bytes[parts->state]);
        loop->figures.now.states_fetched_total++;
    }
}
