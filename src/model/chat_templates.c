/* chat_templates.c - see chat_templates.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_templates.h"
#include "model/template_audit.h"
#include "model/text.h"

#include <llama.h>

#include <stdio.h>
#include <string.h>

size_t quire_chat_template_names(const char **names)
{
    const int32_t n = llama_chat_builtin_templates(names, QUIRE_CHAT_TEMPLATES_MAX);

    return n < (int32_t)QUIRE_CHAT_TEMPLATES_MAX ? (size_t)n : QUIRE_CHAT_TEMPLATES_MAX;
}

bool quire_chat_template_is_name(const char *name)
{
    const char *names[QUIRE_CHAT_TEMPLATES_MAX];
    const size_t n = quire_chat_template_names(names);

    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

bool quire_chat_template_is_usable(const quire_model *model, const char *chat_template)
{
    const quire_chat_message message = { "user", "x", NULL };
    char text[1];

    return quire_model_chat_render(model, chat_template, &message, 1, true, text, sizeof(text)) >=
           0;
}

#define SAMPLE_BYTES 4096u
#define EXTRA_BYTES  64u

/* Render conversations that show all text that a template writes around messages: with and without
 * a system message, with and without the beginning of an answer. False when the template cannot be
 * used. */
static bool sample_render(const quire_model *model, const char *chat_template, char *text)
{
    static const quire_chat_message messages[] = { { "system", "1", NULL },
                                                   { "user", "2", NULL },
                                                   { "assistant", "3", NULL },
                                                   { "user", "4", NULL } };
    const int64_t n =
        quire_model_chat_render(model, chat_template, messages, 4, true, text, SAMPLE_BYTES / 2);
    int64_t n_more;

    if (n < 0 || n >= SAMPLE_BYTES / 2) {
        return false;
    }
    text[n] = '\n';
    n_more = quire_model_chat_render(model, chat_template, messages + 1, 3, false, text + n + 1,
                                     SAMPLE_BYTES / 2 - 1);
    if (n_more < 0 || n_more >= SAMPLE_BYTES / 2 - 1) {
        return false;
    }
    text[n + 1 + n_more] = '\0';
    return true;
}

/* The name of the built-in template that gives the same sample; "none" when Quire renders the
 * model's template by code of its own.
 */
static const char *builtin_find(const quire_model *model, const char *sample)
{
    const char *names[QUIRE_CHAT_TEMPLATES_MAX];
    const size_t n = quire_chat_template_names(names);

    for (size_t i = 0; i < n; i++) {
        char text[SAMPLE_BYTES];

        if (sample_render(model, names[i], text) && strcmp(text, sample) == 0) {
            return names[i];
        }
    }
    return "none";
}

bool quire_chat_template_warning(const quire_model *model, char *warning, size_t warning_bytes)
{
    const char *own = quire_model_chat_template(model);
    char sample[SAMPLE_BYTES];
    char extra[EXTRA_BYTES];

    if (own == NULL || !sample_render(model, NULL, sample) ||
        !quire_template_has_extra(own, sample, extra, sizeof(extra))) {
        return false;
    }
    (void)snprintf(warning, warning_bytes,
                   "the model's chat template is not run: messages are written as the built-in "
                   "template '%s' does, without text that the model's may write, such as \"%s\"",
                   builtin_find(model, sample), extra);
    return true;
}
