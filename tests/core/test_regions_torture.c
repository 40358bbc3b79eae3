/* test_regions_torture.c - regions, ranks, accounts and pins while memory fails: groups of unequal
 * charge, holes, forks that live on, windows of pins, keys that replace each other, hits at full
 * pages only, and failures of any allocation or mapping. test_regions_model.c checks the
 * distribution of room; this test checks these rules:
 *
 *   - a failing call reports a lack of memory or room, and no other error; afterwards every
 *     structure is intact
 *   - budgets add up, and no region is charged beyond its own
 *   - a held pin keeps its bytes and its text is found, unless it was invalidated
 *   - pages that were offloaded keep their payload, and no slot of theirs is lost or used twice
 *   - after the last sequence, pin and node are gone, nothing is charged and nothing leaks
 *
 * QUIRE_SEED and QUIRE_OPS choose another run.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pin/pin_internal.h"
#include "prefix_support.h"
#include "rounds.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define P            PAGE_TOKENS
#define GROUPS       3u
#define RUNNERS_MAX  12u
#define PINS_MAX     6u
#define TEXTS        8u
#define TOKENS_MAX   (7u * P)
#define BUDGET       9000u
#define PINNED       4u /* regions 1 .. 4 */
#define KEYS         7u
#define N_SLOTS      64u
#define STORED_BYTES 64u
#define OPS_DEFAULT  TEST_ROUNDS(40000u, 4000u)

typedef struct runner {
    quire_seq_id seq;
    quire_seq_id fork; /* QUIRE_SEQ_NULL = none */
    quire_prefix_ref ref;
    uint32_t n_prompt, n_tokens;
    int32_t tokens[TOKENS_MAX];
} runner;

/* Where offloaded pages lie. */
typedef struct slots {
    unsigned char bytes[N_SLOTS][STORED_BYTES];
    bool is_used[N_SLOTS];
} slots;

typedef struct torturer {
    test_prefix p;
    slots slots;
    quire_pins *pins;
    quire_rng rng;
    uint64_t now_us;
    bool is_open[PINNED + 1];
    runner runners[RUNNERS_MAX];
    uint32_t n_runners;
    quire_pin_id pin[PINS_MAX];
    uint64_t held_bytes[PINS_MAX]; /* 0 = not held, or maybe lost */
    int32_t texts[TEXTS][TOKENS_MAX];
    uint64_t n_held, n_failed, n_offloaded, n_onloaded;
} torturer;

static uint32_t below(torturer *x, uint32_t n)
{
    return quire_rng_below(&x->rng, n);
}

static quire_prefix_key key_of(uint32_t number)
{
    return (quire_prefix_key){ .identity = { 1, 2 }, .salt = "abcdefgh", .salt_bytes = 1 + number };
}

static quire_region_id some_region(torturer *x)
{
    uint32_t r = below(x, PINNED + 2);

    return (quire_region_id)(r <= PINNED && x->is_open[r] ? r : 0);
}

static void check_short(torturer *x, int rc)
{
    assert_true(rc == QUIRE_OK || rc == QUIRE_NOMEM || rc == QUIRE_NOPAGES || rc == QUIRE_LIMIT);
    x->n_failed += rc < 0;
}

static void publish(torturer *x, runner *r)
{
    int rc = quire_prefix_publish(x->p.tree, r->ref, r->tokens, r->n_tokens, x->now_us);

    assert_true(rc == QUIRE_OK || rc == QUIRE_NOMEM);
}

/* ---- sequences ---- */

static void op_start(torturer *x)
{
    runner *r = &x->runners[x->n_runners];
    uint32_t number = below(x, KEYS);
    quire_prefix_key key = key_of(number);
    quire_prefix_acquire_opts opts = { .tokens_max =
                                           below(x, 3) == 0 ? below(x, TOKENS_MAX) : UINT32_MAX,
                                       .owner = below(x, 3),
                                       .now_us = x->now_us,
                                       .is_private = below(x, 12) == 0,
                                       .is_miss = below(x, 12) == 0,
                                       .rank = (uint8_t)below(x, QUIRE_RANKS_MAX),
                                       .account = (uint16_t)(number * below(x, 2)) };
    quire_prefix_match match;
    int rc;

    if (x->n_runners == RUNNERS_MAX) {
        return;
    }
    *r = (runner){ .n_prompt = 1 + below(x, TOKENS_MAX) };
    memcpy(r->tokens, x->texts[below(x, TEXTS)], sizeof r->tokens);
    r->tokens[below(x, TOKENS_MAX)] ^= below(x, 3) == 0;
    rc = quire_seq_open(x->p.cache, some_region(x), &r->seq);
    check_short(x, rc);
    if (rc < 0) {
        return;
    }
    rc = quire_prefix_acquire(x->p.tree, &key, r->seq, r->tokens, r->n_prompt, &opts, &match,
                              &r->ref);
    check_short(x, rc);
    if (rc < 0) {
        assert_int_equal(quire_seq_close(x->p.cache, r->seq), QUIRE_OK);
        return;
    }
    r->n_tokens = match.n_tokens;
    x->n_runners++;
}

