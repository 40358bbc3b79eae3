/* test_train_step.c - a step of training against its definition: AdamW in double precision on the
 * gradients of its batches, with clipping, and with decay of matrices alone; batches that add up; a
 * row of the longest context.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "rounds.h"
#include "run_kit.h"
#include "seed.h"
#include "train_kit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 6u

/* A run's batches and moments once more, outside of the trainer. */
typedef struct mirror {
    counting docs;
    quire_doc_reader reader;
    quire_packer packer;
    quire_f32_pass *pass;
    size_t n;
    float *before, *gradients; /* [n] */
    double *m, *v;             /* [n] */
} mirror;

static void mirror_open(mirror *r, const quire_train_plan *plan)
{
    quire_f32_pass_options options = {
        .shape = &plan->shape, .n_rows = ROWS, .n_tokens = LENGTH, .n_threads = 1
    };

    memset(r, 0, sizeof(*r));
    r->reader = reader_of(&r->docs);
    quire_packer_init(&r->packer, &r->reader);
    assert_int_equal(quire_f32_pass_create(&r->pass, &options, NULL), QUIRE_OK);
    r->n = quire_f32_pass_layout(r->pass)->n_parameters;
    r->before = calloc(r->n, sizeof(float));
    r->gradients = calloc(r->n, sizeof(float));
    r->m = calloc(r->n, sizeof(double));
    r->v = calloc(r->n, sizeof(double));
    assert_true(r->before != NULL && r->gradients != NULL && r->m != NULL && r->v != NULL);
}

static void mirror_close(mirror *r)
{
    quire_f32_pass_destroy(r->pass);
    free(r->before);
    free(r->gradients);
    free(r->m);
    free(r->v);
}

/* Gradients of the mean loss of the next n batches; returns their norm. */
static double gradients_of(mirror *r, uint32_t n_batches)
{
    packed batches[4];
    uint32_t n_targets = 0;
    double squares = 0;

    assert_in_range(n_batches, 1, 4);
    for (uint32_t i = 0; i < n_batches; i++) {
        fill(&r->packer, &batches[i]);
        n_targets += batches[i].p.n_targets;
    }
    memset(r->gradients, 0, r->n * sizeof(float));
    for (uint32_t i = 0; i < n_batches; i++) {
        const quire_train_batch batch = { batches[i].tokens, batches[i].targets, batches[i].first };

        (void)quire_f32_pass_run(r->pass, r->before, &batch, 1 / (float)n_targets, r->gradients);
    }
    for (size_t i = 0; i < r->n; i++) {
        squares += (double)r->gradients[i] * (double)r->gradients[i];
    }
    return sqrt(squares);
}

static bool decays(const char *name)
{
    return strstr(name, "norm") == NULL && strstr(name, "attn_k_gate") == NULL &&
           strstr(name, "attn_v_gate") == NULL && strstr(name, "mix") == NULL &&
           strstr(name, "bias") == NULL;
}

/* Parameters after step t, from 1, by the definition: Loshchilov, Hutter, "Decoupled weight decay
 * regularization", algorithm 2. */
static void check_step(mirror *r, const quire_train_plan *p, uint32_t t, double norm,
                       const float *after)
{
    const quire_train_layout *layout = quire_f32_pass_layout(r->pass);
    const double rate = quire_train_rate(p, t - 1);
    const double scale = p->clip > 0 && norm > p->clip ? p->clip / norm : 1;

    for (uint32_t k = 0; k < layout->n_tensors; k++) {
        const quire_train_tensor *tensor = &layout->tensors[k];
        const double decay = decays(tensor->name) ? p->decay : 0;
        const size_t end = tensor->at + (size_t)tensor->n_rows * tensor->n_cols;

        for (size_t i = tensor->at; i < end; i++) {
            const double g = scale * (double)r->gradients[i], was = (double)r->before[i];
            double want;

            r->m[i] = p->beta1 * r->m[i] + (1 - p->beta1) * g;
            r->v[i] = p->beta2 * r->v[i] + (1 - p->beta2) * g * g;
            want = r->m[i] / (1 - pow(p->beta1, t)) /
                   (sqrt(r->v[i] / (1 - pow(p->beta2, t))) + p->epsilon);
            want = was - rate * (want + decay * was);
            if (fabs((double)after[i] - want) > 1e-4 * rate + 2e-7 * fabs(was)) {
                fail_msg("step %u, %s[%zu]: %.9g, by the definition %.9g", t, tensor->name,
                         i - tensor->at, (double)after[i], want);
            }
        }
    }
}

/* The largest norm of a run's gradients. */
static double check_run(const quire_train_plan *plan)
{
    double most = 0;
    mirror mine;
    run r;

    run_open(&r, plan);
    mirror_open(&mine, plan);
    for (uint32_t t = 1; t <= STEPS; t++) {
        quire_train_report report;
        double norm;

        memcpy(mine.before, quire_trainer_parameters(r.trainer), parameters_bytes(&r));
        norm = gradients_of(&mine, plan->n_accumulate);
        report = run_steps(&r, 1);
        assert_true(fabs(report.gradient_norm / norm - 1) < 1e-5);
        assert_true(report.rate == quire_train_rate(plan, t - 1));
        check_step(&mine, plan, t, norm, quire_trainer_parameters(r.trainer));
        most = norm > most ? norm : most;
    }
    mirror_close(&mine);
    quire_trainer_destroy(r.trainer);
    return most;
}

/* Without clipping, and with a clip that no gradient is below: gradients of any norm count alike.
 */
