/* pins_call.c - clients' calls about pins: checks on the caller's thread, changes on the engine's.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/pin_table.h"

#include "base/check.h"
#include "base/num.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define US_PER_S 1000000u
#define HALF     2u

/* ---- checking a call ---- */

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

static int check_params(const quire_adapt *adapt, const quire_engine_pin_params *p,
                        quire_error *err)
{
    const quire_request_params prompt = {
        .tokens = p->tokens,
        .n_tokens = p->n_tokens,
        .class_index = p->class_index,
    };
    const uint32_t page_tokens = adapt->parts->runtime_opts->page_tokens;

    if (adapt->pins == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "this engine keeps no pins");
    }
    QUIRE_TRY(check_name(p->name, err));
    QUIRE_TRY(check_ttl(p->ttl_s, err));
    if (p->class_index >= adapt->parts->opts->classes.n) {
        return quire_error_set(err, QUIRE_INVAL, "class: number %u, there are %u", p->class_index,
                               adapt->parts->opts->classes.n);
    }
    if (p->tenant_bytes > QUIRE_PREFIX_SALT_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "tenant: %u bytes, at most %u are possible",
                               p->tenant_bytes, QUIRE_PREFIX_SALT_MAX);
    }
    QUIRE_TRY(quire_loop_tokens_check(adapt->loop, &prompt, err));
    if (p->retain != NULL) {
        QUIRE_TRY(quire_loop_retain_check(adapt->loop, p->retain, "retain:", err));
    }
    if (adapt->parts->is_page_exact && p->n_tokens < page_tokens) {
        return quire_error_set(err, QUIRE_INVAL,
                               "tokens: %u, but whole pages of %u are what can be held",
                               p->n_tokens, page_tokens);
    }
    return QUIRE_OK;
}

/* ---- create ---- */

typedef struct creation {
    quire_adapt *adapt;
    const quire_engine_pin_params *params;
    quire_pin_waiter *waiter;
    quire_engine_pin *out;
    uint64_t missing_bytes;
    quire_error *err;
    int status;
    bool is_waiting; /* the engine's thread has the waiter */
} creation;

static quire_pin_spec spec_of(const quire_adapt *adapt, const quire_engine_pin_params *p,
                              const quire_retained_text *text)
{
    const quire_runtime_opts *runtime = adapt->parts->runtime_opts;
    const uint32_t n_open = adapt->parts->is_page_exact ? p->n_tokens % runtime->page_tokens : 0;
    const quire_pin_spec spec = {
        .name = p->name,
        .key = text->key,
        .tokens = p->tokens + text->n_gone,
        .n_tokens =
            p->n_tokens - text->n_gone - n_open, /* open pages of sealed formats are never found */
        /* The second group, if any, keeps the first and the last tokens. */
        .n_windowed_tokens =
            runtime->kv_sinks + runtime->kv_recent + runtime->n_batch + 2 * runtime->page_tokens,
        .region = quire_loop_region(adapt->loop, p->class_index),
        .rank = adapt->parts->opts->classes.items[p->class_index].rank,
        .account = quire_loop_account(adapt->loop, p->tenant, p->tenant_bytes),
    };

    return spec;
}

/* Report the reason of a refusal to the client and as an event. */
static int refuse(creation *c, int rc, const char *whose)
{
    quire_adapt *adapt = c->adapt;

    if (rc == QUIRE_AGAIN) {
        return quire_error_set(c->err, rc, "name: there is a pin '%s' already", c->params->name);
    }
    if (c->missing_bytes == 0) {
        return quire_error_set(c->err, rc, "pin: %s", quire_status_text(rc));
    }
    adapt->figures.pins_refused_total++;
    (void)quire_events_add(
        adapt->events, quire_loop_uptime_us(adapt->loop), QUIRE_EVENT_PIN_REFUSED,
        "pin '%s' of %u tokens, class %s: %llu bytes are missing in %s", c->params->name,
        c->params->n_tokens, adapt->parts->opts->classes.items[c->params->class_index].name,
        (unsigned long long)c->missing_bytes, whose);
    return quire_error_set(c->err, rc, "%s cannot honour this pin: %llu bytes are missing", whose,
                           (unsigned long long)c->missing_bytes);
}

