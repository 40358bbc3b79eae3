/* test_train_ops.c - operations of training: each gradient against central finite differences in
 * double precision, single against double precision, the same bits from every set of row functions
 * and number of threads.
 *
 * The value of a test is sum(result * weights) with random weights, so the gradient of the result
 * is the weights.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "seed.h"
#include "train/ops.h"
#include "train_kit.h"

#include <stdlib.h>
#include <string.h>

#define MAX     4096u
#define SCRATCH 131072u

static quire_rng rng;
static quire_f64_compute c;

/* Inputs, the gradient of the result, and the outputs of the operations. */
static double x[MAX], w[MAX], v[MAX], dy[MAX], y[MAX], inv[MAX];
static double dx[MAX], dw[MAX], dv[MAX];

static int setup(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    int rc = quire_f64_compute_init(&c, 2, 256, SCRATCH, &err);

    (void)state;
    rng = test_rng(11);
    if (rc < 0) {
        (void)printf("%s\n", err.message);
    }
    return rc;
}

static int teardown(void **state)
{
    (void)state;
    quire_f64_compute_fini(&c);
    return 0;
}

static void fill_all(void)
{
    train_fill(&rng, x, MAX, 1);
    train_fill(&rng, w, MAX, 1);
    train_fill(&rng, v, MAX, 1);
    train_fill(&rng, dy, MAX, 1);
    memset(dx, 0, sizeof(dx));
    memset(dw, 0, sizeof(dw));
    memset(dv, 0, sizeof(dv));
}

static double weighted(const double *result, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += result[i] * dy[i];
    }
    return sum;
}

#define CHECK_GRADIENT(value, ctx, at, gradient, n)                                                \
    assert_int_equal(train_wrong_gradients(#at, value, ctx, at, gradient, n, 1), 0)

static double embed_value(void *ctx)
{
    const quire_f64_embed *e = ctx;

    quire_f64_embed_forward(&c, e, w, y);
    return weighted(y, (size_t)e->n * e->d);
}

static void test_embed(void **state)
{
    int32_t tokens[70];
    quire_f64_embed e = { tokens, 70, 9 };

    (void)state;
    fill_all();
    for (uint32_t i = 0; i < e.n; i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, 5);
    }
    quire_f64_embed_back(&c, &e, dy, dw);
    CHECK_GRADIENT(embed_value, &e, w, dw, 45);
}

static double norm_value(void *ctx)
{
    const quire_f64_norm *o = ctx;

    quire_f64_norm_forward(&c, o, y);
    return weighted(y, (size_t)o->n * o->d);
}

/* More rows than one part, lengths around the number of lanes. */
static void test_norm(void **state)
{
    static const uint32_t lengths[] = { 1, 5, 16, 19, 32 };

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        quire_f64_norm o = { 70, lengths[i], 0.1, x, w, inv };

        fill_all();
        quire_f64_norm_forward(&c, &o, y);
        quire_f64_norm_back(&c, &o, dy, dx, dw);
        CHECK_GRADIENT(norm_value, &o, x, dx, o.n * o.d);
        CHECK_GRADIENT(norm_value, &o, w, dw, o.d);
    }
}

static double linear_value(void *ctx)
{
    const quire_f64_linear *o = ctx;

    quire_f64_linear_forward(&c, o, x, y, false);
    return weighted(y, (size_t)o->n * o->n_out);
}

/* Shapes with more than one tile on each side. */
static void test_linear(void **state)
{
    static const uint32_t shapes[][3] = {
        { 3, 5, 7 }, { 2, 4, 150 }, { 2, 150, 4 }, { 300, 3, 2 }
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        quire_f64_linear o = { shapes[i][0], shapes[i][1], shapes[i][2], w };

        fill_all();
        quire_f64_linear_back_input(&c, &o, dy, dx, false);
        quire_f64_linear_back_weight(&c, &o, x, dy, dw);
        CHECK_GRADIENT(linear_value, &o, x, dx, o.n * o.n_in);
        CHECK_GRADIENT(linear_value, &o, w, dw, o.n_in * o.n_out);
    }
}

