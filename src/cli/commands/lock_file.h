/* lock_file.h - files whose only use is a flock() on them, and which their holder removes.
 *
 * A process that waited for such a lock may hold it on a file that the last holder has removed. So
 * whoever gets a lock asks for the name, and opens the file once more where it is gone.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_LOCK_FILE_H
#define QUIRE_CLI_LOCK_FILE_H

#include <stdbool.h>

/* Whether an open file is the one that the path names. */
bool quire_lock_file_has_name(int fd, const char *path);

#endif /* QUIRE_CLI_LOCK_FILE_H */
