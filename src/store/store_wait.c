/* store_wait.c - see store_wait.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/store_wait.h"

#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct quire_store_wait {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_done; /* under the lock */
};

quire_store_wait *quire_store_wait_new(void)
{
    quire_store_wait *w = calloc(1, sizeof *w);

    if (w != NULL) {
        (void)pthread_mutex_init(&w->lock, NULL);
        (void)quire_cond_init(&w->changed);
    }
    return w;
}

void quire_store_wait_free(quire_store_wait *w)
{
    if (w != NULL) {
        (void)pthread_cond_destroy(&w->changed);
        (void)pthread_mutex_destroy(&w->lock);
        free(w);
    }
}

static void wake(void *ctx)
{
    quire_store_wait *w = ctx;

    (void)pthread_mutex_lock(&w->lock);
    w->has_done = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

quire_store_waker quire_store_wait_waker(quire_store_wait *w)
{
    return (quire_store_waker){ wake, w };
}

quire_transfer *quire_store_wait_next(quire_store_wait *w, quire_store *store, uint32_t within_ms)
{
    const struct timespec deadline = quire_deadline(within_ms);
    quire_transfer *t = NULL;
    int rc = 0;

    while (store->ops->poll(store, &t, 1) == 0) {
        if (rc == ETIMEDOUT) {
            return NULL;
        }
        (void)pthread_mutex_lock(&w->lock);
        while (!w->has_done && rc != ETIMEDOUT) {
            rc = within_ms == UINT32_MAX ? pthread_cond_wait(&w->changed, &w->lock)
                                         : pthread_cond_timedwait(&w->changed, &w->lock, &deadline);
        }
        w->has_done = false;
        (void)pthread_mutex_unlock(&w->lock);
    }
    return t;
}
