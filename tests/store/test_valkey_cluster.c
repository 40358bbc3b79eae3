/* test_valkey_cluster.c - the shared store in a cluster of three servers: slots find their nodes,
 * and stay found while one moves or a node dies.
 *
 * SPDX-License-Identifier: MIT */
#include "redis_kit.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/valkey/valkey_internal.h"

#define NODES 3u

static redis_server nodes[NODES];
static char ids[NODES][41];
static redis_server all; /* the URL of all of them */

/* On a busy machine a node may not answer for many seconds; with a short timeout the others would
 * call it failed, and answer nothing for twice the timeout. */
static const char *const words[] = { "--cluster-enabled",
                                     "yes",
                                     "--cluster-node-timeout",
                                     "30000",
                                     "--cluster-require-full-coverage",
                                     "no",
                                     NULL };

static void cluster_await(uint32_t node, const char *info)
{
    for (uint32_t i = 0; strstr(REDIS_ASK(&nodes[node], "CLUSTER", "INFO"), info) == NULL; i++) {
        assert_true(i < 6000);
        (void)poll(NULL, 0, 10);
    }
}

static void slots_assign(void)
{
    static const char *const ranges[NODES][2] = { { "0", "5460" },
                                                  { "5461", "10922" },
                                                  { "10923", "16383" } };

    for (uint32_t i = 0; i < NODES; i++) {
        char port[8];

        (void)snprintf(ids[i], sizeof ids[i], "%s", REDIS_ASK(&nodes[i], "CLUSTER", "MYID"));
        assert_string_equal(
            REDIS_ASK(&nodes[i], "CLUSTER", "ADDSLOTSRANGE", ranges[i][0], ranges[i][1]), "OK");
        (void)snprintf(port, sizeof port, "%u", i + 1);
        assert_string_equal(REDIS_ASK(&nodes[i], "CLUSTER", "SET-CONFIG-EPOCH", port), "OK");
    }
}

/* The port of the cluster's bus is by default 10000 above, which may be beyond all ports. */
static void node_start(redis_server *node)
{
    const char *args[16];
    char bus[8];
    uint32_t n = 0;

    for (; words[n] != NULL; n++) {
        args[n] = words[n];
    }
    (void)snprintf(bus, sizeof bus, "%u", redis_port());
    args[n++] = "--cluster-port";
    args[n++] = bus;
    args[n] = NULL;
    redis_start(node, args);
    (void)snprintf(node->bus, sizeof node->bus, "%s", bus);
}

static void cluster_need(void)
{
    redis_need();
    if (all.url[0] != '\0') {
        return;
    }
    for (uint32_t i = 0; i < NODES; i++) {
        node_start(&nodes[i]);
    }
    slots_assign();
    for (uint32_t i = 1; i < NODES; i++) {
        char port[8];

        (void)snprintf(port, sizeof port, "%u", nodes[i].port);
        assert_string_equal(
            REDIS_ASK(&nodes[0], "CLUSTER", "MEET", "127.0.0.1", port, nodes[i].bus), "OK");
    }
    for (uint32_t i = 0; i < NODES; i++) {
        cluster_await(i, "cluster_known_nodes:3");
        cluster_await(i, "cluster_slots_ok:16384");
        cluster_await(i, "cluster_state:ok");
    }
    /* One node is enough to begin. */
    (void)snprintf(all.url, sizeof all.url, "valkey://127.0.0.1:%u", nodes[1].port);
}

static int end(void **state)
{
    for (uint32_t i = 0; i < NODES; i++) {
        if (nodes[i].dir[0] != '\0') {
            redis_stop(&nodes[i]);
        }
    }
    return redis_kit_end(state);
}

static quire_store *store_new(uint32_t timeout_ms)
{
    quire_valkey_store_opts opts = redis_opts(&all);
    quire_store *store;

    opts.timeout_ms = timeout_ms;
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    return store;
}

