/* test_valkey_drops.c - ending records of the shared store on all machines, for good.
 *
 * SPDX-License-Identifier: MIT */
#include "redis_kit.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static redis_server server;
static quire_store *a; /* two machines */
static quire_store *b;

static int end(void **state)
{
    if (server.pid > 0) {
        redis_stop(&server);
    }
    return redis_kit_end(state);
}

static void machines_begin(void)
{
    quire_valkey_store_opts opts;

    redis_need();
    if (server.pid == 0) {
        redis_start(&server, NULL);
    }
    assert_string_equal(REDIS_ASK(&server, "FLUSHALL"), "OK");
    opts = redis_opts(&server);
    a = redis_open(&opts);
    b = redis_open(&opts);
    redis_await(a, QUIRE_STORE_READY);
    redis_await(b, QUIRE_STORE_READY);
}

static void machines_end(void)
{
    redis_close(a);
    redis_close(b);
}

/* Whether a page stays when page 1 of 4 is dropped. */
static bool is_left(quire_store_drop_what what, uint32_t page)
{
    return page == 0 || (page == 1 && what == QUIRE_STORE_DROP_BEHIND);
}

/* A drop of a text also ends its continuations, on both machines. These do not come back when the
 * dropped page is stored again. Pages that are stored again are found. */
static void test_text_drops(void **state)
{
    static const quire_store_drop_what whats[] = { QUIRE_STORE_DROP_TEXT, QUIRE_STORE_DROP_BEHIND };

    (void)state;
    for (uint32_t w = 0; w < 2; w++) {
        test_text text;
        test_text other;

        machines_begin();
        test_text_make(&text, 4, 1, "a");
        test_text_make(&other, 4, 2, "a");
        redis_put_all(a, &text);
        redis_put_all(b, &other);
        assert_int_equal(redis_count(b, &text), 4);
        redis_drop_text(a, &text.pages[1], whats[w]);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(redis_get(a, &text.pages[i]) == QUIRE_STORE_OK, is_left(whats[w], i));
        }
        /* b may ask before a server knows; then never again. */
        while (redis_get(b, &text.pages[3]) == QUIRE_STORE_OK) {
        }
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(redis_get(b, &text.pages[i]) == QUIRE_STORE_OK, is_left(whats[w], i));
        }
        assert_int_equal(redis_count(a, &other), 4);
        assert_int_equal(redis_count(b, &other), 4);
        for (uint32_t i = 1; i < 4; i++) {
            assert_int_equal(redis_put(b, &text.pages[i]), QUIRE_STORE_OK);
            assert_int_equal(redis_count(a, &text), i + 1);
        }
        machines_end();
    }
}

