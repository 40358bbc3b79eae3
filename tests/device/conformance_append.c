/* conformance_append.c - K and V of new rows into a device's pages.
 *
 * SPDX-License-Identifier: MIT */
#include "device/conformance.h"
#include "device/device_tolerance.h"
#include "rounds.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Pages as they were before the rows came. */
static void forget_rows(fixture *f)
{
    fixture_wipe(f);
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        if (f->opts.n_tokens[s] > f->opts.n_rows[s]) {
            fixture_store(f, s, 0, f->opts.n_tokens[s] - f->opts.n_rows[s]);
        }
    }
}

/* Append on the device. Its pages lie in f->store afterwards; expected: as the CPU's codec has
 * them. */
static void append(fixture *f, unsigned char *expected, float *out)
{
    device_pages p;

    memcpy(expected, f->store, f->store_bytes);
    forget_rows(f);
    device_pages_open(&p, f, NULL);
    device_pages_attend(&p, true, out);
    device_pages_back(&p);
    device_pages_close(&p);
}

/* The definition over the pages that the device wrote. */
static void check_result(fixture *f, const float *out)
{
    double *ref = fixture_ref(f);
    const fixture_error error = fixture_error_of(f, out, ref);
    /* Formats of the first sources: the second ones have the same. */
    attn_tolerance limit;
    quire_device_info info;
    quire_device *device = conformance_open(f);

    quire_device_info_get(device, &info);
    quire_device_close(device);
    limit = device_tolerance_of(info.isa, f->opts.k_format, f->opts.v_format);
    if (!(error.total <= limit.total && error.worst_row <= limit.row)) {
        fail_msg("%s append k=%s v=%s d=%u/%u tokens=%u rows=%u: errors %.3g, %.3g",
                 conformance->name, quire_format_name(f->opts.k_format),
                 quire_format_name(f->opts.v_format), f->opts.d_k, f->opts.d_v, f->opts.n_tokens[0],
                 f->opts.n_rows[0], error.total, error.worst_row);
    }
    free(ref);
}

/* How far decoded rows are from those that were stored, over all full tiles and the open one. */
typedef struct stored_error {
    double difference;
    double norm;
} stored_error;

static const void *tile_at(const fixture *f, const unsigned char *store,
                           const quire_attn_lane *lane, const quire_page_entry *entry, uint32_t g,
                           uint32_t tile)
{
    const quire_page_addr *addr = &f->page_addr[entry->page];

    return store + (addr->extent - f->store) + lane->offset + addr->slot * lane->page_stride +
           g * lane->head_stride + tile * lane->tile_stride;
}

/* One form of one side of a head: token t of a sequence lies in slot t of its pages. */
static stored_error error_of(const fixture *f, const unsigned char *store, quire_side side,
                             uint32_t g, bool is_hot)
{
    const fixture_opts *o = &f->opts;
    const quire_attn_source *source = side == QUIRE_SIDE_K ? &f->layer.k[0] : &f->layer.v[0];
    const quire_format format = is_hot ? QUIRE_FORMAT_HOT : source->format;
    const bool is_sealed = quire_format_is_sealed(format);
    const uint32_t d = side == QUIRE_SIDE_K ? o->d_k : o->d_v;
    const float *x = side == QUIRE_SIDE_K ? f->k[0] : f->v[0];
    const quire_attn_table *table = &f->seqs[0].tables[is_hot ? source->hot_group : source->group];
    const uint32_t n =
        is_sealed ? o->n_tokens[0] / QUIRE_TILE_TOKENS * QUIRE_TILE_TOKENS : o->n_tokens[0];
    stored_error error = { 0.0, 0.0 };
    float is[QUIRE_HEAD_DIM_MAX], want[QUIRE_HEAD_DIM_MAX];

    for (uint32_t t = 0; t < n; t++) {
        const uint32_t slot = t % o->page_tokens;
        const quire_tile_rows rows = {
            .d = d, .first_slot = slot % QUIRE_TILE_TOKENS, .n_tokens = 1, .stride = d
        };
        const void *tile =
            tile_at(f, store, is_hot ? &source->hot_lane : &source->lane,
                    fixture_entry(table, t / o->page_tokens), g, slot / QUIRE_TILE_TOKENS);

        if (side == QUIRE_SIDE_K) {
            quire_codec_find("ref")->decode_k(format, &rows, tile, is);
        } else {
            quire_codec_find("ref")->decode_v(format, &rows, tile, is);
        }
        memcpy(want, x + ((size_t)t * o->n_kv_head + g) * d, d * sizeof(float));
        if (source->rotate != 0) {
            quire_hadamard(want, d, source->rotate);
        }
        for (uint32_t i = 0; i < d; i++) {
            error.difference +=
                ((double)is[i] - (double)want[i]) * ((double)is[i] - (double)want[i]);
            error.norm += (double)want[i] * (double)want[i];
        }
    }
    return error;
}

