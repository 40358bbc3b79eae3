/* test_attn_bits.c - a row's bits depend on its query, its table and the ISA, and on nothing else:
 * not on threads, batch, chunking, forks, nor on how K and V came into the pages.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"
#include "rounds.h"

#define ISAS_MAX 6u
#define N_CASES  TEST_ROUNDS(24u, 6u)

static quire_rng rng;

/* V is a part of K. */
static void take_prefix(fixture_opts *opts)
{
    opts->n_k = 1;
    opts->n_v = 0;
    opts->d_v = opts->d_v < opts->d_k ? opts->d_v : opts->d_k;
    opts->rotate_k = opts->rotate_v = opts->rotate_k != 0 ? 8 : 0;
    opts->is_mixed = false;
    opts->has_two_groups = false;
}

/* A random batch with long and short sequences, decode rows and chunks. */
static fixture_opts random_case(void)
{
    fixture_opts opts = fixture_defaults();
    uint32_t multiple = 1 + quire_rng_below(&rng, 7);

    opts.n_kv_head = 1 + quire_rng_below(&rng, quire_rng_below(&rng, 4) == 0 ? 9 : 3);
    opts.n_head = opts.n_kv_head * multiple;
    opts.d_k = 8 * (1 + quire_rng_below(&rng, 16));
    opts.d_v = 8 * (1 + quire_rng_below(&rng, 16));
    opts.k_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
    opts.v_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
    opts.n_k = 1 + quire_rng_below(&rng, 2);
    opts.n_v = 1 + quire_rng_below(&rng, 2);
    opts.has_keys = quire_rng_below(&rng, 2) != 0;
    opts.page_tokens = 64u << quire_rng_below(&rng, 3);
    opts.split_entries = 1 + quire_rng_below(&rng, 3);
    opts.is_ragged = quire_rng_below(&rng, 2) != 0;
    opts.recent_tiles = quire_rng_below(&rng, 4);
    opts.sink_tiles = quire_rng_below(&rng, 2);
    if (quire_rng_below(&rng, 3) != 0) {
        fixture_vary(&opts, &rng);
        opts.has_holes = quire_rng_below(&rng, 2) != 0;
        opts.has_drops = quire_rng_below(&rng, 2) != 0;
    }
    if (quire_rng_below(&rng, 5) == 0) {
        take_prefix(&opts);
    }
    opts.n_seqs = 1 + quire_rng_below(&rng, 4);
    for (uint32_t s = 0; s < opts.n_seqs; s++) {
        uint32_t longest = s == 0 ? 1500 : 300;

        opts.n_tokens[s] = 1 + quire_rng_below(&rng, longest);
        opts.n_rows[s] = quire_rng_below(&rng, 2) != 0 ? 1 : 1 + quire_rng_below(&rng, 120);
        opts.n_rows[s] = opts.n_rows[s] < opts.n_tokens[s] ? opts.n_rows[s] : opts.n_tokens[s];
    }
    return opts;
}

static float *new_out(const fixture *f)
{
    float *out = calloc(fixture_out_floats(f), sizeof(float));

    assert_non_null(out);
    return out;
}

/* Run `check` on random cases; it gets the output of one thread on the whole batch. */
static void for_cases(void (*check)(fixture *f, const char *isa, const float *expected))
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    for (uint32_t i = 0; i < N_CASES; i++) {
        fixture_opts opts = random_case();
        uint32_t first = i % 3 == 0 || n_isas == 1 ? 0 : 1; /* portable is first, and slow */
        fixture f;
        float *expected;

        fixture_init(&f, &opts, &rng);
        expected = new_out(&f);
        for (uint32_t k = first; k < n_isas; k++) {
            fixture_run_opts run = { .isa = isas[k], .n_threads = 1 };

            fixture_run(&f, NULL, &run, expected);
            check(&f, isas[k], expected);
        }
        free(expected);
        fixture_free(&f);
    }
}

