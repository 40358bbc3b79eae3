/* store_support.c - see store_support.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include "base/rng.h"

#include <string.h>

void test_text_make(test_text *text, uint32_t n_pages, uint32_t seed, const char *salt)
{
    const quire_prefix_key key = { .identity = { 7, 8 },
                                   .salt = salt,
                                   .salt_bytes = (uint32_t)strlen(salt) };
    quire_rng rng = { seed };
    quire_page_key root;
    quire_page_key parent;

    quire_prefix_key_root(&key, &root);
    parent = root;
    text->n_pages = n_pages;
    for (uint32_t i = 0; i < n_pages * TEST_PAGE_TOKENS; i++) {
        text->tokens[i] = (int32_t)quire_rng_below(&rng, 32000);
    }
    for (uint32_t i = 0; i < n_pages; i++) {
        quire_page_text *page = &text->pages[i];

        *page = (quire_page_text){ .parent = parent,
                                   .root = root,
                                   .first_token = i * TEST_PAGE_TOKENS,
                                   .n_tokens = TEST_PAGE_TOKENS,
                                   .tokens = text->tokens + (size_t)i * TEST_PAGE_TOKENS,
                                   .salt = salt,
                                   .salt_bytes = key.salt_bytes };
        quire_prefix_key_add(&parent, page->tokens, TEST_PAGE_TOKENS, &page->key);
        parent = page->key;
    }
}

static quire_rng payload_rng(const quire_page_key *key, uint32_t version)
{
    quire_rng rng = { 0 };

    memcpy(&rng.state, key->bytes, sizeof rng.state);
    rng.state += version;
    return rng;
}

quire_transfer *test_put_sized(const quire_page_text *page, uint32_t version, size_t part_bytes)
{
    const size_t bytes_of[2] = { part_bytes, 0 };
    const size_t bytes = quire_page_record_bytes(page->n_tokens, page->salt_bytes, 2, bytes_of);
    quire_transfer *t = quire_transfer_new(bytes, TEST_PAGE_TOKENS);
    unsigned char *parts[QUIRE_GROUPS_MAX];
    quire_rng rng = payload_rng(&page->key, version);

    assert_non_null(t);
    assert_int_equal(quire_page_record_begin(t->record, t->capacity, page, 2, bytes_of, parts),
                     QUIRE_OK);
    for (size_t i = 0; i < part_bytes; i++) {
        parts[0][i] = (unsigned char)quire_rng_next(&rng);
    }
    return t;
}

quire_transfer *test_get_sized(const quire_page_text *page, size_t part_bytes)
{
    const size_t bytes_of[2] = { part_bytes, 0 };
    quire_transfer *t = quire_transfer_new(
        quire_page_record_bytes(TEST_PAGE_TOKENS, QUIRE_PREFIX_SALT_MAX, 2, bytes_of),
        TEST_PAGE_TOKENS);

    assert_non_null(t);
    quire_transfer_text_set(t, page);
    return t;
}

bool test_is_payload_sized(const quire_page_record *record, uint32_t version, size_t part_bytes)
{
    quire_rng rng = payload_rng(&record->text.key, version);

    if (record->n_parts != 2 || record->part_bytes[0] != part_bytes || record->part_bytes[1] != 0) {
        return false;
    }
    for (size_t i = 0; i < part_bytes; i++) {
        if (record->parts[0][i] != (unsigned char)quire_rng_next(&rng)) {
            return false;
        }
    }
    return true;
}

quire_transfer *test_put_new(const quire_page_text *page, uint32_t version)
{
    return test_put_sized(page, version, TEST_PART_BYTES);
}

quire_transfer *test_get_new(const quire_page_text *page)
{
    return test_get_sized(page, TEST_PART_BYTES);
}

bool test_is_payload(const quire_page_record *record, uint32_t version)
{
    return test_is_payload_sized(record, version, TEST_PART_BYTES);
}

/* ---- stores with transfers that finish at once ---- */

static void give_back(void *ctx, quire_transfer *transfer)
{
    (*(uint32_t *)ctx)++;
    quire_transfer_free(transfer);
}

uint32_t test_store_close(quire_store *store)
{
    uint32_t n = 0;

    store->ops->close(store, give_back, &n);
    return n;
}

quire_store *test_store_new(const quire_memory_store_opts *opts)
{
    quire_store *store;

    assert_int_equal(quire_memory_store_create(&store, opts), QUIRE_OK);
    return store;
}

quire_store_result test_put(quire_store *store, const quire_page_text *page, uint32_t version,
                            bool is_replacing)
{
    quire_transfer *t = test_put_new(page, version);
    quire_transfer *done;
    quire_store_result result;

    t->is_replacing = is_replacing;
    store->ops->put(store, &t, 1);
    assert_int_equal(store->ops->poll(store, &done, 1), 1);
    assert_ptr_equal(done, t);
    result = t->result;
    quire_transfer_free(t);
    return result;
}

quire_store_result test_get(quire_store *store, const quire_page_text *page, uint32_t version,
                            bool *is_right)
{
    quire_transfer *t = test_get_new(page);
    quire_transfer *done;
    quire_store_result result;

    store->ops->get(store, &t, 1);
    assert_int_equal(store->ops->poll(store, &done, 1), 1);
    result = t->result;
    *is_right = result == QUIRE_STORE_OK && test_is_payload(&t->found, version);
    quire_transfer_free(t);
    return result;
}

bool test_has(quire_store *store, const quire_page_text *page)
{
    bool is_right;

    return test_get(store, page, 0, &is_right) == QUIRE_STORE_OK && is_right;
}
