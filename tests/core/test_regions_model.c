/* test_regions_model.c - random operations of several classes on one cache: regions that open,
 * close, grow and shrink, sequences of each, ranks, accounts with quotas, pins. After every
 * operation the test recomputes these rules from public state:
 *
 * - budgets add up to the cache's budget; no region is charged beyond its own
 *   - a sequence of the dynamic region never makes a pinned region's charge grow
 *   - a held pin's text is found to its last token and keeps its bytes
 *   - a reserved pin needs no more than its reserved bytes, even when other pins come and go
 *   - a refused pin reports exactly the missing bytes
 *   - a sequence of a pinned region is refused only when the region's own use leaves no room, or
 *     the dynamic region has no room for the region's pages that others use
 *   - an account above its quota has no candidates left
 *   - after the last sequence, pin and node are gone, nothing is charged
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

#define P           PAGE_TOKENS
#define RUNNERS_MAX 10u
#define PINS_MAX    4u
#define TEXTS       12u
#define TOKENS_MAX  (8u * P)
#define BUDGET      60u /* pages of group 0 */
#define PINNED      3u  /* regions 1 .. 3 */
#define ACCOUNTS    3u
#define OPS_DEFAULT TEST_ROUNDS(60000u, 20000u)

typedef struct runner {
    quire_seq_id seq;
    quire_prefix_ref ref;
    quire_region_id region;
    uint32_t account;
    bool is_private;
    uint32_t n_prompt, n_tokens;
    int32_t tokens[TOKENS_MAX];
} runner;

typedef struct pin {
    quire_pin_id id; /* 0 = none */
    quire_region_id region;
    uint32_t account;
    bool is_held, is_lost; /* may be lost */
    uint32_t n_tokens;
    uint64_t bytes; /* when it was held */
    int32_t tokens[TOKENS_MAX];
} pin;

typedef struct model {
    test_prefix p;
    quire_pins *pins;
    quire_rng rng;
    uint32_t n_groups, n_runners;
    uint64_t budget_bytes;
    uint64_t now_us;
    uint64_t quotas[ACCOUNTS];
    bool is_open[PINNED + 1], spills[PINNED + 1];
    runner runners[RUNNERS_MAX];
    pin pin[PINS_MAX];
    int32_t texts[TEXTS][TOKENS_MAX];
    uint64_t before[PINNED + 1]; /* charges before the operation */
    bool is_low;                 /* the operation is of a sequence of the dynamic region */
    uint64_t n_refused, n_held, n_missed;
    bool has_spilled, has_returned, has_reclaimed, has_adopted;
} model;

static uint32_t below(model *m, uint32_t n)
{
    return quire_rng_below(&m->rng, n);
}

static quire_prefix_key key_of(uint32_t account)
{
    return (quire_prefix_key){ .identity = { 1, 2 }, .salt = "abc", .salt_bytes = 1 + account };
}

static uint64_t charge_of(const model *m)
{
    return m->p.cache->opts.charge_bytes[0]; /* as in every group */
}

static quire_region_stats stats_of(const model *m, uint32_t region)
{
    quire_region_stats stats = { 0 };

    if (region == 0 || m->is_open[region]) {
        assert_int_equal(quire_region_stats_get(m->p.cache, (quire_region_id)region, &stats),
                         QUIRE_OK);
    }
    return stats;
}

/* ---- rules ---- */

/* Sums over the tree's nodes, from public calls. */
typedef struct sums {
    const model *m;
    uint64_t pinned[QUIRE_REGIONS_MAX];
    uint64_t accounts[ACCOUNTS];
    uint64_t evictable[ACCOUNTS];
} sums;

static int node_add(void *ctx, const quire_prefix_node_info *node)
{
    sums *s = ctx;
    const quire_cache *cache = s->m->p.cache;
    uint64_t bytes = 0;
    bool is_free = false;

    for (uint32_t g = 0; g < s->m->n_groups; g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL) {
            bytes += cache->opts.charge_bytes[g];
            is_free |= quire_pool_state(&cache->pool, node->pages[g]) == QUIRE_PAGE_CACHED;
        }
    }
    assert_int_equal(node->account, node->salt_bytes - 1);
    s->accounts[node->account] += bytes;
    s->pinned[node->region] += node->n_pins > 0 ? bytes : 0;
    if (node->n_children == 0 && node->n_refs == 0 && is_free) {
        s->evictable[node->account] += bytes;
    }
    return 0;
}

