/* test_kept_fit.c - biases and values of kept_fit.h against normal equations in the space of the
 * tokens, in double precision; outputs come closer than by dropping; other tokens and lanes do not
 * change.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "retain/kept_fit.h"
#include "seed.h"

#define N_MAX    70u
#define ROWS_MAX 24u
#define D        6u

static quire_rng rng;

typedef struct problem {
    uint32_t n, n_rows;
    bool has_sinks;
    unsigned char roles[N_MAX];
    float attention[ROWS_MAX * N_MAX];
    float values[N_MAX * D];
    float biases[N_MAX];
} problem;

/* Random logits; rows see a random beginning of the tokens, and some none at all. */
static void make_rows(problem *p)
{
    for (uint32_t r = 0; r < p->n_rows; r++) {
        float *row = p->attention + (size_t)r * p->n;
        const uint32_t n_seen = r == 3 ? 0 : p->n - quire_rng_below(&rng, 8);
        double sum = p->has_sinks ? exp(quire_rng_normal(&rng)) : 0.0;

        for (uint32_t t = 0; t < p->n; t++) {
            row[t] = t < n_seen ? (float)exp(quire_rng_normal(&rng)) : 0.0f;
            sum += (double)row[t];
        }
        for (uint32_t t = 0; t < p->n && sum > 0.0; t++) {
            row[t] = (float)((double)row[t] / sum);
        }
    }
}

static void make_problem(problem *p, bool has_sinks, bool is_again)
{
    *p = (problem){ .n = 40 + quire_rng_below(&rng, N_MAX - 40),
                    .n_rows = 8 + quire_rng_below(&rng, ROWS_MAX - 8),
                    .has_sinks = has_sinks };
    for (uint32_t t = 0; t < p->n; t++) {
        p->roles[t] = t < 4 || t + 5 > p->n
                          ? QUIRE_KEPT_FIT_KEPT
                          : (unsigned char)(t % 3 ? QUIRE_KEPT_FIT_DROPPED : QUIRE_KEPT_FIT_FREE);
        p->biases[t] = is_again && t % 2 ? (float)quire_rng_normal(&rng) : 0.0f;
    }
    for (uint32_t i = 0; i < p->n * D; i++) {
        p->values[i] = (float)quire_rng_normal(&rng);
    }
    make_rows(p);
}

static quire_kept_fit fit_of(problem *p, const problem *from)
{
    *p = *from;
    return (quire_kept_fit){ .n_tokens = p->n,
                             .n_rows = p->n_rows,
                             .d = D,
                             .has_sinks = p->has_sinks,
                             .roles = p->roles,
                             .attention = p->attention,
                             .values = p->values,
                             .biases = p->biases };
}

static void run(const quire_kept_fit *fit)
{
    void *room = malloc(quire_kept_fit_bytes(fit->n_tokens, fit->n_rows, fit->d));

    assert_non_null(room);
    quire_kept_fit_run(fit, room);
    free(room);
}

/* ---- the same in double precision, by the tokens' normal equations ---- */

/* Weights of the tokens that count, with biases, and the sink's. */
static double weights(const problem *p, const problem *rows, uint32_t r, bool has_all, double *w)
{
    double before = 0.0, sum = 0.0, sink;

    for (uint32_t t = 0; t < p->n; t++) {
        const double a = (double)rows->attention[(size_t)r * p->n + t];

        before += a;
        w[t] =
            has_all || p->roles[t] != QUIRE_KEPT_FIT_DROPPED ? a * exp((double)p->biases[t]) : 0.0;
        sum += w[t];
    }
    sink = p->has_sinks ? 1.0 - before : 0.0;
    sum += sink;
    for (uint32_t t = 0; t < p->n; t++) {
        w[t] = sum > 0.0 ? w[t] / sum : 0.0;
    }
    return sink;
}

