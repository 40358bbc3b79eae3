/* text_out.c - see text_out.h.
 *
 * `held` is text that may be the beginning of a stop text. After each token it is shorter than the
 * longest stop text.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/text_out.h"
#include "model/text.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES 256 /* initial room for a token's text; grows for longer ones */

typedef struct stop {
    char *text;
    size_t n;
} stop;

struct quire_text_out {
    const quire_model *model;
    bool shows_special;
    const int32_t *shown; /* [n_shown] control tokens whose text is included anyway */
    uint32_t n_shown;
    stop *stops;
    uint32_t n_stops;
    quire_utf8_stream utf8;
    char *piece; /* a token's bytes */
    size_t piece_bytes;
    char *clean; /* the same as whole UTF-8: 3 * (piece_bytes + 3) */
    quire_bytes held;
};

/* Make room for a token's text of n bytes. */
static int piece_reserve(quire_text_out *out, size_t n)
{
    char *piece = realloc(out->piece, n);
    char *clean;

    QUIRE_FAIL_IF(piece == NULL, QUIRE_NOMEM);
    out->piece = piece;
    clean = realloc(out->clean, 3 * (n + 3));
    QUIRE_FAIL_IF(clean == NULL, QUIRE_NOMEM);
    out->clean = clean;
    out->piece_bytes = n;
    return QUIRE_OK;
}

static int stops_copy(quire_text_out *out, const char *const *stops, uint32_t n_stops)
{
    out->stops = calloc(n_stops > 0 ? n_stops : 1, sizeof(*out->stops));
    QUIRE_FAIL_IF(out->stops == NULL, QUIRE_NOMEM);
    for (; out->n_stops < n_stops; out->n_stops++) {
        stop *s = &out->stops[out->n_stops];

        s->n = strlen(stops[out->n_stops]);
        QUIRE_CHECK(s->n > 0);
        s->text = malloc(s->n);
        QUIRE_FAIL_IF(s->text == NULL, QUIRE_NOMEM);
        memcpy(s->text, stops[out->n_stops], s->n);
    }
    return QUIRE_OK;
}

int quire_text_out_create(quire_text_out **result, const quire_model *model,
                          const char *const *stops, uint32_t n_stops, bool shows_special)
{
    quire_text_out *out = calloc(1, sizeof(*out));
    int rc = QUIRE_NOMEM;

    *result = NULL;
    QUIRE_FAIL_IF(out == NULL, QUIRE_NOMEM);
    out->model = model;
    out->shows_special = shows_special;
    rc = piece_reserve(out, PIECE_BYTES);
    if (rc == QUIRE_OK) {
        rc = stops_copy(out, stops, n_stops);
    }
    if (rc < 0) {
        quire_text_out_destroy(out);
        return rc;
    }
    *result = out;
    return QUIRE_OK;
}

void quire_text_out_destroy(quire_text_out *out)
{
    if (out == NULL) {
        return;
    }
    for (uint32_t i = 0; i < out->n_stops; i++) {
        free(out->stops[i].text);
    }
    free(out->stops);
    free(out->piece);
    free(out->clean);
    quire_bytes_fini(&out->held);
    free(out);
}

void quire_text_out_show(quire_text_out *out, const int32_t *tokens, uint32_t n)
{
    out->shown = tokens;
    out->n_shown = n;
}

static bool is_shown(const quire_text_out *out, int32_t token)
{
    for (uint32_t i = 0; i < out->n_shown; i++) {
        if (out->shown[i] == token) {
            return true;
        }
    }
    return out->shows_special;
}

/* Append a token's text to the held text. */
static int token_add(quire_text_out *out, int32_t token)
{
    size_t n_clean;
    int64_t n;

    for (;;) {
        n = quire_model_token_text(out->model, token, is_shown(out, token), out->piece,
                                   out->piece_bytes);
        if (n < 0) {
            return (int)n;
        }
        if ((size_t)n <= out->piece_bytes) {
            break;
        }
        QUIRE_TRY(piece_reserve(out, (size_t)n));
    }
    n_clean = quire_utf8_stream_feed(&out->utf8, out->piece, (size_t)n, out->clean);
    return quire_bytes_add(&out->held, out->clean, n_clean);
}

/* The longest stop text that is complete in held[at ..); -1 if none. */
static int32_t stop_at(const quire_text_out *out, size_t at)
{
    const size_t n_left = out->held.n - at;
    int32_t found = -1;

    for (uint32_t i = 0; i < out->n_stops; i++) {
        const stop *s = &out->stops[i];

        if (s->n <= n_left && memcmp(out->held.data + at, s->text, s->n) == 0 &&
            (found < 0 || s->n > out->stops[found].n)) {
            found = (int32_t)i;
        }
    }
    return found;
}

/* Whether held[at ..) is the beginning of a stop text. */
static bool may_become_stop(const quire_text_out *out, size_t at)
{
    const size_t n_left = out->held.n - at;

    for (uint32_t i = 0; i < out->n_stops; i++) {
        const stop *s = &out->stops[i];

        if (n_left < s->n && memcmp(out->held.data + at, s->text, n_left) == 0) {
            return true;
        }
    }
    return false;
}

/* Show the first n bytes of the held text. */
static int show(quire_text_out *out, size_t n, quire_bytes *shown)
{
    if (n == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_bytes_add(shown, out->held.data, n));
    memmove(out->held.data, out->held.data + n, out->held.n - n);
    out->held.n -= n;
    return QUIRE_OK;
}

int quire_text_out_feed(quire_text_out *out, int32_t token, quire_bytes *shown, int32_t *stop_index)
{
    size_t n_shown;

    *stop_index = -1;
    QUIRE_TRY(token_add(out, token));
    for (size_t at = 0; at < out->held.n; at++) {
        *stop_index = stop_at(out, at);
        if (*stop_index >= 0) {
            QUIRE_TRY(show(out, at, shown));
            quire_bytes_clear(&out->held);
            out->utf8 = (quire_utf8_stream){ 0 };
            return QUIRE_OK;
        }
    }
    for (n_shown = 0; n_shown < out->held.n && !may_become_stop(out, n_shown); n_shown++) {
    }
    return show(out, n_shown, shown);
}

int quire_text_out_finish(quire_text_out *out, quire_bytes *shown)
{
    char rest[16];
    const size_t n = quire_utf8_stream_flush(&out->utf8, rest);

    QUIRE_TRY(quire_bytes_add(&out->held, rest, n));
    return show(out, out->held.n, shown);
}
