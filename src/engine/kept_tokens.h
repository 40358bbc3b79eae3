/* kept_tokens.h - tokenize a prompt, reusing tokens that were computed before.
 *
 * Computed tokens are reused as far as their text is a prefix of the prompt's text, even where the
 * tokenizer would cut that text differently. The remaining tokens are those that the tokenizer
 * makes of the whole prompt. The two sequences are joined at the last position where both end a
 * token; kept tokens beyond it are dropped. So the join splits no token of the tokenizer. If the
 * kept tokens are the tokenizer's own, the result equals the tokens of the whole text.
 *
 * Text of a token: its bytes; for special tokens, their spelling in prompts. Tokens and text differ
 * in three things: BOS at the beginning; the blank that SPM tokenizers add before text at the
 * beginning of the prompt or after a special token; white space that special tokens of some
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
    uint32_t n_kept; /* number of kept tokens at the beginning */
} quire_joined_tokens;

/* opts: as for quire_model_tokenize_all(), but special tokens are always parsed, and the kept
 * tokens do not count towards tokens_max. Errors and messages: as quire_model_tokenize_all(). */
int quire_kept_tokens_join(const quire_model *model, const quire_kept_tokens *kept,
                           const char *text, size_t text_bytes, const quire_tokenize_opts *opts,
                           quire_joined_tokens *out, quire_error *err);

#endif /* QUIRE_ENGINE_KEPT_TOKENS_H */
