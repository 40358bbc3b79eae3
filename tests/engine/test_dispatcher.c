/* test_dispatcher.c - which device of several a request goes to: sets of pages, load, bindings.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/dispatch/dispatcher.h"
#include "engine/dispatch/page_set.h"

#include <string.h>

#define PAGE 64u

/* ---- sets of pages ---- */

#define KEYS 3000u

/* Few different beginnings, so that keys collide. */
static quire_page_key key_of(uint32_t i)
{
    quire_page_key key = { { 0 } };
    const uint64_t head = (i % 37) * UINT64_C(0x9e3779b97f4a7c15);

    memcpy(key.bytes, &head, sizeof head);
    memcpy(key.bytes + 8, &i, sizeof i);
    key.bytes[15] = 1;
    return key;
}

static void test_set(void **state)
{
    quire_page_set set = { .keys = NULL };
    bool is_in[KEYS] = { false };
    quire_rng rng = { 7 };
    uint64_t n = 0;

    (void)state;
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t i = (uint32_t)(quire_rng_next(&rng) % KEYS);
        const quire_page_key key = key_of(i);

        assert_int_equal(quire_page_set_has(&set, &key), is_in[i]);
        if (quire_rng_next(&rng) % 3 != 0) {
            assert_true(quire_page_set_add(&set, &key));
            n += !is_in[i];
            is_in[i] = true;
        } else {
            quire_page_set_remove(&set, &key);
            n -= is_in[i];
            is_in[i] = false;
        }
        assert_int_equal(set.n, n);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        const quire_page_key key = key_of(i);

        assert_int_equal(quire_page_set_has(&set, &key), is_in[i]);
    }
    quire_page_set_fini(&set);
    for (uint32_t i = 0; i < KEYS; i++) {
        const quire_page_key key = key_of(i);

        assert_false(quire_page_set_has(&set, &key));
        quire_page_set_remove(&set, &key);
    }
    quire_page_set_fini(&set);
}

/* ---- the choice ---- */

#define DEVICES 3u

typedef struct scene {
    quire_dispatcher *dispatcher;
    int32_t tokens[6 * PAGE];
    quire_replica_load loads[DEVICES];
} scene;

static void scene_open(scene *s, const quire_binding *bindings, uint32_t n_bindings)
{
    quire_dispatcher_opts opts = {
        .n_replicas = DEVICES, .page_tokens = PAGE, .bindings = bindings, .n_bindings = n_bindings
    };

    *s = (scene){ .dispatcher = NULL };
    for (uint32_t i = 0; i < DEVICES; i++) {
        opts.identities[i][0] = i; /* devices may round in their own ways */
    }
    assert_int_equal(quire_dispatcher_create(&s->dispatcher, &opts), QUIRE_OK);
    for (uint32_t i = 0; i < 6 * PAGE; i++) {
        s->tokens[i] = (int32_t)(i * 7 % 300);
    }
}

/* The tree of a device tells of the first pages of a tenant's text, or that they are gone. */
static void tell(scene *s, uint32_t device, const char *tenant, uint32_t n_pages, bool is_gone)
{
    const quire_prefix_watcher watcher = quire_dispatcher_watcher(s->dispatcher, device);
    quire_prefix_key root = { .identity = { device },
                              .salt = tenant,
                              .salt_bytes = (uint32_t)strlen(tenant) };
    quire_page_key key;

    quire_prefix_key_root(&root, &key);
    for (uint32_t i = 0; i < n_pages; i++) {
        quire_prefix_page page = { .key = &key, .n_tokens = PAGE };

        quire_prefix_key_add(&key, s->tokens + i * PAGE, PAGE, &key);
        assert_true(is_gone ? watcher.removed(watcher.ctx, &key)
                            : watcher.stored(watcher.ctx, &page));
    }
}

static quire_dispatch route(const scene *s, const char *tenant, uint32_t class_index,
                            uint32_t n_tokens)
{
    return quire_dispatcher_choose(s->dispatcher,
                                   &(quire_dispatch_ask){ .tenant = tenant,
                                                          .tenant_bytes = (uint32_t)strlen(tenant),
                                                          .class_index = class_index,
                                                          .tokens = s->tokens,
                                                          .n_tokens = n_tokens,
                                                          .loads = s->loads });
}

static void goes_to(const scene *s, uint32_t n_tokens, uint32_t device, uint32_t n_cached)
{
    const quire_dispatch r = route(s, "a", 0, n_tokens);

    assert_int_equal(r.replica, device);
    assert_int_equal(r.n_cached, n_cached);
}

