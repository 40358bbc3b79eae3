/* test_condensing_fails.c - requests whose condensed text cannot be read: its pages are damaged,
 * memory is missing, or the device is lost. They compute the text again with all bits, or end, and
 * leave nothing behind; other requests are unaffected.
 *
 * The link wraps malloc, calloc, realloc and aligned_alloc, and the loop's condensing, before which
 * an allocation is told to fail.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"
#include "failing_alloc.h"
#include "rounds.h"

#include "device/mock_device.h"
#include "engine/engine_halves.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"

#include <stdatomic.h>
#include <string.h>

#define WIDE    256u /* tokens between two condensings */
#define N_SHORT 250u /* tokens of a prompt whose answer passes the first place */
#define SNAP    "snap:0.4,recent=60,floor=0.1,granule=64"
#define SPREAD  12u /* of the pieces of work, one in so many more is tried */
#define HEAVY   "heavy:0.4,recent=60,granule=64"

static const char *const policies[] = { SNAP, HEAVY };

/* ---- damaged pages ---- */

/* Change the first number of the list of a cached text that was condensed k times. The engine
 * stands still. */
static void damage(quire_loop *loop, const char *policy, const int32_t *text, uint32_t k)
{
    const quire_retain_spec spec = spec_of(policy);
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    quire_packed_pages pages = { .addrs = quire_cache_page_addrs(loop->cache) };
    quire_prefix_acquire_opts opts = { .is_private = true };
    quire_condensing c;
    quire_condensed_text of = { &c, text, NULL, 0 };
    quire_prefix_match match;
    quire_prefix_key key;
    quire_prefix_ref ref;
    quire_seq_table table;
    quire_seq_id seq;
    uint32_t n;

    quire_condensing_init(&c, &spec, loop->opts.retain_chunk, page_tokens, &loop->lanes.parts);
    key = quire_loop_condensed_key(loop, NULL, 0, quire_loop_condensed_find(loop, &of, k, &n));
    assert_int_equal(n, k);
    n = opts.tokens_max = quire_condensing_kept(&c, k);
    assert_int_equal(quire_seq_open(loop->cache, QUIRE_REGION_DYNAMIC, &seq), QUIRE_OK);
    assert_int_equal(quire_prefix_acquire(loop->tree, &key, seq,
                                          text + quire_condensing_gone(&c, k), n, &opts, &match,
                                          &ref),
                     QUIRE_OK);
    assert_int_equal(match.n_tokens, n);
    assert_int_equal(quire_seq_table_get(loop->cache, seq, 0, &table), QUIRE_OK);
    pages.leaves = table.leaves;
    pages.n = n / page_tokens;
    quire_packed_part(&c.packing, &pages, 0)[0] ^= 1;
    assert_int_equal(quire_prefix_release(loop->tree, ref, 0), QUIRE_OK);
    assert_int_equal(quire_seq_close(loop->cache, seq), QUIRE_OK);
}

/* A request would begin with damaged pages: it begins without them. */
static void test_damaged_begin(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const setting s = { .policy = policies[i], .format = QUIRE_FORMAT_F16, .chunk = WIDE };
        engine_bench b = condense_bench(&s);
        static answer want;
        int32_t text[N_PROMPT];
        gate *g;

        tokens_make(text, N_PROMPT, 1);
        (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
        g = gate_close(b.engine);
        damage(b.engine->loop, s.policy, text, 2);
        gate_open(g);
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), 0);
        assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_PROMPT - 1);
        assert_int_equal(stats_now(b.engine).preemptions_total, 0);
        validate(b.engine);
        bench_close(&b);
    }
}

/* A request comes to a place and finds damaged pages there, also beside a younger request, which
 * would be preempted first if memory were short. */
static void test_damaged_place(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const setting s = { .policy = policies[i / 2], .format = QUIRE_FORMAT_F16, .chunk = WIDE };
        const bool has_other = i % 2 != 0;
        engine_bench b = condense_bench(&s);
        static answer want, want_other;
        int32_t text[N_SHORT + N_TOKENS], other[N_SHORT];
        quire_request *requests[2];
        gate *g;

        tokens_make(text, N_SHORT, 1);
        tokens_make(other, N_SHORT, 2);
        (void)answer_take(&b, NULL, other, N_SHORT, &want_other);
        (void)answer_take(&b, s.policy, text, N_SHORT, &want);
        memcpy(text + N_SHORT, want.tokens, N_TOKENS * sizeof *text);
        assert_int_equal(stats_now(b.engine).condensings_total, 1);
        g = gate_close(b.engine);
        damage(b.engine->loop, s.policy, text, 1);
        requests[0] = ask(&b, s.policy, text, N_SHORT);
        requests[1] = has_other ? ask(&b, NULL, other, N_SHORT) : NULL;
        gate_open(g);
        (void)answer_check(requests[0], &want);
        if (has_other) {
            (void)answer_check(requests[1], &want_other);
        }
        assert_int_equal(stats_now(b.engine).condensings_total, 2);
        assert_int_equal(stats_now(b.engine).condensings_found_total, 1);
        (void)check(&b, s.policy, text, N_SHORT, &want);
        assert_int_equal(stats_now(b.engine).condensings_total, 2);
        validate(b.engine);
        bench_close(&b);
    }
}

