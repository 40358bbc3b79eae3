/* pins.c - see pins.h.
 *
 * Core's table holds the pins (quire/pin.h); beside each of them there is an entry here with what
 * the engine adds: who computes it, who waits for it. A pin is computed by a request like any other
 * of its class, except that it generates nothing, and is held when that request ends, before its
 * pages are let go of.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine_internal.h"
#include "engine/pins_internal.h"

#include "base/check.h"
#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPTS_MAX 3u /* at computing one */
#define US_PER_S     1000000u
#define MIB          (1024.0 * 1024.0)

int quire_engine_pins_open(quire_engine *engine, quire_error *err)
{
    quire_engine_pins *pins;
    quire_pins_opts opts = QUIRE_PINS_OPTS_INIT;
    int rc;

    if (engine->opts.pins_max > QUIRE_ENGINE_PINS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u pins: at most %u are possible",
                               engine->opts.pins_max, QUIRE_ENGINE_PINS_MAX);
    }
    if (engine->opts.pins_max == 0 || engine->opts.no_prefix_cache) {
        return QUIRE_OK;
    }
    pins = calloc(1, sizeof *pins + engine->opts.pins_max * sizeof pins->entries[0]);
    if (pins == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the table of pins");
    }
    if (pthread_mutex_init(&pins->lock, NULL) != 0) {
        free(pins);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the table of pins");
    }
    engine->pins = pins;
    opts.pins_max = engine->opts.pins_max;
    opts.tree = engine->tree;
    rc = quire_pins_create(&pins->table, &opts);
    return rc < 0 ? quire_error_set(err, rc, "cannot create the table of pins: %s",
                                    quire_status_text(rc))
                  : QUIRE_OK;
}

void quire_engine_pins_close(quire_engine *engine)
{
    if (engine->pins != NULL) {
        quire_pins_destroy(engine->pins->table);
        (void)pthread_mutex_destroy(&engine->pins->lock);
        free(engine->pins);
    }
}

/* ---- entries ---- */

quire_pin_entry *quire_engine_pins_find(quire_engine_pins *pins, quire_pin_id id)
{
    for (uint32_t i = 0; pins != NULL && i < pins->n; i++) {
        if (pins->entries[i].id == id) {
            return &pins->entries[i];
        }
    }
    return NULL;
}

static quire_pin_info info_of(const quire_engine *engine, const quire_pin_entry *entry)
{
    quire_pin_info info = { 0 };

    QUIRE_CHECK(quire_pins_get(engine->pins->table, entry->id, &info) == QUIRE_OK);
    return info;
}

static uint64_t seconds(uint64_t us)
{
    return (us + US_PER_S / 2) / US_PER_S;
}

static void show(quire_engine_pins *pins, quire_pin_entry *entry, const quire_pin_info *info)
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
    if (info->key.salt_bytes > 0) {
        memcpy(shown.tenant, info->key.salt, info->key.salt_bytes);
    }
    (void)pthread_mutex_lock(&pins->lock);
    entry->shown = shown;
    entry->created_us = info->created_us;
    entry->expires_us = info->expires_us;
    (void)pthread_mutex_unlock(&pins->lock);
}

void quire_engine_pin_show(quire_engine *engine, quire_pin_entry *entry)
{
    const quire_pin_info info = info_of(engine, entry);

    show(engine->pins, entry, &info);
}

void quire_engine_pin_describe(const quire_engine *engine, const quire_pin_entry *entry,
                               quire_engine_pin *out)
{
    const uint64_t now_us = quire_engine_now_us(engine);

    *out = entry->shown;
    out->age_s = now_us > entry->created_us ? (now_us - entry->created_us) / US_PER_S : 0;
    out->left_s = entry->expires_us > now_us ? seconds(entry->expires_us - now_us) : 0;
}

quire_pin_entry *quire_engine_pin_add(quire_engine_pins *pins, const quire_pin_entry *entry)
{
    (void)pthread_mutex_lock(&pins->lock);
    pins->entries[pins->n] = *entry;
    pins->n++;
    (void)pthread_mutex_unlock(&pins->lock);
    return &pins->entries[pins->n - 1];
}

void quire_engine_pin_take_back(quire_engine_pins *pins)
{
    (void)pthread_mutex_lock(&pins->lock);
    pins->n--;
    (void)pthread_mutex_unlock(&pins->lock);
}

/* The others' order stays. */
static void entry_cut(quire_engine_pins *pins, quire_pin_entry *entry)
{
    (void)pthread_mutex_lock(&pins->lock);
    pins->n--;
    memmove(entry, entry + 1, (pins->n - (size_t)(entry - pins->entries)) * sizeof *entry);
    (void)pthread_mutex_unlock(&pins->lock);
}

