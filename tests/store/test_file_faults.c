/* test_file_faults.c - calls to the disk that fail, a process that is killed, limits that are
 * reached.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"

#include "seed.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- operations that fail ---- */

static struct {
    atomic_uint n_calls;
    atomic_uint fail_first, fail_last; /* calls with these numbers fail, from 1 */
    atomic_int error;
} faults;

static bool is_failing(void)
{
    const unsigned n = atomic_fetch_add(&faults.n_calls, 1) + 1;

    return n >= atomic_load(&faults.fail_first) && n <= atomic_load(&faults.fail_last);
}

#define OS           quire_file_ops_default()
#define FAULTY(call) return is_failing() ? -atomic_load(&faults.error) : (call)

static int faulty_open(void *ctx, const char *path, int flags, mode_t mode)
{
    FAULTY(OS->open(ctx, path, flags, mode));
}

static ssize_t faulty_pread(void *ctx, int fd, void *buffer, size_t n_bytes, uint64_t offset)
{
    FAULTY(OS->pread(ctx, fd, buffer, n_bytes, offset));
}

static ssize_t faulty_pwrite(void *ctx, int fd, const void *buffer, size_t n_bytes, uint64_t offset)
{
    FAULTY(OS->pwrite(ctx, fd, buffer, n_bytes, offset));
}

static int faulty_read_begin(void *ctx, int fd, size_t n_bytes, uint64_t offset)
{
    FAULTY(OS->read_begin(ctx, fd, n_bytes, offset));
}

static int faulty_datasync(void *ctx, int fd)
{
    FAULTY(OS->datasync(ctx, fd));
}

static int faulty_truncate(void *ctx, int fd, uint64_t n_bytes)
{
    FAULTY(OS->truncate(ctx, fd, n_bytes));
}

static int faulty_reserve(void *ctx, int fd, uint64_t n_bytes)
{
    FAULTY(OS->reserve(ctx, fd, n_bytes));
}

static int faulty_size(void *ctx, int fd, uint64_t *n_bytes)
{
    FAULTY(OS->size(ctx, fd, n_bytes));
}

static int faulty_unlink(void *ctx, const char *path)
{
    FAULTY(OS->unlink(ctx, path));
}

static int faulty_sync_dir(void *ctx, const char *path)
{
    FAULTY(OS->sync_dir(ctx, path));
}

static quire_file_ops faulty_ops(void)
{
    quire_file_ops ops = *OS;

    ops.open = faulty_open;
    ops.pread = faulty_pread;
    ops.pwrite = faulty_pwrite;
    ops.read_begin = faulty_read_begin;
    ops.datasync = faulty_datasync;
    ops.truncate = faulty_truncate;
    ops.reserve = faulty_reserve;
    ops.size = faulty_size;
    ops.unlink = faulty_unlink;
    ops.sync_dir = faulty_sync_dir;
    return ops;
}

static void faults_set(unsigned first, unsigned last, int error)
{
    atomic_store(&faults.n_calls, 0);
    atomic_store(&faults.error, error);
    atomic_store(&faults.fail_first, first);
    atomic_store(&faults.fail_last, last);
}

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

/* One run over several segments; what is asked of the disk is nearly the same each time. Puts come
 * in batches, because each batch waits for a sync. */
#define RUN_TEXTS 60u
#define RUN_BATCH 20u

static void scripted_run(const quire_file_store_opts *opts, bool was_ok[RUN_TEXTS])
{
    quire_store *store;

    if (quire_file_store_create(&store, opts, NULL) < 0) {
        return;
    }
    for (uint32_t first = 0; first < RUN_TEXTS; first += RUN_BATCH) {
        quire_transfer *t[RUN_BATCH];

        for (uint32_t i = 0; i < RUN_BATCH; i++) {
            t[i] = kit_put_new(1, first + i);
            t[i]->owner = &was_ok[first + i];
        }
        store->ops->put(store, t, RUN_BATCH);
        for (uint32_t i = 0; i < RUN_BATCH; i++) {
            quire_transfer *back = kit_wait(store);

            *(bool *)back->owner = back->result == QUIRE_STORE_OK;
            quire_transfer_free(back);
        }
        for (uint32_t i = 0; i < RUN_BATCH; i += 4) {
            (void)kit_get(store, 1, first + i);
        }
    }
    kit_close(store);
}

