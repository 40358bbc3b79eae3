/* test_state_dir.c - items of state in a directory: items written whole are read, and all others
 * are refused by name.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"

#include "store/state/state_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BODY "what is kept"

static char path[256];

static quire_state_dir *dir_open(unsigned char identity, uint64_t bytes_max,
                                 const quire_file_ops *ops)
{
    quire_state_dir_opts opts = { .path = path, .bytes_max = bytes_max, .ops = ops };
    quire_error err = QUIRE_ERROR_INIT;
    quire_state_dir *dir;

    memset(opts.identity, identity, sizeof opts.identity);
    assert_int_equal(quire_state_dir_open(&dir, &opts, &err), QUIRE_OK);
    return dir;
}

static quire_state_name name_of(const char *text)
{
    return quire_state_name_of(QUIRE_STATE_PIN, "tenant", 6, text);
}

static quire_bytes item_of(unsigned char identity, const quire_state_name *name, const char *body)
{
    quire_state_head head = { .name = *name, .time_us = 77 };
    quire_bytes item = { 0 };

    memset(head.identity, identity, sizeof head.identity);
    assert_int_equal(quire_state_begin(&item), QUIRE_OK);
    assert_int_equal(quire_bytes_add(&item, body, strlen(body)), QUIRE_OK);
    assert_int_equal(quire_state_seal(&item, &head), QUIRE_OK);
    return item;
}

static int put(quire_state_dir *dir, unsigned char identity, const char *text, const char *body)
{
    const quire_state_name name = name_of(text);
    quire_bytes item = item_of(identity, &name, body);
    const int rc = quire_state_dir_write(dir, &name, item.data, item.n);

    quire_bytes_fini(&item);
    return rc;
}

/* Read the item of a name. An item that is OK must be the written one. */
static quire_state_result get(quire_state_dir *dir, const char *text, const char *body)
{
    const quire_state_name name = name_of(text);
    quire_state_result result;
    unsigned char *item;
    uint64_t time_us;
    size_t n;

    result = quire_state_dir_read(dir, &name, &item, &n, &time_us);
    assert_int_equal(item != NULL, result == QUIRE_STATE_OK_RESULT);
    if (item != NULL) {
        assert_int_equal(n, QUIRE_STATE_HEAD_BYTES + strlen(body));
        assert_memory_equal(item + QUIRE_STATE_HEAD_BYTES, body, strlen(body));
        assert_int_equal(time_us, 77);
    }
    free(item);
    return result;
}

static void file_of(unsigned char identity, const char *text, char out[512])
{
    const quire_state_name name = name_of(text);
    unsigned char of[QUIRE_HASH128_BYTES];
    char file[QUIRE_STATE_FILE_NAME_MAX];

    memset(of, identity, sizeof of);
    quire_state_file_name(of, &name, file);
    (void)snprintf(out, 512, "%s/%s", path, file);
}

static void count_one(void *ctx, const quire_state_name *name)
{
    assert_int_equal(name->kind, QUIRE_STATE_PIN);
    ++*(uint32_t *)ctx;
}

static uint32_t count(quire_state_dir *dir)
{
    uint32_t n = 0;

    assert_int_equal(quire_state_dir_list(dir, count_one, &n), 0);
    return n;
}

static void test_items(void **state)
{
    quire_state_dir *dir;
    const quire_state_name a = name_of("a");

    (void)state;
    kit_dir_make(path);
    dir = dir_open(1, 1 << 20, NULL);
    assert_int_equal(count(dir), 0);
    assert_int_equal(get(dir, "a", BODY), QUIRE_STATE_IO_RESULT);
    assert_int_equal(put(dir, 1, "a", "older"), 0);
    assert_int_equal(put(dir, 1, "a", BODY), 0);
    assert_int_equal(put(dir, 1, "b", "another"), 0);
    assert_int_equal(quire_state_dir_sync(dir), 0);
    assert_int_equal(count(dir), 2);
    assert_int_equal(get(dir, "a", BODY), QUIRE_STATE_OK_RESULT);
    assert_int_equal(get(dir, "b", "another"), QUIRE_STATE_OK_RESULT);
    assert_int_equal(quire_state_dir_remove(dir, &a), 0);
    assert_int_equal(quire_state_dir_remove(dir, &a), 0); /* it is gone all the same */
    assert_int_equal(count(dir), 1);
    quire_state_dir_close(dir);

    dir = dir_open(2, 1 << 20, NULL); /* of another model */
    assert_int_equal(count(dir), 0);
    quire_state_dir_close(dir);
    kit_dir_remove(path);
}

