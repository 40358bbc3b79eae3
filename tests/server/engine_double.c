/* engine_double.c - engine.h from a script.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/views.h"
#include "engine_double.h"
#include "model/answer_rules.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef N_CTX
#define N_CTX 256u
#endif

static const char *const hello_pieces[] = { "Hello", " there" };

const engine_script engine_script_hello = { .pieces = hello_pieces,
                                            .n_pieces = 2,
                                            .finish = QUIRE_FINISH_STOP };

struct quire_engine {
    const quire_model *model;
    quire_sessions *sessions;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    engine_script script;
    engine_seen seen;
    bool goes_on;
    engine_memory memory;
};

struct quire_request {
    quire_engine *engine;
    engine_script script;
    quire_request_params params;
    quire_request_result result;
    int32_t *tokens;   /* of the prompt, then those it will have */
    uint32_t n_tokens; /* those it will have */
    bool is_cancelled;
    quire_top_logit tops[2];
};

quire_engine *engine_double_create(const quire_model *model)
{
    const quire_sessions_opts opts = QUIRE_SESSIONS_OPTS_INIT;
    quire_engine *engine = calloc(1, sizeof *engine);

    assert_non_null(engine);
    engine->model = model;
    (void)pthread_mutex_init(&engine->lock, NULL);
    assert_int_equal(quire_cond_init(&engine->changed), QUIRE_OK);
    assert_int_equal(quire_sessions_create(&engine->sessions, model, &opts), QUIRE_OK);
    return engine;
}

void engine_double_destroy(quire_engine *engine)
{
    quire_sessions_destroy(engine->sessions);
    (void)pthread_cond_destroy(&engine->changed);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}

void engine_double_script(quire_engine *engine, const engine_script *script)
{
    (void)pthread_mutex_lock(&engine->lock);
    engine->script = *script;
    engine->goes_on = false;
    engine->seen = (engine_seen){ 0 };
    (void)pthread_mutex_unlock(&engine->lock);
}

void engine_double_go(quire_engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    engine->goes_on = true;
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
}

engine_seen engine_double_seen(quire_engine *engine)
{
    engine_seen seen;

    (void)pthread_mutex_lock(&engine->lock);
    seen = engine->seen;
    (void)pthread_mutex_unlock(&engine->lock);
    return seen;
}

