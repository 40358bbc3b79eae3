/* reuse_model.h - predicts the time to a node's next use, learned from the workload.
 *
 * The traits of a node at its last use give its class. For every class the model has the hazard by
 * age: of the nodes that reached this age, the share that is used again before the next bin of
 * ages. Bins are half octaves, so one table covers milliseconds to days.
 *
 *   score   An additive model of the logarithm of the hazard learns which traits matter. It has one
 *           weight per value of each feature. Each weight is a normal distribution, which every bin
 *           of every life narrows (assumed-density filtering; Opper 1998, Minka 2001). The weights
 *           of a useless feature stay near 0, and nothing has to be tuned.
 *   class   The score in octaves and the mean gap between earlier uses. For a node that several
 *           conversations share: their number and the mean gap.
 *   hazard  Events over exposure, as actuaries count, so that unfinished and lost lives cause no
 *           bias. A class with few events leans on its parent, the parent on its kind, the kind on
 *           the hazard that LRU assumes: the longer since the last use, the longer until the next.
 *   index   The maximum over all t of (chance of a use within t) / (expected time in memory until
 *           the use, or t), at a given age: uses per block and time, if the cache stops waiting at
 *           the best moment (Gittins 1979). The node with the least index is evicted first. LHD
 *           (Beckmann, Chen, Cidon, NSDI 2018) ranks by the same ratio with t infinite, which
 *           undervalues nodes that return soon or never.
 *
 * Counts halve about every 3,000 requests, so that the model follows the workload. All sizes are
 * fixed. One model serves all bins of a tree.
 *
 * Time is in units of 1,024 us, ages in 32 bits of them (50 days).
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_REUSE_MODEL_H
#define QUIRE_CORE_REUSE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_REUSE_AGES     56u
#define QUIRE_REUSE_CLASSES  352u
#define QUIRE_REUSE_PARENTS  80u
#define QUIRE_REUSE_KINDS    6u
#define QUIRE_REUSE_FEATURES 10u
#define QUIRE_REUSE_VALUES   512u

typedef struct quire_reuse_traits {
    uint8_t turn;     /* of the conversation, from 1 */
    uint8_t fresh;    /* tokens of the last request beyond the known ones, half octaves */
    uint8_t length;   /* tokens of the last request, half octaves */
    uint8_t tip;      /* pages between the node and the end of the last text */
    uint8_t texts;    /* conversations that went through the node, from 1 */
    uint8_t uses;     /* since the node was made, ghosts included */
    uint8_t last_gap; /* before the last use, octaves of 0.1 s; 0 = none */
    float mean_gap;   /* between uses, units; 0 = none */
} quire_reuse_traits;

typedef struct quire_reuse_class {
    uint16_t id;
    uint16_t values[QUIRE_REUSE_FEATURES];
} quire_reuse_class;

typedef struct quire_reuse_cell { /* of a class and a bin of ages */
    float n_events;
    float n_exposed;      /* lives that went through the bin, in fractions */
    float n_waiting;      /* lives that are in the bin now */
    double waiting_start; /* sum of their start times */
} quire_reuse_cell;

typedef struct quire_reuse_weight {
    float mean;
    float variance;
} quire_reuse_weight;

typedef struct quire_reuse_model {
    quire_reuse_cell cells[QUIRE_REUSE_CLASSES][QUIRE_REUSE_AGES];
    float indexes[QUIRE_REUSE_CLASSES][QUIRE_REUSE_AGES]; /* at the start of each bin */
    float parents[QUIRE_REUSE_PARENTS][QUIRE_REUSE_AGES]; /* hazards */
    float kinds[QUIRE_REUSE_KINDS][QUIRE_REUSE_AGES];
    quire_reuse_weight weights[QUIRE_REUSE_FEATURES][QUIRE_REUSE_VALUES];
    float starts[QUIRE_REUSE_AGES + 1]; /* of the bins */
    float least_time;
    uint32_t next_class; /* to be refreshed */
} quire_reuse_model;

/* A part of a life: a fraction of a bin of ages, with or without a use at its end. */
typedef struct quire_reuse_part {
    uint32_t bin;
    float fraction; /* of the bin, 0 .. 1 */
    float weight;   /* the number of lives that this life represents */
    bool is_use;
} quire_reuse_part;

void quire_reuse_model_init(quire_reuse_model *model);

/* The variance of a weight before anything is learned; learning only narrows it. */
#define QUIRE_REUSE_PRIOR_VARIANCE 0.25f /* one feature value may change the hazard 1.6-fold */
/* Refresh everything that follows from the counts and weights, at once. */
void quire_reuse_refresh_all(quire_reuse_model *model, uint64_t now);

/* Half octaves of n: 0, 1 for 1, 3 for 2, 4 for 3, 5 for 4 and so on; at most max. */
uint8_t quire_reuse_half_octaves(uint64_t n, uint8_t max);

quire_reuse_class quire_reuse_class_of(const quire_reuse_model *model,
                                       const quire_reuse_traits *traits);

/* The bin of an age. */
uint32_t quire_reuse_bin_of(uint32_t age);

/* A life with this weight enters a bin (weight > 0) or leaves it (weight < 0). */
void quire_reuse_wait(quire_reuse_model *model, uint32_t class_id, uint32_t bin, float weight,
                      uint64_t start);

void quire_reuse_learn(quire_reuse_model *model, const quire_reuse_class *class,
                       quire_reuse_part part);

/* Call once per request: recomputes the indexes of the next few classes. least_time: an earlier
 * eviction makes no room sooner (such as the time until the next request). */
void quire_reuse_refresh(quire_reuse_model *model, uint64_t now, float least_time);

/* The index of a node of the class at this age: uses per node and unit of time while it stays. */
float quire_reuse_index(const quire_reuse_model *model, uint32_t class_id, uint32_t age);

/* The chance that a node of the class is used within this time after a use, by the class's own
 * events alone, without the prior: 0 with fewer than QUIRE_REUSE_EVIDENCE events. */
#define QUIRE_REUSE_EVIDENCE 16.0f
float quire_reuse_chance(const quire_reuse_model *model, uint32_t class_id, uint64_t now,
                         uint32_t within);

/* ---- the learned model as bytes ----
 *
 * Events and exposure of each class and bin of ages, and mean and variance of each weight: f32,
 * little-endian. Lives under way are left out, and so are values that follow from the counts. */
#define QUIRE_REUSE_SAVED_BYTES                                                                    \
    ((size_t)QUIRE_REUSE_CLASSES * QUIRE_REUSE_AGES * 8u +                                         \
     (size_t)QUIRE_REUSE_FEATURES * QUIRE_REUSE_VALUES * 8u)

void quire_reuse_model_save(const quire_reuse_model *model,
                            unsigned char out[QUIRE_REUSE_SAVED_BYTES]);
/* Replace the learned counts and weights, and compute all values that follow from them. False: a
 * number is out of range; the model is as before. Cost: some milliseconds. */
bool quire_reuse_model_load(quire_reuse_model *model,
                            const unsigned char bytes[QUIRE_REUSE_SAVED_BYTES], uint64_t now);

#endif /* QUIRE_CORE_REUSE_MODEL_H */
