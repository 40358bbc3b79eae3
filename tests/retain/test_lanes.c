/* test_lanes.c - lanes: attention over kept tokens against double precision, condensing in all
 * formats, bytes that follow the kept tokens, cuts, and layers that are refused.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "retain/kept_lanes.h"
#include "retain/probe.h"
#include "seed.h"

#define N_LAYERS 3u
#define WINDOWED 1u /* this layer has a window, */
#define WINDOW   90u
#define N_CHOOSE 2u /* and so many have none */
#define N_KV     2u
#define GROUP    2u
#define N_HEAD   (N_KV * GROUP)
#define D_K      32u
#define D_V      24u
#define N_TEXT   700u
#define ROWS_MAX 100u

static quire_rng rng;

/* A text of random rows, and lanes that get it step by step. */
typedef struct world {
    quire_attn_layer layers[N_LAYERS];
    quire_lanes *lanes;
    uint32_t n_text;
    uint32_t n_members;                      /* threads of a step, one after the other */
    float q[N_LAYERS][N_TEXT][N_HEAD * D_K]; /* by position */
    float k[N_LAYERS][N_TEXT][N_KV * D_K];
    float v[N_LAYERS][N_TEXT][N_KV * D_V];
    float out[N_LAYERS][ROWS_MAX][N_HEAD * D_V]; /* of the last step */
    float sinks[N_HEAD];
} world;

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_normal(&rng);
    }
}

static void make_layers(world *w, quire_format k, quire_format v)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        quire_attn_layer *layer = &w->layers[l];

        *layer = (quire_attn_layer){ .n_head = N_HEAD,
                                     .n_kv_head = N_KV,
                                     .d_k = D_K,
                                     .d_v = D_V,
                                     .n_k = 1,
                                     .n_v = 1,
                                     .scale = 0.3f };
        layer->k[0].format = k;
        layer->k[0].rotate = k == QUIRE_FORMAT_Q8 ? 32 : 0;
        layer->k[0].lane.offset = (size_t)l * 65536;
        layer->v[0].format = v;
        layer->v[0].lane.offset = (size_t)l * 65536 + 32768;
        layer->k_store = layer->k[0];
        layer->v_store = layer->v[0];
    }
    /* Differences between layers. */
    w->layers[WINDOWED].window = WINDOW;
    w->layers[2].softcap = 4.0f;
    fill(w->sinks, N_HEAD);
    w->layers[2].sinks = w->sinks;
}

static quire_lanes_opts opts_of(const world *w, const quire_retain_spec *spec)
{
    return (quire_lanes_opts){ .spec = spec,
                               .layers = w->layers,
                               .n_layers = N_LAYERS,
                               .n_text_max = N_TEXT,
                               .n_full_max = 200,
                               .n_rows_max = ROWS_MAX,
                               .n_threads = 3 };
}

