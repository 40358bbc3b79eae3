/* engine.c - the public functions of the engine, and its parts connected.
 *
 *   engine.h views.h --> loop   --- events: admitted, first token, step, ended, idle ---> adapt
 *   pins.h tuning.h  --> adapt  --- questions and setters (loop.h) ---------------------> loop
 *   saver.h          --> saver  --- reads sessions, pins and the reuse model --> loop, adapt
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/adapt/adapt.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop.h"
#include "engine/loop/loop_views.h"
#include "engine/saver/saver_life.h"

#include <stdlib.h>
#include <string.h>

/* Create a device's loop, and the adaptation that watches the loop. */
static int replica_create(quire_engine *engine, const quire_engine_opts *opts, uint32_t i,
                          quire_error *err)
{
    const quire_engine_opts own = quire_replica_opts(engine, opts, i);

    QUIRE_TRY(quire_loop_create(&engine->loops[i], &own, err));
    if (i == 0) {
        engine->loop = engine->loops[0];
    }
    QUIRE_TRY(quire_adapt_create(&engine->adapts[i], engine->loops[i], engine->adapt, err));
    engine->adapt = engine->adapts[0];
    quire_replica_heir_set(engine, i);
    return QUIRE_OK;
}

static int parts_create(quire_engine *engine, const quire_engine_opts *opts, quire_error *err)
{
    quire_loop_events events;
    quire_saver_devices saved;

    QUIRE_TRY(quire_replicas_open(engine, opts, err));
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        QUIRE_TRY(replica_create(engine, opts, i, err));
    }
    saved = (quire_saver_devices){ .loops = engine->loops,
                                   .adapts = engine->adapts,
                                   .n = engine->n_replicas,
                                   .pin_restore = quire_replicas_pin_restore,
                                   .ctx = engine };
    QUIRE_TRY(quire_saver_create(&engine->saver, &saved, err));
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        quire_adapt_events(engine->adapts[i], &events);
        QUIRE_TRY(quire_loop_start(engine->loops[i], &events, err));
    }
    return QUIRE_OK;
}

int quire_engine_create(quire_engine **out, const quire_engine_opts *opts, quire_error *err)
{
    quire_engine *engine = calloc(1, sizeof *engine);
    int rc;

    *out = NULL;
    if (engine == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    if (pthread_mutex_init(&engine->naming_lock, NULL) != 0) {
        free(engine);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    rc = parts_create(engine, opts, err);
    if (rc < 0) {
        for (uint32_t i = 0; i < engine->n_replicas && engine->loops[i] != NULL; i++) {
            quire_loop_store_leave(engine->loops[i]); /* some threads may run already */
        }
        quire_engine_destroy(engine);
        return rc;
    }
    quire_saver_start(engine->saver);
    *out = engine;
    return QUIRE_OK;
}

void quire_engine_destroy(quire_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    quire_saver_destroy(engine->saver);
    for (uint32_t i = 0; i < engine->n_replicas && engine->loops[i] != NULL; i++) {
        quire_loop_stop_begin(engine->loops[i]); /* all at once: a store's end takes seconds */
    }
    for (uint32_t i = 0; i < engine->n_replicas && engine->loops[i] != NULL; i++) {
        quire_loop_stop(engine->loops[i]);
    }
    for (uint32_t i = engine->n_replicas; i-- > 0;) { /* the first one's lists are the others' */
        quire_adapt_destroy(engine->adapts[i]);
        quire_loop_destroy(engine->loops[i]);
    }
    quire_dispatcher_destroy(engine->dispatcher);
    (void)pthread_mutex_destroy(&engine->naming_lock);
    free(engine);
}

/* ---- the loop's ---- */

bool quire_engine_is_idle(const quire_engine *engine)
{
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        if (!quire_loop_is_idle(engine->loops[i])) {
            return false;
        }
    }
    return true;
}

bool quire_engine_is_lost(const quire_engine *engine)
{
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        if (!quire_loop_is_lost(engine->loops[i])) {
            return false;
        }
    }
    return true;
}

const char *quire_engine_lost_name(const quire_engine *engine)
{
    return quire_loop_is_lost(engine->loop) ? quire_loop_lost_name(engine->loop) : NULL;
}

const quire_model *quire_engine_model(const quire_engine *engine)
{
    return quire_loop_parts_get(engine->loop)->model;
}

int quire_engine_context_check(const quire_engine *engine, quire_context_overflow overflow,
                               uint32_t keep, const char *setting, quire_error *err)
{
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        QUIRE_TRY(quire_loop_context_check(engine->loops[i], overflow, keep, setting, err));
    }
    return QUIRE_OK;
}

int quire_engine_context_condense_check(const quire_engine *engine, const quire_retain_spec *spec,
                                        uint32_t keep, const char *setting, quire_error *err)
{
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        QUIRE_TRY(quire_loop_context_condense_check(engine->loops[i], spec, keep, setting, err));
    }
    return QUIRE_OK;
}

