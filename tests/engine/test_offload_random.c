/* test_offload_random.c - random steps through the devices that stream pages from a file, or copy
 * them to a device from the host's memory and the file behind it: rows read all pages or choose
 * some, steps go on with some of their rows or are given up, pages go out and come back between
 * them, and reads are late or fail. A step that says nothing of a failure has found the bytes of
 * each part.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "directory.h"
#include "doze.h"
#include "offload_kit.h"
#include "seed.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define N_SEQS      3u
#define PAGES_MIN   9u
#define PAGES_MAX   32u /* of a sequence */
#define N_STOPS     6u
#define N_STEPS     60u
#define FILE_BYTES  (16 * QUIRE_OFFLOAD_STRIPE * PAGE_BYTES)
#define HOST_BYTES  (5 * QUIRE_OFFLOAD_STRIPE * PAGE_BYTES) /* with the stage of the file */
#define IDS_MAX     512u
#define QUEUE_MAX   4096u
#define CACHE_BYTES (2 * N_SEQS * PAGES_MAX * PAGE_BYTES)

typedef struct scene {
    quire_rng rng;
    quire_file_ops ops;
    bool reads_fail;     /* some of them */
    atomic_uint n_reads; /* of the disk */
    bool has_choice;     /* layer i reads part i, and rows may choose */
    quire_offload_stop stops[N_STOPS];
    quire_cache *cache;
    quire_offload *offload;
    quire_attn_device inner;
    quire_attn_device device;
    quire_seq_id seqs[N_SEQS];
    uint32_t n_pages[N_SEQS]; /* full ones */
    quire_seq_table tables[N_SEQS];
    quire_attn_seq rows[N_SEQS]; /* of the step at hand; first_row is the sequence's number */
    uint32_t n_rows;
    /* Below a device: its copies from the host's memory wait until a layer runs. */
    bool is_below;
    quire_page_memory memory;
    quire_page_piece queue[QUEUE_MAX];
    uint32_t n_queued;
    quire_page_addr taken[2][IDS_MAX]; /* addresses, by a plan */
    quire_attn_batch batch;            /* that the inner device has planned */
    uint32_t at;                       /* the layer at hand */
    uint64_t n_wrong;                  /* bytes of the step at hand */
    bool is_queued;                    /* the step at hand: its layers */
    uint32_t n_queued_steps;
} scene;

static ssize_t slow_pread(void *ctx, int fd, void *buffer, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();
    scene *s = ctx;
    const unsigned k = atomic_fetch_add(&s->n_reads, 1);

    if (k % 3 == 0) {
        test_doze_us(k * 7919 % 400);
    }
    return s->reads_fail && k % 50 == 17 ? -EIO : os->pread(os->ctx, fd, buffer, n, offset);
}

static bool one_in(scene *s, uint32_t n)
{
    return quire_rng_below(&s->rng, n) == 0;
}

/* ---- a device's memory ---- */

static void queue_run(scene *s)
{
    for (uint32_t i = 0; i < s->n_queued; i++) {
        memcpy(s->queue[i].to, s->queue[i].from, s->queue[i].bytes);
    }
    s->n_queued = 0;
}

static void *memory_map(void *ctx, size_t bytes)
{
    (void)ctx;
    return aligned_alloc(64, bytes);
}

static void memory_unmap(void *ctx, void *base, size_t bytes)
{
    (void)bytes;
    queue_run(ctx);
    free(base);
}

static int memory_copy(void *ctx, quire_page_copy kind, const quire_page_piece *pieces, uint32_t n)
{
    scene *s = ctx;

    assert_true(s->n_queued + n <= QUEUE_MAX);
    memcpy(s->queue + s->n_queued, pieces, n * sizeof *pieces);
    s->n_queued += n;
    if (kind == QUIRE_PAGE_COPY_IN || kind == QUIRE_PAGE_COPY_OUT) {
        queue_run(s);
    }
    return QUIRE_OK;
}

/* ---- the inner device ---- */

static unsigned char byte_of(uint32_t seq, uint32_t page, uint32_t part)
{
    return (unsigned char)((((seq * PAGES_MAX) + page) * N_PARTS + part) * 2654435761u >> 24);
}

static quire_page_id page_of(const scene *s, uint32_t seq, uint32_t i)
{
    return offload_page_of(&s->tables[seq], i);
}

