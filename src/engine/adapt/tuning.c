/* tuning.c - see tuning.h.
 *
 * Tuning has three phases: read the settings (engine's thread, between two steps), analyse the
 * recorded requests (caller's thread), apply the changes (engine's thread).
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/adapt_object.h"

#include "base/check.h"
#include "base/num.h"
#include "base/parse.h"
#include "model/recurrent.h"

#include <stdio.h>
#include <string.h>

#define US_PER_S 1e6

typedef struct tuner {
    quire_adapt *adapt;
    const quire_engine_tune_opts *opts;
    quire_engine_tuning *tuning;
    quire_cost cost;
    uint64_t total_bytes; /* of all regions */
} tuner;

/* ---- on the engine's thread ---- */

static void settings_read(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    tuner *t = ctx;
    quire_adapt *adapt = t->adapt;
    quire_tune_settings *s = &t->tuning->settings;
    quire_region_stats dynamic = { 0 }, pinned = { 0 };

    (void)tree;
    (void)quire_region_stats_get(cache, QUIRE_REGION_DYNAMIC, &dynamic);
    if (adapt->parts->pinned != QUIRE_REGION_DYNAMIC) {
        (void)quire_region_stats_get(cache, adapt->parts->pinned, &pinned);
    }
    t->total_bytes = dynamic.budget_bytes + pinned.budget_bytes;
    t->cost = *adapt->parts->cost;
    t->tuning->time_us = quire_loop_uptime_us(adapt->loop);
    *s = (quire_tune_settings){
        .pinned_share = (double)pinned.budget_bytes / (double)t->total_bytes,
        .ttl_us = adapt->ttl_us,
        .low_traffic_after_us = adapt->low_traffic_after_us,
        .memory_bytes = t->total_bytes,
        .policy = adapt->parts->opts->cache_policy,
    };
}

static int change_apply(const tuner *t, const quire_tune_change *change)
{
    quire_adapt *adapt = t->adapt;

    switch (change->knob) {
    case QUIRE_TUNE_PINNED_SHARE: {
        uint64_t bytes = (uint64_t)(change->to * (double)t->total_bytes);

        bytes -= bytes % adapt->parts->page_bytes;
        QUIRE_FAIL_IF(!quire_pinned_may_be(adapt, bytes), QUIRE_NOPAGES);
        return quire_loop_pinned_resize(adapt->loop, bytes);
    }
    case QUIRE_TUNE_TTL:
        QUIRE_TRY(quire_loop_ttl_set(adapt->loop, (uint64_t)change->to));
        adapt->ttl_us = (uint64_t)change->to;
        return QUIRE_OK;
    case QUIRE_TUNE_LOW_TRAFFIC:
        QUIRE_TRY(quire_loop_low_traffic_set(adapt->loop, (uint64_t)change->to));
        adapt->low_traffic_after_us = (uint64_t)change->to;
        return QUIRE_OK;
    case QUIRE_TUNE_MEMORY:
    case QUIRE_TUNE_POLICY:
    case QUIRE_TUNE_KNOB_COUNT:
        break;
    }
    return QUIRE_UNSUPP; /* cannot change while the engine runs */
}

static void changes_apply(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const tuner *t = ctx;
    quire_engine_tuning *tuning = t->tuning;

    (void)cache;
    (void)tree;
    for (uint32_t i = 0; i < tuning->n_changes; i++) {
        tuning->is_applied[i] = t->opts->is_applied && tuning->changes[i].is_applicable &&
                                change_apply(t, &tuning->changes[i]) == QUIRE_OK;
    }
}

/* ---- on the caller's ---- */

static void value_print(char *out, size_t size, quire_tune_knob knob, double value)
{
    switch (knob) {
    case QUIRE_TUNE_PINNED_SHARE:
    case QUIRE_TUNE_KNOB_COUNT:
        (void)snprintf(out, size, "%.2f", value);
        break;
    case QUIRE_TUNE_TTL:
    case QUIRE_TUNE_LOW_TRAFFIC:
        (void)snprintf(out, size, "%.0f s", value / US_PER_S);
        break;
    case QUIRE_TUNE_MEMORY:
        (void)quire_format_bytes((uint64_t)value, out, size);
        break;
    case QUIRE_TUNE_POLICY:
        (void)snprintf(out, size, "%s", quire_evict_policy_name((quire_evict_policy)value));
        break;
    }
}

/* A suggestion is reported once. */
static void changes_say(const tuner *t)
{
    quire_adapt *a = t->adapt;

    for (uint32_t i = 0; i < t->tuning->n_changes; i++) {
        const quire_tune_change *change = &t->tuning->changes[i];
        const bool is_applied = t->tuning->is_applied[i];
        char from[32], to[32];

        if (!is_applied && a->is_suggested[change->knob] &&
            !(a->suggested[change->knob] < change->to) &&
            !(a->suggested[change->knob] > change->to)) {
            continue;
        }
        a->is_suggested[change->knob] = !is_applied;
        a->suggested[change->knob] = change->to;
        value_print(from, sizeof from, change->knob, change->from);
        value_print(to, sizeof to, change->knob, change->to);
        (void)quire_events_add(a->events, quire_loop_uptime_us(t->adapt->loop),
                               is_applied ? QUIRE_EVENT_TUNE_APPLIED : QUIRE_EVENT_TUNE_SUGGESTED,
                               "%s %s -> %s: %s", quire_tune_knob_name(change->knob), from, to,
                               change->reason);
    }
}

