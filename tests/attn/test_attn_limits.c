/* test_attn_limits.c - workspaces: every limit and every refusal is reached once, and running out
 * of memory at any point leaks nothing. Also the Hadamard transform and the choice of kernels.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"
#include "attn/kernels.h"

static quire_rng rng;

static void expect_refused(const quire_attn_workspace_opts *opts, int status)
{
    quire_attn_workspace *ws = (quire_attn_workspace *)&rng;

    assert_int_equal(quire_attn_workspace_create(&ws, opts), status);
    assert_null(ws);
}

static void test_create_checks_options(void **state)
{
    static const size_t counts[] = { offsetof(quire_attn_workspace_opts, n_threads_max),
                                     offsetof(quire_attn_workspace_opts, n_seqs_max),
                                     offsetof(quire_attn_workspace_opts, n_rows_max),
                                     offsetof(quire_attn_workspace_opts, n_head_max),
                                     offsetof(quire_attn_workspace_opts, head_dim_max),
                                     offsetof(quire_attn_workspace_opts, n_entries_max),
                                     offsetof(quire_attn_workspace_opts, page_tokens),
                                     offsetof(quire_attn_workspace_opts, n_layers_max) };
    quire_attn_workspace_opts opts;

    (void)state;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        static const uint32_t bad[] = { 0, UINT32_MAX };

        for (size_t k = 0; k < 2; k++) {
            opts = fixture_small_opts();
            memcpy((char *)&opts + counts[i], &bad[k], sizeof(bad[k]));
            expect_refused(&opts, QUIRE_INVAL);
        }
    }
    opts = fixture_small_opts();
    opts.struct_bytes--;
    expect_refused(&opts, QUIRE_INVAL);
    opts = fixture_small_opts();
    opts.head_dim_max = 60;
    expect_refused(&opts, QUIRE_INVAL);
    opts = fixture_small_opts();
    opts.page_tokens = 96;
    expect_refused(&opts, QUIRE_INVAL);
    opts = fixture_small_opts();
    opts.n_groups = QUIRE_GROUPS_MAX + 1;
    expect_refused(&opts, QUIRE_INVAL);
    opts.n_groups = 3;
    opts.groups[1].like = 2; /* a later one */
    expect_refused(&opts, QUIRE_INVAL);
    opts.groups[1].like = 1;
    opts.groups[1].is_hot = true; /* of nothing */
    expect_refused(&opts, QUIRE_INVAL);
    opts.groups[1].like = 0;
    opts.groups[2].like = 1; /* that is like another itself */
    expect_refused(&opts, QUIRE_INVAL);
    opts = fixture_small_opts();
    opts.isa = "z80";
    expect_refused(&opts, QUIRE_UNSUPP);
}

static void test_isa_by_name_and_environment(void **state)
{
    quire_attn_workspace_opts opts = fixture_small_opts();
    quire_attn_workspace *ws;
    const char *before = getenv("QUIRE_ISA");
    char *saved = before != NULL ? strdup(before) : NULL;

    (void)state;
    opts.isa = "portable";
    assert_int_equal(quire_attn_workspace_create(&ws, &opts), QUIRE_OK);
    assert_string_equal(quire_attn_workspace_isa(ws), "portable");
    quire_attn_workspace_destroy(ws);

    opts.isa = NULL;
    assert_int_equal(setenv("QUIRE_ISA", "ref", 1), 0);
    assert_int_equal(quire_attn_workspace_create(&ws, &opts), QUIRE_OK);
    assert_string_equal(quire_attn_workspace_isa(ws), "portable");
    quire_attn_workspace_destroy(ws);

    assert_int_equal(setenv("QUIRE_ISA", "z80", 1), 0);
    expect_refused(&opts, QUIRE_UNSUPP);
    assert_null(quire_attn_kernels_find(NULL));
    assert_string_equal(quire_attn_isa(), "none");

    assert_int_equal(setenv("QUIRE_ISA", "", 1), 0);
    assert_non_null(quire_attn_kernels_find(NULL));
    assert_string_equal(quire_attn_isa(), quire_attn_kernels_find(NULL)->isa);
    assert_int_equal(unsetenv("QUIRE_ISA"), 0);
    assert_non_null(quire_attn_kernels_find(NULL));
    if (saved != NULL) {
        assert_int_equal(setenv("QUIRE_ISA", saved, 1), 0);
        free(saved);
    }
}

