/* park.c - places and pages for a high class, from lower ones.
 *
 * A place (one of n_running_max) is had by parking somebody: it keeps its pages and its state, and
 * costs nothing but memory. So that is what happens while there is memory and a free place among
 * the parked. Pages are had by preempting: what was computed stays cached for as long as others
 * leave it there, the rest is computed again. Who is preempted is a matter of measured costs: of
 * the lowest class the one whose tokens cost least to compute again for each byte that it frees,
 * those that are parked first, for they have to wait anyway.
 *
 * Within a class costs do not decide: there the youngest gives way, so that the oldest always goes
 * on and two cannot displace each other in turns. A request that was let in because it had waited
 * long counts as of the class that it was let in before (rank_now), or it would be displaced again
 * at once.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine_internal.h"

#include "base/check.h"

/* ---- lists ---- */

void quire_engine_enqueue(quire_engine *engine, quire_request *r)
{
    r->waiting_us = quire_engine_now_us(engine);
    quire_queue_insert(&engine->queues[r->class_index], &r->link);
    engine->n_queued++;
}

void quire_engine_dequeue(quire_engine *engine, quire_request *r)
{
    quire_queue_remove(&engine->queues[r->class_index], &r->link);
    engine->n_queued--;
}

void quire_engine_running_add(quire_engine *engine, quire_request *r, uint8_t rank_now)
{
    engine->running[engine->n_running++] = r;
    engine->n_running_of[r->class_index]++;
    r->rank_now = rank_now;
    engine->n_promoted_of[r->class_index] += rank_now > r->rank;
    r->n_left_out = 0;
}

void quire_engine_running_remove(quire_engine *engine, quire_request *r)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < engine->n_running; i++) {
        if (engine->running[i] != r) {
            engine->running[n++] = engine->running[i];
        }
    }
    QUIRE_ASSERT(n + 1 == engine->n_running);
    engine->n_running = n;
    engine->n_running_of[r->class_index]--;
    engine->n_promoted_of[r->class_index] -= r->rank_now > r->rank;
}

void quire_engine_park(quire_engine *engine, quire_request *r)
{
    QUIRE_ASSERT(engine->n_parked < engine->opts.n_parked_max);
    quire_engine_running_remove(engine, r);
    quire_engine_enqueue(engine, r);
    r->is_parked = true;
    r->blocked_at = 0;
    engine->parked[engine->n_parked++] = r;
    engine->n_parked_of[r->class_index]++;
    engine->n_releases++; /* what it would still have taken is free for others */
    r->result.n_parkings++;
    engine->stats.classes[r->class_index].parked_total++;
}

void quire_engine_unpark(quire_engine *engine, quire_request *r)
{
    uint32_t i = 0;

    while (engine->parked[i] != r) {
        i++;
        QUIRE_ASSERT(i < engine->n_parked);
    }
    engine->parked[i] = engine->parked[--engine->n_parked];
    engine->n_parked_of[r->class_index]--;
    r->is_parked = false;
    r->result.parked_us += quire_engine_now_us(engine) - r->waiting_us;
    quire_engine_dequeue(engine, r);
}

/* ---- who gives way ---- */

static uint64_t own_bytes(const quire_engine *engine, const quire_request *r)
{
    return quire_engine_need_bytes(engine, r->n_computed) -
           quire_engine_need_bytes(engine, r->n_found);
}

/* Of computing again what is not shared, for each byte that is freed. */
static double cost_per_byte(const quire_engine *engine, const quire_request *r)
{
    const double us = quire_cost_prefill_us(&engine->stats.cost, r->n_found, r->n_computed,
                                            engine->opts.chunk_tokens);

    return us / ((double)own_bytes(engine, r) + 1.0);
}

static bool is_younger(const quire_request *a, const quire_request *b)
{
    return a->link.priority != b->link.priority ? a->link.priority < b->link.priority
                                                : a->link.arrival > b->link.arrival;
}

