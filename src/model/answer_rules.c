/* answer_rules.c - see answer_rules.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/answer_rules.h"
#include "model/text.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* A copy of a text that may be NULL. Returns false without memory. */
static bool copy_text(char **out, const char *text)
{
    *out = text != NULL ? strdup(text) : NULL;
    return text == NULL || *out != NULL;
}

/* The tokens of a part of an answer. The blank that some tokenizers put before a text is left out
 * where it is a token of its own. */
static int tokens_of(const quire_model *model, const char *text, quire_token_array *out,
                     quire_error *err)
{
    const quire_tokenize_opts opts = { .parse_special = true };
    size_t n = 0;
    char first[8];

    QUIRE_TRY(quire_model_tokenize_all(model, text, strlen(text), &opts, &out->items, &n, err));
    out->n = (uint32_t)n;
    if (n > 0 && text[0] != ' ' &&
        quire_model_token_text(model, out->items[0], true, first, sizeof first) == 1 &&
        first[0] == ' ') {
        out->n--;
        memmove(out->items, out->items + 1, out->n * sizeof *out->items);
    }
    return QUIRE_OK;
}

/* The control tokens among the texts that the format wants to see. A text of several tokens needs
 * nothing: its tokens are text anyway. */
static int add_shown(quire_answer_rules *r, const quire_chat_rules *from, quire_error *err)
{
    const uint32_t n = from->n_shown_tokens;

    if (n > QUIRE_ANSWER_SHOWN_MAX) {
        return quire_error_set(err, QUIRE_LIMIT,
                               "the chat format has %u tokens of its own, at "
                               "most %u are supported",
                               n, QUIRE_ANSWER_SHOWN_MAX);
    }
    r->shown.items = calloc(n + 1, sizeof *r->shown.items);
    QUIRE_FAIL_IF(r->shown.items == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n; i++) {
        quire_token_array one = { NULL, 0 };

        QUIRE_TRY(tokens_of(r->model, from->shown_tokens[i], &one, err));
        if (one.n == 1) {
            r->shown.items[r->shown.n++] = one.items[0];
        }
        free(one.items);
    }
    return QUIRE_OK;
}

static int add_triggers(quire_answer_rules *r, const quire_chat_rules *from)
{
    r->triggers = calloc(from->n_triggers + 1, sizeof *r->triggers);
    QUIRE_FAIL_IF(r->triggers == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < from->n_triggers; i++) {
        char *text;

        if (from->triggers[i].text[0] == '\0') {
            continue;
        }
        text = strdup(from->triggers[i].text);
        QUIRE_FAIL_IF(text == NULL, QUIRE_NOMEM);
        r->triggers[r->n_triggers++] = (quire_chat_trigger){ text, from->triggers[i].is_pattern };
    }
    return QUIRE_OK;
}

static int fill(quire_answer_rules *r, const quire_chat_rules *from, quire_error *err)
{
    if (!copy_text(&r->grammar, from->grammar) ||
        !copy_text(&r->thinking_begin, from->thinking_begin) ||
        !copy_text(&r->thinking_end, from->thinking_end)) {
        return QUIRE_NOMEM;
    }
    QUIRE_TRY(add_shown(r, from, err));
    QUIRE_TRY(add_triggers(r, from));
    if (r->thinking_end != NULL) {
        QUIRE_TRY(tokens_of(r->model, r->thinking_end, &r->end, err));
    }
    if (from->must_begin != NULL) {
        QUIRE_TRY(tokens_of(r->model, from->must_begin, &r->must, err));
    }
    if (r->grammar != NULL && !r->is_lazy) {
        QUIRE_TRY(tokens_of(r->model, from->answer_begin, &r->begun, err));
    }
    return QUIRE_OK;
}

int quire_answer_rules_create(quire_answer_rules **out, const quire_model *model,
                              const quire_chat_rules *rules, int32_t thinking_tokens,
                              quire_error *err)
{
    quire_answer_rules *r = calloc(1, sizeof *r);
    int rc = QUIRE_NOMEM;

    *out = NULL;
    if (r != NULL) {
        atomic_init(&r->n_holders, 1);
        r->model = model;
        r->is_lazy = rules->is_grammar_lazy;
        r->begins_thinking = rules->begins_thinking;
        r->thinking_tokens = thinking_tokens;
        rc = fill(r, rules, err);
    }
    if (rc == QUIRE_NOMEM) {
        (void)quire_error_set(err, rc, "no memory for the rules of an answer");
    }
    if (rc < 0) {
        quire_answer_rules_release(r);
        return rc;
    }
    *out = r;
    return QUIRE_OK;
}

quire_answer_rules *quire_answer_rules_hold(quire_answer_rules *rules)
{
    atomic_fetch_add(&rules->n_holders, 1);
    return rules;
}

void quire_answer_rules_release(quire_answer_rules *r)
{
    if (r == NULL || atomic_fetch_sub(&r->n_holders, 1) != 1) {
        return;
    }
    for (uint32_t i = 0; i < r->n_triggers; i++) {
        /* The pointer is const for readers; the bytes came from strdup(). */
        free((void *)(uintptr_t)r->triggers[i].text);
    }
    free(r->triggers);
    free(r->grammar);
    free(r->shown.items);
    free(r->begun.items);
    free(r->must.items);
    free(r->thinking_begin);
    free(r->thinking_end);
    free(r->end.items);
    free(r);
}

bool quire_answer_rules_shows(const quire_answer_rules *rules, int32_t token)
{
    for (uint32_t i = 0; i < rules->shown.n; i++) {
        if (rules->shown.items[i] == token) {
            return true;
        }
    }
    return false;
}