/* A machine that began after the drop, and knows no text. */
static void test_late_machine(void **state)
{
    quire_valkey_store_opts opts;
    quire_store *late;
    test_text text;

    (void)state;
    machines_begin();
    opts = redis_opts(&server);
    test_text_make(&text, 8, 1, "a");
    redis_put_all(a, &text);
    redis_drop_text(a, &text.pages[5], QUIRE_STORE_DROP_TEXT);
    while (redis_get(b, &text.pages[7]) == QUIRE_STORE_OK) {
    }
    late = redis_open(&opts);
    assert_int_equal(redis_get(late, &text.pages[7]), QUIRE_STORE_ABSENT);
    assert_int_equal(redis_count(late, &text), 5);
    /* This machine knows the text's earlier pages from its own reads. */
    assert_int_equal(redis_put(late, &text.pages[5]), QUIRE_STORE_OK);
    redis_drop_text(b, &text.pages[7], QUIRE_STORE_DROP_TEXT);
    while (redis_stats(b).dropped_total == 0) {
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(redis_count(late, &text), 6);
    redis_close(late);
    /* A machine that knows nothing of the text's earlier pages: pages that it writes end with the
     * next drop. */
    late = redis_open(&opts);
    assert_int_equal(redis_put(late, &text.pages[6]), QUIRE_STORE_OK);
    assert_int_equal(redis_get(b, &text.pages[6]), QUIRE_STORE_OK);
    redis_drop_text(b, &text.pages[7], QUIRE_STORE_DROP_TEXT);
    while (redis_get(late, &text.pages[6]) == QUIRE_STORE_OK) {
    }
    assert_int_equal(redis_count(late, &text), 6);
    redis_close(late);
    machines_end();
}

static void test_salt_drops(void **state)
{
    static const char *const salts[] = { "t/1", "t/2", "u/1" };
    static const struct {
        const char *salt;
        quire_store_drop_what what;
        bool is_left[3];
    } cases[] = {
        { "t/1", QUIRE_STORE_DROP_SALT, { false, true, true } },
        { "t/", QUIRE_STORE_DROP_SALTS, { false, false, true } },
        { "", QUIRE_STORE_DROP_ALL, { false, false, false } },
        /* No tenant's name: all go, which is safe. */
        { "t", QUIRE_STORE_DROP_SALTS, { false, false, false } },
    };

    (void)state;
    for (uint32_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        test_text texts[3];

        machines_begin();
        for (uint32_t i = 0; i < 3; i++) {
            test_text_make(&texts[i], 2, i + 1, salts[i]);
            redis_put_all(a, &texts[i]);
            assert_int_equal(redis_count(b, &texts[i]), 2);
        }
        redis_drop_salt(a, cases[c].salt, cases[c].what);
        assert_int_equal(redis_count(a, &texts[0]), 0);
        while (redis_get(b, &texts[0].pages[1]) == QUIRE_STORE_OK) {
        }
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(redis_count(b, &texts[i]), cases[c].is_left[i] ? 2 : 0);
            redis_put_all(b, &texts[i]);
            assert_int_equal(redis_count(a, &texts[i]), 2);
        }
        machines_end();
    }
}

/* The whole root, by the key of the root: how the engine drops a text shorter than a page. */
static void test_root_drop(void **state)
{
    quire_store_drop drop = { .what = QUIRE_STORE_DROP_BEHIND };
    test_text text;
    test_text other;

    (void)state;
    machines_begin();
    test_text_make(&text, 2, 1, "a");
    test_text_make(&other, 2, 1, "b");
    redis_put_all(a, &text);
    redis_put_all(a, &other);
    drop.key = text.pages[0].root;
    drop.root = text.pages[0].root;
    assert_int_equal(a->ops->drop(a, &drop), QUIRE_OK);
    assert_int_equal(redis_count(a, &text), 0);
    while (redis_get(b, &text.pages[1]) == QUIRE_STORE_OK) {
    }
    assert_int_equal(redis_count(b, &text), 0);
    assert_int_equal(redis_count(b, &other), 2);
    /* Without a root the text of the page is unknown: all pages go. */
    drop = (quire_store_drop){ .what = QUIRE_STORE_DROP_TEXT, .key = other.pages[0].key };
    assert_int_equal(a->ops->drop(a, &drop), QUIRE_OK);
    assert_int_equal(redis_count(a, &other), 0);
    machines_end();
}

/* Gets and puts that were under way when the drop came. */
static void test_under_way(void **state)
{
    quire_transfer *all[32];
    test_text text;

    (void)state;
    machines_begin();
    test_text_make(&text, 32, 1, "a");
    for (uint32_t i = 0; i < 32; i++) {
        all[i] = test_put_new(&text.pages[i], 0);
    }
    a->ops->put(a, all, 32);
    redis_drop_text(a, &text.pages[0], QUIRE_STORE_DROP_TEXT);
    for (uint32_t i = 0; i < 32; i++) {
        quire_transfer_free(redis_wait(a));
    }
    assert_int_equal(redis_count(a, &text), 0);
    redis_put_all(a, &text);
    for (uint32_t i = 0; i < 32; i++) {
        all[i] = test_get_new(&text.pages[i]);
    }
    a->ops->get(a, all, 32);
    redis_drop_text(a, &text.pages[0], QUIRE_STORE_DROP_TEXT);
    for (uint32_t i = 0; i < 32; i++) {
        quire_transfer *t = redis_wait(a);

        assert_int_equal(t->result, QUIRE_STORE_ABSENT);
        quire_transfer_free(t);
    }
    machines_end();
}