static void runner_end(torturer *x, uint32_t i)
{
    runner *r = &x->runners[i];

    if (below(x, 3) != 0) {
        publish(x, r);
    }
    if (below(x, 5) == 0) { /* the wrong way round, but allowed */
        assert_int_equal(quire_seq_close(x->p.cache, r->seq), QUIRE_OK);
        assert_int_equal(quire_prefix_release(x->p.tree, r->ref, x->now_us), QUIRE_OK);
    } else {
        assert_int_equal(quire_prefix_release(x->p.tree, r->ref, x->now_us), QUIRE_OK);
        assert_int_equal(quire_seq_close(x->p.cache, r->seq), QUIRE_OK);
    }
    if (r->fork != QUIRE_SEQ_NULL) {
        assert_int_equal(quire_seq_close(x->p.cache, r->fork), QUIRE_OK);
    }
    x->runners[i] = x->runners[--x->n_runners];
}

static void op_go_on(torturer *x, runner *r)
{
    uint32_t n = 1 + below(x, 2 * P);
    int rc;

    n = n < TOKENS_MAX - r->n_tokens ? n : TOKENS_MAX - r->n_tokens;
    rc = below(x, 4) == 0 ? quire_seq_reserve(x->p.cache, r->seq, n) : QUIRE_OK;
    check_short(x, rc);
    rc = n > 0 ? quire_seq_append(x->p.cache, r->seq, n) : QUIRE_NOPAGES;
    check_short(x, rc);
    if (rc < 0) {
        runner_end(x, (uint32_t)(r - x->runners));
        return;
    }
    r->n_tokens += n;
    if (r->n_tokens > 2 * P && below(x, 2) == 0) {
        assert_int_equal(quire_seq_release(x->p.cache, r->seq,
                                           (quire_group_id)(1 + below(x, GROUPS - 1)),
                                           below(x, 2) * P, r->n_tokens - P, NULL),
                         QUIRE_OK);
    }
    if (below(x, 3) != 0) {
        publish(x, r);
    }
}

static void op_other(torturer *x, runner *r)
{
    if (below(x, 2) == 0) {
        uint32_t n = quire_seq_truncatable(x->p.cache, r->seq, below(x, r->n_tokens + 1));
        int rc = quire_seq_truncate(x->p.cache, r->seq, n);

        check_short(x, rc);
        r->n_tokens = rc == QUIRE_OK ? n : r->n_tokens;
    } else if (r->fork == QUIRE_SEQ_NULL) {
        check_short(x, quire_seq_fork(x->p.cache, r->seq, &r->fork));
    } else {
        check_short(x, quire_seq_append(x->p.cache, r->fork, below(x, P)));
    }
}

/* ---- pins ---- */

static void pin_hold(torturer *x, uint32_t i)
{
    quire_pin_info info;
    int rc = quire_pins_hold(x->pins, x->pin[i], x->now_us, NULL);

    if (rc == QUIRE_OK) {
        assert_int_equal(quire_pins_get(x->pins, x->pin[i], &info), QUIRE_OK);
        assert_int_equal(info.state, QUIRE_PIN_HELD);
        x->held_bytes[i] = info.bytes;
        x->n_held++;
    } else if (rc != QUIRE_AGAIN) {
        check_short(x, rc);
    }
}

static void op_pin(torturer *x)
{
    uint32_t i = below(x, PINS_MAX);
    uint32_t number = below(x, KEYS);
    quire_pin_spec spec = { .name = (char[]){ (char)('a' + i), 0 },
                            .key = key_of(number),
                            .tokens = x->texts[below(x, TEXTS)],
                            .n_tokens = 1 + below(x, TOKENS_MAX / 2),
                            .n_windowed_tokens = below(x, 2) * below(x, 2 * P),
                            .region = some_region(x),
                            .rank = (uint8_t)below(x, QUIRE_RANKS_MAX),
                            .account = (uint16_t)number,
                            .expires_us = x->now_us + below(x, 90000) };

    if (x->pin[i] == QUIRE_PIN_NULL) {
        check_short(x, quire_pins_reserve(x->pins, &spec, x->now_us, &x->pin[i], NULL));
        x->held_bytes[i] = 0;
    } else if (below(x, 4) != 0) {
        pin_hold(x, i);
    } else {
        assert_int_equal(quire_pins_drop(x->pins, x->pin[i], x->now_us), QUIRE_OK);
        x->pin[i] = QUIRE_PIN_NULL;
    }
}

