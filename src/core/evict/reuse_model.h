/* reuse_model.h - how soon something like this is used again: learned from the workload itself.
 *
 * What is known of a node at its last use (traits) gives it a class. For every class the model
 * knows the hazard by age: of those that reached this age, how many are used again before the next
 * bin of ages. Bins are half octaves, so one table holds milliseconds and days.
 *
 *   score   Which traits matter is learned by an additive model of the logarithm of the hazard:
 *           one weight per value of each feature, each a normal distribution that every bin of
 *           every life narrows (assumed-density filtering; Opper 1998, Minka 2001). A feature that
 *           says nothing stays near 0, and nothing has to be tuned.
 *   class   The score in octaves and the mean gap between uses before; of nodes that several
 *           conversations share, how many and how often.
 *   hazard  Events over exposure, as actuaries count them, so that lives still going on and lives
 *           lost sight of bias nothing. A class with few events leans on its parent, that on its
 *           kind, that on the hazard of "the longer it has been, the longer it will take", which is
 *           what LRU assumes.
 *   index   The best of (chance of a use within t) / (expected time in memory until the use, or t),
 *           over all t, at a given age: uses per block and time, if the cache stops waiting at the
 *           right moment (Gittins 1979). What has the least goes first. LHD (Beckmann, Chen, Cidon,
 *           NSDI 2018) ranks by the same ratio with t infinite, which undervalues whatever returns
 *           soon or never.
 *
 * Counts are halved every 3,000 requests or so, so that the model follows the workload. All sizes
 * are fixed; one model serves all bins of a tree.
 *
 * Time is in units of 1,024 us, ages in 32 bits of them (50 days).
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_REUSE_MODEL_H
#define QUIRE_CORE_REUSE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_REUSE_AGES     56u
#define QUIRE_REUSE_CLASSES  352u
#define QUIRE_REUSE_PARENTS  80u
#define QUIRE_REUSE_KINDS    6u
#define QUIRE_REUSE_FEATURES 10u
#define QUIRE_REUSE_VALUES   512u

typedef struct quire_reuse_traits {
    uint8_t turn;     /* of the conversation, from 1 */
    uint8_t fresh;    /* tokens that the last request had beyond what was known, half octaves */
    uint8_t length;   /* tokens of the last request, half octaves */
    uint8_t tip;      /* pages between the node and the end of the last text */
    uint8_t texts;    /* conversations that went through it, from 1 */
    uint8_t uses;     /* since it was made, ghosts included */
    uint8_t last_gap; /* before the last use, octaves of 0.1 s; 0 = none */
    float mean_gap;   /* between uses, units; 0 = none */
} quire_reuse_traits;

typedef struct quire_reuse_class {
    uint16_t id;
    uint16_t values[QUIRE_REUSE_FEATURES];
} quire_reuse_class;

typedef struct quire_reuse_cell { /* of a class and a bin of ages */
    float n_events;
    float n_exposed;      /* lives that went through the bin, parts counted as parts */
    float n_waiting;      /* lives that are in it now */
    double waiting_start; /* sum of when they began */
} quire_reuse_cell;

typedef struct quire_reuse_weight {
    float mean;
    float variance;
} quire_reuse_weight;

typedef struct quire_reuse_model {
    quire_reuse_cell cells[QUIRE_REUSE_CLASSES][QUIRE_REUSE_AGES];
    float indexes[QUIRE_REUSE_CLASSES][QUIRE_REUSE_AGES]; /* at the beginning of each bin */
    float parents[QUIRE_REUSE_PARENTS][QUIRE_REUSE_AGES]; /* hazards */
    float kinds[QUIRE_REUSE_KINDS][QUIRE_REUSE_AGES];
    quire_reuse_weight weights[QUIRE_REUSE_FEATURES][QUIRE_REUSE_VALUES];
    float starts[QUIRE_REUSE_AGES + 1]; /* of the bins */
    float least_time;
    uint32_t next_class; /* to be refreshed */
} quire_reuse_model;

/* A part of a life: so much of a bin of ages, with or without a use at its end. */
typedef struct quire_reuse_part {
    uint32_t bin;
    float fraction; /* of the bin, 0 .. 1 */
    float weight;   /* lives that this one stands for */
    bool is_use;
} quire_reuse_part;

void quire_reuse_model_init(quire_reuse_model *model);

/* Half octaves of n: 0, 1 for 1, 3 for 2, 4 for 3, 5 for 4 and so on; at most max. */
uint8_t quire_reuse_half_octaves(uint64_t n, uint8_t max);

quire_reuse_class quire_reuse_class_of(const quire_reuse_model *model,
                                       const quire_reuse_traits *traits);

/* The bin of an age. */
uint32_t quire_reuse_bin_of(uint32_t age);

/* A life, or one that stands for several, enters a bin; leaves it (weight < 0). */
void quire_reuse_wait(quire_reuse_model *model, uint32_t class_id, uint32_t bin, float weight,
                      uint64_t start);

void quire_reuse_learn(quire_reuse_model *model, const quire_reuse_class *class,
                       quire_reuse_part part);

/* Once per request: the indexes of the next few classes follow what was learned. What goes before
 * the least time is over (until the next request, say) makes no room sooner. */
void quire_reuse_refresh(quire_reuse_model *model, uint64_t now, float least_time);

/* Uses per node and unit of time of a node of the class at that age, if it stays. */
float quire_reuse_index(const quire_reuse_model *model, uint32_t class_id, uint32_t age);

#endif /* QUIRE_CORE_REUSE_MODEL_H */
