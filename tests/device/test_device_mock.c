/* test_device_mock.c - a mock device: the suite on a slow one; then the faults that it simulates:
 * delay, failed copies, loss, capacity.
 *
 * SPDX-License-Identifier: MIT */
#include "device/conformance.h"
#include "device/mock_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int open_slow(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    const quire_mock_device_opts slow = { .delay_ticks = 3 };

    return quire_mock_device_open(out, opts, &slow, err);
}

#define BYTES 1000u

typedef struct bench {
    quire_device *device;
    quire_device_memory pages;
    quire_device_memory in;
    quire_device_memory out;
} bench;

static void bench_open(bench *b, const quire_mock_device_opts *mock, uint64_t memory_bytes_max)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;

    opts.attn = fixture_small_opts();
    opts.memory_bytes_max = memory_bytes_max;
    assert_int_equal(quire_mock_device_open(&b->device, &opts, mock, NULL), QUIRE_OK);
    assert_int_equal(quire_device_alloc(b->device, QUIRE_DEVICE_PAGES, BYTES, &b->pages), QUIRE_OK);
    assert_int_equal(quire_device_alloc(b->device, QUIRE_DEVICE_PINNED, BYTES, &b->in), QUIRE_OK);
    assert_int_equal(quire_device_alloc(b->device, QUIRE_DEVICE_PINNED, BYTES, &b->out), QUIRE_OK);
    memset(b->in.host, 1, BYTES);
    memset(b->out.host, 2, BYTES);
}

static int copy(const bench *b, const quire_device_memory *to, const quire_device_memory *from)
{
    return quire_device_copy(b->device,
                             &(quire_device_piece){ .to = to, .from = from, .bytes = BYTES }, 1);
}

/* Pages cannot be seen by the host, and pinned memory holds no pages. */
static void test_memory(void **state)
{
    const quire_mock_device_opts none = { 0 };
    quire_device_memory more;
    quire_device_info info;
    bench b;

    (void)state;
    bench_open(&b, &none, 0);
    quire_device_info_get(b.device, &info);
    assert_true(info.free_bytes == UINT64_MAX); /* the CPU does not know */
    quire_device_close(b.device);
    bench_open(&b, &none, 4 * BYTES);
    assert_null(b.pages.host);
    assert_null(b.in.addr);
    quire_device_info_get(b.device, &info);
    assert_string_equal(info.name, "mock");
    assert_int_equal(info.memory, QUIRE_MEMORY_DEVICE);
    assert_int_equal(info.memory_bytes, 4 * BYTES);
    assert_int_equal(info.free_bytes, BYTES); /* the bench has three */
    assert_int_equal(quire_device_alloc(b.device, QUIRE_DEVICE_PAGES, BYTES + 1, &more),
                     QUIRE_NOMEM);
    assert_int_equal(quire_device_alloc(b.device, QUIRE_DEVICE_PAGES, BYTES, &more), QUIRE_OK);
    quire_device_info_get(b.device, &info);
    assert_int_equal(info.free_bytes, 0);
    quire_device_close(b.device);
}

/* An allocator that has no memory for more than so much. */
static void *bounded_alloc(void *ctx, size_t bytes)
{
    const quire_allocator *inner = quire_allocator_default();

    return bytes <= *(const size_t *)ctx ? inner->alloc(inner->ctx, bytes) : NULL;
}

static void bounded_free(void *ctx, void *base)
{
    const quire_allocator *inner = quire_allocator_default();

    (void)ctx;
    inner->free(inner->ctx, base);
}

/* Copies inside of a cache's pages, of which n are queued at once. Returns the status. */
static int copy_within(const quire_page_memory *memory, unsigned char *base, uint32_t n)
{
    quire_page_piece pieces[64];

    for (uint32_t i = 0; i < n; i++) {
        pieces[i] = (quire_page_piece){ .to = base + (size_t)(64 + i) * 64,
                                        .from = base + (size_t)i * 64,
                                        .bytes = 64 };
    }
    return memory->copy(memory->ctx, QUIRE_PAGE_COPY_WITHIN, pieces, n);
}

/* A copy inside the memory waits for room in the queue. Without that the device is lost: no caller
 * can go on without such a copy. Nor are failures forgotten when memory is given back. */
