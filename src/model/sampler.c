/* sampler.c - see sampler.h.
 *
 * libllama's grammar sampler throws on accepting a token that the grammar rejects, and no C frame
 * can catch the exception. So every token is tested first, and only a token that passed the test is
 * accepted.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler.h"
#include "model/text.h"

#include "model/backend.h"
#include "model/model_internal.h"

#include "base/check.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Longer tokens are never chosen under a grammar: libllama recurses once per character of a
 * token. */
#define PIECE_BYTES_MAX 256
/* One of this number of likeliest tokens nearly always fits the grammar, and testing them takes 1
 * ms. Testing the whole vocabulary takes libllama 8 ms and more (49K tokens). */
#define LIKELY_MAX 512
/* Bound of the processor time of accepting a token, which usually takes 10 us. Beyond the bound
 * there are thousands of ways to read the text so far; their number and the memory may double with
 * each token. */
#define ACCEPT_NS_MAX 50000000u

/* Below this temperature the likeliest token is chosen. Logits divided by the temperature must stay
 * finite; and already at this temperature a logit that is 0.001 larger than the next one makes its
 * token e^1000 times as likely. */
#define TEMPERATURE_LEAST 1e-6f

typedef struct penalties {
    float repeat, frequency, presence;
    int32_t *recent; /* [n_max], a ring; NULL when off */
    uint32_t n_max, n, next;
    int32_t *counts; /* [n_vocab]: how often in recent; negative while being applied */
} penalties;

struct quire_sampler {
    const quire_model *model;
    uint32_t n_vocab;
    struct llama_sampler *chain;   /* NULL: greedy */
    struct llama_sampler *grammar; /* NULL: none */
    quire_utf8_stream utf8;        /* of the text so far, under a grammar */
    bool is_too_ambiguous;         /* the grammar, for the text so far */
    llama_token_data *candidates;  /* [n_vocab]; NULL when neither needs them */
    float *adjusted;               /* [n_vocab]; NULL when logits stay as they are */
    penalties penalties;
    quire_logit_bias *bias;
    uint32_t n_bias;
    int32_t *forbidden; /* tokens that end the text, when they may not */
    uint32_t n_forbidden;
    int32_t end; /* one that does; -1 if there is none */
};

/* ---- creation ---- */

static int chain_create(struct llama_sampler **out, const quire_sampler_opts *opts)
{
    struct llama_sampler_chain_params params = llama_sampler_chain_default_params();
    struct llama_sampler *chain;

    params.no_perf = true;
    chain = *out = llama_sampler_chain_init(params);
    QUIRE_FAIL_IF(chain == NULL, QUIRE_NOMEM);
    if (opts->top_k > 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(opts->top_k));
    }
    if (opts->top_p < 1.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_p(opts->top_p, 1));
    }
    if (opts->min_p > 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_min_p(opts->min_p, 1));
    }
    llama_sampler_chain_add(chain, llama_sampler_init_temp(opts->temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(opts->seed));
    return QUIRE_OK;
}

static int grammar_create(quire_sampler *sampler, const char *gbnf, quire_error *err)
{
    char line[256];

    QUIRE_TRY(quire_grammar_check(gbnf, err));
    quire_backend_log_clear();
    sampler->grammar = llama_sampler_init_grammar(sampler->model->vocab, gbnf, "root");
    if (sampler->grammar == NULL) {
        quire_backend_log_last(line, sizeof(line));
        return quire_error_set(err, QUIRE_INVAL, "grammar: libllama refuses it: %s",
                               line[0] != '\0' ? line : "no reason given");
    }
    return QUIRE_OK;
}

static int penalties_create(penalties *p, const quire_sampler_opts *opts, uint32_t n_vocab)
{
    *p = (penalties){ .repeat = opts->repeat_penalty,
                      .frequency = opts->frequency_penalty,
                      .presence = opts->presence_penalty };
    if (opts->penalty_tokens == 0 ||
        (p->repeat == 1.0f && p->frequency == 0.0f && p->presence == 0.0f)) {
        return QUIRE_OK;
    }
    p->n_max = opts->penalty_tokens;
    p->recent = calloc(p->n_max, sizeof(*p->recent));
    p->counts = calloc(n_vocab, sizeof(*p->counts));
    QUIRE_FAIL_IF(p->recent == NULL || p->counts == NULL, QUIRE_NOMEM);
    return QUIRE_OK;
}

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

static int32_t end_token(const quire_model *model)
{
    const int32_t eot = llama_vocab_eot(model->vocab);
    const int32_t eos = llama_vocab_eos(model->vocab);

    if (quire_model_is_eog(model, eot)) {
        return eot;
    }
    if (quire_model_is_eog(model, eos)) {
        return eos;
    }
    for (uint32_t token = 0; token < model->desc.n_vocab; token++) {
        if (quire_model_is_eog(model, (int32_t)token)) {
            return (int32_t)token;
        }
    }
    return -1;
}

