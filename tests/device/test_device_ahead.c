/* test_device_ahead.c - bytes on their way to pages beside steps on a mock: which steps have them
 * in front, order with other copies, late failures.
 *
 * SPDX-License-Identifier: MIT */
#include "device/conformance.h"
#include "device/device_ahead.h"
#include "device/mock_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB       ((size_t)1 << 20)
#define NO_SLOT   1000u /* of no page of the fixture */
#define BIG_BYTES (3 * MIB)

/* Two sequences whose pages lie in memory for pages of a slow mock. */
typedef struct bench {
    fixture f;
    quire_device *device;
    quire_page_memory memory;
    quire_attn_device attention;
    unsigned char *base; /* the fixture's store */
    unsigned char *big;  /* BIG_BYTES, of no sequence */
    quire_page_addr *addr;
    quire_attn_batch batches[2]; /* one sequence each */
    float *expected[2];          /* their results */
    float *out;
} bench;

static int open_slow(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    const quire_mock_device_opts slow = { .delay_ticks = 1000 };

    return quire_mock_device_open(out, opts, &slow, err);
}

static int copy(const bench *b, quire_page_copy kind, const quire_page_piece *piece)
{
    return b->memory.copy(b->memory.ctx, kind, piece, 1);
}

/* A part of an entry's page, from the fixture's store. */
static quire_page_piece part_of(const bench *b, uint32_t seq, uint32_t entry,
                                const quire_attn_lane *lane)
{
    const quire_page_id page = fixture_entry(&b->f.seqs[seq].tables[0], entry)->page;
    const quire_page_addr *addr = &b->f.page_addr[page];
    const unsigned char *from = addr->extent + lane->offset + addr->slot * lane->page_stride;

    return (quire_page_piece){ .to = b->base + (from - b->f.store),
                               .from = from,
                               .bytes = lane->page_stride,
                               .extent = b->addr[page].extent,
                               .slot = addr->slot };
}

/* Copy the pages of a sequence. Returns the first failure. */
static int pages_in(const bench *b, uint32_t seq)
{
    int rc = QUIRE_OK;

    for (uint32_t e = 0; e < b->f.seqs[seq].tables[0].n_entries && rc == QUIRE_OK; e++) {
        const quire_page_piece k = part_of(b, seq, e, &b->f.layer.k[0].lane);
        const quire_page_piece v = part_of(b, seq, e, &b->f.layer.v[0].lane);

        rc = copy(b, QUIRE_PAGE_COPY_IN, &k);
        rc = rc == QUIRE_OK ? copy(b, QUIRE_PAGE_COPY_IN, &v) : rc;
    }
    return rc;
}

static int plan(const bench *b, uint32_t seq)
{
    return b->attention.plan(b->attention.ctx, &b->batches[seq]);
}

/* Attention of the sequence that was planned, in layer number call. */
static void attend(bench *b, uint32_t call)
{
    quire_attn_layer layer = b->f.layer;

    layer.out = b->out;
    layer.out_stride = (size_t)b->f.opts.n_head * b->f.opts.d_v;
    b->attention.run(b->attention.ctx, &layer, call, 0, 1);
}

static size_t out_bytes(const bench *b)
{
    return (size_t)b->f.opts.n_head * b->f.opts.d_v * sizeof(float);
}

static int sync(const bench *b)
{
    return b->attention.sync(b->attention.ctx);
}

/* A whole step of one layer, with the right result. */
static void step(bench *b, uint32_t seq)
{
    memset(b->out, 0, out_bytes(b));
    assert_int_equal(plan(b, seq), QUIRE_OK);
    attend(b, 0);
    assert_int_equal(sync(b), QUIRE_OK);
    assert_memory_equal(b->out, b->expected[seq], out_bytes(b));
}

static void faults_set(const bench *b, double copy_failure)
{
    const quire_mock_device_opts faults = { .delay_ticks = 1000, .copy_failure = copy_failure };

    quire_mock_device_set(b->device, &faults);
}

