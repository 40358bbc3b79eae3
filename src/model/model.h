/* model.h - a GGUF model: its description, weights and tokenizer.
 *
 * Opening goes in steps, each of which can refuse the file with a message that names the file, the
 * field and the value: (1) the header, keys and tensor table are read and validated by our own
 * checks (a model file is untrusted and ggml aborts on misuse); (2) the vocabulary is validated;
 * (3) libllama loads vocabulary and chat template only; (4) weights are mapped or repacked.
 *
 * The KV map says, per layer, which stored layers give its K and its V. A plain model stores every
 * layer's own; models that share KV across layers store fewer, or read two sources.
 *
 * Thread: a model is immutable after open and may be shared.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_MODEL_H
#define QUIRE_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/attn.h"
#include "quire/codec.h"
#include "quire/error.h"

#include "model/router.h"

#define QUIRE_LAYERS_MAX        512u
#define QUIRE_STATE_HEAD_MAX    256u /* d_head and d_state of recurrent layers */
#define QUIRE_MODEL_SETS_MAX    8u   /* of weights: quire_model_opts */
#define QUIRE_MODEL_DEVICES_MAX 8u   /* of one set */

/* The rows of archs.h. */
typedef enum quire_arch {
    QUIRE_ARCH_LLAMA,
    QUIRE_ARCH_QWEN2,
    QUIRE_ARCH_QWEN3,
    QUIRE_ARCH_QUIRE, /* qwen3's block with a KV map: docs/schemes.md */
    QUIRE_ARCH_GEMMA,
    QUIRE_ARCH_GEMMA2,
    QUIRE_ARCH_GEMMA3,
    QUIRE_ARCH_PHI3,
    QUIRE_ARCH_MISTRAL3,
    QUIRE_ARCH_SMOLLM3,
    QUIRE_ARCH_GRANITE,
    QUIRE_ARCH_OLMO2,
    QUIRE_ARCH_GLM4,
    QUIRE_ARCH_COHERE2,
    QUIRE_ARCH_EXAONE4,
    QUIRE_ARCH_STARCODER2,
    QUIRE_ARCH_SEED_OSS,
    QUIRE_ARCH_HUNYUAN_DENSE,
    QUIRE_ARCH_ERNIE4_5,
    QUIRE_ARCH_INTERNLM2,
    QUIRE_ARCH_APERTUS,
    QUIRE_ARCH_ARCEE,
    QUIRE_ARCH_COMMAND_R,
    QUIRE_ARCH_EXAONE,
    QUIRE_ARCH_NEMOTRON,
    QUIRE_ARCH_QWEN3MOE,
    QUIRE_ARCH_GPT_OSS,
    QUIRE_ARCH_QWEN2MOE,
    QUIRE_ARCH_GRANITEMOE,
    QUIRE_ARCH_OLMOE,
    QUIRE_ARCH_GLM4MOE,
    QUIRE_ARCH_ERNIE4_5_MOE,
    QUIRE_ARCH_HUNYUAN_MOE,
    QUIRE_ARCH_LFM2,
    QUIRE_ARCH_DEEPSEEK2,
    QUIRE_ARCH_MINICPM3,
    QUIRE_ARCH_LFM2MOE,
    QUIRE_ARCH_QWEN3NEXT,
    QUIRE_ARCH_QWEN35,
    QUIRE_ARCH_QWEN35MOE,
    QUIRE_ARCH_GRANITE_HYBRID,
    QUIRE_ARCH_NEMOTRON_H,
    QUIRE_ARCH_FALCON_H1,
    QUIRE_ARCH_GEMMA4,
    QUIRE_ARCH_LLAMA4,
    QUIRE_ARCH_GEMMA3N,
    QUIRE_ARCH_NEMOTRON_H_MOE,
    QUIRE_ARCH_QWEN3VL,
    QUIRE_ARCH_QWEN3VLMOE,
    QUIRE_ARCH_DOTS1,
    QUIRE_ARCH_BAILINGMOE2,
    QUIRE_ARCH_MINIMAX_M2,
    QUIRE_ARCH_EXAONE_MOE,
    QUIRE_ARCH_MISTRAL4,
    QUIRE_ARCH_QWEN2VL,
    QUIRE_ARCH_MAINCODER,
    QUIRE_ARCH_PANGU_EMBED,
    QUIRE_ARCH_BAILINGMOE,
    QUIRE_ARCH_MELLUM,
    QUIRE_ARCH_HY_V3,
    QUIRE_ARCH_MINICPM,
    QUIRE_ARCH_DEEPSEEK,
    QUIRE_ARCH_PHIMOE,
    QUIRE_ARCH_CHATGLM,
    QUIRE_ARCH_STABLELM,
    QUIRE_ARCH_PLAMO3,
    QUIRE_ARCH_AFMOE,
    QUIRE_ARCH_SPARK2_5,
    QUIRE_ARCH_SMALLTHINKER,
    QUIRE_ARCH_GRANITE_SWA,
    QUIRE_ARCH_COHERE2MOE,
    QUIRE_ARCH_COUNT
} quire_arch;

