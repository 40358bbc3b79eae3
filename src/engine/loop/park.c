/* park.c - displacement: take places and pages from lower classes for a higher one.
 *
 * A place (one of n_running_max) is freed by parking a request, which keeps its pages and its state
 * and costs only memory. Parking is preferred while memory suffices and a parked place is free.
 * Pages are freed by preemption: computed tokens stay cached until they are evicted, and are
 * recomputed if missing. Measured costs select the victim: in the lowest class the request whose
 * tokens cost least to recompute per freed byte. Parked requests come first, since they wait
 * anyway.
 *
 * Among requests of the asking class the youngest is displaced, regardless of cost. So the oldest
 * always progresses, and two requests cannot displace each other in turns. A promoted request
 * counts as a request of the class that it overtook (rank_now); otherwise it would be displaced
 * again at once.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"

#include "base/check.h"

/* ---- lists ---- */

void quire_loop_enqueue(quire_loop *loop, quire_request *r)
{
    r->wait.since_us = quire_loop_now_us(loop);
    quire_queue_insert(&loop->set.queues[r->class_index], &r->link);
    loop->set.n_queued++;
}

void quire_loop_dequeue(quire_loop *loop, quire_request *r)
{
    quire_queue_remove(&loop->set.queues[r->class_index], &r->link);
    loop->set.n_queued--;
}

void quire_loop_running_add(quire_loop *loop, quire_request *r, uint8_t rank_now)
{
    loop->set.running[loop->set.n_running++] = r;
    loop->set.n_running_of[r->class_index]++;
    r->rank_now = rank_now;
    loop->set.n_promoted_of[r->class_index] += rank_now > r->rank;
    r->n_left_out = 0;
}

void quire_loop_running_remove(quire_loop *loop, quire_request *r)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        if (loop->set.running[i] != r) {
            loop->set.running[n++] = loop->set.running[i];
        }
    }
    QUIRE_ASSERT(n + 1 == loop->set.n_running);
    loop->set.n_running = n;
    loop->set.n_running_of[r->class_index]--;
    loop->set.n_promoted_of[r->class_index] -= r->rank_now > r->rank;
}

void quire_loop_park(quire_loop *loop, quire_request *r)
{
    QUIRE_ASSERT(loop->set.n_parked < loop->opts.n_parked_max);
    quire_runtime_release(loop->runtime, r->kv.seq);
    quire_loop_running_remove(loop, r);
    quire_loop_enqueue(loop, r);
    r->is_parked = true;
    r->wait.blocked_at = 0;
    loop->set.parked[loop->set.n_parked++] = r;
    loop->set.n_parked_of[r->class_index]++;
    loop->room.n_releases++; /* its reserved memory is free for other requests */
    r->result.n_parkings++;
    loop->figures.now.classes[r->class_index].parked_total++;
}

void quire_loop_unpark(quire_loop *loop, quire_request *r)
{
    uint32_t i = 0;

    while (loop->set.parked[i] != r) {
        i++;
        QUIRE_ASSERT(i < loop->set.n_parked);
    }
    loop->set.parked[i] = loop->set.parked[--loop->set.n_parked];
    loop->set.n_parked_of[r->class_index]--;
    r->is_parked = false;
    r->result.parked_us += quire_loop_now_us(loop) - r->wait.since_us;
    quire_loop_dequeue(loop, r);
}

/* ---- choosing a victim ---- */

static uint64_t own_bytes(const quire_loop *loop, const quire_request *r)
{
    return quire_loop_held_bytes(loop, r, quire_request_held(r)) -
           quire_loop_held_bytes(loop, r, r->kv.n_found) + loop->room.states_bytes;
}

/* Cost of recomputing the unshared tokens, per byte freed. */
static double cost_per_byte(const quire_loop *loop, const quire_request *r)
{
    const double us = quire_cost_prefill_us(&loop->figures.now.cost, r->kv.n_found,
                                            r->kv.n_computed, loop->opts.chunk_tokens);

    return us / ((double)own_bytes(loop, r) + 1.0);
}

static bool is_younger(const quire_request *a, const quire_request *b)
{
    return a->link.priority != b->link.priority ? a->link.priority < b->link.priority
                                                : a->link.arrival > b->link.arrival;
}

