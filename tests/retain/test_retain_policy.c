/* test_retain_policy.c - retention policies: their text, scores against small references, budgets,
 * and the tokens that are kept.
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

#include "base/rng.h"
#include "retain/lanes_choice.h"
#include "retain/policy.h"
#include "seed.h"

static quire_rng rng;

static quire_retain_spec spec_of(const char *text)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;

    if (quire_retain_parse(text, &spec, &err) < 0) {
        fail_msg("%s: %s", text, err.message);
    }
    return spec;
}

/* ---- text ---- */

static void test_parse(void **state)
{
    const quire_retain_spec all = spec_of("entropy:0.25,sinks=8,recent=64,probe=16,pool=3,floor=0."
                                          "5,gamma=2,tau1=1,tau2=3,full_layers=0+-1");
    const quire_retain_spec plain = spec_of("window");
    char text[QUIRE_RETAIN_TEXT_MAX];
    char again[QUIRE_RETAIN_TEXT_MAX];
    quire_retain_spec copy;

    (void)state;
    assert_string_equal(all.policy->name, "entropy");
    assert_true(all.share == 0.25 && all.floor == 0.5 && all.gamma == 2);
    assert_true(all.tau1 == 1 && all.tau2 == 3);
    assert_int_equal(all.sinks, 8);
    assert_int_equal(all.recent, 64);
    assert_int_equal(all.probe, 16);
    assert_int_equal(all.pool, 3);
    assert_int_equal(all.n_full, 2);
    assert_int_equal(all.full[1], -1);
    assert_true(plain.share == 0.5);
    assert_int_equal(plain.sinks, 4);
    assert_int_equal(spec_of("random:1,seed=7").seed, 7);
    assert_string_equal(quire_retain_text(&all, text, sizeof text),
                        "entropy:0.25,sinks=8,recent=64,floor=0.5,probe=16,pool=3,gamma=2,tau1=1,"
                        "tau2=3,full_layers=0+-1");
    copy = spec_of(text);
    assert_string_equal(quire_retain_text(&copy, again, sizeof again), text);
    copy = spec_of("window,granule=64");
    assert_int_equal(copy.granule, 64);
    assert_string_equal(quire_retain_text(&copy, text, sizeof text),
                        "window:0.5,sinks=4,recent=128,floor=1,granule=64");
    assert_int_equal(quire_retain_parse_lanes("reconstruct,merge=fit", &copy, NULL), QUIRE_OK);
    assert_string_equal(quire_retain_text(&copy, text, sizeof text),
                        "reconstruct:0.5,sinks=4,recent=128,floor=0.2,repeat=512,merge=fit");
    assert_int_equal(quire_retain_parse("reconstruct,merge=fit", &copy, NULL), QUIRE_UNSUPP);
    assert_false(spec_of("reconstruct,merge=none").merges);
    copy = spec_of("reconstruct:0.3,repeat=100,threshold=0.5");
    assert_string_equal(quire_retain_text(&copy, again, sizeof again),
                        "reconstruct:0.3,sinks=4,recent=128,floor=0.2,repeat=100,threshold=0.5");
    copy = spec_of("expected,future=9");
    assert_string_equal(quire_retain_text(&copy, again, sizeof again),
                        "expected:0.5,sinks=4,recent=128,floor=0.2,future=9");
    /* With a threshold alone the text decides how much it keeps. */
    assert_true(spec_of("snap,threshold=0.2").share == 1);
    assert_true(spec_of("snap:0.5,threshold=0.2").share == 0.5);
}

/* A text names one spec, and its spec again. */
static void same_again(const char *text, const char *other)
{
    const quire_retain_spec spec = spec_of(text), unlike = spec_of(other);
    char first[QUIRE_RETAIN_TEXT_MAX], second[QUIRE_RETAIN_TEXT_MAX];
    quire_retain_spec again;

    again = spec_of(quire_retain_text(&spec, first, sizeof first));
    assert_memory_equal(&again.share, &spec.share, sizeof spec.share);
    assert_memory_equal(&again.floor, &spec.floor, sizeof spec.floor);
    assert_memory_equal(&again.gamma, &spec.gamma, sizeof spec.gamma);
    assert_memory_equal(&again.tau1, &spec.tau1, sizeof spec.tau1);
    assert_memory_equal(&again.tau2, &spec.tau2, sizeof spec.tau2);
    assert_memory_equal(&again.threshold, &spec.threshold, sizeof spec.threshold);
    assert_string_equal(quire_retain_text(&again, second, sizeof second), first);
    assert_string_not_equal(quire_retain_text(&unlike, second, sizeof second), first);
}

