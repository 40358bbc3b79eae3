/* generate.c - submitting, waiting, ending.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"
#include "model/text.h"
#include "server/prompt_tokens.h"
#include "server/responses.h"

#include "base/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Interval of checks of the client's socket while waiting. */
#define WAIT_MS 100u

static bool has_failed(const quire_choice *choice)
{
    return choice->result != NULL && choice->result->finish == QUIRE_FINISH_ERROR;
}

/* The figures for the log: the results of requests that are given up are not awaited. */
static void note_given_up(quire_generation *gen)
{
    quire_http *http = gen->http;

    for (uint32_t i = 0; i < gen->n_choices; i++) {
        const quire_choice *choice = &gen->choices[i];

        if (choice->request != NULL) {
            http->n_prompt_tokens += i % gen->n_per_prompt == 0 ? choice->prompt->n_tokens : 0;
            http->n_generated_tokens += choice->n_taken;
            if (http->finish == NULL || has_failed(choice)) {
                http->finish = quire_finish_name(has_failed(choice) ? QUIRE_FINISH_ERROR
                                                                    : QUIRE_FINISH_CANCEL);
            }
            http->is_given_up = true;
        }
    }
}

void quire_generation_give_up(quire_generation *gen)
{
    quire_request_token token;

    if (gen->http->finish == NULL) {
        note_given_up(gen);
    }
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        quire_choice *choice = &gen->choices[i];

        if (choice->request != NULL) {
            quire_request_cancel(choice->request);
            while (gen->session != 0 &&
                   quire_request_wait(choice->request, UINT32_MAX, 1000, &token) == QUIRE_AGAIN) {
            }
            quire_request_release(choice->request);
            choice->request = NULL;
            choice->result = NULL;
        }
    }
    if (gen->session != 0) {
        quire_sessions_leave(quire_engine_sessions(gen->http->engine), gen->session,
                             quire_now_us());
        gen->session = 0;
    }
}

static void generation_release(void *work)
{
    quire_generation *gen = work;

    quire_generation_give_up(gen);
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        quire_bytes_fini(&gen->choices[i].text);
        quire_bytes_fini(&gen->choices[i].block_text);
        quire_bytes_fini(&gen->choices[i].block_id);
        quire_bytes_fini(&gen->choices[i].block_name);
        quire_chat_reader_destroy(gen->choices[i].reader);
        for (unsigned k = 0; k < 4; k++) {
            quire_bytes_fini(&gen->choices[i].logprobs[k]);
        }
    }
    for (uint32_t i = 0; i < gen->n_prompts; i++) {
        free(gen->prompts[i].tokens);
        quire_bytes_fini(&gen->prompts[i].text);
    }
    for (uint32_t i = 0; i < gen->params.n_stops; i++) {
        free(gen->stops[i]);
    }
    free(gen->history);
    quire_chat_request_fini(&gen->chat);
    quire_chat_prompt_destroy(gen->chat_prompt);
    quire_answer_rules_release(gen->rules);
    quire_said_prompt_fini(&gen->said_before);
    free(gen->schema);
    free(gen->plain_schema);
    if (gen->responses != NULL) {
        quire_responses_fini(gen->responses);
        free(gen->responses);
    }
    quire_bytes_fini(&gen->said);
    quire_bytes_fini(&gen->pending);
    free(gen->grammar);
    free(gen->bias);
    free(gen);
}

