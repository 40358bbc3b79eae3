/* offload_jobs.c - reading one part of many stripes: jobs, as the client of quire_reads.
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

/* Stripes from n_asked on that lie side by side in the file, as many as one read takes. */
static uint32_t run_length(const quire_offload_file *f, const quire_offload_job *job)
{
    const size_t stripe_bytes = f->parts[job->part].stripe_bytes;
    uint32_t n = 1;

    while (job->n_asked + n < job->n_stripes &&
           job->stripes[job->n_asked + n] == job->stripes[job->n_asked] + n &&
           (n + 1) * stripe_bytes <= QUIRE_OFFLOAD_READ_BYTES) {
        n++;
    }
    return n;
}

bool quire_offload_reads_next(void *ctx, quire_read *read)
{
    quire_offload_file *f = ctx;
    quire_offload_job *job;

    (void)pthread_mutex_lock(&f->lock);
    job = f->first;
    if (job != NULL) {
        const quire_offload_part *part = &f->parts[job->part];
        const uint32_t n = run_length(f, job);

        read->fd = f->fd;
        read->offset =
            part->file_offset + (uint64_t)job->stripes[job->n_asked] * part->stripe_bytes;
        read->n_bytes = n * part->stripe_bytes;
        read->buffer = job->buffer + job->n_asked * part->stripe_bytes;
        read->segment = job;
        read->place = job->n_asked;
        job->n_asked += n;
        if (job->n_asked == job->n_stripes) {
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

void quire_offload_reads_done(void *ctx, quire_read *read)
{
    quire_offload_file *f = ctx;
    quire_offload_job *job = read->segment;
    const size_t stripe_bytes = f->parts[job->part].stripe_bytes;
    const uint32_t n = (uint32_t)(read->n_bytes / stripe_bytes);
    const int error = read->error == 0 && read->n_done < read->n_bytes ? -ENODATA : read->error;
    bool is_good = error == 0;

    (void)pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < n && is_good && job->generation == f->generation; i++) {
        is_good = quire_offload_stripe_is_good(f, job->stripes[read->place + i], job->part,
                                               read->buffer + i * stripe_bytes);
    }
    if (!is_good) {
        job->status = quire_offload_failed(f, "read", error);
    }
    job->n_done += n;
    f->stats.read_bytes_total += read->n_done;
    if (job->n_done == job->n_stripes) {
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
    if (job->n_stripes > 0 && !f->stats.is_broken) {
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
