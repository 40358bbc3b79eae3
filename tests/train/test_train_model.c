/* test_train_model.c - whole models: the gradient of every parameter against central finite
 * differences in double precision, for every scheme, form of gate and option; single against double
 * precision; documents that do not see each other; maps that are refused.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "rounds.h"
#include "seed.h"
#include "train/model_pass.h"
#include "train_kit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS   2u
#define LENGTH 7u
#define TOKENS (ROWS * LENGTH)
#define VOCAB  13u

static quire_rng rng;

/* A small model of a scheme; sizes differ, so that a mix-up shows. */
static quire_train_shape small_shape(const char *scheme, uint32_t n_kv_head)
{
    quire_train_shape s = { .n_vocab = VOCAB,
                            .n_layer = 4,
                            .d_model = 10,
                            .n_head = 2,
                            .n_kv_head = n_kv_head,
                            .d_head = 6,
                            .d_ff = 9,
                            .rope_base = 10000,
                            .norm_epsilon = 1e-3 };
    quire_error err = QUIRE_ERROR_INIT;

    if (quire_train_scheme_set(&s, scheme, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return s;
}

static int32_t tokens[TOKENS], targets[TOKENS], first[TOKENS];
static const quire_train_batch batch = { tokens, targets, first };

/* Two documents per row, one token without target. */
static void fill_batch(void)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        uint32_t cut = 2 + i / LENGTH;

        tokens[i] = (int32_t)quire_rng_below(&rng, VOCAB);
        targets[i] = (int32_t)quire_rng_below(&rng, VOCAB);
        first[i] = i % LENGTH < cut ? 0 : (int32_t)cut;
    }
    targets[3] = QUIRE_TRAIN_NO_TARGET;
}

typedef struct model_value {
    quire_f64_pass *pass;
    double *parameters;
} model_value;

static double loss_of(void *ctx)
{
    model_value *m = ctx;

    return 0.5 * quire_f64_pass_run(m->pass, m->parameters, &batch, 0, NULL);
}

static quire_f64_pass *open_pass(const quire_train_shape *s)
{
    quire_f64_pass_options options = { s, ROWS, LENGTH, 1, NULL, false };
    quire_error err = QUIRE_ERROR_INIT;
    quire_f64_pass *pass = NULL;

    if (quire_f64_pass_create(&pass, &options, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return pass;
}

/* Larger first weights than training has, so that every gradient is far from zero. */
static double *random_parameters(const quire_train_layout *layout)
{
    double *parameters = calloc(layout->n_parameters, sizeof(*parameters));

    assert_non_null(parameters);
    train_fill(&rng, parameters, layout->n_parameters, 0.5);
    return parameters;
}

static void check_model(const quire_train_shape *s)
{
    model_value m = { .pass = open_pass(s) };
    const quire_train_layout *layout = quire_f64_pass_layout(m.pass);
    double *gradients = calloc(layout->n_parameters, sizeof(*gradients));
    size_t n_wrong = 0;

    assert_non_null(gradients);
    fill_batch();
    m.parameters = random_parameters(layout);
    (void)quire_f64_pass_run(m.pass, m.parameters, &batch, 0.5, gradients);
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const quire_train_tensor *t = &layout->tensors[i];

        n_wrong +=
            train_wrong_gradients(t->name, loss_of, &m, m.parameters + t->at, gradients + t->at,
                                  (size_t)t->n_rows * t->n_cols, TEST_STRIDE(7));
    }
    if (n_wrong > 0) {
        fail_msg("%s: %zu gradients", s->scheme, n_wrong);
    }
    free(gradients);
    free(m.parameters);
    quire_f64_pass_destroy(m.pass);
}

static void test_schemes(void **state)
{
    const char *const *names = quire_train_scheme_names();

    (void)state;
    for (; *names != NULL; names++) {
        bool is_mha = strcmp(*names, "mha") == 0;
        quire_train_shape s = small_shape(*names, is_mha ? 2 : 1);

        check_model(&s);
    }
}

/* A student and its teacher, of other sizes and another map. */
typedef struct taught_value {
    model_value m;
    quire_f64_lesson lesson;
} taught_value;

static double taught_loss(void *ctx)
{
    taught_value *t = ctx;
    double share = t->lesson.share;
    double sum = (1 - share) *
                 quire_f64_pass_run_taught(t->m.pass, t->m.parameters, &batch, &t->lesson, 0, NULL);

    for (uint32_t i = 0; i < TOKENS; i++) {
        sum += share * quire_f64_pass_divergences(t->lesson.teacher)[i];
        sum += t->lesson.hidden * quire_f64_pass_distances(t->lesson.teacher)[i];
    }
    return 0.5 * sum;
}

static quire_f64_pass *open_teacher(const quire_train_shape *s, const quire_f64_pass *taught,
                                    bool keeps_hidden)
{
    quire_f64_pass_options options = { s, ROWS, LENGTH, 1, taught, keeps_hidden };
    quire_error err = QUIRE_ERROR_INIT;
    quire_f64_pass *pass = NULL;

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

/* Hidden states of another width or number of layers, or of a model without readers. */
static void test_refused_hidden(void **state)
{
    static const char *const texts[] = { "4 layers of width 12, not 4 of 10",
                                         "3 layers of width 10, not 4 of 10",
                                         "layers read K or V of others, not one of mha" };

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        quire_train_shape s = small_shape(i < 2 ? "yoco" : "mha", 2), other = small_shape("mha", 2);
        quire_f64_pass *taught = open_pass(&s), *pass = NULL;
        quire_f64_pass_options options = { &other, ROWS, LENGTH, 1, taught, true };
        quire_error err = QUIRE_ERROR_INIT;

        other.d_model += i == 0 ? 2 : 0;
        other.n_layer -= i == 1;
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
        quire_f64_pass_options options = { &other, ROWS + (i == 1), LENGTH + (i == 2),
                                           1,      taught,          false };

        other.n_vocab += i == 0;
        assert_int_equal(quire_f64_pass_create(&pass, &options, &err), QUIRE_INVAL);
        assert_non_null(strstr(err.message, "a teacher of "));
    }
    quire_f64_pass_destroy(taught);
}

static void test_gate_forms(void **state)
{
    static const quire_gate_form forms[] = { QUIRE_GATE_HALF, QUIRE_GATE_FULL, QUIRE_GATE_HEADS };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        quire_train_shape s = small_shape("fusedkv", 2);

        s.gate_form = forms[i];
        check_model(&s);
    }
}

