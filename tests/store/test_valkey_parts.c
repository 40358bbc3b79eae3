/* test_valkey_parts.c - the parts of the shared store that need no server: URLs, slots, the
 * breaker, lineage, commands.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include <stdlib.h>
#include <string.h>

#include "store/valkey/valkey_breaker.h"
#include "store/valkey/valkey_cmd.h"
#include "store/valkey/valkey_key.h"
#include "store/valkey/valkey_lineage.h"
#include "store/valkey/valkey_seen.h"
#include "store/valkey/valkey_url.h"

/* ---- URLs ---- */

static void test_url(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_valkey_url url;

    (void)state;
    assert_int_equal(quire_valkey_url_parse("valkey://a.b:7000,[::1]:7001,10.0.0.3/2", &url, &err),
                     QUIRE_OK);
    assert_false(url.is_tls);
    assert_int_equal(url.n_hosts, 3);
    assert_int_equal(url.database, 2);
    assert_string_equal(url.hosts[0].host, "a.b");
    assert_int_equal(url.hosts[0].port, 7000);
    assert_string_equal(url.hosts[1].host, "::1");
    assert_int_equal(url.hosts[1].port, 7001);
    assert_string_equal(url.hosts[2].host, "10.0.0.3");
    assert_int_equal(url.hosts[2].port, QUIRE_VALKEY_PORT);
    assert_int_equal(quire_valkey_url_parse("rediss://x", &url, &err), QUIRE_OK);
    assert_true(url.is_tls);
    assert_int_equal(quire_valkey_url_parse("redis://x/", &url, &err), QUIRE_OK);
    assert_int_equal(url.database, 0);
}

static void test_url_refused(void **state)
{
    static const struct {
        const char *url;
        const char *says;
    } cases[] = {
        { "http://x", "begins with" },
        { "x:6379", "begins with" },
        { "valkey://", "no HOST" },
        { "valkey://a,", "no HOST" },
        { "valkey://a b", "no HOST" },
        { "valkey://a:0", "no HOST" },
        { "valkey://a:65536", "no HOST" },
        { "valkey://a:", "no HOST" },
        { "valkey://[::1", "no HOST" },
        { "valkey://[::1]x", "no HOST" },
        { "valkey://a/x", "no number of a database" },
        { "valkey://user:word@a", "no user and no password" },
        { "valkey://a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a", "more than 16 hosts" },
    };

    (void)state;
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_valkey_url url;

        assert_int_equal(quire_valkey_url_parse(cases[i].url, &url, &err), QUIRE_INVAL);
        assert_non_null(strstr(err.message, cases[i].says));
        assert_null(strstr(err.message, "word@")); /* a password in a message is in a log */
    }
}

static void test_url_long_host(void **state)
{
    char text[QUIRE_VALKEY_HOST_MAX + 2];
    quire_valkey_addr addr;

    (void)state;
    memset(text, 'a', sizeof text);
    assert_int_equal(quire_valkey_addr_parse(text, QUIRE_VALKEY_HOST_MAX, &addr), QUIRE_OK);
    assert_int_equal(strlen(addr.host), QUIRE_VALKEY_HOST_MAX);
    assert_int_equal(quire_valkey_addr_parse(text, QUIRE_VALKEY_HOST_MAX + 1, &addr), QUIRE_INVAL);
}

/* ---- slots ---- */

static uint16_t slot(const char *key)
{
    return quire_valkey_slot(key, strlen(key));
}

/* The vectors of the cluster specification, and slots that `CLUSTER KEYSLOT` gives. */
static void test_slots(void **state)
{
    (void)state;
    assert_int_equal(slot("123456789"), 0x31c3);
    assert_int_equal(slot("foo"), 12182);
    assert_int_equal(slot("somekey"), 11058);
    assert_int_equal(slot(""), 0);
    assert_int_equal(slot("{user1000}.following"), slot("user1000"));
    assert_int_equal(slot("foo{}{bar}"), 8363); /* an empty tag: the whole key */
    assert_int_equal(slot("foo{{bar}}zap"), slot("{bar"));
    assert_int_equal(slot("foo{bar}{zap}"), slot("bar"));
    assert_int_not_equal(slot("foo{bar"), slot("bar"));
}

static void test_names(void **state)
{
    quire_valkey_name head;
    quire_valkey_name chunk;
    quire_valkey_name last;
    test_text a;
    test_text b;

    (void)state;
    test_text_make(&a, 1, 1, "a");
    test_text_make(&b, 1, 1, "b");
    quire_valkey_name_head(&head, "01234567", &a.pages[0].root, &a.pages[0].key);
    quire_valkey_name_chunk(&chunk, "01234567", &a.pages[0].root, &a.pages[0].key, 0);
    quire_valkey_name_chunk(&last, "01234567", &a.pages[0].root, &a.pages[0].key,
                            QUIRE_VALKEY_CHUNKS_MAX);
    assert_int_equal(strncmp(head.text, "quire:01234567:", 15), 0);
    assert_int_equal(head.n, strlen(head.text));
    assert_int_equal(last.n, strlen(last.text)); /* nothing was cut off */
    assert_string_not_equal(head.text, chunk.text);
    assert_int_equal(slot(head.text), slot(chunk.text));
    assert_int_equal(slot(head.text), slot(last.text));
    /* Another tenant has another prefix. */
    quire_valkey_name_head(&chunk, "01234567", &b.pages[0].root, &a.pages[0].key);
    assert_int_not_equal(strncmp(head.text, chunk.text, 15 + 32), 0);
}

