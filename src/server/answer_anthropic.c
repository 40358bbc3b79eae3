/* answer_anthropic.c - answers of /v1/messages, in Anthropic's form: blocks of thoughts, text and
 * calls, whole and as events.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/check.h"
#include "server/json_in.h"

#include <stdlib.h>
#include <string.h>

/* Kinds of the block that is open in a stream. */
enum {
    BLOCK_NONE,
    BLOCK_TEXT,
    BLOCK_THINKING,
    BLOCK_CALL
};

/* ---- figures ---- */

/* Tokens of the prompt by where they come from; the three sum up to the prompt. */
static void write_usage(quire_json_out *json, const quire_generation *gen, uint64_t prompt,
                        uint64_t cached, uint64_t generated)
{
    const quire_cache_mark *mark = &gen->mark;
    const uint64_t written =
        mark->is_pinned && mark->n_tokens > cached ? mark->n_tokens - cached : 0;
    const bool is_long = mark->ttl_s > QUIRE_CACHE_MARK_TTL_S;

    quire_json_object(json, "usage");
    quire_json_u64(json, "input_tokens", prompt - cached - written);
    quire_json_u64(json, "cache_creation_input_tokens", written);
    quire_json_u64(json, "cache_read_input_tokens", cached);
    quire_json_object(json, "cache_creation");
    quire_json_u64(json, "ephemeral_5m_input_tokens", is_long ? 0 : written);
    quire_json_u64(json, "ephemeral_1h_input_tokens", is_long ? written : 0);
    quire_json_object_end(json);
    quire_json_u64(json, "output_tokens", generated);
    if (gen->tier.reply != NULL) {
        quire_json_string(json, "service_tier", gen->tier.reply);
    }
    quire_json_object_end(json);
}

static void write_final_usage(quire_json_out *json, const quire_generation *gen)
{
    const quire_request_result *result = gen->choices[0].result;

    write_usage(json, gen, result->n_prompt_tokens, result->n_cached_tokens,
                result->n_generated_tokens);
}

/* The reason of the end, and the text that ended the answer if one did. */
static void write_stop(quire_json_out *json, const quire_generation *gen)
{
    const quire_choice *choice = &gen->choices[0];
    const int32_t stop = choice->result->stop_index;
    const char *finish = quire_choice_finish(gen, choice);
    const char *reason = strcmp(finish, "length") == 0       ? "max_tokens"
                         : strcmp(finish, "tool_calls") == 0 ? "tool_use"
                                                             : "end_turn";

    /* Stop texts beyond the request's are the chat format's: an end of its own. */
    if (stop >= 0 && (uint32_t)stop < gen->n_request_stops && strcmp(reason, "end_turn") == 0) {
        quire_json_string(json, "stop_reason", "stop_sequence");
        quire_json_string(json, "stop_sequence", gen->stops[stop]);
    } else {
        quire_json_string(json, "stop_reason", reason);
        quire_json_null(json, "stop_sequence");
    }
}

/* ---- the whole reply ---- */

static void message_begin(quire_json_out *json, const quire_generation *gen, const char *key)
{
    quire_json_object(json, key);
    quire_json_string(json, "id", gen->http->id);
    quire_json_string(json, "type", "message");
    quire_json_string(json, "role", "assistant");
    quire_json_string(json, "model", gen->http->server->opts.model_name);
    quire_json_array(json, "content");
}

/* Arguments as a JSON object; a text that is no object stays a text. */
static void write_input(quire_json_out *json, const quire_chat_text *arguments)
{
    json_error_t error;
    json_t *object = quire_json_read(arguments->data, arguments->n, 0, &error);

    if (json_is_object(object)) {
        quire_json_raw(json, "input", arguments->data, arguments->n);
    } else {
        quire_json_object(json, "input");
        if (arguments->n > 0) {
            quire_json_text(json, "arguments", arguments->data, arguments->n);
        }
        quire_json_object_end(json);
    }
    json_decref(object);
}

static void write_blocks(quire_json_out *json, const quire_chat_answer *answer)
{
    if (answer->reasoning.n > 0) {
        quire_json_object(json, NULL);
        quire_json_string(json, "type", "thinking");
        quire_json_text(json, "thinking", answer->reasoning.data, answer->reasoning.n);
        quire_json_string(json, "signature", "");
        quire_json_object_end(json);
    }
    if (answer->content.n > 0) {
        quire_json_object(json, NULL);
        quire_json_string(json, "type", "text");
        quire_json_text(json, "text", answer->content.data, answer->content.n);
        quire_json_object_end(json);
    }
    for (uint32_t i = 0; i < answer->n_calls; i++) {
        const quire_chat_call *call = &answer->calls[i];

        quire_json_object(json, NULL);
        quire_json_string(json, "type", "tool_use");
        quire_json_text(json, "id", call->id.data, call->id.n);
        quire_json_text(json, "name", call->name.data, call->name.n);
        write_input(json, &call->arguments);
        quire_json_object_end(json);
    }
}

static void write_whole(quire_bytes *out, quire_generation *gen)
{
    quire_json_out json = { out, false };
    quire_chat_answer answer;

    quire_chat_reader_answer(gen->choices[0].reader, &answer);
    message_begin(&json, gen, NULL);
    write_blocks(&json, &answer);
    quire_json_array_end(&json);
    write_stop(&json, gen);
    write_final_usage(&json, gen);
    quire_answer_quire_write(&json, gen, &gen->choices[0]);
    quire_json_object_end(&json);
}

/* ---- streams ---- */

