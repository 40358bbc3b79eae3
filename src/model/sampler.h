/* sampler.h - choosing a token.
 *
 * Order: penalties, logit bias, then libllama's top-k, top-p, min-p, temperature, and a random
 * choice by the seed. Temperature 0 takes the likeliest token after penalties and bias, the first
 * of equal ones.
 *
 * Grammar (grammar_match.h). The chosen token is tested. After a rejection the choice is repeated
 * among the accepted ones of the 512 likeliest tokens, of the 4,096 likeliest if none of the 512 is
 * accepted, or of the whole vocabulary. A token costs little while the model keeps to the grammar
 * by itself. Control tokens, zero bytes, and bytes that are not UTF-8, are rejected too. At the
 * grammar's end, and where no token of the vocabulary can continue, the sampler chooses an
 * end-of-generation token, also with forbids_eog and before min_tokens.
 *
 * A chat format (answer_rules.h) may bring a grammar that begins at a trigger, such as the tag of a
 * call; before, tokens are chosen freely. Thoughts beyond their budget are ended by forced tokens.
 *
 * Thread: one at a time per sampler.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_SAMPLER_H
#define QUIRE_MODEL_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "model/grammar.h"
#include "model/model.h"
#include "quire/error.h"

typedef struct quire_sampler quire_sampler;

#define QUIRE_LOGIT_BIAS_MAX     1024u
#define QUIRE_PENALTY_TOKENS_MAX 65536u
#define QUIRE_STOP_TOKENS_MAX    64u

typedef struct quire_logit_bias {
    int32_t token;
    float bias;
} quire_logit_bias;

typedef struct quire_sampler_opts {
    float temperature; /* < 1e-6: greedy */
    int32_t top_k;     /* <= 0: off */
    float top_p;       /* >= 1: off */
    float min_p;       /* <= 0: off */
    uint32_t seed;
    float repeat_penalty;    /* > 0; 1 = off */
    float frequency_penalty; /* 0 = off, as OpenAI means it */
    float presence_penalty;
    uint32_t penalty_tokens; /* the last so many chosen tokens count; default 64 */
    const char *grammar;     /* see grammar.h; the text is one of "root". NULL = none. Copied */
    const quire_logit_bias *bias; /* added to logits, -INFINITY forbids; copied */
    uint32_t n_bias;
    bool forbids_eog; /* never choose a token that ends the text */
    /* Tokens after which the caller ends the text; see quire_sampler_stops_at(). Copied. */
    const int32_t *stop_tokens;
    uint32_t n_stop_tokens; /* at most QUIRE_STOP_TOKENS_MAX */
    uint32_t min_tokens;    /* the first so many choices are neither of these nor an end */
    /* Of a chat format: its grammar, unless `grammar` is given, and the budget of thoughts. Held.
     * NULL = none. */
    struct quire_answer_rules *rules;
} quire_sampler_opts;

#define QUIRE_SAMPLER_OPTS_INIT                                                                    \
    {                                                                                              \
        .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.0f,  \
        .penalty_tokens = 64                                                                       \
    }

/* Errors: QUIRE_INVAL (err names the place in the grammar, the bias or the penalty), QUIRE_LIMIT,
 * QUIRE_NOMEM. */
int quire_sampler_create(quire_sampler **out, const quire_model *model,
                         const quire_sampler_opts *opts, quire_error *err);
void quire_sampler_destroy(quire_sampler *sampler);

/* Choose from n_vocab logits and remember the choice. Quire allocates nothing here, except for a
 * grammar, whose graph grows; libllama allocates to sort when top_k is off or above 128. Returns a
 * token, or an error that ends the text: QUIRE_NOTFOUND (a grammar has ended and the vocabulary has
 * no end token), QUIRE_LIMIT (a grammar can read the text so far in too many ways for the bounds
 * of steps and memory in grammar_match.h). */
int32_t quire_sampler_pick(quire_sampler *sampler, const float *logits);
void quire_sampler_reset(quire_sampler *sampler);
/* Whether a token is among opts.stop_tokens. */
bool quire_sampler_stops_at(const quire_sampler *sampler, int32_t token);

/* The number of tokens so far that were thoughts by the rules; 0 without rules,
 * and for NULL. */
uint32_t quire_sampler_thought_tokens(const quire_sampler *sampler);

/* Log-probability of a token among raw logits, and the n_tops likeliest tokens (at most n_vocab),
 * likeliest first, of equal ones the lower id. tops may be NULL when n_tops is 0. Thread: any. */
typedef struct quire_top_logit {
    int32_t token;
    float logprob;
} quire_top_logit;
float quire_logits_logprob(const float *logits, uint32_t n_vocab, int32_t token,
                           quire_top_logit *tops, uint32_t n_tops);

#endif /* QUIRE_MODEL_SAMPLER_H */
