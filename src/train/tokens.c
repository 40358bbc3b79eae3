/* tokens.c - see tokens.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/tokens.h"

#include <stdlib.h>

static int bytes_encode(void *ctx, const char *text, size_t n_bytes, int32_t **tokens,
                        size_t *n_tokens, quire_error *err)
{
    (void)ctx;
    *n_tokens = n_bytes;
    *tokens = malloc((n_bytes + 1) * sizeof(**tokens));
    if (*tokens == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < n_bytes; i++) {
        (*tokens)[i] = QUIRE_BYTE_FIRST + (unsigned char)text[i];
    }
    return QUIRE_OK;
}

const quire_train_tokenizer *quire_byte_tokenizer(void)
{
    static const quire_train_tokenizer bytes = { .n_vocab = QUIRE_BYTE_VOCAB,
                                                 .begin = QUIRE_BYTE_BOS,
                                                 .end = QUIRE_BYTE_EOS,
                                                 .identity = 1,
                                                 .encode = bytes_encode };

    return &bytes;
}
