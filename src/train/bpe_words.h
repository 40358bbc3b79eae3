/* bpe_words.h - the counted words, for bpe.c; see bpe.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_BPE_WORDS_H
#define QUIRE_TRAIN_BPE_WORDS_H

#include "base/bytes.h"
#include "train/bpe.h"

typedef struct quire_bpe_word {
    uint32_t n_bytes;
    size_t at; /* in the words' bytes */
    uint64_t count;
} quire_bpe_word;

struct quire_bpe_words {
    uint32_t words_max;
    uint32_t n;
    uint32_t n_slots;      /* a power of two */
    uint32_t *slots;       /* index of a word + 1; 0: free */
    quire_bpe_word *words; /* [n], in the order of their first appearance */
    uint32_t words_cap;
    quire_bytes bytes;
    uint64_t forgotten; /* words of up to this count were forgotten */
};

#endif /* QUIRE_TRAIN_BPE_WORDS_H */
