/* batch.c - one step of the running requests: slices, computation, tokens.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_loop.h"
#include "engine/loop/context_loop.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/loop_states.h"
#include "engine/loop/overflow_loop.h"
#include "engine/loop/pooling.h"
#include "engine/loop/prompt_logprobs.h"
#include "model/text.h"

#include "base/check.h"
#include "base/num.h"

#include <stdlib.h>

#define US_PER_S        1e6
#define MEAN_ROWS       2048.0 /* prefill rows in the running mean of their cost */
#define TOKENS_CAPACITY 64u

/* ---- input of the step ---- */

/* Tokens that a request has to compute. They may be more than its context has room for. */
static uint32_t left_of(const quire_request *r)
{
    return r->n_tokens - r->kv.n_computed;
}

/* Tokens that a request can compute before its sequence must change. */
static uint32_t room_of(const quire_request *r)
{
    const uint32_t n_held = quire_request_held(r);
    const uint32_t chunk = r->condensing.chunk;

    return quire_min_u32(r->n_held_max - n_held,
                         chunk != 0 ? (r->kv.n_condensings + 1) * chunk - r->kv.n_computed
                                    : UINT32_MAX);
}

/* The schedule's item of a request. A request inherits the urgency of requests that wait for it. */
static quire_schedule_item item_of(const quire_loop *loop, quire_request *r)
{
    const bool is_wanted = r->lead.n_tokens > r->kv.n_computed;
    const uint32_t n_held = quire_request_held(r);
    const uint32_t n_left = quire_min_u32(quire_loop_state_until(loop, r, left_of(r)), room_of(r));

    return (quire_schedule_item){
        .request = r,
        .arrival = r->link.arrival,
        .priority =
            is_wanted && r->lead.priority > r->link.priority ? r->lead.priority : r->link.priority,
        .depth = n_held,
        .n_left = n_left,
        .n_until = is_wanted ? quire_min_u32(r->lead.n_tokens - r->kv.n_computed, n_left) : n_left,
        .n_left_out = r->n_left_out,
        .rank = is_wanted && r->lead.rank > r->rank ? r->lead.rank : r->rank,
        .is_decode = r->state == QUIRE_REQUEST_DECODE && n_left > 0, /* 0 at a place */
    };
}

static void items_fill(quire_loop *loop)
{
    const quire_schedule_limits limits = {
        .chunk_tokens = loop->opts.chunk_tokens,
        .rows_max = loop->runtime_opts->n_batch,
        .cost = &loop->figures.now.cost,
    };

    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        loop->step.items[i] = item_of(loop, loop->set.running[i]);
        loop->set.running[i]->lead.n_tokens = 0; /* admission sets it again before each step */
    }
    quire_loop_qos_prepare(loop);
    (void)quire_schedule_rows(&loop->step.schedule, loop->step.items, loop->set.n_running, &limits);
    loop->step.rank = (int)quire_schedule_interruptible(&loop->step.schedule);
    loop->step.us = loop->step.schedule.ranks[0].own_us; /* predicted time of all rows */
    loop->step.begin_us = quire_loop_now_us(loop);
}

/* The logits of a request's rows in the step. */
static quire_logits logits_of(const quire_request *r, uint32_t n_rows)
{
    const quire_logits wanted = quire_prompt_logprobs_want(r, n_rows)
                                    ? QUIRE_LOGITS_ALL
                                    : quire_request_pool_wants(r, n_rows, left_of(r));

    return wanted == QUIRE_LOGITS_NONE && quire_request_lanes_want(r, n_rows) ? QUIRE_LOGITS_LAST
                                                                              : wanted;
}

static uint32_t slices_fill(quire_loop *loop, uint32_t n_items)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_items; i++) {
        const quire_schedule_item *item = &loop->step.items[i];
        const quire_request *r = item->request;

        if (item->n_rows > 0) {
            loop->step.slices[n++] = (quire_slice){
                .seq = r->kv.seq,
                .tokens = r->tokens + r->kv.n_computed,
                .n_tokens = item->n_rows,
                .logits = logits_of(r, item->n_rows),
                .n_gone = r->condensing.chunk != 0 ? r->kv.n_dropped : 0,
                .lanes = r->kv.lanes,
                .keeps_hot = r->condensing.chunk != 0,
            };
        }
    }
    return n;
}

/* ---- results of the step ---- */

void quire_loop_publish(quire_loop *loop, quire_request *r)
{
    const uint32_t n_gone = r->kv.n_dropped;
    const uint32_t n_end = quire_request_common(r, r->kv.n_computed);

    if (!quire_request_publishes(r) || loop->opts.no_prefix_cache || n_end <= r->kv.n_published) {
        return;
    }
    /* Without memory to publish, the tokens stay uncached; no request fails. */
    if (quire_prefix_publish(loop->tree, r->kv.ref, r->tokens + n_gone, n_end - n_gone,
                             quire_loop_now_us(loop)) == QUIRE_OK) {
        r->kv.n_published = n_end;
    }
}

