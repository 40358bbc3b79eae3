/* request.c - the client's side of a request: submit, wait, cancel, release.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/context_condense.h"
#include "engine/loop/condense_loop.h"
#include "engine/loop/context_loop.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/overflow_loop.h"
#include "model/answer_rules.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "engine/loop/pooling.h"
#include "engine/loop/prompt_logprobs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- parameters ---- */

static int check_texts(const quire_request_params *p, quire_error *err)
{
    if (p->n_stops > QUIRE_STOPS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "stop: %u texts, at most %u are possible",
                               p->n_stops, QUIRE_STOPS_MAX);
    }
    for (uint32_t i = 0; i < p->n_stops; i++) {
        const size_t n = strlen(p->stops[i]);

        if (n == 0 || n > QUIRE_STOP_BYTES_MAX) {
            return quire_error_set(err, QUIRE_INVAL, "stop: text %u has %zu bytes, must be 1 to %u",
                                   i, n, QUIRE_STOP_BYTES_MAX);
        }
    }
    if (p->n_top_logprobs > QUIRE_LOGPROBS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "top_logprobs: %u, at most %u are possible",
                               p->n_top_logprobs, QUIRE_LOGPROBS_MAX);
    }
    if (p->id != NULL && strlen(p->id) >= QUIRE_REQUEST_ID_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "id: more than %u bytes",
                               QUIRE_REQUEST_ID_MAX - 1);
    }
    if (p->tenant_bytes > QUIRE_PREFIX_SALT_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "tenant: %u bytes, at most %u are possible",
                               p->tenant_bytes, QUIRE_PREFIX_SALT_MAX);
    }
    return QUIRE_OK;
}

/* Behind its prompt: a request for values of the prompt alone may fill the whole context. */
static bool generates(const quire_request_params *p)
{
    return !p->is_prompt_only && p->pooling == QUIRE_POOLING_NONE;
}

int quire_loop_tokens_check(const quire_loop *loop, const quire_request_params *p, quire_error *err)
{
    const uint32_t n_ctx = loop->runtime_opts->n_ctx;

    if (p->n_tokens == 0 || p->tokens == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "prompt: no tokens");
    }
    if (p->context_overflow != QUIRE_CONTEXT_REFUSE) {
        const uint32_t n_max = quire_loop_text_max(loop, p->context_overflow);

        if (p->n_tokens >= n_max) {
            return quire_error_set(err, QUIRE_RANGE,
                                   "prompt: %u tokens and one to generate are more than %u, %u "
                                   "times the context",
                                   p->n_tokens, n_max, QUIRE_CONTEXTS_MAX);
        }
    } else if (!generates(p) && p->n_tokens > n_ctx) {
        return quire_error_set(err, QUIRE_RANGE, "prompt: %u tokens do not fit the context of %u",
                               p->n_tokens, n_ctx);
    } else if (generates(p) && p->n_tokens >= n_ctx) {
        return quire_error_set(err, QUIRE_RANGE,
                               "prompt: %u tokens and one to generate do not fit the context of %u",
                               p->n_tokens, n_ctx);
    }
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        if (p->tokens[i] < 0 || p->tokens[i] >= (int32_t)loop->desc->n_vocab) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "prompt: token %u is %d, the vocabulary has %u", i, p->tokens[i],
                                   loop->desc->n_vocab);
        }
    }
    return QUIRE_OK;
}

static void condensing_fill(const quire_loop *loop, const quire_request_params *p,
                            quire_condensing *out)
{
    if (quire_params_condense(p)) {
        quire_condensing_init(out, p->retain, loop->opts.retain_chunk,
                              loop->runtime_opts->page_tokens, &loop->lanes.parts);
    }
}

static int check_retain(const quire_loop *loop, const quire_request_params *p, quire_error *err)
{
    if (!quire_params_condense(p)) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_loop_retain_check(loop, p->retain, "retain:", err));
    if (p->context_overflow != QUIRE_CONTEXT_REFUSE) {
        return quire_error_set(
            err, QUIRE_UNSUPP, "retain: %s and context_overflow: %s cannot go together",
            p->retain->policy->name, quire_context_overflow_name(p->context_overflow));
    }
    if (p->pooling != QUIRE_POOLING_NONE) {
        return quire_error_set(err, QUIRE_UNSUPP, "retain: %s and a vector of the text",
                               p->retain->policy->name);
    }
    return QUIRE_OK;
}

