/* page_curve.c - see page_curve.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/page_curve.h"

#include "base/check.h"
#include "base/clock.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/talk.h"
#include "offload/offload_file.h"
#include "quire/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPY_BYTES   ((uint64_t)64 << 20) /* of a memory, more than its caches hold */
#define FILE_PIECES  4u                   /* of the largest size, in a file */
#define ROUNDS       2u
#define BATCH_PIECES 64u   /* of one quire_device_copy() */
#define JUMP         7919u /* a prime above any number of pieces per batch */
#define PATH_BYTES   4096u

uint32_t quire_page_point_tokens(uint32_t i)
{
    return (uint32_t)QUIRE_TILE_TOKENS << i;
}

_Static_assert(QUIRE_TILE_TOKENS << (QUIRE_PAGE_POINTS - 1) == QUIRE_PAGE_TOKENS_MAX,
               "the last size is the largest");

/* ---- the choice ---- */

quire_page_point quire_page_curve_best(const quire_page_curve *curve)
{
    quire_page_point best = { 0 };

    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        best.in = fmax(best.in, curve->points[i].in);
        best.out = fmax(best.out, curve->points[i].out);
        best.attention = fmax(best.attention, curve->points[i].attention);
    }
    return best;
}

/* The smallest share of a best that a size has. */
static double share_of(const quire_page_curve *curve, uint32_t i)
{
    const quire_page_point best = quire_page_curve_best(curve);
    const quire_page_point *p = &curve->points[i];
    double share = 1.0;

    share = best.in > 0.0 ? fmin(share, p->in / best.in) : share;
    share = best.out > 0.0 ? fmin(share, p->out / best.out) : share;
    return best.attention > 0.0 ? fmin(share, p->attention / best.attention) : share;
}

uint32_t quire_page_curves_choose(const quire_page_curve *curves, uint32_t n, bool *has_share)
{
    double most = -1.0;
    uint32_t choice = 0;

    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS && most < QUIRE_PAGE_SHARE; i++) {
        double share = 1.0;

        for (uint32_t j = 0; j < n; j++) {
            share = fmin(share, share_of(&curves[j], i));
        }
        choice = share > most ? i : choice;
        most = fmax(share, most);
    }
    *has_share = most >= QUIRE_PAGE_SHARE;
    return choice;
}

/* Between two sizes. */
static int interrupt_check(quire_error *err)
{
    return quire_interrupt_seen() ? quire_error_set(err, QUIRE_CANCELED, "interrupted") : QUIRE_OK;
}

uint64_t quire_page_curve_bytes(const quire_attn_work *work)
{
    const uint64_t n_pages = (work->n_tokens + QUIRE_PAGE_TOKENS_MAX - 1) / QUIRE_PAGE_TOKENS_MAX;
    const uint64_t bytes =
        work->n_layers * n_pages * quire_attn_work_page_bytes(work->format, QUIRE_PAGE_TOKENS_MAX);

    return bytes > 2 * COPY_BYTES ? bytes : 2 * COPY_BYTES;
}

/* ---- copies of one size ---- */

/* The two ends of copies. */
typedef struct ends {
    quire_device *device;
    quire_device_memory pages;
    quire_device_memory other; /* pinned */
    int fd;                    /* of a file, without a device */
    unsigned char *buffer;     /* [piece_bytes] of the file's copies */
    uint64_t bytes;            /* of each end */
    uint64_t piece_bytes;
    uint32_t n_pieces;
} ends;

/* Where copy number i goes: each piece once in n_pieces copies. */
static uint64_t place_of(const ends *e, uint64_t i)
{
    return i * JUMP % e->n_pieces * e->piece_bytes;
}

