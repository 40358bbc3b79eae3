/* test_lanes_windowed.c - layers with windows among lanes: attention to all tokens of the window
 * whatever a policy drops elsewhere, pages that are given back, room, cuts, sealed formats.
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

#define N_LAYERS     5u
#define N_KV         2u
#define GROUP        2u
#define N_HEAD       (N_KV * GROUP)
#define D            32u
#define N_TEXT       1000u
#define ROWS_MAX     100u
#define CHUNK        300u
#define REPEAT       90u
#define RECENT_TILES 1u
#define SINK_TILES   1u

static quire_rng rng;

/* Layers that see everything, windows of less than a tile and of more, and chunks. */
static const uint32_t windows[N_LAYERS] = { 0, 40, 150, 0, 128 };
#define CHUNKED 4u

typedef struct world {
    quire_attn_layer layers[N_LAYERS];
    quire_lanes *lanes;
    uint32_t n_text;
    uint32_t begin; /* of the last step */
    float q[N_LAYERS][N_TEXT + REPEAT][N_HEAD * D];
    float k[N_LAYERS][N_TEXT + REPEAT][N_KV * D];
    float v[N_LAYERS][N_TEXT + REPEAT][N_KV * D];
    float out[N_LAYERS][ROWS_MAX][N_HEAD * D];
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

static void make_layers(world *w, quire_format k, quire_format v)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        quire_attn_layer *layer = &w->layers[l];

        *layer = (quire_attn_layer){ .n_head = N_HEAD,
                                     .n_kv_head = N_KV,
                                     .d_k = D,
                                     .d_v = D,
                                     .n_k = 1,
                                     .n_v = 1,
                                     .scale = 0.2f,
                                     .window = windows[l],
                                     .has_chunks = l == CHUNKED,
                                     .recent_tiles = RECENT_TILES,
                                     .sink_tiles = SINK_TILES };
        layer->k[0].format = k;
        layer->k[0].rotate = rotation_of(k, true);
        layer->k[0].lane.offset = (size_t)l * 65536;
        layer->v[0].format = v;
        layer->v[0].rotate = rotation_of(v, false);
        layer->v[0].lane.offset = (size_t)l * 65536 + 32768;
        layer->k_store = layer->k[0];
        layer->v_store = layer->v[0];
    }
}

/* policy NULL: all tokens are kept. */
static world *world_make(const char *policy, quire_format k, quire_format v)
{
    world *w = calloc(1, sizeof *w);
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_lanes_opts opts;

    assert_non_null(w);
    assert_int_equal(quire_retain_parse(policy != NULL ? policy : "window:1", &spec, &err),
                     QUIRE_OK);
    make_layers(w, k, v);
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

/* The rows of another world. */
static void rows_copy(world *to, const world *from)
{
    memcpy(to->q, from->q, sizeof to->q);
    memcpy(to->k, from->k, sizeof to->k);
    memcpy(to->v, from->v, sizeof to->v);
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
        for (uint32_t i = 0; i < 3; i++) {
            device.append(device.ctx, &call, i, 3);
        }
        for (uint32_t i = 0; i < 3; i++) {
            device.run(device.ctx, &call, l, i, 3);
        }
    }
    w->begin = begin;
    return rc == QUIRE_OK ? device.sync(device.ctx) : rc;
}

static void step(world *w, uint32_t n_rows)
{
    const int rc = step_at(w, w->n_text, n_rows);

    if (rc != QUIRE_OK) {
        fail_msg("at %u: %s", w->n_text, quire_status_text(rc));
    }
    w->n_text += n_rows;
}

static void repeat_all(world *w)
{
    while (quire_lanes_n_repeated(w->lanes) < w->n_text) {
        const uint32_t begin = quire_lanes_n_repeated(w->lanes);
        const uint32_t end = begin + 70 < w->n_text ? begin + 70 : w->n_text;

        quire_lanes_repeat_begin(w->lanes, begin, end);
        for (uint32_t done = 0; done < 10 + end - begin; done += 40) {
            const uint32_t n_left = 10 + end - begin - done;

            assert_int_equal(step_at(w, w->n_text + done, n_left < 40 ? n_left : 40), QUIRE_OK);
        }
        quire_lanes_repeat_end(w->lanes, true);
    }
}

static void condense(world *w, const char *policy)
{
    if (strstr(policy, "reconstruct") != NULL) {
        repeat_all(w);
    }
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
}

/* ---- windows ---- */

/* The first token that a row sees in a layer. */
static uint32_t first_seen(uint32_t l, uint32_t row)
{
    return l == CHUNKED ? row - row % windows[l] : row < windows[l] ? 0 : row - windows[l] + 1;
}

/* Head h of a row on all tokens of its window, in double precision. */
static void expect_row(const world *w, uint32_t l, uint32_t h, uint32_t row, double *out)
{
    double sum = 0.0;

    memset(out, 0, D * sizeof *out);
    for (uint32_t t = first_seen(l, row); t <= row; t++) {
        double logit = 0.0;

        for (uint32_t i = 0; i < D; i++) {
            logit += (double)w->q[l][row][h * D + i] * (double)w->k[l][t][h / GROUP * D + i];
        }
        logit = exp(0.2 * logit);
        sum += logit;
        for (uint32_t i = 0; i < D; i++) {
            out[i] += logit * (double)w->v[l][t][h / GROUP * D + i];
        }
    }
    for (uint32_t i = 0; i < D; i++) {
        out[i] /= sum;
    }
}

