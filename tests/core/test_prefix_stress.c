/* test_prefix_stress.c - random operations on sequences and the prefix tree together: truncation,
 * forks, reserved room, holes, budgets that shrink and allocations that fail.
 *
 * The test checks two promises beside the invariants. No sequence reads another text's page: each
 * token's slot holds a stamp of its key and of all tokens up to it. Dropped texts do not come back:
 * a text named to quire_prefix_drop_prefix() is found again only after a sequence that computed its
 * last token after the drop has published it; nodes of a dropped owner are never found again.
 *
 * QUIRE_SEED and QUIRE_OPS choose another run.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"
#include "rounds.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PT          PAGE_TOKENS
#define RUNS_MAX    10u
#define DROPS_MAX   16u /* of the latest */
#define TOKENS_MAX  (PT * 8u)
#define KEYS        4u
#define GROUPS      2u
#define OWNERS      3u
#define SLOT        sizeof(uint64_t)
#define STRESS_PAGE (PT * SLOT < 64 ? 64 : PT * SLOT) /* bytes; the least that caches take */
#define OPS_DEFAULT TEST_ROUNDS(200000u, 40000u)

/* A sequence. */
typedef struct run {
    quire_seq_id seq;
    quire_prefix_ref ref; /* null: a fork */
    uint32_t key;
    uint32_t n_tokens;
    int32_t tokens[TOKENS_MAX];
    uint64_t made_at[TOKENS_MAX]; /* when the token was computed, or came with a hit */
} run;

/* A text that was dropped. */
typedef struct drop {
    uint32_t key;
    uint32_t n_tokens; /* 0 = forget it */
    uint64_t at;
    int32_t tokens[TOKENS_MAX];
} drop;

typedef struct config {
    const char *name;
    uint32_t budget_pages;
    bool is_page_exact;
    bool fails; /* allocations do, now and then */
    uint64_t ttl_us;
    uint64_t low_traffic_after_us;
    quire_evict_policy policy;
} config;

typedef struct stress {
    const config *config;
    test_prefix p;
    quire_rng rng;
    uint64_t now_us;
    uint64_t clock; /* counts computations and drops */
    run runs[RUNS_MAX];
    uint32_t n_runs;
    drop drops[DROPS_MAX];
    uint32_t n_drops;
    uint64_t owners[OWNERS]; /* numbers are used once */
    uint64_t owner_last;
    run last; /* the last publication: later prompts begin like it */
    uint64_t n_hits;
    uint64_t n_full;
    uint64_t n_forks;
} stress;

static uint32_t below(stress *s, uint32_t n)
{
    return quire_rng_below(&s->rng, n);
}

static run *any_run(stress *s)
{
    return &s->runs[below(s, s->n_runs)];
}

/* ---- checks ---- */

static void check(const stress *s, const run *r)
{
    assert_int_equal(quire_seq_tokens(s->p.cache, r->seq), r->n_tokens);
    test_check_text_of(&s->p, r->key, r->seq, r->tokens);
}

static int owner_is_known(void *ctx, const quire_prefix_node_info *node)
{
    const stress *s = ctx;

    for (uint32_t i = 0; i < OWNERS; i++) {
        if (node->owner == 0 || node->owner == s->owners[i]) {
            return 0;
        }
    }
    return 1;
}

static void check_dropped(stress *s)
{
    for (uint32_t i = 0; i < DROPS_MAX; i++) {
        const drop *d = &s->drops[i];
        const quire_prefix_key key = test_key_of(d->key);
        quire_prefix_match match;

        if (d->n_tokens > 0) {
            quire_prefix_lookup(s->p.tree, &key, d->tokens, d->n_tokens, &match);
            assert_true(match.n_same_tokens < d->n_tokens);
        }
    }
    assert_int_equal(quire_prefix_visit(s->p.tree, owner_is_known, s), 0);
}

static void check_all(stress *s)
{
    const uint64_t fail_at = s->p.t.memory.fail_at;

    quire_prefix_validate(s->p.tree);
    quire_cache_validate(s->p.cache);
    for (uint32_t i = 0; i < s->n_runs; i++) {
        check(s, &s->runs[i]);
    }
    s->p.t.memory.fail_at = fail_at;
}