/* Page i of a sequence, by a source of the layer at hand. */
static void page_check(scene *s, uint32_t seq, uint32_t i, const quire_attn_source *source,
                       uint32_t part)
{
    const quire_page_addr *addrs = source->is_second ? s->batch.page_addr_2 : s->batch.page_addr;
    const quire_page_addr *now = &addrs[page_of(s, seq, i)];
    const quire_page_addr *addr = s->is_below && now->memory != QUIRE_MEMORY_HOST
                                      ? &s->taken[source->is_second][page_of(s, seq, i)]
                                      : now;
    const unsigned char *at = addr->extent + offload_part_offset(part) + addr->slot * PART_BYTES;

    assert_int_equal(addr->memory, now->memory);
    assert_int_not_equal(addr->memory, QUIRE_MEMORY_OFFLOADED);
    for (size_t k = 0; k < PART_BYTES; k++) {
        s->n_wrong += at[k] != byte_of(seq, i, part);
    }
    if (s->has_choice) {
        const unsigned char *kept = quire_offload_page_kept(s->offload, page_of(s, seq, i));

        assert_true(kept == NULL || kept[0] == byte_of(seq, i, part));
    }
}

static int inner_plan(void *ctx, const quire_attn_batch *batch)
{
    scene *s = ctx;
    const uint32_t n = quire_cache_page_id_end(s->cache);

    s->batch = *batch;
    assert_true(n <= IDS_MAX);
    if (s->is_below) {
        memcpy(s->taken[0], batch->page_addr, n * sizeof *batch->page_addr);
        if (batch->page_addr_2 != NULL) {
            memcpy(s->taken[1], batch->page_addr_2, n * sizeof *batch->page_addr);
        }
    }
    return QUIRE_OK;
}

/* The pages that a row reads: all, or some that it chooses, in two calls. */
static uint32_t row_pages(scene *s, const quire_attn_seq *row, uint32_t numbers[PAGES_MAX])
{
    const bool is_choosing = row->lanes != NULL && s->at >= N_DENSE;
    quire_page_id pages[PAGES_MAX];
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_pages[row->first_row]; i++) {
        if (!is_choosing || one_in(s, 4)) {
            pages[n] = page_of(s, row->first_row, i);
            numbers[n++] = i;
        }
    }
    if (is_choosing) {
        quire_offload_pages_need(s->offload, pages, n / 2);
        quire_offload_pages_need(s->offload, pages + n / 2, n - n / 2);
    }
    return n;
}

static void inner_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                      uint32_t n_threads)
{
    scene *s = ctx;
    const quire_offload_stop *stop = &s->stops[s->at];

    (void)call;
    (void)thread;
    (void)n_threads;
    queue_run(s);
    for (uint32_t r = 0; r < s->batch.n_seqs; r++) {
        const quire_attn_seq *row = &s->batch.seqs[r];
        uint32_t numbers[PAGES_MAX];
        const uint32_t n = row_pages(s, row, numbers);

        for (uint32_t i = 0; i < n; i++) {
            page_check(s, row->first_row, numbers[i], &layer->k[0], stop->parts[0]);
            page_check(s, row->first_row, numbers[i], &layer->v[0], stop->parts[stop->n - 1]);
        }
    }
}

static bool inner_queues(void *ctx)
{
    (void)ctx;
    return true;
}

static void inner_queue(void *ctx, const quire_attn_layer *layer, uint32_t call, unsigned what)
{
    const scene *s = ctx;

    assert_true(s->is_queued);
    assert_int_equal(what, QUIRE_ATTN_QUEUE_RUN);
    inner_run(ctx, layer, call, 0, 1);
}

static int inner_sync(void *ctx)
{
    queue_run(ctx);
    return QUIRE_OK;
}

/* ---- sequences ---- */

static void seq_fill(scene *s, uint32_t seq)
{
    s->n_pages[seq] = PAGES_MIN + quire_rng_below(&s->rng, PAGES_MAX - PAGES_MIN + 1);
    offload_fill(s->cache, &s->seqs[seq], &s->tables[seq], s->n_pages[seq], byte_of, seq);
}

