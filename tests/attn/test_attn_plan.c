/* test_attn_plan.c - which batches quire_attn_begin() takes, table by table.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"

typedef struct step {
    quire_attn_workspace *ws;
    quire_page_entry entries[2][QUIRE_LEAF_ENTRIES > 8 ? QUIRE_LEAF_ENTRIES : 8];
    const quire_page_entry *leaves[2][4];
    quire_attn_seq seqs[3];
    quire_page_addr addr[5];
    int32_t positions[200];
    quire_attn_batch batch;
} step;

/* Two valid sequences of 100 and 64 tokens with 4 rows each. */
static void step_init(step *s)
{
    static unsigned char page[64];
    quire_attn_workspace_opts opts = fixture_small_opts();

    *s = (step){ 0 };
    assert_int_equal(quire_attn_workspace_create(&s->ws, &opts), QUIRE_OK);
    for (uint32_t i = 1; i < 5; i++) {
        s->addr[i] = (quire_page_addr){ .extent = page, .slot = i };
    }
    s->entries[0][0] = (quire_page_entry){ .page = 1, .n_tokens = 64 };
    s->entries[0][1] = (quire_page_entry){ .page = 2, .n_tokens = 36, .first_pos = 64 };
    s->entries[1][0] = (quire_page_entry){ .page = 3, .n_tokens = 64 };
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t k = 0; k < 4; k++) {
            s->leaves[i][k] = &s->entries[i][k * QUIRE_LEAF_ENTRIES % 8];
        }
    }
    s->seqs[0] = (quire_attn_seq){ { { s->leaves[0], 2 } }, 100, 0, 4, NULL };
    s->seqs[1] = (quire_attn_seq){ { { s->leaves[1], 1 } }, 64, 4, 4, NULL };
    s->seqs[2] = s->seqs[1];
    s->batch = (quire_attn_batch){ .seqs = s->seqs,
                                   .n_seqs = 2,
                                   .page_tokens = 64,
                                   .page_addr = s->addr,
                                   .positions = s->positions };
}

static void expect_begin(const step *s, int status)
{
    assert_int_equal(quire_attn_begin(s->ws, &s->batch), status);
}

static void test_begin_accepts_and_refuses_batches(void **state)
{
    step s;

    (void)state;
    step_init(&s);
    expect_begin(&s, QUIRE_OK);
    s.batch.n_seqs = 0;
    expect_begin(&s, QUIRE_OK);
    s.batch.n_seqs = 3;
    expect_begin(&s, QUIRE_LIMIT); /* n_seqs_max */
    s.batch.n_seqs = 2;
    s.batch.page_tokens = 128;
    expect_begin(&s, QUIRE_INVAL);
    s.batch.page_tokens = 64;
    s.seqs[0].n_rows = 5;
    expect_begin(&s, QUIRE_LIMIT); /* n_rows_max: 5 + 4 */
    s.seqs[0].n_rows = 4;
    s.seqs[1].first_row = 5;
    expect_begin(&s, QUIRE_LIMIT); /* rows 5 .. 8 of 8 */
    s.seqs[1].first_row = 4;
    s.seqs[1].n_rows = 0;
    expect_begin(&s, QUIRE_INVAL);
    s.seqs[1].n_rows = 4;
    expect_begin(&s, QUIRE_OK);
    quire_attn_workspace_destroy(s.ws);
}

static void test_begin_refuses_bad_tables(void **state)
{
    step s;

    (void)state;
    step_init(&s);
    s.seqs[0].tables[0].n_entries = 4;
    expect_begin(&s, QUIRE_LIMIT); /* n_entries_max */
    s.seqs[0].tables[0].n_entries = 0;
    expect_begin(&s, QUIRE_INVAL);
    s.seqs[0].tables[0].n_entries = 2;
    s.seqs[0].n_tokens = 101; /* the entries hold 100 */
    expect_begin(&s, QUIRE_INVAL);
    s.seqs[0].n_tokens = 99;
    expect_begin(&s, QUIRE_INVAL);
    s.seqs[0].n_tokens = 3; /* fewer than its rows */
    expect_begin(&s, QUIRE_INVAL);
    s.seqs[0].n_tokens = 100;
    s.entries[0][0].page = QUIRE_PAGE_NULL;
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][0].page = 1;
    s.addr[1].extent = NULL;
    expect_begin(&s, QUIRE_INVAL);
    s.addr[1] = s.addr[2];
    s.entries[0][1].first_slot = 29; /* 29 + 36 > 64 */
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][1].first_slot = 28;
    expect_begin(&s, QUIRE_OK);
    s.entries[0][1].n_tokens = 0;
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][1].n_tokens = 36;
    s.addr[1].memory = (quire_memory)1; /* not the host's */
    expect_begin(&s, QUIRE_UNSUPP);
    s.addr[1].memory = QUIRE_MEMORY_HOST;
    s.seqs[0].tables[0].leaves = NULL;
    expect_begin(&s, QUIRE_INVAL);
    quire_attn_workspace_destroy(s.ws);
}

