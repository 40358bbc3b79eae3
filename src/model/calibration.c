/* calibration.c - choices from measured costs. The file is calibration_file.c's.
 *
 * SPDX-License-Identifier: MIT */
#include "model/calibration.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BITS_STEPS 64.0 /* per bit */

int quire_calibration_init(quire_calibration *out, const quire_model_desc *desc, quire_error *err)
{
    memset(out, 0, sizeof(*out));
    if (desc->latent.is_there) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "a calibration measures K and V apart; in models of the "
                               "architecture %s V is a part of K. --kv auto has general rules",
                               desc->arch_name);
    }
    out->n_stored = desc->n_stored;
    out->costs = calloc(desc->n_stored, sizeof(*out->costs));
    out->pairs = calloc(desc->n_stored, sizeof(*out->pairs));
    if (out->costs == NULL || out->pairs == NULL) {
        quire_calibration_fini(out);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (uint32_t l = 0; l < desc->n_stored; l++) {
        for (uint32_t side = 0; side < 2; side++) {
            double *of = out->costs[l].of[side];

            for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
                of[f] = INFINITY;
            }
            of[QUIRE_FORMAT_F32] = 0.0;
            of[QUIRE_FORMAT_F16] = 0.0;
        }
    }
    quire_kv_uniform(desc, (quire_kv_pair){ QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 }, out->pairs);
    return QUIRE_OK;
}

void quire_calibration_fini(quire_calibration *calibration)
{
    free(calibration->costs);
    free(calibration->pairs);
    memset(calibration, 0, sizeof(*calibration));
}

double quire_calibration_sum(const quire_calibration *calibration, const quire_kv_pair *pairs)
{
    double sum = 0.0;

    for (uint32_t l = 0; l < calibration->n_stored; l++) {
        sum += calibration->costs[l].of[QUIRE_SIDE_K][pairs[l].k] +
               calibration->costs[l].of[QUIRE_SIDE_V][pairs[l].v];
    }
    return sum;
}

static double uniform_cost(const quire_calibration *calibration, quire_kv_pair pair)
{
    double sum = 0.0;

    for (uint32_t l = 0; l < calibration->n_stored; l++) {
        sum += calibration->costs[l].of[QUIRE_SIDE_K][pair.k] +
               calibration->costs[l].of[QUIRE_SIDE_V][pair.v];
    }
    return sum;
}

bool quire_calibration_uniform(const quire_calibration *calibration, const quire_model_desc *desc,
                               double bits, quire_kv_pair *out)
{
    double least = INFINITY;

    for (uint32_t k = 0; k < QUIRE_FORMAT_COUNT; k++) {
        for (uint32_t v = 0; v < QUIRE_FORMAT_COUNT; v++) {
            const quire_kv_pair pair = { (quire_format)k, (quire_format)v };
            const double cost = uniform_cost(calibration, pair);

            if (quire_kv_uniform_bits(desc, pair) <= bits + 1e-9 && cost < least) {
                least = cost;
                *out = pair;
            }
        }
    }
    return isfinite(least);
}

int quire_calibration_choose(const quire_calibration *calibration, const quire_model_desc *desc,
                             double bits, quire_kv_pair *pairs, quire_error *err)
{
    quire_kv_pair uniform;

    QUIRE_CHECK(calibration->n_stored == desc->n_stored);
    if (calibration->uniform_wins && quire_calibration_uniform(calibration, desc, bits, &uniform) &&
        quire_kv_pair_equals(uniform, calibration->pairs[0])) {
        quire_kv_uniform(desc, uniform, pairs);
        return QUIRE_OK;
    }
    return quire_kv_allocate(desc, calibration->costs, bits, pairs, err);
}

int quire_calibration_bits_for(const quire_calibration *calibration, const quire_model_desc *desc,
                               double kld_max, double *bits, quire_error *err)
{
    quire_kv_pair *pairs = calloc(desc->n_stored, sizeof(*pairs));
    uint32_t below = (uint32_t)(QUIRE_KV_BITS_MIN * BITS_STEPS); /* does not do */
    uint32_t above = (uint32_t)(QUIRE_KV_BITS_MAX * BITS_STEPS); /* does: f32 costs nothing */
    int rc = QUIRE_OK;

    if (pairs == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    while (rc == QUIRE_OK && above - below > 1) {
        uint32_t middle = below + (above - below) / 2;

        rc = quire_calibration_choose(calibration, desc, middle / BITS_STEPS, pairs, NULL);
        if (rc == QUIRE_RANGE) { /* less than any formats reach */
            below = middle;
            rc = QUIRE_OK;
        } else if (rc == QUIRE_OK && quire_calibration_sum(calibration, pairs) > kld_max) {
            below = middle;
        } else {
            above = middle;
        }
    }
    *bits = above / BITS_STEPS;
    free(pairs);
    return rc < 0 ? quire_error_set(err, rc, "out of memory") : QUIRE_OK;
}
