/* dispatcher.h - which device a request goes to, where an engine has several.
 *
 * Each device has a replica of the engine's loop, with a cache and a prefix tree of its own. The
 * dispatcher knows the full pages of text that each tree has: it is the trees' watcher
 * (quire/prefix.h). A request goes to the device with the least work in front of its first token:
 *
 *   work   tokens of its prompt that this device has not cached; of those that it can fetch from
 *          below memory, the cost of fetching in tokens of computing
 *        + prompt tokens that wait or are computed there
 *        + QUIRE_DISPATCH_REQUEST_TOKENS for each request there
 *
 * A text that keeps a share of its tokens is cached under roots of its own (quire_dispatch_roots):
 * the pages of the longest text so condensed that a device has count with all tokens before them.
 *
 * So a request goes to the device with its longest prefix, cached or in reach, unless that device
 * has too much load. Among devices with equal work the longer prefix in memory wins, then fewer
 * requests, then fewer cached pages, then the first device.
 *
 * Placement binds classes and tenants to devices. The binding of a tenant goes before that of a
 * class. It holds while one of its devices is there; after the last one is lost, all other devices
 * serve its requests.
 *
 * Thread: any, under one lock; the watchers are called by the loops' threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_DISPATCHER_H
#define QUIRE_ENGINE_DISPATCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/prefix.h"

#define QUIRE_REPLICAS_MAX            8u
#define QUIRE_DISPATCH_REQUEST_TOKENS 64u
#define QUIRE_DISPATCH_NONE           UINT32_MAX

typedef struct quire_dispatcher quire_dispatcher;

/* A binding: a set of devices, bit i = device i, for a class or a tenant. */
typedef struct quire_binding {
    uint32_t class_index; /* without a tenant */
    const void *tenant;   /* its bytes at the beginning of a request's tenant; NULL = a class */
    uint32_t tenant_bytes;
    uint32_t devices;
} quire_binding;

typedef struct quire_dispatcher_opts {
    uint32_t n_replicas; /* 1 .. QUIRE_REPLICAS_MAX */
    uint32_t page_tokens;
    uint64_t identities[QUIRE_REPLICAS_MAX][2]; /* of KV, by device */
    const quire_binding *bindings;              /* [n_bindings], borrowed */
    uint32_t n_bindings;
    /* Told of each device's pages beside the dispatcher; stored NULL = there is none. */
    quire_prefix_watcher watchers[QUIRE_REPLICAS_MAX];
} quire_dispatcher_opts;

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_dispatcher_create(quire_dispatcher **out, const quire_dispatcher_opts *opts);
/* No tree may be watched by it any more. NULL is allowed. */
void quire_dispatcher_destroy(quire_dispatcher *dispatcher);

/* The watcher of a device's tree. It passes all news on to the device's other watcher, and accepts
 * the news that the other one accepts. */
quire_prefix_watcher quire_dispatcher_watcher(quire_dispatcher *dispatcher, uint32_t replica);

/* The store below a device's memory. Called without a lock. */
typedef struct quire_dispatch_below {
    /* How many of these keys, from the first one on, are there; NULL: nothing is below. */
    uint32_t (*has)(void *ctx, const quire_page_key *keys, uint32_t n);
    /* The cost of fetching tokens [begin, end), in tokens of computing: at most all of them. */
    uint32_t (*cost)(void *ctx, uint32_t begin, uint32_t end);
    void *ctx;
} quire_dispatch_below;

/* A device at this moment. */
typedef struct quire_replica_load {
    quire_dispatch_below below;
    bool is_lost;
    bool has_refused;      /* this request */
    uint32_t n_requests;   /* that wait or run */
    uint64_t n_to_compute; /* prompt tokens of theirs */
} quire_replica_load;

/* A root under which a device may have the text, condensed. */
typedef struct quire_dispatch_root {
    quire_prefix_key key;
    uint32_t n_gone; /* tokens of the text in front of its pages there */
    uint32_t n_kept; /* the first pages, of so many tokens, are of use together alone */
} quire_dispatch_root;

/* The roots of the text on a device, one by one, from the one with the fewest condensings on. */
typedef struct quire_dispatch_roots {
    void (*begin)(void *ctx, uint32_t replica); /* NULL: the text has none */
    bool (*next)(void *ctx, quire_dispatch_root *out);
    void *ctx;
} quire_dispatch_roots;

typedef struct quire_dispatch_ask {
    const void *tenant;
    uint32_t tenant_bytes;
    uint32_t class_index;
    const int32_t *tokens;
    uint32_t n_tokens;
    bool is_cold; /* it uses no cached token */
    quire_dispatch_roots roots;
    const quire_replica_load *loads; /* [n_replicas] */
} quire_dispatch_ask;

typedef struct quire_dispatch {
    uint32_t replica;  /* QUIRE_DISPATCH_NONE: none is left */
    uint32_t n_cached; /* tokens of the prompt in full pages in its memory */
    uint32_t n_saved;  /* tokens of computing that these and the pages below it save */
} quire_dispatch;

quire_dispatch quire_dispatcher_choose(quire_dispatcher *dispatcher, const quire_dispatch_ask *ask);

#endif /* QUIRE_ENGINE_DISPATCHER_H */
