/* test_condensing_lanes.c - requests whose lanes keep different numbers of tokens: the bits of
 * `quire run --retain` after a miss, a hit, an eviction, a preemption and a restart, with other
 * policies and plain requests beside them; memory that falls; refusals.
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
#include "engine/pins.h"

#include <string.h>

#define WIDE    256u /* tokens between two condensings */
#define ENTROPY "entropy:0.4,recent=60,full_layers=none,granule=64"
#define SNAP    "snap:0.4,recent=60,floor=0.1,granule=64"
#define REPEAT  "reconstruct:0.4,recent=60,repeat=100,granule=64"
#define N_SIDES 8u /* requests side by side */
#define PREDICT "predict:0.4,recent=60,granule=64"
#define EXPECT  "expected:0.4,recent=60,granule=64"
#define HEAVY   "heavy:0.4,recent=60,granule=64"
#define DIFF    "keydiff:0.4,recent=60,floor=0.1,granule=64"

/* ---- answers ---- */

/* Whether two lanes of the running text keep different numbers of tokens. */
static bool is_uneven(const quire_loop *loop)
{
    const quire_request *r = loop->set.n_running > 0 ? loop->set.running[0] : NULL;
    const quire_packed_lanes *lanes = r != NULL && r->kv.lanes != NULL ? &r->kv.lanes->lanes : NULL;
    const uint32_t n_lanes = quire_packing_n_lanes(&loop->lanes.parts.packing);

    for (uint32_t i = 1; lanes != NULL && lanes->n_pages > 0 && i < n_lanes; i++) {
        if (lanes->first[i + 1] - lanes->first[i] != lanes->first[1]) {
            return true;
        }
    }
    return false;
}

/* Compute a text step by step; whether its lanes were uneven at some time. */
static bool check_uneven(const engine_bench *b, const char *policy, const int32_t *text,
                         const answer *want)
{
    gate *g = gate_close(b->engine);
    quire_request *request = ask(b, policy, text, N_PROMPT);
    bool is_seen = false;

    for (uint32_t i = 0; i < 40 && !is_seen; i++) {
        gate_step(g);
        is_seen = is_uneven(b->engine->loop);
    }
    gate_open(g);
    assert_int_equal(answer_check(request, want), 0);
    return is_seen;
}

static void same_bits(const setting *s)
{
    const setting plain = { .format = s->format,
                            .v_format = s->v_format,
                            .has_v_format = s->has_v_format };
    static answer want, want_short, want_plain;
    engine_bench b = condense_bench(s);
    const uint32_t n_again = s->no_prefix_cache ? 0 : UINT32_MAX;
    quire_engine_stats before, after;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    expect(&b, s, text, N_PROMPT, &want);
    expect(&b, s, text, 2 * WIDE + 1, &want_short);
    expect(&b, &plain, text, N_PROMPT, &want_plain);
    assert_memory_not_equal(want.logprobs, want_plain.logprobs, sizeof want.logprobs);
    assert_true(check_uneven(&b, s->policy, text, &want));
    before = stats_now(b.engine);
    assert_int_equal(before.condensings_total, (N_PROMPT + N_TOKENS - 2) / WIDE);
    assert_true((before.repeated_tokens_total > 2 * WIDE) ==
                (spec_of(s->policy).policy->worth == QUIRE_RETAIN_WORTH_REPEATED));
    /* A hit in the last chunk, and at the end of an earlier one; nothing is condensed again. */
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), n_again & (N_PROMPT - 1));
    assert_int_equal(check(&b, s->policy, text, 2 * WIDE + 1, &want_short), n_again & (2 * WIDE));
    after = stats_now(b.engine);
    assert_true(s->no_prefix_cache || after.condensings_total == before.condensings_total);
    assert_true(s->no_prefix_cache || after.condensings_found_total > 0);
    assert_true(s->no_prefix_cache || after.repeated_tokens_total == before.repeated_tokens_total);
    /* Plain requests beside them share the text before the first condensing. */
    assert_int_equal(check(&b, NULL, text, N_PROMPT, &want_plain), n_again & WIDE);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), n_again & (N_PROMPT - 1));
    validate(b.engine);
    bench_close(&b);
}

