/* head_maps.c - see head_maps.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/head_maps.h"

#include "base/num.h"
#include "matmul/matmul.h"
#include "model/float_maps.h"
#include "model/weights.h"

#include <ggml-backend.h>

/* Parts of threads begin at multiples of so many outputs of a head: whole cache lines of y. */
#define PART_OUTS 16u

/* Rows of a matrix that are widened together, on the stack. */
#define WIDENED_OUTS 4u
#define WIDENED_MAX  QUIRE_HEAD_DIM_MAX /* numbers of a row */

static float *head_at(const struct ggml_tensor *t, uint32_t head)
{
    return (float *)(void *)((char *)t->data + head * t->nb[1]);
}

/* ---- panels ---- */

/* The panels of one head, of those of all heads together. */
static quire_matmul_weight head_panels(const quire_matmul_weight *all, uint32_t n_out,
                                       uint32_t head)
{
    quire_matmul_weight one = *all;

    one.n_out = n_out;
    one.panels += head * quire_matmul_weight_bytes(one.type, one.n_in, n_out);
    return one;
}

static void head_pack(const struct ggml_tensor *dst, const quire_matmul_weight *all, uint32_t head,
                      uint32_t thread, uint32_t n_threads)
{
    const struct ggml_tensor *from = dst->src[0];
    const quire_matmul_x x = { .rows = head_at(from, head),
                               .stride = from->nb[2] / sizeof(float),
                               .n_in = all->n_in,
                               .n_rows = (uint32_t)from->ne[2] };

    quire_matmul_x_pack(all->kernels, &x,
                        (char *)dst->data + head * quire_matmul_x_bytes(x.n_in, x.n_rows), thread,
                        n_threads);
}

static void head_product(const struct ggml_tensor *dst, const quire_matmul_weight *all,
                         uint32_t head, uint32_t thread, uint32_t n_threads)
{
    const quire_matmul_weight one = head_panels(all, (uint32_t)dst->ne[0], head);
    const quire_matmul_y y = { .rows = head_at(dst, head),
                               .stride = dst->nb[2] / sizeof(float),
                               .n_rows = (uint32_t)dst->ne[2] };

    quire_matmul_run(
        &one, (const char *)dst->src[0]->data + head * quire_matmul_x_bytes(one.n_in, y.n_rows), &y,
        thread, n_threads);
}

/* Threads have as many whole heads each, and share the others. */
static void heads_each(const struct ggml_tensor *dst, const quire_matmul_weight *all,
                       uint32_t n_heads, uint32_t thread, uint32_t n_threads,
                       void (*fn)(const struct ggml_tensor *dst, const quire_matmul_weight *all,
                                  uint32_t head, uint32_t thread, uint32_t n_threads))
{
    const uint32_t n_whole = n_heads - n_heads % n_threads;

    for (uint32_t head = thread; head < n_whole; head += n_threads) {
        fn(dst, all, head, 0, 1);
    }
    for (uint32_t head = n_whole; head < n_heads; head++) {
        fn(dst, all, head, thread, n_threads);
    }
}

static void op_pack(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    heads_each(dst, userdata, (uint32_t)dst->src[0]->ne[1], (uint32_t)ith, (uint32_t)nth,
               head_pack);
}

static void op_product(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    heads_each(dst, userdata, (uint32_t)dst->ne[1], (uint32_t)ith, (uint32_t)nth, head_product);
}

static struct ggml_tensor *panels_build(struct ggml_context *ctx, quire_matmul_weight *panels,
                                        int64_t n_out, struct ggml_tensor *x)
{
    const size_t bytes = quire_matmul_x_bytes(panels->n_in, (uint32_t)x->ne[2]);
    struct ggml_tensor *packed = ggml_custom_4d(ctx, GGML_TYPE_I8, (int64_t)bytes * x->ne[1], 1, 1,
                                                1, &x, 1, op_pack, GGML_N_TASKS_MAX, panels);

    return ggml_custom_4d(ctx, GGML_TYPE_F32, n_out, x->ne[1], x->ne[2], 1, &packed, 1, op_product,
                          GGML_N_TASKS_MAX, panels);
}