static void scene_open(scene *s)
{
    quire_offload_opts opts = { .inner = &s->inner,
                                .stops = s->stops,
                                .n_stops = N_STOPS,
                                .host_bytes = HOST_BYTES,
                                .file = { .capacity_bytes = FILE_BYTES, .ops = &s->ops } };

    s->ops = *quire_file_ops_default();
    s->ops.pread = slow_pread;
    s->ops.ctx = s;
    s->memory =
        (quire_page_memory){ .memory = s->is_below ? QUIRE_MEMORY_DEVICE : QUIRE_MEMORY_HOST,
                             .map = memory_map,
                             .unmap = memory_unmap,
                             .copy = memory_copy,
                             .pin = memory_map,
                             .unpin = memory_unmap,
                             .ctx = s };
    s->inner = offload_inner(s, inner_plan, inner_run, inner_sync);
    s->inner.memory = s->memory.memory;
    s->inner.queues = s->is_below ? inner_queues : NULL;
    s->inner.queue = s->is_below ? inner_queue : NULL;
    opts.memory = s->is_below ? &s->memory : NULL;
    offload_open(&s->cache, CACHE_BYTES, &s->offload, &opts, s->has_choice);
    s->device = quire_offload_device(s->offload);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        seq_fill(s, i);
    }
}

/* Between two steps. */
static void pages_move(scene *s)
{
    const quire_seq_id seq = s->seqs[quire_rng_below(&s->rng, N_SEQS)];
    int rc = QUIRE_OK;

    switch (quire_rng_below(&s->rng, 12)) {
    case 0:
    case 6:
        rc = quire_offload_seq(s->offload, seq, 0);
        break;
    case 1:
        rc = quire_offload_back(s->offload, seq, 0);
        break;
    case 2:
        quire_offload_rest(s->offload);
        break;
    case 3:
        (void)quire_offload_settle(s->offload);
        break;
    case 4:
        rc = s->is_below ? quire_offload_raise(s->offload) : QUIRE_OK;
        break;
    case 5:
        quire_offload_attend(s->offload, one_in(s, 2));
        break;
    default: /* the next step may find the pages of the last one */
        break;
    }
    assert_true(rc >= 0 || rc == QUIRE_LIMIT || s->reads_fail);
}

/* ---- steps ---- */

static int plan(scene *s, bool is_rest)
{
    const quire_attn_batch batch = { .seqs = s->rows,
                                     .n_seqs = s->n_rows,
                                     .page_tokens = P,
                                     .page_addr = quire_cache_page_addrs(s->cache),
                                     .is_rest = is_rest };

    return s->device.plan(s->device.ctx, &batch);
}

static int step_begin(scene *s)
{
    s->n_wrong = 0;
    s->n_rows = 0;
    for (uint32_t i = 0; i < N_SEQS; i++) {
        if (one_in(s, 2) || (i + 1 == N_SEQS && s->n_rows == 0)) {
            s->rows[s->n_rows++] =
                (quire_attn_seq){ .tables = { { s->tables[i].leaves, s->tables[i].n_entries } },
                                  .n_tokens = s->n_pages[i] * P + 1,
                                  .first_row = i,
                                  .n_rows = 1,
                                  .lanes = s->has_choice && !one_in(s, 3) ? s : NULL };
        }
    }
    return plan(s, false);
}

/* The step goes on with some rows, at least one. Rows of a sequence that choose may be the last. */
static int step_rest(scene *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_rows; i++) {
        if (one_in(s, 2) || (i + 1 == s->n_rows && n == 0)) {
            s->rows[n] = s->rows[i];
            s->rows[n].lanes = s->has_choice && one_in(s, 4) ? s : s->rows[n].lanes;
            n++;
        }
    }
    s->n_rows = n;
    return plan(s, true);
}

/* Whether pages of the step's rows are not on the device. */
static bool has_offloaded(const scene *s)
{
    const quire_page_addr *addrs = quire_cache_page_addrs(s->cache);

    for (uint32_t r = 0; r < s->n_rows; r++) {
        for (uint32_t i = 0; i < s->n_pages[s->rows[r].first_row]; i++) {
            if (addrs[page_of(s, s->rows[r].first_row, i)].memory == QUIRE_MEMORY_OFFLOADED) {
                return true;
            }
        }
    }
    return false;
}

/* Layers may be queued in a step whose pages are all on the device. */
static void step_queue(scene *s)
{
    s->is_queued = s->is_below && !has_offloaded(s);
    if (s->is_below) {
        assert_int_equal(s->device.queues(s->device.ctx), s->is_queued);
    } else {
        assert_null(s->device.queue);
    }
    s->n_queued_steps += s->is_queued;
}