/* ---- no memory ---- */

static void arm(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)tree;
    fail_calloc_bytes = *(const size_t *)ctx;
}

/* There is no memory for what a request has beside its pages, with a hit and without: it ends, and
 * has opened nothing. */
static void test_no_memory(void **state)
{
    size_t text_bytes = sizeof(quire_packed_text), none = 0;
    const setting s = { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE };
    engine_bench b = condense_bench(&s);
    static answer want;
    int32_t text[N_PROMPT];

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    assert_int_equal(engine_call(b.engine, arm, &text_bytes), QUIRE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        quire_request *request = ask(&b, s.policy, text, i == 0 ? N_SHORT : N_PROMPT);

        assert_int_equal(finish(request)->status, QUIRE_NOMEM);
        finish_as(request, QUIRE_FINISH_ERROR);
    }
    assert_int_equal(engine_call(b.engine, arm, &none), QUIRE_OK);
    assert_int_equal(check(&b, s.policy, text, N_PROMPT, &want), N_PROMPT - 1);
    validate(b.engine);
    bench_close(&b); /* no sequence is open */
}

static void forget(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_drop_all(tree, 0);
}

/* Bytes of the sums that a text has when it was condensed once. */
static size_t sums_bytes(const engine_bench *b, const int32_t *text)
{
    const quire_loop *loop = b->engine->loop;
    const uint32_t n_lanes = quire_packing_n_lanes(&loop->lanes.parts.packing);
    gate *g = gate_close(b->engine);
    quire_request *request = ask(b, HEAVY, text, N_PROMPT);
    const quire_request *r = NULL;
    uint32_t n_places;

    for (uint32_t i = 0; i < 40 && (r == NULL || r->kv.n_condensings == 0); i++) {
        gate_step(g);
        r = loop->set.n_running > 0 ? loop->set.running[0] : NULL;
    }
    assert_non_null(r);
    assert_int_equal(r->kv.n_condensings, 1);
    n_places = r->kv.lanes->lanes.first[n_lanes];
    gate_open(g);
    finish_as(request, QUIRE_FINISH_LENGTH);
    return ((size_t)n_places * QUIRE_TILE_TOKENS + (size_t)n_lanes * WIDE) * sizeof(float);
}

/* There is no memory, each time, to read what a text that was just condensed keeps: the request
 * ends by name, and another one goes on. */
static void test_no_memory_to_read(void **state)
{
    const setting s = { .policy = HEAVY, .format = QUIRE_FORMAT_F16, .chunk = WIDE };
    engine_bench b = condense_bench(&s);
    static answer want, want_plain;
    quire_request *requests[2];
    int32_t text[N_PROMPT];
    size_t n_bytes, none = 0;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    n_bytes = sums_bytes(&b, text);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    (void)answer_take(&b, NULL, text, N_PROMPT, &want_plain);
    assert_int_equal(engine_call(b.engine, forget, NULL), QUIRE_OK);
    assert_int_equal(engine_call(b.engine, arm, &n_bytes), QUIRE_OK);
    requests[0] = ask(&b, s.policy, text, N_PROMPT);
    requests[1] = ask(&b, NULL, text, N_PROMPT);
    assert_int_equal(finish(requests[0])->status, QUIRE_NOMEM);
    assert_string_equal(finish(requests[0])->message,
                        "no memory to read which tokens of the text were kept (retain)");
    assert_int_equal(finish(requests[0])->n_preemptions, 1);
    quire_request_release(requests[0]);
    (void)answer_check(requests[1], &want_plain);
    assert_int_equal(engine_call(b.engine, arm, &none), QUIRE_OK);
    (void)check(&b, s.policy, text, N_PROMPT, &want);
    validate(b.engine);
    bench_close(&b);
}

/* ---- no memory in the middle ---- */

/* The condensing at place 2 of the one request: an allocation in it fails. */
static atomic_uint fail_at;  /* its number, from 1 on; 0 = none */
static atomic_uint n_before; /* allocations that were left before it; 0: it has failed */

bool __real_quire_loop_condense(quire_loop *loop);
bool __wrap_quire_loop_condense(quire_loop *loop);

bool __wrap_quire_loop_condense(quire_loop *loop)
{
    const quire_request *r = loop->set.n_running > 0 ? loop->set.running[0] : NULL;
    bool is_done;

    if (r == NULL || r->kv.n_condensings != 1 || r->kv.n_computed < 2 * r->condensing.chunk) {
        return __real_quire_loop_condense(loop);
    }
    fail_in = atomic_exchange(&fail_at, 0);
    is_done = __real_quire_loop_condense(loop);
    if (fail_in > 0) {
        atomic_store(&n_before, fail_in);
    }
    fail_in = 0;
    return is_done;
}

