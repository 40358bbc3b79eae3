/* conformance_joint.c - pages in two memories: attention of the device and of the CPU, joined,
 * against the definition; and facts that must not change a row's bits.
 *
 * SPDX-License-Identifier: MIT */
#include "device/conformance.h"
#include "device/device_tolerance.h"
#include "rounds.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define THREADS 3u

/* A fixture's pages on a device; those that move_some() chose in the host's memory. */
typedef struct joint_case {
    device_pages p;
    quire_device_joint *joint;
    quire_attn_device device;
} joint_case;

/* The CPU's pages are in the host's memory already. */
static bool has_two_memories(void)
{
    fixture_opts opts = fixture_defaults();
    quire_device_info info;
    quire_device *device;
    fixture f;

    fixture_init(&f, &opts, &conformance_rng);
    device = conformance_open(&f);
    quire_device_info_get(device, &info);
    quire_device_close(device);
    fixture_free(&f);
    return info.memory != QUIRE_MEMORY_HOST;
}

static void joint_open(joint_case *c, const fixture *f)
{
    const fixture_run_opts run = { .n_threads = THREADS };
    const quire_attn_workspace_opts opts = fixture_workspace_opts(f, &run);
    quire_error err = { 0 };

    device_pages_open(&c->p, f, NULL);
    if (quire_device_joint_open(&c->joint, c->p.device, &opts, &err) != QUIRE_OK) {
        fail_msg("%s: %s", conformance->name, err.message);
    }
    c->device = quire_device_joint_attention(c->joint);
}

static void joint_close(joint_case *c)
{
    quire_device_joint_close(c->joint);
    device_pages_close(&c->p);
}

/* Pages of an entry, in all groups, follow each other: the number of the entry among all. */
static uint32_t entry_of(const fixture *f, quire_page_id page)
{
    return (page - 1) / f->n_groups;
}

/* The address of an entry's page in the host's memory, where the fixture has its own. */
static void page_move(const joint_case *c, quire_page_id page)
{
    c->p.addr[page] = c->p.f->page_addr[page];
}

/* Move one in `of` entries to the host's memory, by chance, but those that rows are stored in.
 * Returns the number of pages. */
static uint32_t move_some(const joint_case *c, uint32_t of)
{
    const fixture *f = c->p.f;
    bool *stays = fixture_take((f->n_pages + 1u) * sizeof(*stays));
    uint32_t n = 0;

    for (uint32_t e = 0; e <= f->n_pages; e++) {
        stays[e] = quire_rng_below(&conformance_rng, of) != 0;
    }
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        const quire_attn_table *table = &f->seqs[s].tables[0];

        for (uint32_t i = 0; i < table->n_entries; i++) {
            const quire_page_entry *entry = fixture_entry(table, i);

            if (entry->page != QUIRE_PAGE_NULL &&
                fixture_entry_end(f, entry) > f->seqs[s].n_tokens - f->seqs[s].n_rows) {
                stays[entry_of(f, entry->page)] = true;
            }
        }
    }
    for (uint32_t page = 1; page <= f->n_pages; page++) {
        if (!stays[entry_of(f, page)]) {
            page_move(c, page);
            n++;
        }
    }
    free(stays);
    return n;
}

/* ---- a step ---- */

typedef struct joint_call {
    const quire_attn_device *device;
    const quire_attn_layer *layer;
    bool is_append;
    uint32_t thread;
    uint32_t n_threads;
} joint_call;

static void *call_run(void *arg)
{
    const joint_call *w = arg;

    if (w->is_append) {
        w->device->append(w->device->ctx, w->layer, w->thread, w->n_threads);
    } else {
        w->device->run(w->device->ctx, w->layer, 0, w->thread, w->n_threads);
    }
    return NULL;
}

