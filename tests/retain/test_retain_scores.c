/* test_retain_scores.c - scores that are kept as worth, and those of expected queries, against
 * plain computations in double precision.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "retain/policy.h"
#include "seed.h"

#define N     40u
#define D     12u
#define HEADS 2u

static quire_rng rng;

typedef struct fixture {
    int32_t positions[N];
    float keys[N * D];
    float worth[N];
    quire_retain_lane lane;
} fixture;

static quire_retain_spec spec_of(const char *text)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;

    assert_int_equal(quire_retain_parse(text, &spec, &err), QUIRE_OK);
    return spec;
}

static void make(fixture *f)
{
    for (uint32_t t = 0; t < N; t++) {
        f->positions[t] = (int32_t)(2 * t);
        f->worth[t] = (float)quire_rng_unit(&rng);
    }
    for (uint32_t i = 0; i < N * D; i++) {
        f->keys[i] = (float)quire_rng_normal(&rng);
    }
    f->lane = (quire_retain_lane){
        .n_tokens = N, .positions = f->positions, .n_text = 2 * N, .keys = f->keys, .d = D
    };
}

static void test_worth(void **state)
{
    static const char *const names[] = { "heavy", "reconstruct", "predict" };
    fixture f;
    float scores[N];

    (void)state;
    make(&f);
    f.lane.worth = f.worth;
    for (size_t i = 0; i < 3; i++) {
        const quire_retain_spec spec = spec_of(names[i]);

        quire_retain_score(&spec, &f.lane, scores);
        assert_memory_equal(scores, f.worth, sizeof scores);
    }
}

/* A prediction can be the mean of those of the token and its neighbours. */
static void test_pooled(void **state)
{
    const quire_retain_spec spec = spec_of("predict,pool=3");
    fixture f;
    float scores[N];

    (void)state;
    make(&f);
    f.lane.worth = f.worth;
    quire_retain_score(&spec, &f.lane, scores);
    assert_true(fabs((double)scores[0] - ((double)f.worth[0] + (double)f.worth[1]) / 2) < 1e-6);
    for (uint32_t t = 1; t + 1 < N; t++) {
        const double sum = (double)f.worth[t - 1] + (double)f.worth[t] + (double)f.worth[t + 1];

        assert_true(fabs((double)scores[t] - sum / 3) < 1e-6);
    }
}

static void test_expected(void **state)
{
    const quire_retain_spec spec = spec_of("expected");
    float mean[HEADS * D], half[D * D], cov[HEADS * D * D], norms[N], scores[N], scratch[N];
    double want[N] = { 0 };
    fixture f;

    (void)state;
    make(&f);
    for (uint32_t h = 0; h < HEADS; h++) {
        for (uint32_t i = 0; i < D * D; i++) {
            half[i] = (float)(0.3 * quire_rng_normal(&rng));
        }
        for (uint32_t a = 0; a < D; a++) {
            mean[h * D + a] = (float)quire_rng_normal(&rng);
            for (uint32_t b = 0; b < D; b++) {
                float sum = 0.0f;

                for (uint32_t i = 0; i < D; i++) {
                    sum += half[a * D + i] * half[b * D + i];
                }
                cov[(h * D + a) * D + b] = sum;
            }
        }
    }
    for (uint32_t t = 0; t < N; t++) {
        norms[t] = (float)(0.1 + quire_rng_unit(&rng));
    }
    f.lane.query_mean = mean;
    f.lane.query_cov = cov;
    f.lane.n_heads = HEADS;
    f.lane.value_norms = norms;
    f.lane.scratch = scratch;
    quire_retain_score(&spec, &f.lane, scores);
    for (uint32_t h = 0; h < HEADS; h++) {
        double p[N], sum = 0.0;

        for (uint32_t t = 0; t < N; t++) {
            const float *key = f.keys + t * D;
            double logit = 0.0;

            for (uint32_t a = 0; a < D; a++) {
                logit += (double)mean[h * D + a] * (double)key[a];
                for (uint32_t b = 0; b < D; b++) {
                    logit += (double)key[a] * (double)cov[(h * D + a) * D + b] * (double)key[b] / 2;
                }
            }
            p[t] = exp(logit);
            sum += p[t];
        }
        for (uint32_t t = 0; t < N; t++) {
            want[t] += p[t] / sum / HEADS * (double)norms[t];
        }
    }
    for (uint32_t t = 0; t < N; t++) {
        assert_true(fabs((double)scores[t] - want[t]) < 1e-5 + 1e-4 * want[t]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worth),
        cmocka_unit_test(test_pooled),
        cmocka_unit_test(test_expected),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
