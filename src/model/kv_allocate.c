/* kv_allocate.c - see kv_allocate.h.
 *
 * A multiple-choice knapsack: each side takes one format, sizes are whole bytes per token, so a
 * table over (side, bytes left) gives the exact optimum. A greedy descent would end
 * within one step of the optimum. But the step by which it overshoots is arbitrary, so a larger
 * size could get a worse choice than a smaller one.
 *
 * SPDX-License-Identifier: MIT */
#include "model/kv_allocate.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A side's formats by size, smallest first. */
typedef struct item {
    uint32_t n;
    quire_format format[QUIRE_FORMAT_COUNT];
    uint32_t extra[QUIRE_FORMAT_COUNT]; /* bytes of a token beyond the smallest, in units */
    double cost[QUIRE_FORMAT_COUNT];
} item;

typedef struct problem {
    const quire_model_desc *desc;
    uint32_t n_items; /* side s of layer l is item 2 * l + s */
    item *items;
    uint64_t least_bytes; /* all sides in their smallest formats */
    uint64_t most_units;  /* all sides in their largest, beyond that */
    uint32_t unit_bytes;
} problem;

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b != 0) {
        uint32_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Insert a format in order of size; of two with equal sizes the cheaper one is kept. */
static void item_add(item *it, quire_format format, uint32_t bytes, double cost)
{
    uint32_t at = 0;

    while (at < it->n && it->extra[at] < bytes) {
        at++;
    }
    if (at < it->n && it->extra[at] == bytes) {
        if (cost < it->cost[at]) {
            it->format[at] = format;
            it->cost[at] = cost;
        }
        return;
    }
    for (uint32_t i = it->n; i > at; i--) {
        it->format[i] = it->format[i - 1];
        it->extra[i] = it->extra[i - 1];
        it->cost[i] = it->cost[i - 1];
    }
    it->format[at] = format;
    it->extra[at] = bytes;
    it->cost[at] = cost;
    it->n++;
}

/* Sizes become extras over each side's smallest, counted in their common divisor. */
static void problem_state(problem *p, const quire_kv_cost *costs)
{
    for (uint32_t i = 0; i < p->n_items; i++) {
        item *it = &p->items[i];
        uint32_t least;

        for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
            double cost = costs[i / 2].of[i % 2][f];

            if (isfinite(cost)) {
                item_add(it, (quire_format)f,
                         (uint32_t)quire_kv_side_bytes_per_token(p->desc, i / 2, (quire_format)f,
                                                                 (quire_side)(i % 2)),
                         cost);
            }
        }
        QUIRE_CHECK(it->n > 0);
        least = it->extra[0];
        p->least_bytes += least;
        for (uint32_t j = 0; j < it->n; j++) {
            it->extra[j] -= least;
            p->unit_bytes = gcd(it->extra[j], p->unit_bytes);
        }
    }
    p->unit_bytes = p->unit_bytes != 0 ? p->unit_bytes : 1;
    for (uint32_t i = 0; i < p->n_items; i++) {
        item *it = &p->items[i];

        for (uint32_t j = 0; j < it->n; j++) {
            it->extra[j] /= p->unit_bytes;
        }
        p->most_units += it->extra[it->n - 1];
    }
}

/* best[c]: least cost of the items so far with at most c units beyond the least size. chosen[i][c]:
 * the format of item i in this solution. */
static void solve(const problem *p, size_t n_units, double *best, unsigned char *chosen)
{
    for (size_t c = 0; c <= n_units; c++) {
        best[c] = 0.0;
    }
    for (uint32_t i = 0; i < p->n_items; i++) {
        const item *it = &p->items[i];
        unsigned char *choice = chosen + i * (n_units + 1);

        /* c goes down, so that best[] of smaller counts is still that of the items before. */
        for (size_t c = n_units + 1; c-- > 0;) {
            double least = best[c] + it->cost[0];

            choice[c] = 0;
            for (uint32_t j = 1; j < it->n && it->extra[j] <= c; j++) {
                double cost = best[c - it->extra[j]] + it->cost[j];

                if (cost < least) {
                    least = cost;
                    choice[c] = (unsigned char)j;
                }
            }
            best[c] = least;
        }
    }
}

static void read_back(const problem *p, size_t n_units, const unsigned char *chosen,
                      quire_kv_pair *pairs)
{
    size_t left = n_units;

    for (uint32_t i = p->n_items; i-- > 0;) {
        const item *it = &p->items[i];
        uint32_t j = chosen[i * (n_units + 1) + left];

        left -= it->extra[j];
        if (i % 2 == QUIRE_SIDE_K) {
            pairs[i / 2].k = it->format[j];
            pairs[i / 2].v = p->desc->latent.is_there ? it->format[j] : pairs[i / 2].v;
        } else {
            pairs[i / 2].v = it->format[j];
        }
    }
}

int quire_kv_allocate(const quire_model_desc *desc, const quire_kv_cost *costs, double bits,
                      quire_kv_pair *pairs, quire_error *err)
{
    const double n_values = (double)quire_kv_values_per_token(desc);
    problem p = { .desc = desc, .n_items = 2 * desc->n_stored };
    unsigned char *chosen = NULL;
    double *best = NULL;
    double allowed_bytes = bits * n_values / 8.0 + 1e-6; /* 8.25 must not become 8.2499 */
    size_t n_units;
    int rc = QUIRE_OK;

    p.items = calloc(p.n_items, sizeof(*p.items));
    if (p.items == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    problem_state(&p, costs);
    if (allowed_bytes < (double)p.least_bytes) {
        const double least = 8.0 * (double)p.least_bytes / n_values;

        rc = quire_error_set(err, QUIRE_RANGE,
                             "%.2f bits per value is less than the formats can reach on this "
                             "model: choose %.2f or more",
                             bits, ceil(least * 100.0 - 1e-6) / 100.0);
        goto out;
    }
    n_units =
        (size_t)fmin((allowed_bytes - (double)p.least_bytes) / p.unit_bytes, (double)p.most_units);
    best = malloc((n_units + 1) * sizeof(*best));
    chosen = malloc((n_units + 1) * p.n_items);
    if (best == NULL || chosen == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "out of memory");
        goto out;
    }
    solve(&p, n_units, best, chosen);
    read_back(&p, n_units, chosen, pairs);
out:
    free(chosen);
    free(best);
    free(p.items);
    return rc;
}
