/* tier.c - the store below memory: buffers, completions, invalidation, the end. See engine/tier.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/tier_object.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "engine/loop/loop_object.h"

#include <stdio.h>
#include <stdlib.h>

#define BUFFERS_MIN 4u
#define POLL_MAX    32u
#define END_WAIT_MS 5u

/* ---- buffers ---- */

quire_transfer *quire_tier_buffer_take(quire_tier *tier)
{
    quire_transfer *t = tier->unused;

    if (t != NULL) {
        tier->unused = t->next;
        t->next = NULL;
        return t;
    }
    if (tier->n_buffers == tier->n_buffers_max) {
        return NULL;
    }
    t = quire_transfer_new(tier->parts.record_bytes, QUIRE_PAGE_TOKENS_MAX);
    tier->n_buffers += t != NULL;
    return t;
}

void quire_tier_buffer_give(quire_tier *tier, quire_transfer *t)
{
    t->owner = NULL;
    t->is_replacing = false;
    t->use = (quire_page_use){ 0 };
    t->next = tier->unused;
    tier->unused = t;
}

uint64_t quire_tier_number(const quire_loop *loop, const quire_request *r)
{
    return r != loop->tier->ahead ? r->link.arrival + 1 : 0;
}

quire_region_id quire_tier_region(const quire_loop *loop, const quire_request *r)
{
    return r == loop->tier->ahead ? QUIRE_REGION_DYNAMIC : quire_loop_region(loop, r->class_index);
}

quire_page_use quire_tier_use(const quire_loop *loop, const quire_request *r, uint8_t rank)
{
    quire_page_use use = { .request = quire_tier_number(loop, r),
                           .standing = { .region = quire_tier_region(loop, r), .rank = rank } };
    quire_account_info account = { 0 };

    use.standing.account = quire_loop_account(loop, r->tenant, r->tenant_bytes);
    (void)quire_prefix_account_get(loop->tree, use.standing.account, &account);
    use.standing.weight = account.weight;
    return use;
}

quire_transfer *quire_tier_query_take(quire_tier *tier)
{
    quire_transfer *t = tier->unused_queries;

    if (t != NULL) {
        tier->unused_queries = t->next;
    } else if ((t = quire_transfer_new(0, 0)) == NULL) {
        return NULL;
    }
    t->next = NULL;
    t->is_query = true;
    t->owner = NULL;
    t->urgency = 0;
    t->use = (quire_page_use){ 0 };
    return t;
}

void quire_tier_query_give(quire_tier *tier, quire_transfer *t)
{
    t->next = tier->unused_queries;
    tier->unused_queries = t;
}

/* ---- life ---- */

