/* cmd_list.c - quire list and quire rm: models that were pulled.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/talk.h"
#include "cli/pull/model_folder.h"

#include "base/check.h"
#include "base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct list_args {
    bool is_known;
    bool is_json;
} list_args;

typedef struct rm_args {
    const char *name;
    bool is_json;
} rm_args;

/* clang-format off */
static const quire_opt list_options[] = {
    { .names = { "--known" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(list_args, is_known),
      .help = "list the short names that quire pull knows, instead of the models that are here" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(list_args, is_json),
      .help = "print one JSON document on stdout instead of text" },
};

static const quire_opt rm_options[] = {
    { .names = { "--name" }, .type = QUIRE_OPT_TEXT, .is_required = true, .unit = "NAME",
      .offset = offsetof(rm_args, name),
      .help = "the model, as quire list names it; the name alone, as the first word, is the same" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(rm_args, is_json),
      .help = "print one JSON document on stdout instead of text" },
};
/* clang-format on */

/* ---- list ---- */

static int list_known(const list_args *args)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < quire_n_short_names; i++) {
        const quire_short_name *s = &quire_short_names[i];

        if (args->is_json) {
            json_array_append_new(rows,
                                  json_pack("{s:s, s:s+++, s:s}", "name", s->name, "repository",
                                            "hf:", s->owner, "/", s->repo, "about", s->about));
        } else {
            char repository[QUIRE_NAME_TEXT_MAX];

            (void)snprintf(repository, sizeof(repository), "hf:%s/%s", s->owner, s->repo);
            printf("%-18s %-48s %s\n", s->name, repository, s->about);
        }
    }
    if (!args->is_json) {
        json_decref(rows);
        return QUIRE_EXIT_OK;
    }
    return quire_stdout_json(rows);
}

/* The name of a file by its path in the folder: hf:OWNER/REPO[@REVISION]:FILE, https://..., or the
 * path of a file that was put there by hand. */
static void name_of(const char *root, const char *path, char *buffer, size_t buffer_bytes)
{
    const char *owner_end = strchr(path, '/');
    const char *repo_end = owner_end != NULL ? strchr(owner_end + 1, '/') : NULL;
    char record[QUIRE_PLACE_MAX];
    json_error_t at;
    json_t *json;
    int n;

    n = snprintf(record, sizeof(record), "%s/%s" QUIRE_MODEL_RECORD_SUFFIX, root, path);
    json = n > 0 && n < (int)sizeof(record) ? json_load_file(record, 0, &at) : NULL;
    if (path[0] == '@' && json_string_value(json_object_get(json, "name")) != NULL) {
        (void)snprintf(buffer, buffer_bytes, "%s",
                       json_string_value(json_object_get(json, "name")));
    } else if (path[0] == '@' || repo_end == NULL) {
        (void)snprintf(buffer, buffer_bytes, "%s/%s", root, path);
    } else {
        (void)snprintf(buffer, buffer_bytes, "hf:%.*s:%s", (int)(repo_end - path), path,
                       repo_end + 1);
    }
    json_decref(json);
}

/* The short name that means this file, NULL if none does. */
static const char *short_name_of(const char *root, const char *path)
{
    for (size_t i = 0; i < quire_n_short_names; i++) {
        const quire_short_name *s = &quire_short_names[i];
        char found[QUIRE_PLACE_MAX];
        quire_error ignored = QUIRE_ERROR_INIT;
        quire_model_name name;

        if (strncmp(path, s->owner, strlen(s->owner)) == 0 && path[strlen(s->owner)] == '/' &&
            quire_model_name_parse(s->name, &name, &ignored) == QUIRE_OK &&
            quire_model_find(&name, s->name, found, &ignored) == QUIRE_OK &&
            strcmp(found + strlen(root) + 1, path) == 0) {
            return s->name;
        }
    }
    return NULL;
}

/* Bytes of all files of a set. */
static uint64_t set_bytes(const quire_model_files *files, const quire_model_file *first)
{
    const uint32_t n = quire_model_parts(first->path);
    char path[QUIRE_PLACE_MAX];
    uint64_t bytes = first->bytes;

    (void)snprintf(path, sizeof(path), "%s", first->path);
    for (uint32_t i = 2; i <= n; i++) {
        const quire_model_file *part;

        quire_model_part_set(path, i);
        part = quire_model_files_find(files, path);
        bytes += part != NULL ? part->bytes : 0;
    }
    return bytes;
}

static void list_model(const list_args *args, const char *root, const quire_model_files *files,
                       const quire_model_file *file, json_t *rows)
{
    const char *known = short_name_of(root, file->path);
    const uint64_t total = set_bytes(files, file);
    char name[QUIRE_NAME_URL_MAX + QUIRE_PLACE_MAX];
    char bytes[16];

    name_of(root, file->path, name, sizeof(name));
    if (args->is_json) {
        json_array_append_new(rows, json_pack("{s:s, s:s?, s:I, s:s+++}", "name", name,
                                              "short_name", known, "bytes", (json_int_t)total,
                                              "path", root, "/", file->path, ""));
    } else {
        printf("%9s  %s%s%s\n", quire_format_bytes(total, bytes, sizeof(bytes)), name,
               known != NULL ? "  = " : "", known != NULL ? known : "");
    }
}

