/* test_evict_rules.c - rules of every policy: time to live, ranks, accounts, refs; and the requests
 * reported to policies.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"
#include "prefix_support.h"
#include "seed.h"

#include <string.h>

#define PT PAGE_TOKENS

/* Text number i, with nothing in common with the others. */
static void text_at(int32_t *tokens, uint32_t n, uint32_t i)
{
    test_text(tokens, n, (int32_t)(i * 10000));
}

static void create(test_prefix *p, uint32_t n_pages, uint32_t policy)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;

    opts.policy = (quire_evict_policy)policy;
    test_prefix_create(p, n_pages, &opts);
}

static void run_text(test_prefix *p, uint32_t i, uint32_t n_tokens)
{
    int32_t text[4 * PT];

    assert_true(n_tokens <= 4 * PT);
    text_at(text, n_tokens, i);
    (void)test_run_whole(p, text, n_tokens);
}

static uint32_t found(const test_prefix *p, uint32_t i, uint32_t n_tokens)
{
    int32_t text[4 * PT];

    assert_true(n_tokens <= 4 * PT);
    text_at(text, n_tokens, i);
    return test_lookup(p, text, n_tokens).n_tokens;
}

/* Give the nodes of text i, found by their first token, another rank. */
static void rank_set(test_prefix *p, uint32_t i, uint32_t n_tokens, uint8_t rank)
{
    for (uint32_t id = 1; id < p->tree->nodes.id_end; id++) {
        const quire_prefix_node *node = quire_prefix_at(p->tree, id);

        if (node->kind == QUIRE_NODE_PAGE) {
            int32_t at = quire_prefix_tokens_at(p->tree, id)[0] - (int32_t)(i * 10000);

            if (at >= 0 && at < (int32_t)n_tokens) {
                quire_evict_move(&p->tree->evict, id, (quire_region_id)node->region, rank);
            }
        }
    }
    quire_prefix_validate(p->tree);
}

static void evict_page(test_prefix *p)
{
    assert_int_equal(quire_prefix_evict(p->tree, QUIRE_REGION_DYNAMIC, 1), PAGE_BYTES);
    quire_prefix_validate(p->tree);
}

/* While a page of a lower rank is cached, no page of a higher rank is evicted, regardless of
 * uses. */
static void test_ranks(void **state)
{
    (void)state;
    for (uint32_t policy = 0; policy < QUIRE_EVICT_POLICY_COUNT; policy++) {
        test_prefix p;

        create(&p, 64, policy);
        for (uint32_t i = 0; i < 6; i++) {
            run_text(&p, i, 2 * PT);
            rank_set(&p, i, 2 * PT, (uint8_t)(2 - i % 3));
        }
        for (uint32_t k = 0; k < 5; k++) {
            run_text(&p, 2, 2 * PT); /* the lowest are the most popular */
            run_text(&p, 5, 2 * PT);
        }
        for (uint32_t rank = 0; rank < 3; rank++) {
            for (uint32_t n = 0; n < 4; n++) {
                evict_page(&p);
                for (uint32_t i = 0; i < 6; i++) {
                    assert_true(2 - i % 3 <= rank || found(&p, i, 2 * PT) == 2 * PT);
                }
            }
            assert_int_equal(found(&p, 2 - rank, 2 * PT) + found(&p, 5 - rank, 2 * PT), 0);
        }
        test_prefix_destroy(&p);
    }
}

/* Each rank has its time to live; a change applies to cached nodes too. Expired nodes are evicted
 * before nodes of a lower rank. */
