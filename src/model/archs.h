/* archs.h - the architectures that Quire computes, one row each.
 *
 * A row says which blocks a layer consists of and how libllama reads the keys of such files. Its
 * words have the meaning of libllama's code at ggml 0.25.1 (src/models/<name>.cpp). The tensors of
 * a row's parts are in tensor_table.h, the blocks are built in graph_attn.c, graph_latent.c,
 * graph_recurrent.c, graph_delta.c, graph_mamba.c and graph_ffn.c. An architecture of known blocks
 * is a row here, a case in bench/arch_cases_plain.c, and a run of `make docs`, which writes
 * the table of docs/architectures.md.
 *
 * Thread: the table is constant.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_ARCHS_H
#define QUIRE_MODEL_ARCHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/model.h"

/* Groups of tensors that a model has or has not: bits of a set. */
typedef uint64_t quire_part;

#define QUIRE_PART_BIT(n) ((quire_part)1 << (n))

/* Embedding, output map of attention. */
#define QUIRE_PART_BASE        QUIRE_PART_BIT(0)
#define QUIRE_PART_OUTPUT      QUIRE_PART_BIT(1)
#define QUIRE_PART_OUTPUT_BIAS QUIRE_PART_BIT(2)

/* Divisors of the frequencies. */
#define QUIRE_PART_ROPE_FREQS QUIRE_PART_BIT(3)

/* The same twice: for short and for long contexts. */
#define QUIRE_PART_ROPE_FACTORS QUIRE_PART_BIT(4)
#define QUIRE_PART_ATTN_NORM    QUIRE_PART_BIT(5)

/* Norms of the result that attention adds to the residual, and of the network's input. */
#define QUIRE_PART_ATTN_POST_NORM QUIRE_PART_BIT(6)
#define QUIRE_PART_FFN_NORM       QUIRE_PART_BIT(7)

/* The same under the name post_attention_norm. */
#define QUIRE_PART_FFN_NORM_LATE QUIRE_PART_BIT(8)
#define QUIRE_PART_FFN_POST_NORM QUIRE_PART_BIT(9)
#define QUIRE_PART_NORM_BIAS     QUIRE_PART_BIT(10)
#define QUIRE_PART_QKV           QUIRE_PART_BIT(11)

/* Q, K and V in one tensor, in place of QUIRE_PART_QKV. */
#define QUIRE_PART_QKV_FUSED      QUIRE_PART_BIT(12)
#define QUIRE_PART_QKV_BIAS       QUIRE_PART_BIT(13)
#define QUIRE_PART_QKV_BIAS_FUSED QUIRE_PART_BIT(14)
#define QUIRE_PART_O_BIAS         QUIRE_PART_BIT(15)

/* One weight for all heads. */
#define QUIRE_PART_QK_NORM QUIRE_PART_BIT(16)

/* A weight for each element of a row. */
#define QUIRE_PART_QK_NORM_ROW QUIRE_PART_BIT(17)

/* Gates and sums of the architecture quire. */
#define QUIRE_PART_KV_MAP   QUIRE_PART_BIT(18)
#define QUIRE_PART_FFN_UP   QUIRE_PART_BIT(19)
#define QUIRE_PART_FFN_GATE QUIRE_PART_BIT(20)

/* Gate and up in one tensor, under the name of up. */
#define QUIRE_PART_FFN_FUSED     QUIRE_PART_BIT(21)
#define QUIRE_PART_FFN_DOWN      QUIRE_PART_BIT(22)
#define QUIRE_PART_FFN_BIAS      QUIRE_PART_BIT(23)
#define QUIRE_PART_FFN_GATE_BIAS QUIRE_PART_BIT(24)

/* Router and experts, of layers that have them; their gates and ups in one tensor each. */
#define QUIRE_PART_EXPERTS_BASE  QUIRE_PART_BIT(25)
#define QUIRE_PART_EXPERTS_APART QUIRE_PART_BIT(53)
#define QUIRE_PART_EXPERTS       (QUIRE_PART_EXPERTS_BASE | QUIRE_PART_EXPERTS_APART)

/* An expert's gate and up together, in place of QUIRE_PART_EXPERTS_APART. */
#define QUIRE_PART_EXPERTS_FUSED QUIRE_PART_BIT(54)