/* Parameters that differ in their last digits are other policies: they may choose other tokens. */
static void test_digits(void **state)
{
    char text[QUIRE_RETAIN_TEXT_MAX];
    quire_retain_spec spec;

    (void)state;
    same_again("keydiff:0.3", "keydiff:0.30000001");
    same_again("keydiff:0.3333333333333333", "keydiff:0.33333333333333337");
    same_again("entropy:0.5,gamma=200", "entropy:0.5,gamma=200.0001");
    same_again("entropy:0.5,tau1=1.6,tau2=0.4", "entropy:0.5,tau1=1.6000001,tau2=0.4");
    same_again("snap:0.5,floor=0.123456789", "snap:0.5,floor=0.123456788");
    same_again("snap:0.5,threshold=123456.7", "snap:0.5,threshold=123456.8");
    spec = spec_of("entropy:0.30,gamma=2e2,floor=.2");
    assert_string_equal(quire_retain_text(&spec, text, sizeof text),
                        "entropy:0.3,sinks=4,recent=128,floor=0.2,probe=32,pool=5,gamma=200,"
                        "tau1=1.6,tau2=0.4");
}

/* "POLICY,full_layers=100+101+..." */
static int parse_layers(const char *policy, uint32_t n, quire_retain_spec *spec, quire_error *err)
{
    char text[512];
    size_t n_bytes = (size_t)snprintf(text, sizeof text, "%s,full_layers=", policy);

    for (uint32_t i = 0; i < n; i++) {
        n_bytes += (size_t)snprintf(text + n_bytes, sizeof text - n_bytes, "%s%u", i > 0 ? "+" : "",
                                    100 + i);
    }
    return quire_retain_parse(text, spec, err);
}

/* A list that the text would not hold is refused, not cut: a cut list is that of others, too. */
static void test_long_lists(void **state)
{
    char text[QUIRE_RETAIN_TEXT_MAX];
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    uint32_t n = 1;

    (void)state;
    while (parse_layers("entropy:0.5", n, &spec, &err) == QUIRE_OK) {
        assert_true(strlen(quire_retain_text(&spec, text, sizeof text)) < sizeof text);
        spec.granule = 64; /* as the server sets it */
        assert_non_null(strstr(quire_retain_text(&spec, text, sizeof text), ",granule=64,"));
        n++;
    }
    assert_in_range(n, 30, 53);
    assert_non_null(strstr(err.message, "entropy with all its parameters takes more than 255 "
                                        "bytes as text: full_layers must name fewer layers"));
    assert_int_equal(parse_layers("keydiff:0.5", n, &spec, &err), QUIRE_OK);
    assert_int_equal(parse_layers("keydiff:0.5", 64, &spec, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "keydiff with all its parameters"));
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        { "", "there is no retention policy \"\"" },
        { "entropie:0.5",
          "the policies are entropy, snap, reconstruct, predict, expected, heavy, keydiff, "
          "window, last, stride, random" },
        { "snap:0", "a share of \"0\"" },
        { "snap:1.5", "above 0 and at most 1" },
        { "snap:x", "a share of \"x\"" },
        { "snap,sinks", "sinks has no value" },
        { "snap,sinks=-1", "a whole number from 0 to 65536" },
        { "snap,recent=0", "recent=0" },
        { "snap,pool=4", "pool=4: must be odd" },
        { "snap,gamma=2", "the policy snap has no parameter \"gamma\": it has sinks, recent" },
        { "window,probe=8", "no parameter \"probe\"" },
        { "window,threshold=1", "no parameter \"threshold\"" },
        { "snap,threshold=-1", "threshold=-1" },
        { "snap,repeat=64", "no parameter \"repeat\"" },
        { "reconstruct,repeat=8", "a whole number from 16 to 8192" },
        { "reconstruct,future=8", "no parameter \"future\"" },
        { "expected,future=0", "future=0" },
        { "random,seed=-1", "seed=-1" },
        { "reconstruct,merge=keep", "merge=keep: it is \"fit\" or \"none\"" },
        { "snap,merge=fit", "no parameter \"merge\"" },
        { "predict,merge=fit", "no parameter \"merge\"" },
        { "snap,granule=0", "a whole number from 1 to 1024" },
        { "entropy,tau1=0", "tau1=0: a number from 0.01 to 100" },
        { "entropy,full_layers=0+x", "\"x\" is no number of a layer" },
        { "entropy,full_layers=", "\"\" is no number of a layer" },
    };
    char long_text[600];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_retain_spec spec;

        assert_int_equal(quire_retain_parse(cases[i].text, &spec, &err), QUIRE_INVAL);
        if (strstr(err.message, cases[i].says) == NULL) {
            fail_msg("%s: \"%s\"", cases[i].text, err.message);
        }
    }
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    {
        quire_error err = QUIRE_ERROR_INIT;
        quire_retain_spec spec;

        assert_int_equal(quire_retain_parse(long_text, &spec, &err), QUIRE_INVAL);
        assert_non_null(strstr(err.message, "at most 511"));
    }
}

