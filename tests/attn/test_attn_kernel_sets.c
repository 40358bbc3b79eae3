/* test_attn_kernel_sets.c - kernel sets one by one: a row's bits do not depend on its block, sums
 * of q8 and sealed formats are the same integers everywhere, and damage shows.
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
#include "attn/kernel_sets.h"
#include "codec/half.h"
#include "codec/sealed.h"

#define TILE     QUIRE_TILE_TOKENS
#define ROWS_MAX 96u
#define CASES    400u
#define EPSILON  0x1p-23

#define LOGIT_SCALE  0.3f
#define S_BEFORE_MAX 3.0f /* largest logit that an accumulating qk adds to */
#define O_BEFORE_MAX 7.0f

static quire_rng rng;

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_normal(&rng);
    }
}

/* A tile whose slots [begin, end) hold values, and the others NaN. A sealed tile is encoded whole,
 * so there the scales of the others become NaN afterwards. */
static void *new_tile(bool is_k, quire_format format, uint32_t d, uint32_t begin, uint32_t end)
{
    const quire_codec *codec = quire_codec_find("ref");
    bool is_sealed = quire_format_is_sealed(format);
    quire_tile_rows rows = { .d = d,
                             .first_slot = is_sealed ? 0 : begin,
                             .n_tokens = is_sealed ? TILE : end - begin,
                             .stride = d };
    size_t bytes = quire_tile_bytes(format, is_k ? QUIRE_SIDE_K : QUIRE_SIDE_V, d);
    float *x = kernel_sets_take((size_t)TILE * d * sizeof(float));
    void *tile = kernel_sets_take(bytes);

    memset(tile, 0xff, bytes);
    fill(x, (size_t)TILE * d);
    (is_k ? codec->encode_k : codec->encode_v)(format, &rows, x, tile);
    for (uint32_t t = 0; is_sealed && t < TILE; t++) {
        if (t < begin || t >= end) {
            ((uint16_t *)tile)[t] = QUIRE_F16_NAN_BITS;
        }
    }
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
    kernel_case c = { .format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT),
                      .d = dims[quire_rng_below(&rng, sizeof(dims) / sizeof(*dims))] };

    c.n_rows = 1 + quire_rng_below(&rng, quire_rng_below(&rng, 4) == 0 ? ROWS_MAX : 14);
    c.begin = quire_rng_below(&rng, 3) == 0 ? quire_rng_below(&rng, TILE) : 0;
    c.end =
        quire_rng_below(&rng, 3) == 0 ? c.begin + 1 + quire_rng_below(&rng, TILE - c.begin) : TILE;
    return c;
}

/* Whether a set must give the bits of the set before it in kernel_sets_all(): both are the same
 * kernels, with and without the extra instructions of some CPUs. Products of bf16 are an arithmetic
 * of their own.
 */
static bool is_variant(const quire_attn_kernels *set, const quire_attn_kernels *before,
                       quire_format format)
{
    return strcmp(set->isa, before->isa) == 0 ||
           (strncmp(set->isa, "avx512+", strlen("avx512+")) == 0 && format != QUIRE_FORMAT_BF16);
}

/* Whether P is bf16 where V is. */
static bool has_bf16_weights(const quire_attn_kernels *set, quire_format format)
{
    return format == QUIRE_FORMAT_BF16 && set->softmax_bf16 != NULL;
}

/* Packed queries of a case. */
static unsigned char *pack(const quire_attn_kernels *set, const kernel_case *c, const float *q)
{
    size_t q_bytes = set->q_bytes(c->format, c->d);
    unsigned char *packed = kernel_sets_take(c->n_rows * q_bytes);

    assert_int_equal(q_bytes % 64, 0);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        set->q_pack(c->format, c->d, LOGIT_SCALE, q + (size_t)r * c->d, packed + r * q_bytes);
    }
    return packed;
}

