/* score.c - log-probabilities, divergence, means.
 *
 * Exponentials are single precision and sums double: n_vocab of them are the whole cost, and the
 * rounding of one (6e-8) is far below the differences between KV formats.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/score.h"

#include <math.h>
#include <stdlib.h>

#define LOG_RANGE 16.0f /* a coded row keeps this much below its largest value */
#define CODE_MAX  65535.0f

void quire_row_read(const float *logits, uint32_t n_vocab, int32_t token, quire_row *out)
{
    float max = logits[0];
    int32_t top = 0;
    double sum = 0;

    for (uint32_t i = 1; i < n_vocab; i++) {
        if (logits[i] > max) {
            max = logits[i];
            top = (int32_t)i;
        }
    }
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += (double)expf(logits[i] - max);
    }
    out->log_sum = (double)max + log(sum);
    out->nll = out->log_sum - (double)logits[token];
    out->nll_max = (double)INFINITY;
    out->top = top;
}

double quire_row_nll_difference(const quire_row *row, const quire_row *base)
{
    return (row->nll < base->nll_max ? row->nll : base->nll_max) - base->nll;
}

double quire_row_kld(const float *base_logits, const quire_row *base, const float *logits,
                     const quire_row *row, uint32_t n_vocab)
{
    double kld = 0;

    for (uint32_t i = 0; i < n_vocab; i++) {
        double log_base = (double)base_logits[i] - base->log_sum;
        double log_row = (double)logits[i] - row->log_sum;

        kld += (double)expf((float)log_base) * (log_base - log_row);
    }
    return kld;
}

uint64_t quire_coded_row_bytes(uint32_t n_vocab)
{
    return sizeof(quire_coded_row) + ((uint64_t)n_vocab + n_vocab % 2) * sizeof(uint16_t);
}

void quire_row_encode(const float *logits, uint32_t n_vocab, quire_coded_row *out)
{
    float max = logits[0];
    float min = logits[0];
    double sum = 0;

    for (uint32_t i = 1; i < n_vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
        min = logits[i] < min ? logits[i] : min;
    }
    min = min > max - LOG_RANGE ? min : max - LOG_RANGE;
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += (double)expf(logits[i] - max);
    }
    out->scale = (max - min) / CODE_MAX;
    out->min = min - max - (float)log(sum);
    for (uint32_t i = 0; i < n_vocab; i++) {
        bool is_kept = out->scale > 0 && logits[i] > min;

        out->code[i] = is_kept ? (uint16_t)lrintf((logits[i] - min) / out->scale) : 0;
    }
    if (n_vocab % 2 != 0) {
        out->code[n_vocab] = 0;
    }
}

static float coded_value(const quire_coded_row *row, uint32_t i)
{
    return row->scale * (float)row->code[i] + row->min;
}

double quire_coded_row_kld(const quire_coded_row *base, const float *logits, const quire_row *row,
                           uint32_t n_vocab)
{
    double kld = 0;

    for (uint32_t i = 0; i < n_vocab; i++) {
        float log_base = coded_value(base, i);

        if (log_base > -LOG_RANGE) {
            kld += (double)expf(log_base) * ((double)log_base - (double)logits[i] + row->log_sum);
        }
    }
    return kld;
}

void quire_coded_row_read(const quire_coded_row *base, uint32_t n_vocab, int32_t token,
                          quire_row *out)
{
    uint32_t top = 0;

    for (uint32_t i = 1; i < n_vocab; i++) {
        top = base->code[i] > base->code[top] ? i : top;
    }
    out->log_sum = 0;
    out->nll = -(double)coded_value(base, (uint32_t)token);
    /* A row narrower than the range was kept whole. */
    out->nll_max =
        base->scale * CODE_MAX > 0.999f * LOG_RANGE ? -(double)base->min : (double)INFINITY;
    out->top = (int32_t)top;
}

void quire_mean_add(quire_mean *mean, double value)
{
    mean->n++;
    mean->sum += value;
    mean->sum_squares += value * value;
}

double quire_mean_value(const quire_mean *mean)
{
    return mean->n > 0 ? mean->sum / (double)mean->n : 0;
}

double quire_mean_stderr(const quire_mean *mean)
{
    double value = quire_mean_value(mean);
    double variance;

    if (mean->n < 2) {
        return 0;
    }
    variance = mean->sum_squares / (double)mean->n - value * value;
    return variance > 0 ? sqrt(variance / (double)(mean->n - 1)) : 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

double quire_quantile(double *values, uint64_t n, double q)
{
    double at = q * (double)(n - 1);
    uint64_t below = (uint64_t)at;
    uint64_t above = below + 1 < n ? below + 1 : below;

    qsort(values, n, sizeof(*values), by_value);
    return values[below] + (at - (double)below) * (values[above] - values[below]);
}
