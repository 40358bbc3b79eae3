/* test_attn_kernel_sets.c - kernel sets one by one: a row's bits do not depend on its block, q8
 * sums are the same integers everywhere, and softmax keeps its contract at the edges.
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

#include "attn/attn_fixture.h"
#include "attn/kernels.h"

#define TILE     QUIRE_TILE_TOKENS
#define SETS_MAX 6u
#define ROWS_MAX 14u

static quire_rng rng;

/* Every set that this CPU runs, with and without the extra instructions of some. */
static uint32_t all_sets(const quire_attn_kernels **sets)
{
    uint32_t n = 0;

    sets[n++] = quire_attn_kernels_portable();
#if defined(__x86_64__)
    if (quire_attn_kernels_find("avx2") != NULL) {
        sets[n++] = quire_attn_kernels_avx2_plain();
        sets[n++] = quire_attn_kernels_avx2();
    }
    if (quire_attn_kernels_find("avx512") != NULL) {
        sets[n++] = quire_attn_kernels_avx512_plain();
        sets[n++] = quire_attn_kernels_avx512();
    }
#elif defined(__aarch64__)
    assert_non_null(quire_attn_kernels_find("neon"));
    sets[n++] = quire_attn_kernels_neon();
#endif
    return n;
}

static void *take(size_t bytes)
{
    const quire_allocator *allocator = quire_allocator_default();
    void *p = allocator->alloc(allocator->ctx, bytes);

    assert_non_null(p);
    return p;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_normal(&rng);
    }
}

/* A tile whose slots [begin, end) hold values, and the others NaN. */
static void *new_tile(bool is_k, quire_format format, uint32_t d, uint32_t begin, uint32_t end)
{
    const quire_codec *codec = quire_codec_find("ref");
    quire_tile_rows rows = { d, begin, end - begin, d };
    size_t bytes = quire_tile_bytes(format, is_k ? QUIRE_SIDE_K : QUIRE_SIDE_V, d);
    float *x = take((size_t)TILE * d * sizeof(float));
    void *tile = take(bytes);

    memset(tile, 0xff, bytes);
    fill(x, (size_t)TILE * d);
    (is_k ? codec->encode_k : codec->encode_v)(format, &rows, x, tile);
    free(x);
    return tile;
}

typedef struct kernel_case {
    quire_format format;
    uint32_t d;
    uint32_t n_rows;
    uint32_t begin;
    uint32_t end;
} kernel_case;

static kernel_case random_case(void)
{
    static const uint32_t dims[] = { 8, 16, 24, 40, 48, 56, 64, 72, 80, 96, 128, 136, 256 };
    kernel_case c = { .format = (quire_format)quire_rng_below(&rng, QUIRE_FORMATS_DIRECT),
                      .d = dims[quire_rng_below(&rng, 13)],
                      .n_rows = 1 + quire_rng_below(&rng, ROWS_MAX) };

    c.begin = quire_rng_below(&rng, 3) == 0 ? quire_rng_below(&rng, TILE) : 0;
    c.end =
        quire_rng_below(&rng, 3) == 0 ? c.begin + 1 + quire_rng_below(&rng, TILE - c.begin) : TILE;
    return c;
}

/* Packed queries of a case. */
static unsigned char *pack(const quire_attn_kernels *set, const kernel_case *c, const float *q)
{
    size_t q_bytes = set->q_bytes(c->format, c->d);
    unsigned char *packed = take(c->n_rows * q_bytes);

    assert_int_equal(q_bytes % 64, 0);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        set->q_pack(c->format, c->d, 0.3f, q + (size_t)r * c->d, packed + r * q_bytes);
    }
    return packed;
}

/* s = q . K, once as a block; then row by row, which must give the same bits. */
static void run_qk(const quire_attn_kernels *set, const kernel_case *c, const float *q,
                   const void *tile, bool accumulate, float *s)
{
    unsigned char *packed = pack(set, c, q);
    float *single = take(c->n_rows * TILE * sizeof(float));
    quire_attn_qk args = { .format = c->format,
                           .d = c->d,
                           .n_rows = c->n_rows,
                           .accumulate = accumulate,
                           .packed = packed,
                           .k_tile = tile,
                           .s = s };

    memcpy(single, s, c->n_rows * TILE * sizeof(float));
    set->qk(&args);
    args.n_rows = 1;
    args.next = tile;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        args.packed = packed + r * set->q_bytes(c->format, c->d);
        args.s = single + (size_t)r * TILE;
        set->qk(&args);
    }
    assert_memory_equal(s, single, c->n_rows * TILE * sizeof(float));
    free(single);
    free(packed);
}

