/* vocab_gen.h - writes vocabularies of every kind of tokenizer, made by chance, without a model.
 *
 * Small alphabets and short tokens, so that special tokens, merges and equal scores meet each other
 * far more often than in real vocabularies. libllama loads the files with vocab_only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_VOCAB_GEN_H
#define QUIRE_BENCH_VOCAB_GEN_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/error.h"

typedef enum vocab_gen_kind {
    VOCAB_GEN_SPM,
    VOCAB_GEN_BPE,
    VOCAB_GEN_WPM,
    VOCAB_GEN_UGM,
    VOCAB_GEN_KINDS
} vocab_gen_kind;

typedef struct vocab_gen_opts {
    vocab_gen_kind kind;
    const char *pre;     /* BPE: tokenizer.ggml.pre */
    uint32_t n_pieces;   /* tokens made of others */
    uint32_t n_specials; /* beside the usual ones; each is control, user-defined or unknown */
    bool strips_right;   /* special tokens swallow the white space behind them, as Phi-3's do */
    bool has_no_prefix;  /* SPM, UGM: no blank before a text */
    uint64_t seed;
} vocab_gen_opts;

/* Memory use is a few MiB. Errors: QUIRE_NOMEM, QUIRE_IO. */
int vocab_gen_write(const vocab_gen_opts *opts, const char *path, quire_error *err);

#endif /* QUIRE_BENCH_VOCAB_GEN_H */
