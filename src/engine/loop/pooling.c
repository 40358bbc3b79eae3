/* pooling.c - see pooling.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/pooling.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

int quire_request_pool_init(quire_request *request, quire_pooling pooling, uint32_t n_embd)
{
    request->pool = (quire_request_pool){ .how = pooling, .n_embd = n_embd };
    if (pooling != QUIRE_POOLING_NONE) {
        request->pool.sum = calloc(n_embd, sizeof *request->pool.sum);
        request->pool.vector = calloc(n_embd, sizeof *request->pool.vector);
        QUIRE_FAIL_IF(request->pool.sum == NULL || request->pool.vector == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

void quire_request_pool_fini(quire_request *request)
{
    free(request->pool.sum);
    free(request->pool.vector);
}

quire_logits quire_request_pool_wants(const quire_request *request, uint32_t n_rows,
                                      uint32_t n_left)
{
    const bool is_first = request->pool.how == QUIRE_POOLING_CLS && request->kv.n_computed == 0;

    if (request->pool.how == QUIRE_POOLING_MEAN || is_first) {
        return QUIRE_LOGITS_ALL;
    }
    return n_rows == n_left ? QUIRE_LOGITS_LAST : QUIRE_LOGITS_NONE;
}

void quire_request_pool_add(quire_request *request, const float *hidden, uint32_t n_rows,
                            uint32_t position)
{
    quire_request_pool *pool = &request->pool;

    for (uint32_t row = 0; row < n_rows; row++, hidden += pool->n_embd) {
        const bool is_wanted = pool->how == QUIRE_POOLING_MEAN ? position + row >= pool->n_tokens
                               : pool->how == QUIRE_POOLING_CLS
                                   ? position + row == 0 && pool->n_tokens == 0
                                   : position + row == request->n_prompt - 1;

        if (!is_wanted) {
            continue;
        }
        for (uint32_t i = 0; i < pool->n_embd; i++) {
            pool->sum[i] += (double)hidden[i];
        }
        pool->n_tokens++;
    }
}

void quire_request_pool_end(quire_request *request)
{
    quire_request_pool *pool = &request->pool;

    QUIRE_CHECK(pool->n_tokens > 0);
    for (uint32_t i = 0; i < pool->n_embd; i++) {
        pool->vector[i] = (float)(pool->sum[i] / pool->n_tokens);
    }
    request->result.vector = pool->vector;
    request->result.n_vector = pool->n_embd;
}
