/* overflow_choice.h - --context-overflow of quire run and quire chat, and its place beside
 * --retain.
 *
 * Either a text keeps a share of its tokens from its beginning (--retain), or it is whole until its
 * context is full and then overflows; with `condense` by the policy of --retain.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OVERFLOW_CHOICE_H
#define QUIRE_CLI_OVERFLOW_CHOICE_H

#include "cli/commands/writer.h"
#include "cli/settings/args.h"

typedef struct quire_overflow_choice {
    int how;            /* quire_context_overflow, or of a chat QUIRE_OVERFLOW_TURNS */
    int64_t keep;       /* first tokens */
    bool is_keep_given; /* by an option of a chat */
    const char *retain; /* of condense, once it is taken; NULL = the default policy */
} quire_overflow_choice;

/* Behind the values of quire_context_overflow: the oldest turns leave the prompt. */
#define QUIRE_OVERFLOW_TURNS ((int)QUIRE_CONTEXT_CONDENSE + 1)

/* The values of --context-overflow in the order of quire_context_overflow, and NULL; of a chat,
 * with truncate_turns. */
extern const char *const quire_overflow_words[];
extern const char *const quire_overflow_chat_words[];

/* The combinations of options that work; common is checked. Errors: QUIRE_INVAL, those of
 * quire_context_condense_policy_check(). */
int quire_overflow_choice_check(const quire_overflow_choice *choice,
                                const quire_common_args *common, quire_error *err);

/* With condense: give it the policy of --retain, which the runtime then does without. Before the
 * session is opened. */
void quire_overflow_choice_take(quire_overflow_choice *choice, quire_common_args *common);

/* Errors: those of quire_writer_overflow_set(). */
int quire_overflow_choice_apply(const quire_overflow_choice *choice, quire_writer *writer,
                                quire_error *err);

#endif /* QUIRE_CLI_OVERFLOW_CHOICE_H */
