/* file_index.h - which record lies where: the file store's index in memory.
 *
 * Entries have ids that stay, and lie in chunks that never move. Tables of ids with open addressing
 * find an entry by its key and a root by its key. Hashes depend on a seed, since keys can be
 * constructed. Removal closes the gap, so there are no tombstones.
 *
 * An entry refers to its root, which holds the tenant's salt once for all records of the root.
 *
 * Growth of a table moves all ids at once; the tables begin with room for the records that the
 * caller expects.
 *
 * Thread: the holder of the store's lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_FILE_FILE_INDEX_H
#define QUIRE_STORE_FILE_FILE_INDEX_H

#include "store/store.h"

#define QUIRE_INDEX_NONE UINT32_MAX

typedef enum quire_index_state {
    QUIRE_INDEX_FREE,
    QUIRE_INDEX_PENDING, /* a put that is not written yet: no get finds it */
    QUIRE_INDEX_WRITTEN, /* not durable yet */
    QUIRE_INDEX_DURABLE
} quire_index_state;

typedef struct quire_index_entry {
    quire_page_key key;
    quire_page_key parent;
    uint64_t sequence;
    uint32_t root;
    uint32_t segment; /* the store's slot; not of PENDING ones */
    uint32_t place;   /* in the segment's file, in blocks */
    uint32_t blocks;
    uint32_t first_token;
    uint16_t n_tokens;
    uint8_t uses; /* since the record was written or carried forward; stays at 255 */
    uint8_t state;
} quire_index_entry;

typedef struct quire_index_root {
    quire_page_key key;
    uint32_t n_records; /* 0: free */
    uint16_t account;   /* the store's; 0 at first */
    bool has_account;
    uint32_t salt_bytes;
    unsigned char salt[QUIRE_PREFIX_SALT_MAX];
} quire_index_root;

typedef struct quire_index quire_index;

/* Errors: QUIRE_NOMEM. */
int quire_index_create(quire_index **out, uint32_t expected, uint64_t seed);
void quire_index_destroy(quire_index *index);

/* The entry with this key, or NONE. */
uint32_t quire_index_find(const quire_index *index, const quire_page_key *key);
quire_index_entry *quire_index_get(const quire_index *index, uint32_t id);
quire_index_root *quire_index_root_get(const quire_index *index, uint32_t root);
uint32_t quire_index_count(const quire_index *index);
/* Ids are below this number. */
uint32_t quire_index_ids(const quire_index *index);
uint32_t quire_index_root_ids(const quire_index *index);

/* Add a record whose key is not in the index; the caller sets the entry's place and state. NONE:
 * out of memory, or another salt is known for this root. */
uint32_t quire_index_add(quire_index *index, const quire_page_text *text, uint64_t sequence);
void quire_index_remove(quire_index *index, uint32_t id);

/* ---- drops ---- */

/* A drop, and the position in the log before which it applies. */
typedef struct quire_index_drop {
    quire_store_drop drop;
    uint64_t position;
} quire_index_drop;

/* Remove every entry that one of the drops ends. position_of() says where an entry stands in the
 * log; each(ctx, entry) is called before an entry goes. Drops of one key or salt may repeat.
 *
 * A text below a dropped key is found by way of parents. When a parent is not in the index, the
 * beginning of the text is unknown; such a record goes, if its root is the dropped text's or the
 * dropped text's root is unknown. Returns the number of removed entries. Without memory for the
 * search all entries go. Cost: O(entries + roots * drops). */
uint32_t quire_index_drop_apply(quire_index *index, const quire_index_drop *drops, uint32_t n_drops,
                                uint64_t (*position_of)(void *ctx, const quire_index_entry *entry),
                                void (*each)(void *ctx, const quire_index_entry *entry), void *ctx);

#endif /* QUIRE_STORE_FILE_FILE_INDEX_H */
