/* test_file_places.c - directories that vanish, move, are read-only or full; a process without
 * descriptors. The store is degraded, with a message that names the reason, and comes back.
 *
 * SPDX-License-Identifier: MIT */
#include "doze.h"
#include "file_kit.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

static quire_file_store_opts opts_of(const char *dir, void **state)
{
    quire_file_store_opts opts = kit_opts(dir, *(const quire_reads_kind *)*state);

    opts.retry_ms = 1;
    return opts;
}

static void state_wait(quire_store *store, quire_store_state wanted)
{
    quire_store_stats stats;

    /* A store that stays as it is is ended by the test's timeout. */
    for (store->ops->stats(store, &stats); stats.state != wanted;
         store->ops->stats(store, &stats)) {
        test_doze_ms();
    }
}

static void trouble_check(const quire_store *store, const char *reason)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    assert_int_equal(stats.state, QUIRE_STORE_DEGRADED);
    if (strstr(stats.trouble, reason) == NULL) {
        fail_msg("no '%s' in '%s'", reason, stats.trouble);
    }
}

/* ---- a directory that goes away ---- */

/* Records written after the directory was removed do not count as durable. */
static void test_vanished(void **state)
{
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;

    kit_dir_make(dir);
    opts = opts_of(dir, state);
    opts.retry_ms = 60000;
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 0), QUIRE_STORE_OK);
    kit_dir_remove(dir);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_IO);
    trouble_check(store, "stat of segment-0000000000000001.quire failed: No such file");
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_ABSENT);
    kit_close(store);
}

static void test_vanished_and_back(void **state)
{
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;

    kit_dir_make(dir);
    opts = opts_of(dir, state);
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 0), QUIRE_STORE_OK);
    kit_dir_remove(dir);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_IO);
    state_wait(store, QUIRE_STORE_READY);
    assert_int_equal(kit_put(store, 1, 2), QUIRE_STORE_OK);
    assert_int_equal(kit_get(store, 1, 2), QUIRE_STORE_OK);
    /* Its file is gone. */
    assert_int_not_equal(kit_get(store, 1, 0), QUIRE_STORE_OK);
    kit_close(store);
    store = kit_open(&opts);
    assert_int_equal(kit_get(store, 1, 2), QUIRE_STORE_OK);
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_ABSENT);
    kit_close(store);
    kit_dir_remove(dir);
}

/* Another process stands where the directory was: nothing is written there until it ends. */
static void test_taken(void **state)
{
    char dir[256], away[300];
    quire_file_store_opts opts;
    quire_store *store, *other;

    kit_dir_make(dir);
    (void)snprintf(away, sizeof away, "%s-away", dir);
    opts = opts_of(dir, state);
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 0), QUIRE_STORE_OK);
    assert_int_equal(rename(dir, away), 0);
    other = kit_open(&opts); /* a lock belongs to a file, so one process will do */
    assert_int_equal(kit_put(other, 2, 0), QUIRE_STORE_OK);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_IO);
    do {
        quire_store_stats stats;

        test_doze();
        store->ops->stats(store, &stats);
        assert_int_equal(stats.state, QUIRE_STORE_DEGRADED);
        if (strstr(stats.trouble, "another process has the directory") != NULL) {
            break;
        }
    } while (true);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_CLOSED);
    kit_close(other);
    state_wait(store, QUIRE_STORE_READY);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    kit_close(store);
    kit_dir_remove(away);
    kit_dir_remove(dir);
}

#define SEVERAL 12u /* texts: several segments of 64 KiB */

static void several_put(quire_store *store, uint32_t tenant)
{
    for (uint32_t i = 0; i < SEVERAL; i++) {
        assert_int_equal(kit_put(store, tenant, i), QUIRE_STORE_OK);
    }
}

/* The directory of another store, which has ended, stands where the directory was: the store goes
 * on there, with numbers that are free, and the other's segments stay. */
static void test_replaced(void **state)
{
    char dir[256], away[300];
    quire_file_store_opts opts;
    quire_store *store, *other;

    kit_dir_make(dir);
    (void)snprintf(away, sizeof away, "%s-away", dir);
    opts = opts_of(dir, state);
    opts.segment_bytes = (uint64_t)64 << 10;
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 0), QUIRE_STORE_OK);
    assert_int_equal(rename(dir, away), 0);
    other = kit_open(&opts);
    several_put(other, 2);
    kit_close(other);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_IO);
    state_wait(store, QUIRE_STORE_READY);
    several_put(store, 3);
    kit_close(store);
    store = kit_open(&opts);
    for (uint32_t i = 0; i < SEVERAL; i++) {
        assert_int_equal(kit_get(store, 2, i), QUIRE_STORE_OK);
        assert_int_equal(kit_get(store, 3, i), QUIRE_STORE_OK);
    }
    kit_close(store);
    kit_dir_remove(away);
    kit_dir_remove(dir);
}

/* ---- full, read-only: a file system of a child's own ---- */

#define FULL_BYTES "size=1m"
#define SKIPPED    77

/* Until the file system has no free block: a write may end early for other reasons. */
static void file_fill(const char *path)
{
    static const char zeros[4096];
    const int fd = open(path, O_WRONLY | O_CREAT, 0600);
    struct statvfs info;

    assert_true(fd >= 0);
    do {
        while (write(fd, zeros, sizeof zeros) > 0) {
        }
        assert_int_equal(fstatvfs(fd, &info), 0);
    } while (info.f_bavail > 0);
    (void)close(fd);
}

