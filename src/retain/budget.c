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

int quire_retain_choose(const quire_retain_spec *spec, const quire_retain_choice *choice,
                        bool *const *is_kept)
{
    const uint64_t floor_tokens =
        (uint64_t)(spec->floor * (double)(choice->budget / choice->n_lanes));
    uint64_t n_all = 0, n_kept_all = 0;
    uint32_t *n_kept = malloc(choice->n_lanes * sizeof *n_kept);
    candidate *all;
    size_t n;

    for (uint32_t lane = 0; lane < choice->n_lanes; lane++) {
        n_all += choice->n_tokens[lane];
    }
    all = malloc((n_all + 1) * sizeof *all);
    if (n_kept == NULL || all == NULL) {
        free(n_kept);
        free(all);
        return QUIRE_NOMEM;
    }
    n = collect(spec, choice, is_kept, all, n_kept);
    qsort(all, n, sizeof *all, by_worth);
    n_kept_all = n_all - n;
    for (int pass = 0; pass < 2; pass++) { /* each lane's floor, then the best of all */
        for (size_t i = 0; i < n && n_kept_all < choice->budget; i++) {
            const candidate *c = &all[i];

            if (!is_kept[c->lane][c->token] && (pass == 1 || n_kept[c->lane] < floor_tokens)) {
                is_kept[c->lane][c->token] = true;
                n_kept[c->lane]++;
                n_kept_all++;
            }
        }
    }
    free(n_kept);
    free(all);
    return QUIRE_OK;
}
