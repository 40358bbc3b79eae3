/* pin.c - the table of pins: names, states, times.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pin/pin_internal.h"

#include <string.h>

#ifdef QUIRE_TINY
#define PINS_FIRST 1u
#else
#define PINS_FIRST 16u
#endif

int quire_pins_create(quire_pins **out, const quire_pins_opts *opts)
{
    const quire_allocator *allocator =
        opts->allocator != NULL ? opts->allocator : quire_allocator_default();
    quire_pins *pins;

    *out = NULL;
    QUIRE_FAIL_IF(opts->struct_bytes != sizeof(*opts) || opts->tree == NULL, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->pins_max == 0 || opts->pins_max > QUIRE_PINS_MAX, QUIRE_INVAL);
    pins = allocator->alloc(allocator->ctx, sizeof(*pins));
    QUIRE_FAIL_IF(pins == NULL, QUIRE_NOMEM);
    memset(pins, 0, sizeof(*pins));
    pins->allocator = *allocator;
    pins->tree = opts->tree;
    pins->pins_max = opts->pins_max;
    pins->next_us = UINT64_MAX;
    *out = pins;
    return QUIRE_OK;
}

void quire_pins_destroy(quire_pins *pins)
{
    quire_allocator allocator;

    if (pins == NULL) {
        return;
    }
    while (pins->first != 0) {
        (void)quire_pins_drop(pins, pins->items[pins->first - 1].id, pins->tree->now_us);
    }
    allocator = pins->allocator;
    allocator.free(allocator.ctx, pins->heads);
    allocator.free(allocator.ctx, pins->items);
    allocator.free(allocator.ctx, pins);
}

quire_pin *quire_pin_find(const quire_pins *pins, quire_pin_id id)
{
    uint32_t index = (uint32_t)id - 1;

    if (id == QUIRE_PIN_NULL || index >= pins->n_items || pins->items[index].id != id) {
        return NULL;
    }
    return &pins->items[index];
}

bool quire_pin_is_lost(const quire_pins *pins, const quire_pin *pin)
{
    const quire_prefix_tie *tie = quire_prefix_tie_find(pins->tree, pin->ref);

    QUIRE_CHECK(tie != NULL);
    return tie->node == QUIRE_NODE_NULL || tie->n_known < pin->n_held;
}

/* ---- names ---- */

static uint32_t *head_of(const quire_pins *pins, const void *salt, uint32_t salt_bytes,
                         const char *name)
{
    const uint64_t identity[2] = { strlen(name), 0 };
    uint64_t hash = quire_prefix_hash_key(pins->tree->seed, identity, salt, salt_bytes);

    hash = quire_prefix_hash_key(hash, identity, name, (uint32_t)identity[0]);
    return &pins->heads[hash & (pins->capacity - 1)];
}

static uint32_t *head_of_pin(const quire_pins *pins, const quire_pin *pin)
{
    return head_of(pins, pin->spec.key.salt, pin->spec.key.salt_bytes, pin->spec.name);
}

quire_pin_id quire_pins_find(const quire_pins *pins, const void *salt, uint32_t salt_bytes,
                             const char *name)
{
    uint32_t number;

    if (pins->capacity == 0) {
        return QUIRE_PIN_NULL;
    }
    for (number = *head_of(pins, salt, salt_bytes, name); number != 0;
         number = pins->items[number - 1].chain) {
        const quire_pin *pin = &pins->items[number - 1];

        if (pin->spec.key.salt_bytes == salt_bytes && strcmp(pin->spec.name, name) == 0 &&
            (salt_bytes == 0 || memcmp(pin->spec.key.salt, salt, salt_bytes) == 0)) {
            return pin->id;
        }
    }
    return QUIRE_PIN_NULL;
}

/* ---- pins come and go ---- */

static void chain_add(quire_pins *pins, uint32_t number)
{
    uint32_t *head = head_of_pin(pins, &pins->items[number - 1]);

    pins->items[number - 1].chain = *head;
    *head = number;
}