/* The part that other pins held stays, and the rest needs no more than the reserved bytes. */
static void check_reserved(const model *m, const quire_pin *p)
{
    const quire_prefix_tie *base = quire_prefix_tie_find(m->p.tree, p->base);

    assert_true((base != NULL && base->n_known == p->spec.n_tokens) ||
                quire_pin_spec_bytes(m->pins, &p->spec) <= p->reserved_bytes);
}

static void check_pins(const model *m)
{
    for (uint32_t i = 0; i < PINS_MAX; i++) {
        const pin *p = &m->pin[i];
        quire_prefix_key key = key_of(p->account);
        quire_prefix_match match;
        quire_pin_info info;

        if (p->id == QUIRE_PIN_NULL) {
            continue;
        }
        assert_int_equal(quire_pins_get(m->pins, p->id, &info), QUIRE_OK);
        if (!p->is_held) {
            if (!p->is_lost) {
                check_reserved(m, quire_pin_find(m->pins, p->id));
            }
            continue;
        }
        if (info.state == QUIRE_PIN_LOST) {
            assert_true(p->is_lost);
            continue;
        }
        assert_int_equal(info.n_held_tokens, p->n_tokens);
        assert_true(info.bytes >= p->bytes);
        quire_prefix_lookup(m->p.tree, &key, p->tokens, p->n_tokens, &match);
        assert_int_equal(match.n_same_tokens, p->n_tokens);
    }
}

static void check(model *m)
{
    sums s = { .m = m };
    uint64_t budget_bytes = 0;

    assert_int_equal(quire_prefix_visit(m->p.tree, node_add, &s), 0);
    for (uint32_t r = 0; r <= PINNED; r++) {
        quire_region_stats stats = stats_of(m, r);

        budget_bytes += stats.budget_bytes;
        assert_true(stats.charged_bytes <= stats.budget_bytes);
        assert_true(stats.pinned_bytes + stats.reserved_bytes <= stats.budget_bytes);
        assert_int_equal(stats.pinned_bytes, s.pinned[r]);
        assert_true(r == 0 || !m->is_low || stats.charged_bytes <= m->before[r]);
        m->before[r] = stats.charged_bytes;
        m->has_spilled |= stats.spilled_pages_total > 0;
        m->has_returned |= stats.returned_pages_total > 0;
        m->has_reclaimed |= stats.reclaimed_pages_total > 0;
        m->has_adopted |= stats.adopted_pages_total > 0;
    }
    m->is_low = false;
    assert_int_equal(budget_bytes, m->budget_bytes);
    for (uint32_t a = 0; a < ACCOUNTS; a++) {
        quire_account_info info;

        assert_int_equal(quire_prefix_account_get(m->p.tree, (uint16_t)a, &info), QUIRE_OK);
        assert_int_equal(info.bytes, s.accounts[a]);
    }
    check_pins(m);
}

/* Valid after a publication; pages released later may exceed the quota until the next one. */
static void check_quota(const model *m, uint32_t account, quire_prefix_ref ref)
{
    const quire_prefix_tie *tie = quire_prefix_tie_find(m->p.tree, ref);
    sums s = { .m = m };

    if (tie != NULL && (tie->is_private || tie->node == QUIRE_NODE_NULL)) {
        return; /* it published nothing */
    }
    assert_int_equal(quire_prefix_visit(m->p.tree, node_add, &s), 0);
    assert_true(m->quotas[account] == 0 || s.accounts[account] <= m->quotas[account] ||
                s.evictable[account] == 0);
}

/* Charge of a region's cached pages under refs: a sequence may run on its own copy of a page. */
static uint64_t tied_bytes(const model *m, quire_region_id region)
{
    const quire_pool *pool = &m->p.cache->pool;
    bool *is_seen = calloc(pool->id_end, sizeof *is_seen);
    uint64_t sum = 0;

    assert_non_null(is_seen);
    for (uint32_t i = 0; i < m->p.tree->n_ties; i++) {
        uint32_t id = m->p.tree->ties[i].id != QUIRE_PREFIX_REF_NULL ? m->p.tree->ties[i].node : 0;

        while (id != QUIRE_NODE_NULL && quire_prefix_at(m->p.tree, id)->kind == QUIRE_NODE_PAGE) {
            for (uint32_t g = 0; g < m->n_groups; g++) {
                quire_page_id page = quire_prefix_at(m->p.tree, id)->pages[g];

                if (page != QUIRE_PAGE_NULL && !is_seen[page] && pool->pages[page].refs == 0 &&
                    !pool->pages[page].is_pinned && pool->pages[page].region == region) {
                    is_seen[page] = true;
                    sum += charge_of(m);
                }
            }
            id = quire_prefix_at(m->p.tree, id)->parent;
        }
    }
    free(is_seen);
    return sum;
}

