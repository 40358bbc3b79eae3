/* replicas.c - see replicas.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/replicas.h"

#include "base/check.h"
#include "engine/engine_halves.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop.h"
#include "engine/loop/pooling.h"
#include "engine/loop/prompt_logprobs.h"
#include "engine/loop/request.h"
#include "model/kv_identity.h"

#include <math.h>
#include <string.h>

/* ---- create ---- */

static quire_runtime *runtime_of(const quire_engine_opts *opts, uint32_t replica)
{
    return replica == 0 ? opts->runtime : opts->devices.items[replica - 1].runtime;
}

static int check(const quire_engine_opts *opts, quire_error *err)
{
    const quire_runtime_opts *first = quire_runtime_opts_get(opts->runtime);

    if (opts->devices.n >= QUIRE_REPLICAS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u devices: at most %u are possible",
                               opts->devices.n + 1, QUIRE_REPLICAS_MAX);
    }
    for (uint32_t i = 0; i < opts->devices.n; i++) {
        const quire_runtime_opts *o = quire_runtime_opts_get(opts->devices.items[i].runtime);

        if ((opts->tier.store != NULL) != (opts->devices.items[i].store != NULL)) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "devices: a store below memory must be there for all or none");
        }
        if (o->n_ctx != first->n_ctx || o->page_tokens != first->page_tokens) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "devices: contexts of %u and %u tokens, pages of %u and %u; "
                                   "they must be equal",
                                   first->n_ctx, o->n_ctx, first->page_tokens, o->page_tokens);
        }
    }
    return QUIRE_OK;
}

int quire_replicas_open(quire_engine *engine, const quire_engine_opts *opts, quire_error *err)
{
    quire_dispatcher_opts dispatcher = {
        .n_replicas = opts->devices.n + 1,
        .page_tokens = quire_runtime_opts_get(opts->runtime)->page_tokens,
        .bindings = opts->devices.bindings,
        .n_bindings = opts->devices.n_bindings,
    };

    engine->n_replicas = 1;
    if (opts->devices.n == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(check(opts, err));
    for (uint32_t i = 0; i < dispatcher.n_replicas; i++) {
        quire_kv_identity_get(runtime_of(opts, i), dispatcher.identities[i]);
        dispatcher.watchers[i] = i == 0 ? opts->watcher : opts->devices.items[i - 1].watcher;
    }
    if (quire_dispatcher_create(&engine->dispatcher, &dispatcher) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the engine");
    }
    engine->n_replicas = dispatcher.n_replicas;
    return QUIRE_OK;
}

/* Whether somebody hears of the pages, as the dispatcher does. */
static bool has_events(const quire_engine_opts *opts)
{
    bool has = opts->watcher.stored != NULL;

    for (uint32_t i = 0; i < opts->devices.n; i++) {
        has = has || opts->devices.items[i].watcher.stored != NULL;
    }
    return has;
}

quire_engine_opts quire_replica_opts(const quire_engine *engine, const quire_engine_opts *opts,
                                     uint32_t replica)
{
    quire_engine_opts own = *opts;

    if (engine->dispatcher == NULL) {
        return own;
    }
    own.runtime = runtime_of(opts, replica);
    own.retain_chunk = has_events(opts) ? 0 : opts->retain_chunk;
    own.watcher = quire_dispatcher_watcher(engine->dispatcher, replica);
    if (replica > 0) {
        own.overflow = opts->devices.items[replica - 1].overflow;
        own.tier.store = opts->devices.items[replica - 1].store;
        own.shared_sessions = quire_loop_parts_get(engine->loop)->sessions;
        own.shared_arrivals = quire_loop_parts_get(engine->loop)->arrivals;
    }
    return own;
}

/* ---- routing ---- */

/* The roots of a text that is condensed. */
typedef struct roots {
    const quire_engine *engine;
    const quire_retain_spec *retain;
    quire_loop_text text;
    quire_condensed_walk walk;
} roots;

static void roots_begin(void *ctx, uint32_t replica)
{
    roots *r = ctx;

    quire_condensed_walk_begin(r->engine->loops[replica], r->retain, &r->text, &r->walk);
}

static bool roots_next(void *ctx, quire_dispatch_root *out)
{
    roots *r = ctx;

    if (!quire_condensed_walk_next(&r->walk, &out->key)) {
        return false;
    }
    out->n_gone = quire_condensing_gone(&r->walk.condensing, r->walk.k);
    out->n_kept = quire_condensing_kept(&r->walk.condensing, r->walk.k);
    return true;
}

/* A device, as the dispatcher asks what is below its memory. */
typedef struct asked {
    const quire_engine *engine;
    uint32_t replica;
} asked;

static uint32_t stored(void *ctx, const quire_page_key *keys, uint32_t n)
{
    const asked *a = ctx;

    return quire_loop_stored(a->engine->loops[a->replica], keys, n);
}

/* Devices of one identity are of one kind, over one store: the first one that knows its times tells
 * them for all. So none of them looks better for not having measured yet. */
static double share_of(const asked *a, uint32_t begin, uint32_t end)
{
    const quire_prefix_key own = quire_loop_key(a->engine->loops[a->replica], NULL, 0);
    double share = -1.0;

    for (uint32_t i = 0; share < 0.0 && i < a->engine->n_replicas; i++) {
        const quire_prefix_key other = quire_loop_key(a->engine->loops[i], NULL, 0);

        if (memcmp(own.identity, other.identity, sizeof own.identity) == 0) {
            share = quire_loop_fetch_share(a->engine->loops[i], begin, end);
        }
    }
    return share < 0.0 ? QUIRE_TIER_FETCH_SHARE : fmin(share, 1.0);
}

static uint32_t fetch_cost(void *ctx, uint32_t begin, uint32_t end)
{
    return (uint32_t)ceil(share_of(ctx, begin, end) * (end - begin));
}

quire_dispatch quire_replicas_route(const quire_engine *engine, quire_dispatch_ask *ask,
                                    const quire_retain_spec *retain, uint32_t refused)
{
    quire_replica_load loads[QUIRE_REPLICAS_MAX] = { { .is_lost = false } };
    roots r = { .engine = engine,
                .retain = retain,
                .text = { .tenant = ask->tenant,
                          .tenant_bytes = ask->tenant_bytes,
                          .tokens = ask->tokens,
                          .n_tokens = ask->n_tokens } };
    asked below[QUIRE_REPLICAS_MAX];
    quire_dispatch route;

    if (retain != NULL && ask->n_tokens > 0) {
        ask->roots = (quire_dispatch_roots){ roots_begin, roots_next, &r };
    }
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        loads[i].is_lost = quire_loop_is_lost(engine->loops[i]);
        loads[i].has_refused = (refused & 1u << i) != 0;
        quire_loop_load_get(engine->loops[i], &loads[i].n_requests, &loads[i].n_to_compute);
        below[i] = (asked){ engine, i };
        loads[i].below = (quire_dispatch_below){ stored, fetch_cost, &below[i] };
    }
    ask->loads = loads;
    route = quire_dispatcher_choose(engine->dispatcher, ask);
    ask->roots = (quire_dispatch_roots){ .begin = NULL };
    return route;
}

