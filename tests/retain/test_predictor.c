/* test_predictor.c - fits against known maps, predictions, and the file with its refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "retain/predictor.h"
#include "seed.h"

#define N_HIDDEN 13u
#define N_KV     2u
#define N        400u

static quire_rng rng;
static float hidden[N * N_HIDDEN];
static float worth[N_KV][N];

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_normal(&rng);
    }
}

/* Samples of known maps are fitted by these maps. */
static void test_known_map(void **state)
{
    const float *const lists[N_KV] = { worth[0], worth[1] };
    float known[N_KV][N_HIDDEN + 1], maps[N_KV * (N_HIDDEN + 1)];
    quire_fit *fit;

    (void)state;
    fill(hidden, N * N_HIDDEN);
    fill(known[0], N_KV * (N_HIDDEN + 1));
    for (uint32_t g = 0; g < N_KV; g++) {
        for (uint32_t t = 0; t < N; t++) {
            double sum = -5.0 + (double)known[g][N_HIDDEN];

            for (uint32_t i = 0; i < N_HIDDEN; i++) {
                sum += 0.3 * (double)known[g][i] * (double)hidden[t * N_HIDDEN + i];
            }
            worth[g][t] = (float)exp(fmax(sum, log(QUIRE_PREDICTOR_LEAST)));
        }
    }
    assert_int_equal(quire_fit_create(&fit, N_HIDDEN, N_KV), QUIRE_OK);
    assert_int_equal(quire_fit_solve(fit, maps), QUIRE_INVAL); /* no samples */
    quire_fit_add(fit, hidden, lists, 150);
    quire_fit_add(fit, hidden + 150 * N_HIDDEN,
                  (const float *const[]){ worth[0] + 150, worth[1] + 150 }, N - 150);
    assert_int_equal(quire_fit_solve(fit, maps), QUIRE_OK);
    for (uint32_t g = 0; g < N_KV; g++) {
        for (uint32_t i = 0; i < N_HIDDEN; i++) {
            assert_true(fabs((double)maps[g * (N_HIDDEN + 1) + i] - 0.3 * (double)known[g][i]) <
                        5e-3);
        }
        assert_true(fabs((double)maps[g * (N_HIDDEN + 1) + N_HIDDEN] -
                         (-5.0 + (double)known[g][N_HIDDEN])) < 5e-3);
    }
    quire_fit_free(fit);
    quire_fit_free(NULL);
    assert_int_equal(quire_fit_bytes(3, 2), (16 + 8) * sizeof(double));
}

/* With noise the residuals of the fit are orthogonal to all features, up to the ridge. */
static void test_normal_equations(void **state)
{
    const float *const lists[N_KV] = { worth[0], worth[1] };
    float maps[N_KV * (N_HIDDEN + 1)];
    quire_fit *fit;

    (void)state;
    fill(hidden, N * N_HIDDEN);
    for (uint32_t t = 0; t < N; t++) {
        hidden[t * N_HIDDEN + 5] = hidden[t * N_HIDDEN + 4]; /* features that depend on another */
        worth[0][t] = (float)quire_rng_unit(&rng);
        worth[1][t] = t % 3 == 0 ? 0.0f : (float)quire_rng_unit(&rng);
    }
    assert_int_equal(quire_fit_create(&fit, N_HIDDEN, N_KV), QUIRE_OK);
    quire_fit_add(fit, hidden, lists, N);
    assert_int_equal(quire_fit_solve(fit, maps), QUIRE_OK);
    for (uint32_t g = 0; g < N_KV; g++) {
        const float *map = maps + g * (N_HIDDEN + 1);
        double dots[N_HIDDEN + 1] = { 0 };

        for (uint32_t t = 0; t < N; t++) {
            double rest =
                log(fmax((double)worth[g][t], QUIRE_PREDICTOR_LEAST)) - (double)map[N_HIDDEN];

            for (uint32_t i = 0; i < N_HIDDEN; i++) {
                rest -= (double)map[i] * (double)hidden[t * N_HIDDEN + i];
            }
            for (uint32_t i = 0; i < N_HIDDEN; i++) {
                dots[i] += rest * (double)hidden[t * N_HIDDEN + i];
            }
            dots[N_HIDDEN] += rest;
        }
        for (uint32_t i = 0; i <= N_HIDDEN; i++) {
            /* The ridge is a thousandth of the features' mean square. */
            const double ridge = i < N_HIDDEN ? 1.2e-3 * N * fabs((double)map[i]) : 0.0;

            assert_true(fabs(dots[i]) < ridge + 1e-2);
        }
        assert_true(fabs((double)map[4] - (double)map[5]) < 1e-3);
    }
    quire_fit_free(fit);
}

