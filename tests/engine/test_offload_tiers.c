/* test_offload_tiers.c - slots of offloaded pages in the host's memory and in the file behind it:
 * which stripe goes down, ways back, bounds, disks that fail, and random moves with faults.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "directory.h"
#include "rounds.h"
#include "seed.h"

#include "offload/offload_tiers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define N_PARTS 6u
#define STRIPE  QUIRE_OFFLOAD_STRIPE

static const size_t part_bytes[N_PARTS] = { 960, 1024, 704, 1024, 960, 1024 };

#define PAGE_BYTES   ((size_t)(960 + 1024 + 704 + 1024 + 960 + 1024))
#define STRIPE_BYTES (STRIPE * PAGE_BYTES)      /* in the host's memory */
#define FILE_BYTES   (N_PARTS * (uint64_t)8192) /* of a stripe there, padded */
#define STAGE_BYTES  (2 * (uint64_t)8192)       /* for a stripe of the file */

/* Pinned memory that counts, and a disk that fails by the word of the test. */
typedef struct world {
    size_t pinned_bytes;
    size_t pinned_most;
    size_t left; /* that can be pinned */
    quire_file_ops ops;
    bool fails_writes;
    bool damages; /* the next write, once */
    bool fails_reads;
} world;

static void *world_pin(void *ctx, size_t bytes)
{
    world *w = ctx;

    if (bytes > w->left) {
        return NULL;
    }
    w->left -= bytes;
    w->pinned_bytes += bytes;
    w->pinned_most = w->pinned_bytes > w->pinned_most ? w->pinned_bytes : w->pinned_most;
    return malloc(bytes);
}

static void world_unpin(void *ctx, void *base, size_t bytes)
{
    world *w = ctx;

    w->left += bytes;
    w->pinned_bytes -= bytes;
    free(base);
}

static int world_copy(void *ctx, quire_page_copy kind, const quire_page_piece *pieces, uint32_t n)
{
    (void)ctx;
    assert_int_equal(kind, QUIRE_PAGE_COPY_OUT);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    }
    return QUIRE_OK;
}

static ssize_t world_pwrite(void *ctx, int fd, const void *buffer, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();
    world *w = ctx;

    if (w->fails_writes) {
        return -ENOSPC;
    }
    if (w->damages) {
        ((unsigned char *)(uintptr_t)buffer)[17] ^= 4; /* the file's bounce buffer */
        w->damages = false;
    }
    return os->pwrite(os->ctx, fd, buffer, n, offset);
}

static ssize_t world_pread(void *ctx, int fd, void *buffer, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();

    return ((world *)ctx)->fails_reads ? -EIO : os->pread(os->ctx, fd, buffer, n, offset);
}

static quire_offload_tiers *tiers_of(world *w, uint64_t host_bytes, uint64_t file_bytes)
{
    const quire_page_memory memory = {
        .copy = world_copy, .pin = world_pin, .unpin = world_unpin, .ctx = w
    };
    const quire_offload_file_opts file = { .dir = file_bytes > 0 ? test_dir : NULL,
                                           .capacity_bytes = file_bytes,
                                           .n_parts = N_PARTS,
                                           .part_bytes = part_bytes,
                                           .extent_pages = 1,
                                           .reads_kind = QUIRE_READS_POOL,
                                           .ops = &w->ops };
    const quire_offload_tiers_opts opts = { .memory = &memory,
                                            .host_bytes = host_bytes,
                                            .file = &file };
    quire_offload_tiers *t;

    w->left = SIZE_MAX / 2;
    w->ops = *quire_file_ops_default();
    w->ops.pwrite = world_pwrite;
    w->ops.pread = world_pread;
    w->ops.ctx = w;
    assert_int_equal(quire_offload_tiers_open(&t, &opts, NULL), QUIRE_OK);
    return t;
}

/* Tiers with so many stripes in each place. */
static quire_offload_tiers *tiers_with(world *w, uint32_t n_host, uint32_t n_file)
{
    const uint64_t bytes = n_host * STRIPE_BYTES + n_file * STAGE_BYTES;
    const uint64_t least = (uint64_t)((double)(n_file * STAGE_BYTES) / QUIRE_OFFLOAD_STAGE_SHARE);
    quire_offload_tiers *t = tiers_of(w, bytes > least ? bytes : least, n_file * FILE_BYTES);

    assert_int_equal(quire_offload_host_stripes_max(quire_offload_tiers_host(t)), n_host);
    assert_int_equal(quire_offload_tiers_stripes_max(t), n_host + n_file);
    return t;
}

