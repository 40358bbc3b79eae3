/* serve_tune.c - see serve_tune.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_tune.h"

#include "base/check.h"
#include "base/clock.h"
#include "cli/serving/serve_args.h"
#include "trace/online/recent.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct quire_serve_tuner {
    quire_engine *engine;
    quire_engine_tune_opts opts;
    uint64_t interval_us;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool is_stopping;
};

/* False when the tuner is stopped meanwhile. */
static bool wait_interval(quire_serve_tuner *t)
{
    const struct timespec until = quire_timespec(quire_clock_ns() + t->interval_us * 1000u);
    bool goes_on;

    (void)pthread_mutex_lock(&t->lock);
    while (!t->is_stopping && pthread_cond_timedwait(&t->wake, &t->lock, &until) != ETIMEDOUT) {
    }
    goes_on = !t->is_stopping;
    (void)pthread_mutex_unlock(&t->lock);
    return goes_on;
}

/* Changes are events of the engine. Failures (a concurrent call over HTTP, no memory) are not
 * reported: the thread tries again later. */
static void *run(void *arg)
{
    quire_serve_tuner *t = arg;

    while (wait_interval(t)) {
        (void)quire_engine_tune(t->engine, &t->opts, NULL);
    }
    return NULL;
}

int quire_serve_tuner_start(quire_serve_tuner **out, quire_engine *engine,
                            const quire_engine_tune_opts *opts, uint64_t interval_us,
                            quire_error *err)
{
    quire_serve_tuner *t = calloc(1, sizeof(*t));
    int failed;

    *out = NULL;
    if (t == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    t->engine = engine;
    t->opts = *opts;
    t->interval_us = interval_us;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)quire_cond_init(&t->wake);
    failed = pthread_create(&t->thread, NULL, run, t);
    if (failed != 0) {
        (void)pthread_cond_destroy(&t->wake);
        (void)pthread_mutex_destroy(&t->lock);
        free(t);
        return quire_error_set_errno(err, failed, "cannot start a thread");
    }
    *out = t;
    return QUIRE_OK;
}

void quire_serve_tuner_stop(quire_serve_tuner *t)
{
    if (t == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&t->lock);
    t->is_stopping = true;
    (void)pthread_cond_signal(&t->wake);
    (void)pthread_mutex_unlock(&t->lock);
    (void)pthread_join(t->thread, NULL);
    (void)pthread_cond_destroy(&t->wake);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

int quire_serve_watch_check(const quire_serve_args *args, quire_error *err)
{
    if (args->record_plain && args->record == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "record_plain needs record");
    }
    if (args->recent_bytes > 0 && args->recent_bytes < QUIRE_RECENT_BYTES_MIN) {
        return quire_error_set(err, QUIRE_INVAL, "recent_memory: 0, or at least %u bytes",
                               QUIRE_RECENT_BYTES_MIN);
    }
    if (args->tune_interval_us > 0 && args->tune_interval_us < 1000000) {
        return quire_error_set(err, QUIRE_INVAL, "tune_interval: 0, or at least 1s");
    }
    if (args->auto_tune && (args->recent_bytes == 0 || args->tune_interval_us == 0)) {
        return quire_error_set(err, QUIRE_INVAL, "auto_tune needs %s",
                               args->recent_bytes == 0 ? "recent_memory" : "a tune_interval");
    }
    return QUIRE_OK;
}
