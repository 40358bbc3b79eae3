/* offload_file.c - the file, its stripes, writing, and reading one page; see offload_file.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/hash128.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NS_PER_MS 1000000u
#define NAMES_MAX 64u /* of files that are opened at once: more than devices */

/* ---- opening ---- */

static size_t padded(size_t bytes)
{
    return (bytes + QUIRE_OFFLOAD_ALIGN - 1) / QUIRE_OFFLOAD_ALIGN * QUIRE_OFFLOAD_ALIGN;
}

/* Pages of which some bytes are kept are read one by one. */
static size_t slot_bytes_of(size_t part_bytes, bool is_kept)
{
    return is_kept ? padded(part_bytes) : part_bytes;
}

uint64_t quire_offload_file_bytes_min(const size_t *part_bytes, uint32_t n_parts, bool is_kept)
{
    uint64_t n = 0;

    for (uint32_t p = 0; p < n_parts; p++) {
        n += padded(QUIRE_OFFLOAD_STRIPE * slot_bytes_of(part_bytes[p], is_kept));
    }
    return n;
}

static int parts_init(quire_offload_file *f, const quire_offload_file_opts *o)
{
    const size_t *kept = o->kept_bytes;
    size_t before = 0;

    f->n_parts = o->n_parts;
    f->parts = calloc(o->n_parts, sizeof *f->parts);
    QUIRE_FAIL_IF(f->parts == NULL, QUIRE_NOMEM);
    for (uint32_t p = 0; p < o->n_parts; p++) {
        quire_offload_part *part = &f->parts[p];

        QUIRE_CHECK(kept == NULL || kept[p] <= o->part_bytes[p]);
        part->page_bytes = o->part_bytes[p];
        part->slot_bytes = slot_bytes_of(part->page_bytes, kept != NULL);
        part->stripe_bytes = padded(QUIRE_OFFLOAD_STRIPE * part->slot_bytes);
        part->kept_bytes = kept != NULL ? kept[p] : 0;
        part->kept_offset = f->kept_stripe_bytes;
        f->kept_stripe_bytes += QUIRE_OFFLOAD_STRIPE * part->kept_bytes;
        part->mem_offset = o->extent_pages * before;
        before += part->page_bytes;
        f->stripe_total_bytes += part->stripe_bytes;
        if (part->stripe_bytes > f->stripe_bytes_max) {
            f->stripe_bytes_max = part->stripe_bytes;
        }
    }
    f->page_bytes = before;
    return QUIRE_OK;
}

static int stripes_init(quire_offload_file *f, const quire_offload_file_opts *o, quire_error *err)
{
    const uint64_t n = o->capacity_bytes / f->stripe_total_bytes;
    const uint64_t n_most = UINT32_MAX / QUIRE_OFFLOAD_STRIPE;
    uint64_t offset = 0;

    if (n == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "offloaded pages: %llu bytes have no room for %u pages (%llu bytes)",
                               (unsigned long long)o->capacity_bytes, QUIRE_OFFLOAD_STRIPE,
                               (unsigned long long)f->stripe_total_bytes);
    }
    f->stripes_max = (uint32_t)(n < n_most ? n : n_most);
    for (uint32_t p = 0; p < f->n_parts; p++) {
        f->parts[p].file_offset = offset;
        offset += (uint64_t)f->stripes_max * f->parts[p].stripe_bytes;
    }
    f->slots_used = calloc(f->stripes_max, sizeof *f->slots_used);
    f->sums = calloc(f->stripes_max, sizeof *f->sums);
    f->kept = calloc(f->stripes_max, sizeof *f->kept);
    f->bounce = aligned_alloc(QUIRE_OFFLOAD_ALIGN, f->stripe_bytes_max);
    if (f->slots_used == NULL || f->sums == NULL || f->kept == NULL || f->bounce == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    memset(f->bounce, 0, f->stripe_bytes_max);
    return QUIRE_OK;
}

/* A file with a name that ends at once, where the file system has no nameless files. Another
 * device's file of this process may have a name for a moment, too. */
static int open_named(quire_offload_file *f, const char *dir)
{
    int fd = -EEXIST;

    for (uint32_t i = 0; i < NAMES_MAX && fd == -EEXIST; i++) {
        char path[4096];

        if (snprintf(path, sizeof path, "%s/offload-%ld-%u.tmp", dir, (long)getpid(), i) >=
            (int)sizeof path) {
            return -ENAMETOOLONG;
        }
        fd = quire_file_open_direct(f->ops, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0) {
            (void)f->ops->unlink(f->ops->ctx, path);
        }
    }
    return fd;
}

