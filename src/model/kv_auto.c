/* kv_auto.c - formats for a size, by rules that hold for models in general.
 *
 * The cost of a format in a place is its rounding error (docs/formats.md, normal rows of 64 values)
 * times the weight of the place. K has more weight than V, and the first and last layers have more
 * weight than the others. bench/results/calibrate.md has the measurements behind the weights.
 *
 * The rules may be wrong about a model. So no side gets a less exact format than in the best pair
 * of formats for all layers of the same size: then the choice is never behind that pair. Measured
 * costs of the model itself are better than these rules (kv_allocate.h).
 *
 * SPDX-License-Identifier: MIT */
#include "model/kv_allocate.h"

#include <math.h>
#include <stdlib.h>

#define END_LAYERS 2u /* at each end */

/* A factor of about 4 in the weight is worth one bit. */
#define WEIGHT_K          2.0
#define WEIGHT_K_DELICATE 3.0
#define WEIGHT_END        2.0

#define SMALL_PARAMS 1.5e9
#define WIDE_SHARING 6u /* query heads per kv head */

/* Mean squared rounding error of a unit Gaussian; for q8 with one scale per row, from its largest
 * element. bf16 is never chosen: it is as large as f16 and less exact. */
static double rounding_error(quire_format format)
{
    switch (format) {
    case QUIRE_FORMAT_F32:
        return 0.0;
    case QUIRE_FORMAT_F16:
        return 8e-8;
    case QUIRE_FORMAT_Q8:
        return 3.2e-5;
    case QUIRE_FORMAT_Q6:
        return 4.1e-4;
    case QUIRE_FORMAT_Q5:
        return 1.7e-3;
    case QUIRE_FORMAT_Q4:
        return 7.0e-3;
    case QUIRE_FORMAT_Q3:
        return 2.9e-2;
    case QUIRE_FORMAT_BF16:
    case QUIRE_FORMAT_COUNT:
        break;
    }
    return INFINITY;
}

static bool is_delicate(const quire_model_desc *desc)
{
    return (double)desc->n_params < SMALL_PARAMS ||
           desc->n_head >= WIDE_SHARING * desc->n_kv_head || desc->has_qkv_bias;
}

static bool is_end(const quire_model_desc *desc, uint32_t layer)
{
    return layer < END_LAYERS || layer + END_LAYERS >= desc->n_stored;
}

static void fill_costs(const quire_model_desc *desc, quire_kv_cost *costs)
{
    const double k_weight = is_delicate(desc) ? WEIGHT_K_DELICATE : WEIGHT_K;

    for (uint32_t l = 0; l < desc->n_stored; l++) {
        const double weight = is_end(desc, l) ? WEIGHT_END : 1.0;

        for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
            const double error = weight * rounding_error((quire_format)f);

            costs[l].of[QUIRE_SIDE_K][f] = k_weight * error;
            costs[l].of[QUIRE_SIDE_V][f] = error;
            if (desc->latent.is_there && isfinite(error)) { /* K is V as well */
                costs[l].of[QUIRE_SIDE_K][f] += error;
                costs[l].of[QUIRE_SIDE_V][f] = 0.0;
            }
        }
    }
}

/* The pair for all layers that costs least within the size; false when there is none. */
static bool best_uniform(const quire_model_desc *desc, double bits, const quire_kv_cost *cost,
                         quire_kv_pair *out)
{
    double least = INFINITY;

    for (uint32_t k = 0; k < QUIRE_FORMAT_COUNT; k++) {
        for (uint32_t v = 0; v < QUIRE_FORMAT_COUNT; v++) {
            const quire_kv_pair pair = { (quire_format)k, (quire_format)v };
            const double sum = cost->of[QUIRE_SIDE_K][k] + cost->of[QUIRE_SIDE_V][v];
            const double size = quire_kv_uniform_bits(desc, pair);

            if (size <= bits + 1e-9 && sum < least) {
                least = sum;
                *out = pair;
            }
        }
    }
    return isfinite(least);
}

/* Forbid on each side the formats that are less exact than the pair's. */
static void forbid_below(const quire_model_desc *desc, quire_kv_pair pair, quire_kv_cost *costs)
{
    for (uint32_t l = 0; l < desc->n_stored; l++) {
        for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
            if (rounding_error((quire_format)f) > rounding_error(pair.k)) {
                costs[l].of[QUIRE_SIDE_K][f] = INFINITY;
            }
            if (rounding_error((quire_format)f) > rounding_error(pair.v)) {
                costs[l].of[QUIRE_SIDE_V][f] = INFINITY;
            }
        }
    }
}

static void costs_of(const quire_model_desc *desc, double bits, quire_kv_cost *costs)
{
    quire_kv_pair uniform = { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 };

    fill_costs(desc, costs);
    if (best_uniform(desc, bits, &costs[desc->n_stored / 2], &uniform)) {
        forbid_below(desc, uniform, costs);
    }
}

/* The ends keep 8 bit or more, the others 4. */
static void forbid_low(const quire_model_desc *desc, quire_kv_cost *costs)
{
    for (uint32_t l = 0; l < desc->n_stored; l++) {
        for (uint32_t side = 0; side < 2; side++) {
            costs[l].of[side][QUIRE_FORMAT_Q3] = INFINITY;
            if (is_end(desc, l)) {
                costs[l].of[side][QUIRE_FORMAT_Q4] = INFINITY;
                costs[l].of[side][QUIRE_FORMAT_Q5] = INFINITY;
                costs[l].of[side][QUIRE_FORMAT_Q6] = INFINITY;
            }
        }
    }
}

int quire_kv_auto(const quire_model_desc *desc, double bits, quire_kv_pair *pairs, quire_error *err)
{
    quire_kv_cost *costs = calloc(desc->n_stored, sizeof(*costs));
    int rc;

    if (costs == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    costs_of(desc, bits, costs);
    forbid_low(desc, costs);
    rc = quire_kv_allocate(desc, costs, bits, pairs, NULL);
    if (rc == QUIRE_RANGE) {
        costs_of(desc, bits, costs);
        rc = quire_kv_allocate(desc, costs, bits, pairs, err);
    } else if (rc < 0) {
        quire_error_set(err, rc, "out of memory");
    }
    free(costs);
    return rc;
}
