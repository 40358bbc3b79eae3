/* test_tile_window.c - tiles of a memory that the host does not see, read and written one after the
 * other through windows: the bytes are those of the host's memory, for all shapes of runs; copies
 * are few; and after a failed copy nothing is written any more.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/pool/tile_window.h"
#include "quire/status.h"

#include <string.h>

#define N_TILES     200u
#define N_HEADS_MAX 3u
#define PAGES_BYTES ((size_t)N_TILES * N_HEADS_MAX * 8192u)
#define BEHIND      (PAGES_BYTES / 2) /* an address there is not that of the bytes */

static unsigned char hidden[PAGES_BYTES];  /* bytes of the memory */
static unsigned char visible[PAGES_BYTES]; /* pages in the host's memory */

/* ---- a memory that can fail ---- */

typedef struct fake {
    uint32_t n_copies;
    uint32_t fail_at; /* counted from 1; 0 = never */
} fake;

/* Where an address of the memory lies: addresses are turned around, so none is read by accident. */
static unsigned char *place(const unsigned char *addr)
{
    return hidden + ((size_t)(addr - visible) + BEHIND) % PAGES_BYTES;
}

static int fake_copy(void *ctx, quire_page_copy kind, const quire_page_piece *pieces, uint32_t n)
{
    fake *f = ctx;

    assert_true(n > 0 && n <= QUIRE_PAGE_PIECES);
    assert_true(kind == QUIRE_PAGE_COPY_IN || kind == QUIRE_PAGE_COPY_OUT);
    if (++f->n_copies == f->fail_at) {
        return QUIRE_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        const quire_page_piece *p = &pieces[i];

        if (kind == QUIRE_PAGE_COPY_IN) {
            memcpy(place(p->to), p->from, p->bytes);
        } else {
            memcpy(p->to, place(p->from), p->bytes);
        }
    }
    return QUIRE_OK;
}

/* ---- runs ---- */

typedef struct shape {
    size_t bytes;
    uint32_t n_heads;
    bool is_apart; /* heads do not follow each other */
} shape;

/* Tiles in another order than in memory; half of the memory's addresses each. */
static unsigned char *tile_at(const void *ctx, uint32_t i)
{
    const shape *s = ctx;
    const size_t slot = (i * 7u) % N_TILES; /* 7 and 200 have no common divisor */

    return s->is_apart ? visible + slot * s->bytes : visible + slot * s->n_heads * s->bytes;
}

static quire_tile_run run_of(const shape *s)
{
    return (quire_tile_run){ .at = tile_at,
                             .ctx = s,
                             .bytes = s->bytes,
                             .n_heads = s->n_heads,
                             .head_stride = s->is_apart ? N_TILES * s->bytes : s->bytes,
                             .n = N_TILES };
}

static void fill(void)
{
    for (size_t i = 0; i < PAGES_BYTES; i++) {
        visible[i] = (unsigned char)(i * 31 + i / 256);
        hidden[(i + BEHIND) % PAGES_BYTES] = visible[i];
    }
}

/* Tiles from 50 on move down by 20, with a change. Returns the status of the copies. */
static int move_down(const quire_page_memory *memory, const shape *s, bool *has_sent)
{
    int status = QUIRE_OK;
    quire_tile_window_opts opts = { .memory = memory,
                                    .tile_bytes = s->n_heads * s->bytes,
                                    .status = &status };
    const quire_tile_run run = run_of(s);
    quire_tile_window read, write;

    assert_int_equal(quire_tile_window_init(&read, &opts), QUIRE_OK);
    opts.writes = true;
    assert_int_equal(quire_tile_window_init(&write, &opts), QUIRE_OK);
    quire_tile_window_put(&read, &run);
    quire_tile_window_put(&write, &run);
    for (uint32_t t = 50; t < N_TILES; t++) {
        for (uint32_t h = 0; h < s->n_heads; h++) {
            const unsigned char *from = quire_tile_window_at(&read, t, h);
            unsigned char *to = quire_tile_window_at(&write, t - 20, h);

            memcpy(to, from, s->bytes);
            to[s->bytes / 2] ^= 0x55;
        }
    }
    quire_tile_window_end(&read);
    quire_tile_window_end(&write);
    *has_sent = write.has_sent;
    return status;
}

