/* offload_caller.c - single calls to the disk with a time limit; see offload_internal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_internal.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define NS_PER_MS 1000000u

typedef enum caller_state {
    CALLER_IDLE,
    CALLER_ASKED,
    CALLER_ENDING,
    CALLER_ENDED
} caller_state;

typedef struct disk_call {
    int fd;
    unsigned char *buffer;
    size_t n_bytes;
    uint64_t offset;
    bool is_write;
} disk_call;

struct quire_offload_caller {
    const quire_file_ops *ops;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    caller_state state; /* under the lock, as are the fields below */
    disk_call call;
    int result;
};

static int call_make(const quire_offload_caller *c, const disk_call *call)
{
    return call->is_write
               ? quire_file_write_all(c->ops, call->fd, call->buffer, call->n_bytes, call->offset)
               : quire_file_read_all(c->ops, call->fd, call->buffer, call->n_bytes, call->offset);
}

static void *thread_main(void *arg)
{
    quire_offload_caller *c = arg;

    (void)pthread_mutex_lock(&c->lock);
    while (c->state != CALLER_ENDING) {
        if (c->state == CALLER_ASKED) {
            const disk_call call = c->call;
            int result;

            (void)pthread_mutex_unlock(&c->lock);
            result = call_make(c, &call);
            (void)pthread_mutex_lock(&c->lock);
            c->result = result;
            c->state = c->state == CALLER_ASKED ? CALLER_IDLE : c->state;
            (void)pthread_cond_broadcast(&c->changed);
        } else {
            (void)pthread_cond_wait(&c->changed, &c->lock);
        }
    }
    c->state = CALLER_ENDED;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

int quire_offload_caller_open(quire_offload_caller **out, const quire_file_ops *ops)
{
    quire_offload_caller *c = calloc(1, sizeof *c);

    *out = NULL;
    QUIRE_FAIL_IF(c == NULL, QUIRE_NOMEM);
    c->ops = ops;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)quire_cond_init(&c->changed);
    if (pthread_create(&c->thread, NULL, thread_main, c) != 0) {
        (void)pthread_cond_destroy(&c->changed);
        (void)pthread_mutex_destroy(&c->lock);
        free(c);
        return QUIRE_NOMEM;
    }
    *out = c;
    return QUIRE_OK;
}

/* Wait, under the lock, while the state is this one. Returns whether it has changed in time. */
static bool wait_while(quire_offload_caller *c, caller_state state, uint64_t deadline_ns)
{
    const struct timespec deadline = quire_timespec(deadline_ns);
    int rc = 0;

    while (c->state == state && rc != ETIMEDOUT) {
        rc = pthread_cond_timedwait(&c->changed, &c->lock, &deadline);
    }
    return c->state != state;
}

bool quire_offload_caller_close(quire_offload_caller *c, uint64_t deadline_ns)
{
    bool is_ended;

    if (c == NULL) {
        return true;
    }
    (void)pthread_mutex_lock(&c->lock);
    c->state = CALLER_ENDING;
    (void)pthread_cond_broadcast(&c->changed);
    is_ended = wait_while(c, CALLER_ENDING, deadline_ns);
    (void)pthread_mutex_unlock(&c->lock);
    if (!is_ended) {
        (void)pthread_detach(c->thread);
        return false;
    }
    (void)pthread_join(c->thread, NULL);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
    return true;
}

static int call(quire_offload_caller *c, const disk_call *what, uint32_t wait_ms)
{
    const uint64_t deadline_ns = quire_clock_ns() + (uint64_t)wait_ms * NS_PER_MS;
    int result = -ETIMEDOUT;

    (void)pthread_mutex_lock(&c->lock);
    QUIRE_CHECK(c->state == CALLER_IDLE);
    c->call = *what;
    c->state = CALLER_ASKED;
    (void)pthread_cond_broadcast(&c->changed);
    if (wait_while(c, CALLER_ASKED, deadline_ns)) {
        result = c->result;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return result;
}

int quire_offload_read_at(quire_offload_caller *c, int fd, void *buffer, size_t n_bytes,
                          uint64_t offset, uint32_t wait_ms)
{
    return call(c, &(disk_call){ fd, buffer, n_bytes, offset, false }, wait_ms);
}

int quire_offload_write_at(quire_offload_caller *c, int fd, const void *buffer, size_t n_bytes,
                           uint64_t offset, uint32_t wait_ms)
{
    /* A call that writes only reads from it. */
    return call(c, &(disk_call){ fd, (unsigned char *)(uintptr_t)buffer, n_bytes, offset, true },
                wait_ms);
}
