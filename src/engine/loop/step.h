/* step.h - the current step: its rows, its time bounds, and its interruption.
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
    double us;                  /* predicted duration; 0 = unknown */
    uint64_t begin_us;          /* start time */
    quire_bytes shown;          /* text of the current token */
    quire_top_logit tops[QUIRE_LOGPROBS_MAX];
    quire_loop_step told; /* the round, as reported to the listener */
    /* By index of the class. */
    uint64_t seen_us[QUIRE_CLASSES_MAX];  /* when a request of it last ran; 0 = never */
    double typical_us[QUIRE_CLASSES_MAX]; /* typical time to compute its prompts */
} quire_step;

/* ---- batch.c ---- */

/* Compute one step of the running requests, if any. */
void quire_loop_step_do(quire_loop *loop);
/* Publish the tokens computed since the last call in the tree. */
void quire_loop_publish(quire_loop *loop, quire_request *request);

/* ---- qos.c: classes and steps ---- */

/* Before a step: set the time that lower classes may add to it. */
void quire_loop_qos_prepare(quire_loop *loop);
/* During a step: whether a request has arrived that interrupts it. ctx: the loop. */
bool quire_loop_qos_gives_up(void *ctx);
/* The step was given up. */
void quire_loop_qos_interrupted(quire_loop *loop, uint32_t n_items, uint64_t step_us);
/* After a step: record which requests got rows; then, when the round is complete, its cost. */
void quire_loop_qos_rows(quire_loop *loop, uint32_t n_items);
void quire_loop_qos_step(quire_loop *loop, const quire_cost_step *cost, uint64_t step_us);
/* A request was admitted for the first time; a request got its first token. */
void quire_loop_qos_admitted(quire_loop *loop, const quire_request *request);
void quire_loop_qos_first(quire_loop *loop, const quire_request *request);

#endif /* QUIRE_ENGINE_STEP_H */
