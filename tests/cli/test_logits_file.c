/* test_logits_file.c - files of log-probabilities: written values are read back, and no damage gets
 * past the checks.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/logits_file.h"

#include "quire/status.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_CTX      8u
#define N_VOCAB    11u
#define N_CHUNKS   2u
#define N_ROWS     (N_CHUNKS * (N_CTX - 1 - N_CTX / 2))
#define ROW_BYTES  (8u + 2u * 12u)
#define FILE_BYTES (20u + 4u * N_CHUNKS * N_CTX + N_ROWS * ROW_BYTES)

static char path[128];

static int32_t token_of(size_t i)
{
    return (int32_t)(i * 7 % N_VOCAB);
}

static void write_sample(void)
{
    quire_rng rng = { 3 };
    int32_t tokens[N_CHUNKS * N_CTX];
    quire_logits_head head = { N_CTX, N_VOCAB, N_CHUNKS, tokens, 0 };
    unsigned char row[ROW_BYTES] __attribute__((aligned(8)));
    quire_logits_file file;
    quire_error err = QUIRE_ERROR_INIT;

    for (size_t i = 0; i < N_CHUNKS * N_CTX; i++) {
        tokens[i] = token_of(i);
    }
    assert_int_equal(quire_logits_file_create(&file, path, &head, &err), QUIRE_OK);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        float logits[N_VOCAB];

        for (uint32_t i = 0; i < N_VOCAB; i++) {
            logits[i] = (float)quire_rng_normal(&rng);
        }
        quire_row_encode(logits, N_VOCAB, (void *)row);
        assert_int_equal(quire_logits_file_write(&file, (const void *)row, &err), QUIRE_OK);
    }
    assert_int_equal(quire_logits_file_finish(&file, &err), QUIRE_OK);
    quire_logits_file_close(&file);
}

static unsigned char *load(size_t *n_bytes)
{
    unsigned char *bytes = malloc(FILE_BYTES + 64);
    FILE *file = fopen(path, "rb");

    assert_non_null(bytes);
    assert_non_null(file);
    *n_bytes = fread(bytes, 1, FILE_BYTES + 64, file);
    fclose(file);
    return bytes;
}

static void save(const unsigned char *bytes, size_t n_bytes)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

/* Open and read every row; the first failure's status. */
static int read_all(quire_error *err)
{
    unsigned char row[ROW_BYTES] __attribute__((aligned(8)));
    quire_logits_file file;
    int rc;

    *err = (quire_error)QUIRE_ERROR_INIT;
    rc = quire_logits_file_open(&file, path, N_VOCAB, 0, err);
    if (rc < 0) {
        return rc;
    }
    for (uint32_t r = 0; rc == QUIRE_OK && r < file.n_chunks * quire_logits_rows(file.n_ctx, 0);
         r++) {
        rc = quire_logits_file_read(&file, (void *)row, err);
    }
    quire_logits_file_close(&file);
    return rc;
}

static void comes_back(void **state)
{
    quire_rng rng = { 3 };
    unsigned char row[ROW_BYTES] __attribute__((aligned(8)));
    unsigned char expected[ROW_BYTES] __attribute__((aligned(8)));
    quire_logits_file file;
    quire_error err = QUIRE_ERROR_INIT;
    size_t n_bytes;
    unsigned char *bytes;

    (void)state;
    write_sample();
    bytes = load(&n_bytes);
    assert_int_equal(n_bytes, FILE_BYTES);
    assert_memory_equal(bytes, "_logits_\x08\0\0\0\x0b\0\0\0\x02\0\0\0", 20);
    free(bytes);
    assert_int_equal(quire_logits_file_open(&file, path, N_VOCAB, 0, &err), QUIRE_OK);
    assert_int_equal(file.n_ctx, N_CTX);
    assert_int_equal(file.n_chunks, N_CHUNKS);
    for (size_t i = 0; i < N_CHUNKS * N_CTX; i++) {
        assert_int_equal(file.tokens[i], token_of(i));
    }
    for (uint32_t r = 0; r < N_ROWS; r++) {
        float logits[N_VOCAB];

        for (uint32_t i = 0; i < N_VOCAB; i++) {
            logits[i] = (float)quire_rng_normal(&rng);
        }
        quire_row_encode(logits, N_VOCAB, (void *)expected);
        assert_int_equal(quire_logits_file_read(&file, (void *)row, &err), QUIRE_OK);
        assert_memory_equal(row, expected, ROW_BYTES);
    }
    assert_int_equal(quire_logits_file_read(&file, (void *)row, &err), QUIRE_CORRUPT);
    assert_non_null(strstr(err.message, "ends early"));
    quire_logits_file_close(&file);
}

static void every_length_is_checked(void **state)
{
    size_t n_bytes;
    unsigned char *bytes;
    quire_error err;

    (void)state;
    write_sample();
    bytes = load(&n_bytes);
    for (size_t n = 0; n < n_bytes; n++) {
        save(bytes, n);
        assert_int_equal(read_all(&err), QUIRE_CORRUPT);
        assert_non_null(strstr(err.message, path));
    }
    bytes[n_bytes] = 0;
    save(bytes, n_bytes + 1);
    assert_int_equal(read_all(&err), QUIRE_CORRUPT);
    save(bytes, n_bytes);
    assert_int_equal(read_all(&err), QUIRE_OK);
    free(bytes);
}

