/* api_completions.c - POST /v1/completions, and llama-server's /completion.
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

int quire_generation_prompt_keep(quire_generation *gen, const char *text, size_t n)
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

/* Whether a value is one prompt of tokens, or of tokens and texts; else an array has prompts. */
static bool is_token_array(json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (json_is_integer(json_array_get(value, i))) {
            return true;
        }
    }
    return false;
}

static int add_pieces(quire_generation *gen, quire_fields *fields, json_t *array)
{
    static const quire_piece_opts opts = { "prompt", true, true };
    const uint32_t n_ctx = quire_engine_n_ctx(gen->http->engine);
    quire_piece_tokens out = { 0 };
    int rc = quire_piece_tokens_add(gen->http, fields, &opts, array, &out);

    if (rc == QUIRE_OK && out.n > n_ctx) {
        rc = quire_api_error_set(fields->err, 400, "context_length_exceeded", "prompt",
                                 "prompt: %zu tokens, the context has %u", out.n, n_ctx);
    }
    if (rc < 0) {
        free(out.tokens);
        return rc;
    }
    (void)quire_generation_prompt_add(gen, out.tokens, (uint32_t)out.n);
    return quire_generation_prompt_keep(gen, NULL, 0);
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
    return quire_generation_prompt_keep(gen, text, n);
}

static int add_prompt(quire_generation *gen, quire_fields *fields, json_t *value)
{
    if (json_is_string(value)) {
        return add_text(gen, json_string_value(value), json_string_length(value));
    }
    if (is_token_array(value)) {
        return add_pieces(gen, fields, value);
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
    if (gen->has_echo && gen->session_id[0] != '\0') {
        quire_field_error(fields, "echo", "not together with session_id");
        return QUIRE_INVAL;
    }
    if (gen->has_echo && gen->params.has_logprobs && gen->form->is_llama) {
        quire_field_error(fields, "echo",
                          "not together with log probabilities, which `/v1/completions` has");
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