static void set_qk(const quire_attn_kernels *set, const quire_attn_qk *args)
{
    quire_attn_cpu_state before;

    quire_attn_kernels_enter(set, &before);
    set->qk(args);
    quire_attn_kernels_leave(set, &before);
}

/* s = q . K, once as a block; then row by row, which must give the same bits. */
static void run_qk(const quire_attn_kernels *set, const kernel_case *c, const float *q,
                   const void *tile, bool accumulate, float *s)
{
    unsigned char *packed = pack(set, c, q);
    float *single = kernel_sets_take(c->n_rows * TILE * sizeof(float));
    quire_attn_qk args = { .format = c->format,
                           .d = c->d,
                           .n_rows = c->n_rows,
                           .accumulate = accumulate,
                           .packed = packed,
                           .k_tile = tile,
                           .next = tile,
                           .next_to = QUIRE_PREFETCH_L2,
                           .s = s };

    memcpy(single, s, c->n_rows * TILE * sizeof(float));
    set_qk(set, &args);
    args.n_rows = 1;
    args.next_to = QUIRE_PREFETCH_L1;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        args.packed = packed + r * set->q_bytes(c->format, c->d);
        args.s = single + (size_t)r * TILE;
        set_qk(set, &args);
    }
    assert_memory_equal(s, single, c->n_rows * TILE * sizeof(float));
    free(single);
    free(packed);
}

static bool has_mean(quire_format format)
{
    return quire_format_is_sealed(format) && quire_sealed_is_centred(format, QUIRE_SIDE_K);
}

/* A bound for each row on the difference between two orders of adding up x . mean; 0 without a
 * mean. */
static void mean_error(const kernel_case *c, const float *q, const void *tile, double *error)
{
    const uint16_t *mean =
        (const uint16_t *)(const void *)((const char *)tile + QUIRE_SEALED_SCALES_BYTES);

    for (uint32_t r = 0; r < c->n_rows; r++) {
        error[r] = 0.0;
        for (uint32_t i = 0; has_mean(c->format) && i < c->d; i++) {
            error[r] += fabs((double)(LOGIT_SCALE * q[r * c->d + i] * quire_f16_to_f32(mean[i])));
        }
        error[r] *= c->d * EPSILON;
    }
}

/* Logits of another set against the first one's. The integers are the same, so they differ by the
 * rounding of a few float operations and by the order of x . mean. */
static void check_qk(const kernel_case *c, const double *error, const float *s, const float *first)
{
    if (c->format == QUIRE_FORMAT_Q8) {
        assert_memory_equal(s, first, c->n_rows * TILE * sizeof(float));
    }
    for (size_t i = 0; quire_format_is_sealed(c->format) && i < (size_t)c->n_rows * TILE; i++) {
        double bound = 4 * EPSILON * (fabs((double)first[i]) + S_BEFORE_MAX) + error[i / TILE];

        assert_true(fabs((double)s[i] - (double)first[i]) <= bound);
    }
}

static void test_qk(void **state)
{
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);

    (void)state;
    for (uint32_t n = 0; n < CASES; n++) {
        kernel_case c = random_case();
        size_t s_bytes = c.n_rows * TILE * sizeof(float);
        float *q = kernel_sets_take(c.n_rows * c.d * sizeof(float));
        float *s = kernel_sets_take(KERNEL_SETS_MAX * s_bytes);
        void *tile = new_tile(true, c.format, c.d, 0, TILE);
        double error[ROWS_MAX];

        if (has_mean(c.format) && n % 3 == 0) {
            memset((char *)tile + QUIRE_SEALED_SCALES_BYTES, 0, c.d * sizeof(uint16_t));
        }
        fill(q, (size_t)c.n_rows * c.d);
        mean_error(&c, q, tile, error);
        for (uint32_t i = 0; i < n_sets; i++) {
            float *mine = s + (size_t)i * c.n_rows * TILE;

            for (size_t k = 0; k < (size_t)c.n_rows * TILE; k++) {
                mine[k] = (float)(k % 7) - S_BEFORE_MAX;
            }
            run_qk(sets[i], &c, q, tile, n % 2 != 0, mine);
            check_qk(&c, error, mine, s);
            if (i > 0 && is_variant(sets[i], sets[i - 1], c.format)) {
                assert_memory_equal(mine, mine - (size_t)c.n_rows * TILE, s_bytes);
            }
        }
        free(tile);
        free(s);
        free(q);
    }
}

