/* chat_templates.h - the list of chat templates.
 *
 * libllama does not run the template of a model file. It recognises common templates, and renders
 * messages by built-in templates, each of which has a name.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CHAT_TEMPLATES_H
#define QUIRE_MODEL_CHAT_TEMPLATES_H

#include "model/model.h"

#define QUIRE_CHAT_TEMPLATES_MAX 128u

/* The names, for quire_model_chat_render(). names: [QUIRE_CHAT_TEMPLATES_MAX]. Returns how many.
 * Memory: static. */
size_t quire_chat_template_names(const char **names);

/* Whether there is a template of that name. */
bool quire_chat_template_is_name(const char *name);

/* Whether a conversation can be rendered with a template (NULL = the model's). */
bool quire_chat_template_is_usable(const quire_model *model, const char *chat_template);

/* Whether the model's own template can write text that Quire leaves out, such as a system prompt of
 * its own: see template_audit.h. warning says so, names the text and the built-in template that
 * messages are rendered by. False where the model's template is not usable. */
bool quire_chat_template_warning(const quire_model *model, char *warning, size_t warning_bytes);

#endif /* QUIRE_MODEL_CHAT_TEMPLATES_H */
