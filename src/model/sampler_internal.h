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

/* Tokens whose logit is so far below the largest are 10^38 times less likely. */
#define QUIRE_LOGIT_DISTANCE_MAX 87.0f

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

/* Tokens that occur in prompt or answer. */
typedef struct quire_repetition {
    float penalty;
    int32_t *tokens; /* [n_vocab], each once; NULL when off */
    uint32_t n;
    bool *is_there; /* [n_vocab] */
} quire_repetition;

/* The last tokens of prompt and answer, for libllama's DRY, which changes the logits of such tokens
 * alone. */
typedef struct quire_dry_shared quire_dry_shared;
typedef struct quire_dry {
    struct quire_dry_memo *memo;
    quire_dry_shared *shared; /* NULL when off */
    int32_t *recent;          /* [n_max], a ring */
    uint32_t n_max, n, next;
    llama_token_data *list; /* [n_max]: their logits */
} quire_dry;

struct quire_sampler {
    const quire_model *model;
    uint32_t n_vocab;
    struct llama_sampler *chain;    /* NULL: greedy */
    bool moves_on;                  /* each choice of the chain changes its state: mirostat, XTC */
    quire_grammar *grammar;         /* NULL: none */
    quire_grammar_match *match;     /* the answer so far under the grammar */
    const quire_token_order *order; /* the model's, under a grammar */
    bool is_too_ambiguous;          /* the grammar, for the text so far */
    bool begins_in_prompt;          /* the grammar is the rules' and begins before the answer */
    llama_token_data *candidates;   /* [n_vocab]; NULL when neither needs them */
    float *adjusted;                /* [n_vocab]; NULL when logits stay as they are */
    quire_penalties penalties;
    quire_repetition repetition;
    quire_dry dry;
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

/* ---- sampler_chain.c ---- */

/* The samplers behind DRY; NULL: greedy. Errors: QUIRE_NOMEM. */
int quire_sampler_chain_create(struct llama_sampler **out, const quire_sampler_opts *opts,
                               uint32_t n_vocab);
/* See quire_sampler.moves_on. */
bool quire_sampler_chain_moves_on(const quire_sampler_opts *opts);

/* ---- sampler_mirostat.c ---- */

struct llama_sampler *quire_mirostat_1(const quire_sampler_opts *opts, uint32_t n_vocab);

/* ---- sampler_repeats.c ---- */

/* Errors: QUIRE_NOMEM. Memory: _fini(), also after an error. */
int quire_penalties_init(quire_penalties *p, const quire_sampler_opts *opts, uint32_t n_vocab);
int quire_repetition_init(quire_repetition *r, const quire_sampler_opts *opts, uint32_t n_vocab);
void quire_penalties_fini(quire_penalties *p);
void quire_repetition_fini(quire_repetition *r);
void quire_penalties_apply(quire_penalties *p, float *logits);
void quire_repetition_apply(const quire_repetition *r, float *logits);
void quire_penalties_accept(quire_penalties *p, int32_t token);
void quire_repetition_accept(quire_repetition *r, int32_t token);
void quire_penalties_reset(quire_penalties *p);
void quire_repetition_reset(quire_repetition *r);

/* ---- sampler_dry.c ---- */

/* Likewise. */
int quire_dry_init(quire_dry *dry, const quire_model *model, const quire_sampler_opts *opts);
void quire_dry_fini(quire_dry *dry);
void quire_dry_apply(quire_dry *dry, float *logits);
void quire_dry_accept(quire_dry *dry, int32_t token);
void quire_dry_reset(quire_dry *dry);

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
