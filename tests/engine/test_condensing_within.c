/* test_condensing_within.c - texts that are condensed within their own pages, because memory has no
 * room for the text before and after: the bytes at the most, the bits of a server with more memory,
 * and requests that find no page in the middle.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"
#include "directory.h"

#include "base/num.h"
#include "device/mock_device.h"
#include "engine/engine_halves.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"

#include <string.h>

#define WIDE    256u /* tokens between two condensings by lane */
#define ENTROPY "entropy:0.4,recent=60,full_layers=none"
#define SNAP    "snap:0.4,recent=60,floor=0.1"

/* The condensing of a setting in an engine. */
static quire_condensing condensing_of(const setting *s, const quire_loop *loop)
{
    const quire_retain_spec spec = spec_of(s->policy);
    quire_condensing c;

    quire_condensing_init(&c, &spec, loop->opts.retain_chunk, loop->runtime_opts->page_tokens,
                          &loop->lanes.parts);
    return c;
}

/* Pages of memory in which a text of n_tokens tokens can be computed, and no fewer. */
static uint32_t least_pages(const engine_bench *b, const setting *s, uint32_t n_tokens)
{
    const quire_loop *loop = b->engine->loop;
    const quire_condensing c = condensing_of(s, loop);
    const uint64_t bytes =
        quire_loop_condensing_bytes(loop, &c, quire_condensing_need(&c, n_tokens)) +
        loop->room.page_bytes;

    return (uint32_t)((bytes + loop->room.page_bytes - 1) / loop->room.page_bytes);
}

static quire_cache_stats cache_stats(const engine_bench *b)
{
    quire_cache_stats stats;

    quire_cache_stats_get(b->engine->loop->cache, &stats);
    return stats;
}

/* Whether memory has room for a text before and after its last condensing. */
static bool has_room(const engine_bench *b, const setting *s, uint32_t n_tokens)
{
    const quire_loop *loop = b->engine->loop;
    const quire_condensing c = condensing_of(s, loop);
    const uint32_t k = quire_condensing_before(&c, n_tokens - 1);
    const uint32_t n = quire_condensing_kept(&c, k - 1) + c.chunk + quire_condensing_kept(&c, k);

    return quire_loop_condensing_bytes(loop, &c, n) <= cache_stats(b).budget_bytes;
}

/* ---- the peak ---- */

#define N_LONG 4000u /* tokens of a prompt */
#define N_FULL 4096u /* and of the context */

/* A prompt is read in chunks of a 16th of the context, and a quarter is kept: the most memory that
 * pages take is under a third of that of all tokens. */
static void test_a_third(void **state)
{
    static const char *const policies[] = { "keydiff:0.25,recent=60", "snap:0.25,recent=60",
                                            "heavy:0.25,recent=60", "snap:0.25,recent=60" };
    static int32_t text[N_LONG];
    static answer want;

    (void)state;
    tokens_make(text, N_LONG, 1);
    for (uint32_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        setting s = { .policy = policies[i],
                      .format = QUIRE_FORMAT_F16,
                      .chunk = N_FULL / 16,
                      .n_ctx = N_FULL,
                      .device = i == 3 ? "mock" : NULL };
        engine_bench b = condense_bench(&s);
        const uint64_t full_bytes = N_FULL / 64 * b.engine->loop->room.page_bytes;

        (void)answer_take(&b, s.policy, text, N_LONG, &want);
        assert_true(cache_stats(&b).charged_peak_bytes > full_bytes / 2);
        s.n_pages = N_FULL / 64 * 33 / 100;
        bench_close(&b);
        b = condense_bench(&s);
        assert_false(has_room(&b, &s, N_FULL));
        assert_int_equal(check(&b, s.policy, text, N_LONG, &want), 0);
        assert_true(cache_stats(&b).charged_peak_bytes * 100 <= full_bytes * 33);
        assert_int_equal(stats_now(b.engine).preemptions_total, 0);
        assert_int_equal(stats_now(b.engine).computed_prompt_tokens_total, N_LONG);
        validate(b.engine);
        bench_close(&b);
    }
}

/* ---- the least budget ---- */

