/* graph_experts.c - see graph_experts.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_experts.h"

#include "base/check.h"
#include "matmul/experts.h"
#include "model/float_maps.h"
#include "model/graph_choice.h"

#include <ggml-backend.h>

#define NODES_FIXED 48u

/* gpt-oss's activation: swiglu of a gate of at most the limit and of an up within it. */
#define CLAMPED_ALPHA 1.702f
#define CLAMPED_LIMIT 7.0f

/* The tensor of a choice: [n_rows][n_used] experts, then as many weights (f32). */
static int32_t *choices_of(const struct ggml_tensor *choice)
{
    return choice->data;
}

static float *weights_of(const struct ggml_tensor *choice)
{
    return (float *)choice->data + choice->ne[0] / 2;
}

static quire_experts_shape shape_of(const quire_router *router, int64_t n_rows)
{
    return (quire_experts_shape){ .n_experts = router->n_experts,
                                  .n_rows = (uint32_t)n_rows,
                                  .n_used = router->n_used };
}

/* ---- the router's ops ---- */

/* Threads share the outputs of few rows, and the rows of many. */
static void op_logits(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_experts *e = userdata;
    const struct ggml_tensor *x = dst->src[0], *w = dst->src[1];
    const struct ggml_tensor *bias = w == e->weights->router ? e->weights->router_b : NULL;
    const uint32_t n_rows = (uint32_t)x->ne[1], n_out = (uint32_t)dst->ne[0];
    const bool is_by_row = n_rows >= 2 * (uint32_t)nth;
    const uint64_t n = is_by_row ? n_rows : n_out;
    const uint32_t begin = (uint32_t)(n * (uint64_t)ith / (uint64_t)nth);
    const uint32_t end = (uint32_t)(n * ((uint64_t)ith + 1) / (uint64_t)nth);
    const quire_router_product product = { .x = x->data,
                                           .x_stride = x->nb[1] / sizeof(float),
                                           .w = w->data,
                                           .bias = bias != NULL ? bias->data : NULL,
                                           .n_in = (uint32_t)x->ne[0],
                                           .n_out = n_out,
                                           .y = dst->data };
    const quire_router_part part = is_by_row ? (quire_router_part){ begin, end, 0, n_out }
                                             : (quire_router_part){ 0, n_rows, begin, end };

    quire_router_multiply(&product, &part);
}

static void op_choice(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_experts *e = userdata;
    const struct ggml_tensor *logits = dst->src[0], *bias = e->weights->choice_b;
    const float *scale = e->weights->down_scale != NULL ? e->weights->down_scale->data : NULL;
    const uint32_t n_used = e->router->n_used;
    const int64_t begin = logits->ne[1] * ith / nth, end = logits->ne[1] * (ith + 1) / nth;

    for (int64_t row = begin; row < end; row++) {
        quire_router_choose(e->router, (const float *)logits->data + row * logits->ne[0],
                            bias != NULL ? bias->data : NULL, choices_of(dst) + row * n_used,
                            weights_of(dst) + row * n_used);
        for (uint32_t k = 0; scale != NULL && k < n_used; k++) {
            weights_of(dst)[row * n_used + k] *= scale[choices_of(dst)[row * n_used + k]];
        }
    }
}

static void op_plan(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_experts *e = userdata;
    const struct ggml_tensor *choice = dst->src[0];
    const quire_experts_shape shape =
        shape_of(e->router, choice->ne[0] / 2 / (int64_t)e->router->n_used);

    (void)nth;
    if (ith == 0) {
        quire_experts_plan_write(&shape, choices_of(choice), dst->data);
    }
}

/* ---- the ops of products ---- */

static quire_experts_plan plan_of(const quire_router *router, const struct ggml_tensor *plan)
{
    const int64_t n_pairs = (plan->ne[0] - router->n_experts - 1) / 2;
    const quire_experts_shape shape = shape_of(router, n_pairs / router->n_used);

    return quire_experts_plan_at(&shape, plan->data);
}

