/* test_attn_cascade.c - pages that sequences share are read once for all of them, and no bit of any
 * output shows it. Also which sequences that happens to.
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
#include "attn/attn_internal.h"
#include "rounds.h"

#define ISAS_MAX 6u
#define N_CASES  TEST_ROUNDS(90u, 18u)

static quire_rng rng;

/* The first n entries of a sequence's tables become those of another; its hot entries stay its own
 * when is_own_hot. */
static void share(fixture *f, uint32_t from, uint32_t to, uint32_t n, bool is_own_hot)
{
    for (uint32_t g = 0; g < f->n_groups; g++) {
        for (uint32_t i = 0; i < n && !(is_own_hot && g % 2 == 1); i++) {
            *fixture_entry(&f->seqs[to].tables[g], i) = *fixture_entry(&f->seqs[from].tables[g], i);
        }
    }
}

/* Entries that a sequence can share: full, and without a row but the last token's. */
static uint32_t n_sharable(const fixture *f, uint32_t s)
{
    const fixture_opts *o = &f->opts;

    return (o->n_tokens[s] - o->n_rows[s] + (o->n_rows[s] == 1)) / o->page_tokens;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Holes at random in a sequence's hot tables, as far as they may be. */
static void punch(fixture *f, uint32_t s)
{
    uint32_t n = (f->opts.n_tokens[s] - f->opts.n_rows[s]) / f->opts.page_tokens;

    for (uint32_t g = 1; g < f->n_groups; g += 2) {
        for (uint32_t i = 0; i < n; i++) {
            if (quire_rng_below(&rng, 3) == 0) {
                fixture_entry(&f->seqs[s].tables[g], i)->page = QUIRE_PAGE_NULL;
            }
        }
    }
}

/* Every sequence shares some entries with an earlier one: two prompts, and branches of them. */
static void share_at_random(fixture *f)
{
    for (uint32_t s = 2; s < f->opts.n_seqs; s++) {
        uint32_t from = quire_rng_below(&rng, 3) != 0 ? s % 2 : quire_rng_below(&rng, s);
        uint32_t most = min_u32(n_sharable(f, s), n_sharable(f, from));
        uint32_t n = quire_rng_below(&rng, 2) != 0 ? most : quire_rng_below(&rng, most + 1);

        share(f, from, s, n, quire_rng_below(&rng, 4) == 0);
    }
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        punch(f, s);
        if (f->opts.window != 0 && quire_rng_below(&rng, 2) != 0) {
            fixture_let_go(f, s);
        }
    }
}

static fixture_opts random_case(void)
{
    fixture_opts opts = fixture_defaults();
    uint32_t group = quire_rng_below(&rng, 4) == 0 ? 40 : 1 + quire_rng_below(&rng, 7);

    opts.n_kv_head = 1 + quire_rng_below(&rng, 3);
    opts.n_head = opts.n_kv_head * group; /* 40: two queries are a block */
    opts.d_k = 8 * (1 + quire_rng_below(&rng, 8));
    opts.d_v = 8 * (1 + quire_rng_below(&rng, 8));
    opts.k_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
    opts.v_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
    opts.n_k = 1 + quire_rng_below(&rng, 2);
    opts.n_v = 1 + quire_rng_below(&rng, 2);
    opts.has_keys = quire_rng_below(&rng, 2) != 0;
    opts.page_tokens = 64u << quire_rng_below(&rng, 2);
    opts.split_entries = 1 + quire_rng_below(&rng, 3);
    opts.recent_tiles = quire_rng_below(&rng, 6);
    opts.sink_tiles = quire_rng_below(&rng, 2);
    if (quire_rng_below(&rng, 3) != 0) {
        fixture_vary(&opts, &rng);
    }
    opts.n_seqs = 2 + quire_rng_below(&rng, FIXTURE_SEQS_MAX - 1);
    for (uint32_t s = 0; s < opts.n_seqs; s++) {
        opts.n_tokens[s] = 256 + quire_rng_below(&rng, 500);
        opts.n_rows[s] = quire_rng_below(&rng, 2) != 0 ? 1 : 1 + quire_rng_below(&rng, 10);
        if (quire_rng_below(&rng, 3) == 0) { /* no token after the shared ones */
            opts.n_tokens[s] = opts.n_tokens[s] / 128 * 128;
            opts.n_rows[s] = 1;
        }
    }
    return opts;
}