static void expect_rows(const fixture *f, const float *out, const float *expected, uint32_t first,
                        uint32_t n)
{
    size_t row = (size_t)f->opts.n_head * f->opts.d_v;

    assert_memory_equal(out + first * row, expected + first * row, n * row * sizeof(float));
}

static void check_threads(fixture *f, const char *isa, const float *expected)
{
    float *out = new_out(f);

    for (uint32_t n_threads = 2; n_threads <= 4; n_threads++) {
        fixture_run_opts run = { .isa = isa, .n_threads = n_threads };

        memset(out, 0, fixture_out_floats(f) * sizeof(float));
        fixture_run(f, NULL, &run, out);
        expect_rows(f, out, expected, 0, f->n_rows);
    }
    free(out);
}

static void test_threads(void **state)
{
    (void)state;
    for_cases(check_threads);
}

static void check_alone(fixture *f, const char *isa, const float *expected)
{
    float *out = new_out(f);

    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        quire_attn_batch batch = f->batch;
        fixture_run_opts run = { .isa = isa, .n_threads = 1 + s % 2 };

        batch.seqs = &f->seqs[s];
        batch.n_seqs = 1;
        fixture_run(f, &batch, &run, out);
        expect_rows(f, out, expected, f->seqs[s].first_row, f->seqs[s].n_rows);
    }
    free(out);
}

static void test_alone_or_in_a_batch(void **state)
{
    (void)state;
    for_cases(check_alone);
}

/* Rows of sequence s in chunks of random lengths (all of length 1 when is_single). */
static void check_chunks_of(fixture *f, const char *isa, const float *expected, uint32_t s,
                            bool is_single)
{
    const quire_attn_seq *seq = &f->seqs[s];
    float *out = new_out(f);
    uint32_t n;

    for (uint32_t done = 0; done < seq->n_rows; done += n) {
        fixture_run_opts run = { .isa = isa, .n_threads = 1 + quire_rng_below(&rng, 3) };
        quire_attn_batch batch = f->batch;
        quire_attn_seq chunk;

        n = is_single ? 1 : 1 + quire_rng_below(&rng, seq->n_rows - done);
        chunk = fixture_truncated(f, seq, seq->n_tokens - seq->n_rows + done + n);
        chunk.n_rows = n;
        chunk.first_row = seq->first_row + done;
        batch.seqs = &chunk;
        batch.n_seqs = 1;
        fixture_run(f, &batch, &run, out);
        fixture_free_seq(seq, &chunk);
    }
    expect_rows(f, out, expected, seq->first_row, seq->n_rows);
    free(out);
}

static void check_chunks(fixture *f, const char *isa, const float *expected)
{
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        check_chunks_of(f, isa, expected, s, false);
        if (f->seqs[s].n_rows <= 40) {
            check_chunks_of(f, isa, expected, s, true);
        }
    }
}

static void test_chunk_lengths(void **state)
{
    (void)state;
    for_cases(check_chunks);
}

/* The same tokens on other pages, as in a fork whose pages were all copied. */
static void check_copied_pages(fixture *f, const char *isa, const float *expected)
{
    fixture_run_opts run = { .isa = isa, .n_threads = 2 };
    quire_page_addr *original = f->page_addr;
    const quire_allocator *allocator = quire_allocator_default();
    const size_t extent_bytes = FIXTURE_EXTENT_PAGES * f->page_bytes;
    unsigned char *copy = allocator->alloc(allocator->ctx, f->store_bytes);
    quire_page_addr *addr = calloc(f->n_pages + 1u, sizeof(*addr));
    float *out = new_out(f);

    assert_non_null(copy);
    assert_non_null(addr);
    for (uint32_t i = 1; i <= f->n_pages; i++) {
        size_t from = (size_t)(original[i].extent - f->store);

        addr[i] = (quire_page_addr){ .extent = copy + (f->store_bytes - extent_bytes - from),
                                     .slot = original[i].slot }; /* extents backwards */
        memcpy(addr[i].extent, original[i].extent, extent_bytes);
    }
    f->page_addr = addr;
    f->batch.page_addr = addr;
    fixture_run(f, NULL, &run, out);
    f->page_addr = original;
    f->batch.page_addr = original;
    expect_rows(f, out, expected, 0, f->n_rows);
    free(out);
    free(addr);
    allocator->free(allocator->ctx, copy);
}

