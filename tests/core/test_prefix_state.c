/* test_prefix_state.c - states of nodes: where hits end, which states go first, growth, lack of
 * room, and random texts whose states are told apart by a hash.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include "core/cache/state_spare.h"
#include "quire/pin.h"
#include "seed.h"

#include <string.h>

#define P     PAGE_TOKENS
#define STATE 1u /* the group of states */
#define PAGES 6u /* of a text */
#define TEXT  (PAGES * P)

static void begin(test_prefix *p, uint32_t n_pages)
{
    quire_cache_opts cache = test_opts(n_pages);

    cache.state_bytes = PAGE_BYTES;
    test_prefix_create_in(p, &cache, NULL);
}

static uint64_t state_of(const int32_t *tokens, uint32_t n_tokens)
{
    return quire_prefix_hash_add(7, tokens, n_tokens);
}

/* Leave the state of a run that has published n tokens. */
static bool leave(const test_prefix *p, const test_run *run, const int32_t *tokens, uint32_t n)
{
    const quire_page_id page = quire_prefix_state_put(p->tree, run->ref, n);
    const uint64_t state = state_of(tokens, n);

    if (page != QUIRE_PAGE_NULL) {
        memcpy(quire_cache_state(p->cache, page), &state, sizeof state);
    }
    quire_prefix_validate(p->tree);
    return page != QUIRE_PAGE_NULL;
}

/* Begin a run; its state is that of the text where its hit ends. */
static test_run start(test_prefix *p, const int32_t *tokens, uint32_t n)
{
    const test_run run = test_run_start(p, tokens, n);
    const quire_page_id page = quire_prefix_state_get(p->tree, run.ref, run.match.n_tokens);
    uint64_t state;

    assert_int_equal(page == QUIRE_PAGE_NULL, run.match.n_tokens == 0);
    if (page != QUIRE_PAGE_NULL) {
        memcpy(&state, quire_cache_state(p->cache, page), sizeof state);
        assert_true(state == state_of(tokens, run.match.n_tokens));
    }
    return run;
}

/* Compute a text and leave states at two places and at its end; 0 = none. */
static void compute(test_prefix *p, const int32_t *tokens, uint32_t n, uint32_t first,
                    uint32_t second)
{
    const uint32_t places[3] = { first, second, n };
    const test_run run = start(p, tokens, n);

    for (uint32_t i = 0; i < 3; i++) {
        if (places[i] > run.match.n_tokens) {
            test_run_extend(p, &run, tokens, places[i]);
            assert_true(leave(p, &run, tokens, places[i]));
            assert_false(leave(p, &run, tokens, places[i])); /* it has one */
        }
    }
    test_run_end(p, &run);
}

/* A state may be charged more than its payload, as in simulators. */
static void test_charge(void **state)
{
    quire_cache_opts opts = test_opts(10);
    const uint64_t page_bytes = opts.charge_bytes[0] != 0 ? opts.charge_bytes[0] : PAGE_BYTES;
    quire_region_stats stats;
    quire_page_id pages[2];
    test_prefix p;
    quire_seq_id seq;

    (void)state;
    opts.state_bytes = 64;
    opts.state_charge_bytes = QUIRE_PAGE_BYTES_MAX + 1;
    assert_int_equal(quire_cache_create(&p.cache, &opts), QUIRE_INVAL);
    opts.state_charge_bytes = 3 * page_bytes;
    test_prefix_create_in(&p, &opts, NULL);
    assert_int_equal(quire_seq_open(p.cache, QUIRE_REGION_DYNAMIC, &seq), QUIRE_OK);
    assert_int_equal(quire_seq_states(p.cache, seq, pages), QUIRE_OK);
    assert_int_equal(quire_region_stats_get(p.cache, QUIRE_REGION_DYNAMIC, &stats), QUIRE_OK);
    assert_int_equal(stats.charged_bytes, 6 * page_bytes);
    assert_int_equal(quire_seq_close(p.cache, seq), QUIRE_OK);
    test_prefix_destroy(&p);
}