static float *new_out(const fixture *f)
{
    float *out = calloc(fixture_out_floats(f), sizeof(float));

    assert_non_null(out);
    return out;
}

static void expect_equal(const fixture *f, const float *out, const float *expected)
{
    assert_memory_equal(out, expected, fixture_out_floats(f) * sizeof(float));
}

/* With one thread and more, against no cascade and against each sequence by itself. */
static void check_bits(fixture *f, const char *isa)
{
    fixture_run_opts run = { .isa = isa, .n_threads = 1, .no_cascade = true };
    float *expected = new_out(f);
    float *out = new_out(f);

    fixture_run(f, NULL, &run, expected);
    run.no_cascade = false;
    for (run.n_threads = 1; run.n_threads <= 4; run.n_threads++) {
        memset(out, 0, fixture_out_floats(f) * sizeof(float));
        fixture_run(f, NULL, &run, out);
        expect_equal(f, out, expected);
    }
    run.n_threads = 2;
    memset(out, 0, fixture_out_floats(f) * sizeof(float));
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        quire_attn_batch batch = f->batch;

        batch.seqs = &f->seqs[s];
        batch.n_seqs = 1;
        fixture_run(f, &batch, &run, out);
    }
    expect_equal(f, out, expected);
    free(out);
    free(expected);
}

static void test_bits(void **state)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (uint32_t i = 0; i < N_CASES; i++) {
        fixture_opts opts = random_case();
        fixture f;

        fixture_init(&f, &opts, &rng);
        share_at_random(&f);
        check_bits(&f, isas[i % n_isas]);
        fixture_free(&f);
    }
}

/* Sequences of 400 tokens that share the first 320 with the first, in 5 splits. */
static fixture_opts decode_case(uint32_t n_seqs)
{
    fixture_opts opts = fixture_defaults();

    opts.k_format = QUIRE_FORMAT_Q8;
    opts.v_format = QUIRE_FORMAT_Q4;
    opts.recent_tiles = 2;
    opts.split_entries = 1;
    opts.n_seqs = n_seqs;
    for (uint32_t s = 0; s < n_seqs; s++) {
        opts.n_tokens[s] = 400;
        opts.n_rows[s] = 1;
    }
    return opts;
}

/* Rows at different distances from a shared tile: some read it hot and some sealed, in turns. */
static void test_hot_and_sealed_in_one_block(void **state)
{
    fixture_opts opts = decode_case(8);
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);
    fixture f;

    (void)state;
    opts.k_format = QUIRE_FORMAT_Q4;
    for (uint32_t s = 0; s < 8; s++) {
        opts.n_tokens[s] = 330 + 64 * (s % 3) + s;
        opts.n_rows[s] = 1 + s % 2;
    }
    fixture_init(&f, &opts, &rng);
    for (uint32_t s = 1; s < 8; s++) {
        share(&f, 0, s, 5, s % 4 == 3);
    }
    for (uint32_t i = 0; i < n_isas; i++) {
        check_bits(&f, isas[i]);
    }
    fixture_free(&f);
}

/* ---- which sequences share ---- */