/* Until the nodes that the map names are connected. */
static void put_until_all(quire_store *store, const test_text *text)
{
    for (uint32_t i = 0; i < text->n_pages; i++) {
        for (uint32_t lap = 0; redis_put(store, &text->pages[i]) != QUIRE_STORE_OK; lap++) {
            assert_true(lap < 6000);
            (void)poll(NULL, 0, 10);
        }
    }
}

static void count_until_all(quire_store *store, const test_text *text)
{
    for (uint32_t lap = 0; redis_count(store, text) != text->n_pages; lap++) {
        assert_true(lap < 6000);
        (void)poll(NULL, 0, 10);
    }
}

static void test_slots(void **state)
{
    quire_store *a;
    quire_store *b;
    test_text text;

    (void)state;
    cluster_need();
    a = store_new(20000);
    b = store_new(20000);
    test_text_make(&text, 32, 1, "a");
    put_until_all(a, &text);
    count_until_all(b, &text);
    for (uint32_t i = 0; i < NODES; i++) { /* every node has some */
        assert_string_not_equal(REDIS_ASK(&nodes[i], "KEYS", "*:{*"), "");
    }
    /* Nothing was sent to a wrong node. */
    assert_int_equal(quire_vk_self(b)->cluster->moved_total, 0);
    redis_drop_text(a, &text.pages[16], QUIRE_STORE_DROP_TEXT);
    assert_int_equal(redis_count(a, &text), 16);
    redis_drop_salt(b, "a", QUIRE_STORE_DROP_SALT);
    assert_int_equal(redis_count(b, &text), 0);
    redis_close(a);
    redis_close(b);
}

/* ---- a slot moves ---- */

static long long current_epoch(uint32_t node)
{
    static const char name[] = "cluster_current_epoch:";
    const char *at = strstr(REDIS_ASK(&nodes[node], "CLUSTER", "INFO"), name);

    assert_non_null(at);
    return strtoll(at + strlen(name), NULL, 10);
}

/* Until the node knows the newest epoch of the cluster. A node that takes a slot with an older
 * epoch than the slot's owner gives it back when the owner's next ping comes, and in the end each
 * of the two says that the other one has the slot. */
static void epoch_await(uint32_t node)
{
    for (uint32_t i = 0; i < NODES; i++) {
        const long long epoch = current_epoch(i);

        for (uint32_t lap = 0; current_epoch(node) < epoch; lap++) {
            assert_true(lap < 6000);
            (void)poll(NULL, 0, 10);
        }
    }
}

static void setslot(uint32_t at, uint32_t slot, const char *how, uint32_t node)
{
    char number[8];

    if (strcmp(how, "NODE") == 0 && at == node) {
        epoch_await(at);
    }
    (void)snprintf(number, sizeof number, "%u", slot);
    assert_string_equal(REDIS_ASK(&nodes[at], "CLUSTER", "SETSLOT", number, how, ids[node]), "OK");
}

/* Move a key of a slot to another node. Returns false when there is none. */
static bool key_move(uint32_t from, uint32_t to, uint32_t slot)
{
    char number[8];
    char port[8];
    char key[160];

    (void)snprintf(number, sizeof number, "%u", slot);
    (void)snprintf(port, sizeof port, "%u", nodes[to].port);
    (void)snprintf(key, sizeof key, "%s",
                   REDIS_ASK(&nodes[from], "CLUSTER", "GETKEYSINSLOT", number, "1"));
    if (key[0] == '\0') {
        return false;
    }
    assert_string_equal(REDIS_ASK(&nodes[from], "MIGRATE", "127.0.0.1", port, key, "0", "5000"),
                        "OK");
    return true;
}

static uint32_t node_of(uint32_t slot)
{
    return slot <= 5460 ? 0 : slot <= 10922 ? 1 : 2;
}

static uint32_t slot_of(const quire_store *store, const quire_page_text *page)
{
    quire_valkey_name name;

    quire_valkey_name_head(&name, quire_vk_self(store)->key.fleet, &page->root, &page->key);
    return quire_valkey_slot(name.text, name.n);
}

