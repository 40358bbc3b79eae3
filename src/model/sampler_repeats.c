/* sampler_repeats.c - samplers that count tokens: penalties and the repetition penalty.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler_internal.h"

#include "base/check.h"

#include <stdlib.h>

/* ---- penalties ---- */

int quire_penalties_init(quire_penalties *p, const quire_sampler_opts *opts, uint32_t n_vocab)
{
    *p = (quire_penalties){ .repeat = opts->repeat_penalty,
                            .frequency = opts->frequency_penalty,
                            .presence = opts->presence_penalty };
    if (opts->penalty_tokens == 0 ||
        !quire_sampler_order_has(&opts->order, QUIRE_SAMPLER_PENALTIES) ||
        (p->repeat == 1.0f && p->frequency == 0.0f && p->presence == 0.0f)) {
        return QUIRE_OK;
    }
    p->n_max = opts->penalty_tokens;
    p->recent = calloc(p->n_max, sizeof(*p->recent));
    p->counts = calloc(n_vocab, sizeof(*p->counts));
    QUIRE_FAIL_IF(p->recent == NULL || p->counts == NULL, QUIRE_NOMEM);
    return QUIRE_OK;
}

void quire_penalties_fini(quire_penalties *p)
{
    free(p->recent);
    free(p->counts);
}

void quire_penalties_apply(quire_penalties *p, float *logits)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const int32_t token = p->recent[i];
        const int32_t count = p->counts[token];

        if (count > 0) {
            logits[token] *= logits[token] > 0.0f ? 1.0f / p->repeat : p->repeat;
            logits[token] -= (float)count * p->frequency + p->presence;
            p->counts[token] = -count; /* done */
        }
    }
    for (uint32_t i = 0; i < p->n; i++) {
        p->counts[p->recent[i]] = abs(p->counts[p->recent[i]]);
    }
}

void quire_penalties_accept(quire_penalties *p, int32_t token)
{
    if (p->recent == NULL) {
        return;
    }
    if (p->n == p->n_max) {
        p->counts[p->recent[p->next]]--;
    } else {
        p->n++;
    }
    p->recent[p->next] = token;
    p->counts[token]++;
    p->next = p->next + 1 == p->n_max ? 0 : p->next + 1;
}

void quire_penalties_reset(quire_penalties *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        p->counts[p->recent[i]] = 0;
    }
    p->n = p->next = 0;
}

/* ---- the repetition penalty ---- */

int quire_repetition_init(quire_repetition *r, const quire_sampler_opts *opts, uint32_t n_vocab)
{
    *r = (quire_repetition){ .penalty = opts->repetition_penalty };
    if (r->penalty == 1.0f || !quire_sampler_order_has(&opts->order, QUIRE_SAMPLER_PENALTIES)) {
        return QUIRE_OK;
    }
    r->tokens = calloc(n_vocab, sizeof(*r->tokens));
    r->is_there = calloc(n_vocab, sizeof(*r->is_there));
    QUIRE_FAIL_IF(r->tokens == NULL || r->is_there == NULL, QUIRE_NOMEM);
    return QUIRE_OK;
}

void quire_repetition_fini(quire_repetition *r)
{
    free(r->tokens);
    free(r->is_there);
}

void quire_repetition_apply(const quire_repetition *r, float *logits)
{
    for (uint32_t i = 0; i < r->n; i++) {
        float *logit = &logits[r->tokens[i]];

        *logit *= *logit > 0.0f ? 1.0f / r->penalty : r->penalty;
    }
}

void quire_repetition_accept(quire_repetition *r, int32_t token)
{
    if (r->tokens != NULL && !r->is_there[token]) {
        r->is_there[token] = true;
        r->tokens[r->n++] = token;
    }
}

void quire_repetition_reset(quire_repetition *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        r->is_there[r->tokens[i]] = false;
    }
    r->n = 0;
}
