/* query_sums.h - sums over a text's queries, and from them the mean and the covariance of queries
 * at later positions. Method: Expected Attention (arXiv 2510.00636): a query is a random vector
 * that RoPE turns by its position, so its mean and covariance ahead are those of the text's
 * queries, turned back to position 0 and averaged over the turns to come.
 *
 * Thread: any, one at a time for each head's sums.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_QUERY_SUMS_H
#define QUIRE_RETAIN_QUERY_SUMS_H

#include "attn/rotation.h"
#include "quire/attn.h"

#include <stddef.h>
#include <stdint.h>

#define QUIRE_QUERY_SUMS_D_MAX 1024u /* QUIRE_HEAD_DIM_MAX */

/* Sums over the queries of the query heads of a lane, turned back and times the scale of attention.
 * Of products the columns up to the row's. Pointers are borrowed. */
typedef struct quire_query_sums {
    const quire_rotation *rotation;
    uint32_t group;  /* query heads */
    float *sums;     /* [group][d] */
    float *products; /* [group][d][d] */
} quire_query_sums;

/* Floats of the sums and the products of a head. */
static inline size_t quire_query_sums_floats(size_t d)
{
    return d * (d + 1);
}

/* Add a row's queries, the first of which is at `queries`. turns: those back from the row's
 * position, quire_rotation_turns(). one: the layer as a lane of it is computed. */
void quire_query_sums_add(const quire_query_sums *sums, const quire_attn_layer *one,
                          const float *turns, const float *queries);

/* mean, [group][d], and cov, [group][d][d], of the queries at `n_ahead` positions from `first` on,
 * transformed as the lane's keys are. n_queries: rows in the sums. */
void quire_query_sums_ahead(const quire_query_sums *sums, const quire_attn_layer *one,
                            uint64_t n_queries, uint32_t first, uint32_t n_ahead, float *mean,
                            float *cov);

#endif /* QUIRE_RETAIN_QUERY_SUMS_H */
