/* test_condensing_soak.c - many requests that keep a share of their texts, in memory for little
 * more than one of them: policies and classes beside each other, clients that go away at any time,
 * texts that are invalidated. Every answer has the bits of a request alone, and nothing is left.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "condense_kit.h"
#include "mem_disk.h"
#include "rounds.h"
#include "seed.h"

#include "base/num.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"

#include <string.h>

#define WIDE       256u /* tokens between two condensings by lane */
#define N_REQUESTS TEST_ROUNDS(60u, 24u)
#define N_TEXTS    4u
#define N_POLICIES 4u
#define IN_FLIGHT  7u
#define MORE_PAGES 9u /* than the least, at most */

/* A server, and the policies of its requests. */
typedef struct soak_setting {
    setting s;
    const char *policies[N_POLICIES]; /* NULL: the text keeps all tokens */
    bool has_store;
} soak_setting;

typedef struct soak {
    const soak_setting *setting;
    engine_bench b;
    quire_rng rng;
    int32_t texts[N_TEXTS][N_PROMPT];
    uint32_t n_tokens[N_TEXTS];
    answer answers[N_TEXTS][N_POLICIES];
    bool fits[N_POLICIES];
    uint32_t n_whole;
} soak;

typedef struct flight {
    quire_request *request;
    const answer *want;
} flight;

/* ---- texts and memory ---- */

/* Texts begin alike in pairs. */
static void texts_make(soak *s)
{
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        const uint32_t n = N_PROMPT - (i == 0 ? 0 : quire_rng_below(&s->rng, N_PROMPT / 2));

        s->n_tokens[i] = n;
        tokens_make(s->texts[i], N_PROMPT, 1 + quire_rng_below(&s->rng, 1u << 20));
        tokens_make(s->texts[i], n / 2 + quire_rng_below(&s->rng, n / 2), 7 + i % 2);
    }
}

static uint32_t least_pages(const engine_bench *b, const char *policy)
{
    const quire_loop *loop = b->engine->loop;
    quire_condensing c = { .chunk = 0 };
    uint64_t bytes;

    if (policy != NULL) {
        const quire_retain_spec spec = spec_of(policy);

        quire_condensing_init(&c, &spec, loop->opts.retain_chunk, loop->runtime_opts->page_tokens,
                              &loop->lanes.parts);
    }
    bytes = quire_loop_condensing_bytes(loop, &c, quire_condensing_need(&c, N_PROMPT + N_TOKENS)) +
            loop->room.page_bytes;
    return (uint32_t)((bytes + loop->room.page_bytes - 1) / loop->room.page_bytes);
}

/* The answers of requests alone, and memory for the policy that needs the most. */
static uint32_t answers_make(soak *s)
{
    uint32_t n_pages = 0;

    s->b = condense_bench(&s->setting->s);
    texts_make(s);
    for (uint32_t p = 0; p < N_POLICIES; p++) {
        const char *policy = s->setting->policies[p];

        n_pages = quire_max_u32(n_pages, policy != NULL ? least_pages(&s->b, policy) : 0);
        for (uint32_t i = 0; i < N_TEXTS; i++) {
            (void)answer_take(&s->b, policy, s->texts[i], s->n_tokens[i], &s->answers[i][p]);
        }
    }
    n_pages += quire_rng_below(&s->rng, MORE_PAGES);
    for (uint32_t p = 0; p < N_POLICIES; p++) {
        s->fits[p] = least_pages(&s->b, s->setting->policies[p]) <= n_pages;
    }
    bench_close(&s->b);
    return n_pages;
}

/* ---- requests ---- */

static flight begin(soak *s)
{
    const uint32_t text = quire_rng_below(&s->rng, N_TEXTS);
    quire_request_params params =
        params_greedy(s->texts[text], s->n_tokens[text], 1 + quire_rng_below(&s->rng, N_TOKENS));
    quire_retain_spec spec;
    uint32_t p;

    do {
        p = quire_rng_below(&s->rng, N_POLICIES);
    } while (!s->fits[p]);
    if (s->setting->policies[p] != NULL) {
        spec = spec_of(s->setting->policies[p]);
        params.retain = &spec;
    }
    params.has_logprobs = true;
    params.is_uncached = quire_rng_below(&s->rng, 8) == 0;
    params.class_index = quire_rng_below(&s->rng, 3);
    params.tenant = "a";
    params.tenant_bytes = quire_rng_below(&s->rng, 4) == 0;
    return (flight){ submit(&s->b, &params), &s->answers[text][p] };
}

/* All tokens so far, or until the end; returns how many. */
static uint32_t compare(const flight *f, uint32_t n_max)
{
    quire_request_token event;
    uint32_t n = 0;

    while (n < n_max && quire_request_wait(f->request, n, FIXTURE_WAIT_MS, &event) == 1) {
        assert_int_equal(event.token, f->want->tokens[n]);
        assert_memory_equal(&event.logprob, &f->want->logprobs[n], sizeof event.logprob);
        n++;
    }
    return n;
}

static void land(soak *s, const flight *f)
{
    const quire_request_result *result;
    uint32_t n;

    switch (quire_rng_below(&s->rng, 4)) {
    case 0: /* gone without a word */
        (void)compare(f, quire_rng_below(&s->rng, 4));
        break;
    case 1: /* cancelled, and waited for */
        (void)compare(f, quire_rng_below(&s->rng, 4));
        quire_request_cancel(f->request);
        (void)finish(f->request);
        break;
    default:
        n = compare(f, UINT32_MAX);
        result = quire_request_result_get(f->request);
        assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
        assert_int_equal(result->n_generated_tokens, n);
        s->n_whole++;
        break;
    }
    quire_request_release(f->request);
}

