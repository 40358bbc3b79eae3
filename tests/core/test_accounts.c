/* test_accounts.c - settings of tenants and ranks: quotas, weights, times to live; replacement of
 * roots.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#define P PAGE_TOKENS

#define APART 5u /* the texts of this account are apart */

static test_run start_for(test_prefix *p, uint16_t account, const int32_t *tokens, uint32_t n)
{
    quire_prefix_key key = { .identity = { 1, 2 }, .salt = "abcdef", .salt_bytes = account };
    quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX,
                                       .account = account,
                                       .is_apart = account == APART };
    test_run run;

    run.seq = test_open(p->cache);
    assert_int_equal(
        quire_prefix_acquire(p->tree, &key, run.seq, tokens, n, &opts, &run.match, &run.ref),
        QUIRE_OK);
    test_run_extend(p, &run, tokens, n);
    return run;
}

static uint64_t account_pages(const test_prefix *p, uint16_t account)
{
    quire_account_info info;

    assert_int_equal(quire_prefix_account_get(p->tree, account, &info), QUIRE_OK);
    assert_int_equal(info.bytes, info.region_bytes[0] + info.region_bytes[1]);
    return info.bytes / PAGE_BYTES;
}

static void test_quota(void **state)
{
    test_prefix p;
    int32_t a[4 * P];
    quire_account_opts opts = { .quota_bytes = 6 * PAGE_BYTES, .weight = 1 };
    quire_account_info info;
    test_run run;

    (void)state;
    test_prefix_create(&p, 40, NULL);
    assert_int_equal(quire_prefix_account_set(p.tree, QUIRE_ACCOUNTS_MAX, &opts), QUIRE_RANGE);
    assert_int_equal(quire_prefix_account_get(p.tree, QUIRE_ACCOUNTS_MAX, &info), QUIRE_RANGE);
    opts.weight = 0;
    assert_int_equal(quire_prefix_account_set(p.tree, 1, &opts), QUIRE_INVAL);
    opts.weight = 1;
    assert_int_equal(quire_prefix_account_set(p.tree, 1, &opts), QUIRE_OK);
    for (uint16_t i = 0; i < 4; i++) {
        test_text(a, 4 * P, 1000 * (i + 1));
        run = start_for(&p, 1, a, 4 * P);
        assert_true(account_pages(&p, 1) <= 6);
        test_run_end(&p, &run);
        run = start_for(&p, 2, a, 4 * P);
        test_run_end(&p, &run);
    }
    assert_int_equal(account_pages(&p, 2), 16); /* other accounts are unaffected */
    assert_int_equal(quire_prefix_account_get(p.tree, 1, &info), QUIRE_OK);
    assert_int_equal(info.quota_evicted_bytes_total, 10 * PAGE_BYTES);
    opts.quota_bytes = PAGE_BYTES;
    assert_int_equal(quire_prefix_account_set(p.tree, 2, &opts), QUIRE_OK);
    assert_int_equal(account_pages(&p, 2), 1);
    assert_int_equal(quire_prefix_account_get(p.tree, 900, &info), QUIRE_OK); /* never seen */
    assert_int_equal(info.bytes, 0);
    assert_int_equal(info.weight, 1);
    test_prefix_destroy(&p);
}

/* An account above its quota with pages in use loses these pages with the next publication after
 * their release. */
