/* reuse_saved.c - the learned part of a reuse model as bytes; see reuse_model.h.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/reuse_model.h"

#include "base/hash128.h"

#include <math.h>
#include <string.h>

#define COUNT_MAX 1e12f /* far beyond the counts of a model: old counts fade */
#define MEAN_MAX  100.0f

static unsigned char *float_put(unsigned char *at, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return quire_le_put(at, bits, 4);
}

static float float_get(const unsigned char *at)
{
    const uint32_t bits = (uint32_t)quire_le_get(at, 4);
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

void quire_reuse_model_save(const quire_reuse_model *model,
                            unsigned char out[QUIRE_REUSE_SAVED_BYTES])
{
    for (uint32_t id = 0; id < QUIRE_REUSE_CLASSES; id++) {
        for (uint32_t b = 0; b < QUIRE_REUSE_AGES; b++) {
            out = float_put(out, model->cells[id][b].n_events);
            out = float_put(out, model->cells[id][b].n_exposed);
        }
    }
    for (uint32_t f = 0; f < QUIRE_REUSE_FEATURES; f++) {
        for (uint32_t v = 0; v < QUIRE_REUSE_VALUES; v++) {
            out = float_put(out, model->weights[f][v].mean);
            out = float_put(out, model->weights[f][v].variance);
        }
    }
}

/* A pair of floats in range; a NaN is in no range. */
static bool pair_is_valid(const unsigned char *at, bool is_weight)
{
    const float a = float_get(at), b = float_get(at + 4);

    return is_weight ? fabsf(a) <= MEAN_MAX && b > 0.0f && b <= QUIRE_REUSE_PRIOR_VARIANCE
                     : a >= 0.0f && a <= COUNT_MAX && b >= 0.0f && b <= COUNT_MAX;
}

static bool is_valid(const unsigned char *bytes)
{
    const size_t n_cells = (size_t)QUIRE_REUSE_CLASSES * QUIRE_REUSE_AGES;
    bool is_good = true;

    for (size_t i = 0; i < QUIRE_REUSE_SAVED_BYTES / 8 && is_good; i++) {
        is_good = pair_is_valid(bytes + 8 * i, i >= n_cells);
    }
    return is_good;
}

bool quire_reuse_model_load(quire_reuse_model *model,
                            const unsigned char bytes[QUIRE_REUSE_SAVED_BYTES], uint64_t now)
{
    if (!is_valid(bytes)) {
        return false;
    }
    for (uint32_t id = 0; id < QUIRE_REUSE_CLASSES; id++) {
        for (uint32_t b = 0; b < QUIRE_REUSE_AGES; b++, bytes += 8) {
            model->cells[id][b].n_events = float_get(bytes);
            model->cells[id][b].n_exposed = float_get(bytes + 4);
        }
    }
    for (uint32_t f = 0; f < QUIRE_REUSE_FEATURES; f++) {
        for (uint32_t v = 0; v < QUIRE_REUSE_VALUES; v++, bytes += 8) {
            model->weights[f][v].mean = float_get(bytes);
            model->weights[f][v].variance = float_get(bytes + 4);
        }
    }
    quire_reuse_refresh_all(model, now);
    return true;
}