static void invalidate(soak *s)
{
    const uint32_t text = quire_rng_below(&s->rng, N_TEXTS);
    const quire_invalidate what = {
        .what = quire_rng_below(&s->rng, 2) == 0 ? QUIRE_INVALIDATE_ALL : QUIRE_INVALIDATE_PREFIX,
        .tokens = s->texts[text],
        .n_tokens = 1 + quire_rng_below(&s->rng, s->n_tokens[text]),
    };
    quire_prefix_dropped dropped;

    assert_int_equal(quire_engine_invalidate(s->b.engine, &what, &dropped), QUIRE_OK);
}

static void soak_run(const soak_setting *of, uint64_t seed)
{
    static soak s;
    mem_disk *disk = of->has_store ? mem_disk_new() : NULL;
    soak_setting tight = *of;
    flight flights[IN_FLIGHT];
    quire_engine_stats stats;
    uint32_t n = 0;

    memset(&s, 0, sizeof s);
    s.setting = of;
    s.rng = test_rng(seed);
    tight.s.n_pages = answers_make(&s);
    tight.s.store = disk != NULL ? mem_disk_store(disk) : NULL;
    s.setting = &tight;
    s.b = condense_bench(&tight.s);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        flights[n++] = begin(&s);
        if (n == IN_FLIGHT || quire_rng_below(&s.rng, 4) == 0) {
            const uint32_t k = quire_rng_below(&s.rng, n);

            land(&s, &flights[k]);
            flights[k] = flights[--n];
        }
        if (quire_rng_below(&s.rng, 12) == 0) {
            invalidate(&s);
        }
    }
    while (n > 0) {
        land(&s, &flights[--n]);
    }
    while (!quire_engine_is_idle(s.b.engine)) { /* those that were let go of */
        (void)stats_now(s.b.engine);
    }
    stats = stats_now(s.b.engine);
    assert_int_equal(stats.finished_error_total, 0);
    assert_int_equal(stats.cache.seqs_open, 0);
    assert_int_equal(stats.cache.pages_live, 0);
    assert_true(s.n_whole > 0 && stats.condensings_total > 0);
    validate(s.b.engine);
    bench_close(&s.b);
    if (disk != NULL) {
        mem_disk_free(disk);
    }
}

/* ---- servers ---- */

#define SNAP   "snap:0.4,recent=60,floor=0.1"
#define HEAVY  "heavy:0.4,recent=60"
#define REPEAT "reconstruct:0.4,recent=60,repeat=100"

static void test_even(void **state)
{
    static const soak_setting settings[] = {
        { { .format = QUIRE_FORMAT_F16, .has_classes = true, .chunk_tokens = 70 },
          { KEYDIFF, STRIDE, "window:0.3,recent=32", NULL },
          false },
        { { .format = QUIRE_FORMAT_Q8, .has_classes = true, .device = "mock" },
          { KEYDIFF, STRIDE, "last:0.5", NULL },
          false },
        { { .format = QUIRE_FORMAT_F16, .has_classes = true, .chunk_tokens = 70 },
          { KEYDIFF, STRIDE, "random:0.3,recent=32", NULL },
          true },
    };

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        soak_run(&settings[i], 10 + i);
    }
}

static void test_by_lane(void **state)
{
    static const soak_setting settings[] = {
        { { .format = QUIRE_FORMAT_F16, .chunk = WIDE, .has_classes = true, .maps = 1 },
          { SNAP, HEAVY, "predict:0.4,recent=60", NULL },
          false },
        { { .format = QUIRE_FORMAT_Q8, .chunk = WIDE, .has_classes = true, .chunk_tokens = 90 },
          { REPEAT, "expected:0.4,recent=60", "keydiff:0.4,recent=60,floor=0.1", SNAP },
          false },
        { { .format = QUIRE_FORMAT_F16, .chunk = WIDE, .has_classes = true, .chunk_tokens = 90 },
          { SNAP, HEAVY, REPEAT, NULL },
          true },
        { { .format = QUIRE_FORMAT_F16, .chunk = WIDE, .has_classes = true, .device = "mock" },
          { SNAP, HEAVY, REPEAT, NULL },
          false },
    };

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        soak_run(&settings[i], 20 + i);
    }
}

static void test_sealed_and_windows(void **state)
{
    static const int32_t windows[4] = { 64, 0, 64, 0 };
    static const soak_setting settings[] = {
        { { .format = QUIRE_FORMAT_Q4, .chunk = WIDE, .has_classes = true, .has_kv_recent = true },
          { SNAP, "keydiff:0.4,recent=60", "entropy:0.4,recent=60,full_layers=none", REPEAT },
          false },
        { { .format = QUIRE_FORMAT_F16, .chunk = WIDE, .has_classes = true, .windows = windows },
          { SNAP, KEYDIFF, HEAVY, NULL },
          false },
        { { .format = QUIRE_FORMAT_Q8, .chunk = WIDE, .has_classes = true, .windows = windows },
          { SNAP, KEYDIFF, REPEAT, NULL },
          true },
        { { .format = QUIRE_FORMAT_Q4,
            .chunk = WIDE,
            .has_classes = true,
            .has_kv_recent = true,
            .device = "mock" },
          { SNAP, "keydiff:0.4,recent=60", REPEAT, NULL },
          true },
        { { .format = QUIRE_FORMAT_F16,
            .chunk = WIDE,
            .has_classes = true,
            .windows = windows,
            .device = "mock" },
          { SNAP, KEYDIFF, HEAVY, NULL },
          false },
    };

    (void)state;
    for (uint32_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        soak_run(&settings[i], 30 + i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_even),
        cmocka_unit_test(test_by_lane),
        cmocka_unit_test(test_sealed_and_windows),
    };

    return cmocka_run_group_tests_name("condensing_soak", tests, NULL, NULL);
}
