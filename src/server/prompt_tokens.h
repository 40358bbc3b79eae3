/* prompt_tokens.h - tokenize texts of a request, within its time and the context; and read the
 * tokens of a field that is given as text, tokens or messages. For src/server only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_PROMPT_TOKENS_H
#define QUIRE_SERVER_PROMPT_TOKENS_H

#include "model/text.h"
#include "server/http.h"

/* Options that stop tokenizing when the request ends (quire_http_check()), and after
 * QUIRE_TOKENIZE_TIME_MAX_S. tokens_max as in the options of quire_model_tokenize_all(). */
void quire_http_tokenize_opts(quire_http *http, size_t tokens_max, quire_tokenize_opts *opts);
/* Fill http->err for a failure to tokenize a field. */
int quire_http_tokenize_error(quire_http *http, const char *field, const quire_error *cause);

typedef struct quire_prompt_source {
    const char *field; /* name of the field, for error messages */
    /* Leave out the last token of a text: a longer text may be cut differently there. Prompts that
     * begin with this text begin with the remaining tokens. */
    bool is_open_ended;
} quire_prompt_source;

/* The tokens of a text or of messages (with the tools and switches beside them), as at the
 * beginning of a prompt. Memory: free(*tokens), also after an error. Errors: http->err. */
int quire_prompt_tokens_text(quire_http *http, const quire_prompt_source *source, json_t *value,
                             int32_t **tokens, uint32_t *n_tokens);
int quire_prompt_tokens_messages(quire_http *http, const quire_prompt_source *source,
                                 quire_fields *fields, int32_t **tokens, uint32_t *n_tokens);
/* The tokens of an array of numbers; not compared with the vocabulary. */
int quire_prompt_tokens_array(quire_http *http, const quire_prompt_source *source, json_t *value,
                              int32_t **tokens, uint32_t *n_tokens);

#endif /* QUIRE_SERVER_PROMPT_TOKENS_H */
