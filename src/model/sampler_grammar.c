/* sampler_grammar.c - tokens under a grammar: see sampler.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler_internal.h"

#include "model/model_internal.h"

#include "base/bytes.h"
#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of likeliest tokens that are tested one after the other, before the whole vocabulary. One
 * of the first number nearly always fits the grammar, and testing them takes below 1 ms. Where most
 * tokens fit, one of the second number does. */
#define LIKELY_FIRST 512
#define LIKELY_MAX   4096
/* A token of the end of the prompt, control tokens included. */
#define BEGUN_BYTES_MAX 1024

/* ---- creation ---- */

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

/* Feed the end of the prompt, which is part of the grammar's text. False when the grammar refuses
 * it. */
static bool begin_accept(quire_sampler *sampler)
{
    const quire_answer_rules *rules = sampler->watch.rules;

    for (uint32_t i = 0; rules != NULL && !rules->is_lazy && i < rules->begun.n; i++) {
        char piece[BEGUN_BYTES_MAX];
        const int64_t n = quire_model_token_text(sampler->model, rules->begun.items[i], true, piece,
                                                 sizeof piece);

        if (n < 0 || n > BEGUN_BYTES_MAX ||
            quire_grammar_match_feed(sampler->match, piece, (size_t)n) != 1) {
            return false;
        }
    }
    return true;
}

int quire_sampler_grammar_create(quire_sampler *sampler, const char *gbnf, quire_error *err)
{
    const bool is_of_rules = sampler->watch.rules != NULL && gbnf == sampler->watch.rules->grammar;
    int rc;

    QUIRE_TRY(quire_grammar_create(&sampler->grammar, gbnf, err));
    rc = quire_grammar_match_create(&sampler->match, sampler->grammar);
    if (rc == QUIRE_LIMIT) {
        return quire_error_set(err, rc, "grammar: a text can begin in too many ways");
    }
    QUIRE_TRY(rc);
    QUIRE_TRY(quire_tokenizer_order(sampler->model->tokenizer, &sampler->order));
    sampler->end = end_token(sampler->model);
    sampler->begins_in_prompt = is_of_rules;
    if (is_of_rules && !begin_accept(sampler)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "grammar: the chat format's own does not allow the end of the "
                               "prompt");
    }
    return QUIRE_OK;
}

void quire_sampler_grammar_destroy(quire_sampler *sampler)
{
    quire_grammar_match_destroy(sampler->match);
    quire_grammar_destroy(sampler->grammar);
}

void quire_sampler_grammar_refill(quire_sampler *sampler)
{
    if (sampler->match != NULL) {
        quire_grammar_match_refill(sampler->match);
    }
}

void quire_sampler_grammar_reset(quire_sampler *sampler)
{
    sampler->is_too_ambiguous = false;
    if (sampler->match != NULL) {
        sampler->is_too_ambiguous =
            quire_grammar_match_reset(sampler->match) < 0 ||
            (sampler->begins_in_prompt && !begin_accept(sampler)); /* for want of memory */
    }
}

/* ---- tokens ---- */

/* Whether a call of the matcher says yes; an error is remembered. */
static bool says_yes(quire_sampler *sampler, int rc)
{
    sampler->is_too_ambiguous = sampler->is_too_ambiguous || rc < 0;
    return rc > 0;
}

/* The text of a token that is text under the grammar; its length is 0 for other tokens. */
static const char *text_of(const quire_sampler *sampler, int32_t token, char *buffer, size_t *n)
{
    const quire_answer_rules *rules = sampler->watch.rules;
    const uint32_t rank = sampler->order->ranks[token];

    if (rank < sampler->order->n) {
        *n = quire_token_order_bytes(sampler->order, rank);
        return quire_token_order_text(sampler->order, rank);
    }
    *n = 0;
    if (rank != QUIRE_TOKEN_ENDS && rules != NULL && quire_answer_rules_shows(rules, token)) {
        const int64_t n_text =
            quire_model_token_text(sampler->model, token, true, buffer, QUIRE_GRAMMAR_TEXT_MAX);

        *n = n_text > 0 && n_text <= (int64_t)QUIRE_GRAMMAR_TEXT_MAX ? (size_t)n_text : 0;
    }
    return buffer;
}

/* Whether a token can follow, by itself. */
static bool token_fits(quire_sampler *sampler, int32_t token)
{
    char buffer[QUIRE_GRAMMAR_TEXT_MAX];
    const char *text;
    size_t n;

    if (sampler->order->ranks[token] == QUIRE_TOKEN_ENDS) {
        return quire_grammar_match_is_whole(sampler->match);
    }
    text = text_of(sampler, token, buffer, &n);
    return n > 0 && says_yes(sampler, quire_grammar_match_test(sampler->match, text, n, 0));
}

bool quire_sampler_grammar_allows(quire_sampler *sampler, int32_t token, float logit)
{
    return logit > -INFINITY && token_fits(sampler, token);
}