static int check_attend(const quire_loop *loop, const quire_request_params *p, quire_error *err)
{
    if (!quire_attends(p->attend_share)) {
        return QUIRE_OK;
    }
    if (p->retain != NULL || p->context_overflow != QUIRE_CONTEXT_REFUSE) {
        return quire_error_set(err, QUIRE_UNSUPP, "attend: top:%g and %s cannot go together",
                               p->attend_share, p->retain != NULL ? "retain" : "context_overflow");
    }
    return quire_loop_attend_check(loop, "attend:", err);
}

static int check_context(const quire_loop *loop, const quire_request_params *p, quire_error *err)
{
    if (p->context_overflow == QUIRE_CONTEXT_CONDENSE) {
        return quire_loop_context_condense_check(loop, p->retain, p->context_keep,
                                                 "context_overflow:", err);
    }
    return quire_loop_context_check(loop, p->context_overflow, p->context_keep,
                                    "context_overflow:", err);
}

int quire_loop_abilities_check(const quire_loop *loop, const quire_request_params *params,
                               quire_error *err)
{
    QUIRE_TRY(check_context(loop, params, err));
    QUIRE_TRY(quire_prompt_logprobs_check(params, err));
    QUIRE_TRY(check_retain(loop, params, err));
    return check_attend(loop, params, err);
}

/* Whether memory has room for the bytes that cannot move. */
static int check_memory(const quire_loop *loop, const quire_request_params *p, uint32_t n_tokens,
                        quire_error *err)
{
    const uint64_t memory_bytes = quire_loop_budget_bytes(loop, p->class_index, true);
    const uint64_t least_bytes = quire_overflow_memory_min(loop, memory_bytes, n_tokens);

    return least_bytes <= memory_bytes
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_RANGE,
                                 "prompt: %u tokens need %llu bytes of KV in memory, for windows, "
                                 "states and buffers, the budget is %llu",
                                 p->n_tokens, (unsigned long long)least_bytes,
                                 (unsigned long long)memory_bytes);
}

#define FOR_CONDENSED ": it is for texts that keep a share of their tokens (retain)"

/* Whether a text does not fit because all of its tokens are kept, where the server was started with
 * less than a context's memory for texts that keep a share. */
static bool is_for_condensed(const quire_loop *loop, uint64_t need_bytes, const quire_condensing *c)
{
    const quire_runtime_opts *o = loop->runtime_opts;

    return c->chunk == 0 && o->kv_least_bytes != 0 && need_bytes > o->kv_budget_bytes;
}

/* A pin's request generates no tokens. */
static int check_budget(const quire_loop *loop, const quire_request_params *p, uint64_t pin,
                        quire_error *err)
{
    const bool drops = quire_params_drop(p);
    const uint64_t budget_bytes = quire_loop_budget_bytes(loop, p->class_index, drops);
    const uint32_t n_tokens = quire_min_u32(p->n_tokens + (pin == 0), loop->runtime_opts->n_ctx);
    quire_condensing condensing = { 0 };
    uint64_t need_bytes;

    condensing_fill(loop, p, &condensing);
    need_bytes = quire_loop_condensing_bytes(loop, &condensing,
                                             quire_condensing_need(&condensing, n_tokens)) +
                 loop->room.states_bytes;
    if (need_bytes > budget_bytes) {
        return quire_error_set(
            err, QUIRE_RANGE, "prompt: %u tokens need %llu bytes of KV%s, the budget is %llu%s",
            p->n_tokens, (unsigned long long)need_bytes, drops ? " in memory" : "",
            (unsigned long long)budget_bytes,
            is_for_condensed(loop, need_bytes, &condensing) ? FOR_CONDENSED : "");
    }
    return drops ? QUIRE_OK : check_memory(loop, p, n_tokens, err);
}

/* ---- making one ---- */

static uint32_t tokens_to_generate(const quire_loop *loop, const quire_request_params *p)
{
    uint32_t n = quire_loop_text_max(loop, p->context_overflow) - p->n_tokens;

    if (p->is_prompt_only) {
        return 0;
    }
    if (p->context_overflow != QUIRE_CONTEXT_REFUSE && p->max_tokens == 0) {
        n = quire_min_u32(n, loop->runtime_opts->n_ctx);
    }
    if (p->max_tokens != 0 && p->max_tokens < n) {
        n = p->max_tokens;
    }
    if (loop->opts.tokens_max != 0 && loop->opts.tokens_max < n) {
        n = loop->opts.tokens_max;
    }
    return n;
}