/* Norms of experts that stand beside a network, and a factor of the router's input. */
#define QUIRE_PART_EXPERTS_BESIDE QUIRE_PART_BIT(55)

/* A factor of each expert's result. */
#define QUIRE_PART_EXPERTS_SCALE QUIRE_PART_BIT(56)

/* Biases of router and experts. */
#define QUIRE_PART_EXPERTS_BIAS QUIRE_PART_BIT(26)

/* A bias of the choice alone. */
#define QUIRE_PART_EXPERTS_CHOICE_BIAS QUIRE_PART_BIT(27)

/* The same under a name without ".bias". */
#define QUIRE_PART_EXPERTS_CHOICE_BARE QUIRE_PART_BIT(61)

/* The network that all rows pass through. */
#define QUIRE_PART_EXPERTS_SHARED QUIRE_PART_BIT(28)

/* How much of it a row takes. */
#define QUIRE_PART_EXPERTS_SHARED_GATE QUIRE_PART_BIT(29)

/* A logit of each head that attends to nothing. */
#define QUIRE_PART_SINKS QUIRE_PART_BIT(30)

/* The last norm, under one of two names. */
#define QUIRE_PART_LAST_NORM      QUIRE_PART_BIT(40)
#define QUIRE_PART_LAST_NORM_EMBD QUIRE_PART_BIT(41)

/* Gated convolutions, of layers that have them in place of attention. */
#define QUIRE_PART_SHORT_CONV QUIRE_PART_BIT(42)
/* Latent attention, in place of QUIRE_PART_QKV. */
#define QUIRE_PART_LATENT QUIRE_PART_BIT(31)

/* Gated delta nets, and their gates as two matrices or as one. */
#define QUIRE_PART_DELTA_NET   QUIRE_PART_BIT(43)
#define QUIRE_PART_DELTA_GATES QUIRE_PART_BIT(44)
#define QUIRE_PART_DELTA_JOINT QUIRE_PART_BIT(45)

/* Mamba-2, and the norm of its result. */
#define QUIRE_PART_MAMBA      QUIRE_PART_BIT(46)
#define QUIRE_PART_MAMBA_NORM QUIRE_PART_BIT(47)

/* QUIRE_PART_FFN_NORM under a name without ".weight". */
#define QUIRE_PART_FFN_NORM_BARE QUIRE_PART_BIT(48)

/* Q and K, where V has a part of its own: K's product is V in layers without it. */
#define QUIRE_PART_QK QUIRE_PART_BIT(49)
#define QUIRE_PART_V  QUIRE_PART_BIT(50)

/* A second embedding with a row of each layer in a token's row, and the weights that add it. */
#define QUIRE_PART_LAYER_EMBD QUIRE_PART_BIT(51)

/* A factor of a layer's output. */
#define QUIRE_PART_OUT_SCALE QUIRE_PART_BIT(52)

/* A residual of several streams, and a map beside attention: graph_streams.c. */
#define QUIRE_PART_STREAMS QUIRE_PART_BIT(57)

/* QUIRE_PART_ATTN_POST_NORM and QUIRE_PART_FFN_POST_NORM under names without ".weight". */
#define QUIRE_PART_POST_NORMS_BARE QUIRE_PART_BIT(32)

/* A gate of attention's result: of each of its numbers, or of each head. */
#define QUIRE_PART_ATTN_GATE       QUIRE_PART_BIT(33)
#define QUIRE_PART_ATTN_GATE_HEADS QUIRE_PART_BIT(34)

/* Parts of which all layers have all tensors, or no layer has one. */
#define QUIRE_PARTS_GROUPED                                                                        \
    (QUIRE_PART_QKV_BIAS | QUIRE_PART_QKV_BIAS_FUSED | QUIRE_PART_QKV_FUSED | QUIRE_PART_QK_NORM | \
     QUIRE_PART_ROPE_FACTORS | QUIRE_PART_EXPERTS_CHOICE_BIAS | QUIRE_PART_MAMBA_NORM |            \
     QUIRE_PART_LAYER_EMBD | QUIRE_PART_EXPERTS_FUSED | QUIRE_PART_EXPERTS_SCALE |                 \
     QUIRE_PART_EXPERTS_NARROW)

