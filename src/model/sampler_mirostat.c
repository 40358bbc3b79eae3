/* sampler_mirostat.c - mirostat 1 with libllama's choices.
 *
 * libllama's own sampler converts k, the number of tokens to keep, to an integer that is too small
 * for it once the surprise has been below its target for some hundred tokens. Then it takes the
 * likeliest token, whose surprise is 0, for ever. Here such a k keeps all tokens.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler_internal.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>

/* The likeliest tokens by which the distribution is estimated: as in the paper. */
#define ESTIMATE_TOKENS 100u
/* A target at which mirostat 2 keeps all possible tokens. */
#define ALL_TOKENS 1e6f

typedef struct mirostat {
    float tau, eta;
    float n_vocab;
    float mu;
    struct llama_sampler *sort;   /* by logits */
    struct llama_sampler *choice; /* a random one */
} mirostat;

/* The exponent of Zipf's law that the sorted tokens follow, by least squares. */
static float zipf_exponent(const llama_token_data_array *list)
{
    const float least = list->data[0].logit - QUIRE_LOGIT_DISTANCE_MAX;
    float sum_tb = 0.0f, sum_tt = 0.0f;

    for (size_t i = 0; i + 1 < list->size && i + 1 < ESTIMATE_TOKENS; i++) {
        const float t = logf((float)(i + 2) / (float)(i + 1));

        if (!(list->data[i + 1].logit >= least)) {
            break; /* an impossible token says nothing about the others */
        }
        sum_tb += t * (list->data[i].logit - list->data[i + 1].logit);
        sum_tt += t * t;
    }
    return sum_tb / sum_tt;
}

/* The k of a surprise of mu bits. */
static size_t tokens_to_keep(const mirostat *m, const llama_token_data_array *list)
{
    const float s = zipf_exponent(list);
    const float epsilon = s - 1.0f;
    const float k =
        powf(epsilon * powf(2.0f, m->mu) / (1.0f - powf(m->n_vocab, -epsilon)), 1.0f / s);

    if (!(k < (float)list->size)) { /* NaN: one possible token, or an exponent of just 1 */
        return list->size;
    }
    return k > 1.0f ? (size_t)k : 1;
}

static void mirostat_apply(struct llama_sampler *sampler, llama_token_data_array *list)
{
    mirostat *m = sampler->ctx;
    float surprise;

    llama_sampler_apply(m->sort, list);
    list->size = tokens_to_keep(m, list);
    llama_sampler_apply(m->choice, list);
    surprise = -log2f(list->data[list->selected].p);
    m->mu -= m->eta * (surprise - m->tau);
}

static void mirostat_reset(struct llama_sampler *sampler)
{
    mirostat *m = sampler->ctx;

    m->mu = 2.0f * m->tau;
    llama_sampler_reset(m->choice);
}

static const char *mirostat_name(const struct llama_sampler *sampler)
{
    (void)sampler;
    return "quire-mirostat";
}

static void mirostat_free(struct llama_sampler *sampler)
{
    mirostat *m = sampler->ctx;

    llama_sampler_free(m->sort);
    llama_sampler_free(m->choice);
    free(m);
}

static struct llama_sampler *mirostat_clone(const struct llama_sampler *sampler);

static struct llama_sampler_i mirostat_1 = { .name = mirostat_name,
                                             .apply = mirostat_apply,
                                             .reset = mirostat_reset,
                                             .clone = mirostat_clone,
                                             .free = mirostat_free };

/* Without memory libllama ends the process, and so does this. */
static struct llama_sampler *mirostat_of(mirostat from)
{
    mirostat *m = malloc(sizeof *m);

    QUIRE_CHECK(m != NULL);
    *m = from;
    return llama_sampler_init(&mirostat_1, m);
}

static struct llama_sampler *mirostat_clone(const struct llama_sampler *sampler)
{
    mirostat copy = *(const mirostat *)sampler->ctx;

    copy.sort = llama_sampler_clone(copy.sort);
    copy.choice = llama_sampler_clone(copy.choice);
    return mirostat_of(copy);
}

struct llama_sampler *quire_mirostat_1(const quire_sampler_opts *opts, uint32_t n_vocab)
{
    return mirostat_of(
        (mirostat){ .tau = opts->mirostat_tau,
                    .eta = opts->mirostat_eta,
                    .n_vocab = (float)n_vocab,
                    .mu = 2.0f * opts->mirostat_tau,
                    .sort = llama_sampler_init_top_k(INT32_MAX),
                    .choice = llama_sampler_init_mirostat_v2(opts->seed, ALL_TOKENS, 0.0f) });
}