/* Expect the groups' sizes and splits, in order; sizes end with 0. */
static void expect_groups(const fixture *f, bool no_cascade, const uint32_t *sizes,
                          const uint32_t *splits)
{
    fixture_run_opts run = { .isa = "portable", .n_threads = 1, .no_cascade = no_cascade };
    quire_attn_workspace *ws = fixture_workspace(f, &run);
    uint32_t n = 0;

    assert_int_equal(quire_attn_begin(ws, &f->batch), QUIRE_OK);
    for (; sizes[n] != 0; n++) {
        assert_true(n < ws->plans[0].n_cascades);
        assert_int_equal(ws->plans[0].cascades[n].n_seqs, sizes[n]);
        assert_int_equal(ws->plans[0].cascades[n].n_splits, splits[n]);
    }
    assert_int_equal(ws->plans[0].n_cascades, n);
    quire_attn_workspace_destroy(ws);
}

/* Two prompts, taking turns. */
static void test_two_groups(void **state)
{
    static const uint32_t none[8];
    fixture_opts opts = decode_case(8);
    fixture f;

    (void)state;
    fixture_init(&f, &opts, &rng);
    expect_groups(&f, false, (const uint32_t[]){ 1, 1, 1, 1, 1, 1, 1, 1, 0 }, none);
    for (uint32_t s = 2; s < 8; s++) {
        share(&f, s % 2, s, 5, false);
    }
    expect_groups(&f, false, (const uint32_t[]){ 4, 4, 0 }, (const uint32_t[]){ 5, 5 });
    expect_groups(&f, true, (const uint32_t[]){ 1, 1, 1, 1, 1, 1, 1, 1, 0 }, none);
    fixture_free(&f);
}

/* Eight that share n splits; among them the first n_more, and the others, share five. */
static void expect_nested(uint32_t n, uint32_t n_more, const uint32_t *sizes,
                          const uint32_t *splits)
{
    fixture_opts opts = decode_case(8);
    fixture f;

    fixture_init(&f, &opts, &rng);
    for (uint32_t s = 1; s < 8; s++) {
        share(&f, s < n_more ? 0 : n_more, s, 5, false);
        share(&f, 0, s, n, false);
    }
    expect_groups(&f, false, sizes, splits);
    fixture_free(&f);
}

/* Among nested prefixes the plan shares the one that saves most reads. */
static void test_nested_groups(void **state)
{
    (void)state;
    expect_nested(1, 2, (const uint32_t[]){ 8, 0 }, (const uint32_t[]){ 1 });
    expect_nested(4, 4, (const uint32_t[]){ 8, 0 }, (const uint32_t[]){ 4 });
    expect_nested(2, 4, (const uint32_t[]){ 4, 4, 0 }, (const uint32_t[]){ 5, 5 });
}

/* A split is not shared by a sequence with too many rows, with rows inside the split, or with a
 * part of the split only. */
static void test_not_shared(void **state)
{
    fixture_opts opts = decode_case(2);
    fixture f;

    (void)state;
    opts.n_rows[1] = QUIRE_ATTN_CASCADE_ROWS_MAX + 1;
    fixture_init(&f, &opts, &rng);
    share(&f, 0, 1, 5, false);
    expect_groups(&f, false, (const uint32_t[]){ 1, 1, 0 }, (const uint32_t[]){ 0, 0 });
    fixture_free(&f);

    opts.n_tokens[1] = 320;
    opts.n_rows[1] = 2; /* the first of them does not see the last shared token */
    fixture_init(&f, &opts, &rng);
    share(&f, 0, 1, 5, false);
    expect_groups(&f, false, (const uint32_t[]){ 2, 0 }, (const uint32_t[]){ 4 });
    fixture_free(&f);

    opts.n_rows[1] = 1; /* its row sees all of it, and nothing else */
    fixture_init(&f, &opts, &rng);
    share(&f, 0, 1, 5, false);
    expect_groups(&f, false, (const uint32_t[]){ 2, 0 }, (const uint32_t[]){ 5 });
    fixture_free(&f);

    opts.split_entries = 2; /* the third split: entries 4 and 5, and entry 4 alone */
    fixture_init(&f, &opts, &rng);
    share(&f, 0, 1, 5, false);
    expect_groups(&f, false, (const uint32_t[]){ 2, 0 }, (const uint32_t[]){ 2 });
    fixture_free(&f);
}

