/* working_set.c - see working_set.h. A table with open addressing, at most three quarters full.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/working_set.h"

#include "base/check.h"
#include "quire/alloc.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SLOTS_MIN   64u
#define BLOCK_BYTES (QUIRE_WORKING_SET_BLOCK_TOKENS * sizeof(int32_t))
#define FILL_MAX(n) ((n) / 4u * 3u)
#define FILL_LOW(n) ((n) / 2u)

typedef struct slot {
    uint64_t hash; /* 0 = free */
    uint64_t used_us;
} slot;

struct quire_working_set {
    quire_working_set_opts opts;
    slot *slots; /* [n_slots] */
    slot *spare; /* [n_slots], to rebuild in */
    uint32_t n_used;
    uint32_t n_halved; /* hashes below 2^64 >> n_halved are kept */
};

int quire_working_set_create(quire_working_set **out, const quire_working_set_opts *opts)
{
    const quire_allocator *allocator = quire_allocator_default();
    const uint32_t n_slots = opts->n_slots != 0 ? opts->n_slots : QUIRE_WORKING_SET_SLOTS;
    quire_working_set *set;

    *out = NULL;
    QUIRE_FAIL_IF(n_slots < SLOTS_MIN || (n_slots & (n_slots - 1)) != 0 || opts->recent_us == 0,
                  QUIRE_INVAL);
    set = allocator->alloc(allocator->ctx, sizeof *set);
    QUIRE_FAIL_IF(set == NULL, QUIRE_NOMEM);
    memset(set, 0, sizeof *set);
    set->opts = *opts;
    set->opts.n_slots = n_slots;
    set->slots = allocator->alloc(allocator->ctx, n_slots * sizeof *set->slots);
    set->spare = allocator->alloc(allocator->ctx, n_slots * sizeof *set->spare);
    if (set->slots == NULL || set->spare == NULL) {
        quire_working_set_destroy(set);
        return QUIRE_NOMEM;
    }
    memset(set->slots, 0, n_slots * sizeof *set->slots);
    *out = set;
    return QUIRE_OK;
}

void quire_working_set_destroy(quire_working_set *set)
{
    const quire_allocator *allocator = quire_allocator_default();

    if (set == NULL) {
        return;
    }
    allocator->free(allocator->ctx, set->slots);
    allocator->free(allocator->ctx, set->spare);
    allocator->free(allocator->ctx, set);
}

static uint32_t place_of(const quire_working_set *set, const slot *slots, uint64_t hash)
{
    const uint32_t mask = set->opts.n_slots - 1;
    uint32_t at = (uint32_t)hash & mask; /* the high bits decide which blocks are sampled */

    while (slots[at].hash != 0 && slots[at].hash != hash) {
        at = (at + 1) & mask;
    }
    return at;
}

static uint64_t threshold(const quire_working_set *set)
{
    return UINT64_MAX >> set->n_halved;
}

static bool is_recent(const quire_working_set *set, const slot *s, uint64_t now_us)
{
    return s->hash != 0 && now_us - s->used_us <= set->opts.recent_us;
}

/* Keep entries that are recent and below the threshold. */
static void rebuild(quire_working_set *set, uint64_t now_us)
{
    slot *old = set->slots;

    memset(set->spare, 0, set->opts.n_slots * sizeof *set->spare);
    set->n_used = 0;
    for (uint32_t i = 0; i < set->opts.n_slots; i++) {
        if (is_recent(set, &old[i], now_us) && old[i].hash <= threshold(set)) {
            set->spare[place_of(set, set->spare, old[i].hash)] = old[i];
            set->n_used++;
        }
    }
    set->slots = set->spare;
    set->spare = old;
}

static void make_room(quire_working_set *set, uint64_t now_us)
{
    rebuild(set, now_us);
    if (set->n_used < FILL_LOW(set->opts.n_slots) / 4 && set->n_halved > 0) {
        set->n_halved--; /* blocks left out before return with their next use */
    }
    while (set->n_used > FILL_LOW(set->opts.n_slots)) {
        set->n_halved++;
        rebuild(set, now_us);
    }
}

static void touch(quire_working_set *set, uint64_t hash, uint64_t now_us)
{
    uint32_t at;

    hash += hash == 0;
    if (hash > threshold(set)) {
        return;
    }
    at = place_of(set, set->slots, hash);
    if (set->slots[at].hash == 0) {
        if (set->n_used >= FILL_MAX(set->opts.n_slots)) {
            make_room(set, now_us);
            if (hash > threshold(set)) {
                return;
            }
            at = place_of(set, set->slots, hash);
        }
        set->n_used++;
    }
    set->slots[at] = (slot){ .hash = hash, .used_us = now_us };
}

void quire_working_set_touch(quire_working_set *set, const quire_working_set_text *text,
                             uint64_t now_us)
{
    uint64_t hash = XXH3_64bits_withSeed(text->salt, text->salt_bytes, set->opts.seed);

    for (uint32_t i = 0; i < text->n_tokens / QUIRE_WORKING_SET_BLOCK_TOKENS; i++) {
        hash = XXH3_64bits_withSeed(text->tokens + (size_t)i * QUIRE_WORKING_SET_BLOCK_TOKENS,
                                    BLOCK_BYTES, hash);
        touch(set, hash, now_us);
    }
}

uint64_t quire_working_set_blocks(const quire_working_set *set, uint64_t now_us)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < set->opts.n_slots; i++) {
        n += is_recent(set, &set->slots[i], now_us);
    }
    return n << set->n_halved;
}
