/* sampler.c - choosing a token, through libllama's sampler chain.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler.h"

#include "model/model_internal.h"

#include <stdlib.h>

struct quire_sampler {
    struct llama_sampler *chain;
    llama_token_data *candidates; /* [n_vocab]; filled anew for each pick */
    uint32_t n_vocab;
};

static struct llama_sampler *chain_create(const quire_sampler_opts *opts)
{
    struct llama_sampler_chain_params params = llama_sampler_chain_default_params();
    struct llama_sampler *chain;

    params.no_perf = true;
    chain = llama_sampler_chain_init(params);
    if (chain == NULL) {
        return NULL;
    }
    if (opts->temperature <= 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        return chain;
    }
    if (opts->top_k > 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(opts->top_k));
    }
    if (opts->top_p < 1.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_p(opts->top_p, 1));
    }
    if (opts->min_p > 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_min_p(opts->min_p, 1));
    }
    llama_sampler_chain_add(chain, llama_sampler_init_temp(opts->temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(opts->seed));
    return chain;
}

int quire_sampler_create(quire_sampler **out, const quire_model *model,
                         const quire_sampler_opts *opts, quire_error *err)
{
    quire_sampler *sampler = calloc(1, sizeof *sampler);

    *out = NULL;
    if (sampler == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a sampler");
    }
    sampler->n_vocab = model->desc.n_vocab;
    sampler->candidates = calloc(sampler->n_vocab, sizeof *sampler->candidates);
    sampler->chain = chain_create(opts);
    if (sampler->candidates == NULL || sampler->chain == NULL) {
        quire_sampler_destroy(sampler);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a sampler");
    }
    *out = sampler;
    return QUIRE_OK;
}

void quire_sampler_destroy(quire_sampler *sampler)
{
    if (sampler == NULL) {
        return;
    }
    llama_sampler_free(sampler->chain);
    free(sampler->candidates);
    free(sampler);
}

int32_t quire_sampler_pick(quire_sampler *sampler, const float *logits)
{
    llama_token_data_array list = { sampler->candidates, sampler->n_vocab, -1, false };
    int32_t token;

    for (uint32_t i = 0; i < sampler->n_vocab; i++) {
        sampler->candidates[i] = (llama_token_data){ (int32_t)i, logits[i], 0.0f };
    }
    llama_sampler_apply(sampler->chain, &list);
    /* Logits of a broken model (NaN) can leave nothing selected. */
    if (list.selected < 0 || (size_t)list.selected >= list.size) {
        list.selected = 0;
    }
    token = list.size > 0 ? list.data[list.selected].id : 0;
    llama_sampler_accept(sampler->chain, token);
    return token;
}

void quire_sampler_reset(quire_sampler *sampler)
{
    llama_sampler_reset(sampler->chain);
}
