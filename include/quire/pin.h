/* quire/pin.h - pins: cached prefixes that stay, as a contract.
 *
 * A pin holds the pages of a text. While it does they are not evicted, do not expire, and do not
 * leave the budget that was set aside for them, whatever others do and wherever budget is moved. A
 * pin that the budget of its region cannot honour is refused up front, with the bytes by which it
 * misses.
 *
 *                check: would it fit?
 *   reserve ----------------------------> RESERVED ---- hold ----> HELD ---- drop, expire ---> gone
 *   (room is set aside; nothing is held,     '-- drop --> gone      '-- invalidated --> LOST
 *    so that the text can be computed)
 *
 * What a pin promises is counted in bytes of charge against the budget of its region: the sum of
 * what is pinned and of what is reserved never exceeds it. Pages that several pins hold count once,
 * in the region that they are charged to.
 *
 * A pin holds its text to the token; where hits end at full pages (is_page_exact) it holds the full
 * pages. Invalidation (quire_prefix_drop_*()) wins over pins: a pin whose text was invalidated is
 * LOST; it stays in the table and holds nothing (or, when a longer text was named, what comes
 * before it) until it is dropped.
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
typedef uint64_t quire_pin_id; /* 0 names nothing; one that was dropped is not found again */

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
    uint32_t n_windowed_tokens; /* tokens whose pages the groups above 0 keep; 0 = all */
    quire_region_id region;     /* whose budget it counts against */
    uint8_t rank;               /* its pages have at least this rank when it has gone */
    uint16_t account;           /* of a key that is new, as in quire_prefix_acquire_opts */
    uint64_t expires_us;        /* 0 = never */
} quire_pin_spec;

/* Whether the budget could honour such a pin now; *missing_bytes (may be NULL) is by how much it
 * misses, 0 when it fits. Changes nothing.
 * Errors: QUIRE_NOPAGES (it misses), QUIRE_INVAL (the spec), QUIRE_NOTFOUND (region). */
int quire_pins_check(const quire_pins *pins, const quire_pin_spec *spec, uint64_t *missing_bytes);

/* Enter a pin, copying the spec, and set its bytes aside. Errors: as quire_pins_check(),
 * QUIRE_AGAIN (there is one of this name), QUIRE_LIMIT (pins_max, the tree's refs_max),
 * QUIRE_NOMEM; *out is QUIRE_PIN_NULL then. What other pins hold of the text stays when they go: it
 * is not set aside once more. */
int quire_pins_reserve(quire_pins *pins, const quire_pin_spec *spec, uint64_t now_us,
                       quire_pin_id *out, uint64_t *missing_bytes);

/* Hold the text of a reserved or lost pin, all of which must be cached. The charge of its pages
 * moves to its region; what is cached there is evicted for it. n_held_tokens of its info says what
 * it holds. Errors: QUIRE_NOTFOUND (id), QUIRE_AGAIN (it is held already, or not wholly cached:
 * compute it and call again), QUIRE_NOPAGES (what is live in the region needs the bytes: call again
 * when some of it has ended; *missing_bytes, may be NULL), QUIRE_LIMIT (the tree's refs_max),
 * QUIRE_NOMEM. On error it stays as it was. */
int quire_pins_hold(quire_pins *pins, quire_pin_id id, uint64_t now_us, uint64_t *missing_bytes);

/* Another time to end at; 0 = never. Errors: QUIRE_NOTFOUND. */
int quire_pins_renew(quire_pins *pins, quire_pin_id id, uint64_t expires_us);

/* Let go: what it held is cached as if just used. Errors: QUIRE_NOTFOUND. */
int quire_pins_drop(quire_pins *pins, quire_pin_id id, uint64_t now_us);

/* Drop those whose time has come; gone, if not NULL, is told each before it goes. Returns how many.
 * Cost: O(1) when none has. */
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
    uint64_t bytes; /* set aside while reserved; held: charge of the pages it holds, those that
                       other pins hold as well included */
    quire_region_id region;
    uint8_t rank;
    uint16_t account;
    uint64_t created_us;
    uint64_t expires_us;
} quire_pin_info;

/* Errors: QUIRE_NOTFOUND. */
int quire_pins_get(const quire_pins *pins, quire_pin_id id, quire_pin_info *out);
/* The pin of a name in a tenant's own names; QUIRE_PIN_NULL = none. Cost: O(1). */
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
