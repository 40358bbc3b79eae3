/* tier_kit.c - see tier_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "doze.h"
#include "tier_kit.h"

quire_store *tier_store_new(void)
{
    const quire_memory_store_opts opts = { .outlives = true };
    quire_store *store;

    assert_int_equal(quire_memory_store_create(&store, &opts), QUIRE_OK);
    return store;
}

engine_bench tier_bench(quire_store *store, quire_format format, bool copies_all)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    runtime.k_format = runtime.v_format = format;
    engine.tier = (quire_tier_opts){ .store = store,
                                     .copies_all = copies_all,
                                     .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    return bench_tiny(&engine, &runtime);
}

uint32_t tier_run(const engine_bench *b, const quire_request_params *params, int32_t *got)
{
    quire_request *request = submit(b, params);
    const quire_request_result *result;
    uint32_t n_cached;

    assert_int_equal(collect(request, got, N_TOKENS), params->max_tokens);
    result = quire_request_result_get(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    n_cached = result->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

void tier_expect(const engine_bench *b, const quire_request_params *params, uint32_t n_cached,
                 int32_t *got)
{
    int32_t expected[N_TOKENS];

    assert_true(reference(b, params->tokens, params->n_tokens, expected, N_TOKENS) >
                REFERENCE_GAP_MIN);
    assert_int_equal(tier_run(b, params, got), n_cached);
    assert_memory_equal(got, expected, sizeof expected);
}

static void tree_forget(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_drop_all(tree, 0);
}

void tier_forget(const engine_bench *b)
{
    assert_int_equal(engine_call(b->engine, tree_forget, NULL), QUIRE_OK);
}

void tier_wait_records(const engine_bench *b, uint64_t n)
{
    quire_engine_stats stats;

    for (uint32_t i = 0; i < FIXTURE_WAIT_MS; i++) {
        quire_engine_stats_get(b->engine, &stats);
        if (stats.tier.store.records >= n) {
            assert_int_equal(stats.tier.store.records, n);
            return;
        }
        test_doze_ms();
    }
    fail_msg("the store has %u records", (unsigned)stats.tier.store.records);
}