/* ---- pages ---- */

static void page_fill(unsigned char *page, uint64_t seed)
{
    quire_rng rng = { seed };

    for (size_t i = 0; i < PAGE_BYTES; i++) {
        page[i] = (unsigned char)quire_rng_below(&rng, 256);
    }
}

/* Write n pages with the seeds first_seed, first_seed + 1, ... */
static int write_pages(quire_offload_tiers *t, uint64_t first_seed, uint32_t n, uint8_t order,
                       uint32_t *slot)
{
    unsigned char *bytes = malloc(n * PAGE_BYTES);
    quire_page_addr addrs[STRIPE];
    int rc;

    for (uint32_t i = 0; i < n; i++) {
        addrs[i] = (quire_page_addr){ .extent = bytes + i * PAGE_BYTES };
        page_fill(addrs[i].extent, first_seed + i);
    }
    rc = quire_offload_tiers_write(t, addrs, n, order, slot);
    free(bytes);
    return rc;
}

static int read_status(quire_offload_tiers *t, uint32_t slot, uint64_t seed)
{
    unsigned char got[PAGE_BYTES], wanted[PAGE_BYTES];
    const int rc = quire_offload_tiers_read(t, slot, got, PAGE_BYTES);

    if (rc == QUIRE_OK) {
        page_fill(wanted, seed);
        assert_memory_equal(got, wanted, PAGE_BYTES);
    }
    return rc;
}

static void release_all(quire_offload_tiers *t, const uint32_t *slots, uint32_t n_stripes)
{
    for (uint32_t i = 0; i < n_stripes * STRIPE; i++) {
        quire_offload_tiers_release(t, slots[i / STRIPE] + i % STRIPE);
    }
}

static quire_offload_below_stats stats_of(const quire_offload_tiers *t)
{
    quire_offload_below_stats s;

    quire_offload_tiers_stats_get(t, &s);
    return s;
}

/* ---- tests ---- */

/* The stripe read longest ago goes down; then that of the lower order, then the older one. */
static void test_coldest(void **state)
{
    world w = { 0 };
    quire_offload_tiers *t = tiers_with(&w, 4, 3);
    uint32_t slots[7];

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(write_pages(t, 100 * i, STRIPE, i == 1 ? 0 : 3, &slots[i]), QUIRE_OK);
    }
    quire_offload_tiers_step(t);
    for (uint32_t i = 0; i < 3; i++) {
        (void)quire_offload_tiers_use(t, slots[i] + 5);
    }
    assert_int_equal(write_pages(t, 400, STRIPE, 3, &slots[4]), QUIRE_OK); /* counts as read */
    assert_true(quire_offload_tiers_in_file(t, slots[3]));
    assert_int_equal(write_pages(t, 500, STRIPE, 3, &slots[5]), QUIRE_OK);
    assert_true(quire_offload_tiers_in_file(t, slots[1]));
    assert_int_equal(write_pages(t, 600, STRIPE, 3, &slots[6]), QUIRE_OK);
    assert_true(quire_offload_tiers_in_file(t, slots[0]));
    assert_false(quire_offload_tiers_in_file(t, slots[2]));
    assert_int_equal(stats_of(t).pages, 3 * STRIPE);
    assert_int_equal(stats_of(t).pages_down_total, 3 * STRIPE);
    for (uint32_t i = 0; i < 7 * STRIPE; i++) {
        assert_int_equal(
            read_status(t, slots[i / STRIPE] + i % STRIPE, 100 * (i / STRIPE) + i % STRIPE),
            QUIRE_OK);
    }
    release_all(t, slots, 7);
    assert_int_equal(quire_offload_tiers_stripes_used(t), 0);
    assert_int_equal(stats_of(t).file.stripes_used, 0);
    assert_int_equal(stats_of(t).pages, 0);
    assert_int_equal(w.pinned_bytes, 0);
    quire_offload_tiers_close(t);
}

/* Both places are full, and slots, stage and the memory that the file is read to stay within the
 * memory of the host. */
