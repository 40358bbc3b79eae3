/* serve_log.h - the log of quire serve: lines with their time, to stderr or to the end of a file.
 *
 * Thread: any; a line is written at once.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_LOG_H
#define QUIRE_CLI_SERVE_LOG_H

#include <stdio.h>

#include "cli/serving/serve_args.h"
#include "quire/error.h"

typedef struct quire_serve_log {
    FILE *stream;
    quire_log_level level;
} quire_serve_log;

/* path NULL: stderr. Errors: QUIRE_IO. */
int quire_serve_log_open(quire_serve_log *log, const char *path, quire_log_level level,
                         quire_error *err);
void quire_serve_log_close(quire_serve_log *log);
/* Whether a file could be appended to; leaves none behind. what: the setting with the file's name,
 * for the message. Errors: QUIRE_IO. */
int quire_serve_log_check(const char *what, const char *path, quire_error *err);

/* One line, if the log is of that level: "2026-11-20T12:00:00Z text". Control characters become
 * '?'. */
__attribute__((format(printf, 3, 4))) void
quire_serve_log_line(const quire_serve_log *log, quire_log_level level, const char *format, ...);

#endif /* QUIRE_CLI_SERVE_LOG_H */
