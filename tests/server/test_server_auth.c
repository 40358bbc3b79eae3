/* test_server_auth.c - the errors for a refused key or Host.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/origin.h"
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

static void start_as_known(const char *hosts, const char *origins, uint32_t n_keys)
{
    static const quire_server_key keys[] = { { .key = "k1", .tenant = "a" } };
    quire_server_opts opts = server_fixture_opts();

    opts.allowed_hosts = hosts;
    opts.cors_origins = origins;
    opts.keys = n_keys > 0 ? keys : NULL;
    opts.n_keys = n_keys;
    server_fixture_start(&f, &opts);
}

static int start_with_lists(void **state)
{
    (void)state;
    start_as_known("gpu-box.lan, [fe80::1]", "https://app.example:8443,http://b.example", 0);
    return 0;
}

static int start_with_lists_and_a_key(void **state)
{
    (void)state;
    start_as_known("gpu-box.lan", "*", 1);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

/* A request with these headers, Host among them. Memory: http_reply_free(). */
static http_reply send_line(const char *line, const char *headers)
{
    const int fd = http_connect(f.port);
    char text[512];
    http_reply reply;

    text[0] = '\0';
    text_append(text, sizeof text, line);
    text_append(text, sizeof text, " HTTP/1.1\r\nConnection: close\r\n");
    text_append(text, sizeof text, headers);
    text_append(text, sizeof text, "\r\n");
    http_send(fd, text, strlen(text));
    reply = http_receive(fd);
    (void)close(fd);
    return reply;
}

