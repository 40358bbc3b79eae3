/* test_evict_policies.c - each policy against a plain implementation of its paper.
 *
 * In a tree of one level every node is a leaf, so a policy must match the paper exactly: the same
 * hits, and the same cached texts after every request.
 *
 * SPDX-License-Identifier: MIT */
#include "evict_reference.h"
#include "prefix_support.h"
#include "seed.h"

#include <string.h>

#define PT PAGE_TOKENS

typedef struct flat_case {
    quire_evict_policy policy;
    bool has_parts;   /* texts of different length, up to a page */
    bool evicts_last; /* room is made behind a request, not in it */
} flat_case;

static const flat_case flat_cases[] = {
    { QUIRE_EVICT_LRU, true, false },     { QUIRE_EVICT_FIFO, true, false },
    { QUIRE_EVICT_LFU, true, false },     { QUIRE_EVICT_SLRU, true, false },
    { QUIRE_EVICT_GDSF, true, false },    { QUIRE_EVICT_SIEVE, true, false },
    { QUIRE_EVICT_S3FIFO, false, false }, { QUIRE_EVICT_ARC, false, true },
};

static uint32_t text_tokens(const flat_case *c, uint32_t i)
{
    return c->has_parts ? 1 + i % PT : PT;
}

static uint32_t flat_text(const flat_case *c, int32_t *tokens, uint32_t i)
{
    uint32_t n = text_tokens(c, i);

    test_text(tokens, n, (int32_t)(i * 10000));
    return n;
}

/* Popular texts, and sometimes a new text: a mixture that policies handle differently. */
static uint32_t draw(quire_rng *rng, uint32_t n_texts, uint32_t step)
{
    uint32_t kind = quire_rng_below(rng, 10);

    if (kind < 5) {
        return quire_rng_below(rng, n_texts / 6);
    }
    if (kind < 7) {
        return step / 3 % n_texts; /* a scan */
    }
    return quire_rng_below(rng, n_texts);
}

static void run_flat(const flat_case *c, uint32_t capacity, uint64_t seed)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    quire_rng rng = test_rng(seed);
    int32_t tokens[PT];
    test_prefix p;
    reference ref;
    uint32_t n_texts = 3 * capacity;
    uint32_t n_hits = 0;

    opts.policy = c->policy;
    test_prefix_create(&p, capacity + (c->evicts_last ? 1 : 0), &opts);
    reference_start(&ref, c->policy, capacity, (double)PAGE_BYTES);
    for (uint32_t step = 0; step < 1000; step++) {
        uint32_t x = draw(&rng, n_texts, step);
        uint32_t n = flat_text(c, tokens, x);
        bool is_hit = reference_request(&ref, x, text_tokens(c, x));

        p.now_us += quire_rng_below(&rng, 3);
        assert_int_equal(test_run_whole(&p, tokens, n).n_tokens, is_hit ? n : 0);
        if (test_prefix_stats(&p).nodes > capacity) {
            assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), PAGE_BYTES);
        }
        for (uint32_t i = 0; i < n_texts; i++) {
            uint32_t n_i = flat_text(c, tokens, i);

            assert_int_equal(test_lookup(&p, tokens, n_i).n_tokens,
                             reference_has(&ref, i) ? n_i : 0);
        }
        n_hits += is_hit;
    }
    assert_true(n_hits > 100); /* the run has hits */
    test_prefix_destroy(&p);
}

static void test_flat(void **state)
{
    static const uint32_t capacities[] = { 5, 10, 23 };

    (void)state;
    for (size_t i = 0; i < sizeof(flat_cases) / sizeof(flat_cases[0]); i++) {
        for (size_t k = 0; k < sizeof(capacities) / sizeof(capacities[0]); k++) {
            run_flat(&flat_cases[i], capacities[k], 100 + k);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < QUIRE_EVICT_POLICY_COUNT; i++) {
        quire_evict_policy policy = QUIRE_EVICT_POLICY_COUNT;
        const char *name = quire_evict_policy_name((quire_evict_policy)i);

        assert_int_equal(quire_evict_policy_find(name, &policy), QUIRE_OK);
        assert_int_equal(policy, i);
    }
    assert_string_equal(quire_evict_policy_name(QUIRE_EVICT_POLICY_COUNT), "unknown");
    for (size_t i = 0; i < 2; i++) {
        quire_evict_policy policy = QUIRE_EVICT_ARC;

        assert_int_equal(quire_evict_policy_find(i == 0 ? "mru" : "", &policy), QUIRE_NOTFOUND);
        assert_int_equal(policy, QUIRE_EVICT_ARC);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_flat),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
