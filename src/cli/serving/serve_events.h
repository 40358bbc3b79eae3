/* serve_events.h - the events for routers that quire serve's settings name.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_EVENTS_H
#define QUIRE_CLI_SERVE_EVENTS_H

#include "cli/serving/serve_args.h"
#include "cli/serving/serve_log.h"
#include "server/kv_events/kv_events.h"

/* Check the settings of events. Errors: QUIRE_INVAL, QUIRE_UNSUPP. */
int quire_serve_events_check(const quire_serve_args *args, quire_error *err);

/* Start the publisher that the settings name, say where it is in the log, and make the tree tell
 * it; *out is NULL if they name none. Errors: quire_kv_events_start(). Memory: end the engine, then
 * quire_kv_events_stop(). */
int quire_serve_events_start(quire_kv_events **out, const quire_serve_args *args,
                             const quire_serve_log *log, quire_prefix_watcher *watcher,
                             quire_error *err);

#endif /* QUIRE_CLI_SERVE_EVENTS_H */