/* The one who waits for it goes on. */
static void waiter_end(quire_engine *engine, quire_pin_entry *entry, int status,
                       const char *message)
{
    quire_pin_waiter *waiter = entry->waiter;

    if (waiter == NULL) {
        return;
    }
    entry->waiter = NULL;
    if (status == QUIRE_OK) {
        quire_engine_pin_show(engine, entry);
        quire_engine_pin_describe(engine, entry, &waiter->pin);
    } else {
        (void)quire_error_set(&waiter->error, status, "%s", message);
    }
    (void)pthread_mutex_lock(&engine->lock);
    waiter->status = status;
    waiter->is_done = true;
    (void)pthread_cond_broadcast(&engine->task_done);
    (void)pthread_mutex_unlock(&engine->lock);
}

static void say(quire_engine *engine, const quire_pin_entry *entry, quire_event_kind kind,
                const char *what)
{
    const quire_pin_info info = info_of(engine, entry);

    (void)quire_events_add(engine->adapt.events, quire_engine_uptime_us(engine), kind,
                           "pin '%s' %s: %u tokens, %.1f MiB, class %s", info.name, what,
                           entry->n_tokens, (double)info.bytes / MIB,
                           engine->opts.classes.items[entry->class_index].name);
}

static void count(quire_engine *engine)
{
    quire_memory_stats *s = &engine->stats.memory;
    quire_engine_pins *pins = engine->pins;

    s->pins = 0;
    s->pins_computing = 0;
    s->pin_bytes = 0;
    for (uint32_t i = 0; i < pins->n; i++) {
        const quire_pin_info info = info_of(engine, &pins->entries[i]);

        s->pins += info.state == QUIRE_PIN_HELD;
        s->pins_computing += info.state != QUIRE_PIN_HELD;
        s->pin_bytes += info.bytes;
        show(pins, &pins->entries[i], &info);
    }
}

/* Out of both tables. */
static void entry_remove(quire_engine *engine, quire_pin_entry *entry)
{
    (void)quire_pins_drop(engine->pins->table, entry->id, quire_engine_now_us(engine));
    entry_cut(engine->pins, entry);
    engine->n_releases++;
    count(engine);
}

static void fail(quire_engine *engine, quire_pin_entry *entry, int status, const char *message)
{
    char what[QUIRE_ERROR_MESSAGE_MAX];

    (void)snprintf(what, sizeof what, "was given up (%s)", message);
    say(engine, entry, QUIRE_EVENT_PIN_DROPPED, what);
    engine->stats.memory.pins_dropped_total++;
    waiter_end(engine, entry, status, message);
    entry_remove(engine, entry);
}

void quire_engine_pin_drop_entry(quire_engine *engine, quire_pin_entry *entry, const char *why)
{
    quire_request *request = entry->request;

    say(engine, entry, QUIRE_EVENT_PIN_DROPPED, why);
    engine->stats.memory.pins_dropped_total++;
    waiter_end(engine, entry, QUIRE_CANCELED, "the pin was dropped while it was computed");
    entry_remove(engine, entry); /* so its request finds nobody to hold pages for */
    if (request != NULL) {
        quire_request_cancel(request);
    }
}

/* ---- computing and holding ---- */

static void held(quire_engine *engine, quire_pin_entry *entry)
{
    const uint64_t now_us = quire_engine_now_us(engine);
    const uint64_t expires_us = entry->ttl_s != 0 ? now_us + entry->ttl_s * US_PER_S : 0;

    (void)quire_pins_renew(engine->pins->table, entry->id, expires_us);
    engine->stats.memory.pins_created_total++;
    say(engine, entry, QUIRE_EVENT_PIN_CREATED, "is held");
    waiter_end(engine, entry, QUIRE_OK, NULL);
    count(engine);
}

/* A request for its text. It ends by itself; nobody waits for it but the entry. */
static int compute_start(quire_engine *engine, quire_pin_entry *entry, quire_error *err)
{
    const quire_pin_info info = info_of(engine, entry);
    char id[QUIRE_REQUEST_ID_MAX];
    const quire_request_params params = {
        .tokens = info.tokens,
        .n_tokens = info.n_tokens,
        .max_tokens = 1,
        .sampler = QUIRE_SAMPLER_OPTS_INIT,
        .tenant = info.key.salt,
        .tenant_bytes = info.key.salt_bytes,
        .class_index = entry->class_index,
        .id = id,
    };
    quire_request *request;

    (void)snprintf(id, sizeof id, "pin:%.*s", (int)sizeof id - 5, info.name);
    QUIRE_TRY(quire_engine_submit_pin(engine, &params, entry->id, &request, err));
    entry->request = request;
    entry->n_attempts++;
    quire_request_unref(request); /* the client's share */
    return QUIRE_OK;
}

/* Hold what is cached. What is live may be in the way: then it is tried again once a second. */
static int hold(quire_engine *engine, quire_pin_entry *entry)
{
    const int rc =
        quire_pins_hold(engine->pins->table, entry->id, quire_engine_now_us(engine), NULL);

    if (rc == QUIRE_OK) {
        held(engine, entry);
    }
    return rc;
}

