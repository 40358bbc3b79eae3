/* test_engine_sim.c - the simulator against the engine: the same requests on small models whose
 * layers have windows or states get the same hits, with and without a shortage of memory.
 *
 * Prompts are whole blocks and the last block of each is new, so that hits end at blocks; an answer
 * is one token, which is never computed.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "rounds.h"
#include "seed.h"
#include "tier_kit.h"

#include "model/recurrent.h"
#include "trace/sim/sim.h"

#define N_REQUESTS TEST_ROUNDS(60, 25)
#define N_TALKS    5u /* conversations at once */
#define BLOCKS_MAX (N_CTX / PAGE - 1)
#define WINDOW     70
#define EVERY      (4 * PAGE)
#define CHUNK      128u

typedef struct scene {
    engine_bench bench;
    quire_trace trace;
    quire_sim_opts sim;
    uint32_t hits[N_REQUESTS]; /* of the engine, in blocks */
} scene;

/* The contents of a block: its first token is its own. */
static void block_make(int32_t *tokens, uint64_t content)
{
    tokens_make(tokens, PAGE, 1000 + content);
    tokens[0] = 10 + (int32_t)(content % 250);
}

/* Conversations that begin with one of two system prompts: a turn adds one to three blocks. Now and
 * then a turn parts from its conversation early. */
static void trace_make(quire_trace *trace, quire_rng *rng)
{
    uint64_t talks[N_TALKS][BLOCKS_MAX] = { { 0 } };
    uint32_t n_blocks[N_TALKS] = { 0 };
    uint64_t next = 10;

    quire_trace_init(trace, NULL);
    trace->block_tokens = PAGE;
    trace->has_contents = true;
    trace->n_classes = 1;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const uint32_t t = quire_rng_below(rng, N_TALKS);
        const uint32_t n_new = 1 + quire_rng_below(rng, 3);
        quire_trace_request request = { .time_us = (i + 1) * UINT64_C(1000000000),
                                        .n_output_tokens = 1 };

        if (n_blocks[t] + n_new > BLOCKS_MAX || n_blocks[t] == 0) {
            const uint64_t system = 3 * quire_rng_below(rng, 2);

            for (n_blocks[t] = 0; n_blocks[t] < 3; n_blocks[t]++) {
                talks[t][n_blocks[t]] = system + n_blocks[t];
            }
        } else if (quire_rng_below(rng, 6) == 0) {
            n_blocks[t] = 1 + quire_rng_below(rng, n_blocks[t]);
        }
        for (uint32_t b = 0; b < n_new; b++) {
            talks[t][n_blocks[t]++] = next++;
        }
        request.n_blocks = n_blocks[t];
        request.n_input_tokens = n_blocks[t] * PAGE;
        assert_int_equal(quire_trace_add_keys(trace, &request, talks[t]), QUIRE_OK);
    }
    quire_trace_finish(trace);
}

/* The tokens of a request, by its ids: the trace's ids are chained, and so are texts here. */
static uint32_t text_make(const quire_trace *trace, uint32_t i, int32_t *tokens)
{
    const quire_trace_request *request = &trace->requests[i];
    const uint32_t *ids = quire_trace_blocks(trace, request);

    for (uint32_t b = 0; b < request->n_blocks; b++) {
        block_make(tokens + b * PAGE, ids[b]);
    }
    return request->n_input_tokens;
}

static void engine_run(scene *s)
{
    int32_t text[N_CTX], got[N_TOKENS];

    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const uint32_t n = text_make(&s->trace, i, text);
        const quire_request_params params = params_greedy(text, n, 1);

        s->hits[i] = tier_run(&s->bench, &params, got);
        assert_int_equal(s->hits[i] % PAGE, 0);
        s->hits[i] /= PAGE;
    }
    validate(s->bench.engine);
}

static uint32_t hits_sum(const scene *s)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        sum += s->hits[i];
    }
    return sum;
}

/* The simulator's hits of the first n requests, for each n, must be the engine's. */
static void compare(scene *s, quire_sim_mode mode)
{
    const uint32_t n_requests = s->trace.n_requests;
    uint64_t before = 0;

    s->sim.mode = mode;
    for (uint32_t n = 1; n <= n_requests; n++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_sim_result result;

        s->trace.n_requests = n;
        if (quire_sim_run(&s->trace, &s->sim, &result, &err) < 0) {
            fail_msg("%s", err.message);
        }
        if (result.hit_blocks - before != s->hits[n - 1]) {
            fail_msg("request %u: %u blocks hit, simulated %u", n, s->hits[n - 1],
                     (unsigned)(result.hit_blocks - before));
        }
        before = result.hit_blocks;
        quire_sim_result_fini(&result);
    }
    s->trace.n_requests = n_requests;
}

