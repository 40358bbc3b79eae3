/* test_condensing_windows.c - texts that keep a share of their tokens in models with windows:
 * layers without a window drop tokens, the others keep their window; the bits of `quire run
 * --retain` where no token in a window is dropped there, either; the same bits after a miss, a hit,
 * a preemption and a restart; memory.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"
#include "mem_disk.h"

#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"

#include <string.h>

#define WIDE 256u /* tokens between two condensings */

static const int32_t windows[4] = { 100, 0, 100, 0 };
static const int32_t uneven[4] = { 40, 100, 0, 0 };

/* The last tokens are kept, more than the windows see: so `quire run`, which drops in all layers,
 * drops no token of a window. */
static void same_as_run(const setting *s)
{
    static answer want, want_short;
    engine_bench b = condense_bench(s);
    quire_engine_stats stats;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    expect(&b, s, text, N_PROMPT, &want);
    expect(&b, s, text, 2 * WIDE + 1, &want_short);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), 0);
    stats = stats_now(b.engine);
    assert_int_equal(stats.condensings_total, 2);
    assert_true(check(&b, s->policy, text, N_PROMPT, &want) >= 2 * WIDE);
    assert_int_equal(check(&b, s->policy, text, 2 * WIDE + 1, &want_short), 2 * WIDE);
    assert_int_equal(stats_now(b.engine).condensings_total, stats.condensings_total);
    validate(b.engine);
    bench_close(&b);
}

static void test_bits_of_run(void **state)
{
    static const char *const policies[] = { "window:0.5,sinks=0,recent=0,granule=64",
                                            "window:0.5,sinks=4,recent=124,granule=64",
                                            "last:0.5,recent=0,granule=64" };
    setting s = { .chunk = WIDE };

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        s.policy = policies[i];
        s.windows = i == 1 ? uneven : windows;
        s.format = QUIRE_FORMAT_F16;
        s.chunk_tokens = 0;
        same_as_run(&s);
        s.format = QUIRE_FORMAT_Q8;
        s.chunk_tokens = 70;
        same_as_run(&s);
    }
}

/* ---- hits, preemptions, restarts ---- */

static const char *const all_policies[] = {
    "keydiff:0.5,recent=60",        "entropy:0.5,recent=60,full_layers=none",
    "snap:0.5,recent=60,floor=0.1", "reconstruct:0.5,recent=60,repeat=100",
    "predict:0.5,recent=60",        "heavy:0.5,recent=60"
};
#define N_POLICIES (sizeof all_policies / sizeof all_policies[0])

/* The answer of a text that nothing was cached of. */
static void miss_of(const setting *s, const int32_t *text, uint32_t n_prompt, answer *want)
{
    setting miss = *s;
    engine_bench b;

    miss.no_prefix_cache = true;
    miss.chunk_tokens = 70;
    miss.n_pages = 0;
    miss.store = NULL;
    b = condense_bench(&miss);
    assert_int_equal(answer_take(&b, s->policy, text, n_prompt, want), 0);
    bench_close(&b);
}

static void hit_is_miss(const setting *s)
{
    static answer want, want_short;
    engine_bench b;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    miss_of(s, text, N_PROMPT, &want);
    miss_of(s, text, 2 * WIDE + 1, &want_short);
    b = condense_bench(s);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), 0);
    assert_int_equal(stats_now(b.engine).condensings_total, 2);
    assert_true(check(&b, s->policy, text, N_PROMPT, &want) >= 2 * WIDE);
    assert_int_equal(check(&b, s->policy, text, 2 * WIDE + 1, &want_short), 2 * WIDE);
    assert_int_equal(stats_now(b.engine).condensings_total, 2);
    validate(b.engine);
    bench_close(&b);
}

static void test_hits(void **state)
{
    setting s = { .chunk = WIDE, .windows = windows, .maps = 1, .has_kv_recent = true };

    (void)state;
    for (size_t i = 0; i < N_POLICIES; i++) {
        s.policy = all_policies[i];
        s.format = QUIRE_FORMAT_F16;
        hit_is_miss(&s);
        s.format = QUIRE_FORMAT_Q4;
        hit_is_miss(&s);
    }
}

