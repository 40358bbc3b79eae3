/* messages.h - the messages of a chat request, and their rendering as a prompt.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_MESSAGES_H
#define QUIRE_SERVER_MESSAGES_H

#include <stddef.h>

#include "base/bytes.h"
#include "model/model.h"
#include "model/text.h"
#include "server/fields.h"

typedef struct quire_messages {
    quire_chat_message *list; /* [n]; roles are static, contents lie in `texts` */
    size_t n;
    quire_bytes texts;
} quire_messages;

/* Read a field: an array of {role, content}, where content is a string or an array of text parts.
 * Roles: system, developer (a system message), user, assistant. Memory: quire_messages_fini().
 * Errors: fields->err. */
int quire_messages_read(quire_messages *messages, quire_fields *fields, const char *name);
void quire_messages_fini(quire_messages *messages);

/* Render messages into bytes. Errors: err. */
int quire_messages_render(const quire_model *model, const char *chat_template,
                          const quire_chat_message *messages, size_t n, bool add_assistant,
                          quire_bytes *out, quire_api_error *err);

#endif /* QUIRE_SERVER_MESSAGES_H */
