/* reads_uring.c - the engine with io_uring: one thread submits and reaps; see reads.h.
 *
 * The thread sleeps in io_uring_enter until a read ends or the eventfd is written to, which is read
 * through the ring as well.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/reads.h"

#ifdef QUIRE_HAS_URING

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct quire_uring {
    struct io_uring ring;
    quire_reads_client client;
    const quire_file_ops *ops;
    int event_fd;
    uint64_t event;        /* the number read from event_fd */
    bool is_event_pending; /* its read is in the ring */
    uint32_t n_max;
    uint32_t n_under_way;
    atomic_bool is_closing;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_ended;
    quire_read reads[QUIRE_READS_MAX];
    bool is_used[QUIRE_READS_MAX];
};

static void event_arm(quire_uring *u)
{
    struct io_uring_sqe *sqe = u->is_event_pending ? NULL : io_uring_get_sqe(&u->ring);

    if (sqe != NULL) {
        io_uring_prep_read(sqe, u->event_fd, &u->event, sizeof u->event, 0);
        io_uring_sqe_set_data(sqe, NULL);
        u->is_event_pending = true;
    }
}

static void read_end(quire_uring *u, quire_read *read)
{
    u->client.done(u->client.ctx, read);
    u->is_used[read - u->reads] = false;
    u->n_under_way--;
}

/* Put the rest of a read into the ring. */
static void read_begin(quire_uring *u, quire_read *read)
{
    const size_t left = read->n_bytes - read->n_done;
    const int rc = u->ops->read_begin(u->ops->ctx, read->fd, left, read->offset + read->n_done);
    struct io_uring_sqe *sqe = rc == 0 ? io_uring_get_sqe(&u->ring) : NULL;

    if (sqe == NULL) {
        read->error = rc < 0 ? rc : -EIO;
        read_end(u, read);
        return;
    }
    io_uring_prep_read(sqe, read->fd, read->buffer + read->n_done, (unsigned)left,
                       read->offset + read->n_done);
    io_uring_sqe_set_data(sqe, read);
}

static void reads_take(quire_uring *u)
{
    for (uint32_t i = 0; i < u->n_max && !atomic_load(&u->is_closing); i++) {
        while (!u->is_used[i]) {
            u->reads[i] = (quire_read){ .fd = -1 };
            if (!u->client.next(u->client.ctx, &u->reads[i])) {
                return;
            }
            u->is_used[i] = true;
            u->n_under_way++;
            read_begin(u, &u->reads[i]);
        }
    }
}

static void completions_take(quire_uring *u)
{
    struct io_uring_cqe *cqe;

    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        quire_read *read = io_uring_cqe_get_data(cqe);
        const ssize_t n = cqe->res;

        io_uring_cqe_seen(&u->ring, cqe);
        if (read == NULL) {
            u->is_event_pending = false;
        } else if (quire_read_advance(read, n)) {
            read_begin(u, read);
        } else {
            read_end(u, read);
        }
    }
}

static void *thread_main(void *arg)
{
    quire_uring *u = arg;

    while (u->n_under_way > 0 || !atomic_load(&u->is_closing)) {
        int rc;

        event_arm(u);
        reads_take(u);
        rc = io_uring_submit_and_wait(&u->ring, 1);
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY) {
            break; /* the ring is of no use; reads under way stay so */
        }
        completions_take(u);
    }
    (void)pthread_mutex_lock(&u->lock);
    u->is_ended = u->n_under_way == 0;
    (void)pthread_cond_signal(&u->ended);
    (void)pthread_mutex_unlock(&u->lock);
    return NULL;
}

static void uring_free(quire_uring *u)
{
    (void)pthread_cond_destroy(&u->ended);
    (void)pthread_mutex_destroy(&u->lock);
    io_uring_queue_exit(&u->ring);
    (void)close(u->event_fd);
    free(u);
}

quire_uring *quire_uring_create(uint32_t n_max, const quire_reads_client *client,
                                const quire_file_ops *ops)
{
    quire_uring *u = calloc(1, sizeof *u);

    if (u == NULL) {
        return NULL;
    }
    u->client = *client;
    u->ops = ops;
    u->n_max = n_max;
    u->event_fd = eventfd(0, EFD_CLOEXEC);
    if (u->event_fd < 0) {
        free(u);
        return NULL;
    }
    /* Twice: the reads that a full ring completes may be put in again before others are
     * submitted. */
    if (io_uring_queue_init(2 * QUIRE_READS_MAX, &u->ring, 0) < 0) {
        (void)close(u->event_fd);
        free(u);
        return NULL;
    }
    (void)pthread_mutex_init(&u->lock, NULL);
    (void)quire_cond_init(&u->ended);
    if (pthread_create(&u->thread, NULL, thread_main, u) != 0) {
        uring_free(u);
        return NULL;
    }
    return u;
}

void quire_uring_kick(quire_uring *u)
{
    const uint64_t one = 1;

    /* An eventfd takes 2^64 - 2 of these. */
    (void)!write(u->event_fd, &one, sizeof one);
}

bool quire_uring_close(quire_uring *u, uint64_t deadline_ns)
{
    const struct timespec deadline = quire_timespec(deadline_ns);
    bool is_ended;

    atomic_store(&u->is_closing, true);
    quire_uring_kick(u);
    (void)pthread_mutex_lock(&u->lock);
    while (!u->is_ended && pthread_cond_timedwait(&u->ended, &u->lock, &deadline) != ETIMEDOUT) {
    }
    is_ended = u->is_ended;
    (void)pthread_mutex_unlock(&u->lock);
    if (!is_ended) {
        (void)pthread_detach(u->thread);
        return false;
    }
    (void)pthread_join(u->thread, NULL);
    uring_free(u);
    return true;
}

#else

quire_uring *quire_uring_create(uint32_t n_max, const quire_reads_client *client,
                                const quire_file_ops *ops)
{
    (void)n_max;
    (void)client;
    (void)ops;
    return NULL;
}

void quire_uring_kick(quire_uring *uring)
{
    (void)uring;
}

bool quire_uring_close(quire_uring *uring, uint64_t deadline_ns)
{
    (void)uring;
    (void)deadline_ns;
    return true;
}

#endif
