/* conformance_attn.c - attention on a device's pages against the definition: formats, shapes,
 * properties of layers; and facts that must not change a row's bits.
 *
 * SPDX-License-Identifier: MIT */
#include "device/conformance.h"
#include "device/device_tolerance.h"
#include "rounds.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attn_tolerance looser(attn_tolerance a, attn_tolerance b)
{
    return a.total > b.total ? a : b;
}

/* The loosest tolerance of all sources of a case. */
static attn_tolerance tolerance_of(const quire_device *device, const quire_attn_layer *layer)
{
    attn_tolerance limit = { 0 };
    quire_device_info info;

    quire_device_info_get(device, &info);
    for (uint32_t i = 0; i < layer->n_k; i++) {
        limit = looser(
            limit, device_tolerance_of(info.isa, layer->k[i].format,
                                       layer->n_v > 0 ? layer->v[0].format : layer->k[0].format));
    }
    for (uint32_t i = 0; i < layer->n_v; i++) {
        limit =
            looser(limit, device_tolerance_of(info.isa, layer->k[0].format, layer->v[i].format));
    }
    return limit;
}

/* Attention over a fixture's pages (batch NULL: its own batch) against the definition. */
static void check_batch(const fixture *f, const quire_attn_batch *batch)
{
    const fixture_opts *o = &f->opts;
    double *ref = fixture_take(fixture_out_floats(f) * sizeof(double));
    float *out = fixture_take(fixture_out_floats(f) * sizeof(float));
    attn_tolerance limit;
    fixture_error error;
    device_pages p;

    assert_int_equal(quire_attn_ref(batch != NULL ? batch : &f->batch, &f->layer, ref), QUIRE_OK);
    device_pages_open(&p, f, batch);
    device_pages_attend(&p, false, out);
    error = fixture_error_of(f, out, ref);
    limit = tolerance_of(p.device, &f->layer);
    device_pages_close(&p);
    if (!(error.total <= limit.total && error.worst_row <= limit.row)) {
        fail_msg("%s k=%s v=%s d=%u/%u heads=%u/%u page=%u tokens=%u rows=%u window=%u cap=%g: "
                 "errors %.3g, %.3g",
                 conformance->name, quire_format_name(o->k_format), quire_format_name(o->v_format),
                 o->d_k, o->d_v, o->n_head, o->n_kv_head, o->page_tokens, o->n_tokens[0],
                 o->n_rows[0], o->window, (double)o->softcap, error.total, error.worst_row);
    }
    free(ref);
    free(out);
}

static void check_case(const fixture_opts *opts)
{
    fixture f;

    if (!conformance_takes_case()) {
        return;
    }
    fixture_init(&f, opts, &conformance_rng);
    check_batch(&f, NULL);
    fixture_free(&f);
}

static void for_formats(fixture_opts opts)
{
    for (unsigned f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        opts.k_format = opts.v_format = (quire_format)f;
        check_case(&opts);
    }
}

/* All pairs of formats, hot and sealed. */
void conformance_formats(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_tokens[0] = 200;
    opts.n_rows[0] = 3;
    for (unsigned k = 0; k < QUIRE_FORMAT_COUNT; k++) {
        for (unsigned v = 0; v < QUIRE_FORMAT_COUNT; v++) {
            opts.k_format = (quire_format)k;
            opts.v_format = (quire_format)v;
            check_case(&opts);
        }
    }
}

void conformance_heads(void **state)
{
    static const uint32_t dims[][2] = { { 8, 8 },     { 48, 48 },
                                        { 80, 80 },   { 128, 128 },
                                        { 64, 128 },  { 72, 24 },
                                        { 40, 200 },  { 16, 56 },
                                        { 256, 256 }, { QUIRE_HEAD_DIM_MAX, QUIRE_HEAD_DIM_MAX } };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 4;
    opts.n_kv_head = 2;
    opts.n_tokens[0] = 150;
    opts.n_rows[0] = 2;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        opts.d_k = dims[i][0];
        opts.d_v = dims[i][1];
        for_formats(opts);
        opts.rotate_k = quire_hadamard_block(opts.d_k);
        opts.rotate_v = quire_hadamard_block(opts.d_v);
        for_formats(opts);
        opts.rotate_k = opts.rotate_v = 0;
    }
}

