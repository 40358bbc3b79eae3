/* test_condensing.c - requests that keep a share of their text: the bits of `quire run --retain`
 * after a miss, a hit, a preemption and an eviction, with other policies and plain requests beside
 * them, also with KV on a mock device; memory that falls; refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"
#include "device/mock_device.h"
#include "directory.h"
#include "engine/engine_halves.h"
#include "engine/loop/condense_loop.h"
#include "engine/loop/loop_object.h"
#include "engine/pins.h"
#include "engine/views.h"

#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

static void same_bits(const setting *s)
{
    const setting plain = { .format = s->format };
    static answer want, want_short, want_plain;
    engine_bench b = condense_bench(s);
    const uint32_t n_again = s->no_prefix_cache ? 0 : UINT32_MAX;
    quire_engine_stats before, after;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    expect(&b, s, text, N_PROMPT, &want);
    expect(&b, s, text, 3 * CHUNK + 1, &want_short);
    expect(&b, &plain, text, N_PROMPT, &want_plain);
    assert_memory_not_equal(want.logprobs, want_plain.logprobs, sizeof want.logprobs);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), 0);
    before = stats_now(b.engine);
    assert_int_equal(before.condensings_total, (N_PROMPT + N_TOKENS - 2) / CHUNK);
    /* All but the first condense what the one before left. */
    assert_int_equal(before.condensings_again_total, before.condensings_total - 1);
    assert_int_equal(before.condensings_found_again_total, 0);
    assert_int_equal(before.condensed_texts, before.condensings_total);
    /* A hit in the last chunk, and at the end of an earlier one; nothing is condensed again. */
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), n_again & (N_PROMPT - 1));
    assert_int_equal(check(&b, s->policy, text, 3 * CHUNK + 1, &want_short), n_again & (3 * CHUNK));
    after = stats_now(b.engine);
    assert_true(s->no_prefix_cache || after.condensings_total <= before.condensings_total + 1);
    assert_true(s->no_prefix_cache || after.condensings_found_total > 0);
    /* Both hits were behind a second condensing at least. */
    assert_true(s->no_prefix_cache || after.condensings_found_again_total >= 2);
    assert_true(after.condensings_found_again_total <= after.condensings_found_total);
    /* Plain requests beside them share the text before the first condensing. */
    assert_int_equal(check(&b, NULL, text, N_PROMPT, &want_plain), n_again & CHUNK);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), n_again & (N_PROMPT - 1));
    validate(b.engine);
    bench_close(&b);
}

static void test_answers(void **state)
{
    static const setting settings[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 },
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_Q8, .chunk_tokens = 50 },
        { .policy = "window:0.5,recent=32", .format = QUIRE_FORMAT_F32 },
        { .policy = STRIDE, .format = QUIRE_FORMAT_BF16, .no_prefix_cache = true },
        { .policy = "random:0.5,recent=32,seed=3", .format = QUIRE_FORMAT_F16 },
        { .policy = "last:0.5", .format = QUIRE_FORMAT_F16 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        same_bits(&settings[i]);
    }
}

/* Policies whose shares differ in the eighth digit may choose other tokens, so they share no page
 * behind the first place, whoever comes first. */
static void test_near_shares(void **state)
{
    static const char *const policies[] = { "keydiff:0.5,recent=32",
                                            "keydiff:0.50000001,recent=32" };
    static const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    engine_bench b = condense_bench(&s);
    static answer got[2];
    int32_t text[N_PROMPT];
    uint64_t n_condensed = 0;

    (void)state;
    tokens_make(text, N_PROMPT, 9);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(answer_take(&b, policies[i], text, N_PROMPT, &got[i]), i * CHUNK);
        n_condensed = stats_now(b.engine).condensings_total;
        assert_int_equal(n_condensed, (i + 1) * ((N_PROMPT + N_TOKENS - 2) / CHUNK));
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(check(&b, policies[i], text, N_PROMPT, &got[i]), N_PROMPT - 1);
    }
    assert_int_equal(stats_now(b.engine).condensings_total, n_condensed);
    validate(b.engine);
    bench_close(&b);
}

/* KV on a mock device, whose kernels are the CPU's. */
static void test_on_a_device(void **state)
{
    static const setting settings[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16, .device = "mock" },
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_Q8, .chunk_tokens = 50, .device = "mock" },
        { .policy = "window:0.5,recent=32", .format = QUIRE_FORMAT_F32, .device = "mock" },
        { .policy = STRIDE,
          .format = QUIRE_FORMAT_BF16,
          .no_prefix_cache = true,
          .device = "mock" },
        { .policy = "random:0.5,recent=32,seed=3", .format = QUIRE_FORMAT_F16, .device = "mock" },
        { .policy = "last:0.5", .format = QUIRE_FORMAT_F16, .device = "mock" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        same_bits(&settings[i]);
    }
}