static void test_full_layers(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec = spec_of("entropy:0.5");
    bool full[8];

    (void)state;
    assert_int_equal(quire_retain_full_layers(&spec, 8, NULL, full, &err), QUIRE_OK);
    assert_true(full[0] && full[1] && !full[2] && !full[6] && full[7]);
    assert_int_equal(quire_retain_full_layers(&spec, 6, NULL, full, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "3 of 6 layers kept whole: the share must be above 0.5"));
    spec = spec_of("entropy:0.5,full_layers=none");
    assert_int_equal(quire_retain_full_layers(&spec, 2, NULL, full, &err), QUIRE_OK);
    assert_false(full[0] || full[1]);
    spec = spec_of("window:0.5,full_layers=8");
    assert_int_equal(quire_retain_full_layers(&spec, 8, NULL, full, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "layer 8, but the model has 8 layers"));
    spec = spec_of("entropy:1");
    assert_int_equal(quire_retain_full_layers(&spec, 1, NULL, full, &err), QUIRE_OK);
}

/* Layers that do not choose are never whole, and do not count. */
static void test_choosing_layers(void **state)
{
    static const bool inner[6] = { false, false, true, true, true, false };
    static const bool outer[6] = { true, false, true, false, false, true };
    const quire_retain_spec spec = spec_of("entropy:0.5");
    quire_error err = QUIRE_ERROR_INIT;
    bool full[6];

    (void)state;
    assert_true(quire_retain_names_layer(&spec, 6, 5) && !quire_retain_names_layer(&spec, 6, 4));
    assert_int_equal(quire_retain_full_layers(&spec, 6, inner, full, &err), QUIRE_OK);
    for (uint32_t l = 0; l < 6; l++) {
        assert_false(full[l]);
    }
    assert_int_equal(quire_retain_full_layers(&spec, 6, outer, full, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "2 of 3 layers without a window kept whole"));
}

/* ---- scores ---- */

#define N       40u
#define D       8u
#define QUERIES 5u
#define HEADS   2u

typedef struct lane_fixture {
    int32_t positions[N];
    float keys[N * D];
    float attention[HEADS * QUERIES * N];
    quire_retain_lane lane;
} lane_fixture;

static void lane_make(lane_fixture *f)
{
    for (uint32_t t = 0; t < N; t++) {
        f->positions[t] = (int32_t)(2 * t);
    }
    for (uint32_t i = 0; i < N * D; i++) {
        f->keys[i] = (float)quire_rng_normal(&rng);
    }
    for (uint32_t r = 0; r < HEADS * QUERIES; r++) {
        double sum = 0.0;

        for (uint32_t t = 0; t < N; t++) {
            f->attention[r * N + t] = (float)(-log(1.0 - quire_rng_unit(&rng)));
            sum += (double)f->attention[r * N + t];
        }
        for (uint32_t t = 0; t < N; t++) {
            f->attention[r * N + t] /= (float)sum;
        }
    }
    f->lane = (quire_retain_lane){ .n_tokens = N,
                                   .positions = f->positions,
                                   .n_text = 2 * N,
                                   .keys = f->keys,
                                   .d = D,
                                   .attention = f->attention,
                                   .n_rows = HEADS * QUERIES,
                                   .lane = 3 };
}