/* A layer's panels; NULL: all of its experts' matrices are floats. */
static const quire_matmul_weight *panels_of(const quire_expert_weights *w)
{
    const struct ggml_tensor *const kinds[] = { w->gate, w->up, w->gate_up, w->down };
    const quire_matmul_weight *panels = NULL;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && panels == NULL; i++) {
        panels = kinds[i] != NULL ? quire_weights_panels(kinds[i]) : NULL;
    }
    return panels;
}

/* Pack x, of which there is a row for each row, or for each place behind the first products. */
static void pack(struct ggml_tensor *dst, const quire_graph_experts *e, bool is_by_place, int ith,
                 int nth)
{
    const struct ggml_tensor *x = dst->src[0];
    const quire_experts_plan plan = plan_of(e->router, dst->src[1]);
    const quire_experts_x rows = { .rows = x->data,
                                   .stride = x->nb[1] / sizeof(float),
                                   .n_in = (uint32_t)x->ne[0],
                                   .is_by_place = is_by_place };

    quire_experts_x_pack(panels_of(e->weights)->kernels, &plan, &rows, dst->data, (uint32_t)ith,
                         (uint32_t)nth);
}

static void op_pack_rows(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    pack(dst, userdata, false, ith, nth);
}

static void op_pack_places(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    pack(dst, userdata, true, ith, nth);
}

/* One of the products of a layer's experts. */
typedef struct expert_map {
    const struct ggml_tensor *weight;
    const struct ggml_tensor *bias; /* or NULL */
    bool is_by_place;               /* x: a row for each place, else a row for each row */
    int64_t at;                     /* of its first output in a row of the result */
} expert_map;

static void panels_run(const struct ggml_tensor *dst, const expert_map *m,
                       const quire_experts_plan *plan, uint32_t thread, uint32_t n_threads)
{
    const quire_experts_product product = { .weight = quire_weights_panels(m->weight),
                                            .packed = dst->src[0]->data,
                                            .is_by_place = m->is_by_place,
                                            .bias = m->bias != NULL ? m->bias->data : NULL,
                                            .y = (float *)dst->data + m->at,
                                            .y_stride = dst->nb[1] / sizeof(float) };

    quire_experts_run(&product, plan, thread, n_threads);
}

/* x as it is stands behind the plan, where other products of the op read it packed. */
static void floats_run(const struct ggml_tensor *dst, const expert_map *m,
                       const quire_experts_plan *plan, uint32_t thread, uint32_t n_threads)
{
    const struct ggml_tensor *x = dst->src[2] != NULL ? dst->src[2] : dst->src[0];
    quire_floats_experts experts = { .one = quire_float_map_product(m->weight, x),
                                     .w_bytes = m->weight->nb[2],
                                     .n_out = (uint32_t)m->weight->ne[1],
                                     .is_by_place = m->is_by_place };

    experts.one.bias = m->bias != NULL ? m->bias->data : NULL;
    experts.one.y = (float *)dst->data + m->at;
    experts.one.y_stride = dst->nb[1] / sizeof(float);
    quire_floats_experts_run(&experts, plan, thread, n_threads);
}

static void map_run(const struct ggml_tensor *dst, const quire_graph_experts *e,
                    const expert_map *m, int ith, int nth)
{
    const quire_experts_plan plan = plan_of(e->router, dst->src[1]);

    if (quire_weights_panels(m->weight) != NULL) {
        panels_run(dst, m, &plan, (uint32_t)ith, (uint32_t)nth);
    } else {
        floats_run(dst, m, &plan, (uint32_t)ith, (uint32_t)nth);
    }
}

/* A row of the result: gate, then up, or up alone. */
static void op_gate_up(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_experts *e = userdata;
    const quire_expert_weights *w = e->weights;

    if (w->gate_up != NULL) {
        map_run(dst, e, &(expert_map){ w->gate_up, NULL, e->weighs_input, 0 }, ith, nth);
        return;
    }
    if (w->gate != NULL) {
        map_run(dst, e, &(expert_map){ w->gate, w->gate_b, e->weighs_input, 0 }, ith, nth);
    }
    map_run(dst, e,
            &(expert_map){ w->up, w->up_b, e->weighs_input, w->gate != NULL ? w->gate->ne[1] : 0 },
            ith, nth);
}