/* A copy of a condensing fails: all requests fail by the name of the device. */
static void test_a_device_is_lost(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        const setting s = { .format = QUIRE_FORMAT_F16, .device = "mock" };
        const quire_mock_device_opts faults = { .seed = i, .copy_failure = 0.05 };
        engine_bench b = condense_bench(&s);
        quire_request *requests[2];
        int32_t text[N_PROMPT];
        gate *g = gate_close(b.engine);

        tokens_make(text, N_PROMPT, 1);
        requests[0] = ask(&b, KEYDIFF, text, N_PROMPT);
        requests[1] = ask(&b, STRIDE, text, N_PROMPT);
        quire_mock_device_set(condense_mock, &faults); /* its thread waits at the gate */
        gate_open(g);
        for (uint32_t r = 0; r < 2; r++) {
            finish_as(requests[r], QUIRE_FINISH_ERROR);
        }
        assert_true(quire_engine_is_lost(b.engine));
        validate(b.engine);
        bench_close(&b);
    }
}

/* Two policies and plain requests at once, in memory for little more than one context: evictions
 * change no bit. */
static void test_side_by_side(void **state)
{
    static const char *const policies[] = { KEYDIFF, STRIDE, NULL, KEYDIFF };
    const setting s = { .format = QUIRE_FORMAT_F16, .n_pages = 17 };
    static answer want[4];
    engine_bench b = condense_bench(&s);
    quire_request *requests[4];
    int32_t text[N_PROMPT];
    quire_engine_stats stats;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    for (uint32_t i = 0; i < 4; i++) {
        const setting one = { .policy = policies[i], .format = s.format };

        expect(&b, &one, text, N_PROMPT, &want[i]);
    }
    for (uint32_t round = 0; round < 2; round++) {
        gate *g = gate_close(b.engine);

        for (uint32_t i = 0; i < 4; i++) {
            requests[i] = ask(&b, policies[i], text, N_PROMPT);
        }
        gate_open(g);
        for (uint32_t i = 0; i < 4; i++) {
            (void)answer_check(requests[i], &want[i]);
        }
    }
    stats = stats_now(b.engine);
    assert_true(stats.prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
    validate(b.engine);
    bench_close(&b);
}

/* ---- memory ---- */

typedef struct held {
    quire_loop *loop;
    uint64_t live_bytes;
    uint64_t held_bytes; /* figures of the request's pages and of its text */
    uint64_t text_bytes;
    uint32_t n_tokens;
    bool preempts;
    bool is_done;
} held;

/* On the engine's thread: check the memory that the one request holds in its last chunk. */
static void look(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    held *h = ctx;
    quire_request *r = h->loop->set.n_running > 0 ? h->loop->set.running[0] : NULL;
    quire_cache_stats stats;

    (void)tree;
    if (h->is_done || r == NULL || r->kv.n_condensings < 4 || r->state != QUIRE_REQUEST_DECODE) {
        return;
    }
    quire_cache_stats_get(cache, &stats);
    h->live_bytes = stats.live_bytes;
    quire_loop_condensed_stats_fill(h->loop);
    h->held_bytes = h->loop->figures.now.condensed_held_bytes;
    h->text_bytes = h->loop->figures.now.condensed_text_bytes;
    h->n_tokens = r->kv.n_computed;
    h->is_done = true;
    if (h->preempts) {
        quire_loop_preempt(h->loop, r);
        r->wait.blocked_at = 0; /* as if pages had been released since */
    }
}

/* The pages in use are those of the share and of the last chunk; a request that was preempted goes
 * on with them. */
static void test_memory(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    static answer want;
    engine_bench b = condense_bench(&s);
    const uint64_t page_bytes = quire_loop_parts_get(b.engine->loop)->page_bytes;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    for (uint32_t i = 0; i < 2; i++) {
        held h = { .loop = b.engine->loop, .preempts = i == 1 };
        gate *g = gate_close(b.engine);
        quire_request *request = ask(&b, s.policy, text, N_PROMPT);

        while (!h.is_done) {
            gate_step(g);
            look(&h, b.engine->loop->cache, b.engine->loop->tree);
        }
        gate_open(g);
        (void)answer_check(request, &want);
        assert_true(h.live_bytes > 0);
        /* 4 pages for 512 tokens, and 2 at most for those behind. */
        assert_true(h.live_bytes <= 6 * page_bytes);
        assert_true(h.n_tokens >= N_PROMPT);
        /* Half of the four chunks, and the pages of the tokens behind. */
        assert_int_equal(h.held_bytes, (4 + (h.n_tokens - 4 * CHUNK + 63) / 64) * page_bytes);
        assert_int_equal(h.text_bytes, (h.n_tokens + 63) / 64 * page_bytes);
        assert_int_equal(stats_now(b.engine).condensed_held_bytes, 0);
        assert_int_equal(stats_now(b.engine).condensed_text_bytes, 0);
    }
    assert_int_equal(stats_now(b.engine).condensings_total, 5);
    validate(b.engine);
    bench_close(&b);
}

/* ---- invalidation ---- */

static quire_prefix_dropped invalidate(const engine_bench *b, quire_invalidate_what what,
                                       const int32_t *tokens, uint32_t n)
{
    const quire_invalidate named = { .what = what, .tokens = tokens, .n_tokens = n };
    quire_prefix_dropped dropped;

    assert_int_equal(quire_engine_invalidate(b->engine, &named, &dropped), QUIRE_OK);
    return dropped;
}

static void test_invalidation(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    static answer want, want_other;
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT], other[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    tokens_make(other, N_PROMPT, 2);
    expect(&b, &s, text, N_PROMPT, &want);
    expect(&b, &s, other, N_PROMPT, &want_other);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    (void)check(&b, s.policy, other, N_PROMPT, &want_other);
    /* Drop a text that reaches into the second chunk: the chunk before stays cached. */
    assert_true(invalidate(&b, QUIRE_INVALIDATE_PREFIX, text, CHUNK + 10).tokens > 0);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), CHUNK);
    assert_int_equal(check(&b, s.policy, other, N_PROMPT, &want_other), N_PROMPT - 1);
    assert_true(invalidate(&b, QUIRE_INVALIDATE_PREFIX, other, 20).tokens > 0);
    assert_int_equal(check(&b, s.policy, other, N_PROMPT, &want_other), 0);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_PROMPT - 1);
    (void)invalidate(&b, QUIRE_INVALIDATE_TENANT, NULL, 0);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
    validate(b.engine);
    bench_close(&b);
}

