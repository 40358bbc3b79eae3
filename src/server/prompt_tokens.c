/* prompt_tokens.c - see prompt_tokens.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/prompt_tokens.h"

#include "base/check.h"
#include "server/chat_request.h"

#include <stdlib.h>
#include <string.h>

static bool is_over(void *ctx)
{
    return quire_http_check(ctx) < 0;
}

void quire_http_tokenize_opts(quire_http *http, size_t tokens_max, quire_tokenize_opts *opts)
{
    *opts = (quire_tokenize_opts){ .tokens_max = tokens_max,
                                   .time_max_s = QUIRE_TOKENIZE_TIME_MAX_S,
                                   .is_canceled = is_over,
                                   .ctx = http };
}

int quire_http_tokenize_error(quire_http *http, const char *field, const quire_error *cause)
{
    switch (cause->status) {
    case QUIRE_CANCELED:
        return QUIRE_CANCELED; /* quire_http_check() has filled the error */
    case QUIRE_RANGE:
        return quire_api_error_set(&http->err, 400, "context_length_exceeded", field,
                                   "%s: %s, the context has room for %u", field, cause->message,
                                   quire_engine_n_ctx(http->engine));
    case QUIRE_LIMIT:
        return quire_api_error_set(&http->err, 400, "tokenize_limit", field, "%s: %s", field,
                                   cause->message);
    default:
        return quire_api_error_from(&http->err, cause);
    }
}

static int tokenize(quire_http *http, const quire_prompt_source *source, const char *text, size_t n,
                    int32_t **tokens, uint32_t *n_tokens)
{
    quire_error cause = QUIRE_ERROR_INIT;
    quire_joined_tokens joined;
    quire_tokenize_opts opts;

    quire_http_tokenize_opts(http, quire_engine_n_ctx(http->engine), &opts);
    if (quire_sessions_tokenize(quire_engine_sessions(http->engine), 0, text, n, &opts, &joined,
                                &cause) < 0) {
        return quire_http_tokenize_error(http, source->field, &cause);
    }
    *tokens = joined.tokens;
    *n_tokens = joined.n - (source->is_open_ended && joined.n > 0);
    return QUIRE_OK;
}

int quire_prompt_tokens_text(quire_http *http, const quire_prompt_source *source, json_t *value,
                             int32_t **tokens, uint32_t *n_tokens)
{
    return tokenize(http, source, json_string_value(value), json_string_length(value), tokens,
                    n_tokens);
}

int quire_prompt_tokens_messages(quire_http *http, const quire_prompt_source *source,
                                 quire_fields *fields, int32_t **tokens, uint32_t *n_tokens)
{
    quire_chat_request request = QUIRE_CHAT_REQUEST_INIT;
    quire_chat_prompt *prompt = NULL;
    quire_chat_rules rules;
    int rc = quire_chat_request_read(&request, fields, source->field);

    if (rc == QUIRE_OK) {
        request.omits_generation_prompt = true;
        request.is_text_only = true;
        rc = quire_chat_request_apply(http, &request, request.messages.list, request.messages.n,
                                      NULL, &prompt);
    }
    if (rc == QUIRE_OK) {
        quire_chat_prompt_rules(prompt, &rules);
        rc = tokenize(http, source, rules.text.data, rules.text.n, tokens, n_tokens);
    }
    quire_chat_prompt_destroy(prompt);
    quire_chat_request_fini(&request);
    return rc;
}

int quire_prompt_tokens_array(quire_http *http, const quire_prompt_source *source, json_t *value,
                              int32_t **tokens, uint32_t *n_tokens)
{
    quire_fields fields = { .err = &http->err };
    const size_t n = json_array_size(value);

    *tokens = calloc(n, sizeof **tokens);
    if (*tokens == NULL && n > 0) {
        return quire_api_error_nomem(&http->err);
    }
    for (size_t i = 0; i < n; i++) {
        json_t *element = json_array_get(value, i);
        const json_int_t token = json_is_integer(element) ? json_integer_value(element) : -1;

        if (token < 0 || token > INT32_MAX) {
            quire_field_error(&fields, source->field, "element %zu is no token", i);
            return QUIRE_INVAL;
        }
        (*tokens)[i] = (int32_t)token;
    }
    *n_tokens = (uint32_t)n;
    return QUIRE_OK;
}

/* ---- texts and tokens, mixed ---- */

int quire_piece_tokens_push(quire_http *http, const int32_t *tokens, size_t n,
                            quire_piece_tokens *out)
{
    int32_t *grown;

    if (n == 0) {
        return QUIRE_OK;
    }
    grown = realloc(out->tokens, (out->n + n) * sizeof *grown);
    if (grown == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    memcpy(grown + out->n, tokens, n * sizeof *grown);
    out->tokens = grown;
    out->n += n;
    return QUIRE_OK;
}

static int push_text(quire_http *http, const quire_piece_opts *opts, quire_chat_text text,
                     quire_piece_tokens *out)
{
    const size_t n_max = (size_t)quire_engine_n_ctx(http->engine) * QUIRE_CONTEXTS_MAX;
    quire_error cause = QUIRE_ERROR_INIT;
    quire_tokenize_opts how;
    int32_t *tokens;
    size_t n;
    int rc;

    quire_http_tokenize_opts(http, n_max, &how);
    how.add_special = opts->add_special && out->n == 0;
    how.parse_special = opts->parse_special;
    if (quire_model_tokenize_all(quire_engine_model(http->engine), text.data, text.n, &how, &tokens,
                                 &n, &cause) < 0) {
        return quire_http_tokenize_error(http, opts->field, &cause);
    }
    rc = quire_piece_tokens_push(http, tokens, n, out);
    free(tokens);
    return rc;
}

int quire_piece_tokens_text(quire_http *http, const quire_piece_opts *opts, const char *text,
                            quire_piece_tokens *out)
{
    return push_text(http, opts, (quire_chat_text){ text, strlen(text) }, out);
}

int quire_piece_tokens_add(quire_http *http, quire_fields *fields, const quire_piece_opts *opts,
                           json_t *value, quire_piece_tokens *out)
{
    const uint32_t n_vocab = quire_model_desc_get(quire_engine_model(http->engine))->n_vocab;

    if (json_is_string(value)) {
        return push_text(http, opts,
                         (quire_chat_text){ json_string_value(value), json_string_length(value) },
                         out);
    }
    if (!json_is_array(value)) {
        quire_field_type_error(fields, opts->field, "a string, or an array of strings and tokens",
                               value);
        return QUIRE_INVAL;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        json_t *piece = json_array_get(value, i);
        const json_int_t token = json_is_integer(piece) ? json_integer_value(piece) : -1;

        if (json_is_string(piece)) {
            QUIRE_TRY(quire_piece_tokens_add(http, fields, opts, piece, out));
        } else if (token < 0 || token >= (json_int_t)n_vocab) {
            quire_field_error(fields, opts->field, "element %zu is no token of the model (0 .. %u)",
                              i, n_vocab - 1);
            return QUIRE_INVAL;
        } else {
            QUIRE_TRY(quire_piece_tokens_push(http, &(int32_t){ (int32_t)token }, 1, out));
        }
    }
    return QUIRE_OK;
}