static double mean_of(const lane_fixture *f, uint32_t t, uint32_t first, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t r = first; r < first + n; r++) {
        sum += (double)f->attention[r * N + t];
    }
    return sum / n;
}

static double variance_of(const lane_fixture *f, uint32_t t, uint32_t first, uint32_t n)
{
    const double mean = mean_of(f, t, first, n);
    double sum = 0.0;

    for (uint32_t r = first; r < first + n; r++) {
        sum += ((double)f->attention[r * N + t] - mean) * ((double)f->attention[r * N + t] - mean);
    }
    return sum / n;
}

static void check_attention(const char *text, double gamma)
{
    const quire_retain_spec spec = spec_of(text);
    lane_fixture f;
    float scores[N];

    lane_make(&f);
    quire_retain_score(&spec, &f.lane, scores);
    for (int t = 0; t < (int)N; t++) {
        double sum = 0.0;
        int n = 0;

        for (int i = t - (int)spec.pool / 2; i <= t + (int)spec.pool / 2; i++) {
            if (i >= 0 && i < (int)N) {
                sum += mean_of(&f, (uint32_t)i, 0, HEADS * QUERIES) +
                       gamma * variance_of(&f, (uint32_t)i, 0, HEADS * QUERIES);
                n++;
            }
        }
        assert_true(fabs((double)scores[t] - sum / n) < 1e-6 * (1 + sum));
    }
}

static void test_attention_scores(void **state)
{
    (void)state;
    check_attention("snap", 0);
    check_attention("snap,pool=1", 0);
    check_attention("snap,pool=63", 0);
    check_attention("entropy", 200);
    check_attention("entropy,gamma=3,pool=7", 3);
}

static void test_measure(void **state)
{
    quire_retain_measure measure = { 0 };
    double entropy = 0.0, variance = 0.0;
    lane_fixture f;

    (void)state;
    lane_make(&f);
    quire_retain_measure_add(&measure, &f.lane, QUERIES);
    for (uint32_t t = 0; t < N; t++) {
        for (uint32_t r = 0; r < HEADS * QUERIES; r++) {
            const double a = (double)f.attention[r * N + t];

            entropy -= a * log(a);
        }
        variance += variance_of(&f, t, 0, QUERIES) + variance_of(&f, t, QUERIES, QUERIES);
    }
    assert_true(fabs(measure.entropy - entropy) < 1e-9 * entropy);
    assert_true(fabs(measure.variance - variance) < 1e-9 * variance);
}

static void test_keydiff(void **state)
{
    const quire_retain_spec spec = spec_of("keydiff");
    double mean[D] = { 0 };
    lane_fixture f;
    float scores[N];

    (void)state;
    lane_make(&f);
    memset(f.keys + D, 0, D * sizeof *f.keys); /* a row of zeros has no direction */
    quire_retain_score(&spec, &f.lane, scores);
    for (uint32_t t = 0; t < N; t++) {
        double norm = 0.0;

        for (uint32_t i = 0; i < D; i++) {
            norm += (double)f.keys[t * D + i] * (double)f.keys[t * D + i];
        }
        for (uint32_t i = 0; norm > 0.0 && i < D; i++) {
            mean[i] += (double)f.keys[t * D + i] / sqrt(norm) / N;
        }
    }
    for (uint32_t t = 0; t < N; t++) {
        double product = 0.0, norm = 0.0, mean_norm = 0.0;

        for (uint32_t i = 0; i < D; i++) {
            product += (double)f.keys[t * D + i] * mean[i];
            norm += (double)f.keys[t * D + i] * (double)f.keys[t * D + i];
            mean_norm += mean[i] * mean[i];
        }
        assert_true(fabs((double)scores[t] -
                         (norm > 0.0 ? -product / sqrt(norm * mean_norm) : 0.0)) < 1e-6);
    }
}

/* ---- budgets ---- */

static void test_even_budgets(void **state)
{
    const quire_retain_spec spec = spec_of("window:0.5");
    quire_retain_layer layers[3] = { { 2, 200, 20, false, { 0, 0 }, 0 },
                                     { 2, 200, 20, false, { 0, 0 }, 0 },
                                     { 2, 40, 20, false, { 0, 0 }, 0 } };
    uint64_t budgets[3];

    (void)state;
    quire_retain_layer_budgets(&spec, 100, layers, 3, budgets);
    /* 300 in all: the third layer holds 40, which leaves 130 for each of the others. */
    assert_int_equal(budgets[2], 40);
    assert_int_equal(budgets[0], 130);
    assert_int_equal(budgets[1], 130);
}

