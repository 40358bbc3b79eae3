/* test_gguf_scan.c - damaged containers, byte by byte: quire_gguf_open() refuses each with a
 * message that names the fault, and gguf.h accepts every file that passed.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "gguf_edit.h"
#include "model/gguf_file.h"
#include "model/gguf_scan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A header written byte by byte. */
typedef struct bytes {
    unsigned char data[4096];
    size_t n;
} bytes;

static void put(bytes *b, const void *data, size_t n)
{
    assert_true(b->n + n <= sizeof(b->data));
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_u32(bytes *b, uint32_t value)
{
    put(b, &value, sizeof(value));
}

static void put_u64(bytes *b, uint64_t value)
{
    put(b, &value, sizeof(value));
}

static void put_string(bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static void put_head(bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    b->n = 0;
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}

static void put_key_u32(bytes *b, const char *key, uint32_t value)
{
    put_string(b, key);
    put_u32(b, GGUF_TYPE_UINT32);
    put_u32(b, value);
}

typedef struct tensor_spec {
    const char *name;
    uint32_t n_dims;
    uint64_t dims[5];
    uint32_t type;
    uint64_t offset;
} tensor_spec;

static void put_tensor(bytes *b, const tensor_spec *t)
{
    put_string(b, t->name);
    put_u32(b, t->n_dims);
    put(b, t->dims, (t->n_dims < 5 ? t->n_dims : 5) * sizeof(t->dims[0]));
    put_u32(b, t->type);
    put_u64(b, t->offset);
}

static void put_padding(bytes *b, size_t alignment, size_t data_bytes)
{
    static const char zeros[64];

    while (b->n % alignment != 0) {
        put(b, zeros, 1);
    }
    put(b, zeros, data_bytes);
}

static void save(const void *data, size_t n)
{
    FILE *file = fopen(gguf_edit_path(), "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* The file at gguf_edit_path() must be refused with status and a one-line message that begins with
 * its path and holds needle. */
static void expect_refused(int status, const char *needle)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_gguf *file = (quire_gguf *)(void *)&err;
    int rc = quire_gguf_open(&file, gguf_edit_path(), &err);

    if (rc != status || strstr(err.message, needle) == NULL ||
        strncmp(err.message, gguf_edit_path(), strlen(gguf_edit_path())) != 0 ||
        strchr(err.message, '\n') != NULL) {
        fail_msg("status %d, message '%s'; expected %d and '%s'", rc, err.message, status, needle);
    }
    assert_null(file);
    assert_int_equal(err.status, status);
}

static void expect_bytes_refused(const bytes *b, int status, const char *needle)
{
    save(b->data, b->n);
    expect_refused(status, needle);
}

/* The baseline that the other tests damage. */
static void put_minimal(bytes *b)
{
    static const tensor_spec t = { "a", 1, { 4 }, GGML_TYPE_F32, 0 };

    put_head(b, 3, 1, 1);
    put_key_u32(b, "k", 7);
    put_tensor(b, &t);
    put_padding(b, 32, 16);
}

static void minimal_file_opens(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_gguf *file = NULL;
    bytes b;

    (void)state;
    put_minimal(&b);
    save(b.data, b.n);
    assert_int_equal(quire_gguf_open(&file, gguf_edit_path(), &err), QUIRE_OK);
    assert_string_equal(quire_gguf_path(file), gguf_edit_path());
    assert_int_equal(quire_gguf_file_bytes(file), b.n);
    assert_int_equal(quire_gguf_tensor_place(file, "a").offset, b.n - 16);
    assert_int_equal(gguf_get_val_u32(quire_gguf_context(file), 0), 7);
    assert_non_null(ggml_get_tensor(quire_gguf_meta(file), "a"));
    quire_gguf_close(file);
    quire_gguf_close(NULL);
}

static void files_that_are_none(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_gguf *file = NULL;

    (void)state;
    (void)unlink(gguf_edit_path());
    expect_refused(QUIRE_IO, "cannot open");
    assert_int_equal(quire_gguf_open(&file, "/", &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(mkfifo(gguf_edit_path(), 0600), 0);
    expect_refused(QUIRE_IO, "not a regular file");
    assert_int_equal(unlink(gguf_edit_path()), 0);
    save("", 0);
    expect_refused(QUIRE_CORRUPT, "not a GGUF model");
    save("\x7f\x45LF and more", 12);
    expect_refused(QUIRE_CORRUPT, "starts with '?ELF'");
    /* NULL errors are allowed everywhere. */
    assert_int_equal(quire_gguf_open(&file, gguf_edit_path(), NULL), QUIRE_CORRUPT);
}

static void damaged_head(void **state)
{
    static const struct {
        uint32_t version;
        uint64_t n_tensors;
        uint64_t n_keys;
        int status;
        const char *needle;
    } cases[] = {
        { 0, 1, 1, QUIRE_UNSUPP, "GGUF version 0" },
        { 1, 1, 1, QUIRE_UNSUPP, "GGUF version 1" },
        { 4, 1, 1, QUIRE_UNSUPP, "GGUF version 4" },
        { 0x03000000, 1, 1, QUIRE_UNSUPP, "other byte order" },
        { 3, 0, 1, QUIRE_CORRUPT, "0 tensors; expected 1..16384 (a vocabulary" },
        { 3, 1, 0, QUIRE_CORRUPT, "0 keys" },
        { 3, 16385, 1, QUIRE_CORRUPT, "16385 tensors" },
        { 3, UINT64_MAX, 1, QUIRE_CORRUPT, "18446744073709551615 tensors" },
        { 3, 1, 4097, QUIRE_CORRUPT, "4097 keys" },
        { 3, 1, 1ull << 63, QUIRE_CORRUPT, "9223372036854775808 keys" },
        { 3, 1, 1, QUIRE_CORRUPT,
          "truncated or damaged: key 0 needs 8 bytes at byte 24 but the "
          "file has 24 bytes; download it again" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bytes b;

        put_head(&b, cases[i].version, cases[i].n_tensors, cases[i].n_keys);
        expect_bytes_refused(&b, cases[i].status, cases[i].needle);
    }
}

static void damaged_keys(void **state)
{
    char long_name[QUIRE_GGUF_KEY_BYTES_MAX + 2];
    bytes b;

    (void)state;
    put_head(&b, 3, 1, 1);
    put_string(&b, "");
    put_padding(&b, 32, 64);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "name of key 0 has 0 bytes");

    memset(long_name, 'x', sizeof(long_name));
    long_name[sizeof(long_name) - 1] = '\0';
    put_head(&b, 3, 1, 1);
    put_string(&b, long_name);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "has 1025 bytes; expected 1..1024");

    put_head(&b, 3, 1, 1);
    put_u64(&b, UINT64_MAX);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "needs 18446744073709551615 bytes");

    put_head(&b, 3, 1, 1);
    put_u64(&b, 3);
    put(&b, "a\0b", 3);
    put_padding(&b, 32, 64);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "key 'a?b' holds a zero byte");

    put_head(&b, 3, 1, 2);
    put_key_u32(&b, "same\n", 1);
    put_key_u32(&b, "same\n", 1);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "key 'same?' appears twice");
}

static void put_value(bytes *b, uint32_t type)
{
    put_head(b, 3, 1, 1);
    put_string(b, "k");
    put_u32(b, type);
}

static void damaged_values(void **state)
{
    bytes b;

    (void)state;
    put_value(&b, GGUF_TYPE_COUNT);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "key 'k' has value type 13, which GGUF does not have");
    put_value(&b, UINT32_MAX);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "value type 4294967295");
    put_value(&b, GGUF_TYPE_FLOAT64);
    put_u32(&b, 0);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "key 'k' needs 8 bytes");
    put_value(&b, GGUF_TYPE_STRING);
    put_u64(&b, 1ull << 62);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "key 'k' needs 4611686018427387904 bytes");

    put_value(&b, GGUF_TYPE_ARRAY);
    put_u32(&b, GGUF_TYPE_ARRAY);
    put_u64(&b, 1);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "value type 9");
    /* Counts whose product with the element size wraps. */
    put_value(&b, GGUF_TYPE_ARRAY);
    put_u32(&b, GGUF_TYPE_UINT64);
    put_u64(&b, 1ull << 61);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "key 'k' needs");
    put_value(&b, GGUF_TYPE_ARRAY);
    put_u32(&b, GGUF_TYPE_STRING);
    put_u64(&b, 1ull << 61);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "key 'k' needs");
    put_value(&b, GGUF_TYPE_ARRAY);
    put_u32(&b, GGUF_TYPE_STRING);
    put_u64(&b, 2);
    put_string(&b, "fits");
    put_u64(&b, 5);
    put(&b, "four", 4);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "needs 5 bytes");
}