static void op_down(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_experts *e = userdata;

    map_run(dst, e, &(expert_map){ e->weights->down, e->weights->down_b, true, 0 }, ith, nth);
}

/* A row times its weight for each of its choices, by the plan's places, or without a plan by row
 * and choice. */
static void op_spread(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_experts *e = userdata;
    const struct ggml_tensor *x = dst->src[0], *choice = dst->src[1], *plan = dst->src[2];
    const uint32_t *places = plan != NULL ? plan_of(e->router, plan).places : NULL;
    const int64_t begin = dst->ne[1] * ith / nth, end = dst->ne[1] * (ith + 1) / nth;

    for (int64_t pair = begin; pair < end; pair++) {
        const int64_t place = places != NULL ? places[pair] : pair;
        const float *from = (const float *)x->data + pair / e->router->n_used * x->ne[0];
        const float weight = weights_of(choice)[pair];
        float *to = (float *)dst->data + place * x->ne[0];

        for (int64_t i = 0; i < x->ne[0]; i++) {
            to[i] = from[i] * weight;
        }
    }
}

/* The weighted sum of a row's results, in the order of its choices. Results lie by the plan's
 * places, or without a plan by row and choice. Threads share the columns. */
static void op_combine(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_experts *e = userdata;
    const struct ggml_tensor *y = dst->src[0], *choice = dst->src[1], *plan = dst->src[2];
    const uint32_t *places = plan != NULL ? plan_of(e->router, plan).places : NULL;
    const uint32_t n_used = e->router->n_used;
    const int64_t begin = dst->ne[0] * ith / nth, end = dst->ne[0] * (ith + 1) / nth;

    for (int64_t row = 0; row < dst->ne[1]; row++) {
        float *to = (float *)dst->data + row * dst->ne[0];

        for (uint32_t k = 0; k < n_used; k++) {
            const size_t pair = (size_t)row * n_used + k;
            const size_t place = places != NULL ? places[pair] : pair;
            const float *from = (const float *)y->data + place * (size_t)dst->ne[0];
            const float weight = e->weighs_input ? 1.0f : weights_of(choice)[pair];

            for (int64_t i = begin; i < end; i++) {
                to[i] = k == 0 ? weight * from[i] : to[i] + weight * from[i];
            }
        }
    }
}

/* ---- building ---- */

static struct ggml_tensor *custom(const quire_linear *linear, enum ggml_type type, int64_t ne0,
                                  int64_t ne1, struct ggml_tensor *args[3], ggml_custom_op_t fun,
                                  void *userdata)
{
    int n = 0;

    while (n < 3 && args[n] != NULL) {
        n++;
    }
    return ggml_custom_4d(linear->ctx, type, ne0, ne1, 1, 1, args, n, fun, GGML_N_TASKS_MAX,
                          userdata);
}

static bool is_host(const struct ggml_tensor *w)
{
    return w->buffer != NULL && ggml_backend_buffer_is_host(w->buffer);
}

/* A map of all rows. */
static struct ggml_tensor *linear_build(quire_linear *linear, struct ggml_tensor *w,
                                        struct ggml_tensor *x)
{
    return quire_float_map_is_ours(w) && !linear->is_plain
               ? quire_float_map_build(linear->ctx, w, x)
               : quire_linear_build(linear, w, x);
}

/* f32 weights of the host are multiplied in the router's own order. A device must not add in f16,
 * as some do: small differences change the choice. By CUDA factors are TF32 all the same, from
 * Ampere on, in steps of several rows. */
static struct ggml_tensor *router_build(quire_graph_experts *e, quire_linear *linear,
                                        struct ggml_tensor *w, struct ggml_tensor *x)
{
    struct ggml_tensor *y;

    if (w->type == GGML_TYPE_F32 && is_host(w) && !linear->is_plain) {
        return custom(linear, GGML_TYPE_F32, w->ne[1], x->ne[1],
                      (struct ggml_tensor *[3]){ x, w, NULL }, op_logits, e);
    }
    y = linear_build(linear, w, x);
    if (linear->is_plain && y->op == GGML_OP_MUL_MAT) {
        ggml_prec_set_acc(y, GGML_PREC_F32);
    }
    return w == e->weights->router && e->weights->router_b != NULL
               ? ggml_add(linear->ctx, y, e->weights->router_b)
               : y;
}

