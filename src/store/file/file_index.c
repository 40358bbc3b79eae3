/* file_index.c - see file_index.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_index.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define CHUNK_BITS  10u
#define CHUNK_ITEMS (1u << CHUNK_BITS)
#define TABLE_MIN   64u

/* Items of one size with ids that stay, and a table that finds them by the key in front. */
typedef struct keyed {
    unsigned char **chunks;
    uint32_t n_chunks, chunks_capacity;
    uint32_t n_ids; /* ids handed out so far */
    uint32_t *free_ids;
    uint32_t n_free, free_capacity;
    uint32_t *slots; /* [n_slots] ids; a power of two */
    uint32_t n_slots;
    uint32_t n_items;
    uint64_t seed;
    size_t item_bytes;
} keyed;

struct quire_index {
    keyed entries;
    keyed roots;
};

_Static_assert(sizeof(quire_index_entry) == 64, "an entry is a line of cache");
_Static_assert(offsetof(quire_index_entry, key) == 0, "a key is in front");
_Static_assert(offsetof(quire_index_root, key) == 0, "a key is in front");

/* ---- keyed items ---- */

static void *item_of(const keyed *k, uint32_t id)
{
    return k->chunks[id >> CHUNK_BITS] + (size_t)(id & (CHUNK_ITEMS - 1)) * k->item_bytes;
}

static uint32_t home_of(const keyed *k, const void *key)
{
    return (uint32_t)XXH3_64bits_withSeed(key, QUIRE_PAGE_KEY_BYTES, k->seed) & (k->n_slots - 1);
}

static int slots_resize(keyed *k, uint32_t n_slots)
{
    uint32_t *old = k->slots;
    const uint32_t n_old = old != NULL ? k->n_slots : 0;
    uint32_t *slots = malloc(n_slots * sizeof *slots);

    QUIRE_FAIL_IF(slots == NULL, QUIRE_NOMEM);
    memset(slots, 0xff, n_slots * sizeof *slots);
    k->slots = slots;
    k->n_slots = n_slots;
    for (uint32_t i = 0; i < n_old; i++) {
        if (old[i] != QUIRE_INDEX_NONE) {
            uint32_t at = home_of(k, item_of(k, old[i]));

            while (slots[at] != QUIRE_INDEX_NONE) {
                at = (at + 1) & (n_slots - 1);
            }
            slots[at] = old[i];
        }
    }
    free(old);
    return QUIRE_OK;
}

static int keyed_init(keyed *k, size_t item_bytes, uint32_t expected, uint64_t seed)
{
    uint32_t n_slots = TABLE_MIN;

    while (n_slots / 2 < expected && n_slots < 1u << 30) {
        n_slots *= 2;
    }
    *k = (keyed){ .item_bytes = item_bytes, .seed = seed };
    return slots_resize(k, n_slots);
}

static void keyed_fini(keyed *k)
{
    for (uint32_t i = 0; i < k->n_chunks; i++) {
        free(k->chunks[i]);
    }
    free(k->chunks);
    free(k->free_ids);
    free(k->slots);
}

static uint32_t keyed_find(const keyed *k, const quire_page_key *key)
{
    for (uint32_t at = home_of(k, key); k->slots[at] != QUIRE_INDEX_NONE;
         at = (at + 1) & (k->n_slots - 1)) {
        if (memcmp(item_of(k, k->slots[at]), key, sizeof *key) == 0) {
            return k->slots[at];
        }
    }
    return QUIRE_INDEX_NONE;
}

/* Make sure that an id is on the free list. */
static int chunk_add(keyed *k)
{
    unsigned char *chunk;

    if (k->n_chunks == k->chunks_capacity) {
        const uint32_t capacity = k->chunks_capacity > 0 ? k->chunks_capacity * 2 : 16;
        unsigned char **chunks = realloc(k->chunks, capacity * sizeof(unsigned char *));
        uint32_t *free_ids;

        QUIRE_FAIL_IF(chunks == NULL, QUIRE_NOMEM);
        k->chunks = chunks;
        free_ids = realloc(k->free_ids, (size_t)capacity * CHUNK_ITEMS * sizeof *free_ids);
        QUIRE_FAIL_IF(free_ids == NULL, QUIRE_NOMEM);
        k->free_ids = free_ids;
        k->chunks_capacity = capacity;
    }
    chunk = aligned_alloc(64, CHUNK_ITEMS * (k->item_bytes + 63) / 64 * 64);
    QUIRE_FAIL_IF(chunk == NULL, QUIRE_NOMEM);
    memset(chunk, 0, CHUNK_ITEMS * k->item_bytes);
    k->chunks[k->n_chunks++] = chunk;
    for (uint32_t i = CHUNK_ITEMS; i > 0; i--) {
        k->free_ids[k->n_free++] = (k->n_chunks - 1) * CHUNK_ITEMS + i - 1;
    }
    k->n_ids += CHUNK_ITEMS;
    return QUIRE_OK;
}

