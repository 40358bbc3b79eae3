/* budget.c - how many tokens a layer keeps, and which of each lane.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/policy.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>

/* ---- layers ---- */

/* CAKE: H^(1/tau1) * V^(1/tau2). Layers of any other policy weigh the same per lane. */
static double weight_of(const quire_retain_spec *spec, const quire_retain_layer *layer)
{
    double weight;

    if (!spec->policy->weighs_layers) {
        return layer->n_lanes;
    }
    weight = pow(layer->measure.entropy, 1.0 / spec->tau1) *
             pow(layer->measure.variance, 1.0 / spec->tau2);
    return isfinite(weight) && weight > 0.0 ? weight : 0.0;
}

static bool is_settled(const quire_retain_layer *layer, uint64_t budget)
{
    return layer->is_full || budget >= layer->n_held;
}

/* Hand out `rest` tokens above the protected ones by weight. A layer whose part exceeds
 * its tokens keeps all of them; the other layers divide the rest again. Each round settles a layer
 * or is the last. */
static void divide(const quire_retain_layer *layers, uint32_t n_layers, uint64_t rest,
                   uint64_t *budgets)
{
    bool is_last = false;

    while (!is_last) {
        double sum = 0.0;
        uint64_t taken = 0;

        is_last = true;
        for (uint32_t l = 0; l < n_layers; l++) {
            sum += is_settled(&layers[l], budgets[l]) ? 0.0 : layers[l].weight;
        }
        for (uint32_t l = 0; l < n_layers && sum > 0.0; l++) {
            const uint64_t wants = layers[l].n_held - layers[l].n_protected;

            if (!is_settled(&layers[l], budgets[l]) && taken + wants <= rest &&
                (double)rest * (layers[l].weight / sum) >= (double)wants) {
                budgets[l] = layers[l].n_held;
                taken += wants;
                is_last = false;
            }
        }
        for (uint32_t l = 0; is_last && l < n_layers && sum > 0.0; l++) {
            if (!is_settled(&layers[l], budgets[l])) {
                budgets[l] += (uint64_t)((double)rest * (layers[l].weight / sum));
            }
        }
        rest -= taken;
    }
}

void quire_retain_layer_budgets(const quire_retain_spec *spec, uint32_t n_text,
                                quire_retain_layer *layers, uint32_t n_layers, uint64_t *budgets)
{
    uint64_t n_lanes = 0, spent = 0, total;
    double sum = 0.0;

    for (uint32_t l = 0; l < n_layers; l++) {
        n_lanes += layers[l].n_lanes;
        budgets[l] = layers[l].is_full ? layers[l].n_held : layers[l].n_protected;
        spent += budgets[l];
        layers[l].weight = weight_of(spec, &layers[l]);
        sum += layers[l].is_full ? 0.0 : layers[l].weight;
    }
    /* Attention that never moves has variance 0 in every layer: then all layers are alike. */
    for (uint32_t l = 0; sum <= 0.0 && l < n_layers; l++) {
        layers[l].weight = layers[l].n_lanes;
    }
    total = (uint64_t)(spec->share * (double)n_text * (double)n_lanes);
    if (spent < total) {
        divide(layers, n_layers, total - spent, budgets);
    }
}

/* ---- tokens ---- */

typedef struct candidate {
    float score;
    int32_t position;
    uint32_t lane;
    uint32_t token; /* in the lane */
} candidate;

/* Best first: the higher score, then the later position, then the first lane. */
static int by_worth(const void *a, const void *b)
{
    const candidate *x = a;
    const candidate *y = b;

    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    if (x->position != y->position) {
        return x->position > y->position ? -1 : 1;
    }
    return x->lane < y->lane ? -1 : x->lane > y->lane;
}

/* Keep protected tokens; the others become candidates. */
static size_t collect(const quire_retain_spec *spec, const quire_retain_choice *choice,
                      bool *const *is_kept, candidate *all, uint32_t *n_kept)
{
    size_t n = 0;

    for (uint32_t lane = 0; lane < choice->n_lanes; lane++) {
        n_kept[lane] = 0;
        for (uint32_t t = 0; t < choice->n_tokens[lane]; t++) {
            const int32_t position = choice->positions[lane][t];
            const float score = choice->scores[lane][t];

            is_kept[lane][t] = quire_retain_is_protected(spec, choice->n_text, (uint32_t)position);
            if (is_kept[lane][t]) {
                n_kept[lane]++;
            } else {
                all[n++] = (candidate){ isnan(score) ? -INFINITY : score, position, lane, t };
            }
        }
    }
    return n;
}

/* The least score of a lane that is kept beyond the floor. */
static float least_of(const quire_retain_spec *spec, const quire_retain_choice *choice,
                      uint32_t lane)
{
    const uint32_t n = choice->n_tokens[lane];
    double sum = 0.0;

    if (spec->threshold <= 0) {
        return -INFINITY;
    }
    if (spec->policy->worth != QUIRE_RETAIN_WORTH_NONE) {
        return (float)spec->threshold;
    }
    for (uint32_t t = 0; t < n; t++) {
        sum += isnan(choice->scores[lane][t]) ? 0.0 : (double)choice->scores[lane][t];
    }
    return n > 0 ? (float)(spec->threshold * sum / n) : -INFINITY;
}

