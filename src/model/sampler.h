/* sampler.h - choosing a token.
 *
 * Order: penalties, logit bias, DRY, then libllama's samplers in the order of the options, by
 * default llama.cpp's: top-n-sigma, top-k, typical p, top-p, min-p, XTC, temperature. At the end a
 * random choice by the seed. Mirostat replaces all of these after DRY but the plain temperature.
 *
 * Temperature 0 takes the likeliest token after penalties, bias and DRY, the first of equal ones;
 * the other samplers change nothing then. With a dynamic temperature it is not 0.
 *
 * Penalties count chosen tokens. DRY and the repetition penalty count the prompt's, too:
 * quire_sampler_prompt(). Each remembers a chosen token once, forced ones included. Mirostat and
 * XTC move on by one choice for each token; mirostat does not for a forced one.
 *
 * Grammar (grammar_match.h). The chosen token is tested. After a rejection the choice is repeated
 * among the accepted ones of the 512 likeliest tokens, of the 4,096 likeliest if none of the 512 is
 * accepted, or of the whole vocabulary. A token costs little while the model keeps to the grammar
 * by itself. Mirostat and XTC choose among these accepted tokens at once, since a second choice
 * would move them twice. Control tokens, zero bytes, and bytes that are not UTF-8, are rejected
 * too. At the grammar's end, and where no token of the vocabulary can continue, the sampler chooses
 * an end-of-generation token, also with forbids_eog and before min_tokens.
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
#include "model/sampler_order.h"
#include "quire/error.h"

typedef struct quire_sampler quire_sampler;

#define QUIRE_LOGIT_BIAS_MAX     1024u
#define QUIRE_PENALTY_TOKENS_MAX 65536u
#define QUIRE_STOP_TOKENS_MAX    64u
#define QUIRE_DRY_BREAKERS_MAX   16u
#define QUIRE_DRY_BREAKER_BYTES  40u /* libllama reads no more */

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
    uint32_t penalty_tokens;  /* the last so many chosen tokens count; default 64 */
    float repetition_penalty; /* > 0; 1 = off; of all tokens of prompt and answer, as in vLLM */
    /* DRY: a token that would continue a repetition of n tokens gets dry_multiplier * dry_base^(n -
     * dry_allowed_length) less, if n >= dry_allowed_length. */
    float dry_multiplier; /* 0 = off */
    float dry_base;       /* >= 1 */
    int32_t dry_allowed_length;
    uint32_t dry_tokens; /* the last so many tokens of prompt and answer; default 64, 0 = off */
    const char *const *dry_breakers; /* texts that no repetition goes across; copied */
    uint32_t n_dry_breakers;         /* at most QUIRE_DRY_BREAKERS_MAX */
    float top_n_sigma;               /* <= 0: off */
    float typical_p;                 /* >= 1: off */
    float xtc_probability;           /* <= 0: off */
    float xtc_threshold;             /* > 0.5: off */
    uint32_t min_keep;               /* top-p, min-p, typical p and XTC leave so many tokens */
    float dynatemp_range; /* > 0: by entropy, within temperature - range .. temperature + range */
    float dynatemp_exponent;
    uint32_t mirostat; /* 0 = off, 1, 2 */
    float mirostat_tau;
    float mirostat_eta;
    quire_sampler_order order; /* others are off; for mirostat penalties and DRY count alone */
    const char *grammar;       /* see grammar.h; the text is one of "root". NULL = none. Copied */
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
        .penalty_tokens = 64, .repetition_penalty = 1.0f, .dry_base = 1.75f,                       \
        .dry_allowed_length = 2, .dry_tokens = 64, .dry_breakers = quire_dry_breakers,             \
        .n_dry_breakers = QUIRE_DRY_BREAKERS, .top_n_sigma = -1.0f, .typical_p = 1.0f,             \
        .xtc_threshold = 0.1f, .dynatemp_exponent = 1.0f, .mirostat_tau = 5.0f,                    \
        .mirostat_eta = 0.1f, .order = QUIRE_SAMPLER_ORDER_INIT                                    \
    }

/* llama.cpp's: a line break, ':', '"' and '*'. */
#define QUIRE_DRY_BREAKERS 4u
extern const char *const quire_dry_breakers[QUIRE_DRY_BREAKERS];

/* Errors: QUIRE_INVAL, QUIRE_LIMIT; err names the field as requests do. */
int quire_sampler_opts_check(const quire_sampler_opts *opts, quire_error *err);

/* Errors: QUIRE_INVAL (err names the place in the grammar, the bias or the field), QUIRE_LIMIT,
 * QUIRE_NOMEM. DRY's breakers are looked up in the whole vocabulary, if neither a living sampler
 * nor the model's last one has the same options of DRY. */
int quire_sampler_create(quire_sampler **out, const quire_model *model,
                         const quire_sampler_opts *opts, quire_error *err);
void quire_sampler_destroy(quire_sampler *sampler);

/* The text before the next choice: what penalties and DRY remember begins with it. Random numbers
 * go on. */
void quire_sampler_prompt(quire_sampler *sampler, const int32_t *tokens, size_t n);

/* Choose from n_vocab logits and remember the choice. Quire allocates nothing here, except for a
 * grammar, whose graph grows. libllama allocates to sort when top_k is off or above 128, for DRY,
 * typical p and mirostat, and to copy the state of mirostat and XTC where a chat format has a call
 * to come. Returns a token, or an error that ends the text: QUIRE_NOTFOUND (a grammar has ended and
 * the vocabulary has no end token), QUIRE_LIMIT (a grammar can read the text so far in too many
 * ways for the bounds of steps and memory in grammar_match.h). */
int32_t quire_sampler_pick(quire_sampler *sampler, const float *logits);
/* Begin again, without a prompt. */
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
