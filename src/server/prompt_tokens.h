/* prompt_tokens.h - tokens of the texts in a request, within its time and the context; tokens that
 * stand otherwise than as a prompt: by a text, by tokens or by messages. For src/server only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_PROMPT_TOKENS_H
#define QUIRE_SERVER_PROMPT_TOKENS_H

#include "model/text.h"
#include "server/http.h"

/* Tokenizing ends when the request does (see quire_http_check()), and after
 * QUIRE_TOKENIZE_TIME_MAX_S. tokens_max as in the options of quire_model_tokenize_all(). */
void quire_http_tokenize_opts(quire_http *http, size_t tokens_max, quire_tokenize_opts *opts);
/* The error of tokenizing a field. */
int quire_http_tokenize_error(quire_http *http, const char *field, const quire_error *cause);

typedef struct quire_prompt_source {
    const char *field; /* that the value stood in: for messages */
    /* Leave the last token of a text out: text that follows may be cut into other tokens there, and
     * what begins with fewer tokens begins with these too. */
    bool is_open_ended;
} quire_prompt_source;

/* The tokens of a text or of messages, as they stand at the beginning of prompts. Memory:
 * free(*tokens), also after an error. Errors: http->err. */
int quire_prompt_tokens_text(quire_http *http, const quire_prompt_source *source, json_t *value,
                             int32_t **tokens, uint32_t *n_tokens);
int quire_prompt_tokens_messages(quire_http *http, const quire_prompt_source *source,
                                 quire_fields *fields, int32_t **tokens, uint32_t *n_tokens);
/* An array of numbers; whether the model has such tokens is not looked at. */
int quire_prompt_tokens_array(quire_http *http, const quire_prompt_source *source, json_t *value,
                              int32_t **tokens, uint32_t *n_tokens);

#endif /* QUIRE_SERVER_PROMPT_TOKENS_H */
