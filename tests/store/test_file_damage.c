/* test_file_damage.c - files that are cut, changed, exchanged or not ours: a get ends with the
 * right bytes or not OK. kit_get() compares every byte.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"

#include "seed.h"

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
static void filled_make(char dir[256], quire_file_store_opts *opts)
{
    quire_store *store;

    kit_dir_make(dir);
    *opts = kit_opts(dir, QUIRE_READS_POOL);
    opts->segment_bytes = (uint64_t)1 << 20;
    store = kit_open(opts);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
    }
    kit_close(store);
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
    char dir[256], path[512];
    quire_file_store_opts opts;
    unsigned char *bytes;
    size_t n;

    (void)state;
    filled_make(dir, &opts);
    path_of(dir, 1, path);
    n = file_load(path, &bytes);
    for (size_t cut = 0; cut <= KIT_RECORD; cut += 512) {
        const size_t end = 4096 + (size_t)N_TEXTS * KIT_RECORD - cut;
        const uint32_t n_whole = cut == 0 ? N_TEXTS : N_TEXTS - 1;

        assert_true(end < n);
        file_save(path, bytes, end);
        assert_int_equal(found_count(&opts, N_TEXTS), n_whole);
        assert_int_equal(found_count(&opts, N_TEXTS), n_whole);
    }
    free(bytes);
    kit_dir_remove(dir);
}

/* A hole before a record without a footer does not hide what stands behind it. */
static void test_hole(void **state)
{
    char dir[256], path[512];
    quire_file_store_opts opts;
    unsigned char *bytes;

    (void)state;
    filled_make(dir, &opts);
    path_of(dir, 1, path);
    (void)file_load(path, &bytes);
    memset(bytes + 4096 + 5 * KIT_RECORD, 0, KIT_RECORD);
    file_save(path, bytes, 4096 + (size_t)N_TEXTS * KIT_RECORD);
    assert_int_equal(found_count(&opts, N_TEXTS), N_TEXTS - 1);
    free(bytes);
    kit_dir_remove(dir);
}

/* Each bit of the first block of a record, of a header, and of a trailer. */
static void test_fields(void **state)
{
    char dir[256], path[512];
    quire_file_store_opts opts;
    unsigned char *bytes;
    size_t n;

    (void)state;
    filled_make(dir, &opts);
    path_of(dir, 1, path);
    n = file_load(path, &bytes);
    for (uint32_t at = 0; at < 3 * 120; at++) {
        const size_t place = at < 120 ? at : at < 240 ? 4096 + at - 120 : n - 4096 + at - 240;
        unsigned char *copy;

        bytes[place] ^= (unsigned char)(1u << (at % 8));
        file_save(path, bytes, n);
        assert_true(found_count(&opts, N_TEXTS) >= N_TEXTS - 1);
        bytes[place] ^= (unsigned char)(1u << (at % 8));
        /* The scan may have cut the file and written another footer; this is the old one again. */
        assert_true(file_load(path, &copy) > 0);
        free(copy);
    }
    free(bytes);
    kit_dir_remove(dir);
}

/* Random bits anywhere, a store that runs while they flip, and starts in between. */
static void test_flips(void **state)
{
    char dir[256], path[512];
    quire_file_store_opts opts;
    quire_rng rng = test_rng(17);
    unsigned char *bytes;
    size_t n;

    (void)state;
    filled_make(dir, &opts);
    path_of(dir, 1, path);
    n = file_load(path, &bytes);
    for (int round = 0; round < 60; round++) {
        quire_store *store;
        unsigned char *copy = malloc(n);

        assert_non_null(copy);
        memcpy(copy, bytes, n);
        file_save(path, bytes, n);
        store = kit_open(&opts);
        for (int flip = 0; flip < 50; flip++) {
            copy[quire_rng_below(&rng, (uint32_t)n)] ^=
                (unsigned char)(1u << quire_rng_below(&rng, 8));
        }
        file_save(path, copy, n);
        for (uint32_t i = 0; i < N_TEXTS; i++) {
            (void)kit_get(store, 1, i);
        }
        kit_close(store);
        file_save(path, copy, n);
        (void)found_count(&opts, N_TEXTS);
        free(copy);
    }
    free(bytes);
    kit_dir_remove(dir);
}

/* Records in each other's places, a file under another number, a file of another directory, files
 * that are no segments. */
static void test_foreign(void **state)
{
    char dir[256], other[256], path[512], path2[512];
    quire_file_store_opts opts, opts2;
    quire_store *store;
    quire_store_stats stats;
    unsigned char *bytes, record[KIT_RECORD];
    size_t n;

    (void)state;
    filled_make(dir, &opts);
    path_of(dir, 1, path);
    n = file_load(path, &bytes);
    memcpy(record, bytes + 4096, KIT_RECORD);
    memcpy(bytes + 4096, bytes + 4096 + KIT_RECORD, KIT_RECORD);
    memcpy(bytes + 4096 + KIT_RECORD, record, KIT_RECORD);
    file_save(path, bytes, n);
    store = kit_open(&opts);
    assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_TOKENS);
    assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_ABSENT);
    assert_int_equal(kit_get(store, 1, 1), QUIRE_STORE_TOKENS);
    assert_int_equal(kit_get(store, 1, 2), QUIRE_STORE_OK);
    store->ops->stats(store, &stats);
    assert_int_equal(stats.results_total[QUIRE_STORE_TOKENS], 2);
    assert_int_equal(stats.records, N_TEXTS - 2);
    kit_close(store);

    /* Under another number the footer is not believed; the records verify one by one. */
    path_of(dir, 9, path2);
    assert_int_equal(rename(path, path2), 0);
    assert_int_equal(found_count(&opts, N_TEXTS), N_TEXTS);

    kit_dir_make(other);
    opts2 = kit_opts(other, QUIRE_READS_POOL);
    store = kit_open(&opts2);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(kit_put(store, 2, i), QUIRE_STORE_OK);
    }
    kit_close(store);
    path_of(other, 1, path);
    path_of(dir, 10, path2);
    assert_int_equal(rename(path, path2), 0);
    path_of(dir, 11, path2);
    file_save(path2, (const unsigned char *)"no segment", 10);
    path_of(dir, 12, path2);
    file_save(path2, bytes, 0);
    assert_true(found_count(&opts, N_TEXTS) <= N_TEXTS);
    free(bytes);
    kit_dir_remove(other);
    kit_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torn_tail), cmocka_unit_test(test_hole),
        cmocka_unit_test(test_fields),    cmocka_unit_test(test_flips),
        cmocka_unit_test(test_foreign),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
