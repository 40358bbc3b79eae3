/* test_valkey_store.c - the shared store with a server that works: on all machines, stored pages
 * are found and dropped pages are not. Nobody without the secret plants a page.
 *
 * SPDX-License-Identifier: MIT */
#include "redis_kit.h"

#include "store/valkey/valkey_key.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static redis_server server;

static void server_need(void)
{
    redis_need();
    if (server.pid == 0) {
        redis_start(&server, NULL);
    }
    assert_string_equal(REDIS_ASK(&server, "FLUSHALL"), "OK");
}

static int end(void **state)
{
    if (server.pid > 0) {
        redis_stop(&server);
    }
    return redis_kit_end(state);
}

static quire_store *store_new(void)
{
    const quire_valkey_store_opts opts = redis_opts(&server);
    quire_store *store = redis_open(&opts);

    redis_await(store, QUIRE_STORE_READY);
    return store;
}

/* ---- records ---- */

static void test_round_trip(void **state)
{
    quire_store_stats stats;
    quire_store *store;
    test_text text;

    (void)state;
    server_need();
    store = store_new();
    test_text_make(&text, 3, 1, "a");
    assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_ABSENT);
    assert_int_equal(redis_query(store, &text.pages[0]), QUIRE_STORE_ABSENT);
    assert_int_equal(quire_store_has(store, &text.pages[0].key, 1), 0);
    redis_put_all(store, &text);
    assert_int_equal(quire_store_has(store, &text.pages[0].key, 1), 1);
    assert_int_equal(redis_count(store, &text), 3);
    assert_int_equal(redis_query(store, &text.pages[0]), QUIRE_STORE_OK);
    /* Known: nothing is written. */
    assert_int_equal(redis_put(store, &text.pages[0]), QUIRE_STORE_OK);
    stats = redis_stats(store);
    assert_int_equal(stats.puts_total, 3);
    assert_int_equal(stats.known_total, 1);
    assert_int_equal(stats.results_total[QUIRE_STORE_OK], 3);
    assert_int_equal(stats.results_total[QUIRE_STORE_ABSENT], 1);
    assert_int_equal(stats.reads_total, 3);
    assert_true(stats.read_us_total > 0);
    assert_int_equal(stats.gets_now + stats.puts_now, 0);
    /* A replacing put takes the place of the stored record. */
    assert_int_equal(redis_put_version(store, &text.pages[0], 1), QUIRE_STORE_OK);
    assert_int_equal(redis_get_version(store, &text.pages[0], 1), QUIRE_STORE_OK);
    redis_close(store);
}

/* A node finds the pages that another node has put. A node that was closed and opened again finds
 * its own. */
static void test_nodes(void **state)
{
    quire_store *a;
    quire_store *b;
    test_text text;

    (void)state;
    server_need();
    a = store_new();
    b = store_new();
    test_text_make(&text, 4, 1, "a");
    redis_put_all(a, &text);
    assert_int_equal(redis_count(b, &text), 4);
    redis_close(a);
    a = store_new();
    assert_int_equal(redis_count(a, &text), 4);
    redis_close(a);
    redis_close(b);
}

static void test_chunks(void **state)
{
    static const size_t sizes[] = { 100, QUIRE_PAGE_RECORD_ALIGN, 981000, 983040, 2500000 };
    char most[16];
    quire_store *store;
    test_text text;

    (void)state;
    server_need();
    store = store_new();
    test_text_make(&text, 5, 1, "a");
    for (uint32_t lap = 0; lap < 2; lap++) { /* with another guess of the number of chunks */
        for (uint32_t i = 0; i < 5; i++) {
            quire_transfer *t = test_put_sized(&text.pages[i], 0, sizes[i]);

            store->ops->put(store, &t, 1);
            assert_ptr_equal(redis_wait(store), t);
            assert_int_equal(t->result, QUIRE_STORE_OK);
            quire_transfer_free(t);
            t = test_get_sized(&text.pages[i], sizes[i]);
            store->ops->get(store, &t, 1);
            assert_ptr_equal(redis_wait(store), t);
            assert_int_equal(t->result, QUIRE_STORE_OK);
            assert_true(test_is_payload_sized(&t->found, 0, sizes[i]));
            quire_transfer_free(t);
        }
    }
    /* No value reaches 1 MiB. */
    (void)snprintf(most, sizeof most, "%u", QUIRE_VALKEY_CHUNK_BYTES);
    assert_string_equal(REDIS_ASK(&server, "EVAL",
                                  "local n = 0 for _, k in ipairs(redis.call('KEYS', '*:{*')) do "
                                  "n = math.max(n, redis.call('STRLEN', k)) end return n",
                                  "0"),
                        most);
    /* A record that is larger than the reader's buffer is of no use, and harms nobody. */
    assert_int_equal(redis_get(store, &text.pages[4]), QUIRE_STORE_FORMAT);
    redis_close(store);
}

