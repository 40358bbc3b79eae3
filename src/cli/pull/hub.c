/* hub.c - see hub.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/hub.h"

#include "base/bytes.h"
#include "base/check.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the token ---- */

static int check_token(const char *source, char *token, quire_error *err)
{
    size_t n = strlen(token);

    while (n > 0 && (token[n - 1] == '\n' || token[n - 1] == '\r' || token[n - 1] == ' ')) {
        token[--n] = '\0';
    }
    for (size_t i = 0; i < n; i++) {
        if (token[i] <= ' ' || token[i] > '~') {
            return quire_error_set(err, QUIRE_INVAL,
                                   "%s has no token: a token is one word of printable characters",
                                   source);
        }
    }
    return QUIRE_OK;
}

/* The token in a file. Errors: QUIRE_IO, QUIRE_INVAL. */
static int read_token(const char *path, char buffer[QUIRE_HUB_TOKEN_MAX], quire_error *err)
{
    FILE *file;
    size_t n;

    errno = 0;
    file = fopen(path, "rb");
    if (file == NULL) {
        return quire_error_set_errno(err, errno, "cannot read the token in %s", path);
    }
    n = fread(buffer, 1, QUIRE_HUB_TOKEN_MAX, file);
    if (ferror(file)) {
        const int rc = quire_error_set_errno(err, errno, "cannot read the token in %s", path);

        (void)fclose(file);
        return rc;
    }
    (void)fclose(file);
    if (n == QUIRE_HUB_TOKEN_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%s has no token: it is longer than %u bytes",
                               path, QUIRE_HUB_TOKEN_MAX - 1);
    }
    buffer[n] = '\0';
    return check_token(path, buffer, err);
}

/* The file where tools of the hub keep the token of a login. Returns whether there may be one. */
static bool login_path(char *buffer, size_t buffer_bytes)
{
    const char *path = getenv("HF_TOKEN_PATH");
    const char *folder = getenv("HF_HOME");
    int n = -1;

    if (path != NULL && path[0] != '\0') {
        n = snprintf(buffer, buffer_bytes, "%s", path);
    } else if (folder != NULL && folder[0] != '\0') {
        n = snprintf(buffer, buffer_bytes, "%s/token", folder);
    } else if ((folder = getenv("XDG_CACHE_HOME")) != NULL && folder[0] == '/') {
        n = snprintf(buffer, buffer_bytes, "%s/huggingface/token", folder);
    } else if ((folder = getenv("HOME")) != NULL && folder[0] == '/') {
        n = snprintf(buffer, buffer_bytes, "%s/.cache/huggingface/token", folder);
    }
    return n > 0 && (size_t)n < buffer_bytes;
}

int quire_hub_token(const char *token_file, char buffer[QUIRE_HUB_TOKEN_MAX], bool *has_token,
                    quire_error *err)
{
    const char *text = getenv("HF_TOKEN");
    char path[4096];
    int rc = QUIRE_OK;

    buffer[0] = '\0';
    if (token_file != NULL) {
        rc = read_token(token_file, buffer, err);
    } else if (text != NULL && text[0] != '\0') {
        if (strlen(text) >= QUIRE_HUB_TOKEN_MAX) {
            return quire_error_set(err, QUIRE_INVAL, "HF_TOKEN is longer than %u bytes",
                                   QUIRE_HUB_TOKEN_MAX - 1);
        }
        memcpy(buffer, text, strlen(text) + 1);
        rc = check_token("HF_TOKEN", buffer, err);
    } else if (login_path(path, sizeof(path))) {
        quire_error ignored = QUIRE_ERROR_INIT; /* no login is no failure */

        rc = read_token(path, buffer, &ignored) == QUIRE_INVAL
                 ? quire_error_set(err, QUIRE_INVAL, "%s", ignored.message)
                 : QUIRE_OK;
    }
    *has_token = rc == QUIRE_OK && buffer[0] != '\0';
    return rc;
}

/* ---- the list ---- */

static int take_bytes(void *ctx, const void *data, size_t n, quire_error *err)
{
    quire_bytes *reply = ctx;

    if (reply->n + n > QUIRE_HUB_REPLY_BYTES_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "the hub's list is longer than %zu MiB",
                               QUIRE_HUB_REPLY_BYTES_MAX >> 20);
    }
    return quire_bytes_add(reply, data, n) == QUIRE_OK
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_NOMEM, "out of memory");
}

/* Hexadecimal digits of one length, lower case; empty if text is none. */
static void take_hash(char *out, size_t n_digits, const char *text)
{
    out[0] = '\0';
    if (text != NULL && strncmp(text, "sha256:", 7) == 0) {
        text += 7;
    }
    if (text != NULL && strlen(text) == n_digits && strspn(text, "0123456789abcdef") == n_digits) {
        memcpy(out, text, n_digits + 1);
    }
}