void conformance_groups(void **state)
{
    static const uint32_t groups[] = { 1, 2, 3, 5, 7, 8, 9, 16, 71 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.d_k = opts.d_v = 48;
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        opts.n_kv_head = groups[i] < 16 ? 3 : 1;
        opts.n_head = opts.n_kv_head * groups[i];
        for_formats(opts);
    }
}

void conformance_lengths(void **state)
{
    static const uint32_t lengths[] = { 1, 2, 63, 64, 65, 127, 129, 1025, 2500 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 3;
    opts.n_kv_head = 1;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        opts.n_tokens[0] = lengths[i];
        opts.n_rows[0] = 1;
        for_formats(opts);
        /* More rows than a step of the kernels has, and a few where a row is long. */
        opts.n_rows[0] = lengths[i] > 1000 ? 9 : lengths[i] < 70 ? lengths[i] : 70;
        for_formats(opts);
    }
    /* Splits that a card does not merge at once, for one row and for two. */
    opts.split_entries = 1;
    opts.has_sinks = opts.has_gates = true;
    opts.n_v = 2;
    opts.d_v = 72;
    for (opts.n_rows[0] = 1; opts.n_rows[0] < 3; opts.n_rows[0]++) {
        opts.n_tokens[0] = opts.n_rows[0] == 1 ? 64 * 64 + 1 : 64 * 130;
        check_case(&opts);
    }
}

void conformance_pages(void **state)
{
    static const uint32_t pages[] = { 64, 128, 1024 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_seqs = 2;
    opts.n_tokens[0] = 900;
    opts.n_tokens[1] = 300;
    opts.n_rows[1] = 20;
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        for (uint32_t split = 0; split < 3; split++) {
            opts.page_tokens = pages[i];
            opts.split_entries = split;
            opts.is_ragged = split == 1;
            for_formats(opts);
        }
    }
}

void conformance_sources(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.split_entries = 1;
    opts.n_tokens[0] = 200;
    opts.n_rows[0] = 5;
    for (uint32_t n = 1; n < 4; n++) {
        opts.n_k = 1 + n / 2;
        opts.n_v = 1 + n % 2;
        opts.has_gates = true;
        for_formats(opts);
    }
    opts.d_k = opts.d_v = 256; /* much room for rows */
    opts.n_head = 16;
    opts.n_kv_head = 1;
    for_formats(opts);
}

/* Addresses from which second sources count their lanes further: K's sources from k_from on, the
 * first of which says the tables that are walked, and V's from 1 on. */
static void second_make(fixture *f, quire_page_addr *addrs, uint32_t k_from)
{
    const size_t shift = (size_t)1 << 20;

    for (uint32_t i = 0; i <= f->n_pages; i++) {
        addrs[i].extent = (unsigned char *)((uintptr_t)addrs[i].extent - shift);
    }
    for (uint32_t i = k_from; i < f->opts.n_k; i++) {
        f->layer.k[i].lane.offset += shift;
        f->layer.k[i].is_second = true;
    }
    for (uint32_t i = 1; i < f->opts.n_v; i++) {
        f->layer.v[i].lane.offset += shift;
        f->layer.v[i].is_second = true;
    }
}

/* Let the second sequence share the first n pages of the first one. */
static void pages_share(const fixture *f, uint32_t n)
{
    for (uint32_t g = 0; g < f->n_groups; g++) {
        for (uint32_t e = 0; e < n; e++) {
            *fixture_entry(&f->seqs[1].tables[g], e) = *fixture_entry(&f->seqs[0].tables[g], e);
        }
    }
}

/* Second sources at the batch's second addresses: the same bits as at the first ones, also of
 * sequences that share pages. */
