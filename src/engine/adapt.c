/* adapt.c - see adapt.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine_internal.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/num.h"

#include <stdlib.h>

#define EVENTS_DEFAULT   1024u
#define TEXTS_DEFAULT    256u
#define JUDGE_US         (600u * 1000000u)
#define SLACK_TOKENS     4096u
#define IDLE_US          200000u
#define RECENT_WINDOW_US ((uint64_t)3600 * 1000000u)

/* ---- create ---- */

static int shadow_create(quire_engine *engine)
{
    quire_shadow_opts opts = QUIRE_SHADOW_OPTS_INIT;
    const uint32_t n_ctx = engine->runtime_opts->n_ctx;
    const uint64_t block_bytes =
        quire_engine_need_bytes(engine, n_ctx) / n_ctx * QUIRE_SHADOW_BLOCK_TOKENS;
    quire_cache_stats cache;

    if (engine->opts.no_shadow || engine->opts.no_prefix_cache) {
        return QUIRE_OK;
    }
    quire_cache_stats_get(engine->cache, &cache);
    opts.capacity_blocks = cache.budget_bytes / quire_max_u64(block_bytes, 1);
    opts.capacity_blocks = quire_max_u64(opts.capacity_blocks, 1);
    opts.blocks_max = n_ctx / QUIRE_SHADOW_BLOCK_TOKENS + 1;
    opts.seed = quire_engine_random();
    return quire_shadow_create(&engine->adapt.shadow, &opts);
}

static int recent_create(quire_engine *engine)
{
    quire_recent_opts opts = QUIRE_RECENT_OPTS_INIT;

    if (engine->opts.recent_bytes == 0) {
        return QUIRE_OK;
    }
    opts.window_us = RECENT_WINDOW_US;
    opts.ring_bytes = engine->opts.recent_bytes;
    opts.seed = quire_engine_random();
    return quire_recent_create(&engine->adapt.recent, &opts);
}

static int book_create(quire_engine *engine)
{
    quire_precache_opts *o = &engine->opts.precache;
    quire_precache_book_opts opts = { .page_tokens = engine->runtime_opts->page_tokens };

    o->idle_us = o->idle_us != 0 ? o->idle_us : IDLE_US;
    if (o->is_off || engine->opts.no_prefix_cache) {
        return QUIRE_OK;
    }
    opts.texts_max = o->texts_max != 0 ? o->texts_max : TEXTS_DEFAULT;
    opts.judge_us = o->judge_us != 0 ? o->judge_us : JUDGE_US;
    opts.slack_tokens = o->slack_tokens != 0 ? o->slack_tokens : SLACK_TOKENS;
    return quire_precache_book_create(&engine->adapt.book, &opts);
}

int quire_adapt_ttl_set(quire_engine *engine, uint64_t ttl_us)
{
    const quire_classes *classes = &engine->opts.classes;

    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        const uint32_t c = quire_classes_of_rank(classes, rank);
        const uint64_t own_us = c != QUIRE_CLASSES_MAX ? classes->items[c].cache_ttl_us : 0;

        QUIRE_TRY(quire_prefix_ttl_set(engine->tree, (uint8_t)rank, own_us != 0 ? own_us : ttl_us));
    }
    engine->adapt.ttl_us = ttl_us;
    return QUIRE_OK;
}

int quire_adapt_create(quire_engine *engine, quire_error *err)
{
    quire_adapt *a = &engine->adapt;
    const uint32_t n_events =
        engine->opts.events_max != 0 ? engine->opts.events_max : EVENTS_DEFAULT;
    int rc = quire_events_create(&a->events, n_events);

    a->ttl_us = engine->opts.cache_ttl_us;
    a->low_traffic_after_us = engine->opts.low_traffic_after_us;
    a->busy_us = engine->created_us;
    if (rc < 0 || (rc = shadow_create(engine)) < 0 || (rc = recent_create(engine)) < 0 ||
        (rc = book_create(engine)) < 0) {
        return quire_error_set(err, rc, "cannot create what watches the engine: %s",
                               quire_status_text(rc));
    }
    return QUIRE_OK;
}

void quire_adapt_destroy(quire_engine *engine)
{
    quire_adapt *a = &engine->adapt;

    quire_precache_book_destroy(a->book);
    free(a->run.tokens);
    quire_recent_destroy(a->recent);
    quire_shadow_destroy(a->shadow);
    quire_events_destroy(a->events);
}

/* ---- requests ---- */

/* How much of a prompt others had computed before: what it found, and what it would have found had
 * that not been evicted. */
static uint32_t reused_tokens(const quire_prefix_match *match)
{
    if (match->end == QUIRE_PREFIX_END_EVICTED && match->gone != QUIRE_PREFIX_GONE_INVALIDATED &&
        match->gone != QUIRE_PREFIX_GONE_CLOSED) {
        return match->n_same_tokens + match->n_gone_tokens;
    }
    return match->n_tokens;
}

