/* responses.c - see responses.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/responses.h"

#include "base/bytes.h"
#include "base/check.h"
#include "server/unsupported.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct translation {
    quire_responses *out;
    quire_bytes thoughts; /* of reasoning items, for the next message of the assistant */
} translation;

static const char *text_of(quire_fields *fields, const char *name, size_t bytes_max)
{
    return quire_field_required(fields, name) != NULL ? quire_field_string(fields, name, bytes_max)
                                                      : NULL;
}

/* ---- items ---- */

/* The texts of content: a string, or parts of text. */
static void add_text(quire_fields *item, const char *name, quire_bytes *to)
{
    json_t *content = quire_field(item, name);

    if (json_is_string(content)) {
        (void)quire_bytes_add(to, json_string_value(content), json_string_length(content));
    } else if (content != NULL && !json_is_array(content)) {
        quire_field_type_error(item, name, "a string or an array of parts", content);
    }
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++) {
        json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *text = json_object_get(
            part, type != NULL && strcmp(type, "refusal") == 0 ? "refusal" : "text");

        if (!json_is_string(text)) {
            quire_field_unsupported(item, name,
                                    "part %zu: only parts of text are supported, not \"%.32s\"", i,
                                    type != NULL ? type : "");
            return;
        }
        (void)quire_bytes_add(to, json_string_value(text), json_string_length(text));
    }
}

static json_t *text_json(const quire_bytes *text)
{
    return json_stringn_nocheck(text->data != NULL ? text->data : "", text->n);
}

static void message_add(translation *t, quire_fields *item, json_t *message)
{
    if (message == NULL || json_array_append_new(t->out->messages, message) != 0) {
        (void)quire_api_error_nomem(item->err);
    }
}

/* Give an assistant's message the thoughts before it. */
static void add_thoughts(translation *t, json_t *message)
{
    if (t->thoughts.n > 0) {
        (void)json_object_set_new(message, "reasoning_content", text_json(&t->thoughts));
        quire_bytes_clear(&t->thoughts);
    }
}

static void add_message(translation *t, quire_fields *item)
{
    const char *role = text_of(item, "role", 32);
    quire_bytes text = { 0 };
    json_t *message;

    if (role == NULL) {
        return;
    }
    if (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0 &&
        strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0) {
        quire_field_error(item, "role",
                          "must be \"system\", \"developer\", \"user\" or \"assistant\"");
    }
    (void)quire_field_required(item, "content");
    add_text(item, "content", &text);
    message = json_pack("{s:s, s:o}", "role", role, "content", text_json(&text));
    if (message != NULL && strcmp(role, "assistant") == 0) {
        add_thoughts(t, message);
    } else {
        quire_bytes_clear(&t->thoughts); /* no answer came of them */
    }
    message_add(t, item, message);
    quire_bytes_fini(&text);
}

/* Calls belong to the assistant's message before them. */
static void add_call(translation *t, quire_fields *item)
{
    const char *id = text_of(item, "call_id", 256);
    const char *name = text_of(item, "name", 256);
    const char *arguments = text_of(item, "arguments", SIZE_MAX);
    json_t *last = json_array_get(t->out->messages, json_array_size(t->out->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    json_t *call;

    (void)quire_field_string(item, "namespace", 256); /* the function's name is enough */
    if (item->err->http != 0) {
        return;
    }
    if (role == NULL || strcmp(role, "assistant") != 0 || t->thoughts.n > 0) {
        last = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
        add_thoughts(t, last);
        message_add(t, item, last);
        if (item->err->http != 0) { /* no memory: the message is gone */
            return;
        }
    }
    call = json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function", "function", "name",
                     name, "arguments", arguments);
    if (json_object_get(last, "tool_calls") == NULL) {
        (void)json_object_set_new(last, "tool_calls", json_array());
    }
    if (call == NULL || json_array_append_new(json_object_get(last, "tool_calls"), call) != 0) {
        (void)quire_api_error_nomem(item->err);
    }
}

static void add_output(translation *t, quire_fields *item)
{
    const char *id = text_of(item, "call_id", 256);
    quire_bytes text = { 0 };

    (void)quire_field_required(item, "output");
    add_text(item, "output", &text);
    if (item->err->http == 0) {
        message_add(t, item,
                    json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", id, "content",
                              text_json(&text)));
    }
    quire_bytes_fini(&text);
}

/* Thoughts as this server wrote them; a summary when there is nothing else. Encrypted ones are no
 * text that this model could read. */