int quire_engine_pin_begin(quire_engine *engine, quire_pin_entry *entry, quire_error *err)
{
    const int rc = hold(engine, entry);

    if (rc == QUIRE_OK || rc == QUIRE_NOPAGES) {
        return QUIRE_OK;
    }
    if (rc != QUIRE_AGAIN) {
        return quire_error_set(err, rc, "pin: %s", quire_status_text(rc));
    }
    return compute_start(engine, entry, err);
}

void quire_engine_pins_ended(quire_engine *engine, quire_request *request,
                             const quire_ending *ending)
{
    quire_pin_entry *entry = quire_engine_pins_find(engine->pins, request->pin);
    int rc;

    if (entry == NULL) {
        return; /* dropped meanwhile */
    }
    entry->request = NULL;
    if (ending->finish != QUIRE_FINISH_LENGTH) {
        rc = ending->finish == QUIRE_FINISH_ERROR ? ending->status : QUIRE_CANCELED;
        fail(engine, entry, rc, ending->message != NULL ? ending->message : quire_status_text(rc));
        return;
    }
    rc = hold(engine, entry);
    if (rc == QUIRE_AGAIN) {
        fail(engine, entry, QUIRE_CANCELED, "its text was invalidated while it was computed");
    } else if (rc < 0 && rc != QUIRE_NOPAGES) {
        fail(engine, entry, rc, quire_status_text(rc));
    }
}

/* Computed, but what was live in its region kept it from being held. */
static void retry(quire_engine *engine, quire_pin_entry *entry)
{
    quire_error err = QUIRE_ERROR_INIT;
    int rc = hold(engine, entry);

    if (rc == QUIRE_OK || rc == QUIRE_NOPAGES) {
        return;
    }
    if (rc == QUIRE_AGAIN && entry->n_attempts < ATTEMPTS_MAX) {
        rc = compute_start(engine, entry, &err);
        if (rc == QUIRE_OK || rc == QUIRE_LIMIT) { /* a full queue: later */
            return;
        }
        fail(engine, entry, rc, err.message);
        return;
    }
    fail(engine, entry, rc == QUIRE_AGAIN ? QUIRE_NOPAGES : rc,
         "what runs in its region needed the memory each time");
}

/* ---- once a second ---- */

static void expired(void *ctx, const quire_pin_info *info)
{
    quire_engine *engine = ctx;
    quire_pin_entry *entry = quire_engine_pins_find(engine->pins, info->id);

    QUIRE_ASSERT(entry != NULL);
    say(engine, entry, QUIRE_EVENT_PIN_EXPIRED, "has expired");
    engine->stats.memory.pins_expired_total++;
    entry_cut(engine->pins, entry); /* core drops its own */
    engine->n_releases++;
}

/* What is pinned is needed, whether or not it is asked for. */
static int touch(void *ctx, const quire_pin_info *info)
{
    quire_engine *engine = ctx;
    const quire_working_set_text text = {
        .salt = info->key.salt,
        .salt_bytes = info->key.salt_bytes,
        .tokens = info->tokens,
        .n_tokens = info->n_held_tokens,
    };

    if (info->region != QUIRE_REGION_DYNAMIC) {
        quire_pinned_touch(engine, &text);
    }
    return 0;
}

void quire_engine_pins_upkeep(quire_engine *engine)
{
    quire_engine_pins *pins = engine->pins;
    const uint64_t now_us = quire_engine_now_us(engine);

    if (pins == NULL || pins->n == 0) {
        return;
    }
    (void)quire_pins_expire(pins->table, now_us, expired, engine);
    for (uint32_t i = pins->n; i > 0; i--) {
        quire_pin_entry *entry = &pins->entries[i - 1];

        if (entry->request == NULL && info_of(engine, entry).state == QUIRE_PIN_RESERVED) {
            retry(engine, entry);
        }
    }
    if (now_us - pins->touched_us >= engine->pinned.touch_us) {
        pins->touched_us = now_us;
        (void)quire_pins_visit(pins->table, touch, engine);
    }
    count(engine);
}

void quire_engine_pins_invalidated(quire_engine *engine)
{
    quire_engine_pins *pins = engine->pins;

    for (uint32_t i = pins != NULL ? pins->n : 0; i > 0; i--) {
        quire_pin_entry *entry = &pins->entries[i - 1];

        if (info_of(engine, entry).state == QUIRE_PIN_LOST) {
            quire_engine_pin_drop_entry(engine, entry, "was lost: its text was invalidated");
        }
    }
}

void quire_engine_pins_stop(quire_engine *engine)
{
    for (uint32_t i = 0; engine->pins != NULL && i < engine->pins->n; i++) {
        waiter_end(engine, &engine->pins->entries[i], QUIRE_AGAIN, "the engine has ended");
    }
}
