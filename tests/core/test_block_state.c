/* test_block_state.c - the state of a text between chunks: made, written and read again; files that
 * are damaged, foreign or of another version.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash128.h"
#include "quire/block_state.h"

#define N_LANES    4u
#define N_TEXT     300u
#define N_FULL     100u /* tokens behind the condensed ones, in all lanes */
#define N_EXTRA    5u
#define N_WINDOW   5u
#define PAGE_BYTES 24u
#define HOT_BYTES  8u

/* Lane i keeps every (i + 2)-th token of the condensed ones, and the last one its window. */
static uint32_t n_kept(uint32_t lane)
{
    return lane == N_LANES - 1 ? 0 : (N_TEXT - N_FULL) / (lane + 2);
}

/* Tokens of a lane that are held in full. */
static uint32_t n_last(uint32_t lane)
{
    return lane == N_LANES - 1 ? N_WINDOW : N_FULL;
}

static int32_t position_of(uint32_t lane, uint32_t token)
{
    const uint32_t n = n_kept(lane);

    return (int32_t)(token < n ? token * (lane + 2) : N_TEXT - n_last(lane) + token - n);
}

static void fill(const quire_block_state *s, const void *part, size_t n_bytes, unsigned seed)
{
    unsigned char *bytes = quire_block_part(s, part);

    for (size_t i = 0; i < n_bytes; i++) {
        bytes[i] = (unsigned char)(seed + 7 * i);
    }
}

static void make(quire_block_state *s)
{
    uint32_t n_tokens[N_LANES];
    int32_t *tokens;

    *s = (quire_block_state){ .identity = { 1, UINT64_MAX },
                              .maps = { 3, 4 },
                              .policy = "keydiff:0.5",
                              .chunk = 100,
                              .n_layers = 2,
                              .n_kv_head = 2,
                              .n_text = N_TEXT,
                              .n_condensed = N_TEXT - N_FULL,
                              .generations = 2,
                              .n_repeated = 7,
                              .has_worth = true,
                              .page_bytes = PAGE_BYTES,
                              .hot_bytes = HOT_BYTES,
                              .n_extra = N_EXTRA };
    for (uint32_t i = 0; i < N_LANES; i++) {
        n_tokens[i] = n_kept(i) + n_last(i);
    }
    assert_int_equal(quire_block_state_alloc(s, n_tokens), QUIRE_OK);
    tokens = quire_block_part(s, s->tokens);
    for (uint32_t t = 0; t < N_TEXT; t++) {
        tokens[t] = (int32_t)(3 * t);
    }
    for (uint32_t i = 0; i < N_LANES; i++) {
        quire_block_lane *lane = &s->lanes[i];
        int32_t *positions = quire_block_part(s, lane->positions);

        lane->n_queries = 1000 + i;
        for (uint32_t t = 0; t < lane->n_tokens; t++) {
            positions[t] = position_of(i, t);
        }
        fill(s, lane->worth, lane->n_tokens * sizeof(float), i);
        fill(s, lane->pages, quire_block_n_pages(lane->n_tokens) * PAGE_BYTES, 10 + i);
        fill(s, lane->hot_pages, quire_block_n_pages(lane->n_tokens) * HOT_BYTES, 20 + i);
    }
    fill(s, s->extra, N_EXTRA * sizeof(float), 30);
    quire_block_state_seal(s);
}

/* A copy of the file, which a state takes over. */
static unsigned char *copy_of(const quire_block_state *s)
{
    unsigned char *copy = malloc(s->n_bytes);

    assert_non_null(copy);
    memcpy(copy, s->memory, s->n_bytes);
    return copy;
}

