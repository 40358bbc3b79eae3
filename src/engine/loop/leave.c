/* leave.c - from running to the queue (preemption) or to the end (done, cancelled, failed).
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_loop.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/loop_states.h"
#include "engine/loop/overflow_loop.h"
#include "engine/loop/tier_object.h"

#include "base/check.h"

#include <stdio.h>

/* ---- letting go of pages ---- */

void quire_loop_seq_end(quire_loop *loop, quire_request *r)
{
    quire_loop_condensed_cool(loop, r);
    if (r->kv.ref != QUIRE_PREFIX_REF_NULL) {
        (void)quire_prefix_release(loop->tree, r->kv.ref, quire_loop_now_us(loop));
    }
    (void)quire_seq_close(loop->cache, r->kv.seq);
    quire_loop_condensed_forget(loop, r);
    r->kv.ref = QUIRE_PREFIX_REF_NULL;
    r->kv.seq = QUIRE_SEQ_NULL;
    r->kv.n_computed = 0;
    r->kv.n_dropped = 0;
    r->kv.n_published = 0;
    r->kv.n_found = 0;
    r->kv.n_mixed_from = 0;
}

void quire_loop_let_go(quire_loop *loop, quire_request *r)
{
    quire_loop_publish(loop, r);
    quire_loop_state_leave(loop, r, true);
    quire_loop_seq_end(loop, r);
    if (r->is_parked) {
        quire_loop_unpark(loop, r);
    } else {
        quire_loop_running_remove(loop, r);
    }
    loop->room.n_releases++;
}

/* ---- the end ---- */

