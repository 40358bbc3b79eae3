/* test_file_limits.c - each named limit of the file store at its edge.
 *
 * Elsewhere: rate and queue, test_file_faults.c; carrying forward, test_file_store.c; accounts,
 * test_file_accounts.c; the bounds of waiting, test_file_stuck.c.
 *
 * SPDX-License-Identifier: MIT */
#include "fault_disk.h"
#include "file_kit.h"
#include "mem_disk.h"

#include "store/file/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- options ---- */

static void refused(quire_file_store_opts opts, const char *reason)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_store *store;

    assert_int_equal(quire_file_store_create(&store, &opts, &err), QUIRE_INVAL);
    assert_null(store);
    if (strstr(err.message, reason) == NULL) {
        fail_msg("no '%s' in '%s'", reason, err.message);
    }
}

static void test_options(void **state)
{
    static char long_dir[8192];
    mem_disk *disk = mem_disk_new();
    quire_file_store_opts fine = kit_opts("/disk", QUIRE_READS_POOL), opts;

    (void)state;
    memset(long_dir, 'd', sizeof long_dir - 1);
    fine.ops = mem_disk_ops(disk);
    fine.segment_bytes = QUIRE_FILE_SEGMENT_BYTES_MIN;
    fine.capacity_bytes = QUIRE_FILE_SEGMENTS_MIN * fine.segment_bytes;
    fine.reads_max = QUIRE_READS_MAX;
    kit_close(kit_open(&fine));

    opts = fine;
    opts.segment_bytes -= 4096;
    refused(opts, "segment_bytes 61440");
    opts.segment_bytes = (uint64_t)QUIRE_FILE_SEGMENT_BYTES_MAX + 4096;
    refused(opts, "segment_bytes 1073745920");
    opts.segment_bytes = fine.segment_bytes + 1;
    refused(opts, "segment_bytes 65537: a multiple of 4096");
    opts = fine;
    opts.capacity_bytes--;
    refused(opts, "cache capacity of 262143 bytes");
    opts = fine;
    opts.reads_max = 0;
    refused(opts, "reads_max 0");
    opts.reads_max = QUIRE_READS_MAX + 1;
    refused(opts, "reads_max 65");
    opts = fine;
    opts.dir = "";
    refused(opts, "a path of 1 to 3968 bytes");
    opts.dir = long_dir;
    refused(opts, "a path of 1 to 3968 bytes");
    mem_disk_free(disk);
}

/* ---- files ---- */

/* A store on a disk in memory with the smallest segments, which hold 3 records. */
static quire_store *memory_open(mem_disk *disk, uint32_t n_segments)
{
    quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);

    opts.ops = mem_disk_ops(disk);
    opts.segment_bytes = QUIRE_FILE_SEGMENT_BYTES_MIN;
    opts.capacity_bytes = n_segments * opts.segment_bytes;
    return kit_open(&opts);
}

#define MANY_SEGMENTS (QUIRE_FILE_FDS_MAX + 40u)

/* The number of open files has a bound while more files are read. */
static void test_fds(void **state)
{
    mem_disk *disk = mem_disk_new();
    quire_store *store = memory_open(disk, MANY_SEGMENTS + 8);
    uint32_t n_most = 0;

    (void)state;
    for (uint32_t i = 0; i < 3 * MANY_SEGMENTS; i++) {
        assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
    }
    for (uint32_t i = 0; i < 3 * MANY_SEGMENTS; i++) {
        uint32_t n;

        assert_int_equal(kit_get(store, 1, i), QUIRE_STORE_OK);
        n = mem_disk_open_files(disk);
        n_most = n > n_most ? n : n_most;
    }
    /* Beside those: the lock, the segment that is written, one that a read has just opened. */
    assert_in_range(n_most, QUIRE_FILE_FDS_MAX, QUIRE_FILE_FDS_MAX + 3);
    kit_close(store);
    assert_int_equal(mem_disk_open_files(disk), 0);
    mem_disk_free(disk);
}

