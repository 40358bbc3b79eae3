/* pin_internal.h - the table of pins, and declarations shared by its files.
 *
 *   pin.c        the table: names, states, times
 *   pin_hold.c   a pin's share of its region's budget, and holding a text
 *
 * Invariants (quire_pins_validate checks all of them)
 *   N1  a region's reserved bytes are the sum of those of its reserved pins
 *   N2  a held pin has a tie (ref); the pin is lost when the tie is dead or shorter than n_held.
 *       A reserved pin has a tie (base) to the part of its text that other pins held at the time of
 *       the reservation. So this part stays, and the reserved bytes suffice, when those pins go
 *   N3  every pin is in the list by age, and in one chain by salt and name
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
    uint32_t prev; /* by age, by number; in an unused entry next is the next unused entry */
    uint32_t next;
    uint32_t chain;        /* the next pin with the same hash, by number */
    quire_pin_spec spec;   /* pointers into memory */
    quire_prefix_ref ref;  /* 0 = reserved */
    quire_prefix_ref base; /* of a reserved pin: its tie to the pinned part of its text; 0 = none */
    uint32_t n_held;       /* tokens held at quire_pins_hold() */
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

/* NULL for an unknown id. */
quire_pin *quire_pin_find(const quire_pins *pins, quire_pin_id id);

/* Whether a held pin has lost its text. */
bool quire_pin_is_lost(const quire_pins *pins, const quire_pin *pin);

/* ---- pin_hold.c ---- */

/* Bytes that a spec would set aside. */
uint64_t quire_pin_spec_bytes(const quire_pins *pins, const quire_pin_spec *spec);
/* Charge of a tie's pages. */
uint64_t quire_pin_tie_bytes(const quire_pins *pins, const quire_prefix_tie *tie);
/* Set bytes aside for a pin in place of its former ones; 0 gives them back. */
void quire_pin_reserve(quire_pins *pins, quire_pin *pin, uint64_t bytes);
/* Tie a reserved pin to the part of its text that other pins hold, or untie it. The tie is
 * planned. */
void quire_pin_base_tie(quire_pins *pins, quire_pin *pin);
void quire_pin_base_untie(quire_pins *pins, quire_pin *pin);

#define QUIRE_PINS_CHECKED(pins) QUIRE_CHECKED(quire_pins_validate, pins)

#endif /* QUIRE_CORE_PIN_INTERNAL_H */
