/* block_file.c - see block_file.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/block_file.h"

#include "base/check.h"
#include "engine/retention.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* All bytes of a file. Memory: free(*bytes), on errors too. */
static int read_all(FILE *stream, unsigned char **bytes, size_t *n_bytes)
{
    struct stat status;

    errno = 0;
    QUIRE_FAIL_IF(fstat(fileno(stream), &status) != 0, QUIRE_IO);
    if (!S_ISREG(status.st_mode)) {
        errno = EINVAL; /* a pipe or a folder */
        return QUIRE_IO;
    }
    *n_bytes = (size_t)status.st_size;
    *bytes = malloc(*n_bytes + 1);
    QUIRE_FAIL_IF(*bytes == NULL, QUIRE_NOMEM);
    return fread(*bytes, 1, *n_bytes, stream) == *n_bytes ? QUIRE_OK : QUIRE_IO;
}

int quire_block_file_read(quire_block_state *out, const char *path, quire_error *err)
{
    FILE *stream = fopen(path, "rb");
    quire_error why = QUIRE_ERROR_INIT;
    unsigned char *bytes = NULL;
    size_t n_bytes = 0;
    int rc;

    *out = (quire_block_state){ 0 };
    if (stream == NULL) {
        return quire_error_set(err, QUIRE_IO, "cannot open %s: %s", path, strerror(errno));
    }
    rc = read_all(stream, &bytes, &n_bytes);
    if (rc < 0) {
        quire_error_set(err, rc, "cannot read %s: %s", path,
                        rc == QUIRE_NOMEM ? "out of memory"
                        : errno != 0      ? strerror(errno)
                                          : "it has become shorter");
        free(bytes);
    } else {
        rc = quire_block_state_parse(out, bytes, n_bytes, &why);
        if (rc < 0) {
            quire_error_set(err, rc, "%s cannot be resumed: %s", path, why.message);
        }
    }
    (void)fclose(stream);
    return rc;
}

int quire_block_file_write(quire_new_file *file, const quire_opened *session, const int32_t *tokens,
                           quire_error *err)
{
    quire_block_state state;
    int rc = quire_retention_save(session->retention, session->runtime, tokens, &state);

    if (rc < 0) {
        quire_error_set(err, rc, "no memory for the state of the text");
    }
    errno = 0;
    if (rc == QUIRE_OK && fwrite(state.memory, 1, state.n_bytes, file->stream) != state.n_bytes) {
        rc = quire_new_file_fail(file, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_new_file_finish(file, err);
    }
    quire_block_state_free(&state);
    return rc;
}
