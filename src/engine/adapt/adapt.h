/* adapt.h - the half of the engine that observes the loop and adapts its settings.
 *
 *   admitted     pre-caching: was it foreseen, will it return
 *   first token  limits of classes: did it come too late
 *   step         limits of classes: are promises kept
 *   ended        ghost caches (trace/online/shadow.h), last hour (trace/online/recent.h), pins
 *   idle         pre-caching: compute in advance
 *   dropped      pre-caching: forget the texts; their pins end
 *   each second  judge pre-cached texts, upkeep of pins, size of the pinned region
 *
 * Adaptation receives these events from the loop (loop_events.h) and acts through the loop's
 * setters. Pins and pre-caching also use the cache and the tree (quire_loop_parts), and pins and
 * tuning run functions between two steps (quire_loop_call): loop.h has the rule for each way.
 * Adaptation logs each change that it makes as an event with the reason.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ADAPT_H
#define QUIRE_ENGINE_ADAPT_H

#include "engine/engine.h"
#include "engine/loop/loop.h"
#include "engine/pins.h"
#include "engine/tuning.h"

typedef struct quire_adapt quire_adapt;

/* Create before the loop is started. first: the adaptation of another loop. Events of both go to
 * its list, so destroy it last; NULL = none. Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_adapt_create(quire_adapt **out, quire_loop *loop, quire_adapt *first, quire_error *err);
/* Destroy after the loop has stopped and before it is destroyed. NULL is allowed. */
void quire_adapt_destroy(quire_adapt *adapt);
/* The table of listeners for quire_loop_start(). */
void quire_adapt_events(quire_adapt *adapt, quire_loop_events *out);

/* ---- invalidation. Thread: the engine's ---- */

/* Before an invalidation: stop computing these texts in advance. */
void quire_adapt_forget(quire_adapt *adapt, const quire_invalidate *what);
/* After an invalidation: drop pins of texts that are gone. */
void quire_adapt_invalidated(quire_adapt *adapt);

/* ---- calls of clients: see engine.h, pins.h, tuning.h. Thread: any ---- */

void quire_adapt_stats_get(quire_adapt *adapt, quire_memory_stats *out);
uint32_t quire_adapt_events_list(const quire_adapt *adapt, uint64_t after, quire_event *out,
                                 uint32_t n);

int quire_adapt_pin_create(quire_adapt *adapt, const quire_engine_pin_params *params,
                           quire_engine_pin *out, uint64_t *missing_bytes, quire_error *err);
int quire_adapt_pin_get(quire_adapt *adapt, const quire_engine_pin_name *name,
                        quire_engine_pin *out);
int quire_adapt_pin_renew(quire_adapt *adapt, const quire_engine_pin_name *name, uint64_t ttl_s,
                          quire_engine_pin *out);
int quire_adapt_pin_drop(quire_adapt *adapt, const quire_engine_pin_name *name);

typedef struct quire_adapt_pins_ask {
    const void *tenant; /* NULL = all */
    uint32_t tenant_bytes;
    uint32_t skip;
} quire_adapt_pins_ask;
int quire_adapt_pins_list(quire_adapt *adapt, const quire_adapt_pins_ask *ask,
                          quire_engine_pin *out, uint32_t n, uint32_t *n_all);

/* ---- state that outlives a restart: engine/saver ---- */

typedef struct quire_adapt_pin_view {
    const char *name;
    const void *tenant;
    uint32_t tenant_bytes;
    const char *class_name;
    uint64_t ttl_s;
    uint64_t expires_us; /* 0 = never, or its lifetime begins when it is held */
    uint64_t created_us;
    const char *retain; /* the policy by which the text is condensed; "" = none */
    const int32_t *tokens;
    uint32_t n_tokens;
    uint64_t changed; /* quire_adapt_pins_changes() after its last change */
} quire_adapt_pin_view;

/* Grows with each change of a pin's view and each end of a pin. Thread: any. */
uint64_t quire_adapt_pins_changes(const quire_adapt *adapt);
/* Visit all pins, oldest first. Thread: the engine's. */
void quire_adapt_pins_visit(quire_adapt *adapt,
                            void (*visit)(void *ctx, const quire_adapt_pin_view *pin), void *ctx);
/* Enter a pin of an earlier process. Its bytes are set aside; its text comes from the store or is
 * computed once the loop runs, as after a failed attempt of a new pin. until_us: the end of its
 * lifetime, 0 as in the view. *change is its `changed`. Errors: quire_engine_pin_create(). Thread:
 * the owner's, before the loop starts. */
int quire_adapt_pin_restore(quire_adapt *adapt, const quire_engine_pin_params *params,
                            uint64_t until_us, uint64_t *change, quire_error *err);

int quire_adapt_tune(quire_adapt *adapt, const quire_engine_tune_opts *opts,
                     quire_engine_tuning *out);
/* Apply the tuning of another loop to this loop; the pinned share is a share of this loop's own
 * memory. */
void quire_adapt_tune_follow(quire_adapt *adapt, const quire_engine_tuning *tuning);
void quire_adapt_tuning_get(quire_adapt *adapt, quire_engine_tuning *out);

#endif /* QUIRE_ENGINE_ADAPT_H */
