/* answer_rules.h - rules of a chat format in tokens, for a sampler and for the text of an answer.
 *
 * Thread: any; the rules do not change.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_ANSWER_RULES_H
#define QUIRE_MODEL_ANSWER_RULES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "model/chat_format.h"
#include "model/model.h"
#include "quire/error.h"

/* Control tokens that a format shows as text; formats have below ten. */
#define QUIRE_ANSWER_SHOWN_MAX 64u

typedef struct quire_token_array {
    int32_t *items;
    uint32_t n;
} quire_token_array;

typedef struct quire_answer_rules {
    atomic_uint n_holders;
    const quire_model *model;
    char *grammar;           /* NULL = none */
    bool is_lazy;            /* the grammar begins at a trigger */
    quire_token_array shown; /* control tokens that are text of the answer */
    quire_token_array
        begun;              /* the end of the prompt: the grammar begins there, unless it is lazy */
    quire_token_array must; /* tokens of a trigger that has to come; n = 0: none has */
    /* thoughts */
    char *thinking_begin, *thinking_end; /* NULL = the format has none */
    quire_token_array end;               /* the tokens of thinking_end */
    bool begins_thinking;                /* the prompt ends inside of thoughts */
    int32_t thinking_tokens;             /* budget; -1 = none */
    /* triggers */
    quire_chat_trigger *triggers; /* [n_triggers] */
    uint32_t n_triggers;
} quire_answer_rules;

/* thinking_tokens: the most tokens of thoughts, -1 = any number. Memory: release it. Errors:
 * QUIRE_NOMEM, QUIRE_LIMIT; err says which. */
int quire_answer_rules_create(quire_answer_rules **out, const quire_model *model,
                              const quire_chat_rules *rules, int32_t thinking_tokens,
                              quire_error *err);
quire_answer_rules *quire_answer_rules_hold(quire_answer_rules *rules);
void quire_answer_rules_release(quire_answer_rules *rules);

/* Whether a control token counts as text. */
bool quire_answer_rules_shows(const quire_answer_rules *rules, int32_t token);

#endif /* QUIRE_MODEL_ANSWER_RULES_H */