static world *world_make(const char *policy, quire_format k, quire_format v)
{
    world *w = calloc(1, sizeof *w);
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_lanes_opts opts;

    assert_non_null(w);
    assert_int_equal(quire_retain_parse(policy, &spec, &err), QUIRE_OK);
    make_layers(w, k, v);
    opts = opts_of(w, &spec);
    if (quire_lanes_create(&w->lanes, &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    w->n_members = 1;
    fill(&w->q[0][0][0], sizeof w->q / sizeof(float));
    fill(&w->k[0][0][0], sizeof w->k / sizeof(float));
    fill(&w->v[0][0][0], sizeof w->v / sizeof(float));
    return w;
}

static void world_free(world *w)
{
    quire_lanes_destroy(w->lanes);
    free(w);
}

/* The layer as an operation of the graph would pass it, for rows from `begin` on. */
static quire_attn_layer call_of(world *w, uint32_t l, uint32_t begin)
{
    quire_attn_layer call = w->layers[l];

    call.q[0] = w->q[l][begin];
    call.q_stride = N_HEAD * D_K;
    call.k_new = w->k[l][begin];
    call.k_new_stride = N_KV * D_K;
    call.v_new = w->v[l][begin];
    call.v_new_stride = N_KV * D_V;
    call.out = w->out[l][0];
    call.out_stride = N_HEAD * D_V;
    return call;
}

static int step_at(world *w, uint32_t begin, uint32_t n_rows)
{
    const quire_attn_device device = quire_lanes_device(w->lanes);
    const quire_attn_seq seq = { .n_tokens = begin + n_rows, .n_rows = n_rows };
    const quire_attn_batch batch = { .seqs = &seq, .n_seqs = 1, .page_tokens = 64 };
    int rc = device.plan(device.ctx, &batch);

    if (rc < 0) {
        return rc;
    }
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        const quire_attn_layer call = call_of(w, l, begin);

        for (uint32_t i = 0; i < w->n_members; i++) {
            device.append(device.ctx, &call, i, w->n_members);
        }
        for (uint32_t i = 0; i < w->n_members; i++) {
            device.run(device.ctx, &call, l, i, w->n_members);
        }
    }
    w->n_text = begin + n_rows;
    return device.sync(device.ctx);
}

static void step(world *w, uint32_t n_rows)
{
    assert_int_equal(step_at(w, w->n_text, n_rows), QUIRE_OK);
}

/* ---- against double precision ---- */

static double logit_of(const world *w, uint32_t l, uint32_t h, uint32_t row, uint32_t t)
{
    const double cap = (double)w->layers[l].softcap;
    double sum = 0.0;

    for (uint32_t i = 0; i < D_K; i++) {
        sum += (double)w->q[l][row][h * D_K + i] * (double)w->k[l][t][h / GROUP * D_K + i];
    }
    sum *= (double)w->layers[l].scale;
    return cap != 0.0 ? cap * tanh(sum / cap) : sum;
}

/* The first token that a row sees. */
static uint32_t window_begin(const world *w, uint32_t l, uint32_t row)
{
    const uint32_t window = w->layers[l].window;

    return window == 0 || row < window ? 0 : row - window + 1;
}

/* Head h of a row over the tokens that its lane holds; of a layer with a window over all tokens of
 * the window, whatever the lane holds. */
static void expect_row(const world *w, uint32_t l, uint32_t h, uint32_t row, double *out)
{
    uint32_t n;
    const int32_t *held = quire_lanes_positions(w->lanes, l, h / GROUP, &n);
    const uint32_t first = window_begin(w, l, row);
    double sum = w->layers[l].sinks != NULL ? exp((double)w->layers[l].sinks[h]) : 0.0;

    memset(out, 0, D_V * sizeof *out);
    n = l == WINDOWED ? row + 1 : n;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t t = l == WINDOWED ? i : (uint32_t)held[i];

        if (t <= row && t >= first) {
            const double p = exp(logit_of(w, l, h, row, t));

            sum += p;
            for (uint32_t d = 0; d < D_V; d++) {
                out[d] += p * (double)w->v[l][t][h / GROUP * D_V + d];
            }
        }
    }
    for (uint32_t d = 0; d < D_V; d++) {
        out[d] /= sum;
    }
}

static void check_step(const world *w, uint32_t n_rows, double tolerance)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t i = 0; i < n_rows; i++) {
            for (uint32_t h = 0; h < N_HEAD; h++) {
                double want[D_V];

                expect_row(w, l, h, w->n_text - n_rows + i, want);
                for (uint32_t d = 0; d < D_V; d++) {
                    const double got = (double)w->out[l][i][h * D_V + d];

                    if (!(fabs(got - want[d]) < tolerance)) {
                        fail_msg("layer %u, row %u, head %u, %u: %g, not %g", l, i, h, d, got,
                                 want[d]);
                    }
                }
            }
        }
    }
}

static void check_policy(const char *policy, quire_format k, quire_format v, double tolerance)
{
    static const uint32_t rows[] = { 100, 60, 1, 64, 33, 1, 1, 90 };
    world *w = world_make(policy, k, v);

    for (uint32_t i = 0; i < 14 && w->n_text + 100 <= N_TEXT; i++) {
        const uint32_t n = rows[i % 8];

        w->n_members = 1 + i % 3;
        if (quire_lanes_n_full(w->lanes) + n > 200) {
            assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
        }
        step(w, n);
        check_step(w, n, tolerance);
    }
    world_free(w);
}

static void test_attention(void **state)
{
    static const char *const policies[] = { "entropy:0.5,recent=16,full_layers=1",
                                            "snap:0.3",
                                            "keydiff:0.3,recent=20,floor=0.1",
                                            "window:0.4",
                                            "last:0.2",
                                            "stride:0.4,recent=8",
                                            "random:0.4,recent=8" };

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        check_policy(policies[i], QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 2e-5);
    }
    check_policy(policies[0], QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 5e-3);
    check_policy(policies[0], QUIRE_FORMAT_BF16, QUIRE_FORMAT_BF16, 5e-2);
    check_policy(policies[0], QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8, 1e-1);
    check_policy(policies[1], QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, 5e-2);
}

