/* gguf_vocab.h - the vocabulary of a GGUF file that is written: copied from another file, or a
 * byte-level BPE vocabulary.
 *
 * Thread: any; a vocabulary is immutable.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GGUF_VOCAB_H
#define QUIRE_MODEL_GGUF_VOCAB_H

#include "quire/error.h"

#include <stdint.h>

struct gguf_context;
typedef struct quire_gguf_vocab quire_gguf_vocab;

/* All keys tokenizer.* of a file, the chat template included. Errors: those of quire_gguf_open().
 * Memory: quire_gguf_vocab_free(). */
int quire_gguf_vocab_read(quire_gguf_vocab **out, const char *path, quire_error *err);

/* Token i has bytes [ends[i - 1], ends[i]); the first 256 are the bytes. Merges are pairs of
 * tokens.
 */
typedef struct quire_gguf_bpe {
    uint32_t n_tokens;
    uint32_t n_merges;
    const unsigned char *bytes;
    const uint32_t *ends;        /* [n_tokens] */
    const uint32_t (*merges)[2]; /* [n_merges] */
} quire_gguf_bpe;

/* The vocabulary of a file: <|endoftext|>, which begins and ends texts, then the tokens. GPT-2's
 * characters stand for bytes, and GPT-2's pattern cuts texts into words. Errors: QUIRE_NOMEM. */
#define QUIRE_GGUF_BPE_SPECIALS 1u
int quire_gguf_vocab_bpe(quire_gguf_vocab **out, const quire_gguf_bpe *bpe, quire_error *err);

void quire_gguf_vocab_free(quire_gguf_vocab *vocab);

/* A hash of the keys, their types and values: equal for copies of a file. */
uint64_t quire_gguf_vocab_hash(const quire_gguf_vocab *vocab);

/* Add the keys to a file that is being put together. For gguf_write.c. */
void quire_gguf_vocab_add(const quire_gguf_vocab *vocab, struct gguf_context *to);

#endif /* QUIRE_MODEL_GGUF_VOCAB_H */
