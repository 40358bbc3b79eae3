/* test_shared_seal.c - the keyed seal of records in a shared store.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/valkey/shared_seal.h"

#define RECORD_BYTES 4096u

typedef struct sealed {
    quire_seal_key key;
    quire_page_key root;
    quire_page_key page;
    unsigned char record[RECORD_BYTES];
    unsigned char head[QUIRE_SEAL_FIXED_BYTES + 16];
} sealed;

static quire_seal_place place_of(const sealed *s)
{
    return (quire_seal_place){ &s->root, &s->page, s->record };
}

static void sealed_make(sealed *s)
{
    static const unsigned char secret[QUIRE_SEAL_SECRET_MIN] = { 9 };
    static const unsigned char ancestors[16] = { 1, 2, 3 };
    const quire_seal_head head = { .n_chunks = 1,
                                   .record_bytes = RECORD_BYTES,
                                   .n_drops = 5,
                                   .epochs = { { 1 }, { 2 }, { 3 } },
                                   .is_whole = true,
                                   .n_ancestors = 2,
                                   .ancestors = ancestors };
    quire_seal_place place = place_of(s);

    memset(s, 0, sizeof *s);
    s->root.bytes[0] = 1;
    s->page.bytes[0] = 2;
    for (uint32_t i = 0; i < RECORD_BYTES; i++) {
        s->record[i] = (unsigned char)(i * 7);
    }
    assert_int_equal(quire_seal_key_make(&s->key, secret, sizeof secret), QUIRE_OK);
    assert_int_equal(quire_seal_bytes(&head), sizeof s->head);
    quire_seal_write(&s->key, &head, &place, s->head);
}

/* Check a record as a reader does: lengths first, then the seal. */
static bool is_right(const sealed *s)
{
    const quire_seal_place place = place_of(s);
    quire_seal_head head;

    return quire_seal_read(s->head, sizeof s->head, &head) && head.record_bytes == RECORD_BYTES &&
           quire_seal_is_right(&s->key, s->head, &place);
}

static void test_fields(void **state)
{
    quire_seal_head head;
    sealed s;

    (void)state;
    sealed_make(&s);
    assert_true(is_right(&s));
    assert_true(quire_seal_read(s.head, sizeof s.head, &head));
    assert_int_equal(head.n_drops, 5);
    assert_int_equal(head.epochs[QUIRE_EPOCH_ROOT][0], 3);
    assert_true(head.is_whole);
    assert_int_equal(head.n_ancestors, 2);
    assert_int_equal(head.ancestors[2], 3);
}

/* No bit of head, record, key or root may differ. */
static void test_bits(void **state)
{
    sealed s;

    (void)state;
    sealed_make(&s);
    for (uint32_t bit = 0; bit < sizeof s.head * 8; bit++) {
        s.head[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(is_right(&s));
        s.head[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (uint32_t bit = 0; bit < RECORD_BYTES * 8; bit += 11) {
        s.record[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(is_right(&s));
        s.record[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (uint32_t bit = 0; bit < QUIRE_PAGE_KEY_BYTES * 8; bit++) {
        s.page.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(is_right(&s));
        s.page.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        s.root.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(is_right(&s));
        s.root.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_true(is_right(&s));
}

static void test_lengths(void **state)
{
    quire_seal_head head;
    sealed s;

    (void)state;
    sealed_make(&s);
    for (size_t n = 0; n < sizeof s.head; n++) {
        assert_false(quire_seal_read(s.head, n, &head));
    }
    s.head[8] = 1; /* record_bytes: another number of chunks */
    s.head[11] = 1;
    assert_false(quire_seal_read(s.head, sizeof s.head, &head));
    sealed_make(&s);
    memset(s.head + 44, 0xff, 4); /* ancestors */
    assert_false(quire_seal_read(s.head, sizeof s.head, &head));
}

static void test_other_secret(void **state)
{
    static const unsigned char other[QUIRE_SEAL_SECRET_MIN] = { 10 };
    char fleet[sizeof((quire_seal_key *)0)->fleet];
    sealed s;

    (void)state;
    sealed_make(&s);
    memcpy(fleet, s.key.fleet, sizeof fleet);
    assert_int_equal(strlen(fleet), QUIRE_VALKEY_FLEET_MAX);
    assert_int_equal(quire_seal_key_make(&s.key, other, sizeof other), QUIRE_OK);
    assert_false(is_right(&s));
    assert_string_not_equal(fleet, s.key.fleet);
    assert_int_equal(quire_seal_key_make(&s.key, other, QUIRE_SEAL_SECRET_MIN - 1), QUIRE_INVAL);
}

static void file_write(const char *path, size_t n)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(fputc((int)(i % 251), file), (int)(i % 251));
    }
    assert_int_equal(fclose(file), 0);
}

static void test_secret_file(void **state)
{
    char path[] = "/tmp/quire-seal-XXXXXX";
    const int fd = mkstemp(path);
    quire_error err = QUIRE_ERROR_INIT;
    quire_seal_key key;

    (void)state;
    assert_true(fd >= 0);
    (void)close(fd);
    file_write(path, QUIRE_SEAL_SECRET_MIN - 1);
    assert_int_equal(quire_seal_key_read(&key, path, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "head -c 32 /dev/urandom"));
    file_write(path, QUIRE_SEAL_SECRET_MAX + 1);
    assert_int_equal(quire_seal_key_read(&key, path, &err), QUIRE_INVAL);
    file_write(path, QUIRE_SEAL_SECRET_MIN);
    assert_int_equal(quire_seal_key_read(&key, path, &err), QUIRE_OK);
    file_write(path, QUIRE_SEAL_SECRET_MAX);
    assert_int_equal(quire_seal_key_read(&key, path, &err), QUIRE_OK);
    (void)unlink(path);
    assert_int_equal(quire_seal_key_read(&key, path, &err), QUIRE_IO);
    assert_non_null(strstr(err.message, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),      cmocka_unit_test(test_bits),
        cmocka_unit_test(test_lengths),     cmocka_unit_test(test_other_secret),
        cmocka_unit_test(test_secret_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
