/* test_train_guide.c - attention that is compared with another model's: divergences against their
 * definition, and gradients against central finite differences in double precision; single
 * precision on several threads.
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

#include <math.h>
#include <string.h>

#define MAX       4096u
#define TOKEN_MAX 300u
#define SCRATCH   131072u
#define THEIR_D   6u /* of a head of the guide */
#define FACTOR    0.7
#define SCALE     0.4

static quire_rng rng;
static quire_f64_compute c;

static double q[MAX], k[MAX], v[MAX], dy[MAX], out[MAX], lse[MAX];
static double their_q[MAX], their_k[MAX], divergences[MAX];
static double dq[MAX], dk[MAX], dv[MAX];
static int32_t first[TOKEN_MAX], targets[TOKEN_MAX];

static int setup(void **state)
{
    (void)state;
    rng = test_rng(29);
    return quire_f64_compute_init(&c, 2, 64, SCRATCH, NULL);
}

static int teardown(void **state)
{
    (void)state;
    quire_f64_compute_fini(&c);
    return 0;
}

/* Two documents in a row, some queries without a target. */
static void fill_all(const quire_f64_attention *o)
{
    double *const arrays[] = { q, k, v, dy, their_q, their_k };

    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        train_fill(&rng, arrays[i], MAX, 1);
    }
    for (uint32_t i = 0; i < o->n_rows * o->n_tokens; i++) {
        uint32_t cut = o->n_tokens / 3 + i / o->n_tokens;

        first[i] = i % o->n_tokens < cut ? 0 : (int32_t)cut;
        targets[i] = i % 5 == 3 ? QUIRE_TRAIN_NO_TARGET : 1;
    }
    memset(dk, 0, sizeof(dk));
    memset(dv, 0, sizeof(dv));
    memset(divergences, 0, sizeof(divergences));
}

/* Weights of a query over n keys, by the definition. */
static void weigh(const double *query, const double *keys, uint32_t stride, uint32_t d, uint32_t n,
                  double *weights)
{
    double sum = 0;

    for (uint32_t s = 0; s < n; s++) {
        double logit = 0;

        for (uint32_t j = 0; j < d; j++) {
            logit += query[j] * keys[s * stride + j];
        }
        weights[s] = exp(logit / sqrt((double)d));
        sum += weights[s];
    }
    for (uint32_t s = 0; s < n; s++) {
        weights[s] /= sum;
    }
}

/* The divergence of a query of a head, with the factor. */
static double naive_divergence(const quire_f64_attention *o, uint32_t token, uint32_t head)
{
    const quire_f64_guide *g = o->guide;
    uint32_t row = token / o->n_tokens, t = token % o->n_tokens;
    uint32_t from = (uint32_t)first[token], n;
    uint32_t kv = head / (o->n_head / o->n_kv_head), their_kv = head / (o->n_head / g->n_kv_head);
    double mine[TOKEN_MAX], theirs[TOKEN_MAX], sum = 0;
    size_t key;

    if (targets[token] == QUIRE_TRAIN_NO_TARGET) {
        return 0;
    }
    from = o->window > 0 && t + 1 > from + o->window ? t + 1 - o->window : from;
    n = t + 1 - from;
    key = (size_t)row * o->n_tokens + from;
    weigh(o->q + ((size_t)token * o->n_head + head) * o->d, o->k + (key * o->n_kv_head + kv) * o->d,
          o->n_kv_head * o->d, o->d, n, mine);
    weigh(g->q + ((size_t)token * o->n_head + head) * g->d,
          g->k + (key * g->n_kv_head + their_kv) * g->d, g->n_kv_head * g->d, g->d, n, theirs);
    for (uint32_t s = 0; s < n; s++) {
        sum += theirs[s] * log(theirs[s] / mine[s]);
    }
    return FACTOR * sum;
}