/* Pages hold no queries. So a request that could begin inside of the last `probe` tokens before a
 * place begins before them, and computes them once more; the rest is computed once. */
static void test_probe_tokens(void **state)
{
    static const char *const policies[] = { SNAP, ENTROPY };
    static const setting plain = { .format = QUIRE_FORMAT_F16 };
    static answer want, want_plain;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const setting s = { .policy = policies[i], .format = QUIRE_FORMAT_F16, .chunk = WIDE };
        const uint32_t n_seen = spec_of(policies[i]).probe, n_short = WIDE - 10;
        engine_bench b = condense_bench(&s);
        int32_t text[N_PROMPT];
        uint64_t n_before;

        tokens_make(text, N_PROMPT, 11);
        expect(&b, &s, text, N_PROMPT, &want);
        expect(&b, &plain, text, N_PROMPT, &want_plain);
        /* All tokens of the first place are cached, with pages alone. */
        assert_int_equal(check(&b, NULL, text, N_PROMPT, &want_plain), 0);
        n_before = stats_now(b.engine).computed_prompt_tokens_total;
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), WIDE - n_seen);
        assert_int_equal(stats_now(b.engine).computed_prompt_tokens_total - n_before,
                         N_PROMPT - (WIDE - n_seen));
        /* Now the condensed text is there: nothing is computed but the last token. */
        n_before = stats_now(b.engine).computed_prompt_tokens_total;
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_PROMPT - 1);
        assert_int_equal(stats_now(b.engine).computed_prompt_tokens_total - n_before, 1);
        /* A request of the policy that ends before the place needs no queries. */
        expect(&b, &s, text, n_short, &want);
        assert_int_equal(check(&b, s.policy, text, n_short, &want), WIDE - n_seen);
        assert_int_equal(stats_now(b.engine).recomputed_tokens_total, 0);
        validate(b.engine);
        bench_close(&b);
    }
}

