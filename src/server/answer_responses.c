/* answer_responses.c - answers of /v1/responses, in OpenAI's form: items of reasoning, text and
 * calls, whole and as events.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/check.h"
#include "server/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of the item that is open in a stream. */
enum {
    ITEM_NONE,
    ITEM_REASONING,
    ITEM_MESSAGE,
    ITEM_CALL
};

/* An item: its kind, its place among the items, and its text (a call: its arguments). */
typedef struct item {
    int kind;
    uint32_t index;
    quire_chat_text text;
    quire_chat_text id, name; /* of a call */
    bool is_done;
    bool is_cut; /* done, but not whole */
} item;

/* ---- items ---- */

static void write_part(quire_json_out *json, const char *key, const item *it)
{
    quire_json_object(json, key);
    if (it->kind == ITEM_REASONING) {
        quire_json_string(json, "type", "reasoning_text");
        quire_json_text(json, "text", it->text.data, it->text.n);
    } else {
        quire_json_string(json, "type", "output_text");
        quire_json_text(json, "text", it->text.data, it->text.n);
        quire_json_array(json, "annotations");
        quire_json_array_end(json);
        quire_json_array(json, "logprobs");
        quire_json_array_end(json);
    }
    quire_json_object_end(json);
}

/* "msg-...-2": the response's id, with the item's kind and place. */
static void item_id(char *text, size_t size, const quire_generation *gen, const item *it)
{
    static const char *const prefixes[] = { "", "rs", "msg", "fc" };
    const char *rest = strchr(gen->http->id, '-');

    (void)snprintf(text, size, "%s%s-%u", prefixes[it->kind], rest != NULL ? rest : "", it->index);
}

/* The namespace that the request had a function in. NULL without one. */
static const char *namespace_of(const quire_generation *gen, const quire_chat_text *name)
{
    const json_t *space = json_object_getn(gen->responses->spaces, name->data, name->n);

    return json_string_value(space);
}

static void write_call(quire_json_out *json, const quire_generation *gen, const item *it)
{
    const char *space = namespace_of(gen, &it->name);

    quire_json_text(json, "call_id", it->id.data, it->id.n);
    quire_json_text(json, "name", it->name.data, it->name.n);
    if (space != NULL) {
        quire_json_string(json, "namespace", space);
    }
    quire_json_text(json, "arguments", it->text.data, it->text.n);
}

static const char *status_of(const item *it)
{
    return !it->is_done ? "in_progress" : it->is_cut ? "incomplete" : "completed";
}

/* Whether the last item of an answer, of this kind, is cut: by max_output_tokens, or a call by a
 * stop text. */
static bool is_last_cut(const quire_generation *gen, int kind)
{
    const quire_choice *choice = &gen->choices[0];

    return choice->result->finish == QUIRE_FINISH_LENGTH ||
           (kind == ITEM_CALL && strcmp(quire_choice_finish(gen, choice), "tool_calls") != 0);
}

static void write_item(quire_json_out *json, const char *key, const quire_generation *gen,
                       const item *it)
{
    char id[QUIRE_REQUEST_ID_MAX + 16];

    item_id(id, sizeof id, gen, it);
    quire_json_object(json, key);
    quire_json_string(json, "id", id);
    quire_json_string(json, "type",
                      it->kind == ITEM_REASONING ? "reasoning"
                      : it->kind == ITEM_MESSAGE ? "message"
                                                 : "function_call");
    quire_json_string(json, "status", status_of(it));
    if (it->kind == ITEM_CALL) {
        write_call(json, gen, it);
        quire_json_object_end(json);
        return;
    }
    if (it->kind == ITEM_REASONING) {
        quire_json_array(json, "summary");
        quire_json_array_end(json);
    } else {
        quire_json_string(json, "role", "assistant");
    }
    quire_json_array(json, "content");
    if (it->is_done) {
        write_part(json, NULL, it);
    }
    quire_json_array_end(json);
    quire_json_object_end(json);
}

