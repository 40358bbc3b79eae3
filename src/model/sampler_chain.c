/* sampler_chain.c - libllama's samplers behind DRY, and the bounds of options: see sampler.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler_internal.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

/* Below this temperature the likeliest token is chosen. Logits divided by the temperature must stay
 * finite; and already at this temperature a logit that is 0.001 larger than the next one makes its
 * token e^1000 times as likely. */
#define TEMPERATURE_LEAST 1e-6f

/* ---- options ---- */

typedef struct bounded {
    const char *name; /* of the field */
    float value, min, max;
} bounded;

static int bounds_check(const bounded *list, size_t n, quire_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!(list[i].value >= list[i].min && list[i].value <= list[i].max)) {
            return quire_error_set(err, QUIRE_INVAL, "%s is %g; it must be within %g .. %g",
                                   list[i].name, (double)list[i].value, (double)list[i].min,
                                   (double)list[i].max);
        }
    }
    return QUIRE_OK;
}

static int counts_check(const quire_sampler_opts *opts, quire_error *err)
{
    if (opts->penalty_tokens > QUIRE_PENALTY_TOKENS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "penalties of the last %u tokens; at most %u",
                               opts->penalty_tokens, QUIRE_PENALTY_TOKENS_MAX);
    }
    if (opts->dry_tokens > QUIRE_PENALTY_TOKENS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "dry_penalty_last_n is %u; at most %u",
                               opts->dry_tokens, QUIRE_PENALTY_TOKENS_MAX);
    }
    if (opts->n_bias > QUIRE_LOGIT_BIAS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "logit_bias has %u tokens; at most %u",
                               opts->n_bias, QUIRE_LOGIT_BIAS_MAX);
    }
    if (opts->n_stop_tokens > QUIRE_STOP_TOKENS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "stop_token_ids has %u tokens; at most %u",
                               opts->n_stop_tokens, QUIRE_STOP_TOKENS_MAX);
    }
    if (opts->n_dry_breakers > QUIRE_DRY_BREAKERS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "dry_sequence_breakers has %u texts; at most %u",
                               opts->n_dry_breakers, QUIRE_DRY_BREAKERS_MAX);
    }
    for (uint32_t i = 0; i < opts->n_dry_breakers; i++) {
        const size_t n = strlen(opts->dry_breakers[i]);

        if (n == 0 || n > QUIRE_DRY_BREAKER_BYTES) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "dry_sequence_breakers: text %u has %zu bytes, must be 1 to %u",
                                   i, n, QUIRE_DRY_BREAKER_BYTES);
        }
    }
    return QUIRE_OK;
}

int quire_sampler_opts_check(const quire_sampler_opts *opts, quire_error *err)
{
    const bounded list[] = {
        { "dry_multiplier", opts->dry_multiplier, 0.0f, 100.0f },
        { "dry_base", opts->dry_base, 1.0f, 100.0f },
        { "dry_allowed_length", (float)opts->dry_allowed_length, 0.0f, (float)INT32_MAX },
        { "top_n_sigma", opts->top_n_sigma, -1.0f, 100.0f },
        { "typical_p", opts->typical_p, 0.0f, 1.0f },
        { "xtc_probability", opts->xtc_probability, 0.0f, 1.0f },
        { "xtc_threshold", opts->xtc_threshold, 0.0f, 1.0f },
        { "dynatemp_range", opts->dynatemp_range, 0.0f, 100.0f },
        { "dynatemp_exponent", opts->dynatemp_exponent, 0.0f, 100.0f },
        { "mirostat", (float)opts->mirostat, 0.0f, 2.0f },
        { "mirostat_tau", opts->mirostat_tau, 0.0f, 100.0f },
        { "mirostat_eta", opts->mirostat_eta, 0.0f, 10.0f },
    };

    if (!(opts->repeat_penalty > 0.0f) || !isfinite(opts->repeat_penalty)) {
        return quire_error_set(err, QUIRE_INVAL, "repeat_penalty is %g; it must be above 0",
                               (double)opts->repeat_penalty);
    }
    if (!(opts->repetition_penalty > 0.0f) || !isfinite(opts->repetition_penalty)) {
        return quire_error_set(err, QUIRE_INVAL, "repetition_penalty is %g; it must be above 0",
                               (double)opts->repetition_penalty);
    }
    if (!isfinite(opts->frequency_penalty) || !isfinite(opts->presence_penalty)) {
        return quire_error_set(err, QUIRE_INVAL, "a penalty is not a finite number");
    }
    QUIRE_TRY(bounds_check(list, sizeof list / sizeof list[0], err));
    return counts_check(opts, err);
}

/* ---- samplers of Quire within the chain ---- */

/* Typical p: libllama's sum of the entropy is not a number when a token's probability is 0. Leave
 * such tokens out. */
static void possible_apply(struct llama_sampler *sampler, llama_token_data_array *list)
{
    float best = -INFINITY;
    size_t n = 0;

    (void)sampler;
    for (size_t i = 0; i < list->size; i++) {
        best = list->data[i].logit > best ? list->data[i].logit : best;
    }
    for (size_t i = 0; i < list->size; i++) {
        if (list->data[i].logit >= best - QUIRE_LOGIT_DISTANCE_MAX) {
            list->data[n++] = list->data[i];
        }
    }
    list->size = n > 0 ? n : list->size;
}

