/* inbox.c - see inbox.h and loop_call.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"

#include "base/check.h"
#include "base/clock.h"

#include <stdlib.h>

int quire_loop_call(quire_loop *loop, quire_loop_fn fn, void *ctx)
{
    quire_loop_task task = { .fn = fn, .ctx = ctx, .status = QUIRE_AGAIN };
    quire_loop_task **last = &loop->inbox.tasks;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    if (!loop->inbox.has_ended) {
        while (*last != NULL) {
            last = &(*last)->next;
        }
        *last = &task;
        (void)pthread_cond_signal(&loop->inbox.wake);
        while (!task.is_done) {
            (void)pthread_cond_wait(&loop->inbox.task_done, &loop->inbox.lock);
        }
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return task.status;
}

/* Tasks that arrive meanwhile wait for the next round, after a step. */
void quire_loop_tasks_run(quire_loop *loop, bool is_ending)
{
    quire_loop_task *task;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    loop->inbox.has_ended = is_ending;
    task = loop->inbox.tasks;
    loop->inbox.tasks = NULL;
    loop->room.n_releases += task != NULL;
    while (task != NULL) {
        quire_loop_task *next = task->next; /* the caller owns task, until it is done */

        if (!is_ending) {
            (void)pthread_mutex_unlock(&loop->inbox.lock);
            task->fn(task->ctx, loop->cache, loop->tree);
            (void)pthread_mutex_lock(&loop->inbox.lock);
            task->status = QUIRE_OK;
        }
        task->is_done = true;
        (void)pthread_cond_broadcast(&loop->inbox.task_done);
        task = next;
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

/* ---- life ---- */

int quire_inbox_init(quire_inbox *inbox)
{
    atomic_store(&inbox->urgent_rank, -1);
    QUIRE_TRY(quire_cond_init(&inbox->wake));
    if (pthread_cond_init(&inbox->task_done, NULL) == 0) {
        if (pthread_mutex_init(&inbox->lock, NULL) == 0) {
            return QUIRE_OK;
        }
        (void)pthread_cond_destroy(&inbox->task_done);
    }
    (void)pthread_cond_destroy(&inbox->wake);
    return QUIRE_NOMEM;
}

void quire_inbox_fini(quire_inbox *inbox)
{
    free(inbox->owners);
    (void)pthread_mutex_destroy(&inbox->lock);
    (void)pthread_cond_destroy(&inbox->task_done);
    (void)pthread_cond_destroy(&inbox->wake);
}

void quire_inbox_put(quire_inbox *inbox, quire_request *request)
{
    quire_queue_insert(&inbox->requests, &request->link);
    if (atomic_load(&inbox->urgent_rank) < (int)request->rank) {
        atomic_store(&inbox->urgent_rank, (int)request->rank);
    }
    (void)pthread_cond_signal(&inbox->wake);
}

void quire_loop_wake_cancels(quire_loop *loop)
{
    (void)pthread_mutex_lock(&loop->inbox.lock);
    loop->inbox.has_cancels = true;
    (void)pthread_cond_signal(&loop->inbox.wake);
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

void quire_loop_owner_gone(quire_loop *loop, uint64_t owner)
{
    quire_inbox *inbox = &loop->inbox;

    (void)pthread_mutex_lock(&inbox->lock);
    if (inbox->n_owners == inbox->owners_capacity) {
        const uint32_t capacity = 2 * inbox->owners_capacity + 8;
        uint64_t *owners = realloc(inbox->owners, capacity * sizeof *owners);

        inbox->owners = owners != NULL ? owners : inbox->owners;
        inbox->owners_capacity = owners != NULL ? capacity : inbox->owners_capacity;
    }
    if (inbox->n_owners < inbox->owners_capacity) {
        inbox->owners[inbox->n_owners++] = owner;
    }
    (void)pthread_mutex_unlock(&inbox->lock);
}

uint64_t quire_loop_owner_take(quire_loop *loop)
{
    uint64_t owner = 0;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    if (loop->inbox.n_owners > 0) {
        owner = loop->inbox.owners[--loop->inbox.n_owners];
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return owner;
}