/* The activation of gates and ups; gate: NULL in experts without. */
static struct ggml_tensor *activated(const quire_linear *linear, const quire_graph_experts *e,
                                     struct ggml_tensor *gate, struct ggml_tensor *up)
{
    if (gate == NULL) {
        QUIRE_CHECK(e->act == QUIRE_ACT_RELU2);
        return ggml_sqr(linear->ctx, ggml_relu(linear->ctx, up));
    }
    switch (e->act) {
    case QUIRE_ACT_SILU:
        return ggml_swiglu_split(linear->ctx, gate, up);
    case QUIRE_ACT_GELU:
        return ggml_geglu_split(linear->ctx, gate, up);
    case QUIRE_ACT_RELU:
        return ggml_reglu_split(linear->ctx, gate, up);
    case QUIRE_ACT_CLAMPED:
        return ggml_swiglu_oai(linear->ctx, gate, up, CLAMPED_ALPHA, CLAMPED_LIMIT);
    case QUIRE_ACT_RELU2:
    case QUIRE_ACT_XIELU:
        break;
    }
    QUIRE_CHECK(false);
}

/* What the products with gates and ups read: x packed, x as it is, or both. */
typedef struct first_maps {
    bool has_panels, has_floats;
} first_maps;

static first_maps first_maps_of(const quire_expert_weights *w)
{
    const struct ggml_tensor *const kinds[] = { w->gate, w->up, w->gate_up };
    first_maps first = { false, false };

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const bool is_panels = kinds[i] != NULL && quire_weights_panels(kinds[i]) != NULL;

        first.has_panels = first.has_panels || is_panels;
        first.has_floats = first.has_floats || (kinds[i] != NULL && !is_panels);
    }
    return first;
}

/* Products of Quire's own: of panels, whose x is packed, and of floats. */
static struct ggml_tensor *planned_build(quire_graph_experts *e, const quire_linear *linear,
                                         struct ggml_tensor *x, struct ggml_tensor *choice)
{
    struct ggml_context *ctx = linear->ctx;
    const quire_experts_shape shape = shape_of(e->router, x->ne[1]);
    const int64_t n_rows = x->ne[1], n_pairs = n_rows * e->router->n_used;
    const first_maps first = first_maps_of(e->weights);
    const int64_t n_embd = x->ne[0], n_ff = e->weights->down->ne[0];
    const bool has_gate = e->weights->gate != NULL || e->weights->gate_up != NULL;
    struct ggml_tensor *plan =
        custom(linear, GGML_TYPE_I32, (int64_t)quire_experts_plan_words(&shape), 1,
               (struct ggml_tensor *[3]){ choice, NULL, NULL }, op_plan, e);
    struct ggml_tensor *packed = NULL, *both, *y;

    if (e->weighs_input) {
        x = custom(linear, GGML_TYPE_F32, n_embd, n_pairs,
                   (struct ggml_tensor *[3]){ x, choice, plan }, op_spread, e);
    }
    if (first.has_panels) {
        packed =
            custom(linear, GGML_TYPE_I8, (int64_t)quire_experts_x_bytes(&shape, (uint32_t)n_embd),
                   1, (struct ggml_tensor *[3]){ x, plan, NULL },
                   e->weighs_input ? op_pack_places : op_pack_rows, e);
    }
    both = custom(linear, GGML_TYPE_F32, has_gate ? 2 * n_ff : n_ff, n_pairs,
                  (struct ggml_tensor *[3]){ packed != NULL ? packed : x, plan,
                                             packed != NULL && first.has_floats ? x : NULL },
                  op_gate_up, e);
    y = has_gate ? activated(linear, e, ggml_view_2d(ctx, both, n_ff, n_pairs, both->nb[1], 0),
                             ggml_view_2d(ctx, both, n_ff, n_pairs, both->nb[1],
                                          (size_t)n_ff * sizeof(float)))
                 : activated(linear, e, NULL, both);
    if (quire_weights_panels(e->weights->down) != NULL) {
        y = custom(linear, GGML_TYPE_I8, (int64_t)quire_experts_x_bytes(&shape, (uint32_t)n_ff), 1,
                   (struct ggml_tensor *[3]){ y, plan, NULL }, op_pack_places, e);
    }
    y = custom(linear, GGML_TYPE_F32, n_embd, n_pairs, (struct ggml_tensor *[3]){ y, plan, NULL },
               op_down, e);
    return custom(linear, GGML_TYPE_F32, n_embd, n_rows,
                  (struct ggml_tensor *[3]){ y, choice, plan }, op_combine, e);
}