static void test_ttl_by_rank(void **state)
{
    (void)state;
    for (uint32_t policy = 0; policy < QUIRE_EVICT_POLICY_COUNT; policy++) {
        test_prefix p;

        create(&p, 64, policy);
        for (uint32_t i = 0; i < 3; i++) {
            run_text(&p, i, 2 * PT);
            rank_set(&p, i, 2 * PT, (uint8_t)i);
        }
        assert_int_equal(quire_prefix_expire(p.tree, 5000, 100), 0);
        quire_evict_ttl_set(&p.tree->evict, 1, 10000);
        quire_evict_ttl_set(&p.tree->evict, 2, 4500);
        quire_prefix_validate(p.tree);
        evict_page(&p); /* none has expired: rank 0 */
        assert_int_equal(found(&p, 0, 2 * PT), PT);
        assert_int_equal(quire_prefix_expire(p.tree, 5500, 0), 0);
        evict_page(&p); /* 1000 + 4500 */
        assert_int_equal(found(&p, 2, 2 * PT), PT);
        assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_TTL], 1);
        assert_int_equal(quire_prefix_expire(p.tree, 5500, 100), 1);
        assert_int_equal(found(&p, 1, 2 * PT), 2 * PT);
        quire_evict_ttl_set(&p.tree->evict, 1, 0);
        assert_int_equal(quire_prefix_expire(p.tree, 50000, 100), 0);
        assert_int_equal(found(&p, 1, 2 * PT), 2 * PT);
        test_prefix_destroy(&p);
    }
}

/* A change of the low-traffic rule applies to cached nodes too. Uncounted requests of the owner are
 * no hits. */
static void test_another_low_traffic_rule(void **state)
{
    const quire_prefix_acquire_opts uncounted = { .is_uncounted = true };
    const quire_prefix_key key = test_key();
    quire_prefix_match match;
    quire_prefix_stats stats;
    quire_prefix_ref ref;
    quire_seq_id seq;
    test_prefix p;

    (void)state;
    create(&p, 64, QUIRE_EVICT_LRU);
    run_text(&p, 0, PT);
    run_text(&p, 1, PT);
    run_text(&p, 0, PT); /* used last, and hit once */
    stats = test_prefix_stats(&p);
    assert_int_equal(quire_prefix_low_traffic_set(p.tree, 100, -1.0), QUIRE_INVAL);
    assert_int_equal(quire_prefix_low_traffic_set(p.tree, 100, 1e9), QUIRE_OK);
    (void)quire_prefix_expire(p.tree, p.now_us + 1000, 0);
    evict_page(&p);
    assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_LOW_TRAFFIC], 1);
    assert_int_equal(quire_prefix_low_traffic_set(p.tree, 0, 1e9), QUIRE_OK);
    evict_page(&p);
    assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_LOW_TRAFFIC], 1);
    assert_int_equal(quire_seq_open(p.cache, QUIRE_REGION_DYNAMIC, &seq), QUIRE_OK);
    assert_int_equal(quire_prefix_acquire(p.tree, &key, seq, (const int32_t[PT]){ 0 }, PT,
                                          &uncounted, &match, &ref),
                     QUIRE_OK);
    assert_int_equal(test_prefix_stats(&p).lookups_total, stats.lookups_total);
    assert_int_equal(test_prefix_stats(&p).query_tokens_total, stats.query_tokens_total);
    assert_int_equal(quire_prefix_release(p.tree, ref, p.now_us), QUIRE_OK);
    assert_int_equal(quire_seq_close(p.cache, seq), QUIRE_OK);
    test_prefix_destroy(&p);
}

/* A node that is low traffic and then expires, and a node that expires first: both are found. */
static void test_low_traffic_and_ttl(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    test_prefix p;

    (void)state;
    opts.low_traffic_after_us = 100;
    opts.low_traffic_hits_per_hour = 1.0;
    opts.ttl_us = 300;
    for (uint32_t policy = 0; policy < QUIRE_EVICT_POLICY_COUNT; policy++) {
        opts.policy = (quire_evict_policy)policy;
        test_prefix_create(&p, 64, &opts);
        p.now_us = 1000;
        run_text(&p, 0, PT);
        run_text(&p, 1, PT);
        p.now_us = 1050;
        run_text(&p, 1, PT); /* a hit is enough for an hour */
        run_text(&p, 2, PT);
        (void)quire_prefix_expire(p.tree, 1101, 0);
        evict_page(&p);
        assert_int_equal(found(&p, 0, PT), 0);
        assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_LOW_TRAFFIC], 1);
        assert_int_equal(quire_prefix_expire(p.tree, 1200, 100),
                         0); /* text 2 becomes low traffic */
        quire_prefix_validate(p.tree);
        assert_int_equal(quire_prefix_expire(p.tree, 1349, 100), 0);
        assert_int_equal(quire_prefix_expire(p.tree, 1350, 100), 2); /* and expires, with text 1 */
        assert_int_equal(test_prefix_stats(&p).nodes, 0);
        test_prefix_destroy(&p);
    }
}