static void count_end(quire_loop *loop, const quire_request_result *result)
{
    quire_engine_stats *s = &loop->figures.now;

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

/* Count a finished request: the mean time between its tokens, as its client sees it. */
static void count_class_end(quire_loop *loop, const quire_request *r)
{
    quire_class_stats *c = &loop->figures.now.classes[r->class_index];

    c->finished_total++;
    if (r->n_sampled > 1) {
        quire_histogram_add(&c->tpot,
                            (double)(r->last_us - r->first_us) * 1e-6 / (r->n_sampled - 1));
    }
}

static void result_times(quire_loop *loop, const quire_request *r, quire_request_result *result)
{
    const uint64_t now_us = quire_loop_now_us(loop);

    result->total_us = now_us - r->submitted_us;
    result->queue_us = (r->admitted_us != 0 ? r->admitted_us : now_us) - r->submitted_us;
    if (r->first_us != 0) {
        result->prefill_us = r->first_us - r->admitted_us;
        result->ttft_us = r->first_us - r->submitted_us;
        result->decode_us = r->last_us - r->first_us;
    } else if (r->is_prompt_only && r->admitted_us != 0) {
        result->prefill_us = now_us - r->admitted_us;
    }
}

void quire_loop_end(quire_loop *loop, quire_request *r, const quire_ending *ending)
{
    quire_request_result result;

    loop->events.ended(loop->events.ctx, r, ending);
    quire_tier_leave(loop, r);
    if (r->state == QUIRE_REQUEST_WAITING) {
        quire_loop_dequeue(loop, r);
    } else {
        quire_loop_let_go(loop, r);
    }
    r->state = QUIRE_REQUEST_DONE;
    quire_loop_to_compute_set(r, 0);
    result = r->result;
    result.finish = ending->finish;
    result.status = ending->status;
    result.stop_index = ending->stop_index;
    result.n_prompt_tokens = r->n_prompt;
    result.n_thought_tokens = quire_sampler_thought_tokens(r->sampler);
    if (ending->finish == QUIRE_FINISH_ERROR) {
        (void)snprintf(result.message, sizeof result.message, "%s",
                       ending->message != NULL ? ending->message
                                               : quire_status_text(ending->status));
    }
    quire_bytes_clear(&loop->step.shown);
    /* After a stop text no text is held back; without memory the text held back is lost. */
    if (ending->stop_index < 0 && quire_text_out_finish(r->text, &loop->step.shown) == QUIRE_OK) {
        result.tail = loop->step.shown.data;
        result.tail_bytes = (uint32_t)loop->step.shown.n;
    }
    result_times(loop, r, &result);
    count_end(loop, &result);
    count_class_end(loop, r);
    if (r->first_us == 0 && r->client.has_explanation) { /* else filled in at the first token */
        quire_loop_explanation_update(loop, r);
    }
    quire_loop_explanation_keep(loop, r);
    quire_loop_stats_publish(loop);
    atomic_fetch_sub(&loop->inbox.n_unfinished_of[r->class_index], 1);
    atomic_fetch_sub(&loop->inbox.n_unfinished, 1);
    quire_request_finish(r, &result);
}

void quire_loop_all_end(quire_loop *loop, const quire_ending *ending)
{
    while (loop->set.n_running > 0) {
        quire_loop_end(loop, loop->set.running[loop->set.n_running - 1], ending);
    }
    for (uint32_t i = 0; i < loop->opts.classes.n; i++) {
        while (loop->set.queues[i].first != NULL) {
            quire_loop_end(loop, quire_request_of(loop->set.queues[i].first), ending);
        }
    }
}

/* ---- cancel ---- */

void quire_loop_cancels_apply(quire_loop *loop)
{
    const quire_ending ending = { .finish = QUIRE_FINISH_CANCEL, .stop_index = -1 };
    bool has_cancels;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    has_cancels = loop->inbox.has_cancels;
    loop->inbox.has_cancels = false;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    if (!has_cancels) {
        return;
    }
    for (uint32_t i = loop->set.n_running; i > 0; i--) {
        if (atomic_load(&loop->set.running[i - 1]->is_cancelled)) {
            quire_loop_end(loop, loop->set.running[i - 1], &ending);
        }
    }
    for (uint32_t i = 0; i < loop->opts.classes.n; i++) {
        for (quire_queue_link *link = loop->set.queues[i].first; link != NULL;) {
            quire_request *r = quire_request_of(link);

            link = link->next;
            if (atomic_load(&r->is_cancelled)) {
                quire_loop_end(loop, r, &ending);
            }
        }
    }
}

/* ---- preemption ---- */

void quire_loop_preempt(quire_loop *loop, quire_request *r)
{
    r->kv.n_lost = r->kv.n_computed;
    quire_loop_publish(loop, r);
    quire_tier_copy_request(loop, r);
    quire_loop_let_go(loop, r);
    r->result.n_preemptions++;
    loop->figures.now.preemptions_total++;
    loop->figures.now.classes[r->class_index].preempted_total++;
    r->state = QUIRE_REQUEST_WAITING;
    r->wait.held_by = 0;
    r->wait.has_fetched = false;
    r->wait.claim.tree_generation = 0; /* it has more tokens than at the lookup */
    /* Admit it again only after another request releases pages: its own pages do not suffice.
     * Immediate admission would retry a step for ever that fails for another reason. */
    r->wait.blocked_at = loop->room.n_releases;
    quire_loop_enqueue(loop, r);
}

/* The message for a request that cannot continue. */
static void say_stuck(const quire_loop *loop, const quire_request *r, int status,
                      char message[QUIRE_ERROR_MESSAGE_MAX])
{
    const char *file = quire_overflow_trouble(loop, true);
    const char *host = quire_overflow_trouble(loop, false);
    quire_cache_stats cache;

    quire_cache_stats_get(loop->cache, &cache);
    (void)snprintf(message, QUIRE_ERROR_MESSAGE_MAX,
                   "%u tokens cannot be computed within the KV budget of %llu bytes: %s%s%s%s%s",
                   r->n_tokens, (unsigned long long)cache.budget_bytes, quire_status_text(status),
                   file[0] != '\0' ? "; overflow file in --cache-dir: " : "", file,
                   host[0] != '\0' ? "; offloaded pages: " : "", host);
}

/* The request cannot continue although no other request holds pages. End it with the tokens
 * generated so far, or with an error if there are none, or if a disk is at fault. */
static void end_stuck(quire_loop *loop, quire_request *r, int status)
{
    char message[QUIRE_ERROR_MESSAGE_MAX];

    if (status == QUIRE_NOPAGES && quire_overflow_has_failed(loop)) {
        status = QUIRE_IO;
    } else if (r->n_tokens > r->n_prompt && status == QUIRE_NOPAGES) {
        quire_loop_end(loop, r, &(quire_ending){ .finish = QUIRE_FINISH_LENGTH, .stop_index = -1 });
        return;
    }
    say_stuck(loop, r, status, message);
    quire_loop_end(
        loop, r,
        &(quire_ending){
            .finish = QUIRE_FINISH_ERROR, .status = status, .stop_index = -1, .message = message });
}

/* The request is alone and short of pages. Its cache hit may be the reason, since a shared page
 * that is partly filled must be copied. Retry with a hit of full pages only, then without a hit. */
static bool retreat(quire_request *r)
{
    if (r->wait.stuck_tokens != r->n_tokens) {
        r->wait.stuck_tokens = r->n_tokens;
        r->wait.retreat = QUIRE_RETREAT_NONE;
    }
    if (r->wait.retreat == QUIRE_RETREAT_NO_HIT) {
        return false;
    }
    r->wait.retreat++;
    return true;
}

void quire_loop_relieve(quire_loop *loop, int status)
{
    const bool is_short = status == QUIRE_NOPAGES || status == QUIRE_NOMEM;
    const uint32_t n_others = loop->set.n_running - 1 + (is_short ? loop->set.n_parked : 0);
    quire_victim_ask ask = { .has_parked = is_short, .by_cost = is_short };
    quire_request *victim;

    if (status == QUIRE_LOST) {
        return; /* the round ends all requests */
    }
    if ((status == QUIRE_NOPAGES && quire_overflow_relieve(loop)) ||
        quire_overflow_lost(loop, status)) {
        return;
    }
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        const quire_request *r = loop->set.running[i];

        ask.rank = r->rank_now > ask.rank ? r->rank_now : ask.rank;
    }
    victim = quire_loop_victim(loop, &ask);
    /* A failed step does not identify the request at fault. So requests leave one by one, and only
     * a request that fails alone is ended. */
    if (n_others > 0 || (is_short && (quire_tier_yield(loop) || retreat(victim)))) {
        quire_loop_preempt(loop, victim);
        if (n_others == 0 && victim->wait.retreat == QUIRE_RETREAT_NO_HIT) {
            quire_overflow_clear(loop);
        }
    } else {
        end_stuck(loop, victim, status);
    }
}
