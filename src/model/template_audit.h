/* template_audit.h - text that a chat template can write and a rendering of it lacks.
 *
 * libllama does not run templates: it recognises common templates by typical strings in them, and
 * writes messages by code of its own. A template with these strings may write more text, such as a
 * system prompt for conversations without one, or the beginning of an answer. This module reads the
 * texts in a template, without running it, and looks for them in the messages that libllama writes.
 *
 * The module finds texts outside of tags, and strings in {{ }} and {% set %}. It ignores texts that
 * depend on inputs that no request of Quire has (tools, documents, pictures, switches such as
 * enable_thinking). It does not find changes that a template makes to messages (trimming them,
 * removing thoughts from answers), nor text that libllama writes and the template does not.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_TEMPLATE_AUDIT_H
#define QUIRE_MODEL_TEMPLATE_AUDIT_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the template has a text that `rendered` lacks. The first such text is copied into extra,
 * cut to its size, with control characters as blanks. */
bool quire_template_has_extra(const char *chat_template, const char *rendered, char *extra,
                              size_t extra_bytes);

#endif /* QUIRE_MODEL_TEMPLATE_AUDIT_H */
