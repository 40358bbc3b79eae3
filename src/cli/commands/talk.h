/* talk.h - what the program says: stdout is data, stderr is talk.
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
/* As shells say of a program that SIGINT ended. A command that was interrupted returns what its
 * figures so far deserve; the program's status is this one all the same (commands.c). */
#define QUIRE_EXIT_INTERRUPTED 130

/* One line on stderr that begins with "quire: "; ends a progress line first. */
__attribute__((format(printf, 1, 2))) void quire_say(const char *format, ...);

/* quire_say() of the message (or of the status's text where there is none), and the exit status. */
int quire_say_error(const quire_error *err, int exit_status);

/* "quire: out of memory"; returns QUIRE_EXIT_FAILED. */
int quire_say_nomem(void);

/* A line of progress that is overwritten in place. Says nothing unless stderr is a terminal. */
__attribute__((format(printf, 1, 2))) void quire_progress(const char *format, ...);
/* Remove it. */
void quire_progress_end(void);

/* ---- stdout ---- */

/* To be called once at the start: a reader that leaves shows as a failed write instead of ending
 * the program. */
void quire_stdout_open(void);

/* Text to stdout, flushed. Returns false when that failed; the reason is kept for
 * quire_stdout_close(). */
bool quire_stdout_write(const char *text, size_t text_bytes);

/* Whether a write has failed: what follows would be lost too. */
bool quire_stdout_is_lost(void);

/* Print a document (takes the reference) and a newline. Returns an exit status. */
int quire_stdout_json(json_t *document);

/* To be called once at the end: flush and close stdout. When anything written to it was lost (disk
 * full, reader gone) that is said and the result is QUIRE_EXIT_FAILED; else exit_status. */
int quire_stdout_close(int exit_status);

/* A number; null where JSON has none for it (infinite, not a number). */
json_t *quire_json_real(double value);

/* A string; bytes that are not UTF-8 become U+FFFD. */
json_t *quire_json_bytes(const char *text, size_t text_bytes);

/* ---- interrupt ---- */

/* From here on Ctrl-C sets a flag instead of ending the program; a second one before the flag is
 * cleared ends it. */
void quire_interrupt_catch(void);
bool quire_interrupt_seen(void);
void quire_interrupt_clear(void);
/* Wait until stdin, a terminal, has a line or has ended. False: Ctrl-C came, also before the call.
 */
bool quire_interrupt_wait_stdin(void);

/* Seconds of a clock that only moves forward. */
double quire_now_s(void);

/* n per second; 0 when no time passed. */
double quire_rate(double n, double seconds);

#endif /* QUIRE_CLI_TALK_H */
