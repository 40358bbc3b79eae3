/* explain.c - explanations of requests' matches in the prefix tree: a ring of the last ones.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"

#include <string.h>

#define MS_PER_S 1000.0

void quire_explanation_begin(quire_explanation *e, const quire_request *request,
                             const quire_prefix_match *match, uint64_t now_us)
{
    const bool is_at_end = match->n_same_tokens >= request->n_prompt;

    *e = (quire_explanation){
        .n_prompt_tokens = request->n_prompt,
        .n_cached_tokens = match->n_tokens,
        .n_same_tokens = match->n_same_tokens,
        .end = match->end,
        .cut = match->cut,
        .prompt_token = is_at_end ? -1 : request->tokens[match->n_same_tokens],
        .cached_token = match->end == QUIRE_PREFIX_END_DIVERGED ? match->cached_token : -1,
        .has_waited = request->wait.held_by != 0,
    };
    memcpy(e->request_id, request->id, sizeof e->request_id);
    if (match->end == QUIRE_PREFIX_END_EVICTED) {
        e->n_gone_tokens = match->n_gone_tokens;
        e->gone = match->gone;
        e->gone_ago_us = now_us > match->gone_us ? now_us - match->gone_us : 0;
    }
}

void quire_loop_explanation_update(quire_loop *loop, quire_request *request)
{
    const double token_ms = loop->figures.now.prefill_token_seconds * MS_PER_S;
    quire_explanation e = request->client.explanation; /* written by this thread only */

    e.n_computed_tokens = request->n_prefilled;
    e.computed_ms = token_ms * (double)e.n_computed_tokens;
    e.gone_ms = token_ms * (double)e.n_gone_tokens;
    quire_request_explained(request, &e);
}

void quire_loop_explanation_keep(quire_loop *loop, quire_request *request)
{
    quire_explained *slot;

    if (!request->client.has_explanation || loop->opts.explain_max == 0) {
        return;
    }
    (void)pthread_mutex_lock(&loop->inbox.lock);
    slot = &loop->figures.explained[loop->figures.explained_next];
    slot->explanation = request->client.explanation;
    slot->explanation.ended_us = quire_loop_now_us(loop);
    slot->tenant_bytes = request->tenant_bytes;
    memcpy(slot->tenant, request->tenant, request->tenant_bytes);
    loop->figures.explained_next = (loop->figures.explained_next + 1) % loop->opts.explain_max;
    loop->figures.n_explained += loop->figures.n_explained < loop->opts.explain_max;
    (void)pthread_mutex_unlock(&loop->inbox.lock);
}

/* Explanation i, counted from the newest. */
static const quire_explained *explained_at(const quire_loop *loop, uint32_t i)
{
    const uint32_t n = loop->opts.explain_max;

    return &loop->figures.explained[(loop->figures.explained_next + n - 1 - i) % n];
}

int quire_loop_explain(quire_loop *loop, const char *request_id, const void *tenant,
                       uint32_t tenant_bytes, quire_explanation *out)
{
    int rc = QUIRE_NOTFOUND;

    (void)pthread_mutex_lock(&loop->inbox.lock);
    for (uint32_t i = 0; i < loop->figures.n_explained && rc < 0; i++) {
        const quire_explained *kept = explained_at(loop, i);

        if (strcmp(kept->explanation.request_id, request_id) == 0 &&
            (tenant == NULL || (kept->tenant_bytes == tenant_bytes &&
                                memcmp(kept->tenant, tenant, tenant_bytes) == 0))) {
            *out = kept->explanation;
            rc = QUIRE_OK;
        }
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return rc;
}

uint32_t quire_loop_explain_last(quire_loop *loop, quire_explanation *out, uint32_t n)
{
    (void)pthread_mutex_lock(&loop->inbox.lock);
    n = n < loop->figures.n_explained ? n : loop->figures.n_explained;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = explained_at(loop, i)->explanation;
    }
    (void)pthread_mutex_unlock(&loop->inbox.lock);
    return n;
}
