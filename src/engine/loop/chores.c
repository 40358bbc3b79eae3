/* chores.c - see chores.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/chores.h"

#include "base/check.h"
#include "base/clock.h"
#include "engine/loop/loop_object.h"
#include "engine/views.h"

#define NS_PER_US 1000.0
#define REST_NS   1000000.0 /* while nothing runs: time before the inbox is checked again */

int quire_loop_chore_do(quire_loop *loop, quire_chore_slice slice, void *ctx)
{
    quire_chore chore = { .slice = slice, .ctx = ctx, .status = QUIRE_AGAIN };
    quire_chore **last = &loop->inbox.chores;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    if (!loop->inbox.has_ended) {
        while (*last != NULL) {
            last = &(*last)->next;
        }
        *last = &chore;
        (void)pthread_cond_signal(&loop->inbox.wake);
        while (!chore.is_done) {
            (void)pthread_cond_wait(&loop->inbox.task_done, &loop->inbox.lock);
        }
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return chore.status;
}

/* The first chore; NULL = none. */
static quire_chore *first(quire_loop *loop)
{
    quire_chore *chore;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    chore = loop->inbox.chores;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return chore;
}

/* Wake the caller, which owns the chore: the loop must not use the chore afterwards. Returns the
 * next chore. */
static quire_chore *finish(quire_loop *loop, quire_chore *chore, int status)
{
    quire_chore *next;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    next = chore->next;
    loop->inbox.chores = next;
    chore->status = status;
    chore->is_done = true;
    (void)pthread_cond_broadcast(&loop->inbox.task_done);
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return next;
}

double quire_chore_budget_ns(const quire_chore_budget *budget, uint64_t step_us)
{
    return step_us > 0 ? (double)step_us * NS_PER_US * QUIRE_VIEW_SHARE - budget->debt_ns : REST_NS;
}

void quire_chore_budget_spend(quire_chore_budget *budget, uint64_t step_us, double spent_ns)
{
    const double may_ns = quire_chore_budget_ns(budget, step_us);

    budget->debt_ns = step_us > 0 && spent_ns > may_ns ? spent_ns - may_ns : 0.0;
}

void quire_loop_chores_run(quire_loop *loop, uint64_t step_us)
{
    const double may_ns = quire_chore_budget_ns(&loop->chore_budget, step_us);
    quire_chore *chore = first(loop);
    double spent_ns = 0.0;

    while (chore != NULL && spent_ns < may_ns) {
        const uint64_t begin_ns = quire_clock_ns();

        if (chore->slice(chore->ctx, loop->cache, loop->tree)) {
            chore = finish(loop, chore, QUIRE_OK);
        }
        spent_ns += (double)(quire_clock_ns() - begin_ns);
    }
    if (step_us > 0) {
        loop->figures.now.views_seconds_total += spent_ns * 1e-9;
    }
    quire_chore_budget_spend(&loop->chore_budget, step_us, spent_ns);
}

void quire_loop_chores_end(quire_loop *loop)
{
    quire_chore *chore = first(loop);

    while (chore != NULL) {
        chore = finish(loop, chore, QUIRE_AGAIN);
    }
}
