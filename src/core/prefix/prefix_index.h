/* prefix_index.h - maps the hash of a path to its last node, a root or a full page.
 *
 * The hash of a path combines the hashes of its key and its pages, so all hashes of a prompt can be
 * computed without the tree. Open addressing; an entry holds half of the hash, so that probing
 * reads no nodes. The caller compares parent and tokens of a found node.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_INDEX_H
#define QUIRE_CORE_PREFIX_INDEX_H

#include "core/prefix/prefix_node.h"

typedef struct quire_prefix_entry {
    uint32_t tag;  /* of the hash */
    uint32_t node; /* 0 = empty */
} quire_prefix_entry;

typedef struct quire_prefix_index {
    quire_allocator allocator;
    quire_prefix_entry *entries; /* [mask + 1] */
    uint32_t mask;
    uint32_t n;
} quire_prefix_index;

/* Errors: QUIRE_NOMEM. */
int quire_prefix_index_init(quire_prefix_index *index, const quire_allocator *allocator);
void quire_prefix_index_fini(quire_prefix_index *index);

/* Make room for n entries in all. Errors: QUIRE_NOMEM. */
int quire_prefix_index_plan(quire_prefix_index *index, uint32_t n);

/* Requires room for the entry (add), or the entry (remove). */
void quire_prefix_index_add(quire_prefix_index *index, uint64_t hash, uint32_t node);
void quire_prefix_index_remove(quire_prefix_index *index, uint64_t hash, uint32_t node);

static inline uint32_t quire_prefix_index_tag(uint64_t hash)
{
    return (uint32_t)(hash >> 32);
}

/* Candidates for a hash: start with *at = tag; each call returns the next node, 0 at the end. */
static inline uint32_t quire_prefix_index_next(const quire_prefix_index *index, uint32_t tag,
                                               uint32_t *at)
{
    for (;;) {
        const quire_prefix_entry *entry = &index->entries[*at & index->mask];

        (*at)++;
        if (entry->node == QUIRE_NODE_NULL || entry->tag == tag) {
            return entry->node;
        }
    }
}

static inline void quire_prefix_index_prefetch(const quire_prefix_index *index, uint64_t hash)
{
    __builtin_prefetch(&index->entries[quire_prefix_index_tag(hash) & index->mask]);
}

/* ---- hashes ---- */

/* A client that does not know the seed cannot make salts or pages of equal hashes: each hash is the
 * seed of the next one. (Without a seed, texts of one XXH3 are made in seconds.) */
uint64_t quire_prefix_hash_key(uint64_t seed, const uint64_t identity[2], const void *salt,
                               uint32_t salt_bytes);

/* The hash of a path extended by the tokens of one more page, or part of a page. */
uint64_t quire_prefix_hash_add(uint64_t path_hash, const int32_t *tokens, uint32_t n_tokens);

#endif /* QUIRE_CORE_PREFIX_INDEX_H */
