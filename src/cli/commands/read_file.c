/* read_file.c - a whole file in memory: see opened.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/opened.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 30)

static int read_stream(FILE *file, char **text, size_t *text_bytes)
{
    size_t cap = 1 << 16;
    size_t n = 0;
    char *buffer = malloc(cap);

    QUIRE_FAIL_IF(buffer == NULL, QUIRE_NOMEM);
    for (;;) {
        char *larger;

        n += fread(buffer + n, 1, cap - n - 1, file);
        if (n < cap - 1) {
            break;
        }
        larger = cap < FILE_BYTES_MAX ? realloc(buffer, cap * 2) : NULL;
        if (larger == NULL) {
            free(buffer);
            return cap < FILE_BYTES_MAX ? QUIRE_NOMEM : QUIRE_LIMIT;
        }
        buffer = larger;
        cap *= 2;
    }
    if (ferror(file)) {
        free(buffer);
        return QUIRE_IO;
    }
    buffer[n] = '\0';
    *text = buffer;
    *text_bytes = n;
    return QUIRE_OK;
}

int quire_read_file(const char *path, char **text, size_t *text_bytes, quire_error *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    int rc;

    *text = NULL;
    if (file == NULL) {
        return quire_error_set_errno(err, errno, "cannot open %s", path);
    }
    errno = 0;
    rc = read_stream(file, text, text_bytes);
    if (rc == QUIRE_IO) {
        quire_error_set_errno(err, errno, "cannot read %s", path);
    } else if (rc < 0) {
        quire_error_set(err, rc, "cannot read %s: %s", path,
                        rc == QUIRE_NOMEM ? "out of memory" : "it is longer than 1 GiB");
    }
    if (!is_stdin) {
        fclose(file);
    }
    return rc;
}
