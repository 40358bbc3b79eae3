/* gguf_scan.c - a bounds-checked walk over a GGUF header.
 *
 *   "GGUF" u32 version, u64 n_tensors, u64 n_keys
 *   n_keys    x  string key, u32 type, value          string = u64 length, bytes
 *   n_tensors x  string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset
 *   padding to the alignment, data
 *
 * Source: the GGUF specification (ggml repository, docs/gguf.md).
 *
 * Reads through a window with pread: a mapping would raise SIGBUS when somebody truncates the file
 * meanwhile.
 *
 * SPDX-License-Identifier: MIT */
#include "model/gguf_scan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ggml.h>
#include <gguf.h>

#include "base/check.h"
#include "base/hash.h"

#define WINDOW_BYTES  65536u
#define MESSAGE_BYTES 72u /* of a name in a message */

typedef struct reader {
    int fd;
    const char *path;
    quire_error *err;
    uint64_t file_bytes;
    uint64_t pos;
    uint64_t window_pos;
    size_t window_len;
    char where[MESSAGE_BYTES + 32];  /* the field that is being read, for messages */
    char before[MESSAGE_BYTES + 32]; /* the tensor before it; "": it is the first */
    unsigned char *window;           /* WINDOW_BYTES */
    uint64_t *hashes;                /* of the names seen so far, for duplicates */
    uint64_t n_strings;              /* in arrays so far */
    uint64_t alignment;
} reader;

const char *quire_gguf_printable(char *buffer, size_t cap, const char *text, size_t text_bytes)
{
    size_t n = text_bytes < cap - 1 ? text_bytes : cap - 1;

    for (size_t i = 0; i < n; i++) {
        buffer[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
    }
    buffer[n] = '\0';
    return buffer;
}

/* Check that n more bytes exist. */
static int reader_need(const reader *r, uint64_t n)
{
    if (n > r->file_bytes - r->pos) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: truncated or damaged: %s needs %" PRIu64
                               " bytes at byte %" PRIu64 " but the file has %" PRIu64
                               " bytes; download it again",
                               r->path, r->where, n, r->pos, r->file_bytes);
    }
    if (r->pos + n > QUIRE_GGUF_HEADER_BYTES_MAX) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: %s goes beyond %u MiB of header (damaged file?)", r->path,
                               r->where, QUIRE_GGUF_HEADER_BYTES_MAX >> 20);
    }
    return QUIRE_OK;
}

static int reader_skip(reader *r, uint64_t n)
{
    QUIRE_TRY(reader_need(r, n));
    r->pos += n;
    return QUIRE_OK;
}

/* Load the window at pos. */
static int window_fill(reader *r)
{
    ssize_t n;

    do {
        n = pread(r->fd, r->window, WINDOW_BYTES, (off_t)r->pos);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return quire_error_set_errno(r->err, errno, "%s: cannot read", r->path);
    }
    if (n == 0) {
        return quire_error_set(r->err, QUIRE_IO, "%s: changed while it was read", r->path);
    }
    r->window_pos = r->pos;
    r->window_len = (size_t)n;
    return QUIRE_OK;
}

static int reader_bytes(reader *r, void *out, size_t n)
{
    unsigned char *dst = out;

    QUIRE_TRY(reader_need(r, n));
    while (n > 0) {
        size_t at;
        size_t part;

        if (r->pos < r->window_pos || r->pos >= r->window_pos + r->window_len) {
            QUIRE_TRY(window_fill(r));
        }
        at = (size_t)(r->pos - r->window_pos);
        part = r->window_len - at < n ? r->window_len - at : n;
        memcpy(dst, r->window + at, part);
        dst += part;
        n -= part;
        r->pos += part;
    }
    return QUIRE_OK;
}

static int reader_u32(reader *r, uint32_t *out)
{
    return reader_bytes(r, out, sizeof(*out));
}

static int reader_u64(reader *r, uint64_t *out)
{
    return reader_bytes(r, out, sizeof(*out));
}

