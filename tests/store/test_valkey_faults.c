/* test_valkey_faults.c - servers that are dead, hung, or lie: gets end, nothing wrong comes back,
 * and the store recovers by itself.
 *
 * SPDX-License-Identifier: MIT */
#include "redis_kit.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/valkey/valkey_resp.h"

/* ---- real servers ---- */

static quire_valkey_store_opts impatient(const redis_server *server)
{
    quire_valkey_store_opts opts = redis_opts(server);

    opts.timeout_ms = 50;
    opts.close_ms = 100;
    return opts;
}

static void test_dead(void **state)
{
    redis_server server = { .url = "" };
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    (void)snprintf(server.url, sizeof server.url, "valkey://127.0.0.1:%u", redis_port());
    opts = impatient(&server);
    store = redis_open(&opts);
    test_text_make(&text, 1, 1, "a");
    assert_int_equal(redis_stats(store).state, QUIRE_STORE_DEGRADED);
    assert_non_null(strstr(redis_stats(store).trouble, server.url + strlen("valkey://")));
    assert_non_null(strstr(redis_stats(store).trouble, "refused"));
    assert_int_equal(redis_get(store, &text.pages[0]), QUIRE_STORE_CLOSED);
    assert_int_equal(redis_query(store, &text.pages[0]), QUIRE_STORE_CLOSED);
    assert_int_equal(redis_put(store, &text.pages[0]), QUIRE_STORE_CLOSED);
    redis_close(store);
}

/* A name that cannot be resolved. */
static void test_no_name(void **state)
{
    redis_server server = { .url = "valkey://no-such-host.invalid" };
    quire_valkey_store_opts opts = impatient(&server);
    quire_store *store = redis_open(&opts);

    (void)state;
    redis_await(store, QUIRE_STORE_DEGRADED);
    assert_non_null(strstr(redis_stats(store).trouble, "no-such-host.invalid:6379: n"));
    redis_close(store);
}

static void test_hung(void **state)
{
    redis_server server = { 0 };
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    redis_need();
    redis_start(&server, NULL);
    opts = impatient(&server);
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    test_text_make(&text, 4, 1, "a");
    for (uint32_t i = 0; i < 4; i++) {
        while (redis_put(store, &text.pages[i]) != QUIRE_STORE_OK) { /* a busy machine */
        }
    }
    for (uint32_t lap = 0; lap < 2; lap++) {
        redis_signal(&server, SIGSTOP);
        while (redis_get(store, &text.pages[0]) != QUIRE_STORE_CLOSED) {
        }
        assert_int_equal(redis_put(store, &text.pages[0]), QUIRE_STORE_CLOSED);
        redis_await(store, QUIRE_STORE_DEGRADED);
        assert_int_equal(redis_get(store, &text.pages[1]), QUIRE_STORE_CLOSED);
        redis_signal(&server, SIGCONT);
        redis_await(store, QUIRE_STORE_READY);
        while (redis_count(store, &text) != 4) {
        }
    }
    /* Closing does not wait for a server that hangs. */
    redis_signal(&server, SIGSTOP);
    {
        quire_transfer *t = test_put_new(&text.pages[0], 1);

        t->is_replacing = true;
        store->ops->put(store, &t, 1);
        assert_int_equal(test_store_close(store), 1);
    }
    redis_signal(&server, SIGCONT);
    redis_stop(&server);
}

/* Killed in the middle, and back with nothing. */
static void test_killed(void **state)
{
    redis_server server = { 0 };
    quire_transfer *all[32];
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    redis_need();
    redis_start(&server, NULL);
    opts = redis_opts(&server);
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    test_text_make(&text, 32, 1, "a");
    redis_put_all(store, &text);
    for (uint32_t i = 0; i < 32; i++) {
        all[i] = i % 2 == 0 ? test_get_new(&text.pages[i]) : test_put_new(&text.pages[i], 1);
        all[i]->is_replacing = true;
        if (i % 2 == 0) {
            store->ops->get(store, &all[i], 1);
        } else {
            store->ops->put(store, &all[i], 1);
        }
    }
    redis_signal(&server, SIGKILL);
    for (uint32_t i = 0; i < 32; i++) {
        quire_transfer *t = redis_wait(store);

        assert_true(t->result == QUIRE_STORE_OK || t->result == QUIRE_STORE_CLOSED);
        quire_transfer_free(t);
    }
    redis_await(store, QUIRE_STORE_DEGRADED);
    redis_restart(&server, NULL);
    redis_await(store, QUIRE_STORE_READY);
    assert_int_equal(redis_count(store, &text), 0);
    redis_put_all(store, &text);
    assert_int_equal(redis_count(store, &text), 32);
    redis_close(store);
    redis_stop(&server);
}