static void file_make(mem_disk *disk, uint32_t number)
{
    const quire_file_ops *ops = mem_disk_ops(disk);
    char path[64];
    int fd;

    (void)snprintf(path, sizeof path, "/disk/segment-%016x.quire", number);
    (void)ops->make_dir(ops->ctx, "/disk", 0700);
    fd = ops->open(ops->ctx, path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    (void)ops->close(ops->ctx, fd);
}

/* Short segments, as many crashes leave them, are bounded by number as well. */
static void test_short_segments(void **state)
{
    mem_disk *disk = mem_disk_new();
    quire_store *store;

    (void)state;
    for (uint32_t i = 1; i <= 200; i++) {
        file_make(disk, i);
    }
    store = memory_open(disk, 32);
    assert_in_range(mem_disk_files(disk), 2, 2 * 32 + QUIRE_FILE_SEGMENTS_SPARE);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    kit_close(store);
    mem_disk_free(disk);
}

static void test_last_number(void **state)
{
    mem_disk *disk = mem_disk_new();
    quire_store_stats stats;
    quire_store *store;

    (void)state;
    file_make(disk, QUIRE_SEGMENT_NUMBER_MAX);
    store = memory_open(disk, 8);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_IO);
    store->ops->stats(store, &stats);
    assert_int_equal(stats.state, QUIRE_STORE_DEGRADED);
    assert_non_null(strstr(stats.trouble, "no number is left for a segment"));
    kit_close(store);
    mem_disk_free(disk);
}

/* A file that is longer than a segment may be is not read; it goes when it is the oldest. */
static void test_long_file(void **state)
{
    char dir[256], path[512];
    quire_file_store_opts opts;
    quire_store *store;
    int fd;

    (void)state;
    kit_dir_make(dir);
    (void)snprintf(path, sizeof path, "%s/segment-%016x.quire", dir, 1);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)QUIRE_FILE_SEGMENT_BYTES_MAX + 4096), 0);
    (void)close(fd);
    opts = kit_opts(dir, QUIRE_READS_POOL);
    opts.is_readonly = true;
    kit_close(kit_open(&opts));
    assert_int_equal(access(path, F_OK), 0);
    opts.is_readonly = false;
    store = kit_open(&opts);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    kit_close(store);
    kit_dir_remove(dir);
}

/* ---- records ---- */

static quire_store_result put_of(quire_store *store, size_t payload)
{
    const size_t part_bytes[1] = { payload };
    unsigned char *parts[QUIRE_GROUPS_MAX];
    quire_transfer *t = quire_transfer_new(payload + 4096, KIT_TOKENS);
    quire_store_result result;
    kit_text text;

    kit_text_make(&text, 1, (uint32_t)(payload % 1000));
    assert_non_null(t);
    assert_int_equal(
        quire_page_record_begin(t->record, t->capacity, &text.text, 1, part_bytes, parts),
        QUIRE_OK);
    memset(parts[0], 1, payload);
    store->ops->put(store, &t, 1);
    t = kit_wait(store);
    result = t->result;
    quire_transfer_free(t);
    return result;
}

/* A record must leave room in a segment for used records of old ones. */
static void test_record_of_a_segment(void **state)
{
    mem_disk *disk = mem_disk_new();
    quire_store *store = memory_open(disk, 8);
    const size_t room = (size_t)((1.0 - QUIRE_FILE_CARRY) * QUIRE_FILE_SEGMENT_BYTES_MIN);

    (void)state;
    assert_int_equal(put_of(store, room / 2), QUIRE_STORE_OK);
    assert_int_equal(put_of(store, room), QUIRE_STORE_FORMAT);
    kit_close(store);
    mem_disk_free(disk);
}

