/* chat_line.c - see chat_line.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/chat_line.h"

#include "base/bytes.h"
#include "cli/commands/talk.h"

#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#if QUIRE_HAS_EDIT
#include <histedit.h>
#endif

/* Lines that come within this time of each other were pasted. */
#define PASTE_MS     5
#define HISTORY_SIZE 1000

struct quire_chat_line {
    bool is_terminal;
    bool continues; /* the next line belongs to the message */
    quire_bytes text;
    char *buffer; /* getline()'s */
    size_t buffer_bytes;
#if QUIRE_HAS_EDIT
    EditLine *edit; /* NULL: plain lines */
    History *history;
#endif
};

bool quire_chat_line_is_terminal(const quire_chat_line *line)
{
    return line->is_terminal;
}

static const char *prompt_text(const quire_chat_line *line)
{
    return line->continues ? "... " : "> ";
}

/* ---- libedit ---- */

#if QUIRE_HAS_EDIT
static const char *edit_prompt(EditLine *edit)
{
    quire_chat_line *line = NULL;

    (void)el_get(edit, EL_CLIENTDATA, (void **)&line);
    return prompt_text(line);
}

/* One character. libedit would go on waiting after Ctrl-C; this function ends the line. */
static int edit_read(EditLine *edit, wchar_t *out)
{
    mbstate_t state = { 0 };
    char byte;

    (void)edit;
    for (;;) {
        if (!quire_interrupt_wait_stdin() || read(STDIN_FILENO, &byte, 1) != 1) {
            return 0;
        }
        /* A Ctrl-D that was typed while the terminal was not in the mode of editing arrives as
         * this, and libedit would take the next key literally. */
        if (byte == '\0') {
            continue;
        }
        switch (mbrtowc(out, &byte, 1, &state)) {
        case (size_t)-1:
            *out = L'\xfffd';
            return 1;
        case (size_t)-2:
            break; /* incomplete */
        default:
            return 1;
        }
    }
}

static void edit_open(quire_chat_line *line)
{
    HistEvent event;

    if (!isatty(STDERR_FILENO)) {
        return;
    }
    if (setlocale(LC_CTYPE, "") == NULL || MB_CUR_MAX == 1) {
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    }
    line->edit = el_init("quire", stdin, stderr, stderr);
    line->history = history_init();
    if (line->edit == NULL || line->history == NULL) {
        return;
    }
    (void)history(line->history, &event, H_SETSIZE, HISTORY_SIZE);
    (void)history(line->history, &event, H_SETUNIQUE, 1);
    (void)el_set(line->edit, EL_CLIENTDATA, line);
    (void)el_set(line->edit, EL_EDITOR, "emacs");
    (void)el_set(line->edit, EL_PROMPT, edit_prompt);
    (void)el_set(line->edit, EL_HIST, history, line->history);
    (void)el_set(line->edit, EL_GETCFN, edit_read);
}

static void edit_close(quire_chat_line *line)
{
    if (line->edit != NULL) {
        el_end(line->edit);
    }
    if (line->history != NULL) {
        history_end(line->history);
    }
}

static bool is_edited(const quire_chat_line *line)
{
    return line->edit != NULL && line->history != NULL;
}

static const char *edit_line(quire_chat_line *line, size_t *n)
{
    int count = 0;
    const char *text = el_gets(line->edit, &count);

    *n = text != NULL && count > 0 ? (size_t)count : 0;
    return *n > 0 ? text : NULL;
}

static void edit_remember(quire_chat_line *line)
{
    HistEvent event;

    if (is_edited(line) && line->text.n > 0) {
        (void)history(line->history, &event, H_ENTER, line->text.data);
    }
}
#else
static void edit_open(quire_chat_line *line)
{
    (void)line;
}

static void edit_close(quire_chat_line *line)
{
    (void)line;
}

static bool is_edited(const quire_chat_line *line)
{
    (void)line;
    return false;
}

static const char *edit_line(quire_chat_line *line, size_t *n)
{
    (void)line;
    *n = 0;
    return NULL;
}

static void edit_remember(quire_chat_line *line)
{
    (void)line;
}
#endif

/* ---- lines ---- */

quire_chat_line *quire_chat_line_open(void)
{
    quire_chat_line *line = calloc(1, sizeof *line);

    if (line != NULL) {
        line->is_terminal = isatty(STDIN_FILENO);
        if (line->is_terminal) {
            edit_open(line);
        }
    }
    return line;
}

void quire_chat_line_close(quire_chat_line *line)
{
    if (line != NULL) {
        edit_close(line);
        free(line->buffer);
        quire_bytes_fini(&line->text);
        free(line);
    }
}

/* A line without editing. */
static const char *plain_line(quire_chat_line *line, size_t *n)
{
    ssize_t read_bytes = -1;

    if (line->is_terminal) {
        fputs(prompt_text(line), stderr);
    }
    if (!line->is_terminal || quire_interrupt_wait_stdin()) {
        read_bytes = getline(&line->buffer, &line->buffer_bytes, stdin);
    }
    *n = read_bytes > 0 ? (size_t)read_bytes : 0;
    return *n > 0 ? line->buffer : NULL;
}

/* Whether more lines of a paste are there. */
static bool is_pasted(const quire_chat_line *line)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };

    return line->is_terminal && poll(&in, 1, PASTE_MS) > 0 && (in.revents & POLLIN) != 0;
}

/* Add a line to the message. Returns whether the message goes on. */
static bool add_line(quire_chat_line *line, const char *text, size_t n)
{
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) {
        n--;
    }
    if (line->is_terminal && n > 0 && text[n - 1] == '\\') {
        (void)quire_bytes_add(&line->text, text, n - 1);
        (void)quire_bytes_add(&line->text, "\n", 1);
        return true;
    }
    (void)quire_bytes_add(&line->text, text, n);
    if (is_pasted(line)) {
        (void)quire_bytes_add(&line->text, "\n", 1);
        return true;
    }
    return false;
}

quire_chat_line_kind quire_chat_line_read(quire_chat_line *line, const char **text)
{
    quire_bytes_clear(&line->text);
    line->continues = false;
    do {
        size_t n;
        const char *next = is_edited(line) ? edit_line(line, &n) : plain_line(line, &n);

        if (next == NULL) {
            if (line->is_terminal) {
                fputs("\n", stderr);
            }
            *text = "";
            return quire_interrupt_seen() ? QUIRE_CHAT_LINE_INTERRUPTED : QUIRE_CHAT_LINE_END;
        }
        line->continues = add_line(line, next, n);
    } while (line->continues);
    (void)quire_bytes_add(&line->text, "", 0);
    if (line->text.n > 0 && memchr(line->text.data, '\0', line->text.n) != NULL) {
        *text = "";
        return QUIRE_CHAT_LINE_NUL;
    }
    edit_remember(line);
    *text = line->text.data != NULL ? line->text.data : "";
    return QUIRE_CHAT_LINE_TEXT;
}
