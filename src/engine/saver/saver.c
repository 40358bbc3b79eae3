/* saver.c - life and thread of the saver; see saver_object.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/saver/saver_object.h"

#include "base/check.h"
#include "base/clock.h"
#include "core/prefix/prefix_learned.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 512u
#define NS_PER_US  1000u

void quire_saver_log(const quire_saver *saver, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;

    if (saver->opts.log == NULL) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    saver->opts.log(saver->opts.log_ctx, line);
}

quire_saved_clock quire_saver_clock(const quire_saver *saver)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (quire_saved_clock){
        .now_us = quire_loop_now_us(saver->devices.loops[0]),
        .wall_us = saver->opts.wall_us != NULL
                       ? saver->opts.wall_us(saver->opts.wall_ctx)
                       : (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / NS_PER_US,
    };
}

uint64_t quire_saver_pin_change(uint32_t device, uint64_t changed)
{
    return changed * QUIRE_REPLICAS_MAX + device;
}

/* ---- create ---- */

static int locks_init(quire_saver *saver)
{
    QUIRE_TRY(quire_cond_init(&saver->wake));
    if (pthread_mutex_init(&saver->lock, NULL) != 0) {
        (void)pthread_cond_destroy(&saver->wake);
        return QUIRE_NOMEM;
    }
    return QUIRE_OK;
}

static void identities_take(quire_saver *saver)
{
    for (uint32_t d = 0; d < saver->devices.n; d++) {
        const quire_prefix_key key = quire_loop_key(saver->devices.loops[d], NULL, 0);
        unsigned char identity[QUIRE_HASH128_BYTES];
        uint32_t i = 0;

        (void)quire_le_put(quire_le_put(identity, key.identity[0], 8), key.identity[1], 8);
        while (i < saver->n_identities &&
               memcmp(saver->identities[i], identity, sizeof identity) != 0) {
            i++;
        }
        memcpy(saver->identities[i], identity, sizeof identity);
        saver->n_identities += i == saver->n_identities;
        saver->identity_of[d] = i;
    }
}

static void opts_take(quire_saver *saver)
{
    quire_saver_opts *o = &saver->opts;

    *o = saver->parts->opts->saver;
    o->bytes_max = o->bytes_max != 0 ? o->bytes_max : QUIRE_SAVER_BYTES;
    o->round_us = o->round_us != 0 ? o->round_us : QUIRE_SAVER_ROUND_US;
    if (quire_prefix_learned_bytes(saver->parts->tree) == 0) {
        o->keeps[QUIRE_STATE_REUSE] = false;
    }
    saver->policy = quire_evict_policy_name(saver->parts->opts->cache_policy);
    identities_take(saver);
    saver->stats.is_on = true;
    saver->stats.bytes_max = o->bytes_max;
    saver->reuse_ns = quire_clock_ns();
}

static int dirs_open(quire_saver *saver, quire_error *err)
{
    quire_state_dir_opts opts = {
        .path = saver->opts.dir,
        .own = (const unsigned char(*)[QUIRE_HASH128_BYTES])saver->identities,
        .n_own = saver->n_identities,
        .is_readonly = saver->opts.is_readonly,
        .bytes_max = saver->opts.bytes_max,
        .ops = saver->opts.ops
    };

    for (uint32_t i = 0; i < saver->n_identities; i++) {
        memcpy(opts.identity, saver->identities[i], sizeof opts.identity);
        QUIRE_TRY(quire_state_dir_open(&saver->dirs[i], &opts, err));
    }
    return QUIRE_OK;
}

static void saver_free(quire_saver *saver)
{
    for (uint32_t k = 0; k < QUIRE_STATE_KIND_COUNT; k++) {
        quire_saved_list_fini(&saver->lists[k]);
    }
    for (uint32_t i = 0; i < saver->n_identities; i++) {
        quire_state_dir_close(saver->dirs[i]);
    }
    (void)pthread_cond_destroy(&saver->wake);
    (void)pthread_mutex_destroy(&saver->lock);
    free(saver->learned);
    free(saver);
}

