/* chores.c - see chores.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/chores.h"

#include "base/check.h"
#include "base/clock.h"
#include "engine/engine_internal.h"
#include "engine/views.h"

#define NS_PER_US 1000.0
#define REST_NS   1000000.0 /* while nothing runs, until somebody may have come */

int quire_engine_chore_do(quire_engine *engine, quire_chore_slice slice, void *ctx)
{
    quire_chore chore = { .slice = slice, .ctx = ctx, .status = QUIRE_AGAIN };
    quire_chore **last = &engine->chores;

    (void)pthread_mutex_lock(&engine->lock);
    if (!engine->has_ended) {
        while (*last != NULL) {
            last = &(*last)->next;
        }
        *last = &chore;
        (void)pthread_cond_signal(&engine->wake);
        while (!chore.is_done) {
            (void)pthread_cond_wait(&engine->task_done, &engine->lock);
        }
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return chore.status;
}

/* The first; NULL = there is none. */
static quire_chore *first(quire_engine *engine)
{
    quire_chore *chore;

    (void)pthread_mutex_lock(&engine->lock);
    chore = engine->chores;
    (void)pthread_mutex_unlock(&engine->lock);
    return chore;
}

/* Its caller goes on, and the chore, which is the caller's, is gone. Returns the next. */
static quire_chore *finish(quire_engine *engine, quire_chore *chore, int status)
{
    quire_chore *next;

    (void)pthread_mutex_lock(&engine->lock);
    next = chore->next;
    engine->chores = next;
    chore->status = status;
    chore->is_done = true;
    (void)pthread_cond_broadcast(&engine->task_done);
    (void)pthread_mutex_unlock(&engine->lock);
    return next;
}

void quire_engine_chores_run(quire_engine *engine, uint64_t step_us)
{
    const double share_ns = step_us > 0 ? (double)step_us * NS_PER_US * QUIRE_VIEW_SHARE : REST_NS;
    const double may_ns = share_ns - engine->chores_debt_ns;
    quire_chore *chore = first(engine);
    double spent_ns = 0.0;

    while (chore != NULL && spent_ns < may_ns) {
        const uint64_t begin_ns = quire_clock_ns();

        if (chore->slice(chore->ctx, engine->cache, engine->tree)) {
            chore = finish(engine, chore, QUIRE_OK);
        }
        spent_ns += (double)(quire_clock_ns() - begin_ns);
    }
    if (step_us > 0) {
        engine->stats.views_seconds_total += spent_ns * 1e-9;
    }
    /* Beyond the share is paid back; what is left of it is not saved up. */
    engine->chores_debt_ns = step_us > 0 && spent_ns > may_ns ? spent_ns - may_ns : 0.0;
}

void quire_engine_chores_end(quire_engine *engine)
{
    quire_chore *chore = first(engine);

    while (chore != NULL) {
        chore = finish(engine, chore, QUIRE_AGAIN);
    }
}
