/* page_set.h - a set of keys of pages: which full pages of text a device has.
 *
 * Keys are hashes, so their first bytes choose the place: a table with linear probing, at most
 * half full. Thread: as its owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PAGE_SET_H
#define QUIRE_ENGINE_PAGE_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/prefix.h"

/* All bits zero: an empty set. */
typedef struct quire_page_set {
    quire_page_key *keys; /* [capacity]; a key of zeros: none */
    uint64_t capacity;    /* a power of two, or 0 */
    uint64_t n;
} quire_page_set;

/* Forget all keys, and give back the memory; the set is empty then. */
void quire_page_set_fini(quire_page_set *set);
bool quire_page_set_has(const quire_page_set *set, const quire_page_key *key);
/* A key that is in the set stays once. Returns false without memory; nothing is added then. */
bool quire_page_set_add(quire_page_set *set, const quire_page_key *key);
/* A key that is not in the set is no error. */
void quire_page_set_remove(quire_page_set *set, const quire_page_key *key);

#endif /* QUIRE_ENGINE_PAGE_SET_H */
