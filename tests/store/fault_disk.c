/* fault_disk.c - see fault_disk.h.
 *
 * SPDX-License-Identifier: MIT */
#include "fault_disk.h"

#include <time.h>

#define SHORT_BYTES 4096u /* the most that a short call moves: a block of O_DIRECT */

/* The fate of a call. */
typedef struct fate {
    int error;
    bool is_short;
} fate;

static void sleep_ms(uint32_t ms)
{
    const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

    (void)nanosleep(&t, NULL);
}

static fate suffer(fault_disk *f, fault_call call)
{
    fate out = { 0 };
    uint32_t delay_ms = 0;

    (void)pthread_mutex_lock(&f->lock);
    if ((f->plan.calls & FAULT_BIT(call)) != 0 && ++f->n_calls >= f->plan.first &&
        f->n_calls <= f->plan.last) {
        const uint64_t n_plans = f->n_plans;

        out = (fate){ -f->plan.error, f->plan.is_short };
        delay_ms = f->plan.delay_ms;
        f->n_stuck += f->plan.is_stuck;
        (void)pthread_cond_broadcast(&f->changed);
        while (f->plan.is_stuck && n_plans == f->n_plans) {
            (void)pthread_cond_wait(&f->changed, &f->lock);
        }
    }
    (void)pthread_mutex_unlock(&f->lock);
    sleep_ms(delay_ms);
    return out;
}

#define SUFFER(call)                                                                               \
    fault_disk *f = ctx;                                                                           \
    const fate fate_ = suffer(f, call);                                                            \
    if (fate_.error < 0) {                                                                         \
        return fate_.error;                                                                        \
    }

static void count_open(fault_disk *f, int n)
{
    (void)pthread_mutex_lock(&f->lock);
    f->n_open += n;
    (void)pthread_mutex_unlock(&f->lock);
}

static int fault_open(void *ctx, const char *path, int flags, mode_t mode)
{
    SUFFER(FAULT_OPEN)
    const int fd = f->base->open(f->base->ctx, path, flags, mode);

    count_open(f, fd >= 0);
    return fd;
}

static int fault_close(void *ctx, int fd)
{
    fault_disk *f = ctx;
    const fate out = suffer(f, FAULT_CLOSE);
    const int rc = f->base->close(f->base->ctx, fd);

    count_open(f, -1);
    return out.error < 0 ? out.error : rc;
}

static size_t short_of(const fate *out, size_t n_bytes)
{
    return out->is_short && n_bytes > SHORT_BYTES ? SHORT_BYTES : n_bytes;
}

static ssize_t fault_pread(void *ctx, int fd, void *buffer, size_t n_bytes, uint64_t offset)
{
    SUFFER(FAULT_PREAD)
    return f->base->pread(f->base->ctx, fd, buffer, short_of(&fate_, n_bytes), offset);
}

static ssize_t fault_pwrite(void *ctx, int fd, const void *buffer, size_t n_bytes, uint64_t offset)
{
    SUFFER(FAULT_PWRITE)
    return f->base->pwrite(f->base->ctx, fd, buffer, short_of(&fate_, n_bytes), offset);
}

static int fault_read_begin(void *ctx, int fd, size_t n_bytes, uint64_t offset)
{
    SUFFER(FAULT_READ_BEGIN)
    return f->base->read_begin(f->base->ctx, fd, n_bytes, offset);
}

static int fault_datasync(void *ctx, int fd)
{
    SUFFER(FAULT_DATASYNC)
    return f->base->datasync(f->base->ctx, fd);
}

static int fault_truncate(void *ctx, int fd, uint64_t n_bytes)
{
    SUFFER(FAULT_TRUNCATE)
    return f->base->truncate(f->base->ctx, fd, n_bytes);
}

static int fault_reserve(void *ctx, int fd, uint64_t n_bytes)
{
    SUFFER(FAULT_RESERVE)
    return f->base->reserve(f->base->ctx, fd, n_bytes);
}

static int fault_size(void *ctx, int fd, uint64_t *n_bytes)
{
    SUFFER(FAULT_SIZE)
    return f->base->size(f->base->ctx, fd, n_bytes);
}

static int fault_is_at(void *ctx, int fd, const char *path)
{
    SUFFER(FAULT_IS_AT)
    return f->base->is_at(f->base->ctx, fd, path);
}

static int fault_unlink(void *ctx, const char *path)
{
    SUFFER(FAULT_UNLINK)
    return f->base->unlink(f->base->ctx, path);
}

static int fault_make_dir(void *ctx, const char *path, mode_t mode)
{
    SUFFER(FAULT_MAKE_DIR)
    return f->base->make_dir(f->base->ctx, path, mode);
}

static int fault_sync_dir(void *ctx, const char *path)
{
    SUFFER(FAULT_SYNC_DIR)
    return f->base->sync_dir(f->base->ctx, path);
}

static int fault_list(void *ctx, const char *path, void (*each)(void *arg, const char *name),
                      void *arg)
{
    SUFFER(FAULT_LIST)
    return f->base->list(f->base->ctx, path, each, arg);
}

static int fault_lock(void *ctx, int fd)
{
    SUFFER(FAULT_LOCK)
    return f->base->lock(f->base->ctx, fd);
}

void fault_disk_init(fault_disk *f, const quire_file_ops *base)
{
    *f = (fault_disk){ .ops = { .open = fault_open,
                                .close = fault_close,
                                .pread = fault_pread,
                                .pwrite = fault_pwrite,
                                .read_begin = fault_read_begin,
                                .datasync = fault_datasync,
                                .truncate = fault_truncate,
                                .reserve = fault_reserve,
                                .size = fault_size,
                                .is_at = fault_is_at,
                                .unlink = fault_unlink,
                                .make_dir = fault_make_dir,
                                .sync_dir = fault_sync_dir,
                                .list = fault_list,
                                .lock = fault_lock,
                                .ctx = f },
                       .base = base,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .changed = PTHREAD_COND_INITIALIZER };
}

void fault_disk_set(fault_disk *f, fault_plan plan)
{
    (void)pthread_mutex_lock(&f->lock);
    f->plan = plan;
    f->n_plans++;
    f->n_calls = 0;
    f->n_stuck = 0;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
}

unsigned fault_disk_calls(fault_disk *f)
{
    unsigned n;

    (void)pthread_mutex_lock(&f->lock);
    n = f->n_calls;
    (void)pthread_mutex_unlock(&f->lock);
    return n;
}

void fault_disk_wait_stuck(fault_disk *f, unsigned n)
{
    (void)pthread_mutex_lock(&f->lock);
    while (f->n_stuck < n) {
        (void)pthread_cond_wait(&f->changed, &f->lock);
    }
    (void)pthread_mutex_unlock(&f->lock);
}

int fault_disk_open_files(fault_disk *f)
{
    int n;

    (void)pthread_mutex_lock(&f->lock);
    n = f->n_open;
    (void)pthread_mutex_unlock(&f->lock);
    return n;
}

const char *fault_call_name(fault_call call)
{
    static const char *const names[FAULT_CALLS] = { "open",       "close",    "pread",    "pwrite",
                                                    "read_begin", "datasync", "truncate", "reserve",
                                                    "size",       "is_at",    "unlink",   "mkdir",
                                                    "sync_dir",   "list",     "lock" };

    return names[call];
}
