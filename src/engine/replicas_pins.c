/* replicas_pins.c - pins of an engine with several devices.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/adapt.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop.h"
#include "engine/pins.h"
#include "engine/saver/saver_life.h"

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

static bool is_same_name(const quire_engine_pin_name *a, const quire_engine_pin_name *b)
{
    return a->tenant_bytes == b->tenant_bytes && strcmp(a->name, b->name) == 0 &&
           (a->tenant_bytes == 0 || memcmp(a->tenant, b->tenant, a->tenant_bytes) == 0);
}

/* Reserve a name on all devices. Errors: QUIRE_AGAIN (another thread is about to give it). */
static int naming_begin(quire_engine *engine, quire_pin_naming *naming)
{
    const quire_pin_naming *other;

    (void)pthread_mutex_lock(&engine->naming_lock);
    other = engine->namings;
    while (other != NULL && !is_same_name(other->name, naming->name)) {
        other = other->next;
    }
    if (other == NULL) {
        naming->next = engine->namings;
        engine->namings = naming;
    }
    (void)pthread_mutex_unlock(&engine->naming_lock);
    return other == NULL ? QUIRE_OK : QUIRE_AGAIN;
}

static void naming_end(quire_engine *engine, const quire_pin_naming *naming)
{
    quire_pin_naming **at = &engine->namings;

    (void)pthread_mutex_lock(&engine->naming_lock);
    while (*at != naming) {
        at = &(*at)->next;
    }
    *at = naming->next;
    (void)pthread_mutex_unlock(&engine->naming_lock);
}

/* Whether another device may hold a pin that this one has refused. */
static bool is_of_device(int status)
{
    return status == QUIRE_LOST || status == QUIRE_LIMIT || status == QUIRE_NOPAGES;
}

typedef struct outcome {
    int status;
    uint64_t missing_bytes;
    quire_error error;
} outcome;

static quire_dispatch_ask ask_of(const quire_engine_pin_params *params)
{
    return (quire_dispatch_ask){ .tenant = params->tenant,
                                 .tenant_bytes = params->tenant_bytes,
                                 .class_index = params->class_index,
                                 .tokens = params->tokens,
                                 .n_tokens = params->n_tokens };
}

/* Create a pin whose name no device has. Of several refusals the first one stands, unless it is the
 * loss of a device. */
static outcome create(const quire_engine *engine, const quire_engine_pin_params *params,
                      quire_engine_pin *out)
{
    quire_dispatch_ask ask = ask_of(params);
    outcome first = { .status = QUIRE_LOST };
    uint32_t refused = 0;

    for (;;) {
        const uint32_t route = quire_replicas_route(engine, &ask, params->retain, refused).replica;
        const uint32_t replica = route != QUIRE_DISPATCH_NONE ? route : 0; /* it says: lost */
        outcome one = { .missing_bytes = 0 };

        if (route == QUIRE_DISPATCH_NONE && refused != 0) {
            return first;
        }
        one.status = quire_adapt_pin_create(engine->adapts[replica], params, out,
                                            &one.missing_bytes, &one.error);
        if (!is_of_device(one.status)) {
            return one;
        }
        first = first.status == QUIRE_LOST ? one : first;
        refused |= 1u << replica;
    }
}

/* Pins spread over the devices: no request says yet where the load is. */
static uint32_t restore_route(const quire_engine *engine, quire_dispatch_ask *ask, uint32_t refused)
{
    const quire_adapt_pins_ask all = { .tenant = NULL };
    quire_replica_load loads[QUIRE_REPLICAS_MAX] = { { .is_lost = false } };

    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        loads[i].has_refused = (refused & 1u << i) != 0;
        (void)quire_adapt_pins_list(engine->adapts[i], &all, NULL, 0, &loads[i].n_requests);
    }
    ask->loads = loads;
    return quire_dispatcher_choose(engine->dispatcher, ask).replica;
}

/* The same for a pin of an earlier process, before the loops start. */
static int restore(const quire_engine *engine, const quire_saver_pin *pin,
                   quire_saver_pin_place *place, quire_error *err)
{
    const quire_engine_pin_params *params = pin->params;
    quire_dispatch_ask ask = ask_of(params);
    outcome first = { .status = QUIRE_LIMIT };
    bool has_asked = false;
    uint32_t refused = ~pin->devices;

    (void)quire_error_set(&first.error, QUIRE_LIMIT,
                          "no device whose kind has its pages may hold it");
    for (;;) {
        const uint32_t route = restore_route(engine, &ask, refused);
        outcome one = { .missing_bytes = 0 };

        if (route == QUIRE_DISPATCH_NONE) {
            *err = first.error;
            return first.status;
        }
        one.status = quire_adapt_pin_restore(engine->adapts[route], params, pin->until_us,
                                             &place->changed, &one.error);
        place->device = route;
        if (!is_of_device(one.status)) {
            *err = one.error;
            return one.status;
        }
        first = has_asked ? first : one;
        has_asked = true;
        refused |= 1u << route;
    }
}

