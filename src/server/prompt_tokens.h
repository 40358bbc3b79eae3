/* prompt_tokens.h - tokenize texts of a request, within its time and the context; and read the
 * tokens of a field that is given as text, tokens, both, or messages. For src/server only.
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

/* ---- texts and tokens, mixed ---- */

typedef struct quire_piece_tokens {
    int32_t *tokens; /* [n]; free() */
    size_t n;
} quire_piece_tokens;

typedef struct quire_piece_opts {
    const char *field;  /* for error messages */
    bool add_special;   /* BOS before a text that comes first */
    bool parse_special; /* texts of control tokens are these tokens */
} quire_piece_opts;

/* Append the tokens of a text, or of an array of texts and tokens. At most QUIRE_CONTEXTS_MAX
 * contexts of tokens. Errors: http->err; *out stays the caller's to free. */
int quire_piece_tokens_add(quire_http *http, quire_fields *fields, const quire_piece_opts *opts,
                           json_t *value, quire_piece_tokens *out);
/* The same of a C text. */
int quire_piece_tokens_text(quire_http *http, const quire_piece_opts *opts, const char *text,
                            quire_piece_tokens *out);
int quire_piece_tokens_push(quire_http *http, const int32_t *tokens, size_t n,
                            quire_piece_tokens *out);

#endif /* QUIRE_SERVER_PROMPT_TOKENS_H */