/* A key or tensor name: the index-th of its kind. name holds max + 1 bytes. */
static int reader_name(reader *r, const char *kind, uint64_t index, char *name, size_t max)
{
    char text[MESSAGE_BYTES];
    uint64_t n;

    (void)snprintf(r->where, sizeof(r->where), "%s %" PRIu64, kind, index);
    QUIRE_TRY(reader_u64(r, &n));
    QUIRE_TRY(reader_need(r, n));
    if (n == 0 || n > max) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: the name of %s has %" PRIu64 " bytes; expected 1..%zu (damaged "
                               "file?)",
                               r->path, r->where, n, max);
    }
    QUIRE_TRY(reader_bytes(r, name, (size_t)n));
    name[n] = '\0';
    (void)quire_gguf_printable(text, sizeof(text), name, (size_t)n);
    (void)snprintf(r->where, sizeof(r->where), "%s '%s'", kind, text);
    if (strlen(name) != n) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: the name of %s holds a zero byte "
                               "(damaged file?)",
                               r->path, r->where);
    }
    /* Two different names with one hash would be refused as duplicates: with 16,384 names the
     * chance is 10^-11, and a file made to collide harms only itself. */
    r->hashes[index] = quire_hash_add(QUIRE_HASH_INIT, name, (size_t)n);
    for (uint64_t i = 0; i < index; i++) {
        if (r->hashes[i] == r->hashes[index]) {
            return quire_error_set(r->err, QUIRE_CORRUPT, "%s: %s appears twice (damaged file?)",
                                   r->path, r->where);
        }
    }
    return QUIRE_OK;
}

static int reader_string_skip(reader *r)
{
    uint64_t n;

    QUIRE_TRY(reader_u64(r, &n));
    return reader_skip(r, n);
}

/* Bytes of a scalar; 0 for strings, arrays and unknown types. */
static uint32_t scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[GGUF_TYPE_COUNT] = {
        [GGUF_TYPE_UINT8] = 1,   [GGUF_TYPE_INT8] = 1,    [GGUF_TYPE_UINT16] = 2,
        [GGUF_TYPE_INT16] = 2,   [GGUF_TYPE_UINT32] = 4,  [GGUF_TYPE_INT32] = 4,
        [GGUF_TYPE_FLOAT32] = 4, [GGUF_TYPE_BOOL] = 1,    [GGUF_TYPE_UINT64] = 8,
        [GGUF_TYPE_INT64] = 8,   [GGUF_TYPE_FLOAT64] = 8,
    };

    return type < GGUF_TYPE_COUNT ? bytes[type] : 0;
}

static int type_error(const reader *r, uint32_t type)
{
    return quire_error_set(r->err, QUIRE_CORRUPT,
                           "%s: %s has value type %" PRIu32 ", which GGUF does not have (damaged "
                           "file?)",
                           r->path, r->where, type);
}

static int array_scan(reader *r)
{
    uint32_t type;
    uint64_t n;

    QUIRE_TRY(reader_u32(r, &type));
    QUIRE_TRY(reader_u64(r, &n));
    if (type != GGUF_TYPE_STRING) {
        uint32_t bytes = scalar_bytes(type);

        if (bytes == 0) {
            return type_error(r, type);
        }
        return reader_skip(r, n > UINT64_MAX / 8 ? UINT64_MAX : n * bytes);
    }
    QUIRE_TRY(reader_need(r, n > UINT64_MAX / 8 ? UINT64_MAX : n * 8));
    r->n_strings += n;
    if (r->n_strings > QUIRE_GGUF_STRINGS_MAX) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: %s brings the number of strings to %" PRIu64
                               "; expected at most %u (damaged file?)",
                               r->path, r->where, r->n_strings, QUIRE_GGUF_STRINGS_MAX);
    }
    for (uint64_t i = 0; i < n; i++) {
        QUIRE_TRY(reader_string_skip(r));
    }
    return QUIRE_OK;
}

static int alignment_scan(reader *r, uint32_t type)
{
    uint32_t alignment;

    if (type != GGUF_TYPE_UINT32) {
        return type_error(r, type);
    }
    QUIRE_TRY(reader_u32(r, &alignment));
    if (alignment < QUIRE_GGUF_ALIGNMENT_MIN || alignment > QUIRE_GGUF_ALIGNMENT_MAX ||
        (alignment & (alignment - 1)) != 0) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: general.alignment is %" PRIu32 "; expected a power of two in "
                               "%u..%u (damaged file?)",
                               r->path, alignment, QUIRE_GGUF_ALIGNMENT_MIN,
                               QUIRE_GGUF_ALIGNMENT_MAX);
    }
    r->alignment = alignment;
    return QUIRE_OK;
}

