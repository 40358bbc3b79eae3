/* test_train_state.c - the state of a run between steps: masters in bf16 and their rounding,
 * products of bf16 numbers, the level of the data.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "run_kit.h"
#include "train/bf16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/quire-state-XXXXXX";
static char path[128];

#define STEP 0x1p-7F /* from 1 to the next number of bf16 */

static void test_nearest(void **state)
{
    float x[] = { 1 + STEP / 4,
                  1 + STEP / 2,
                  1 + STEP * 3 / 2,
                  -1 - STEP * 3 / 4,
                  0x1.ffp3F,
                  0x1.ffffp127F,
                  INFINITY,
                  NAN,
                  0,
                  3 };
    const float want[] = { 1, 1, 1 + 2 * STEP, -1 - STEP, 0x1p4F, INFINITY, INFINITY, NAN, 0, 3 };

    (void)state;
    quire_bf16_round(x, sizeof(x) / sizeof(x[0]));
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        assert_true(x[i] == want[i] || (isnan(want[i]) && isnan(x[i])));
    }
}

#define DRAWS 20000u

/* Neighbours in the shares that make the mean exact; the same by parts; others for another seed. */
static void test_chance(void **state)
{
    static const float shares[] = { 0.25F, 0.5F, 0.875F };
    float *x = malloc(DRAWS * sizeof(*x)), *parts = malloc(DRAWS * sizeof(*parts));

    (void)state;
    assert_true(x != NULL && parts != NULL);
    for (size_t k = 0; k < 3; k++) {
        uint32_t n_above = 0, n_equal = 0;

        for (uint32_t i = 0; i < DRAWS; i++) {
            x[i] = parts[i] = -1 - shares[k] * STEP;
        }
        quire_bf16_round_by_chance(x, DRAWS, 7, 100);
        quire_bf16_round_by_chance(parts, 300, 7, 100);
        quire_bf16_round_by_chance(parts + 300, DRAWS - 300, 7, 400);
        assert_memory_equal(x, parts, DRAWS * sizeof(*x));
        for (uint32_t i = 0; i < DRAWS; i++) {
            assert_true(x[i] == -1 || x[i] == -1 - STEP);
            n_above += x[i] != -1;
            parts[i] = -1 - shares[k] * STEP;
        }
        /* Five deviations of the share. */
        assert_true(fabs((double)n_above / DRAWS - (double)shares[k]) < 5 * 0.5 / sqrt(DRAWS));
        quire_bf16_round_by_chance(parts, DRAWS, 8, 100);
        for (uint32_t i = 0; i < DRAWS; i++) {
            n_equal += parts[i] == x[i];
        }
        assert_true(n_equal < DRAWS * 9 / 10);
    }
    free(x);
    free(parts);
}

static void assert_masters(const run *r)
{
    const float *parameters = quire_trainer_parameters(r->trainer);

    for (size_t i = 0; i < parameters_bytes(r) / sizeof(float); i++) {
        uint32_t bits;

        memcpy(&bits, &parameters[i], sizeof(bits));
        assert_int_equal(bits & 0xffffu, 0);
    }
}

/* Masters in bf16 learn, stay in bf16, and have the bits of one run after a stop and with another
 * number of threads. */
static void test_masters(void **state)
{
    quire_train_plan plan = small_plan("fusedkv");
    run whole, half, rest;

    (void)state;
    plan.masters = QUIRE_MASTERS_BF16;
    run_open(&whole, &plan);
    run_open(&half, &plan);
    assert_masters(&whole);
    (void)run_steps(&whole, 9);
    (void)run_steps(&half, 5);
    assert_int_equal(quire_trainer_save(half.trainer, &half.packer, path, NULL), QUIRE_OK);
    plan.n_threads = 1;
    run_open(&rest, &plan);
    assert_int_equal(quire_trainer_load(rest.trainer, &rest.packer, path, NULL), QUIRE_OK);
    (void)run_steps(&rest, 4);
    assert_masters(&rest);
    assert_memory_equal(quire_trainer_parameters(rest.trainer),
                        quire_trainer_parameters(whole.trainer), parameters_bytes(&whole));
    assert_true(run_steps(&whole, 31).loss < 0.3);
    quire_trainer_destroy(whole.trainer);
    quire_trainer_destroy(half.trainer);
    quire_trainer_destroy(rest.trainer);
}