/* ---- damage ---- */

static void file_write(const char *file, const void *bytes, size_t n)
{
    FILE *f = fopen(file, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A file with any byte changed, or cut to any length, is refused, and the result names the reason.
 */
static void test_damage(void **state)
{
    const quire_state_name name = name_of("a");
    quire_bytes item = item_of(1, &name, BODY);
    quire_state_dir *dir;
    char file[512];

    (void)state;
    kit_dir_make(path);
    dir = dir_open(1, 1 << 20, NULL);
    file_of(1, "a", file);
    for (size_t i = 0; i < item.n; i++) {
        const quire_state_result expected = i < 8               ? QUIRE_STATE_FOREIGN_RESULT
                                            : i < 12            ? QUIRE_STATE_VERSION_RESULT
                                            : i >= 56 && i < 64 ? QUIRE_STATE_TRUNCATED_RESULT
                                                                : QUIRE_STATE_CHECKSUM_RESULT;

        for (uint32_t bit = 0; bit < 8; bit++) {
            item.data[i] = (char)(item.data[i] ^ (1 << bit));
            file_write(file, item.data, item.n);
            item.data[i] = (char)(item.data[i] ^ (1 << bit));
            assert_int_equal(get(dir, "a", BODY), expected);
        }
    }
    for (size_t n = 0; n < item.n; n++) {
        file_write(file, item.data, n);
        assert_int_equal(get(dir, "a", BODY), QUIRE_STATE_TRUNCATED_RESULT);
    }
    assert_int_equal(quire_bytes_add(&item, "x", 1), QUIRE_OK);
    file_write(file, item.data, item.n);
    assert_int_equal(get(dir, "a", BODY), QUIRE_STATE_TRUNCATED_RESULT);
    file_write(file, item.data, item.n - 1);
    assert_int_equal(get(dir, "a", BODY), QUIRE_STATE_OK_RESULT);
    /* Whole, and under a name that is not its own. */
    file_of(1, "b", file);
    file_write(file, item.data, item.n - 1);
    assert_int_equal(get(dir, "b", BODY), QUIRE_STATE_FOREIGN_RESULT);
    quire_bytes_fini(&item);
    quire_state_dir_close(dir);
    kit_dir_remove(path);
}

/* Files that are none of these items are left alone. */
static void test_other_files(void **state)
{
    static const char *const names[] = {
        "state-",
        "state-x",
        "segment-0000000000000001.quire",
        "state-0101-pin-0101.quire",
        "state-01010101010101010101010101010101-pot-01010101010101010101010101010101.quire",
        "state-01010101010101010101010101010101-pin-0101010101010101010101010101010g.quire",
        "state-01010101010101010101010101010101-pin-01010101010101010101010101010101.quire.1",
        "state-01010101010101010101010101010101",
    };
    quire_state_dir *dir;
    char file[512];

    (void)state;
    kit_dir_make(path);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(file, sizeof file, "%s/%s", path, names[i]);
        file_write(file, "x", 1);
    }
    dir = dir_open(1, 0, NULL);
    assert_int_equal(count(dir), 0);
    quire_state_dir_close(dir);
    dir = dir_open(2, 0, NULL);
    quire_state_dir_close(dir);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(file, sizeof file, "%s/%s", path, names[i]);
        assert_int_equal(access(file, F_OK), 0);
    }
    kit_dir_remove(path);
}