static bool is_same(void)
{
    for (size_t i = 0; i < PAGES_BYTES; i++) {
        if (visible[i] != hidden[(i + BEHIND) % PAGES_BYTES]) {
            return false;
        }
    }
    return true;
}

static const shape shapes[] = { { 64, 1, false },  { 4096, 1, false }, { 64, 3, false },
                                { 4096, 3, true }, { 8192, 3, false }, { 8192, 2, true } };

/* A window of the host's memory is the pages themselves. */
static void moves_alike(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        fake f = { .n_copies = 0 };
        const quire_page_memory memory = { .copy = fake_copy, .ctx = &f };
        bool has_sent;

        fill();
        assert_int_equal(move_down(&memory, &shapes[i], &has_sent), QUIRE_OK);
        assert_true(has_sent);
        assert_false(is_same());
        assert_int_equal(move_down(NULL, &shapes[i], &has_sent), QUIRE_OK);
        assert_false(has_sent);
        assert_true(is_same());
        if (shapes[i].n_heads == 1) { /* 150 tiles, 64 at a time */
            assert_int_equal(f.n_copies, 6);
        }
    }
}

/* Tiles behind a failed copy stay as they are; tiles before it are whole, old or new. */
static void stops_at_a_failure(void **state)
{
    const shape *s = &shapes[1];

    (void)state;
    for (uint32_t at = 1; at <= 6; at++) {
        fake f = { .fail_at = at };
        const quire_page_memory memory = { .copy = fake_copy, .ctx = &f };
        uint32_t n_new = 0;
        bool has_sent;

        fill();
        assert_int_equal(move_down(&memory, s, &has_sent), QUIRE_NOMEM);
        assert_int_equal(f.n_copies, at);
        /* The first copy reads; so does the second or the third. */
        assert_int_equal(has_sent, at > 2);
        for (uint32_t t = 0; t < N_TILES; t++) {
            const unsigned char *old = tile_at(s, t);
            unsigned char want[4096];

            if (t >= 30 && t < N_TILES - 20) {
                memcpy(want, tile_at(s, t + 20), s->bytes);
                want[s->bytes / 2] ^= 0x55;
                if (memcmp(place(old), want, s->bytes) == 0) {
                    n_new++;
                    continue;
                }
            }
            assert_memory_equal(place(old), old, s->bytes);
        }
        assert_true(n_new < N_TILES - 50 && (has_sent || n_new == 0));
    }
}

/* A slot of a new tile that is not written holds zeros, not what the room held before. */
static void unwritten_bytes_are_zeros(void **state)
{
    static const unsigned char zeros[4096];
    const shape *s = &shapes[1];
    const quire_tile_run run = run_of(s);
    int status = QUIRE_OK;
    fake f = { .n_copies = 0 };
    const quire_page_memory memory = { .copy = fake_copy, .ctx = &f };
    const quire_tile_window_opts opts = {
        .memory = &memory, .tile_bytes = s->bytes, .writes = true, .status = &status
    };
    quire_tile_window write;

    (void)state;
    fill();
    assert_int_equal(quire_tile_window_init(&write, &opts), QUIRE_OK);
    for (int round = 0; round < 2; round++) {
        quire_tile_window_put(&write, &run);
        for (uint32_t t = 0; t < 3; t++) {
            memset(quire_tile_window_at(&write, t, 0), 0xee, round == 0 ? s->bytes : 64);
        }
    }
    quire_tile_window_flush(&write);
    for (uint32_t t = 0; t < 3; t++) {
        assert_memory_equal(place(tile_at(s, t)) + 64, zeros, s->bytes - 64);
    }
    assert_memory_equal(place(tile_at(s, 3)), tile_at(s, 3), s->bytes);
    quire_tile_window_end(&write);
    assert_int_equal(status, QUIRE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_alike),
        cmocka_unit_test(stops_at_a_failure),
        cmocka_unit_test(unwritten_bytes_are_zeros),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