/* Added results: y and dx keep their earlier values and get the new ones added. */
static void test_linear_added(void **state)
{
    quire_f64_linear o = { 3, 5, 7, w };

    (void)state;
    fill_all();
    quire_f64_linear_forward(&c, &o, x, y, false);
    memcpy(v, y, sizeof(v));
    quire_f64_linear_forward(&c, &o, x, y, true);
    quire_f64_linear_back_input(&c, &o, dy, dx, false);
    memcpy(dv, dx, sizeof(dv));
    quire_f64_linear_back_input(&c, &o, dy, dx, true);
    for (uint32_t i = 0; i < 15; i++) {
        assert_true(fabs(y[i] - 2 * v[i]) < 1e-12);
        assert_true(fabs(dx[i] - 2 * dv[i]) < 1e-12);
    }
}

#define ROPE_D 6u

static double rope_cos[10 * ROPE_D / 2], rope_sin[10 * ROPE_D / 2];

static double rope_value(void *ctx)
{
    const quire_f64_rope *o = ctx;
    size_t n = (size_t)o->n * o->n_head * o->d;

    memcpy(y, x, n * sizeof(*y));
    quire_f64_rope_apply(&c, o, y, false);
    return weighted(y, n);
}

static void test_rope(void **state)
{
    int32_t positions[70];
    quire_f64_rope o = { 70, 2, ROPE_D, positions, rope_cos, rope_sin };

    (void)state;
    fill_all();
    quire_f64_rope_tables(rope_cos, rope_sin, &(quire_f64_rope_angles){ 10, ROPE_D, 1e4, NULL });
    for (int32_t i = 0; i < 70; i++) {
        positions[i] = i % 10;
    }
    memcpy(dx, dy, sizeof(dx));
    quire_f64_rope_apply(&c, &o, dx, true);
    CHECK_GRADIENT(rope_value, &o, x, dx, o.n * o.n_head * o.d);
    /* NEOX: element j turns with j + d / 2, element 0 by one radian per position. */
    memset(x, 0, sizeof(x));
    x[2 * ROPE_D] = 1; /* of token 1 */
    (void)rope_value(&o);
    assert_true(fabs(y[2 * ROPE_D] - cos(1)) < 1e-15);
    assert_true(fabs(y[2 * ROPE_D + ROPE_D / 2] - sin(1)) < 1e-15);
}

/* A pair turns as many times more slowly as its factor says. */
static void test_rope_factors(void **state)
{
    static const float factors[ROPE_D / 2] = { 1, 8, 0.5f };
    double plain[2][10 * ROPE_D / 2];

    (void)state;
    quire_f64_rope_tables(plain[0], plain[1], &(quire_f64_rope_angles){ 10, ROPE_D, 100, NULL });
    quire_f64_rope_tables(rope_cos, rope_sin, &(quire_f64_rope_angles){ 10, ROPE_D, 100, factors });
    for (uint32_t i = 0; i < 10; i++) {
        for (uint32_t j = 0; j < ROPE_D / 2; j++) {
            uint32_t at = i * (ROPE_D / 2) + j;
            double angle = i * pow(100, -2.0 * j / ROPE_D) / (double)factors[j];

            assert_true(fabs(rope_cos[at] - cos(angle)) < 1e-14);
            assert_true(fabs(rope_sin[at] - sin(angle)) < 1e-14);
            assert_true(j > 0 || (rope_cos[at] == plain[0][at] && rope_sin[at] == plain[1][at]));
        }
    }
}

typedef struct bias_rows_of {
    uint32_t n;
    uint32_t d;
} bias_rows_of;

static double bias_value(void *ctx)
{
    const bias_rows_of *o = ctx;
    size_t n = (size_t)o->n * o->d;

    memcpy(y, x, n * sizeof(*y));
    quire_f64_bias_add(&c, o->n, o->d, w, y);
    return weighted(y, n);
}

/* Fewer rows than a part of the work has, and several parts. */
static void test_bias(void **state)
{
    static const bias_rows_of sizes[] = { { 3, 7 }, { 64, 5 }, { 150, 11 } };

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        bias_rows_of o = sizes[i];

        fill_all();
        quire_f64_bias_back(&c, o.n, o.d, dy, dw);
        CHECK_GRADIENT(bias_value, &o, w, dw, o.d);
        (void)bias_value(&o);
        assert_true(fabs(y[o.n * o.d - 1] - x[o.n * o.d - 1] - w[o.d - 1]) < 1e-14);
    }
}

