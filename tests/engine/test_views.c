/* test_views.c - views show the true state of the cache, also while steps are computed, and do not
 * change it.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/loop/chores.h"
#include "engine/views.h"
#include "engine_fixture.h"
#include "seed.h"

#include <stdlib.h>
#include <string.h>

#define N_CTX    1024u
#define PAGE     64u
#define N_PROMPT (4 * PAGE)

typedef struct map_sums {
    uint32_t n_of[QUIRE_PAGE_CELL_PINNED + 1];
    uint32_t n_owned;
    uint32_t n_known;
    uint32_t n_filled;
} map_sums;

static map_sums sums_of(const quire_page_map *map, uint64_t owner)
{
    map_sums sums = { 0 };
    uint32_t n_in_use = 0;

    for (uint32_t i = 0; i < map->n_cells; i++) {
        const quire_page_cell *cell = &map->cells[i];

        sums.n_of[cell->state]++;
        n_in_use += cell->state != QUIRE_PAGE_CELL_FREE;
        sums.n_owned += cell->owner == owner && cell->state != QUIRE_PAGE_CELL_FREE;
        sums.n_known += cell->used_us > 0;
        sums.n_filled += cell->n_filled;
    }
    assert_int_equal(map->n_in_use, n_in_use);
    return sums;
}

static map_sums look(const engine_bench *b, uint64_t owner)
{
    quire_page_map map;
    map_sums sums;

    assert_int_equal(quire_engine_page_map(b->engine, &map), QUIRE_OK);
    sums = sums_of(&map, owner);
    quire_page_map_fini(&map);
    return sums;
}

static void test_pages_at_rest(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    engine_bench b = bench_tiny(&engine, &runtime);
    quire_sessions *sessions = quire_engine_sessions(b.engine);
    int32_t mine[N_PROMPT], other[2 * PAGE];
    quire_request_params params = params_greedy(mine, N_PROMPT, 1);
    quire_error err = QUIRE_ERROR_INIT;
    uint64_t owner;
    map_sums sums;

    (void)state;
    sums = look(&b, 1);
    assert_int_equal(sums.n_known + sums.n_filled, 0);
    tokens_make(mine, N_PROMPT, 1);
    tokens_make(other, 2 * PAGE, 2);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", 1, &params.session, &err),
                     QUIRE_OK);
    owner = quire_sessions_owner(sessions, params.session);
    finish_as(submit(&b, &params), QUIRE_FINISH_LENGTH);
    quire_sessions_leave(sessions, params.session, 1);
    params = params_greedy(other, 2 * PAGE, 1);
    finish_as(submit(&b, &params), QUIRE_FINISH_LENGTH);
    sums = look(&b, owner);
    assert_int_equal(sums.n_of[QUIRE_PAGE_CELL_CACHED], 6);
    assert_int_equal(sums.n_of[QUIRE_PAGE_CELL_LIVE] + sums.n_of[QUIRE_PAGE_CELL_SHARED], 0);
    assert_int_equal(sums.n_owned, 4);
    assert_int_equal(sums.n_known, 6);
    assert_int_equal(sums.n_filled, N_PROMPT + 2 * PAGE);
    bench_close(&b);
}

/* Constant viewing does not change a running request's tokens. */
static void test_pages_while_it_runs(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    engine_bench b = bench_tiny(&engine, &runtime);
    int32_t prompt[N_PROMPT], expected[400], got[400];
    quire_request_params params = params_greedy(prompt, N_PROMPT, 400);
    quire_engine_stats before, after;
    quire_request_token token;
    quire_request *request;
    uint32_t n_looks = 0;
    map_sums sums;

    (void)state;
    tokens_make(prompt, N_PROMPT, 3);
    reference(&b, prompt, N_PROMPT, expected, 400);
    before = stats_now(b.engine);
    request = submit(&b, &params);
    while (quire_request_wait(request, 399, 0, &token) == QUIRE_AGAIN) {
        sums = look(&b, 1);
        assert_true(sums.n_of[QUIRE_PAGE_CELL_LIVE] + sums.n_of[QUIRE_PAGE_CELL_SHARED] <= 11);
        n_looks++;
    }
    assert_int_equal(collect(request, got, 400), 400);
    assert_memory_equal(got, expected, sizeof got);
    finish_as(request, QUIRE_FINISH_LENGTH);
    assert_true(n_looks > 0);
    after = stats_now(b.engine);
    assert_true(after.views_seconds_total > before.views_seconds_total);
    assert_int_equal(after.prefix.lookups_total, before.prefix.lookups_total + 1);
    validate(b.engine);
    bench_close(&b);
}

