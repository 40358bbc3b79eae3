/* predictor.h - the scores of `reconstruct` predicted from hidden states, so that a text is
 * computed once only.
 *
 * For each layer and KV head a linear map of the layer's normed input gives the logarithm of the
 * most attention that the token will get while its text is repeated (KVzap's linear form, arXiv
 * 2601.07891). The maps are fitted to a user's text by least squares.
 *
 *   quire_fit        sums of products over samples of one layer, then the solution
 *   quire_predictor  the maps of all layers, and their file
 *
 * Thread: owner; quire_predictor_apply() on any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PREDICTOR_H
#define QUIRE_RETAIN_PREDICTOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/hash128.h"
#include "quire/error.h"

/* Attention below this counts as this: the logarithm of nothing would outweigh all else. */
#define QUIRE_PREDICTOR_LEAST 1e-6

#define QUIRE_PREDICTOR_BYTES_MAX ((size_t)1 << 30) /* of a file */

/* The shape of a model, as far as a predictor depends on it. */
typedef struct quire_predictor_shape {
    uint32_t n_layers;
    uint32_t n_kv_head;
    uint32_t n_hidden;    /* floats of a hidden state */
    uint64_t fingerprint; /* of the model: quire_model_desc */
} quire_predictor_shape;

typedef struct quire_predictor {
    quire_predictor_shape shape;
    float *maps; /* [n_layers][n_kv_head][n_hidden + 1]: factors, and the constant */
} quire_predictor;

/* Bytes of the maps. */
uint64_t quire_predictor_bytes(const quire_predictor_shape *shape);
/* Create a predictor with maps of zeros. Errors: QUIRE_NOMEM, QUIRE_LIMIT (beyond
 * QUIRE_PREDICTOR_BYTES_MAX). Memory: quire_predictor_free(). */
int quire_predictor_create(quire_predictor **out, const quire_predictor_shape *shape);
void quire_predictor_free(quire_predictor *predictor); /* NULL is fine */

/* [n_hidden + 1] */
float *quire_predictor_map(const quire_predictor *predictor, uint32_t layer, uint32_t kv_head);

/* Hidden states of n rows, `stride` floats apart. */
typedef struct quire_predictor_rows {
    const float *hidden;
    size_t stride;
    uint32_t n;
} quire_predictor_rows;

/* out, [rows->n]: the predicted attention of each row, exp(map . hidden + constant), at most 1. A
 * row's bits do not depend on the other rows. */
void quire_predictor_apply(const quire_predictor *predictor, uint32_t layer, uint32_t kv_head,
                           const quire_predictor_rows *rows, float *out);

/* A hash of shape and maps: predictors with the same give the same scores. */
void quire_predictor_hash(const quire_predictor *predictor,
                          unsigned char hash[QUIRE_HASH128_BYTES]);

/* The file: magic, shape, maps as f32 (least byte first), hash of all before. Memory: free(*bytes).
 * Errors: QUIRE_NOMEM. */
int quire_predictor_format(const quire_predictor *predictor, void **bytes, size_t *n_bytes);

/* Errors: QUIRE_CORRUPT (no such file, or damaged), QUIRE_INVAL (of another model), QUIRE_NOMEM. */
int quire_predictor_parse(quire_predictor **out, const void *bytes, size_t n_bytes,
                          const quire_predictor_shape *shape, quire_error *err);

/* ---- fitting ---- */

typedef struct quire_fit quire_fit;

/* Bytes of a fit. */
uint64_t quire_fit_bytes(uint32_t n_hidden, uint32_t n_kv_head);
/* Errors: QUIRE_NOMEM. Memory: quire_fit_free(). */
int quire_fit_create(quire_fit **out, uint32_t n_hidden, uint32_t n_kv_head);
void quire_fit_free(quire_fit *fit);

/* Add samples: hidden states, [n][n_hidden], and for each head the attention that their tokens got,
 * worth[kv_head][n]. */
void quire_fit_add(quire_fit *fit, const float *hidden, const float *const *worth, uint32_t n);

/* maps, [n_kv_head][n_hidden + 1]: the least squares of the logarithms, with a small ridge on the
 * factors. The fit is used up. Errors: QUIRE_NOMEM, QUIRE_INVAL (fewer than two samples). */
int quire_fit_solve(quire_fit *fit, float *maps);

#endif /* QUIRE_RETAIN_PREDICTOR_H */
