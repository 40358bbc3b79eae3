/* test_attn_layers.c - windows, softcap, sinks, sources that differ, and lists of positions: the
 * reference against the formula, and every kernel set against the reference.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"
#include "attn/tolerance.h"
#include "rounds.h"

#define ISAS_MAX 6u

static quire_rng rng;

/* ---- the reference ---- */

/* Positions that a table has, in order, and their biases; returns their number. */
static uint32_t list_positions(const fixture *f, const quire_attn_table *table, uint32_t *positions,
                               float *biases)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < table->n_entries; e++) {
        const quire_page_entry *entry = fixture_entry(table, e);

        for (uint32_t i = 0; i < entry->n_tokens; i++) {
            biases[n] = fixture_bias(f, entry, i);
            positions[n++] = fixture_position(f, entry, i);
        }
    }
    return n;
}

static const float *vector(const fixture *f, const float *x, uint32_t pos, uint32_t g, uint32_t d)
{
    return x + ((size_t)(f->first_token[0] + pos) * f->opts.n_kv_head + g) * d;
}

/* One output of the row at position `row`, from K and V as they were before they were stored. */
static double by_formula(const fixture *f, const uint32_t *positions, const float *biases,
                         uint32_t n, uint32_t row, uint32_t h, uint32_t dim)
{
    const fixture_opts *o = &f->opts;
    const uint32_t g = h / (o->n_head / o->n_kv_head);
    const uint32_t q_row = row - (o->n_tokens[0] - o->n_rows[0]);
    double sum = o->has_sinks ? exp((double)f->sinks[h]) : 0.0;
    double out = 0.0;

    for (uint32_t t = 0; t < n && positions[t] <= row; t++) {
        double logit = 0.0, weight, v = 0.0;

        if (o->window != 0 && positions[t] + o->window <= row) {
            continue;
        }
        if (o->has_chunks && positions[t] / o->window != row / o->window) {
            continue;
        }
        for (uint32_t s = 0; s < o->n_k; s++) {
            const float *q = f->q[s] + q_row * f->layer.q_stride + (size_t)h * o->d_k;
            const float *k = vector(f, f->k[s], positions[t], g, o->d_k);

            for (uint32_t i = 0; i < o->d_k; i++) {
                logit += (double)q[i] * (double)k[i];
            }
        }
        logit *= (double)f->layer.scale;
        if (o->softcap != 0.0f) {
            logit = (double)o->softcap * tanh(logit / (double)o->softcap);
        }
        weight = exp(logit + (double)biases[t]);
        for (uint32_t s = 0; s < o->n_v; s++) {
            v += (double)vector(f, f->v[s], positions[t], g, o->d_v)[dim];
        }
        sum += weight;
        out += weight * v;
    }
    return out / sum;
}

static void check_reference(const fixture_opts *opts)
{
    uint32_t positions[500];
    float biases[500];
    uint32_t n;
    double *ref;
    fixture f;

    fixture_init(&f, opts, &rng);
    n = list_positions(&f, &f.seqs[0].tables[0], positions, biases);
    ref = fixture_ref(&f);
    for (uint32_t i = 0; i < opts->n_rows[0]; i++) {
        const uint32_t row = opts->n_tokens[0] - opts->n_rows[0] + i;

        for (uint32_t h = 0; h < opts->n_head; h++) {
            const uint32_t dim = quire_rng_below(&rng, opts->d_v);
            const double got = ref[((size_t)i * opts->n_head + h) * opts->d_v + dim];
            const double expected = by_formula(&f, positions, biases, n, row, h, dim);

            assert_true(fabs(got - expected) <= 1e-4 * (fabs(expected) + 0.1));
        }
    }
    free(ref);
    fixture_free(&f);
}

static void test_reference(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < TEST_ROUNDS_ALONE(100u, 33u); i++) {
        fixture_opts opts = fixture_defaults();

        opts.n_k = 1 + i % 2;
        opts.n_v = 1 + i / 2 % 2;
        fixture_vary(&opts, &rng);
        opts.k_format_2 = opts.v_format_2 = QUIRE_FORMAT_F32;
        opts.is_ragged = i / 4 % 2 != 0;
        opts.has_drops = i / 8 % 2 != 0;
        opts.has_biases = opts.has_drops && i % 3 != 0;
        opts.has_holes = i / 16 % 2 != 0;
        opts.n_tokens[0] = 1 + quire_rng_below(&rng, 500);
        opts.n_rows[0] = 1 + quire_rng_below(&rng, opts.n_tokens[0] < 40 ? opts.n_tokens[0] : 40);
        check_reference(&opts);
    }
}

/* ---- kernel sets ---- */

static attn_tolerance looser(attn_tolerance a, attn_tolerance b)
{
    return a.total > b.total ? a : b;
}

