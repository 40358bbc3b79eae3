/* test_pool.c - pages: states, references, plans, limits and placement.
 *
 * SPDX-License-Identifier: MIT */
#include "pool_support.h"

#include <string.h>

#define EXTENT EXTENT_PAGES

static void test_take_and_free(void **state)
{
    test_pool t;
    quire_page_id ids[3];
    quire_page_id again;

    (void)state;
    test_pool_init(&t, 10);
    test_pool_start(&t);
    assert_int_equal(t.extents.n_calls, 0); /* nothing is mapped before it is needed */
    test_pool_take(&t, 0, 3, ids);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 2);
    assert_int_equal(ids[2], 3);
    for (int i = 0; i < 3; i++) {
        assert_non_null(test_pool_page(&t, ids[i]));
        memset(test_pool_page(&t, ids[i]), i, PAGE_BYTES);
    }
    assert_int_equal(*test_pool_page(&t, ids[0]), 0);
    assert_int_equal(*test_pool_page(&t, ids[1]), 1);
    quire_pool_unref(&t.pool, ids[1], 1);
    assert_null(test_pool_page(&t, ids[1]));
    assert_int_equal(quire_pool_state(&t.pool, ids[1]), QUIRE_PAGE_FREE);
    test_pool_take(&t, 0, 1, &again);
    assert_int_equal(again, ids[1]); /* ids stay dense */
    assert_null(test_pool_page(&t, QUIRE_PAGE_NULL));
    test_pool_drop(&t, 3, ids);
    assert_int_equal(quire_counter_get(&t.pool.allocs_total), 4);
    assert_int_equal(quire_counter_get(&t.pool.frees_total), 4);
    assert_int_equal(quire_counter_get(&t.pool.pages_peak), 3);
    assert_int_equal(quire_counter_get(&t.regions.items[0].charged_bytes), 0);
    test_pool_stop(&t);
}

static void test_refs(void **state)
{
    test_pool t;
    quire_page_id id;

    (void)state;
    test_pool_init(&t, 10);
    test_pool_start(&t);
    test_pool_take(&t, 0, 1, &id);
    quire_pool_ref(&t.pool, id, 2);
    quire_pool_ref(&t.pool, id, 3);
    quire_pool_unref(&t.pool, id, 2);
    quire_pool_unref(&t.pool, id, 1);
    assert_int_equal(quire_pool_state(&t.pool, id), QUIRE_PAGE_LIVE);
    quire_pool_unref(&t.pool, id, 3);
    assert_int_equal(quire_pool_state(&t.pool, id), QUIRE_PAGE_FREE);
    test_pool_stop(&t);
}

/* live -> cached -> live -> cached -> free, and kept pages that are evicted while live. */
static void test_cached(void **state)
{
    test_pool t;
    quire_page_id id;
    const quire_pool_class *class;

    (void)state;
    test_pool_init(&t, 10);
    test_pool_start(&t);
    class = &t.pool.classes[0];
    test_pool_take(&t, 0, 1, &id);
    quire_pool_fill_set(&t.pool, id, 1);
    assert_int_equal(quire_counter_get(&class->slack_slots), PAGE_TOKENS - 1);
    quire_pool_keep(&t.pool, id, 1);
    quire_pool_unref(&t.pool, id, 1);
    quire_pool_validate(&t.pool);
    assert_int_equal(quire_pool_state(&t.pool, id), QUIRE_PAGE_CACHED);
    assert_int_equal(quire_counter_get(&class->cached_pages), 1);
    assert_int_equal(quire_counter_get(&class->live_pages), 0);
    assert_int_equal(quire_counter_get(&class->slack_slots), 0);
    assert_non_null(test_pool_page(&t, id)); /* the payload stays */
    assert_int_equal(quire_counter_get(&t.regions.items[0].pages), 1);

    quire_pool_ref(&t.pool, id, 2);
    quire_pool_validate(&t.pool);
    assert_int_equal(quire_pool_state(&t.pool, id), QUIRE_PAGE_LIVE);
    assert_int_equal(quire_counter_get(&class->slack_slots), PAGE_TOKENS - 1);
    quire_pool_unref(&t.pool, id, 2);
    assert_int_equal(quire_counter_get(&t.regions.items[0].cached_bytes), PAGE_BYTES);
    assert_int_equal(quire_pool_evict(&t.pool, id), PAGE_BYTES);
    assert_int_equal(quire_counter_get(&t.regions.items[0].cached_bytes), 0);
    quire_pool_validate(&t.pool);
    assert_int_equal(quire_pool_state(&t.pool, id), QUIRE_PAGE_FREE);
    assert_int_equal(quire_counter_get(&class->cached_pages), 0);

    test_pool_take(&t, 0, 1, &id);
    quire_pool_fill_set(&t.pool, id, PAGE_TOKENS);
    quire_pool_keep(&t.pool, id, PAGE_TOKENS);
    assert_int_equal(quire_pool_evict(&t.pool, id), 0);
    assert_int_equal(quire_pool_state(&t.pool, id), QUIRE_PAGE_LIVE);
    quire_pool_unref(&t.pool, id, 1);
    assert_int_equal(quire_pool_state(&t.pool, id), QUIRE_PAGE_FREE);
    test_pool_stop(&t);
}

