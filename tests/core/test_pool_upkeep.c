/* test_pool_upkeep.c - watermark, coalescing, trimming, and detection of damage by validate.
 *
 * SPDX-License-Identifier: MIT */
#include "pool_support.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXTENT EXTENT_PAGES

static uint64_t ready_pages(const test_pool *t)
{
    return t->pool.classes[0].ready_pages;
}

static uint64_t watermark(const test_pool *t)
{
    return quire_counter_get(&t->pool.watermark_pages);
}

static void maintain(test_pool *t, uint32_t max)
{
    quire_pool_maintain(&t->pool, max);
    quire_pool_validate(&t->pool);
}

/* ---- watermark ---- */

static void test_watermark_follows_demand(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES];
    uint64_t last;
    int calls = 0;

    (void)state;
    test_pool_init(&t, EXTENT * 10);
    test_pool_start(&t);
    maintain(&t, 100);
    assert_int_equal(watermark(&t), 0); /* no demand, no memory */
    assert_int_equal(t.extents.n_calls, 0);

    test_pool_take(&t, 0, EXTENT, ids);
    maintain(&t, 100);
    assert_int_equal(watermark(&t), EXTENT);
    assert_true(ready_pages(&t) >= EXTENT);
    assert_int_equal(t.extents.n_calls, 2);

    /* As many pages are ready for the next sequences. */
    test_pool_drop(&t, EXTENT, ids);
    test_pool_take(&t, 0, EXTENT, ids);
    assert_int_equal(t.extents.n_calls, 2);

    /* Without demand the watermark decays: not within a page's worth of steps, but to 0 in the
     * end. */
    maintain(&t, 100);
    last = watermark(&t);
    for (int i = 0; i < 64; i++) {
        maintain(&t, 100);
        assert_true(watermark(&t) <= last);
        last = watermark(&t);
    }
    assert_true(last * 2 > EXTENT);
    while (watermark(&t) > 0) {
        maintain(&t, 100);
        assert_true(++calls < 5000);
    }
    test_pool_stop(&t);
}

static void test_watermark_limits(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 2];

    (void)state;
    test_pool_init(&t, EXTENT * 2 + 2);
    test_pool_start(&t);
    test_pool_take(&t, 0, EXTENT * 2, ids);
    maintain(&t, 1);
    assert_int_equal(watermark(&t), 1); /* the configured maximum */
    assert_true(ready_pages(&t) >= 1);
    maintain(&t, 0);
    assert_int_equal(watermark(&t), 0);
    maintain(&t, 100);
    assert_int_equal(watermark(&t), 2); /* the limit of the budget */
    test_pool_stop(&t);
}

/* The maximum is shared out between classes by their demand. */
static void test_watermark_of_classes(void **state)
{
    test_pool t;
    quire_page_id ids[12];

    (void)state;
    test_pool_init(&t, 1000);
    t.n_groups = 2;
    t.page_bytes[1] = PAGE_BYTES / 2;
    test_pool_start(&t);
    test_pool_take(&t, 0, 12, ids);
    test_pool_take(&t, 1, 4, ids);
    maintain(&t, 8);
    assert_int_equal(watermark(&t), 8);
    assert_true(t.pool.classes[0].ready_pages >= 6);
    assert_true(t.pool.classes[1].ready_pages >= 2);
    test_pool_stop(&t);
}

static void test_watermark_without_memory(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES];

    (void)state;
    test_pool_init(&t, EXTENT * 10);
    test_pool_start(&t);
    test_pool_take(&t, 0, EXTENT, ids);
    t.extents.fail_at = t.extents.n_calls;
    maintain(&t, 100);
    assert_int_equal(quire_counter_get(&t.pool.alloc_failures_total), 1);
    assert_int_equal(t.extents.n_live, 1);
    test_pool_stop(&t);
}

/* For missing pages in parts a call touches as many bytes of an extent as they have, not the whole
 * extent. */
