/* test_payload.c - contiguous payloads: gathering gives the same bytes from any extent and slot,
 * and scattering restores the payload.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

#include <string.h>

#define P        PAGE_TOKENS
#define N_PARTS  3u
#define N_TOKENS (3u * P - 1u) /* the last page is partly filled */

/* Two groups: one in uneven parts, one in a single part. */
static const size_t parts[N_PARTS] = { PAGE_BYTES / 2, PAGE_BYTES / 8, PAGE_BYTES * 3 / 8 };

static void cache_open(test_cache *t)
{
    quire_cache_opts opts = test_opts(64);

    opts.n_groups = 2;
    opts.n_parts[0] = N_PARTS;
    opts.part_bytes[0] = parts;
    opts.page_bytes[1] = PAGE_BYTES / 2;
    test_cache_create(t, &opts, 0, 0);
}

/* Byte i of a page of a group has a value of its own. */
static unsigned char byte_of(uint32_t page, quire_group_id group, size_t i)
{
    return (unsigned char)((page * 31u + group * 7u + i * 13u + i / 251u) & 0xffu);
}

static void pages_write(const quire_cache *cache, quire_seq_id seq)
{
    for (quire_group_id g = 0; g < 2; g++) {
        for (uint32_t e = 0; e * P < N_TOKENS; e++) {
            const quire_page_id page = test_page_of(cache, seq, g, e * P);

            for (size_t i = 0; i < quire_cache_payload_bytes(cache, g); i++) {
                *test_payload(cache, page, i) = byte_of(e, g, i);
            }
        }
    }
}

/* Gather all pages of a sequence and check the written bytes; scatter them into the same pages of
 * another sequence and check these. */
static void pages_carry(const quire_cache *from, quire_seq_id from_seq, quire_cache *to,
                        quire_seq_id to_seq)
{
    unsigned char buffer[PAGE_BYTES + 1];

    for (quire_group_id g = 0; g < 2; g++) {
        const size_t n = quire_cache_payload_bytes(from, g);

        for (uint32_t e = 0; e * P < N_TOKENS; e++) {
            const quire_page_id page = test_page_of(from, from_seq, g, e * P);
            const quire_page_id other = test_page_of(to, to_seq, g, e * P);

            buffer[n] = 0xa5;
            assert_int_equal(quire_cache_page_gather(from, page, buffer, n), QUIRE_OK);
            assert_int_equal(buffer[n], 0xa5);
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(buffer[i], byte_of(e, g, i));
            }
            assert_int_equal(quire_cache_page_scatter(to, other, buffer, n), QUIRE_OK);
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(*test_payload(to, other, i), byte_of(e, g, i));
            }
        }
    }
}

/* To other slots of the same cache and to another cache, among pages of other sequences. */
static void test_round_trip(void **state)
{
    quire_seq_id first;
    quire_seq_id second;
    quire_seq_id other;
    test_cache a;
    test_cache b;

    (void)state;
    cache_open(&a);
    cache_open(&b);
    first = test_open(a.cache);
    test_append(a.cache, first, N_TOKENS);
    second = test_open(a.cache);
    test_append(a.cache, second, N_TOKENS);
    pages_write(a.cache, first);
    pages_carry(a.cache, first, a.cache, second);

    test_append(b.cache, test_open(b.cache), 5 * P);
    other = test_open(b.cache);
    test_append(b.cache, other, N_TOKENS);
    test_append(b.cache, test_open(b.cache), P);
    pages_carry(a.cache, second, b.cache, other);
    pages_carry(b.cache, other, a.cache, first); /* neighbours are unchanged */
    test_cache_destroy(&b);
    test_cache_destroy(&a);
}

/* Gathering is independent of coalescing. */
static void test_after_coalescing(void **state)
{
    quire_seq_id seqs[4];
    test_cache a;
    test_cache b;

    (void)state;
    cache_open(&a);
    cache_open(&b);
    for (uint32_t i = 0; i < 4; i++) {
        seqs[i] = test_open(a.cache);
        test_append(a.cache, seqs[i], N_TOKENS);
    }
    pages_write(a.cache, seqs[3]);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(quire_seq_close(a.cache, seqs[i]), QUIRE_OK);
    }
    (void)quire_cache_coalesce(a.cache, UINT32_MAX);
    seqs[0] = test_open(b.cache);
    test_append(b.cache, seqs[0], N_TOKENS);
    pages_carry(a.cache, seqs[3], b.cache, seqs[0]);
    test_cache_destroy(&b);
    test_cache_destroy(&a);
}

static void test_errors(void **state)
{
    unsigned char buffer[PAGE_BYTES] = { 0 };
    quire_cache_opts opts = test_opts(8);
    quire_page_id page;
    quire_seq_id seq;
    quire_seq_id fork;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append(t.cache, seq, P + 1);
    page = test_page_of(t.cache, seq, 0, P);
    assert_int_equal(quire_cache_payload_bytes(t.cache, 0), PAGE_BYTES);
    assert_int_equal(quire_cache_payload_bytes(t.cache, 1), 0);
    assert_int_equal(quire_cache_page_gather(t.cache, QUIRE_PAGE_NULL, buffer, PAGE_BYTES),
                     QUIRE_NOTFOUND);
    assert_int_equal(quire_cache_page_gather(t.cache, 1000, buffer, PAGE_BYTES), QUIRE_NOTFOUND);
    assert_int_equal(quire_cache_page_scatter(t.cache, 1000, buffer, PAGE_BYTES), QUIRE_NOTFOUND);
    assert_int_equal(quire_cache_page_gather(t.cache, page, buffer, PAGE_BYTES - 64), QUIRE_INVAL);
    assert_int_equal(quire_cache_page_scatter(t.cache, page, buffer, 0), QUIRE_INVAL);

    fork =
        test_fork(t.cache, seq); /* both append to leaves of their own, the first page is shared */
    test_append(t.cache, fork, 1);
    page = test_page_of(t.cache, seq, 0, 0);
    assert_int_equal(test_page_of(t.cache, fork, 0, 0), page);
    assert_int_equal(quire_cache_page_scatter(t.cache, page, buffer, PAGE_BYTES), QUIRE_AGAIN);
    assert_int_equal(quire_seq_close(t.cache, fork), QUIRE_OK);
    assert_int_equal(quire_cache_page_scatter(t.cache, page, buffer, PAGE_BYTES), QUIRE_OK);
    quire_pool_keep(&t.cache->pool, page, P);
    assert_int_equal(quire_cache_page_scatter(t.cache, page, buffer, PAGE_BYTES), QUIRE_AGAIN);
    assert_int_equal(quire_cache_page_gather(t.cache, page, buffer, PAGE_BYTES), QUIRE_OK);
    assert_int_equal(quire_seq_close(t.cache, seq), QUIRE_OK); /* cached: can be gathered */
    assert_int_equal(quire_cache_page_gather(t.cache, page, buffer, PAGE_BYTES), QUIRE_OK);
    test_cache_destroy(&t);
}

static void test_no_payload(void **state)
{
    quire_cache_opts opts = test_opts(8);
    unsigned char buffer[64];
    quire_seq_id seq;
    test_cache t;

    (void)state;
    opts.page_bytes[0] = 0;
    opts.charge_bytes[0] = 1;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append(t.cache, seq, 1);
    assert_int_equal(quire_cache_payload_bytes(t.cache, 0), 0);
    assert_int_equal(quire_cache_page_gather(t.cache, test_page_of(t.cache, seq, 0, 0), buffer, 0),
                     QUIRE_INVAL);
    test_cache_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_after_coalescing),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_no_payload),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
