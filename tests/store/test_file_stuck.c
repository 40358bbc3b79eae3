/* test_file_stuck.c - disks that are slow, and calls that do not return: every wait has a bound.
 *
 * A store whose disk is stuck leaves memory behind. It is kept here, where leak checkers find it.
 *
 * SPDX-License-Identifier: MIT */
#include "fault_disk.h"
#include "file_kit.h"
#include "mem_disk.h"

#include "base/clock.h"
#include "doze.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DURABLE    3u
#define PUTS       40u
#define CLOSE_MS   50u
#define BOUND_MS   20000u /* far above CLOSE_MS, since machines differ; a hang is longer */
#define STORES     32u
#define LINE_BYTES 512u

/* A store, its disk, and the results of its transfers. */
typedef struct subject {
    mem_disk *memory;
    fault_disk faults;
    quire_store *store;
    quire_transfer *stuck; /* a get */
    char line[LINE_BYTES]; /* the last one logged */
    atomic_bool is_over;   /* the store ended, or was not opened */
    atomic_bool is_asked;  /* for an account, after that */
    uint32_t n_away;
    uint32_t n_back[QUIRE_STORE_RESULT_COUNT];
} subject;

static subject *kept[STORES];
static uint32_t n_kept;

static void log_take(void *ctx, const char *line)
{
    (void)snprintf(((subject *)ctx)->line, LINE_BYTES, "%s", line);
}

static uint16_t account_of(void *ctx, const void *salt, uint32_t salt_bytes)
{
    subject *s = ctx;

    (void)salt;
    (void)salt_bytes;
    if (atomic_load(&s->is_over)) {
        atomic_store(&s->is_asked, true);
    }
    return 1;
}

static quire_file_store_opts opts_of(subject *s)
{
    static const quire_file_account account = { .weight = 1 };
    quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);

    opts.ops = &s->faults.ops;
    opts.segment_bytes = (uint64_t)64 << 10;
    opts.capacity_bytes = 5 * opts.segment_bytes;
    opts.queue_bytes = (uint64_t)2 * PUTS * KIT_RECORD;
    opts.reads_max = 2;
    opts.close_ms = CLOSE_MS;
    opts.log = log_take;
    opts.log_ctx = s;
    opts.accounts = &account;
    opts.n_accounts = 1;
    opts.account_of = account_of;
    opts.account_ctx = s;
    return opts;
}

static void store_open(subject *s)
{
    const quire_file_store_opts opts = opts_of(s);

    s->store = kit_open(&opts);
}

/* Make a store in a directory in memory, with some durable texts in files that are open for
 * reading. */
static subject *subject_make(void)
{
    subject *s = calloc(1, sizeof *s);

    assert_non_null(s);
    assert_true(n_kept < STORES);
    kept[n_kept++] = s;
    s->memory = mem_disk_new();
    fault_disk_init(&s->faults, mem_disk_ops(s->memory));
    store_open(s);
    for (uint32_t i = 0; i < DURABLE; i++) {
        assert_int_equal(kit_put(s->store, 1, i), QUIRE_STORE_OK);
        assert_int_equal(kit_get(s->store, 1, i), QUIRE_STORE_OK);
    }
    return s;
}

static void back_take(void *ctx, quire_transfer *t)
{
    subject *s = ctx;

    s->n_away--;
    s->n_back[t->result]++;
    quire_transfer_free(t);
}

static void put_new(subject *s, uint32_t text)
{
    quire_transfer *t = kit_put_new(2, text);

    s->n_away++;
    s->store->ops->put(s->store, &t, 1);
    while (s->store->ops->poll(s->store, &t, 1) == 1) {
        back_take(s, t);
    }
}

/* Close within the bound. */
static void close_in_time(subject *s)
{
    const uint64_t from_ns = quire_clock_ns();

    s->store->ops->close(s->store, back_take, s);
    assert_true(quire_clock_ns() - from_ns < (uint64_t)BOUND_MS * 1000000u);
}

static fault_plan stuck_at(uint32_t calls, unsigned last)
{
    return (fault_plan){ .calls = calls, .first = 1, .last = last, .is_stuck = true };
}

/* Let the stuck thread go on, until it closes a file: by then it has counted a record. The owner of
 * the store is gone, and is not asked for the record's account. */
static void go_on(subject *s)
{
    atomic_store(&s->is_over, true);
    fault_disk_set(&s->faults, stuck_at(FAULT_BIT(FAULT_CLOSE), 1));
    fault_disk_wait_stuck(&s->faults, 1);
    assert_false(atomic_load(&s->is_asked));
}

/* The writer hangs in one of its calls. Reads go on; puts wait, until there are queue_bytes of
 * them; close gives back all transfers but those of the stuck call. */
static void test_stuck_writer(void **state)
{
    static const fault_call calls[] = { FAULT_OPEN,     FAULT_PWRITE,   FAULT_DATASYNC,
                                        FAULT_IS_AT,    FAULT_UNLINK,   FAULT_RESERVE,
                                        FAULT_TRUNCATE, FAULT_SYNC_DIR, FAULT_CLOSE };

    (void)state;
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        subject *s = subject_make();

        fault_disk_set(&s->faults, stuck_at(FAULT_BIT(calls[c]), 1));
        for (uint32_t i = 0; i < PUTS; i++) {
            put_new(s, i);
        }
        fault_disk_wait_stuck(&s->faults, 1);
        assert_int_equal(kit_query(s->store, 1, DURABLE - 1), QUIRE_STORE_OK);
        for (uint32_t i = PUTS; s->n_back[QUIRE_STORE_FULL] == 0; i++) {
            put_new(s, i);
        }
        close_in_time(s);
        assert_true(s->n_away <= 1);
        assert_non_null(strstr(s->line, "did not answer within 50 ms"));
        fault_disk_set(&s->faults, (fault_plan){ 0 });
    }
}