typedef struct kind {
    const char *arch; /* NULL: windows */
    bool has_halves;  /* states are cached in f16 */
    int32_t windows[4];
} kind;

static engine_bench bench_of(const kind *k, uint64_t budget_bytes)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 1);

    engine.precache.is_off = true;
    engine.cache_policy = QUIRE_EVICT_LRU;
    engine.chunk_tokens = CHUNK;
    engine.state_every_tokens = EVERY;
    runtime.n_batch = CHUNK;
    runtime.kv_budget_bytes = budget_bytes;
    runtime.state_format = k->has_halves ? QUIRE_FORMAT_F16 : QUIRE_FORMAT_F32;
    return k->arch != NULL ? bench_recurrent(k->arch, &engine, &runtime)
                           : bench_windows(k->windows, &engine, &runtime);
}

static quire_sim_opts sim_of(const engine_bench *b, uint64_t budget_bytes)
{
    const quire_kv_price price =
        quire_kv_price_make(quire_model_desc_get(b->model), quire_runtime_opts_get(b->runtime));

    return (quire_sim_opts){
        .policy = QUIRE_EVICT_LRU,
        .capacity_bytes = budget_bytes,
        .kv = { .block_bytes = price.main_page_bytes,
                .window_bytes = price.window_tokens != 0 ? price.window_page_bytes : 0,
                .window_tokens = price.window_tokens,
                .state_bytes = quire_runtime_state_bytes(b->runtime),
                .seq_state_bytes = quire_state_seq_bytes(quire_model_desc_get(b->model)) / 2,
                .state_every_tokens = EVERY },
        .cost = { .prefill_token_us = 1, .chunk_tokens = CHUNK, .n_running_max = 1 },
        .seed = 5,
    };
}

/* The bytes of one longest text. */
static uint64_t text_bytes(const kind *k)
{
    engine_bench b = bench_of(k, 0);
    const uint64_t bytes =
        quire_runtime_kv_bytes(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime));

    bench_close(&b);
    return bytes;
}

static void scene_run(const kind *k, double n_texts, uint64_t seed)
{
    const uint64_t budget_bytes = (uint64_t)(n_texts * (double)text_bytes(k));
    quire_rng rng = test_rng(seed);
    scene s = { .bench = bench_of(k, budget_bytes) };
    quire_engine_stats stats;

    s.sim = sim_of(&s.bench, budget_bytes);
    trace_make(&s.trace, &rng);
    engine_run(&s);
    assert_true(hits_sum(&s) > N_REQUESTS);
    stats = stats_now(s.bench.engine);
    compare(&s, QUIRE_SIM_TIME);
    if (n_texts > 50) { /* no shortage: answers and running requests do not matter */
        assert_int_equal(stats.prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY], 0);
        compare(&s, QUIRE_SIM_HITS);
    } else if (n_texts < 2) {
        assert_true(stats.prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
    }
    quire_trace_fini(&s.trace);
    bench_close(&s.bench);
}

static void test_same_hits(void **state)
{
    const kind *k = *state;

    scene_run(k, 100, 21);
    scene_run(k, 4, 22);
    scene_run(k, 1.5, 23);
}

int main(void)
{
    static const kind some = { .windows = { WINDOW, WINDOW, 0, 40 } };
    static const kind all = { .windows = { WINDOW, 33, WINDOW, 40 } };
    static const kind none = { .windows = { 0 } };
    static const kind lfm2 = { .arch = "lfm2" };
    static const kind qwen35 = { .arch = "qwen35" };
    static const kind halves = { .arch = "qwen35", .has_halves = true };
    const struct CMUnitTest tests[] = {
        { "no windows", test_same_hits, NULL, NULL, (void *)(uintptr_t)&none },
        { "windows", test_same_hits, NULL, NULL, (void *)(uintptr_t)&some },
        { "all layers have windows", test_same_hits, NULL, NULL, (void *)(uintptr_t)&all },
        { "small states", test_same_hits, NULL, NULL, (void *)(uintptr_t)&lfm2 },
        { "large states", test_same_hits, NULL, NULL, (void *)(uintptr_t)&qwen35 },
        { "states in f16", test_same_hits, NULL, NULL, (void *)(uintptr_t)&halves },
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
