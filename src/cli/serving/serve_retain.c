/* serve_retain.c - --retain, --retain-chunk and --attend of quire serve.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_retain.h"

#include "base/check.h"
#include "base/num.h"
#include "cli/measuring/predictor_place.h"
#include "engine/condensing.h"
#include "engine/engine.h"
#include "model/runtime_rows.h"
#include "retain/page_choice.h"

#include <stdlib.h>

int quire_serve_retain_read(const quire_serve_args *args, quire_server_opts *opts, quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    int rc;

    if (args->retain == NULL) {
        return QUIRE_OK;
    }
    rc = quire_retain_parse(args->retain, &opts->retain, &why);
    if (rc < 0) {
        return quire_error_set(err, rc, "--retain %s: %s", args->retain, why.message);
    }
    QUIRE_TRY(quire_condensing_policy_check(&opts->retain, "--retain", err));
    if (opts->truncates_turns || (opts->context_overflow != QUIRE_CONTEXT_REFUSE &&
                                  opts->context_overflow != QUIRE_CONTEXT_CONDENSE)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--retain and --context-overflow: a text either keeps a share of "
                               "its tokens or drops the oldest ones; condense does both");
    }
    if (args->common.kv_overflow == QUIRE_KV_OVERFLOW_TIER) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--retain and --kv-overflow tier: a text that is condensed is in "
                               "memory");
    }
    if (args->kv_events != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--retain and --kv-events: events name whole texts");
    }
    return QUIRE_OK;
}

int quire_serve_attend_read(const quire_serve_args *args, quire_server_opts *opts, quire_error *err)
{
    const bool drops =
        opts->retain.policy != NULL || opts->context_overflow != QUIRE_CONTEXT_REFUSE;

    if (args->attend == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_attend_read(args->attend, &opts->attend_share, err));
    if (quire_attends(opts->attend_share) && drops) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--attend and %s: bounds are there for pages with all tokens of a "
                               "text",
                               opts->retain.policy != NULL ? "--retain" : "--context-overflow");
    }
    return QUIRE_OK;
}

/* Whether requests that name no policy have one whose maps were learned. */
static bool wants_maps(const quire_server_opts *opts)
{
    return opts->retain.policy != NULL &&
           opts->retain.policy->worth == QUIRE_RETAIN_WORTH_PREDICTED;
}

static int check_on(const quire_condensing_on *on, const quire_serve_args *args,
                    const quire_server_opts *opts, quire_error *err)
{
    if (opts->retain.policy != NULL) {
        QUIRE_TRY(quire_condensing_check(on, &opts->retain, quire_serve_retain_chunk(args),
                                         "--retain", err));
    }
    return args->attend != NULL ? quire_attending_check(on, "--attend", err) : QUIRE_OK;
}

