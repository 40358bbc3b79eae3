/* test_prefix_parts.c - the parts of the prefix tree against naive ones: siblings, index, owners,
 * ghosts and seeds.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"
#include "seed.h"

#include "core/prefix/prefix_internal.h"

#include <string.h>

#define PT PAGE_TOKENS

/* ---- siblings ---- */

#define N_CHILDREN 300u

static int order(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b, uint32_t *n_same)
{
    uint32_t n = 0;

    while (n < n_a && n < n_b && a[n] == b[n]) {
        n++;
    }
    *n_same = n;
    if (n < n_a && n < n_b) {
        return a[n] < b[n] ? -1 : 1;
    }
    return n_a == n_b ? 0 : n_a < n_b ? -1 : 1;
}

/* The result of a linear search over the children. */
static quire_prefix_place place_of(const quire_prefix_nodes *nodes, const uint32_t *children,
                                   uint32_t n, const int32_t *text, uint32_t n_text)
{
    quire_prefix_place place = { 0 };
    uint32_t n_same;

    for (uint32_t i = 0; i < n; i++) {
        const quire_prefix_node *node = quire_prefix_node_at(nodes, children[i]);
        const int32_t *tokens = quire_prefix_node_tokens_const(nodes, node);
        bool is_above = order(text, n_text, tokens, node->n_tokens, &n_same) <= 0;
        uint32_t *best = is_above ? &place.above : &place.below;
        const quire_prefix_node *old = *best != 0 ? quire_prefix_node_at(nodes, *best) : NULL;
        uint32_t n_old;

        if (old == NULL ||
            (order(tokens, node->n_tokens, quire_prefix_node_tokens_const(nodes, old),
                   old->n_tokens, &n_old) < 0) == is_above) {
            *best = children[i];
            *(is_above ? &place.n_above : &place.n_below) = n_same;
        }
    }
    return place;
}

static void random_text(quire_rng *rng, int32_t *text, uint32_t *n)
{
    *n = 1 + quire_rng_below(rng, PT);
    for (uint32_t i = 0; i < *n; i++) { /* few values: much in common; negative ones, too */
        text[i] = (int32_t)quire_rng_below(rng, 3) - 1;
    }
}

/* Add a child, unless its tokens or a sibling's are a prefix of the other. */
static void child_add(quire_prefix_nodes *nodes, uint32_t parent, quire_rng *rng,
                      uint32_t *children, uint32_t *n)
{
    int32_t text[PT];
    uint32_t n_text;
    quire_prefix_place place;
    quire_prefix_node *node;

    random_text(rng, text, &n_text);
    place = place_of(nodes, children, *n, text, n_text);
    if ((place.above != 0 && place.n_above == n_text) ||
        (place.below != 0 && quire_prefix_node_at(nodes, place.below)->n_tokens == place.n_below)) {
        return;
    }
    assert_int_equal(quire_prefix_nodes_plan(nodes), QUIRE_OK);
    children[*n] = quire_prefix_nodes_take(nodes, QUIRE_NODE_PAGE);
    node = quire_prefix_node_at(nodes, children[*n]);
    node->parent = parent;
    node->n_tokens = (uint16_t)n_text;
    memcpy(quire_prefix_node_tokens(nodes, node), text, n_text * sizeof(*text));
    quire_prefix_siblings_add(nodes, parent, children[*n]);
    (*n)++;
}

static void test_siblings(void **state)
{
    quire_rng rng = test_rng(4);
    uint32_t children[N_CHILDREN];
    uint32_t n = 0;
    uint32_t parent;
    quire_prefix_nodes nodes;
    test_memory memory;

    (void)state;
    test_memory_init(&memory);
    quire_prefix_nodes_init(&nodes, &memory.allocator, 1, PT);
    assert_int_equal(quire_prefix_nodes_plan(&nodes), QUIRE_OK);
    parent = quire_prefix_nodes_take(&nodes, QUIRE_NODE_ROOT);
    for (uint32_t op = 0; op < 3000; op++) {
        int32_t text[PT];
        uint32_t n_text;
        quire_prefix_place got;
        quire_prefix_place want;

        if (n < N_CHILDREN && quire_rng_below(&rng, 5) < (op < 2000 ? 3 : 1)) {
            child_add(&nodes, parent, &rng, children, &n);
        } else if (n > 0) {
            uint32_t i = quire_rng_below(&rng, n);

            quire_prefix_siblings_remove(&nodes, parent, children[i]);
            quire_prefix_nodes_give(&nodes, children[i]);
            children[i] = children[--n];
        }
        random_text(&rng, text, &n_text);
        got = quire_prefix_siblings_find(&nodes, parent, text, n_text);
        want = place_of(&nodes, children, n, text, n_text);
        assert_memory_equal(&got, &want, sizeof(got));
        if (op % 50 == 0) {
            assert_int_equal(quire_prefix_siblings_validate(&nodes, parent), n);
        }
    }
    quire_prefix_nodes_fini(&nodes);
    assert_int_equal(memory.n_live, 0);
}

