/* test_graph_choice.c - the choice of experts by ggml's operations: against the router's own, for
 * every kind of router, and what is made of the choice. On the CPU, and on the card of vulkan0
 * where the build has ggml's backend for it.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "layers_card.h"
#include "model/backend.h"
#include "model/graph_choice.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_MAX    64u
#define ROWS_MAX 5u
#define N_ROW    6u /* numbers of a row that is spread */
#define ROUTERS  300u
#define NEAR     1e-5f /* scores so near to each other may change places */

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static quire_rng rng;
static ggml_backend_dev_t card; /* NULL: there is none */
static ggml_backend_t backend;
/* The tensors of all graphs, one graph after the other. Lavapipe (Mesa 22.3) also touches buffers
 * that a descriptor set names and no shader reads, and ggml uses its sets again. So no buffer may
 * be freed while the device computes (docs/gpu.md). */
static ggml_backend_buffer_t buffer;
#define BUFFER_BYTES (4u << 20)

/* The tensors of a case, and its numbers. */
typedef struct choosing {
    quire_router router;
    uint32_t n_rows;
    bool has_bias, has_factors;
    float logits[ROWS_MAX * N_MAX], bias[N_MAX], factors[N_MAX], x[ROWS_MAX * N_ROW];
    /* What ggml made of them. */
    int32_t ids[ROWS_MAX * N_MAX];
    float weights[ROWS_MAX * N_MAX];
    float spread[ROWS_MAX * N_MAX * N_ROW];
    float plain[ROWS_MAX * N_ROW], weighted[ROWS_MAX * N_ROW];
} choosing;

static void random_fill(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)quire_rng_normal(&rng);
    }
}

static quire_router router_random(void)
{
    const uint32_t n_groups = 1 + quire_rng_below(&rng, 8);
    quire_router r = { .n_groups = n_groups,
                       .n_experts = n_groups * (1 + quire_rng_below(&rng, 8)),
                       .n_groups_used = 1 + quire_rng_below(&rng, n_groups),
                       .gating = (quire_gating)quire_rng_below(&rng, 3),
                       .is_normalised = quire_rng_below(&rng, 2) == 1,
                       .chooses_by_logits = quire_rng_below(&rng, 4) == 0,
                       .scale = quire_rng_below(&rng, 2) == 1 ? 1.0f : 2.5f };

    r.n_used = 1 + quire_rng_below(&rng, r.n_experts / n_groups * r.n_groups_used);
    return r;
}

static struct ggml_tensor *input(struct ggml_context *ctx, int64_t n, int64_t n_rows)
{
    return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, n_rows);
}

static void get(const struct ggml_tensor *t, void *to)
{
    ggml_backend_tensor_get(t, to, 0, ggml_nbytes(t));
}

/* ids have gaps between rows. */
static void ids_get(const choosing *c, const struct ggml_tensor *ids, int32_t *to)
{
    for (uint32_t row = 0; row < c->n_rows; row++) {
        ggml_backend_tensor_get(ids, to + (size_t)row * c->router.n_used, row * ids->nb[1],
                                c->router.n_used * sizeof *to);
    }
}

static void tensors_place(struct ggml_context *ctx)
{
    struct ggml_tallocr allocator = ggml_tallocr_new(buffer);

    for (struct ggml_tensor *t = ggml_get_first_tensor(ctx); t != NULL;
         t = ggml_get_next_tensor(ctx, t)) {
        assert_int_equal(t->view_src != NULL ? ggml_backend_view_init(t)
                                             : ggml_tallocr_alloc(&allocator, t),
                         GGML_STATUS_SUCCESS);
    }
}

static void compute(choosing *c)
{
    const struct ggml_init_params params = {
        .mem_size = 512 * ggml_tensor_overhead() + ggml_graph_overhead(), .no_alloc = true
    };
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    struct ggml_tensor *logits = input(ctx, c->router.n_experts, c->n_rows);
    struct ggml_tensor *bias = c->has_bias ? input(ctx, c->router.n_experts, 1) : NULL;
    struct ggml_tensor *factors = c->has_factors ? input(ctx, c->router.n_experts, 1) : NULL;
    struct ggml_tensor *x = input(ctx, N_ROW, c->n_rows);
    const size_t n_before = ggml_used_mem(ctx) / ggml_tensor_overhead();
    const quire_graph_choice choice =
        quire_graph_choice_build(ctx, &c->router, logits, bias, factors);
    struct ggml_tensor *spread = quire_graph_choice_spread(ctx, &choice, x);
    struct ggml_tensor *plain = quire_graph_choice_combine(ctx, &choice, spread, false);
    struct ggml_tensor *weighted = quire_graph_choice_combine(ctx, &choice, spread, true);

    /* combine() is here twice. */
    assert_true(ggml_used_mem(ctx) / ggml_tensor_overhead() - n_before <=
                quire_graph_choice_nodes(c->router.n_used) + 2 * c->router.n_used + 1);
    ggml_build_forward_expand(graph, plain);
    ggml_build_forward_expand(graph, weighted);
    tensors_place(ctx);
    ggml_backend_tensor_set(logits, c->logits, 0, ggml_nbytes(logits));
    ggml_backend_tensor_set(x, c->x, 0, ggml_nbytes(x));
    if (bias != NULL) {
        ggml_backend_tensor_set(bias, c->bias, 0, ggml_nbytes(bias));
    }
    if (factors != NULL) {
        ggml_backend_tensor_set(factors, c->factors, 0, ggml_nbytes(factors));
    }
    assert_int_equal(ggml_backend_graph_compute(backend, graph), GGML_STATUS_SUCCESS);
    ids_get(c, choice.ids, c->ids);
    get(choice.weights, c->weights);
    get(spread, c->spread);
    get(plain, c->plain);
    get(weighted, c->weighted);
    ggml_free(ctx);
}

