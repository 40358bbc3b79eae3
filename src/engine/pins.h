/* pins.h - pinned prefixes. A pin computes its tokens, or adopts their cached KV, and holds them
 * until its TTL ends or a client drops it.
 *
 *   create --> room is set aside --> computing --> held --> expired | dropped | invalidated
 *     |                                  '--> failed: gone, with the reason
 *     '--> refused: the budget cannot honour it; the message names the missing bytes
 *
 * Memory is set aside before the computation begins, so an accepted pin cannot fail for lack of
 * pages. A pin is charged to the region of its class. The core library holds and records pins
 * (quire/pin.h); this module computes, names and ends them.
 *
 * Pins of classes without a pinned region are charged to the dynamic region. Together they may hold
 * at most half of it, so that requests keep memory to compute in.
 *
 * Names are unique per tenant. With sealed formats, where hits end at full pages, a pin holds only
 * the full pages of its tokens; n_held_tokens tells how many tokens those are.
 *
 * A pin with a policy holds the text as requests with this policy find it (condensing.h): the pages
 * of the last condensing, and those behind it.
 *
 * Invalidation overrides pins: an invalidated text must never be served again. The pin is dropped,
 * with an event that names it; later lookups of its name return QUIRE_NOTFOUND.
 *
 * Thread: any. Calls that change pins run on the engine's thread between two steps, and their
 * caller waits, as for quire_engine_invalidate().
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PINS_H
#define QUIRE_ENGINE_PINS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

#define QUIRE_ENGINE_PIN_NAME_MAX  64u   /* bytes, the end included */
#define QUIRE_ENGINE_PINS_MAX      4096u /* opts.pins_max at most */
#define QUIRE_ENGINE_PIN_TTL_MAX_S ((uint64_t)366 * 24 * 60 * 60)

typedef enum quire_engine_pin_state {
    QUIRE_ENGINE_PIN_COMPUTING,
    QUIRE_ENGINE_PIN_HELD
} quire_engine_pin_state;
static inline const char *quire_engine_pin_state_name(quire_engine_pin_state state)
{
    return state == QUIRE_ENGINE_PIN_HELD ? "held" : "computing";
}

typedef struct quire_engine_pin_params {
    const char *name;      /* letters, digits and . _ - : / , at least one; unique per tenant */
    const int32_t *tokens; /* copied */
    uint32_t n_tokens;     /* >= 1 */
    uint64_t ttl_s;        /* 0 = no expiry */
    uint32_t class_index;  /* into quire_engine_opts.classes */
    const void *tenant;    /* as in quire_request_params */
    uint32_t tenant_bytes;
    /* The text is held as requests with this policy condense it (condensing.h): its kept tokens,
     * and those behind the last place. Copied; NULL = all tokens are held. */
    const quire_retain_spec *retain;
    bool is_background; /* return when the pin is accepted; else when it is held */
} quire_engine_pin_params;

typedef struct quire_engine_pin {
    char name[QUIRE_ENGINE_PIN_NAME_MAX];
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
    uint32_t tenant_bytes;
    quire_engine_pin_state state;
    uint32_t class_index;
    char retain[QUIRE_RETAIN_TEXT_MAX]; /* its policy; "" = none */
    uint32_t n_tokens;
    uint32_t n_held_tokens;   /* 0 while computing; with a policy those that are kept */
    uint32_t n_cached_tokens; /* of n_tokens, already cached at creation */
    uint64_t bytes;           /* charged; while computing: bytes set aside */
    uint64_t age_s;
    uint64_t ttl_s;  /* as asked for; 0 = none */
    uint64_t left_s; /* time until expiry; 0 without TTL */
} quire_engine_pin;

/* Errors, with err naming the field: QUIRE_INVAL (name, tokens, class, ttl), QUIRE_RANGE (tokens
 * beyond the context), QUIRE_LIMIT (opts.pins_max, the tenant's quota), QUIRE_NOPAGES (the budget
 * cannot hold it), QUIRE_AGAIN (a pin of this name exists, or the engine is ending), QUIRE_CANCELED
 * (dropped or invalidated while it was computed), QUIRE_NOMEM, and any error of the computation. A
 * tenant's quota and QUIRE_NOPAGES also fill in *missing_bytes, a figure that err repeats;
 * missing_bytes may be NULL. On QUIRE_OK *out is the current state of the pin. */
int quire_engine_pin_create(quire_engine *engine, const quire_engine_pin_params *params,
                            quire_engine_pin *out, uint64_t *missing_bytes, quire_error *err);

typedef struct quire_engine_pin_name {
    const void *tenant;
    uint32_t tenant_bytes;
    const char *name;
} quire_engine_pin_name;

/* A pin's state after its last change; its bytes are at most a second old. Never waits for the
 * engine. Errors: QUIRE_NOTFOUND. */
int quire_engine_pin_get(quire_engine *engine, const quire_engine_pin_name *name,
                         quire_engine_pin *out);
/* Restart the lifetime of a pin with this TTL. Errors: QUIRE_NOTFOUND, QUIRE_AGAIN (the engine has
 * ended), QUIRE_INVAL (ttl). */
int quire_engine_pin_renew(quire_engine *engine, const quire_engine_pin_name *name, uint64_t ttl_s,
                           quire_engine_pin *out);
/* Drop a pin. Its pages stay cached until they are evicted. A pin in computation is cancelled.
 * Errors: as above. */
int quire_engine_pin_drop(quire_engine *engine, const quire_engine_pin_name *name);

/* All pins (tenant NULL) or a tenant's, oldest first: skips `skip` pins, then writes at most n.
 * Returns the number written. Never waits for the engine. *n_all, if not NULL, receives the total
 * number. */
int quire_engine_pins_list(quire_engine *engine, const void *tenant, uint32_t tenant_bytes,
                           uint32_t skip, quire_engine_pin *out, uint32_t n, uint32_t *n_all);

/* Of an engine with several devices: drop the pins of a lost one, those in computation too, and
 * create them again on the devices that are left, where they are computed. Returns how many were
 * accepted there; *n_gone were not. Pins that a client drops meanwhile count as neither. A later
 * call moves pins that had no memory to be moved, or were not yet known. Waits for the lost
 * device's thread. */
uint32_t quire_engine_pins_move(quire_engine *engine, uint32_t device, uint32_t *n_gone);

#endif /* QUIRE_ENGINE_PINS_H */
