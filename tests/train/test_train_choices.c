/* test_train_choices.c - the loss among a part of the vocabulary: losses, divergences and gradients
 * are those of a model that has no other tokens; turns of other tokens; targets that are no choice;
 * threads; choices that are refused.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "seed.h"
#include "train/model_pass.h"
#include "train_kit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS    2u
#define LENGTH  7u
#define TOKENS  (ROWS * LENGTH)
#define VOCAB   13u
#define CHOICES 5u

static quire_rng rng;
static const int32_t choices[CHOICES] = { 0, 3, 4, 9, 12 };

static quire_train_shape small_shape(const char *scheme, bool is_tied)
{
    quire_train_shape s = { .n_vocab = VOCAB,
                            .n_layer = 4,
                            .d_model = 10,
                            .n_head = 2,
                            .n_kv_head = 2,
                            .d_head = 6,
                            .d_ff = 9,
                            .rope_base = 10000,
                            .norm_epsilon = 1e-3,
                            .is_tied = is_tied };

    assert_int_equal(quire_train_scheme_set(&s, scheme, NULL), QUIRE_OK);
    return s;
}

/* A batch in tokens of the whole vocabulary, and the same one in places among the choices. */
typedef struct two_batches {
    int32_t tokens[2][TOKENS];
    int32_t targets[2][TOKENS];
    int32_t first[TOKENS];
} two_batches;

static void fill(two_batches *b)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        b->tokens[1][i] = (int32_t)quire_rng_below(&rng, CHOICES);
        b->targets[1][i] = (int32_t)quire_rng_below(&rng, CHOICES);
        b->tokens[0][i] = choices[b->tokens[1][i]];
        b->targets[0][i] = choices[b->targets[1][i]];
        b->first[i] = i % LENGTH < 3 ? 0 : 3;
    }
    b->targets[0][2] = b->targets[1][2] = QUIRE_TRAIN_NO_TARGET;
    b->targets[0][5] = 7; /* no choice */
    b->targets[1][5] = QUIRE_TRAIN_NO_TARGET;
}

static quire_train_batch batch_of(const two_batches *b, uint32_t i)
{
    return (quire_train_batch){ b->tokens[i], b->targets[i], b->first };
}

/* A model with all tokens and choices among them [0], and one that has the choices alone [1]; each
 * with a teacher. */
typedef struct two_models {
    quire_f64_pass *passes[2];
    quire_f64_pass *teachers[2];
    double *parameters[2];
    double *theirs[2];
    double *gradients[2];
} two_models;

