/* describe_internal.h - the parts of quire_gguf_describe(): keys, then tensors, then the
 * fingerprint.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_DESCRIBE_INTERNAL_H
#define QUIRE_MODEL_DESCRIBE_INTERNAL_H

#include "model/gguf_file.h"
#include "model/gguf_keys.h"

/* Far above today's models. */
#define QUIRE_FF_MAX (1u << 20)

/* Fill in n_kv_head, mixer, the n_ff of an architecture whose layers are one block each, and the
 * number of recurrent layers; n_head, n_layer and n_layer_file are known. */
int quire_describe_kv_heads(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in the sizes of recurrent layers; the other sizes are known. */
int quire_describe_recurrent(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in window; the sizes are known. */
int quire_describe_windows(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in latent, n_kv_head, d_k and d_v of an architecture with latent attention; n_embd and
 * n_head are known. */
int quire_describe_latent(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in experts; arch_name, n_layer, n_layer_file and n_ff are known. Errors: QUIRE_CORRUPT,
 * QUIRE_UNSUPP (experts in an architecture that has none). */
int quire_describe_experts(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in the scales and softcaps, the temperature and the numbers of activations; the sizes and
 * the rope are known. Refuse keys that change the result and that Quire does not compute. */
int quire_describe_scales(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in rope, rope_window and layer_rope; the sizes and the windows are known. */
int quire_describe_rope(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in n_vocab and the facts that follow from the tensor table: parts, has_tied_output,
 * has_qkv_bias, has_qk_norm, file_type, n_params, weight_bytes, and the gates of kv_map.
 * The shapes of the tensors must fit the sizes and the KV map in desc. */
int quire_describe_tensors(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Sizes that come by layer (describe_sizes.c). Fill in n_ff and n_kv_head, the largest ones, and
 * those of layer_sizes; n_head and the numbers of layers are known. */
int quire_describe_ff_by_layer(const quire_gguf *file, quire_model_desc *desc,
                               quire_gguf_range range, quire_error *err);
int quire_describe_kv_heads_by_layer(const quire_gguf *file, quire_model_desc *desc,
                                     quire_error *err);

/* The same of the sizes of heads; d_k and d_v are those of layers without a window, and the windows
 * are known. */
int quire_describe_layer_heads(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in stored_by and has_layer_sizes, and the largest heads as d_k and d_v; all sizes and the KV
 * map are known. */
void quire_layer_sizes_join(quire_model_desc *desc);

/* Fill in kv_map, n_stored and last_stored of an architecture whose last layers read the K and V of
 * earlier ones; windows and sizes are known. */
int quire_describe_shared_kv(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* Fill in n_embd_layer of an architecture whose residual has streams; refuse keys that differ from
 * the numbers that libllama fixes. n_layer is known. */
int quire_describe_streams(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* The KV map of a model whose layers with attention each store their own. */
void quire_kv_map_plain(quire_model_desc *desc);

/* Fill in kv_map without gates, n_stored, last_stored and kv_scheme from the keys of the
 * architecture quire; n_layer is known. A file without these keys has a plain map. */
int quire_describe_kv_map(const quire_gguf *file, quire_model_desc *desc, quire_error *err);

/* The gate of one source of a layer. */
typedef struct quire_gate_place {
    uint32_t layer;
    uint32_t source;
    bool is_k;
} quire_gate_place;

/* Check the tensor of a gate and enter it into the map. */
int quire_describe_gate(const quire_gguf *file, quire_model_desc *desc, quire_gate_place place,
                        const struct ggml_tensor *tensor, quire_error *err);

/* Check the map after the last gate. */
int quire_describe_gates_check(const quire_gguf *file, const quire_model_desc *desc,
                               quire_error *err);

/* The fingerprint of a description whose other fields are complete. */
uint64_t quire_fingerprint(const quire_gguf *file, const quire_model_desc *desc);

#endif /* QUIRE_MODEL_DESCRIBE_INTERNAL_H */
