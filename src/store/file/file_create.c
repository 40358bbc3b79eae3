/* file_create.c - opening a file store: options, the directory and its lock, threads; see
 * file_store.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define RECORD_EXPECT (256u << 10) /* bytes of a record, for the first size of the index */
#define RECORD_ROOM   (1u << 20)   /* of a segment, beside its largest record */
#define SEGMENT_STEP  (16u << 20)  /* segments for large records have multiples of this */

/* The size of segments that can hold the largest record, beside records carried forward. */
static uint64_t segment_bytes_of(const quire_file_store_opts *o)
{
    const uint64_t least =
        (uint64_t)((double)o->record_bytes / (1.0 - QUIRE_FILE_CARRY)) + RECORD_ROOM;

    return o->record_bytes == 0 || least <= o->segment_bytes
               ? o->segment_bytes
               : (least + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP;
}

static int opts_check(const quire_file_store_opts *o, uint64_t segment_bytes, quire_error *err)
{
    const uint64_t least =
        QUIRE_FILE_SEGMENTS_MIN * segment_bytes; /* segment_bytes is checked first */

    if (o->dir == NULL || o->dir[0] == '\0' || strlen(o->dir) > FILE_PATH_MAX - 128) {
        return quire_error_set(err, QUIRE_INVAL, "cache directory: a path of 1 to %u bytes",
                               FILE_PATH_MAX - 128);
    }
    if (segment_bytes < QUIRE_FILE_SEGMENT_BYTES_MIN ||
        segment_bytes > QUIRE_FILE_SEGMENT_BYTES_MAX || segment_bytes % QUIRE_SEGMENT_BLOCK != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "segment_bytes %llu: a multiple of 4096 from %u to %u",
                               (unsigned long long)segment_bytes, QUIRE_FILE_SEGMENT_BYTES_MIN,
                               QUIRE_FILE_SEGMENT_BYTES_MAX);
    }
    if (!o->is_readonly && o->capacity_bytes < least) {
        return quire_error_set(err, QUIRE_INVAL,
                               "cache capacity of %llu bytes: at least %llu are needed, for %u "
                               "segments of %llu bytes",
                               (unsigned long long)o->capacity_bytes, (unsigned long long)least,
                               QUIRE_FILE_SEGMENTS_MIN, (unsigned long long)segment_bytes);
    }
    if (o->reads_max == 0 || o->reads_max > QUIRE_READS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "reads_max %u: 1 to %u", o->reads_max,
                               QUIRE_READS_MAX);
    }
    return QUIRE_OK;
}

int quire_file_store_check(const quire_file_store_opts *opts, quire_error *err)
{
    return opts_check(opts, segment_bytes_of(opts), err);
}

int quire_file_lock(file_store *st, int *fd, const char **call)
{
    char path[FILE_PATH_MAX + 8], text[32];
    int rc;

    (void)snprintf(path, sizeof path, "%s/lock", st->dir);
    *call = "open";
    *fd = st->ops->open(st->ops->ctx, path, O_RDWR | O_CREAT, 0600);
    if (*fd < 0) {
        return *fd;
    }
    *call = "lock";
    rc = st->ops->lock(st->ops->ctx, *fd);
    if (rc == 0) {
        (void)snprintf(text, sizeof text, "%ld\n", (long)getpid());
        (void)st->ops->truncate(st->ops->ctx, *fd, 0);
        (void)st->ops->pwrite(st->ops->ctx, *fd, text, strlen(text), 0);
    }
    return rc;
}

static int dir_lock(file_store *st, quire_error *err)
{
    char text[32] = { 0 };
    const char *call;
    const int rc = quire_file_lock(st, &st->lock_fd, &call);

    if (rc == -EWOULDBLOCK && st->lock_fd >= 0) {
        (void)st->ops->pread(st->ops->ctx, st->lock_fd, text, sizeof text - 1, 0);
        return quire_error_set(err, QUIRE_LIMIT,
                               "%s is in use by process %ld; choose another directory, or read it "
                               "with --cache-dir-readonly",
                               st->dir, strtol(text, NULL, 10));
    }
    if (rc == -ENOTDIR) {
        return quire_error_set(err, QUIRE_INVAL, "%s is a file, not a cache directory", st->dir);
    }
    if (rc == -EROFS || rc == -EACCES) {
        return quire_error_set_errno(
            err, -rc, "cannot write to %s, which --cache-dir-readonly only reads", st->dir);
    }
    return rc < 0 ? quire_error_set_errno(err, -rc, "cannot %s %s/lock", call, st->dir) : QUIRE_OK;
}

static int dir_open(file_store *st, quire_error *err)
{
    int rc;

    if (st->opts.is_readonly) {
        return QUIRE_OK;
    }
    rc = st->ops->make_dir(st->ops->ctx, st->dir, 0700);
    if (rc < 0 && rc != -EEXIST) {
        return quire_error_set_errno(err, -rc, "cannot make the cache directory %s", st->dir);
    }
    return dir_lock(st, err);
}

