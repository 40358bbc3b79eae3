/* loop.c - life cycle of the loop, and the rounds of its thread.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"
#include "engine/loop/overflow_loop.h"
#include "engine/loop/tier_object.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"

#include <errno.h>
#include <sys/random.h>

#define IDLE_FIRST_MS      100u  /* idle time before the thread tidies up */
#define IDLE_MS            1000u /* interval of expiry while idle */
#define BELOW_MS           5u    /* while all requests wait for pages from below */
#define UPKEEP_US          1000000u
#define EXPIRE_NODES_MAX   1024u
#define COALESCE_MOVES_MAX 64u
#define TELL_NODES_STEP    64u /* told to a watcher that is behind, per step; a node takes 1 us */
#define TELL_NODES_IDLE    4096u
#define TELL_IDLE_MS       10u
#define KEEP_EXTENT_BYTES  ((uint64_t)64 << 20) /* not returned to the OS when idle */

uint64_t quire_loop_now_us(const quire_loop *loop)
{
    return loop->opts.clock_us != NULL ? loop->opts.clock_us(loop->opts.clock_ctx)
                                       : quire_clock_ns() / 1000u;
}

uint64_t quire_loop_random(void)
{
    uint64_t number = 0;

    return getrandom(&number, sizeof number, GRND_NONBLOCK) == (ssize_t)sizeof number ? number : 0;
}

/* ---- the thread ---- */

/* Whether all requests wait for pages from below. */
static bool waits_below(const quire_loop *loop)
{
    return loop->set.n_running == 0 && loop->set.n_parked == 0 && quire_tier_is_fetching(loop);
}

static bool has_work(const quire_loop *loop)
{
    return loop->set.n_running > 0 || (loop->set.n_queued > 0 && !waits_below(loop)) ||
           loop->inbox.requests.n > 0 || loop->inbox.has_transfers || loop->inbox.tasks != NULL ||
           loop->inbox.chores != NULL || loop->inbox.has_cancels || loop->inbox.is_stopping;
}

/* Tidy up while nothing runs. Returns whether there may be more to do. */
static bool tidy(quire_loop *loop)
{
    if (quire_cache_coalesce(loop->cache, COALESCE_MOVES_MAX) == COALESCE_MOVES_MAX) {
        return true;
    }
    (void)quire_cache_trim(loop->cache, KEEP_EXTENT_BYTES);
    return false;
}

/* Expire sessions and cached pages; at most once a second. */
static void upkeep(quire_loop *loop)
{
    const uint64_t now_us = quire_loop_now_us(loop);
    uint64_t owner;

    if (now_us - loop->upkeep_us < UPKEEP_US) {
        return;
    }
    loop->upkeep_us = now_us;
    if (quire_prefix_expire(loop->tree, now_us, EXPIRE_NODES_MAX) > 0) {
        quire_loop_released(loop);
    }
    while ((owner = quire_sessions_expire(loop->sessions, now_us)) != 0) {
        quire_loop_owner_gone(loop, owner);
        if (quire_loop_has_heir(loop)) {
            loop->heir.owner_gone(loop->heir.ctx, loop, owner);
        }
    }
    while ((owner = quire_loop_owner_take(loop)) != 0) {
        (void)quire_prefix_drop_owner(loop->tree, owner, now_us);
        quire_loop_released(loop);
    }
}

/* The loop is idle: the listener may use the time. Returns the milliseconds until the next call. */
static uint32_t be_idle(quire_loop *loop)
{
    const bool is_busy = !quire_runtime_is_lost(loop->runtime) && tidy(loop);
    const quire_loop_idle idle = { .is_busy = is_busy, .again_ms = is_busy ? 1 : IDLE_MS };
    uint32_t again_ms;

    upkeep(loop);
    if (quire_runtime_is_lost(loop->runtime)) {
        quire_loop_lost(loop);
        quire_loop_stats_publish(loop);
        return IDLE_MS;
    }
    again_ms = loop->events.idle(loop->events.ctx, &idle);
    quire_tier_stats_fill(loop);
    quire_overflow_upkeep(loop, true);
    quire_overflow_stats_fill(loop);
    again_ms = quire_tier_copy(loop, 0) ? 1 : again_ms;
    if (quire_prefix_watch_some(loop->tree, TELL_NODES_IDLE)) {
        again_ms = quire_min_u32(again_ms, TELL_IDLE_MS);
    }
    quire_loop_stats_publish(loop);
    return again_ms;
}