static void pin_gone(void *ctx, const quire_pin_info *info)
{
    torturer *x = ctx;

    for (uint32_t i = 0; i < PINS_MAX; i++) {
        x->pin[i] = x->pin[i] == info->id ? QUIRE_PIN_NULL : x->pin[i];
    }
}

/* ---- offloaded pages ---- */

static int slot_read(void *ctx, uint32_t slot, void *buffer, size_t bytes)
{
    const slots *s = ctx;

    assert_true(slot < N_SLOTS && s->is_used[slot] && bytes == STORED_BYTES);
    memcpy(buffer, s->bytes[slot], bytes);
    return QUIRE_OK;
}

static void slot_release(void *ctx, uint32_t slot)
{
    slots *s = ctx;

    assert_true(slot < N_SLOTS && s->is_used[slot]);
    s->is_used[slot] = false;
}

/* Whether a sequence uses a part of the page and may append behind it, or a fork does. */
static bool is_used_in_part(const torturer *x, quire_page_id page)
{
    for (uint32_t i = 0; i < x->n_runners * 2; i++) {
        const runner *r = &x->runners[i / 2];
        const quire_seq_id seq = i % 2 == 0 ? r->seq : r->fork;
        quire_seq_table table;

        for (quire_group_id g = 0; seq != QUIRE_SEQ_NULL && g < GROUPS; g++) {
            assert_int_equal(quire_seq_table_get(x->p.cache, seq, g, &table), QUIRE_OK);
            for (uint32_t e = 0; e < table.n_entries; e++) {
                const quire_page_entry *entry =
                    &table.leaves[e / QUIRE_LEAF_ENTRIES][e % QUIRE_LEAF_ENTRIES];

                if (entry->page == page && entry->n_tokens < P) {
                    return true;
                }
            }
        }
    }
    return false;
}

static void page_offload(torturer *x, const quire_page_info *info)
{
    const uint32_t slot = below(x, N_SLOTS);
    unsigned char *to = x->slots.bytes[slot];
    int rc;

    if (x->slots.is_used[slot] || info->n_filled < P || is_used_in_part(x, info->page)) {
        return;
    }
    memset(to, (int)(info->page & 0xff), STORED_BYTES);
    x->slots.is_used[slot] = true;
    rc = quire_cache_page_offload(x->p.cache, info->page, slot);
    assert_int_equal(rc, info->is_pinned || info->refs > 1 ? QUIRE_AGAIN : QUIRE_OK);
    x->slots.is_used[slot] = rc == QUIRE_OK;
    x->n_offloaded += rc == QUIRE_OK;
}

static void page_onload(torturer *x, const quire_page_info *info)
{
    unsigned char buffer[STORED_BYTES], after[STORED_BYTES];
    int rc = quire_cache_page_gather(x->p.cache, info->page, buffer, sizeof buffer);

    assert_int_equal(rc, QUIRE_OK);
    assert_int_equal(buffer[0], info->page & 0xff);
    rc = quire_cache_page_onload(x->p.cache, info->page, buffer, sizeof buffer);
    check_short(x, rc);
    assert_int_equal(x->slots.is_used[info->slot], rc < 0);
    assert_int_equal(quire_cache_page_gather(x->p.cache, info->page, after, sizeof after),
                     QUIRE_OK);
    assert_memory_equal(buffer, after, sizeof after);
    x->n_onloaded += rc == QUIRE_OK;
}

static void op_offload(torturer *x)
{
    for (uint32_t i = 0; i < 4; i++) {
        const quire_page_id page = below(x, quire_cache_page_id_end(x->p.cache));
        quire_page_info info;

        if (quire_cache_page_info_get(x->p.cache, page, &info) < 0) {
            continue;
        }
        if (info.is_offloaded) {
            page_onload(x, &info);
        } else {
            page_offload(x, &info);
        }
    }
}

/* ---- rules ---- */

