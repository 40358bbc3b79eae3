/* pins_call.c - pins as clients ask for them: checks here, the rest on the engine's thread.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/pins_internal.h"

#include "base/check.h"
#include "base/num.h"

#include <string.h>

#define US_PER_S 1000000u
#define HALF     2u

const char *quire_engine_pin_state_name(quire_engine_pin_state state)
{
    return state == QUIRE_ENGINE_PIN_HELD ? "held" : "computing";
}

/* ---- what is asked for ---- */

static int check_name(const char *name, quire_error *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-:/";
    const size_t n = name != NULL ? strlen(name) : 0;

    if (n == 0 || n >= QUIRE_ENGINE_PIN_NAME_MAX || strspn(name, allowed) != n) {
        return quire_error_set(err, QUIRE_INVAL,
                               "name: must be 1 to %u letters, digits or any of . _ - : /",
                               QUIRE_ENGINE_PIN_NAME_MAX - 1);
    }
    return QUIRE_OK;
}

static int check_ttl(uint64_t ttl_s, quire_error *err)
{
    if (ttl_s > QUIRE_ENGINE_PIN_TTL_MAX_S) {
        return quire_error_set(err, QUIRE_INVAL, "ttl: %llu s, at most %llu are possible",
                               (unsigned long long)ttl_s,
                               (unsigned long long)QUIRE_ENGINE_PIN_TTL_MAX_S);
    }
    return QUIRE_OK;
}

static int check_params(const quire_engine *engine, const quire_engine_pin_params *p,
                        quire_error *err)
{
    const quire_request_params prompt = {
        .tokens = p->tokens,
        .n_tokens = p->n_tokens,
        .class_index = p->class_index,
    };
    const uint32_t page_tokens = engine->runtime_opts->page_tokens;

    if (engine->pins == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "this engine keeps no pins");
    }
    QUIRE_TRY(check_name(p->name, err));
    QUIRE_TRY(check_ttl(p->ttl_s, err));
    if (p->class_index >= engine->opts.classes.n) {
        return quire_error_set(err, QUIRE_INVAL, "class: number %u, there are %u", p->class_index,
                               engine->opts.classes.n);
    }
    if (p->tenant_bytes > QUIRE_PREFIX_SALT_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "tenant: %u bytes, at most %u are possible",
                               p->tenant_bytes, QUIRE_PREFIX_SALT_MAX);
    }
    QUIRE_TRY(quire_engine_tokens_check(engine, &prompt, err));
    if (engine->is_page_exact && p->n_tokens < page_tokens) {
        return quire_error_set(err, QUIRE_INVAL,
                               "tokens: %u, but whole pages of %u are what can be held",
                               p->n_tokens, page_tokens);
    }
    return QUIRE_OK;
}

/* ---- create ---- */

typedef struct creation {
    quire_engine *engine;
    const quire_engine_pin_params *params;
    quire_pin_waiter *waiter;
    quire_engine_pin *out;
    uint64_t missing_bytes;
    quire_error *err;
    int status;
    bool is_waiting; /* the waiter has been handed over */
} creation;

static quire_pin_spec spec_of(const quire_engine *engine, const quire_engine_pin_params *p)
{
    const quire_runtime_opts *runtime = engine->runtime_opts;
    const uint32_t n_open = engine->is_page_exact ? p->n_tokens % runtime->page_tokens : 0;
    const quire_pin_spec spec = {
        .name = p->name,
        .key = quire_engine_key(engine, p->tenant, p->tenant_bytes),
        .tokens = p->tokens,
        .n_tokens = p->n_tokens - n_open, /* an open page of a sealed format is never found */
        /* The second group, where there is one, keeps the first and the last tokens. */
        .n_windowed_tokens =
            runtime->kv_sinks + runtime->kv_recent + runtime->n_batch + 2 * runtime->page_tokens,
        .region = quire_engine_region(engine, p->class_index),
        .rank = engine->opts.classes.items[p->class_index].rank,
        .account = quire_engine_account(engine, p->tenant, p->tenant_bytes),
    };

    return spec;
}

