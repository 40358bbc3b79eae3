/* chat_request.c - see chat_request.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/chat_request.h"
#include "server/tool_schema.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES_MAX   64u
#define EFFORT_BYTES_MAX 32u
#define KWARGS_BYTES_MAX (64u << 10)

static void keep_text(char **out, const char *text, quire_fields *fields)
{
    free(*out);
    *out = text != NULL ? strdup(text) : NULL;
    if (text != NULL && *out == NULL) {
        (void)quire_api_error_nomem(fields->err);
    }
}

/* ---- tools ---- */

static bool is_name(const char *name)
{
    const size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.:/");

    return n > 0 && n <= NAME_BYTES_MAX && name[n] == '\0';
}

static void check_tool(quire_fields *fields, const char *field, json_t *tool, unsigned i)
{
    json_t *type = json_object_get(tool, "type");
    json_t *function = json_object_get(tool, "function");
    json_t *name = json_object_get(function, "name");
    json_t *description = json_object_get(function, "description");
    json_t *parameters = json_object_get(function, "parameters");
    json_t *strict = json_object_get(function, "strict");

    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0) {
        quire_field_error(fields, field, "element %u: only the type \"function\" is supported", i);
    } else if (!json_is_object(function)) {
        quire_field_error(fields, field, "element %u: function must be an object", i);
    } else if (!json_is_string(name) || !is_name(json_string_value(name))) {
        quire_field_error(fields, field,
                          "element %u: function.name must have 1 to %u letters, digits, '_', '-', "
                          "'.', ':' and '/'",
                          i, NAME_BYTES_MAX);
    } else if (description != NULL && !json_is_string(description) && !json_is_null(description)) {
        quire_field_error(fields, field, "element %u: function.description must be a string", i);
    } else if (parameters != NULL && !json_is_object(parameters) && !json_is_null(parameters)) {
        quire_field_error(fields, field,
                          "element %u: function.parameters must be a JSON Schema, an object", i);
    } else if (strict != NULL && !json_is_boolean(strict) && !json_is_null(strict)) {
        quire_field_error(fields, field, "element %u: function.strict must be true or false", i);
    } else if (json_is_null(description)) {
        (void)json_object_del(function, "description");
    }
}

/* Whether two tools have one name: then a call could not be told apart. */
static void check_names(quire_fields *fields, const char *field, json_t *tools)
{
    json_t *seen = json_object();

    for (unsigned i = 0; i < json_array_size(tools) && fields->err->http == 0; i++) {
        json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));

        if (json_object_get(seen, name) != NULL) {
            quire_field_error(fields, field, "two functions have the name \"%.64s\"", name);
        }
        (void)json_object_set_new(seen, name, json_true());
        if (json_is_null(json_object_get(function, "parameters"))) {
            (void)json_object_del(function, "parameters");
        }
    }
    json_decref(seen);
}

int quire_chat_request_tools(quire_chat_request *request, quire_fields *fields, const char *name,
                             json_t *tools)
{
    const size_t n = json_array_size(tools);

    if (n > QUIRE_CHAT_TOOLS_MAX) {
        quire_field_error(fields, name, "%zu tools, at most %u", n, QUIRE_CHAT_TOOLS_MAX);
    }
    for (unsigned i = 0; i < n && fields->err->http == 0; i++) {
        check_tool(fields, name, json_array_get(tools, i), i);
    }
    if (fields->err->http == 0) {
        check_names(fields, name, tools);
    }
    if (fields->err->http == 0 && n > 0) {
        free(request->tools);
        free(request->plain_tools);
        request->tools = json_dumps(tools, JSON_COMPACT);
        request->plain_tools = request->tools != NULL ? quire_tools_plain(request->tools) : NULL;
        request->n_tools = (uint32_t)n;
        if (request->plain_tools == NULL) {
            return quire_api_error_nomem(fields->err);
        }
    }
    return fields->err->http != 0 ? QUIRE_INVAL : QUIRE_OK;
}

static bool has_function(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *other = json_string_value(json_object_get(function, "name"));

        if (other != NULL && strcmp(other, name) == 0) {
            return true;
        }
    }
    return false;
}