/* The cost terms of the step, before its items advance. */
static quire_cost_step cost_of(const quire_loop *loop, uint32_t n_items)
{
    quire_cost_step cost = { 0 };

    for (uint32_t i = 0; i < n_items; i++) {
        const quire_schedule_item *item = &loop->step.items[i];

        if (!item->is_decode) {
            quire_cost_add_prefill(&cost, item->depth, item->n_rows);
        } else if (item->n_rows > 0) {
            quire_cost_add_decode(&cost, item->depth);
        }
    }
    return cost;
}

static void count_step(quire_loop *loop, const quire_cost_step *cost, uint64_t step_us)
{
    quire_engine_stats *s = &loop->figures.now;
    const double seconds = (double)step_us / US_PER_S;
    const uint32_t n_rows = cost->prefill_rows + cost->decode_rows;

    s->steps_total++;
    s->step_rows_total += n_rows;
    s->step_seconds_total += seconds;
    s->computed_prompt_tokens_total += cost->prefill_rows;
    if (cost->prefill_rows * 2 >= n_rows) { /* else decode dominates the cost */
        const double weight = s->prefill_token_seconds > 0.0 && cost->prefill_rows < MEAN_ROWS
                                  ? cost->prefill_rows / MEAN_ROWS
                                  : 1.0;

        s->prefill_token_seconds += (seconds / n_rows - s->prefill_token_seconds) * weight;
    }
}

static void count_token(quire_loop *loop, quire_request *r)
{
    const uint64_t now_us = quire_loop_now_us(loop);

    if (r->first_us == 0) {
        r->first_us = now_us;
        quire_histogram_add(&loop->figures.now.ttft, (double)(now_us - r->submitted_us) / US_PER_S);
        quire_loop_qos_first(loop, r);
        quire_loop_explanation_update(loop, r);
    } else {
        quire_histogram_add(&loop->figures.now.inter_token,
                            (double)(now_us - r->last_us) / US_PER_S);
    }
    r->last_us = now_us;
    r->n_sampled++;
}

static int tokens_add(quire_request *r, int32_t token)
{
    if (r->n_tokens == r->tokens_capacity) {
        const uint32_t capacity = r->tokens_capacity + r->tokens_capacity / 2 + TOKENS_CAPACITY;
        int32_t *tokens = realloc(r->tokens, capacity * sizeof *tokens);

        QUIRE_FAIL_IF(tokens == NULL, QUIRE_NOMEM);
        r->tokens = tokens;
        r->tokens_capacity = capacity;
    }
    r->tokens[r->n_tokens++] = token;
    return QUIRE_OK;
}

/* Hand a generated token to the client. *stop_index as from text_out. */
static int token_deliver(quire_loop *loop, quire_request *r, int32_t token, const float *logits,
                         int32_t *stop_index)
{
    quire_request_token event = { .token = token };

    quire_bytes_clear(&loop->step.shown);
    QUIRE_TRY(tokens_add(r, token));
    QUIRE_TRY(quire_text_out_feed(r->text, token, &loop->step.shown, stop_index));
    event.text = loop->step.shown.data;
    event.text_bytes = (uint32_t)loop->step.shown.n;
    if (r->has_logprobs) {
        event.logprob =
            quire_logits_logprob(logits, loop->desc->n_vocab, token, loop->step.tops, r->n_tops);
        event.tops = r->n_tops > 0 ? loop->step.tops : NULL;
        event.n_tops = r->n_tops;
    }
    loop->figures.now.generated_tokens_total++;
    return quire_request_push(r, &event);
}

/* The sampler gave no token. Under a grammar either the text is complete, and the vocabulary has no
 * end-of-generation token, or no token can continue it. */
static quire_ending no_token_ending(int status)
{
    if (status == QUIRE_NOTFOUND) {
        return (quire_ending){ .finish = QUIRE_FINISH_STOP, .stop_index = -1 };
    }
    return (quire_ending){
        .finish = QUIRE_FINISH_ERROR,
        .status = status,
        .stop_index = -1,
        .message = status == QUIRE_LIMIT
                       ? "grammar: the text so far can be read in too many ways to go on"
                       : NULL,
    };
}