int quire_engine_retain_check(const quire_engine *engine, const quire_retain_spec *spec,
                              const char *setting, quire_error *err)
{
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        QUIRE_TRY(quire_loop_retain_check(engine->loops[i], spec, setting, err));
    }
    return QUIRE_OK;
}

int quire_engine_attend_check(const quire_engine *engine, const char *setting, quire_error *err)
{
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        QUIRE_TRY(quire_loop_attend_check(engine->loops[i], setting, err));
    }
    return QUIRE_OK;
}

uint32_t quire_engine_n_ctx(const quire_engine *engine)
{
    return quire_loop_parts_get(engine->loop)->runtime_opts->n_ctx;
}

quire_sessions *quire_engine_sessions(quire_engine *engine)
{
    return quire_loop_parts_get(engine->loop)->sessions;
}

int quire_engine_submit(quire_engine *engine, const quire_request_params *params,
                        quire_request **out, quire_error *err)
{
    return engine->dispatcher != NULL ? quire_replicas_submit(engine, params, out, err)
                                      : quire_loop_submit(engine->loop, params, 0, out, err);
}

int quire_engine_explain(quire_engine *engine, const char *request_id, const void *tenant,
                         uint32_t tenant_bytes, quire_explanation *out)
{
    int rc = QUIRE_NOTFOUND;

    for (uint32_t i = 0; rc == QUIRE_NOTFOUND && i < engine->n_replicas; i++) {
        rc = quire_loop_explain(engine->loops[i], request_id, tenant, tenant_bytes, out);
    }
    return rc;
}

/* ---- adaptation's ---- */

uint32_t quire_engine_events(const quire_engine *engine, uint64_t after, quire_event *out,
                             uint32_t n)
{
    return quire_adapt_events_list(engine->adapt, after, out, n);
}

int quire_engine_tune(quire_engine *engine, const quire_engine_tune_opts *opts,
                      quire_engine_tuning *out)
{
    const uint32_t measured = quire_replicas_first(engine);
    quire_engine_tuning tuning;

    QUIRE_TRY(quire_adapt_tune(engine->adapts[measured], opts, &tuning));
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        if (i != measured) {
            quire_adapt_tune_follow(engine->adapts[i], &tuning);
        }
    }
    if (out != NULL) {
        *out = tuning;
    }
    return QUIRE_OK;
}

void quire_engine_tuning_get(quire_engine *engine, quire_engine_tuning *out)
{
    quire_adapt_tuning_get(engine->adapts[quire_replicas_first(engine)], out);
}

/* ---- both halves' ---- */

/* The figures of a device; of a lost one without gauges, if another one is there. */
static void stats_of(const quire_engine *engine, uint32_t replica, quire_engine_stats *out)
{
    quire_loop_stats_get(engine->loops[replica], out);
    quire_adapt_stats_get(engine->adapts[replica], &out->memory);
    if (engine->n_replicas > 1) { /* a sum of figures of one moment */
        quire_loop_store_look(engine->loops[replica], &out->tier);
    }
    if (quire_replicas_is_out(engine, replica)) {
        quire_engine_stats_gauges_clear(out);
    }
}

void quire_engine_stats_get(quire_engine *engine, quire_engine_stats *out)
{
    stats_of(engine, 0, out);
    for (uint32_t i = 1; i < engine->n_replicas; i++) {
        quire_engine_stats more = { 0 };

        stats_of(engine, i, &more);
        quire_engine_stats_add(out, &more);
    }
    quire_saver_stats_get(engine->saver, &out->saver);
}

typedef struct invalidation {
    quire_loop *loop;
    quire_adapt *adapt;
    const quire_invalidate *what;
    uint64_t owner;
    uint32_t n_shared;
    bool holds;      /* several devices drop one after another */
    uint32_t n_held; /* that have dropped, and begin no fetch */
    quire_prefix_dropped dropped;
} invalidation;

/* First stop computing the texts in advance, then drop them, then drop their pins. Of several
 * devices one that has dropped must not fetch a page that another one puts below before its own
 * drop. */
static void invalidate(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    invalidation *inv = ctx;

    (void)cache;
    (void)tree;
    if (inv->holds) {
        quire_loop_fetch_hold(inv->loop);
        inv->n_held++;
    }
    quire_adapt_forget(inv->adapt, inv->what);
    inv->dropped = quire_loop_invalidate(inv->loop, inv->what, inv->owner);
    quire_adapt_invalidated(inv->adapt);
}

static void session_drop(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    invalidation *inv = ctx;

    (void)cache;
    (void)tree;
    quire_adapt_forget(inv->adapt, inv->what);
    inv->dropped = quire_loop_session_drop(inv->loop, inv->what, inv->owner, &inv->n_shared);
}

