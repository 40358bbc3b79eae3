/* test_attn_kernel_bounds.c - kernels stay inside their buffers: every buffer ends where readable
 * memory ends. And sums of bf16, which no other set adds in the same order, are right where order
 * does not matter.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"
#include "attn/kernel_sets.h"
#include "codec/half.h"

#define TILE QUIRE_TILE_TOKENS

static quire_rng rng;

/* Memory that ends at a page without any access rights. */
typedef struct guarded {
    char *map;
    size_t map_bytes;
    char *at;
} guarded;

static guarded take(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t whole = (bytes + page - 1) / page * page;
    guarded g = { .map_bytes = whole + page };

    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + whole, page, PROT_NONE), 0);
    assert_int_equal(bytes % 64, 0);
    g.at = g.map + whole - bytes;
    memset(g.at, 0xff, bytes); /* NaN, in all formats */
    return g;
}

static void give_back(guarded *g)
{
    assert_int_equal(munmap(g->map, g->map_bytes), 0);
}

typedef struct bounds_case {
    const quire_attn_kernels *set;
    quire_format format;
    uint32_t d;
    uint32_t n_rows;
    uint32_t begin;
    uint32_t end;
} bounds_case;

/* A tile of small whole numbers x[t * d + i]. */
static guarded take_tile(const bounds_case *c, quire_side side, const float *x)
{
    const quire_codec *codec = quire_codec_find("ref");
    const quire_tile_rows rows = { .d = c->d, .n_tokens = TILE, .stride = c->d };
    guarded tile = take(quire_tile_bytes(c->format, side, c->d));

    (side == QUIRE_SIDE_K ? codec->encode_k : codec->encode_v)(c->format, &rows, x, tile.at);
    return tile;
}

static float small(void)
{
    return (float)((int)quire_rng_below(&rng, 17) - 8);
}

/* Whether a set's products of whole numbers are exact: not where a scale takes part. */
static bool is_exact(const bounds_case *c)
{
    return c->format < QUIRE_FORMAT_Q8;
}

static void check_qk(const bounds_case *c, const float *x)
{
    const size_t q_bytes = c->set->q_bytes(c->format, c->d);
    guarded tile = take_tile(c, QUIRE_SIDE_K, x);
    guarded packed = take((c->n_rows + QUIRE_ATTN_ROWS_BEHIND) * q_bytes);
    guarded s = take((size_t)c->n_rows * TILE * sizeof(float));
    float *queries = kernel_sets_take((size_t)c->n_rows * c->d * sizeof(float));
    float *logits = (void *)s.at;
    quire_attn_cpu_state before;

    for (uint32_t i = 0; i < c->n_rows * c->d; i++) {
        queries[i] = small();
    }
    for (uint32_t r = 0; r < c->n_rows; r++) {
        c->set->q_pack(c->format, c->d, 1.0f, queries + r * c->d, packed.at + r * q_bytes);
    }
    quire_attn_kernels_enter(c->set, &before);
    c->set->qk(&(quire_attn_qk){ .format = c->format,
                                 .d = c->d,
                                 .n_rows = c->n_rows,
                                 .packed = packed.at,
                                 .k_tile = tile.at,
                                 .s = logits });
    quire_attn_kernels_leave(c->set, &before);
    for (uint32_t i = 0; is_exact(c) && i < c->n_rows * TILE; i++) {
        float sum = 0.0f;

        for (uint32_t k = 0; k < c->d; k++) {
            sum += queries[i / TILE * c->d + k] * x[i % TILE * c->d + k];
        }
        assert_true(logits[i] == sum);
    }
    free(queries);
    give_back(&s);
    give_back(&packed);
    give_back(&tile);
}

/* Weights of 0 .. 8 in the slots, as softmax leaves them. */
static void fill_weights(const bounds_case *c, float *weights, char *p)
{
    const bool is_bf16 = c->format == QUIRE_FORMAT_BF16 && c->set->softmax_bf16 != NULL;

    for (uint32_t i = 0; i < c->n_rows * TILE; i++) {
        const bool is_seen = i % TILE >= c->begin && i % TILE < c->end;

        weights[i] = is_seen ? (float)quire_rng_below(&rng, 9) : 0.0f;
        if (is_bf16) {
            ((uint16_t *)(void *)(p + i / TILE * TILE * sizeof(float)))[i % TILE] =
                quire_f32_to_bf16(weights[i]);
        } else {
            ((float *)(void *)p)[i] = weights[i];
        }
    }
}

static void run_pv(const bounds_case *c, quire_attn_pv *args)
{
    const bool is_weighed = c->set->weigh != NULL && quire_format_is_sealed(c->format);
    guarded weights = take((c->n_rows + QUIRE_ATTN_ROWS_BEHIND) * sizeof(quire_attn_weights));
    quire_attn_cpu_state before;

    quire_attn_kernels_enter(c->set, &before);
    if (is_weighed) {
        args->weights = (void *)weights.at;
        c->set->weigh(&(quire_attn_weigh){ .n_rows = c->n_rows,
                                           .slot_begin = c->begin,
                                           .slot_end = c->end,
                                           .p = args->p,
                                           .v_tile = args->v_tile,
                                           .weights = (void *)weights.at });
    }
    c->set->pv(args);
    quire_attn_kernels_leave(c->set, &before);
    give_back(&weights);
}