static void test_prefix(void **state)
{
    scene s;

    (void)state;
    scene_open(&s, NULL, 0);
    goes_to(&s, 300, 0, 0);
    tell(&s, 1, "a", 2, false);
    goes_to(&s, 300, 1, 2 * PAGE);
    goes_to(&s, PAGE, 1, PAGE);
    goes_to(&s, PAGE - 1, 0, 0); /* no full page */
    assert_int_equal(route(&s, "b", 0, 300).replica, 0);
    tell(&s, 0, "c", 1, false);
    assert_int_equal(route(&s, "b", 0, 300).replica, 2); /* it has the fewest pages */
    tell(&s, 2, "a", 3, false);
    goes_to(&s, 300, 2, 3 * PAGE);
    tell(&s, 2, "a", 3, true);
    goes_to(&s, 300, 1, 2 * PAGE);
    (void)quire_dispatcher_watcher(s.dispatcher, 1)
        .cleared(quire_dispatcher_watcher(s.dispatcher, 1).ctx);
    goes_to(&s, 300, 1, 0);
    quire_dispatcher_destroy(s.dispatcher);
}

/* A request that uses no cached token goes where there is less to do. */
static void test_cold(void **state)
{
    quire_dispatch_ask ask = {
        .tenant = "a", .tenant_bytes = 1, .n_tokens = 6 * PAGE, .is_cold = true
    };
    quire_dispatch r;
    scene s;

    (void)state;
    scene_open(&s, NULL, 0);
    ask.tokens = s.tokens;
    ask.loads = s.loads;
    tell(&s, 1, "a", 6, false);
    s.loads[0].n_to_compute = 100;
    s.loads[1].n_to_compute = 101;
    s.loads[2].n_to_compute = 102;
    goes_to(&s, 6 * PAGE, 1, 6 * PAGE);
    r = quire_dispatcher_choose(s.dispatcher, &ask);
    assert_int_equal(r.replica, 0);
    assert_int_equal(r.n_cached, 0);
    assert_int_equal(r.n_saved, 0);
    quire_dispatcher_destroy(s.dispatcher);
}

static void test_load(void **state)
{
    scene s;

    (void)state;
    scene_open(&s, NULL, 0);
    tell(&s, 1, "a", 4, false);
    s.loads[1].n_to_compute = 4 * PAGE - 1; /* less than the cached prefix saves */
    goes_to(&s, 300, 1, 4 * PAGE);
    s.loads[1].n_to_compute += 2;
    goes_to(&s, 300, 0, 0);
    s.loads[1].n_to_compute = 0;
    s.loads[1].n_requests = 4 * PAGE / QUIRE_DISPATCH_REQUEST_TOKENS; /* as much: the prefix wins */
    goes_to(&s, 300, 1, 4 * PAGE);
    s.loads[1].n_requests++;
    goes_to(&s, 300, 0, 0);
    s.loads[0].n_requests = 1;
    goes_to(&s, 300, 2, 0);
    quire_dispatcher_destroy(s.dispatcher);
}

/* A store that has the first pages of a tenant's text, of one identity, at a cost for each token.
 */
typedef struct below {
    const scene *scene;
    uint32_t identity;
    uint32_t n_pages;
    double cost;
} below;

static uint32_t below_has(void *ctx, const quire_page_key *keys, uint32_t n)
{
    const below *b = ctx;
    const quire_prefix_key root = { .identity = { b->identity }, .salt = "a", .salt_bytes = 1 };
    quire_page_key key;
    uint32_t n_there = 0;

    quire_prefix_key_root(&root, &key);
    for (uint32_t i = 0; i < b->n_pages; i++) {
        quire_prefix_key_add(&key, b->scene->tokens + i * PAGE, PAGE, &key);
        n_there += n_there < n && memcmp(&keys[n_there], &key, sizeof key) == 0;
    }
    return n_there;
}

static uint32_t below_cost(void *ctx, uint32_t begin, uint32_t end)
{
    return (uint32_t)(((const below *)ctx)->cost * (end - begin));
}

/* Stored pages count behind those in memory, less the cost of fetching them. */
static void test_below(void **state)
{
    below stores[DEVICES];
    quire_dispatch r;
    scene s;

    (void)state;
    scene_open(&s, NULL, 0);
    for (uint32_t i = 0; i < DEVICES; i++) {
        stores[i] = (below){ &s, i, 0, 0.25 };
        s.loads[i].below = (quire_dispatch_below){ below_has, below_cost, &stores[i] };
    }
    goes_to(&s, 300, 0, 0);
    stores[2].n_pages = 4;
    goes_to(&s, 300, 2, 0);
    tell(&s, 1, "a", 2, false); /* 128 tokens at once, or 256 that cost 64 */
    r = route(&s, "a", 0, 300);
    assert_int_equal(r.replica, 2);
    assert_int_equal(r.n_cached, 0);
    assert_int_equal(r.n_saved, 3 * PAGE);
    tell(&s, 2, "a", 1, false); /* one in memory, three below */
    r = route(&s, "a", 0, 300);
    assert_int_equal(r.n_cached, PAGE);
    assert_int_equal(r.n_saved, 4 * PAGE - 3 * PAGE / 4);
    stores[2].cost = 1.0; /* computing costs no more */
    goes_to(&s, 300, 1, 2 * PAGE);
    stores[1].n_pages = 1; /* what is in memory is not asked for */
    assert_int_equal(route(&s, "a", 0, 300).n_saved, 2 * PAGE);
    assert_int_equal(route(&s, "b", 0, 300).n_saved, 0);
    quire_dispatcher_destroy(s.dispatcher);
}

