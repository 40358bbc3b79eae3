/* file_visit.h - the contents of a file store, for programs that list a directory.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_FILE_FILE_VISIT_H
#define QUIRE_STORE_FILE_FILE_VISIT_H

#include "store/store.h"

/* A record as the index has it; the record itself is not read. */
typedef struct quire_file_record {
    quire_page_key key;
    quire_page_key parent;
    quire_page_key root;
    uint32_t root_id; /* the same for all records of a root, until its last record goes */
    uint32_t first_token;
    uint32_t n_tokens;
    uint32_t uses;    /* since it was written or carried forward; stays at 255 */
    uint32_t segment; /* number in the file's name */
    uint64_t offset;  /* in that file */
    uint64_t n_bytes;
    uint32_t salt_bytes;
    unsigned char salt[QUIRE_PREFIX_SALT_MAX];
} quire_file_record;

/* Call each() for every record that a get finds, in no order. Records that come or go meanwhile may
 * or may not be among them. The lock is held while a few records are copied, and not during each().
 * `store` must be a file store. Thread: the caller of get. */
void quire_file_store_visit(const quire_store *store,
                            void (*each)(void *ctx, const quire_file_record *record), void *ctx);

/* Segments that could not be read when the store was created. Their records are not in the store,
 * though they may come back at a later start. `store` must be a file store. Thread: any. */
uint32_t quire_file_store_unread(const quire_store *store);

/* "DIR/segment-<number>.quire" into path[path_bytes]. Returns path. */
char *quire_file_store_path(const quire_store *store, uint32_t segment, char *path,
                            size_t path_bytes);

#endif /* QUIRE_STORE_FILE_FILE_VISIT_H */
