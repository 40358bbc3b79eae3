/* gguf_file.c - opening a GGUF file: scan, parse, compare with the file's length; then the other
 * parts of a model in parts.
 *
 * gguf.h opens the path a second time, so the scan and the parse see the same bytes only while
 * nobody writes to the file. That is the same trust that mapping the weights needs.
 *
 * SPDX-License-Identifier: MIT */
#include "model/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "model/gguf_keys.h"
#include "model/gguf_scan.h"

#define NAME_END_BYTES sizeof("-00001-of-00001.gguf")

typedef struct gguf_part {
    char *path;
    uint64_t file_bytes;
    struct gguf_context *gguf;
    struct ggml_context *meta;
} gguf_part;

struct quire_gguf {
    gguf_part *parts;
    uint32_t n_parts;            /* that are open */
    struct ggml_context *merged; /* the tensors of all parts; NULL: one part */
};

/* Open path as a regular file and scan its header; a pipe or a device would block or never end. */
static int file_scan(const char *path, uint64_t *file_bytes, quire_error *err)
{
    struct stat st;
    int rc = QUIRE_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = quire_error_set_errno(err, errno, "%s: cannot open",
                                   path[0] != '\0' ? path : "the model's name is empty");
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = quire_error_set(err, QUIRE_IO, "%s: not a regular file; expected a GGUF model", path);
        goto out;
    }
    *file_bytes = (uint64_t)st.st_size;
    rc = quire_gguf_scan(fd, *file_bytes, path, err);
out:
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

/* Check that every tensor lies inside the file. The tensors are in file order, so the end of the
 * last one is the least length of the file. */
static int extent_check(const gguf_part *file, quire_error *err)
{
    uint64_t data = gguf_get_data_offset(file->gguf);
    int64_t n = gguf_get_n_tensors(file->gguf);
    uint64_t whole =
        data + gguf_get_tensor_offset(file->gguf, n - 1) + gguf_get_tensor_size(file->gguf, n - 1);

    for (int64_t i = 0; i < n && whole > file->file_bytes; i++) {
        uint64_t end =
            data + gguf_get_tensor_offset(file->gguf, i) + gguf_get_tensor_size(file->gguf, i);

        if (end > file->file_bytes) {
            char name[GGML_MAX_NAME];
            const char *raw = gguf_get_tensor_name(file->gguf, i);

            return quire_error_set(
                err, QUIRE_CORRUPT,
                "%s: truncated: tensor %s ends at byte %" PRIu64 " but the file has %" PRIu64
                " bytes (%" PRIu64 " expected); download it again",
                file->path, quire_gguf_printable(name, sizeof(name), raw, strlen(raw)), end,
                file->file_bytes, whole);
        }
    }
    return QUIRE_OK;
}

/* Open one file. On failure the part holds all that was opened before: part_close(). */
static int part_open(gguf_part *part, const char *path, quire_error *err)
{
    struct gguf_init_params params = { .no_alloc = true, .ctx = &part->meta };

    QUIRE_TRY(file_scan(path, &part->file_bytes, err));
    part->path = strdup(path);
    if (part->path == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", path);
    }
    part->gguf = gguf_init_from_file(path, params);
    if (part->gguf == NULL || part->meta == NULL) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s: ggml's reader refuses the file", path);
    }
    return extent_check(part, err);
}

static void part_close(gguf_part *part)
{
    ggml_free(part->meta);
    gguf_free(part->gguf);
    free(part->path);
}

/* ---- models in parts ---- */

/* Keys that number the parts. libllama reads each as this one type; of another it aborts. */
typedef struct split_key {
    const char *name;
    enum gguf_type type;
    bool is_required;
    uint32_t initial; /* where it is absent */
} split_key;

/* The value of a key of one part. */
static int split_get(const gguf_part *part, split_key key, uint32_t *out, quire_error *err)
{
    const quire_gguf one = { .parts = (gguf_part *)(uintptr_t)part, .n_parts = 1 };
    const int64_t index = gguf_find_key(part->gguf, key.name);

    if (index >= 0 && gguf_get_kv_type(part->gguf, index) != key.type) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is of type %s; expected %s (damaged file?)", part->path,
                               key.name, gguf_type_name(gguf_get_kv_type(part->gguf, index)),
                               gguf_type_name(key.type));
    }
    *out = key.initial;
    return quire_gguf_get_u32(&one, key.name, (quire_gguf_range){ 0, UINT16_MAX, key.is_required },
                              out, err);
}

