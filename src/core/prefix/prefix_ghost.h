/* prefix_ghost.h - a bounded memory of ended nodes: text, time and reason.
 *
 * A ring of records with a hash table; the oldest record is forgotten first. A full page's record
 * is found by the hash of its path. A partly filled node's record is found by the hash of its
 * parent's path, because no page of a longer prompt ends where the node ended.
 *
 * An eviction policy may store words in a record, and is told when the record is forgotten.
 *
 * Texts are not kept: equal 64-bit hashes count as equal texts, because no page depends on them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_GHOST_H
#define QUIRE_CORE_PREFIX_GHOST_H

#include "quire/alloc.h"
#include "quire/prefix.h"

#include <stdint.h>

typedef struct quire_ghost {
    uint64_t key;  /* the look-up key: quire_ghosts_key_page() or _partial() */
    uint64_t hash; /* path hash of the node */
    uint64_t gone_us;
    uint32_t next; /* in its chain, by number: the next older record */
    uint32_t prev;
    uint16_t n_tokens; /* of the node */
    uint8_t why;       /* quire_prefix_gone */
    uint8_t tip;       /* of the node */
    uint8_t list;      /* for the policy; 0 in a new record */
    uint8_t copy;      /* the tree's copies_epoch, if the node had a copy below memory; else 0 */
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
    uint32_t at;                                      /* index of the next record */
    void (*forgotten)(void *ctx, quire_ghost *ghost); /* called before a record is overwritten; may
                                                         be NULL */
    void *forgotten_ctx;
} quire_ghosts;

/* capacity 0 = off. Errors: QUIRE_NOMEM. */
int quire_ghosts_init(quire_ghosts *ghosts, const quire_allocator *allocator, uint32_t capacity);
void quire_ghosts_fini(quire_ghosts *ghosts);

/* Add a record; next and prev are filled in. Returns the record, whose address is valid until the
 * record is forgotten; NULL when ghosts are off. Cost: O(1), nothing is allocated. */
quire_ghost *quire_ghosts_add(quire_ghosts *ghosts, const quire_ghost *ghost);

/* The latest record of a full page with this path; NULL = none. */
const quire_ghost *quire_ghosts_find(const quire_ghosts *ghosts, uint64_t path_hash);

/* The latest record of a node, full or not, with this key and hash; NULL = none. */
quire_ghost *quire_ghosts_find_node(const quire_ghosts *ghosts, uint64_t key, uint64_t hash);

/* Records by number, from 1; a policy can link records by number. */
static inline quire_ghost *quire_ghosts_at(const quire_ghosts *ghosts, uint32_t number)
{
    return &ghosts->ring[number - 1];
}

static inline uint32_t quire_ghosts_number(const quire_ghosts *ghosts, const quire_ghost *ghost)
{
    return (uint32_t)(ghost - ghosts->ring) + 1;
}

/* Of the latest few records of partly filled nodes below a path, the longest whose tokens are a
 * prefix of these tokens; NULL = none. */
const quire_ghost *quire_ghosts_find_partial(const quire_ghosts *ghosts, uint64_t path_hash,
                                             const int32_t *tokens, uint32_t n_tokens);

void quire_ghosts_validate(const quire_ghosts *ghosts);

#endif /* QUIRE_CORE_PREFIX_GHOST_H */
