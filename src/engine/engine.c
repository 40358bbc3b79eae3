/* engine.c - the engine's life and the loop of its thread.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/num.h"
#include "engine/pins.h"
#include "model/kv_formats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define IDLE_FIRST_MS      100u  /* after the last request: nothing else to do, so tidy up */
#define IDLE_MS            1000u /* expiry, while there is nothing to do */
#define UPKEEP_US          1000000u
#define EXPIRE_NODES_MAX   1024u
#define COALESCE_MOVES_MAX 64u
#define KEEP_EXTENT_BYTES  ((uint64_t)64 << 20) /* not returned to the OS when idle */
#define REFS_MIN           4096u
#define EXPLAIN_MAX        (1u << 20)
#define US_PER_MS          1000.0

uint64_t quire_engine_now_us(const quire_engine *engine)
{
    return engine->opts.clock_us != NULL ? engine->opts.clock_us(engine->opts.clock_ctx)
                                         : quire_clock_ns() / 1000u;
}

uint64_t quire_engine_random(void)
{
    uint64_t number = 0;

    return getrandom(&number, sizeof number, GRND_NONBLOCK) == (ssize_t)sizeof number ? number : 0;
}

/* ---- the thread ---- */

static bool has_work(const quire_engine *engine)
{
    return engine->n_running > 0 || engine->n_queued > 0 || engine->inbox.n > 0 ||
           engine->tasks != NULL || engine->chores != NULL || engine->has_cancels ||
           engine->is_stopping;
}

/* Tidy up while nothing runs. Returns whether there may be more to do. */
static bool tidy(quire_engine *engine)
{
    if (quire_cache_coalesce(engine->cache, COALESCE_MOVES_MAX) == COALESCE_MOVES_MAX) {
        return true;
    }
    (void)quire_cache_trim(engine->cache, KEEP_EXTENT_BYTES);
    return false;
}

/* Sleep until there is something to do, tidying up and computing in advance meanwhile. Returns
 * false when it is time to end. */
static bool wait_for_work(quire_engine *engine)
{
    uint32_t idle_ms = IDLE_FIRST_MS;
    bool is_going_on;

    (void)pthread_mutex_lock(&engine->lock);
    while (!has_work(engine)) {
        const struct timespec deadline = quire_deadline(idle_ms);

        if (pthread_cond_timedwait(&engine->wake, &engine->lock, &deadline) == ETIMEDOUT) {
            (void)pthread_mutex_unlock(&engine->lock);
            idle_ms = tidy(engine) ? 1 : quire_precache_idle(engine, IDLE_MS);
            quire_engine_upkeep(engine);
            quire_engine_stats_publish(engine);
            (void)pthread_mutex_lock(&engine->lock);
        }
    }
    is_going_on = !engine->is_stopping;
    (void)pthread_mutex_unlock(&engine->lock);
    return is_going_on;
}

void quire_engine_upkeep(quire_engine *engine)
{
    const uint64_t now_us = quire_engine_now_us(engine);
    uint64_t owner;

    if (now_us - engine->upkeep_us < UPKEEP_US) {
        return;
    }
    engine->upkeep_us = now_us;
    if (quire_prefix_expire(engine->tree, now_us, EXPIRE_NODES_MAX) > 0) {
        engine->n_releases++;
    }
    while ((owner = quire_sessions_expire(engine->sessions, now_us)) != 0) {
        (void)quire_prefix_drop_owner(engine->tree, owner, now_us);
        engine->n_releases++;
    }
    quire_adapt_upkeep(engine);
}

static void inbox_fetch(quire_engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    while (engine->inbox.first != NULL) {
        quire_queue_link *link = engine->inbox.first;

        quire_queue_remove(&engine->inbox, link);
        quire_engine_enqueue(engine, quire_request_of(link));
        /* Cancels of what lay in the inbox may have been looked for already. */
        engine->has_cancels |= atomic_load(&quire_request_of(link)->is_cancelled);
    }
    atomic_store(&engine->urgent_rank, -1);
    (void)pthread_mutex_unlock(&engine->lock);
}

static void end_all(quire_engine *engine)
{
    const quire_ending ending = { .finish = QUIRE_FINISH_CANCEL, .stop_index = -1 };

    inbox_fetch(engine);
    quire_precache_yield(engine);
    while (engine->n_running > 0) {
        quire_engine_end(engine, engine->running[engine->n_running - 1], &ending);
    }
    for (uint32_t i = 0; i < engine->opts.classes.n; i++) {
        while (engine->queues[i].first != NULL) {
            quire_engine_end(engine, quire_request_of(engine->queues[i].first), &ending);
        }
    }
    quire_engine_pins_stop(engine);
    quire_engine_tasks_run(engine, true);
    quire_engine_chores_end(engine);
}

