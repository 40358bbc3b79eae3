/* gguf_gen_vocab.h - the tokenizer section of a generated model.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_GGUF_GEN_VOCAB_H
#define QUIRE_BENCH_GGUF_GEN_VOCAB_H

#include <gguf.h>

#include "gguf_gen.h"

#define GGUF_GEN_VOCAB_MIN 262u

/* Add the tokenizer.* keys for n_vocab tokens. Errors: QUIRE_NOMEM. */
int gguf_gen_vocab_add(struct gguf_context *gguf, gguf_gen_vocab kind, uint32_t n_vocab);

#endif /* QUIRE_BENCH_GGUF_GEN_VOCAB_H */