/* ---- running out of memory ---- */

#define ALLOC_BYTES_MAX (1u << 30) /* a machine of known size */

typedef struct failing {
    uint32_t n_allowed; /* allocations before one fails */
    uint32_t n_live;
    uint64_t bytes; /* of all that succeeded */
} failing;

static void *failing_alloc(void *ctx, size_t size_bytes)
{
    failing *f = ctx;
    const quire_allocator *libc = quire_allocator_default();

    if (f->n_allowed == 0 || size_bytes > ALLOC_BYTES_MAX) {
        return NULL;
    }
    f->n_allowed--;
    f->n_live++;
    f->bytes += size_bytes;
    return libc->alloc(libc->ctx, size_bytes);
}

static void failing_free(void *ctx, void *ptr)
{
    failing *f = ctx;
    const quire_allocator *libc = quire_allocator_default();

    f->n_live -= ptr != NULL;
    libc->free(libc->ctx, ptr);
}

static void test_create_survives_lack_of_memory(void **state)
{
    failing f = { 0 };
    quire_allocator allocator = { failing_alloc, failing_free, &f };
    quire_attn_workspace_opts opts = fixture_small_opts();
    quire_attn_workspace *ws = NULL;
    uint32_t n_failures = 0;

    (void)state;
    opts.allocator = &allocator;
    for (;; n_failures++) {
        int rc;

        f.n_allowed = n_failures;
        rc = quire_attn_workspace_create(&ws, &opts);
        if (rc == QUIRE_OK) {
            break;
        }
        assert_int_equal(rc, QUIRE_NOMEM);
        assert_null(ws);
        assert_int_equal(f.n_live, 0);
    }
    assert_true(n_failures >= 3);
    quire_attn_workspace_destroy(ws);
    quire_attn_workspace_destroy(NULL);
    assert_int_equal(f.n_live, 0);
}

/* The bytes computed beforehand are the bytes allocated: with and without threads, sequences,
 * cascades. */
static void test_bytes_are_known(void **state)
{
    quire_attn_workspace_opts opts = fixture_small_opts();

    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        failing f = { .n_allowed = UINT32_MAX };
        quire_allocator allocator = { failing_alloc, failing_free, &f };
        quire_attn_workspace *ws = NULL;

        opts = fixture_small_opts();
        opts.allocator = &allocator;
        opts.n_threads_max = i % 2 == 0 ? 1 : 3;
        opts.n_seqs_max = i / 2 % 2 == 0 ? 1 : 64;
        opts.n_entries_max = i / 4 % 2 == 0 ? 3 : 1000;
        opts.no_cascade = i / 8 % 2 == 0;
        opts.n_rows_max = 512;
        assert_int_equal(quire_attn_workspace_create(&ws, &opts), QUIRE_OK);
        assert_int_equal(quire_attn_workspace_bytes(&opts), f.bytes);
        quire_attn_workspace_destroy(ws);
    }
    opts.page_tokens = 96;
    assert_int_equal(quire_attn_workspace_bytes(&opts), 0);
}

/* Limits whose memory no machine has: creation reports a lack of memory; no size wraps around. */
static void test_create_survives_huge_limits(void **state)
{
    failing f = { .n_allowed = UINT32_MAX };
    quire_allocator allocator = { failing_alloc, failing_free, &f };
    quire_attn_workspace_opts opts = fixture_small_opts();

    (void)state;
    opts.allocator = &allocator;
    opts.n_seqs_max = 1u << 16;
    opts.n_entries_max = 1u << 24;
    opts.split_entries = 1;
    opts.n_head_max = 4096;
    opts.head_dim_max = 1024;
    expect_refused(&opts, QUIRE_NOMEM);
    assert_int_equal(f.n_live, 0);
}

/* ---- layers ---- */

