/* test_condensing_tier.c - condensed texts below memory: their pages go down, come back after a
 * restart, after a preemption and after other texts took their memory, with the bits of `quire
 * run`; chunks that the store lacks are condensed again; dropped texts stay dropped.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"
#include "doze.h"
#include "mem_disk.h"

#include "engine/engine_halves.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/tier_object.h"

#include <stdatomic.h>

#define N_PLACES ((N_PROMPT + N_TOKENS - 2) / CHUNK)
#define N_FULL   (N_PROMPT / 64 * 64) /* behind it the answer filled the page */

/* ---- a directory that outlives engines ---- */

static engine_bench bench_at(mem_disk *disk, const setting *s)
{
    setting with = *s;

    with.store = mem_disk_store(disk);
    return condense_bench(&with);
}

/* Idle time copies everything, and the store has made it durable. */
static void wait_copied(const engine_bench *b)
{
    uint64_t n_before = UINT64_MAX;
    uint32_t n_still = 0;

    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && n_still < 200; i++) {
        const quire_tier_stats tier = stats_now(b->engine).tier;

        n_still = tier.store.puts_now == 0 && tier.store.records == n_before ? n_still + 1 : 0;
        n_before = tier.store.records;
        test_doze_ms();
    }
    assert_int_equal(n_still, 200);
    assert_true(n_before > 0);
}

static void tree_forget(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_drop_all(tree, 0);
}

static void forget(const engine_bench *b)
{
    assert_int_equal(engine_call(b->engine, tree_forget, NULL), QUIRE_OK);
}

/* ---- tests ---- */

/* After a restart a condensed text is found to its last full page, and nothing of the prompt is
 * condensed again; a shorter text begins with an earlier condensing, and a longer one goes on
 * behind the last. */
static void restart(const setting *s)
{
    mem_disk *disk = mem_disk_new();
    static answer want, want_short, want_long;
    engine_bench b = bench_at(disk, s);
    int32_t text[N_PROMPT + 2 * CHUNK];
    quire_engine_stats stats;

    tokens_make(text, N_PROMPT + 2 * CHUNK, 1);
    expect(&b, s, text, N_PROMPT, &want);
    expect(&b, s, text, 3 * CHUNK + 1, &want_short);
    expect(&b, s, text, N_PROMPT + 2 * CHUNK, &want_long);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), 0);
    bench_close(&b); /* copies the remaining pages */

    b = bench_at(disk, s);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), N_FULL);
    stats = stats_now(b.engine);
    assert_int_equal(stats.condensings_total, 1); /* of the answer */
    assert_int_equal(stats.tier.fetches_total, 1);
    assert_int_equal(stats.tier.fetching, 0);
    /* Fetched: the kept pages of the last place before the prompt's end, and the pages behind it.
     */
    assert_true(stats.tier.fetched_tokens_total < N_PROMPT - CHUNK);
    forget(&b);
    assert_int_equal(check(&b, s->policy, text, 3 * CHUNK + 1, &want_short), 3 * CHUNK);
    forget(&b);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT + 2 * CHUNK, &want_long), N_FULL);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

static void test_restart(void **state)
{
    static const setting settings[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 },
        { .policy = STRIDE, .format = QUIRE_FORMAT_Q8, .chunk_tokens = 50 },
        { .policy = "window:0.5,recent=32", .format = QUIRE_FORMAT_F32 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        restart(&settings[i]);
    }
}

/* Other policies, other chunks and texts with all tokens find only the pages that they share. */
static void test_other_policies(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    const setting other = { .policy = "keydiff:0.5,recent=48", .format = QUIRE_FORMAT_F16 };
    const setting plain = { .format = QUIRE_FORMAT_F16 };
    mem_disk *disk = mem_disk_new();
    static answer want, want_other, want_plain;
    engine_bench b = bench_at(disk, &s);
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    expect(&b, &other, text, N_PROMPT, &want_other);
    expect(&b, &plain, text, N_PROMPT, &want_plain);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    bench_close(&b);
    b = bench_at(disk, &s);
    assert_int_equal(check(&b, other.policy, text, N_PROMPT, &want_other), CHUNK);
    forget(&b);
    assert_int_equal(check(&b, NULL, text, N_PROMPT, &want_plain), CHUNK);
    forget(&b);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_FULL);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