/* Errors: http->err. http->work owns the generation afterwards. */
static int generation_create(quire_http *http, const quire_answer_form *form,
                             quire_generation **out)
{
    quire_server *server = http->server;
    quire_generation *gen = calloc(1, sizeof *gen);

    *out = gen;
    if (gen == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    gen->http = http;
    gen->form = form;
    gen->is_chat = form->is_chat;
    gen->chat = (quire_chat_request)QUIRE_CHAT_REQUEST_INIT;
    gen->created_s = (int64_t)time(NULL);
    http->work = gen;
    http->work_release = generation_release;
    (void)snprintf(http->id, sizeof http->id, "%s-%016" PRIx64 "%06llx", form->id_prefix,
                   server->id_base, (unsigned long long)atomic_fetch_add(&server->n_ids, 1));
    return QUIRE_OK;
}

int quire_generation_prompt_add(quire_generation *gen, int32_t *tokens, uint32_t n_tokens)
{
    QUIRE_CHECK(gen->n_prompts < QUIRE_SERVER_CHOICES_MAX);
    gen->prompts[gen->n_prompts++] = (quire_prompt){ tokens, n_tokens, { 0 } };
    return QUIRE_OK;
}

int quire_generation_tokenize(quire_generation *gen, const char *text, size_t n,
                              quire_joined_tokens *out, quire_error *cause)
{
    const bool overflows = gen->params.context_overflow != QUIRE_CONTEXT_REFUSE;
    const size_t n_ctx = quire_engine_n_ctx(gen->http->engine);
    quire_tokenize_opts opts;
    int rc;

    quire_http_tokenize_opts(gen->http, overflows ? n_ctx * QUIRE_CONTEXTS_MAX : n_ctx, &opts);
    if (gen->session == 0 && gen->said_before.n_tokens > 0) {
        const quire_kept_tokens kept = { gen->said_before.tokens, gen->said_before.n_tokens };

        rc = quire_kept_tokens_join(quire_engine_model(gen->http->engine), &kept, text, n, &opts,
                                    out, cause);
    } else {
        rc = quire_sessions_tokenize(quire_engine_sessions(gen->http->engine), gen->session, text,
                                     n, &opts, out, cause);
    }
    return rc == QUIRE_RANGE && overflows
               ? quire_error_set(cause, QUIRE_LIMIT, "more than %zu tokens, %u times the context",
                                 opts.tokens_max, QUIRE_CONTEXTS_MAX)
               : rc;
}

int quire_generation_session_enter(quire_generation *gen)
{
    quire_error cause = QUIRE_ERROR_INIT;

    if (gen->session_id[0] == '\0') {
        return QUIRE_OK;
    }
    cause.status =
        quire_sessions_enter(quire_engine_sessions(gen->http->engine), gen->salt.bytes, gen->salt.n,
                             gen->session_id, quire_now_us(), &gen->session, &cause);
    if (cause.status == QUIRE_AGAIN) {
        gen->http->err.retry_after_s = 1;
        return quire_api_error_set(&gen->http->err, 409, "session_in_use", "session_id",
                                   "session_id: another request is using this session");
    }
    if (cause.status == QUIRE_LIMIT) {
        gen->http->err.retry_after_s = 1;
    }
    return cause.status < 0 ? quire_api_error_from(&gen->http->err, &cause) : QUIRE_OK;
}

/* ---- submitting ---- */

/* Time until a quarter of the queue of the class is served, by Little's law: running requests
 * divided by the mean time of a request is the number that end per second. */
static uint32_t retry_after_s(const quire_generation *gen)
{
    enum {
        SECONDS_MAX = 120
    };
    const uint32_t i = gen->params.class_index;
    quire_engine_stats stats;
    double waiting;
    double service;
    double running;
    double seconds;

    quire_engine_stats_get(gen->http->engine, &stats);
    if (stats.e2e.n == 0) {
        return 1;
    }
    waiting = i < stats.n_classes ? stats.classes[i].waiting : stats.requests_waiting;
    service = (stats.e2e.sum - stats.queue.sum) / (double)stats.e2e.n;
    running = (double)stats.requests_prefilling + (double)stats.requests_decoding;
    seconds = ceil((1.0 + waiting / 4.0) * service / (running > 1.0 ? running : 1.0));
    return seconds >= SECONDS_MAX ? SECONDS_MAX : seconds >= 1.0 ? (uint32_t)seconds : 1;
}

/* The engine's error about a grammar, by the name of the field that the grammar was made of. */
static quire_error name_constraint(const quire_generation *gen, const quire_error *cause)
{
    quire_error named = *cause;

    if (gen->constraint != NULL && strcmp(gen->constraint, "grammar") != 0 &&
        strncmp(cause->message, "grammar", 7) == 0) {
        (void)quire_error_set(&named, cause->status, "%s: its %s", gen->constraint, cause->message);
    }
    return named;
}

/* The field that the engine does not support. */
static const char *unsupported_of(const quire_generation *gen, const quire_error *cause)
{
    if (strncmp(cause->message, "attend:", strlen("attend:")) == 0) {
        return "attend";
    }
    return gen->params.retain != NULL && gen->params.context_overflow != QUIRE_CONTEXT_CONDENSE
               ? "retain"
               : "context_overflow";
}

static int submit_error(quire_generation *gen, const quire_error *engine)
{
    const quire_error named = name_constraint(gen, engine);
    const quire_error *cause = &named;
    quire_api_error *err = &gen->http->err;

    switch (cause->status) {
    case QUIRE_LIMIT:
        if (quire_api_error_names_field(cause)) {
            break; /* a grammar that is too large, or values of the prompt */
        }
        err->retry_after_s = retry_after_s(gen);
        return quire_api_error_set(err, 429, "queue_full", NULL,
                                   "the queue of class %s is full, try again in %u s",
                                   gen->http->class_name, err->retry_after_s);
    case QUIRE_AGAIN:
        return quire_api_error_set(err, 503, "draining", NULL, "the server takes no more requests");
    case QUIRE_UNSUPP:
        return quire_api_error_set(err, 400, "unsupported_parameter", unsupported_of(gen, cause),
                                   "%s", cause->message);
    case QUIRE_RANGE:
        return quire_api_error_set(err, 400, "context_length_exceeded",
                                   gen->is_chat ? "messages" : "prompt", "%s", cause->message);
    default:
        break;
    }
    return quire_api_error_from(err, cause);
}

/* libllama takes UINT32_MAX for another seed each time. */
static uint32_t seed_of(const quire_generation *gen, uint32_t i)
{
    const uint32_t seed = gen->params.sampler.seed + i;

    return seed != UINT32_MAX ? seed : UINT32_MAX / 2;
}

static int submit_choice(quire_generation *gen, uint32_t i)
{
    quire_choice *choice = &gen->choices[i];
    quire_request_params params = gen->params;
    quire_error cause = QUIRE_ERROR_INIT;
    char id[QUIRE_REQUEST_ID_MAX];

    (void)snprintf(id, sizeof id, "%s", gen->http->id);
    if (i > 0) {
        (void)snprintf(id, sizeof id, "%.48s-%u", gen->http->id, i);
    }
    if (gen->chat_prompt != NULL &&
        quire_chat_reader_create(&choice->reader, gen->chat_prompt, &cause) < 0) {
        return quire_api_error_from(&gen->http->err, &cause);
    }
    choice->prompt = &gen->prompts[i / gen->n_per_prompt];
    params.tokens = choice->prompt->tokens;
    params.n_tokens = choice->prompt->n_tokens;
    params.sampler.seed = seed_of(gen, i);
    params.id = id;
    params.has_prompt_logprobs = quire_choice_scores_prompt(gen, i);
    cause.status = quire_engine_submit(gen->http->engine, &params, &choice->request, &cause);
    return cause.status < 0 ? submit_error(gen, &cause) : QUIRE_OK;
}

/* The engine's limit for one request is the limit of all choices together: they are in one reply.
 */
static int prompt_logprobs_check(quire_generation *gen)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < gen->n_prompts; i++) {
        bytes += quire_prompt_logprobs_bytes(gen->prompts[i].n_tokens,
                                             gen->params.n_prompt_top_logprobs) *
                 gen->n_per_prompt;
    }
    if (bytes > QUIRE_PROMPT_LOGPROBS_BYTES_MAX) {
        const char *field = gen->shows_prompt_logprobs ? "prompt_logprobs" : "logprobs";

        return quire_api_error_set(&gen->http->err, 400, "invalid_value", field,
                                   "%s: those of the prompts take %" PRIu64
                                   " bytes, at most %u are possible",
                                   field, bytes, QUIRE_PROMPT_LOGPROBS_BYTES_MAX);
    }
    return QUIRE_OK;
}

