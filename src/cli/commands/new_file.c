/* new_file.c - see new_file.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/new_file.h"

#include "base/check.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The names of both files. */
static int name(quire_new_file *out, const char *path, quire_error *err)
{
    struct stat status;

    memset(out, 0, sizeof(*out));
    if (strlen(path) >= sizeof(out->path)) {
        return quire_error_set(err, QUIRE_INVAL, "%.80s...: the path is too long", path);
    }
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        return quire_error_set(err, QUIRE_INVAL, "cannot write %s: it is not a regular file", path);
    }
    memcpy(out->path, path, strlen(path) + 1);
    (void)snprintf(out->work_path, sizeof(out->work_path), "%s.partial", path);
    return QUIRE_OK;
}

int quire_new_file_open(quire_new_file *out, const char *path, quire_error *err)
{
    QUIRE_TRY(name(out, path, err));
    errno = 0;
    out->stream = fopen(out->work_path, "wb");
    return out->stream != NULL ? QUIRE_OK : quire_new_file_fail(out, err);
}

int quire_new_file_check(const char *path, quire_error *err)
{
    quire_new_file file;

    QUIRE_TRY(name(&file, path, err));
    errno = 0;
    file.stream = fopen(file.work_path, "wbx");
    if (file.stream == NULL && errno == EEXIST) { /* another program may be writing it */
        return access(file.work_path, W_OK) == 0 ? QUIRE_OK : quire_new_file_fail(&file, err);
    }
    if (file.stream == NULL) {
        return quire_new_file_fail(&file, err);
    }
    quire_new_file_discard(&file);
    return QUIRE_OK;
}

int quire_new_file_fail(const quire_new_file *file, quire_error *err)
{
    return quire_error_set_errno(err, errno, "cannot write %s", file->path);
}

int quire_new_file_finish(quire_new_file *file, quire_error *err)
{
    int close_result;
    int rc = QUIRE_OK;

    errno = 0;
    close_result = fclose(file->stream);
    file->stream = NULL;
    if (close_result != 0 || rename(file->work_path, file->path) != 0) {
        rc = quire_new_file_fail(file, err);
        (void)unlink(file->work_path);
    }
    return rc;
}

void quire_new_file_discard(quire_new_file *file)
{
    if (file->stream != NULL) {
        (void)fclose(file->stream);
        file->stream = NULL;
        (void)unlink(file->work_path);
    }
}
