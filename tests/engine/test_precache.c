/* test_precache.c - computing in advance: its gain, its end, and its yielding to requests.
 *
 * The engine's clock is the test's: it moves only when told to, and can hold the engine's thread.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "model/text.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define N_CTX    1024u /* and the budget: 16 pages */
#define PAGE     64u
#define N_SHARED (6 * PAGE)
#define N_PROMPT (N_SHARED + 10)
#define SECOND   1000000u

typedef struct test_clock {
    _Atomic uint64_t now_us;
    pthread_t test;        /* is never held */
    atomic_bool is_held;   /* every call of the engine's waits for a ticket */
    atomic_uint n_tickets; /* calls that may go on */
    atomic_bool is_waiting;
} test_clock;

static uint64_t clock_read(void *ctx)
{
    test_clock *c = ctx;

    if (!pthread_equal(pthread_self(), c->test)) {
        while (atomic_load(&c->is_held) && atomic_load(&c->n_tickets) == 0) {
            atomic_store(&c->is_waiting, true);
            (void)sched_yield();
        }
        atomic_store(&c->is_waiting, false);
        if (atomic_load(&c->n_tickets) > 0) {
            atomic_fetch_sub(&c->n_tickets, 1);
        }
    }
    return atomic_load(&c->now_us);
}

static test_clock the_clock;

static void pass(uint64_t us)
{
    atomic_fetch_add(&the_clock.now_us, us);
}

/* arch: of a model with recurrent layers; NULL = one without. */
static engine_bench bench_begin_arch(quire_engine_opts engine, const char *arch)
{
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    memset(&the_clock, 0, sizeof the_clock);
    the_clock.test = pthread_self();
    atomic_store(&the_clock.now_us, 1000u * SECOND);
    engine.clock_us = clock_read;
    engine.clock_ctx = &the_clock;
    engine.precache.slack_tokens = PAGE;
    return arch != NULL ? bench_recurrent(arch, &engine, &runtime) : bench_tiny(&engine, &runtime);
}

static engine_bench bench_begin(quire_engine_opts engine)
{
    return bench_begin_arch(engine, NULL);
}

static quire_precache_stats precache_stats(const engine_bench *b)
{
    quire_engine_stats stats;

    quire_engine_stats_get(b->engine, &stats);
    return stats.memory.precache;
}

/* A request that generates a token. Returns how much of its prompt was cached. */
static uint32_t ask(const engine_bench *b, const int32_t *tokens, uint32_t n, const char *tenant)
{
    quire_request_params params = params_greedy(tokens, n, 1);
    quire_request *request;
    uint32_t n_cached;

    params.tenant = tenant;
    params.tenant_bytes = (uint32_t)strlen(tenant);
    request = submit(b, &params);
    n_cached = finish(request)->n_cached_tokens;
    finish_as(request, QUIRE_FINISH_LENGTH);
    pass(SECOND);
    return n_cached;
}

/* A prompt that begins as all do and goes on in its own way. */
static uint32_t ask_shared(const engine_bench *b, uint64_t seed)
{
    int32_t tokens[N_PROMPT];

    tokens_make(tokens, N_SHARED, 1);
    tokens_make(tokens + N_SHARED, N_PROMPT - N_SHARED, seed);
    return ask(b, tokens, N_PROMPT, "");
}

/* Fill the memory, so that all cached pages are evicted; then free it again. */
static void evict_all(const engine_bench *b)
{
    static int32_t tokens[N_CTX - 1];
    const quire_invalidate filler = { .what = QUIRE_INVALIDATE_TENANT,
                                      .tenant = "filler",
                                      .tenant_bytes = 6 };
    quire_prefix_dropped dropped;

    tokens_make(tokens, N_CTX - 1, 99);
    assert_int_equal(ask(b, tokens, N_CTX - 1, "filler"), 0);
    assert_int_equal(quire_engine_invalidate(b->engine, &filler, &dropped), QUIRE_OK);
    assert_true(dropped.tokens > N_CTX - PAGE);
}