/* A text that is condensed twice holds the rows that it would hold if they alone had been stored:
 * nothing is coded twice. */
static void test_rows_keep_their_bits(void **state)
{
    world *w = world_make("random:0.2,recent=1,sinks=0", QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    world *alone = world_make("window:1", QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);

    (void)state;
    memcpy(alone->q, w->q, sizeof w->q);
    memcpy(alone->k, w->k, sizeof w->k);
    memcpy(alone->v, w->v, sizeof w->v);
    for (uint32_t i = 0; i < 6; i++) {
        step(w, 60);
        step(alone, 60);
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    }
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t g = 0; g < N_KV; g++) {
            uint32_t n, n_all;
            const int32_t *held = quire_lanes_positions(w->lanes, l, g, &n);
            const int32_t *all = quire_lanes_positions(alone->lanes, l, g, &n_all);

            if (l == WINDOWED) { /* of the last step's first row, in whole pages */
                assert_null(held);
                assert_int_equal(n, 360 - (300 - (WINDOW - 1)) / 64 * 64);
                assert_int_equal(n_all, n);
            } else {
                assert_int_equal(n_all, 360);
                assert_true(n >= 60 && n <= 90);
            }
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t at = l == WINDOWED ? i : (uint32_t)held[i];
                float k[2][D_K], v[2][D_V];

                assert_true(l == WINDOWED || all[at] == held[i]);
                quire_lanes_read(w->lanes, l, g, i, k[0], v[0]);
                quire_lanes_read(alone->lanes, l, g, at, k[1], v[1]);
                assert_memory_equal(k[0], k[1], sizeof k[0]);
                assert_memory_equal(v[0], v[1], sizeof v[0]);
            }
        }
    }
    world_free(alone);
    world_free(w);
}

/* ---- bytes ---- */

static void check_bytes(const world *w, size_t page_bytes)
{
    quire_lanes_stats stats;
    uint64_t pages = 0, held = 0;

    quire_lanes_stats_get(w->lanes, &stats);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t g = 0; g < N_KV; g++) {
            uint32_t n;

            (void)quire_lanes_positions(w->lanes, l, g, &n);
            pages += (n + 63) / 64; /* a window's begin with a page */
            held += l == WINDOWED ? 0 : n;
        }
    }
    assert_int_equal(stats.n_held, held);
    assert_int_equal(stats.live_bytes, pages * page_bytes);
    assert_true(stats.peak_bytes <= stats.budget_bytes);
    assert_true(stats.peak_bytes >= stats.live_bytes);
}

static void test_bytes(void **state)
{
    const size_t page_bytes = quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_K, D_K) +
                              quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_V, D_V);
    const size_t n_lanes = N_CHOOSE * N_KV;
    const size_t n_window = N_KV * ((WINDOW - 1 + ROWS_MAX) / 64 + 2); /* pages */
    world *w = world_make("snap:0.25,recent=16", QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_lanes_stats stats;

    (void)state;
    for (uint32_t i = 0; i < 14; i++) {
        if (quire_lanes_n_full(w->lanes) + 50 > 200) {
            assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
            quire_lanes_stats_get(w->lanes, &stats);
            assert_true(stats.n_held <= (uint64_t)(0.25 * stats.n_text * (double)n_lanes));
            assert_true(stats.n_held + N_LAYERS >=
                        (uint64_t)(0.25 * stats.n_text * (double)n_lanes));
            check_bytes(w, page_bytes);
        }
        step(w, 50);
        check_bytes(w, page_bytes);
    }
    quire_lanes_stats_get(w->lanes, &stats);
    assert_int_equal(stats.generations, 3);
    assert_int_equal(stats.n_text, 700);
    /* The full text takes 11 pages a lane; a quarter, a chunk and a page take less than 8. */
    assert_true(stats.peak_bytes <= (8 * n_lanes + n_window) * page_bytes);
    assert_int_equal(stats.budget_bytes,
                     ((700 / 4 + 1 + 200) * n_lanes / 64 + n_lanes + n_window) * page_bytes);
    assert_int_equal(stats.n_lanes, n_lanes);
    assert_int_equal(stats.n_windowed, N_KV);
    world_free(w);
}

/* Lanes that round their kept tokens up to whole granules, for the protected ones, have room for
 * them. */