static void test_hits_end_at_states(void **state)
{
    int32_t text[TEXT];
    quire_prefix_match match;
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    run = start(&p, text, 3 * P + 1);
    test_run_extend(&p, &run, text, 3 * P + 1);
    test_run_end(&p, &run);
    match = test_lookup(&p, text, 3 * P + 1); /* KV alone is of no use */
    assert_int_equal(match.n_tokens, 0);
    assert_int_equal(match.n_same_tokens, 3 * P + 1);
    assert_int_equal(match.end, QUIRE_PREFIX_END_ROUNDED);
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_STATE);

    compute(&p, text, 3 * P + 1, P, 2 * P);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, 3 * P + 1);
    assert_int_equal(test_lookup(&p, text, 3 * P + 1).n_tokens, 3 * P + 1);
    assert_int_equal(test_lookup(&p, text, 3 * P + 1).cut, QUIRE_PREFIX_CUT_NONE);
    assert_int_equal(test_lookup(&p, text, 3 * P).n_tokens, 2 * P);
    assert_int_equal(test_lookup(&p, text, 3 * P).cut, QUIRE_PREFIX_CUT_STATE);
    assert_int_equal(test_lookup(&p, text, 2 * P).n_tokens, 2 * P);
    assert_int_equal(test_lookup(&p, text, 2 * P - 1).n_tokens, P);
    assert_int_equal(test_lookup(&p, text, P - 1).n_tokens, 0);

    run = start(&p, text, TEXT);
    assert_int_equal(run.match.n_tokens, 3 * P + 1);
    assert_false(leave(&p, &run, text, 3 * P - 1)); /* no node ends there */
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* A partly filled node that grows loses its state; full nodes keep theirs. */
static void test_growth(void **state)
{
    int32_t text[TEXT];
    quire_prefix_match match;
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    compute(&p, text, 2 * P + 1, P, 2 * P);
    run = start(&p, text, TEXT);
    assert_int_equal(run.match.n_tokens, 2 * P + 1);
    test_run_extend(&p, &run, text, 4 * P);
    assert_false(leave(&p, &run, text, 2 * P + 1));
    match = test_lookup(&p, text, TEXT);
    assert_int_equal(match.n_tokens, 2 * P);
    assert_int_equal(match.end, QUIRE_PREFIX_END_ENDED); /* behind the last state */
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_STATE);
    assert_true(leave(&p, &run, text, 4 * P));
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, 4 * P);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* Texts that part: each goes on from the last state in common. */
static void test_branches(void **state)
{
    int32_t a[TEXT], b[TEXT];
    quire_prefix_match match;
    test_prefix p;

    (void)state;
    begin(&p, 100);
    test_text(a, TEXT, 1);
    memcpy(b, a, sizeof b);
    test_text(b + 3 * P, TEXT - 3 * P, 5000);
    compute(&p, a, TEXT, P, 4 * P);
    match = test_lookup(&p, b, TEXT);
    assert_int_equal(match.n_tokens, P);
    assert_int_equal(match.n_same_tokens, 3 * P);
    assert_int_equal(match.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(match.cut, QUIRE_PREFIX_CUT_STATE);
    compute(&p, b, TEXT, 3 * P, 5 * P);
    assert_int_equal(test_lookup(&p, a, 4 * P - 1).n_tokens, 3 * P);
    assert_int_equal(test_lookup(&p, b, TEXT).n_tokens, TEXT);
    test_prefix_destroy(&p);
}

typedef struct count {
    uint32_t n[2];
    uint32_t n_nodes;
} count;

static int count_node(void *ctx, const quire_prefix_node_info *node)
{
    count *c = ctx;

    c->n_nodes++;
    c->n[0] += node->pages[0] != QUIRE_PAGE_NULL;
    c->n[1] += node->pages[STATE] != QUIRE_PAGE_NULL;
    return 0;
}

static count counts(const test_prefix *p)
{
    count c = { 0 };

    (void)quire_prefix_visit(p->tree, count_node, &c);
    return c;
}

/* States that no end needs go before all KV; nodes behind which no state is left go together. */
static void test_eviction(void **state)
{
    int32_t text[TEXT];
    test_prefix p;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    compute(&p, text, TEXT, P, 2 * P);
    assert_int_equal(counts(&p).n[1], 3);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 2 * PAGE_BYTES),
                     2 * PAGE_BYTES);
    quire_prefix_validate(p.tree);
    assert_int_equal(counts(&p).n_nodes, PAGES);
    assert_int_equal(counts(&p).n[1], 1);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, TEXT);
    assert_true(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, PAGE_BYTES) > PAGE_BYTES);
    quire_prefix_validate(p.tree);
    assert_int_equal(counts(&p).n_nodes, 0);
    test_prefix_destroy(&p);
}

