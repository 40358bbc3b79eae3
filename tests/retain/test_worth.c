/* test_worth.c - the worth of tokens against double precision: accumulated attention, attention
 * while the text is repeated, predictions; and the expected queries.
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
#include "retain/kept_lanes_internal.h"
#include "seed.h"

#define N_LAYERS 3u
#define N_CHOOSE 2u /* layers; the one behind has a window, and no token of it a worth */
#define N_KV     2u
#define GROUP    2u
#define N_HEAD   (N_KV * GROUP)
#define D        16u
#define N_HIDDEN 20u
#define N_TEXT   300u
#define REPEAT   80u

static quire_rng rng;

typedef struct world {
    quire_attn_layer layers[N_LAYERS];
    quire_predictor *predictor;
    quire_lanes *lanes;
    uint32_t n_text;
    float q[N_LAYERS][N_TEXT + REPEAT][N_HEAD * D]; /* by position */
    float k[N_LAYERS][N_TEXT + REPEAT][N_KV * D];
    float v[N_LAYERS][N_TEXT + REPEAT][N_KV * D];
    float hidden[N_LAYERS][N_TEXT + REPEAT][N_HIDDEN];
    float out[N_TEXT][N_HEAD * D];
    float sinks[N_HEAD];
    float frequencies[D / 2];
} world;

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_normal(&rng);
    }
}

static void make_layers(world *w, quire_format format)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        quire_attn_layer *layer = &w->layers[l];

        *layer = (quire_attn_layer){ .n_head = N_HEAD,
                                     .n_kv_head = N_KV,
                                     .d_k = D,
                                     .d_v = D,
                                     .n_k = 1,
                                     .n_v = 1,
                                     .scale = 0.3f };
        layer->k[0].format = layer->v[0].format = format;
        layer->k[0].rotate = format == QUIRE_FORMAT_Q8 ? D : 0;
        layer->k[0].lane.offset = (size_t)l * 65536;
        layer->v[0].lane.offset = (size_t)l * 65536 + 32768;
        layer->k_store = layer->k[0];
        layer->v_store = layer->v[0];
    }
    w->layers[1].sinks = w->sinks;
    w->layers[N_CHOOSE].window = 70;
}