/* A writer that goes on after close. */
static void test_stuck_writer_goes_on(void **state)
{
    subject *s = subject_make();

    (void)state;
    fault_disk_set(&s->faults, stuck_at(FAULT_BIT(FAULT_PWRITE), 1));
    put_new(s, 0); /* the first text of its tenant */
    fault_disk_wait_stuck(&s->faults, 1);
    close_in_time(s);
    go_on(s);
}

static void test_stuck_reader(void **state)
{
    static const fault_call calls[] = { FAULT_OPEN, FAULT_PREAD };

    (void)state;
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        subject *s = subject_make();

        /* A new store has no file open yet. */
        kit_close(s->store);
        store_open(s);
        fault_disk_set(&s->faults, stuck_at(FAULT_BIT(calls[c]), 1));
        s->stuck = kit_get_new(1, 0);
        s->n_away++;
        s->store->ops->get(s->store, &s->stuck, 1);
        fault_disk_wait_stuck(&s->faults, 1);
        /* The other thread reads on, and the writer writes. */
        assert_int_equal(kit_get(s->store, 1, 1), QUIRE_STORE_OK);
        assert_int_equal(kit_put(s->store, 3, 1), QUIRE_STORE_OK);
        close_in_time(s);
        assert_int_equal(s->n_away, 1);
        assert_non_null(strstr(s->line, "did not answer within 50 ms"));
        fault_disk_set(&s->faults, (fault_plan){ 0 });
    }
}

/* ---- io_uring: a read that the kernel does not end, from a pipe that nobody writes to ---- */

static int pipe_ends[2];
static atomic_bool is_pipe_opened;

static int pipe_open(void *ctx, const char *path, int flags, mode_t mode)
{
    if (strstr(path, "segment-") == NULL || (flags & O_ACCMODE) != O_RDONLY) {
        return quire_file_ops_default()->open(ctx, path, flags, mode);
    }
    atomic_store(&is_pipe_opened, true);
    return dup(pipe_ends[0]);
}

static void test_stuck_uring(void **state)
{
    static quire_file_ops ops;
    static subject s;
    quire_file_store_opts opts;
    char dir[256];

    (void)state;
    kit_dir_make(dir);
    assert_int_equal(pipe(pipe_ends), 0);
    ops = *quire_file_ops_default();
    opts = kit_opts(dir, QUIRE_READS_AUTO);
    opts.close_ms = CLOSE_MS;
    opts.ops = &ops;
    opts.log = log_take;
    opts.log_ctx = &s;
    s.store = kit_open(&opts);
    assert_int_equal(kit_put(s.store, 1, 0), QUIRE_STORE_OK);
    if (strcmp(quire_file_store_reads_name(s.store), "io_uring") != 0) {
        (void)printf("no io_uring here\n");
        kit_close(s.store);
        kit_dir_remove(dir);
        skip();
    }
    ops.open = pipe_open;
    s.stuck = kit_get_new(1, 0);
    s.n_away = 1;
    s.store->ops->get(s.store, &s.stuck, 1);
    while (!atomic_load(&is_pipe_opened)) {
        test_doze();
    }
    close_in_time(&s);
    assert_int_equal(s.n_away, 1);
    assert_non_null(strstr(s.line, "did not answer within 50 ms"));
    (void)close(pipe_ends[1]);
    kit_dir_remove(dir);
}

/* ---- a directory that does not open ---- */

static void test_stuck_open(void **state)
{
    static const fault_call calls[] = { FAULT_MAKE_DIR, FAULT_OPEN, FAULT_LOCK,
                                        FAULT_LIST,     FAULT_SIZE, FAULT_PREAD };

    (void)state;
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        subject *s = subject_make();
        quire_file_store_opts opts = opts_of(s);
        quire_error err = QUIRE_ERROR_INIT;
        quire_store *store;

        kit_close(s->store);
        opts.open_ms = CLOSE_MS;
        fault_disk_set(&s->faults, stuck_at(FAULT_BIT(calls[c]), 1));
        assert_int_equal(quire_file_store_create(&store, &opts, &err), QUIRE_IO);
        assert_null(store);
        assert_string_equal(err.message, "cannot open /disk: the disk did not answer within 50 ms");
        if (calls[c] == FAULT_PREAD) {
            go_on(s);
        }
    }
}

/* ---- slow ---- */

static void test_slow(void **state)
{
    subject *s = subject_make();

    (void)state;
    fault_disk_set(
        &s->faults,
        (fault_plan){ .calls = FAULT_ALL, .first = 1, .last = UINT32_MAX, .delay_ms = 100 });
    assert_int_equal(kit_get(s->store, 1, 0), QUIRE_STORE_OK);
    assert_int_equal(kit_put(s->store, 1, DURABLE), QUIRE_STORE_OK);
    assert_int_equal(kit_get(s->store, 1, DURABLE), QUIRE_STORE_OK);
    for (uint32_t i = 0; i < PUTS; i++) {
        put_new(s, i);
    }
    close_in_time(s);
    assert_true(s->n_away <= 1);
    /* Puts for which the time was too short. */
    assert_true(s->n_back[QUIRE_STORE_CLOSED] > 0);
    fault_disk_set(&s->faults, (fault_plan){ 0 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stuck_writer), cmocka_unit_test(test_stuck_writer_goes_on),
        cmocka_unit_test(test_stuck_reader), cmocka_unit_test(test_stuck_uring),
        cmocka_unit_test(test_stuck_open),   cmocka_unit_test(test_slow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
