/* describe_internal.h - the parts of quire_gguf_describe(): keys, then tensors, then what names
 * the model.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_DESCRIBE_INTERNAL_H
#define QUIRE_MODEL_DESCRIBE_INTERNAL_H

#include "model/gguf_file.h"

/* rope of a model whose arch_name, d_k and n_ctx_train are known. */
int quire_describe_rope(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* n_vocab and all that follows from the tensor table, whose shapes must fit the sizes in desc;
 * fills has_tied_output, has_qkv_bias, file_type, n_params, weight_bytes. */
int quire_describe_tensors(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* desc->fingerprint, of a description that is complete but for it. */
uint64_t quire_fingerprint(const quire_gguf *file, const quire_model_desc *desc);

#endif /* QUIRE_MODEL_DESCRIBE_INTERNAL_H */