static world *world_make(const char *policy, quire_format format, uint32_t n_hidden)
{
    const quire_predictor_shape shape = { N_LAYERS, N_KV, N_HIDDEN, 7 };
    world *w = calloc(1, sizeof *w);
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_rotation rotation;
    quire_lanes_opts opts;

    assert_non_null(w);
    assert_int_equal(quire_retain_parse(policy, &spec, &err), QUIRE_OK);
    make_layers(w, format);
    fill(&w->q[0][0][0], sizeof w->q / sizeof(float));
    fill(&w->k[0][0][0], sizeof w->k / sizeof(float));
    fill(&w->v[0][0][0], sizeof w->v / sizeof(float));
    fill(&w->hidden[0][0][0], sizeof w->hidden / sizeof(float));
    fill(w->sinks, N_HEAD);
    for (uint32_t i = 0; i < D / 2; i++) {
        w->frequencies[i] = (float)pow(10000.0, -2.0 * i / D);
    }
    assert_int_equal(quire_predictor_create(&w->predictor, &shape), QUIRE_OK);
    fill(w->predictor->maps, (size_t)N_LAYERS * N_KV * (N_HIDDEN + 1));
    rotation = (quire_rotation){ D, quire_rng_below(&rng, 2) == 0, w->frequencies };
    opts = (quire_lanes_opts){ .spec = &spec,
                               .layers = w->layers,
                               .n_layers = N_LAYERS,
                               .n_text_max = N_TEXT,
                               .n_full_max = 200,
                               .n_rows_max = 100,
                               .n_threads = 2,
                               .n_repeat_max = REPEAT,
                               .rotation = &rotation,
                               .predictor = w->predictor,
                               .n_hidden = n_hidden };
    if (quire_lanes_create(&w->lanes, &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    return w;
}

static void world_free(world *w)
{
    quire_lanes_destroy(w->lanes);
    quire_predictor_free(w->predictor);
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
        call.k_new = w->k[l][begin];
        call.v_new = w->v[l][begin];
        quire_lanes_hidden_put(w->lanes, l, w->hidden[l][begin], N_HIDDEN);
        call.q_stride = N_HEAD * D;
        call.k_new_stride = call.v_new_stride = N_KV * D;
        call.out = w->out[0];
        call.out_stride = N_HEAD * D;
        for (uint32_t i = 0; i < 2; i++) {
            device.append(device.ctx, &call, i, 2);
        }
        for (uint32_t i = 0; i < 2; i++) {
            device.run(device.ctx, &call, l, i, 2);
        }
    }
    return rc == QUIRE_OK ? device.sync(device.ctx) : rc;
}

static void step(world *w, uint32_t n_rows)
{
    assert_int_equal(step_at(w, w->n_text, n_rows), QUIRE_OK);
    w->n_text += n_rows;
}

/* ---- attention, in double precision ---- */

static double power(const world *w, uint32_t l, uint32_t h, uint32_t row, uint32_t t)
{
    double sum = 0.0;

    if (t > row) {
        return 0.0;
    }
    for (uint32_t i = 0; i < D; i++) {
        sum += (double)w->q[l][row][h * D + i] * (double)w->k[l][t][h / GROUP * D + i];
    }
    return exp(sum * (double)w->layers[l].scale);
}

/* p[t] for the tokens in is_seen, [N_TEXT + REPEAT]. */
static void attend(const world *w, uint32_t l, uint32_t h, uint32_t row, const bool *is_seen,
                   double *p)
{
    double sum = w->layers[l].sinks != NULL ? exp((double)w->sinks[h]) : 0.0;

    for (uint32_t t = 0; t < N_TEXT + REPEAT; t++) {
        p[t] = is_seen[t] ? power(w, l, h, row, t) : 0.0;
        sum += p[t];
    }
    for (uint32_t t = 0; t < N_TEXT + REPEAT; t++) {
        p[t] /= sum;
    }
}

static void held_of(const world *w, uint32_t l, uint32_t g, bool *is_held)
{
    uint32_t n;
    const int32_t *held = quire_lanes_positions(w->lanes, l, g, &n);

    memset(is_held, 0, (N_TEXT + REPEAT) * sizeof *is_held);
    for (uint32_t i = 0; i < n; i++) {
        is_held[held[i]] = true;
    }
}

static void expect_worth(const world *w, uint32_t l, uint32_t g, const double *want, double within)
{
    uint32_t n;
    const int32_t *held = quire_lanes_positions(w->lanes, l, g, &n);
    const float *worth = quire_lanes_worth(w->lanes, l, g);

    for (uint32_t i = 0; i < n; i++) {
        if (!(fabs((double)worth[i] - want[held[i]]) <= within * (1 + fabs(want[held[i]])))) {
            fail_msg("layer %u, lane %u, position %d: %g, not %g", l, g, held[i], (double)worth[i],
                     want[held[i]]);
        }
    }
}

/* ---- accumulated attention ---- */

static double sums[N_CHOOSE][N_KV][N_TEXT + REPEAT];

static void add_rows(const world *w, uint32_t n_rows)
{
    bool is_held[N_TEXT + REPEAT];
    double p[N_TEXT + REPEAT];

    for (uint32_t l = 0; l < N_CHOOSE; l++) {
        for (uint32_t h = 0; h < N_HEAD; h++) {
            held_of(w, l, h / GROUP, is_held);
            for (uint32_t row = w->n_text - n_rows; row < w->n_text; row++) {
                attend(w, l, h, row, is_held, p);
                for (uint32_t t = 0; t < N_TEXT + REPEAT; t++) {
                    sums[l][h / GROUP][t] += p[t];
                }
            }
        }
    }
}

static void check_heavy(quire_format format, double within)
{
    static const uint32_t rows[] = { 70, 1, 40, 16, 1, 1, 50 };
    world *w = world_make("heavy:0.4,recent=8", format, 0);

    memset(sums, 0, sizeof sums);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        step(w, rows[i]);
        add_rows(w, rows[i]);
        for (uint32_t l = 0; l < N_CHOOSE; l++) {
            for (uint32_t g = 0; g < N_KV; g++) {
                expect_worth(w, l, g, sums[l][g], within);
            }
        }
        if (i == 2 || i == 5) {
            assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
        }
    }
    assert_int_equal(step_at(w, w->n_text - 1, 1), QUIRE_UNSUPP); /* a sum forgets no row */
    assert_int_equal(step_at(w, 0, 30), QUIRE_OK);                /* another text */
    w->n_text = 30;
    memset(sums, 0, sizeof sums);
    add_rows(w, 30);
    expect_worth(w, 1, 1, sums[1][1], within);
    world_free(w);
}