/* Publish a text under a key of its own, whose root belongs to an account. */
static void run_for_account(test_prefix *p, uint16_t account, uint32_t i)
{
    quire_prefix_key key = { .identity = { 1, 2 }, .salt = &account, .salt_bytes = 2 };
    quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX,
                                       .now_us = p->now_us,
                                       .account = account };
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq = test_open(p->cache);
    int32_t text[PT];

    text_at(text, PT, i);
    assert_int_equal(quire_prefix_acquire(p->tree, &key, seq, text, PT, &opts, &match, &ref),
                     QUIRE_OK);
    if (match.n_tokens < PT) {
        test_append(p->cache, seq, PT - match.n_tokens);
    }
    assert_int_equal(quire_prefix_publish(p->tree, ref, text, PT, p->now_us), QUIRE_OK);
    assert_int_equal(quire_prefix_release(p->tree, ref, p->now_us), QUIRE_OK);
    assert_int_equal(quire_seq_close(p->cache, seq), QUIRE_OK);
    quire_prefix_validate(p->tree);
}

static uint32_t nodes_of(const test_prefix *p, uint16_t account)
{
    uint32_t n = 0;

    for (uint32_t id = 1; id < p->tree->nodes.id_end; id++) {
        const quire_prefix_node *node = quire_prefix_at(p->tree, id);

        n += node->kind == QUIRE_NODE_PAGE && node->account == account;
    }
    return n;
}

/* A request for an account's pages evicts only pages of this account. */
static void test_account_asked(void **state)
{
    (void)state;
    for (uint32_t policy = 0; policy < QUIRE_EVICT_POLICY_COUNT; policy++) {
        test_prefix p;

        create(&p, 64, policy);
        for (uint32_t i = 0; i < 12; i++) {
            run_for_account(&p, (uint16_t)(i % 3), i);
        }
        assert_int_equal(quire_prefix_evict_ask(p.tree, (quire_evict_ask){ 0, 2 }, 3 * PAGE_BYTES),
                         3 * PAGE_BYTES);
        assert_int_equal(nodes_of(&p, 2), 1);
        assert_int_equal(quire_prefix_evict_ask(p.tree, (quire_evict_ask){ 0, 2 }, 3 * PAGE_BYTES),
                         PAGE_BYTES);
        assert_int_equal(quire_prefix_evict_ask(p.tree, (quire_evict_ask){ 0, 2 }, 1), 0);
        assert_int_equal(quire_prefix_evict_ask(p.tree, (quire_evict_ask){ 0, 77 }, 1), 0);
        assert_int_equal(nodes_of(&p, 0) + nodes_of(&p, 1), 8);
        test_prefix_destroy(&p);
    }
}

/* The account with the most bytes per weight goes first, one page at a time. */
static void test_fair_shares(void **state)
{
    (void)state;
    for (uint32_t policy = 0; policy < QUIRE_EVICT_POLICY_COUNT; policy++) {
        const quire_account_opts heavy = { .weight = 3 };
        test_prefix p;

        create(&p, 64, policy);
        assert_int_equal(quire_prefix_account_set(p.tree, 2, &heavy), QUIRE_OK);
        for (uint32_t i = 0; i < 16; i++) {
            run_for_account(&p, (uint16_t)(1 + i % 2), i);
        }
        for (uint32_t n = 1; n <= 16; n++) {
            uint32_t n1 = nodes_of(&p, 1);
            uint32_t n2 = nodes_of(&p, 2);

            evict_page(&p);
            if (3 * n1 != n2) { /* else either */
                assert_int_equal(nodes_of(&p, 1), 3 * n1 > n2 ? n1 - 1 : n1);
            }
        }
        assert_int_equal(test_prefix_stats(&p).nodes, 0);
        test_prefix_destroy(&p);
    }
}