/* The pages of a node are charged together: a user of one page uses all. */
static void own_spread(const model *m, bool *is_own)
{
    for (uint32_t id = 1; id < m->p.tree->nodes.id_end; id++) {
        const quire_prefix_node *node = quire_prefix_at(m->p.tree, id);

        if (node->kind == QUIRE_NODE_PAGE && m->n_groups == 2 &&
            node->pages[1] != QUIRE_PAGE_NULL) {
            is_own[node->pages[0]] |= is_own[node->pages[1]];
            is_own[node->pages[1]] |= is_own[node->pages[0]];
        }
    }
}

/* The largest possible free room of a region, after evicting every candidate. */
static uint64_t room_bytes(const model *m, uint32_t region)
{
    quire_region_stats stats = stats_of(m, region);

    return stats.budget_bytes - (stats.charged_bytes - stats.cached_bytes) -
           tied_bytes(m, (quire_region_id)region);
}

/* Bytes charged to a region: used by its own sequences and pins, and used only by others. */
static void used_get(const model *m, quire_region_id region, uint64_t *own, uint64_t *others)
{
    const quire_pool *pool = &m->p.cache->pool;
    bool *is_own = calloc(pool->id_end, sizeof *is_own);

    assert_non_null(is_own);
    for (uint32_t i = 0; i < m->n_runners; i++) {
        const quire_seq *seq = quire_seqs_find(&m->p.cache->seqs, m->runners[i].seq);

        for (uint32_t g = 0; seq->region == region && g < m->n_groups; g++) {
            for (uint32_t e = 0; e < seq->tables[g].n_held; e++) {
                is_own[quire_table_entry(&seq->tables[g], e)->page] = true;
            }
        }
    }
    own_spread(m, is_own);
    *own = 0;
    *others = 0;
    for (quire_page_id id = 1; id < pool->id_end; id++) {
        const quire_page *page = &pool->pages[id];
        uint64_t bytes = m->p.cache->opts.charge_bytes[page->group];

        if (quire_page_state_of(page) == QUIRE_PAGE_FREE || page->region != region) {
            continue;
        }
        if (is_own[id] || page->is_pinned) {
            *own += bytes;
        } else if (page->refs > 0) {
            *others += bytes;
        }
    }
    free(is_own);
}

/* A sequence was refused need_bytes: check that there was no room. */
static void check_refusal(const model *m, quire_region_id region, uint64_t need_bytes)
{
    quire_region_stats own = stats_of(m, region);
    uint64_t low_room = room_bytes(m, 0);
    uint64_t own_bytes;
    uint64_t other_bytes;
    uint64_t over_bytes;

    if (region == 0) {
        assert_true(need_bytes > low_room);
        return;
    }
    used_get(m, region, &own_bytes, &other_bytes);
    other_bytes += tied_bytes(m, region);
    over_bytes =
        own_bytes + need_bytes > own.budget_bytes ? own_bytes + need_bytes - own.budget_bytes : 0;
    if (over_bytes > 0 && !m->spills[region]) {
        return;
    }
    /* Pages that others hold move to the dynamic region as needed, as do spilled pages. Pages are
     * whole: a page of each group may be left over on either side. */
    other_bytes = own_bytes + other_bytes + need_bytes > own.budget_bytes
                      ? own_bytes + other_bytes + need_bytes - own.budget_bytes
                      : 0;
    other_bytes = other_bytes > over_bytes ? other_bytes - over_bytes : 0;
    assert_true(over_bytes + other_bytes + 2 * m->n_groups * charge_of(m) > low_room);
}

/* ---- operations ---- */