/* Submit every choice, or none. Errors: http->err. */
static int generation_submit(quire_generation *gen)
{
    quire_request_params *params = &gen->params;
    const uint32_t n = gen->n_prompts * gen->n_per_prompt;

    if (n > QUIRE_SERVER_CHOICES_MAX) {
        return quire_api_error_set(&gen->http->err, 400, "invalid_value", "n",
                                   "n: %u prompts with %u answers each are more than %u",
                                   gen->n_prompts, gen->n_per_prompt, QUIRE_SERVER_CHOICES_MAX);
    }
    if (params->has_prompt_logprobs) {
        QUIRE_TRY(prompt_logprobs_check(gen));
    }
    params->stops = (const char *const *)gen->stops;
    params->tenant = gen->salt.bytes;
    params->tenant_bytes = gen->salt.n;
    params->session = gen->session;
    for (uint32_t i = 0; i < n; i++) {
        gen->n_choices = i + 1;
        QUIRE_TRY(submit_choice(gen, i));
    }
    return QUIRE_OK;
}

/* ---- waiting ---- */

static int choice_failed(quire_generation *gen, const quire_request_result *result)
{
    quire_error cause = QUIRE_ERROR_INIT;

    if (result->finish == QUIRE_FINISH_CANCEL) {
        return quire_api_error_set(&gen->http->err, 503, "stopping", NULL,
                                   "the request was cancelled by the server");
    }
    cause.status = result->status;
    (void)snprintf(cause.message, sizeof cause.message, "%s", result->message);
    return quire_api_error_from(&gen->http->err, &cause);
}

