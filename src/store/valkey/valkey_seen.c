/* valkey_seen.c - see valkey_seen.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_seen.h"

#include "store/valkey/valkey_internal.h"

void quire_seen_note(quire_seen *seen, uint64_t id, bool is_there)
{
    uint64_t known;

    if (seen->young.n >= QUIRE_SEEN_RECORDS && !quire_u64_map_get(&seen->young, id, &known)) {
        quire_u64_map_fini(&seen->old);
        seen->old = seen->young;
        seen->young = (quire_u64_map){ .slots = NULL };
    }
    if (!quire_u64_map_set(&seen->young, id, is_there)) {
        quire_seen_forget(seen); /* better no hint than a wrong one */
    }
}

bool quire_seen_has(const quire_seen *seen, uint64_t id)
{
    uint64_t is_there = 0;

    if (!quire_u64_map_get(&seen->young, id, &is_there)) {
        (void)quire_u64_map_get(&seen->old, id, &is_there);
    }
    return is_there != 0;
}

void quire_seen_forget(quire_seen *seen)
{
    quire_u64_map_fini(&seen->young);
    quire_u64_map_fini(&seen->old);
}

uint32_t quire_vk_has(const quire_store *store, const quire_page_key *keys, uint32_t n)
{
    quire_valkey_store *m = quire_vk_self(store);
    uint32_t i = 0;

    (void)pthread_mutex_lock(&m->lock);
    while (i < n && quire_seen_has(&m->seen, quire_lineage_id(&m->lineage, &keys[i]))) {
        i++;
    }
    (void)pthread_mutex_unlock(&m->lock);
    return i;
}
