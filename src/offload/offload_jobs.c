/* offload_jobs.c - reading one part of many stripes or pages: jobs, as the client of quire_reads.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_internal.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <time.h>

#define NS_PER_MS 1000000u
#define NS_PER_US 1000u

/* ---- the client of quire_reads ---- */

/* A job's stripes, or its pages. */
static uint32_t units(const quire_offload_job *job)
{
    return job->pages != NULL ? job->n_pages : job->n_stripes;
}

static size_t unit_bytes(const quire_offload_file *f, const quire_offload_job *job)
{
    const quire_offload_part *part = &f->parts[job->part];

    return job->pages != NULL ? part->slot_bytes : part->stripe_bytes;
}

/* Whether unit i + n of a job lies n units behind unit i, in the file and in the buffer. */
static bool is_behind(const quire_offload_job *job, uint32_t i, uint32_t n)
{
    const quire_offload_page *pages = job->pages;

    if (pages == NULL) {
        return job->stripes[i + n] == job->stripes[i] + n;
    }
    return pages[i + n].slot == pages[i].slot + n && pages[i + n].place == pages[i].place + n &&
           pages[i + n].slot / QUIRE_OFFLOAD_STRIPE == pages[i].slot / QUIRE_OFFLOAD_STRIPE;
}

/* Units from n_asked on that lie side by side, as many as one read takes. */
static uint32_t run_length(const quire_offload_file *f, const quire_offload_job *job)
{
    const size_t bytes = unit_bytes(f, job);
    uint32_t n = 1;

    while (job->n_asked + n < units(job) && is_behind(job, job->n_asked, n) &&
           (n + 1) * bytes <= QUIRE_OFFLOAD_READ_BYTES) {
        n++;
    }
    return n;
}

/* The n units from n_asked on. */
static void read_fill(const quire_offload_file *f, quire_offload_job *job, uint32_t n,
                      quire_read *read)
{
    const quire_offload_part *part = &f->parts[job->part];
    const bool is_page = job->pages != NULL;
    const quire_offload_page at = is_page ? job->pages[job->n_asked] : (quire_offload_page){ 0 };
    const uint32_t stripe = is_page ? at.slot / QUIRE_OFFLOAD_STRIPE : job->stripes[job->n_asked];
    const uint32_t to = is_page ? at.place / QUIRE_OFFLOAD_STRIPE : job->n_asked;
    const size_t inside = at.slot % QUIRE_OFFLOAD_STRIPE * part->slot_bytes;

    read->fd = f->fd;
    read->offset = part->file_offset + (uint64_t)stripe * part->stripe_bytes + inside;
    read->n_bytes = n * unit_bytes(f, job);
    read->buffer = job->buffer + to * part->stripe_bytes + inside;
    read->segment = job;
    read->place = job->n_asked;
}

bool quire_offload_reads_next(void *ctx, quire_read *read)
{
    quire_offload_file *f = ctx;
    quire_offload_job *job;

    (void)pthread_mutex_lock(&f->lock);
    job = f->first;
    if (job != NULL) {
        const uint32_t n = run_length(f, job);

        read_fill(f, job, n, read);
        job->n_asked += n;
        if (job->n_asked == units(job)) {
            f->first = job->next;
            f->last = f->first != NULL ? f->last : NULL;
        }
    }
    (void)pthread_mutex_unlock(&f->lock);
    return job != NULL;
}

static void job_ended(quire_offload_file *f, quire_offload_job *job)
{
    job->is_active = false;
    if (--f->n_active == 0) {
        f->stats.read_us_total += (quire_clock_ns() - f->active_since_ns) / NS_PER_US;
    }
    (void)pthread_cond_broadcast(&f->changed);
}

static bool unit_is_good(const quire_offload_file *f, const quire_offload_job *job, uint32_t i,
                         const unsigned char *bytes)
{
    return job->pages != NULL ? quire_offload_page_is_good(f, job->pages[i].slot, job->part, bytes)
                              : quire_offload_stripe_is_good(f, job->stripes[i], job->part, bytes);
}

void quire_offload_reads_done(void *ctx, quire_read *read)
{
    quire_offload_file *f = ctx;
    quire_offload_job *job = read->segment;
    const uint32_t n = (uint32_t)(read->n_bytes / unit_bytes(f, job));
    const int error = read->error == 0 && read->n_done < read->n_bytes ? -ENODATA : read->error;
    bool is_good = error == 0;

    (void)pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < n && is_good && job->generation == f->generation; i++) {
        is_good = unit_is_good(f, job, read->place + i, read->buffer + i * unit_bytes(f, job));
    }
    if (!is_good) {
        job->status = quire_offload_failed(f, "read", error);
    }
    job->n_done += n;
    f->stats.read_bytes_total += read->n_done;
    if (job->n_done == units(job)) {
        job_ended(f, job);
    }
    (void)pthread_mutex_unlock(&f->lock);
}

/* ---- the owner ---- */

void quire_offload_job_begin(quire_offload_file *f, quire_offload_job *job)
{
    (void)pthread_mutex_lock(&f->lock);
    QUIRE_CHECK(!job->is_active);
    job->next = NULL;
    job->generation = f->generation;
    job->n_asked = 0;
    job->n_done = 0;
    job->status = f->stats.is_broken ? QUIRE_IO : QUIRE_OK;
    if (units(job) > 0 && !f->stats.is_broken) {
        job->is_active = true;
        if (f->last != NULL) {
            f->last->next = job;
        } else {
            f->first = job;
        }
        f->last = job;
        f->active_since_ns = f->n_active++ == 0 ? quire_clock_ns() : f->active_since_ns;
    }
    (void)pthread_mutex_unlock(&f->lock);
    quire_reads_kick(f->reads);
}

int quire_offload_job_wait(quire_offload_file *f, quire_offload_job *job)
{
    const uint64_t begin_ns = quire_clock_ns();
    const uint64_t end_ns = begin_ns + (uint64_t)f->wait_ms * NS_PER_MS;
    const struct timespec deadline = quire_timespec(end_ns);
    int rc = 0;
    int status;

    (void)pthread_mutex_lock(&f->lock);
    while (job->is_active && !f->stats.is_broken && rc != ETIMEDOUT) {
        rc = pthread_cond_timedwait(&f->changed, &f->lock, &deadline);
    }
    if (job->is_active && !f->stats.is_broken) {
        f->stats.is_broken = true;
        (void)quire_offload_failed(f, "read", -ETIMEDOUT);
    }
    status = job->is_active ? QUIRE_AGAIN : job->status;
    f->stats.wait_us_total += (quire_clock_ns() - begin_ns) / NS_PER_US;
    (void)pthread_mutex_unlock(&f->lock);
    return status;
}
