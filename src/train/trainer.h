/* trainer.h - a run: parameters, AdamW, the schedule of its rate, and checkpoints.
 *
 * A step reads n_accumulate batches, adds up the gradients of the mean loss of all their targets,
 * clips them by their norm, and updates all parameters. The rate rises linearly over the warm-up
 * and falls along a cosine to rate_end.
 *
 * The state after a number of steps is the same bits for a plan and data, for any number of threads
 * and however often the run was killed and resumed, on all CPUs with AVX2, and on all others of one
 * kind.
 *
 * A step whose loss or gradient is not finite, or whose loss is far above the lowest since the
 * level rose last, changes nothing but the packer's place, and fails. quire_trainer_save_at() saves
 * the state before it.
 *
 * **The level** of the data rises by one when, at a step that level_every divides, the smoothed
 * loss is below level_below. The caller makes the documents and gives the level its meaning.
 *
 * A run may start from given weights, and may have a teacher: another model, which does not change.
 * Then the gradients are of (1 - share) loss + share divergence from the teacher's predictions +
 * hidden times the distance from the teacher's hidden states + attention times the divergence from
 * the teacher's attention weights, on the tokens that count.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_TRAINER_H
#define QUIRE_TRAIN_TRAINER_H

#include "train/checkpoint.h"
#include "train/model_pass.h"

/* The format of the parameters between steps. Gradients and moments are f32 with both. */
typedef enum quire_train_masters {
    QUIRE_MASTERS_F32,
    QUIRE_MASTERS_BF16, /* numbers of bf16; a step is rounded by chance, see bf16.h */
} quire_train_masters;

/* The numbers that products of matrices multiply, those of attention too. Sums are f32 with both.
 */
typedef enum quire_train_products {
    QUIRE_PRODUCTS_F32,
    QUIRE_PRODUCTS_BF16, /* see product_bf16.h */
} quire_train_products;

/* A model that is not trained. */
typedef struct quire_train_teacher {
    const quire_train_shape *shape; /* with the run's vocabulary; outlives the run */
    const float *parameters;        /* by its layout; outlives the run */
    double share;                   /* of the divergence, 0 to 1 */
    double hidden; /* weight of the distance, see pass_distances(); the teacher then has the run's
                      width and layers */
    double attention; /* weight of the divergence of attention, see pass_attentions(); the teacher
                         then has the run's heads and layers. 0 all three: no teacher */
} quire_train_teacher;

#define QUIRE_TRAIN_WEIGHT_MAX 1000 /* of hidden and attention */

static inline bool quire_train_is_taught(const quire_train_teacher *t)
{
    return t->share > 0 || t->hidden > 0 || t->attention > 0;
}

typedef struct quire_train_plan {
    quire_train_shape shape;
    uint32_t n_rows;       /* of a batch */
    uint32_t n_tokens;     /* of a row */
    uint32_t n_accumulate; /* batches in a step */
    uint32_t n_threads;    /* changes no result */
    uint64_t n_steps;
    uint64_t n_warmup;
    double rate;
    double rate_end;
    double beta1;
    double beta2;
    double epsilon;
    double decay; /* of matrices */
    double clip;  /* norm of the gradient; 0: none */
    quire_train_masters masters;
    quire_train_products products;
    double rise_max;      /* nats above the lowest loss at which a run has diverged; 0: never */
    double level_below;   /* nats; 0: the level stays 0 */
    uint64_t level_every; /* steps; more than 0 with level_below */
    uint64_t seed;        /* of the first weights and of rounding */
    bool has_shift_heads; /* of first weights by the seed: see shift_heads in shape.h */
    const float *start;   /* first weights [n_parameters], copied; NULL: by the seed */
    quire_train_teacher teacher;
    /* Steps predict among these tokens alone; see pass_options. Copied; n_choices 0: all tokens. */
    const int32_t *choices;
    uint32_t n_choices;
    uint32_t n_turns; /* of the other tokens, one turn a step; 0: none */
    /* Hashes of the run's inputs, for its checkpoints; 0: none. */
    uint64_t data_identity;
    uint64_t tokenizer_identity;
    uint64_t start_identity; /* of start and the teacher's parameters */
} quire_train_plan;

/* Names that defaults have elsewhere too. Source: arXiv 2512.03870, section 4.1. */
#define QUIRE_TRAIN_BETA1          0.9
#define QUIRE_TRAIN_BETA2          0.95
#define QUIRE_TRAIN_EPSILON        1e-8
#define QUIRE_TRAIN_ACCUMULATE_MAX 4096u
#define QUIRE_TRAIN_TURNS          16u /* of `predict: seen` */

typedef struct quire_train_report {
    uint64_t step;        /* done now, from 1 */
    uint64_t n_tokens;    /* of the run so far */
    double loss;          /* mean over the step's targets, in nats */
    double divergence;    /* from the teacher, likewise; 0 without one */
    double hidden;        /* distance from its hidden states, likewise; 0 without a weight */
    double attention;     /* divergence from its attention, likewise */
    double gradient_norm; /* before clipping */
    double rate;
} quire_train_report;

typedef struct quire_trainer quire_trainer;

/* Errors: those of pass_create(); QUIRE_INVAL names a number of the plan that is not possible. */
int quire_trainer_create(quire_trainer **out, const quire_train_plan *plan, quire_error *err);
void quire_trainer_destroy(quire_trainer *t);

/* One step with the packer's next batches. Errors: the reader's; QUIRE_NOTFOUND (no targets in the
 * data); QUIRE_RANGE (not finite, diverged), and the parameters are as before. */
int quire_trainer_step(quire_trainer *t, quire_packer *data, quire_train_report *report,
                       quire_error *err);

/* The mean loss of at most n_batches batches (0: until the reader ends), and how many targets they
 * had. Changes no state of the run. Errors: the reader's. */
int quire_trainer_evaluate(quire_trainer *t, quire_packer *data, uint64_t n_batches, double *loss,
                           uint64_t *n_targets, quire_error *err);

/* Save the run and the packer's place; resume both. See checkpoint.h for errors. */
int quire_trainer_save(const quire_trainer *t, const quire_packer *data, const char *path,
                       quire_error *err);
/* The same with a place that quire_packer_tell() gave. */
int quire_trainer_save_at(const quire_trainer *t, const uint64_t place[QUIRE_PACK_PLACE],
                          const char *path, quire_error *err);
int quire_trainer_load(quire_trainer *t, quire_packer *data, const char *path, quire_error *err);

uint64_t quire_trainer_steps(const quire_trainer *t);
uint64_t quire_trainer_level(const quire_trainer *t);
const float *quire_trainer_parameters(const quire_trainer *t);
const quire_train_layout *quire_trainer_layout(const quire_trainer *t);

/* The learning rate of a step, from 0. */
double quire_train_rate(const quire_train_plan *plan, uint64_t step);

/* FLOP of a step per token, without attention: 6 per parameter that a product uses, and 2 per
 * one of the teacher's. */
double quire_train_flop_per_token(const quire_trainer *t);

/* FLOP/s of the run's kind of products on all of its threads at once, measured for about 0.3 s. */
double quire_trainer_product_rate(const quire_trainer *t);

#endif /* QUIRE_TRAIN_TRAINER_H */
