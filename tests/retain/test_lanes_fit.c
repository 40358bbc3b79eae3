/* test_lanes_fit.c - merge=fit in lanes: queries like the fitted ones get the result that they had
 * before tokens were dropped, in double precision; protected tokens stay; refusals.
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
#include "seed.h"

#define N_LAYERS 2u
#define N_KV     2u
#define GROUP    2u
#define N_HEAD   (N_KV * GROUP)
#define D_K      32u
#define D_V      24u
#define N_TEXT   260u
#define N_FIRST  200u /* tokens before the condensing */
#define REPEAT   100u /* rows of a part that is repeated */
#define N_ROWS   (N_TEXT + REPEAT)
#define N_KINDS  5u /* of keys */

static quire_rng rng;

/* A text with keys of a few kinds. Keys of one kind are much alike, and all queries are the same.
 */
typedef struct world {
    quire_attn_layer layers[N_LAYERS];
    quire_lanes *lanes;
    float q[N_ROWS][N_HEAD * D_K];
    float k[N_ROWS][N_KV * D_K];
    float v[N_ROWS][N_KV * D_V];
    float out[N_LAYERS][N_ROWS][N_HEAD * D_V];
} world;

static void fill(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = scale * (float)quire_rng_normal(&rng);
    }
}

static void make_layers(world *w, quire_format format)
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
        layer->k[0].format = format;
        layer->k[0].lane.offset = (size_t)l * 65536;
        layer->v[0].format = format;
        layer->v[0].lane.offset = (size_t)l * 65536 + 32768;
        layer->k_store = layer->k[0];
        layer->v_store = layer->v[0];
    }
    w->layers[1].softcap = 4.0f;
}

static int open_lanes(world *w, const char *policy, double attend_share, quire_error *err)
{
    quire_retain_spec spec;
    quire_lanes_opts opts = { .spec = &spec,
                              .layers = w->layers,
                              .n_layers = N_LAYERS,
                              .n_text_max = N_TEXT,
                              .n_full_max = N_FIRST,
                              .n_rows_max = N_FIRST,
                              .n_repeat_max = REPEAT,
                              .n_threads = 2,
                              .attend_share = attend_share };

    assert_int_equal(quire_retain_parse_lanes(policy, &spec, err), QUIRE_OK);
    return quire_lanes_create(&w->lanes, &opts, err);
}

static void make_text(world *w, float noise)
{
    float kinds[N_KINDS][N_KV * D_K], query[D_K];

    fill(&kinds[0][0], sizeof kinds / sizeof(float), 1.0f);
    fill(query, D_K, 1.0f);
    fill(&w->k[0][0], sizeof w->k / sizeof(float), noise);
    fill(&w->v[0][0], sizeof w->v / sizeof(float), 1.0f);
    for (uint32_t t = 0; t < N_ROWS; t++) {
        for (uint32_t i = 0; i < N_KV * D_K; i++) {
            w->k[t][i] += kinds[t % N_KINDS][i];
        }
        for (uint32_t h = 0; h < N_HEAD; h++) {
            memcpy(w->q[t] + (size_t)h * D_K, query, sizeof query);
        }
    }
}

static world *world_make(const char *policy, quire_format format)
{
    world *w = calloc(1, sizeof *w);
    quire_error err = QUIRE_ERROR_INIT;

    assert_non_null(w);
    make_layers(w, format);
    if (open_lanes(w, policy, 0, &err) < 0) {
        fail_msg("%s", err.message);
    }
    return w;
}

static void world_free(world *w)
{
    quire_lanes_destroy(w->lanes);
    free(w);
}

static void step(world *w, uint32_t begin, uint32_t n_rows)
{
    const quire_attn_device device = quire_lanes_device(w->lanes);
    const quire_attn_seq seq = { .n_tokens = begin + n_rows, .n_rows = n_rows };
    const quire_attn_batch batch = { .seqs = &seq, .n_seqs = 1, .page_tokens = 64 };

    assert_int_equal(device.plan(device.ctx, &batch), QUIRE_OK);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        quire_attn_layer call = w->layers[l];

        call.q[0] = w->q[begin];
        call.q_stride = N_HEAD * D_K;
        call.k_new = w->k[begin];
        call.k_new_stride = N_KV * D_K;
        call.v_new = w->v[begin];
        call.v_new_stride = N_KV * D_V;
        call.out = w->out[l][begin];
        call.out_stride = N_HEAD * D_V;
        device.append(device.ctx, &call, 0, 1);
        device.run(device.ctx, &call, l, 0, 1);
    }
    assert_int_equal(device.sync(device.ctx), QUIRE_OK);
}

/* Repeat the text from `begin` to `end`, and condense it. */
static void condense(world *w, uint32_t begin, uint32_t end)
{
    for (uint32_t done = begin; done < end; done += REPEAT) {
        const uint32_t n = end - done < REPEAT ? end - done : REPEAT;

        quire_lanes_repeat_begin(w->lanes, done, done + n);
        step(w, end, n);
        quire_lanes_repeat_end(w->lanes, true);
    }
    assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
}

