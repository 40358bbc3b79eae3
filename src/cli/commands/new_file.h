/* new_file.h - a file that appears under its name only when it is complete.
 *
 * The file is written as path.partial and renamed by finish(), so a failed run leaves an existing
 * file unchanged. The name must not belong to a directory, device or pipe: the rename would remove
 * a device.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_NEW_FILE_H
#define QUIRE_CLI_NEW_FILE_H

#include <stdio.h>

#include "quire/error.h"

typedef struct quire_new_file {
    FILE *stream;         /* to write to; NULL when not open */
    char path[4096];      /* as given */
    char work_path[4104]; /* path.partial */
} quire_new_file;

/* Begin. Errors: QUIRE_IO, QUIRE_INVAL (path too long, or not a regular file); then out->stream is
 * NULL. */
int quire_new_file_open(quire_new_file *out, const char *path, quire_error *err);

/* Whether a file could be written there, before long work whose result it is to hold. A file that
 * another program is writing stays as it is. Errors: as quire_new_file_open(). */
int quire_new_file_check(const char *path, quire_error *err);

/* Fill err from errno after a failed write to the stream, naming the path; returns its status. */
int quire_new_file_fail(const quire_new_file *file, quire_error *err);

/* Flush the file and rename it to its path; closed either way. Errors: QUIRE_IO. */
int quire_new_file_finish(quire_new_file *file, quire_error *err);

/* Close and remove an unfinished file; zeroed and finished structs are allowed. */
void quire_new_file_discard(quire_new_file *file);

#endif /* QUIRE_CLI_NEW_FILE_H */
