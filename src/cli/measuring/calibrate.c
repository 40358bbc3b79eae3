/* calibrate.c - see calibrate.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/calibrate.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "cli/measuring/cost_fit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const quire_kv_pair both_f16 = { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 };
static const quire_kv_pair both_q8 = { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8 };

/* ---- the meter ---- */

/* Report that a runtime does not fit beside the kept logits. */
static int fail_beside_logits(const quire_meter *m, quire_error *err)
{
    const quire_error why = *err;
    char logits[16];

    return quire_error_set(err, QUIRE_NOMEM,
                           "%s of logits are kept to compare with (fewer --chunks or a smaller -c: "
                           "less), and beside them: %s",
                           quire_format_bytes(m->base_bytes, logits, sizeof(logits)), why.message);
}

/* A mean that is NaN would count as no cost; refuse it. */
static int check_finite(const quire_meter *m, const quire_kv_pair *pairs,
                        const quire_evaluation *run, quire_error *err)
{
    const double mean = quire_mean_value(run->has_base ? &run->kld : &run->nll);
    char formats[160];

    if (isfinite(mean)) {
        return QUIRE_OK;
    }
    return quire_error_set(
        err, QUIRE_RANGE,
        "the model's logits are not finite with KV formats %s: nothing to compare",
        quire_kv_summary(m->opts.session->desc, pairs, formats, sizeof(formats)));
}

/* Evaluate the text with these formats, against the kept logits or to keep them. */
static int evaluate(quire_meter *m, const quire_kv_pair *pairs, const char *progress,
                    quire_evaluation *out, quire_error *err)
{
    const bool is_base = m->n_runs == 0;
    quire_opened session = *m->opts.session; /* shares the model; the runtime is its own */
    const quire_opened_want want = { .n_ctx = m->opts.n_ctx, .kv_pairs = pairs };
    quire_evaluate_opts opts = {
        .session = &session,
        .base_logits = is_base ? NULL : m->base_logits,
        .keep_logits = is_base ? m->base_logits : NULL,
        .progress = progress,
        .tokens = m->opts.tokens,
        .n_ctx = m->opts.n_ctx,
        .n_chunks = m->opts.n_chunks,
    };
    int rc;

    memset(out, 0, sizeof(*out));
    session.runtime = NULL;
    session.kv_pairs = NULL;
    session.has_warned = true;                   /* about a long context; once is enough */
    session.memory_limit_bytes -= m->base_bytes; /* open() made sure that there are as many */
    rc = quire_opened_open_runtime(&session, m->opts.common, &want, err);
    if (rc == QUIRE_NOMEM) {
        rc = fail_beside_logits(m, err);
    } else if (rc == QUIRE_OK) {
        rc = quire_evaluate(out, &opts, err);
    }
    if (rc == QUIRE_OK) {
        rc = check_finite(m, pairs, out, err);
    }
    quire_opened_close_runtime(&session);
    m->n_runs++;
    return rc;
}

/* Report that the logits alone exceed the limit. */
static int fail_limit(const quire_meter *m, quire_error *err)
{
    char logits[16];
    char limit[16];

    return quire_error_set(
        err, QUIRE_NOMEM,
        "%s of logits are kept to compare with, the memory limit is %s: fewer --chunks or a "
        "smaller -c",
        quire_format_bytes(m->base_bytes, logits, sizeof(logits)),
        quire_format_bytes(m->opts.session->memory_limit_bytes, limit, sizeof(limit)));
}