/* With many accounts the chosen account is reused for a few victims only. */
static void test_many_accounts(void **state)
{
    const uint32_t n_accounts = 40;
    test_prefix p;

    (void)state;
    create(&p, 500, QUIRE_EVICT_LRU);
    for (uint32_t i = 0; i < 10 * n_accounts; i++) {
        run_for_account(&p, (uint16_t)(1 + i % n_accounts), i);
    }
    for (uint32_t n = 0; n < 8 * n_accounts; n++) {
        uint32_t most = 0;
        uint32_t least = UINT32_MAX;

        evict_page(&p);
        for (uint32_t account = 1; account <= n_accounts; account++) {
            uint32_t n_nodes = nodes_of(&p, (uint16_t)account);

            most = n_nodes > most ? n_nodes : most;
            least = n_nodes < least ? n_nodes : least;
        }
        assert_true(most - least <= 1 + n_accounts / 8);
    }
    test_prefix_destroy(&p);
}

/* When memory for an account's bin is short, its nodes are in account 0's bin: nothing fails. */
static void test_no_memory_for_a_bin(void **state)
{
    uint32_t n_rest = 0;
    test_prefix p;

    (void)state;
    create(&p, 64, QUIRE_EVICT_SIEVE);
    run_for_account(&p, 3, 0);
    for (uint32_t fail = 0; fail < 12; fail++) {
        p.t.memory.fail_at = p.t.memory.n_calls + fail;
        p.t.memory.has_failed = false;
        for (uint16_t account = 4; account < 7; account++) {
            quire_prefix_key key = { .identity = { fail, 2 }, .salt = &account, .salt_bytes = 2 };
            quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX,
                                               .now_us = p.now_us,
                                               .account = (uint16_t)(account + 3 * fail) };
            quire_prefix_match match;
            quire_prefix_ref ref;
            quire_seq_id seq;
            int32_t text[PT];

            text_at(text, PT, account);
            if (quire_seq_open(p.cache, QUIRE_REGION_DYNAMIC, &seq) < 0) {
                continue;
            }
            if (quire_prefix_acquire(p.tree, &key, seq, text, PT, &opts, &match, &ref) == 0) {
                if (quire_seq_append(p.cache, seq, PT) == QUIRE_OK) {
                    (void)quire_prefix_publish(p.tree, ref, text, PT, p.now_us);
                }
                assert_int_equal(quire_prefix_release(p.tree, ref, p.now_us), QUIRE_OK);
            }
            assert_int_equal(quire_seq_close(p.cache, seq), QUIRE_OK);
            quire_prefix_validate(p.tree);
        }
    }
    p.t.memory.fail_at = NEVER;
    for (uint32_t id = 1; id < p.tree->nodes.id_end; id++) {
        n_rest += (quire_prefix_at(p.tree, id)->heaps & QUIRE_EVICT_IN_REST) != 0;
    }
    assert_true(n_rest > 0 && test_prefix_stats(&p).nodes > 20);
    (void)quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    assert_int_equal(test_prefix_stats(&p).nodes, 0);
    test_prefix_destroy(&p);
}

/* A page of a pinned region below a page of the dynamic region: eviction in the dynamic region does
 * not take it, but after its expiry one call evicts both. */