static void check_windows(const world *w, double tolerance)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t i = 0; windows[l] != 0 && i < w->n_text - w->begin; i++) {
            for (uint32_t h = 0; h < N_HEAD; h++) {
                double want[D];

                expect_row(w, l, h, w->begin + i, want);
                for (uint32_t d = 0; d < D; d++) {
                    const double got = (double)w->out[l][i][h * D + d];

                    if (!(fabs(got - want[d]) < tolerance)) {
                        fail_msg("layer %u, row %u, head %u: %g, not %g", l, w->begin + i, h, got,
                                 want[d]);
                    }
                }
            }
        }
    }
}

static size_t hot_bytes_of(quire_format k, quire_format v)
{
    return (quire_format_is_sealed(k) ? quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, D) : 0) +
           (quire_format_is_sealed(v) ? quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_V, D) : 0);
}

/* Bytes of a windowed lane behind a step from row `begin` on: all pages from the first tile in the
 * window of row `begin`, and hot pages of new tiles and of tiles that the row reads in 8 bits. */
static uint64_t window_bytes(const world *w, uint32_t l, size_t page_bytes, size_t hot_bytes)
{
    const uint32_t first = first_seen(l, w->begin) / 64, n = (w->n_text + 63) / 64;
    uint64_t bytes = (uint64_t)(n - first) * page_bytes;

    for (uint32_t tile = first; tile < n; tile++) {
        const bool is_recent = tile + RECENT_TILES >= w->begin / 64;

        bytes += is_recent || tile < SINK_TILES ? hot_bytes : 0;
    }
    return bytes;
}

/* Layers with windows take their windows' bytes, and the others those of their kept tokens. */
static void check_bytes(const world *w)
{
    const quire_format k = w->layers[0].k[0].format, v = w->layers[0].v[0].format;
    const size_t page_bytes =
        quire_tile_bytes(k, QUIRE_SIDE_K, D) + quire_tile_bytes(v, QUIRE_SIDE_V, D);
    const size_t hot_bytes = hot_bytes_of(k, v);
    const uint32_t n_full = quire_lanes_n_full(w->lanes);
    uint64_t bytes = 0, n_held = 0;
    quire_lanes_stats stats;

    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t g = 0; g < N_KV; g++) {
            uint32_t n;
            const int32_t *held = quire_lanes_positions(w->lanes, l, g, &n);

            if (windows[l] != 0) {
                assert_null(held);
                assert_int_equal(n, w->n_text - first_seen(l, w->begin) / 64 * 64);
                bytes += window_bytes(w, l, page_bytes, hot_bytes);
            } else {
                bytes += (uint64_t)(n + 63) / 64 * page_bytes;
                bytes += (uint64_t)(n_full + 63) / 64 * hot_bytes;
                n_held += n;
            }
        }
    }
    quire_lanes_stats_get(w->lanes, &stats);
    assert_int_equal(stats.n_held, n_held);
    assert_int_equal(stats.live_bytes, bytes);
    assert_true(stats.peak_bytes <= stats.budget_bytes);
}

/* ---- the tests ---- */

static void check_policy(const char *policy, quire_format format, double tolerance)
{
    static const uint32_t rows[] = { 100, 60, 1, 64, 33, 1, 1, 90, 100 };
    world *w = world_make(policy, format, format);

    for (uint32_t i = 0; w->n_text + 100 <= N_TEXT; i++) {
        const uint32_t n = rows[i % 9];

        if (quire_lanes_n_full(w->lanes) + n > CHUNK) {
            condense(w, policy);
        }
        step(w, n);
        check_windows(w, tolerance);
        check_bytes(w);
    }
    world_free(w);
}

static void test_attention(void **state)
{
    static const char *const policies[] = { "entropy:0.3,recent=16,full_layers=none",
                                            "snap:0.1,recent=4",
                                            "keydiff:0.1,recent=4,floor=0.1",
                                            "window:0.05,recent=1",
                                            "last:0.05",
                                            "stride:0.1,recent=4",
                                            "random:0.1,recent=4",
                                            "heavy:0.1,recent=4",
                                            "reconstruct:0.1,recent=4,repeat=70" };

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        check_policy(policies[i], QUIRE_FORMAT_F32, 2e-5);
    }
    check_policy(policies[0], QUIRE_FORMAT_F16, 5e-3);
    check_policy(policies[8], QUIRE_FORMAT_BF16, 5e-2);
    check_policy(policies[1], QUIRE_FORMAT_Q8, 1e-1);
}

/* Sealed formats: a policy changes no bit of a layer with a window, and the distance rule says
 * which tiles have hot pages, as in a text that keeps all its tokens. */
