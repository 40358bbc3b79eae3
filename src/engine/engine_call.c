/* engine_call.c - work for the engine's thread from others, and what is built on it: invalidation.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine_internal.h"

#include "base/check.h"

int quire_engine_call(quire_engine *engine, quire_engine_fn fn, void *ctx)
{
    quire_engine_task task = { .fn = fn, .ctx = ctx, .status = QUIRE_AGAIN };
    quire_engine_task **last = &engine->tasks;

    (void)pthread_mutex_lock(&engine->lock);
    if (!engine->has_ended) {
        while (*last != NULL) {
            last = &(*last)->next;
        }
        *last = &task;
        (void)pthread_cond_signal(&engine->wake);
        while (!task.is_done) {
            (void)pthread_cond_wait(&engine->task_done, &engine->lock);
        }
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return task.status;
}

/* What comes while these run waits for the next round, after a step. */
void quire_engine_tasks_run(quire_engine *engine, bool is_ending)
{
    quire_engine_task *task;

    (void)pthread_mutex_lock(&engine->lock);
    engine->has_ended = is_ending;
    task = engine->tasks;
    engine->tasks = NULL;
    engine->n_releases += task != NULL;
    while (task != NULL) {
        quire_engine_task *next = task->next; /* the task is its caller's, who goes on when done */

        if (!is_ending) {
            (void)pthread_mutex_unlock(&engine->lock);
            task->fn(task->ctx, engine->cache, engine->tree);
            (void)pthread_mutex_lock(&engine->lock);
            task->status = QUIRE_OK;
        }
        task->is_done = true;
        (void)pthread_cond_broadcast(&engine->task_done);
        task = next;
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

quire_prefix_key quire_engine_key(const quire_engine *engine, const void *tenant,
                                  uint32_t tenant_bytes)
{
    return (quire_prefix_key){
        .identity = { engine->identity[0], engine->identity[1] },
        .salt = tenant,
        .salt_bytes = tenant_bytes,
    };
}

uint16_t quire_engine_account(const quire_engine *engine, const void *tenant, uint32_t tenant_bytes)
{
    const quire_engine_accounts *accounts = &engine->opts.accounts;

    return accounts->of != NULL ? accounts->of(accounts->ctx, tenant, tenant_bytes) : 0;
}

typedef struct invalidation {
    quire_engine *engine;
    const quire_invalidate *what;
    uint64_t owner;
    quire_prefix_dropped dropped;
} invalidation;

static void queue_forget(const quire_queue *queue, uint64_t owner)
{
    for (quire_queue_link *link = queue->first; link != NULL; link = link->next) {
        quire_request *r = quire_request_of(link);

        r->is_uncached = r->is_uncached || r->owner == owner;
    }
}

/* Requests of a session that is gone leave nothing behind: the tree sees to those that run, but
 * not to those that are yet to (or to come back). */
static void requests_forget(quire_engine *engine, uint64_t owner)
{
    for (uint32_t i = 0; i < engine->opts.classes.n; i++) {
        queue_forget(&engine->queues[i], owner);
    }
    (void)pthread_mutex_lock(&engine->lock);
    queue_forget(&engine->inbox, owner);
    (void)pthread_mutex_unlock(&engine->lock);
    for (uint32_t i = 0; i < engine->n_running; i++) {
        quire_request *r = engine->running[i];

        r->is_uncached = r->is_uncached || r->owner == owner;
    }
}

/* Nothing of it is computed in advance any more. Tenants that are named by how they begin: all. */
static void adapt_forget(const invalidation *inv)
{
    const quire_invalidate *what = inv->what;
    const bool is_all =
        what->what == QUIRE_INVALIDATE_ALL || what->what == QUIRE_INVALIDATE_TENANTS;

    quire_adapt_invalidated(inv->engine, is_all ? NULL : what->tenant, what->tenant_bytes);
}

static void invalidate(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    invalidation *inv = ctx;
    const quire_invalidate *what = inv->what;
    const quire_prefix_key key = quire_engine_key(inv->engine, what->tenant, what->tenant_bytes);
    const uint64_t now_us = quire_engine_now_us(inv->engine);

    (void)cache;
    adapt_forget(inv);
    switch (what->what) {
    case QUIRE_INVALIDATE_ALL:
        inv->dropped = quire_prefix_drop_all(tree, now_us);
        break;
    case QUIRE_INVALIDATE_TENANT:
        inv->dropped = quire_prefix_drop_salt(tree, what->tenant, what->tenant_bytes, now_us);
        break;
    case QUIRE_INVALIDATE_TENANTS:
        inv->dropped = quire_prefix_drop_salts(tree, what->tenant, what->tenant_bytes, now_us);
        break;
    case QUIRE_INVALIDATE_PREFIX:
        inv->dropped = quire_prefix_drop_prefix(tree, &key, what->tokens, what->n_tokens, now_us);
        break;
    case QUIRE_INVALIDATE_SESSION:
        requests_forget(inv->engine, inv->owner);
        inv->dropped = quire_prefix_drop_owner(tree, inv->owner, now_us);
        break;
    }
    quire_engine_pins_invalidated(inv->engine);
}

int quire_engine_invalidate(quire_engine *engine, const quire_invalidate *what,
                            quire_prefix_dropped *dropped)
{
    invalidation inv = { .engine = engine, .what = what };
    int rc;

    *dropped = (quire_prefix_dropped){ 0 };
    if (what->what == QUIRE_INVALIDATE_SESSION) {
        QUIRE_TRY(quire_sessions_close(engine->sessions, what->tenant, what->tenant_bytes,
                                       what->session_id, &inv.owner));
    }
    rc = quire_engine_call(engine, invalidate, &inv);
    *dropped = inv.dropped;
    return rc;
}
