/* cost.h - a cost model of steps for this machine and this model, learned from measured steps.
 *
 *   step_us = step + several x (1 - 1 / rows)
 *           + prefill_row x prefill rows + decode_row x decode rows + depth_row x depth rows
 *
 * depth rows: the number of attended tokens, summed over the rows of the step. Only the cost of
 * attention grows with it. `several` models the late gain of batching on a CPU: a single row waits
 * for the weights to come from memory, the next few rows compute inefficiently, and further rows
 * are cheap.
 *
 * Learning. The sums of products of the five terms (the normal equations) fade over some hundred
 * steps, so the model follows a machine that becomes busier. After each step a few rounds of
 * coordinate descent move the coefficients towards the solution; no coefficient falls below 0. The
 * descent starts at the current coefficients, so a coefficient without recent data (prefill, during
 * pure decode) keeps its last value; solving the equations would give it an arbitrary one. Steps
 * are weighted by relative error, so that long prefill steps do not dominate the cost of decode.
 * Outliers (the system did something else) weigh less, by Huber's rule.
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
    uint64_t depth_rows; /* attended tokens, summed over rows */
} quire_cost_step;

typedef struct quire_cost {
    /* Learned coefficients, in microseconds: the part for readers. */
    double step_us;
    double several_us;
    double prefill_row_us;
    double decode_row_us;
    double depth_row_us;
    double error;     /* running mean of |measured - predicted| / predicted */
    uint64_t n_steps; /* steps learned from */
    /* Sums for learning, terms scaled to similar size. */
    double products[QUIRE_COST_TERMS][QUIRE_COST_TERMS];
    double targets[QUIRE_COST_TERMS];
} quire_cost;

void quire_cost_init(quire_cost *cost);
void quire_cost_learn(quire_cost *cost, const quire_cost_step *step, double us);

/* Whether predictions are usable: enough steps and rows, prefill among them, were seen. */
bool quire_cost_is_known(const quire_cost *cost);
double quire_cost_step_us(const quire_cost *cost, const quire_cost_step *step);

/* Add n_rows rows behind `depth` tokens to a step. */
void quire_cost_add_prefill(quire_cost_step *step, uint32_t depth, uint32_t n_rows);
void quire_cost_add_decode(quire_cost_step *step, uint32_t depth);

/* Number of prefill rows behind `depth` tokens, at most n_max, that fit into a step of at most
 * budget_us. n_max while the costs are unknown. */
uint32_t quire_cost_prefill_fit(const quire_cost *cost, const quire_cost_step *step, uint32_t depth,
                                uint32_t n_max, double budget_us);

/* Cost of computing tokens [begin, end) of a text alone, in steps of chunk_tokens: the value of
 * having them cached. 0 while the costs are unknown. */
double quire_cost_prefill_us(const quire_cost *cost, uint32_t begin, uint32_t end,
                             uint32_t chunk_tokens);

#endif /* QUIRE_ENGINE_COST_H */
