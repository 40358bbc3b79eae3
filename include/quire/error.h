/* quire/error.h - a status with its explanation.
 *
 * Cold calls (open, load, parse) take a quire_error. On failure they fill it with one line that
 * names the file, the field, the value and the remedy. Hot calls return only a status.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ERROR_H
#define QUIRE_ERROR_H

#include "quire/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define QUIRE_ERROR_MESSAGE_MAX 512

typedef struct quire_error {
    int status;                            /* a QUIRE_* code; QUIRE_OK when nothing failed */
    int sys_errno;                         /* errno behind it, 0 when there is none */
    char message[QUIRE_ERROR_MESSAGE_MAX]; /* one line, no newline; truncated when too long */
} quire_error;

/* clang-format off */
#define QUIRE_ERROR_INIT { QUIRE_OK, 0, { 0 } }
/* clang-format on */

/* Fill *err (NULL is fine) from a printf format and return status, so that a caller can write
 * `return quire_error_set(err, QUIRE_CORRUPT, "%s: ...", path);`. Thread: any. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int quire_error_set(quire_error *err, int status, const char *format, ...);

/* Like quire_error_set() with status QUIRE_IO (QUIRE_NOMEM for ENOMEM); keeps sys_errno and
 * appends its text. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int quire_error_set_errno(quire_error *err, int sys_errno, const char *format, ...);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_ERROR_H */