static void op_region(torturer *x)
{
    quire_region_opts opts = QUIRE_REGION_OPTS_INIT;
    quire_region_id r = (quire_region_id)below(x, PINNED + 1);
    quire_region_id id;
    int rc;

    if (r != 0 && x->is_open[r] && below(x, 3) == 0) {
        rc = quire_region_close(x->p.cache, r);
        assert_true(rc == QUIRE_OK || rc == QUIRE_AGAIN);
        x->is_open[r] = rc != QUIRE_OK;
    } else if (r != 0 && !x->is_open[r]) {
        opts.budget_bytes = below(x, 2000);
        opts.spills_to_dynamic = below(x, 3) != 0;
        rc = quire_region_open(x->p.cache, &opts, &id);
        check_short(x, rc);
        if (rc == QUIRE_OK) {
            assert_true(id >= 1 && id <= PINNED && !x->is_open[id]);
            x->is_open[id] = true;
        }
    } else {
        rc = quire_region_transfer(x->p.cache, r, some_region(x), below(x, 500));
        assert_true(rc == QUIRE_INVAL || rc == QUIRE_RANGE || rc == QUIRE_NOPAGES ||
                    rc == QUIRE_OK);
    }
}

static void op_drop(torturer *x)
{
    quire_prefix_key key = key_of(below(x, KEYS));

    switch (below(x, 8)) {
    case 0:
        (void)quire_prefix_drop_salts(x->p.tree, "ab", 1 + below(x, 2), x->now_us);
        break;
    case 1:
    case 2:
        (void)quire_prefix_drop_prefix(x->p.tree, &key, x->texts[below(x, TEXTS)],
                                       1 + below(x, TOKENS_MAX), x->now_us);
        break;
    default: /* must not cost any pin anything */
        (void)quire_prefix_drop_owner(x->p.tree, below(x, 3), x->now_us);
        return;
    }
    memset(x->held_bytes, 0, sizeof x->held_bytes);
}

static void op_rules(torturer *x)
{
    quire_account_opts opts = { .quota_bytes = below(x, 2) * below(x, 4000),
                                .weight = 1 + below(x, 9) };

    switch (below(x, 6)) {
    case 0:
        check_short(x, quire_prefix_account_set(x->p.tree, (uint16_t)below(x, 70), &opts));
        break;
    case 1:
        assert_int_equal(quire_prefix_ttl_set(x->p.tree, (uint8_t)below(x, QUIRE_RANKS_MAX),
                                              below(x, 2) * 60000),
                         QUIRE_OK);
        break;
    case 2:
        assert_int_equal(
            quire_prefix_low_traffic_set(x->p.tree, below(x, 2) * 30000, below(x, 3) * 1e5),
            QUIRE_OK);
        break;
    case 3:
        (void)quire_prefix_expire(x->p.tree, x->now_us, below(x, 10));
        (void)quire_pins_expire(x->pins, x->now_us, pin_gone, x);
        break;
    case 4:
        (void)quire_prefix_evict(x->p.tree, (quire_region_id)below(x, PINNED + 1), below(x, 800));
        break;
    default:
        quire_cache_maintain(x->p.cache);
        (void)quire_cache_coalesce(x->p.cache, 4);
        (void)quire_cache_trim(x->p.cache, 0);
        break;
    }
}

/* ---- runs ---- */

static void check(torturer *x)
{
    uint64_t budget_bytes = 0;

    for (uint32_t r = 0; r <= PINNED; r++) {
        quire_region_stats stats = { 0 };

        if (r == 0 || x->is_open[r]) {
            assert_int_equal(quire_region_stats_get(x->p.cache, (quire_region_id)r, &stats),
                             QUIRE_OK);
        }
        budget_bytes += stats.budget_bytes;
        assert_true(stats.charged_bytes <= stats.budget_bytes);
        assert_true(stats.pinned_bytes + stats.reserved_bytes <= stats.budget_bytes);
    }
    assert_int_equal(budget_bytes, BUDGET);
    for (uint32_t i = 0; i < PINS_MAX; i++) {
        quire_pin_info info;
        quire_prefix_match match;

        if (x->pin[i] == QUIRE_PIN_NULL || x->held_bytes[i] == 0) {
            continue;
        }
        assert_int_equal(quire_pins_get(x->pins, x->pin[i], &info), QUIRE_OK);
        assert_int_equal(info.state, QUIRE_PIN_HELD);
        assert_true(info.bytes >= x->held_bytes[i]);
        quire_prefix_lookup(x->p.tree, &info.key, info.tokens, info.n_held_tokens, &match);
        assert_int_equal(match.n_same_tokens, info.n_held_tokens);
    }
}

