/* messages.h - the messages of a chat request.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_MESSAGES_H
#define QUIRE_SERVER_MESSAGES_H

#include <stddef.h>

#include "base/bytes.h"
#include "model/chat_format.h"
#include "model/model.h"
#include "model/text.h"
#include "server/fields.h"

typedef struct quire_messages {
    quire_chat_message *list; /* [n]; roles are static, the rest lies in `texts` */
    size_t n;
    quire_bytes texts;
} quire_messages;

/* Read a field: an array of OpenAI messages. content is a string or an array of text parts. Roles:
 * system, developer, user, assistant (also with tool_calls and reasoning_content), tool (with
 * tool_call_id). Memory: quire_messages_fini(). Errors: fields->err. */
int quire_messages_read(quire_messages *messages, quire_fields *fields, const char *name);
void quire_messages_fini(quire_messages *messages);
/* The number of an answer's first calls that a history can hold: those before a call whose
 * arguments are no JSON, as where the answer was cut. Templates fail for such a call. */
uint32_t quire_messages_whole_calls(const quire_chat_answer *answer);

#endif /* QUIRE_SERVER_MESSAGES_H */
