/* kv_args.c - see kv_args.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/kv_args.h"

#include "base/check.h"
#include "cli/settings/args.h"

#include <stdio.h>

const char *const quire_split_modes[] = { "none", "layer", "row", NULL };
const char *const quire_kv_overflows[] = { "auto", "tier", "refuse", NULL };
const char *const quire_kv_overflow_attends[] = { "device", "host", "auto", NULL };

quire_kv_args quire_kv_args_of(const quire_kv_args *args, const quire_kv_choice *choice)
{
    return (quire_kv_args){
        .choice = *choice, .recent = args->recent, .sinks = args->sinks, .state = args->state
    };
}

const char *const quire_state_types[] = { "f32", "f16", NULL };

quire_format quire_state_type_format(int index)
{
    return index == 0 ? QUIRE_FORMAT_F32 : QUIRE_FORMAT_F16;
}

int quire_kv_args_check(const quire_kv_args *args, quire_error *err)
{
    const bool has_side = args->has_k || args->has_v;

    if (args->layers != NULL && (args->has_choice || has_side)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--kv-layers and %s both set the formats: use one (QUIRE_KV and "
                               "the like count as options)",
                               args->has_choice ? "--kv" : "-ctk or -ctv");
    }
    if (args->choice.is_auto && has_side) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--kv auto chooses both sides of every layer: it goes with neither "
                               "-ctk nor -ctv");
    }
    return QUIRE_OK;
}

int quire_kv_args_resolve(const quire_kv_args *args, const quire_model_desc *desc,
                          quire_kv_pair *pairs, quire_error *err)
{
    quire_kv_pair pair = args->choice.pair;

    if (args->layers != NULL) {
        return quire_kv_layers_parse(args->layers, desc, pairs, err);
    }
    if (args->choice.is_auto) {
        if (args->calibration != NULL) {
            return quire_calibration_choose(args->calibration, desc, args->choice.bits, pairs, err);
        }
        return quire_kv_auto(desc, args->choice.bits, pairs, err);
    }
    pair.k = args->has_k ? args->k : pair.k;
    pair.v = args->has_v ? args->v : pair.v;
    quire_kv_uniform(desc, pair, pairs);
    return QUIRE_OK;
}

char *quire_kv_args_text(const quire_kv_args *args, const quire_model_desc *desc,
                         const quire_kv_pair *pairs, char *buffer, size_t buffer_bytes)
{
    const double bits = quire_kv_bits(desc, pairs);
    int n = 0;

    if (args->layers != NULL) {
        n = snprintf(buffer, buffer_bytes, "%.2f bits: ", bits);
    } else if (args->choice.is_auto) {
        n = snprintf(buffer, buffer_bytes, "auto %.2f -> %.2f bits%s: ", args->choice.bits, bits,
                     args->calibration != NULL ? " (calibrated)" : "");
    }
    if (n >= 0 && (size_t)n < buffer_bytes) {
        (void)quire_kv_summary(desc, pairs, buffer + n, buffer_bytes - (size_t)n);
    }
    return buffer;
}