static uint32_t keyed_add(keyed *k, const quire_page_key *key)
{
    uint32_t id, at;

    if ((k->n_free == 0 && chunk_add(k) < 0) ||
        (k->n_items + 1 > k->n_slots / 4 * 3 && slots_resize(k, k->n_slots * 2) < 0)) {
        return QUIRE_INDEX_NONE;
    }
    id = k->free_ids[--k->n_free];
    memset(item_of(k, id), 0, k->item_bytes);
    memcpy(item_of(k, id), key, sizeof *key);
    at = home_of(k, key);
    while (k->slots[at] != QUIRE_INDEX_NONE) {
        at = (at + 1) & (k->n_slots - 1);
    }
    k->slots[at] = id;
    k->n_items++;
    return id;
}

static void keyed_remove(keyed *k, uint32_t id)
{
    const uint32_t mask = k->n_slots - 1;
    uint32_t hole = home_of(k, item_of(k, id));

    while (k->slots[hole] != id) {
        QUIRE_ASSERT(k->slots[hole] != QUIRE_INDEX_NONE);
        hole = (hole + 1) & mask;
    }
    /* Items behind the hole move into it, unless that is before their home. */
    for (uint32_t at = (hole + 1) & mask; k->slots[at] != QUIRE_INDEX_NONE; at = (at + 1) & mask) {
        const uint32_t home = home_of(k, item_of(k, k->slots[at]));

        if (((at - home) & mask) >= ((at - hole) & mask)) {
            k->slots[hole] = k->slots[at];
            hole = at;
        }
    }
    k->slots[hole] = QUIRE_INDEX_NONE;
    k->free_ids[k->n_free++] = id;
    k->n_items--;
}

/* ---- index ---- */

int quire_index_create(quire_index **out, uint32_t expected, uint64_t seed)
{
    quire_index *index = calloc(1, sizeof *index);

    *out = NULL;
    QUIRE_FAIL_IF(index == NULL, QUIRE_NOMEM);
    if (keyed_init(&index->entries, sizeof(quire_index_entry), expected, seed) < 0 ||
        keyed_init(&index->roots, sizeof(quire_index_root), TABLE_MIN / 2, ~seed) < 0) {
        quire_index_destroy(index);
        return QUIRE_NOMEM;
    }
    *out = index;
    return QUIRE_OK;
}

void quire_index_destroy(quire_index *index)
{
    if (index != NULL) {
        keyed_fini(&index->entries);
        keyed_fini(&index->roots);
        free(index);
    }
}

uint32_t quire_index_find(const quire_index *index, const quire_page_key *key)
{
    return keyed_find(&index->entries, key);
}

quire_index_entry *quire_index_get(const quire_index *index, uint32_t id)
{
    return item_of(&index->entries, id);
}

quire_index_root *quire_index_root_get(const quire_index *index, uint32_t root)
{
    return item_of(&index->roots, root);
}

uint32_t quire_index_count(const quire_index *index)
{
    return index->entries.n_items;
}

uint32_t quire_index_ids(const quire_index *index)
{
    return index->entries.n_ids;
}

uint32_t quire_index_root_ids(const quire_index *index)
{
    return index->roots.n_ids;
}

static uint32_t root_of(quire_index *index, const quire_page_text *text)
{
    uint32_t id = keyed_find(&index->roots, &text->root);
    quire_index_root *root;

    if (text->salt_bytes > QUIRE_PREFIX_SALT_MAX) {
        return QUIRE_INDEX_NONE;
    }
    if (id != QUIRE_INDEX_NONE) {
        root = quire_index_root_get(index, id);
        return root->salt_bytes == text->salt_bytes &&
                       (text->salt_bytes == 0 ||
                        memcmp(root->salt, text->salt, text->salt_bytes) == 0)
                   ? id
                   : QUIRE_INDEX_NONE;
    }
    id = keyed_add(&index->roots, &text->root);
    if (id != QUIRE_INDEX_NONE) {
        root = quire_index_root_get(index, id);
        root->salt_bytes = text->salt_bytes;
        if (text->salt_bytes > 0) {
            memcpy(root->salt, text->salt, text->salt_bytes);
        }
    }
    return id;
}

static void root_leave(quire_index *index, uint32_t root)
{
    if (quire_index_root_get(index, root)->n_records == 0) {
        keyed_remove(&index->roots, root);
    }
}

