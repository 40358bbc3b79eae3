/* bench_cost.c - five measurements, and the coefficients computed from them.
 *
 *   decode of 1 and of several rows   step + row, step + n row
 *   decode of 1, deep                 the growth of a row's time with depth
 *   prefill, and deep                 the rest of a step, per token, and its growth with depth
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/bench_cost.h"

#include "base/check.h"
#include "cli/measuring/measure.h"

#include <math.h>
#include <string.h>

#define DEPTH_DEFAULT 2048u
#define N_PROMPT      512u
#define N_DECODE      16u
#define N_SEVERAL     8u

static double step_us(double n_tokens, double tokens_per_s)
{
    return tokens_per_s > 0 ? 1e6 * n_tokens / tokens_per_s : 0;
}

void quire_cost_of_speeds(const quire_cost_speeds *s, quire_sim_cost *out)
{
    double one_us = step_us(1, s->decode);
    double several_us = step_us(s->n_several, s->decode_several);
    double prefill_us = step_us(s->n_prompt, s->prefill);
    double deep_us = step_us(s->n_prompt, s->prefill_deep);
    double token_us;

    out->decode_row_us = fmax((several_us - one_us) / (s->n_several - 1), 0);
    out->decode_step_us = fmax(one_us - out->decode_row_us, 0);
    out->decode_row_depth_us = fmax((step_us(1, s->decode_deep) - one_us) / s->depth, 0);
    out->prefill_token_depth_us =
        fmax((deep_us - prefill_us) / ((double)s->n_prompt * s->depth), 0);
    /* The tokens of a prompt attend to half of it on average. */
    token_us = (prefill_us - out->decode_step_us) / s->n_prompt;
    out->prefill_token_us = fmax(token_us - out->prefill_token_depth_us * 0.5 * s->n_prompt, 0);
}

/* One speed; n_seqs > 1 is a decode of several. */
static int speed_get(quire_opened *session, const quire_measure_opts *opts, double *out)
{
    quire_measurement m;

    QUIRE_TRY(quire_measure(session, opts, &m));
    *out = m.median;
    return QUIRE_OK;
}

static int speeds_get(quire_opened *session, quire_cost_speeds *s, uint32_t n_repeats)
{
    quire_measure_opts prefill = { .test = QUIRE_BENCH_PREFILL,
                                   .caching = QUIRE_CACHING_PAGED,
                                   .is_filled_fast = true,
                                   .n_seqs = 1,
                                   .n_tokens = s->n_prompt,
                                   .n_repeats = n_repeats };
    quire_measure_opts decode = prefill;

    decode.test = QUIRE_BENCH_DECODE;
    decode.n_tokens = N_DECODE;
    QUIRE_TRY(speed_get(session, &prefill, &s->prefill));
    QUIRE_TRY(speed_get(session, &decode, &s->decode));
    decode.n_seqs = s->n_several;
    QUIRE_TRY(speed_get(session, &decode, &s->decode_several));
    decode.n_seqs = 1;
    decode.depth = s->depth;
    prefill.depth = s->depth;
    QUIRE_TRY(speed_get(session, &prefill, &s->prefill_deep));
    return speed_get(session, &decode, &s->decode_deep);
}

int quire_bench_cost(quire_opened *session, const quire_common_args *args, uint32_t depth,
                     uint32_t n_repeats, quire_sim_cost *out, quire_error *err)
{
    uint32_t n_batch = (uint32_t)args->n_batch;
    quire_cost_speeds speeds = { .depth = depth > 0 ? depth : DEPTH_DEFAULT,
                                 .n_prompt = N_PROMPT < n_batch ? N_PROMPT : n_batch,
                                 .n_several = N_SEVERAL };
    quire_opened_want want = { .n_ctx = speeds.depth + N_PROMPT, .n_seqs_max = N_SEVERAL };
    int rc;

    want.n_tokens = want.n_ctx + N_SEVERAL * 64;
    QUIRE_TRY(quire_opened_open_runtime(session, args, &want, err));
    rc = speeds_get(session, &speeds, n_repeats);
    if (rc < 0) {
        quire_opened_step_error(session, rc, err);
    } else {
        *out = (quire_sim_cost)QUIRE_SIM_COST_INIT;
        quire_cost_of_speeds(&speeds, out);
    }
    quire_opened_close_runtime(session);
    return rc;
}