static void test_qk(void **state)
{
    const quire_attn_kernels *sets[SETS_MAX];
    uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t n = 0; n < 300; n++) {
        kernel_case c = random_case();
        float *q = take(c.n_rows * c.d * sizeof(float));
        float *s = take(c.n_rows * TILE * sizeof(float));
        float *first = take(c.n_rows * TILE * sizeof(float));
        void *tile = new_tile(true, c.format, c.d, 0, TILE);

        fill(q, (size_t)c.n_rows * c.d);
        for (uint32_t i = 0; i < n_sets; i++) {
            for (size_t k = 0; k < (size_t)c.n_rows * TILE; k++) {
                s[k] = (float)(k % 7) - 3.0f;
            }
            run_qk(sets[i], &c, q, tile, n % 2 != 0, s);
            if (i == 0) {
                memcpy(first, s, c.n_rows * TILE * sizeof(float));
            } else if (c.format == QUIRE_FORMAT_Q8) {
                assert_memory_equal(s, first, c.n_rows * TILE * sizeof(float));
            }
        }
        free(tile);
        free(first);
        free(s);
        free(q);
    }
}

/* o = o * rescale + P V as a block and row by row. Also with a NaN in every unseen slot of V. */
static void run_pv(const quire_attn_kernels *set, const kernel_case *c, const float *p,
                   const float *rescale, const void *tile, float *o)
{
    size_t stride = (c->d + 15u) / 16 * 16 + 16;
    float *single = take(c->n_rows * stride * sizeof(float));
    quire_attn_pv args = { .format = c->format,
                           .d = c->d,
                           .n_rows = c->n_rows,
                           .slot_begin = c->begin,
                           .slot_end = c->end,
                           .p = p,
                           .rescale = rescale,
                           .v_tile = tile,
                           .o = o,
                           .o_stride = stride };

    memcpy(single, o, c->n_rows * stride * sizeof(float));
    set->pv(&args);
    args.n_rows = 1;
    args.next = tile;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        args.p = p + (size_t)r * TILE;
        args.rescale = rescale + r;
        args.o = single + r * stride;
        set->pv(&args);
    }
    for (uint32_t r = 0; r < c->n_rows; r++) {
        assert_memory_equal(o + r * stride, single + r * stride, c->d * sizeof(float));
        for (uint32_t i = 0; i < c->d; i++) {
            assert_true(isfinite(o[r * stride + i]));
        }
        for (size_t i = stride - 16; i < stride; i++) {
            assert_true(o[r * stride + i] == 7.0f); /* beyond the padding: not ours */
        }
    }
    free(single);
}

static void test_pv(void **state)
{
    const quire_attn_kernels *sets[SETS_MAX];
    uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t n = 0; n < 300; n++) {
        kernel_case c = random_case();
        size_t stride = (c.d + 15u) / 16 * 16 + 16;
        size_t o_bytes = c.n_rows * stride * sizeof(float);
        float *p = take(c.n_rows * TILE * sizeof(float));
        float *o = take(o_bytes);
        float *first = take(o_bytes);
        void *tile = new_tile(false, c.format, c.d, c.begin, c.end);
        float rescale[ROWS_MAX];
        bool is_fresh =
            n % 2 == 0; /* o = 0: then q8 results have one rounding, the same everywhere */

        memset(p, 0, c.n_rows * TILE * sizeof(float));
        for (uint32_t r = 0; r < c.n_rows; r++) {
            rescale[r] = is_fresh ? 0.0f : (float)quire_rng_unit(&rng);
            for (uint32_t t = c.begin; t < c.end; t++) {
                p[r * TILE + t] = (float)quire_rng_unit(&rng);
            }
        }
        for (uint32_t i = 0; i < n_sets; i++) {
            for (size_t k = 0; k < c.n_rows * stride; k++) {
                o[k] = is_fresh && k % stride < stride - 16 ? 0.0f : 7.0f;
            }
            run_pv(sets[i], &c, p, rescale, tile, o);
            if (i == 0) {
                memcpy(first, o, o_bytes);
            } else if (c.format == QUIRE_FORMAT_Q8 && is_fresh) {
                for (uint32_t r = 0; r < c.n_rows; r++) {
                    assert_memory_equal(o + r * stride, first + r * stride, c.d * sizeof(float));
                }
            }
        }
        free(tile);
        free(first);
        free(o);
        free(p);
    }
}

/* ---- softmax ---- */

