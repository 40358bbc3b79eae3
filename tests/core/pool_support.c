/* pool_support.c - see the header.
 *
 * SPDX-License-Identifier: MIT */
#include "pool_support.h"

#include <string.h>

void test_pool_init(test_pool *t, uint32_t n_pages)
{
    memset(t, 0, sizeof(*t));
    t->n_groups = 1;
    t->page_bytes[0] = PAGE_BYTES;
    t->budget_bytes = (uint64_t)n_pages * PAGE_BYTES;
    t->pages_max = QUIRE_PAGES_MAX;
    t->extents_max = QUIRE_EXTENTS_MAX;
    test_memory_init(&t->memory);
    test_extents_init(&t->extents);
}

void test_pool_start(test_pool *t)
{
    quire_pool_opts opts = { .page_tokens = PAGE_TOKENS,
                             .n_groups = t->n_groups,
                             .page_bytes = t->page_bytes,
                             .n_parts = t->n_parts,
                             .part_bytes = t->part_bytes,
                             .charge_bytes = t->charge_bytes,
                             .pages_max = t->pages_max,
                             .extents_max = t->extents_max,
                             .lock_memory = t->lock_memory,
                             .allocator = &t->memory.allocator,
                             .source = &t->extents.source,
                             .regions = &t->regions,
                             .history = &t->history };

    for (uint32_t g = 0; g < t->n_groups; g++) {
        if (t->charge_bytes[g] == 0) {
            t->charge_bytes[g] = t->page_bytes[g] > 0 ? t->page_bytes[g] : 1;
        }
    }
    quire_regions_init(&t->regions, t->budget_bytes);
    assert_int_equal(quire_history_init(&t->history, &t->memory.allocator, 64, NULL, NULL), 0);
    assert_int_equal(quire_pool_init(&t->pool, &opts), QUIRE_OK);
    quire_pool_validate(&t->pool);
}

void test_pool_stop(test_pool *t)
{
    quire_pool_validate(&t->pool);
    quire_pool_fini(&t->pool);
    quire_history_fini(&t->history);
    assert_int_equal(t->memory.n_live, 0);
    assert_int_equal(t->extents.n_live, 0);
}

int test_pool_plan(test_pool *t, quire_group_id group, uint32_t n)
{
    uint32_t n_pages[QUIRE_GROUPS_MAX] = { 0 };
    int rc;

    n_pages[group] = n;
    rc = quire_pool_plan(&t->pool, QUIRE_REGION_DYNAMIC, n_pages);
    quire_pool_validate(&t->pool);
    return rc;
}

void test_pool_take(test_pool *t, quire_group_id group, uint32_t n, quire_page_id *ids)
{
    assert_int_equal(test_pool_plan(t, group, n), QUIRE_OK);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = quire_pool_take(&t->pool, group, QUIRE_REGION_DYNAMIC, 1);
        assert_int_not_equal(ids[i], QUIRE_PAGE_NULL);
        assert_int_equal(quire_pool_page(&t->pool, ids[i])->refs, 1);
    }
    quire_pool_validate(&t->pool);
}

void test_pool_drop(test_pool *t, uint32_t n, const quire_page_id *ids)
{
    for (uint32_t i = 0; i < n; i++) {
        quire_pool_unref(&t->pool, ids[i], 1);
    }
    quire_pool_validate(&t->pool);
}

unsigned char *test_pool_page(const test_pool *t, quire_page_id id)
{
    const quire_page_addr addr = t->pool.addrs[id];

    return addr.extent != NULL ? addr.extent + addr.slot * t->page_bytes[t->pool.pages[id].group]
                               : NULL;
}
