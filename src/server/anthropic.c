/* anthropic.c - see anthropic.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/anthropic.h"

#include "base/bytes.h"
#include "base/check.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line that a coding agent puts before its system prompt, for billing. It differs from request to
 * request, and would end every cached prefix at once. */
#define BILLING_LINE "x-anthropic-billing-header:"

typedef struct translation {
    quire_anthropic *out;
    json_t *messages; /* of the chat; borrowed */
    uint32_t n_marks;
} translation;

/* A message that is being made. */
typedef struct draft {
    const char *role;
    quire_bytes content;
    quire_bytes thoughts;
    json_t *calls;
} draft;

static const char *type_of(quire_fields *block)
{
    const char *type =
        quire_field_required(block, "type") != NULL ? quire_field_string(block, "type", 64) : NULL;

    return type != NULL ? type : "";
}

/* ---- breakpoints ---- */

/* Note the block's breakpoint, if it has one, behind content_bytes of the message at hand. */
static void read_mark(translation *t, quire_fields *block, size_t content_bytes)
{
    json_t *object = quire_field_object(block, "cache_control");
    char path[96];
    quire_fields fields = { .object = object, .path = path, .err = block->err };
    const char *type, *ttl;

    if (object == NULL) {
        return;
    }
    (void)snprintf(path, sizeof path, "%s%scache_control", block->path != NULL ? block->path : "",
                   block->path != NULL ? "." : "");
    type = type_of(&fields);
    ttl = quire_field_string(&fields, "ttl", 8);
    if (strcmp(type, "ephemeral") != 0) {
        quire_field_error(&fields, "type", "must be \"ephemeral\"");
    }
    if (ttl != NULL && strcmp(ttl, "5m") != 0 && strcmp(ttl, "1h") != 0) {
        quire_field_error(&fields, "ttl", "must be \"5m\" or \"1h\"");
    }
    if (++t->n_marks > QUIRE_ANTHROPIC_MARKS_MAX) {
        quire_field_error(block, "cache_control", "more than %u breakpoints",
                          QUIRE_ANTHROPIC_MARKS_MAX);
    }
    t->out->mark = (quire_cache_mark){
        .is_there = true,
        .ttl_s =
            ttl != NULL && ttl[0] == '1' ? QUIRE_CACHE_MARK_TTL_LONG_S : QUIRE_CACHE_MARK_TTL_S,
        .n_messages = json_array_size(t->messages) + (content_bytes > 0),
        .content_bytes = content_bytes,
    };
}

/* ---- messages ---- */

static void message_add(translation *t, quire_fields *fields, json_t *message)
{
    if (message == NULL || json_array_append_new(t->messages, message) != 0) {
        (void)quire_api_error_nomem(fields->err);
    }
}

static json_t *text_json(const quire_bytes *text)
{
    return json_stringn_nocheck(text->data != NULL ? text->data : "", text->n);
}

/* The draft's message, unless there is nothing in it. */
static void draft_end(translation *t, quire_fields *fields, draft *d)
{
    const bool is_empty = d->content.n == 0 && d->thoughts.n == 0 && d->calls == NULL;
    json_t *message = NULL;

    if (d->content.status < 0 || d->thoughts.status < 0) {
        (void)quire_api_error_nomem(fields->err);
    } else if (!is_empty || strcmp(d->role, "assistant") == 0) {
        message = json_pack("{s:s, s:o*}", "role", d->role, "content", text_json(&d->content));
        if (message != NULL && d->thoughts.n > 0) {
            (void)json_object_set_new(message, "reasoning_content", text_json(&d->thoughts));
        }
        if (message != NULL && d->calls != NULL) {
            (void)json_object_set(message, "tool_calls", d->calls);
        }
        message_add(t, fields, message);
    }
    quire_bytes_fini(&d->content);
    quire_bytes_fini(&d->thoughts);
    json_decref(d->calls);
    *d = (draft){ .role = d->role };
}