static int opts_check(const quire_sampler_opts *opts, uint32_t n_vocab, quire_error *err)
{
    if (!(opts->repeat_penalty > 0.0f) || !isfinite(opts->repeat_penalty)) {
        return quire_error_set(err, QUIRE_INVAL, "repeat_penalty is %g; it must be above 0",
                               (double)opts->repeat_penalty);
    }
    if (!isfinite(opts->frequency_penalty) || !isfinite(opts->presence_penalty)) {
        return quire_error_set(err, QUIRE_INVAL, "a penalty is not a finite number");
    }
    if (opts->penalty_tokens > QUIRE_PENALTY_TOKENS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "penalties of the last %u tokens; at most %u",
                               opts->penalty_tokens, QUIRE_PENALTY_TOKENS_MAX);
    }
    if (opts->n_bias > QUIRE_LOGIT_BIAS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "logit_bias has %u tokens; at most %u",
                               opts->n_bias, QUIRE_LOGIT_BIAS_MAX);
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
    if (opts->grammar != NULL) {
        QUIRE_TRY(grammar_create(s, opts->grammar, err));
        s->end = end_token(s->model);
    }
    if (opts->temperature >= TEMPERATURE_LEAST) {
        QUIRE_TRY(chain_create(&s->chain, opts));
    }
    if (s->chain != NULL || s->grammar != NULL) {
        s->candidates = calloc(s->n_vocab, sizeof(*s->candidates));
        QUIRE_FAIL_IF(s->candidates == NULL, QUIRE_NOMEM);
    }
    QUIRE_TRY(penalties_create(&s->penalties, opts, s->n_vocab));
    if (opts->n_bias > 0) {
        s->bias = malloc(opts->n_bias * sizeof(*s->bias));
        QUIRE_FAIL_IF(s->bias == NULL, QUIRE_NOMEM);
        memcpy(s->bias, opts->bias, opts->n_bias * sizeof(*s->bias));
        s->n_bias = opts->n_bias;
    }
    if (opts->forbids_eog) {
        QUIRE_TRY(forbidden_create(s));
    }
    if (s->penalties.recent != NULL || s->n_bias > 0 || s->n_forbidden > 0) {
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
    QUIRE_TRY(opts_check(opts, model->desc.n_vocab, err));
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
    llama_sampler_free(sampler->grammar);
    free(sampler->candidates);
    free(sampler->adjusted);
    free(sampler->penalties.recent);
    free(sampler->penalties.counts);
    free(sampler->bias);
    free(sampler->forbidden);
    free(sampler);
}

/* ---- logits ---- */

static void penalties_apply(penalties *p, float *logits)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const int32_t token = p->recent[i];
        const int32_t count = p->counts[token];

        if (count > 0) {
            logits[token] *= logits[token] > 0.0f ? 1.0f / p->repeat : p->repeat;
            logits[token] -= (float)count * p->frequency + p->presence;
            p->counts[token] = -count; /* done */
        }
    }
    for (uint32_t i = 0; i < p->n; i++) {
        p->counts[p->recent[i]] = abs(p->counts[p->recent[i]]);
    }
}

static void penalties_accept(penalties *p, int32_t token)
{
    if (p->recent == NULL) {
        return;
    }
    if (p->n == p->n_max) {
        p->counts[p->recent[p->next]]--;
    } else {
        p->n++;
    }
    p->recent[p->next] = token;
    p->counts[token]++;
    p->next = p->next + 1 == p->n_max ? 0 : p->next + 1;
}

static const float *adjust(quire_sampler *sampler, const float *logits)
{
    float *adjusted = sampler->adjusted;

    if (adjusted == NULL) {
        return logits;
    }
    memcpy(adjusted, logits, sampler->n_vocab * sizeof(*adjusted));
    penalties_apply(&sampler->penalties, adjusted);
    for (uint32_t i = 0; i < sampler->n_bias; i++) {
        adjusted[sampler->bias[i].token] += sampler->bias[i].bias;
    }
    for (uint32_t i = 0; i < sampler->n_forbidden; i++) {
        adjusted[sampler->forbidden[i]] = -INFINITY;
    }
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

/* Whether a comes after b: less likely, or as likely with a higher id. */
static bool is_behind(const llama_token_data *a, const llama_token_data *b)
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
            best = is_behind(&list.data[best], &list.data[i]) ? i : best;
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
        sampler->candidates[i] = (llama_token_data){ (int32_t)i, logits[i], 0.0f };
    }
    return choose_candidate(sampler, sampler->n_vocab);
}

/* ---- grammar ---- */

/* Whether a token is text, and goes on with the text so far as UTF-8. */
static bool token_reads(const quire_sampler *sampler, int32_t token, quire_utf8_stream *after)
{
    char piece[PIECE_BYTES_MAX];
    const int64_t n = quire_model_token_text(sampler->model, token, false, piece, PIECE_BYTES_MAX);

    *after = sampler->utf8;
    return n > 0 && n <= PIECE_BYTES_MAX && quire_utf8_stream_skip(after, piece, (size_t)n);
}

