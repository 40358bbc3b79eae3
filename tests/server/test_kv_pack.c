/* test_kv_pack.c - news of pages in msgpack, byte by byte; the queue; endpoints.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/kv_events/kv_endpoint.h"
#include "server/kv_events/kv_events.h"
#include "server/kv_events/kv_news.h"
#include "server/kv_events/kv_pack.h"
#include "server/tenant.h"

#include <string.h>

#define CAPACITY 4096u

static bool put(quire_kv_news *news, const quire_kv_news_item *item)
{
    bool was_empty;

    return quire_kv_news_put(news, item, &was_empty);
}

static void put_stored(quire_kv_news *news, uint64_t hash, uint64_t parent, const int32_t *tokens,
                       uint32_t n)
{
    assert_true(put(news, &(quire_kv_news_item){ .kind = QUIRE_KV_STORED,
                                                 .hash = hash,
                                                 .parent = parent,
                                                 .is_first = parent == 0,
                                                 .tokens = tokens,
                                                 .n_tokens = n }));
}

/* Pack everything that was put into one batch, and compare. */
static void assert_packed(quire_kv_news *news, const void *want, size_t n_want)
{
    const unsigned char *bytes;
    const size_t n = quire_kv_news_take(news, &bytes);
    quire_bytes out = { 0 };
    quire_kv_packed packed;

    assert_int_equal(quire_kv_pack(&out, bytes, n, 0, 100, 1.5, &packed), n);
    assert_int_equal(out.status, QUIRE_OK);
    assert_int_equal(out.n, n_want);
    assert_memory_equal(out.data, want, n_want);
    quire_bytes_fini(&out);
}

#define HEAD "\x93\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00" /* [1.5, */

static void test_events(void **state)
{
    static const char want[] =
        HEAD "\x94"
             "\x91\xb0"
             "AllBlocksCleared"
             "\x98\xab"
             "BlockStored"
             "\x92\x01\xcf\x11\x22\x33\x44\x55\x66\x77\x88" /* two pages, one event */
             "\xc0"                                         /* no parent */
             "\x94\x02\xcd\x01\x2c\xce\x00\x01\x00\x00\x07" /* 2, 300, 65536, 7 */
             "\x02\xc0\xc0\xc0"
             "\x98\xab"
             "BlockStored"
             "\x91\x05\x09\x92\x00\x7f\x02\xc0\xc0\xc0"
             "\x93\xac"
             "BlockRemoved"
             "\x92\x05\x01\xc0"
             "\x00";
    static const int32_t tokens[] = { 2, 300, 65536, 7, 0, 127 };
    quire_kv_news news;

    (void)state;
    assert_int_equal(quire_kv_news_init(&news, CAPACITY), QUIRE_OK);
    assert_true(put(&news, &(quire_kv_news_item){ .kind = QUIRE_KV_CLEARED }));
    put_stored(&news, 1, 0, tokens, 2);
    put_stored(&news, 0x1122334455667788u, 1, tokens + 2, 2);
    put_stored(&news, 5, 9, tokens + 4, 2); /* does not follow */
    assert_true(put(&news, &(quire_kv_news_item){ .kind = QUIRE_KV_REMOVED, .hash = 5 }));
    assert_true(put(&news, &(quire_kv_news_item){ .kind = QUIRE_KV_REMOVED, .hash = 1 }));
    assert_packed(&news, want, sizeof want - 1);
    quire_kv_news_fini(&news);
}

static void put_salted(quire_kv_news *news, const char *tenant, const char *cache_salt)
{
    static const int32_t token = 3;
    quire_tenant_salt salt;
    quire_kv_news_item item = {
        .kind = QUIRE_KV_STORED, .hash = 1, .is_first = true, .tokens = &token, .n_tokens = 1
    };

    quire_tenant_salt_make(&salt, tenant, cache_salt);
    item.salt = salt.bytes;
    item.salt_bytes = salt.n;
    assert_true(put(news, &item));
}

/* Tenant and cache_salt stand beside the first page. */
static void test_extra_keys(void **state)
{
    static const char both[] = HEAD "\x91\x99\xab"
                                    "BlockStored"
                                    "\x92\x01\x02\xc0\x92\x03\x03\x01"
                                    "\xc0\xc0\xc0\x92\x92\xa1"
                                    "t"
                                    "\xa1"
                                    "s"
                                    "\xc0\x00";
    static const char one[] = HEAD "\x91\x99\xab"
                                   "BlockStored"
                                   "\x91\x01\xc0\x91\x03\x01"
                                   "\xc0\xc0\xc0\x91\x91\xa1"
                                   "s"
                                   "\x00";
    static const char none[] = HEAD "\x91\x98\xab"
                                    "BlockStored"
                                    "\x91\x01\xc0\x91\x03\x01"
                                    "\xc0\xc0\xc0\x00";
    static const int32_t token = 3;
    quire_kv_news news;

    (void)state;
    assert_int_equal(quire_kv_news_init(&news, CAPACITY), QUIRE_OK);
    put_salted(&news, "t", "s");
    put_stored(&news, 2, 1, &token, 1);
    assert_packed(&news, both, sizeof both - 1);
    put_salted(&news, "", "s");
    assert_packed(&news, one, sizeof one - 1);
    put_salted(&news, "", "");
    assert_packed(&news, none, sizeof none - 1);
    quire_kv_news_fini(&news);
}

