/* lock_file.c - see lock_file.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/lock_file.h"

#include <sys/stat.h>

bool quire_lock_file_has_name(int fd, const char *path)
{
    struct stat here, there;

    return fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
}
