/* test_sealed_lanes.c - lanes in formats that are coded tile by tile: attention over the stored
 * rows against double precision, rows that are coded once, whole tiles, bytes.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "retain/kept_lanes.h"
#include "rounds.h"
#include "seed.h"

#define N_LAYERS 2u
#define N_KV     2u
#define GROUP    2u
#define N_HEAD   (N_KV * GROUP)
#define D        32u
#define N_TEXT   1000u
#define ROWS_MAX 100u
#define CHUNK    300u
#define RECENT   40u
#define REPEAT   70u
/* Tiles in 8 bits of texts that keep all tokens. */
#define WHOLE_RECENT 2u
#define WHOLE_SINKS  1u

static quire_rng rng;

typedef struct world {
    quire_attn_layer layers[N_LAYERS];
    quire_lanes *lanes;
    uint32_t n_text;
    uint32_t n_step; /* rows of the last step */
    float q[N_LAYERS][N_TEXT + REPEAT][N_HEAD * D];
    float k[N_LAYERS][N_TEXT + REPEAT][N_KV * D];
    float v[N_LAYERS][N_TEXT + REPEAT][N_KV * D];
    float out[N_LAYERS][ROWS_MAX][N_HEAD * D];
    float read_k[N_TEXT][D]; /* of one lane, by position, turned back from the stored form */
    float read_v[N_TEXT][D];
} world;

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_normal(&rng);
    }
}

static uint32_t rotation_of(quire_format format, bool is_k)
{
    return quire_format_is_sealed(format) || (is_k && format == QUIRE_FORMAT_Q8) ? D : 0;
}

/* policy NULL: all tokens are kept, in 8 bits by distance. */
static world *world_make(const char *policy, quire_format k, quire_format v)
{
    world *w = calloc(1, sizeof *w);
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_lanes_opts opts;

    assert_non_null(w);
    assert_int_equal(quire_retain_parse(policy != NULL ? policy : "window:1", &spec, &err),
                     QUIRE_OK);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        quire_attn_layer *layer = &w->layers[l];

        *layer = (quire_attn_layer){ .n_head = N_HEAD,
                                     .n_kv_head = N_KV,
                                     .d_k = D,
                                     .d_v = D,
                                     .n_k = 1,
                                     .n_v = 1,
                                     .scale = 0.2f,
                                     .recent_tiles = WHOLE_RECENT,
                                     .sink_tiles = WHOLE_SINKS };
        layer->k[0].format = k;
        layer->k[0].rotate = rotation_of(k, true);
        layer->k[0].lane.offset = (size_t)l * 65536;
        layer->v[0].format = v;
        layer->v[0].rotate = rotation_of(v, false);
        layer->v[0].lane.offset = (size_t)l * 65536 + 32768;
        layer->k_store = layer->k[0];
        layer->v_store = layer->v[0];
    }
    opts = (quire_lanes_opts){ .spec = &spec,
                               .layers = w->layers,
                               .n_layers = N_LAYERS,
                               .n_text_max = N_TEXT,
                               .n_full_max = policy != NULL ? CHUNK : N_TEXT,
                               .n_rows_max = ROWS_MAX,
                               .n_threads = 3,
                               .n_repeat_max = policy != NULL ? REPEAT : 0,
                               .keeps_all = policy == NULL };
    if (quire_lanes_create(&w->lanes, &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
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

static int step_at(world *w, uint32_t begin, uint32_t n_rows)
{
    const quire_attn_device device = quire_lanes_device(w->lanes);
    const quire_attn_seq seq = { .n_tokens = begin + n_rows, .n_rows = n_rows };
    const quire_attn_batch batch = { .seqs = &seq, .n_seqs = 1, .page_tokens = 64 };
    int rc = device.plan(device.ctx, &batch);

    for (uint32_t l = 0; l < N_LAYERS && rc == QUIRE_OK; l++) {
        quire_attn_layer call = w->layers[l];

        call.q[0] = w->q[l][begin];
        call.q_stride = N_HEAD * D;
        call.k_new = w->k[l][begin];
        call.v_new = w->v[l][begin];
        call.k_new_stride = call.v_new_stride = N_KV * D;
        call.out = w->out[l][0];
        call.out_stride = N_HEAD * D;
        device.append(device.ctx, &call, 0, 1);
        device.run(device.ctx, &call, l, 0, 1);
    }
    w->n_step = n_rows;
    return rc == QUIRE_OK ? device.sync(device.ctx) : rc;
}

static void step(world *w, uint32_t n_rows)
{
    int rc = step_at(w, w->n_text, n_rows);

    if (rc != QUIRE_OK) {
        fail_msg("at %u: %s", w->n_text, quire_status_text(rc));
    }
    w->n_text += n_rows;
}

/* ---- contents of a lane ---- */

/* Read the rows of a lane, with the transform undone. Each must be near its token's original row.
 */
static void read_lane(world *w, uint32_t l, uint32_t g, double like)
{
    const quire_attn_layer *layer = &w->layers[l];
    uint32_t n;
    const int32_t *held = quire_lanes_positions(w->lanes, l, g, &n);

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t t = (uint32_t)held[i];
        double dot = 0.0, a = 0.0, b = 0.0;

        quire_lanes_read(w->lanes, l, g, i, w->read_k[t], w->read_v[t]);
        if (layer->k[0].rotate != 0) {
            quire_hadamard(w->read_k[t], D, D);
        }
        if (layer->v[0].rotate != 0) {
            quire_hadamard(w->read_v[t], D, D);
        }
        for (uint32_t d = 0; d < D; d++) {
            const double x = (double)w->read_k[t][d] + (double)w->read_v[t][d];
            const double y = (double)w->k[l][t][g * D + d] + (double)w->v[l][t][g * D + d];

            dot += x * y;
            a += x * x;
            b += y * y;
        }
        if (dot < like * sqrt(a * b)) {
            fail_msg("layer %u, lane %u, position %u is unlike its row: %g", l, g, t,
                     dot / sqrt(a * b));
        }
    }
}

static void check_rows(world *w, uint32_t n_rows, double like, double within)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t h = 0; h < N_HEAD; h++) {
            uint32_t n;
            const int32_t *held = quire_lanes_positions(w->lanes, l, h / GROUP, &n);

            read_lane(w, l, h / GROUP, like);
            for (uint32_t i = 0; i < n_rows; i++) {
                const uint32_t row = w->n_text - n_rows + i;
                double sum = 0.0, out[D] = { 0 };

                for (uint32_t j = 0; j < n; j++) {
                    const uint32_t t = (uint32_t)held[j];
                    double logit = 0.0;

                    for (uint32_t d = 0; d < D; d++) {
                        logit += (double)w->q[l][row][h * D + d] * (double)w->read_k[t][d];
                    }
                    logit = t <= row ? exp(0.2f * logit) : 0.0;
                    sum += logit;
                    for (uint32_t d = 0; d < D; d++) {
                        out[d] += logit * (double)w->read_v[t][d];
                    }
                }
                for (uint32_t d = 0; d < D; d++) {
                    const double got = (double)w->out[l][w->n_step - n_rows + i][h * D + d];

                    if (!(fabs(got - out[d] / sum) < within)) {
                        fail_msg("layer %u, row %u, head %u: %g, not %g", l, row, h, got,
                                 out[d] / sum);
                    }
                }
            }
        }
    }
}