/* A runtime may have as much as admission demands for its longest text, and not less. */
static void least_of(const setting *s, bool is_less)
{
    engine_bench b = condense_bench(s);
    const quire_loop *loop = b.engine->loop;
    const quire_retain_spec spec = spec_of(s->policy);
    const quire_condensing c = condensing_of(s, loop);
    const uint32_t n_ctx = loop->runtime_opts->n_ctx;
    const uint64_t need = quire_loop_condensing_bytes(loop, &c, quire_condensing_need(&c, n_ctx));
    const uint64_t whole = quire_runtime_kv_bytes(loop->desc, loop->runtime_opts);
    const quire_condensing_on on = { loop->desc, loop->runtime_opts, &loop->lanes.parts };
    quire_runtime_opts opts = *loop->runtime_opts;
    quire_error err = QUIRE_ERROR_INIT;

    assert_true((need < whole) == is_less);
    opts.kv_least_bytes = quire_condensing_least_bytes(&on, &spec, loop->opts.retain_chunk);
    assert_int_equal(opts.kv_least_bytes, quire_min_u64(need, whole));
    opts.kv_budget_bytes = opts.kv_least_bytes;
    assert_int_equal(quire_runtime_opts_check(loop->desc, &opts, &err), QUIRE_OK);
    opts.kv_budget_bytes--;
    assert_int_equal(quire_runtime_opts_check(loop->desc, &opts, &err), QUIRE_NOPAGES);
    bench_close(&b);
}

static void test_least(void **state)
{
    static const int32_t windows[4] = { 64, 0, 64, 0 };
    static const setting less[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 },
        { .policy = SNAP, .format = QUIRE_FORMAT_Q8, .chunk = WIDE },
        { .policy = "keydiff:0.4,recent=60", .format = QUIRE_FORMAT_Q4, .chunk = WIDE },
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .windows = windows },
    };
    /* At its only place the text needs more than it would without a policy. */
    static const setting same = {
        .policy = "snap:0.7,recent=28", .format = QUIRE_FORMAT_F16, .chunk = 512, .n_ctx = 576
    };

    (void)state;
    for (size_t i = 0; i < sizeof less / sizeof less[0]; i++) {
        least_of(&less[i], true);
    }
    least_of(&same, false);
}

/* ---- bits ---- */

/* The least memory that admits a request is enough for it, and the bits are those of a server with
 * room for four contexts. */
static void same_bits(setting s)
{
    static answer want;
    engine_bench b = condense_bench(&s);
    quire_engine_stats stats;
    int32_t text[N_PROMPT];
    uint64_t n_condensings;

    tokens_make(text, N_PROMPT, 1);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    n_condensings = stats_now(b.engine).condensings_total;
    assert_true(n_condensings >= 2);
    s.n_pages = least_pages(&b, &s, N_PROMPT + N_TOKENS);
    bench_close(&b);
    b = condense_bench(&s);
    assert_false(has_room(&b, &s, N_PROMPT + N_TOKENS));
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
    stats = stats_now(b.engine);
    assert_int_equal(stats.condensings_total, n_condensings);
    assert_int_equal(stats.condensings_found_total, 0);
    assert_int_equal(stats.preemptions_total, 0);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    assert_int_equal(cache_stats(&b).pages_live, 0);
    validate(b.engine);
    bench_close(&b);
}

static void test_even(void **state)
{
    static const setting settings[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 },
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_Q8, .chunk_tokens = 50 },
        { .policy = "window:0.5,recent=32", .format = QUIRE_FORMAT_F32 },
        { .policy = STRIDE, .format = QUIRE_FORMAT_BF16, .no_prefix_cache = true },
        { .policy = "random:0.5,recent=32,seed=3", .format = QUIRE_FORMAT_F16, .page_tokens = 128 },
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16, .device = "mock" },
        { .policy = "last:0.5", .format = QUIRE_FORMAT_Q8, .device = "mock" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        same_bits(settings[i]);
    }
}