typedef enum quire_rope_type {
    QUIRE_ROPE_NORMAL, /* pairs (2i, 2i+1) */
    QUIRE_ROPE_NEOX    /* pairs (i, i + n/2) */
} quire_rope_type;

typedef enum quire_rope_scaling {
    QUIRE_ROPE_SCALING_NONE,
    QUIRE_ROPE_SCALING_LINEAR,
    QUIRE_ROPE_SCALING_YARN,
    QUIRE_ROPE_SCALING_LONGROPE /* two tensors of frequency factors */
} quire_rope_scaling;           /* llama3 scaling comes as a tensor of frequency factors */

/* The rope of a layer. */
typedef enum quire_layer_rope {
    QUIRE_LAYER_ROPE_MAIN,
    QUIRE_LAYER_ROPE_WINDOW, /* rope_window */
    QUIRE_LAYER_ROPE_NONE
} quire_layer_rope;

typedef struct quire_rope {
    quire_rope_type type;
    quire_rope_scaling scaling;
    uint32_t n_dims;
    float freq_base;
    float freq_scale; /* 1 / factor */
    float ext_factor;
    float attn_factor;
    float beta_fast;
    float beta_slow;
    uint32_t ctx_orig;
    float log_mul; /* YaRN: of the logarithm in the scale of logits; 0 = none */
} quire_rope;

/* The stored layers that give a layer's K and V; entries beyond n are unused. */
typedef struct quire_kv_map_entry {
    int32_t stored; /* stored layer this layer writes, -1 if it writes none */
    uint8_t n_k;
    uint8_t n_v;
    uint16_t k_src[QUIRE_ATTN_SOURCES_MAX]; /* stored layer indices */
    uint16_t v_src[QUIRE_ATTN_SOURCES_MAX];
    uint8_t k_gates; /* bit i: K source i has a gate */
    uint8_t v_gates;
} quire_kv_map_entry;

/* Latent attention (MLA). All heads of a layer share one row of K: d_v numbers that all of K and V
 * follow from, and rope.n_dims turned ones. V is the first d_v numbers of K and is not stored. A
 * head's matrices are applied to Q and to the result of attention instead ("absorbed"). */
typedef struct quire_latent_desc {
    bool is_there;
    bool is_split;    /* the file has the matrices of K and of V apart */
    uint32_t n_q;     /* numbers that Q follows from; 0 = Q comes from the layer's input */
    uint32_t d_plain; /* of a head of Q: numbers that are not turned */
    uint32_t d_out;   /* of a head's result */
} quire_latent_desc;

/* The experts of a model's layers. */
typedef struct quire_expert_desc {
    quire_router router; /* n_experts is 0 in a model without experts */
    uint32_t step;       /* only every so many-th layer has experts; 0 or 1 = every */
    uint32_t n_dense;  /* layers at the beginning that have a plain network; all without experts */
    bool weighs_input; /* a row's weights are factors of the experts' input, not of the results */
    bool is_beside;    /* layers with experts have a plain network as well */
    uint32_t n_embd;   /* that experts read and make; 0 = the residual's */
    uint32_t n_ff;     /* of one expert */
    uint32_t n_ff_shared; /* of the network that all rows pass through as well; 0 = none */
} quire_expert_desc;

/* The first block of a layer: how it mixes a row with the rows before. */
typedef enum quire_mixer {
    QUIRE_MIXER_ATTENTION,
    QUIRE_MIXER_SHORT_CONV, /* a gated convolution over the last tokens */
    QUIRE_MIXER_DELTA_NET,  /* a gated delta net: graph_delta.c */
    QUIRE_MIXER_MAMBA,      /* Mamba-2: graph_mamba.c */
    QUIRE_MIXER_BOTH,       /* attention and Mamba-2 side by side; their results are added */
    QUIRE_MIXER_NONE        /* the layer is its network alone */
} quire_mixer;