static void outputs(const problem *p, const double *w, double *out)
{
    memset(out, 0, D * sizeof *out);
    for (uint32_t t = 0; t < p->n; t++) {
        for (uint32_t i = 0; i < D; i++) {
            out[i] += w[t] * (double)p->values[t * D + i];
        }
    }
}

/* x of (M + l I) x = y, by elimination; M is positive. */
static void eliminate(double (*m)[N_MAX + D], uint32_t n, uint32_t n_sides)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n; k++) {
            const double f = k == i ? 0.0 : m[k][i] / m[i][i];

            for (uint32_t c = i; c < n + n_sides; c++) {
                m[k][c] -= f * m[i][c];
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t c = n; c < n + n_sides; c++) {
            m[i][c] /= m[i][i];
        }
    }
}

/* Least squares of free columns a, [rows][n], to sides e, [rows][n_sides]: x, [n][n_sides]. */
static void least_squares(uint32_t n_rows, uint32_t n, uint32_t n_sides, double (*a)[N_MAX],
                          double (*e)[D], double (*x)[D])
{
    static double m[N_MAX][N_MAX + D];
    double ridge = 0.0;

    memset(m, 0, sizeof m);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            ridge += QUIRE_KEPT_FIT_RIDGE * a[r][i] * a[r][i] / n_rows;
            for (uint32_t j = 0; j < n; j++) {
                m[i][j] += a[r][i] * a[r][j];
            }
            for (uint32_t c = 0; c < n_sides; c++) {
                m[i][n + c] += a[r][i] * e[r][c];
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        m[i][i] += ridge;
    }
    eliminate(m, n, n_sides);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(x[i], &m[i][n], n_sides * sizeof x[i][0]);
    }
}

static uint32_t free_tokens(const problem *p, uint32_t *tokens)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < p->n; t++) {
        if (p->roles[t] == QUIRE_KEPT_FIT_FREE) {
            tokens[n++] = t;
        }
    }
    return n;
}

static void expect_fit(problem *p, const problem *from)
{
    static double a[ROWS_MAX][N_MAX], e[ROWS_MAX][D], x[N_MAX][D], w[N_MAX], wanted[D], got[D];
    uint32_t tokens[N_MAX];
    const uint32_t n = free_tokens(from, tokens);

    *p = *from;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        (void)weights(from, from, r, true, w);
        e[r][0] = 0.0;
        for (uint32_t t = 0; t < p->n; t++) {
            e[r][0] += p->roles[t] == QUIRE_KEPT_FIT_DROPPED ? w[t] : 0.0;
        }
        for (uint32_t j = 0; j < n; j++) {
            a[r][j] = w[tokens[j]];
        }
    }
    least_squares(p->n_rows, n, 1, a, e, x);
    for (uint32_t j = 0; j < n; j++) {
        double f = exp((double)p->biases[tokens[j]]) * (1.0 + x[j][0]);

        f = f < QUIRE_KEPT_FIT_LEAST  ? QUIRE_KEPT_FIT_LEAST
            : f > QUIRE_KEPT_FIT_MOST ? QUIRE_KEPT_FIT_MOST
                                      : f;
        p->biases[tokens[j]] = (float)log(f);
    }
    for (uint32_t r = 0; r < p->n_rows; r++) {
        (void)weights(from, from, r, true, w);
        outputs(from, w, wanted);
        (void)weights(p, from, r, false, w);
        outputs(from, w, got);
        for (uint32_t i = 0; i < D; i++) {
            e[r][i] = wanted[i] - got[i];
        }
        for (uint32_t j = 0; j < n; j++) {
            a[r][j] = w[tokens[j]];
        }
    }
    least_squares(p->n_rows, n, D, a, e, x);
    for (uint32_t j = 0; j < n; j++) {
        for (uint32_t i = 0; i < D; i++) {
            p->values[tokens[j] * D + i] += (float)x[j][i];
        }
    }
}

