/* test_attend.c - steps of one row that read some pages: the pages with the highest bounds, and
 * attention on these alone, against double precision.
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
#include "codec/half.h"
#include "retain/kept_lanes.h"
#include "seed.h"

#define N_LAYERS (QUIRE_ATTEND_DENSE + 3u)
#define WINDOWED (N_LAYERS - 1) /* this layer has a window, */
#define WINDOW   150u           /* which it reads as it is */
#define N_KV     2u
#define GROUP    2u
#define N_HEAD   (N_KV * GROUP)
#define D        16u
#define N_TEXT   900u
#define PAGES    (N_TEXT / 64 + 1)

static quire_rng rng;

typedef struct world {
    quire_attn_layer layers[N_LAYERS];
    quire_lanes *lanes;
    double share;
    uint32_t n_text;
    float q[N_LAYERS][N_TEXT][N_HEAD * D];
    float k[N_LAYERS][N_TEXT][N_KV * D];
    float v[N_LAYERS][N_TEXT][N_KV * D];
    float out[N_LAYERS][N_TEXT][N_HEAD * D];
} world;

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_normal(&rng);
    }
}

static world *world_make(const char *policy, quire_format format, double share, uint32_t n_threads)
{
    world *w = calloc(1, sizeof *w);
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_lanes_opts opts;

    assert_non_null(w);
    assert_int_equal(quire_retain_parse(policy, &spec, &err), QUIRE_OK);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        quire_attn_layer *layer = &w->layers[l];

        *layer = (quire_attn_layer){ .n_head = N_HEAD,
                                     .n_kv_head = N_KV,
                                     .d_k = D,
                                     .d_v = D,
                                     .n_k = 1,
                                     .n_v = 1,
                                     .scale = 0.5f };
        layer->k[0].format = layer->v[0].format = format;
        layer->k[0].lane.offset = (size_t)l * 65536;
        layer->v[0].lane.offset = (size_t)l * 65536 + 32768;
        layer->k_store = layer->k[0];
        layer->v_store = layer->v[0];
    }
    w->layers[WINDOWED].window = WINDOW;
    w->share = share;
    opts = (quire_lanes_opts){ .spec = &spec,
                               .layers = w->layers,
                               .n_layers = N_LAYERS,
                               .n_text_max = N_TEXT,
                               .n_full_max = N_TEXT,
                               .n_rows_max = 200,
                               .n_threads = n_threads,
                               .attend_share = share };
    if (quire_lanes_create(&w->lanes, &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    quire_lanes_attend_from(w->lanes, 0);
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
        for (uint32_t i = 0; i < 3; i++) {
            device.append(device.ctx, &call, i, 3);
        }
        for (uint32_t i = 0; i < 3; i++) {
            device.run(device.ctx, &call, l, i, 3);
        }
    }
    w->n_text = begin + n_rows;
    return rc == QUIRE_OK ? device.sync(device.ctx) : rc;
}

static void step(world *w, uint32_t n_rows)
{
    assert_int_equal(step_at(w, w->n_text, n_rows), QUIRE_OK);
}

/* ---- in double precision ---- */

/* The nearest number of 8 binary digits that is not below x, or not above. */
static double rounded(double x, double (*to)(double))
{
    int exponent;
    const double digits = frexp(x, &exponent);

    return ldexp(to(ldexp(digits, 8)), exponent - 8);
}

/* Bound of page i of a lane for the last row. */
static double bound_of(const world *w, uint32_t l, uint32_t g, const int32_t *held, uint32_t n,
                       uint32_t i)
{
    double sum = 0.0;

    for (uint32_t h = g * GROUP; h < (g + 1) * GROUP; h++) {
        const float *q = w->q[l][w->n_text - 1] + h * D;

        for (uint32_t d = 0; d < D; d++) {
            double least = INFINITY, greatest = -INFINITY;

            for (uint32_t t = 64 * i; t < n && t < 64 * (i + 1); t++) {
                least = fmin(least, (double)w->k[l][held[t]][g * D + d]);
                greatest = fmax(greatest, (double)w->k[l][held[t]][g * D + d]);
            }
            sum +=
                fmax((double)q[d] * rounded(least, floor), (double)q[d] * rounded(greatest, ceil));
        }
    }
    return sum;
}

