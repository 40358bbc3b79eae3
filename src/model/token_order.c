/* token_order.c - see token_order.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/token_order.h"

#include "base/bytes.h"
#include "base/check.h"
#include "model/grammar_match.h"

#include <stdlib.h>
#include <string.h>

#include <llama.h>

/* A token that is being sorted. Most texts differ in their first bytes. */
typedef struct ranked {
    uint64_t first; /* bytes of the text, the first one highest */
    const char *text;
    uint32_t n;
    int32_t token;
} ranked;

static uint64_t first_bytes(const char *text, uint32_t n)
{
    uint64_t first = 0;

    for (uint32_t i = 0; i < 8; i++) {
        first = first << 8 | (i < n ? (unsigned char)text[i] : 0);
    }
    return first;
}

static int compare(const void *a, const void *b)
{
    const ranked *left = a;
    const ranked *right = b;
    const uint32_t n = left->n < right->n ? left->n : right->n;
    int order;

    if (left->first != right->first) {
        return left->first < right->first ? -1 : 1;
    }
    order = memcmp(left->text, right->text, n);
    if (order == 0) {
        order = (left->n > right->n) - (left->n < right->n);
    }
    return order != 0 ? order : (left->token > right->token) - (left->token < right->token);
}

/* Collect the tokens with text, and the text of all of them one after the other. Returns their
 * number. */
static uint32_t tokens_list(const struct llama_vocab *vocab, quire_token_order *o, ranked *list,
                            quire_bytes *texts)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < o->n_vocab; i++) {
        const int32_t token = (int32_t)i;
        char piece[QUIRE_GRAMMAR_TEXT_MAX];
        int32_t n_piece;

        o->ranks[i] = QUIRE_TOKEN_UNRANKED;
        if (llama_vocab_is_eog(vocab, token)) {
            o->ranks[i] = QUIRE_TOKEN_ENDS;
            continue;
        }
        n_piece = llama_token_to_piece(vocab, token, piece, sizeof piece, 0, false);
        if (n_piece > 0 && quire_bytes_add(texts, piece, (size_t)n_piece) == QUIRE_OK) {
            list[n++] = (ranked){ .n = (uint32_t)n_piece, .token = token };
        }
    }
    return n;
}

/* Fill the order from the sorted list. */
static void order_fill(quire_token_order *o, const ranked *list)
{
    size_t end = 0;

    for (uint32_t i = 0; i < o->n; i++) {
        const ranked *t = &list[i];

        o->ranks[t->token] = i;
        o->tokens[i] = t->token;
        o->begins[i] = end;
        o->shared[i] =
            (uint16_t)(i > 0 ? quire_bytes_same(list[i - 1].text, list[i - 1].n, t->text, t->n)
                             : 0);
        memcpy(o->texts + end, t->text, t->n);
        end += t->n;
    }
    o->begins[o->n] = end;
}

static int order_make(quire_token_order *o, const struct llama_vocab *vocab)
{
    ranked *list = calloc(o->n_vocab, sizeof *list);
    quire_bytes texts = { 0 };
    int rc = QUIRE_NOMEM;

    o->ranks = malloc(o->n_vocab * sizeof *o->ranks);
    if (list != NULL && o->ranks != NULL) {
        size_t at = 0;

        o->n = tokens_list(vocab, o, list, &texts);
        for (uint32_t i = 0; i < o->n; i++) { /* the bytes do not move any more */
            list[i].text = texts.data + at;
            list[i].first = first_bytes(list[i].text, list[i].n);
            at += list[i].n;
        }
        qsort(list, o->n, sizeof *list, compare);
        o->tokens = malloc((o->n + 1) * sizeof *o->tokens);
        o->shared = malloc((o->n + 1) * sizeof *o->shared);
        o->begins = malloc((o->n + 1) * sizeof *o->begins);
        o->texts = malloc(texts.n + 1);
        if (texts.status == QUIRE_OK && o->tokens != NULL && o->shared != NULL &&
            o->begins != NULL && o->texts != NULL) {
            order_fill(o, list);
            rc = QUIRE_OK;
        }
    }
    quire_bytes_fini(&texts);
    free(list);
    return rc;
}

int quire_token_order_create(quire_token_order **out, const struct llama_vocab *vocab)
{
    quire_token_order *o = calloc(1, sizeof *o);
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(o == NULL, QUIRE_NOMEM);
    o->n_vocab = (uint32_t)llama_vocab_n_tokens(vocab);
    rc = order_make(o, vocab);
    if (rc < 0) {
        quire_token_order_destroy(o);
        return rc;
    }
    *out = o;
    return QUIRE_OK;
}

void quire_token_order_destroy(quire_token_order *o)
{
    if (o == NULL) {
        return;
    }
    free(o->ranks);
    free(o->tokens);
    free(o->shared);
    free(o->begins);
    free(o->texts);
    free(o);
}