/* Whether all rows of a sequence see split k to its end. */
static bool is_whole(const quire_attn_workspace *ws, uint32_t s, uint32_t k)
{
    const quire_attn_seq *seq = &ws->batch.seqs[s];
    const uint32_t n_splits = quire_attn_n_splits(ws, &seq->tables[0]);
    const uint32_t *split_pos = ws->plans[0].split_pos + (size_t)s * ws->n_splits_max;

    return k < n_splits &&
           (k + 1 < n_splits ? split_pos[k + 1] : seq->n_tokens) <= seq->n_tokens - seq->n_rows + 1;
}

static bool is_same_split(const quire_attn_workspace *ws, uint32_t s, uint32_t t, uint32_t k)
{
    const quire_attn_table *a = &ws->batch.seqs[s].tables[0];
    const quire_attn_table *b = &ws->batch.seqs[t].tables[0];
    const uint32_t begin = k * ws->limits.split_entries;
    const uint32_t end = begin + ws->limits.split_entries;

    for (uint32_t i = begin; i < end; i++) {
        const quire_page_entry *x = i < a->n_entries ? quire_attn_entry(a, i) : NULL;
        const quire_page_entry *y = i < b->n_entries ? quire_attn_entry(b, i) : NULL;

        if ((x == NULL) != (y == NULL) ||
            (x != NULL && (x->page != y->page || x->first_slot != y->first_slot ||
                           x->n_tokens != y->n_tokens))) {
            return false;
        }
    }
    return true;
}

/* The number of shared splits by the definition: the pair is compared split by split. */
static uint32_t n_shared(const quire_attn_workspace *ws, uint32_t s, uint32_t t)
{
    uint32_t n = 0;

    if (ws->batch.seqs[s].n_rows <= QUIRE_ATTN_CASCADE_ROWS_MAX &&
        ws->batch.seqs[t].n_rows <= QUIRE_ATTN_CASCADE_ROWS_MAX) {
        while (is_whole(ws, s, n) && is_whole(ws, t, n) && is_same_split(ws, s, t, n)) {
            n++;
        }
    }
    return n;
}

/* The first sequence without a group leads a new one, with the number of shared splits that saves
 * most reads. Among equal savings the larger number of splits wins. */
static void check_groups(const quire_attn_workspace *ws)
{
    const quire_attn_plan *plan = &ws->plans[0];
    bool is_grouped[FIXTURE_SEQS_MAX] = { false };
    uint32_t g = 0;

    for (uint32_t s = 0; s < ws->batch.n_seqs; s++) {
        uint32_t best = 0, most = 0, n_in_group = 1;

        if (is_grouped[s]) {
            continue;
        }
        for (uint32_t n = ws->n_splits_max; n > 0; n--) {
            uint32_t n_joined = 0;

            for (uint32_t t = s + 1; t < ws->batch.n_seqs; t++) {
                n_joined += !is_grouped[t] && n_shared(ws, s, t) >= n;
            }
            if (n_joined * n > most) {
                most = n_joined * n;
                best = n;
            }
        }
        assert_true(g < plan->n_cascades);
        assert_int_equal(plan->cascades[g].n_splits, best);
        assert_int_equal(plan->order[plan->cascades[g].first], s);
        for (uint32_t t = s + 1; best > 0 && t < ws->batch.n_seqs; t++) {
            if (!is_grouped[t] && n_shared(ws, s, t) >= best) {
                is_grouped[t] = true;
                assert_int_equal(plan->order[plan->cascades[g].first + n_in_group], t);
                n_in_group++;
            }
        }
        assert_int_equal(plan->cascades[g].n_seqs, n_in_group);
        g++;
    }
    assert_int_equal(plan->n_cascades, g);
}