/* Lengths that the file has room for, and that no model needs: the files are sparse. */
static void values_too_large(void **state)
{
    bytes b;

    (void)state;
    put_value(&b, GGUF_TYPE_STRING);
    put_u64(&b, QUIRE_GGUF_HEADER_BYTES_MAX);
    save(b.data, b.n);
    assert_int_equal(truncate(gguf_edit_path(), 2 * (off_t)QUIRE_GGUF_HEADER_BYTES_MAX), 0);
    expect_refused(QUIRE_CORRUPT, "key 'k' goes beyond 256 MiB of header");
    put_value(&b, GGUF_TYPE_ARRAY);
    put_u32(&b, GGUF_TYPE_STRING);
    put_u64(&b, QUIRE_GGUF_STRINGS_MAX + 1);
    save(b.data, b.n);
    assert_int_equal(truncate(gguf_edit_path(), (off_t)QUIRE_GGUF_HEADER_BYTES_MAX), 0);
    expect_refused(QUIRE_CORRUPT, "key 'k' brings the number of strings to 4194305");
}

static void damaged_alignment(void **state)
{
    static const uint32_t bad[] = { 0, 1, 4, 33, 48, 1u << 17, UINT32_MAX };
    bytes b;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_head(&b, 3, 1, 1);
        put_key_u32(&b, "general.alignment", bad[i]);
        expect_bytes_refused(&b, QUIRE_CORRUPT, "general.alignment is ");
    }
    put_head(&b, 3, 1, 1);
    put_string(&b, "general.alignment");
    put_u32(&b, GGUF_TYPE_UINT64);
    put_u64(&b, 32);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "value type 10");
}