static size_t o_stride(const kernel_case *c)
{
    return (c->d + 15u) / 16 * 16 + 16;
}

/* Weights as the set's pv wants them. */
static float *new_weights(const quire_attn_kernels *set, const kernel_case *c, const float *p)
{
    size_t n = (size_t)c->n_rows * TILE;
    float *weights = kernel_sets_take(n * sizeof(float));

    memcpy(weights, p, n * sizeof(float));
    for (size_t i = 0; has_bf16_weights(set, c->format) && i < n; i++) {
        uint16_t *row = (uint16_t *)(void *)(weights + i / TILE * TILE);

        row[i % TILE] = quire_f32_to_bf16(p[i]);
    }
    return weights;
}

/* P V as the driver has it done: in two steps, if the set takes a sealed V so. */
static void set_pv(const quire_attn_kernels *set, const quire_attn_pv *args)
{
    quire_attn_pv with_weights = *args;
    quire_attn_cpu_state before;
    quire_attn_weights *weights;

    if (set->weigh == NULL || !quire_format_is_sealed(args->format)) {
        quire_attn_kernels_enter(set, &before);
        set->pv(args);
        quire_attn_kernels_leave(set, &before);
        return;
    }
    weights = kernel_sets_take(args->n_rows * sizeof(*weights));
    quire_attn_kernels_enter(set, &before);
    set->weigh(&(quire_attn_weigh){ .n_rows = args->n_rows,
                                    .slot_begin = args->slot_begin,
                                    .slot_end = args->slot_end,
                                    .p = args->p,
                                    .v_tile = args->v_tile,
                                    .weights = weights });
    with_weights.p = NULL;
    with_weights.weights = weights;
    set->pv(&with_weights);
    quire_attn_kernels_leave(set, &before);
    free(weights);
}

/* o = o * rescale + P V as a block and row by row. Also with a NaN in every unseen slot of V. */
static void run_pv(const quire_attn_kernels *set, const kernel_case *c, const float *p_as_floats,
                   const float *rescale, const void *tile, float *o)
{
    size_t stride = o_stride(c);
    float *p = new_weights(set, c, p_as_floats);
    float *single = kernel_sets_take(c->n_rows * stride * sizeof(float));
    quire_attn_pv args = { .format = c->format,
                           .d = c->d,
                           .n_rows = c->n_rows,
                           .slot_begin = c->begin,
                           .slot_end = c->end,
                           .p = p,
                           .rescale = rescale,
                           .v_tile = tile,
                           .next = tile,
                           .next_to = QUIRE_PREFETCH_L2,
                           .o = o,
                           .o_stride = stride };

    memcpy(single, o, c->n_rows * stride * sizeof(float));
    set_pv(set, &args);
    args.n_rows = 1;
    args.next_to = QUIRE_PREFETCH_L1;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        args.p = p + (size_t)r * TILE;
        args.rescale = rescale + r;
        args.o = single + r * stride;
        set_pv(set, &args);
    }
    for (uint32_t r = 0; r < c->n_rows; r++) {
        assert_memory_equal(o + r * stride, single + r * stride, c->d * sizeof(float));
        for (uint32_t i = 0; i < c->d; i++) {
            assert_true(isfinite(o[r * stride + i]));
        }
        for (size_t i = stride - 16; i < stride; i++) {
            assert_true(o[r * stride + i] == O_BEFORE_MAX); /* beyond the padding: not ours */
        }
    }
    free(single);
    free(p);
}

