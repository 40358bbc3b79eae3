/* test_condensing_sealed.c - texts that keep a share of their tokens in q6 to q3: the bits of
 * `quire run --retain` where it condenses at the same places; the same bits after a miss, a hit, a
 * preemption and a restart; memory; refusals.
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
#define N_HIT   (N_PROMPT / 64u * 64u)
#define DIFF    "keydiff:0.5,sinks=0,recent=0"
#define REPEAT  "reconstruct:0.4,recent=60,repeat=100"
#define PREDICT "predict:0.4,recent=60"
#define ENTROPY "entropy:0.4,recent=60,full_layers=none"

/* All tokens of a chunk are read in 8 bits, as quire run reads them, and each layer keeps its share
 * of each chunk: then both keep the same tokens. */
static setting as_run(const char *policy, quire_format format)
{
    return (setting){
        .policy = policy, .format = format, .chunk = WIDE, .has_kv_recent = true, .kv_recent = N_CTX
    };
}

static void same_as_run(const setting *s)
{
    static answer want, want_short;
    const uint32_t page_tokens = s->page_tokens != 0 ? s->page_tokens : 64;
    engine_bench b = condense_bench(s);
    quire_engine_stats stats;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    expect(&b, s, text, N_PROMPT, &want);
    expect(&b, s, text, 2 * WIDE + 1, &want_short);
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want), 0);
    stats = stats_now(b.engine);
    assert_int_equal(stats.condensings_total, 2);
    /* Hits end at full pages. */
    assert_int_equal(check(&b, s->policy, text, N_PROMPT, &want),
                     N_PROMPT / page_tokens * page_tokens);
    assert_int_equal(check(&b, s->policy, text, 2 * WIDE + 1, &want_short), 2 * WIDE);
    assert_int_equal(stats_now(b.engine).condensings_total, stats.condensings_total);
    validate(b.engine);
    bench_close(&b);
}

static void test_bits_of_run(void **state)
{
    setting s;

    (void)state;
    s = as_run(DIFF, QUIRE_FORMAT_Q4);
    same_as_run(&s);
    s.chunk_tokens = 50;
    same_as_run(&s);
    s = as_run("keydiff:0.5,sinks=0,recent=0,floor=0.1", QUIRE_FORMAT_Q3);
    same_as_run(&s);
    s = as_run("snap:0.5,sinks=0,recent=0,floor=0.1", QUIRE_FORMAT_Q5);
    same_as_run(&s);
    s = as_run("stride:0.5,sinks=0,recent=0", QUIRE_FORMAT_Q6);
    same_as_run(&s);
    s = as_run("expected:0.5,sinks=0,recent=0,floor=0.2", QUIRE_FORMAT_Q4);
    same_as_run(&s);
    s = as_run("heavy:0.5,sinks=0,recent=0,floor=0.2", QUIRE_FORMAT_Q4);
    same_as_run(&s);
}

/* One side sealed, and tiles of K and V of different sizes. */
static void test_pairs_of_formats(void **state)
{
    static const struct {
        quire_format k, v;
    } pairs[] = { { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 },
                  { QUIRE_FORMAT_Q4, QUIRE_FORMAT_F16 },
                  { QUIRE_FORMAT_Q5, QUIRE_FORMAT_Q3 } };

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        setting s = as_run(DIFF, pairs[i].k);

        s.has_v_format = true;
        s.v_format = pairs[i].v;
        same_as_run(&s);
        s.policy = "snap:0.5,sinks=0,recent=0,floor=0.1";
        same_as_run(&s);
    }
}

/* Pages of several tiles, where hot tiles also lie beside each other. */
static void test_larger_pages(void **state)
{
    setting s = as_run(DIFF, QUIRE_FORMAT_Q4);

    (void)state;
    s.page_tokens = 128;
    same_as_run(&s);
    s.has_v_format = true;
    s.v_format = QUIRE_FORMAT_Q8;
    s.policy = "snap:0.5,sinks=0,recent=0,floor=0.1";
    same_as_run(&s);
}

/* ---- hits, preemptions, restarts ---- */

/* With recent tokens in 8 bits a hit in the middle of a chunk reads some of them sealed, as of any
 * text in these formats. A hit at a place reads what a miss reads. */
