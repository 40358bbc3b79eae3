/* leave.c - from running to the queue (preemption) or to the end (done, cancelled, failed).
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine_internal.h"

#include "base/check.h"

#include <stdio.h>

/* ---- letting go of pages ---- */

void quire_engine_seq_end(quire_engine *engine, quire_request *r)
{
    if (r->ref != QUIRE_PREFIX_REF_NULL) {
        (void)quire_prefix_release(engine->tree, r->ref, quire_engine_now_us(engine));
    }
    (void)quire_seq_close(engine->cache, r->seq);
    r->ref = QUIRE_PREFIX_REF_NULL;
    r->seq = QUIRE_SEQ_NULL;
    r->n_computed = 0;
    r->n_published = 0;
    r->n_found = 0;
}

/* Publish what is computed, let go of pages, leave the running or parked ones. */
static void let_go(quire_engine *engine, quire_request *r)
{
    quire_engine_publish(engine, r);
    quire_engine_seq_end(engine, r);
    if (r->is_parked) {
        quire_engine_unpark(engine, r);
    } else {
        quire_engine_running_remove(engine, r);
    }
    engine->n_releases++;
}

/* ---- the end ---- */

static void count_end(quire_engine *engine, const quire_request_result *result)
{
    quire_engine_stats *s = &engine->stats;

    switch (result->finish) {
    case QUIRE_FINISH_STOP:
        s->finished_stop_total++;
        break;
    case QUIRE_FINISH_LENGTH:
        s->finished_length_total++;
        break;
    case QUIRE_FINISH_CANCEL:
        s->finished_cancelled_total++;
        break;
    case QUIRE_FINISH_ERROR:
        s->finished_error_total++;
        break;
    case QUIRE_FINISH_NONE:
        break;
    }
    quire_histogram_add(&s->e2e, (double)result->total_us * 1e-6);
}

/* The mean time between its tokens, as clients see it. */
static void count_class_end(quire_engine *engine, const quire_request *r)
{
    const uint32_t n_generated = r->n_tokens - r->n_prompt;
    quire_class_stats *c = &engine->stats.classes[r->class_index];

    c->finished_total++;
    if (n_generated > 1) {
        quire_histogram_add(&c->tpot,
                            (double)(r->last_us - r->first_us) * 1e-6 / (n_generated - 1));
    }
}

static void result_times(quire_engine *engine, const quire_request *r, quire_request_result *result)
{
    const uint64_t now_us = quire_engine_now_us(engine);

    result->total_us = now_us - r->submitted_us;
    result->queue_us = (r->admitted_us != 0 ? r->admitted_us : now_us) - r->submitted_us;
    if (r->first_us != 0) {
        result->prefill_us = r->first_us - r->admitted_us;
        result->ttft_us = r->first_us - r->submitted_us;
        result->decode_us = r->last_us - r->first_us;
    }
}

void quire_engine_end(quire_engine *engine, quire_request *r, const quire_ending *ending)
{
    quire_request_result result;

    if (r->pin != 0) {
        quire_engine_pins_ended(engine, r, ending);
    }
    if (r->state == QUIRE_REQUEST_WAITING) {
        quire_engine_dequeue(engine, r);
    } else {
        quire_adapt_ended(engine, r);
        let_go(engine, r);
    }
    r->state = QUIRE_REQUEST_DONE;
    result = r->result;
    result.finish = ending->finish;
    result.status = ending->status;
    result.stop_index = ending->stop_index;
    result.n_prompt_tokens = r->n_prompt;
    if (ending->finish == QUIRE_FINISH_ERROR) {
        (void)snprintf(result.message, sizeof result.message, "%s",
                       ending->message != NULL ? ending->message
                                               : quire_status_text(ending->status));
    }
    quire_bytes_clear(&engine->shown);
    /* After a stop text nothing is held back; without memory what was is lost. */
    if (ending->stop_index < 0 && quire_text_out_finish(r->text, &engine->shown) == QUIRE_OK) {
        result.tail = engine->shown.data;
        result.tail_bytes = (uint32_t)engine->shown.n;
    }
    result_times(engine, r, &result);
    count_end(engine, &result);
    count_class_end(engine, r);
    if (r->first_us == 0 && r->has_explanation) { /* else known since the first token */
        quire_engine_explanation_update(engine, r);
    }
    quire_engine_explanation_keep(engine, r);
    quire_engine_stats_publish(engine);
    atomic_fetch_sub(&engine->n_unfinished_of[r->class_index], 1);
    atomic_fetch_sub(&engine->n_unfinished, 1);
    quire_request_finish(r, &result);
}

