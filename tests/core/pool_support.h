/* pool_support.h - a pool with its budget and history, on doubles.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_CORE_POOL_SUPPORT_H
#define TESTS_CORE_POOL_SUPPORT_H

#include "core_support.h"

typedef struct test_pool {
    test_memory memory;
    test_extents extents;
    quire_regions regions;
    quire_history history;
    quire_pool pool;
    uint32_t n_groups;
    size_t page_bytes[QUIRE_GROUPS_MAX];
    uint32_t n_parts[QUIRE_GROUPS_MAX];
    const size_t *part_bytes[QUIRE_GROUPS_MAX];
    size_t charge_bytes[QUIRE_GROUPS_MAX]; /* 0 = page_bytes, or 1 */
    uint64_t budget_bytes;
    uint32_t pages_max;
    uint32_t extents_max;
    bool lock_memory;
} test_pool;

/* One group of PAGE_BYTES, budget for n_pages; change the fields, then start. */
void test_pool_init(test_pool *t, uint32_t n_pages);
void test_pool_start(test_pool *t);

/* Validates, ends, and asserts that nothing leaked. */
void test_pool_stop(test_pool *t);

/* Plan n pages of one group; returns the status. */
int test_pool_plan(test_pool *t, quire_group_id group, uint32_t n);

/* Plan, which must work, and take n pages into ids. */
void test_pool_take(test_pool *t, quire_group_id group, uint32_t n, quire_page_id *ids);
void test_pool_drop(test_pool *t, uint32_t n, const quire_page_id *ids);

/* The first payload byte of a page in one part; NULL without payload. */
unsigned char *test_pool_page(const test_pool *t, quire_page_id id);

#endif /* TESTS_CORE_POOL_SUPPORT_H */
