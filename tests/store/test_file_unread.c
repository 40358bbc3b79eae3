/* test_file_unread.c - segments that cannot be read at the start: they cost their own records, and
 * no dropped record comes back because its marker cannot be read.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"
#include "mem_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define TEXTS   12u /* of a tenant: several segments */
#define SEGMENT ((uint64_t)64 << 10)

typedef enum failing {
    FAILING_OPEN,
    FAILING_SIZE,
    FAILING_PREAD,
    FAILING_CALLS
} failing;

/* A disk on which one call on one segment fails. */
typedef struct subject {
    mem_disk *disk;
    quire_file_ops ops;
    quire_file_store_opts opts;
    failing call;
    uint32_t number; /* of the segment; 0 = none */
    int fd;          /* open for reading it; -1 = none */
    char line[512];  /* all that was logged */
} subject;

static subject s;

static int one_open(void *ctx, const char *path, int flags, mode_t mode)
{
    char name[64];
    bool is_it;
    int fd;

    (void)snprintf(name, sizeof name, "segment-%016x.quire", s.number);
    is_it = s.number != 0 && strstr(path, name) != NULL && (flags & O_ACCMODE) == O_RDONLY;
    if (is_it && s.call == FAILING_OPEN) {
        return -EACCES;
    }
    fd = mem_disk_ops(s.disk)->open(ctx, path, flags, mode);
    s.fd = is_it ? fd : s.fd;
    return fd;
}

static int one_close(void *ctx, int fd)
{
    s.fd = fd == s.fd ? -1 : s.fd;
    return mem_disk_ops(s.disk)->close(ctx, fd);
}

static int one_size(void *ctx, int fd, uint64_t *n_bytes)
{
    return fd == s.fd && s.call == FAILING_SIZE ? -EIO
                                                : mem_disk_ops(s.disk)->size(ctx, fd, n_bytes);
}

static ssize_t one_pread(void *ctx, int fd, void *buffer, size_t n_bytes, uint64_t offset)
{
    return fd == s.fd && s.call == FAILING_PREAD
               ? -EIO
               : mem_disk_ops(s.disk)->pread(ctx, fd, buffer, n_bytes, offset);
}

static void log_take(void *ctx, const char *line)
{
    const size_t n = strlen(s.line);

    (void)ctx;
    (void)snprintf(s.line + n, sizeof s.line - n, "%s\n", line);
}

static int subject_make(void **state)
{
    (void)state;
    s = (subject){ .disk = mem_disk_new(), .fd = -1 };
    s.ops = *mem_disk_ops(s.disk);
    s.ops.open = one_open;
    s.ops.close = one_close;
    s.ops.size = one_size;
    s.ops.pread = one_pread;
    s.opts = kit_opts("/disk", QUIRE_READS_POOL);
    s.opts.ops = &s.ops;
    s.opts.segment_bytes = SEGMENT;
    s.opts.capacity_bytes = 100 * SEGMENT;
    s.opts.reads_max = 1;
    s.opts.log = log_take;
    return 0;
}

static int subject_free(void **state)
{
    (void)state;
    mem_disk_free(s.disk);
    return 0;
}

/* Open the store while segment `number` cannot be read. */
static quire_store *open_without(uint32_t number, failing call)
{
    s.number = number;
    s.call = call;
    s.line[0] = '\0';
    return kit_open(&s.opts);
}

static void close_whole(quire_store *store)
{
    kit_close(store);
    s.number = 0;
}

static void tenant_put(quire_store *store, uint32_t tenant)
{
    for (uint32_t i = 0; i < TEXTS; i++) {
        assert_int_equal(kit_put(store, tenant, i), QUIRE_STORE_OK);
    }
}

/* Texts of a tenant that are found. */
static uint32_t tenant_count(quire_store *store, uint32_t tenant)
{
    quire_store_result results[TEXTS];
    uint32_t n = 0;

    kit_get_all(store, tenant, TEXTS, results);
    for (uint32_t i = 0; i < TEXTS; i++) {
        n += results[i] == QUIRE_STORE_OK;
    }
    return n;
}

