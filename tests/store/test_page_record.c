/* test_page_record.c - a page of text as bytes: written records are read, and all other bytes are
 * refused.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include "base/hash128.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

static quire_transfer *sealed_new(const test_text *text, uint32_t page)
{
    quire_transfer *t = test_put_new(&text->pages[page], 0);

    quire_page_record_seal(t->record, 42);
    return t;
}

static void test_round_trip(void **state)
{
    test_text text;
    quire_transfer *t;
    quire_page_record record;
    int32_t tokens[TEST_PAGE_TOKENS];

    (void)state;
    test_text_make(&text, 2, 1, "tenant");
    t = sealed_new(&text, 1);
    assert_int_equal(quire_page_record_peek(t->record, t->capacity), t->capacity);
    assert_int_equal(quire_page_record_open(t->record, t->capacity, &record), QUIRE_STORE_OK);
    assert_int_equal(record.sequence, 42);
    assert_int_equal(record.text.first_token, TEST_PAGE_TOKENS);
    assert_int_equal(record.text.salt_bytes, 6);
    assert_memory_equal(record.text.salt, "tenant", 6);
    quire_page_record_tokens(&record, tokens);
    assert_memory_equal(tokens, text.pages[1].tokens, sizeof tokens);
    assert_true(test_is_payload(&record, 0));
    assert_int_equal(quire_page_record_check(&record, &text.pages[1]), QUIRE_STORE_OK);
    quire_transfer_free(t);
}

/* Bytes on a disk outlive programs: a change of this hash is a new QUIRE_PAGE_RECORD_VERSION. */
static void test_golden(void **state)
{
    static const unsigned char want[QUIRE_HASH128_BYTES] = { 0x59, 0xba, 0x4c, 0xa4, 0xac, 0xee,
                                                             0x4e, 0x76, 0x99, 0xfa, 0x2f, 0xe5,
                                                             0x13, 0x78, 0xd3, 0x46 };
    unsigned char hash[QUIRE_HASH128_BYTES];
    test_text text;
    quire_transfer *t;

    (void)state;
    test_text_make(&text, 2, 1, "tenant");
    t = sealed_new(&text, 1);
    quire_hash128(t->record, t->capacity, hash);
    assert_memory_equal(hash, want, sizeof hash);
    quire_transfer_free(t);
}