static void make_prompt(model *m, runner *r)
{
    const int32_t *text = m->texts[below(m, TEXTS)];

    r->n_prompt = 1 + below(m, TOKENS_MAX);
    memcpy(r->tokens, text, r->n_prompt * sizeof r->tokens[0]);
    if (below(m, 3) == 0) {
        r->tokens[below(m, r->n_prompt)] ^= 1; /* leaves the text somewhere */
    }
}

static uint32_t some_region(model *m)
{
    uint32_t r = below(m, 2 * PINNED + 1);

    return r <= PINNED && m->is_open[r] ? r : 0;
}

static void op_start(model *m)
{
    runner *r = &m->runners[m->n_runners];
    quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX, .now_us = m->now_us };
    quire_prefix_match match;
    quire_prefix_key key;

    if (m->n_runners == RUNNERS_MAX) {
        return;
    }
    r->region = (quire_region_id)some_region(m);
    r->account = below(m, ACCOUNTS);
    make_prompt(m, r);
    key = key_of(r->account);
    opts.owner = below(m, 3);
    opts.rank = (uint8_t)(r->region + below(m, 2));
    opts.account = (uint16_t)r->account;
    opts.is_private = r->is_private = below(m, 12) == 0;
    m->is_low = r->region == 0;
    r->seq = test_open_in(m->p.cache, r->region);
    assert_int_equal(quire_prefix_acquire(m->p.tree, &key, r->seq, r->tokens, r->n_prompt, &opts,
                                          &match, &r->ref),
                     QUIRE_OK);
    r->n_tokens = match.n_tokens;
    m->n_runners++;
}

static void runner_end(model *m, uint32_t i)
{
    runner *r = &m->runners[i];

    m->is_low = r->region == 0;
    if (below(m, 4) != 0) {
        assert_int_equal(quire_prefix_publish(m->p.tree, r->ref, r->tokens, r->n_tokens, m->now_us),
                         QUIRE_OK);
        check_quota(m, r->account, r->ref);
    }
    if (below(m, 8) == 0) { /* a fork outlives it for a moment */
        quire_seq_id fork = test_fork(m->p.cache, r->seq);

        assert_int_equal(quire_seq_close(m->p.cache, fork), QUIRE_OK);
    }
    assert_int_equal(quire_prefix_release(m->p.tree, r->ref, m->now_us), QUIRE_OK);
    assert_int_equal(quire_seq_close(m->p.cache, r->seq), QUIRE_OK);
    m->runners[i] = m->runners[--m->n_runners];
}

static void op_append(model *m)
{
    runner *r;
    uint32_t n;
    uint32_t before;
    int rc;

    if (m->n_runners == 0) {
        return;
    }
    r = &m->runners[below(m, m->n_runners)];
    before = r->n_tokens;
    n = 1 + below(m, 2 * P);
    n = n < TOKENS_MAX - before ? n : TOKENS_MAX - before;
    if (n == 0) {
        runner_end(m, (uint32_t)(r - m->runners));
        return;
    }
    m->is_low = r->region == 0;
    rc = quire_seq_append(m->p.cache, r->seq, n);
    if (rc == QUIRE_NOPAGES) {
        /* New pages, and at most a copy of the tail. */
        uint64_t n_pages = (before + n + P - 1) / P - (before + P - 1) / P + (before % P != 0);

        check_refusal(m, r->region, n_pages * m->n_groups * charge_of(m));
        m->n_refused++;
        runner_end(m, (uint32_t)(r - m->runners));
        return;
    }
    assert_int_equal(rc, QUIRE_OK);
    for (uint32_t i = r->n_prompt > before ? r->n_prompt : before; i < before + n; i++) {
        r->tokens[i] = (int32_t)below(m, 2);
    }
    r->n_tokens = before + n;
    r->n_prompt = r->n_tokens > r->n_prompt ? r->n_tokens : r->n_prompt;
    if (m->n_groups > 1 && before > P && below(m, 2) == 0) {
        assert_int_equal(quire_seq_release(m->p.cache, r->seq, 1, P, before, NULL), QUIRE_OK);
    }
    if (below(m, 3) != 0) {
        assert_int_equal(quire_prefix_publish(m->p.tree, r->ref, r->tokens, r->n_tokens, m->now_us),
                         QUIRE_OK);
        check_quota(m, r->account, r->ref);
    }
}