/* ---- the breaker ---- */

static void test_breaker_failures(void **state)
{
    quire_breaker b = { .pause_min_us = 100, .pause_max_us = 350 };
    const uint64_t pauses[] = { 100, 200, 350, 350 };
    uint64_t now = 1000;

    (void)state;
    assert_true(quire_breaker_is_closed(&b));
    assert_int_equal(quire_breaker_due_us(&b), UINT64_MAX);
    for (uint32_t i = 0; i < 4; i++) {
        quire_breaker_failed(&b, now);
        assert_false(quire_breaker_is_closed(&b));
        assert_int_equal(quire_breaker_due_us(&b), now + pauses[i]);
        assert_false(quire_breaker_probe(&b, now + pauses[i] - 1));
        now += pauses[i];
        assert_true(quire_breaker_probe(&b, now));
        assert_false(quire_breaker_probe(&b, now)); /* one probe */
    }
    /* One good reply closes the breaker. Only many good replies make the next pause short again. */
    assert_true(quire_breaker_good(&b, now, 1));
    assert_true(quire_breaker_is_closed(&b));
    quire_breaker_failed(&b, now);
    assert_int_equal(quire_breaker_due_us(&b), now + 350);
    for (uint32_t i = 0; i < QUIRE_BREAKER_TRUST; i++) {
        assert_true(quire_breaker_good(&b, now, 1));
    }
    quire_breaker_failed(&b, now);
    assert_int_equal(quire_breaker_due_us(&b), now + 100);
}

static void test_breaker_latency(void **state)
{
    quire_breaker b = { .latency_max_us = 1000, .pause_min_us = 100, .pause_max_us = 100 };

    (void)state;
    for (uint32_t i = 0; i + 1 < QUIRE_BREAKER_KNOWN; i++) {
        assert_true(quire_breaker_good(&b, 0, 5000)); /* too few to say */
    }
    assert_false(quire_breaker_good(&b, 0, 5000));
    assert_int_equal(b.state, QUIRE_BREAKER_OPEN);
    /* A single slow reply among fast ones is nothing. */
    for (uint32_t i = 0; i < 100; i++) {
        assert_true(quire_breaker_good(&b, 0, i == 50 ? 5000 : 100));
    }
    b.latency_max_us = 0;
    for (uint32_t i = 0; i < 100; i++) {
        assert_true(quire_breaker_good(&b, 0, 5000));
    }
}

/* ---- lineage ---- */

static void test_map(void **state)
{
    quire_u64_map map = { 0 };
    uint64_t value;

    (void)state;
    assert_false(quire_u64_map_get(&map, 1, &value));
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(quire_u64_map_set(&map, i * 64, i));
    }
    assert_true(quire_u64_map_set(&map, 64, 77));
    assert_int_equal(map.n, 1000);
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(quire_u64_map_get(&map, i * 64, &value));
        assert_int_equal(value, i == 1 ? 77 : i);
    }
    assert_false(quire_u64_map_get(&map, 63, &value));
    quire_u64_map_fini(&map);
}

static quire_seal_key key_new(void)
{
    static const unsigned char secret[QUIRE_SEAL_SECRET_MIN] = { 1, 2, 3 };
    quire_seal_key key;

    assert_int_equal(quire_seal_key_make(&key, secret, sizeof secret), QUIRE_OK);
    return key;
}

static void test_lineage(void **state)
{
    const quire_seal_key key = key_new();
    quire_lineage l;
    unsigned char list[8 * 16];
    uint64_t ids[8];
    uint64_t root;
    test_text text;
    bool is_whole;

    (void)state;
    quire_lineage_init(&l, &key);
    test_text_make(&text, 8, 1, "a");
    root = quire_lineage_id(&l, &text.pages[0].root);
    for (uint32_t i = 0; i < 8; i++) {
        ids[i] = quire_lineage_id(&l, &text.pages[i].key);
    }
    for (uint32_t i = 3; i < 8; i++) { /* the first three passed another process */
        quire_lineage_add(&l, ids[i], ids[i - 1]);
    }
    assert_int_equal(quire_lineage_list(&l, ids[6], root, list, 16, &is_whole), 5);
    assert_false(is_whole);
    /* A record that was read brings its ancestors. */
    for (uint32_t i = 0; i < 3; i++) {
        memcpy(list + 8 * (size_t)i, &ids[2 - i], 8);
    }
    quire_lineage_learn(
        &l, &(quire_seal_head){ .is_whole = true, .n_ancestors = 3, .ancestors = list }, root);
    assert_int_equal(quire_lineage_list(&l, ids[6], root, list, 16, &is_whole), 7);
    assert_true(is_whole);
    assert_memory_equal(list, &ids[6], 8);
    assert_memory_equal(list + 8 * 6, &ids[0], 8);
    assert_int_equal(quire_lineage_list(&l, ids[6], root, list, 4, &is_whole), 4);
    assert_false(is_whole);
    assert_int_equal(quire_lineage_list(&l, root, root, list, 4, &is_whole), 0);
    assert_true(is_whole);
    quire_lineage_fini(&l);
}