static void test_plan_is_all_or_nothing(void **state)
{
    test_pool t;
    uint32_t n_pages[QUIRE_GROUPS_MAX] = { 3, 2 };
    quire_page_id ids[8];

    (void)state;
    test_pool_init(&t, 0);
    t.n_groups = 2;
    t.page_bytes[1] = PAGE_BYTES * 2;
    t.budget_bytes = PAGE_BYTES * 7;
    test_pool_start(&t);
    assert_int_equal(quire_pool_plan(&t.pool, 0, n_pages), QUIRE_OK); /* 3 + 2 * 2 */
    n_pages[1] = 3;
    assert_int_equal(quire_pool_plan(&t.pool, 0, n_pages), QUIRE_NOPAGES);
    n_pages[0] = UINT32_MAX;
    n_pages[1] = UINT32_MAX;
    assert_int_equal(quire_pool_plan(&t.pool, 0, n_pages), QUIRE_NOPAGES);
    assert_int_equal(quire_counter_get(&t.pool.alloc_failures_total), 2);
    test_pool_take(&t, 1, 3, ids);
    test_pool_take(&t, 0, 1, ids + 3);
    assert_int_equal(test_pool_plan(&t, 0, 1), QUIRE_NOPAGES);
    assert_int_equal(test_pool_plan(&t, 0, 0), QUIRE_OK);
    test_pool_stop(&t);
}

/* A plan that fails to map its second extent unmaps the first. */
static void test_plan_unmaps(void **state)
{
    test_pool t;

    (void)state;
    test_pool_init(&t, EXTENT * 4);
    test_pool_start(&t);
    t.extents.fail_at = 1;
    assert_int_equal(test_pool_plan(&t, 0, EXTENT + 1), QUIRE_NOMEM);
    assert_true(t.extents.has_failed);
    assert_int_equal(t.extents.n_live, 0);
    assert_int_equal(quire_counter_get(&t.pool.extents_now), 0);
    assert_int_equal(test_pool_plan(&t, 0, EXTENT + 1), QUIRE_OK);
    assert_int_equal(t.extents.n_live, 2);
    test_pool_stop(&t);
}

static void test_pages_max(void **state)
{
    test_pool t;
    quire_page_id ids[7];

    (void)state;
    test_pool_init(&t, 100);
    t.pages_max = 7;
    test_pool_start(&t);
    assert_int_equal(test_pool_plan(&t, 0, 8), QUIRE_LIMIT);
    test_pool_take(&t, 0, 7, ids);
    assert_int_equal(test_pool_plan(&t, 0, 1), QUIRE_LIMIT);
    test_pool_drop(&t, 1, ids);
    test_pool_take(&t, 0, 1, ids);
    assert_int_equal(t.pool.id_end, 8);
    test_pool_stop(&t);
}

