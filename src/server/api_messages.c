/* api_messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "server/anthropic.h"
#include "server/generate.h"

/* Fields of chats that answers of this form have no place for. */
static int check_form(quire_generation *gen, quire_fields *fields)
{
    if (gen->n_per_prompt != 1) {
        quire_field_error(fields, "n", "a message has one answer");
    }
    if (gen->params.has_logprobs) {
        quire_field_error(fields, "logprobs", "a message has none");
    }
    return fields->err->http != 0 ? QUIRE_INVAL : QUIRE_OK;
}

/* `thinking` says how much a model may think. A template without thoughts keeps to each bound, so
 * its switch is not set. Agents send the field for every model. */
static void allow_thoughts(const quire_generation *gen, json_t *chat)
{
    const quire_chat_format *format = gen->http->server->chat;
    quire_chat_abilities has = { 0 };

    if (format != NULL) {
        quire_chat_format_abilities(format, &has);
    }
    if (!has.has_thinking) {
        (void)json_object_del(chat, "enable_thinking");
    }
}

static int read_message(quire_generation *gen, quire_fields *fields, bool needs_max_tokens)
{
    quire_anthropic request;
    int rc = quire_anthropic_read(&request, fields, needs_max_tokens);

    if (rc == QUIRE_OK) {
        quire_fields chat = { .object = request.chat, .err = fields->err, .asked = fields->asked };

        allow_thoughts(gen, request.chat);
        gen->mark = request.mark;
        rc = quire_generation_chat_read(gen, &chat);
    }
    json_decref(request.chat);
    QUIRE_TRY(rc);
    QUIRE_TRY(check_form(gen, fields));
    return quire_cache_mark_find(gen);
}

static int read_request(quire_generation *gen, quire_fields *fields)
{
    return read_message(gen, fields, true);
}

static int read_count(quire_generation *gen, quire_fields *fields)
{
    return read_message(gen, fields, false);
}

int quire_api_messages(quire_http *http)
{
    return quire_generation_answer(http, &quire_form_anthropic, read_request);
}

int quire_api_messages_count(quire_http *http)
{
    return quire_generation_count(http, &quire_form_anthropic, read_count);
}
