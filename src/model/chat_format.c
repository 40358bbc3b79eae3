/* chat_format.c - see chat_format.h: the choice between Jinja and built-in templates, and prompts.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_format.h"
#include "model/chat_internal.h"
#include "model/chat_templates.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARNING_BYTES (QUIRE_ERROR_MESSAGE_MAX + 128u)
#define QUOTE_BYTES   40

struct quire_chat_format {
    const quire_model *model;
    quire_chat_jinja *jinja; /* NULL: a built-in template renders */
    char *chat_template;     /* a name or a text; NULL = the model's */
    char warning[WARNING_BYTES];
};

struct quire_chat_prompt {
    quire_chat_parser *parser; /* NULL: of a built-in template */
    char *text;                /* of a built-in template */
    size_t n;
};

bool quire_chat_format_runs_jinja(void)
{
    return quire_chat_jinja_exists();
}

/* Render by a built-in template, as programs without Jinja do. `why`: of Jinja's failure. */
static int fall_back(quire_chat_format *format, const quire_error *why, quire_error *err)
{
    const char *own = format->chat_template;

    if (!quire_chat_template_is_usable(format->model, own)) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s, and it is no template that libllama knows: --chat-template "
                               "NAME picks one, such as chatml",
                               why->message);
    }
    if (own == NULL &&
        !quire_chat_template_warning(format->model, format->warning, sizeof format->warning) &&
        quire_chat_jinja_exists()) {
        (void)snprintf(format->warning, sizeof format->warning,
                       "%s: messages are written by a built-in template, without tools",
                       why->message);
    }
    return QUIRE_OK;
}

/* The part of a text that a message quotes: of the first line. */
static int shown_bytes(const char *text)
{
    int n = 0;

    while (n < QUOTE_BYTES && (unsigned char)text[n] >= ' ') {
        n++;
    }
    return n;
}

static int begin(quire_chat_format *format, quire_error *err)
{
    const char *own = format->chat_template;
    quire_error why = QUIRE_ERROR_INIT;
    int rc;

    if (own == NULL && quire_model_chat_template(format->model) == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "the model has no chat template (tokenizer.chat_template): "
                               "--chat-template NAME gives one, such as chatml");
    }
    if (own != NULL && quire_chat_template_is_name(own)) {
        return QUIRE_OK;
    }
    if (own != NULL && strstr(own, "{{") == NULL && strstr(own, "{%") == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "chat template: \"%.*s\" is neither the name of a built-in "
                               "template nor a Jinja template (--chat-template NAME)",
                               shown_bytes(own), own);
    }
    rc = quire_chat_jinja_create(&format->jinja, format->model, own, &why);
    if (rc == QUIRE_NOMEM) {
        return quire_error_set(err, rc, "%s", why.message);
    }
    return rc < 0 ? fall_back(format, &why, err) : QUIRE_OK;
}

int quire_chat_format_create(quire_chat_format **out, const quire_model *model,
                             const char *chat_template, quire_error *err)
{
    quire_chat_format *format = calloc(1, sizeof *format);
    int rc = QUIRE_NOMEM;

    *out = NULL;
    if (format != NULL) {
        format->model = model;
        format->chat_template = chat_template != NULL ? strdup(chat_template) : NULL;
    }
    if (format == NULL || (chat_template != NULL && format->chat_template == NULL)) {
        (void)quire_error_set(err, rc, "no memory for a chat template");
    } else {
        rc = begin(format, err);
    }
    if (rc < 0) {
        quire_chat_format_destroy(format);
        return rc;
    }
    *out = format;
    return QUIRE_OK;
}

void quire_chat_format_destroy(quire_chat_format *format)
{
    if (format == NULL) {
        return;
    }
    quire_chat_jinja_destroy(format->jinja);
    free(format->chat_template);
    free(format);
}

const char *quire_chat_format_warning(const quire_chat_format *format)
{
    return format->warning;
}

const char *quire_chat_format_template(const quire_chat_format *format)
{
    return format->chat_template != NULL ? format->chat_template
                                         : quire_model_chat_template(format->model);
}

void quire_chat_format_abilities(const quire_chat_format *format, quire_chat_abilities *out)
{
    *out = (quire_chat_abilities){ .keeps_thoughts = true };
    if (format->jinja != NULL) {
        quire_chat_jinja_abilities(format->jinja, out);
    }
}

/* ---- prompts ---- */