static void hit_is_miss(const char *policy, bool reads_recent)
{
    const setting s = { .policy = policy,
                        .format = QUIRE_FORMAT_Q4,
                        .chunk = WIDE,
                        .has_kv_recent = !reads_recent,
                        .maps = 1 };
    setting miss = s;
    const uint32_t n_prompt = reads_recent ? 2 * WIDE + 1 : N_PROMPT;
    static answer want;
    engine_bench b;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    miss.no_prefix_cache = true;
    miss.chunk_tokens = 70;
    b = condense_bench(&miss);
    assert_int_equal(answer_take(&b, policy, text, n_prompt, &want), 0);
    bench_close(&b);
    b = condense_bench(&s);
    assert_int_equal(check(&b, policy, text, n_prompt, &want), 0);
    assert_int_equal(stats_now(b.engine).condensings_total, 2);
    assert_int_equal(check(&b, policy, text, n_prompt, &want), reads_recent ? 2 * WIDE : N_HIT);
    assert_int_equal(stats_now(b.engine).condensings_total, 2);
    validate(b.engine);
    bench_close(&b);
}

static void test_hits(void **state)
{
    static const char *const policies[] = { "keydiff:0.4,recent=60", ENTROPY, REPEAT, PREDICT,
                                            "heavy:0.4,recent=60" };

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        hit_is_miss(policies[i], true);
        hit_is_miss(policies[i], false);
    }
}

/* A text whose answer reaches a place, and whose tokens a plain request has computed: there are no
 * tokens in 8 bits, so the chunk is computed once more at the place, and once only. */
static void test_after_plain_text(void **state)
{
    const setting s = { .policy = "keydiff:0.4,recent=60",
                        .format = QUIRE_FORMAT_Q4,
                        .chunk = WIDE,
                        .has_kv_recent = true };
    setting miss = s;
    static answer want, plain;
    quire_engine_stats stats;
    engine_bench b;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 2);
    miss.no_prefix_cache = true;
    b = condense_bench(&miss);
    (void)answer_take(&b, s.policy, text, WIDE - 6, &want);
    bench_close(&b);
    b = condense_bench(&s);
    (void)answer_take(&b, NULL, text, WIDE - 6, &plain);
    assert_int_equal(check(&b, s.policy, text, WIDE - 6, &want), WIDE - 64);
    stats = stats_now(b.engine);
    assert_int_equal(stats.preemptions_total, 1);
    assert_int_equal(stats.recomputed_tokens_total, WIDE);
    assert_int_equal(stats.condensings_total, 1);
    assert_int_equal(check(&b, s.policy, text, WIDE - 6, &want), WIDE - 64);
    assert_int_equal(stats_now(b.engine).preemptions_total, 1);
    validate(b.engine);
    bench_close(&b);
}

/* In its last chunk a running request holds the kept share with its list, the tokens behind it, and
 * these tokens also in 8 bits. A request that is preempted there gives the same answer. Texts that
 * ended have no more tokens in 8 bits than plain ones. */
static void test_memory(void **state)
{
    const setting s = { .policy = "keydiff:0.25,sinks=0,recent=0",
                        .format = QUIRE_FORMAT_Q4,
                        .chunk = WIDE,
                        .has_kv_recent = true };
    setting miss = s;
    static answer want;
    engine_bench b;
    quire_loop *loop;
    quire_condensing c = { .chunk = 0 };
    quire_cache_stats stats;
    quire_engine_stats figures;
    quire_request *request;
    uint64_t n_pages;
    gate *g;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    miss.no_prefix_cache = true;
    b = condense_bench(&miss);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    bench_close(&b);
    b = condense_bench(&s);
    loop = b.engine->loop;
    g = gate_close(b.engine);
    request = ask(&b, s.policy, text, N_PROMPT);
    while (c.chunk == 0) {
        quire_request *r;

        gate_step(g);
        r = loop->set.n_running > 0 ? loop->set.running[0] : NULL;
        if (r != NULL && r->kv.n_condensings == 2 && r->state == QUIRE_REQUEST_DECODE) {
            const quire_kv_price *price = &loop->room.price;

            c = r->condensing;
            quire_cache_stats_get(loop->cache, &stats);
            n_pages = quire_condensing_kept(&c, 2) / 64;
            assert_true(n_pages <= 3); /* a quarter of 512 tokens, and the list */
            assert_true(stats.live_bytes > n_pages * price->main_page_bytes);
            assert_true(stats.live_bytes <=
                        (n_pages + 3) * price->main_page_bytes + 3 * price->hot_page_bytes);
            assert_true(stats.live_bytes <=
                        quire_loop_held_bytes(loop, r, quire_request_held(r) + 64));
            quire_loop_preempt(loop, r);
            r->wait.blocked_at = 0; /* as if pages had been released since */
        }
    }
    gate_open(g);
    (void)answer_check(request, &want);
    figures = stats_now(b.engine);
    assert_int_equal(figures.condensings_total, 2);
    quire_cache_stats_get(loop->cache, &stats);
    /* The chunks before both places, the pages kept there, and 2 pages behind the last place. */
    n_pages =
        2 * WIDE / 64 + quire_condensing_kept(&c, 1) / 64 + quire_condensing_kept(&c, 2) / 64 + 2;
    assert_true(stats.cached_bytes <=
                n_pages * loop->room.price.main_page_bytes + 2 * loop->room.price.hot_page_bytes);
    validate(b.engine);
    bench_close(&b);
}

