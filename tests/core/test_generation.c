/* test_generation.c - generations: the cache's number changes whenever a failed request for room
 * could succeed, the tree's number whenever the result of a lookup could change.
 *
 * First each operation by itself. Then random operations; two rules must hold after each. While the
 * cache's generation is unchanged, a refused request is refused again. While the tree's generation
 * is unchanged, a lookup gives the same result. QUIRE_SEED and QUIRE_OPS choose another run.
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
#define RUNNERS_MAX 8u
#define TEXTS       8u
#define TOKENS_MAX  (6u * P)
#define BUDGET      24u /* pages of each group */
#define CHARGE      100u
#define ASKS        4u
#define OPS_DEFAULT TEST_ROUNDS(60000u, 5000u)

/* ---- one operation at a time ---- */

typedef struct fixture {
    test_prefix p;
    quire_pins *pins;
    int32_t text[TOKENS_MAX];
} fixture;

static void fixture_init(fixture *f)
{
    quire_cache_opts opts = test_opts(2 * BUDGET);

    opts.n_groups = 2;
    opts.page_bytes[1] = PAGE_BYTES;
    opts.seqs_max = 8;
    test_prefix_create_in(&f->p, &opts, NULL);
    f->pins = test_pins_create(&f->p, 0);
    test_text(f->text, TOKENS_MAX, 1);
}

static void fixture_fini(fixture *f)
{
    quire_pins_destroy(f->pins);
    test_prefix_destroy(&f->p);
}

static uint64_t room_of(const fixture *f)
{
    return quire_cache_generation(f->p.cache);
}

static uint64_t texts_of(const fixture *f)
{
    return quire_prefix_generation(f->p.tree);
}

/* Taking, appending and publishing make no room; the new text is found. */
static void test_growth_makes_no_room(void **state)
{
    fixture f;
    quire_seq_id seq;
    uint64_t room;
    uint64_t texts;
    test_run run;

    (void)state;
    fixture_init(&f);
    assert_int_not_equal(room_of(&f), 0);
    assert_int_not_equal(texts_of(&f), 0);
    room = room_of(&f);
    texts = texts_of(&f);
    seq = test_open(f.p.cache);
    assert_int_equal(quire_seq_reserve(f.p.cache, seq, 3 * P), QUIRE_OK);
    test_append(f.p.cache, seq, 3 * P);
    quire_cache_maintain(f.p.cache);
    (void)test_lookup(&f.p, f.text, TOKENS_MAX);
    assert_int_equal(texts_of(&f), texts);
    run = test_run_start(&f.p, f.text, P);
    test_run_extend(&f.p, &run, f.text, P + 1); /* a new node ... */
    assert_int_not_equal(texts_of(&f), texts);
    texts = texts_of(&f);
    test_run_extend(&f.p, &run, f.text, 2 * P); /* ... which grows */
    assert_int_not_equal(texts_of(&f), texts);
    assert_int_equal(room_of(&f), room);
    test_run_end(&f.p, &run);
    assert_int_equal(quire_seq_close(f.p.cache, seq), QUIRE_OK);
    fixture_fini(&f);
}

/* Each call that releases something of a sequence. */
static void test_sequences_let_go(void **state)
{
    fixture f;
    quire_seq_id seq;
    quire_seq_id fork;
    uint64_t room;

    (void)state;
    fixture_init(&f);
    seq = test_open(f.p.cache);
    room = room_of(&f);
    assert_int_equal(quire_seq_close(f.p.cache, seq), QUIRE_OK); /* an id */
    assert_int_not_equal(room_of(&f), room);

    seq = test_open(f.p.cache);
    test_append(f.p.cache, seq, 2 * P + 1);
    fork = test_fork(f.p.cache, seq);
    room = room_of(&f);
    assert_int_equal(quire_seq_close(f.p.cache, fork), QUIRE_OK); /* a tail is one's own again */
    assert_int_not_equal(room_of(&f), room);
    room = room_of(&f);
    assert_int_equal(quire_seq_release(f.p.cache, seq, 1, 0, P, NULL), QUIRE_OK);
    assert_int_not_equal(room_of(&f), room);
    room = room_of(&f);
    assert_int_equal(quire_seq_truncate(f.p.cache, seq, 2 * P), QUIRE_OK);
    assert_int_not_equal(room_of(&f), room);
    assert_int_equal(quire_seq_reserve(f.p.cache, seq, 2 * P), QUIRE_OK);
    room = room_of(&f);
    assert_int_equal(quire_seq_truncate(f.p.cache, seq, 2 * P), QUIRE_OK); /* reserved room */
    assert_int_not_equal(room_of(&f), room);
    room = room_of(&f);
    assert_int_equal(quire_seq_close(f.p.cache, seq), QUIRE_OK);
    assert_int_not_equal(room_of(&f), room);
    fixture_fini(&f);
}

