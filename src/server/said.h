/* said.h - a model's own answers, in place of the template's rendering of them.
 *
 * A chat client sends the whole history with each request, and the template writes it anew. For an
 * answer it may write other text than the model did: the arguments of a call with other blanks, a
 * line feed more behind thoughts. From there on nothing of the cached prompt fits. This table
 * keeps the text of each answer of this server as the model wrote it, and the tokens of the history
 * up to the answer's end. When a later prompt begins with a rendering of such a history, the
 * model's own text replaces the template's.
 *
 * The table changes no prompt in which the template writes something else than it wrote at the end
 * of the answer, such as a history without earlier thoughts: a rendering must be equal byte by byte
 * (by a hash of 128 bits) up to the end of the answer. Histories form a tree: each has a parent,
 * the longest history known before it.
 *
 * Bounds: QUIRE_SAID_ENTRIES_MAX histories, bytes_max of memory; the one used longest ago goes
 * first. Histories of one salt (tenant, cache_salt) are never found by another.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_SAID_H
#define QUIRE_SERVER_SAID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/hash128.h"

#define QUIRE_SAID_ENTRIES_MAX 1024u
#define QUIRE_SAID_BYTES_MAX   ((size_t)64 << 20)

typedef struct quire_said quire_said;

int quire_said_create(quire_said **out, size_t bytes_max);
void quire_said_destroy(quire_said *said);

/* A place in the tree of histories. */
typedef struct quire_said_place {
    unsigned char key[QUIRE_HASH128_BYTES];
    size_t n; /* bytes of rendered text up to here */
} quire_said_place;

/* A prompt with the model's own answers in it. */
typedef struct quire_said_prompt {
    quire_said_place place; /* the longest known history that the prompt begins with */
    quire_bytes text;       /* empty: the rendered text holds as it is */
    int32_t *tokens;        /* [n_tokens] computed for the longest known history; free() */
    uint32_t n_tokens;
    uint32_t n_answers;  /* known ones in the history */
    bool is_rewritten;   /* a known history goes on, but the template writes its answer otherwise */
    size_t rewritten_at; /* bytes of the rendered text before that answer */
} quire_said_prompt;

/* Errors: QUIRE_NOMEM. Memory: quire_said_prompt_fini(), also after an error. */
int quire_said_apply(quire_said *said, const void *salt, size_t n_salt, const char *rendered,
                     size_t n, quire_said_prompt *out);
void quire_said_prompt_fini(quire_said_prompt *prompt);

/* A history that ends with an answer. */
typedef struct quire_said_turn {
    quire_said_place parent; /* of the prompt of the answer */
    const char *rendered;    /* [n] the history as the template writes it, answer included */
    size_t n;
    size_t at;        /* the answer's place in it */
    size_t n_written; /* and its length there, without the end that the template writes */
    const char *text; /* [n_text] the model's own text in its place */
    size_t n_text;
    const int32_t *tokens; /* [n_tokens] of the prompt and the answer, copied */
    uint32_t n_tokens;
} quire_said_turn;

/* Keep a history, whose parent then keeps no tokens of its own. A history for which there is no
 * memory is forgotten. */
void quire_said_keep(quire_said *said, const quire_said_turn *turn);

#endif /* QUIRE_SERVER_SAID_H */
