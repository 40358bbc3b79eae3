/* messages.c - the messages of a chat request.
 *
 * SPDX-License-Identifier: MIT */
#include "server/messages.h"

#include "base/check.h"
#include "engine/sessions.h"
#include "model/chat_format.h"
#include "server/json_complete.h"
#include "server/json_in.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *role_find(const char *name)
{
    static const char *const roles[] = { "system", "user", "assistant", "tool", "developer" };

    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(name, roles[i]) == 0) {
            return roles[i];
        }
    }
    return NULL;
}

static void add_part(quire_messages *messages, quire_fields *message, json_t *part, unsigned i)
{
    json_t *type = json_object_get(part, "type");
    json_t *text = json_object_get(part, "text");

    if (!json_is_string(type)) {
        quire_field_error(message, "content", "part %u: type must be \"text\"", i);
    } else if (strcmp(json_string_value(type), "text") != 0) {
        quire_field_unsupported(message, "content",
                                "part %u has the type \"%.32s\": only \"text\" is supported", i,
                                json_string_value(type));
    } else if (!json_is_string(text)) {
        quire_field_error(message, "content", "part %u: text must be a string", i);
    } else {
        (void)quire_bytes_add(&messages->texts, json_string_value(text), json_string_length(text));
    }
}

static void add_content(quire_messages *messages, quire_fields *message, const char *role)
{
    json_t *content = quire_field(message, "content");

    if (json_is_string(content)) {
        (void)quire_bytes_add(&messages->texts, json_string_value(content),
                              json_string_length(content));
    } else if (json_is_array(content)) {
        for (unsigned i = 0; i < json_array_size(content); i++) {
            add_part(messages, message, json_array_get(content, i), i);
        }
    } else if (content != NULL) {
        quire_field_type_error(message, "content", "a string or an array of text parts", content);
    } else if (strcmp(role, "assistant") != 0) {
        quire_field_error(message, "content", "is required");
    }
    (void)quire_bytes_add(&messages->texts, "", 1); /* its end */
}

uint32_t quire_messages_whole_calls(const quire_chat_answer *answer)
{
    for (uint32_t i = 0; i < answer->n_calls; i++) {
        const quire_chat_text *arguments = &answer->calls[i].arguments;
        json_error_t error;
        json_t *value = quire_json_read(arguments->data, arguments->n, JSON_DECODE_ANY, &error);

        if (value == NULL) {
            return i;
        }
        json_decref(value);
    }
    return answer->n_calls;
}

/* Arguments of a call are JSON. Those of an answer that was cut end early: clients send them back,
 * and OpenAI takes them; templates do not, so they are completed. */
static void check_arguments(quire_fields *message, json_t *function, unsigned i)
{
    const json_t *arguments = json_object_get(function, "arguments");
    json_error_t error;
    json_t *value = quire_json_read(json_string_value(arguments), json_string_length(arguments),
                                    JSON_DECODE_ANY, &error);
    char *whole = value == NULL ? quire_json_complete(json_string_value(arguments)) : NULL;

    if (whole != NULL) {
        (void)json_object_set_new(function, "arguments", json_string(whole));
    } else if (value == NULL) {
        quire_field_error(message, "tool_calls",
                          "element %u: function.arguments is no JSON: line %d, column %d: %s", i,
                          error.line, error.column, error.text);
    }
    free(whole);
    json_decref(value);
}

/* One call of a message: id, type, and the function with its arguments as text. */
static void check_call(quire_fields *message, json_t *call, unsigned i)
{
    json_t *function = json_object_get(call, "function");
    json_t *type = json_object_get(call, "type");

    if (!json_is_object(call) || !json_is_object(function)) {
        quire_field_error(message, "tool_calls", "element %u has no function", i);
    } else if (type != NULL &&
               (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)) {
        quire_field_error(message, "tool_calls", "element %u: only type \"function\" is supported",
                          i);
    } else if (!json_is_string(json_object_get(function, "name")) ||
               json_string_length(json_object_get(function, "name")) == 0) {
        quire_field_error(message, "tool_calls", "element %u: function.name must be a string", i);
    } else if (!json_is_string(json_object_get(function, "arguments"))) {
        quire_field_error(message, "tool_calls",
                          "element %u: function.arguments must be a string of JSON", i);
    } else {
        check_arguments(message, function, i);
        if (type == NULL) {
            (void)json_object_set_new(call, "type", json_string("function"));
        }
    }
}