/* Put the pages until the store has them all and the server holds keys. */
static void put_until_held(quire_store *store, test_text *text, const redis_server *server)
{
    do {
        for (uint32_t i = 0; i < text->n_pages; i++) {
            (void)redis_put(store, &text->pages[i]);
        }
    } while (redis_count(store, text) != text->n_pages ||
             strcmp(REDIS_ASK(server, "DBSIZE"), "0") == 0);
}

/* The second of two servers takes over. */
static void test_second_host(void **state)
{
    redis_server servers[2] = { 0 };
    redis_server both = { 0 };
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    redis_need();
    redis_start(&servers[0], NULL);
    redis_start(&servers[1], NULL);
    (void)snprintf(both.url, sizeof both.url, "valkey://127.0.0.1:%u,127.0.0.1:%u", servers[0].port,
                   servers[1].port);
    opts = redis_opts(&both);
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    test_text_make(&text, 2, 1, "a");
    put_until_held(store, &text, &servers[0]); /* the second one may be connected first */
    redis_signal(&servers[0], SIGKILL);
    put_until_held(store, &text, &servers[1]);
    redis_await(store, QUIRE_STORE_READY);
    redis_close(store);
    redis_stop(&servers[0]);
    redis_stop(&servers[1]);
}

/* ---- servers that lie ---- */

typedef enum lie {
    SILENT,      /* no byte at all */
    GARBAGE,     /* of another protocol */
    UNASKED,     /* replies that nobody asked for */
    INTEGERS,    /* :7 to everything */
    STRINGS,     /* a short string to everything */
    ARRAYS,      /* an array without elements */
    LONG_ARRAY,  /* announces 2^31 - 1 elements */
    LONG_STRING, /* announces a value and never ends it, a byte at a time */
    NESTED,      /* arrays in arrays, without end */
    LIES,
    DEAF /* a connection that listens for news gets no byte any more */
} lie;

typedef struct liar {
    lie lie;
    int fd;
    uint16_t port;
    pthread_t thread;
    atomic_bool is_over;
    atomic_uint n_asked; /* commands beyond the greeting */
    atomic_uint n_listeners;
    atomic_int deaf_fd; /* of the last one */
} liar;

static void say(int fd, const char *text)
{
    (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* Keep a reply coming without ever ending it. */
static void drip(liar *l, int fd)
{
    say(fd, "$900000\r\n");
    while (!atomic_load(&l->is_over) && send(fd, "x", 1, MSG_NOSIGNAL) == 1) {
        (void)poll(NULL, 0, 2);
    }
}

static void answer(liar *l, int fd, const quire_resp *command)
{
    static const char *const answers[LIES] = {
        [GARBAGE] = "HTTP/1.1 400 Bad Request\r\n\r\n",
        [INTEGERS] = ":7\r\n",
        [STRINGS] = "$5\r\nhello\r\n",
        [ARRAYS] = "*0\r\n",
        [LONG_ARRAY] = "*2147483647\r\n",
        [NESTED] = "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        [UNASKED] = ":1\r\n:2\r\n:3\r\n",
    };
    const char *word = command->type == QUIRE_RESP_ARRAY ? command->element[0]->str : "";

    if (l->lie == DEAF && (strcmp(word, "SUBSCRIBE") == 0 || atomic_load(&l->deaf_fd) == fd)) {
        if (atomic_exchange(&l->deaf_fd, fd) != fd) {
            say(fd, "*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n");
            (void)atomic_fetch_add(&l->n_listeners, 1);
        }
    } else if (l->lie == GARBAGE || l->lie == SILENT) {
        say(fd, l->lie == SILENT ? "" : answers[GARBAGE]);
    } else if (strcmp(word, "PING") == 0) {
        say(fd, "+PONG\r\n");
    } else if (strcmp(word, "CLUSTER") == 0) {
        say(fd, "-ERR This instance has cluster support disabled\r\n");
    } else if (strcmp(word, "SUBSCRIBE") != 0) {
        (void)atomic_fetch_add(&l->n_asked, 1);
        if (l->lie == LONG_STRING) {
            drip(l, fd);
        } else if (l->lie == DEAF) {
            say(fd, "$-1\r\n");
        } else {
            say(fd, answers[l->lie]);
        }
    }
}

typedef struct talk {
    liar *l;
    int fd;
} talk;

static void *talk_run(void *ctx)
{
    talk *t = ctx;
    quire_resp_reader *reader = quire_resp_reader_new();
    char buffer[4096];
    int closed_fd = t->fd; /* a connection before may have had the number */
    ssize_t n;

    (void)atomic_compare_exchange_strong(&t->l->deaf_fd, &closed_fd, -1);
    assert_non_null(reader);
    while ((n = read(t->fd, buffer, sizeof buffer)) > 0) {
        void *command = NULL;

        (void)quire_resp_feed(reader, buffer, (size_t)n);
        while (quire_resp_next(reader, &command) == 0 && command != NULL) {
            answer(t->l, t->fd, command);
            quire_resp_free(command);
        }
    }
    quire_resp_reader_free(reader);
    (void)close(t->fd);
    return NULL;
}

static void *liar_run(void *ctx)
{
    liar *l = ctx;
    talk talks[256];
    pthread_t threads[256];
    uint32_t n = 0;
    int fd;

    while (n < 256 && (fd = accept(l->fd, NULL, NULL)) >= 0) {
        talks[n] = (talk){ l, fd };
        assert_int_equal(pthread_create(&threads[n], NULL, talk_run, &talks[n]), 0);
        n++;
    }
    while (n > 0) {
        (void)pthread_join(threads[--n], NULL);
    }
    return NULL;
}

static void liar_start(liar *l, lie what)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t n = sizeof at;

    memset(l, 0, sizeof *l);
    l->lie = what;
    atomic_init(&l->deaf_fd, -1);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(l->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(l->fd, 16), 0);
    assert_int_equal(getsockname(l->fd, (struct sockaddr *)&at, &n), 0);
    l->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&l->thread, NULL, liar_run, l), 0);
}

