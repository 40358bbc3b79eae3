/* test_file_faults.c - a disk that fails for a while, limits that are reached, and the transfers
 * meanwhile.
 *
 * SPDX-License-Identifier: MIT */
#include "fault_disk.h"
#include "file_kit.h"
#include "mem_disk.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static quire_store_state state_of(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats.state;
}

static void pause_ms(long ms)
{
    const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

    (void)nanosleep(&t, NULL);
}

static void test_degraded(void **state)
{
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    static fault_disk faults;
    char dir[256];
    quire_file_store_opts opts;
    quire_store_stats stats;
    quire_store *store;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind);
    fault_disk_init(&faults, quire_file_ops_default());
    opts.ops = &faults.ops;
    opts.retry_ms = 1;
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    fault_disk_set(
        &faults,
        (fault_plan){ .calls = FAULT_ALL, .first = 1, .last = UINT32_MAX, .error = ENOSPC });
    assert_int_equal(kit_put(store, 1, 2), QUIRE_STORE_IO);
    store->ops->stats(store, &stats);
    assert_int_equal(stats.state, QUIRE_STORE_DEGRADED);
    assert_non_null(strstr(stats.trouble, "No space"));
    assert_int_equal(kit_put(store, 1, 3), QUIRE_STORE_CLOSED);
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_IO);
    assert_int_equal(kit_get(store, 1, 2), QUIRE_STORE_ABSENT);
    fault_disk_set(&faults, (fault_plan){ 0 });
    while (state_of(store) != QUIRE_STORE_READY) {
        pause_ms(1);
    }
    store->ops->stats(store, &stats);
    assert_string_equal(stats.trouble, "");
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_OK);
    assert_int_equal(kit_put(store, 1, 2), QUIRE_STORE_OK);
    assert_int_equal(kit_get(store, 1, 2), QUIRE_STORE_OK);
    kit_close(store);
    kit_dir_remove(dir);
}

/* A directory that is full, with n records written, on a disk that takes bytes and fails to sync
 * them, for hours: retries cost no record and leave no file. */
static void many_retries(uint32_t n)
{
    static fault_disk faults;
    quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);
    mem_disk *disk = mem_disk_new();
    quire_store_stats before, after;
    quire_store *store;
    uint32_t n_files;

    fault_disk_init(&faults, mem_disk_ops(disk));
    opts.ops = &faults.ops;
    opts.retry_ms = 0;
    opts.segment_bytes = (uint64_t)64 << 10;
    opts.capacity_bytes = 8 * opts.segment_bytes;
    store = kit_open(&opts);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
        if (i % 4 == 0) { /* used: carried forward */
            assert_int_equal(kit_get(store, 1, i), QUIRE_STORE_OK);
        }
    }
    fault_disk_set(&faults, (fault_plan){ .calls = FAULT_BIT(FAULT_DATASYNC),
                                          .first = 1,
                                          .last = UINT32_MAX,
                                          .error = EIO });
    assert_int_equal(kit_put(store, 1, n), QUIRE_STORE_IO);
    store->ops->stats(store, &before);
    n_files = mem_disk_files(disk);
    while (fault_disk_calls(&faults) < 200) {
        pause_ms(1);
    }
    store->ops->stats(store, &after);
    assert_int_equal(after.state, QUIRE_STORE_DEGRADED);
    assert_int_equal(after.records, before.records);
    assert_int_equal(after.evicted_total, before.evicted_total);
    fault_disk_set(&faults, (fault_plan){ 0 });
    while (state_of(store) != QUIRE_STORE_READY) {
        pause_ms(1);
    }
    assert_true(mem_disk_files(disk) <= n_files + 1);
    kit_close(store);
    mem_disk_free(disk);
}

static void test_many_retries(void **state)
{
    (void)state;
    for (uint32_t n = 60; n < 64; n++) { /* a segment has room for four records */
        many_retries(n);
    }
}

static void line_take(void *ctx, const char *line)
{
    if (strstr(line, "drops that could not be written") != NULL) {
        (void)snprintf(ctx, 512, "%s", line);
    }
}

/* Drops that wait for a disk in trouble when the store is closed: they are written if the disk
 * works again, else the log tells. */
static void test_drops_at_close(void **state)
{
    (void)state;
    for (int is_lasting = 0; is_lasting < 2; is_lasting++) {
        static fault_disk faults;
        quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);
        const quire_store_drop all = { .what = QUIRE_STORE_DROP_ALL };
        mem_disk *disk = mem_disk_new();
        char line[512] = "";
        quire_store *store;

        fault_disk_init(&faults, mem_disk_ops(disk));
        opts.ops = &faults.ops;
        opts.retry_ms = 600000;
        opts.log = line_take;
        opts.log_ctx = line;
        store = kit_open(&opts);
        assert_int_equal(kit_put(store, 1, 0), QUIRE_STORE_OK);
        fault_disk_set(&faults, (fault_plan){ .calls = FAULT_BIT(FAULT_PWRITE),
                                              .first = 1,
                                              .last = UINT32_MAX,
                                              .error = EIO });
        assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_IO);
        assert_int_equal(store->ops->drop(store, &all), QUIRE_IO);
        assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_ABSENT);
        if (is_lasting == 0) {
            fault_disk_set(&faults, (fault_plan){ 0 });
        }
        kit_close(store);
        assert_int_equal(strstr(line, "/disk: drops that could not be written: 1;") != NULL,
                         is_lasting);
        fault_disk_set(&faults, (fault_plan){ 0 });
        store = kit_open(&opts);
        assert_int_equal(kit_get(store, 1, 0),
                         is_lasting == 0 ? QUIRE_STORE_ABSENT : QUIRE_STORE_OK);
        kit_close(store);
        mem_disk_free(disk);
    }
}