static void test_options(void **state)
{
    quire_train_shape s = small_shape("fusedkv-lite-learnable", 2);

    (void)state;
    s.has_qk_norm = true;
    check_model(&s);
    s.is_tied = true;
    s.window[0] = 2;
    s.window[3] = 3; /* a layer that reads others */
    check_model(&s);
    s = small_shape("yoco", 1);
    s.has_qk_norm = true;
    assert_int_equal(quire_train_window_set(&s, 3, NULL), QUIRE_OK);
    check_model(&s);
    s = small_shape("yoco++", 2);
    s.n_layer = 5; /* three layers store: two mixes, the upper one of which is read */
    assert_int_equal(quire_train_scheme_set(&s, "yoco++", NULL), QUIRE_OK);
    assert_int_equal(quire_train_window_set(&s, 3, NULL), QUIRE_OK);
    s.has_qk_norm = true;
    check_model(&s);
    s = small_shape("fusedkv", 1);
    s.n_layer = 3; /* an odd count: two layers store */
    assert_int_equal(quire_train_scheme_set(&s, "fusedkv", NULL), QUIRE_OK);
    check_model(&s);
}

/* Biases of Q, K and V before norms, gates and mixes. */
static void test_biases(void **state)
{
    static const char *const schemes[] = { "gqa", "fusedkv", "yoco++" };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        for (uint32_t has_norm = 0; has_norm < 2; has_norm++) {
            quire_train_shape s = small_shape(schemes[i], 1); /* Q is wider than the stream */

            s.has_qkv_bias = true;
            s.has_qk_norm = has_norm > 0;
            check_model(&s);
        }
    }
}