/* Do something on the threads of all devices. */
static int on_all(quire_engine *engine, invalidation *inv,
                  void (*one)(void *ctx, quire_cache *cache, quire_prefix *tree),
                  quire_prefix_dropped *sum)
{
    uint32_t n_shared = 0;

    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        inv->loop = engine->loops[i];
        inv->adapt = engine->adapts[i];
        inv->dropped = (quire_prefix_dropped){ 0 };
        inv->n_shared = 0;
        QUIRE_TRY(quire_loop_call(inv->loop, one, inv));
        n_shared = quire_max_u32(n_shared, inv->n_shared);
        sum->nodes += inv->dropped.nodes;
        sum->tokens += inv->dropped.tokens;
        sum->freed_bytes += inv->dropped.freed_bytes;
    }
    inv->n_shared = n_shared;
    return QUIRE_OK;
}

static void release(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)tree;
    quire_loop_fetch_release(ctx);
}

/* All devices have dropped the texts. */
static void fetches_release(const quire_engine *engine, const invalidation *inv)
{
    for (uint32_t i = 0; i < inv->n_held; i++) {
        (void)quire_loop_call(engine->loops[i], release, engine->loops[i]);
    }
}

/* The tokens of a session. */
typedef struct kept_text {
    int32_t *tokens;
    uint32_t n_tokens;
    bool is_short; /* of memory */
} kept_text;

static void text_keep(void *ctx, const quire_session_info *info)
{
    kept_text *text = ctx;

    if (info->n_tokens > 0) {
        text->tokens = malloc(info->n_tokens * sizeof *text->tokens);
        text->is_short = text->tokens == NULL;
    }
    if (text->tokens != NULL) {
        memcpy(text->tokens, info->tokens, info->n_tokens * sizeof *text->tokens);
        text->n_tokens = info->n_tokens;
    }
}

/* Close a session. Its tokens name the copies that are to be forgotten. */
static int session_close(quire_engine *engine, const quire_invalidate *what, kept_text *text,
                         uint64_t *owner)
{
    quire_sessions *sessions = quire_engine_sessions(engine);

    QUIRE_TRY(quire_sessions_look(sessions, what->tenant, what->tenant_bytes, what->session_id,
                                  text_keep, text));
    QUIRE_FAIL_IF(text->is_short, QUIRE_NOMEM);
    return quire_sessions_close(sessions, what->tenant, what->tenant_bytes, what->session_id,
                                owner);
}

/* How many tokens of a closed session's text another one of the tenant has as well. */
typedef struct common {
    const quire_invalidate *what;
    uint32_t n;
} common;

static int common_take(void *ctx, const quire_session_info *info)
{
    common *c = ctx;
    const quire_invalidate *what = c->what;
    const uint32_t n_both = quire_min_u32(info->n_tokens, what->n_tokens);
    uint32_t n = 0;

    if (info->tenant_bytes == what->tenant_bytes &&
        (what->tenant_bytes == 0 || memcmp(info->tenant, what->tenant, what->tenant_bytes) == 0)) {
        while (n < n_both && info->tokens[n] == what->tokens[n]) {
            n++;
        }
    }
    c->n = quire_max_u32(c->n, n);
    return 0;
}

static uint32_t common_tokens(quire_engine *engine, const quire_invalidate *what)
{
    common c = { .what = what };

    (void)quire_sessions_visit(quire_engine_sessions(engine), NULL, 0, common_take, &c);
    return c.n;
}

int quire_engine_invalidate(quire_engine *engine, const quire_invalidate *what,
                            quire_prefix_dropped *dropped)
{
    quire_invalidate whole = *what;
    invalidation inv = { .what = &whole, .holds = engine->n_replicas > 1 };
    kept_text text = { 0 };
    int rc = QUIRE_OK;

    *dropped = (quire_prefix_dropped){ 0 };
    if (what->what == QUIRE_INVALIDATE_SESSION) {
        rc = session_close(engine, what, &text, &inv.owner);
        whole.tokens = text.tokens;
        whole.n_tokens = text.n_tokens;
        whole.n_shared_tokens = rc == QUIRE_OK ? common_tokens(engine, &whole) : 0;
    }
    if (rc == QUIRE_OK && engine->n_replicas > 1 && whole.n_tokens > 0 &&
        what->what == QUIRE_INVALIDATE_SESSION) {
        /* First count the tokens that texts on all devices share with this text: a device without
         * the text must not drop these tokens. */
        rc = on_all(engine, &inv, session_drop, dropped);
        whole.n_shared_tokens = quire_max_u32(whole.n_shared_tokens, inv.n_shared);
    }
    rc = rc == QUIRE_OK ? on_all(engine, &inv, invalidate, dropped) : rc;
    fetches_release(engine, &inv);
    free(text.tokens);
    return rc;
}