static void test_copied_pages(void **state)
{
    (void)state;
    for_cases(check_copied_pages);
}

/* Two sequences that share all entries but their last leaf's: both must read the shared pages. */
static void test_shared_prefix(void **state)
{
    fixture_opts opts = fixture_defaults();
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    opts.k_format = QUIRE_FORMAT_Q8;
    opts.v_format = QUIRE_FORMAT_Q8;
    opts.n_tokens[0] = 500;
    opts.n_rows[0] = 30;
    for (uint32_t i = 0; i < n_isas; i++) {
        fixture_run_opts run = { .isa = isas[i], .n_threads = 2 };
        quire_attn_seq pair[2];
        quire_attn_batch batch;
        fixture f;
        float *alone;
        float *together;

        fixture_init(&f, &opts, &rng);
        alone = new_out(&f);
        together = new_out(&f);
        fixture_run(&f, NULL, &run, alone);
        for (uint32_t s = 0; s < 2; s++) { /* rows 0 .. 14 and 15 .. 29 as two forks */
            pair[s] = fixture_truncated(&f, &f.seqs[0], 500 - 15 + s * 15);
            pair[s].first_row = s * 15;
            pair[s].n_rows = 15;
        }
        batch = f.batch;
        batch.seqs = pair;
        batch.n_seqs = 2;
        fixture_run(&f, &batch, &run, together);
        expect_rows(&f, together, alone, 0, 30);
        fixture_free_seq(&f.seqs[0], &pair[0]);
        fixture_free_seq(&f.seqs[0], &pair[1]);
        free(alone);
        free(together);
        fixture_free(&f);
    }
}

/* A case whose K and V can be appended: one source of each, or V as a prefix of K. */
static fixture_opts append_case(bool has_prefix, bool is_rotated)
{
    fixture_opts opts = random_case();

    opts.n_k = 1;
    opts.n_v = 1;
    opts.has_two_groups = false;
    opts.has_holes = false; /* pages that are there can be stored to */
    if (has_prefix) {
        opts.n_v = 0;
        opts.d_v = opts.d_k;
    }
    opts.rotate_k = is_rotated ? quire_hadamard_block(opts.d_k) : 0;
    opts.rotate_v = is_rotated ? quire_hadamard_block(opts.d_v) : 0;
    return opts;
}

static unsigned char *copy_store(const fixture *f)
{
    unsigned char *copy = malloc(f->store_bytes);

    assert_non_null(copy);
    memcpy(copy, f->store, f->store_bytes);
    return copy;
}

/* Append must leave the same bytes as the reference codec did, and touch no slot but its own. */
static void test_append(void **state)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        fixture_opts opts = append_case(i % 5 == 0, i % 3 == 0);
        fixture_run_opts run = { .isa = isas[i % n_isas],
                                 .n_threads = 1 + quire_rng_below(&rng, 4),
                                 .has_append = true };
        unsigned char *expected;
        float *out;
        fixture f;

        fixture_init(&f, &opts, &rng);
        out = new_out(&f);
        expected = copy_store(&f);
        fixture_wipe(&f);
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            fixture_store(&f, s, 0, opts.n_tokens[s] - opts.n_rows[s]);
        }
        fixture_run(&f, NULL, &run, out);
        assert_memory_equal(f.store, expected, f.store_bytes);
        free(expected);
        free(out);
        fixture_free(&f);
    }
}