/* Attention of head h of layer l to all tokens up to `row`, as if none had been dropped. */
static void expect_all(const world *w, uint32_t l, uint32_t h, uint32_t row, double *out)
{
    const double cap = (double)w->layers[l].softcap;
    double sum = 0.0;

    memset(out, 0, D_V * sizeof *out);
    for (uint32_t t = 0; t <= row; t++) {
        double logit = 0.0, p;

        for (uint32_t i = 0; i < D_K; i++) {
            logit += (double)w->q[row][h * D_K + i] * (double)w->k[t][h / GROUP * D_K + i];
        }
        logit *= (double)w->layers[l].scale;
        p = exp(cap != 0.0 ? cap * tanh(logit / cap) : logit);
        sum += p;
        for (uint32_t d = 0; d < D_V; d++) {
            out[d] += p * (double)w->v[t][h / GROUP * D_V + d];
        }
    }
    for (uint32_t d = 0; d < D_V; d++) {
        out[d] /= sum;
    }
}

/* The largest difference from attention to all tokens, of the rows of a step. */
static double worst_of(const world *w, uint32_t begin, uint32_t n_rows)
{
    double worst = 0.0;

    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t row = begin; row < begin + n_rows; row++) {
            for (uint32_t h = 0; h < N_HEAD; h++) {
                double want[D_V];

                expect_all(w, l, h, row, want);
                for (uint32_t d = 0; d < D_V; d++) {
                    worst = fmax(worst, fabs((double)w->out[l][row][h * D_V + d] - want[d]));
                }
            }
        }
    }
    return worst;
}

/* A text that is condensed twice, and steps behind each: one row, which sees whole tiles, and many.
 */
static double worst_with(const char *policy, quire_format format)
{
    world *w = world_make(policy, format);
    double worst;

    make_text(w, 0.1f);
    step(w, 0, N_FIRST);
    condense(w, 0, N_FIRST);
    step(w, N_FIRST, 1);
    step(w, N_FIRST + 1, 39);
    worst = worst_of(w, N_FIRST, 40);
    condense(w, N_FIRST, N_FIRST + 40);
    step(w, N_FIRST + 40, 20);
    worst = fmax(worst, worst_of(w, N_FIRST + 40, 20));
    world_free(w);
    return worst;
}

static void test_rows_are_served(void **state)
{
    const char *policy = "reconstruct:0.3,recent=16,merge=fit";
    const double f32 = worst_with(policy, QUIRE_FORMAT_F32);
    const double f16 = worst_with(policy, QUIRE_FORMAT_F16);
    const double dropped = worst_with("reconstruct:0.3,recent=16", QUIRE_FORMAT_F32);

    (void)state;
    if (!(f32 < 0.1 * dropped) || !(f16 < 0.1 * dropped)) {
        fail_msg("%g, %g, dropping %g", f32, f16, dropped);
    }
}

/* A share that drops nothing: the bits of lanes without a fit. */
static void test_nothing_dropped(void **state)
{
    world *fitted = world_make("reconstruct:1,recent=16,merge=fit", QUIRE_FORMAT_F16);
    world *plain = world_make("reconstruct:1,recent=16", QUIRE_FORMAT_F16);

    (void)state;
    make_text(fitted, 1.0f);
    memcpy(plain->q, fitted->q, sizeof fitted->q);
    memcpy(plain->k, fitted->k, sizeof fitted->k);
    memcpy(plain->v, fitted->v, sizeof fitted->v);
    step(fitted, 0, N_FIRST);
    step(plain, 0, N_FIRST);
    condense(fitted, 0, N_FIRST);
    condense(plain, 0, N_FIRST);
    step(fitted, N_FIRST, 60);
    step(plain, N_FIRST, 60);
    assert_memory_equal(fitted->out, plain->out, sizeof fitted->out);
    assert_null(quire_lanes_biases(plain->lanes, 0, 0));
    world_free(fitted);
    world_free(plain);
}

/* Protected tokens keep V and have no bias; the others get some. */
static void test_protected(void **state)
{
    world *w = world_make("reconstruct:0.3,recent=16,sinks=8,merge=fit", QUIRE_FORMAT_F32);
    float k[D_K], v[D_V];
    float most = 0.0f; /* lanes compete, so some drop nearly nothing */

    (void)state;
    make_text(w, 0.1f);
    step(w, 0, N_FIRST);
    condense(w, 0, N_FIRST);
    for (uint32_t lane = 0; lane < N_LAYERS * N_KV; lane++) {
        const uint32_t l = lane / N_KV, g = lane % N_KV;
        const float *biases = quire_lanes_biases(w->lanes, l, g);
        uint32_t n;
        const int32_t *positions = quire_lanes_positions(w->lanes, l, g, &n);

        assert_non_null(biases);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t at = (uint32_t)positions[i];
            const bool is_protected = at < 8 || at >= N_FIRST - 16;

            quire_lanes_read(w->lanes, l, g, i, k, v);
            assert_memory_equal(k, w->k[at] + g * D_K, sizeof k);
            assert_int_equal(memcmp(v, w->v[at] + g * D_V, sizeof v) == 0, is_protected);
            assert_true(!is_protected || biases[i] == 0.0f);
            most = biases[i] > most ? biases[i] : most;
        }
    }
    assert_true(most > 0.5f);
    world_free(w);
}

static void test_refusals(void **state)
{
    world *w = calloc(1, sizeof *w);
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_non_null(w);
    make_layers(w, QUIRE_FORMAT_Q4);
    assert_int_equal(open_lanes(w, "reconstruct,merge=fit", 0, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "tokens in q4 stay as they are"));
    err = (quire_error)QUIRE_ERROR_INIT;
    make_layers(w, QUIRE_FORMAT_F16);
    assert_int_equal(open_lanes(w, "reconstruct,merge=fit", 0.5, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "merge=fit and --attend"));
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_served),
        cmocka_unit_test(test_nothing_dropped),
        cmocka_unit_test(test_protected),
        cmocka_unit_test(test_refusals),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
