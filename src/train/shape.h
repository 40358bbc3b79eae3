/* shape.h - a model to train: sizes, the KV map, and where each weight lies.
 *
 * The architecture is `quire`: a decoder of dense blocks as Qwen 3 has them (RMSNorm, RoPE on NEOX
 * pairs, optional norms of query and key heads, grouped heads, SwiGLU), in which a layer may read K
 * or V of lower layers and then has no weights for them. Q, K and V may have biases, as in Qwen 2,
 * and the frequencies of RoPE factors, as in Llama 3.
 *
 * The **KV map** says per layer and side which layers K (or V) comes from, after norm and RoPE:
 *
 *   own layer, -1      the layer computes and stores the side itself
 *   s, -1              the side of layer s, as it is, or times a gate (is_gated_*)
 *   s, t               the sum of both, each times its gate: gates are required
 *
 * A source stores the side itself and lies below the reader, so every map without an error can be
 * computed from bottom to top. Gates are learned vectors; see quire_gate_form.
 *
 * A layer above layer 0 that stores a side may store a **mix**: two learned factors times the side
 * of layer 0 and the layer's own, added up after norm and RoPE.
 *
 * Source of the schemes FusedKV and FusedKV-Lite: arXiv 2512.03870; of CLA: 2405.12981; of YOCO:
 * 2405.05254; of YOCO++, there with a constant scale of the factors: 2604.13556.
 *
 * Thread: any; a shape and a layout are values.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_SHAPE_H
#define QUIRE_TRAIN_SHAPE_H

#include "quire/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_TRAIN_LAYERS_MAX 128u
#define QUIRE_TRAIN_SIZE_MAX   (1u << 20) /* each size of a shape */
#define QUIRE_TRAIN_SCHEME_MAX 32u
#define QUIRE_TRAIN_PAIRS_MAX  512u /* RoPE pairs of a head, where they have factors */
#define QUIRE_TRAIN_NAME_MAX   64u

/* How many numbers a gate has. A half is repeated over both halves of the NEOX pairs, so that a
 * gate on K commutes with RoPE; values are the same to every KV head but in QUIRE_GATE_HEADS. */
typedef enum quire_gate_form {
    QUIRE_GATE_HALF,  /* [d_head / 2] */
    QUIRE_GATE_FULL,  /* [d_head] */
    QUIRE_GATE_HEADS, /* [n_kv_head][d_head] */
} quire_gate_form;

typedef struct quire_train_shape {
    uint32_t n_vocab;
    uint32_t n_layer;
    uint32_t d_model;
    uint32_t n_head;
    uint32_t n_kv_head;
    uint32_t d_head;
    uint32_t d_ff;
    double rope_base;
    double norm_epsilon;
    bool has_qk_norm;
    bool has_qkv_bias; /* those of K and V in the layers that store these */
    bool is_tied;      /* the output's weights are those of the embedding */
    quire_gate_form gate_form;
    char scheme[QUIRE_TRAIN_SCHEME_MAX]; /* a name for people; the map decides */
    int32_t source_k[QUIRE_TRAIN_LAYERS_MAX][2];
    int32_t source_v[QUIRE_TRAIN_LAYERS_MAX][2];
    bool is_gated_k[QUIRE_TRAIN_LAYERS_MAX];
    bool is_gated_v[QUIRE_TRAIN_LAYERS_MAX];
    bool is_mixed_k[QUIRE_TRAIN_LAYERS_MAX];
    bool is_mixed_v[QUIRE_TRAIN_LAYERS_MAX];
    uint32_t window[QUIRE_TRAIN_LAYERS_MAX]; /* tokens that a token attends to, itself included;
                                                0: all before it */
    bool has_rope_factors;
    float rope_factors[QUIRE_TRAIN_PAIRS_MAX]; /* [d_head / 2]: frequencies are divided by them */
} quire_train_shape;

/* Fill the map by a name: mha, gqa, mqa (every layer stores), cla2 (pairs of layers share), yoco,
 * yoco++, fusedkv, fusedkv-lite, fusedkv-lite-learnable (the upper half reads the lower). No layer
 * has a window then. n_layer and the heads are set before. Errors: QUIRE_INVAL (no such scheme,
 * with the nearest name; heads that contradict mha, gqa or mqa; fewer than 2 layers where layers
 * share). */
int quire_train_scheme_set(quire_train_shape *shape, const char *name, quire_error *err);

/* Windows of so many tokens for the layers below the middle one, of a map by yoco or yoco++.
 * Errors: QUIRE_INVAL (another scheme). */
int quire_train_window_set(quire_train_shape *shape, uint32_t window, quire_error *err);

/* The names, for help texts; NULL after the last. Memory: static. */
const char *const *quire_train_scheme_names(void);