/* Sums of another set against the first one's. Where o was 0, q8 results have one rounding. */
static void check_pv(const kernel_case *c, bool is_fresh, const float *o, const float *first)
{
    size_t stride = o_stride(c);

    for (uint32_t r = 0; r < c->n_rows; r++, o += stride, first += stride) {
        if (c->format == QUIRE_FORMAT_Q8 && is_fresh) {
            assert_memory_equal(o, first, c->d * sizeof(float));
        }
        for (uint32_t i = 0; quire_format_is_sealed(c->format) && i < c->d; i++) {
            double before = is_fresh ? 0.0 : O_BEFORE_MAX;
            double bound = 2 * EPSILON * (fabs((double)first[i]) + 2.0 * before);

            assert_true(fabs((double)o[i] - (double)first[i]) <= bound);
        }
    }
}

static void test_pv(void **state)
{
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);

    (void)state;
    for (uint32_t n = 0; n < CASES; n++) {
        kernel_case c = random_case();
        size_t stride = o_stride(&c);
        size_t o_floats = c.n_rows * stride;
        float *p = kernel_sets_take(c.n_rows * TILE * sizeof(float));
        float *o = kernel_sets_take(KERNEL_SETS_MAX * o_floats * sizeof(float));
        void *tile = new_tile(false, c.format, c.d, c.begin, c.end);
        float rescale[ROWS_MAX];
        bool is_fresh = n % 2 == 0;

        if (c.format == QUIRE_FORMAT_Q8 && n % 3 == 0) { /* only damage makes one negative */
            ((uint16_t *)tile)[c.begin] |= 0x8000u;
        }
        memset(p, 0, c.n_rows * TILE * sizeof(float));
        for (uint32_t r = 0; r < c.n_rows; r++) {
            rescale[r] = is_fresh ? 0.0f : (float)quire_rng_unit(&rng);
            for (uint32_t t = c.begin; t < c.end; t++) {
                p[r * TILE + t] = (float)quire_rng_unit(&rng);
            }
        }
        for (uint32_t i = 0; i < n_sets; i++) {
            float *mine = o + i * o_floats;

            for (size_t k = 0; k < o_floats; k++) {
                mine[k] = is_fresh && k % stride < stride - 16 ? 0.0f : O_BEFORE_MAX;
            }
            run_pv(sets[i], &c, p, rescale, tile, mine);
            check_pv(&c, is_fresh, mine, o);
            for (uint32_t r = 0;
                 i > 0 && is_variant(sets[i], sets[i - 1], c.format) && r < c.n_rows; r++) {
                assert_memory_equal(mine + r * stride, mine + r * stride - o_floats,
                                    c.d * sizeof(float));
            }
        }
        free(tile);
        free(o);
        free(p);
    }
}

/* ---- integers ---- */

/* A q of whole numbers that 8 bits hold as they are: then the logits are those of the decoded tile.
 */
static void check_whole_queries(const quire_attn_kernels *set, quire_format format, uint32_t d)
{
    const kernel_case c = { .format = format, .d = d, .n_rows = 1, .begin = 0, .end = TILE };
    const quire_tile_rows rows = { .d = d, .n_tokens = TILE, .stride = d };
    float *x = kernel_sets_take((size_t)TILE * d * sizeof(float));
    float *q = kernel_sets_take(d * sizeof(float));
    float *out = kernel_sets_take(TILE * sizeof(float));
    void *tile = new_tile(true, format, d, 0, TILE);

    for (uint32_t i = 0; i < d; i++) { /* a packed q is 0.3f times this; the largest is 127 */
        q[i] = (float)(i == 3 ? 127 : (int)quire_rng_below(&rng, 255) - 127) / LOGIT_SCALE;
    }
    run_qk(set, &c, q, tile, false, out);
    quire_codec_find("ref")->decode_k(format, &rows, tile, x);
    for (uint32_t t = 0; t < TILE; t++) {
        double sum = 0.0;
        double size = 0.0;

        for (uint32_t i = 0; i < d; i++) {
            sum += (double)LOGIT_SCALE * (double)q[i] * (double)x[t * d + i];
            size += (double)LOGIT_SCALE * fabs((double)q[i] * (double)x[t * d + i]);
        }
        assert_true(fabs((double)out[t] - sum) <= (4 + d / 16) * EPSILON * size);
    }
    free(tile);
    free(out);
    free(q);
    free(x);
}