static void test_heavy(void **state)
{
    (void)state;
    check_heavy(QUIRE_FORMAT_F32, 1e-5);
    check_heavy(QUIRE_FORMAT_Q8, 5e-2);
}

/* The kept tokens are those with the highest sums. */
static void test_heavy_keeps(void **state)
{
    world *w = world_make("heavy:0.3,recent=5,sinks=2", QUIRE_FORMAT_F32, 0);
    bool is_held[N_TEXT + REPEAT];

    (void)state;
    memset(sums, 0, sizeof sums);
    step(w, 100);
    add_rows(w, 100);
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    for (uint32_t l = 0; l < N_CHOOSE; l++) {
        for (uint32_t g = 0; g < N_KV; g++) {
            double least = INFINITY, most = 0.0;
            uint32_t n = 0;

            held_of(w, l, g, is_held);
            for (uint32_t t = 2; t < 95; t++) {
                least = is_held[t] && sums[l][g][t] < least ? sums[l][g][t] : least;
                most = !is_held[t] && sums[l][g][t] > most ? sums[l][g][t] : most;
                n += is_held[t];
            }
            assert_true(least > most - 1e-4);
            assert_int_equal(n, 30 - 7);
        }
    }
    world_free(w);
}

/* ---- repeating ---- */

static void repeat(world *w, uint32_t begin, uint32_t end, uint32_t n_lead)
{
    const uint32_t n_rows = n_lead + end - begin;

    quire_lanes_repeat_begin(w->lanes, begin, end);
    for (uint32_t done = 0; done < n_rows;) {
        const uint32_t n = n_rows - done < 30 ? n_rows - done : 30;

        assert_int_equal(step_at(w, w->n_text + done, n), QUIRE_OK);
        done += n;
    }
    quire_lanes_repeat_end(w->lanes, true);
    assert_int_equal(quire_lanes_n_repeated(w->lanes), end);
}

static void want_repeated(const world *w, uint32_t begin, uint32_t end, uint32_t n_lead)
{
    const uint32_t n_rows = n_lead + end - begin;
    double p[N_TEXT + REPEAT];

    for (uint32_t l = 0; l < N_CHOOSE; l++) {
        for (uint32_t h = 0; h < N_HEAD; h++) {
            bool is_seen[N_TEXT + REPEAT] = { 0 };

            for (uint32_t t = 0; t < N_TEXT + REPEAT; t++) {
                is_seen[t] =
                    t < 4 || (t >= begin && t < end) || (t >= w->n_text && t < w->n_text + n_rows);
            }
            for (uint32_t row = w->n_text; row < w->n_text + n_rows; row++) {
                attend(w, l, h, row, is_seen, p);
                for (uint32_t t = begin; t < end; t++) {
                    sums[l][h / GROUP][t] = fmax(sums[l][h / GROUP][t], p[t]);
                }
            }
        }
    }
}

static void check_repeated(quire_format format, double within)
{
    world *w = world_make("reconstruct:0.5,recent=8", format, 0);
    quire_lanes_stats stats;

    memset(sums, 0, sizeof sums);
    step(w, 100);
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_INVAL); /* nothing was repeated */
    repeat(w, 0, 60, 12);
    want_repeated(w, 0, 60, 12);
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_INVAL);
    repeat(w, 60, 100, 9);
    want_repeated(w, 60, 100, 9);
    for (uint32_t l = 0; l < N_CHOOSE; l++) {
        expect_worth(w, l, 0, sums[l][0], within);
        expect_worth(w, l, 1, sums[l][1], within);
    }
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    step(w, 50);
    repeat(w, 100, 150, 0);
    want_repeated(w, 100, 150, 0);
    for (uint32_t l = 0; l < N_CHOOSE; l++) { /* those from before keep theirs */
        expect_worth(w, l, 0, sums[l][0], within);
        expect_worth(w, l, 1, sums[l][1], within);
    }
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
    quire_lanes_stats_get(w->lanes, &stats);
    assert_int_equal(stats.n_text, 150);
    assert_true(stats.n_held <= 75 * N_CHOOSE * N_KV);
    assert_true(stats.n_held + 2 >= 75 * N_CHOOSE * N_KV); /* lanes of all layers compete */
    world_free(w);
}