/* Many at once, from one call. */
static void test_pipeline(void **state)
{
    quire_transfer *all[32];
    quire_store *store;
    test_text text;

    (void)state;
    server_need();
    store = store_new();
    test_text_make(&text, 32, 1, "a");
    for (uint32_t i = 0; i < 32; i++) {
        all[i] = test_put_new(&text.pages[i], 0);
    }
    store->ops->put(store, all, 32);
    for (uint32_t i = 0; i < 32; i++) {
        quire_transfer *t = redis_wait(store);

        assert_int_equal(t->result, QUIRE_STORE_OK);
        quire_transfer_free(t);
    }
    for (uint32_t i = 0; i < 32; i++) {
        all[i] = test_get_new(&text.pages[i]);
    }
    store->ops->get(store, all, 32);
    for (uint32_t i = 0; i < 32; i++) {
        quire_transfer *t = redis_wait(store);

        assert_int_equal(t->result, QUIRE_STORE_OK);
        assert_true(test_is_payload(&t->found, 0));
        quire_transfer_free(t);
    }
    redis_close(store);
}

/* Every key has a time to live, and records do not outlive it. */
static void test_ttl(void **state)
{
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    server_need();
    opts = redis_opts(&server);
    opts.ttl_s = 1;
    opts.quota_bytes = 1u << 30;
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    test_text_make(&text, 1, 1, "a");
    redis_put_all(store, &text);
    assert_string_equal(REDIS_ASK(&server, "EVAL",
                                  "for _, k in ipairs(redis.call('KEYS', '*')) do "
                                  "if redis.call('TTL', k) < 0 then return k end end return 'all'",
                                  "0"),
                        "all");
    while (strcmp(REDIS_ASK(&server, "KEYS", "*{*"), "") != 0) {
        (void)poll(NULL, 0, 20);
    }
    assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_ABSENT);
    redis_put_all(store, &text);
    redis_close(store);
}

/* ---- access rights ---- */

static void test_acl(void **state)
{
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    server_need();
    /* The rule of docs/tiers.md. */
    assert_string_equal(REDIS_ASK(&server, "ACL", "SETUSER", "quire", "on", ">word", "~quire:*",
                                  "&quire:*", "-@all", "+@read", "+@write", "+@connection",
                                  "+@pubsub", "+cluster|slots", "-@dangerous"),
                        "OK");
    opts = redis_opts(&server);
    opts.user = "quire";
    opts.password = "word";
    opts.quota_bytes = 1u << 30;
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    test_text_make(&text, 3, 1, "a");
    redis_put_all(store, &text);
    assert_int_equal(redis_count(store, &text), 3);
    assert_int_equal(redis_query(store, &text.pages[0]), QUIRE_STORE_OK);
    redis_drop_text(store, &text.pages[1], QUIRE_STORE_DROP_TEXT);
    assert_int_equal(redis_count(store, &text), 1);
    redis_drop_salt(store, "a", QUIRE_STORE_DROP_SALT);
    assert_int_equal(redis_count(store, &text), 0);
    redis_close(store);
    opts.password = "wrong";
    store = redis_open(&opts);
    assert_int_equal(redis_stats(store).state, QUIRE_STORE_DEGRADED);
    assert_non_null(strstr(redis_stats(store).trouble, "WRONGPASS"));
    assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_CLOSED);
    assert_int_equal(redis_put(store, &text.pages[0]), QUIRE_STORE_CLOSED);
    redis_close(store);
    assert_string_equal(REDIS_ASK(&server, "ACL", "DELUSER", "quire"), "1");
}

