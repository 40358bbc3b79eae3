/* weights_latent.h - matrices of latent attention that a file has together and untransposed.
 *
 * In files of minicpm3, and in older ones of deepseek2, attn_kv_b [d_v][n_head * (d_plain + d_out)]
 * has the matrices that make K and V of a head from the latent row. Those of V are used in place.
 * Those of K are applied to Q, and so are needed turned: they are copied at loading, as f32 where
 * the file has f32 or bf16, else as f16 (quantised numbers lose nothing of their precision by it).
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_WEIGHTS_LATENT_H
#define QUIRE_MODEL_WEIGHTS_LATENT_H

#include "model/weights.h"

typedef struct quire_weights_latent quire_weights_latent;

/* Fill in wk_b of all layers that have wkv_b, and weights->latent. Errors: QUIRE_NOMEM. */
int quire_weights_latent_make(quire_weights *weights, const quire_model_desc *desc);
/* The same of an outline (weights_outline.h): without numbers. */
int quire_weights_latent_outline(quire_weights *weights, const quire_model_desc *desc);
/* wk_b of all layers is that of another set, if it has copies. */
void quire_weights_latent_share(quire_weights *weights, const quire_weights *from);
void quire_weights_latent_free(quire_weights_latent *latent);

/* Bytes of the copies. */
uint64_t quire_weights_latent_bytes(const quire_gguf *file, const quire_model_desc *desc);

#endif /* QUIRE_MODEL_WEIGHTS_LATENT_H */
