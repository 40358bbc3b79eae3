/* matmul_ggml.c - see matmul_ggml.h.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul_ggml.h"

#include "model/backend.h"

#include <stdlib.h>

#include <ggml-backend.h>

#define CONTEXT_BYTES ((size_t)4 << 20) /* room for some thousand tensors */

struct matmul_ggml {
    matmul_ggml_opts opts;
    quire_backend backend;
    bool is_open;
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor **weights; /* [n_sets][n_matrices] */
    bool is_repacked;
    /* The graph of the last run, kept while runs are alike. */
    struct ggml_context *graph_ctx;
    struct ggml_cgraph *graph;
    matmul_ggml_case graph_case;
};

static bool buft_takes(ggml_backend_buffer_type_t buft, struct ggml_context *ctx,
                       const struct ggml_tensor *weight)
{
    struct ggml_tensor w = *weight;
    bool takes = false;

    w.buffer = ggml_backend_buft_alloc_buffer(buft, 0);
    if (w.buffer != NULL) {
        struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, w.ne[0], 512);

        takes = ggml_backend_dev_supports_op(quire_backend_cpu(), ggml_mul_mat(ctx, &w, x));
        ggml_backend_buffer_free(w.buffer);
    }
    return takes;
}

static ggml_backend_buffer_type_t buft_choose(matmul_ggml *m)
{
    ggml_backend_buffer_type_t *extra = quire_backend_extra_bufts();
    struct ggml_context *ctx =
        ggml_init((struct ggml_init_params){ .mem_size = CONTEXT_BYTES, .no_alloc = true });
    ggml_backend_buffer_type_t chosen = ggml_backend_dev_buffer_type(quire_backend_cpu());

    for (; ctx != NULL && extra != NULL && *extra != NULL && !m->is_repacked; extra++) {
        m->is_repacked = buft_takes(*extra, ctx, m->weights[0]);
        chosen = m->is_repacked ? *extra : chosen;
    }
    ggml_free(ctx);
    return chosen;
}

static bool weights_fill(matmul_ggml *m, const void *weights)
{
    const uint32_t n = m->opts.n_sets * m->opts.n_matrices;

    m->ctx = ggml_init((struct ggml_init_params){ .mem_size = CONTEXT_BYTES, .no_alloc = true });
    m->weights = calloc(n, sizeof *m->weights);
    if (m->ctx == NULL || m->weights == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        m->weights[i] = ggml_new_tensor_2d(m->ctx, m->opts.type, m->opts.n_in, m->opts.n_out);
    }
    m->buffer = ggml_backend_alloc_ctx_tensors_from_buft(m->ctx, buft_choose(m));
    for (uint32_t i = 0; i < n && m->buffer != NULL; i++) {
        ggml_backend_tensor_set(m->weights[i], weights, 0, ggml_nbytes(m->weights[i]));
    }
    return m->buffer != NULL;
}

matmul_ggml *matmul_ggml_new(const matmul_ggml_opts *opts, const void *weights)
{
    matmul_ggml *m = calloc(1, sizeof *m);

    if (m == NULL) {
        return NULL;
    }
    m->opts = *opts;
    if (quire_backend_init(NULL) == QUIRE_OK) {
        m->is_open = quire_backend_open(&m->backend, opts->n_threads) == QUIRE_OK;
    }
    if (!m->is_open || !weights_fill(m, weights)) {
        matmul_ggml_free(m);
        return NULL;
    }
    return m;
}

void matmul_ggml_free(matmul_ggml *m)
{
    if (m == NULL) {
        return;
    }
    ggml_free(m->graph_ctx);
    ggml_backend_buffer_free(m->buffer);
    ggml_free(m->ctx);
    if (m->is_open) {
        quire_backend_close(&m->backend);
    }
    free(m->weights);
    free(m);
}

bool matmul_ggml_is_repacked(const matmul_ggml *m)
{
    return m->is_repacked;
}

/* Memory for x and y is the caller's. */
static void graph_build(matmul_ggml *m, const matmul_ggml_case *c)
{
    const struct ggml_init_params params = { .mem_size = CONTEXT_BYTES, .no_alloc = true };

    ggml_free(m->graph_ctx);
    m->graph_ctx = ggml_init(params);
    m->graph = ggml_new_graph(m->graph_ctx);
    for (uint32_t i = 0; i < c->n; i++) {
        struct ggml_tensor *weight = m->weights[c->set * m->opts.n_matrices + i];
        struct ggml_tensor *x =
            ggml_new_tensor_2d(m->graph_ctx, GGML_TYPE_F32, m->opts.n_in, c->n_rows);
        struct ggml_tensor *y = ggml_mul_mat(m->graph_ctx, weight, x);

        x->data = (void *)(uintptr_t)c->x;
        y->data = c->y;
        ggml_build_forward_expand(m->graph, y);
    }
    m->graph_case = *c;
}

void matmul_ggml_run(matmul_ggml *m, const matmul_ggml_case *c)
{
    const matmul_ggml_case *was = &m->graph_case;

    if (m->graph_ctx == NULL || was->n_rows != c->n_rows || was->set != c->set || was->n != c->n) {
        graph_build(m, c);
    }
    (void)quire_backend_compute(&m->backend, m->graph);
}
