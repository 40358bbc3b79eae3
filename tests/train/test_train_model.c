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

#include "model_kit.h"
#include "rounds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct model_value {
    quire_f64_pass *pass;
    double *parameters;
} model_value;

static double loss_of(void *ctx)
{
    model_value *m = ctx;

    return 0.5 * quire_f64_pass_run(m->pass, m->parameters, &batch, 0, NULL);
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
        quire_f32_pass_options options = {
            .shape = &s, .n_rows = ROWS, .n_tokens = LENGTH, .n_threads = 1 + 2 * i
        };
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
    quire_f64_pass_options options = options_of(s, NULL);
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
    quire_f32_pass_options options = { .shape = &s, .n_rows = 0, .n_tokens = 8, .n_threads = 1 };
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
        cmocka_unit_test(test_schemes),         cmocka_unit_test(test_gate_forms),
        cmocka_unit_test(test_options),         cmocka_unit_test(test_hand_map),
        cmocka_unit_test(test_biases),          cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_single),          cmocka_unit_test(test_documents),
        cmocka_unit_test(test_fused_is_lite),   cmocka_unit_test(test_maps),
        cmocka_unit_test(test_refused_maps),    cmocka_unit_test(test_refused_sizes),
        cmocka_unit_test(test_refused_schemes), cmocka_unit_test(test_refused_batches),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
