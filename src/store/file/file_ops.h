/* file_ops.h - the calls by which the file store reaches the disk, as a table.
 *
 * Tests put a table in between that fails, delays or counts calls. Every function returns a value
 * >= 0, or a negative errno. The table's ctx comes first in each call.
 *
 * io_uring reads without these functions, so its engine asks read_begin before each read.
 *
 * Thread: any, several at once.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_FILE_FILE_OPS_H
#define QUIRE_STORE_FILE_FILE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct quire_file_ops {
    /* Open with open(2)'s flags. O_DIRECT where asked for; the caller tries again without it. */
    int (*open)(void *ctx, const char *path, int flags, mode_t mode);
    int (*close)(void *ctx, int fd);
    /* Bytes that were moved: may be fewer than asked for; 0 at the end of the file. */
    ssize_t (*pread)(void *ctx, int fd, void *buffer, size_t n_bytes, uint64_t offset);
    ssize_t (*pwrite)(void *ctx, int fd, const void *buffer, size_t n_bytes, uint64_t offset);
    int (*read_begin)(void *ctx, int fd, size_t n_bytes, uint64_t offset);
    int (*datasync)(void *ctx, int fd);
    int (*truncate)(void *ctx, int fd, uint64_t n_bytes);
    /* Reserve blocks without a change of the file's length. -EOPNOTSUPP is no failure. */
    int (*reserve)(void *ctx, int fd, uint64_t n_bytes);
    int (*size)(void *ctx, int fd, uint64_t *n_bytes);
    /* Whether `path` still names the open file: 0, or -ENOENT when it names none or another. */
    int (*is_at)(void *ctx, int fd, const char *path);
    int (*unlink)(void *ctx, const char *path);
    /* Replaces a file that has the new name. */
    int (*rename)(void *ctx, const char *from, const char *to);
    int (*make_dir)(void *ctx, const char *path, mode_t mode);
    /* Make names in a directory durable. */
    int (*sync_dir)(void *ctx, const char *path);
    /* Call each(arg, name) for every name in a directory. */
    int (*list)(void *ctx, const char *path, void (*each)(void *arg, const char *name), void *arg);
    /* Lock a file for this process without waiting: -EWOULDBLOCK when another one has it. */
    int (*lock)(void *ctx, int fd);
    void *ctx;
} quire_file_ops;

/* The operating system's. Memory: static. */
const quire_file_ops *quire_file_ops_default(void);

/* Read or write all of n_bytes. Returns 0, a negative errno, or -ENODATA when a file ends early. */
int quire_file_read_all(const quire_file_ops *ops, int fd, void *buffer, size_t n_bytes,
                        uint64_t offset);
int quire_file_write_all(const quire_file_ops *ops, int fd, const void *buffer, size_t n_bytes,
                         uint64_t offset);
/* Open with O_DIRECT, or without it on a file system that has none. */
int quire_file_open_direct(const quire_file_ops *ops, const char *path, int flags, mode_t mode);

#endif /* QUIRE_STORE_FILE_FILE_OPS_H */