static void test_again(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_block_state made, read;

    (void)state;
    assert_int_equal(quire_block_n_pages(0), 0);
    assert_int_equal(quire_block_n_pages(64), 1);
    assert_int_equal(quire_block_n_pages(65), 2);
    make(&made);
    assert_int_equal(quire_block_state_parse(&read, copy_of(&made), made.n_bytes, &err), QUIRE_OK);
    assert_true(read.identity[0] == 1 && read.identity[1] == UINT64_MAX);
    assert_true(read.maps[0] == 3 && read.maps[1] == 4);
    assert_string_equal(read.policy, "keydiff:0.5");
    assert_int_equal(read.chunk, 100);
    assert_int_equal(read.n_layers, 2);
    assert_int_equal(read.n_kv_head, 2);
    assert_int_equal(read.n_text, N_TEXT);
    assert_int_equal(read.n_condensed, N_TEXT - N_FULL);
    assert_int_equal(read.generations, 2);
    assert_int_equal(read.n_repeated, 7);
    assert_true(read.has_worth);
    assert_memory_equal(read.tokens, made.tokens, N_TEXT * sizeof *read.tokens);
    for (uint32_t i = 0; i < N_LANES; i++) {
        const quire_block_lane *lane = &read.lanes[i], *want = &made.lanes[i];
        const uint32_t n_pages = quire_block_n_pages(want->n_tokens);

        assert_int_equal(lane->n_tokens, want->n_tokens);
        assert_int_equal(lane->n_queries, 1000 + i);
        assert_memory_equal(lane->positions, want->positions, lane->n_tokens * sizeof(int32_t));
        assert_memory_equal(lane->worth, want->worth, lane->n_tokens * sizeof(float));
        assert_memory_equal(lane->pages, want->pages, n_pages * PAGE_BYTES);
        assert_memory_equal(lane->hot_pages, want->hot_pages, n_pages * HOT_BYTES);
    }
    assert_int_equal(read.n_extra, N_EXTRA);
    assert_memory_equal(read.extra, made.extra, N_EXTRA * sizeof(float));
    quire_block_state_free(&read);
    assert_null(read.memory);
    quire_block_state_free(&read);
    quire_block_state_free(&made);
}

static void refuse(unsigned char *bytes, size_t n_bytes, int status, const char *says)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_block_state read;

    assert_int_equal(quire_block_state_parse(&read, bytes, n_bytes, &err), status);
    if (strstr(err.message, says) == NULL) {
        fail_msg("%s", err.message);
    }
    quire_block_state_free(&read);
}

/* With a valid hash: what a program writes that does not keep the rules. */
static void refuse_hashed(const quire_block_state *made, size_t at, unsigned char byte, int status,
                          const char *says)
{
    const size_t n = made->n_bytes - QUIRE_HASH128_BYTES;
    unsigned char *bytes = copy_of(made);

    bytes[at] = byte;
    quire_hash128(bytes, n, bytes + n);
    refuse(bytes, made->n_bytes, status, says);
}

/* Where a lane's position is in the file. */
static size_t at_position(const quire_block_state *s, uint32_t lane, uint32_t token)
{
    return (size_t)((const unsigned char *)(s->lanes[lane].positions + token) - s->memory);
}

static void test_damage(void **state)
{
    quire_block_state made;
    unsigned char *bytes;

    (void)state;
    make(&made);
    for (size_t at = 16; at < made.n_bytes; at += 41) {
        bytes = copy_of(&made);
        bytes[at] ^= 4;
        refuse(bytes, made.n_bytes, QUIRE_CORRUPT, "it is damaged: its hash is another");
    }
    for (size_t n = 0; n < made.n_bytes; n += 97) {
        bytes = copy_of(&made);
        refuse(bytes, n, QUIRE_CORRUPT, "it is ");
    }
    bytes = copy_of(&made);
    bytes[0] = 'X';
    refuse(bytes, made.n_bytes, QUIRE_CORRUPT, "it is no state of a text");
    refuse_hashed(&made, 8, 1, QUIRE_UNSUPP, "its version is 1, this program reads 3");
    /* The numbers of layers and of tokens, positions out of order. */
    refuse_hashed(&made, 16 + 4 * 8, 0, QUIRE_CORRUPT, "its parts do not fit");
    refuse_hashed(&made, 16 + 6 * 8 + 1, 9, QUIRE_CORRUPT, "its parts do not fit");
    refuse_hashed(&made, at_position(&made, 1, 0), 99, QUIRE_CORRUPT, "its parts do not fit");
    /* Tokens held in full with a gap: of a lane with all of them, and of one with the last. */
    refuse_hashed(&made, at_position(&made, 1, n_kept(1)), N_TEXT - N_FULL - 1, QUIRE_CORRUPT,
                  "its parts do not fit");
    refuse_hashed(&made, at_position(&made, N_LANES - 1, 0), (N_TEXT - N_WINDOW - 1) % 256,
                  QUIRE_CORRUPT, "its parts do not fit");
    quire_block_state_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
