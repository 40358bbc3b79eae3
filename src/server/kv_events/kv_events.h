/* kv_events.h - which pages of text the cache has, as a stream of events for routers.
 *
 *   engine's threads                    publisher's thread
 *   prefix tree --> watcher --> queue --> msgpack --> PUB socket --> subscribers
 *                               bounded           \-> last batches <-- ROUTER socket <-- replay
 *
 * The events, their encoding and the messages are those of vLLM (vllm/distributed/kv_events.py, the
 * array form of version 0.17): see kv_pack.h and docs/events.md. A block is a full page of text;
 * its hash is the first 64 bits of the page's key, so it is the same in every process.
 *
 * Each device of the engine has a tree and a watcher. A batch is of one device, whose place among
 * the devices is the batch's data-parallel rank; AllBlocksCleared is of the batch's rank alone.
 *
 * Nothing here delays the engine. When the queue is full, new pages are told later; a removed page
 * that could not be told is followed by AllBlocksCleared and all pages (quire/prefix.h, watching).
 * So a subscriber that has all batches since an AllBlocksCleared knows exactly which blocks there
 * are.
 *
 * The stream holds token ids: it is as confidential as the prompts. There is no authentication.
 *
 * Thread: start, stop: one at a time. A watcher: its device's. Others: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_KV_EVENTS_H
#define QUIRE_SERVER_KV_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"
#include "quire/prefix.h"

#define QUIRE_KV_EVENTS_QUEUE_BYTES    ((size_t)8 << 20) /* of news on their way: 27,000 pages */
#define QUIRE_KV_EVENTS_BATCH_PAGES    256u              /* pages named in one message, at most */
#define QUIRE_KV_EVENTS_REPLAY_BATCHES 10000u            /* as vLLM's buffer_steps */
#define QUIRE_KV_EVENTS_REPLAY_BYTES   ((size_t)64 << 20)
#define QUIRE_KV_EVENTS_HWM            10000u    /* messages that wait for a subscriber, at most */
#define QUIRE_KV_EVENTS_AGAIN_US       10000000u /* between two tellings that requests cause */
#define QUIRE_KV_EVENTS_CLOSE_MS       1000u     /* for the last messages */
#define QUIRE_KV_EVENTS_TOPIC_MAX      255u
#define QUIRE_KV_EVENTS_RANKS_MAX      8u
#define QUIRE_KV_EVENTS_ENDPOINT_MAX   200u

typedef struct quire_kv_events quire_kv_events;

typedef struct quire_kv_events_opts {
    const char *endpoint;        /* "tcp://HOST:PORT", HOST numeric or "*", port 0 = a free one;
                                    "ipc://PATH" */
    const char *replay_endpoint; /* likewise; NULL = no replay */
    const char *topic;           /* first frame of each message; NULL = "" */
    uint32_t n_ranks;            /* devices, at most QUIRE_KV_EVENTS_RANKS_MAX; 0 = 1 */
    size_t queue_bytes;          /* 0 = default */
    uint32_t replay_batches;     /* 0 = default */
    uint64_t again_us;           /* 0 = default */
} quire_kv_events_opts;

typedef struct quire_kv_events_stats {
    uint64_t stored_total;  /* pages */
    uint64_t removed_total; /* pages */
    uint64_t cleared_total;
    uint64_t batches_total;
    uint64_t lost_total;     /* removals that found the queue full: everything was told again */
    uint64_t replays_total;  /* requests that were answered */
    uint64_t replayed_total; /* batches sent for them */
} quire_kv_events_stats;

/* Check the options, and that this build has the libraries. Errors: QUIRE_INVAL,
 * QUIRE_UNSUPP. */
int quire_kv_events_check(const quire_kv_events_opts *opts, quire_error *err);
/* Whether only this machine can connect to an endpoint that passed the check. */
bool quire_kv_events_is_local(const char *endpoint);

/* Bind the sockets and start the thread. Errors: those of the check; QUIRE_IO (an address that is
 * in use or cannot be bound: err names it), QUIRE_NOMEM. */
int quire_kv_events_start(quire_kv_events **out, const quire_kv_events_opts *opts,
                          quire_error *err);
/* The watcher for the tree of a device, rank < n_ranks. Valid until stop; end the engine first. */
void quire_kv_events_watcher(quire_kv_events *events, uint32_t rank, quire_prefix_watcher *out);
/* The endpoints as bound. Memory: of events; NULL without replay. */
const char *quire_kv_events_endpoint(const quire_kv_events *events);
const char *quire_kv_events_replay_endpoint(const quire_kv_events *events);
/* NULL is allowed: zeros. */
void quire_kv_events_stats_get(const quire_kv_events *events, quire_kv_events_stats *out);
/* Publish the queued news and AllBlocksCleared of each device; end. NULL is allowed. */
void quire_kv_events_stop(quire_kv_events *events);

#endif /* QUIRE_SERVER_KV_EVENTS_H */