static void test_touching_parts_keeps_pace(void **state)
{
    size_t parts[28];
    test_pool t;
    quire_page_id id;
    uint32_t n_calls = 0;

    (void)state;
    for (uint32_t i = 0; i < 28; i++) {
        parts[i] = PAGE_BYTES / 2 + 64;
    }
    test_pool_init(&t, 1);
    t.page_bytes[0] = 28 * parts[0];
    t.charge_bytes[0] = t.page_bytes[0];
    t.n_parts[0] = 28;
    t.part_bytes[0] = parts;
    t.budget_bytes = 2 * t.page_bytes[0];
    test_pool_start(&t);
    test_pool_take(&t, 0, 1, &id);
    while (ready_pages(&t) == 0) {
        maintain(&t, 100);
        n_calls++;
        assert_true(t.pool.extents[0]->touched_bytes <= n_calls * t.page_bytes[0]);
        assert_true(n_calls <= t.pool.extents[0]->n_slots);
    }
    assert_int_equal(n_calls, t.pool.extents[0]->n_slots);
    test_pool_stop(&t);
}

/* Pages in parts are spread over their extents: slots are ready when the whole extent is touched,
 * and contents stay. */
static void test_touching_parts_is_bounded(void **state)
{
    const size_t page_bytes = (size_t)3 << 20;
    const size_t parts[] = { 64, page_bytes - 64 };
    test_pool t;
    quire_page_id ids[20];
    const quire_pool_class *class = &t.pool.classes[0];
    uint32_t n_calls = 0;

    (void)state;
    test_pool_init(&t, 1);
    t.page_bytes[0] = page_bytes;
    t.charge_bytes[0] = page_bytes;
    t.n_parts[0] = 2;
    t.part_bytes[0] = parts;
    t.budget_bytes = (uint64_t)1000 * page_bytes;
    test_pool_start(&t);
    test_pool_take(&t, 0, 20, ids);
    for (uint32_t i = 0; i < 20; i++) {
        const quire_page_addr at = t.pool.addrs[ids[i]];

        memset(at.extent + at.slot * parts[0], (int)i, parts[0]);
        memset(at.extent + class->shape.n_slots * parts[0] + at.slot * parts[1], (int)i, parts[1]);
    }
    while (class->ready_pages < 20) {
        uint64_t before = class->ready_pages;
        size_t touched_bytes = 0;

        maintain(&t, 100);
        for (uint32_t i = 0; i < t.pool.extents_capacity; i++) {
            touched_bytes += t.pool.extents[i] != NULL ? t.pool.extents[i]->touched_bytes : 0;
        }
        n_calls++;
        assert_true(touched_bytes <= n_calls * ((size_t)16 << 20));
        assert_true(class->ready_pages >= before && n_calls < 100);
    }
    for (uint32_t i = 0; i < 20; i++) {
        const quire_page_addr at = t.pool.addrs[ids[i]];
        const unsigned char *last =
            at.extent + class->shape.n_slots * parts[0] + (at.slot + 1) * parts[1] - 1;

        assert_int_equal(at.extent[at.slot * parts[0]], i);
        assert_int_equal(*last, i);
        assert_memory_equal(last - (parts[1] - 1), last - (parts[1] - 2), parts[1] - 1);
    }
    assert_true(n_calls > 1);
    test_pool_stop(&t);
}

/* Zeroing memory takes time, so one call touches 16 MiB and leaves the rest to the next. */
static void test_touching_is_bounded(void **state)
{
    const size_t page_bytes = (size_t)3 << 20;
    test_pool t;
    quire_page_id ids[8];

    (void)state;
    test_pool_init(&t, 0);
    t.page_bytes[0] = page_bytes;
    t.budget_bytes = page_bytes * 100;
    test_pool_start(&t);
    test_pool_take(&t, 0, 8, ids);
    maintain(&t, 100);
    assert_int_equal(watermark(&t), 8);
    assert_int_equal(ready_pages(&t), 6); /* 5 are below 16 MiB, the sixth reaches it */
    maintain(&t, 100);
    assert_int_equal(ready_pages(&t), 8);
    test_pool_stop(&t);
}

