/* test_valkey_tls.c - the shared store over TLS: with the right authority and name, and refused
 * without them. The certificates are made by openssl for each run.
 *
 * SPDX-License-Identifier: MIT */
#include "redis_kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/quire-tls-XXXXXX";
static char paths[6][48]; /* ca.key ca.crt good.key good.crt other.key other.crt */
static redis_server server;

enum {
    CA_KEY,
    CA,
    KEY,
    CERT,
    OTHER_KEY,
    OTHER
};

/* Run openssl; its words end with NULL. */
static void openssl(const char *const *words)
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        const char *argv[32] = { "openssl" };
        const int null = open("/dev/null", O_RDWR);
        uint32_t n = 1;

        for (; *words != NULL && n < 31; words++) {
            argv[n++] = *words;
        }
        (void)dup2(null, 1);
        (void)dup2(null, 2);
        (void)execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}
#define OPENSSL(...) openssl((const char *const[]){ __VA_ARGS__, NULL })

#define NEW_KEY "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"

static void certificates_make(void)
{
    static const char *const names[] = { "ca.key",   "ca.crt",    "good.key",
                                         "good.crt", "other.key", "other.crt" };

    assert_non_null(mkdtemp(dir));
    for (uint32_t i = 0; i < 6; i++) {
        (void)snprintf(paths[i], sizeof paths[i], "%s/%s", dir, names[i]);
    }
    OPENSSL("req", "-x509", NEW_KEY, "-subj", "/CN=authority", "-keyout", paths[CA_KEY], "-out",
            paths[CA]);
    OPENSSL("req", "-x509", NEW_KEY, "-subj", "/CN=localhost", "-addext",
            "subjectAltName=IP:127.0.0.1", "-CA", paths[CA], "-CAkey", paths[CA_KEY], "-keyout",
            paths[KEY], "-out", paths[CERT]);
    OPENSSL("req", "-x509", NEW_KEY, "-subj", "/CN=other", "-addext", "subjectAltName=DNS:other",
            "-keyout", paths[OTHER_KEY], "-out", paths[OTHER]);
}

static void server_need(void)
{
    redis_need();
    if (access("/usr/bin/openssl", X_OK) != 0) {
        print_message("openssl is not installed\n");
        skip();
    }
    if (server.pid > 0) {
        return;
    }
    certificates_make();
    server.is_tls = true;
    redis_start(&server, (const char *const[]){ "--port", "0", "--tls-cert-file", paths[CERT],
                                                "--tls-key-file", paths[KEY], "--tls-ca-cert-file",
                                                paths[CA], NULL });
}

static int end(void **state)
{
    if (server.pid > 0) {
        redis_stop(&server);
        for (uint32_t i = 0; i < 6; i++) {
            (void)unlink(paths[i]);
        }
        (void)rmdir(dir);
    }
    return redis_kit_end(state);
}

static quire_valkey_store_opts good_opts(void)
{
    quire_valkey_store_opts opts = redis_opts(&server);

    opts.ca_file = paths[CA];
    opts.cert_file = paths[CERT]; /* Redis asks clients for one */
    opts.key_file = paths[KEY];
    return opts;
}

static void test_round_trip(void **state)
{
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    server_need();
    opts = good_opts();
    store = redis_open(&opts);
    redis_await(store, QUIRE_STORE_READY);
    test_text_make(&text, 8, 1, "a");
    redis_put_all(store, &text);
    assert_int_equal(redis_count(store, &text), 8);
    for (uint32_t i = 0; i < 2; i++) { /* more than a record of TLS, and than a chunk */
        quire_transfer *t = i == 0 ? test_put_sized(&text.pages[0], 1, 3000000)
                                   : test_get_sized(&text.pages[0], 3000000);

        t->is_replacing = true;
        if (i == 0) {
            store->ops->put(store, &t, 1);
        } else {
            store->ops->get(store, &t, 1);
        }
        assert_ptr_equal(redis_wait(store), t);
        assert_int_equal(t->result, QUIRE_STORE_OK);
        assert_true(i == 0 || test_is_payload_sized(&t->found, 1, 3000000));
        quire_transfer_free(t);
    }
    redis_drop_text(store, &text.pages[0], QUIRE_STORE_DROP_BEHIND);
    assert_int_equal(redis_get(store, &text.pages[5]), QUIRE_STORE_ABSENT);
    redis_close(store);
}

/* Whom the store does not trust, it tells nothing; the trouble says why. */
static void test_refused(void **state)
{
    quire_valkey_store_opts opts;
    quire_store *store;
    test_text text;

    (void)state;
    server_need();
    test_text_make(&text, 1, 1, "a");
    for (uint32_t i = 0; i < 4; i++) {
        char url[64];

        opts = good_opts();
        if (i == 0) {
            opts.ca_file = paths[OTHER]; /* another authority */
        } else if (i == 1) {
            (void)snprintf(url, sizeof url, "valkeys://localhost:%u", server.port);
            opts.url = url; /* a name that the certificate does not have */
        } else if (i == 2) {
            opts.cert_file = NULL; /* the server wants one */
            opts.key_file = NULL;
        } else {
            (void)snprintf(url, sizeof url, "valkey://127.0.0.1:%u", server.port);
            opts.url = url; /* without TLS */
            opts.ca_file = NULL;
            opts.cert_file = NULL;
            opts.key_file = NULL;
        }
        store = redis_open(&opts);
        if (redis_get(store, &text.pages[0]) != QUIRE_STORE_CLOSED) {
            fail_msg("case %u is trusted", i);
        }
        redis_await(store, QUIRE_STORE_DEGRADED);
        if (i < 2) {
            assert_non_null(strstr(redis_stats(store).trouble, "certificate: "));
        }
        redis_close(store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, end);
}
