/* schedule.h - distribute the rows of the next step among requests.
 *
 * Within a class. Each request in decode gets one row. Prefill rows are shared out so that short
 * prompts do not wait for long ones, and long prompts progress:
 *
 *   - the oldest request gets at least a quarter;
 *   - the rest goes by priority, then to the request with the fewest tokens left, then by arrival.
 *     If another request waits for a prefix that this request computes, only the tokens up to the
 *     end of that prefix count as left.
 *
 * Decode and prefill together fill chunk_tokens exactly while enough work exists, so that the
 * shapes of steps repeat. If decode alone takes more than three quarters of chunk_tokens, prefill
 * still gets a quarter.
 *
 * Between classes. The highest class with work has the step to itself. Lower classes join a step by
 * one of two rules:
 *
 *   credit   A class in decode is promised a tpot: a target, or `stretch` times the duration of its
 *            steps alone. The class earns credit when its steps are shorter than promised; lower
 *            classes spend this credit when they lengthen a step. Lower classes save up credit and
 *            then join with many rows at once, because a few extra rows are expensive on a CPU
 *            (cost.h: several): 32 foreign rows in one step of twenty cost the high class as much
 *            as two rows in each of ten steps, and do more work. The tpot, a mean, is as promised
 *            either way. There is no credit while a higher class has prefill: a step with prefill
 *            is full, so postponing lower rows costs no throughput.
 *   a turn   A class with work gets rows in the next step, regardless of promises, when it had none
 *            for (sum of weights / its weight) x (the time that its rows may add to a step: wait_us
 *            below, at least QUIRE_TURN_US). So the weight of a class is its guaranteed share of
 *            the time, and between two steps with its rows lie at most that time and two steps.
 *            Within the class the request left out longest comes first, so each of its requests
 *            progresses.
 *
 * The rows of a lower class that joins are also bounded by wait_us, if the caller sets it: the time
 * that they may add to a step, since a request of a higher class that arrives meanwhile waits for
 * its end. Decode rows beyond this bound take turns. A class that joins gets at least one row of
 * decode and an eighth of a chunk of prefill, if it has any. Prefill that is cut ends at a multiple
 * of 16 rows of the step, so that shapes repeat. A step of a single class has no such bound: it is
 * given up when a request of a higher class arrives (quire_schedule_interruptible()). Giving up
 * wastes part of a step per arrival; short steps would waste their fixed cost all the time.
 *
 * While the costs are unknown, lower classes get all of their decode and an eighth of a chunk of
 * prefill beside higher decode; the costs become known after some steps.
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
    uint32_t depth;      /* computed tokens of the request */
    uint32_t n_left;     /* prefill: tokens to compute, >= 1 */
    uint32_t n_until;    /* prefill: tokens until a waiting request can continue; else n_left */
    uint32_t n_left_out; /* decode: steps since its last row */
    uint8_t rank;
    bool is_decode;
    uint32_t n_rows; /* out; 0 = not in this step */
} quire_schedule_item;

typedef struct quire_schedule_limits {
    uint32_t chunk_tokens;  /* >= 1 */
    uint32_t rows_max;      /* of a step; at least the number of items */
    const quire_cost *cost; /* NULL = unknown */
} quire_schedule_limits;

typedef struct quire_schedule_class {
    uint32_t weight; /* 0 = no class has this rank; its items have weight 1 */
    double tpot_us;  /* target; 0 = none */
    double stretch;  /* without a target */
    double wait_us;  /* time that its rows may add to a step; 0 = unbounded */
    /* Kept between steps. */
    double credit_us; /* time that lower classes may add to steps; may be negative */
    double idle_us;   /* computing time since it last had rows, while it had work */
    /* Of the current step. */
    bool has_items;
    bool has_rows;
    bool has_decode;  /* rows of decode */
    bool has_prefill; /* this or a higher class has prefill to do */
    bool has_turn;
    uint32_t n_own_rows; /* of this and higher classes */
    double own_us;       /* predicted time of those rows; 0 = unknown */
    double wanted_us;    /* time wanted by lower classes beyond the credit */
} quire_schedule_class;

typedef struct quire_schedule {
    quire_schedule_class ranks[QUIRE_RANKS_MAX];
    uint32_t n_rows; /* of the current step */
} quire_schedule;

/* Initialize: every rank has a class without promises. */
void quire_schedule_init(quire_schedule *schedule);

/* Fill in n_rows and put the items in the order of the step's slices: decode, then prefill; each by
 * rank, highest first. Returns the number of rows; > 0 when there is an item. */
uint32_t quire_schedule_rows(quire_schedule *schedule, quire_schedule_item *items, uint32_t n,
                             const quire_schedule_limits *limits);

/* The step took step_us: settle credit and waiting. */
void quire_schedule_done(quire_schedule *schedule, double step_us);
/* The step was given up after step_us for a higher class: no request got rows. */
void quire_schedule_interrupted(quire_schedule *schedule, double step_us);

/* Rank above which a new request interrupts the current step. QUIRE_RANKS_MAX = the step is not
 * interrupted, because a class has a turn in it or lower classes spend credit in it. */
uint32_t quire_schedule_interruptible(const quire_schedule *schedule);

/* Bound of the time that rows of lower classes may add to a step, because a new request waits for
 * the end of the step. The bound is a share of the time to the first token of its class: the usual
 * one, or the target (0 = none). It is large enough that steps do not consist of their fixed
 * cost. */
double quire_schedule_wait_us(const quire_cost *cost, double usual_us, double target_us);

/* Promised mean duration of the current step for rows of this rank; 0 = no promise, or costs
 * unknown. */
double quire_schedule_promised_us(const quire_schedule *schedule, uint32_t rank);

#endif /* QUIRE_ENGINE_SCHEDULE_H */