static void chain_remove(quire_pins *pins, uint32_t number)
{
    uint32_t *at = head_of_pin(pins, &pins->items[number - 1]);

    while (*at != number) {
        at = &pins->items[*at - 1].chain;
    }
    *at = pins->items[number - 1].chain;
}

static int items_grow(quire_pins *pins)
{
    uint32_t capacity = pins->capacity > 0 ? pins->capacity * 2 : PINS_FIRST;
    quire_allocator *allocator = &pins->allocator;
    quire_pin *items = allocator->alloc(allocator->ctx, capacity * sizeof(*items));
    uint32_t *heads = allocator->alloc(allocator->ctx, capacity * sizeof(*heads));

    if (items == NULL || heads == NULL) {
        allocator->free(allocator->ctx, heads);
        allocator->free(allocator->ctx, items);
        return QUIRE_NOMEM;
    }
    if (pins->n_items > 0) {
        memcpy(items, pins->items, pins->n_items * sizeof(*items));
    }
    memset(heads, 0, capacity * sizeof(*heads));
    allocator->free(allocator->ctx, pins->heads);
    allocator->free(allocator->ctx, pins->items);
    pins->items = items;
    pins->heads = heads;
    pins->capacity = capacity;
    for (uint32_t i = 0; i < pins->n_items; i++) {
        if (items[i].id != QUIRE_PIN_NULL) {
            chain_add(pins, i + 1);
        }
    }
    return QUIRE_OK;
}

/* Copy the objects that a spec points to into one block. */
static int spec_copy(quire_pins *pins, const quire_pin_spec *spec, quire_pin *pin)
{
    size_t tokens_bytes = spec->n_tokens * sizeof(*spec->tokens);
    size_t name_bytes = strlen(spec->name) + 1;
    unsigned char *memory = pins->allocator.alloc(pins->allocator.ctx,
                                                  tokens_bytes + spec->key.salt_bytes + name_bytes);

    QUIRE_FAIL_IF(memory == NULL, QUIRE_NOMEM);
    memcpy(memory, spec->tokens, tokens_bytes);
    if (spec->key.salt_bytes > 0) {
        memcpy(memory + tokens_bytes, spec->key.salt, spec->key.salt_bytes);
    }
    memcpy(memory + tokens_bytes + spec->key.salt_bytes, spec->name, name_bytes);
    pin->memory = memory;
    pin->spec = *spec;
    pin->spec.tokens = (const int32_t *)(void *)memory;
    pin->spec.key.salt = spec->key.salt_bytes > 0 ? memory + tokens_bytes : NULL;
    pin->spec.name = (const char *)memory + tokens_bytes + spec->key.salt_bytes;
    return QUIRE_OK;
}

/* The number of an unused entry, not in the table yet. */
static uint32_t item_take(quire_pins *pins)
{
    uint32_t number = pins->free_head;

    if (number != 0) {
        pins->free_head = pins->items[number - 1].next;
        return number;
    }
    number = ++pins->n_items;
    memset(&pins->items[number - 1], 0, sizeof(pins->items[0]));
    return number;
}

static void item_give(quire_pins *pins, uint32_t number)
{
    uint32_t generation = pins->items[number - 1].generation + 1;

    pins->items[number - 1] = (quire_pin){ .generation = generation, .next = pins->free_head };
    pins->free_head = number;
}