/* The same check for P with sealed formats. All scales are 1, so that P stays whole when they are
 * multiplied in. */
static void check_whole_weights(const quire_attn_kernels *set, quire_format format, uint32_t d)
{
    const kernel_case c = { .format = format, .d = d, .n_rows = 1, .begin = 0, .end = TILE };
    const quire_tile_rows rows = { .d = d, .n_tokens = TILE, .stride = d };
    float *x = kernel_sets_take((size_t)TILE * d * sizeof(float));
    float *p = kernel_sets_take(TILE * sizeof(float));
    float *out = kernel_sets_take(o_stride(&c) * sizeof(float));
    const float rescale = 0.0f;
    void *tile = new_tile(false, format, d, 0, TILE);

    for (uint32_t t = 0; t < TILE; t++) {
        ((uint16_t *)tile)[t] = quire_f32_to_f16(1.0f);
        p[t] = (float)(t == 5 ? 255 : quire_rng_below(&rng, 256));
    }
    for (uint32_t i = 0; i < o_stride(&c); i++) {
        out[i] = i < o_stride(&c) - 16 ? 0.0f : O_BEFORE_MAX;
    }
    run_pv(set, &c, p, &rescale, tile, out);
    quire_codec_find("ref")->decode_v(format, &rows, tile, x);
    for (uint32_t i = 0; i < d; i++) {
        float sum = 0.0f;

        for (uint32_t t = 0; t < TILE; t++) {
            sum += p[t] * x[t * d + i];
        }
        assert_true(out[i] == sum);
    }
    free(tile);
    free(out);
    free(p);
    free(x);
}

static void test_whole_numbers(void **state)
{
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);

    (void)state;
    for (uint32_t i = 0; i < n_sets; i++) {
        for (uint32_t d = 8; d <= 264; d += 8) {
            check_whole_queries(sets[i], QUIRE_FORMAT_Q8, d);
            for (uint32_t f = QUIRE_FORMATS_DIRECT; f < QUIRE_FORMAT_COUNT; f++) {
                check_whole_queries(sets[i], (quire_format)f, d);
                check_whole_weights(sets[i], (quire_format)f, d);
            }
        }
    }
}

/* A query row with a NaN or an Inf has only NaN logits; a token with scale NaN has only NaN logits;
 * all others are the numbers they are without the damage. */
static void check_damaged_qk(const quire_attn_kernels *set, const kernel_case *c, const float *q,
                             void *tile)
{
    size_t n_floats = (size_t)c->n_rows * TILE;
    float *whole = kernel_sets_take(n_floats * sizeof(float));
    float *s = kernel_sets_take(n_floats * sizeof(float));
    float *bad = kernel_sets_take(c->n_rows * c->d * sizeof(float));
    uint32_t bad_row = c->n_rows / 2;
    uint32_t bad_slot = quire_rng_below(&rng, TILE);
    uint16_t *scale = (uint16_t *)tile + bad_slot;
    uint16_t before = *scale;

    run_qk(set, c, q, tile, false, whole);
    memcpy(bad, q, c->n_rows * c->d * sizeof(float));
    bad[bad_row * c->d + c->d - 1] = quire_rng_below(&rng, 2) == 0 ? NAN : -INFINITY;
    *scale = QUIRE_F16_NAN_BITS;
    run_qk(set, c, bad, tile, false, s);
    *scale = before;
    for (size_t i = 0; i < n_floats; i++) {
        if (i / TILE == bad_row || i % TILE == bad_slot) {
            assert_true(isnan(s[i]));
        } else {
            assert_true(s[i] == whole[i] && isfinite(s[i]));
        }
    }
    free(bad);
    free(s);
    free(whole);
}

