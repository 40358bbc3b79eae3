/* test_attn_numeric.c - every kernel set against the double-precision reference over the same
 * tiles: format pairs, head shapes, page sizes, lengths, sources, rotation, mixed batches,
 * magnitudes.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"
#include "attn/tolerance.h"
#include "rounds.h"

#define ISAS_MAX 6u

static quire_rng rng;
static fixture_error worst[QUIRE_FORMAT_COUNT][QUIRE_FORMAT_COUNT];

/* All ISAs on one case, each with another number of threads. */
static void check_case(const fixture_opts *opts)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);
    fixture_error *most = &worst[opts->k_format][opts->v_format];
    fixture f;
    double *ref;
    float *out;

    if (!test_takes_case()) {
        return;
    }
    fixture_init(&f, opts, &rng);
    ref = fixture_ref(&f);
    out = malloc(fixture_out_floats(&f) * sizeof(float));
    assert_non_null(out);
    for (uint32_t i = 0; i < n_isas; i++) {
        fixture_run_opts run = { .isa = isas[i], .n_threads = 1 + i };
        attn_tolerance limit = attn_tolerance_of(isas[i], opts->k_format, opts->v_format);
        fixture_error error;

        fixture_run(&f, NULL, &run, out);
        error = fixture_error_of(&f, out, ref);
        most->total = error.total > most->total ? error.total : most->total;
        most->worst_row = error.worst_row > most->worst_row ? error.worst_row : most->worst_row;
        if (!(error.total <= limit.total && error.worst_row <= limit.row)) {
            fail_msg(
                "%s k=%s v=%s d=%u/%u heads=%u/%u page=%u tokens=%u rows=%u: errors %.3g, %.3g",
                isas[i], quire_format_name(opts->k_format), quire_format_name(opts->v_format),
                opts->d_k, opts->d_v, opts->n_head, opts->n_kv_head, opts->page_tokens,
                opts->n_tokens[0], opts->n_rows[0], error.total, error.worst_row);
        }
    }
    free(out);
    free(ref);
    fixture_free(&f);
}

/* Run `check` for every pair of formats. */
static void for_format_pairs(fixture_opts opts)
{
    for (unsigned k = 0; k < QUIRE_FORMAT_COUNT; k++) {
        for (unsigned v = 0; v < QUIRE_FORMAT_COUNT; v++) {
            opts.k_format = (quire_format)k;
            opts.v_format = (quire_format)v;
            check_case(&opts);
        }
    }
}

static void for_formats(fixture_opts opts)
{
    for (unsigned f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        opts.k_format = (quire_format)f;
        opts.v_format = (quire_format)f;
        check_case(&opts);
    }
}

static void test_head_dims(void **state)
{
    static const uint32_t dims[][2] = { { 8, 8 },     { 48, 48 },   { 64, 64 },  { 80, 80 },
                                        { 128, 128 }, { 256, 256 }, { 64, 128 }, { 72, 24 },
                                        { 40, 200 },  { 16, 56 } };
    fixture_opts opts = fixture_defaults();

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        opts.d_k = dims[i][0];
        opts.d_v = dims[i][1];
        opts.n_head = 4;
        opts.n_kv_head = 2;
        opts.n_tokens[0] = 150;
        opts.n_rows[0] = 3;
        for_format_pairs(opts);
    }
}

static void test_largest_head(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.d_k = QUIRE_HEAD_DIM_MAX;
    opts.d_v = QUIRE_HEAD_DIM_MAX;
    opts.n_head = 2;
    opts.n_kv_head = 1;
    opts.n_rows[0] = 5;
    for_formats(opts);
}

static void test_groups(void **state)
{
    static const uint32_t groups[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 120 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.d_k = 48;
    opts.d_v = 48;
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        opts.n_kv_head = groups[i] < 16 ? 3 : 1;
        opts.n_head = opts.n_kv_head * groups[i];
        for_formats(opts);
    }
}

