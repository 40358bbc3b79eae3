/* pins.c - see pins.h.
 *
 * Core's table holds the pins (quire/pin.h). For each pin the engine keeps an entry with the
 * request that computes it and the client that waits for it. That request is an ordinary request of
 * its class, but generates nothing. The pin is held when the request ends, before the request
 * releases its pages.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/adapt_object.h"
#include "engine/adapt/pin_table.h"

#include "base/check.h"
#include "base/num.h"
#include "base/parse.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPTS_MAX 3u /* attempts to compute a pin */
#define US_PER_S     1000000u

/* Both or neither. */
static int locks_init(quire_pin_table *pins)
{
    QUIRE_FAIL_IF(pthread_mutex_init(&pins->lock, NULL) != 0, QUIRE_NOMEM);
    if (pthread_cond_init(&pins->changed, NULL) != 0) {
        (void)pthread_mutex_destroy(&pins->lock);
        return QUIRE_NOMEM;
    }
    return QUIRE_OK;
}

int quire_adapt_pins_open(quire_adapt *adapt, quire_error *err)
{
    quire_pin_table *pins;
    quire_pins_opts opts = QUIRE_PINS_OPTS_INIT;
    int rc;

    if (adapt->parts->opts->pins_max > QUIRE_ENGINE_PINS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u pins: at most %u are possible",
                               adapt->parts->opts->pins_max, QUIRE_ENGINE_PINS_MAX);
    }
    if (adapt->parts->opts->pins_max == 0 || adapt->parts->opts->no_prefix_cache) {
        return QUIRE_OK;
    }
    pins = calloc(1, sizeof *pins + adapt->parts->opts->pins_max * sizeof pins->entries[0]);
    if (pins == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the table of pins");
    }
    if (locks_init(pins) < 0) {
        free(pins);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the table of pins");
    }
    adapt->pins = pins;
    opts.pins_max = adapt->parts->opts->pins_max;
    opts.tree = adapt->parts->tree;
    rc = quire_pins_create(&pins->table, &opts);
    return rc < 0 ? quire_error_set(err, rc, "cannot create the table of pins: %s",
                                    quire_status_text(rc))
                  : QUIRE_OK;
}

/* ---- entries ---- */

quire_pin_entry *quire_adapt_pin_find(quire_pin_table *pins, quire_pin_id id)
{
    for (uint32_t i = 0; pins != NULL && i < pins->n; i++) {
        if (pins->entries[i].id == id) {
            return &pins->entries[i];
        }
    }
    return NULL;
}

static quire_pin_info info_of(const quire_adapt *adapt, const quire_pin_entry *entry)
{
    quire_pin_info info = { 0 };

    QUIRE_CHECK(quire_pins_get(adapt->pins->table, entry->id, &info) == QUIRE_OK);
    return info;
}

static uint64_t seconds(uint64_t us)
{
    return (us + US_PER_S / 2) / US_PER_S;
}

static void show(quire_pin_table *pins, quire_pin_entry *entry, const quire_pin_info *info)
{
    quire_engine_pin shown = {
        .tenant_bytes = info->key.salt_bytes,
        .state = info->state == QUIRE_PIN_HELD ? QUIRE_ENGINE_PIN_HELD : QUIRE_ENGINE_PIN_COMPUTING,
        .class_index = entry->class_index,
        .n_tokens = entry->n_tokens,
        .n_held_tokens = info->n_held_tokens,
        .n_cached_tokens = entry->n_cached_tokens,
        .bytes = info->bytes,
        .ttl_s = entry->ttl_s,
    };

    (void)snprintf(shown.name, sizeof shown.name, "%s", info->name);
    if (entry->tokens != NULL) {
        (void)quire_retain_text(&entry->retain, shown.retain, sizeof shown.retain);
    }
    if (info->key.salt_bytes > 0) {
        memcpy(shown.tenant, info->key.salt, info->key.salt_bytes);
    }
    (void)pthread_mutex_lock(&pins->lock);
    entry->shown = shown;
    entry->created_us = info->created_us;
    entry->expires_us = info->expires_us;
    (void)pthread_mutex_unlock(&pins->lock);
}

void quire_adapt_pin_show(quire_adapt *adapt, quire_pin_entry *entry)
{
    const quire_pin_info info = info_of(adapt, entry);

    show(adapt->pins, entry, &info);
}

void quire_adapt_pin_describe(const quire_adapt *adapt, const quire_pin_entry *entry,
                              quire_engine_pin *out)
{
    const uint64_t now_us = quire_loop_now_us(adapt->loop);

    *out = entry->shown;
    out->age_s = now_us > entry->created_us ? (now_us - entry->created_us) / US_PER_S : 0;
    out->left_s = entry->expires_us > now_us ? seconds(entry->expires_us - now_us) : 0;
}