static void expect(bench *b, uint32_t seq)
{
    const fixture_run_opts run = { .n_threads = 1 };

    b->batches[seq] = b->f.batch;
    b->batches[seq].seqs = &b->f.seqs[seq];
    b->batches[seq].n_seqs = 1;
    b->f.seqs[seq].first_row = 0; /* the rows are alike in place */
    b->expected[seq] = fixture_take(out_bytes(b));
    fixture_run(&b->f, &b->batches[seq], &run, b->expected[seq]);
    b->batches[seq].page_addr = b->addr;
}

/* The pages of the first sequence are there; those of the second one hold garbage. */
static void bench_open(bench *b)
{
    fixture_opts opts = fixture_defaults();
    unsigned char *garbage;
    quire_page_piece all;

    conformance_rng.state = fixture_seed();
    conformance = &(conformance_device){ .name = "mock", .open = open_slow };
    opts.n_seqs = 2;
    opts.n_tokens[0] = 300;
    opts.n_tokens[1] = 200;
    opts.n_rows[0] = opts.n_rows[1] = 1;
    *b = (bench){ .base = NULL };
    fixture_init(&b->f, &opts, &conformance_rng);
    b->device = conformance_open(&b->f);
    b->memory = quire_device_page_memory(b->device);
    b->attention = quire_device_attention(b->device);
    b->base = b->memory.map(b->memory.ctx, b->f.store_bytes);
    b->big = b->memory.map(b->memory.ctx, BIG_BYTES);
    assert_true(b->base != NULL && b->big != NULL);
    b->addr = fixture_take((b->f.n_pages + 1u) * sizeof(*b->addr));
    memset(b->addr, 0, sizeof(*b->addr));
    for (uint32_t i = 1; i <= b->f.n_pages; i++) {
        b->addr[i] = (quire_page_addr){ .extent = b->base + (b->f.page_addr[i].extent - b->f.store),
                                        .slot = b->f.page_addr[i].slot,
                                        .memory = b->memory.memory };
    }
    b->out = fixture_take(out_bytes(b));
    expect(b, 0);
    expect(b, 1);
    garbage = fixture_take(b->f.store_bytes);
    memset(garbage, 0xa5, b->f.store_bytes);
    all = (quire_page_piece){ .to = b->base, .from = garbage, .bytes = b->f.store_bytes };
    assert_int_equal(copy(b, QUIRE_PAGE_COPY_IN, &all), QUIRE_OK);
    free(garbage); /* the bytes have been taken */
    assert_int_equal(pages_in(b, 0), QUIRE_OK);
    step(b, 0);
    assert_int_equal(quire_device_sync(b->device), QUIRE_OK);
    assert_int_equal(quire_mock_device_n_queued(b->device), 0);
}

static void bench_close(bench *b)
{
    b->memory.unmap(b->memory.ctx, b->base, b->f.store_bytes);
    b->memory.unmap(b->memory.ctx, b->big, BIG_BYTES);
    quire_device_close(b->device);
    free(b->addr);
    free(b->out);
    free(b->expected[0]);
    free(b->expected[1]);
    fixture_free(&b->f);
}

/* Pages of the second sequence wait while a step of the first sequence computes. The pages are
 * queued behind the layers of this step, whose end waits for no page. A later step that reads the
 * pages finds their bytes. */
static void test_beside(void **state)
{
    bench b;

    (void)state;
    bench_open(&b);
    assert_int_equal(pages_in(&b, 1), QUIRE_OK);
    assert_int_equal(quire_mock_device_n_queued(b.device), 0);
    assert_int_equal(plan(&b, 0), QUIRE_OK);
    assert_int_equal(quire_mock_device_n_queued(b.device), 0);
    attend(&b, 0);
    assert_memory_equal(b.out, b.expected[0], out_bytes(&b));
    assert_int_equal(quire_mock_device_n_queued(b.device), 8); /* K and V of four pages */
    assert_int_equal(sync(&b), QUIRE_OK);
    assert_int_equal(quire_mock_device_n_queued(b.device), 8);
    step(&b, 1);
    assert_int_equal(quire_mock_device_n_queued(b.device), 0);
    step(&b, 0);
    bench_close(&b);
}