void quire_sampler_grammar_accept(quire_sampler *sampler, int32_t token)
{
    char buffer[QUIRE_GRAMMAR_TEXT_MAX];
    const char *text;
    size_t n;

    if (sampler->order->ranks[token] != QUIRE_TOKEN_ENDS) {
        text = text_of(sampler, token, buffer, &n);
        (void)says_yes(sampler, quire_grammar_match_feed(sampler->match, text, n));
    }
}

bool quire_sampler_grammar_trigger(quire_sampler *sampler, const char *text, size_t n)
{
    if (quire_grammar_match_feed(sampler->match, text, n) == 1 &&
        (sampler->end < 0 || !quire_grammar_match_is_whole(sampler->match))) {
        return true;
    }
    (void)says_yes(sampler, quire_grammar_match_reset(sampler->match));
    return false;
}

/* ---- candidates ---- */

/* Let heap[i] sink. The least likely candidate is on top of the heap. */
static void heap_sink(llama_token_data *heap, uint32_t n, uint32_t i)
{
    for (uint32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        llama_token_data t = heap[i];

        child += child + 1 < n && quire_candidate_is_behind(&heap[child + 1], &heap[child]);
        if (!quire_candidate_is_behind(&heap[child], &t)) {
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
        } else if (quire_candidate_is_behind(&heap[0], &t)) {
            heap[0] = t;
            heap_sink(heap, n, 0);
        }
    }
    return n;
}

/* A candidate, to be tested in the order of texts. */
typedef struct ranked {
    uint32_t rank;
    uint32_t candidate;
} ranked;

static int compare_ranks(const void *a, const void *b)
{
    const ranked *left = a;
    const ranked *right = b;

    return (left->rank > right->rank) - (left->rank < right->rank);
}

/* Test n candidates, and forbid those that the grammar refuses. */
static void likely_test(quire_sampler *sampler, uint32_t n)
{
    const quire_token_order *order = sampler->order;
    llama_token_data *data = sampler->candidates;
    ranked list[LIKELY_MAX];
    const char *last = "";
    size_t n_last = 0;
    uint32_t n_list = 0;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t rank = order->ranks[data[i].id];

        if (rank < order->n) {
            list[n_list++] = (ranked){ rank, i };
        } else if (!token_fits(sampler, data[i].id)) {
            data[i].logit = -INFINITY;
        }
    }
    qsort(list, n_list, sizeof *list, compare_ranks);
    for (uint32_t i = 0; i < n_list; i++) {
        const char *text = quire_token_order_text(order, list[i].rank);
        const size_t n_text = quire_token_order_bytes(order, list[i].rank);
        const size_t n_shared = quire_bytes_same(last, n_last, text, n_text);

        if (!says_yes(sampler, quire_grammar_match_test(sampler->match, text, n_text, n_shared))) {
            data[list[i].candidate].logit = -INFINITY;
        }
        last = text;
        n_last = n_text;
    }
}

/* The same for the whole vocabulary, whose tokens are the candidates. */
static void all_test(quire_sampler *sampler)
{
    const quire_token_order *order = sampler->order;
    llama_token_data *data = sampler->candidates;
    size_t n_shared = 0;

    for (uint32_t token = 0; token < sampler->n_vocab; token++) {
        if (data[token].logit > -INFINITY && order->ranks[token] >= order->n &&
            !token_fits(sampler, (int32_t)token)) {
            data[token].logit = -INFINITY;
        }
    }
    for (uint32_t i = 0; i < order->n && !sampler->is_too_ambiguous; i++) {
        llama_token_data *t = &data[order->tokens[i]];

        n_shared = order->shared[i] < n_shared ? order->shared[i] : n_shared;
        if (!(t->logit > -INFINITY)) {
            continue;
        }
        if (!says_yes(sampler,
                      quire_grammar_match_test(sampler->match, quire_token_order_text(order, i),
                                               quire_token_order_bytes(order, i), n_shared))) {
            t->logit = -INFINITY;
        }
        n_shared = QUIRE_GRAMMAR_TEXT_MAX; /* with the next text: what that one shares */
    }
}

uint32_t quire_sampler_grammar_candidates(quire_sampler *sampler, const float *logits)
{
    static const uint32_t passes[] = { LIKELY_FIRST, LIKELY_MAX, UINT32_MAX };
    llama_token_data *data = sampler->candidates;
    uint32_t n = 0;

    for (uint32_t pass = 0; pass < 3 && n == 0 && !sampler->is_too_ambiguous; pass++) {
        uint32_t n_tested = sampler->n_vocab;

        if (passes[pass] < sampler->n_vocab) {
            n_tested = likeliest(sampler, logits, passes[pass]);
            likely_test(sampler, n_tested);
        } else {
            for (uint32_t i = 0; i < n_tested; i++) {
                data[i] = (llama_token_data){ (int32_t)i, logits[i], 0.0f };
            }
            all_test(sampler);
            pass = 2;
        }
        for (uint32_t i = 0; i < n_tested; i++) {
            if (data[i].logit > -INFINITY) {
                data[n++] = data[i];
            }
        }
    }
    return sampler->is_too_ambiguous ? 0 : n;
}