void conformance_second(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.split_entries = 1;
    opts.n_seqs = 2;
    opts.n_tokens[0] = opts.n_tokens[1] = 300;
    opts.n_rows[0] = 5;
    opts.n_rows[1] = 1;
    opts.sink_tiles = 1;
    for (uint32_t n = 0; n < 3 * QUIRE_FORMAT_COUNT; n += TEST_STRIDE(5u)) {
        quire_page_addr *addrs;
        float *one, *two;
        device_pages p;
        fixture f;

        opts.n_k = n % 3 == 0 ? 1 : 2;
        opts.n_v = n % 3 == 1 ? 1 : 2;
        opts.k_format = opts.v_format = (quire_format)(n / 3);
        fixture_init(&f, &opts, &conformance_rng);
        pages_share(&f, n % 4);
        one = fixture_take(fixture_out_floats(&f) * sizeof(float));
        two = fixture_take(fixture_out_floats(&f) * sizeof(float));
        device_pages_open(&p, &f, NULL);
        device_pages_attend(&p, false, one);
        addrs = fixture_take((f.n_pages + 1) * sizeof *addrs);
        memcpy(addrs, p.addr, (f.n_pages + 1) * sizeof *addrs);
        second_make(&f, addrs, n % 2);
        p.batch.page_addr_2 = addrs;
        device_pages_attend(&p, false, two);
        assert_memory_equal(one, two, fixture_out_floats(&f) * sizeof(float));
        device_pages_close(&p);
        free(addrs);
        free(two);
        free(one);
        fixture_free(&f);
    }
}

void conformance_prefix(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 16;
    opts.n_kv_head = 1;
    opts.d_k = 576; /* the shape of MLA */
    opts.d_v = 512;
    opts.n_v = 0;
    opts.n_rows[0] = 2;
    opts.is_ragged = true;
    for_formats(opts);
    opts.n_head = 6;
    opts.n_kv_head = 3;
    opts.d_k = 24;
    opts.d_v = 16;
    opts.rotate_k = opts.rotate_v = 8;
    opts.has_gates = true;
    opts.is_ragged = false;
    opts.n_tokens[0] = 400;
    opts.n_rows[0] = 70;
    opts.sink_tiles = 1;
    opts.n_punched = 2;
    for_formats(opts);
}

/* The distance rule, with holes in hot tables. */
void conformance_hot(void **state)
{
    static const uint32_t recent[] = { 0, 1, 2, 100 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 3;
    opts.n_kv_head = 1;
    opts.n_seqs = 2;
    opts.n_tokens[0] = 500;
    opts.n_rows[0] = 100;
    opts.n_tokens[1] = 576;
    opts.n_rows[1] = 1;
    for (uint32_t i = 0; i < 16; i++) {
        opts.recent_tiles = recent[i % 4];
        opts.sink_tiles = i / 4 % 2;
        opts.page_tokens = i / 8 % 2 == 0 ? 64 : 256;
        opts.split_entries = 1 + i % 3;
        opts.is_ragged = i % 5 == 4;
        opts.n_punched = i % 2 * (1 + quire_rng_below(&conformance_rng, 4));
        opts.k_format = QUIRE_FORMATS_DIRECT + i % 4;
        opts.v_format = (quire_format)quire_rng_below(&conformance_rng, QUIRE_FORMAT_COUNT);
        check_case(&opts);
    }
}

/* Windows, chunks, softcap, sinks, mixed sources in several groups, dropped tokens, holes behind
 * the window. */
void conformance_layers(void **state)
{
    quire_rng *rng = &conformance_rng;

    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        fixture_opts opts = fixture_defaults();

        opts.n_kv_head = 1 + quire_rng_below(rng, 3);
        opts.n_head = opts.n_kv_head * (1 + quire_rng_below(rng, 8));
        opts.d_k = 8 * (1 + quire_rng_below(rng, 18));
        opts.d_v = 8 * (1 + quire_rng_below(rng, 18));
        opts.k_format = (quire_format)quire_rng_below(rng, QUIRE_FORMAT_COUNT);
        opts.v_format = (quire_format)quire_rng_below(rng, QUIRE_FORMAT_COUNT);
        opts.n_k = 1 + quire_rng_below(rng, 2);
        opts.n_v = 1 + quire_rng_below(rng, 2);
        opts.page_tokens = 64u << quire_rng_below(rng, 3);
        opts.split_entries = quire_rng_below(rng, 4);
        opts.recent_tiles = quire_rng_below(rng, 4);
        opts.sink_tiles = quire_rng_below(rng, 2);
        opts.has_gates = quire_rng_below(rng, 2) != 0;
        opts.has_drops = quire_rng_below(rng, 2) != 0;
        opts.has_holes = quire_rng_below(rng, 2) != 0;
        opts.n_seqs = 1 + quire_rng_below(rng, 3);
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            opts.n_tokens[s] = 1 + quire_rng_below(rng, 700);
            opts.n_rows[s] = 1 + quire_rng_below(rng, quire_rng_below(rng, 2) != 0 ? 1 : 40);
            opts.n_rows[s] = opts.n_rows[s] < opts.n_tokens[s] ? opts.n_rows[s] : opts.n_tokens[s];
        }
        fixture_vary(&opts, rng);
        check_case(&opts);
    }
}