/* A built-in template knows system, user and assistant, and no other fields. */
static int builtin_check(const quire_chat_ask *ask, quire_error *err)
{
    static const char advice[] =
        "a built-in chat template writes the messages and has no place for "
        "it; the model's own one or --chat-template-file may have";

    if (ask->tools != NULL && ask->tools[0] != '\0' && ask->tool_choice != QUIRE_TOOL_CHOICE_NONE) {
        return quire_error_set(err, QUIRE_UNSUPP, "tools: %s", advice);
    }
    if (ask->continues_final) {
        return quire_error_set(err, QUIRE_UNSUPP, "continue_final_message: %s", advice);
    }
    if (ask->kwargs != NULL && ask->kwargs[0] != '\0') {
        return quire_error_set(err, QUIRE_UNSUPP, "chat_template_kwargs: %s", advice);
    }
    if (ask->thinking != QUIRE_CHAT_DEFAULT || ask->reasoning_effort != NULL) {
        return quire_error_set(
            err, QUIRE_UNSUPP, "%s: %s",
            ask->reasoning_effort != NULL ? "reasoning_effort" : "enable_thinking", advice);
    }
    for (size_t i = 0; i < ask->n_messages; i++) {
        if (strcmp(ask->messages[i].role, "tool") == 0) {
            return quire_error_set(err, QUIRE_UNSUPP, "messages[%zu].role: tool: %s", i, advice);
        }
    }
    return QUIRE_OK;
}

/* A field that the template does not know would have no effect, without notice to the client. */
static int jinja_check(const quire_chat_format *format, const quire_chat_ask *ask, quire_error *err)
{
    const char *effort = ask->reasoning_effort;
    quire_chat_abilities has;

    quire_chat_format_abilities(format, &has);
    if (ask->thinking == QUIRE_CHAT_ON && !has.has_thinking) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "enable_thinking: the model's chat template has no thoughts");
    }
    if (effort != NULL && strcmp(effort, "none") != 0 && !has.has_thinking &&
        strstr(quire_chat_format_template(format), "reasoning_effort") == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "reasoning_effort: the model's chat template has no thoughts");
    }
    return QUIRE_OK;
}

static int builtin_render(const quire_chat_format *format, const quire_chat_ask *ask,
                          quire_chat_prompt *prompt, quire_error *err)
{
    quire_chat_message *messages = calloc(ask->n_messages + 1, sizeof *messages);
    int64_t n = QUIRE_NOMEM;

    for (size_t i = 0; messages != NULL && i < ask->n_messages; i++) {
        messages[i] = ask->messages[i];
        if (strcmp(messages[i].role, "developer") == 0) {
            messages[i].role = "system";
        }
    }
    if (messages != NULL) {
        n = quire_model_chat_render(format->model, format->chat_template, messages, ask->n_messages,
                                    !ask->omits_generation_prompt, NULL, 0);
    }
    if (n >= 0) {
        prompt->text = malloc((size_t)n + 1);
        n = prompt->text == NULL
                ? QUIRE_NOMEM
                : quire_model_chat_render(format->model, format->chat_template, messages,
                                          ask->n_messages, !ask->omits_generation_prompt,
                                          prompt->text, (size_t)n + 1);
    }
    free(messages);
    if (n < 0) {
        return quire_error_set(err, (int)n, "chat template: %s",
                               n == QUIRE_NOMEM ? "no memory" : "not one that libllama knows");
    }
    prompt->n = (size_t)n;
    prompt->text[n] = '\0';
    return QUIRE_OK;
}

int quire_chat_format_apply(const quire_chat_format *format, const quire_chat_ask *ask,
                            quire_chat_prompt **out, quire_error *err)
{
    quire_chat_prompt *prompt = calloc(1, sizeof *prompt);
    int rc;

    *out = NULL;
    if (prompt == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a prompt");
    }
    if (format->jinja != NULL) {
        rc = jinja_check(format, ask, err);
        rc = rc < 0 ? rc : quire_chat_jinja_apply(format->jinja, ask, &prompt->parser, err);
    } else {
        rc = builtin_check(ask, err);
        rc = rc == QUIRE_OK ? builtin_render(format, ask, prompt, err) : rc;
    }
    if (rc < 0) {
        quire_chat_prompt_destroy(prompt);
        return rc;
    }
    *out = prompt;
    return QUIRE_OK;
}

void quire_chat_prompt_destroy(quire_chat_prompt *prompt)
{
    if (prompt != NULL) {
        quire_chat_parser_release(prompt->parser);
        free(prompt->text);
        free(prompt);
    }
}

void quire_chat_prompt_rules(const quire_chat_prompt *prompt, quire_chat_rules *out)
{
    if (prompt->parser != NULL) {
        quire_chat_parser_rules(prompt->parser, out);
        return;
    }
    *out = (quire_chat_rules){ .text = { prompt->text, prompt->n }, .answer_begin = "" };
}

quire_chat_parser *quire_chat_prompt_parser(const quire_chat_prompt *prompt)
{
    return prompt->parser;
}
