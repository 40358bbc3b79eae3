/* mem_disk.c - see mem_disk.h.
 *
 * SPDX-License-Identifier: MIT */
#include "mem_disk.h"

#include "base/check.h"
#include "store/file/file_store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 64u
#define NAMES_MAX      256u
#define FDS_MAX        256u
#define FD_FIRST       100000 /* no descriptor of the process */
#define SECTOR         512u

/* A file; it lives while it has a name or is open. Files of the journal live as long as the disk:
 * their number stays. */
typedef struct mem_file {
    unsigned char *bytes;
    size_t n_bytes;
    size_t capacity;
} mem_file;

typedef struct mem_name {
    char name[NAME_MAX_BYTES];
    uint32_t file;
} mem_name;

typedef enum mem_kind {
    MEM_CREATE,
    MEM_UNLINK,
    MEM_WRITE,
    MEM_TRUNCATE,
    MEM_DATASYNC,
    MEM_SYNC_DIR
} mem_kind;

typedef struct mem_call {
    mem_kind kind;
    uint32_t file;
    char name[NAME_MAX_BYTES];
    uint64_t offset; /* TRUNCATE: the length */
    size_t n_bytes;
    unsigned char *bytes; /* WRITE: [n_bytes] */
} mem_call;

/* The contents of the directory. */
typedef struct mem_state {
    bool has_dir;
    mem_name names[NAMES_MAX]; /* in the order of names */
    uint32_t n_names;
    mem_file *files;
    uint32_t n_files;
} mem_state;

struct mem_disk {
    quire_file_ops ops;
    pthread_mutex_t lock;
    mem_state start; /* survives every failure */
    mem_state now;
    mem_call *calls;
    size_t n_calls, calls_capacity;
    int64_t fds[FDS_MAX]; /* file, -1: free */
};

static void *grown(void *array, size_t n_bytes)
{
    void *more = realloc(array, n_bytes > 0 ? n_bytes : 1);

    QUIRE_CHECK(more != NULL);
    return more;
}

/* ---- states ---- */

static void file_resize(mem_file *f, size_t n_bytes)
{
    if (n_bytes > f->capacity) {
        f->capacity = n_bytes + n_bytes / 2;
        f->bytes = grown(f->bytes, f->capacity);
    }
    if (n_bytes > f->n_bytes) {
        memset(f->bytes + f->n_bytes, 0, n_bytes - f->n_bytes);
    }
    f->n_bytes = n_bytes;
}

static void file_write(mem_file *f, const void *bytes, size_t n_bytes, uint64_t offset)
{
    if (offset + n_bytes > f->n_bytes) {
        file_resize(f, offset + n_bytes);
    }
    memcpy(f->bytes + offset, bytes, n_bytes);
}