/* Let idle time pass until n tokens have been computed in advance. */
static void wait_computed(const engine_bench *b, uint64_t n)
{
    pass(SECOND);
    while (precache_stats(b).tokens_total < n) {
        (void)sched_yield();
    }
    assert_int_equal(precache_stats(b).tokens_total, n);
}

/* The engine looked around several times, and found nothing to compute. */
static void wait_nothing(const engine_bench *b)
{
    const uint64_t n = precache_stats(b).tokens_total;

    for (uint32_t i = 0; i < 3; i++) {
        pass(SECOND);
        atomic_store(&the_clock.is_held, true);
        while (!atomic_load(&the_clock.is_waiting)) {
            (void)sched_yield();
        }
        atomic_store(&the_clock.is_held, false);
        while (atomic_load(&the_clock.is_waiting)) {
            (void)sched_yield();
        }
    }
    assert_int_equal(precache_stats(b).tokens_total, n);
}

static void test_a_shared_beginning_comes_back(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b = bench_begin(engine);

    (void)state;
    assert_int_equal(ask_shared(&b, 10), 0);
    assert_int_equal(ask_shared(&b, 11), N_SHARED);
    assert_int_equal(ask_shared(&b, 12), N_SHARED);
    evict_all(&b);
    wait_computed(&b, N_SHARED);
    assert_int_equal(precache_stats(&b).gain_tokens_total, 0);
    assert_int_equal(ask_shared(&b, 13), N_SHARED);
    assert_int_equal(ask_shared(&b, 14), N_SHARED); /* counts once */
    assert_int_equal(stats_now(b.engine).memory.precache.gain_tokens_total, N_SHARED);
    assert_int_equal(precache_stats(&b).waste_tokens_total, 0);
    assert_int_equal(precache_stats(&b).runs_total, 1);
    assert_true(precache_stats(&b).is_on);
    validate(b.engine);
    bench_close(&b);
}

static void test_one_time_texts_and_wrong_ones_do_not(void **state)
{
    const quire_invalidate all = { .what = QUIRE_INVALIDATE_ALL };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b = bench_begin(engine);
    quire_prefix_dropped dropped;

    (void)state;
    assert_int_equal(ask_shared(&b, 10), 0);
    evict_all(&b);
    wait_nothing(&b); /* no text was requested twice */
    assert_int_equal(ask_shared(&b, 10), 0);
    assert_int_equal(ask_shared(&b, 11), N_SHARED);
    assert_int_equal(ask_shared(&b, 12), N_SHARED);
    assert_int_equal(quire_engine_invalidate(b.engine, &all, &dropped), QUIRE_OK);
    wait_nothing(&b);
    assert_int_equal(precache_stats(&b).runs_total, 0);
    bench_close(&b);
}

static void test_it_is_off_when_told(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b;

    (void)state;
    engine.precache.is_off = true;
    b = bench_begin(engine);
    assert_int_equal(ask_shared(&b, 10), 0);
    assert_int_equal(ask_shared(&b, 11), N_SHARED);
    assert_int_equal(ask_shared(&b, 12), N_SHARED);
    evict_all(&b);
    pass(SECOND);
    assert_int_equal(stats_now(b.engine).memory.precache.tokens_total, 0);
    assert_false(precache_stats(&b).is_on);
    assert_int_equal(ask_shared(&b, 13), 0);
    bench_close(&b);
}

/* The number of events of a kind; the last one's text begins so. */
/* All events of the kind begin so. */
static uint32_t same_events_of(const engine_bench *b, quire_event_kind kind, const char *begin)
{
    const uint32_t n = events_of(b, kind, begin);

    assert_int_equal(events_of(b, kind, ""), n);
    return n;
}