/* Its device may be lost later, so a request must be one that all devices can serve. */
static int check_abilities(const quire_engine *engine, const quire_request_params *params,
                           quire_error *err)
{
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        QUIRE_TRY(quire_loop_abilities_check(engine->loops[i], params, err));
    }
    return QUIRE_OK;
}

/* A device's refusal. */
typedef struct answer {
    uint32_t replica;
    quire_refusal why;
    int status;
    quire_error error;
} answer;

/* One refusal is counted, however many devices have refused. */
static int refuse(const quire_engine *engine, const quire_request_params *params, const answer *a,
                  quire_error *err)
{
    quire_loop_refusal_count(engine->loops[a->replica], params->class_index, a->why);
    if (err != NULL) {
        *err = a->error;
    }
    return a->status;
}

int quire_replicas_submit(quire_engine *engine, const quire_request_params *params,
                          quire_request **out, quire_error *err)
{
    quire_dispatch_ask ask = { .tenant = params->tenant,
                               .tenant_bytes = params->tenant_bytes,
                               .class_index = params->class_index,
                               .tokens = params->tokens,
                               .n_tokens = params->n_tokens,
                               .is_cold = quire_params_are_cold(params) };
    answer best = { .why = QUIRE_REFUSAL_INVALID };
    uint32_t refused = 0;

    *out = NULL;
    best.status = check_abilities(engine, params, &best.error);
    if (best.status < 0) {
        return refuse(engine, params, &best, err);
    }
    best.why = QUIRE_REFUSAL_NONE;
    for (;;) {
        const quire_dispatch route = quire_replicas_route(
            engine, &ask, quire_params_condense(params) ? params->retain : NULL, refused);
        answer one = { .replica = route.replica };

        if (route.replica == QUIRE_DISPATCH_NONE) {
            /* Without an answer all devices are lost. */
            return refused != 0 ? refuse(engine, params, &best, err)
                                : quire_loop_submit(engine->loop, params, 0, out, err);
        }
        if (params->session != 0) {
            quire_sessions_device_set(quire_engine_sessions(engine), params->session,
                                      route.replica);
        }
        one.status = quire_loop_try(engine->loops[route.replica], params, route.n_saved, out,
                                    &one.why, &one.error);
        if (one.status == QUIRE_OK) {
            return QUIRE_OK;
        }
        if (one.why < QUIRE_REFUSAL_LOST) { /* no other device takes it */
            return refuse(engine, params, &one, err);
        }
        best = one.why > best.why ? one : best;
        refused |= 1u << route.replica;
    }
}

