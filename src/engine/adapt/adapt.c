/* adapt.c - see adapt.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/adapt_object.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/num.h"

#include <stdlib.h>

#define EVENTS_DEFAULT   1024u
#define TEXTS_DEFAULT    256u
#define JUDGE_US         (600u * 1000000u)
#define SLACK_TOKENS     4096u
#define IDLE_US          200000u
#define UPKEEP_US        1000000u
#define RECENT_WINDOW_US ((uint64_t)3600 * 1000000u)

/* ---- create ---- */

static int shadow_create(quire_adapt *adapt)
{
    quire_shadow_opts opts = QUIRE_SHADOW_OPTS_INIT;
    const uint32_t n_ctx = adapt->parts->runtime_opts->n_ctx;
    const uint64_t block_bytes =
        quire_loop_need_bytes(adapt->loop, n_ctx) / n_ctx * QUIRE_SHADOW_BLOCK_TOKENS;
    quire_cache_stats cache;

    if (adapt->parts->opts->no_shadow || adapt->parts->opts->no_prefix_cache) {
        return QUIRE_OK;
    }
    quire_cache_stats_get(adapt->parts->cache, &cache);
    opts.capacity_blocks = cache.budget_bytes / quire_max_u64(block_bytes, 1);
    opts.capacity_blocks = quire_max_u64(opts.capacity_blocks, 1);
    opts.blocks_max = n_ctx / QUIRE_SHADOW_BLOCK_TOKENS + 1;
    opts.seed = quire_loop_random();
    return quire_shadow_create(&adapt->shadow, &opts);
}

static int recent_create(quire_adapt *adapt)
{
    quire_recent_opts opts = QUIRE_RECENT_OPTS_INIT;

    if (adapt->parts->opts->recent_bytes == 0) {
        return QUIRE_OK;
    }
    opts.window_us = RECENT_WINDOW_US;
    opts.ring_bytes = adapt->parts->opts->recent_bytes;
    opts.seed = quire_loop_random();
    return quire_recent_create(&adapt->recent, &opts);
}

static int book_create(quire_adapt *adapt)
{
    const quire_precache_opts *o = &adapt->parts->opts->precache;
    quire_precache_book_opts opts = { .page_tokens = adapt->parts->runtime_opts->page_tokens };

    adapt->precache_idle_us = o->idle_us != 0 ? o->idle_us : IDLE_US;
    if (o->is_off || adapt->parts->opts->no_prefix_cache) {
        return QUIRE_OK;
    }
    opts.texts_max = o->texts_max != 0 ? o->texts_max : TEXTS_DEFAULT;
    opts.judge_us = o->judge_us != 0 ? o->judge_us : JUDGE_US;
    opts.slack_tokens = o->slack_tokens != 0 ? o->slack_tokens : SLACK_TOKENS;
    adapt->fetched_max = QUIRE_PRECACHE_SESSIONS + opts.texts_max;
    adapt->fetched = calloc(adapt->fetched_max, sizeof *adapt->fetched);
    QUIRE_FAIL_IF(adapt->fetched == NULL, QUIRE_NOMEM);
    return quire_precache_book_create(&adapt->book, &opts);
}

static int parts_create(quire_adapt *adapt, quire_error *err)
{
    const uint32_t n_events = adapt->parts->opts->events_max;
    int rc = QUIRE_OK;

    if (!adapt->has_shared_events) {
        rc = quire_events_create(&adapt->events, n_events != 0 ? n_events : EVENTS_DEFAULT);
    }

    if (rc < 0 || (rc = shadow_create(adapt)) < 0 || (rc = recent_create(adapt)) < 0 ||
        (rc = book_create(adapt)) < 0) {
        return quire_error_set(err, rc, "cannot create what watches the engine: %s",
                               quire_status_text(rc));
    }
    QUIRE_TRY(quire_pinned_open(adapt, err));
    return quire_adapt_pins_open(adapt, err);
}