static struct ggml_tensor *product_id(const quire_linear *linear, struct ggml_tensor *weight,
                                      struct ggml_tensor *bias, struct ggml_tensor *x,
                                      struct ggml_tensor *ids)
{
    struct ggml_tensor *y = ggml_mul_mat_id(linear->ctx, weight, x, ids);

    return bias != NULL ? ggml_add_id(linear->ctx, y, bias, ids) : y;
}

/* The results [n_embd][n_used][n_rows] of the experts `ids` of rows, of which there is one for all
 * of them or one for each. */
static struct ggml_tensor *products_build(const quire_graph_experts *e, const quire_linear *linear,
                                          struct ggml_tensor *rows, struct ggml_tensor *ids)
{
    struct ggml_context *ctx = linear->ctx;
    const quire_expert_weights *w = e->weights;
    const int64_t n_ff = w->down->ne[0], n_used = ids->ne[0], n_rows = ids->ne[1];
    struct ggml_tensor *gate, *up;

    if (w->gate_up != NULL) {
        struct ggml_tensor *y = product_id(linear, w->gate_up, NULL, rows, ids);

        gate = ggml_view_3d(ctx, y, n_ff, n_used, n_rows, y->nb[1], y->nb[2], 0);
        up = ggml_view_3d(ctx, y, n_ff, n_used, n_rows, y->nb[1], y->nb[2],
                          (size_t)n_ff * sizeof(float));
    } else {
        gate = w->gate != NULL ? product_id(linear, w->gate, w->gate_b, rows, ids) : NULL;
        up = product_id(linear, w->up, w->up_b, rows, ids);
    }
    return product_id(linear, w->down, w->down_b, activated(linear, e, gate, up), ids);
}

/* Products by ggml, of a choice by Quire. */
static struct ggml_tensor *mapped_build(quire_graph_experts *e, const quire_linear *linear,
                                        struct ggml_tensor *x, struct ggml_tensor *choice)
{
    struct ggml_context *ctx = linear->ctx;
    const int64_t n_used = e->router->n_used, n_rows = x->ne[1];
    struct ggml_tensor *ids =
        ggml_view_2d(ctx, choice, n_used, n_rows, (size_t)n_used * sizeof(int32_t), 0);
    struct ggml_tensor *rows = ggml_reshape_3d(ctx, x, x->ne[0], 1, n_rows);

    if (e->weighs_input) {
        rows = custom(linear, GGML_TYPE_F32, x->ne[0], n_used * n_rows,
                      (struct ggml_tensor *[3]){ x, choice, NULL }, op_spread, e);
        rows = ggml_reshape_3d(ctx, rows, x->ne[0], n_used, n_rows);
    }
    return custom(linear, GGML_TYPE_F32, x->ne[0], n_rows,
                  (struct ggml_tensor *[3]){ products_build(e, linear, rows, ids), choice, NULL },
                  op_combine, e);
}

/* The network that all rows pass through. */
static struct ggml_tensor *shared_build(quire_graph_experts *e, quire_linear *linear,
                                        struct ggml_tensor *x)
{
    const quire_expert_weights *w = e->weights;
    struct ggml_tensor *gate = NULL, *up, *y, *share;

    if (w->shared_gate != NULL) {
        gate = linear_build(linear, w->shared_gate, x);
        ggml_build_forward_expand(linear->cgraph, gate);
    }
    up = linear_build(linear, w->shared_up, x);
    y = gate != NULL ? ggml_swiglu_split(linear->ctx, gate, up) : activated(linear, e, NULL, up);
    y = linear_build(linear, w->shared_down, y);
    if (w->shared_router == NULL) {
        return y;
    }
    ggml_build_forward_expand(linear->cgraph, y);
    share = ggml_sigmoid(linear->ctx, router_build(e, linear, w->shared_router, x));
    return ggml_mul(linear->ctx, y, share);
}