static void choose(const world *w, uint32_t l, uint32_t g, bool *is_read)
{
    uint32_t n;
    const int32_t *held = quire_lanes_positions(w->lanes, l, g, &n);
    const uint32_t n_pages = (n + 63) / 64;
    uint32_t n_read = (uint32_t)ceil(w->share * n_pages);

    n_read = n_read < 3 ? 3 : n_read;
    memset(is_read, 0, PAGES * sizeof *is_read);
    is_read[0] = is_read[n_pages - 1] = true;
    if (n_pages > 1) {
        is_read[n_pages - 2] = true;
    }
    for (uint32_t i = 3; i < n_read && i < n_pages; i++) {
        uint32_t best = 0;
        double most = -INFINITY;

        for (uint32_t p = 0; p < n_pages; p++) {
            const double bound = is_read[p] ? -INFINITY : bound_of(w, l, g, held, n, p);

            if (bound > most) {
                best = p;
                most = bound;
            }
        }
        is_read[best] = true;
    }
    for (uint32_t p = 0; p < n_pages && (l < QUIRE_ATTEND_DENSE || w->share >= 1); p++) {
        is_read[p] = true;
    }
}

/* The last row of the layer with a window. */
static void check_window(const world *w, double within)
{
    const uint32_t row = w->n_text - 1, first = row < WINDOW ? 0 : row - WINDOW + 1;

    for (uint32_t h = 0; h < N_HEAD; h++) {
        double sum = 0.0, out[D] = { 0 };

        for (uint32_t t = first; t <= row; t++) {
            double p = 0.0;

            for (uint32_t d = 0; d < D; d++) {
                p += (double)w->q[WINDOWED][row][h * D + d] *
                     (double)w->k[WINDOWED][t][h / GROUP * D + d];
            }
            sum += exp(0.5 * p);
            for (uint32_t d = 0; d < D; d++) {
                out[d] += exp(0.5 * p) * (double)w->v[WINDOWED][t][h / GROUP * D + d];
            }
        }
        for (uint32_t d = 0; d < D; d++) {
            const double got = (double)w->out[WINDOWED][0][h * D + d];

            if (!(fabs(got - out[d] / sum) < within)) {
                fail_msg("window, head %u: %g, not %g", h, got, out[d] / sum);
            }
        }
    }
}

static void check_row(const world *w, double within)
{
    const uint32_t row = w->n_text - 1;

    check_window(w, within);
    for (uint32_t l = 0; l < WINDOWED; l++) {
        for (uint32_t h = 0; h < N_HEAD; h++) {
            const uint32_t g = h / GROUP;
            uint32_t n;
            const int32_t *held = quire_lanes_positions(w->lanes, l, g, &n);
            bool is_read[PAGES];
            double sum = 0.0, out[D] = { 0 };

            choose(w, l, g, is_read);
            for (uint32_t t = 0; t < n; t++) {
                double p = 0.0;

                for (uint32_t d = 0; d < D && is_read[t / 64]; d++) {
                    p += (double)w->q[l][row][h * D + d] * (double)w->k[l][held[t]][g * D + d];
                }
                p = is_read[t / 64] ? exp(0.5 * p) : 0.0;
                sum += p;
                for (uint32_t d = 0; d < D; d++) {
                    out[d] += p * (double)w->v[l][held[t]][g * D + d];
                }
            }
            for (uint32_t d = 0; d < D; d++) {
                const double got = (double)w->out[l][0][h * D + d];

                if (!(fabs(got - out[d] / sum) < within)) {
                    fail_msg("layer %u, head %u: %g, not %g", l, h, got, out[d] / sum);
                }
            }
        }
    }
}

