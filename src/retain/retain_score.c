/* retain_score.c - the worth of a token of a lane, by policy.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/retain_score.h"

#include "base/check.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

#define BLOCK 256u /* tokens whose sums over rows are made together */

void quire_retain_score(const quire_retain_spec *spec, const quire_retain_lane *lane, float *scores)
{
    QUIRE_CHECK(!spec->policy->needs_keys || lane->keys != NULL || lane->n_tokens == 0);
    QUIRE_CHECK(spec->policy->worth == QUIRE_RETAIN_WORTH_NONE || lane->worth != NULL ||
                lane->n_tokens == 0);
    QUIRE_CHECK(!spec->policy->expects_queries || lane->query_mean != NULL || lane->n_tokens == 0);
    QUIRE_CHECK(!spec->policy->needs_attention || lane->attention != NULL || lane->n_tokens == 0);
    spec->policy->score(spec, lane, scores);
}

/* ---- scores from before ---- */

void quire_retain_score_worth(const quire_retain_spec *spec, const quire_retain_lane *lane,
                              float *scores)
{
    (void)spec;
    memcpy(scores, lane->worth, lane->n_tokens * sizeof *scores);
}

/* ---- policies without probes ---- */

void quire_retain_score_last(const quire_retain_spec *spec, const quire_retain_lane *lane,
                             float *scores)
{
    (void)spec;
    for (uint32_t t = 0; t < lane->n_tokens; t++) {
        scores[t] = (float)lane->positions[t];
    }
}

void quire_retain_score_stride(const quire_retain_spec *spec, const quire_retain_lane *lane,
                               float *scores)
{
    (void)spec;
    for (uint32_t t = 0; t < lane->n_tokens; t++) {
        uint32_t x = (uint32_t)lane->positions[t];
        uint32_t reversed = 0;

        /* A float holds 24 bits; longer texts differ in their low bits, which count most here. */
        for (uint32_t bit = 0; bit < 24; bit++) {
            reversed = reversed << 1 | (x & 1u);
            x >>= 1;
        }
        scores[t] = -(float)reversed;
    }
}

void quire_retain_score_random(const quire_retain_spec *spec, const quire_retain_lane *lane,
                               float *scores)
{
    quire_rng mix = { .state = spec->seed };
    const uint64_t base = quire_rng_next(&mix) ^ (lane->lane * 0xd1342543de82ef95u);

    for (uint32_t t = 0; t < lane->n_tokens; t++) {
        quire_rng rng = { .state = base + (uint64_t)lane->positions[t] * 0xaf251af3b0f025b5u };

        scores[t] = (float)quire_rng_unit(&rng);
    }
}

/* ---- keys ---- */

static double norm_of(const float *x, uint32_t d)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < d; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum);
}

void quire_retain_score_keydiff(const quire_retain_spec *spec, const quire_retain_lane *lane,
                                float *scores)
{
    const uint32_t d = lane->d;
    double mean[1024] = { 0 }; /* QUIRE_HEAD_DIM_MAX */
    double mean_norm = 0.0;

    (void)spec;
    QUIRE_CHECK(d <= sizeof mean / sizeof mean[0]);
    for (uint32_t t = 0; t < lane->n_tokens; t++) {
        const float *key = lane->keys + (size_t)t * d;
        const double norm = norm_of(key, d);

        for (uint32_t i = 0; norm > 0.0 && i < d; i++) {
            mean[i] += (double)key[i] / norm;
        }
    }
    for (uint32_t i = 0; i < d; i++) {
        mean_norm += mean[i] * mean[i];
    }
    mean_norm = sqrt(mean_norm);
    for (uint32_t t = 0; t < lane->n_tokens; t++) {
        const float *key = lane->keys + (size_t)t * d;
        const double norm = norm_of(key, d) * mean_norm;
        double product = 0.0;

        for (uint32_t i = 0; i < d; i++) {
            product += (double)key[i] * mean[i];
        }
        scores[t] = norm > 0.0 ? (float)(-product / norm) : 0.0f;
    }
}

/* ---- expected queries ---- */

/* m . k + k . C k / 2 of one key. C is symmetric: row i counts the products with the columns up to
 * i, those off the diagonal twice. */
static double expected_logit(const float *mean, const float *cov, const float *key, uint32_t d)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < d; i++) {
        const float *row = cov + (size_t)i * d;
        float lanes[8] = { 0 }; /* sums side by side, which a compiler can keep in one register */
        float inner = 0.0f;
        uint32_t j = 0;

        for (; j + 8 <= i; j += 8) {
            for (uint32_t x = 0; x < 8; x++) {
                lanes[x] += row[j + x] * key[j + x];
            }
        }
        for (; j < i; j++) {
            inner += row[j] * key[j];
        }
        for (uint32_t x = 0; x < 8; x++) {
            inner += lanes[x];
        }
        sum += (double)key[i] * ((double)mean[i] + (double)inner + (double)(row[i] * key[i]) / 2);
    }
    return sum;
}