/* Pages of condensed texts stay in the tree when their request has ended, and are told from those
 * of whole texts. */
static void test_cached_bytes(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    const setting plain = { .format = QUIRE_FORMAT_F16 };
    static answer want, want_plain;
    engine_bench b = condense_bench(&s);
    const uint64_t page_bytes = quire_loop_parts_get(b.engine->loop)->page_bytes;
    uint64_t n_pages = 0;
    quire_engine_stats stats;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    expect(&b, &plain, text, N_PROMPT, &want_plain);
    (void)check(&b, NULL, text, N_PROMPT, &want_plain);
    assert_int_equal(stats_now(b.engine).prefix.apart_bytes, 0);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    /* Behind each place half of the tokens before it, and those up to the next one or the end. */
    for (uint32_t k = 1; k * CHUNK < N_PROMPT + N_TOKENS - 1; k++) {
        const uint32_t n_behind = N_PROMPT + N_TOKENS - 1 - k * CHUNK;

        n_pages += k * CHUNK / 2 / 64 + ((n_behind < CHUNK ? n_behind : CHUNK) + 63) / 64;
    }
    stats = stats_now(b.engine);
    assert_int_equal(stats.prefix.apart_bytes, n_pages * page_bytes);
    assert_int_equal(stats.condensed_held_bytes, 0);
    assert_true(stats.prefix.apart_bytes < stats.prefix.evictable_bytes);
    (void)invalidate(&b, QUIRE_INVALIDATE_ALL, NULL, 0);
    assert_int_equal(stats_now(b.engine).prefix.apart_bytes, 0);
    bench_close(&b);
}

/* A session has the pages of its text behind all places, of each policy by which its requests
 * condensed it, and no pages of other texts and tenants. */