static void damaged_tensors(void **state)
{
    static const struct {
        tensor_spec t;
        int status;
        const char *needle;
    } cases[] = {
        { { "a", 0, { 0 }, 0, 0 }, QUIRE_CORRUPT, "tensor 'a' has 0 dimensions; expected 1..4" },
        { { "a", 5, { 1, 1, 1, 1, 1 }, 0, 0 }, QUIRE_CORRUPT, "5 dimensions" },
        { { "a", UINT32_MAX, { 1, 1, 1, 1, 1 }, 0, 0 }, QUIRE_CORRUPT, "4294967295 dimensions" },
        { { "a", 1, { 0 }, 0, 0 }, QUIRE_CORRUPT, "impossible shape 0 x 1 x 1 x 1" },
        { { "a", 1, { 1ull << 63 }, 0, 0 }, QUIRE_CORRUPT, "impossible shape" },
        /* ggml's own product wraps to 0 here and its overflow check is skipped. */
        { { "a", 2, { 1ull << 32, 1ull << 32 }, 0, 0 }, QUIRE_CORRUPT, "impossible shape" },
        { { "a", 4, { 1u << 16, 1u << 16, 1u << 16, 1u << 16 }, 0, 0 }, QUIRE_CORRUPT, "shape" },
        { { "a", 1, { 4 }, GGML_TYPE_COUNT, 0 }, QUIRE_UNSUPP, "has type 4" },
        { { "a", 1, { 4 }, 4, 0 }, QUIRE_UNSUPP, "has type 4, which this ggml does not know" },
        { { "a", 1, { 4 }, UINT32_MAX, 0 }, QUIRE_UNSUPP, "has type 4294967295" },
        { { "a", 1, { 33 }, GGML_TYPE_Q8_0, 0 }, QUIRE_CORRUPT, "a multiple of 32 for type q8_0" },
        { { "a", 1, { 4 }, 0, 32 }, QUIRE_CORRUPT, "starts at data byte 32; expected 0" },
        { { "a", 1, { 1ull << 58 }, 0, 0 }, QUIRE_CORRUPT, "truncated: tensor a ends at byte" },
        { { "a", 1, { 4096 }, 0, 0 },
          QUIRE_CORRUPT,
          "truncated: tensor a ends at byte 16480 but the file has 160 bytes (16480 expected)" },
        { { "0123456789012345678901234567890123456789012345678901234567890123", 1, { 4 }, 0, 0 },
          QUIRE_CORRUPT,
          "name of tensor 0 has 64 bytes; expected 1..63" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bytes b;

        put_head(&b, 3, 1, 1);
        put_key_u32(&b, "k", 1);
        put_tensor(&b, &cases[i].t);
        put_padding(&b, 32, 64);
        expect_bytes_refused(&b, cases[i].status, cases[i].needle);
    }
}

static void tensors_that_overlap_or_leave_gaps(void **state)
{
    static const uint64_t bad[] = { 0, 16, 64, UINT64_MAX };
    tensor_spec t = { "a", 1, { 4 }, GGML_TYPE_F32, 0 };
    bytes b;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_head(&b, 3, 2, 1);
        put_key_u32(&b, "k", 1);
        t.name = "a";
        t.offset = 0;
        put_tensor(&b, &t);
        t.name = "b";
        t.offset = bad[i];
        put_tensor(&b, &t);
        put_padding(&b, 32, 64);
        expect_bytes_refused(&b, QUIRE_CORRUPT, "tensor 'b' starts at data byte");
    }
    put_head(&b, 3, 2, 1);
    put_key_u32(&b, "k", 1);
    t.offset = 0;
    put_tensor(&b, &t);
    put_tensor(&b, &t);
    expect_bytes_refused(&b, QUIRE_CORRUPT, "tensor 'b' appears twice");
}