/* ---- index ---- */

#define N_HASHES 64u

/* Hashes, many with equal tags or places, added and removed at random. */
static void test_index(void **state)
{
    quire_rng rng = test_rng(5);
    uint64_t hashes[N_HASHES];
    bool is_in[N_HASHES] = { false };
    uint32_t n = 0;
    quire_prefix_index index;
    test_memory memory;

    (void)state;
    test_memory_init(&memory);
    assert_int_equal(quire_prefix_index_init(&index, &memory.allocator), QUIRE_OK);
    for (uint32_t i = 0; i < N_HASHES; i++) {
        hashes[i] = (uint64_t)(i % 7 * 0xfffffffu + i % 3) << 32 | i;
    }
    for (uint32_t op = 0; op < 5000; op++) {
        uint32_t i = quire_rng_below(&rng, N_HASHES);

        if (is_in[i]) {
            quire_prefix_index_remove(&index, hashes[i], i + 1);
            n--;
        } else {
            assert_int_equal(quire_prefix_index_plan(&index, n + 1), QUIRE_OK);
            quire_prefix_index_add(&index, hashes[i], i + 1);
            n++;
        }
        is_in[i] = !is_in[i];
        assert_int_equal(index.n, n);
        for (uint32_t k = 0; k < N_HASHES; k++) {
            uint32_t tag = quire_prefix_index_tag(hashes[k]);
            uint32_t at = tag;
            bool is_found = false;
            uint32_t node;

            while ((node = quire_prefix_index_next(&index, tag, &at)) != QUIRE_NODE_NULL) {
                is_found |= node == k + 1;
            }
            assert_int_equal(is_found, is_in[k]);
        }
    }
    quire_prefix_index_fini(&index);
    assert_int_equal(memory.n_live, 0);
}

#define N_CANDIDATES 100u

/* ---- owners ---- */

/* Nodes get and lose owners at random; find always returns a node of the owner. */
static void test_owners(void **state)
{
    quire_rng rng = test_rng(7);
    uint64_t owner_of[N_CANDIDATES] = { 0 };
    uint32_t ids[N_CANDIDATES];
    uint32_t n_owned = 0;
    quire_prefix_nodes nodes;
    quire_prefix_owners owners;
    test_memory memory;

    (void)state;
    test_memory_init(&memory);
    quire_prefix_nodes_init(&nodes, &memory.allocator, 1, PT);
    assert_int_equal(quire_prefix_owners_init(&owners, &memory.allocator, &nodes), QUIRE_OK);
    for (uint32_t i = 0; i < N_CANDIDATES; i++) {
        assert_int_equal(quire_prefix_nodes_plan(&nodes), QUIRE_OK);
        ids[i] = quire_prefix_nodes_take(&nodes, QUIRE_NODE_PAGE);
    }
    for (uint32_t op = 0; op < 3000; op++) {
        uint32_t i = quire_rng_below(&rng, N_CANDIDATES);
        uint64_t owner = quire_rng_below(&rng, 9);
        bool is_there = false;
        uint32_t found;

        n_owned -= owner_of[i] != 0;
        quire_prefix_owners_remove(&owners, ids[i]);
        owner_of[i] = quire_rng_below(&rng, 2) == 0 ? owner : 0;
        assert_int_equal(quire_prefix_owners_plan(&owners), QUIRE_OK);
        quire_prefix_owners_add(&owners, ids[i], owner_of[i]);
        n_owned += owner_of[i] != 0;
        quire_prefix_owners_validate(&owners, n_owned);
        for (uint32_t k = 0; k < N_CANDIDATES; k++) {
            is_there |= owner != 0 && owner_of[k] == owner;
        }
        found = owner != 0 ? quire_prefix_owners_find(&owners, owner) : QUIRE_NODE_NULL;
        assert_int_equal(found != QUIRE_NODE_NULL, is_there);
        if (is_there) {
            assert_int_equal(quire_prefix_node_at(&nodes, found)->owner, owner);
        }
    }
    quire_prefix_owners_fini(&owners);
    quire_prefix_nodes_fini(&nodes);
    assert_int_equal(memory.n_live, 0);
}

/* ---- ended nodes ---- */

/* A long chain is not followed to its end. */
static void test_ghost_chain(void **state)
{
    quire_ghosts ghosts;
    test_memory memory;

    (void)state;
    test_memory_init(&memory);
    assert_int_equal(quire_ghosts_init(&ghosts, &memory.allocator, 1000), QUIRE_OK);
    for (uint64_t i = 0; i < 1000; i++) {
        const quire_ghost ghost = { .key = i, .hash = i }; /* the upper half chooses the chain */

        quire_ghosts_add(&ghosts, &ghost);
    }
    quire_ghosts_validate(&ghosts);
    assert_non_null(quire_ghosts_find(&ghosts, 999));
    assert_null(quire_ghosts_find(&ghosts, 0));
    quire_ghosts_fini(&ghosts);
    assert_int_equal(memory.n_live, 0);
}