static void call_all(const quire_attn_device *device, const quire_attn_layer *layer, bool is_append,
                     uint32_t n_threads)
{
    joint_call calls[THREADS];
    pthread_t threads[THREADS];

    for (uint32_t i = 0; i < n_threads; i++) {
        calls[i] = (joint_call){ device, layer, is_append, i, n_threads };
        if (i > 0) {
            assert_int_equal(pthread_create(&threads[i], NULL, call_run, &calls[i]), 0);
        }
    }
    (void)call_run(&calls[0]);
    for (uint32_t i = 1; i < n_threads; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

/* Attention of the batch's rows, dense, after K and V of the rows were stored, if has_append. */
static void attend(const joint_case *c, bool has_append, uint32_t n_threads, float *out)
{
    const fixture *f = c->p.f;
    const fixture_opts *o = &f->opts;
    quire_attn_layer layer = f->layer;
    float *k_new = NULL, *v_new = NULL;

    layer.out = out;
    layer.out_stride = (size_t)o->n_head * o->d_v;
    assert_int_equal(c->device.check(c->device.ctx, &layer), QUIRE_OK);
    assert_int_equal(c->device.plan(c->device.ctx, &c->p.batch), QUIRE_OK);
    if (has_append) {
        layer.k_new_stride = (size_t)o->n_kv_head * o->d_k;
        layer.v_new_stride = (size_t)o->n_kv_head * o->d_v;
        k_new = fixture_new_rows(f, &c->p.batch, f->k[0], (uint32_t)layer.k_new_stride);
        v_new = fixture_new_rows(f, &c->p.batch, f->v[0], (uint32_t)layer.v_new_stride);
        layer.k_new = k_new;
        layer.v_new = v_new;
        call_all(&c->device, &layer, true, n_threads);
    }
    call_all(&c->device, &layer, false, n_threads);
    assert_int_equal(c->device.sync(c->device.ctx), QUIRE_OK);
    free(k_new);
    free(v_new);
}

/* ---- against the definition ---- */

static attn_tolerance looser(attn_tolerance a, attn_tolerance b)
{
    return a.total > b.total ? a : b;
}

/* The tolerance of a pair of formats: the looser of the device's and the CPU's. */
static attn_tolerance pair_tolerance(const char *isa, quire_format k_format, quire_format v_format)
{
    return looser(device_tolerance_of(isa, k_format, v_format),
                  device_tolerance_of(quire_attn_isa(), k_format, v_format));
}

static attn_tolerance tolerance_of(const joint_case *c)
{
    const quire_attn_layer *layer = &c->p.f->layer;
    attn_tolerance limit = { 0 };
    quire_device_info info;

    quire_device_info_get(c->p.device, &info);
    for (uint32_t k = 0; k < layer->n_k; k++) {
        for (uint32_t v = 0; v < layer->n_v; v++) {
            limit = looser(limit, pair_tolerance(info.isa, layer->k[k].format, layer->v[v].format));
        }
        if (layer->n_v == 0) {
            limit = looser(limit, pair_tolerance(info.isa, layer->k[k].format, layer->k[k].format));
        }
    }
    return limit;
}

static void check_out(const joint_case *c, const float *out)
{
    const fixture *f = c->p.f;
    const fixture_opts *o = &f->opts;
    const attn_tolerance limit = tolerance_of(c);
    double *ref = fixture_take(fixture_out_floats(f) * sizeof(*ref));
    fixture_error error;

    assert_int_equal(quire_attn_ref(&f->batch, &f->layer, ref), QUIRE_OK);
    error = fixture_error_of(f, out, ref);
    if (!(error.total <= limit.total && error.worst_row <= limit.row)) {
        fail_msg("%s k=%s v=%s d=%u/%u heads=%u/%u page=%u tokens=%u rows=%u window=%u cap=%g: "
                 "errors %.3g, %.3g",
                 conformance->name, quire_format_name(o->k_format), quire_format_name(o->v_format),
                 o->d_k, o->d_v, o->n_head, o->n_kv_head, o->page_tokens, o->n_tokens[0],
                 o->n_rows[0], o->window, (double)o->softcap, error.total, error.worst_row);
    }
    free(ref);
}

/* Returns the number of pages in the host's memory. */
static uint32_t check_case(const fixture_opts *opts)
{
    uint32_t n_moved;
    joint_case c;
    float *out;
    fixture f;

    if (!conformance_takes_case()) {
        return 0;
    }
    fixture_init(&f, opts, &conformance_rng);
    out = fixture_take(fixture_out_floats(&f) * sizeof(*out));
    joint_open(&c, &f);
    n_moved = move_some(&c, 2);
    attend(&c, false, 1 + quire_rng_below(&conformance_rng, THREADS), out);
    check_out(&c, out);
    joint_close(&c);
    free(out);
    fixture_free(&f);
    return n_moved;
}

/* All formats of either side, hot and sealed. */
void conformance_joint_formats(void **state)
{
    fixture_opts opts = fixture_defaults();
    uint32_t n_moved = 0;

    (void)state;
    if (!has_two_memories()) {
        return;
    }
    opts.n_seqs = 2;
    opts.n_tokens[0] = 400;
    opts.n_rows[0] = 3;
    opts.n_tokens[1] = 500;
    opts.n_rows[1] = 1;
    for (unsigned i = 0; i < 3 * QUIRE_FORMAT_COUNT; i++) {
        const unsigned k = i % QUIRE_FORMAT_COUNT;

        opts.k_format = (quire_format)k;
        opts.v_format = (quire_format)((k + i / QUIRE_FORMAT_COUNT * 3) % QUIRE_FORMAT_COUNT);
        opts.sink_tiles = i / 3 % 2;
        opts.recent_tiles = i % 3;
        opts.n_punched = i / 2 % 3;
        n_moved += check_case(&opts);
    }
    assert_true(n_moved > 0);
}

/* Windows, chunks, softcap, sinks, mixed sources in several groups, dropped tokens, holes, V as a
 * part of K. */
void conformance_joint_layers(void **state)
{
    quire_rng *rng = &conformance_rng;
    uint32_t n_moved = 0;

    (void)state;
    if (!has_two_memories()) {
        return;
    }
    for (uint32_t i = 0; i < 30; i++) {
        fixture_opts opts = fixture_defaults();

        opts.n_kv_head = 1 + quire_rng_below(rng, 3);
        opts.n_head = opts.n_kv_head * (1 + quire_rng_below(rng, 8));
        opts.k_format = (quire_format)quire_rng_below(rng, QUIRE_FORMAT_COUNT);
        opts.v_format = (quire_format)quire_rng_below(rng, QUIRE_FORMAT_COUNT);
        opts.n_k = 1 + quire_rng_below(rng, 2);
        opts.n_v = i % 5 == 4 ? 0 : 1 + quire_rng_below(rng, 2);
        opts.n_k = opts.n_v == 0 ? 1 : opts.n_k;
        opts.page_tokens = 64u << quire_rng_below(rng, 2);
        opts.split_entries = quire_rng_below(rng, 4);
        opts.recent_tiles = quire_rng_below(rng, 4);
        opts.sink_tiles = quire_rng_below(rng, 2);
        opts.has_gates = quire_rng_below(rng, 2) != 0;
        opts.has_drops = quire_rng_below(rng, 2) != 0;
        opts.has_holes = quire_rng_below(rng, 2) != 0;
        opts.n_seqs = 1 + quire_rng_below(rng, 3);
        for (uint32_t s = 0; s < opts.n_seqs; s++) {
            opts.n_tokens[s] = 50 + quire_rng_below(rng, 700);
            opts.n_rows[s] = 1 + quire_rng_below(rng, quire_rng_below(rng, 2) != 0 ? 1 : 40);
        }
        fixture_vary(&opts, rng);
        n_moved += check_case(&opts);
    }
    assert_true(n_moved > 0);
}

/* ---- bits ---- */

/* A row alone, and any number of threads: the same bits. Without pages in the host's memory those
 * of the device. */
static void check_bits(const fixture *f)
{
    const size_t row_floats = (size_t)f->opts.n_head * f->opts.d_v;
    const size_t bytes = fixture_out_floats(f) * sizeof(float);
    float *all = fixture_take(bytes);
    float *one = fixture_take(bytes);
    quire_attn_batch batch;
    joint_case c;

    joint_open(&c, f);
    attend(&c, false, 2, all);
    device_pages_attend(&c.p, false, one);
    assert_memory_equal(all, one, bytes);
    (void)move_some(&c, 2);
    attend(&c, false, 1, all);
    attend(&c, false, THREADS, one);
    assert_memory_equal(all, one, bytes);
    batch = c.p.batch;
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        quire_attn_seq seq = f->seqs[s];

        seq.first_row += seq.n_rows - 1; /* its last row only */
        seq.n_rows = 1;
        c.p.batch.seqs = &seq;
        c.p.batch.n_seqs = 1;
        attend(&c, false, 2, one);
        assert_memory_equal(one + seq.first_row * row_floats, all + seq.first_row * row_floats,
                            row_floats * sizeof(float));
    }
    c.p.batch = batch;
    attend(&c, false, 2, one); /* the same again */
    assert_memory_equal(all, one, bytes);
    joint_close(&c);
    free(one);
    free(all);
}

/* Sequences share pages of both memories: cascades. */
void conformance_joint_bits(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    if (!has_two_memories()) {
        return;
    }
    opts.n_seqs = 4;
    opts.split_entries = 1;
    for (uint32_t s = 0; s < opts.n_seqs; s++) {
        opts.n_tokens[s] = 430 + 10 * s;
        opts.n_rows[s] = s < 3 ? 1 : 20;
    }
    for (unsigned format = 0; format < QUIRE_FORMAT_COUNT; format += TEST_STRIDE(3u)) {
        fixture f;

        opts.k_format = opts.v_format = (quire_format)format;
        fixture_vary(&opts, &conformance_rng);
        fixture_init(&f, &opts, &conformance_rng);
        for (uint32_t s = 1; s < opts.n_seqs; s++) {
            for (uint32_t g = 0; g < f.n_groups; g++) {
                for (uint32_t e = 0; e < 4; e++) {
                    *fixture_entry(&f.seqs[s].tables[g], e) =
                        *fixture_entry(&f.seqs[0].tables[g], e);
                }
            }
        }
        check_bits(&f);
        fixture_free(&f);
    }
}

/* K and V of rows are stored on the device. */
void conformance_joint_append(void **state)
{
    fixture_opts opts = fixture_defaults();

    (void)state;
    if (!has_two_memories()) {
        return;
    }
    opts.has_keys = false;
    opts.n_tokens[0] = 500;
    for (unsigned i = 0; i < 2 * QUIRE_FORMAT_COUNT; i += TEST_STRIDE(5u)) {
        joint_case c;
        float *out;
        fixture f;

        opts.k_format = opts.v_format = (quire_format)(i / 2);
        opts.n_rows[0] = i % 2 == 0 ? 1 : 90;
        fixture_init(&f, &opts, &conformance_rng);
        out = fixture_take(fixture_out_floats(&f) * sizeof(*out));
        joint_open(&c, &f);
        assert_true(move_some(&c, 2) > 0);
        attend(&c, true, 2, out);
        check_out(&c, out);
        joint_close(&c);
        free(out);
        fixture_free(&f);
    }
}

/* ---- refusals ---- */

static void check_opening(const fixture *f)
{
    const fixture_run_opts run = { .n_threads = 1 };
    quire_attn_workspace_opts opts = fixture_workspace_opts(f, &run);
    quire_device *device = conformance_open(f);
    quire_device_joint *joint;
    quire_error err;

    if (!has_two_memories()) {
        assert_int_equal(quire_device_joint_open(&joint, device, &opts, &err), QUIRE_UNSUPP);
        assert_non_null(strstr(err.message, "host's"));
    } else {
        opts.groups[1].like = 1;
        assert_int_equal(quire_device_joint_open(&joint, device, &opts, &err), QUIRE_UNSUPP);
        assert_non_null(strstr(err.message, "alike"));
        opts.groups[1].like = 0;
        opts.page_tokens = 63;
        assert_int_equal(quire_device_joint_open(&joint, device, &opts, NULL), QUIRE_INVAL);
    }
    assert_null(joint);
    quire_device_joint_close(NULL);
    quire_device_close(device);
}

void conformance_joint_refusals(void **state)
{
    fixture_opts opts = fixture_defaults();
    quire_attn_batch batch;
    joint_case c;
    fixture f;

    (void)state;
    opts.k_format = opts.v_format = QUIRE_FORMAT_Q4;
    opts.n_tokens[0] = 300;
    fixture_init(&f, &opts, &conformance_rng);
    check_opening(&f);
    if (has_two_memories()) {
        const quire_attn_table *tables = f.seqs[0].tables;

        joint_open(&c, &f);
        page_move(&c, fixture_entry(&tables[0], 1)->page); /* and not the hot one beside it */
        assert_int_equal(c.device.plan(c.device.ctx, &c.p.batch), QUIRE_UNSUPP);
        page_move(&c, fixture_entry(&tables[1], 1)->page);
        assert_int_equal(c.device.plan(c.device.ctx, &c.p.batch), QUIRE_OK);
        page_move(&c, fixture_entry(&tables[0], 4)->page); /* where the row is stored */
        page_move(&c, fixture_entry(&tables[1], 4)->page);
        assert_int_equal(c.device.plan(c.device.ctx, &c.p.batch), QUIRE_INVAL);
        batch = c.p.batch;
        batch.n_seqs = FIXTURE_SEQS_MAX + 1;
        assert_int_equal(c.device.plan(c.device.ctx, &batch), QUIRE_LIMIT);
        joint_close(&c);
    }
    fixture_free(&f);
}