/* ---- operations ---- */

/* Dropped texts may be found again if this sequence computed their last token after the drop. */
static void publish(stress *s, const run *r, uint32_t n)
{
    for (uint32_t i = 0; i < DROPS_MAX; i++) {
        drop *d = &s->drops[i];

        if (d->n_tokens > 0 && d->key == r->key && n >= d->n_tokens &&
            r->made_at[d->n_tokens - 1] > d->at &&
            memcmp(r->tokens, d->tokens, d->n_tokens * sizeof d->tokens[0]) == 0) {
            d->n_tokens = 0;
        }
    }
    (void)quire_prefix_publish(s->p.tree, r->ref, r->tokens, n, s->now_us);
    s->last = *r;
}

static void run_end(stress *s, run *r)
{
    check(s, r);
    if (r->ref != QUIRE_PREFIX_REF_NULL) {
        if (below(s, 2) == 0) {
            publish(s, r, r->n_tokens);
        }
        assert_int_equal(quire_prefix_release(s->p.tree, r->ref, s->now_us), QUIRE_OK);
    }
    assert_int_equal(quire_seq_close(s->p.cache, r->seq), QUIRE_OK);
    *r = s->runs[--s->n_runs];
}

/* A prompt that begins like a running or past prompt, and continues with tokens 0 and 1. */
static uint32_t prompt_make(stress *s, run *r)
{
    const run *like = s->n_runs > 0 && below(s, 2) == 0 ? any_run(s) : &s->last;
    uint32_t n = below(s, 6) > 0 ? below(s, like->n_tokens + 1) : 0;
    uint32_t n_new = 1 + below(s, 2 * PT);

    *r = (run){ .key = below(s, 4) > 0 ? like->key : below(s, KEYS) };
    memcpy(r->tokens, like->tokens, n * sizeof r->tokens[0]);
    while (n_new-- > 0 && n < TOKENS_MAX) {
        r->tokens[n++] = (int32_t)below(s, 2);
    }
    return n;
}

static void op_start(stress *s)
{
    run r;
    const uint32_t n = prompt_make(s, &r);
    const quire_prefix_key key = test_key_of(r.key);
    const quire_prefix_acquire_opts opts = { .tokens_max = n - below(s, 2),
                                             .owner =
                                                 below(s, 4) > 0 ? s->owners[below(s, OWNERS)] : 0,
                                             .now_us = s->now_us,
                                             .is_private = below(s, 10) == 0,
                                             .is_miss = below(s, 20) == 0 };
    quire_prefix_match match;

    if (s->n_runs == RUNS_MAX ||
        quire_seq_open(s->p.cache, QUIRE_REGION_DYNAMIC, &r.seq) != QUIRE_OK) {
        return;
    }
    if (quire_prefix_acquire(s->p.tree, &key, r.seq, r.tokens, n, &opts, &match, &r.ref) < 0) {
        assert_int_equal(match.n_tokens, 0);
        assert_int_equal(quire_seq_tokens(s->p.cache, r.seq), 0);
        assert_int_equal(quire_seq_close(s->p.cache, r.seq), QUIRE_OK);
        return;
    }
    r.n_tokens = match.n_tokens;
    s->n_hits += match.n_tokens > 0;
    s->clock++;
    for (uint32_t i = 0; i < r.n_tokens; i++) {
        r.made_at[i] = s->clock;
    }
    check(s, &r);
    s->runs[s->n_runs++] = r;
}

static void op_append(stress *s)
{
    run *r = any_run(s);
    const uint32_t begin = r->n_tokens;
    uint32_t n = 1 + below(s, below(s, 2) == 0 ? 2 * PT : 3);

    n = n < TOKENS_MAX - begin ? n : TOKENS_MAX - begin;
    if (n == 0) {
        return;
    }
    if (below(s, 3) == 0) {
        (void)quire_seq_reserve(s->p.cache, r->seq, 1 + below(s, 3 * PT));
    }
    if (quire_seq_append(s->p.cache, r->seq, n) != QUIRE_OK) {
        s->n_full++;
        if (below(s, 3) == 0) {
            run_end(s, r);
        }
        return;
    }
    s->clock++;
    for (uint32_t i = begin; i < begin + n; i++) {
        r->tokens[i] = (int32_t)below(s, 2);
        r->made_at[i] = s->clock;
    }
    r->n_tokens += n;
    test_stamp_text_of(&s->p, r->key, r->seq, r->tokens, begin);
    check(s, r);
}