/* States that are smaller than KV go with their nodes. */
static void test_small_states(void **state)
{
    quire_cache_opts cache = test_opts(100);
    int32_t text[TEXT];
    test_prefix p;

    (void)state;
    cache.state_bytes = PAGE_BYTES;
    cache.charge_bytes[0] = 2 * PAGE_BYTES;
    test_prefix_create_in(&p, &cache, NULL);
    test_text(text, TEXT, 1);
    compute(&p, text, TEXT, P, 2 * P);
    assert_true(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1) >= 9 * PAGE_BYTES);
    quire_prefix_validate(p.tree);
    assert_int_equal(counts(&p).n_nodes, 2); /* to the last state that is left */
    assert_int_equal(counts(&p).n[1], 2);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, 2 * P);
    test_prefix_destroy(&p);
}

/* Large states are evicted in the order of the tokens that a hit at them saves. A state one page
 * behind another state goes before a state that a whole text needs, regardless of age. */
static void worth_of_states(quire_evict_policy policy, bool is_short_first)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    quire_cache_opts cache = test_opts(100);
    int32_t close[TEXT], far[TEXT];
    test_prefix p;

    cache.state_bytes = PAGE_BYTES;
    cache.state_charge_bytes = 10 * PAGE_BYTES;
    opts.policy = policy;
    test_prefix_create_in(&p, &cache, &opts);
    test_text(close, TEXT, 1);
    test_text(far, TEXT, 9000);
    for (uint32_t i = 0; i < 2; i++) {
        p.now_us += 1000;
        if ((i == 0) == is_short_first) {
            compute(&p, close, TEXT, TEXT - P, 0);
        } else {
            compute(&p, far, TEXT, 0, 0);
        }
    }
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), 11 * PAGE_BYTES);
    quire_prefix_validate(p.tree);
    assert_int_equal(test_lookup(&p, close, TEXT).n_tokens, TEXT - P);
    assert_int_equal(test_lookup(&p, far, TEXT).n_tokens, TEXT);
    test_prefix_destroy(&p);
}

static void test_worth_of_states(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        worth_of_states(QUIRE_EVICT_GDSF, i == 0);
        worth_of_states(QUIRE_EVICT_DEFAULT, i == 0);
    }
}

/* The state of the last whole page before an end stays with the end. */
static void test_ends_keep_states(void **state)
{
    int32_t text[TEXT];
    test_prefix p;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    compute(&p, text, 3 * P + 1, P, 3 * P);
    assert_true(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, PAGE_BYTES) > 0);
    assert_int_equal(counts(&p).n[1], 2);
    assert_int_equal(test_lookup(&p, text, 3 * P).n_tokens, 3 * P);
    test_prefix_destroy(&p);
}

/* When an end goes, its text ends before it: the state there goes with its node by the policy's
 * choice, not alone before all nodes, which would leave pages that no hit can use. */
static void test_ends_move_up(void **state)
{
    int32_t text[TEXT];
    test_prefix p;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    compute(&p, text, 3 * P + 1, 3 * P, 0);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), 2 * PAGE_BYTES);
    quire_prefix_validate(p.tree);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, 3 * P);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), 4 * PAGE_BYTES);
    quire_prefix_validate(p.tree);
    assert_int_equal(counts(&p).n_nodes, 0);
    test_prefix_destroy(&p);
}

/* Without room there is no state, and nothing else changes. Cached states make room for KV. */
static void test_lack_of_room(void **state)
{
    int32_t text[TEXT], other[TEXT];
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, PAGES);
    test_text(text, TEXT, 1);
    test_text(other, TEXT, 9000);
    run = start(&p, text, TEXT);
    test_run_extend(&p, &run, text, TEXT);
    assert_false(leave(&p, &run, text, TEXT));
    test_run_end(&p, &run);
    compute(&p, other, 2 * P, P, 0);
    assert_int_equal(test_lookup(&p, other, TEXT).n_tokens, 2 * P);
    run = start(&p, text, TEXT);
    test_run_extend(&p, &run, text, TEXT);
    assert_int_equal(test_lookup(&p, other, TEXT).n_tokens, 0);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* Where live pages take all room, a sequence that ends gives its spare page for its state. */