static quire_f64_pass *open_pass(const quire_train_shape *s, const quire_f64_pass *taught,
                                 bool has_choices, uint32_t n_turns)
{
    quire_f64_pass_options options = { .shape = s,
                                       .n_rows = ROWS,
                                       .n_tokens = LENGTH,
                                       .n_threads = 1,
                                       .taught = taught,
                                       .choices = has_choices ? choices : NULL,
                                       .n_choices = has_choices ? CHOICES : 0,
                                       .n_turns = n_turns };
    quire_f64_pass *pass = NULL;
    quire_error err = QUIRE_ERROR_INIT;

    if (quire_f64_pass_create(&pass, &options, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return pass;
}

static double *numbers(const quire_f64_pass *pass, double scale)
{
    size_t n = quire_f64_pass_layout(pass)->n_parameters;
    double *x = calloc(n, sizeof(*x));

    assert_non_null(x);
    train_fill(&rng, x, n, scale);
    return x;
}

static bool is_table(const quire_train_layout *l, const quire_train_tensor *t)
{
    return t->at == l->embedding || t->at == l->output;
}

/* The numbers of the model with fewer tokens, from those of the other one. */
static void cut_vocabulary(const quire_f64_pass *const passes[2], const double *from, double *to)
{
    const quire_train_layout *all = quire_f64_pass_layout(passes[0]);
    const quire_train_layout *few = quire_f64_pass_layout(passes[1]);

    assert_int_equal(all->n_tensors, few->n_tensors);
    for (uint32_t i = 0; i < all->n_tensors; i++) {
        const quire_train_tensor *a = &all->tensors[i], *b = &few->tensors[i];
        size_t d = a->n_cols;

        for (uint32_t row = 0; row < b->n_rows; row++) {
            size_t source = is_table(all, a) ? (size_t)choices[row] : row;

            memcpy(to + b->at + row * d, from + a->at + source * d, d * sizeof(*to));
        }
    }
}

static void two_open(two_models *m, bool is_tied)
{
    quire_train_shape s = small_shape("fusedkv-lite", is_tied), t = small_shape("mha", is_tied);

    t.d_ff = 8;
    for (uint32_t i = 0; i < 2; i++) {
        s.n_vocab = t.n_vocab = i == 0 ? VOCAB : CHOICES;
        m->passes[i] = open_pass(&s, NULL, i == 0, 0);
        m->teachers[i] = open_pass(&t, m->passes[i], false, 0);
        m->parameters[i] = numbers(m->passes[i], 0.5);
        m->theirs[i] = numbers(m->teachers[i], 0.5);
        m->gradients[i] = numbers(m->passes[i], 0);
    }
    cut_vocabulary((const quire_f64_pass *const *)m->passes, m->parameters[0], m->parameters[1]);
    cut_vocabulary((const quire_f64_pass *const *)m->teachers, m->theirs[0], m->theirs[1]);
}

static void two_close(two_models *m)
{
    for (uint32_t i = 0; i < 2; i++) {
        quire_f64_pass_destroy(m->teachers[i]);
        quire_f64_pass_destroy(m->passes[i]);
        free(m->parameters[i]);
        free(m->theirs[i]);
        free(m->gradients[i]);
    }
}

/* Gradients of the choices' rows are those of the smaller model; other rows have none. */
static void check_gradients(const two_models *m)
{
    const quire_train_layout *all = quire_f64_pass_layout(m->passes[0]);
    size_t n = quire_f64_pass_layout(m->passes[1])->n_parameters;
    double *cut = calloc(n, sizeof(*cut));
    double sums[2] = { 0, 0 };

    assert_non_null(cut);
    cut_vocabulary((const quire_f64_pass *const *)m->passes, m->gradients[0], cut);
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs(cut[i] - m->gradients[1][i]) < 1e-12 * (1 + fabs(cut[i])));
        sums[1] += fabs(cut[i]);
    }
    for (size_t i = 0; i < all->n_parameters; i++) {
        sums[0] += fabs(m->gradients[0][i]);
    }
    assert_true(sums[1] > 1);
    assert_true(fabs(sums[0] / sums[1] - 1) < 1e-12);
    free(cut);
}

static void check_taught(bool is_tied, double share)
{
    two_batches b;
    two_models m;
    double sums[2];

    fill(&b);
    two_open(&m, is_tied);
    for (uint32_t i = 0; i < 2; i++) {
        const quire_f64_lesson lesson = { .teacher = m.teachers[i],
                                          .parameters = m.theirs[i],
                                          .share = share };
        const quire_train_batch batch = batch_of(&b, i);

        sums[i] = share < 0 ? quire_f64_pass_run(m.passes[i], m.parameters[i], &batch, 0.5,
                                                 m.gradients[i])
                            : quire_f64_pass_run_taught(m.passes[i], m.parameters[i], &batch,
                                                        &lesson, 0.5, m.gradients[i]);
    }
    assert_true(fabs(sums[0] / sums[1] - 1) < 1e-12);
    for (uint32_t i = 0; i < TOKENS; i++) {
        bool counts = b.targets[1][i] != QUIRE_TRAIN_NO_TARGET;
        double loss = quire_f64_pass_losses(m.passes[0])[i];
        double divergence = quire_f64_pass_divergences(m.teachers[0])[i];

        assert_true(counts ? loss > 0 : loss == 0);
        assert_true(fabs(loss - quire_f64_pass_losses(m.passes[1])[i]) < 1e-12);
        assert_true(fabs(divergence - quire_f64_pass_divergences(m.teachers[1])[i]) < 1e-12);
    }
    check_gradients(&m);
    two_close(&m);
}

static void test_smaller_model(void **state)
{
    (void)state;
    for (uint32_t is_tied = 0; is_tied < 2; is_tied++) {
        check_taught(is_tied > 0, -1);
        check_taught(is_tied > 0, 0);
        check_taught(is_tied > 0, 0.3);
    }
}