static void *thread_main(void *arg)
{
    quire_engine *engine = arg;

    while (wait_for_work(engine)) {
        uint64_t begin_ns;

        quire_engine_upkeep(engine);
        quire_engine_tasks_run(engine, false);
        inbox_fetch(engine);
        if (engine->n_running > 0 || engine->n_queued > 0) {
            quire_precache_yield(engine);
        }
        quire_engine_cancels_apply(engine);
        quire_engine_qos_tick(engine);
        quire_engine_admit(engine);
        begin_ns = quire_clock_ns();
        quire_engine_step(engine);
        quire_engine_stats_publish(engine);
        quire_engine_chores_run(
            engine, engine->n_running > 0 ? (quire_clock_ns() - begin_ns) / 1000u + 1 : 0);
    }
    end_all(engine);
    return NULL;
}

/* ---- create ---- */

/* What makes KV bytes valid, hashed twice from different beginnings. */
static void identity_make(quire_engine *engine)
{
    static const char *const begins[2] = { "quire kv 1", "quire kv identity 1" };
    const quire_runtime_opts *o = engine->runtime_opts;
    const quire_rope *rope = &engine->desc->rope;
    const uint32_t words[] = { o->kv_recent,           o->kv_sinks,    o->page_tokens,
                               rope->n_dims,           rope->ctx_orig, (uint32_t)rope->type,
                               (uint32_t)rope->scaling };
    const float factors[] = { rope->freq_base,   rope->freq_scale, rope->ext_factor,
                              rope->attn_factor, rope->beta_fast,  rope->beta_slow };

    for (int i = 0; i < 2; i++) {
        uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, begins[i], strlen(begins[i]));

        hash = quire_hash_add(hash, &engine->desc->fingerprint, sizeof engine->desc->fingerprint);
        hash = quire_hash_add(hash, words, sizeof words);
        hash = quire_hash_add(hash, factors, sizeof factors);
        for (uint32_t s = 0; s < engine->desc->n_stored; s++) {
            const uint32_t pair[2] = { (uint32_t)o->kv_pairs[s].k, (uint32_t)o->kv_pairs[s].v };

            hash = quire_hash_add(hash, pair, sizeof pair);
        }
        engine->identity[i] = hash;
    }
}

static int opts_resolve(quire_engine *engine, quire_error *err)
{
    const quire_engine_opts initial = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts *runtime = engine->runtime_opts;
    quire_engine_opts *o = &engine->opts;

    o->n_running_max = o->n_running_max != 0 ? o->n_running_max : initial.n_running_max;
    o->queue_max = o->queue_max != 0 ? o->queue_max : initial.queue_max;
    o->chunk_tokens = o->chunk_tokens != 0 ? o->chunk_tokens : initial.chunk_tokens;
    if (o->queue_max > QUIRE_ENGINE_QUEUE_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "queue of %u requests: at most %u are possible",
                               o->queue_max, QUIRE_ENGINE_QUEUE_MAX);
    }
    if (o->explain_max > EXPLAIN_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u explanations: at most %u are possible",
                               o->explain_max, EXPLAIN_MAX);
    }
    if (o->accounts.n >= QUIRE_ACCOUNTS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u accounts: at most %u are possible",
                               o->accounts.n, QUIRE_ACCOUNTS_MAX - 1);
    }
    QUIRE_TRY(quire_classes_resolve(&o->classes, err));
    o->n_running_max =
        quire_min_u32(o->n_running_max, quire_min_u32(runtime->n_seqs_max, runtime->n_batch));
    o->n_parked_max = quire_min_u32(o->n_parked_max != 0 ? o->n_parked_max : UINT32_MAX,
                                    runtime->n_seqs_max - o->n_running_max);
    o->aging_us = o->aging_us != 0 ? o->aging_us : initial.aging_us;
    o->chunk_tokens = quire_min_u32(o->chunk_tokens, runtime->n_batch);
    return QUIRE_OK;
}