/* Every flipped bit is seen. */
static void test_flips(void **state)
{
    test_text text;
    quire_transfer *t;
    quire_page_record record;

    (void)state;
    test_text_make(&text, 1, 2, "");
    t = sealed_new(&text, 0);
    for (size_t bit = 0; bit < t->capacity * 8; bit += bit < 8192 ? 1 : 97) {
        t->record[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_not_equal(quire_page_record_open(t->record, t->capacity, &record),
                             QUIRE_STORE_OK);
        t->record[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(quire_page_record_open(t->record, t->capacity, &record), QUIRE_STORE_OK);
    quire_transfer_free(t);
}

/* Numbers that do not fit together are refused, also under a checksum that is right. */
static void test_liars(void **state)
{
    static const uint32_t at[] = { 4, 8, 12, 92, 96, 100, 104, 108 };
    static const uint32_t values[] = { 0, 1, 2, 9, 63, 65, 4096, 1u << 20, 1u << 31, UINT32_MAX };
    test_text text;
    quire_transfer *t;
    quire_page_record record;
    unsigned char kept[4];

    (void)state;
    test_text_make(&text, 1, 3, "x");
    t = sealed_new(&text, 0);
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        memcpy(kept, t->record + at[i], 4);
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            (void)quire_le_put(t->record + at[i], values[v], 4);
            if (memcmp(kept, t->record + at[i], 4) == 0) {
                continue;
            }
            quire_hash128_parts(t->record, 16, t->record + 32, t->capacity - 32, t->record + 16);
            /* Another number that fits by chance is another text, or another payload. */
            if (quire_page_record_open(t->record, t->capacity, &record) == QUIRE_STORE_OK) {
                assert_true(quire_page_record_check(&record, &text.pages[0]) != QUIRE_STORE_OK ||
                            !test_is_payload(&record, 0));
            }
        }
        memcpy(t->record + at[i], kept, 4);
    }
    quire_page_record_seal(t->record, 42);
    assert_int_equal(quire_page_record_open(t->record, t->capacity, &record), QUIRE_STORE_OK);
    assert_int_equal(
        quire_page_record_open(t->record, t->capacity - QUIRE_PAGE_RECORD_ALIGN, &record),
        QUIRE_STORE_FORMAT);
    assert_int_equal(quire_page_record_peek(t->record, 100), 0);
    quire_transfer_free(t);
}

/* A verified record is used for the page that was asked for only. */
static void test_check(void **state)
{
    test_text text;
    test_text other;
    quire_transfer *t;
    quire_page_record record;
    quire_page_text page;
    int32_t tokens[TEST_PAGE_TOKENS];

    (void)state;
    test_text_make(&text, 2, 1, "tenant");
    t = sealed_new(&text, 0);
    assert_int_equal(quire_page_record_open(t->record, t->capacity, &record), QUIRE_STORE_OK);
    test_text_make(&other, 2, 1, "others");
    assert_int_equal(quire_page_record_check(&record, &other.pages[0]), QUIRE_STORE_IDENTITY);
    assert_int_equal(quire_page_record_check(&record, &text.pages[1]), QUIRE_STORE_TOKENS);

    /* Two texts with one key can be constructed: tokens are compared one by one. */
    for (uint32_t i = 0; i < TEST_PAGE_TOKENS; i++) {
        page = text.pages[0];
        memcpy(tokens, page.tokens, sizeof tokens);
        tokens[i]++;
        page.tokens = tokens;
        assert_int_equal(quire_page_record_check(&record, &page), QUIRE_STORE_TOKENS);
    }
    page = text.pages[0];
    page.first_token++;
    assert_int_equal(quire_page_record_check(&record, &page), QUIRE_STORE_TOKENS);
    page = text.pages[0];
    page.parent.bytes[3] ^= 1;
    assert_int_equal(quire_page_record_check(&record, &page), QUIRE_STORE_TOKENS);

    /* An open page is asked for without tokens: the caller compares them. */
    page = text.pages[0];
    page.n_tokens = 0;
    page.tokens = NULL;
    assert_int_equal(quire_page_record_check(&record, &page), QUIRE_STORE_OK);
    quire_transfer_free(t);
}

static void test_limits(void **state)
{
    const size_t one = 1;
    const size_t huge[] = { QUIRE_PAGE_RECORD_BYTES_MAX, 1 };
    test_text text;
    unsigned char *parts[QUIRE_GROUPS_MAX];
    unsigned char *record = aligned_alloc(QUIRE_PAGE_RECORD_ALIGN, QUIRE_PAGE_RECORD_ALIGN);

    (void)state;
    assert_non_null(record);
    test_text_make(&text, 1, 1, "");
    assert_int_equal(quire_page_record_bytes(0, 0, 1, &one), 0);
    assert_int_equal(quire_page_record_bytes(QUIRE_PAGE_TOKENS_MAX + 1, 0, 1, &one), 0);
    assert_int_equal(quire_page_record_bytes(1, QUIRE_PREFIX_SALT_MAX + 1, 1, &one), 0);
    assert_int_equal(quire_page_record_bytes(1, 0, 0, &one), 0);
    assert_int_equal(quire_page_record_bytes(1, 0, QUIRE_GROUPS_MAX + 1, &one), 0);
    assert_int_equal(quire_page_record_bytes(1, 0, 2, huge), 0);
    assert_int_equal(quire_page_record_bytes(1, 0, 1, &one), QUIRE_PAGE_RECORD_ALIGN);
    assert_int_equal(quire_page_record_begin(record, QUIRE_PAGE_RECORD_ALIGN - 1, &text.pages[0], 1,
                                             &one, parts),
                     QUIRE_RANGE);
    assert_int_equal(
        quire_page_record_begin(record, QUIRE_PAGE_RECORD_ALIGN, &text.pages[0], 0, &one, parts),
        QUIRE_INVAL);
    free(record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_flips),      cmocka_unit_test(test_liars),
        cmocka_unit_test(test_check),      cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