static int device_copies(const ends *e, bool is_in, uint64_t n)
{
    quire_device_piece pieces[BATCH_PIECES];

    for (uint64_t i = 0; i < n;) {
        uint32_t k = 0;

        for (; k < BATCH_PIECES && k < e->n_pieces && i < n; i++, k++) {
            pieces[k] = (quire_device_piece){ .to = is_in ? &e->pages : &e->other,
                                              .from = is_in ? &e->other : &e->pages,
                                              .to_offset = place_of(e, i),
                                              .from_offset = place_of(e, i),
                                              .bytes = e->piece_bytes };
        }
        QUIRE_TRY(quire_device_copy(e->device, pieces, k));
    }
    return quire_device_sync(e->device);
}

static int file_copies(const ends *e, bool is_in, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const off_t at = (off_t)place_of(e, i);
        const ssize_t done = is_in ? pwrite(e->fd, e->buffer, e->piece_bytes, at)
                                   : pread(e->fd, e->buffer, e->piece_bytes, at);

        if (done != (ssize_t)e->piece_bytes) {
            errno = done >= 0 ? ENOSPC : errno;
            return QUIRE_IO;
        }
    }
    return QUIRE_OK;
}

static int copies_time(const ends *e, bool is_in, uint64_t n, double *seconds)
{
    const uint64_t begin_ns = quire_clock_ns();

    QUIRE_TRY(e->device != NULL ? device_copies(e, is_in, n) : file_copies(e, is_in, n));
    *seconds = (double)(quire_clock_ns() - begin_ns + 1) * 1e-9;
    return QUIRE_OK;
}

static int copies_rate(const ends *e, bool is_in, double *rate)
{
    double seconds;

    *rate = 0.0;
    for (uint32_t i = 0; i <= ROUNDS; i++) {
        QUIRE_TRY(copies_time(e, is_in, e->n_pieces, &seconds));
        if (i > 0) { /* the first round touches memory for the first time */
            *rate = fmax(*rate, (double)(e->n_pieces * e->piece_bytes) / seconds);
        }
    }
    return QUIRE_OK;
}

static int point_copies(ends *e, quire_page_point *point)
{
    e->piece_bytes = point->piece_bytes;
    e->n_pieces = (uint32_t)(e->bytes / e->piece_bytes);
    QUIRE_TRY(copies_rate(e, true, &point->in));
    return copies_rate(e, false, &point->out);
}

/* ---- a device, and the host ---- */

static int device_copies_measure(quire_page_curve *out, const quire_attn_work *work,
                                 quire_error *err)
{
    ends e = { .bytes = COPY_BYTES };
    int rc;

    QUIRE_TRY(quire_device_peek(&e.device, work->device, err));
    rc = quire_device_alloc(e.device, QUIRE_DEVICE_PAGES, COPY_BYTES, &e.pages);
    if (rc == QUIRE_OK) {
        rc = quire_device_alloc(e.device, QUIRE_DEVICE_PINNED, COPY_BYTES, &e.other);
    }
    if (rc == QUIRE_OK) {
        memset(e.other.host, 1, (size_t)COPY_BYTES);
    }
    for (uint32_t i = 0; rc == QUIRE_OK && i < QUIRE_PAGE_POINTS && !quire_interrupt_seen(); i++) {
        rc = point_copies(&e, &out->points[i]);
    }
    (void)quire_device_sync(e.device); /* a copy that nobody has waited for uses the memory */
    quire_device_free(e.device, &e.other);
    quire_device_free(e.device, &e.pages);
    quire_device_close(e.device);
    return rc < 0 ? quire_error_set(err, rc, "device %s: copies of %llu bytes: %s", work->device,
                                    (unsigned long long)e.piece_bytes, quire_status_text(rc))
                  : interrupt_check(err);
}