static void test_below_another_region(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;

    (void)state;
    opts.ttl_us = 100;
    for (uint32_t is_expire = 0; is_expire < 2; is_expire++) {
        quire_region_id high;
        test_prefix p;

        test_prefix_create(&p, 64, &opts);
        high = test_region_open(p.cache, 8 * PAGE_BYTES, true);
        run_text(&p, 0, 2 * PT);
        for (uint32_t id = 1; id < p.tree->nodes.id_end; id++) {
            const quire_prefix_node *node = quire_prefix_at(p.tree, id);

            if (node->kind == QUIRE_NODE_PAGE && node->first_token == PT) {
                quire_prefix_node_recharge(p.tree, id, high);
            }
        }
        quire_prefix_validate(p.tree);
        assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), 0);
        assert_int_equal(found(&p, 0, 2 * PT), 2 * PT);
        if (is_expire) {
            assert_int_equal(quire_prefix_expire(p.tree, p.now_us + 100, 100), 2);
        } else {
            (void)quire_prefix_expire(p.tree, p.now_us + 100, 0); /* tells the time */
            assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), PAGE_BYTES);
        }
        assert_int_equal(test_prefix_stats(&p).nodes, 0);
        test_prefix_destroy(&p);
    }
}

/* Every policy leaves nodes with refs in the tree. */
static void test_refs(void **state)
{
    int32_t text[3 * PT];

    (void)state;
    for (uint32_t policy = 0; policy < QUIRE_EVICT_POLICY_COUNT; policy++) {
        test_prefix p;
        test_run run;

        create(&p, 64, policy);
        text_at(text, 3 * PT, 0);
        run = test_run_start(&p, text, 3 * PT);
        test_run_extend(&p, &run, text, 2 * PT + 1);
        for (uint32_t i = 1; i < 8; i++) {
            run_text(&p, i, 3 * PT);
        }
        assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX),
                         7 * 3 * PAGE_BYTES);
        assert_int_equal(found(&p, 0, 3 * PT), 2 * PT + 1);
        test_run_end(&p, &run);
        assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX),
                         3 * PAGE_BYTES);
        test_prefix_destroy(&p);
    }
}

/* Random texts that share prefixes of different length, under every policy, with ranks, time and
 * tight memory: every call keeps all invariants, and all nodes can be evicted. */
static void test_trees(void **state)
{
    (void)state;
    for (uint32_t policy = 0; policy < QUIRE_EVICT_POLICY_COUNT; policy++) {
        quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
        quire_rng rng = test_rng(policy + 20);
        test_prefix p;

        opts.policy = (quire_evict_policy)policy;
        opts.ttl_us = 300;
        opts.ghosts_max = 50;
        opts.seed = 5;
        test_prefix_create(&p, 24, &opts);
        for (uint32_t step = 0; step < 1500; step++) {
            int32_t text[4 * PT];
            uint32_t n = 1 + quire_rng_below(&rng, 4 * PT);

            for (uint32_t page = 0, path = 0; page < 4; page++) {
                path = path * 3 + quire_rng_below(&rng, 3);
                test_text(text + page * PT, PT, (int32_t)(page * 1000 + path * 10000));
            }
            p.now_us += quire_rng_below(&rng, 4);
            (void)test_run_whole(&p, text, n);
            if (quire_rng_below(&rng, 4) == 0) {
                uint32_t id = 1 + quire_rng_below(&rng, p.tree->nodes.id_end - 1);

                if (quire_prefix_at(p.tree, id)->kind == QUIRE_NODE_PAGE) {
                    quire_evict_move(&p.tree->evict, id, 0, (uint8_t)quire_rng_below(&rng, 3));
                }
            }
            if (quire_rng_below(&rng, 8) == 0) {
                (void)quire_prefix_evict(p.tree, 0, quire_rng_below(&rng, 5) * PAGE_BYTES);
            }
            quire_prefix_validate(p.tree);
        }
        (void)quire_prefix_evict(p.tree, 0, UINT64_MAX);
        assert_int_equal(test_prefix_stats(&p).nodes, 0);
        assert_true(test_prefix_stats(&p).hit_tokens_total > 500 * PT);
        test_prefix_destroy(&p);
    }
}