/* What requests of pinned classes use is what their region is needed for. */
static void touch_used(quire_engine *engine, const quire_request *r, uint32_t n_tokens)
{
    const quire_working_set_text text = {
        .salt = r->tenant,
        .salt_bytes = r->tenant_bytes,
        .tokens = r->tokens,
        .n_tokens = n_tokens,
    };

    if (quire_engine_region(engine, r->class_index) != QUIRE_REGION_DYNAMIC) {
        quire_pinned_touch(engine, &text);
    }
}

void quire_adapt_admitted(quire_engine *engine, const quire_request *r,
                          const quire_prefix_match *match)
{
    quire_adapt *a = &engine->adapt;
    quire_precache_text text = {
        .tenant = r->tenant,
        .tenant_bytes = r->tenant_bytes,
        .tokens = r->tokens,
        .n_tokens = r->n_prompt,
    };

    touch_used(engine, r, r->n_prompt);
    if (a->book == NULL || r->pin != 0) {
        return;
    }
    quire_precache_book_hit(a->book, &text, match->n_tokens);
    if (!r->has_session && !r->is_uncached) { /* sessions keep their tokens themselves */
        text.n_tokens = quire_min_u32(reused_tokens(match), r->n_prompt);
        quire_precache_book_note(a->book, &text, quire_engine_now_us(engine));
    }
}

static void remember(quire_engine *engine, const quire_request *r)
{
    const uint64_t tenant = quire_hash_add(QUIRE_HASH_INIT, r->tenant, r->tenant_bytes);
    const quire_recent_request request = {
        .time_us = r->submitted_us,
        .tokens = r->tokens,
        .n_input_tokens = r->n_prompt,
        .n_output_tokens = r->n_tokens - r->n_prompt,
        .tenant = (uint32_t)(tenant ^ (tenant >> 32)),
        .session = (uint32_t)r->owner,
        .class_index = (uint8_t)r->class_index,
    };

    quire_recent_add(engine->adapt.recent, &request);
}

void quire_adapt_ended(quire_engine *engine, const quire_request *r)
{
    quire_adapt *a = &engine->adapt;
    const quire_shadow_text text = {
        .salt = r->tenant,
        .salt_bytes = r->tenant_bytes,
        .tokens = r->tokens,
        .n_tokens = r->n_computed,
        .n_prompt = r->n_prompt,
    };

    touch_used(engine, r, r->n_computed);
    if (a->recent != NULL && r->first_us != 0) {
        remember(engine, r);
    }
    if (a->shadow != NULL && r->n_computed > 0 && !r->is_uncached && r->pin == 0) {
        quire_shadow_feed(a->shadow, &text);
    }
}

void quire_adapt_invalidated(quire_engine *engine, const void *tenant, uint32_t tenant_bytes)
{
    if (engine->adapt.book != NULL) {
        quire_precache_forget(engine);
        quire_precache_book_forget(engine->adapt.book, tenant, tenant_bytes);
    }
}

/* ---- between requests ---- */

/* What tokens cost is what policies weigh that look at costs. A step's own cost is its tokens'. */
static void cost_tell(quire_engine *engine)
{
    const quire_cost *cost = &engine->stats.cost;

    if (quire_cost_is_known(cost)) {
        (void)quire_prefix_cost_set(engine->tree,
                                    cost->prefill_row_us + (cost->step_us + cost->several_us) /
                                                               engine->opts.chunk_tokens,
                                    cost->depth_row_us);
    }
}

/* Fewer of a class may run, or as many as ever again; the way back is not told step by step. */
static void say_limits(quire_engine *engine)
{
    for (uint32_t i = 0; i < engine->opts.classes.n; i++) {
        const quire_degrade_class *c = &engine->qos.degrade.classes[i];
        const char *name = engine->opts.classes.items[i].name;
        uint32_t *said = &engine->adapt.limits_said[i];

        if (c->limit >= c->most && *said != 0) {
            *said = 0;
            (void)quire_events_add(engine->adapt.events, quire_engine_uptime_us(engine),
                                   QUIRE_EVENT_RECOVERED, "class %s: %u may run at once again",
                                   name, c->most);
        } else if (c->limit < c->most && (*said == 0 || c->limit < *said)) {
            *said = c->limit;
            (void)quire_events_add(
                engine->adapt.events, quire_engine_uptime_us(engine), QUIRE_EVENT_DEGRADED,
                "class %s: %u instead of %u may run at once, a higher class is too slow", name,
                c->limit, c->most);
        }
    }
}

void quire_adapt_upkeep(quire_engine *engine)
{
    say_limits(engine);
    cost_tell(engine);
    quire_precache_judge(engine);
    quire_engine_pins_upkeep(engine);
    quire_pinned_upkeep(engine);
}

uint64_t quire_engine_uptime_us(const quire_engine *engine)
{
    return quire_engine_now_us(engine) - engine->created_us;
}

uint32_t quire_engine_events(const quire_engine *engine, uint64_t after, quire_event *out,
                             uint32_t n)
{
    return quire_events_list(engine->adapt.events, after, out, n);
}

void quire_adapt_stats(const quire_engine *engine, quire_memory_stats *out)
{
    quire_pinned_stats(engine, out);
    quire_events_totals(engine->adapt.events, out->events_total);
    if (engine->adapt.shadow != NULL) {
        quire_shadow_stats_get(engine->adapt.shadow, &out->shadow);
    }
}