static uint64_t excess(uint64_t bytes, uint64_t limit_bytes)
{
    return bytes > limit_bytes ? bytes - limit_bytes : 0;
}

/* Bytes that a tenant's pins hold or have set aside; a page held by two pins counts twice. */
static uint64_t account_bytes(const quire_adapt *adapt, uint16_t account)
{
    const quire_pin_table *pins = adapt->pins;
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

/* Check the limits on a pin's share of its region. In the dynamic region pins get half at most, so
 * that memory to compute in remains. A tenant's quota is checked now, because it cannot be enforced
 * on held pins later. */
static int check_shares(creation *c, const quire_pin_spec *spec, uint64_t bytes)
{
    quire_adapt *adapt = c->adapt;
    quire_region_stats dynamic;
    quire_account_info account;

    if (spec->region == QUIRE_REGION_DYNAMIC &&
        quire_region_stats_get(adapt->parts->cache, QUIRE_REGION_DYNAMIC, &dynamic) == QUIRE_OK) {
        c->missing_bytes =
            excess(dynamic.pinned_bytes + dynamic.reserved_bytes, dynamic.budget_bytes / HALF);
        if (c->missing_bytes > 0) {
            return refuse(c, QUIRE_NOPAGES, "the half of the dynamic region that pins may have");
        }
    }
    if (spec->account != 0 &&
        quire_prefix_account_get(adapt->parts->tree, spec->account, &account) == QUIRE_OK &&
        account.quota_bytes > 0) {
        c->missing_bytes = excess(account_bytes(adapt, spec->account) + bytes, account.quota_bytes);
        if (c->missing_bytes > 0) {
            return refuse(c, QUIRE_LIMIT, "the quota of its tenant");
        }
    }
    return QUIRE_OK;
}

/* Enter the pin into core's table, if all budgets allow it. */
static int reserve(creation *c, const quire_pin_spec *spec, quire_pin_id *id)
{
    quire_adapt *adapt = c->adapt;
    quire_pins *table = adapt->pins->table;
    quire_region_stats region;
    quire_pin_info info;
    int rc = quire_pins_reserve(table, spec, quire_loop_now_us(adapt->loop), id, &c->missing_bytes);

    if (rc == QUIRE_NOPAGES && spec->region == QUIRE_REGION_DYNAMIC &&
        quire_region_stats_get(adapt->parts->cache, QUIRE_REGION_DYNAMIC, &region) == QUIRE_OK) {
        c->missing_bytes += region.budget_bytes - region.budget_bytes / HALF;
        return refuse(c, rc, "the half of the dynamic region that pins may have");
    }
    if (rc < 0) {
        return refuse(c, rc, "the pinned region");
    }
    QUIRE_CHECK(quire_pins_get(table, *id, &info) == QUIRE_OK);
    rc = check_shares(c, spec, info.bytes);
    if (rc < 0) {
        (void)quire_pins_drop(table, *id, quire_loop_now_us(adapt->loop));
    }
    return rc;
}

/* Fill the fields that only the entry of a pin with a policy has. Errors: QUIRE_NOMEM. */
static int retained_fill(const quire_engine_pin_params *p, const quire_retained_text *text,
                         quire_pin_entry *entry)
{
    if (p->retain != NULL) {
        entry->tokens = malloc(p->n_tokens * sizeof *entry->tokens);
        QUIRE_FAIL_IF(entry->tokens == NULL, QUIRE_NOMEM);
        memcpy(entry->tokens, p->tokens, p->n_tokens * sizeof *entry->tokens);
        entry->retain = *p->retain;
        entry->n_gone = text->n_gone;
        entry->condensed = text->entry;
    }
    return QUIRE_OK;
}

/* Set the bytes of the pin's text aside and enter it into both tables, not begun. */
static int enter_text(creation *c, const quire_retained_text *text, quire_pin_entry **out)
{
    quire_adapt *adapt = c->adapt;
    const quire_engine_pin_params *p = c->params;
    const quire_pin_spec spec = spec_of(adapt, p, text);
    quire_pin_entry entry = { .class_index = p->class_index,
                              .n_tokens = p->n_tokens,
                              .ttl_s = p->ttl_s };
    quire_prefix_match match;
    int rc;

    QUIRE_TRY(reserve(c, &spec, &entry.id));
    rc = retained_fill(p, text, &entry);
    if (rc < 0) {
        (void)quire_pins_drop(adapt->pins->table, entry.id, quire_loop_now_us(adapt->loop));
        return refuse(c, rc, "");
    }
    quire_prefix_lookup(adapt->parts->tree, &spec.key, spec.tokens, spec.n_tokens, &match);
    entry.n_cached_tokens = match.n_tokens > 0 ? text->n_gone + match.n_tokens : 0;
    *out = quire_adapt_pin_add(adapt->pins, &entry);
    quire_adapt_pin_show(adapt, *out);
    return QUIRE_OK;
}

static int enter(creation *c, quire_pin_entry **out)
{
    quire_adapt *adapt = c->adapt;
    quire_pin_table *pins = adapt->pins;
    const quire_engine_pin_params *p = c->params;
    const quire_loop_text of = { .tokens = p->tokens,
                                 .n_tokens = p->n_tokens,
                                 .tenant = p->tenant,
                                 .tenant_bytes = p->tenant_bytes };
    quire_retained_text text;
    int rc;

    if (pins->n == adapt->parts->opts->pins_max) {
        return quire_error_set(c->err, QUIRE_LIMIT, "there are %u pins, no more are allowed",
                               pins->n);
    }
    if (quire_pins_find(pins->table, p->tenant, p->tenant_bytes, p->name) != QUIRE_PIN_NULL) {
        return refuse(c, QUIRE_AGAIN, "");
    }
    if (quire_loop_retained_hold(adapt->loop, p->retain, &of, &text) < 0) {
        return quire_error_set(c->err, QUIRE_LIMIT, "retain: too many texts are condensed");
    }
    rc = enter_text(c, &text, out);
    if (rc < 0) {
        quire_loop_retained_release(adapt->loop, text.entry);
    }
    return rc;
}

static int create(creation *c)
{
    quire_adapt *adapt = c->adapt;
    quire_pin_table *pins = adapt->pins;
    quire_pin_entry *entry;
    int rc;

    if (quire_loop_is_lost(adapt->loop)) {
        return quire_error_set(c->err, QUIRE_LOST, QUIRE_LOST_MESSAGE,
                               quire_loop_lost_name(adapt->loop));
    }
    QUIRE_TRY(enter(c, &entry));
    rc = quire_adapt_pin_begin(adapt, entry, c->err);
    if (rc < 0) {
        const quire_pin_id id = entry->id;

        quire_adapt_pin_take_back(adapt);
        (void)quire_pins_drop(pins->table, id, quire_loop_now_us(adapt->loop));
        return rc;
    }
    quire_adapt_pin_show(adapt, entry);
    quire_adapt_pin_describe(adapt, entry, c->out);
    if (c->out->state == QUIRE_ENGINE_PIN_COMPUTING && !c->params->is_background) {
        entry->waiter = c->waiter;
        c->is_waiting = true;
    }
    return QUIRE_OK;
}

int quire_adapt_pin_restore(quire_adapt *adapt, const quire_engine_pin_params *params,
                            uint64_t until_us, uint64_t *change, quire_error *err)
{
    creation c = { .adapt = adapt, .params = params, .err = err };
    quire_pin_entry *entry;

    QUIRE_TRY(check_params(adapt, params, err));
    QUIRE_TRY(enter(&c, &entry));
    entry->until_us = until_us;
    *change = entry->changed;
    return QUIRE_OK;
}

static void create_here(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    creation *c = ctx;

    (void)cache;
    (void)tree;
    c->status = create(c);
}

int quire_adapt_pin_create(quire_adapt *adapt, const quire_engine_pin_params *params,
                           quire_engine_pin *out, uint64_t *missing_bytes, quire_error *err)
{
    quire_pin_waiter waiter = { .status = QUIRE_OK, .error = QUIRE_ERROR_INIT };
    creation c = { adapt, params, &waiter, out, 0, err, QUIRE_OK, false };
    int rc = check_params(adapt, params, err);

    if (missing_bytes != NULL) {
        *missing_bytes = 0;
    }
    QUIRE_TRY(rc);
    if (quire_loop_call(adapt->loop, create_here, &c) < 0) {
        return quire_error_set(err, QUIRE_AGAIN, "the engine has ended");
    }
    if (missing_bytes != NULL) {
        *missing_bytes = c.missing_bytes;
    }
    if (!c.is_waiting) {
        return c.status;
    }
    (void)pthread_mutex_lock(&adapt->pins->lock);
    while (!waiter.is_done) {
        (void)pthread_cond_wait(&adapt->pins->changed, &adapt->pins->lock);
    }
    (void)pthread_mutex_unlock(&adapt->pins->lock);
    if (waiter.status < 0) {
        *err = waiter.error;
        return waiter.status;
    }
    *out = waiter.pin;
    return QUIRE_OK;
}

/* ---- existing pins ---- */

typedef struct question {
    quire_adapt *adapt;
    const quire_engine_pin_name *name;
    uint64_t ttl_s;
    quire_engine_pin *out; /* NULL: the pin is dropped; else renewed */
    int status;
} question;

static void renew(quire_adapt *adapt, quire_pin_entry *entry, uint64_t ttl_s)
{
    const uint64_t now_us = quire_loop_now_us(adapt->loop);
    const char *name = entry->shown.name;

    entry->ttl_s = ttl_s;
    entry->until_us = 0;
    quire_adapt_pin_changed(adapt->pins, entry);
    if (entry->shown.state == QUIRE_ENGINE_PIN_HELD) { /* else its time begins when it is held */
        (void)quire_pins_renew(adapt->pins->table, entry->id,
                               ttl_s != 0 ? now_us + ttl_s * US_PER_S : 0);
    }
    quire_adapt_pin_show(adapt, entry);
    if (ttl_s == 0) {
        (void)quire_events_add(adapt->events, quire_loop_uptime_us(adapt->loop),
                               QUIRE_EVENT_PIN_RENEWED, "pin '%s' is held until it is dropped",
                               name);
        return;
    }
    (void)quire_events_add(adapt->events, quire_loop_uptime_us(adapt->loop),
                           QUIRE_EVENT_PIN_RENEWED, "pin '%s' is held for another %llu s", name,
                           (unsigned long long)ttl_s);
}

static void answer_here(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    question *q = ctx;
    quire_pin_table *pins = q->adapt->pins;
    quire_pin_entry *entry;

    (void)cache;
    (void)tree;
    entry = quire_adapt_pin_find(
        pins, quire_pins_find(pins->table, q->name->tenant, q->name->tenant_bytes, q->name->name));
    if (entry == NULL) {
        q->status = QUIRE_NOTFOUND;
    } else if (q->out == NULL) {
        quire_adapt_pin_drop_entry(q->adapt, entry, "was dropped");
    } else {
        renew(q->adapt, entry, q->ttl_s);
        quire_adapt_pin_describe(q->adapt, entry, q->out);
    }
}

static int check_asked(const quire_adapt *adapt, const quire_engine_pin_name *name)
{
    QUIRE_FAIL_IF(adapt->pins == NULL || name->name == NULL ||
                      name->tenant_bytes > QUIRE_PREFIX_SALT_MAX,
                  QUIRE_NOTFOUND);
    return QUIRE_OK;
}

static int answer_get(question *q)
{
    QUIRE_TRY(check_asked(q->adapt, q->name));
    QUIRE_TRY(quire_loop_call(q->adapt->loop, answer_here, q));
    return q->status;
}

int quire_adapt_pin_renew(quire_adapt *adapt, const quire_engine_pin_name *name, uint64_t ttl_s,
                          quire_engine_pin *out)
{
    question q = { .adapt = adapt, .name = name, .ttl_s = ttl_s, .out = out };
    quire_error err = QUIRE_ERROR_INIT;

    QUIRE_TRY(check_ttl(ttl_s, &err));
    return answer_get(&q);
}

int quire_adapt_pin_drop(quire_adapt *adapt, const quire_engine_pin_name *name)
{
    question q = { .adapt = adapt, .name = name };

    return answer_get(&q);
}

/* ---- looking ---- */

uint64_t quire_adapt_pins_changes(const quire_adapt *adapt)
{
    return adapt->pins != NULL ? atomic_load(&adapt->pins->changes) : 0;
}

void quire_adapt_pins_visit(quire_adapt *adapt,
                            void (*visit)(void *ctx, const quire_adapt_pin_view *pin), void *ctx)
{
    const quire_pin_table *pins = adapt->pins;

    for (uint32_t i = 0; pins != NULL && i < pins->n; i++) {
        const quire_pin_entry *entry = &pins->entries[i];
        char retain[QUIRE_RETAIN_TEXT_MAX] = "";
        quire_pin_info info;

        QUIRE_CHECK(quire_pins_get(pins->table, entry->id, &info) == QUIRE_OK);
        if (entry->tokens != NULL) {
            (void)quire_retain_text(&entry->retain, retain, sizeof retain);
        }
        visit(ctx, &(quire_adapt_pin_view){
                       .name = info.name,
                       .tenant = info.key.salt,
                       .tenant_bytes = info.key.salt_bytes,
                       .class_name = adapt->parts->opts->classes.items[entry->class_index].name,
                       .ttl_s = entry->ttl_s,
                       .expires_us = info.expires_us != 0 ? info.expires_us : entry->until_us,
                       .created_us = info.created_us,
                       .retain = retain,
                       .tokens = entry->tokens != NULL ? entry->tokens : info.tokens,
                       .n_tokens = entry->tokens != NULL ? entry->n_tokens : info.n_tokens,
                       .changed = entry->changed,
                   });
    }
}

static bool is_tenants(const quire_engine_pin *pin, const void *tenant, uint32_t tenant_bytes)
{
    return pin->tenant_bytes == tenant_bytes &&
           (tenant_bytes == 0 || memcmp(pin->tenant, tenant, tenant_bytes) == 0);
}

int quire_adapt_pin_get(quire_adapt *adapt, const quire_engine_pin_name *name,
                        quire_engine_pin *out)
{
    quire_pin_table *pins = adapt->pins;
    int rc = QUIRE_NOTFOUND;

    QUIRE_TRY(check_asked(adapt, name));
    (void)pthread_mutex_lock(&pins->lock);
    for (uint32_t i = 0; i < pins->n && rc < 0; i++) {
        const quire_pin_entry *entry = &pins->entries[i];

        if (is_tenants(&entry->shown, name->tenant, name->tenant_bytes) &&
            strcmp(entry->shown.name, name->name) == 0) {
            quire_adapt_pin_describe(adapt, entry, out);
            rc = QUIRE_OK;
        }
    }
    (void)pthread_mutex_unlock(&pins->lock);
    return rc;
}

int quire_adapt_pins_list(quire_adapt *adapt, const quire_adapt_pins_ask *ask,
                          quire_engine_pin *out, uint32_t n, uint32_t *n_all)
{
    quire_pin_table *pins = adapt->pins;
    uint32_t n_found = 0;
    uint32_t n_out = 0;

    if (pins != NULL) {
        (void)pthread_mutex_lock(&pins->lock);
        for (uint32_t i = 0; i < pins->n; i++) {
            const quire_pin_entry *entry = &pins->entries[i];

            if (ask->tenant != NULL && !is_tenants(&entry->shown, ask->tenant, ask->tenant_bytes)) {
                continue;
            }
            if (n_found++ >= ask->skip && n_out < n) {
                quire_adapt_pin_describe(adapt, entry, &out[n_out++]);
            }
        }
        (void)pthread_mutex_unlock(&pins->lock);
    }
    if (n_all != NULL) {
        *n_all = n_found;
    }
    return (int)n_out;
}
