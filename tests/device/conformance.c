/* conformance.c - see conformance.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/conformance.h"
#include "rounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const conformance_device *conformance;
quire_rng conformance_rng;

/* The number of formats is no multiple of it, so all formats occur. */
#define SOFTWARE_STRIDE 3u

bool conformance_takes_case(void)
{
    static uint32_t n_cases;

    if (!test_takes_case()) {
        return false;
    }
    return TEST_CASE_STRIDE > 1 || !conformance->is_software ||
           getenv("QUIRE_TEST_ALL_CASES") != NULL || n_cases++ % SOFTWARE_STRIDE == 0;
}

quire_device *conformance_open(const fixture *f)
{
    const fixture_run_opts run = { .n_threads = 1 };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *device = NULL;
    quire_error err = { 0 };

    opts.attn = fixture_workspace_opts(f, &run);
    if (conformance->open(&device, &opts, &err) != QUIRE_OK) {
        fail_msg("%s: %s", conformance->name, err.message);
    }
    return device;
}

static void copy_all(const device_pages *p, bool is_back)
{
    const quire_device_piece piece = { .to = is_back ? &p->pinned : &p->pages,
                                       .from = is_back ? &p->pages : &p->pinned,
                                       .bytes = p->f->store_bytes };

    assert_int_equal(quire_device_copy(p->device, &piece, 1), QUIRE_OK);
}

void device_pages_open(device_pages *p, const fixture *f, const quire_attn_batch *batch)
{
    quire_device_info info;

    *p = (device_pages){ .f = f, .device = conformance_open(f) };
    assert_int_equal(quire_device_alloc(p->device, QUIRE_DEVICE_PAGES, f->store_bytes, &p->pages),
                     QUIRE_OK);
    assert_int_equal(quire_device_alloc(p->device, QUIRE_DEVICE_PINNED, f->store_bytes, &p->pinned),
                     QUIRE_OK);
    memcpy(p->pinned.host, f->store, f->store_bytes);
    copy_all(p, false);
    quire_device_info_get(p->device, &info);
    p->addr = fixture_take((f->n_pages + 1u) * sizeof(*p->addr));
    p->addr[0] = (quire_page_addr){ .extent = NULL };
    for (uint32_t i = 1; i <= f->n_pages; i++) {
        p->addr[i] =
            (quire_page_addr){ .extent = p->pages.addr + (f->page_addr[i].extent - f->store),
                               .slot = f->page_addr[i].slot,
                               .memory = info.memory };
    }
    p->batch = batch != NULL ? *batch : f->batch;
    p->batch.page_addr = p->addr;
}

void device_pages_close(device_pages *p)
{
    (void)quire_device_sync(p->device); /* copies that no one has waited for use the memory */
    quire_device_free(p->device, &p->pages);
    quire_device_free(p->device, &p->pinned);
    quire_device_close(p->device);
    free(p->addr);
}

void device_pages_back(const device_pages *p)
{
    copy_all(p, true);
    assert_int_equal(quire_device_sync(p->device), QUIRE_OK);
    memcpy(p->f->store, p->pinned.host, p->f->store_bytes);
}

/* enter, append and attn, leave. The caller's rows are gone when the work is done. */
static void step(const device_pages *p, quire_attn_layer *layer, bool has_append, uint32_t call)
{
    quire_attn_layer own;

    assert_int_equal(quire_device_check(p->device, layer), QUIRE_OK);
    assert_int_equal(quire_device_enter(p->device, layer, &own), QUIRE_OK);
    if (has_append) {
        quire_device_append(p->device, &own, 0, 1);
    }
    quire_device_attn(p->device, &own, call, 0, 1);
    assert_int_equal(quire_device_leave(p->device, layer, &own), QUIRE_OK);
}

void device_pages_attend(const device_pages *p, bool has_append, float *out)
{
    const fixture *f = p->f;
    const fixture_opts *o = &f->opts;
    const size_t row_floats = (size_t)o->n_head * o->d_v;
    quire_attn_layer layer = f->layer;
    float *padded = fixture_take(f->n_rows * layer.out_stride * sizeof(float));
    float *k_new = NULL, *v_new = NULL;

    layer.out = padded;
    if (has_append) {
        layer.k_new_stride = (size_t)o->n_kv_head * o->d_k;
        layer.v_new_stride = (size_t)o->n_kv_head * o->d_v;
        k_new = fixture_new_rows(f, &p->batch, f->k[0], (uint32_t)layer.k_new_stride);
        layer.k_new = k_new;
        if (o->n_v > 0) {
            v_new = fixture_new_rows(f, &p->batch, f->v[0], (uint32_t)layer.v_new_stride);
            layer.v_new = v_new;
        }
    }
    assert_int_equal(quire_device_plan(p->device, &p->batch), QUIRE_OK);
    step(p, &layer, has_append, 0);
    for (uint32_t s = 0; s < p->batch.n_seqs; s++) {
        for (uint32_t i = 0; i < p->batch.seqs[s].n_rows; i++) {
            const size_t row = p->batch.seqs[s].first_row + i;

            memcpy(out + row * row_floats, padded + row * layer.out_stride,
                   row_floats * sizeof(float));
        }
    }
    free(k_new);
    free(v_new);
    free(padded);
}

int conformance_run(const conformance_device *device)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conformance_memory),       cmocka_unit_test(conformance_order),
        cmocka_unit_test(conformance_refusals),     cmocka_unit_test(conformance_formats),
        cmocka_unit_test(conformance_heads),        cmocka_unit_test(conformance_groups),
        cmocka_unit_test(conformance_lengths),      cmocka_unit_test(conformance_pages),
        cmocka_unit_test(conformance_sources),      cmocka_unit_test(conformance_prefix),
        cmocka_unit_test(conformance_hot),          cmocka_unit_test(conformance_layers),
        cmocka_unit_test(conformance_magnitudes),   cmocka_unit_test(conformance_shared),
        cmocka_unit_test(conformance_bits),         cmocka_unit_test(conformance_damage),
        cmocka_unit_test(conformance_append),       cmocka_unit_test(conformance_append_bytes),
        cmocka_unit_test(conformance_steps),        cmocka_unit_test(conformance_joint_formats),
        cmocka_unit_test(conformance_joint_layers), cmocka_unit_test(conformance_joint_bits),
        cmocka_unit_test(conformance_joint_append), cmocka_unit_test(conformance_joint_refusals),
        cmocka_unit_test(conformance_second),       cmocka_unit_test(conformance_biases),
    };
    int rc;

    conformance = device;
    conformance_rng.state = fixture_seed();
    rc = cmocka_run_group_tests_name(device->name, tests, NULL, NULL);
    return rc == 0 && device->finish != NULL ? device->finish() : rc;
}