static void op_truncate(stress *s)
{
    run *r = any_run(s);
    const uint32_t n = quire_seq_truncatable(s->p.cache, r->seq, below(s, r->n_tokens + 1));

    if (quire_seq_truncate(s->p.cache, r->seq, n) == QUIRE_OK) {
        r->n_tokens = n;
    }
}

static void op_fork(stress *s)
{
    const run *r = any_run(s);
    run *to = &s->runs[s->n_runs];
    quire_seq_id seq;

    if (s->n_runs < RUNS_MAX && quire_seq_fork(s->p.cache, r->seq, &seq) == QUIRE_OK) {
        *to = *r;
        to->seq = seq;
        to->ref = QUIRE_PREFIX_REF_NULL;
        s->n_runs++;
        s->n_forks++;
    }
}

static void op_drop_prefix(stress *s)
{
    const run *r = any_run(s);
    const quire_prefix_key key = test_key_of(r->key);
    const uint32_t n =
        r->n_tokens - below(s, below(s, 3) > 0 ? r->n_tokens / 2 + 1 : r->n_tokens + 1);

    (void)quire_prefix_drop_prefix(s->p.tree, &key, r->tokens, n, s->now_us);
    if (n > 0) {
        drop *d = &s->drops[s->n_drops++ % DROPS_MAX];

        *d = (drop){ .key = r->key, .n_tokens = n, .at = ++s->clock };
        memcpy(d->tokens, r->tokens, n * sizeof d->tokens[0]);
    }
}

static void op_drop(stress *s)
{
    const quire_prefix_key key = test_key_of(below(s, KEYS));
    uint64_t *owner = &s->owners[below(s, OWNERS)];

    switch (below(s, 30)) {
    case 0:
        (void)quire_prefix_drop_all(s->p.tree, s->now_us);
        break;
    case 1:
        (void)quire_prefix_drop_salt(s->p.tree, key.salt, key.salt_bytes, s->now_us);
        break;
    case 2:
    case 3:
        (void)quire_prefix_drop_owner(s->p.tree, *owner, s->now_us);
        *owner = ++s->owner_last;
        break;
    default:
        op_drop_prefix(s);
    }
}

static void op_memory(stress *s)
{
    quire_cache *cache = s->p.cache;
    const uint32_t n = s->config->budget_pages;
    const size_t page_bytes = STRESS_PAGE;

    switch (below(s, 4)) {
    case 0:
        (void)quire_prefix_evict(s->p.tree, QUIRE_REGION_DYNAMIC, below(s, 20) * page_bytes);
        break;
    case 1:
        (void)quire_prefix_expire(s->p.tree, s->now_us, below(s, 10));
        break;
    case 2:
        (void)quire_region_budget_set(cache, QUIRE_REGION_DYNAMIC,
                                      (n / 2 + below(s, n)) * page_bytes);
        break;
    default:
        quire_cache_maintain(cache);
        (void)quire_cache_coalesce(cache, below(s, 8));
        (void)quire_cache_trim(cache, 0);
    }
}

static void op_release(stress *s)
{
    run *r = any_run(s);

    (void)quire_seq_release(s->p.cache, r->seq, 1, below(s, r->n_tokens + 1), r->n_tokens, NULL);
}

static void op_publish(stress *s)
{
    const run *r = any_run(s);

    if (r->ref != QUIRE_PREFIX_REF_NULL) {
        publish(s, r, r->n_tokens > 2 ? r->n_tokens - below(s, 3) : r->n_tokens);
    }
}

