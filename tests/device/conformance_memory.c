/* conformance_memory.c - memory, copies, events and errors of a device; the device in a model's
 * step.
 *
 * SPDX-License-Identifier: MIT */
#include "device/conformance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES 200000u

static quire_device *open_small(uint64_t memory_bytes_max)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *device = NULL;

    opts.attn = fixture_small_opts();
    opts.memory_bytes_max = memory_bytes_max;
    assert_int_equal(conformance->open(&device, &opts, NULL), QUIRE_OK);
    return device;
}

static quire_device_memory take(quire_device *device, quire_device_kind kind, uint64_t bytes)
{
    quire_device_memory memory;

    assert_int_equal(quire_device_alloc(device, kind, bytes, &memory), QUIRE_OK);
    assert_int_equal(memory.bytes, bytes);
    assert_int_equal((uintptr_t)memory.addr % 64, 0);
    assert_int_equal((uintptr_t)memory.host % 64, 0);
    if (kind == QUIRE_DEVICE_PINNED) {
        assert_non_null(memory.host);
    } else {
        assert_non_null(memory.addr);
    }
    return memory;
}

/* Bytes go to the device in shuffled pieces and come back in one. */
void conformance_memory(void **state)
{
    quire_device *device = open_small(3 * BYTES);
    quire_device_memory pages = take(device, QUIRE_DEVICE_PAGES, BYTES);
    quire_device_memory in = take(device, QUIRE_DEVICE_PINNED, BYTES);
    quire_device_memory out = take(device, QUIRE_DEVICE_PINNED, BYTES);
    quire_device_piece pieces[8];
    quire_device_memory more;
    quire_device_info info;

    (void)state;
    quire_device_info_get(device, &info);
    assert_int_equal(info.used_bytes, 3 * BYTES);
    assert_false(info.is_lost);
    assert_true(info.memory_bytes > 0 && info.memory_bytes <= 3 * BYTES);
    assert_int_equal(quire_device_alloc(device, QUIRE_DEVICE_PAGES, 1, &more), QUIRE_NOMEM);
    assert_int_equal(more.bytes, 0);
    for (uint32_t i = 0; i < BYTES; i++) {
        in.host[i] = (unsigned char)quire_rng_next(&conformance_rng);
    }
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t n = BYTES / 8;

        pieces[i] = (quire_device_piece){ .to = &pages,
                                          .to_offset = (uint64_t)(i * 3 % 8) * n,
                                          .from = &in,
                                          .from_offset = (uint64_t)i * n,
                                          .bytes = n };
    }
    assert_int_equal(quire_device_copy(device, pieces, 8), QUIRE_OK);
    assert_int_equal(quire_device_copy(device, pieces, 0), QUIRE_OK);
    assert_int_equal(
        quire_device_copy(device,
                          &(quire_device_piece){ .to = &out, .from = &pages, .bytes = BYTES }, 1),
        QUIRE_OK);
    assert_int_equal(quire_device_sync(device), QUIRE_OK);
    for (uint32_t i = 0; i < 8; i++) {
        assert_memory_equal(out.host + (i * 3 % 8) * (BYTES / 8), in.host + i * (BYTES / 8),
                            BYTES / 8);
    }
    quire_device_free(device, &pages);
    assert_int_equal(pages.bytes, 0);
    assert_null(pages.addr);
    quire_device_free(device, &pages); /* empty */
    quire_device_info_get(device, &info);
    assert_int_equal(info.used_bytes, 2 * BYTES);
    pages = take(device, QUIRE_DEVICE_PAGES, BYTES);
    quire_device_close(device); /* with memory that nobody has freed */
}

/* Copies are done in the order of the calls; an event comes after all copies before it. */
void conformance_order(void **state)
{
    quire_device *device = open_small(0);
    quire_device_memory pages = take(device, QUIRE_DEVICE_PAGES, 4096);
    quire_device_memory a = take(device, QUIRE_DEVICE_PINNED, 4096);
    quire_device_memory b = take(device, QUIRE_DEVICE_PINNED, 4096);
    quire_device_memory c = take(device, QUIRE_DEVICE_PINNED, 4096);
    const quire_device_piece steps[] = {
        { .to = &pages, .from = &a, .bytes = 4096 },
        { .to = &b, .from = &pages, .bytes = 4096 },
        { .to = &pages, .to_offset = 2048, .from = &pages, .bytes = 1024 },
        { .to = &c, .from = &pages, .bytes = 4096 },
    };
    quire_device_event events[4];

    (void)state;
    for (uint32_t i = 0; i < 4096; i++) {
        a.host[i] = (unsigned char)(i / 16);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(quire_device_copy(device, &steps[i], 1), QUIRE_OK);
        assert_int_equal(quire_device_record(device, &events[i]), QUIRE_OK);
    }
    assert_int_equal(quire_device_wait(device, events[1]), QUIRE_OK);
    assert_memory_equal(b.host, a.host, 4096);
    assert_int_equal(quire_device_wait(device, events[3]), QUIRE_OK);
    assert_memory_equal(c.host, a.host, 2048);
    assert_memory_equal(c.host + 2048, a.host, 1024);
    assert_int_equal(quire_device_wait(device, events[0]), QUIRE_OK); /* long done */
    assert_int_equal(quire_device_wait(device, 0), QUIRE_OK);
    assert_int_equal(quire_device_wait(device, UINT64_MAX), QUIRE_INVAL);
    quire_device_close(device);
}

