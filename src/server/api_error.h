/* api_error.h - error replies in the formats of OpenAI and Anthropic.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_API_ERROR_H
#define QUIRE_SERVER_API_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "quire/error.h"

#define QUIRE_API_PARAM_MAX 80u

typedef struct quire_api_error {
    int http;                        /* status; 0 = nothing went wrong */
    const char *code;                /* static; NULL = null */
    char param[QUIRE_API_PARAM_MAX]; /* the field at fault; "" = null */
    char message[QUIRE_ERROR_MESSAGE_MAX];
    uint32_t retry_after_s; /* 0 = no such header */
    uint64_t missing_bytes; /* bytes that the budget lacks; 0 = not reported */
    const char *allow;      /* 405: methods; static */
} quire_api_error;

/* Fill *err, unless it is filled already: the first error is reported. Always returns QUIRE_INVAL,
 * for the caller to return. */
__attribute__((format(printf, 5, 6))) int quire_api_error_set(quire_api_error *err, int http,
                                                              const char *code, const char *param,
                                                              const char *format, ...);
/* Fill *err from a status of the library; the field is the text before the message's colon.
 * QUIRE_LIMIT with a field is the request's fault (400), without one the server's state (429). */
int quire_api_error_from(quire_api_error *err, const quire_error *cause);
bool quire_api_error_names_field(const quire_error *cause);
int quire_api_error_nomem(quire_api_error *err);
/* An error about a field `from`, or about a field in it, is about `to` from now on. */
void quire_api_error_rename(quire_api_error *err, const char *from, const char *to);

/* The API in whose format a path reports errors. */
typedef enum quire_error_form {
    QUIRE_ERROR_OPENAI, /* {"error": {"message", "type", "param", "code"}}, plus "missing_bytes" if
                           it is not 0 */
    QUIRE_ERROR_ANTHROPIC /* {"type": "error", "error": {"type", "message", "code"}} */
} quire_error_form;

void quire_api_error_write(quire_bytes *out, const quire_api_error *err, quire_error_form form);

#endif /* QUIRE_SERVER_API_ERROR_H */
