/* error.c - filling in a quire_error.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int quire_error_set(quire_error *err, int status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;

        va_start(args, format);
        err->status = status;
        err->sys_errno = 0;
        (void)vsnprintf(err->message, sizeof(err->message), format, args);
        va_end(args);
    }
    return status;
}

int quire_error_set_errno(quire_error *err, int sys_errno, const char *format, ...)
{
    int status = sys_errno == ENOMEM ? QUIRE_NOMEM : QUIRE_IO;

    if (err != NULL) {
        char text[128];
        size_t length;
        va_list args;

        va_start(args, format);
        err->status = status;
        err->sys_errno = sys_errno;
        (void)vsnprintf(err->message, sizeof(err->message), format, args);
        va_end(args);
        length = strlen(err->message);
        /* The POSIX form of strerror_r: static buffers would not be thread-safe. */
        if (strerror_r(sys_errno, text, sizeof(text)) != 0) {
            (void)snprintf(text, sizeof(text), "error %d", sys_errno);
        }
        (void)snprintf(err->message + length, sizeof(err->message) - length, ": %s", text);
    }
    return status;
}