int quire_pins_reserve(quire_pins *pins, const quire_pin_spec *spec, uint64_t now_us,
                       quire_pin_id *out, uint64_t *missing_bytes)
{
    quire_pin *pin;
    uint32_t number;

    int rc = quire_pins_check(pins, spec, missing_bytes);

    *out = QUIRE_PIN_NULL;
    if (rc == QUIRE_OK || rc == QUIRE_NOPAGES) { /* the spec is valid */
        QUIRE_FAIL_IF(quire_pins_find(pins, spec->key.salt, spec->key.salt_bytes, spec->name) !=
                          QUIRE_PIN_NULL,
                      QUIRE_AGAIN);
    }
    QUIRE_TRY(rc);
    QUIRE_FAIL_IF(pins->n == pins->pins_max, QUIRE_LIMIT);
    QUIRE_TRY(quire_prefix_tie_plan(pins->tree));
    if (pins->free_head == 0 && pins->n_items == pins->capacity) {
        QUIRE_TRY(items_grow(pins));
    }
    number = item_take(pins);
    pin = &pins->items[number - 1];
    if (spec_copy(pins, spec, pin) < 0) {
        item_give(pins, number);
        return QUIRE_NOMEM;
    }
    pin->id = (uint64_t)pin->generation << 32 | number;
    pin->created_us = now_us;
    pin->prev = pins->last;
    pin->next = 0;
    if (pins->last != 0) {
        pins->items[pins->last - 1].next = number;
    } else {
        pins->first = number;
    }
    pins->last = number;
    pins->n++;
    chain_add(pins, number);
    quire_pin_reserve(pins, pin, quire_pin_spec_bytes(pins, spec));
    quire_pin_base_tie(pins, pin);
    (void)quire_pins_renew(pins, pin->id, spec->expires_us);
    *out = pin->id;
    QUIRE_PINS_CHECKED(pins);
    return QUIRE_OK;
}

int quire_pins_renew(quire_pins *pins, quire_pin_id id, uint64_t expires_us)
{
    quire_pin *pin = quire_pin_find(pins, id);

    QUIRE_FAIL_IF(pin == NULL, QUIRE_NOTFOUND);
    pin->spec.expires_us = expires_us;
    if (expires_us != 0 && expires_us < pins->next_us) {
        pins->next_us = expires_us;
    }
    return QUIRE_OK;
}

int quire_pins_drop(quire_pins *pins, quire_pin_id id, uint64_t now_us)
{
    quire_pin *pin = quire_pin_find(pins, id);
    uint32_t number = (uint32_t)id;

    QUIRE_FAIL_IF(pin == NULL, QUIRE_NOTFOUND);
    if (pin->ref != QUIRE_PREFIX_REF_NULL) {
        (void)quire_prefix_release(pins->tree, pin->ref, now_us);
    }
    quire_pin_base_untie(pins, pin);
    quire_pin_reserve(pins, pin, 0);
    chain_remove(pins, number);
    if (pin->prev != 0) {
        pins->items[pin->prev - 1].next = pin->next;
    } else {
        pins->first = pin->next;
    }
    if (pin->next != 0) {
        pins->items[pin->next - 1].prev = pin->prev;
    } else {
        pins->last = pin->prev;
    }
    pins->n--;
    pins->allocator.free(pins->allocator.ctx, pin->memory);
    item_give(pins, number);
    QUIRE_PINS_CHECKED(pins);
    return QUIRE_OK;
}

uint32_t quire_pins_expire(quire_pins *pins, uint64_t now_us,
                           void (*gone)(void *ctx, const quire_pin_info *pin), void *ctx)
{
    uint64_t next_us = UINT64_MAX;
    uint32_t n = 0;
    uint32_t next;

    if (now_us < pins->next_us) {
        return 0;
    }
    for (uint32_t number = pins->first; number != 0; number = next) {
        const quire_pin *pin = &pins->items[number - 1];
        uint64_t expires_us = pin->spec.expires_us;

        next = pin->next;
        if (expires_us != 0 && expires_us <= now_us) {
            quire_pin_info info;

            (void)quire_pins_get(pins, pin->id, &info);
            if (gone != NULL) {
                gone(ctx, &info);
            }
            (void)quire_pins_drop(pins, pin->id, now_us);
            n++;
        } else if (expires_us != 0 && expires_us < next_us) {
            next_us = expires_us;
        }
    }
    pins->next_us = next_us;
    return n;
}

/* ---- observation ---- */