static void check_bytes(const world *w, size_t page_bytes, size_t hot_bytes)
{
    const uint32_t edge = w->n_text - quire_lanes_n_full(w->lanes);
    quire_lanes_stats stats;
    uint64_t bytes = 0;

    quire_lanes_stats_get(w->lanes, &stats);
    assert_int_equal(edge % 64, 0);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t g = 0; g < N_KV; g++) {
            uint32_t n, n_condensed = 0;
            const int32_t *held = quire_lanes_positions(w->lanes, l, g, &n);

            while (n_condensed < n && held[n_condensed] < (int32_t)edge) {
                n_condensed++;
            }
            assert_int_equal(n_condensed % 64, 0); /* whole tiles */
            assert_int_equal(n - n_condensed, w->n_text - edge);
            bytes += (uint64_t)(n + 63) / 64 * page_bytes;
            bytes += (uint64_t)(n - n_condensed + 63) / 64 * hot_bytes;
        }
    }
    assert_int_equal(stats.live_bytes, bytes);
    assert_true(stats.peak_bytes <= stats.budget_bytes);
}

static size_t hot_bytes_of(quire_format k, quire_format v)
{
    return (quire_format_is_sealed(k) ? quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, D) : 0) +
           (quire_format_is_sealed(v) ? quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_V, D) : 0);
}

/* ---- the tests ---- */

