/* state_dir.c - see state_dir.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/state/state_dir.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_BYTES  4096u
#define HEX_BYTES   33u
#define FOREIGN_MAX 65536u /* files of other identities that are looked at */

struct quire_state_dir {
    quire_state_dir_opts opts;
    const quire_file_ops *ops;
    char path[PATH_BYTES];
};

/* ---- names ---- */

static void hex_write(const unsigned char hash[QUIRE_HASH128_BYTES], char out[HEX_BYTES])
{
    for (uint32_t i = 0; i < QUIRE_HASH128_BYTES; i++) {
        (void)snprintf(out + (size_t)2 * i, 3, "%02x", hash[i]);
    }
}

static bool hex_read(const char *text, unsigned char hash[QUIRE_HASH128_BYTES])
{
    for (uint32_t i = 0; i < 2 * QUIRE_HASH128_BYTES; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = text[i] != '\0' ? strchr(digits, text[i]) : NULL;

        if (digit == NULL) {
            return false;
        }
        hash[i / 2] = (unsigned char)((i % 2 == 0 ? 0 : hash[i / 2] << 4) | (digit - digits));
    }
    return true;
}

void quire_state_file_name(const unsigned char identity[QUIRE_HASH128_BYTES],
                           const quire_state_name *name, char out[QUIRE_STATE_FILE_NAME_MAX])
{
    char of[HEX_BYTES], hash[HEX_BYTES];

    hex_write(identity, of);
    hex_write(name->hash, hash);
    (void)snprintf(out, QUIRE_STATE_FILE_NAME_MAX, "state-%s-%s-%s.quire", of,
                   quire_state_kind_name(name->kind), hash);
}

/* Read a file's name; false: it is not that of an item. */
static bool file_name_read(const char *file, unsigned char identity[QUIRE_HASH128_BYTES],
                           quire_state_name *name)
{
    char expected[QUIRE_STATE_FILE_NAME_MAX];
    const char *dash = strrchr(file, '-');

    if (strncmp(file, "state-", 6) != 0 || !hex_read(file + 6, identity) ||
        !hex_read(dash + 1, name->hash)) {
        return false;
    }
    for (uint32_t kind = 0; kind < QUIRE_STATE_KIND_COUNT; kind++) {
        name->kind = (quire_state_kind)kind;
        quire_state_file_name(identity, name, expected);
        if (strcmp(file, expected) == 0) {
            return true;
        }
    }
    return false;
}

/* DIR/file into path[PATH_BYTES + QUIRE_STATE_FILE_NAME_MAX]. */
#define PATH_MAX_BYTES (PATH_BYTES + QUIRE_STATE_FILE_NAME_MAX)
static void path_of(const quire_state_dir *dir, const char *file, char *path)
{
    (void)snprintf(path, PATH_MAX_BYTES, "%s/%s", dir->path, file);
}

static void path_of_item(const quire_state_dir *dir, const quire_state_name *name, char *path)
{
    char file[QUIRE_STATE_FILE_NAME_MAX];

    quire_state_file_name(dir->opts.identity, name, file);
    path_of(dir, file, path);
}

uint64_t quire_state_charge(size_t n_bytes)
{
    return ((uint64_t)n_bytes + QUIRE_STATE_FILE_CHARGE - 1) / QUIRE_STATE_FILE_CHARGE *
           QUIRE_STATE_FILE_CHARGE;
}

/* ---- items of other identities ---- */

typedef struct foreign_file {
    char file[QUIRE_STATE_FILE_NAME_MAX];
    int64_t time_s;
    uint64_t n_bytes;
} foreign_file;

typedef struct foreign_files {
    quire_state_dir *dir;
    foreign_file *files;
    uint32_t n, capacity;
} foreign_files;

static bool is_own(const quire_state_dir *dir, const unsigned char identity[QUIRE_HASH128_BYTES])
{
    bool is = memcmp(identity, dir->opts.identity, QUIRE_HASH128_BYTES) == 0;

    for (uint32_t i = 0; i < dir->opts.n_own; i++) {
        is = is || memcmp(identity, dir->opts.own[i], QUIRE_HASH128_BYTES) == 0;
    }
    return is;
}

