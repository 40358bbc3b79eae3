/* dropped.h - dropping cached pages on request; for src/server only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_DROPPED_H
#define QUIRE_SERVER_DROPPED_H

#include "server/http.h"

/* Invalidate in the engine, and add the result to *dropped. QUIRE_NOTFOUND leaves http->err alone;
 * other errors fill it. */
int quire_http_invalidate(quire_http *http, const quire_invalidate *what,
                          quire_prefix_dropped *dropped);

typedef struct quire_session_choice {
    const char *tenant;     /* NULL = any */
    const char *cache_salt; /* likewise */
} quire_session_choice;

/* Close the sessions of this id, and drop their pages. Errors: http->err. */
int quire_http_session_drop(quire_http *http, const char *id, const quire_session_choice *choice,
                            quire_prefix_dropped *dropped);

/* "dropped": {"pages", "tokens", "freed_bytes"} */
void quire_dropped_write(quire_json_out *json, const quire_prefix_dropped *dropped);

#endif /* QUIRE_SERVER_DROPPED_H */
