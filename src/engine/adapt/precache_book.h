/* precache_book.h - what may be worth computing in advance, and what became of what was.
 *
 * Two lists of texts, each bounded:
 *
 *   reused    beginnings that a request found, or would have found had they not been evicted: at
 *             least the second request that began so. Each has a mean gap between uses; it is
 *             likely to return while not much more than that has passed since the last one.
 *   computed  what was computed in advance and has not been judged yet: tokens [begin, end) of a
 *             text. A request that hits some of them is gain, what is no longer cached or lies
 *             there for too long is waste. Each token is counted once.
 *
 * The accounts: waste may exceed gain by a slack; beyond that the book says "pause", for a minute,
 * twice as long each time, until a period ends with more gain than waste. After a pause the slack
 * is whole again.
 *
 * Pure: the clock and the cache are the caller's. Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PRECACHE_BOOK_H
#define QUIRE_ENGINE_PRECACHE_BOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/prefix.h"

#define QUIRE_PRECACHE_COMPUTED_MAX                                                                \
    64u /* not judged yet; when there are so many, enough is done                                  \
         */
#define QUIRE_PRECACHE_TOKENS_MAX (1u << 20) /* of all reused texts together: 4 MiB */

typedef struct quire_precache_book quire_precache_book;

typedef struct quire_precache_book_opts {
    uint32_t texts_max;    /* reused ones, >= 1 */
    uint32_t page_tokens;  /* texts end at multiples of it */
    uint64_t judge_us;     /* unused for so long is waste */
    uint32_t slack_tokens; /* waste beyond gain that is put up with */
} quire_precache_book_opts;

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_precache_book_create(quire_precache_book **out, const quire_precache_book_opts *opts);
void quire_precache_book_destroy(quire_precache_book *book);

typedef struct quire_precache_text {
    const void *tenant;
    uint32_t tenant_bytes;
    const int32_t *tokens;
    uint32_t n_tokens;
} quire_precache_text;

/* A request began with this text, not as the first one. What exceeds full pages is left out; texts
 * in the book that this one begins with are used, too. Without memory nothing is noted. */
void quire_precache_book_note(quire_precache_book *book, const quire_precache_text *text,
                              uint64_t now_us);
/* Texts of a tenant are wrong from now on (NULL: everybody's): forget them, without judging. */
void quire_precache_book_forget(quire_precache_book *book, const void *tenant,
                                uint32_t tenant_bytes);

/* How likely a text with uses so far apart comes back now: mean gap over age, in (0, 1]; 0 when it
 * is not worth while any more. */
double quire_precache_hope(uint64_t gap_us, uint64_t age_us);

/* Visit the reused texts that have hope, until visit returns non-zero; returns that. */
int quire_precache_book_visit(const quire_precache_book *book, uint64_t now_us,
                              int (*visit)(void *ctx, const quire_precache_text *text, double hope),
                              void *ctx);

/* Whether one more can be entered. */
bool quire_precache_book_has_room(const quire_precache_book *book);
/* Tokens from begin_token to the text's end were computed in advance. Errors: QUIRE_NOMEM,
 * QUIRE_LIMIT (no room): they count neither way. */
int quire_precache_book_enter(quire_precache_book *book, const quire_precache_text *text,
                              uint32_t begin_token, uint64_t now_us);

/* A request with this prompt used n_hit tokens of the cache. */
void quire_precache_book_hit(quire_precache_book *book, const quire_precache_text *prompt,
                             uint32_t n_hit);

/* Judge what is old, and what is no longer cached: n_cached tells how many tokens of a text are. */
void quire_precache_book_judge(quire_precache_book *book, uint64_t now_us,
                               uint32_t (*n_cached)(void *ctx, const quire_precache_text *text),
                               void *ctx);

typedef enum quire_precache_verdict {
    QUIRE_PRECACHE_AS_BEFORE,
    QUIRE_PRECACHE_PAUSE, /* a pause begins now */
    QUIRE_PRECACHE_RESUME /* and ends now */
} quire_precache_verdict;
quire_precache_verdict quire_precache_book_verdict(quire_precache_book *book, uint64_t now_us);

typedef struct quire_precache_accounts {
    uint64_t gain_tokens_total;
    uint64_t waste_tokens_total;
    uint64_t pauses_total;
    uint64_t pause_us; /* how long the one that goes on, or the last one, is in all */
    uint32_t texts;
    uint32_t computed; /* not judged yet */
    bool is_pausing;
} quire_precache_accounts;
void quire_precache_book_accounts(const quire_precache_book *book, quire_precache_accounts *out);

#endif /* QUIRE_ENGINE_PRECACHE_BOOK_H */
