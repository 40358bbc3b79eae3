/* test_offload_stream.c - the device in front of another that streams pages from a file: each layer
 * of a step finds the bytes of its part, in steps that read all, in steps whose rows choose pages,
 * and in steps that go on with some of their rows.
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

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define N_PAGES   24u /* full ones */
#define N_STRIPES 4u
#define FIRST_END (N_STRIPES * QUIRE_OFFLOAD_STRIPE * PART_BYTES) /* of part 0 in the file */

/* The operating system's calls; reads of part 0 may be held. */
typedef struct held_disk {
    quire_file_ops ops;
    atomic_bool holds;
    atomic_uint n_held;
    atomic_uint n_ended; /* of these */
} held_disk;

typedef struct scene {
    quire_cache *cache;
    quire_offload *offload;
    quire_attn_device inner;
    quire_attn_device device;
    held_disk disk;
    quire_seq_id seq;
    quire_seq_table table;
    quire_page_id pages[N_PAGES];
    quire_attn_batch batch; /* that the inner device has planned */
    bool needs;             /* run() names pages of layers that are not dense, and reads these */
    bool lets_go;           /* and then the reads that are held end */
} scene;

static ssize_t held_pread(void *ctx, int fd, void *buffer, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();
    held_disk *d = ctx;
    const bool is_held = offset < FIRST_END && atomic_load(&d->holds);
    ssize_t n_read;

    if (is_held) {
        (void)atomic_fetch_add(&d->n_held, 1);
        while (atomic_load(&d->holds)) {
            test_doze_ms();
        }
    }
    n_read = os->pread(os->ctx, fd, buffer, n, offset);
    (void)atomic_fetch_add(&d->n_ended, is_held ? 1 : 0);
    return n_read;
}

/* ---- the inner device ---- */

static unsigned char byte_of(uint32_t number, uint32_t page, uint32_t part)
{
    (void)number;
    return (unsigned char)(1 + page * N_PARTS + part);
}

static void check_page(const scene *s, uint32_t i, uint32_t part)
{
    const quire_page_addr *addr = &s->batch.page_addr[s->pages[i]];
    const unsigned char *at = addr->extent + offload_part_offset(part) + addr->slot * PART_BYTES;

    assert_int_equal(addr->memory, QUIRE_MEMORY_HOST);
    for (size_t k = 0; k < PART_BYTES; k++) {
        assert_int_equal(at[k], byte_of(0, i, part));
    }
}

static int inner_plan(void *ctx, const quire_attn_batch *batch)
{
    ((scene *)ctx)->batch = *batch;
    return QUIRE_OK;
}

static void inner_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                      uint32_t n_threads)
{
    static const uint32_t chosen[] = { 0, 3, 4, 11 };
    scene *s = ctx;
    quire_page_id pages[4];

    (void)layer;
    (void)thread;
    (void)n_threads;
    for (uint32_t i = 0; i < 4; i++) {
        pages[i] = s->pages[chosen[i]];
    }
    if (s->needs && call >= N_DENSE) {
        quire_offload_pages_need(s->offload, pages, 4);
    }
    if (s->lets_go) {
        atomic_store(&s->disk.holds, false);
        while (atomic_load(&s->disk.n_ended) < atomic_load(&s->disk.n_held)) {
            test_doze_ms();
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        const unsigned char *kept = quire_offload_page_kept(s->offload, pages[i]);

        check_page(s, chosen[i], call);
        assert_int_equal(kept[0], byte_of(0, chosen[i], call));
    }
    for (uint32_t i = 0; (!s->needs || call < N_DENSE) && i < N_PAGES; i++) {
        check_page(s, i, call);
    }
}

static int inner_sync(void *ctx)
{
    (void)ctx;
    return QUIRE_OK;
}

/* ---- a sequence in the file ---- */

static void pages_fill(scene *s)
{
    offload_fill(s->cache, &s->seq, &s->table, N_PAGES, byte_of, 0);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        s->pages[i] = offload_page_of(&s->table, i);
    }
}

static void scene_open(scene *s)
{
    quire_offload_opts opts = {
        .inner = &s->inner, .file = { .capacity_bytes = FIRST_END * N_PARTS, .ops = &s->disk.ops }
    };

    *s = (scene){ .disk = { .ops = *quire_file_ops_default() } };
    s->disk.ops.pread = held_pread;
    s->disk.ops.ctx = &s->disk;
    s->inner = offload_inner(s, inner_plan, inner_run, inner_sync);
    offload_open(&s->cache, 2 * N_PAGES * PAGE_BYTES, &s->offload, &opts, true);
    s->device = quire_offload_device(s->offload);
    pages_fill(s);
    for (uint32_t i = 0; i < N_PAGES; i += QUIRE_OFFLOAD_STRIPE) {
        assert_int_equal(quire_offload_seq(s->offload, s->seq, 0), QUIRE_OFFLOAD_STRIPE);
    }
}

static void scene_close(scene *s)
{
    quire_cache_destroy(s->cache);
    quire_offload_close(s->offload);
}

/* ---- steps ---- */

