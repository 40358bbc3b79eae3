/* page_set.c - see page_set.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/dispatch/page_set.h"

#include "store/page_record.h"

#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 1024u

static const quire_page_key none;

/* Where the search for a key begins. */
static uint64_t home_of(const quire_page_set *set, const quire_page_key *key)
{
    uint64_t hash;

    memcpy(&hash, key->bytes, sizeof hash);
    return hash & (set->capacity - 1);
}

/* The place of the key, or the free place where it would be. The set has a free place. */
static uint64_t find(const quire_page_set *set, const quire_page_key *key)
{
    uint64_t i = home_of(set, key);

    while (!quire_page_key_is(&set->keys[i], &none) && !quire_page_key_is(&set->keys[i], key)) {
        i = (i + 1) & (set->capacity - 1);
    }
    return i;
}

static bool grow(quire_page_set *set)
{
    quire_page_set larger = { .capacity = set->capacity != 0 ? 2 * set->capacity : CAPACITY_MIN,
                              .n = set->n };

    larger.keys = calloc(larger.capacity, sizeof *larger.keys);
    if (larger.keys == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < set->capacity; i++) {
        if (!quire_page_key_is(&set->keys[i], &none)) {
            larger.keys[find(&larger, &set->keys[i])] = set->keys[i];
        }
    }
    free(set->keys);
    *set = larger;
    return true;
}

void quire_page_set_fini(quire_page_set *set)
{
    free(set->keys);
    *set = (quire_page_set){ .keys = NULL };
}

bool quire_page_set_has(const quire_page_set *set, const quire_page_key *key)
{
    return set->n > 0 && quire_page_key_is(&set->keys[find(set, key)], key);
}

bool quire_page_set_add(quire_page_set *set, const quire_page_key *key)
{
    uint64_t i;

    if (2 * (set->n + 1) > set->capacity && !grow(set)) {
        return false;
    }
    i = find(set, key);
    set->n += quire_page_key_is(&set->keys[i], &none);
    set->keys[i] = *key;
    return true;
}

/* The keys behind a removed one move up, so that no search ends too early. */
void quire_page_set_remove(quire_page_set *set, const quire_page_key *key)
{
    const uint64_t mask = set->capacity - 1;
    uint64_t hole;

    if (!quire_page_set_has(set, key)) {
        return;
    }
    hole = find(set, key);
    for (uint64_t i = (hole + 1) & mask; !quire_page_key_is(&set->keys[i], &none);
         i = (i + 1) & mask) {
        const uint64_t home = home_of(set, &set->keys[i]);

        if (((i - home) & mask) >= ((i - hole) & mask)) {
            set->keys[hole] = set->keys[i];
            hole = i;
        }
    }
    set->keys[hole] = none;
    set->n--;
}
