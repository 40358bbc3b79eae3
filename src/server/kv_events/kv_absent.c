/* kv_absent.c - kv_events.h in a build without ZeroMQ and msgpack: it says so.
 *
 * SPDX-License-Identifier: MIT */
#include "server/kv_events/kv_events.h"

int quire_kv_events_check(const quire_kv_events_opts *opts, quire_error *err)
{
    (void)opts;
    return quire_error_set(err, QUIRE_UNSUPP,
                           "kv_events: this build of quire has no ZeroMQ and msgpack; install the "
                           "packages libzmq3-dev and libmsgpack-dev and build again");
}

int quire_kv_events_start(quire_kv_events **out, const quire_kv_events_opts *opts, quire_error *err)
{
    *out = NULL;
    return quire_kv_events_check(opts, err);
}

bool quire_kv_events_is_local(const char *endpoint)
{
    (void)endpoint;
    return true;
}

void quire_kv_events_watcher(quire_kv_events *events, uint32_t rank, quire_prefix_watcher *out)
{
    (void)rank;
    (void)events;
    *out = (quire_prefix_watcher){ 0 };
}

const char *quire_kv_events_endpoint(const quire_kv_events *events)
{
    (void)events;
    return "";
}

const char *quire_kv_events_replay_endpoint(const quire_kv_events *events)
{
    (void)events;
    return NULL;
}

void quire_kv_events_stats_get(const quire_kv_events *events, quire_kv_events_stats *out)
{
    (void)events;
    *out = (quire_kv_events_stats){ 0 };
}

void quire_kv_events_stop(quire_kv_events *events)
{
    (void)events;
}