static void damaged_fields(void **state)
{
    static const struct {
        size_t offset;
        uint32_t value;
        int status;
        const char *says;
    } cases[] = {
        { 0, 0x12345678, QUIRE_CORRUPT, "not a file of log-probabilities" },
        { 8, 0, QUIRE_CORRUPT, "of 0 tokens" },
        { 8, 3, QUIRE_CORRUPT, "of 3 tokens" },
        { 8, 0xffffffff, QUIRE_CORRUPT, "cannot be" },
        { 8, 10, QUIRE_CORRUPT, "its header calls for" },
        { 12, 12, QUIRE_INVAL, "vocabulary of 12 tokens, this model has 11" },
        { 16, 0, QUIRE_CORRUPT, "0 chunks" },
        { 16, 0xffffffff, QUIRE_CORRUPT, "cannot be" },
        { 16, 0x10000000, QUIRE_CORRUPT, "cannot be" },
        { 16, 3, QUIRE_CORRUPT, "its header calls for" },
        { 20, 11, QUIRE_CORRUPT, "token 0 is 11" },
        { 24, 0xffffffff, QUIRE_CORRUPT, "token 1 is -1" },
        { 84, 0x7fc00000, QUIRE_CORRUPT, "a row has scale" }, /* NaN */
        { 84, 0xbf800000, QUIRE_CORRUPT, "a row has scale" }, /* -1 */
        { 88, 0x7f800000, QUIRE_CORRUPT, "minimum inf" },
    };
    size_t n_bytes;
    unsigned char *bytes;

    (void)state;
    write_sample();
    bytes = load(&n_bytes);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned char kept[4];
        quire_error err;
        int rc;

        memcpy(kept, bytes + cases[i].offset, 4);
        memcpy(bytes + cases[i].offset, &cases[i].value, 4);
        save(bytes, n_bytes);
        memcpy(bytes + cases[i].offset, kept, 4);
        rc = read_all(&err);
        if (rc != cases[i].status || strstr(err.message, cases[i].says) == NULL) {
            fail_msg("case %zu: status %d, '%s'", i, rc, err.message);
        }
    }
    free(bytes);
}

/* Reading random bytes ends with a status. */
static void random_damage(void **state)
{
    quire_rng rng = test_rng(4);
    size_t n_bytes;
    unsigned char *bytes;

    (void)state;
    write_sample();
    bytes = load(&n_bytes);
    for (uint32_t round = 0; round < 500; round++) {
        size_t at = quire_rng_below(&rng, (uint32_t)n_bytes);
        unsigned char kept = bytes[at];
        quire_error err;
        int rc;

        bytes[at] ^= (unsigned char)(1u << quire_rng_below(&rng, 8));
        save(bytes, n_bytes);
        rc = read_all(&err);
        assert_true(rc == QUIRE_OK || rc == QUIRE_CORRUPT || rc == QUIRE_INVAL);
        bytes[at] = kept;
    }
    free(bytes);
}

static void absent_and_unfinished(void **state)
{
    int32_t tokens[N_CHUNKS * N_CTX] = { 0 };
    quire_logits_head head = { N_CTX, N_VOCAB, N_CHUNKS, tokens, 0 };
    quire_logits_file file;
    quire_error err = QUIRE_ERROR_INIT;
    char work[160];

    (void)state;
    unlink(path);
    assert_int_equal(quire_logits_file_open(&file, path, N_VOCAB, 0, &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "No such file"));
    assert_int_equal(quire_logits_file_create(&file, "/nonexistent/dir/file", &head, &err),
                     QUIRE_IO);

    /* Neither the file nor the work file stays when it is not finished. */
    assert_int_equal(quire_logits_file_create(&file, path, &head, &err), QUIRE_OK);
    (void)snprintf(work, sizeof(work), "%s.partial", path);
    assert_int_equal(access(work, F_OK), 0);
    quire_logits_file_close(&file);
    assert_int_not_equal(access(work, F_OK), 0);
    assert_int_not_equal(access(path, F_OK), 0);

    /* A full disk shows at the latest when the file is finished. */
    if (access("/dev/full", W_OK) == 0) {
        quire_error full = QUIRE_ERROR_INIT;

        assert_int_equal(symlink("/dev/full", work), 0);
        assert_int_equal(quire_logits_file_create(&file, path, &head, &full), QUIRE_OK);
        assert_int_equal(quire_logits_file_finish(&file, &full), QUIRE_IO);
        assert_non_null(strstr(full.message, "No space left"));
        quire_logits_file_close(&file);
        assert_int_not_equal(access(work, F_OK), 0);
    }
}

/* A path that is no regular file must survive: renaming over it would remove a device or a pipe. */
static void only_files_are_replaced(void **state)
{
    int32_t tokens[N_CHUNKS * N_CTX] = { 0 };
    quire_logits_head head = { N_CTX, N_VOCAB, N_CHUNKS, tokens, 0 };
    quire_logits_file file;
    quire_error err = QUIRE_ERROR_INIT;
    struct stat status;

    (void)state;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(quire_logits_file_create(&file, path, &head, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(stat(path, &status), 0);
    assert_true(S_ISFIFO(status.st_mode));
    quire_logits_file_close(&file);
    unlink(path);

    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(quire_logits_file_create(&file, path, &head, &err), QUIRE_INVAL);
    quire_logits_file_close(&file);
    assert_int_equal(rmdir(path), 0);
}

static int set_up(void **state)
{
    const char *dir = getenv("TMPDIR");

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/quire-logits-%ld", dir != NULL ? dir : "/tmp",
                   (long)getpid());
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(every_length_is_checked),
        cmocka_unit_test(damaged_fields),
        cmocka_unit_test(random_damage),
        cmocka_unit_test(absent_and_unfinished),
        cmocka_unit_test(only_files_are_replaced),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
