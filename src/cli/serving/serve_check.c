/* serve_check.c - see serve_check.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_check.h"

#include "base/check.h"
#include "base/num.h"
#include "base/parse.h"
#include "cli/commands/opened_memory.h"
#include "cli/serving/serve_retain.h"
#include "cli/serving/serve_store.h"
#include "engine/context_condense.h"
#include "engine/overflow.h"
#include "model/recurrent.h"
#include "store/page_io.h"

#include <stdlib.h>

/* ---- the settings alone ---- */

uint64_t quire_serve_pinned_at_first(const quire_serve_args *args)
{
    if (args->pinned_bytes > 0) {
        return args->pinned_bytes;
    }
    return args->pinned_floor_bytes > 0 ? args->pinned_floor_bytes : args->pinned_ceiling_bytes / 4;
}

int quire_serve_memory_check(const quire_serve_args *args, quire_error *err)
{
    const uint64_t ceiling = args->pinned_ceiling_bytes;

    if (ceiling == 0 && (args->pinned_floor_bytes > 0 || args->dynamic_floor_bytes > 0)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s is for a region that changes: give pinned_ceiling too",
                               args->pinned_floor_bytes > 0 ? "pinned_floor" : "dynamic_floor");
    }
    if (ceiling > 0 && quire_serve_pinned_at_first(args) > ceiling) {
        return quire_error_set(err, QUIRE_INVAL, "%s is more than pinned_ceiling",
                               args->pinned_bytes > 0 ? "pinned" : "pinned_floor");
    }
    if (quire_serve_pinned_at_first(args) < args->pinned_floor_bytes) {
        return quire_error_set(err, QUIRE_INVAL, "pinned is less than pinned_floor");
    }
    if (args->tune_pinned_min > args->tune_pinned_max) {
        return quire_error_set(err, QUIRE_INVAL, "tune_pinned_min is more than tune_pinned_max");
    }
    if (args->tune_ttl_min_us > args->tune_ttl_max_us) {
        return quire_error_set(err, QUIRE_INVAL, "tune_ttl_min is more than tune_ttl_max");
    }
    return QUIRE_OK;
}

int quire_serve_budget_check(const quire_serve_args *args, uint64_t budget_bytes, quire_error *err)
{
    const uint64_t pinned = quire_serve_pinned_at_first(args);
    char has[16];
    char wants[16];

    (void)quire_format_bytes(budget_bytes, has, sizeof(has));
    if (pinned >= budget_bytes) {
        return quire_error_set(err, QUIRE_INVAL,
                               "pinned: %s of a KV budget of %s leave nothing to other classes",
                               quire_format_bytes(pinned, wants, sizeof(wants)), has);
    }
    if (args->pinned_ceiling_bytes > budget_bytes) {
        return quire_error_set(
            err, QUIRE_INVAL, "pinned_ceiling: %s are more than the KV budget of %s",
            quire_format_bytes(args->pinned_ceiling_bytes, wants, sizeof(wants)), has);
    }
    if (args->dynamic_floor_bytes > budget_bytes - pinned) {
        return quire_error_set(err, QUIRE_INVAL,
                               "dynamic_floor: %s are not what a KV budget of %s has left beside "
                               "the pinned region",
                               quire_format_bytes(args->dynamic_floor_bytes, wants, sizeof(wants)),
                               has);
    }
    return QUIRE_OK;
}

/* ---- with the model ---- */

static const quire_retain_spec *spec_of(const quire_server_opts *opts)
{
    return opts->retain.policy != NULL ? &opts->retain : NULL;
}

/* Where pages of large requests go from the runtime of a device. */
static quire_overflow_opts overflow_of(const quire_serve_described *d,
                                       const quire_runtime_opts *opts)
{
    quire_serve_args own = *d->args;

    own.common.device = opts->device;
    return quire_serve_overflow(&own, opts->kv_budget_bytes);
}

/* --context-overflow on the runtime of a device. */
static int context_check(const quire_serve_described *d, const quire_runtime_opts *opts,
                         quire_error *err)
{
    const quire_server_opts *o = d->opts;
    const quire_overflow_opts overflow = overflow_of(d, opts);
    const bool has_device = quire_runtime_has_device(opts);
    const quire_context_on on = { .desc = d->session->desc,
                                  .opts = opts,
                                  .offloads =
                                      has_device ? overflow.host_bytes > 0 : overflow.dir != NULL,
                                  .setting = "--context-overflow" };

    return o->context_overflow == QUIRE_CONTEXT_CONDENSE
               ? quire_context_condense_check(&on, spec_of(o), o->context_keep, err)
               : quire_context_overflow_check(&on, o->context_overflow, o->context_keep, err);
}

/* Bytes of the largest record of a page; 0: it is too large. */
static uint64_t record_bytes(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    const quire_kv_form form = quire_kv_form_of(desc, opts);
    const quire_kv_groups groups = quire_kv_groups_of(desc, opts);
    quire_page_parts parts = { .page_tokens = opts->page_tokens, .n_groups = groups.n };

    for (uint32_t g = 0; g < groups.n; g++) {
        parts.bytes[g] = quire_kv_parts(&form, (quire_group_id)g, NULL, NULL);
    }
    return quire_page_parts_end(&parts, quire_state_page_bytes(desc, opts->state_format)) ==
                   QUIRE_OK
               ? parts.record_bytes
               : 0;
}

/* The overflow file. */
static int file_check(const quire_serve_described *d, const quire_runtime_opts *opts,
                      quire_error *err)
{
    const quire_overflow_opts file = overflow_of(d, opts);
    const uint64_t least = quire_overflow_file_bytes_min(d->session->desc, opts);
    char has[16], wants[16];

    return file.dir == NULL || file.capacity_bytes >= least
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "kv_overflow_disk: %s have no room for %u pages, which take %s",
                                 quire_format_bytes(file.capacity_bytes, has, sizeof(has)),
                                 QUIRE_OFFLOAD_STRIPE,
                                 quire_format_bytes(least, wants, sizeof(wants)));
}