static void test_password(void **state)
{
    quire_valkey_store_opts opts;
    redis_server guarded = { 0 };
    quire_store *store;
    test_text text;

    (void)state;
    redis_need();
    redis_start(&guarded, (const char *const[]){ "--requirepass", "word", NULL });
    opts = redis_opts(&guarded);
    store = redis_open(&opts);
    assert_int_equal(redis_stats(store).state, QUIRE_STORE_DEGRADED);
    assert_non_null(strstr(redis_stats(store).trouble, "NOAUTH"));
    redis_close(store);
    opts.password = "word";
    store = redis_open(&opts);
    test_text_make(&text, 1, 1, "a");
    redis_put_all(store, &text);
    redis_close(store);
    redis_stop(&guarded);
}

static void test_options(void **state)
{
    static const struct {
        const char *url;
        const char *user;
        const char *secret;
        const char *ca;
        const char *cert;
        uint64_t ttl_s;
        uint32_t timeout_ms;
        const char *says;
    } cases[] = {
        { "http://x", NULL, "", NULL, NULL, 9, 50, "valkey://" },
        { "valkey://x", NULL, NULL, NULL, NULL, 9, 50, "store_key_file" },
        { "valkey://x", NULL, "/nowhere/secret", NULL, NULL, 9, 50, "/nowhere/secret" },
        { "valkey://x", "me", "", NULL, NULL, 9, 50, "store_user needs" },
        { "valkey://x", NULL, "", "/ca", NULL, 9, 50, "TLS" },
        { "valkeys://x", NULL, "", "/nowhere/ca", NULL, 9, 50, "/nowhere/ca" },
        { "valkeys://x", NULL, "", NULL, "/cert", 9, 50, "belong together" },
        { "valkey://x", NULL, "", NULL, NULL, 0, 50, "store_ttl" },
        { "valkey://x", NULL, "", NULL, NULL, 9, 4, "store_timeout" },
        { "valkey://x", NULL, "", NULL, NULL, 9, 60001, "store_timeout" },
    };

    (void)state;
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_valkey_store_opts opts = redis_opts(&server);
        quire_error err = QUIRE_ERROR_INIT;
        quire_store *store;

        opts.url = cases[i].url;
        opts.user = cases[i].user;
        opts.secret_file = cases[i].secret != NULL && cases[i].secret[0] == '\0' ? redis_secret()
                                                                                 : cases[i].secret;
        opts.ca_file = cases[i].ca;
        opts.cert_file = cases[i].cert;
        opts.ttl_s = cases[i].ttl_s;
        opts.timeout_ms = cases[i].timeout_ms;
        assert_true(quire_valkey_store_create(&store, &opts, &err) < 0);
        if (strstr(err.message, cases[i].says) == NULL) {
            fail_msg("case %u: %s", i, err.message);
        }
    }
}

/* ---- bounds ---- */

static void test_quota(void **state)
{
    quire_valkey_store_opts opts;
    quire_store *a;
    quire_store *b;
    test_text text;
    test_text other;

    (void)state;
    server_need();
    opts = redis_opts(&server);
    opts.ttl_s = 1000000; /* one window */
    opts.quota_bytes = 3 * 8192;
    a = redis_open(&opts);
    b = redis_open(&opts);
    test_text_make(&text, 6, 1, "t/1");
    test_text_make(&other, 1, 1, "u/1");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(redis_put(a, &text.pages[i]), QUIRE_STORE_OK);
    }
    assert_int_equal(redis_put(a, &text.pages[3]), QUIRE_STORE_FULL);
    assert_int_equal(redis_stats(a).refused_total, 1);
    assert_int_equal(redis_put(a, &other.pages[0]), QUIRE_STORE_OK); /* another tenant */
    /* The tenant's other salt has the same quota, on another node, which learns with its first
     * write. */
    test_text_make(&text, 6, 2, "t/2");
    (void)redis_put(b, &text.pages[0]);
    assert_int_equal(redis_put(b, &text.pages[1]), QUIRE_STORE_FULL);
    redis_close(a);
    redis_close(b);
}