/* Prefixes at random, and groups as the definition has them. */
static void test_groups_by_definition(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < TEST_ROUNDS_ALONE(90u, 18u); i++) {
        fixture_opts opts = decode_case(FIXTURE_SEQS_MAX);
        fixture_run_opts run = { .isa = "portable", .n_threads = 1 };
        quire_attn_workspace *ws;
        fixture f;

        opts.split_entries = 1 + i % 2;
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            opts.n_tokens[s] = 400 + quire_rng_below(&rng, 600);
            opts.n_rows[s] = quire_rng_below(&rng, 8) != 0 ? 1 : 5 + quire_rng_below(&rng, 6);
        }
        fixture_init(&f, &opts, &rng);
        for (uint32_t s = 1; s < opts.n_seqs; s++) { /* a tree of prefixes */
            const uint32_t from = quire_rng_below(&rng, s);
            const uint32_t most = min_u32(n_sharable(&f, s), n_sharable(&f, from));

            share(&f, from, s, quire_rng_below(&rng, most + 1), false);
        }
        ws = fixture_workspace(&f, &run);
        for (uint32_t again = 0; again < 2; again++) { /* planning leaves no trace */
            assert_int_equal(quire_attn_begin(ws, &f.batch), QUIRE_OK);
            check_groups(ws);
        }
        quire_attn_workspace_destroy(ws);
        fixture_free(&f);
    }
}

/* Forks share the leaves of their tables, not only the pages that the leaves name. */
static void test_forks(void **state)
{
    const uint32_t n_leaves = 2;
    fixture_opts opts = decode_case(3);
    fixture f;

    (void)state;
    opts.n_head = 2;
    opts.n_kv_head = 1;
    opts.d_k = 8;
    opts.d_v = 8;
    for (uint32_t s = 0; s < 3; s++) {
        opts.n_tokens[s] = 64 * QUIRE_LEAF_ENTRIES * n_leaves + 100 + s;
    }
    fixture_init(&f, &opts, &rng);
    for (uint32_t s = 1; s < 3; s++) {
        share(&f, 0, s, QUIRE_LEAF_ENTRIES * n_leaves, false);
    }
    for (uint32_t is_fork = 0; is_fork < 2; is_fork++) {
        const quire_page_entry *leaves[2][4];
        const quire_page_entry *const *own[2] = { f.seqs[1].tables[0].leaves,
                                                  f.seqs[2].tables[0].leaves };

        for (uint32_t s = 1; s < 3; s++) {
            memcpy(leaves[s - 1], own[s - 1], (n_leaves + 1) * sizeof(leaves[0][0]));
            if (is_fork) {
                memcpy(leaves[s - 1], f.seqs[0].tables[0].leaves, n_leaves * sizeof(leaves[0][0]));
            }
            f.seqs[s].tables[0].leaves = leaves[s - 1];
        }
        expect_groups(&f, false, (const uint32_t[]){ 3, 0 },
                      (const uint32_t[]){ QUIRE_LEAF_ENTRIES * n_leaves });
        check_bits(&f, NULL);
        f.seqs[1].tables[0].leaves = own[0];
        f.seqs[2].tables[0].leaves = own[1];
    }
    fixture_free(&f);
}

