/* cost.h - what a step costs on this machine with this model, learned from the steps themselves.
 *
 *   step_us = step + several x (1 - 1 / rows)
 *           + prefill_row x prefill rows + decode_row x decode rows + depth_row x depth rows
 *
 * where depth rows are, summed over the rows of the step, the tokens that each of them attends to:
 * attention grows with them, and nothing else does. `several` is why batching pays late on a CPU:
 * one row only waits for the weights to come from memory, the first few more compute badly, and
 * only then is a row cheap. Measured (135M parameters, 2 cores, decode): 10, 30, 47, 55, 63, 79 ms
 * for 1, 2, 4, 8, 16, 32 rows; with step 9, several 42, row 0.9 the formula says 10, 32, 44, 53,
 * 63, 79.
 *
 * How it learns. Sums of products of the five quantities (the normal equations) fade over some
 * hundred steps, so that it follows a machine that becomes busier. After each step a few rounds of
 * coordinate descent move the coefficients towards the solution, none below 0. From where they
 * stand, not from scratch: what no recent step says anything about (prefill, while there is only
 * decode) stays as it was last known, where solving the equations would give anything. Steps count
 * by their relative error, or long prefill steps would decide alone what decode costs; and a step
 * that is far off what was expected (the system did something else) counts less, by Huber's rule.
 *
 * Pure: no clock, no memory. Cost: about a microsecond a step.
 *
 * Thread: one at a time; a copy is a snapshot.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_COST_H
#define QUIRE_ENGINE_COST_H

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_COST_TERMS 5u

typedef struct quire_cost_step {
    uint32_t prefill_rows;
    uint32_t decode_rows;
    uint64_t depth_rows; /* sum over rows of the tokens each attends to */
} quire_cost_step;

typedef struct quire_cost {
    /* What is known; microseconds. Readers want these. */
    double step_us;
    double several_us;
    double prefill_row_us;
    double decode_row_us;
    double depth_row_us;
    double error;     /* running mean of |measured - predicted| / predicted */
    uint64_t n_steps; /* learned from */
    /* Sums for learning, terms scaled to similar size. */
    double products[QUIRE_COST_TERMS][QUIRE_COST_TERMS];
    double targets[QUIRE_COST_TERMS];
} quire_cost;

void quire_cost_init(quire_cost *cost);
void quire_cost_learn(quire_cost *cost, const quire_cost_step *step, double us);

/* Whether predictions mean something: some steps with prefill and some rows have been seen. */
bool quire_cost_is_known(const quire_cost *cost);
double quire_cost_step_us(const quire_cost *cost, const quire_cost_step *step);

/* Add n_rows rows behind `depth` tokens to a step. */
void quire_cost_add_prefill(quire_cost_step *step, uint32_t depth, uint32_t n_rows);
void quire_cost_add_decode(quire_cost_step *step, uint32_t depth);

/* How many rows of prefill behind `depth` tokens, at most n_max, can be added to a step that is to
 * take at most budget_us. n_max while nothing is known. */
uint32_t quire_cost_prefill_fit(const quire_cost *cost, const quire_cost_step *step, uint32_t depth,
                                uint32_t n_max, double budget_us);

/* Computing tokens [begin, end) of a text alone, chunk_tokens a step: what having them is worth. 0
 * while nothing is known. */
double quire_cost_prefill_us(const quire_cost *cost, uint32_t begin, uint32_t end,
                             uint32_t chunk_tokens);

#endif /* QUIRE_ENGINE_COST_H */