/* Puts beyond the queue: the oldest go. */
static void test_queue(void **state)
{
    quire_valkey_store_opts opts;
    quire_transfer *all[32];
    quire_store *store;
    test_text text;
    uint32_t n_full = 0;

    (void)state;
    server_need();
    opts = redis_opts(&server);
    opts.queue_bytes = 4 * 1000000;
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    test_text_make(&text, 32, 1, "a");
    for (uint32_t i = 0; i < 32; i++) {
        all[i] = test_put_sized(&text.pages[i], 0, 990000);
    }
    store->ops->put(store, all, 32); /* 8 MiB are sent at once, 4 MB wait */
    for (uint32_t i = 0; i < 32; i++) {
        quire_transfer *t = redis_wait(store);

        assert_true(t->result == QUIRE_STORE_OK || t->result == QUIRE_STORE_FULL);
        n_full += t->result == QUIRE_STORE_FULL;
    }
    assert_true(n_full >= 16);
    assert_int_equal(all[0]->result, QUIRE_STORE_OK);
    assert_int_equal(all[31]->result, QUIRE_STORE_OK);
    assert_int_equal(redis_stats(store).refused_total, n_full);
    for (uint32_t i = 0; i < 32; i++) {
        quire_transfer_free(all[i]);
    }
    redis_close(store);
}

/* A full server: puts are refused, the state says why, reads and drops go on. */
static void test_full(void **state)
{
    quire_store *store;
    quire_store *other;
    test_text text;

    (void)state;
    server_need();
    store = store_new();
    other = store_new();
    test_text_make(&text, 4, 1, "a");
    assert_int_equal(redis_put(store, &text.pages[0]), QUIRE_STORE_OK);
    assert_int_equal(redis_put(store, &text.pages[1]), QUIRE_STORE_OK);
    assert_string_equal(REDIS_ASK(&server, "CONFIG", "SET", "maxmemory", "1"), "OK");
    assert_int_equal(redis_put(store, &text.pages[2]), QUIRE_STORE_IO);
    assert_int_equal(redis_stats(store).state, QUIRE_STORE_DEGRADED);
    assert_non_null(strstr(redis_stats(store).trouble, "writing: OOM"));
    assert_int_equal(redis_put(store, &text.pages[2]), QUIRE_STORE_CLOSED);
    assert_int_equal(redis_count(store, &text), 2);
    {
        const quire_store_drop drop = { .what = QUIRE_STORE_DROP_TEXT,
                                        .key = text.pages[1].key,
                                        .root = text.pages[1].root };

        assert_int_equal(store->ops->drop(store, &drop), QUIRE_IO); /* degraded */
    }
    assert_int_equal(redis_get(store, &text.pages[1]), QUIRE_STORE_ABSENT);
    while (redis_get(other, &text.pages[1]) == QUIRE_STORE_OK) {
    }
    assert_string_equal(REDIS_ASK(&server, "CONFIG", "SET", "maxmemory", "0"), "OK");
    redis_await(store, QUIRE_STORE_READY);
    assert_int_equal(redis_put(store, &text.pages[2]), QUIRE_STORE_OK);
    redis_close(store);
    redis_close(other);
}

/* ---- lies ---- */

/* The name of a key that matches a pattern; the first of them. */
static void key_of(const char *pattern, char *out, size_t n)
{
    const char *keys = REDIS_ASK(&server, "KEYS", pattern);

    (void)snprintf(out, n, "%.*s", (int)strcspn(keys, "\n"), keys);
    assert_true(out[0] != '\0');
}

/* Another value at an offset of a key: a fixed letter would be the stored one now and then. */
static void flip_byte(const char *key, const char *offset)
{
    static const char script[] =
        "local b = redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1]) "
        "return redis.call('SETRANGE', KEYS[1], ARGV[1], string.char((b:byte() + 1) % 256))";

    (void)REDIS_ASK(&server, "EVAL", script, "1", key, offset);
}