/* Layers with windows: pages that no row sees are holes in one table, or in all tables. */
static void test_windows(void **state)
{
    fixture_opts opts = decode_case(4);
    fixture f;

    (void)state;
    opts.window = 150;
    for (uint32_t s = 0; s < 4; s++) {
        opts.n_tokens[s] = 400 + 64 * (s % 2) + s; /* odd s see fewer shared tokens */
    }
    fixture_init(&f, &opts, &rng);
    for (uint32_t s = 1; s < 4; s++) {
        share(&f, 0, s, 5, false);
    }
    expect_groups(&f, false, (const uint32_t[]){ 4, 0 }, (const uint32_t[]){ 5 });
    for (uint32_t s = 0; s < 4; s += 3) {
        fixture_let_go(&f, s);
        expect_groups(&f, false, (const uint32_t[]){ 4, 0 }, (const uint32_t[]){ 5 });
        check_bits(&f, NULL);
    }
    fixture_free(&f);

    opts.n_tokens[0] = 500; /* sees nothing of the first five pages */
    fixture_init(&f, &opts, &rng);
    for (uint32_t s = 1; s < 4; s++) {
        share(&f, 0, s, 5, false);
    }
    expect_groups(&f, false, (const uint32_t[]){ 1, 3, 0 }, (const uint32_t[]){ 0, 5 });
    for (uint32_t s = 0; s < 4; s++) {
        fixture_let_go(&f, s);
    }
    /* The third sees a page that the second has let go of. */
    expect_groups(&f, false, (const uint32_t[]){ 1, 2, 1, 0 }, (const uint32_t[]){ 0, 5, 0 });
    check_bits(&f, NULL);
    fixture_free(&f);
}

/* Sequences that have holes in common, and nothing else, share nothing. */
static void test_holes_are_not_shared(void **state)
{
    static const uint32_t none[3];
    fixture_opts opts = decode_case(2);
    fixture f;

    (void)state;
    opts.window = 100;
    opts.has_holes = true;
    fixture_init(&f, &opts, &rng);
    expect_groups(&f, false, (const uint32_t[]){ 1, 1, 0 }, none);
    fixture_free(&f);
}

/* The results do not depend on the room for partials. */
static void check_little_memory(uint32_t n_head, uint32_t n_kv_head, bool is_shared)
{
    fixture_opts opts = decode_case(6);
    fixture_run_opts run = { .isa = "portable", .n_threads = 3 };
    float *expected;
    float *out;
    fixture f;

    opts.n_head = n_head;
    opts.n_kv_head = n_kv_head;
    fixture_init(&f, &opts, &rng);
    for (uint32_t s = 1; is_shared && s < 6; s++) {
        share(&f, 0, s, 5, false);
    }
    f.layer.out_stride = (size_t)opts.n_head * opts.d_v;
    expected = new_out(&f);
    out = new_out(&f);
    fixture_run(&f, NULL, &run, expected);
    for (size_t floats = 0; floats < 400000; floats += 8000u * TEST_STRIDE(5u)) {
        quire_attn_workspace *ws = fixture_workspace(&f, &run);
        quire_attn_layer layer = f.layer;

        layer.out = out;
        ws->partial_floats = floats < ws->partial_floats ? floats : ws->partial_floats;
        memset(out, 0, fixture_out_floats(&f) * sizeof(float));
        assert_int_equal(quire_attn_begin(ws, &f.batch), QUIRE_OK);
        for (uint32_t thread = 0; thread < 3; thread++) {
            quire_attn_run(ws, &layer, 0, thread, 3);
        }
        expect_equal(&f, out, expected);
        quire_attn_workspace_destroy(ws);
    }
    free(out);
    free(expected);
    fixture_free(&f);
}

static void test_little_memory(void **state)
{
    (void)state;
    check_little_memory(40, 1, true);
    check_little_memory(6, 3, true);
    check_little_memory(6, 3, false); /* sequences by themselves, several kv heads at once */
    check_little_memory(40, 20, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),       cmocka_unit_test(test_hot_and_sealed_in_one_block),
        cmocka_unit_test(test_two_groups), cmocka_unit_test(test_nested_groups),
        cmocka_unit_test(test_not_shared), cmocka_unit_test(test_groups_by_definition),
        cmocka_unit_test(test_forks),      cmocka_unit_test(test_little_memory),
        cmocka_unit_test(test_windows),    cmocka_unit_test(test_holes_are_not_shared),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
