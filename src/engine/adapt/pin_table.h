/* pin_table.h - the engine's record of pins; for pins.c (lifecycle, on the engine's thread) and
 * pins_call.c (calls of clients).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PIN_TABLE_H
#define QUIRE_ENGINE_PIN_TABLE_H

#include "engine/adapt/adapt_object.h"
#include "engine/pins.h"
#include "quire/pin.h"

/* On the stack of a thread that waits until a pin is held. Protected by the table's lock from its
 * registration until is_done. */
typedef struct quire_pin_waiter {
    bool is_done;
    int status;
    quire_engine_pin pin; /* if QUIRE_OK */
    quire_error error;    /* else */
} quire_pin_waiter;

/* Entries belong to the engine's thread. It changes `shown`, the number of entries and their order
 * under the table's lock, so that other threads can read these. */
typedef struct quire_pin_entry {
    quire_pin_id id;
    uint32_t class_index;
    uint32_t n_tokens; /* as requested; with sealed formats core holds only their full pages */
    uint32_t n_cached_tokens; /* when the pin was requested */
    uint32_t n_attempts;
    /* Of a pin with a policy: */
    int32_t *tokens;    /* [n_tokens] the whole text, owned; core has the tokens behind the first
                           n_gone. NULL without a policy */
    uint32_t n_gone;    /* tokens that left the text in condensings */
    uint32_t condensed; /* quire_retained_text.entry, held */
    quire_retain_spec retain;
    uint64_t ttl_s;
    uint64_t until_us; /* of a pin from before a restart: its lifetime ends then; 0 = it begins when
                          the pin is held */
    uint64_t changed;  /* number of the last change that quire_adapt_pin_view shows */
    quire_request *request;   /* the request that computes it; NULL = none */
    quire_pin_waiter *waiter; /* NULL = no waiter */
    quire_engine_pin shown;   /* state after the last change or second; without ages */
    uint64_t created_us;      /* of shown */
    uint64_t expires_us;      /* likewise; 0 = never */
} quire_pin_entry;

struct quire_pin_table {
    quire_pins *table;
    pthread_mutex_t lock;
    pthread_cond_t changed;   /* a waiter is done */
    uint64_t touched_us;      /* last report of pinned texts to the working set */
    _Atomic uint64_t changes; /* the last number given to a change; any thread reads it */
    bool is_uncounted;        /* quire_adapt_pins_count() has work */
    uint32_t n;
    quire_pin_entry entries[]; /* [pins_max], oldest first: n are in use */
};

/* Find an entry; NULL = unknown or removed. */
quire_pin_entry *quire_adapt_pin_find(quire_pin_table *pins, quire_pin_id id);
/* Update entry->shown. */
void quire_adapt_pin_show(quire_adapt *adapt, quire_pin_entry *entry);
/* Describe an entry for clients. The lock is held, or the caller is the engine's thread. */
void quire_adapt_pin_describe(const quire_adapt *adapt, const quire_pin_entry *entry,
                              quire_engine_pin *out);
/* Note that a field of an entry that quire_adapt_pin_view shows has changed. */
void quire_adapt_pin_changed(quire_pin_table *pins, quire_pin_entry *entry);
/* Append a copy of entry and return its place; or remove the last entry. */
quire_pin_entry *quire_adapt_pin_add(quire_pin_table *pins, const quire_pin_entry *entry);
void quire_adapt_pin_take_back(quire_adapt *adapt);
/* Begin a new entry: held at once if its text is cached, else computed. On error the caller removes
 * the entry. */
int quire_adapt_pin_begin(quire_adapt *adapt, quire_pin_entry *entry, quire_error *err);
/* Drop a pin; `why` is for the event ("was dropped"). */
void quire_adapt_pin_drop_entry(quire_adapt *adapt, quire_pin_entry *entry, const char *why);

#endif /* QUIRE_ENGINE_PIN_TABLE_H */