/* Two sequences with the same pages, of which the first chooses. */
static void seqs_make(scene *s, quire_attn_seq seqs[2])
{
    for (uint32_t i = 0; i < 2; i++) {
        seqs[i] = (quire_attn_seq){ .tables = { { s->table.leaves, s->table.n_entries } },
                                    .n_tokens = N_PAGES * P + 1,
                                    .first_row = i,
                                    .n_rows = 1,
                                    .lanes = i == 0 ? s : NULL };
    }
}

static void plan(scene *s, const quire_attn_seq *seqs, uint32_t n_seqs, bool is_rest)
{
    const quire_attn_batch batch = { .seqs = seqs,
                                     .n_seqs = n_seqs,
                                     .page_tokens = P,
                                     .page_addr = quire_cache_page_addrs(s->cache),
                                     .is_rest = is_rest };

    assert_int_equal(s->device.plan(s->device.ctx, &batch), QUIRE_OK);
}

static quire_attn_layer layer_at(uint32_t part)
{
    const quire_attn_source source = { .lane = { .offset = offload_part_offset(part),
                                                 .page_stride = PART_BYTES } };

    return (quire_attn_layer){
        .n_k = 1, .n_v = 1, .k = { source }, .v = { source }, .k_store = source
    };
}

/* Layers [begin, end). */
static void run(scene *s, uint32_t begin, uint32_t end)
{
    for (uint32_t p = begin; p < end; p++) {
        const quire_attn_layer layer = layer_at(p);

        s->device.append(s->device.ctx, &layer, 0, 1);
        s->device.run(s->device.ctx, &layer, p, 0, 1);
    }
}

static void end(scene *s)
{
    assert_int_equal(s->device.sync(s->device.ctx), QUIRE_OK);
}

static void step(scene *s, const quire_attn_seq *seqs, uint32_t n_seqs)
{
    s->needs = n_seqs == 1 && seqs[0].lanes != NULL;
    plan(s, seqs, n_seqs, false);
    run(s, 0, N_PARTS);
    end(s);
}

static quire_offload_file_stats stats_of(const scene *s)
{
    quire_offload_stats stats;

    quire_offload_stats_get(s->offload, &stats);
    return stats.file;
}

/* Steps of both kinds in turns. */
static void test_steps(void **state)
{
    quire_attn_seq seqs[2];
    scene s;

    (void)state;
    scene_open(&s);
    seqs_make(&s, seqs);
    for (uint32_t i = 0; i < 3; i++) {
        step(&s, seqs, 2);
        step(&s, seqs, 1);
        step(&s, seqs, 1);
        step(&s, seqs + 1, 1);
    }
    assert_int_equal(stats_of(&s).chosen_total, 6 * (N_PARTS - N_DENSE) * 4);
    assert_int_equal(stats_of(&s).left_total, 6 * (N_PARTS - N_DENSE) * (N_PAGES - 4));
    scene_close(&s);
}

/* A step that reads all goes on with rows that choose, while part 0 is being read for the next
 * step: the rows find the pages of the last part. */
static void test_rest_chooses(void **state)
{
    const quire_attn_layer last = layer_at(N_PARTS - 1);
    quire_offload_file_stats before;
    quire_attn_seq seqs[2];
    scene s;

    (void)state;
    scene_open(&s);
    seqs_make(&s, seqs);
    step(&s, seqs, 1);
    before = stats_of(&s);
    s.needs = false;
    plan(&s, seqs, 2, false);
    run(&s, 0, N_PARTS - 1);
    atomic_store(&s.disk.holds, true);
    s.device.append(s.device.ctx, &last, 0, 1);
    while (atomic_load(&s.disk.n_held) == 0) {
        test_doze_ms();
    }
    plan(&s, seqs, 1, true);
    s.needs = s.lets_go = true;
    s.device.run(s.device.ctx, &last, N_PARTS - 1, 0, 1);
    end(&s);
    s.lets_go = false;
    assert_int_equal(stats_of(&s).chosen_total, before.chosen_total);
    assert_int_equal(stats_of(&s).left_total, before.left_total);
    step(&s, seqs, 1);
    step(&s, seqs, 2);
    scene_close(&s);
}

/* Rows of a step that choose go on with some of them: pages are counted once. */
static void test_rest_of_choosing_rows(void **state)
{
    const quire_attn_layer last = layer_at(N_PARTS - 1);
    quire_attn_seq seqs[2];
    scene s;

    (void)state;
    scene_open(&s);
    seqs_make(&s, seqs);
    seqs[1].lanes = &s;
    s.needs = true;
    plan(&s, seqs, 2, false);
    run(&s, 0, N_PARTS - 1);
    s.device.append(s.device.ctx, &last, 0, 1);
    plan(&s, seqs, 1, true);
    s.device.run(s.device.ctx, &last, N_PARTS - 1, 0, 1);
    end(&s);
    assert_int_equal(stats_of(&s).chosen_total, (N_PARTS - N_DENSE) * 4);
    assert_int_equal(stats_of(&s).left_total, (N_PARTS - N_DENSE) * (N_PAGES - 4));
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_rest_chooses),
        cmocka_unit_test(test_rest_of_choosing_rows),
    };

    return cmocka_run_group_tests_name("offload_stream", tests, test_dir_make, test_dir_remove);
}