/* Texts in repeated use survive any number of one-time texts under policies that promise this. The
 * control is lru, which loses them. */
static void test_pollution(void **state)
{
    static const struct {
        quire_evict_policy policy;
        bool survives;
    } cases[] = {
        { QUIRE_EVICT_LRU, false }, { QUIRE_EVICT_FIFO, false }, { QUIRE_EVICT_SLRU, true },
        { QUIRE_EVICT_LFU, true },  { QUIRE_EVICT_ARC, true },   { QUIRE_EVICT_S3FIFO, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        test_prefix p;
        uint32_t n_left = 0;

        create(&p, 20, cases[i].policy);
        for (uint32_t k = 0; k < 4; k++) {
            for (uint32_t text = 0; text < 10; text++) {
                run_text(&p, text, PT);
            }
        }
        for (uint32_t text = 100; text < 300; text++) {
            run_text(&p, text, PT);
        }
        for (uint32_t text = 0; text < 10; text++) {
            n_left += found(&p, text, PT) == PT;
        }
        assert_int_equal(n_left, cases[i].survives ? 10 : 0);
        test_prefix_destroy(&p);
    }
}

/* ---- requests reported to policies ---- */

static quire_evict_request request_for(test_prefix *p, const int32_t *text, uint32_t n,
                                       uint32_t *n_hit)
{
    test_run run = test_run_start(p, text, n);
    quire_evict_request request = p->tree->evict.request;

    *n_hit = run.match.n_tokens;
    test_run_extend(p, &run, text, n);
    p->now_us += 10;
    test_run_end(p, &run);
    return request;
}

/* A request's number, its length, and its known tokens. */
static void test_request(void **state)
{
    quire_evict_request request;
    int32_t text[8 * PT];
    uint32_t n_hit;
    test_prefix p;

    (void)state;
    create(&p, 64, 0);
    text_at(text, 8 * PT, 0);
    request = request_for(&p, text, 2 * PT + 1, &n_hit);
    assert_int_equal(request.number, 1);
    assert_int_equal(request.n_tokens, 2 * PT + 1);
    assert_int_equal(n_hit, 0);
    assert_int_equal(request.n_known, 0);
    request = request_for(&p, text, 3 * PT + 1, &n_hit);
    assert_int_equal(request.number, 2);
    assert_int_equal(n_hit, 2 * PT + 1);
    text[PT + 1] = -1; /* another text that begins alike */
    request = request_for(&p, text, 4 * PT, &n_hit);
    assert_int_equal(n_hit, PT + 1);
    assert_int_equal(request.n_known, PT + 1);
    test_prefix_destroy(&p);
}

/* Evicted tokens count as known, but not as a hit. */
static void test_request_of_ghosts(void **state)
{
    quire_evict_request request;
    int32_t text[8 * PT];
    uint32_t n_hit;
    test_prefix p;

    (void)state;
    for (uint32_t n_pages = 1; n_pages <= 3; n_pages++) {
        create(&p, 64, 0);
        text_at(text, 8 * PT, 0);
        (void)request_for(&p, text, 3 * PT, &n_hit);
        for (uint32_t i = 0; i < n_pages; i++) {
            evict_page(&p);
        }
        request = request_for(&p, text, 5 * PT, &n_hit);
        assert_int_equal(n_hit, (3 - n_pages) * PT);
        assert_int_equal(request.n_known, 3 * PT);
        test_prefix_destroy(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_ttl_by_rank),
        cmocka_unit_test(test_another_low_traffic_rule),
        cmocka_unit_test(test_low_traffic_and_ttl),
        cmocka_unit_test(test_account_asked),
        cmocka_unit_test(test_fair_shares),
        cmocka_unit_test(test_many_accounts),
        cmocka_unit_test(test_no_memory_for_a_bin),
        cmocka_unit_test(test_below_another_region),
        cmocka_unit_test(test_refs),
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_pollution),
        cmocka_unit_test(test_request),
        cmocka_unit_test(test_request_of_ghosts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