static void op_truncate(model *m)
{
    runner *r;
    uint32_t n;

    if (m->n_runners == 0 || (r = &m->runners[below(m, m->n_runners)])->is_private) {
        return; /* a private one never says so */
    }
    m->is_low = r->region == 0;
    n = quire_seq_truncatable(m->p.cache, r->seq, below(m, r->n_tokens + 1));
    assert_int_equal(quire_seq_truncate(m->p.cache, r->seq, n), QUIRE_OK);
    r->n_tokens = n;
    r->n_prompt = n;
    /* Publish, because until then the tree assumes that the sequence uses its whole former text. */
    assert_int_equal(quire_prefix_publish(m->p.tree, r->ref, r->tokens, n, m->now_us), QUIRE_OK);
}

/* ---- regions ---- */

static void op_open_close(model *m)
{
    uint32_t r = 1 + below(m, PINNED);
    quire_region_opts opts = QUIRE_REGION_OPTS_INIT;
    quire_region_id id;
    int rc;

    if (m->is_open[r]) {
        quire_region_stats now = stats_of(m, r);
        bool is_used = now.seqs > 0 || now.pinned_bytes > 0 || now.reserved_bytes > 0;

        rc = quire_region_close(m->p.cache, (quire_region_id)r);
        assert_int_equal(rc, is_used ? QUIRE_AGAIN : QUIRE_OK);
        m->is_open[r] = is_used;
        return;
    }
    for (r = 1; m->is_open[r]; r++) {
    }
    opts.budget_bytes = below(m, 20) * charge_of(m);
    opts.spills_to_dynamic = below(m, 3) != 0;
    rc = quire_region_open(m->p.cache, &opts, &id);
    if (rc < 0) {
        assert_int_equal(rc, QUIRE_NOPAGES);
        assert_true(room_bytes(m, 0) < opts.budget_bytes + stats_of(m, 0).reserved_bytes);
        return;
    }
    assert_int_equal(id, r);
    m->is_open[r] = true;
    m->spills[r] = opts.spills_to_dynamic;
}

static void op_transfer(model *m)
{
    uint32_t from = some_region(m);
    uint32_t to = some_region(m);
    quire_region_stats giver = stats_of(m, from);
    uint64_t bytes = below(m, 6) * charge_of(m) + below(m, 2) * 7;
    uint64_t left_bytes;
    int rc = quire_region_transfer(m->p.cache, (quire_region_id)from, (quire_region_id)to, bytes);

    if (from == to || bytes > giver.budget_bytes) {
        assert_int_equal(rc, from == to ? QUIRE_INVAL : QUIRE_RANGE);
        return;
    }
    left_bytes = giver.budget_bytes - bytes;
    if (rc == QUIRE_OK) {
        assert_int_equal(stats_of(m, from).budget_bytes, left_bytes);
        return;
    }
    assert_int_equal(rc, QUIRE_NOPAGES);
    assert_int_equal(stats_of(m, from).budget_bytes, giver.budget_bytes);
    if (from == 0) {
        assert_true(room_bytes(m, 0) < bytes + giver.reserved_bytes);
    } else {
        uint64_t own_bytes;
        uint64_t other_bytes;

        used_get(m, (quire_region_id)from, &own_bytes, &other_bytes);
        /* Nodes are whole; the excess of one node may not fit the other region. */
        assert_true(left_bytes < own_bytes + giver.reserved_bytes + m->n_groups * charge_of(m) ||
                    room_bytes(m, to) < m->n_groups * charge_of(m));
    }
}

/* ---- pins ---- */

/* A refusal is exact: with missing_bytes more budget the pin is accepted, with one byte less it is
 * not. */
static void check_missing(model *m, const quire_pin_spec *spec, uint64_t missing_bytes)
{
    uint64_t again;

    if (spec->region == 0 ||
        quire_region_transfer(m->p.cache, 0, spec->region, missing_bytes - 1) < 0) {
        return;
    }
    assert_int_equal(quire_pins_check(m->pins, spec, &again), QUIRE_NOPAGES);
    assert_int_equal(again, 1);
    if (quire_region_transfer(m->p.cache, 0, spec->region, 1) == QUIRE_OK) {
        assert_int_equal(quire_pins_check(m->pins, spec, &again), QUIRE_OK);
    }
    m->n_missed++;
}

