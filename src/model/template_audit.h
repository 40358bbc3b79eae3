/* template_audit.h - text that a chat template can write and a rendering of it lacks.
 *
 * libllama does not run templates: it recognises the common ones by marks and writes messages by
 * code of its own. A template that has the marks may write more: a system prompt where the
 * conversation has none, the beginning of an answer. This reads the texts out of a template,
 * without running it, and looks for them in what libllama writes.
 *
 * Seen are texts outside of tags and strings in {{ }} and {% set %}, but none that need what
 * requests here do not have (tools, documents, pictures, switches such as enable_thinking). Not
 * seen is what a template does to messages (trimming them, taking thoughts out of answers), and
 * text of libllama's that the template does not write.
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