/* What tenants and classes have of their own. */
static int tree_share_out(quire_engine *engine)
{
    const quire_engine_accounts *accounts = &engine->opts.accounts;
    const quire_classes *classes = &engine->opts.classes;

    for (uint32_t i = 0; i < accounts->n; i++) {
        QUIRE_TRY(quire_prefix_account_set(engine->tree, (uint16_t)(i + 1), &accounts->items[i]));
    }
    for (uint32_t i = 0; i < classes->n; i++) {
        const quire_class *c = &classes->items[i];

        if (c->cache_ttl_us != 0) {
            QUIRE_TRY(quire_prefix_ttl_set(engine->tree, c->rank, c->cache_ttl_us));
        }
    }
    return QUIRE_OK;
}

static int tree_create(quire_engine *engine, quire_error *err)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    int rc;

    opts.cache = engine->cache;
    opts.is_page_exact = engine->is_page_exact;
    opts.refs_max = engine->opts.n_running_max > REFS_MIN ? engine->opts.n_running_max : REFS_MIN;
    /* A pin has one, and another while it is held anew. */
    opts.refs_max += 2 * quire_min_u32(engine->opts.pins_max, QUIRE_ENGINE_PINS_MAX);
    opts.policy = engine->opts.cache_policy;
    opts.ttl_us = engine->opts.cache_ttl_us;
    opts.low_traffic_after_us = engine->opts.low_traffic_after_us;
    opts.low_traffic_hits_per_hour = engine->opts.low_traffic_hits_per_hour;
    opts.seed = quire_engine_random();
    rc = quire_prefix_create(&engine->tree, &opts);
    if (rc == QUIRE_OK) {
        rc = tree_share_out(engine);
    }
    return rc < 0 ? quire_error_set(err, rc, "cannot create the prefix cache: %s",
                                    quire_status_text(rc))
                  : QUIRE_OK;
}

static int parts_create(quire_engine *engine, quire_error *err)
{
    const uint32_t n = engine->opts.n_running_max;
    int rc;

    engine->running = calloc(n, sizeof(quire_request *));
    engine->parked = calloc((size_t)engine->opts.n_parked_max + 1, sizeof(quire_request *));
    engine->items = calloc(n, sizeof *engine->items);
    engine->slices = calloc(n, sizeof *engine->slices);
    if (engine->opts.explain_max > 0) {
        engine->explained = calloc(engine->opts.explain_max, sizeof *engine->explained);
    }
    if (engine->running == NULL || engine->parked == NULL || engine->items == NULL ||
        engine->slices == NULL || (engine->opts.explain_max > 0 && engine->explained == NULL)) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    rc = quire_sessions_create(&engine->sessions, engine->model, &engine->opts.sessions);
    if (rc < 0) {
        return quire_error_set(err, rc, "cannot create the table of sessions: %s",
                               quire_status_text(rc));
    }
    QUIRE_TRY(tree_create(engine, err));
    QUIRE_TRY(quire_pinned_open(engine, err));
    QUIRE_TRY(quire_engine_pins_open(engine, err));
    return quire_adapt_create(engine, err);
}

static void parts_destroy(quire_engine *engine)
{
    quire_engine_pins_close(engine);
    quire_adapt_destroy(engine);
    quire_prefix_destroy(engine->tree);
    quire_pinned_close(engine);
    quire_sessions_destroy(engine->sessions);
    quire_bytes_fini(&engine->shown);
    free(engine->explained);
    free(engine->slices);
    free(engine->items);
    free(engine->parked);
    free(engine->running);
}

/* The lock and its conditions; all or nothing. */
static int locks_init(quire_engine *engine)
{
    pthread_condattr_t attr;
    bool has_wake = false;
    int rc = QUIRE_NOMEM;

    QUIRE_FAIL_IF(pthread_condattr_init(&attr) != 0, QUIRE_NOMEM);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (pthread_cond_init(&engine->wake, &attr) != 0) {
        goto out;
    }
    has_wake = true;
    if (pthread_cond_init(&engine->task_done, NULL) != 0) {
        goto out;
    }
    if (pthread_mutex_init(&engine->lock, NULL) != 0) {
        (void)pthread_cond_destroy(&engine->task_done);
        goto out;
    }
    rc = QUIRE_OK;
out:
    if (rc < 0 && has_wake) {
        (void)pthread_cond_destroy(&engine->wake);
    }
    (void)pthread_condattr_destroy(&attr);
    return rc;
}

static void locks_fini(quire_engine *engine)
{
    (void)pthread_mutex_destroy(&engine->lock);
    (void)pthread_cond_destroy(&engine->task_done);
    (void)pthread_cond_destroy(&engine->wake);
}

