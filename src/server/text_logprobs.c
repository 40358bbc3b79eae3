/* text_logprobs.c - log-probabilities of text completions, and those of prompts: OpenAI's four
 * arrays, and vLLM's `prompt_logprobs`.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"
#include "server/token_text.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>

/* Arrays of a choice's elements. */
enum {
    TOKENS,
    LOGPROBS,
    TOPS,
    OFFSETS
};

/* A token with its values. */
typedef struct entry {
    int32_t token;
    float logprob;
    const quire_top_logit *tops;
    uint32_t n_tops;
} entry;

static void name_of(const quire_model *model, int32_t token, char name[QUIRE_TOKEN_TEXT_MAX + 1])
{
    quire_token_text text;

    quire_token_text_get(model, token, &text);
    memcpy(name, text.text, text.n);
    name[text.n] = '\0';
}

static bool is_among(int32_t token, const quire_top_logit *tops, uint32_t n_tops)
{
    for (uint32_t i = 0; i < n_tops; i++) {
        if (tops[i].token == token) {
            return true;
        }
    }
    return false;
}

/* The token itself, unless it is one of the likeliest; then these. */
static void add_tops(quire_json_out *json, const quire_model *model, const entry *e)
{
    char name[QUIRE_TOKEN_TEXT_MAX + 1];

    quire_json_object(json, NULL);
    if (!is_among(e->token, e->tops, e->n_tops)) {
        name_of(model, e->token, name);
        quire_json_number(json, name, (double)e->logprob);
    }
    for (uint32_t i = 0; i < e->n_tops; i++) {
        name_of(model, e->tops[i].token, name);
        quire_json_number(json, name, (double)e->tops[i].logprob);
    }
    quire_json_object_end(json);
}

/* has_values: all but the first token of a text has them. */
static void add_entry(const quire_generation *gen, quire_choice *choice, const entry *e,
                      bool has_values)
{
    const quire_model *model = quire_engine_model(gen->http->engine);
    quire_json_out json[4];
    quire_token_text text;

    for (unsigned i = 0; i < 4; i++) {
        json[i] = (quire_json_out){ &choice->logprobs[i], choice->logprobs[i].n > 0 };
    }
    quire_token_text_get(model, e->token, &text);
    quire_json_text(&json[TOKENS], NULL, text.text, text.n);
    quire_json_u64(&json[OFFSETS], NULL, choice->text_chars);
    if (has_values) {
        quire_json_number(&json[LOGPROBS], NULL, (double)e->logprob);
        add_tops(&json[TOPS], model, e);
    } else {
        quire_json_null(&json[LOGPROBS], NULL);
        quire_json_null(&json[TOPS], NULL);
    }
}

void quire_text_logprobs_take(quire_generation *gen, quire_choice *choice,
                              const quire_request_token *token)
{
    const entry e = { token->token, token->logprob, token->tops, token->n_tops };

    add_entry(gen, choice, &e, true);
}

/* ---- prompts ---- */

/* Bytes of the text that a token of it stands for: the text may lack the token's first blank, and
 * control tokens. */
static size_t width_of(const quire_model *model, int32_t token, const char *text, size_t n)
{
    quire_token_text piece;
    int64_t n_plain;

    if (n == 0) {
        return 0;
    }
    quire_token_text_get(model, token, &piece);
    if (piece.n <= n && memcmp(text, piece.text, piece.n) == 0) {
        return piece.n;
    }
    if (piece.n > 0 && piece.text[0] == ' ' && piece.n - 1 <= n &&
        memcmp(text, piece.text + 1, piece.n - 1) == 0) {
        return piece.n - 1;
    }
    n_plain = quire_model_token_text(model, token, false, piece.text, sizeof piece.text);
    return n_plain > 0 ? quire_min_u64((uint64_t)n_plain, n) : 0;
}

bool quire_choice_scores_prompt(const quire_generation *gen, uint32_t i)
{
    return gen->params.has_prompt_logprobs && (gen->is_stream || i % gen->n_per_prompt == 0);
}

/* The values of a token of the choice's prompt. */
static bool value_of(const quire_generation *gen, const quire_choice *choice, uint32_t i,
                     quire_prompt_logprob *out)
{
    uint32_t of = (uint32_t)(choice - gen->choices);

    while (!quire_choice_scores_prompt(gen, of)) {
        of--; /* of the same prompt */
    }
    return quire_request_prompt_logprob(gen->choices[of].request, i, out);
}

/* The prompt's tokens are the first of the answer's. */
static void take_echo(quire_generation *gen, quire_choice *choice)
{
    const quire_model *model = quire_engine_model(gen->http->engine);
    const quire_prompt *prompt = choice->prompt;
    size_t at = 0;

    for (uint32_t i = 0; i < prompt->n_tokens; i++) {
        quire_prompt_logprob value = { 0 };
        const bool has_values = value_of(gen, choice, i, &value);
        const entry e = { prompt->tokens[i], value.logprob, value.tops,
                          quire_min_u32(value.n_tops, gen->params.n_top_logprobs) };
        const char *text = prompt->text.data + at;
        const size_t width = width_of(model, e.token, text, prompt->text.n - at);

        add_entry(gen, choice, &e, has_values);
        quire_choice_chars_add(choice, text, width);
        at += width;
    }
    quire_choice_chars_add(choice, prompt->text.data + at, prompt->text.n - at);
}

void quire_text_logprobs_echo(quire_generation *gen, quire_choice *choice)
{
    if (gen->has_echo && gen->params.has_logprobs && !choice->is_echoed) {
        choice->is_echoed = true;
        take_echo(gen, choice);
    }
}

/* ---- vLLM's form ---- */

static void add_ranked(quire_json_out *json, const quire_model *model, int32_t token, float logprob,
                       uint32_t rank)
{
    quire_token_text text;
    char id[16];

    quire_token_text_get(model, token, &text);
    (void)snprintf(id, sizeof id, "%d", token);
    quire_json_object(json, id);
    quire_json_number(json, "logprob", (double)logprob);
    quire_json_u64(json, "rank", rank);
    quire_json_text(json, "decoded_token", text.text, text.n);
    quire_json_object_end(json);
}

void quire_prompt_logprobs_write(quire_json_out *json, const quire_generation *gen,
                                 const quire_choice *choice)
{
    const quire_model *model = quire_engine_model(gen->http->engine);
    const quire_prompt *prompt = choice->prompt;

    if (!gen->shows_prompt_logprobs) {
        return;
    }
    quire_json_array(json, "prompt_logprobs");
    for (uint32_t i = 0; i < prompt->n_tokens; i++) {
        quire_prompt_logprob value;
        uint32_t n_tops;

        if (!value_of(gen, choice, i, &value)) {
            quire_json_null(json, NULL);
            continue;
        }
        n_tops = quire_min_u32(value.n_tops, gen->n_shown_prompt_tops);
        quire_json_object(json, NULL);
        if (!is_among(prompt->tokens[i], value.tops, n_tops)) {
            add_ranked(json, model, prompt->tokens[i], value.logprob, value.rank);
        }
        for (uint32_t t = 0; t < n_tops; t++) {
            add_ranked(json, model, value.tops[t].token, value.tops[t].logprob, t + 1);
        }
        quire_json_object_end(json);
    }
    quire_json_array_end(json);
}
