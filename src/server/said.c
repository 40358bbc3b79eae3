/* said.c - see said.h.
 *
 * The key of a history is the hash of its parent's key and of the text behind the parent. The key
 * of the root is the hash of the salt. Looking a prompt up hashes each part of its text once for
 * each known history that goes on from there.
 *
 * SPDX-License-Identifier: MIT */
#include "server/said.h"

#include "base/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TAIL_BYTES 256u

typedef unsigned char hash[QUIRE_HASH128_BYTES];

typedef struct entry {
    bool is_used;
    hash parent, key;
    hash prompt; /* of the text between the parent's end and the answer */
    hash tail;   /* of the last TAIL_BYTES of that text: few histories share it, and it is short */
    size_t n;    /* bytes behind the parent's end */
    size_t at, n_written;
    char *text;
    size_t n_text;
    int32_t *tokens; /* NULL when a longer history has them */
    uint32_t n_tokens;
    uint64_t used; /* the larger, the later */
} entry;

struct quire_said {
    pthread_mutex_t mutex;
    size_t bytes_max, bytes;
    uint64_t clock;
    entry entries[QUIRE_SAID_ENTRIES_MAX];
};

int quire_said_create(quire_said **out, size_t bytes_max)
{
    quire_said *said = calloc(1, sizeof *said);

    *out = NULL;
    QUIRE_FAIL_IF(said == NULL, QUIRE_NOMEM);
    (void)pthread_mutex_init(&said->mutex, NULL);
    said->bytes_max = bytes_max;
    *out = said;
    return QUIRE_OK;
}

static void tokens_drop(quire_said *said, entry *e)
{
    said->bytes -= e->n_tokens * sizeof *e->tokens;
    free(e->tokens);
    e->tokens = NULL;
    e->n_tokens = 0;
}

static void entry_drop(quire_said *said, entry *e)
{
    tokens_drop(said, e);
    said->bytes -= e->n_text;
    free(e->text);
    *e = (entry){ 0 };
}

void quire_said_destroy(quire_said *said)
{
    if (said == NULL) {
        return;
    }
    for (uint32_t i = 0; i < QUIRE_SAID_ENTRIES_MAX; i++) {
        entry_drop(said, &said->entries[i]);
    }
    (void)pthread_mutex_destroy(&said->mutex);
    free(said);
}

/* ---- looking up ---- */

/* The hash of the end of a text of n bytes. */
static void tail_of(const char *text, size_t n, hash out)
{
    const size_t n_tail = n < TAIL_BYTES ? n : TAIL_BYTES;

    quire_hash128(text + n - n_tail, n_tail, out);
}

/* Whether the text behind a place goes on with the prompt of an entry. */
static bool has_prompt(const entry *e, const quire_said_place *place, const char *rendered,
                       size_t n)
{
    hash found;

    if (!e->is_used || memcmp(e->parent, place->key, sizeof e->parent) != 0 ||
        e->at >= n - place->n) {
        return false;
    }
    tail_of(rendered + place->n, e->at, found);
    if (memcmp(e->tail, found, sizeof found) != 0) {
        return false;
    }
    quire_hash128(rendered + place->n, e->at, found);
    return memcmp(e->prompt, found, sizeof found) == 0;
}

/* The longest history from a place on with which the text behind the place begins. *other: a
 * history whose prompt the text has, without the answer. */
static entry *child_find(quire_said *said, const quire_said_place *place, const char *rendered,
                         size_t n, const entry **other)
{
    entry *best = NULL;

    *other = NULL;
    for (uint32_t i = 0; i < QUIRE_SAID_ENTRIES_MAX; i++) {
        entry *e = &said->entries[i];
        hash key;

        if (!has_prompt(e, place, rendered, n)) {
            continue;
        }
        *other = e;
        if (e->n <= n - place->n) {
            quire_hash128_parts(place->key, sizeof place->key, rendered + place->n, e->n, key);
            if (memcmp(e->key, key, sizeof key) == 0) {
                best = best == NULL || e->n > best->n ? e : best;
            }
        }
    }
    return best;
}

static int tokens_take(const entry *e, quire_said_prompt *out)
{
    if (e->n_tokens == 0) {
        return QUIRE_OK;
    }
    free(out->tokens);
    out->n_tokens = 0;
    out->tokens = malloc(e->n_tokens * sizeof *e->tokens + 1);
    QUIRE_FAIL_IF(out->tokens == NULL, QUIRE_NOMEM);
    memcpy(out->tokens, e->tokens, e->n_tokens * sizeof *e->tokens);
    out->n_tokens = e->n_tokens;
    return QUIRE_OK;
}

