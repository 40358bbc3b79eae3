/* test_attn_parts.c - attention over parts of the tokens: the sums of a part, and results joined by
 * log-sum-exp, against the definition over all tokens.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_fixture.h"
#include "attn/tolerance.h"
#include "rounds.h"
#include "seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ISAS_MAX 6u

/* A fixture's batch in two: entries [0] with the rows' own, and [1] the others. */
typedef struct parts {
    quire_attn_seq seqs[2][FIXTURE_SEQS_MAX];
    quire_attn_batch batches[2];
} parts;

static quire_attn_table table_new(uint32_t n_entries)
{
    const uint32_t n = (n_entries + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;
    quire_page_entry *entries = fixture_take(n * QUIRE_LEAF_ENTRIES * sizeof(*entries));
    const quire_page_entry **leaves = fixture_take(n * sizeof(*leaves));

    for (uint32_t i = 0; i < n; i++) {
        leaves[i] = entries + (size_t)i * QUIRE_LEAF_ENTRIES;
    }
    return (quire_attn_table){ .leaves = leaves };
}

static void table_free(const quire_attn_table *table)
{
    if (table->leaves != NULL) {
        free((void *)(uintptr_t)table->leaves[0]);
        free((void *)(uintptr_t)table->leaves);
    }
}

/* Which part each entry of a sequence goes to: [1] by chance, if no row is stored there. */
static uint32_t choose(const fixture *f, uint32_t s, bool *is_other, quire_rng *rng)
{
    const quire_attn_seq *seq = &f->seqs[s];
    uint32_t n = 0;

    for (uint32_t i = 0; i < seq->tables[0].n_entries; i++) {
        const uint32_t end = fixture_entry_end(f, fixture_entry(&seq->tables[0], i));

        is_other[i] = end <= seq->n_tokens - seq->n_rows && quire_rng_below(rng, 2) != 0;
        n += is_other[i];
    }
    return n;
}

static void divide_seq(const fixture *f, uint32_t s, parts *p, quire_rng *rng)
{
    const quire_attn_seq *seq = &f->seqs[s];
    const uint32_t n_entries = seq->tables[0].n_entries;
    bool *is_other = fixture_take(n_entries * sizeof(*is_other));
    const uint32_t n_others = choose(f, s, is_other, rng);

    for (uint32_t k = 0; k < (n_others > 0 ? 2u : 1u); k++) {
        quire_attn_seq *to = &p->seqs[k][p->batches[k].n_seqs++];

        *to = *seq;
        for (uint32_t g = 0; g < f->n_groups; g++) {
            to->tables[g] = table_new(n_entries);
            for (uint32_t i = 0; i < n_entries; i++) {
                if (is_other[i] == (k == 1)) {
                    *fixture_entry(&to->tables[g], to->tables[g].n_entries++) =
                        *fixture_entry(&seq->tables[g], i);
                }
            }
        }
    }
    free(is_other);
}

static void divide(const fixture *f, parts *p, quire_rng *rng)
{
    memset(p, 0, sizeof(*p));
    for (uint32_t k = 0; k < 2; k++) {
        p->batches[k] = f->batch;
        p->batches[k].seqs = p->seqs[k];
        p->batches[k].n_seqs = 0;
        p->batches[k].is_part = k == 1;
    }
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        divide_seq(f, s, p, rng);
    }
}

static void parts_free(const fixture *f, const parts *p)
{
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t s = 0; s < p->batches[k].n_seqs; s++) {
            for (uint32_t g = 0; g < f->n_groups; g++) {
                table_free(&p->seqs[k][s].tables[g]);
            }
        }
    }
}

/* The definition over both parts, joined, is the definition: but for the order of sums in double
 * precision. The sums are those over all tokens, too. */
static void check_definition(const fixture *f, const parts *p, double *sums)
{
    const size_t n_heads = (size_t)f->n_rows * f->opts.n_head;
    double *all = fixture_take(fixture_out_floats(f) * sizeof(*all));
    double *out[2];
    double *part_sums = fixture_take(n_heads * 2 * sizeof(*part_sums));
    double *joined_sums = fixture_take(n_heads * 2 * sizeof(*joined_sums));
    quire_attn_layer other = f->layer;

    other.sinks = NULL;
    for (uint32_t k = 0; k < 2; k++) {
        out[k] = fixture_take(fixture_out_floats(f) * sizeof(*out[k]));
        memset(out[k], 0, fixture_out_floats(f) * sizeof(*out[k]));
    }
    for (size_t i = 0; i < n_heads; i++) { /* rows that are not in the other part see nothing */
        part_sums[2 * i] = -INFINITY;
        part_sums[2 * i + 1] = 0.0;
    }
    assert_int_equal(quire_attn_ref_part(&f->batch, &f->layer, all, sums), QUIRE_OK);
    assert_int_equal(quire_attn_ref_part(&p->batches[0], &f->layer, out[0], joined_sums), QUIRE_OK);
    assert_int_equal(quire_attn_ref_part(&p->batches[1], &other, out[1], part_sums), QUIRE_OK);
    quire_attn_ref_merge(n_heads, f->opts.d_v, out[0], joined_sums, out[1], part_sums);
    for (size_t i = 0; i < fixture_out_floats(f); i++) {
        const double scale = f->opts.v_scale != 0.0f ? (double)f->opts.v_scale : 1.0;

        if (!(fabs(out[0][i] - all[i]) <= 1e-11 * scale)) {
            fail_msg("output %zu: %.17g joined, %.17g at once", i, out[0][i], all[i]);
        }
    }
    for (size_t i = 0; i < n_heads; i++) {
        assert_true(joined_sums[2 * i] == sums[2 * i]); /* the largest logit */
        assert_true(fabs(joined_sums[2 * i + 1] / sums[2 * i + 1] - 1.0) < 1e-11);
    }
    free(joined_sums);
    free(part_sums);
    free(out[0]);
    free(out[1]);
    free(all);
}