/* slack: tokens a lane above the share, for whole tiles, and where protected tokens are more. */
static void check_text(const char *policy, quire_format k, quire_format v, double like,
                       uint32_t slack)
{
    static const uint32_t rows[] = { 100, 64, 1, 90, 33, 1, 100 };
    const size_t page_bytes =
        quire_tile_bytes(k, QUIRE_SIDE_K, D) + quire_tile_bytes(v, QUIRE_SIDE_V, D);
    world *w = world_make(policy, k, v);
    quire_lanes_stats stats;

    for (uint32_t i = 0; w->n_text + 100 <= N_TEXT; i++) {
        const uint32_t n = rows[i % 7];

        if (quire_lanes_n_full(w->lanes) + n > CHUNK) {
            assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
            assert_true(quire_lanes_n_full(w->lanes) < RECENT + 64);
            check_bytes(w, page_bytes, hot_bytes_of(k, v));
            quire_lanes_stats_get(w->lanes, &stats);
            assert_true(stats.n_held <=
                        (uint64_t)(0.6 * w->n_text * N_LAYERS * N_KV) + slack * N_LAYERS * N_KV);
        }
        step(w, n);
        check_bytes(w, page_bytes, hot_bytes_of(k, v));
        check_rows(w, n < 3 ? n : 3, like, 2e-2);
    }
    quire_lanes_stats_get(w->lanes, &stats);
    assert_true(stats.generations >= 3);
    assert_true(stats.n_held < (uint64_t)(0.75 * w->n_text * N_LAYERS * N_KV));
    assert_int_equal(step_at(w, 0, 70), QUIRE_OK); /* another text */
    w->n_text = 70;
    check_bytes(w, page_bytes, hot_bytes_of(k, v));
    world_free(w);
}

static void test_formats(void **state)
{
    (void)state;
    check_text("snap:0.5,recent=40", QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q5, 0.995, 64);
    check_text("random:0.5,recent=40", QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4, 0.98, 64);
    check_text("entropy:0.5,recent=40,full_layers=none", QUIRE_FORMAT_Q3, QUIRE_FORMAT_Q4, 0.95,
               64);
    check_text("snap:0.5,recent=40", QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4, 0.98, 64);
    check_text("keydiff:0.5,recent=40", QUIRE_FORMAT_Q4, QUIRE_FORMAT_F16, 0.98, 64);
    check_text("random:0.6,recent=40,full_layers=0,sinks=70", QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4,
               0.98, 128 + RECENT + 64);
}

/* A row that was sealed keeps its bits. */
static void test_coded_once(void **state)
{
    world *w = world_make("random:0.5,recent=40", QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4);
    static float first[N_TEXT][D];
    uint32_t n_first, n;
    const int32_t *held;
    int32_t positions[N_TEXT];

    (void)state;
    for (int i = 0; i < 3; i++) {
        step(w, 100);
    }
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK); /* nothing new */
    held = quire_lanes_positions(w->lanes, 1, 1, &n_first);
    n_first -= quire_lanes_n_full(w->lanes);
    assert_int_equal(quire_lanes_n_full(w->lanes), 300 - 256);
    assert_true(n_first >= 64 && n_first <= 192);
    memcpy(positions, held, n_first * sizeof *positions);
    read_lane(w, 1, 1, 0.98);
    for (uint32_t i = 0; i < n_first; i++) {
        memcpy(first[i], w->read_v[positions[i]], sizeof first[i]);
    }
    for (int i = 0; i < 4; i++) {
        step(w, 60);
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    }
    held = quire_lanes_positions(w->lanes, 1, 1, &n);
    assert_true(n > n_first);
    assert_memory_equal(held, positions, n_first * sizeof *positions);
    read_lane(w, 1, 1, 0.98);
    for (uint32_t i = 0; i < n_first; i++) {
        assert_memory_equal(first[i], w->read_v[positions[i]], sizeof first[i]);
    }
    world_free(w);
}

/* Rows that repeat the text fill tiles behind it, and go again. */
static void test_repeated(void **state)
{
    world *w = world_make("reconstruct:0.5,recent=40", QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4);

    (void)state;
    for (int round = 0; round < 3; round++) {
        step(w, 100);
        step(w, 77);
        while (quire_lanes_n_repeated(w->lanes) < w->n_text) {
            const uint32_t begin = quire_lanes_n_repeated(w->lanes);
            const uint32_t end = begin + 60 < w->n_text ? begin + 60 : w->n_text;

            quire_lanes_repeat_begin(w->lanes, begin, end);
            assert_int_equal(step_at(w, w->n_text, 10 + end - begin), QUIRE_OK);
            quire_lanes_repeat_end(w->lanes, true);
        }
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
        step(w, 50);
        check_rows(w, 3, 0.98, 2e-2);
    }
    world_free(w);
}