/* Whether Quire multiplies with the experts: each of their matrices is in panels or floats. */
static bool is_ours(const quire_expert_weights *w)
{
    const struct ggml_tensor *const kinds[] = { w->gate, w->up, w->gate_up, w->down };

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i] != NULL && quire_weights_panels(kinds[i]) == NULL &&
            !quire_float_map_is_ours(kinds[i])) {
            return false;
        }
    }
    return true;
}

static struct ggml_tensor *narrowed(const quire_graph_experts *e, quire_linear *linear,
                                    struct ggml_tensor *x)
{
    return e->weights->narrow != NULL ? linear_build(linear, e->weights->narrow, x) : x;
}

/* The experts' part, by operations of Quire. */
static struct ggml_tensor *host_build(quire_graph_experts *e, quire_linear *linear,
                                      struct ggml_tensor *x, struct ggml_tensor *logits)
{
    const int64_t n_pairs = x->ne[1] * e->router->n_used;
    struct ggml_tensor *choice =
        custom(linear, GGML_TYPE_I32, 2 * n_pairs, 1,
               (struct ggml_tensor *[3]){ logits, NULL, NULL }, op_choice, e);

    if (e->weights->narrow != NULL) {
        ggml_build_forward_expand(linear->cgraph, choice);
    }
    x = narrowed(e, linear, x);
    return is_ours(e->weights) ? planned_build(e, linear, x, choice)
                               : mapped_build(e, linear, x, choice);
}

/* The same by operations of ggml alone. */
static struct ggml_tensor *device_build(const quire_graph_experts *e, quire_linear *linear,
                                        struct ggml_tensor *x, struct ggml_tensor *logits)
{
    struct ggml_context *ctx = linear->ctx;
    const quire_expert_weights *w = e->weights;
    const quire_graph_choice choice =
        quire_graph_choice_build(ctx, e->router, logits, w->choice_b, w->down_scale);
    struct ggml_tensor *rows;

    ggml_build_forward_expand(linear->cgraph, choice.weights);
    x = narrowed(e, linear, x);
    rows = e->weighs_input ? quire_graph_choice_spread(ctx, &choice, x)
                           : ggml_reshape_3d(ctx, x, x->ne[0], 1, x->ne[1]);
    return quire_graph_choice_combine(ctx, &choice, products_build(e, linear, rows, choice.ids),
                                      !e->weighs_input);
}

struct ggml_tensor *quire_graph_experts_build(quire_graph_experts *experts, quire_linear *linear,
                                              struct ggml_tensor *x, struct ggml_tensor *routed)
{
    const quire_expert_weights *w = experts->weights;
    struct ggml_tensor *logits = router_build(experts, linear, w->router, routed);
    struct ggml_tensor *y = linear->is_plain ? device_build(experts, linear, x, logits)
                                             : host_build(experts, linear, x, logits);

    y = w->widen != NULL ? linear_build(linear, w->widen, y) : y;
    if (w->shared_up == NULL) {
        return y;
    }
    ggml_build_forward_expand(linear->cgraph, y);
    y = ggml_add(linear->ctx, y, shared_build(experts, linear, x));
    return experts->is_averaged ? ggml_scale(linear->ctx, y, 0.5f) : y;
}

uint32_t quire_graph_experts_nodes(const quire_expert_weights *weights, uint32_t n_used,
                                   uint32_t n_rows, size_t block_bytes)
{
    const struct ggml_tensor *maps[] = { weights->router,      weights->shared_router,
                                         weights->shared_gate, weights->shared_up,
                                         weights->shared_down, weights->narrow,
                                         weights->widen };
    uint32_t n = NODES_FIXED + quire_graph_choice_nodes(n_used);

    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        n += maps[i] != NULL ? quire_linear_nodes(maps[i], n_rows, block_bytes) : 0;
    }
    return n;
}
