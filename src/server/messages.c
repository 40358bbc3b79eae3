/* messages.c - the messages of a chat request.
 *
 * SPDX-License-Identifier: MIT */
#include "server/messages.h"
#include "model/text.h"

#include "base/check.h"
#include "engine/sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *role_find(const char *name)
{
    static const char *const roles[] = { "system", "user", "assistant" };

    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(name, roles[i]) == 0) {
            return roles[i];
        }
    }
    return strcmp(name, "developer") == 0 ? roles[0] : NULL;
}

static void add_part(quire_messages *messages, quire_fields *message, json_t *part, unsigned i)
{
    json_t *type = json_object_get(part, "type");
    json_t *text = json_object_get(part, "text");

    if (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0) {
        quire_field_error(message, "content", "part %u: only parts of type \"text\" are supported",
                          i);
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

static void add_message(quire_messages *messages, quire_fields *message)
{
    const char *name = quire_field_string(message, "role", 32);
    const char *role = name != NULL ? role_find(name) : NULL;

    if (role == NULL) {
        quire_field_error(message, "role",
                          "must be \"system\", \"developer\", \"user\" or \"assistant\"");
        return;
    }
    quire_field_refuse(message, "tool_calls", QUIRE_FIELD_NOTHING, "tools are not supported");
    quire_field_refuse(message, "function_call", QUIRE_FIELD_NOTHING,
                       "functions are not supported");
    quire_field_refuse(message, "audio", QUIRE_FIELD_NOTHING, "audio is not supported");
    add_content(messages, message, role);
    messages->list[messages->n++].role = role;
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
        quire_fields message = { json_array_get(array, i), path, fields->err };

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
    }
    return QUIRE_OK;
}

void quire_messages_fini(quire_messages *messages)
{
    free(messages->list);
    quire_bytes_fini(&messages->texts);
    *messages = (quire_messages){ 0 };
}

int quire_messages_render(const quire_model *model, const char *chat_template,
                          const quire_chat_message *messages, size_t n, bool add_assistant,
                          quire_bytes *out, quire_api_error *err)
{
    char *buffer = NULL;
    int64_t need =
        quire_model_chat_render(model, chat_template, messages, n, add_assistant, NULL, 0);

    if (need > 0) {
        buffer = malloc((size_t)need + 1);
        if (buffer == NULL) {
            return quire_api_error_nomem(err);
        }
        need = quire_model_chat_render(model, chat_template, messages, n, add_assistant, buffer,
                                       (size_t)need + 1);
    }
    if (need < 0) {
        free(buffer);
        return need == QUIRE_NOMEM
                   ? quire_api_error_nomem(err)
                   : quire_api_error_set(err, 501, "no_chat_template", NULL,
                                         "the model's chat template is not one that is recognised: "
                                         "start the server with --chat-template NAME");
    }
    out->n = 0;
    (void)quire_bytes_add(out, buffer, (size_t)need);
    free(buffer);
    return out->status < 0 ? quire_api_error_nomem(err) : QUIRE_OK;
}