static void add_reasoning(translation *t, quire_fields *item)
{
    const size_t n = t->thoughts.n;

    add_text(item, "content", &t->thoughts);
    if (t->thoughts.n == n) {
        add_text(item, "summary", &t->thoughts);
    }
}

static void add_item(translation *t, quire_fields *item)
{
    const char *type = quire_field_string(item, "type", 64);

    if (!json_is_object(item->object)) {
        quire_field_error(item, "type", "an item must be an object");
    } else if (type == NULL || strcmp(type, "message") == 0) {
        add_message(t, item);
    } else if (strcmp(type, "function_call") == 0) {
        add_call(t, item);
    } else if (strcmp(type, "function_call_output") == 0) {
        add_output(t, item);
    } else if (strcmp(type, "reasoning") == 0) {
        add_reasoning(t, item);
    } else {
        quire_field_unsupported(item, "type",
                                "\"%.48s\" is not supported: items are message, reasoning, "
                                "function_call and function_call_output",
                                type);
    }
}

static void add_input(translation *t, quire_fields *fields)
{
    json_t *input = quire_field_required(fields, "input");

    if (json_is_string(input)) {
        message_add(t, fields, json_pack("{s:s, s:O}", "role", "user", "content", input));
        return;
    }
    if (input != NULL && !json_is_array(input)) {
        quire_field_type_error(fields, "input", "a string or an array of items", input);
    }
    for (size_t i = 0; json_is_array(input) && i < json_array_size(input); i++) {
        char path[32];
        quire_fields item = { .object = json_array_get(input, i),
                              .path = path,
                              .err = fields->err };

        (void)snprintf(path, sizeof path, "input[%zu]", i);
        add_item(t, &item);
    }
}

/* ---- tools ---- */

static json_t *tool_of(quire_fields *tool)
{
    const char *type = text_of(tool, "type", 64);
    const char *name = quire_field_string(tool, "name", 256);
    const char *description = quire_field_string(tool, "description", SIZE_MAX);
    json_t *parameters = quire_field_object(tool, "parameters");
    const bool is_strict = quire_field_bool(tool, "strict", false);

    quire_field_refuse(tool, "defer_loading", "false", "the template gets every tool");
    if (type != NULL && strcmp(type, "function") != 0) {
        quire_field_unsupported(tool, "type",
                                "\"%.48s\" is a tool of OpenAI's servers; only \"function\" "
                                "and \"namespace\" are supported",
                                type);
    }
    (void)quire_field_required(tool, "name");
    if (tool->err->http != 0) {
        return NULL;
    }
    return json_pack("{s:s, s:{s:s, s:s*, s:O*, s:b}}", "type", "function", "function", "name",
                     name, "description", description, "parameters", parameters, "strict",
                     is_strict);
}

/* Add a function to the chat's tools, and to t->out->spaces: null outside of namespaces. */
static void add_function(translation *t, quire_fields *tool, json_t *tools, json_t *space)
{
    json_t *made = tool_of(tool);
    const char *name = json_string_value(json_object_get(tool->object, "name"));
    json_t *before = name != NULL ? json_object_get(t->out->spaces, name) : NULL;

    if (tool->err->http != 0) {
        json_decref(made);
        return;
    }
    if (before != NULL && !(json_is_null(before) && json_is_null(space))) {
        quire_field_error(tool, "name",
                          "\"%.64s\" is the name of another function, too: a namespace does not "
                          "tell them apart here",
                          name);
    }
    if (json_array_append_new(tools, made) != 0 ||
        json_object_set(t->out->spaces, name, space) != 0) {
        (void)quire_api_error_nomem(tool->err);
    }
}

/* The functions of a namespace. Its description has no place in a chat. */
static void add_namespace(translation *t, quire_fields *group, json_t *tools)
{
    json_t *list = quire_field_array(group, "tools", SIZE_MAX);
    json_t *space;

    (void)text_of(group, "name", 256);
    (void)quire_field_required(group, "tools");
    space = json_object_get(group->object, "name");
    for (size_t i = 0; i < json_array_size(list) && group->err->http == 0; i++) {
        char path[64];
        quire_fields tool = { .object = json_array_get(list, i), .path = path, .err = group->err };

        (void)snprintf(path, sizeof path, "%s.tools[%zu]", group->path, i);
        add_function(t, &tool, tools, space);
    }
}