/* K of tokens [from, to) becomes so many times as large. */
static void keys_scale(world *w, uint32_t from, uint32_t to, float factor)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        float *k = w->k[l][0];

        for (uint32_t i = from * N_KV * D; i < to * N_KV * D; i++) {
            k[i] *= factor;
        }
    }
}

static void test_choice(void **state)
{
    static const double shares[] = { 0.25, 0.5, 0.01, 1.0 };

    (void)state;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        world *w = world_make("window:1", QUIRE_FORMAT_F32, shares[i], 1 + (uint32_t)i);
        quire_lanes_stats stats;

        step(w, 200);
        step(w, 1);
        check_row(w, 1e-4);
        for (int s = 0; s < 2; s++) {
            step(w, 200);
            step(w, 1);
            step(w, 1);
            check_row(w, 1e-4);
        }
        /* A cut page has the bounds of the tokens that stay, and of those that follow them. */
        keys_scale(w, 650, 704, 64.0f);
        step(w, 150);
        keys_scale(w, 650, 704, 1.0f / 64.0f);
        assert_int_equal(step_at(w, 650, 1), QUIRE_OK);
        check_row(w, 1e-4);
        step(w, 200);
        step(w, 1);
        check_row(w, 1e-4);
        quire_lanes_truncate(w->lanes, 800);
        assert_int_equal(step_at(w, 800, 90), QUIRE_OK);
        step(w, 1);
        check_row(w, 1e-4);
        quire_lanes_stats_get(w->lanes, &stats);
        if (shares[i] < 1) {
            assert_true(stats.pages_read_total < stats.pages_held_total);
            assert_true(stats.pages_read_total > 0);
        } else {
            assert_int_equal(stats.pages_held_total, 0);
        }
        world_free(w);
    }
}

/* Outputs of all rows, in steps of n: [N_LAYERS][N_TEXT][N_HEAD * D]. */
static float *all_rows(world *w, uint32_t n, uint32_t attend_from)
{
    float *all = calloc(1, sizeof w->out);
    const size_t row = N_HEAD * D, layer = N_TEXT * row;

    assert_non_null(all);
    quire_lanes_attend_from(w->lanes, attend_from);
    w->n_text = 0;
    for (uint32_t at = 0; at < N_TEXT; at += n) {
        const uint32_t now = n < N_TEXT - at ? n : N_TEXT - at;

        assert_int_equal(step_at(w, at, now), QUIRE_OK);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            memcpy(all + l * layer + at * row, w->out[l][0], now * row * sizeof *all);
        }
    }
    return all;
}

/* Rows from a position on choose, each by itself: in steps of one row and of many, also in a step
 * that begins with rows that read all. */
static void test_steps(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };
    const size_t n_bytes = sizeof((world *)NULL)->out, row = N_HEAD * D;

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        world *w = world_make("stride:1", formats[i], 0.3, 2);
        float *single = all_rows(w, 1, 500);
        float *some = all_rows(w, 77, 500);
        float *dense = all_rows(w, 77, UINT32_MAX);
        float *none = all_rows(w, 1, UINT32_MAX);

        assert_memory_equal(single, some, n_bytes);
        assert_memory_equal(dense, none, n_bytes);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            const float *a = some + l * N_TEXT * row, *b = dense + l * N_TEXT * row;

            assert_memory_equal(a, b, 500 * row * sizeof *a);
            if (l == WINDOWED) {
                assert_memory_equal(a, b, N_TEXT * row * sizeof *a);
            } else if (l >= QUIRE_ATTEND_DENSE) {
                assert_memory_not_equal(a + 500 * row, b + 500 * row, row * sizeof *a);
            }
        }
        free(none);
        free(dense);
        free(some);
        free(single);
        world_free(w);
    }
}