static attn_tolerance tolerance(const char *isa, const fixture_opts *o)
{
    attn_tolerance limit = attn_tolerance_of(isa, o->k_format, o->v_format);

    if (o->is_mixed && o->n_k > 1) {
        limit = looser(limit, attn_tolerance_of(isa, o->k_format_2, o->v_format));
    }
    if (o->is_mixed && o->n_v > 1) {
        limit = looser(limit, attn_tolerance_of(isa, o->k_format, o->v_format_2));
    }
    return limit;
}

/* With one thread and with several, which differ in their cuts. */
static void expect_near(fixture *f, const char *isa, const double *ref)
{
    float *out = fixture_take(fixture_out_floats(f) * sizeof(float));
    const attn_tolerance limit = tolerance(isa, &f->opts);

    for (uint32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
        fixture_run_opts run = { .isa = isa, .n_threads = n_threads };
        fixture_error error;

        fixture_run(f, NULL, &run, out);
        error = fixture_error_of(f, out, ref);
        if (!(error.total <= limit.total && error.worst_row <= limit.row)) {
            const fixture_opts *o = &f->opts;

            fail_msg("%s k=%s,%s v=%s,%s window=%u softcap=%g: errors %.3g, %.3g", isa,
                     quire_format_name(o->k_format), quire_format_name(o->k_format_2),
                     quire_format_name(o->v_format), quire_format_name(o->v_format_2), o->window,
                     (double)o->softcap, error.total, error.worst_row);
        }
    }
    free(out);
}

static void check_case(const fixture_opts *opts)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);
    double *ref;
    fixture f;

    if (!test_takes_case()) {
        return;
    }
    fixture_init(&f, opts, &rng);
    ref = fixture_ref(&f);
    for (uint32_t i = 0; i < n_isas; i++) {
        expect_near(&f, isas[i], ref);
    }
    free(ref);
    fixture_free(&f);
}

/* One sequence of 200 tokens whose rows cross tiles. */
static fixture_opts small_case(quire_format format)
{
    fixture_opts opts = fixture_defaults();

    opts.n_head = 6;
    opts.n_kv_head = 2;
    opts.d_k = 40;
    opts.d_v = 72;
    opts.k_format = opts.v_format = format;
    opts.split_entries = 1;
    opts.n_tokens[0] = 200;
    opts.n_rows[0] = 70;
    return opts;
}

static void test_windows(void **state)
{
    static const uint32_t windows[] = { 1, 2, 3, 17, 63, 64, 65, 66, 127, 128, 129, 199, 200, 201 };

    (void)state;
    for (unsigned n = 0; n < QUIRE_FORMAT_COUNT; n++) {
        for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
            fixture_opts opts = small_case((quire_format)n);

            opts.window = windows[i];
            opts.n_rows[0] = i % 3 == 0 ? 1 : 70;
            opts.is_ragged = i % 4 == 1;
            opts.has_holes = i % 2 == 0;
            check_case(&opts);
        }
    }
}

static void test_softcap(void **state)
{
    static const float softcaps[] = { 1e-3f, 0.5f, 2.0f, 30.0f, 1e6f };

    (void)state;
    for (unsigned n = 0; n < QUIRE_FORMAT_COUNT; n++) {
        for (size_t i = 0; i < sizeof(softcaps) / sizeof(softcaps[0]); i++) {
            fixture_opts opts = small_case((quire_format)n);

            opts.softcap = softcaps[i];
            opts.logit_scale = i % 2 == 0 ? 2.0f : 8.0f;
            check_case(&opts);
        }
    }
}

/* Sinks far below the logits, among them, and far above: weights then vanish. */
static void test_sinks(void **state)
{
    static const float sinks[] = { -INFINITY, -200.0f, -3.0f, 0.0f, 4.0f, 30.0f };
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (unsigned n = 0; n < QUIRE_FORMAT_COUNT; n++) {
        fixture_opts opts = small_case((quire_format)n);
        double *ref;
        fixture f;

        opts.has_sinks = true;
        fixture_init(&f, &opts, &rng);
        for (uint32_t h = 0; h < opts.n_head; h++) {
            f.sinks[h] = sinks[h];
        }
        ref = fixture_ref(&f);
        for (uint32_t i = 0; i < n_isas; i++) {
            expect_near(&f, isas[i], ref);
        }
        free(ref);
        fixture_free(&f);
    }
}

