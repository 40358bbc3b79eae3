/* reuse_sample.h - nodes that are followed from one use to the next, to learn from.
 *
 * A life begins when a request is done with a node and ends with the next use, whether the node is
 * still there or only its ghost: what was evicted is learned from as what was kept is, else the
 * model would believe whatever the policy did. A life that is lost sight of before (its ghost was
 * forgotten) counts up to there.
 *
 * The number of lives is fixed. They stand in queues by bin of ages; where a queue is full, half of
 * what would enter it is dropped and the other half counts twice (Russian roulette), so that the
 * sample reaches from milliseconds to days at any rate of requests without being biased.
 *
 * Handles name a life until it ends; later they name nothing.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_REUSE_SAMPLE_H
#define QUIRE_CORE_REUSE_SAMPLE_H

#include "base/rng.h"
#include "core/evict/reuse_model.h"

#define QUIRE_REUSE_LIVES 8192u

typedef struct quire_reuse_life {
    uint64_t start;
    float weight;
    uint32_t serial; /* part of the handle */
    uint16_t next;   /* in its queue, towards younger ones; 0 = none. Of a free one: the next */
    uint16_t prev;
    uint8_t bin;
    bool is_followed;
    quire_reuse_class class;
} quire_reuse_life;

typedef struct quire_reuse_queue {
    uint16_t oldest; /* number of a life, from 1; 0 = empty */
    uint16_t youngest;
    uint32_t n;
} quire_reuse_queue;

typedef struct quire_reuse_sample {
    quire_reuse_life lives[QUIRE_REUSE_LIVES + 1]; /* 0 is nobody */
    quire_reuse_queue queues[QUIRE_REUSE_AGES];
    uint16_t free;
    quire_rng rng;
} quire_reuse_sample;

void quire_reuse_sample_init(quire_reuse_sample *sample, uint64_t seed);

/* A life begins. Returns its handle. When all are taken the oldest is lost sight of. */
uint32_t quire_reuse_follow(quire_reuse_sample *sample, quire_reuse_model *model,
                            const quire_reuse_class *class, uint64_t now);

/* It ends, with a use or not. Nothing happens when the handle names nothing. */
void quire_reuse_end(quire_reuse_sample *sample, quire_reuse_model *model, uint32_t handle,
                     uint64_t now, bool is_use);

/* Lives grow older. */
void quire_reuse_advance(quire_reuse_sample *sample, quire_reuse_model *model, uint64_t now);

#endif /* QUIRE_CORE_REUSE_SAMPLE_H */