/* The text of a field of a block. */
static void add_field(quire_fields *block, const char *name, quire_bytes *to)
{
    const char *text = quire_field_required(block, name) != NULL
                           ? quire_field_string(block, name, SIZE_MAX)
                           : NULL;

    if (text != NULL) {
        (void)quire_bytes_add(to, text, strlen(text));
    }
}

static void add_call(quire_fields *block, draft *d)
{
    const char *id =
        quire_field_required(block, "id") != NULL ? quire_field_string(block, "id", 256) : NULL;
    const char *name =
        quire_field_required(block, "name") != NULL ? quire_field_string(block, "name", 256) : NULL;
    json_t *input = quire_field_object(block, "input");
    char *arguments = input != NULL ? json_dumps(input, JSON_COMPACT) : strdup("{}");

    if (d->calls == NULL) {
        d->calls = json_array();
    }
    if (block->err->http == 0 &&
        (arguments == NULL ||
         json_array_append_new(d->calls,
                               json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function",
                                         "function", "name", name, "arguments", arguments)) != 0)) {
        (void)quire_api_error_nomem(block->err);
    }
    free(arguments);
}

/* content of a result: a string, or blocks of text. */
static void add_result_text(translation *t, quire_fields *block, quire_bytes *text)
{
    json_t *content = quire_field(block, "content");

    if (json_is_string(content)) {
        (void)quire_bytes_add(text, json_string_value(content), json_string_length(content));
    } else if (content != NULL && !json_is_array(content)) {
        quire_field_type_error(block, "content", "a string or an array of blocks", content);
    }
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++) {
        char path[96];
        quire_fields part = { .object = json_array_get(content, i),
                              .path = path,
                              .err = block->err };

        (void)snprintf(path, sizeof path, "%.64s.content[%zu]", block->path, i);
        if (strcmp(type_of(&part), "text") != 0) {
            quire_field_error(&part, "type", "only \"text\" is supported in a tool_result");
            return;
        }
        (void)quire_bytes_addf(text, "%s", text->n > 0 ? "\n" : "");
        add_field(&part, "text", text);
        read_mark(t, &part, text->n > 0 ? text->n : SIZE_MAX);
    }
}

static void add_result(translation *t, quire_fields *block)
{
    const char *id = quire_field_required(block, "tool_use_id") != NULL
                         ? quire_field_string(block, "tool_use_id", 256)
                         : NULL;
    const bool is_error = quire_field_bool(block, "is_error", false);
    quire_bytes text = { 0 };

    if (is_error) { /* chats have no such mark */
        (void)quire_bytes_addf(&text, "Error:");
    }
    add_result_text(t, block, &text);
    read_mark(t, block, SIZE_MAX);
    if (block->err->http == 0) {
        message_add(t, block,
                    json_pack("{s:s, s:s, s:o*}", "role", "tool", "tool_call_id", id, "content",
                              text_json(&text)));
    }
    quire_bytes_fini(&text);
}

static void add_block(translation *t, quire_fields *block, draft *d)
{
    const bool is_user = strcmp(d->role, "user") == 0;
    const char *type = type_of(block);

    if (strcmp(type, "text") == 0) {
        (void)quire_bytes_addf(&d->content, "%s", d->content.n > 0 ? "\n" : "");
        add_field(block, "text", &d->content);
        read_mark(t, block, d->content.n > 0 ? d->content.n : SIZE_MAX);
    } else if (!is_user && strcmp(type, "thinking") == 0) {
        add_field(block, "thinking", &d->thoughts);
    } else if (!is_user && strcmp(type, "redacted_thinking") == 0) {
        return; /* nothing that this model could read */
    } else if (!is_user && strcmp(type, "tool_use") == 0) {
        add_call(block, d);
        read_mark(t, block, SIZE_MAX);
    } else if (is_user && strcmp(type, "tool_result") == 0) {
        draft_end(t, block, d);
        add_result(t, block);
    } else {
        quire_field_unsupported(block, "type", "\"%.32s\" is not supported here: %s", type,
                                is_user ? "a user's blocks are text and tool_result"
                                        : "an assistant's blocks are text, thinking and tool_use");
    }
}