/* On the runtime of a device. */
static int runtime_check(const quire_serve_described *d, const quire_runtime_opts *plan,
                         quire_error *err)
{
    quire_runtime_opts opts = *plan;

    quire_runtime_opts_resolve(d->session->desc, &opts);
    QUIRE_TRY(quire_runtime_opts_check(d->session->desc, &opts, err));
    QUIRE_TRY(context_check(d, &opts, err));
    return file_check(d, plan, err);
}

void quire_serve_budget_note(const quire_serve_described *d, char note[QUIRE_SERVE_BUDGET_NOTE_MAX])
{
    const uint64_t excess = quire_opened_budget_excess(d->session, d->plan);
    char more[16], budget[16];

    note[0] = '\0';
    if (excess > 0 && !d->args->no_prefix_cache) {
        (void)snprintf(note, QUIRE_SERVE_BUDGET_NOTE_MAX,
                       "a kv_budget of %s, weights and buffers are %s more than the memory limit, "
                       "and cached texts fill all of the budget in time",
                       quire_format_bytes(d->plan->kv_budget_bytes, budget, sizeof(budget)),
                       quire_format_bytes(excess, more, sizeof(more)));
    }
}

/* The regions of a device behind the first, and --retain and --attend there. */
static int own_check(const quire_serve_described *d, quire_opened *session,
                     const quire_runtime_opts *plan, const char *device, quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    int rc = quire_serve_budget_check(d->args, plan->kv_budget_bytes, &why);

    if (rc == QUIRE_OK) {
        rc = quire_serve_retain_check(session, d->args, d->opts, plan, &why);
    }
    return rc < 0 ? quire_error_set(err, rc, "device %.40s: %.200s", device, why.message)
                  : QUIRE_OK;
}

/* The plan of device i, beside the session before. n_ctx 0: its own context. Memory: end with
 * plan_free(). */
static int plan_make(const quire_serve_described *d, uint32_t i, uint32_t n_ctx,
                     const quire_opened *before, quire_opened *session, quire_runtime_opts *plan,
                     quire_error *err)
{
    quire_serve_args own = *d->args;
    quire_opened_want want;

    own.common.device = d->devices->names[i];
    want = quire_serve_devices_want(d->devices, i, &own, d->want);
    want.n_ctx = n_ctx;
    QUIRE_TRY(quire_opened_beside_on(session, before, own.common.device, err));
    return quire_opened_plan(session, &own.common, &want, plan, err);
}

static void plan_free(quire_opened *session)
{
    free(session->kv_pairs);
    session->kv_pairs = NULL;
}

/* Lower a context that no setting gives to that of the device with the least room. */
static int context_settle(const quire_serve_described *d, quire_error *err)
{
    quire_opened before = *d->session;

    quire_opened_count(&before, d->plan);
    for (uint32_t i = 1; i < d->devices->n && d->args->common.n_ctx == 0; i++) {
        quire_runtime_opts plan;
        quire_opened session;
        const int rc = plan_make(d, i, 0, &before, &session, &plan, err);

        if (rc == QUIRE_OK) {
            quire_opened_count(&session, &plan);
            d->plan->n_ctx = quire_min_u32(d->plan->n_ctx, plan.n_ctx);
        }
        plan_free(&session);
        QUIRE_TRY(rc);
        before = session;
    }
    return QUIRE_OK;
}

/* The runtime of device i, beside the session before. */
static int device_check(const quire_serve_described *d, uint32_t i, quire_opened *before,
                        quire_error *err)
{
    quire_opened session;
    quire_runtime_opts plan;
    int rc = plan_make(d, i, d->plan->n_ctx, before, &session, &plan, err);

    rc = rc == QUIRE_OK ? runtime_check(d, &plan, err) : rc;
    rc = rc == QUIRE_OK ? own_check(d, &session, &plan, d->devices->names[i], err) : rc;
    if (rc == QUIRE_OK) {
        quire_opened_count(&session, &plan);
    }
    plan_free(&session);
    *before = session;
    return rc;
}

int quire_serve_described_check(const quire_serve_described *d, quire_error *err)
{
    quire_opened before = *d->session;

    QUIRE_TRY(context_settle(d, err));
    QUIRE_TRY(runtime_check(d, d->plan, err));
    quire_opened_count(&before, d->plan);
    for (uint32_t i = 1; i < d->devices->n; i++) {
        QUIRE_TRY(device_check(d, i, &before, err));
    }
    QUIRE_TRY(quire_serve_store_room_check(d->args, record_bytes(d->session->desc, d->plan), err));
    return quire_serve_retain_check(d->session, d->args, d->opts, d->plan, err);
}

int quire_serve_engine_check(const quire_engine *engine, const quire_serve_args *args,
                             const quire_server_opts *opts, quire_error *err)
{
    QUIRE_TRY(quire_engine_context_check(engine, opts->context_overflow, opts->context_keep,
                                         "--context-overflow", err));
    if (opts->context_overflow == QUIRE_CONTEXT_CONDENSE) {
        QUIRE_TRY(quire_engine_context_condense_check(engine, spec_of(opts), opts->context_keep,
                                                      "--context-overflow", err));
    }
    if (opts->retain.policy != NULL) {
        QUIRE_TRY(quire_engine_retain_check(engine, &opts->retain, "--retain", err));
    }
    return args->attend != NULL ? quire_engine_attend_check(engine, "--attend", err) : QUIRE_OK;
}
