/* ops_decl.h - the operations in one precision; see ops.h.
 *
 * SPDX-License-Identifier: MIT */

/* Threads and memory of the operations. */
typedef struct QT(compute) {
    quire_team *team;
    uint32_t n_threads;
    const QT(rows) * rows;
    QT(product_fn) * product; /* of matrices; the rows', or another of the same precision */
    real *sums;               /* [QUIRE_TRAIN_SUM_PARTS][sum_max] partial sums of vectors */
    uint32_t sum_max;         /* the longest vector whose gradient is summed */
    real *scratch;            /* [n_threads][scratch_max] */
    size_t scratch_max;       /* at least QT(attention_scratch)() of every attention */
} QT(compute);

/* Starts n_threads - 1 threads. Errors: QUIRE_INVAL (threads), QUIRE_NOMEM. Destroy with
 * compute_fini(), which accepts { 0 } also. */
int QT(compute_init)(QT(compute) * c, uint32_t n_threads, uint32_t sum_max, size_t scratch_max,
                     quire_error *err);
void QT(compute_fini)(QT(compute) * c);

/* x[n][d] = the rows of table [n_vocab][d] that tokens name; tokens are below n_vocab. */
typedef struct QT(embed) {
    const int32_t *tokens;
    uint32_t n;
    uint32_t d;
} QT(embed);
void QT(embed_forward)(QT(compute) * c, const QT(embed) * e, const real *table, real *x);
void QT(embed_back)(QT(compute) * c, const QT(embed) * e, const real *dx, real *dtable);

/* y[n][d] = x / rms(x) weight[d] by rows; inv[n] keeps 1 / rms for the way back. A norm by heads is
 * one with n = tokens x heads. */
typedef struct QT(norm) {
    uint32_t n;
    uint32_t d;
    real epsilon;
    const real *x;
    const real *weight;
    real *inv;
} QT(norm);
void QT(norm_forward)(QT(compute) * c, const QT(norm) * o, real *y);
/* dx +=, dweight +=. */
void QT(norm_back)(QT(compute) * c, const QT(norm) * o, const real *dy, real *dx, real *dweight);

/* y[n][n_out] = x[n][n_in] weight^T; is_added: y += instead. */
typedef struct QT(linear) {
    uint32_t n;
    uint32_t n_in;
    uint32_t n_out;
    const real *weight; /* [n_out][n_in] */
} QT(linear);
void QT(linear_forward)(QT(compute) * c, const QT(linear) * o, const real *x, real *y,
                        bool is_added);
/* dx[n][n_in] = dy weight, or += when is_added. */
void QT(linear_back_input)(QT(compute) * c, const QT(linear) * o, const real *dy, real *dx,
                           bool is_added);
/* dweight += dy^T x. */
void QT(linear_back_weight)(QT(compute) * c, const QT(linear) * o, const real *x, const real *dy,
                            real *dweight);

/* y[n][d] += bias[d] in every row. */
void QT(bias_add)(QT(compute) * c, uint32_t n, uint32_t d, const real *bias, real *y);
/* dbias[d] += the rows of dy. */
void QT(bias_back)(QT(compute) * c, uint32_t n, uint32_t d, const real *dy, real *dbias);

/* Rotates pairs (j, j + d/2) of each head of x[n][n_head][d] in place, by position. The way back is
 * the same with is_back, on the gradient. */
typedef struct QT(rope) {
    uint32_t n;
    uint32_t n_head;
    uint32_t d;
    const int32_t *positions; /* [n], below the rows of the tables */
    const real *cos;          /* [positions][d / 2] */
    const real *sin;
} QT(rope);
void QT(rope_apply)(QT(compute) * c, const QT(rope) * o, real *x, bool is_back);
/* Fill cos and sin [n_positions][d / 2]: angle = position base^(-2 j / d) / factors[j]. Factors
 * NULL: all 1. */
typedef struct QT(rope_angles) {
    uint32_t n_positions;
    uint32_t d;
    double base;
    const float *factors;
} QT(rope_angles);
void QT(rope_tables)(real *cos, real *sin, const QT(rope_angles) * o);

/* y = sum over sources of x_s gate_s, each x [n][d], each gate [d]: K or V of a layer that stores
 * none. One source or two. A source without a gate is no case for this operation. */
typedef struct QT(fuse) {
    uint32_t n;
    uint32_t d;
    uint32_t n_sources;
    const real *x[2];
    const real *gates[2];
} QT(fuse);
void QT(fuse_forward)(QT(compute) * c, const QT(fuse) * o, real *y);
/* dx[s] +=, dgates[s] [d] +=. */
void QT(fuse_back)(QT(compute) * c, const QT(fuse) * o, const real *dy, real *const dx[2],
                   real *const dgates[2]);

/* y[n][d] = silu(gate) up. */
void QT(swiglu_forward)(QT(compute) * c, uint32_t n, uint32_t d, const real *const gate_up[2],
                        real *y);
/* gate and up become their gradients, and y (written, not read) swiglu's result once more. */
void QT(swiglu_back)(QT(compute) * c, uint32_t n, uint32_t d, real *const gate_up_y[3],
                     const real *dy);