/* The device's bytes are as near to the stored values as the CPU's. */
static void check_stored(const fixture *f, const unsigned char *expected, quire_side side)
{
    const quire_format format = side == QUIRE_SIDE_K ? f->opts.k_format : f->opts.v_format;
    const uint32_t n_forms = quire_format_is_sealed(format) ? 2 : 1;

    for (uint32_t i = 0; i < f->opts.n_kv_head * n_forms; i++) {
        const stored_error ours = error_of(f, f->store, side, i / n_forms, i % n_forms == 1);
        const stored_error cpus = error_of(f, expected, side, i / n_forms, i % n_forms == 1);

        if (!(sqrt(ours.difference) <= 1.02 * sqrt(cpus.difference) + 1e-7 * sqrt(ours.norm))) {
            fail_msg("%s: %s of %s, d %u, form %u: error %.4g, the CPU's %.4g", conformance->name,
                     side == QUIRE_SIDE_K ? "K" : "V", quire_format_name(format), f->opts.d_k,
                     i % n_forms, sqrt(ours.difference / ours.norm),
                     sqrt(cpus.difference / cpus.norm));
        }
    }
}

/* Codes of K are the CPU's, which rounds them with the rows' queries in view, but for the few that
 * sums in another order decide. */
static void check_codes(const fixture *f, const unsigned char *expected)
{
    const fixture_opts *o = &f->opts;
    const size_t n_codes = (size_t)o->n_rows[0] * o->n_kv_head * (o->d_k + o->d_v);
    size_t n_other = 0;

    if (o->k_format != QUIRE_FORMAT_Q8 || o->n_seqs > 1) {
        return;
    }
    for (size_t i = 0; i < f->store_bytes; i++) {
        n_other += f->store[i] != expected[i];
    }
    if (n_other > 4 + n_codes / 200) {
        fail_msg("%s: %zu bytes of %zu codes are not the CPU's", conformance->name, n_other,
                 n_codes);
    }
}

static void check_case(const fixture_opts *opts)
{
    unsigned char *expected;
    float *out;
    fixture f;

    if (!conformance_takes_case()) {
        return;
    }
    fixture_init(&f, opts, &conformance_rng);
    expected = fixture_take(f.store_bytes);
    out = fixture_take(fixture_out_floats(&f) * sizeof(float));
    append(&f, expected, out);
    if (conformance->rounds_as_cpu) {
        assert_memory_equal(f.store, expected, f.store_bytes);
    }
    check_result(&f, out);
    check_codes(&f, expected);
    check_stored(&f, expected, QUIRE_SIDE_K);
    if (opts->n_v > 0) {
        check_stored(&f, expected, QUIRE_SIDE_V);
    }
    free(out);
    free(expected);
    fixture_free(&f);
}

/* Rows that begin and end inside of tiles, fill tiles, are whole prompts. */
void conformance_append(void **state)
{
    static const uint32_t rows[][2] = { { 1, 1 },     { 64, 1 },    { 100, 36 },
                                        { 130, 130 }, { 256, 129 }, { 65, 2 } };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (unsigned format = 0; format < QUIRE_FORMAT_COUNT; format++) {
            fixture_opts opts = fixture_defaults();

            opts.n_tokens[0] = rows[i][0];
            opts.n_rows[0] = rows[i][1];
            opts.k_format = opts.v_format = (quire_format)format;
            opts.page_tokens = i % 2 == 0 ? 64 : 128;
            opts.d_k = i % 3 == 0 ? 64 : 80;
            opts.d_v = i % 3 == 1 ? 128 : 24;
            opts.rotate_k = i % 2 == 0 ? quire_hadamard_block(opts.d_k) : 0;
            opts.rotate_v = i % 2 == 0 ? quire_hadamard_block(opts.d_v) : 0;
            check_case(&opts);
        }
    }
}

/* Two sequences, V that is a part of K, the largest head. Bytes of no row change. */
void conformance_append_bytes(void **state)
{
    (void)state;
    for (unsigned format = 0; format < QUIRE_FORMAT_COUNT; format++) {
        fixture_opts opts = fixture_defaults();

        opts.k_format = opts.v_format = (quire_format)format;
        opts.n_tokens[0] = 130;
        opts.n_rows[0] = 5;
        opts.n_seqs = 2;
        opts.n_tokens[1] = 64;
        opts.n_rows[1] = 1;
        check_case(&opts);
        opts.n_seqs = 1;
        opts.n_v = 0;
        opts.d_k = 96;
        opts.d_v = 64;
        check_case(&opts);
        opts.n_v = 1;
        opts.n_head = 2;
        opts.n_kv_head = 1;
        opts.d_k = opts.d_v = QUIRE_HEAD_DIM_MAX;
        opts.rotate_k = opts.rotate_v = QUIRE_HEAD_DIM_MAX;
        check_case(&opts);
    }
}