int quire_adapt_create(quire_adapt **out, quire_loop *loop, quire_adapt *first, quire_error *err)
{
    quire_adapt *adapt = calloc(1, sizeof *adapt);
    int rc;

    *out = NULL;
    if (adapt == NULL || pthread_mutex_init(&adapt->lock, NULL) != 0) {
        free(adapt);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    adapt->loop = loop;
    adapt->events = first != NULL ? first->events : NULL;
    adapt->has_shared_events = first != NULL;
    adapt->parts = quire_loop_parts_get(loop);
    adapt->ttl_us = adapt->parts->opts->cache_ttl_us;
    adapt->low_traffic_after_us = adapt->parts->opts->low_traffic_after_us;
    adapt->busy_us = adapt->parts->created_us;
    adapt->upkeep_us = adapt->parts->created_us;
    quire_degrade_init(&adapt->degrade, &adapt->parts->opts->classes,
                       adapt->parts->opts->n_running_max, adapt->parts->created_us);
    rc = parts_create(adapt, err);
    if (rc < 0) {
        quire_adapt_destroy(adapt);
        return rc;
    }
    *out = adapt;
    return QUIRE_OK;
}

void quire_adapt_destroy(quire_adapt *adapt)
{
    if (adapt == NULL) {
        return;
    }
    quire_adapt_pins_close(adapt);
    quire_pinned_close(adapt);
    quire_precache_book_destroy(adapt->book);
    free(adapt->fetched);
    free(adapt->run.tokens);
    quire_recent_destroy(adapt->recent);
    quire_shadow_destroy(adapt->shadow);
    if (!adapt->has_shared_events) {
        quire_events_destroy(adapt->events);
    }
    (void)pthread_mutex_destroy(&adapt->lock);
    free(adapt);
}

/* Copy the figures for other threads. */
static void publish(quire_adapt *adapt)
{
    quire_precache_count(adapt);
    quire_adapt_pins_count(adapt);
    (void)pthread_mutex_lock(&adapt->lock);
    adapt->shared = adapt->figures;
    (void)pthread_mutex_unlock(&adapt->lock);
}

/* ---- requests ---- */

/* Number of prompt tokens that earlier requests computed: tokens found, plus tokens evicted
 * since. */
static uint32_t reused_tokens(const quire_prefix_match *match)
{
    if (match->end == QUIRE_PREFIX_END_EVICTED && match->gone != QUIRE_PREFIX_GONE_INVALIDATED &&
        match->gone != QUIRE_PREFIX_GONE_CLOSED) {
        return match->n_same_tokens + match->n_gone_tokens;
    }
    return match->n_tokens;
}

/* The texts used by requests of pinned classes make up the need of their region. */
static void touch_used(quire_adapt *adapt, const quire_request *r, uint32_t n_tokens)
{
    const quire_working_set_text text = {
        .salt = r->tenant,
        .salt_bytes = r->tenant_bytes,
        .tokens = r->tokens,
        .n_tokens = n_tokens,
    };

    if (quire_loop_region(adapt->loop, r->class_index) != QUIRE_REGION_DYNAMIC) {
        quire_pinned_touch(adapt, &text);
    }
}

static void admitted(void *ctx, const quire_request *r, const quire_prefix_match *match)
{
    quire_adapt *adapt = ctx;
    quire_precache_text text = {
        .tenant = r->tenant,
        .tenant_bytes = r->tenant_bytes,
        .tokens = r->tokens,
        .n_tokens = quire_request_cacheable(r, r->n_prompt),
    };

    touch_used(adapt, r, text.n_tokens);
    if (adapt->book == NULL || r->pin != 0) {
        return;
    }
    quire_precache_book_hit(adapt->book, &text, match->n_tokens);
    if (!r->has_session && !r->is_uncached) { /* sessions keep their own tokens */
        text.n_tokens = quire_min_u32(reused_tokens(match), text.n_tokens);
        quire_precache_book_note(adapt->book, &text, quire_loop_now_us(adapt->loop));
    }
}

static void first_token(void *ctx, const quire_request *r)
{
    quire_adapt *adapt = ctx;
    const double target_ms = adapt->parts->opts->classes.items[r->class_index].ttft_target_ms;

    if (target_ms > 0.0) {
        quire_degrade_first(&adapt->degrade, r->class_index,
                            (double)(r->first_us - r->submitted_us) * 1e-3 > target_ms);
    }
}

static void remember(quire_adapt *adapt, const quire_request *r)
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

    quire_recent_add(adapt->recent, &request);
}

