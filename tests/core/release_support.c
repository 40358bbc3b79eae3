/* release_support.c - see the header.
 *
 * SPDX-License-Identifier: MIT */
#include "release_support.h"

quire_cache_opts test_two_groups(uint32_t n_pages)
{
    quire_cache_opts opts = test_opts(n_pages);

    opts.n_groups = 2;
    opts.page_bytes[HOT] = PAGE_BYTES;
    return opts;
}

uint32_t test_release(quire_cache *cache, quire_seq_id seq, uint32_t begin, uint32_t end)
{
    uint32_t n_tokens = quire_seq_tokens(cache, seq);
    uint64_t charged = test_stats(cache).charged_bytes;
    uint32_t n = UINT32_MAX;

    assert_int_equal(quire_seq_release(cache, seq, HOT, begin, end, &n), QUIRE_OK);
    assert_int_equal(quire_seq_tokens(cache, seq), n_tokens);
    assert_true(test_stats(cache).charged_bytes <= charged);
    quire_cache_validate(cache);
    return n;
}

bool test_is_hole(const quire_cache *cache, quire_seq_id seq, uint32_t entry)
{
    return test_page_of(cache, seq, HOT, entry * PAGE_TOKENS) == QUIRE_PAGE_NULL;
}

void test_check_holes(const quire_cache *cache, quire_seq_id seq, uint32_t begin, uint32_t end)
{
    quire_seq_table table;

    assert_int_equal(quire_seq_table_get(cache, seq, HOT, &table), QUIRE_OK);
    for (uint32_t i = 0; i < table.n_entries; i++) {
        if (test_is_hole(cache, seq, i) != (i >= begin && i < end)) {
            fail_msg("sequence %u, entry %u: holes should be %u..%u", seq, i, begin, end);
        }
    }
}

void test_check_stamps(const quire_cache *cache, quire_seq_id seq, uint32_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++) {
        test_slot_check_in(cache, seq, 0, i, first + i);
        if (test_page_of(cache, seq, HOT, i) != QUIRE_PAGE_NULL) {
            test_slot_check_in(cache, seq, HOT, i, first + i);
        }
    }
}