/* Factors can make a base of RoPE another one. */
static void test_rope_factors(void **state)
{
    quire_train_shape s = small_shape("fusedkv-lite", 2);
    quire_f64_pass *pass = open_pass(&s), *same;
    double *parameters = random_parameters(quire_f64_pass_layout(pass));
    double loss;

    (void)state;
    fill_batch();
    loss = quire_f64_pass_run(pass, parameters, &batch, 0, NULL);
    s.rope_base = 100;
    s.has_rope_factors = true;
    for (uint32_t i = 0; i < s.d_head / 2; i++) {
        s.rope_factors[i] = (float)(pow(100, -2.0 * i / s.d_head) / pow(1e4, -2.0 * i / s.d_head));
    }
    same = open_pass(&s);
    assert_true(fabs(quire_f64_pass_run(same, parameters, &batch, 0, NULL) / loss - 1) < 1e-6);
    quire_f64_pass_destroy(same);
    s.has_rope_factors = false;
    same = open_pass(&s);
    assert_true(fabs(quire_f64_pass_run(same, parameters, &batch, 0, NULL) / loss - 1) > 1e-4);
    quire_f64_pass_destroy(same);
    free(parameters);
    quire_f64_pass_destroy(pass);
    s.has_rope_factors = s.has_qkv_bias = true;
    s.rope_factors[1] = 0.5f;
    check_model(&s);
}

/* A hand-made map. Its K and V have owners and gates of their own. */
static void test_hand_map(void **state)
{
    quire_train_shape s = small_shape("mha", 2);

    (void)state;
    s.source_k[1][0] = 0; /* V of its own */
    s.source_v[2][0] = 1;
    s.source_v[2][1] = 0;
    s.is_gated_v[2] = true; /* K of its own */
    s.source_k[3][0] = 2;
    s.source_v[3][0] = 0;
    s.is_gated_v[3] = true;
    s.is_mixed_v[1] = true;
    s.is_mixed_k[2] = true;
    s.has_qk_norm = true;
    check_model(&s);
    s.has_qkv_bias = true; /* of K and V where they are stored */
    check_model(&s);
}

/* Single precision agrees with double precision, and threads change no bit. */
static void test_single(void **state)
{
    quire_train_shape s = small_shape("fusedkv", 2);
    quire_f64_pass *wide = open_pass(&s);
    size_t n = quire_f64_pass_layout(wide)->n_parameters;
    float *parameters = calloc(n, sizeof(*parameters));
    float *gradients[2] = { calloc(n, sizeof(float)), calloc(n, sizeof(float)) };
    double *p64 = calloc(n, sizeof(*p64)), *g64 = calloc(n, sizeof(*g64));
    double loss, loss64;

    (void)state;
    assert_true(parameters && gradients[0] && gradients[1] && p64 && g64);
    fill_batch();
    quire_train_weights_init(quire_f64_pass_layout(wide), &s, 5, parameters);
    for (size_t i = 0; i < n; i++) {
        p64[i] = (double)parameters[i];
    }
    loss64 = quire_f64_pass_run(wide, p64, &batch, 1, g64);
    for (uint32_t i = 0; i < 2; i++) {
        quire_f32_pass_options options = { &s, ROWS, LENGTH, 1 + 2 * i, NULL, false };
        quire_f32_pass *pass = NULL;

        assert_int_equal(quire_f32_pass_create(&pass, &options, NULL), QUIRE_OK);
        loss = quire_f32_pass_run(pass, parameters, &batch, 1, gradients[i]);
        assert_true(fabs(loss - loss64) < 1e-5 * loss64);
        assert_true(quire_f32_pass_losses(pass)[3] == 0);
        quire_f32_pass_destroy(pass);
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs((double)gradients[0][i] - g64[i]) < 1e-5 * (1 + fabs(g64[i])));
    }
    assert_memory_equal(gradients[0], gradients[1], n * sizeof(float));
    /* Small first weights: the loss begins near that of a uniform distribution. */
    assert_true(fabs(loss64 / (TOKENS - 1) - log(VOCAB)) < 0.05);
    free(parameters);
    free(gradients[0]);
    free(gradients[1]);
    free(p64);
    free(g64);
    quire_f64_pass_destroy(wide);
}

/* Losses of a document do not depend on the documents before it, in its row or in others. */
static void test_documents(void **state)
{
    quire_train_shape s = small_shape("fusedkv", 1);
    quire_f64_pass *pass = open_pass(&s);
    double *parameters = random_parameters(quire_f64_pass_layout(pass));
    double before[TOKENS];

    (void)state;
    fill_batch();
    (void)quire_f64_pass_run(pass, parameters, &batch, 0, NULL);
    memcpy(before, quire_f64_pass_losses(pass), sizeof(before));
    tokens[0] = (tokens[0] + 1) % (int32_t)VOCAB;
    tokens[1] = (tokens[1] + 1) % (int32_t)VOCAB;
    (void)quire_f64_pass_run(pass, parameters, &batch, 0, NULL);
    assert_true(before[1] != quire_f64_pass_losses(pass)[1]);
    assert_memory_equal(before + 2, quire_f64_pass_losses(pass) + 2, (TOKENS - 2) * sizeof(double));
    free(parameters);
    quire_f64_pass_destroy(pass);
}

