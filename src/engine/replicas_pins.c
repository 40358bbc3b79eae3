/* replicas_pins.c - pins of an engine with several devices.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/adapt.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop.h"
#include "engine/pins.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* The device that holds the pin of this name; n_replicas: none. */
static uint32_t pin_find(const quire_engine *engine, const quire_engine_pin_name *name)
{
    quire_engine_pin pin;
    uint32_t i = 0;

    while (i < engine->n_replicas &&
           quire_adapt_pin_get(engine->adapts[i], name, &pin) == QUIRE_NOTFOUND) {
        i++;
    }
    return i;
}

int quire_engine_pin_create(quire_engine *engine, const quire_engine_pin_params *params,
                            quire_engine_pin *out, uint64_t *missing_bytes, quire_error *err)
{
    const quire_engine_pin_name name = { params->tenant, params->tenant_bytes, params->name };
    quire_dispatch_ask ask = { .tenant = params->tenant,
                               .tenant_bytes = params->tenant_bytes,
                               .class_index = params->class_index,
                               .tokens = params->tokens,
                               .n_tokens = params->n_tokens };
    uint32_t replica = 0;

    if (engine->dispatcher != NULL && params->name != NULL && params->tokens != NULL) {
        replica = pin_find(engine, &name); /* there its name is refused */
        if (replica == engine->n_replicas) {
            replica = quire_replicas_route(engine, &ask, 0).replica;
        }
        replica = replica != QUIRE_DISPATCH_NONE ? replica : 0;
    }
    return quire_adapt_pin_create(engine->adapts[replica], params, out, missing_bytes, err);
}

int quire_engine_pin_get(quire_engine *engine, const quire_engine_pin_name *name,
                         quire_engine_pin *out)
{
    const uint32_t i = pin_find(engine, name);

    QUIRE_FAIL_IF(i == engine->n_replicas, QUIRE_NOTFOUND);
    return quire_adapt_pin_get(engine->adapts[i], name, out);
}

int quire_engine_pin_renew(quire_engine *engine, const quire_engine_pin_name *name, uint64_t ttl_s,
                           quire_engine_pin *out)
{
    const uint32_t i = pin_find(engine, name);

    QUIRE_FAIL_IF(i == engine->n_replicas, QUIRE_NOTFOUND);
    return quire_adapt_pin_renew(engine->adapts[i], name, ttl_s, out);
}

int quire_engine_pin_drop(quire_engine *engine, const quire_engine_pin_name *name)
{
    const uint32_t i = pin_find(engine, name);

    QUIRE_FAIL_IF(i == engine->n_replicas, QUIRE_NOTFOUND);
    return quire_adapt_pin_drop(engine->adapts[i], name);
}

/* The pins of one device follow those of another. */
int quire_engine_pins_list(quire_engine *engine, const void *tenant, uint32_t tenant_bytes,
                           uint32_t skip, quire_engine_pin *out, uint32_t n, uint32_t *n_all)
{
    uint32_t n_written = 0;
    uint32_t sum = 0;

    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        const quire_adapt_pins_ask ask = { tenant, tenant_bytes, skip > sum ? skip - sum : 0 };
        uint32_t n_here = 0;

        n_written += (uint32_t)quire_adapt_pins_list(engine->adapts[i], &ask, out + n_written,
                                                     n - n_written, &n_here);
        sum += n_here;
    }
    if (n_all != NULL) {
        *n_all = sum;
    }
    return (int)n_written;
}

/* ---- pins of a lost device ---- */

/* A pin on its way to another device. */
typedef struct moving {
    char name[QUIRE_ENGINE_PIN_NAME_MAX];
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
    uint32_t tenant_bytes;
    uint32_t class_index;
    uint64_t ttl_s;
    int32_t *tokens;
    uint32_t n_tokens;
} moving;

typedef struct gathering {
    quire_adapt *adapt;
    const quire_classes *classes;
    uint64_t now_us;
    moving *items;
    uint32_t n;
    uint32_t capacity;
    uint32_t n_failed;
} gathering;

static bool reserve(gathering *g)
{
    const uint32_t capacity = 2 * g->capacity + 8;
    moving *items;

    if (g->n < g->capacity) {
        return true;
    }
    items = realloc(g->items, capacity * sizeof *items);
    if (items != NULL) {
        g->items = items;
        g->capacity = capacity;
    }
    return items != NULL;
}

/* What is left of its lifetime, at least a second. */
static uint64_t ttl_left(const gathering *g, const quire_adapt_pin_view *pin)
{
    if (pin->expires_us == 0) {
        return pin->ttl_s;
    }
    return pin->expires_us > g->now_us ? (pin->expires_us - g->now_us) / 1000000u + 1 : 1;
}

static void gather(void *ctx, const quire_adapt_pin_view *pin)
{
    gathering *g = ctx;
    moving *m;

    if (!reserve(g)) {
        g->n_failed++;
        return;
    }
    m = &g->items[g->n];
    *m = (moving){ .tenant_bytes = pin->tenant_bytes,
                   .ttl_s = ttl_left(g, pin),
                   .tokens = malloc(pin->n_tokens * sizeof *m->tokens),
                   .n_tokens = pin->n_tokens };
    if (m->tokens == NULL) {
        g->n_failed++;
        return;
    }
    memcpy(m->tokens, pin->tokens, pin->n_tokens * sizeof *m->tokens);
    memcpy(m->name, pin->name, strlen(pin->name) + 1);
    if (pin->tenant_bytes > 0) {
        memcpy(m->tenant, pin->tenant, pin->tenant_bytes);
    }
    while (m->class_index + 1 < g->classes->n &&
           strcmp(g->classes->items[m->class_index].name, pin->class_name) != 0) {
        m->class_index++;
    }
    g->n++;
}

static void gather_all(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    gathering *g = ctx;

    (void)cache;
    (void)tree;
    quire_adapt_pins_visit(g->adapt, gather, g);
}

uint32_t quire_engine_pins_move(quire_engine *engine, uint32_t device, uint32_t *n_gone)
{
    const quire_loop_parts *parts = quire_loop_parts_get(engine->loops[device]);
    gathering g = { .adapt = engine->adapts[device],
                    .classes = &parts->opts->classes,
                    .now_us = quire_loop_now_us(engine->loops[device]) };
    uint32_t n_moved = 0;

    (void)quire_loop_call(engine->loops[device], gather_all, &g);
    for (uint32_t i = 0; i < g.n; i++) {
        const moving *m = &g.items[i];
        const quire_engine_pin_name name = { m->tenant, m->tenant_bytes, m->name };
        const quire_engine_pin_params params = { .name = m->name,
                                                 .tokens = m->tokens,
                                                 .n_tokens = m->n_tokens,
                                                 .ttl_s = m->ttl_s,
                                                 .class_index = m->class_index,
                                                 .tenant = m->tenant,
                                                 .tenant_bytes = m->tenant_bytes,
                                                 .is_background = true };
        quire_engine_pin pin;

        (void)quire_adapt_pin_drop(g.adapt, &name);
        n_moved += quire_engine_pin_create(engine, &params, &pin, NULL, NULL) == QUIRE_OK;
        free(m->tokens);
    }
    free(g.items);
    *n_gone = g.n - n_moved + g.n_failed;
    return n_moved;
}