/* The roots of a text that was condensed after each page but the first: half of it is kept. */
static void roots_begin(void *ctx, uint32_t replica)
{
    quire_dispatch_root *root = ctx;

    *root = (quire_dispatch_root){
        .key = { .identity = { 100, replica }, .salt = "a", .salt_bytes = 1 }, .n_kept = PAGE
    };
}

static bool roots_next(void *ctx, quire_dispatch_root *out)
{
    quire_dispatch_root *root = ctx;

    root->key.identity[0]++;
    root->n_gone += PAGE;
    *out = *root;
    return root->n_gone <= 3 * PAGE;
}

/* A condensed text counts with the tokens that left it, if all of its pages are there. */
static void test_condensed(void **state)
{
    const quire_prefix_key root = { .identity = { 102, 1 }, .salt = "a", .salt_bytes = 1 };
    quire_dispatch_root at;
    quire_dispatch_ask ask = { .tenant = "a", .tenant_bytes = 1, .n_tokens = 6 * PAGE };
    quire_page_key key;
    const quire_prefix_page page = { .key = &key, .n_tokens = PAGE };
    scene s;

    (void)state;
    scene_open(&s, NULL, 0);
    ask.tokens = s.tokens;
    ask.loads = s.loads;
    ask.roots = (quire_dispatch_roots){ roots_begin, roots_next, &at };
    tell(&s, 0, "a", 2, false);
    assert_int_equal(quire_dispatcher_choose(s.dispatcher, &ask).replica, 0);
    quire_prefix_key_root(&root, &key);
    for (uint32_t i = 2; i < 4; i++) { /* the kept page of the second root, and one behind it */
        const quire_prefix_watcher watcher = quire_dispatcher_watcher(s.dispatcher, 1);
        quire_dispatch r;

        quire_prefix_key_add(&key, s.tokens + i * PAGE, PAGE, &key);
        assert_true(watcher.stored(watcher.ctx, &page));
        r = quire_dispatcher_choose(s.dispatcher, &ask);
        assert_int_equal(r.replica, 1);
        assert_int_equal(r.n_cached, (i + 1) * PAGE);
    }
    quire_dispatcher_destroy(s.dispatcher);
}

static void test_lost(void **state)
{
    scene s;

    (void)state;
    scene_open(&s, NULL, 0);
    tell(&s, 1, "a", 4, false);
    s.loads[1].is_lost = true;
    goes_to(&s, 300, 0, 0);
    s.loads[0].has_refused = true;
    goes_to(&s, 300, 2, 0);
    s.loads[2].is_lost = true;
    goes_to(&s, 300, QUIRE_DISPATCH_NONE, 0);
    quire_dispatcher_destroy(s.dispatcher);
}

static void test_bindings(void **state)
{
    static const quire_binding bindings[] = {
        { .class_index = 1, .devices = 1u << 2 },
        { .tenant = "bob", .tenant_bytes = 3, .devices = 1u << 0 | 1u << 1 },
    };
    scene s;

    (void)state;
    scene_open(&s, bindings, 2);
    assert_int_equal(route(&s, "ann", 0, 300).replica, 0);
    assert_int_equal(route(&s, "ann", 1, 300).replica, 2);
    assert_int_equal(route(&s, "bob", 1, 300).replica, 0); /* the tenant's before the class's */
    assert_int_equal(route(&s, "bo", 1, 300).replica, 2);
    assert_int_equal(route(&s, "bob, salted", 0, 300).replica, 0);
    s.loads[0].n_requests = 100;
    assert_int_equal(route(&s, "bob", 0, 300).replica, 1);
    s.loads[1].has_refused = true; /* a full queue unties nobody */
    s.loads[0].has_refused = true;
    assert_int_equal(route(&s, "bob", 0, 300).replica, QUIRE_DISPATCH_NONE);
    s.loads[0] = s.loads[1] = (quire_replica_load){ .is_lost = true };
    assert_int_equal(route(&s, "bob", 0, 300).replica, 2);
    quire_dispatcher_destroy(s.dispatcher);
}

static void test_limits(void **state)
{
    quire_dispatcher_opts opts = { .n_replicas = QUIRE_REPLICAS_MAX + 1, .page_tokens = PAGE };
    quire_dispatcher *dispatcher;

    (void)state;
    assert_int_equal(quire_dispatcher_create(&dispatcher, &opts), QUIRE_INVAL);
    opts.n_replicas = 0;
    assert_int_equal(quire_dispatcher_create(&dispatcher, &opts), QUIRE_INVAL);
    assert_null(dispatcher);
    quire_dispatcher_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),    cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_cold),   cmocka_unit_test(test_load),
        cmocka_unit_test(test_below),  cmocka_unit_test(test_condensed),
        cmocka_unit_test(test_lost),   cmocka_unit_test(test_bindings),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
