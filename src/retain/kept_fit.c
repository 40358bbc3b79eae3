/* kept_fit.c - see kept_fit.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_fit.h"

#include <math.h>
#include <string.h>

#define BLOCK 1024u /* columns of A whose products are summed while they are in the cache */

/* A fit in its room. A's rows are at the front of the rows of attention. */
typedef struct fitting {
    const quire_kept_fit *f;
    uint32_t n_free;
    double *gram;      /* [n_rows][n_rows] A A', then its Cholesky factor */
    double *solution;  /* [n_rows][d] right sides, then solutions; of biases [n_rows] */
    double *missing;   /* [n_rows] weights of dropped tokens */
    double *fixed;     /* [n_rows] weights of sinks and of kept tokens that stay as they are */
    float *target;     /* [n_rows][d] outputs with all tokens */
    float *fixed_part; /* [n_rows][d] outputs of kept tokens that stay */
    float *factors;    /* [n_tokens] of weights */
    uint32_t *free;    /* [n_free] tokens */
} fitting;

size_t quire_kept_fit_bytes(uint32_t n_tokens, uint32_t n_rows, uint32_t d)
{
    const size_t n = n_rows;

    return (n * n + n * d + 2 * n) * sizeof(double) + 2 * n * d * sizeof(float) +
           n_tokens * (sizeof(float) + sizeof(uint32_t));
}

static fitting fitting_in(const quire_kept_fit *f, void *room)
{
    const size_t n = f->n_rows;
    fitting g = { .f = f, .gram = room };

    g.solution = g.gram + n * n;
    g.missing = g.solution + n * f->d;
    g.fixed = g.missing + n;
    g.target = (float *)(g.fixed + n);
    g.fixed_part = g.target + n * f->d;
    g.factors = g.fixed_part + n * f->d;
    g.free = (uint32_t *)(g.factors + f->n_tokens);
    for (uint32_t t = 0; t < f->n_tokens; t++) {
        g.factors[t] = expf(f->biases[t]);
        if (f->roles[t] == QUIRE_KEPT_FIT_FREE) {
            g.free[g.n_free++] = t;
        }
    }
    return g;
}

static bool has_dropped(const quire_kept_fit *f)
{
    for (uint32_t t = 0; t < f->n_tokens; t++) {
        if (f->roles[t] == QUIRE_KEPT_FIT_DROPPED) {
            return true;
        }
    }
    return false;
}

static float *row_of(const fitting *g, uint32_t r)
{
    return g->f->attention + (size_t)r * g->f->n_tokens;
}

/* y += a x */
static void add_scaled(uint32_t n, float a, const float *restrict x, float *restrict y)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] += a * x[i];
    }
}

/* A sum of eight sums side by side, which a compiler keeps in registers. */
static double product(uint32_t n, const float *a, const float *b)
{
    float sums[8] = { 0 };
    double sum = 0.0;
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        for (uint32_t x = 0; x < 8; x++) {
            sums[x] += a[i + x] * b[i + x];
        }
    }
    for (; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    for (uint32_t x = 0; x < 8; x++) {
        sum += (double)sums[x];
    }
    return sum;
}

/* ---- weights of the rows ---- */

/* Weights with biases; returns the sink's. */
static double weigh(const fitting *g, float *row)
{
    const quire_kept_fit *f = g->f;
    double before = 0.0, sum = 0.0, sink;

    for (uint32_t t = 0; t < f->n_tokens; t++) {
        before += (double)row[t];
        row[t] *= g->factors[t];
        sum += (double)row[t];
    }
    sink = f->has_sinks && before < 1.0 ? 1.0 - before : 0.0;
    sum += sink;
    for (uint32_t t = 0; t < f->n_tokens && sum > 0.0; t++) {
        row[t] = (float)((double)row[t] / sum);
    }
    return sum > 0.0 ? sink / sum : 0.0;
}

/* The sums of a row, and its weights of free tokens together at the front. */
static void take_row(const fitting *g, uint32_t r)
{
    const quire_kept_fit *f = g->f;
    float *row = row_of(g, r);
    float *target = g->target + (size_t)r * f->d;
    float *part = g->fixed_part + (size_t)r * f->d;

    g->fixed[r] = weigh(g, row);
    g->missing[r] = 0.0;
    memset(target, 0, f->d * sizeof *target);
    memset(part, 0, f->d * sizeof *part);
    for (uint32_t t = 0; t < f->n_tokens; t++) {
        const float *v = f->values + (size_t)t * f->d;

        if (row[t] == 0.0f) {
            continue;
        }
        add_scaled(f->d, row[t], v, target);
        if (f->roles[t] == QUIRE_KEPT_FIT_DROPPED) {
            g->missing[r] += (double)row[t];
        } else if (f->roles[t] == QUIRE_KEPT_FIT_KEPT) {
            g->fixed[r] += (double)row[t];
            add_scaled(f->d, row[t], v, part);
        }
    }
    for (uint32_t j = 0; j < g->n_free; j++) {
        row[j] = row[g->free[j]];
    }
}

/* ---- least squares in the space of the rows ---- */

/* gram = A A' + l I. */
static void take_gram(const fitting *g)
{
    const uint32_t n = g->f->n_rows;
    double trace = 0.0;

    memset(g->gram, 0, (size_t)n * n * sizeof *g->gram);
    for (uint32_t begin = 0; begin < g->n_free; begin += BLOCK) {
        const uint32_t n_block = g->n_free - begin < BLOCK ? g->n_free - begin : BLOCK;

        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t j = 0; j <= i; j++) {
                g->gram[(size_t)i * n + j] +=
                    product(n_block, row_of(g, i) + begin, row_of(g, j) + begin);
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        trace += g->gram[(size_t)i * n + i];
    }
    for (uint32_t i = 0; i < n; i++) {
        g->gram[(size_t)i * n + i] += QUIRE_KEPT_FIT_RIDGE * trace / n + 1e-30;
    }
}

