/* sampler.c - see sampler.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler.h"
#include "model/sampler_internal.h"

#include "model/model_internal.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

static int forbidden_create(quire_sampler *sampler)
{
    for (uint32_t pass = 0; pass < 2; pass++) {
        sampler->n_forbidden = 0;
        for (uint32_t token = 0; token < sampler->n_vocab; token++) {
            if (!quire_model_is_eog(sampler->model, (int32_t)token)) {
                continue;
            }
            if (pass == 1) {
                sampler->forbidden[sampler->n_forbidden] = (int32_t)token;
            }
            sampler->n_forbidden++;
        }
        if (pass == 0) {
            sampler->forbidden = malloc((sampler->n_forbidden + 1) * sizeof(*sampler->forbidden));
            QUIRE_FAIL_IF(sampler->forbidden == NULL, QUIRE_NOMEM);
        }
    }
    return QUIRE_OK;
}

static int tokens_check(const quire_sampler_opts *opts, uint32_t n_vocab, quire_error *err)
{
    for (uint32_t i = 0; i < opts->n_stop_tokens; i++) {
        if (opts->stop_tokens[i] < 0 || (uint32_t)opts->stop_tokens[i] >= n_vocab) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "stop_token_ids: token %d is not in the vocabulary of %u",
                                   opts->stop_tokens[i], n_vocab);
        }
    }
    for (uint32_t i = 0; i < opts->n_bias; i++) {
        if (opts->bias[i].token < 0 || (uint32_t)opts->bias[i].token >= n_vocab) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "logit_bias: token %d is not in the vocabulary of %u",
                                   opts->bias[i].token, n_vocab);
        }
        if (isnan(opts->bias[i].bias)) {
            return quire_error_set(err, QUIRE_INVAL, "logit_bias of token %d is not a number",
                                   opts->bias[i].token);
        }
    }
    return QUIRE_OK;
}

static int sampler_init(quire_sampler *s, const quire_sampler_opts *opts, quire_error *err)
{
    const char *grammar = opts->grammar;

    if (opts->rules != NULL) {
        s->watch.rules = quire_answer_rules_hold(opts->rules);
        grammar = grammar != NULL ? grammar : opts->rules->grammar;
    }
    quire_answer_watch_begin(&s->watch,
                             grammar != NULL && opts->grammar == NULL && opts->rules->is_lazy);
    if (grammar != NULL) {
        QUIRE_TRY(quire_sampler_grammar_create(s, grammar, err));
    }
    QUIRE_TRY(quire_sampler_chain_create(&s->chain, opts, s->n_vocab));
    s->moves_on = s->chain != NULL && quire_sampler_chain_moves_on(opts);
    if (s->chain != NULL || s->grammar != NULL) {
        s->candidates = calloc(s->n_vocab, sizeof(*s->candidates));
        QUIRE_FAIL_IF(s->candidates == NULL, QUIRE_NOMEM);
    }
    QUIRE_TRY(quire_penalties_init(&s->penalties, opts, s->n_vocab));
    QUIRE_TRY(quire_repetition_init(&s->repetition, opts, s->n_vocab));
    QUIRE_TRY(quire_dry_init(&s->dry, s->model, opts));
    if (opts->n_bias > 0) {
        s->bias = malloc(opts->n_bias * sizeof(*s->bias));
        QUIRE_FAIL_IF(s->bias == NULL, QUIRE_NOMEM);
        memcpy(s->bias, opts->bias, opts->n_bias * sizeof(*s->bias));
        s->n_bias = opts->n_bias;
    }
    for (uint32_t i = 0; i < opts->n_stop_tokens; i++) {
        s->stop_tokens[s->n_stop_tokens++] = opts->stop_tokens[i];
    }
    s->forbids_eog = opts->forbids_eog;
    s->min_tokens = opts->min_tokens;
    if (opts->forbids_eog || opts->min_tokens > 0) {
        QUIRE_TRY(forbidden_create(s));
    }
    if (s->penalties.recent != NULL || s->repetition.tokens != NULL || s->dry.shared != NULL ||
        s->n_bias > 0 || s->forbidden != NULL) {
        s->adjusted = malloc(s->n_vocab * sizeof(*s->adjusted));
        QUIRE_FAIL_IF(s->adjusted == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

int quire_sampler_create(quire_sampler **out, const quire_model *model,
                         const quire_sampler_opts *opts, quire_error *err)
{
    quire_sampler *sampler;
    int rc;

    *out = NULL;
    QUIRE_TRY(quire_sampler_opts_check(opts, err));
    QUIRE_TRY(tokens_check(opts, model->desc.n_vocab, err));
    sampler = calloc(1, sizeof(*sampler));
    rc = sampler != NULL ? QUIRE_OK : QUIRE_NOMEM;
    if (rc == QUIRE_OK) {
        sampler->model = model;
        sampler->n_vocab = model->desc.n_vocab;
        rc = sampler_init(sampler, opts, err);
    }
    if (rc == QUIRE_NOMEM) {
        (void)quire_error_set(err, rc, "no memory for a sampler");
    }
    if (rc < 0) {
        quire_sampler_destroy(sampler);
        return rc;
    }
    *out = sampler;
    return QUIRE_OK;
}

void quire_sampler_destroy(quire_sampler *sampler)
{
    if (sampler == NULL) {
        return;
    }
    llama_sampler_free(sampler->chain);
    quire_sampler_grammar_destroy(sampler);
    free(sampler->candidates);
    free(sampler->adjusted);
    quire_penalties_fini(&sampler->penalties);
    quire_repetition_fini(&sampler->repetition);
    quire_dry_fini(&sampler->dry);
    free(sampler->bias);
    free(sampler->forbidden);
    quire_answer_rules_release(sampler->watch.rules);
    free(sampler);
}

/* ---- logits ---- */