/* Scratch of a choice. */
typedef struct choosing {
    uint32_t *n_kept; /* [n_lanes] */
    uint32_t *wanted; /* [n_lanes] of granules */
    float *least;     /* [n_lanes] */
    candidate *all;
} choosing;

static int choosing_init(choosing *c, const quire_retain_spec *spec,
                         const quire_retain_choice *choice, uint64_t n_all)
{
    c->n_kept = malloc(choice->n_lanes * sizeof *c->n_kept);
    c->wanted = malloc(choice->n_lanes * sizeof *c->wanted);
    c->least = malloc(choice->n_lanes * sizeof *c->least);
    c->all = malloc((n_all + 1) * sizeof *c->all);
    QUIRE_FAIL_IF(c->n_kept == NULL || c->wanted == NULL || c->least == NULL || c->all == NULL,
                  QUIRE_NOMEM);
    for (uint32_t lane = 0; lane < choice->n_lanes; lane++) {
        c->least[lane] = least_of(spec, choice, lane);
    }
    return QUIRE_OK;
}

static void choosing_fini(choosing *c)
{
    free(c->all);
    free(c->least);
    free(c->wanted);
    free(c->n_kept);
}

/* Granules of each lane: those that are full, one more for the lanes with the largest remainders.
 */
static void want_granules(choosing *c, const quire_retain_choice *choice)
{
    const uint32_t granule = choice->granule;
    uint64_t n_rest = 0;

    for (uint32_t lane = 0; lane < choice->n_lanes; lane++) {
        c->wanted[lane] = c->n_kept[lane] / granule * granule;
        n_rest += c->n_kept[lane] % granule;
    }
    for (; n_rest >= granule; n_rest -= granule) {
        uint32_t best = 0, best_rest = 0;

        for (uint32_t lane = 0; lane < choice->n_lanes; lane++) {
            const uint32_t rest =
                c->n_kept[lane] > c->wanted[lane] ? c->n_kept[lane] - c->wanted[lane] : 0;

            if (rest > best_rest) {
                best = lane;
                best_rest = rest;
            }
        }
        c->wanted[best] += granule;
    }
}

/* Give or take tokens until every lane keeps its wanted number. */
static void round_lanes(choosing *c, const quire_retain_spec *spec,
                        const quire_retain_choice *choice, size_t n, bool *const *is_kept)
{
    want_granules(c, choice);
    for (uint32_t lane = 0; lane < choice->n_lanes; lane++) {
        uint32_t n_protected = 0;

        for (uint32_t t = 0; t < choice->n_tokens[lane]; t++) {
            n_protected += quire_retain_is_protected(spec, choice->n_text,
                                                     (uint32_t)choice->positions[lane][t]);
        }
        while (c->wanted[lane] < n_protected) {
            c->wanted[lane] += choice->granule;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const candidate *one = &c->all[i];

        if (!is_kept[one->lane][one->token] && c->n_kept[one->lane] < c->wanted[one->lane]) {
            is_kept[one->lane][one->token] = true;
            c->n_kept[one->lane]++;
        }
    }
    for (size_t i = n; i-- > 0;) {
        const candidate *one = &c->all[i];

        if (is_kept[one->lane][one->token] && c->n_kept[one->lane] > c->wanted[one->lane]) {
            is_kept[one->lane][one->token] = false;
            c->n_kept[one->lane]--;
        }
    }
}

int quire_retain_choose(const quire_retain_spec *spec, const quire_retain_choice *choice,
                        bool *const *is_kept)
{
    const uint64_t floor_tokens =
        (uint64_t)(spec->floor * (double)(choice->budget / choice->n_lanes));
    uint64_t n_all = 0, n_kept_all = 0;
    choosing c = { 0 };
    size_t n;

    for (uint32_t lane = 0; lane < choice->n_lanes; lane++) {
        n_all += choice->n_tokens[lane];
    }
    if (choosing_init(&c, spec, choice, n_all) < 0) {
        choosing_fini(&c);
        return QUIRE_NOMEM;
    }
    n = collect(spec, choice, is_kept, c.all, c.n_kept);
    qsort(c.all, n, sizeof *c.all, by_worth);
    n_kept_all = n_all - n;
    for (int pass = 0; pass < 2; pass++) { /* each lane's floor, then the best of all */
        for (size_t i = 0; i < n && n_kept_all < choice->budget; i++) {
            const candidate *one = &c.all[i];
            const bool is_wanted =
                pass == 0 ? c.n_kept[one->lane] < floor_tokens : one->score >= c.least[one->lane];

            if (is_wanted && !is_kept[one->lane][one->token]) {
                is_kept[one->lane][one->token] = true;
                c.n_kept[one->lane]++;
                n_kept_all++;
            }
        }
    }
    if (choice->granule > 1) {
        round_lanes(&c, spec, choice, n, is_kept);
    }
    choosing_fini(&c);
    return QUIRE_OK;
}