static void add_message(translation *t, quire_fields *message)
{
    const char *role = quire_field_required(message, "role") != NULL
                           ? quire_field_string(message, "role", 32)
                           : NULL;
    json_t *content = quire_field_required(message, "content");
    draft d = { .role = role };

    if (message->err->http != 0) {
        return;
    }
    if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0) {
        quire_field_error(message, "role",
                          "must be \"user\" or \"assistant\"; the field system "
                          "takes a system prompt");
        return;
    }
    if (json_is_string(content)) {
        (void)quire_bytes_add(&d.content, json_string_value(content), json_string_length(content));
    } else if (!json_is_array(content)) {
        quire_field_type_error(message, "content", "a string or an array of blocks", content);
    }
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++) {
        char path[64];
        quire_fields block = { .object = json_array_get(content, i),
                               .path = path,
                               .err = message->err };

        (void)snprintf(path, sizeof path, "%.32s.content[%zu]", message->path, i);
        add_block(t, &block, &d);
    }
    draft_end(t, message, &d);
}

static void add_messages(translation *t, quire_fields *fields)
{
    json_t *list = quire_field_required(fields, "messages") != NULL
                       ? quire_field_array(fields, "messages", SIZE_MAX)
                       : NULL;

    for (size_t i = 0; i < json_array_size(list) && fields->err->http == 0; i++) {
        char path[32];
        quire_fields message = { .object = json_array_get(list, i),
                                 .path = path,
                                 .err = fields->err };

        (void)snprintf(path, sizeof path, "messages[%zu]", i);
        add_message(t, &message);
    }
    if (list != NULL && json_array_size(list) == 0) {
        quire_field_error(fields, "messages", "at least one message is needed");
    }
}

/* A string, or blocks of text. */
static void add_system(translation *t, quire_fields *fields)
{
    json_t *value = quire_field(fields, "system");
    draft d = { .role = "system" };

    if (json_is_string(value)) {
        (void)quire_bytes_add(&d.content, json_string_value(value), json_string_length(value));
    } else if (value != NULL && !json_is_array(value)) {
        quire_field_type_error(fields, "system", "a string or an array of text blocks", value);
    }
    for (size_t i = 0; json_is_array(value) && i < json_array_size(value); i++) {
        char path[32];
        quire_fields block = { .object = json_array_get(value, i),
                               .path = path,
                               .err = fields->err };
        const char *text = json_string_value(json_object_get(block.object, "text"));

        (void)snprintf(path, sizeof path, "system[%zu]", i);
        if (strcmp(type_of(&block), "text") != 0) {
            quire_field_error(&block, "type", "only \"text\" is supported");
        } else if (text == NULL || strncmp(text, BILLING_LINE, sizeof BILLING_LINE - 1) != 0) {
            (void)quire_bytes_addf(&d.content, "%s", d.content.n > 0 ? "\n" : "");
            add_field(&block, "text", &d.content);
            read_mark(t, &block, d.content.n > 0 ? d.content.n : SIZE_MAX);
        }
    }
    draft_end(t, fields, &d);
}

/* ---- tools ---- */

static json_t *tool_of(translation *t, quire_fields *tool)
{
    const char *type = quire_field_string(tool, "type", 64);
    const char *description = quire_field_string(tool, "description", SIZE_MAX);
    const char *name =
        quire_field_required(tool, "name") != NULL ? quire_field_string(tool, "name", 256) : NULL;
    json_t *schema = quire_field_object(tool, "input_schema");
    const bool is_strict = quire_field_bool(tool, "strict", false);

    if (type != NULL && strcmp(type, "custom") != 0) {
        quire_field_unsupported(tool, "type",
                                "\"%.48s\" is a tool of Anthropic's servers; only tools "
                                "with an input_schema are supported",
                                type);
    }
    quire_field_refuse(tool, "defer_loading", "false", "the template gets every tool");
    quire_field_refuse(tool, "allowed_callers", "[\"direct\"]", "no code runs here");
    quire_field_refuse(tool, "input_examples", QUIRE_FIELD_NOTHING,
                       "the description can hold examples");
    read_mark(t, tool, 0);
    if (tool->err->http != 0) {
        return NULL;
    }
    return json_pack("{s:s, s:{s:s, s:s*, s:O*, s:b}}", "type", "function", "function", "name",
                     name, "description", description, "parameters", schema, "strict", is_strict);
}

