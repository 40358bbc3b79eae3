/* test_train_taught.c - models with a teacher: gradients of the divergence, of hidden states and of
 * both against central finite differences in double precision; teachers that are refused.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_kit.h"
#include "rounds.h"

#include <math.h>
#include <string.h>

typedef struct model_value {
    quire_f64_pass *pass;
    double *parameters;
} model_value;

/* A student and its teacher, of other sizes and another map. */
typedef struct taught_value {
    model_value m;
    quire_f64_lesson lesson;
    double *scratch; /* gradients that do not count; NULL without a weight of attention */
} taught_value;

static double taught_loss(void *ctx)
{
    taught_value *t = ctx;
    double share = t->lesson.share;
    double sum = (1 - share) * quire_f64_pass_run_taught(t->m.pass, t->m.parameters, &batch,
                                                         &t->lesson, 0, t->scratch);

    for (uint32_t i = 0; i < TOKENS; i++) {
        sum += share * quire_f64_pass_divergences(t->lesson.teacher)[i];
        sum += t->lesson.hidden * quire_f64_pass_distances(t->lesson.teacher)[i];
    }
    return 0.5 * (sum + t->lesson.attention * quire_f64_pass_attentions(t->lesson.teacher));
}

static quire_f64_pass *open_teacher(const quire_train_shape *s, const quire_f64_pass *taught,
                                    bool keeps_hidden)
{
    quire_f64_pass_options options = options_of(s, taught);
    quire_error err = QUIRE_ERROR_INIT;
    quire_f64_pass *pass = NULL;

    options.keeps_hidden = keeps_hidden;
    options.keeps_attention = keeps_hidden;
    if (quire_f64_pass_create(&pass, &options, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return pass;
}

static void test_taught(void **state)
{
    static const char *const schemes[] = { "mha", "cla2", "fusedkv" };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        quire_train_shape s = small_shape("fusedkv-lite", 2),
                          of_teacher = small_shape(schemes[i], 2);
        taught_value t = { .m.pass = open_pass(&s), .lesson.share = 0.3 };
        const quire_train_layout *layout = quire_f64_pass_layout(t.m.pass);
        double *gradients = calloc(layout->n_parameters, sizeof(*gradients)), *theirs;
        quire_f64_pass *alone;

        assert_non_null(gradients);
        of_teacher.d_ff = 8;
        of_teacher.has_qk_norm = i > 0;
        fill_batch();
        t.m.parameters = random_parameters(layout);
        t.lesson.teacher = open_teacher(&of_teacher, t.m.pass, false);
        theirs = random_parameters(quire_f64_pass_layout(t.lesson.teacher));
        t.lesson.parameters = theirs;
        (void)quire_f64_pass_run_taught(t.m.pass, t.m.parameters, &batch, &t.lesson, 0.5,
                                        gradients);
        assert_int_equal(train_wrong_gradients("taught", taught_loss, &t, t.m.parameters, gradients,
                                               layout->n_parameters, TEST_STRIDE(11)),
                         0);
        /* A teacher with little memory gives the predictions of a pass of its own. */
        alone = open_pass(&of_teacher);
        quire_f64_pass_destroy(t.lesson.teacher);
        t.lesson.teacher = open_teacher(&of_teacher, alone, false);
        (void)quire_f64_pass_run_taught(alone, theirs, &batch, &t.lesson, 0, NULL);
        for (uint32_t k = 0; k < TOKENS; k++) {
            assert_true(fabs(quire_f64_pass_divergences(t.lesson.teacher)[k]) < 1e-12);
        }
        quire_f64_pass_destroy(t.lesson.teacher);
        quire_f64_pass_destroy(alone);
        quire_f64_pass_destroy(t.m.pass);
        free(t.m.parameters);
        free(theirs);
        free(gradients);
    }
}

/* Gradients with hidden states, for maps whose readers begin in the middle, at layer 1 with stored
 * layers between, and at the top alone; with the predictions and without. */
static void test_hidden(void **state)
{
    static const char *const schemes[] = { "fusedkv", "cla2", "mha" };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        quire_train_shape s = small_shape(schemes[i], 2), of_teacher = small_shape("mha", 2);
        taught_value t = { .lesson = { .share = i == 0 ? 0 : 0.3, .hidden = 0.8 } };
        double *gradients, *theirs;
        size_t n;

        if (i == 2) {
            s.source_v[3][0] = 1;
        }
        of_teacher.d_ff = 8;
        of_teacher.has_qk_norm = true;
        t.m.pass = open_pass(&s);
        n = quire_f64_pass_layout(t.m.pass)->n_parameters;
        gradients = calloc(n, sizeof(*gradients));
        assert_non_null(gradients);
        fill_batch();
        t.m.parameters = random_parameters(quire_f64_pass_layout(t.m.pass));
        t.lesson.teacher = open_teacher(&of_teacher, t.m.pass, true);
        theirs = random_parameters(quire_f64_pass_layout(t.lesson.teacher));
        t.lesson.parameters = theirs;
        (void)quire_f64_pass_run_taught(t.m.pass, t.m.parameters, &batch, &t.lesson, 0.5,
                                        gradients);
        assert_true(quire_f64_pass_distances(t.lesson.teacher)[2] > 0);
        assert_true(quire_f64_pass_distances(t.lesson.teacher)[3] == 0);
        assert_int_equal(train_wrong_gradients(schemes[i], taught_loss, &t, t.m.parameters,
                                               gradients, n, TEST_STRIDE(11)),
                         0);
        quire_f64_pass_destroy(t.lesson.teacher);
        quire_f64_pass_destroy(t.m.pass);
        free(t.m.parameters);
        free(theirs);
        free(gradients);
    }
}