static void full_and_readonly(const char *dir, void **state)
{
    char inside[300], filler[300];
    quire_file_store_opts opts;
    quire_store *store;

    (void)snprintf(inside, sizeof inside, "%s/cache", dir);
    (void)snprintf(filler, sizeof filler, "%s/filler", dir);
    opts = opts_of(inside, state);
    opts.segment_bytes = (uint64_t)64 << 10;
    opts.capacity_bytes = 8 * opts.segment_bytes;
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 0), QUIRE_STORE_OK);
    file_fill(filler);
    for (uint32_t i = 1; kit_put(store, 1, i) == QUIRE_STORE_OK; i++) {
        assert_true(i < 40);
    }
    trouble_check(store, "No space left on device");
    assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_OK);
    assert_int_equal(unlink(filler), 0);
    state_wait(store, QUIRE_STORE_READY);
    assert_int_equal(kit_put(store, 1, 50), QUIRE_STORE_OK);
    kit_close(store);

    /* An open file for writing forbids the change, so it comes between two stores. */
    assert_int_equal(mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    {
        quire_error err = QUIRE_ERROR_INIT;

        assert_int_equal(quire_file_store_create(&store, &opts, &err), QUIRE_IO);
        assert_non_null(strstr(err.message, "Read-only file system"));
        assert_non_null(strstr(err.message, inside));
    }
    opts.is_readonly = true;
    store = kit_open(&opts);
    assert_int_equal(kit_get(store, 1, 50), QUIRE_STORE_OK);
    assert_int_equal(kit_put(store, 1, 51), QUIRE_STORE_CLOSED);
    kit_close(store);
}

static bool mount_own(const char *dir)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", dir, "tmpfs", 0, FULL_BYTES) == 0;
}

/* Run a test in a child process with mounts and limits of its own. */
static void in_child(void (*run)(const char *dir, void **state), void **state)
{
    char dir[256];
    int status;
    pid_t child;

    kit_dir_make(dir);
    child = fork();
    if (child == 0) {
        run(dir, state);
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    kit_dir_remove(dir);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
        (void)printf("mounting needs privileges that this process lacks\n");
        skip();
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void full_run(const char *dir, void **state)
{
    if (!mount_own(dir)) {
        _exit(SKIPPED);
    }
    full_and_readonly(dir, state);
}

static void test_full_and_readonly(void **state)
{
    in_child(full_run, state);
}

/* ---- limits of the process ---- */

static void limit_set(int what, rlim_t value, struct rlimit *before)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(what, before), 0);
    limit = *before;
    limit.rlim_cur = value;
    assert_int_equal(setrlimit(what, &limit), 0);
}

/* The lowest descriptor that is free. */
static rlim_t fd_free(void)
{
    const int fd = dup(0);

    assert_true(fd >= 0);
    (void)close(fd);
    return (rlim_t)fd;
}

static void descriptors_run(const char *dir, void **state)
{
    quire_file_store_opts opts = opts_of(dir, state);
    struct rlimit before;
    quire_store *store;
    uint32_t i = 1;

    opts.segment_bytes = (uint64_t)64 << 10;
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 0), QUIRE_STORE_OK);
    limit_set(RLIMIT_NOFILE, fd_free(), &before);
    /* No descriptor to read, and none for the next segment. */
    assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_IO);
    while (kit_put(store, 1, i) == QUIRE_STORE_OK) {
        assert_true(++i < 40);
    }
    trouble_check(store, "Too many open files");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    state_wait(store, QUIRE_STORE_READY);
    assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_OK);
    assert_int_equal(kit_put(store, 1, 50), QUIRE_STORE_OK);
    kit_close(store);
    /* The lowest descriptors stay in use: the store cannot even be opened. */
    limit_set(RLIMIT_NOFILE, fd_free(), &before);
    {
        quire_error err = QUIRE_ERROR_INIT;

        assert_int_equal(quire_file_store_create(&store, &opts, &err), QUIRE_IO);
        assert_non_null(strstr(err.message, "Too many open files"));
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void test_descriptors(void **state)
{
    in_child(descriptors_run, state);
}

/* A limit of the length of files: the program ignores the signal, so that writing fails. */
static void file_size_run(const char *dir, void **state)
{
    quire_file_store_opts opts = opts_of(dir, state);
    struct rlimit before;
    quire_store_stats stats;
    quire_store *store;
    uint32_t i = 1;

    (void)signal(SIGXFSZ, SIG_IGN);
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 0), QUIRE_STORE_OK);
    limit_set(RLIMIT_FSIZE, 65536, &before);
    do { /* a new file takes some records more, so the store comes back for a while */
        while (kit_put(store, 1, i) == QUIRE_STORE_OK) {
            assert_true(++i < 4000);
        }
        store->ops->stats(store, &stats);
    } while (stats.state == QUIRE_STORE_READY);
    assert_non_null(strstr(stats.trouble, "File too large"));
    assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    state_wait(store, QUIRE_STORE_READY);
    assert_int_equal(kit_put(store, 1, 50), QUIRE_STORE_OK);
    kit_close(store);
}

static void test_file_size(void **state)
{
    in_child(file_size_run, state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vanished),
        cmocka_unit_test(test_vanished_and_back),
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_full_and_readonly),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_file_size),
    };

    return kit_run(tests, sizeof tests / sizeof tests[0]);
}