static void test_pages(void **state)
{
    const quire_mock_device_opts slow = { .delay_ticks = 1000 };
    const quire_mock_device_opts bad = { .delay_ticks = 1000, .copy_failure = 1.0 };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    size_t most_bytes = SIZE_MAX;
    const quire_allocator bounded = { .alloc = bounded_alloc,
                                      .free = bounded_free,
                                      .ctx = &most_bytes };

    (void)state;
    opts.attn = fixture_small_opts();
    opts.attn.allocator = &bounded;
    for (uint32_t i = 0; i < 3; i++) {
        quire_page_memory memory;
        quire_device *device;
        unsigned char *base, *other;

        assert_int_equal(quire_mock_device_open(&device, &opts, i < 2 ? &slow : &bad, NULL),
                         QUIRE_OK);
        memory = quire_device_page_memory(device);
        base = memory.map(memory.ctx, 64 * 256);
        other = memory.map(memory.ctx, 64);
        assert_int_equal(copy_within(&memory, base, 16), QUIRE_OK);
        assert_int_equal(quire_mock_device_n_queued(device), 16);
        most_bytes = 0;
        if (i < 2) {
            assert_int_equal(copy_within(&memory, base, i == 0 ? 8 : 40),
                             i == 0 ? QUIRE_OK : QUIRE_LOST);
            assert_true(quire_device_is_lost(device) == (i == 1));
        }
        most_bytes = SIZE_MAX;
        memory.unmap(memory.ctx, other, 64);
        assert_true(quire_device_is_lost(device) == (i > 0));
        memory.unmap(memory.ctx, base, 64 * 256);
        quire_device_close(device);
    }
}

/* Pieces that were queued before the queue lacked room are done when copy() says so: their memory
 * is the caller's again. */
static void test_no_room(void **state)
{
    const quire_mock_device_opts slow = { .delay_ticks = 1000 };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_page_piece pieces[100];
    size_t most_bytes = SIZE_MAX;
    const quire_allocator bounded = { .alloc = bounded_alloc,
                                      .free = bounded_free,
                                      .ctx = &most_bytes };

    (void)state;
    opts.attn = fixture_small_opts();
    opts.attn.allocator = &bounded;
    for (uint32_t is_out = 0; is_out < 2; is_out++) {
        quire_page_memory memory;
        quire_device *device;
        unsigned char *base, *pinned;

        assert_int_equal(quire_mock_device_open(&device, &opts, &slow, NULL), QUIRE_OK);
        memory = quire_device_page_memory(device);
        base = memory.map(memory.ctx, 64 * 256);
        pinned = memory.pin(memory.ctx, 64 * 256);
        assert_true(base != NULL && pinned != NULL);
        for (uint32_t i = 0; i < 100; i++) {
            unsigned char *page = base + (size_t)i * 64, *host = pinned + (size_t)i * 64;

            pieces[i] = (quire_page_piece){ .to = is_out ? host : page,
                                            .from = is_out ? page : host,
                                            .bytes = 64 };
        }
        assert_int_equal(copy_within(&memory, base, 64), QUIRE_OK); /* room for 64 pieces */
        assert_int_equal(quire_device_sync(device), QUIRE_OK);
        most_bytes = 0;
        assert_int_equal(memory.copy(memory.ctx,
                                     is_out ? QUIRE_PAGE_COPY_OUT : QUIRE_PAGE_COPY_FETCH, pieces,
                                     100),
                         QUIRE_NOMEM);
        assert_int_equal(quire_mock_device_n_queued(device), 0);
        most_bytes = SIZE_MAX;
        memory.unmap(memory.ctx, base, 64 * 256);
        memory.unpin(memory.ctx, pinned, 64 * 256);
        quire_device_close(device);
    }
}