/* Gradients with attention, with and without hidden states. Teachers have other numbers of KV
 * heads, or read others' K with gates. */
static void test_attention(void **state)
{
    static const char *const schemes[][2] = { { "fusedkv-lite", "mha" },
                                              { "cla2", "mqa" },
                                              { "fusedkv", "fusedkv" } };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        quire_train_shape s = small_shape(schemes[i][0], 2);
        quire_train_shape of_teacher = small_shape(schemes[i][1], i == 1 ? 1 : 2);
        taught_value t = { .lesson = { .share = 0.3, .hidden = i == 0 ? 0 : 0.8, .attention = 5 } };
        double *gradients, *theirs;
        size_t n;

        of_teacher.has_qk_norm = i == 2;
        t.m.pass = open_pass(&s);
        n = quire_f64_pass_layout(t.m.pass)->n_parameters;
        gradients = calloc(n, sizeof(*gradients));
        t.scratch = calloc(n, sizeof(*t.scratch));
        assert_true(gradients != NULL && t.scratch != NULL);
        fill_batch();
        t.m.parameters = random_parameters(quire_f64_pass_layout(t.m.pass));
        t.lesson.teacher = open_teacher(&of_teacher, t.m.pass, true);
        theirs = random_parameters(quire_f64_pass_layout(t.lesson.teacher));
        t.lesson.parameters = theirs;
        (void)quire_f64_pass_run_taught(t.m.pass, t.m.parameters, &batch, &t.lesson, 0.5,
                                        gradients);
        assert_true(quire_f64_pass_attentions(t.lesson.teacher) > 0.1);
        assert_int_equal(train_wrong_gradients(schemes[i][0], taught_loss, &t, t.m.parameters,
                                               gradients, n, TEST_STRIDE(11)),
                         0);
        quire_f64_pass_destroy(t.lesson.teacher);
        quire_f64_pass_destroy(t.m.pass);
        free(t.m.parameters);
        free(t.scratch);
        free(theirs);
        free(gradients);
    }
}

static double norm_factor(const quire_train_shape *s, const double *x)
{
    double squares = 0;

    for (uint32_t j = 0; j < s->d_model; j++) {
        squares += x[j] * x[j];
    }
    return 1 / sqrt(squares / s->d_model + s->norm_epsilon);
}

/* The stream of a token above a layer without attention; norms have weights of 1. */
static void naive_layer(const quire_train_shape *s, const quire_train_block *b, const double *w,
                        double *x)
{
    double inv = norm_factor(s, x), act[16];

    assert_true(s->d_ff <= 16);
    for (uint32_t i = 0; i < s->d_ff; i++) {
        double gate = 0, up = 0;

        for (uint32_t j = 0; j < s->d_model; j++) {
            gate += w[b->gate + i * s->d_model + j] * x[j] * inv;
            up += w[b->up + i * s->d_model + j] * x[j] * inv;
        }
        act[i] = gate / (1 + exp(-gate)) * up;
    }
    for (uint32_t j = 0; j < s->d_model; j++) {
        for (uint32_t i = 0; i < s->d_ff; i++) {
            x[j] += w[b->down + j * s->d_ff + i] * act[i];
        }
    }
}

/* Attention adds nothing, so that streams are those of a short reference. */
static void silence_attention(const quire_train_shape *s, const quire_train_layout *layout,
                              double *w)
{
    for (uint32_t i = 0; i < s->n_layer; i++) {
        const quire_train_block *b = &layout->blocks[i];

        memset(w + b->out, 0, (size_t)s->d_model * s->n_head * s->d_head * sizeof(*w));
        for (uint32_t j = 0; j < s->d_model; j++) {
            w[b->ffn_norm + j] = 1;
        }
    }
}

