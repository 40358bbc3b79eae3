/* linear.c - see linear.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/linear.h"

#include "model/weights.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <ggml-backend.h>

#define LINE_BYTES       64u
#define PAGE_BYTES       4096u
#define L2_BYTES_DEFAULT ((size_t)512 << 10)
/* ggml's float kernels take a slower path unless the number of rows is a multiple of 16. */
#define BLOCK_ROWS_ALIGN  64
#define NODES_PER_BLOCK   3u /* view, product, touch or collect */
#define NODES_OF_PANELS   2u /* pack, product */
#define NODES_OF_REPACKED 2u /* rows without gaps, product */
#define COLLECT_PART_SRC  1
#define COLLECT_TOUCH_SRC 2

/* ---- the two ops ---- */

/* Read this thread's part of a matrix: the part that ggml's static schedule also gives to this
 * thread. Each cache line is loaded, because with software prefetches (of any level) 2 rows took
 * 1.5 times as long. */
static void touch(const struct ggml_tensor *weight, int ith, int nth)
{
    const volatile uint8_t *bytes = weight->data;
    const size_t n_bytes = ggml_nbytes(weight);
    const size_t end = n_bytes * ((size_t)ith + 1) / (size_t)nth;

    for (size_t i = n_bytes * (size_t)ith / (size_t)nth; i < end; i += LINE_BYTES) {
        (void)bytes[i];
    }
}

static void op_touch(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    (void)userdata;
    touch(dst->src[0], ith, nth);
}

/* The part's place follows from the block that comes next, or from the end. */
static void op_collect(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const struct ggml_tensor *part = dst->src[COLLECT_PART_SRC];
    const struct ggml_tensor *next = dst->src[COLLECT_TOUCH_SRC];
    const int64_t part_end = next != NULL ? (int64_t)(next->view_offs / next->nb[1]) : dst->ne[0];
    const int64_t begin = part->ne[0] * ith / nth;
    const int64_t end = part->ne[0] * (ith + 1) / nth;
    char *to = (char *)dst->data + (size_t)(part_end - part->ne[0] + begin) * sizeof(float);
    const char *from = (const char *)part->data + (size_t)begin * sizeof(float);

    (void)userdata;
    for (int64_t i = 0; i < part->ne[1]; i++) {
        memcpy(to + (size_t)i * dst->nb[1], from + (size_t)i * part->nb[1],
               (size_t)(end - begin) * sizeof(float));
    }
    if (next != NULL) {
        touch(next, ith, nth);
    }
}

/* ---- the two ops of panels ---- */

static void op_pack(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_matmul_weight *weight = userdata;
    const struct ggml_tensor *src = dst->src[0];
    const quire_matmul_x x = { .rows = src->data,
                               .stride = src->nb[1] / sizeof(float),
                               .n_in = weight->n_in,
                               .n_rows = (uint32_t)src->ne[1] };

    quire_matmul_x_pack(weight->kernels, &x, dst->data, (uint32_t)ith, (uint32_t)nth);
}

static void op_product(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_matmul_y y = { .rows = dst->data,
                               .stride = dst->nb[1] / sizeof(float),
                               .n_rows = (uint32_t)dst->ne[1] };

    quire_matmul_run(userdata, dst->src[0]->data, &y, (uint32_t)ith, (uint32_t)nth);
}

/* ---- the choice ---- */

/* Measured on Zen 5 with 2 threads, ms for 30 layers of SmolLM2-135M's shape, plain / touched:
 *
 *   rows       1     2           4           8           16          64
 *   Q8_0     3.6     9.7 / 4.0  14.0 / 5.5  16.6 / 8.4  20.3 / 14.6  59.5 / 50.8
 *   F16      6.4     8.9 / 7.4  10.4 / 8.0  15.0 / 10.6 17.4 / 15.0  47.1 / 43.5
 *
 * On larger matrices, cut into blocks, steps of 2, 8 and 16 rows gain 40, 16 and 9 % if a row of
 * weights has 2,048 elements, and 27, 5 and 0 % if it has 4,096. Steps of more rows gain nothing.
 * Kernels of float weights read whole lines of each row, so rows longer than a page are prefetched
 * by the CPU; touching them first cost a tenth. Steps of one row, K-quants and repacked weights are
 * read in order and gain nothing. */
static bool is_touched(const struct ggml_tensor *weight, uint32_t n_rows)
{
    if (n_rows < 2 || n_rows > QUIRE_LINEAR_ROWS_MAX || weight->buffer == NULL ||
        !ggml_backend_buffer_is_host(weight->buffer)) {
        return false;
    }
    switch (weight->type) {
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_IQ4_NL:
        return true;
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
        return weight->nb[1] < PAGE_BYTES;
    default:
        return false;
    }
}

/* Output rows of every block but the last. */
static int64_t block_rows(const struct ggml_tensor *weight, size_t block_bytes)
{
    const int64_t n_blocks = (int64_t)((ggml_nbytes(weight) + block_bytes - 1) / block_bytes);
    const int64_t rows = (weight->ne[1] + n_blocks - 1) / n_blocks;

    return (rows + BLOCK_ROWS_ALIGN - 1) / BLOCK_ROWS_ALIGN * BLOCK_ROWS_ALIGN;
}