static void overflow_fill(quire_request *r, const quire_request_params *p)
{
    r->overflow = p->context_overflow;
    r->context_keep = p->context_keep;
    if (p->context_overflow != QUIRE_CONTEXT_CONDENSE) {
        return;
    }
    if (p->retain != NULL) {
        r->context_retain = *p->retain;
    } else {
        quire_context_condense_default(&r->context_retain);
    }
    r->context_keep = quire_context_condense_keep(&r->context_retain, p->context_keep);
}

static int request_fill(quire_request *r, const quire_request_params *p, quire_error *err)
{
    quire_loop *loop = r->loop;

    r->n_prompt = p->n_tokens;
    r->max_tokens = tokens_to_generate(loop, p);
    r->n_held_max = loop->runtime_opts->n_ctx;
    overflow_fill(r, p);
    condensing_fill(loop, p, &r->condensing);
    r->attend_share = p->attend_share;
    r->n_tops = p->has_logprobs ? p->n_top_logprobs : 0;
    if (r->n_tops > loop->desc->n_vocab) {
        r->n_tops = loop->desc->n_vocab;
    }
    r->has_logprobs = p->has_logprobs;
    r->ignores_eos = p->ignores_eos && p->sampler.grammar == NULL;
    r->is_uncached = p->is_uncached;
    r->has_session = p->session != 0;
    r->owner = p->session != 0 ? quire_sessions_owner(loop->sessions, p->session) : 0;
    r->class_index = p->class_index;
    r->rank = loop->opts.classes.items[p->class_index].rank;
    r->link.priority = p->priority;
    r->tenant_bytes = p->tenant_bytes;
    if (p->tenant_bytes > 0) {
        memcpy(r->tenant, p->tenant, p->tenant_bytes);
    }
    if (p->id != NULL) {
        memcpy(r->id, p->id, strlen(p->id) + 1);
    }
    r->tokens_capacity = p->n_tokens + 1;
    r->tokens = malloc(r->tokens_capacity * sizeof *r->tokens);
    if (r->tokens == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a prompt of %u tokens",
                               p->n_tokens);
    }
    memcpy(r->tokens, p->tokens, p->n_tokens * sizeof *r->tokens);
    r->n_tokens = p->n_tokens;
    if (quire_request_pool_init(r, p->pooling, loop->desc->n_embd) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a vector");
    }
    if (quire_prompt_logprobs_init(r, p, loop->desc->n_vocab) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for log-probabilities of %u tokens",
                               p->n_tokens);
    }
    if (quire_text_out_create(&r->text, loop->model, p->stops, p->n_stops, p->shows_special) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a request");
    }
    if (p->sampler.rules != NULL) {
        /* The sampler holds the rules as long as the request lives. */
        quire_text_out_show(r->text, p->sampler.rules->shown.items, p->sampler.rules->shown.n);
    }
    QUIRE_TRY(quire_sampler_create(&r->sampler, loop->model, &p->sampler, err));
    quire_sampler_prompt(r->sampler, p->tokens, p->n_tokens);
    return QUIRE_OK;
}

static int request_init(quire_request *r)
{
    atomic_init(&r->is_cancelled, false);
    atomic_init(&r->n_holders, 2);
    r->result.stop_index = -1;
    r->result.tail = "";
    QUIRE_TRY(quire_cond_init(&r->client.changed));
    if (pthread_mutex_init(&r->client.lock, NULL) != 0) {
        (void)pthread_cond_destroy(&r->client.changed);
        return QUIRE_NOMEM;
    }
    return QUIRE_OK;
}