/* gram = L, of L L' = gram. The ridge keeps the diagonal above 0. */
static void factor(const fitting *g)
{
    const uint32_t n = g->f->n_rows;

    for (uint32_t i = 0; i < n; i++) {
        double *row = g->gram + (size_t)i * n;

        for (uint32_t j = 0; j <= i; j++) {
            const double *other = g->gram + (size_t)j * n;
            double sum = row[j];

            for (uint32_t k = 0; k < j; k++) {
                sum -= row[k] * other[k];
            }
            row[j] = i == j ? sqrt(sum) : sum / other[j];
        }
    }
}

/* y -= a x */
static void take_away(uint32_t n, double a, const double *restrict x, double *restrict y)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] -= a * x[i];
    }
}

/* solution = (A A' + l I)^-1 solution, of m columns. */
static void solve(const fitting *g, uint32_t m)
{
    const uint32_t n = g->f->n_rows;

    take_gram(g);
    factor(g);
    for (uint32_t i = 0; i < n; i++) {
        double *x = g->solution + (size_t)i * m;

        for (uint32_t k = 0; k < i; k++) {
            take_away(m, g->gram[(size_t)i * n + k], g->solution + (size_t)k * m, x);
        }
        for (uint32_t c = 0; c < m; c++) {
            x[c] /= g->gram[(size_t)i * n + i];
        }
    }
    for (uint32_t i = n; i-- > 0;) {
        double *x = g->solution + (size_t)i * m;

        for (uint32_t k = i + 1; k < n; k++) {
            take_away(m, g->gram[(size_t)k * n + i], g->solution + (size_t)k * m, x);
        }
        for (uint32_t c = 0; c < m; c++) {
            x[c] /= g->gram[(size_t)i * n + i];
        }
    }
}

/* ---- biases and values ---- */

/* A's columns get their new weights. */
static void fit_biases(const fitting *g)
{
    const quire_kept_fit *f = g->f;
    float *x = g->factors; /* no more needed */

    memcpy(g->solution, g->missing, f->n_rows * sizeof *g->solution);
    solve(g, 1);
    memset(x, 0, g->n_free * sizeof *x);
    for (uint32_t r = 0; r < f->n_rows; r++) {
        add_scaled(g->n_free, (float)g->solution[r], row_of(g, r), x);
    }
    for (uint32_t j = 0; j < g->n_free; j++) {
        float *bias = &f->biases[g->free[j]];
        const double wanted = exp((double)*bias) * (1.0 + (double)x[j]);
        const double most = wanted < QUIRE_KEPT_FIT_MOST ? wanted : QUIRE_KEPT_FIT_MOST;
        const double bounded = log(most > QUIRE_KEPT_FIT_LEAST ? most : QUIRE_KEPT_FIT_LEAST);

        x[j] = (float)exp(bounded - (double)*bias);
        *bias = (float)bounded;
    }
    for (uint32_t r = 0; r < f->n_rows; r++) {
        for (uint32_t j = 0; j < g->n_free; j++) {
            row_of(g, r)[j] *= x[j];
        }
    }
}

/* A over the sum of kept tokens, and the error of the row's output without the other tokens. A row
 * that sees no kept token does not count. */
static void take_error(const fitting *g, uint32_t r)
{
    const quire_kept_fit *f = g->f;
    float *row = row_of(g, r);
    float *error = g->target + (size_t)r * f->d;
    double sum = g->fixed[r];
    float inverse;

    for (uint32_t j = 0; j < g->n_free; j++) {
        sum += (double)row[j];
    }
    inverse = sum > 0.0 ? (float)(1.0 / sum) : 0.0f;
    add_scaled(f->d, -inverse, g->fixed_part + (size_t)r * f->d, error);
    for (uint32_t j = 0; j < g->n_free; j++) {
        row[j] *= inverse;
        add_scaled(f->d, -row[j], f->values + (size_t)g->free[j] * f->d, error);
    }
    for (uint32_t i = 0; i < f->d; i++) {
        g->solution[(size_t)r * f->d + i] = inverse > 0.0f ? (double)error[i] : 0.0;
    }
}

static void fit_values(const fitting *g)
{
    const quire_kept_fit *f = g->f;

    for (uint32_t r = 0; r < f->n_rows; r++) {
        take_error(g, r);
    }
    solve(g, f->d);
    for (uint32_t r = 0; r < f->n_rows; r++) {
        float *x = g->target; /* no more needed */

        for (uint32_t i = 0; i < f->d; i++) {
            x[i] = (float)g->solution[(size_t)r * f->d + i];
        }
        for (uint32_t j = 0; j < g->n_free; j++) {
            add_scaled(f->d, row_of(g, r)[j], x, f->values + (size_t)g->free[j] * f->d);
        }
    }
}

void quire_kept_fit_run(const quire_kept_fit *fit, void *room)
{
    fitting g;

    if (!has_dropped(fit)) {
        return;
    }
    g = fitting_in(fit, room);
    for (uint32_t r = 0; r < fit->n_rows; r++) {
        take_row(&g, r);
    }
    if (g.n_free > 0) {
        fit_biases(&g);
        fit_values(&g);
    }
}