void quire_adapt_pin_changed(quire_pin_table *pins, quire_pin_entry *entry)
{
    entry->changed = atomic_fetch_add(&pins->changes, 1) + 1;
}

quire_pin_entry *quire_adapt_pin_add(quire_pin_table *pins, const quire_pin_entry *entry)
{
    (void)pthread_mutex_lock(&pins->lock);
    pins->entries[pins->n] = *entry;
    pins->n++;
    (void)pthread_mutex_unlock(&pins->lock);
    quire_adapt_pin_changed(pins, &pins->entries[pins->n - 1]);
    return &pins->entries[pins->n - 1];
}

static void entry_fini(quire_adapt *adapt, quire_pin_entry *entry)
{
    quire_loop_retained_release(adapt->loop, entry->condensed);
    free(entry->tokens);
}

void quire_adapt_pin_take_back(quire_adapt *adapt)
{
    quire_pin_table *pins = adapt->pins;

    entry_fini(adapt, &pins->entries[pins->n - 1]);
    (void)pthread_mutex_lock(&pins->lock);
    pins->n--;
    (void)pthread_mutex_unlock(&pins->lock);
    (void)atomic_fetch_add(&pins->changes, 1);
}

/* Remove an entry; the order of the others stays. */
static void entry_cut(quire_adapt *adapt, quire_pin_entry *entry)
{
    quire_pin_table *pins = adapt->pins;

    entry_fini(adapt, entry);
    (void)pthread_mutex_lock(&pins->lock);
    pins->n--;
    memmove(entry, entry + 1, (pins->n - (size_t)(entry - pins->entries)) * sizeof *entry);
    (void)pthread_mutex_unlock(&pins->lock);
    (void)atomic_fetch_add(&pins->changes, 1);
}

/* Wake the client that waits for the pin. */
static void waiter_end(quire_adapt *adapt, quire_pin_entry *entry, int status, const char *message)
{
    quire_pin_waiter *waiter = entry->waiter;

    if (waiter == NULL) {
        return;
    }
    entry->waiter = NULL;
    if (status == QUIRE_OK) { /* the entry is shown as it is */
        quire_adapt_pin_describe(adapt, entry, &waiter->pin);
    } else {
        (void)quire_error_set(&waiter->error, status, "%s", message);
    }
    (void)pthread_mutex_lock(&adapt->pins->lock);
    waiter->status = status;
    waiter->is_done = true;
    (void)pthread_cond_broadcast(&adapt->pins->changed);
    (void)pthread_mutex_unlock(&adapt->pins->lock);
}

static void say(quire_adapt *adapt, const quire_pin_entry *entry, quire_event_kind kind,
                const char *what)
{
    const quire_pin_info info = info_of(adapt, entry);
    char bytes[16];

    (void)quire_events_add(adapt->events, quire_loop_uptime_us(adapt->loop), kind,
                           "pin '%s' %s: %u tokens, %s, class %s", info.name, what, entry->n_tokens,
                           quire_format_bytes(info.bytes, bytes, sizeof bytes),
                           adapt->parts->opts->classes.items[entry->class_index].name);
}

void quire_adapt_pins_count(quire_adapt *adapt)
{
    quire_memory_stats *s = &adapt->figures;
    quire_pin_table *pins = adapt->pins;

    if (pins == NULL || !pins->is_uncounted) {
        return;
    }
    pins->is_uncounted = false;
    s->pins = 0;
    s->pins_computing = 0;
    s->pin_bytes = 0;
    for (uint32_t i = 0; i < pins->n; i++) {
        const quire_pin_info info = info_of(adapt, &pins->entries[i]);

        s->pins += info.state == QUIRE_PIN_HELD;
        s->pins_computing += info.state != QUIRE_PIN_HELD;
        s->pin_bytes += info.bytes;
        show(pins, &pins->entries[i], &info);
    }
}

/* Remove a pin from both tables. */
static void entry_remove(quire_adapt *adapt, quire_pin_entry *entry)
{
    (void)quire_pins_drop(adapt->pins->table, entry->id, quire_loop_now_us(adapt->loop));
    entry_cut(adapt, entry);
    quire_loop_released(adapt->loop);
    adapt->pins->is_uncounted = true;
}

static void fail(quire_adapt *adapt, quire_pin_entry *entry, int status, const char *message)
{
    char what[QUIRE_ERROR_MESSAGE_MAX];

    (void)snprintf(what, sizeof what, "was given up (%s)", message);
    say(adapt, entry, QUIRE_EVENT_PIN_DROPPED, what);
    adapt->figures.pins_dropped_total++;
    waiter_end(adapt, entry, status, message);
    entry_remove(adapt, entry);
}

