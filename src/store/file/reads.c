/* reads.c - the engine of threads with pread, and the choice of an engine; see reads.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/reads.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define TRIES_MAX 16 /* of one read that is interrupted */

struct quire_reads {
    quire_uring *uring; /* NULL: threads */
    quire_reads_client client;
    const quire_file_ops *ops;
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t ended;
    uint64_t n_kicks;
    uint32_t n_threads;
    uint32_t n_running;
    bool is_closing;
    pthread_t threads[QUIRE_READS_MAX];
};

bool quire_read_advance(quire_read *read, ssize_t n)
{
    if (n == -EINTR || n == -EAGAIN) {
        if (++read->tries <= TRIES_MAX) {
            return true;
        }
        read->error = -EIO;
        return false;
    }
    if (n < 0) {
        read->error = (int)n;
        return false;
    }
    read->n_done += (size_t)n;
    return n > 0 && read->n_done < read->n_bytes;
}

static void read_run(quire_reads *r, quire_read *read)
{
    ssize_t n;

    do {
        n = r->ops->pread(r->ops->ctx, read->fd, read->buffer + read->n_done,
                          read->n_bytes - read->n_done, read->offset + read->n_done);
    } while (quire_read_advance(read, n));
    r->client.done(r->client.ctx, read);
}

static bool is_closing(quire_reads *r)
{
    bool closing;

    (void)pthread_mutex_lock(&r->lock);
    closing = r->is_closing;
    (void)pthread_mutex_unlock(&r->lock);
    return closing;
}

static void *thread_main(void *arg)
{
    quire_reads *r = arg;
    uint64_t seen = 0;

    for (;;) {
        quire_read read = { .fd = -1 };

        if (!is_closing(r) && r->client.next(r->client.ctx, &read)) {
            read_run(r, &read);
            continue;
        }
        (void)pthread_mutex_lock(&r->lock);
        while (seen == r->n_kicks && !r->is_closing) {
            (void)pthread_cond_wait(&r->work, &r->lock);
        }
        seen = r->n_kicks;
        if (r->is_closing) {
            r->n_running--;
            (void)pthread_cond_signal(&r->ended);
            (void)pthread_mutex_unlock(&r->lock);
            return NULL;
        }
        (void)pthread_mutex_unlock(&r->lock);
    }
}

int quire_reads_create(quire_reads **out, quire_reads_kind kind, uint32_t n_max,
                       const quire_reads_client *client, const quire_file_ops *ops)
{
    quire_reads *r = calloc(1, sizeof *r);

    *out = NULL;
    QUIRE_FAIL_IF(r == NULL, QUIRE_NOMEM);
    n_max = n_max < QUIRE_READS_MAX ? n_max : QUIRE_READS_MAX;
    r->client = *client;
    r->ops = ops;
    if (kind != QUIRE_READS_POOL) {
        r->uring = quire_uring_create(n_max, client, ops);
        if (r->uring == NULL && kind == QUIRE_READS_URING) {
            free(r);
            return QUIRE_UNSUPP;
        }
    }
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)quire_cond_init(&r->work);
    (void)quire_cond_init(&r->ended);
    while (r->uring == NULL && r->n_threads < n_max) {
        (void)pthread_mutex_lock(&r->lock);
        r->n_running++;
        (void)pthread_mutex_unlock(&r->lock);
        if (pthread_create(&r->threads[r->n_threads], NULL, thread_main, r) != 0) {
            (void)pthread_mutex_lock(&r->lock);
            r->n_running--;
            (void)pthread_mutex_unlock(&r->lock);
            break;
        }
        r->n_threads++;
    }
    if (r->uring == NULL && r->n_threads == 0) {
        (void)quire_reads_close(r, 0);
        return QUIRE_NOMEM;
    }
    *out = r;
    return QUIRE_OK;
}

void quire_reads_kick(quire_reads *r)
{
    if (r->uring != NULL) {
        quire_uring_kick(r->uring);
        return;
    }
    (void)pthread_mutex_lock(&r->lock);
    r->n_kicks++;
    (void)pthread_cond_broadcast(&r->work);
    (void)pthread_mutex_unlock(&r->lock);
}

static bool threads_end(quire_reads *r, uint64_t deadline_ns)
{
    const struct timespec deadline = quire_timespec(deadline_ns);
    bool is_ended;

    (void)pthread_mutex_lock(&r->lock);
    r->is_closing = true;
    (void)pthread_cond_broadcast(&r->work);
    while (r->n_running > 0 &&
           pthread_cond_timedwait(&r->ended, &r->lock, &deadline) != ETIMEDOUT) {
    }
    is_ended = r->n_running == 0;
    (void)pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->n_threads; i++) {
        if (is_ended) {
            (void)pthread_join(r->threads[i], NULL);
        } else {
            (void)pthread_detach(r->threads[i]);
        }
    }
    return is_ended;
}

bool quire_reads_close(quire_reads *r, uint64_t deadline_ns)
{
    if (r->uring != NULL ? !quire_uring_close(r->uring, deadline_ns)
                         : !threads_end(r, deadline_ns)) {
        return false;
    }
    (void)pthread_cond_destroy(&r->work);
    (void)pthread_cond_destroy(&r->ended);
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
    return true;
}

const char *quire_reads_name(const quire_reads *r)
{
    return r->uring != NULL ? "io_uring" : "threads";
}
