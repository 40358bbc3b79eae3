/* condensed_set.c - see condensed_set.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condensed_set.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/hash128.h"

#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 4096u

typedef struct entry {
    quire_condensed_name name;
    uint64_t used; /* tick of the last use */
    quire_condensed parent;
    quire_condensed next; /* in its bucket */
    uint32_t bucket;
    uint32_t n_children;
    uint32_t n_holders;
    uint32_t n_bytes;
    unsigned char *bytes; /* NULL: free */
} entry;

struct quire_condensed_set {
    quire_condensed_set_opts opts;
    entry *entries; /* [1 + n_max]; entry 0 is none, and has the base as its name */
    quire_condensed buckets[N_BUCKETS];
    uint32_t n_texts;
    uint64_t tick;
};

uint64_t quire_condensed_set_bytes(uint32_t n_max, uint32_t n_bytes)
{
    return sizeof(quire_condensed_set) + sizeof(entry) +
           (uint64_t)n_max * (sizeof(entry) + n_bytes);
}

int quire_condensed_set_create(quire_condensed_set **out, const quire_condensed_set_opts *opts)
{
    quire_condensed_set *set = calloc(1, sizeof *set);

    *out = NULL;
    QUIRE_FAIL_IF(set == NULL, QUIRE_NOMEM);
    set->opts = *opts;
    set->entries = calloc((size_t)opts->n_max + 1, sizeof *set->entries);
    if (set->entries == NULL) {
        free(set);
        return QUIRE_NOMEM;
    }
    set->entries[QUIRE_CONDENSED_NULL].name = opts->base;
    *out = set;
    return QUIRE_OK;
}

void quire_condensed_set_destroy(quire_condensed_set *set)
{
    if (set != NULL) {
        for (uint32_t i = 0; i <= set->opts.n_max; i++) {
            free(set->entries[i].bytes);
        }
        free(set->entries);
        free(set);
    }
}

static uint32_t bucket_of(quire_condensed parent, const void *bytes, uint32_t n_bytes)
{
    uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, &parent, sizeof parent);

    hash = quire_hash_add(hash, bytes, n_bytes);
    return (uint32_t)((hash ^ hash >> 32) % N_BUCKETS);
}

static quire_condensed find_in(const quire_condensed_set *set, uint32_t bucket,
                               quire_condensed parent, const void *bytes, uint32_t n_bytes)
{
    quire_condensed i = set->buckets[bucket];

    while (i != QUIRE_CONDENSED_NULL) {
        const entry *e = &set->entries[i];

        if (e->parent == parent && e->n_bytes == n_bytes && memcmp(e->bytes, bytes, n_bytes) == 0) {
            return i;
        }
        i = e->next;
    }
    return QUIRE_CONDENSED_NULL;
}

quire_condensed quire_condensed_find(const quire_condensed_set *set, quire_condensed parent,
                                     const void *bytes, uint32_t n_bytes)
{
    return find_in(set, bucket_of(parent, bytes, n_bytes), parent, bytes, n_bytes);
}

static void remove_entry(quire_condensed_set *set, quire_condensed i)
{
    entry *e = &set->entries[i];
    quire_condensed *at = &set->buckets[e->bucket];

    if (set->opts.leaves != NULL) {
        set->opts.leaves(set->opts.ctx, i);
    }
    while (*at != i) {
        at = &set->entries[*at].next;
    }
    *at = e->next;
    set->entries[e->parent].n_children--;
    set->n_texts -= e->parent != QUIRE_CONDENSED_NULL;
    free(e->bytes);
    *e = (entry){ 0 };
}

/* A place for an entry; the oldest one that nobody needs makes way. */
static quire_condensed place_find(quire_condensed_set *set, quire_condensed parent)
{
    quire_condensed oldest = QUIRE_CONDENSED_NULL;

    for (quire_condensed i = 1; i <= set->opts.n_max; i++) {
        const entry *e = &set->entries[i];

        if (e->bytes == NULL) {
            return i;
        }
        if (i != parent && e->n_children == 0 && e->n_holders == 0 &&
            (oldest == QUIRE_CONDENSED_NULL || e->used < set->entries[oldest].used)) {
            oldest = i;
        }
    }
    if (oldest != QUIRE_CONDENSED_NULL) {
        remove_entry(set, oldest);
    }
    return oldest;
}

static quire_condensed add(quire_condensed_set *set, uint32_t bucket, quire_condensed parent,
                           const void *bytes, uint32_t n_bytes)
{
    unsigned char *copy = malloc(n_bytes);
    const quire_condensed i = copy != NULL ? place_find(set, parent) : QUIRE_CONDENSED_NULL;

    if (i == QUIRE_CONDENSED_NULL) {
        free(copy);
        return i;
    }
    memcpy(copy, bytes, n_bytes);
    set->entries[i] = (entry){ .parent = parent,
                               .next = set->buckets[bucket],
                               .bucket = bucket,
                               .n_bytes = n_bytes,
                               .bytes = copy };
    quire_condensed_name_add(&set->entries[parent].name, bytes, n_bytes, &set->entries[i].name);
    set->buckets[bucket] = i;
    set->entries[parent].n_children++;
    set->n_texts += parent != QUIRE_CONDENSED_NULL;
    return i;
}

quire_condensed quire_condensed_hold(quire_condensed_set *set, quire_condensed parent,
                                     const void *bytes, uint32_t n_bytes)
{
    const uint32_t bucket = bucket_of(parent, bytes, n_bytes);
    quire_condensed i = find_in(set, bucket, parent, bytes, n_bytes);

    if (i == QUIRE_CONDENSED_NULL) {
        i = add(set, bucket, parent, bytes, n_bytes);
    }
    if (i != QUIRE_CONDENSED_NULL) {
        quire_condensed_keep(set, i);
    }
    return i;
}

void quire_condensed_keep(quire_condensed_set *set, quire_condensed i)
{
    set->entries[i].n_holders++;
    set->entries[i].used = ++set->tick;
}

void quire_condensed_release(quire_condensed_set *set, quire_condensed i)
{
    if (i != QUIRE_CONDENSED_NULL) {
        QUIRE_CHECK(set->entries[i].n_holders > 0);
        set->entries[i].n_holders--;
    }
}

const quire_condensed_name *quire_condensed_name_of(const quire_condensed_set *set,
                                                    quire_condensed i)
{
    return &set->entries[i].name;
}

void quire_condensed_name_add(const quire_condensed_name *parent, const void *bytes,
                              uint32_t n_bytes, quire_condensed_name *out)
{
    unsigned char n[4];
    quire_sha256 hash;

    (void)quire_le_put(n, n_bytes, sizeof n);
    quire_sha256_init(&hash);
    quire_sha256_add(&hash, parent->bytes, sizeof parent->bytes);
    quire_sha256_add(&hash, n, sizeof n);
    quire_sha256_add(&hash, bytes, n_bytes);
    quire_sha256_get(&hash, out->bytes);
}

quire_condensed quire_condensed_parent(const quire_condensed_set *set, quire_condensed i)
{
    return set->entries[i].parent;
}

const void *quire_condensed_bytes(const quire_condensed_set *set, quire_condensed i,
                                  uint32_t *n_bytes)
{
    *n_bytes = set->entries[i].n_bytes;
    return set->entries[i].bytes;
}

quire_condensed quire_condensed_at(const quire_condensed_set *set, uint32_t i)
{
    return i < set->opts.n_max && set->entries[i + 1].bytes != NULL ? i + 1 : QUIRE_CONDENSED_NULL;
}

uint32_t quire_condensed_count(const quire_condensed_set *set)
{
    return set->n_texts;
}