/* Copies that cannot be queued return an error and change nothing. */
void conformance_refusals(void **state)
{
    quire_device *device = open_small(0);
    quire_device_memory pages = take(device, QUIRE_DEVICE_PAGES, 4096);
    quire_device_memory none;
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    const quire_device_piece bad[] = {
        { .to = &pages, .from = &pages, .bytes = 0 },
        { .to = &pages, .to_offset = 4000, .from = &pages, .bytes = 100 },
        { .to = &pages, .from = &pages, .from_offset = 5000, .bytes = 1 },
        { .to = &pages, .from = &pages, .from_offset = 64, .bytes = 65 },
        { .to = &pages, .to_offset = UINT64_MAX, .from = &pages, .bytes = 2 },
    };
    fixture_opts shape = fixture_defaults();
    quire_attn_batch batch;
    quire_attn_layer layer;
    device_pages p;
    quire_device *other;
    fixture f;

    (void)state;
    assert_int_equal(quire_device_alloc(device, QUIRE_DEVICE_PAGES, 0, &none), QUIRE_INVAL);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(quire_device_copy(device, &bad[i], 1), QUIRE_INVAL);
    }
    quire_device_close(device);
    quire_device_close(NULL);
    opts.attn.page_tokens = 63;
    assert_int_equal(conformance->open(&other, &opts, NULL), QUIRE_INVAL);
    assert_null(other);

    fixture_init(&f, &shape, &conformance_rng);
    device_pages_open(&p, &f, NULL);
    layer = f.layer;
    layer.d_k = 7;
    assert_int_equal(quire_device_check(p.device, &layer), QUIRE_INVAL);
    batch = p.batch;
    batch.page_tokens = 128;
    assert_int_equal(quire_device_plan(p.device, &batch), QUIRE_INVAL);
    batch = p.batch;
    p.addr[1].memory = QUIRE_MEMORY_OFFLOADED; /* of another memory */
    assert_int_equal(quire_device_plan(p.device, &batch), QUIRE_UNSUPP);
    device_pages_close(&p);
    fixture_free(&f);
}

/* The interface that a model's step uses gives the same bits as enter() and leave(). */
void conformance_steps(void **state)
{
    fixture_opts opts = fixture_defaults();
    quire_attn_device attention;
    quire_attn_layer layer;
    float *expected, *out;
    device_pages p;
    size_t bytes;
    fixture f;

    (void)state;
    opts.k_format = opts.v_format = QUIRE_FORMAT_Q4;
    opts.n_tokens[0] = 140;
    opts.n_rows[0] = 20;
    fixture_init(&f, &opts, &conformance_rng);
    f.layer.out_stride = (size_t)opts.n_head * opts.d_v;
    bytes = fixture_out_floats(&f) * sizeof(float);
    expected = fixture_take(bytes);
    out = fixture_take(bytes);
    device_pages_open(&p, &f, NULL);
    device_pages_attend(&p, true, expected);
    attention = quire_device_attention(p.device);
    layer = f.layer;
    layer.k_new_stride = (size_t)opts.n_kv_head * opts.d_k;
    layer.v_new_stride = (size_t)opts.n_kv_head * opts.d_v;
    layer.k_new = f.k[0] + 120 * layer.k_new_stride;
    layer.v_new = f.v[0] + 120 * layer.v_new_stride;
    layer.out = out;
    assert_int_equal(attention.check(attention.ctx, &layer), QUIRE_OK);
    assert_int_equal(attention.plan(attention.ctx, &p.batch), QUIRE_OK);
    attention.append(attention.ctx, &layer, 0, 1);
    attention.run(attention.ctx, &layer, 0, 0, 1);
    assert_int_equal(attention.sync(attention.ctx), QUIRE_OK);
    assert_memory_equal(out, expected, bytes);
    device_pages_close(&p);
    free(out);
    free(expected);
    fixture_free(&f);
}