static void set_tools(translation *t, quire_fields *fields)
{
    json_t *list = quire_field_array(fields, "tools", SIZE_MAX);
    json_t *tools = json_array();
    json_t *choice = quire_field(fields, "tool_choice");
    const char *type = json_string_value(json_object_get(choice, "type"));
    json_t *name = json_object_get(choice, "name");

    for (size_t i = 0; i < json_array_size(list) && fields->err->http == 0; i++) {
        char path[32];
        quire_fields tool = { .object = json_array_get(list, i), .path = path, .err = fields->err };
        const char *kind = json_string_value(json_object_get(tool.object, "type"));

        (void)snprintf(path, sizeof path, "tools[%zu]", i);
        if (kind != NULL && strcmp(kind, "namespace") == 0) {
            add_namespace(t, &tool, tools);
        } else {
            add_function(t, &tool, tools, json_null());
        }
    }
    (void)json_object_del(t->out->chat, "tools");
    if (json_array_size(tools) > 0) {
        (void)json_object_set(t->out->chat, "tools", tools);
    }
    if (json_is_object(choice)) {
        if (type == NULL || strcmp(type, "function") != 0 || !json_is_string(name)) {
            quire_field_error(fields, "tool_choice",
                              "must be \"none\", \"auto\", \"required\" or {\"type\": "
                              "\"function\", \"name\": ...}");
        }
        (void)json_object_set_new(
            t->out->chat, "tool_choice",
            json_pack("{s:s, s:{s:O*}}", "type", "function", "function", "name", name));
    }
    json_decref(tools);
}

/* ---- the other fields ---- */

/* text.format: {"type", "name", "schema"}, one level flatter than in chats. */
static void set_format(translation *t, quire_fields *fields)
{
    json_t *object = quire_field_object(fields, "text");
    quire_fields text = { .object = object, .path = "text", .err = fields->err };
    json_t *format = object != NULL ? quire_field_object(&text, "format") : NULL;
    quire_fields inner = { .object = format, .path = "text.format", .err = fields->err };
    json_t *chat = t->out->chat;

    (void)json_object_del(chat, "text");
    if (object != NULL) {
        quire_field_refuse(&text, "verbosity", "\"medium\"",
                           "instructions can say how long an answer shall be");
    }
    if (format != NULL) {
        const char *type = text_of(&inner, "type", 32);
        json_t *schema = quire_field(&inner, "schema");

        if (type != NULL && strcmp(type, "json_schema") == 0) {
            (void)quire_field_required(&inner, "schema");
        }
        (void)json_object_set_new(chat, "response_format",
                                  json_pack("{s:s*, s:O*}", "type", type, "schema", schema));
    }
}

static void set_reasoning(translation *t, quire_fields *fields)
{
    json_t *object = quire_field_object(fields, "reasoning");
    quire_fields reasoning = { .object = object, .path = "reasoning", .err = fields->err };
    const char *effort = object != NULL ? quire_field_string(&reasoning, "effort", 32) : NULL;

    (void)json_object_del(t->out->chat, "reasoning");
    if (effort != NULL) {
        (void)json_object_set_new(t->out->chat, "reasoning_effort", json_string(effort));
    }
}

/* Values that a client may ask to be included. The accepted value has no effect. */
static void check_include(quire_fields *fields)
{
    json_t *list = quire_field_array(fields, "include", 32);

    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));

        if (name == NULL || strcmp(name, "reasoning.encrypted_content") != 0) {
            quire_field_error(fields, "include",
                              "\"%.48s\" is not supported (accepted without "
                              "effect: reasoning.encrypted_content)",
                              name != NULL ? name : "");
        }
    }
}

/* The usage comes with the last event anyway. */
static void check_stream_options(quire_fields *fields)
{
    json_t *object = quire_field_object(fields, "stream_options");
    quire_fields options = { .object = object, .path = "stream_options", .err = fields->err };

    if (object != NULL) {
        quire_field_refuse(&options, "include_obfuscation", "false", QUIRE_NO_OBFUSCATION);
    }
}

static void set_truncation(translation *t, quire_fields *fields)
{
    const char *truncation = quire_field_string(fields, "truncation", 32);

    if (truncation == NULL) {
        return;
    }
    if (strcmp(truncation, "auto") == 0) {
        (void)json_object_set_new(t->out->chat, "context_overflow", json_string("truncate_turns"));
    } else if (strcmp(truncation, "disabled") == 0) {
        (void)json_object_set_new(t->out->chat, "context_overflow", json_string("refuse"));
    } else {
        quire_field_error(fields, "truncation", "must be \"auto\" or \"disabled\"");
    }
}