/* Tell the listener that requests have arrived. */
static void idle_over(quire_loop *loop)
{
    const quire_loop_idle idle = { .is_over = true };

    (void)loop->events.idle(loop->events.ctx, &idle);
}

/* Sleep until there is work. Returns false when the loop is to end. */
static bool wait_for_work(quire_loop *loop)
{
    uint32_t idle_ms = waits_below(loop) ? BELOW_MS : IDLE_FIRST_MS;
    bool is_going_on;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    while (!has_work(loop)) {
        const struct timespec deadline = quire_deadline(idle_ms);

        if (pthread_cond_timedwait(&loop->inbox.wake, &loop->inbox.lock, &deadline) == ETIMEDOUT) {
            if (waits_below(loop)) {
                break; /* a round sees whether they have waited too long */
            }
            (void)pthread_mutex_unlock(&loop->inbox.lock);
            idle_ms = be_idle(loop);
            (void)pthread_mutex_lock(&loop->inbox.lock);
        }
    }
    is_going_on = !loop->inbox.is_stopping;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return is_going_on;
}

static void inbox_fetch(quire_loop *loop)
{
    (void)pthread_mutex_lock(&loop->inbox.lock);
    while (loop->inbox.requests.first != NULL) {
        quire_queue_link *link = loop->inbox.requests.first;

        quire_queue_remove(&loop->inbox.requests, link);
        quire_loop_enqueue(loop, quire_request_of(link));
        /* The cancel of a request in the inbox may have been handled before the request was
         * seen. */
        loop->inbox.has_cancels |= atomic_load(&quire_request_of(link)->is_cancelled);
    }
    atomic_store(&loop->inbox.urgent_rank, -1);
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

static bool leaves_store(quire_loop *loop)
{
    bool leaves;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    leaves = loop->inbox.leaves_store;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return leaves;
}

static void end_all(quire_loop *loop)
{
    const quire_ending ending = { .finish = QUIRE_FINISH_CANCEL, .stop_index = -1 };

    inbox_fetch(loop);
    idle_over(loop);
    quire_loop_all_end(loop, &ending);
    quire_loop_tasks_run(loop, true);
    quire_loop_chores_end(loop);
    if (!leaves_store(loop)) {
        quire_tier_close(loop);
    }
    quire_loop_stats_publish(loop);
}

/* One round: admission, a step, and publication of the figures. */
static void go_round(quire_loop *loop)
{
    const uint64_t begin_ns = quire_clock_ns();
    uint64_t step_us;

    loop->step.told = (quire_loop_step){ 0 };
    quire_tier_hear(loop);
    quire_tier_poll(loop, loop->tier_step_us);
    if (!quire_loop_is_lost(loop)) {
        quire_loop_admit(loop);
        quire_loop_step_do(loop);
    }
    if (quire_runtime_is_lost(loop->runtime)) {
        quire_loop_lost(loop);
    }
    loop->events.step(loop->events.ctx, &loop->step.told);
    step_us = loop->set.n_running > 0 ? (quire_clock_ns() - begin_ns) / 1000u + 1 : 0;
    loop->tier_step_us = step_us;
    (void)quire_tier_copy(loop, step_us);
    quire_overflow_upkeep(loop, false);
    quire_overflow_stats_fill(loop);
    (void)quire_prefix_watch_some(loop->tree, TELL_NODES_STEP);
    quire_loop_stats_publish(loop);
    quire_loop_chores_run(loop, step_us);
}

static void *thread_main(void *arg)
{
    quire_loop *loop = arg;

    while (wait_for_work(loop)) {
        upkeep(loop);
        quire_loop_tasks_run(loop, false);
        inbox_fetch(loop);
        if (loop->set.n_running > 0 || loop->set.n_queued > 0) {
            idle_over(loop);
        }
        quire_loop_cancels_apply(loop);
        go_round(loop);
    }
    end_all(loop);
    return NULL;
}

int quire_loop_start(quire_loop *loop, const quire_loop_events *events, quire_error *err)
{
    loop->events = *events;
    (void)quire_runtime_canceler_set(loop->runtime, quire_loop_qos_gives_up, loop);
    /* A look at the figures before the thread's first round shows the capacities, too. */
    quire_tier_stats_fill(loop);
    quire_overflow_stats_fill(loop);
    quire_loop_stats_publish(loop);
    if (pthread_create(&loop->thread, NULL, thread_main, loop) != 0) {
        (void)quire_runtime_canceler_set(loop->runtime, NULL, NULL);
        return quire_error_set(err, QUIRE_NOMEM, "cannot start the engine's thread");
    }
    loop->is_started = true;
    return QUIRE_OK;
}

void quire_loop_store_leave(quire_loop *loop)
{
    (void)pthread_mutex_lock(&loop->inbox.lock);
    loop->inbox.leaves_store = true;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

void quire_loop_stop_begin(quire_loop *loop)
{
    (void)pthread_mutex_lock(&loop->inbox.lock);
    loop->inbox.is_stopping = true;
    (void)pthread_cond_signal(&loop->inbox.wake);
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

void quire_loop_stop(quire_loop *loop)
{
    if (!loop->is_started) {
        return;
    }
    quire_loop_stop_begin(loop);
    (void)pthread_join(loop->thread, NULL);
    (void)quire_runtime_canceler_set(loop->runtime, NULL, NULL);
    loop->is_started = false;
}

/* ---- questions and setters ---- */

const quire_loop_parts *quire_loop_parts_get(const quire_loop *loop)
{
    return &loop->parts;
}

uint64_t quire_loop_uptime_us(const quire_loop *loop)
{
    return quire_loop_now_us(loop) - loop->created_us;
}

bool quire_loop_is_idle(const quire_loop *loop)
{
    return atomic_load(&loop->inbox.n_unfinished) == 0;
}

void quire_loop_load_get(const quire_loop *loop, uint32_t *n_requests, uint64_t *n_to_compute)
{
    *n_requests = atomic_load(&loop->inbox.n_unfinished);
    *n_to_compute = atomic_load(&loop->inbox.n_to_compute);
}

bool quire_loop_is_lost(const quire_loop *loop)
{
    return atomic_load(&loop->inbox.is_lost);
}

const char *quire_loop_lost_name(const quire_loop *loop)
{
    return loop->inbox.lost_name;
}

const uint32_t *quire_loop_running_of(const quire_loop *loop)
{
    return loop->set.n_running_of;
}

int quire_loop_ttl_set(quire_loop *loop, uint64_t ttl_us)
{
    const quire_classes *classes = &loop->opts.classes;

    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        const uint32_t c = quire_classes_of_rank(classes, rank);
        const uint64_t own_us = c != QUIRE_CLASSES_MAX ? classes->items[c].cache_ttl_us : 0;

        QUIRE_TRY(quire_prefix_ttl_set(loop->tree, (uint8_t)rank, own_us != 0 ? own_us : ttl_us));
    }
    return QUIRE_OK;
}

int quire_loop_low_traffic_set(quire_loop *loop, uint64_t after_us)
{
    return quire_prefix_low_traffic_set(loop->tree, after_us, loop->opts.low_traffic_hits_per_hour);
}

int quire_loop_token_cost_set(quire_loop *loop, double token_us, double token_depth_us)
{
    QUIRE_TRY(quire_prefix_cost_set(loop->tree, token_us, token_depth_us));
    quire_tier_cost_set(loop, token_us, token_depth_us);
    return QUIRE_OK;
}

int quire_loop_compute(quire_loop *loop, const quire_slice *slice)
{
    const float *logits = NULL;

    loop->step.rank = -1;
    loop->step.us = 0.0;
    return quire_runtime_step(loop->runtime, slice, 1, &logits);
}