static void test_extents_max(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 2];

    (void)state;
    test_pool_init(&t, EXTENT * 10);
    t.extents_max = 2;
    test_pool_start(&t);
    assert_int_equal(test_pool_plan(&t, 0, EXTENT * 2 + 1), QUIRE_LIMIT);
    assert_int_equal(t.extents.n_live, 0);
    test_pool_take(&t, 0, EXTENT * 2, ids);
    assert_int_equal(test_pool_plan(&t, 0, 1), QUIRE_LIMIT);
    test_pool_drop(&t, EXTENT * 2, ids);
    test_pool_stop(&t);
}

static void test_extent_numbers_are_reused(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 3];
    uint32_t number;

    (void)state;
    test_pool_init(&t, EXTENT * 10);
    test_pool_start(&t);
    test_pool_take(&t, 0, EXTENT * 3, ids);
    number = quire_pool_page(&t.pool, ids[0])->extent;
    test_pool_drop(&t, EXTENT, ids); /* all of one extent */
    assert_int_equal(quire_pool_trim(&t.pool, 0), EXTENT * PAGE_BYTES);
    quire_pool_validate(&t.pool);
    assert_null(t.pool.extents[number]);
    test_pool_take(&t, 0, 1, ids);
    assert_int_equal(quire_pool_page(&t.pool, ids[0])->extent, number);
    test_pool_stop(&t);
}

static void test_groups_share_classes(void **state)
{
    test_pool t;
    quire_page_id ids[2];

    (void)state;
    test_pool_init(&t, 10);
    t.n_groups = 4;
    t.page_bytes[1] = 0;
    t.page_bytes[2] = PAGE_BYTES;
    t.page_bytes[3] = 0;
    test_pool_start(&t);
    assert_int_equal(t.pool.n_classes, 2);
    test_pool_take(&t, 0, 1, ids);
    test_pool_take(&t, 2, 1, ids + 1);
    assert_int_equal(quire_pool_page(&t.pool, ids[0])->extent,
                     quire_pool_page(&t.pool, ids[1])->extent);
    assert_int_equal(t.extents.n_calls, 1);
    /* Without payload nothing comes from the OS. */
    test_pool_take(&t, 1, 2, ids);
    assert_int_equal(t.extents.n_calls, 1);
    assert_int_equal(quire_counter_get(&t.pool.extents_now), 2);
    assert_null(test_pool_page(&t, ids[0]));
    test_pool_stop(&t);
}

/* Pages of equal size with different parts lie in different extents. */
static void test_parts_make_classes(void **state)
{
    static const size_t halves[] = { PAGE_BYTES / 2, PAGE_BYTES / 2 };
    static const size_t same[] = { PAGE_BYTES / 2, PAGE_BYTES / 2 };
    static const size_t others[] = { PAGE_BYTES / 4, PAGE_BYTES / 4 * 3 };
    test_pool t;

    (void)state;
    test_pool_init(&t, 10);
    t.n_groups = 5;
    for (uint32_t g = 0; g < t.n_groups; g++) {
        t.page_bytes[g] = PAGE_BYTES;
        t.n_parts[g] = g < 2 ? g : 2; /* 0 is 1 */
    }
    t.part_bytes[2] = halves;
    t.part_bytes[3] = others;
    t.part_bytes[4] = same;
    test_pool_start(&t);
    assert_int_equal(t.pool.n_classes, 3);
    assert_int_equal(t.pool.groups[1].class_index, t.pool.groups[0].class_index);
    assert_int_equal(t.pool.groups[4].class_index, t.pool.groups[2].class_index);
    assert_int_not_equal(t.pool.groups[3].class_index, t.pool.groups[2].class_index);
    test_pool_stop(&t);
}

