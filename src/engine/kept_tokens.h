/* kept_tokens.h - a prompt's tokens, of which the first were computed before.
 *
 * Tokens that were computed are used as they are as far as their text is the beginning of the
 * prompt's, also where the tokenizer would have cut it into other pieces; what follows is as the
 * tokenizer cuts the whole prompt. They meet at the last place where both end a token: kept tokens
 * beyond it are dropped, so that no token is cut that the tokenizer has across the boundary. Where
 * the kept tokens are the tokenizer's own, the result is what it makes of the whole text.
 *
 * Text of a token: its bytes, special tokens as they are written in prompts. Three things are in
 * tokens or in a text only: BOS at the beginning; the blank that SPM tokenizers add before text
 * which begins the prompt or follows a special token; white space that special tokens of some
 * vocabularies swallow.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_KEPT_TOKENS_H
#define QUIRE_ENGINE_KEPT_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "model/model.h"
#include "model/text.h"

typedef struct quire_kept_tokens {
    const int32_t *tokens; /* [n] */
    uint32_t n;
} quire_kept_tokens;

typedef struct quire_joined_tokens {
    int32_t *tokens; /* [n], free() */
    uint32_t n;
    uint32_t n_kept; /* of them, the kept ones */
} quire_joined_tokens;

/* opts: as for quire_model_tokenize_all(); special tokens count in any case, and the kept tokens
 * may come on top of tokens_max. Errors: those of quire_model_tokenize_all(), with its message. */
int quire_kept_tokens_join(const quire_model *model, const quire_kept_tokens *kept,
                           const char *text, size_t text_bytes, const quire_tokenize_opts *opts,
                           quire_joined_tokens *out, quire_error *err);

#endif /* QUIRE_ENGINE_KEPT_TOKENS_H */