/* A sink that outweighs everything leaves nothing. */
static void test_sink_takes_all(void **state)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);
    fixture_opts opts = small_case(QUIRE_FORMAT_F16);
    float *out;
    fixture f;

    (void)state;
    opts.has_sinks = true;
    fixture_init(&f, &opts, &rng);
    out = fixture_take(fixture_out_floats(&f) * sizeof(float));
    for (uint32_t h = 0; h < opts.n_head; h++) {
        f.sinks[h] = 1e30f;
    }
    for (uint32_t i = 0; i < n_isas; i++) {
        fixture_run_opts run = { .isa = isas[i], .n_threads = 1 };

        fixture_run(&f, NULL, &run, out);
        for (size_t at = 0; at < fixture_out_floats(&f); at++) {
            assert_true(out[at] == 0.0f);
        }
    }
    free(out);
    fixture_free(&f);
}

/* Two sources in every pair of formats, hot and sealed, rotated and not. */
static void test_mixed_sources(void **state)
{
    (void)state;
    for (unsigned a = 0; a < QUIRE_FORMAT_COUNT; a++) {
        for (unsigned b = 0; b < QUIRE_FORMAT_COUNT; b++) {
            fixture_opts opts = small_case((quire_format)a);

            opts.n_k = 2;
            opts.n_v = 2;
            opts.is_mixed = true;
            opts.k_format_2 = (quire_format)b;
            opts.v_format_2 = (quire_format)b;
            opts.rotate_k = a % 2 == 0 ? 8 : 0;
            opts.rotate_v_2 = 8;
            opts.has_gates = b % 2 == 0;
            opts.has_two_groups = (a + b) % 2 == 0;
            opts.n_punched = opts.has_two_groups ? 2 : 0; /* one source's hot pages only */
            check_case(&opts);
        }
    }
}

static void test_lists_of_positions(void **state)
{
    (void)state;
    for (unsigned n = 0; n < QUIRE_FORMAT_COUNT; n++) {
        for (uint32_t i = 0; i < 12; i++) {
            fixture_opts opts = small_case((quire_format)n);

            opts.has_drops = true;
            opts.has_biases = i >= 6;
            opts.is_ragged = i % 2 != 0;
            opts.page_tokens = i / 2 % 2 == 0 ? 64 : 256;
            opts.window = i % 6 < 3 ? 0 : 150;
            opts.n_tokens[0] = 1500;
            opts.n_rows[0] = i % 6 == 0 ? 1 : 70;
            check_case(&opts);
        }
    }
}

/* All of it, at random. */
static void test_product(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < TEST_ROUNDS(120u, 66u); i++) {
        fixture_opts opts = fixture_defaults();

        opts.n_kv_head = 1 + quire_rng_below(&rng, 4);
        opts.n_head = opts.n_kv_head * (1 + quire_rng_below(&rng, 8));
        opts.d_k = 8 * (1 + quire_rng_below(&rng, 18));
        opts.d_v = 8 * (1 + quire_rng_below(&rng, 18));
        opts.k_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
        opts.v_format = (quire_format)quire_rng_below(&rng, QUIRE_FORMAT_COUNT);
        opts.n_k = 1 + quire_rng_below(&rng, 2);
        opts.n_v = 1 + quire_rng_below(&rng, 2);
        fixture_vary(&opts, &rng);
        opts.has_holes = quire_rng_below(&rng, 2) != 0;
        opts.has_drops = quire_rng_below(&rng, 3) == 0;
        opts.page_tokens = 64u << quire_rng_below(&rng, 3);
        opts.split_entries = quire_rng_below(&rng, 4);
        opts.is_ragged = quire_rng_below(&rng, 2) != 0;
        opts.recent_tiles = quire_rng_below(&rng, 4);
        opts.sink_tiles = quire_rng_below(&rng, 2);
        opts.n_punched = quire_rng_below(&rng, 3);
        opts.n_seqs = 1 + quire_rng_below(&rng, 3);
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            opts.n_tokens[s] = 1 + quire_rng_below(&rng, 600);
            opts.n_rows[s] = quire_rng_below(&rng, 2) != 0 ? 1 : 1 + quire_rng_below(&rng, 60);
            opts.n_rows[s] = opts.n_rows[s] < opts.n_tokens[s] ? opts.n_rows[s] : opts.n_tokens[s];
        }
        check_case(&opts);
    }
}

/* ---- which tiles are read ---- */

/* Pages that no row sees lie where nothing can be read, and tiles that none sees are NaN. */
static void hide_unseen(fixture *f, unsigned char *nowhere)
{
    const fixture_opts *o = &f->opts;
    const quire_attn_seq *seq = &f->seqs[0];
    const uint32_t seen = o->n_tokens[0] - o->n_rows[0] - o->window + 1;
    const quire_attn_source *sources[] = { &f->layer.k[0], &f->layer.v[0] };

    for (uint32_t i = 0; i < seq->tables[0].n_entries; i++) {
        const quire_page_entry *entry = fixture_entry(&seq->tables[0], i);
        quire_page_addr *addr = &f->page_addr[entry->page];

        if (fixture_entry_end(f, entry) <= seen) {
            *addr = (quire_page_addr){ .extent = nowhere };
            continue;
        }
        for (uint32_t t = 0; (uint32_t)entry->first_pos + (t + 1) * QUIRE_TILE_TOKENS <= seen;
             t++) {
            for (uint32_t s = 0; s < 2 * o->n_kv_head; s++) {
                const quire_attn_lane *lane = &sources[s % 2]->lane;

                memset(addr->extent + lane->offset + addr->slot * lane->page_stride +
                           s / 2 * lane->head_stride + t * lane->tile_stride,
                       0xff, lane->tile_stride);
            }
        }
    }
}