/* A seen token with scale NaN makes the rows NaN that give the token weight, and no other rows. A
 * NaN in P makes its row NaN. A row without weights keeps its output. */
static void check_damaged_pv(const quire_attn_kernels *set, const kernel_case *c, void *tile)
{
    size_t stride = o_stride(c);
    float *p = kernel_sets_take((size_t)3 * TILE * sizeof(float));
    float *o = kernel_sets_take(3 * stride * sizeof(float));
    const float rescale[3] = { 1.0f, 1.0f, 0.5f };
    uint32_t bad_slot = quire_rng_below(&rng, TILE - 1) + 1;
    quire_attn_pv args = { .format = c->format,
                           .d = c->d,
                           .n_rows = 3,
                           .slot_end = TILE,
                           .p = p,
                           .rescale = rescale,
                           .v_tile = tile,
                           .o = o,
                           .o_stride = stride };
    uint16_t *scale = (uint16_t *)tile + bad_slot;
    uint16_t before = *scale;

    memset(p, 0, (size_t)3 * TILE * sizeof(float));
    for (size_t i = 0; i < 3 * stride; i++) {
        o[i] = 1.0f;
    }
    p[bad_slot] = 0.5f;
    p[0] = 1.0f;
    p[TILE] = quire_rng_below(&rng, 2) == 0 ? NAN : 1.0f;
    *scale = QUIRE_F16_NAN_BITS;
    set_pv(set, &args);
    *scale = before;
    for (uint32_t i = 0; i < c->d; i++) {
        assert_true(isnan(o[i]));
        assert_true(isnan(p[TILE]) ? isnan(o[stride + i]) != 0 : isfinite(o[stride + i]) != 0);
        assert_true(o[2 * stride + i] == 0.5f);
    }
    free(o);
    free(p);
}

static void test_damage_of_sealed_tiles(void **state)
{
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);

    (void)state;
    for (uint32_t n = 0; n < CASES / 4; n++) {
        kernel_case c = random_case();
        float *q = kernel_sets_take(c.n_rows * c.d * sizeof(float));
        void *k_tile;
        void *v_tile;

        c.format = (quire_format)(QUIRE_FORMATS_DIRECT + n % 4);
        k_tile = new_tile(true, c.format, c.d, 0, TILE);
        v_tile = new_tile(false, c.format, c.d, 0, TILE);
        fill(q, (size_t)c.n_rows * c.d);
        for (uint32_t i = 0; i < n_sets; i++) {
            check_damaged_qk(sets[i], &c, q, k_tile);
            check_damaged_pv(sets[i], &c, v_tile);
        }
        free(v_tile);
        free(k_tile);
        free(q);
    }
}

static bool is_same(const quire_attn_cpu_state *a, const quire_attn_cpu_state *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* leave() restores the CPU's state that enter() found: none, or that of another user. */
static void test_enter_and_leave(void **state)
{
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);

    (void)state;
    for (uint32_t i = 0; i < n_sets; i++) {
        quire_attn_cpu_state before[4];

        memset(before, 0, sizeof(before));
        quire_attn_kernels_enter(sets[i], &before[0]);
        quire_attn_kernels_enter(sets[i], &before[1]);
        quire_attn_kernels_leave(sets[i], &before[1]);
        quire_attn_kernels_enter(sets[i], &before[2]);
        quire_attn_kernels_leave(sets[i], &before[2]);
        quire_attn_kernels_leave(sets[i], &before[0]);
        quire_attn_kernels_enter(sets[i], &before[3]);
        quire_attn_kernels_leave(sets[i], &before[3]);
        assert_true(is_same(&before[1], &before[2]));
        assert_true(is_same(&before[0], &before[3]));
        assert_true(sets[i]->enter == NULL || !is_same(&before[0], &before[1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qk),
        cmocka_unit_test(test_pv),
        cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_damage_of_sealed_tiles),
        cmocka_unit_test(test_enter_and_leave),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
