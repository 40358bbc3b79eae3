/* kept_tokens.c - see kept_tokens.h.
 *
 * Both lists of tokens are walked along the text. After a special token a blank may belong to the
 * text or may be added by the tokenizer; until later tokens decide, a walk keeps two positions.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/kept_tokens.h"
#include "model/text.h"

#include "base/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PLACES 2

/* Positions of a walk after some tokens. */
typedef struct stand {
    size_t at[PLACES]; /* bytes of text passed; the likelier position first */
    uint32_t n;        /* 0: the tokens do not match the text */
    bool is_fresh;     /* at the beginning or after a special token: a blank may be added */
    bool may_skip;     /* after a special token that swallows white space */
} stand;

typedef struct walk {
    const quire_model *model;
    const char *text;
    size_t text_bytes;
    bool adds_blank;
    char *piece; /* a token's text */
    size_t piece_bytes;
} walk;

static int64_t piece_get(walk *w, int32_t token)
{
    for (;;) {
        const int64_t n = quire_model_token_text(w->model, token, true, w->piece, w->piece_bytes);
        char *piece;

        if (n <= (int64_t)w->piece_bytes) {
            return n;
        }
        piece = realloc(w->piece, (size_t)n);
        QUIRE_FAIL_IF(piece == NULL, QUIRE_NOMEM);
        w->piece = piece;
        w->piece_bytes = (size_t)n;
    }
}

static void place_add(stand *s, size_t at)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->at[i] == at) {
            return;
        }
    }
    if (s->n < PLACES) {
        s->at[s->n++] = at;
    }
}

/* Advance from `at` by a piece, if the text continues with it. */
static void place_try(const walk *w, stand *s, size_t at, const char *piece, size_t n)
{
    if (n <= w->text_bytes - at && (n == 0 || memcmp(w->text + at, piece, n) == 0)) {
        place_add(s, at + n);
    }
}

static size_t skip_white(const walk *w, size_t at)
{
    while (at < w->text_bytes && strchr(" \t\r\n\v\f", w->text[at]) != NULL &&
           w->text[at] != '\0') {
        at++;
    }
    return at;
}

/* Advance a stand by one token. */
static int walk_on(walk *w, const stand *from, int32_t token, stand *to)
{
    const bool is_special = quire_model_is_special(w->model, token);
    const int64_t got = piece_get(w, token);
    size_t n, n_added;
    bool may_skip;

    *to = (stand){ .is_fresh = is_special, .may_skip = quire_model_strips_behind(w->model, token) };
    if (got < 0) {
        return got == QUIRE_NOMEM ? QUIRE_NOMEM : QUIRE_OK; /* unknown token: no match */
    }
    n = (size_t)got;
    n_added = w->adds_blank && from->is_fresh && !is_special && n > 0 && w->piece[0] == ' ';
    for (uint32_t i = 0; i < from->n; i++) {
        if (n_added > 0) {
            place_try(w, to, from->at[i], w->piece + 1, n - 1);
        }
        place_try(w, to, from->at[i], w->piece, n);
    }
    may_skip = from->may_skip || quire_model_strips_before(w->model, token);
    /* A token of the added blank alone says nothing of the white space behind it. */
    to->may_skip |= from->may_skip && n == n_added;
    for (uint32_t i = 0; i < from->n && to->n == 0 && may_skip; i++) {
        place_try(w, to, skip_white(w, from->at[i]), w->piece + n_added, n - n_added);
    }
    return QUIRE_OK;
}

/* stands: [n + 1], the first one is given. Returns the number of leading tokens that match the
 * text.
 */
static int64_t walk_all(walk *w, const int32_t *tokens, uint32_t n, bool has_bos, stand *stands)
{
    uint32_t i = 0;

    if (has_bos && n > 0 && tokens[0] == quire_model_bos(w->model) &&
        quire_model_adds_bos(w->model)) {
        stands[++i] = stands[0];
    }
    for (; i < n; i++) {
        QUIRE_TRY(walk_on(w, &stands[i], tokens[i], &stands[i + 1]));
        if (stands[i + 1].n == 0) {
            break;
        }
    }
    return i;
}

/* Find the last common position: after *n_kept kept tokens and *n_whole tokens of the whole text,
 * behind the n_same equal tokens at the beginning if possible. */
static void find_meeting(const stand *kept, const stand *whole, uint32_t n_same, uint32_t *n_kept,
                         uint32_t *n_whole)
{
    uint32_t j = *n_whole;

    for (uint32_t i = *n_kept; i > n_same; i--) {
        while (j > n_same && whole[j].at[0] > kept[i].at[0]) {
            j--;
        }
        /* Of two positions take the first: blanks alone cannot rule out an added blank. */
        for (uint32_t k = j; k > n_same && whole[k].at[0] >= kept[i].at[0]; k--) {
            if (whole[k].at[0] == kept[i].at[0] && whole[k].is_fresh == kept[i].is_fresh) {
                *n_kept = i;
                *n_whole = k;
                return;
            }
        }
    }
    *n_kept = *n_whole = n_same;
}

/* Tokens of the text from a place on, see quire_model_tokenize_end(). */
static int tokenize(const walk *w, const quire_kept_tokens *kept, size_t from,
                    const quire_tokenize_opts *opts, quire_tokenized *out, quire_error *err)
{
    const quire_text_from text = { w->text, w->text_bytes, from };
    quire_tokenize_opts all = *opts;

    all.add_special = true;
    all.parse_special = true;
    /* The kept tokens may replace more tokens of the tokenizer. */
    all.tokens_max += all.tokens_max > 0 ? kept->n : 0;
    QUIRE_TRY(quire_model_tokenize_end(w->model, &text, &all, out, err));
    if (out->n > UINT32_MAX - kept->n) {
        const size_t n = out->n;

        free(out->tokens);
        *out = (quire_tokenized){ 0 };
        return quire_error_set(err, QUIRE_LIMIT, "the text has %zu tokens", n);
    }
    return QUIRE_OK;
}