/* Whether a change of less than NEAR in the logits changes the choice of a row. */
static bool is_near(const choosing *c, const float *logits, const int32_t *choices)
{
    float moved[N_MAX], weights[N_MAX];
    int32_t others[N_MAX];

    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t e = 0; e < c->router.n_experts; e++) {
            moved[e] = logits[e] + NEAR * (quire_rng_below(&rng, 2) == 1 ? 1.0f : -1.0f);
        }
        quire_router_choose(&c->router, moved, c->has_bias ? c->bias : NULL, others, weights);
        if (memcmp(others, choices, c->router.n_used * sizeof *choices) != 0) {
            return true;
        }
    }
    return false;
}

static void assert_near(float got, float want, float of)
{
    if (!(fabsf(got - want) <= 2e-5f * (1.0f + fabsf(of)))) {
        fail_msg("%g in place of %g", (double)got, (double)want);
    }
}

/* What a row should become; false: its choice is uncertain. */
static bool row_check(const choosing *c, uint32_t row)
{
    const uint32_t n_used = c->router.n_used;
    const float *logits = c->logits + (size_t)row * c->router.n_experts;
    const float *x = c->x + (size_t)row * N_ROW;
    float weights[N_MAX], sum = 0.0f, squares = 0.0f, sizes = 0.0f;
    int32_t choices[N_MAX];

    quire_router_choose(&c->router, logits, c->has_bias ? c->bias : NULL, choices, weights);
    if (is_near(c, logits, choices)) {
        return false;
    }
    assert_memory_equal(c->ids + (size_t)row * n_used, choices, n_used * sizeof *choices);
    for (uint32_t k = 0; k < n_used; k++) {
        const float weight = weights[k] * (c->has_factors ? c->factors[choices[k]] : 1.0f);
        const float *spread = c->spread + ((size_t)row * n_used + k) * N_ROW;

        assert_near(c->weights[(size_t)row * n_used + k], weight, weight);
        for (uint32_t i = 0; i < N_ROW; i++) {
            assert_near(spread[i], x[i] * weight, x[i] * weight);
        }
        sum += weight;
        squares += weight * weight;
        sizes += fabsf(weight) + weight * weight;
    }
    for (uint32_t i = 0; i < N_ROW; i++) {
        assert_near(c->plain[(size_t)row * N_ROW + i], x[i] * sum, x[i] * sizes);
        assert_near(c->weighted[(size_t)row * N_ROW + i], x[i] * squares, x[i] * sizes);
    }
    return true;
}

static void test_choices(void **state)
{
    static choosing c;
    uint32_t n_checked = 0, n_rows = 0;

    (void)state;
    for (uint32_t i = 0; i < ROUTERS; i++) {
        c.router = router_random();
        c.n_rows = 1 + quire_rng_below(&rng, ROWS_MAX);
        c.has_bias = quire_rng_below(&rng, 2) == 1;
        c.has_factors = quire_rng_below(&rng, 2) == 1;
        random_fill(c.logits, ROWS_MAX * N_MAX);
        random_fill(c.bias, N_MAX);
        random_fill(c.factors, N_MAX);
        random_fill(c.x, ROWS_MAX * N_ROW);
        compute(&c);
        for (uint32_t row = 0; row < c.n_rows; row++, n_rows++) {
            n_checked += row_check(&c, row);
        }
    }
    (void)printf("%u rows of %u\n", n_checked, n_rows);
    assert_true(n_checked > n_rows * 9 / 10);
}

/* A sum of weights of 0 divides nothing. */
static void test_no_sum(void **state)
{
    static choosing c;

    (void)state;
    c.router = (quire_router){ .n_experts = 8,
                               .n_used = 3,
                               .gating = QUIRE_GATING_SIGMOID,
                               .is_normalised = true,
                               .scale = 1.0f };
    c.n_rows = 1;
    for (uint32_t e = 0; e < 8; e++) {
        c.logits[e] = -200.0f;
    }
    compute(&c);
    for (uint32_t k = 0; k < 3; k++) {
        assert_true(c.weights[k] == 0.0f);
    }
}

static int open_on(ggml_backend_dev_t device)
{
    rng = test_rng(0xc401ce);
    backend = ggml_backend_dev_init(device, NULL);
    if (backend == NULL) {
        return -1;
    }
    buffer = ggml_backend_alloc_buffer(backend, BUFFER_BYTES);
    return buffer != NULL ? 0 : -1;
}

static int setup_cpu(void **state)
{
    (void)state;
    return open_on(quire_backend_cpu());
}

static int setup_card(void **state)
{
    (void)state;
    return open_on(card);
}

static int teardown(void **state)
{
    (void)state;
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(backend);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_no_sum),
    };
    quire_error err = QUIRE_ERROR_INIT;
    int rc;

    if (quire_backend_init(&err) < 0) {
        return 1;
    }
    rc = cmocka_run_group_tests_name("of the CPU", tests, setup_cpu, teardown);
    card = card_of_vulkan0();
    if (rc == 0 && card != NULL) {
        rc = cmocka_run_group_tests_name("of vulkan0", tests, setup_card, teardown);
    }
    return rc;
}