/* The layer with a window counts no pages. */
static void test_counts(void **state)
{
    world *w = world_make("window:1", QUIRE_FORMAT_F16, 0.5, 2);
    quire_lanes_stats stats;

    (void)state;
    quire_lanes_attend_from(w->lanes, 601);
    for (int i = 0; i < 4; i++) {
        step(w, i < 3 ? 200 : 1);
    }
    step(w, 1);
    quire_lanes_stats_get(w->lanes, &stats);
    assert_int_equal(stats.pages_held_total, (WINDOWED - QUIRE_ATTEND_DENSE) * N_KV * 10);
    assert_int_equal(stats.pages_read_total, (WINDOWED - QUIRE_ATTEND_DENSE) * N_KV * 5);
    world_free(w);
}

/* On condensed pages, too. */
static void test_condensed(void **state)
{
    world *w = world_make("random:0.6,recent=20", QUIRE_FORMAT_F32, 0.4, 2);

    (void)state;
    for (int i = 0; i < 4; i++) {
        step(w, 200);
        assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
        step(w, 1);
        check_row(w, 1e-4);
    }
    world_free(w);
}

/* K and V of a lane as attention reads them: of sealed tiles, and of hot ones. */
typedef struct lane_rows {
    uint32_t n;
    float k[N_TEXT][D];
    float v[N_TEXT][D];
} lane_rows;

static void rows_read(const world *w, uint32_t l, uint32_t g, lane_rows *rows)
{
    (void)quire_lanes_positions(w->lanes, l, g, &rows->n);
    for (uint32_t t = 0; t < rows->n; t++) {
        quire_lanes_read(w->lanes, l, g, t, rows->k[t], rows->v[t]);
    }
}

/* The pages that the last row reads, by the bounds of these rows: the best of all subsets, one page
 * after the other. */
static void rows_choose(const world *w, uint32_t l, uint32_t g, const lane_rows *rows,
                        bool is_read[PAGES])
{
    const uint32_t n_pages = (rows->n + 63) / 64, n_share = (uint32_t)ceil(w->share * n_pages);
    double bounds[PAGES] = { 0 };

    for (uint32_t p = 0; p < n_pages; p++) {
        for (uint32_t i = 0; i < GROUP * D; i++) {
            const double q = (double)w->q[l][w->n_text - 1][g * GROUP * D + i];
            double least = INFINITY, greatest = -INFINITY;

            for (uint32_t t = 64 * p; t < rows->n && t < 64 * (p + 1); t++) {
                least = fmin(least, (double)rows->k[t][i % D]);
                greatest = fmax(greatest, (double)rows->k[t][i % D]);
            }
            bounds[p] += fmax(q * rounded(least, floor), q * rounded(greatest, ceil));
        }
        is_read[p] = p == 0 || p + QUIRE_ATTEND_RECENT >= n_pages;
        bounds[p] = is_read[p] ? -INFINITY : bounds[p];
    }
    for (uint32_t i = 1 + QUIRE_ATTEND_RECENT; i < n_share; i++) {
        uint32_t best = 0;

        for (uint32_t p = 1; p < n_pages; p++) {
            best = bounds[p] > bounds[best] ? p : best;
        }
        is_read[best] = true;
        bounds[best] = -INFINITY;
    }
}

/* The last row's output of a head on these rows, in double precision. is_read NULL: on all pages.
 */
static void rows_attend(const world *w, uint32_t l, uint32_t h, const lane_rows *rows,
                        const bool *is_read, double out[D])
{
    const float *q = w->q[l][w->n_text - 1] + h * D;
    double sum = 0.0;

    memset(out, 0, D * sizeof *out);
    for (uint32_t t = 0; t < rows->n; t++) {
        double p = 0.0;

        for (uint32_t d = 0; d < D; d++) {
            p += (double)q[d] * (double)rows->k[t][d];
        }
        p = is_read == NULL || is_read[t / 64] ? exp(0.5 * p) : 0.0;
        sum += p;
        for (uint32_t d = 0; d < D; d++) {
            out[d] += p * (double)rows->v[t][d];
        }
    }
    for (uint32_t d = 0; d < D; d++) {
        out[d] /= sum;
    }
}