/* ---- coalescing and trimming ---- */

/* n extents, each full; ids lie in the order of the extents. */
static void fill(test_pool *t, uint32_t n, quire_page_id *ids)
{
    for (uint32_t i = 0; i < n; i++) {
        test_pool_take(t, 0, EXTENT, ids + i * EXTENT);
    }
    for (uint32_t i = 0; i < n * EXTENT; i++) {
        memset(test_pool_page(t, ids[i]), (int)(ids[i] & 0xff), PAGE_BYTES);
    }
}

static void check_content(const test_pool *t, quire_page_id id)
{
    const unsigned char *addr = test_pool_page(t, id);

    assert_non_null(addr);
    assert_int_equal(addr[0], id & 0xff);
    assert_memory_equal(addr, addr + 1, PAGE_BYTES - 1);
}

/* Three extents keep 1, 2 and EXTENT - 1 pages. The last has one free slot, so the first is
 * emptied. */
static void test_coalesce(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 3];
    const quire_pool_class *class = &t.pool.classes[0];

    (void)state;
    test_pool_init(&t, EXTENT * 3);
    test_pool_start(&t);
    fill(&t, 3, ids);
    test_pool_drop(&t, EXTENT - 1, ids);
    test_pool_drop(&t, EXTENT - 2, ids + EXTENT);
    test_pool_drop(&t, 1, ids + EXTENT * 2);
    assert_int_equal(quire_pool_coalesce(&t.pool, 0), 0);
    assert_int_equal(quire_pool_coalesce(&t.pool, 1), 1);
    quire_pool_validate(&t.pool);
    assert_int_equal(quire_counter_get(&class->extents_empty), 1);
    /* 2 + EXTENT pages are left in two extents: nothing more can be emptied. */
    assert_int_equal(quire_pool_coalesce(&t.pool, 1000), 0);
    assert_int_equal(quire_counter_get(&t.pool.page_moves_total), 1);
    check_content(&t, ids[EXTENT - 1]);
    check_content(&t, ids[EXTENT * 2 - 1]);
    for (uint32_t i = 1; i < EXTENT; i++) {
        check_content(&t, ids[EXTENT * 2 + i]);
    }
    assert_int_equal(quire_pool_trim(&t.pool, 0), EXTENT * PAGE_BYTES);
    quire_pool_validate(&t.pool);
    assert_int_equal(quire_counter_get(&t.pool.extents_now), 2);
    test_pool_stop(&t);
}

/* Several bounded calls give the same result. */
static void test_coalesce_in_steps(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 4];
    uint32_t moves = 0;
    uint32_t calls = 0;
    uint32_t n;

    (void)state;
    test_pool_init(&t, EXTENT * 4);
    test_pool_start(&t);
    fill(&t, 4, ids);
    for (uint32_t e = 0; e < 4; e++) {
        test_pool_drop(&t, EXTENT / 2, ids + e * EXTENT); /* half of each */
    }
    while ((n = quire_pool_coalesce(&t.pool, 1)) > 0) {
        quire_pool_validate(&t.pool);
        moves += n;
        assert_true(++calls <= EXTENT * 4);
    }
    assert_int_equal(moves, EXTENT); /* two halves moved */
    assert_int_equal(quire_counter_get(&t.pool.classes[0].extents_empty), 2);
    for (uint32_t e = 0; e < 4; e++) {
        for (uint32_t i = EXTENT / 2; i < EXTENT; i++) {
            check_content(&t, ids[e * EXTENT + i]);
        }
    }
    test_pool_stop(&t);
}