/* List unfinished downloads: their bytes, and the commands that continue or remove them. */
static int list_partials(const char *root, uint64_t *bytes, size_t *n, quire_error *err)
{
    quire_model_files files;

    QUIRE_TRY(quire_model_files_scan(root, QUIRE_MODEL_PARTIAL_SUFFIX, &files, err));
    for (size_t i = 0; i < files.n; i++) {
        *bytes += files.list[i].bytes;
    }
    *n = files.n;
    quire_model_files_fini(&files);
    return QUIRE_OK;
}

static int list(void *opaque)
{
    const list_args *args = opaque;
    char root[QUIRE_PLACE_MAX];
    char bytes[16];
    quire_error err = QUIRE_ERROR_INIT;
    quire_model_files files;
    json_t *rows;
    uint64_t partial_bytes = 0;
    size_t n_partial = 0;

    if (args->is_known) {
        return list_known(args);
    }
    if (quire_models_folder(root, &err) < 0 ||
        list_partials(root, &partial_bytes, &n_partial, &err) < 0 ||
        quire_model_files_scan(root, ".gguf", &files, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    rows = json_array();
    for (size_t i = 0; i < files.n; i++) {
        if (quire_model_parts(files.list[i].path) > 0) {
            list_model(args, root, &files, &files.list[i], rows);
        }
    }
    if (files.n == 0 && !args->is_json) {
        quire_say("no models in %s: quire pull fetches one, quire list --known has names", root);
    }
    if (n_partial > 0) {
        quire_say(
            "%zu unfinished downloads take %s: quire pull goes on with them, quire rm removes "
            "them",
            n_partial, quire_format_bytes(partial_bytes, bytes, sizeof(bytes)));
    }
    quire_model_files_fini(&files);
    if (args->is_json) {
        return quire_stdout_json(json_pack("{s:s, s:o, s:I}", "folder", root, "models", rows,
                                           "partial_bytes", (json_int_t)partial_bytes));
    }
    json_decref(rows);
    return QUIRE_EXIT_OK;
}

/* ---- rm ---- */

/* The first file of a download that has not ended, by the files of a name's repository, or the file
 * of a URL. */
static int find_partial(const quire_model_name *name, char path[QUIRE_PLACE_MAX], quire_error *err)
{
    char folder[QUIRE_PLACE_MAX];
    const char *selector = name->selector;
    quire_model_files files;
    quire_model_files named = { .list = NULL };
    size_t chosen = SIZE_MAX;
    int rc;

    QUIRE_TRY(quire_model_place(name, "", folder, err));
    selector = name->is_url ? strrchr(folder, '/') + 1 : selector;
    *strrchr(folder, '/') = '\0';
    QUIRE_TRY(quire_model_files_scan(folder, QUIRE_MODEL_PARTIAL_SUFFIX, &files, err));
    for (size_t i = 0; i < files.n; i++) {
        char *file = files.list[i].path;

        /* FILE.ID.partial */
        for (uint32_t dots = 0; dots < 2 && strrchr(file, '.') != NULL; dots++) {
            *strrchr(file, '.') = '\0';
        }
        if (quire_model_parts(file) > 0 && quire_model_files_find(&named, file) == NULL) {
            (void)quire_model_files_add(&named, file);
        }
    }
    rc = quire_model_files_choose(&named, selector, folder, &chosen, err);
    /* A set may have begun, and its other parts are not there yet. */
    if (rc == QUIRE_OK || (rc == QUIRE_NOTFOUND && chosen < named.n)) {
        const int n = snprintf(path, QUIRE_PLACE_MAX, "%s/%s", folder, named.list[chosen].path);

        rc = n > 0 && n < (int)QUIRE_PLACE_MAX ? QUIRE_OK : QUIRE_LIMIT;
    }
    quire_model_files_fini(&named);
    quire_model_files_fini(&files);
    return rc;
}

static int rm(void *opaque)
{
    const rm_args *args = opaque;
    char path[QUIRE_PLACE_MAX];
    quire_error err = QUIRE_ERROR_INIT;
    quire_error ignored = QUIRE_ERROR_INIT;
    quire_model_name name;
    int lock = -1;
    int rc;

    if (quire_model_name_parse(args->name, &name, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_USAGE);
    }
    quire_interrupt_catch();
    rc = quire_model_find(&name, args->name, path, &err);
    if (rc == QUIRE_NOTFOUND && find_partial(&name, path, &ignored) == QUIRE_OK) {
        rc = QUIRE_OK;
    } else if (rc == QUIRE_NOTFOUND) {
        (void)quire_error_set(&err, rc, "%s is not here ('quire list' shows what is)", args->name);
    }
    if (rc == QUIRE_OK) {
        rc = quire_model_lock(path, &lock, &err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_model_remove(path, &err);
        quire_model_unlock(path, lock);
    }
    if (rc < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    quire_say("removed %s", path);
    return args->is_json ? quire_stdout_json(json_pack("{s:s}", "removed", path)) : QUIRE_EXIT_OK;
}

const quire_command quire_command_list = {
    .name = "list",
    .usage = "[--known] [--json]",
    .summary = "Lists the models that were pulled, or the short names of models.",
    .options = list_options,
    .n_options = sizeof(list_options) / sizeof(list_options[0]),
    .args_bytes = sizeof(list_args),
    .run = list,
};

const quire_command quire_command_rm = {
    .name = "rm",
    .usage = "NAME [--json]",
    .summary = "Removes a model that was pulled, or what an interrupted pull has left.",
    .options = rm_options,
    .n_options = sizeof(rm_options) / sizeof(rm_options[0]),
    .positional = "--name",
    .args_bytes = sizeof(rm_args),
    .run = rm,
};