static inline bool quire_mixer_attends(uint8_t mixer)
{
    return mixer == QUIRE_MIXER_ATTENTION || mixer == QUIRE_MIXER_BOTH;
}

static inline bool quire_mixer_is_mamba(uint8_t mixer)
{
    return mixer == QUIRE_MIXER_MAMBA || mixer == QUIRE_MIXER_BOTH;
}

static inline bool quire_mixer_recurs(uint8_t mixer)
{
    return mixer == QUIRE_MIXER_SHORT_CONV || mixer == QUIRE_MIXER_DELTA_NET ||
           quire_mixer_is_mamba(mixer);
}

/* The recurrent layers of a model (recurrent.h); all of them are alike. */
typedef struct quire_recurrent_desc {
    uint32_t n_layers;  /* 0 = none */
    uint32_t conv_taps; /* tokens that the convolution sees, the own one included */
    uint32_t conv_width;
    /* Of a delta net and of Mamba-2, whose heads of k are its groups; 0 without. */
    uint32_t n_k_heads;
    uint32_t n_v_heads;  /* a multiple of n_k_heads; each has a matrix [d_state][d_head] */
    uint32_t d_head;     /* of v */
    uint32_t d_state;    /* of k; a delta net's is d_head */
    bool is_interleaved; /* heads of v that read a head of k follow each other; else they are
                            n_k_heads apart */
} quire_recurrent_desc;

/* The sizes of a layer's attention and of its network without experts. */
typedef struct quire_layer_sizes {
    uint32_t n_kv_head;
    uint32_t d_k;
    uint32_t d_v;
    uint32_t n_ff;
} quire_layer_sizes;

typedef struct quire_model_desc {
    quire_arch arch;
    char arch_name[32];
    char name[128];        /* general.name, "" if absent */
    char file_type[32];    /* "Q8_0", from the most common matrix type */
    uint32_t n_layer;      /* that are computed */
    uint32_t n_layer_file; /* with those that predict further tokens, which are not computed */
    uint32_t n_stored;     /* layers that store K and V */
    uint32_t last_stored;  /* the last of them or the last recurrent one; layers above only read */
    char kv_scheme[32];    /* the file's name for its KV map, "" if absent; for people */
    uint32_t n_embd;
    uint32_t n_embd_layer; /* of a token's second embedding, in each layer; 0 = there is none */
    uint32_t n_ff; /* of layers without experts; 0 where the file does not say; see layer_sizes */
    quire_expert_desc experts;
    quire_recurrent_desc recurrent;
    uint32_t n_head;
    uint32_t n_kv_head; /* of the layer with the most of each: see layer_sizes */
    uint32_t d_k;
    uint32_t d_v;
    quire_latent_desc latent;
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t pooling; /* the file's key pooling_type, as llama.cpp: 0 none, 1 mean, 2 cls, 3 last,
                         4 rank */
    float rms_eps;    /* of norms of either kind */
    float attn_scale;
    float attn_softcap;     /* of the logits of attention; 0 = none */
    float attn_temperature; /* Q grows with its position by this much; 0 = not */
    uint32_t attn_temperature_tokens;
    uint32_t attn_temperature_first; /* added to a position */
    bool is_temperature_unroped;     /* only in layers without a rope */
    bool has_unit_qk;     /* Q and K have length sqrt(d_k) where they have a rope, behind it */
    bool has_chunks;      /* windows are chunks: quire/attn.h */
    float embd_scale;     /* of the embedding; 1 = as it is */
    float residual_scale; /* of a layer's result for the residual; 1 = as it is */
    float logit_scale;    /* of the logits, before the softcap; 1 = as they are */
    float logit_softcap;  /* 0 = none */
    quire_rope rope;
    quire_rope rope_window; /* of layers with a window */
    bool has_qk_norm;
    bool has_qkv_bias;
    bool has_tied_output;
    uint64_t parts; /* quire_part of archs.h: tensors that this file has */
    uint64_t n_params;
    uint64_t weight_bytes;   /* in the file */
    uint64_t resident_bytes; /* in memory once loaded: repacked tied embeddings are there twice */
    uint64_t device_weight_bytes[QUIRE_MODEL_SETS_MAX]; /* beside them, on the device of each set,
                                                           or of one set on each of its devices */
    struct quire_step_sizes *step_sizes;                /* step_sizes.h; the model's */
    uint64_t
        embd_bytes; /* of the token embedding: of it a decode step reads one row, unless tied */
    uint64_t fingerprint; /* of the file's contents, not its place: fingerprint.c */
    quire_kv_map_entry kv_map[QUIRE_LAYERS_MAX];
    /* Positions that a layer attends to, its own included; 0 = all before it. */
    uint32_t window[QUIRE_LAYERS_MAX];
    uint8_t mixer[QUIRE_LAYERS_MAX];      /* quire_mixer */
    uint8_t layer_rope[QUIRE_LAYERS_MAX]; /* quire_layer_rope */
    float xielu[QUIRE_LAYERS_MAX][4];     /* alpha_n, alpha_p, beta, eps; apertus only */
    /* Of layers that differ. quire_layer_sizes_of() and quire_stored_sizes_of() know both kinds. A
     * layer that reads the K and V of an earlier layer has that layer's sizes of K and V. */
    bool has_layer_sizes;
    quire_layer_sizes layer_sizes[QUIRE_LAYERS_MAX];
    uint16_t stored_by[QUIRE_LAYERS_MAX]; /* [n_stored]: the layer that stores */
} quire_model_desc;

