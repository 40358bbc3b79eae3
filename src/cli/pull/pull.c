/* pull.c - see pull.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/pull.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/new_file.h"
#include "cli/commands/talk.h"
#include "cli/pull/fetch_file.h"
#include "cli/pull/model_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SHOW_EVERY_S 0.2

typedef struct pulling {
    const quire_model_name *name;
    const quire_hub_opts *opts;
    quire_pulled *out;
    quire_fetch *files; /* [n] */
    char (*urls)[QUIRE_NAME_URL_MAX];
    char (*paths)[QUIRE_PLACE_MAX];
    uint32_t n;
    char token[QUIRE_HUB_TOKEN_MAX];
    bool has_token;
    /* Progress. */
    const char *shown;   /* the file's name */
    uint64_t done_bytes; /* of the files before the one that is fetched */
    uint64_t here_bytes; /* at the start */
    double began_s;
    double shown_s;
} pulling;

/* ---- progress ---- */

static void show(void *ctx, uint64_t bytes)
{
    pulling *p = ctx;
    const uint64_t done = p->done_bytes + bytes;
    const double now = quire_now_s();
    const double seconds = now - p->began_s;
    char here[16];
    char all[16];
    char rate[16];

    if (now - p->shown_s < SHOW_EVERY_S) {
        return;
    }
    p->shown_s = now;
    if (p->out->bytes == 0) {
        quire_progress("%.40s: %s", p->shown, quire_format_bytes(done, here, sizeof(here)));
        return;
    }
    quire_progress(
        "%.40s: %3.0f %%, %s of %s, %s/s", p->shown, 100.0 * (double)done / (double)p->out->bytes,
        quire_format_bytes(done, here, sizeof(here)),
        quire_format_bytes(p->out->bytes, all, sizeof(all)),
        quire_format_bytes((uint64_t)quire_rate(
                               (double)(done > p->here_bytes ? done - p->here_bytes : 0), seconds),
                           rate, sizeof(rate)));
}

/* ---- the files to fetch ---- */

static int reserve(pulling *p, uint32_t n, quire_error *err)
{
    p->n = n;
    p->files = calloc(n, sizeof(*p->files));
    p->urls = calloc(n, sizeof(*p->urls));
    p->paths = calloc(n, sizeof(*p->paths));
    if (p->files == NULL || p->urls == NULL || p->paths == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < n; i++) {
        p->files[i].url = p->urls[i];
        p->files[i].path = p->paths[i];
        p->files[i].token = p->has_token ? p->token : NULL;
        p->files[i].is_hub = !p->name->is_url;
        p->files[i].bytes = QUIRE_TRANSFER_UNKNOWN;
        p->files[i].stall_s = p->opts->stall_s;
        p->files[i].retry = p->opts->retry;
        p->files[i].progress = show;
        p->files[i].progress_ctx = p;
    }
    return QUIRE_OK;
}

/* A set of the hub's list, beginning with the chosen file. */
static int plan_set(pulling *p, const quire_model_files *files, size_t chosen, quire_error *err)
{
    char path[QUIRE_NAME_FILE_MAX];
    const uint32_t n = quire_model_parts(files->list[chosen].path);

    QUIRE_TRY(reserve(p, n, err));
    (void)snprintf(path, sizeof(path), "%s", files->list[chosen].path);
    for (uint32_t i = 0; i < n; i++) {
        const quire_model_file *file;

        if (n > 1) {
            quire_model_part_set(path, i + 1);
        }
        file = quire_model_files_find(files, path);
        QUIRE_CHECK(file != NULL); /* quire_model_files_choose() has looked */
        p->files[i].bytes = file->bytes;
        memcpy(p->files[i].sha256, file->sha256, sizeof(file->sha256));
        memcpy(p->files[i].git_sha1, file->git_sha1, sizeof(file->git_sha1));
        QUIRE_TRY(quire_hub_file_url(p->name, path, p->urls[i], err));
        QUIRE_TRY(quire_model_place(p->name, path, p->paths[i], err));
        if (file->sha256[0] == '\0' && file->git_sha1[0] == '\0') {
            QUIRE_TRY(quire_fetch_ask(&p->files[i], err));
        }
    }
    return QUIRE_OK;
}

static int plan_hub(pulling *p, quire_error *err)
{
    char place[QUIRE_NAME_TEXT_MAX];
    quire_model_name whole = *p->name;
    quire_model_files files;
    size_t chosen = 0;
    int rc;

    QUIRE_TRY(quire_hub_files(p->name, p->has_token ? p->token : NULL, p->opts, &files, err));
    whole.selector[0] = '\0';
    rc =
        quire_model_files_choose(&files, p->name->selector,
                                 quire_model_name_text(&whole, place, sizeof(place)), &chosen, err);
    if (rc == QUIRE_OK) {
        rc = plan_set(p, &files, chosen, err);
    }
    quire_model_files_fini(&files);
    return rc;
}