static void test_answers(void **state)
{
    static const setting settings[] = {
        { .policy = ENTROPY, .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = ENTROPY, .format = QUIRE_FORMAT_F32, .chunk = WIDE, .chunk_tokens = 50 },
        { .policy = "entropy:0.6,recent=60,full_layers=-1,granule=64",
          .format = QUIRE_FORMAT_BF16,
          .chunk = WIDE },
        { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .no_prefix_cache = true },
        { .policy = DIFF, .format = QUIRE_FORMAT_BF16, .chunk = WIDE },
        { .policy = SNAP, .format = QUIRE_FORMAT_Q8, .chunk = WIDE, .chunk_tokens = 70 },
        { .policy = "stride:0.6,recent=60,full_layers=0,granule=64",
          .format = QUIRE_FORMAT_F16,
          .chunk = WIDE },
        { .policy = SNAP,
          .format = QUIRE_FORMAT_F16,
          .v_format = QUIRE_FORMAT_Q8,
          .has_v_format = true,
          .chunk = WIDE },
        { .policy = REPEAT, .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = REPEAT, .format = QUIRE_FORMAT_F32, .chunk = WIDE, .chunk_tokens = 50 },
        { .policy = "reconstruct:0.7,recent=60,full_layers=0,repeat=200,granule=64",
          .format = QUIRE_FORMAT_Q8,
          .chunk = WIDE,
          .no_prefix_cache = true },
        { .policy = PREDICT, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .maps = 1 },
        { .policy = PREDICT,
          .format = QUIRE_FORMAT_F32,
          .chunk = WIDE,
          .chunk_tokens = 50,
          .maps = 1 },
        { .policy = "predict:0.7,recent=60,full_layers=1,granule=64",
          .format = QUIRE_FORMAT_Q8,
          .chunk = WIDE,
          .maps = 2 },
        { .policy = "predict:0.6,threshold=0.02,recent=60,granule=64",
          .format = QUIRE_FORMAT_BF16,
          .chunk = WIDE,
          .maps = 1,
          .no_prefix_cache = true },
        { .policy = EXPECT, .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = EXPECT, .format = QUIRE_FORMAT_F32, .chunk = WIDE, .chunk_tokens = 50 },
        { .policy = "expected:0.7,recent=60,full_layers=1,future=40,floor=1,granule=64",
          .format = QUIRE_FORMAT_Q8,
          .chunk = WIDE,
          .no_prefix_cache = true },
        { .policy = "heavy:0.4,recent=60,floor=0.2,granule=64",
          .format = QUIRE_FORMAT_F16,
          .chunk = WIDE },
        { .policy = "heavy:0.4,recent=60,floor=0.2,granule=64",
          .format = QUIRE_FORMAT_F32,
          .chunk = WIDE,
          .chunk_tokens = 50 },
        { .policy = "heavy:0.6,threshold=0.9,recent=60,granule=64",
          .format = QUIRE_FORMAT_Q8,
          .chunk = WIDE,
          .no_prefix_cache = true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        same_bits(&settings[i]);
    }
}

/* A text that a plain request has computed: the last queries before the place are computed once
 * more. */
static void test_after_plain_text(void **state)
{
    const setting s = { .policy = ENTROPY, .format = QUIRE_FORMAT_F16, .chunk = WIDE };
    const setting plain = { .format = s.format };
    static answer want, want_plain;
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    expect(&b, &plain, text, N_PROMPT, &want_plain);
    assert_int_equal(check(&b, NULL, text, N_PROMPT, &want_plain), 0);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), WIDE - 32);
    bench_close(&b);
}

/* Predictions and sums need a whole chunk. When the prompt passes the place, pages of a plain
 * request are of no use. When the answer reaches the place, the request begins with the pages of
 * the plain request, and computes the chunk anew at the place, once. */
