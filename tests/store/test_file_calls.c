/* test_file_calls.c - each call to the disk fails, at its first use, its second, and so on; calls
 * move fewer bytes than requested.
 *
 * A script runs over several segments, with a start in between. After any failure: nothing crashes
 * or hangs, no wrong record is found, records reported as durable are there, and no descriptor
 * stays open. Afterwards the store works. A store that stayed open recovers by itself.
 *
 * SPDX-License-Identifier: MIT */
#include "fault_disk.h"
#include "file_kit.h"
#include "mem_disk.h"

#include "doze.h"
#include "rounds.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define TEXTS 24u
#define BATCH 6u

/* A disk and how the store is opened on it. */
typedef struct place {
    mem_disk *memory; /* NULL: a directory */
    char dir[256];
    fault_disk faults;
    quire_file_store_opts opts;
} place;

static void place_make(place *p, bool is_in_memory, bool is_small, quire_reads_kind kind)
{
    p->memory = is_in_memory ? mem_disk_new() : NULL;
    (void)snprintf(p->dir, sizeof p->dir, "/disk");
    if (!is_in_memory) {
        kit_dir_make(p->dir);
    }
    fault_disk_init(&p->faults, is_in_memory ? mem_disk_ops(p->memory) : quire_file_ops_default());
    p->opts = kit_opts(p->dir, kind);
    p->opts.ops = &p->faults.ops;
    p->opts.retry_ms = 1;
    p->opts.reads_max = 2;
    /* On a real disk each segment costs some milliseconds. */
    p->opts.segment_bytes = (uint64_t)(is_in_memory ? 64 : 256) << 10;
    p->opts.capacity_bytes = p->opts.segment_bytes * (is_small ? 4 : 40);
}

static void place_free(place *p)
{
    assert_int_equal(fault_disk_open_files(&p->faults), 0);
    if (p->memory != NULL) {
        mem_disk_free(p->memory);
    } else {
        kit_dir_remove(p->dir);
    }
}

/* Trouble says which call on which file failed, and why. */
static void trouble_check(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    if (stats.state == QUIRE_STORE_DEGRADED) {
        assert_non_null(strstr(stats.trouble, " failed: "));
        assert_true(strstr(stats.trouble, " of segment-0") != NULL ||
                    strstr(stats.trouble, " of the lock") != NULL ||
                    strstr(stats.trouble, " of the directory") != NULL);
    } else {
        assert_string_equal(stats.trouble, "");
    }
}

/* Puts come in batches, because each batch waits for a sync. */
static void use(quire_store *store, bool was_ok[TEXTS])
{
    for (uint32_t first = 0; first < TEXTS; first += BATCH) {
        quire_transfer *t[BATCH];

        for (uint32_t i = 0; i < BATCH; i++) {
            t[i] = kit_put_new(1, first + i);
            t[i]->owner = &was_ok[first + i];
        }
        store->ops->put(store, t, BATCH);
        for (uint32_t i = 0; i < BATCH; i++) {
            quire_transfer *back = kit_wait(store);

            *(bool *)back->owner |= back->result == QUIRE_STORE_OK;
            quire_transfer_free(back);
        }
        trouble_check(store);
        for (uint32_t i = 0; i < BATCH; i += 4) {
            (void)kit_get(store, 1, first + i);
        }
    }
}

static quire_store *open_or_null(const place *p)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_store *store;
    const int rc = quire_file_store_create(&store, &p->opts, &err);

    if (rc < 0) {
        /* A message that names the directory or a file in it. */
        assert_non_null(strstr(err.message, p->dir));
        assert_null(store);
    }
    return store;
}

static void script_run(const place *p, bool was_ok[TEXTS])
{
    for (int start = 0; start < 2; start++) {
        quire_store *store = open_or_null(p);

        if (store != NULL) {
            use(store, was_ok);
            kit_close(store);
        }
    }
}