/* The items of an answer that has ended: those of its stream. */
static void write_output(quire_json_out *json, const quire_generation *gen)
{
    quire_chat_answer answer;
    bool is_last;
    uint32_t n = 0;

    quire_chat_reader_answer(gen->choices[0].reader, &answer);
    if (answer.reasoning.n > 0) {
        is_last = answer.content.n == 0 && answer.n_calls == 0;
        write_item(json, NULL, gen,
                   &(item){ ITEM_REASONING, n++, answer.reasoning, .is_done = true,
                            .is_cut = is_last && is_last_cut(gen, ITEM_REASONING) });
    }
    if (answer.content.n > 0 || (answer.n_calls == 0 && answer.reasoning.n == 0)) {
        write_item(json, NULL, gen,
                   &(item){ ITEM_MESSAGE, n++, answer.content, .is_done = true,
                            .is_cut = answer.n_calls == 0 && is_last_cut(gen, ITEM_MESSAGE) });
    }
    for (uint32_t i = 0; i < answer.n_calls; i++) {
        const quire_chat_call *call = &answer.calls[i];
        const bool is_cut = i + 1 == answer.n_calls && is_last_cut(gen, ITEM_CALL);

        write_item(json, NULL, gen,
                   &(item){ ITEM_CALL, n++, call->arguments, call->id, call->name, true, is_cut });
    }
}

/* ---- the response ---- */

static void write_usage(quire_json_out *json, const quire_generation *gen)
{
    quire_answer_usage usage;

    quire_answer_usage_get(gen, &usage);
    quire_json_object(json, "usage");
    quire_json_u64(json, "input_tokens", usage.prompt_tokens);
    quire_json_object(json, "input_tokens_details");
    quire_json_u64(json, "cached_tokens", usage.cached_tokens);
    quire_json_object_end(json);
    quire_json_u64(json, "output_tokens", usage.generated_tokens);
    quire_json_object(json, "output_tokens_details");
    quire_json_u64(json, "reasoning_tokens", usage.thought_tokens);
    quire_json_object_end(json);
    quire_json_u64(json, "total_tokens", usage.prompt_tokens + usage.generated_tokens);
    quire_json_object_end(json);
}

/* A field of the request, or its default without one. */
static void write_echo(quire_json_out *json, const quire_responses *request, const char *name,
                       const char *otherwise)
{
    json_t *value = json_object_get(request->echo, name);
    char *text = value != NULL ? quire_json_dump(value) : NULL;

    if (value != NULL && text == NULL) {
        json->bytes->status = QUIRE_NOMEM;
    }
    quire_json_raw(json, name, text != NULL ? text : otherwise,
                   strlen(text != NULL ? text : otherwise));
    free(text);
}

static void write_echoes(quire_json_out *json, const quire_generation *gen)
{
    static const char *const names[][2] = {
        { "instructions", "null" },
        { "max_output_tokens", "null" },
        { "metadata", "{}" },
        { "parallel_tool_calls", "true" },
        { "temperature", "null" },
        { "text", "{\"format\":{\"type\":\"text\"}}" },
        { "tool_choice", "\"auto\"" },
        { "tools", "[]" },
        { "top_p", "null" },
        { "truncation", "\"disabled\"" },
        { "user", "null" },
        { "reasoning", "{\"effort\":null,\"summary\":null}" },
    };
    const quire_responses *request = gen->responses;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        write_echo(json, request, names[i][0], names[i][1]);
    }
    quire_json_string(json, "previous_response_id",
                      request->previous_id[0] != '\0' ? request->previous_id : NULL);
    quire_json_bool(json, "store", request->is_stored);
}

/* is_done: the answer has ended. */
static void write_response(quire_json_out *json, const char *key, const quire_generation *gen,
                           bool is_done)
{
    const bool is_cut = is_done && gen->choices[0].result->finish == QUIRE_FINISH_LENGTH;

    quire_json_object(json, key);
    quire_json_string(json, "id", gen->http->id);
    quire_json_string(json, "object", "response");
    quire_json_i64(json, "created_at", gen->created_s);
    quire_json_string(json, "status",
                      !is_done ? "in_progress"
                      : is_cut ? "incomplete"
                               : "completed");
    quire_json_bool(json, "background", false);
    quire_json_null(json, "error");
    if (is_cut) {
        quire_json_object(json, "incomplete_details");
        quire_json_string(json, "reason", "max_output_tokens");
        quire_json_object_end(json);
    } else {
        quire_json_null(json, "incomplete_details");
    }
    quire_json_string(json, "model", gen->http->server->opts.model_name);
    quire_json_array(json, "output");
    if (is_done) {
        write_output(json, gen);
    }
    quire_json_array_end(json);
    write_echoes(json, gen);
    if (gen->tier.reply != NULL) {
        quire_json_string(json, "service_tier", gen->tier.reply);
    }
    if (is_done) {
        write_usage(json, gen);
        quire_answer_quire_write(json, gen, &gen->choices[0]);
    } else {
        quire_json_null(json, "usage");
    }
    quire_json_object_end(json);
}

