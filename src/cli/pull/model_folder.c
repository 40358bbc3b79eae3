/* model_folder.c - see model_folder.h. model_lock.c has locks and removal.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/model_folder.h"

#include "base/check.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

int quire_models_folder(char buffer[QUIRE_PLACE_MAX], quire_error *err)
{
    const char *folder = getenv("QUIRE_MODELS");
    const char *below = "";
    int n;

    if (folder == NULL || folder[0] == '\0') {
        folder = getenv("XDG_DATA_HOME");
        below = "/quire/models";
        /* The specification of these folders has relative ones ignored. */
        if (folder == NULL || folder[0] != '/') {
            folder = getenv("HOME");
            below = "/.local/share/quire/models";
        }
        if (folder == NULL || folder[0] != '/') {
            return quire_error_set(err, QUIRE_NOTFOUND,
                                   "no folder for models: set QUIRE_MODELS, XDG_DATA_HOME or HOME");
        }
    }
    n = snprintf(buffer, QUIRE_PLACE_MAX, "%s%s", folder, below);
    if (n < 0 || n >= (int)QUIRE_PLACE_MAX / 2) {
        return quire_error_set(err, QUIRE_LIMIT, "%.80s...: the path is too long", folder);
    }
    return QUIRE_OK;
}

/* HOST/PATH of a URL as a path: no query, no empty or hidden folders. */
static int url_place(const quire_model_name *name, char *buffer, size_t buffer_bytes,
                     quire_error *err)
{
    const char *at = strstr(name->url, "://") + 3;
    const size_t n = strcspn(at, "?#");
    char path[QUIRE_NAME_URL_MAX];
    size_t n_path = 0;

    for (size_t i = 0; i < n; i++) {
        /* A port's colon and percent signs may stand in a URL; in a path they would be odd. */
        path[n_path++] = at[i] == ':' || at[i] == '%' ? '_' : at[i];
    }
    path[n_path] = '\0';
    if (!quire_model_file_is_safe(path)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%.120s: the path of this URL cannot be one here (at most %u bytes "
                               "of letters, digits and . _ - + / without hidden files)",
                               name->url, QUIRE_NAME_FILE_MAX - 1);
    }
    (void)snprintf(buffer, buffer_bytes, "@url/%.*s", (int)QUIRE_NAME_FILE_MAX, path);
    return QUIRE_OK;
}

int quire_model_place(const quire_model_name *name, const char *file, char buffer[QUIRE_PLACE_MAX],
                      quire_error *err)
{
    char folder[QUIRE_PLACE_MAX];
    char below[QUIRE_NAME_TEXT_MAX];
    const bool is_main = strcmp(name->revision, "main") == 0;
    int n;

    QUIRE_TRY(quire_models_folder(folder, err));
    if (name->is_url) {
        QUIRE_TRY(url_place(name, below, sizeof(below), err));
    } else {
        (void)snprintf(below, sizeof(below), "%s/%s%s%s/%s", name->owner, name->repo,
                       is_main ? "" : "@", is_main ? "" : name->revision, file);
    }
    n = snprintf(buffer, QUIRE_PLACE_MAX, "%s/%s", folder, below);
    if (n < 0 || n >= (int)QUIRE_PLACE_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "%.80s...: the path is too long", folder);
    }
    return QUIRE_OK;
}

/* ---- scanning ---- */

typedef struct scan {
    const char *suffix;
    quire_model_files *files;
    char path[QUIRE_PLACE_MAX]; /* of the folder that is read now */
    size_t n_root;              /* bytes of path that are not part of a relative path */
    quire_error *err;
} scan;

static int scan_folder(scan *s, uint32_t depth);

static int take_entry(scan *s, uint32_t depth)
{
    const size_t n_path = strlen(s->path);
    const size_t n_suffix = strlen(s->suffix);
    quire_model_file *file;
    struct stat status;

    /* Links to files are followed: people keep models on other disks. */
    if (stat(s->path, &status) != 0) {
        return QUIRE_OK;
    }
    if (S_ISDIR(status.st_mode)) {
        return depth < QUIRE_MODEL_DEPTH_MAX ? scan_folder(s, depth + 1) : QUIRE_OK;
    }
    if (!S_ISREG(status.st_mode) || n_path <= n_suffix ||
        strcasecmp(s->path + n_path - n_suffix, s->suffix) != 0) {
        return QUIRE_OK;
    }
    file = quire_model_files_add(s->files, s->path + s->n_root + 1);
    if (file == NULL) {
        return quire_error_set(s->err, QUIRE_NOMEM, "%s: out of memory, or more than %u files",
                               s->path, QUIRE_MODEL_FILES_MAX);
    }
    file->bytes = (uint64_t)status.st_size;
    return QUIRE_OK;
}