static quire_attn_layer small_layer(void)
{
    return (quire_attn_layer){ .n_head = 4,
                               .n_kv_head = 2,
                               .d_k = 64,
                               .d_v = 32,
                               .k[0].format = QUIRE_FORMAT_Q8,
                               .v[0].format = QUIRE_FORMAT_F16,
                               .n_k = 1,
                               .n_v = 1,
                               .scale = 0.125f };
}

static quire_attn_workspace *layer_ws;

static void expect_layer(const quire_attn_layer *layer, int status)
{
    assert_int_equal(quire_attn_layer_check(layer_ws, layer), status);
}

static void test_layer_check_shapes(void **state)
{
    static const size_t fields[] = { offsetof(quire_attn_layer, n_head),
                                     offsetof(quire_attn_layer, n_kv_head),
                                     offsetof(quire_attn_layer, d_k),
                                     offsetof(quire_attn_layer, d_v),
                                     offsetof(quire_attn_layer, n_k) };
    quire_attn_layer layer = small_layer();

    (void)state;
    expect_layer(&layer, QUIRE_OK);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        static const uint32_t bad[] = { 0, 3 };

        for (size_t k = 0; k < 2; k++) {
            layer = small_layer();
            memcpy((char *)&layer + fields[i], &bad[k], sizeof(bad[k]));
            expect_layer(&layer, QUIRE_INVAL);
        }
    }
    layer = small_layer();
    layer.n_head = 6;
    expect_layer(&layer, QUIRE_LIMIT);
    layer = small_layer();
    layer.d_k = 72;
    expect_layer(&layer, QUIRE_LIMIT);
    layer = small_layer();
    layer.d_v = 128;
    expect_layer(&layer, QUIRE_LIMIT);
    layer = small_layer();
    layer.k[0].format = QUIRE_FORMAT_COUNT;
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.v[0].format = QUIRE_FORMAT_COUNT;
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.scale = NAN;
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.softcap = -1.0f;
    expect_layer(&layer, QUIRE_INVAL);
    layer.softcap = INFINITY;
    expect_layer(&layer, QUIRE_INVAL);
    layer.softcap = 30.0f;
    expect_layer(&layer, QUIRE_OK);
}

static void test_layer_check_sources(void **state)
{
    quire_attn_layer layer = small_layer();

    (void)state;
    layer.k[0].rotate = 48;
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.v[0].rotate = 64; /* does not divide 32 */
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.n_v = 3;
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.k[0].lane.offset = 32;
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.k[0].lane.page_stride = 32;
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.v[0].lane.tile_stride = 65;
    expect_layer(&layer, QUIRE_INVAL);
    layer = small_layer();
    layer.n_v = 0; /* no V, and not taken from K either */
    expect_layer(&layer, QUIRE_INVAL);
    layer.v_prefix_of_k = true;
    expect_layer(&layer, QUIRE_OK);
    layer.k[0].rotate = 64; /* does not divide V's 32 */
    expect_layer(&layer, QUIRE_INVAL);
    layer.k[0].rotate = 32;
    expect_layer(&layer, QUIRE_OK);
    layer.n_k = 2;
    expect_layer(&layer, QUIRE_UNSUPP);
    layer.n_k = 1;
    layer.n_v = 1;
    expect_layer(&layer, QUIRE_INVAL);
    layer.n_v = 0;
    layer.d_k = 24;
    layer.k[0].rotate = 8;
    expect_layer(&layer, QUIRE_INVAL); /* d_v > d_k */
}

static void test_layer_check_sealed(void **state)
{
    quire_attn_layer layer = small_layer();

    (void)state;
    layer.k[0].format = QUIRE_FORMAT_Q4;
    layer.v[0].format = QUIRE_FORMAT_Q3;
    layer.k[0].hot_group = layer.v[0].hot_group = 1;
    expect_layer(&layer, QUIRE_OK);
    layer.k[0].hot_lane.head_stride = 32;
    expect_layer(&layer, QUIRE_INVAL);
    layer.k[0].format = QUIRE_FORMAT_Q8; /* has no hot lane */
    expect_layer(&layer, QUIRE_OK);
    layer.v[0].hot_lane.offset = 1;
    expect_layer(&layer, QUIRE_INVAL);
    layer.n_v = 0;
    layer.v_prefix_of_k = true;
    expect_layer(&layer, QUIRE_OK); /* v says nothing then */
    layer.k[0].hot_lane.head_stride = 0;
    layer.k[0].format = QUIRE_FORMAT_Q6;
    expect_layer(&layer, QUIRE_OK);
}