static int layer_run(scene *s, bool is_rest)
{
    const quire_offload_stop *stop = &s->stops[s->at];
    const quire_attn_source k = { .lane = { .offset = offload_part_offset(stop->parts[0]),
                                            .page_stride = PART_BYTES } };
    const quire_attn_source v = { .lane = { .offset = offload_part_offset(stop->parts[stop->n - 1]),
                                            .page_stride = PART_BYTES } };
    const bool stores = s->has_choice || (stop->n == 1 && !one_in(s, 4));
    quire_attn_layer layer = { .n_k = 1, .n_v = 1, .k = { k }, .v = { v } };

    if (stores) {
        layer.k_store = k;
        s->device.append(s->device.ctx, &layer, 0, 1);
    }
    if (is_rest) {
        QUIRE_TRY(step_rest(s));
    }
    if (s->is_queued && one_in(s, 2)) {
        s->device.queue(s->device.ctx, &layer, s->at, QUIRE_ATTN_QUEUE_RUN);
    } else {
        s->device.run(s->device.ctx, &layer, s->at, 0, 1);
    }
    return QUIRE_OK;
}

/* Returns whether the step has come to its end. */
static bool step(scene *s)
{
    const uint32_t end = one_in(s, 10) ? quire_rng_below(&s->rng, N_STOPS) : N_STOPS;
    const uint32_t rest = one_in(s, 2) ? N_STOPS - 1 : quire_rng_below(&s->rng, 3 * N_STOPS);
    int rc = step_begin(s);
    int end_rc;

    if (rc == QUIRE_OK) {
        step_queue(s);
    }
    for (s->at = 0; rc == QUIRE_OK && s->at < end; s->at++) {
        rc = layer_run(s, s->at == rest);
    }
    if (end < N_STOPS && one_in(s, 2)) {
        return false; /* given up */
    }
    end_rc = s->device.sync(s->device.ctx);
    rc = rc < 0 ? rc : end_rc;
    assert_true(rc == QUIRE_OK || s->reads_fail);
    if (rc == QUIRE_OK) {
        assert_int_equal(s->n_wrong, 0);
    }
    return rc == QUIRE_OK;
}

static void steps_run(uint64_t seed, const quire_offload_stop stops[N_STOPS], bool has_choice,
                      bool is_below, bool reads_fail)
{
    quire_offload_stats stats;
    uint32_t n_ended = 0;
    scene *s = calloc(1, sizeof *s);

    assert_non_null(s);
    s->rng.state = seed;
    s->has_choice = has_choice;
    s->is_below = is_below;
    memcpy(s->stops, stops, sizeof s->stops);
    scene_open(s);
    s->reads_fail = reads_fail;
    for (uint32_t i = 0; i < N_STEPS; i++) {
        pages_move(s);
        n_ended += step(s);
    }
    quire_offload_stats_get(s->offload, &stats);
    assert_true(n_ended > N_STEPS / 4);
    assert_int_equal(s->n_queued_steps > 0, is_below);
    assert_true(stats.file.read_bytes_total + stats.file.attended_bytes_total > 0);
    assert_int_equal(stats.file.chosen_total > 0, has_choice);
    assert_true(stats.file.left_total < N_STEPS * N_PARTS * N_SEQS * PAGES_MAX);
    quire_cache_destroy(s->cache);
    quire_offload_close(s->offload);
    free(s);
}

static void test_random_steps(void **state)
{
    static const quire_offload_stop own[N_STOPS] = { { 1, { 0 } }, { 1, { 1 } }, { 1, { 2 } },
                                                     { 1, { 3 } }, { 1, { 4 } }, { 1, { 5 } } };
    static const quire_offload_stop shared[][N_STOPS] = {
        { { 1, { 0 } },
          { 1, { 1 } },
          { 1, { 2 } },
          { 2, { 0, 2 } },
          { 2, { 0, 2 } },
          { 1, { 3 } } },
        { { 1, { 5 } }, { 1, { 5 } }, { 1, { 0 } }, { 1, { 5 } }, { 2, { 2, 5 } }, { 1, { 1 } } },
        { { 2, { 0, 1 } },
          { 2, { 2, 3 } },
          { 2, { 0, 1 } },
          { 2, { 2, 3 } },
          { 1, { 4 } },
          { 1, { 1 } } },
    };
    quire_rng rng = test_rng(7);
    const uint64_t n_ops = test_ops(2);

    (void)state;
    for (uint64_t i = 0; i < n_ops; i++) {
        steps_run(quire_rng_next(&rng), own, true, false, i % 2 == 1);
        steps_run(quire_rng_next(&rng), shared[i % 3], false, false, i % 2 == 1);
        steps_run(quire_rng_next(&rng), shared[i % 3], false, true, i % 2 == 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_steps),
    };

    return cmocka_run_group_tests_name("offload_random", tests, test_dir_make, test_dir_remove);
}