int quire_saver_create(quire_saver **out, const quire_saver_devices *devices, quire_error *err)
{
    const quire_loop_parts *parts = quire_loop_parts_get(devices->loops[0]);
    quire_saver *saver;
    int rc;

    *out = NULL;
    if (parts->opts->saver.dir == NULL) {
        return QUIRE_OK;
    }
    saver = calloc(1, sizeof *saver);
    if (saver == NULL || locks_init(saver) < 0) {
        free(saver);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine's state");
    }
    saver->devices = *devices;
    saver->parts = parts;
    opts_take(saver);
    saver->learned = malloc(quire_prefix_learned_bytes(parts->tree) + 1);
    rc = saver->learned != NULL
             ? dirs_open(saver, err)
             : quire_error_set(err, QUIRE_NOMEM, "no memory for the engine's state");
    rc = rc == QUIRE_OK ? quire_saver_restore(saver, err) : rc;
    if (rc < 0) {
        saver_free(saver);
        return rc;
    }
    saver->opts.dir = NULL; /* the caller's */
    *out = saver;
    return QUIRE_OK;
}

/* ---- the thread ---- */

/* Wait for the next round. Returns false when there is to be none but the last. */
static bool wait_round(quire_saver *saver, uint64_t wait_us)
{
    const uint64_t until_ns = quire_clock_ns() + wait_us * NS_PER_US;
    const struct timespec until = quire_timespec(until_ns);
    bool is_going_on;

    (void)pthread_mutex_lock(&saver->lock);
    while (!saver->is_stopping && wait_us > 0 && quire_clock_ns() < until_ns) {
        (void)pthread_cond_timedwait(&saver->wake, &saver->lock, &until);
    }
    is_going_on = !saver->is_stopping;
    (void)pthread_mutex_unlock(&saver->lock);
    return is_going_on;
}

static void *thread_main(void *arg)
{
    quire_saver *saver = arg;
    bool has_more = quire_saver_round(saver, false);

    while (wait_round(saver, has_more            ? 0
                             : saver->has_failed ? QUIRE_SAVER_RETRY_US
                                                 : saver->opts.round_us)) {
        has_more = quire_saver_round(saver, false);
    }
    while (quire_saver_round(saver, true)) {
    }
    return NULL;
}

/* Remove items of kinds that are not kept. */
static void leave_out(quire_saver *saver)
{
    for (uint32_t k = 0; k < QUIRE_STATE_KIND_COUNT; k++) {
        quire_saved_list *list = &saver->lists[k];

        for (uint32_t i = 0; i < list->n && !saver->opts.keeps[k]; i++) {
            (void)quire_state_dir_remove(saver->dirs[list->items[i].identity],
                                         &list->items[i].name);
        }
        if (!saver->opts.keeps[k]) {
            quire_saved_list_fini(list);
        }
    }
}

void quire_saver_start(quire_saver *saver)
{
    if (saver == NULL || saver->opts.is_readonly) {
        return;
    }
    leave_out(saver);
    saver->has_thread = pthread_create(&saver->thread, NULL, thread_main, saver) == 0;
    if (!saver->has_thread) {
        (void)pthread_mutex_lock(&saver->lock);
        saver->stats.failures_total++;
        (void)pthread_mutex_unlock(&saver->lock);
        quire_saver_log(saver, "state: no thread to write it: what changes from now on is lost");
    }
}

void quire_saver_destroy(quire_saver *saver)
{
    if (saver == NULL) {
        return;
    }
    if (saver->has_thread) {
        (void)pthread_mutex_lock(&saver->lock);
        saver->is_stopping = true;
        (void)pthread_cond_signal(&saver->wake);
        (void)pthread_mutex_unlock(&saver->lock);
        (void)pthread_join(saver->thread, NULL);
    }
    saver_free(saver);
}

void quire_saver_stats_get(quire_saver *saver, quire_saver_stats *out)
{
    *out = (quire_saver_stats){ 0 };
    if (saver != NULL) {
        (void)pthread_mutex_lock(&saver->lock);
        *out = saver->stats;
        (void)pthread_mutex_unlock(&saver->lock);
    }
}