static void test_session_bytes(void **state)
{
    static const char *const policies[] = { NULL, KEYDIFF, "snap:0.25,recent=16" };
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    engine_bench b = condense_bench(&s);
    const quire_chat_message message = { "user", "hello", NULL };
    quire_sessions *sessions = quire_engine_sessions(b.engine);
    quire_session_kv items[2] = { { "", 0, "s", 9, 9 }, { "x", 1, "s", 9, 9 } };
    int32_t text[N_PROMPT], other[CHUNK + 2];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_region_view regions[QUIRE_REGIONS_MAX];
    quire_error err = QUIRE_ERROR_INIT;
    uint64_t bytes = 0;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    tokens_make(other, CHUNK + 2, 2);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", 1, &params.session, &err),
                     QUIRE_OK);
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        quire_retain_spec spec = spec_of(policies[i] != NULL ? policies[i] : KEYDIFF);
        quire_request *request;
        uint32_t n_kept;
        int32_t *kept;

        params.retain = policies[i] != NULL ? &spec : NULL;
        request = submit(&b, &params);
        (void)finish(request);
        kept = quire_request_tokens_take(request, &n_kept);
        assert_int_equal(
            quire_sessions_commit(sessions, params.session, &message, 1, kept, n_kept, 2),
            QUIRE_OK);
        finish_as(request, QUIRE_FINISH_LENGTH);
        assert_int_equal(quire_engine_sessions_kv(b.engine, items, 2), QUIRE_OK);
        assert_true(items[0].bytes > bytes);
        bytes = items[0].bytes;
        (void)quire_engine_regions(b.engine, regions);
        assert_int_equal(bytes, regions[0].stats.cached_bytes);
        assert_int_equal(items[0].own_bytes, bytes);
        assert_int_equal(items[1].bytes + items[1].own_bytes, 0);
    }
    quire_sessions_leave(sessions, params.session, 3);
    finish_as(ask(&b, KEYDIFF, other, CHUNK + 2), QUIRE_FINISH_LENGTH);
    assert_int_equal(quire_engine_sessions_kv(b.engine, items, 2), QUIRE_OK);
    assert_int_equal(items[0].bytes, bytes);
    bench_close(&b);
}

/* A request that runs while its text is dropped publishes nothing any more. */
static void test_invalidation_of_a_running_text(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    static answer want;
    engine_bench b = condense_bench(&s);
    held h = { .loop = b.engine->loop };
    int32_t text[N_PROMPT];
    quire_request *request;
    gate *g;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    g = gate_close(b.engine);
    request = ask(&b, s.policy, text, N_PROMPT);
    while (!h.is_done) {
        gate_step(g);
        look(&h, b.engine->loop->cache, b.engine->loop->tree);
    }
    gate_open(g);
    (void)invalidate(&b, QUIRE_INVALIDATE_PREFIX, text, 1);
    (void)answer_check(request, &want);
    assert_int_equal(stats_now(b.engine).prefix.nodes, 0);
    validate(b.engine);
    bench_close(&b);
}

/* ---- pins ---- */

static int pin_create(const engine_bench *b, const char *policy, const int32_t *text, uint32_t n,
                      quire_engine_pin *out)
{
    const quire_retain_spec spec = spec_of(policy);
    const quire_engine_pin_params params = {
        .name = "p", .tokens = text, .n_tokens = n, .retain = &spec
    };
    quire_error err = QUIRE_ERROR_INIT;

    return quire_engine_pin_create(b->engine, &params, out, NULL, &err);
}

/* A pin of a policy holds the kept pages of the last place and those behind it: they stay while
 * other texts take all other memory, and requests of the policy begin with them. */
static void test_pins(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16, .n_pages = 24 };
    const quire_engine_pin_name name = { .name = "p" };
    static answer want, want_other;
    engine_bench b = condense_bench(&s);
    const uint64_t page_bytes = quire_loop_parts_get(b.engine->loop)->page_bytes;
    int32_t text[N_PROMPT], other[N_PROMPT];
    quire_engine_pin pin;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    assert_int_equal(pin_create(&b, KEYDIFF, text, 560, &pin), QUIRE_OK);
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    assert_int_equal(pin.n_tokens, 560);
    assert_int_equal(pin.n_held_tokens, 256 + 560 - 512);
    assert_int_equal(pin.bytes, 5 * page_bytes);
    assert_true(strncmp(pin.retain, "keydiff:0.5,", 12) == 0);
    for (uint64_t seed = 2; seed < 5; seed++) {
        tokens_make(other, N_PROMPT, seed);
        expect(&b, &s, other, N_PROMPT, &want_other);
        (void)check(&b, s.policy, other, N_PROMPT, &want_other);
    }
    assert_true(stats_now(b.engine).prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 560);
    validate(b.engine);
    /* An invalidation of a text that the pinned one begins with ends the pin. */
    assert_true(invalidate(&b, QUIRE_INVALIDATE_PREFIX, text, 3 * CHUNK).tokens > 0);
    assert_int_equal(quire_engine_pin_get(b.engine, &name, &pin), QUIRE_NOTFOUND);
    /* A text before the first place is held as a plain one, which all requests share. */
    assert_int_equal(pin_create(&b, KEYDIFF, text, CHUNK, &pin), QUIRE_OK);
    assert_int_equal(pin.n_held_tokens, CHUNK);
    assert_int_equal(pin.bytes, 2 * page_bytes);
    assert_int_equal(quire_engine_pin_drop(b.engine, &name), QUIRE_OK);
    assert_int_equal(pin_create(&b, "snap:0.5,granule=128", text, CHUNK, &pin), QUIRE_UNSUPP);
    validate(b.engine);
    bench_close(&b);
}