static void write_whole(quire_bytes *out, quire_generation *gen)
{
    quire_json_out json = { out, false };

    write_response(&json, NULL, gen, true);
    quire_response_keep(gen, out);
}

/* ---- streams ---- */

static quire_json_out event_begin(quire_generation *gen, const char *type)
{
    quire_json_out json = { &gen->pending, false };

    quire_event_begin(gen, type);
    quire_json_object(&json, NULL);
    quire_json_string(&json, "type", type);
    quire_json_u64(&json, "sequence_number", gen->n_events++);
    return json;
}

static void event_end(quire_generation *gen, quire_json_out *json)
{
    quire_json_object_end(json);
    quire_event_end(gen);
}

/* An event about an item, left open. has_part: about its only part of content. */
static quire_json_out item_event_begin(quire_generation *gen, const char *type, const item *it,
                                       bool has_part)
{
    quire_json_out json = event_begin(gen, type);
    char id[QUIRE_REQUEST_ID_MAX + 16];

    item_id(id, sizeof id, gen, it);
    quire_json_string(&json, "item_id", id);
    quire_json_u64(&json, "output_index", it->index);
    if (has_part) {
        quire_json_u64(&json, "content_index", 0);
    }
    return json;
}

static void item_changed(quire_generation *gen, const char *type, const item *it)
{
    quire_json_out json = event_begin(gen, type);

    quire_json_u64(&json, "output_index", it->index);
    write_item(&json, "item", gen, it);
    event_end(gen, &json);
}

static void part_changed(quire_generation *gen, const char *type, const item *it)
{
    quire_json_out json;

    if (it->kind == ITEM_CALL) {
        return;
    }
    json = item_event_begin(gen, type, it, true);
    write_part(&json, "part", it);
    event_end(gen, &json);
}

static quire_chat_text text_of(const quire_bytes *bytes)
{
    return (quire_chat_text){ bytes->data != NULL ? bytes->data : "", bytes->n };
}

/* The open item as its events have told it. A later reading of the answer may see other parts. */
static item item_now(const quire_choice *choice)
{
    return (item){ .kind = choice->block_kind,
                   .index = choice->n_blocks - 1,
                   .text = text_of(&choice->block_text),
                   .id = text_of(&choice->block_id),
                   .name = text_of(&choice->block_name),
                   .is_done = true };
}

static void item_stop(quire_generation *gen, quire_choice *choice, bool is_last)
{
    static const char *const done[] = { "", "response.reasoning_text.done",
                                        "response.output_text.done",
                                        "response.function_call_arguments.done" };
    quire_json_out json;
    item it;

    if (choice->block_kind == ITEM_NONE) {
        return;
    }
    it = item_now(choice);
    it.is_cut = is_last && is_last_cut(gen, it.kind);
    json = item_event_begin(gen, done[it.kind], &it, it.kind != ITEM_CALL);
    if (it.kind == ITEM_CALL) {
        quire_json_text(&json, "name", it.name.data, it.name.n);
        quire_json_text(&json, "arguments", it.text.data, it.text.n);
    } else {
        quire_json_text(&json, "text", it.text.data, it.text.n);
    }
    if (it.kind == ITEM_MESSAGE) {
        quire_json_array(&json, "logprobs");
        quire_json_array_end(&json);
    }
    event_end(gen, &json);
    part_changed(gen, "response.content_part.done", &it);
    item_changed(gen, "response.output_item.done", &it);
    choice->block_kind = ITEM_NONE;
    if (choice->block_text.status < 0 || choice->block_id.status < 0 ||
        choice->block_name.status < 0) {
        gen->pending.status = QUIRE_NOMEM;
    }
}

/* Open an item of this kind, unless it is open. A call has an item of its own. */
static void item_start(quire_generation *gen, quire_choice *choice, int kind,
                       const quire_chat_delta *delta)
{
    item it = { .kind = kind };

    if (choice->block_kind == kind && delta->kind != QUIRE_CHAT_DELTA_CALL) {
        return;
    }
    item_stop(gen, choice, false);
    it.index = choice->n_blocks++;
    it.id = delta->id;
    it.name = delta->name;
    choice->block_kind = kind;
    choice->block_call = delta->call;
    quire_bytes_clear(&choice->block_text);
    quire_bytes_clear(&choice->block_id);
    quire_bytes_clear(&choice->block_name);
    (void)quire_bytes_add(&choice->block_id, it.id.data, it.id.n);
    (void)quire_bytes_add(&choice->block_name, it.name.data, it.name.n);
    item_changed(gen, "response.output_item.added", &it);
    part_changed(gen, "response.content_part.added", &it);
}