/* A cut inside of the tokens held in full. */
static void test_cut(void **state)
{
    world *w = world_make("snap:0.5,recent=40", QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q5);

    (void)state;
    step(w, 100);
    step(w, 100);
    step(w, 70);
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    assert_int_equal(quire_lanes_n_full(w->lanes), 270 - 192);
    w->n_text = 200;
    step(w, 90);
    check_rows(w, 3, 0.98, 2e-2);
    assert_int_equal(step_at(w, 191, 1), QUIRE_UNSUPP);
    world_free(w);
}

/* Whether a tile of a text that keeps all tokens has a hot page, behind the step of a row. */
static bool is_hot(uint32_t row, uint32_t tile)
{
    return tile < WHOLE_SINKS || row / 64 - tile <= WHOLE_RECENT;
}

/* Outputs of all rows, in steps of n: [N_LAYERS][N_TEXT][N_HEAD * D]. */
static float *whole_rows(world *w, uint32_t n)
{
    const size_t page_bytes = quire_tile_bytes(w->layers[0].k[0].format, QUIRE_SIDE_K, D) +
                              quire_tile_bytes(w->layers[0].v[0].format, QUIRE_SIDE_V, D);
    const size_t hot_bytes = hot_bytes_of(w->layers[0].k[0].format, w->layers[0].v[0].format);
    const size_t row = N_HEAD * D, layer = N_TEXT * row;
    float *all = calloc(N_LAYERS * layer, sizeof *all);
    quire_lanes_stats stats;

    assert_non_null(all);
    w->n_text = 0;
    while (w->n_text < N_TEXT) {
        const uint32_t begin = w->n_text;
        uint64_t n_hot = 0;

        step(w, n < N_TEXT - begin ? n : N_TEXT - begin);
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK); /* nothing */
        for (uint32_t tile = 0; tile <= (w->n_text - 1) / 64; tile++) {
            n_hot += tile > begin / 64 || is_hot(begin, tile);
        }
        quire_lanes_stats_get(w->lanes, &stats);
        assert_int_equal(stats.generations, 0);
        assert_int_equal(stats.live_bytes,
                         N_LAYERS * N_KV *
                             ((w->n_text + 63) / 64 * page_bytes + n_hot * hot_bytes));
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            memcpy(all + l * layer + begin * row, w->out[l][0], w->n_step * row * sizeof *all);
        }
    }
    assert_true(stats.peak_bytes <= stats.budget_bytes);
    assert_int_equal(stats.n_held, N_TEXT * N_LAYERS * N_KV);
    return all;
}

/* All tokens kept: rows read tiles in 8 bits by distance, however steps are cut, and hot pages
 * behind the recent tokens are given back. */
static void test_whole(void **state)
{
    static const quire_format formats[][2] = { { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4 },
                                               { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q3 },
                                               { QUIRE_FORMAT_Q6, QUIRE_FORMAT_F16 } };

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        world *w = world_make(NULL, formats[i][0], formats[i][1]);
        float *some = whole_rows(w, 77);
        float *single = whole_rows(w, 1);

        assert_memory_equal(single, some, N_LAYERS * N_TEXT * N_HEAD * D * sizeof *some);
        check_rows(w, 1, 0.95, 2e-2);
        /* A cut finds its tile in 8 bits, or moves to the beginning of the tile. */
        assert_int_equal(quire_lanes_keepable(w->lanes, N_TEXT - 70), N_TEXT - 70);
        assert_int_equal(quire_lanes_keepable(w->lanes, 500), 448);
        assert_int_equal(quire_lanes_keepable(w->lanes, 33), 33);
        assert_int_equal(step_at(w, 500, 1), QUIRE_UNSUPP);
        quire_lanes_truncate(w->lanes, 448);
        w->n_text = 448;
        step(w, 100);
        check_rows(w, 3, 0.95, 2e-2);
        free(some);
        free(single);
        world_free(w);
    }
}

/* ---- room ---- */

/* A random policy for a format, of those that need no maps and no rotation. */
static void policy_make(char *text, size_t text_bytes, bool is_sealed)
{
    static const char *const names[] = { "snap",  "entropy",     "keydiff", "stride", "random",
                                         "heavy", "reconstruct", "window",  "last" };
    const uint32_t n_names = is_sealed ? 7 : 9; /* without those that drop kept tokens */

    (void)snprintf(
        text, text_bytes, "%s:%.3f,sinks=%u,recent=%u,floor=%.2f,granule=%u,full_layers=%s",
        names[quire_rng_below(&rng, n_names)], 0.01 + 0.98 * quire_rng_unit(&rng),
        quire_rng_below(&rng, 3) == 0 ? quire_rng_below(&rng, 300) : 4,
        1 + quire_rng_below(&rng, quire_rng_below(&rng, 3) == 0 ? 400 : 60), quire_rng_unit(&rng),
        quire_rng_below(&rng, 2) == 0 ? 1 : 1 + quire_rng_below(&rng, 300),
        quire_rng_below(&rng, 3) == 0 ? "0" : "none");
}