static void test_it_stops_when_it_wastes(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b = bench_begin(engine);

    (void)state;
    assert_int_equal(ask_shared(&b, 10), 0);
    assert_int_equal(ask_shared(&b, 11), N_SHARED);
    assert_int_equal(ask_shared(&b, 12), N_SHARED);
    evict_all(&b);
    wait_computed(&b, N_SHARED);
    evict_all(&b); /* before any request for it */
    /* Enough time has passed; any more might be part of the pause already. */
    while (precache_stats(&b).pauses_total == 0) {
        (void)sched_yield();
    }
    assert_int_equal(precache_stats(&b).waste_tokens_total, N_SHARED);
    assert_false(precache_stats(&b).is_on);
    assert_int_equal(same_events_of(&b, QUIRE_EVENT_PRECACHE_OFF, "pre-caching pauses for 60 s"),
                     1);
    (void)ask_shared(&b, 13);
    (void)ask_shared(&b, 14);
    evict_all(&b);
    wait_nothing(&b);
    assert_false(precache_stats(&b).is_on);
    /* A minute after its last use the text, used every few seconds, has been given up. */
    while (!precache_stats(&b).is_on) {
        pass(SECOND);
        (void)sched_yield();
    }
    assert_int_equal(same_events_of(&b, QUIRE_EVENT_PRECACHE_ON, "pre-caching goes on after 60 s"),
                     1);
    assert_int_equal(precache_stats(&b).runs_total, 1);
    bench_close(&b);
}

static void test_a_request_waits_for_one_step_at_most(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b = bench_begin(engine);
    int32_t tokens[PAGE];
    uint64_t n_before;

    (void)state;
    assert_int_equal(ask_shared(&b, 10), 0);
    assert_int_equal(ask_shared(&b, 11), N_SHARED);
    assert_int_equal(ask_shared(&b, 12), N_SHARED);
    evict_all(&b);
    atomic_store(&the_clock.is_held, true);
    pass(SECOND);
    while (precache_stats(&b).tokens_total < 2 * PAGE) { /* one call of the clock after another */
        if (atomic_load(&the_clock.is_waiting)) {
            atomic_store(&the_clock.is_waiting, false);
            atomic_store(&the_clock.n_tickets, 1);
        }
        (void)sched_yield();
    }
    n_before = precache_stats(&b).tokens_total;
    assert_true(n_before < N_SHARED);
    tokens_make(tokens, PAGE, 50);
    {
        quire_request_params params = params_greedy(tokens, PAGE, 1);
        quire_request *request = submit(&b, &params);

        atomic_store(&the_clock.is_held, false);
        finish_as(request, QUIRE_FINISH_LENGTH);
    }
    assert_int_equal(precache_stats(&b).aborted_runs_total, 1);
    assert_true(precache_stats(&b).tokens_total <= n_before + PAGE);
    n_before = precache_stats(&b).tokens_total;
    assert_int_equal(ask_shared(&b, 13), n_before); /* the computed tokens are hit */
    assert_int_equal(stats_now(b.engine).memory.precache.gain_tokens_total, n_before);
    validate(b.engine);
    bench_close(&b);
}

/* Two turns of a session. Their pages are published under the session's owner. */
static void session_talk(const engine_bench *b, const int32_t *tokens, uint32_t n)
{
    const quire_chat_message message = { "user", "hello", NULL };
    quire_sessions *sessions = quire_engine_sessions(b->engine);
    quire_error err = QUIRE_ERROR_INIT;

    for (uint32_t turn = 1; turn <= 2; turn++) {
        quire_request_params params = params_greedy(tokens, n * turn / 2, 1);
        quire_request *request;
        quire_session_ref ref;
        uint32_t n_kept;
        int32_t *kept;

        assert_int_equal(
            quire_sessions_enter(sessions, "", 0, "chat", clock_read(&the_clock), &ref, &err),
            QUIRE_OK);
        params.session = ref;
        params.tenant = "";
        request = submit(b, &params);
        (void)finish(request);
        kept = quire_request_tokens_take(request, &n_kept);
        assert_int_equal(n_kept, n * turn / 2); /* the generated one was not computed */
        assert_memory_equal(kept, tokens, n_kept * sizeof *kept);
        assert_int_equal(
            quire_sessions_commit(sessions, ref, &message, 1, kept, n_kept, clock_read(&the_clock)),
            QUIRE_OK);
        finish_as(request, QUIRE_FINISH_LENGTH);
        pass(5 * SECOND);
        quire_sessions_leave(sessions, ref, clock_read(&the_clock));
    }
}