/* As much scratch as a row can take, and as many tiles as a position can have. */
static void test_most_sources(void **state)
{
    static const struct {
        uint32_t d;
        uint32_t n_head;
        uint32_t n_kv_head;
        uint32_t n_tokens;
        uint32_t n_rows;
    } shapes[] = { { 256, 64, 1, 400, 2 }, { 64, 32, 32, 700, 1 } };

    (void)state;
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        fixture_opts opts = fixture_defaults();

        opts.n_k = 2;
        opts.n_v = 2;
        opts.d_k = shapes[i].d;
        opts.d_v = shapes[i].d;
        opts.n_head = shapes[i].n_head;
        opts.n_kv_head = shapes[i].n_kv_head;
        opts.n_tokens[0] = shapes[i].n_tokens;
        opts.n_rows[0] = shapes[i].n_rows;
        for_formats(opts);
    }
}

static void test_lengths(void **state)
{
    static const uint32_t lengths[] = { 1, 2, 63, 64, 65, 127, 128, 129, 1000, 1025, 2500 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 3;
    opts.n_kv_head = 1;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        opts.n_tokens[0] = lengths[i];
        opts.n_rows[0] = 1;
        for_formats(opts);
        opts.n_rows[0] = lengths[i] < 7 ? lengths[i] : 7;
        for_formats(opts);
    }
}

static void test_page_sizes_and_splits(void **state)
{
    static const uint32_t pages[] = { 64, 128, 1024 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_seqs = 2;
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        for (uint32_t split = 0; split < 3; split++) {
            opts.page_tokens = pages[i];
            opts.split_entries = split;
            opts.is_ragged = split == 1;
            opts.n_tokens[0] = 900;
            opts.n_rows[0] = 1;
            opts.n_tokens[1] = 300;
            opts.n_rows[1] = 100;
            for_formats(opts);
        }
    }
}

static void test_whole_prompt(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 14;
    opts.n_kv_head = 2;
    opts.n_tokens[0] = 333;
    opts.n_rows[0] = 333;
    for_formats(opts);
}

/* More query heads of a kv head than are packed at once. */
static void test_many_heads_of_one(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 71;
    opts.n_kv_head = 1;
    opts.rotate_k = 64;
    opts.n_rows[0] = 3;
    for_formats(opts);
}

static void test_two_sources_and_gates(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.split_entries = 1;
    opts.n_tokens[0] = 200;
    opts.n_rows[0] = 20;
    for (uint32_t n_k = 1; n_k <= 2; n_k++) {
        for (uint32_t n_v = 1; n_v <= 2; n_v++) {
            opts.n_k = n_k;
            opts.n_v = n_v;
            opts.has_gates = n_v == 2 || n_k == 2;
            for_formats(opts);
        }
    }
}

static void test_v_prefix_of_k(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 16;
    opts.n_kv_head = 1;
    opts.d_k = 576; /* the shape of MLA */
    opts.d_v = 512;
    opts.n_v = 0;
    opts.n_rows[0] = 4;
    opts.is_ragged = true;
    for_formats(opts);
    opts.d_k = 24;
    opts.d_v = 16;
    opts.rotate_k = 8;
    opts.rotate_v = 8;
    opts.has_gates = true;
    for_formats(opts);
    opts.n_head = 6; /* several kv heads at once */
    opts.n_kv_head = 3;
    opts.n_rows[0] = 1;
    for_formats(opts);
    opts.is_ragged = false; /* sealed tiles behind hot ones, rows that see other slots */
    opts.n_tokens[0] = 400;
    opts.n_rows[0] = 70;
    opts.recent_tiles = 1;
    opts.sink_tiles = 1;
    opts.n_punched = 2;
    for_formats(opts);
}

static void test_rotation(void **state)
{
    static const uint32_t dims[] = { 8, 48, 64, 128 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_rows[0] = 9;
    opts.n_v = 2;
    opts.has_gates = true;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        opts.d_k = dims[i];
        opts.d_v = dims[i];
        opts.rotate_k = quire_hadamard_block(dims[i]);
        opts.rotate_v = quire_hadamard_block(dims[i]);
        for_formats(opts);
        opts.rotate_v = 0;
        for_formats(opts);
    }
}