static void test_weighed_budgets(void **state)
{
    const quire_retain_spec spec = spec_of("entropy:0.5,tau1=1,tau2=2,full_layers=0");
    quire_retain_layer layers[3] = { { 1, 1000, 100, true, { 9, 9 }, 0 },
                                     { 1, 1000, 100, false, { 2, 9 }, 0 },
                                     { 1, 1000, 100, false, { 6, 1 }, 0 } };
    uint64_t budgets[3];

    (void)state;
    quire_retain_layer_budgets(&spec, 1000, layers, 3, budgets);
    /* 1,500 in all, less the whole layer and 2 x 100 protected: 300, in 6 : 6. */
    assert_int_equal(budgets[0], 1000);
    assert_int_equal(budgets[1], 250);
    assert_int_equal(budgets[2], 250);
    layers[1].measure.variance = 0; /* attention that never moves needs no more than is protected */
    quire_retain_layer_budgets(&spec, 1000, layers, 3, budgets);
    assert_int_equal(budgets[1], 100);
    assert_int_equal(budgets[2], 400);
    layers[2].measure.variance = 0; /* nothing to weigh by */
    quire_retain_layer_budgets(&spec, 1000, layers, 3, budgets);
    assert_int_equal(budgets[1], 250);
    assert_int_equal(budgets[2], 250);
}

/* Never more than the share, unless protected tokens or whole layers are more; never more than is
 * held; nothing is left over that a layer could use, apart from rounding. */
static void test_random_budgets(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        quire_retain_spec spec = spec_of(i % 2 == 0 ? "entropy,full_layers=none" : "snap");
        const uint32_t n_layers = 1 + quire_rng_below(&rng, 12);
        quire_retain_layer layers[12];
        uint64_t budgets[12];
        uint64_t sum = 0, held = 0, protected = 0, lanes = 0, total;

        spec.share = 0.05 + 0.95 * quire_rng_unit(&rng);
        for (uint32_t l = 0; l < n_layers; l++) {
            layers[l] = (quire_retain_layer){ .n_lanes = 1 + quire_rng_below(&rng, 4) };
            layers[l].n_held = layers[l].n_lanes * (10 + quire_rng_below(&rng, 90));
            layers[l].n_protected = quire_rng_below(&rng, (uint32_t)layers[l].n_held + 1);
            layers[l].measure.entropy = quire_rng_unit(&rng) * 10;
            layers[l].measure.variance = quire_rng_unit(&rng);
            held += layers[l].n_held;
            protected += layers[l].n_protected;
            lanes += layers[l].n_lanes;
        }
        quire_retain_layer_budgets(&spec, 100, layers, n_layers, budgets);
        for (uint32_t l = 0; l < n_layers; l++) {
            assert_true(budgets[l] <= layers[l].n_held);
            assert_true(budgets[l] >= layers[l].n_protected);
            sum += budgets[l];
        }
        total = (uint64_t)(spec.share * 100.0 * (double)lanes);
        total = total > protected ? total : protected;
        assert_true(sum <= total);
        assert_true(sum + n_layers >= (total < held ? total : held));
    }
}

/* ---- tokens ---- */

#define LANES 3u

typedef struct choice_fixture {
    uint32_t n_tokens[LANES];
    int32_t positions[LANES][N];
    float scores[LANES][N];
    bool kept[LANES][N];
    const int32_t *position_lists[LANES];
    const float *score_lists[LANES];
    bool *kept_lists[LANES];
    quire_retain_choice choice;
} choice_fixture;

static void choice_make(choice_fixture *f)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        f->n_tokens[lane] = N - lane;
        f->position_lists[lane] = f->positions[lane];
        f->score_lists[lane] = f->scores[lane];
        f->kept_lists[lane] = f->kept[lane];
        for (uint32_t t = 0; t < N; t++) {
            f->positions[lane][t] = (int32_t)(t + lane);
            f->scores[lane][t] = (float)quire_rng_below(&rng, 20);
        }
    }
    f->choice = (quire_retain_choice){ .n_lanes = LANES,
                                       .n_tokens = f->n_tokens,
                                       .positions = f->position_lists,
                                       .scores = f->score_lists,
                                       .n_text = N };
}

