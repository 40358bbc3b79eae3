/* test_linear.c - touched and cut maps against ggml's plain product, and which maps are touched.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/backend.h"
#include "model/linear.h"
#include "seed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>

#define N_IN       256
#define N_OUT      512
#define N_MAPS     3
#define NODES      64u
#define ROWS_MAX   65
#define ONE_BLOCK  ((size_t)1 << 30)
#define BLOCK_ROWS 193 /* rounded up to 256 */

/* Every type that is touched on some machine, one that never is (K-quant). */
static const enum ggml_type types[] = { GGML_TYPE_F32,  GGML_TYPE_F16,   GGML_TYPE_BF16,
                                        GGML_TYPE_Q8_0, GGML_TYPE_Q5_0,  GGML_TYPE_Q4_0,
                                        GGML_TYPE_Q4_K, GGML_TYPE_IQ4_NL };

typedef struct fixture {
    quire_backend backend;
    struct ggml_context *ctx; /* of the weights */
    struct ggml_tensor *up, *down;
    ggml_backend_buffer_t buffer;
    float x[ROWS_MAX * N_IN];
} fixture;

/* The results of one graph: a single map, and the last of three maps in a row that reuse each
 * other's memory. */
typedef struct result {
    float first[ROWS_MAX * N_OUT];
    float last[ROWS_MAX * N_OUT];
} result;

static void random_fill(quire_rng *rng, float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)quire_rng_normal(rng);
    }
}

static void weight_fill(quire_rng *rng, struct ggml_tensor *weight)
{
    static float values[N_IN * N_OUT], bytes[N_IN * N_OUT];

    random_fill(rng, values, N_IN * N_OUT);
    (void)ggml_quantize_chunk(weight->type, values, bytes, 0, weight->ne[1], weight->ne[0], NULL);
    ggml_backend_tensor_set(weight, bytes, 0, ggml_nbytes(weight));
}

static void setup_in(fixture *f, ggml_backend_buffer_type_t buft, enum ggml_type type,
                     uint32_t n_threads, quire_rng *rng)
{
    const struct ggml_init_params params = { .mem_size = 2 * ggml_tensor_overhead(),
                                             .no_alloc = true };

    assert_int_equal(quire_backend_open(&f->backend, n_threads), QUIRE_OK);
    f->ctx = ggml_init(params);
    assert_non_null(f->ctx);
    f->up = ggml_new_tensor_2d(f->ctx, type, N_IN, N_OUT);
    f->down = ggml_new_tensor_2d(f->ctx, type, N_OUT, N_IN);
    f->buffer = ggml_backend_alloc_ctx_tensors_from_buft(f->ctx, buft);
    assert_non_null(f->buffer);
    weight_fill(rng, f->up);
    weight_fill(rng, f->down);
    random_fill(rng, f->x, ROWS_MAX * N_IN);
}

static void setup(fixture *f, enum ggml_type type, uint32_t n_threads, quire_rng *rng)
{
    assert_int_equal(quire_backend_init(NULL), QUIRE_OK);
    setup_in(f, ggml_backend_dev_buffer_type(quire_backend_cpu()), type, n_threads, rng);
}

static void teardown(fixture *f)
{
    ggml_backend_buffer_free(f->buffer);
    ggml_free(f->ctx);
    quire_backend_close(&f->backend);
}

/* block_bytes = 0: ggml's plain products. */
static void compute(fixture *f, int64_t n_rows, size_t block_bytes, result *out)
{
    const struct ggml_init_params params = { .mem_size = NODES * ggml_tensor_overhead() +
                                                         ggml_graph_overhead_custom(NODES, false),
                                             .no_alloc = true };
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_cgraph *cgraph = ggml_new_graph_custom(ctx, NODES, false);
    quire_linear linear = { .ctx = ctx, .cgraph = cgraph, .block_bytes = block_bytes };
    struct ggml_tensor *weights[N_MAPS] = { f->up, f->down, f->up };
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, n_rows);
    struct ggml_tensor *y[N_MAPS];
    ggml_gallocr_t allocr = ggml_gallocr_new(ggml_backend_dev_buffer_type(quire_backend_cpu()));

    ggml_set_input(x);
    for (size_t i = 0; i < N_MAPS; i++) {
        struct ggml_tensor *in = i > 0 ? y[i - 1] : x;

        y[i] = block_bytes > 0 ? quire_linear_build(&linear, weights[i], in)
                               : ggml_mul_mat(ctx, weights[i], in);
    }
    ggml_set_output(y[0]);
    ggml_set_output(y[N_MAPS - 1]);
    ggml_build_forward_expand(cgraph, y[N_MAPS - 1]);
    assert_true(ggml_gallocr_alloc_graph(allocr, cgraph));
    memcpy(x->data, f->x, ggml_nbytes(x));
    assert_int_equal(quire_backend_compute(&f->backend, cgraph), GGML_STATUS_SUCCESS);
    memcpy(out->first, y[0]->data, ggml_nbytes(y[0]));
    memcpy(out->last, y[N_MAPS - 1]->data, ggml_nbytes(y[N_MAPS - 1]));
    ggml_gallocr_free(allocr);
    ggml_free(ctx);
}