static void foreign_take(void *arg, const char *file)
{
    foreign_files *f = arg;
    unsigned char identity[QUIRE_HASH128_BYTES];
    char path[PATH_MAX_BYTES];
    quire_state_name name;
    struct stat info;

    path_of(f->dir, file, path);
    if (!file_name_read(file, identity, &name) || f->n == FOREIGN_MAX || is_own(f->dir, identity) ||
        stat(path, &info) != 0) {
        return;
    }
    if (f->n == f->capacity) {
        const uint32_t capacity = f->capacity > 0 ? 2 * f->capacity : 64;
        foreign_file *files = realloc(f->files, capacity * sizeof *files);

        if (files == NULL) {
            return;
        }
        f->files = files;
        f->capacity = capacity;
    }
    (void)snprintf(f->files[f->n].file, sizeof f->files[f->n].file, "%s", file);
    f->files[f->n].time_s = (int64_t)info.st_mtime;
    f->files[f->n++].n_bytes = quire_state_charge((size_t)info.st_size);
}

static int newest_first(const void *a, const void *b)
{
    const int64_t ta = ((const foreign_file *)a)->time_s, tb = ((const foreign_file *)b)->time_s;

    return ta > tb ? -1 : ta < tb;
}

/* Of other identities keep the items that were written last, up to bytes_max. */
static void foreign_trim(quire_state_dir *dir)
{
    foreign_files f = { .dir = dir };
    uint64_t n_bytes = 0;

    (void)dir->ops->list(dir->ops->ctx, dir->path, foreign_take, &f);
    if (f.n > 1) {
        qsort(f.files, f.n, sizeof f.files[0], newest_first);
    }
    for (uint32_t i = 0; i < f.n; i++) {
        char path[PATH_MAX_BYTES];

        n_bytes += f.files[i].n_bytes;
        if (n_bytes > dir->opts.bytes_max) {
            path_of(dir, f.files[i].file, path);
            (void)dir->ops->unlink(dir->ops->ctx, path);
        }
    }
    free(f.files);
}

/* ---- life ---- */

int quire_state_dir_open(quire_state_dir **out, const quire_state_dir_opts *opts, quire_error *err)
{
    quire_state_dir *dir;

    *out = NULL;
    if (opts->path == NULL || strlen(opts->path) >= PATH_BYTES) {
        return quire_error_set(err, QUIRE_INVAL, "state directory: a path of 1 to %u bytes",
                               PATH_BYTES - 1);
    }
    dir = calloc(1, sizeof *dir);
    if (dir == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the state in %s", opts->path);
    }
    dir->opts = *opts;
    dir->ops = opts->ops != NULL ? opts->ops : quire_file_ops_default();
    (void)snprintf(dir->path, sizeof dir->path, "%s", opts->path);
    if (!opts->is_readonly) {
        char temporary[PATH_MAX_BYTES];

        path_of(dir, "state.tmp", temporary);
        (void)dir->ops->unlink(dir->ops->ctx, temporary); /* of a process that was killed */
        foreign_trim(dir);
    }
    dir->opts.own = NULL; /* the caller's */
    dir->opts.n_own = 0;
    *out = dir;
    return QUIRE_OK;
}

void quire_state_dir_close(quire_state_dir *dir)
{
    free(dir);
}

/* ---- reading ---- */

typedef struct listing {
    const quire_state_dir *dir;
    void (*each)(void *ctx, const quire_state_name *name);
    void *ctx;
} listing;

static void list_one(void *arg, const char *file)
{
    const listing *l = arg;
    unsigned char identity[QUIRE_HASH128_BYTES];
    quire_state_name name;

    if (file_name_read(file, identity, &name) &&
        memcmp(identity, l->dir->opts.identity, sizeof identity) == 0) {
        l->each(l->ctx, &name);
    }
}

int quire_state_dir_list(quire_state_dir *dir,
                         void (*each)(void *ctx, const quire_state_name *name), void *ctx)
{
    listing l = { dir, each, ctx };

    return dir->ops->list(dir->ops->ctx, dir->path, list_one, &l);
}