static void test_moved_slot(void **state)
{
    quire_vk_cluster *c;
    quire_store *store;
    test_text text;
    uint32_t from, to, slot;

    (void)state;
    cluster_need();
    store = store_new(20000);
    c = quire_vk_self(store)->cluster;
    test_text_make(&text, 4, 7, "moved");
    put_until_all(store, &text);
    count_until_all(store, &text);
    slot = slot_of(store, &text.pages[0]);
    from = node_of(slot);
    to = (from + 1) % NODES;
    /* While a move is under way, keys that are still here are found. Keys that have moved are found
     * by ASK. */
    setslot(to, slot, "IMPORTING", from);
    setslot(from, slot, "MIGRATING", to);
    assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_OK);
    while (key_move(from, to, slot)) {
    }
    assert_int_equal(c->asked_total, 0);
    assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_OK);
    assert_true(c->asked_total > 0);
    assert_int_equal(redis_query(store, &text.pages[0]), QUIRE_STORE_OK);
    assert_int_equal(redis_put_version(store, &text.pages[0], 1), QUIRE_STORE_OK);
    assert_int_equal(c->moved_total, 0);
    /* Moved: the store finds the new place by itself. */
    setslot(to, slot, "NODE", to);
    setslot(from, slot, "NODE", to);
    assert_int_equal(redis_get_version(store, &text.pages[0], 1), QUIRE_STORE_OK);
    assert_true(c->moved_total > 0);
    assert_int_equal(redis_put(store, &text.pages[1]), QUIRE_STORE_OK);
    redis_close(store);
}

/* A page that is there. While nodes disagree or a connection is new, a get may end without the
 * answer of its node; it never says that the page is absent. */
static void get_there(quire_store *store, const quire_page_text *page)
{
    quire_store_result result;

    for (uint32_t lap = 0; (result = redis_get(store, page)) != QUIRE_STORE_OK; lap++) {
        assert_true(result == QUIRE_STORE_CLOSED || result == QUIRE_STORE_IO);
        assert_true(lap < 6000);
        (void)poll(NULL, 0, 10);
    }
}

/* Slots move one after the other, and reading goes on between all steps of a move: read pages are
 * right, and none is lost. Slots are not moved back: nodes that do not know of the first move yet
 * would contradict. */
static void test_moving_slots(void **state)
{
    quire_store *store;
    test_text text;

    (void)state;
    cluster_need();
    store = store_new(20000);
    test_text_make(&text, 8, 9, "moving");
    put_until_all(store, &text);
    count_until_all(store, &text);
    for (uint32_t i = 0; i < text.n_pages; i++) {
        const uint32_t slot = slot_of(store, &text.pages[i]);
        const uint32_t from = node_of(slot);
        const uint32_t to = (from + 1) % NODES;

        setslot(to, slot, "IMPORTING", from);
        setslot(from, slot, "MIGRATING", to);
        get_there(store, &text.pages[i]);
        (void)key_move(from, to, slot);
        (void)redis_get(store, &text.pages[i]); /* half of it is here: a miss */
        while (key_move(from, to, slot)) {
        }
        get_there(store, &text.pages[i]);
        setslot(to, slot, "NODE", to);
        get_there(store, &text.pages[i]);
        setslot(from, slot, "NODE", to);
        get_there(store, &text.pages[i]);
    }
    count_until_all(store, &text);
    redis_close(store);
}

/* ---- a node dies ---- */

static void test_dead_node(void **state)
{
    uint32_t n_left = 0;
    quire_store *store;
    test_text text;

    (void)state;
    cluster_need();
    store = store_new(200);
    test_text_make(&text, 32, 3, "dead");
    put_until_all(store, &text);
    count_until_all(store, &text);
    redis_signal(&nodes[0], SIGSTOP);
    for (uint32_t lap = 0; lap < 3; lap++) {
        n_left = redis_count(store, &text); /* the call ends with any result */
    }
    assert_true(n_left < 32);
    redis_signal(&nodes[0], SIGCONT);
    count_until_all(store, &text);
    redis_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_moved_slot),
        cmocka_unit_test(test_moving_slots),
        cmocka_unit_test(test_dead_node),
    };

    return cmocka_run_group_tests(tests, NULL, end);
}
