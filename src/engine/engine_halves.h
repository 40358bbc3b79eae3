/* engine_halves.h - the parts of an engine; for engine.c and tests only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ENGINE_HALVES_H
#define QUIRE_ENGINE_ENGINE_HALVES_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/pins.h"

typedef struct quire_loop quire_loop;
typedef struct quire_adapt quire_adapt;
typedef struct quire_saver quire_saver;
typedef struct quire_saver_pin quire_saver_pin;
typedef struct quire_saver_pin_place quire_saver_pin_place;

/* A name that is being given to a pin; on the stack of the thread that does so. */
typedef struct quire_pin_naming {
    struct quire_pin_naming *next;
    const quire_engine_pin_name *name;
} quire_pin_naming;

struct quire_engine {
    quire_loop *loop;   /* serves: engine/loop/loop.h */
    quire_adapt *adapt; /* watches the loop and changes its settings: engine/adapt/adapt.h */
    /* Loops and adaptations by device; the two fields above are those of the first device. */
    quire_loop *loops[QUIRE_REPLICAS_MAX];
    quire_adapt *adapts[QUIRE_REPLICAS_MAX];
    uint32_t n_replicas;
    quire_dispatcher *dispatcher; /* NULL: one device */
    pthread_mutex_t naming_lock;
    quire_pin_naming *namings; /* under the lock: no name is given on two devices at once */
    quire_saver *saver; /* keeps state across restarts: engine/saver.h; NULL = none is kept */
};

/* ---- replicas.c ---- */

/* The options of a device's loop. */
quire_engine_opts quire_replica_opts(const quire_engine *engine, const quire_engine_opts *opts,
                                     uint32_t replica);
/* Make the dispatcher of several devices; with one there is none. Errors: QUIRE_INVAL, QUIRE_NOMEM.
 */
int quire_replicas_open(quire_engine *engine, const quire_engine_opts *opts, quire_error *err);
/* Before the loop starts: other devices take its requests when its own is lost. */
void quire_replica_heir_set(quire_engine *engine, uint32_t replica);
/* Where a request with these tokens goes now; QUIRE_DISPATCH_NONE: nowhere. retain: by which its
 * text is condensed, NULL = it is not. refused: devices that have refused it. */
quire_dispatch quire_replicas_route(const quire_engine *engine, quire_dispatch_ask *ask,
                                    const quire_retain_spec *retain, uint32_t refused);
/* Whether the device was lost, and another one was not. */
bool quire_replicas_is_out(const quire_engine *engine, uint32_t replica);
/* The first device that is not lost; 0 if all are. */
uint32_t quire_replicas_first(const quire_engine *engine);
int quire_replicas_submit(quire_engine *engine, const quire_request_params *params,
                          quire_request **out, quire_error *err);

/* ---- replicas_pins.c ---- */

/* Restore a pin of an earlier process where its requests would go; see quire_saver_devices. ctx:
 * the engine, before its loops start. Errors: quire_adapt_pin_restore(). */
int quire_replicas_pin_restore(void *ctx, const quire_saver_pin *pin, quire_saver_pin_place *place,
                               quire_error *err);

#endif /* QUIRE_ENGINE_ENGINE_HALVES_H */