/* Whether a is displaced before b. */
static bool gives_way(const quire_loop *loop, const quire_request *a, const quire_request *b,
                      const quire_victim_ask *ask)
{
    if (a->rank_now != b->rank_now) {
        return a->rank_now < b->rank_now;
    }
    if (a->is_parked != b->is_parked) {
        return a->is_parked;
    }
    if (ask->by_cost && a->rank_now < ask->rank) {
        const double cost_a = cost_per_byte(loop, a);
        const double cost_b = cost_per_byte(loop, b);

        if (cost_a < cost_b || cost_a > cost_b) {
            return cost_a < cost_b;
        }
    }
    return is_younger(a, b);
}

/* Whether a more urgent request waits for the prefix that r computes. */
static bool is_wanted(const quire_request *r, uint8_t rank)
{
    return r->lead.n_tokens > r->kv.n_computed && r->lead.rank >= rank;
}

quire_request *quire_loop_victim(const quire_loop *loop, const quire_victim_ask *ask)
{
    const uint32_t n_parked = ask->has_parked ? loop->set.n_parked : 0;
    quire_request *victim = NULL;

    for (uint32_t i = 0; i < loop->set.n_running + n_parked; i++) {
        quire_request *r = i < loop->set.n_running ? loop->set.running[i]
                                                   : loop->set.parked[i - loop->set.n_running];

        if (ask->is_below && (r->rank_now >= ask->rank || is_wanted(r, ask->rank))) {
            continue;
        }
        if (ask->asker != NULL && !quire_loop_helps(loop, ask->asker, r)) {
            continue;
        }
        if (victim == NULL || gives_way(loop, r, victim, ask)) {
            victim = r;
        }
    }
    return victim;
}

/* ---- for a request of a high class ---- */

bool quire_loop_place_make(quire_loop *loop, const quire_request *r)
{
    const bool is_full = loop->set.n_parked == loop->opts.n_parked_max;
    const quire_victim_ask ask = { .rank = r->rank, .is_below = true, .by_cost = is_full };
    quire_request *victim = quire_loop_victim(loop, &ask);

    if (victim == NULL) {
        return false;
    }
    loop->figures.now.classes[victim->class_index].displaced_total++;
    if (is_full) {
        quire_loop_preempt(loop, victim);
    } else {
        quire_loop_park(loop, victim);
    }
    return true;
}

uint64_t quire_loop_lower_bytes(const quire_loop *loop, const quire_request *r)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        const quire_request *v = loop->set.running[i];

        if (v->rank_now < r->rank && !is_wanted(v, r->rank) && quire_loop_helps(loop, r, v)) {
            bytes += own_bytes(loop, v) + quire_loop_bytes_ahead(loop, v, quire_request_held(v));
        }
    }
    for (uint32_t i = 0; i < loop->set.n_parked; i++) {
        const quire_request *v = loop->set.parked[i];

        bytes += v->rank_now < r->rank && quire_loop_helps(loop, r, v) ? own_bytes(loop, v) : 0;
    }
    return bytes;
}

bool quire_loop_room_make(quire_loop *loop, const quire_request *r)
{
    const quire_victim_ask ask = {
        .rank = r->rank, .is_below = true, .has_parked = true, .by_cost = true, .asker = r
    };
    quire_request *victim = quire_loop_victim(loop, &ask);

    if (victim == NULL) {
        return false;
    }
    loop->figures.now.classes[victim->class_index].displaced_total += !victim->is_parked;
    quire_loop_preempt(loop, victim);
    return true;
}

/* ---- fewer of a class ---- */

void quire_loop_limit_set(quire_loop *loop, uint32_t class_index, uint32_t limit)
{
    loop->figures.now.classes[class_index].cuts_total += limit < loop->set.limits[class_index];
    loop->set.limits[class_index] = limit;
    while (loop->set.n_running_of[class_index] > limit &&
           loop->set.n_parked < loop->opts.n_parked_max) {
        quire_request *youngest = NULL;

        for (uint32_t i = 0; i < loop->set.n_running; i++) {
            quire_request *r = loop->set.running[i];

            if (r->class_index == class_index && (youngest == NULL || is_younger(r, youngest))) {
                youngest = r;
            }
        }
        loop->figures.now.classes[class_index].displaced_total++;
        quire_loop_park(loop, youngest);
    }
}
