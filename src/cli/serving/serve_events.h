/* serve_events.h - the events for routers that quire serve's settings name.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_EVENTS_H
#define QUIRE_CLI_SERVE_EVENTS_H

#include "cli/serving/serve_args.h"
#include "cli/serving/serve_log.h"
#include "engine/replicas.h"
#include "server/kv_events/kv_events.h"

/* Check the settings of events. Errors: QUIRE_INVAL, QUIRE_UNSUPP. */
int quire_serve_events_check(const quire_serve_args *args, quire_error *err);

/* Start the publisher that the settings name, and say in the log where it is; *out is NULL if they
 * name none. watchers: for the trees of n devices, filled in here. Errors: quire_kv_events_start().
 * Memory: end the engine, then quire_kv_events_stop(). */
typedef struct quire_serve_watchers {
    quire_prefix_watcher items[QUIRE_REPLICAS_MAX]; /* stored NULL = no events */
    uint32_t n;
} quire_serve_watchers;
int quire_serve_events_start(quire_kv_events **out, const quire_serve_args *args,
                             const quire_serve_log *log, quire_serve_watchers *watchers,
                             quire_error *err);

#endif /* QUIRE_CLI_SERVE_EVENTS_H */