static uint32_t kept_of(const choice_fixture *f, uint32_t lane)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < f->n_tokens[lane]; t++) {
        n += f->kept[lane][t];
    }
    return n;
}

static void test_choose(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        const quire_retain_spec spec = spec_of("snap,sinks=3,recent=4,floor=0.5");
        choice_fixture f;
        uint32_t n = 0;

        choice_make(&f);
        f.choice.budget = 20 + quire_rng_below(&rng, 60);
        assert_int_equal(quire_retain_choose(&spec, &f.choice, f.kept_lists), QUIRE_OK);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            n += kept_of(&f, lane);
            assert_true(kept_of(&f, lane) >= f.choice.budget / LANES / 2);
            for (uint32_t t = 0; t < f.n_tokens[lane]; t++) {
                if (f.positions[lane][t] < 3 || f.positions[lane][t] >= (int32_t)N - 4) {
                    assert_true(f.kept[lane][t]);
                }
                /* Within a lane no dropped token is better than a kept one. */
                for (uint32_t u = 3; u < f.n_tokens[lane] - 4 && t > 3; u++) {
                    if (f.kept[lane][u] && !f.kept[lane][t] && f.positions[lane][u] >= 3) {
                        assert_true(f.scores[lane][u] >= f.scores[lane][t]);
                    }
                }
            }
        }
        assert_int_equal(n, f.choice.budget);
    }
}

static void test_ties_and_nan(void **state)
{
    const quire_retain_spec spec = spec_of("snap,sinks=0,recent=1,floor=1");
    choice_fixture f;

    (void)state;
    choice_make(&f);
    for (uint32_t t = 0; t < N; t++) {
        f.scores[0][t] = f.scores[1][t] = f.scores[2][t] = 1.0f;
    }
    f.scores[0][N - 2] = NAN;
    f.choice.budget = 4 * LANES;
    assert_int_equal(quire_retain_choose(&spec, &f.choice, f.kept_lists), QUIRE_OK);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        assert_int_equal(kept_of(&f, lane), 4);
    }
    assert_false(f.kept[0][N - 2]);
    assert_true(f.kept[0][N - 1] && f.kept[0][N - 3] && f.kept[0][N - 4] && f.kept[0][N - 5]);
    assert_true(f.kept[2][N - 3] && f.kept[2][N - 6]);
}

/* Beyond the floor no token below the threshold is kept, even with room in the budget. */
static void test_threshold(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 100; i++) {
        const bool is_worth = i % 2 == 1;
        quire_retain_spec spec =
            spec_of(is_worth ? "reconstruct,sinks=0,recent=1" : "snap,sinks=0,recent=1");
        choice_fixture f;

        spec.floor = i % 3 == 0 ? 0.2 : 0.0;
        spec.threshold = is_worth ? 12.0 : 1.2;
        choice_make(&f);
        f.choice.budget = LANES * N;
        assert_int_equal(quire_retain_choose(&spec, &f.choice, f.kept_lists), QUIRE_OK);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            double mean = 0.0;
            uint32_t n_below = 0, n_above = 0;

            for (uint32_t t = 0; t < f.n_tokens[lane]; t++) {
                mean += (double)f.scores[lane][t] / f.n_tokens[lane];
            }
            for (uint32_t t = 0; t + 1 < f.n_tokens[lane]; t++) {
                const bool is_above =
                    (double)f.scores[lane][t] >= (is_worth ? 12.0 : (double)(float)(1.2 * mean));

                n_above += is_above;
                n_below += !is_above && f.kept[lane][t];
                assert_true(!is_above || f.kept[lane][t]);
            }
            assert_true(n_below == 0 || (i % 3 == 0 && n_above < (uint32_t)(0.2 * N)));
        }
    }
}

/* Tokens that stay in any case are a part of the share, wherever they lie: a layer that holds more
 * of them than an even part leaves the other layers less. */