static void test_definition(void **state)
{
    static const char *const schemes[] = { "mha", "fusedkv", "yoco++" };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        quire_train_plan plan = small_plan("mha");

        plan.shape.n_layer = 4;
        assert_int_equal(quire_train_scheme_set(&plan.shape, schemes[i], NULL), QUIRE_OK);
        plan.shape.has_qkv_bias = i > 0;
        plan.n_warmup = 2;
        plan.decay = 0.3;
        plan.clip = 0;
        plan.n_accumulate = 1 + (uint32_t)i;
        assert_true(check_run(&plan) > 0.1);
        plan.clip = 0.01;
        assert_true(check_run(&plan) > plan.clip);
        plan.clip = 1e6;
        (void)check_run(&plan);
    }
}

/* Three batches of a step are one batch of three times the rows. */
static void test_accumulated(void **state)
{
    quire_train_plan plan = small_plan("fusedkv-lite-learnable"), whole = plan;
    run parts, one;

    (void)state;
    plan.n_accumulate = 3;
    whole.n_accumulate = 1;
    whole.n_rows = 3 * plan.n_rows;
    run_open(&parts, &plan);
    run_open(&one, &whole);
    for (uint32_t i = 0; i < STEPS; i++) {
        const quire_train_report a = run_steps(&parts, 1), b = run_steps(&one, 1);

        assert_true(fabs(a.loss / b.loss - 1) < 1e-4);
        assert_true(fabs(a.gradient_norm / b.gradient_norm - 1) < 1e-3);
        assert_int_equal(a.n_tokens, b.n_tokens);
    }
    quire_trainer_destroy(parts.trainer);
    quire_trainer_destroy(one.trainer);
}

/* ---- the longest context ---- */

#define LONG TEST_ROUNDS(8192u, 700u) /* tokens of a row; quire train has at most 8,192 */

typedef struct long_row {
    quire_f64_pass *pass;
    double *parameters, *direction;
    quire_train_batch batch;
} long_row;

static double long_loss(const long_row *r)
{
    return quire_f64_pass_run(r->pass, r->parameters, &r->batch, 0, NULL) / LONG;
}

/* The slope of the mean loss along the direction, by a central difference. */
static double long_slope(long_row *r, size_t n)
{
    double above, below;

    for (size_t i = 0; i < n; i++) {
        r->parameters[i] += TRAIN_STEP * r->direction[i];
    }
    above = long_loss(r);
    for (size_t i = 0; i < n; i++) {
        r->parameters[i] -= 2 * TRAIN_STEP * r->direction[i];
    }
    below = long_loss(r);
    for (size_t i = 0; i < n; i++) {
        r->parameters[i] += TRAIN_STEP * r->direction[i];
    }
    return (above - below) / (2 * TRAIN_STEP);
}

/* One document of all tokens: its gradient is the slope in a random direction, and the last token's
 * loss depends on the first token. */
static void test_longest_row(void **state)
{
    quire_train_shape shape = { .n_vocab = VOCAB,
                                .n_layer = 2,
                                .d_model = 6,
                                .n_head = 1,
                                .n_kv_head = 1,
                                .d_head = 2,
                                .d_ff = 6,
                                .rope_base = 10000,
                                .norm_epsilon = 1e-5 };
    quire_f64_pass_options options = {
        .shape = &shape, .n_rows = 1, .n_tokens = LONG, .n_threads = 2
    };
    int32_t *tokens = calloc((size_t)3 * LONG, sizeof(*tokens));
    quire_rng rng = test_rng(23);
    double *gradients, along = 0, last;
    long_row r;
    size_t n;

    (void)state;
    assert_non_null(tokens);
    assert_int_equal(quire_train_scheme_set(&shape, "fusedkv-lite", NULL), QUIRE_OK);
    assert_int_equal(quire_f64_pass_create(&r.pass, &options, NULL), QUIRE_OK);
    n = quire_f64_pass_layout(r.pass)->n_parameters;
    gradients = calloc(n, sizeof(*gradients));
    r.parameters = calloc(n, sizeof(*r.parameters));
    r.direction = calloc(n, sizeof(*r.direction));
    assert_true(gradients != NULL && r.parameters != NULL && r.direction != NULL);
    train_fill(&rng, r.parameters, n, 0.5);
    train_fill(&rng, r.direction, n, 1);
    for (uint32_t i = 0; i < 2 * LONG; i++) { /* tokens and targets; all begin at token 0 */
        tokens[i] = (int32_t)quire_rng_below(&rng, VOCAB);
    }
    r.batch = (quire_train_batch){ tokens, tokens + LONG, tokens + 2 * (size_t)LONG };
    (void)quire_f64_pass_run(r.pass, r.parameters, &r.batch, 1.0 / LONG, gradients);
    last = quire_f64_pass_losses(r.pass)[LONG - 1];
    for (size_t i = 0; i < n; i++) {
        along += gradients[i] * r.direction[i];
    }
    assert_true(fabs(long_slope(&r, n) - along) < 1e-6 * (1 + fabs(along)));
    tokens[0] = (tokens[0] + 1) % (int32_t)VOCAB;
    (void)long_loss(&r);
    assert_true(quire_f64_pass_losses(r.pass)[LONG - 1] != last);
    free(tokens);
    free(gradients);
    free(r.parameters);
    free(r.direction);
    quire_f64_pass_destroy(r.pass);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_accumulated),
        cmocka_unit_test(test_longest_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