/* Whether the tokenizer adds a blank before a text. */
static bool adds_blank(const quire_model *model)
{
    int32_t tokens[4];
    char piece[8] = { 0 };

    return quire_model_tokenize(model, "a", 1, false, false, tokens, 4) > 0 &&
           quire_model_token_text(model, tokens[0], false, piece, sizeof(piece)) > 0 &&
           piece[0] == ' ';
}

/* The number of kept tokens up to the special token that the end of the text begins with; 0 = the
 * kept tokens have no such token there. */
static uint32_t find_begin(walk *w, const quire_kept_tokens *kept, const stand *stands,
                           int64_t n_kept, const quire_tokenized *end)
{
    const int64_t n_piece = end->n > 0 ? piece_get(w, end->tokens[0]) : -1;
    const size_t behind = end->begin + (size_t)n_piece;

    for (int64_t i = n_kept; n_piece > 0 && i > 0 && stands[i].at[0] >= behind; i--) {
        if (stands[i].n == 1 && stands[i].at[0] == behind &&
            kept->tokens[i - 1] == end->tokens[0]) {
            return (uint32_t)i;
        }
    }
    return 0;
}

/* Join the kept tokens, whose stands are given, and the tokens of the text behind the first
 * n_common kept ones. */
static int join(walk *w, const quire_kept_tokens *kept, const stand *stands, uint32_t n_walked,
                uint32_t n_common, const int32_t *tokens, uint32_t n, quire_joined_tokens *out)
{
    const int32_t *own = kept->tokens + n_common;
    stand *whole = malloc(((size_t)n + 1) * sizeof(*whole));
    uint32_t i = n_walked - n_common;
    uint32_t n_same = 0;
    uint32_t j;
    int64_t n_whole;

    QUIRE_FAIL_IF(whole == NULL, QUIRE_NOMEM);
    while (n_same < kept->n - n_common && n_same < n && own[n_same] == tokens[n_same]) {
        n_same++;
    }
    if (n_same == kept->n - n_common || n_same == n) {
        i = j = n_same;
    } else {
        whole[0] = stands[n_common];
        n_whole = walk_all(w, tokens, n, n_common == 0, whole);
        if (n_whole < 0) {
            free(whole);
            return (int)n_whole;
        }
        j = (uint32_t)n_whole;
        find_meeting(stands + n_common, whole, n_same, &i, &j);
    }
    free(whole);
    out->n_kept = n_common + i;
    out->n = out->n_kept + n - j;
    out->tokens = malloc((size_t)out->n * sizeof(*out->tokens) + 1);
    QUIRE_FAIL_IF(out->tokens == NULL, QUIRE_NOMEM);
    memcpy(out->tokens, kept->tokens, out->n_kept * sizeof(*tokens));
    memcpy(out->tokens + out->n_kept, tokens + j, (n - j) * sizeof(*tokens));
    return QUIRE_OK;
}

/* The text before the last special token among the kept ones needs no tokenizing: the tokens behind
 * a special token do not depend on the text before. */
static int join_all(walk *w, const quire_kept_tokens *kept, const quire_tokenize_opts *opts,
                    quire_joined_tokens *out, quire_error *err)
{
    stand *stands = malloc(((size_t)kept->n + 2) * sizeof(*stands));
    quire_tokenized end = { 0 };
    uint32_t n_common = 0;
    int64_t n_kept;
    int rc = QUIRE_NOMEM;

    if (stands == NULL) {
        return quire_error_set(err, rc, "no memory for %u tokens", kept->n);
    }
    stands[0] = (stand){ .n = 1, .is_fresh = true };
    n_kept = walk_all(w, kept->tokens, kept->n, true, stands);
    if (n_kept >= 0) {
        const size_t known = stands[n_kept].at[0];

        rc = tokenize(w, kept, known > 0 ? known - 1 : 0, opts, &end, err);
    }
    if (rc == QUIRE_OK && end.begin > 0) {
        n_common = find_begin(w, kept, stands, n_kept, &end);
        if (n_common == 0) {
            free(end.tokens);
            rc = tokenize(w, kept, 0, opts, &end, err);
        }
    }
    if (rc == QUIRE_OK) {
        const uint32_t skipped = n_common > 0; /* the special token itself */

        rc = join(w, kept, stands, (uint32_t)n_kept, n_common, end.tokens + skipped,
                  (uint32_t)end.n - skipped, out);
    }
    if (rc == QUIRE_NOMEM) {
        rc = quire_error_set(err, rc, "no memory for %u tokens", kept->n);
    }
    free(end.tokens);
    free(stands);
    return rc;
}

int quire_kept_tokens_join(const quire_model *model, const quire_kept_tokens *kept,
                           const char *text, size_t text_bytes, const quire_tokenize_opts *opts,
                           quire_joined_tokens *out, quire_error *err)
{
    walk w = { .model = model, .text = text, .text_bytes = text_bytes };
    quire_tokenized all;
    int rc;

    *out = (quire_joined_tokens){ 0 };
    if (kept->n == 0) {
        QUIRE_TRY(tokenize(&w, kept, 0, opts, &all, err));
        *out = (quire_joined_tokens){ .tokens = all.tokens, .n = (uint32_t)all.n };
        return QUIRE_OK;
    }
    w.adds_blank = adds_blank(model);
    rc = join_all(&w, kept, opts, out, err);
    free(w.piece);
    return rc;
}
