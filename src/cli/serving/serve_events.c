/* serve_events.c - see serve_events.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_events.h"

#include "base/check.h"

static quire_kv_events_opts opts_of(const quire_serve_args *args)
{
    return (quire_kv_events_opts){ .endpoint = args->kv_events,
                                   .replay_endpoint = args->kv_events_replay,
                                   .topic = args->kv_events_topic };
}

int quire_serve_events_check(const quire_serve_args *args, quire_error *err)
{
    const quire_kv_events_opts opts = opts_of(args);
    const char *needs = NULL;

    if (args->kv_events != NULL) {
        if (args->no_prefix_cache) {
            return quire_error_set(err, QUIRE_INVAL, "kv_events needs the prefix cache");
        }
        return quire_kv_events_check(&opts, err);
    }
    needs = args->kv_events_replay != NULL ? "kv_events_replay" : needs;
    needs = args->kv_events_topic != NULL ? "kv_events_topic" : needs;
    if (needs != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s needs kv_events", needs);
    }
    return QUIRE_OK;
}

static void warn_if_open(const quire_serve_log *log, const char *name, const char *endpoint)
{
    if (endpoint != NULL && !quire_kv_events_is_local(endpoint)) {
        quire_serve_log_line(log, QUIRE_LOG_ERRORS,
                             "warning: %s: %s is open to other machines: whoever connects reads "
                             "the token ids of all prompts; there is no authentication",
                             name, endpoint);
    }
}

int quire_serve_events_start(quire_kv_events **out, const quire_serve_args *args,
                             const quire_serve_log *log, quire_serve_watchers *watchers,
                             quire_error *err)
{
    quire_kv_events_opts opts = opts_of(args);
    const char *replay;

    *out = NULL;
    if (args->kv_events == NULL) {
        return QUIRE_OK;
    }
    opts.n_ranks = watchers->n;
    QUIRE_TRY(quire_kv_events_start(out, &opts, err));
    for (uint32_t i = 0; i < watchers->n; i++) {
        quire_kv_events_watcher(*out, i, &watchers->items[i]);
    }
    replay = quire_kv_events_replay_endpoint(*out);
    quire_serve_log_line(log, QUIRE_LOG_INFO, "events for routers: %s%s%s",
                         quire_kv_events_endpoint(*out), replay != NULL ? ", replay: " : "",
                         replay != NULL ? replay : "");
    warn_if_open(log, "kv_events", args->kv_events);
    warn_if_open(log, "kv_events_replay", args->kv_events_replay);
    return QUIRE_OK;
}
