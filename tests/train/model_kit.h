/* model_kit.h - small models and a batch for them, for the tests of training.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_MODEL_KIT_H
#define QUIRE_TESTS_MODEL_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "seed.h"
#include "train/model_pass.h"
#include "train_kit.h"

#include <stdlib.h>

#define ROWS   2u
#define LENGTH 7u
#define TOKENS (ROWS * LENGTH)
#define VOCAB  13u

static quire_rng rng;

/* A small model of a scheme; sizes differ, so that a mix-up shows. */
static inline quire_train_shape small_shape(const char *scheme, uint32_t n_kv_head)
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
static inline void fill_batch(void)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        uint32_t cut = 2 + i / LENGTH;

        tokens[i] = (int32_t)quire_rng_below(&rng, VOCAB);
        targets[i] = (int32_t)quire_rng_below(&rng, VOCAB);
        first[i] = i % LENGTH < cut ? 0 : (int32_t)cut;
    }
    targets[3] = QUIRE_TRAIN_NO_TARGET;
}

static inline quire_f64_pass_options options_of(const quire_train_shape *s,
                                                const quire_f64_pass *taught)
{
    return (quire_f64_pass_options){
        .shape = s, .n_rows = ROWS, .n_tokens = LENGTH, .n_threads = 1, .taught = taught
    };
}

static inline quire_f64_pass *open_pass(const quire_train_shape *s)
{
    quire_f64_pass_options options = options_of(s, NULL);
    quire_error err = QUIRE_ERROR_INIT;
    quire_f64_pass *pass = NULL;

    if (quire_f64_pass_create(&pass, &options, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return pass;
}

/* Larger first weights than training has, so that every gradient is far from zero. */
static inline double *random_parameters(const quire_train_layout *layout)
{
    double *parameters = calloc(layout->n_parameters, sizeof(*parameters));

    assert_non_null(parameters);
    train_fill(&rng, parameters, layout->n_parameters, 0.5);
    return parameters;
}

#endif /* QUIRE_TESTS_MODEL_KIT_H */
