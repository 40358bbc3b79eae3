/* model_name.c - see model_name.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/model_name.h"

#include "base/check.h"
#include "base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NAMES_MAX 64u
#define SHOWN_MAX 120

static bool is_part_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

static bool is_part(const char *text, size_t n)
{
    if (n == 0 || n >= QUIRE_NAME_PART_MAX || text[0] == '.' || text[0] == '-') {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_part_char(text[i])) {
            return false;
        }
    }
    return true;
}

bool quire_model_file_is_safe(const char *path)
{
    const size_t n = strlen(path);

    if (n == 0 || n >= QUIRE_NAME_FILE_MAX || path[n - 1] == '/') {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const bool begins = i == 0 || path[i - 1] == '/';

        if (path[i] == '/' ? begins : !is_part_char(path[i]) && path[i] != '+' && path[i] != ' ') {
            return false;
        }
        /* Neither hidden files nor "..", and nothing that looks like an option. */
        if (begins && (path[i] == '.' || path[i] == '-' || path[i] == ' ')) {
            return false;
        }
    }
    return true;
}

int quire_hub_url(char buffer[QUIRE_NAME_URL_MAX], quire_error *err)
{
    const char *source = "QUIRE_HUB";
    const char *text = getenv(source);
    size_t n;

    if (text == NULL || text[0] == '\0') {
        source = "HF_ENDPOINT";
        text = getenv(source);
    }
    if (text == NULL || text[0] == '\0') {
        text = QUIRE_HUB_DEFAULT;
    }
    n = strlen(text);
    while (n > 0 && text[n - 1] == '/') {
        n--;
    }
    if (n >= QUIRE_NAME_URL_MAX / 2) {
        return quire_error_set(err, QUIRE_LIMIT, "%s is longer than %u bytes", source,
                               QUIRE_NAME_URL_MAX / 2);
    }
    if (strncmp(text, "https://", 8) != 0 && strncmp(text, "http://", 7) != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s is '%.80s', which is no URL: it begins with https:// or http://",
                               source, text);
    }
    memcpy(buffer, text, n);
    buffer[n] = '\0';
    return QUIRE_OK;
}

static int fail_part(const char *text, const char *part, quire_error *err)
{
    return quire_error_set(err, QUIRE_INVAL,
                           "'%.*s': the %s is missing or has characters that no name has "
                           "(hf:OWNER/REPO[@REVISION][:FILE.gguf or a quantisation])",
                           SHOWN_MAX, text, part);
}

static int set_selector(quire_model_name *out, const char *text, const char *selector,
                        quire_error *err)
{
    if (!quire_model_file_is_safe(selector)) {
        return fail_part(text, "file or quantisation", err);
    }
    memcpy(out->selector, selector, strlen(selector) + 1);
    return QUIRE_OK;
}

static void set_part(char *out, const char *text, size_t n)
{
    memcpy(out, text, n);
    out[n] = '\0';
}

/* OWNER/REPO[@REVISION][:SELECTOR]. */
static int parse_repository(const char *text, const char *at, quire_model_name *out,
                            quire_error *err)
{
    const size_t n_owner = strcspn(at, "/");
    const char *repo = at + n_owner + (at[n_owner] == '/');
    const size_t n_repo = strcspn(repo, "@:");
    const char *after = repo + n_repo;

    if (!is_part(at, n_owner)) {
        return fail_part(text, "owner", err);
    }
    if (!is_part(repo, n_repo)) {
        return fail_part(text, "repository", err);
    }
    set_part(out->owner, at, n_owner);
    set_part(out->repo, repo, n_repo);
    set_part(out->revision, "main", 4);
    if (*after == '@') {
        const size_t n = strcspn(after + 1, ":");

        if (!is_part(after + 1, n)) {
            return fail_part(text, "revision", err);
        }
        set_part(out->revision, after + 1, n);
        after += 1 + n;
    }
    return *after == ':' ? set_selector(out, text, after + 1, err) : QUIRE_OK;
}

/* HUB/OWNER/REPO/resolve/REVISION/FILE[?...]. Returns whether the URL is one. */
static bool parse_hub_url(const char *text, quire_model_name *out)
{
    char hub[QUIRE_NAME_URL_MAX];
    char file[QUIRE_NAME_URL_MAX];
    const char *parts[4];
    size_t lengths[4];
    const char *at;

    if (quire_hub_url(hub, NULL) < 0 || strncmp(text, hub, strlen(hub)) != 0 ||
        text[strlen(hub)] != '/') {
        return false;
    }
    at = text + strlen(hub) + 1;
    for (size_t i = 0; i < 4; i++) {
        parts[i] = at;
        lengths[i] = strcspn(at, "/?#");
        if (at[lengths[i]] != '/' || !is_part(at, lengths[i])) {
            return false;
        }
        at += lengths[i] + 1;
    }
    if (strncmp(parts[2], "resolve/", 8) != 0 && strncmp(parts[2], "blob/", 5) != 0) {
        return false;
    }
    (void)snprintf(file, sizeof(file), "%.*s", (int)strcspn(at, "?#"), at);
    if (!quire_model_file_is_safe(file)) {
        return false;
    }
    set_part(out->owner, parts[0], lengths[0]);
    set_part(out->repo, parts[1], lengths[1]);
    set_part(out->revision, parts[3], lengths[3]);
    set_part(out->selector, file, strlen(file));
    return true;
}