void quire_adapt_pin_drop_entry(quire_adapt *adapt, quire_pin_entry *entry, const char *why)
{
    quire_request *request = entry->request;

    say(adapt, entry, QUIRE_EVENT_PIN_DROPPED, why);
    adapt->figures.pins_dropped_total++;
    waiter_end(adapt, entry, QUIRE_CANCELED, "the pin was dropped while it was computed");
    entry_remove(adapt, entry); /* so the request, when it ends, finds no pin */
    if (request != NULL) {
        quire_request_cancel(request);
    }
}

/* ---- computing and holding ---- */

static void held(quire_adapt *adapt, quire_pin_entry *entry)
{
    const uint64_t now_us = quire_loop_now_us(adapt->loop);
    const uint64_t expires_us = entry->ttl_s == 0      ? 0
                                : entry->until_us != 0 ? entry->until_us
                                                       : now_us + entry->ttl_s * US_PER_S;

    (void)quire_pins_renew(adapt->pins->table, entry->id, expires_us);
    quire_adapt_pin_changed(adapt->pins, entry);
    adapt->figures.pins_created_total++;
    say(adapt, entry, QUIRE_EVENT_PIN_CREATED, "is held");
    quire_adapt_pin_show(adapt, entry);
    waiter_end(adapt, entry, QUIRE_OK, NULL);
    adapt->pins->is_uncounted = true;
}

/* Submit the request that computes the pin's text. It ends by itself; no client waits for it. */
static int compute_start(quire_adapt *adapt, quire_pin_entry *entry, quire_error *err)
{
    const quire_pin_info info = info_of(adapt, entry);
    char id[QUIRE_REQUEST_ID_MAX];
    const quire_request_params params = {
        .tokens = entry->tokens != NULL ? entry->tokens : info.tokens,
        .n_tokens = entry->tokens != NULL ? entry->n_tokens : info.n_tokens,
        .retain = entry->tokens != NULL ? &entry->retain : NULL,
        .max_tokens = 1,
        .sampler = QUIRE_SAMPLER_OPTS_INIT,
        .tenant = info.key.salt,
        .tenant_bytes = info.key.salt_bytes,
        .class_index = entry->class_index,
        .id = id,
    };
    quire_request *request;

    (void)snprintf(id, sizeof id, "pin:%.*s", (int)sizeof id - 5, info.name);
    QUIRE_TRY(quire_loop_submit_pin(adapt->loop, &params, entry->id, &request, err));
    entry->request = request;
    entry->n_attempts++;
    quire_request_unref(request); /* the client's reference */
    return QUIRE_OK;
}

/* Hold the cached pages. Live pages may prevent it; then it is retried once a second. */
static int hold(quire_adapt *adapt, quire_pin_entry *entry)
{
    const int rc =
        quire_pins_hold(adapt->pins->table, entry->id, quire_loop_now_us(adapt->loop), NULL);

    if (rc == QUIRE_OK) {
        held(adapt, entry);
    }
    return rc;
}

int quire_adapt_pin_begin(quire_adapt *adapt, quire_pin_entry *entry, quire_error *err)
{
    const int rc = hold(adapt, entry);

    if (rc == QUIRE_OK || rc == QUIRE_NOPAGES) {
        return QUIRE_OK;
    }
    if (rc != QUIRE_AGAIN) {
        return quire_error_set(err, rc, "pin: %s", quire_status_text(rc));
    }
    return compute_start(adapt, entry, err);
}

/* Whether a pin holds states, too. */
static bool has_states(const quire_adapt *adapt)
{
    const quire_cache *cache = adapt->parts->cache;

    return quire_cache_payload_bytes(cache, (quire_group_id)quire_cache_groups(cache)) > 0;
}

void quire_adapt_pins_ended(quire_adapt *adapt, const quire_request *request,
                            const quire_ending *ending)
{
    quire_pin_entry *entry = quire_adapt_pin_find(adapt->pins, request->pin);
    int rc;

    if (entry == NULL) {
        return; /* dropped meanwhile */
    }
    entry->request = NULL;
    if (ending->status == QUIRE_LOST && entry->waiter == NULL) {
        return; /* quire_engine_pins_move() takes it from here, or the next process */
    }
    if (ending->finish != QUIRE_FINISH_LENGTH) {
        rc = ending->finish == QUIRE_FINISH_ERROR ? ending->status : QUIRE_CANCELED;
        fail(adapt, entry, rc, ending->message != NULL ? ending->message : quire_status_text(rc));
        return;
    }
    rc = hold(adapt, entry);
    if (rc == QUIRE_AGAIN) {
        fail(adapt, entry, QUIRE_CANCELED,
             has_states(adapt) ? "its text was invalidated while it was computed, or there was no "
                                 "room for its state"
                               : "its text was invalidated while it was computed");
    } else if (rc < 0 && rc != QUIRE_NOPAGES) {
        fail(adapt, entry, rc, quire_status_text(rc));
    }
}