/* What kept it from being made, for its client and as an event. */
static int refuse(creation *c, int rc, const char *whose)
{
    quire_engine *engine = c->engine;

    if (rc == QUIRE_AGAIN) {
        return quire_error_set(c->err, rc, "name: there is a pin '%s' already", c->params->name);
    }
    if (c->missing_bytes == 0) {
        return quire_error_set(c->err, rc, "pin: %s", quire_status_text(rc));
    }
    engine->stats.memory.pins_refused_total++;
    (void)quire_events_add(
        engine->adapt.events, quire_engine_uptime_us(engine), QUIRE_EVENT_PIN_REFUSED,
        "pin '%s' of %u tokens, class %s: %llu bytes are missing in %s", c->params->name,
        c->params->n_tokens, engine->opts.classes.items[c->params->class_index].name,
        (unsigned long long)c->missing_bytes, whose);
    return quire_error_set(c->err, rc, "%s cannot honour this pin: %llu bytes are missing", whose,
                           (unsigned long long)c->missing_bytes);
}

static uint64_t excess(uint64_t bytes, uint64_t limit_bytes)
{
    return bytes > limit_bytes ? bytes - limit_bytes : 0;
}

/* What a tenant's pins hold or have set aside; a page that two of them hold counts twice. */
static uint64_t account_bytes(const quire_engine *engine, uint16_t account)
{
    const quire_engine_pins *pins = engine->pins;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < pins->n; i++) {
        quire_pin_info info;

        if (quire_pins_get(pins->table, pins->entries[i].id, &info) == QUIRE_OK &&
            info.account == account) {
            bytes += info.bytes;
        }
    }
    return bytes;
}

/* Whether a pin that fits into its region may have so much of it: of the dynamic region pins get
 * half, so that something is left to compute with, and a tenant's quota holds for its pins too,
 * which it could not be enforced upon later. */
static int check_shares(creation *c, const quire_pin_spec *spec, uint64_t bytes)
{
    quire_engine *engine = c->engine;
    quire_region_stats dynamic;
    quire_account_info account;

    if (spec->region == QUIRE_REGION_DYNAMIC &&
        quire_region_stats_get(engine->cache, QUIRE_REGION_DYNAMIC, &dynamic) == QUIRE_OK) {
        c->missing_bytes =
            excess(dynamic.pinned_bytes + dynamic.reserved_bytes, dynamic.budget_bytes / HALF);
        if (c->missing_bytes > 0) {
            return refuse(c, QUIRE_NOPAGES, "the half of the dynamic region that pins may have");
        }
    }
    if (spec->account != 0 &&
        quire_prefix_account_get(engine->tree, spec->account, &account) == QUIRE_OK &&
        account.quota_bytes > 0) {
        c->missing_bytes =
            excess(account_bytes(engine, spec->account) + bytes, account.quota_bytes);
        if (c->missing_bytes > 0) {
            return refuse(c, QUIRE_LIMIT, "the quota of its tenant");
        }
    }
    return QUIRE_OK;
}

/* Enter it into core's table, if all budgets can honour it. */
static int reserve(creation *c, const quire_pin_spec *spec, quire_pin_id *id)
{
    quire_engine *engine = c->engine;
    quire_pins *table = engine->pins->table;
    quire_region_stats region;
    quire_pin_info info;
    int rc = quire_pins_reserve(table, spec, quire_engine_now_us(engine), id, &c->missing_bytes);

    if (rc == QUIRE_NOPAGES && spec->region == QUIRE_REGION_DYNAMIC &&
        quire_region_stats_get(engine->cache, QUIRE_REGION_DYNAMIC, &region) == QUIRE_OK) {
        c->missing_bytes += region.budget_bytes - region.budget_bytes / HALF;
        return refuse(c, rc, "the half of the dynamic region that pins may have");
    }
    if (rc < 0) {
        return refuse(c, rc, "the pinned region");
    }
    QUIRE_CHECK(quire_pins_get(table, *id, &info) == QUIRE_OK);
    rc = check_shares(c, spec, info.bytes);
    if (rc < 0) {
        (void)quire_pins_drop(table, *id, quire_engine_now_us(engine));
    }
    return rc;
}