int quire_generation_wait(quire_generation *gen, quire_choice *choice, uint32_t timeout_ms,
                          quire_request_token *token)
{
    const uint32_t ms = timeout_ms < WAIT_MS ? timeout_ms : WAIT_MS;
    uint32_t waited_ms = 0;
    int rc;

    for (;;) {
        QUIRE_TRY(quire_http_check(gen->http));
        rc = quire_request_wait(choice->request, choice->n_taken, ms, token);
        waited_ms += ms;
        if (rc != QUIRE_AGAIN || waited_ms >= timeout_ms) {
            break;
        }
    }
    if (rc == 1) {
        choice->n_taken++;
        quire_text_logprobs_echo(gen, choice);
    } else if (rc == 0) {
        choice->result = quire_request_result_get(choice->request);
        if (choice->result->finish == QUIRE_FINISH_ERROR ||
            choice->result->finish == QUIRE_FINISH_CANCEL) {
            (void)choice_failed(gen, choice->result);
            return QUIRE_CANCELED;
        }
        quire_text_logprobs_echo(gen, choice);
    }
    return rc;
}

/* ---- ending ---- */

size_t quire_generation_messages(quire_generation *gen, quire_chat_message *messages,
                                 char **content, char **extra)
{
    quire_choice *choice = &gen->choices[0];
    size_t n = gen->n_history;
    quire_bytes text = { 0 };
    quire_chat_answer answer;

    memcpy(messages, gen->history, n * sizeof messages[0]);
    quire_chat_reader_answer(choice->reader, &answer);
    answer.n_calls = quire_messages_whole_calls(&answer);
    if (gen->chat.continues_final && n > 0) {
        n--; /* the answer goes on with the message */
        (void)quire_bytes_add(&text, messages[n].content, strlen(messages[n].content));
    }
    (void)quire_bytes_add(&text, answer.content.data, answer.content.n);
    (void)quire_bytes_add(&text, "", 0);
    *content = text.data;
    if (text.status < 0 || quire_chat_answer_extra(&answer, extra) < 0) {
        return 0;
    }
    messages[n++] = (quire_chat_message){ "assistant", text.data != NULL ? text.data : "", *extra };
    return n;
}

/* A turn that cannot be stored is answered anyway, and the reply says so; the session is
 * unchanged. */
static void session_commit(quire_generation *gen)
{
    quire_sessions *sessions = quire_engine_sessions(gen->http->engine);
    quire_choice *choice = &gen->choices[0];
    quire_chat_message *messages;
    char *content = NULL;
    char *extra = NULL;
    int32_t *tokens;
    uint32_t n_tokens;
    size_t n = 0;

    /* The texts of a session end at a NUL: text behind a NUL would be lost. */
    if (choice->text.n > 0 && memchr(choice->text.data, '\0', choice->text.n) != NULL) {
        return;
    }
    messages = calloc(gen->n_history + 1, sizeof messages[0]);
    if (messages == NULL) {
        return;
    }
    if (gen->is_chat) {
        n = quire_generation_messages(gen, messages, &content, &extra);
    } else if (quire_bytes_add(&gen->said, choice->text.data, choice->text.n) == QUIRE_OK) {
        messages[n++] = (quire_chat_message){ "text", gen->said.data, NULL };
    }
    if (n > 0 && choice->text.status == QUIRE_OK) {
        tokens = quire_request_tokens_take(choice->request, &n_tokens);
        gen->is_session_kept = quire_sessions_commit(sessions, gen->session, messages, n, tokens,
                                                     n_tokens, quire_now_us()) == QUIRE_OK;
    }
    free(messages);
    free(content);
    free(extra);
}