/* Work is done when its time has come, and in order. */
static void test_delay(void **state)
{
    quire_mock_device_opts slow = { .delay_ticks = 2 };
    quire_device_event event;
    bench b;

    (void)state;
    bench_open(&b, &slow, 0);
    assert_int_equal(copy(&b, &b.pages, &b.in), QUIRE_OK);
    quire_mock_device_tick(b.device);
    slow.delay_ticks = 0; /* behind slow work all the same */
    quire_mock_device_set(b.device, &slow);
    assert_int_equal(copy(&b, &b.out, &b.pages), QUIRE_OK);
    assert_int_equal(b.out.host[0], 2);
    assert_int_equal(quire_mock_device_n_queued(b.device), 2);
    quire_mock_device_tick(b.device);
    assert_int_equal(quire_mock_device_n_queued(b.device), 0);
    assert_int_equal(b.out.host[BYTES - 1], 1);

    slow.delay_ticks = 1000;
    quire_mock_device_set(b.device, &slow);
    memset(b.in.host, 3, BYTES);
    assert_int_equal(copy(&b, &b.pages, &b.in), QUIRE_OK);
    assert_int_equal(copy(&b, &b.out, &b.pages), QUIRE_OK);
    assert_int_equal(quire_device_record(b.device, &event), QUIRE_OK);
    assert_int_equal(copy(&b, &b.pages, &b.out), QUIRE_OK);
    assert_int_equal(b.out.host[0], 1);
    assert_int_equal(quire_device_wait(b.device, event), QUIRE_OK); /* lets the time pass */
    assert_int_equal(b.out.host[0], 3);
    assert_int_equal(quire_mock_device_n_queued(b.device), 1); /* behind the event */
    quire_device_close(b.device);
}

/* A failed copy is reported once, by the first that waits for it; its target holds garbage. */
static void test_failures(void **state)
{
    quire_mock_device_opts faults = { .copy_failure = 1.0 };
    bench b;

    (void)state;
    bench_open(&b, &faults, 0);
    assert_int_equal(copy(&b, &b.out, &b.in), QUIRE_OK);
    assert_int_equal(quire_device_sync(b.device), QUIRE_IO);
    assert_int_equal(quire_device_sync(b.device), QUIRE_OK);
    assert_int_not_equal(b.out.host[0], 1);
    assert_int_not_equal(b.out.host[0], 2);
    faults.copy_failure = 0.0;
    quire_mock_device_set(b.device, &faults);
    assert_int_equal(copy(&b, &b.out, &b.in), QUIRE_OK);
    assert_int_equal(quire_device_sync(b.device), QUIRE_OK);
    assert_memory_equal(b.out.host, b.in.host, BYTES);
    quire_device_close(b.device);
}

/* The same seed gives the same faults, with and without delay. */
static void test_seed(void **state)
{
    int seen[2][40];
    uint32_t n_failed = 0;

    (void)state;
    for (uint32_t run = 0; run < 2; run++) {
        const quire_mock_device_opts faults = { .seed = 7,
                                                .copy_failure = 0.4,
                                                .delay_ticks = 5 * run };
        bench b;

        bench_open(&b, &faults, 0);
        for (uint32_t i = 0; i < 40; i++) {
            assert_int_equal(copy(&b, &b.out, &b.in), QUIRE_OK);
            seen[run][i] = quire_device_sync(b.device);
            n_failed += seen[run][i] != QUIRE_OK;
        }
        quire_device_close(b.device);
    }
    assert_memory_equal(seen[0], seen[1], sizeof(seen[0]));
    assert_true(n_failed > 10 && n_failed < 60);
}

/* From the loss on every call says so; memory and the device can still be given up. */
static void test_loss(void **state)
{
    const quire_mock_device_opts faults = { .lose_at = 3, .delay_ticks = 1 };
    quire_device_memory more;
    quire_device_event event;
    quire_device_info info;
    quire_attn_batch batch = { .page_tokens = 64 };
    quire_attn_layer layer = { .n_head = 1 };
    quire_attn_layer own;
    bench b;

    (void)state;
    bench_open(&b, &faults, 0);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(copy(&b, &b.out, &b.in), QUIRE_OK);
    }
    assert_int_equal(quire_device_record(b.device, &event), QUIRE_OK);
    assert_int_equal(quire_device_wait(b.device, event), QUIRE_LOST);
    quire_device_info_get(b.device, &info);
    assert_true(info.is_lost);
    assert_true(quire_device_is_lost(b.device));
    assert_int_equal(copy(&b, &b.out, &b.in), QUIRE_LOST);
    assert_int_equal(quire_device_record(b.device, &event), QUIRE_LOST);
    assert_int_equal(quire_device_sync(b.device), QUIRE_LOST);
    assert_int_equal(quire_device_alloc(b.device, QUIRE_DEVICE_PAGES, 1, &more), QUIRE_LOST);
    assert_int_equal(quire_device_check(b.device, &layer), QUIRE_LOST);
    assert_int_equal(quire_device_plan(b.device, &batch), QUIRE_LOST);
    assert_int_equal(quire_device_enter(b.device, &layer, &own), QUIRE_LOST);
    quire_device_append(b.device, &layer, 0, 1); /* nothing happens */
    quire_device_attn(b.device, &layer, 0, 0, 1);
    assert_int_equal(quire_device_leave(b.device, &layer, &own), QUIRE_LOST);
    quire_device_free(b.device, &b.pages);
    quire_device_close(b.device);
}