static int plan_url(pulling *p, const char *sha256, quire_error *err)
{
    /* The token is for the hub, and for nobody else. */
    p->has_token = false;
    QUIRE_TRY(reserve(p, 1, err));
    memcpy(p->urls[0], p->name->url, sizeof(p->name->url));
    QUIRE_TRY(quire_model_place(p->name, NULL, p->paths[0], err));
    if (sha256 != NULL) {
        memcpy(p->files[0].sha256, sha256, QUIRE_SHA256_TEXT_MAX);
    }
    return quire_fetch_ask(&p->files[0], err);
}

static int plan(pulling *p, const char *sha256, quire_error *err)
{
    QUIRE_TRY(quire_hub_token(p->opts->token_file, p->token, &p->has_token, err));
    QUIRE_TRY(p->name->is_url ? plan_url(p, sha256, err) : plan_hub(p, err));
    if (sha256 != NULL && p->n > 1) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--sha256 is of one file, and this model has %u files", p->n);
    }
    if (sha256 != NULL && p->files[0].sha256[0] != '\0' &&
        strcmp(p->files[0].sha256, sha256) != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--sha256 is %.16s..., and the hub says %.16s...: another file",
                               sha256, p->files[0].sha256);
    }
    if (sha256 != NULL) {
        memcpy(p->files[0].sha256, sha256, QUIRE_SHA256_TEXT_MAX);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->files[i].bytes == QUIRE_TRANSFER_UNKNOWN) {
            p->out->bytes = 0; /* not known */
            break;
        }
        p->out->bytes += p->files[i].bytes;
    }
    p->out->n_files = p->n;
    memcpy(p->out->path, p->paths[0], sizeof(p->out->path));
    return QUIRE_OK;
}

/* ---- records ---- */

static int record_path(const pulling *p, char buffer[QUIRE_PLACE_MAX])
{
    const int n = snprintf(buffer, QUIRE_PLACE_MAX, "%s" QUIRE_MODEL_RECORD_SUFFIX, p->paths[0]);

    return n > 0 && n < (int)QUIRE_PLACE_MAX ? QUIRE_OK : QUIRE_LIMIT;
}

static json_t *record_json(const pulling *p)
{
    char name[QUIRE_NAME_URL_MAX];
    char when[32];
    const time_t now = time(NULL);
    struct tm utc;
    json_t *files = json_array();

    gmtime_r(&now, &utc);
    (void)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
    for (uint32_t i = 0; i < p->n; i++) {
        json_array_append_new(files, json_pack("{s:s, s:s, s:I}", "url", p->urls[i], "sha256",
                                               p->files[i].sha256, "bytes",
                                               (json_int_t)p->files[i].bytes));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "name",
                     quire_model_name_text(p->name, name, sizeof(name)), "pulled", when, "commit",
                     p->out->commit, "etag", p->files[0].etag, "files", files);
}

/* A missing record costs a comparison later, so a failure is no failure of the pull. */
static void write_record(const pulling *p)
{
    char path[QUIRE_PLACE_MAX];
    json_t *record = record_json(p);
    quire_error err = QUIRE_ERROR_INIT;
    quire_new_file file = { .stream = NULL };

    if (record != NULL && record_path(p, path) == QUIRE_OK &&
        quire_new_file_open(&file, path, &err) == QUIRE_OK) {
        if (json_dumpf(record, file.stream, JSON_INDENT(2)) == 0) {
            (void)quire_new_file_finish(&file, &err);
        }
        quire_new_file_discard(&file);
    }
    json_decref(record);
}

/* Whether the record says that the present file i equals the file to fetch. */
static bool is_recorded(const json_t *files, const pulling *p, uint32_t i, const char *etag)
{
    const json_t *file = json_array_get(files, i);
    const char *sha256 = json_string_value(json_object_get(file, "sha256"));
    struct stat status;

    if (sha256 == NULL || stat(p->paths[i], &status) != 0 ||
        status.st_size != json_integer_value(json_object_get(file, "bytes")) ||
        (p->files[i].bytes != QUIRE_TRANSFER_UNKNOWN &&
         (uint64_t)status.st_size != p->files[i].bytes)) {
        return false;
    }
    if (p->files[i].sha256[0] != '\0') {
        return strcmp(sha256, p->files[i].sha256) == 0;
    }
    /* Small files of the hub have a hash that the record lacks; URLs may have an etag. */
    return p->files[i].git_sha1[0] == '\0' && p->files[i].etag[0] != '\0' && etag != NULL &&
           strcmp(etag, p->files[i].etag) == 0;
}

static bool is_here(pulling *p)
{
    char path[QUIRE_PLACE_MAX];
    json_error_t at;
    json_t *record;
    bool is_same;

    if (record_path(p, path) < 0) {
        return false;
    }
    record = json_load_file(path, 0, &at);
    is_same = record != NULL;
    for (uint32_t i = 0; i < p->n && is_same; i++) {
        is_same = is_recorded(json_object_get(record, "files"), p, i,
                              json_string_value(json_object_get(record, "etag")));
    }
    if (is_same) {
        const char *sha256 = json_string_value(
            json_object_get(json_array_get(json_object_get(record, "files"), 0), "sha256"));

        (void)snprintf(p->out->sha256, sizeof(p->out->sha256), "%s", sha256);
    }
    json_decref(record);
    return is_same;
}