/* An event whose data begins with its own name as the type. */
static quire_json_out event_begin(quire_generation *gen, const char *name)
{
    quire_json_out json = { &gen->pending, false };

    quire_event_begin(gen, name);
    quire_json_object(&json, NULL);
    quire_json_string(&json, "type", name);
    return json;
}

static void event_end(quire_generation *gen, quire_json_out *json)
{
    quire_json_object_end(json);
    quire_event_end(gen);
}

/* The first event comes with the first token, when the cached part of the prompt is known. */
static void message_start(quire_generation *gen, quire_choice *choice)
{
    quire_explanation explanation = { 0 };
    quire_json_out json;

    if (choice->is_begun) {
        return;
    }
    choice->is_begun = true;
    (void)quire_request_explain(choice->request, &explanation);
    json = event_begin(gen, "message_start");
    message_begin(&json, gen, "message");
    quire_json_array_end(&json);
    quire_json_null(&json, "stop_reason");
    quire_json_null(&json, "stop_sequence");
    write_usage(&json, gen, choice->prompt->n_tokens,
                explanation.n_cached_tokens < choice->prompt->n_tokens ? explanation.n_cached_tokens
                                                                       : 0,
                0);
    quire_json_object_end(&json);
    event_end(gen, &json);
}

static void block_stop(quire_generation *gen, quire_choice *choice)
{
    quire_json_out json;

    if (choice->block_kind == BLOCK_NONE) {
        return;
    }
    choice->block_kind = BLOCK_NONE;
    json = event_begin(gen, "content_block_stop");
    quire_json_u64(&json, "index", choice->n_blocks - 1);
    event_end(gen, &json);
}

/* Open a block of this kind, unless it is open. A call has a block of its own. */
static void block_start(quire_generation *gen, quire_choice *choice, int kind,
                        const quire_chat_delta *delta)
{
    quire_json_out json;

    if (choice->block_kind == kind && delta->kind != QUIRE_CHAT_DELTA_CALL) {
        return;
    }
    block_stop(gen, choice);
    choice->block_kind = kind;
    choice->block_call = delta->call;
    json = event_begin(gen, "content_block_start");
    quire_json_u64(&json, "index", choice->n_blocks++);
    quire_json_object(&json, "content_block");
    if (kind == BLOCK_TEXT) {
        quire_json_string(&json, "type", "text");
        quire_json_string(&json, "text", "");
    } else if (kind == BLOCK_THINKING) {
        quire_json_string(&json, "type", "thinking");
        quire_json_string(&json, "thinking", "");
        quire_json_string(&json, "signature", "");
    } else {
        quire_json_string(&json, "type", "tool_use");
        quire_json_text(&json, "id", delta->id.data, delta->id.n);
        quire_json_text(&json, "name", delta->name.data, delta->name.n);
        quire_json_object(&json, "input");
        quire_json_object_end(&json);
    }
    quire_json_object_end(&json);
    event_end(gen, &json);
}

static void block_delta(quire_generation *gen, quire_choice *choice, const char *type,
                        const char *key, const quire_chat_text *text)
{
    quire_json_out json = event_begin(gen, "content_block_delta");

    quire_json_u64(&json, "index", choice->n_blocks - 1);
    quire_json_object(&json, "delta");
    quire_json_string(&json, "type", type);
    quire_json_text(&json, key, text->data, text->n);
    quire_json_object_end(&json);
    event_end(gen, &json);
}

static void add_part(quire_generation *gen, quire_choice *choice, const quire_chat_delta *delta)
{
    message_start(gen, choice);
    switch (delta->kind) {
    case QUIRE_CHAT_DELTA_REASONING:
        block_start(gen, choice, BLOCK_THINKING, delta);
        block_delta(gen, choice, "thinking_delta", "thinking", &delta->text);
        break;
    case QUIRE_CHAT_DELTA_CONTENT:
        block_start(gen, choice, BLOCK_TEXT, delta);
        block_delta(gen, choice, "text_delta", "text", &delta->text);
        break;
    case QUIRE_CHAT_DELTA_CALL:
        block_start(gen, choice, BLOCK_CALL, delta);
        break;
    case QUIRE_CHAT_DELTA_ARGUMENTS:
        if (choice->block_kind == BLOCK_CALL && choice->block_call == delta->call) {
            block_delta(gen, choice, "input_json_delta", "partial_json", &delta->text);
        }
        break;
    }
}

static void end_choice(quire_generation *gen, quire_choice *choice)
{
    quire_json_out json;

    message_start(gen, choice);
    block_stop(gen, choice);
    json = event_begin(gen, "message_delta");
    quire_json_object(&json, "delta");
    write_stop(&json, gen);
    quire_json_object_end(&json);
    write_final_usage(&json, gen);
    quire_answer_quire_write(&json, gen, choice);
    event_end(gen, &json);
}

static void end_all(quire_generation *gen)
{
    quire_json_out json = event_begin(gen, "message_stop");

    event_end(gen, &json);
}

static void add_error(quire_generation *gen)
{
    quire_event_begin(gen, "error");
    quire_api_error_write(&gen->pending, &gen->http->err, QUIRE_ERROR_ANTHROPIC);
    quire_event_end(gen);
}

static const quire_field_alias aliases[] = {
    { "response_format", "output_format" },
    { "reasoning_effort", "output_config.effort" },
    { "stop", "stop_sequences" },
};

const quire_answer_form quire_form_anthropic = { .is_chat = true,
                                                 .id_prefix = "msg",
                                                 .aliases = aliases,
                                                 .n_aliases = sizeof aliases / sizeof aliases[0],
                                                 .whole = write_whole,
                                                 .delta = add_part,
                                                 .choice_end = end_choice,
                                                 .end = end_all,
                                                 .error = add_error };