static void test_begin_checks_positions(void **state)
{
    step s;

    (void)state;
    step_init(&s);
    s.batch.n_seqs = 1;
    s.entries[0][1].first_pos = 63; /* again */
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][1].first_pos = 65; /* token 64 was dropped, but there is one too many at the end */
    expect_begin(&s, QUIRE_INVAL);
    s.seqs[0].n_tokens = 101;
    expect_begin(&s, QUIRE_OK);
    s.seqs[0].n_tokens = 102; /* its last row is missing */
    expect_begin(&s, QUIRE_INVAL);
    s.seqs[0].n_tokens = 100;
    s.entries[0][1].first_pos = 64;
    s.entries[0][0].first_pos = -1;
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][0].first_pos = 0;
    s.seqs[0].n_tokens = 1u << 31;
    expect_begin(&s, QUIRE_LIMIT);
    quire_attn_workspace_destroy(s.ws);
}

static void test_begin_checks_lists(void **state)
{
    step s;

    (void)state;
    step_init(&s);
    s.batch.n_seqs = 1;
    s.seqs[0].n_tokens = 500;
    s.entries[0][1].first_pos = 464;
    for (int32_t i = 0; i < 64; i++) {
        s.positions[1 + i] = 3 * i;
    }
    expect_begin(&s, QUIRE_OK);
    s.entries[0][0].positions = 1;
    expect_begin(&s, QUIRE_OK);
    s.positions[30] = s.positions[29];
    expect_begin(&s, QUIRE_INVAL);
    s.positions[30] = 3 * 29;
    s.entries[0][0].first_pos = 1; /* not the list's */
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][0].first_pos = 0;
    s.positions[64] = 464; /* the next entry's */
    expect_begin(&s, QUIRE_INVAL);
    s.positions[64] = 463;
    expect_begin(&s, QUIRE_OK);
    s.batch.positions = NULL;
    expect_begin(&s, QUIRE_INVAL);
    s.batch.positions = s.positions;
    for (int32_t i = 0; i < 36; i++) { /* a list of the rows: their positions must all be there */
        s.positions[100 + i] = 464 + i;
    }
    s.entries[0][1].positions = 100;
    expect_begin(&s, QUIRE_OK);
    for (int32_t i = 0; i < 34; i++) {
        s.positions[100 + i] = 463 + i;
    }
    s.positions[64] = 450;
    s.entries[0][1].first_pos = 463;
    expect_begin(&s, QUIRE_INVAL); /* 497 is not */
    quire_attn_workspace_destroy(s.ws);
}

/* begin() with holes, in a group whose layers have windows. */
static void test_begin_checks_holes(void **state)
{
    quire_attn_workspace_opts opts = fixture_small_opts();
    step s;

    (void)state;
    step_init(&s);
    quire_attn_workspace_destroy(s.ws);
    s.batch.n_seqs = 1;
    opts.n_groups = 1;
    opts.groups[0].window = 33; /* the rows are at 96 .. 99 */
    assert_int_equal(quire_attn_workspace_create(&s.ws, &opts), QUIRE_OK);
    s.entries[0][0].page = QUIRE_PAGE_NULL;
    expect_begin(&s, QUIRE_OK);
    quire_attn_workspace_destroy(s.ws);
    opts.groups[0].window = 34; /* row 96 sees 63 */
    assert_int_equal(quire_attn_workspace_create(&s.ws, &opts), QUIRE_OK);
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][0].page = 1;
    expect_begin(&s, QUIRE_OK);
    quire_attn_workspace_destroy(s.ws);
}

/* A hot table may have holes, but not where rows are stored; tiles stand where they stand in the
 * main table, and only the last one may be open. */
