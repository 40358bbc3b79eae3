/* tier_look.c - what other threads learn of the store below this loop: which pages it has, and what
 * it costs to read them. See engine/tier.h.
 *
 * The lock keeps the store from ending under a look. A look takes the store's own locks inside of
 * it; the loop's thread takes it alone, when the store comes and goes.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"
#include "engine/loop/tier_object.h"

void quire_tier_view_set(quire_loop *loop, const quire_store *store)
{
    (void)pthread_mutex_lock(&loop->store_view.lock);
    loop->store_view.store = store;
    (void)pthread_mutex_unlock(&loop->store_view.lock);
}

uint32_t quire_loop_stored(quire_loop *loop, const quire_page_key *keys, uint32_t n)
{
    uint32_t n_there = 0;

    (void)pthread_mutex_lock(&loop->store_view.lock);
    if (loop->store_view.store != NULL) {
        n_there = quire_store_has(loop->store_view.store, keys, n);
    }
    (void)pthread_mutex_unlock(&loop->store_view.lock);
    return n_there;
}

double quire_loop_fetch_share(quire_loop *loop, uint32_t begin, uint32_t end)
{
    const uint32_t n_pages = (end - begin) / loop->runtime_opts->page_tokens;
    double compute_us, fetch_us;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    compute_us =
        quire_cost_prefill_us(&loop->figures.shared.cost, begin, end, loop->opts.chunk_tokens);
    fetch_us = quire_tier_read_us(&loop->figures.shared.tier.store) * n_pages;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return compute_us > 0.0 && fetch_us > 0.0 ? fetch_us / compute_us : -1.0;
}
