/* reuse_sample.h - follows a sample of nodes from one use to the next, for the model to learn from.
 *
 * A life begins when a request is done with a node, and ends with the next use of the node or of
 * its ghost. The model learns from evicted and kept nodes alike; otherwise it would learn the
 * policy's own choices. A life whose ghost is forgotten before the next use counts up to that
 * moment.
 *
 * The number of lives is fixed. Lives stand in queues by bin of ages. When a queue is full, half of
 * the entering lives are dropped and the other half count twice (Russian roulette). So the sample
 * covers milliseconds to days at any rate of requests, without bias.
 *
 * A handle is valid until its life ends; later it names nothing.
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
    uint16_t next;   /* in its queue, towards younger lives; 0 = none. In a free life: the next
                        free */
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
    quire_reuse_life lives[QUIRE_REUSE_LIVES + 1]; /* 0 = none */
    quire_reuse_queue queues[QUIRE_REUSE_AGES];
    uint16_t free;
    quire_rng rng;
} quire_reuse_sample;

void quire_reuse_sample_init(quire_reuse_sample *sample, uint64_t seed);

/* Begin a life. Returns its handle. When all lives are taken, the oldest ends early. */
uint32_t quire_reuse_follow(quire_reuse_sample *sample, quire_reuse_model *model,
                            const quire_reuse_class *class, uint64_t now);

/* End a life, with or without a use. Does nothing when the handle names nothing. */
void quire_reuse_end(quire_reuse_sample *sample, quire_reuse_model *model, uint32_t handle,
                     uint64_t now, bool is_use);

/* Move lives to the bins of their present ages. */
void quire_reuse_advance(quire_reuse_sample *sample, quire_reuse_model *model, uint64_t now);

#endif /* QUIRE_CORE_REUSE_SAMPLE_H */