static void test_begin_checks_hot_tables(void **state)
{
    quire_page_entry hot[QUIRE_LEAF_ENTRIES > 2 ? QUIRE_LEAF_ENTRIES : 2];
    const quire_page_entry *leaves[] = { hot };
    quire_attn_workspace_opts opts = fixture_small_opts();
    step s;

    (void)state;
    step_init(&s);
    expect_begin(&s, QUIRE_OK);
    quire_attn_workspace_destroy(s.ws);
    opts.n_groups = 2;
    opts.groups[1].is_hot = true;
    assert_int_equal(quire_attn_workspace_create(&s.ws, &opts), QUIRE_OK);
    s.batch.n_seqs = 1;
    expect_begin(&s, QUIRE_INVAL); /* no hot table */
    s.seqs[0].tables[1] = (quire_attn_table){ leaves, 2 };
    hot[0] = (quire_page_entry){ .page = 3, .n_tokens = 64 };
    hot[1] = (quire_page_entry){ .page = 4, .n_tokens = 36, .first_pos = 64 };
    expect_begin(&s, QUIRE_OK);
    hot[0].page = QUIRE_PAGE_NULL;
    expect_begin(&s, QUIRE_OK);
    s.entries[0][0].page = QUIRE_PAGE_NULL;
    expect_begin(&s, QUIRE_INVAL); /* no main page */
    s.entries[0][0].page = 1;
    hot[1].page = QUIRE_PAGE_NULL;
    expect_begin(&s, QUIRE_INVAL); /* rows are stored there */
    hot[1].page = 4;
    s.addr[4].extent = NULL;
    expect_begin(&s, QUIRE_INVAL);
    s.addr[4] = s.addr[3];
    hot[1].n_tokens = 35;
    expect_begin(&s, QUIRE_INVAL);
    hot[1].n_tokens = 36;
    hot[1].first_slot = 1;
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][1].first_slot = 1; /* no start of a tile */
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][1].first_slot = 0;
    hot[1].first_slot = 0;
    s.seqs[0].tables[1].n_entries = 1;
    expect_begin(&s, QUIRE_INVAL);
    s.seqs[0].tables[1].n_entries = 2;
    expect_begin(&s, QUIRE_OK);
    s.entries[0][0].n_tokens = hot[0].n_tokens = 63; /* no end of a tile */
    expect_begin(&s, QUIRE_INVAL);
    s.entries[0][0].n_tokens = hot[0].n_tokens = 64;
    s.entries[0][1].first_pos = hot[1].first_pos = 65; /* no start of 64 positions */
    s.seqs[0].n_tokens = 101;
    expect_begin(&s, QUIRE_INVAL);
    quire_attn_workspace_destroy(s.ws);
}

/* A row's own tile has no list, and other tiles with lists are whole. */
static void test_begin_checks_lists_beside_hot_tables(void **state)
{
    quire_page_entry hot[QUIRE_LEAF_ENTRIES > 2 ? QUIRE_LEAF_ENTRIES : 2];
    const quire_page_entry *leaves[] = { hot };
    quire_attn_workspace_opts opts = fixture_small_opts();
    step s;

    (void)state;
    step_init(&s);
    quire_attn_workspace_destroy(s.ws);
    opts.n_groups = 2;
    opts.groups[1].is_hot = true;
    assert_int_equal(quire_attn_workspace_create(&s.ws, &opts), QUIRE_OK);
    s.batch.n_seqs = 1;
    s.seqs[0].tables[1] = (quire_attn_table){ leaves, 2 };
    s.seqs[0].n_tokens = 256 + 36;
    for (int32_t i = 0; i < 64; i++) {
        s.positions[1 + i] = 3 * i;
        s.positions[65 + i] = 256 + i;
    }
    s.entries[0][0].positions = 1;
    s.entries[0][1].first_pos = 256;
    hot[0] = s.entries[0][0];
    hot[1] = s.entries[0][1];
    hot[0].page = QUIRE_PAGE_NULL;
    hot[1].page = 4;
    expect_begin(&s, QUIRE_OK);
    hot[0].positions = 2;
    expect_begin(&s, QUIRE_INVAL); /* not alike */
    hot[0].positions = 1;
    s.entries[0][1].positions = hot[1].positions = 65;
    expect_begin(&s, QUIRE_INVAL); /* of rows */
    quire_attn_workspace_destroy(s.ws);
}

/* After a begin() that failed there is nothing to do, and doing it is safe. */
static void test_failed_begin_leaves_an_empty_step(void **state)
{
    quire_attn_layer layer = {
        .n_head = 4, .n_kv_head = 2, .d_k = 64, .d_v = 32, .n_k = 1, .n_v = 1, .scale = 0.125f
    };
    step s;

    (void)state;
    step_init(&s);
    expect_begin(&s, QUIRE_OK);
    s.entries[1][0].first_pos = 3;
    expect_begin(&s, QUIRE_INVAL);
    quire_attn_append(s.ws, &layer, 0, 1);
    quire_attn_run(s.ws, &layer, 0, 0, 1);
    quire_attn_workspace_destroy(s.ws);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_begin_accepts_and_refuses_batches),
        cmocka_unit_test(test_begin_refuses_bad_tables),
        cmocka_unit_test(test_begin_checks_positions),
        cmocka_unit_test(test_begin_checks_lists),
        cmocka_unit_test(test_begin_checks_holes),
        cmocka_unit_test(test_begin_checks_hot_tables),
        cmocka_unit_test(test_begin_checks_lists_beside_hot_tables),
        cmocka_unit_test(test_failed_begin_leaves_an_empty_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
