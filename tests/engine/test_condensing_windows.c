/* test_condensing_windows.c - texts that keep a share of their tokens in models with windows:
 * layers without a window drop tokens, the others keep their window; the bits of `quire run
 * --retain`; the same bits after a miss, a hit, a preemption and a restart; memory.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"
#include "mem_disk.h"

#include "core/prefix/prefix_internal.h"
#include "engine/engine_halves.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"

#include <string.h>

#define WIDE 256u /* tokens between two condensings */

static const int32_t windows[4] = { 100, 0, 100, 0 };
static const int32_t uneven[4] = { 40, 100, 0, 0 };

/* `quire run` keeps the same tokens in layers without a window, and the windows of the others. */
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
                                            "last:0.5,recent=0,granule=64",
                                            "keydiff:0.5,sinks=0,recent=0,granule=64",
                                            "random:0.5,sinks=0,recent=0,granule=64",
                                            "entropy:0.5,recent=60,full_layers=none,granule=64",
                                            "snap:0.5,recent=60,floor=0.1,granule=64",
                                            "reconstruct:0.5,recent=60,repeat=100,granule=64",
                                            "predict:0.5,recent=60,granule=64",
                                            "expected:0.5,recent=60,granule=64",
                                            "heavy:0.5,recent=60,granule=64" };
    setting s = { .chunk = WIDE, .maps = 1 };

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

    miss.chunk_tokens = 70;
    condense_miss(&miss, text, n_prompt, want);
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

/* A text whose kept tokens are in the tree, and a page behind them. */
typedef struct held_text {
    quire_loop *loop;
    const int32_t *tokens;
    uint32_t n_tokens;
    const quire_condensing *condensing;
    quire_seq_id seq;
    quire_prefix_ref ref;
} held_text;

/* A quire_loop_fn: a sequence holds the text, and all other pages of windows are evicted. */
static void hold(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    held_text *h = ctx;
    const quire_condensed_text text = { .condensing = h->condensing, .tokens = h->tokens };
    const quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX, .is_private = true };
    const uint32_t n_gone = quire_condensing_gone(h->condensing, 1);
    quire_prefix_match match = { .n_tokens = 0 };
    uint32_t k = 0;
    const quire_condensed entry = quire_loop_condensed_find(h->loop, &text, 1, &k);
    const quire_prefix_key key = quire_loop_condensed_key(h->loop, NULL, 0, entry);

    (void)quire_seq_open(cache, QUIRE_REGION_DYNAMIC, &h->seq);
    (void)quire_prefix_acquire(tree, &key, h->seq, h->tokens + n_gone, h->n_tokens - n_gone, &opts,
                               &match, &h->ref);
    for (quire_window_list list = QUIRE_WINDOW_FREE; list < QUIRE_WINDOW_LISTS; list++) {
        quire_prefix_windows_evict(tree, (quire_evict_ask){ QUIRE_REGION_DYNAMIC, QUIRE_EVICT_ANY },
                                   list, UINT64_MAX);
    }
    h->n_tokens = k == 1 ? match.n_tokens : 0;
}

/* A quire_loop_fn. */
static void let_go(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const held_text *h = ctx;

    (void)quire_prefix_release(tree, h->ref, 0);
    (void)quire_seq_close(cache, h->seq);
}

/* Two texts part at their last token, which ends a page. Of the one only this page has its window
 * in memory, of the other no page has. Without its last token the other looks like the one, with
 * all kept pages; with it nothing can be used. Such a hit is given up. */
static void test_last_token(void **state)
{
    static const int32_t short_windows[4] = { 64, 0, 64, 0 };
    const setting s = { .policy = "keydiff:0.5,recent=60",
                        .format = QUIRE_FORMAT_F16,
                        .chunk = WIDE,
                        .windows = short_windows };
    const quire_retain_spec spec = spec_of(s.policy);
    int32_t texts[2][WIDE + 64];
    static answer want[2];
    quire_condensing c;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        tokens_make(texts[i], WIDE + 64, 1);
        texts[i][WIDE + 63] = (int32_t)(270 + i);
    }
    for (uint32_t other = 0; other < 2; other++) {
        engine_bench b = condense_bench(&s);
        held_text h = { .loop = b.engine->loop,
                        .tokens = texts[1 - other],
                        .n_tokens = WIDE + 64,
                        .condensing = &c };

        for (uint32_t i = 0; i < 2; i++) {
            (void)answer_take(&b, s.policy, texts[i], WIDE + 64, &want[i]);
        }
        quire_condensing_init(&c, &spec, WIDE, 64, &h.loop->lanes.parts);
        assert_int_equal(engine_call(b.engine, hold, &h), QUIRE_OK);
        assert_int_equal(h.n_tokens, quire_condensing_kept(&c, 1) + 64);
        (void)check(&b, s.policy, texts[other], WIDE + 64, &want[other]);
        assert_int_equal(engine_call(b.engine, let_go, &h), QUIRE_OK);
        validate(b.engine);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_run),  cmocka_unit_test(test_hits),
        cmocka_unit_test(test_side_by_side), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_restart),      cmocka_unit_test(test_last_token),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
