/* tokens.h - texts to tokens: the interface of tokenizers, and the one whose tokens are bytes.
 *
 * Of a byte tokenizer, byte b is 3 + b, a document begins with QUIRE_BYTE_BOS and ends with
 * QUIRE_BYTE_EOS. The ids are those of an SPM vocabulary with byte tokens, in which the blank is a
 * piece and a spare token has the blank's byte.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_TOKENS_H
#define QUIRE_TRAIN_TOKENS_H

#include "quire/error.h"

#include <stddef.h>
#include <stdint.h>

#define QUIRE_BYTE_UNKNOWN 0
#define QUIRE_BYTE_BOS     1
#define QUIRE_BYTE_EOS     2
#define QUIRE_BYTE_FIRST   3
#define QUIRE_BYTE_VOCAB   260u

/* Thread: one at a time. */
typedef struct quire_train_tokenizer {
    void *ctx;
    uint32_t n_vocab;
    int32_t begin;     /* the token before each document, -1: none */
    int32_t end;       /* the token after it, -1: none */
    uint64_t identity; /* a hash of all that the tokens of a text depend on */
    /* Tokens of a text of any bytes, without begin and end. Memory: free(*tokens); NULL after an
     * error. Errors: QUIRE_NOMEM, QUIRE_LIMIT (a text too long), with err filled in. */
    int (*encode)(void *ctx, const char *text, size_t n_bytes, int32_t **tokens, size_t *n_tokens,
                  quire_error *err);
} quire_train_tokenizer;

/* Tokens are bytes. Memory: static. Thread: any. */
const quire_train_tokenizer *quire_byte_tokenizer(void);

#endif /* QUIRE_TRAIN_TOKENS_H */
