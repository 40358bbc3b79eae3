/* model_pass.h - a whole model forward and backward over a batch.
 *
 * A pass keeps the activations of a batch of one size, n_rows rows of n_tokens tokens. It holds no
 * parameters: those lie in an array of the caller, as quire_train_layout says, and so do gradients.
 *
 * Layers run from bottom to top. K and V that a layer stores are kept after norm and RoPE, and
 * layers above read them as the KV map says; on the way back the gradients of all readers are added
 * in the order of layers, before the storing layer's own turn.
 *
 * A pass belongs to one thread at a time. Results are the same bits for any number of threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_MODEL_PASS_H
#define QUIRE_TRAIN_MODEL_PASS_H

#include "train/ops.h"
#include "train/shape.h"

#define QUIRE_TRAIN_BATCH_TOKENS_MAX (1u << 22)

/* Rows of packed documents; all arrays [n_rows * n_tokens]. */
typedef struct quire_train_batch {
    const int32_t *tokens;  /* below n_vocab */
    const int32_t *targets; /* the next token; QUIRE_TRAIN_NO_TARGET where nothing is predicted */
    const int32_t *first;   /* in the row: where the token's document begins; not descending */
} quire_train_batch;

#include "train/as_f32_body.h"
#include "train/model_pass_decl.h"

#include "train/as_f64_body.h"
#include "train/model_pass_decl.h"

#endif /* QUIRE_TRAIN_MODEL_PASS_H */
