/* prefix_index.c - the hash table of paths.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_index.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef QUIRE_TINY
#define ENTRIES_FIRST 4u
#else
#define ENTRIES_FIRST 1024u
#endif

/* At most half full, so that runs stay short. */
static uint64_t entries_for(uint64_t n)
{
    uint64_t n_entries = ENTRIES_FIRST;

    while (n_entries < 2 * n) {
        n_entries *= 2;
    }
    return n_entries;
}

static int table_make(quire_prefix_index *index, uint64_t n_entries)
{
    size_t size_bytes = n_entries * sizeof(quire_prefix_entry);
    quire_prefix_entry *entries = index->allocator.alloc(index->allocator.ctx, size_bytes);

    QUIRE_FAIL_IF(entries == NULL, QUIRE_NOMEM);
    memset(entries, 0, size_bytes);
    index->entries = entries;
    index->mask = (uint32_t)(n_entries - 1);
    return QUIRE_OK;
}

int quire_prefix_index_init(quire_prefix_index *index, const quire_allocator *allocator)
{
    memset(index, 0, sizeof(*index));
    index->allocator = *allocator;
    return table_make(index, ENTRIES_FIRST);
}

void quire_prefix_index_fini(quire_prefix_index *index)
{
    if (index->entries != NULL) {
        index->allocator.free(index->allocator.ctx, index->entries);
    }
    memset(index, 0, sizeof(*index));
}

static void entry_put(quire_prefix_index *index, uint32_t tag, uint32_t node)
{
    uint32_t at = tag & index->mask;

    while (index->entries[at].node != QUIRE_NODE_NULL) {
        at = (at + 1) & index->mask;
    }
    index->entries[at] = (quire_prefix_entry){ tag, node };
}

int quire_prefix_index_plan(quire_prefix_index *index, uint32_t n)
{
    quire_prefix_entry *old = index->entries;
    uint32_t old_mask = index->mask;

    if (2 * (uint64_t)n <= (uint64_t)old_mask + 1) {
        return QUIRE_OK;
    }
    QUIRE_TRY(table_make(index, entries_for(n)));
    for (uint64_t i = 0; i <= old_mask; i++) {
        if (old[i].node != QUIRE_NODE_NULL) {
            entry_put(index, old[i].tag, old[i].node);
        }
    }
    index->allocator.free(index->allocator.ctx, old);
    return QUIRE_OK;
}

void quire_prefix_index_add(quire_prefix_index *index, uint64_t hash, uint32_t node)
{
    QUIRE_CHECK(2 * ((uint64_t)index->n + 1) <= (uint64_t)index->mask + 1);
    entry_put(index, quire_prefix_index_tag(hash), node);
    index->n++;
}

void quire_prefix_index_remove(quire_prefix_index *index, uint64_t hash, uint32_t node)
{
    uint32_t at = quire_prefix_index_tag(hash) & index->mask;
    uint32_t next;

    while (index->entries[at].node != node) {
        QUIRE_CHECK(index->entries[at].node != QUIRE_NODE_NULL);
        at = (at + 1) & index->mask;
    }
    /* Close the gap: move up each entry behind it, unless the gap lies before the entry's home. */
    for (next = (at + 1) & index->mask; index->entries[next].node != QUIRE_NODE_NULL;
         next = (next + 1) & index->mask) {
        uint32_t home = index->entries[next].tag & index->mask;

        if (((next - home) & index->mask) >= ((next - at) & index->mask)) {
            index->entries[at] = index->entries[next];
            at = next;
        }
    }
    index->entries[at].node = QUIRE_NODE_NULL;
    index->n--;
}

/* ---- hashes ---- */

uint64_t quire_prefix_hash_key(uint64_t seed, const uint64_t identity[2], const void *salt,
                               uint32_t salt_bytes)
{
    const uint64_t hash = XXH3_64bits_withSeed(identity, 2 * sizeof(identity[0]), seed);

    return salt_bytes > 0 ? XXH3_64bits_withSeed(salt, salt_bytes, hash) : hash;
}

uint64_t quire_prefix_hash_add(uint64_t path_hash, const int32_t *tokens, uint32_t n_tokens)
{
    return XXH3_64bits_withSeed(tokens, n_tokens * sizeof(tokens[0]), path_hash);
}