static void step(torturer *x)
{
    uint32_t dice = below(x, 100);
    runner *r = x->n_runners > 0 ? &x->runners[below(x, x->n_runners)] : NULL;

    x->now_us += below(x, 1000);
    if (below(x, 6) == 0) {
        x->p.t.memory.fail_at = x->p.t.memory.n_calls + below(x, 4);
        x->p.t.extents.fail_at = below(x, 3) == 0 ? x->p.t.extents.n_calls : NEVER;
    }
    if (dice < 22 || r == NULL) {
        op_start(x);
    } else if (dice < 52) {
        op_go_on(x, r);
    } else if (dice < 58) {
        op_offload(x);
    } else if (dice < 65) {
        runner_end(x, (uint32_t)(r - x->runners));
    } else if (dice < 72) {
        op_other(x, r);
    } else if (dice < 86) {
        op_pin(x);
    } else if (dice < 94) {
        op_region(x);
    } else if (dice < 99) {
        op_rules(x);
    } else {
        op_drop(x);
    }
    x->p.t.memory.fail_at = NEVER;
    x->p.t.extents.fail_at = NEVER;
}

static void begin(torturer *x, bool is_page_exact)
{
    static const size_t charges[GROUPS] = { 100, 37, 64 };
    quire_cache_opts opts = test_opts(1);
    quire_prefix_opts prefix_opts = QUIRE_PREFIX_OPTS_INIT;

    x->rng = test_rng(20261122);
    opts.n_groups = GROUPS;
    for (uint32_t g = 0; g < GROUPS; g++) {
        opts.page_bytes[g] = STORED_BYTES;
        opts.charge_bytes[g] = charges[g];
    }
    opts.budget_bytes = BUDGET;
    prefix_opts.ghosts_max = 64;
    prefix_opts.roots_max = KEYS - 2;
    prefix_opts.refs_max = RUNNERS_MAX + PINS_MAX / 2;
    prefix_opts.is_page_exact = is_page_exact;
    prefix_opts.policy = (quire_evict_policy)below(x, QUIRE_EVICT_POLICY_COUNT);
    prefix_opts.seed = 7; /* or a run would not be repeated by its own */
    test_prefix_create_in(&x->p, &opts, &prefix_opts);
    quire_cache_offload_set(
        x->p.cache,
        &(quire_offload_ops){ .read = slot_read, .release = slot_release, .ctx = &x->slots });
    x->pins = test_pins_create(&x->p, 0);
    test_texts(&x->rng, x->texts[0], TEXTS, TOKENS_MAX);
}

static void end(torturer *x)
{
    quire_region_stats stats;

    while (x->n_runners > 0) {
        runner_end(x, x->n_runners - 1);
    }
    quire_pins_destroy(x->pins);
    for (uint32_t r = 1; r <= PINNED; r++) {
        if (x->is_open[r]) {
            assert_int_equal(quire_region_close(x->p.cache, (quire_region_id)r), QUIRE_OK);
        }
    }
    (void)quire_prefix_drop_all(x->p.tree, x->now_us);
    assert_int_equal(quire_region_stats_get(x->p.cache, 0, &stats), QUIRE_OK);
    assert_int_equal(stats.charged_bytes, 0);
    assert_int_equal(stats.budget_bytes, BUDGET);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        assert_false(x->slots.is_used[i]);
    }
    test_prefix_destroy(&x->p);
}

static void run(bool is_page_exact)
{
    const uint64_t n_ops = test_ops(OPS_DEFAULT);
    torturer *x = calloc(1, sizeof *x);

    assert_non_null(x);
    begin(x, is_page_exact);
    for (uint64_t i = 0; i < n_ops; i++) {
        step(x);
        check(x);
        if (i % 16 == 0) {
            quire_prefix_validate(x->p.tree);
            quire_cache_validate(x->p.cache);
            quire_pins_validate(x->pins);
        }
    }
    end(x);
    (void)printf("%llu calls failed, %llu pins held, %llu pages offloaded, %llu onloaded\n",
                 (unsigned long long)x->n_failed, (unsigned long long)x->n_held,
                 (unsigned long long)x->n_offloaded, (unsigned long long)x->n_onloaded);
    assert_true(n_ops < 4000 || (x->n_failed > 0 && x->n_held > 0 && x->n_onloaded > 0));
    free(x);
}

static void test_torture(void **state)
{
    (void)state;
    run(false);
    run(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