/* Pages of memory in which the text can be computed, and no fewer. */
static uint32_t least_pages(const engine_bench *b, const setting *s)
{
    const quire_loop *loop = b->engine->loop;
    const quire_retain_spec spec = spec_of(s->policy);
    quire_condensing c;
    uint64_t bytes;

    quire_condensing_init(&c, &spec, loop->opts.retain_chunk, loop->runtime_opts->page_tokens,
                          &loop->lanes.parts);
    bytes = quire_loop_condensing_bytes(loop, &c, quire_condensing_need(&c, N_PROMPT + N_TOKENS)) +
            loop->room.page_bytes;
    return (uint32_t)((bytes + loop->room.page_bytes - 1) / loop->room.page_bytes);
}

/* The text is computed with all bits, whichever allocation fails, within its own pages too. */
static void each_fails(setting s)
{
    engine_bench b = condense_bench(&s);
    static answer want;
    int32_t text[N_PROMPT];
    unsigned k = 0;

    tokens_make(text, N_PROMPT, 1);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    s.n_pages = least_pages(&b, &s);
    bench_close(&b);
    b = condense_bench(&s);
    atomic_store(&n_before, 0);
    while (atomic_load(&n_before) == 0) {
        assert_int_equal(engine_call(b.engine, forget, NULL), QUIRE_OK);
        k += TEST_STRIDE(3u);
        atomic_store(&fail_at, k);
        (void)check(&b, s.policy, text, N_PROMPT, &want);
        assert_int_equal(atomic_load(&fail_at), 0);
        validate(b.engine);
    }
    assert_true(k > 5);
    bench_close(&b);
}

static void test_each_fails(void **state)
{
    static const int32_t windows[4] = { 64, 0, 64, 0 };
    static const setting settings[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16 },
        { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE },
        { .policy = HEAVY, .format = QUIRE_FORMAT_Q8, .chunk = WIDE },
        { .policy = SNAP, .format = QUIRE_FORMAT_Q4, .chunk = WIDE, .has_kv_recent = true },
        { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .windows = windows },
        { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .device = "mock" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        each_fails(settings[i]);
    }
}

/* ---- a lost device ---- */

/* The device is lost when a request that begins with packed pages reads their list. */
static void test_lost(void **state)
{
    const setting s = {
        .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .device = "mock"
    };
    const quire_mock_device_opts faults = { .seed = 1, .copy_failure = 1.0 };
    engine_bench b = condense_bench(&s);
    static answer want;
    quire_request *request;
    int32_t text[N_PROMPT];
    gate *g;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    g = gate_close(b.engine);
    request = ask(&b, s.policy, text, N_PROMPT);
    quire_mock_device_set(condense_mock, &faults);
    gate_open(g);
    assert_int_equal(finish(request)->status, QUIRE_LOST);
    finish_as(request, QUIRE_FINISH_ERROR);
    assert_true(quire_engine_is_lost(b.engine));
    validate(b.engine);
    bench_close(&b);
}

/* The device is lost at any piece of work of two requests, in memory for one: both end. */
static void lost_at_each(setting s)
{
    static answer want;
    engine_bench b = condense_bench(&s);
    int32_t text[N_PROMPT];
    bool is_lost = true;

    tokens_make(text, N_PROMPT, 1);
    (void)answer_take(&b, s.policy, text, N_PROMPT, &want);
    s.n_pages = least_pages(&b, &s);
    bench_close(&b);
    for (uint64_t at = 1; is_lost; at += TEST_STRIDE(5u) + at / SPREAD) {
        const quire_mock_device_opts faults = { .lose_at = at };
        quire_request *requests[2];
        gate *g;

        b = condense_bench(&s);
        g = gate_close(b.engine);
        for (uint32_t i = 0; i < 2; i++) {
            requests[i] = ask(&b, s.policy, text, N_PROMPT - i);
        }
        quire_mock_device_set(condense_mock, &faults);
        gate_open(g);
        is_lost = false;
        for (uint32_t i = 0; i < 2; i++) {
            const quire_request_result *result = finish(requests[i]);

            is_lost = is_lost || result->status == QUIRE_LOST;
            assert_true(result->finish == QUIRE_FINISH_LENGTH || result->status == QUIRE_LOST);
            quire_request_release(requests[i]);
        }
        assert_true(is_lost == quire_engine_is_lost(b.engine));
        validate(b.engine);
        bench_close(&b);
    }
}

static void test_lost_at_each(void **state)
{
    static const setting settings[] = {
        { .policy = KEYDIFF, .format = QUIRE_FORMAT_F16, .device = "mock" },
        { .policy = SNAP, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .device = "mock" },
        { .policy = HEAVY, .format = QUIRE_FORMAT_F16, .chunk = WIDE, .device = "mock" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        lost_at_each(settings[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_begin), cmocka_unit_test(test_damaged_place),
        cmocka_unit_test(test_no_memory),     cmocka_unit_test(test_no_memory_to_read),
        cmocka_unit_test(test_each_fails),    cmocka_unit_test(test_lost),
        cmocka_unit_test(test_lost_at_each),
    };

    return cmocka_run_group_tests_name("condensing_fails", tests, NULL, NULL);
}