/* Take away the tokens that must not be chosen now. */
static void forbid(const quire_sampler *sampler, float *logits)
{
    const bool is_early = sampler->n_picked < sampler->min_tokens;

    for (uint32_t i = 0; (is_early || sampler->forbids_eog) && i < sampler->n_forbidden; i++) {
        logits[sampler->forbidden[i]] = -INFINITY;
    }
    for (uint32_t i = 0; is_early && i < sampler->n_stop_tokens; i++) {
        logits[sampler->stop_tokens[i]] = -INFINITY;
    }
}

static const float *adjust(quire_sampler *sampler, const float *logits)
{
    float *adjusted = sampler->adjusted;

    if (adjusted == NULL) {
        return logits;
    }
    memcpy(adjusted, logits, sampler->n_vocab * sizeof(*adjusted));
    quire_repetition_apply(&sampler->repetition, adjusted);
    quire_penalties_apply(&sampler->penalties, adjusted);
    for (uint32_t i = 0; i < sampler->n_bias; i++) {
        adjusted[sampler->bias[i].token] += sampler->bias[i].bias;
    }
    quire_dry_apply(&sampler->dry, adjusted);
    forbid(sampler, adjusted);
    return adjusted;
}

/* The index of the largest number, of equal ones the first; NaN is never the largest. The compiler
 * keeps the 16 lanes in registers. */
static int32_t argmax(const float *logits, uint32_t n)
{
    float lanes[16];
    float best = -INFINITY;
    uint32_t i = 0;

    for (uint32_t j = 0; j < 16; j++) {
        lanes[j] = -INFINITY;
    }
    for (; i + 16 <= n; i += 16) {
        for (uint32_t j = 0; j < 16; j++) {
            lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
        }
    }
    for (; i < n; i++) {
        lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
    }
    for (uint32_t j = 0; j < 16; j++) {
        best = lanes[j] > best ? lanes[j] : best;
    }
    for (i = 0; i < n; i++) {
        if (logits[i] == best) {
            return (int32_t)i;
        }
    }
    return 0;
}

/* ---- choosing ---- */

bool quire_candidate_is_behind(const llama_token_data *a, const llama_token_data *b)
{
    return a->logit < b->logit || (a->logit == b->logit && a->id > b->id);
}

/* A choice among the first n candidates (at least one). */
static int32_t choose_candidate(quire_sampler *sampler, uint32_t n)
{
    llama_token_data_array list = { sampler->candidates, n, -1, false };

    if (sampler->chain == NULL) {
        uint32_t best = 0;

        for (uint32_t i = 1; i < n; i++) {
            best = quire_candidate_is_behind(&list.data[best], &list.data[i]) ? i : best;
        }
        return list.data[best].id;
    }
    llama_sampler_apply(sampler->chain, &list);
    /* Logits of a broken model (NaN) can leave nothing selected. */
    if (list.selected < 0 || (size_t)list.selected >= list.size) {
        list.selected = 0;
    }
    return list.size > 0 ? list.data[list.selected].id : 0;
}

static int32_t choose(quire_sampler *sampler, const float *logits)
{
    if (sampler->chain == NULL) {
        return argmax(logits, sampler->n_vocab);
    }
    for (uint32_t i = 0; i < sampler->n_vocab; i++) {
        /* Not NaN, by which libllama cannot sort. */
        const float logit = logits[i] == logits[i] ? logits[i] : -INFINITY;

        sampler->candidates[i] = (llama_token_data){ (int32_t)i, logit, 0.0f };
    }
    return choose_candidate(sampler, sampler->n_vocab);
}

/* The same under rules, which may put another token in the place of the chosen one: the chain has
 * not chosen then. */
static int32_t choose_by_rules(quire_sampler *sampler, const float *logits)
{
    const quire_answer_rules *rules = sampler->watch.rules;
    struct llama_sampler *before = NULL;
    int32_t chosen, token;

    if (sampler->moves_on && rules != NULL && rules->must.n > 0) {
        before = llama_sampler_clone(sampler->chain);
    }
    chosen = choose(sampler, logits);
    token = quire_answer_watch_allow(sampler, chosen);
    if (before != NULL && token != chosen) {
        llama_sampler_free(sampler->chain);
        sampler->chain = before;
        before = NULL;
    }
    llama_sampler_free(before);
    return token;
}