/* ---- seeds ---- */

/* The shape of the same siblings, as a sum over their places. */
static uint64_t shape_of(uint32_t seed)
{
    quire_prefix_nodes nodes;
    uint64_t sum = 0;
    uint32_t parent;

    quire_prefix_nodes_init(&nodes, quire_allocator_default(), 1, PT);
    nodes.seed = seed;
    assert_int_equal(quire_prefix_nodes_plan(&nodes), QUIRE_OK);
    parent = quire_prefix_nodes_take(&nodes, QUIRE_NODE_ROOT);
    for (uint32_t i = 0; i < N_CHILDREN; i++) {
        uint32_t id;

        assert_int_equal(quire_prefix_nodes_plan(&nodes), QUIRE_OK);
        id = quire_prefix_nodes_take(&nodes, QUIRE_NODE_PAGE);
        quire_prefix_node_at(&nodes, id)->parent = parent;
        quire_prefix_node_at(&nodes, id)->n_tokens = 1;
        quire_prefix_node_tokens(&nodes, quire_prefix_node_at(&nodes, id))[0] = (int32_t)i;
        quire_prefix_siblings_add(&nodes, parent, id);
    }
    assert_int_equal(quire_prefix_siblings_validate(&nodes, parent), N_CHILDREN);
    for (uint32_t id = 1; id < nodes.id_end; id++) {
        sum = sum * 31 + quire_prefix_node_at(&nodes, id)->left;
    }
    quire_prefix_nodes_fini(&nodes);
    return sum;
}

/* The shape of siblings and the place of a path depend on the seed, not on the tokens alone. */
static void test_seeds(void **state)
{
    (void)state;
    assert_int_equal(shape_of(1), shape_of(1));
    assert_true(shape_of(1) != shape_of(2));
    for (uint64_t i = 0; i < 2; i++) {
        quire_cache_opts cache_opts = test_opts(4);
        quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
        quire_prefix_key key = { .identity = { 1, 2 } };
        quire_prefix *trees[2];
        uint64_t hashes[2];
        test_cache t[2];

        for (uint64_t k = 0; k < 2; k++) {
            test_cache_create(&t[k], &cache_opts, 0, 0);
            opts.cache = t[k].cache;
            opts.seed = i == 0 ? 5 : 5 + k;
            assert_int_equal(quire_prefix_create(&trees[k], &opts), QUIRE_OK);
            hashes[k] = quire_prefix_walk_to(trees[k], &key, NULL, 0, NULL).hash;
        }
        assert_int_equal(hashes[0] == hashes[1], i == 0);
        for (uint64_t k = 0; k < 2; k++) {
            quire_prefix_destroy(trees[k]);
            test_cache_destroy(&t[k]);
        }
    }
}

/* ---- hashes ---- */

#define N_CRAFTED 64u
#define N_SALT    8u /* words of four bytes */

/* Texts that have one XXH3 without a seed. Words that equal words of XXH3's own secret are a factor
 * 0 of its products, so the words beside them may be any. */
static void test_crafted(void **state)
{
    static const uint64_t identity[2] = { 1, 2 };
    const uint64_t seed = 0x9e3779b97f4a7c15u;
    int32_t page[64] = { [0] = 0x396cfeb8, [16] = 0x2c81017c };
    int32_t salt[N_SALT] = { 0x396cfeb8, (int32_t)0xbe4ba423u };
    uint64_t pages[N_CRAFTED], roots[N_CRAFTED], plain[2];

    (void)state;
    for (uint32_t i = 0; i < N_CRAFTED; i++) {
        page[1] = (int32_t)i;
        page[17] = (int32_t)(N_CRAFTED - i);
        salt[2] = (int32_t)i;
        plain[0] = i == 0 ? quire_prefix_hash_add(0, page, 64) : plain[0];
        plain[1] = i == 0 ? quire_prefix_hash_add(0, salt, N_SALT) : plain[1];
        assert_true(quire_prefix_hash_add(0, page, 64) == plain[0]);
        assert_true(quire_prefix_hash_add(0, salt, N_SALT) == plain[1]);
        pages[i] = quire_prefix_hash_add(seed, page, 64);
        roots[i] = quire_prefix_hash_key(seed, identity, salt, sizeof salt);
        for (uint32_t j = 0; j < i; j++) {
            assert_true(pages[i] != pages[j] && roots[i] != roots[j]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_siblings), cmocka_unit_test(test_index),
        cmocka_unit_test(test_owners),   cmocka_unit_test(test_ghost_chain),
        cmocka_unit_test(test_seeds),    cmocka_unit_test(test_crafted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
