/* float_maps.c - see float_maps.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/float_maps.h"

#include <ggml-backend.h>

bool quire_float_map_takes(const struct ggml_tensor *w)
{
    return (w->type == GGML_TYPE_F32 || w->type == GGML_TYPE_F16 || w->type == GGML_TYPE_BF16) &&
           quire_floats_kernels_find(NULL) != NULL;
}

bool quire_float_map_is_ours(const struct ggml_tensor *w)
{
    const struct ggml_tensor *whole = w->view_src != NULL ? w->view_src : w;

    return whole->buffer != NULL && ggml_backend_buffer_is_host(whole->buffer) &&
           quire_float_map_takes(w);
}

quire_floats_product quire_float_map_product(const struct ggml_tensor *weight,
                                             const struct ggml_tensor *x)
{
    return (quire_floats_product){ .kernels = quire_floats_kernels_find(NULL),
                                   .type = weight->type == GGML_TYPE_F32   ? QUIRE_FLOATS_F32
                                           : weight->type == GGML_TYPE_F16 ? QUIRE_FLOATS_F16
                                                                           : QUIRE_FLOATS_BF16,
                                   .n_in = (uint32_t)weight->ne[0],
                                   .w = weight->data,
                                   .w_stride = weight->nb[1],
                                   .x = x->data,
                                   .x_stride = x->nb[1] / sizeof(float),
                                   .n_rows = (uint32_t)x->ne[1] };
}

static void op_map(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    quire_floats_product product = quire_float_map_product(dst->src[1], dst->src[0]);

    (void)userdata;
    product.y = dst->data;
    product.y_stride = dst->nb[1] / sizeof(float);
    quire_floats_run_part(&product, (uint32_t)dst->ne[0], (uint32_t)ith, (uint32_t)nth);
}

struct ggml_tensor *quire_float_map_build(struct ggml_context *ctx, struct ggml_tensor *weight,
                                          struct ggml_tensor *x)
{
    return ggml_custom_4d(ctx, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1,
                          (struct ggml_tensor *[]){ x, weight }, 2, op_map, GGML_N_TASKS_MAX, NULL);
}