/* The request still owns its pages. */
static void text_ended(quire_adapt *adapt, const quire_request *r)
{
    const quire_shadow_text text = {
        .salt = r->tenant,
        .salt_bytes = r->tenant_bytes,
        .tokens = r->tokens,
        .n_tokens = quire_request_cacheable(r, r->kv.n_computed),
        .n_prompt = r->n_prompt,
    };

    touch_used(adapt, r, text.n_tokens);
    if (adapt->recent != NULL && r->first_us != 0) {
        remember(adapt, r);
    }
    if (adapt->shadow != NULL && r->kv.n_computed > 0 && !r->is_uncached && r->pin == 0) {
        quire_shadow_feed(adapt->shadow, &text);
    }
}

static void ended(void *ctx, const quire_request *r, const quire_ending *ending)
{
    quire_adapt *adapt = ctx;

    if (r->pin != 0) {
        quire_adapt_pins_ended(adapt, r, ending);
    }
    if (r->state != QUIRE_REQUEST_WAITING) {
        text_ended(adapt, r);
    }
    publish(adapt); /* the waiting client then reads figures that count this request */
}

void quire_adapt_forget(quire_adapt *adapt, const quire_invalidate *what)
{
    /* Tenants named by a prefix count as all tenants. */
    const bool is_all =
        what->what == QUIRE_INVALIDATE_ALL || what->what == QUIRE_INVALIDATE_TENANTS;

    if (adapt->book != NULL) {
        quire_precache_forget(adapt);
        quire_precache_book_forget(adapt->book, is_all ? NULL : what->tenant, what->tenant_bytes);
    }
}

void quire_adapt_invalidated(quire_adapt *adapt)
{
    quire_adapt_pins_invalidated(adapt);
}

/* ---- between requests ---- */

/* Tell cost-aware eviction policies the cost of tokens. The fixed cost of a step is spread over its
 * tokens. */
static void cost_tell(quire_adapt *adapt)
{
    const quire_cost *cost = adapt->parts->cost;

    if (quire_cost_is_known(cost)) {
        (void)quire_loop_token_cost_set(adapt->loop,
                                        cost->prefill_row_us + (cost->step_us + cost->several_us) /
                                                                   adapt->parts->opts->chunk_tokens,
                                        cost->depth_row_us);
    }
}

/* Report a cut limit, or a limit back at its full size; growth in between is not reported. */
static void say_limits(quire_adapt *adapt)
{
    for (uint32_t i = 0; i < adapt->parts->opts->classes.n; i++) {
        const quire_degrade_class *c = &adapt->degrade.classes[i];
        const char *name = adapt->parts->opts->classes.items[i].name;
        uint32_t *said = &adapt->limits_said[i];

        if (c->limit >= c->most && *said != 0) {
            *said = 0;
            (void)quire_events_add(adapt->events, quire_loop_uptime_us(adapt->loop),
                                   QUIRE_EVENT_RECOVERED, "class %s: %u may run at once again",
                                   name, c->most);
        } else if (c->limit < c->most && (*said == 0 || c->limit < *said)) {
            *said = c->limit;
            (void)quire_events_add(
                adapt->events, quire_loop_uptime_us(adapt->loop), QUIRE_EVENT_DEGRADED,
                "class %s: %u instead of %u may run at once, a higher class is too slow", name,
                c->limit, c->most);
        }
    }
}