/* ---- cancel ---- */

void quire_engine_cancels_apply(quire_engine *engine)
{
    const quire_ending ending = { .finish = QUIRE_FINISH_CANCEL, .stop_index = -1 };
    bool has_cancels;

    (void)pthread_mutex_lock(&engine->lock);
    has_cancels = engine->has_cancels;
    engine->has_cancels = false;
    (void)pthread_mutex_unlock(&engine->lock);
    if (!has_cancels) {
        return;
    }
    for (uint32_t i = engine->n_running; i > 0; i--) {
        if (atomic_load(&engine->running[i - 1]->is_cancelled)) {
            quire_engine_end(engine, engine->running[i - 1], &ending);
        }
    }
    for (uint32_t i = 0; i < engine->opts.classes.n; i++) {
        for (quire_queue_link *link = engine->queues[i].first; link != NULL;) {
            quire_request *r = quire_request_of(link);

            link = link->next;
            if (atomic_load(&r->is_cancelled)) {
                quire_engine_end(engine, r, &ending);
            }
        }
    }
}

/* ---- preemption ---- */

void quire_engine_preempt(quire_engine *engine, quire_request *r)
{
    r->n_lost = r->n_computed;
    let_go(engine, r);
    r->result.n_preemptions++;
    engine->stats.preemptions_total++;
    engine->stats.classes[r->class_index].preempted_total++;
    r->state = QUIRE_REQUEST_WAITING;
    r->held_by = 0;
    r->claim.tree_generation = 0; /* it has more tokens than when it was looked up */
    /* Back when somebody else lets go: its own pages do not suffice, or it would run. Were it let
     * in again at once, a step that fails for another reason than pages would be tried for ever. */
    r->blocked_at = engine->n_releases;
    quire_engine_enqueue(engine, r);
}

/* It cannot go on though nobody else holds pages: what it has is its answer, if it has one. */
static void end_stuck(quire_engine *engine, quire_request *r, int status)
{
    char message[QUIRE_ERROR_MESSAGE_MAX];
    quire_cache_stats cache;

    if (r->n_tokens > r->n_prompt && status == QUIRE_NOPAGES) {
        quire_engine_end(engine, r,
                         &(quire_ending){ .finish = QUIRE_FINISH_LENGTH, .stop_index = -1 });
        return;
    }
    quire_cache_stats_get(engine->cache, &cache);
    (void)snprintf(message, sizeof message,
                   "%u tokens cannot be computed within the KV budget of %llu bytes: %s",
                   r->n_tokens, (unsigned long long)cache.budget_bytes, quire_status_text(status));
    quire_engine_end(
        engine, r,
        &(quire_ending){
            .finish = QUIRE_FINISH_ERROR, .status = status, .stop_index = -1, .message = message });
}

/* Alone and short of pages: what it has found in the cache may be in its way, since a shared page
 * that is partly filled must be copied. Begin again with full pages only, then with nothing. */
static bool retreat(quire_request *r)
{
    if (r->stuck_tokens != r->n_tokens) {
        r->stuck_tokens = r->n_tokens;
        r->retreat = QUIRE_RETREAT_NONE;
    }
    if (r->retreat == QUIRE_RETREAT_NO_HIT) {
        return false;
    }
    r->retreat++;
    return true;
}

void quire_engine_relieve(quire_engine *engine, int status)
{
    const bool is_short = status == QUIRE_NOPAGES || status == QUIRE_NOMEM;
    const uint32_t n_others = engine->n_running - 1 + (is_short ? engine->n_parked : 0);
    quire_victim_ask ask = { .has_parked = is_short, .by_cost = is_short };
    quire_request *victim;

    for (uint32_t i = 0; i < engine->n_running; i++) {
        const quire_request *r = engine->running[i];

        ask.rank = r->rank_now > ask.rank ? r->rank_now : ask.rank;
    }
    victim = quire_engine_victim(engine, &ask);
    /* A step does not say whose fault it is. So they leave one by one, and only who fails alone is
     * ended. */
    if (n_others > 0 || (is_short && retreat(victim))) {
        quire_engine_preempt(engine, victim);
    } else {
        end_stuck(engine, victim, status);
    }
}