/* Repeat fields in the reply, as OpenAI does. */
static void set_echo(translation *t, quire_fields *fields)
{
    static const char *const names[] = { "instructions", "max_output_tokens",
                                         "metadata",     "parallel_tool_calls",
                                         "reasoning",    "temperature",
                                         "text",         "tool_choice",
                                         "tools",        "top_p",
                                         "truncation",   "user" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *value = quire_field(fields, names[i]);

        if (value != NULL) {
            (void)json_object_set(t->out->echo, names[i], value);
        }
    }
}

static void set_fields(translation *t, quire_fields *fields)
{
    const char *previous =
        quire_field_string(fields, "previous_response_id", QUIRE_RESPONSE_ID_MAX - 1);
    json_t *limit = quire_field(fields, "max_output_tokens");
    json_t *chat = t->out->chat;

    quire_field_refuse(fields, "background", "false", "the reply comes when it is ready");
    quire_field_refuse(fields, "conversation", QUIRE_FIELD_NOTHING, "use `previous_response_id`");
    quire_field_refuse(fields, "prompt", QUIRE_FIELD_NOTHING, "there are no stored prompts");
    quire_field_refuse(fields, "max_tool_calls", "", "the client calls tools");
    quire_field_refuse(fields, "top_logprobs", "0", "items hold no log probabilities");
    quire_field_refuse(fields, "context_management", QUIRE_FIELD_NOTHING, "use `truncation`");
    check_stream_options(fields);
    check_include(fields);
    t->out->is_stored = quire_field_bool(fields, "store", true);
    if (previous != NULL) {
        (void)snprintf(t->out->previous_id, sizeof t->out->previous_id, "%s", previous);
    }
    if (limit != NULL) {
        (void)json_object_set(chat, "max_tokens", limit);
        (void)quire_field_int(fields, "max_output_tokens", 1, 1, UINT32_MAX);
    }
    (void)json_object_del(chat, "input");
    (void)json_object_del(chat, "store");
    (void)json_object_del(chat, "stream_options");
    (void)json_object_del(chat, "top_logprobs");
    set_truncation(t, fields);
    set_format(t, fields);
    set_reasoning(t, fields);
}

/* instructions, earlier turns, new messages. */
static int set_messages(quire_responses *request, quire_fields *fields, json_t *earlier)
{
    const char *instructions = quire_field_string(fields, "instructions", SIZE_MAX);
    json_t *all = json_array();
    int rc = all == NULL ? -1 : 0;

    if (rc == 0 && instructions != NULL) {
        rc = json_array_append_new(
            all, json_pack("{s:s, s:s}", "role", "system", "content", instructions));
    }
    if (rc == 0 && earlier != NULL) {
        rc = json_array_extend(all, earlier);
    }
    rc = rc == 0 ? json_array_extend(all, request->messages) : rc;
    rc = rc == 0 ? json_object_set(request->chat, "messages", all) : rc;
    json_decref(all);
    return rc != 0 ? quire_api_error_nomem(fields->err) : QUIRE_OK;
}

int quire_responses_read(quire_responses *out, quire_fields *fields)
{
    translation t = { .out = out };

    *out = (quire_responses){ .chat = json_copy(fields->object),
                              .messages = json_array(),
                              .echo = json_object(),
                              .spaces = json_object() };
    if (out->chat == NULL || out->messages == NULL || out->echo == NULL || out->spaces == NULL) {
        return quire_api_error_nomem(fields->err);
    }
    set_echo(&t, fields);
    set_fields(&t, fields);
    set_tools(&t, fields);
    add_input(&t, fields);
    quire_bytes_fini(&t.thoughts);
    if (fields->err->http == 0 && json_array_size(out->messages) == 0) {
        quire_field_error(fields, "input", "at least one message is needed");
    }
    QUIRE_FAIL_IF(fields->err->http != 0, QUIRE_INVAL);
    return set_messages(out, fields, NULL);
}

int quire_responses_continue(quire_responses *request, quire_fields *fields, json_t *earlier)
{
    return set_messages(request, fields, earlier);
}

void quire_responses_fini(quire_responses *request)
{
    json_decref(request->chat);
    json_decref(request->messages);
    json_decref(request->echo);
    json_decref(request->spaces);
    *request = (quire_responses){ .chat = NULL };
}