/* A step that reads a waiting page has all of them in front. The host does not wait for them. */
static void test_in_front(void **state)
{
    bench b;

    (void)state;
    bench_open(&b);
    assert_int_equal(pages_in(&b, 1), QUIRE_OK);
    assert_int_equal(plan(&b, 1), QUIRE_OK);
    assert_int_equal(quire_mock_device_n_queued(b.device), 8); /* K and V of four pages */
    attend(&b, 0);
    assert_int_equal(sync(&b), QUIRE_OK);
    assert_memory_equal(b.out, b.expected[1], out_bytes(&b));
    bench_close(&b);
}

/* A batch that is refused moves nothing: its tables may be wrong. Nor do the layers of a step
 * without a plan, as nobody waits for their results. */
static void test_refused(void **state)
{
    quire_attn_seq seq;
    quire_attn_batch bad;
    bench b;

    (void)state;
    bench_open(&b);
    assert_int_equal(pages_in(&b, 1), QUIRE_OK);
    seq = b.f.seqs[0];
    seq.tables[0].leaves = NULL;
    bad = b.batches[0];
    bad.seqs = &seq;
    assert_int_equal(b.attention.plan(b.attention.ctx, &bad), QUIRE_INVAL);
    attend(&b, 0);
    assert_int_equal(sync(&b), QUIRE_OK);
    assert_int_equal(quire_mock_device_n_queued(b.device), 0);
    step(&b, 1);
    bench_close(&b);
}

static void big_fill(unsigned char *bytes, unsigned char first)
{
    for (size_t i = 0; i < BIG_BYTES; i++) {
        bytes[i] = (unsigned char)(first + i / 1000);
    }
}

static quire_page_piece big_piece(const bench *b, const unsigned char *from)
{
    return (quire_page_piece){
        .to = b->big, .from = from, .bytes = BIG_BYTES, .extent = b->big, .slot = NO_SLOT
    };
}

static void big_check(const bench *b, const unsigned char *bytes)
{
    unsigned char *back = fixture_take(BIG_BYTES);
    const quire_page_piece out = { .to = back, .from = b->big, .bytes = BIG_BYTES };

    assert_int_equal(copy(b, QUIRE_PAGE_COPY_OUT, &out), QUIRE_OK);
    assert_memory_equal(back, bytes, BIG_BYTES);
    free(back);
}

/* Between two layers goes a part of 1 MiB. It is done in the time of the next layer, which does not
 * wait for it. */
static void test_parts(void **state)
{
    unsigned char *bytes = fixture_take(BIG_BYTES);
    quire_page_piece in;
    bench b;

    (void)state;
    bench_open(&b);
    big_fill(bytes, 1);
    in = big_piece(&b, bytes);
    assert_int_equal(copy(&b, QUIRE_PAGE_COPY_IN, &in), QUIRE_OK);
    for (uint32_t i = 0; i < 5; i++) { /* steps of one layer */
        step(&b, 0);
        assert_int_equal(quire_mock_device_n_queued(b.device), 1);
    }
    big_check(&b, bytes);
    free(bytes);
    bench_close(&b);
}

/* Copies from and to waiting pages see them: the last bytes win. More bytes than can wait go, too.
 * Without room for pinned memory they go at once. */
static void test_order(void **state)
{
    unsigned char *first = fixture_take(BIG_BYTES);
    unsigned char *second = fixture_take(BIG_BYTES);
    unsigned char *pinned;
    quire_page_piece in, within;
    bench b;

    (void)state;
    bench_open(&b);
    big_fill(first, 1);
    big_fill(second, 7);
    for (uint32_t i = 0; i < 5; i++) { /* 15 MiB */
        in = big_piece(&b, i % 2 == 0 ? first : second);
        assert_int_equal(copy(&b, QUIRE_PAGE_COPY_IN, &in), QUIRE_OK);
    }
    big_check(&b, first);
    in = big_piece(&b, second);
    assert_int_equal(copy(&b, QUIRE_PAGE_COPY_IN, &in), QUIRE_OK);
    within = (quire_page_piece){ .to = b.big, .from = b.big + MIB, .bytes = MIB };
    assert_int_equal(copy(&b, QUIRE_PAGE_COPY_WITHIN, &within), QUIRE_OK);
    memcpy(second, second + MIB, MIB);
    big_check(&b, second);
    in = big_piece(&b, first);
    assert_int_equal(copy(&b, QUIRE_PAGE_COPY_IN, &in), QUIRE_OK);
    pinned = b.memory.pin(b.memory.ctx, BIG_BYTES);
    assert_non_null(pinned);
    memcpy(pinned, second, BIG_BYTES);
    assert_int_equal(copy(&b, QUIRE_PAGE_COPY_FETCH,
                          &(quire_page_piece){ .to = b.big, .from = pinned, .bytes = BIG_BYTES }),
                     QUIRE_OK);
    big_check(&b, second);
    b.memory.unpin(b.memory.ctx, pinned, BIG_BYTES);
    in = big_piece(&b, first); /* and the memory is given back */
    assert_int_equal(copy(&b, QUIRE_PAGE_COPY_IN, &in), QUIRE_OK);
    free(first);
    free(second);
    bench_close(&b);
}

