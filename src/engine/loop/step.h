/* step.h - the step at hand: whose rows, what it may cost, and when it is given up.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_STEP_H
#define QUIRE_ENGINE_STEP_H

#include "base/bytes.h"
#include "engine/loop/loop_events.h"
#include "engine/loop/schedule.h"
#include "model/runtime.h"

typedef struct quire_step {
    quire_schedule schedule;
    quire_schedule_item *items; /* [n_running_max] */
    quire_slice *slices;        /* [n_running_max] */
    int rank;                   /* quire_schedule_interruptible(); -1 = below all */
    double us;                  /* what it is going to take; 0 = unknown */
    uint64_t begin_us;          /* when it began */
    quire_bytes shown;          /* text of the token at hand */
    quire_top_logit tops[QUIRE_LOGPROBS_MAX];
    quire_loop_step told; /* the round, as listeners are told of it */
    /* By index of the class. */
    uint64_t seen_us[QUIRE_CLASSES_MAX];  /* when it last had something running; 0 = never */
    double typical_us[QUIRE_CLASSES_MAX]; /* what its prompts cost to compute, as a rule */
} quire_step;

/* ---- batch.c ---- */

/* One step of those that run, if there are any. */
void quire_loop_step_do(quire_loop *loop);
/* Tell the tree what was computed since the last time. */
void quire_loop_publish(quire_loop *loop, quire_request *request);

/* ---- qos.c: classes and steps ---- */

/* Before a step: what lower classes may add to it. */
void quire_loop_qos_prepare(quire_loop *loop);
/* While it is computed: whether somebody has come for whom to give it up. ctx: the loop. */
bool quire_loop_qos_gives_up(void *ctx);
/* It was given up. */
void quire_loop_qos_interrupted(quire_loop *loop, uint32_t n_items, uint64_t step_us);
/* After it: who got rows; then what it cost, when all of it is done. */
void quire_loop_qos_rows(quire_loop *loop, uint32_t n_items);
void quire_loop_qos_step(quire_loop *loop, const quire_cost_step *cost, uint64_t step_us);
/* A request was admitted for the first time; it has its first token. */
void quire_loop_qos_admitted(quire_loop *loop, const quire_request *request);
void quire_loop_qos_first(quire_loop *loop, const quire_request *request);

#endif /* QUIRE_ENGINE_STEP_H */
