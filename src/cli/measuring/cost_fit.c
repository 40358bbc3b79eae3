/* cost_fit.c - see cost_fit.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/cost_fit.h"

#include "base/check.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

#define SEED 1u

/* Formats by rising error. */
static const quire_format by_error[] = { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q5,
                                         QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q3 };
#define N_FORMATS (sizeof(by_error) / sizeof(by_error[0]))

static double error_of(const float *x, const float *y, size_t n)
{
    double error = 0;
    double power = 0;

    for (size_t i = 0; i < n; i++) {
        const double difference = (double)y[i] - (double)x[i];

        error += difference * difference;
        power += (double)x[i] * (double)x[i];
    }
    return error / power;
}

int quire_format_error(quire_format format, quire_side side, uint32_t d, double *out)
{
    /* K without queries: the errors of all formats are taken from rows that nothing is known of. */
    const quire_tile_rows rows = { .d = d, .n_tokens = QUIRE_TILE_TOKENS, .stride = d };
    const size_t n = (size_t)QUIRE_TILE_TOKENS * d;
    const quire_codec *codec = quire_codec_get();
    quire_rng rng = { SEED };
    float *x = malloc(2 * n * sizeof(*x));
    float *y = x + n;
    void *tile = aligned_alloc(64, quire_tile_bytes(format, side, d));
    int rc = QUIRE_NOMEM;

    if (x != NULL && tile != NULL) {
        for (size_t i = 0; i < n; i++) {
            x[i] = (float)quire_rng_normal(&rng);
        }
        if (side == QUIRE_SIDE_K) {
            codec->encode_k(format, &rows, x, tile);
            codec->decode_k(format, &rows, tile, y);
        } else {
            codec->encode_v(format, &rows, x, tile);
            codec->decode_v(format, &rows, tile, y);
        }
        *out = error_of(x, y, n);
        rc = QUIRE_OK;
    }
    free(tile);
    free(x);
    return rc;
}

bool quire_cost_is_behind(quire_cost_sample a, quire_cost_sample b)
{
    return a.mean - b.mean > a.std_err + b.std_err;
}

void quire_cost_shrink(quire_cost_sample *samples, uint32_t n)
{
    double mean = 0;
    double noise = 0;
    double spread = 0;

    for (uint32_t i = 0; i < n; i++) {
        mean += samples[i].mean / n;
        noise += samples[i].std_err * samples[i].std_err / n;
    }
    for (uint32_t i = 0; i < n && n > 1; i++) {
        spread += (samples[i].mean - mean) * (samples[i].mean - mean) / (n - 1);
    }
    spread = spread > noise ? spread - noise : 0; /* of the true values */
    for (uint32_t i = 0; i < n; i++) {
        const double own = samples[i].std_err * samples[i].std_err;
        const double share = spread + own > 0 ? spread / (spread + own) : 1;

        samples[i].mean = mean + share * (samples[i].mean - mean);
        samples[i].std_err = sqrt(share * own + (1 - share) * noise / n);
    }
}

void quire_cost_fit(const quire_cost_sample *samples, const double *errors, double *cost)
{
    double sensitivity = -1; /* per error; of the coarsest that was measured at first */
    size_t coarsest = N_FORMATS;

    while (coarsest > 0 && !samples[by_error[coarsest - 1]].is_measured) {
        coarsest--;
    }
    QUIRE_CHECK(coarsest > 0);
    for (size_t i = coarsest; i-- > 0;) {
        const quire_format f = by_error[i];
        const quire_cost_sample *s = &samples[f];
        double mean = s->mean;

        QUIRE_ASSERT(isfinite(s->mean) && isfinite(s->std_err));
        if (i == coarsest - 1) {
            mean = mean > s->std_err ? mean : s->std_err;
            sensitivity = mean / errors[f];
        } else if (s->is_measured && mean >= 2 * s->std_err) {
            sensitivity = mean / errors[f];
        }
        cost[f] = sensitivity * errors[f];
        if (i == coarsest - 1) {
            for (size_t j = coarsest; j < N_FORMATS; j++) {
                cost[by_error[j]] = sensitivity * errors[by_error[j]];
            }
        }
    }
    for (size_t i = 1; i < N_FORMATS; i++) {
        const double finer = cost[by_error[i - 1]];

        cost[by_error[i]] = cost[by_error[i]] > finer ? cost[by_error[i]] : finer;
    }
}