static int create(creation *c)
{
    quire_engine *engine = c->engine;
    quire_engine_pins *pins = engine->pins;
    const quire_engine_pin_params *p = c->params;
    const quire_pin_spec spec = spec_of(engine, p);
    quire_pin_entry *entry;
    quire_prefix_match match;
    quire_pin_id id;
    int rc;

    if (pins->n == engine->opts.pins_max) {
        return quire_error_set(c->err, QUIRE_LIMIT, "there are %u pins, no more are allowed",
                               pins->n);
    }
    if (quire_pins_find(pins->table, p->tenant, p->tenant_bytes, p->name) != QUIRE_PIN_NULL) {
        return refuse(c, QUIRE_AGAIN, "");
    }
    QUIRE_TRY(reserve(c, &spec, &id));
    quire_prefix_lookup(engine->tree, &spec.key, spec.tokens, spec.n_tokens, &match);
    entry = quire_engine_pin_add(pins, &(quire_pin_entry){
                                           .id = id,
                                           .class_index = p->class_index,
                                           .n_tokens = p->n_tokens,
                                           .n_cached_tokens = match.n_tokens,
                                           .ttl_s = p->ttl_s,
                                       });
    quire_engine_pin_show(engine, entry);
    rc = quire_engine_pin_begin(engine, entry, c->err);
    if (rc < 0) {
        quire_engine_pin_take_back(pins);
        (void)quire_pins_drop(pins->table, id, quire_engine_now_us(engine));
        return rc;
    }
    quire_engine_pin_show(engine, entry);
    quire_engine_pin_describe(engine, entry, c->out);
    if (c->out->state == QUIRE_ENGINE_PIN_COMPUTING && !p->is_background) {
        entry->waiter = c->waiter;
        c->is_waiting = true;
    }
    return QUIRE_OK;
}

static void create_here(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    creation *c = ctx;

    (void)cache;
    (void)tree;
    c->status = create(c);
}