/* Nothing suffers any more. */
static void check(const place *p, const bool was_ok[TEXTS])
{
    quire_store_result results[TEXTS];
    quire_store *store = kit_open(&p->opts);
    const bool is_small = p->opts.capacity_bytes < (uint64_t)2 * TEXTS * KIT_RECORD;

    kit_get_all(store, 1, TEXTS, results);
    for (uint32_t i = 0; i < TEXTS; i++) {
        assert_true(results[i] == QUIRE_STORE_OK || results[i] == QUIRE_STORE_ABSENT);
        assert_true(!was_ok[i] || results[i] == QUIRE_STORE_OK || is_small);
    }
    assert_int_equal(kit_put(store, 3, 1), QUIRE_STORE_OK);
    assert_int_equal(kit_get(store, 3, 1), QUIRE_STORE_OK);
    kit_close(store);
}

/* ---- one call fails ---- */

/* Returns whether there was an nth call. */
static bool nth_fails(fault_call call, unsigned nth, int error, bool is_in_memory, bool is_small,
                      quire_reads_kind kind)
{
    static place p;
    bool was_ok[TEXTS] = { false };
    bool is_reached;

    place_make(&p, is_in_memory, is_small, kind);
    fault_disk_set(
        &p.faults,
        (fault_plan){ .calls = FAULT_BIT(call), .first = nth, .last = nth, .error = error });
    script_run(&p, was_ok);
    is_reached = fault_disk_calls(&p.faults) >= nth;
    fault_disk_set(&p.faults, (fault_plan){ 0 });
    check(&p, was_ok);
    place_free(&p);
    return is_reached;
}

static uint32_t fds_count(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

static void test_nth_call(void **state)
{
    static const int errors[] = { EIO, ENOSPC, EROFS, EMFILE, ENOENT, EINTR, EAGAIN };
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    const bool is_pool = kind == QUIRE_READS_POOL;
    /* io_uring needs a directory, where a run takes longer: those calls on which reading depends.
     */
    const uint32_t calls =
        is_pool ? FAULT_ALL
                : FAULT_BIT(FAULT_OPEN) | FAULT_BIT(FAULT_CLOSE) | FAULT_BIT(FAULT_READ_BEGIN);
    const uint32_t n_fds = fds_count();
    uint64_t n_runs = 0;

    for (int call = 0; call < FAULT_CALLS; call++) {
        if ((calls & FAULT_BIT(call)) == 0) {
            continue;
        }
        for (int is_small = 0; is_small < 2; is_small++) {
            unsigned nth = 1;

            while (nth_fails((fault_call)call, nth, errors[n_runs % 7], is_pool, is_small == 1,
                             kind)) {
                nth += is_pool ? TEST_STRIDE(7u) : (unsigned)kit_count(1 + nth / 2, 1);
                n_runs++;
            }
        }
    }
    assert_int_equal(fds_count(), n_fds);
    kit_tell("%s: each of %d calls failing at its Nth use: %llu runs, 0 hangs, 0 wrong records, 0 "
             "descriptors left",
             is_pool ? "threads" : "io_uring", __builtin_popcount(calls),
             (unsigned long long)n_runs);
}

/* A directory of another user, or on a file system that is mounted read-only. */
static void test_may_not_write(void **state)
{
    static const int errors[] = { EROFS, EACCES };
    static place p;

    if (*(const quire_reads_kind *)*state != QUIRE_READS_POOL) {
        return; /* the same again */
    }
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_store *store;

        place_make(&p, true, false, QUIRE_READS_POOL);
        fault_disk_set(&p.faults, (fault_plan){ .calls = FAULT_BIT(FAULT_OPEN),
                                                .first = 1,
                                                .last = 1,
                                                .error = errors[i] });
        assert_true(quire_file_store_create(&store, &p.opts, &err) < 0);
        assert_non_null(strstr(err.message, p.dir));
        assert_non_null(strstr(err.message, "--cache-dir-readonly"));
        assert_non_null(strstr(err.message, strerror(errors[i])));
        place_free(&p);
    }
}

/* ---- one write fails, later the machine ---- */

/* The records that are found at `before`, when all is quiet, are found after a power failure that
 * only synced bytes survive. */