/* Pages of a slow mock, and as many bytes, all different in their place. */
typedef struct way {
    quire_device *device;
    quire_page_memory memory;
    size_t n_bytes;
    unsigned char *base;
    unsigned char *bytes;
    unsigned char *back;
} way;

static void way_open(way *w, size_t n_bytes, uint64_t memory_bytes_max)
{
    const quire_mock_device_opts slow = { .delay_ticks = 1000 };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_rng rng = { .state = 25 };

    opts.attn = fixture_small_opts();
    opts.memory_bytes_max = memory_bytes_max;
    assert_int_equal(quire_mock_device_open(&w->device, &opts, &slow, NULL), QUIRE_OK);
    w->memory = quire_device_page_memory(w->device);
    w->n_bytes = n_bytes;
    w->base = w->memory.map(w->memory.ctx, n_bytes);
    assert_non_null(w->base);
    w->bytes = fixture_take(n_bytes);
    w->back = fixture_take(n_bytes);
    for (size_t i = 0; i + sizeof(uint64_t) <= n_bytes; i += sizeof(uint64_t)) {
        const uint64_t x = quire_rng_next(&rng);

        memcpy(w->bytes + i, &x, sizeof(x));
    }
    memset(w->back, 0, n_bytes);
}

static void way_close(way *w)
{
    w->memory.unmap(w->memory.ctx, w->base, w->n_bytes);
    quire_device_close(w->device);
    free(w->bytes);
    free(w->back);
}

/* Copy bytes [at, + n) to the pages, or from them. */
static int way_copy(const way *w, bool is_in, size_t at, size_t n)
{
    unsigned char *page = w->base + at;

    return w->memory.copy(w->memory.ctx, is_in ? QUIRE_PAGE_COPY_IN : QUIRE_PAGE_COPY_OUT,
                          &(quire_page_piece){ .to = is_in ? page : w->back + at,
                                               .from = is_in ? w->bytes + at : page,
                                               .bytes = n },
                          1);
}

/* A device with less memory than could wait takes bytes at once, also those that pass each part of
 * the stage several times. */
static void test_small(void **state)
{
    static const struct {
        size_t n_bytes;
        uint64_t rest; /* of memory, beside the pages */
    } cases[] = { { 128, MIB }, { 5 * MIB + 1096, MIB }, { 9 * MIB + 8, 3 * MIB } };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const size_t n = cases[i].n_bytes;
        way w;

        way_open(&w, n, n + cases[i].rest);
        assert_int_equal(way_copy(&w, true, 0, n), QUIRE_OK);
        assert_int_equal(quire_mock_device_n_queued(w.device), 0);
        assert_int_equal(way_copy(&w, false, 0, n), QUIRE_OK);
        assert_memory_equal(w.bytes, w.back, n);
        way_close(&w);
    }
}

/* Without room the first part alone is waited for: the others are still on their way while the
 * host fills its room. Each part of the ring is used again when its copy is done, not earlier. */
