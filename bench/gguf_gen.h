/* gguf_gen.h - writes GGUF models with random weights.
 *
 * Benchmarks need the shape of a model, not its knowledge, and tests need every variant of an
 * architecture in a file of a few hundred kilobytes. The files are complete: llama.cpp loads and
 * runs them, except those of the architecture quire (gguf_gen_scheme.h). Weights are scaled so that
 * activations stay near unit variance through all layers. The same options give the same bytes.
 *
 * The tensors of an architecture are those of src/model/archs.h and tensor_table.h. Keys that give
 * an architecture its numbers (scales, softcaps, activations) have values that matter in the
 * result.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_GGUF_GEN_H
#define QUIRE_BENCH_GGUF_GEN_H

#include <stdbool.h>
#include <stdint.h>

#include <ggml.h>

#include "quire/error.h"

typedef enum gguf_gen_vocab {
    GGUF_GEN_VOCAB_SPM, /* byte tokens, letters, pairs of letters, filler; at least 262 tokens */
    GGUF_GEN_VOCAB_BPE  /* GPT-2 bytes, merges of letter pairs, filler; at least 262 tokens */
} gguf_gen_vocab;

/* The shape of gates. */
typedef enum gguf_gen_gates {
    GGUF_GEN_GATES_NONE,
    GGUF_GEN_GATES_HALF, /* [d_head / 2] */
    GGUF_GEN_GATES_HEAD, /* [d_head] */
    GGUF_GEN_GATES_HEADS /* [n_kv_head][d_head] */
} gguf_gen_gates;

#define GGUF_GEN_LAYERS_MAX 512u /* of a model with a KV map */