static void test_trim_keeps(void **state)
{
    test_pool t;
    quire_page_id ids[EXTENT_PAGES * 3];
    const uint64_t extent_bytes = EXTENT * PAGE_BYTES;

    (void)state;
    test_pool_init(&t, EXTENT * 3);
    test_pool_start(&t);
    fill(&t, 3, ids);
    assert_int_equal(quire_pool_trim(&t.pool, 0), 0); /* none is empty */
    test_pool_drop(&t, EXTENT * 3, ids);
    assert_int_equal(quire_pool_trim(&t.pool, UINT64_MAX), 0);
    assert_int_equal(quire_pool_trim(&t.pool, extent_bytes * 2), extent_bytes);
    assert_int_equal(quire_pool_trim(&t.pool, extent_bytes * 2 - 1), extent_bytes);
    assert_int_equal(quire_pool_trim(&t.pool, 0), extent_bytes);
    assert_int_equal(quire_counter_get(&t.pool.extents_now), 0);
    test_pool_stop(&t);
}

/* ---- validate ---- */

static void break_refs(quire_pool *pool)
{
    pool->pages[1].refs = 0;
}

static void break_slot(quire_pool *pool)
{
    pool->pages[1].slot++;
}

static void break_addr(quire_pool *pool)
{
    pool->addrs[1].slot++;
}

static void break_free_count(quire_pool *pool)
{
    quire_counter_add(&pool->classes[0].free_pages, 1);
}

static void break_charge(quire_pool *pool)
{
    quire_counter_add(&pool->regions->items[0].charged_bytes, 1);
}

static void break_slack(quire_pool *pool)
{
    quire_counter_add(&pool->classes[0].slack_slots, 1);
}

static void break_bucket(quire_pool *pool)
{
    pool->extents[0]->n_used++;
}

static void break_id_list(quire_pool *pool)
{
    pool->id_free = QUIRE_PAGE_NULL;
}

static void break_hint(quire_pool *pool)
{
    pool->extents[0]->number = 1;
}

/* In a child, because a broken invariant aborts. */
static bool aborts(test_pool *t, void (*breakage)(quire_pool *pool))
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);

        (void)dup2(null, STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        breakage(&t->pool);
        quire_pool_validate(&t->pool);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void no_breakage(quire_pool *pool)
{
    (void)pool;
}

static void unref_free_page(quire_pool *pool)
{
    quire_pool_unref(pool, 2, 1); /* freed below */
}

static void unref_null_page(quire_pool *pool)
{
    quire_pool_unref(pool, QUIRE_PAGE_NULL, 1);
}

static void test_damage_is_seen(void **state)
{
    void (*const breakages[])(quire_pool *) = {
        break_refs,   break_slot,    break_addr, break_free_count, break_charge,    break_slack,
        break_bucket, break_id_list, break_hint, unref_free_page,  unref_null_page,
    };
    test_pool t;
    quire_page_id ids[3];

    (void)state;
    test_pool_init(&t, 10);
    test_pool_start(&t);
    test_pool_take(&t, 0, 3, ids);
    test_pool_drop(&t, 1, ids + 1);
    assert_false(aborts(&t, no_breakage));
    for (size_t i = 0; i < sizeof(breakages) / sizeof(breakages[0]); i++) {
        if (!aborts(&t, breakages[i])) {
            fail_msg("damage %zu was not seen", i);
        }
    }
    test_pool_stop(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watermark_follows_demand),
        cmocka_unit_test(test_watermark_limits),
        cmocka_unit_test(test_watermark_of_classes),
        cmocka_unit_test(test_watermark_without_memory),
        cmocka_unit_test(test_touching_is_bounded),
        cmocka_unit_test(test_touching_parts_keeps_pace),
        cmocka_unit_test(test_touching_parts_is_bounded),
        cmocka_unit_test(test_coalesce),
        cmocka_unit_test(test_coalesce_in_steps),
        cmocka_unit_test(test_trim_keeps),
        cmocka_unit_test(test_damage_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