static int take_file(const json_t *entry, quire_model_files *out, quire_error *err)
{
    const char *path = json_string_value(json_object_get(entry, "path"));
    const char *type = json_string_value(json_object_get(entry, "type"));
    const json_t *lfs = json_object_get(entry, "lfs");
    json_int_t bytes = json_integer_value(json_object_get(entry, "size"));
    quire_model_file *file;

    if (path == NULL || type == NULL || strcmp(type, "file") != 0 ||
        !quire_model_file_is_safe(path) || strlen(path) < 6 ||
        strcasecmp(path + strlen(path) - 5, ".gguf") != 0) {
        return QUIRE_OK;
    }
    file = quire_model_files_add(out, path);
    if (file == NULL) {
        return quire_error_set(err, QUIRE_LIMIT,
                               "out of memory, or more than %u files in one "
                               "repository",
                               QUIRE_MODEL_FILES_MAX);
    }
    if (json_is_object(lfs)) {
        take_hash(file->sha256, 64, json_string_value(json_object_get(lfs, "oid")));
        if (json_is_integer(json_object_get(lfs, "size"))) {
            bytes = json_integer_value(json_object_get(lfs, "size"));
        }
    } else {
        take_hash(file->git_sha1, 40, json_string_value(json_object_get(entry, "oid")));
    }
    file->bytes = bytes > 0 ? (uint64_t)bytes : QUIRE_TRANSFER_UNKNOWN;
    return QUIRE_OK;
}

static int take_page(const quire_bytes *reply, const char *url, quire_model_files *out,
                     quire_error *err)
{
    json_error_t at;
    json_t *list = json_loadb(reply->n > 0 ? reply->data : "", reply->n, 0, &at);
    int rc = QUIRE_OK;

    if (!json_is_array(list)) {
        rc =
            quire_error_set(err, QUIRE_CORRUPT,
                            "%.200s: not a list of files: is QUIRE_HUB the address of a hub?", url);
    }
    for (size_t i = 0; rc == QUIRE_OK && i < json_array_size(list); i++) {
        rc = take_file(json_array_get(list, i), out, err);
    }
    json_decref(list);
    return rc;
}

/* One page with its tries. next: where the page after it is, empty if there is none. */
static int get_page(const char *url, const char *token, const quire_hub_opts *opts,
                    quire_bytes *reply, char next[QUIRE_NAME_URL_MAX], quire_error *err)
{
    const quire_transfer transfer = {
        .url = url,
        .token = token,
        .is_hub = true,
        .stall_s = opts->stall_s,
        .sink = take_bytes,
        .ctx = reply,
    };
    quire_retry retry = opts->retry;
    quire_transfer_head head;
    int rc;

    do {
        quire_bytes_clear(reply);
        rc = quire_transfer_run(&transfer, &head, err);
    } while (rc < 0 && (rc = quire_retry_wait(&retry, false, &head, rc, err)) == QUIRE_OK);
    memcpy(next, head.next, QUIRE_NAME_URL_MAX);
    return rc;
}

int quire_hub_files(const quire_model_name *name, const char *token, const quire_hub_opts *opts,
                    quire_model_files *out, quire_error *err)
{
    char hub[QUIRE_NAME_URL_MAX];
    char url[QUIRE_NAME_URL_MAX];
    char next[QUIRE_NAME_URL_MAX];
    quire_bytes reply = { 0 };
    uint32_t n_pages = 0;
    int rc;

    memset(out, 0, sizeof(*out));
    QUIRE_TRY(quire_hub_url(hub, err));
    (void)snprintf(url, sizeof(url), "%.*s/api/models/%s/%s/tree/%s?recursive=true",
                   (int)QUIRE_NAME_URL_MAX / 2, hub, name->owner, name->repo, name->revision);
    do {
        rc = get_page(url, token, opts, &reply, next, err);
        if (rc == QUIRE_OK) {
            rc = take_page(&reply, url, out, err);
        }
        /* Pages of another origin could name other files. */
        if (rc == QUIRE_OK && next[0] != '\0' &&
            (strncmp(next, hub, strlen(hub)) != 0 || next[strlen(hub)] != '/')) {
            rc = quire_error_set(err, QUIRE_CORRUPT,
                                 "the hub's list goes on at another address: refused");
        }
        if (rc == QUIRE_OK && next[0] != '\0' && ++n_pages >= QUIRE_HUB_PAGES_MAX) {
            rc = quire_error_set(err, QUIRE_LIMIT, "the hub's list has more than %u pages",
                                 QUIRE_HUB_PAGES_MAX);
        }
        memcpy(url, next, sizeof(url));
    } while (rc == QUIRE_OK && url[0] != '\0');
    quire_bytes_fini(&reply);
    if (rc < 0) {
        quire_model_files_fini(out);
    }
    return rc;
}

int quire_hub_file_url(const quire_model_name *name, const char *file,
                       char buffer[QUIRE_NAME_URL_MAX], quire_error *err)
{
    char hub[QUIRE_NAME_URL_MAX];
    int n;

    QUIRE_TRY(quire_hub_url(hub, err));
    n = snprintf(buffer, QUIRE_NAME_URL_MAX, "%s/%s/%s/resolve/%s/", hub, name->owner, name->repo,
                 name->revision);
    for (const char *at = file; *at != '\0' && n > 0 && n + 4 < (int)QUIRE_NAME_URL_MAX; at++) {
        /* The two characters of safe paths that URLs spell otherwise. */
        n += snprintf(buffer + n, QUIRE_NAME_URL_MAX - (size_t)n, "%s%.*s",
                      *at == ' '   ? "%20"
                      : *at == '+' ? "%2B"
                                   : "",
                      *at == ' ' || *at == '+' ? 0 : 1, at);
    }
    return n > 0 && n + 4 < (int)QUIRE_NAME_URL_MAX
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_LIMIT, "%.100s...: the URL is too long", hub);
}
