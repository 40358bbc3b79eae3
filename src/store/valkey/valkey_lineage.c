/* valkey_lineage.c - see valkey_lineage.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_lineage.h"

#include "base/hash128.h"

#include <sodium.h>
#include <string.h>

void quire_lineage_init(quire_lineage *l, const quire_seal_key *key)
{
    *l = (quire_lineage){ 0 };
    memcpy(l->key, key->id, sizeof l->key);
}

void quire_lineage_fini(quire_lineage *l)
{
    quire_u64_map_fini(&l->young);
    quire_u64_map_fini(&l->old);
}

uint64_t quire_lineage_id(const quire_lineage *l, const quire_page_key *page)
{
    unsigned char hash[crypto_shorthash_BYTES];

    (void)crypto_shorthash(hash, page->bytes, QUIRE_PAGE_KEY_BYTES, l->key);
    return quire_le_get(hash, 8);
}

void quire_lineage_add(quire_lineage *l, uint64_t id, uint64_t parent)
{
    if (l->young.n >= QUIRE_LINEAGE_PAGES) {
        quire_u64_map_fini(&l->old);
        l->old = l->young;
        l->young = (quire_u64_map){ 0 };
    }
    (void)quire_u64_map_set(&l->young, id, parent); /* without memory: not known */
}

void quire_lineage_learn(quire_lineage *l, const quire_seal_head *head, uint64_t root)
{
    for (uint32_t i = 0; i < head->n_ancestors; i++) {
        const uint64_t id = quire_le_get(head->ancestors + (size_t)i * 8, 8);
        uint64_t known;

        if (quire_u64_map_get(&l->young, id, &known)) {
            return; /* its ancestors are known, too */
        }
        if (i + 1 < head->n_ancestors) {
            quire_lineage_add(l, id, quire_le_get(head->ancestors + (size_t)(i + 1) * 8, 8));
        } else if (head->is_whole) {
            quire_lineage_add(l, id, root);
        }
    }
}

static bool parent_of(quire_lineage *l, uint64_t id, uint64_t *out)
{
    if (quire_u64_map_get(&l->young, id, out)) {
        return true;
    }
    if (!quire_u64_map_get(&l->old, id, out)) {
        return false;
    }
    quire_lineage_add(l, id, *out); /* it is in use */
    return true;
}

uint32_t quire_lineage_list(quire_lineage *l, uint64_t parent, uint64_t root, unsigned char *out,
                            uint32_t max, bool *is_whole)
{
    uint64_t id = parent;
    uint32_t n = 0;

    while (id != root && n < max) {
        (void)quire_le_put(out + (size_t)n * 8, id, 8);
        n++;
        if (!parent_of(l, id, &id)) {
            *is_whole = false;
            return n;
        }
    }
    *is_whole = id == root;
    return n;
}
