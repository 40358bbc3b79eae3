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

#define ISAS_MAX 4u
#define N_CASES  9u

static quire_rng rng;

/* A random batch with long and short sequences, decode rows and chunks. */
static fixture_opts random_case(void)
{
    fixture_opts opts = fixture_defaults();
    uint32_t multiple = 1 + quire_rng_below(&rng, 7);

    opts.n_kv_head = 1 + quire_rng_below(&rng, 3);
    opts.n_head = opts.n_kv_head * multiple;
    opts.d_k = 8 * (1 + quire_rng_below(&rng, 16));
    opts.d_v = 8 * (1 + quire_rng_below(&rng, 16));
    opts.k_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMATS_DIRECT);
    opts.v_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMATS_DIRECT);
    opts.n_k = 1 + quire_rng_below(&rng, 2);
    opts.n_v = 1 + quire_rng_below(&rng, 2);
    opts.page_tokens = 64u << quire_rng_below(&rng, 3);
    opts.split_entries = 1 + quire_rng_below(&rng, 3);
    opts.is_ragged = quire_rng_below(&rng, 2) != 0;
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
        fixture f;
        float *expected;

        fixture_init(&f, &opts, &rng);
        expected = new_out(&f);
        for (uint32_t k = i % 3 == 0 ? 0 : 1; k < n_isas; k++) { /* portable is first, and slow */
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

/* The table as it was when the sequence had n_tokens tokens. Memory: release with free_table(). */
static quire_attn_seq truncated(const quire_attn_seq *seq, uint32_t n_tokens)
{
    quire_attn_seq t = *seq;
    uint32_t n_leaves = (seq->n_entries + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;
    quire_page_entry **leaves = malloc(n_leaves * sizeof(*leaves));
    uint32_t left = n_tokens;

    assert_non_null(leaves);
    t.n_tokens = n_tokens;
    t.n_entries = 0;
    for (uint32_t i = 0; i < n_leaves; i++) {
        leaves[i] = malloc(QUIRE_LEAF_ENTRIES * sizeof(quire_page_entry));
        assert_non_null(leaves[i]);
    }
    for (uint32_t i = 0; i < seq->n_entries && left > 0; i++) {
        quire_page_entry *entry = &leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];

        *entry = seq->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
        entry->n_tokens = entry->n_tokens < left ? entry->n_tokens : (uint16_t)left;
        left -= entry->n_tokens;
        t.n_entries++;
    }
    t.leaves = (const quire_page_entry *const *)leaves;
    return t;
}

static void free_table(const quire_attn_seq *original, const quire_attn_seq *copy)
{
    quire_page_entry **leaves = (quire_page_entry **)(uintptr_t)copy->leaves;
    uint32_t n_leaves = (original->n_entries + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;

    for (uint32_t i = 0; i < n_leaves; i++) {
        free(leaves[i]);
    }
    free(leaves);
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
        chunk = truncated(seq, seq->n_tokens - seq->n_rows + done + n);
        chunk.n_rows = n;
        chunk.first_row = seq->first_row + done;
        batch.seqs = &chunk;
        batch.n_seqs = 1;
        fixture_run(f, &batch, &run, out);
        free_table(seq, &chunk);
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

/* The same tokens on other pages: what a fork whose pages were all copied reads. */
static void check_copied_pages(fixture *f, const char *isa, const float *expected)
{
    fixture_run_opts run = { .isa = isa, .n_threads = 2 };
    unsigned char **original = f->page_addr;
    const quire_allocator *allocator = quire_allocator_default();
    unsigned char *copy = allocator->alloc(allocator->ctx, f->n_pages * f->page_bytes);
    unsigned char **addr = calloc(f->n_pages + 1u, sizeof(*addr));
    float *out = new_out(f);

    assert_non_null(copy);
    assert_non_null(addr);
    for (uint32_t i = 1; i <= f->n_pages; i++) {
        addr[i] = copy + (i - 1) * f->page_bytes;
        memcpy(addr[i], original[i], f->page_bytes);
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
            pair[s] = truncated(&f.seqs[0], 500 - 15 + s * 15);
            pair[s].first_row = s * 15;
            pair[s].n_rows = 15;
        }
        batch = f.batch;
        batch.seqs = pair;
        batch.n_seqs = 2;
        fixture_run(&f, &batch, &run, together);
        expect_rows(&f, together, alone, 0, 30);
        free_table(&f.seqs[0], &pair[0]);
        free_table(&f.seqs[0], &pair[1]);
        free(alone);
        free(together);
        fixture_free(&f);
    }
}

/* Append must leave the same bytes as the reference codec did, and touch no slot but its own. */
static void test_append(void **state)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (uint32_t i = 0; i < 4 * N_CASES; i++) {
        fixture_opts opts = random_case();
        fixture_run_opts run = { .isa = isas[i % n_isas],
                                 .n_threads = 1 + quire_rng_below(&rng, 4),
                                 .has_append = true };
        unsigned char *expected;
        float *out;
        fixture f;

        opts.n_k = 1;
        opts.n_v = i % 5 == 0 ? 0 : 1;
        opts.d_v = opts.n_v == 0 ? opts.d_k : opts.d_v;
        opts.rotate_k = i % 3 == 0 ? quire_hadamard_block(opts.d_k) : 0;
        opts.rotate_v = i % 3 == 0 ? quire_hadamard_block(opts.d_v) : 0;
        fixture_init(&f, &opts, &rng);
        out = new_out(&f);
        expected = malloc(f.n_pages * f.page_bytes);
        assert_non_null(expected);
        memcpy(expected, f.store, f.n_pages * f.page_bytes);
        fixture_wipe(&f);
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            fixture_store(&f, s, 0, opts.n_tokens[s] - opts.n_rows[s]);
        }
        fixture_run(&f, NULL, &run, out);
        assert_memory_equal(f.store, expected, f.n_pages * f.page_bytes);
        free(expected);
        free(out);
        fixture_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_alone_or_in_a_batch),
        cmocka_unit_test(test_chunk_lengths), cmocka_unit_test(test_copied_pages),
        cmocka_unit_test(test_shared_prefix), cmocka_unit_test(test_append),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
