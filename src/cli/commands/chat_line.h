/* chat_line.h - messages typed at a terminal, or piped in.
 *
 * At a terminal lines are edited (libedit, where the program was built with it), earlier ones come
 * back with the arrow keys, and lines that are pasted together are one message, as are lines that
 * end with a backslash. Elsewhere each line is a message.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CHAT_LINE_H
#define QUIRE_CLI_CHAT_LINE_H

#include <stdbool.h>

typedef struct quire_chat_line quire_chat_line;

typedef enum quire_chat_line_kind {
    QUIRE_CHAT_LINE_TEXT,
    QUIRE_CHAT_LINE_NUL,        /* a message that holds a NUL byte, which text does not */
    QUIRE_CHAT_LINE_END,        /* of the input */
    QUIRE_CHAT_LINE_INTERRUPTED /* Ctrl-C */
} quire_chat_line_kind;

/* NULL without memory. Memory: quire_chat_line_close(). */
quire_chat_line *quire_chat_line_open(void);
void quire_chat_line_close(quire_chat_line *line);

/* Whether a person types. */
bool quire_chat_line_is_terminal(const quire_chat_line *line);

/* The next message, without the end of its last line. *text lives until the next call. */
quire_chat_line_kind quire_chat_line_read(quire_chat_line *line, const char **text);

#endif /* QUIRE_CLI_CHAT_LINE_H */