/* Among the files of other identities the newest ones stay, up to the bound. */
static void test_bound(void **state)
{
    unsigned char own[1][QUIRE_HASH128_BYTES];
    quire_error err = QUIRE_ERROR_INIT;
    quire_state_dir_opts opts;
    quire_state_dir *dir;
    char file[512];

    (void)state;
    kit_dir_make(path);
    for (unsigned char i = 1; i <= 5; i++) {
        const struct timespec times[2] = { { .tv_sec = 1000 + i }, { .tv_sec = 1000 + i } };

        dir = dir_open(i, UINT64_MAX, NULL);
        assert_int_equal(put(dir, i, "a", BODY), 0);
        quire_state_dir_close(dir);
        file_of(i, "a", file);
        assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
    }
    dir = dir_open(1, 2 * QUIRE_STATE_FILE_CHARGE, NULL);
    quire_state_dir_close(dir);
    for (unsigned char i = 1; i <= 5; i++) {
        file_of(i, "a", file);
        assert_int_equal(access(file, F_OK) == 0, i == 1 || i >= 4);
    }
    memset(own, 4, sizeof own); /* a second identity of the owner's: it stays as well */
    opts = (quire_state_dir_opts){ .path = path,
                                   .own = (const unsigned char(*)[QUIRE_HASH128_BYTES])own,
                                   .n_own = 1,
                                   .bytes_max = 1 };
    memset(opts.identity, 1, sizeof opts.identity);
    assert_int_equal(quire_state_dir_open(&dir, &opts, &err), QUIRE_OK);
    quire_state_dir_close(dir);
    for (unsigned char i = 1; i <= 5; i++) {
        file_of(i, "a", file);
        assert_int_equal(access(file, F_OK) == 0, i == 1 || i == 4);
    }
    kit_dir_remove(path);
}

/* ---- a disk that fails ---- */

static uint32_t fails_at; /* the call that fails; counts down */
static bool is_due(void)
{
    return fails_at > 0 && --fails_at == 0;
}

static int faulty_open(void *ctx, const char *p, int flags, mode_t mode)
{
    return is_due() ? -ENOSPC : quire_file_ops_default()->open(ctx, p, flags, mode);
}

static ssize_t faulty_pwrite(void *ctx, int fd, const void *buffer, size_t n, uint64_t at)
{
    if (is_due()) {
        (void)quire_file_ops_default()->pwrite(ctx, fd, buffer, n / 2, at);
        return -ENOSPC;
    }
    return quire_file_ops_default()->pwrite(ctx, fd, buffer, n, at);
}

static int faulty_datasync(void *ctx, int fd)
{
    return is_due() ? -EIO : quire_file_ops_default()->datasync(ctx, fd);
}

static int faulty_rename(void *ctx, const char *from, const char *to)
{
    return is_due() ? -EIO : quire_file_ops_default()->rename(ctx, from, to);
}

/* When any call fails, the older item stays, and no part of the newer one. */
static void test_faults(void **state)
{
    quire_file_ops ops = *quire_file_ops_default();
    quire_state_dir *dir;
    char temporary[512];
    uint32_t n_failed = 0;

    (void)state;
    ops.open = faulty_open;
    ops.pwrite = faulty_pwrite;
    ops.datasync = faulty_datasync;
    ops.rename = faulty_rename;
    kit_dir_make(path);
    (void)snprintf(temporary, sizeof temporary, "%s/state.tmp", path);
    dir = dir_open(1, 1 << 20, &ops);
    assert_int_equal(put(dir, 1, "a", BODY), 0);
    for (uint32_t i = 1; i <= 5; i++) {
        fails_at = i;
        if (put(dir, 1, "a", i < 5 ? "newer" : BODY) < 0) {
            n_failed++;
        }
        fails_at = 0;
        assert_int_equal(get(dir, "a", BODY), QUIRE_STATE_OK_RESULT);
        assert_int_not_equal(access(temporary, F_OK), 0);
    }
    assert_int_equal(n_failed, 4); /* open, write, sync, rename */
    quire_state_dir_close(dir);

    /* The temporary file of a process that was killed while it wrote. */
    file_write(temporary, "half", 4);
    dir = dir_open(1, 1 << 20, NULL);
    assert_int_not_equal(access(temporary, F_OK), 0);
    quire_state_dir_close(dir);
    kit_dir_remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items),       cmocka_unit_test(test_damage),
        cmocka_unit_test(test_other_files), cmocka_unit_test(test_bound),
        cmocka_unit_test(test_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
