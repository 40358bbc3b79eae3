/* test_file_damage.c - files that are cut, changed, exchanged or not ours: a get ends with the
 * right bytes or not OK, and no whole record is lost. kit_get() compares every byte. Random damage:
 * test_file_flips.c.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_TEXTS 30u

static void path_of(const char *dir, uint32_t number, char *out)
{
    (void)snprintf(out, 512, "%s/segment-%016x.quire", dir, number);
}

/* A whole file. Returns its length, 0 if there is none. */
static size_t file_load(const char *path, unsigned char **out)
{
    struct stat st;
    const int fd = open(path, O_RDONLY);

    *out = NULL;
    if (fd < 0) {
        return 0;
    }
    assert_int_equal(fstat(fd, &st), 0);
    *out = malloc((size_t)st.st_size + 1);
    assert_non_null(*out);
    assert_int_equal(read(fd, *out, (size_t)st.st_size), st.st_size);
    (void)close(fd);
    return (size_t)st.st_size;
}

static void file_save(const char *path, const unsigned char *bytes, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    (void)close(fd);
}

/* A directory with one segment of N_TEXTS records, closed with a footer. */
typedef struct filled {
    char dir[256];
    quire_file_store_opts opts;
    char path[512]; /* of the segment */
    unsigned char *bytes;
    size_t n; /* of them */
} filled;

static int filled_make(void **state)
{
    filled *f = calloc(1, sizeof *f);
    quire_store *store;

    assert_non_null(f);
    kit_dir_make(f->dir);
    f->opts = kit_opts(f->dir, QUIRE_READS_POOL);
    f->opts.segment_bytes = (uint64_t)1 << 20;
    store = kit_open(&f->opts);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
    }
    kit_close(store);
    path_of(f->dir, 1, f->path);
    f->n = file_load(f->path, &f->bytes);
    *state = f;
    return 0;
}

static int filled_free(void **state)
{
    filled *f = *state;

    kit_dir_remove(f->dir);
    free(f->bytes);
    free(f);
    return 0;
}

static uint32_t found_count(const quire_file_store_opts *opts, uint32_t n)
{
    quire_store *store = kit_open(opts);
    uint32_t n_found = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_found += kit_get(store, 1, i) == QUIRE_STORE_OK;
    }
    kit_close(store);
    return n_found;
}

/* Cut at every 512 bytes of the last record: the others are there; and again after another start,
 * which finds the footer that the first one wrote. */
static void test_torn_tail(void **state)
{
    const filled *f = *state;

    for (size_t cut = 0; cut <= KIT_RECORD; cut += 512) {
        const size_t end = 4096 + (size_t)N_TEXTS * KIT_RECORD - cut;
        const uint32_t n_whole = cut == 0 ? N_TEXTS : N_TEXTS - 1;

        assert_true(end < f->n);
        file_save(f->path, f->bytes, end);
        assert_int_equal(found_count(&f->opts, N_TEXTS), n_whole);
        assert_int_equal(found_count(&f->opts, N_TEXTS), n_whole);
    }
}

/* A hole before a record without a footer does not hide the records behind it. */
static void test_hole(void **state)
{
    const filled *f = *state;

    memset(f->bytes + 4096 + 5 * KIT_RECORD, 0, KIT_RECORD);
    file_save(f->path, f->bytes, 4096 + (size_t)N_TEXTS * KIT_RECORD);
    assert_int_equal(found_count(&f->opts, N_TEXTS), N_TEXTS - 1);
}

/* Each bit of the first block of a record, of a header and of a trailer is flipped: no other record
 * is lost.
 */
static void test_fields(void **state)
{
    const filled *f = *state;

    for (uint32_t at = 0; at < 3 * 120; at++) {
        const size_t place = at < 120 ? at : at < 240 ? 4096 + at - 120 : f->n - 4096 + at - 240;

        f->bytes[place] ^= (unsigned char)(1u << (at % 8));
        file_save(f->path, f->bytes, f->n);
        assert_true(found_count(&f->opts, N_TEXTS) >= N_TEXTS - 1);
        f->bytes[place] ^= (unsigned char)(1u << (at % 8));
    }
}

/* Records in each other's places: both are misses, and leave the index. */
static void test_swapped(void **state)
{
    const filled *f = *state;
    unsigned char record[KIT_RECORD], *first = f->bytes + 4096;
    quire_store *store;
    quire_store_stats stats;

    memcpy(record, first, KIT_RECORD);
    memcpy(first, first + KIT_RECORD, KIT_RECORD);
    memcpy(first + KIT_RECORD, record, KIT_RECORD);
    file_save(f->path, f->bytes, f->n);
    store = kit_open(&f->opts);
    assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_TOKENS);
    assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_ABSENT);
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_TOKENS);
    assert_int_equal(kit_get(store, 1, 2), QUIRE_STORE_OK);
    store->ops->stats(store, &stats);
    assert_int_equal(stats.results_total[QUIRE_STORE_TOKENS], 2);
    assert_int_equal(stats.records, N_TEXTS - 2);
    kit_close(store);
}

/* A file under another number, a file of another directory, files that are no segments. */
static void test_foreign(void **state)
{
    const filled *f = *state;
    char other[256], path[512], path2[512];
    quire_file_store_opts opts;
    quire_store *store;

    /* Under another number the footer is not believed; the records verify one by one. */
    path_of(f->dir, 9, path);
    assert_int_equal(rename(f->path, path), 0);
    assert_int_equal(found_count(&f->opts, N_TEXTS), N_TEXTS);

    kit_dir_make(other);
    opts = kit_opts(other, QUIRE_READS_POOL);
    store = kit_open(&opts);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(kit_put(store, 2, i), QUIRE_STORE_OK);
    }
    kit_close(store);
    path_of(other, 1, path);
    path_of(f->dir, 10, path2);
    assert_int_equal(rename(path, path2), 0);
    path_of(f->dir, 11, path2);
    file_save(path2, (const unsigned char *)"no segment", 10);
    path_of(f->dir, 12, path2);
    file_save(path2, f->bytes, 0);
    assert_int_equal(found_count(&f->opts, N_TEXTS), N_TEXTS);
    kit_dir_remove(other);
}

/* The oldest segment has gone, and comes back, as after a power failure: its records are not found,
 * also by a process that only reads. */
static void test_leftover(void **state)
{
    const filled *f = *state;
    quire_file_store_opts opts = f->opts;
    quire_store *store = kit_open(&opts);
    struct stat st;

    for (uint32_t i = 0; stat(f->path, &st) == 0; i++) {
        assert_int_equal(kit_put(store, 2, i), QUIRE_STORE_OK);
    }
    for (uint32_t i = 0; i < N_TEXTS; i++) { /* another segment, which tells */
        assert_int_equal(kit_put(store, 3, i), QUIRE_STORE_OK);
    }
    kit_close(store);
    file_save(f->path, f->bytes, f->n);
    opts.is_readonly = true;
    assert_int_equal(found_count(&opts, N_TEXTS), 0);
    assert_int_equal(stat(f->path, &st), 0);
    opts.is_readonly = false;
    assert_int_equal(found_count(&opts, N_TEXTS), 0);
    assert_int_not_equal(stat(f->path, &st), 0);
}

#define FILLED_TEST(test) cmocka_unit_test_setup_teardown(test, filled_make, filled_free)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FILLED_TEST(test_torn_tail), FILLED_TEST(test_hole),    FILLED_TEST(test_fields),
        FILLED_TEST(test_swapped),   FILLED_TEST(test_foreign), FILLED_TEST(test_leftover),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