static void refuse(unsigned char *bytes, size_t n_bytes, const quire_predictor_shape *shape,
                   int status, const char *says)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_predictor *predictor;

    assert_int_equal(quire_predictor_parse(&predictor, bytes, n_bytes, shape, &err), status);
    assert_null(predictor);
    if (strstr(err.message, says) == NULL) {
        fail_msg("\"%s\"", err.message);
    }
}

static void test_file(void **state)
{
    const quire_predictor_shape shape = { 3, N_KV, N_HIDDEN, 0x123456789abcdefu };
    quire_predictor_shape other = shape;
    quire_error err = QUIRE_ERROR_INIT;
    quire_predictor *made, *read;
    unsigned char *bytes;
    void *formatted;
    size_t n_bytes;

    (void)state;
    assert_int_equal(quire_predictor_create(&made, &shape), QUIRE_OK);
    fill(made->maps, 3 * N_KV * (N_HIDDEN + 1));
    assert_int_equal(quire_predictor_format(made, &formatted, &n_bytes), QUIRE_OK);
    bytes = formatted;
    assert_int_equal(quire_predictor_parse(&read, bytes, n_bytes, &shape, &err), QUIRE_OK);
    assert_memory_equal(read->maps, made->maps, 3 * N_KV * (N_HIDDEN + 1) * sizeof(float));
    quire_predictor_free(read);

    for (size_t n = 0; n < n_bytes; n += 7) {
        refuse(bytes, n, &shape, QUIRE_CORRUPT, n < 28 ? "no file of quire" : "do not fit");
    }
    for (size_t i = 8; i < n_bytes; i += 5) {
        bytes[i] ^= 4;
        refuse(bytes, n_bytes, &shape, QUIRE_CORRUPT, "do not fit");
        bytes[i] ^= 4;
    }
    memset(bytes + 8, 0xff, 12); /* more than any file holds */
    refuse(bytes, n_bytes, &shape, QUIRE_CORRUPT, "do not fit");
    free(formatted);

    other.fingerprint++;
    assert_int_equal(quire_predictor_format(made, &formatted, &n_bytes), QUIRE_OK);
    refuse(formatted, n_bytes, &other, QUIRE_INVAL, "another model");
    free(formatted);
    made->maps[4] = NAN;
    assert_int_equal(quire_predictor_format(made, &formatted, &n_bytes), QUIRE_OK);
    refuse(formatted, n_bytes, &shape, QUIRE_CORRUPT, "not finite");
    free(formatted);
    quire_predictor_free(made);
    quire_predictor_free(NULL);

    other.n_layers = UINT32_MAX;
    other.n_hidden = UINT32_MAX;
    assert_int_equal(quire_predictor_create(&made, &other), QUIRE_LIMIT);
    assert_null(made);
}

/* Rows give exp(map . hidden + constant), at most 1, and the same bits whatever rows stand beside
 * them. */
static void test_apply(void **state)
{
    const quire_predictor_shape shape = { .n_layers = 2, .n_kv_head = N_KV, .n_hidden = N_HIDDEN };
    const quire_predictor_rows rows = { .hidden = hidden, .stride = N_HIDDEN + 3, .n = 7 };
    quire_predictor *made;
    float all[7];
    bool has_most = false, has_less = false;

    (void)state;
    fill(hidden, N * N_HIDDEN);
    assert_int_equal(quire_predictor_create(&made, &shape), QUIRE_OK);
    fill(made->maps, 2 * N_KV * (N_HIDDEN + 1));
    for (uint32_t lane = 0; lane < 2 * N_KV; lane++) {
        const float *map = quire_predictor_map(made, lane / N_KV, lane % N_KV);

        quire_predictor_apply(made, lane / N_KV, lane % N_KV, &rows, all);
        for (uint32_t r = 0; r < rows.n; r++) {
            const quire_predictor_rows one = { .hidden = hidden + r * rows.stride, .n = 1 };
            double sum = (double)map[N_HIDDEN];
            float alone;

            for (uint32_t i = 0; i < N_HIDDEN; i++) {
                sum += (double)map[i] * (double)one.hidden[i];
            }
            quire_predictor_apply(made, lane / N_KV, lane % N_KV, &one, &alone);
            assert_memory_equal(&alone, &all[r], sizeof alone);
            assert_true(fabs((double)alone - fmin(exp(sum), 1.0)) < 1e-5);
            has_most = has_most || alone == 1.0f;
            has_less = has_less || alone < 1.0f;
        }
    }
    assert_true(has_most && has_less);
    quire_predictor_free(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_map),
        cmocka_unit_test(test_normal_equations),
        cmocka_unit_test(test_apply),
        cmocka_unit_test(test_file),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
