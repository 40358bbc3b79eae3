/* test_pack.c - documents in the rows of batches, and places from which the same batches follow.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "counting_docs.h"
#include "train/ops.h"

#include <string.h>

/* Documents 0 (1 token: nothing to predict), 1 (8 tokens), 2 (15 tokens), ... */
static void test_pack(void **state)
{
    counting c = { .n_given = 3 };
    quire_doc_reader reader = reader_of(&c);
    quire_packer packer;
    packed b;

    (void)state;
    quire_packer_init(&packer, &reader);
    fill(&packer, &b);
    /* Document 1: 7 tokens with their successors; the first two are given. */
    assert_int_equal(b.tokens[0], 1);
    assert_int_equal(b.targets[0], QUIRE_TRAIN_NO_TARGET);
    assert_int_equal(b.targets[1], QUIRE_TRAIN_NO_TARGET);
    assert_int_equal(b.targets[2], 4);
    assert_int_equal(b.targets[6], 8);
    /* Document 2: 14 tokens, of which 9 fit; the other 5 begin the next row. */
    assert_int_equal(b.tokens[7], 2);
    assert_int_equal(b.first[7], 7);
    assert_int_equal(b.first[15], 7);
    assert_int_equal(b.targets[15], (2 + 9) % VOCAB);
    assert_int_equal(b.tokens[16], (2 + 9) % VOCAB);
    assert_int_equal(b.first[16], 0);
    assert_int_equal(b.first[16 + 5], 5);
    assert_int_equal(b.tokens[16 + 5], 3);
    for (uint32_t i = 0; i < TOKENS; i++) {
        assert_true(b.first[i] >= 0 && (uint32_t)b.first[i] <= i % LENGTH);
        assert_true(i % LENGTH == 0 || b.first[i] >= b.first[i - 1]);
    }
}

/* Document 2 fits in a row, but not behind document 1: it waits. Document 3 has 21 tokens, more
 * than a row, and is cut as others are. */
static void test_pack_whole(void **state)
{
    counting c = { .is_whole = true };
    quire_doc_reader reader = reader_of(&c);
    quire_packer packer;
    packed b;

    (void)state;
    quire_packer_init(&packer, &reader);
    fill(&packer, &b);
    assert_int_equal(b.tokens[6], 7);
    for (uint32_t i = 7; i < LENGTH; i++) {
        assert_int_equal(b.targets[i], QUIRE_TRAIN_NO_TARGET);
        assert_int_equal(b.first[i], i);
    }
    assert_int_equal(b.tokens[LENGTH], 2);
    assert_int_equal(b.first[LENGTH + 13], 0);
    assert_int_equal(b.tokens[LENGTH + 14], 3);
    assert_int_equal(b.tokens[2 * LENGTH], 3 + 2);
    assert_int_equal(b.p.n_targets, 7 + LENGTH + LENGTH);
}

static void test_pack_end(void **state)
{
    counting c = { .n_docs = 3 };
    quire_doc_reader reader = reader_of(&c);
    quire_packer packer;
    packed b;

    (void)state;
    quire_packer_init(&packer, &reader);
    fill(&packer, &b);
    assert_int_equal(b.p.n_targets, 7 + 14);
    assert_int_equal(b.targets[21], QUIRE_TRAIN_NO_TARGET);
    assert_int_equal(b.first[22], 6);
    assert_int_equal(b.first[TOKENS - 1], LENGTH - 1);
    fill(&packer, &b);
    assert_int_equal(b.p.n_targets, 0);
}

/* From every place the same batches follow. */
static void test_pack_seek(void **state)
{
    (void)state;
    for (uint32_t n_before = 0; n_before < 12; n_before++) {
        counting c = { .is_whole = n_before % 2 == 1 }, other = c;
        quire_doc_reader reader = reader_of(&c), other_reader = reader_of(&other);
        quire_packer packer, resumed;
        uint64_t place[QUIRE_PACK_PLACE];
        packed a, b;

        quire_packer_init(&packer, &reader);
        for (uint32_t i = 0; i < n_before; i++) {
            fill(&packer, &a);
        }
        quire_packer_tell(&packer, place);
        quire_packer_init(&resumed, &other_reader);
        assert_int_equal(quire_packer_seek(&resumed, place, NULL), QUIRE_OK);
        for (uint32_t i = 0; i < 3; i++) {
            fill(&packer, &a);
            fill(&resumed, &b);
            assert_memory_equal(a.tokens, b.tokens, sizeof(a.tokens));
            assert_memory_equal(a.targets, b.targets, sizeof(a.targets));
            assert_memory_equal(a.first, b.first, sizeof(a.first));
        }
    }
}

static void test_pack_changed(void **state)
{
    counting c = { .n_docs = 3 };
    quire_doc_reader reader = reader_of(&c);
    quire_packer packer;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    quire_packer_init(&packer, &reader);
    assert_int_equal(quire_packer_seek(&packer, (const uint64_t[]){ 1, 0, 0, 0, 0, 0, 0, 8 }, &err),
                     QUIRE_INVAL);
    assert_non_null(strstr(err.message, "the data has changed: a document of 8 tokens"));
    assert_int_equal(quire_packer_seek(&packer, (const uint64_t[]){ 9, 0, 0, 0, 0, 0, 0, 0 }, &err),
                     QUIRE_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack),         cmocka_unit_test(test_pack_whole),
        cmocka_unit_test(test_pack_end),     cmocka_unit_test(test_pack_seek),
        cmocka_unit_test(test_pack_changed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