static bool has_credentials(const char *url)
{
    const char *end = strpbrk(strstr(url, "://") + 3, "/?#@");

    return end != NULL && *end == '@';
}

static int parse_url(const char *text, quire_model_name *out, quire_error *err)
{
    const size_t n = strcspn(text, "?#");

    if (strlen(text) >= QUIRE_NAME_URL_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "%.60s...: a URL has at most %u bytes", text,
                               QUIRE_NAME_URL_MAX - 1);
    }
    if (parse_hub_url(text, out)) {
        return QUIRE_OK;
    }
    if (has_credentials(text)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "a URL with a user's name or a password is not taken: others would "
                               "see it");
    }
    if (n < 5 || strncasecmp(text + n - 5, ".gguf", 5) != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%.*s: the path of a URL ends with .gguf; hf:OWNER/REPO names a "
                               "repository of the hub",
                               SHOWN_MAX, text);
    }
    out->is_url = true;
    memcpy(out->url, text, strlen(text) + 1);
    return QUIRE_OK;
}

/* SHORT[:SELECTOR]. */
static int parse_short(const char *text, quire_model_name *out, quire_error *err)
{
    const size_t n = strcspn(text, ":");
    const char *names[NAMES_MAX];
    const char *nearest;
    char word[QUIRE_NAME_PART_MAX];

    if (!is_part(text, n)) {
        return quire_error_set(err, QUIRE_NOTFOUND, "'%.*s' is not the name of a model", SHOWN_MAX,
                               text);
    }
    set_part(word, text, n);
    for (size_t i = 0; i < quire_n_short_names; i++) {
        names[i] = quire_short_names[i].name;
        if (strcasecmp(names[i], word) == 0) {
            set_part(out->owner, quire_short_names[i].owner, strlen(quire_short_names[i].owner));
            set_part(out->repo, quire_short_names[i].repo, strlen(quire_short_names[i].repo));
            set_part(out->revision, "main", 4);
            return text[n] == ':' ? set_selector(out, text, text + n + 1, err) : QUIRE_OK;
        }
    }
    nearest = quire_nearest_name(word, names, quire_n_short_names);
    if (nearest != NULL) {
        return quire_error_set(err, QUIRE_NOTFOUND,
                               "'%.*s' is not the name of a model (did you mean %s?)", SHOWN_MAX,
                               text, nearest);
    }
    return quire_error_set(err, QUIRE_NOTFOUND,
                           "'%.*s' is not the name of a model ('quire list --known' lists short "
                           "names; hf:OWNER/REPO names any repository of the hub)",
                           SHOWN_MAX, text);
}

int quire_model_name_parse(const char *text, quire_model_name *out, quire_error *err)
{
    _Static_assert(NAMES_MAX > 16, "room for the table");
    memset(out, 0, sizeof(*out));
    QUIRE_CHECK(quire_n_short_names <= NAMES_MAX);
    if (strncmp(text, "https://", 8) == 0 || strncmp(text, "http://", 7) == 0) {
        return parse_url(text, out, err);
    }
    if (strncmp(text, "hf:", 3) == 0) {
        return parse_repository(text, text + 3, out, err);
    }
    if (strcspn(text, "/") < strcspn(text, ":")) {
        quire_error cause = QUIRE_ERROR_INIT;

        if (parse_repository(text, text, out, &cause) == QUIRE_OK) {
            return QUIRE_OK;
        }
        return quire_error_set(err, QUIRE_NOTFOUND, "'%.*s' is not the name of a model", SHOWN_MAX,
                               text);
    }
    return parse_short(text, out, err);
}

char *quire_model_name_text(const quire_model_name *name, char *buffer, size_t buffer_bytes)
{
    if (name->is_url) {
        (void)snprintf(buffer, buffer_bytes, "%s", name->url);
        return buffer;
    }
    (void)snprintf(buffer, buffer_bytes, "hf:%s/%s%s%s%s%s", name->owner, name->repo,
                   strcmp(name->revision, "main") != 0 ? "@" : "",
                   strcmp(name->revision, "main") != 0 ? name->revision : "",
                   name->selector[0] != '\0' ? ":" : "", name->selector);
    return buffer;
}
