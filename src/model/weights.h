/* weights.h - a model's tensors, ready for ggml graphs.
 *
 * The file is mapped read-only. A tensor is used in place if the CPU backend multiplies with the
 * bytes of the file. Matrices that are only factors of products are copied: into panels if Quire's
 * own products have the type and the CPU (matmul.h), else into an *extra* buffer type of the CPU
 * backend if the backend has one (repacked, exactly where libllama's loader would do so). The token
 * embedding stays as mapped, because its rows are looked up. A tied output matrix is a second copy
 * of the embedding, for the product.
 *
 * The last layers may lie on a device of ggml instead (quire_model_opts.devices): all of their
 * tensors in the file's bytes, but for those that our own operations read (weights_device.h). Of
 * the sets of a model, one owns the tensors of the host, and the others use them.
 *
 * Thread: immutable after load. Building a ggml graph sets a flag in the tensors it visits (always
 * to the same value).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_WEIGHTS_H
#define QUIRE_MODEL_WEIGHTS_H

#include "base/hash128.h"
#include "matmul/matmul.h"
#include "model/archs.h"
#include "model/gguf_file.h"
#include "model/model.h"

#include <ggml-backend.h>
#include <ggml.h>

/* Matrices are [in][out] in ggml's order (ne[0] = in). NULL where the model has none. Those in
 * panels have neither data nor a buffer that ggml knows: quire_weights_panels(). */
typedef struct quire_expert_weights {
    struct ggml_tensor *router, *router_b; /* [n_embd][n_experts]; f32 [n_experts] */
    struct ggml_tensor *choice_b;          /* f32 [n_experts], added for the choice alone */
    /* [in][out][n_experts], each in panels, or floats as mapped; or all as mapped, where ggml
     * multiplies with one of them. Biases f32 [out][n_experts]. Panels are those of all experts
     * together. gate_up has an expert's gate and behind it its up,
     * in place of both. Experts without gates have up alone, as has the network of all rows. */
    struct ggml_tensor *gate, *gate_b;
    struct ggml_tensor *up, *up_b;
    struct ggml_tensor *gate_up;
    struct ggml_tensor *down, *down_b;
    /* [n_embd][fewer] and back, around the experts; NULL: they read the residual's numbers. */
    struct ggml_tensor *narrow, *widen;
    struct ggml_tensor *down_scale; /* f32 [n_experts], factors of the results */
    /* Of experts beside a plain network: the norms of their input and of both results, and f32
     * [n_embd], a factor of the row that the router reads. */
    struct ggml_tensor *norm, *post_norm, *dense_post_norm;
    struct ggml_tensor *router_scale;
    /* The network that all rows pass through, and f32 [n_embd]: how much of it a row takes. */
    struct ggml_tensor *shared_gate, *shared_up, *shared_down;
    struct ggml_tensor *shared_router;
} quire_expert_weights;

typedef struct quire_layer_weights {
    struct ggml_tensor *attn_norm, *attn_norm_b;
    struct ggml_tensor *attn_post_norm; /* of the block's result, before it is added */
    struct ggml_tensor *wq, *bq;
    struct ggml_tensor *wk, *bk; /* NULL in layers that store nothing, as wv and k_norm */
    struct ggml_tensor *wv, *bv; /* NULL also where K's product is V */
    /* Of latent attention, where wq may read a row of fewer numbers, and wk and wv are NULL. wk_b
     * [d_plain][d_v][n_head] and wv_b [d_v][d_out][n_head] are a head's matrices of K, turned, and
     * of V; in wkv_b they lie together, and wv_b is NULL. */
    struct ggml_tensor *wq_a, *q_a_norm;
    struct ggml_tensor *wkv_a, *kv_a_norm;
    struct ggml_tensor *wk_b, *wv_b, *wkv_b;
    struct ggml_tensor *wo, *bo;
    struct ggml_tensor *q_norm, *k_norm; /* [d_k], or of a whole row of heads */
    /* Of the K and V that the layer reads, f32 [d / 2], [d] or [n_kv_head][d]. NULL: ones. */
    struct ggml_tensor *k_gate[QUIRE_ATTN_SOURCES_MAX];
    struct ggml_tensor *v_gate[QUIRE_ATTN_SOURCES_MAX];
    /* f32 [2]: factors of layer 0's K or V and of the layer's own; their sum is stored. NULL: the
     * own one alone. */
    struct ggml_tensor *k_mix, *v_mix;
    struct ggml_tensor *ffn_norm, *ffn_norm_b;
    struct ggml_tensor *ffn_post_norm;
    struct ggml_tensor *gate, *gate_b;
    struct ggml_tensor *up, *up_b;
    struct ggml_tensor *down, *down_b;
    /* Of a layer with a convolution: its products before it, [n_embd][3 * n_embd], and its factors,
     * [conv_taps][n_embd]. wo follows it. */
    struct ggml_tensor *conv_in, *conv;
    /* The same of a delta net, [n_embd][conv_width] and [conv_taps][conv_width], and its further
     * maps and vectors: graph_delta.c. delta_a is NULL where delta_b makes both. */
    struct ggml_tensor *delta_z, *delta_b, *delta_a;
    struct ggml_tensor *delta_dt, *delta_decay, *delta_norm;
    /* Of Mamba-2: conv_in [n_embd][inner + conv_width + heads], conv, conv_b f32 [conv_width],
     * delta_dt and delta_decay as above, mamba_skip f32 [heads], mamba_norm f32 [groups][inner /
     * groups] or NULL, and its output, beside attention's wo: graph_mamba.c. */
    struct ggml_tensor *conv_b, *mamba_skip, *mamba_norm, *mamba_out;
    struct ggml_tensor *sinks; /* f32 [n_head] */
    /* Of attention's result, [n_embd][n_head * d_v] or [n_embd][n_head]; NULL where there is none.
     */
    struct ggml_tensor *attn_gate;
    /* The maps that add the second embedding, [n_embd][n_embd_layer] and back; and f32 [1], a
     * factor of the layer's output. */
    struct ggml_tensor *embd_gate, *embd_map, *embd_post_norm;
    struct ggml_tensor *out_scale;
    /* Of a residual of streams: graph_streams.c. */
    struct ggml_tensor *stream_router, *stream_router_norm; /* [n_embd][streams]; f32 [n_embd] */
    struct ggml_tensor *stream_predict, *stream_correct; /* [streams][streams^2]; [..][streams] */
    struct ggml_tensor *stream_scale;                    /* f32 [n_embd] */
    struct ggml_tensor *laurel_in, *laurel_out, *laurel_norm;
    quire_expert_weights experts; /* in place of gate, up and down, or beside them */
    /* Wq, Wk and Wv, and gate and up, as one matrix each where their panels lie one behind the
     * other; else NULL. */
    quire_matmul_weight *qkv;
    quire_matmul_weight *gate_up;
} quire_layer_weights;