uint32_t quire_index_add(quire_index *index, const quire_page_text *text, uint64_t sequence)
{
    const uint32_t root = root_of(index, text);
    quire_index_entry *entry;
    uint32_t id;

    if (root == QUIRE_INDEX_NONE) {
        return root;
    }
    id = keyed_add(&index->entries, &text->key);
    if (id == QUIRE_INDEX_NONE) {
        root_leave(index, root);
        return id;
    }
    quire_index_root_get(index, root)->n_records++;
    entry = quire_index_get(index, id);
    entry->parent = text->parent;
    entry->sequence = sequence;
    entry->root = root;
    entry->first_token = text->first_token;
    entry->n_tokens = (uint16_t)text->n_tokens;
    entry->state = QUIRE_INDEX_PENDING;
    return id;
}

void quire_index_remove(quire_index *index, uint32_t id)
{
    quire_index_entry *entry = quire_index_get(index, id);
    const uint32_t root = entry->root;

    keyed_remove(&index->entries, id);
    entry->state = QUIRE_INDEX_FREE;
    quire_index_root_get(index, root)->n_records--;
    root_leave(index, root);
}

/* ---- drops ---- */

#define UNKNOWN UINT64_MAX /* no position has this value: it is one more than the greatest */

/* One search. Positions are of the last drop that applies, plus one; 0: none. */
typedef struct search {
    quire_index *index;
    quire_index_drop *texts; /* [n_texts] sorted by key */
    uint32_t n_texts;
    uint64_t orphans;       /* drops of texts with unknown roots */
    uint64_t *root_last;    /* [root ids] of everything under the root */
    uint64_t *root_orphans; /* [root ids] of texts under the root */
    uint64_t *text_last;    /* [ids] of the entry's text */
    uint32_t *path;         /* [ids] */
} search;

static int by_key(const void *a, const void *b)
{
    const quire_index_drop *x = a, *y = b;

    return memcmp(x->drop.key.bytes, y->drop.key.bytes, QUIRE_PAGE_KEY_BYTES);
}

static uint64_t max_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static bool is_of_text(const quire_store_drop *drop)
{
    return drop->what == QUIRE_STORE_DROP_TEXT || drop->what == QUIRE_STORE_DROP_BEHIND;
}

/* The last drop that names exactly this key: of the texts that continue it (is_below), or of its
 * own record. */
static uint64_t text_drop(const search *s, const quire_page_key *key, bool is_below)
{
    quire_index_drop wanted = { .drop.key = *key };
    const quire_index_drop *found =
        s->n_texts > 0 ? bsearch(&wanted, s->texts, s->n_texts, sizeof wanted, by_key) : NULL;
    uint64_t last = 0;

    if (found == NULL) {
        return 0;
    }
    while (found > s->texts && by_key(found - 1, &wanted) == 0) {
        found--;
    }
    for (; found < s->texts + s->n_texts && by_key(found, &wanted) == 0; found++) {
        if (is_below || found->drop.what == QUIRE_STORE_DROP_TEXT) {
            last = max_of(last, found->position);
        }
    }
    return last;
}

/* The last drop that ends an entry by way of the text before it. *up is the parent's entry, if it
 * is known. */
static uint64_t above(const search *s, const quire_index_entry *entry, uint32_t *up)
{
    const quire_index_root *root = quire_index_root_get(s->index, entry->root);

    *up = QUIRE_INDEX_NONE;
    if (memcmp(&entry->parent, &root->key, sizeof root->key) == 0) {
        return text_drop(s, &entry->parent, true);
    }
    *up = quire_index_find(s->index, &entry->parent);
    /* Positions fall on the way up, so that no constructed circle holds the search. */
    if (*up != QUIRE_INDEX_NONE &&
        quire_index_get(s->index, *up)->first_token < entry->first_token) {
        return 0;
    }
    *up = QUIRE_INDEX_NONE;
    return max_of(text_drop(s, &entry->parent, true),
                  max_of(s->orphans, s->root_orphans[entry->root]));
}

/* Find the last drop of a text that the entry continues, for it and for all entries above it: up to
 * the first entry whose drop is known, then down again. */
static void text_last_fill(search *s, uint32_t id)
{
    uint32_t n = 0, up = id;
    uint64_t last = 0;

    while (up != QUIRE_INDEX_NONE && s->text_last[up] == UNKNOWN) {
        const uint32_t at = up;

        s->path[n++] = at;
        s->text_last[at] = above(s, quire_index_get(s->index, at), &up);
    }
    if (up != QUIRE_INDEX_NONE) {
        last = max_of(s->text_last[up], text_drop(s, &quire_index_get(s->index, up)->key, true));
    }
    while (n > 0) {
        const uint32_t at = s->path[--n];
        const quire_page_key *key = &quire_index_get(s->index, at)->key;

        last = max_of(last, max_of(s->text_last[at], text_drop(s, key, false)));
        s->text_last[at] = last;
        last = max_of(last, text_drop(s, key, true));
    }
}

