/* redis_kit.c - see redis_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include "redis_kit.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "store/valkey/valkey_resp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS_MAX 48u
#define WAIT_S    60u
#define WAIT_MS   5

static const char *const programs[] = { "/usr/bin/valkey-server", "/usr/bin/redis-server",
                                        "/usr/local/bin/valkey-server",
                                        "/usr/local/bin/redis-server" };

static const char *program(void)
{
    for (uint32_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        if (access(programs[i], X_OK) == 0) {
            return programs[i];
        }
    }
    return NULL;
}

void redis_need(void)
{
    if (program() == NULL) {
        print_message("neither redis-server nor valkey-server is installed\n");
        skip();
    }
}

/* ---- sockets ---- */

static struct sockaddr_in loopback(uint16_t port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

uint16_t redis_port(void)
{
    struct sockaddr_in at = loopback(0);
    socklen_t n = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    assert_int_equal(close(fd), 0);
    return ntohs(at.sin_port);
}

static int connect_to(uint16_t port)
{
    const struct sockaddr_in at = loopback(port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) < 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* ---- servers ---- */

static void server_exec(const redis_server *server, const char *const *words)
{
    const char *argv[WORDS_MAX];
    char port[8];
    uint32_t n = 0;

    (void)snprintf(port, sizeof port, "%u", server->port);
    argv[n++] = program();
    argv[n++] = server->is_tls ? "--tls-port" : "--port";
    argv[n++] = port;
    for (const char *const *w =
             (const char *const[]){ "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                                    "--dir", server->dir, "--protected-mode", "no", NULL };
         *w != NULL; w++) {
        argv[n++] = *w;
    }
    for (; words != NULL && *words != NULL && n + 1 < WORDS_MAX; words++) {
        argv[n++] = *words;
    }
    argv[n] = NULL;
    (void)execv(argv[0], (char *const *)(uintptr_t)argv);
}

static void server_spawn(redis_server *server, const char *const *words)
{
    const pid_t parent = getpid();

    server->pid = fork();
    assert_true(server->pid >= 0);
    if (server->pid == 0) {
        const int null = open("/dev/null", O_RDWR);

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent && dup2(null, 0) >= 0 && dup2(null, 1) >= 0 && dup2(null, 2) >= 0) {
            server_exec(server, words);
        }
        _exit(127);
    }
}

/* Wait until the server accepts connections. */
static void server_await(const redis_server *server)
{
    const uint64_t end_ns = quire_clock_ns() + (uint64_t)WAIT_S * 1000000000u;
    int fd = -1;

    while ((fd = connect_to(server->port)) < 0) {
        assert_true(quire_clock_ns() < end_ns);
        assert_int_equal(waitpid(server->pid, NULL, WNOHANG), 0);
        (void)poll(NULL, 0, WAIT_MS);
    }
    (void)close(fd);
}

void redis_start(redis_server *server, const char *const *words)
{
    const bool is_tls = server->is_tls;

    *server = (redis_server){ .port = redis_port(), .is_tls = is_tls, .dir = "/tmp/quire-rXXXXXX" };
    assert_non_null(mkdtemp(server->dir));
    (void)snprintf(server->url, sizeof server->url, "%s://127.0.0.1:%u",
                   is_tls ? "valkeys" : "valkey", server->port);
    server_spawn(server, words);
    server_await(server);
}

void redis_restart(redis_server *server, const char *const *words)
{
    server_spawn(server, words);
    server_await(server);
}

void redis_signal(redis_server *server, int signal)
{
    assert_int_equal(kill(server->pid, signal), 0);
    if (signal == SIGKILL) {
        assert_int_equal(waitpid(server->pid, NULL, 0), server->pid);
        server->pid = 0;
    }
}

void redis_stop(redis_server *server)
{
    char path[64];

    if (server->pid > 0) {
        redis_signal(server, SIGKILL);
    }
    (void)snprintf(path, sizeof path, "%s/nodes.conf", server->dir);
    (void)unlink(path);
    (void)rmdir(server->dir);
}

/* ---- asking ---- */

static void reply_print(quire_bytes *out, const quire_resp *reply)
{
    switch (reply->type) {
    case QUIRE_RESP_INTEGER:
        (void)quire_bytes_addf(out, "%lld", reply->integer);
        break;
    case QUIRE_RESP_ARRAY:
        for (size_t i = 0; i < reply->elements; i++) {
            (void)quire_bytes_addf(out, i > 0 ? "\n" : "");
            reply_print(out, reply->element[i]);
        }
        break;
    case QUIRE_RESP_STRING:
    case QUIRE_RESP_STATUS:
    case QUIRE_RESP_ERROR:
        (void)quire_bytes_add(out, reply->str, (size_t)reply->len);
        break;
    default:
        (void)quire_bytes_addf(out, "(nil)");
    }
}

static void words_send(int fd, const char *const *words)
{
    quire_bytes text = { 0 };
    uint32_t n = 0;

    while (words[n] != NULL) {
        n++;
    }
    (void)quire_bytes_addf(&text, "*%u\r\n", n);
    for (uint32_t i = 0; i < n; i++) {
        (void)quire_bytes_addf(&text, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
    }
    assert_int_equal(send(fd, text.data, text.n, MSG_NOSIGNAL), (ssize_t)text.n);
    quire_bytes_fini(&text);
}

const char *redis_ask(const redis_server *server, const char *const *words)
{
    static quire_bytes text;
    quire_resp_reader *reader = quire_resp_reader_new();
    const int fd = connect_to(server->port);
    void *reply = NULL;
    char buffer[4096];

    assert_true(fd >= 0);
    assert_non_null(reader);
    words_send(fd, words);
    while (reply == NULL) {
        const ssize_t n = read(fd, buffer, sizeof buffer);

        assert_true(n > 0);
        assert_int_equal(quire_resp_feed(reader, buffer, (size_t)n), 0);
        assert_int_equal(quire_resp_next(reader, &reply), 0);
    }
    quire_bytes_fini(&text);
    (void)quire_bytes_addf(&text, "%s", "");
    reply_print(&text, reply);
    quire_resp_free(reply);
    quire_resp_reader_free(reader);
    (void)close(fd);
    return text.data;
}

/* ---- stores ---- */

static char secret[32];

const char *redis_secret(void)
{
    if (secret[0] == '\0') {
        int fd;

        (void)snprintf(secret, sizeof secret, "/tmp/quire-secret-XXXXXX");
        fd = mkstemp(secret);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "a secret of the tests, 32 bytes.", 32), 32);
        (void)close(fd);
    }
    return secret;
}

int redis_kit_end(void **state)
{
    (void)state;
    if (secret[0] != '\0') {
        (void)unlink(secret);
    }
    return 0;
}

static uint32_t tenant_bytes(const void *salt, uint32_t n)
{
    const char *slash = memchr(salt, '/', n);

    return slash != NULL ? (uint32_t)(slash - (const char *)salt) + 1 : 0;
}

quire_valkey_store_opts redis_opts(const redis_server *server)
{
    quire_valkey_store_opts opts = QUIRE_VALKEY_STORE_OPTS_INIT;

    opts.url = server->url;
    opts.secret_file = redis_secret();
    opts.identity[0] = 7;
    opts.identity[1] = 8;
    opts.tenant_bytes = tenant_bytes;
    opts.timeout_ms = 20000;
    opts.latency_ms = 0;
    opts.connect_ms = 20000;
    opts.close_ms = 20000;
    return opts;
}

/* The waker of a test's store. */
typedef struct doorbell {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_rung;
} doorbell;

static doorbell bell = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false };

