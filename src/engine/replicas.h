/* replicas.h - an engine with several devices.
 *
 * Each device has a replica of the engine's loop: a runtime, a cache and a prefix tree, on a thread
 * of its own. Model, classes and sessions are common to all. A request goes to the device with the
 * longest prefix in memory, or below memory where fetching costs less than computing, unless the
 * load there says otherwise, within the devices to which its class or tenant is bound
 * (dispatch/dispatcher.h). A pin is held on the device that its request would go to. Since each
 * device may have to take over a request, a request for an ability that one device lacks is
 * refused. A full queue, or too small a budget, is the device's own: the next device is asked. If
 * all refuse, a full queue is the answer before a budget.
 *
 * When a device is lost, its requests go on elsewhere, at the places of their arrival: their tokens
 * are computed there again, and a client gets no token twice. Its pins are created again elsewhere
 * when the owner says so (quire_engine_pins_move()). Only the loss of the last device ends the
 * engine.
 *
 * Figures of the functions in engine.h, pins.h and views.h are sums over all devices; counters
 * include a lost device, gauges do not. For tuning see tuning.h.
 *
 * Stores below memory may have their records in common (store/host_store.h, common_store.h). Then a
 * prefix that one device has computed comes to another of the same identity through the store, when
 * that costs less than to compute it, and so do the pages of requests whose device was lost.
 *
 * State that outlives a restart (saver.h): an item has the identity of the device whose pages it
 * belongs to, and comes back at devices of this identity alone. A session's device is that of its
 * last turn. A pin is restored where its requests would go, of these devices. Each identity has one
 * model of reuse, of the device with the most look-ups.
 *
 * Each device may have a watcher of its tree. When a device is lost, its watcher is cleared, also
 * each time it asks again, and hears of no page any more.
 *
 * Requests for texts that keep a share of their tokens need this ability of all devices, and no
 * watcher: watchers are told of whole texts alone. A lost device's pages of such a text are made
 * again elsewhere, from its first token.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_REPLICAS_H
#define QUIRE_ENGINE_REPLICAS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/dispatch/dispatcher.h"
#include "engine/overflow.h"
#include "model/runtime.h"
#include "quire/prefix.h"
#include "store/store.h"

/* A further device, by its runtime, of the same model and context. */
typedef struct quire_engine_device {
    quire_runtime *runtime;
    quire_overflow_opts overflow;
    quire_store *store; /* below memory, if the first device has one; closed as that one */
    quire_prefix_watcher watcher; /* of its tree; stored NULL = none */
} quire_engine_device;

typedef struct quire_engine_devices {
    const quire_engine_device *items; /* [n]; device i + 1 is items[i]. Borrowed by create */
    uint32_t n;                       /* 0: the engine has one device */
    const quire_binding *bindings;    /* [n_bindings], borrowed until destroy */
    uint32_t n_bindings;
} quire_engine_devices;

/* The figures of one device. */
typedef struct quire_engine_device_stats {
    const char *name; /* as --device takes it: "cpu", "vulkan0" */
    bool is_lost;
    uint32_t requests;          /* that wait or run */
    uint64_t to_compute_tokens; /* of their prompts */
    uint64_t requests_total;
    uint64_t adopted_total; /* of them, from lost devices */
    uint64_t prompt_tokens_total;
    uint64_t cached_tokens_total; /* of prompt_tokens_total */
    uint64_t generated_tokens_total;
    uint64_t budget_bytes; /* KV */
    uint64_t live_bytes;
    uint64_t cached_bytes;
    uint64_t fetched_tokens_total; /* from the store below memory into its tree */
    uint64_t copied_pages_total;   /* of its tree, taken by the store */
} quire_engine_device_stats;

#endif /* QUIRE_ENGINE_REPLICAS_H */