static void test_ring(void **state)
{
    const size_t n = 3 * QUIRE_DEVICE_AHEAD_BYTES + 12345;
    const uint64_t n_parts = QUIRE_DEVICE_AHEAD_BYTES / QUIRE_DEVICE_AHEAD_PART;
    uint64_t n_left;
    way w;

    (void)state;
    way_open(&w, n, 0);
    assert_int_equal(way_copy(&w, true, 0, QUIRE_DEVICE_AHEAD_BYTES), QUIRE_OK);
    assert_int_equal(quire_mock_device_n_queued(w.device), 0); /* all of them wait */
    for (size_t at = QUIRE_DEVICE_AHEAD_BYTES; at < n; at += MIB) {
        const size_t bytes = n - at < MIB ? n - at : MIB;

        assert_int_equal(way_copy(&w, true, at, bytes), QUIRE_OK);
        n_left = quire_mock_device_n_queued(w.device);
        assert_true(at == QUIRE_DEVICE_AHEAD_BYTES ? n_left == n_parts - 1 : n_left > 0);
    }
    assert_int_equal(way_copy(&w, false, 0, n), QUIRE_OK);
    assert_memory_equal(w.bytes, w.back, n);
    way_close(&w);
}

/* Room comes back while other bytes wait: pieces of odd sizes, and events of other work, from call
 * to call. */
static void test_ring_events(void **state)
{
    quire_rng rng = { .state = fixture_seed() };
    const size_t n = 40 * MIB;
    size_t at = 0;
    way w;

    (void)state;
    way_open(&w, n, 0);
    while (at < n) {
        const size_t most = quire_rng_below(&rng, 3) == 0 ? 3 * MIB : 100000;
        const size_t bytes = 1 + quire_rng_below(&rng, (uint32_t)most);
        quire_device_event event;

        assert_int_equal(way_copy(&w, true, at, bytes < n - at ? bytes : n - at), QUIRE_OK);
        at += bytes < n - at ? bytes : n - at;
        if (quire_rng_below(&rng, 4) == 0) {
            assert_int_equal(quire_device_record(w.device, &event), QUIRE_OK);
            assert_int_equal(quire_device_wait(w.device, event), QUIRE_OK);
        }
    }
    assert_int_equal(way_copy(&w, false, 0, n), QUIRE_OK);
    assert_memory_equal(w.bytes, w.back, n);
    way_close(&w);
}

/* A copy that fails while the host waits for room, or for a part of the stage: the device is lost,
 * at whichever piece. */
static void test_ring_failure(void **state)
{
    (void)state;
    for (uint64_t lose_at = 1; lose_at < 28; lose_at++) {
        const quire_mock_device_opts fault = { .delay_ticks = 1000, .lose_at = lose_at };
        const quire_mock_device_opts garbage = { .delay_ticks = 1000, .copy_failure = 1.0 };
        const size_t n = QUIRE_DEVICE_AHEAD_BYTES + 5 * MIB;
        int rc;
        way w;

        way_open(&w, n, 0);
        quire_mock_device_set(w.device, lose_at < 27 ? &fault : &garbage);
        rc = way_copy(&w, true, 0, n);
        rc = rc == QUIRE_OK ? way_copy(&w, false, 0, n) : rc;
        assert_int_equal(rc, QUIRE_LOST); /* 13 parts there, 13 back */
        assert_true(quire_device_is_lost(w.device));
        way_close(&w);
    }
}

/* A step of a sequence; the result is not compared. */
static int step_try(bench *b, uint32_t seq)
{
    int rc = plan(b, seq);

    if (rc == QUIRE_OK) {
        attend(b, 0);
        rc = sync(b);
    }
    return rc;
}

/* A copy that fails beside a step loses the device as soon as somebody needs the pages, or waits
 * for all work. Steps and copies of other pages go on until then. */
static void test_failure(void **state)
{
    (void)state;
    for (int next = 0; next < 3; next++) {
        unsigned char back[64];
        bench b;

        bench_open(&b);
        faults_set(&b, 1.0);
        assert_int_equal(pages_in(&b, 1), QUIRE_OK);
        step(&b, 0);
        faults_set(&b, 0.0);
        step(&b, 0);
        assert_int_equal(quire_mock_device_n_queued(b.device), 8);
        faults_set(&b, 1.0);
        if (next == 0) {
            assert_int_equal(step_try(&b, 1), QUIRE_LOST);
        } else if (next == 1) {
            assert_int_equal(quire_device_sync(b.device), QUIRE_LOST);
        } else {
            quire_page_piece out = part_of(&b, 1, 0, &b.f.layer.k[0].lane);

            out.from = out.to;
            out.to = back;
            out.bytes = sizeof(back);
            assert_int_equal(copy(&b, QUIRE_PAGE_COPY_OUT, &out), QUIRE_LOST);
        }
        assert_true(quire_device_is_lost(b.device));
        assert_int_equal(pages_in(&b, 1), QUIRE_LOST);
        bench_close(&b);
    }
}