static void chunk_after_plain_text(const char *policy)
{
    const setting s = { .policy = policy, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .maps = 1 };
    const setting plain = { .format = s.format };
    static answer want, want_short, want_plain;
    engine_bench b = condense_bench(&s);
    quire_engine_stats before, after;
    int32_t text[N_PROMPT], other[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    tokens_make(other, N_PROMPT, 2);
    expect(&b, &s, text, N_PROMPT, &want);
    expect(&b, &plain, text, N_PROMPT, &want_plain);
    assert_int_equal(check(&b, NULL, text, N_PROMPT, &want_plain), 0);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
    assert_int_equal(stats_now(b.engine).preemptions_total, 0);

    expect(&b, &s, other, WIDE - 6, &want_short);
    expect(&b, &plain, other, WIDE - 6, &want_plain);
    (void)check(&b, NULL, other, WIDE - 6, &want_plain);
    before = stats_now(b.engine);
    assert_int_equal(check(&b, s.policy, other, WIDE - 6, &want_short), WIDE - 7);
    after = stats_now(b.engine);
    assert_int_equal(after.preemptions_total, 1);
    assert_int_equal(after.recomputed_tokens_total - before.recomputed_tokens_total, WIDE);
    assert_int_equal(after.condensings_total - before.condensings_total, 1);
    /* The next one finds the condensed text at the place. */
    assert_int_equal(check(&b, s.policy, other, WIDE - 6, &want_short), WIDE - 7);
    assert_int_equal(stats_now(b.engine).preemptions_total, 1);
    assert_int_equal(stats_now(b.engine).condensings_total, after.condensings_total);
    validate(b.engine);
    bench_close(&b);
}

static void test_chunk_after_plain_text(void **state)
{
    (void)state;
    chunk_after_plain_text(PREDICT);
    chunk_after_plain_text(EXPECT);
    chunk_after_plain_text(HEAVY);
}

/* Policies by lane, an even one and plain requests at once, in memory for little more than one
 * context: evictions and preemptions change no bit. */
static void test_side_by_side(void **state)
{
    static const char *const policies[N_SIDES] = {
        ENTROPY, PREDICT, NULL, "keydiff:0.5,recent=32", SNAP, REPEAT, EXPECT, HEAVY
    };
    const setting s = { .format = QUIRE_FORMAT_F16, .chunk = WIDE, .n_pages = 24, .maps = 1 };
    static answer want[N_SIDES];
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    for (uint32_t i = 0; i < N_SIDES; i++) {
        const setting one = {
            .policy = policies[i], .format = s.format, .chunk = WIDE, .maps = s.maps
        };

        expect(&b, &one, text, N_PROMPT, &want[i]);
    }
    check_side_by_side(&b, &(sides){ policies, want, N_SIDES, text, N_PROMPT }, 3);
    validate(b.engine);
    bench_close(&b);
}

/* ---- memory ---- */

/* In its last chunk a running request holds the kept share of all lanes with one more tile for each
 * lane, the list, and the full pages behind. After a preemption the request goes on with these. */
static void test_memory(void **state)
{
    const setting s = { .policy = "entropy:0.25,recent=60,full_layers=none,granule=64",
                        .format = QUIRE_FORMAT_F16,
                        .chunk = WIDE };
    static answer want;
    engine_bench b = condense_bench(&s);
    quire_loop *loop = b.engine->loop;
    const uint64_t page_bytes = quire_loop_parts_get(loop)->page_bytes;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    for (uint32_t i = 0; i < 2; i++) {
        gate *g = gate_close(b.engine);
        quire_request *request = ask(&b, s.policy, text, N_PROMPT);
        bool is_done = false;

        while (!is_done) {
            quire_request *r;
            quire_cache_stats stats;

            gate_step(g);
            r = loop->set.n_running > 0 ? loop->set.running[0] : NULL;
            if (r == NULL || r->kv.n_condensings < 2 || r->state != QUIRE_REQUEST_DECODE) {
                continue;
            }
            quire_cache_stats_get(loop->cache, &stats);
            /* A quarter of 512 tokens in 2 pages, the list in one, and 3 for the rest. */
            assert_true(stats.live_bytes > 0);
            assert_true(stats.live_bytes <= 6 * page_bytes);
            is_done = true;
            if (i == 1) {
                quire_loop_preempt(loop, r);
                r->wait.blocked_at = 0; /* as if pages had been released since */
            }
        }
        gate_open(g);
        (void)answer_check(request, &want);
    }
    assert_int_equal(stats_now(b.engine).condensings_total, 2);
    validate(b.engine);
    bench_close(&b);
}

/* Memory beside the pages is known before a server starts: of a policy that watches attention a
 * thread has room for all tokens of the context (heavy), or of a part that is repeated. */
static void test_bytes_beside(void **state)
{
    static const struct {
        const char *policy;
        bool grows; /* with the context */
        bool watches;
    } cases[] = { { "heavy:0.5", true, true },
                  { "reconstruct:0.5", false, true },
                  { "entropy:0.5", false, false } };
    const quire_model_desc desc = {
        .n_layer = 2, .n_head = 4, .n_kv_head = 2, .d_k = 32, .d_v = 32
    };
    const quire_attn_layer layer = { .n_head = 4, .n_kv_head = 2, .d_k = 32, .d_v = 32 };
    quire_condensing_parts parts = {
        .packing = { .n_layers = 2, .n_kv_head = 2, .page_tokens = 64, .layers = &layer }
    };
    const quire_retain_spec even = spec_of("keydiff:0.5");
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    const quire_condensing_on on = { &desc, &opts, &parts };
    quire_kv_pair pairs[2];

    (void)state;
    opts.n_threads = 2;
    opts.kv_pairs = pairs;
    quire_kv_uniform(&desc, (quire_kv_pair){ QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 }, pairs);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const quire_retain_spec spec = spec_of(cases[i].policy);
        quire_condensing_bytes small, large;

        opts.n_ctx = 4096;
        small = quire_condensing_bytes_of(&on, &spec, WIDE);
        opts.n_ctx = 8192;
        large = quire_condensing_bytes_of(&on, &spec, WIDE);
        assert_int_equal(small.of_thread > 0, cases[i].watches);
        assert_int_equal(large.of_thread > small.of_thread, cases[i].grows);
        if (cases[i].grows) {
            assert_int_equal(large.of_thread - small.of_thread,
                             4096 * (32 + 1 + 2 * 16) * sizeof(float));
        }
        assert_true(small.of_request >= (2 * 2 + 1) * sizeof(uint32_t));
        assert_true(large.of_device > small.of_device && small.of_device > 0);
    }
    /* Even policies have packed pages where sides are sealed, and in models with windows. */
    assert_int_equal(quire_condensing_bytes_of(&on, &even, WIDE).of_device, 0);
    assert_true(quire_condensing_bytes_of(&on, NULL, 0).of_device > 0); /* attend */
    parts.packing.hot_group = 1;
    assert_true(quire_condensing_bytes_of(&on, &even, WIDE).of_device > 0);
    assert_true(quire_condensing_bytes_of(&on, &even, WIDE).of_request > 0);
}