void quire_retain_score_expected(const quire_retain_spec *spec, const quire_retain_lane *lane,
                                 float *scores)
{
    const uint32_t n = lane->n_tokens, d = lane->d;

    (void)spec;
    memset(scores, 0, n * sizeof *scores);
    for (uint32_t h = 0; h < lane->n_heads; h++) {
        const float *mean = lane->query_mean + (size_t)h * d;
        const float *cov = lane->query_cov + (size_t)h * d * d;
        double max = -INFINITY, sum = 0.0;

        for (uint32_t t = 0; t < n; t++) {
            const double logit = expected_logit(mean, cov, lane->keys + (size_t)t * d, d);

            lane->scratch[t] = (float)logit;
            max = (double)lane->scratch[t] > max ? (double)lane->scratch[t] : max;
        }
        for (uint32_t t = 0; t < n; t++) {
            lane->scratch[t] = expf((float)((double)lane->scratch[t] - max));
            sum += (double)lane->scratch[t];
        }
        for (uint32_t t = 0; t < n; t++) {
            scores[t] += (float)((double)lane->scratch[t] / sum * (double)lane->value_norms[t] /
                                 lane->n_heads);
        }
    }
}

/* ---- attention ---- */

/* scores[t] = average of itself and its neighbours, as far as there are any: `pool` in all. */
static void pool(float *scores, uint32_t n, uint32_t width)
{
    const uint32_t half = width / 2;
    float before[QUIRE_RETAIN_POOL_MAX]; /* the last `half` scores that were overwritten */

    QUIRE_CHECK(half <= QUIRE_RETAIN_POOL_MAX);
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t begin = t < half ? 0 : t - half;
        const uint32_t end = n - t > half ? t + half + 1 : n;
        const float own = scores[t];
        double sum = 0.0;

        for (uint32_t i = begin; i < t; i++) {
            sum += (double)before[i % half];
        }
        for (uint32_t i = t; i < end; i++) {
            sum += (double)scores[i];
        }
        scores[t] = (float)(sum / (end - begin));
        if (half > 0) {
            before[t % half] = own;
        }
    }
}

void quire_retain_score_predicted(const quire_retain_spec *spec, const quire_retain_lane *lane,
                                  float *scores)
{
    quire_retain_score_worth(spec, lane, scores);
    if (spec->pool > 1) {
        pool(scores, lane->n_tokens, spec->pool);
    }
}

/* Sums over rows [first, first + n_rows) of attention, and of its squares, for BLOCK tokens at
 * most. Rows are read in order, since they are long. */
typedef struct row_sums {
    double sum[BLOCK];
    double squares[BLOCK];
} row_sums;

static uint32_t block_at(const quire_retain_lane *lane, uint32_t token)
{
    return lane->n_tokens - token < BLOCK ? lane->n_tokens - token : BLOCK;
}

static void sum_rows(const quire_retain_lane *lane, uint32_t token, uint32_t first, uint32_t n_rows,
                     row_sums *sums)
{
    const uint32_t n = block_at(lane, token);

    memset(sums, 0, sizeof *sums);
    for (uint32_t r = first; r < first + n_rows; r++) {
        const float *row = lane->attention + (size_t)r * lane->n_tokens + token;

        for (uint32_t t = 0; t < n; t++) {
            sums->sum[t] += (double)row[t];
            sums->squares[t] += (double)row[t] * (double)row[t];
        }
    }
}

static double variance_of(const row_sums *sums, uint32_t t, double n_rows)
{
    const double mean = sums->sum[t] / n_rows;
    const double variance = sums->squares[t] / n_rows - mean * mean;

    return variance > 0.0 ? variance : 0.0;
}

/* scores[t] = mean + gamma * variance over rows. */
static void score_rows(const quire_retain_lane *lane, double gamma, float *scores)
{
    const double n_rows = lane->n_rows;
    row_sums sums;

    for (uint32_t begin = 0; begin < lane->n_tokens; begin += BLOCK) {
        sum_rows(lane, begin, 0, lane->n_rows, &sums);
        for (uint32_t t = 0; t < block_at(lane, begin); t++) {
            scores[begin + t] =
                (float)(sums.sum[t] / n_rows + gamma * variance_of(&sums, t, n_rows));
        }
    }
}

void quire_retain_score_snap(const quire_retain_spec *spec, const quire_retain_lane *lane,
                             float *scores)
{
    score_rows(lane, 0.0, scores);
    pool(scores, lane->n_tokens, spec->pool);
}

void quire_retain_score_entropy(const quire_retain_spec *spec, const quire_retain_lane *lane,
                                float *scores)
{
    score_rows(lane, spec->gamma, scores);
    pool(scores, lane->n_tokens, spec->pool);
}

static double entropy_of(const quire_retain_lane *lane)
{
    double entropy = 0.0;

    for (size_t i = 0; i < (size_t)lane->n_rows * lane->n_tokens; i++) {
        const double a = (double)lane->attention[i];

        entropy -= a > 0.0 ? a * log(a) : 0.0;
    }
    return entropy;
}

void quire_retain_measure_add(quire_retain_measure *measure, const quire_retain_lane *lane,
                              uint32_t n_queries)
{
    row_sums sums;

    measure->entropy += entropy_of(lane);
    for (uint32_t r = 0; r < lane->n_rows; r += n_queries) {
        for (uint32_t begin = 0; begin < lane->n_tokens; begin += BLOCK) {
            sum_rows(lane, begin, r, n_queries, &sums);
            for (uint32_t t = 0; t < block_at(lane, begin); t++) {
                measure->variance += variance_of(&sums, t, n_queries);
            }
        }
    }
}