static void test_spare_page(void **state)
{
    int32_t text[TEXT];
    quire_page_id pages[2];
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, PAGES + 2);
    test_text(text, TEXT, 1);
    run = start(&p, text, TEXT);
    assert_int_equal(quire_seq_states(p.cache, run.seq, pages), QUIRE_OK);
    test_run_extend(&p, &run, text, TEXT);
    assert_false(leave(&p, &run, text, TEXT));
    for (uint32_t i = 0; i < 2; i++) { /* once is enough */
        quire_seq_state_spare_drop(p.cache, run.seq, quire_cache_state(p.cache, pages[1]));
        quire_cache_validate(p.cache);
    }
    assert_true(leave(&p, &run, text, TEXT));
    test_run_end(&p, &run);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, TEXT);
    quire_prefix_validate(p.tree);
    test_prefix_destroy(&p);
}

static quire_region_stats stats_of(const test_prefix *p, quire_region_id region)
{
    quire_region_stats stats;

    assert_int_equal(quire_region_stats_get(p->cache, region, &stats), QUIRE_OK);
    return stats;
}

static quire_pin_info pin_hold(quire_pins *pins, const char *name, const int32_t *text, uint32_t n)
{
    quire_pin_spec spec = { .name = name, .key = test_key(), .tokens = text, .n_tokens = n };
    quire_pin_info info;
    uint64_t missing;
    quire_pin_id id;

    assert_int_equal(quire_pins_reserve(pins, &spec, 0, &id, &missing), QUIRE_OK);
    assert_int_equal(quire_pins_get(pins, id, &info), QUIRE_OK);
    assert_true(info.bytes >= 3 * PAGE_BYTES); /* set aside for states */
    assert_int_equal(quire_pins_hold(pins, id, 0, &missing), QUIRE_OK);
    assert_int_equal(quire_pins_get(pins, id, &info), QUIRE_OK);
    assert_int_equal(info.n_held_tokens, n);
    quire_pins_validate(pins);
    return info;
}

/* Pins hold the states of their last pages. */
static void test_pins_hold_states(void **state)
{
    int32_t text[TEXT];
    quire_pins *pins;
    quire_pin_id id;
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    pins = test_pins_create(&p, 0);
    compute(&p, text, TEXT, 2 * P, 4 * P);
    id = pin_hold(pins, "pin", text, 4 * P).id; /* 4 pages, states at 2 P and 4 P */
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).pinned_bytes, 6 * PAGE_BYTES);
    (void)quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    quire_prefix_validate(p.tree);
    assert_int_equal(test_lookup(&p, text, TEXT).n_same_tokens, 4 * P);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, 4 * P);
    /* A node of the pin takes a state, which the pin holds from then on. */
    run = start(&p, text, 3 * P + 1);
    assert_int_equal(run.match.n_tokens, 2 * P);
    test_run_extend(&p, &run, text, 3 * P);
    assert_true(leave(&p, &run, text, 3 * P));
    test_run_end(&p, &run);
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).pinned_bytes, 7 * PAGE_BYTES);
    (void)quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    assert_int_equal(test_lookup(&p, text, 3 * P + 1).n_tokens, 3 * P);
    assert_int_equal(quire_pins_drop(pins, id, 0), QUIRE_OK);
    quire_prefix_validate(p.tree);
    (void)quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).charged_bytes, 0);
    quire_pins_destroy(pins);
    test_prefix_destroy(&p);
}

/* A pin's partly filled node grows with another text and loses its state: hits end at the state of
 * the page before. */
static void test_pinned_growth(void **state)
{
    int32_t text[TEXT];
    quire_pins *pins;
    test_prefix p;
    test_run run;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    pins = test_pins_create(&p, 0);
    compute(&p, text, 2 * P + 1, 2 * P, 0);
    (void)pin_hold(pins, "pin", text, 2 * P + 1); /* 3 pages, 2 states */
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).pinned_bytes, 5 * PAGE_BYTES);
    (void)quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, 2 * P + 1);
    run = start(&p, text, TEXT);
    test_run_extend(&p, &run, text, 3 * P);
    test_run_end(&p, &run);
    quire_pins_validate(pins);
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).pinned_bytes, 4 * PAGE_BYTES);
    (void)quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, 2 * P);
    quire_pins_destroy(pins);
    test_prefix_destroy(&p);
}

