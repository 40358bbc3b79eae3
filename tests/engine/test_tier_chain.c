/* test_tier_chain.c - an engine over two stores: the engine fetches pages that either store
 * has; figures and events name each store.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "tier_kit.h"

#include "doze.h"
#include "store/chain_store.h"

#include <string.h>

#define N_PAGES (N_PROMPT / PAGE + 1) /* with the open one */

static engine_bench chain_bench(quire_store *near, quire_store *far)
{
    quire_store *chain;

    assert_int_equal(
        quire_chain_store_create(&chain, &(quire_chain_store_opts){ .near = near, .far = far }),
        QUIRE_OK);
    return tier_bench(chain, QUIRE_FORMAT_F32, true);
}

/* Another machine with an empty directory and the same far store: everything comes from there, is
 * kept near, and the answer is the same. */
static void test_far_serves(void **state)
{
    quire_store *stores[3] = { tier_store_new(), tier_store_new(), tier_store_new() };
    quire_store *far = stores[2];
    engine_bench b = chain_bench(stores[0], far);
    int32_t text[N_PROMPT], first[N_TOKENS], again[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_tier_stats tier;
    quire_store_stats near;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(tier_run(&b, &params, first), 0);
    bench_close(&b);
    far->ops->stats(far, &near);
    assert_int_equal(near.records, N_PAGES);

    b = chain_bench(stores[1], far);
    assert_int_equal(tier_run(&b, &params, again), N_PROMPT - 1);
    assert_memory_equal(first, again, sizeof first);
    tier = stats_now(b.engine).tier;
    assert_string_equal(tier.name, "memory+memory");
    assert_int_equal(tier.n_parts, 2);
    assert_int_equal(tier.parts[1].stats.results_total[QUIRE_STORE_OK], N_PAGES);
    assert_int_equal(tier.parts[0].stats.results_total[QUIRE_STORE_ABSENT], N_PAGES);
    assert_int_equal(tier.parts[0].stats.passed_total, N_PAGES);
    assert_int_equal(tier.store.results_total[QUIRE_STORE_OK], N_PAGES);
    bench_close(&b);
    stores[1]->ops->stats(stores[1], &near);
    assert_int_equal(near.records, N_PAGES);
    for (uint32_t i = 0; i < 3; i++) {
        quire_memory_store_destroy(stores[i]);
    }
}

/* The far store fails: an event names it, and pages go to the near one. */
static void test_far_fails(void **state)
{
    quire_store *near = tier_store_new();
    quire_store *far = tier_store_new();
    quire_memory_store_opts opts = { .outlives = true, .is_degraded = true };
    engine_bench b;
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);

    (void)state;
    far->name = "far";
    quire_memory_store_set(far, &opts);
    b = chain_bench(near, far);
    tokens_make(text, N_PROMPT, 1);
    (void)tier_run(&b, &params, got);
    tier_wait_records(&b, N_PAGES);
    while (events_of(&b, QUIRE_EVENT_STORE_DEGRADED,
                     "far store: no pages are written now: a test says so") == 0) {
        test_doze_ms();
    }
    assert_int_equal(events_of(&b, QUIRE_EVENT_STORE_DEGRADED, ""), 1);
    assert_int_equal(stats_now(b.engine).tier.store.state, QUIRE_STORE_READY);
    tier_forget(&b);
    assert_int_equal(tier_run(&b, &params, got), N_PROMPT - 1);
    bench_close(&b);
    quire_memory_store_destroy(near);
    quire_memory_store_destroy(far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_serves),
        cmocka_unit_test(test_far_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
