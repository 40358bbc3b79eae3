/* talk.h - the program's output: data on stdout, messages on stderr.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TALK_H
#define QUIRE_CLI_TALK_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"

/* Exit statuses. */
#define QUIRE_EXIT_OK     0
#define QUIRE_EXIT_FAILED 1
#define QUIRE_EXIT_USAGE  2
/* The status that shells report for a program ended by SIGINT. An interrupted command returns the
 * status of its partial result; the program still ends with this one (commands.c). */
#define QUIRE_EXIT_INTERRUPTED 130

/* One line on stderr that begins with "quire: "; ends a progress line first. */
__attribute__((format(printf, 1, 2))) void quire_say(const char *format, ...);

/* quire_say() the message, or else the status's text. Returns exit_status. */
int quire_say_error(const quire_error *err, int exit_status);

/* "quire: out of memory"; returns QUIRE_EXIT_FAILED. */
int quire_say_nomem(void);

/* A line of progress that is overwritten in place. Does nothing unless stderr is a terminal. */
__attribute__((format(printf, 1, 2))) void quire_progress(const char *format, ...);
/* Remove it. */
void quire_progress_end(void);

/* ---- stdout ---- */

/* Call once at the start, before a file is opened. Afterwards a closed pipe, or a limit of the
 * length of files (ulimit -f), causes a failed write instead of ending the program, and files do
 * not get the numbers of standard streams that are closed. */
void quire_stdout_open(void);

/* Text to stdout, flushed. Returns false when that failed; the reason is kept for
 * quire_stdout_close(). */
bool quire_stdout_write(const char *text, size_t text_bytes);

/* Whether a write has failed; later output would be lost, too. */
bool quire_stdout_is_lost(void);

/* Print a document (takes the reference) and a newline. Returns an exit status. */
int quire_stdout_json(json_t *document);

/* The same on one line, flushed: for logs that are read while they grow. */
int quire_stdout_json_line(json_t *document);

/* Call once at the end: flush and close stdout. If output was lost (disk full, reader gone),
 * reports it and returns QUIRE_EXIT_FAILED; else returns exit_status. */
int quire_stdout_close(int exit_status);

/* A number; null for infinities and NaN. */
json_t *quire_json_real(double value);

/* A string; bytes that are not UTF-8 become U+FFFD. */
json_t *quire_json_bytes(const char *text, size_t text_bytes);

/* ---- interrupt ---- */

/* Make Ctrl-C set a flag instead of ending the program. A second Ctrl-C before the flag is cleared
 * ends the program. */
void quire_interrupt_catch(void);
bool quire_interrupt_seen(void);
void quire_interrupt_clear(void);
/* Wait until stdin, a terminal, has a line or has ended. False after Ctrl-C, even before the
 * call. */
bool quire_interrupt_wait_stdin(void);

/* Seconds of a clock that only moves forward. */
double quire_now_s(void);

/* n per second; 0 when no time passed. */
double quire_rate(double n, double seconds);

#endif /* QUIRE_CLI_TALK_H */