/* Biases of tokens in lists; the random numbers of other cases stay as they are without these. */
void conformance_biases(void **state)
{
    const quire_rng before = conformance_rng;
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_head = 6;
    opts.n_kv_head = 2;
    opts.n_seqs = 2;
    opts.n_tokens[0] = 500;
    opts.n_rows[0] = 1;
    opts.n_tokens[1] = 200;
    opts.n_rows[1] = 30;
    opts.has_drops = opts.has_biases = true;
    for (uint32_t i = 0; i < 4; i++) {
        opts.page_tokens = i % 2 == 0 ? 64 : 128;
        opts.split_entries = 1 + i;
        opts.softcap = i == 2 ? 30.0f : 0.0f;
        opts.n_k = opts.n_v = 1 + (i == 3);
        for_formats(opts);
    }
    conformance_rng = before;
}

void conformance_magnitudes(void **state)
{
    static const float scales[] = { 1e-4f, 1.0f, 1e4f };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_rows[0] = 3;
    for (size_t i = 0; i < 9; i++) {
        opts.k_scale = scales[i % 3];
        opts.v_scale = scales[i / 3];
        for_formats(opts);
    }
    opts.k_scale = opts.v_scale = 1.0f;
    opts.logit_scale = 1e-6f;
    for_formats(opts);
    opts.logit_scale = 6.0f;
    for_formats(opts);
}

/* A sequence's bits do not depend on those that it shares pages with. */
static void check_alone(const fixture *f)
{
    const size_t row_floats = (size_t)f->opts.n_head * f->opts.d_v;
    float *all = fixture_take(fixture_out_floats(f) * sizeof(float));
    float *one = fixture_take(fixture_out_floats(f) * sizeof(float));
    device_pages p;

    device_pages_open(&p, f, NULL);
    device_pages_attend(&p, false, all);
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        quire_attn_seq seq = f->seqs[s];
        const size_t at = (seq.first_row + seq.n_rows - 1) * row_floats; /* its last row */

        seq.first_row += seq.n_rows - 1;
        seq.n_rows = 1;
        p.batch.seqs = &seq;
        p.batch.n_seqs = 1;
        device_pages_attend(&p, false, one);
        assert_memory_equal(one + at, all + at, row_floats * sizeof(float));
    }
    device_pages_close(&p);
    free(one);
    free(all);
}

/* Decode rows of sequences that share pages: the cascade. In sealed formats hot pages are shared,
 * too, and some rows read a tile hot that other rows read sealed. */