static void check_pv(const bounds_case *c, const float *x)
{
    const size_t o_stride = (c->d + 15u) / 16 * 16;
    guarded tile = take_tile(c, QUIRE_SIDE_V, x);
    guarded p = take((c->n_rows + QUIRE_ATTN_ROWS_BEHIND) * (size_t)TILE * sizeof(float));
    guarded o = take(c->n_rows * o_stride * sizeof(float));
    guarded w = take((size_t)c->n_rows * TILE * sizeof(float));
    float rescale[96];
    float *out = (void *)o.at;
    const float *weights = (void *)w.at;

    fill_weights(c, (void *)w.at, p.at);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        rescale[r] = r % 2 == 0 ? 0.5f : 1.0f;
        for (uint32_t i = 0; i < c->d; i++) {
            out[r * o_stride + i] = 2.0f;
        }
    }
    run_pv(c, &(quire_attn_pv){ .format = c->format,
                                .d = c->d,
                                .n_rows = c->n_rows,
                                .slot_begin = c->begin,
                                .slot_end = c->end,
                                .p = (void *)p.at,
                                .rescale = rescale,
                                .v_tile = tile.at,
                                .o = out,
                                .o_stride = o_stride });
    for (uint32_t i = 0; is_exact(c) && i < c->n_rows * c->d; i++) {
        float sum = 2.0f * rescale[i / c->d];

        for (uint32_t t = 0; t < TILE; t++) {
            sum += weights[i / c->d * TILE + t] * x[t * c->d + i % c->d];
        }
        assert_true(out[i / c->d * o_stride + i % c->d] == sum);
    }
    give_back(&w);
    give_back(&o);
    give_back(&p);
    give_back(&tile);
}

static void check_sizes(const quire_attn_kernels *set, uint32_t d, const float *x)
{
    static const uint32_t rows[] = { 1, 3, 5, 15, 16, 17, 24, 33, 96 };

    for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            bounds_case c = { set, (quire_format)f, d, rows[i], 0, TILE };

            if (d >= 256 && rows[i] > 24) {
                continue; /* nothing new, and slow without optimisation */
            }
            check_qk(&c, x);
            check_pv(&c, x);
            c.begin = quire_rng_below(&rng, TILE);
            c.end = c.begin + 1 + quire_rng_below(&rng, TILE - c.begin);
            check_pv(&c, x);
        }
    }
}

static void test_bounds(void **state)
{
    static const uint32_t dims[] = { 8, 16, 24, 40, 48, 56, 64, 72, 80, 96, 128, 136, 256, 1024 };
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);
    float *x = kernel_sets_take((size_t)TILE * QUIRE_HEAD_DIM_MAX * sizeof(float));

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        for (uint32_t k = 0; k < TILE * dims[i]; k++) {
            x[k] = small();
        }
        for (uint32_t k = 0; k < n_sets; k++) {
            check_sizes(sets[k], dims[i], x);
        }
    }
    free(x);
}

#if defined(__x86_64__)

/* A configuration of AMX that is nobody else's: registers of 8 rows. */
typedef struct foreign_config {
    _Alignas(64) uint8_t palette;
    uint8_t unused[15];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} foreign_config;

/* ggml keeps a configuration by thread, and looks whether it has loaded it only once. */
static void test_run_gives_back(void **state)
{
    const foreign_config foreign = { .palette = 1, .row_bytes = { 64, 64 }, .rows = { 8, 8 } };
    const foreign_config none = { .palette = 0 };
    const fixture_run_opts run = { .isa = "avx512+amx", .n_threads = 1 };
    fixture_opts opts = fixture_defaults();
    foreign_config after;
    fixture f;
    float *out;

    (void)state;
    if (quire_attn_kernels_find("avx512+amx") == NULL) {
        print_message("no AMX\n");
        skip();
    }
    opts.k_format = QUIRE_FORMAT_BF16;
    opts.v_format = QUIRE_FORMAT_BF16;
    opts.n_tokens[0] = 200;
    fixture_init(&f, &opts, &rng);
    out = kernel_sets_take(fixture_out_floats(&f) * sizeof(float));
    __asm__ volatile("ldtilecfg %0" : : "m"(foreign));
    fixture_run(&f, NULL, &run, out);
    __asm__ volatile("sttilecfg %0" : "=m"(after));
    __asm__ volatile("ldtilecfg %0" : : "m"(none));
    assert_memory_equal(&after, &foreign, sizeof(after));
    free(out);
    fixture_free(&f);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
#if defined(__x86_64__)
        cmocka_unit_test(test_run_gives_back),
#endif
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