/* Sealed pages beside hot ones: the row reads the pages with the highest bounds of the rounded
 * keys, and its output is that of these pages. Queries and weights are rounded to 8 bits there,
 * which moves an output by far less than other pages would. */
static void check_sealed(const world *w)
{
    static lane_rows rows;
    double norm = 0.0, off = 0.0, off_all = 0.0;

    for (uint32_t l = QUIRE_ATTEND_DENSE; l < WINDOWED; l++) {
        for (uint32_t h = 0; h < N_HEAD; h++) {
            bool is_read[PAGES] = { false };
            double want[D], all[D];

            rows_read(w, l, h / GROUP, &rows);
            rows_choose(w, l, h / GROUP, &rows, is_read);
            rows_attend(w, l, h, &rows, is_read, want);
            rows_attend(w, l, h, &rows, NULL, all);
            for (uint32_t d = 0; d < D; d++) {
                const double got = (double)w->out[l][0][h * D + d];

                norm += want[d] * want[d];
                off += (got - want[d]) * (got - want[d]);
                off_all += (got - all[d]) * (got - all[d]);
            }
        }
    }
    if (!(off < 0.05 * 0.05 * norm && off_all > 9 * off)) {
        fail_msg("off by %g of the chosen pages, by %g of all", sqrt(off / norm),
                 sqrt(off_all / norm));
    }
}

static void test_sealed(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q4 };

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        world *w = world_make("random:0.8,recent=20", formats[i], 0.4, 2);
        quire_lanes_stats stats;

        for (int s = 0; s < 4; s++) {
            step(w, 200);
            assert_int_equal(quire_lanes_condense(w->lanes), QUIRE_OK);
            step(w, 1);
            if (s > 1) {
                check_sealed(w);
            }
        }
        quire_lanes_stats_get(w->lanes, &stats);
        assert_true(stats.pages_read_total < stats.pages_held_total);
        world_free(w);
    }
}

/* A NaN in a query or in the first row of a page bounds nothing: the choice ends, and such pages
 * are read before others, the later ones first. */
static void test_nan(void **state)
{
    enum {
        N = 10,
        N_READ = 5
    };
    static const uint32_t of_query[N_READ] = { 0, 6, 7, 8, 9 }, of_page[N_READ] = { 0, 4, 5, 8, 9 };
    const quire_attn_layer one = { .d_k = D };
    uint16_t bounds[N][2 * D];
    float query[D], row[D];

    (void)state;
    for (int is_page = 0; is_page < 2; is_page++) {
        quire_page_rank ranks[N];

        for (uint32_t p = 0; p < N; p++) {
            for (uint32_t t = 0; t < 2; t++) {
                for (uint32_t d = 0; d < D; d++) {
                    row[d] = p == 5 ? 9.0f : 1.0f;
                    query[d] = 1.0f;
                }
                row[3] = is_page && p == 4 && t == 0 ? NAN : row[3];
                quire_page_bounds_add(bounds[p], D, row, t == 0);
            }
            ranks[p] = (quire_page_rank){ .bounds = bounds[p] };
        }
        query[3] = is_page ? query[3] : NAN;
        quire_pages_choose(ranks, N, N_READ, &one, 1, query);
        for (uint32_t i = 0; i < N_READ; i++) {
            assert_int_equal(ranks[i].entry, is_page ? of_page[i] : of_query[i]);
        }
    }
}

/* Small numbers, whose sums have no rounding: the pages with the highest bounds of all heads, below
 * zero too, and the later ones of equal bounds. */