/* A batch has pages_max pages at most, also within an event; the next one continues. */
static void test_split(void **state)
{
    static const int32_t token = 3;
    const unsigned char *bytes;
    quire_kv_news news;
    quire_kv_packed packed;
    quire_bytes out = { 0 };
    size_t n, at = 0;

    (void)state;
    assert_int_equal(quire_kv_news_init(&news, CAPACITY), QUIRE_OK);
    for (uint32_t i = 1; i <= 5; i++) {
        put_stored(&news, i, i - 1, &token, 1);
    }
    n = quire_kv_news_take(&news, &bytes);
    for (uint32_t i = 0; i < 3; i++) {
        at = quire_kv_pack(&out, bytes, n, at, 2, 0.0, &packed);
        assert_int_equal(packed.stored, i < 2 ? 2 : 1);
    }
    assert_int_equal(at, n);
    assert_int_equal(quire_kv_news_take(&news, &bytes), 0);
    quire_bytes_fini(&out);
    quire_kv_news_fini(&news);
}

/* A batch is of one device. */
static void test_ranks(void **state)
{
    static const int32_t token = 3;
    static const uint8_t ranks[] = { 0, 0, 1, 1, 0 };
    const unsigned char *bytes;
    quire_kv_news news;
    quire_kv_packed packed;
    size_t n, at = 0;

    (void)state;
    assert_int_equal(quire_kv_news_init(&news, CAPACITY), QUIRE_OK);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(put(&news, &(quire_kv_news_item){ .kind = QUIRE_KV_STORED,
                                                      .rank = ranks[i],
                                                      .hash = i + 1,
                                                      .parent = i,
                                                      .is_first = i == 0,
                                                      .tokens = &token,
                                                      .n_tokens = 1 }));
    }
    n = quire_kv_news_take(&news, &bytes);
    for (uint32_t i = 0; i < 3; i++) {
        quire_bytes out = { 0 };

        at = quire_kv_pack(&out, bytes, n, at, 100, 0.0, &packed);
        assert_int_equal(packed.stored, i < 2 ? 2 : 1);
        assert_int_equal(packed.rank, i % 2);
        assert_int_equal(out.data[out.n - 1], i % 2);
        quire_bytes_fini(&out);
    }
    assert_int_equal(at, n);
    quire_kv_news_fini(&news);
}

static void test_queue_is_bounded(void **state)
{
    static const int32_t tokens[64];
    const quire_kv_news_item item = { .kind = QUIRE_KV_STORED, .tokens = tokens, .n_tokens = 64 };
    const unsigned char *bytes;
    quire_kv_news news;
    uint32_t n = 0;
    bool was_empty;

    (void)state;
    assert_int_equal(quire_kv_news_init(&news, CAPACITY), QUIRE_OK);
    while (quire_kv_news_put(&news, &item, &was_empty)) {
        assert_int_equal(was_empty, n == 0);
        n++;
    }
    assert_int_equal(n, CAPACITY / (32 + 64 * 4));
    assert_true(quire_kv_news_take(&news, &bytes) <= CAPACITY);
    assert_true(put(&news, &item));
    quire_kv_news_fini(&news);
}

static void test_endpoints(void **state)
{
    static const char *const local[] = { "tcp://127.0.0.1:5557", "tcp://[::1]:0", "ipc:///tmp/x" };
    static const char *const open[] = { "tcp://*:5557", "tcp://10.0.0.1:65535", "tcp://[::]:1" };
    static const char *const wrong[] = { "",
                                         "tcp://",
                                         "tcp://127.0.0.1",
                                         "tcp://127.0.0.1:",
                                         "tcp://127.0.0.1:65536",
                                         "tcp://127.0.0.1:5x",
                                         "tcp://example.org:1",
                                         "tcp://[127.0.0.1]:1",
                                         "tcp://::1:1",
                                         "ipc://",
                                         "http://127.0.0.1:1",
                                         "127.0.0.1:5557" };
    quire_error err = QUIRE_ERROR_INIT;
    quire_kv_endpoint parts;
    char topic[QUIRE_KV_EVENTS_TOPIC_MAX + 2] = "";
    quire_kv_events_opts opts = { .endpoint = local[0], .topic = topic };

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(quire_kv_endpoint_read(&parts, "x", local[i], &err), QUIRE_OK);
        assert_true(quire_kv_events_is_local(local[i]));
        assert_int_equal(quire_kv_endpoint_read(&parts, "x", open[i], &err), QUIRE_OK);
        assert_false(quire_kv_events_is_local(open[i]));
    }
    for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        opts.replay_endpoint = wrong[i];
        assert_int_equal(quire_kv_events_check(&opts, &err), QUIRE_INVAL);
        opts.topic = NULL;
        assert_int_equal(quire_kv_events_check(&opts, &err), QUIRE_INVAL);
        assert_non_null(strstr(err.message, "kv_events_replay: '"));
    }
    opts.replay_endpoint = NULL;
    memset(topic, 't', sizeof topic);
    topic[sizeof topic - 1] = '\0';
    opts.topic = topic;
    assert_int_equal(quire_kv_events_check(&opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "kv_events_topic"));
    topic[QUIRE_KV_EVENTS_TOPIC_MAX] = '\0';
    assert_int_equal(quire_kv_events_check(&opts, &err), QUIRE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),    cmocka_unit_test(test_extra_keys),
        cmocka_unit_test(test_split),     cmocka_unit_test(test_queue_is_bounded),
        cmocka_unit_test(test_endpoints), cmocka_unit_test(test_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