/* Within `tolerance` of the largest element. */
static void check(const char *what, const float *got, const float *want, size_t n, float tolerance)
{
    float largest = 0.0f;

    for (size_t i = 0; i < n; i++) {
        largest = fmaxf(largest, fabsf(want[i]));
    }
    assert_true(largest > 1.0f);
    for (size_t i = 0; i < n; i++) {
        /* Not (a > b), which no NaN is. */
        if (!(fabsf(got[i] - want[i]) <= tolerance * largest)) {
            fail_msg("%s: element %zu is %g, not %g", what, i, (double)got[i], (double)want[i]);
        }
    }
}

/* Each row count is computed by ggml, in one block and in several. A single map must agree to the
 * rounding of f32; through three maps, inputs near a rounding boundary may be rounded to the other
 * side. */
static void test_equals_plain_product(void **state)
{
    static fixture f;
    static result want, got;
    quire_rng rng = test_rng(0x11ea);

    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        setup(&f, types[t], t % 2 == 0 ? 3 : 1, &rng);
        /* 1 to 17, and about the largest number that is touched. */
        for (int64_t n_rows = 1; n_rows <= ROWS_MAX; n_rows += n_rows == 17 ? 46 : 1) {
            const size_t sizes[] = { ONE_BLOCK, ggml_row_size(types[t], N_IN) * BLOCK_ROWS };
            const size_t n = (size_t)n_rows * N_OUT;

            compute(&f, n_rows, 0, &want);
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                char what[64];

                (void)snprintf(what, sizeof what, "%s, %d rows, %s", ggml_type_name(types[t]),
                               (int)n_rows, i == 0 ? "one block" : "several blocks");
                compute(&f, n_rows, sizes[i], &got);
                check(what, got.first, want.first, n, 1e-5f);
                check(what, got.last, want.last, n, 2e-2f);
            }
        }
        teardown(&f);
    }
}

static void test_which_maps_are_touched(void **state)
{
    static fixture f;
    quire_rng rng = test_rng(0x11eb);
    struct ggml_tensor wide;

    (void)state;
    setup(&f, GGML_TYPE_Q8_0, 1, &rng);
    assert_int_equal(quire_linear_blocks(f.up, 1, ONE_BLOCK), 0);
    assert_int_equal(quire_linear_blocks(f.up, 2, ONE_BLOCK), 1);
    assert_int_equal(quire_linear_blocks(f.up, QUIRE_LINEAR_ROWS_MAX, ONE_BLOCK), 1);
    assert_int_equal(quire_linear_blocks(f.up, QUIRE_LINEAR_ROWS_MAX + 1, ONE_BLOCK), 0);
    assert_int_equal(quire_linear_blocks(f.up, QUIRE_LINEAR_CUT_ROWS_MAX, 1), N_OUT / 64);
    assert_int_equal(quire_linear_blocks(f.up, QUIRE_LINEAR_CUT_ROWS_MAX + 1, 1), 0);
    /* Blocks are of 64 rows at least, however few a cache holds. */
    assert_int_equal(quire_linear_blocks(f.up, 2, f.up->nb[1] * 256), 2);
    assert_int_equal(quire_linear_blocks(f.up, 2, f.up->nb[1] * 255), 3);
    assert_int_equal(quire_linear_blocks(f.up, 2, 1), N_OUT / 64);
    assert_int_equal(quire_linear_nodes(f.up, 1, ONE_BLOCK), 1);
    assert_true(quire_linear_nodes(f.up, 2, 1) > 3 * N_OUT / 64);
    assert_true(quire_linear_block_bytes(2) >= 2 * quire_linear_block_bytes(1));
    assert_true(quire_linear_block_bytes(1) >= 4096);

    wide = *f.up;
    wide.type = GGML_TYPE_Q4_K;
    assert_int_equal(quire_linear_blocks(&wide, 2, ONE_BLOCK), 0);
    wide.type = GGML_TYPE_F16;
    wide.nb[1] = 4095;
    assert_int_equal(quire_linear_blocks(&wide, 2, ONE_BLOCK), 1);
    wide.nb[1] = 4096;
    assert_int_equal(quire_linear_blocks(&wide, 2, ONE_BLOCK), 0);
    teardown(&f);
}