static int key_scan(reader *r, uint64_t index)
{
    char name[QUIRE_GGUF_KEY_BYTES_MAX + 1];
    uint32_t type;

    QUIRE_TRY(reader_name(r, "key", index, name, QUIRE_GGUF_KEY_BYTES_MAX));
    QUIRE_TRY(reader_u32(r, &type));
    if (strcmp(name, GGUF_KEY_GENERAL_ALIGNMENT) == 0) {
        return alignment_scan(r, type);
    }
    if (type == GGUF_TYPE_ARRAY) {
        return array_scan(r);
    }
    if (type == GGUF_TYPE_STRING) {
        return reader_string_skip(r);
    }
    if (scalar_bytes(type) == 0) {
        return type_error(r, type);
    }
    return reader_skip(r, scalar_bytes(type));
}

/* Bytes of a tensor, with every step checked: ggml computes the same without checks. */
static int tensor_bytes(const reader *r, const uint64_t *dims, uint32_t type, uint64_t *out)
{
    uint64_t block;
    uint64_t n = 1;

    if (type >= GGML_TYPE_COUNT || ggml_blck_size((enum ggml_type)type) <= 0 ||
        ggml_type_size((enum ggml_type)type) == 0) {
        return quire_error_set(r->err, QUIRE_UNSUPP,
                               "%s: %s has type %" PRIu32 ", which this ggml does not know; newer "
                               "than quire, or damaged",
                               r->path, r->where, type);
    }
    block = (uint64_t)ggml_blck_size((enum ggml_type)type);
    for (uint32_t i = 0; i < GGML_MAX_DIMS; i++) {
        if (dims[i] == 0 || __builtin_mul_overflow(n, dims[i], &n) || n > INT64_MAX / 16) {
            return quire_error_set(r->err, QUIRE_CORRUPT,
                                   "%s: %s has the impossible shape %" PRIu64 " x %" PRIu64
                                   " x %" PRIu64 " x %" PRIu64 " (damaged file?)",
                                   r->path, r->where, dims[0], dims[1], dims[2], dims[3]);
        }
    }
    if (dims[0] % block != 0) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: %s has rows of %" PRIu64 " values; expected a multiple of "
                               "%" PRIu64 " for type %s (damaged file?)",
                               r->path, r->where, dims[0], block,
                               ggml_type_name((enum ggml_type)type));
    }
    /* No type takes more than 16 bytes per value, so this cannot overflow. */
    *out = n / block * ggml_type_size((enum ggml_type)type);
    return QUIRE_OK;
}

/* *data_bytes: end of the tensors before this one, relative to the data section. */
static int tensor_scan(reader *r, uint64_t index, uint64_t *data_bytes)
{
    char name[GGML_MAX_NAME];
    uint64_t dims[GGML_MAX_DIMS] = { 1, 1, 1, 1 };
    uint64_t bytes = 0;
    uint64_t offset;
    uint32_t n_dims;
    uint32_t type;

    QUIRE_TRY(reader_name(r, "tensor", index, name, sizeof(name) - 1));
    QUIRE_TRY(reader_u32(r, &n_dims));
    if (n_dims == 0 || n_dims > GGML_MAX_DIMS) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: %s has %" PRIu32 " dimensions; expected 1..%d (damaged file?)",
                               r->path, r->where, n_dims, GGML_MAX_DIMS);
    }
    QUIRE_TRY(reader_bytes(r, dims, n_dims * sizeof(dims[0])));
    QUIRE_TRY(reader_u32(r, &type));
    QUIRE_TRY(reader_u64(r, &offset));
    QUIRE_TRY(tensor_bytes(r, dims, type, &bytes));
    if (offset != *data_bytes) {
        return quire_error_set(
            r->err, QUIRE_CORRUPT,
            "%s: %s starts at data byte %" PRIu64 "; expected %" PRIu64 "%s%s (damaged file?)",
            r->path, r->where, offset, *data_bytes, index > 0 ? ", the end of " : "", r->before);
    }
    if (bytes > INT64_MAX - QUIRE_GGUF_ALIGNMENT_MAX - offset) {
        return quire_error_set(r->err, QUIRE_CORRUPT, "%s: %s ends beyond 2^63 (damaged file?)",
                               r->path, r->where);
    }
    *data_bytes = (offset + bytes + r->alignment - 1) / r->alignment * r->alignment;
    memcpy(r->before, r->where, sizeof(r->before));
    return QUIRE_OK;
}