/* Whether a gives way before b. */
static bool gives_way(const quire_engine *engine, const quire_request *a, const quire_request *b,
                      const quire_victim_ask *ask)
{
    if (a->rank_now != b->rank_now) {
        return a->rank_now < b->rank_now;
    }
    if (a->is_parked != b->is_parked) {
        return a->is_parked;
    }
    if (ask->by_cost && a->rank_now < ask->rank) {
        const double cost_a = cost_per_byte(engine, a);
        const double cost_b = cost_per_byte(engine, b);

        if (cost_a < cost_b || cost_a > cost_b) {
            return cost_a < cost_b;
        }
    }
    return is_younger(a, b);
}

/* Somebody more urgent waits for what it computes. */
static bool is_wanted(const quire_request *r, uint8_t rank)
{
    return r->n_wanted > r->n_computed && r->wanted_rank >= rank;
}

quire_request *quire_engine_victim(const quire_engine *engine, const quire_victim_ask *ask)
{
    const uint32_t n_parked = ask->has_parked ? engine->n_parked : 0;
    quire_request *victim = NULL;

    for (uint32_t i = 0; i < engine->n_running + n_parked; i++) {
        quire_request *r =
            i < engine->n_running ? engine->running[i] : engine->parked[i - engine->n_running];

        if (ask->is_below && (r->rank_now >= ask->rank || is_wanted(r, ask->rank))) {
            continue;
        }
        if (ask->asker != NULL && !quire_engine_helps(engine, ask->asker, r)) {
            continue;
        }
        if (victim == NULL || gives_way(engine, r, victim, ask)) {
            victim = r;
        }
    }
    return victim;
}

/* ---- for a request of a high class ---- */

bool quire_engine_place_make(quire_engine *engine, const quire_request *r)
{
    const bool is_full = engine->n_parked == engine->opts.n_parked_max;
    const quire_victim_ask ask = { .rank = r->rank, .is_below = true, .by_cost = is_full };
    quire_request *victim = quire_engine_victim(engine, &ask);

    if (victim == NULL) {
        return false;
    }
    engine->stats.classes[victim->class_index].displaced_total++;
    if (is_full) {
        quire_engine_preempt(engine, victim);
    } else {
        quire_engine_park(engine, victim);
    }
    return true;
}

uint64_t quire_engine_lower_bytes(const quire_engine *engine, const quire_request *r)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < engine->n_running; i++) {
        const quire_request *v = engine->running[i];

        if (v->rank_now < r->rank && !is_wanted(v, r->rank) && quire_engine_helps(engine, r, v)) {
            bytes += own_bytes(engine, v) + quire_engine_bytes_ahead(engine, v, v->n_computed);
        }
    }
    for (uint32_t i = 0; i < engine->n_parked; i++) {
        const quire_request *v = engine->parked[i];

        bytes +=
            v->rank_now < r->rank && quire_engine_helps(engine, r, v) ? own_bytes(engine, v) : 0;
    }
    return bytes;
}

bool quire_engine_room_make(quire_engine *engine, const quire_request *r)
{
    const quire_victim_ask ask = {
        .rank = r->rank, .is_below = true, .has_parked = true, .by_cost = true, .asker = r
    };
    quire_request *victim = quire_engine_victim(engine, &ask);

    if (victim == NULL) {
        return false;
    }
    engine->stats.classes[victim->class_index].displaced_total += !victim->is_parked;
    quire_engine_preempt(engine, victim);
    return true;
}

/* ---- fewer of a class ---- */

void quire_engine_limit_apply(quire_engine *engine, uint32_t class_index)
{
    const uint32_t limit = engine->qos.degrade.classes[class_index].limit;

    while (engine->n_running_of[class_index] > limit &&
           engine->n_parked < engine->opts.n_parked_max) {
        quire_request *youngest = NULL;

        for (uint32_t i = 0; i < engine->n_running; i++) {
            quire_request *r = engine->running[i];

            if (r->class_index == class_index && (youngest == NULL || is_younger(r, youngest))) {
                youngest = r;
            }
        }
        engine->stats.classes[class_index].displaced_total++;
        quire_engine_park(engine, youngest);
    }
}