static void op_pin(model *m)
{
    uint32_t i = below(m, PINS_MAX);
    pin *p = &m->pin[i];
    quire_pin_spec spec = { .name = (char[]){ (char)('a' + i), 0 } };
    uint64_t missing_bytes;
    int rc;

    if (p->id != QUIRE_PIN_NULL) {
        return;
    }
    *p = (pin){ .region = (quire_region_id)some_region(m), .account = below(m, ACCOUNTS) };
    p->n_tokens = 1 + below(m, TOKENS_MAX / 2);
    memcpy(p->tokens, m->texts[below(m, TEXTS)], p->n_tokens * sizeof p->tokens[0]);
    spec.key = key_of(p->account);
    spec.tokens = p->tokens;
    spec.n_tokens = p->n_tokens;
    spec.region = p->region;
    spec.rank = (uint8_t)(p->region + 1);
    spec.account = (uint16_t)p->account;
    spec.expires_us = below(m, 2) == 0 ? 0 : m->now_us + below(m, 100000);
    rc = quire_pins_reserve(m->pins, &spec, m->now_us, &p->id, &missing_bytes);
    if (rc < 0) {
        assert_int_equal(rc, QUIRE_NOPAGES);
        assert_true(missing_bytes > 0);
        check_missing(m, &spec, missing_bytes);
    }
}

static void op_hold(model *m)
{
    pin *p = &m->pin[below(m, PINS_MAX)];
    quire_pin_info info;
    uint64_t missing_bytes;
    int rc;

    if (p->id == QUIRE_PIN_NULL) {
        return;
    }
    rc = quire_pins_hold(m->pins, p->id, m->now_us, &missing_bytes);
    assert_true(rc == QUIRE_OK || rc == QUIRE_AGAIN || rc == QUIRE_NOPAGES);
    assert_int_equal(missing_bytes > 0, rc == QUIRE_NOPAGES);
    if (rc == QUIRE_OK) {
        assert_int_equal(quire_pins_get(m->pins, p->id, &info), QUIRE_OK);
        p->is_held = true;
        p->is_lost = false;
        p->n_tokens = info.n_held_tokens;
        p->bytes = info.bytes;
        m->n_held++;
    }
}

static void pin_gone(void *ctx, const quire_pin_info *info)
{
    model *m = ctx;

    assert_true(info->expires_us != 0 && info->expires_us <= m->now_us);
    for (uint32_t i = 0; i < PINS_MAX; i++) {
        m->pin[i].id = m->pin[i].id == info->id ? QUIRE_PIN_NULL : m->pin[i].id;
    }
}

static void op_unpin(model *m)
{
    pin *p = &m->pin[below(m, PINS_MAX)];

    (void)quire_pins_expire(m->pins, m->now_us, pin_gone, m);
    if (p->id != QUIRE_PIN_NULL && below(m, 3) == 0) {
        assert_int_equal(quire_pins_drop(m->pins, p->id, m->now_us), QUIRE_OK);
        p->id = QUIRE_PIN_NULL;
    }
}

static void op_drop(model *m)
{
    uint32_t account = below(m, ACCOUNTS);
    quire_prefix_key key = key_of(account);

    switch (below(m, 8)) {
    case 0:
        (void)quire_prefix_drop_all(m->p.tree, m->now_us);
        break;
    case 1:
        (void)quire_prefix_drop_salt(m->p.tree, key.salt, key.salt_bytes, m->now_us);
        break;
    case 2:
        (void)quire_prefix_drop_prefix(m->p.tree, &key, m->texts[below(m, TEXTS)],
                                       1 + below(m, TOKENS_MAX), m->now_us);
        break;
    default: /* must not cost any pin anything */
        (void)quire_prefix_drop_owner(m->p.tree, 1 + below(m, 2), m->now_us);
        return;
    }
    for (uint32_t i = 0; i < PINS_MAX; i++) {
        m->pin[i].is_lost = true; /* it may be */
    }
}

static void op_rules(model *m)
{
    uint32_t account = below(m, ACCOUNTS);
    quire_account_opts opts = { .weight = 1 + below(m, 4) };

    switch (below(m, 4)) {
    case 0:
        opts.quota_bytes = below(m, 3) == 0 ? 0 : below(m, 40) * charge_of(m);
        assert_int_equal(quire_prefix_account_set(m->p.tree, (uint16_t)account, &opts), QUIRE_OK);
        m->quotas[account] = opts.quota_bytes;
        check_quota(m, account, QUIRE_PREFIX_REF_NULL);
        break;
    case 1:
        assert_int_equal(quire_prefix_ttl_set(m->p.tree, (uint8_t)below(m, QUIRE_RANKS_MAX),
                                              below(m, 2) * 50000),
                         QUIRE_OK);
        break;
    case 2:
        (void)quire_prefix_expire(m->p.tree, m->now_us, below(m, 10));
        break;
    default:
        (void)quire_prefix_evict(m->p.tree, (quire_region_id)below(m, PINNED + 1),
                                 below(m, 4) * charge_of(m));
        break;
    }
}