/* ---- limits, by a clock of the test's own ---- */

static atomic_ullong clock_now;

static uint64_t own_clock(void *ctx)
{
    (void)ctx;
    return atomic_load(&clock_now);
}

static void test_rate_and_queue(void **state)
{
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;
    quire_store_stats stats;
    quire_transfer *t;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind);
    atomic_store(&clock_now, 1000000000u);
    opts.clock_ns = own_clock;
    opts.write_rate = 2 * KIT_RECORD;
    opts.queue_bytes = 4 * KIT_RECORD;
    store = kit_open(&opts);
    for (uint32_t i = 0; i < 20; i++) {
        t = kit_put_new(1, i);
        store->ops->put(store, &t, 1);
    }
    do {
        store->ops->stats(store, &stats);
        pause_ms(1);
    } while (stats.written_bytes_total < 2 * KIT_RECORD);
    pause_ms(20);
    store->ops->stats(store, &stats);
    /* A second's worth at once, and one record more. */
    assert_true(stats.written_bytes_total <= 3 * KIT_RECORD + 8192);
    assert_true(stats.refused_total > 0);
    for (int second = 0; second < 10; second++) {
        (void)atomic_fetch_add(&clock_now, 1000000000u);
        pause_ms(5);
        store->ops->stats(store, &stats);
        assert_true(stats.written_bytes_total <=
                    ((uint64_t)second + 2) * 2 * KIT_RECORD + KIT_RECORD + 8192);
    }
    for (uint32_t i = 0, n_full = 0; i < 20; i++) {
        t = kit_wait(store);
        assert_true(t->result == QUIRE_STORE_OK || t->result == QUIRE_STORE_FULL);
        n_full += t->result == QUIRE_STORE_FULL;
        assert_true(n_full < 20);
        quire_transfer_free(t);
        (void)atomic_fetch_add(&clock_now, 1000000000u);
    }
    kit_close(store);
    kit_dir_remove(dir);
}

/* Reads run one at a time. While the first one is held, the waiting one of higher urgency goes
 * first. */
static atomic_bool is_held;
static atomic_bool has_come; /* a read has come to the place where it is held */

static int held_open(void *ctx, const char *path, int flags, mode_t mode)
{
    while (atomic_load(&is_held) && (flags & 3) == 0) {
        atomic_store(&has_come, true);
        pause_ms(1);
    }
    return quire_file_ops_default()->open(ctx, path, flags, mode);
}

static void test_urgency_and_drop_under_way(void **state)
{
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    quire_file_ops ops = *quire_file_ops_default();
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;
    quire_transfer *t[6];

    kit_dir_make(dir);
    ops.open = held_open;
    opts = kit_opts(dir, kind);
    opts.ops = &ops;
    opts.reads_max = 1;
    store = kit_open(&opts);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(kit_put(store, i == 5 ? 2 : 1, i), QUIRE_STORE_OK);
    }
    atomic_store(&has_come, false);
    atomic_store(&is_held, true);
    t[0] = kit_get_new(1, 0);
    store->ops->get(store, t, 1);
    while (!atomic_load(&has_come)) {
        pause_ms(1);
    }
    for (uint32_t i = 1; i < 6; i++) {
        t[i] = kit_get_new(i == 5 ? 2 : 1, i);
        t[i]->urgency = (uint8_t)(i * 40);
        t[i]->owner = &t[i];
        store->ops->get(store, &t[i], 1);
    }
    kit_drop(store, QUIRE_STORE_DROP_SALT, 2, 5);
    atomic_store(&is_held, false);
    for (uint32_t i = 6; i > 0; i--) {
        quire_transfer *back = kit_wait(store);

        if (i == 6) {
            assert_ptr_equal(back, t[0]);
        } else {
            assert_ptr_equal(back, t[i]);
            assert_int_equal(back->result, i == 5 ? QUIRE_STORE_ABSENT : QUIRE_STORE_OK);
        }
        quire_transfer_free(back);
    }
    kit_close(store);
    kit_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_degraded),
        cmocka_unit_test(test_many_retries),
        cmocka_unit_test(test_drops_at_close),
        cmocka_unit_test(test_rate_and_queue),
        cmocka_unit_test(test_urgency_and_drop_under_way),
    };

    return kit_run(tests, sizeof tests / sizeof tests[0]);
}