static int file_make(quire_offload_file *f, const quire_offload_file_opts *o, quire_error *err)
{
    (void)f->ops->make_dir(f->ops->ctx, o->dir, 0700); /* opening says why it failed */
    f->fd = quire_file_open_direct(f->ops, o->dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (f->fd == -EOPNOTSUPP || f->fd == -EISDIR || f->fd == -EINVAL) {
        f->fd = open_named(f, o->dir);
    }
    if (f->fd < 0) {
        return quire_error_set(err, QUIRE_IO, "%s: cannot make a file for offloaded pages: %s",
                               o->dir, strerror(-f->fd));
    }
    return QUIRE_OK;
}

static void sync_init(quire_offload_file *f)
{
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)quire_cond_init(&f->changed);
}

int quire_offload_file_open(quire_offload_file **out, const quire_offload_file_opts *opts,
                            quire_error *err)
{
    quire_offload_file *f = calloc(1, sizeof *f);
    quire_reads_client client = { quire_offload_reads_next, quire_offload_reads_done, f };
    int rc;

    *out = NULL;
    if (f == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    f->fd = -1;
    f->ops = opts->ops != NULL ? opts->ops : quire_file_ops_default();
    f->wait_ms = opts->wait_ms != 0 ? opts->wait_ms : QUIRE_OFFLOAD_WAIT_MS;
    sync_init(f);
    if ((rc = parts_init(f, opts)) < 0) {
        quire_error_set(err, rc, "no memory for offloaded pages");
    } else if ((rc = stripes_init(f, opts, err)) == QUIRE_OK &&
               (rc = file_make(f, opts, err)) == QUIRE_OK) {
        rc = quire_reads_create(&f->reads, opts->reads_kind, QUIRE_OFFLOAD_READS, &client, f->ops);
        rc = rc == QUIRE_OK ? quire_offload_caller_open(&f->caller, f->ops) : rc;
        if (rc < 0) {
            quire_error_set(err, rc, "offloaded pages: no way to read: %s", quire_status_text(rc));
        }
    }
    if (rc < 0) {
        quire_offload_file_close(f);
        return rc;
    }
    *out = f;
    return QUIRE_OK;
}

void quire_offload_file_close(quire_offload_file *f)
{
    const uint64_t deadline_ns = quire_clock_ns() + (uint64_t)QUIRE_OFFLOAD_CLOSE_MS * NS_PER_MS;
    bool is_ended;

    if (f == NULL) {
        return;
    }
    is_ended = quire_offload_caller_close(f->caller, deadline_ns);
    if ((f->reads != NULL && !quire_reads_close(f->reads, deadline_ns)) || !is_ended) {
        return; /* the disk is stuck: memory that it may still write to stays */
    }
    if (f->fd >= 0) {
        (void)f->ops->close(f->ops->ctx, f->fd);
    }
    for (uint32_t i = 0; f->sums != NULL && i < f->stripes_max; i++) {
        free(f->sums[i]);
    }
    for (uint32_t i = 0; f->kept != NULL && i < f->stripes_max; i++) {
        free(f->kept[i]);
    }
    (void)pthread_cond_destroy(&f->changed);
    (void)pthread_mutex_destroy(&f->lock);
    free(f->bounce);
    free(f->kept);
    free(f->sums);
    free(f->slots_used);
    free(f->parts);
    free(f);
}

/* ---- sizes ---- */

size_t quire_offload_stripe_bytes(const quire_offload_file *f, uint32_t part)
{
    return f->parts[part].stripe_bytes;
}

size_t quire_offload_stripe_bytes_max(const quire_offload_file *f)
{
    return f->stripe_bytes_max;
}

uint32_t quire_offload_n_parts(const quire_offload_file *f)
{
    return f->n_parts;
}

size_t quire_offload_part_offset(const quire_offload_file *f, uint32_t part)
{
    return f->parts[part].mem_offset;
}

size_t quire_offload_part_bytes(const quire_offload_file *f, uint32_t part)
{
    return f->parts[part].page_bytes;
}

size_t quire_offload_slot_bytes(const quire_offload_file *f, uint32_t part)
{
    return f->parts[part].slot_bytes;
}

size_t quire_offload_kept_bytes(const quire_offload_file *f)
{
    return f->kept_stripe_bytes;
}

/* ---- checksums, trouble ---- */

uint64_t quire_offload_sum(const void *bytes, size_t n_bytes)
{
    unsigned char hash[QUIRE_HASH128_BYTES];

    quire_hash128(bytes, n_bytes, hash);
    return quire_le_get(hash, 8);
}

bool quire_offload_page_is_good(const quire_offload_file *f, uint32_t slot, uint32_t part,
                                const unsigned char *bytes)
{
    const uint64_t *sums = f->sums[slot / QUIRE_OFFLOAD_STRIPE];

    return quire_offload_sum(bytes, f->parts[part].page_bytes) ==
           sums[(size_t)part * QUIRE_OFFLOAD_STRIPE + slot % QUIRE_OFFLOAD_STRIPE];
}

bool quire_offload_stripe_is_good(const quire_offload_file *f, uint32_t stripe, uint32_t part,
                                  const unsigned char *bytes)
{
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_STRIPE; i++) {
        if ((f->slots_used[stripe] & 1u << i) != 0 &&
            !quire_offload_page_is_good(f, stripe * QUIRE_OFFLOAD_STRIPE + i, part,
                                        bytes + i * f->parts[part].slot_bytes)) {
            return false;
        }
    }
    return true;
}

