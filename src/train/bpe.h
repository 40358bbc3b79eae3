/* bpe.h - a byte-level BPE vocabulary, learned from texts.
 *
 * Texts are cut into words as GPT-2 cuts them: letters, digits, and other signs, each with one
 * blank before them; white space. Then the pair of tokens that is most frequent within words
 * becomes a token, again and again; of pairs with equal counts, the one with the lower ids comes
 * first. The result depends on the texts and their order alone. Source: Sennrich, Haddow, Birch,
 * arXiv 1508.07909.
 *
 * The cut treats characters beyond ASCII as letters, except for the blocks of punctuation. Where
 * that differs from GPT-2's cut, tokens are learned that no text reaches; no text becomes wrong.
 *
 * Texts are streamed. Distinct words lie in memory, at most words_max: beyond, the rarest are
 * forgotten.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_BPE_H
#define QUIRE_TRAIN_BPE_H

#include "quire/error.h"

#include <stddef.h>
#include <stdint.h>

#define QUIRE_BPE_BYTES          256u   /* tokens before the first merge */
#define QUIRE_BPE_TOKENS_MAX     65536u /* all tokens of a vocabulary */
#define QUIRE_BPE_WORDS_MAX      2000000u
#define QUIRE_BPE_WORD_BYTES_MAX 64u /* longer words are cut */

typedef struct quire_bpe_words quire_bpe_words;

/* words_max: distinct words, 1 to QUIRE_BPE_WORDS_MAX. Errors: QUIRE_NOMEM. Memory:
 * quire_bpe_words_destroy(). */
int quire_bpe_words_create(quire_bpe_words **out, uint32_t words_max, quire_error *err);
void quire_bpe_words_destroy(quire_bpe_words *words);

/* Count the words of a text. Errors: QUIRE_NOMEM. */
int quire_bpe_words_add(quire_bpe_words *words, const char *text, size_t n_bytes, quire_error *err);

/* The bytes of the next word of a text: [0, result). n_bytes > 0. For tests. */
size_t quire_bpe_word_next(const char *text, size_t n_bytes);

/* Token i has bytes [ends[i - 1], ends[i]). Tokens 0 to 255 are the bytes. Merges are pairs of
 * tokens in the order in which they apply; two merges may give one token. */
typedef struct quire_bpe_table {
    uint32_t n_tokens;
    uint32_t n_merges;
    unsigned char *bytes;
    uint32_t *ends;        /* [n_tokens] */
    uint32_t (*merges)[2]; /* [n_merges] */
} quire_bpe_table;

/* A vocabulary of n_tokens, QUIRE_BPE_BYTES to QUIRE_BPE_TOKENS_MAX. Errors: QUIRE_INVAL (the
 * number; the texts have too few pairs, and err says for how many tokens they are enough),
 * QUIRE_NOMEM. Memory: quire_bpe_table_fini(). */
int quire_bpe_learn(const quire_bpe_words *words, uint32_t n_tokens, quire_bpe_table *out,
                    quire_error *err);
void quire_bpe_table_fini(quire_bpe_table *table);

#endif /* QUIRE_TRAIN_BPE_H */
