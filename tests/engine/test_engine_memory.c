/* test_engine_memory.c - budgets: preemption, reservation, requests that cannot go on; nothing ends
 * another's request.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "seed.h"

#include <string.h>

#define N_CTX    512u
#define N_MANY   8u
#define N_PROMPT 120u
#define N_TOKENS 200u

/* Room for one context: five pages for three of these requests at their end. */
static engine_bench bench_tight(quire_admit admit, bool no_prefix_cache)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);

    engine.admit = admit;
    engine.no_prefix_cache = no_prefix_cache;
    return bench_tiny(&engine, &runtime);
}

/* N_MANY requests that end with the tokens of the plain loop. Returns how often one was preempted.
 */
static uint32_t many_equal_the_plain_loop(engine_bench *b, uint64_t seed)
{
    int32_t prompts[N_MANY][N_PROMPT], expected[N_TOKENS], got[N_TOKENS];
    quire_request *requests[N_MANY];
    uint32_t n_preemptions = 0;
    gate *g;

    g = gate_close(b->engine);
    for (uint32_t i = 0; i < N_MANY; i++) {
        quire_request_params params = params_greedy(prompts[i], N_PROMPT, N_TOKENS);

        tokens_make(prompts[i], N_PROMPT, seed + i);
        requests[i] = submit(b, &params);
    }
    gate_open(g);
    for (uint32_t i = 0; i < N_MANY; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        reference(b, prompts[i], N_PROMPT, expected, N_TOKENS);
        assert_memory_equal(got, expected, sizeof got);
        n_preemptions += quire_request_result_get(requests[i])->n_preemptions;
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    validate(b->engine);
    return n_preemptions;
}

static void preemption_changes_no_token(bool no_prefix_cache)
{
    engine_bench b = bench_tight(QUIRE_ADMIT_GROW, no_prefix_cache);
    const uint32_t n_preemptions = many_equal_the_plain_loop(&b, 100);
    const quire_engine_stats stats = stats_now(b.engine);

    assert_true(n_preemptions > 0);
    assert_int_equal(stats.preemptions_total, n_preemptions);
    assert_int_equal(stats.finished_length_total, N_MANY);
    assert_int_equal(stats.generated_tokens_total, N_MANY * N_TOKENS);
    assert_int_equal(stats.computed_prompt_tokens_total,
                     N_MANY * N_PROMPT + stats.recomputed_tokens_total + n_preemptions);
    if (no_prefix_cache) {
        assert_true(stats.recomputed_tokens_total >= n_preemptions * N_PROMPT);
    }
    assert_true(stats.cache.charged_peak_bytes <= stats.cache.budget_bytes);
    bench_close(&b);
}

static void test_preemption(void **state)
{
    (void)state;
    preemption_changes_no_token(false);
}

static void test_preemption_without_cache(void **state)
{
    (void)state;
    preemption_changes_no_token(true);
}

/* With memory reserved for whole answers, no request is preempted. */
static void test_reservation(void **state)
{
    engine_bench b = bench_tight(QUIRE_ADMIT_RESERVE, false);
    quire_engine_stats stats;

    (void)state;
    assert_int_equal(many_equal_the_plain_loop(&b, 200), 0);
    stats = stats_now(b.engine);
    assert_int_equal(stats.preemptions_total, 0);
    /* Requests that waited for room still looked up the tree only once. */
    assert_int_equal(stats.prefix.query_tokens_total, N_MANY * N_PROMPT);
    bench_close(&b);
}

/* The low one gives way though it came first. */
static void test_the_low_one_gives_way(void **state)
{
    engine_bench b = bench_tight(QUIRE_ADMIT_GROW, false);
    int32_t prompts[2][N_PROMPT];
    quire_request *requests[2];
    gate *g;

    (void)state;
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 2; i++) {
        quire_request_params params = params_greedy(prompts[i], N_PROMPT, N_TOKENS);

        tokens_make(prompts[i], N_PROMPT, 300 + i);
        params.priority = (int32_t)i;
        requests[i] = submit(&b, &params);
    }
    gate_open(g);
    assert_true(finish(requests[0])->n_preemptions > 0);
    assert_int_equal(finish(requests[1])->n_preemptions, 0);
    finish_as(requests[0], QUIRE_FINISH_LENGTH);
    finish_as(requests[1], QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* A large request that waits for room is not overtaken by small ones that would fit. */
static void test_a_large_one_gets_its_turn(void **state)
{
    engine_bench b = bench_tight(QUIRE_ADMIT_GROW, true);
    int32_t prompts[5][N_CTX];
    quire_request *requests[5];
    quire_engine_stats stats;
    gate *g = gate_close(b.engine);

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        const quire_request_params params = params_greedy(prompts[i],
                                                          i == 0   ? N_PROMPT
                                                          : i == 1 ? 400
                                                                   : 8,
                                                          30);

        tokens_make(prompts[i], N_CTX, 350 + i);
        requests[i] = submit(&b, &params);
    }
    for (int i = 0; i < 10; i++) {
        gate_step(g);
        quire_engine_stats_get(b.engine, &stats);
        assert_int_equal(stats.requests_waiting, 4);
        assert_int_equal(stats.requests_prefilling + stats.requests_decoding, 1);
    }
    gate_open(g);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(finish(requests[i])->n_preemptions, 0);
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    bench_close(&b);
}

/* ---- the budget shrinks under them ---- */

static void budget_set_pages(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const uint64_t *bytes = ctx;

    (void)quire_prefix_drop_all(tree, 0);
    assert_int_equal(quire_region_budget_set(cache, QUIRE_REGION_DYNAMIC, *bytes), QUIRE_OK);
}

static void test_alone_and_stuck(void **state)
{
    engine_bench b = bench_tight(QUIRE_ADMIT_GROW, false);
    const quire_runtime_opts *opts = quire_runtime_opts_get(b.runtime);
    quire_runtime_opts two = *opts;
    int32_t prompt[N_CTX];
    quire_request_params params = params_greedy(prompt, 100, 0);
    const quire_request_result *result;
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request, *refused;
    uint64_t bytes;

    (void)state;
    tokens_make(prompt, N_CTX, 400);
    two.n_ctx = 2 * two.page_tokens;
    bytes = quire_runtime_kv_bytes(quire_model_desc_get(b.model), &two);
    assert_int_equal(engine_call(b.engine, budget_set_pages, &bytes), QUIRE_OK);
    request = submit(&b, &params); /* its answer ends when memory is full */
    result = finish(request);
    assert_int_equal(result->n_generated_tokens, 2 * two.page_tokens - 100 + 1);
    finish_as(request, QUIRE_FINISH_LENGTH);

    params.n_tokens = 2 * two.page_tokens; /* cannot generate */
    assert_int_equal(quire_engine_submit(b.engine, &params, &refused, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "budget"));
    assert_null(refused);

    bench_close(&b);
}

/* Accepted when the budget was large enough, admitted when it is not: an error that says so. */
typedef struct shrink {
    const engine_bench *bench;
    const quire_request_params *params;
    quire_request *request;
    uint64_t bytes;
} shrink;

static void submit_then_shrink(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    shrink *s = ctx;

    s->request = submit(s->bench, s->params);
    budget_set_pages(&s->bytes, cache, tree);
}

static void test_a_prompt_that_fits_no_more(void **state)
{
    engine_bench b = bench_tight(QUIRE_ADMIT_GROW, false);
    quire_runtime_opts two = *quire_runtime_opts_get(b.runtime);
    int32_t prompt[N_CTX];
    quire_request_params params = params_greedy(prompt, 300, 4);
    shrink s = { &b, &params, NULL, 0 };

    (void)state;
    tokens_make(prompt, N_CTX, 500);
    two.n_ctx = 2 * two.page_tokens;
    s.bytes = quire_runtime_kv_bytes(quire_model_desc_get(b.model), &two);
    assert_int_equal(engine_call(b.engine, submit_then_shrink, &s), QUIRE_OK);
    assert_int_equal(finish(s.request)->status, QUIRE_NOPAGES);
    assert_non_null(strstr(finish(s.request)->message, "budget"));
    finish_as(s.request, QUIRE_FINISH_ERROR);
    params.n_tokens = 50;
    finish_as(submit(&b, &params), QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* ---- cancel ---- */

/* Unshared pages of a cancelled request are free for the next request within one step. */
static void test_cancel_frees_pages(void **state)
{
    engine_bench b = bench_tight(QUIRE_ADMIT_RESERVE, true);
    int32_t prompt[N_CTX];
    quire_request_params params = params_greedy(prompt, 400, 100);
    quire_request *large, *next;
    quire_request_token token;
    quire_engine_stats before, after;
    gate *g;

    (void)state;
    tokens_make(prompt, N_CTX, 600);
    g = gate_close(b.engine);
    large = submit(&b, &params);
    next = submit(&b, &params); /* does not fit beside it */
    gate_step(g);
    gate_step(g);
    quire_engine_stats_get(b.engine, &before);
    assert_int_equal(before.cache.pages_live, 7);
    assert_int_equal(before.requests_waiting, 1);
    quire_request_cancel(large);
    gate_step(g);
    quire_engine_stats_get(b.engine, &after);
    assert_int_equal(after.requests_waiting, 0);
    assert_int_equal(after.cache.pages_live, 4); /* the first chunk of the next */
    gate_open(g);
    finish_as(large, QUIRE_FINISH_CANCEL);
    assert_int_equal(quire_request_wait(next, 0, FIXTURE_WAIT_MS, &token), 1);
    quire_request_cancel(next);
    (void)finish(next);
    quire_request_release(next);
    after = stats_now(b.engine);
    assert_int_equal(after.cache.pages_live, 0);
    assert_int_equal(after.preemptions_total, 0);
    bench_close(&b);
}

/* ---- a request that finds its prompt cached, but no room to run ---- */

#define N_CACHED 256u /* tokens: four of the eight pages */
#define N_ROUNDS 8u

typedef struct hits {
    uint32_t n_nodes;
    uint32_t n_hits;
} hits;

static int hits_add(void *ctx, const quire_prefix_node_info *node)
{
    hits *h = ctx;

    h->n_nodes++;
    h->n_hits += node->hits;
    return 0;
}

static void hits_count(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)quire_prefix_visit(tree, hits_add, ctx);
}

/* Pages that the request would hit count as free until it holds them, so it seems to fit each time.
 * Still it looks up the tree only once, at admission, and its pages are hit once. */
static void test_put_back_counts_once(void **state)
{
    engine_bench b = bench_tight(QUIRE_ADMIT_GROW, false);
    int32_t cached[N_CACHED + 10], other[130];
    quire_request_params params = params_greedy(cached, N_CACHED, 1);
    quire_request *running, *waiting;
    quire_engine_stats stats;
    hits h = { 0 };
    gate *g;

    (void)state;
    tokens_make(cached, N_CACHED + 10, 800);
    tokens_make(other, 130, 801);
    finish_as(submit(&b, &params), QUIRE_FINISH_LENGTH);
    g = gate_close(b.engine);
    params = params_greedy(other, 130, 40);
    running = submit(&b, &params);
    gate_step(g);
    params = params_greedy(cached, N_CACHED + 10, 1);
    waiting = submit(&b, &params);
    for (uint32_t i = 0; i < N_ROUNDS; i++) { /* each of which looks for room again */
        gate_step(g);
    }
    quire_engine_stats_get(b.engine, &stats);
    gate_open(g);
    finish_as(running, QUIRE_FINISH_LENGTH);
    assert_int_equal(finish(waiting)->n_cached_tokens, N_CACHED);
    finish_as(waiting, QUIRE_FINISH_LENGTH);
    assert_int_equal(stats.requests_waiting, 1); /* so it had no room in any round */
    stats = stats_now(b.engine);
    assert_int_equal(stats.prefix.lookups_total, 3);
    assert_int_equal(stats.prefix.hits_total, 1);
    assert_int_equal(stats.prefix.query_tokens_total, N_CACHED + 130 + N_CACHED + 10);
    assert_int_equal(stats.prefix.hit_tokens_total, N_CACHED);
    assert_int_equal(engine_call(b.engine, hits_count, &h), QUIRE_OK);
    assert_true(h.n_nodes >= N_CACHED / 64);
    assert_int_equal(h.n_hits, N_CACHED / 64); /* the policy learns from these hits */
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_preemption_without_cache),
        cmocka_unit_test(test_reservation),
        cmocka_unit_test(test_the_low_one_gives_way),
        cmocka_unit_test(test_a_large_one_gets_its_turn),
        cmocka_unit_test(test_alone_and_stuck),
        cmocka_unit_test(test_a_prompt_that_fits_no_more),
        cmocka_unit_test(test_cancel_frees_pages),
        cmocka_unit_test(test_put_back_counts_once),
    };

    return cmocka_run_group_tests_name("engine_memory", tests, NULL, NULL);
}