/* "none", "auto", "required", or {"type": "function", "function": {"name"}}. */
static void read_choice(quire_chat_request *request, quire_fields *fields, const json_t *tools)
{
    json_t *value = quire_field(fields, "tool_choice");
    const char *text = json_string_value(value);
    json_t *name = json_object_get(json_object_get(value, "function"), "name");

    if (value == NULL) {
        return;
    }
    if (text != NULL && strcmp(text, "none") == 0) {
        request->tool_choice = QUIRE_TOOL_CHOICE_NONE;
    } else if (text != NULL && strcmp(text, "required") == 0) {
        request->tool_choice = QUIRE_TOOL_CHOICE_REQUIRED;
    } else if (json_is_string(name)) {
        request->tool_choice = QUIRE_TOOL_CHOICE_NAMED;
        keep_text(&request->tool_name, json_string_value(name), fields);
    } else if (text == NULL || strcmp(text, "auto") != 0) {
        quire_field_error(fields, "tool_choice",
                          "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                          "\"function\": {\"name\": ...}}");
    }
    if (request->tool_choice >= QUIRE_TOOL_CHOICE_REQUIRED && request->tools == NULL) {
        quire_field_error(fields, "tool_choice", "needs tools");
    } else if (request->tool_name != NULL && !has_function(tools, request->tool_name)) {
        quire_field_error(fields, "tool_choice", "tools has no function \"%.64s\"",
                          request->tool_name);
    }
}

static quire_chat_switch read_switch(quire_fields *fields, const char *name)
{
    if (quire_field(fields, name) == NULL) {
        return QUIRE_CHAT_DEFAULT;
    }
    return quire_field_bool(fields, name, false) ? QUIRE_CHAT_ON : QUIRE_CHAT_OFF;
}

static void read_tools(quire_chat_request *request, quire_fields *fields)
{
    json_t *tools = quire_field_array(fields, "tools", SIZE_MAX);

    if (tools != NULL) {
        (void)quire_chat_request_tools(request, fields, "tools", tools);
    }
    read_choice(request, fields, tools);
    request->parallel_calls = read_switch(fields, "parallel_tool_calls");
}

/* ---- thoughts ---- */

static void read_reasoning_format(quire_chat_request *request, quire_fields *fields)
{
    const char *format = quire_field_string(fields, "reasoning_format", 32);

    if (format == NULL || strcmp(format, "auto") == 0 || strcmp(format, "deepseek") == 0) {
        return;
    }
    if (strcmp(format, "none") == 0) {
        request->reasoning = QUIRE_REASONING_NONE;
    } else {
        quire_field_error(fields, "reasoning_format",
                          "must be \"auto\", \"deepseek\" (both: reasoning_content) or \"none\" "
                          "(in the content)");
    }
}

/* The names of one budget in llama-server, vLLM and others. */
static void read_budget(quire_chat_request *request, quire_fields *fields)
{
    static const char *const names[] = { "reasoning_budget", "reasoning_budget_tokens",
                                         "thinking_budget", "thinking_budget_tokens",
                                         "thinking_token_budget" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const int64_t n = quire_field_int(fields, names[i], -1, -1, INT32_MAX);

        if (n >= 0) {
            request->thinking_tokens = (int32_t)n;
        }
    }
}

static void read_kwargs(quire_chat_request *request, quire_fields *fields)
{
    json_t *kwargs = quire_field_object(fields, "chat_template_kwargs");
    json_t *thinking = json_object_get(kwargs, "enable_thinking");
    char *text;

    if (json_object_size(kwargs) == 0) {
        return;
    }
    if (thinking != NULL && !json_is_boolean(thinking)) {
        quire_field_error(fields, "chat_template_kwargs", "enable_thinking must be true or false");
        return;
    }
    text = json_dumps(kwargs, JSON_COMPACT);
    if (text != NULL && strlen(text) > KWARGS_BYTES_MAX) {
        quire_field_error(fields, "chat_template_kwargs", "more than %u bytes", KWARGS_BYTES_MAX);
    }
    keep_text(&request->kwargs, text, fields);
    free(text);
}

static void read_thoughts(quire_chat_request *request, quire_fields *fields)
{
    request->thinking = read_switch(fields, "enable_thinking");
    keep_text(&request->reasoning_effort,
              quire_field_string(fields, "reasoning_effort", EFFORT_BYTES_MAX), fields);
    read_reasoning_format(request, fields);
    read_budget(request, fields);
    read_kwargs(request, fields);
}

/* ---- the end of the prompt ---- */