int quire_serve_retain_check(quire_opened *described, const quire_serve_args *args,
                             const quire_server_opts *opts, const quire_runtime_opts *plan,
                             quire_error *err)
{
    const quire_model_desc *desc = described->desc;
    quire_rotation rotation = { .d = desc->d_k };
    quire_condensing_parts parts = { .predictor = NULL };
    const quire_condensing_on on = { desc, plan, &parts };
    quire_error why = QUIRE_ERROR_INIT;
    quire_attn_layer *layers;
    int rc = QUIRE_OK;

    if (opts->retain.policy == NULL && args->attend == NULL) {
        return QUIRE_OK;
    }
    if (wants_maps(opts) &&
        described->predictor == NULL) { /* else quire_serve_retain_bytes() has */
        rc = quire_predictor_find(&described->predictor, args->common.model, desc, &why);
    }
    if (rc < 0) {
        return quire_error_set(err, rc, "--retain: %s", why.message);
    }
    layers = calloc(desc->n_layer, sizeof *layers);
    if (layers == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    quire_condensing_packing_init(&parts, layers, desc, plan);
    parts.predictor = described->predictor;
    parts.rotation = quire_condensing_turns(desc) ? &rotation : NULL;
    rc = check_on(&on, args, opts, err);
    free(layers);
    return rc;
}

int quire_serve_retain_learn(quire_opened *session, const quire_serve_args *args,
                             const quire_server_opts *opts, const quire_serve_log *log,
                             quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    const int rc =
        quire_predictor_find(&session->predictor, args->common.model, session->desc, &why);

    if (rc < 0 && wants_maps(opts)) {
        return quire_error_set(err, rc, "--retain: %s", why.message);
    }
    if (rc < 0 && rc != QUIRE_NOTFOUND) {
        quire_serve_log_line(log, QUIRE_LOG_ERRORS,
                             "warning: requests with predict are refused: %s", why.message);
    }
    return QUIRE_OK;
}

uint32_t quire_serve_retain_chunk(const quire_serve_args *args)
{
    const int64_t page_tokens = args->common.page_tokens;

    return (uint32_t)((args->retain_chunk + page_tokens - 1) / page_tokens * page_tokens);
}

void quire_serve_retain_want(const quire_serve_args *args, const quire_server_opts *opts,
                             quire_opened_want *want)
{
    /* With condense a text keeps all tokens up to the context. */
    if (opts->retain.policy != NULL && opts->context_overflow == QUIRE_CONTEXT_REFUSE) {
        want->condenses = &opts->retain;
        want->condense_chunk = quire_serve_retain_chunk(args);
    }
}

/* Memory of the names of condensed texts: the tokens of their chunks. A chunk is no longer than a
 * text. */
static uint64_t names_bytes(const quire_condensing_on *on, const quire_serve_args *args)
{
    return quire_condensing_names_bytes(
        quire_min_u32(quire_serve_retain_chunk(args), on->opts->n_ctx));
}

/* Memory of condensed texts beside their pages, of a runtime that is not there yet. */
static uint64_t packed_bytes(const quire_condensing_on *on, const quire_serve_args *args,
                             const quire_server_opts *opts)
{
    const uint32_t n_running = (uint32_t)args->max_batch_size;
    const uint64_t n_requests = n_running + quire_engine_parked_max(n_running);
    const quire_retain_spec *spec = opts->retain.policy != NULL ? &opts->retain : NULL;
    const quire_condensing_bytes each =
        quire_condensing_bytes_of(on, spec, quire_serve_retain_chunk(args));

    return n_requests * each.of_request + on->opts->n_threads * each.of_thread + each.of_device +
           (spec != NULL ? names_bytes(on, args) : 0);
}

/* The same of a described model. Errors of settings are reported when the settings are used. */
static uint64_t packed_bytes_of(quire_opened *session, const quire_serve_args *args,
                                const quire_server_opts *opts)
{
    const quire_model_desc *desc = session->desc;
    const quire_opened_want want = quire_serve_want(args);
    quire_rotation rotation = { .d = desc->d_k };
    quire_condensing_parts parts = { .predictor = NULL };
    quire_error why = QUIRE_ERROR_INIT;
    quire_attn_layer *layers;
    quire_runtime_opts draft;
    uint64_t bytes = 0;

    if ((opts->retain.policy == NULL && args->attend == NULL) ||
        quire_opened_draft(session, &args->common, &want, &draft, &why) < 0) {
        return 0;
    }
    quire_runtime_opts_resolve(desc, &draft);
    layers = calloc(desc->n_layer, sizeof *layers);
    if (layers != NULL) {
        quire_condensing_packing_init(&parts, layers, desc, &draft);
        parts.rotation = quire_condensing_turns(desc) ? &rotation : NULL;
        bytes = packed_bytes(&(quire_condensing_on){ desc, &draft, &parts }, args, opts);
    }
    free(layers);
    free((void *)(uintptr_t)draft.kv_pairs);
    return bytes;
}

uint64_t quire_serve_retain_bytes(quire_opened *session, const quire_serve_args *args,
                                  const quire_server_opts *opts)
{
    quire_error why = QUIRE_ERROR_INIT;
    uint64_t bytes = packed_bytes_of(session, args, opts);

    /* Errors of a file are reported when the file is loaded. */
    if (quire_predictor_find(&session->predictor, args->common.model, session->desc, &why) ==
        QUIRE_OK) {
        bytes += quire_predictor_bytes(&session->predictor->shape);
    }
    return bytes;
}
