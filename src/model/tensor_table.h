/* tensor_table.h - the tensors of models: names, shapes, and their places in the weights.
 *
 * Each row belongs to a part (archs.h). A file of an architecture has the rows of the parts that
 * the architecture needs, and may have those of the parts that it allows. A tensor that holds
 * several matrices one behind the other (Q, K and V; gate and up) is cut along its rows when it is
 * loaded, so that the rest of Quire knows the matrices apart.
 *
 * Thread: the table is constant.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_TENSOR_TABLE_H
#define QUIRE_MODEL_TENSOR_TABLE_H

#include "model/archs.h"

/* The sizes of which shapes consist. */
typedef enum quire_dim {
    QUIRE_DIM_ONE,
    QUIRE_DIM_EMBD,
    QUIRE_DIM_EMBD_THRICE,
    QUIRE_DIM_EMBD_LAYER,  /* a layer's part of the second embedding */
    QUIRE_DIM_EMBD_LAYERS, /* of all layers */
    QUIRE_DIM_TAPS,        /* of convolutions */
    QUIRE_DIM_CONV,        /* columns of the convolution of a delta net or of Mamba-2 */
    QUIRE_DIM_DELTA,       /* V of a delta net or of Mamba-2 */
    QUIRE_DIM_DELTA_HEADS,
    QUIRE_DIM_DELTA_HEADS_TWICE,
    QUIRE_DIM_DELTA_HEAD,
    QUIRE_DIM_MAMBA_IN, /* a gate of V, the columns of the convolution, a number of each head */
    QUIRE_DIM_GROUPS,   /* of Mamba-2 */
    QUIRE_DIM_GROUP,    /* V of a group */
    QUIRE_DIM_FF,
    QUIRE_DIM_FF_TWICE,
    QUIRE_DIM_EMBD_EXPERT, /* that experts read and make */
    QUIRE_DIM_FF_EXPERT,
    QUIRE_DIM_FF_EXPERT_TWICE,
    QUIRE_DIM_FF_SHARED,
    QUIRE_DIM_EXPERTS,
    QUIRE_DIM_HEADS, /* of queries */
    QUIRE_DIM_Q,
    QUIRE_DIM_Q_MAP, /* results of attn_q: Q, or Q and its gates */
    QUIRE_DIM_K,
    QUIRE_DIM_V,
    QUIRE_DIM_QKV,
    QUIRE_DIM_HEAD,
    QUIRE_DIM_VOCAB,
    QUIRE_DIM_ROPE,
    QUIRE_DIM_O,               /* of all heads' results, before the output projection */
    QUIRE_DIM_LATENT,          /* of latent attention: numbers that K and V follow from */
    QUIRE_DIM_LATENT_ROW,      /* with the turned ones */
    QUIRE_DIM_LATENT_Q,        /* that Q follows from */
    QUIRE_DIM_LATENT_HEADS,    /* of all heads' Q */
    QUIRE_DIM_LATENT_PLAIN,    /* of a head's Q: not turned */
    QUIRE_DIM_LATENT_OUT,      /* of a head's result */
    QUIRE_DIM_LATENT_TOGETHER, /* of all heads: the two above */
    QUIRE_DIM_STREAMS,         /* of the residual */
    QUIRE_DIM_STREAMS_MORE,    /* but the first one */
    QUIRE_DIM_STREAMS_SQUARED,
    QUIRE_DIM_LAUREL, /* between the two maps beside attention */
    QUIRE_DIM_MIX,    /* factors of layer 0 and of the own layer */
    QUIRE_DIM_GATE    /* a gate's tensor is checked by describe_kv_map.c */
} quire_dim;

/* How many tensors of a name a model has. */
typedef enum quire_tensor_scope {
    QUIRE_TENSOR_OF_MODEL,
    QUIRE_TENSOR_OF_LAYER,
    QUIRE_TENSOR_OF_ATTENTION_LAYER, /* one in each layer that has attention */
    QUIRE_TENSOR_OF_CONV_LAYER,      /* one in each layer that has a convolution instead */
    QUIRE_TENSOR_OF_DELTA_LAYER,     /* one in each layer that has a delta net instead */
    QUIRE_TENSOR_OF_MAMBA_LAYER,     /* one in each layer that has Mamba-2, instead or beside */
    QUIRE_TENSOR_OF_STORED_LAYER,    /* one in each layer that stores K and V */
    QUIRE_TENSOR_OF_DENSE_LAYER,     /* one in each layer that has a network without experts */
    QUIRE_TENSOR_OF_EXPERT_LAYER,    /* one in each layer with experts */
    /* One in each layer, by the kind of latent attention. */
    QUIRE_TENSOR_OF_LATENT_Q,       /* where Q follows from fewer numbers */
    QUIRE_TENSOR_OF_LATENT_PLAIN_Q, /* where it does not */
    QUIRE_TENSOR_OF_LATENT_SPLIT,   /* matrices of K and V apart */
    QUIRE_TENSOR_OF_LATENT_JOINT    /* and together */
} quire_tensor_scope;

/* A piece of a tensor that is cut along its rows, or of a vector along its elements. */
typedef struct quire_tensor_cut {
    quire_dim rows;
    size_t into;
} quire_tensor_cut;

#define QUIRE_TENSOR_CUTS_MAX 3u

/* Vectors have rows == QUIRE_DIM_ONE and are f32; the others are matrices. */
typedef struct quire_tensor_row {
    const char *name; /* after "blk.N.", except of a model's */
    quire_part part;
    quire_tensor_scope where;
    quire_dim columns;
    quire_dim rows;
    quire_dim depth;   /* matrices, or vectors, one behind the other */
    bool is_looked_up; /* numbers are read one by one; else a matrix is a factor of products */
    size_t into;       /* byte offset in quire_weights, of a layer's in quire_layer_weights */
    quire_tensor_cut cuts[QUIRE_TENSOR_CUTS_MAX]; /* in place of `into`, where the first has one */
} quire_tensor_row;

/* Row i, NULL past the end. Memory: static. */
const quire_tensor_row *quire_tensor_row_get(size_t i);
#define QUIRE_TENSOR_ROWS_MAX 128u

/* Whether a layer of a described model has the tensor of a row, if the model has its part. */
bool quire_tensor_is_in_layer(const quire_model_desc *desc, const quire_tensor_row *row,
                              uint32_t il);

/* The size of a dimension in a layer of a described model; layer counts for nothing in sizes of
 * the model's own tensors. */
int64_t quire_dim_size(const quire_model_desc *desc, quire_dim which, uint32_t layer);

#endif /* QUIRE_MODEL_TENSOR_TABLE_H */