static int64_t name_find(const mem_state *s, const char *name)
{
    for (uint32_t i = 0; i < s->n_names; i++) {
        if (strcmp(s->names[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static void name_add(mem_state *s, const char *name, uint32_t file)
{
    uint32_t at = s->n_names;

    QUIRE_CHECK(s->n_names < NAMES_MAX && strlen(name) < NAME_MAX_BYTES);
    for (; at > 0 && strcmp(s->names[at - 1].name, name) > 0; at--) {
        s->names[at] = s->names[at - 1];
    }
    (void)snprintf(s->names[at].name, NAME_MAX_BYTES, "%s", name);
    s->names[at].file = file;
    s->n_names++;
}

static void name_remove(mem_state *s, int64_t at)
{
    if (at >= 0) {
        memmove(&s->names[at], &s->names[at + 1],
                (s->n_names - (size_t)at - 1) * sizeof s->names[0]);
        s->n_names--;
    }
}

static void files_reach(mem_state *s, uint32_t n_files)
{
    if (n_files > s->n_files) {
        s->files = grown(s->files, n_files * sizeof *s->files);
        memset(s->files + s->n_files, 0, (n_files - s->n_files) * sizeof *s->files);
        s->n_files = n_files;
    }
}

static void state_copy(mem_state *out, const mem_state *from)
{
    *out = *from;
    out->files = NULL;
    out->n_files = 0;
    files_reach(out, from->n_files);
    for (uint32_t i = 0; i < from->n_files; i++) {
        file_resize(&out->files[i], from->files[i].n_bytes);
        if (from->files[i].n_bytes > 0) {
            memcpy(out->files[i].bytes, from->files[i].bytes, from->files[i].n_bytes);
        }
    }
}

static void state_free(mem_state *s)
{
    for (uint32_t i = 0; i < s->n_files; i++) {
        free(s->files[i].bytes);
    }
    free(s->files);
}

/* ---- the journal ---- */

static mem_call *call_add(mem_disk *d, mem_kind kind, uint32_t file)
{
    if (d->n_calls == d->calls_capacity) {
        d->calls_capacity = d->calls_capacity > 0 ? 2 * d->calls_capacity : 256;
        d->calls = grown(d->calls, d->calls_capacity * sizeof *d->calls);
    }
    d->calls[d->n_calls] = (mem_call){ .kind = kind, .file = file };
    return &d->calls[d->n_calls++];
}

static bool is_of_names(mem_kind kind)
{
    return kind == MEM_CREATE || kind == MEM_UNLINK;
}

static bool is_of_bytes(mem_kind kind)
{
    return kind == MEM_WRITE || kind == MEM_TRUNCATE;
}

/* Whether a sync between call `i` and call `end` covers call i. */
static bool is_covered(const mem_disk *d, size_t i, size_t end)
{
    const mem_call *c = &d->calls[i];

    for (size_t k = i + 1; k < end; k++) {
        const mem_call *s = &d->calls[k];

        if ((s->kind == MEM_SYNC_DIR && is_of_names(c->kind)) ||
            (s->kind == MEM_DATASYNC && is_of_bytes(c->kind) && s->file == c->file)) {
            return true;
        }
    }
    return false;
}

/* Sectors of a write, each by chance, or only those before a random one. */
static void write_in_part(mem_state *s, const mem_call *c, bool is_front, bool keeps_length,
                          quire_rng *rng)
{
    const size_t n_sectors = (c->n_bytes + SECTOR - 1) / SECTOR;
    const size_t n_front = quire_rng_below(rng, (uint32_t)n_sectors + 1);
    mem_file *f = &s->files[c->file];

    for (size_t i = 0; i < n_sectors; i++) {
        const size_t at = i * SECTOR;
        const size_t n = c->n_bytes - at < SECTOR ? c->n_bytes - at : SECTOR;

        if (is_front ? i < n_front : quire_rng_below(rng, 2) == 0) {
            file_write(f, c->bytes + at, n, c->offset + at);
        }
    }
    if (keeps_length && f->n_bytes < c->offset + c->n_bytes) {
        file_resize(f, c->offset + c->n_bytes);
    }
}

static void call_apply(mem_state *s, const mem_call *c)
{
    switch (c->kind) {
    case MEM_CREATE:
        if (name_find(s, c->name) < 0) {
            name_add(s, c->name, c->file);
        }
        break;
    case MEM_UNLINK:
        name_remove(s, name_find(s, c->name));
        break;
    case MEM_WRITE:
        file_write(&s->files[c->file], c->bytes, c->n_bytes, c->offset);
        break;
    case MEM_TRUNCATE:
        file_resize(&s->files[c->file], c->offset);
        break;
    case MEM_DATASYNC:
    case MEM_SYNC_DIR:
        break;
    }
}

/* A call that no sync covers. */
static void call_apply_by(mem_state *s, const mem_call *c, bool is_last, mem_crash rule,
                          quire_rng *rng)
{
    const bool is_random = rule == MEM_CRASH_RANDOM || rule == MEM_CRASH_LENGTHS;

    if (rule == MEM_CRASH_NONE || (rule == MEM_CRASH_LATEST && !is_last)) {
        return;
    }
    if (c->kind == MEM_WRITE && (is_random || (is_last && rule == MEM_CRASH_TORN))) {
        write_in_part(s, c, !is_random, rule == MEM_CRASH_LENGTHS, rng);
    } else if (!is_random || quire_rng_below(rng, 2) == 0) {
        call_apply(s, c);
    }
}

static mem_disk *disk_of(mem_state *start);

mem_disk *mem_disk_crash(const mem_disk *disk, size_t call, mem_crash rule, quire_rng *rng)
{
    const bool has_begun = call < disk->n_calls && rule != MEM_CRASH_ALL;
    mem_state s;

    state_copy(&s, &disk->start);
    s.has_dir = disk->now.has_dir;
    files_reach(&s, disk->now.n_files);
    for (size_t i = 0; i < call + has_begun; i++) {
        if (i < call && is_covered(disk, i, call)) {
            call_apply(&s, &disk->calls[i]);
        } else {
            call_apply_by(&s, &disk->calls[i], i + 1 == call + has_begun, rule, rng);
        }
    }
    return disk_of(&s);
}

/* ---- calls ---- */

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static mem_file *file_of(mem_disk *d, int fd)
{
    QUIRE_CHECK(fd >= FD_FIRST && fd < FD_FIRST + (int)FDS_MAX && d->fds[fd - FD_FIRST] >= 0);
    return &d->now.files[d->fds[fd - FD_FIRST]];
}

static int fd_take(mem_disk *d, uint32_t file)
{
    for (uint32_t i = 0; i < FDS_MAX; i++) {
        if (d->fds[i] < 0) {
            d->fds[i] = file;
            return FD_FIRST + (int)i;
        }
    }
    return -EMFILE;
}

static int open_named(mem_disk *d, const char *name, int flags)
{
    const int64_t at = name_find(&d->now, name);
    uint32_t file;

    if (!d->now.has_dir || (at < 0 && (flags & O_CREAT) == 0)) {
        return -ENOENT;
    }
    if (at >= 0) {
        return (flags & O_EXCL) != 0 ? -EEXIST : fd_take(d, d->now.names[at].file);
    }
    file = d->now.n_files;
    files_reach(&d->now, file + 1);
    name_add(&d->now, name, file);
    (void)snprintf(call_add(d, MEM_CREATE, file)->name, NAME_MAX_BYTES, "%s", name);
    return fd_take(d, file);
}

static int mem_open(void *ctx, const char *path, int flags, mode_t mode)
{
    mem_disk *d = ctx;
    int fd;

    (void)mode;
    (void)pthread_mutex_lock(&d->lock);
    fd = open_named(d, last_name(path), flags);
    (void)pthread_mutex_unlock(&d->lock);
    return fd;
}

static int mem_close(void *ctx, int fd)
{
    mem_disk *d = ctx;

    (void)pthread_mutex_lock(&d->lock);
    (void)file_of(d, fd);
    d->fds[fd - FD_FIRST] = -1;
    (void)pthread_mutex_unlock(&d->lock);
    return 0;
}

static ssize_t mem_pread(void *ctx, int fd, void *buffer, size_t n_bytes, uint64_t offset)
{
    mem_disk *d = ctx;
    const mem_file *f;
    size_t n = 0;

    (void)pthread_mutex_lock(&d->lock);
    f = file_of(d, fd);
    if (offset < f->n_bytes) {
        n = f->n_bytes - offset < n_bytes ? f->n_bytes - offset : n_bytes;
        memcpy(buffer, f->bytes + offset, n);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return (ssize_t)n;
}

static ssize_t mem_pwrite(void *ctx, int fd, const void *buffer, size_t n_bytes, uint64_t offset)
{
    mem_disk *d = ctx;
    mem_call *c;

    (void)pthread_mutex_lock(&d->lock);
    file_write(file_of(d, fd), buffer, n_bytes, offset);
    c = call_add(d, MEM_WRITE, (uint32_t)d->fds[fd - FD_FIRST]);
    c->offset = offset;
    c->n_bytes = n_bytes;
    c->bytes = grown(NULL, n_bytes);
    memcpy(c->bytes, buffer, n_bytes);
    (void)pthread_mutex_unlock(&d->lock);
    return (ssize_t)n_bytes;
}

static int mem_read_begin(void *ctx, int fd, size_t n_bytes, uint64_t offset)
{
    (void)ctx;
    (void)fd;
    (void)n_bytes;
    (void)offset;
    return 0;
}

static int mem_datasync(void *ctx, int fd)
{
    mem_disk *d = ctx;

    (void)pthread_mutex_lock(&d->lock);
    (void)file_of(d, fd);
    (void)call_add(d, MEM_DATASYNC, (uint32_t)d->fds[fd - FD_FIRST]);
    (void)pthread_mutex_unlock(&d->lock);
    return 0;
}

static int mem_truncate(void *ctx, int fd, uint64_t n_bytes)
{
    mem_disk *d = ctx;

    (void)pthread_mutex_lock(&d->lock);
    file_resize(file_of(d, fd), n_bytes);
    call_add(d, MEM_TRUNCATE, (uint32_t)d->fds[fd - FD_FIRST])->offset = n_bytes;
    (void)pthread_mutex_unlock(&d->lock);
    return 0;
}

static int mem_reserve(void *ctx, int fd, uint64_t n_bytes)
{
    (void)ctx;
    (void)fd;
    (void)n_bytes;
    return -EOPNOTSUPP;
}

static int mem_size(void *ctx, int fd, uint64_t *n_bytes)
{
    mem_disk *d = ctx;

    (void)pthread_mutex_lock(&d->lock);
    *n_bytes = file_of(d, fd)->n_bytes;
    (void)pthread_mutex_unlock(&d->lock);
    return 0;
}

static int mem_is_at(void *ctx, int fd, const char *path)
{
    mem_disk *d = ctx;
    int64_t at;
    int rc;

    (void)pthread_mutex_lock(&d->lock);
    at = name_find(&d->now, last_name(path));
    rc = at >= 0 && d->now.names[at].file == d->fds[fd - FD_FIRST] ? 0 : -ENOENT;
    (void)pthread_mutex_unlock(&d->lock);
    return rc;
}

static int mem_unlink(void *ctx, const char *path)
{
    mem_disk *d = ctx;
    const char *name = last_name(path);
    int64_t at;

    (void)pthread_mutex_lock(&d->lock);
    at = name_find(&d->now, name);
    if (at >= 0) {
        mem_call *c = call_add(d, MEM_UNLINK, d->now.names[at].file);

        (void)snprintf(c->name, NAME_MAX_BYTES, "%s", name);
        name_remove(&d->now, at);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return at >= 0 ? 0 : -ENOENT;
}

static int mem_make_dir(void *ctx, const char *path, mode_t mode)
{
    mem_disk *d = ctx;
    bool had;

    (void)path;
    (void)mode;
    (void)pthread_mutex_lock(&d->lock);
    had = d->now.has_dir;
    d->now.has_dir = true;
    (void)pthread_mutex_unlock(&d->lock);
    return had ? -EEXIST : 0;
}

static int mem_sync_dir(void *ctx, const char *path)
{
    mem_disk *d = ctx;

    (void)path;
    (void)pthread_mutex_lock(&d->lock);
    (void)call_add(d, MEM_SYNC_DIR, 0);
    (void)pthread_mutex_unlock(&d->lock);
    return 0;
}

static int mem_list(void *ctx, const char *path, void (*each)(void *arg, const char *name),
                    void *arg)
{
    mem_disk *d = ctx;

    (void)path;
    (void)pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->now.n_names; i++) {
        each(arg, d->now.names[i].name);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return d->now.has_dir ? 0 : -ENOENT;
}

static int mem_lock(void *ctx, int fd)
{
    (void)ctx;
    (void)fd;
    return 0;
}

/* ---- disks ---- */

/* A disk that begins with a state, which it takes over. */
static mem_disk *disk_of(mem_state *start)
{
    mem_disk *d = grown(NULL, sizeof *d);

    *d = (mem_disk){ .ops = { .open = mem_open,
                              .close = mem_close,
                              .pread = mem_pread,
                              .pwrite = mem_pwrite,
                              .read_begin = mem_read_begin,
                              .datasync = mem_datasync,
                              .truncate = mem_truncate,
                              .reserve = mem_reserve,
                              .size = mem_size,
                              .is_at = mem_is_at,
                              .unlink = mem_unlink,
                              .make_dir = mem_make_dir,
                              .sync_dir = mem_sync_dir,
                              .list = mem_list,
                              .lock = mem_lock,
                              .ctx = d } };
    (void)pthread_mutex_init(&d->lock, NULL);
    memset(d->fds, 0xff, sizeof d->fds);
    d->start = *start;
    state_copy(&d->now, start);
    return d;
}

mem_disk *mem_disk_new(void)
{
    mem_state none = { 0 };

    return disk_of(&none);
}

mem_disk *mem_disk_copy(const mem_disk *disk)
{
    mem_state s;

    state_copy(&s, &disk->now);
    return disk_of(&s);
}

void mem_disk_free(mem_disk *d)
{
    for (size_t i = 0; i < d->n_calls; i++) {
        free(d->calls[i].bytes);
    }
    free(d->calls);
    state_free(&d->start);
    state_free(&d->now);
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

const quire_file_ops *mem_disk_ops(mem_disk *disk)
{
    return &disk->ops;
}

size_t mem_disk_calls(mem_disk *disk)
{
    size_t n;

    (void)pthread_mutex_lock(&disk->lock);
    n = disk->n_calls;
    (void)pthread_mutex_unlock(&disk->lock);
    return n;
}

uint32_t mem_disk_open_files(mem_disk *disk)
{
    uint32_t n = 0;

    (void)pthread_mutex_lock(&disk->lock);
    for (uint32_t i = 0; i < FDS_MAX; i++) {
        n += disk->fds[i] >= 0;
    }
    (void)pthread_mutex_unlock(&disk->lock);
    return n;
}

uint32_t mem_disk_files(mem_disk *disk)
{
    uint32_t n;

    (void)pthread_mutex_lock(&disk->lock);
    n = disk->now.n_names;
    (void)pthread_mutex_unlock(&disk->lock);
    return n;
}

unsigned char *mem_disk_file(mem_disk *disk, uint32_t i, const char **name, size_t *n_bytes)
{
    mem_file *f;

    if (i >= disk->now.n_names) {
        return NULL;
    }
    f = &disk->now.files[disk->now.names[i].file];
    *name = disk->now.names[i].name;
    *n_bytes = f->n_bytes;
    return f->bytes;
}

void mem_disk_cut(mem_disk *disk, uint32_t i, size_t n_bytes)
{
    file_resize(&disk->now.files[disk->now.names[i].file], n_bytes);
}

quire_store *mem_disk_store(mem_disk *disk)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;
    quire_store *store;

    opts.dir = "/disk";
    opts.ops = mem_disk_ops(disk);
    opts.segment_bytes = (uint64_t)1 << 20;
    opts.capacity_bytes = 64 * opts.segment_bytes;
    opts.reads_kind = QUIRE_READS_POOL;
    opts.reads_max = 2;
    QUIRE_CHECK(quire_file_store_create(&store, &opts, NULL) == QUIRE_OK);
    return store;
}