/* Slots are taken from the fullest extent, so that sparse extents drain. */
static void test_fullest_first(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 2];
    quire_page_id id;
    uint32_t sparse;

    (void)state;
    test_pool_init(&t, EXTENT * 4);
    test_pool_start(&t);
    test_pool_take(&t, 0, EXTENT * 2, ids);
    test_pool_drop(&t, EXTENT - 1, ids); /* the first extent keeps one page */
    test_pool_drop(&t, 1, ids + EXTENT); /* the second loses one */
    sparse = quire_pool_page(&t.pool, ids[EXTENT - 1])->extent;
    test_pool_take(&t, 0, 1, &id);
    assert_int_not_equal(quire_pool_page(&t.pool, id)->extent, sparse);
    test_pool_take(&t, 0, 1, &id);
    assert_int_equal(quire_pool_page(&t.pool, id)->extent, sparse);
    test_pool_stop(&t);
}

/* ---- extents that change their class ---- */

/* Two classes, the second with pages of half the size. */
static void two_classes(test_pool *t, uint32_t n_extents)
{
    test_pool_init(t, EXTENT * n_extents);
    t->n_groups = 2;
    t->page_bytes[1] = PAGE_BYTES / 2;
    test_pool_start(t);
}

static void test_recut(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 2];

    (void)state;
    two_classes(&t, 4);
    test_pool_take(&t, 0, EXTENT, ids);
    test_pool_drop(&t, EXTENT, ids);
    test_pool_take(&t, 1, EXTENT * 2, ids); /* smaller pages: the slot array grows */
    assert_int_equal(t.extents.n_calls, 1);
    memset(test_pool_page(&t, ids[EXTENT * 2 - 1]), 1, PAGE_BYTES / 2);
    test_pool_drop(&t, EXTENT * 2, ids);
    test_pool_take(&t, 0, EXTENT, ids); /* larger pages: it stays */
    assert_int_equal(t.extents.n_calls, 1);
    memset(test_pool_page(&t, ids[EXTENT - 1]), 1, PAGE_BYTES);
    test_pool_drop(&t, EXTENT, ids);
    assert_int_equal(quire_counter_get(&t.pool.extents_now), 1);
    test_pool_stop(&t);
}

/* Slots of pages in parts are memory-backed when their whole extent is. */
static void test_recut_parts(void **state)
{
    static const size_t halves[] = { PAGE_BYTES / 2, PAGE_BYTES / 2 };
    test_pool t;
    quire_page_id ids[EXTENT_PAGES];

    (void)state;
    test_pool_init(&t, EXTENT * 4);
    t.n_groups = 2;
    t.page_bytes[1] = PAGE_BYTES;
    t.n_parts[1] = 2;
    t.part_bytes[1] = halves;
    test_pool_start(&t);
    test_pool_take(&t, 0, EXTENT - 1, ids);
    test_pool_drop(&t, EXTENT - 1, ids);
    test_pool_take(&t, 1, 1, ids);
    assert_int_equal(t.extents.n_calls, 1);
    assert_int_equal(t.pool.classes[1].ready_pages, 0);
    test_pool_drop(&t, 1, ids);
    test_pool_take(&t, 0, 1, ids); /* and back */
    assert_int_equal(t.extents.n_calls, 1);
    assert_int_equal(t.pool.classes[0].ready_pages, EXTENT - 2);
    test_pool_drop(&t, 1, ids);
    test_pool_take(&t, 0, EXTENT, ids);
    test_pool_drop(&t, EXTENT, ids);
    test_pool_take(&t, 1, 1, ids); /* the whole extent was backed */
    assert_int_equal(t.extents.n_calls, 1);
    assert_int_equal(t.pool.classes[1].ready_pages, EXTENT - 1);
    test_pool_stop(&t);
}

static void test_recut_without_memory(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES];

    (void)state;
    two_classes(&t, 4);
    test_pool_take(&t, 0, EXTENT, ids);
    test_pool_drop(&t, EXTENT, ids);
    t.memory.fail_at = t.memory.n_calls;
    assert_int_equal(test_pool_plan(&t, 1, 1), QUIRE_NOMEM);
    assert_true(t.memory.has_failed);
    assert_int_equal(quire_counter_get(&t.pool.classes[0].free_pages), EXTENT);
    test_pool_stop(&t);
}