/* ---- the end of a request that repeats ---- */

/* Let the engine run until the first request has repeated a part of its chunk number k, not all of
 * it. */
static void step_into_repeat(const engine_bench *b, gate *g, uint32_t k)
{
    const quire_request *r = NULL;

    for (uint32_t i = 0; i < 100; i++) {
        gate_step(g);
        r = b->engine->loop->set.n_running > 0 ? b->engine->loop->set.running[0] : NULL;
        if (r != NULL && r->kv.lanes != NULL && r->kv.lanes->n_repeated > (k - 1) * WIDE &&
            r->kv.lanes->n_repeated < k * WIDE) {
            assert_int_equal(r->kv.n_condensings, k - 1);
            return;
        }
    }
    fail_msg("no part of chunk %u was repeated", k);
}

/* A request that is cancelled between two parts of a repeat leaves no page, no sequence and no half
 * of a condensed text; a request beside it goes on, and the next one of the same text repeats all
 * parts of the place. */
static void cancelled_at(uint32_t k, bool has_twin)
{
    const setting s = { .policy = REPEAT, .format = QUIRE_FORMAT_F16, .chunk = WIDE };
    const setting plain = { .format = QUIRE_FORMAT_F16 };
    static answer want, want_other;
    engine_bench b = condense_bench(&s);
    quire_request *first, *other, *twin;
    quire_engine_stats stats;
    int32_t text[N_PROMPT], beside[N_PROMPT];
    uint64_t repeated;
    gate *g;

    tokens_make(text, N_PROMPT, 1);
    tokens_make(beside, N_PROMPT, 2);
    expect(&b, &s, text, N_PROMPT, &want);
    expect(&b, &plain, beside, N_PROMPT, &want_other);
    g = gate_close(b.engine);
    first = ask(&b, s.policy, text, N_PROMPT);
    step_into_repeat(&b, g, k);
    other = ask(&b, NULL, beside, N_PROMPT);
    twin = has_twin ? ask(&b, s.policy, text, N_PROMPT) : NULL;
    quire_request_cancel(first);
    gate_open(g);
    finish_as(first, QUIRE_FINISH_CANCEL);
    (void)answer_check(other, &want_other);
    if (has_twin) {
        (void)answer_check(twin, &want);
    }
    validate(b.engine);
    stats = stats_now(b.engine);
    assert_int_equal(stats.finished_cancelled_total, 1);
    assert_int_equal(stats.cache.live_bytes, 0);
    assert_int_equal(stats.prefix.refs, 0);
    if (!has_twin) {
        assert_int_equal(stats.condensings_total, k - 1);
        /* Pages of the text before the place alone: none of a condensing that was not made. */
        assert_int_equal(stats.prefix.apart_bytes > 0, k > 1);
    }
    /* The request begins with all computed tokens, and repeats the chunk of the place from its
     * beginning. */
    repeated = stats.repeated_tokens_total;
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want),
                     has_twin ? N_PROMPT - 1 : k * WIDE);
    stats = stats_now(b.engine);
    assert_int_equal(stats.condensings_total, (N_PROMPT + N_TOKENS - 2) / WIDE);
    if (!has_twin) {
        assert_true(stats.repeated_tokens_total - repeated >
                    ((N_PROMPT - 1) / WIDE - k + 1) * WIDE);
    }
    validate(b.engine);
    bench_close(&b);
}

