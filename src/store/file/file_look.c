/* file_look.c - what the file store's index tells without a look at the disk.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

uint32_t quire_file_has(const quire_store *store, const quire_page_key *keys, uint32_t n)
{
    /* The lock changes, the store does not. */
    file_store *st = (file_store *)(uintptr_t)store;
    uint32_t i = 0;

    (void)pthread_mutex_lock(&st->lock);
    for (; i < n; i++) {
        const uint32_t id = quire_index_find(st->index, &keys[i]);

        if (id == QUIRE_INDEX_NONE || quire_index_get(st->index, id)->state < QUIRE_INDEX_WRITTEN) {
            break;
        }
    }
    (void)pthread_mutex_unlock(&st->lock);
    return i;
}
