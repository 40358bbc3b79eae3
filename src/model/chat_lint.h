/* chat_lint.h - the effect of a chat template on cached prefixes.
 *
 * A conversation grows by turns. Where the prompt of the next turn begins with the prompt of the
 * turn before, all of it is cached. A template can break that: it drops thoughts of earlier
 * answers, writes calls otherwise than the model does, puts tools or a date at the beginning. The
 * lint renders pairs of prompts that follow each other in conversations and compares them.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CHAT_LINT_H
#define QUIRE_MODEL_CHAT_LINT_H

#include "model/chat_format.h"

#define QUIRE_CHAT_LINT_CASES  9u
#define QUIRE_CHAT_LINT_PLACE  48u /* bytes of text shown where two prompts part */
#define QUIRE_CHAT_LINT_REASON QUIRE_ERROR_MESSAGE_MAX

typedef enum quire_chat_lint_verdict {
    QUIRE_CHAT_LINT_KEEPS,   /* the next prompt begins with the one before */
    QUIRE_CHAT_LINT_BREAKS,  /* it parts from it earlier */
    QUIRE_CHAT_LINT_REFUSED, /* the template refuses the conversation */
    QUIRE_CHAT_LINT_NONE     /* the template has no such thing */
} quire_chat_lint_verdict;

typedef struct quire_chat_lint_case {
    const char *name; /* of the turn */
    const char *what; /* that happens between the two prompts */
    quire_chat_lint_verdict verdict;
    size_t n_before;                        /* bytes of the prompt before that should stay */
    size_t n_same;                          /* of those that stay */
    char before[QUIRE_CHAT_LINT_PLACE + 1]; /* the texts at the place where they part */
    char after[QUIRE_CHAT_LINT_PLACE + 1];
    char reason[QUIRE_CHAT_LINT_REASON]; /* of a refusal */
} quire_chat_lint_case;

/* Fill cases [QUIRE_CHAT_LINT_CASES]. Errors: QUIRE_NOMEM, QUIRE_LIMIT. */
int quire_chat_lint(const quire_chat_format *format, quire_chat_lint_case *cases, quire_error *err);

/* Whether the template writes the date, so that prompts change from day to day. */
bool quire_chat_lint_has_date(const quire_chat_format *format);

#endif /* QUIRE_MODEL_CHAT_LINT_H */