static void test_bounds(void **state)
{
    const uint64_t host_bytes = 40 * STRIPE_BYTES;
    world w = { 0 };
    quire_offload_tiers *t = tiers_of(&w, host_bytes, (uint64_t)1 << 30);
    const uint32_t n = quire_offload_tiers_stripes_max(t);
    uint32_t slot;

    (void)state;
    assert_int_equal(stats_of(t).file.stripes_max,
                     (uint64_t)(QUIRE_OFFLOAD_STAGE_SHARE * (double)host_bytes) / STAGE_BYTES);
    assert_true(n > 40); /* more than without the file */
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(write_pages(t, i, 1, 0, &slot), QUIRE_OK);
    }
    assert_int_equal(write_pages(t, n, 1, 0, &slot), QUIRE_LIMIT);
    assert_true(w.pinned_most + stats_of(t).file.stripes_max * STAGE_BYTES / 2 <= host_bytes);
    quire_offload_tiers_close(t);
    assert_int_equal(w.pinned_bytes, 0);

    t = tiers_of(&w, host_bytes, 3 * FILE_BYTES + 5); /* a small file takes a small stage */
    assert_int_equal(stats_of(t).file.stripes_max, 3);
    assert_int_equal(quire_offload_tiers_stripes_max(t), 38 + 3);
    quire_offload_tiers_close(t);
    t = tiers_of(&w, STRIPE_BYTES, (uint64_t)1 << 30); /* the only stripe has no stage beside it */
    assert_false(stats_of(t).is_on);
    assert_int_equal(quire_offload_tiers_stripes_max(t), 1);
    quire_offload_tiers_close(t);
}

/* Stripes come up while the host has room to spare, also those with released pages. */
static void test_raise(void **state)
{
    world w = { 0 };
    quire_offload_tiers *t = tiers_with(&w, 3, 2);
    uint32_t slots[5];

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(write_pages(t, 100 * i, 6, 0, &slots[i]), QUIRE_OK);
        quire_offload_tiers_step(t);
        if (i == 0) {
            quire_offload_tiers_release(t, slots[0] + 2);
            quire_offload_tiers_release(t, slots[0] + 5);
        }
    }
    assert_true(quire_offload_tiers_in_file(t, slots[0]) &&
                quire_offload_tiers_in_file(t, slots[1]));
    assert_int_equal(stats_of(t).pages, 4 + 6);
    assert_int_equal(quire_offload_tiers_raise(t), 0); /* no room */
    for (uint32_t i = 0; i < 6; i++) {
        quire_offload_tiers_release(t, slots[2] + i);
    }
    assert_int_equal(quire_offload_tiers_raise(t), 0); /* none to spare */
    for (uint32_t i = 0; i < 6; i++) {
        quire_offload_tiers_release(t, slots[3] + i);
    }
    assert_int_equal(quire_offload_tiers_raise(t), 0); /* no step has read one */
    (void)quire_offload_tiers_use(t, slots[0]);
    assert_int_equal(quire_offload_tiers_raise(t), 4);
    assert_false(quire_offload_tiers_in_file(t, slots[0]));
    assert_int_equal(quire_offload_tiers_raise(t), 0);
    assert_int_equal(stats_of(t).pages_up_total, 4);
    assert_int_equal(stats_of(t).pages, 6);
    for (uint32_t i = 0; i < 6; i++) {
        if (i != 2 && i != 5) {
            assert_int_equal(read_status(t, slots[0] + i, i), QUIRE_OK);
        }
        assert_int_equal(read_status(t, slots[1] + i, 100 + i), QUIRE_OK);
        assert_int_equal(read_status(t, slots[4] + i, 400 + i), QUIRE_OK);
    }
    quire_offload_tiers_close(t);
}