/* Without gradients all tokens count. */
static void test_all_without_gradients(void **state)
{
    quire_train_shape s = small_shape("fusedkv", false);
    quire_f64_pass *among = open_pass(&s, NULL, true, 0), *plain = open_pass(&s, NULL, false, 0);
    double *parameters = numbers(among, 0.5), *gradients = numbers(among, 0);
    double all, few;
    two_batches b;
    quire_train_batch batch;

    (void)state;
    fill(&b);
    batch = batch_of(&b, 0);
    all = quire_f64_pass_run(plain, parameters, &batch, 1, NULL);
    assert_true(quire_f64_pass_run(among, parameters, &batch, 1, NULL) == all);
    assert_true(quire_f64_pass_losses(among)[5] > 0);
    few = quire_f64_pass_run(among, parameters, &batch, 1, gradients);
    assert_true(few > 0 && few < 0.95 * all);
    free(parameters);
    free(gradients);
    quire_f64_pass_destroy(among);
    quire_f64_pass_destroy(plain);
}

/* A taught pass with choices and turns. */
typedef struct turning {
    quire_f64_pass *pass;
    quire_f64_pass *teacher;
    double *gradients;
} turning;

static void turning_open(turning *t, const quire_train_shape *s, bool has_choices, uint32_t n_turns)
{
    t->pass = open_pass(s, NULL, has_choices, n_turns);
    t->teacher = open_pass(s, t->pass, false, 0);
    t->gradients = numbers(t->pass, 0);
}

static void turning_run(turning *t, const double *parameters, const double *theirs,
                        const quire_train_batch *batch)
{
    const quire_f64_lesson lesson = { .teacher = t->teacher, .parameters = theirs, .share = 0.3 };

    (void)quire_f64_pass_run_taught(t->pass, parameters, batch, &lesson, 1, t->gradients);
}

static void turning_close(turning *t)
{
    quire_f64_pass_destroy(t->teacher);
    quire_f64_pass_destroy(t->pass);
    free(t->gradients);
}

/* With one turn all other tokens are predicted each time: losses, divergences and gradients are
 * those of a pass without choices. */
static void test_one_turn(void **state)
{
    quire_train_shape s = small_shape("fusedkv-lite", true);
    turning plain, one;
    double *parameters, *theirs;
    quire_train_batch batch;
    two_batches b;

    (void)state;
    fill(&b);
    b.targets[0][5] = QUIRE_TRAIN_NO_TARGET;
    batch = batch_of(&b, 0);
    turning_open(&plain, &s, false, 0);
    turning_open(&one, &s, true, 1);
    parameters = numbers(plain.pass, 0.5);
    theirs = numbers(plain.pass, 0.5);
    turning_run(&plain, parameters, theirs, &batch);
    turning_run(&one, parameters, theirs, &batch);
    for (uint32_t i = 0; i < TOKENS; i++) {
        assert_true(fabs(quire_f64_pass_losses(plain.pass)[i] -
                         quire_f64_pass_losses(one.pass)[i]) < 1e-12);
        assert_true(fabs(quire_f64_pass_divergences(plain.teacher)[i] -
                         quire_f64_pass_divergences(one.teacher)[i]) < 1e-12);
    }
    for (size_t i = 0; i < quire_f64_pass_layout(plain.pass)->n_parameters; i++) {
        assert_true(fabs(plain.gradients[i] - one.gradients[i]) < 1e-12);
    }
    turning_close(&plain);
    turning_close(&one);
    free(parameters);
    free(theirs);
}

/* exp(loss) is the sum of softmax divided by the target's term, and the mean of these sums over all
 * turns is the sum over the whole vocabulary. A turn of a higher number is one of these. */
static void test_turns(void **state)
{
    enum {
        TURNS = 3
    };
    quire_train_shape s = small_shape("fusedkv", false);
    quire_f64_pass *plain = open_pass(&s, NULL, false, 0),
                   *among = open_pass(&s, NULL, true, TURNS);
    double *parameters = numbers(plain, 0.5), *gradients = numbers(plain, 0);
    double means[TOKENS] = { 0 }, first[TOKENS];
    quire_train_batch batch;
    two_batches b;

    (void)state;
    fill(&b);
    b.targets[0][5] = QUIRE_TRAIN_NO_TARGET;
    batch = batch_of(&b, 0);
    (void)quire_f64_pass_run(plain, parameters, &batch, 1, gradients);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        quire_f64_pass_turn(among, turn);
        (void)quire_f64_pass_run(among, parameters, &batch, 1, gradients);
        for (uint32_t i = 0; i < TOKENS; i++) {
            means[i] += exp(quire_f64_pass_losses(among)[i]) / TURNS;
        }
        if (turn == 0) {
            memcpy(first, quire_f64_pass_losses(among), sizeof(first));
        }
    }
    for (uint32_t i = 0; i < TOKENS; i++) {
        assert_true(fabs(log(means[i]) - quire_f64_pass_losses(plain)[i]) < 1e-12);
    }
    assert_true(memcmp(first, quire_f64_pass_losses(among), sizeof(first)) != 0);
    quire_f64_pass_turn(among, TURNS);
    (void)quire_f64_pass_run(among, parameters, &batch, 1, gradients);
    assert_memory_equal(first, quire_f64_pass_losses(among), sizeof(first));
    free(parameters);
    free(gradients);
    quire_f64_pass_destroy(plain);
    quire_f64_pass_destroy(among);
}