/* An epoch that got lost, or that somebody overwrote, ends records and harms nothing else. */
static void test_lost_epochs(void **state)
{
    static const char *const patterns[] = { "quire:*:e:*", "quire:*:t:*", "quire:*:a:*" };
    test_text text;

    (void)state;
    machines_begin();
    test_text_make(&text, 3, 1, "a");
    for (uint32_t i = 0; i < 9; i++) {
        char key[128];

        redis_put_all(a, &text);
        assert_int_equal(redis_count(b, &text), 3);
        (void)snprintf(key, sizeof key, "%s", REDIS_ASK(&server, "KEYS", patterns[i % 3]));
        if (i < 3) {
            assert_string_equal(REDIS_ASK(&server, "DEL", key), "1");
        } else {
            (void)REDIS_ASK(&server, "SET", key, i < 6 ? "x" : "0123456789abcdef0123456789abcdef");
        }
        assert_int_equal(redis_count(a, &text), 0);
        assert_int_equal(redis_count(b, &text), 0);
    }
    /* A drop that finds its list gone begins another epoch. */
    redis_put_all(a, &text);
    {
        char key[128];

        (void)snprintf(key, sizeof key, "%s", REDIS_ASK(&server, "KEYS", patterns[0]));
        assert_string_equal(REDIS_ASK(&server, "DEL", key), "1");
        redis_drop_text(a, &text.pages[2], QUIRE_STORE_DROP_TEXT);
        assert_int_equal(redis_count(a, &text), 0);
        redis_put_all(a, &text);
        assert_int_equal(redis_count(b, &text), 3);
    }
    machines_end();
}

/* The list of drops is bounded: the one that exceeds the bound ends everything of the root. */
static void test_drops_bound(void **state)
{
    char bytes[8];
    char key[128];
    test_text text;

    (void)state;
    machines_begin();
    test_text_make(&text, 3, 1, "a");
    redis_put_all(a, &text);
    (void)snprintf(key, sizeof key, "%s", REDIS_ASK(&server, "KEYS", "quire:*:e:*"));
    /* All but one of the drops that fit, of pages that nobody has. */
    (void)REDIS_ASK(
        &server, "EVAL",
        "redis.call('APPEND', KEYS[1], string.rep('ABCDEFGHT\\0\\0\\0\\0\\0\\0\\0', 16383)) "
        "return 1",
        "1", key);
    assert_int_equal(redis_count(b, &text), 3);
    redis_drop_text(a, &text.pages[2], QUIRE_STORE_DROP_TEXT);
    while (redis_get(b, &text.pages[2]) == QUIRE_STORE_OK) {
    }
    assert_int_equal(redis_count(b, &text), 2);
    redis_drop_text(a, &text.pages[2], QUIRE_STORE_DROP_TEXT);
    while (redis_get(b, &text.pages[0]) == QUIRE_STORE_OK) {
    }
    assert_int_equal(redis_count(b, &text), 0);
    (void)snprintf(bytes, sizeof bytes, "%s", REDIS_ASK(&server, "STRLEN", key));
    assert_string_equal(bytes, "16");
    redis_put_all(b, &text);
    assert_int_equal(redis_count(a, &text), 3);
    machines_end();
}

/* No server hears of the drop: it holds in this process, and reaches the others when a server is
 * back. */
static void test_away(void **state)
{
    quire_valkey_store_opts opts;
    quire_store_drop drop = { .what = QUIRE_STORE_DROP_TEXT };
    test_text text;
    quire_store *here;

    (void)state;
    machines_begin();
    opts = redis_opts(&server);
    opts.timeout_ms = 50;
    here = redis_open(&opts);
    redis_await(here, QUIRE_STORE_READY);
    test_text_make(&text, 3, 1, "a");
    redis_put_all(a, &text);
    assert_int_equal(redis_count(here, &text), 3);
    redis_signal(&server, SIGSTOP);
    while (redis_get(here, &text.pages[0]) != QUIRE_STORE_CLOSED) {
    }
    redis_await(here, QUIRE_STORE_DEGRADED);
    drop.key = text.pages[1].key;
    drop.root = text.pages[1].root;
    assert_int_equal(here->ops->drop(here, &drop), QUIRE_IO);
    redis_signal(&server, SIGCONT);
    redis_await(here, QUIRE_STORE_READY);
    assert_int_equal(redis_get(here, &text.pages[2]), QUIRE_STORE_ABSENT);
    while (redis_get(b, &text.pages[2]) == QUIRE_STORE_OK) {
    }
    assert_int_equal(redis_count(b, &text), 1);
    redis_close(here);
    machines_end();
}