static void token_choose(quire_loop *loop, quire_request *r, const float *logits)
{
    quire_ending ending = { .stop_index = -1 };
    int32_t token;
    int rc;

    if (r->pin != 0 || r->pool.how != QUIRE_POOLING_NONE || r->is_prompt_only) {
        if (r->pool.how != QUIRE_POOLING_NONE) {
            quire_request_pool_end(r);
        }
        ending.finish = QUIRE_FINISH_LENGTH;
        quire_loop_end(loop, r, &ending);
        return;
    }
    token = quire_sampler_pick(r->sampler, logits);
    r->state = QUIRE_REQUEST_DECODE;
    if (token >= 0 || token == QUIRE_NOTFOUND) {
        count_token(loop, r);
    }
    if (token < 0) {
        ending = no_token_ending(token);
    } else if ((!r->ignores_eos && quire_model_is_eog(loop->model, token)) ||
               quire_sampler_stops_at(r->sampler, token)) {
        ending.finish = QUIRE_FINISH_STOP;
    } else if ((rc = token_deliver(loop, r, token, logits, &ending.stop_index)) < 0) {
        ending = (quire_ending){ .finish = QUIRE_FINISH_ERROR, .status = rc, .stop_index = -1 };
    } else if (ending.stop_index >= 0) {
        ending.finish = QUIRE_FINISH_STOP;
    } else if (r->n_tokens >= r->n_prompt + r->max_tokens) {
        ending.finish = QUIRE_FINISH_LENGTH;
    }
    if (ending.finish != QUIRE_FINISH_NONE) {
        quire_loop_end(loop, r, &ending);
    }
}

/* Results of a step that no item has taken yet: rows of logits and of hidden states. */
typedef struct step_rows {
    const float *logits;
    const float *hidden;
} step_rows;

/* Take in the result of a slice, and its rows. */
static void item_advance(quire_loop *loop, const quire_schedule_item *item, step_rows *rows)
{
    quire_request *r = item->request;
    const bool has_logits = item->n_rows == left_of(r);
    const quire_logits wanted = logits_of(r, item->n_rows);
    const uint32_t n_out = wanted == QUIRE_LOGITS_ALL    ? item->n_rows
                           : wanted == QUIRE_LOGITS_LAST ? 1
                                                         : 0;
    const float *logits = rows->logits; /* of the last row */

    if (quire_prompt_logprobs_want(r, item->n_rows)) {
        loop->figures.now.scored_prompt_tokens_total += quire_prompt_logprobs_add(
            r, loop->runtime, logits, n_out, loop->desc->n_vocab, r->kv.n_computed);
    }
    if (r->pool.how != QUIRE_POOLING_NONE && n_out > 0) {
        quire_request_pool_add(r, rows->hidden, n_out, r->kv.n_computed + item->n_rows - n_out);
    }
    if (n_out > 0) {
        rows->logits += (size_t)n_out * loop->desc->n_vocab;
        rows->hidden += (size_t)n_out * loop->desc->n_embd;
        logits = rows->logits - loop->desc->n_vocab;
    }
    r->kv.n_computed += item->n_rows;
    if (!item->is_decode) {
        r->n_prefilled += item->n_rows;
        quire_loop_to_compute_set(r, r->n_prompt > r->kv.n_computed ? r->n_prompt - r->kv.n_computed
                                                                    : 0);
    }
    if (!item->is_decode || r->kv.n_computed % loop->runtime_opts->page_tokens == 0) {
        quire_loop_publish(loop, r);
        quire_loop_state_leave(loop, r, false);
    }
    if (has_logits) {
        token_choose(loop, r, logits);
    }
}

void quire_loop_step_do(quire_loop *loop)
{
    step_rows rows = { NULL, NULL };
    quire_cost_step cost;
    uint64_t begin_us;
    uint32_t n_items;
    uint32_t n_slices;
    int rc;

    if (!quire_loop_contexts_clear(loop) || !quire_loop_condense(loop) ||
        loop->set.n_running == 0) {
        return;
    }
    begin_us = quire_loop_now_us(loop);
    n_items = loop->set.n_running;
    items_fill(loop);
    n_slices = slices_fill(loop, n_items);
    if (n_slices == 0) { /* all wait at a place */
        return;
    }
    quire_overflow_step_begin(loop, n_items);
    rc = quire_runtime_step(loop->runtime, loop->step.slices, n_slices, &rows.logits);
    quire_overflow_step_end(loop, n_items, rc == QUIRE_OK);
    if (rc == QUIRE_CANCELED) {
        quire_loop_qos_interrupted(loop, n_items, quire_loop_now_us(loop) - begin_us);
        return;
    }
    if (rc < 0) {
        quire_loop_relieve(loop, rc);
        return;
    }
    rows.hidden = quire_runtime_hidden(loop->runtime);
    cost = cost_of(loop, n_items);
    count_step(loop, &cost, quire_loop_now_us(loop) - begin_us);
    quire_loop_qos_rows(loop, n_items);
    for (uint32_t i = 0; i < n_items; i++) {
        if (loop->step.items[i].n_rows > 0) {
            item_advance(loop, &loop->step.items[i], &rows);
        }
    }
    quire_loop_qos_step(loop, &cost, quire_loop_now_us(loop) - begin_us);
}