/* ---- floats, and others that are widened ---- */

/* Outputs [begin, end) of a matrix of any type. */
static void widened_run(quire_floats_product *product, const struct ggml_tensor *w, uint32_t begin,
                        uint32_t end)
{
    const ggml_to_float_t to_float = ggml_get_type_traits(w->type)->to_float;
    const char *rows = product->w;
    float *const y = product->y;
    float widened[WIDENED_OUTS * WIDENED_MAX];

    product->type = QUIRE_FLOATS_F32;
    product->w = widened;
    product->w_stride = product->n_in * sizeof(float);
    for (uint32_t out = begin; out < end; out += WIDENED_OUTS) {
        const uint32_t n = quire_min_u32(WIDENED_OUTS, end - out);

        for (uint32_t i = 0; i < n; i++) {
            to_float(rows + (out + i) * w->nb[1], widened + (size_t)i * product->n_in, w->ne[0]);
        }
        product->y = y + out;
        quire_floats_run(product, 0, n);
    }
}

/* Outputs [begin, end) of a head. product: that of the first one. */
static void head_run(const struct ggml_tensor *dst, quire_floats_product product, uint32_t head,
                     uint32_t begin, uint32_t end)
{
    const struct ggml_tensor *x = dst->src[0], *w = dst->src[1];

    product.w = (const char *)w->data + head * w->nb[2];
    product.x = head_at(x, head);
    product.x_stride = x->nb[2] / sizeof(float);
    product.n_rows = (uint32_t)x->ne[2];
    product.y = head_at(dst, head);
    product.y_stride = dst->nb[2] / sizeof(float);
    if (ggml_is_quantized(w->type)) {
        widened_run(&product, w, begin, end);
    } else {
        quire_floats_run(&product, begin, end);
    }
}

/* Threads share the outputs of all heads together. */
static void op_floats(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_floats_product product = quire_float_map_product(dst->src[1], dst->src[0]);
    const uint32_t n_out = (uint32_t)dst->ne[0];
    const uint64_t n_parts = (n_out + PART_OUTS - 1) / PART_OUTS; /* of a head */
    const uint64_t all = n_parts * (uint64_t)dst->ne[1];
    const uint64_t end = all * ((uint64_t)ith + 1) / (uint64_t)nth;

    (void)userdata;
    for (uint64_t at = all * (uint64_t)ith / (uint64_t)nth; at < end;) {
        const uint64_t head = at / n_parts, first = head * n_parts;
        const uint64_t stop = quire_min_u64(end, first + n_parts);

        head_run(dst, product, (uint32_t)head, (uint32_t)(at - first) * PART_OUTS,
                 quire_min_u32(n_out, (uint32_t)(stop - first) * PART_OUTS));
        at = stop;
    }
}

/* Whether the rows of a matrix are multiplied in f32. */
static bool is_ours(const struct ggml_tensor *w)
{
    const struct ggml_tensor *whole = w->view_src != NULL ? w->view_src : w;

    return quire_matmul_kernels_find(NULL) != NULL && quire_floats_kernels_find(NULL) != NULL &&
           whole->buffer != NULL && ggml_backend_buffer_is_host(whole->buffer) &&
           (quire_float_map_takes(w) || w->ne[0] <= WIDENED_MAX);
}

/* ---- building ---- */

struct ggml_tensor *quire_head_maps_build(struct ggml_context *ctx, struct ggml_tensor *weight,
                                          struct ggml_tensor *x)
{
    quire_matmul_weight *panels = quire_weights_panels(weight);

    if (panels != NULL) {
        return panels_build(ctx, panels, weight->ne[1], x);
    }
    if (is_ours(weight)) {
        return ggml_custom_4d(ctx, GGML_TYPE_F32, weight->ne[1], x->ne[1], x->ne[2], 1,
                              (struct ggml_tensor *[]){ x, weight }, 2, op_floats, GGML_N_TASKS_MAX,
                              NULL);
    }
    x = ggml_mul_mat(ctx, weight, ggml_permute(ctx, x, 0, 2, 1, 3));
    return ggml_permute(ctx, x, 0, 2, 1, 3);
}