/* Distances are the means of a reference's over the layers from the first reader on. */
static void check_hidden_reference(const char *scheme, uint32_t first_reader)
{
    quire_train_shape shapes[2] = { small_shape(scheme, 2), small_shape("mha", 2) };
    quire_f64_lesson lesson = { .hidden = 1 };
    const quire_train_layout *layouts[2];
    quire_f64_pass *passes[2];
    double *w[2];

    shapes[1].d_ff = 8;
    fill_batch();
    passes[0] = open_pass(&shapes[0]);
    passes[1] = open_teacher(&shapes[1], passes[0], true);
    for (uint32_t k = 0; k < 2; k++) {
        layouts[k] = quire_f64_pass_layout(passes[k]);
        w[k] = random_parameters(layouts[k]);
        silence_attention(&shapes[k], layouts[k], w[k]);
    }
    lesson.teacher = passes[1];
    lesson.parameters = w[1];
    (void)quire_f64_pass_run_taught(passes[0], w[0], &batch, &lesson, 1, NULL);
    for (uint32_t i = 0; i < TOKENS; i++) {
        double x[2][10], want = 0;

        for (uint32_t k = 0; k < 2; k++) {
            memcpy(x[k], w[k] + layouts[k]->embedding + (size_t)tokens[i] * 10, sizeof(x[k]));
        }
        for (uint32_t layer = 0; layer < 4; layer++) {
            double above = 0, below = 0;

            for (uint32_t k = 0; k < 2; k++) {
                naive_layer(&shapes[k], &layouts[k]->blocks[layer], w[k], x[k]);
            }
            for (uint32_t j = 0; j < 10; j++) {
                above += (x[0][j] - x[1][j]) * (x[0][j] - x[1][j]);
                below += x[1][j] * x[1][j];
            }
            want += layer >= first_reader ? above / below / (4 - first_reader) : 0;
        }
        want = targets[i] == QUIRE_TRAIN_NO_TARGET ? 0 : want;
        assert_true(fabs(quire_f64_pass_distances(passes[1])[i] - want) <= 1e-10 * (1 + want));
    }
    quire_f64_pass_destroy(passes[1]);
    quire_f64_pass_destroy(passes[0]);
    free(w[0]);
    free(w[1]);
}

static void test_hidden_reference(void **state)
{
    (void)state;
    check_hidden_reference("fusedkv-lite", 2);
    check_hidden_reference("cla2", 1);
}

/* Hidden states of another width or number of layers, or of a model without readers; attention
 * likewise, and of other heads. */
static void test_refused_hidden(void **state)
{
    static const char *const texts[] = { "4 layers of width 12, not 4 of 10",
                                         "3 layers of width 10, not 4 of 10",
                                         "layers read K or V of others, not one of mha",
                                         "attention of a teacher with 4 layers of 4 heads, not 4 "
                                         "of 2",
                                         "attention of a teacher with 3 layers of 2 heads, not 4 "
                                         "of 2",
                                         "distillation of attention needs a model in which" };

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        quire_train_shape s = small_shape(i % 3 < 2 ? "yoco" : "mha", 2);
        quire_train_shape other = small_shape("mha", 2);
        quire_f64_pass *taught = open_pass(&s), *pass = NULL;
        quire_f64_pass_options options = options_of(&other, taught);
        quire_error err = QUIRE_ERROR_INIT;

        options.keeps_hidden = i < 3;
        options.keeps_attention = i >= 3;
        other.d_model += i == 0 ? 2 : 0;
        other.n_layer -= i % 3 == 1;
        other.n_head += i == 3 ? 2 : 0;
        assert_int_equal(quire_f64_pass_create(&pass, &options, &err), QUIRE_INVAL);
        if (strstr(err.message, texts[i]) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", err.message, texts[i]);
        }
        quire_f64_pass_destroy(taught);
    }
}

/* A teacher of another vocabulary or batch. */
static void test_refused_teachers(void **state)
{
    quire_train_shape s = small_shape("mha", 2);
    quire_f64_pass *taught = open_pass(&s), *pass = NULL;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        quire_train_shape other = s;
        quire_f64_pass_options options = options_of(&other, taught);

        options.n_rows += i == 1;
        options.n_tokens += i == 2;
        other.n_vocab += i == 0;
        assert_int_equal(quire_f64_pass_create(&pass, &options, &err), QUIRE_INVAL);
        assert_non_null(strstr(err.message, "a teacher of "));
    }
    quire_f64_pass_destroy(taught);
}

static int setup(void **state)
{
    (void)state;
    rng = test_rng(19);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taught),           cmocka_unit_test(test_refused_teachers),
        cmocka_unit_test(test_hidden),           cmocka_unit_test(test_attention),
        cmocka_unit_test(test_hidden_reference), cmocka_unit_test(test_refused_hidden),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