/* Products of bf16 numbers learn, and have the bits of one run after a stop and with another number
 * of threads. A checkpoint of other products is refused. */
static void test_products(void **state)
{
    quire_train_plan plan = small_plan("fusedkv");
    quire_error err = QUIRE_ERROR_INIT;
    run exact, whole, rest;

    (void)state;
    run_open(&exact, &plan);
    plan.products = QUIRE_PRODUCTS_BF16;
    run_open(&whole, &plan);
    (void)run_steps(&exact, 5);
    (void)run_steps(&whole, 5);
    assert_memory_not_equal(quire_trainer_parameters(exact.trainer),
                            quire_trainer_parameters(whole.trainer), parameters_bytes(&whole));
    assert_int_equal(quire_trainer_save(whole.trainer, &whole.packer, path, NULL), QUIRE_OK);
    assert_int_equal(quire_trainer_load(exact.trainer, &exact.packer, path, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "kind of products"));
    plan.n_threads = 1;
    run_open(&rest, &plan);
    assert_int_equal(quire_trainer_load(rest.trainer, &rest.packer, path, NULL), QUIRE_OK);
    (void)run_steps(&whole, 4);
    (void)run_steps(&rest, 4);
    assert_memory_equal(quire_trainer_parameters(rest.trainer),
                        quire_trainer_parameters(whole.trainer), parameters_bytes(&whole));
    assert_true(run_steps(&whole, 31).loss < 0.3);
    quire_trainer_destroy(exact.trainer);
    quire_trainer_destroy(whole.trainer);
    quire_trainer_destroy(rest.trainer);
}

/* Another seed rounds otherwise, and a checkpoint of other masters is refused. */
static void test_other_masters(void **state)
{
    quire_train_plan plan = small_plan("mha");
    quire_error err = QUIRE_ERROR_INIT;
    run first, second, plain;

    (void)state;
    plan.masters = QUIRE_MASTERS_BF16;
    run_open(&first, &plan);
    plan.start = quire_trainer_parameters(first.trainer);
    plan.seed++;
    run_open(&second, &plan);
    assert_memory_equal(plan.start, quire_trainer_parameters(second.trainer),
                        parameters_bytes(&first));
    (void)run_steps(&first, 1);
    (void)run_steps(&second, 1);
    assert_memory_not_equal(quire_trainer_parameters(first.trainer),
                            quire_trainer_parameters(second.trainer), parameters_bytes(&first));
    assert_int_equal(quire_trainer_save(second.trainer, &second.packer, path, NULL), QUIRE_OK);
    plan.masters = QUIRE_MASTERS_F32;
    run_open(&plain, &plan);
    assert_int_equal(quire_trainer_load(plain.trainer, &plain.packer, path, &err), QUIRE_INVAL);
    assert_non_null(
        strstr(err.message, "another weight decay, clipping, kind of masters or kind of products"));
    quire_trainer_destroy(first.trainer);
    quire_trainer_destroy(second.trainer);
    quire_trainer_destroy(plain.trainer);
}

/* The level rises at steps that level_every divides, when the loss is low, and is kept. */
static void test_level(void **state)
{
    quire_train_plan plan = small_plan("mha");
    run r, rest;

    (void)state;
    plan.level_below = 1e9;
    plan.level_every = 3;
    run_open(&r, &plan);
    (void)run_steps(&r, 2);
    assert_int_equal(quire_trainer_level(r.trainer), 0);
    (void)run_steps(&r, 1);
    assert_int_equal(quire_trainer_level(r.trainer), 1);
    (void)run_steps(&r, 4);
    assert_int_equal(quire_trainer_level(r.trainer), 2);
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    plan.level_below = 1e-6; /* nats: out of reach */
    run_open(&rest, &plan);
    assert_int_equal(quire_trainer_load(rest.trainer, &rest.packer, path, NULL), QUIRE_OK);
    (void)run_steps(&rest, 4);
    assert_int_equal(quire_trainer_level(rest.trainer), 2);
    quire_trainer_destroy(r.trainer);
    quire_trainer_destroy(rest.trainer);
    plan.level_every = 0;
    assert_int_equal(quire_trainer_create(&r.trainer, &plan, NULL), QUIRE_INVAL);
}

