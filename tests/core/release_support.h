/* release_support.h - shortcuts for the tests of holes.
 *
 * The tests use two groups: group HOT releases pages, group 0 keeps all pages.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_RELEASE_SUPPORT_H
#define TESTS_RELEASE_SUPPORT_H

#include "core_support.h"

#define LEAF_TOKENS (QUIRE_LEAF_ENTRIES * PAGE_TOKENS)
#define HOT         1u

/* Two groups of PAGE_BYTES with a budget for n_pages of their pages together. */
quire_cache_opts test_two_groups(uint32_t n_pages);

/* Release in group HOT, and validate. Returns the number of pages. */
uint32_t test_release(quire_cache *cache, quire_seq_id seq, uint32_t begin, uint32_t end);

bool test_is_hole(const quire_cache *cache, quire_seq_id seq, uint32_t entry);

/* Asserts that exactly the entries [begin, end) of group HOT are holes. */
void test_check_holes(const quire_cache *cache, quire_seq_id seq, uint32_t begin, uint32_t end);

/* Asserts that tokens [0, n) are stamped first, first + 1, ...: in group 0 all tokens, in HOT the
 * tokens outside holes. */
void test_check_stamps(const quire_cache *cache, quire_seq_id seq, uint32_t n, uint32_t first);

#endif /* TESTS_RELEASE_SUPPORT_H */