int quire_offload_failed(quire_offload_file *f, const char *call, int error)
{
    f->stats.failures_total++;
    (void)snprintf(f->trouble, sizeof f->trouble, "%s: %s", call,
                   error < 0 ? strerror(-error) : "the checksum is wrong");
    return error < 0 ? QUIRE_IO : QUIRE_CORRUPT;
}

/* The same for callers without the lock. */
static int failed(quire_offload_file *f, const char *call, int error)
{
    int status;

    (void)pthread_mutex_lock(&f->lock);
    f->stats.is_broken |= error == -ETIMEDOUT;
    status = quire_offload_failed(f, call, error);
    (void)pthread_mutex_unlock(&f->lock);
    return status;
}

/* A read of the next part may be under way, and count too. */
static void count(quire_offload_file *f, uint64_t *figure, uint64_t n)
{
    (void)pthread_mutex_lock(&f->lock);
    *figure += n;
    (void)pthread_mutex_unlock(&f->lock);
}

/* ---- stripes ---- */

static int stripe_take(quire_offload_file *f, uint32_t *out)
{
    uint32_t i = f->stripe_hint;

    while (i < f->stripes_end && f->slots_used[i] != 0) {
        i++;
    }
    f->stripe_hint = i;
    QUIRE_FAIL_IF(i == f->stripes_max, QUIRE_LIMIT);
    if (f->sums[i] == NULL) {
        f->sums[i] = calloc((size_t)f->n_parts * QUIRE_OFFLOAD_STRIPE, sizeof **f->sums);
        QUIRE_FAIL_IF(f->sums[i] == NULL, QUIRE_LIMIT);
    }
    if (f->kept[i] == NULL && f->kept_stripe_bytes > 0) {
        f->kept[i] = malloc(f->kept_stripe_bytes);
        QUIRE_FAIL_IF(f->kept[i] == NULL, QUIRE_LIMIT);
    }
    f->stripes_end = i == f->stripes_end ? i + 1 : f->stripes_end;
    *out = i;
    return QUIRE_OK;
}

static void kept_free(quire_offload_file *f, uint32_t stripe)
{
    free(f->kept[stripe]);
    f->kept[stripe] = NULL;
}

static unsigned char *kept_at(const quire_offload_file *f, uint32_t slot, uint32_t p)
{
    const quire_offload_part *part = &f->parts[p];

    return f->kept[slot / QUIRE_OFFLOAD_STRIPE] + part->kept_offset +
           slot % QUIRE_OFFLOAD_STRIPE * part->kept_bytes;
}

const void *quire_offload_kept(const quire_offload_file *f, uint32_t slot, uint32_t part)
{
    return kept_at(f, slot, part);
}

/* Write one part of the pages of a stripe, and keep their checksums and their last bytes. */
static int part_write(quire_offload_file *f, uint32_t stripe, uint32_t p,
                      const quire_page_addr *pages, uint32_t n_pages)
{
    const quire_offload_part *part = &f->parts[p];
    uint64_t *sums = f->sums[stripe] + (size_t)p * QUIRE_OFFLOAD_STRIPE;

    for (uint32_t i = 0; i < n_pages; i++) {
        const unsigned char *from =
            pages[i].extent + part->mem_offset + pages[i].slot * part->page_bytes;

        memcpy(f->bounce + i * part->slot_bytes, from, part->page_bytes);
        sums[i] = quire_offload_sum(from, part->page_bytes);
        if (part->kept_bytes > 0) {
            memcpy(kept_at(f, stripe * QUIRE_OFFLOAD_STRIPE + i, p),
                   from + part->page_bytes - part->kept_bytes, part->kept_bytes);
        }
    }
    return quire_offload_write_at(f->caller, f->fd, f->bounce, part->stripe_bytes,
                                  part->file_offset + (uint64_t)stripe * part->stripe_bytes,
                                  f->wait_ms);
}