/* One part, by a workspace. */
static void run_part(const fixture *f, const quire_attn_batch *batch, const char *isa,
                     const quire_attn_layer *layer)
{
    const fixture_run_opts opts = { .isa = isa, .n_threads = 1 };
    quire_attn_workspace *workspace = fixture_workspace(f, &opts);

    assert_int_equal(quire_attn_begin(workspace, batch), QUIRE_OK);
    quire_attn_run(workspace, layer, 0, 0, 1);
    quire_attn_workspace_destroy(workspace);
}

/* log(l exp(m)) of a row and head: within the error of logits. */
static void check_sums(const fixture *f, const float *sums, const double *expected, double limit)
{
    for (size_t i = 0; i < (size_t)f->n_rows * f->opts.n_head; i++) {
        const double got = (double)sums[2 * i] + log((double)sums[2 * i + 1]);
        const double wanted = expected[2 * i] + log(expected[2 * i + 1]);

        if (!(fabs(got - wanted) <= limit)) {
            fail_msg("row and head %zu: the log of the sum is %.9g, not %.9g", i, got, wanted);
        }
    }
}

static void check_isa(const fixture *f, const parts *p, const char *isa, const double *sums)
{
    const fixture_opts *o = &f->opts;
    const size_t n_sums = (size_t)f->n_rows * o->n_head * 2;
    const attn_tolerance limit = attn_tolerance_of(isa, o->k_format, o->v_format);
    float *out = fixture_take(fixture_out_floats(f) * sizeof(*out));
    float *other_out = fixture_take(fixture_out_floats(f) * sizeof(*other_out));
    float *both = fixture_take(2 * n_sums * sizeof(*both));
    double *ref = fixture_take(fixture_out_floats(f) * sizeof(*ref));
    quire_attn_layer layer = f->layer;
    quire_attn_layer other;
    fixture_error error;

    layer.out = out;
    layer.out_stride = (size_t)o->n_head * o->d_v;
    layer.sums = both;
    other = layer;
    other.out = other_out;
    other.sums = both + n_sums;
    other.sinks = NULL;
    run_part(f, &p->batches[0], isa, &layer);
    run_part(f, &p->batches[1], isa, &other);
    quire_attn_merge(&p->batches[1], &layer, &other);
    assert_int_equal(quire_attn_ref(&f->batch, &f->layer, ref), QUIRE_OK);
    error = fixture_error_of(f, out, ref);
    if (!(error.total <= limit.total && error.worst_row <= limit.row)) {
        fail_msg("%s k=%s v=%s: errors %.3g, %.3g", isa, quire_format_name(o->k_format),
                 quire_format_name(o->v_format), error.total, error.worst_row);
    }
    check_sums(f, layer.sums, sums, limit.row);
    free(ref);
    free(both);
    free(other_out);
    free(out);
}

static void check_case(const fixture_opts *opts, quire_rng *rng)
{
    const char *isas[ISAS_MAX];
    const uint32_t n_isas = fixture_isas(isas, ISAS_MAX);
    double *sums;
    fixture f;
    parts p;

    if (!test_takes_case()) {
        return;
    }
    fixture_init(&f, opts, rng);
    sums = fixture_take((size_t)f.n_rows * opts->n_head * 2 * sizeof(*sums));
    divide(&f, &p, rng);
    check_definition(&f, &p, sums);
    for (uint32_t i = 0; i < n_isas; i++) {
        check_isa(&f, &p, isas[i], sums);
    }
    parts_free(&f, &p);
    free(sums);
    fixture_free(&f);
}

