/* client_watch.h - ends connections of clients that are too slow, however often they send or read a
 * byte: MHD's timeout counts from the last byte.
 *
 *   between requests -> the headers of the next request end within headers_max_s
 *   in a request     -> the reply is sent within request_max_s
 *
 * A connection that takes longer is shut down, which its thread sees as a client that has gone.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_CLIENT_WATCH_H
#define QUIRE_SERVER_CLIENT_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/error.h"

typedef struct quire_client_watch quire_client_watch;

/* A connection. Its fields are the watch's. */
typedef struct quire_client {
    struct quire_client *next, *previous;
    uint64_t since_us; /* of its state */
    int fd;
    bool is_in_request;
} quire_client;

/* Limits in seconds, 0 = none. Starts a thread. Memory: quire_client_watch_stop(). Errors:
 * QUIRE_NOMEM. */
int quire_client_watch_start(quire_client_watch **out, uint32_t headers_max_s,
                             uint32_t request_max_s, quire_error *err);
/* No connection is watched any more. watch may be NULL. */
void quire_client_watch_stop(quire_client_watch *watch);
/* fd stays open until the connection is removed. */
void quire_client_watch_add(quire_client_watch *watch, quire_client *w, int fd, uint64_t now_us);
void quire_client_watch_remove(quire_client_watch *watch, quire_client *w);
/* The headers of a request have ended, or its reply is sent. */
void quire_client_watch_turn(quire_client_watch *watch, quire_client *w, bool is_in_request,
                             uint64_t now_us);
/* Shut down the connections that take too long. The thread calls this once a second. */
void quire_client_watch_look(quire_client_watch *watch, uint64_t now_us);

#endif /* QUIRE_SERVER_CLIENT_WATCH_H */