static void test_sealed(void **state)
{
    static const quire_format formats[][2] = { { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4 },
                                               { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q3 },
                                               { QUIRE_FORMAT_Q6, QUIRE_FORMAT_F16 } };
    static const char *const policies[] = { "keydiff:0.3,recent=20",
                                            "reconstruct:0.3,recent=20,repeat=70" };

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        const quire_format *f = formats[i % 3];
        world *w = world_make(policies[i / 3], f[0], f[1]);
        world *all = world_make(NULL, f[0], f[1]);

        rows_copy(all, w);
        for (uint32_t s = 0; w->n_text + 100 <= N_TEXT; s++) {
            const uint32_t n = s % 4 == 3 ? 1 : 77 + s;

            if (quire_lanes_n_full(w->lanes) + n > CHUNK) {
                condense(w, policies[i / 3]);
            }
            step(w, n);
            step(all, n);
            check_bytes(w);
            for (uint32_t l = 0; l < N_LAYERS; l++) {
                assert_true(windows[l] == 0 ||
                            memcmp(w->out[l], all->out[l], n * sizeof w->out[l][0]) == 0);
            }
        }
        world_free(all);
        world_free(w);
    }
}

/* A cut finds the windows before it, or leaves nothing. Behind it the text goes on with the bits of
 * one that never had the cut tokens. */
static void test_cuts(void **state)
{
    world *w = world_make("keydiff:0.5,recent=16", QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    world *never = world_make("keydiff:0.5,recent=16", QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);

    (void)state;
    rows_copy(never, w);
    for (int i = 0; i < 3; i++) {
        step(w, 90);
        step(never, 90);
    }
    condense(w, "");
    condense(never, "");
    step(w, 90);
    step(never, 60);
    /* The last step began at 270, where the widest window begins at 121, in tile 1. */
    assert_int_equal(quire_lanes_keepable(w->lanes, 330), 330);
    assert_int_equal(quire_lanes_keepable(w->lanes, 270), 270);
    assert_int_equal(quire_lanes_keepable(w->lanes, 269), 0); /* condensed */
    w->n_text = 330;
    quire_lanes_truncate(w->lanes, 330);
    check_bytes(w);
    step(w, 40);
    step(never, 40);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        assert_memory_equal(w->out[l], never->out[l], 40 * sizeof w->out[l][0]);
    }
    /* Steps of one row give back what a longer cut would need. */
    for (int i = 0; i < 80; i++) {
        step(w, 1);
    }
    assert_int_equal(quire_lanes_keepable(w->lanes, 449), 449);
    assert_int_equal(quire_lanes_keepable(w->lanes, 280), 0); /* not condensed: no window */
    assert_int_equal(step_at(w, 280, 1), QUIRE_UNSUPP);
    quire_lanes_truncate(w->lanes, 0);
    w->n_text = 0;
    step(w, 30);
    check_windows(w, 5e-3);
    check_bytes(w);
    world_free(never);
    world_free(w);
}

/* A cut of a sealed text needs the windows before it as well. */
static void test_sealed_cuts(void **state)
{
    world *w = world_make(NULL, QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4);

    (void)state;
    for (int i = 0; i < 5; i++) {
        step(w, 100);
    }
    step(w, 1);
    /* From row 500 on the shortest window begins at 461, in tile 7. */
    assert_int_equal(quire_lanes_keepable(w->lanes, 490), 490);
    assert_int_equal(quire_lanes_keepable(w->lanes, 487), 487);
    assert_int_equal(quire_lanes_keepable(w->lanes, 486), 0);
    w->n_text = 490;
    step(w, 60);
    step(w, 1);
    assert_int_equal(quire_lanes_keepable(w->lanes, 490), 0);
    world_free(w);
}

/* Policies, formats and steps by chance: the room is enough. */
static void test_room(void **state)
{
    static const char *const names[] = { "snap",  "entropy",     "keydiff", "stride",
                                         "heavy", "reconstruct", "window",  "last" };
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q4 };

    (void)state;
    for (uint32_t round = 0; round < TEST_ROUNDS(60u, 12u); round++) {
        const quire_format format = formats[round % 2];
        const uint32_t most = 1 + quire_rng_below(&rng, ROWS_MAX);
        char policy[QUIRE_RETAIN_TEXT_MAX];
        world *w;

        (void)snprintf(policy, sizeof policy, "%s:%.3f,recent=%u,full_layers=%s",
                       names[quire_rng_below(&rng, round % 2 == 1 ? 6 : 8)],
                       0.51 + 0.48 * quire_rng_unit(&rng), 1 + quire_rng_below(&rng, 60),
                       quire_rng_below(&rng, 2) == 0 ? "1+2+3" : "none");
        w = world_make(policy, format, format);
        while (w->n_text + most <= N_TEXT) {
            const uint32_t n =
                quire_rng_below(&rng, 3) == 0 ? 1 + quire_rng_below(&rng, most) : most;

            if (quire_lanes_n_full(w->lanes) + n > CHUNK) {
                condense(w, policy);
            }
            step(w, n);
            check_bytes(w);
        }
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention), cmocka_unit_test(test_sealed),
        cmocka_unit_test(test_cuts),      cmocka_unit_test(test_sealed_cuts),
        cmocka_unit_test(test_room),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