/* Walk down the tree along the text. The lock is held. */
static int walk(quire_said *said, const char *rendered, size_t n, quire_said_prompt *out)
{
    const entry *other = NULL;
    size_t n_taken = 0; /* of the rendered text */

    for (;;) {
        entry *e = child_find(said, &out->place, rendered, n, &other);

        if (e == NULL) {
            break;
        }
        e->used = ++said->clock;
        (void)quire_bytes_add(&out->text, rendered + n_taken, out->place.n + e->at - n_taken);
        (void)quire_bytes_add(&out->text, e->text, e->n_text);
        n_taken = out->place.n + e->at + e->n_written;
        out->place.n += e->n;
        memcpy(out->place.key, e->key, sizeof e->key);
        out->n_answers++;
        QUIRE_TRY(tokens_take(e, out));
    }
    if (other != NULL) {
        out->is_rewritten = true;
        out->rewritten_at = out->place.n + other->at;
    }
    if (out->n_answers > 0) {
        (void)quire_bytes_add(&out->text, rendered + n_taken, n - n_taken);
    }
    return out->text.status;
}

int quire_said_apply(quire_said *said, const void *salt, size_t n_salt, const char *rendered,
                     size_t n, quire_said_prompt *out)
{
    int rc;

    *out = (quire_said_prompt){ 0 };
    quire_hash128(salt, n_salt, out->place.key);
    QUIRE_CHECK(pthread_mutex_lock(&said->mutex) == 0);
    rc = walk(said, rendered, n, out);
    QUIRE_CHECK(pthread_mutex_unlock(&said->mutex) == 0);
    return rc;
}

void quire_said_prompt_fini(quire_said_prompt *prompt)
{
    quire_bytes_fini(&prompt->text);
    free(prompt->tokens);
    *prompt = (quire_said_prompt){ 0 };
}

/* ---- keeping ---- */

/* A free entry; room for so many bytes. */
static entry *make_room(quire_said *said, size_t bytes)
{
    for (;;) {
        entry *unused = NULL;
        entry *oldest = NULL;

        for (uint32_t i = 0; i < QUIRE_SAID_ENTRIES_MAX; i++) {
            entry *e = &said->entries[i];

            if (!e->is_used) {
                unused = e;
            } else if (oldest == NULL || e->used < oldest->used) {
                oldest = e;
            }
        }
        if (unused != NULL && said->bytes + bytes <= said->bytes_max) {
            return unused;
        }
        if (oldest == NULL) {
            return NULL; /* larger than the table */
        }
        entry_drop(said, oldest);
    }
}

static entry *entry_by_key(quire_said *said, const hash key)
{
    for (uint32_t i = 0; i < QUIRE_SAID_ENTRIES_MAX; i++) {
        if (said->entries[i].is_used && memcmp(said->entries[i].key, key, sizeof(hash)) == 0) {
            return &said->entries[i];
        }
    }
    return NULL;
}

static bool entry_fill(entry *e, const quire_said_turn *turn)
{
    const size_t n_tokens = turn->n_tokens * sizeof *turn->tokens;

    e->n = turn->n - turn->parent.n;
    e->at = turn->at - turn->parent.n;
    e->n_written = turn->n_written;
    memcpy(e->parent, turn->parent.key, sizeof e->parent);
    quire_hash128(turn->rendered + turn->parent.n, e->at, e->prompt);
    tail_of(turn->rendered + turn->parent.n, e->at, e->tail);
    e->text = malloc(turn->n_text + 1);
    e->tokens = malloc(n_tokens + 1);
    if (e->text == NULL || e->tokens == NULL) {
        free(e->text);
        free(e->tokens);
        *e = (entry){ 0 };
        return false;
    }
    memcpy(e->text, turn->text, turn->n_text);
    if (n_tokens > 0) {
        memcpy(e->tokens, turn->tokens, n_tokens);
    }
    e->n_text = turn->n_text;
    e->n_tokens = turn->n_tokens;
    return true;
}

static void keep(quire_said *said, const quire_said_turn *turn)
{
    hash key;
    entry *e;

    quire_hash128_parts(turn->parent.key, sizeof turn->parent.key, turn->rendered + turn->parent.n,
                        turn->n - turn->parent.n, key);
    e = entry_by_key(said, key);
    if (e != NULL) {
        entry_drop(said, e); /* the newer answer counts: its tokens are cached */
    }
    e = make_room(said, turn->n_text + turn->n_tokens * sizeof *turn->tokens);
    if (e == NULL || !entry_fill(e, turn)) {
        return;
    }
    e->is_used = true;
    memcpy(e->key, key, sizeof key);
    e->used = ++said->clock;
    said->bytes += e->n_text + e->n_tokens * sizeof *e->tokens;
    e = entry_by_key(said, turn->parent.key);
    if (e != NULL) {
        tokens_drop(said, e);
    }
}

void quire_said_keep(quire_said *said, const quire_said_turn *turn)
{
    QUIRE_CHECK(turn->parent.n <= turn->at && turn->at + turn->n_written <= turn->n);
    QUIRE_CHECK(pthread_mutex_lock(&said->mutex) == 0);
    keep(said, turn);
    QUIRE_CHECK(pthread_mutex_unlock(&said->mutex) == 0);
}