static void roots_fill(search *s, const quire_index_drop *drops, uint32_t n_drops)
{
    for (uint32_t r = 0; r < quire_index_root_ids(s->index); r++) {
        const quire_index_root *root = quire_index_root_get(s->index, r);

        s->root_last[r] = s->root_orphans[r] = 0;
        if (root->n_records == 0) {
            continue;
        }
        for (uint32_t i = 0; i < n_drops; i++) {
            const quire_store_drop *d = &drops[i].drop;
            const bool is_salt =
                (d->what == QUIRE_STORE_DROP_SALT && d->salt_bytes == root->salt_bytes) ||
                (d->what == QUIRE_STORE_DROP_SALTS && d->salt_bytes <= root->salt_bytes);

            if (d->what == QUIRE_STORE_DROP_ALL ||
                (is_salt &&
                 (d->salt_bytes == 0 || memcmp(d->salt, root->salt, d->salt_bytes) == 0))) {
                s->root_last[r] = max_of(s->root_last[r], drops[i].position);
            } else if (is_of_text(d) && memcmp(&d->root, &root->key, sizeof root->key) == 0) {
                s->root_orphans[r] = max_of(s->root_orphans[r], drops[i].position);
            }
        }
    }
}

static int search_init(search *s, quire_index *index, const quire_index_drop *drops,
                       uint32_t n_drops)
{
    static const quire_page_key zeros;
    const size_t n_ids = quire_index_ids(index), n_roots = quire_index_root_ids(index);

    *s = (search){ .index = index,
                   .texts = malloc((n_drops + 1) * sizeof *s->texts),
                   .root_last = malloc((n_roots + 1) * sizeof(uint64_t)),
                   .root_orphans = malloc((n_roots + 1) * sizeof(uint64_t)),
                   .text_last = malloc((n_ids + 1) * sizeof(uint64_t)),
                   .path = malloc((n_ids + 1) * sizeof(uint32_t)) };
    if (s->texts == NULL || s->root_last == NULL || s->root_orphans == NULL ||
        s->text_last == NULL || s->path == NULL) {
        return QUIRE_NOMEM;
    }
    memset(s->text_last, 0xff, n_ids * sizeof(uint64_t));
    for (uint32_t i = 0; i < n_drops; i++) {
        if (is_of_text(&drops[i].drop)) {
            s->texts[s->n_texts++] = drops[i];
            if (memcmp(&drops[i].drop.root, &zeros, sizeof zeros) == 0) {
                s->orphans = max_of(s->orphans, drops[i].position);
            }
        }
    }
    qsort(s->texts, s->n_texts, sizeof *s->texts, by_key);
    roots_fill(s, drops, n_drops);
    return QUIRE_OK;
}

static void search_fini(search *s)
{
    free(s->texts);
    free(s->root_last);
    free(s->root_orphans);
    free(s->text_last);
    free(s->path);
}

uint32_t quire_index_drop_apply(quire_index *index, const quire_index_drop *drops, uint32_t n_drops,
                                uint64_t (*position_of)(void *ctx, const quire_index_entry *entry),
                                void (*each)(void *ctx, const quire_index_entry *entry), void *ctx)
{
    const uint32_t n_ids = quire_index_ids(index);
    const uint32_t n_before = quire_index_count(index);
    search s;
    const bool is_all = search_init(&s, index, drops, n_drops) < 0;

    /* First find out about all, then remove: a removed entry no longer shows the way up. */
    for (uint32_t id = 0; id < n_ids && !is_all && s.n_texts > 0; id++) {
        if (quire_index_get(index, id)->state != QUIRE_INDEX_FREE) {
            text_last_fill(&s, id);
        }
    }
    for (uint32_t id = 0; id < n_ids; id++) {
        const quire_index_entry *entry = quire_index_get(index, id);
        uint64_t last;

        if (entry->state == QUIRE_INDEX_FREE) {
            continue;
        }
        last = is_all ? UINT64_MAX : s.root_last[entry->root];
        if (!is_all && s.n_texts > 0) {
            last = max_of(last, s.text_last[id]);
        }
        if (position_of(ctx, entry) < last) {
            each(ctx, entry);
            quire_index_remove(index, id);
        }
    }
    search_fini(&s);
    return n_before - quire_index_count(index);
}
