/* saver_life.h - the saver for engine.c: see engine/saver.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SAVER_LIFE_H
#define QUIRE_ENGINE_SAVER_LIFE_H

#include "engine/adapt/adapt.h"
#include "engine/loop/loop.h"
#include "engine/saver.h"

typedef struct quire_saver quire_saver;

/* A pin of an earlier process. */
typedef struct quire_saver_pin {
    const quire_engine_pin_params *params;
    uint64_t until_us;
    uint32_t devices; /* bit i = device i: those of the identity that its pages have */
} quire_saver_pin;

/* The place of a restored pin: its device, and its `changed` there. */
typedef struct quire_saver_pin_place {
    uint32_t device;
    uint64_t changed;
} quire_saver_pin_place;

/* The sources of saved state: the devices of an engine, [n] each. Options, sessions and policy are
 * the first one's; an item has the identity of the device whose pages it belongs to. */
typedef struct quire_saver_devices {
    quire_loop *const *loops;
    quire_adapt *const *adapts;
    uint32_t n; /* 1 .. QUIRE_REPLICAS_MAX */
    /* quire_adapt_pin_restore() on the device where the pin's requests would go. */
    int (*pin_restore)(void *ctx, const quire_saver_pin *pin, quire_saver_pin_place *place,
                       quire_error *err);
    void *ctx;
} quire_saver_devices;

/* Create a saver by the first loop's options and restore the items of its directory; *out is NULL
 * without a directory. devices is copied, its arrays are borrowed. Thread: the owner's, before the
 * loops start. Errors: QUIRE_NOMEM, QUIRE_INVAL. */
int quire_saver_create(quire_saver **out, const quire_saver_devices *devices, quire_error *err);
/* Start to write changes. If no thread can be started, nothing is written; the log says so, and a
 * failure is counted. Thread: the owner's, after the loops have started. NULL is allowed. */
void quire_saver_start(quire_saver *saver);
/* Write the last changes, and end. Thread: the owner's, before the loops stop: a loop ends all
 * running requests, also those that compute pins. NULL is allowed. */
void quire_saver_destroy(quire_saver *saver);

/* Thread: any. saver may be NULL. */
void quire_saver_stats_get(quire_saver *saver, quire_saver_stats *out);

#endif /* QUIRE_ENGINE_SAVER_LIFE_H */