static void set_tools(translation *t, quire_fields *fields)
{
    json_t *list = quire_field_array(fields, "tools", SIZE_MAX);
    json_t *tools = json_array();

    for (size_t i = 0; i < json_array_size(list) && fields->err->http == 0; i++) {
        char path[32];
        quire_fields tool = { .object = json_array_get(list, i), .path = path, .err = fields->err };
        json_t *made;

        (void)snprintf(path, sizeof path, "tools[%zu]", i);
        made = tool_of(t, &tool);
        if (fields->err->http == 0 && (made == NULL || json_array_append_new(tools, made) != 0)) {
            (void)quire_api_error_nomem(fields->err);
        }
    }
    (void)json_object_del(t->out->chat, "tools");
    if (json_array_size(tools) > 0) {
        (void)json_object_set(t->out->chat, "tools", tools);
    }
    json_decref(tools);
}

static void set_choice(translation *t, quire_fields *fields)
{
    json_t *object = quire_field_object(fields, "tool_choice");
    quire_fields choice = { .object = object, .path = "tool_choice", .err = fields->err };
    json_t *chat = t->out->chat;
    const char *type;

    (void)json_object_del(chat, "tool_choice");
    if (object == NULL) {
        return;
    }
    type = type_of(&choice);
    if (quire_field_bool(&choice, "disable_parallel_tool_use", false)) {
        (void)json_object_set_new(chat, "parallel_tool_calls", json_false());
    }
    if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0) {
        (void)json_object_set_new(chat, "tool_choice", json_string(type));
    } else if (strcmp(type, "any") == 0) {
        (void)json_object_set_new(chat, "tool_choice", json_string("required"));
    } else if (strcmp(type, "tool") == 0) {
        const char *name = quire_field_required(&choice, "name") != NULL
                               ? quire_field_string(&choice, "name", 256)
                               : NULL;

        (void)json_object_set_new(
            chat, "tool_choice",
            json_pack("{s:s, s:{s:s*}}", "type", "function", "function", "name", name));
    } else {
        quire_field_error(&choice, "type", "must be \"auto\", \"any\", \"tool\" or \"none\"");
    }
}

/* ---- the other fields ---- */

static void set_thinking(translation *t, quire_fields *fields)
{
    json_t *object = quire_field_object(fields, "thinking");
    quire_fields thinking = { .object = object, .path = "thinking", .err = fields->err };
    json_t *chat = t->out->chat;
    const char *type;

    (void)json_object_del(chat, "thinking");
    if (object == NULL) {
        return;
    }
    type = type_of(&thinking);
    quire_field_refuse(&thinking, "display", "\"summarized\"", "thoughts come whole");
    if (strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0) {
        const int64_t n = quire_field_int(&thinking, "budget_tokens", -1, 1, INT32_MAX);

        (void)json_object_set_new(chat, "enable_thinking", json_true());
        if (n > 0) {
            (void)json_object_set_new(chat, "thinking_budget", json_integer(n));
        }
    } else if (strcmp(type, "disabled") == 0) {
        (void)json_object_set_new(chat, "enable_thinking", json_false());
    } else {
        quire_field_error(&thinking, "type", "must be \"enabled\", \"adaptive\" or \"disabled\"");
    }
}

