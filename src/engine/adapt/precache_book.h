/* precache_book.h - candidates for pre-caching, and the accounts of its gain and waste.
 *
 * Two lists of texts, each bounded:
 *
 *   reused    Prefixes shared by at least two requests; the later request found the prefix cached,
 *             or would have found it without eviction. Each text has a mean gap between uses, and
 *             is likely to return until the time since its last use clearly exceeds the gap.
 *   computed  Tokens [begin, end) of texts computed in advance and not judged yet. Tokens that a
 *             request hits are gain. Tokens that are no longer cached, or unused for too long, are
 *             waste. Each token counts once.
 *
 * Waste may exceed gain by a slack. Beyond the slack the book orders a pause: a minute at first,
 * then twice as long each time, until a period ends with more gain than waste. After a pause the
 * slack is full again.
 *
 * Pure: the caller supplies the clock and the cache. Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PRECACHE_BOOK_H
#define QUIRE_ENGINE_PRECACHE_BOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/prefix.h"

/* Texts not judged yet; no run begins at this limit. */
#define QUIRE_PRECACHE_COMPUTED_MAX 64u
/* Tokens of all reused texts together: 4 MiB. */
#define QUIRE_PRECACHE_TOKENS_MAX (1u << 20)

typedef struct quire_precache_book quire_precache_book;

typedef struct quire_precache_book_opts {
    uint32_t texts_max;    /* reused texts, >= 1 */
    uint32_t page_tokens;  /* texts end at multiples of it */
    uint64_t judge_us;     /* tokens unused for this time are waste */
    uint32_t slack_tokens; /* tolerated excess of waste over gain */
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

/* Note that a further request began with this text. Tokens beyond full pages are left out. Texts in
 * the book that are prefixes of this text count as used, too. Without memory nothing is noted. */
void quire_precache_book_note(quire_precache_book *book, const quire_precache_text *text,
                              uint64_t now_us);
/* Forget the invalidated texts of a tenant (NULL: all tenants) without judging them. */
void quire_precache_book_forget(quire_precache_book *book, const void *tenant,
                                uint32_t tenant_bytes);

/* Likelihood that a text returns now: mean gap between uses over age, in (0, 1]; 0 when too old. */
double quire_precache_hope(uint64_t gap_us, uint64_t age_us);

/* Visit the reused texts with hope > 0 until visit returns non-zero; returns that value. */
int quire_precache_book_visit(const quire_precache_book *book, uint64_t now_us,
                              int (*visit)(void *ctx, const quire_precache_text *text, double hope),
                              void *ctx);

/* Whether another computed text can be entered. */
bool quire_precache_book_has_room(const quire_precache_book *book);
/* Enter the tokens from begin_token to the text's end as computed in advance. Errors: QUIRE_NOMEM,
 * QUIRE_LIMIT (no room): the tokens are not counted. */
int quire_precache_book_enter(quire_precache_book *book, const quire_precache_text *text,
                              uint32_t begin_token, uint64_t now_us);

/* A request with this prompt used n_hit tokens of the cache. */
void quire_precache_book_hit(quire_precache_book *book, const quire_precache_text *prompt,
                             uint32_t n_hit);

/* Judge texts that are old or no longer cached. n_cached returns the number of cached tokens of a
 * text. */
void quire_precache_book_judge(quire_precache_book *book, uint64_t now_us,
                               uint32_t (*n_cached)(void *ctx, const quire_precache_text *text),
                               void *ctx);

typedef enum quire_precache_verdict {
    QUIRE_PRECACHE_AS_BEFORE,
    QUIRE_PRECACHE_PAUSE, /* a pause begins now */
    QUIRE_PRECACHE_RESUME /* a pause ends now */
} quire_precache_verdict;
quire_precache_verdict quire_precache_book_verdict(quire_precache_book *book, uint64_t now_us);

typedef struct quire_precache_accounts {
    uint64_t gain_tokens_total;
    uint64_t waste_tokens_total;
    uint64_t pauses_total;
    uint64_t pause_us; /* full length of the current pause, or of the last one */
    uint32_t texts;
    uint32_t computed; /* not judged yet */
    bool is_pausing;
} quire_precache_accounts;
void quire_precache_book_accounts(const quire_precache_book *book, quire_precache_accounts *out);

#endif /* QUIRE_ENGINE_PRECACHE_BOOK_H */