static void test_repeated(void **state)
{
    (void)state;
    check_repeated(QUIRE_FORMAT_F32, 1e-5);
    check_repeated(QUIRE_FORMAT_Q8, 5e-2);
}

/* When a row of the repeated part fails, the part has no worth, and the text is unchanged. */
static void test_repeat_fails(void **state)
{
    world *w = world_make("reconstruct:0.5,recent=8", QUIRE_FORMAT_F32, 0);
    quire_lanes_stats stats;

    (void)state;
    step(w, 100);
    quire_lanes_repeat_begin(w->lanes, 0, 50);
    assert_int_equal(step_at(w, 100, 20), QUIRE_OK);
    quire_lanes_repeat_end(w->lanes, false);
    assert_int_equal(quire_lanes_n_repeated(w->lanes), 0);
    quire_lanes_stats_get(w->lanes, &stats);
    assert_int_equal(stats.n_text, 100);
    assert_int_equal(stats.n_held, 100 * N_CHOOSE * N_KV);
    step(w, 10);
    world_free(w);
}

/* ---- predicting ---- */

static void test_predicted(void **state)
{
    world *w = world_make("predict:0.5,recent=8", QUIRE_FORMAT_F16, 0);
    double want[N_TEXT + REPEAT];

    (void)state;
    step(w, 100);
    step(w, 1);
    for (int round = 0; round < 2; round++) {
        for (uint32_t l = 0; l < N_CHOOSE; l++) {
            for (uint32_t g = 0; g < N_KV; g++) {
                const float *map = quire_predictor_map(w->predictor, l, g);

                for (uint32_t t = 0; t < w->n_text; t++) {
                    double sum = (double)map[N_HIDDEN];

                    for (uint32_t i = 0; i < N_HIDDEN; i++) {
                        sum += (double)map[i] * (double)w->hidden[l][t][i];
                    }
                    want[t] = fmin(1.0, exp(sum));
                }
                expect_worth(w, l, g, want, 1e-5);
            }
        }
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
        step(w, 30);
    }
    world_free(w);
}

/* Hidden states are kept for tokens that are held in full. */
static void test_hidden(void **state)
{
    world *w = world_make("reconstruct:1", QUIRE_FORMAT_F16, N_HIDDEN);

    (void)state;
    step(w, 60);
    step(w, 40);
    repeat(w, 0, 50, 3);
    for (uint32_t l = 0; l < N_CHOOSE; l++) {
        assert_memory_equal(quire_lanes_hidden(w->lanes, l), w->hidden[l][0],
                            100 * N_HIDDEN * sizeof(float));
    }
    assert_null(quire_lanes_hidden(w->lanes, N_CHOOSE));
    assert_null(quire_lanes_worth(w->lanes, N_CHOOSE, 0));
    world_free(w);
}

static void test_no_hidden(void **state)
{
    world *w = world_make("predict:0.5", QUIRE_FORMAT_F16, 0);
    const quire_attn_device device = quire_lanes_device(w->lanes);
    const quire_attn_seq seq = { .n_tokens = 5, .n_rows = 5 };
    const quire_attn_batch batch = { .seqs = &seq, .n_seqs = 1, .page_tokens = 64 };
    quire_attn_layer call = w->layers[0];

    (void)state;
    call.k_new = w->k[0][0];
    call.v_new = w->v[0][0];
    call.k_new_stride = call.v_new_stride = N_KV * D;
    assert_int_equal(device.plan(device.ctx, &batch), QUIRE_OK);
    device.append(device.ctx, &call, 0, 1);
    assert_int_equal(device.sync(device.ctx), QUIRE_INVAL);
    world_free(w);
}

/* ---- expected queries ---- */