/* Repacked weights have an order of their own: the kernels for it run through memory. */
static void test_repacked_is_not_touched(void **state)
{
    ggml_backend_buffer_type_t *extra;
    size_t n_seen = 0;

    (void)state;
    assert_int_equal(quire_backend_init(NULL), QUIRE_OK);
    extra = quire_backend_extra_bufts();
    for (; extra != NULL && *extra != NULL; extra++, n_seen++) {
        struct ggml_tensor weight = { .type = GGML_TYPE_Q4_0, .ne = { N_IN, N_OUT, 1, 1 } };

        weight.buffer = ggml_backend_buft_alloc_buffer(*extra, 0);
        assert_non_null(weight.buffer);
        assert_int_equal(quire_linear_blocks(&weight, 8, ONE_BLOCK), 0);
        ggml_backend_buffer_free(weight.buffer);
    }
    if (n_seen == 0) {
        (void)printf("SKIP: this ggml repacks nothing here\n");
        skip();
    }
}

/* The first map of rows that lie `gap` floats apart. */
static void compute_gaps(fixture *f, int64_t n_rows, int64_t gap, float *out)
{
    const struct ggml_init_params params = { .mem_size = NODES * ggml_tensor_overhead() +
                                                         ggml_graph_overhead_custom(NODES, false),
                                             .no_alloc = true };
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_cgraph *cgraph = ggml_new_graph_custom(ctx, NODES, false);
    quire_linear linear = { .ctx = ctx, .cgraph = cgraph, .block_bytes = ONE_BLOCK };
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN + gap, n_rows);
    struct ggml_tensor *y =
        quire_linear_build(&linear, f->up, ggml_view_2d(ctx, x, N_IN, n_rows, x->nb[1], 0));
    ggml_gallocr_t allocr = ggml_gallocr_new(ggml_backend_dev_buffer_type(quire_backend_cpu()));

    ggml_set_input(x);
    ggml_set_output(y);
    ggml_build_forward_expand(cgraph, y);
    assert_true((uint32_t)ggml_graph_n_nodes(cgraph) <=
                1 + quire_linear_nodes(f->up, (uint32_t)n_rows, ONE_BLOCK)); /* and the view */
    assert_true(ggml_gallocr_alloc_graph(allocr, cgraph));
    memset(x->data, 0x7f, ggml_nbytes(x)); /* large numbers in the gaps */
    for (int64_t row = 0; row < n_rows; row++) {
        memcpy((char *)x->data + (size_t)row * x->nb[1], f->x + row * N_IN, N_IN * sizeof(float));
    }
    assert_int_equal(quire_backend_compute(&f->backend, cgraph), GGML_STATUS_SUCCESS);
    memcpy(out, y->data, ggml_nbytes(y));
    ggml_gallocr_free(allocr);
    ggml_free(ctx);
}

/* Parts of longer rows, as the per-layer inputs of Gemma 3n and 4 are, in every layout of weights
 * that this CPU's ggml has: with AMX its products took such rows for neighbours. */
static void test_rows_with_gaps(void **state)
{
    static fixture f;
    static float want[ROWS_MAX * N_OUT], got[ROWS_MAX * N_OUT];
    static const int64_t rows[] = { 1, 2, 5, 33 };
    ggml_backend_buffer_type_t *extra;
    quire_rng rng = test_rng(0x11ec);

    (void)state;
    assert_int_equal(quire_backend_init(NULL), QUIRE_OK);
    extra = quire_backend_extra_bufts();
    for (bool is_plain = true; is_plain || (extra != NULL && *extra != NULL); is_plain = false) {
        setup_in(&f, is_plain ? ggml_backend_dev_buffer_type(quire_backend_cpu()) : *extra++,
                 GGML_TYPE_Q4_0, 1, &rng);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            const size_t n = (size_t)rows[i] * N_OUT;

            compute_gaps(&f, rows[i], 0, want);
            compute_gaps(&f, rows[i], 96, got);
            check("rows with gaps", got, want, n, 0.0f);
        }
        teardown(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_plain_product),
        cmocka_unit_test(test_which_maps_are_touched),
        cmocka_unit_test(test_repacked_is_not_touched),
        cmocka_unit_test(test_rows_with_gaps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