static void info_get(const quire_pins *pins, const quire_pin *pin, quire_pin_info *out)
{
    const quire_pin_spec *spec = &pin->spec;

    *out = (quire_pin_info){ .id = pin->id,
                             .state = QUIRE_PIN_RESERVED,
                             .name = spec->name,
                             .key = spec->key,
                             .tokens = spec->tokens,
                             .n_tokens = spec->n_tokens,
                             .n_windowed_tokens = spec->n_windowed_tokens,
                             .bytes = pin->reserved_bytes,
                             .region = spec->region,
                             .rank = spec->rank,
                             .account = spec->account,
                             .created_us = pin->created_us,
                             .expires_us = spec->expires_us };
    if (pin->ref != QUIRE_PREFIX_REF_NULL) {
        const quire_prefix_tie *tie = quire_prefix_tie_find(pins->tree, pin->ref);

        out->state = quire_pin_is_lost(pins, pin) ? QUIRE_PIN_LOST : QUIRE_PIN_HELD;
        out->n_held_tokens = tie->node != QUIRE_NODE_NULL ? tie->n_known : 0;
        out->bytes = quire_pin_tie_bytes(pins, tie);
    }
}

int quire_pins_get(const quire_pins *pins, quire_pin_id id, quire_pin_info *out)
{
    const quire_pin *pin = quire_pin_find(pins, id);

    QUIRE_FAIL_IF(pin == NULL, QUIRE_NOTFOUND);
    info_get(pins, pin, out);
    return QUIRE_OK;
}

int quire_pins_visit(const quire_pins *pins, int (*visit)(void *ctx, const quire_pin_info *pin),
                     void *ctx)
{
    for (uint32_t number = pins->first; number != 0; number = pins->items[number - 1].next) {
        quire_pin_info info;
        int rc;

        info_get(pins, &pins->items[number - 1], &info);
        rc = visit(ctx, &info);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

uint64_t quire_pins_reserved_bytes(const quire_pins *pins, quire_region_id region)
{
    return region < QUIRE_REGIONS_MAX
               ? quire_counter_get(&pins->tree->cache->regions.items[region].reserved_bytes)
               : 0;
}

void quire_pins_validate(const quire_pins *pins)
{
    uint64_t reserved[QUIRE_REGIONS_MAX] = { 0 };
    uint32_t n = 0;
    uint32_t n_free = 0;

    for (uint32_t number = pins->first, prev = 0; number != 0;
         prev = number, number = pins->items[number - 1].next) {
        const quire_pin *pin = &pins->items[number - 1];

        QUIRE_CHECK((uint32_t)pin->id == number && pin->prev == prev && ++n <= pins->n);
        QUIRE_CHECK(quire_pins_find(pins, pin->spec.key.salt, pin->spec.key.salt_bytes,
                                    pin->spec.name) == pin->id);
        QUIRE_CHECK(pin->spec.expires_us == 0 || pin->spec.expires_us >= pins->next_us);
        QUIRE_CHECK(pin->ref == QUIRE_PREFIX_REF_NULL || pin->reserved_bytes == 0);
        if (pin->ref != QUIRE_PREFIX_REF_NULL) {
            const quire_prefix_tie *tie = quire_prefix_tie_find(pins->tree, pin->ref);

            QUIRE_CHECK(tie != NULL && tie->is_pin && tie->seq == QUIRE_SEQ_NULL);
            QUIRE_CHECK(pin->n_held <= pin->spec.n_tokens && pin->base == QUIRE_PREFIX_REF_NULL);
        } else if (pin->base != QUIRE_PREFIX_REF_NULL) {
            const quire_prefix_tie *tie = quire_prefix_tie_find(pins->tree, pin->base);

            QUIRE_CHECK(tie != NULL && tie->is_pin && tie->n_known <= pin->spec.n_tokens);
        }
        reserved[pin->spec.region] += pin->reserved_bytes;
    }
    for (uint32_t number = pins->free_head; number != 0; number = pins->items[number - 1].next) {
        QUIRE_CHECK(pins->items[number - 1].id == QUIRE_PIN_NULL && ++n_free <= pins->n_items);
    }
    QUIRE_CHECK(n == pins->n && n + n_free == pins->n_items && n <= pins->pins_max);
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        QUIRE_CHECK(reserved[r] <= quire_pins_reserved_bytes(pins, (quire_region_id)r));
    }
}
