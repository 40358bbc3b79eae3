/* gguf_gen_vocab.h - the tokenizer section of a generated model.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_GGUF_GEN_VOCAB_H
#define QUIRE_BENCH_GGUF_GEN_VOCAB_H

#include <gguf.h>

#include "gguf_gen.h"

#define GGUF_GEN_VOCAB_MIN 262u

/* Add the tokenizer.* keys for the options' vocab, n_vocab and has_fim. Errors: QUIRE_NOMEM. */
int gguf_gen_vocab_add(struct gguf_context *gguf, const gguf_gen_opts *opts);

#endif /* QUIRE_BENCH_GGUF_GEN_VOCAB_H */
