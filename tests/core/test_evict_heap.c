/* test_evict_heap.c - heaps against a sorted list.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"
#include "seed.h"

#include "core/evict/evict_heap.h"

#include <stdlib.h>

typedef struct heap_case {
    test_memory memory;
    quire_prefix_nodes nodes;
    uint32_t root;
    uint32_t n_nodes;
    uint32_t *ids;
    bool *is_in;
} heap_case;

static quire_evict_heap heap_of(heap_case *c, uint32_t which)
{
    return (quire_evict_heap){ &c->nodes, which, &c->root };
}

static void case_start(heap_case *c, uint32_t n_nodes)
{
    *c = (heap_case){ .n_nodes = n_nodes };
    test_memory_init(&c->memory);
    quire_prefix_nodes_init(&c->nodes, &c->memory.allocator, 1, PAGE_TOKENS);
    c->ids = calloc(n_nodes, sizeof(*c->ids));
    c->is_in = calloc(n_nodes, sizeof(*c->is_in));
    assert_true(c->ids != NULL && c->is_in != NULL);
    for (uint32_t i = 0; i < n_nodes; i++) {
        assert_int_equal(quire_prefix_nodes_plan(&c->nodes), QUIRE_OK);
        c->ids[i] = quire_prefix_nodes_take(&c->nodes, QUIRE_NODE_PAGE);
    }
}

static void case_end(heap_case *c)
{
    quire_prefix_nodes_fini(&c->nodes);
    assert_int_equal(c->memory.n_live, 0);
    free(c->ids);
    free(c->is_in);
}

static quire_prefix_node *node_of(const heap_case *c, uint32_t i)
{
    return quire_prefix_node_at(&c->nodes, c->ids[i]);
}

/* Whether node i comes before node k. */
static bool comes_before(const heap_case *c, uint32_t which, uint32_t i, uint32_t k)
{
    const quire_prefix_node *a = node_of(c, i);
    const quire_prefix_node *b = node_of(c, k);

    if (a->links[which].key != b->links[which].key) {
        return a->links[which].key < b->links[which].key;
    }
    return a->used_tick != b->used_tick ? a->used_tick < b->used_tick : c->ids[i] < c->ids[k];
}

static uint32_t first_of(const heap_case *c, uint32_t which)
{
    uint32_t first = UINT32_MAX;

    for (uint32_t i = 0; i < c->n_nodes; i++) {
        if (c->is_in[i] && (first == UINT32_MAX || comes_before(c, which, i, first))) {
            first = i;
        }
    }
    return first == UINT32_MAX ? QUIRE_NODE_NULL : c->ids[first];
}

/* Random adds and removes in either set of links, often with equal keys: the first node is always
 * the smallest, and the heap is in order. */
static void test_random(void **state)
{
    quire_rng rng = test_rng(11);
    heap_case c;

    (void)state;
    for (uint32_t which = 0; which < QUIRE_NODE_LINKS; which++) {
        uint32_t n = 0;

        case_start(&c, 150);
        for (uint32_t op = 0; op < 10000; op++) {
            uint32_t i = quire_rng_below(&rng, c.n_nodes);

            if (c.is_in[i]) {
                quire_evict_heap_remove(heap_of(&c, which), c.ids[i]);
            } else {
                node_of(&c, i)->used_tick = quire_rng_below(&rng, 4);
                quire_evict_heap_add(heap_of(&c, which), c.ids[i], quire_rng_below(&rng, 40));
            }
            c.is_in[i] = !c.is_in[i];
            n = c.is_in[i] ? n + 1 : n - 1;
            assert_int_equal(quire_evict_heap_validate(heap_of(&c, which)), n);
            assert_int_equal(c.root, first_of(&c, which));
        }
        case_end(&c);
    }
}

/* A node is in two heaps by different links, and leaves one of them. */
static void test_two_heaps(void **state)
{
    heap_case c;
    uint32_t other = QUIRE_NODE_NULL;
    quire_evict_heap second;

    (void)state;
    case_start(&c, 50);
    second = (quire_evict_heap){ &c.nodes, 1, &other };
    for (uint32_t i = 0; i < c.n_nodes; i++) {
        quire_evict_heap_add(heap_of(&c, 0), c.ids[i], i);
        quire_evict_heap_add(second, c.ids[i], 1000 - i);
    }
    assert_int_equal(c.root, c.ids[0]);
    assert_int_equal(other, c.ids[49]);
    quire_evict_heap_remove(second, c.ids[49]);
    assert_int_equal(other, c.ids[48]);
    assert_int_equal(quire_evict_heap_validate(heap_of(&c, 0)), 50);
    assert_int_equal(quire_evict_heap_validate(second), 49);
    case_end(&c);
}

static uint32_t log2_of(uint32_t n)
{
    uint32_t bits = 0;

    while (n > 1) {
        n /= 2;
        bits++;
    }
    return bits;
}

/* Every call walks the rightmost path, which stays short for any order of keys; the leftmost path
 * may be as long as the heap. Removing all nodes from the bottom of the leftmost path upwards, from
 * the top downwards and at random works too. */
static void test_worst_orders(void **state)
{
    const uint32_t n = 4096;
    quire_rng rng = test_rng(12);
    heap_case c;

    (void)state;
    for (uint32_t order = 0; order < 4; order++) {
        case_start(&c, n);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t keys[4] = { i, n - i, i % 2 == 0 ? i : 2 * n - i, 7 };
            uint32_t limit = log2_of(i + 2);

            quire_evict_heap_add(heap_of(&c, 0), c.ids[i], keys[order]);
            assert_true(quire_prefix_node_at(&c.nodes, c.root)->links[0].n_path <= limit);
        }
        assert_int_equal(quire_evict_heap_validate(heap_of(&c, 0)), n);
        for (uint32_t left = n; left > 0; left--) {
            uint32_t id = c.root;

            if (left % 3 == 1) { /* the deepest on the left */
                while (quire_prefix_node_at(&c.nodes, id)->links[0].left != QUIRE_NODE_NULL) {
                    id = quire_prefix_node_at(&c.nodes, id)->links[0].left;
                }
            } else if (left % 3 == 2) {
                for (uint32_t steps = quire_rng_below(&rng, 20); steps > 0; steps--) {
                    uint32_t next = quire_evict_heap_next(heap_of(&c, 0), id);

                    id = next != QUIRE_NODE_NULL ? next : id;
                }
            }
            quire_evict_heap_remove(heap_of(&c, 0), id);
            if (left % 256 == 0) {
                assert_int_equal(quire_evict_heap_validate(heap_of(&c, 0)), left - 1);
            }
        }
        assert_int_equal(c.root, QUIRE_NODE_NULL);
        case_end(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_two_heaps),
        cmocka_unit_test(test_worst_orders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
