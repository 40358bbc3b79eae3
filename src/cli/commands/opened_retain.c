/* opened_retain.c - runtimes that keep a share of the tokens.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/opened_retain.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "cli/measuring/parallel.h"
#include "cli/measuring/predictor_place.h"

/* All tokens are kept: --attend alone. */
#define ALL "window:1"

static bool has_lanes(const quire_common_args *args)
{
    return args->retain != NULL || args->attend != NULL;
}

/* Errors: QUIRE_INVAL. */
static int retention_opts(const quire_opened *session, const quire_common_args *args,
                          quire_retention_opts *out, quire_error *err)
{
    const int64_t chunk =
        args->prefill_chunk != 0 ? args->prefill_chunk : QUIRE_PREFILL_CHUNK_DEFAULT;

    *out = (quire_retention_opts){ .parallel = quire_parallel,
                                   .predictor = session->predictor,
                                   .keeps_all = args->retain == NULL };
    out->chunk = (uint32_t)(args->retain != NULL ? chunk : QUIRE_TOKENS_MAX);
    if (args->attend != NULL) {
        QUIRE_TRY(quire_attend_read(args->attend, &out->attend_share, err));
    }
    return quire_retain_parse_lanes(args->retain != NULL ? args->retain : ALL, &out->spec, err);
}

uint32_t quire_opened_retain_room(const quire_common_args *args)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;

    return args->retain != NULL && quire_retain_parse_lanes(args->retain, &spec, &err) == QUIRE_OK
               ? quire_retention_room(&spec)
               : 0;
}

int quire_opened_retain_plan(quire_opened *session, const quire_common_args *args,
                             const quire_model_desc *desc, quire_runtime_opts *opts,
                             quire_error *err)
{
    quire_retention_opts retention;

    if (!has_lanes(args)) {
        return QUIRE_OK;
    }
    QUIRE_TRY(retention_opts(session, args, &retention, err));
    if (retention.spec.policy->worth == QUIRE_RETAIN_WORTH_PREDICTED &&
        session->predictor == NULL) {
        QUIRE_TRY(quire_predictor_find(&session->predictor, args->model, desc, err));
        retention.predictor = session->predictor;
    }
    opts->n_ctx = opts->n_ctx != 0 ? opts->n_ctx : desc->n_ctx_train;
    return quire_retention_plan(desc, &retention, opts, err);
}

int quire_opened_retain_open(quire_opened *session, const quire_common_args *args, quire_error *err)
{
    quire_retention_opts opts;
    int rc;

    if (!has_lanes(args)) {
        return QUIRE_OK;
    }
    rc = retention_opts(session, args, &opts, err);
    if (rc == QUIRE_OK) {
        rc = quire_retention_open(&session->retention, session->runtime, session->desc, &opts, err);
    }
    if (rc < 0) {
        quire_opened_close_runtime(session);
    }
    return rc;
}

/* Of a model with windows: what the figures count. */
static const char *in_layers(const quire_lanes_stats *stats)
{
    return stats->n_windowed > 0 ? " in the layers without a window" : "";
}

/* Read pages over those held, of tokens that choose; 1 of no such token. */
static double read_share(const quire_lanes_stats *stats)
{
    return stats->pages_held_total > 0
               ? (double)stats->pages_read_total / (double)stats->pages_held_total
               : 1.0;
}

void quire_opened_say_retained(const quire_opened *session)
{
    char policy[QUIRE_RETAIN_TEXT_MAX];
    char peak[16];
    quire_lanes_stats stats;

    if (session->retention == NULL) {
        return;
    }
    quire_lanes_stats_get(quire_retention_lanes(session->retention), &stats);
    (void)quire_format_bytes(stats.peak_bytes, peak, sizeof(peak));
    if (quire_retention_drops(session->retention)) {
        quire_say(
            "kept %.1f %% of %u tokens%s by %s; condensed %u times; KV at most %s",
            100 * quire_lanes_share(&stats), stats.n_text, in_layers(&stats),
            quire_retain_text(quire_retention_spec(session->retention), policy, sizeof(policy)),
            stats.generations, peak);
    } else {
        quire_say("all %u tokens are kept%s; KV at most %s", stats.n_text, in_layers(&stats), peak);
    }
    if (stats.pages_held_total > 0) {
        quire_say("tokens behind the prompt read %.1f %% of the pages of the layers%s from %u on",
                  100 * read_share(&stats), stats.n_windowed > 0 ? " without a window" : "",
                  QUIRE_ATTEND_DENSE);
    }
}

json_t *quire_opened_retained_json(const quire_opened *session)
{
    const quire_retention_rows rows = quire_retention_rows_get(session->retention);
    char policy[QUIRE_RETAIN_TEXT_MAX];
    quire_lanes_stats stats;

    quire_lanes_stats_get(quire_retention_lanes(session->retention), &stats);
    return json_pack(
        "{s:s, s:o, s:i, s:I, s:I, s:I, s:I, s:o, s:o}", "policy",
        quire_retain_text(quire_retention_spec(session->retention), policy, sizeof(policy)),
        "share", quire_json_real(quire_lanes_share(&stats)), "generations", (int)stats.generations,
        "computed_tokens", (json_int_t)rows.of_text, "repeated_rows", (json_int_t)rows.repeated,
        "peak_bytes", (json_int_t)stats.peak_bytes, "budget_bytes", (json_int_t)stats.budget_bytes,
        "condense_seconds", quire_json_real(1e-6 * (double)stats.condense_us), "read_share",
        quire_json_real(read_share(&stats)));
}