static void test_formats(void **state)
{
    quire_rng rng = test_rng(11);
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_seqs = 2;
    opts.n_tokens[0] = 700;
    opts.n_rows[0] = 3;
    opts.n_tokens[1] = 330;
    opts.n_rows[1] = 70;
    opts.sink_tiles = 1;
    for (unsigned k = 0; k < QUIRE_FORMAT_COUNT; k++) {
        opts.k_format = (quire_format)k;
        opts.v_format = (quire_format)((k + 3) % QUIRE_FORMAT_COUNT);
        opts.split_entries = 1 + k % 3;
        check_case(&opts, &rng);
        opts.v_format = (quire_format)k;
        opts.has_sinks = !opts.has_sinks;
        check_case(&opts, &rng);
    }
}

/* Windows, chunks, softcap, sinks, dropped tokens, holes, V as a part of K. */
static void test_layers(void **state)
{
    quire_rng rng = test_rng(12);

    (void)state;
    for (uint32_t i = 0; i < TEST_ROUNDS(40, 10); i++) {
        fixture_opts opts = fixture_defaults();

        opts.k_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
        opts.v_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
        opts.split_entries = quire_rng_below(&rng, 4);
        opts.recent_tiles = quire_rng_below(&rng, 3);
        opts.has_gates = quire_rng_below(&rng, 2) != 0;
        opts.has_drops = quire_rng_below(&rng, 2) != 0;
        opts.has_holes = quire_rng_below(&rng, 2) != 0;
        opts.n_seqs = 1 + quire_rng_below(&rng, 3);
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            opts.n_tokens[s] = 50 + quire_rng_below(&rng, 700);
            opts.n_rows[s] = 1 + quire_rng_below(&rng, i % 2 == 0 ? 1 : 40);
        }
        fixture_vary(&opts, &rng);
        if (i % 5 == 4) {
            opts.n_v = 0;
            opts.d_v = 48;
            opts.v_format = opts.k_format;
            opts.rotate_k = opts.rotate_v = 0;
        }
        check_case(&opts, &rng);
    }
}

/* A row that sees nothing in a part has the other's result, bit by bit; damage stays. */
static void test_nothing(void **state)
{
    const quire_attn_seq seq = { .n_tokens = 9, .n_rows = 1 };
    const quire_attn_batch batch = { .seqs = &seq, .n_seqs = 1 };
    float out[2][8] = { { 1, 2, 3, 4, 5, 6, 7, 8 }, { 9, 9, 9, 9, 9, 9, 9, 9 } };
    float sums[2][2] = { { 0.5f, 3.0f }, { -INFINITY, 0.0f } };
    quire_attn_layer layer = {
        .n_head = 1, .n_kv_head = 1, .d_v = 8, .out = out[0], .out_stride = 8, .sums = sums[0]
    };
    quire_attn_layer part = layer;

    (void)state;
    part.out = out[1];
    part.sums = sums[1];
    out[1][0] = NAN; /* as of 0 / 0 */
    quire_attn_merge(&batch, &layer, &part);
    assert_true(out[0][0] == 1.0f && out[0][7] == 8.0f && sums[0][0] == 0.5f && sums[0][1] == 3.0f);
    quire_attn_merge(&batch, &part, &layer);
    assert_memory_equal(out[1], out[0], sizeof(out[0]));
    assert_memory_equal(sums[1], sums[0], sizeof(sums[0]));
    quire_attn_merge(&batch, &layer, &part); /* twice the same tokens: the same result */
    assert_true(out[0][2] == 3.0f && sums[0][1] == 6.0f);
    part.sums[1] = NAN;
    quire_attn_merge(&batch, &layer, &part);
    assert_true(isnan(out[0][0]) && isnan(out[0][7]) && isnan(sums[0][1]));
}

/* A part has no row's own token, and a batch that is no part has all. */
static void test_plan(void **state)
{
    quire_rng rng = test_rng(13);
    const fixture_run_opts run = { .n_threads = 1 };
    fixture_opts opts = fixture_defaults();
    quire_attn_workspace *workspace;
    quire_attn_batch batch;
    fixture f;
    parts p;

    (void)state;
    opts.n_tokens[0] = 700;
    fixture_init(&f, &opts, &rng);
    divide(&f, &p, &rng);
    workspace = fixture_workspace(&f, &run);
    assert_int_equal(p.batches[1].n_seqs, 1);
    assert_int_equal(quire_attn_begin(workspace, &p.batches[1]), QUIRE_OK);
    batch = p.batches[1];
    batch.is_part = false;
    assert_int_equal(quire_attn_begin(workspace, &batch), QUIRE_INVAL);
    batch = p.batches[0];
    assert_int_equal(quire_attn_begin(workspace, &batch), QUIRE_OK);
    batch.is_part = true;
    assert_int_equal(quire_attn_begin(workspace, &batch), QUIRE_INVAL);
    quire_attn_workspace_destroy(workspace);
    parts_free(&f, &p);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_plan),
    };

    return cmocka_run_group_tests_name("attn_parts", tests, NULL, NULL);
}
