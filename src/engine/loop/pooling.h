/* pooling.h - requests for one vector per text: the hidden states of a prompt, pooled.
 *
 * Such a request computes its prompt and no answer. Where all tokens count (mean) or the first one
 * does (cls), it takes nothing from the prefix cache, because hidden states of cached tokens are
 * not kept. A request that is preempted begins again; tokens that are in the vector already are
 * left out by their number.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_POOLING_H
#define QUIRE_ENGINE_POOLING_H

#include "engine/loop/request.h"
#include "model/runtime.h"

/* Errors: QUIRE_NOMEM. */
int quire_request_pool_init(quire_request *request, quire_pooling pooling, uint32_t n_embd);
void quire_request_pool_fini(quire_request *request);

/* Whether the request has to compute every token itself. */
static inline bool quire_request_pools_all(const quire_request *request)
{
    return request->pool.how == QUIRE_POOLING_MEAN || request->pool.how == QUIRE_POOLING_CLS;
}

/* The rows whose hidden states a slice of n_rows rows, of n_left to compute, has to give. */
quire_logits quire_request_pool_wants(const quire_request *request, uint32_t n_rows,
                                      uint32_t n_left);
/* Take the rows of a slice in. hidden: [n_rows][n_embd], those of the prompt from `position` on. */
void quire_request_pool_add(quire_request *request, const float *hidden, uint32_t n_rows,
                            uint32_t position);
/* The prompt is computed: the vector goes into the result. */
void quire_request_pool_end(quire_request *request);

#endif /* QUIRE_ENGINE_POOLING_H */
