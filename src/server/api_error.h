/* api_error.h - what is told to a client whose request is not served: OpenAI's error body.
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
    uint64_t missing_bytes; /* what a budget is short of; 0 = not said */
    const char *allow;      /* 405: methods; static */
} quire_api_error;

/* Fill *err, unless it is filled already: the first error is the one that is told. Returns
 * QUIRE_INVAL, so that a caller can return it. */
__attribute__((format(printf, 5, 6))) int quire_api_error_set(quire_api_error *err, int http,
                                                              const char *code, const char *param,
                                                              const char *format, ...);
/* From a status of the library; the field is what stands before the message's colon. A limit that a
 * field is beyond is the request's fault (400), any other the server's state (429). */
int quire_api_error_from(quire_api_error *err, const quire_error *cause);
bool quire_api_error_names_field(const quire_error *cause);
int quire_api_error_nomem(quire_api_error *err);

/* {"error": {"message", "type", "param", "code"}}, "missing_bytes" too where it is said. */
void quire_api_error_write(quire_bytes *out, const quire_api_error *err);

#endif /* QUIRE_SERVER_API_ERROR_H */
