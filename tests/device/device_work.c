/* device_work.c - see device_work.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/device_work.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static fixture shape;
static float *expected; /* its result */

static size_t result_bytes(void)
{
    return fixture_out_floats(&shape) * sizeof(float);
}

void device_work_make(const conformance_device *device)
{
    quire_rng rng = { .state = fixture_seed() };
    fixture_opts opts = fixture_defaults();

    conformance = device;
    opts.k_format = opts.v_format = QUIRE_FORMAT_Q4;
    opts.n_tokens[0] = 140;
    opts.n_rows[0] = 20;
    fixture_init(&shape, &opts, &rng);
    shape.layer.out_stride = (size_t)opts.n_head * opts.d_v;
    expected = fixture_take(result_bytes());
}

void device_work_expect(void)
{
    device_pages p;

    device_pages_open(&p, &shape, NULL);
    device_pages_attend(&p, true, expected);
    device_pages_close(&p);
}

void device_work_unmake(void)
{
    free(expected);
    fixture_free(&shape);
}

int device_work_pages_come(device_work *w)
{
    const quire_page_memory memory = quire_device_page_memory(w->device);
    const fixture *f = &shape;
    const quire_page_piece piece = { .to = memory.map(memory.ctx, f->store_bytes),
                                     .from = f->store,
                                     .bytes = f->store_bytes };

    if (piece.to == NULL) {
        return QUIRE_NOMEM;
    }
    for (uint32_t i = 1; i <= f->n_pages; i++) {
        w->addr[i] = (quire_page_addr){ .extent = piece.to + (f->page_addr[i].extent - f->store),
                                        .slot = f->page_addr[i].slot,
                                        .memory = QUIRE_MEMORY_DEVICE };
    }
    return memory.copy(memory.ctx, QUIRE_PAGE_COPY_IN, &piece, 1);
}

int device_work_pages_take(device_work *w)
{
    const fixture *f = &shape;
    const quire_device_piece piece = { .to = &w->pages,
                                       .from = &w->pinned,
                                       .bytes = f->store_bytes };
    int rc = quire_device_alloc(w->device, QUIRE_DEVICE_PAGES, f->store_bytes, &w->pages);

    if (rc == QUIRE_OK) {
        rc = quire_device_alloc(w->device, QUIRE_DEVICE_PINNED, f->store_bytes, &w->pinned);
    }
    if (rc < 0) {
        return rc;
    }
    memcpy(w->pinned.host, f->store, f->store_bytes);
    for (uint32_t i = 1; i <= f->n_pages; i++) {
        w->addr[i] =
            (quire_page_addr){ .extent = w->pages.addr + (f->page_addr[i].extent - f->store),
                               .slot = f->page_addr[i].slot,
                               .memory = QUIRE_MEMORY_DEVICE };
    }
    return quire_device_copy(w->device, &piece, 1);
}

int device_work_step(device_work *w)
{
    const fixture *f = &shape;
    quire_attn_batch batch = f->batch;
    quire_attn_layer layer = f->layer;
    quire_attn_layer own;
    int rc;

    batch.page_addr = w->addr;
    layer.k_new_stride = (size_t)f->opts.n_kv_head * f->opts.d_k;
    layer.v_new_stride = (size_t)f->opts.n_kv_head * f->opts.d_v;
    layer.k_new = w->k_new;
    layer.v_new = w->v_new;
    layer.out = w->out;
    rc = quire_device_plan(w->device, &batch);
    if (rc == QUIRE_OK) {
        rc = quire_device_enter(w->device, &layer, &own);
    }
    if (rc < 0) {
        return rc;
    }
    quire_device_append(w->device, &own, 0, 1);
    quire_device_attn(w->device, &own, 0, 0, 1);
    return quire_device_leave(w->device, &layer, &own);
}

int device_work_open(device_work *w)
{
    const fixture *f = &shape;
    const fixture_run_opts run = { .n_threads = 1 };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;

    *w = (device_work){ .device = NULL };
    opts.attn = fixture_workspace_opts(f, &run);
    w->addr = fixture_take((f->n_pages + 1u) * sizeof(*w->addr));
    w->addr[0] = (quire_page_addr){ .extent = NULL };
    w->k_new = fixture_new_rows(f, &f->batch, f->k[0], f->opts.n_kv_head * f->opts.d_k);
    w->v_new = fixture_new_rows(f, &f->batch, f->v[0], f->opts.n_kv_head * f->opts.d_v);
    w->out = fixture_take(f->n_rows * f->layer.out_stride * sizeof(float));
    return conformance->open(&w->device, &opts, NULL);
}

void device_work_close(device_work *w)
{
    if (w->device != NULL) {
        for (uint32_t i = 0; i < 2; i++) { /* work that no one has waited for uses the memory */
            (void)quire_device_sync(w->device); /* a driver refuses one call */
        }
        quire_device_free(w->device, &w->pages);
        quire_device_free(w->device, &w->pinned);
    }
    quire_device_close(w->device);
    free(w->addr);
    free(w->k_new);
    free(w->v_new);
    free(w->out);
}

void device_work_check(const device_work *w)
{
    assert_memory_equal(w->out, expected, result_bytes());
}

void device_work_late_copy(device_work *w, quire_page_memory *memory, unsigned char **page)
{
    static unsigned char bytes[DEVICE_WORK_LATE_BYTES] = { 1 };
    quire_page_piece piece = { .from = bytes, .bytes = sizeof bytes };

    assert_int_equal(device_work_open(w), QUIRE_OK);
    assert_int_equal(device_work_pages_take(w), QUIRE_OK);
    *memory = quire_device_page_memory(w->device);
    *page = memory->map(memory->ctx, sizeof bytes);
    assert_non_null(*page);
    piece.to = *page;
    piece.extent = *page;
    assert_int_equal(memory->copy(memory->ctx, QUIRE_PAGE_COPY_IN, &piece, 1), QUIRE_OK);
    assert_int_equal(device_work_step(w), QUIRE_OK);
}

int device_work_do(void)
{
    device_work w;
    int rc = device_work_open(&w);

    if (rc == QUIRE_OK) {
        rc = device_work_pages_take(&w);
    }
    if (rc == QUIRE_OK) {
        rc = device_work_step(&w);
    }
    if (rc == QUIRE_OK) {
        device_work_check(&w);
    }
    device_work_close(&w);
    return rc;
}