/* The table is bounded; entries in use stay. */
static void test_lineage_bound(void **state)
{
    const quire_seal_key key = key_new();
    unsigned char list[8];
    quire_lineage l;
    bool is_whole;

    (void)state;
    quire_lineage_init(&l, &key);
    quire_lineage_add(&l, 1, 0);
    quire_lineage_add(&l, 2, 0);
    for (uint64_t i = 0; i < 4 * (uint64_t)QUIRE_LINEAGE_PAGES; i++) {
        quire_lineage_add(&l, 1000 + i, 0);
        assert_int_equal(quire_lineage_list(&l, 1, 0, list, 1, &is_whole), 1);
        assert_true(is_whole);
    }
    assert_true(l.young.n + l.old.n <= 2 * QUIRE_LINEAGE_PAGES + 2);
    assert_int_equal(quire_lineage_list(&l, 2, 0, list, 1, &is_whole), 1);
    assert_false(is_whole); /* forgotten */
    quire_lineage_fini(&l);
}

/* ---- commands ---- */

static char *text_of(const quire_vk_cmd *cmd, size_t at)
{
    struct iovec pieces[3];
    const uint32_t n = quire_vk_cmd_pieces(cmd, at, pieces);
    char *text = calloc(1, quire_vk_cmd_bytes(cmd) + 1);
    size_t n_text = 0;

    assert_non_null(text);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(text + n_text, pieces[i].iov_base, pieces[i].iov_len);
        n_text += pieces[i].iov_len;
    }
    assert_int_equal(n_text, quire_vk_cmd_bytes(cmd) - at);
    return text;
}

/* A long value is borrowed, and its bytes come at their place wherever a write stopped. */
static void test_command(void **state)
{
    static char value[QUIRE_VK_BORROW_BYTES + 1];
    const quire_vk_arg args[] = {
        QUIRE_VK_WORD("SET"), QUIRE_VK_WORD("k"), { value, sizeof value }, QUIRE_VK_WORD("EX")
    };
    quire_vk_cmd *cmd;
    char *whole;

    (void)state;
    memset(value, 'v', sizeof value);
    cmd = quire_vk_cmd_new(args, 4, 5, NULL, NULL);
    assert_non_null(cmd);
    assert_ptr_equal(cmd->value, value);
    whole = text_of(cmd, 0);
    assert_int_equal(strncmp(whole, "*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$4097\r\nvv", 29), 0);
    assert_string_equal(whole + strlen(whole) - 12, "vv\r\n$2\r\nEX\r\n");
    for (size_t at = 0; at < quire_vk_cmd_bytes(cmd); at += 7) {
        char *rest = text_of(cmd, at);

        assert_string_equal(rest, whole + at);
        free(rest);
    }
    free(whole);
    quire_vk_cmd_end(cmd, NULL);
}

/* Hints of what is there: the last news of a record counts, and old ones are forgotten. */
static void test_seen(void **state)
{
    quire_seen seen = { 0 };

    (void)state;
    assert_false(quire_seen_has(&seen, 1));
    quire_seen_note(&seen, 1, true);
    quire_seen_note(&seen, 2, true);
    quire_seen_note(&seen, 2, false);
    assert_true(quire_seen_has(&seen, 1));
    assert_false(quire_seen_has(&seen, 2));
    for (uint64_t i = 0; i < QUIRE_SEEN_RECORDS; i++) {
        quire_seen_note(&seen, 100 + i, true);
    }
    assert_true(quire_seen_has(&seen, 1));
    quire_seen_note(&seen, 1, false); /* the old note does not shine through */
    assert_false(quire_seen_has(&seen, 1));
    for (uint64_t i = 0; i < 3 * (uint64_t)QUIRE_SEEN_RECORDS; i++) {
        quire_seen_note(&seen, 1000000 + i, true);
        assert_true(seen.young.n <= QUIRE_SEEN_RECORDS && seen.old.n <= QUIRE_SEEN_RECORDS);
    }
    assert_false(quire_seen_has(&seen, 100));
    quire_seen_forget(&seen);
    assert_false(quire_seen_has(&seen, 1000000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_url),
        cmocka_unit_test(test_url_refused),
        cmocka_unit_test(test_url_long_host),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_breaker_failures),
        cmocka_unit_test(test_breaker_latency),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_lineage),
        cmocka_unit_test(test_lineage_bound),
        cmocka_unit_test(test_seen),
        cmocka_unit_test(test_command),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