/* Single precision: near double precision, and the same bits for any number of threads. */
static void test_single(void **state)
{
    quire_train_shape s = small_shape("fusedkv-lite", true);
    quire_f64_pass *wide = open_pass(&s, NULL, true, 3);
    size_t n = quire_f64_pass_layout(wide)->n_parameters;
    double *p64 = numbers(wide, 0.5), *g64 = numbers(wide, 0);
    float *parameters = calloc(n, sizeof(float));
    float *gradients[2] = { calloc(n, sizeof(float)), calloc(n, sizeof(float)) };
    two_batches b;
    quire_train_batch batch;
    double loss64;

    (void)state;
    assert_true(parameters != NULL && gradients[0] != NULL && gradients[1] != NULL);
    fill(&b);
    batch = batch_of(&b, 0);
    for (size_t i = 0; i < n; i++) {
        parameters[i] = (float)p64[i];
        p64[i] = (double)parameters[i];
    }
    loss64 = quire_f64_pass_run(wide, p64, &batch, 1, g64);
    for (uint32_t i = 0; i < 2; i++) {
        quire_f32_pass_options options = { .shape = &s,
                                           .n_rows = ROWS,
                                           .n_tokens = LENGTH,
                                           .n_threads = 1 + 2 * i,
                                           .choices = choices,
                                           .n_choices = CHOICES,
                                           .n_turns = 3 };
        quire_f32_pass *pass = NULL;

        assert_int_equal(quire_f32_pass_create(&pass, &options, NULL), QUIRE_OK);
        assert_true(fabs(quire_f32_pass_run(pass, parameters, &batch, 1, gradients[i]) / loss64 -
                         1) < 1e-4);
        quire_f32_pass_destroy(pass);
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs((double)gradients[0][i] - g64[i]) < 1e-4 * (1 + fabs(g64[i])));
    }
    assert_memory_equal(gradients[0], gradients[1], n * sizeof(float));
    free(parameters);
    free(gradients[0]);
    free(gradients[1]);
    free(p64);
    free(g64);
    quire_f64_pass_destroy(wide);
}

static void test_refused(void **state)
{
    static const struct {
        int32_t choices[2];
        const char *text;
    } cases[] = { { { 3, 3 }, "choice 1 of the predicted tokens is 3" },
                  { { 5, 2 }, "choice 1 of the predicted tokens is 2" },
                  { { -1, 2 }, "choice 0 of the predicted tokens is -1" },
                  { { 2, VOCAB },
                    "choice 1 of the predicted tokens is 13: choices ascend and lie "
                    "below 13" } };
    quire_train_shape s = small_shape("mha", false);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        quire_f64_pass_options options = { .shape = &s,
                                           .n_rows = ROWS,
                                           .n_tokens = LENGTH,
                                           .n_threads = 1,
                                           .choices = cases[i].choices,
                                           .n_choices = 2 };
        quire_f64_pass *pass = NULL;
        quire_error err = QUIRE_ERROR_INIT;

        assert_int_equal(quire_f64_pass_create(&pass, &options, &err), QUIRE_INVAL);
        if (strstr(err.message, cases[i].text) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", err.message, cases[i].text);
        }
    }
}

static int setup(void **state)
{
    (void)state;
    rng = test_rng(23);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smaller_model), cmocka_unit_test(test_all_without_gradients),
        cmocka_unit_test(test_one_turn),      cmocka_unit_test(test_turns),
        cmocka_unit_test(test_single),        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