/* Of models that have them: the streams of the residual, the numbers between the two maps beside
 * attention, and those of the second embedding in each layer. libllama fixes all three. */
#define QUIRE_STREAMS      4u
#define QUIRE_LAUREL_RANK  64u
#define QUIRE_STREAMS_EMBD 256u

/* Experts, and the network that all rows pass through, without gates: in place of
 * QUIRE_PART_EXPERTS_APART and QUIRE_PART_EXPERTS_SHARED. */
#define QUIRE_PART_EXPERTS_PLAIN        QUIRE_PART_BIT(58)
#define QUIRE_PART_EXPERTS_SHARED_PLAIN QUIRE_PART_BIT(59)

/* Maps to fewer numbers before experts, and back. */
#define QUIRE_PART_EXPERTS_NARROW QUIRE_PART_BIT(60)

typedef enum quire_norm_kind {
    QUIRE_NORM_RMS,
    QUIRE_NORM_LAYER /* the mean is taken off first */
} quire_norm_kind;

/* When Q and K are normalised. */
typedef enum quire_qk_norm {
    QUIRE_QK_NORM_FIRST, /* before rope */
    QUIRE_QK_NORM_ROPED  /* after rope */
} quire_qk_norm;

typedef enum quire_act {
    QUIRE_ACT_SILU,
    QUIRE_ACT_GELU,
    QUIRE_ACT_RELU,   /* of experts only */
    QUIRE_ACT_RELU2,  /* max(x, 0) squared; of networks and experts without gates */
    QUIRE_ACT_XIELU,  /* arXiv 2411.13010; of plain networks only */
    QUIRE_ACT_CLAMPED /* SiLU of a bounded gate times a bounded up; of experts only (gpt-oss) */
} quire_act;

/* The network of a layer. */
typedef enum quire_ffn {
    QUIRE_FFN_GATED, /* down(act(gate x) * up x) */
    QUIRE_FFN_PLAIN  /* down(act(up x)) */
} quire_ffn;

/* Where the matrices of the heads of latent attention (MLA) lie. */
typedef enum quire_latent {
    QUIRE_LATENT_NONE,
    QUIRE_LATENT_SPLIT, /* those of K and of V apart, in older files together */
    QUIRE_LATENT_JOINT  /* together */
} quire_latent;

/* The layers whose Q and K have a rope. */
typedef enum quire_rope_where {
    QUIRE_ROPE_EVERYWHERE,
    QUIRE_ROPE_NOT_EVERY_4TH,    /* not in layers 3, 7, 11 ... */
    QUIRE_ROPE_NOT_1ST_OF_4,     /* not in layers 0, 4, 8 ...; everywhere in models without windows
                                  */
    QUIRE_ROPE_WINDOWED,         /* where there is a window */
    QUIRE_ROPE_WINDOWED_OR_LEAD, /* the same, and in the first layers without experts */
    QUIRE_ROPE_WINDOWED_IF_ANY, /* where there is a window, but everywhere in models without windows
                                 */
    QUIRE_ROPE_FINETUNED,       /* everywhere, unless rope.scaling.finetuned is false */
    QUIRE_ROPE_NOWHERE
} quire_rope_where;

/* The rope of layers with a window. */
typedef enum quire_window_rope {
    QUIRE_WINDOW_ROPE_SAME,    /* as in the other layers */
    QUIRE_WINDOW_ROPE_LIKE,    /* the same, but rope.freq_base_swa may give another base */
    QUIRE_WINDOW_ROPE_OWN,     /* base rope.freq_base_swa or 10,000, without a linear scaling */
    QUIRE_WINDOW_ROPE_UNSCALED /* the base of the other layers, no scaling of any kind */
} quire_window_rope;

/* The windows of a model: attention.sliding_window and attention.sliding_window_pattern. */
typedef struct quire_window_rule {
    bool is_there;
    bool is_optional;   /* without the key, or where it is 0: no windows */
    uint32_t tokens;    /* without the key; 0 = the key is required, unless optional */
    uint32_t pattern;   /* without its key: every pattern-th layer has none */
    uint32_t in_layers; /* of models with so many layers only; 0 = of all */
    bool is_full_first; /* the first layer of each pattern has none, not the last one */
    bool is_fixed;      /* `tokens` in place of the key's value, unless that is 0 */
    bool is_chunked;    /* chunks of `tokens`; the key's value does not count */
    quire_window_rope rope;
} quire_window_rule;