static void test_sessions_and_accounts(void **state)
{
    const quire_account_opts accounts[2] = { { .weight = 1 }, { .quota_bytes = 7, .weight = 3 } };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    const quire_chat_message message = { "user", "hello", NULL };
    int32_t prompt[N_PROMPT];
    quire_request_params params = params_greedy(prompt, N_PROMPT, 1);
    quire_session_kv items[3] = { { "", 0, "s", 9, 9 },
                                  { "", 0, "none", 9, 9 },
                                  { "x", 1, "s", 9, 9 } };
    quire_region_view regions[QUIRE_REGIONS_MAX];
    quire_account_info infos[2];
    quire_error err = QUIRE_ERROR_INIT;
    quire_sessions *sessions;
    quire_request *request;
    uint32_t n_kept;
    int32_t *kept;
    engine_bench b;

    (void)state;
    engine.accounts = (quire_engine_accounts){ .items = accounts, .n = 2 };
    engine.pinned_bytes = 2 * tiny_page_bytes(PAGE);
    b = bench_tiny(&engine, &runtime);
    sessions = quire_engine_sessions(b.engine);
    tokens_make(prompt, N_PROMPT, 4);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", 1, &params.session, &err),
                     QUIRE_OK);
    request = submit(&b, &params);
    (void)finish(request);
    kept = quire_request_tokens_take(request, &n_kept);
    assert_int_equal(quire_sessions_commit(sessions, params.session, &message, 1, kept, n_kept, 2),
                     QUIRE_OK);
    finish_as(request, QUIRE_FINISH_LENGTH);
    quire_sessions_leave(sessions, params.session, 2);
    assert_int_equal(quire_engine_sessions_kv(b.engine, items, 3), QUIRE_OK);
    assert_int_equal(items[0].bytes, 4 * tiny_page_bytes(PAGE));
    assert_int_equal(items[0].own_bytes, items[0].bytes);
    assert_int_equal(items[1].bytes + items[1].own_bytes + items[2].bytes + items[2].own_bytes, 0);
    assert_int_equal(quire_engine_sessions_kv(b.engine, items, 0), QUIRE_OK);

    assert_int_equal(quire_engine_accounts_get(b.engine, infos, 2), QUIRE_OK);
    assert_int_equal(infos[0].quota_bytes, 0);
    assert_int_equal(infos[1].quota_bytes, 7);
    assert_int_equal(infos[1].weight, 3);
    assert_int_equal(quire_engine_regions(b.engine, regions), 2);
    assert_int_equal(regions[0].id, QUIRE_REGION_DYNAMIC);
    assert_int_equal(regions[1].stats.budget_bytes, 2 * tiny_page_bytes(PAGE));
    bench_close(&b);
}

/* Slices of any length, up to many shares: over time they take the share, and a slice at most. */
static void test_share_of_steps(void **state)
{
    const double slice_most_ns = 100000.0;
    quire_chore_budget budget = { 0 };
    quire_rng rng = test_rng(61);
    double steps_ns = 0.0, spent_ns = 0.0;

    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        const uint64_t step_us = 1 + quire_rng_below(&rng, 5000);
        const double may_ns = quire_chore_budget_ns(&budget, step_us);
        double now_ns = 0.0;

        assert_true(may_ns <= (double)step_us * 1e3 * QUIRE_VIEW_SHARE);
        while (now_ns < may_ns) {
            now_ns += (double)quire_rng_below(&rng, (uint32_t)slice_most_ns);
        }
        quire_chore_budget_spend(&budget, step_us, now_ns);
        steps_ns += (double)step_us * 1e3;
        spent_ns += now_ns;
        assert_true(spent_ns <= steps_ns * QUIRE_VIEW_SHARE + slice_most_ns);
    }
    assert_true(spent_ns > steps_ns * QUIRE_VIEW_SHARE * 0.9); /* and it is used */
    /* Unused budget is not saved up; while nothing runs there is a budget without a step. */
    budget = (quire_chore_budget){ 0 };
    quire_chore_budget_spend(&budget, 1000000, 0.0);
    assert_true(quire_chore_budget_ns(&budget, 1000) <= 1e6 * QUIRE_VIEW_SHARE);
    budget.debt_ns = 1e9;
    assert_true(quire_chore_budget_ns(&budget, 1000) < 0.0);
    assert_true(quire_chore_budget_ns(&budget, 0) > 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_at_rest),
        cmocka_unit_test(test_pages_while_it_runs),
        cmocka_unit_test(test_sessions_and_accounts),
        cmocka_unit_test(test_share_of_steps),
    };

    return cmocka_run_group_tests_name("views", tests, NULL, NULL);
}