/* A failed write moves nothing, and a later one may succeed. */
static void test_failed_write(void **state)
{
    world w = { .fails_writes = true };
    quire_offload_tiers *t = tiers_with(&w, 1, 1);
    uint32_t slots[2];

    (void)state;
    assert_int_equal(write_pages(t, 1, STRIPE, 0, &slots[0]), QUIRE_OK);
    assert_int_equal(write_pages(t, 11, STRIPE, 0, &slots[1]), QUIRE_IO);
    assert_non_null(strstr(quire_offload_tiers_file_trouble(t), "No space left"));
    assert_false(quire_offload_tiers_in_file(t, slots[0]));
    assert_int_equal(stats_of(t).file.stripes_used, 0);
    assert_int_equal(stats_of(t).file.failures_total, 1);
    assert_int_equal(read_status(t, slots[0] + 3, 4), QUIRE_OK);
    w.fails_writes = false;
    w.left = 0; /* the stage cannot be pinned */
    assert_int_equal(write_pages(t, 11, STRIPE, 0, &slots[1]), QUIRE_LIMIT);
    w.left = SIZE_MAX / 2;
    assert_int_equal(write_pages(t, 11, STRIPE, 0, &slots[1]), QUIRE_OK);
    assert_true(quire_offload_tiers_in_file(t, slots[0]));
    assert_int_equal(read_status(t, slots[0] + 3, 4), QUIRE_OK);
    quire_offload_tiers_close(t);
}

/* Damage is found on each way back, and the page stays where it is. */
static void test_damage(void **state)
{
    world w = { 0 };
    quire_offload_tiers *t = tiers_with(&w, 2, 1);
    quire_offload_stage *stage;
    uint32_t slots[3];
    uint32_t stripe;

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        w.damages = i == 2;
        assert_int_equal(write_pages(t, 100 * i, STRIPE, 0, &slots[i]), QUIRE_OK);
    }
    assert_int_equal(read_status(t, slots[0], 0), QUIRE_CORRUPT);
    assert_int_equal(read_status(t, slots[0] + 1, 1), QUIRE_OK);
    stripe = quire_offload_tiers_use(t, slots[0]) / STRIPE;
    stage = quire_offload_tiers_stage(t);
    assert_int_equal(quire_offload_stage_begin(stage, &stripe, 1, 0), QUIRE_OK);
    assert_int_equal(quire_offload_stage_take(stage, 0, 0, 1), QUIRE_CORRUPT);
    assert_int_equal(quire_offload_stage_take(stage, 1, 0, 2), QUIRE_OK);
    release_all(t, &slots[1], 2);
    assert_int_equal(quire_offload_tiers_raise(t), QUIRE_CORRUPT);
    assert_true(quire_offload_tiers_in_file(t, slots[0]));
    assert_int_equal(quire_offload_tiers_raise(t), 0); /* rests */
    quire_offload_tiers_release(t, slots[0]);          /* the damaged page */
    assert_int_equal(quire_offload_tiers_raise(t), STRIPE - 1);
    assert_int_equal(read_status(t, slots[0] + 7, 7), QUIRE_OK);
    quire_offload_tiers_close(t);
}

/* ---- random moves ---- */

#define PAGES_MAX 400u

typedef struct live_page {
    uint32_t slot;
    uint64_t seed;
} live_page;

typedef struct moves {
    world w;
    quire_offload_tiers *t;
    quire_rng rng;
    live_page pages[PAGES_MAX];
    uint32_t n;
    uint64_t next_seed;
    uint64_t n_failed;
} moves;

static void move_down(moves *m)
{
    const uint32_t n = 1 + quire_rng_below(&m->rng, STRIPE);
    uint32_t slot;
    int rc;

    if (m->n + n > PAGES_MAX) {
        return;
    }
    m->w.fails_writes = quire_rng_below(&m->rng, 10) == 0;
    rc = write_pages(m->t, m->next_seed, n, (uint8_t)quire_rng_below(&m->rng, 3), &slot);
    m->w.fails_writes = false;
    m->n_failed += rc == QUIRE_IO;
    assert_true(rc == QUIRE_OK || rc == QUIRE_IO || rc == QUIRE_LIMIT);
    for (uint32_t i = 0; rc == QUIRE_OK && i < n; i++) {
        m->pages[m->n++] = (live_page){ .slot = slot + i, .seed = m->next_seed + i };
    }
    m->next_seed += n;
}

static void move_away(moves *m)
{
    if (m->n > 0) {
        const uint32_t i = quire_rng_below(&m->rng, m->n);

        quire_offload_tiers_release(m->t, m->pages[i].slot);
        m->pages[i] = m->pages[--m->n];
    }
}