/* K that is stored without queries gets the nearest codes. */
static void test_append_without_queries(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };

    (void)state;
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        const fixture_run_opts run = { .n_threads = 1 };
        fixture_opts opts = fixture_defaults();
        quire_attn_workspace *workspace;
        quire_attn_layer layer;
        unsigned char *minding;
        unsigned char *nearest;
        fixture f;

        opts.k_format = formats[i];
        opts.n_tokens[0] = 150;
        opts.n_rows[0] = 150;
        fixture_init(&f, &opts, &rng);
        minding = copy_store(&f);
        f.layer.q[0] = NULL;
        fixture_wipe(&f);
        fixture_store(&f, 0, 0, 150);
        nearest = copy_store(&f);
        assert_int_equal(memcmp(minding, nearest, f.store_bytes) == 0,
                         !quire_attn_pairs_qk(&f.layer));
        fixture_wipe(&f);
        workspace = fixture_workspace(&f, &run);
        layer = f.layer;
        layer.k_new = f.k[0];
        layer.v_new = f.v[0];
        layer.k_new_stride = (size_t)opts.n_kv_head * opts.d_k;
        layer.v_new_stride = (size_t)opts.n_kv_head * opts.d_v;
        assert_int_equal(quire_attn_begin(workspace, &f.batch), QUIRE_OK);
        quire_attn_append(workspace, &layer, 0, 1);
        assert_memory_equal(f.store, nearest, f.store_bytes);
        quire_attn_workspace_destroy(workspace);
        free(minding);
        free(nearest);
        fixture_free(&f);
    }
}

/* The queries of all rows as run() is to round them: rotated, then by the reference codec with the
 * rotated key of their own row and kv head in view. Memory: release with free(). */
static float *rounded_queries(const fixture *f)
{
    const fixture_opts *o = &f->opts;
    const uint32_t group = o->n_head / o->n_kv_head;
    float *q = malloc(f->n_rows * f->layer.q_stride * sizeof(float));
    float key[QUIRE_HEAD_DIM_MAX];

    assert_non_null(q);
    memcpy(q, f->q[0], f->n_rows * f->layer.q_stride * sizeof(float));
    for (uint32_t r = 0; r < f->n_rows; r++) {
        for (uint32_t h = 0; h < o->n_head; h++) {
            float *x = q + r * f->layer.q_stride + (size_t)h * o->d_k;

            memcpy(key, f->keys + r * f->layer.k_new_stride + (size_t)(h / group) * o->d_k,
                   o->d_k * sizeof(float));
            if (o->rotate_k != 0) {
                quire_hadamard(x, o->d_k, o->rotate_k);
                quire_hadamard(key, o->d_k, o->rotate_k);
            }
            quire_codec_find("ref")->round_queries(o->d_k, 1, key, x);
        }
    }
    return q;
}

/* Where K is read in 8 bits, run() with keys rounds the queries first: the result is that of run()
 * without keys on rounded queries. */
static void check_rounded_queries(fixture_opts opts, const char *isa)
{
    const fixture_run_opts run = { .isa = isa, .n_threads = 2 };
    float *with_keys;
    float *rounded_before;
    float *without;
    float *q;
    fixture f;

    fixture_init(&f, &opts, &rng);
    with_keys = new_out(&f);
    rounded_before = new_out(&f);
    without = new_out(&f);
    fixture_run(&f, NULL, &run, with_keys);
    f.layer.k_new = NULL;
    fixture_run(&f, NULL, &run, without);
    q = rounded_queries(&f);
    f.layer.q[0] = q;
    f.layer.k[0].rotate = 0;
    fixture_run(&f, NULL, &run, rounded_before);
    assert_memory_equal(with_keys, rounded_before, fixture_out_floats(&f) * sizeof(float));
    assert_memory_not_equal(with_keys, without, fixture_out_floats(&f) * sizeof(float));
    free(q);
    free(without);
    free(rounded_before);
    free(with_keys);
    fixture_free(&f);
}