static void turn(const world *w, double position, const double *x, double *y)
{
    for (uint32_t i = 0; i < D / 2; i++) {
        const bool halves = w->lanes->rotation.has_halves;
        const uint32_t a = halves ? i : 2 * i, b = halves ? D / 2 + i : 2 * i + 1;
        const double angle = position * (double)w->frequencies[i];

        y[a] = x[a] * cos(angle) - x[b] * sin(angle);
        y[b] = x[a] * sin(angle) + x[b] * cos(angle);
    }
}

/* The average of turns is linear: apply it to x. */
static void turn_ahead(const world *w, uint32_t first, uint32_t n, const double *x, double *y)
{
    memset(y, 0, D * sizeof *y);
    for (uint32_t p = first; p < first + n; p++) {
        double turned[D];

        turn(w, p, x, turned);
        for (uint32_t i = 0; i < D; i++) {
            y[i] += turned[i] / n;
        }
    }
}

/* The queries of rows from `begin` on. */
static void check_ahead(const world *w, uint32_t l, uint32_t g, uint32_t begin, uint32_t future)
{
    float mean[GROUP * D], cov[GROUP * D * D];

    quire_lanes_sums_ahead(w->lanes, l, g, mean, cov);
    for (uint32_t h = 0; h < GROUP; h++) {
        double want_mean[D] = { 0 }, want_cov[D][D] = { { 0 } };
        double n = 0;

        for (int pass = 0; pass < 2; pass++) { /* the mean, then the deviations from it */
            for (uint32_t row = begin; row < w->n_text; row++) {
                double x[D], back[D], y[D];

                for (uint32_t i = 0; i < D; i++) {
                    x[i] =
                        (double)w->q[l][row][(g * GROUP + h) * D + i] * (double)w->layers[l].scale;
                }
                turn(w, -(double)row, x, back);
                turn_ahead(w, w->n_text, future, back, y);
                n += pass == 0;
                for (uint32_t a = 0; a < D; a++) {
                    want_mean[a] += pass == 0 ? y[a] : 0.0;
                    for (uint32_t b = 0; b < D && pass == 1; b++) {
                        want_cov[a][b] += (y[a] - want_mean[a]) * (y[b] - want_mean[b]) / n;
                    }
                }
            }
            for (uint32_t a = 0; a < D && pass == 0; a++) {
                want_mean[a] /= n;
            }
        }
        if (w->layers[l].k[0].rotate != 0) { /* back from the transform of the keys */
            quire_hadamard(mean + h * D, D, D);
            quire_hadamard(cov + h * D * D, D * D, D);
            for (uint32_t b = 0; b < D; b++) {
                float column[D];

                for (uint32_t a = 0; a < D; a++) {
                    column[a] = cov[(h * D + a) * D + b];
                }
                quire_hadamard(column, D, D);
                for (uint32_t a = 0; a < D; a++) {
                    cov[(h * D + a) * D + b] = column[a];
                }
            }
        }
        for (uint32_t a = 0; a < D; a++) {
            assert_true(fabs((double)mean[h * D + a] - want_mean[a]) < 1e-4);
            for (uint32_t b = 0; b < D; b++) {
                assert_true(fabs((double)cov[(h * D + a) * D + b] - want_cov[a][b]) < 1e-4);
            }
        }
    }
}

static void test_expected(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        world *w = world_make("expected:0.5,recent=8,future=40",
                              i == 0 ? QUIRE_FORMAT_F32 : QUIRE_FORMAT_Q8, 0);
        quire_lanes_stats stats;

        step(w, 90);
        step(w, 3);
        check_ahead(w, 0, 0, 4, 40);
        check_ahead(w, 1, 1, 4, 40);
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
        quire_lanes_stats_get(w->lanes, &stats);
        assert_int_equal(stats.n_held, 93 * N_CHOOSE * N_KV / 2);
        step(w, 20);
        check_ahead(w, 0, 1, 93, 40);
        assert_int_equal(step_at(w, w->n_text - 1, 1), QUIRE_UNSUPP);
        assert_int_equal(step_at(w, 0, 50), QUIRE_OK);
        w->n_text = 50;
        check_ahead(w, 1, 0, 4, 40);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heavy),     cmocka_unit_test(test_heavy_keeps),
        cmocka_unit_test(test_repeated),  cmocka_unit_test(test_repeat_fails),
        cmocka_unit_test(test_predicted), cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_no_hidden), cmocka_unit_test(test_expected),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
