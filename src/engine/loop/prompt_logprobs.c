/* prompt_logprobs.c - see prompt_logprobs.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/prompt_logprobs.h"

#include "base/check.h"
#include "base/num.h"

#include <stdlib.h>

int quire_prompt_logprobs_check(const quire_request_params *p, quire_error *err)
{
    const uint32_t n_tops = p->n_prompt_top_logprobs;
    const uint64_t bytes = quire_prompt_logprobs_bytes(p->n_tokens, n_tops);

    if (!p->has_prompt_logprobs) {
        return QUIRE_OK;
    }
    if (p->pooling != QUIRE_POOLING_NONE) {
        return quire_error_set(err, QUIRE_INVAL, "prompt_logprobs: not with a vector of the text");
    }
    if (p->retain != NULL || p->context_overflow != QUIRE_CONTEXT_REFUSE) {
        return quire_error_set(
            err, QUIRE_UNSUPP, "%s: log-probabilities of a prompt are those of its whole text",
            p->context_overflow != QUIRE_CONTEXT_REFUSE ? "context_overflow" : "retain");
    }
    if (n_tops > QUIRE_LOGPROBS_MAX) {
        return quire_error_set(err, QUIRE_INVAL,
                               "prompt_logprobs: %u alternatives, at most %u are possible", n_tops,
                               QUIRE_LOGPROBS_MAX);
    }
    if (bytes > QUIRE_PROMPT_LOGPROBS_BYTES_MAX) {
        return quire_error_set(err, QUIRE_LIMIT,
                               "prompt_logprobs: %u tokens with %u alternatives each take %llu "
                               "bytes, at most %u are possible",
                               p->n_tokens, n_tops, (unsigned long long)bytes,
                               QUIRE_PROMPT_LOGPROBS_BYTES_MAX);
    }
    return QUIRE_OK;
}

int quire_prompt_logprobs_init(quire_request *request, const quire_request_params *p,
                               uint32_t n_vocab)
{
    quire_prompt_scores *scored = &request->scored;

    request->is_prompt_only = p->is_prompt_only;
    if (!p->has_prompt_logprobs || p->n_tokens < 2) {
        return QUIRE_OK;
    }
    scored->n_max = p->n_tokens - 1;
    scored->n_tops = quire_min_u32(p->n_prompt_top_logprobs, n_vocab);
    scored->items = calloc(scored->n_max, sizeof *scored->items);
    QUIRE_FAIL_IF(scored->items == NULL, QUIRE_NOMEM);
    if (scored->n_tops > 0) {
        scored->tops = calloc((size_t)scored->n_max * scored->n_tops, sizeof *scored->tops);
        QUIRE_FAIL_IF(scored->tops == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

void quire_prompt_logprobs_fini(quire_request *request)
{
    free(request->scored.items);
    free(request->scored.tops);
}

bool quire_prompt_logprobs_want(const quire_request *request, uint32_t n_rows)
{
    return quire_prompt_logprobs_miss(request) &&
           request->kv.n_computed + n_rows > request->scored.n;
}

static uint32_t rank_of(const float *logits, uint32_t n_vocab, int32_t token)
{
    uint32_t n_above = 0;

    for (uint32_t i = 0; i < n_vocab; i++) {
        n_above += logits[i] > logits[token];
    }
    return n_above + 1;
}

/* Rows whose values are missing, on the way to them. */
typedef struct rows_run {
    quire_prompt_scores *scored;
    const int32_t *tokens; /* behind the rows */
    const float *logits;
    uint32_t n_vocab;
} rows_run;

static void row_score(void *ctx, uint32_t i)
{
    const rows_run *run = ctx;
    quire_prompt_scores *scored = run->scored;
    const size_t at = (size_t)scored->n + i;
    const float *logits = run->logits + (size_t)i * run->n_vocab;
    quire_top_logit *tops = scored->n_tops > 0 ? scored->tops + at * scored->n_tops : NULL;

    scored->items[at] = (quire_prompt_score){
        .logprob = quire_logits_logprob(logits, run->n_vocab, run->tokens[i], tops, scored->n_tops),
        .rank = rank_of(logits, run->n_vocab, run->tokens[i]),
    };
}

uint32_t quire_prompt_logprobs_add(quire_request *request, const quire_runtime *runtime,
                                   const float *logits, uint32_t n_rows, uint32_t n_vocab,
                                   uint32_t position)
{
    quire_prompt_scores *scored = &request->scored;
    const uint32_t n_known = scored->n - position;
    const uint32_t n = quire_min_u32(n_rows - n_known, scored->n_max - scored->n);
    rows_run run = { .scored = scored,
                     .tokens = request->tokens + scored->n + 1,
                     .logits = logits + (size_t)n_known * n_vocab,
                     .n_vocab = n_vocab };

    QUIRE_ASSERT(position <= scored->n && n_known < n_rows);
    quire_runtime_parts_run(runtime, n, row_score, &run);
    scored->n += n;
    return n;
}

/* ---- the client's side ---- */

bool quire_request_prompt_logprob(const quire_request *request, uint32_t i,
                                  quire_prompt_logprob *out)
{
    const quire_prompt_scores *scored = &request->scored;

    if (i == 0 || i > scored->n) {
        return false;
    }
    *out = (quire_prompt_logprob){
        .logprob = scored->items[i - 1].logprob,
        .rank = scored->items[i - 1].rank,
        .tops = scored->n_tops > 0 ? scored->tops + (size_t)(i - 1) * scored->n_tops : NULL,
        .n_tops = scored->n_tops,
    };
    return true;
}
