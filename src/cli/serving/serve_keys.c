/* serve_keys.c - see serve_keys.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_keys.h"

#include "base/check.h"
#include "server/tenant.h"

#include <stdlib.h>
#include <string.h>

static bool is_plain(const char *text, size_t max)
{
    const size_t n = strlen(text);

    for (size_t i = 0; i < n; i++) {
        if (text[i] <= ' ' || text[i] > '~') {
            return false;
        }
    }
    return n > 0 && n <= max;
}

/* Add a key; where: the name of the key in messages. */
static int add(quire_serve_keys *keys, const char *where, const quire_server_key *key,
               quire_error *err)
{
    if (!is_plain(key->key, QUIRE_SERVER_KEY_BYTES_MAX)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: a key is 1 to %u printable ASCII characters without blanks",
                               where, QUIRE_SERVER_KEY_BYTES_MAX);
    }
    if (!is_plain(key->tenant, QUIRE_TENANT_MAX)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: a tenant is 1 to %u printable ASCII characters without blanks",
                               where, QUIRE_TENANT_MAX);
    }
    if (keys->n == QUIRE_SERVER_KEYS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%s: there are more than %u keys", where,
                               QUIRE_SERVER_KEYS_MAX);
    }
    for (uint32_t i = 0; i < keys->n; i++) {
        if (strcmp(keys->list[i].key, key->key) == 0) {
            return quire_error_set(err, QUIRE_INVAL, "%s: the same key is given before", where);
        }
    }
    keys->list[keys->n++] = *key;
    return QUIRE_OK;
}

/* The first line of a file. Memory: the keys'. */
static int read_key(quire_serve_keys *keys, const char *where, const char *path, const char **key,
                    quire_error *err)
{
    char **text = &keys->texts[keys->n];
    size_t n;

    if (quire_read_file(path, text, &n, err) < 0) {
        quire_error inner = *err;

        return quire_error_set(err, inner.status, "%s: %.300s", where, inner.message);
    }
    (*text)[strcspn(*text, "\r\n")] = '\0';
    *key = *text;
    return QUIRE_OK;
}

static int add_entry(quire_serve_keys *keys, const char *where, const quire_config_key *entry,
                     const quire_tiers *tiers, quire_error *err)
{
    const int n_given = (entry->key != NULL) + (entry->key_env != NULL) + (entry->key_file != NULL);
    quire_server_key key = { .key = entry->key,
                             .is_admin = entry->is_admin,
                             .max_class = entry->max_class,
                             .default_class = entry->default_class };
    quire_caller limited;

    if (n_given != 1) {
        return quire_error_set(err, QUIRE_INVAL, "%s needs %s key, key_env and key_file", where,
                               n_given == 0 ? "one of" : "only one of");
    }
    if (key.is_admin && entry->tenant != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: a key of an administrator has no tenant: it may administer, "
                               "and only that",
                               where);
    }
    key.tenant = entry->tenant != NULL ? entry->tenant : QUIRE_SERVE_TENANT;
    QUIRE_TRY(quire_tiers_limit(tiers, where, &key, &limited, err));
    if (entry->key_env != NULL) {
        key.key = getenv(entry->key_env);
        if (key.key == NULL) {
            return quire_error_set(err, QUIRE_INVAL, "%s: key_env: %.80s is not in the environment",
                                   where, entry->key_env);
        }
    }
    if (entry->key_file != NULL) {
        QUIRE_TRY(read_key(keys, where, entry->key_file, &key.key, err));
    }
    return add(keys, where, &key, err);
}

int quire_serve_keys_read(quire_serve_keys *out, const quire_serve_args *args,
                          const quire_tiers *tiers, quire_error *err)
{
    const uint32_t n = quire_config_file_count(args->settings.file, QUIRE_CONFIG_KEYS);

    memset(out, 0, sizeof(*out));
    out->list = calloc(QUIRE_SERVER_KEYS_MAX, sizeof(*out->list));
    out->texts = calloc(QUIRE_SERVER_KEYS_MAX + 1, sizeof(*out->texts));
    if (out->list == NULL || out->texts == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    if (args->api_key != NULL) {
        const quire_server_key key = { .key = args->api_key, .tenant = QUIRE_SERVE_TENANT };

        QUIRE_TRY(add(out, "api_key", &key, err));
    }
    if (args->admin_key != NULL) {
        const quire_server_key key = { .key = args->admin_key,
                                       .tenant = QUIRE_SERVE_TENANT,
                                       .is_admin = true };

        QUIRE_TRY(add(out, "admin_key", &key, err));
    }
    for (uint32_t i = 0; i < n; i++) {
        quire_config_key entry;
        char where[256];

        (void)snprintf(where, sizeof(where), "%.200s: api_keys[%u]", args->settings.path, i + 1);
        QUIRE_TRY(quire_config_file_entry(args->settings.file, QUIRE_CONFIG_KEYS, i, &entry, err));
        QUIRE_TRY(add_entry(out, where, &entry, tiers, err));
    }
    return QUIRE_OK;
}

void quire_serve_keys_fini(quire_serve_keys *keys)
{
    for (uint32_t i = 0; keys->texts != NULL && i <= QUIRE_SERVER_KEYS_MAX; i++) {
        free(keys->texts[i]);
    }
    free(keys->texts);
    free(keys->list);
    memset(keys, 0, sizeof(*keys));
}
