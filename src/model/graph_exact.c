/* graph_exact.c - products of float matrices whose bits do not depend on a step's other rows.
 *
 * ggml's products of f32, f16 and bf16 add in an order that depends on the number of rows. Quire's
 * products of quantised matrices do not (docs/matmul.md). A file may have float matrices between
 * quantised ones. This file multiplies the float matrices in f32, in the order of router.h, so the
 * whole model computes a row with the same bits in every batch.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>

/* The longest row of a matrix that is widened on the stack. */
#define WIDENED_MAX 8192

/* Threads share the outputs. */
static void op_exact(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const struct ggml_tensor *x = dst->src[0], *w = dst->src[1];
    const uint32_t n_out = (uint32_t)w->ne[1], n_rows = (uint32_t)x->ne[1];
    const uint32_t begin = (uint32_t)((uint64_t)n_out * (uint32_t)ith / (uint32_t)nth);
    const uint32_t end = (uint32_t)((uint64_t)n_out * ((uint32_t)ith + 1) / (uint32_t)nth);
    float widened[WIDENED_MAX];

    (void)userdata;
    for (uint32_t out = begin; out < end; out++) {
        const char *row = (const char *)w->data + (size_t)out * w->nb[1];
        quire_router_product product = { .x = x->data,
                                         .x_stride = x->nb[1] / sizeof(float),
                                         .w = widened,
                                         .n_in = (uint32_t)w->ne[0],
                                         .n_out = n_out,
                                         .y = (float *)dst->data + out };

        if (w->type == GGML_TYPE_F32) {
            product.w = (const float *)row;
        } else if (w->type == GGML_TYPE_F16) {
            ggml_cpu_fp16_to_fp32((const ggml_fp16_t *)row, widened, w->ne[0]);
        } else {
            ggml_cpu_bf16_to_fp32((const ggml_bf16_t *)row, widened, w->ne[0]);
        }
        quire_router_multiply(&product, &(quire_router_part){ 0, n_rows, 0, 1 });
    }
}

struct ggml_tensor *quire_graph_exact(const quire_graph_build *b, struct ggml_tensor *weight,
                                      struct ggml_tensor *x)
{
    const bool is_float = weight->type == GGML_TYPE_F32 || weight->type == GGML_TYPE_F16 ||
                          weight->type == GGML_TYPE_BF16;

    if (!is_float || weight->ne[0] > WIDENED_MAX || weight->buffer == NULL ||
        !ggml_backend_buffer_is_host(weight->buffer)) {
        return quire_graph_linear(b, weight, NULL, x);
    }
    return ggml_custom_4d(b->graph->ctx, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1,
                          (struct ggml_tensor *[]){ x, weight }, 2, op_exact, GGML_N_TASKS_MAX,
                          NULL);
}