/* The store is closed, so all connections are. */
static void liar_stop(liar *l)
{
    atomic_store(&l->is_over, true);
    (void)shutdown(l->fd, SHUT_RDWR);
    (void)pthread_join(l->thread, NULL);
    (void)close(l->fd);
}

/* With any wrong reply gets and puts end, and none of them with OK. */
static void test_lies(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < LIES; i++) {
        redis_server server = { 0 };
        quire_valkey_store_opts opts;
        quire_store *store;
        test_text text;
        liar l;

        liar_start(&l, (lie)i);
        (void)snprintf(server.url, sizeof server.url, "valkey://127.0.0.1:%u", l.port);
        opts = impatient(&server);
        opts.connect_ms = 200;
        store = redis_open(&opts);
        test_text_make(&text, 4, 1, "a");
        for (uint32_t lap = 0; lap < 200 && (lap < 4 || atomic_load(&l.n_asked) == 0); lap++) {
            for (uint32_t k = 0; k < 4; k++) {
                assert_int_not_equal(redis_get(store, &text.pages[k]), QUIRE_STORE_OK);
                assert_int_not_equal(redis_put(store, &text.pages[k]), QUIRE_STORE_OK);
                /* :7 is a valid reply to a query */
                assert_true(redis_query(store, &text.pages[k]) != QUIRE_STORE_OK || i == INTEGERS);
            }
            if (i == SILENT || i == GARBAGE) {
                assert_int_equal(redis_stats(store).state, QUIRE_STORE_DEGRADED);
                assert_int_equal(atomic_load(&l.n_asked), 0);
                break;
            }
            (void)poll(NULL, 0, 5);
        }
        assert_true(i == SILENT || i == GARBAGE || atomic_load(&l.n_asked) > 0);
        redis_close(store);
        liar_stop(&l);
    }
}

/* A connection for news that is half open is noticed, and another one is made. */
static void test_deaf(void **state)
{
    redis_server server = { 0 };
    quire_valkey_store_opts opts;
    quire_store *store;
    liar l;

    (void)state;
    liar_start(&l, DEAF);
    (void)snprintf(server.url, sizeof server.url, "valkey://127.0.0.1:%u", l.port);
    opts = redis_opts(&server);
    opts.timeout_ms = 1000;
    opts.close_ms = 100;
    store = redis_open(&opts);
    for (uint32_t i = 0; i < 12000 && atomic_load(&l.n_listeners) < 2; i++) {
        (void)poll(NULL, 0, 5);
    }
    assert_true(atomic_load(&l.n_listeners) >= 2);
    redis_close(store);
    liar_stop(&l);
}

/* A store stops asking a server with slow replies. */
static void test_slow(void **state)
{
    redis_server server = { 0 };
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    redis_need();
    redis_start(&server, NULL);
    opts = redis_opts(&server);
    opts.latency_ms = 1;
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    test_text_make(&text, 1, 1, "a");
    while (redis_get(store, &text.pages[0]) != QUIRE_STORE_CLOSED) {
        (void)REDIS_ASK(&server, "CLIENT", "PAUSE", "20", "ALL");
    }
    redis_close(store);
    redis_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dead),        cmocka_unit_test(test_no_name),
        cmocka_unit_test(test_hung),        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_second_host), cmocka_unit_test(test_lies),
        cmocka_unit_test(test_slow),        cmocka_unit_test(test_deaf),
    };

    return cmocka_run_group_tests(tests, NULL, redis_kit_end);
}
