/* quire/pin.h - pins: cached prefixes that stay, as a contract.
 *
 * A pin holds the pages of a text. Held pages are not evicted, do not expire, and stay in the
 * budget that was set aside for them, even when budgets move. A pin that exceeds the budget of its
 * region is refused up front, with the number of missing bytes.
 *
 *                check: would it fit?
 *   reserve ----------------------------> RESERVED ---- hold ----> HELD ---- drop, expire ---> gone
 *   (room is set aside; nothing is held,     '-- drop --> gone      '-- invalidated --> LOST
 *    so that the text can be computed)
 *
 * A pin counts in bytes of charge against the budget of its region: pinned plus reserved bytes
 * never exceed the budget. A page that several pins hold counts once, in the region to which the
 * page is charged.
 *
 * A pin holds its text to the token, or only the text's full pages when hits end at full pages
 * (is_page_exact). Invalidation (quire_prefix_drop_*()) wins over pins: a pin whose text was
 * invalidated is LOST. A lost pin stays in the table until it is dropped. It holds only the part of
 * its text before the invalidated nodes, or nothing.
 *
 * Time is the caller's, as in quire/prefix.h. Thread: owner of the cache.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_PIN_H
#define QUIRE_PIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/prefix.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef struct quire_pins quire_pins;
typedef uint64_t quire_pin_id; /* 0 = none; a dropped pin's id is not found again */

#define QUIRE_PIN_NULL     0u
#define QUIRE_PIN_NAME_MAX 255u /* bytes */
#define QUIRE_PINS_MAX     (1u << 16)

typedef struct quire_pins_opts {
    uint32_t struct_bytes;
    uint32_t pins_max;                /* 1 .. QUIRE_PINS_MAX; default 4096 */
    quire_prefix *tree;               /* borrowed; destroy the pins before it */
    const quire_allocator *allocator; /* NULL = C library */
} quire_pins_opts;

#define QUIRE_PINS_OPTS_INIT                                                                       \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_pins_opts), .pins_max = 4096                        \
    }

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_pins_create(quire_pins **out, const quire_pins_opts *opts);
/* Drops every pin. */
void quire_pins_destroy(quire_pins *pins);

typedef struct quire_pin_spec {
    const char *name; /* 1 .. QUIRE_PIN_NAME_MAX bytes; unique among those with the same key.salt */
    quire_prefix_key key;
    const int32_t *tokens;
    uint32_t n_tokens;          /* >= 1 */
    uint32_t n_windowed_tokens; /* tokens with pages in groups above 0 that have no window
                                   (quire/cache.h); 0 = all */
    quire_region_id region;     /* the pin counts against its budget */
    uint8_t rank;               /* its pages keep at least this rank after the pin is gone */
    uint16_t account;           /* of a new key, as in quire_prefix_acquire_opts */
    uint64_t expires_us;        /* 0 = never */
} quire_pin_spec;

/* Check whether the budget has room for such a pin now; *missing_bytes (may be NULL) gets the
 * shortage, 0 when the pin fits. Changes nothing.
 * Errors: QUIRE_NOPAGES (no room), QUIRE_INVAL (the spec), QUIRE_NOTFOUND (region). */
int quire_pins_check(const quire_pins *pins, const quire_pin_spec *spec, uint64_t *missing_bytes);

/* Create a pin, copying the spec, and set its bytes aside. Pages of the text that other pins hold
 * are not set aside again; they stay when the other pins go. Errors: as quire_pins_check(),
 * QUIRE_AGAIN (the name is taken), QUIRE_LIMIT (pins_max, the tree's refs_max), QUIRE_NOMEM. On
 * error *out is QUIRE_PIN_NULL. */
int quire_pins_reserve(quire_pins *pins, const quire_pin_spec *spec, uint64_t now_us,
                       quire_pin_id *out, uint64_t *missing_bytes);

/* Hold the text of a reserved or lost pin; the whole text must be cached. The charge of its pages
 * moves to the pin's region; cached pages there are evicted to make room.
 * quire_pin_info.n_held_tokens is the number of held tokens. Errors: QUIRE_NOTFOUND (id),
 * QUIRE_AGAIN (the pin is held already, or the text is not wholly cached: compute it and call
 * again), QUIRE_NOPAGES (live pages of the region need the bytes: call again when some have ended;
 * *missing_bytes, may be NULL), QUIRE_LIMIT (the tree's refs_max), QUIRE_NOMEM. On error the pin is
 * unchanged. */
int quire_pins_hold(quire_pins *pins, quire_pin_id id, uint64_t now_us, uint64_t *missing_bytes);

/* Change the time at which the pin expires; 0 = never. Errors: QUIRE_NOTFOUND. */
int quire_pins_renew(quire_pins *pins, quire_pin_id id, uint64_t expires_us);

/* Drop a pin; its pages stay cached as if just used. Errors: QUIRE_NOTFOUND. */
int quire_pins_drop(quire_pins *pins, quire_pin_id id, uint64_t now_us);

/* Drop the expired pins; gone, if not NULL, is called for each pin before the drop. Returns the
 * number of dropped pins.
 * Cost: O(1) when no pin has expired. */
struct quire_pin_info;
uint32_t quire_pins_expire(quire_pins *pins, uint64_t now_us,
                           void (*gone)(void *ctx, const struct quire_pin_info *pin), void *ctx);

typedef enum quire_pin_state {
    QUIRE_PIN_RESERVED,
    QUIRE_PIN_HELD,
    QUIRE_PIN_LOST
} quire_pin_state;

typedef struct quire_pin_info {
    quire_pin_id id;
    quire_pin_state state;
    const char *name; /* memory: borrowed, until the pin goes; so are tokens and key.salt */
    quire_prefix_key key;
    const int32_t *tokens; /* [n_tokens] */
    uint32_t n_tokens;
    uint32_t n_windowed_tokens;
    uint32_t n_held_tokens;
    uint64_t bytes; /* reserved: the bytes set aside; held: charge of its pages, including pages
                       shared with other pins */
    quire_region_id region;
    uint8_t rank;
    uint16_t account;
    uint64_t created_us;
    uint64_t expires_us;
} quire_pin_info;

/* Errors: QUIRE_NOTFOUND. */
int quire_pins_get(const quire_pins *pins, quire_pin_id id, quire_pin_info *out);
/* The pin with this name among the pins of a tenant (salt); QUIRE_PIN_NULL = none. Cost: O(1). */
quire_pin_id quire_pins_find(const quire_pins *pins, const void *salt, uint32_t salt_bytes,
                             const char *name);
/* Visit every pin, oldest first, until visit returns non-zero; returns that value. visit must not
 * change the pins. */
int quire_pins_visit(const quire_pins *pins, int (*visit)(void *ctx, const quire_pin_info *pin),
                     void *ctx);

/* The bytes set aside in a region for pins that are not held yet. */
uint64_t quire_pins_reserved_bytes(const quire_pins *pins, quire_region_id region);

/* Check every invariant; aborts with a message when one is broken. */
void quire_pins_validate(const quire_pins *pins);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_PIN_H */