/* The function that the gradients are of: a weighted sum of the outputs, and the divergences. */
static double guided_value(void *ctx)
{
    const quire_f64_attention *o = ctx;
    size_t n = (size_t)o->n_rows * o->n_tokens * o->n_head;
    double sum = 0;

    quire_f64_attention_forward(&c, o);
    for (size_t i = 0; i < n * o->d; i++) {
        sum += out[i] * dy[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        sum += SCALE * naive_divergence(o, i / o->n_head, i % o->n_head);
    }
    return sum;
}

static void check_divergences(const quire_f64_attention *o)
{
    double sum = 0;

    for (uint32_t token = 0; token < o->n_rows * o->n_tokens; token++) {
        for (uint32_t head = 0; head < o->n_head; head++) {
            uint32_t row = token / o->n_tokens, t = token % o->n_tokens;
            double is = divergences[((size_t)row * o->n_head + head) * o->n_tokens + t];

            assert_true(fabs(is - naive_divergence(o, token, head)) < 1e-12);
            sum += is;
        }
    }
    assert_true(sum > 1);
}

static quire_f64_guide guide_of(uint32_t n_kv_head)
{
    return (quire_f64_guide){ .n_kv_head = n_kv_head,
                              .d = THEIR_D,
                              .q = their_q,
                              .k = their_k,
                              .targets = targets,
                              .factor = FACTOR,
                              .scale = SCALE,
                              .divergences = divergences };
}

/* Groups of heads that differ from the guide's, documents, windows; rows longer than a block of
 * queries. */
static void test_guided(void **state)
{
    static const struct {
        uint32_t n_rows, n_tokens, n_head, n_kv_head, their_kv_head, window, stride;
    } cases[] = { { 2, 9, 2, 2, 2, 0, 1 },
                  { 2, 9, 4, 2, 1, 3, 1 },
                  { 1, 200, 2, 1, 2, 0, 37 },
                  { 1, 200, 2, 2, 1, 150, 37 } };
    double *const gradients[3] = { dq, dk, dv };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const quire_f64_guide guide = guide_of(cases[i].their_kv_head);
        quire_f64_attention o = { .n_rows = cases[i].n_rows,
                                  .n_tokens = cases[i].n_tokens,
                                  .n_head = cases[i].n_head,
                                  .n_kv_head = cases[i].n_kv_head,
                                  .d = 4,
                                  .window = cases[i].window,
                                  .first = first,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .out = out,
                                  .lse = lse,
                                  .guide = &guide };
        size_t n = (size_t)o.n_rows * o.n_tokens * o.d, stride = cases[i].stride;

        fill_all(&o);
        quire_f64_attention_forward(&c, &o);
        quire_f64_attention_back(&c, &o, dy, gradients);
        check_divergences(&o);
        assert_int_equal(train_wrong_gradients("q", guided_value, &o, q, dq, n * o.n_head, stride),
                         0);
        assert_int_equal(
            train_wrong_gradients("k", guided_value, &o, k, dk, n * o.n_kv_head, stride), 0);
        assert_int_equal(
            train_wrong_gradients("v", guided_value, &o, v, dv, n * o.n_kv_head, stride), 0);
    }
}

/* Divergences are added to those of other layers; equal queries and keys have none. */
static void test_equal(void **state)
{
    quire_f64_guide guide = guide_of(2);
    quire_f64_attention o = { .n_rows = 2,
                              .n_tokens = 9,
                              .n_head = 4,
                              .n_kv_head = 2,
                              .d = THEIR_D,
                              .first = first,
                              .q = q,
                              .k = k,
                              .v = v,
                              .out = out,
                              .lse = lse,
                              .guide = &guide };

    (void)state;
    fill_all(&o);
    guide.q = q;
    guide.k = k;
    divergences[7] = 0.5;
    quire_f64_attention_forward(&c, &o);
    quire_f64_attention_back(&c, &o, dy, (double *const[3]){ dq, dk, dv });
    for (uint32_t i = 0; i < 2 * 9 * 4; i++) {
        assert_true(fabs(divergences[i] - (i == 7 ? 0.5 : 0)) < 1e-12);
    }
}

/* Single precision is near, and threads change no bit. */
static void test_single(void **state)
{
    static float x[3][MAX], theirs[2][MAX], result[MAX], sums[MAX], found[2][4][MAX];
    double *const doubles[] = { q, k, v, their_q, their_k };

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        quire_f32_compute c32;
        const quire_f32_guide guide = { 1,       THEIR_D,       theirs[0],    theirs[1],
                                        targets, (float)FACTOR, (float)SCALE, found[i][3] };
        quire_f32_attention o = {
            1, 150, 2, 1, 4, 0, first, x[0], x[1], x[2], result, sums, &guide
        };

        if (i == 0) {
            fill_all(&(quire_f64_attention){ .n_rows = 1, .n_tokens = 150 });
            for (uint32_t j = 0; j < 5 * MAX; j++) {
                float *to = j / MAX < 3 ? x[j / MAX] : theirs[j / MAX - 3];

                to[j % MAX] = (float)doubles[j / MAX][j % MAX];
            }
        }
        assert_int_equal(quire_f32_compute_init(&c32, 1 + 2 * i, 64, SCRATCH, NULL), QUIRE_OK);
        quire_f32_attention_forward(&c32, &o);
        quire_f32_attention_back(&c32, &o, x[0],
                                 (float *const[3]){ found[i][0], found[i][1], found[i][2] });
        quire_f32_compute_fini(&c32);
    }
    assert_memory_equal(found[0], found[1], sizeof(found[0]));
    {
        const quire_f64_guide guide = guide_of(1);
        quire_f64_attention o = { 1, 150, 2, 1, 4, 0, first, q, k, v, out, lse, &guide };

        quire_f64_attention_forward(&c, &o);
        quire_f64_attention_back(&c, &o, q, (double *const[3]){ dq, dk, dv });
        for (uint32_t i = 0; i < 150 * 2 * 4; i++) {
            assert_true(fabs((double)found[0][0][i] - dq[i]) < 1e-4 * (1 + fabs(dq[i])));
        }
        for (uint32_t i = 0; i < 150 * 2; i++) {
            assert_true(fabs((double)found[0][3][i] - divergences[i]) < 1e-4);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guided),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_single),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