static void ring(void *ctx)
{
    (void)ctx;
    (void)pthread_mutex_lock(&bell.lock);
    bell.has_rung = true;
    (void)pthread_cond_broadcast(&bell.changed);
    (void)pthread_mutex_unlock(&bell.lock);
}

static void bell_wait(void)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    (void)pthread_mutex_lock(&bell.lock);
    while (!bell.has_rung) {
        assert_int_equal(pthread_cond_timedwait(&bell.changed, &bell.lock, &until), 0);
    }
    bell.has_rung = false;
    (void)pthread_mutex_unlock(&bell.lock);
}

quire_store *redis_open(const quire_valkey_store_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_store *store;

    if (quire_valkey_store_create(&store, opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    quire_store_waker_set(store, (quire_store_waker){ ring, NULL });
    return store;
}

void redis_close(quire_store *store)
{
    (void)test_store_close(store);
}

quire_store_stats redis_stats(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats;
}

void redis_await(const quire_store *store, quire_store_state state)
{
    const uint64_t end_ns = quire_clock_ns() + (uint64_t)WAIT_S * 1000000000u;

    while (redis_stats(store).state != state) {
        assert_true(quire_clock_ns() < end_ns);
        (void)poll(NULL, 0, WAIT_MS);
    }
}

quire_transfer *redis_wait(quire_store *store)
{
    quire_transfer *t;

    while (store->ops->poll(store, &t, 1) == 0) {
        bell_wait();
    }
    return t;
}

quire_store_result redis_put_version(quire_store *store, const quire_page_text *page,
                                     uint32_t version)
{
    quire_transfer *t = test_put_new(page, version);
    quire_store_result result;

    t->is_replacing = version > 0;
    store->ops->put(store, &t, 1);
    assert_ptr_equal(redis_wait(store), t);
    result = t->result;
    quire_transfer_free(t);
    return result;
}

quire_store_result redis_put(quire_store *store, const quire_page_text *page)
{
    return redis_put_version(store, page, 0);
}

quire_store_result redis_get_version(quire_store *store, const quire_page_text *page,
                                     uint32_t version)
{
    quire_transfer *t = test_get_new(page);
    quire_store_result result;

    store->ops->get(store, &t, 1);
    assert_ptr_equal(redis_wait(store), t);
    result = t->result;
    if (result == QUIRE_STORE_OK) {
        assert_true(test_is_payload(&t->found, version));
    }
    quire_transfer_free(t);
    return result;
}

quire_store_result redis_get(quire_store *store, const quire_page_text *page)
{
    return redis_get_version(store, page, 0);
}

quire_store_result redis_query(quire_store *store, const quire_page_text *page)
{
    quire_transfer *t = quire_transfer_new(0, TEST_PAGE_TOKENS);
    quire_store_result result;

    assert_non_null(t);
    t->text = (quire_page_text){ .key = page->key, .parent = page->parent, .root = page->root };
    t->is_query = true;
    store->ops->get(store, &t, 1);
    assert_ptr_equal(redis_wait(store), t);
    result = t->result;
    quire_transfer_free(t);
    return result;
}

void redis_put_all(quire_store *store, const test_text *text)
{
    for (uint32_t i = 0; i < text->n_pages; i++) {
        assert_int_equal(redis_put(store, &text->pages[i]), QUIRE_STORE_OK);
    }
}

uint32_t redis_count(quire_store *store, const test_text *text)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < text->n_pages; i++) {
        n += redis_get(store, &text->pages[i]) == QUIRE_STORE_OK;
    }
    return n;
}

void redis_drop_text(quire_store *store, const quire_page_text *page, quire_store_drop_what what)
{
    const quire_store_drop drop = { .what = what, .key = page->key, .root = page->root };

    assert_int_equal(store->ops->drop(store, &drop), QUIRE_OK);
}

void redis_drop_salt(quire_store *store, const char *salt, quire_store_drop_what what)
{
    const quire_store_drop drop = { .what = what,
                                    .salt = salt,
                                    .salt_bytes = (uint32_t)strlen(salt) };

    assert_int_equal(store->ops->drop(store, &drop), QUIRE_OK);
}