typedef void (*tree_op)(fixture *f);

static void op_evict(fixture *f)
{
    assert_true(quire_prefix_evict(f->p.tree, QUIRE_REGION_DYNAMIC, 1) > 0);
}

static void op_expire(fixture *f)
{
    assert_true(quire_prefix_expire(f->p.tree, UINT64_MAX, 1) > 0);
}

static void op_drop_all(fixture *f)
{
    assert_true(quire_prefix_drop_all(f->p.tree, f->p.now_us).nodes > 0);
}

static void op_drop_salt(fixture *f)
{
    assert_true(quire_prefix_drop_salt(f->p.tree, "tenant", 6, f->p.now_us).nodes > 0);
}

static void op_drop_prefix(fixture *f)
{
    const quire_prefix_key key = test_key();

    assert_true(quire_prefix_drop_prefix(f->p.tree, &key, f->text, 2 * P, f->p.now_us).nodes > 0);
}

static void op_drop_owner(fixture *f)
{
    assert_true(quire_prefix_drop_owner(f->p.tree, 7, f->p.now_us).nodes > 0);
}

static void op_quota(fixture *f)
{
    const quire_account_opts opts = { .quota_bytes = 1, .weight = 1 };

    assert_int_equal(quire_prefix_account_set(f->p.tree, 0, &opts), QUIRE_OK);
}

static void op_budget(fixture *f)
{
    assert_int_equal(quire_region_budget_set(f->p.cache, QUIRE_REGION_DYNAMIC, PAGE_BYTES),
                     QUIRE_OK);
}

/* Each way in which cached nodes end. */
static void test_the_tree_lets_go(void **state)
{
    static const tree_op ops[] = { op_evict,       op_expire,     op_drop_all, op_drop_salt,
                                   op_drop_prefix, op_drop_owner, op_quota,    op_budget };

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        fixture f;
        uint64_t room;
        uint64_t texts;

        fixture_init(&f);
        assert_int_equal(quire_prefix_ttl_set(f.p.tree, 0, 1000), QUIRE_OK);
        f.p.owner = 7;
        (void)test_run_whole(&f.p, f.text, 3 * P);
        room = room_of(&f);
        texts = texts_of(&f);
        ops[i](&f);
        assert_int_not_equal(room_of(&f), room);
        assert_int_not_equal(texts_of(&f), texts);
        fixture_fini(&f);
    }
}

/* The tree drops a page that a sequence had released: the found text is the same, the usable text
 * may be shorter. */
static void test_holes_change_lookups(void **state)
{
    fixture f;
    uint64_t texts;
    test_run run;

    (void)state;
    fixture_init(&f);
    run = test_run_start(&f.p, f.text, 3 * P);
    test_run_extend(&f.p, &run, f.text, 3 * P);
    assert_int_equal(quire_seq_release(f.p.cache, run.seq, 1, 0, 2 * P, NULL), QUIRE_OK);
    texts = texts_of(&f);
    assert_int_equal(test_lookup(&f.p, f.text, P + 1).n_tokens, P + 1);
    assert_int_equal(quire_prefix_publish(f.p.tree, run.ref, f.text, 3 * P, f.p.now_us), QUIRE_OK);
    assert_int_equal(test_lookup(&f.p, f.text, P + 1).n_tokens, P);
    assert_int_not_equal(texts_of(&f), texts);
    test_run_end(&f.p, &run);
    fixture_fini(&f);
}

static void slot_release(void *ctx, uint32_t slot)
{
    (void)ctx;
    (void)slot;
}

/* The same when a page leaves memory, and when it comes back. */
static void test_offloaded_pages_change_lookups(void **state)
{
    static unsigned char bytes[PAGE_BYTES];
    const quire_offload_ops ops = { .release = slot_release };
    quire_page_id page;
    uint64_t texts;
    fixture f;
    test_run run;

    (void)state;
    fixture_init(&f);
    quire_cache_offload_set(f.p.cache, &ops);
    run = test_run_start(&f.p, f.text, 2 * P);
    test_run_extend(&f.p, &run, f.text, 2 * P);
    page = test_page_of(f.p.cache, run.seq, 0, P);
    texts = texts_of(&f);
    assert_int_equal(test_lookup(&f.p, f.text, P + 1).n_tokens, P + 1);
    assert_int_equal(quire_cache_page_gather(f.p.cache, page, bytes, sizeof bytes), QUIRE_OK);
    assert_int_equal(quire_cache_page_offload(f.p.cache, page, 0), QUIRE_OK);
    assert_int_equal(test_lookup(&f.p, f.text, P + 1).n_tokens, P);
    assert_int_not_equal(texts_of(&f), texts);
    texts = texts_of(&f);
    assert_int_equal(quire_cache_page_onload(f.p.cache, page, bytes, sizeof bytes), QUIRE_OK);
    assert_int_equal(test_lookup(&f.p, f.text, P + 1).n_tokens, P + 1);
    assert_int_not_equal(texts_of(&f), texts);
    test_run_end(&f.p, &run);
    fixture_fini(&f);
}