static void test_tampered(void **state)
{
    static const char *const patterns[] = { "*}:h", "*}:0" };
    quire_store *store;
    test_text text;

    (void)state;
    server_need();
    store = store_new();
    test_text_make(&text, 1, 1, "a");
    for (uint32_t i = 0; i < 2; i++) {
        char key[128];

        redis_put_all(store, &text);
        key_of(patterns[i], key, sizeof key);
        flip_byte(key, i == 0 ? "50" : "3000");
        assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_CHECKSUM);
        /* The bad record was removed, so the next put writes the page again. */
        assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_ABSENT);
        redis_put_all(store, &text);
        assert_int_equal(redis_count(store, &text), 1);
        (void)REDIS_ASK(&server, "APPEND", key, "x");
        assert_true(redis_get(store, &text.pages[0]) != QUIRE_STORE_OK);
        assert_string_equal(REDIS_ASK(&server, "FLUSHALL"), "OK");
        redis_put_all(store, &text);
        (void)REDIS_ASK(&server, "DEL", key);
        assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_ABSENT);
        redis_put_all(store, &text);
        (void)REDIS_ASK(&server, "DEL", key);
        (void)REDIS_ASK(&server, "LPUSH", key, "of another type");
        assert_int_not_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_OK);
        assert_string_equal(REDIS_ASK(&server, "FLUSHALL"), "OK");
    }
    redis_close(store);
}

/* A record that lies under the key of another text, of the same tenant or of another one. */
static void test_copied(void **state)
{
    char from[2][128];
    quire_store *store;
    test_text text;
    test_text other;

    (void)state;
    server_need();
    store = store_new();
    test_text_make(&other, 1, 2, "b");
    for (uint32_t i = 0; i < 2; i++) {
        char to[128];

        test_text_make(&text, 1, 1, i == 0 ? "a" : "b");
        redis_put_all(store, &text);
        key_of("*}:h", from[0], sizeof from[0]);
        key_of("*}:0", from[1], sizeof from[1]);
        redis_put_all(store, &other); /* its epochs are there */
        for (uint32_t k = 0; k < 2; k++) {
            quire_valkey_name name;

            if (k == 0) {
                quire_valkey_name_head(&name, "00000000", &other.pages[0].root,
                                       &other.pages[0].key);
            } else {
                quire_valkey_name_chunk(&name, "00000000", &other.pages[0].root,
                                        &other.pages[0].key, 0);
            }
            (void)snprintf(to, sizeof to, "quire:%.8s:%s", from[k] + 6, name.text + 15);
            assert_string_equal(REDIS_ASK(&server, "COPY", from[k], to, "REPLACE"), "1");
        }
        /* A copy for another tenant has the wrong epochs. A copy for the same tenant fails the
         * seal. */
        assert_int_equal(redis_get(store, &other.pages[0]),
                         i == 0 ? QUIRE_STORE_ABSENT : QUIRE_STORE_CHECKSUM);
        assert_string_equal(REDIS_ASK(&server, "FLUSHALL"), "OK");
    }
    redis_close(store);
}

/* A fleet with another secret neither finds nor disturbs anything. */
static void test_other_fleet(void **state)
{
    char path[] = "/tmp/quire-secret-XXXXXX";
    const int fd = mkstemp(path);
    quire_valkey_store_opts opts;
    quire_store *a;
    quire_store *b;
    test_text text;

    (void)state;
    server_need();
    assert_int_equal(write(fd, "another secret of thirty-two by.", 32), 32);
    (void)close(fd);
    opts = redis_opts(&server);
    opts.secret_file = path;
    a = store_new();
    b = redis_open(&opts);
    test_text_make(&text, 2, 1, "a");
    redis_put_all(a, &text);
    assert_int_equal(redis_count(b, &text), 0);
    redis_put_all(b, &text);
    redis_drop_salt(b, "", QUIRE_STORE_DROP_ALL);
    assert_int_equal(redis_count(b, &text), 0);
    assert_int_equal(redis_count(a, &text), 2);
    redis_close(a);
    redis_close(b);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_chunks),     cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_ttl),        cmocka_unit_test(test_acl),
        cmocka_unit_test(test_password),   cmocka_unit_test(test_options),
        cmocka_unit_test(test_quota),      cmocka_unit_test(test_queue),
        cmocka_unit_test(test_full),       cmocka_unit_test(test_tampered),
        cmocka_unit_test(test_copied),     cmocka_unit_test(test_other_fleet),
    };

    return cmocka_run_group_tests(tests, NULL, end);
}
