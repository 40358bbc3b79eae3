/* loop_create.c - creation and destruction of the loop: options, parts.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/overflow_loop.h"
#include "engine/loop/tier_object.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/pins.h"
#include "model/kv_formats.h"
#include "model/kv_identity.h"
#include "model/recurrent.h"

#include <stdlib.h>
#include <string.h>

#define REFS_MIN           4096u
#define STATE_EVERY_TOKENS 1024u
#define EXPLAIN_MAX        (1u << 20)
#define US_PER_MS          1000.0

/* ---- create ---- */

/* States are at ends of pages. */
static void state_every_resolve(quire_loop *loop)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    quire_engine_opts *o = &loop->opts;

    o->state_every_tokens = o->state_every_tokens != 0 ? o->state_every_tokens : STATE_EVERY_TOKENS;
    o->state_every_tokens = (o->state_every_tokens + page_tokens - 1) / page_tokens * page_tokens;
}

static int retain_resolve(const quire_loop *loop, quire_error *err)
{
    const quire_runtime_opts *runtime = loop->runtime_opts;
    const quire_engine_opts *o = &loop->opts;

    if (o->retain_chunk % runtime->page_tokens != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "condensing every %u tokens: must be a multiple of %u, the tokens "
                               "of a page",
                               o->retain_chunk, runtime->page_tokens);
    }
    if (o->retain_chunk != 0 && runtime->n_seqs_max <= o->n_running_max) {
        return quire_error_set(err, QUIRE_INVAL,
                               "condensing needs a sequence beyond the %u that run",
                               o->n_running_max);
    }
    return QUIRE_OK;
}

static int opts_resolve(quire_loop *loop, quire_error *err)
{
    const quire_engine_opts initial = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts *runtime = loop->runtime_opts;
    quire_engine_opts *o = &loop->opts;

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
    state_every_resolve(loop);
    QUIRE_TRY(quire_classes_resolve(&o->classes, err));
    o->n_running_max =
        quire_min_u32(o->n_running_max, quire_min_u32(runtime->n_seqs_max, runtime->n_batch));
    QUIRE_TRY(retain_resolve(loop, err));
    /* A text is condensed into another sequence. */
    o->n_parked_max =
        quire_min_u32(o->n_parked_max != 0 ? o->n_parked_max : UINT32_MAX,
                      runtime->n_seqs_max - o->n_running_max - (o->retain_chunk != 0));
    o->aging_us = o->aging_us != 0 ? o->aging_us : initial.aging_us;
    o->chunk_tokens = quire_min_u32(o->chunk_tokens, runtime->n_batch);
    return QUIRE_OK;
}

/* Set the accounts of tenants and the TTLs of classes in the tree. */
static int tree_share_out(quire_loop *loop)
{
    const quire_engine_accounts *accounts = &loop->opts.accounts;
    const quire_classes *classes = &loop->opts.classes;

    for (uint32_t i = 0; i < accounts->n; i++) {
        QUIRE_TRY(quire_prefix_account_set(loop->tree, (uint16_t)(i + 1), &accounts->items[i]));
    }
    for (uint32_t i = 0; i < classes->n; i++) {
        const quire_class *c = &classes->items[i];

        if (c->cache_ttl_us != 0) {
            QUIRE_TRY(quire_prefix_ttl_set(loop->tree, c->rank, c->cache_ttl_us));
        }
    }
    return QUIRE_OK;
}