static void test_by_lane(void **state)
{
    static const setting settings[] = {
        { .policy = ENTROPY, .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = SNAP, .format = QUIRE_FORMAT_Q8, .chunk = WIDE, .chunk_tokens = 70 },
        { .policy = "snap:0.7,recent=28,full_layers=0", .format = QUIRE_FORMAT_F32, .chunk = WIDE },
        { .policy = "predict:0.4,recent=60", .format = QUIRE_FORMAT_F16, .chunk = WIDE, .maps = 1 },
        { .policy = "expected:0.4,recent=60", .format = QUIRE_FORMAT_BF16, .chunk = WIDE },
        { .policy = "heavy:0.4,recent=60", .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = "reconstruct:0.4,recent=60,repeat=20",
          .format = QUIRE_FORMAT_F16,
          .chunk = WIDE,
          .no_prefix_cache = true },
        { .policy = "keydiff:0.4,recent=60,floor=0.1",
          .format = QUIRE_FORMAT_F16,
          .chunk = WIDE,
          .page_tokens = 128 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        same_bits(settings[i]);
    }
}

/* Packed pages on a device: in the least memory they have the bits of the CPU, too. */
static void test_device(void **state)
{
    static const int32_t windows[4] = { 64, 0, 64, 0 };
    static const setting settings[] = {
        { .policy = ENTROPY, .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = SNAP, .format = QUIRE_FORMAT_Q8, .chunk = WIDE, .chunk_tokens = 70 },
        { .policy = "snap:0.7,recent=28,full_layers=0", .format = QUIRE_FORMAT_F32, .chunk = WIDE },
        { .policy = "heavy:0.4,recent=60", .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = "keydiff:0.4,recent=60", .format = QUIRE_FORMAT_Q4, .chunk = WIDE },
        { .policy = SNAP,
          .format = QUIRE_FORMAT_Q4,
          .v_format = QUIRE_FORMAT_F16,
          .has_v_format = true,
          .chunk = WIDE },
        { .policy = SNAP, .format = QUIRE_FORMAT_Q8, .chunk = WIDE, .windows = windows },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        setting s = settings[i];
        static answer cpu;
        engine_bench b;
        int32_t text[N_PROMPT];

        s.has_kv_recent = true;
        b = condense_bench(&s);
        tokens_make(text, N_PROMPT, 1);
        (void)answer_take(&b, s.policy, text, N_PROMPT, &cpu);
        bench_close(&b);
        s.device = "mock";
        same_bits(s);
        b = condense_bench(&s);
        (void)check(&b, s.policy, text, N_PROMPT, &cpu);
        bench_close(&b);
    }
}

/* A copy fails while rows move within their pages. */
static void test_a_device_is_lost(void **state)
{
    setting s = { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .device = "mock" };
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    s.n_pages = least_pages(&b, &s, N_PROMPT + N_TOKENS);
    bench_close(&b);
    for (uint32_t seed = 0; seed < 6; seed++) {
        const quire_mock_device_opts faults = { .seed = seed, .copy_failure = 0.1 };
        quire_request *request;
        gate *g;

        b = condense_bench(&s);
        g = gate_close(b.engine);
        request = ask(&b, s.policy, text, N_PROMPT);
        while (b.engine->loop->set.n_running == 0 ||
               b.engine->loop->set.running[0]->kv.n_computed < WIDE + 64) {
            gate_step(g);
        }
        quire_mock_device_set(condense_mock, &faults); /* its thread waits at the gate */
        gate_open(g);
        finish_as(request, QUIRE_FINISH_ERROR);
        assert_true(quire_engine_is_lost(b.engine));
        validate(b.engine);
        bench_close(&b);
    }
}

static void test_sealed(void **state)
{
    static const setting settings[] = {
        { .policy = "keydiff:0.4,recent=60", .format = QUIRE_FORMAT_Q4, .chunk = WIDE },
        { .policy = ENTROPY, .format = QUIRE_FORMAT_Q6, .chunk = WIDE },
        { .policy = SNAP,
          .format = QUIRE_FORMAT_Q4,
          .v_format = QUIRE_FORMAT_F16,
          .has_v_format = true,
          .chunk = WIDE },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        setting s = settings[i];

        s.has_kv_recent = true; /* a second request begins in the middle of a chunk */
        same_bits(s);
    }
}

static void test_windows(void **state)
{
    static const int32_t windows[4] = { 64, 0, 64, 0 };
    static const setting settings[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .windows = windows },
        { .policy = SNAP, .format = QUIRE_FORMAT_Q8, .chunk = WIDE, .windows = windows },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        same_bits(settings[i]);
    }
}

/* ---- others ---- */

#define N_ASKED 5u

/* Requests of one text and of others at once, in memory for little more than one of them. */
static void side_by_side(setting s)
{
    const char *const policies[N_ASKED] = { s.policy, s.policy, NULL, s.policy, STRIDE };
    static answer want[N_ASKED];
    quire_request *requests[N_ASKED];
    int32_t texts[2][N_PROMPT];
    engine_bench b = condense_bench(&s);
    const uint32_t n_least =
        quire_max_u32(least_pages(&b, &s, N_PROMPT + N_TOKENS), (N_PROMPT + N_TOKENS) / 64 + 2);

    for (uint32_t i = 0; i < N_ASKED; i++) {
        tokens_make(texts[i == 3], N_PROMPT, 1 + (i == 3));
        (void)answer_take(&b, policies[i], texts[i == 3], N_PROMPT, &want[i]);
    }
    bench_close(&b);
    for (uint32_t n_more = 0; n_more < 12; n_more += 3) {
        s.n_pages = n_least + n_more;
        b = condense_bench(&s);
        for (uint32_t round = 0; round < 2; round++) {
            gate *g = gate_close(b.engine);

            for (uint32_t i = 0; i < N_ASKED; i++) {
                requests[i] = ask(&b, policies[i], texts[i == 3], N_PROMPT);
            }
            gate_open(g);
            for (uint32_t i = 0; i < N_ASKED; i++) {
                (void)answer_check(requests[i], &want[i]);
            }
        }
        validate(b.engine);
        bench_close(&b);
    }
}