static void read_end(quire_chat_request *request, quire_fields *fields)
{
    const quire_messages *messages = &request->messages;
    const quire_chat_message *last = messages->n > 0 ? &messages->list[messages->n - 1] : NULL;

    request->continues_final = quire_field_bool(fields, "continue_final_message", false);
    request->omits_generation_prompt =
        !quire_field_bool(fields, "add_generation_prompt", !request->continues_final);
    if (!request->continues_final || fields->err->http != 0 || last == NULL) {
        return;
    }
    if (!request->omits_generation_prompt) {
        quire_field_error(fields, "continue_final_message",
                          "not together with "
                          "add_generation_prompt");
    } else if (strcmp(last->role, "assistant") != 0 || quire_chat_message_has_calls(last)) {
        quire_field_error(fields, "continue_final_message",
                          "the last message must be an assistant's, without tool_calls");
    }
    request->omits_generation_prompt = false;
}

int quire_chat_request_read(quire_chat_request *request, quire_fields *fields, const char *field)
{
    QUIRE_TRY(quire_messages_read(&request->messages, fields, field));
    read_tools(request, fields);
    read_thoughts(request, fields);
    read_end(request, fields);
    return fields->err->http != 0 ? QUIRE_INVAL : QUIRE_OK;
}

void quire_chat_request_fini(quire_chat_request *request)
{
    quire_messages_fini(&request->messages);
    free(request->tools);
    free(request->plain_tools);
    free(request->tool_name);
    free(request->reasoning_effort);
    free(request->kwargs);
    *request = (quire_chat_request)QUIRE_CHAT_REQUEST_INIT;
}

/* ---- prompts ---- */

static int apply_error(quire_http *http, const quire_error *cause)
{
    char param[QUIRE_API_PARAM_MAX];

    switch (cause->status) {
    case QUIRE_UNSUPP: /* the message begins with the field */
        (void)snprintf(param, sizeof param, "%.*s", (int)strcspn(cause->message, ":"),
                       cause->message);
        return quire_api_error_set(&http->err, 400, "unsupported_parameter", param, "%s",
                                   cause->message);
    case QUIRE_INVAL:
    case QUIRE_LIMIT:
        return quire_api_error_set(&http->err, 400, "chat_template", "messages", "%s",
                                   cause->message);
    default:
        return quire_api_error_from(&http->err, cause);
    }
}

void quire_chat_request_ask(const quire_chat_request *request, const quire_chat_message *messages,
                            size_t n, quire_chat_ask *out)
{
    *out = (quire_chat_ask){
        .messages = messages,
        .n_messages = n,
        .tools = request->tools,
        .plain_tools = request->plain_tools,
        .tool_choice = request->tool_choice,
        .tool_name = request->tool_name,
        .parallel_calls = request->parallel_calls,
        .thinking = request->thinking,
        .reasoning = request->reasoning,
        .reasoning_effort = request->reasoning_effort,
        .kwargs = request->kwargs,
        .omits_generation_prompt = request->omits_generation_prompt,
        .continues_final = request->continues_final,
        .is_text_only = request->is_text_only,
    };
}

/* Whether the model's template would leave the tools out, without notice to the client. */
static bool has_no_place_for_tools(const quire_chat_format *format,
                                   const quire_chat_request *request)
{
    quire_chat_abilities has;

    quire_chat_format_abilities(format, &has);
    return has.has_jinja && !has.has_tools && request->tools != NULL &&
           request->tool_choice != QUIRE_TOOL_CHOICE_NONE;
}

int quire_chat_request_apply(quire_http *http, const quire_chat_request *request,
                             const quire_chat_message *messages, size_t n, const char *schema,
                             quire_chat_prompt **out)
{
    quire_error cause = QUIRE_ERROR_INIT;
    quire_chat_ask ask;

    *out = NULL;
    quire_chat_request_ask(request, messages, n, &ask);
    ask.schema = schema;
    if (http->server->chat == NULL) {
        return quire_api_error_set(&http->err, 501, "no_chat_template", NULL, "%s",
                                   http->server->chat_error.message);
    }
    if (has_no_place_for_tools(http->server->chat, request)) {
        return quire_api_error_set(&http->err, 400, "unsupported_parameter", "tools",
                                   "tools: the model's chat template has no tools; one given by "
                                   "--chat-template-file may have");
    }
    if (quire_chat_format_apply(http->server->chat, &ask, out, &cause) < 0) {
        return apply_error(http, &cause);
    }
    return QUIRE_OK;
}
