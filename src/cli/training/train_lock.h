/* train_lock.h - one process at a time trains with a checkpoint.
 *
 * A lock is a flock() on CHECKPOINT.lock, which is removed at the end. A file that a killed process
 * has left is locked by nobody. File systems without locks have none here either.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRAIN_LOCK_H
#define QUIRE_CLI_TRAIN_LOCK_H

#include "quire/error.h"

typedef struct quire_train_lock {
    int fd; /* below 1: none */
    char path[4096];
} quire_train_lock;

/* Errors: QUIRE_AGAIN (another process has the lock), QUIRE_IO, QUIRE_INVAL (a path too long). */
int quire_train_lock_take(quire_train_lock *out, const char *checkpoint, quire_error *err);
/* A lock of zeros is none. */
void quire_train_lock_drop(quire_train_lock *lock);

#endif /* QUIRE_CLI_TRAIN_LOCK_H */