void quire_generation_finish(quire_generation *gen)
{
    quire_http *http = gen->http;

    for (uint32_t i = 0; i < gen->n_choices; i++) {
        const quire_request_result *result = gen->choices[i].result;

        http->n_generated_tokens += result->n_generated_tokens;
        if (i % gen->n_per_prompt == 0) {
            http->n_prompt_tokens += result->n_prompt_tokens;
            http->n_cached_tokens += result->n_cached_tokens;
        }
    }
    http->finish = quire_choice_finish(gen, &gen->choices[0]);
    quire_generation_note(gen);
    if (gen->is_chat) {
        quire_generation_said_keep(gen);
    }
    quire_cache_mark_pin(gen);
    if (gen->session != 0) {
        session_commit(gen);
        quire_sessions_leave(quire_engine_sessions(http->engine), gen->session, quire_now_us());
        gen->session = 0;
    }
}

static int reply_whole(quire_generation *gen)
{
    quire_bytes body = { 0 };
    quire_request_token token;

    for (uint32_t i = 0; i < gen->n_choices; i++) {
        quire_choice *choice = &gen->choices[i];
        int rc = 1;

        if (gen->has_echo) {
            (void)quire_bytes_add(&choice->text, choice->prompt->text.data, choice->prompt->text.n);
        }
        while (rc == 1) {
            rc = quire_generation_wait(gen, choice, UINT32_MAX, &token);
            if (rc == 1) {
                quire_choice_take(gen, choice, &token);
                (void)quire_bytes_add(&choice->text, token.text, token.text_bytes);
            }
        }
        if (rc < 0) {
            return rc;
        }
        (void)quire_bytes_add(&choice->text, choice->result->tail, choice->result->tail_bytes);
        QUIRE_TRY(quire_choice_read(gen, choice, choice->text.data, choice->text.n, true));
    }
    quire_generation_finish(gen);
    gen->form->whole(&body, gen);
    return quire_http_reply_json(gen->http, 200, &body);
}

/* Note which fields the request itself does not have. */
static void aliases_note(quire_generation *gen, const json_t *object)
{
    QUIRE_CHECK(gen->form->n_aliases <= QUIRE_FIELD_ALIASES_MAX);
    for (uint32_t i = 0; i < gen->form->n_aliases; i++) {
        gen->made_fields |=
            json_object_get(object, gen->form->aliases[i].made) == NULL ? 1u << i : 0;
    }
}

/* Let an error name the field of the request. Returns rc. */
static int aliases_apply(quire_generation *gen, int rc)
{
    for (uint32_t i = 0; rc < 0 && i < gen->form->n_aliases; i++) {
        if ((gen->made_fields >> i & 1u) != 0) {
            quire_api_error_rename(&gen->http->err, gen->form->aliases[i].made,
                                   gen->form->aliases[i].from);
        }
    }
    return rc;
}

int quire_generation_read(quire_http *http, const quire_answer_form *form,
                          int (*read)(quire_generation *gen, quire_fields *fields),
                          quire_generation **out)
{
    quire_fields_asked asked = { .n = 0 };
    quire_fields fields = { .err = &http->err, .asked = &asked };
    int rc;

    QUIRE_TRY(generation_create(http, form, out));
    QUIRE_TRY(quire_http_json(http, &fields.object));
    aliases_note(*out, fields.object);
    rc = aliases_apply(*out, read(*out, &fields));
    if (rc == QUIRE_OK) {
        quire_fields_near(&fields, http->ignored);
    }
    quire_http_json_release(http, fields.object);
    return rc;
}

int quire_generation_answer(quire_http *http, const quire_answer_form *form,
                            int (*read)(quire_generation *gen, quire_fields *fields))
{
    quire_generation *gen;

    QUIRE_TRY(quire_generation_read(http, form, read, &gen));
    QUIRE_TRY(aliases_apply(gen, generation_submit(gen)));
    return gen->is_stream ? quire_generation_stream(gen) : reply_whole(gen);
}

int quire_generation_count(quire_http *http, const quire_answer_form *form,
                           int (*read)(quire_generation *gen, quire_fields *fields))
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_generation *gen;

    QUIRE_TRY(quire_generation_read(http, form, read, &gen));
    quire_json_object(&json, NULL);
    quire_json_u64(&json, "input_tokens", gen->prompts[0].n_tokens);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}