int quire_page_curve_device(quire_page_curve *out, const quire_attn_work *work, quire_error *err)
{
    quire_attn_work sized = *work;

    *out = (quire_page_curve){ .is_cached = false };
    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        quire_page_point *p = &out->points[i];

        sized.page_tokens = quire_page_point_tokens(i);
        p->page_tokens = sized.page_tokens;
        p->piece_bytes = quire_attn_work_page_bytes(work->format, p->page_tokens);
        QUIRE_TRY(interrupt_check(err));
        QUIRE_TRY(quire_attn_rate_get(&sized, &p->attention, err));
    }
    QUIRE_TRY(device_copies_measure(out, work, err));
    out->choice = quire_page_curves_choose(out, 1, &out->has_share);
    return QUIRE_OK;
}

/* ---- a disk ---- */

/* One layer of a stripe. */
static uint64_t stripe_bytes(quire_format format, uint32_t page_tokens)
{
    const uint64_t bytes = QUIRE_OFFLOAD_STRIPE * quire_attn_work_page_bytes(format, page_tokens);

    return (bytes + QUIRE_OFFLOAD_ALIGN - 1) / QUIRE_OFFLOAD_ALIGN * QUIRE_OFFLOAD_ALIGN;
}

/* A file without a name in the directory, with direct access where the file system has it. */
static int file_make(const char *dir, int *fd, bool *is_cached, quire_error *err)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/quire-tune-XXXXXX", dir);

    if (n < 0 || (size_t)n >= sizeof path) {
        return quire_error_set(err, QUIRE_INVAL, "%.80s...: the path is too long", dir);
    }
    *fd = mkostemp(path, O_CLOEXEC);
    if (*fd < 0) {
        return quire_error_set_errno(err, errno, "cannot make a file in %s", dir);
    }
    (void)unlink(path);
    *is_cached = fcntl(*fd, F_SETFL, O_DIRECT) != 0;
    return QUIRE_OK;
}

int quire_page_curve_disk_check(const char *dir, quire_error *err)
{
    bool is_cached;
    int fd;

    QUIRE_TRY(file_make(dir, &fd, &is_cached, err));
    (void)close(fd);
    return QUIRE_OK;
}

/* Some file systems take the flag of direct access and then refuse each transfer. */
static void direct_try(const ends *e, quire_page_curve *out)
{
    if (!out->is_cached && pwrite(e->fd, e->buffer, QUIRE_OFFLOAD_ALIGN, 0) < 0 &&
        errno == EINVAL) {
        out->is_cached = fcntl(e->fd, F_SETFL, fcntl(e->fd, F_GETFL) & ~O_DIRECT) == 0;
    }
}

int quire_page_curve_disk(quire_page_curve *out, const quire_attn_work *work, const char *dir,
                          quire_error *err)
{
    const uint64_t largest =
        stripe_bytes(work->format, quire_page_point_tokens(QUIRE_PAGE_POINTS - 1));
    ends e = { .bytes = FILE_PIECES * largest };
    int rc;

    *out = (quire_page_curve){ .is_cached = false };
    QUIRE_TRY(file_make(dir, &e.fd, &out->is_cached, err));
    e.buffer = aligned_alloc(QUIRE_OFFLOAD_ALIGN, (size_t)largest);
    rc = e.buffer != NULL ? QUIRE_OK : quire_error_set(err, QUIRE_NOMEM, "out of memory");
    if (rc == QUIRE_OK) {
        memset(e.buffer, 1, (size_t)largest);
        direct_try(&e, out);
    }
    for (uint32_t i = 0; rc == QUIRE_OK && i < QUIRE_PAGE_POINTS; i++) {
        quire_page_point *p = &out->points[i];

        p->page_tokens = quire_page_point_tokens(i);
        p->piece_bytes = stripe_bytes(work->format, p->page_tokens);
        errno = 0;
        rc = point_copies(&e, p);
        if (rc < 0) {
            rc = quire_error_set_errno(err, errno, "pages in %s", dir);
        } else {
            rc = interrupt_check(err);
        }
    }
    free(e.buffer);
    (void)close(e.fd);
    out->choice = quire_page_curves_choose(out, 1, &out->has_share);
    return rc;
}