/* A token that the grammar allows, or an error. */
static int32_t choose_allowed(quire_sampler *sampler, const float *logits)
{
    uint32_t n;

    if (!sampler->moves_on) {
        const int32_t token = choose(sampler, logits);

        if (quire_sampler_grammar_allows(sampler, token, logits[token])) {
            return token;
        }
    }
    n = quire_sampler_grammar_candidates(sampler, logits);
    QUIRE_FAIL_IF(sampler->is_too_ambiguous, QUIRE_LIMIT);
    if (n == 0) {
        return sampler->end >= 0 ? sampler->end : QUIRE_NOTFOUND;
    }
    return choose_candidate(sampler, n);
}

/* A token of those that may follow. */
static int32_t choose_next(quire_sampler *sampler, const float *logits)
{
    const bool has_grammar = sampler->grammar != NULL && !sampler->watch.is_waiting;

    logits = adjust(sampler, logits);
    return has_grammar ? choose_allowed(sampler, logits) : choose_by_rules(sampler, logits);
}

static void accept(quire_sampler *sampler, int32_t token)
{
    quire_penalties_accept(&sampler->penalties, token);
    quire_repetition_accept(&sampler->repetition, token);
    quire_dry_accept(&sampler->dry, token);
    sampler->n_picked += sampler->n_picked < UINT32_MAX;
    if (sampler->watch.rules != NULL) {
        quire_answer_watch_see(sampler, token);
    }
}

int32_t quire_sampler_pick(quire_sampler *sampler, const float *logits)
{
    const bool has_grammar = sampler->grammar != NULL && !sampler->watch.is_waiting;
    int32_t forced, token;

    QUIRE_FAIL_IF(sampler->is_too_ambiguous, QUIRE_LIMIT);
    quire_sampler_grammar_refill(sampler);
    forced = quire_answer_watch_forced(sampler);
    QUIRE_FAIL_IF(sampler->is_too_ambiguous, QUIRE_LIMIT);
    token = forced < 0 ? choose_next(sampler, logits) : forced;
    if (has_grammar) {
        if (token < 0 || (forced < 0 && token == sampler->end &&
                          !quire_sampler_grammar_allows(sampler, token, 0.0f))) {
            return token;
        }
        quire_sampler_grammar_accept(sampler, token);
    }
    accept(sampler, token);
    return token;
}

static void forget(quire_sampler *sampler)
{
    quire_penalties_reset(&sampler->penalties);
    quire_repetition_reset(&sampler->repetition);
    quire_dry_reset(&sampler->dry);
}

void quire_sampler_prompt(quire_sampler *sampler, const int32_t *tokens, size_t n)
{
    const size_t n_dry = n < sampler->dry.n_max ? n : sampler->dry.n_max;

    forget(sampler);
    for (size_t i = 0; i < n; i++) {
        quire_repetition_accept(&sampler->repetition, tokens[i]);
    }
    for (size_t i = n - n_dry; i < n; i++) {
        quire_dry_accept(&sampler->dry, tokens[i]);
    }
}

void quire_sampler_reset(quire_sampler *sampler)
{
    if (sampler->chain != NULL) {
        llama_sampler_reset(sampler->chain);
    }
    quire_answer_watch_begin(&sampler->watch,
                             sampler->begins_in_prompt && sampler->watch.rules->is_lazy);
    quire_sampler_grammar_reset(sampler);
    forget(sampler);
    sampler->n_picked = 0;
}

bool quire_sampler_stops_at(const quire_sampler *sampler, int32_t token)
{
    for (uint32_t i = 0; i < sampler->n_stop_tokens; i++) {
        if (sampler->stop_tokens[i] == token) {
            return true;
        }
    }
    return false;
}

/* ---- log-probabilities ---- */

static void tops_insert(quire_top_logit *tops, uint32_t *n, uint32_t n_max, quire_top_logit top)
{
    uint32_t i = *n < n_max ? (*n)++ : n_max - 1;

    for (; i > 0 && tops[i - 1].logprob < top.logprob; i--) {
        tops[i] = tops[i - 1];
    }
    tops[i] = top;
}

float quire_logits_logprob(const float *logits, uint32_t n_vocab, int32_t token,
                           quire_top_logit *tops, uint32_t n_tops)
{
    const float best = logits[argmax(logits, n_vocab)];
    uint32_t n_found = 0;
    double sum = 0.0, log_sum;

    QUIRE_ASSERT(token >= 0 && (uint32_t)token < n_vocab && n_tops <= n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += (double)expf(logits[i] - best);
        if (n_tops > 0 && (n_found < n_tops || logits[i] > tops[n_tops - 1].logprob)) {
            tops_insert(tops, &n_found, n_tops, (quire_top_logit){ (int32_t)i, logits[i] });
        }
    }
    log_sum = (double)best + log(sum);
    for (uint32_t i = 0; i < n_tops; i++) {
        tops[i].logprob = (float)((double)tops[i].logprob - log_sum);
    }
    return (float)((double)logits[token] - log_sum);
}