static void move_up(moves *m)
{
    int rc;

    m->w.fails_reads = quire_rng_below(&m->rng, 10) == 0;
    rc = quire_offload_tiers_raise(m->t);
    m->w.fails_reads = false;
    m->n_failed += rc == QUIRE_IO;
    assert_true(rc >= 0 || rc == QUIRE_IO);
}

static void look(moves *m)
{
    if (m->n > 0) {
        const live_page *p = &m->pages[quire_rng_below(&m->rng, m->n)];

        assert_int_equal(read_status(m->t, p->slot, p->seed), QUIRE_OK);
    }
}

/* A step reads some of the pages, part by part. */
static void step(moves *m)
{
    quire_offload_stage *stage = quire_offload_tiers_stage(m->t);
    uint32_t at[PAGES_MAX], stripes[PAGES_MAX], n_stripes = 0;
    size_t offset = 0;
    int rc = QUIRE_OK;

    quire_offload_tiers_step(m->t);
    for (uint32_t i = 0; i < m->n; i++) {
        const uint32_t place = quire_offload_tiers_use(m->t, m->pages[i].slot);
        uint32_t k = 0;

        at[i] = UINT32_MAX;
        if (!quire_offload_tiers_in_file(m->t, m->pages[i].slot)) {
            continue;
        }
        while (k < n_stripes && stripes[k] != place / STRIPE) {
            k++;
        }
        stripes[k] = place / STRIPE;
        n_stripes = k == n_stripes ? k + 1 : n_stripes;
        at[i] = k * STRIPE + place % STRIPE;
    }
    if (n_stripes == 0) {
        return;
    }
    m->w.fails_reads = quire_rng_below(&m->rng, 10) == 0;
    assert_int_equal(quire_offload_stage_begin(stage, stripes, n_stripes, 0), QUIRE_OK);
    for (uint32_t p = 0; rc == QUIRE_OK && p < N_PARTS; p++) {
        rc = quire_offload_stage_take(stage, p, 0, (p + 1) % N_PARTS);
        for (uint32_t i = 0; rc == QUIRE_OK && i < m->n; i += 1 + i % 5) {
            unsigned char wanted[PAGE_BYTES];

            if (at[i] != UINT32_MAX) {
                const quire_offload_staged staged = { .stripe = at[i] / STRIPE,
                                                      .slot = at[i] % STRIPE,
                                                      .part = p };

                page_fill(wanted, m->pages[i].seed);
                assert_memory_equal(quire_offload_stage_at(stage, &staged), wanted + offset,
                                    part_bytes[p]);
            }
        }
        offset += part_bytes[p];
    }
    m->n_failed += rc == QUIRE_IO;
    assert_true(rc == QUIRE_OK || rc == QUIRE_IO);
    quire_offload_stage_rest(stage); /* no read is under way when reads succeed again */
    m->w.fails_reads = false;
}

static void test_random_moves(void **state)
{
    moves *m = calloc(1, sizeof *m);

    (void)state;
    assert_non_null(m);
    m->rng = test_rng(411);
    m->t = tiers_with(&m->w, 8, 6);
    for (uint32_t i = 0; i < TEST_ROUNDS(20000u, 3000u); i++) {
        switch (quire_rng_below(&m->rng, 8)) {
        case 0:
        case 1:
            move_down(m);
            break;
        case 2:
        case 3:
        case 4:
            move_away(m);
            break;
        case 5:
            move_up(m);
            break;
        case 6:
            look(m);
            break;
        default:
            if (quire_rng_below(&m->rng, 4) == 0) {
                step(m);
            }
            break;
        }
    }
    assert_true(m->n_failed > 0);
    assert_true(stats_of(m->t).pages_down_total > 0);
    assert_true(stats_of(m->t).pages_up_total > 0);
    while (m->n > 0) {
        move_away(m);
    }
    assert_int_equal(quire_offload_tiers_stripes_used(m->t), 0);
    assert_int_equal(stats_of(m->t).file.stripes_used, 0);
    assert_int_equal(m->w.pinned_bytes, 0);
    quire_offload_tiers_close(m->t);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coldest), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_raise),   cmocka_unit_test(test_failed_write),
        cmocka_unit_test(test_damage),  cmocka_unit_test(test_random_moves),
    };

    return cmocka_run_group_tests_name("offload_tiers", tests, test_dir_make, test_dir_remove);
}
