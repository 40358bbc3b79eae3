/* predictor_fit.c - least squares by the normal equations.
 *
 * With z = [hidden, 1] the sums are G = sum z z' and R = sum z log(worth)'. The solution of
 * (G + ridge) X = R comes from Cholesky's factors of G, in double precision. The ridge is on the
 * factors only, and small beside their mean square: features of a hidden state can depend on one
 * another.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/predictor.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 32u  /* samples that are added together, so that a row of G stays near */
#define RIDGE 1e-3 /* of the mean of G's diagonal */

struct quire_fit {
    uint32_t n; /* of z */
    uint32_t n_kv_head;
    uint64_t n_samples;
    double *products; /* G, [n][n]: columns up to the row's; later its factor */
    double *rights;   /* R, [n_kv_head][n] */
};

uint64_t quire_fit_bytes(uint32_t n_hidden, uint32_t n_kv_head)
{
    const uint64_t n = (uint64_t)n_hidden + 1;

    return (n * n + n_kv_head * n) * sizeof(double);
}

int quire_fit_create(quire_fit **out, uint32_t n_hidden, uint32_t n_kv_head)
{
    quire_fit *fit = calloc(1, sizeof *fit);

    *out = NULL;
    QUIRE_FAIL_IF(fit == NULL, QUIRE_NOMEM);
    fit->n = n_hidden + 1;
    fit->n_kv_head = n_kv_head;
    fit->products = calloc((size_t)fit->n * fit->n, sizeof *fit->products);
    fit->rights = calloc((size_t)fit->n_kv_head * fit->n, sizeof *fit->rights);
    if (fit->products == NULL || fit->rights == NULL) {
        quire_fit_free(fit);
        return QUIRE_NOMEM;
    }
    *out = fit;
    return QUIRE_OK;
}

void quire_fit_free(quire_fit *fit)
{
    if (fit != NULL) {
        free(fit->rights);
        free(fit->products);
        free(fit);
    }
}

/* to[i] += x * from[i] */
static void add_scaled(double *to, double x, const float *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        to[i] += x * (double)from[i];
    }
}

static void add_block(quire_fit *fit, const float *hidden, const float *const *worth,
                      uint32_t first, uint32_t n)
{
    const uint32_t n_hidden = fit->n - 1;
    double *last = fit->products + (size_t)n_hidden * fit->n;

    for (uint32_t a = 0; a < n_hidden; a++) {
        for (uint32_t i = first; i < first + n; i++) {
            const float *row = hidden + (size_t)i * n_hidden;

            add_scaled(fit->products + (size_t)a * fit->n, (double)row[a], row, a + 1);
        }
    }
    for (uint32_t i = first; i < first + n; i++) {
        const float *row = hidden + (size_t)i * n_hidden;

        add_scaled(last, 1.0, row, n_hidden);
        last[n_hidden] += 1.0;
        for (uint32_t g = 0; g < fit->n_kv_head; g++) {
            const double x = log(fmax((double)worth[g][i], QUIRE_PREDICTOR_LEAST));

            add_scaled(fit->rights + (size_t)g * fit->n, x, row, n_hidden);
            fit->rights[(size_t)g * fit->n + n_hidden] += x;
        }
    }
}

void quire_fit_add(quire_fit *fit, const float *hidden, const float *const *worth, uint32_t n)
{
    for (uint32_t first = 0; first < n; first += BLOCK) {
        add_block(fit, hidden, worth, first, n - first < BLOCK ? n - first : BLOCK);
    }
    fit->n_samples += n;
}

/* ---- the solution ---- */

static double product(const double *a, const double *b, uint32_t n)
{
    double lanes[4] = { 0 };
    double sum = 0.0;
    uint32_t i = 0;

    for (; i + 4 <= n; i += 4) {
        for (uint32_t x = 0; x < 4; x++) {
            lanes[x] += a[i + x] * b[i + x];
        }
    }
    for (; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum + ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
}

/* G = L L', in place. A row that depends on those before it gets a factor of 0: its pivot is set to
 * infinity. */
static void factor(double *g, uint32_t n)
{
    for (uint32_t a = 0; a < n; a++) {
        double *row = g + (size_t)a * n;
        double rest;

        for (uint32_t b = 0; b < a; b++) {
            const double *other = g + (size_t)b * n;

            row[b] = (row[b] - product(row, other, b)) / other[b];
        }
        rest = row[a] - product(row, row, a);
        row[a] = rest > 0.0 ? sqrt(rest) : INFINITY;
    }
}

/* Solve L L' x = r in place. */
static void substitute(const double *g, uint32_t n, double *x)
{
    for (uint32_t a = 0; a < n; a++) {
        const double *row = g + (size_t)a * n;

        x[a] = (x[a] - product(row, x, a)) / row[a];
    }
    for (uint32_t a = n; a-- > 0;) {
        const double *row = g + (size_t)a * n;

        x[a] /= row[a];
        for (uint32_t b = 0; b < a; b++) {
            x[b] -= x[a] * row[b];
        }
    }
}

int quire_fit_solve(quire_fit *fit, float *maps)
{
    const uint32_t n = fit->n;
    double trace = 0.0;

    QUIRE_FAIL_IF(fit->n_samples < 2, QUIRE_INVAL);
    for (uint32_t a = 0; a + 1 < n; a++) {
        trace += fit->products[(size_t)a * n + a];
    }
    for (uint32_t a = 0; a + 1 < n; a++) {
        fit->products[(size_t)a * n + a] += RIDGE * trace / (n - 1) + 1e-30;
    }
    factor(fit->products, n);
    for (uint32_t g = 0; g < fit->n_kv_head; g++) {
        double *x = fit->rights + (size_t)g * n;

        substitute(fit->products, n, x);
        for (uint32_t a = 0; a < n; a++) {
            maps[(size_t)g * n + a] = (float)x[a];
        }
    }
    return QUIRE_OK;
}