static void test_magnitudes(void **state)
{
    static const float scales[] = { 1e-4f, 1.0f, 1e4f };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_rows[0] = 5;
    for (size_t k = 0; k < sizeof(scales) / sizeof(scales[0]); k++) {
        for (size_t v = 0; v < sizeof(scales) / sizeof(scales[0]); v++) {
            opts.k_scale = scales[k];
            opts.v_scale = scales[v];
            for_formats(opts);
        }
    }
    opts.k_scale = 1.0f;
    opts.v_scale = 1.0f;
    opts.logit_scale = 1e-6f; /* flat weights */
    for_formats(opts);
    opts.logit_scale = 6.0f; /* a few tokens take all */
    for_formats(opts);
}

/* Every distance rule, with holes among the tiles that the rule would read hot, and behind them. */
static void test_hot_and_sealed(void **state)
{
    static const uint32_t recent[] = { 0, 1, 2, 100 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 3;
    opts.n_kv_head = 1;
    opts.n_seqs = 2;
    opts.n_tokens[0] = 700;
    opts.n_rows[0] = 200; /* blocks that read one tile in both forms */
    opts.n_tokens[1] = 576;
    opts.n_rows[1] = 1;
    for (uint32_t i = 0; i < 64; i++) {
        opts.recent_tiles = recent[i % 4];
        opts.sink_tiles = i / 4 % 2;
        opts.page_tokens = i / 8 % 2 == 0 ? 64 : 256;
        opts.split_entries = 1 + i % 3;
        opts.is_ragged = i % 5 == 4;
        opts.k_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
        opts.v_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
        check_case(&opts);
        opts.n_punched = 1 + quire_rng_below(&rng, 500 / opts.page_tokens);
        opts.k_format = QUIRE_FORMATS_DIRECT + i % 4;
        check_case(&opts);
        opts.n_punched = 0;
    }
}

static void test_random_batches(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        fixture_opts opts = fixture_defaults();
        uint32_t multiple = 1 + quire_rng_below(&rng, 8);

        opts.n_kv_head = 1 + quire_rng_below(&rng, 4);
        opts.n_head = opts.n_kv_head * multiple;
        opts.d_k = 8 * (1 + quire_rng_below(&rng, 18));
        opts.d_v = 8 * (1 + quire_rng_below(&rng, 18));
        opts.k_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
        opts.v_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
        opts.n_k = 1 + quire_rng_below(&rng, 2);
        opts.n_v = 1 + quire_rng_below(&rng, 2);
        opts.page_tokens = 64u << quire_rng_below(&rng, 3);
        opts.split_entries = quire_rng_below(&rng, 4);
        opts.is_ragged = quire_rng_below(&rng, 2) != 0;
        opts.recent_tiles = quire_rng_below(&rng, 4);
        opts.sink_tiles = quire_rng_below(&rng, 2);
        opts.n_seqs = 1 + quire_rng_below(&rng, 4);
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            opts.n_tokens[s] = 1 + quire_rng_below(&rng, 400);
            opts.n_rows[s] = quire_rng_below(&rng, 2) != 0 ? 1 : 1 + quire_rng_below(&rng, 60);
            opts.n_rows[s] = opts.n_rows[s] < opts.n_tokens[s] ? opts.n_rows[s] : opts.n_tokens[s];
        }
        check_case(&opts);
    }
}

static int print_worst(void **state)
{
    (void)state;
    for (unsigned k = 0; k < QUIRE_FORMAT_COUNT; k++) {
        for (unsigned v = 0; v < QUIRE_FORMAT_COUNT; v++) {
            print_message("largest errors k=%-4s v=%-4s total %.2e row %.2e\n",
                          quire_format_name((quire_format)k), quire_format_name((quire_format)v),
                          worst[k][v].total, worst[k][v].worst_row);
        }
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_dims),
        cmocka_unit_test(test_largest_head),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_most_sources),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_page_sizes_and_splits),
        cmocka_unit_test(test_whole_prompt),
        cmocka_unit_test(test_many_heads_of_one),
        cmocka_unit_test(test_two_sources_and_gates),
        cmocka_unit_test(test_v_prefix_of_k),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_magnitudes),
        cmocka_unit_test(test_hot_and_sealed),
        cmocka_unit_test(test_random_batches),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, print_worst);
}
