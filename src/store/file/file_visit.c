/* file_visit.c - see file_visit.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_visit.h"

#include "store/file/file_internal.h"

#include <stdio.h>
#include <string.h>

#define SLICE 64u /* ids that are looked at in one go */

static void record_get(const file_store *st, const quire_index_entry *entry, quire_file_record *out)
{
    const quire_index_root *root = quire_index_root_get(st->index, entry->root);

    *out = (quire_file_record){ .key = entry->key,
                                .parent = entry->parent,
                                .root = root->key,
                                .root_id = entry->root,
                                .first_token = entry->first_token,
                                .n_tokens = entry->n_tokens,
                                .uses = entry->uses,
                                .segment = st->slots[entry->segment]->number,
                                .offset = (uint64_t)entry->place * QUIRE_SEGMENT_BLOCK,
                                .n_bytes = (uint64_t)entry->blocks * QUIRE_SEGMENT_BLOCK,
                                .salt_bytes = root->salt_bytes };
    memcpy(out->salt, root->salt, root->salt_bytes);
}

/* Copy the records of ids from *id on. Returns their number; *id: where to go on, NONE at the end.
 */
static uint32_t slice_get(file_store *st, uint32_t *id, quire_file_record *out)
{
    uint32_t n = 0, end;

    (void)pthread_mutex_lock(&st->lock);
    end = quire_index_ids(st->index);
    for (uint32_t i = 0; i < SLICE && *id < end; i++, ++*id) {
        const quire_index_entry *entry = quire_index_get(st->index, *id);

        if (entry->state == QUIRE_INDEX_WRITTEN || entry->state == QUIRE_INDEX_DURABLE) {
            record_get(st, entry, &out[n++]);
        }
    }
    *id = *id < end ? *id : QUIRE_INDEX_NONE;
    (void)pthread_mutex_unlock(&st->lock);
    return n;
}

void quire_file_store_visit(const quire_store *store,
                            void (*each)(void *ctx, const quire_file_record *record), void *ctx)
{
    /* The lock changes, the store does not. */
    file_store *st = (file_store *)(uintptr_t)store;
    quire_file_record records[SLICE];
    uint32_t id = 0;

    while (id != QUIRE_INDEX_NONE) {
        const uint32_t n = slice_get(st, &id, records);

        for (uint32_t i = 0; i < n; i++) {
            each(ctx, &records[i]);
        }
    }
}

uint32_t quire_file_store_unread(const quire_store *store)
{
    return ((const file_store *)store)->n_unread;
}

char *quire_file_store_path(const quire_store *store, uint32_t segment, char *path,
                            size_t path_bytes)
{
    const file_store *st = (const file_store *)(const void *)store;
    char whole[FILE_PATH_MAX];

    quire_file_path(st, segment, whole);
    (void)snprintf(path, path_bytes, "%s", whole);
    return path;
}