/* Dynamic temperature: behind a temperature near 0 logits may not be finite, and libllama chooses
 * the least likely token then. Its tokens are sorted. */
static void cold_apply(struct llama_sampler *sampler, llama_token_data_array *list)
{
    (void)sampler;
    if (list->size > 1 && !isfinite(list->data[0].logit)) {
        list->data[0].logit = 0.0f;
        list->size = 1;
    }
}

static const char *possible_name(const struct llama_sampler *sampler)
{
    (void)sampler;
    return "quire-possible";
}

static const char *cold_name(const struct llama_sampler *sampler)
{
    (void)sampler;
    return "quire-cold";
}

/* Without a state: libllama copies them by itself. */
static struct llama_sampler_i possible = { .name = possible_name, .apply = possible_apply };
static struct llama_sampler_i when_cold = { .name = cold_name, .apply = cold_apply };

/* ---- the chain ---- */

static bool has(const quire_sampler_opts *opts, quire_sampler_kind kind)
{
    return quire_sampler_order_has(&opts->order, kind);
}

/* A temperature that is left out of the order is 1. */
static bool is_greedy(const quire_sampler_opts *opts)
{
    const float range = opts->mirostat == 0 ? opts->dynatemp_range : 0.0f;

    return (opts->mirostat != 0 || has(opts, QUIRE_SAMPLER_TEMPERATURE)) &&
           opts->temperature + range < TEMPERATURE_LEAST;
}

bool quire_sampler_chain_moves_on(const quire_sampler_opts *opts)
{
    return opts->mirostat != 0 || (opts->xtc_probability > 0.0f && opts->xtc_threshold <= 0.5f &&
                                   has(opts, QUIRE_SAMPLER_XTC));
}

static void mirostat_add(struct llama_sampler *chain, const quire_sampler_opts *opts,
                         uint32_t n_vocab)
{
    llama_sampler_chain_add(chain, llama_sampler_init_temp(opts->temperature));
    llama_sampler_chain_add(chain, opts->mirostat == 1
                                       ? quire_mirostat_1(opts, n_vocab)
                                       : llama_sampler_init_mirostat_v2(
                                             opts->seed, opts->mirostat_tau, opts->mirostat_eta));
}

static void typical_add(struct llama_sampler *chain, const quire_sampler_opts *opts)
{
    if (opts->typical_p < 1.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init(&possible, NULL));
        llama_sampler_chain_add(chain, llama_sampler_init_typical(opts->typical_p, opts->min_keep));
    }
}

static void temperature_add(struct llama_sampler *chain, const quire_sampler_opts *opts)
{
    llama_sampler_chain_add(chain,
                            llama_sampler_init_temp_ext(opts->temperature, opts->dynatemp_range,
                                                        opts->dynatemp_exponent));
    if (opts->dynatemp_range > 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init(&when_cold, NULL));
    }
}

/* libllama's samplers that are off do nothing. */
static void sampler_add(struct llama_sampler *chain, const quire_sampler_opts *opts,
                        quire_sampler_kind kind)
{
    switch (kind) {
    case QUIRE_SAMPLER_PENALTIES:
    case QUIRE_SAMPLER_DRY:
        break; /* sampler_repeats.c */
    case QUIRE_SAMPLER_TOP_N_SIGMA:
        llama_sampler_chain_add(chain, llama_sampler_init_top_n_sigma(opts->top_n_sigma));
        break;
    case QUIRE_SAMPLER_TOP_K:
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(opts->top_k));
        break;
    case QUIRE_SAMPLER_TYPICAL_P:
        typical_add(chain, opts);
        break;
    case QUIRE_SAMPLER_TOP_P:
        llama_sampler_chain_add(chain, llama_sampler_init_top_p(opts->top_p, opts->min_keep));
        break;
    case QUIRE_SAMPLER_MIN_P:
        llama_sampler_chain_add(chain, llama_sampler_init_min_p(opts->min_p, opts->min_keep));
        break;
    case QUIRE_SAMPLER_XTC:
        llama_sampler_chain_add(chain,
                                llama_sampler_init_xtc(opts->xtc_probability, opts->xtc_threshold,
                                                       opts->min_keep, opts->seed));
        break;
    case QUIRE_SAMPLER_TEMPERATURE:
        temperature_add(chain, opts);
        break;
    }
}

int quire_sampler_chain_create(struct llama_sampler **out, const quire_sampler_opts *opts,
                               uint32_t n_vocab)
{
    struct llama_sampler_chain_params params = llama_sampler_chain_default_params();
    struct llama_sampler *chain;

    *out = NULL;
    if (is_greedy(opts)) {
        return QUIRE_OK;
    }
    params.no_perf = true;
    chain = *out = llama_sampler_chain_init(params);
    QUIRE_FAIL_IF(chain == NULL, QUIRE_NOMEM);
    if (opts->mirostat != 0) {
        mirostat_add(chain, opts, n_vocab);
        return QUIRE_OK;
    }
    for (uint32_t i = 0; i < opts->order.n; i++) {
        sampler_add(chain, opts, (quire_sampler_kind)opts->order.kinds[i]);
    }
    llama_sampler_chain_add(chain, llama_sampler_init_dist(opts->seed));
    return QUIRE_OK;
}
