/* soak_fixture.c - see soak_fixture.h.
 *
 * SPDX-License-Identifier: MIT */
#include "soak_fixture.h"

#define OWN_TOKENS_MAX 150u

void soak_texts_make(soak_texts *texts, const engine_bench *bench, uint32_t n_same, quire_rng *rng)
{
    const uint32_t own_max = texts->own_tokens_max != 0 ? texts->own_tokens_max : OWN_TOKENS_MAX;

    for (uint32_t i = 0; i < texts->n; i++) {
        const uint32_t n_begin = i % 3 * n_same;

        do {
            texts->n_tokens[i] = n_begin + 1 + quire_rng_below(rng, own_max);
            tokens_make(texts->tokens[i], texts->n_tokens[i], quire_rng_below(rng, 1u << 30));
            tokens_make(texts->tokens[i], n_begin, 5000 + i % 3);
        } while (reference(bench, texts->tokens[i], texts->n_tokens[i], texts->answers[i],
                           texts->answer_tokens) < REFERENCE_GAP_MIN);
    }
}

quire_request_params soak_params(const soak_texts *texts, quire_rng *rng, soak_flight *flight)
{
    const uint32_t text = quire_rng_below(rng, texts->n);
    quire_request_params params = params_greedy(texts->tokens[text], texts->n_tokens[text],
                                                1 + quire_rng_below(rng, texts->answer_tokens));

    params.is_uncached = quire_rng_below(rng, 10) == 0;
    params.has_prompt_logprobs = quire_rng_below(rng, 8) == 0;
    params.n_prompt_top_logprobs = 1;
    params.tenant = quire_rng_below(rng, 4) == 0 ? "a" : "b";
    params.tenant_bytes = 1;
    *flight = (soak_flight){ .text = text,
                             .n_tokens = params.max_tokens,
                             .has_values = params.has_prompt_logprobs };
    return params;
}

static bool has_values(const quire_request *request, uint32_t n_prompt)
{
    quire_prompt_logprob value;

    for (uint32_t i = 1; i < n_prompt; i++) {
        if (!quire_request_prompt_logprob(request, i, &value) || value.logprob > 0.0f ||
            value.n_tops != 1 || value.tops[0].logprob < value.logprob) {
            return false;
        }
    }
    return true;
}

int soak_flight_finish(const soak_texts *texts, const soak_flight *flight)
{
    quire_request_token token;
    uint32_t n = 0;
    int n_other = 0;
    int rc;

    while ((rc = quire_request_wait(flight->request, n, FIXTURE_WAIT_MS, &token)) == 1) {
        n_other += token.token != texts->answers[flight->text][n];
        n++;
    }
    if (flight->has_values && !has_values(flight->request, texts->n_tokens[flight->text])) {
        return -1;
    }
    return rc == 0 && n == flight->n_tokens ? n_other : -1;
}