static void test_regions_and_pins(void **state)
{
    quire_region_opts opts = QUIRE_REGION_OPTS_INIT;
    quire_pin_spec spec = { .name = "a", .key = test_key(), .n_tokens = 2 * P };
    quire_region_id region;
    quire_pin_id id;
    uint64_t room;
    fixture f;

    (void)state;
    fixture_init(&f);
    room = room_of(&f);
    opts.budget_bytes = 8 * PAGE_BYTES;
    assert_int_equal(quire_region_open(f.p.cache, &opts, &region), QUIRE_OK);
    assert_int_not_equal(room_of(&f), room);
    room = room_of(&f);
    assert_int_equal(quire_region_transfer(f.p.cache, region, 0, PAGE_BYTES), QUIRE_OK);
    assert_int_not_equal(room_of(&f), room);

    (void)test_run_whole(&f.p, f.text, 2 * P);
    spec.tokens = f.text;
    spec.region = region;
    assert_int_equal(quire_pins_reserve(f.pins, &spec, 1, &id, NULL), QUIRE_OK);
    room = room_of(&f);
    assert_int_equal(quire_pins_drop(f.pins, id, 1), QUIRE_OK); /* the bytes set aside */
    assert_int_not_equal(room_of(&f), room);
    assert_int_equal(quire_pins_reserve(f.pins, &spec, 1, &id, NULL), QUIRE_OK);
    assert_int_equal(quire_pins_hold(f.pins, id, 1, NULL), QUIRE_OK);
    room = room_of(&f);
    assert_int_equal(quire_pins_drop(f.pins, id, 1), QUIRE_OK); /* the held pages */
    assert_int_not_equal(room_of(&f), room);
    room = room_of(&f);
    assert_int_equal(quire_region_close(f.p.cache, region), QUIRE_OK);
    assert_int_not_equal(room_of(&f), room);
    fixture_fini(&f);
}

/* When the number of extents is the limit, emptying an extent makes room. */
static void test_emptied_extents(void **state)
{
    quire_cache_opts opts = test_opts(8 * EXTENT_PAGES);
    quire_seq_id seqs[3];
    uint64_t room;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    for (uint32_t i = 0; i < 3; i++) {
        seqs[i] = test_open(t.cache);
        test_append(t.cache, seqs[i], (EXTENT_PAGES - EXTENT_PAGES / 4) * P);
    }
    assert_int_equal(quire_seq_truncate(t.cache, seqs[1], P), QUIRE_OK);
    room = quire_cache_generation(t.cache);
    assert_true(quire_cache_coalesce(t.cache, UINT32_MAX) > 0);
    assert_int_not_equal(quire_cache_generation(t.cache), room);
    room = quire_cache_generation(t.cache);
    assert_true(quire_cache_trim(t.cache, 0) > 0);
    assert_int_not_equal(quire_cache_generation(t.cache), room);
    test_cache_destroy(&t);
}

/* ---- random ones ---- */

typedef struct runner {
    quire_seq_id seq;
    quire_prefix_ref ref; /* 0: a fork */
    uint32_t n_tokens;
    int32_t tokens[TOKENS_MAX];
} runner;

/* A request for room that was refused. */
typedef struct refusal {
    quire_seq_id seq;
    uint32_t n_tokens;
    uint64_t generation; /* 0 = none */
} refusal;

/* A lookup and its answer. */
typedef struct ask {
    int32_t tokens[TOKENS_MAX];
    uint32_t n_tokens;
    uint64_t generation; /* 0 = none */
    quire_prefix_match match;
} ask;

typedef struct model {
    test_prefix p;
    quire_rng rng;
    quire_region_id region;
    runner runners[RUNNERS_MAX];
    uint32_t n_runners;
    refusal refusals[ASKS];
    ask asks[ASKS];
    int32_t texts[TEXTS][TOKENS_MAX];
    uint64_t n_refused_again;
    uint64_t n_granted_later;
    uint64_t n_same;
} model;