/* More drops than are kept while no server hears: one drop of all stands for them. */
static void test_too_many_away(void **state)
{
    enum {
        MORE = 50
    };
    quire_store_drop drop = { .what = QUIRE_STORE_DROP_TEXT }, heard;
    quire_valkey_store_opts opts;
    uint64_t before;
    test_text text;
    quire_store *here;

    (void)state;
    machines_begin();
    opts = redis_opts(&server);
    opts.timeout_ms = 50;
    here = redis_open(&opts);
    redis_await(here, QUIRE_STORE_READY);
    test_text_make(&text, 3, 1, "a");
    redis_put_all(a, &text);
    redis_signal(&server, SIGSTOP);
    while (redis_get(here, &text.pages[0]) != QUIRE_STORE_CLOSED) {
    }
    redis_await(here, QUIRE_STORE_DEGRADED);
    before = redis_stats(b).evictions;
    for (uint32_t i = 0; i < QUIRE_VK_DROPS_PENDING_MAX + MORE; i++) {
        memset(drop.key.bytes, (int)(1 + i % 255), sizeof drop.key.bytes);
        assert_int_equal(here->ops->drop(here, &drop), QUIRE_IO);
    }
    redis_signal(&server, SIGCONT);
    redis_await(here, QUIRE_STORE_READY);
    while (redis_count(b, &text) > 0) { /* pages of no drop but that of all */
    }
    redis_close(here);
    redis_drop_salt(a, "end", QUIRE_STORE_DROP_SALT);
    do {
        while (!b->ops->heard(b, &heard)) {
            (void)poll(NULL, 0, 1);
        }
    } while (heard.what != QUIRE_STORE_DROP_SALT);
    assert_in_range(redis_stats(b).evictions - before, 2, MORE + 2);
    machines_end();
}

/* Servers that take no drop from this process: it holds here all the same. */
static void test_refused(void **state)
{
    quire_valkey_store_opts opts;
    quire_store *reader;
    test_text text;

    (void)state;
    machines_begin();
    assert_string_equal(REDIS_ASK(&server, "ACL", "SETUSER", "reader", "on", ">word", "~quire:*",
                                  "&quire:*", "-@all", "+@read", "+@connection", "+@pubsub"),
                        "OK");
    opts = redis_opts(&server);
    opts.user = "reader";
    opts.password = "word";
    opts.close_ms = 100;
    reader = redis_open(&opts);
    redis_await(reader, QUIRE_STORE_READY);
    test_text_make(&text, 3, 1, "a");
    redis_put_all(a, &text);
    assert_int_equal(redis_count(reader, &text), 3);
    redis_drop_text(reader, &text.pages[1], QUIRE_STORE_DROP_TEXT);
    for (uint32_t lap = 0; lap < 50; lap++) {
        assert_int_equal(redis_count(reader, &text), 1);
    }
    assert_int_equal(redis_count(b, &text), 3);
    assert_int_equal(redis_stats(reader).dropped_total, 0);
    redis_close(reader);
    assert_string_equal(REDIS_ASK(&server, "ACL", "DELUSER", "reader"), "1");
    machines_end();
}

typedef struct said {
    atomic_bool deaf, mute;
} said;

static void hear_log(void *ctx, const char *line)
{
    said *heard = ctx;

    if (strstr(line, "SUBSCRIBE failed: NOPERM") != NULL) {
        atomic_store(&heard->deaf, true);
    }
    if (strstr(line, "PUBLISH failed: NOPERM") != NULL) {
        atomic_store(&heard->mute, true);
    }
}

