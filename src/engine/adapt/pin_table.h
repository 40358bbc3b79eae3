/* pin_table.h - the engine's side of a pin; for pins.c (its life, on the engine's thread) and
 * pins_call.c (what clients ask for).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PIN_TABLE_H
#define QUIRE_ENGINE_PIN_TABLE_H

#include "engine/adapt/adapt_object.h"
#include "engine/pins.h"
#include "quire/pin.h"

/* On the stack of who waits until a pin is held. Under the table's lock from when the engine has it
 * to is_done. */
typedef struct quire_pin_waiter {
    bool is_done;
    int status;
    quire_engine_pin pin; /* if QUIRE_OK */
    quire_error error;    /* else */
} quire_pin_waiter;

/* Entries are the engine's thread's, which changes `shown`, the number of entries and their order
 * under the lock of the pins: so others can read those. */
typedef struct quire_pin_entry {
    quire_pin_id id;
    uint32_t class_index;
    uint32_t n_tokens;        /* as asked for; core has the full pages of them in sealed formats */
    uint32_t n_cached_tokens; /* when it was asked for */
    uint32_t n_attempts;
    uint64_t ttl_s;
    quire_request *request;   /* that computes it; NULL = none */
    quire_pin_waiter *waiter; /* NULL = nobody waits */
    quire_engine_pin shown;   /* as of the last change, or the last second; without ages */
    uint64_t created_us;      /* of shown */
    uint64_t expires_us;      /* likewise; 0 = never */
} quire_pin_entry;

struct quire_pin_table {
    quire_pins *table;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a waiter is done */
    uint64_t touched_us;    /* when the working set was last told what is pinned */
    uint32_t n;
    quire_pin_entry entries[]; /* [pins_max], oldest first: n are in use */
};

/* NULL = there is none, or no longer. */
quire_pin_entry *quire_adapt_pin_find(quire_pin_table *pins, quire_pin_id id);
/* What others see of it is as it is now. */
void quire_adapt_pin_show(quire_adapt *adapt, quire_pin_entry *entry);
/* What others see; the lock is held, or the caller is the engine's thread. */
void quire_adapt_pin_describe(const quire_adapt *adapt, const quire_pin_entry *entry,
                              quire_engine_pin *out);
/* One more, or the last one again no longer. Returns where it stands. */
quire_pin_entry *quire_adapt_pin_add(quire_pin_table *pins, const quire_pin_entry *entry);
void quire_adapt_pin_take_back(quire_pin_table *pins);
/* A new entry is held at once if its text is cached, else computed. On error it has to be removed
 * by the caller. */
int quire_adapt_pin_begin(quire_adapt *adapt, quire_pin_entry *entry, quire_error *err);
/* Let go; the event says why ("was dropped"). */
void quire_adapt_pin_drop_entry(quire_adapt *adapt, quire_pin_entry *entry, const char *why);

#endif /* QUIRE_ENGINE_PIN_TABLE_H */
