/* test_sha256.c - the hash of the examples of FIPS 180-4, for any split of the input into pieces.
 *
 * SPDX-License-Identifier: MIT */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *text, size_t n_times, size_t n_piece, const char *want)
{
    unsigned char hash[QUIRE_SHA256_BYTES];
    char got[2 * QUIRE_SHA256_BYTES + 1];
    const size_t n = strlen(text);
    quire_sha256 h;

    quire_sha256_init(&h);
    for (size_t i = 0; i < n_times; i++) {
        for (size_t at = 0; at < n; at += n_piece) {
            quire_sha256_add(&h, text + at, n - at < n_piece ? n - at : n_piece);
        }
    }
    quire_sha256_get(&h, hash);
    for (size_t i = 0; i < sizeof hash; i++) {
        (void)snprintf(got + 2 * i, 3, "%02x", hash[i]);
    }
    assert_string_equal(got, want);
}

static void test_examples(void **state)
{
    static const size_t pieces[] = { 1, 3, 63, 64, 1000 };

    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        check("", 1, pieces[i], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        check("abc", 1, pieces[i],
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, pieces[i],
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        check("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmn"
              "opqrlmnopqrsmnopqrstnopqrstu",
              1, pieces[i], "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
        check("aaaaaaaaaa", 100000, pieces[i],
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_examples) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