/* A class keeps an extent that the plan itself needs. */
static void test_recut_spares_the_plan(void **state)
{
    test_pool t;
    uint32_t n_pages[QUIRE_GROUPS_MAX] = { 1, 1 };
    quire_page_id ids[EXTENT_PAGES];

    (void)state;
    two_classes(&t, 4);
    test_pool_take(&t, 0, EXTENT, ids);
    test_pool_drop(&t, EXTENT, ids);
    assert_int_equal(quire_pool_plan(&t.pool, 0, n_pages), QUIRE_OK);
    (void)quire_pool_take(&t.pool, 0, 0, 1);
    (void)quire_pool_take(&t.pool, 1, 0, 1);
    assert_int_equal(t.extents.n_calls, 2);
    test_pool_stop(&t);
}

/* An empty extent that cannot be cut to the page size goes back to the OS when the mapped memory
 * would exceed the budget. */
static void test_unfit_extents_go(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 2];

    (void)state;
    test_pool_init(&t, EXTENT * 3);
    t.n_groups = 2;
    t.page_bytes[1] = EXTENT * PAGE_BYTES * 2; /* needs two units */
    test_pool_start(&t);
    test_pool_take(&t, 0, EXTENT * 2, ids);
    test_pool_drop(&t, EXTENT * 2, ids);
    test_pool_take(&t, 1, 1, ids);
    assert_int_equal(t.extents.live_bytes, EXTENT * PAGE_BYTES * 3);
    assert_int_equal(quire_counter_get(&t.pool.extent_bytes), t.extents.live_bytes);
    test_pool_stop(&t);
}

/* Same when the OS has no more memory, or extents_max is reached. */
static void test_unfit_extents_make_room(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 2];

    (void)state;
    for (int is_limit = 0; is_limit < 2; is_limit++) {
        test_pool_init(&t, EXTENT * 30);
        t.n_groups = 2;
        t.page_bytes[1] = EXTENT * PAGE_BYTES * 2;
        t.extents_max = is_limit ? 2 : t.extents_max;
        test_pool_start(&t);
        test_pool_take(&t, 0, EXTENT * 2, ids);
        test_pool_drop(&t, EXTENT * 2, ids);
        t.extents.fail_at = is_limit ? NEVER : t.extents.n_calls;
        test_pool_take(&t, 1, 1, ids);
        assert_int_equal(t.extents.n_live, 2);
        test_pool_stop(&t);
    }
}

/* ---- locking ---- */

static void test_lock(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 3];

    (void)state;
    test_pool_init(&t, EXTENT * 3);
    t.lock_memory = true;
    test_pool_start(&t);
    t.extents.n_locks_ok = 2;
    test_pool_take(&t, 0, EXTENT * 3, ids);
    assert_int_equal(quire_counter_get(&t.pool.locked_bytes), 2 * EXTENT * PAGE_BYTES);
    test_pool_drop(&t, EXTENT * 3, ids);
    (void)quire_pool_trim(&t.pool, 0);
    assert_int_equal(quire_counter_get(&t.pool.locked_bytes), 0);
    test_pool_stop(&t);
}

/* Extents of equal page size but different parts have different numbers of pages, and do not
 * replace each other. Pages without payload may have parts too. */
