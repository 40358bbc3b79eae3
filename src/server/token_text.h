/* token_text.h - the text of one token, for replies; for src/server only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_TOKEN_TEXT_H
#define QUIRE_SERVER_TOKEN_TEXT_H

#include "model/model.h"
#include "model/text.h"

#define QUIRE_TOKEN_TEXT_MAX 512u

typedef struct quire_token_text {
    char text[QUIRE_TOKEN_TEXT_MAX]; /* not terminated, possibly incomplete UTF-8 */
    size_t n;
} quire_token_text;

/* The text of a token; the name of a control token. Empty for texts that are too long and for
 * unknown tokens. */
static inline void quire_token_text_get(const quire_model *model, int32_t token,
                                        quire_token_text *out)
{
    const int64_t n = quire_model_token_text(model, token, true, out->text, sizeof out->text);

    out->n = n > 0 && n <= (int64_t)sizeof out->text ? (size_t)n : 0;
}

#endif /* QUIRE_SERVER_TOKEN_TEXT_H */