typedef struct softmax_state {
    float m[ROWS_MAX];
    float l[ROWS_MAX];
    float rescale[ROWS_MAX];
} softmax_state;

/* P, l and rescale against double precision. */
static void check_softmax(const quire_attn_kernels *set, uint32_t n_rows, uint32_t begin,
                          const uint32_t *end)
{
    float *s = take((size_t)n_rows * TILE * sizeof(float));
    float *p = take((size_t)n_rows * TILE * sizeof(float));
    softmax_state before;
    softmax_state st;

    for (uint32_t r = 0; r < n_rows; r++) {
        bool is_first = quire_rng_below(&rng, 2) == 0;

        st.m[r] = is_first ? -INFINITY : (float)(quire_rng_normal(&rng) * 30.0);
        st.l[r] = is_first ? 0.0f : (float)quire_rng_unit(&rng) + 1.0f;
        for (uint32_t t = 0; t < TILE; t++) {
            bool is_seen = t >= begin && t < end[r];

            s[r * TILE + t] = is_seen ? (float)(quire_rng_normal(&rng) * 30.0) : NAN;
            p[r * TILE + t] = s[r * TILE + t];
        }
    }
    before = st;
    set->softmax(n_rows, begin, end, p, st.m, st.l, st.rescale);
    for (uint32_t r = 0; r < n_rows; r++) { /* the differences are f32 by contract */
        float m = before.m[r];
        double l;

        for (uint32_t t = begin; t < end[r]; t++) {
            m = fmaxf(m, s[r * TILE + t]);
        }
        l = end[r] > begin ? (double)before.l[r] * exp((double)(before.m[r] - m))
                           : (double)before.l[r];
        for (uint32_t t = 0; t < TILE; t++) {
            bool is_seen = t >= begin && t < end[r];
            double expected = is_seen ? exp((double)(s[r * TILE + t] - m)) : 0.0;

            assert_true(fabs((double)p[r * TILE + t] - expected) <= 4e-7 * expected + 2e-38);
            assert_true(is_seen || p[r * TILE + t] == 0.0f);
            l += expected;
        }
        assert_true(st.m[r] == m);
        assert_true(fabs((double)st.l[r] - l) <= 1e-6 * l);
        assert_true(end[r] > begin || st.rescale[r] == 1.0f);
    }
    free(p);
    free(s);
}

static void test_softmax(void **state)
{
    const quire_attn_kernels *sets[SETS_MAX];
    uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t n = 0; n < 500; n++) {
        uint32_t n_rows = 1 + quire_rng_below(&rng, ROWS_MAX);
        uint32_t begin = n % 2 == 0 ? 0 : quire_rng_below(&rng, TILE);
        uint32_t end[ROWS_MAX];

        for (uint32_t r = 0; r < n_rows; r++) {
            end[r] = n % 3 == 0 ? TILE : quire_rng_below(&rng, TILE + 1);
        }
        for (uint32_t i = 0; i < n_sets; i++) {
            check_softmax(sets[i], n_rows, begin, end);
        }
    }
}

static void test_softmax_of_special_logits(void **state)
{
    const quire_attn_kernels *sets[SETS_MAX];
    uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < n_sets; i++) {
        float *s = take((size_t)4 * TILE * sizeof(float));
        float m[4] = { -INFINITY, -INFINITY, 2.0f, -INFINITY };
        float l[4] = { 0.0f, 0.0f, 3.0f, 0.0f };
        uint32_t end[4] = { 2, 2, 2, 2 };
        float rescale[4];

        memset(s, 0, (size_t)4 * TILE * sizeof(float));
        s[0] = -INFINITY; /* row 0: nothing but -Inf */
        s[1] = -INFINITY;
        s[TILE] = NAN; /* row 1: NaN and a number */
        s[TILE + 1] = 1.0f;
        s[2 * TILE] = -INFINITY; /* row 2: -Inf and a very small weight */
        s[2 * TILE + 1] = -200.0f;
        s[3 * TILE] = INFINITY;
        sets[i]->softmax(4, 0, end, s, m, l, rescale);
        assert_true(m[0] == -INFINITY && l[0] == 0.0f && s[0] == 0.0f);
        assert_true(isnan(l[1]) && isnan(s[TILE]));
        assert_true(m[2] == 2.0f && l[2] == 3.0f && rescale[2] == 1.0f);
        assert_true(s[2 * TILE] == 0.0f && s[2 * TILE + 1] == 0.0f);
        assert_true(isnan(l[3]));
        free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qk),
        cmocka_unit_test(test_pv),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_of_special_logits),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
