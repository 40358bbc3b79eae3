/* cache_mark.h - breakpoints of requests (cache_control) as pins; for src/server only.
 *
 * A breakpoint names a place in the messages. A prompt of the messages up to that place and the
 * whole prompt begin with the same tokens: the tokens of the breakpoint. After the answer they are
 * cached, so a pin of them computes nothing. The pin's name is made of the tenant's text alone: the
 * number of tokens and a hash. The same text at a later request finds its pin, and its time to live
 * begins again. A pin whose text is the beginning of a new pin's is dropped, since the new one
 * holds its pages: a conversation has one pin that grows.
 *
 * A pin that the memory for pins cannot hold is not made, and the answer's usage says so: no tokens
 * were written.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_CACHE_MARK_H
#define QUIRE_SERVER_CACHE_MARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct quire_generation;

#define QUIRE_CACHE_MARK_TTL_S      300u  /* "5m" */
#define QUIRE_CACHE_MARK_TTL_LONG_S 3600u /* "1h" */

typedef struct quire_cache_mark {
    bool is_there;
    uint32_t ttl_s;
    size_t n_messages;    /* up to this one, in it... */
    size_t content_bytes; /* ... so much of its content; SIZE_MAX = the whole message */
    uint32_t n_tokens;    /* of the prompt; 0 = not known */
    bool is_pinned;
} quire_cache_mark;

/* Find the tokens of gen->mark in the prompt of a chat that has been read. Without a common
 * beginning nothing is marked. Errors: http->err, when the client is gone or memory is short. */
int quire_cache_mark_find(struct quire_generation *gen);
/* Pin the marked tokens, or renew their pin. To be called when the prompt is computed. */
void quire_cache_mark_pin(struct quire_generation *gen);

#endif /* QUIRE_SERVER_CACHE_MARK_H */
