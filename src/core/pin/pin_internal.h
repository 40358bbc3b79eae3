/* pin_internal.h - the table of pins, and what its files share.
 *
 *   pin.c        the table: names, states, times
 *   pin_hold.c   what a pin takes of its region's budget, and holding it
 *
 * Invariants (quire_pins_validate checks all of them)
 *   N1  a region's reserved bytes are the sum of those of its reserved pins
 *   N2  a held pin has a tie; when that is dead or shorter than what was held the pin is lost
 *       until then it has one to what other pins held of its text when it was reserved, so that
 * this stays, and what was set aside will do, when those go N3  every pin is in the list by age,
 * and in one chain by salt and name
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PIN_INTERNAL_H
#define QUIRE_CORE_PIN_INTERNAL_H

#include "core/prefix/prefix_internal.h"
#include "quire/pin.h"

typedef struct quire_pin {
    quire_pin_id id; /* (generation << 32) | number; 0 = unused */
    uint32_t generation;
    uint32_t prev; /* by age, by number; of an unused one: next is the next unused one */
    uint32_t next;
    uint32_t chain;        /* the next with the same hash, by number */
    quire_pin_spec spec;   /* pointers into memory */
    quire_prefix_ref ref;  /* 0 = reserved */
    quire_prefix_ref base; /* of a reserved one, to what was pinned of its text; 0 = none */
    uint32_t n_held;       /* tokens, when it was held */
    uint64_t reserved_bytes;
    uint64_t created_us;
    void *memory;
} quire_pin;

struct quire_pins {
    quire_allocator allocator;
    quire_prefix *tree;
    uint32_t pins_max;
    uint32_t n;
    quire_pin *items; /* [capacity], number - 1 */
    uint32_t capacity;
    uint32_t n_items; /* ever used */
    uint32_t free_head;
    uint32_t first; /* oldest */
    uint32_t last;
    uint32_t *heads;  /* [capacity], a power of two: chains by hash */
    uint64_t next_us; /* no pin expires before */
};

/* NULL for an id that is not there. */
quire_pin *quire_pin_find(const quire_pins *pins, quire_pin_id id);

/* Whether a held pin has lost what it held. */
bool quire_pin_is_lost(const quire_pins *pins, const quire_pin *pin);

/* ---- pin_hold.c ---- */

/* Bytes that a spec would set aside. */
uint64_t quire_pin_spec_bytes(const quire_pins *pins, const quire_pin_spec *spec);
/* Charge of the pages that a tie holds. */
uint64_t quire_pin_tie_bytes(const quire_pins *pins, const quire_prefix_tie *tie);
/* Set bytes aside, give them back. */
void quire_pin_reserve(quire_pins *pins, quire_pin *pin, uint64_t bytes);
/* Tie a reserved pin to what other pins hold of its text, untie it. The tie is planned. */
void quire_pin_base_tie(quire_pins *pins, quire_pin *pin);
void quire_pin_base_untie(quire_pins *pins, quire_pin *pin);

#if QUIRE_DEBUG >= 2
#define QUIRE_PINS_CHECKED(pins) quire_pins_validate(pins)
#else
#define QUIRE_PINS_CHECKED(pins) ((void)(pins))
#endif

#endif /* QUIRE_CORE_PIN_INTERNAL_H */