static void request_destroy(quire_request *r)
{
    for (quire_request_block *b = r->client.blocks, *next; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    free(r->client.events);
    quire_text_out_destroy(r->text);
    quire_request_pool_fini(r);
    quire_prompt_logprobs_fini(r);
    quire_sampler_destroy(r->sampler);
    free(r->tokens);
    (void)pthread_cond_destroy(&r->client.changed);
    (void)pthread_mutex_destroy(&r->client.lock);
    free(r);
}

void quire_request_unref(quire_request *r)
{
    if (atomic_fetch_sub(&r->n_holders, 1) == 1) {
        request_destroy(r);
    }
}

static int request_create(quire_loop *loop, const quire_request_params *params, quire_request **out,
                          quire_error *err)
{
    quire_request *r = calloc(1, sizeof *r);
    int rc;

    if (r == NULL || request_init(r) < 0) {
        free(r);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a request");
    }
    r->loop = loop;
    rc = request_fill(r, params, err);
    if (rc < 0) {
        request_destroy(r);
        return rc;
    }
    *out = r;
    return QUIRE_OK;
}

/* ---- submit ---- */

/* Count a request as unfinished, if its class may accept another. */
static int place_take(quire_loop *loop, uint32_t class_index, quire_refusal *why, quire_error *err)
{
    const quire_class *c = &loop->opts.classes.items[class_index];
    const uint32_t queue_max = c->queue_max != 0 ? c->queue_max : loop->opts.queue_max;
    uint32_t n_max;
    int rc = QUIRE_OK;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    n_max = loop->figures.shared.classes[class_index].running_limit + queue_max;
    *why = QUIRE_REFUSAL_NONE;
    if (quire_loop_is_lost(loop)) {
        *why = QUIRE_REFUSAL_LOST;
        rc = quire_error_set(err, QUIRE_LOST, QUIRE_LOST_MESSAGE, quire_loop_lost_name(loop));
    } else if (loop->inbox.is_stopping) {
        *why = QUIRE_REFUSAL_OTHER;
        rc = quire_error_set(err, QUIRE_AGAIN, "the server is shutting down");
    } else if (atomic_load(&loop->inbox.n_unfinished_of[class_index]) >= n_max) {
        *why = QUIRE_REFUSAL_QUEUE;
        rc = quire_error_set(err, QUIRE_LIMIT,
                             "the queue is full: %u requests of class '%s' run or wait", n_max,
                             c->name);
    } else {
        atomic_fetch_add(&loop->inbox.n_unfinished, 1);
        atomic_fetch_add(&loop->inbox.n_unfinished_of[class_index], 1);
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return rc;
}

static void place_give_back(quire_loop *loop, uint32_t class_index)
{
    (void)pthread_mutex_lock(&loop->inbox.lock);
    atomic_fetch_sub(&loop->inbox.n_unfinished_of[class_index], 1);
    atomic_fetch_sub(&loop->inbox.n_unfinished, 1);
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

void quire_loop_refusal_count(quire_loop *loop, uint32_t class_index, quire_refusal why)
{
    (void)pthread_mutex_lock(&loop->inbox.lock);
    loop->inbox.n_invalid += why == QUIRE_REFUSAL_INVALID || why == QUIRE_REFUSAL_BUDGET;
    if (why == QUIRE_REFUSAL_QUEUE) {
        loop->inbox.n_queue_full++;
        loop->inbox.n_queue_full_of[class_index]++;
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

/* Check and make a request that has a place. */
static int make(quire_loop *loop, const quire_request_params *params, uint64_t pin,
                quire_request **out, quire_refusal *why, quire_error *err)
{
    int rc;

    *why = QUIRE_REFUSAL_INVALID;
    QUIRE_TRY(quire_loop_abilities_check(loop, params, err));
    QUIRE_TRY(quire_loop_tokens_check(loop, params, err));
    *why = QUIRE_REFUSAL_BUDGET;
    QUIRE_TRY(check_budget(loop, params, pin, err));
    *why = QUIRE_REFUSAL_INVALID;
    QUIRE_TRY(check_texts(params, err));
    rc = request_create(loop, params, out, err);
    *why = rc == QUIRE_NOMEM ? QUIRE_REFUSAL_OTHER : *why;
    return rc;
}

/* n_cached: as quire_loop_submit(); pin: as quire_loop_submit_pin(). */
static int submit(quire_loop *loop, const quire_request_params *params, uint32_t n_cached,
                  uint64_t pin, quire_request **out, quire_refusal *why, quire_error *err)
{
    quire_request *request = NULL;
    int rc;

    *out = NULL;
    *why = QUIRE_REFUSAL_OTHER;
    if (params->class_index >= loop->opts.classes.n) {
        return quire_error_set(err, QUIRE_INVAL, "class: number %u, there are %u",
                               params->class_index, loop->opts.classes.n);
    }
    QUIRE_TRY(place_take(loop, params->class_index, why, err));
    rc = make(loop, params, pin, &request, why, err);
    if (rc < 0) {
        place_give_back(loop, params->class_index);
        return rc;
    }
    *why = QUIRE_REFUSAL_NONE;
    request->pin = pin;
    request->submitted_us = quire_loop_now_us(loop);
    n_cached = quire_prompt_logprobs_usable(request, n_cached);
    quire_loop_to_compute_set(request,
                              params->n_tokens - quire_min_u32(n_cached, params->n_tokens));
    (void)pthread_mutex_lock(&loop->inbox.lock);
    /* Under the lock: a session that is closed later finds its request in the inbox. */
    request->is_uncached =
        request->is_uncached ||
        (params->session != 0 && quire_sessions_is_closed(loop->sessions, params->session));
    request->link.arrival = atomic_fetch_add(loop->parts.arrivals, 1) + 1;
    loop->inbox.n_arrivals++;
    loop->inbox.n_arrivals_of[request->class_index]++;
    quire_inbox_put(&loop->inbox, request);
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    *out = request;
    return QUIRE_OK;
}

int quire_loop_try(quire_loop *loop, const quire_request_params *params, uint32_t n_cached,
                   quire_request **out, quire_refusal *why, quire_error *err)
{
    return submit(loop, params, n_cached, 0, out, why, err);
}

int quire_loop_submit(quire_loop *loop, const quire_request_params *params, uint32_t n_cached,
                      quire_request **out, quire_error *err)
{
    quire_refusal why;
    const int rc = submit(loop, params, n_cached, 0, out, &why, err);

    quire_loop_refusal_count(loop, params->class_index, why);
    return rc;
}

int quire_loop_submit_pin(quire_loop *loop, const quire_request_params *params, uint64_t pin,
                          quire_request **out, quire_error *err)
{
    quire_refusal why;
    const int rc = submit(loop, params, 0, pin, out, &why, err);

    quire_loop_refusal_count(loop, params->class_index, why);
    return rc;
}

/* ---- while it runs, and after ---- */

void quire_request_cancel(quire_request *request)
{
    (void)pthread_mutex_lock(&request->client.lock);
    if (!request->client.is_done && !atomic_exchange(&request->is_cancelled, true)) {
        quire_loop_wake_cancels(request->loop);
    }
    (void)pthread_mutex_unlock(&request->client.lock);
}

void quire_request_release(quire_request *request)
{
    if (request == NULL) {
        return;
    }
    quire_request_cancel(request);
    quire_request_unref(request);
}

int quire_request_wait(quire_request *request, uint32_t i, uint32_t timeout_ms,
                       quire_request_token *token)
{
    const struct timespec deadline = quire_deadline(timeout_ms);
    int waited = 0;
    int rc = QUIRE_AGAIN;

    (void)pthread_mutex_lock(&request->client.lock);
    while (i >= request->client.n_events && !request->client.is_done && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&request->client.changed, &request->client.lock, &deadline);
    }
    if (i < request->client.n_events) {
        *token = request->client.events[i];
        rc = 1;
    } else if (request->client.is_done) {
        rc = 0;
    }
    (void)pthread_mutex_unlock(&request->client.lock);
    return rc;
}

const quire_request_result *quire_request_result_get(const quire_request *request)
{
    return &request->result;
}

int32_t *quire_request_tokens_take(quire_request *request, uint32_t *n_tokens)
{
    int32_t *tokens;

    (void)pthread_mutex_lock(&request->client.lock);
    QUIRE_CHECK(request->client.is_done); /* until then the tokens belong to the engine */
    tokens = request->tokens;
    *n_tokens = quire_request_reachable(request, request->n_tokens -
                                                     (request->n_tokens > request->n_prompt));
    request->tokens = NULL;
    (void)pthread_mutex_unlock(&request->client.lock);
    return tokens;
}

int quire_request_explain(const quire_request *request, quire_explanation *out)
{
    quire_request *r = (quire_request *)(uintptr_t)request; /* to lock it */
    int rc = QUIRE_OK;

    (void)pthread_mutex_lock(&r->client.lock);
    if (r->client.has_explanation) {
        *out = r->client.explanation;
    } else {
        rc = r->client.is_done ? QUIRE_NOTFOUND : QUIRE_AGAIN;
    }
    (void)pthread_mutex_unlock(&r->client.lock);
    return rc;
}
