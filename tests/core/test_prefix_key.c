/* test_prefix_key.c - keys of texts: fixed values on every machine, chains from the root, and the
 * keys of a tree's nodes.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include <stdio.h>
#include <string.h>

#define P PAGE_TOKENS

static const char *hex_of(const quire_page_key *key)
{
    static char hex[2 * QUIRE_PAGE_KEY_BYTES + 1];

    for (uint32_t i = 0; i < QUIRE_PAGE_KEY_BYTES; i++) {
        (void)snprintf(hex + (size_t)2 * i, 3, "%02x", key->bytes[i]);
    }
    return hex;
}

static bool is_same(const quire_page_key *a, const quire_page_key *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* The roots and three pages behind each: 64 tokens, 64 other tokens, 5 tokens. Stored data depends
 * on these values. They are the output of xxhsum -H2 for hand-made inputs. */
static void test_golden(void **state)
{
    static const struct {
        quire_prefix_key key;
        const char *keys[4];
    } cases[] = {
        { { .identity = { 0, 0 } },
          { "c2aa4698fe5db84bec90a39e74cd5577", "5de4a27349bf4be0669028effb5f2e5a",
            "7f81b3813abeca03ffc1ce5ff71ffc58", "147e400d77e2fe00f0ddaddfd0d25ade" } },
        { { .identity = { 0x0123456789abcdefu, 0xfedcba9876543210u },
            .salt = "tenant",
            .salt_bytes = 6 },
          { "46563b271178e8af92c559c0844e7bdb", "c9f43befafffe37e26948c9986318ace",
            "c6e0cdc8b39aa7b362b9e69ded7785b7", "f03b417828d8119c176b0fffd5007908" } },
    };
    int32_t tokens[64 + 64 + 5];

    (void)state;
    for (uint32_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        tokens[i] = (int32_t)(i * 2654435761u) >> (i % 7); /* negative ones, too */
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_page_key key;

        quire_prefix_key_root(&cases[i].key, &key);
        assert_string_equal(hex_of(&key), cases[i].keys[0]);
        quire_prefix_key_add(&key, tokens, 64, &key);
        assert_string_equal(hex_of(&key), cases[i].keys[1]);
        quire_prefix_key_add(&key, tokens + 64, 64, &key);
        assert_string_equal(hex_of(&key), cases[i].keys[2]);
        quire_prefix_key_add(&key, tokens + 128, 5, &key);
        assert_string_equal(hex_of(&key), cases[i].keys[3]);
    }
}

/* The key depends on every input and on the boundaries between inputs. */
static void test_ingredients(void **state)
{
    const quire_prefix_key keys[] = {
        { .identity = { 1, 2 }, .salt = "ab", .salt_bytes = 2 },
        { .identity = { 1, 2 }, .salt = "ab", .salt_bytes = 1 },
        { .identity = { 1, 2 }, .salt = "a\0", .salt_bytes = 2 },
        { .identity = { 1, 2 } },
        { .identity = { 2, 1 } },
        { .identity = { 1, 3 } },
    };
    quire_page_key roots[6];
    const int32_t tokens[] = { 1, 2, 3, 0 };
    quire_page_key pages[5];

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        quire_prefix_key_root(&keys[i], &roots[i]);
        for (uint32_t j = 0; j < i; j++) {
            assert_false(is_same(&roots[i], &roots[j]));
        }
    }
    quire_prefix_key_add(&roots[0], tokens, 3, &pages[0]);
    quire_prefix_key_add(&roots[1], tokens, 3, &pages[1]);
    quire_prefix_key_add(&roots[0], tokens, 2, &pages[2]);
    quire_prefix_key_add(&roots[0], tokens, 4, &pages[3]);
    quire_prefix_key_add(&pages[2], tokens + 2, 1, &pages[4]); /* the same text, cut elsewhere */
    for (uint32_t i = 0; i < 5; i++) {
        for (uint32_t j = 0; j < i; j++) {
            assert_false(is_same(&pages[i], &pages[j]));
        }
    }
}

/* The keys of the first text's pages, which the visit must find. */
typedef struct found {
    const quire_page_key *keys; /* [n] */
    uint32_t n;
    uint32_t n_found;
} found;

static int node_find(void *ctx, const quire_prefix_node_info *node)
{
    found *f = ctx;

    for (uint32_t i = 0; i < f->n; i++) {
        f->n_found += is_same(&node->key, &f->keys[i]);
    }
    return 0;
}

static uint32_t count_found(const test_prefix *p, const quire_page_key *keys, uint32_t n)
{
    found f = { .keys = keys, .n = n };

    assert_int_equal(quire_prefix_visit(p->tree, node_find, &f), 0);
    return f.n_found;
}

/* Nodes have the keys of their texts under every seed; a growing node gets a new key. */
static void test_nodes(void **state)
{
    int32_t tokens[3 * P];
    quire_page_key keys[4];
    quire_prefix_key key = test_key();

    (void)state;
    test_text(tokens, 3 * P, 1);
    quire_prefix_key_root(&key, &keys[0]);
    quire_prefix_key_add(&keys[0], tokens, P, &keys[0]);
    quire_prefix_key_add(&keys[0], tokens + P, P, &keys[1]);
    quire_prefix_key_add(&keys[1], tokens + (size_t)2 * P, 1, &keys[2]);
    quire_prefix_key_add(&keys[1], tokens + (size_t)2 * P, P, &keys[3]);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
        test_prefix p;
        test_run run;

        opts.seed = seed;
        test_prefix_create(&p, 8, &opts);
        run = test_run_start(&p, tokens, P);
        test_run_extend(&p, &run, tokens, 2 * P + 1);
        assert_int_equal(count_found(&p, keys, 3), 3);
        test_run_extend(&p, &run, tokens, 3 * P);
        assert_int_equal(count_found(&p, keys + 2, 1), 0);
        assert_int_equal(count_found(&p, keys + 3, 1), 1);
        test_run_end(&p, &run);
        test_prefix_destroy(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_ingredients),
        cmocka_unit_test(test_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