/* A device that is lost in the middle of a model's step: sync() says so, whichever piece it was. */
static void test_loss_in_step(void **state)
{
    fixture_opts opts = fixture_defaults();
    uint32_t n_lost = 0;
    fixture f;

    (void)state;
    conformance_rng.state = fixture_seed();
    fixture_init(&f, &opts, &conformance_rng);
    for (uint64_t at = 1; at <= 5; at++) {
        const quire_mock_device_opts faults = { .lose_at = at, .delay_ticks = 2 };
        quire_attn_layer layer = f.layer;
        quire_attn_device attention;
        device_pages p;
        int rc;

        conformance = &(conformance_device){ .name = "mock", .open = open_slow };
        device_pages_open(&p, &f, NULL); /* one copy */
        quire_mock_device_set(p.device, &faults);
        attention = quire_device_attention(p.device);
        layer.out = fixture_take(f.n_rows * layer.out_stride * sizeof(float));
        layer.k_new = f.keys;
        layer.v_new = NULL;
        rc = attention.plan(attention.ctx, &p.batch);
        if (rc == QUIRE_OK) {
            attention.append(attention.ctx, &layer, 0, 1);
            attention.run(attention.ctx, &layer, 0, 0, 1);
            rc = attention.sync(attention.ctx);
        }
        assert_int_equal(rc, at <= 3 ? QUIRE_LOST : QUIRE_OK);
        n_lost += rc == QUIRE_LOST;
        free(layer.out);
        device_pages_close(&p);
    }
    assert_int_equal(n_lost, 3); /* copy, append, attn */
    fixture_free(&f);
}

/* A device is lost while the host attends pages beside it: no result is made of the host's part
 * alone. */
static void test_loss_in_joint(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const fixture_run_opts run = { .n_threads = 1 };
    fixture_opts opts = fixture_defaults();
    quire_attn_workspace_opts limits;
    quire_attn_device attention;
    quire_device_joint *joint;
    quire_attn_layer layer;
    device_pages p;
    quire_page_id page;
    fixture f;

    (void)state;
    conformance_rng.state = fixture_seed();
    conformance = &(conformance_device){ .name = "mock", .open = open_slow };
    opts.n_tokens[0] = 300;
    fixture_init(&f, &opts, &conformance_rng);
    limits = fixture_workspace_opts(&f, &run);
    device_pages_open(&p, &f, NULL);
    page = fixture_entry(&f.seqs[0].tables[0], 0)->page;
    p.addr[page] = f.page_addr[page];
    assert_int_equal(quire_device_joint_open(&joint, p.device, &limits, NULL), QUIRE_OK);
    attention = quire_device_joint_attention(joint);
    layer = f.layer;
    layer.out_stride = (size_t)opts.n_head * opts.d_v;
    layer.out = fixture_take(fixture_out_floats(&f) * sizeof(float));
    for (size_t i = 0; i < fixture_out_floats(&f); i++) {
        layer.out[i] = 7.0f;
    }
    assert_int_equal(attention.plan(attention.ctx, &p.batch), QUIRE_OK);
    quire_mock_device_set(p.device, &faults);
    attention.run(attention.ctx, &layer, 0, 0, 1);
    assert_int_equal(attention.sync(attention.ctx), QUIRE_LOST);
    for (size_t i = 0; i < fixture_out_floats(&f); i++) {
        assert_true(layer.out[i] == 7.0f);
    }
    free(layer.out);
    quire_device_joint_close(joint);
    device_pages_close(&p);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),        cmocka_unit_test(test_delay),
        cmocka_unit_test(test_pages),         cmocka_unit_test(test_failures),
        cmocka_unit_test(test_no_room),       cmocka_unit_test(test_seed),
        cmocka_unit_test(test_loss),          cmocka_unit_test(test_loss_in_step),
        cmocka_unit_test(test_loss_in_joint),
    };
    const int rc = conformance_run(
        &(conformance_device){ .name = "mock", .open = open_slow, .rounds_as_cpu = true });

    return rc != 0 ? rc : cmocka_run_group_tests_name("mock faults", tests, NULL, NULL);
}
