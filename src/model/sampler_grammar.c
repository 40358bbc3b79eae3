/* sampler_grammar.c - tokens under a grammar: see sampler.h.
 *
 * libllama's grammar sampler throws on accepting a token that the grammar rejects, and no C frame
 * can catch the exception. So every chosen token is tested first, and only a token that passed the
 * test is accepted. Texts that were not chosen under the grammar (the end of the prompt, a trigger)
 * are accepted by quire_chat_grammar_accept().
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler_internal.h"

#include "model/backend.h"
#include "model/chat_internal.h"
#include "model/grammar.h"
#include "model/model_internal.h"

#include "base/check.h"
#include "base/clock.h"

#include <math.h>

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

static struct llama_sampler *grammar_make(const quire_sampler *sampler, const char *gbnf)
{
    const quire_answer_rules *rules = sampler->watch.rules;

    return sampler->watch.is_waiting
               ? llama_sampler_init_grammar_lazy_patterns(sampler->model->vocab, gbnf, "root",
                                                          rules->patterns, rules->n_triggers, NULL,
                                                          0)
               : llama_sampler_init_grammar(sampler->model->vocab, gbnf, "root");
}

/* Accept the end of the prompt, which is part of the grammar's text. False when the grammar refuses
 * it. */
static bool begin_accept(quire_sampler *sampler)
{
    const quire_answer_rules *rules = sampler->watch.rules;

    for (uint32_t i = 0; rules != NULL && !rules->is_lazy && i < rules->begun.n; i++) {
        if (quire_chat_grammar_accept(sampler->grammar, rules->begun.items[i]) < 0) {
            return false;
        }
    }
    return true;
}

int quire_sampler_grammar_create(quire_sampler *sampler, const char *gbnf, quire_error *err)
{
    const bool is_of_rules = sampler->watch.rules != NULL && gbnf == sampler->watch.rules->grammar;
    char line[256];

    QUIRE_TRY(quire_grammar_check(gbnf, err));
    quire_backend_log_clear();
    sampler->grammar = grammar_make(sampler, gbnf);
    if (sampler->grammar == NULL) {
        quire_backend_log_last(line, sizeof(line));
        return quire_error_set(err, QUIRE_INVAL, "grammar: libllama refuses it: %s",
                               line[0] != '\0' ? line : "no reason given");
    }
    sampler->end = end_token(sampler->model);
    sampler->begins_in_prompt = is_of_rules;
    if (is_of_rules && !begin_accept(sampler)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "grammar: the chat format's own does not allow the end of the "
                               "prompt");
    }
    return QUIRE_OK;
}

void quire_sampler_grammar_reset(quire_sampler *sampler)
{
    if (sampler->grammar != NULL) {
        llama_sampler_reset(sampler->grammar);
        if (sampler->begins_in_prompt) {
            (void)begin_accept(sampler); /* it did when the sampler was created */
        }
    }
    sampler->utf8 = (quire_utf8_stream){ 0 };
    sampler->is_too_ambiguous = false;
}

/* ---- tokens ---- */

/* Whether a token is text, and goes on with the text so far as UTF-8. */
static bool token_reads(const quire_sampler *sampler, int32_t token, quire_utf8_stream *after)
{
    char piece[PIECE_BYTES_MAX];
    const bool is_shown =
        sampler->watch.rules != NULL && quire_answer_rules_shows(sampler->watch.rules, token);
    const int64_t n =
        quire_model_token_text(sampler->model, token, is_shown, piece, PIECE_BYTES_MAX);

    *after = sampler->utf8;
    return n > 0 && n <= PIECE_BYTES_MAX && quire_utf8_stream_skip(after, piece, (size_t)n);
}

static bool token_fits(const quire_sampler *sampler, int32_t token)
{
    quire_utf8_stream after;

    return quire_model_is_eog(sampler->model, token) || token_reads(sampler, token, &after);
}

bool quire_sampler_grammar_allows(quire_sampler *sampler, int32_t token, float logit)
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

/* Make the tokens that the grammar accepts next the candidates: those among the likeliest n_max if
 * there are any, else those of the whole vocabulary. Returns their number. Tokens that cannot
 * continue the text are removed first, because libllama recurses into each token that it gets. */
static uint32_t candidates_of(quire_sampler *sampler, const float *logits, uint32_t n_max)
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
    return n == 0 && n_max < sampler->n_vocab ? candidates_of(sampler, logits, sampler->n_vocab)
                                              : n;
}

uint32_t quire_sampler_grammar_candidates(quire_sampler *sampler, const float *logits)
{
    return candidates_of(sampler, logits, LIKELY_MAX);
}

void quire_sampler_grammar_accept(quire_sampler *sampler, int32_t token)
{
    const uint64_t start_ns = quire_clock_thread_ns();
    quire_utf8_stream after;

    if (!quire_model_is_eog(sampler->model, token) && token_reads(sampler, token, &after)) {
        sampler->utf8 = after;
    }
    llama_sampler_accept(sampler->grammar, token);
    sampler->is_too_ambiguous = quire_clock_thread_ns() - start_ns > ACCEPT_NS_MAX;
}