static uint32_t segments(void)
{
    return mem_disk_files(s.disk) - 1; /* the lock */
}

/* A log without drops: the other segments' records are found, except those before the last segment,
 * of which no later one tells. Nothing is changed: a start that can read all finds all. */
static void test_no_drops(void **state)
{
    quire_store *store = kit_open(&s.opts);
    uint32_t n;

    (void)state;
    tenant_put(store, 1);
    kit_close(store);
    n = segments();
    assert_true(n >= 3);
    for (uint32_t number = 1; number <= n; number++) {
        for (uint32_t call = 0; call < FAILING_CALLS; call++) {
            uint32_t n_found;

            store = open_without(number, (failing)call);
            n_found = tenant_count(store, 1);
            assert_non_null(strstr(s.line, call == FAILING_OPEN ? "cannot be opened: Permission"
                                                                : "cannot be read: Input/output"));
            assert_int_equal(strstr(s.line, "these are not used") != NULL, number == n);
            assert_true(number == n ? n_found == 0 : n_found >= TEXTS - SEGMENT / KIT_RECORD);
            assert_true(n_found < TEXTS);
            close_whole(store);
            store = kit_open(&s.opts);
            assert_int_equal(tenant_count(store, 1), TEXTS);
            kit_close(store);
        }
    }
    assert_int_equal(segments(), n);
}

/* The texts of tenant 1 are stored and dropped, and those of tenant 2 follow. Returns the number of
 * segments. */
static uint32_t dropped_and_other(void)
{
    quire_store *store = kit_open(&s.opts);

    tenant_put(store, 1);
    kit_drop(store, QUIRE_STORE_DROP_SALT, 1, 0);
    tenant_put(store, 2);
    kit_close(store);
    return segments();
}

/* A tenant is dropped. Whichever segment cannot be read, also at several starts between which
 * others write: its records are not found. */
static void test_drops(void **state)
{
    const uint32_t n = dropped_and_other();
    quire_store *store;

    (void)state;
    for (uint32_t number = 1; number <= n; number++) {
        for (uint32_t call = 0; call < FAILING_CALLS; call++) {
            store = open_without(number, (failing)call);
            assert_int_equal(tenant_count(store, 1), 0);
            assert_int_equal(kit_put(store, 3, number * FAILING_CALLS + call), QUIRE_STORE_OK);
            close_whole(store);
            store = open_without(number, (failing)call);
            assert_int_equal(tenant_count(store, 1), 0);
            assert_int_equal(kit_get(store, 3, number * FAILING_CALLS + call), QUIRE_STORE_OK);
            close_whole(store);
        }
    }
    store = kit_open(&s.opts);
    assert_int_equal(tenant_count(store, 1), 0);
    assert_int_equal(tenant_count(store, 2), TEXTS);
    kit_close(store);
}

/* The head behind a segment that cannot be read is damaged, and the segment gets a footer: it does
 * not say that there are no markers before it. */
static void test_drops_and_damage(void **state)
{
    const uint32_t n = dropped_and_other();
    quire_store *store;

    (void)state;
    for (uint32_t number = 1; number < n; number++) {
        const char *name;
        size_t n_bytes;
        unsigned char *bytes = mem_disk_file(s.disk, number + 1, &name, &n_bytes);

        bytes[0] ^= 1;
        bytes[n_bytes - 4096] ^= 1;
        for (uint32_t start = 0; start < 2; start++) {
            store = open_without(number, FAILING_PREAD);
            assert_int_equal(tenant_count(store, 1), 0);
            close_whole(store);
        }
    }
}

#define SUBJECT_TEST(test) cmocka_unit_test_setup_teardown(test, subject_make, subject_free)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUBJECT_TEST(test_no_drops),
        SUBJECT_TEST(test_drops),
        SUBJECT_TEST(test_drops_and_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