static double fuse_value(void *ctx)
{
    const quire_f64_fuse *o = ctx;

    quire_f64_fuse_forward(&c, o, y);
    return weighted(y, (size_t)o->n * o->d);
}

static void test_fuse(void **state)
{
    (void)state;
    for (uint32_t n_sources = 1; n_sources <= 2; n_sources++) {
        quire_f64_fuse o = { 70, 12, n_sources, { x, v }, { w, w + 12 } };
        double *const d_sources[2] = { dx, dv }, *const d_gates[2] = { dw, dw + 12 };

        fill_all();
        quire_f64_fuse_back(&c, &o, dy, d_sources, d_gates);
        CHECK_GRADIENT(fuse_value, &o, x, dx, o.n * o.d);
        CHECK_GRADIENT(fuse_value, &o, v, dv, o.n * o.d);
        CHECK_GRADIENT(fuse_value, &o, w, dw, 24);
    }
}

static double swiglu_value(void *ctx)
{
    const double *const gate_up[2] = { x, w };

    (void)ctx;
    quire_f64_swiglu_forward(&c, 70, 7, gate_up, y);
    return weighted(y, 490);
}

static void test_swiglu(void **state)
{
    double *const gate_up_y[3] = { dx, dw, v };

    (void)state;
    fill_all();
    memcpy(dx, x, sizeof(dx));
    memcpy(dw, w, sizeof(dw));
    quire_f64_swiglu_back(&c, 70, 7, gate_up_y, dy);
    CHECK_GRADIENT(swiglu_value, NULL, x, dx, 490);
    CHECK_GRADIENT(swiglu_value, NULL, w, dw, 490);
    (void)swiglu_value(NULL);
    for (uint32_t i = 0; i < 490; i++) {
        assert_true(fabs(v[i] - y[i]) < 1e-12); /* the result once more */
    }
}

static double lse[MAX];

static double attention_value(void *ctx)
{
    const quire_f64_attention *o = ctx;

    quire_f64_attention_forward(&c, o);
    return weighted(y, (size_t)o->n_rows * o->n_tokens * o->n_head * o->d);
}

/* Two documents in each row, from a place that differs by row. */
static void pack_documents(quire_f64_attention *o, int32_t *first)
{
    for (uint32_t row = 0; row < o->n_rows; row++) {
        uint32_t cut = o->n_tokens / 3 + row;

        for (uint32_t t = 0; t < o->n_tokens; t++) {
            first[row * o->n_tokens + t] = t < cut ? 0 : (int32_t)cut;
        }
    }
    o->first = first;
}

static void test_attention(void **state)
{
    static const uint32_t heads[][2] = { { 2, 2 }, { 4, 2 }, { 3, 1 } };
    int32_t first[64];

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        quire_f64_attention o = {
            2, 9, heads[i / 2][0], heads[i / 2][1], 4, i % 2 * 3, NULL, x, w, v, y, lse, NULL
        };
        double *const gradients[3] = { dx, dw, dv };
        uint32_t n_kv = o.n_rows * o.n_tokens * o.n_kv_head * o.d;

        fill_all();
        pack_documents(&o, first);
        quire_f64_attention_forward(&c, &o);
        quire_f64_attention_back(&c, &o, dy, gradients);
        CHECK_GRADIENT(attention_value, &o, x, dx, o.n_rows * o.n_tokens * o.n_head * o.d);
        CHECK_GRADIENT(attention_value, &o, w, dw, n_kv);
        CHECK_GRADIENT(attention_value, &o, v, dv, n_kv);
    }
}

/* Attention from its definition, one query at a time. */
static void naive_attention(const quire_f64_attention *o, double *out)
{
    for (uint32_t t = 0; t < o->n_tokens; t++) {
        for (uint32_t h = 0; h < o->n_head; h++) {
            const double *q = o->q + ((size_t)t * o->n_head + h) * o->d;
            double *to = out + ((size_t)t * o->n_head + h) * o->d;
            double sum = 0;

            memset(to, 0, o->d * sizeof(*to));
            for (uint32_t s = (uint32_t)o->first[t]; s <= t; s++) {
                size_t at = ((size_t)s * o->n_kv_head + h / (o->n_head / o->n_kv_head)) * o->d;
                double logit = 0;

                if (o->window > 0 && t - s >= o->window) {
                    continue;
                }
                for (uint32_t j = 0; j < o->d; j++) {
                    logit += q[j] * o->k[at + j];
                }
                logit = exp(logit / sqrt((double)o->d));
                sum += logit;
                for (uint32_t j = 0; j < o->d; j++) {
                    to[j] += logit * o->v[at + j];
                }
            }
            for (uint32_t j = 0; j < o->d; j++) {
                to[j] /= sum;
            }
        }
    }
}