static uint32_t below(model *m, uint32_t n)
{
    return quire_rng_below(&m->rng, n);
}

static quire_region_id some_region(model *m)
{
    return below(m, 2) == 0 ? m->region : QUIRE_REGION_DYNAMIC;
}

static uint32_t make_prompt(model *m, int32_t *tokens)
{
    const uint32_t n = 1 + below(m, TOKENS_MAX);

    memcpy(tokens, m->texts[below(m, TEXTS)], n * sizeof *tokens);
    if (below(m, 3) == 0) {
        tokens[below(m, n)] ^= 1;
    }
    return n;
}

static void start(model *m)
{
    runner *r = &m->runners[m->n_runners];
    const quire_prefix_key key = test_key();
    quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX, .now_us = ++m->p.now_us };
    quire_prefix_match match;

    opts.owner = below(m, 3);
    opts.rank = (uint8_t)below(m, 2);
    r->n_tokens = make_prompt(m, r->tokens);
    r->seq = test_open_in(m->p.cache, some_region(m));
    assert_int_equal(quire_prefix_acquire(m->p.tree, &key, r->seq, r->tokens, r->n_tokens, &opts,
                                          &match, &r->ref),
                     QUIRE_OK);
    r->n_tokens = match.n_tokens;
    m->n_runners++;
}

static void fork_one(model *m)
{
    runner *r = &m->runners[m->n_runners];

    *r = m->runners[below(m, m->n_runners)];
    r->ref = QUIRE_PREFIX_REF_NULL;
    r->seq = test_fork(m->p.cache, r->seq);
    m->n_runners++;
}

static void publish(model *m, const runner *r)
{
    if (r->ref != QUIRE_PREFIX_REF_NULL) {
        assert_int_equal(
            quire_prefix_publish(m->p.tree, r->ref, r->tokens, r->n_tokens, ++m->p.now_us),
            QUIRE_OK);
    }
}

static void end(model *m, uint32_t i)
{
    runner *r = &m->runners[i];

    publish(m, r);
    if (r->ref != QUIRE_PREFIX_REF_NULL) {
        assert_int_equal(quire_prefix_release(m->p.tree, r->ref, ++m->p.now_us), QUIRE_OK);
    }
    assert_int_equal(quire_seq_close(m->p.cache, r->seq), QUIRE_OK);
    for (uint32_t a = 0; a < ASKS; a++) {
        m->refusals[a].generation *= m->refusals[a].seq != r->seq;
    }
    m->runners[i] = m->runners[--m->n_runners];
}

static void append(model *m, runner *r)
{
    const uint32_t n = 1 + below(m, 3 * P);

    if (n > TOKENS_MAX - r->n_tokens) {
        end(m, (uint32_t)(r - m->runners));
        return;
    }
    if (quire_seq_append(m->p.cache, r->seq, n) < 0) {
        m->refusals[below(m, ASKS)] = (refusal){ .seq = r->seq,
                                                 .n_tokens = n,
                                                 .generation = quire_cache_generation(m->p.cache) };
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        r->tokens[r->n_tokens++] = (int32_t)below(m, 2);
    }
    if (below(m, 2) == 0) {
        publish(m, r);
    }
}

static void cut(model *m, runner *r)
{
    if (r->n_tokens > P && below(m, 2) == 0) {
        assert_int_equal(quire_seq_release(m->p.cache, r->seq, 1, P, r->n_tokens, NULL), QUIRE_OK);
        return;
    }
    r->n_tokens = quire_seq_truncatable(m->p.cache, r->seq, below(m, r->n_tokens + 1));
    assert_int_equal(quire_seq_truncate(m->p.cache, r->seq, r->n_tokens), QUIRE_OK);
    for (uint32_t a = 0; a < ASKS; a++) { /* it asks for more now */
        m->refusals[a].generation *= m->refusals[a].seq != r->seq;
    }
    publish(m, r);
}

static void other(model *m)
{
    switch (below(m, 6)) {
    case 0:
        (void)quire_prefix_evict(m->p.tree, some_region(m), below(m, 4) * CHARGE);
        break;
    case 1:
        (void)quire_prefix_drop_owner(m->p.tree, 1 + below(m, 2), ++m->p.now_us);
        break;
    case 2:
        (void)quire_region_transfer(m->p.cache, 0, m->region, below(m, 4) * CHARGE);
        break;
    case 3:
        (void)quire_region_transfer(m->p.cache, m->region, 0, below(m, 4) * CHARGE);
        break;
    case 4:
        quire_cache_maintain(m->p.cache);
        break;
    default:
        (void)quire_prefix_drop_prefix(m->p.tree, &(quire_prefix_key){ .identity = { 1, 2 } },
                                       m->texts[0], 1 + below(m, TOKENS_MAX), ++m->p.now_us);
        break;
    }
}