/* Report that one of the stores below memory has begun or ceased to fail. */
static void say_stores(quire_adapt *adapt)
{
    quire_store_part parts[QUIRE_STORE_PARTS_MAX];
    const uint32_t n = quire_loop_store_parts(adapt->loop, parts);

    for (uint32_t i = 0; i < n; i++) {
        const bool is_degraded = parts[i].stats.state == QUIRE_STORE_DEGRADED;

        if (is_degraded == adapt->has_said_degraded[i]) {
            continue;
        }
        adapt->has_said_degraded[i] = is_degraded;
        (void)quire_events_add(
            adapt->events, quire_loop_uptime_us(adapt->loop),
            is_degraded ? QUIRE_EVENT_STORE_DEGRADED : QUIRE_EVENT_STORE_READY, "%s store: %s%s",
            parts[i].name, is_degraded ? "no pages are written now: " : "pages are written again",
            is_degraded ? parts[i].stats.trouble : "");
    }
}

void quire_adapt_upkeep(quire_adapt *adapt)
{
    adapt->upkeep_us = quire_loop_now_us(adapt->loop);
    say_limits(adapt);
    say_stores(adapt);
    cost_tell(adapt);
    quire_precache_judge(adapt);
    quire_adapt_pins_upkeep(adapt);
    quire_pinned_upkeep(adapt);
}

static void upkeep(quire_adapt *adapt)
{
    if (quire_loop_now_us(adapt->loop) - adapt->upkeep_us >= UPKEEP_US) {
        quire_adapt_upkeep(adapt);
    }
}

/* Cut or raise the limits of low classes. */
static void limits_adapt(quire_adapt *adapt, const quire_loop_step *step)
{
    const uint64_t now_us = quire_loop_now_us(adapt->loop);
    quire_degrade *d = &adapt->degrade;

    for (uint32_t i = 0; i < d->n && step->n_rows > 0; i++) {
        quire_degrade_step(d, i, step->promised_us[i], step->us);
    }
    (void)quire_degrade_tick(d, now_us, quire_loop_running_of(adapt->loop));
    for (uint32_t i = 0; i < d->n; i++) {
        quire_loop_limit_set(adapt->loop, i, d->classes[i].limit);
    }
}

static void stepped(void *ctx, const quire_loop_step *step)
{
    quire_adapt *adapt = ctx;

    limits_adapt(adapt, step);
    upkeep(adapt);
    publish(adapt);
}

static uint32_t idle(void *ctx, const quire_loop_idle *now)
{
    quire_adapt *adapt = ctx;
    uint32_t again_ms = now->again_ms;

    if (now->is_over) {
        quire_precache_yield(adapt);
        return 0;
    }
    if (!now->is_busy) {
        again_ms = quire_precache_idle(adapt, again_ms);
    }
    upkeep(adapt);
    publish(adapt);
    return again_ms;
}

static void lost(void *ctx)
{
    quire_adapt_pins_lost(ctx);
}

static void dropped(void *ctx, const quire_invalidate *what)
{
    quire_adapt_forget(ctx, what);
    quire_adapt_invalidated(ctx);
}

void quire_adapt_events(quire_adapt *adapt, quire_loop_events *out)
{
    *out = (quire_loop_events){
        .ctx = adapt,
        .admitted = admitted,
        .first_token = first_token,
        .step = stepped,
        .ended = ended,
        .idle = idle,
        .lost = lost,
        .dropped = dropped,
    };
}

/* ---- figures ---- */

uint32_t quire_adapt_events_list(const quire_adapt *adapt, uint64_t after, quire_event *out,
                                 uint32_t n)
{
    return quire_events_list(adapt->events, after, out, n);
}

void quire_adapt_stats_get(quire_adapt *adapt, quire_memory_stats *out)
{
    (void)pthread_mutex_lock(&adapt->lock);
    *out = adapt->shared;
    (void)pthread_mutex_unlock(&adapt->lock);
    quire_pinned_stats(adapt, out);
    quire_events_totals(adapt->events, out->events_total);
    if (adapt->shadow != NULL) {
        quire_shadow_stats_get(adapt->shadow, &out->shadow);
    }
}