/* Rows longer than a block of queries, documents and windows that begin in the middle of one. */
static void test_attention_blocks(void **state)
{
    static const uint32_t windows[] = { 0, 5, 200 };
    static double want[MAX];
    static int32_t first[300];

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        quire_f64_attention o = { 1, 300, 2, 1, 4, windows[i], NULL, x, w, v, y, lse, NULL };

        fill_all();
        pack_documents(&o, first);
        quire_f64_attention_forward(&c, &o);
        naive_attention(&o, want);
        for (uint32_t j = 0; j < o.n_tokens * o.n_head * o.d; j++) {
            assert_true(fabs(y[j] - want[j]) < 1e-12);
        }
        {
            double *const gradients[3] = { dx, dw, dv };

            quire_f64_attention_back(&c, &o, dy, gradients);
            assert_int_equal(train_wrong_gradients("q", attention_value, &o, x, dx, 2400, 97), 0);
            assert_int_equal(train_wrong_gradients("k", attention_value, &o, w, dw, 1200, 61), 0);
            assert_int_equal(train_wrong_gradients("v", attention_value, &o, v, dv, 1200, 61), 0);
        }
    }
}

static int32_t targets[40];
static double logits[MAX];

static double loss_value(void *ctx)
{
    return quire_f64_loss_run(&c, ctx, 1, NULL, NULL) * 0.25;
}

/* Several chunks, the last one short; tokens without target. */
static void test_loss(void **state)
{
    quire_f64_loss o = { 40, 6, 11, 17, w, x, targets, logits, inv, NULL, NULL };

    (void)state;
    fill_all();
    for (uint32_t i = 0; i < o.n; i++) {
        targets[i] = i % 5 == 3 ? QUIRE_TRAIN_NO_TARGET : (int32_t)quire_rng_below(&rng, 11);
    }
    (void)quire_f64_loss_run(&c, &o, 0.25, dx, dw);
    CHECK_GRADIENT(loss_value, &o, x, dx, o.n * o.d);
    CHECK_GRADIENT(loss_value, &o, w, dw, o.n_vocab * o.d);
    assert_true(inv[3] == 0);
}

/* With a teacher: the gradients are of the mixed sum, and its own logits pull the model to them. */
static double taught_value(void *ctx)
{
    const quire_f64_loss *o = ctx;
    double sum = (1 - o->teacher->share) * quire_f64_loss_run(&c, o, 1, NULL, NULL);

    for (uint32_t i = 0; i < o->n; i++) {
        sum += o->teacher->share * o->teacher->divergences[i];
    }
    return sum * 0.25;
}

static void test_loss_taught(void **state)
{
    static double their_x[40 * 5], their_w[11 * 5], their_logits[17 * 11], spare[16 * 11];
    static double divergences[40];
    quire_f64_teacher teacher = { 5, their_w, their_x, their_logits, spare, 0, divergences };
    quire_f64_loss o = { 40, 6, 11, 17, w, x, targets, logits, inv, NULL, &teacher };

    (void)state;
    assert_true(c.n_threads <= 16);
    for (uint32_t round = 0; round < 3; round++) {
        fill_all();
        train_fill(&rng, their_x, 40 * 5, 1);
        train_fill(&rng, their_w, 11 * 5, 1);
        teacher.share = 0.5 * round;
        for (uint32_t i = 0; i < o.n; i++) {
            targets[i] = i % 5 == 3 ? QUIRE_TRAIN_NO_TARGET : (int32_t)quire_rng_below(&rng, 11);
        }
        (void)quire_f64_loss_run(&c, &o, 0.25, dx, dw);
        CHECK_GRADIENT(taught_value, &o, x, dx, o.n * o.d);
        CHECK_GRADIENT(taught_value, &o, w, dw, o.n_vocab * o.d);
        assert_true(divergences[3] == 0 && divergences[4] > 0);
    }
    /* A teacher that says the same. */
    teacher = (quire_f64_teacher){ 6, w, x, their_logits, spare, 1, divergences };
    memset(dw, 0, sizeof(dw));
    (void)quire_f64_loss_run(&c, &o, 0.25, dx, dw);
    for (uint32_t i = 0; i < o.n; i++) {
        assert_true(fabs(divergences[i]) < 1e-12 && fabs(dx[i]) < 1e-12);
    }
}