static int scan_folder(scan *s, uint32_t depth)
{
    const size_t n = strlen(s->path);
    DIR *folder = opendir(s->path);
    struct dirent *entry;
    int rc = QUIRE_OK;

    if (folder == NULL) {
        return errno == ENOENT
                   ? QUIRE_OK
                   : quire_error_set_errno(s->err, errno, "cannot read the folder %s", s->path);
    }
    while (rc == QUIRE_OK && (entry = readdir(folder)) != NULL) {
        const size_t n_name = strlen(entry->d_name);

        if (entry->d_name[0] == '.' || n + n_name + 2 > sizeof(s->path)) {
            continue;
        }
        s->path[n] = '/';
        memcpy(s->path + n + 1, entry->d_name, n_name + 1);
        rc = take_entry(s, depth);
        s->path[n] = '\0';
    }
    (void)closedir(folder);
    return rc;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const quire_model_file *)a)->path, ((const quire_model_file *)b)->path);
}

int quire_model_files_scan(const char *folder, const char *suffix, quire_model_files *out,
                           quire_error *err)
{
    scan s = { .suffix = suffix, .files = out, .n_root = strlen(folder), .err = err };
    int rc;

    memset(out, 0, sizeof(*out));
    if (s.n_root >= sizeof(s.path)) {
        return quire_error_set(err, QUIRE_LIMIT, "%.80s...: the path is too long", folder);
    }
    memcpy(s.path, folder, s.n_root + 1);
    rc = scan_folder(&s, 0);
    if (rc < 0) {
        quire_model_files_fini(out);
    } else if (out->n > 1) {
        qsort(out->list, out->n, sizeof(*out->list), by_path);
    }
    return rc;
}

/* ---- names ---- */

static int fail_absent(const quire_model_name *name, const char *text, quire_error *err)
{
    /* Without hf: a path may be meant, too. */
    if (!name->is_url && strncmp(text, "hf:", 3) != 0 && strchr(text, '/') != NULL) {
        return quire_error_set(err, QUIRE_NOTFOUND,
                               "%s: there is no such file; if a repository of the hub is meant: "
                               "'quire pull %s' fetches it",
                               text, text);
    }
    return quire_error_set(err, QUIRE_NOTFOUND, "%s is not here yet: 'quire pull %s' fetches it",
                           text, text);
}

int quire_model_find(const quire_model_name *name, const char *text, char buffer[QUIRE_PLACE_MAX],
                     quire_error *err)
{
    char folder[QUIRE_PLACE_MAX];
    quire_model_files files;
    size_t chosen = 0;
    int rc;

    QUIRE_TRY(quire_model_place(name, "", folder, err));
    if (name->is_url) {
        memcpy(buffer, folder, sizeof(folder));
        return access(buffer, R_OK) == 0 ? QUIRE_OK : fail_absent(name, text, err);
    }
    folder[strlen(folder) - 1] = '\0'; /* the slash before the file */
    QUIRE_TRY(quire_model_files_scan(folder, ".gguf", &files, err));
    if (files.n == 0) {
        rc = fail_absent(name, text, err);
    } else {
        rc = quire_model_files_choose(&files, name->selector, folder, &chosen, err);
        if (rc == QUIRE_NOTFOUND && name->selector[0] != '\0') {
            rc = fail_absent(name, text, err);
        }
    }
    if (rc == QUIRE_OK) {
        const int n = snprintf(buffer, QUIRE_PLACE_MAX, "%s/%s", folder, files.list[chosen].path);

        if (n < 0 || n >= (int)QUIRE_PLACE_MAX) {
            rc = quire_error_set(err, QUIRE_LIMIT, "%.80s...: the path is too long", folder);
        }
    }
    quire_model_files_fini(&files);
    return rc;
}

static bool ends_with_gguf(const char *text)
{
    const size_t n = strlen(text);

    return n > 5 && strcasecmp(text + n - 5, ".gguf") == 0;
}

/* Whether a text is a path in any case, so that the message of opening it says more. */
static bool is_plain_path(const char *text)
{
    return text[0] == '\0' || text[0] == '.' || text[0] == '/' || text[0] == '~' ||
           (ends_with_gguf(text) && strchr(text, ':') == NULL);
}

int quire_model_resolve(const char *text, char buffer[QUIRE_PLACE_MAX], quire_error *err)
{
    quire_error cause = QUIRE_ERROR_INIT;
    quire_model_name name;
    int rc;

    if (strlen(text) >= QUIRE_PLACE_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "%.80s...: the path is too long", text);
    }
    memcpy(buffer, text, strlen(text) + 1);
    if (access(text, F_OK) == 0 || is_plain_path(text)) {
        return QUIRE_OK;
    }
    rc = quire_model_name_parse(text, &name, &cause);
    if (rc == QUIRE_NOTFOUND && strchr(text, '/') != NULL) {
        return QUIRE_OK;
    }
    if (rc == QUIRE_NOTFOUND) {
        return quire_error_set(err, rc, "there is no file %.80s, and %s", text, cause.message);
    }
    return rc < 0 ? quire_error_set(err, rc, "%s", cause.message)
                  : quire_model_find(&name, text, buffer, err);
}