static bool token_fits(const quire_sampler *sampler, int32_t token)
{
    quire_utf8_stream after;

    return quire_model_is_eog(sampler->model, token) || token_reads(sampler, token, &after);
}

static bool grammar_allows(quire_sampler *sampler, int32_t token, float logit)
{
    llama_token_data one = { token, logit, 0.0f };
    llama_token_data_array list = { &one, 1, -1, false };

    if (!(logit > -INFINITY) || !token_fits(sampler, token)) {
        return false;
    }
    llama_sampler_apply(sampler->grammar, &list);
    return one.logit > -INFINITY;
}

/* Let heap[i] sink. The least likely candidate is on top of the heap. */
static void heap_sink(llama_token_data *heap, uint32_t n, uint32_t i)
{
    for (uint32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        llama_token_data t = heap[i];

        child += child + 1 < n && is_behind(&heap[child + 1], &heap[child]);
        if (!is_behind(&heap[child], &t)) {
            return;
        }
        heap[i] = heap[child];
        heap[child] = t;
        i = child;
    }
}

/* Make the n_max likeliest tokens the candidates, without tokens that can never be chosen. Returns
 * their number.
 */
static uint32_t likeliest(quire_sampler *sampler, const float *logits, uint32_t n_max)
{
    llama_token_data *heap = sampler->candidates;
    uint32_t n = 0;

    for (uint32_t i = 0; i < sampler->n_vocab; i++) {
        const llama_token_data t = { (int32_t)i, logits[i], 0.0f };

        if (!(logits[i] > -INFINITY)) { /* NaN, too */
            continue;
        }
        if (n < n_max) {
            heap[n++] = t;
            for (uint32_t k = n == n_max && n_max < sampler->n_vocab ? n / 2 : 0; k > 0; k--) {
                heap_sink(heap, n, k - 1);
            }
        } else if (is_behind(&heap[0], &t)) {
            heap[0] = t;
            heap_sink(heap, n, 0);
        }
    }
    return n;
}

/* Make the tokens that the grammar accepts next the candidates: those among the likeliest n_max if
 * there are any, else those of the whole vocabulary. Returns their number. Tokens that cannot
 * continue the text are removed first, because libllama recurses into each token that it gets. */
static uint32_t grammar_candidates(quire_sampler *sampler, const float *logits, uint32_t n_max)
{
    llama_token_data *data = sampler->candidates;
    llama_token_data_array list = { data, 0, -1, false };
    const uint32_t n_likely = likeliest(sampler, logits, n_max);
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_likely; i++) {
        if (token_fits(sampler, data[i].id)) {
            data[list.size++] = data[i];
        }
    }
    llama_sampler_apply(sampler->grammar, &list);
    for (size_t i = 0; i < list.size; i++) {
        if (data[i].logit > -INFINITY) {
            data[n++] = data[i];
        }
    }
    return n == 0 && n_max < sampler->n_vocab
               ? grammar_candidates(sampler, logits, sampler->n_vocab)
               : n;
}

static void grammar_accept(quire_sampler *sampler, int32_t token)
{
    const uint64_t start_ns = quire_clock_thread_ns();
    quire_utf8_stream after;

    if (!quire_model_is_eog(sampler->model, token) && token_reads(sampler, token, &after)) {
        sampler->utf8 = after;
    }
    llama_sampler_accept(sampler->grammar, token);
    sampler->is_too_ambiguous = quire_clock_thread_ns() - start_ns > ACCEPT_NS_MAX;
}

int32_t quire_sampler_pick(quire_sampler *sampler, const float *logits)
{
    int32_t token;

    QUIRE_FAIL_IF(sampler->is_too_ambiguous, QUIRE_LIMIT);
    logits = adjust(sampler, logits);
    token = choose(sampler, logits);
    if (sampler->grammar != NULL) {
        if (!grammar_allows(sampler, token, logits[token])) {
            const uint32_t n = grammar_candidates(sampler, logits, LIKELY_MAX);

            if (n == 0) {
                return sampler->end >= 0 ? sampler->end : QUIRE_NOTFOUND;
            }
            token = choose_candidate(sampler, n);
        }
        grammar_accept(sampler, token);
    }
    penalties_accept(&sampler->penalties, token);
    return token;
}

void quire_sampler_reset(quire_sampler *sampler)
{
    penalties *p = &sampler->penalties;

    if (sampler->chain != NULL) {
        llama_sampler_reset(sampler->chain);
    }
    if (sampler->grammar != NULL) {
        llama_sampler_reset(sampler->grammar);
    }
    sampler->utf8 = (quire_utf8_stream){ 0 };
    sampler->is_too_ambiguous = false;
    for (uint32_t i = 0; i < p->n; i++) {
        p->counts[p->recent[i]] = 0;
    }
    p->n = p->next = 0;
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