static void assert_near(const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!(fabs((double)a[i] - (double)b[i]) <= 2e-4 * (1.0 + fabs((double)b[i])))) {
            fail_msg("%u of %u: %g instead of %g", i, n, (double)a[i], (double)b[i]);
        }
    }
}

static void test_least_squares(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        static problem from, expected, got;
        quire_kept_fit fit;

        make_problem(&from, i % 2, i / 2 % 2);
        expect_fit(&expected, &from);
        fit = fit_of(&got, &from);
        run(&fit);
        assert_near(got.biases, expected.biases, from.n);
        assert_near(got.values, expected.values, from.n * D);
    }
}

/* ---- properties ---- */

static double error_of(const problem *p, const problem *from)
{
    double w[N_MAX], wanted[D], got[D], sum = 0.0;

    for (uint32_t r = 0; r < p->n_rows; r++) {
        (void)weights(from, from, r, true, w);
        outputs(from, w, wanted);
        (void)weights(p, from, r, false, w);
        outputs(p, w, got);
        for (uint32_t i = 0; i < D; i++) {
            sum += (wanted[i] - got[i]) * (wanted[i] - got[i]);
        }
    }
    return sum;
}

static void test_closer_than_dropping(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        static problem from, got;
        quire_kept_fit fit;

        make_problem(&from, i % 2, i / 2 % 2);
        fit = fit_of(&got, &from);
        run(&fit);
        assert_true(error_of(&got, &from) < 0.5 * error_of(&from, &from));
        for (uint32_t t = 0; t < from.n; t++) {
            const float bias = got.biases[t];

            if (from.roles[t] != QUIRE_KEPT_FIT_FREE) {
                assert_memory_equal(got.values + t * D, from.values + t * D, D * sizeof(float));
                assert_true(bias == from.biases[t]);
            } else {
                assert_true(bias <= (float)log(QUIRE_KEPT_FIT_MOST) + 1e-6f);
                assert_true(bias >= (float)log(QUIRE_KEPT_FIT_LEAST) - 1e-6f);
            }
        }
    }
}

/* A few tokens that get nearly no attention would need more than QUIRE_KEPT_FIT_MOST. */
static void test_bounds(void **state)
{
    static problem from, got;
    bool is_bounded = false;
    quire_kept_fit fit;

    (void)state;
    make_problem(&from, false, false);
    for (uint32_t i = 0; i < from.n_rows * from.n; i++) {
        from.attention[i] *= from.roles[i % from.n] == QUIRE_KEPT_FIT_DROPPED ? 1.0f : 1e-4f;
    }
    fit = fit_of(&got, &from);
    run(&fit);
    for (uint32_t t = 0; t < from.n; t++) {
        is_bounded = is_bounded || got.biases[t] == (float)log(QUIRE_KEPT_FIT_MOST);
        assert_true(got.biases[t] <= (float)log(QUIRE_KEPT_FIT_MOST));
        assert_true(got.biases[t] >= (float)log(QUIRE_KEPT_FIT_LEAST));
    }
    assert_true(is_bounded);
}

/* Nothing dropped, nothing free, no row that sees anything: nothing changes. */
static void test_nothing_to_fit(void **state)
{
    static problem from, got;

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        quire_kept_fit fit;

        make_problem(&from, false, true);
        for (uint32_t t = 0; t < from.n && i < 2; t++) {
            const unsigned char all = i == 0 ? QUIRE_KEPT_FIT_FREE : QUIRE_KEPT_FIT_KEPT;

            from.roles[t] = i == 0 || from.roles[t] == QUIRE_KEPT_FIT_FREE ? all : from.roles[t];
        }
        if (i == 2) {
            memset(from.attention, 0, sizeof from.attention);
        }
        fit = fit_of(&got, &from);
        run(&fit);
        assert_memory_equal(got.values, from.values, sizeof from.values);
        assert_near(got.biases, from.biases, from.n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_squares),
        cmocka_unit_test(test_closer_than_dropping),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_nothing_to_fit),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
