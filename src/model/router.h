/* router.h - the choice of experts for a row, as libllama makes it (build_moe_ffn at ggml 0.25.1).
 *
 *   l = W x (+ b)                     of each expert
 *   p = softmax(l), sigmoid(l) or l   by gating
 *   s = p (or l) + choice bias        decides alone, does not weigh
 *   groups: only experts of the groups with the largest sums of their two largest s may be chosen
 *   the n_used largest s, descending; of equal ones the expert of the lower index
 *   w = p of the chosen; softmax(w) over the chosen, if gating is over the chosen; w / sum(w) if
 *       weights are normalised; times scale
 *
 * A row's choice and weights have the same bits in every step: sums have a fixed order, which
 * depends on no other row and on no instruction set.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_ROUTER_H
#define QUIRE_MODEL_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_EXPERTS_MAX       1024u /* of a layer; libllama's limit, too */
#define QUIRE_EXPERT_GROUPS_MAX 256u

/* The least sum by which weights are divided: the least normal f16. */
#define QUIRE_ROUTER_SUM_MIN 6.103515625e-5f

typedef enum quire_gating {
    QUIRE_GATING_SOFTMAX,
    QUIRE_GATING_SIGMOID,
    QUIRE_GATING_CHOSEN /* softmax over the logits of the chosen */
} quire_gating;

typedef struct quire_router {
    uint32_t n_experts;
    uint32_t n_used;        /* 1 to n_experts */
    uint32_t n_groups;      /* 0 or 1: no groups; else a divisor of n_experts */
    uint32_t n_groups_used; /* 1 to n_groups; the groups used hold n_used experts or more */
    quire_gating gating;
    bool is_normalised;
    bool chooses_by_logits; /* by l in place of p */
    float scale;            /* of the weights; 1 = none */
} quire_router;

/* The products of rows x [n_in] with rows w [n_in] of a matrix. */
typedef struct quire_router_product {
    const float *x;
    size_t x_stride;   /* floats */
    const float *w;    /* [n_out][n_in] */
    const float *bias; /* [n_out] or NULL */
    uint32_t n_in;
    uint32_t n_out;
    float *y; /* [n_rows][n_out] */
} quire_router_product;

/* Outputs [begin, end) of rows [first, last). */
typedef struct quire_router_part {
    uint32_t first, last;
    uint32_t begin, end;
} quire_router_part;

void quire_router_multiply(const quire_router_product *product, const quire_router_part *part);

/* Choose for one row. logits [n_experts]; choice_bias [n_experts] or NULL; choices and weights
 * [n_used]. NaN counts as the least. */
void quire_router_choose(const quire_router *router, const float *logits, const float *choice_bias,
                         int32_t *choices, float *weights);

#endif /* QUIRE_MODEL_ROUTER_H */
