/* store_support.h - texts and records for the tests of stores.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_STORE_SUPPORT_H
#define TESTS_STORE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/memory_store.h"
#include "store/page_record.h"
#include "store/store.h"

#define TEST_PAGE_TOKENS 64u
#define TEST_PART_BYTES  5000u /* of part 0; no multiple of anything */

/* A text of pages, with the keys of all of them. */
typedef struct test_text {
    quire_page_text pages[32];
    int32_t tokens[32 * TEST_PAGE_TOKENS];
    uint32_t n_pages;
} test_text;

/* n_pages pages of tokens made from seed, of the tenant `salt`. */
void test_text_make(test_text *text, uint32_t n_pages, uint32_t seed, const char *salt);

/* A begun record of a page of text: part 0 is TEST_PART_BYTES long, part 1 is empty. Its payload
 * follows from the key and `version`. */
quire_transfer *test_put_new(const quire_page_text *page, uint32_t version);
quire_transfer *test_get_new(const quire_page_text *page);
/* Whether a found record has the payload of test_put_new(). */
bool test_is_payload(const quire_page_record *record, uint32_t version);

/* A put or a get with a part 0 of part_bytes. */
quire_transfer *test_put_sized(const quire_page_text *page, uint32_t version, size_t part_bytes);
quire_transfer *test_get_sized(const quire_page_text *page, size_t part_bytes);
bool test_is_payload_sized(const quire_page_record *record, uint32_t version, size_t part_bytes);

/* ---- stores with transfers that finish at once ---- */

quire_store *test_store_new(const quire_memory_store_opts *opts);
/* Close a store and free the transfers that it gives back. Returns their number. */
uint32_t test_store_close(quire_store *store);
/* Put a page; the transfer is over when put returns. */
quire_store_result test_put(quire_store *store, const quire_page_text *page, uint32_t version,
                            bool is_replacing);
/* Get a page; *is_right says whether the payload is that version's. */
quire_store_result test_get(quire_store *store, const quire_page_text *page, uint32_t version,
                            bool *is_right);
/* Whether the store has version 0 of a page. */
bool test_has(quire_store *store, const quire_page_text *page);

#endif /* TESTS_STORE_SUPPORT_H */
