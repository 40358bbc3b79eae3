/* failover.c - requests of a loop whose device was lost go on in another loop.
 *
 * A request takes along its tokens, its sampler and its text, but no page: the other loop computes
 * its tokens as after a preemption. Its client sees a pause, and no token twice.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"
#include "engine/loop/tier_object.h"

#include <stdio.h>
#include <string.h>

void quire_loop_heir_set(quire_loop *loop, const quire_loop_heir *heir)
{
    loop->heir = *heir;
}

bool quire_loop_has_heir(const quire_loop *loop)
{
    return loop->heir.take != NULL;
}

bool quire_loop_is_home(const quire_loop *loop, const quire_prefix_key *key, const int32_t *tokens,
                        uint32_t n_tokens)
{
    return !quire_loop_has_heir(loop) ||
           loop->heir.is_home(loop->heir.ctx, loop, key, tokens, n_tokens);
}

/* ---- the loop that takes them ---- */

/* Whether its pages fit, even alone. */
static bool has_room(const quire_loop *loop, const quire_request *r)
{
    const uint32_t n_tokens = r->n_tokens < r->n_held_max ? r->n_tokens + 1 : r->n_held_max;

    return loop->runtime_opts->n_ctx >= r->n_held_max &&
           quire_loop_condensing_bytes(loop, &r->condensing,
                                       quire_condensing_need(&r->condensing, n_tokens)) +
                   loop->room.states_bytes <=
               quire_loop_budget_bytes(loop, r->class_index, quire_request_drops(r));
}

/* The rules by which the text is condensed stay; parts of the runtime are this loop's from now on.
 */
static void condensing_move(const quire_loop *loop, quire_request *r)
{
    const quire_retain_spec spec = r->condensing.spec;

    if (r->condensing.chunk != 0) {
        quire_condensing_init(&r->condensing, &spec, loop->opts.retain_chunk,
                              loop->runtime_opts->page_tokens, &loop->lanes.parts);
    }
}

bool quire_loop_adopt(quire_loop *loop, quire_request *r)
{
    bool is_taken;

    if (!has_room(loop, r)) {
        return false;
    }
    (void)pthread_mutex_lock(&r->client.lock); /* cancel reads it there */
    r->loop = loop;
    (void)pthread_mutex_unlock(&r->client.lock);
    condensing_move(loop, r);
    (void)pthread_mutex_lock(&loop->inbox.lock);
    is_taken = !loop->inbox.is_stopping && !quire_loop_is_lost(loop);
    if (is_taken) {
        loop->inbox.n_adopted++;
        atomic_fetch_add(&loop->inbox.n_unfinished, 1);
        atomic_fetch_add(&loop->inbox.n_unfinished_of[r->class_index], 1);
        /* Under the lock: a session that is closed later finds its request in the inbox. One that
         * was closed may have looked here before the request came, and there after it had gone. */
        r->is_uncached = r->is_uncached ||
                         (r->owner != 0 && !quire_sessions_has_owner(loop->sessions, r->owner));
        quire_loop_to_compute_set(r, r->n_tokens); /* generated ones are computed again, too */
        quire_inbox_put(&loop->inbox, r);
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return is_taken;
}

/* ---- the loop whose device was lost ---- */

/* From running or parked to the queue, without pages. */
static void displace(quire_loop *loop, quire_request *r)
{
    r->kv.n_lost = r->kv.n_computed;
    quire_loop_let_go(loop, r);
    r->state = QUIRE_REQUEST_WAITING;
    quire_loop_enqueue(loop, r);
}

/* Nothing of this loop stays in a waiting request. */
static void forget_loop(quire_loop *loop, quire_request *r)
{
    quire_tier_leave(loop, r);
    quire_loop_dequeue(loop, r);
    quire_loop_to_compute_set(r, 0);
    memset(&r->wait, 0, sizeof r->wait);
    memset(&r->lead, 0, sizeof r->lead);
}

static void give_away(quire_loop *loop, quire_request *r)
{
    const uint32_t class_index = r->class_index;

    if (atomic_load(&r->is_cancelled)) {
        quire_loop_end(loop, r, &(quire_ending){ .finish = QUIRE_FINISH_CANCEL, .stop_index = -1 });
        return;
    }
    if (r->pin != 0) {
        return; /* a pin is of this cache */
    }
    forget_loop(loop, r);
    if (loop->heir.take(loop->heir.ctx, r)) { /* from here on it is the other loop's */
        atomic_fetch_sub(&loop->inbox.n_unfinished_of[class_index], 1);
        atomic_fetch_sub(&loop->inbox.n_unfinished, 1);
        return;
    }
    (void)pthread_mutex_lock(&r->client.lock);
    r->loop = loop;
    (void)pthread_mutex_unlock(&r->client.lock);
    quire_loop_enqueue(loop, r);
}

static void give_all_away(quire_loop *loop)
{
    while (loop->set.n_running > 0) {
        displace(loop, loop->set.running[loop->set.n_running - 1]);
    }
    while (loop->set.n_parked > 0) {
        displace(loop, loop->set.parked[loop->set.n_parked - 1]);
    }
    for (uint32_t i = 0; i < loop->opts.classes.n; i++) {
        for (quire_queue_link *link = loop->set.queues[i].first, *next; link != NULL; link = next) {
            next = link->next;
            give_away(loop, quire_request_of(link));
        }
    }
}

/* Nobody hits the pages of a lost device: its watcher is cleared, and once more whenever it asks
 * for all pages again. A watcher that is full is cleared later. */
static void watcher_end(quire_loop *loop)
{
    const quire_prefix_watcher *watcher = &loop->opts.watcher;

    if (watcher->stored == NULL) {
        return;
    }
    quire_prefix_watch(loop->tree, NULL);
    if (watcher->again != NULL && watcher->again(watcher->ctx)) {
        loop->has_cleared = false;
    }
    loop->has_cleared = loop->has_cleared || watcher->cleared(watcher->ctx);
}

void quire_loop_lost(quire_loop *loop)
{
    char message[QUIRE_ERROR_MESSAGE_MAX];

    if (!quire_loop_is_lost(loop)) {
        loop->inbox.lost_name = quire_runtime_lost_name(loop->runtime);
    }
    atomic_store(&loop->inbox.is_lost, true);
    watcher_end(loop);
    if (quire_loop_has_heir(loop)) {
        give_all_away(loop);
    }
    (void)snprintf(message, sizeof message, QUIRE_LOST_MESSAGE, quire_loop_lost_name(loop));
    quire_loop_all_end(loop, &(quire_ending){ .finish = QUIRE_FINISH_ERROR,
                                              .status = QUIRE_LOST,
                                              .stop_index = -1,
                                              .message = message });
    loop->events.lost(loop->events.ctx);
}
