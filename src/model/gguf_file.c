/* gguf_file.c - opening a GGUF file: scan, parse, compare with the file's length.
 *
 * gguf.h opens the path a second time, so the scan and the parse see the same bytes only while
 * nobody writes to the file. That is the same trust that mapping the weights needs.
 *
 * SPDX-License-Identifier: MIT */
#include "model/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "model/gguf_scan.h"

struct quire_gguf {
    char *path;
    uint64_t file_bytes;
    struct gguf_context *gguf;
    struct ggml_context *meta;
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
static int extent_check(const quire_gguf *file, quire_error *err)
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

int quire_gguf_open(quire_gguf **out, const char *path, quire_error *err)
{
    struct gguf_init_params params = { .no_alloc = true };
    quire_gguf *file = NULL;
    uint64_t file_bytes = 0;
    int rc;

    *out = NULL;
    QUIRE_TRY(file_scan(path, &file_bytes, err));
    file = calloc(1, sizeof(*file));
    if (file == NULL || (file->path = strdup(path)) == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", path);
        goto out;
    }
    file->file_bytes = file_bytes;
    params.ctx = &file->meta;
    file->gguf = gguf_init_from_file(path, params);
    if (file->gguf == NULL || file->meta == NULL) {
        rc = quire_error_set(err, QUIRE_CORRUPT, "%s: ggml's reader refuses the file", path);
        goto out;
    }
    rc = extent_check(file, err);
out:
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
    ggml_free(file->meta);
    gguf_free(file->gguf);
    free(file->path);
    free(file);
}

struct gguf_context *quire_gguf_context(const quire_gguf *file)
{
    return file->gguf;
}

struct ggml_context *quire_gguf_meta(const quire_gguf *file)
{
    return file->meta;
}

const char *quire_gguf_path(const quire_gguf *file)
{
    return file->path;
}

uint64_t quire_gguf_file_bytes(const quire_gguf *file)
{
    return file->file_bytes;
}

uint64_t quire_gguf_tensor_offset(const quire_gguf *file, const char *name)
{
    int64_t index = gguf_find_tensor(file->gguf, name);

    QUIRE_CHECK(index >= 0);
    return gguf_get_data_offset(file->gguf) + gguf_get_tensor_offset(file->gguf, index);
}