static void test_cancelled_repeats(void **state)
{
    (void)state;
    cancelled_at(1, false);
    cancelled_at(2, false);
    cancelled_at(1, true);
    cancelled_at(2, true);
}

/* The engine ends while a request repeats. */
static void test_end_among_repeats(void **state)
{
    const setting s = { .policy = REPEAT, .format = QUIRE_FORMAT_F16, .chunk = WIDE };
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];
    quire_request *request;
    gate *g;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    g = gate_close(b.engine);
    request = ask(&b, s.policy, text, N_PROMPT);
    step_into_repeat(&b, g, 1);
    gate_open(g);
    quire_request_release(request); /* cancels it */
    bench_close(&b);
}

/* ---- below memory, pins, invalidation ---- */

/* The list in the pages is all that another process needs. */
static void restart(const char *policy)
{
    setting s = { .policy = policy, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .maps = 1 };
    mem_disk *disk = mem_disk_new();
    static answer want;
    engine_bench b;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    s.store = mem_disk_store(disk);
    b = condense_bench(&s);
    expect(&b, &s, text, N_PROMPT, &want);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
    bench_close(&b);
    s.store = mem_disk_store(disk);
    b = condense_bench(&s);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_PROMPT / 64 * 64);
    assert_int_equal(stats_now(b.engine).condensings_total, 0);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

static void test_restart(void **state)
{
    (void)state;
    restart(ENTROPY);
    restart(PREDICT);
    restart(REPEAT);
}

/* Tokens chosen by other maps are never found, neither in a store nor by a longer text. */
static void test_other_maps(void **state)
{
    setting s = { .policy = PREDICT, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .maps = 1 };
    mem_disk *disk = mem_disk_new();
    static answer want[2];
    engine_bench b;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    for (uint32_t i = 0; i < 2; i++) {
        s.maps = 1 + i;
        s.store = mem_disk_store(disk);
        b = condense_bench(&s);
        expect(&b, &s, text, N_PROMPT, &want[i]);
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want[i]), 0);
        assert_int_equal(stats_now(b.engine).condensings_total, 2);
        validate(b.engine);
        bench_close(&b);
    }
    assert_memory_not_equal(want[0].logprobs, want[1].logprobs, sizeof want[0].logprobs);
    mem_disk_free(disk);
}

/* n_found: tokens that are of use after the condensed texts are gone. */
static void invalidation(const char *policy, uint32_t n_found)
{
    const setting s = { .policy = policy, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .maps = 1 };
    static answer want;
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];
    const quire_invalidate named = { .what = QUIRE_INVALIDATE_PREFIX,
                                     .tokens = text,
                                     .n_tokens = WIDE + 10 };
    quire_prefix_dropped dropped;

    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    assert_int_equal(quire_engine_invalidate(b.engine, &named, &dropped), QUIRE_OK);
    assert_true(dropped.tokens > 0);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), n_found);
    bench_close(&b);
}

static void test_invalidation(void **state)
{
    (void)state;
    invalidation(ENTROPY, WIDE - 32);
    invalidation(PREDICT, 0);
    invalidation(REPEAT, WIDE);
}