size_t quire_linear_block_bytes(uint32_t n_threads)
{
    long l2_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);

    /* Half of the L2 caches: x, the result and the next layer's rows need room as well. */
    return n_threads * (l2_bytes > 0 ? (size_t)l2_bytes : L2_BYTES_DEFAULT) / 2;
}

uint32_t quire_linear_blocks(const struct ggml_tensor *weight, uint32_t n_rows, size_t block_bytes)
{
    int64_t rows;
    uint32_t n_blocks;

    if (!is_touched(weight, n_rows)) {
        return 0;
    }
    rows = block_rows(weight, block_bytes);
    n_blocks = (uint32_t)((weight->ne[1] + rows - 1) / rows);
    return n_blocks == 1 || n_rows <= QUIRE_LINEAR_CUT_ROWS_MAX ? n_blocks : 0;
}

/* Weights in a buffer of ggml's own layout. */
static bool is_repacked(const struct ggml_tensor *weight)
{
    return weight->buffer != NULL && !ggml_backend_buffer_is_host(weight->buffer);
}

uint32_t quire_linear_nodes(const struct ggml_tensor *weight, uint32_t n_rows, size_t block_bytes)
{
    if (quire_weights_panels(weight) != NULL) {
        return NODES_OF_PANELS;
    }
    if (is_repacked(weight)) {
        return NODES_OF_REPACKED;
    }
    return 1 + NODES_PER_BLOCK * quire_linear_blocks(weight, n_rows, block_bytes);
}

/* ---- building ---- */

static struct ggml_tensor *block_view(const quire_linear *linear, struct ggml_tensor *weight,
                                      int64_t first, int64_t n)
{
    const int64_t rows = weight->ne[1] - first < n ? weight->ne[1] - first : n;

    return ggml_view_2d(linear->ctx, weight, weight->ne[0], rows, weight->nb[1],
                        (size_t)first * weight->nb[1]);
}

/* The result is the tensor of the first op. Each collect names this tensor as its first argument,
 * so ggml keeps the order and knows when the memory is free again. */
static struct ggml_tensor *build_blocks(const quire_linear *linear, struct ggml_tensor *weight,
                                        struct ggml_tensor *x)
{
    const int64_t n = block_rows(weight, linear->block_bytes);
    struct ggml_tensor *block = block_view(linear, weight, 0, n);
    struct ggml_tensor *y = ggml_custom_4d(linear->ctx, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1,
                                           1, &block, 1, op_touch, GGML_N_TASKS_MAX, NULL);

    for (int64_t first = n; block != NULL; first += n) {
        struct ggml_tensor *args[] = { NULL, NULL };

        ggml_build_forward_expand(linear->cgraph, y);
        args[0] = ggml_mul_mat(linear->ctx, block, x);
        block = first < weight->ne[1] ? block_view(linear, weight, first, n) : NULL;
        args[1] = block;
        y = ggml_custom_inplace(linear->ctx, y, args, block != NULL ? 2 : 1, op_collect,
                                GGML_N_TASKS_MAX, NULL);
    }
    return y;
}

struct ggml_tensor *quire_linear_build_panels(quire_linear *linear, quire_matmul_weight *panels,
                                              struct ggml_tensor *x)
{
    const size_t bytes = quire_matmul_x_bytes(panels->n_in, (uint32_t)x->ne[1]);

    if (linear->x != x) {
        linear->x = x;
        linear->packed = ggml_custom_4d(linear->ctx, GGML_TYPE_I8, (int64_t)bytes, 1, 1, 1, &x, 1,
                                        op_pack, GGML_N_TASKS_MAX, panels);
    }
    return ggml_custom_4d(linear->ctx, GGML_TYPE_F32, panels->n_out, x->ne[1], 1, 1,
                          &linear->packed, 1, op_product, GGML_N_TASKS_MAX, panels);
}

struct ggml_tensor *quire_linear_build(quire_linear *linear, struct ggml_tensor *weight,
                                       struct ggml_tensor *x)
{
    quire_matmul_weight *panels = quire_weights_panels(weight);
    uint32_t n_blocks;

    if (panels != NULL) { /* the host's, in a layer on a device as well */
        return quire_linear_build_panels(linear, panels, x);
    }
    if (linear->is_plain) {
        return ggml_mul_mat(linear->ctx, weight, x);
    }
    n_blocks = quire_linear_blocks(weight, (uint32_t)x->ne[1], linear->block_bytes);
    if (n_blocks > 1) {
        return build_blocks(linear, weight, x);
    }
    if (n_blocks == 1) {
        ggml_build_forward_expand(linear->cgraph,
                                  ggml_custom_4d(linear->ctx, GGML_TYPE_F32, 1, 1, 1, 1, &weight, 1,
                                                 op_touch, GGML_N_TASKS_MAX, NULL));
    }
    /* ggml's products with AMX take rows of x as if no gap were between them. */
    if (is_repacked(weight) && !ggml_is_contiguous(x)) {
        x = ggml_cont(linear->ctx, x);
    }
    return ggml_mul_mat(linear->ctx, weight, x);
}
