/* chores.h - long read-only walks of the cache, in slices between the engine's steps.
 *
 *   caller:  quire_loop_chore_do() ------------------------------> waits ----> has its answer
 *   engine:  step | slice slice | step | slice | step | slice, done | step ...
 *
 * After a step chores may take QUIRE_VIEW_SHARE of the step's time. The excess of a longer slice is
 * deducted after later steps. While nothing runs, chores have no time bound. Chores run one after
 * the other, in order of arrival.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CHORES_H
#define QUIRE_ENGINE_CHORES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

typedef struct quire_loop quire_loop;

/* One slice of a chore, of some microseconds at most. Returns true when the chore is complete. Must
 * change neither the cache nor the tree. Thread: the engine's. */
typedef bool (*quire_chore_slice)(void *ctx, const quire_cache *cache, const quire_prefix *tree);

typedef struct quire_chore {
    struct quire_chore *next;
    quire_chore_slice slice;
    void *ctx;
    int status; /* QUIRE_OK once it is done */
    bool is_done;
} quire_chore;

/* Run a chore and wait for its end. Errors: QUIRE_AGAIN (the engine has ended). Thread: any but the
 * engine's. */
int quire_loop_chore_do(quire_loop *loop, quire_chore_slice slice, void *ctx);

/* Time budget that keeps chores within their share of the step time. Pure. */
typedef struct quire_chore_budget {
    double debt_ns; /* time taken beyond the share, not deducted yet */
} quire_chore_budget;
/* Budget after a step of step_us (0 = nothing runs); <= 0: run no chores this time. */
double quire_chore_budget_ns(const quire_chore_budget *budget, uint64_t step_us);
/* Chores took spent_ns after the step. An unused share is not saved up. */
void quire_chore_budget_spend(quire_chore_budget *budget, uint64_t step_us, double spent_ns);

/* Run slices after a step of step_us; 0 = nothing runs. Thread: the engine's. */
void quire_loop_chores_run(quire_loop *loop, uint64_t step_us);
/* End all chores: their callers get QUIRE_AGAIN. Thread: the engine's. */
void quire_loop_chores_end(quire_loop *loop);

#endif /* QUIRE_ENGINE_CHORES_H */