static const quire_train_tensor *find_tensor(const quire_train_layout *layout, const char *name)
{
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        if (strcmp(layout->tensors[i].name, name) == 0) {
            return &layout->tensors[i];
        }
    }
    return NULL;
}

/* FusedKV with gates that choose K of the middle layer and V of the bottom layer is FusedKV-Lite.
 */
static void test_fused_is_lite(void **state)
{
    quire_train_shape fused = small_shape("fusedkv", 2), lite = small_shape("fusedkv-lite", 2);
    quire_f64_pass *pass = open_pass(&fused), *plain = open_pass(&lite);
    const quire_train_layout *from = quire_f64_pass_layout(pass);
    const quire_train_layout *to = quire_f64_pass_layout(plain);
    double *parameters = random_parameters(from);
    double *copied = calloc(to->n_parameters, sizeof(*copied));
    uint32_t n_gates = 0;

    (void)state;
    assert_non_null(copied);
    fill_batch();
    for (uint32_t i = 0; i < from->n_tensors; i++) {
        const quire_train_tensor *t = &from->tensors[i];
        const quire_train_tensor *same = find_tensor(to, t->name);
        size_t n = (size_t)t->n_rows * t->n_cols;

        if (same != NULL) {
            memcpy(copied + same->at, parameters + t->at, n * sizeof(*copied));
            continue;
        }
        n_gates++;
        for (size_t j = 0; j < n; j++) {
            parameters[t->at + j] =
                strstr(t->name, "k_gate.1") != NULL || strstr(t->name, "v_gate.0") != NULL;
        }
    }
    assert_int_equal(n_gates, 2 * 2 * 2);
    assert_true(fabs(quire_f64_pass_run(pass, parameters, &batch, 0, NULL) -
                     quire_f64_pass_run(plain, copied, &batch, 0, NULL)) < 1e-12);
    free(parameters);
    free(copied);
    quire_f64_pass_destroy(pass);
    quire_f64_pass_destroy(plain);
}

/* The sources of K and V that each layer reads. */
static void test_maps(void **state)
{
    quire_train_shape s = small_shape("fusedkv", 1);

    (void)state;
    assert_true(quire_train_stores_k(&s, 1) && !quire_train_stores_k(&s, 2));
    assert_true(s.source_k[3][0] == 0 && s.source_k[3][1] == 1 && s.is_gated_k[3]);
    assert_true(s.source_v[2][0] == 0 && s.source_v[2][1] == 1 && s.is_gated_v[2]);
    s = small_shape("fusedkv-lite", 1);
    assert_true(s.source_k[3][0] == 1 && s.source_v[3][0] == 0 && s.source_k[3][1] == -1);
    assert_false(s.is_gated_k[3]);
    s = small_shape("fusedkv-lite-learnable", 1);
    assert_true(s.source_k[2][0] == 1 && s.source_v[2][0] == 0 && s.is_gated_v[2]);
    s = small_shape("yoco", 1);
    assert_true(s.source_k[3][0] == 1 && s.source_v[3][0] == 1);
    s = small_shape("yoco++", 1);
    assert_true(s.source_v[3][0] == 1 && s.is_mixed_k[1] && s.is_mixed_v[1] && !s.is_mixed_k[0]);
    assert_false(s.is_mixed_k[2] || quire_train_is_plain(&s));
    assert_int_equal(quire_train_window_set(&s, 9, NULL), QUIRE_OK);
    assert_true(s.window[0] == 9 && s.window[1] == 0 && s.window[3] == 0);
    s = small_shape("cla2", 1);
    assert_true(s.source_k[1][0] == 0 && quire_train_stores_v(&s, 2) && s.source_v[3][0] == 2);
}

static void refuse(const quire_train_shape *s, const char *text)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_f64_pass_options options = { s, ROWS, LENGTH, 1, NULL, false };
    quire_f64_pass *pass = NULL;

    assert_int_equal(quire_f64_pass_create(&pass, &options, &err), QUIRE_INVAL);
    if (strstr(err.message, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
    }
}