void conformance_shared(void **state)
{
    static const uint32_t groups[] = { 1, 4, 3, 16 };
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_seqs = 6;
    opts.split_entries = 1;
    for (uint32_t s = 0; s < opts.n_seqs; s++) {
        opts.n_tokens[s] = 330 + 10 * s;
        opts.n_rows[s] = s < 4 ? 1 : s - 2;
    }
    for (unsigned i = 0; i < 2 * QUIRE_FORMAT_COUNT; i += TEST_STRIDE(5u)) {
        fixture f;

        opts.k_format = opts.v_format = (quire_format)(i / 2);
        opts.n_head = groups[i % 4] * opts.n_kv_head;
        opts.recent_tiles = i % 3;
        opts.sink_tiles = i % 2;
        fixture_init(&f, &opts, &conformance_rng);
        for (uint32_t s = 1; s < opts.n_seqs; s++) {
            for (uint32_t g = 0; g < f.n_groups; g++) {
                for (uint32_t e = 0; e < 5 - s % 2; e++) {
                    *fixture_entry(&f.seqs[s].tables[g], e) =
                        *fixture_entry(&f.seqs[0].tables[g], e);
                }
            }
        }
        check_batch(&f, NULL);
        check_alone(&f);
        fixture_free(&f);
    }
}

/* A row's bits do not depend on the other rows and sequences of the batch. */
void conformance_bits(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 12; round += TEST_STRIDE(5u)) {
        fixture_opts opts = fixture_defaults();
        quire_attn_batch alone;
        float *all, *one;
        device_pages p;
        size_t row_floats;
        fixture f;

        opts.k_format = (quire_format)(round % QUIRE_FORMAT_COUNT);
        opts.v_format = (quire_format)quire_rng_below(&conformance_rng, QUIRE_FORMAT_COUNT);
        opts.split_entries = 1 + round % 2;
        opts.n_seqs = 3;
        opts.n_tokens[0] = 700;
        opts.n_tokens[1] = 130;
        opts.n_tokens[2] = 400;
        opts.n_rows[1] = 1;
        opts.n_rows[2] = 33;
        fixture_vary(&opts, &conformance_rng);
        fixture_init(&f, &opts, &conformance_rng);
        row_floats = (size_t)opts.n_head * opts.d_v;
        all = fixture_take(fixture_out_floats(&f) * sizeof(float));
        one = fixture_take(fixture_out_floats(&f) * sizeof(float));
        device_pages_open(&p, &f, NULL);
        device_pages_attend(&p, false, all);
        device_pages_attend(&p, false, one);
        assert_memory_equal(all, one, fixture_out_floats(&f) * sizeof(float));
        alone = p.batch;
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            quire_attn_seq seq = f.seqs[s];

            seq.first_row += seq.n_rows - 1; /* its last row only */
            seq.n_rows = 1;
            p.batch = alone;
            p.batch.seqs = &seq;
            p.batch.n_seqs = 1;
            device_pages_attend(&p, false, one);
            assert_memory_equal(one + seq.first_row * row_floats, all + seq.first_row * row_floats,
                                row_floats * sizeof(float));
        }
        device_pages_close(&p);
        free(one);
        free(all);
        fixture_free(&f);
    }
}

/* NaN in K or V makes the outputs NaN of the rows that see it, and no others. */
void conformance_damage(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    opts.n_seqs = 2;
    opts.n_tokens[1] = 100;
    opts.n_rows[1] = 1;
    for (unsigned format = 0; format < QUIRE_FORMATS_DIRECT; format++) {
        for (uint32_t side = 0; side < 2; side++) {
            device_pages p;
            float *out;
            fixture f;

            opts.k_format = opts.v_format = (quire_format)format;
            fixture_init(&f, &opts, &conformance_rng);
            (side == 0 ? f.k[0] : f.v[0])[(size_t)50 * opts.n_kv_head * opts.d_k + 3] = NAN;
            fixture_store(&f, 0, 50, 51);
            out = fixture_take(fixture_out_floats(&f) * sizeof(float));
            device_pages_open(&p, &f, NULL);
            device_pages_attend(&p, false, out);
            assert_true(isnan(out[3])); /* row 0, head 0 */
            for (size_t i = fixture_out_floats(&f) / 2; i < fixture_out_floats(&f); i++) {
                assert_false(isnan(out[i]));
            }
            device_pages_close(&p);
            free(out);
            fixture_free(&f);
        }
    }
}