/* ---- latent attention ---- */

#define N_LATENT 300u /* tokens of a prompt */

/* Latent rows move as K alone. All kept: the bits of a whole text. Half: other bits, the same ones
 * after a hit. */
static void test_latent(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    static answer whole, half;
    quire_engine_stats stats;
    engine_bench b;
    int32_t text[N_LATENT];

    (void)state;
    tokens_make(text, N_LATENT, 1);
    engine.retain_chunk = CHUNK;
    engine.n_running_max = 4;
    for (uint32_t i = 0; i < 2; i++) {
        runtime.k_format = runtime.v_format = i == 0 ? QUIRE_FORMAT_F16 : QUIRE_FORMAT_Q8;
        b = bench_latent(&engine, &runtime);
        (void)answer_read(ask(&b, NULL, text, N_LATENT), &whole);
        (void)check(&b, "keydiff:1,recent=32", text, N_LATENT, &whole);
        (void)check(&b, "stride:1,recent=32", text, N_LATENT, &whole);
        (void)answer_read(ask(&b, KEYDIFF, text, N_LATENT), &half);
        assert_memory_not_equal(half.logprobs, whole.logprobs, sizeof half.logprobs);
        stats = stats_now(b.engine);
        assert_int_equal(check(&b, KEYDIFF, text, N_LATENT, &half), N_LATENT - 1);
        assert_int_equal(stats_now(b.engine).condensings_total, stats.condensings_total);
        validate(b.engine);
        bench_close(&b);
    }
}

/* ---- refusals ---- */

static void refused_as(const engine_bench *b, const char *policy, int status, const char *message)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, 20, 4);
    const quire_retain_spec spec = spec_of(policy);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;

    params.retain = &spec;
    assert_int_equal(quire_engine_submit(b->engine, &params, &request, &err), status);
    if (strncmp(err.message, message, strlen(message)) != 0) {
        fail_msg("%s", err.message);
    }
}

static void refused(const engine_bench *b, const char *policy, const char *message)
{
    refused_as(b, policy, QUIRE_UNSUPP, message);
}

static void test_refusals(void **state)
{
    const setting f16 = { .format = QUIRE_FORMAT_F16 };
    const setting q4 = { .format = QUIRE_FORMAT_Q4 };
    const int32_t windows[4] = { 300, 300, 0, 0 };
    const int32_t all_windows[4] = { 128, 128, 128, 128 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    engine_bench b = condense_bench(&f16);

    (void)state;
    refused(&b, "heavy:0.5,granule=128", "retain: heavy: in shared pages a lane keeps whole tiles");
    bench_close(&b);
    b = condense_bench(&q4);
    refused(&b, "last:0.5",
            "retain: last drops tokens that it has kept before, and tokens in q6 to q3 stay");
    bench_close(&b);
    b = bench_tiny(&engine, &runtime);
    refused(&b, KEYDIFF, "retain: cannot go with an engine without chunks");
    bench_close(&b);
    engine.retain_chunk = CHUNK;
    engine.n_running_max = 4;
    engine.retain_chunk = 2 * CHUNK;
    b = bench_windows(windows, &engine, &runtime);
    refused_as(&b, KEYDIFF, QUIRE_INVAL,
               "retain: keydiff:0.5,sinks=4,recent=32,floor=1,granule=64 keeps 256 tokens of 256, "
               "fewer than the 300 that layers with windows see");
    bench_close(&b);
    b = bench_windows(all_windows, &engine, &runtime);
    refused(&b, KEYDIFF, "retain: keydiff cannot go with a model whose layers all have windows");
    bench_close(&b);
    b = bench_latent(&engine, &runtime);
    refused(&b, "snap:0.5,recent=32", "retain: snap keeps tokens by lane");
    bench_close(&b);
    b = bench_recurrent("lfm2", &engine, &runtime);
    refused(&b, KEYDIFF, "retain: keydiff cannot go with recurrent layers");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_near_shares),
        cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_invalidation),
        cmocka_unit_test(test_cached_bytes),
        cmocka_unit_test(test_session_bytes),
        cmocka_unit_test(test_invalidation_of_a_running_text),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_on_a_device),
        cmocka_unit_test(test_a_device_is_lost),
    };

    return cmocka_run_group_tests(tests, test_dir_make, test_dir_remove);
}
