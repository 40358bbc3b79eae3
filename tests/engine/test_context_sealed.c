/* test_context_sealed.c - texts longer than the context in formats that are coded by 64 tokens: the
 * bits of a plain loop that shifts at the same places, with pages of a request's own and with
 * shared ones, for every chunk, with memory for one context, and on a mock device.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "context_kit.h"

#include <string.h>

/* A miss, and a hit where pages are shared. */
static void same_bits(const setting *s, uint32_t n_prompt, uint32_t n)
{
    static answer want;
    engine_bench b = context_bench(s);
    quire_engine_stats stats;
    int32_t text[N_LONG];

    tokens_make(text, N_LONG, 1);
    expect(&b, s, text, n_prompt, n, &want);
    assert_int_equal(check(&b, s, text, n_prompt, &want), 0);
    stats = stats_now(b.engine);
    assert_true(stats.context_shifts_total > 0);
    assert_true(stats.context_dropped_tokens_total >= n_prompt + n - 1 - N_CTX);
    if (s->n_contexts > 1 && !s->no_prefix_cache) {
        assert_true(check(&b, s, text, n_prompt, &want) >= N_PROMPT / 128 * 128);
        stats = stats_now(b.engine);
        assert_int_equal(stats.recomputed_tokens_total, 0);
    }
    validate(b.engine);
    bench_close(&b);
}

/* The tree has pages in 8 bits only near the end of texts, so a hit has the bits of a miss where
 * rows read no tile before their own in 8 bits but the sinks. */
static const setting shared[] = {
    { .format = QUIRE_FORMAT_Q4,
      .overflow = QUIRE_CONTEXT_SHIFT,
      .keep = 10,
      .n_contexts = 3,
      .has_recent = true },
    { .format = QUIRE_FORMAT_Q6,
      .overflow = QUIRE_CONTEXT_SHIFT,
      .keep = 64,
      .n_contexts = 3,
      .page_tokens = 128,
      .chunk_tokens = 100,
      .has_recent = true },
};

static const setting own[] = {
    { .format = QUIRE_FORMAT_Q3,
      .overflow = QUIRE_CONTEXT_SHIFT,
      .keep = 64,
      .n_contexts = 3,
      .no_prefix_cache = true },
    { .format = QUIRE_FORMAT_Q5,
      .overflow = QUIRE_CONTEXT_SHIFT,
      .keep = 0,
      .n_contexts = 2,
      .page_tokens = 128,
      .chunk_tokens = 70,
      .no_prefix_cache = true },
    { .format = QUIRE_FORMAT_Q4, /* memory for one context */
      .overflow = QUIRE_CONTEXT_SHIFT,
      .keep = 200,
      .has_recent = true,
      .recent = 64,
      .no_prefix_cache = true },
    { .format = QUIRE_FORMAT_Q4, /* the first move finds pages that the tree has */
      .overflow = QUIRE_CONTEXT_SHIFT,
      .n_seqs = 1,
      .has_recent = true },
};

static void test_shared_pages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        same_bits(&shared[i], N_PROMPT, N_TOKENS);
        same_bits(&shared[i], N_LONG, 20);
    }
}

static void test_own_pages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        same_bits(&own[i], N_PROMPT, N_TOKENS);
        same_bits(&own[i], N_LONG, 20);
    }
}

static void test_several(void **state)
{
    setting s = shared[0];

    (void)state;
    s.n_contexts = 2;
    context_several(&s, CONTEXT_SIDES_MAX);
}

static void test_on_a_device(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        setting s = shared[i];

        s.device = "mock";
        same_bits(&s, N_PROMPT, N_TOKENS);
        s = own[i];
        s.device = "mock";
        same_bits(&s, N_LONG, 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_pages),
        cmocka_unit_test(test_own_pages),
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_on_a_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
