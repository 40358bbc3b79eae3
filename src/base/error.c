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
        char buffer[128];
        const char *text;
        size_t length;
        va_list args;

        va_start(args, format);
        err->status = status;
        err->sys_errno = sys_errno;
        (void)vsnprintf(err->message, sizeof(err->message), format, args);
        va_end(args);
        length = strlen(err->message);
        /* strerror() may use one buffer for all threads. Under _GNU_SOURCE glibc's strerror_r
         * returns the text; elsewhere it fills the buffer. */
#ifdef __GLIBC__
        text = strerror_r(sys_errno, buffer, sizeof(buffer));
#else
        text = strerror_r(sys_errno, buffer, sizeof(buffer)) == 0 ? buffer : "unknown error";
#endif
        (void)snprintf(err->message + length, sizeof(err->message) - length, ": %s", text);
    }
    return status;
}