static void test_unseen_tiles_are_not_read(void **state)
{
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);
    unsigned char *nowhere = mmap(NULL, 1u << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_ptr_not_equal(nowhere, MAP_FAILED);
    for (uint32_t i = 0; i < 8 * n_isas; i++) {
        fixture_run_opts run = { .isa = isas[i / 8], .n_threads = 1 + i % 3 };
        fixture_opts opts = small_case((quire_format)(i % QUIRE_FORMATS_DIRECT));
        float *expected, *out;
        fixture f;

        opts.page_tokens = i % 2 == 0 ? 64 : 256;
        opts.n_tokens[0] = 1000;
        opts.n_rows[0] = i % 8 < 4 ? 1 : 100;
        opts.window = 100;
        fixture_init(&f, &opts, &rng);
        expected = fixture_take(fixture_out_floats(&f) * sizeof(float));
        out = fixture_take(fixture_out_floats(&f) * sizeof(float));
        fixture_run(&f, NULL, &run, expected);
        hide_unseen(&f, nowhere);
        fixture_run(&f, NULL, &run, out);
        assert_memory_equal(out, expected, fixture_out_floats(&f) * sizeof(float));
        free(out);
        free(expected);
        fixture_free(&f);
    }
    assert_int_equal(munmap(nowhere, 1u << 20), 0);
}

/* ---- the device ---- */

/* The CPU behind the device interface gives the same output as the workspace. */
static void test_cpu_device(void **state)
{
    fixture_opts opts = small_case(QUIRE_FORMAT_Q4);
    fixture_run_opts run = { .n_threads = 2, .has_append = true };
    quire_attn_workspace *workspace;
    quire_attn_device device;
    quire_attn_layer layer;
    unsigned char *store;
    float *expected, *out;
    fixture f;

    (void)state;
    fixture_init(&f, &opts, &rng);
    f.layer.out_stride = (size_t)opts.n_head * opts.d_v;
    expected = fixture_take(fixture_out_floats(&f) * sizeof(float));
    out = fixture_take(fixture_out_floats(&f) * sizeof(float));
    store = fixture_take(f.store_bytes);
    fixture_run(&f, NULL, &run, expected);
    memcpy(store, f.store, f.store_bytes);
    fixture_wipe(&f);
    fixture_store(&f, 0, 0, opts.n_tokens[0] - opts.n_rows[0]);
    workspace = fixture_workspace(&f, &run);
    device = quire_attn_device_cpu(workspace);
    layer = f.layer;
    layer.k_new = f.k[0] + (size_t)(opts.n_tokens[0] - opts.n_rows[0]) * opts.n_kv_head * opts.d_k;
    layer.k_new_stride = (size_t)opts.n_kv_head * opts.d_k;
    layer.v_new = f.v[0] + (size_t)(opts.n_tokens[0] - opts.n_rows[0]) * opts.n_kv_head * opts.d_v;
    layer.v_new_stride = (size_t)opts.n_kv_head * opts.d_v;
    layer.out = out;
    assert_string_equal(device.name, "cpu");
    assert_int_equal(device.memory, QUIRE_MEMORY_HOST);
    assert_int_equal(device.check(device.ctx, &layer), QUIRE_OK);
    assert_int_equal(device.plan(device.ctx, &f.batch), QUIRE_OK);
    for (uint32_t thread = 0; thread < 2; thread++) {
        device.append(device.ctx, &layer, thread, 2);
    }
    assert_memory_equal(f.store, store, f.store_bytes);
    for (uint32_t thread = 0; thread < 2; thread++) {
        device.run(device.ctx, &layer, 0, thread, 2);
    }
    assert_int_equal(device.sync(device.ctx), QUIRE_OK);
    assert_memory_equal(out, expected, fixture_out_floats(&f) * sizeof(float));
    quire_attn_workspace_destroy(workspace);
    free(store);
    free(out);
    free(expected);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_sinks),
        cmocka_unit_test(test_sink_takes_all),
        cmocka_unit_test(test_mixed_sources),
        cmocka_unit_test(test_lists_of_positions),
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_unseen_tiles_are_not_read),
        cmocka_unit_test(test_cpu_device),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
