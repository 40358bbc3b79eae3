/* run_kit.h - small runs of training on counted documents, for tests.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_RUN_KIT_H
#define QUIRE_TESTS_RUN_KIT_H

#include "counting_docs.h"
#include "train/trainer.h"

static inline quire_train_plan small_plan(const char *scheme)
{
    quire_train_plan p = { .shape = { .n_vocab = VOCAB,
                                      .n_layer = 2,
                                      .d_model = 24,
                                      .n_head = 2,
                                      .n_kv_head = 2,
                                      .d_head = 8,
                                      .d_ff = 32,
                                      .rope_base = 10000,
                                      .norm_epsilon = 1e-5,
                                      .has_qk_norm = true },
                           .n_rows = ROWS,
                           .n_tokens = LENGTH,
                           .n_accumulate = 2,
                           .n_threads = 2,
                           .n_steps = 40,
                           .n_warmup = 4,
                           .rate = 0.01,
                           .rate_end = 0.001,
                           .beta1 = QUIRE_TRAIN_BETA1,
                           .beta2 = QUIRE_TRAIN_BETA2,
                           .epsilon = QUIRE_TRAIN_EPSILON,
                           .decay = 0.1,
                           .clip = 1,
                           .rise_max = 2,
                           .seed = 3 };

    assert_int_equal(quire_train_scheme_set(&p.shape, scheme, NULL), QUIRE_OK);
    return p;
}

typedef struct run {
    counting docs;
    quire_doc_reader reader;
    quire_packer packer;
    quire_trainer *trainer;
} run;

static inline void run_open(run *r, const quire_train_plan *plan)
{
    quire_error err = QUIRE_ERROR_INIT;

    memset(r, 0, sizeof(*r));
    r->reader = reader_of(&r->docs);
    quire_packer_init(&r->packer, &r->reader);
    if (quire_trainer_create(&r->trainer, plan, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
}

static inline quire_train_report run_steps(run *r, uint32_t n)
{
    quire_train_report report = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    for (uint32_t i = 0; i < n; i++) {
        if (quire_trainer_step(r->trainer, &r->packer, &report, &err) != QUIRE_OK) {
            fail_msg("%s", err.message);
        }
    }
    return report;
}

static inline size_t parameters_bytes(const run *r)
{
    return quire_trainer_layout(r->trainer)->n_parameters * sizeof(float);
}

#endif /* QUIRE_TESTS_RUN_KIT_H */