/* Where the size of an expert's network comes from. */
typedef enum quire_expert_ff {
    QUIRE_EXPERT_FF_SAME,  /* feed_forward_length */
    QUIRE_EXPERT_FF_KEY,   /* expert_feed_forward_length */
    QUIRE_EXPERT_FF_SHARE, /* the same, or feed_forward_length / expert_used_count without it */
} quire_expert_ff;

/* The network that all rows pass through as well. */
typedef enum quire_expert_shared {
    QUIRE_EXPERT_SHARED_NONE,
    QUIRE_EXPERT_SHARED_COUNT,         /* expert_shared_count times the size of an expert */
    QUIRE_EXPERT_SHARED_LENGTH,        /* expert_shared_feed_forward_length; 0 = none */
    QUIRE_EXPERT_SHARED_ALWAYS,        /* the same, or feed_forward_length */
    QUIRE_EXPERT_SHARED_ONE,           /* as wide as an expert */
    QUIRE_EXPERT_SHARED_LENGTH_OR_ONE, /* expert_shared_feed_forward_length; 0 = as an expert */
    QUIRE_EXPERT_SHARED_TIMES,         /* the same, times expert_shared_count */
    QUIRE_EXPERT_SHARED_IF_COUNTED     /* expert_shared_feed_forward_length, or as COUNT without it;
                                          none where expert_shared_count is 0 or missing */
} quire_expert_shared;

/* Keys that a rule reads. */
typedef enum quire_experts_read {
    QUIRE_EXPERTS_READ_GATING = 1u << 0,
    QUIRE_EXPERTS_READ_NORM = 1u << 1,
    QUIRE_EXPERTS_READ_SCALE = 1u << 2,
    QUIRE_EXPERTS_READ_LEAD = 1u << 3,  /* leading_dense_block_count */
    QUIRE_EXPERTS_READ_STEP = 1u << 4,  /* interleave_moe_layer_step, which must be 1 */
    QUIRE_EXPERTS_READ_STEPS = 1u << 5, /* the same, of any size */
    QUIRE_EXPERTS_FIND_LEAD = 1u << 6   /* no key: first layers without a router have no experts */
} quire_experts_read;

/* The experts of a model. */
typedef struct quire_expert_rule {
    bool is_there;
    bool is_optional; /* expert_count may be 0 */
    bool is_beside;   /* layers have the plain network as well; both have norms of their own */
    quire_expert_ff ff;
    quire_expert_shared shared;
    quire_gating gating; /* without the key */
    bool is_normalised;  /* weights of a row's choices; without the key */
    bool chooses_by_logits;
    bool weighs_input;
    bool routes_early; /* the router reads the layer's input, without a norm */
    bool is_averaged;  /* the mean of experts and shared network, not their sum */
    uint32_t reads;    /* quire_experts_read */
} quire_expert_rule;

typedef enum quire_embd_scale {
    QUIRE_EMBD_SCALE_NONE,
    QUIRE_EMBD_SCALE_SQRT, /* sqrt(n_embd) */
    QUIRE_EMBD_SCALE_KEY   /* embedding_scale */
} quire_embd_scale;

typedef enum quire_logit_scale {
    QUIRE_LOGIT_SCALE_NONE,
    QUIRE_LOGIT_SCALE_TIMES,      /* logits * logit_scale */
    QUIRE_LOGIT_SCALE_OVER,       /* logits / logit_scale */
    QUIRE_LOGIT_SCALE_OVER_IF_ANY /* the same; the key may be missing, or 0 */
} quire_logit_scale;

