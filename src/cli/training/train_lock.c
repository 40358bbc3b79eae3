/* train_lock.c - see train_lock.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_lock.h"

#include "cli/commands/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

int quire_train_lock_take(quire_train_lock *out, const char *checkpoint, quire_error *err)
{
    *out = (quire_train_lock){ .fd = -1 };
    if ((size_t)snprintf(out->path, sizeof(out->path), "%s.lock", checkpoint) >=
        sizeof(out->path)) {
        return quire_error_set(err, QUIRE_INVAL, "%.80s...: the path is too long", checkpoint);
    }
    for (;;) {
        out->fd = open(out->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (out->fd < 0) {
            return quire_error_set_errno(err, errno, "cannot write %s", out->path);
        }
        if (flock(out->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            (void)close(out->fd);
            out->fd = -1;
            return quire_error_set(err, QUIRE_AGAIN,
                                   "another process trains with the checkpoint %s", checkpoint);
        }
        if (quire_lock_file_has_name(out->fd, out->path)) {
            return QUIRE_OK;
        }
        (void)close(out->fd);
    }
}

void quire_train_lock_drop(quire_train_lock *lock)
{
    if (lock->fd > 0) {
        (void)unlink(lock->path);
        (void)close(lock->fd);
    }
    lock->fd = -1;
}