/* {"type": "json_schema", "schema"} of output_format, or of output_config.format. */
static void set_format(translation *t, quire_fields *fields)
{
    json_t *config = quire_field_object(fields, "output_config");
    quire_fields inner = { .object = config, .path = "output_config", .err = fields->err };
    json_t *format = quire_field_object(fields, "output_format");
    const char *effort = config != NULL ? quire_field_string(&inner, "effort", 32) : NULL;
    quire_fields of_format = { .path = "output_format", .err = fields->err };
    json_t *chat = t->out->chat;

    if (format == NULL && config != NULL) {
        format = quire_field_object(&inner, "format");
        of_format.path = "output_config.format";
    }
    of_format.object = format;
    if (config != NULL) {
        quire_field_refuse(&inner, "task_budget", QUIRE_FIELD_NOTHING,
                           "use `max_tokens` and `thinking.budget_tokens`");
    }
    if (effort != NULL) {
        (void)json_object_set_new(chat, "reasoning_effort", json_string(effort));
    }
    if (format != NULL) {
        const char *type = quire_field_string(&of_format, "type", 32);

        if (type != NULL && strcmp(type, "json_schema") == 0) {
            (void)quire_field_required(&of_format, "schema");
        }
        (void)json_object_set(chat, "response_format", format);
    }
    (void)json_object_del(chat, "output_config");
    (void)json_object_del(chat, "output_format");
}

/* Checked here, where they have this name. */
static json_t *stops_of(quire_fields *fields)
{
    json_t *list = quire_field_array(fields, "stop_sequences", QUIRE_STOPS_MAX);

    for (size_t i = 0; i < json_array_size(list); i++) {
        const size_t n = json_string_length(json_array_get(list, i));

        if (n == 0 || n > QUIRE_STOP_BYTES_MAX) {
            quire_field_error(fields, "stop_sequences",
                              "element %zu must be a string of 1 .. %u bytes", i,
                              QUIRE_STOP_BYTES_MAX);
        }
    }
    return list;
}

static void set_fields(translation *t, quire_fields *fields, bool needs_max_tokens)
{
    const char *tier = quire_field_string(fields, "service_tier", 64);
    json_t *stops = stops_of(fields);
    json_t *chat = t->out->chat;

    quire_field_refuse(fields, "mcp_servers", QUIRE_FIELD_NOTHING, "the client calls tools");
    quire_field_refuse(fields, "container", QUIRE_FIELD_NOTHING, "no code runs here");
    quire_field_refuse(fields, "context_management", QUIRE_FIELD_NOTHING, "use `context_overflow`");
    quire_field_refuse(fields, "inference_geo", QUIRE_FIELD_NOTHING, "one machine computes");
    quire_field_refuse(fields, "speed", "\"standard\"", "use `service_tier`");
    if (needs_max_tokens) {
        (void)quire_field_required(fields, "max_tokens");
    }
    (void)json_object_del(chat, "system");
    (void)json_object_del(chat, "stop_sequences");
    (void)json_object_del(chat, "cache_control");
    if (stops != NULL) {
        (void)json_object_set(chat, "stop", stops);
    }
    if (tier != NULL && strcmp(tier, "standard_only") == 0) {
        (void)json_object_set_new(chat, "service_tier", json_string("default"));
    }
    set_thinking(t, fields);
    set_format(t, fields);
}

/* An answer that begins with the last message, of an assistant. */
static void set_prefill(translation *t)
{
    json_t *last = json_array_get(t->messages, json_array_size(t->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));

    if (role != NULL && strcmp(role, "assistant") == 0 &&
        json_object_get(last, "tool_calls") == NULL) {
        (void)json_object_set_new(t->out->chat, "continue_final_message", json_true());
        (void)json_object_set_new(t->out->chat, "add_generation_prompt", json_false());
    }
}

int quire_anthropic_read(quire_anthropic *out, quire_fields *fields, bool needs_max_tokens)
{
    translation t = { out, json_array(), 0 };

    *out = (quire_anthropic){ .chat = json_copy(fields->object) };
    if (t.messages == NULL || out->chat == NULL ||
        json_object_set_new(out->chat, "messages", t.messages) != 0) {
        return quire_api_error_nomem(fields->err);
    }
    set_fields(&t, fields, needs_max_tokens);
    set_tools(&t, fields);
    set_choice(&t, fields);
    add_system(&t, fields);
    add_messages(&t, fields);
    if (quire_field_object(fields, "cache_control") != NULL) { /* of the whole prompt */
        read_mark(&t, fields, SIZE_MAX);
        out->mark.n_messages = json_array_size(t.messages);
    }
    set_prefill(&t);
    return fields->err->http != 0 ? QUIRE_INVAL : QUIRE_OK;
}
