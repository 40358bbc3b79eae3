/* prefix_ghost.c - the ring of records of ended nodes.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_ghost.h"

#include "base/check.h"
#include "core/prefix/prefix_index.h"

#include <string.h>

#define TRIES 32u /* so that long chains do not slow lookups */

int quire_ghosts_init(quire_ghosts *ghosts, const quire_allocator *allocator, uint32_t capacity)
{
    uint32_t n_heads = 1;

    memset(ghosts, 0, sizeof(*ghosts));
    ghosts->allocator = *allocator;
    if (capacity == 0) {
        return QUIRE_OK;
    }
    while (n_heads < capacity) {
        n_heads *= 2;
    }
    ghosts->ring = allocator->alloc(allocator->ctx, capacity * sizeof(*ghosts->ring));
    ghosts->heads = allocator->alloc(allocator->ctx, n_heads * sizeof(*ghosts->heads));
    if (ghosts->ring == NULL || ghosts->heads == NULL) {
        quire_ghosts_fini(ghosts);
        return QUIRE_NOMEM;
    }
    memset(ghosts->heads, 0, n_heads * sizeof(*ghosts->heads));
    ghosts->capacity = capacity;
    ghosts->mask = n_heads - 1;
    return QUIRE_OK;
}

void quire_ghosts_fini(quire_ghosts *ghosts)
{
    if (ghosts->heads == NULL && ghosts->ring == NULL) {
        return; /* off, or never begun */
    }
    ghosts->allocator.free(ghosts->allocator.ctx, ghosts->heads);
    ghosts->allocator.free(ghosts->allocator.ctx, ghosts->ring);
    memset(ghosts, 0, sizeof(*ghosts));
}

static uint32_t *head_of(const quire_ghosts *ghosts, uint64_t key)
{
    return &ghosts->heads[(uint32_t)(key >> 32) & ghosts->mask];
}

/* Take a record out of its chain. */
static void unlink_ghost(quire_ghosts *ghosts, uint32_t number)
{
    const quire_ghost *ghost = &ghosts->ring[number - 1];

    if (ghost->prev != 0) {
        ghosts->ring[ghost->prev - 1].next = ghost->next;
    } else {
        *head_of(ghosts, ghost->key) = ghost->next;
    }
    if (ghost->next != 0) {
        ghosts->ring[ghost->next - 1].prev = ghost->prev;
    }
}

quire_ghost *quire_ghosts_add(quire_ghosts *ghosts, const quire_ghost *ghost)
{
    uint32_t number = ghosts->at + 1;
    uint32_t *head;

    if (ghosts->capacity == 0) {
        return NULL;
    }
    if (ghosts->n == ghosts->capacity) {
        if (ghosts->forgotten != NULL) {
            ghosts->forgotten(ghosts->forgotten_ctx, &ghosts->ring[ghosts->at]);
        }
        unlink_ghost(ghosts, number);
    } else {
        ghosts->n++;
    }
    head = head_of(ghosts, ghost->key);
    ghosts->ring[ghosts->at] = *ghost;
    ghosts->ring[ghosts->at].next = *head;
    ghosts->ring[ghosts->at].prev = 0;
    if (*head != 0) {
        ghosts->ring[*head - 1].prev = number;
    }
    *head = number;
    ghosts->at = number < ghosts->capacity ? number : 0;
    return &ghosts->ring[number - 1];
}

/* A walk along the chain of a key: at most TRIES ghosts, because clients can make chains long. */
typedef struct ghost_walk {
    const quire_ghosts *ghosts;
    uint64_t key;
    uint32_t next; /* number; 0 = the end */
    uint32_t n_tries;
} ghost_walk;

static ghost_walk walk_begin(const quire_ghosts *ghosts, uint64_t key)
{
    return (ghost_walk){ ghosts, key, ghosts->capacity > 0 ? *head_of(ghosts, key) : 0, 0 };
}

/* The next ghost with the key; NULL at the end. */
static const quire_ghost *walk_next(ghost_walk *walk)
{
    while (walk->next != 0 && walk->n_tries < TRIES) {
        const quire_ghost *ghost = &walk->ghosts->ring[walk->next - 1];

        walk->next = ghost->next;
        walk->n_tries++;
        if (ghost->key == walk->key) {
            return ghost;
        }
    }
    return NULL;
}

const quire_ghost *quire_ghosts_find(const quire_ghosts *ghosts, uint64_t path_hash)
{
    ghost_walk walk = walk_begin(ghosts, quire_ghosts_key_page(path_hash));

    return walk_next(&walk);
}

quire_ghost *quire_ghosts_find_node(const quire_ghosts *ghosts, uint64_t key, uint64_t hash)
{
    ghost_walk walk = walk_begin(ghosts, key);
    const quire_ghost *ghost = walk_next(&walk);

    while (ghost != NULL && ghost->hash != hash) {
        ghost = walk_next(&walk);
    }
    return ghost != NULL ? &ghosts->ring[ghost - ghosts->ring] : NULL;
}

const quire_ghost *quire_ghosts_find_partial(const quire_ghosts *ghosts, uint64_t path_hash,
                                             const int32_t *tokens, uint32_t n_tokens)
{
    ghost_walk walk = walk_begin(ghosts, quire_ghosts_key_partial(path_hash));
    const quire_ghost *best = NULL;
    const quire_ghost *ghost;

    while ((ghost = walk_next(&walk)) != NULL) {
        if (ghost->n_tokens <= n_tokens && (best == NULL || ghost->n_tokens > best->n_tokens) &&
            quire_prefix_hash_add(path_hash, tokens, ghost->n_tokens) == ghost->hash) {
            best = ghost;
        }
    }
    return best;
}

void quire_ghosts_validate(const quire_ghosts *ghosts)
{
    uint32_t n = 0;

    QUIRE_CHECK(ghosts->n <= ghosts->capacity);
    for (uint32_t h = 0; ghosts->capacity > 0 && h <= ghosts->mask; h++) {
        for (uint32_t i = ghosts->heads[h], prev = 0; i != 0;
             prev = i, i = ghosts->ring[i - 1].next) {
            QUIRE_CHECK(i <= ghosts->capacity && ghosts->ring[i - 1].prev == prev);
            QUIRE_CHECK(head_of(ghosts, ghosts->ring[i - 1].key) == &ghosts->heads[h]);
            QUIRE_CHECK(++n <= ghosts->n);
        }
    }
    QUIRE_CHECK(n == ghosts->n);
}
