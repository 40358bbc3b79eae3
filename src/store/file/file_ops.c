/* file_ops.c - see file_ops.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_ops.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIES_MAX 16 /* of one call that signals interrupt */

static int result_of(int rc)
{
    return rc < 0 ? -errno : rc;
}

static int os_open(void *ctx, const char *path, int flags, mode_t mode)
{
    (void)ctx;
    return result_of(open(path, flags | O_CLOEXEC, mode));
}

static int os_close(void *ctx, int fd)
{
    (void)ctx;
    return result_of(close(fd));
}

static ssize_t os_pread(void *ctx, int fd, void *buffer, size_t n_bytes, uint64_t offset)
{
    const ssize_t n = pread(fd, buffer, n_bytes, (off_t)offset);

    (void)ctx;
    return n < 0 ? -errno : n;
}

static ssize_t os_pwrite(void *ctx, int fd, const void *buffer, size_t n_bytes, uint64_t offset)
{
    const ssize_t n = pwrite(fd, buffer, n_bytes, (off_t)offset);

    (void)ctx;
    return n < 0 ? -errno : n;
}

static int os_read_begin(void *ctx, int fd, size_t n_bytes, uint64_t offset)
{
    (void)ctx;
    (void)fd;
    (void)n_bytes;
    (void)offset;
    return 0;
}

static int os_datasync(void *ctx, int fd)
{
    (void)ctx;
    return result_of(fdatasync(fd));
}

static int os_truncate(void *ctx, int fd, uint64_t n_bytes)
{
    (void)ctx;
    return result_of(ftruncate(fd, (off_t)n_bytes));
}

static int os_reserve(void *ctx, int fd, uint64_t n_bytes)
{
    (void)ctx;
    return result_of(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)n_bytes));
}

static int os_size(void *ctx, int fd, uint64_t *n_bytes)
{
    struct stat st;

    (void)ctx;
    if (fstat(fd, &st) != 0) {
        return -errno;
    }
    *n_bytes = (uint64_t)st.st_size;
    return 0;
}

static int os_is_at(void *ctx, int fd, const char *path)
{
    struct stat opened, named;

    (void)ctx;
    if (fstat(fd, &opened) != 0 || stat(path, &named) != 0) {
        return -errno;
    }
    return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino ? 0 : -ENOENT;
}

static int os_unlink(void *ctx, const char *path)
{
    (void)ctx;
    return result_of(unlink(path));
}

static int os_rename(void *ctx, const char *from, const char *to)
{
    (void)ctx;
    return result_of(rename(from, to));
}

static int os_make_dir(void *ctx, const char *path, mode_t mode)
{
    (void)ctx;
    return result_of(mkdir(path, mode));
}

static int os_sync_dir(void *ctx, const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc;

    (void)ctx;
    if (fd < 0) {
        return -errno;
    }
    rc = result_of(fsync(fd));
    (void)close(fd);
    return rc;
}

static int os_list(void *ctx, const char *path, void (*each)(void *arg, const char *name),
                   void *arg)
{
    DIR *dir = opendir(path);
    int rc = 0;

    (void)ctx;
    if (dir == NULL) {
        return -errno;
    }
    for (;;) {
        const struct dirent *entry;

        errno = 0;
        entry = readdir(dir);
        if (entry == NULL) {
            rc = -errno;
            break;
        }
        each(arg, entry->d_name);
    }
    (void)closedir(dir);
    return rc;
}

static int os_lock(void *ctx, int fd)
{
    (void)ctx;
    return result_of(flock(fd, LOCK_EX | LOCK_NB));
}

const quire_file_ops *quire_file_ops_default(void)
{
    static const quire_file_ops ops = { .open = os_open,
                                        .close = os_close,
                                        .pread = os_pread,
                                        .pwrite = os_pwrite,
                                        .read_begin = os_read_begin,
                                        .datasync = os_datasync,
                                        .truncate = os_truncate,
                                        .reserve = os_reserve,
                                        .size = os_size,
                                        .is_at = os_is_at,
                                        .unlink = os_unlink,
                                        .rename = os_rename,
                                        .make_dir = os_make_dir,
                                        .sync_dir = os_sync_dir,
                                        .list = os_list,
                                        .lock = os_lock };

    return &ops;
}

int quire_file_read_all(const quire_file_ops *ops, int fd, void *buffer, size_t n_bytes,
                        uint64_t offset)
{
    int tries = 0;

    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n =
            ops->pread(ops->ctx, fd, (unsigned char *)buffer + done, n_bytes - done, offset + done);

        if (n == 0) {
            return -ENODATA;
        }
        if (n < 0 && (n != -EINTR || ++tries > TRIES_MAX)) {
            return (int)n;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int quire_file_write_all(const quire_file_ops *ops, int fd, const void *buffer, size_t n_bytes,
                         uint64_t offset)
{
    int tries = 0;

    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n = ops->pwrite(ops->ctx, fd, (const unsigned char *)buffer + done,
                                      n_bytes - done, offset + done);

        if (n == 0) {
            return -EIO;
        }
        if (n < 0 && (n != -EINTR || ++tries > TRIES_MAX)) {
            return (int)n;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int quire_file_open_direct(const quire_file_ops *ops, const char *path, int flags, mode_t mode)
{
    int fd = ops->open(ops->ctx, path, flags | O_DIRECT, mode);

    if (fd == -EINVAL) {
        /* Linux may have created the file before it refused O_DIRECT. */
        fd = ops->open(ops->ctx, path, flags & ~O_EXCL, mode);
    }
    return fd;
}