/* A GET. Memory: json_decref(). */
static json_t *ask(const char *headers, int status)
{
    http_reply reply = send_line("GET /v1/models", headers);
    json_t *root;

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

/* Anthropic's clients send the key in a header of its own. */
static void a_key_may_come_as_x_api_key(void **state)
{
    (void)state;
    json_decref(ask("Host: a\r\nx-api-key: k1\r\n", 200));
    json_decref(ask("Host: a\r\nX-Api-Key: k1\r\nAuthorization: Bearer\r\n", 200));
    json_decref(ask("Host: a\r\nx-api-key: k1\r\nAuthorization: Basic azE6\r\n", 200));
    expect("Host: a\r\nx-api-key: k2\r\n", 401, "invalid_api_key", "none of this server's keys");
    expect("Host: a\r\nx-api-key: k1\r\nAuthorization: Bearer k2\r\n", 401, "invalid_api_key",
           "none of this server's keys");
    expect("Host: a\r\n", 401, "invalid_api_key", "x-api-key: KEY");
}

static void errors_of_messages_have_anthropics_form(void **state)
{
    http_reply reply = send_line("GET /v1/messages/nothing", "Host: a\r\n");
    json_t *root = json_loads(reply.body, 0, NULL);

    (void)state;
    assert_non_null(root);
    assert_string_equal(json_string_at(root, "type"), "error");
    assert_string_equal(json_string_at(root, "error.type"), "not_found_error");
    assert_non_null(json_string_at(root, "error.message"));
    json_decref(root);
    http_reply_free(&reply);
}

static void listed_hosts_and_origins_are_allowed(void **state)
{
    http_reply reply;

    (void)state;
    json_decref(ask("Host: gpu-box.lan:8080\r\n", 200));
    json_decref(ask("Host: GPU-BOX.lan\r\n", 200));
    json_decref(ask("Host: [fe80::1]:8080\r\n", 200));
    expect("Host: gpu-box.lan.evil\r\n", 403, "foreign_origin", "--allowed-hosts gpu-box.lan.evil");
    expect("Host: localhost\r\nOrigin: https://app.example\r\n", 403, "foreign_origin",
           "--cors-origins https://app.example");
    reply = send_line("GET /v1/models", "Host: localhost\r\nOrigin: https://app.example:8443\r\n");
    assert_int_equal(reply.status, 200);
    assert_true(http_has_header(&reply, "Access-Control-Allow-Origin", "https://app.example:8443"));
    assert_true(http_has_header(&reply, "Vary", "Origin"));
    http_reply_free(&reply);
    reply = send_line("GET /v1/models", "Host: localhost\r\nOrigin: http://localhost:3000\r\n");
    assert_int_equal(reply.status, 200); /* may ask, as before; may not read */
    assert_null(strstr(reply.headers, "Access-Control"));
    http_reply_free(&reply);
}

/* A browser asks before it sends: without a key, and for the headers of its page. */
static void preflights_are_answered(void **state)
{
    http_reply reply =
        send_line("OPTIONS /v1/chat/completions",
                  "Host: localhost\r\nOrigin: http://b.example\r\n"
                  "Access-Control-Request-Method: POST\r\n"
                  "Access-Control-Request-Headers: authorization,x-stainless-os\r\n");

    (void)state;
    assert_int_equal(reply.status, 204);
    assert_true(http_has_header(&reply, "Access-Control-Allow-Origin", "http://b.example"));
    assert_true(http_has_header(&reply, "Access-Control-Allow-Methods", "POST"));
    assert_true(
        http_has_header(&reply, "Access-Control-Allow-Headers", "authorization,x-stainless-os"));
    http_reply_free(&reply);
    reply = send_line("OPTIONS /v1/models", "Host: localhost\r\n");
    assert_int_equal(reply.status, 204);
    assert_true(http_has_header(&reply, "Allow", "GET, HEAD"));
    assert_null(strstr(reply.headers, "Access-Control"));
    http_reply_free(&reply);
    reply = send_line("OPTIONS /v1/nothing", "Host: localhost\r\n");
    assert_int_equal(reply.status, 404);
    http_reply_free(&reply);
    reply = send_line("OPTIONS /v1/models", "Host: localhost\r\nOrigin: http://c.example\r\n");
    assert_int_equal(reply.status, 403);
    http_reply_free(&reply);
}

static void a_list_of_hosts_holds_with_keys_too(void **state)
{
    http_reply reply = send_line("GET /v1/models", "Host: gpu-box.lan\r\nx-api-key: k1\r\n"
                                                   "Origin: https://any.example\r\n");

    (void)state;
    assert_int_equal(reply.status, 200);
    assert_true(http_has_header(&reply, "Access-Control-Allow-Origin", "*"));
    http_reply_free(&reply);
    expect("Host: other\r\nx-api-key: k1\r\n", 403, "foreign_origin", "--allowed-hosts other");
}

/* Memory: none. */
static void refuse_opts(const quire_server_opts *opts, int status, const char *says)
{
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(quire_server_opts_check(opts, &err), status);
    if (strstr(err.message, says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
    }
}

static void wrong_lists_are_refused(void **state)
{
    static const char *const hosts[] = { "http://a", "a:80", "a/b", "[::1" };
    static const char *const origins[] = { "a.example", "https://", "https://a/b", "https://u@a" };
    char many[512] = "";

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        quire_server_opts opts = server_fixture_opts();

        opts.allowed_hosts = hosts[i];
        refuse_opts(&opts, QUIRE_INVAL, "allowed_hosts: \"");
        opts.allowed_hosts = NULL;
        opts.cors_origins = origins[i];
        refuse_opts(&opts, QUIRE_INVAL, "cors_origins: \"");
    }
    for (unsigned i = 0; i <= QUIRE_ORIGINS_MAX; i++) {
        text_append(many, sizeof many, "h,");
    }
    {
        quire_server_opts opts = server_fixture_opts();

        opts.allowed_hosts = many;
        refuse_opts(&opts, QUIRE_LIMIT, "allowed_hosts: more than 64");
    }
}

static void wrong_certificates_are_refused(void **state)
{
    quire_server_opts opts = server_fixture_opts();

    (void)state;
    opts.tls_cert = "/proc/self/status"; /* a file, and no certificate */
    refuse_opts(&opts, QUIRE_INVAL, "tls_key is missing");
    opts.tls_key = opts.tls_cert;
    refuse_opts(&opts, QUIRE_INVAL, "tls_cert: there is no \"-----BEGIN CERTIFICATE-----\"");
    opts.tls_cert = "tests/no-such-file";
    refuse_opts(&opts, QUIRE_IO, "tls_cert: cannot read tests/no-such-file");
    opts.tls_cert = NULL;
    refuse_opts(&opts, QUIRE_INVAL, "tls_cert is missing");
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
    expect("Host: \r\n", 403, "foreign_origin", "Host is empty");
    expect("Host: localhost\r\nOrigin: https://example.org\r\n", 403, "foreign_origin",
           "Origin is \"https://example.org\"");
    json_decref(ask("Host: localhost:8080\r\n", 200));
    json_decref(ask("Host: [::1]\r\nOrigin: http://127.0.0.1:80\r\n", 200));
}

/* A Host as long as the buffer for its name, or longer, that begins a bracket and ends none. */
static void a_bracket_without_end_is_refused(void **state)
{
    char headers[QUIRE_ORIGIN_BYTES_MAX + 64] = "Host: [";
    const size_t begin = strlen(headers);

    (void)state;
    for (size_t n = QUIRE_ORIGIN_BYTES_MAX - 2; n <= QUIRE_ORIGIN_BYTES_MAX + 1; n++) {
        memset(headers + begin, 'a', n);
        memcpy(headers + begin + n, "\r\n", 3);
        expect(headers, 403, "foreign_origin", "Host is \"[aaa");
    }
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
        cmocka_unit_test_setup_teardown(a_key_may_come_as_x_api_key, start_with_a_key, stop),
        cmocka_unit_test_setup_teardown(errors_of_messages_have_anthropics_form, start_with_a_key,
                                        stop),
        cmocka_unit_test_setup_teardown(listed_hosts_and_origins_are_allowed, start_with_lists,
                                        stop),
        cmocka_unit_test_setup_teardown(preflights_are_answered, start_with_lists, stop),
        cmocka_unit_test_setup_teardown(a_list_of_hosts_holds_with_keys_too,
                                        start_with_lists_and_a_key, stop),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(wrong_certificates_are_refused),
        cmocka_unit_test_setup_teardown(a_wrong_key_is_not_repeated, start_with_a_key, stop),
        cmocka_unit_test_setup_teardown(every_host_is_allowed_with_keys, start_with_a_key, stop),
        cmocka_unit_test_setup_teardown(a_refused_host_is_named, start_without_keys, stop),
        cmocka_unit_test_setup_teardown(a_bracket_without_end_is_refused, start_without_keys, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