/* Directory, lock and index, in a thread of their own: the disk may be stuck. */
static void *open_main(void *ctx)
{
    file_store *st = ctx;
    quire_error err = QUIRE_ERROR_INIT;
    int rc = dir_open(st, &err);

    rc = rc == QUIRE_OK ? quire_file_recover(st, &err) : rc;
    (void)pthread_mutex_lock(&st->lock);
    st->open_rc = rc;
    st->open_err = err;
    st->is_opened = true;
    (void)pthread_cond_signal(&st->ended);
    (void)pthread_mutex_unlock(&st->lock);
    return NULL;
}

/* Wait for open_main(). Returns whether it ended within open_ms. */
static bool open_wait(file_store *st)
{
    const struct timespec until = quire_deadline(st->opts.open_ms);
    bool is_opened;

    (void)pthread_mutex_lock(&st->lock);
    while (!st->is_opened && pthread_cond_timedwait(&st->ended, &st->lock, &until) != ETIMEDOUT) {
    }
    is_opened = st->is_opened;
    (void)pthread_mutex_unlock(&st->lock);
    return is_opened;
}

/* *is_left: the thread still runs, and the store is its own. */
static int dir_read(file_store *st, quire_error *err, bool *is_left)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, open_main, st) != 0) {
        return quire_error_set(err, QUIRE_NOMEM, "cannot start a thread to open %s", st->dir);
    }
    if (!open_wait(st)) {
        *is_left = true;
        (void)pthread_detach(thread);
        quire_file_quiet(st);
        return quire_error_set(err, QUIRE_IO,
                               "cannot open %s: the disk did not answer within %u ms", st->dir,
                               st->opts.open_ms);
    }
    (void)pthread_join(thread, NULL);
    if (st->open_rc < 0 && err != NULL) {
        *err = st->open_err;
    }
    return st->open_rc;
}

static int threads_start(file_store *st, quire_error *err)
{
    const quire_reads_client client = { quire_file_read_next, quire_file_read_done, st };
    const int rc =
        quire_reads_create(&st->reads, st->opts.reads_kind, st->opts.reads_max, &client, st->ops);

    if (rc < 0) {
        return quire_error_set(err, rc, "cannot start reading: %s",
                               rc == QUIRE_UNSUPP ? "this kernel or build has no io_uring"
                                                  : quire_status_text(rc));
    }
    if (!st->opts.is_readonly) {
        st->has_writer = pthread_create(&st->writer, NULL, quire_file_writer_main, st) == 0;
        if (!st->has_writer) {
            return quire_error_set(err, QUIRE_NOMEM, "cannot start the writer of %s", st->dir);
        }
    }
    return QUIRE_OK;
}

static void give_back_none(void *ctx, quire_transfer *transfer)
{
    (void)ctx;
    (void)transfer;
}

/* A store without threads, with the index and the files that recovery found in the directory. */
static int store_init(file_store *st, const quire_file_store_opts *opts)
{
    const uint64_t expected = opts->capacity_bytes / RECORD_EXPECT;
    uint64_t seed = quire_clock_ns() ^ (uintptr_t)st;

    st->store = (quire_store){ .ops = &quire_file_store_ops, .name = "file" };
    st->opts = *opts;
    st->opts.segment_bytes = segment_bytes_of(opts);
    st->ops = opts->ops != NULL ? opts->ops : quire_file_ops_default();
    st->lock_fd = -1;
    st->open.fd = -1;
    (void)snprintf(st->dir, sizeof st->dir, "%s", opts->dir);
    (void)pthread_mutex_init(&st->lock, NULL);
    (void)pthread_mutex_init(&st->log_lock, NULL);
    (void)quire_cond_init(&st->work);
    (void)quire_cond_init(&st->ended);
    st->stats.state = opts->is_readonly ? QUIRE_STORE_READONLY : QUIRE_STORE_READY;
    st->stats.capacity_bytes = opts->capacity_bytes;
    st->stats.stored_bytes = QUIRE_FILE_OVERHEAD_BYTES;
    st->sequence = 1;
    st->next_number = 1;
    /* Without random numbers of the system the seed is harder to guess than not at all. */
    (void)!getrandom(&seed, sizeof seed, GRND_NONBLOCK);
    st->block = aligned_alloc(QUIRE_SEGMENT_BLOCK, QUIRE_SEGMENT_BLOCK);
    QUIRE_FAIL_IF(st->block == NULL, QUIRE_NOMEM);
    return quire_index_create(&st->index, (uint32_t)(expected < 1u << 24 ? expected : 1u << 24),
                              seed);
}

int quire_file_store_create(quire_store **out, const quire_file_store_opts *opts, quire_error *err)
{
    bool is_left = false;
    file_store *st;
    int rc;

    *out = NULL;
    QUIRE_TRY(opts_check(opts, segment_bytes_of(opts), err));
    st = calloc(1, sizeof *st);
    if (st == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "cannot open %s: out of memory", opts->dir);
    }
    rc = store_init(st, opts);
    if (rc < 0) {
        rc = quire_error_set(err, rc, "cannot open %s: out of memory", opts->dir);
    }
    rc = rc == QUIRE_OK ? quire_file_accounts_init(st, err) : rc;
    rc = rc == QUIRE_OK ? dir_read(st, err, &is_left) : rc;
    if (is_left) {
        return rc;
    }
    rc = rc == QUIRE_OK ? threads_start(st, err) : rc;
    if (rc < 0) {
        st->store.ops->close(&st->store, give_back_none, NULL);
        return rc;
    }
    *out = &st->store;
    return QUIRE_OK;
}
