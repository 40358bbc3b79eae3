/* lanes_choice.c - see lanes_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/lanes_choice.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static size_t n_lanes_of(const quire_lanes_choice *c)
{
    return (size_t)c->n_layers * c->n_kv_head;
}

int quire_lanes_choice_init(quire_lanes_choice *c, const quire_retain_spec *spec, uint32_t n_layers,
                            uint32_t n_kv_head, uint32_t n_text)
{
    const size_t n_lanes = (size_t)n_layers * n_kv_head;

    *c = (quire_lanes_choice){ .spec = spec,
                               .n_layers = n_layers,
                               .n_kv_head = n_kv_head,
                               .n_text = n_text,
                               .granule = spec->granule };
    c->n_tokens = calloc(n_lanes, sizeof *c->n_tokens);
    c->n_before = calloc(n_lanes, sizeof *c->n_before);
    c->positions = calloc(n_lanes, sizeof *c->positions);
    c->scores = calloc(n_lanes, sizeof *c->scores);
    c->measures = calloc(n_lanes, sizeof *c->measures);
    c->is_kept = calloc(n_lanes, sizeof *c->is_kept);
    c->is_full = calloc(n_layers, sizeof *c->is_full);
    c->layers = calloc(n_layers, sizeof *c->layers);
    c->budgets = calloc(n_layers, sizeof *c->budgets);
    QUIRE_FAIL_IF(c->n_tokens == NULL || c->n_before == NULL || c->positions == NULL ||
                      c->scores == NULL || c->measures == NULL || c->is_kept == NULL ||
                      c->is_full == NULL || c->layers == NULL || c->budgets == NULL,
                  QUIRE_NOMEM);
    return QUIRE_OK;
}

void quire_lanes_choice_fini(quire_lanes_choice *c)
{
    free(c->all_kept);
    free(c->all_scores);
    free(c->budgets);
    free(c->layers);
    free(c->is_full);
    free(c->is_kept);
    free(c->measures);
    free(c->scores);
    free(c->positions);
    free(c->n_before);
    free(c->n_tokens);
}

int quire_lanes_choice_room(quire_lanes_choice *c)
{
    size_t n = 0;

    for (size_t i = 0; i < n_lanes_of(c); i++) {
        n += c->n_tokens[i];
    }
    c->all_scores = malloc(n * sizeof *c->all_scores + 1);
    c->all_kept = malloc(n * sizeof *c->all_kept + 1);
    QUIRE_FAIL_IF(c->all_scores == NULL || c->all_kept == NULL, QUIRE_NOMEM);
    memset(c->all_kept, true, n * sizeof *c->all_kept);
    n = 0;
    for (size_t i = 0; i < n_lanes_of(c); i++) {
        c->scores[i] = c->all_scores + n;
        c->is_kept[i] = c->all_kept + n;
        n += c->n_tokens[i];
    }
    return QUIRE_OK;
}

/* ---- budgets ---- */

static uint32_t n_chosen(const quire_lanes_choice *c, size_t lane)
{
    return c->n_tokens[lane] - c->n_before[lane] - c->n_behind;
}

/* Whether token t of a lane stays in any case. */
static bool stays(const quire_lanes_choice *c, size_t lane, uint32_t t)
{
    return t < c->n_before[lane] || t >= c->n_tokens[lane] - c->n_behind ||
           quire_retain_is_protected(c->spec, c->n_text, (uint32_t)c->positions[lane][t]);
}

/* A layer's budget covers the tokens that stay. If a layer has more such tokens than its part of
 * the share, the budgets of all layers shrink by the difference. */
static void layer_fill(const quire_lanes_choice *c, uint32_t l)
{
    quire_retain_layer *layer = &c->layers[l];

    *layer = (quire_retain_layer){ .n_lanes = c->n_kv_head, .is_full = c->is_full[l] };
    for (size_t i = (size_t)l * c->n_kv_head; i < (size_t)(l + 1) * c->n_kv_head; i++) {
        const uint32_t first = c->n_apart > 0 ? c->n_before[i] : 0;

        layer->n_held += c->n_apart > 0 ? c->n_apart : c->n_tokens[i];
        layer->measure.entropy += c->measures[i].entropy;
        layer->measure.variance += c->measures[i].variance;
        for (uint32_t t = first; t < c->n_tokens[i]; t++) {
            layer->n_protected += stays(c, i, t);
        }
    }
}

