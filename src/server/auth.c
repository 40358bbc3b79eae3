/* auth.c - API keys.
 *
 * SPDX-License-Identifier: MIT */
#include "server/auth.h"

#include "base/check.h"
#include "server/service_tier.h"
#include "server/tenant.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct auth_key {
    unsigned char key[QUIRE_SERVER_KEY_BYTES_MAX]; /* padded with zeros; compared in full */
    char tenant[QUIRE_TENANT_MAX + 1];
    quire_caller caller; /* its tenant points to the field above */
} auth_key;

struct quire_auth {
    quire_caller everybody; /* the caller without keys */
    uint32_t n_keys;
    auth_key keys[];
};

static bool is_word(const char *text, size_t n_max)
{
    const size_t n = text != NULL ? strnlen(text, n_max + 1) : 0;

    for (size_t i = 0; i < n; i++) {
        if (text[i] <= 0x20 || text[i] >= 0x7f) {
            return false;
        }
    }
    return n > 0 && n <= n_max;
}

/* Zero when equal. No branch depends on the bytes. */
static unsigned key_difference(const unsigned char *a, const unsigned char *b)
{
    unsigned difference = 0;

    for (size_t i = 0; i < QUIRE_SERVER_KEY_BYTES_MAX; i++) {
        difference |= (unsigned)(a[i] ^ b[i]);
    }
    return difference;
}

static int key_add(quire_auth *auth, const quire_server_key *from, const quire_tiers *tiers,
                   quire_error *err)
{
    auth_key *key = &auth->keys[auth->n_keys];
    char what[24];
    const char *tenant = from->is_admin && from->tenant == NULL ? "admin" : from->tenant;

    if (!is_word(from->key, QUIRE_SERVER_KEY_BYTES_MAX)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "key %u: 1 .. %u printable ASCII characters without blanks",
                               auth->n_keys + 1, QUIRE_SERVER_KEY_BYTES_MAX);
    }
    if (!is_word(tenant, QUIRE_TENANT_MAX)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "tenant of key %u: 1 .. %u printable ASCII characters without "
                               "blanks",
                               auth->n_keys + 1, QUIRE_TENANT_MAX);
    }
    memcpy(key->key, from->key, strlen(from->key));
    (void)snprintf(key->tenant, sizeof key->tenant, "%s", tenant);
    key->caller = (quire_caller){
        .tenant = key->tenant,
        .is_admin = from->is_admin,
        .is_tenant = !from->is_admin,
    };
    (void)snprintf(what, sizeof what, "key %u", auth->n_keys + 1);
    QUIRE_TRY(quire_tiers_limit(tiers, what, from, &key->caller, err));
    for (uint32_t i = 0; i < auth->n_keys; i++) {
        if (key_difference(auth->keys[i].key, key->key) == 0) {
            return quire_error_set(err, QUIRE_INVAL, "key %u is the same as key %u",
                                   auth->n_keys + 1, i + 1);
        }
    }
    auth->n_keys++;
    return QUIRE_OK;
}

int quire_auth_create(quire_auth **out, const quire_server_key *keys, uint32_t n_keys,
                      const quire_tiers *tiers, quire_error *err)
{
    const quire_server_key nobody = { 0 };
    quire_auth *auth;

    *out = NULL;
    if (n_keys > QUIRE_SERVER_KEYS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "%u keys, at most %u", n_keys,
                               QUIRE_SERVER_KEYS_MAX);
    }
    auth = calloc(1, sizeof *auth + n_keys * sizeof auth->keys[0]);
    if (auth == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    auth->everybody = (quire_caller){ .tenant = "", .is_admin = true, .is_tenant = true };
    (void)quire_tiers_limit(tiers, "", &nobody, &auth->everybody, err); /* limits nothing */
    for (uint32_t i = 0; i < n_keys; i++) {
        const int rc = key_add(auth, &keys[i], tiers, err);

        if (rc < 0) {
            free(auth);
            return rc;
        }
    }
    *out = auth;
    return QUIRE_OK;
}

void quire_auth_destroy(quire_auth *auth)
{
    free(auth);
}

bool quire_auth_has_keys(const quire_auth *auth)
{
    return auth->n_keys > 0;
}

/* The key that was sent. Returns NULL with *why when there is none. */
static const char *key_sent(const char *authorization, const char *api_key, quire_auth_result *why)
{
    static const char scheme[] = "Bearer ";
    const char *text = authorization != NULL ? authorization : "";
    const bool is_bearer = strncasecmp(text, scheme, sizeof scheme - 1) == 0;

    if (is_bearer && text[sizeof scheme - 1] != '\0') {
        return text + sizeof scheme - 1;
    }
    if (api_key != NULL && api_key[0] != '\0') {
        return api_key;
    }
    /* Trailing blanks of a header are removed: "Bearer " without a key arrives as "Bearer". */
    *why = text[0] == '\0' || is_bearer || strcasecmp(text, "Bearer") == 0 ? QUIRE_AUTH_MISSING
                                                                           : QUIRE_AUTH_SCHEME;
    return NULL;
}

quire_auth_result quire_auth_find(const quire_auth *auth, const char *authorization,
                                  const char *api_key, quire_caller *out)
{
    unsigned char sent[QUIRE_SERVER_KEY_BYTES_MAX] = { 0 };
    quire_auth_result result = QUIRE_AUTH_WRONG;
    const auth_key *found = NULL;
    const char *text;
    size_t n;

    if (auth->n_keys == 0) {
        *out = auth->everybody;
        return QUIRE_AUTH_OK;
    }
    text = key_sent(authorization, api_key, &result);
    n = text != NULL ? strlen(text) : 0;
    if (text == NULL || n > sizeof sent) {
        return result;
    }
    memcpy(sent, text, n);
    for (uint32_t i = 0; i < auth->n_keys; i++) {
        found = key_difference(auth->keys[i].key, sent) == 0 ? &auth->keys[i] : found;
    }
    if (found == NULL) {
        return QUIRE_AUTH_WRONG;
    }
    *out = found->caller;
    return QUIRE_AUTH_OK;
}

bool quire_auth_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (strcasecmp(host, "localhost") == 0) {
        return true;
    }
    if (inet_pton(AF_INET, host, &v4) == 1) {
        return ntohl(v4.s_addr) >> 24 == 127;
    }
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool quire_auth_is_local(const char *host_or_origin)
{
    char host[64];
    const char *begin = host_or_origin;
    const char *scheme;
    size_t n;

    if (begin == NULL) {
        return true;
    }
    scheme = strstr(begin, "://");
    begin = scheme != NULL ? scheme + 3 : begin;
    if (*begin == '[') {
        begin++;
        n = strcspn(begin, "]");
    } else {
        n = strcspn(begin, ":/");
    }
    if (n >= sizeof host) {
        return false;
    }
    memcpy(host, begin, n);
    host[n] = '\0';
    return quire_auth_is_loopback(host);
}