/* Read a whole file. */
static quire_state_result file_read(const quire_state_dir *dir, int fd, unsigned char **item,
                                    size_t *n_bytes)
{
    const quire_file_ops *ops = dir->ops;
    uint64_t size;
    int rc;

    QUIRE_FAIL_IF(ops->size(ops->ctx, fd, &size) < 0, QUIRE_STATE_IO_RESULT);
    QUIRE_FAIL_IF(size < QUIRE_STATE_HEAD_BYTES || size > QUIRE_STATE_ITEM_BYTES_MAX,
                  QUIRE_STATE_TRUNCATED_RESULT);
    *item = malloc((size_t)size);
    QUIRE_FAIL_IF(*item == NULL, QUIRE_STATE_IO_RESULT);
    *n_bytes = (size_t)size;
    rc = quire_file_read_all(ops, fd, *item, *n_bytes, 0);
    return rc == 0          ? QUIRE_STATE_OK_RESULT
           : rc == -ENODATA ? QUIRE_STATE_TRUNCATED_RESULT
                            : QUIRE_STATE_IO_RESULT;
}

quire_state_result quire_state_dir_read(quire_state_dir *dir, const quire_state_name *name,
                                        unsigned char **item, size_t *n_bytes, uint64_t *time_us)
{
    const quire_file_ops *ops = dir->ops;
    quire_state_head head = { .name = *name };
    char path[PATH_MAX_BYTES];
    quire_state_result result;
    int fd;

    *item = NULL;
    *n_bytes = 0;
    *time_us = 0;
    memcpy(head.identity, dir->opts.identity, sizeof head.identity);
    path_of_item(dir, name, path);
    fd = ops->open(ops->ctx, path, O_RDONLY | O_CLOEXEC, 0);
    QUIRE_FAIL_IF(fd < 0, QUIRE_STATE_IO_RESULT);
    result = file_read(dir, fd, item, n_bytes);
    (void)ops->close(ops->ctx, fd);
    if (result == QUIRE_STATE_OK_RESULT) {
        result = quire_state_open(*item, *n_bytes, &head);
        *time_us = head.time_us;
    }
    if (result != QUIRE_STATE_OK_RESULT) {
        free(*item);
        *item = NULL;
    }
    return result;
}

/* ---- writing ---- */

static int file_write(const quire_file_ops *ops, const char *path, const void *item, size_t n_bytes)
{
    const int fd = ops->open(ops->ctx, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int rc;

    if (fd < 0) {
        return fd;
    }
    rc = quire_file_write_all(ops, fd, item, n_bytes, 0);
    rc = rc == 0 ? ops->datasync(ops->ctx, fd) : rc;
    (void)ops->close(ops->ctx, fd);
    return rc < 0 ? rc : 0;
}

int quire_state_dir_write(quire_state_dir *dir, const quire_state_name *name, const void *item,
                          size_t n_bytes)
{
    const quire_file_ops *ops = dir->ops;
    char path[PATH_MAX_BYTES], temporary[PATH_MAX_BYTES];
    int rc;

    QUIRE_CHECK(!dir->opts.is_readonly);
    path_of(dir, "state.tmp", temporary);
    path_of_item(dir, name, path);
    rc = file_write(ops, temporary, item, n_bytes);
    rc = rc == 0 ? ops->rename(ops->ctx, temporary, path) : rc;
    if (rc < 0) {
        (void)ops->unlink(ops->ctx, temporary);
    }
    return rc < 0 ? rc : 0;
}

int quire_state_dir_remove(quire_state_dir *dir, const quire_state_name *name)
{
    char path[PATH_MAX_BYTES];
    int rc;

    QUIRE_CHECK(!dir->opts.is_readonly);
    path_of_item(dir, name, path);
    rc = dir->ops->unlink(dir->ops->ctx, path);
    return rc == -ENOENT || rc >= 0 ? 0 : rc;
}

int quire_state_dir_sync(quire_state_dir *dir)
{
    const int rc = dir->ops->sync_dir(dir->ops->ctx, dir->path);

    return rc < 0 ? rc : 0;
}