/* Whether sizes and map are sound. Errors: QUIRE_INVAL, one line that names field and value. */
int quire_train_shape_check(const quire_train_shape *shape, quire_error *err);

static inline bool quire_train_stores_k(const quire_train_shape *s, uint32_t layer)
{
    return s->source_k[layer][0] == (int32_t)layer;
}

static inline bool quire_train_stores_v(const quire_train_shape *s, uint32_t layer)
{
    return s->source_v[layer][0] == (int32_t)layer;
}

/* Whether every layer stores K and V as they are and sees the whole text, as plain models do. */
bool quire_train_is_plain(const quire_train_shape *s);

/* The lowest layer that reads K or V of others; n_layer when there is none. */
static inline uint32_t quire_train_first_reader(const quire_train_shape *s)
{
    uint32_t layer = 0;

    while (layer < s->n_layer && quire_train_stores_k(s, layer) && quire_train_stores_v(s, layer)) {
        layer++;
    }
    return layer;
}

/* Factors of RoPE's pairs; NULL: none. They are no parameters: files have them under this name. */
#define QUIRE_TRAIN_ROPE_FACTORS "rope_freqs.weight"
static inline const float *quire_train_rope_factors(const quire_train_shape *s)
{
    return s->has_rope_factors ? s->rope_factors : NULL;
}

/* Numbers in a gate. */
uint32_t quire_train_gate_size(const quire_train_shape *s);

/* ---- weights ---- */

typedef enum quire_weight_kind {
    QUIRE_WEIGHT_MATRIX,   /* normal, deviation 0.02; decays */
    QUIRE_WEIGHT_RESIDUAL, /* a matrix that adds to the stream: 0.02 / sqrt(2 n_layer); decays */
    QUIRE_WEIGHT_NORM,     /* ones */
    QUIRE_WEIGHT_BIAS,     /* zeros */
    QUIRE_WEIGHT_GATE,     /* one over the number of sources */
    QUIRE_WEIGHT_MIX,      /* 0 and 1: the layer's own side */
} quire_weight_kind;

typedef struct quire_train_tensor {
    char name[QUIRE_TRAIN_NAME_MAX]; /* of GGUF */
    quire_weight_kind kind;
    uint32_t n_rows; /* 1 for vectors */
    uint32_t n_cols;
    size_t at;          /* elements from the first parameter */
    uint32_t n_sources; /* of gates: of their side */
} quire_train_tensor;

/* Places of a layer's weights; QUIRE_TRAIN_ABSENT where there is none. */
#define QUIRE_TRAIN_ABSENT SIZE_MAX
typedef struct quire_train_block {
    size_t attn_norm;
    size_t q;
    size_t k;
    size_t v;
    size_t q_bias;
    size_t k_bias;
    size_t v_bias;
    size_t q_norm;
    size_t k_norm;
    size_t k_gate[2];
    size_t v_gate[2];
    size_t k_mix;
    size_t v_mix;
    size_t out;
    size_t ffn_norm;
    size_t gate;
    size_t up;
    size_t down;
} quire_train_block;

/* All parameters lie in one array: tensors in the order of the list, without gaps. */
typedef struct quire_train_layout {
    size_t n_parameters;
    uint32_t n_tensors;
    quire_train_tensor *tensors; /* [n_tensors] */
    quire_train_block *blocks;   /* [n_layer] */
    size_t embedding;
    size_t out_norm;
    size_t output; /* == embedding when tied */
} quire_train_layout;

/* Lay out a shape that passes the check. Errors: QUIRE_NOMEM. */
int quire_train_layout_init(quire_train_layout *layout, const quire_train_shape *shape);
void quire_train_layout_fini(quire_train_layout *layout);

/* First values of all parameters, by a seed and the order of the list alone. */
void quire_train_weights_init(const quire_train_layout *layout, const quire_train_shape *shape,
                              uint64_t seed, float *parameters);

/* Change first weights, by the seed, so that head h of layer 0 attends to token h + 1 before its
 * own, and heads of the lowest other layer that reads its own K and V to tokens that followed the
 * same tokens. Models that recall must find both, and from random weights they find it late.
 * Training may change all of it. The shape must fit. */
void quire_train_shift_heads(const quire_train_layout *layout, const quire_train_shape *shape,
                             uint64_t seed, float *parameters);

/* Whether a shape has such weights: layer 0 and another one store the K and V that they read,
 * without gates or windows; no norms of heads, which would flatten the scores; no factors of RoPE;
 * a width of two elements for each head and two more. */
bool quire_train_shift_heads_fit(const quire_train_shape *shape);

#endif /* QUIRE_TRAIN_SHAPE_H */
