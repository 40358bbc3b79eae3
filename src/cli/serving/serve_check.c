/* serve_check.c - see serve_check.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_check.h"

#include "base/check.h"
#include "cli/commands/device_choice.h"
#include "cli/serving/serve_retain.h"
#include "cli/serving/serve_store.h"
#include "engine/context_condense.h"

static const quire_retain_spec *spec_of(const quire_server_opts *opts)
{
    return opts->retain.policy != NULL ? &opts->retain : NULL;
}

/* --context-overflow on the runtime of a device. */
static int context_check(const quire_serve_described *d, const quire_runtime_opts *opts,
                         quire_error *err)
{
    const quire_server_opts *o = d->opts;
    const quire_context_on on = { .desc = d->session->desc,
                                  .opts = opts,
                                  .has_file = quire_serve_overflow_is_on(d->args) &&
                                              quire_device_is_cpu(d->args->common.device),
                                  .setting = "--context-overflow" };

    return o->context_overflow == QUIRE_CONTEXT_CONDENSE
               ? quire_context_condense_check(&on, spec_of(o), o->context_keep, err)
               : quire_context_overflow_check(&on, o->context_overflow, o->context_keep, err);
}

int quire_serve_described_check(const quire_serve_described *d, quire_error *err)
{
    quire_runtime_opts opts = *d->plan;

    QUIRE_TRY(context_check(d, &opts, err));
    for (uint32_t i = 1; i < d->devices->n; i++) {
        opts.device = d->devices->names[i];
        QUIRE_TRY(context_check(d, &opts, err));
    }
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