int quire_meter_open(quire_meter *meter, const quire_meter_opts *opts, quire_error *err)
{
    const quire_model_desc *desc = opts->session->desc;
    const uint64_t n_rows = (uint64_t)opts->n_chunks * quire_logits_rows(opts->n_ctx, 0);
    const uint64_t bytes = n_rows * desc->n_vocab * sizeof(float);
    quire_evaluation base;
    int rc;

    memset(meter, 0, sizeof(*meter));
    meter->opts = *opts;
    meter->base_bytes = bytes;
    if (bytes > QUIRE_METER_BYTES_MAX) {
        char needed[16];
        char limit[16];

        return quire_error_set(err, QUIRE_LIMIT,
                               "the logits of %" PRIu64
                               " predictions take %s, the limit is %s: fewer --chunks or a "
                               "smaller -c",
                               n_rows, quire_format_bytes(bytes, needed, sizeof(needed)),
                               quire_format_bytes(QUIRE_METER_BYTES_MAX, limit, sizeof(limit)));
    }
    if (bytes > opts->session->memory_limit_bytes) {
        return fail_limit(meter, err);
    }
    meter->base_logits = malloc(bytes);
    meter->pairs = calloc(desc->n_stored, sizeof(*meter->pairs));
    if (meter->base_logits == NULL || meter->pairs == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    meter->start_s = quire_now_s();
    quire_kv_uniform(desc, both_f16, meter->pairs);
    rc = evaluate(meter, meter->pairs, "f16: ", &base, err);
    quire_evaluation_fini(&base);
    return rc;
}

void quire_meter_close(quire_meter *meter)
{
    free(meter->pairs);
    free(meter->base_logits);
    memset(meter, 0, sizeof(*meter));
}

int quire_meter_run(quire_meter *meter, const quire_kv_pair *pairs, quire_evaluation *out,
                    quire_error *err)
{
    char progress[64];
    const double passed_s = quire_now_s() - meter->start_s;
    const uint32_t n_left =
        meter->n_runs_all > meter->n_runs ? meter->n_runs_all - meter->n_runs : 1;

    (void)snprintf(progress, sizeof(progress), "run %u of %u, %.0f s left: ", meter->n_runs + 1,
                   meter->n_runs + n_left, passed_s / meter->n_runs * n_left);
    return evaluate(meter, pairs, progress, out, err);
}

/* ---- one side at a time ---- */

/* Mean and standard error of the divergence of a run minus that of the floor, row by row. */
static quire_cost_sample above_floor(const quire_evaluation *run, const quire_evaluation *floor)
{
    quire_mean difference = { 0 };

    for (uint64_t i = 0; i < run->kld.n; i++) {
        quire_mean_add(&difference, run->kld_values[i] - floor->kld_values[i]);
    }
    return (quire_cost_sample){
        .is_measured = true,
        .mean = quire_mean_value(&difference),
        .std_err = quire_mean_stderr(&difference),
    };
}

static int measure_side(quire_meter *m, uint32_t layer, quire_side side, quire_format format,
                        const quire_evaluation *floor, quire_cost_sample *out, quire_error *err)
{
    quire_evaluation run;
    int rc;

    quire_kv_uniform(m->opts.session->desc, both_q8, m->pairs);
    if (side == QUIRE_SIDE_K) {
        m->pairs[layer].k = format;
    } else {
        m->pairs[layer].v = format;
    }
    rc = quire_meter_run(m, m->pairs, &run, err);
    if (rc == QUIRE_OK) {
        *out = above_floor(&run, floor);
    }
    quire_evaluation_fini(&run);
    return rc;
}

/* samples: [QUIRE_FORMAT_COUNT][n_stored] of one side. Measured samples are marked, also after a
 * failure. */
static int measure_sides(quire_meter *m, quire_side side, uint32_t formats,
                         const quire_evaluation *floor, quire_cost_sample *samples,
                         quire_error *err)
{
    const uint32_t n_stored = m->opts.session->desc->n_stored;

    for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        if ((formats >> f & 1u) == 0) {
            continue;
        }
        for (uint32_t l = 0; l < n_stored; l++) {
            int rc =
                measure_side(m, l, side, (quire_format)f, floor, &samples[f * n_stored + l], err);

            if (rc < 0) {
                quire_cost_shrink(samples + f * n_stored, l);
                return rc;
            }
        }
        quire_cost_shrink(samples + f * n_stored, n_stored);
    }
    return QUIRE_OK;
}