/* The memory of a block of recorded requests, of a model with windows or states. */
static quire_sim_kv block_kv(const quire_loop_parts *parts, uint32_t block_tokens)
{
    const quire_kv_price price = quire_kv_price_make(parts->desc, parts->runtime_opts);
    const uint64_t state_bytes =
        quire_state_page_bytes(parts->desc, parts->runtime_opts->state_format);

    if (price.window_tokens == 0 && state_bytes == 0) {
        return (quire_sim_kv){ 0 };
    }
    return (quire_sim_kv){ .block_bytes = price.main_page_bytes / price.page_tokens * block_tokens,
                           .window_bytes =
                               price.window_tokens != 0
                                   ? price.window_page_bytes / price.page_tokens * block_tokens
                                   : 0,
                           .window_tokens = price.window_tokens,
                           .state_bytes = state_bytes,
                           .seq_state_bytes = quire_state_seq_bytes(parts->desc) / 2,
                           .state_every_tokens = parts->opts->state_every_tokens };
}

static quire_tune_ask ask_make(const tuner *t, uint32_t block_tokens)
{
    const quire_adapt *adapt = t->adapt;
    const quire_classes *classes = &adapt->parts->opts->classes;
    const uint32_t n_ctx = adapt->parts->runtime_opts->n_ctx;
    const uint32_t n_rows = adapt->parts->opts->n_running_max;
    quire_tune_ask ask = {
        .settings = t->tuning->settings,
        .token_bytes = (double)quire_loop_need_bytes(adapt->loop, n_ctx) / n_ctx,
        .kv = block_kv(adapt->parts, block_tokens),
        .prefill_token_us = t->cost.prefill_row_us,
        .decode_token_us = t->cost.step_us + t->cost.decode_row_us * n_rows,
        .compares_policies = t->opts->compares_policies,
        .seed = 1,
    };

    for (uint32_t i = 0; i < classes->n; i++) {
        ask.pinned_class_mask |= (uint8_t)(classes->items[i].is_pinned ? 1u << i : 0);
    }
    return ask;
}

/* Tune the pinned share only if a pinned region exists and its controller does not size it. */
static quire_tune_bounds bounds_make(const tuner *t)
{
    quire_tune_bounds bounds = t->opts->bounds;

    if (t->adapt->pinned.is_adapting || t->adapt->parts->pinned == QUIRE_REGION_DYNAMIC) {
        bounds.pinned_share_min = t->tuning->settings.pinned_share;
        bounds.pinned_share_max = t->tuning->settings.pinned_share;
    }
    return bounds;
}

static int tune(tuner *t)
{
    quire_adapt *adapt = t->adapt;
    quire_engine_tuning *tuning = t->tuning;
    quire_tune_bounds bounds;
    quire_tune_ask ask;
    quire_trace trace;
    int rc;

    QUIRE_FAIL_IF(adapt->recent == NULL, QUIRE_AGAIN);
    QUIRE_TRY(quire_loop_call(adapt->loop, settings_read, t));
    QUIRE_TRY(quire_recent_trace(adapt->recent, quire_loop_now_us(adapt->loop), &trace));
    ask = ask_make(t, trace.block_tokens);
    rc = quire_tune_measure(&trace, &ask, &tuning->facts);
    quire_trace_fini(&trace);
    if (rc < 0) {
        return rc;
    }
    bounds = bounds_make(t);
    tuning->n_changes = quire_tune_suggest(&tuning->facts, &tuning->settings, &bounds,
                                           &adapt->tune_state, tuning->changes);
    QUIRE_TRY(quire_loop_call(adapt->loop, changes_apply, t));
    changes_say(t);
    return QUIRE_OK;
}

int quire_adapt_tune(quire_adapt *adapt, const quire_engine_tune_opts *opts,
                     quire_engine_tuning *out)
{
    quire_engine_tuning tuning = { 0 };
    tuner t = { .adapt = adapt, .opts = opts, .tuning = &tuning };
    bool is_busy;
    int rc;

    (void)pthread_mutex_lock(&adapt->lock);
    is_busy = adapt->is_tuning;
    adapt->is_tuning = true;
    (void)pthread_mutex_unlock(&adapt->lock);
    QUIRE_FAIL_IF(is_busy, QUIRE_AGAIN);
    rc = tune(&t);
    (void)pthread_mutex_lock(&adapt->lock);
    adapt->is_tuning = false;
    if (rc == QUIRE_OK) {
        adapt->tuning = tuning;
    }
    (void)pthread_mutex_unlock(&adapt->lock);
    if (rc == QUIRE_OK && out != NULL) {
        *out = tuning;
    }
    return rc;
}

static void follow(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const tuner *t = ctx;
    quire_engine_tuning own = { .n_changes = 0 };
    tuner here = { .adapt = t->adapt, .tuning = &own };

    settings_read(&here, cache, tree);
    for (uint32_t i = 0; i < t->tuning->n_changes; i++) {
        if (t->tuning->is_applied[i]) {
            (void)change_apply(&here, &t->tuning->changes[i]);
        }
    }
}

void quire_adapt_tune_follow(quire_adapt *adapt, const quire_engine_tuning *tuning)
{
    quire_engine_tuning copy = *tuning;
    tuner t = { .adapt = adapt, .tuning = &copy };

    (void)quire_loop_call(adapt->loop, follow, &t);
    (void)pthread_mutex_lock(&adapt->lock);
    adapt->tuning = copy;
    (void)pthread_mutex_unlock(&adapt->lock);
}

void quire_adapt_tuning_get(quire_adapt *adapt, quire_engine_tuning *out)
{
    (void)pthread_mutex_lock(&adapt->lock);
    *out = adapt->tuning;
    (void)pthread_mutex_unlock(&adapt->lock);
}