int quire_engine_pin_create(quire_engine *engine, const quire_engine_pin_params *params,
                            quire_engine_pin *out, uint64_t *missing_bytes, quire_error *err)
{
    quire_pin_waiter waiter = { .status = QUIRE_OK, .error = QUIRE_ERROR_INIT };
    creation c = { engine, params, &waiter, out, 0, err, QUIRE_OK, false };
    int rc = check_params(engine, params, err);

    if (missing_bytes != NULL) {
        *missing_bytes = 0;
    }
    QUIRE_TRY(rc);
    if (quire_engine_call(engine, create_here, &c) < 0) {
        return quire_error_set(err, QUIRE_AGAIN, "the engine has ended");
    }
    if (missing_bytes != NULL) {
        *missing_bytes = c.missing_bytes;
    }
    if (!c.is_waiting) {
        return c.status;
    }
    (void)pthread_mutex_lock(&engine->lock);
    while (!waiter.is_done) {
        (void)pthread_cond_wait(&engine->task_done, &engine->lock);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (waiter.status < 0) {
        *err = waiter.error;
        return waiter.status;
    }
    *out = waiter.pin;
    return QUIRE_OK;
}

/* ---- those that are there ---- */

typedef struct question {
    quire_engine *engine;
    const quire_engine_pin_name *name;
    uint64_t ttl_s;
    quire_engine_pin *out; /* NULL: the pin is dropped; else renewed */
    int status;
} question;

static void renew(quire_engine *engine, quire_pin_entry *entry, uint64_t ttl_s)
{
    const uint64_t now_us = quire_engine_now_us(engine);
    const char *name = entry->shown.name;

    entry->ttl_s = ttl_s;
    if (entry->shown.state == QUIRE_ENGINE_PIN_HELD) { /* else its time begins when it is held */
        (void)quire_pins_renew(engine->pins->table, entry->id,
                               ttl_s != 0 ? now_us + ttl_s * US_PER_S : 0);
    }
    quire_engine_pin_show(engine, entry);
    if (ttl_s == 0) {
        (void)quire_events_add(engine->adapt.events, quire_engine_uptime_us(engine),
                               QUIRE_EVENT_PIN_RENEWED, "pin '%s' is held until it is dropped",
                               name);
        return;
    }
    (void)quire_events_add(engine->adapt.events, quire_engine_uptime_us(engine),
                           QUIRE_EVENT_PIN_RENEWED, "pin '%s' is held for another %llu s", name,
                           (unsigned long long)ttl_s);
}

static void answer_here(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    question *q = ctx;
    quire_engine_pins *pins = q->engine->pins;
    quire_pin_entry *entry;

    (void)cache;
    (void)tree;
    entry = quire_engine_pins_find(
        pins, quire_pins_find(pins->table, q->name->tenant, q->name->tenant_bytes, q->name->name));
    if (entry == NULL) {
        q->status = QUIRE_NOTFOUND;
    } else if (q->out == NULL) {
        quire_engine_pin_drop_entry(q->engine, entry, "was dropped");
    } else {
        renew(q->engine, entry, q->ttl_s);
        quire_engine_pin_describe(q->engine, entry, q->out);
    }
}

static int check_asked(const quire_engine *engine, const quire_engine_pin_name *name)
{
    QUIRE_FAIL_IF(engine->pins == NULL || name->name == NULL ||
                      name->tenant_bytes > QUIRE_PREFIX_SALT_MAX,
                  QUIRE_NOTFOUND);
    return QUIRE_OK;
}

static int ask(question *q)
{
    QUIRE_TRY(check_asked(q->engine, q->name));
    QUIRE_TRY(quire_engine_call(q->engine, answer_here, q));
    return q->status;
}

int quire_engine_pin_renew(quire_engine *engine, const quire_engine_pin_name *name, uint64_t ttl_s,
                           quire_engine_pin *out)
{
    question q = { .engine = engine, .name = name, .ttl_s = ttl_s, .out = out };
    quire_error err = QUIRE_ERROR_INIT;

    QUIRE_TRY(check_ttl(ttl_s, &err));
    return ask(&q);
}

int quire_engine_pin_drop(quire_engine *engine, const quire_engine_pin_name *name)
{
    question q = { .engine = engine, .name = name };

    return ask(&q);
}

/* ---- looking ---- */

static bool is_tenants(const quire_engine_pin *pin, const void *tenant, uint32_t tenant_bytes)
{
    return pin->tenant_bytes == tenant_bytes &&
           (tenant_bytes == 0 || memcmp(pin->tenant, tenant, tenant_bytes) == 0);
}

int quire_engine_pin_get(quire_engine *engine, const quire_engine_pin_name *name,
                         quire_engine_pin *out)
{
    quire_engine_pins *pins = engine->pins;
    int rc = QUIRE_NOTFOUND;

    QUIRE_TRY(check_asked(engine, name));
    (void)pthread_mutex_lock(&pins->lock);
    for (uint32_t i = 0; i < pins->n && rc < 0; i++) {
        const quire_pin_entry *entry = &pins->entries[i];

        if (is_tenants(&entry->shown, name->tenant, name->tenant_bytes) &&
            strcmp(entry->shown.name, name->name) == 0) {
            quire_engine_pin_describe(engine, entry, out);
            rc = QUIRE_OK;
        }
    }
    (void)pthread_mutex_unlock(&pins->lock);
    return rc;
}

int quire_engine_pins_list(quire_engine *engine, const void *tenant, uint32_t tenant_bytes,
                           uint32_t skip, quire_engine_pin *out, uint32_t n, uint32_t *n_all)
{
    quire_engine_pins *pins = engine->pins;
    uint32_t n_found = 0;
    uint32_t n_out = 0;

    if (pins != NULL) {
        (void)pthread_mutex_lock(&pins->lock);
        for (uint32_t i = 0; i < pins->n; i++) {
            const quire_pin_entry *entry = &pins->entries[i];

            if (tenant != NULL && !is_tenants(&entry->shown, tenant, tenant_bytes)) {
                continue;
            }
            if (n_found++ >= skip && n_out < n) {
                quire_engine_pin_describe(engine, entry, &out[n_out++]);
            }
        }
        (void)pthread_mutex_unlock(&pins->lock);
    }
    if (n_all != NULL) {
        *n_all = n_found;
    }
    return (int)n_out;
}