static void test_granules(void **state)
{
    const size_t page_bytes = quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_K, D_K) +
                              quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_V, D_V);
    static const char *const policies[] = { "keydiff:0.02,recent=16,granule=256",
                                            "keydiff:0.02,recent=16,granule=100,full_layers=none",
                                            "stride:0.3,sinks=1,recent=128,granule=64" };

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        world *w = world_make(policies[i], QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
        uint32_t n_held;

        while (w->n_text + 50 <= N_TEXT) {
            if (quire_lanes_n_full(w->lanes) + 50 > 200) {
                assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
            }
            step(w, 50);
            check_bytes(w, page_bytes);
        }
        (void)quire_lanes_positions(w->lanes, 0, 0, &n_held);
        assert_true(n_held < N_TEXT);
        world_free(w);
    }
}

/* ---- cuts, and refusals ---- */

/* Cuts after which nothing is left of the tokens behind: not of those that a choice was made by,
 * and not where sums or the last queries score. */
static void test_truncate(void **state)
{
    static const char *const policies[] = { "keydiff:0.5,recent=16", "window:0.5",
                                            "snap:0.5,recent=16", "heavy:0.5,recent=16" };

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        world *w = world_make(policies[i], QUIRE_FORMAT_F32, QUIRE_FORMAT_F32);
        const bool forgets = i < 2;

        assert_int_equal(quire_lanes_keepable(w->lanes, 9), 0); /* there is no text */
        step(w, 100);
        step(w, 50);
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
        assert_int_equal(quire_lanes_keepable(w->lanes, 151), 150);
        assert_int_equal(quire_lanes_keepable(w->lanes, 149), 0);
        step(w, 60);
        assert_int_equal(quire_lanes_keepable(w->lanes, 210), 210);
        assert_int_equal(quire_lanes_keepable(w->lanes, 209), forgets ? 209 : 0);
        assert_int_equal(quire_lanes_keepable(w->lanes, 150), forgets ? 150 : 0);
        w->n_text = quire_lanes_keepable(w->lanes, 170);
        quire_lanes_truncate(w->lanes, w->n_text);
        assert_int_equal(quire_lanes_n_full(w->lanes), forgets ? 20 : 0);
        step(w, 40);
        check_step(w, 40, 2e-5);
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
        quire_lanes_truncate(w->lanes, 0);
        w->n_text = 0;
        step(w, 30);
        check_step(w, 30, 2e-5);
        world_free(w);
    }
}

static void test_cuts(void **state)
{
    world *w = world_make("snap:0.5,recent=16", QUIRE_FORMAT_F32, QUIRE_FORMAT_F32);
    uint32_t n;

    (void)state;
    step(w, 100);
    step(w, 50);
    assert_int_equal(step_at(w, 151, 1), QUIRE_INVAL); /* behind the text */
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK); /* nothing new: nothing to do */
    assert_int_equal(quire_lanes_n_full(w->lanes), 0);
    step(w, 60);
    assert_int_equal(step_at(w, 170, 20), QUIRE_OK); /* a part of the new tokens goes */
    check_step(w, 20, 2e-5);
    (void)quire_lanes_positions(w->lanes, 0, 0, &n);
    assert_int_equal(quire_lanes_n_full(w->lanes), 40);
    assert_int_equal(step_at(w, 149, 1), QUIRE_UNSUPP); /* condensed */
    assert_int_equal(step_at(w, 150, 1), QUIRE_UNSUPP); /* its window was given back */
    assert_int_equal(step_at(w, 160, 30), QUIRE_OK);
    check_step(w, 30, 2e-5);
    assert_int_equal(step_at(w, 0, 70), QUIRE_OK); /* another text */
    check_step(w, 70, 2e-5);
    assert_int_equal(quire_lanes_n_full(w->lanes), 70);
    assert_int_equal(step_at(w, 70, 0 + 100), QUIRE_OK);
    w->n_text = 170;
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    world_free(w);
}

static void test_room(void **state)
{
    world *w = world_make("window:0.1,recent=4", QUIRE_FORMAT_F32, QUIRE_FORMAT_F32);
    uint32_t n_before, n;
    int rc = QUIRE_OK;

    (void)state;
    while (rc == QUIRE_OK && w->n_text + 50 <= N_TEXT) { /* without condensing, room runs out */
        (void)quire_lanes_positions(w->lanes, 2, 1, &n_before);
        rc = step_at(w, w->n_text, 50);
    }
    assert_int_equal(rc, QUIRE_NOPAGES);
    (void)quire_lanes_positions(w->lanes, 2, 1, &n);
    assert_int_equal(n, n_before);
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    step(w, 50);
    check_step(w, 50, 2e-5);
    world_free(w);
}