/* In memory for little more than one context other texts take the pages; they come back. */
static void test_eviction(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16, .n_pages = 16 };
    mem_disk *disk = mem_disk_new();
    static answer want, want_other;
    engine_bench b = bench_at(disk, &s);
    int32_t text[N_PROMPT], other[N_PROMPT];
    uint64_t n_condensed;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    tokens_make(other, N_PROMPT, 2);
    expect(&b, &s, text, N_PROMPT, &want);
    expect(&b, &s, other, N_PROMPT, &want_other);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    wait_copied(&b);
    (void)check(&b, s.policy, other, N_PROMPT, &want_other);
    wait_copied(&b);
    n_condensed = stats_now(b.engine).condensings_total;
    assert_true(check(&b, s.policy, text, N_PROMPT, &want) >= N_FULL);
    assert_true(check(&b, s.policy, other, N_PROMPT, &want_other) >= N_FULL);
    /* Nothing but the answers' places at most. */
    assert_true(stats_now(b.engine).condensings_total <= n_condensed + 2);
    assert_true(stats_now(b.engine).prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
    assert_true(stats_now(b.engine).tier.fetched_tokens_total > 0);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

/* A preempted request whose pages have left memory goes on with their copies. */
static void test_preemption(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    mem_disk *disk = mem_disk_new();
    static answer want;
    engine_bench b = bench_at(disk, &s);
    quire_loop *loop = b.engine->loop;
    int32_t text[N_PROMPT];
    quire_request *request;
    bool is_done = false;
    gate *g;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    g = gate_close(b.engine);
    request = ask(&b, s.policy, text, N_PROMPT);
    while (!is_done) {
        quire_request *r;

        gate_step(g);
        r = loop->set.n_running > 0 ? loop->set.running[0] : NULL;
        if (r != NULL && r->state == QUIRE_REQUEST_DECODE && r->kv.n_condensings == 4) {
            quire_loop_preempt(loop, r);
            r->wait.blocked_at = 0;
            while (loop->tier->n_puts_away > 0) {
                test_doze_ms();
                quire_tier_poll(loop, 0);
            }
            (void)quire_prefix_drop_all(loop->tree, quire_loop_now_us(loop));
            is_done = true;
        }
    }
    gate_open(g);
    (void)answer_check(request, &want);
    assert_int_equal(stats_now(b.engine).condensings_total, N_PLACES);
    assert_true(stats_now(b.engine).tier.fetched_tokens_total > 0);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

/* A kept page of the last condensed text is missing: the condensed text before it is used. */
typedef struct loss {
    quire_loop *loop;
    const int32_t *text;
    uint32_t k; /* condensings behind the text whose second page the store loses */
} loss;

static void lose_page(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const loss *l = ctx;
    const quire_retain_spec spec = spec_of(KEYDIFF);
    quire_condensing condensing;
    quire_condensed_text text = { &condensing, l->text, NULL, 0 };
    quire_condensed_name name;
    quire_store_drop drop = { .what = QUIRE_STORE_DROP_TEXT };
    quire_prefix_key key;
    const int32_t *labels;

    (void)cache;
    (void)tree;
    quire_condensing_init(&condensing, &spec, CHUNK, 64, NULL);
    name = quire_loop_condensed_name(l->loop, &text);
    for (uint32_t k = 0; k < l->k; k++) {
        quire_condensed_text_next(&text, k, &name);
    }
    key = quire_condensed_name_key(&name, NULL, 0);
    labels = l->text + quire_condensing_gone(&condensing, l->k);
    quire_prefix_key_root(&key, &drop.key);
    drop.root = drop.key; /* not that of the records: nothing else goes */
    quire_prefix_key_add(&drop.key, labels, 64, &drop.key);
    quire_prefix_key_add(&drop.key, labels + 64, 64, &drop.key);
    assert_int_equal(l->loop->tier->store->ops->drop(l->loop->tier->store, &drop), QUIRE_OK);
}

static void test_missing_page(void **state)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    mem_disk *disk = mem_disk_new();
    static answer want;
    engine_bench b = bench_at(disk, &s);
    int32_t text[N_PROMPT];
    loss l = { .text = text, .k = 4 };

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    bench_close(&b);
    b = bench_at(disk, &s);
    l.loop = b.engine->loop;
    assert_int_equal(engine_call(b.engine, lose_page, &l), QUIRE_OK);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 4 * CHUNK);
    assert_int_equal(stats_now(b.engine).condensings_total, 2);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

/* A store that gives nothing back for a while. */
static quire_store_ops held_ops;
static uint32_t (*real_poll)(quire_store *store, quire_transfer **out, uint32_t n);
static atomic_bool is_held;

static uint32_t held_poll(quire_store *store, quire_transfer **out, uint32_t n)
{
    return atomic_load(&is_held) ? 0 : real_poll(store, out, n);
}

static quire_store *held_store(mem_disk *disk)
{
    quire_store *store = mem_disk_store(disk);

    held_ops = *store->ops;
    real_poll = held_ops.poll;
    held_ops.poll = held_poll;
    store->ops = &held_ops;
    return store;
}

static void store_forget(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const quire_loop *loop = ctx;
    const quire_store_drop all = { .what = QUIRE_STORE_DROP_ALL };

    (void)cache;
    (void)tree;
    assert_int_equal(loop->tier->store->ops->drop(loop->tier->store, &all), QUIRE_OK);
}

/* While the store is asked for a text that was condensed more often, the condensed text in memory
 * goes. The store has neither, and the request does not wait for ever. */
static void test_gone_meanwhile(void **state)
{
    setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    mem_disk *disk = mem_disk_new();
    static answer want;
    int32_t text[N_PROMPT];
    quire_request *request;
    engine_bench b;
    quire_loop *loop;
    gate *g;

    (void)state;
    atomic_store(&is_held, false);
    s.store = held_store(disk);
    b = condense_bench(&s);
    loop = b.engine->loop;
    tokens_make(text, N_PROMPT, 1);
    expect(&b, &s, text, N_PROMPT, &want);
    (void)answer_read(ask(&b, s.policy, text, 3 * CHUNK + 1), &(answer){ 0 });
    wait_copied(&b);
    assert_int_equal(engine_call(b.engine, store_forget, loop), QUIRE_OK);
    atomic_store(&is_held, true);
    g = gate_close(b.engine);
    request = ask(&b, s.policy, text, N_PROMPT);
    gate_step(g);
    assert_non_null(loop->tier->fetches);
    assert_int_equal(loop->tier->fetches->k_have, 3);
    assert_int_equal(loop->tier->fetches->stage, QUIRE_FETCH_LOOKS);
    (void)quire_prefix_drop_all(loop->tree, quire_loop_now_us(loop));
    atomic_store(&is_held, false);
    gate_open(g);
    assert_int_equal(answer_check(request, &want), 0);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

/* Condensed texts of an earlier process are dropped with a text that they may begin with, also a
 * longer one. Texts of other tenants stay. */
static void dropped(const quire_invalidate *what, bool is_named)
{
    const setting s = { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 };
    mem_disk *disk = mem_disk_new();
    static answer want;
    engine_bench b = bench_at(disk, &s);
    int32_t text[N_PROMPT];
    quire_prefix_dropped n;
    quire_invalidate named = *what;
    uint32_t n_cached;

    tokens_make(text, N_PROMPT, 1);
    named.tokens = text;
    expect(&b, &s, text, N_PROMPT, &want);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    bench_close(&b);
    b = bench_at(disk, &s);
    assert_int_equal(quire_engine_invalidate(b.engine, &named, &n), QUIRE_OK);
    n_cached = check(&b, s.policy, text, N_PROMPT, &want);
    assert_true(is_named ? n_cached <= CHUNK : n_cached == N_FULL);
    bench_close(&b);
    mem_disk_free(disk);
}

static void test_invalidation(void **state)
{
    static const quire_invalidate named[] = {
        { .what = QUIRE_INVALIDATE_ALL },
        { .what = QUIRE_INVALIDATE_TENANT },
        { .what = QUIRE_INVALIDATE_PREFIX, .n_tokens = 2 * CHUNK + 10 },
        { .what = QUIRE_INVALIDATE_PREFIX, .n_tokens = N_PROMPT },
    };
    static const quire_invalidate other = { .what = QUIRE_INVALIDATE_TENANT,
                                            .tenant = "anna",
                                            .tenant_bytes = 4 };

    (void)state;
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        dropped(&named[i], true);
    }
    dropped(&other, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart),      cmocka_unit_test(test_other_policies),
        cmocka_unit_test(test_eviction),     cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_missing_page), cmocka_unit_test(test_gone_meanwhile),
        cmocka_unit_test(test_invalidation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