/* A node that a run has published grows with another text: it takes no state of the run's own. */
static void test_another_text(void **state)
{
    int32_t text[TEXT], other[TEXT];
    test_run run, longer;
    test_prefix p;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    test_text(other, TEXT, 1000);
    memcpy(other, text, (P + 1) * sizeof text[0]);
    run = start(&p, text, 2 * P);
    test_run_extend(&p, &run, text, P + 1);
    longer = start(&p, other, 2 * P);
    test_run_extend(&p, &longer, other, 2 * P);
    test_append(p.cache, run.seq, P - 1); /* not published, or for want of room not in the tree */
    assert_false(leave(&p, &run, text, 2 * P));
    assert_true(leave(&p, &longer, other, 2 * P));
    test_run_end(&p, &run);
    test_run_end(&p, &longer);
    test_prefix_destroy(&p);
}

typedef struct copies {
    uint32_t n;
    quire_prefix_copy items[PAGES + 1];
    quire_page_key keys[PAGES + 1];
    quire_page_id states[PAGES + 1];
} copies;

/* Keep each copy at the index of its page in the text. */
static void see(void *ctx, const quire_prefix_copy *copy)
{
    copies *c = ctx;
    const uint32_t i = copy->first_token / P;

    assert_true(i <= PAGES);
    c->items[i] = *copy;
    c->keys[i] = *copy->key;
    c->states[i] = copy->pages[STATE];
    c->n++;
}

static copies copies_of(const test_prefix *p)
{
    copies c = { 0 };

    (void)quire_prefix_copies_visit(p->tree, 1, UINT32_MAX, see, &c);
    return c;
}

static void keep(const test_prefix *p, const copies *c, uint32_t i)
{
    assert_int_equal(
        quire_prefix_copy_mark_set(p->tree, c->items[i].node, &c->keys[i], QUIRE_COPY_ASKED),
        QUIRE_OK);
    assert_int_equal(
        quire_prefix_copy_mark_set(p->tree, c->items[i].node, &c->keys[i], QUIRE_COPY_KEPT),
        QUIRE_OK);
}

/* A copy has the state that its node has; a state that comes later makes it old. */
static void test_copies(void **state)
{
    int32_t text[TEXT];
    test_prefix p;
    test_run run;
    copies c;

    (void)state;
    begin(&p, 100);
    test_text(text, TEXT, 1);
    run = start(&p, text, TEXT);
    test_run_extend(&p, &run, text, 2 * P);
    assert_true(leave(&p, &run, text, 2 * P));
    test_run_extend(&p, &run, text, 3 * P);
    c = copies_of(&p);
    assert_int_equal(c.n, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(c.items[i].needs_state && c.items[i].mark == QUIRE_COPY_NONE);
        assert_int_equal(c.items[i].has_state, i == 1);
        assert_int_equal(c.states[i] != QUIRE_PAGE_NULL, i == 1);
        keep(&p, &c, i);
    }
    c = copies_of(&p);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(c.items[i].mark, QUIRE_COPY_KEPT);
    }
    assert_true(leave(&p, &run, text, 3 * P));
    c = copies_of(&p);
    assert_int_equal(c.items[2].mark, QUIRE_COPY_NONE);
    assert_true(c.items[2].has_state);
    keep(&p, &c, 2);
    c = copies_of(&p);
    assert_int_equal(c.items[2].mark, QUIRE_COPY_KEPT);

    /* A node that came from a copy has the state of the copy. */
    test_run_extend(&p, &run, text, 4 * P);
    assert_true(leave(&p, &run, text, 4 * P));
    assert_int_equal(quire_prefix_copy_mark_ref(p.tree, run.ref, QUIRE_COPY_KEPT), QUIRE_OK);
    c = copies_of(&p);
    assert_int_equal(c.items[3].mark, QUIRE_COPY_KEPT);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* Random texts that begin like each other, states at random places, in little memory. */