static void add_delta(quire_generation *gen, quire_choice *choice, const char *type,
                      const quire_chat_text *text)
{
    const item it = { .kind = choice->block_kind, .index = choice->n_blocks - 1 };
    quire_json_out json = item_event_begin(gen, type, &it, it.kind != ITEM_CALL);

    (void)quire_bytes_add(&choice->block_text, text->data, text->n);
    quire_json_text(&json, "delta", text->data, text->n);
    if (it.kind == ITEM_MESSAGE) {
        quire_json_array(&json, "logprobs");
        quire_json_array_end(&json);
    }
    event_end(gen, &json);
}

static void add_part(quire_generation *gen, quire_choice *choice, const quire_chat_delta *delta)
{
    switch (delta->kind) {
    case QUIRE_CHAT_DELTA_REASONING:
        item_start(gen, choice, ITEM_REASONING, delta);
        add_delta(gen, choice, "response.reasoning_text.delta", &delta->text);
        break;
    case QUIRE_CHAT_DELTA_CONTENT:
        item_start(gen, choice, ITEM_MESSAGE, delta);
        add_delta(gen, choice, "response.output_text.delta", &delta->text);
        break;
    case QUIRE_CHAT_DELTA_CALL:
        item_start(gen, choice, ITEM_CALL, delta);
        break;
    case QUIRE_CHAT_DELTA_ARGUMENTS:
        if (choice->block_kind == ITEM_CALL && choice->block_call == delta->call) {
            add_delta(gen, choice, "response.function_call_arguments.delta", &delta->text);
        }
        break;
    }
}

static void begin(quire_generation *gen)
{
    static const char *const types[] = { "response.created", "response.in_progress" };

    for (size_t i = 0; i < 2; i++) {
        quire_json_out json = event_begin(gen, types[i]);

        write_response(&json, "response", gen, false);
        event_end(gen, &json);
    }
}

static void end_choice(quire_generation *gen, quire_choice *choice)
{
    const quire_chat_delta nothing = { .kind = QUIRE_CHAT_DELTA_CONTENT };

    if (choice->n_blocks == 0) { /* an empty answer is an empty message */
        item_start(gen, choice, ITEM_MESSAGE, &nothing);
    }
    item_stop(gen, choice, true);
}

static void end_all(quire_generation *gen)
{
    const bool is_cut = gen->choices[0].result->finish == QUIRE_FINISH_LENGTH;
    quire_bytes reply = { 0 };
    quire_json_out whole = { &reply, false };
    quire_json_out json = event_begin(gen, is_cut ? "response.incomplete" : "response.completed");

    write_response(&whole, NULL, gen, true);
    quire_json_raw(&json, "response", reply.data != NULL ? reply.data : "null",
                   reply.data != NULL ? reply.n : 4);
    event_end(gen, &json);
    quire_response_keep(gen, &reply);
    gen->pending.status = reply.status < 0 ? reply.status : gen->pending.status;
    quire_bytes_fini(&reply);
}

static void add_error(quire_generation *gen)
{
    quire_json_out json = event_begin(gen, "error");

    quire_json_string(&json, "code", gen->http->err.code);
    quire_json_string(&json, "message", gen->http->err.message);
    quire_json_string(&json, "param",
                      gen->http->err.param[0] != '\0' ? gen->http->err.param : NULL);
    event_end(gen, &json);
}

static const quire_field_alias aliases[] = {
    { "messages", "input" },
    { "response_format", "text.format" },
    { "reasoning_effort", "reasoning.effort" },
    { "context_overflow", "truncation" },
};

const quire_answer_form quire_form_responses = { .is_chat = true,
                                                 .id_prefix = "resp",
                                                 .aliases = aliases,
                                                 .n_aliases = sizeof aliases / sizeof aliases[0],
                                                 .whole = write_whole,
                                                 .begin = begin,
                                                 .delta = add_part,
                                                 .choice_end = end_choice,
                                                 .end = end_all,
                                                 .error = add_error };
