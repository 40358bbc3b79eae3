/* train_tokens.h - the tokenizer of a training run: bytes, that of a GGUF file, or a BPE vocabulary
 * that is learned from the run's own text.
 *
 * A learned vocabulary is written as CHECKPOINT.tokenizer.gguf (a model file whose weights are
 * zero). So training makes tokens by the code that also serves the model, and a resumed run does
 * not learn the vocabulary again.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRAIN_TOKENS_H
#define QUIRE_CLI_TRAIN_TOKENS_H

#include "model/gguf_vocab.h"
#include "model/model.h"
#include "train/text_docs.h"

typedef struct quire_train_tokens {
    quire_train_tokenizer by;
    quire_gguf_vocab *vocab; /* for exported files; NULL: bytes */
    quire_model *model;      /* its tokenizer alone; NULL: bytes */
} quire_train_tokens;

/* Tokens of a BPE vocabulary without documents to read: of so many tasks. */
#define QUIRE_TRAIN_BPE_TASKS 2000u
/* "bpe:N": 256 bytes, the end of texts, and merges. */
#define QUIRE_TRAIN_BPE_MIN 257u

/* name: "bytes", "bpe:N" or a GGUF file. docs: the documents that a vocabulary is learned from, in
 * one pass. Errors: QUIRE_INVAL (no such name; N; a tokenizer file of another size than N), those
 * of quire_model_open(), quire_bpe_learn(), text_docs, and new files. Memory:
 * quire_train_tokens_close(), also after an error. */
int quire_train_tokens_open(quire_train_tokens *out, const char *name, const char *checkpoint,
                            const quire_text_docs_options *docs, quire_error *err);
void quire_train_tokens_close(quire_train_tokens *tokens);

#endif /* QUIRE_CLI_TRAIN_TOKENS_H */