/* Tokens that stay before and behind the chosen ones take their part of a layer's budget. */
static void leave_staying(const quire_lanes_choice *c, uint32_t l)
{
    quire_retain_layer *layer = &c->layers[l];
    uint64_t n = 0;

    if (c->n_apart > 0) {
        return;
    }
    for (size_t i = (size_t)l * c->n_kv_head; i < (size_t)(l + 1) * c->n_kv_head; i++) {
        n += n_chosen(c, i);
    }
    c->budgets[l] -= layer->n_held - n;
    layer->n_held = n;
}

void quire_lanes_choice_budgets(quire_lanes_choice *c)
{
    for (uint32_t l = 0; l < c->n_layers; l++) {
        layer_fill(c, l);
    }
    quire_retain_layer_budgets(c->spec, c->n_apart > 0 ? c->n_apart : c->n_text, c->layers,
                               c->n_layers, c->budgets);
    c->n_across = c->across_budget = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        leave_staying(c, l);
        c->n_across += c->layers[l].is_full ? 0 : c->layers[l].n_held;
        c->across_budget += c->layers[l].is_full ? 0 : c->budgets[l];
    }
}

/* ---- choice ---- */

bool quire_lanes_choice_cuts(const quire_lanes_choice *c, uint32_t l)
{
    if (c->layers[l].is_full) {
        return false;
    }
    if (c->spec->threshold > 0) {
        return true;
    }
    return c->spec->policy->is_across ? c->across_budget < c->n_across
                                      : c->budgets[l] < c->layers[l].n_held;
}

/* Choose among the tokens of layers [first, first + n_layers), apart from whole ones. Errors:
 * QUIRE_NOMEM. */
static int choose_layers(const quire_lanes_choice *c, uint32_t first, uint32_t n_layers,
                         uint64_t budget)
{
    const size_t n_max = (size_t)n_layers * c->n_kv_head;
    uint32_t *n_tokens = calloc(n_max, sizeof *n_tokens);
    const int32_t **positions = calloc(n_max, sizeof *positions);
    const float **scores = calloc(n_max, sizeof *scores);
    bool **is_kept = calloc(n_max, sizeof *is_kept);
    quire_retain_choice choice = { .n_tokens = n_tokens,
                                   .positions = positions,
                                   .scores = scores,
                                   .n_text = c->n_text,
                                   .budget = budget,
                                   .granule = c->granule };
    int rc = QUIRE_NOMEM;

    if (n_tokens != NULL && positions != NULL && scores != NULL && is_kept != NULL) {
        for (size_t lane = (size_t)first * c->n_kv_head; lane < first * c->n_kv_head + n_max;
             lane++) {
            if (!c->layers[lane / c->n_kv_head].is_full) {
                const uint32_t n = choice.n_lanes++;

                n_tokens[n] = n_chosen(c, lane);
                positions[n] = c->positions[lane] + c->n_before[lane];
                scores[n] = c->scores[lane] + c->n_before[lane];
                is_kept[n] = c->is_kept[lane] + c->n_before[lane];
            }
        }
        rc = quire_retain_choose(c->spec, &choice, is_kept);
    }
    free(is_kept);
    free(scores);
    free(positions);
    free(n_tokens);
    return rc;
}

int quire_lanes_choice_share(const quire_lanes_choice *c, uint32_t thread, uint32_t n_threads)
{
    int rc = QUIRE_OK;

    if (c->spec->policy->is_across) {
        const bool is_wanted =
            c->across_budget < c->n_across || (c->spec->threshold > 0 && c->n_across > 0);

        return thread == 0 && is_wanted ? choose_layers(c, 0, c->n_layers, c->across_budget)
                                        : QUIRE_OK;
    }
    for (uint32_t l = thread; l < c->n_layers && rc == QUIRE_OK; l += n_threads) {
        rc = quire_lanes_choice_cuts(c, l) ? choose_layers(c, l, 1, c->budgets[l]) : QUIRE_OK;
    }
    return rc;
}
