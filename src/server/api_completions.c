/* api_completions.c - POST /v1/completions.
 *
 * SPDX-License-Identifier: MIT */
#include "model/text.h"
#include "server/handlers.h"

#include "server/generate.h"
#include "server/prompt_tokens.h"
#include "server/token_text.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* Keep the text of the prompt added last if the reply needs it. text NULL: of its tokens. */
static int keep_text(quire_generation *gen, const char *text, size_t n)
{
    quire_prompt *prompt = &gen->prompts[gen->n_prompts - 1];
    const quire_model *model = quire_engine_model(gen->http->engine);
    const bool is_kept = gen->has_echo || gen->form->keeps_prompts;
    const uint32_t n_tokens = is_kept && text == NULL ? prompt->n_tokens : 0;

    if (is_kept && text != NULL) {
        (void)quire_bytes_add(&prompt->text, text, n);
    }
    for (uint32_t i = 0; i < n_tokens; i++) {
        quire_token_text piece;

        quire_token_text_get(model, prompt->tokens[i], &piece);
        (void)quire_bytes_add(&prompt->text, piece.text, piece.n);
    }
    return prompt->text.status < 0 ? quire_api_error_nomem(&gen->http->err) : QUIRE_OK;
}

static bool is_token_array(json_t *value)
{
    return json_is_array(value) && json_is_integer(json_array_get(value, 0));
}

static int add_tokens(quire_generation *gen, quire_fields *fields, json_t *array)
{
    const size_t n = json_array_size(array);
    const uint32_t n_ctx = quire_engine_n_ctx(gen->http->engine);
    const uint32_t n_vocab = quire_model_desc_get(quire_engine_model(gen->http->engine))->n_vocab;
    int32_t *tokens;

    if (n > n_ctx) {
        return quire_api_error_set(fields->err, 400, "context_length_exceeded", "prompt",
                                   "prompt: %zu tokens, the context has %u", n, n_ctx);
    }
    tokens = calloc(n, sizeof tokens[0]);
    if (tokens == NULL) {
        return quire_api_error_nomem(fields->err);
    }
    for (size_t i = 0; i < n; i++) {
        json_t *value = json_array_get(array, i);
        const json_int_t token = json_is_integer(value) ? json_integer_value(value) : -1;

        if (token < 0 || token >= (json_int_t)n_vocab) {
            quire_field_error(fields, "prompt", "element %zu is no token of the model (0 .. %u)", i,
                              n_vocab - 1);
            free(tokens);
            return QUIRE_INVAL;
        }
        tokens[i] = (int32_t)token;
    }
    (void)quire_generation_prompt_add(gen, tokens, (uint32_t)n);
    return keep_text(gen, NULL, 0);
}

static int add_text(quire_generation *gen, const char *text, size_t n)
{
    quire_error cause = QUIRE_ERROR_INIT;
    quire_joined_tokens joined;

    if (quire_generation_tokenize(gen, text, n, &joined, &cause) < 0) {
        return quire_http_tokenize_error(gen->http, "prompt", &cause);
    }
    if (joined.n == 0) {
        free(joined.tokens);
        return quire_api_error_set(&gen->http->err, 400, "invalid_value", "prompt",
                                   "prompt: must not be empty");
    }
    (void)quire_generation_prompt_add(gen, joined.tokens, joined.n);
    return keep_text(gen, text, n);
}

static int add_prompt(quire_generation *gen, quire_fields *fields, json_t *value)
{
    if (json_is_string(value)) {
        return add_text(gen, json_string_value(value), json_string_length(value));
    }
    if (is_token_array(value)) {
        return add_tokens(gen, fields, value);
    }
    quire_field_error(fields, "prompt", "must be a string, tokens, or an array of these");
    return QUIRE_INVAL;
}

/* ---- a session's text ---- */

/* Append the prompt to the session's text; a prompt that begins with that text replaces it. */
static int session_text(quire_generation *gen, const char *prompt)
{
    quire_chat_message message = { "text", prompt, NULL };
    quire_chat_message *all = NULL;
    quire_error cause = QUIRE_ERROR_INIT;
    const char *before = "";
    size_t n = 0;

    cause.status = quire_sessions_history(quire_engine_sessions(gen->http->engine), gen->session,
                                          &message, 1, &all, &n);
    if (cause.status < 0) {
        return quire_api_error_from(&gen->http->err, &cause);
    }
    if (n > 0 && strcmp(all[0].role, "text") != 0) {
        free(all);
        return quire_api_error_set(&gen->http->err, 400, "session_kind", "session_id",
                                   "session_id: the session holds a chat, not a text");
    }
    if (n > 1) {
        before = all[0].content;
    }
    if (strncmp(prompt, before, strlen(before)) != 0) {
        (void)quire_bytes_add(&gen->said, before, strlen(before));
    }
    (void)quire_bytes_add(&gen->said, prompt, strlen(prompt));
    free(all);
    return gen->said.status < 0 ? quire_api_error_nomem(&gen->http->err) : QUIRE_OK;
}

static int add_session_prompt(quire_generation *gen, quire_fields *fields, json_t *value)
{
    if (!json_is_string(value)) {
        quire_field_error(fields, "prompt", "a session takes one string");
        return QUIRE_INVAL;
    }
    QUIRE_TRY(quire_generation_session_enter(gen));
    QUIRE_TRY(session_text(gen, json_string_value(value)));
    return add_text(gen, gen->said.data, gen->said.n);
}

/* ---- the request ---- */

static int add_prompts(quire_generation *gen, quire_fields *fields)
{
    json_t *value = quire_field_required(fields, "prompt");

    if (value == NULL) {
        return QUIRE_INVAL;
    }
    if (gen->session_id[0] != '\0') {
        return add_session_prompt(gen, fields, value);
    }
    if (!json_is_array(value) || is_token_array(value)) {
        return add_prompt(gen, fields, value);
    }
    if (json_array_size(value) == 0) {
        quire_field_error(fields, "prompt", "must not be empty");
        return QUIRE_INVAL;
    }
    if (quire_field_array(fields, "prompt", QUIRE_SERVER_CHOICES_MAX) == NULL) {
        return QUIRE_INVAL;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        QUIRE_TRY(add_prompt(gen, fields, json_array_get(value, i)));
    }
    return QUIRE_OK;
}

static int read_request(quire_generation *gen, quire_fields *fields)
{
    gen->has_echo = quire_field_bool(fields, "echo", false);
    QUIRE_TRY(quire_generation_fields(gen, fields));
    if (gen->has_echo && (gen->params.has_logprobs || gen->session_id[0] != '\0')) {
        quire_field_error(fields, "echo", "not together with %s",
                          gen->params.has_logprobs ? "logprobs" : "session_id");
        return QUIRE_INVAL;
    }
    return add_prompts(gen, fields);
}

int quire_api_completions(quire_http *http)
{
    return quire_generation_answer(http, &quire_form_text, read_request);
}

int quire_api_completion(quire_http *http)
{
    return quire_generation_answer(http, &quire_form_llama, read_request);
}