/* A copy that fails in front of the step that reads its pages. */
static void test_failure_in_step(void **state)
{
    bench b;

    (void)state;
    bench_open(&b);
    faults_set(&b, 1.0);
    assert_int_equal(pages_in(&b, 1), QUIRE_OK);
    assert_int_equal(step_try(&b, 1), QUIRE_LOST);
    bench_close(&b);
}

/* A failed fetch for a step is no loss where no page is on its way. */
static void test_failed_fetch(void **state)
{
    unsigned char *pinned;
    bench b;

    (void)state;
    bench_open(&b);
    pinned = b.memory.pin(b.memory.ctx, 64);
    memset(pinned, 1, 64);
    assert_int_equal(plan(&b, 0), QUIRE_OK);
    faults_set(&b, 1.0);
    assert_int_equal(copy(&b, QUIRE_PAGE_COPY_FETCH,
                          &(quire_page_piece){ .to = b.big, .from = pinned, .bytes = 64 }),
                     QUIRE_OK);
    attend(&b, 0);
    assert_int_equal(sync(&b), QUIRE_IO);
    assert_false(quire_device_is_lost(b.device));
    faults_set(&b, 0.0);
    step(&b, 0);
    b.memory.unpin(b.memory.ctx, pinned, 64);
    bench_close(&b);
}

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

/* Memory is given back to which bytes are on their way, there is no room in the queue, and a copy
 * before them has failed: the device is lost. Otherwise the bytes would go on waiting. */
static void test_no_room(void **state)
{
    const quire_mock_device_opts bad = { .delay_ticks = 1000, .copy_failure = 1.0 };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    size_t most_bytes = SIZE_MAX;
    const quire_allocator bounded = { .alloc = bounded_alloc,
                                      .free = bounded_free,
                                      .ctx = &most_bytes };
    unsigned char *base, *other, *pinned, bytes[64] = { 3 };
    quire_page_memory memory;
    quire_device *device;

    (void)state;
    opts.attn = fixture_small_opts();
    opts.attn.allocator = &bounded;
    assert_int_equal(quire_mock_device_open(&device, &opts, &bad, NULL), QUIRE_OK);
    memory = quire_device_page_memory(device);
    base = memory.map(memory.ctx, 64 * 100);
    other = memory.map(memory.ctx, 64);
    pinned = memory.pin(memory.ctx, 64);
    assert_true(base != NULL && other != NULL && pinned != NULL);
    memset(pinned, 1, 64);
    for (size_t i = 0; i < 100; i++) {
        const quire_page_piece in = { .to = base + i * 64, .from = bytes, .bytes = 64 };

        assert_int_equal(memory.copy(memory.ctx, QUIRE_PAGE_COPY_IN, &in, 1), QUIRE_OK);
    }
    assert_int_equal(memory.copy(memory.ctx, QUIRE_PAGE_COPY_FETCH,
                                 &(quire_page_piece){ .to = other, .from = pinned, .bytes = 64 },
                                 1),
                     QUIRE_OK);
    assert_int_equal(quire_mock_device_n_queued(device), 1);
    most_bytes = 0;
    memory.unmap(memory.ctx, base, 64 * 100);
    assert_true(quire_device_is_lost(device));
    most_bytes = SIZE_MAX;
    memory.unmap(memory.ctx, other, 64);
    memory.unpin(memory.ctx, pinned, 64);
    quire_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside),       cmocka_unit_test(test_in_front),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_parts),
        cmocka_unit_test(test_order),        cmocka_unit_test(test_small),
        cmocka_unit_test(test_failure),      cmocka_unit_test(test_failure_in_step),
        cmocka_unit_test(test_no_room),      cmocka_unit_test(test_failed_fetch),
        cmocka_unit_test(test_ring),         cmocka_unit_test(test_ring_events),
        cmocka_unit_test(test_ring_failure),
    };

    return cmocka_run_group_tests_name("device_ahead", tests, NULL, NULL);
}