static void wake(void *ctx)
{
    quire_loop *loop = ctx;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    loop->inbox.has_transfers = true;
    (void)pthread_cond_signal(&loop->inbox.wake);
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

int quire_tier_create(quire_loop *loop, quire_tier **out)
{
    const quire_tier_opts *opts = &loop->opts.tier;
    quire_tier *tier;
    size_t n_buffers;
    int rc;

    *out = NULL;
    if (opts->store == NULL || loop->opts.no_prefix_cache) {
        return QUIRE_OK;
    }
    tier = calloc(1, sizeof *tier);
    QUIRE_FAIL_IF(tier == NULL, QUIRE_NOMEM);
    tier->opts = *opts;
    tier->opts.buffer_bytes = opts->buffer_bytes > 0 ? opts->buffer_bytes : QUIRE_TIER_BUFFER_BYTES;
    tier->opts.wait_us = opts->wait_us > 0 ? opts->wait_us : QUIRE_TIER_WAIT_US;
    tier->opts.close_us = opts->close_us > 0 ? opts->close_us : QUIRE_TIER_CLOSE_US;
    tier->store = opts->store;
    if (opts->wait_us == 0 && tier->store->ops->heard == NULL) {
        tier->local_wait_us = QUIRE_TIER_WAIT_LOCAL_US;
    }
    tier->cursor = 1;
    rc = quire_page_parts_get(loop->cache, loop->runtime_opts->page_tokens, &tier->parts);
    if (rc < 0) {
        free(tier);
        return rc;
    }
    n_buffers = tier->opts.buffer_bytes / tier->parts.record_bytes;
    tier->n_buffers_max = n_buffers < BUFFERS_MIN ? BUFFERS_MIN : (uint32_t)n_buffers;
    quire_store_waker_set(tier->store, (quire_store_waker){ wake, loop });
    wake(loop); /* drops that the store heard of before */
    loop->figures.now.tier.has_store = true;
    (void)snprintf(loop->figures.now.tier.name, sizeof loop->figures.now.tier.name, "%s",
                   tier->store->name);
    tier->hints.token_us = 1.0; /* as in the tree */
    *out = tier;
    quire_tier_view_set(loop, tier->store);
    quire_tier_regions_changed(loop);
    return QUIRE_OK;
}

void quire_tier_regions_changed(quire_loop *loop)
{
    quire_region_stats pinned = { 0 }, dynamic = { 0 };
    quire_tier *tier = loop->tier;

    if (tier == NULL || loop->room.pinned == QUIRE_REGION_DYNAMIC) {
        return;
    }
    (void)quire_region_stats_get(loop->cache, loop->room.pinned, &pinned);
    (void)quire_region_stats_get(loop->cache, QUIRE_REGION_DYNAMIC, &dynamic);
    tier->hints.pinned_share =
        (double)pinned.budget_bytes / (double)(pinned.budget_bytes + dynamic.budget_bytes);
    quire_store_hint(tier->store, &tier->hints);
}

void quire_tier_cost_set(quire_loop *loop, double token_us, double token_depth_us)
{
    if (loop->tier != NULL) {
        loop->tier->hints.token_us = token_us;
        loop->tier->hints.token_depth_us = token_depth_us;
        quire_store_hint(loop->tier->store, &loop->tier->hints);
    }
}

static void give_back(void *ctx, quire_transfer *t)
{
    quire_tier *tier = ctx;

    if (t->is_query) {
        quire_transfer_free(t);
    } else {
        quire_tier_buffer_give(tier, t);
    }
}

static void list_free(quire_transfer *t)
{
    while (t != NULL) {
        quire_transfer *next = t->next;

        quire_transfer_free(t);
        t = next;
    }
}

/* Free everything but the store. */
static void tier_free(quire_loop *loop)
{
    list_free(loop->tier->unused);
    list_free(loop->tier->unused_queries);
    quire_tier_ahead_free(loop->tier);
    quire_tier_down_fini(&loop->tier->down);
    free(loop->tier);
    loop->tier = NULL;
}

/* Sleep until the store gives something back, for a moment at most. */
static void doze(quire_loop *loop)
{
    const struct timespec deadline = quire_deadline(END_WAIT_MS);

    (void)pthread_mutex_lock(&loop->inbox.lock);
    if (!loop->inbox.has_transfers) {
        (void)pthread_cond_timedwait(&loop->inbox.wake, &loop->inbox.lock, &deadline);
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

static void copy_lap(quire_loop *loop, uint64_t end_ns)
{
    quire_tier *tier = loop->tier;

    tier->is_closing = true;
    tier->cursor = 1;
    tier->n_lap = 0;
    while (quire_clock_ns() < end_ns && quire_tier_copy(loop, 0)) {
        doze(loop);
        quire_tier_poll(loop, 0);
    }
}

/* Two laps: pages worth keeping first, then all of them. A page whose copy was on its way may have
 * got a window or a state since, so a third lap comes when all copies have arrived. */
static void copy_rest(quire_loop *loop)
{
    quire_tier *tier = loop->tier;
    const uint64_t end_ns = quire_clock_ns() + tier->opts.close_us * 1000u;

    copy_lap(loop, end_ns);
    tier->opts.copies_all = true;
    copy_lap(loop, end_ns);
    while (quire_clock_ns() < end_ns && tier->n_puts_away > 0) {
        doze(loop);
        quire_tier_poll(loop, 0);
    }
    copy_lap(loop, end_ns);
}

void quire_tier_close(quire_loop *loop)
{
    quire_tier *tier = loop->tier;

    if (tier == NULL) {
        return;
    }
    if (!tier->store->is_volatile) {
        copy_rest(loop);
    }
    quire_tier_view_set(loop, NULL);
    quire_fetches_destroy(loop);
    tier->store->ops->close(tier->store, give_back, tier);
    tier_free(loop);
}

void quire_tier_release(quire_loop *loop)
{
    if (loop->tier != NULL) {
        quire_tier_view_set(loop, NULL);
        quire_store_waker_set(loop->tier->store, (quire_store_waker){ 0 });
        tier_free(loop);
    }
}

/* ---- completions ---- */

void quire_tier_poll(quire_loop *loop, uint64_t step_us)
{
    quire_transfer *done[POLL_MAX];
    quire_tier *tier = loop->tier;
    uint32_t n;

    if (tier == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&loop->inbox.lock);
    loop->inbox.has_transfers = false;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    do {
        n = tier->store->ops->poll(tier->store, done, POLL_MAX);
        for (uint32_t i = 0; i < n; i++) {
            if (done[i]->is_query && done[i]->owner != NULL) {
                quire_fetch_heard(loop, done[i]);
            } else if (done[i]->is_query) {
                quire_touch_done(loop, done[i]);
            } else if (done[i]->is_put) {
                quire_copy_done(loop, done[i]);
            } else {
                quire_fetch_arrived(loop, done[i]);
            }
        }
    } while (n == POLL_MAX);
    quire_tier_stats_fill(loop);
    quire_fetches_move(loop, step_us);
}

/* ---- invalidation ---- */

static void drop(quire_tier *tier, const quire_store_drop *what)
{
    (void)tier->store->ops->drop(tier->store, what);
}

/* Drop the texts that continue the first n_tokens tokens, without the last full page itself if
 * `what` is BEHIND. Pages are the unit below memory: other texts that part inside the next page are
 * dropped, too. */
static void drop_text(quire_loop *loop, const quire_invalidate *of, uint32_t n_tokens,
                      quire_store_drop_what what)
{
    const quire_prefix_key key = quire_loop_key(loop, of->tenant, of->tenant_bytes);
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const uint32_t n_pages = n_tokens / page_tokens;
    quire_store_drop one = { .what = what };

    quire_prefix_key_root(&key, &one.key);
    one.root = one.key;
    for (uint32_t i = 0; i < n_pages; i++) {
        quire_prefix_key_add(&one.key, of->tokens + (size_t)i * page_tokens, page_tokens, &one.key);
    }
    drop(loop->tier, &one);
}

/* Drop the texts that continue a session's first page of which no other text is known: what other
 * texts share stays, with all that continues it in another way. A copy of the page while it was
 * open has a key of its own. */
static void drop_session(quire_loop *loop, const quire_invalidate *what)
{
    const quire_prefix_key key = quire_loop_key(loop, what->tenant, what->tenant_bytes);
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    quire_store_drop one = { .what = QUIRE_STORE_DROP_TEXT };
    quire_page_key parent;
    quire_prefix_match match;
    uint32_t n = 0, n_shared = what->n_shared_tokens;

    if (what->n_tokens > 0) {
        quire_prefix_lookup(loop->tree, &key, what->tokens, what->n_tokens, &match);
        n_shared = quire_max_u32(match.n_same_tokens, n_shared);
    }
    if (n_shared >= what->n_tokens) {
        return; /* nothing is the session's own */
    }
    quire_prefix_key_root(&key, &parent);
    one.root = parent;
    for (; n_shared - n >= page_tokens; n += page_tokens) {
        quire_prefix_key_add(&parent, what->tokens + n, page_tokens, &parent);
    }
    if (what->n_tokens - n >= page_tokens) {
        quire_prefix_key_add(&parent, what->tokens + n, page_tokens, &one.key);
        drop(loop->tier, &one);
    }
    quire_page_record_slot(&parent, what->tokens[n], &one.key);
    drop(loop->tier, &one);
}

void quire_tier_invalidate(quire_loop *loop, const quire_invalidate *what)
{
    quire_store_drop some = { .salt = what->tenant, .salt_bytes = what->tenant_bytes };

    if (loop->tier == NULL) {
        return;
    }
    quire_prefix_copies_forget(loop->tree); /* all: the store does not name the dropped copies */
    switch (what->what) {
    case QUIRE_INVALIDATE_ALL:
        some.what = QUIRE_STORE_DROP_ALL;
        drop(loop->tier, &some);
        break;
    case QUIRE_INVALIDATE_TENANT:
        some.what = QUIRE_STORE_DROP_SALT;
        drop(loop->tier, &some);
        break;
    case QUIRE_INVALIDATE_TENANTS:
        some.what = QUIRE_STORE_DROP_SALTS;
        drop(loop->tier, &some);
        break;
    case QUIRE_INVALIDATE_PREFIX:
        drop_text(loop, what, what->n_tokens,
                  what->n_tokens > 0 && what->n_tokens % loop->runtime_opts->page_tokens == 0
                      ? QUIRE_STORE_DROP_TEXT
                      : QUIRE_STORE_DROP_BEHIND);
        break;
    case QUIRE_INVALIDATE_SESSION:
        drop_session(loop, what);
        break;
    }
}

void quire_tier_hear(quire_loop *loop)
{
    quire_store_drop what;

    if (loop->tier == NULL || loop->tier->store->ops->heard == NULL) {
        return;
    }
    while (loop->tier->store->ops->heard(loop->tier->store, &what)) {
        quire_invalidate some = { .tenant = what.salt, .tenant_bytes = what.salt_bytes };

        quire_prefix_copies_forget(loop->tree); /* all, as for drops of this machine */
        switch (what.what) {
        case QUIRE_STORE_DROP_ALL:
            some.what = QUIRE_INVALIDATE_ALL;
            break;
        case QUIRE_STORE_DROP_SALT:
            some.what = QUIRE_INVALIDATE_TENANT;
            break;
        case QUIRE_STORE_DROP_SALTS:
            some.what = QUIRE_INVALIDATE_TENANTS;
            break;
        case QUIRE_STORE_DROP_TEXT:
        case QUIRE_STORE_DROP_BEHIND:
            continue;
        }
        quire_loop_follow_drop(loop, &some);
    }
}

/* ---- figures ---- */

uint32_t quire_loop_store_parts(const quire_loop *loop, quire_store_part *out)
{
    return loop->tier != NULL ? quire_store_parts(loop->tier->store, out) : 0;
}

void quire_loop_store_look(const quire_loop *loop, quire_tier_stats *out)
{
    if (loop->tier != NULL) {
        loop->tier->store->ops->stats(loop->tier->store, &out->store);
        out->n_parts = quire_store_parts(loop->tier->store, out->parts);
    }
}

void quire_tier_stats_fill(quire_loop *loop)
{
    quire_loop_store_look(loop, &loop->figures.now.tier);
}
