/* fuzz_stored.c - bytes as a file of `quire cache export`: it is read to its end or refused by a
 * message, twice in the same way, as import does.
 *
 * The first byte: bit 0, checksums and keys of the records are put right; bit 1, the head as well,
 * which then says how many records there are.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "cli/stored/stored.h"
#include "cli/stored/stored_file.h"
#include "store_mend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES_MAX (256u << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void mend(unsigned char *bytes, size_t n, bool is_head_too)
{
    quire_stored_file_head head = { 0 };
    size_t at = QUIRE_STORED_FILE_HEAD_BYTES;

    while (at + QUIRE_PAGE_RECORD_ALIGN <= n) {
        const size_t n_record = fuzz_record_mend(bytes + at, n - at, true);

        if (n_record == 0) {
            break;
        }
        head.n_records++;
        head.n_bytes += n_record;
        at += n_record;
    }
    if (is_head_too && n >= QUIRE_STORED_FILE_HEAD_BYTES) {
        quire_stored_file_head_write(bytes, &head);
    }
}

/* Read all records. Returns how it ended; *n: records. */
static int records_read(quire_stored_file *file, uint32_t *n)
{
    quire_error err = QUIRE_ERROR_INIT;
    int rc;

    *n = 0;
    while ((rc = quire_stored_file_next(file, &err)) > 0) {
        ++*n;
        QUIRE_CHECK(file->n_read == *n && *n <= file->head.n_records);
        QUIRE_CHECK(file->found.record_bytes <= file->capacity);
        QUIRE_CHECK(quire_stored_is_own_key(&file->found));
    }
    QUIRE_CHECK(rc == QUIRE_OK || strstr(err.message, file->path) != NULL);
    return rc;
}

static void file_try(const char *path)
{
    quire_stored_file file;
    quire_error err = QUIRE_ERROR_INIT;
    uint32_t n, n_again;

    if (quire_stored_file_open(&file, path, &err) == QUIRE_OK) {
        const int rc = records_read(&file, &n);

        QUIRE_CHECK(rc != QUIRE_OK || n == file.head.n_records);
        QUIRE_CHECK(quire_stored_file_rewind(&file, &err) == QUIRE_OK);
        QUIRE_CHECK(records_read(&file, &n_again) == rc && n_again == n);
    } else {
        QUIRE_CHECK(strstr(err.message, path) != NULL);
    }
    quire_stored_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    char path[64];
    unsigned char *bytes;
    const size_t n = size_bytes - 1;
    int fd;

    if (size_bytes < 2 || n > BYTES_MAX) {
        return 0;
    }
    bytes = malloc(n);
    fd = memfd_create("exported", MFD_CLOEXEC);
    if (bytes != NULL && fd >= 0) {
        memcpy(bytes, data + 1, n);
        if ((data[0] & 1) != 0) {
            mend(bytes, n, (data[0] & 2) != 0);
        }
        QUIRE_CHECK(write(fd, bytes, n) == (ssize_t)n);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        file_try(path);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    free(bytes);
    return 0;
}