/* Segments are made as large as the largest record needs; the capacity has room for four. */
static void test_large_records(void **state)
{
    mem_disk *disk = mem_disk_new();
    quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);
    quire_store *store;

    (void)state;
    opts.ops = mem_disk_ops(disk);
    opts.record_bytes = 2 * opts.segment_bytes;
    refused(opts, "cache capacity of 4194304 bytes: at least 67108864 are needed");
    opts.capacity_bytes = (uint64_t)64 << 20;
    store = kit_open(&opts);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(put_of(store, 2 * KIT_SEGMENT - KIT_RECORD), QUIRE_STORE_OK);
    }
    kit_close(store);
    opts.record_bytes = 0;
    store = kit_open(&opts);
    assert_int_equal(put_of(store, 2 * KIT_SEGMENT - KIT_RECORD), QUIRE_STORE_FORMAT);
    kit_close(store);
    mem_disk_free(disk);
}

/* ---- drops ---- */

static void ready_wait(quire_store *store)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    quire_store_stats stats;

    /* A store that stays degraded is ended by the test's timeout. */
    for (store->ops->stats(store, &stats); stats.state != QUIRE_STORE_READY;
         store->ops->stats(store, &stats)) {
        (void)nanosleep(&pause, NULL);
    }
}

/* More drops than can wait end all records, at once and after a start alike. Records put later and
 * reported as durable stay. */
static void test_drops(void **state)
{
    static fault_disk faults;
    mem_disk *disk = mem_disk_new();
    quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);
    const quire_store_drop drop = { .what = QUIRE_STORE_DROP_SALT,
                                    .salt = "none",
                                    .salt_bytes = 4 };
    quire_store *store;

    (void)state;
    fault_disk_init(&faults, mem_disk_ops(disk));
    opts.ops = &faults.ops;
    opts.retry_ms = 1;
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    fault_disk_set(&faults, (fault_plan){ .calls = FAULT_BIT(FAULT_PWRITE),
                                          .first = 1,
                                          .last = UINT32_MAX,
                                          .error = ENOSPC });
    assert_int_equal(kit_put(store, 1, 2), QUIRE_STORE_IO);
    for (uint32_t i = 0; i < QUIRE_FILE_DROPS_MAX; i++) {
        assert_int_equal(store->ops->drop(store, &drop), QUIRE_IO);
    }
    assert_int_equal(kit_query(store, 1, 1), QUIRE_STORE_OK);
    assert_int_equal(store->ops->drop(store, &drop), QUIRE_IO);
    assert_int_equal(kit_query(store, 1, 1), QUIRE_STORE_ABSENT);
    fault_disk_set(&faults, (fault_plan){ 0 });
    ready_wait(store);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    kit_close(store);
    store = kit_open(&opts);
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_OK);
    kit_close(store);
    mem_disk_free(disk);
}

/* ---- interrupted calls ---- */

/* A call that is interrupted each time is given up. */
static void test_interrupted(void **state)
{
    static fault_disk faults;
    mem_disk *disk = mem_disk_new();
    quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);
    quire_store_stats stats;
    quire_store *store;

    (void)state;
    fault_disk_init(&faults, mem_disk_ops(disk));
    opts.ops = &faults.ops;
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    fault_disk_set(&faults, (fault_plan){ .calls = FAULT_BIT(FAULT_PREAD) | FAULT_BIT(FAULT_PWRITE),
                                          .first = 1,
                                          .last = UINT32_MAX,
                                          .error = EINTR });
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_IO);
    assert_int_equal(kit_put(store, 1, 2), QUIRE_STORE_IO);
    store->ops->stats(store, &stats);
    assert_non_null(strstr(stats.trouble, "failed: Interrupted system call"));
    fault_disk_set(&faults, (fault_plan){ 0 });
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_OK);
    kit_close(store);
    mem_disk_free(disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),        cmocka_unit_test(test_fds),
        cmocka_unit_test(test_short_segments), cmocka_unit_test(test_last_number),
        cmocka_unit_test(test_long_file),      cmocka_unit_test(test_record_of_a_segment),
        cmocka_unit_test(test_large_records),  cmocka_unit_test(test_drops),
        cmocka_unit_test(test_interrupted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