static void test_random(void **state)
{
    enum {
        N = 8,
        ROUNDS = 600
    };
    static int32_t texts[N][TEXT];
    quire_rng rng = test_rng(71);
    uint32_t n_hits = 0;
    test_prefix p;

    (void)state;
    begin(&p, 4 * PAGES);
    test_texts(&rng, texts[0], N, TEXT);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const int32_t *text = texts[quire_rng_below(&rng, N)];
        const uint32_t n = 1 + (uint32_t)quire_rng_below(&rng, TEXT);
        const test_run run = start(&p, text, n);
        uint32_t at = run.match.n_tokens;

        n_hits += at > 0;
        while (at < n) {
            at += 1 + (uint32_t)quire_rng_below(&rng, 2 * P);
            at = quire_rng_below(&rng, 2) == 0 && at > P ? at / P * P : at;
            at = at < n ? at : n;
            if (at > quire_seq_tokens(p.cache, run.seq)) {
                test_run_extend(&p, &run, text, at);
            }
            if (quire_rng_below(&rng, 2) == 0) {
                (void)leave(&p, &run, text, at);
            }
        }
        test_run_end(&p, &run);
    }
    assert_true(n_hits > ROUNDS / 20);
    test_prefix_destroy(&p);
}

/* A sequence's two pages come with the first call, out of the budget, and go with the sequence. */
static void test_sequences(void **state)
{
    enum {
        N = 3
    };
    int32_t text[TEXT];
    quire_page_id pages[N + 1][2], again[2];
    quire_seq_id seqs[N + 1];
    uint64_t content;
    test_prefix p;

    (void)state;
    begin(&p, 2 * N);
    test_text(text, TEXT, 1);
    compute(&p, text, 2 * P, P, 0); /* cached pages make room */
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(quire_seq_open(p.cache, QUIRE_REGION_DYNAMIC, &seqs[i]), QUIRE_OK);
        assert_int_equal(quire_seq_states(p.cache, seqs[i], pages[i]), QUIRE_OK);
        assert_int_not_equal(pages[i][0], pages[i][1]);
        for (uint64_t k = 0; k < 2; k++) {
            content = 2 * i + k;
            memcpy(quire_cache_state(p.cache, pages[i][k]), &content, sizeof content);
        }
        quire_prefix_validate(p.tree);
    }
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).charged_bytes, 2 * N * PAGE_BYTES);
    assert_int_equal(test_lookup(&p, text, TEXT).n_tokens, 0);
    assert_int_equal(quire_seq_fork(p.cache, seqs[0], &seqs[N]), QUIRE_OK);
    assert_int_equal(quire_seq_states(p.cache, seqs[N], pages[N]), QUIRE_NOPAGES);
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).refused_total, 1);
    assert_int_equal(quire_seq_close(p.cache, seqs[0]), QUIRE_OK);
    (void)quire_cache_coalesce(p.cache, UINT32_MAX);
    for (uint32_t i = 1; i < N; i++) {
        assert_int_equal(quire_seq_states(p.cache, seqs[i], again), QUIRE_OK);
        assert_memory_equal(again, pages[i], sizeof again);
        for (uint64_t k = 0; k < 2; k++) {
            memcpy(&content, quire_cache_state(p.cache, again[k]), sizeof content);
            assert_true(content == 2 * i + k);
        }
    }
    assert_int_equal(quire_seq_states(p.cache, seqs[N], pages[N]), QUIRE_OK);
    assert_int_equal(quire_seq_states(p.cache, 12345, again), QUIRE_NOTFOUND);
    for (uint32_t i = 1; i <= N; i++) {
        assert_int_equal(quire_seq_close(p.cache, seqs[i]), QUIRE_OK);
    }
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).charged_bytes, 0);
    test_prefix_destroy(&p);
}

/* States of sequences in a pinned region are charged to that region. Without room there they are
 * charged to the dynamic region, until there is room.
 */
static void test_sequences_of_a_region(void **state)
{
    quire_region_opts opts = QUIRE_REGION_OPTS_INIT;
    quire_page_id pages[2];
    quire_seq_id seqs[2];
    quire_region_id region;
    test_prefix p;

    (void)state;
    begin(&p, 8);
    opts.budget_bytes = 3 * PAGE_BYTES;
    opts.spills_to_dynamic = true;
    assert_int_equal(quire_region_open(p.cache, &opts, &region), QUIRE_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(quire_seq_open(p.cache, region, &seqs[i]), QUIRE_OK);
        assert_int_equal(quire_seq_states(p.cache, seqs[i], pages), QUIRE_OK);
    }
    assert_int_equal(stats_of(&p, region).charged_bytes, 3 * PAGE_BYTES);
    assert_int_equal(stats_of(&p, region).spilled_bytes, PAGE_BYTES);
    assert_int_equal(quire_seq_close(p.cache, seqs[0]), QUIRE_OK);
    quire_cache_maintain(p.cache);
    quire_prefix_validate(p.tree);
    assert_int_equal(stats_of(&p, region).charged_bytes, 2 * PAGE_BYTES);
    assert_int_equal(stats_of(&p, region).spilled_bytes, 0);
    assert_int_equal(quire_seq_close(p.cache, seqs[1]), QUIRE_OK);
    assert_int_equal(quire_region_close(p.cache, region), QUIRE_OK);
    test_prefix_destroy(&p);
}

