/* describe_internal.h - the parts of quire_gguf_describe(): keys, then tensors, then the
 * fingerprint.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_DESCRIBE_INTERNAL_H
#define QUIRE_MODEL_DESCRIBE_INTERNAL_H

#include "model/gguf_file.h"

/* Fill in rope; arch_name, d_k and n_ctx_train are known. */
int quire_describe_rope(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in n_vocab and the facts that follow from the tensor table: has_tied_output, has_qkv_bias,
 * file_type, n_params, weight_bytes. The shapes of the tensors must fit the sizes in desc. */
int quire_describe_tensors(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* The fingerprint of a description whose other fields are complete. */
uint64_t quire_fingerprint(const quire_gguf *file, const quire_model_desc *desc);

#endif /* QUIRE_MODEL_DESCRIBE_INTERNAL_H */
