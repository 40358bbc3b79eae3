/* sampling_args.c - see sampling_args.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/sampling_args.h"

#include "base/check.h"

static int order_read(const quire_sampling_args *args, quire_sampler_order *out, quire_error *err)
{
    return args->letters != NULL ? quire_sampler_order_letters(out, args->letters, err)
                                 : quire_sampler_order_names(out, args->samplers, err);
}

int quire_sampling_args_check(const quire_sampling_args *args, quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    quire_sampler_order order;

    if (args->samplers == NULL && args->letters == NULL) {
        return QUIRE_OK;
    }
    if (args->samplers != NULL && args->letters != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--samplers and --sampler-seq say the same thing: give one of them");
    }
    if (order_read(args, &order, &why) < 0) {
        return quire_error_set(err, QUIRE_INVAL, "%s %s: %s",
                               args->letters != NULL ? "--sampler-seq" : "--samplers",
                               args->letters != NULL ? args->letters : args->samplers, why.message);
    }
    return QUIRE_OK;
}

void quire_sampling_args_apply(const quire_sampling_args *args, quire_sampler_opts *opts)
{
    opts->temperature = (float)args->temperature;
    opts->dynatemp_range = (float)args->dynatemp_range;
    opts->dynatemp_exponent = (float)args->dynatemp_exponent;
    opts->top_k = (int32_t)args->top_k;
    opts->top_p = (float)args->top_p;
    opts->min_p = (float)args->min_p;
    opts->top_n_sigma = (float)args->top_n_sigma;
    opts->typical_p = (float)args->typical_p;
    opts->xtc_probability = (float)args->xtc_probability;
    opts->xtc_threshold = (float)args->xtc_threshold;
    opts->repeat_penalty = (float)args->repeat_penalty;
    opts->frequency_penalty = (float)args->frequency_penalty;
    opts->presence_penalty = (float)args->presence_penalty;
    opts->penalty_tokens = (uint32_t)args->repeat_last_n;
    opts->dry_multiplier = (float)args->dry_multiplier;
    opts->dry_base = (float)args->dry_base;
    opts->dry_allowed_length = (int32_t)args->dry_allowed_length;
    opts->dry_tokens = (uint32_t)args->dry_penalty_last_n;
    opts->mirostat = (uint32_t)args->mirostat;
    opts->mirostat_tau = (float)args->mirostat_tau;
    opts->mirostat_eta = (float)args->mirostat_eta;
    if (args->samplers != NULL || args->letters != NULL) {
        (void)order_read(args, &opts->order, NULL);
    }
}