static void test_a_session_about_to_go_on(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b = bench_begin(engine);
    const quire_invalidate close = { .what = QUIRE_INVALIDATE_SESSION, .session_id = "chat" };
    int32_t tokens[N_PROMPT];
    quire_prefix_dropped dropped;

    (void)state;
    tokens_make(tokens, N_PROMPT, 3);
    session_talk(&b, tokens, N_PROMPT - 8);
    evict_all(&b);
    wait_computed(&b, N_PROMPT - 8);
    assert_int_equal(ask(&b, tokens, N_PROMPT, ""), N_PROMPT - 8);
    assert_int_equal(stats_now(b.engine).memory.precache.gain_tokens_total, N_PROMPT - 8);
    evict_all(&b);
    assert_int_equal(quire_engine_invalidate(b.engine, &close, &dropped), QUIRE_OK);
    wait_nothing(&b); /* a session that was closed does not come back */
    bench_close(&b);
}

static void evict_everything(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_evict(tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
}

/* A text computed in advance leaves the state at its end. Requests go on from this state. */
static void test_recurrent_layers(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b;
    int32_t tokens[N_PROMPT], got, expected;
    quire_request_params params;
    quire_request *request;

    engine.state_every_tokens = 2 * PAGE;
    b = bench_begin_arch(engine, *state);
    assert_int_equal(ask_shared(&b, 10), 0);
    assert_int_equal(ask_shared(&b, 11), N_SHARED);
    assert_int_equal(ask_shared(&b, 12), N_SHARED);
    assert_int_equal(ask_shared(&b, 13), N_SHARED);
    assert_int_equal(engine_call(b.engine, evict_everything, NULL), QUIRE_OK);
    wait_computed(&b, N_SHARED);
    tokens_make(tokens, N_SHARED, 1);
    tokens_make(tokens + N_SHARED, N_PROMPT - N_SHARED, 14);
    params = params_greedy(tokens, N_PROMPT, 1);
    (void)reference(&b, tokens, N_PROMPT, &expected, 1);
    request = submit(&b, &params);
    assert_int_equal(collect(request, &got, 1), 1);
    assert_int_equal(got, expected);
    assert_int_equal(finish(request)->n_cached_tokens, N_SHARED);
    quire_request_release(request);
    assert_int_equal(stats_now(b.engine).memory.precache.gain_tokens_total, N_SHARED);

    tokens_make(tokens, N_PROMPT, 3);
    session_talk(&b, tokens, N_PROMPT - 8);
    assert_int_equal(engine_call(b.engine, evict_everything, NULL), QUIRE_OK);
    pass(SECOND);
    while (precache_stats(&b).tokens_total < N_SHARED + N_PROMPT - 8) {
        (void)sched_yield();
    }
    assert_int_equal(ask(&b, tokens, N_PROMPT, ""), N_PROMPT - 8);
    validate(b.engine);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_shared_beginning_comes_back),
        cmocka_unit_test(test_one_time_texts_and_wrong_ones_do_not),
        cmocka_unit_test(test_it_is_off_when_told),
        cmocka_unit_test(test_it_stops_when_it_wastes),
        cmocka_unit_test(test_a_request_waits_for_one_step_at_most),
        cmocka_unit_test(test_a_session_about_to_go_on),
        cmocka_unit_test_prestate(test_recurrent_layers, (void *)(uintptr_t) "lfm2"),
        cmocka_unit_test_prestate(test_recurrent_layers, (void *)(uintptr_t) "qwen35"),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