static void step(model *m)
{
    static void (*const ops[])(model *) = { op_open_close, op_transfer, op_transfer, op_pin,
                                            op_hold,       op_hold,     op_hold,     op_unpin,
                                            op_rules,      op_truncate };
    uint32_t dice = below(m, 100);

    m->now_us += below(m, 1000);
    if (dice < 25) {
        op_start(m);
    } else if (dice < 65) {
        op_append(m);
    } else if (dice < 78) {
        if (m->n_runners > 0) {
            runner_end(m, below(m, m->n_runners));
        }
    } else if (dice < 80) {
        quire_cache_maintain(m->p.cache);
        (void)quire_cache_coalesce(m->p.cache, 4);
    } else if (dice < 81) {
        if (below(m, 4) == 0) {
            op_drop(m);
        }
    } else {
        ops[below(m, sizeof ops / sizeof ops[0])](m);
    }
}

static void begin(model *m, uint32_t n_groups)
{
    quire_cache_opts opts = test_opts(1);
    quire_prefix_opts prefix_opts = QUIRE_PREFIX_OPTS_INIT;

    m->rng = test_rng(20261121);
    m->n_groups = n_groups;
    opts.n_groups = n_groups;
    for (uint32_t g = 0; g < n_groups; g++) {
        opts.page_bytes[g] = 0; /* metadata only */
        opts.charge_bytes[g] = 100;
    }
    m->budget_bytes = (uint64_t)BUDGET * n_groups * 100 + 33;
    opts.budget_bytes = m->budget_bytes;
    prefix_opts.ghosts_max = 64;
    prefix_opts.policy = (quire_evict_policy)below(m, QUIRE_EVICT_POLICY_COUNT);
    prefix_opts.seed = 7; /* or a run would not be repeated by its own */
    test_prefix_create_in(&m->p, &opts, &prefix_opts);
    m->pins = test_pins_create(&m->p, 0);
    test_texts(&m->rng, m->texts[0], TEXTS, TOKENS_MAX);
}

static void end(model *m)
{
    while (m->n_runners > 0) {
        runner_end(m, m->n_runners - 1);
    }
    quire_pins_destroy(m->pins);
    for (uint32_t r = 1; r <= PINNED; r++) {
        if (m->is_open[r]) {
            assert_int_equal(quire_region_close(m->p.cache, (quire_region_id)r), QUIRE_OK);
            m->is_open[r] = false;
        }
    }
    (void)quire_prefix_evict(m->p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    assert_int_equal(stats_of(m, 0).budget_bytes, m->budget_bytes);
    assert_int_equal(stats_of(m, 0).charged_bytes, 0);
    test_prefix_destroy(&m->p);
}

static void run(uint32_t n_groups)
{
    const uint64_t n_ops = test_ops(OPS_DEFAULT);
    model *m = calloc(1, sizeof *m);

    assert_non_null(m);
    begin(m, n_groups);
    for (uint64_t i = 0; i < n_ops; i++) {
        step(m);
        check(m);
        if (i % 64 == 0) {
            quire_prefix_validate(m->p.tree);
            quire_cache_validate(m->p.cache);
            quire_pins_validate(m->pins);
        }
    }
    end(m);
    (void)printf("%u groups: %llu refused, %llu pins held, %llu refusals checked\n", n_groups,
                 (unsigned long long)m->n_refused, (unsigned long long)m->n_held,
                 (unsigned long long)m->n_missed);
    /* Check that the run covered the cases. */
    assert_true(n_ops < 50000 ||
                (m->n_refused > 0 && m->n_held > 0 && m->n_missed > 0 && m->has_spilled &&
                 m->has_returned && m->has_reclaimed && m->has_adopted));
    free(m);
}

static void test_model(void **state)
{
    (void)state;
    run(1);
    run(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