static void test_nth_call(void **state)
{
    static const int errors[] = { EIO, ENOSPC, EROFS };
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    quire_file_ops ops = faulty_ops();
    bool is_reached = true;

    for (unsigned nth = 1; is_reached; nth++) {
        bool was_ok[RUN_TEXTS] = { false };
        char dir[256];
        quire_file_store_opts opts;
        quire_store *store;

        kit_dir_make(dir);
        opts = kit_opts(dir, kind);
        opts.ops = &ops;
        opts.retry_ms = 1;
        faults_set(nth, nth, errors[nth % 3]);
        scripted_run(&opts, was_ok);
        is_reached = atomic_load(&faults.n_calls) >= nth;
        faults_set(0, 0, 0);
        store = kit_open(&opts);
        for (uint32_t i = 0; i < RUN_TEXTS; i++) {
            const quire_store_result result = kit_get(store, 1, i);

            /* Durable is durable; nothing was evicted. */
            assert_true(result == QUIRE_STORE_OK || result == QUIRE_STORE_ABSENT);
            assert_true(!was_ok[i] || result == QUIRE_STORE_OK);
        }
        assert_int_equal(kit_put(store, 3, 1), QUIRE_STORE_OK);
        kit_close(store);
        kit_dir_remove(dir);
    }
}

static void test_degraded(void **state)
{
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    quire_file_ops ops = faulty_ops();
    char dir[256];
    quire_file_store_opts opts;
    quire_store_stats stats;
    quire_store *store;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind);
    opts.ops = &ops;
    opts.retry_ms = 1;
    faults_set(0, 0, 0);
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    faults_set(1, UINT32_MAX, ENOSPC);
    assert_int_equal(kit_put(store, 1, 2), QUIRE_STORE_IO);
    store->ops->stats(store, &stats);
    assert_int_equal(stats.state, QUIRE_STORE_DEGRADED);
    assert_non_null(strstr(stats.trouble, "No space"));
    assert_int_equal(kit_put(store, 1, 3), QUIRE_STORE_CLOSED);
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_IO);
    assert_int_equal(kit_get(store, 1, 2), QUIRE_STORE_ABSENT);
    faults_set(0, 0, 0);
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

/* ---- kill -9 ---- */

/* The child puts texts and says which are durable. */
static void child_run(const quire_file_store_opts *opts, int fd, uint32_t first)
{
    quire_store *store = kit_open(opts);

    for (uint32_t i = first;; i++) {
        const quire_store_result result = kit_put(store, 1, i % 200);

        if (result == QUIRE_STORE_OK) {
            const uint32_t text = i % 200;

            (void)!write(fd, &text, sizeof text);
        }
        (void)kit_get(store, 1, (i * 7) % 200);
    }
}

static void test_kill(void **state)
{
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    const char *rounds = getenv("QUIRE_KILL_ROUNDS");
    const long n_rounds = rounds != NULL ? strtol(rounds, NULL, 10) : 20;
    quire_rng rng = test_rng(23);
    bool is_durable[200] = { false };
    char dir[256];
    quire_file_store_opts opts;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind);
    for (long round = 0; round < n_rounds; round++) {
        quire_store *store;
        int ends[2], status;
        uint32_t text;
        pid_t child;

        assert_int_equal(pipe(ends), 0);
        child = fork();
        if (child == 0) {
            (void)close(ends[0]);
            child_run(&opts, ends[1], quire_rng_below(&rng, 200));
            _exit(1);
        }
        assert_true(child > 0);
        (void)quire_rng_next(&rng);
        (void)close(ends[1]);
        pause_ms(20 + quire_rng_below(&rng, 200));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        while (read(ends[0], &text, sizeof text) == (ssize_t)sizeof text) {
            is_durable[text] = true;
        }
        (void)close(ends[0]);
        store = kit_open(&opts);
        for (uint32_t i = 0; i < 200; i++) {
            const quire_store_result result = kit_get(store, 1, i);

            assert_true(result == QUIRE_STORE_OK || result == QUIRE_STORE_ABSENT);
            assert_true(!is_durable[i] || result == QUIRE_STORE_OK);
        }
        kit_close(store);
    }
    kit_dir_remove(dir);
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

/* One read at a time, behind one that is held up: the higher urgency comes first. */
static atomic_bool is_held;
static atomic_bool has_come; /* a read has come to the place where it is held */

static int held_open(void *ctx, const char *path, int flags, mode_t mode)
{
    while (atomic_load(&is_held) && (flags & 3) == 0) {
        atomic_store(&has_come, true);
        pause_ms(1);
    }
    return OS->open(ctx, path, flags, mode);
}

static void test_urgency_and_drop_under_way(void **state)
{
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    quire_file_ops ops = *OS;
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
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_nth_call),
        cmocka_unit_test(test_degraded),
        cmocka_unit_test(test_rate_and_queue),
        cmocka_unit_test(test_urgency_and_drop_under_way),
    };

    return kit_run(tests, sizeof tests / sizeof tests[0]);
}