/* Several policies and plain texts at once, in little memory: evictions and preemptions change no
 * answer. */
static void test_side_by_side(void **state)
{
    static const char *const policies[] = { "keydiff:0.4,recent=60", ENTROPY, NULL, REPEAT,
                                            PREDICT };
    const uint32_t n = sizeof policies / sizeof policies[0];
    const setting s = {
        .format = QUIRE_FORMAT_Q4, .chunk = WIDE, .n_pages = 48, .maps = 1, .has_kv_recent = true
    };
    setting miss = s;
    static answer want[8];
    engine_bench b;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    miss.no_prefix_cache = true;
    miss.n_pages = 0;
    b = condense_bench(&miss);
    for (uint32_t i = 0; i < n; i++) {
        (void)answer_take(&b, policies[i], text, N_PROMPT, &want[i]);
    }
    bench_close(&b);
    b = condense_bench(&s);
    check_side_by_side(&b, &(sides){ policies, want, n, text, N_PROMPT }, 3);
    validate(b.engine);
    bench_close(&b);
}

/* ---- below memory, pins ---- */

static void restart(const char *policy)
{
    setting s = {
        .policy = policy, .format = QUIRE_FORMAT_Q4, .chunk = WIDE, .maps = 1, .has_kv_recent = true
    };
    mem_disk *disk = mem_disk_new();
    static answer want;
    engine_bench b;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, 1);
    s.store = mem_disk_store(disk);
    b = condense_bench(&s);
    assert_int_equal(answer_take(&b, s.policy, text, N_PROMPT, &want), 0);
    bench_close(&b);
    s.store = mem_disk_store(disk);
    b = condense_bench(&s);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_HIT);
    assert_int_equal(stats_now(b.engine).condensings_total, 0);
    validate(b.engine);
    bench_close(&b);
    mem_disk_free(disk);
}

static void test_restart(void **state)
{
    (void)state;
    restart("keydiff:0.4,recent=60");
    restart(ENTROPY);
    restart(REPEAT);
}

/* A pin holds the kept pages of the last place and the full ones behind it. */
static void test_pin(void **state)
{
    const setting s = { .policy = ENTROPY,
                        .format = QUIRE_FORMAT_Q4,
                        .chunk = WIDE,
                        .n_pages = 60,
                        .has_kv_recent = true };
    const quire_retain_spec spec = spec_of(s.policy);
    static answer want, other_answer;
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT], other[N_PROMPT];
    const quire_engine_pin_params params = {
        .name = "p", .tokens = text, .n_tokens = N_HIT, .retain = &spec
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    assert_int_equal(quire_engine_pin_create(b.engine, &params, &pin, NULL, &err), QUIRE_OK);
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    for (uint64_t seed = 2; seed < 6; seed++) {
        tokens_make(other, N_PROMPT, seed);
        (void)answer_take(&b, s.policy, other, N_PROMPT, &other_answer);
    }
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_HIT);
    validate(b.engine);
    bench_close(&b);
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    static const char *const policies[] = { "window:0.5", "last:0.5" };
    static const int32_t prompt[] = { 1, 2, 3 };
    const setting s = { .format = QUIRE_FORMAT_Q4, .chunk = WIDE };
    engine_bench b = condense_bench(&s);

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        quire_request_params params = params_greedy(prompt, 3, 1);
        const quire_retain_spec spec = spec_of(policies[i]);
        quire_error err = QUIRE_ERROR_INIT;
        quire_request *request;

        params.retain = &spec;
        assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_UNSUPP);
        assert_non_null(strstr(err.message, "drops tokens that it has kept before, and tokens in"));
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_run),
        cmocka_unit_test(test_pairs_of_formats),
        cmocka_unit_test(test_larger_pages),
        cmocka_unit_test(test_hits),
        cmocka_unit_test(test_after_plain_text),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_pin),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