static void test_side_by_side(void **state)
{
    static const setting settings[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 },
        { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .device = "mock" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        side_by_side(settings[i]);
    }
}

/* ---- no page ---- */

/* Another holder of the pages of the one running request. */
typedef struct holder {
    quire_loop *loop;
    quire_seq_id seq;     /* a fork; QUIRE_SEQ_NULL: none */
    quire_prefix_ref ref; /* to the nodes of the prefix tree, without a sequence */
} holder;

static void hold_pages(holder *h, const quire_request *r)
{
    assert_int_equal(quire_seq_fork(h->loop->cache, r->kv.seq, &h->seq), QUIRE_OK);
}

static void hold_nodes(holder *h, const quire_request *r)
{
    const quire_prefix_key key =
        quire_loop_condensed_key(h->loop, r->tenant, r->tenant_bytes, r->kv.condensed);
    const uint32_t n = r->kv.n_computed - r->kv.n_dropped;
    const quire_prefix_acquire_opts opts = { .tokens_max = n };
    quire_prefix_match match;
    quire_seq_id seq;

    assert_int_equal(quire_seq_open(h->loop->cache, QUIRE_REGION_DYNAMIC, &seq), QUIRE_OK);
    assert_int_equal(quire_prefix_acquire(h->loop->tree, &key, seq, r->tokens + r->kv.n_dropped, n,
                                          &opts, &match, &h->ref),
                     QUIRE_OK);
    assert_int_equal(match.n_tokens, n);
    assert_int_equal(quire_seq_close(h->loop->cache, seq), QUIRE_OK);
}

static void let_go(holder *h)
{
    if (h->seq != QUIRE_SEQ_NULL) {
        assert_int_equal(quire_seq_close(h->loop->cache, h->seq), QUIRE_OK);
    }
    if (h->ref != QUIRE_PREFIX_REF_NULL) {
        assert_int_equal(quire_prefix_release(h->loop->tree, h->ref, 0), QUIRE_OK);
    }
    quire_loop_released(h->loop);
}

/* Steps until the one request has computed the tokens before place k. */
static const quire_request *run_to(const holder *h, gate *g, uint32_t k)
{
    const quire_request *r = NULL;

    for (uint32_t i = 0; i < 100 && (r == NULL || r->kv.n_computed < k * CHUNK); i++) {
        gate_step(g);
        r = h->loop->set.n_running > 0 ? h->loop->set.running[0] : NULL;
    }
    assert_non_null(r);
    assert_int_equal(r->kv.n_computed, k * CHUNK);
    assert_int_equal(r->kv.n_condensings, k - 1);
    return r;
}

/* A request comes to a place while something else holds its pages, so that neither both texts fit
 * nor the pages can be used: it is preempted with its text, and has all bits when they are free. */
static void test_no_page(void **state)
{
    void (*const holds[])(holder *, const quire_request *) = { hold_pages, hold_nodes };
    setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16, .chunk_tokens = CHUNK };
    static answer want;
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    s.n_pages = least_pages(&b, &s, N_PROMPT + N_TOKENS);
    bench_close(&b);
    for (uint32_t i = 0; i < 2; i++) {
        holder h = { .seq = QUIRE_SEQ_NULL };
        quire_request *request;
        gate *g;

        b = condense_bench(&s);
        h.loop = b.engine->loop;
        g = gate_close(b.engine);
        request = ask(&b, s.policy, text, N_PROMPT);
        holds[i](&h, run_to(&h, g, 4));
        gate_step(g);
        assert_int_equal(h.loop->figures.now.preemptions_total, 1);
        assert_int_equal(h.loop->figures.now.condensings_total, 3);
        quire_cache_validate(h.loop->cache);
        quire_prefix_validate(h.loop->tree);
        let_go(&h);
        gate_open(g);
        (void)answer_check(request, &want);
        assert_int_equal(cache_stats(&b).pages_live, 0);
        validate(b.engine);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_third),      cmocka_unit_test(test_least),
        cmocka_unit_test(test_even),         cmocka_unit_test(test_by_lane),
        cmocka_unit_test(test_sealed),       cmocka_unit_test(test_windows),
        cmocka_unit_test(test_side_by_side), cmocka_unit_test(test_no_page),
        cmocka_unit_test(test_device),       cmocka_unit_test(test_a_device_is_lost),
    };

    return cmocka_run_group_tests(tests, test_dir_make, test_dir_remove);
}
