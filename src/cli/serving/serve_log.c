/* serve_log.c - see serve_log.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_log.h"

#include "base/check.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024

int quire_serve_log_open(quire_serve_log *log, const char *path, quire_log_level level,
                         quire_error *err)
{
    log->level = level;
    log->stream = path != NULL ? fopen(path, "a") : stderr;
    if (log->stream == NULL) {
        return quire_error_set_errno(err, errno, "log_file: cannot open %s", path);
    }
    return QUIRE_OK;
}

void quire_serve_log_close(quire_serve_log *log)
{
    if (log->stream != NULL && log->stream != stderr) {
        (void)fclose(log->stream);
    }
    log->stream = NULL;
}

int quire_serve_log_check(const char *what, const char *path, quire_error *err)
{
    const bool is_new = path != NULL && access(path, F_OK) != 0;
    FILE *stream;

    if (path == NULL) {
        return QUIRE_OK;
    }
    stream = fopen(path, "a");
    if (stream == NULL) {
        return quire_error_set_errno(err, errno, "%s: cannot open %s", what, path);
    }
    (void)fclose(stream);
    if (is_new) {
        (void)unlink(path);
    }
    return QUIRE_OK;
}

void quire_serve_log_line(const quire_serve_log *log, quire_log_level level, const char *format,
                          ...)
{
    char line[LINE_BYTES];
    char when[32];
    struct tm parts;
    const time_t now = time(NULL);
    va_list ap;

    if (level > log->level) {
        return;
    }
    va_start(ap, format);
    (void)vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    /* Clients choose paths: a path must not begin a line or control a terminal. */
    for (char *at = line; *at != '\0'; at++) {
        *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
    }
    if (gmtime_r(&now, &parts) == NULL ||
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
        when[0] = '\0';
    }
    /* One call, one line: stdio locks the stream. */
    (void)fprintf(log->stream, "%s %s\n", when, line);
    (void)fflush(log->stream);
}