static int tree_create(quire_loop *loop, quire_error *err)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    int rc;

    opts.cache = loop->cache;
    opts.is_page_exact = loop->room.is_page_exact;
    opts.refs_max = loop->opts.n_running_max > REFS_MIN ? loop->opts.n_running_max : REFS_MIN;
    /* A pin has one reference, and a second one while it is held anew. */
    opts.refs_max += 2 * quire_min_u32(loop->opts.pins_max, QUIRE_ENGINE_PINS_MAX);
    opts.policy = loop->opts.cache_policy;
    opts.ttl_us = loop->opts.cache_ttl_us;
    opts.low_traffic_after_us = loop->opts.low_traffic_after_us;
    opts.low_traffic_hits_per_hour = loop->opts.low_traffic_hits_per_hour;
    opts.seed = quire_loop_random();
    rc = quire_prefix_create(&loop->tree, &opts);
    if (rc == QUIRE_OK) {
        rc = tree_share_out(loop);
    }
    if (rc == QUIRE_OK && loop->opts.watcher.stored != NULL) {
        quire_prefix_watch(loop->tree, &loop->opts.watcher);
    }
    return rc < 0 ? quire_error_set(err, rc, "cannot create the prefix cache: %s",
                                    quire_status_text(rc))
                  : QUIRE_OK;
}