static void step(model *m)
{
    const uint32_t dice = below(m, 100);

    if (m->n_runners == 0 || (dice < 25 && m->n_runners < RUNNERS_MAX)) {
        start(m);
    } else if (dice < 32 && m->n_runners < RUNNERS_MAX) {
        fork_one(m);
    } else if (dice < 70) {
        append(m, &m->runners[below(m, m->n_runners)]);
    } else if (dice < 78) {
        cut(m, &m->runners[below(m, m->n_runners)]);
    } else if (dice < 92) {
        end(m, below(m, m->n_runners));
    } else {
        other(m);
    }
}

/* A refused request is refused again in the same generation. The retry may evict and so change the
 * generation; it runs after each operation. */
static void check_refusals(model *m)
{
    for (uint32_t a = 0; a < ASKS; a++) {
        refusal *r = &m->refusals[a];

        if (r->generation == 0) {
            continue;
        }
        if (r->generation == quire_cache_generation(m->p.cache)) {
            assert_true(quire_seq_reserve(m->p.cache, r->seq, r->n_tokens) < 0);
            m->n_refused_again++;
        } else {
            m->n_granted_later += quire_seq_reserve(m->p.cache, r->seq, r->n_tokens) == QUIRE_OK;
            r->generation = 0;
        }
    }
}

static void check_asks(model *m)
{
    const uint64_t now = quire_prefix_generation(m->p.tree);

    for (uint32_t a = 0; a < ASKS; a++) {
        ask *k = &m->asks[a];
        quire_prefix_match match;

        if (k->generation != 0 && k->generation == now) {
            match = test_lookup(&m->p, k->tokens, k->n_tokens);
            match.cached_token = k->match.cached_token;
            assert_memory_equal(&match, &k->match, sizeof match);
            m->n_same++;
            continue;
        }
        k->n_tokens = make_prompt(m, k->tokens);
        k->match = test_lookup(&m->p, k->tokens, k->n_tokens);
        k->generation = now;
    }
}

static void model_init(model *m, uint64_t seed)
{
    quire_cache_opts opts = test_opts(1);
    quire_region_opts region = QUIRE_REGION_OPTS_INIT;
    quire_prefix_opts prefix = QUIRE_PREFIX_OPTS_INIT;

    m->rng = test_rng(seed);
    opts.n_groups = 2;
    for (uint32_t g = 0; g < 2; g++) {
        opts.page_bytes[g] = 0;
        opts.charge_bytes[g] = CHARGE;
    }
    opts.budget_bytes = (uint64_t)2 * BUDGET * CHARGE;
    prefix.ghosts_max = 64;
    prefix.seed = 7;
    test_prefix_create_in(&m->p, &opts, &prefix);
    region.budget_bytes = (uint64_t)BUDGET / 2 * CHARGE;
    region.spills_to_dynamic = below(m, 2) == 0;
    assert_int_equal(quire_region_open(m->p.cache, &region, &m->region), QUIRE_OK);
    test_texts(&m->rng, m->texts[0], TEXTS, TOKENS_MAX);
}

static void run(uint64_t seed)
{
    const uint64_t n_ops = test_ops(OPS_DEFAULT);
    model *m = calloc(1, sizeof *m);

    assert_non_null(m);
    model_init(m, seed);
    for (uint64_t i = 0; i < n_ops; i++) {
        step(m);
        check_refusals(m);
        check_asks(m);
    }
    while (m->n_runners > 0) {
        end(m, m->n_runners - 1);
    }
    assert_int_equal(quire_region_close(m->p.cache, m->region), QUIRE_OK);
    (void)printf("%llu refused again, %llu granted later, %llu lookups answered the same\n",
                 (unsigned long long)m->n_refused_again, (unsigned long long)m->n_granted_later,
                 (unsigned long long)m->n_same);
    assert_true(n_ops < 5000 ||
                (m->n_refused_again > 0 && m->n_granted_later > 0 && m->n_same > 0));
    test_prefix_destroy(&m->p);
    free(m);
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        run(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth_makes_no_room),
        cmocka_unit_test(test_sequences_let_go),
        cmocka_unit_test(test_the_tree_lets_go),
        cmocka_unit_test(test_holes_change_lookups),
        cmocka_unit_test(test_offloaded_pages_change_lookups),
        cmocka_unit_test(test_regions_and_pins),
        cmocka_unit_test(test_emptied_extents),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