/* A user who may neither listen nor send: the log says so. Records end all the same. */
static void test_no_channel(void **state)
{
    quire_valkey_store_opts opts;
    quire_store *quiet;
    test_text text;
    said log = { false, false };

    (void)state;
    machines_begin();
    assert_string_equal(REDIS_ASK(&server, "ACL", "SETUSER", "quiet", "on", ">word", "~quire:*",
                                  "-@all", "+@read", "+@write", "+@connection", "-@dangerous"),
                        "OK");
    opts = redis_opts(&server);
    opts.user = "quiet";
    opts.password = "word";
    opts.log = hear_log;
    opts.log_ctx = &log;
    quiet = redis_open(&opts);
    redis_await(quiet, QUIRE_STORE_READY);
    test_text_make(&text, 3, 1, "a");
    redis_put_all(quiet, &text);
    redis_drop_text(quiet, &text.pages[1], QUIRE_STORE_DROP_TEXT);
    while (!atomic_load(&log.deaf) || !atomic_load(&log.mute)) {
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(redis_count(b, &text), 1);
    redis_close(quiet);
    assert_string_equal(REDIS_ASK(&server, "ACL", "DELUSER", "quiet"), "1");
    machines_end();
}

/* A drop by another machine raises this store's `evictions`: pages that its caller noted as stored
 * may be gone. */
static void test_heard(void **state)
{
    quire_store_drop heard;
    uint64_t before = 0;
    char channel[64];
    test_text text;

    (void)state;
    machines_begin();
    test_text_make(&text, 1, 1, "a");
    redis_put_all(a, &text);
    /* b may not listen yet: drop until it hears one. */
    do {
        redis_drop_text(a, &text.pages[0], QUIRE_STORE_DROP_TEXT);
        (void)poll(NULL, 0, 1);
    } while (redis_stats(b).evictions == before);
    assert_int_equal(redis_stats(a).evictions, 0); /* its own drops are no news */
    assert_true(b->ops->heard(b, &heard));
    assert_int_equal(heard.what, QUIRE_STORE_DROP_TEXT);
    assert_memory_equal(heard.key.bytes, text.pages[0].key.bytes, QUIRE_PAGE_KEY_BYTES);
    assert_memory_equal(heard.root.bytes, text.pages[0].root.bytes, QUIRE_PAGE_KEY_BYTES);
    assert_false(a->ops->heard(a, &heard));
    redis_drop_salt(a, "t/1", QUIRE_STORE_DROP_SALT);
    do { /* the last of them */
        while (!b->ops->heard(b, &heard)) {
            (void)poll(NULL, 0, 1);
        }
    } while (heard.what != QUIRE_STORE_DROP_SALT);
    assert_int_equal(heard.salt_bytes, 3);
    assert_memory_equal(heard.salt, "t/1", 3);
    /* A client without the secret cannot make machines drop pages. */
    before = redis_stats(b).evictions;
    (void)snprintf(channel, sizeof channel, "%s", REDIS_ASK(&server, "PUBSUB", "CHANNELS"));
    assert_string_equal(REDIS_ASK(&server, "PUBLISH", channel, "forget"), "2");
    /* All is right but the seal: model, sender, everything is to go. */
    assert_string_equal(
        REDIS_ASK(&server, "EVAL",
                  "return redis.call('PUBLISH', KEYS[1], string.rep('x', 32) .. '\\7' .. "
                  "string.rep('\\0', 7) .. '\\8' .. string.rep('\\0', 7) .. string.rep('s', 16) .. "
                  "'\\0' .. string.rep('\\0', 32))",
                  "1", channel),
        "2");
    redis_drop_salt(a, "", QUIRE_STORE_DROP_ALL);
    while (!b->ops->heard(b, &heard)) {
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(heard.what, QUIRE_STORE_DROP_ALL);
    assert_int_equal(redis_stats(b).evictions, before + 1);
    machines_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_drops),  cmocka_unit_test(test_late_machine),
        cmocka_unit_test(test_salt_drops),  cmocka_unit_test(test_root_drop),
        cmocka_unit_test(test_under_way),   cmocka_unit_test(test_lost_epochs),
        cmocka_unit_test(test_drops_bound), cmocka_unit_test(test_away),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_heard),
        cmocka_unit_test(test_no_channel),  cmocka_unit_test(test_too_many_away),
    };

    return cmocka_run_group_tests(tests, NULL, end);
}
