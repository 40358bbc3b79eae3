/* chain_copies.c - see chain_copies.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/chain_copies.h"

#include <string.h>

/* Make room for n_bytes in this copy, within the bound. */
static bool fits(quire_chain_copies *pool, quire_chain_copy *copy, size_t n_bytes)
{
    const size_t had = copy->transfer != NULL ? copy->transfer->capacity : 0;

    if (had >= n_bytes) {
        return true;
    }
    quire_transfer_free(copy->transfer);
    copy->transfer = NULL;
    pool->n_bytes -= had;
    if (pool->n_bytes > 0 && pool->n_bytes + n_bytes > pool->bytes_max) {
        return false;
    }
    copy->transfer = quire_transfer_new(n_bytes, 0);
    if (copy->transfer == NULL) {
        return false;
    }
    pool->n_bytes += copy->transfer->capacity;
    return true;
}

/* Copies with memory come first: they are the first ones that were ever used. */
quire_chain_copy *quire_chain_copy_make(quire_chain_copies *pool, const quire_transfer *t,
                                        size_t n_bytes)
{
    for (uint32_t i = 0; i < QUIRE_CHAIN_COPIES_MAX; i++) {
        quire_chain_copy *copy = &pool->items[i];

        if (!copy->is_used) {
            if (!fits(pool, copy, t->capacity)) {
                return NULL;
            }
            memcpy(copy->transfer->record, t->record, n_bytes);
            copy->transfer->owner = copy;
            copy->transfer->use = t->use;
            copy->is_used = true;
            return copy;
        }
    }
    return NULL;
}

void quire_chain_copy_give(quire_chain_copy *copy)
{
    *copy = (quire_chain_copy){ .transfer = copy->transfer };
}

quire_chain_copy *quire_chain_copy_of(quire_chain_copies *pool, const quire_transfer *t)
{
    const uintptr_t at = (uintptr_t)t->owner;
    const uintptr_t first = (uintptr_t)&pool->items[0];

    return at >= first && at < first + sizeof pool->items ? t->owner : NULL;
}
