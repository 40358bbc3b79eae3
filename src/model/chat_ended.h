/* chat_ended.h - a conversation and the answer to it, as a template writes both.
 *
 * A template writes a whole history for each call. After an answer the history is known but for
 * its end, so a short conversation is rendered instead: the instructions, the last question, the
 * last answer and the messages behind, without tools. The text of this conversation takes the place
 * of the history's end if the template writes the same bytes in both from the last answer on.
 * Otherwise the whole history is rendered. tests/model/test_chat_ended.c compares both for all
 * templates of llama.cpp's tree.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CHAT_ENDED_H
#define QUIRE_MODEL_CHAT_ENDED_H

#include "base/bytes.h"
#include "model/chat_format.h"

/* Messages between the last earlier answer and the new one, both included, of a short conversation.
 */
#define QUIRE_CHAT_ENDED_MESSAGES_MAX 8u

/* ask: of the prompt, with the answer as one more message. prompt: the text of the prompt. *out:
 * the text up to the end of the answer; quire_bytes_fini(), also after an error. *is_short (may be
 * NULL): the short conversation was enough. Errors: those of quire_chat_format_apply(). */
int quire_chat_ended_render(const quire_chat_format *format, const quire_chat_ask *ask,
                            quire_chat_text prompt, quire_bytes *out, bool *is_short,
                            quire_error *err);

#endif /* QUIRE_MODEL_CHAT_ENDED_H */