/* A uniform distribution costs log(n) per token. */
/* The sum of the distances from w, which the operation leaves undefined, in units of 0.25. */
static double distance_value(void *ctx)
{
    quire_f64_distance o = *(const quire_f64_distance *)ctx;
    double sum = 0;

    memcpy(y, w, sizeof(y));
    memset(inv, 0, sizeof(inv));
    o.theirs = y;
    o.distances = inv;
    quire_f64_distance_run(&c, &o, 0.25, NULL);
    for (uint32_t i = 0; i < o.n; i++) {
        sum += inv[i];
    }
    return sum * 0.25;
}

/* Distances by their definition, and gradients. A token has no target, another one no teacher. */
static void test_distance(void **state)
{
    quire_f64_distance o = { 40, 6, targets, x, y, 0.7, inv };

    (void)state;
    fill_all();
    memset(w + (size_t)4 * o.d, 0, o.d * sizeof(*w));
    for (uint32_t i = 0; i < o.n; i++) {
        targets[i] = i == 3 ? QUIRE_TRAIN_NO_TARGET : 0;
        inv[i] = 2;
    }
    memcpy(y, w, sizeof(y));
    quire_f64_distance_run(&c, &o, 0.25, dx);
    for (uint32_t i = 0; i < o.n; i++) {
        double above = 0, below = 0;

        for (uint32_t j = 0; j < o.d; j++) {
            double theirs = w[i * o.d + j], difference = x[i * o.d + j] - theirs;

            above += difference * difference;
            below += theirs * theirs;
        }
        assert_true(fabs(inv[i] - (i == 3 || i == 4 ? 2 : 2 + 0.7 * above / below)) < 1e-12);
    }
    assert_true(dx[3 * o.d] == 0 && dx[4 * o.d] == 0 && dx[5 * o.d] != 0);
    CHECK_GRADIENT(distance_value, &o, x, dx, o.n * o.d);
}

static void test_loss_uniform(void **state)
{
    quire_f64_loss o = { 40, 6, 11, 40, w, x, targets, logits, inv, NULL, NULL };

    (void)state;
    memset(w, 0, sizeof(w));
    memset(targets, 0, sizeof(targets));
    assert_true(fabs(quire_f64_loss_run(&c, &o, 1, NULL, NULL) - 40 * log(11)) < 1e-12);
    assert_int_equal(quire_f64_loss_chunk(40, 11), 40);
    assert_int_equal(quire_f32_loss_chunk(4096, 32000), (64u << 20) / 4 / 32000);
    assert_int_equal(quire_f32_loss_chunk(4096, 1u << 30), 16);
}

/* ---- single precision ---- */

#define ROW 1037u

static float fx[ROW], fw[ROW], fy[ROW], want_row[ROW], fm[ROW], fv[ROW];

static void fill_single(void)
{
    for (uint32_t i = 0; i < ROW; i++) {
        fx[i] = (float)(4 * quire_rng_normal(&rng));
        fw[i] = (float)quire_rng_normal(&rng);
        fy[i] = fx[i];
        fm[i] = fw[i];
        fv[i] = fw[i] * fw[i];
    }
}