static inline quire_layer_sizes quire_layer_sizes_of(const quire_model_desc *desc, uint32_t il)
{
    return desc->has_layer_sizes
               ? desc->layer_sizes[il]
               : (quire_layer_sizes){ desc->n_kv_head, desc->d_k, desc->d_v, desc->n_ff };
}

/* The same of a stored layer. */
static inline quire_layer_sizes quire_stored_sizes_of(const quire_model_desc *desc, uint32_t stored)
{
    return quire_layer_sizes_of(desc, desc->has_layer_sizes ? desc->stored_by[stored] : 0);
}

typedef struct quire_model quire_model;

/* Devices of ggml among which one set of weights is split. */
typedef struct quire_model_split {
    struct ggml_backend_device *devices[QUIRE_MODEL_DEVICES_MAX];
    uint32_t n;
    uint8_t of[QUIRE_LAYERS_MAX + 1]; /* [n_layer + 1]: a layer's, if it is on a device; the last is
                                         that of the last norm and the output matrix */
} quire_model_split;

typedef struct quire_model_opts {
    bool describe_only; /* no weights; refuses the same models as a full opening */
    bool no_repack;     /* keep weights as mapped, for comparison; default false */
    /* Devices of ggml (ggml_backend_dev_t), each with the last layers of the model, which it
     * computes; the last norm and the output matrix count as one more layer behind them. Weights
     * with a device are a set, whose number a runtime names (quire_runtime_opts.weights_set). All
     * sets share the tensors of the host. NULL, or 0 layers: the host has all of the set. Borrowed
     * for the model's life. Errors: QUIRE_UNSUPP (a device does not multiply with a matrix, or the
     * architecture cannot be there), QUIRE_NOMEM. */
    struct ggml_backend_device *devices[QUIRE_MODEL_SETS_MAX];
    uint32_t n_sets; /* 0 = 1 */
    uint32_t n_device_layers;
    /* With one set: called when the description is known, with desc->resident_bytes as if all
     * weights were the host's. The layers on devices are those of *out then, in place of devices
     * above. A negative status, with err filled in, ends the opening. May be NULL. */
    int (*split)(void *ctx, const quire_model_desc *desc, quire_model_split *out, quire_error *err);
    void *split_ctx;
    void (*progress)(void *ctx, float done); /* 0..1 while loading; may be NULL */
    void *progress_ctx;
    /* Called before weights are loaded, when the description and the memory need of the model are
     * known (memory.h). A negative status, with err filled in, ends the opening. May be NULL. */
    int (*admit)(void *ctx, const quire_model_desc *desc, quire_error *err);
    void *admit_ctx;
} quire_model_opts;

/* Errors: QUIRE_IO, QUIRE_CORRUPT (damaged or inconsistent file), QUIRE_UNSUPP (architecture,
 * tensor type, rope or vocabulary that this build lacks), QUIRE_NOMEM, the status of admit; err
 * gives the reason. Memory: close with quire_model_close(). */
int quire_model_open(quire_model **out, const char *path, const quire_model_opts *opts,
                     quire_error *err);
void quire_model_close(quire_model *model);

const quire_model_desc *quire_model_desc_get(const quire_model *model);

/* Version of the ggml library in use: "0.25.1". Memory: static. Thread: any. */
const char *quire_model_ggml_version(void);

#endif /* QUIRE_MODEL_MODEL_H */
