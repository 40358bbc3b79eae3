/* chores.h - long looks at the cache, a slice at a time, between the engine's steps.
 *
 *   caller:  quire_loop_chore_do() ------------------------------> waits ----> has its answer
 *   engine:  step | slice slice | step | slice | step | slice, done | step ...
 *
 * After a step chores may take QUIRE_VIEW_SHARE of the step's time; a slice that takes longer is
 * paid back after later steps. While nothing runs there is no such bound. Chores are done one after
 * the other, in the order they came.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CHORES_H
#define QUIRE_ENGINE_CHORES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

typedef struct quire_loop quire_loop;

/* A part that takes some microseconds at most. Returns true when nothing is left to do. It changes
 * neither the cache nor the tree. Thread: the engine's. */
typedef bool (*quire_chore_slice)(void *ctx, const quire_cache *cache, const quire_prefix *tree);

typedef struct quire_chore {
    struct quire_chore *next;
    quire_chore_slice slice;
    void *ctx;
    int status; /* QUIRE_OK once it is done */
    bool is_done;
} quire_chore;

/* Have a chore done, and wait. Errors: QUIRE_AGAIN (the engine has ended). Thread: any but the
 * engine's. */
int quire_loop_chore_do(quire_loop *loop, quire_chore_slice slice, void *ctx);

/* What chores may take, so that they have their share of the time of steps and no more. Pure. */
typedef struct quire_chore_budget {
    double debt_ns; /* taken beyond the share, and not paid back yet */
} quire_chore_budget;
/* After a step that took step_us (0 = nothing runs); <= 0: nothing, this time. */
double quire_chore_budget_ns(const quire_chore_budget *budget, uint64_t step_us);
/* So much was taken after it. What is left of a share is not saved up. */
void quire_chore_budget_spend(quire_chore_budget *budget, uint64_t step_us, double spent_ns);

/* Slices, after a step that took step_us; 0 = nothing runs. Thread: the engine's. */
void quire_loop_chores_run(quire_loop *loop, uint64_t step_us);
/* They are not done any more. Thread: the engine's. */
void quire_loop_chores_end(quire_loop *loop);

#endif /* QUIRE_ENGINE_CHORES_H */