/* y[n] += x[n] by elements. */
void QT(add)(QT(compute) * c, size_t n, const real *x, real *y);

/* Another model's queries and keys, whose attention weights the way back also compares. Their
 * weights are taken over the keys that this model's query sees. */
typedef struct QT(guide) {
    uint32_t n_kv_head;
    uint32_t d;             /* of a head */
    const real *q;          /* [n_rows n_tokens][n_head][d], with as many heads as this model */
    const real *k;          /* [n_rows n_tokens][n_kv_head][d] */
    const int32_t *targets; /* [n_rows n_tokens]; queries without a target do not count */
    real factor;            /* of divergences */
    real scale;             /* of their sum in the function that the gradients are of */
    real *divergences;      /* [n_rows][n_head][n_tokens] += factor times the sum over the keys of
                               p log(p / w), p their weights and w this model's */
} QT(guide);

/* Causal attention with grouped heads: query head h reads KV head h / (n_head / n_kv_head). The
 * batch has n_rows rows of n_tokens each; a token sees the tokens of its row from first[token] (of
 * its own document, an index in the row, not descending) to itself, and no further back than the
 * window. */
typedef struct QT(attention) {
    uint32_t n_rows;
    uint32_t n_tokens;
    uint32_t n_head;
    uint32_t n_kv_head;
    uint32_t d;           /* of a head */
    uint32_t window;      /* tokens that a query sees, itself included; 0: no limit */
    const int32_t *first; /* [n_rows n_tokens] */
    const real *q;        /* [n_rows n_tokens][n_head][d] */
    const real *k;        /* [n_rows n_tokens][n_kv_head][d] */
    const real *v;
    real *out; /* as q */
    real *lse; /* [n_rows][n_head][n_tokens] log of the sum of exponentials, for the way back */
    const QT(guide) * guide; /* for the way back; NULL: none */
} QT(attention);
/* Elements of scratch per thread for rows of n_tokens. */
size_t QT(attention_scratch)(uint32_t n_tokens);
void QT(attention_forward)(QT(compute) * c, const QT(attention) * o);
/* gradients: dq = (written), dk += , dv +=. A guide has a loss of its own, its scale times the sum
 * of its divergences: with a guide the gradients of this loss are included. */
void QT(attention_back)(QT(compute) * c, const QT(attention) * o, const real *dout,
                        real *const gradients[3]);

/* Another model that the loss is also measured against. */
typedef struct QT(teacher) {
    uint32_t d;
    const real *weight; /* [n_vocab][d] of its last linear map */
    const real *x;      /* [n][d] */
    real *logits;       /* [chunk][n_vocab] */
    real *spare;        /* [n_threads][n_vocab] */
    real share;         /* 0 to 1, of the divergence in the function that the gradients are of */
    real *divergences;  /* [n], written: sum over tokens v of p(v) log(p(v) / q(v)), p the teacher's
                           probabilities; 0 where there is no target */
} QT(teacher);

/* The last linear map and the loss: the sum over tokens with a target of -log softmax(weight
 * x)[target]. Logits exist for chunk tokens at a time. */
typedef struct QT(loss) {
    uint32_t n;
    uint32_t d;
    uint32_t n_vocab;
    uint32_t chunk;
    const real *weight; /* [n_vocab][d] */
    const real *x;
    const int32_t *targets; /* [n]; QUIRE_TRAIN_NO_TARGET: the token does not count */
    real *logits;           /* [chunk][n_vocab] */
    real *losses;           /* [n], written; 0 where there is no target */
    const real *bias;       /* [n_vocab] added to all logits, also to the teacher's; NULL: none */
    const QT(teacher) * teacher; /* NULL: none */
} QT(loss);
/* Tokens in a chunk, so that logits take at most 64 MiB. */
uint32_t QT(loss_chunk)(uint32_t n, uint32_t n_vocab);
/* Returns the sum of the losses in double precision, by tokens in order. With dx (written) and
 * dweight (+=), both or neither: the gradients of scale times the sum, or, with a teacher, of scale
 * times (1 - share) losses + share divergences. */
double QT(loss_run)(QT(compute) * c, const QT(loss) * o, real scale, real *dx, real *dweight);

/* The squared distance of a stream from a teacher's, relative to the teacher's: for every token
 * with a target, |x - theirs|^2 / |theirs|^2, times the factor. Rows of zeros in theirs have no
 * distance. Source: the loss of hidden states of arXiv 1909.10351, section 3.1, there without the
 * division. */
typedef struct QT(distance) {
    uint32_t n;
    uint32_t d;
    const int32_t *targets; /* [n] */
    const real *x;          /* [n][d] */
    real *theirs;           /* [n][d]; undefined afterwards */
    real factor;
    real *distances; /* [n] += */
} QT(distance);
/* dx (NULL: none) += the gradient of scale times the sum of what is added to distances. */
void QT(distance_run)(QT(compute) * c, const QT(distance) * o, real scale, real *dx);
