/* prompt_logprobs.h - requests for the log-probability of each token of their prompt.
 *
 * Row i of a prompt's logits gives the value of token i + 1. A slice of prefill asks for the logits
 * of all its rows while values are missing. Logits of cached tokens are not kept, so a request uses
 * no cached token whose row is missing: at first none, and after a preemption those whose rows were
 * taken in before. A row that is computed twice keeps its first values.
 *
 * The arrays are made with the request and do not move. Values of a request that has a generated
 * token, or has ended, do not change any more.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PROMPT_LOGPROBS_H
#define QUIRE_ENGINE_PROMPT_LOGPROBS_H

#include "engine/loop/request.h"
#include "model/runtime.h"

/* Whether the parameters allow the values. Errors: QUIRE_LIMIT (more bytes than
 * QUIRE_PROMPT_LOGPROBS_BYTES_MAX), QUIRE_UNSUPP (tokens leave the text before its end),
 * QUIRE_INVAL (a vector is wanted as well). Thread: any. */
int quire_prompt_logprobs_check(const quire_request_params *params, quire_error *err);

/* Of a request that has its prompt. Errors: QUIRE_NOMEM. */
int quire_prompt_logprobs_init(quire_request *request, const quire_request_params *params,
                               uint32_t n_vocab);
void quire_prompt_logprobs_fini(quire_request *request);

/* Whether rows of the prompt are missing. */
static inline bool quire_prompt_logprobs_miss(const quire_request *request)
{
    return request->scored.n < request->scored.n_max;
}

/* Cached tokens that the request may use, of n. */
static inline uint32_t quire_prompt_logprobs_usable(const quire_request *request, uint32_t n)
{
    return quire_prompt_logprobs_miss(request) && request->scored.n < n ? request->scored.n : n;
}

/* Whether a slice of n_rows rows behind the computed tokens has missing rows. */
bool quire_prompt_logprobs_want(const quire_request *request, uint32_t n_rows);
/* Take in the rows of a slice of the runtime's last step. logits: [n_rows][n_vocab], of the text
 * from `position` on. Returns the number of new values. */
uint32_t quire_prompt_logprobs_add(quire_request *request, const quire_runtime *runtime,
                                   const float *logits, uint32_t n_rows, uint32_t n_vocab,
                                   uint32_t position);

#endif /* QUIRE_ENGINE_PROMPT_LOGPROBS_H */