/* Groups of the workspace: 0 with 1 hot; 2 alike, with windows of up to 100; 3 by itself, hot: 4.
 */
static void test_layer_check_groups(void **state)
{
    quire_attn_layer layer = small_layer();

    (void)state;
    layer.n_k = 2;
    layer.k[1] = layer.k[0];
    expect_layer(&layer, QUIRE_OK);
    layer.k[1].group = 3;
    expect_layer(&layer, QUIRE_INVAL); /* not alike */
    layer.k[1].group = 1;
    expect_layer(&layer, QUIRE_INVAL); /* hot */
    layer.k[1].group = 5;
    expect_layer(&layer, QUIRE_INVAL); /* not there */
    layer.k[1].group = 2;
    expect_layer(&layer, QUIRE_INVAL); /* sees less than the layer */
    layer.window = 100;
    expect_layer(&layer, QUIRE_OK);
    layer.window = 101;
    expect_layer(&layer, QUIRE_INVAL);
    layer.window = 1;
    layer.k[1].format = QUIRE_FORMAT_Q5;
    expect_layer(&layer, QUIRE_INVAL); /* hot group 0 is not hot */
    layer.k[1].hot_group = 4;
    expect_layer(&layer, QUIRE_INVAL); /* not alike */
    layer.k[1].hot_group = 1;
    expect_layer(&layer, QUIRE_OK);
    layer.k[0].group = 5;
    expect_layer(&layer, QUIRE_INVAL);
}

/* The store may be of any group and format: nobody reads it together with the sources. */
static void test_layer_check_stores(void **state)
{
    quire_attn_layer layer = small_layer();

    (void)state;
    layer.k_store = (quire_attn_source){ .format = QUIRE_FORMAT_Q4, .group = 3, .hot_group = 4 };
    expect_layer(&layer, QUIRE_OK);
    layer.k_store.hot_group = 1;
    expect_layer(&layer, QUIRE_INVAL);
    layer.k_store.format = QUIRE_FORMAT_F16;
    expect_layer(&layer, QUIRE_OK);
    layer.k_store.lane.offset = 1;
    expect_layer(&layer, QUIRE_INVAL);
    layer.k_store.lane.offset = 64;
    layer.v_store.group = 1;
    expect_layer(&layer, QUIRE_INVAL);
    layer.v_store.group = 5;
    expect_layer(&layer, QUIRE_INVAL);
    layer.v_store.group = 0;
    layer.v_store.rotate = 64; /* of d_v = 32 */
    expect_layer(&layer, QUIRE_INVAL);
}

static int open_layer_ws(void **state)
{
    quire_attn_workspace_opts opts = fixture_small_opts();

    (void)state;
    opts.n_groups = 5;
    opts.groups[1].is_hot = true;
    opts.groups[2].window = 100;
    opts.groups[3].like = 3;
    opts.groups[4] = (quire_attn_group){ .like = 3, .is_hot = true };
    return quire_attn_workspace_create(&layer_ws, &opts);
}

static int close_layer_ws(void **state)
{
    (void)state;
    quire_attn_workspace_destroy(layer_ws);
    return 0;
}

/* ---- one workspace for several steps and layers ---- */