/* A request of a lost device. Thread: the lost loop's. */
static bool take(void *ctx, quire_request *request)
{
    const quire_engine *engine = ctx;
    quire_dispatch_ask ask = { .tenant = request->tenant,
                               .tenant_bytes = request->tenant_bytes,
                               .class_index = request->class_index,
                               .tokens = request->tokens,
                               .n_tokens = request->n_tokens,
                               .is_cold = quire_prompt_logprobs_miss(request) ||
                                          quire_request_pools_all(request) };
    const quire_retain_spec *retain =
        request->condensing.chunk != 0 ? &request->condensing.spec : NULL;
    uint32_t refused = 0;

    for (;;) {
        const quire_dispatch route = quire_replicas_route(engine, &ask, retain, refused);

        if (route.replica == QUIRE_DISPATCH_NONE) {
            return false;
        }
        if (request->owner != 0) {
            quire_sessions_owner_device_set(quire_loop_parts_get(engine->loop)->sessions,
                                            request->owner, route.replica);
        }
        if (quire_loop_adopt(engine->loops[route.replica], request)) {
            return true;
        }
        refused |= 1u << route.replica;
    }
}

/* Thread: the loop's. */
static void owner_gone(void *ctx, quire_loop *loop, uint64_t owner)
{
    const quire_engine *engine = ctx;

    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        if (engine->loops[i] != loop) {
            quire_loop_owner_gone(engine->loops[i], owner);
        }
    }
}

/* Of the class nothing is known: a binding of a tenant counts alone. Thread: the loop's. */
static bool is_home(void *ctx, const quire_loop *loop, const quire_prefix_key *key,
                    const int32_t *tokens, uint32_t n_tokens)
{
    const quire_engine *engine = ctx;
    quire_dispatch_ask ask = { .tenant = key->salt,
                               .tenant_bytes = key->salt_bytes,
                               .class_index = QUIRE_CLASSES_MAX,
                               .tokens = tokens,
                               .n_tokens = n_tokens };
    const uint32_t replica = quire_replicas_route(engine, &ask, NULL, 0).replica;

    return replica != QUIRE_DISPATCH_NONE && engine->loops[replica] == loop;
}

void quire_replica_heir_set(quire_engine *engine, uint32_t replica)
{
    if (engine->dispatcher != NULL) {
        quire_loop_heir_set(engine->loops[replica],
                            &(quire_loop_heir){ take, owner_gone, is_home, engine });
    }
}

/* ---- figures by device ---- */

uint32_t quire_replicas_first(const quire_engine *engine)
{
    uint32_t i = 0;

    while (i < engine->n_replicas && quire_loop_is_lost(engine->loops[i])) {
        i++;
    }
    return i < engine->n_replicas ? i : 0;
}

bool quire_replicas_is_out(const quire_engine *engine, uint32_t replica)
{
    return quire_loop_is_lost(engine->loops[replica]) &&
           !quire_loop_is_lost(engine->loops[quire_replicas_first(engine)]);
}

static const char *name_of(const quire_loop_parts *parts)
{
    return parts->runtime_opts->device != NULL ? parts->runtime_opts->device : "cpu";
}

uint32_t quire_engine_devices_get(quire_engine *engine,
                                  quire_engine_device_stats out[QUIRE_REPLICAS_MAX])
{
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        quire_engine_stats stats = { 0 };

        quire_loop_stats_get(engine->loops[i], &stats);
        out[i] = (quire_engine_device_stats){
            .name = name_of(quire_loop_parts_get(engine->loops[i])),
            .is_lost = quire_loop_is_lost(engine->loops[i]),
            .requests_total = stats.requests_total + stats.adopted_total,
            .adopted_total = stats.adopted_total,
            .prompt_tokens_total = stats.prompt_tokens_total,
            .cached_tokens_total =
                stats.cached_tokens_prefix_total + stats.cached_tokens_session_total,
            .generated_tokens_total = stats.generated_tokens_total,
            .budget_bytes = stats.cache.budget_bytes,
            .live_bytes = stats.cache.live_bytes,
            .cached_bytes = stats.cache.cached_bytes,
            .fetched_tokens_total = stats.tier.fetched_tokens_total,
            .copied_pages_total = stats.tier.copied_pages_total,
        };
        quire_loop_load_get(engine->loops[i], &out[i].requests, &out[i].to_compute_tokens);
    }
    return engine->n_replicas;
}