static void test_ties(void **state)
{
    enum {
        N = 40,
        HEADS = 3
    };
    const quire_attn_layer one = { .d_k = D };
    uint16_t bounds[N][2 * D];
    float queries[HEADS * D], rows[2][D];
    uint32_t n_equal = 0, n_below = 0;

    (void)state;
    for (uint32_t n_read = 3; n_read <= N; n_read++) {
        quire_page_rank ranks[N];
        int best[N];
        uint32_t at = 0;

        for (uint32_t i = 0; i < HEADS * D; i++) {
            queries[i] = (float)quire_rng_below(&rng, 3) - 1.0f;
        }
        for (uint32_t p = 0; p < N; p++) {
            ranks[p].bounds = bounds[p];
            best[p] = 0;
            for (uint32_t d = 0; d < D; d++) {
                rows[0][d] = -(float)quire_rng_below(&rng, 2) - 2.0f;
                rows[1][d] = rows[0][d] + 1.0f;
            }
            for (uint32_t t = 0; t < 2; t++) {
                quire_page_bounds_add(bounds[p], D, rows[t], t == 0);
            }
            for (uint32_t i = 0; i < HEADS * D; i++) {
                best[p] += (int)fmaxf(queries[i] * rows[0][i % D], queries[i] * rows[1][i % D]);
            }
            n_below += best[p] < 0;
            best[p] = p == 0 || p + QUIRE_ATTEND_RECENT >= N ? 10000 : best[p];
        }
        quire_pages_choose(ranks, N, n_read, &one, HEADS, queries);
        for (uint32_t p = 0; p < N; p++) {
            uint32_t n_before = 0; /* pages that are read before this one */

            for (uint32_t other = 0; other < N; other++) {
                n_before += best[other] > best[p] || (best[other] == best[p] && other > p);
                n_equal += best[other] == best[p] && other != p;
            }
            if (n_before < n_read) {
                assert_true(at < n_read);
                assert_int_equal(ranks[at++].entry, p);
            }
        }
        assert_int_equal(at, n_read);
    }
    assert_true(n_equal > 0 && n_below > 0);
}

/* Bounds are no narrower than the keys, and hardly wider. */
static void test_rounding(void **state)
{
    static const float given[D] = { 0.0f,   1.0f,    -1.0f,   1.001f,   -1.001f,
                                    1e-42f, -1e-42f, 3.4e38f, -3.4e38f, 65504.0f };
    float row[D], least, greatest;
    uint16_t bounds[2 * D];

    (void)state;
    for (uint32_t i = 0; i < 1000; i++) {
        fill(row, D);
        memcpy(row, given, i == 0 ? sizeof row : 0);
        quire_page_bounds_add(bounds, D, row, true);
        for (uint32_t d = 0; d < D; d++) {
            least = quire_bf16_to_f32(bounds[d]);
            greatest = quire_bf16_to_f32(bounds[D + d]);
            assert_true(least <= row[d] && row[d] <= greatest);
            assert_true(isinf(greatest) || isinf(least) ||
                        (double)greatest - (double)least <= fabs((double)row[d]) / 128 + 1e-40);
        }
    }
    /* Infinities and numbers of 8 digits stay. */
    row[0] = -INFINITY;
    row[1] = -2.5f;
    quire_page_bounds_add(bounds, D, row, true);
    assert_true(isinf(quire_bf16_to_f32(bounds[0])) && isinf(quire_bf16_to_f32(bounds[D])));
    assert_true(quire_bf16_to_f32(bounds[1]) == -2.5f && quire_bf16_to_f32(bounds[D + 1]) == -2.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),    cmocka_unit_test(test_steps),
        cmocka_unit_test(test_condensed), cmocka_unit_test(test_sealed),
        cmocka_unit_test(test_nan),       cmocka_unit_test(test_ties),
        cmocka_unit_test(test_rounding),  cmocka_unit_test(test_counts),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