static int count_check(const reader *r, const char *what, uint64_t n, uint64_t min, uint64_t max)
{
    if (n < min || n > max) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: holds %" PRIu64 " %s; expected %" PRIu64 "..%" PRIu64 "%s",
                               r->path, n, what, min, max,
                               n == 0 ? " (a vocabulary without a model?)" : " (damaged file?)");
    }
    return QUIRE_OK;
}

static int version_check(const reader *r, uint32_t version)
{
    if (version != 0 && (version & 0xffffu) == 0) {
        return quire_error_set(r->err, QUIRE_UNSUPP,
                               "%s: GGUF of the other byte order (version %#" PRIx32
                               "); convert it on this kind of machine",
                               r->path, version);
    }
    if (version < 2 || version > GGUF_VERSION) {
        return quire_error_set(r->err, QUIRE_UNSUPP,
                               "%s: GGUF version %" PRIu32 " is not supported (supported: 2..%d); "
                               "convert the model again with current tools",
                               r->path, version, GGUF_VERSION);
    }
    return QUIRE_OK;
}

static int header_scan(reader *r)
{
    uint64_t n_tensors;
    uint64_t n_keys;
    uint64_t data_bytes = 0;
    uint32_t version;
    char magic[4];

    (void)snprintf(r->where, sizeof(r->where), "the header");
    if (r->file_bytes < sizeof(magic)) {
        return quire_error_set(r->err, QUIRE_CORRUPT, "%s: has %" PRIu64 " bytes; not a GGUF model",
                               r->path, r->file_bytes);
    }
    QUIRE_TRY(reader_bytes(r, magic, sizeof(magic)));
    if (memcmp(magic, GGUF_MAGIC, sizeof(magic)) != 0) {
        char text[8];

        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%s: starts with '%s', not 'GGUF'; not a GGUF model", r->path,
                               quire_gguf_printable(text, sizeof(text), magic, sizeof(magic)));
    }
    QUIRE_TRY(reader_u32(r, &version));
    QUIRE_TRY(version_check(r, version));
    QUIRE_TRY(reader_u64(r, &n_tensors));
    QUIRE_TRY(reader_u64(r, &n_keys));
    QUIRE_TRY(count_check(r, "keys", n_keys, 1, QUIRE_GGUF_KEYS_MAX));
    QUIRE_TRY(count_check(r, "tensors", n_tensors, 1, QUIRE_GGUF_TENSORS_MAX));
    for (uint64_t i = 0; i < n_keys; i++) {
        QUIRE_TRY(key_scan(r, i));
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        QUIRE_TRY(tensor_scan(r, i, &data_bytes));
    }
    /* gguf.h refuses a file that ends before the padding does. */
    (void)snprintf(r->where, sizeof(r->where), "the padding after the header");
    return reader_need(r, (r->alignment - r->pos % r->alignment) % r->alignment);
}

int quire_gguf_scan(int fd, uint64_t file_bytes, const char *path, quire_error *err)
{
    reader r = { .fd = fd,
                 .path = path,
                 .err = err,
                 .file_bytes = file_bytes,
                 .alignment = GGUF_DEFAULT_ALIGNMENT };
    int rc;

    r.window = malloc(WINDOW_BYTES);
    r.hashes = malloc(QUIRE_GGUF_TENSORS_MAX * sizeof(*r.hashes));
    if (r.window == NULL || r.hashes == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", path);
    } else {
        rc = header_scan(&r);
    }
    free(r.hashes);
    free(r.window);
    return rc;
}
