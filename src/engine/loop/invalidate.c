/* invalidate.c - keys of texts in the tree, and invalidation of texts.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_loop.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/tier_object.h"

quire_prefix_key quire_loop_key(const quire_loop *loop, const void *tenant, uint32_t tenant_bytes)
{
    return (quire_prefix_key){
        .identity = { loop->identity[0], loop->identity[1] },
        .salt = tenant,
        .salt_bytes = tenant_bytes,
    };
}

uint16_t quire_loop_account(const quire_loop *loop, const void *tenant, uint32_t tenant_bytes)
{
    const quire_engine_accounts *accounts = &loop->opts.accounts;

    return accounts->of != NULL ? accounts->of(accounts->ctx, tenant, tenant_bytes) : 0;
}

static void queue_forget(const quire_queue *queue, uint64_t owner)
{
    for (quire_queue_link *link = queue->first; link != NULL; link = link->next) {
        quire_request *r = quire_request_of(link);

        r->is_uncached = r->is_uncached || r->owner == owner;
    }
}

/* Requests of a closed session publish nothing. The tree stops the running ones; this function
 * stops the waiting ones, and running ones that return after preemption. */
static void requests_forget(quire_loop *loop, uint64_t owner)
{
    for (uint32_t i = 0; i < loop->opts.classes.n; i++) {
        queue_forget(&loop->set.queues[i], owner);
    }
    (void)pthread_mutex_lock(&loop->inbox.lock);
    queue_forget(&loop->inbox.requests, owner);
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        quire_request *r = loop->set.running[i];

        r->is_uncached = r->is_uncached || r->owner == owner;
    }
}

quire_prefix_dropped quire_loop_session_drop(quire_loop *loop, const quire_invalidate *what,
                                             uint64_t owner, uint32_t *n_shared)
{
    const quire_prefix_key key = quire_loop_key(loop, what->tenant, what->tenant_bytes);
    quire_prefix_dropped dropped;
    quire_prefix_match match;

    requests_forget(loop, owner);
    dropped = quire_prefix_drop_owner(loop->tree, owner, quire_loop_now_us(loop));
    quire_prefix_lookup(loop->tree, &key, what->tokens, what->n_tokens, &match);
    *n_shared = match.n_same_tokens;
    return dropped;
}

/* Drop texts in the tree, and stop the requests that would publish them. */
static quire_prefix_dropped texts_drop(quire_loop *loop, const quire_invalidate *what,
                                       uint64_t owner)
{
    const quire_prefix_key key = quire_loop_key(loop, what->tenant, what->tenant_bytes);
    const uint64_t now_us = quire_loop_now_us(loop);
    quire_prefix_dropped dropped = { 0 };

    switch (what->what) {
    case QUIRE_INVALIDATE_ALL:
        dropped = quire_prefix_drop_all(loop->tree, now_us);
        break;
    case QUIRE_INVALIDATE_TENANT:
        dropped = quire_prefix_drop_salt(loop->tree, what->tenant, what->tenant_bytes, now_us);
        break;
    case QUIRE_INVALIDATE_TENANTS:
        dropped = quire_prefix_drop_salts(loop->tree, what->tenant, what->tenant_bytes, now_us);
        break;
    case QUIRE_INVALIDATE_PREFIX:
        dropped = quire_prefix_drop_prefix(loop->tree, &key, what->tokens, what->n_tokens, now_us);
        break;
    case QUIRE_INVALIDATE_SESSION:
        requests_forget(loop, owner);
        dropped = quire_prefix_drop_owner(loop->tree, owner, now_us);
        break;
    }
    quire_loop_condensed_invalidate(loop, what, &dropped);
    return dropped;
}

quire_prefix_dropped quire_loop_invalidate(quire_loop *loop, const quire_invalidate *what,
                                           uint64_t owner)
{
    const quire_prefix_dropped dropped = texts_drop(loop, what, owner);

    quire_tier_invalidate(loop, what);
    return dropped;
}

void quire_loop_follow_drop(quire_loop *loop, const quire_invalidate *what)
{
    (void)texts_drop(loop, what, 0);
    loop->events.dropped(loop->events.ctx, what);
}