/* A pin holds the packed pages of the last place and the full ones behind it while other texts take
 * all other memory. */
static void pins(const char *policy)
{
    const setting s = {
        .policy = policy, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .n_pages = 30, .maps = 1
    };
    const quire_retain_spec spec = spec_of(policy);
    static answer want, want_other;
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT], other[N_PROMPT];
    const quire_engine_pin_params params = {
        .name = "p", .tokens = text, .n_tokens = 560, .retain = &spec
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;

    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    assert_int_equal(quire_engine_pin_create(b.engine, &params, &pin, NULL, &err), QUIRE_OK);
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    for (uint64_t seed = 2; seed < 5; seed++) {
        tokens_make(other, N_PROMPT, seed);
        expect(&b, &s, other, N_PROMPT, &want_other);
        (void)check(&b, s.policy, other, N_PROMPT, &want_other);
    }
    assert_true(stats_now(b.engine).prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 560);
    validate(b.engine);
    bench_close(&b);
}

static void test_pins(void **state)
{
    (void)state;
    pins(ENTROPY);
    pins(PREDICT);
    pins(REPEAT);
}

/* ---- refusals ---- */

static void refused(const engine_bench *b, const char *policy, const char *message)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    quire_request_params params = params_greedy(prompt, 3, 1);
    const quire_retain_spec spec = spec_of(policy);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;

    params.retain = &spec;
    assert_true(quire_engine_submit(b->engine, &params, &request, &err) < 0);
    if (strncmp(err.message, message, strlen(message)) != 0) {
        fail_msg("%s", err.message);
    }
}

static void test_refusals(void **state)
{
    const setting f16 = { .format = QUIRE_FORMAT_F16, .chunk = WIDE };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    /* Layers in different formats. */
    static const quire_kv_pair pairs[] = { { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                                           { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8 } };
    engine_bench b = condense_bench(&f16);

    (void)state;
    refused(&b, "predict:0.5", "retain: predict has learned nothing about this model");
    refused(&b, "reconstruct:0.5,recent=60,repeat=900",
            "retain: reconstruct:0.5,sinks=4,recent=60,floor=0.2,repeat=900,granule=64 needs room");
    refused(&b, "entropy:0.5", "retain: entropy:0.5 with 2 of 2 layers kept whole");
    refused(&b, "snap:0.5,full_layers=9", "retain: full_layers names layer 9");
    refused(&b, "snap:0.5,granule=128", "retain: snap: in shared pages a lane keeps whole tiles");
    refused(&b, "snap:0.95", "retain: snap:0.95,sinks=4");
    bench_close(&b);
    engine.retain_chunk = WIDE;
    engine.n_running_max = 4;
    runtime.kv_pairs = pairs;
    b = bench_panels(32, &engine, &runtime);
    refused(&b, SNAP, "retain: snap keeps tokens by lane, which works with one pair of");
    bench_close(&b);
}

/* `expected` turns queries to positions ahead; the other policies read K as it is. */
static void test_unturned_layers(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 9);
    engine.retain_chunk = WIDE;
    engine.n_running_max = 4;
    runtime.k_format = runtime.v_format = QUIRE_FORMAT_F16;
    for (uint32_t i = 0; i < 2; i++) {
        const setting s = { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE };
        engine_bench b = bench_unturned(i == 1, &engine, &runtime);
        answer want;

        refused(&b, "expected:0.5,recent=60",
                "retain: expected works with models whose layers all turn K alike");
        expect(&b, &s, text, N_PROMPT, &want);
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_probe_tokens),
        cmocka_unit_test(test_after_plain_text),
        cmocka_unit_test(test_chunk_after_plain_text),
        cmocka_unit_test(test_other_maps),
        cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_bytes_beside),
        cmocka_unit_test(test_cancelled_repeats),
        cmocka_unit_test(test_end_among_repeats),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_invalidation),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unturned_layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
