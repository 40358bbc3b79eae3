/* api_responses.c - /v1/responses[/{id}]: OpenAI's Responses API.
 *
 * A stored response keeps its turn (response_store.h). A request that continues the response gets
 * the whole conversation as messages, so the prompt begins with cached text.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "server/generate.h"
#include "server/responses.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the id is one of another run of a server: ids begin with a number of the run. */
static bool is_of_another_run(const quire_http *http, const char *id)
{
    char own[QUIRE_RESPONSE_ID_MAX];
    const int n = snprintf(own, sizeof own, "%s-%016" PRIx64, quire_form_responses.id_prefix,
                           http->server->id_base);
    const size_t n_prefix = strlen(quire_form_responses.id_prefix) + 1;

    return strlen(id) > (size_t)n && strncmp(id, own, n_prefix) == 0 &&
           strspn(id + n_prefix, "0123456789abcdef") == strlen(id + n_prefix) &&
           strncmp(id, own, (size_t)n) != 0;
}

static int not_found(quire_http *http, const char *param, const char *id)
{
    if (is_of_another_run(http, id)) {
        return quire_api_error_set(&http->err, 404, "no_such_response", param,
                                   "there is no such response: it was made before this server "
                                   "started, or by another one, and a restart forgets stored "
                                   "responses; send the whole history as input");
    }
    return quire_api_error_set(&http->err, 404, "no_such_response", param,
                               "there is no such response: it was not stored, was deleted, or gave "
                               "way to newer ones");
}

/* ---- creating ---- */

/* The salt of the request, which says whose responses may be continued. */
static void read_salt(quire_generation *gen, quire_fields *fields)
{
    const char *salt = quire_field_string(fields, "cache_salt", QUIRE_CACHE_SALT_MAX);

    quire_http_salt(gen->http, salt, &gen->salt);
}

/* The earlier turns of previous_response_id go before the new ones. */
static int continue_chain(quire_generation *gen, quire_fields *fields)
{
    quire_responses *request = gen->responses;
    json_t *earlier;
    int rc = quire_response_store_chain(gen->http->server->responses, &gen->salt,
                                        request->previous_id, &earlier);

    if (rc == QUIRE_NOTFOUND) {
        return not_found(gen->http, "previous_response_id", request->previous_id);
    }
    if (rc < 0) {
        return quire_api_error_nomem(fields->err);
    }
    rc = quire_responses_continue(request, fields, earlier);
    json_decref(earlier);
    return rc;
}

static int read_request(quire_generation *gen, quire_fields *fields)
{
    quire_fields chat = { .err = fields->err, .asked = fields->asked };

    gen->responses = calloc(1, sizeof *gen->responses);
    if (gen->responses == NULL) {
        return quire_api_error_nomem(fields->err);
    }
    QUIRE_TRY(quire_responses_read(gen->responses, fields));
    read_salt(gen, fields);
    if (gen->responses->previous_id[0] != '\0') {
        QUIRE_TRY(continue_chain(gen, fields));
    }
    chat.object = gen->responses->chat;
    QUIRE_TRY(quire_generation_chat_read(gen, &chat));
    if (gen->n_per_prompt != 1) {
        quire_field_error(fields, "n", "a response has one answer");
        return QUIRE_INVAL;
    }
    return QUIRE_OK;
}

int quire_api_responses(quire_http *http)
{
    return quire_generation_answer(http, &quire_form_responses, read_request);
}

int quire_api_responses_count(quire_http *http)
{
    return quire_generation_count(http, &quire_form_responses, read_request);
}

/* The answer as a message of the conversation. Memory: json_decref(). */
static json_t *answer_message(const quire_generation *gen)
{
    quire_chat_answer answer;
    char *extra = NULL;
    json_t *message, *more = NULL;

    quire_chat_reader_answer(gen->choices[0].reader, &answer);
    answer.n_calls = quire_messages_whole_calls(&answer);
    if (quire_chat_answer_extra(&answer, &extra) < 0) {
        return NULL;
    }
    message = json_pack("{s:s, s:s%}", "role", "assistant", "content",
                        answer.content.n > 0 ? answer.content.data : "", answer.content.n);
    if (extra != NULL) {
        more = json_loads(extra, 0, NULL);
        (void)json_object_update(message, more);
    }
    json_decref(more);
    free(extra);
    return message;
}

void quire_response_keep(quire_generation *gen, const quire_bytes *reply)
{
    const quire_responses *request = gen->responses;
    json_t *turn = request->is_stored ? json_copy(request->messages) : NULL;
    json_t *message = turn != NULL ? answer_message(gen) : NULL;
    const quire_response response = {
        .id = gen->http->id,
        .previous_id = request->previous_id[0] != '\0' ? request->previous_id : NULL,
        .salt = &gen->salt,
        .messages = turn,
        .reply = reply->data,
    };

    /* Without memory the response is not stored, and a later request is told that it is not. */
    if (message != NULL && reply->status == QUIRE_OK && json_array_append_new(turn, message) == 0) {
        (void)quire_response_store_add(gen->http->server->responses, &response);
    }
    json_decref(turn);
}

/* ---- stored ones ---- */

static void salt_of_query(quire_http *http, quire_tenant_salt *salt)
{
    const char *cache_salt = quire_http_query(http, "cache_salt");

    quire_http_salt(
        http, cache_salt != NULL && strlen(cache_salt) <= QUIRE_CACHE_SALT_MAX ? cache_salt : NULL,
        salt);
}

int quire_api_response_get(quire_http *http)
{
    quire_tenant_salt salt;
    quire_bytes body = { 0 };
    char *reply;
    int rc;

    salt_of_query(http, &salt);
    rc = quire_response_store_get(http->server->responses, &salt, http->item, &reply);
    if (rc < 0) {
        return rc == QUIRE_NOTFOUND ? not_found(http, NULL, http->item)
                                    : quire_api_error_nomem(&http->err);
    }
    (void)quire_bytes_add(&body, reply, strlen(reply));
    free(reply);
    return quire_http_reply_json(http, 200, &body);
}

int quire_api_response_delete(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_tenant_salt salt;

    salt_of_query(http, &salt);
    if (quire_response_store_drop(http->server->responses, &salt, http->item) < 0) {
        return not_found(http, NULL, http->item);
    }
    quire_json_object(&json, NULL);
    quire_json_string(&json, "id", http->item);
    quire_json_string(&json, "object", "response.deleted");
    quire_json_bool(&json, "deleted", true);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}
