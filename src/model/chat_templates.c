/* chat_templates.c - see chat_templates.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_templates.h"
#include "model/text.h"

#include <llama.h>

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
    const quire_chat_message message = { "user", "x" };
    char text[1];

    return quire_model_chat_render(model, chat_template, &message, 1, true, text, sizeof(text)) >=
           0;
}