static void crash_check(const place *p, const quire_store_result before[TEXTS])
{
    quire_rng rng = { 1 };
    mem_disk *after = mem_disk_crash(p->memory, mem_disk_calls(p->memory), MEM_CRASH_NONE, &rng);
    quire_file_store_opts opts = p->opts;
    quire_store_result results[TEXTS];
    quire_store *store;

    opts.ops = mem_disk_ops(after);
    opts.capacity_bytes *= 4; /* the start evicts nothing */
    store = kit_open(&opts);
    kit_get_all(store, 1, TEXTS, results);
    for (uint32_t i = 0; i < TEXTS; i++) {
        assert_true(before[i] != QUIRE_STORE_OK || results[i] == QUIRE_STORE_OK);
    }
    kit_close(store);
    mem_disk_free(after);
}

/* A directory that is full: used records are carried forward, among others by the write that
 * fails. */
static void test_nth_write_then_crash(void **state)
{
    static place p;

    if (*(const quire_reads_kind *)*state != QUIRE_READS_POOL) {
        return; /* the same again */
    }
    for (unsigned nth = 1; nth <= 40; nth += TEST_STRIDE(2u)) {
        bool was_ok[TEXTS] = { false };
        quire_store_result results[TEXTS];
        quire_store *store;

        place_make(&p, true, true, QUIRE_READS_POOL);
        p.opts.capacity_bytes = 6 * p.opts.segment_bytes;
        store = kit_open(&p.opts);
        use(store, was_ok);
        fault_disk_set(&p.faults, (fault_plan){ .calls = FAULT_BIT(FAULT_PWRITE),
                                                .first = nth,
                                                .last = nth,
                                                .error = EIO });
        for (uint32_t i = 0; i < 4; i++) {
            use(store, was_ok);
            kit_get_all(store, 1, TEXTS, results);
            crash_check(&p, results);
        }
        kit_close(store);
        place_free(&p);
    }
}

/* ---- all fail from one on, and come back ---- */

static void test_from_nth_on(void **state)
{
    static const int errors[] = { EIO, ENOSPC, EROFS };
    static place p;
    uint32_t n_degraded = 0;

    if (*(const quire_reads_kind *)*state != QUIRE_READS_POOL) {
        return; /* the same again */
    }
    for (int call = 0; call < FAULT_CALLS; call++) {
        for (unsigned nth = 1; nth <= 60; nth += 1 + nth / 4) {
            bool was_ok[TEXTS] = { false };
            quire_store_stats stats;
            quire_store *store;

            place_make(&p, true, nth % 2 == 0, QUIRE_READS_POOL);
            store = kit_open(&p.opts);
            fault_disk_set(&p.faults, (fault_plan){ .calls = FAULT_BIT(call),
                                                    .first = nth,
                                                    .last = UINT32_MAX,
                                                    .error = errors[nth % 3] });
            use(store, was_ok);
            store->ops->stats(store, &stats);
            n_degraded += stats.state == QUIRE_STORE_DEGRADED;
            fault_disk_set(&p.faults, (fault_plan){ 0 });
            do {
                test_doze();
                store->ops->stats(store, &stats);
            } while (stats.state != QUIRE_STORE_READY);
            assert_int_equal(kit_put(store, 3, 1), QUIRE_STORE_OK);
            assert_int_equal(kit_get(store, 3, 1), QUIRE_STORE_OK);
            kit_close(store);
            check(&p, was_ok);
            place_free(&p);
        }
    }
    assert_true(n_degraded > 20);
}

/* ---- less than was asked for ---- */

static void test_short(void **state)
{
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    static place p;
    bool was_ok[TEXTS] = { false };

    place_make(&p, false, false, kind);
    fault_disk_set(&p.faults,
                   (fault_plan){ .calls = FAULT_BIT(FAULT_PREAD) | FAULT_BIT(FAULT_PWRITE),
                                 .first = 1,
                                 .last = UINT32_MAX,
                                 .is_short = true });
    script_run(&p, was_ok);
    for (uint32_t i = 0; i < TEXTS; i++) {
        assert_true(was_ok[i]);
    }
    check(&p, was_ok);
    place_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nth_call),
        cmocka_unit_test(test_may_not_write),
        cmocka_unit_test(test_nth_write_then_crash),
        cmocka_unit_test(test_from_nth_on),
        cmocka_unit_test(test_short),
    };

    return kit_run(tests, sizeof tests / sizeof tests[0]);
}
