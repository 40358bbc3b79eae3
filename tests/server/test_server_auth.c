/* test_server_auth.c - what a caller reads whose key or Host is refused.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include <string.h>
#include <unistd.h>

static server_fixture f;

static void start(uint32_t n_keys)
{
    static const quire_server_key keys[] = { { .key = "k1", .tenant = "a" } };

    server_fixture_start_with(&f, keys, n_keys);
}

static int start_with_a_key(void **state)
{
    (void)state;
    start(1);
    return 0;
}

static int start_without_keys(void **state)
{
    (void)state;
    start(0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

/* A GET with these headers, Host among them. Memory: json_decref(). */
static json_t *ask(const char *headers, int status)
{
    const int fd = http_connect(f.port);
    char text[512];
    http_reply reply;
    json_t *root;

    text[0] = '\0';
    text_append(text, sizeof text, "GET /v1/models HTTP/1.1\r\nConnection: close\r\n");
    text_append(text, sizeof text, headers);
    text_append(text, sizeof text, "\r\n");
    http_send(fd, text, strlen(text));
    reply = http_receive(fd);
    (void)close(fd);
    assert_int_equal(reply.status, status);
    root = json_loads(reply.body, 0, NULL);
    assert_non_null(root);
    http_reply_free(&reply);
    return root;
}

static void expect(const char *headers, int status, const char *code, const char *says)
{
    json_t *root = ask(headers, status);
    const char *message = json_string_at(root, "error.message");

    assert_string_equal(json_string_at(root, "error.code"), code);
    if (strstr(message, says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", message, says);
    }
    json_decref(root);
}

static void a_missing_key_and_a_wrong_one_differ(void **state)
{
    char long_key[QUIRE_SERVER_KEY_BYTES_MAX + 64] = "Host: a\r\nAuthorization: Bearer ";
    const size_t n = strlen(long_key);

    (void)state;
    expect("Host: a\r\n", 401, "invalid_api_key", "no API key was sent");
    expect("Host: a\r\nAuthorization: Bearer \r\n", 401, "invalid_api_key", "no API key was sent");
    expect("Host: a\r\nAuthorization: Basic azE6\r\n", 401, "invalid_api_key", "Bearer KEY");
    expect("Host: a\r\nAuthorization: Bearer k2\r\n", 401, "invalid_api_key",
           "none of this server's keys");
    memset(long_key + n, 'a', QUIRE_SERVER_KEY_BYTES_MAX + 1);
    memcpy(long_key + n + QUIRE_SERVER_KEY_BYTES_MAX + 1, "\r\n", 3);
    expect(long_key, 401, "invalid_api_key", "none of this server's keys");
    json_decref(ask("Host: a\r\nAuthorization: Bearer k1\r\n", 200));
}

static void a_wrong_key_is_not_repeated(void **state)
{
    json_t *root = ask("Host: a\r\nAuthorization: Bearer secret\r\n", 401);

    (void)state;
    assert_null(strstr(json_string_at(root, "error.message"), "secret"));
    json_decref(root);
}

static void a_refused_host_is_named(void **state)
{
    (void)state;
    expect("Host: gpu-box.lan:8080\r\n", 403, "foreign_origin", "Host is \"gpu-box.lan:8080\"");
    expect("Host: gpu-box.lan\r\n", 403, "foreign_origin", "--api-key");
    expect("Host: gpu-box.lan\r\n", 403, "foreign_origin", "localhost");
    expect("Host: b\xff\"d\r\n", 403, "foreign_origin", "Host is \"b?\"d\"");
    expect("Host: localhost\r\nOrigin: https://example.org\r\n", 403, "foreign_origin",
           "Origin is \"https://example.org\"");
    json_decref(ask("Host: localhost:8080\r\n", 200));
    json_decref(ask("Host: [::1]\r\nOrigin: http://127.0.0.1:80\r\n", 200));
}

static void every_host_is_allowed_with_keys(void **state)
{
    (void)state;
    json_decref(ask("Host: gpu-box.lan\r\nOrigin: https://example.org\r\n"
                    "Authorization: Bearer k1\r\n",
                    200));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_missing_key_and_a_wrong_one_differ, start_with_a_key,
                                        stop),
        cmocka_unit_test_setup_teardown(a_wrong_key_is_not_repeated, start_with_a_key, stop),
        cmocka_unit_test_setup_teardown(every_host_is_allowed_with_keys, start_with_a_key, stop),
        cmocka_unit_test_setup_teardown(a_refused_host_is_named, start_without_keys, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