/* The cost of one side of one layer, if at least one format was measured. */
static void fit_layer(const quire_cost_sample *samples, uint32_t n_stored, uint32_t layer,
                      const double *errors, double *cost)
{
    quire_cost_sample of_layer[QUIRE_FORMAT_COUNT];
    bool is_measured = false;

    for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        of_layer[f] = samples[f * n_stored + layer];
        is_measured = is_measured || of_layer[f].is_measured;
    }
    if (is_measured) {
        quire_cost_fit(of_layer, errors, cost);
    }
}

static void forget_costs(quire_kv_cost *costs, uint32_t n_stored)
{
    for (uint32_t l = 0; l < n_stored; l++) {
        for (uint32_t f = QUIRE_FORMAT_Q8; f < QUIRE_FORMAT_COUNT; f++) {
            costs[l].of[QUIRE_SIDE_K][f] = costs[l].of[QUIRE_SIDE_V][f] = (double)NAN;
        }
    }
}

static int errors_of(const quire_model_desc *desc, quire_side side, double *errors,
                     quire_error *err)
{
    const uint32_t d = side == QUIRE_SIDE_K ? desc->d_k : desc->d_v;

    for (uint32_t f = QUIRE_FORMAT_Q8; f < QUIRE_FORMAT_COUNT; f++) {
        int rc = quire_format_error((quire_format)f, side, d, &errors[f]);

        if (rc < 0) {
            return quire_error_set(err, rc, "out of memory");
        }
    }
    return QUIRE_OK;
}

static int calibrate_side(quire_kv_cost *costs, quire_meter *m, quire_side side, uint32_t formats,
                          const quire_evaluation *floor, quire_error *err)
{
    const uint32_t n_stored = m->opts.session->desc->n_stored;
    quire_cost_sample *samples = calloc(QUIRE_FORMAT_COUNT * n_stored, sizeof(*samples));
    double errors[QUIRE_FORMAT_COUNT] = { 0 };
    int rc;

    if (samples == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    rc = errors_of(m->opts.session->desc, side, errors, err);
    if (rc == QUIRE_OK) {
        rc = measure_sides(m, side, formats, floor, samples, err);
    }
    for (uint32_t l = 0; (rc == QUIRE_OK || rc == QUIRE_CANCELED) && l < n_stored; l++) {
        fit_layer(samples, n_stored, l, errors, costs[l].of[side]);
    }
    free(samples);
    return rc;
}

static uint32_t count_bits(uint32_t formats)
{
    uint32_t n = 0;

    for (; formats != 0; formats &= formats - 1) {
        n++;
    }
    return n;
}

int quire_calibrate(quire_calibration *calibration, quire_meter *meter, uint32_t formats,
                    quire_error *err)
{
    const uint32_t n_stored = meter->opts.session->desc->n_stored;
    quire_evaluation floor;
    int rc;

    forget_costs(calibration->costs, n_stored);
    meter->n_runs_all = meter->n_runs + 1 + 2 * n_stored * count_bits(formats);
    quire_kv_uniform(meter->opts.session->desc, both_q8, meter->pairs);
    rc = quire_meter_run(meter, meter->pairs, &floor, err);
    for (uint32_t side = 0; rc == QUIRE_OK && side < 2; side++) {
        rc = calibrate_side(calibration->costs, meter, (quire_side)side, formats, &floor, err);
    }
    quire_evaluation_fini(&floor);
    calibration->n_ctx = meter->opts.n_ctx;
    calibration->n_chunks = meter->opts.n_chunks;
    calibration->n_scored = meter->opts.n_chunks * quire_logits_rows(meter->opts.n_ctx, 0);
    calibration->kv_recent = (uint32_t)meter->opts.common->kv.recent;
    calibration->kv_sinks = (uint32_t)meter->opts.common->kv.sinks;
    calibration->measured = formats | 1u << QUIRE_FORMAT_Q8;
    return rc;
}
