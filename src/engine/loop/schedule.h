/* schedule.h - who gets how many rows of the next step.
 *
 * Within a class. Every request in decode gets its one row. What prefill gets then is shared out so
 * that nobody waits behind a long prompt and a long prompt does not wait for ever:
 *
 *   - the request that came first gets at least a quarter;
 *   - the rest goes by priority, then to whoever has least left, then by arrival. Whom another
 *     waits for (it computes the same prefix) counts as having no more left than that one waits
 *     for.
 *
 * Decode and prefill together fill chunk_tokens exactly while there is enough to compute, so that
 * the shapes of steps repeat; when decode alone takes more than three quarters of them, prefill
 * still gets a quarter.
 *
 * Between classes. The highest class with work has a step to itself, unless one of two things lets
 * a lower class in:
 *
 *   credit   A class in decode is promised a tpot: a target, or `stretch` times what its steps take
 *            alone. What a step takes less than that is credit, and a step that lower classes make
 *            longer is paid from it. So they save up and then come all at once: on a CPU a step of
 *            few rows is expensive (cost.h: several), so one step of 32 foreign rows among twenty
 *            costs the high class as much as two rows in each of ten, and brings twice as much. The
 *            mean time between tokens, which is tpot, is as promised either way. While a higher
 *            class has prefill there is no credit: putting lower rows off costs no throughput then,
 *            since a step of prefill is full anyway.
 *   a turn   A class that has work and has had no row for (sum of weights / its weight) times
 *            what its rows may add to a step (wait_us below, at least QUIRE_TURN_US) gets rows in
 *            the next step, whatever is promised to others: so its weight is the share of time
 *            that it keeps. That bounds the wait: between two steps with rows of the class lie at
 *            most that time and two steps. Within the class whoever was left out longest comes
 *            first, so each of its requests goes on.
 *
 * Rows of a class that is let in also stay within wait_us, where the caller says so: what they may
 * add to a step because somebody else of a higher class may come any moment and would have to wait
 * for its end. Rows of decode that find no room then take turns; such a class gets at least one row
 * of decode and an eighth of a chunk of prefill, if it has any. Prefill that is cut ends at a
 * multiple of 16 rows of the step: shapes repeat. A step of one class alone needs no such bound: it
 * is given up when somebody of a higher class comes (quire_schedule_interruptible()). That wastes a
 * part of a step per arrival, where short steps would waste their fixed cost all the time.
 *
 * While nothing is known about costs lower classes get all of their decode and an eighth of a chunk
 * of prefill beside higher decode: some steps later something is known.
 *
 * Pure: no model, no clock; its memory is the struct.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SCHEDULE_H
#define QUIRE_ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/loop/cost.h"
#include "quire/prefix.h"

#define QUIRE_TURN_US 50000.0

typedef struct quire_schedule_item {
    void *request; /* the caller's */
    uint64_t arrival;
    int32_t priority;
    uint32_t depth;      /* tokens of it that are computed */
    uint32_t n_left;     /* prefill: tokens to compute, >= 1 */
    uint32_t n_until;    /* prefill: those until somebody who waits for them goes on; else n_left */
    uint32_t n_left_out; /* decode: steps since its last row */
    uint8_t rank;
    bool is_decode;
    uint32_t n_rows; /* out; 0 = not in this step */
} quire_schedule_item;

typedef struct quire_schedule_limits {
    uint32_t chunk_tokens;  /* >= 1 */
    uint32_t rows_max;      /* of a step; at least the number of items */
    const quire_cost *cost; /* NULL = nothing is known */
} quire_schedule_limits;

typedef struct quire_schedule_class {
    uint32_t weight; /* 0 = no class has this rank; its items count as weight 1 */
    double tpot_us;  /* target; 0 = none */
    double stretch;  /* where there is none */
    double wait_us;  /* what its rows may add to a step; 0 = any time */
    /* Kept between steps. */
    double credit_us; /* how much longer lower classes may make steps; may be below 0 */
    double idle_us;   /* of computing since it had rows, while it had work */
    /* Of the step at hand. */
    bool has_items;
    bool has_rows;
    bool has_decode;  /* rows of decode */
    bool has_prefill; /* it or a higher class has prefill to do */
    bool has_turn;
    uint32_t n_own_rows; /* of this and higher classes */
    double own_us;       /* predicted for those; 0 = unknown */
    double wanted_us;    /* by lower classes, more than there was credit for */
} quire_schedule_class;

typedef struct quire_schedule {
    quire_schedule_class ranks[QUIRE_RANKS_MAX];
    uint32_t n_rows; /* of the step at hand */
} quire_schedule;

/* One class, of every rank: no promises. */
void quire_schedule_init(quire_schedule *schedule);

/* Fill in n_rows and put the items in the order of the step's slices: decode, then prefill; each by
 * rank, highest first. Returns the number of rows; > 0 when there is an item. */
uint32_t quire_schedule_rows(quire_schedule *schedule, quire_schedule_item *items, uint32_t n,
                             const quire_schedule_limits *limits);

/* The step took so long: settle credit and waiting. */
void quire_schedule_done(quire_schedule *schedule, double step_us);
/* The step was given up after so long, for somebody of a higher class: nobody got rows. */
void quire_schedule_interrupted(quire_schedule *schedule, double step_us);

/* Requests of ranks above this one are worth giving the step at hand up for; QUIRE_RANKS_MAX = it
 * is not given up, because somebody has a turn in it, or lower classes' credit. */
uint32_t quire_schedule_interruptible(const quire_schedule *schedule);

/* What rows of lower classes may add to a step because a request of a class may come any moment,
 * which would have to wait for its end: a share of the time to its first token, as it usually is or
 * as a target says (0 = none); but not so little that steps consist of their fixed cost. */
double quire_schedule_wait_us(const quire_cost *cost, double usual_us, double target_us);

/* What a step with rows of this rank may take by what is promised, on average; 0 = nothing is
 * promised, or known. Of the step at hand. */
double quire_schedule_promised_us(const quire_schedule *schedule, uint32_t rank);

#endif /* QUIRE_ENGINE_SCHEDULE_H */
