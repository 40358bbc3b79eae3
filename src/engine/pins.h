/* pins.h - prefixes that stay: a pin computes its tokens, or adopts what is cached of them, and
 * holds them until its time has come or somebody drops it.
 *
 *   create --> room is set aside --> computing --> held --> expired | dropped | invalidated
 *     |                                  '--> failed: gone, with the reason
 *     '--> refused: the budget cannot honour it; the message names the missing bytes
 *
 * The room is set aside before anything is computed, so that a pin that was accepted cannot fail
 * for want of memory; it is charged to the region of its class. The holding itself, and its record,
 * are core's (quire/pin.h): this is the part that computes, names and ends them.
 *
 * Pins of classes that have no pinned region are charged to the dynamic one, of which they get half
 * at most: or they could leave nothing to compute with for everybody else.
 *
 * A name belongs to a tenant. Where hits end at full pages (sealed formats) the pin holds the full
 * pages of its tokens; n_held_tokens says so.
 *
 * Invalidation wins over pins: it says that a text must not be served any more, and whoever says so
 * must be able to rely on it. The pin is dropped with an event that names it. A lookup under its
 * name gets QUIRE_NOTFOUND from then on.
 *
 * Thread: any; those that change something wait for the engine between two steps, as
 * quire_engine_invalidate() does.
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
    uint64_t ttl_s;        /* 0 = until it is dropped */
    uint32_t class_index;  /* into quire_engine_opts.classes */
    const void *tenant;    /* as in quire_request_params */
    uint32_t tenant_bytes;
    bool is_background; /* return once it is accepted; else when it is held */
} quire_engine_pin_params;

typedef struct quire_engine_pin {
    char name[QUIRE_ENGINE_PIN_NAME_MAX];
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
    uint32_t tenant_bytes;
    quire_engine_pin_state state;
    uint32_t class_index;
    uint32_t n_tokens;
    uint32_t n_held_tokens;   /* 0 while computing */
    uint32_t n_cached_tokens; /* that were there already */
    uint64_t bytes;           /* charged; while computing: set aside */
    uint64_t age_s;
    uint64_t ttl_s;  /* as asked for; 0 = none */
    uint64_t left_s; /* until it expires; 0 without TTL */
} quire_engine_pin;

/* Errors, with err naming the field: QUIRE_INVAL (name, tokens, class, ttl), QUIRE_RANGE (tokens
 * beyond the context), QUIRE_LIMIT (opts.pins_max, the tenant's quota), QUIRE_NOPAGES (the budget
 * cannot honour it), both but for pins_max with *missing_bytes, which err says too, QUIRE_AGAIN
 * (there is a pin of this name, or the engine ends), QUIRE_CANCELED (dropped or invalidated while
 * it was computed), QUIRE_NOMEM, and whatever ended the computation. out: the pin as it is when
 * this returns QUIRE_OK. missing_bytes may be NULL. */
int quire_engine_pin_create(quire_engine *engine, const quire_engine_pin_params *params,
                            quire_engine_pin *out, uint64_t *missing_bytes, quire_error *err);

typedef struct quire_engine_pin_name {
    const void *tenant;
    uint32_t tenant_bytes;
    const char *name;
} quire_engine_pin_name;

/* As it was after its last change; its bytes within the last second. Never waits for the engine.
 * Errors: QUIRE_NOTFOUND. */
int quire_engine_pin_get(quire_engine *engine, const quire_engine_pin_name *name,
                         quire_engine_pin *out);
/* Its time begins anew with this TTL. Errors: QUIRE_NOTFOUND, QUIRE_AGAIN (the engine has ended),
 * QUIRE_INVAL (ttl). */
int quire_engine_pin_renew(quire_engine *engine, const quire_engine_pin_name *name, uint64_t ttl_s,
                           quire_engine_pin *out);
/* Let go; what it held stays cached until it is evicted. One that is being computed is cancelled.
 * Errors: as above. */
int quire_engine_pin_drop(quire_engine *engine, const quire_engine_pin_name *name);

/* All pins (tenant NULL) or a tenant's, oldest first: the first n of them behind `skip`. Returns
 * how many were written. Never waits for the engine. *n_all, if not NULL, gets how many there are.
 */
int quire_engine_pins_list(quire_engine *engine, const void *tenant, uint32_t tenant_bytes,
                           uint32_t skip, quire_engine_pin *out, uint32_t n, uint32_t *n_all);

#endif /* QUIRE_ENGINE_PINS_H */