/* The end of a part's name. */
static void name_end(char *out, uint32_t part, uint32_t n_parts)
{
    (void)snprintf(out, NAME_END_BYTES, "-%05u-of-%05u.gguf", (part + 1) % 100000u,
                   n_parts % 100000u);
}

/* Check the place of the first part, whose name the user gave. */
static int first_check(const gguf_part *first, uint32_t n_parts, quire_error *err)
{
    const size_t n = strlen(first->path);
    char end[NAME_END_BYTES];
    uint32_t number;

    QUIRE_TRY(split_get(first, (split_key){ "split.no", GGUF_TYPE_UINT16, true, 0 }, &number, err));
    name_end(end, 0, n_parts);
    if (n_parts > QUIRE_GGUF_PARTS_MAX) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: split.count is %u; supported: up to %u",
                               first->path, n_parts, QUIRE_GGUF_PARTS_MAX);
    }
    if (number != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: part %u of %u of a model; name the first part, which ends in "
                               "%s",
                               first->path, number + 1, n_parts, end);
    }
    if (n < strlen(end) || strcmp(first->path + n - strlen(end), end) != 0) {
        return quire_error_set(
            err, QUIRE_UNSUPP,
            "%s: the first of %u parts of a model (split.count); the name must end "
            "in %s, so that the others can be found beside it",
            first->path, n_parts, end);
    }
    return QUIRE_OK;
}

static int numbers_check(const gguf_part *part, uint32_t i, uint32_t n_parts, quire_error *err)
{
    uint32_t number, count;

    QUIRE_TRY(split_get(part, (split_key){ "split.no", GGUF_TYPE_UINT16, true, 0 }, &number, err));
    QUIRE_TRY(
        split_get(part, (split_key){ "split.count", GGUF_TYPE_UINT16, false, 1 }, &count, err));
    if (number != i || count != n_parts) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: split.no is %u and split.count %u; expected %u and %u (a part "
                               "of another model?)",
                               part->path, number, count, i, n_parts);
    }
    return QUIRE_OK;
}

/* All tensors in one context, so that nobody else needs to know about parts. */
static int merge(quire_gguf *file, quire_error *err)
{
    struct ggml_init_params params = { .no_alloc = true };
    uint32_t expected;

    for (uint32_t i = 0; i < file->n_parts; i++) {
        params.mem_size += (size_t)gguf_get_n_tensors(file->parts[i].gguf) * ggml_tensor_overhead();
    }
    QUIRE_TRY(split_get(&file->parts[0],
                        (split_key){ "split.tensors.count", GGUF_TYPE_INT32, true, 0 }, &expected,
                        err));
    if (expected != params.mem_size / ggml_tensor_overhead()) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: split.tensors.count is %u; the parts have %zu tensors (a part "
                               "of another model?)",
                               file->parts[0].path, expected,
                               params.mem_size / ggml_tensor_overhead());
    }
    file->merged = ggml_init(params);
    if (file->merged == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", file->parts[0].path);
    }
    for (uint32_t i = 0; i < file->n_parts; i++) {
        struct ggml_context *meta = file->parts[i].meta;

        for (struct ggml_tensor *t = ggml_get_first_tensor(meta); t != NULL;
             t = ggml_get_next_tensor(meta, t)) {
            if (ggml_get_tensor(file->merged, t->name) != NULL) {
                char name[GGML_MAX_NAME];

                return quire_error_set(
                    err, QUIRE_CORRUPT,
                    "%s: tensor %s is in an earlier part as well (damaged file?)",
                    file->parts[i].path,
                    quire_gguf_printable(name, sizeof(name), t->name, strlen(t->name)));
            }
            ggml_set_name(ggml_dup_tensor(file->merged, t), t->name);
        }
    }
    return QUIRE_OK;
}

/* Check that the parts so far have no more tensors than one file may have: they are looked for one
 * by one. */
