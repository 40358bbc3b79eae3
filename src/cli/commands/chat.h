/* chat.h - the conversation of quire chat: messages, prompts, answers; for cmd_chat.c and chat*.c.
 *
 * Each turn renders the whole conversation with the chat template and tokenizes it; the writer
 * computes only tokens that its sequence does not hold yet. With --retain the conversation keeps a
 * share of its tokens; a turn that changes its condensed part is computed from the beginning. A
 * turn that does not fit into the context is refused and leaves the conversation unchanged, unless
 * --context-overflow says which tokens leave; the messages all stay. With truncate_turns the prompt
 * is made without the oldest turns.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CHAT_H
#define QUIRE_CLI_CHAT_H

#include <jansson.h>

#include "cli/commands/opened.h"
#include "cli/commands/overflow_choice.h"
#include "cli/commands/writer.h"
#include "cli/settings/args.h"
#include "model/answer_rules.h"
#include "model/chat_format.h"

typedef struct quire_chat_args {
    quire_common_args common;
    quire_sampling_args sampling;
    const char *system;
    const char *chat_template;
    const char *chat_template_file;
    const char *reasoning_effort;
    quire_overflow_choice overflow;
} quire_chat_args;

typedef struct quire_chat {
    const quire_chat_args *args;
    quire_opened session;
    quire_chat_format *format;
    quire_answer_rules *rules; /* of the last prompt; NULL = none */
    quire_writer *writer;
    quire_kv_disk *disk; /* NULL = none */
    char *template_text; /* of --chat-template-file; NULL = none */
    char *system;        /* NULL = none */
    quire_chat_switch thinking;
    quire_chat_message *messages; /* [n_messages]; contents and extras are ours */
    size_t n_messages;
    size_t cap_messages;
    size_t n_left_out; /* messages before this one, but for the system's, are in no prompt */
    json_t *turns;     /* with --json; NULL = text on stdout */
    bool is_terminal;  /* lines come from one */
    bool has_failed;
    bool is_over;
} quire_chat;

/* ---- chat_turn.c ---- */

/* Load the template. Errors: err. */
int quire_chat_format_open(quire_chat *c, quire_error *err);
/* An empty conversation, with its system message. Errors: QUIRE_NOMEM. */
int quire_chat_begin(quire_chat *c);
/* Forget messages behind the first n_kept. */
void quire_chat_drop(quire_chat *c, size_t n_kept);
/* The number of messages before the last turn of the user; all of them when there is none. */
size_t quire_chat_last_turn(const quire_chat *c);
/* Answer a message. On failure the conversation is unchanged. */
int quire_chat_answer_to(quire_chat *c, const char *text, quire_error *err);
/* Answer the message of the last turn again, which is there. On failure the turn stays. */
int quire_chat_answer_again(quire_chat *c, quire_error *err);
/* Say why there is no answer. A user at a terminal can retry, but not on a lost device; a script
 * must learn of the failure. */
void quire_chat_say_failure(quire_chat *c, const quire_error *err);
void quire_chat_fini(quire_chat *c);

/* ---- chat_commands.c ---- */

/* Execute a command: a line that begins with '/'. An unknown one is refused. Returns false if the
 * line is not a command. */
bool quire_chat_obey(quire_chat *c, const char *line);
/* Model, context, KV, and how to get help. */
void quire_chat_banner(const quire_chat *c);

#endif /* QUIRE_CLI_CHAT_H */