static void test_staying_tokens(void **state)
{
    static const struct {
        const char *policy;
        uint32_t n_kept; /* of the tokens that may leave */
    } cases[] = { { "reconstruct:0.3,sinks=0,recent=1",
                    0 }, /* 640 tokens stay, of a share of 600 */
                  { "keydiff:0.3,sinks=0,recent=1", 0 },
                  { "reconstruct:0.4,sinks=0,recent=1", 128 },
                  { "keydiff:0.4,sinks=0,recent=1", 128 } };
    static const uint32_t n_before[2] = { 448, 64 };
    int32_t positions[448 + 256];

    (void)state;
    for (int32_t t = 0; t < 448 + 256; t++) {
        positions[t] = 1000 - (448 + 256) + t;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const quire_retain_spec spec = spec_of(cases[i].policy);
        quire_lanes_choice c;
        uint64_t n_kept = 0;

        assert_int_equal(quire_lanes_choice_init(&c, &spec, 2, 1, 1000), QUIRE_OK);
        c.granule = 64;
        c.n_behind = 64;
        for (uint32_t l = 0; l < 2; l++) {
            c.n_before[l] = n_before[l];
            c.n_tokens[l] = n_before[l] + 256;
            c.positions[l] = positions + 448 - n_before[l];
        }
        assert_int_equal(quire_lanes_choice_room(&c), QUIRE_OK);
        for (uint32_t l = 0; l < 2; l++) {
            for (uint32_t t = 0; t < c.n_tokens[l]; t++) {
                c.scores[l][t] = (float)quire_rng_unit(&rng);
            }
        }
        quire_lanes_choice_budgets(&c);
        assert_int_equal(quire_lanes_choice_share(&c, 0, 1), QUIRE_OK);
        for (uint32_t l = 0; l < 2; l++) {
            for (uint32_t t = 0; t < c.n_tokens[l]; t++) {
                n_kept += c.is_kept[l][t];
                assert_true(c.is_kept[l][t] || (t >= n_before[l] && t < c.n_tokens[l] - 64));
            }
        }
        assert_int_equal(n_kept, 448 + 64 + 2 * 64 + cases[i].n_kept);
        quire_lanes_choice_fini(&c);
    }
}

/* Tokens that policies without probes keep. */
static void test_baselines(void **state)
{
    static const char *const texts[] = { "window:0.5,sinks=2,recent=3", "last:0.5", "stride:0.5",
                                         "random:0.5,seed=5" };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        quire_retain_spec spec = spec_of(texts[i]);
        choice_fixture f;
        uint32_t n_low = 0;

        spec.sinks = i < 2 ? spec.sinks : 0;
        spec.recent = i < 2 ? spec.recent : 1;
        choice_make(&f);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const quire_retain_lane as_lane = { .n_tokens = f.n_tokens[lane],
                                                .positions = f.positions[lane],
                                                .n_text = N,
                                                .lane = lane };

            quire_retain_score(&spec, &as_lane, f.scores[lane]);
        }
        f.choice.budget = LANES * N / 2;
        assert_int_equal(quire_retain_choose(&spec, &f.choice, f.kept_lists), QUIRE_OK);
        for (uint32_t t = 0; t < N; t++) {
            n_low += t < N / 2 && f.kept[0][t];
        }
        if (i == 0) {
            assert_true(f.kept[0][0] && f.kept[0][1] && !f.kept[0][2]);
            assert_true(f.kept[0][N - 18] && !f.kept[0][N - 19]);
        } else if (i == 1) {
            assert_true(f.kept[0][N / 2] && !f.kept[0][N / 2 - 1] && !f.kept[0][0]);
        } else if (i == 2) {
            for (uint32_t t = 0; t < N - 3; t++) {
                assert_true(f.kept[0][t] || f.kept[0][t + 1] || f.kept[0][t + 2] ||
                            f.kept[0][t + 3]);
            }
        } else {
            assert_true(n_low > 3 && n_low < 17);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_full_layers),
        cmocka_unit_test(test_choosing_layers),
        cmocka_unit_test(test_attention_scores),
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_keydiff),
        cmocka_unit_test(test_even_budgets),
        cmocka_unit_test(test_weighed_budgets),
        cmocka_unit_test(test_random_budgets),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_ties_and_nan),
        cmocka_unit_test(test_baselines),
        cmocka_unit_test(test_threshold),
        cmocka_unit_test(test_digits),
        cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_staying_tokens),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