static int tensors_check(const quire_gguf *file, quire_error *err)
{
    int64_t n = 0;

    for (uint32_t i = 0; i < file->n_parts; i++) {
        n += gguf_get_n_tensors(file->parts[i].gguf);
    }
    return n <= QUIRE_GGUF_TENSORS_MAX
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_CORRUPT,
                                 "%s: the parts up to this one hold %" PRId64
                                 " tensors; expected at most %u (damaged file?)",
                                 file->parts[file->n_parts - 1].path, n, QUIRE_GGUF_TENSORS_MAX);
}

/* Open the parts after the first. */
static int parts_open(quire_gguf *file, quire_error *err)
{
    char end[NAME_END_BYTES];
    uint32_t n_parts;
    gguf_part *parts;
    char *path;
    int rc = QUIRE_OK;

    QUIRE_TRY(split_get(&file->parts[0], (split_key){ "split.count", GGUF_TYPE_UINT16, false, 1 },
                        &n_parts, err));
    if (n_parts <= 1) {
        return QUIRE_OK;
    }
    QUIRE_TRY(first_check(&file->parts[0], n_parts, err));
    path = strdup(file->parts[0].path);
    parts = realloc(file->parts, n_parts * sizeof(*parts));
    file->parts = parts != NULL ? parts : file->parts;
    if (parts == NULL || path == NULL) {
        free(path);
        return quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", file->parts[0].path);
    }
    for (uint32_t i = 1; i < n_parts && rc == QUIRE_OK; i++) {
        parts[i] = (gguf_part){ 0 };
        file->n_parts = i + 1;
        name_end(end, i, n_parts);
        memcpy(path + strlen(path) - strlen(end), end, strlen(end));
        rc = part_open(&parts[i], path, err);
        rc = rc == QUIRE_OK ? numbers_check(&parts[i], i, n_parts, err) : rc;
        rc = rc == QUIRE_OK ? tensors_check(file, err) : rc;
    }
    free(path);
    return rc == QUIRE_OK ? merge(file, err) : rc;
}

int quire_gguf_open(quire_gguf **out, const char *path, quire_error *err)
{
    quire_gguf *file = calloc(1, sizeof(*file));
    int rc;

    *out = NULL;
    if (file == NULL || (file->parts = calloc(1, sizeof(*file->parts))) == NULL) {
        free(file);
        return quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", path);
    }
    file->n_parts = 1;
    rc = part_open(&file->parts[0], path, err);
    if (rc == QUIRE_OK) {
        rc = parts_open(file, err);
    }
    if (rc == QUIRE_OK) {
        *out = file;
    } else {
        quire_gguf_close(file);
    }
    return rc;
}

void quire_gguf_close(quire_gguf *file)
{
    if (file == NULL) {
        return;
    }
    ggml_free(file->merged);
    for (uint32_t i = 0; i < file->n_parts; i++) {
        part_close(&file->parts[i]);
    }
    free(file->parts);
    free(file);
}

struct gguf_context *quire_gguf_context(const quire_gguf *file)
{
    return file->parts[0].gguf;
}

struct ggml_context *quire_gguf_meta(const quire_gguf *file)
{
    return file->merged != NULL ? file->merged : file->parts[0].meta;
}

const char *quire_gguf_path(const quire_gguf *file)
{
    return file->parts[0].path;
}

uint32_t quire_gguf_n_parts(const quire_gguf *file)
{
    return file->n_parts;
}

const char *quire_gguf_part_path(const quire_gguf *file, uint32_t part)
{
    QUIRE_CHECK(part < file->n_parts);
    return file->parts[part].path;
}

uint64_t quire_gguf_part_bytes(const quire_gguf *file, uint32_t part)
{
    QUIRE_CHECK(part < file->n_parts);
    return file->parts[part].file_bytes;
}

/* Files are shorter than INT64_MAX, and there are few of them. */
uint64_t quire_gguf_file_bytes(const quire_gguf *file)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < file->n_parts; i++) {
        sum += file->parts[i].file_bytes;
    }
    return sum;
}

quire_gguf_place quire_gguf_tensor_place(const quire_gguf *file, const char *name)
{
    int64_t index = -1;
    uint32_t part = 0;

    while (part < file->n_parts && (index = gguf_find_tensor(file->parts[part].gguf, name)) < 0) {
        part++;
    }
    QUIRE_CHECK(index >= 0);
    return (quire_gguf_place){
        .part = part,
        .offset = gguf_get_data_offset(file->parts[part].gguf) +
                  gguf_get_tensor_offset(file->parts[part].gguf, index),
    };
}
