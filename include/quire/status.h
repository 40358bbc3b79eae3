/* quire/status.h - result codes shared by every part of quire.
 *
 * Every fallible function returns int: QUIRE_OK (0) or one negative code from the table below.
 * The values are part of the ABI: append, never renumber. The table is an X-macro so that the
 * enum, the names, the HTTP answer and the metric label can never disagree.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STATUS_H
#define QUIRE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/*  X(symbol,   value, http, "label",       "text for humans")                  */
#define QUIRE_STATUS_MAP(X)                                                                        \
    X(OK, 0, 200, "ok", "success")                                                                 \
    X(NOMEM, -1, 503, "nomem", "out of memory")                                                    \
    X(NOPAGES, -2, 429, "nopages", "not enough KV pages within the budget")                        \
    X(INVAL, -3, 400, "inval", "invalid argument")                                                 \
    X(IO, -4, 500, "io", "input/output error")                                                     \
    X(CORRUPT, -5, 500, "corrupt", "data failed verification")                                     \
    X(UNSUPP, -6, 501, "unsupported", "not supported by this build")                               \
    X(CANCELED, -7, 499, "canceled", "canceled by the caller")                                     \
    X(NOTFOUND, -8, 404, "notfound", "no such object")                                             \
    X(LIMIT, -9, 429, "limit", "a configured limit was reached")                                   \
    X(AGAIN, -10, 503, "again", "not ready, try again")                                            \
    X(RANGE, -11, 400, "range", "value out of range")                                              \
    X(LOST, -12, 503, "lost", "the device was lost")

typedef enum quire_status {
#define X(sym, val, http, label, text) QUIRE_##sym = (val),
    QUIRE_STATUS_MAP(X)
#undef X
} quire_status;

/* Short stable label ("nopages"); "unknown" for a code this build lacks.
 * Memory: static. Thread: any. */
const char *quire_status_name(int status);

/* One-line description for logs and error bodies. Memory: static. Thread: any. */
const char *quire_status_text(int status);

/* HTTP status code a server should answer with; 500 for an unknown code. Thread: any. */
int quire_status_http(int status);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_STATUS_H */