static void classes_init(quire_engine *engine)
{
    const quire_classes *classes = &engine->opts.classes;
    uint64_t weights = 0;

    for (uint32_t i = 0; i < classes->n; i++) {
        weights += classes->items[i].weight;
    }
    quire_degrade_init(&engine->qos.degrade, classes, engine->opts.n_running_max,
                       engine->created_us);
    quire_schedule_init(&engine->schedule);
    for (uint32_t i = 0; i < classes->n; i++) {
        quire_schedule_class *c = &engine->schedule.ranks[classes->items[i].rank];
        const uint64_t n_places =
            (uint64_t)engine->opts.n_running_max * classes->items[i].weight / weights;

        engine->rank_max =
            classes->items[i].rank > engine->rank_max ? classes->items[i].rank : engine->rank_max;
        engine->n_promoted_max[i] = n_places > 0 ? (uint32_t)n_places : 1;
        engine->stats.classes[i].running_limit = engine->qos.degrade.classes[i].limit;
        c->weight = classes->items[i].weight;
        c->tpot_us = classes->items[i].tpot_target_ms * US_PER_MS;
        c->stretch = classes->items[i].stretch;
    }
}

static void figures_init(quire_engine *engine)
{
    const quire_runtime_opts *o = engine->runtime_opts;
    quire_attn_layer layer;

    engine->page_bytes = quire_kv_layout(engine->desc, o->kv_pairs, o->page_tokens, 0, &layer).main;
    engine->price = quire_kv_price_make(engine->desc, o);
    engine->is_page_exact = quire_kv_is_sealed(engine->desc, o->kv_pairs);
    engine->created_us = quire_engine_now_us(engine);
    engine->upkeep_us = engine->created_us;
    atomic_store(&engine->urgent_rank, -1);
    engine->n_releases = 1; /* requests begin with 0: not blocked */
    identity_make(engine);
    quire_engine_stats_init(&engine->stats, engine->opts.classes.n);
    classes_init(engine);
    engine->shared_stats = engine->stats;
}

int quire_engine_create(quire_engine **out, const quire_engine_opts *opts, quire_error *err)
{
    quire_engine *engine = calloc(1, sizeof *engine);
    int rc;

    *out = NULL;
    if (engine == NULL || locks_init(engine) < 0) {
        free(engine);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    engine->opts = *opts;
    engine->model = opts->model;
    engine->desc = quire_model_desc_get(opts->model);
    engine->runtime = opts->runtime;
    engine->runtime_opts = quire_runtime_opts_get(opts->runtime);
    engine->cache = quire_runtime_cache(opts->runtime);
    if ((rc = opts_resolve(engine, err)) < 0) {
        goto out;
    }
    figures_init(engine);
    if ((rc = parts_create(engine, err)) < 0) {
        goto out;
    }
    (void)quire_runtime_canceler_set(engine->runtime, quire_engine_qos_gives_up, engine);
    if (pthread_create(&engine->thread, NULL, thread_main, engine) != 0) {
        rc = quire_error_set(err, QUIRE_NOMEM, "cannot start the engine's thread");
        goto out;
    }
    *out = engine;
    return QUIRE_OK;
out:
    (void)quire_runtime_canceler_set(engine->runtime, NULL, NULL);
    parts_destroy(engine);
    locks_fini(engine);
    free(engine);
    return rc;
}

void quire_engine_destroy(quire_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&engine->lock);
    engine->is_stopping = true;
    (void)pthread_cond_signal(&engine->wake);
    (void)pthread_mutex_unlock(&engine->lock);
    (void)pthread_join(engine->thread, NULL);
    (void)quire_runtime_canceler_set(engine->runtime, NULL, NULL);
    parts_destroy(engine);
    locks_fini(engine);
    free(engine);
}

/* ---- small questions ---- */

bool quire_engine_is_idle(const quire_engine *engine)
{
    return atomic_load(&engine->n_unfinished) == 0;
}

const quire_model *quire_engine_model(const quire_engine *engine)
{
    return engine->model;
}

uint32_t quire_engine_n_ctx(const quire_engine *engine)
{
    return engine->runtime_opts->n_ctx;
}

quire_sessions *quire_engine_sessions(quire_engine *engine)
{
    return engine->sessions;
}

void quire_engine_wake_cancels(quire_engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    engine->has_cancels = true;
    (void)pthread_cond_signal(&engine->wake);
    (void)pthread_mutex_unlock(&engine->lock);
}