/* Further keys that an architecture reads. */
typedef enum quire_arch_reads {
    QUIRE_READS_RESIDUAL_SCALE = 1u << 0,
    QUIRE_READS_ATTN_SCALE = 1u << 1,
    QUIRE_READS_TEMPERATURE = 1u << 2,   /* attention.temperature_scale */
    QUIRE_READS_YARN = 1u << 3,          /* rope.scaling.yarn_* */
    QUIRE_READS_ATTN_SOFTCAP = 1u << 4,  /* 50 without the key */
    QUIRE_READS_LOGIT_SOFTCAP = 1u << 5, /* logit_softcap without the key */
    QUIRE_READS_ROPE_ALPHA = 1u << 6,
    QUIRE_READS_XIELU = 1u << 7,
    QUIRE_READS_NEXTN = 1u << 8,      /* the last layers predict further tokens: not computed */
    QUIRE_READS_ONE_EXPERT = 1u << 9, /* expert_count 1 means none */
    QUIRE_READS_SECTIONS = 1u << 10,  /* rope.dimension_sections; refused where they matter */
    QUIRE_READS_DEEPSTACK = 1u << 11, /* deepstack_mapping; refused */
    QUIRE_READS_LOG_MUL = 1u << 12,   /* YaRN's multiplier as DeepSeek-V2 means it */
    QUIRE_READS_TEMPERATURE_LENGTH = 1u << 13, /* attention.temperature_length, beside _scale */
    QUIRE_READS_MROPE = 1u << 14,              /* rope.dimension_sections, without effect on text */
    QUIRE_READS_EPS_TWICE = 1u << 15, /* attention.layer_norm_epsilon, which the key of the RMS norm
                                         may replace */
    QUIRE_READS_ROPE_PATTERN = 1u << 16 /* attention.rope_pattern: the layers with a rope */
} quire_arch_reads;

typedef struct quire_arch_row {
    const char *name;   /* general.architecture */
    const char *models; /* for people: "Gemma 3" */
    quire_rope_type rope_type;
    bool has_partial_rope; /* rope.dimension_count may be below the head size */
    quire_rope_where rope_where;
    quire_latent latent;
    quire_window_rule window;
    quire_norm_kind norm;
    quire_qk_norm qk_norm;
    bool has_v_norm;        /* heads of V are normalised, without a weight */
    bool has_layer_sizes;   /* heads of layers with a window may have another size; KV heads and
                               the network may differ from layer to layer */
    bool has_shared_kv;     /* attention.shared_kv_layers: so many last layers read the K and V of
                               the last layer of their kind, with or without a window, before
                               them */
    uint32_t own_kv_layers; /* the same of all layers but the first so many, in place of the key; 0
                               = the key counts */
    bool has_streams;       /* the residual has QUIRE_STREAMS streams: graph_streams.c */
    uint32_t sparse_layers; /* the first so many networks keep the largest gates alone */
    bool has_full_factors;  /* rope_freqs is of layers without a window alone */
    float attn_scale;       /* 0 = 1 / sqrt(head size) */
    uint32_t mean_qk_experts;  /* Q and K are divided by their mean square behind the rope, but not
                                  in models of so many experts; 0 = never */
    float unroped_temperature; /* of layers without a rope, from the window's size on; 0 = none */
    bool is_parallel;      /* attention and network read the same norm, and add to one residual */
    quire_mixer recurrent; /* of recurrent layers; QUIRE_MIXER_ATTENTION: there are none */
    bool is_single;        /* a layer is attention, a recurrent block or a network */
    bool has_q_gate;       /* attn_q makes a gate of attention's result beside each head of Q */
    quire_ffn ffn;
    quire_act act;
    quire_expert_rule experts; /* beside the network, or in its place */
    quire_embd_scale embd_scale;
    quire_logit_scale logit_scale;
    bool has_depth_scales; /* MiniCPM's: 12 times the embedding, 1.4 / sqrt(layers) of a layer's
                              result, 256 / n_embd times the logits */
    float logit_softcap;
    uint32_t wide_scale_layers; /* models of so many layers divide logits of attention by
                                   sqrt(n_embd / n_head), not by sqrt(head size) */
    uint32_t reads;             /* quire_arch_reads */
    quire_part needs;           /* parts that every file has */
    quire_part may;             /* parts that a file may have */
} quire_arch_row;

/* The row of an architecture. Memory: static. */
const quire_arch_row *quire_arch_row_get(quire_arch arch);

/* The architecture of that name; QUIRE_ARCH_COUNT when there is none. */
quire_arch quire_arch_find(const char *name);

/* The name of the table that a user most likely means: a long common beginning, or at most two
 * letters that differ; NULL when there is none. Memory: static. */
const char *quire_arch_nearest(const char *name);

#endif /* QUIRE_MODEL_ARCHS_H */
