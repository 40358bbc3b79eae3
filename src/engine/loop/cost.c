/* cost.c - see cost.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/cost.h"

#include <math.h>

#define FADE      0.995 /* factor on the sums, per step */
#define ROUNDS    8     /* rounds of coordinate descent per step; the next step continues */
#define HUBER     3.0   /* times the mean error: larger errors weigh less */
#define MEAN_N    64.0  /* steps in the running mean of the error */
#define ERROR_MIN 0.02
#define KNOWN_N   4u
#define LEAST     0.1    /* of the prediction: a shorter step counts as this long */
#define SEEN_MIN  1e-100 /* smaller sums have faded and hold only rounding error */

/* Scales that make the coefficients similar in size: one step, hundreds of prefill rows, tens of
 * decode rows, ten thousands of depth rows. */
static const double scales[QUIRE_COST_TERMS] = { 1.0, 1.0, 1e-2, 1e-1, 1e-4 };

typedef struct terms {
    double x[QUIRE_COST_TERMS];
} terms;

/* The factor of `several` in a step. */
static double several_of(const quire_cost_step *step)
{
    const double n_rows = (double)step->prefill_rows + step->decode_rows;

    return n_rows > 1.0 ? 1.0 - 1.0 / n_rows : 0.0;
}

static terms terms_of(const quire_cost_step *step)
{
    return (terms){ { scales[0], scales[1] * several_of(step), scales[2] * step->prefill_rows,
                      scales[3] * step->decode_rows, scales[4] * (double)step->depth_rows } };
}

/* The coefficients in scaled units, and back. */
static terms coefficients(const quire_cost *c)
{
    return (terms){ { c->step_us / scales[0], c->several_us / scales[1],
                      c->prefill_row_us / scales[2], c->decode_row_us / scales[3],
                      c->depth_row_us / scales[4] } };
}

static void coefficients_set(quire_cost *c, const terms *w)
{
    c->step_us = w->x[0] * scales[0];
    c->several_us = w->x[1] * scales[1];
    c->prefill_row_us = w->x[2] * scales[2];
    c->decode_row_us = w->x[3] * scales[3];
    c->depth_row_us = w->x[4] * scales[4];
}

void quire_cost_init(quire_cost *cost)
{
    *cost = (quire_cost){ 0 };
}

/* Set each coefficient in turn to its optimum given the others, but not below 0. */
static void descend(quire_cost *c)
{
    terms w = coefficients(c);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < QUIRE_COST_TERMS; i++) {
            double rest = c->targets[i];

            if (c->products[i][i] < SEEN_MIN) {
                continue; /* no recent step has this term */
            }
            for (uint32_t j = 0; j < QUIRE_COST_TERMS; j++) {
                rest -= c->products[i][j] * w.x[j];
            }
            w.x[i] = fmax(0.0, w.x[i] + rest / c->products[i][i]);
        }
    }
    coefficients_set(c, &w);
}

/* Weight of a step by its prediction error; also updates the mean error. */
static double trust(quire_cost *c, double predicted_us, double us)
{
    const double error = fabs(us - predicted_us) / fmax(predicted_us, 1.0);
    const double usual = HUBER * fmax(c->error, ERROR_MIN);

    if (c->n_steps < KNOWN_N) {
        return 1.0;
    }
    /* An outlier's part in the mean error is bounded, too. The mean still grows when most steps are
     * off, because then the machine has changed. */
    c->error += (fmin(error, 2.0 * usual) - c->error) / fmin((double)c->n_steps, MEAN_N);
    return error > usual ? usual / error : 1.0;
}

void quire_cost_learn(quire_cost *c, const quire_cost_step *step, double us)
{
    const terms t = terms_of(step);
    const double predicted_us = quire_cost_step_us(c, step);
    const double size_us = fmax(us, LEAST * predicted_us);
    double weight;

    if (us <= 0.0 || !isfinite(us)) {
        return; /* no information if the clock stands still */
    }
    weight = trust(c, predicted_us, us) / (size_us * size_us);
    for (uint32_t i = 0; i < QUIRE_COST_TERMS; i++) {
        for (uint32_t j = 0; j < QUIRE_COST_TERMS; j++) {
            c->products[i][j] = c->products[i][j] * FADE + weight * t.x[i] * t.x[j];
        }
        c->targets[i] = c->targets[i] * FADE + weight * t.x[i] * us;
    }
    c->n_steps++;
    descend(c);
}

bool quire_cost_is_known(const quire_cost *cost)
{
    return cost->n_steps >= KNOWN_N && cost->prefill_row_us > 0.0;
}

double quire_cost_step_us(const quire_cost *c, const quire_cost_step *step)
{
    return c->step_us + c->several_us * several_of(step) + c->prefill_row_us * step->prefill_rows +
           c->decode_row_us * step->decode_rows + c->depth_row_us * (double)step->depth_rows;
}

/* The first row attends to depth + 1 tokens, the next to depth + 2, ... */
void quire_cost_add_prefill(quire_cost_step *step, uint32_t depth, uint32_t n_rows)
{
    const uint64_t n = n_rows;

    step->prefill_rows += n_rows;
    step->depth_rows += n * depth + n * (n + 1) / 2;
}

void quire_cost_add_decode(quire_cost_step *step, uint32_t depth)
{
    step->decode_rows++;
    step->depth_rows += (uint64_t)depth + 1;
}

uint32_t quire_cost_prefill_fit(const quire_cost *cost, const quire_cost_step *step, uint32_t depth,
                                uint32_t n_max, double budget_us)
{
    uint32_t low = 0, high = n_max;

    if (!quire_cost_is_known(cost)) {
        return n_max;
    }
    while (low < high) { /* low fits, or is 0 */
        const uint32_t n = low + (high - low + 1) / 2;
        quire_cost_step with = *step;

        quire_cost_add_prefill(&with, depth, n);
        if (quire_cost_step_us(cost, &with) <= budget_us) {
            low = n;
        } else {
            high = n - 1;
        }
    }
    return low;
}

double quire_cost_prefill_us(const quire_cost *cost, uint32_t begin, uint32_t end,
                             uint32_t chunk_tokens)
{
    const uint32_t n = end > begin ? end - begin : 0;
    quire_cost_step all = { 0 };

    if (n == 0 || !quire_cost_is_known(cost)) {
        return 0.0;
    }
    quire_cost_add_prefill(&all, begin, n);
    return quire_cost_step_us(cost, &all) +
           (cost->step_us + cost->several_us) * ((n - 1) / chunk_tokens);
}
