/* graph_choice.c - see graph_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_choice.h"

#include <math.h>

#define NODES_FIXED   44u
#define NODES_OF_USED 2u /* view, sum */

/* What a score loses in a group that is not used: all of its digits. */
#define FAR_DOWN 1e30f

/* The sums [n_groups][n_rows] of a group's two largest scores, or of its only one. */
static struct ggml_tensor *group_scores(struct ggml_context *ctx, struct ggml_tensor *groups)
{
    const int64_t n_of_group = groups->ne[0], n_groups = groups->ne[1], n_rows = groups->ne[2];
    struct ggml_tensor *numbers, *top;

    if (n_of_group == 1) {
        return ggml_reshape_2d(ctx, groups, n_groups, n_rows);
    }
    numbers = ggml_reshape_4d(ctx, groups, 1, n_of_group, n_groups, n_rows);
    top = ggml_get_rows(ctx, numbers, ggml_argsort_top_k(ctx, groups, 2));
    top = ggml_sum_rows(ctx, ggml_reshape_3d(ctx, top, 2, n_groups, n_rows));
    return ggml_reshape_2d(ctx, top, n_groups, n_rows);
}

/* The scores of experts, which are far down in groups that score less than the last one used. */
static struct ggml_tensor *groups_mask(struct ggml_context *ctx, const quire_router *router,
                                       struct ggml_tensor *scores)
{
    const int64_t n_groups = router->n_groups, n_rows = scores->ne[1];
    struct ggml_tensor *groups =
        ggml_reshape_3d(ctx, scores, router->n_experts / n_groups, n_groups, n_rows);
    struct ggml_tensor *sums = group_scores(ctx, groups);
    struct ggml_tensor *order = ggml_argsort(ctx, sums, GGML_SORT_ORDER_DESC);
    struct ggml_tensor *last = ggml_view_2d(ctx, order, 1, n_rows, order->nb[1],
                                            (router->n_groups_used - 1) * order->nb[0]);
    struct ggml_tensor *least =
        ggml_get_rows(ctx, ggml_reshape_3d(ctx, sums, 1, n_groups, n_rows), last);
    struct ggml_tensor *lack = ggml_sub(ctx, sums, ggml_reshape_2d(ctx, least, 1, n_rows));

    lack = ggml_scale(ctx, ggml_step(ctx, ggml_neg(ctx, lack)), -FAR_DOWN);
    groups = ggml_add(ctx, groups, ggml_reshape_3d(ctx, lack, 1, n_groups, n_rows));
    return ggml_reshape_2d(ctx, groups, router->n_experts, n_rows);
}

static struct ggml_tensor *gated(struct ggml_context *ctx, quire_gating gating,
                                 struct ggml_tensor *logits)
{
    switch (gating) {
    case QUIRE_GATING_SOFTMAX:
        return ggml_soft_max(ctx, logits);
    case QUIRE_GATING_SIGMOID:
        return ggml_sigmoid(ctx, logits);
    case QUIRE_GATING_CHOSEN:
        break;
    }
    return logits;
}

/* Finish the weights [n_used][n_rows] of the chosen. */
static struct ggml_tensor *weighed(struct ggml_context *ctx, const quire_router *router,
                                   struct ggml_tensor *weights)
{
    if (router->gating == QUIRE_GATING_CHOSEN) {
        weights = ggml_soft_max(ctx, weights);
    }
    if (router->is_normalised) {
        weights =
            ggml_div(ctx, weights,
                     ggml_clamp(ctx, ggml_sum_rows(ctx, weights), QUIRE_ROUTER_SUM_MIN, INFINITY));
    }
    return router->scale != 1.0f ? ggml_scale(ctx, weights, router->scale) : weights;
}

quire_graph_choice quire_graph_choice_build(struct ggml_context *ctx, const quire_router *router,
                                            struct ggml_tensor *logits, struct ggml_tensor *bias,
                                            struct ggml_tensor *factors)
{
    const int64_t n_experts = router->n_experts, n_used = router->n_used, n_rows = logits->ne[1];
    struct ggml_tensor *probs = gated(ctx, router->gating, logits);
    struct ggml_tensor *scores = router->chooses_by_logits ? logits : probs;
    struct ggml_tensor *weights;
    quire_graph_choice choice;

    scores = bias != NULL ? ggml_add(ctx, scores, bias) : scores;
    scores = router->n_groups > 1 ? groups_mask(ctx, router, scores) : scores;
    choice.ids = ggml_argsort_top_k(ctx, scores, (int)n_used);
    weights = ggml_get_rows(ctx, ggml_reshape_3d(ctx, probs, 1, n_experts, n_rows), choice.ids);
    weights = weighed(ctx, router, ggml_reshape_2d(ctx, weights, n_used, n_rows));
    choice.weights = ggml_reshape_3d(ctx, weights, 1, n_used, n_rows);
    if (factors != NULL) {
        factors = ggml_reshape_3d(ctx, factors, 1, n_experts, 1);
        factors = ggml_repeat_4d(ctx, factors, 1, n_experts, n_rows, 1);
        choice.weights = ggml_mul(ctx, choice.weights, ggml_get_rows(ctx, factors, choice.ids));
    }
    return choice;
}

struct ggml_tensor *quire_graph_choice_spread(struct ggml_context *ctx,
                                              const quire_graph_choice *choice,
                                              struct ggml_tensor *x)
{
    const int64_t n = x->ne[0], n_rows = x->ne[1], n_used = choice->ids->ne[0];

    x = ggml_reshape_3d(ctx, x, n, 1, n_rows);
    x = n_used > 1 ? ggml_repeat_4d(ctx, x, n, n_used, n_rows, 1) : x;
    return ggml_mul(ctx, x, choice->weights);
}

struct ggml_tensor *quire_graph_choice_combine(struct ggml_context *ctx,
                                               const quire_graph_choice *choice,
                                               struct ggml_tensor *y, bool is_weighted)
{
    const int64_t n = y->ne[0], n_used = y->ne[1], n_rows = y->ne[2];
    struct ggml_tensor *sum;

    y = is_weighted ? ggml_mul(ctx, y, choice->weights) : y;
    if (n_used == 1) {
        return ggml_reshape_2d(ctx, y, n, n_rows);
    }
    sum = ggml_view_2d(ctx, y, n, n_rows, y->nb[2], 0);
    for (int64_t k = 1; k < n_used; k++) {
        sum = ggml_add(ctx, sum, ggml_view_2d(ctx, y, n, n_rows, y->nb[2], (size_t)k * y->nb[1]));
    }
    return sum;
}

uint32_t quire_graph_choice_nodes(uint32_t n_used)
{
    return NODES_FIXED + NODES_OF_USED * n_used;
}