/* Share of head h's attention at token t + 1 before the last of n tokens, by Q and K of first
 * weights: the score of the pairs that look back, with embeddings that differ. */
static double share_behind(const run *r, const quire_train_shape *s, uint32_t h, uint32_t n)
{
    const quire_train_layout *l = quire_trainer_layout(r->trainer);
    const float *w = quire_trainer_parameters(r->trainer);
    double scores[64], sum = 0, q[64] = { 0 }, k[64][64] = { { 0 } };

    for (uint32_t t = 0; t < n; t++) {
        const float *x = w + l->embedding + (size_t)(t * 5 % VOCAB) * s->d_model;
        double squares = 0;

        for (uint32_t i = 0; i < s->d_model; i++) {
            squares += (double)x[i] * (double)x[i];
        }
        for (uint32_t row = 0; row < s->d_head; row++) {
            size_t at = (size_t)(h * s->d_head + row) * s->d_model;

            for (uint32_t i = 0; i < s->d_model; i++) {
                double normed = (double)x[i] / sqrt(squares / s->d_model);

                k[t][row] += normed * (double)w[l->blocks[0].k + at + i];
                q[row] += t + 1 == n ? normed * (double)w[l->blocks[0].q + at + i] : 0;
            }
        }
    }
    for (uint32_t t = 0; t < n; t++) {
        scores[t] = 0;
        for (uint32_t j = 0; j < s->d_head / 2; j++) {
            double angle = (n - 1 - t) * pow(s->rope_base, -2.0 * j / s->d_head);
            double a = q[j], b = q[j + s->d_head / 2];

            /* The rotation of q by the distance, instead of both by their positions. */
            scores[t] += (a * cos(angle) - b * sin(angle)) * k[t][j] +
                         (a * sin(angle) + b * cos(angle)) * k[t][j + s->d_head / 2];
        }
        scores[t] = exp(scores[t] / sqrt(s->d_head));
        sum += scores[t];
    }
    return scores[n - 2 - h] / sum;
}

static void test_shift_heads(void **state)
{
    quire_train_plan plan = small_plan("mha");
    quire_error err = QUIRE_ERROR_INIT;
    run r;

    (void)state;
    plan.has_shift_heads = true;
    assert_int_equal(quire_trainer_create(&r.trainer, &plan, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "no qk-norm"));
    plan.shape.has_qk_norm = false;
    plan.shape.d_model = 48;
    plan.shape.d_head = 32;
    plan.shape.rope_base = 1e6;
    run_open(&r, &plan);
    for (uint32_t h = 0; h < plan.shape.n_head; h++) {
        assert_true(share_behind(&r, &plan.shape, h, 60) > 0.8);
    }
    assert_true(run_steps(&r, 40).loss < 0.3); /* it learns as others do */
    quire_trainer_destroy(r.trainer);
}

/* Layers above the matching one may share, or lie between the two. */
static void test_shift_heads_of_schemes(void **state)
{
    static const struct {
        const char *scheme;
        int rc;
    } cases[] = { { "cla2", QUIRE_OK },
                  { "yoco", QUIRE_OK },
                  { "fusedkv", QUIRE_OK },
                  { "fusedkv-lite", QUIRE_OK },
                  { "yoco++", QUIRE_INVAL } };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        quire_train_plan plan = small_plan("mha");
        run r;

        plan.shape.n_layer = 4;
        assert_int_equal(quire_train_scheme_set(&plan.shape, cases[i].scheme, NULL), QUIRE_OK);
        plan.has_shift_heads = true;
        plan.shape.has_qk_norm = false;
        assert_int_equal(quire_trainer_create(&r.trainer, &plan, NULL), cases[i].rc);
        if (cases[i].rc == QUIRE_OK) {
            quire_trainer_destroy(r.trainer);
        }
    }
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "%s/run.checkpoint", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest),       cmocka_unit_test(test_chance),
        cmocka_unit_test(test_masters),       cmocka_unit_test(test_products),
        cmocka_unit_test(test_other_masters), cmocka_unit_test(test_level),
        cmocka_unit_test(test_shift_heads),   cmocka_unit_test(test_shift_heads_of_schemes),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