/* Threads one after the other: the first takes every item, and all of them end. */
static void test_calls_of_a_step_are_independent(void **state)
{
    fixture_opts opts = fixture_defaults();
    quire_attn_workspace_opts ws_opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;
    quire_attn_workspace *ws;
    quire_attn_layer layer;
    float *out[2];
    fixture f;

    (void)state;
    opts.n_tokens[0] = 700;
    opts.split_entries = 1;
    fixture_init(&f, &opts, &rng);
    ws_opts.n_threads_max = 3;
    ws_opts.n_seqs_max = 1;
    ws_opts.n_rows_max = 1;
    ws_opts.n_head_max = 8;
    ws_opts.head_dim_max = 64;
    ws_opts.n_entries_max = 11;
    ws_opts.split_entries = 1;
    ws_opts.page_tokens = 64;
    ws_opts.n_layers_max = 2;
    assert_int_equal(quire_attn_workspace_create(&ws, &ws_opts), QUIRE_OK);
    layer = f.layer;
    for (uint32_t i = 0; i < 2; i++) {
        out[i] = calloc(layer.out_stride, sizeof(float));
        assert_non_null(out[i]);
    }
    for (uint32_t repeat = 0; repeat < 3; repeat++) {
        assert_int_equal(quire_attn_begin(ws, &f.batch), QUIRE_OK);
        for (uint32_t call = 0; call < 2; call++) {
            memset(out[call], 0, layer.out_stride * sizeof(float));
            layer.out = out[call];
            for (uint32_t thread = 0; thread < 3; thread++) {
                quire_attn_run(ws, &layer, call, thread, 3);
            }
        }
        assert_memory_equal(out[0], out[1], fixture_out_floats(&f) * sizeof(float));
        assert_true(out[0][0] != 0.0f);
    }
    free(out[0]);
    free(out[1]);
    quire_attn_workspace_destroy(ws);
    fixture_free(&f);
}

/* ---- Hadamard ---- */

static void test_hadamard(void **state)
{
    float x[96];
    float y[96];
    double norm[2] = { 0.0, 0.0 };

    (void)state;
    assert_int_equal(quire_hadamard_block(96), 32);
    assert_int_equal(quire_hadamard_block(128), 128);
    assert_int_equal(quire_hadamard_block(8), 8);
    for (uint32_t i = 0; i < 96; i++) {
        x[i] = (float)quire_rng_normal(&rng);
        y[i] = x[i];
    }
    quire_hadamard(y, 96, 32);
    for (uint32_t block = 0; block < 3; block++) {
        for (uint32_t i = 0; i < 32; i++) { /* by the definition */
            double expected = 0.0;

            for (uint32_t k = 0; k < 32; k++) {
                expected += __builtin_parity(i & k) ? -(double)x[32 * block + k]
                                                    : (double)x[32 * block + k];
            }
            assert_true(fabs(expected / sqrt(32.0) - (double)y[32 * block + i]) < 1e-5);
        }
    }
    for (uint32_t i = 0; i < 96; i++) {
        norm[0] += (double)x[i] * (double)x[i];
        norm[1] += (double)y[i] * (double)y[i];
    }
    assert_true(fabs(norm[0] / norm[1] - 1.0) < 1e-5);
    quire_hadamard(y, 96, 32);
    for (uint32_t i = 0; i < 96; i++) {
        assert_true(fabsf(x[i] - y[i]) < 1e-5f);
    }
    quire_hadamard(y, 96, 1);
    assert_true(fabsf(x[5] - y[5]) < 1e-5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_checks_options),
        cmocka_unit_test(test_isa_by_name_and_environment),
        cmocka_unit_test(test_create_survives_lack_of_memory),
        cmocka_unit_test(test_create_survives_huge_limits),
        cmocka_unit_test(test_bytes_are_known),
        cmocka_unit_test_setup_teardown(test_layer_check_shapes, open_layer_ws, close_layer_ws),
        cmocka_unit_test_setup_teardown(test_layer_check_sources, open_layer_ws, close_layer_ws),
        cmocka_unit_test_setup_teardown(test_layer_check_sealed, open_layer_ws, close_layer_ws),
        cmocka_unit_test_setup_teardown(test_layer_check_groups, open_layer_ws, close_layer_ws),
        cmocka_unit_test_setup_teardown(test_layer_check_stores, open_layer_ws, close_layer_ws),
        cmocka_unit_test(test_calls_of_a_step_are_independent),
        cmocka_unit_test(test_hadamard),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
