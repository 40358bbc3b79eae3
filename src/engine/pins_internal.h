/* pins_internal.h - the engine's side of a pin; for pins.c (its life, on the engine's thread) and
 * pins_call.c (what clients ask for).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PINS_INTERNAL_H
#define QUIRE_ENGINE_PINS_INTERNAL_H

#include "engine/engine_internal.h"
#include "engine/pins.h"
#include "quire/pin.h"

/* On the stack of who waits until a pin is held. Under the engine's lock from when the engine has
 * it to is_done. */
typedef struct quire_pin_waiter {
    bool is_done;
    int status;
    quire_engine_pin pin; /* if QUIRE_OK */
    quire_error error;    /* else */
} quire_pin_waiter;

typedef struct quire_pin_entry {
    quire_pin_id id;
    uint32_t class_index;
    uint32_t n_tokens;        /* as asked for; core has the full pages of them in sealed formats */
    uint32_t n_cached_tokens; /* when it was asked for */
    uint32_t n_attempts;
    uint64_t ttl_s;
    quire_request *request;   /* that computes it; NULL = none */
    quire_pin_waiter *waiter; /* NULL = nobody waits */
} quire_pin_entry;

struct quire_engine_pins {
    quire_pins *table;
    uint64_t touched_us; /* when the working set was last told what is pinned */
    uint32_t n;
    quire_pin_entry entries[]; /* [pins_max], oldest first: n are in use */
};

/* NULL = there is none, or no longer. */
quire_pin_entry *quire_engine_pins_find(quire_engine_pins *pins, quire_pin_id id);
void quire_engine_pin_describe(const quire_engine *engine, const quire_pin_entry *entry,
                               quire_engine_pin *out);
/* A new entry is held at once if its text is cached, else computed. On error it has to be removed
 * by the caller. */
int quire_engine_pin_begin(quire_engine *engine, quire_pin_entry *entry, quire_error *err);
/* Let go; the event says why ("was dropped"). */
void quire_engine_pin_drop_entry(quire_engine *engine, quire_pin_entry *entry, const char *why);

#endif /* QUIRE_ENGINE_PINS_INTERNAL_H */