int quire_replicas_pin_restore(void *ctx, const quire_saver_pin *pin, quire_saver_pin_place *place,
                               quire_error *err)
{
    const quire_engine *engine = ctx;

    if (engine->dispatcher != NULL) {
        return restore(engine, pin, place, err);
    }
    place->device = 0;
    return quire_adapt_pin_restore(engine->adapt, pin->params, pin->until_us, &place->changed, err);
}

int quire_engine_pin_create(quire_engine *engine, const quire_engine_pin_params *params,
                            quire_engine_pin *out, uint64_t *missing_bytes, quire_error *err)
{
    const quire_engine_pin_name name = { params->tenant, params->tenant_bytes, params->name };
    quire_pin_naming naming = { .name = &name };
    outcome o = { .status = QUIRE_AGAIN };

    if (engine->dispatcher == NULL || params->name == NULL || params->tokens == NULL) {
        return quire_adapt_pin_create(engine->adapt, params, out, missing_bytes, err);
    }
    if (params->retain != NULL) { /* which all devices must be able to do, as for requests */
        QUIRE_TRY(quire_engine_retain_check(engine, params->retain, "retain:", err));
    }
    if (naming_begin(engine, &naming) == QUIRE_OK) {
        if (pin_find(engine, &name) == engine->n_replicas) {
            o = create(engine, params, out);
        }
        naming_end(engine, &naming);
    }
    if (o.status == QUIRE_AGAIN && o.error.status == QUIRE_OK) {
        (void)quire_error_set(&o.error, QUIRE_AGAIN, "name: there is a pin '%s' already",
                              params->name);
    }
    if (missing_bytes != NULL) {
        *missing_bytes = o.missing_bytes;
    }
    if (err != NULL) {
        *err = o.error;
    }
    return o.status;
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
    bool has_retain;
    quire_retain_spec retain; /* the policy by which the text is condensed */
    int32_t *tokens;
    uint32_t n_tokens;
} moving;

typedef struct gathering {
    quire_adapt *adapt;
    const quire_classes *classes;
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
                   .tokens = malloc(pin->n_tokens * sizeof *m->tokens),
                   .n_tokens = pin->n_tokens };
    m->has_retain = pin->retain[0] != '\0';
    if (m->tokens == NULL ||
        (m->has_retain && quire_retain_parse(pin->retain, &m->retain, NULL) < 0)) {
        free(m->tokens);
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

/* The rest of a pin's lifetime, at least a second. */
static uint64_t ttl_left(const quire_engine_pin *pin)
{
    if (pin->ttl_s == 0 || pin->state != QUIRE_ENGINE_PIN_HELD) {
        return pin->ttl_s;
    }
    return pin->left_s > 0 ? pin->left_s : 1;
}

/* Errors: QUIRE_NOTFOUND (dropped meanwhile), QUIRE_AGAIN, and the refusals of all devices. */
static int move(const quire_engine *engine, quire_adapt *from, const moving *m,
                const quire_engine_pin_name *name)
{
    quire_engine_pin_params params = { .name = m->name,
                                       .tokens = m->tokens,
                                       .n_tokens = m->n_tokens,
                                       .class_index = m->class_index,
                                       .tenant = m->tenant,
                                       .tenant_bytes = m->tenant_bytes,
                                       .retain = m->has_retain ? &m->retain : NULL,
                                       .is_background = true };
    quire_engine_pin pin;

    QUIRE_TRY(quire_adapt_pin_get(from, name, &pin));
    params.ttl_s = ttl_left(&pin);
    QUIRE_TRY(quire_adapt_pin_drop(from, name));
    return create(engine, &params, &pin).status;
}

uint32_t quire_engine_pins_move(quire_engine *engine, uint32_t device, uint32_t *n_gone)
{
    const quire_loop_parts *parts = quire_loop_parts_get(engine->loops[device]);
    gathering g = { .adapt = engine->adapts[device], .classes = &parts->opts->classes };
    uint32_t n_moved = 0;

    (void)quire_loop_call(engine->loops[device], gather_all, &g);
    *n_gone = g.n_failed;
    for (uint32_t i = 0; i < g.n; i++) {
        const moving *m = &g.items[i];
        const quire_engine_pin_name name = { m->tenant, m->tenant_bytes, m->name };
        quire_pin_naming naming = { .name = &name };
        int rc = QUIRE_NOTFOUND;

        if (naming_begin(engine, &naming) == QUIRE_OK) {
            rc = move(engine, g.adapt, m, &name);
            naming_end(engine, &naming);
        }
        n_moved += rc == QUIRE_OK;
        *n_gone += rc < 0 && rc != QUIRE_NOTFOUND;
        free(m->tokens);
    }
    free(g.items);
    return n_moved;
}