typedef struct gguf_gen_opts {
    char arch[16]; /* a name of src/model/archs.h */
    char name[64];
    uint32_t n_layer;
    uint32_t n_embd;
    uint32_t n_ff;
    uint32_t n_head;
    uint32_t n_kv_head;
    uint32_t d_head;
    uint32_t n_vocab;
    uint32_t n_ctx;
    float rope_base;
    char rope_scaling[16]; /* "" (no key), "none", "linear", "yarn", "longrope", or "llama3" (a
                              tensor) */
    float rope_factor;
    uint32_t rope_ctx_orig;
    bool is_tied;
    bool has_qkv_bias;
    bool has_qk_norm;
    bool has_biases;  /* all that the architecture may have, beside those of Q, K and V */
    bool is_fused;    /* Q, K and V as one tensor */
    bool has_no_rope; /* where a key says so (granite) */
    uint32_t n_rot;   /* rotated dimensions of a head; 0 = all */
    /* Latent attention, where d_head is the size of a head of Q and n_kv_head counts for nothing.
     */
    uint32_t n_latent;       /* numbers that K and V follow from */
    uint32_t n_latent_q;     /* that Q follows from; 0 = it does not */
    uint32_t d_value;        /* of a head's result */
    bool has_joint_latent;   /* matrices of K and V in one tensor, as in older files */
    float yarn_log_mul;      /* deepseek2's; 0 = no key */
    uint32_t n_nextn;        /* further layers, which predict further tokens */
    uint32_t sliding_window; /* positions; 0 = no key */
    uint32_t window_pattern; /* 0 = no key */
    bool has_window_array;   /* the pattern as one value per layer: every other one */
    float window_rope_base;  /* 0 = no key */
    float attn_temperature;  /* 0 = no key */
    /* Layers of different sizes, where the architecture has them. */
    uint32_t window_d_head;   /* of layers with a window; 0 = d_head */
    uint32_t full_n_kv_head;  /* of layers without; 0 = n_kv_head */
    uint32_t n_shared_kv;     /* last layers, which read the K and V of earlier ones */
    bool has_spare_kv;        /* the file has maps of K and V in these layers as well */
    bool has_wide_ff;         /* networks are twice as wide in these layers */
    bool has_no_full_v;       /* K is V in layers without a window */
    uint32_t n_embd_layer;    /* of the second embedding, in each layer; 0 = there is none */
    uint32_t attention_every; /* only the last of so many layers has attention, the others are
                                 recurrent, where the architecture has such; 0 = all */
    uint32_t conv_taps;       /* of recurrent layers */
    uint32_t n_delta_k_heads; /* of delta nets; groups of Mamba-2 */
    uint32_t n_delta_v_heads;
    uint32_t d_delta_head;
    uint32_t d_mamba_state; /* of Mamba-2 */
    bool has_no_mamba_norm; /* where the architecture may leave it out */
    /* Experts; n_experts 0 = none. Keys that choose among kinds of routers, and their scale and
     * groups, are written where the architecture reads them. */
    uint32_t n_experts;
    uint32_t n_experts_used;
    uint32_t n_experts_dense; /* layers at the beginning without experts */
    uint32_t expert_step;     /* every so many-th layer has experts; 0 = every */
    uint32_t n_expert_groups; /* of which half are used; 0 = no key */
    uint32_t n_ff_expert;     /* of an expert, where the architecture has a key for it */
    uint32_t n_embd_expert;   /* that experts read and make; 0 = n_embd */
    uint32_t n_ff_shared;     /* of the network that all rows pass through; 0 = no key */
    uint32_t expert_gating;   /* libllama's number; 0 = no key */
    bool has_fused_experts; /* gate and up of an expert in one tensor, where the architecture may */
    bool has_choice_bias;   /* where the architecture may have it */
    bool has_expert_type;   /* experts are of expert_type, all other matrices of type */
    enum ggml_type expert_type;
    enum ggml_type expert_type_more; /* of experts' ups in layers of even numbers, and of their
                                        downs in the others; f32 = as all of them */
    bool has_shared_type; /* and so are those of the network that all rows pass through */
    bool has_router_type; /* routers of experts are of type */
    gguf_gen_vocab vocab;
    bool has_fim; /* BPE: tokens for filling in, of known texts, but the middle's by its key */
    enum ggml_type type;      /* of the matrices; vectors are f32, and so are routers by default */
    enum ggml_type type_more; /* of the output, and of V and ffn_down in every other layer, as in
                                 mixes such as Q4_K_M; f32 = as the others */
    bool is_hollow; /* the values are a hole of the file, for models that are only described */
    uint64_t seed;
    uint32_t n_distinct; /* values of a matrix that are made, in whole chunks; the others repeat
                            them. 0 = all, but for the experts of large models */
    /* The KV map, of the architecture quire only: gguf_gen_scheme.h, or by hand. Layers that read
     * other layers have a gate for each of their sources, if there are any. */
    bool has_map;
    gguf_gen_gates gates;
    char scheme[32];
    int32_t k_sources[GGUF_GEN_LAYERS_MAX][2]; /* layers; -1 = none */
    int32_t v_sources[GGUF_GEN_LAYERS_MAX][2];
    bool has_mixes;  /* layers that store, above layer 0, add layer 0's K and V to theirs */
    uint32_t window; /* of the scheme yoco: positions that layers below the middle one see */
    int32_t windows[GGUF_GEN_LAYERS_MAX]; /* by layer; 0 = all positions */
} gguf_gen_opts;

/* Options of a named shape, false when there is none. */
bool gguf_gen_shape(const char *name, gguf_gen_opts *out);
/* Name i of the table, NULL past its end. Memory: static. */
const char *gguf_gen_shape_name(unsigned i);

/* Write the model to path. Memory use is a few MiB for a model of any size. A failed attempt leaves
 * no file behind, and a model too large for the disk is not begun. Errors: QUIRE_INVAL (invalid
 * options), QUIRE_IO (a full disk, too), QUIRE_NOMEM. */
int gguf_gen_write(const gguf_gen_opts *opts, const char *path, quire_error *err);

#endif /* QUIRE_BENCH_GGUF_GEN_H */