/* A sum of sizes that would wrap is stopped before ggml adds them. */
static void tensor_sizes_do_not_wrap(void **state)
{
    uint64_t bytes_each = (1ull << 58) * 4;
    bytes b;

    (void)state;
    put_head(&b, 3, 16, 1);
    put_key_u32(&b, "k", 1);
    for (uint32_t i = 0; i < 16; i++) {
        char name[2] = { (char)('a' + i), '\0' };
        tensor_spec t = { name, 1, { 1ull << 58 }, GGML_TYPE_F32, bytes_each * i };

        put_tensor(&b, &t);
    }
    expect_bytes_refused(&b, QUIRE_CORRUPT, "ends beyond 2^63");
}

/* Shorten the file from `longest` bytes down to `shortest`, every `step` bytes. */
static void expect_truncated(uint64_t longest, uint64_t shortest, uint64_t step, const char *needle)
{
    for (uint64_t n = longest; n >= shortest; n -= step) {
        assert_int_equal(truncate(gguf_edit_path(), (off_t)n), 0);
        expect_refused(QUIRE_CORRUPT, needle);
    }
}

/* Lengths that a download can stop at. */
static void truncation_is_named(void **state)
{
    gguf_gen_opts opts = gguf_edit_small("tiny-llama");
    quire_error err = QUIRE_ERROR_INIT;
    quire_gguf *file = NULL;
    uint64_t header;
    uint64_t whole;

    (void)state;
    assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_OK);
    assert_int_equal(quire_gguf_open(&file, gguf_edit_path(), &err), QUIRE_OK);
    header = gguf_get_data_offset(quire_gguf_context(file));
    whole = quire_gguf_tensor_place(file, "output.weight").offset + 268 * 16 * sizeof(float);
    quire_gguf_close(file);
    expect_truncated(whole - 1, whole - 3, 1, "truncated: tensor output.weight ends at byte");
    expect_truncated(whole - 4, header, 977, "truncated: tensor");
    expect_truncated(header - 1, 600, 17, "truncated or damaged:");
    expect_truncated(600, 4, 1, "truncated or damaged:");
}

static void printable_keeps_one_line(void **state)
{
    char buffer[8];

    (void)state;
    assert_string_equal(quire_gguf_printable(buffer, sizeof(buffer), "a\n\x80~", 4), "a??~");
    assert_string_equal(quire_gguf_printable(buffer, sizeof(buffer), "0123456789", 10), "0123456");
    assert_string_equal(quire_gguf_printable(buffer, sizeof(buffer), "", 0), "");
}

static int remove_file(void **state)
{
    (void)state;
    (void)unlink(gguf_edit_path());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(minimal_file_opens),
        cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(damaged_head),
        cmocka_unit_test(damaged_keys),
        cmocka_unit_test(damaged_values),
        cmocka_unit_test(values_too_large),
        cmocka_unit_test(damaged_alignment),
        cmocka_unit_test(damaged_tensors),
        cmocka_unit_test(tensors_that_overlap_or_leave_gaps),
        cmocka_unit_test(tensor_sizes_do_not_wrap),
        cmocka_unit_test(truncation_is_named),
        cmocka_unit_test(printable_keeps_one_line),
    };

    return cmocka_run_group_tests(tests, NULL, remove_file);
}