/* Policies and a plain text at once, in little memory: evictions and preemptions change nothing. */
static void side_by_side(quire_format format, uint32_t n_pages)
{
    setting s = { .format = format,
                  .chunk = WIDE,
                  .windows = windows,
                  .n_pages = n_pages,
                  .maps = 1,
                  .has_kv_recent = true };
    static answer want[N_POLICIES + 1];
    quire_request *requests[N_POLICIES + 1];
    engine_bench b;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    for (uint32_t i = 0; i <= N_POLICIES; i++) {
        s.policy = i < N_POLICIES ? all_policies[i] : NULL;
        miss_of(&s, text, N_PROMPT, &want[i]);
    }
    b = condense_bench(&s);
    for (uint32_t round = 0; round < 3; round++) {
        gate *g = gate_close(b.engine);

        for (uint32_t i = 0; i <= N_POLICIES; i++) {
            requests[i] = ask(&b, i < N_POLICIES ? all_policies[i] : NULL, text, N_PROMPT);
        }
        gate_open(g);
        for (uint32_t i = 0; i <= N_POLICIES; i++) {
            (void)answer_check(requests[i], &want[i]);
        }
    }
    assert_true(stats_now(b.engine).prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
    validate(b.engine);
    bench_close(&b);
}

static void test_side_by_side(void **state)
{
    (void)state;
    side_by_side(QUIRE_FORMAT_F16, 28);
    side_by_side(QUIRE_FORMAT_Q4, 60);
}

/* Layers without a window hold the kept share and the tokens behind it; the others their window. A
 * request that is preempted gives the same answer. */
static void test_memory(void **state)
{
    const setting s = { .policy = "keydiff:0.5,sinks=0,recent=0",
                        .format = QUIRE_FORMAT_F16,
                        .chunk = WIDE,
                        .windows = windows };
    static answer want;
    engine_bench b;
    quire_loop *loop;
    quire_request *request;
    bool is_done = false;
    gate *g;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    miss_of(&s, text, N_PROMPT, &want);
    b = condense_bench(&s);
    loop = b.engine->loop;
    g = gate_close(b.engine);
    request = ask(&b, s.policy, text, N_PROMPT);
    while (!is_done) {
        quire_request *r;

        gate_step(g);
        r = loop->set.n_running > 0 ? loop->set.running[0] : NULL;
        if (r != NULL && r->kv.n_condensings == 2 && r->state == QUIRE_REQUEST_DECODE) {
            const quire_kv_price *price = &loop->room.price;
            const uint32_t n_kept = quire_condensing_kept(&r->condensing, 2) / 64;
            quire_cache_stats stats;

            quire_cache_stats_get(loop->cache, &stats);
            assert_true(n_kept < 2 * WIDE / 64);
            assert_true(stats.live_bytes >= n_kept * price->main_page_bytes);
            /* A window of 100 tokens and the rows of a step touch 4 pages at the most. */
            assert_true(stats.live_bytes <=
                        (n_kept + 3) * price->main_page_bytes + 4 * price->window_page_bytes);
            quire_loop_preempt(loop, r);
            r->wait.blocked_at = 0; /* as if pages had been released since */
            is_done = true;
        }
    }
    gate_open(g);
    (void)answer_check(request, &want);
    validate(b.engine);
    bench_close(&b);
}

/* Another process finds the kept pages with the windows behind them. */
static void test_restart(void **state)
{
    setting s = { .policy = "snap:0.5,recent=60,floor=0.1",
                  .format = QUIRE_FORMAT_F16,
                  .chunk = WIDE,
                  .windows = windows };
    mem_disk *disk = mem_disk_new();
    static answer want;
    engine_bench b;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    miss_of(&s, text, N_PROMPT, &want);
    s.store = mem_disk_store(disk);
    b = condense_bench(&s);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
    bench_close(&b);
    s.store = mem_disk_store(disk);
    b = condense_bench(&s);
    assert_true(check(&b, s.policy, text, N_PROMPT, &want) >= 2 * WIDE);
    assert_int_equal(stats_now(b.engine).condensings_total, 0);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_run),  cmocka_unit_test(test_hits),
        cmocka_unit_test(test_side_by_side), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_restart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
