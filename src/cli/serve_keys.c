/* serve_keys.c - see serve_keys.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serve_keys.h"

#include "base/check.h"

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

/* Add a key; where: what a message calls it. */
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
                     quire_error *err)
{
    const int n_given =
        (entry->key[0] != '\0') + (entry->key_env[0] != '\0') + (entry->key_file[0] != '\0');
    quire_server_key key = { .key = entry->key };

    if (n_given != 1) {
        return quire_error_set(err, QUIRE_INVAL, "%s needs %s key, key_env and key_file", where,
                               n_given == 0 ? "one of" : "only one of");
    }
    if (strcmp(entry->admin, "true") == 0 || strcmp(entry->admin, "yes") == 0) {
        key.is_admin = true;
    } else if (entry->admin[0] != '\0' && strcmp(entry->admin, "false") != 0 &&
               strcmp(entry->admin, "no") != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: admin '%s' is invalid: it takes true or false", where,
                               entry->admin);
    }
    if (key.is_admin && entry->tenant[0] != '\0') {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: a key of an administrator has no tenant: it may administer, "
                               "and only that",
                               where);
    }
    key.tenant = entry->tenant[0] != '\0' ? entry->tenant : QUIRE_SERVE_TENANT;
    if (entry->key_env[0] != '\0') {
        key.key = getenv(entry->key_env);
        if (key.key == NULL) {
            return quire_error_set(err, QUIRE_INVAL, "%s: key_env: %.80s is not in the environment",
                                   where, entry->key_env);
        }
    }
    if (entry->key_file[0] != '\0') {
        QUIRE_TRY(read_key(keys, where, entry->key_file, &key.key, err));
    }
    return add(keys, where, &key, err);
}

int quire_serve_keys_read(quire_serve_keys *out, const quire_serve_args *args, quire_error *err)
{
    const quire_config_key *entries = NULL;
    size_t n =
        args->settings.file != NULL ? quire_config_file_keys(args->settings.file, &entries) : 0;

    memset(out, 0, sizeof(*out));
    out->list = calloc(QUIRE_SERVER_KEYS_MAX, sizeof(*out->list));
    out->texts = calloc(QUIRE_SERVER_KEYS_MAX + 1, sizeof(*out->texts));
    if (out->list == NULL || out->texts == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    if (args->api_key != NULL) {
        const quire_server_key key = { args->api_key, QUIRE_SERVE_TENANT, false };

        QUIRE_TRY(add(out, "api_key", &key, err));
    }
    if (args->admin_key != NULL) {
        const quire_server_key key = { args->admin_key, QUIRE_SERVE_TENANT, true };

        QUIRE_TRY(add(out, "admin_key", &key, err));
    }
    for (size_t i = 0; i < n; i++) {
        char where[256];

        (void)snprintf(where, sizeof(where), "%.200s: api_keys[%zu]", args->settings.path, i + 1);
        QUIRE_TRY(add_entry(out, where, &entries[i], err));
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
