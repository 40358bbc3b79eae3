/* core_support.h - doubles and shortcuts for the tests of the cache core.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_CORE_SUPPORT_H
#define TESTS_CORE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/cache/cache_internal.h"
#include "quire/cache.h"

#define NEVER UINT64_MAX

/* Tests write whole slots, so a page is page_tokens of these; a few pages fill an extent. */
#ifdef QUIRE_TINY
#define SLOT_BYTES  ((size_t)512)
#define PAGE_TOKENS 2u
#else
#define SLOT_BYTES  ((size_t)1024)
#define PAGE_TOKENS 64u
#endif
#define PAGE_BYTES   (PAGE_TOKENS * SLOT_BYTES)
#define EXTENT_PAGES ((uint32_t)(QUIRE_EXTENT_UNIT_BYTES / PAGE_BYTES))

/* An allocator that counts its calls. Only call number fail_at (from 0) fails. */
typedef struct test_memory {
    quire_allocator allocator;
    uint64_t n_calls;
    uint64_t n_live;
    uint64_t fail_at;
    bool has_failed;
} test_memory;

void test_memory_init(test_memory *memory);

/* A source of extents over real memory that counts its calls and fails on request. */
typedef struct test_extents {
    quire_extent_source source;
    uint64_t n_calls;
    uint64_t n_live;
    uint64_t live_bytes;
    uint64_t fail_at;    /* NEVER, or the number of the failing call */
    uint64_t fail_from;  /* this call and all later ones fail */
    uint64_t n_locks_ok; /* locks granted before the first refusal */
    bool has_failed;
} test_extents;

void test_extents_init(test_extents *extents);

/* A cache on test doubles. */
typedef struct test_cache {
    test_memory memory;
    test_extents extents;
    quire_cache *cache;
} test_cache;

/* One group of PAGE_BYTES, budget for n_pages pages; the caller may change it before creating. */
quire_cache_opts test_opts(uint32_t n_pages);

/* Creates a cache on the doubles; pages_max and extents_max 0 = the default limits. */
void test_cache_create(test_cache *t, const quire_cache_opts *opts, uint32_t pages_max,
                       uint32_t extents_max);

/* Validates, destroys, and asserts that nothing leaked. */
void test_cache_destroy(test_cache *t);

/* Opens a sequence, in the dynamic region or another, and asserts success. */
quire_seq_id test_open(quire_cache *cache);
quire_seq_id test_open_in(quire_cache *cache, quire_region_id region);
quire_seq_id test_fork(quire_cache *cache, quire_seq_id seq);
void test_append(quire_cache *cache, quire_seq_id seq, uint32_t n_tokens);

quire_cache_stats test_stats(const quire_cache *cache);

/* Opens a pinned region with these options and else the defaults; gets a region's statistics. */
quire_region_id test_region_open(quire_cache *cache, uint64_t budget_bytes, bool spills);
quire_region_stats test_region_stats(const quire_cache *cache, quire_region_id region);

/* The page that holds a token; QUIRE_PAGE_NULL in a hole. */
quire_page_id test_page_of(const quire_cache *cache, quire_seq_id seq, quire_group_id group,
                           uint32_t token);

/* Byte `at` of a page's payload, its parts taken end to end; NULL without payload. */
unsigned char *test_payload(const quire_cache *cache, quire_page_id page, size_t at);

/* The slot of a token outside holes; NULL for a group without payload. Also asserts the table's
 * shape. */
unsigned char *test_slot(const quire_cache *cache, quire_seq_id seq, quire_group_id group,
                         uint32_t token);

/* Fill a token's slot in every group with a pattern derived from stamp; check the pattern. */
void test_slot_write(const quire_cache *cache, quire_seq_id seq, uint32_t token, uint32_t stamp);
void test_slot_check(const quire_cache *cache, quire_seq_id seq, uint32_t token, uint32_t stamp);

/* Check a token's slot in one group. */
void test_slot_check_in(const quire_cache *cache, quire_seq_id seq, quire_group_id group,
                        uint32_t token, uint32_t stamp);

/* Append n tokens and stamp them first, first + 1, ... */
void test_append_stamped(quire_cache *cache, quire_seq_id seq, uint32_t n, uint32_t first);

#endif /* TESTS_CORE_SUPPORT_H */
