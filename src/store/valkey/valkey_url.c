/* valkey_url.c - see valkey_url.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_url.h"

#include "base/check.h"
#include "base/parse.h"

#include <string.h>

#define DATABASE_MAX 1000000
#define PORT_DIGITS  5u

static const struct {
    const char *begin;
    bool is_tls;
} schemes[] = {
    { "valkey://", false },
    { "redis://", false },
    { "valkeys://", true },
    { "rediss://", true },
};

static int port_parse(const char *text, uint32_t n, uint16_t *out)
{
    char digits[PORT_DIGITS + 1];
    int64_t port;

    QUIRE_FAIL_IF(n == 0 || n > PORT_DIGITS, QUIRE_INVAL);
    memcpy(digits, text, n);
    digits[n] = '\0';
    QUIRE_TRY(quire_parse_i64(digits, 1, UINT16_MAX, &port));
    *out = (uint16_t)port;
    return QUIRE_OK;
}

static bool is_host_byte(char c, bool is_v6)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || (is_v6 && (c == ':' || c == '%'));
}

int quire_valkey_addr_parse(const char *text, uint32_t n, quire_valkey_addr *out)
{
    const bool is_v6 = n > 0 && text[0] == '[';
    const char *host = text + is_v6;
    const char *end = memchr(text, is_v6 ? ']' : ':', n);
    const uint32_t n_host = (uint32_t)((end != NULL ? end : text + n) - host);
    const char *rest = host + n_host + is_v6;

    QUIRE_FAIL_IF(n_host == 0 || n_host > QUIRE_VALKEY_HOST_MAX || (is_v6 && end == NULL),
                  QUIRE_INVAL);
    for (uint32_t i = 0; i < n_host; i++) {
        QUIRE_FAIL_IF(!is_host_byte(host[i], is_v6), QUIRE_INVAL);
    }
    *out = (quire_valkey_addr){ .port = QUIRE_VALKEY_PORT };
    memcpy(out->host, host, n_host);
    if (rest == text + n) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(*rest != ':', QUIRE_INVAL);
    return port_parse(rest + 1, (uint32_t)(text + n - rest - 1), &out->port);
}

static const char *scheme_skip(const char *text, quire_valkey_url *out)
{
    for (uint32_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        const size_t n = strlen(schemes[i].begin);

        if (strncmp(text, schemes[i].begin, n) == 0) {
            out->is_tls = schemes[i].is_tls;
            return text + n;
        }
    }
    return NULL;
}

/* The hosts of text, up to its end or a '/'. *rest points behind them. */
static int hosts_parse(const char *text, quire_valkey_url *out, const char **rest, quire_error *err)
{
    for (;;) {
        const uint32_t n = (uint32_t)strcspn(text, ",/");

        if (out->n_hosts == QUIRE_VALKEY_HOSTS_MAX) {
            return quire_error_set(err, QUIRE_INVAL, "more than %u hosts", QUIRE_VALKEY_HOSTS_MAX);
        }
        if (quire_valkey_addr_parse(text, n, &out->hosts[out->n_hosts]) < 0) {
            return quire_error_set(err, QUIRE_INVAL, "'%.*s' is no HOST or HOST:PORT",
                                   (int)(n < 80 ? n : 80), text);
        }
        out->n_hosts++;
        text += n;
        if (*text != ',') {
            *rest = text;
            return QUIRE_OK;
        }
        text++;
    }
}

int quire_valkey_url_parse(const char *text, quire_valkey_url *out, quire_error *err)
{
    const char *rest = NULL;
    int64_t database = 0;

    *out = (quire_valkey_url){ 0 };
    text = scheme_skip(text, out);
    if (text == NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "the URL begins with valkey://, redis://, or with valkeys:// or "
                               "rediss:// for TLS");
    }
    if (strchr(text, '@') != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "the URL holds no user and no password: give store_user, and "
                               "store_password_file or QUIRE_STORE_PASSWORD");
    }
    QUIRE_TRY(hosts_parse(text, out, &rest, err));
    if (*rest == '/' && rest[1] != '\0' &&
        quire_parse_i64(rest + 1, 0, DATABASE_MAX, &database) < 0) {
        return quire_error_set(err, QUIRE_INVAL, "'%.80s' is no number of a database", rest + 1);
    }
    out->database = (uint32_t)database;
    return QUIRE_OK;
}