static void test_unlike_parts(void **state)
{
    static const size_t halves[] = { PAGE_BYTES / 2, PAGE_BYTES / 2 };
    static const size_t none[2] = { 0 };
    size_t many[64] = { PAGE_BYTES };
    test_pool t;
    quire_page_id ids[8];

    (void)state;
    test_pool_init(&t, 4096);
    t.n_groups = 3;
    t.page_bytes[1] = PAGE_BYTES;
    t.page_bytes[2] = 0;
    t.n_parts[0] = 2;
    t.part_bytes[0] = halves;
    t.n_parts[1] = 64;
    t.part_bytes[1] = many;
    t.n_parts[2] = 2;
    t.part_bytes[2] = none;
    test_pool_start(&t);
    assert_true(t.pool.classes[0].shape.n_slots < t.pool.classes[1].shape.n_slots);
    for (uint32_t i = 0; i < 4; i++) {
        test_pool_take(&t, i % 2, 8, ids);
        quire_pool_maintain(&t.pool, 20);
        quire_pool_validate(&t.pool);
        test_pool_drop(&t, 8, ids);
    }
    test_pool_take(&t, 2, 4, ids);
    quire_pool_copy(&t.pool, ids[1], ids[0], 1);
    quire_pool_maintain(&t.pool, 20);
    (void)quire_pool_coalesce(&t.pool, 100);
    quire_pool_validate(&t.pool);
    test_pool_drop(&t, 4, ids);
    test_pool_stop(&t);
}

/* A locked extent is memory-backed as a whole, also when it is cut to use a few bytes more. */
static void test_recut_locked(void **state)
{
    static const size_t halves[] = { PAGE_BYTES / 2, PAGE_BYTES / 2 };
    test_pool t;
    quire_page_id id;

    (void)state;
    if (QUIRE_EXTENT_UNIT_BYTES <= 64 * 100) {
        print_message("64 bytes are more than the tail of a tiny extent may be\n");
        skip();
    }
    test_pool_init(&t, 4096);
    t.lock_memory = true;
    t.n_groups = 2;
    t.page_bytes[0] = (QUIRE_EXTENT_UNIT_BYTES - 64) / 64 / (EXTENT - 1) * 64;
    t.page_bytes[1] = PAGE_BYTES;
    t.n_parts[1] = 2;
    t.part_bytes[1] = halves;
    test_pool_start(&t);
    t.extents.n_locks_ok = 1;
    test_pool_take(&t, 0, 1, &id);
    test_pool_drop(&t, 1, &id);
    test_pool_take(&t, 1, 1, &id);
    assert_int_equal(t.extents.n_calls, 1);
    assert_int_equal(t.pool.classes[1].ready_pages, EXTENT - 1);
    test_pool_drop(&t, 1, &id);
    test_pool_stop(&t);
}

static void test_init_without_memory(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 3; n++) {
        const size_t halves[] = { PAGE_BYTES / 2, PAGE_BYTES / 2 };
        const size_t *part_bytes = halves;
        uint32_t n_parts = 2;
        size_t page_bytes = PAGE_BYTES;
        test_pool t;
        quire_pool_opts opts = { .page_tokens = PAGE_TOKENS,
                                 .n_groups = 1,
                                 .page_bytes = &page_bytes,
                                 .n_parts = &n_parts,
                                 .part_bytes = &part_bytes,
                                 .charge_bytes = &page_bytes,
                                 .pages_max = 10,
                                 .extents_max = 10,
                                 .allocator = &t.memory.allocator,
                                 .source = &t.extents.source,
                                 .regions = &t.regions,
                                 .history = &t.history };

        test_pool_init(&t, 1);
        t.memory.fail_at = n;
        assert_int_equal(quire_pool_init(&t.pool, &opts), QUIRE_NOMEM);
        assert_int_equal(t.memory.n_live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_and_free),
        cmocka_unit_test(test_refs),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_plan_is_all_or_nothing),
        cmocka_unit_test(test_plan_unmaps),
        cmocka_unit_test(test_pages_max),
        cmocka_unit_test(test_extents_max),
        cmocka_unit_test(test_extent_numbers_are_reused),
        cmocka_unit_test(test_groups_share_classes),
        cmocka_unit_test(test_parts_make_classes),
        cmocka_unit_test(test_fullest_first),
        cmocka_unit_test(test_recut),
        cmocka_unit_test(test_recut_parts),
        cmocka_unit_test(test_recut_without_memory),
        cmocka_unit_test(test_recut_spares_the_plan),
        cmocka_unit_test(test_unfit_extents_go),
        cmocka_unit_test(test_unfit_extents_make_room),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_unlike_parts),
        cmocka_unit_test(test_recut_locked),
        cmocka_unit_test(test_init_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