static void test_without_queries(void **state)
{
    world *w = world_make("snap:0.5,recent=16", QUIRE_FORMAT_F32, QUIRE_FORMAT_F32);
    const quire_attn_device device = quire_lanes_device(w->lanes);
    const quire_attn_seq seq = { .n_tokens = 80, .n_rows = 80 };
    const quire_attn_batch batch = { .seqs = &seq, .n_seqs = 1, .page_tokens = 64 };

    (void)state;
    assert_int_equal(device.plan(device.ctx, &batch), QUIRE_OK);
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_INVAL);
    world_free(w);
}

static void refuse(const world *w, const char *policy, int status, const char *says)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_lanes_opts opts;
    quire_lanes *lanes;

    assert_int_equal(quire_retain_parse(policy, &spec, &err), QUIRE_OK);
    opts = opts_of(w, &spec);
    assert_int_equal(quire_lanes_create(&lanes, &opts, &err), status);
    assert_null(lanes);
    if (strstr(err.message, says) == NULL) {
        fail_msg("\"%s\"", err.message);
    }
}

static void test_refusals(void **state)
{
    world *w = world_make("snap:0.5", QUIRE_FORMAT_F32, QUIRE_FORMAT_F32);

    (void)state;
    refuse(w, "entropy:0.5", QUIRE_INVAL, "2 of 2 layers without a window kept whole");
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        w->layers[l].window = 90;
    }
    refuse(w, "snap", QUIRE_UNSUPP, "whose layers all have windows: these drop tokens already");
    make_layers(w, QUIRE_FORMAT_F32, QUIRE_FORMAT_F32);
    w->layers[1].k_store.lane.offset = 0;
    refuse(w, "snap", QUIRE_UNSUPP, "layer 1 reads K or V that it does not store");
    make_layers(w, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4);
    refuse(w, "window", QUIRE_UNSUPP, "tokens in q4 stay in their tile");
    refuse(w, "last", QUIRE_UNSUPP, "last drops tokens that it has kept before");
    refuse(w, "predict", QUIRE_INVAL, "predict has learned nothing");
    make_layers(w, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    w->layers[2].k[0].format = w->layers[2].k_store.format = QUIRE_FORMAT_F16;
    refuse(w, "snap", QUIRE_UNSUPP, "layer 2 has another than layer 0");
    world_free(w);
}

/* ---- the probe ---- */

static void test_probe(void **state)
{
    enum {
        N = 150,
        D = 40,
        QUERIES = 3
    };
    static float keys[N * D], queries[GROUP * QUERIES * D], got[GROUP * QUERIES * N];
    static const int32_t rows_at[QUERIES] = { 40, 200, 448 };
    const float sinks[GROUP] = { 0.5f, -1.0f };
    int32_t positions[N];
    quire_retain_lane lane = { .n_tokens = N, .positions = positions, .keys = keys, .d = D };

    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        const quire_retain_probe probe = { .queries = queries,
                                           .rows_at = rows_at,
                                           .n_heads = GROUP,
                                           .n_queries = QUERIES,
                                           .scale = 0.2f,
                                           .softcap = variant == 1 ? 3.0f : 0.0f,
                                           .sinks = variant == 2 ? sinks : NULL };

        fill(keys, N * D);
        fill(queries, GROUP * QUERIES * D);
        for (int32_t t = 0; t < N; t++) {
            positions[t] = 3 * t + 1;
        }
        quire_retain_attend(&probe, &lane, got);
        for (uint32_t r = 0; r < GROUP * QUERIES; r++) {
            double want[N], sum = variant == 2 ? exp((double)sinks[r / QUERIES]) : 0.0;
            const int32_t at = rows_at[r % QUERIES];

            for (uint32_t t = 0; t < N; t++) {
                double logit = 0.0;

                for (uint32_t i = 0; i < D; i++) {
                    logit += (double)queries[r * D + i] * (double)keys[t * D + i];
                }
                logit *= 0.2;
                logit = variant == 1 ? 3 * tanh(logit / 3) : logit;
                want[t] = positions[t] <= at ? exp(logit) : 0.0;
                sum += want[t];
            }
            for (uint32_t t = 0; t < N; t++) {
                assert_true(fabs((double)got[r * N + t] - want[t] / sum) < 1e-6);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention), cmocka_unit_test(test_rows_keep_their_bits),
        cmocka_unit_test(test_bytes),     cmocka_unit_test(test_granules),
        cmocka_unit_test(test_cuts),      cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_room),      cmocka_unit_test(test_without_queries),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_probe),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