/* All row functions of a set, folded into one array. */
static void run_rows(const quire_f32_rows *rows, float *out)
{
    static float a[ROW], b[ROW];
    float *moments[2] = { fm, fv };
    float *const gradients[2] = { a, b };
    quire_f32_adamw step = { 1e-3F, 0.9F, 0.95F, 1e-8F, 0.1F, 0.5F, 1.2F, 1.4F };
    float inv_rms;

    fill_single();
    inv_rms = rows->norm(out, fx, fw, 1e-5F, ROW);
    memset(a, 0, sizeof(a));
    memset(b, 0, sizeof(b));
    rows->norm_back(gradients, fx, fw, inv_rms, out, ROW);
    rows->add(out, a, ROW);
    rows->mul_add(out, b, fw, ROW);
    out[0] += rows->dot(fx, fw, ROW);
    memcpy(a, fx, sizeof(a));
    out[1] += rows->softmax(a, 0.3F, ROW);
    rows->add(out, a, ROW);
    rows->softmax_back(b, a, 0.7F, 0.3F, ROW);
    rows->add(out, b, ROW);
    rows->swiglu(a, fx, fw, ROW);
    rows->add(out, a, ROW);
    memcpy(a, fx, sizeof(a));
    memcpy(b, fw, sizeof(b));
    rows->swiglu_back(a, b, fy, out, ROW);
    rows->rope(a, b, fw, 1, ROW - 1);
    rows->add(out, a, ROW);
    rows->adamw(&step, out, b, moments, ROW);
    rows->mul(a, out, fv, ROW);
    rows->add(out, a, ROW);
}

static void test_rows_bits(void **state)
{
    static const char *const names[] = { "avx2", "avx512" };
    static float got[ROW];
    quire_rng start = rng;

    (void)state;
    run_rows(&quire_f32_rows_portable, want_row);
    for (uint32_t i = 0; i < 2; i++) {
        const quire_f32_rows *rows = quire_f32_rows_find(names[i]);

        if (rows == NULL) {
            (void)printf("this CPU has no %s\n", names[i]);
            continue;
        }
        rng = start;
        run_rows(rows, got);
        assert_memory_equal(got, want_row, sizeof(got));
    }
    assert_null(quire_f32_rows_find("sse"));
}

/* The exponential of single precision, by softmax_again: exp(x - 0). */
static void test_exp(void **state)
{
    (void)state;
    for (double at = -86.9; at < 87.9; at += 0.00517) {
        float value = (float)at;

        quire_f32_rows_best()->softmax_again(&value, 1, 0, 1);
        assert_true(fabs((double)value / exp((double)(float)at) - 1) < 2e-7);
    }
    fx[0] = NAN;
    fx[1] = -1e30F;
    quire_f32_rows_best()->softmax_again(fx, 1, 0, 2);
    assert_true(isnan(fx[0]));
    assert_true(fx[1] >= 0 && fx[1] < 1e-37F);
}

/* One and three threads: the same bits. */
static void test_threads_bits(void **state)
{
    static float q[2 * 150 * 8], k[2 * 150 * 4], out[2][2 * 150 * 8], d[2][3][2 * 150 * 8];
    static float lse32[2 * 2 * 150];
    static int32_t first[300];

    (void)state;
    for (uint32_t i = 0; i < sizeof(q) / sizeof(q[0]); i++) {
        q[i] = (float)quire_rng_normal(&rng);
        k[i / 2] = (float)quire_rng_normal(&rng);
    }
    for (uint32_t i = 0; i < 2; i++) {
        quire_f32_compute c32;
        quire_f32_attention o = { 2, 150, 2, 1, 4, 0, first, q, k, k, out[i], lse32, NULL };
        float *const gradients[3] = { d[i][0], d[i][1], d[i][2] };

        assert_int_equal(quire_f32_compute_init(&c32, 1 + 2 * i, 64, SCRATCH, NULL), QUIRE_OK);
        quire_f32_attention_forward(&c32, &o);
        quire_f32_attention_back(&c32, &o, q, gradients);
        {
            quire_f32_norm norm = { 300, 8, 1e-5F, q, k, lse32 };

            quire_f32_norm_forward(&c32, &norm, out[i]);
            quire_f32_norm_back(&c32, &norm, out[i], d[i][0], d[i][1]);
        }
        quire_f32_compute_fini(&c32);
    }
    assert_memory_equal(out[0], out[1], sizeof(out[0]));
    assert_memory_equal(d[0], d[1], sizeof(d[0]));
}

static void test_no_threads(void **state)
{
    quire_f32_compute c32;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_f32_compute_init(&c32, 0, 64, SCRATCH, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "0 threads"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_added),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_fuse),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_blocks),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_loss_taught),
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_loss_uniform),
        cmocka_unit_test(test_rows_bits),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_threads_bits),
        cmocka_unit_test(test_no_threads),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
