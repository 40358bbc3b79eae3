/* prefix_ghost.h - a bounded memory of what went: which text, when and why.
 *
 * A ring of records with a hash table over it; the oldest is forgotten first. Full pages are found
 * by the hash of their path. A node that was partly filled is found by its parent's path: a prompt
 * goes on behind it, and no hash of the prompt's pages ends where it ended.
 *
 * An eviction policy may note something of its own in a record, and is told when it is forgotten.
 *
 * Texts are not kept: hashes of 64 bits are taken for equality here, as no page depends on it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_GHOST_H
#define QUIRE_CORE_PREFIX_GHOST_H

#include "quire/alloc.h"
#include "quire/prefix.h"

#include <stdint.h>

typedef struct quire_ghost {
    uint64_t key;  /* what it is found by: quire_ghosts_key_page() or _partial() */
    uint64_t hash; /* path hash of the node */
    uint64_t gone_us;
    uint32_t next; /* in its chain, by number: the next older one */
    uint32_t prev;
    uint16_t n_tokens; /* of the node */
    uint8_t why;       /* quire_prefix_gone */
    uint8_t tip;       /* of the node */
    uint8_t list;      /* the policy's; 0 in a new record */
    uint64_t words[2]; /* likewise */
} quire_ghost;

static inline uint64_t quire_ghosts_key_page(uint64_t path_hash)
{
    return path_hash;
}

static inline uint64_t quire_ghosts_key_partial(uint64_t parent_hash)
{
    return ~parent_hash;
}

typedef struct quire_ghosts {
    quire_allocator allocator;
    quire_ghost *ring; /* [capacity], NULL when off */
    uint32_t *heads;   /* [mask + 1], newest first, by number; 0 = none */
    uint32_t capacity;
    uint32_t mask;
    uint32_t n;
    uint32_t at;                                      /* where the next goes */
    void (*forgotten)(void *ctx, quire_ghost *ghost); /* before its place is taken; may be NULL */
    void *forgotten_ctx;
} quire_ghosts;

/* capacity 0 = off. Errors: QUIRE_NOMEM. */
int quire_ghosts_init(quire_ghosts *ghosts, const quire_allocator *allocator, uint32_t capacity);
void quire_ghosts_fini(quire_ghosts *ghosts);

/* Remember; next and prev are filled in. Returns the record, which stays where it is until it is
 * forgotten; NULL when ghosts are off. Cost: O(1), nothing is allocated. */
quire_ghost *quire_ghosts_add(quire_ghosts *ghosts, const quire_ghost *ghost);

/* The latest full page with this path; NULL if there is none in memory. */
const quire_ghost *quire_ghosts_find(const quire_ghosts *ghosts, uint64_t path_hash);

/* The latest node, full or not, with this key and hash; NULL if there is none in memory. */
quire_ghost *quire_ghosts_find_node(const quire_ghosts *ghosts, uint64_t key, uint64_t hash);

/* Records by number, from 1, which is what a policy can link them by. */
static inline quire_ghost *quire_ghosts_at(const quire_ghosts *ghosts, uint32_t number)
{
    return &ghosts->ring[number - 1];
}

static inline uint32_t quire_ghosts_number(const quire_ghosts *ghosts, const quire_ghost *ghost)
{
    return (uint32_t)(ghost - ghosts->ring) + 1;
}

/* The longest partial node below a path that these tokens begin with, of the latest few. */
const quire_ghost *quire_ghosts_find_partial(const quire_ghosts *ghosts, uint64_t path_hash,
                                             const int32_t *tokens, uint32_t n_tokens);

void quire_ghosts_validate(const quire_ghosts *ghosts);

#endif /* QUIRE_CORE_PREFIX_GHOST_H */