/* The pages of a stripe change: reads under way are stale from now on. */
static void slots_set(quire_offload_file *f, uint32_t stripe, uint32_t slots)
{
    (void)pthread_mutex_lock(&f->lock);
    f->slots_used[stripe] = (uint8_t)slots;
    f->generation++;
    (void)pthread_mutex_unlock(&f->lock);
}

int quire_offload_file_write(quire_offload_file *f, const quire_page_addr *pages, uint32_t n_pages,
                             uint32_t *first_slot)
{
    uint32_t stripe;

    QUIRE_CHECK(n_pages > 0 && n_pages <= QUIRE_OFFLOAD_STRIPE);
    QUIRE_FAIL_IF(f->stats.is_broken, QUIRE_IO);
    QUIRE_TRY(stripe_take(f, &stripe));
    slots_set(f, stripe, 0);
    for (uint32_t p = 0; p < f->n_parts; p++) {
        const int rc = part_write(f, stripe, p, pages, n_pages);

        if (rc < 0) {
            kept_free(f, stripe);
            return failed(f, "write", rc);
        }
    }
    slots_set(f, stripe, (1u << n_pages) - 1u);
    f->stripes_used++;
    count(f, &f->stats.written_bytes_total, f->stripe_total_bytes);
    *first_slot = stripe * QUIRE_OFFLOAD_STRIPE;
    return QUIRE_OK;
}

void quire_offload_file_release(quire_offload_file *f, uint32_t slot)
{
    const uint32_t stripe = slot / QUIRE_OFFLOAD_STRIPE;
    const uint32_t bit = 1u << slot % QUIRE_OFFLOAD_STRIPE;

    QUIRE_CHECK(stripe < f->stripes_end && (f->slots_used[stripe] & bit) != 0);
    slots_set(f, stripe, f->slots_used[stripe] & ~bit);
    if (f->slots_used[stripe] == 0) {
        kept_free(f, stripe);
        f->stripes_used--;
        f->stripe_hint = stripe < f->stripe_hint ? stripe : f->stripe_hint;
    }
}

int quire_offload_file_read(quire_offload_file *f, uint32_t slot, void *buffer, size_t bytes)
{
    const uint32_t stripe = slot / QUIRE_OFFLOAD_STRIPE;
    unsigned char *to = buffer;

    QUIRE_CHECK(stripe < f->stripes_end && bytes == f->page_bytes);
    QUIRE_FAIL_IF(f->stats.is_broken, QUIRE_IO);
    for (uint32_t p = 0; p < f->n_parts; p++) {
        const quire_offload_part *part = &f->parts[p];
        const size_t at = slot % QUIRE_OFFLOAD_STRIPE * part->slot_bytes;
        const size_t begin = at / QUIRE_OFFLOAD_ALIGN * QUIRE_OFFLOAD_ALIGN;
        const size_t end = padded(at + part->page_bytes);
        const int rc = quire_offload_read_at(
            f->caller, f->fd, f->bounce, end - begin,
            part->file_offset + (uint64_t)stripe * part->stripe_bytes + begin, f->wait_ms);

        if (rc < 0) {
            return failed(f, "read", rc);
        }
        memcpy(to, f->bounce + (at - begin), part->page_bytes);
        if (!quire_offload_page_is_good(f, slot, p, to)) {
            return failed(f, "read", 0);
        }
        to += part->page_bytes;
    }
    count(f, &f->stats.read_bytes_total, f->page_bytes);
    return QUIRE_OK;
}

/* ---- figures ---- */

void quire_offload_file_stats_get(const quire_offload_file *file, quire_offload_file_stats *out)
{
    quire_offload_file *f = (quire_offload_file *)(uintptr_t)file; /* its lock */

    (void)pthread_mutex_lock(&f->lock);
    *out = f->stats;
    (void)pthread_mutex_unlock(&f->lock);
    out->stripes_max = f->stripes_max;
    out->stripes_used = f->stripes_used;
    out->capacity_bytes = f->stripes_max * f->stripe_total_bytes;
    out->used_bytes = f->stripes_used * f->stripe_total_bytes;
}

void quire_offload_file_chosen(quire_offload_file *f, uint32_t n_chosen, uint32_t n_left)
{
    count(f, &f->stats.chosen_total, n_chosen);
    count(f, &f->stats.left_total, n_left);
}

/* A read for the next step may be under way, and fail. */
const char *quire_offload_file_trouble(const quire_offload_file *file)
{
    quire_offload_file *f = (quire_offload_file *)(uintptr_t)file; /* its lock */

    (void)pthread_mutex_lock(&f->lock);
    memcpy(f->told, f->trouble, sizeof f->told);
    (void)pthread_mutex_unlock(&f->lock);
    return f->told;
}

uint64_t quire_offload_file_generation(const quire_offload_file *f)
{
    return f->generation;
}