static void test_refused_maps(void **state)
{
    quire_train_shape good = small_shape("fusedkv", 1), s = good;

    (void)state;
    s.source_k[3][1] = 2;
    refuse(&s, "K of layer 3 comes from layer 2, which stores none");
    s = good;
    s.source_v[2][0] = 3;
    refuse(&s, "V of layer 2 comes from layer 3, which is not below it");
    s.source_v[2][0] = -7;
    refuse(&s, "layer -7");
    s = good;
    s.is_gated_k[3] = false;
    refuse(&s, "two sources (0, 1) must differ and have gates");
    s = good;
    s.source_v[3][1] = 0;
    refuse(&s, "V of layer 3: two sources (0, 0)");
    s = good;
    s.is_gated_v[1] = true;
    refuse(&s, "layer 1 stores its V and has a second source or a gate");
    s = good;
    s.is_mixed_k[3] = true;
    refuse(&s, "K of layer 3 is a mix");
    s = good;
    s.is_mixed_v[0] = true;
    refuse(&s, "V of layer 0 is a mix");
    s = good;
    s.gate_form = 3;
    refuse(&s, "no gate form 3");
}

static void test_refused_sizes(void **state)
{
    quire_train_shape good = small_shape("mha", 2), s = good;

    (void)state;
    s.d_head = 5;
    refuse(&s, "head size 5");
    s = good;
    s.n_head = 3;
    refuse(&s, "3 heads cannot share 2 KV heads");
    s = good;
    s.d_ff = 0;
    refuse(&s, "feed-forward size: 0");
    s.d_ff = QUIRE_TRAIN_SIZE_MAX + 1;
    refuse(&s, "feed-forward size: 1048577");
    s = good;
    s.n_layer = QUIRE_TRAIN_LAYERS_MAX + 1;
    refuse(&s, "layers: 129");
    s = good;
    s.rope_base = 1;
    refuse(&s, "RoPE base 1");
    s = good;
    s.has_rope_factors = true;
    refuse(&s, "factor 0 of RoPE's frequencies is 0");
    for (uint32_t i = 0; i < 3; i++) {
        s.rope_factors[i] = i < 2 ? 1 : NAN;
    }
    refuse(&s, "factor 2 of RoPE's frequencies is nan");
    s.d_head = 2 * QUIRE_TRAIN_PAIRS_MAX + 2;
    refuse(&s, "a head of 1026");
}

static void test_refused_schemes(void **state)
{
    quire_train_shape s = small_shape("mha", 2);
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_train_scheme_set(&s, "fusedkv-light", &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "is \"fusedkv-lite\" meant?"));
    assert_int_equal(quire_train_scheme_set(&s, "mqa", &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "scheme mqa needs one KV head, not 2 of 2"));
    assert_int_equal(quire_train_scheme_set(&s, "gqa", &err), QUIRE_INVAL);
    s.n_kv_head = 1;
    assert_int_equal(quire_train_scheme_set(&s, "mha", &err), QUIRE_INVAL);
    s.n_layer = 1;
    assert_int_equal(quire_train_scheme_set(&s, "yoco", &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "scheme yoco with 1 layers"));
    s = small_shape("mha", 2);
    assert_true(quire_train_is_plain(&s));
    assert_int_equal(quire_train_window_set(&s, 9, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "yoco and yoco++, not to mha"));
}

static void test_refused_batches(void **state)
{
    quire_train_shape s = small_shape("mha", 2);
    quire_f32_pass_options options = { &s, 0, 8, 1, NULL, false };
    quire_f32_pass *pass = NULL;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_f32_pass_create(&pass, &options, &err), QUIRE_INVAL);
    options.n_rows = QUIRE_TRAIN_BATCH_TOKENS_MAX / 8 + 1;
    assert_int_equal(quire_f32_pass_create(&pass, &options, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "1 to 4194304 tokens"));
}

static int setup(void **state)
{
    (void)state;
    rng = test_rng(17);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_gate_forms),
        cmocka_unit_test(test_taught),
        cmocka_unit_test(test_refused_teachers),
        cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_hidden_reference),
        cmocka_unit_test(test_refused_hidden),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_hand_map),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_single),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_fused_is_lite),
        cmocka_unit_test(test_maps),
        cmocka_unit_test(test_refused_maps),
        cmocka_unit_test(test_refused_sizes),
        cmocka_unit_test(test_refused_schemes),
        cmocka_unit_test(test_refused_batches),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