static int memory_take(quire_loop *loop)
{
    const uint32_t n = loop->opts.n_running_max;

    loop->set.running = calloc(n, sizeof(quire_request *));
    loop->set.parked = calloc((size_t)loop->opts.n_parked_max + 1, sizeof(quire_request *));
    loop->step.items = calloc(n, sizeof *loop->step.items);
    loop->step.slices = calloc(n, sizeof *loop->step.slices);
    QUIRE_FAIL_IF(loop->set.running == NULL || loop->set.parked == NULL ||
                      loop->step.items == NULL || loop->step.slices == NULL,
                  QUIRE_NOMEM);
    if (loop->opts.explain_max > 0) {
        loop->figures.explained = calloc(loop->opts.explain_max, sizeof *loop->figures.explained);
        QUIRE_FAIL_IF(loop->figures.explained == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

static int tier_create(quire_loop *loop, quire_error *err)
{
    const int rc = quire_tier_create(loop, &loop->tier);

    return rc < 0 ? quire_error_set(err, rc, "cannot use the %s store: %s",
                                    loop->opts.tier.store->name,
                                    rc == QUIRE_RANGE ? "pages of this model are too large"
                                                      : quire_status_text(rc))
                  : QUIRE_OK;
}

static int contents_create(quire_loop *loop, quire_error *err)
{
    int rc;

    if (memory_take(loop) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    loop->sessions = loop->opts.shared_sessions;
    rc = loop->sessions == NULL
             ? quire_sessions_create(&loop->sessions, loop->model, &loop->opts.sessions)
             : QUIRE_OK;
    if (rc < 0) {
        return quire_error_set(err, rc, "cannot create the table of sessions: %s",
                               quire_status_text(rc));
    }
    if (quire_loop_condensed_create(loop) < 0 || quire_loop_lanes_create(loop) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    QUIRE_TRY(tree_create(loop, err));
    QUIRE_TRY(quire_room_open(loop, err));
    QUIRE_TRY(quire_overflow_create(loop, err));
    return tier_create(loop, err);
}

/* Each attention device goes before the one that it stands in front of. */
static void devices_destroy(quire_loop *loop)
{
    if (loop->lanes.is_outer) {
        quire_loop_lanes_destroy(loop);
        quire_overflow_destroy(loop);
    } else {
        quire_overflow_destroy(loop);
        quire_loop_lanes_destroy(loop);
    }
}

static void contents_destroy(quire_loop *loop)
{
    quire_tier_release(loop);
    quire_prefix_destroy(loop->tree);
    quire_condensed_set_destroy(loop->condensed);
    devices_destroy(loop);
    quire_room_close(loop);
    if (loop->opts.shared_sessions == NULL) {
        quire_sessions_destroy(loop->sessions);
    }
    quire_bytes_fini(&loop->step.shown);
    free(loop->figures.explained);
    free(loop->step.slices);
    free(loop->step.items);
    free(loop->set.parked);
    free(loop->set.running);
}

static void classes_init(quire_loop *loop)
{
    const quire_classes *classes = &loop->opts.classes;
    uint64_t weights = 0;

    for (uint32_t i = 0; i < classes->n; i++) {
        weights += classes->items[i].weight;
    }
    quire_schedule_init(&loop->step.schedule);
    for (uint32_t i = 0; i < classes->n; i++) {
        quire_schedule_class *c = &loop->step.schedule.ranks[classes->items[i].rank];
        const uint64_t n_places =
            (uint64_t)loop->opts.n_running_max * classes->items[i].weight / weights;

        loop->set.rank_max = classes->items[i].rank > loop->set.rank_max ? classes->items[i].rank
                                                                         : loop->set.rank_max;
        loop->set.n_promoted_max[i] = n_places > 0 ? (uint32_t)n_places : 1;
        loop->set.limits[i] = quire_class_running_max(&classes->items[i], loop->opts.n_running_max);
        loop->figures.now.classes[i].running_limit = loop->set.limits[i];
        c->weight = classes->items[i].weight;
        c->tpot_us = classes->items[i].tpot_target_ms * US_PER_MS;
        c->stretch = classes->items[i].stretch;
    }
}

static void figures_init(quire_loop *loop)
{
    const quire_runtime_opts *o = loop->runtime_opts;
    const quire_kv_form form = quire_kv_form_of(loop->desc, o);
    quire_attn_layer layer;
    const quire_kv_page_bytes page = quire_kv_layout(&form, 0, &layer);

    loop->room.page_bytes = page.main + page.window;
    loop->room.price = quire_kv_price_make(loop->desc, o);
    loop->room.states_bytes = quire_state_seq_bytes(loop->desc);
    loop->room.is_page_exact = quire_kv_is_sealed(loop->desc, o->kv_pairs);
    loop->created_us = quire_loop_now_us(loop);
    loop->upkeep_us = loop->created_us;
    atomic_store(&loop->inbox.urgent_rank, -1);
    quire_kv_identity_get(loop->runtime, loop->identity);
    quire_figures_init(&loop->figures, loop->opts.classes.n);
    classes_init(loop);
    loop->figures.shared = loop->figures.now;
}

static void parts_fill(quire_loop *loop)
{
    loop->parts = (quire_loop_parts){
        .opts = &loop->opts,
        .model = loop->model,
        .desc = loop->desc,
        .runtime_opts = loop->runtime_opts,
        .sessions = loop->sessions,
        .arrivals =
            loop->opts.shared_arrivals != NULL ? loop->opts.shared_arrivals : &loop->inbox.arrivals,
        .cache = loop->cache,
        .tree = loop->tree,
        .cost = &loop->figures.now.cost,
        .page_bytes = loop->room.page_bytes,
        .is_page_exact = loop->room.is_page_exact,
        .pinned = loop->room.pinned,
        .created_us = loop->created_us,
    };
}

static int locks_init(quire_loop *loop)
{
    QUIRE_TRY(quire_inbox_init(&loop->inbox));
    if (pthread_mutex_init(&loop->store_view.lock, NULL) != 0) {
        quire_inbox_fini(&loop->inbox);
        return QUIRE_NOMEM;
    }
    return QUIRE_OK;
}

int quire_loop_create(quire_loop **out, const quire_engine_opts *opts, quire_error *err)
{
    quire_loop *loop = calloc(1, sizeof *loop);
    int rc;

    *out = NULL;
    if (loop == NULL || locks_init(loop) < 0) {
        free(loop);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    loop->opts = *opts;
    loop->model = opts->model;
    loop->desc = quire_model_desc_get(opts->model);
    loop->runtime = opts->runtime;
    loop->runtime_opts = quire_runtime_opts_get(opts->runtime);
    loop->cache = quire_runtime_cache(opts->runtime);
    rc = opts_resolve(loop, err);
    if (rc == QUIRE_OK) {
        figures_init(loop);
        rc = contents_create(loop, err);
    }
    if (rc < 0) {
        quire_loop_destroy(loop);
        return rc;
    }
    parts_fill(loop);
    *out = loop;
    return QUIRE_OK;
}

void quire_loop_destroy(quire_loop *loop)
{
    if (loop != NULL) {
        contents_destroy(loop);
        (void)pthread_mutex_destroy(&loop->store_view.lock);
        quire_inbox_fini(&loop->inbox);
        free(loop);
    }
}