/* ---- fetching ---- */

static int check_room(pulling *p, quire_error *err)
{
    uint64_t missing = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t here = 0;

        QUIRE_TRY(quire_fetch_prepare(&p->files[i], &here, err));
        p->here_bytes += here;
        if (p->files[i].bytes != QUIRE_TRANSFER_UNKNOWN && p->files[i].bytes > here) {
            missing += p->files[i].bytes - here;
        }
    }
    return quire_fetch_space(p->paths[0], missing, err);
}

/* Check that the first file begins with "GGUF": another beginning means an error page or another
 * kind of file. The check runs before the other files are fetched; an earlier pull may have begun
 * them. */
static int check_magic(const pulling *p, quire_error *err)
{
    unsigned char magic[4] = { 0 };
    const int fd = open(p->files[0].partial, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, magic, sizeof(magic)) : -1;

    if (fd >= 0) {
        (void)close(fd);
    }
    if (n == (ssize_t)sizeof(magic) && memcmp(magic, "GGUF", sizeof(magic)) == 0) {
        return QUIRE_OK;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        (void)unlink(p->files[i].partial);
    }
    return quire_error_set(err, QUIRE_CORRUPT, "%.200s is no GGUF file: nothing is kept",
                           p->urls[0]);
}

static int fetch_files(pulling *p, quire_error *err)
{
    char bytes[16];
    char here[16];

    p->shown = strrchr(p->paths[0], '/') + 1;
    p->began_s = quire_now_s();
    if (p->out->bytes > 0) {
        quire_say("fetching %s, %s%s%s%s", p->shown,
                  quire_format_bytes(p->out->bytes, bytes, sizeof(bytes)),
                  p->here_bytes > 0 ? ", of which " : "",
                  p->here_bytes > 0 ? quire_format_bytes(p->here_bytes, here, sizeof(here)) : "",
                  p->here_bytes > 0 ? " are here" : "");
    } else {
        quire_say("fetching %s", p->shown);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        struct stat status;

        QUIRE_TRY(quire_fetch_run(&p->files[i], err));
        if (i == 0) {
            QUIRE_TRY(check_magic(p, err));
        }
        if (stat(p->files[i].partial, &status) == 0) {
            p->done_bytes += (uint64_t)status.st_size;
            p->out->fetched_bytes += (uint64_t)status.st_size - p->files[i].resumed_bytes;
            p->files[i].bytes = (uint64_t)status.st_size;
        }
    }
    return QUIRE_OK;
}

static int name_file(const pulling *p, uint32_t i, quire_error *err)
{
    return rename(p->files[i].partial, p->paths[i]) == 0
               ? QUIRE_OK
               : quire_error_set_errno(err, errno, "cannot name %s", p->paths[i]);
}

/* Names on the disk, so that a crash of the machine cannot undo part of them. */
static void sync_folder(const char *path)
{
    char folder[QUIRE_PLACE_MAX];
    int fd;

    (void)snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
}

static int name_files(const pulling *p, quire_error *err)
{
    if (p->n > 1) {
        (void)unlink(p->paths[0]); /* while the others change there is no model of this name */
        sync_folder(p->paths[0]);
    }
    for (uint32_t i = p->n; i-- > 1;) {
        QUIRE_TRY(name_file(p, i, err));
    }
    if (p->n > 1) {
        sync_folder(p->paths[0]);
    }
    QUIRE_TRY(name_file(p, 0, err));
    sync_folder(p->paths[0]);
    return QUIRE_OK;
}

/* With the lock held. */
static int get(pulling *p, quire_error *err)
{
    if (is_here(p)) {
        p->out->was_here = true;
        return QUIRE_OK;
    }
    QUIRE_TRY(check_room(p, err));
    QUIRE_TRY(fetch_files(p, err));
    QUIRE_TRY(name_files(p, err));
    p->out->bytes = p->done_bytes;
    memcpy(p->out->sha256, p->files[0].sha256, sizeof(p->out->sha256));
    memcpy(p->out->commit, p->files[0].commit, sizeof(p->out->commit));
    write_record(p);
    return QUIRE_OK;
}

int quire_pull(const quire_model_name *name, const char *sha256, const quire_hub_opts *opts,
               quire_pulled *out, quire_error *err)
{
    pulling p = { .name = name, .opts = opts, .out = out };
    int lock = -1;
    int rc;

    memset(out, 0, sizeof(*out));
    if (!quire_transfer_is_built()) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "this build cannot fetch models: it has no libcurl or no OpenSSL "
                               "(-DQUIRE_PULL=ON names the missing package)");
    }
    rc = plan(&p, sha256, err);
    if (rc == QUIRE_OK) {
        rc = quire_model_lock(p.paths[0], &lock, err);
    }
    if (rc == QUIRE_OK) {
        rc = get(&p, err);
        quire_progress_end();
        quire_model_unlock(p.paths[0], lock);
    }
    explicit_bzero(p.token, sizeof(p.token));
    free(p.files);
    free(p.urls);
    free(p.paths);
    return rc;
}
