/* client_watch.c - see client_watch.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/client_watch.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define LOOK_MS 1000u

struct quire_client_watch {
    uint64_t headers_max_us, request_max_us; /* 0 = none */
    pthread_t thread;
    pthread_mutex_t lock; /* over the rest */
    pthread_cond_t end;
    bool is_ending;
    quire_client *first;
};

static void look(const quire_client_watch *watch, uint64_t now_us)
{
    for (const quire_client *w = watch->first; w != NULL; w = w->next) {
        const uint64_t max_us = w->is_in_request ? watch->request_max_us : watch->headers_max_us;

        if (max_us > 0 && now_us > w->since_us && now_us - w->since_us > max_us) {
            (void)shutdown(w->fd, SHUT_RDWR);
        }
    }
}

void quire_client_watch_look(quire_client_watch *watch, uint64_t now_us)
{
    (void)pthread_mutex_lock(&watch->lock);
    look(watch, now_us);
    (void)pthread_mutex_unlock(&watch->lock);
}

static void *run(void *opaque)
{
    quire_client_watch *watch = opaque;

    (void)pthread_mutex_lock(&watch->lock);
    while (!watch->is_ending) {
        const struct timespec until = quire_deadline(LOOK_MS);

        (void)pthread_cond_timedwait(&watch->end, &watch->lock, &until);
        look(watch, quire_clock_ns() / 1000);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return NULL;
}

int quire_client_watch_start(quire_client_watch **out, uint32_t headers_max_s,
                             uint32_t request_max_s, quire_error *err)
{
    quire_client_watch *watch = calloc(1, sizeof *watch);

    *out = NULL;
    if (watch == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    watch->headers_max_us = (uint64_t)headers_max_s * 1000000u;
    watch->request_max_us = (uint64_t)request_max_s * 1000000u;
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)quire_cond_init(&watch->end);
    if (pthread_create(&watch->thread, NULL, run, watch) != 0) {
        (void)pthread_cond_destroy(&watch->end);
        (void)pthread_mutex_destroy(&watch->lock);
        free(watch);
        return quire_error_set(err, QUIRE_NOMEM, "the thread that watches clients does not start");
    }
    *out = watch;
    return QUIRE_OK;
}

void quire_client_watch_stop(quire_client_watch *watch)
{
    if (watch == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&watch->lock);
    watch->is_ending = true;
    (void)pthread_cond_signal(&watch->end);
    (void)pthread_mutex_unlock(&watch->lock);
    (void)pthread_join(watch->thread, NULL);
    (void)pthread_cond_destroy(&watch->end);
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch);
}

void quire_client_watch_add(quire_client_watch *watch, quire_client *w, int fd, uint64_t now_us)
{
    *w = (quire_client){ .fd = fd, .since_us = now_us };
    (void)pthread_mutex_lock(&watch->lock);
    w->next = watch->first;
    if (w->next != NULL) {
        w->next->previous = w;
    }
    watch->first = w;
    (void)pthread_mutex_unlock(&watch->lock);
}

void quire_client_watch_remove(quire_client_watch *watch, quire_client *w)
{
    (void)pthread_mutex_lock(&watch->lock);
    *(w->previous != NULL ? &w->previous->next : &watch->first) = w->next;
    if (w->next != NULL) {
        w->next->previous = w->previous;
    }
    (void)pthread_mutex_unlock(&watch->lock);
}

void quire_client_watch_turn(quire_client_watch *watch, quire_client *w, bool is_in_request,
                             uint64_t now_us)
{
    (void)pthread_mutex_lock(&watch->lock);
    w->is_in_request = is_in_request;
    w->since_us = now_us;
    (void)pthread_mutex_unlock(&watch->lock);
}