static void step(stress *s)
{
    const uint32_t dice = below(s, 100);

    s->now_us += below(s, 1000);
    if (s->config->fails && below(s, 20) == 0) {
        s->p.t.memory.fail_at = s->p.t.memory.n_calls + below(s, 6);
    }
    if (dice < 22 || s->n_runs == 0) {
        op_start(s);
    } else if (dice < 50) {
        op_append(s);
    } else if (dice < 68) {
        op_publish(s);
    } else if (dice < 74) {
        op_truncate(s);
    } else if (dice < 78) {
        op_fork(s);
    } else if (dice < 81) {
        op_release(s);
    } else if (dice < 93) {
        run_end(s, any_run(s));
    } else if (dice < 96) {
        op_drop(s);
    } else {
        op_memory(s);
    }
}

/* ---- runs ---- */

static void create(stress *s)
{
    const config *c = s->config;
    quire_cache_opts cache_opts = test_opts(c->budget_pages);
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;

    cache_opts.n_groups = GROUPS;
    for (uint32_t g = 0; g < GROUPS; g++) {
        cache_opts.page_bytes[g] = STRESS_PAGE;
    }
    cache_opts.budget_bytes = c->budget_pages * cache_opts.page_bytes[0];
    opts.policy = c->policy;
    opts.is_page_exact = c->is_page_exact;
    opts.roots_max = KEYS + 1;
    opts.refs_max = RUNS_MAX;
    opts.ghosts_max = 17;
    opts.ttl_us = c->ttl_us;
    opts.low_traffic_after_us = c->low_traffic_after_us;
    opts.low_traffic_hits_per_hour = 1e6;
    opts.seed = 1; /* the same run each time */
    test_prefix_create_in(&s->p, &cache_opts, &opts);
}

static void run_config(const config *c)
{
    stress *s = calloc(1, sizeof *s);
    const uint64_t n_ops = test_ops(OPS_DEFAULT);

    assert_non_null(s);
    s->config = c;
    s->rng = test_rng(11);
    for (uint32_t i = 0; i < OWNERS; i++) {
        s->owners[i] = ++s->owner_last;
    }
    create(s);
    for (uint64_t i = 0; i < n_ops; i++) {
        step(s);
        check_dropped(s);
        if (i % 64 == 0) {
            check_all(s);
        }
    }
    s->p.t.memory.fail_at = UINT64_MAX;
    while (s->n_runs > 0) {
        run_end(s, &s->runs[0]);
    }
    check_all(s);
    (void)quire_prefix_evict(s->p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    assert_int_equal(test_stats(s->p.cache).pages_live, 0);
    assert_int_equal(test_stats(s->p.cache).pages_cached, 0);
    /* Check that the run covered the cases. */
    (void)printf("%s: %llu hits, %llu forks, %llu times full, %u texts dropped\n", c->name,
                 (unsigned long long)s->n_hits, (unsigned long long)s->n_forks,
                 (unsigned long long)s->n_full, s->n_drops);
    assert_true(s->n_hits > n_ops / (c->is_page_exact ? 1000 : 100) && s->n_drops > n_ops / 100);
    test_prefix_destroy(&s->p);
    free(s);
}

static void test_roomy(void **state)
{
    (void)state;
    run_config(&(config){ .name = "roomy", .budget_pages = 400 });
}

static void test_tight(void **state)
{
    (void)state;
    run_config(&(config){ .name = "tight", .budget_pages = 60, .low_traffic_after_us = 10000 });
}

static void test_page_exact(void **state)
{
    (void)state;
    run_config(&(config){ .name = "page exact",
                          .budget_pages = 90,
                          .is_page_exact = true,
                          .ttl_us = 30000,
                          .policy = QUIRE_EVICT_S3FIFO });
}

static void test_failing(void **state)
{
    (void)state;
    run_config(&(config){ .name = "allocations fail",
                          .budget_pages = 120,
                          .fails = true,
                          .ttl_us = 30000,
                          .policy = QUIRE_EVICT_ARC });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roomy),
        cmocka_unit_test(test_tight),
        cmocka_unit_test(test_page_exact),
        cmocka_unit_test(test_failing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