/* The queries of one layer look at few tokens, those of the others at all. */
static void layers_differ(world *w)
{
    const uint32_t sharp = quire_rng_below(&rng, N_LAYERS);

    for (uint32_t l = 0; l < N_LAYERS; l++) {
        float *q = &w->q[l][0][0];

        for (size_t i = 0; i < sizeof w->q[l] / sizeof *q; i++) {
            q[i] *= l == sharp ? 4.0f : 0.05f;
        }
    }
}

static void repeat_all(world *w)
{
    while (quire_lanes_n_repeated(w->lanes) < w->n_text) {
        const uint32_t begin = quire_lanes_n_repeated(w->lanes);
        const uint32_t end = begin + 60 < w->n_text ? begin + 60 : w->n_text;

        quire_lanes_repeat_begin(w->lanes, begin, end);
        assert_int_equal(step_at(w, w->n_text, 10 + end - begin), QUIRE_OK);
        quire_lanes_repeat_end(w->lanes, true);
    }
}

/* Behind a condensing: the share, or the tokens that stay in any case if they are more; and what
 * whole tiles and granules add. */
static void check_share(const world *w, const quire_retain_spec *spec, bool is_sealed)
{
    const uint32_t n_full = quire_lanes_n_full(w->lanes);
    const uint32_t n_last = spec->recent > n_full ? spec->recent : n_full;
    const double n_lanes = N_LAYERS * N_KV, n_whole = spec->n_full * N_KV;
    const double share = spec->share * w->n_text * n_lanes;
    const double least = n_whole * w->n_text + (n_lanes - n_whole) * (spec->sinks + n_last);
    const double rest = n_lanes * (is_sealed ? 64 : spec->granule);
    quire_lanes_stats stats;

    quire_lanes_stats_get(w->lanes, &stats);
    if ((double)stats.n_held > (share > least ? share : least) + rest) {
        fail_msg("%llu tokens of %u are held in %.0f lanes", (unsigned long long)stats.n_held,
                 w->n_text, n_lanes);
    }
}

/* The lanes have room for what any policy keeps, and that is no more than its share. */
static void check_room(const char *policy, quire_format k, quire_format v)
{
    const bool is_sealed = quire_format_is_sealed(k) || quire_format_is_sealed(v);
    const uint32_t most = 1 + quire_rng_below(&rng, ROWS_MAX);
    world *w = world_make(policy, k, v);
    quire_error err = QUIRE_ERROR_INIT;
    quire_lanes_stats stats;
    quire_retain_spec spec;

    assert_int_equal(quire_retain_parse(policy, &spec, &err), QUIRE_OK);
    layers_differ(w);
    while (w->n_text + most <= N_TEXT) {
        const uint32_t n = quire_rng_below(&rng, 3) == 0 ? 1 + quire_rng_below(&rng, most) : most;

        if (quire_lanes_n_full(w->lanes) + n > CHUNK) {
            if (spec.policy->worth == QUIRE_RETAIN_WORTH_REPEATED) {
                repeat_all(w);
            }
            assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
            check_share(w, &spec, is_sealed);
        }
        step(w, n);
    }
    quire_lanes_stats_get(w->lanes, &stats);
    assert_true(stats.peak_bytes <= stats.budget_bytes);
    world_free(w);
}

static void test_room(void **state)
{
    static const quire_format formats[][2] = { { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4 },
                                               { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 },
                                               { QUIRE_FORMAT_Q4, QUIRE_FORMAT_F16 },
                                               { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 } };

    (void)state;
    for (uint32_t round = 0; round < TEST_ROUNDS(120u, 20u);) {
        const quire_format *f = formats[round % 4];
        quire_error err = QUIRE_ERROR_INIT;
        bool is_full[N_LAYERS];
        quire_retain_spec spec;
        char policy[QUIRE_RETAIN_TEXT_MAX];

        policy_make(policy, sizeof policy, round % 4 < 3);
        assert_int_equal(quire_retain_parse(policy, &spec, &err), QUIRE_OK);
        if (quire_retain_full_layers(&spec, N_LAYERS, NULL, is_full, &err) == QUIRE_OK) {
            check_room(policy, f[0], f[1]);
            round++;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),  cmocka_unit_test(test_coded_once),
        cmocka_unit_test(test_repeated), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_whole),    cmocka_unit_test(test_room),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
