/* test_lanes_nomem.c - each allocation of lanes fails once: the call says so, the text stays as it
 * was, and nothing leaks.
 *
 * The link wraps malloc, calloc, realloc and aligned_alloc.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "failing_alloc.h"
#include "retain/kept_lanes.h"

#define N_LAYERS   2u
#define N_KV       2u
#define D          8u
#define N_TEXT     300u
#define ROUNDS_MAX 500u

static quire_attn_layer layers[N_LAYERS];
static float rows[N_TEXT][N_KV * D];
static float out[N_TEXT][N_KV * D];

static int create(quire_lanes **lanes)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_lanes_opts opts;

    assert_int_equal(quire_retain_parse("entropy:0.5,recent=8,full_layers=none", &spec, &err),
                     QUIRE_OK);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        layers[l] = (quire_attn_layer){ .n_head = N_KV, .n_kv_head = N_KV, .d_k = D, .d_v = D };
        layers[l].n_k = layers[l].n_v = 1;
        layers[l].scale = 0.3f;
        layers[l].k[0].format = layers[l].v[0].format = QUIRE_FORMAT_F16;
        layers[l].k[0].lane.offset = (size_t)l * 8192;
        layers[l].v[0].lane.offset = (size_t)l * 8192 + 4096;
        layers[l].k_store = layers[l].k[0];
        layers[l].v_store = layers[l].v[0];
    }
    opts = (quire_lanes_opts){ .spec = &spec,
                               .layers = layers,
                               .n_layers = N_LAYERS,
                               .n_text_max = N_TEXT,
                               .n_full_max = 150,
                               .n_rows_max = 100,
                               .n_threads = 1 };
    return quire_lanes_create(lanes, &opts, &err);
}

static int step(quire_lanes *lanes, uint32_t begin, uint32_t n_rows)
{
    const quire_attn_device device = quire_lanes_device(lanes);
    const quire_attn_seq seq = { .n_tokens = begin + n_rows, .n_rows = n_rows };
    const quire_attn_batch batch = { .seqs = &seq, .n_seqs = 1, .page_tokens = 64 };
    int rc = device.plan(device.ctx, &batch);

    for (uint32_t l = 0; l < N_LAYERS && rc == QUIRE_OK; l++) {
        quire_attn_layer call = layers[l];

        call.q[0] = call.k_new = call.v_new = rows[begin];
        call.q_stride = call.k_new_stride = call.v_new_stride = call.out_stride = N_KV * D;
        call.out = out[0];
        device.append(device.ctx, &call, 0, 1);
        device.run(device.ctx, &call, l, 0, 1);
    }
    return rc == QUIRE_OK ? device.sync(device.ctx) : rc;
}

static void test_create(void **state)
{
    quire_lanes *lanes = NULL;
    unsigned n = 1;

    (void)state;
    for (; n < ROUNDS_MAX; n++) {
        int rc;

        fail_in = n;
        rc = create(&lanes);
        fail_in = 0;
        if (rc == QUIRE_OK) {
            break;
        }
        assert_int_equal(rc, QUIRE_NOMEM);
        assert_null(lanes);
    }
    assert_true(n > 10 && n < ROUNDS_MAX);
    quire_lanes_destroy(lanes);
}

/* A step or a condensing that fails leaves the tokens; the same call succeeds afterwards. */
static void test_text(void **state)
{
    quire_lanes *lanes;
    quire_lanes_stats before, after;
    unsigned n_failed = 0;

    (void)state;
    assert_int_equal(create(&lanes), QUIRE_OK);
    for (uint32_t begin = 0; begin < 250; begin += 50) {
        for (int call = 0; call < 2; call++) {
            int rc = QUIRE_NOMEM;

            for (unsigned n = 1; rc != QUIRE_OK; n++) {
                assert_true(n < ROUNDS_MAX);
                quire_lanes_stats_get(lanes, &before);
                fail_in = n;
                rc = call == 0 ? step(lanes, begin, 50) : quire_lanes_condense(lanes);
                fail_in = 0;
                quire_lanes_stats_get(lanes, &after);
                if (rc != QUIRE_OK) {
                    assert_int_equal(rc, QUIRE_NOMEM);
                    assert_int_equal(after.n_text, before.n_text);
                    assert_int_equal(after.n_held, before.n_held);
                    assert_int_equal(after.live_bytes, before.live_bytes);
                    assert_int_equal(after.generations, before.generations);
                    n_failed++;
                }
            }
        }
    }
    assert_true(n_failed > 20);
    quire_lanes_destroy(lanes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_text),
    };
    quire_rng rng = { .state = 5 };

    for (uint32_t i = 0; i < N_TEXT * N_KV * D; i++) {
        rows[i / (N_KV * D)][i % (N_KV * D)] = (float)quire_rng_normal(&rng);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