static void test_quota_in_use(void **state)
{
    test_prefix p;
    int32_t a[4 * P];
    int32_t b[P];
    quire_account_opts opts = { .quota_bytes = 2 * PAGE_BYTES, .weight = 1 };
    test_run run;

    (void)state;
    test_prefix_create(&p, 40, NULL);
    test_text(a, 4 * P, 1000);
    test_text(b, P, 9000);
    assert_int_equal(quire_prefix_account_set(p.tree, 1, &opts), QUIRE_OK);
    run = start_for(&p, 1, a, 4 * P);
    assert_int_equal(account_pages(&p, 1), 4);
    test_run_end(&p, &run);
    run = start_for(&p, 2, b, P);
    assert_int_equal(account_pages(&p, 1), 2);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* Nodes that expire meanwhile do not count as evicted for a quota. */
static void test_quota_and_expiry(void **state)
{
    test_prefix p;
    int32_t a[4 * P];
    int32_t b[2 * P];
    quire_account_opts opts = { .quota_bytes = 2 * PAGE_BYTES, .weight = 1 };
    quire_account_info info;
    test_run run;

    (void)state;
    test_prefix_create(&p, 40, NULL);
    test_text(a, 4 * P, 1000);
    test_text(b, 2 * P, 9000);
    run = start_for(&p, 2, b, 2 * P);
    test_run_end(&p, &run);
    assert_int_equal(quire_prefix_ttl_set(p.tree, 0, 1000), QUIRE_OK);
    p.now_us = 5000; /* b has expired */
    run = start_for(&p, 1, a, 4 * P);
    assert_int_equal(quire_prefix_account_set(p.tree, 1, &opts), QUIRE_OK);
    assert_int_equal(account_pages(&p, 1), 4); /* in use */
    assert_int_equal(account_pages(&p, 2), 0);
    assert_int_equal(quire_prefix_account_get(p.tree, 1, &info), QUIRE_OK);
    assert_int_equal(info.quota_evicted_bytes_total, 0);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

static void test_rules_errors(void **state)
{
    test_prefix p;
    quire_prefix_key key = test_key();
    quire_prefix_acquire_opts opts = { .rank = QUIRE_RANKS_MAX };
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;
    int32_t a[1] = { 1 };

    (void)state;
    test_prefix_create(&p, 10, NULL);
    assert_int_equal(quire_prefix_ttl_set(p.tree, QUIRE_RANKS_MAX, 5), QUIRE_RANGE);
    assert_int_equal(quire_prefix_cost_set(p.tree, -1.0, 0.0), QUIRE_INVAL);
    assert_int_equal(quire_prefix_cost_set(p.tree, 1.0, 1.0 / 0.0), QUIRE_INVAL);
    assert_int_equal(quire_prefix_cost_set(p.tree, 1.0, 0.5), QUIRE_OK);
    seq = test_open(p.cache);
    assert_int_equal(quire_prefix_acquire(p.tree, &key, seq, a, 1, &opts, &match, &ref),
                     QUIRE_INVAL);
    opts = (quire_prefix_acquire_opts){ .account = QUIRE_ACCOUNTS_MAX };
    assert_int_equal(quire_prefix_acquire(p.tree, &key, seq, a, 1, &opts, &match, &ref),
                     QUIRE_INVAL);
    assert_int_equal(quire_seq_close(p.cache, seq), QUIRE_OK);
    test_prefix_destroy(&p);
}

/* Beyond roots_max a new root replaces the least recently used one without refs. */
static void test_roots_make_room(void **state)
{
    test_prefix p;
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    int32_t a[P];
    test_run first;
    test_run run;
    quire_prefix_key key = { .identity = { 1, 2 }, .salt = "abcdef", .salt_bytes = 2 };
    quire_prefix_match match;

    (void)state;
    opts.roots_max = 2;
    test_prefix_create(&p, 20, &opts);
    test_text(a, P, 1000);
    first = start_for(&p, 1, a, P); /* oldest, but in use */
    run = start_for(&p, 2, a, P);
    test_run_end(&p, &run);
    run = start_for(&p, 3, a, P);
    quire_prefix_lookup(p.tree, &key, a, P, &match);
    assert_int_equal(match.n_tokens, 0);
    assert_int_equal(test_prefix_stats(&p).roots, 2);
    {
        quire_prefix_acquire_opts ask = { .tokens_max = P };
        quire_prefix_ref ref;
        quire_seq_id seq = test_open(p.cache);

        assert_int_equal(quire_prefix_acquire(p.tree, &key, seq, a, P, &ask, &match, &ref),
                         QUIRE_LIMIT); /* both have refs */
        assert_int_equal(quire_seq_close(p.cache, seq), QUIRE_OK);
    }
    test_run_end(&p, &run);
    test_run_end(&p, &first);
    test_prefix_destroy(&p);
}

static uint64_t apart_pages(const test_prefix *p)
{
    return test_prefix_stats(p).apart_bytes / PAGE_BYTES;
}

/* Pages of keys that are apart: while a sequence uses them, after its end, until they go. */
static void test_apart(void **state)
{
    test_prefix p;
    int32_t a[4 * P], b[3 * P];
    test_run run, other;

    (void)state;
    test_prefix_create(&p, 8, NULL);
    test_text(a, 4 * P, 1000);
    test_text(b, 3 * P, 9000);
    other = start_for(&p, 1, b, 2 * P + 1);
    test_run_end(&p, &other);
    assert_int_equal(apart_pages(&p), 0);
    run = start_for(&p, APART, a, 2 * P + 1);
    assert_int_equal(apart_pages(&p), 3);
    test_run_extend(&p, &run, a, 3 * P + 1); /* the open page is full, and another one begins */
    assert_int_equal(apart_pages(&p), 4);
    test_run_end(&p, &run);
    assert_int_equal(apart_pages(&p), 4);
    run = start_for(&p, APART, a, 4 * P); /* the same pages again */
    assert_int_equal(apart_pages(&p), 4);
    test_run_end(&p, &run);
    assert_int_equal(account_pages(&p, APART), 4);
    (void)quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    assert_int_equal(apart_pages(&p), 0);
    run = start_for(&p, APART, a, P);
    test_run_end(&p, &run);
    assert_int_equal(quire_prefix_drop_all(p.tree, p.now_us).nodes, 1);
    assert_int_equal(apart_pages(&p), 0);
    test_prefix_destroy(&p);
}

/* Accounts are ordered by bytes per weight; the bytes above a quota are the excess. */
static void test_loads(void **state)
{
    test_memory memory;
    quire_accounts accounts;
    quire_account_opts opts = { .weight = 3 };

    (void)state;
    test_memory_init(&memory);
    quire_accounts_init(&accounts, &memory.allocator);
    assert_int_equal(quire_accounts_plan(&accounts, 40), QUIRE_OK);
    quire_accounts_set(&accounts, 2, &opts);
    quire_accounts_charge(&accounts, 2, 0, 10);
    quire_accounts_charge(&accounts, 7, 0, 10);
    assert_true(quire_accounts_load(&accounts, 7, 0) > quire_accounts_load(&accounts, 2, 0));
    assert_true(!(quire_accounts_load(&accounts, 1000, 0) > 0.0));
    opts = (quire_account_opts){ .weight = 1, .quota_bytes = 4 };
    quire_accounts_set(&accounts, 2, &opts);
    assert_int_equal(quire_accounts_excess_bytes(&accounts, 2), 6);
    assert_int_equal(quire_accounts_excess_bytes(&accounts, 7), 0);
    quire_accounts_validate(&accounts);
    quire_accounts_uncharge(&accounts, 2, 0, 10);
    quire_accounts_uncharge(&accounts, 7, 0, 10);
    quire_accounts_validate(&accounts);
    quire_accounts_fini(&accounts);
    assert_int_equal(memory.n_live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_quota_in_use),
        cmocka_unit_test(test_quota_and_expiry),
        cmocka_unit_test(test_rules_errors),
        cmocka_unit_test(test_roots_make_room),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_loads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