/* States of sequences are larger than those of nodes: both are whole, and charged as they are. */
static void test_sequences_of_another_size(void **state)
{
    enum {
        LARGE = 3 * PAGE_BYTES
    };
    quire_cache_opts opts = test_opts(100);
    unsigned char expected[LARGE];
    int32_t text[TEXT];
    quire_page_id pages[2];
    test_prefix p;
    test_run run;

    (void)state;
    opts.state_bytes = PAGE_BYTES;
    opts.seq_state_bytes = LARGE;
    test_prefix_create_in(&p, &opts, NULL);
    assert_int_equal(quire_cache_payload_bytes(p.cache, STATE), PAGE_BYTES);
    assert_int_equal(quire_cache_payload_bytes(p.cache, STATE + 1), LARGE);
    test_text(text, TEXT, 1);
    compute(&p, text, 3 * P, P, 2 * P);
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).charged_bytes, 6 * PAGE_BYTES);
    run = start(&p, text, TEXT);
    assert_int_equal(run.match.n_tokens, 3 * P);
    assert_int_equal(quire_seq_states(p.cache, run.seq, pages), QUIRE_OK);
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).charged_bytes, 6 * PAGE_BYTES + 2 * LARGE);
    for (int i = 0; i < 2; i++) {
        memset(quire_cache_state(p.cache, pages[i]), 17 + i, LARGE);
    }
    test_run_extend(&p, &run, text, 4 * P);
    assert_true(leave(&p, &run, text, 4 * P));
    for (int i = 0; i < 2; i++) {
        memset(expected, 17 + i, LARGE);
        assert_memory_equal(quire_cache_state(p.cache, pages[i]), expected, LARGE);
    }
    test_run_end(&p, &run);
    run = start(&p, text, TEXT);
    assert_int_equal(run.match.n_tokens, 4 * P);
    test_run_end(&p, &run);
    assert_int_equal(stats_of(&p, QUIRE_REGION_DYNAMIC).charged_bytes, 8 * PAGE_BYTES);
    test_prefix_destroy(&p);
}

static void test_options(void **state)
{
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;
    quire_cache *cache;

    (void)state;
    opts.budget_bytes = 1u << 20;
    opts.page_tokens = PAGE_TOKENS;
    opts.state_bytes = 65;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_INVAL);
    opts.state_bytes = 64;
    opts.n_groups = QUIRE_GROUPS_MAX;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_INVAL);
    opts.n_groups = 1;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_OK);
    assert_int_equal(quire_cache_payload_bytes(cache, 1), 64);
    assert_int_equal(quire_cache_payload_bytes(cache, 2), 0);
    quire_cache_destroy(cache);
    opts.seq_state_bytes = 65;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_INVAL);
    opts.seq_state_bytes = 128;
    opts.n_groups = QUIRE_GROUPS_MAX - 1;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_INVAL);
    opts.n_groups = 1;
    opts.seq_state_charge_bytes = QUIRE_PAGE_BYTES_MAX + 1;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_INVAL);
    opts.seq_state_charge_bytes = opts.state_bytes = 0;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_charge),
        cmocka_unit_test(test_hits_end_at_states),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_small_states),
        cmocka_unit_test(test_worth_of_states),
        cmocka_unit_test(test_ends_keep_states),
        cmocka_unit_test(test_lack_of_room),
        cmocka_unit_test(test_spare_page),
        cmocka_unit_test(test_ends_move_up),
        cmocka_unit_test(test_pins_hold_states),
        cmocka_unit_test(test_pinned_growth),
        cmocka_unit_test(test_another_text),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_sequences_of_a_region),
        cmocka_unit_test(test_sequences_of_another_size),
        cmocka_unit_test(test_options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