/* Retry a pin that is computed but not held because of live pages in its region. */
static void retry(quire_adapt *adapt, quire_pin_entry *entry)
{
    quire_error err = QUIRE_ERROR_INIT;
    int rc = hold(adapt, entry);

    if (rc == QUIRE_OK || rc == QUIRE_NOPAGES) {
        return;
    }
    if (rc == QUIRE_AGAIN && entry->n_attempts < ATTEMPTS_MAX) {
        rc = compute_start(adapt, entry, &err);
        if (rc == QUIRE_OK || rc == QUIRE_LIMIT) { /* queue full: retry later */
            return;
        }
        fail(adapt, entry, rc, err.message);
    } else if (rc == QUIRE_AGAIN) { /* its pages went before they could be held */
        fail(adapt, entry, QUIRE_NOPAGES, "what runs in its region needed the memory each time");
    } else {
        fail(adapt, entry, rc, quire_status_text(rc));
    }
}

/* ---- once a second ---- */

static void expired(void *ctx, const quire_pin_info *info)
{
    quire_adapt *adapt = ctx;
    quire_pin_entry *entry = quire_adapt_pin_find(adapt->pins, info->id);

    QUIRE_ASSERT(entry != NULL);
    say(adapt, entry, QUIRE_EVENT_PIN_EXPIRED, "has expired");
    adapt->figures.pins_expired_total++;
    entry_cut(adapt, entry); /* core drops its pin itself */
    quire_loop_released(adapt->loop);
}

/* Pinned texts count as needed, even when no request uses them. */
static int touch(void *ctx, const quire_pin_info *info)
{
    quire_adapt *adapt = ctx;
    const quire_working_set_text text = {
        .salt = info->key.salt,
        .salt_bytes = info->key.salt_bytes,
        .tokens = info->tokens,
        .n_tokens = info->n_held_tokens,
    };

    if (info->region != QUIRE_REGION_DYNAMIC) {
        quire_pinned_touch(adapt, &text);
    }
    return 0;
}

void quire_adapt_pins_upkeep(quire_adapt *adapt)
{
    quire_pin_table *pins = adapt->pins;
    const uint64_t now_us = quire_loop_now_us(adapt->loop);

    if (pins == NULL || pins->n == 0 || quire_loop_is_lost(adapt->loop)) {
        return; /* of a lost device they are moved, not retried */
    }
    (void)quire_pins_expire(pins->table, now_us, expired, adapt);
    for (uint32_t i = pins->n; i > 0; i--) {
        quire_pin_entry *entry = &pins->entries[i - 1];

        if (entry->request == NULL && info_of(adapt, entry).state == QUIRE_PIN_RESERVED) {
            retry(adapt, entry);
        }
    }
    if (now_us - pins->touched_us >= adapt->pinned.touch_us) {
        pins->touched_us = now_us;
        (void)quire_pins_visit(pins->table, touch, adapt);
    }
    pins->is_uncounted = true; /* bytes of pins change with the pages that they share */
}

void quire_adapt_pins_invalidated(quire_adapt *adapt)
{
    quire_pin_table *pins = adapt->pins;

    for (uint32_t i = pins != NULL ? pins->n : 0; i > 0; i--) {
        quire_pin_entry *entry = &pins->entries[i - 1];

        if (info_of(adapt, entry).state == QUIRE_PIN_LOST) {
            quire_adapt_pin_drop_entry(adapt, entry, "was lost: its text was invalidated");
        }
    }
}

void quire_adapt_pins_lost(quire_adapt *adapt)
{
    quire_pin_table *pins = adapt->pins;
    char message[QUIRE_ERROR_MESSAGE_MAX];

    for (uint32_t i = pins != NULL ? pins->n : 0; i > 0; i--) {
        quire_pin_entry *entry = &pins->entries[i - 1];

        /* A request that computes a pin ends it. This one has none, and is not retried. */
        if (entry->waiter != NULL && entry->request == NULL) {
            (void)snprintf(message, sizeof message, QUIRE_LOST_MESSAGE,
                           quire_loop_lost_name(adapt->loop));
            fail(adapt, entry, QUIRE_LOST, message);
        }
    }
}

void quire_adapt_pins_close(quire_adapt *adapt)
{
    quire_pin_table *pins = adapt->pins;

    if (pins == NULL) {
        return;
    }
    for (uint32_t i = 0; i < pins->n; i++) {
        waiter_end(adapt, &pins->entries[i], QUIRE_AGAIN, "the engine has ended");
        free(pins->entries[i].tokens);
    }
    quire_pins_destroy(pins->table);
    (void)pthread_cond_destroy(&pins->changed);
    (void)pthread_mutex_destroy(&pins->lock);
    free(pins);
}