static void read_calls(quire_fields *message, json_t *extra)
{
    json_t *calls = quire_field_array(message, "tool_calls", QUIRE_CHAT_CALLS_MAX);

    if (json_array_size(calls) == 0) {
        return;
    }
    for (unsigned i = 0; i < json_array_size(calls) && message->err->http == 0; i++) {
        check_call(message, json_array_get(calls, i), i);
    }
    (void)json_object_set(extra, "tool_calls", calls);
}

static void read_text(quire_fields *message, json_t *extra, const char *name, const char *as)
{
    const char *text = quire_field_string(message, name, SIZE_MAX);

    if (text != NULL && text[0] != '\0') {
        (void)json_object_set_new(extra, as, json_string(text));
    }
}

/* The fields that quire_chat_message calls `extra`; returns whether there are any. */
static bool add_extra(quire_messages *messages, quire_fields *message, const char *role)
{
    json_t *extra = json_object();
    char *text = NULL;

    if (strcmp(role, "assistant") == 0) {
        read_calls(message, extra);
        read_text(message, extra, "reasoning", "reasoning_content");
        read_text(message, extra, "reasoning_content", "reasoning_content");
    } else {
        quire_field_refuse(message, "tool_calls", QUIRE_FIELD_NOTHING,
                           "only an assistant calls tools");
    }
    if (strcmp(role, "tool") == 0) {
        read_text(message, extra, "tool_call_id", "tool_call_id");
        read_text(message, extra, "name", "name");
    }
    if (json_object_size(extra) > 0) {
        text = json_dumps(extra, JSON_COMPACT);
        if (text == NULL) {
            (void)quire_api_error_nomem(message->err);
        } else {
            (void)quire_bytes_add(&messages->texts, text, strlen(text) + 1);
        }
    }
    json_decref(extra);
    free(text);
    return text != NULL;
}

static void add_message(quire_messages *messages, quire_fields *message)
{
    const char *name = quire_field_string(message, "role", 32);
    const char *role = name != NULL ? role_find(name) : NULL;
    quire_chat_message *to = &messages->list[messages->n];

    if (role == NULL) {
        quire_field_error(message, "role",
                          "must be \"system\", \"developer\", \"user\", \"assistant\" or "
                          "\"tool\"");
        return;
    }
    quire_field_refuse(message, "function_call", QUIRE_FIELD_NOTHING,
                       "functions are called by tool_calls");
    quire_field_refuse(message, "audio", QUIRE_FIELD_NOTHING, "audio is not supported");
    add_content(messages, message, role);
    to->role = role;
    to->extra = add_extra(messages, message, role) ? "" : NULL;
    messages->n++;
}

int quire_messages_read(quire_messages *messages, quire_fields *fields, const char *name)
{
    json_t *array;
    const char *text;

    (void)quire_field_required(fields, name);
    array = quire_field_array(fields, name, QUIRE_SESSION_MESSAGES_MAX);
    if (array == NULL) {
        return QUIRE_INVAL;
    }
    if (json_array_size(array) == 0) {
        quire_field_error(fields, name, "at least one message is needed");
        return QUIRE_INVAL;
    }
    messages->list = calloc(json_array_size(array), sizeof messages->list[0]);
    if (messages->list == NULL) {
        return quire_api_error_nomem(fields->err);
    }
    for (unsigned i = 0; i < json_array_size(array) && fields->err->http == 0; i++) {
        char path[48];
        quire_fields message = { .object = json_array_get(array, i),
                                 .path = path,
                                 .err = fields->err };

        (void)snprintf(path, sizeof path, "%s[%u]", name, i);
        if (!json_is_object(message.object)) {
            quire_field_error(fields, path, "expected an object, got %s",
                              quire_json_type_text(message.object));
            break;
        }
        add_message(messages, &message);
    }
    if (messages->texts.status < 0) {
        return quire_api_error_nomem(fields->err);
    }
    if (fields->err->http != 0) {
        return QUIRE_INVAL;
    }
    text = messages->texts.data;
    for (size_t i = 0; i < messages->n; i++) {
        messages->list[i].content = text;
        text += strlen(text) + 1;
        if (messages->list[i].extra != NULL) {
            messages->list[i].extra = text;
            text += strlen(text) + 1;
        }
    }
    return QUIRE_OK;
}

void quire_messages_fini(quire_messages *messages)
{
    free(messages->list);
    quire_bytes_fini(&messages->texts);
    *messages = (quire_messages){ 0 };
}