void engine_double_wait_cancelled(quire_engine *engine, uint32_t n)
{
    (void)pthread_mutex_lock(&engine->lock);
    while (engine->seen.n_cancelled < n) {
        (void)pthread_cond_wait(&engine->changed, &engine->lock);
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

void engine_double_wait_submitted(quire_engine *engine, uint32_t n)
{
    (void)pthread_mutex_lock(&engine->lock);
    while (engine->seen.n_submitted < n) {
        (void)pthread_cond_wait(&engine->changed, &engine->lock);
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

engine_memory *engine_double_memory(quire_engine *engine)
{
    return &engine->memory;
}

/* ---- engine.h ---- */

bool quire_engine_is_idle(const quire_engine *engine)
{
    return engine->seen.n_submitted == engine->seen.n_released;
}

const quire_model *quire_engine_model(const quire_engine *engine)
{
    return engine->model;
}

uint32_t quire_engine_n_ctx(const quire_engine *engine)
{
    (void)engine;
    return N_CTX;
}

quire_sessions *quire_engine_sessions(quire_engine *engine)
{
    return engine->sessions;
}

static void note_params(engine_seen *seen, const quire_request_params *params)
{
    seen->params = *params;
    for (uint32_t i = 0; i < params->n_tokens && i < SEEN_TOKENS_MAX; i++) {
        seen->tokens[i] = params->tokens[i];
    }
    for (uint32_t i = 0; i < params->n_stops && i < 4; i++) {
        (void)snprintf(seen->stops[i], sizeof seen->stops[i], "%s", params->stops[i]);
    }
    for (uint32_t i = 0; i < params->sampler.n_bias && i < 8; i++) {
        seen->bias[i] = params->sampler.bias[i];
    }
    memcpy(seen->tenant, params->tenant, params->tenant_bytes);
    (void)snprintf(seen->grammar, sizeof seen->grammar, "%s",
                   params->sampler.grammar != NULL ? params->sampler.grammar : "");
    seen->rules_grammar[0] = '\0';
    if (params->sampler.rules != NULL && params->sampler.rules->grammar != NULL) {
        (void)snprintf(seen->rules_grammar, sizeof seen->rules_grammar, "%s",
                       params->sampler.rules->grammar);
    }
    (void)snprintf(seen->id, sizeof seen->id, "%s", params->id);
}

int quire_engine_submit(quire_engine *engine, const quire_request_params *params,
                        quire_request **out, quire_error *err)
{
    quire_request *request = calloc(1, sizeof *request);
    static const float vector[] = { 3.0f, 0.0f, 4.0f, 0.0f };
    const engine_script *script = &engine->script;
    int status = QUIRE_OK;

    *out = NULL;
    if (request != NULL) {
        request->tokens = malloc((params->n_tokens + script->n_pieces) * sizeof request->tokens[0]);
    }
    if (request == NULL || request->tokens == NULL) {
        free(request);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    memcpy(request->tokens, params->tokens, params->n_tokens * sizeof request->tokens[0]);
    for (uint32_t i = 0; i < script->n_pieces; i++) {
        request->tokens[params->n_tokens + i] = 100 + (int32_t)i;
    }
    (void)pthread_mutex_lock(&engine->lock);
    note_params(&engine->seen, params);
    if (script->submit_status < 0 && engine->seen.n_submitted >= script->submit_refused_from) {
        status = quire_error_set(err, script->submit_status, "%s", script->submit_message);
    } else {
        engine->seen.n_submitted++;
        request->engine = engine;
        request->script = *script;
        request->params = *params;
        request->n_tokens = params->is_prompt_only ? 0
                            : params->max_tokens > 0 && params->max_tokens < script->n_pieces
                                ? params->max_tokens
                                : script->n_pieces;
        request->result = (quire_request_result){
            .finish = request->n_tokens < script->n_pieces ? QUIRE_FINISH_LENGTH : script->finish,
            .status = script->status,
            .message = "the script says so",
            .tail = script->tail != NULL ? script->tail : "",
            .tail_bytes = script->tail != NULL ? (uint32_t)strlen(script->tail) : 0,
            .stop_index = script->stops_at_first ? 0 : -1,
            .n_prompt_tokens = params->n_tokens,
            .n_cached_tokens = params->n_tokens / 2,
            .n_generated_tokens = request->n_tokens,
            .n_thought_tokens = script->n_thought_tokens,
            .prefill_us = 2000,
            .decode_us = 4000,
            .ttft_us = 3000,
            .vector = params->pooling != QUIRE_POOLING_NONE ? vector : NULL,
            .n_vector = params->pooling != QUIRE_POOLING_NONE ? 4 : 0,
        };
    }
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
    if (status < 0) {
        free(request->tokens);
        free(request);
        request = NULL;
    }
    *out = request;
    return status;
}

/* Whether the double may deliver token i, or the end behind the last one. The caller holds the
 * lock. */
static bool is_ready(const quire_request *request, uint32_t i)
{
    const engine_script *script = &request->script;

    return request->is_cancelled || !script->holds || request->engine->goes_on ||
           (i < script->hold_at && i < request->n_tokens);
}

void quire_request_cancel(quire_request *request)
{
    quire_engine *engine = request->engine;

    (void)pthread_mutex_lock(&engine->lock);
    if (!request->is_cancelled && !is_ready(request, request->n_tokens)) {
        engine->seen.n_cancelled++;
        request->result.finish = QUIRE_FINISH_CANCEL;
    }
    request->is_cancelled = true;
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
}

void quire_request_release(quire_request *request)
{
    quire_engine *engine = request->engine;

    quire_request_cancel(request);
    (void)pthread_mutex_lock(&engine->lock);
    engine->seen.n_released++;
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
    free(request->tokens);
    free(request);
}

int quire_request_wait(quire_request *request, uint32_t i, uint32_t timeout_ms,
                       quire_request_token *token)
{
    quire_engine *engine = request->engine;
    const struct timespec until = quire_deadline(timeout_ms);
    bool ready;

    (void)pthread_mutex_lock(&engine->lock);
    while (!is_ready(request, i) &&
           pthread_cond_timedwait(&engine->changed, &engine->lock, &until) == 0) {
    }
    ready = is_ready(request, i);
    (void)pthread_mutex_unlock(&engine->lock);
    if (!ready) {
        return QUIRE_AGAIN;
    }
    if (i >= request->n_tokens || request->result.finish == QUIRE_FINISH_CANCEL) {
        return 0;
    }
    request->tops[0] = (quire_top_logit){ 100, -0.25f };
    request->tops[1] = (quire_top_logit){ 101, -1.5f };
    *token = (quire_request_token){ .token = 100 + (int32_t)i,
                                    .text = request->script.pieces[i],
                                    .text_bytes = (uint32_t)strlen(request->script.pieces[i]),
                                    .logprob = -0.5f,
                                    .tops = request->tops,
                                    .n_tops = request->params.n_top_logprobs < 2
                                                  ? request->params.n_top_logprobs
                                                  : 2 };
    return 1;
}

const quire_request_result *quire_request_result_get(const quire_request *request)
{
    return &request->result;
}

/* Values that follow from the place in the prompt. */
bool quire_request_prompt_logprob(const quire_request *request, uint32_t i,
                                  quire_prompt_logprob *out)
{
    static const quire_top_logit tops[2] = { { 100, -0.25f }, { 101, -1.5f } };
    const uint32_t n_tops = request->params.n_prompt_top_logprobs;

    if (!request->params.has_prompt_logprobs || i == 0 || i >= request->params.n_tokens) {
        return false;
    }
    *out = (quire_prompt_logprob){
        .logprob = -(float)i, .rank = i + 2, .tops = tops, .n_tops = n_tops < 2 ? n_tops : 2
    };
    return true;
}

int32_t *quire_request_tokens_take(quire_request *request, uint32_t *n_tokens)
{
    int32_t *tokens = request->tokens;

    *n_tokens = request->params.n_tokens + request->n_tokens - (request->n_tokens > 0);
    request->tokens = NULL;
    return tokens;
}

static quire_explanation explanation_of(const char *id)
{
    quire_explanation e = { .n_prompt_tokens = 10,
                            .n_cached_tokens = 4,
                            .n_same_tokens = 6,
                            .end = QUIRE_PREFIX_END_DIVERGED,
                            .cut = QUIRE_PREFIX_CUT_WINDOW,
                            .prompt_token = 70,
                            .cached_token = 71,
                            .n_computed_tokens = 6,
                            .computed_ms = 1.5 };

    (void)snprintf(e.request_id, sizeof e.request_id, "%s", id);
    return e;
}

int quire_request_explain(const quire_request *request, quire_explanation *out)
{
    *out = explanation_of(request->engine->seen.id);
    return QUIRE_OK;
}

int quire_engine_explain(quire_engine *engine, const char *request_id, const void *tenant,
                         uint32_t tenant_bytes, quire_explanation *out)
{
    (void)tenant;
    (void)tenant_bytes;
    *out = explanation_of(request_id);
    return strcmp(request_id, engine->seen.id) == 0 ? QUIRE_OK : QUIRE_NOTFOUND;
}

uint32_t quire_engine_explain_last(quire_engine *engine, quire_explanation *out, uint32_t n)
{
    out[0] = explanation_of(engine->seen.id);
    return n > 0;
}

int quire_engine_page_map(quire_engine *engine, quire_page_map *out)
{
    (void)engine;
    *out = (quire_page_map){ 0 };
    return QUIRE_AGAIN;
}

void quire_page_map_fini(quire_page_map *map)
{
    (void)map;
}

int quire_engine_sessions_kv(quire_engine *engine, quire_session_kv *items, uint32_t n)
{
    (void)engine;
    (void)items;
    return n > 0 ? QUIRE_AGAIN : QUIRE_OK;
}

uint32_t quire_engine_regions(const quire_engine *engine, quire_region_view out[QUIRE_REGIONS_MAX])
{
    (void)engine;
    (void)out;
    return 0;
}

uint32_t quire_engine_device_regions(const quire_engine *engine, uint32_t device,
                                     quire_region_view out[QUIRE_REGIONS_MAX])
{
    (void)device;
    return quire_engine_regions(engine, out);
}

uint32_t quire_engine_layers(const quire_engine *engine,
                             quire_layers_view out[QUIRE_DEVICE_SPLIT_MAX])
{
    (void)engine;
    (void)out;
    return 0;
}

int quire_engine_accounts_get(quire_engine *engine, quire_account_info *out, uint32_t n)
{
    (void)engine;
    (void)out;
    (void)n;
    return QUIRE_AGAIN;
}

int quire_engine_invalidate(quire_engine *engine, const quire_invalidate *what,
                            quire_prefix_dropped *dropped)
{
    (void)engine;
    (void)what;
    *dropped = (quire_prefix_dropped){ 0 };
    return QUIRE_AGAIN;
}

/* Four requests took 2 s each, of which 0.5 s in the queue; 2 run, 8 wait. */
uint32_t quire_engine_devices_get(quire_engine *engine,
                                  quire_engine_device_stats out[QUIRE_REPLICAS_MAX])
{
    (void)engine;
    out[0] = (quire_engine_device_stats){ .name = "cpu", .requests = 10 };
    return 1;
}

void quire_engine_stats_get(quire_engine *engine, quire_engine_stats *out)
{
    static const double bounds[] = { 10.0 };

    *out = (quire_engine_stats){ .requests_decoding = 2, .requests_waiting = 8, .n_classes = 1 };
    out->classes[0].waiting = 8;
    out->classes[0].running = 2;
    quire_histogram_init(&out->ttft, bounds, 1);
    quire_histogram_init(&out->inter_token, bounds, 1);
    quire_histogram_init(&out->queue, bounds, 1);
    quire_histogram_init(&out->e2e, bounds, 1);
    for (int i = 0; i < 4; i++) {
        quire_histogram_add(&out->e2e, 2.0);
        quire_histogram_add(&out->queue, 0.5);
    }
    if (engine->memory.has_stats) {
        *out = engine->memory.stats;
    }
}
