/* chat_history.h - a made-up conversation of an agent: tools, calls, results, answers.
 *
 * The sizes follow published traces of coding agents: many short turns, results of a few kilobytes.
 * The same options give the same bytes.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_CHAT_HISTORY_H
#define QUIRE_BENCH_CHAT_HISTORY_H

#include "model/chat_format.h"

typedef struct chat_history {
    quire_chat_message *messages; /* [n]: system, user, then turns of call, result; last an answer
                                     and a question */
    size_t n;
    char *tools;    /* JSON array */
    size_t n_bytes; /* of all contents, calls and tools */
    char **texts;   /* [n_texts] memory of the messages */
    size_t n_texts;
} chat_history;

/* n_turns calls, of n_bytes of text in all, about. has_tools: with tools and calls; otherwise
 * questions and answers. Memory: chat_history_fini(). Errors: QUIRE_NOMEM. */
int chat_history_make(chat_history *out, size_t n_turns, size_t n_bytes, bool has_tools);
void chat_history_fini(chat_history *history);

#endif /* QUIRE_BENCH_CHAT_HISTORY_H */