typedef struct quire_weights quire_weights;
struct quire_weights {
    struct ggml_tensor *tok_embd;
    struct ggml_tensor *output_norm, *output_norm_b;
    struct ggml_tensor *output, *output_b;
    /* The second embedding [n_embd_layer * n_layer][n_vocab], and the map that adds the first one
     * to it. */
    struct ggml_tensor *layer_embd, *layer_embd_map, *layer_embd_norm;
    /* [n_embd][n_embd], of each stream of the residual but the first: into it and out of it. */
    struct ggml_tensor *streams_in[QUIRE_STREAMS - 1], *streams_out[QUIRE_STREAMS - 1];
    struct ggml_tensor *rope_freqs; /* [n_dims / 2] divisors of the frequencies (llama3 scaling) */
    struct ggml_tensor *rope_long, *rope_short; /* the same, by the length of the context */
    quire_layer_weights *layers;                /* [n_layer] */
    uint32_t n_layer;
    ggml_backend_dev_t devices[QUIRE_MODEL_DEVICES_MAX]; /* [n_devices] */
    uint32_t n_devices;                                  /* 0: all weights are the host's */
    uint8_t layer_device[QUIRE_LAYERS_MAX + 1];          /* [n_layer + 1]: quire_model_split.of */
    uint32_t device_from; /* layers from this one on lie on devices; n_layer stands for the last
                             norm and the output matrix, n_layer + 1 for nothing */
    unsigned char digest[QUIRE_HASH128_BYTES]; /* of all tensors: weights_digest.h */
    uint64_t mapped_bytes;                     /* used in place */
    uint64_t repacked_bytes;                   /* copied, in the file's bytes */
    uint64_t device_bytes;                     /* on devices */
    struct quire_weights_store *store;
    struct quire_weights_latent *latent; /* weights_latent.h; NULL where nothing is turned, and
                                            where another set has it */
};

/* Load the weights that desc (of the same file) names: sets[0 .. n - 1], of opts->n_sets sets.
 * split: what opts->split has filled in; NULL without it. The file may be closed afterwards.
 * Errors: QUIRE_IO, QUIRE_UNSUPP, QUIRE_NOMEM. Memory: free with quire_weights_destroy_sets(). */
int quire_weights_load(quire_weights *sets[QUIRE_MODEL_SETS_MAX], const quire_gguf *file,
                       const quire_model_desc *desc, const quire_model_opts *opts,
                       const quire_model_split *split, quire_error *err);
void quire_weights_destroy_sets(quire_weights *sets[QUIRE_MODEL_SETS_MAX]);
void quire_weights_destroy(quire_weights *weights);

/* The sets of a model. */
static inline uint32_t quire_weights_sets(const quire_model_opts *opts)
{
    return opts->n_sets > 0 ? opts->n_sets : 1;
}

/* The set that has the tensors of the host: one without a device has all. */
static inline uint32_t quire_weights_host_set(const quire_model_opts *opts)
{
    uint32_t set = 0;

    while (set < quire_weights_sets(opts) && opts->devices[set] != NULL) {
        set++;
    }
    return set < quire_weights_sets(opts) ? set : 0;
}

/* The side of a layer: 0 the host, 1 + i device i. Layer n_layer: the last norm and the output. */
static inline uint32_t quire_weights_layer_side(const quire_weights *weights, uint32_t layer)
{
    return layer < weights->device_from ? 0 : 1u + weights->layer_device[layer];
}

/* The side that holds a tensor: 0 the host, 1 + i device i. */
uint8_t quire_weights_side(const quire_weights *weights, const struct ggml_tensor *tensor);

static inline bool quire_weights_device_holds(const quire_weights *weights,
                                              const struct ggml_tensor *tensor)
{
    return quire_weights_side(weights, tensor) != 0;
}

/* The panels of a matrix of quire_weights; NULL: ggml multiplies with the matrix. */
static inline quire_matmul_weight *quire_weights_panels(const struct ggml_tensor *tensor)
{
    return tensor->buffer == NULL ? tensor->extra : NULL;
}

#endif /* QUIRE_MODEL_WEIGHTS_H */
