/* file_kit.h - helpers that the tests of the file store share: directories, texts with records that
 * can be computed again, and a store with calls that wait for the result.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_STORE_FILE_KIT_H
#define QUIRE_TESTS_STORE_FILE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/file/file_store.h"

#define KIT_TOKENS      16u
#define KIT_TEXTS_MAX   4096u
#define KIT_TENANTS_MAX 16u
#define KIT_PAYLOAD     9000u /* bytes of a record's parts: a record has 3 blocks */
#define KIT_CAPACITY    ((uint64_t)4 << 20)
#define KIT_SEGMENT     ((uint64_t)256 << 10)
#define KIT_RECORD      12288u

/* Text number i of a tenant: pages in chains of `depth`. Everything follows from (tenant, i). */
typedef struct kit_text {
    quire_page_text text;
    int32_t tokens[KIT_TOKENS];
    char salt[16];
} kit_text;
#define KIT_CHAIN 8u
void kit_text_make(kit_text *out, uint32_t tenant, uint32_t i);

/* A fresh directory under the build's temporary place; removed by kit_dir_remove(). */
void kit_dir_make(char path[256]);
void kit_dir_remove(const char *path);
/* Bytes that the directory takes, as du counts. */
uint64_t kit_dir_bytes(const char *path);

quire_file_store_opts kit_opts(const char *dir, quire_reads_kind kind);
quire_store *kit_open(const quire_file_store_opts *opts);
void kit_close(quire_store *store);

/* Put text i of a tenant and wait for the result. */
quire_store_result kit_put(quire_store *store, uint32_t tenant, uint32_t i);
/* Get, and compare every byte with the put one. Fails the test when wrong bytes come as OK. */
quire_store_result kit_get(quire_store *store, uint32_t tenant, uint32_t i);
quire_store_result kit_query(quire_store *store, uint32_t tenant, uint32_t i);

/* In pieces: a transfer ready for put or get; poll until one is back. */
quire_transfer *kit_put_new(uint32_t tenant, uint32_t i);
quire_transfer *kit_get_new(uint32_t tenant, uint32_t i);
/* Whether an OK get has the bytes that belong to its text. */
bool kit_is_right(const quire_transfer *t, uint32_t tenant, uint32_t i);
quire_transfer *kit_wait(quire_store *store);
/* Get texts 0 .. n-1 of a tenant, all at once, and compare as kit_get() does. results: [n]. */
void kit_get_all(quire_store *store, uint32_t tenant, uint32_t n, quire_store_result *results);
void kit_drop(quire_store *store, quire_store_drop_what what, uint32_t tenant, uint32_t i);

/* Run the tests with each way of reading: *state points to its quire_reads_kind. Returns what main
 * returns. */
int kit_run(const struct CMUnitTest *tests, size_t n);

/* How often something is done: `usual`, or `chaos` in `make chaos` (QUIRE_CHAOS). */
uint64_t kit_count(uint64_t usual, uint64_t chaos);
/* A line of results, which `make chaos` shows. */
__attribute__((format(printf, 1, 2))) void kit_tell(const char *format, ...);

#endif /* QUIRE_TESTS_STORE_FILE_KIT_H */
