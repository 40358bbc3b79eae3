/* anthropic.h - requests of Anthropic's Messages API as chat requests; for src/server only.
 *
 * The body becomes a body of a chat completion: roles, blocks and tools are renamed, and fields
 * without a name in this API stay as they are. So every rule of chats holds here too: refusals,
 * sessions, classes, salts. Blocks that are no text, tool or thought are refused.
 *
 * cache_control. A breakpoint says that the text up to a block is worth keeping. The last
 * breakpoint counts, since its text contains the earlier ones; cache_mark.h makes a pin of it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_ANTHROPIC_H
#define QUIRE_SERVER_ANTHROPIC_H

#include <jansson.h>

#include "server/cache_mark.h"
#include "server/fields.h"

#define QUIRE_ANTHROPIC_MARKS_MAX 4u /* breakpoints of a request, as Anthropic's */

typedef struct quire_anthropic {
    json_t *chat; /* the body of a chat completion; owned */
    quire_cache_mark mark;
} quire_anthropic;

/* needs_max_tokens: the field max_tokens is required. Memory: json_decref(out->chat), also after an
 * error. Errors: fields->err. */
int quire_anthropic_read(quire_anthropic *out, quire_fields *fields, bool needs_max_tokens);

#endif /* QUIRE_SERVER_ANTHROPIC_H */
