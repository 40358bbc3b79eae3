/* sampler_internal.h - the parts of a sampler; for sampler*.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_SAMPLER_INTERNAL_H
#define QUIRE_MODEL_SAMPLER_INTERNAL_H

#include "model/answer_rules.h"
#include "model/grammar_match.h"
#include "model/sampler.h"
#include "model/text.h"
#include "model/token_order.h"

#include <llama.h>

/* The end of an answer's text, with its tokens: long enough for every trigger and tag. */
#define QUIRE_WATCH_BYTES  512u
#define QUIRE_WATCH_TOKENS 512u

/* A view of the answer under rules: its place in thoughts, and the trigger of a lazy grammar. */
typedef struct quire_answer_watch {
    quire_answer_rules *rules; /* held; NULL = none */
    bool is_waiting;           /* the grammar has not begun */
    bool is_thinking;
    bool is_at_start;       /* the text of the watch is the whole answer */
    uint32_t n_thought;     /* tokens of thoughts so far, their end included */
    uint32_t n_all_thought; /* tokens of all thoughts, without the tags around them */
    uint32_t n_forced;      /* tokens of the end of thoughts that were forced */
    bool has_thought;       /* thoughts have begun */
    uint32_t n_must;        /* tokens of a required trigger that were forced */
    uint32_t n_free;        /* tokens before it */
    bool gave_up_forcing;   /* the grammar has refused the end */
    char text[QUIRE_WATCH_BYTES];
    uint32_t n_bytes;
    int32_t tokens[QUIRE_WATCH_TOKENS]; /* whose texts make up `text` */
    uint16_t lengths[QUIRE_WATCH_TOKENS];
    uint32_t n_tokens;
} quire_answer_watch;

typedef struct quire_penalties {
    float repeat, frequency, presence;
    int32_t *recent; /* [n_max], a ring; NULL when off */
    uint32_t n_max, n, next;
    int32_t *counts; /* [n_vocab]: how often in recent; negative while being applied */
} quire_penalties;

struct quire_sampler {
    const quire_model *model;
    uint32_t n_vocab;
    struct llama_sampler *chain;    /* NULL: greedy */
    quire_grammar *grammar;         /* NULL: none */
    quire_grammar_match *match;     /* the answer so far under the grammar */
    const quire_token_order *order; /* the model's, under a grammar */
    bool is_too_ambiguous;          /* the grammar, for the text so far */
    bool begins_in_prompt;          /* the grammar is the rules' and begins before the answer */
    llama_token_data *candidates;   /* [n_vocab]; NULL when neither needs them */
    float *adjusted;                /* [n_vocab]; NULL when logits stay as they are */
    quire_penalties penalties;
    quire_logit_bias *bias;
    uint32_t n_bias;
    int32_t *forbidden; /* tokens that end the text, when they may not; NULL: they always may */
    uint32_t n_forbidden;
    bool forbids_eog;
    int32_t stop_tokens[QUIRE_STOP_TOKENS_MAX];
    uint32_t n_stop_tokens;
    uint32_t min_tokens, n_picked;
    int32_t end; /* one that does; -1 if there is none */
    quire_answer_watch watch;
};

/* ---- sampler.c ---- */

/* Whether a comes after b: less likely, or as likely with a higher id. */
bool quire_candidate_is_behind(const llama_token_data *a, const llama_token_data *b);

/* ---- sampler_grammar.c ---- */

/* The grammar of the options, or of the rules. Errors: as quire_sampler_create(). */
int quire_sampler_grammar_create(quire_sampler *sampler, const char *gbnf, quire_error *err);
void quire_sampler_grammar_destroy(quire_sampler *sampler);
/* The next token is chosen: a new budget of steps. A function that meets its end sets
 * is_too_ambiguous. */
void quire_sampler_grammar_refill(quire_sampler *sampler);
bool quire_sampler_grammar_allows(quire_sampler *sampler, int32_t token, float logit);
/* Make the tokens that the grammar accepts next the candidates; returns their number. */
uint32_t quire_sampler_grammar_candidates(quire_sampler *sampler, const float *logits);
void quire_sampler_grammar_accept(quire_sampler *sampler, int32_t token);
/* Begin a lazy grammar with the text of its trigger. False when the grammar refuses the text, or
 * the text could be all of it: the grammar has not begun then. */
bool quire_sampler_grammar_trigger(quire_sampler *sampler, const char *text, size_t n);
/* Begin again. */
void quire_sampler_grammar_reset(quire_sampler *sampler);

/* ---- sampler_watch.c ---- */

/* waits: the grammar is lazy. */
void quire_answer_watch_begin(quire_answer_watch *watch, bool waits);
/* The token that ends thoughts beyond their budget, or that a required trigger goes on with; -1 =
 * none is forced. */
int32_t quire_answer_watch_forced(quire_sampler *sampler);
/* Where a trigger is required: the chosen token, if the answer may have it there, or else the first
 * one of the trigger. */
int32_t quire_answer_watch_allow(quire_sampler *sampler, int32_t token);
/* See a chosen token; begins the grammar at a trigger. */
void quire_answer_watch_see(quire_sampler *sampler, int32_t token);

#endif /* QUIRE_MODEL_SAMPLER_INTERNAL_H */