static void test_queries_are_rounded_with_keys(void **state)
{
    static const uint32_t heads[][2] = { { 12, 3 }, { 71, 1 }, { 2, 2 } };
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (uint32_t i = 0; i < 12 * n_isas; i++) {
        fixture_opts opts = fixture_defaults();

        opts.n_head = heads[i % 3][0];
        opts.n_kv_head = heads[i % 3][1];
        opts.d_k = i % 4 < 2 ? 64 : 72;
        opts.rotate_k = i % 2 == 0 ? quire_hadamard_block(opts.d_k) : 0;
        opts.k_format = i / 6 % 2 == 0 ? QUIRE_FORMAT_Q8 : QUIRE_FORMAT_Q4;
        opts.recent_tiles = 100; /* all tiles are read hot */
        opts.n_tokens[0] = 300;
        opts.n_rows[0] = i % 5 == 0 ? 1 : 9;
        check_rounded_queries(opts, isas[i / 12]);
    }
}

/* All tokens of the first sequence in chunks of n: append, then attention of the chunk's rows. */
static void append_in_chunks(fixture *f, const fixture_run_opts *run, uint32_t n, float *out)
{
    const quire_attn_seq *seq = &f->seqs[0];

    fixture_wipe(f);
    for (uint32_t begin = 0; begin < seq->n_tokens; begin += n) {
        uint32_t end = begin + n < seq->n_tokens ? begin + n : seq->n_tokens;
        quire_attn_seq chunk = fixture_truncated(f, seq, end);
        quire_attn_batch batch = f->batch;

        chunk.first_row = begin;
        chunk.n_rows = end - begin;
        batch.seqs = &chunk;
        fixture_run(f, &batch, run, out);
        fixture_free_seq(seq, &chunk);
    }
}

static void check_appended_chunks(const fixture_opts *opts, const char *isa)
{
    static const uint32_t chunks[] = { 1, 7, 64, 100, 512 };
    unsigned char *expected;
    float *expected_out;
    float *out;
    fixture f;

    fixture_init(&f, opts, &rng);
    expected = copy_store(&f);
    expected_out = new_out(&f);
    out = new_out(&f);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        fixture_run_opts run = { .isa = isa, .n_threads = 1 + (uint32_t)i % 3, .has_append = true };

        append_in_chunks(&f, &run, chunks[i], out);
        assert_memory_equal(f.store, expected, f.store_bytes);
        if (i == 0) {
            memcpy(expected_out, out, fixture_out_floats(&f) * sizeof(float));
        }
        expect_rows(&f, out, expected_out, 0, f.n_rows);
    }
    free(out);
    free(expected_out);
    free(expected);
    fixture_free(&f);
}

/* However a prompt is cut into chunks: the same tiles, hot and sealed, and the same outputs. */
static void test_appended_chunks(void **state)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (uint32_t i = 0; i < 2 * QUIRE_FORMAT_COUNT; i++) {
        fixture_opts opts = fixture_defaults();

        opts.n_head = 3;
        opts.n_kv_head = 1;
        opts.d_k = 32;
        opts.d_v = 24;
        opts.k_format = (quire_format)(i % QUIRE_FORMAT_COUNT);
        opts.v_format = (quire_format)((i + i / QUIRE_FORMAT_COUNT * 3) % QUIRE_FORMAT_COUNT);
        opts.rotate_k = 32;
        opts.rotate_v = 8;
        opts.recent_tiles = i % 3;
        opts.sink_tiles = i % 2;
        opts.page_tokens = i % 4 < 2 ? 64 : 256;
        opts.n_tokens[0] = 330;
        opts.n_rows[0] = 330;
        for (uint32_t k = n_isas == 1 ? 0 : 1; k < n_isas; k++) {
            check_appended_chunks(&opts, isas[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_alone_or_in_a_batch),
        cmocka_unit_test(test_chunk_lengths),
        cmocka_unit_test(test_copied_pages),
        cmocka_unit_test(test_shared_prefix),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_queries_are_rounded_with_keys),
        cmocka_unit_test(test_append_without_queries),
        cmocka_unit_test(test_appended_chunks),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
